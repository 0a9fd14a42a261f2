/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include <string.h>

#define DIGEST_IMPL_NAME digest_impl_baseline
#include "base/digest_template.h"

/* The library's shared object is built for baseline SSE2. Compiled in with AVX2 (digest_avx2.c) it is about twice as
 * fast, which decides how fast a payload registers, and what a receiver can take. */
static const struct digest_impl *impl(void)
{
#if defined(__x86_64__)
    /* Every thread computes the same value, so the race is benign; atomic for the tools. */
    static const struct digest_impl *chosen;
    const struct digest_impl *found = __atomic_load_n(&chosen, __ATOMIC_RELAXED);

    if (!found) {
        __builtin_cpu_init();
        found = __builtin_cpu_supports("avx2") ? &digest_impl_avx2 : &digest_impl_baseline;
        __atomic_store_n(&chosen, found, __ATOMIC_RELAXED);
    }
    return found;
#else
    return &digest_impl_baseline;
#endif
}

struct digest digest_of(const void *data, size_t len_bytes)
{
    return impl()->hash(data, len_bytes);
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
    return impl()->create();
}

void digest_stream_destroy(struct digest_stream *stream)
{
    impl()->destroy(stream);
}

void digest_stream_reset(struct digest_stream *stream)
{
    impl()->reset(stream);
}

void digest_stream_update(struct digest_stream *stream, const void *data, size_t len_bytes)
{
    impl()->update(stream, data, len_bytes);
}

struct digest digest_stream_final(const struct digest_stream *stream)
{
    return impl()->final(stream);
}
