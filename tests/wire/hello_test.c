/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "wire/hello.h"

/* Version 1: channel data, instance 0x0102030405060708, wants 0x1112131415161718, name "a:1", cluster "c", no proof. */
static const char golden[] = "53484f4c 28000000 0100 01 00 0807060504030201 1817161514131211"
                             "0300 613a31 0100 63 0000 0000";

static struct hello sample(void)
{
    struct hello hello = {.version = 1,
                          .channel = HELLO_CHANNEL_DATA,
                          .instance = 0x0102030405060708,
                          .wanted = 0x1112131415161718,
                          .name = "a:1",
                          .cluster = "c"};
    return hello;
}

static void test_golden(void **state)
{
    uint8_t expected[HELLO_MAX_BYTES], encoded[HELLO_MAX_BYTES];
    size_t len = wire_from_hex(expected, sizeof expected, golden), frame_len;
    struct hello hello = sample(), decoded;

    (void)state;
    assert_int_equal(hello_encode(&hello, encoded), len);
    assert_memory_equal(encoded, expected, len);
    assert_int_equal(hello_frame_len(expected, &frame_len), SHOAL_OK);
    assert_int_equal(frame_len, len);
    assert_int_equal(hello_decode(expected, len, &decoded), SHOAL_OK);
    assert_memory_equal(&decoded, &hello, sizeof hello);
}

static void test_largest(void **state)
{
    struct hello hello = sample(), decoded;
    uint8_t encoded[HELLO_MAX_BYTES];
    size_t len;

    (void)state;
    memset(hello.name, 'n', HELLO_NAME_MAX_BYTES);
    memset(hello.cluster, 'c', HELLO_CLUSTER_MAX_BYTES);
    memset(hello.proof, 0xff, HELLO_PROOF_MAX_BYTES);
    hello.proof_kind = 7;
    hello.proof_len = HELLO_PROOF_MAX_BYTES;
    hello.verdict = HELLO_REFUSE_LIMIT;
    len = hello_encode(&hello, encoded);
    assert_true(len <= HELLO_MAX_BYTES);
    assert_int_equal(hello_decode(encoded, len, &decoded), SHOAL_OK);
    assert_memory_equal(&decoded, &hello, sizeof hello);
}

static void test_truncated(void **state)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = wire_from_hex(frame, sizeof frame, golden);
    struct hello decoded;

    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1); /* exactly as long as it claims, so that a sanitizer sees more */

        assert_non_null(copy);
        memcpy(copy, frame, cut);
        assert_int_equal(hello_decode(copy, cut, &decoded), SHOAL_PROTOCOL);
        if (cut >= HELLO_PREFIX_BYTES) { /* also when the length field is right */
            copy[4] = (uint8_t)cut;
            assert_int_equal(hello_decode(copy, cut, &decoded), SHOAL_PROTOCOL);
        }
        free(copy);
    }
}

static void test_later_version(void **state)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = wire_from_hex(frame, sizeof frame, golden);
    struct hello decoded;

    (void)state;
    frame[8] = 9;
    memset(frame + len, 0xab, 20); /* fields that we do not know */
    frame[4] = (uint8_t)(len + 20);
    assert_int_equal(hello_decode(frame, len + 20, &decoded), SHOAL_OK);
    assert_int_equal(decoded.version, 9);
    assert_string_equal(decoded.name, "a:1");
}

static void test_malformed(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {
        {0, 'X'},   {4, 0},  {5, 0x09},  {7, 0xff},  {8, 0},     {28, 0xff},
        {29, 0xff}, {30, 0}, {30, '\n'}, {31, 0x7f}, {34, 0xff},
    };
    struct hello decoded;

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint8_t frame[HELLO_MAX_BYTES];
        size_t len = wire_from_hex(frame, sizeof frame, golden);

        frame[changes[i].at] = changes[i].value;
        assert_int_equal(hello_decode(frame, len, &decoded), SHOAL_PROTOCOL);
    }
}

/* F26: the length is judged before anything is read or allocated. */
static void test_huge_length(void **state)
{
    uint8_t prefix[HELLO_PREFIX_BYTES] = {'S', 'H', 'O', 'L', 0xff, 0xff, 0xff, 0xff};
    size_t frame_len = 1;

    (void)state;
    assert_int_equal(hello_frame_len(prefix, &frame_len), SHOAL_PROTOCOL);
    assert_int_equal(frame_len, 1);
}

static void test_texts(void **state)
{
    (void)state;
    for (unsigned verdict = 0; verdict < 10; verdict++)
        assert_true(strlen(hello_verdict_text(verdict)) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_largest),   cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_later_version), cmocka_unit_test(test_malformed), cmocka_unit_test(test_huge_length),
        cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests_name("hello", tests, NULL, NULL);
}
