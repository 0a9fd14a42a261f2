/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <xxhash.h>

#include "base/digest.h"

/* xxHash's own one-shot function of the shared library (baseline instructions) is the reference. */
static struct digest reference(const void *data, size_t len)
{
    XXH128_canonical_t canonical;
    struct digest digest;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, len));
    memcpy(digest.bytes, canonical.digest, sizeof digest.bytes);
    return digest;
}

static void known_values(void **state)
{
    char hex[DIGEST_HEX_BYTES];
    struct digest digest = digest_of("", 0);
    (void)state;
    /* As printed by "xxhsum -H2" for the empty file. */
    digest_to_hex(&digest, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    digest = digest_of(NULL, 0);
    digest_to_hex(&digest, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
}

static void equals_the_library_for_every_length(void **state)
{
    enum { BIG = 3 << 20 };
    struct random random;
    uint8_t *data = malloc(BIG + 64);
    (void)state;
    assert_non_null(data);
    random_init(&random, test_seed());
    for (size_t i = 0; i < BIG + 64; i++)
        data[i] = (uint8_t)random_next(&random);
    /* All short paths of the algorithm (0-16, 17-128, 129-240, blocks of 1,024), at every alignment of a vector. */
    for (size_t len = 0; len <= 2200; len++) {
        struct digest want = reference(data + len % 33, len), have = digest_of(data + len % 33, len);
        assert_true(digest_is_equal(&have, &want));
    }
    for (int i = 0; i < 20; i++) {
        size_t offset = (size_t)random_below(&random, 64), len = (size_t)random_below(&random, BIG);
        struct digest want = reference(data + offset, len), have = digest_of(data + offset, len);
        assert_true(digest_is_equal(&have, &want));
    }
    free(data);
}

static void stream_equals_one_shot(void **state)
{
    uint8_t data[10000];
    struct random random;
    struct digest_stream *stream = digest_stream_create();
    (void)state;
    assert_non_null(stream);
    random_init(&random, test_seed());
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)random_next(&random);
    for (int round = 0; round < 200; round++) {
        size_t len = (size_t)random_below(&random, sizeof data + 1);
        struct digest want = digest_of(data, len), have, again;
        digest_stream_reset(stream);
        for (size_t at = 0; at < len;) {
            size_t part = 1 + (size_t)random_below(&random, len - at);
            digest_stream_update(stream, data + at, part);
            if (random_below(&random, 8) == 0)
                digest_stream_update(stream, data, 0);
            at += part;
        }
        have = digest_stream_final(stream);
        again = digest_stream_final(stream); /* final does not consume */
        assert_true(digest_is_equal(&have, &want));
        assert_true(digest_is_equal(&again, &want));
    }
    digest_stream_destroy(stream);
    digest_stream_destroy(NULL);
}

static void a_flipped_bit_changes_it(void **state)
{
    uint8_t data[512] = {0};
    struct digest before = digest_of(data, sizeof data);
    (void)state;
    for (size_t i = 0; i < sizeof data; i++) {
        struct digest after;
        data[i] ^= 1;
        after = digest_of(data, sizeof data);
        assert_false(digest_is_equal(&before, &after));
        data[i] ^= 1;
    }
}

static void hex_round_trip_and_refusals(void **state)
{
    static const char *const bad[] = {
        "",
        "99aa06d3014798d86001c324468d497",   /* too short */
        "99aa06d3014798d86001c324468d497f0", /* too long */
        "99aa06d3014798d86001c324468d497g",
        "99AA06D3014798D86001C324468D497F", /* one spelling only */
        " 9aa06d3014798d86001c324468d497f",
    };
    struct digest digest, parsed;
    char hex[DIGEST_HEX_BYTES];
    (void)state;
    for (size_t i = 0; i < DIGEST_BYTES; i++)
        digest.bytes[i] = (uint8_t)(i * 17 + 3);
    digest_to_hex(&digest, hex);
    assert_int_equal(strlen(hex), 2 * DIGEST_BYTES);
    assert_true(digest_from_hex(&parsed, hex));
    assert_true(digest_is_equal(&digest, &parsed));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(digest_from_hex(&parsed, bad[i]));
        assert_true(digest_is_equal(&digest, &parsed)); /* unchanged */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(equals_the_library_for_every_length),
        cmocka_unit_test(stream_equals_one_shot),
        cmocka_unit_test(a_flipped_bit_changes_it),
        cmocka_unit_test(hex_round_trip_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
