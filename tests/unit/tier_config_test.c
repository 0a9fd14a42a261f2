/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of --tiered_backend_config: what is accepted, and the message of everything that is not. */
#include "unit.h"

#include "tier/tier_config.h"

#define DRAM "{\"type\":\"DRAM\",\"capacity\":4096}"

static struct tier_config_list parse(const char *text)
{
    struct tier_config_list list;
    struct shoal_error error = {0};

    if (tier_config_parse(text, &list, &error) != SHOAL_OK)
        fail_msg("'%s': %s", text, error.message);
    return list;
}

static void example_of_the_contract(void **state)
{
    (void)state;
    struct tier_config_list list = parse(
        "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":536870912,\"priority\":100,\"allocator_type\":\"OFFSET\"}]}");
    assert_int_equal(list.count, 1);
    assert_int_equal(list.tiers[0].type, TIER_DRAM);
    assert_int_equal(list.tiers[0].capacity_bytes, 536870912);
    assert_int_equal(list.tiers[0].priority, 100);
    assert_int_equal(list.tiers[0].numa_node, -1);
    assert_false(list.tiers[0].wants_huge_pages);
    assert_null(list.tiers[0].storage_filepath);
    assert_int_equal(list.watermark_low, 0);
    tier_config_release(&list);
    assert_int_equal(list.count, 0);
}

static void every_field(void **state)
{
    (void)state;
    struct tier_config_list list =
        parse(" \n{\"watermark_low\":50,\"watermark_high\":60,\"watermark_critical\":60,\"tiers\":["
              "{\"priority\":-3,\"numa_node\":1,\"huge_pages\":true,\"capacity\":\"4GiB\",\"type\":\"DRAM\",\"tags\":"
              "[\"a\",\"b\"]},"
              "{\"storage_filepath\":\"/data/kv\",\"capacity\":\"512MB\",\"type\":\"STORAGE\"},"
              "{\"storage_filepath\":\"/data/kv2\",\"capacity\":\"1.5K\",\"type\":\"STORAGE\"}]}");
    assert_int_equal(list.count, 3);
    assert_int_equal(list.watermark_low, 50);
    assert_int_equal(list.watermark_high, 60);
    assert_int_equal(list.watermark_critical, 60);
    assert_int_equal(list.tiers[0].priority, -3);
    assert_int_equal(list.tiers[0].numa_node, 1);
    assert_true(list.tiers[0].wants_huge_pages);
    assert_int_equal(list.tiers[0].capacity_bytes, (uint64_t)4 << 30);
    assert_int_equal(list.tiers[1].type, TIER_STORAGE);
    assert_int_equal(list.tiers[1].capacity_bytes, 512000000);
    assert_int_equal(list.tiers[1].priority, 0);
    assert_string_equal(list.tiers[1].storage_filepath, "/data/kv");
    assert_int_equal(list.tiers[2].capacity_bytes, 1536);
    tier_config_release(&list);
}

