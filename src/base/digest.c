/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include <string.h>

/* The library's shared object is built for baseline SSE2. Compiled in with AVX2 (chosen at run time, digest_avx2.c) it
 * is about twice as fast, which decides how fast a payload registers. */
#include <xxhash.h>

#include "base/digest_impl.h"

static XXH128_hash_t hash_sse2(const void *data, size_t len)
{
    return XXH3_128bits(data, len);
}

static digest_hash_fn choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        return digest_hash_avx2;
#endif
    return hash_sse2;
}

struct digest digest_of(const void *data, size_t len_bytes)
{
    static digest_hash_fn hash; /* every thread computes the same value, so the race is benign; atomic for the tools */
    digest_hash_fn fn = __atomic_load_n(&hash, __ATOMIC_RELAXED);
    struct digest digest;
    XXH128_canonical_t canonical;

    if (!fn) {
        fn = choose();
        __atomic_store_n(&hash, fn, __ATOMIC_RELAXED);
    }
    XXH128_canonicalFromHash(&canonical, fn(data, len_bytes));
    memcpy(digest.bytes, canonical.digest, sizeof digest.bytes);
    return digest;
}

bool digest_is_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void digest_to_hex(const struct digest *digest, char hex_out[DIGEST_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        hex_out[2 * i] = digits[digest->bytes[i] >> 4];
        hex_out[2 * i + 1] = digits[digest->bytes[i] & 15];
    }
    hex_out[2 * DIGEST_BYTES] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

bool digest_from_hex(struct digest *digest_out, const char *hex)
{
    struct digest digest;

    if (strnlen(hex, DIGEST_HEX_BYTES) != 2 * DIGEST_BYTES)
        return false;
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        digest.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *digest_out = digest;
    return true;
}

struct digest_stream *digest_stream_create(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state)
        XXH3_128bits_reset(state);
    return (struct digest_stream *)state;
}

void digest_stream_destroy(struct digest_stream *stream)
{
    XXH3_freeState((XXH3_state_t *)stream);
}

void digest_stream_reset(struct digest_stream *stream)
{
    XXH3_128bits_reset((XXH3_state_t *)stream);
}

void digest_stream_update(struct digest_stream *stream, const void *data, size_t len_bytes)
{
    XXH3_128bits_update((XXH3_state_t *)stream, data, len_bytes);
}

struct digest digest_stream_final(const struct digest_stream *stream)
{
    struct digest digest;
    XXH128_canonical_t canonical;

    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest((const XXH3_state_t *)stream));
    memcpy(digest.bytes, canonical.digest, sizeof digest.bytes);
    return digest;
}
