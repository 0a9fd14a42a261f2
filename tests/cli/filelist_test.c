/* SPDX-License-Identifier: Apache-2.0 */
/* The list of files and the units, as functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "filelist.h"
#include "units.h"

#define HEADER(count) "{\"format\":\"shoal-file-list\",\"version\":1,\"entries\":" #count "}\n"
#define FILE_LINE(path, size) "{\"path\":\"" path "\",\"type\":\"file\",\"mode\":420,\"size\":" #size "}\n"
#define DIR_LINE(path) "{\"path\":\"" path "\",\"type\":\"dir\",\"mode\":493}\n"

static void refuses(const char *text, enum shoal_status expected, const char *message_part)
{
    struct file_list list;
    struct shoal_error error = {.status = SHOAL_OK};
    filelist_init(&list);
    enum shoal_status status = filelist_decode(&list, text, strlen(text), &error);
    if (status != expected || !strstr(error.message, message_part))
        fail_msg("status %d, message \"%s\", expected \"%s\"", status, error.message, message_part);
    assert_int_equal(list.count, 0);
}

static void unsafe_lists_are_refused(void **state)
{
    (void)state;
    refuses("", SHOAL_PROTOCOL, "not a list of files");
    refuses("weights", SHOAL_PROTOCOL, "not a list of files");
    refuses("{\"format\":\"shoal-file-list\",\"version\":2,\"entries\":0}\n", SHOAL_PROTOCOL, "version 2");
    refuses(HEADER(4000000000), SHOAL_LIMIT, "4000000000 entries");
    refuses(HEADER(-1), SHOAL_PROTOCOL, "number of entries");
    refuses(HEADER(2) FILE_LINE("a", 1), SHOAL_PROTOCOL, "entry 2 of 2 is missing");
    refuses(HEADER(1) FILE_LINE("a", 1) "x", SHOAL_PROTOCOL, "1 bytes after");
    refuses(HEADER(1) FILE_LINE("", 1), SHOAL_PROTOCOL, "is empty");
    refuses(HEADER(1) FILE_LINE("../x", 1), SHOAL_PROTOCOL, "\"..\"");
    refuses(HEADER(1) FILE_LINE("a/../../x", 1), SHOAL_PROTOCOL, "\"..\"");
    refuses(HEADER(1) DIR_LINE(".."), SHOAL_PROTOCOL, "\"..\"");
    refuses(HEADER(1) FILE_LINE("/etc/x", 1), SHOAL_PROTOCOL, "is absolute");
    refuses(HEADER(1) FILE_LINE("a//b", 1), SHOAL_PROTOCOL, "empty component");
    refuses(HEADER(1) FILE_LINE("a/", 1), SHOAL_PROTOCOL, "empty component");
    refuses(HEADER(1) FILE_LINE("./a", 1), SHOAL_PROTOCOL, "\".\"");
    refuses(HEADER(1) FILE_LINE("a\\u0000b", 1), SHOAL_PROTOCOL, "NUL");
    refuses(HEADER(2) FILE_LINE("a", 1) FILE_LINE("a", 1), SHOAL_PROTOCOL, "twice");
    refuses(HEADER(2) FILE_LINE("b", 1) FILE_LINE("a", 1), SHOAL_PROTOCOL, "out of order");
    refuses(HEADER(2) FILE_LINE("a", 1) FILE_LINE("a/b", 1), SHOAL_PROTOCOL, "below a file");
    refuses(HEADER(1) FILE_LINE("a", -1), SHOAL_PROTOCOL, "valid size");
    refuses(HEADER(2) FILE_LINE("a", 9223372036854775807) FILE_LINE("b", 1), SHOAL_LIMIT, "add up");
    refuses(HEADER(1) "{\"path\":\"a\",\"type\":\"fifo\",\"mode\":420}\n", SHOAL_PROTOCOL, "neither");
    refuses(HEADER(1) "{\"path\":\"a\",\"type\":\"file\",\"mode\":-1,\"size\":1}\n", SHOAL_PROTOCOL, "valid mode");
    refuses(HEADER(1) "{\"path_hex\":\"6\",\"type\":\"file\",\"mode\":420,\"size\":1}\n", SHOAL_PROTOCOL,
            "readable path");
    refuses(HEADER(1) "{\"path_hex\":\"2e2e2f61\",\"type\":\"file\",\"mode\":420,\"size\":1}\n", SHOAL_PROTOCOL,
            "\"..\"");
    refuses(HEADER(1) "[1]\n", SHOAL_PROTOCOL, "malformed");
    /* Shown on a terminal: no escape sequences. */
    refuses(HEADER(1) FILE_LINE("/\\u001b[31m", 1), SHOAL_PROTOCOL, "/?[31m");
}

