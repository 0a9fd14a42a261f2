/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "wire/data.h"

static const struct {
    struct data_frame frame;
    const char *hex;
    uint64_t body_len;
} golden[] = {
    {{.type = DATA_READ, .id = 5, .addr = 0x7f0000001000, .key = 0x99, .len = 0x40000},
     "4453 01 00 00000000 0500000000000000 001000 00007f0000 9900000000000000 0000040000000000",
     0},
    {{.type = DATA_WRITE, .id = 0x0102030405060708, .addr = 1, .key = 0, .len = 1ull << 40},
     "4453 02 00 00000000 0807060504030201 0100000000000000 0000000000000000 0000000000010000",
     0},
    {{.type = DATA_CHUNK, .id = 6, .addr = 0x100000, .len = 0x100000},
     "4453 03 00 00000000 0600000000000000 0000100000000000 0000000000000000 0000100000000000",
     0x100000},
    {{.type = DATA_NOTIFY, .name_len = 4, .id = 7, .len = 9},
     "4453 04 00 04000000 0700000000000000 0000000000000000 0000000000000000 0900000000000000",
     9},
    {{.type = DATA_ABORT, .id = 8},
     "4453 05 00 00000000 0800000000000000 0000000000000000 0000000000000000 0000000000000000",
     0},
    {{.type = DATA_DATA, .id = 9, .len = 3},
     "4453 10 00 00000000 0900000000000000 0000000000000000 0000000000000000 0300000000000000",
     3},
    {{.type = DATA_GRANT, .id = 10},
     "4453 11 00 00000000 0a00000000000000 0000000000000000 0000000000000000 0000000000000000",
     0},
    {{.type = DATA_DONE, .id = 11},
     "4453 12 00 00000000 0b00000000000000 0000000000000000 0000000000000000 0000000000000000",
     0},
    {{.type = DATA_REFUSE, .code = DATA_CODE_INVALID, .id = 12, .len = 255},
     "4453 13 01 00000000 0c00000000000000 0000000000000000 0000000000000000 ff00000000000000",
     255},
};
#define GOLDEN_COUNT (sizeof golden / sizeof golden[0])

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        uint8_t expected[DATA_HEADER_BYTES], encoded[DATA_HEADER_BYTES];
        struct data_frame decoded;

        memset(&decoded, 0, sizeof decoded);
        assert_int_equal(wire_from_hex(expected, sizeof expected, golden[i].hex), DATA_HEADER_BYTES);
        data_encode(&golden[i].frame, encoded);
        assert_memory_equal(encoded, expected, DATA_HEADER_BYTES);
        assert_int_equal(data_decode(expected, &decoded), SHOAL_OK);
        assert_int_equal(decoded.type, golden[i].frame.type);
        assert_int_equal(decoded.code, golden[i].frame.code);
        assert_int_equal(decoded.name_len, golden[i].frame.name_len);
        assert_int_equal(decoded.id, golden[i].frame.id);
        assert_int_equal(decoded.addr, golden[i].frame.addr);
        assert_int_equal(decoded.key, golden[i].frame.key);
        assert_int_equal(decoded.len, golden[i].frame.len);
        assert_int_equal(data_body_len(&decoded), golden[i].body_len);
    }
}

static void refuse(struct data_frame frame)
{
    struct data_frame decoded = {.id = 77};
    uint8_t header[DATA_HEADER_BYTES];

    data_encode(&frame, header);
    assert_int_equal(data_decode(header, &decoded), SHOAL_PROTOCOL);
    assert_int_equal(decoded.id, 77);
}

static void test_bounds(void **state)
{
    (void)state;
    for (unsigned type = 0; type < 256; type++)
        if (!(type >= DATA_READ && type <= DATA_ABORT) && !(type >= DATA_DATA && type <= DATA_REFUSE))
            refuse((struct data_frame){.type = (uint8_t)type, .len = 1});
    refuse((struct data_frame){.type = DATA_READ, .len = 0});
    refuse((struct data_frame){.type = DATA_READ, .len = DATA_RANGE_MAX_BYTES + 1});
    refuse((struct data_frame){.type = DATA_READ, .len = UINT64_MAX});
    refuse((struct data_frame){.type = DATA_READ, .len = 1, .code = DATA_CODE_INVALID});
    refuse((struct data_frame){.type = DATA_READ, .len = 1, .name_len = 1});
    refuse((struct data_frame){.type = DATA_WRITE, .len = 0});
    refuse((struct data_frame){.type = DATA_CHUNK, .len = 0});
    refuse((struct data_frame){.type = DATA_CHUNK, .len = DATA_CHUNK_MAX_BYTES + 1});
    refuse((struct data_frame){.type = DATA_CHUNK, .len = 4ull << 30});
    refuse((struct data_frame){.type = DATA_CHUNK, .len = 1, .addr = DATA_RANGE_MAX_BYTES});
    refuse((struct data_frame){.type = DATA_NOTIFY, .len = 5, .name_len = 0});
    refuse((struct data_frame){.type = DATA_NOTIFY, .len = 5, .name_len = 6});
    refuse((struct data_frame){.type = DATA_NOTIFY, .len = 300, .name_len = 256});
    refuse((struct data_frame){.type = DATA_NOTIFY, .len = 4098, .name_len = 1});
    refuse((struct data_frame){.type = DATA_ABORT, .len = 1});
    refuse((struct data_frame){.type = DATA_DATA, .len = 0});
    refuse((struct data_frame){.type = DATA_GRANT, .len = 1});
    refuse((struct data_frame){.type = DATA_DONE, .len = 1});
    refuse((struct data_frame){.type = DATA_REFUSE, .len = 1});
    refuse((struct data_frame){.type = DATA_REFUSE, .code = 1, .len = DATA_REASON_MAX_BYTES + 1});
}

static void test_magic(void **state)
{
    struct data_frame frame = {.type = DATA_ABORT}, decoded;
    uint8_t header[DATA_HEADER_BYTES];

    (void)state;
    data_encode(&frame, header);
    header[0] ^= 1;
    assert_int_equal(data_decode(header, &decoded), SHOAL_PROTOCOL);
}

static void test_codes(void **state)
{
    (void)state;
    assert_int_equal(data_code_status(DATA_CODE_INVALID), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(data_code_status(DATA_CODE_CANCELED), SHOAL_CANCELED);
    assert_int_equal(data_code_status(DATA_CODE_UNREADABLE), SHOAL_IO);
    assert_int_equal(data_code_status(DATA_CODE_UNSUPPORTED), SHOAL_UNSUPPORTED);
    assert_int_equal(data_code_status(DATA_CODE_LIMIT), SHOAL_LIMIT);
    assert_int_equal(data_code_status(200), SHOAL_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_magic),
        cmocka_unit_test(test_codes),
    };

    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
