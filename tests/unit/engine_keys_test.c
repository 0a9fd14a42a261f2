/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "engine/keys.h"

static void check_key(const char *cluster, const char *name, const char *expected)
{
    char *key = engine_key_node(cluster, name);

    assert_non_null(key);
    assert_string_equal(key, expected);
    free(key);
}

static void test_keys(void **state)
{
    (void)state;
    check_key("default", "127.0.0.1:80", "/shoal/v1/default/nodes/127.0.0.1%3A80");
    check_key("a/b", "[::1]:5", "/shoal/v1/a%2Fb/nodes/%5B%3A%3A1%5D%3A5");
    check_key("c", "..%2F\x01\xc3\xa9~_-", "/shoal/v1/c/nodes/..%252F%01%C3%A9~_-");
}

static void test_round_trip(void **state)
{
    uint8_t all[256];
    struct buf escaped, back;

    (void)state;
    for (size_t i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    buf_init(&escaped, 4096);
    buf_init(&back, 4096);
    assert_true(engine_key_escape(&escaped, all, sizeof all));
    assert_true(engine_key_unescape(&back, (const char *)escaped.data, escaped.len));
    assert_int_equal(back.len, sizeof all);
    assert_memory_equal(back.data, all, sizeof all);
    buf_release(&escaped);
    buf_release(&back);
}

static void test_malformed(void **state)
{
    static const char *const texts[] = {"%", "%4", "%4x", "%x4", "a/b", "a b", "%%41", "a%"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct buf out;

        buf_init(&out, 100);
        assert_false(engine_key_unescape(&out, texts[i], strlen(texts[i])));
        buf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_malformed),
    };

    return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