static void long_names_are_refused(void **state)
{
    (void)state;
    char name[FILELIST_PATH_MAX_BYTES + 2];
    struct file_list list;
    struct shoal_error error;
    filelist_init(&list);
    memset(name, 'a', sizeof name);
    name[FILELIST_NAME_MAX_BYTES + 1] = '\0';
    assert_int_equal(filelist_add(&list, name, FILE_REGULAR, 0644, 1, 0, &error), SHOAL_INVALID_ARGUMENT);
    name[FILELIST_NAME_MAX_BYTES] = '\0';
    assert_int_equal(filelist_add(&list, name, FILE_REGULAR, 0644, 1, 0, &error), SHOAL_OK);
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = i % 100 == 99 ? '/' : 'b';
    name[FILELIST_PATH_MAX_BYTES + 1] = '\0';
    assert_int_equal(filelist_add(&list, name, FILE_REGULAR, 0644, 1, 0, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "too long"));
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = i % 2 ? '/' : 'c';
    name[2 * FILELIST_MAX_DEPTH + 1] = '\0';
    assert_int_equal(filelist_add(&list, name, FILE_REGULAR, 0644, 1, 0, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "too deep"));
    filelist_release(&list);
}

static void lists_survive_a_round_trip(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        enum file_type type;
        uint32_t mode;
        uint64_t size;
    } entries[] = {
        {"model/z", FILE_REGULAR, 0600, 3},
        {"model", FILE_DIRECTORY, 0755, 0},
        {"model-2", FILE_REGULAR, 0644, 1ull << 40},
        {"model/empty", FILE_REGULAR, 0444, 0},
        {"\xff\xfe", FILE_REGULAR, 0644, 7},
        {" a\nb\"\\", FILE_REGULAR, 04755, 1},
        {"-rf", FILE_REGULAR, 0, 2},
        {"m\xc3\xa9l", FILE_DIRECTORY, 0700, 0},
    };
    struct file_list list, again;
    struct shoal_error error;
    char *text;
    size_t len;
    filelist_init(&list);
    filelist_init(&again);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        assert_int_equal(
            filelist_add(&list, entries[i].path, entries[i].type, entries[i].mode, entries[i].size, i, &error),
            SHOAL_OK);
    assert_int_equal(filelist_sort(&list, &error), SHOAL_OK);
    assert_int_equal(filelist_encode(&list, &text, &len, &error), SHOAL_OK);
    assert_int_equal(filelist_decode(&again, text, len, &error), SHOAL_OK);
    assert_int_equal(again.count, list.count);
    assert_int_equal(again.region_count, 5);
    assert_int_equal(again.file_count, 6);
    for (size_t i = 0; i < list.count; i++) {
        size_t from = list.entries[i].tag;
        assert_string_equal(again.entries[i].path, entries[from].path);
        assert_int_equal(again.entries[i].type, entries[from].type);
        assert_int_equal(again.entries[i].mode, entries[from].mode & 0777);
        assert_true(again.entries[i].size_bytes == entries[from].size);
    }
    /* A directory is followed by what is in it. */
    size_t at = 0;
    while (strcmp(again.entries[at].path, "model") != 0)
        at++;
    assert_string_equal(again.entries[at + 1].path, "model/empty");
    assert_string_equal(again.entries[at + 2].path, "model/z");
    assert_string_equal(again.entries[at + 3].path, "model-2");
    /* Cut off anywhere, it is refused. */
    for (size_t cut = 0; cut < len; cut++) {
        struct file_list part;
        filelist_init(&part);
        assert_int_not_equal(filelist_decode(&part, text, cut, &error), SHOAL_OK);
    }
    free(text);
    filelist_release(&again);
    filelist_release(&list);
}

static void equal_names_are_refused(void **state)
{
    (void)state;
    struct file_list list;
    struct shoal_error error;
    filelist_init(&list);
    assert_int_equal(filelist_add(&list, "a", FILE_REGULAR, 0644, 1, 0, &error), SHOAL_OK);
    assert_int_equal(filelist_add(&list, "b", FILE_REGULAR, 0644, 1, 0, &error), SHOAL_OK);
    assert_int_equal(filelist_add(&list, "a", FILE_DIRECTORY, 0755, 1, 0, &error), SHOAL_OK);
    assert_int_equal(filelist_sort(&list, &error), SHOAL_EXISTS);
    filelist_release(&list);
}

static void sizes_are_compared(void **state)
{
    (void)state;
    struct file_list list;
    struct shoal_error error;
    filelist_init(&list);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){0}, 1, &error), SHOAL_OK);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){5}, 1, &error), SHOAL_PROTOCOL);
    filelist_add(&list, "a", FILE_REGULAR, 0644, 5, 0, &error);
    filelist_add(&list, "b", FILE_REGULAR, 0644, 0, 0, &error);
    filelist_add(&list, "c", FILE_REGULAR, 0644, 7, 0, &error);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){5, 7}, 2, &error), SHOAL_OK);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){7, 5}, 2, &error), SHOAL_PROTOCOL);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){5, 0, 7}, 3, &error), SHOAL_PROTOCOL);
    assert_int_equal(filelist_check_sizes(&list, (const uint64_t[]){12}, 1, &error), SHOAL_PROTOCOL);
    filelist_release(&list);
}

