/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

static const enum shoal_status all_statuses[] = {
#define STATUS_(name, value, text) SHOAL_##name,
    SHOAL_STATUS_MAP(STATUS_)
#undef STATUS_
};
static const char *const all_names[] = {
#define NAME_(name, value, text) #name,
    SHOAL_STATUS_MAP(NAME_)
#undef NAME_
};
#define STATUS_COUNT (sizeof all_statuses / sizeof *all_statuses)

static void every_status_has_name_and_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < STATUS_COUNT; i++) {
        assert_string_equal(shoal_status_name(all_statuses[i]), all_names[i]);
        assert_true(strlen(shoal_status_text(all_statuses[i])) > 0);
        assert_int_equal(all_statuses[i], -(int)i); /* stable values, no gap */
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(shoal_status_text(all_statuses[i]), shoal_status_text(all_statuses[k]));
    }
    assert_string_equal(shoal_status_name((enum shoal_status)1), "UNKNOWN");
    assert_string_equal(shoal_status_name((enum shoal_status) - 9999), "UNKNOWN");
    assert_non_null(shoal_status_text((enum shoal_status)77));
}

static void retry_helps_only_where_something_may_change(void **state)
{
    (void)state;
    assert_int_equal(shoal_status_is_retryable(SHOAL_OK), 0);
    assert_int_equal(shoal_status_is_retryable(SHOAL_INVALID_ARGUMENT), 0);
    assert_int_equal(shoal_status_is_retryable(SHOAL_CANCELED), 0);
    assert_int_equal(shoal_status_is_retryable(SHOAL_EXISTS), 0);
    assert_int_equal(shoal_status_is_retryable(SHOAL_TIMED_OUT), 1);
    assert_int_equal(shoal_status_is_retryable(SHOAL_METADATA), 1);
    assert_int_equal(shoal_status_is_retryable(SHOAL_UNREACHABLE), 1);
    assert_int_equal(shoal_status_is_retryable((enum shoal_status)12345), 0);
}

static void set_fills_everything_and_returns_the_status(void **state)
{
    struct shoal_error error;
    (void)state;
    memset(&error, 0xee, sizeof error);
    assert_int_equal(error_set(&error, SHOAL_IO, EIO, "read of '%s': %d", "x", 7), SHOAL_IO);
    assert_int_equal(error.status, SHOAL_IO);
    assert_int_equal(error.sys_errno, EIO);
    assert_string_equal(error.message, "read of 'x': 7");
    assert_int_equal(error_set(NULL, SHOAL_BUSY, 0, "dropped"), SHOAL_BUSY);
    assert_int_equal(error_no_memory(&error), SHOAL_NO_MEMORY);
    assert_int_equal(error.status, SHOAL_NO_MEMORY);
    assert_int_equal(error_no_memory(NULL), SHOAL_NO_MEMORY);
}

static void long_messages_are_cut(void **state)
{
    char text[2 * sizeof((struct shoal_error *)0)->message];
    struct shoal_error error;
    (void)state;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&error, SHOAL_IO, 0, "%s", text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    error_prefix(&error, "get");
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_memory_equal(error.message, "get: aaaa", 9);
    error_prefix(&error, "%s", text);
    assert_true(strlen(error.message) < sizeof error.message);
    assert_memory_equal(error.message, "aaaa", 4);
}

static void what_a_peer_said_cannot_control_a_terminal(void **state)
{
    struct shoal_error error;
    (void)state;
    error_set(&error, SHOAL_PROTOCOL, 0, "peer said '%s'", "a\033[2Jb\r\n\tc\x7f");
    assert_string_equal(error.message, "peer said 'a?[2Jb???c?'");
    error_set(&error, SHOAL_PROTOCOL, 0, "caf\xc3\xa9");
    assert_string_equal(error.message, "caf\xc3\xa9"); /* UTF-8 stays */
    error_prefix(&error, "line\nbreak");
    assert_string_equal(error.message, "line?break: caf\xc3\xa9");
}

static void prefix_and_copy(void **state)
{
    struct shoal_error from, to;
    (void)state;
    error_set(&from, SHOAL_TIMED_OUT, ETIMEDOUT, "connect");
    error_prefix(&from, "payload '%s'", "m");
    assert_string_equal(from.message, "payload 'm': connect");
    assert_int_equal(from.status, SHOAL_TIMED_OUT);
    assert_int_equal(error_copy(&to, &from), SHOAL_TIMED_OUT);
    assert_memory_equal(&to, &from, sizeof to);
    assert_int_equal(error_copy(NULL, &from), SHOAL_TIMED_OUT);
    assert_int_equal(error_copy(&from, &from), SHOAL_TIMED_OUT);
    error_prefix(NULL, "nothing happens");
}

static void messages_are_utf8(void **state)
{
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x9f", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x9f"},
        {"a\xffz\xfe", "a?z?"},
        {"cut \xe2\x82", "cut ??"},
        {"overlong \xc0\xaf", "overlong ??"},
        {"surrogate \xed\xa0\x80", "surrogate ???"},
        {"line\nfeed \xc2\x85", "line?feed ??"},
    };
    struct shoal_error error;
    char long_text[1024];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error_set(&error, SHOAL_IO, 0, "%s", cases[i].text);
        assert_string_equal(error.message, cases[i].wanted);
    }
    /* Cut in the middle of a character: what is left of it goes. */
    memset(long_text, 'x', sizeof long_text);
    strcpy(long_text + sizeof error.message - 2, "\xc3\xa9");
    error_set(&error, SHOAL_IO, 0, "%s", long_text);
    assert_int_equal(error.message[sizeof error.message - 2], '?');
    strcpy(error.message + sizeof error.message - 3, "\xc3\xa9");
    error_prefix(&error, "p");
    for (size_t i = 0; i < strlen(error.message); i++)
        assert_in_range(error.message[i], 0x20, 0x7e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_and_text),
        cmocka_unit_test(retry_helps_only_where_something_may_change),
        cmocka_unit_test(set_fills_everything_and_returns_the_status),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(what_a_peer_said_cannot_control_a_terminal),
        cmocka_unit_test(prefix_and_copy),
        cmocka_unit_test(messages_are_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
