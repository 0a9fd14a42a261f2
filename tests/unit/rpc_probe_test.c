/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to a probe, whole and cut, and the content of the memory. */
#include "unit.h"

#include <string.h>

#include "rpc/probe.h"
#include "wire/control.pb-c.h"

static size_t encode(uint8_t *body, uint64_t addr, uint64_t len, const char *version)
{
    Shoal__Wire__ProbeResponse response = SHOAL__WIRE__PROBE_RESPONSE__INIT;
    Shoal__Wire__MemoryRange range = SHOAL__WIRE__MEMORY_RANGE__INIT;

    range.addr = addr;
    range.len_bytes = len;
    range.key = 7;
    response.memory = &range;
    response.version = (char *)version;
    return shoal__wire__probe_response__pack(&response, body);
}

static void test_answer(void **state)
{
    static const char long_version[] = "1.2.3-with-a-name-that-is-longer-than-anybody-has-use-for";
    struct probe_answer answer = {.key = 1};
    struct shoal_error error;
    uint8_t body[256];
    size_t len = encode(body, 0x1000, PROBE_BYTES, "1.2.3");

    (void)state;
    assert_int_equal(probe_decode(&answer, body, len, &error), SHOAL_OK);
    assert_int_equal(answer.addr, 0x1000);
    assert_int_equal(answer.len_bytes, PROBE_BYTES);
    assert_int_equal(answer.key, 7);
    assert_string_equal(answer.version, "1.2.3");
    len = encode(body, 0x1000, PROBE_BYTES, long_version);
    assert_int_equal(probe_decode(&answer, body, len, &error), SHOAL_OK);
    assert_int_equal(strlen(answer.version), sizeof answer.version - 1);
}

static void test_malformed(void **state)
{
    struct probe_answer answer = {.key = 1};
    struct shoal_error error;
    uint8_t body[256];
    size_t len = encode(body, 0x1000, PROBE_BYTES - 1, "1");

    (void)state;
    assert_int_equal(probe_decode(&answer, body, len, &error), SHOAL_PROTOCOL);
    len = encode(body, UINT64_MAX - 5, PROBE_BYTES, "1");
    assert_int_equal(probe_decode(&answer, body, len, &error), SHOAL_PROTOCOL);
    assert_int_equal(probe_decode(&answer, NULL, 0, &error), SHOAL_PROTOCOL);
    memset(body, 0xff, sizeof body);
    assert_int_equal(probe_decode(&answer, body, sizeof body, &error), SHOAL_PROTOCOL);
    len = encode(body, 0x1000, PROBE_BYTES, "1");
    for (size_t i = 0; i < len; i++)
        (void)probe_decode(&answer, body, i, &error); /* a version that is cut off is no error of ours to find */
    assert_int_equal(probe_decode(&answer, body, 3, &error), SHOAL_PROTOCOL);
}

static void test_content(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < PROBE_BYTES; i += 8)
        assert_true(probe_word(i) != probe_word(i + 8) && probe_word(i) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