static void sizes_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"1", 1},
                {"64M", 64 << 20},
                {"64MiB", 64 << 20},
                {"64m", 64 << 20},
                {"64MB", 64000000},
                {"1.5K", 1536},
                {"2G", 2ull << 30},
                {"1T", 1ull << 40},
                {"7b", 7},
                {"9223372036854775807", INT64_MAX}};
    static const char *const bad[] = {"",      "x",     "-1",  " 1",   "1 ",
                                      "1X",    "M",     "1.M", "1.5",  "1iB",
                                      "1MM",   "1e3",   "+1",  "0x10", "9223372036854775808",
                                      "9000P", "64MiBx"};
    uint64_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!units_parse_size(good[i].text, &value) || value != good[i].value)
            fail_msg("%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (units_parse_size(bad[i], &value))
            fail_msg("%s accepted", bad[i]);
}

static void rates_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"65536", 65536},
                {"65536B/s", 65536},
                {"100M", 100000000},
                {"100m", 100000000},
                {"100MB", 100000000},
                {"100MB/s", 100000000},
                {"100M/s", 100000000},
                {"80Mi", 80 << 20},
                {"80MiB/s", 80 << 20},
                {"12.5M", 12500000},
                {"400mbit", 50000000},
                {"400Mbit/s", 50000000},
                {"1gbit", 125000000},
                {"800000bit", 100000},
                {"1.5Gbit", 187500000},
                {"9223372036854775807", INT64_MAX}};
    static const char *const bad[] = {"",
                                      "x",
                                      "-1",
                                      "-5M",
                                      " 1",
                                      "1 ",
                                      "1X",
                                      "M",
                                      "1.M",
                                      "1.5",
                                      "1iB",
                                      "1MM",
                                      "1e9",
                                      "+1",
                                      "0x10",
                                      "400Mb",
                                      "1mb",
                                      "400mbps",
                                      "100M/",
                                      "1M/h",
                                      "mbit",
                                      "1bits",
                                      "9223372036854775808",
                                      "9e9G",
                                      "10000000000T",
                                      "nan",
                                      "inf"};
    uint64_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!units_parse_rate(good[i].text, &value) || value != good[i].value)
            fail_msg("%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (units_parse_rate(bad[i], &value))
            fail_msg("%s accepted", bad[i]);
}

static void durations_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"500ms", 500}, {"30s", 30000},  {"30", 30000}, {"5m", 300000},
                {"1.5s", 1500}, {"1h", 3600000}, {"none", -1},  {"1ms", 1}};
    static const char *const bad[] = {"", "0", "0s", "-1s", "s", "1d", "1 s", "ms", "1.5x", "forever", "99999999999h"};
    int64_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!units_parse_duration(good[i].text, &value) || value != good[i].value)
            fail_msg("%s", good[i].text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (units_parse_duration(bad[i], &value))
            fail_msg("%s accepted", bad[i]);
}

static void values_are_formatted(void **state)
{
    (void)state;
    char text[UNITS_TEXT_BYTES];
    assert_string_equal(units_format_size(0, text), "0 B");
    assert_string_equal(units_format_size(1023, text), "1023 B");
    assert_string_equal(units_format_size(1536, text), "1.50 KiB");
    assert_string_equal(units_format_size(1048575, text), "1.00 MiB");
    assert_string_equal(units_format_size(64 << 20, text), "64.0 MiB");
    assert_string_equal(units_format_size(UINT64_MAX, text), "16.0 EiB");
    assert_string_equal(units_format_rate(3.91e9, text), "3.91 GB/s");
    assert_string_equal(units_format_rate(999.9e6, text), "1.00 GB/s");
    assert_string_equal(units_format_seconds(7, text), "0:07");
    assert_string_equal(units_format_seconds(3723, text), "1:02:03");
    char shown[16];
    assert_string_equal(units_printable("a\x1b[\xff\xc3\xa9\xc2\x9b", shown, sizeof shown), "a?[?\xc3\xa9?");
    assert_string_equal(units_printable("12345\xc3\xa9", shown, 7), "12345");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsafe_lists_are_refused),   cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(lists_survive_a_round_trip), cmocka_unit_test(equal_names_are_refused),
        cmocka_unit_test(sizes_are_compared),         cmocka_unit_test(sizes_are_parsed),
        cmocka_unit_test(rates_are_parsed),           cmocka_unit_test(durations_are_parsed),
        cmocka_unit_test(values_are_formatted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
