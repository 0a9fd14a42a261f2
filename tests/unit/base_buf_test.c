/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/buf.h"

static void grows_up_to_its_bound(void **state)
{
    struct buf buf;
    (void)state;
    buf_init(&buf, 1000);
    for (int i = 0; i < 1000; i++)
        assert_true(buf_append(&buf, "x", 1));
    assert_int_equal(buf.len, 1000);
    assert_int_equal(buf.data[1000], 0);
    assert_false(buf_append(&buf, "y", 1));
    assert_false(buf_append_str(&buf, "y"));
    assert_false(buf_append_format(&buf, "%d", 1));
    assert_int_equal(buf.len, 1000);
    assert_int_equal(buf.data[999], 'x');
    assert_true(buf_append(&buf, "", 0));
    assert_false(buf_reserve(&buf, SIZE_MAX));
    buf_consume(&buf, 1);
    assert_true(buf_append(&buf, "z", 1));
    buf_release(&buf);
    assert_null(buf.data);
    buf_release(&buf);
}

static void refusal_leaves_the_content(void **state)
{
    struct buf buf;
    (void)state;
    buf_init(&buf, 8);
    assert_true(buf_append_str(&buf, "1234"));
    assert_false(buf_append(&buf, "56789", 5));
    assert_string_equal((char *)buf.data, "1234");
    assert_false(buf_append_format(&buf, "%s", "56789"));
    assert_string_equal((char *)buf.data, "1234");
    assert_true(buf_append_format(&buf, "%s", "5678"));
    assert_string_equal((char *)buf.data, "12345678");
    buf_release(&buf);
}

static void zeroed_and_zero_bound(void **state)
{
    struct buf zeroed = {0}, bounded;
    (void)state;
    assert_false(buf_append(&zeroed, "x", 1));
    assert_false(buf_reserve(&zeroed, 1));
    buf_consume(&zeroed, 10);
    buf_release(&zeroed);
    buf_init(&bounded, 0);
    assert_false(buf_append_str(&bounded, "x"));
    buf_release(&bounded);
}

static void consume_moves_the_rest_to_the_front(void **state)
{
    struct buf buf;
    (void)state;
    buf_init(&buf, 100);
    assert_true(buf_append_str(&buf, "abcdef"));
    buf_consume(&buf, 0);
    assert_string_equal((char *)buf.data, "abcdef");
    buf_consume(&buf, 2);
    assert_string_equal((char *)buf.data, "cdef");
    assert_int_equal(buf.len, 4);
    buf_consume(&buf, 100);
    assert_int_equal(buf.len, 0);
    assert_string_equal((char *)buf.data, "");
    buf_release(&buf);
}

static void take_hands_over(void **state)
{
    struct buf buf;
    size_t len = 99;
    uint8_t *data;
    (void)state;
    buf_init(&buf, 100);
    data = buf_take(&buf, &len);
    assert_non_null(data);
    assert_int_equal(len, 0);
    assert_int_equal(data[0], 0);
    free(data);
    assert_true(buf_append_str(&buf, "text"));
    data = buf_take(&buf, &len);
    assert_int_equal(len, 4);
    assert_string_equal((char *)data, "text");
    free(data);
    assert_int_equal(buf.len, 0);
    assert_true(buf_append_str(&buf, "again"));
    data = buf_take(&buf, NULL);
    assert_string_equal((char *)data, "again");
    free(data);
    buf_release(&buf);
}

static void random_operations_match_a_plain_array(void **state)
{
    struct random random;
    struct buf buf;
    uint8_t model[512];
    size_t model_len = 0;
    (void)state;
    random_init(&random, test_seed());
    buf_init(&buf, sizeof model);
    for (int step = 0; step < 20000; step++) {
        uint8_t chunk[96];
        size_t len = (size_t)random_below(&random, sizeof chunk);
        if (random_below(&random, 2)) {
            for (size_t i = 0; i < len; i++)
                chunk[i] = (uint8_t)random_next(&random);
            bool fits = model_len + len <= sizeof model;
            assert_int_equal(buf_append(&buf, chunk, len), fits);
            if (fits) {
                memcpy(model + model_len, chunk, len);
                model_len += len;
            }
        } else {
            buf_consume(&buf, len);
            len = len < model_len ? len : model_len;
            memmove(model, model + len, model_len - len);
            model_len -= len;
        }
        assert_int_equal(buf.len, model_len);
        if (buf.data) {
            assert_memory_equal(buf.data, model, model_len);
            assert_int_equal(buf.data[buf.len], 0);
        }
    }
    buf_release(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_up_to_its_bound), cmocka_unit_test(refusal_leaves_the_content),
        cmocka_unit_test(zeroed_and_zero_bound), cmocka_unit_test(consume_moves_the_rest_to_the_front),
        cmocka_unit_test(take_hands_over),       cmocka_unit_test(random_operations_match_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