static void wrong_inputs(void **state)
{
    static const struct {
        const char *text, *message; /* the message contains this */
    } cases[] = {
        {NULL, "empty"},
        {"", "empty"},
        {" \n ", "empty"},
        {"{", "line 1, column 1"},
        {"{\"tiers\":\n [,]}", "line 2, column 3"},
        {"{\"tiers\":[" DRAM "]} x", "line 1"},
        {"{\"tiers\":[" DRAM "],\"tiers\":[" DRAM "]}", "duplicate"},
        {"[" DRAM "]", "neither JSON, which begins with '{', nor a file that can be read: No such file"},
        {"/nonexistent/tiers.json", "\"/nonexistent/tiers.json\": neither JSON"},
        {"/dev/null", "not a regular file"},
        {"/tmp", "not a regular file"},
        {"{}", "missing: tiers"},
        {"{\"tiers\":{}}", "tiers must be a list, not an object"},
        {"{\"tiers\":[]}", "at least one tier"},
        {"{\"tiers\":[" DRAM "],\"tires\":1}", "unknown field \"tires\""},
        {"{\"tiers\":[" DRAM ",7]}", "tier 1 must be an object, not a whole number"},
        {"{\"tiers\":[{\"capacity\":1}]}", "tier 0: missing: type"},
        {"{\"tiers\":[{\"capacity\":1,\"type\":\"TAPE\"}]}", "unknown type \"TAPE\"; \"DRAM\" and \"STORAGE\""},
        {"{\"tiers\":[{\"capacity\":1,\"type\":1}]}", "type must be \"DRAM\" or \"STORAGE\", not a whole number"},
        {"{\"tiers\":[{\"type\":\"DRAM\"}]}", "tier 0: missing: capacity"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":0}]}", "capacity is 0; it must be at least 1 byte"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"0GB\"}]}", "capacity is \"0GB\"; it must be at least 1 byte"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":-5}]}", "capacity is -5; it must be"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"-5\"}]}", "capacity \"-5\" is not a size"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"12XB\"}]}", "capacity \"12XB\" is not a size"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"9999999P\"}]}", "\"9999999P\" is not a size below 8 EiB"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":99999999999999999999}]}", "too big integer"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1.5}]}", "capacity must be a whole number of bytes or a text"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":null}]}", "not null"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":true}]}", "not a boolean"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"priority\":\"1\"}]}", "priority must be a whole number"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"priority\":3000000000}]}", "does not fit into 32 bits"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"numa_node\":-2}]}", "numa_node -2 is not in -1 (any) to"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"numa_node\":\"0\"}]}", "numa_node must be"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"huge_pages\":1}]}", "huge_pages must be true or false"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"allocator_type\":\"SLAB\"}]}", "there is \"OFFSET\""},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"allocator_type\":2}]}", "allocator_type must be"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"tags\":\"a\"}]}", "tags must be a list of texts"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"tags\":[1]}]}", "each of tags must be a text"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"kapazity\":1}]}",
         "unknown field \"kapazity\"; there are type"},
        {"{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":1,\"storage_filepath\":\"/x\"}]}",
         "storage_filepath has no meaning for the type DRAM"},
        {"{\"tiers\":[" DRAM ",{\"type\":\"STORAGE\",\"capacity\":1}]}", "tier 1: missing: storage_filepath"},
        {"{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":\"\"}]}", "storage_filepath is empty"},
        {"{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":[]}]}",
         "storage_filepath must be the path of a directory, not a list"},
        {"{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":\"/x\",\"numa_node\":0}]}",
         "numa_node has no meaning for the type STORAGE"},
        {"{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":\"/x\"},"
         "{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":\"/x\"}]}",
         "tiers 0 and 1 have the same storage_filepath \"/x\""},
        {"{\"tiers\":[" DRAM "," DRAM "," DRAM "," DRAM "," DRAM "," DRAM "," DRAM "," DRAM "," DRAM "]}",
         "9 tiers; at most 8"},
        {"{\"watermark_low\":0,\"tiers\":[" DRAM "]}", "watermark_low must be a whole number of percent"},
        {"{\"watermark_high\":101,\"tiers\":[" DRAM "]}", "watermark_high must be"},
        {"{\"watermark_critical\":0.95,\"tiers\":[" DRAM "]}", "watermark_critical must be"},
        {"{\"watermark_low\":90,\"tiers\":[" DRAM "]}", "out of order: low 90, high 90, critical 95"},
        {"{\"watermark_high\":96,\"tiers\":[" DRAM "]}", "out of order: low 70, high 96, critical 95"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text ? cases[i].text : "(null)";
        struct tier_config_list list = {.count = 99};
        struct shoal_error error = {0};
        if (tier_config_parse(cases[i].text, &list, &error) != SHOAL_INVALID_ARGUMENT)
            fail_msg("'%s': accepted", text);
        assert_int_equal(error.status, SHOAL_INVALID_ARGUMENT);
        assert_int_equal(list.count, 99);
        if (!strstr(error.message, cases[i].message) || strncmp(error.message, "tier configuration", 18) != 0)
            fail_msg("'%s': %s (expected: %s)", text, error.message, cases[i].message);
    }
}

/* A path of any length and content stays inside its buffers. */
static void long_paths(void **state)
{
    static char text[9000];
    struct tier_config_list list;
    struct shoal_error error = {0};

    (void)state;
    int at = snprintf(text, sizeof text, "{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":1,\"storage_filepath\":\"");
    memset(text + at, 'x', 5000);
    snprintf(text + at + 5000, sizeof text - (size_t)at - 5000, "\"}]}");
    assert_int_equal(tier_config_parse(text, &list, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "has 5000 bytes; a path has at most 4095"));
    memset(text, 'x', 8000);
    text[8000] = '\0';
    assert_int_equal(tier_config_parse(text, &list, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "File name too long"));
}

static void write_file(const char *path, const char *text, size_t padding)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    for (size_t i = 0; i < padding; i++)
        assert_int_not_equal(fputc(' ', file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void files(void **state)
{
    char path[] = "/tmp/shoal-test-XXXXXX";
    struct tier_config_list list;
    struct shoal_error error = {0};
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tier_config_parse(path, &list, &error), SHOAL_INVALID_ARGUMENT); /* empty */
    write_file(path, "{\"tiers\":[" DRAM "]}\n", 10000);
    list = parse(path);
    assert_int_equal(list.count, 1);
    tier_config_release(&list);
    write_file(path, "{\"tiers\":[\n" DRAM ",\n\n ?]}\n", 0);
    assert_int_equal(tier_config_parse(path, &list, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, "line 4, column 2"));
    write_file(path, "{\"tiers\":[" DRAM "]}", 2 << 20);
    assert_int_equal(tier_config_parse(path, &list, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "larger than 1048576 bytes"));
    write_file(path, "[]", 0);
    assert_int_equal(tier_config_parse(path, &list, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "must be an object as {\"tiers\": [...]}, not a list"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_of_the_contract),
        cmocka_unit_test(every_field),
        cmocka_unit_test(wrong_inputs),
        cmocka_unit_test(long_paths),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
