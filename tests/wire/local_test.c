/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "wire/local.h"

#define TEXT_ZEROS                                                                                                     \
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 "           \
    "0000000000000000 0000000000000000"

static const struct {
    struct local_frame frame;
    const char *hex;
} golden[] = {
    {{.type = LOCAL_HELLO, .flags = LOCAL_FLAG_LIMITED, .id = 1, .addr = 0x7f0000001000, .key = 0x99},
     "534c 01 00 01000000 0100000000000000 00100000007f0000 0000000000000000 9900000000000000 0000000000000000 "
     "0000000000000000 0000000000000000" TEXT_ZEROS},
    {{.type = LOCAL_READY, .flags = LOCAL_FLAG_SHARES, .text = "no"},
     "534c 02 00 04000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 "
     "0000000000000000 6e6f000000000000" TEXT_ZEROS},
    {{.type = LOCAL_WRITE, .id = 0x105, .addr = 2, .len = 1ull << 40, .key = 3, .from = 4, .share = 5},
     "534c 04 00 00000000 0501000000000000 0200000000000000 0000000000010000 0300000000000000 0400000000000000 "
     "0500000000000000 0000000000000000" TEXT_ZEROS},
    {{.type = LOCAL_REFUSE, .code = LOCAL_CODE_INVALID, .id = 0x105, .text = "no"},
     "534c 12 01 00000000 0501000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 "
     "0000000000000000 6e6f000000000000" TEXT_ZEROS},
};

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        uint8_t expected[LOCAL_FRAME_BYTES], encoded[LOCAL_FRAME_BYTES];
        const struct local_frame *frame = &golden[i].frame;
        struct local_frame decoded;

        assert_int_equal(wire_from_hex(expected, sizeof expected, golden[i].hex), LOCAL_FRAME_BYTES);
        local_encode(frame, encoded);
        assert_memory_equal(encoded, expected, LOCAL_FRAME_BYTES);
        assert_int_equal(local_decode(expected, &decoded), SHOAL_OK);
        assert_int_equal(decoded.type, frame->type);
        assert_int_equal(decoded.code, frame->code);
        assert_int_equal(decoded.flags, frame->flags);
        assert_int_equal(decoded.id, frame->id);
        assert_int_equal(decoded.addr, frame->addr);
        assert_int_equal(decoded.len, frame->len);
        assert_int_equal(decoded.key, frame->key);
        assert_int_equal(decoded.from, frame->from);
        assert_int_equal(decoded.share, frame->share);
        assert_string_equal(decoded.text, frame->text);
    }
}

static void refuse(struct local_frame frame)
{
    struct local_frame decoded = {.id = 77};
    uint8_t bytes[LOCAL_FRAME_BYTES];

    local_encode(&frame, bytes);
    assert_int_equal(local_decode(bytes, &decoded), SHOAL_PROTOCOL);
    assert_int_equal(decoded.id, 77);
}

static void test_bounds(void **state)
{
    (void)state;
    for (unsigned type = 0; type < 256; type++)
        if (!(type >= LOCAL_HELLO && type <= LOCAL_UNSHARE) && !(type >= LOCAL_GRANT && type <= LOCAL_PROGRESS))
            refuse((struct local_frame){.type = (uint8_t)type});
    refuse((struct local_frame){.type = LOCAL_READ});
    refuse((struct local_frame){.type = LOCAL_READ, .len = LOCAL_RANGE_MAX_BYTES + 1});
    refuse((struct local_frame){.type = LOCAL_READ, .len = 1, .code = LOCAL_CODE_INVALID});
    refuse((struct local_frame){.type = LOCAL_READ, .len = 1, .flags = 8});
    refuse((struct local_frame){.type = LOCAL_WRITE});
    refuse((struct local_frame){.type = LOCAL_SHARE});
    refuse((struct local_frame){.type = LOCAL_PROGRESS, .len = LOCAL_RANGE_MAX_BYTES + 1});
    refuse((struct local_frame){.type = LOCAL_GRANT, .len = 1});
    refuse((struct local_frame){.type = LOCAL_REFUSE});
    refuse((struct local_frame){.type = LOCAL_REFUSE, .code = LOCAL_CODE_INVALID, .text = "a\nb"});
    refuse((struct local_frame){.type = LOCAL_REFUSE, .code = LOCAL_CODE_INVALID, .text = "\x7f"});
}

static void test_magic_and_text(void **state)
{
    struct local_frame frame = {.type = LOCAL_READY, .text = "ab"}, decoded;
    uint8_t bytes[LOCAL_FRAME_BYTES];

    (void)state;
    local_encode(&frame, bytes);
    bytes[0] ^= 1;
    assert_int_equal(local_decode(bytes, &decoded), SHOAL_PROTOCOL);
    bytes[0] ^= 1;
    bytes[LOCAL_FRAME_BYTES - 1] = 'x'; /* something behind the end of the text */
    assert_int_equal(local_decode(bytes, &decoded), SHOAL_PROTOCOL);
    memset(frame.text, 'x', LOCAL_TEXT_BYTES); /* all of the room */
    local_encode(&frame, bytes);
    assert_int_equal(local_decode(bytes, &decoded), SHOAL_OK);
    assert_int_equal(strlen(decoded.text), LOCAL_TEXT_BYTES);
}

static void test_codes(void **state)
{
    (void)state;
    assert_int_equal(local_code_status(LOCAL_CODE_INVALID), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(local_code_status(LOCAL_CODE_CANCELED), SHOAL_CANCELED);
    assert_int_equal(local_code_status(LOCAL_CODE_UNREADABLE), SHOAL_IO);
    assert_int_equal(local_code_status(LOCAL_CODE_UNABLE), SHOAL_UNSUPPORTED);
    assert_int_equal(local_code_status(LOCAL_CODE_NO_MEMORY), SHOAL_NO_MEMORY);
    assert_int_equal(local_code_status(0), SHOAL_PROTOCOL);
    assert_int_equal(local_code_status(200), SHOAL_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_magic_and_text),
        cmocka_unit_test(test_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
