/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "wire/ucx_frame.h"

#define RANGE .addr = 0x7f0000001000, .len = 0x2000

static const struct {
    struct ucx_frame frame;
    const char *hex;
} golden[] = {
    {{.type = UCX_FRAME_ASK, .code = UCX_FRAME_READ | UCX_FRAME_FALLBACK, .id = 1, .key = 0x99, RANGE},
     "5559 01 05 0000 0000 00000000 00000000 0100000000000000 00100000007f0000 9900000000000000 0020000000000000"},
    {{.type = UCX_FRAME_LINK, .set = 0x102, .body_len = UCX_FRAME_BODY_MAX_BYTES, .id = 2},
     "5559 02 00 0201 0000 00000100 00000000 0200000000000000 0000000000000000 0000000000000000 0000000000000000"},
    {{.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES, .id = 3, .key = 1, RANGE},
     "5559 06 00 0000 0000 08000000 00000000 0300000000000000 00100000007f0000 0100000000000000 0020000000000000"},
    {{.type = UCX_FRAME_GRANT, .set = 3, .body_len = 0x1234, .id = 1, .key = 0x99, RANGE},
     "5559 10 00 0300 0000 34120000 00000000 0100000000000000 00100000007f0000 9900000000000000 0020000000000000"},
    {{.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_UNSUPPORTED, .body_len = UCX_FRAME_REASON_MAX_BYTES, .id = 0x105},
     "5559 11 04 0000 0000 ff000000 00000000 0501000000000000 0000000000000000 0000000000000000 0000000000000000"},
    {{.type = UCX_FRAME_REVOKE, .id = 0x0807060504030201},
     "5559 13 00 0000 0000 00000000 00000000 0102030405060708 0000000000000000 0000000000000000 0000000000000000"},
};

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        uint8_t expected[UCX_FRAME_HEADER_BYTES], encoded[UCX_FRAME_HEADER_BYTES];
        const struct ucx_frame *frame = &golden[i].frame;
        struct ucx_frame decoded;

        assert_int_equal(wire_from_hex(expected, sizeof expected, golden[i].hex), UCX_FRAME_HEADER_BYTES);
        ucx_frame_encode(frame, encoded);
        assert_memory_equal(encoded, expected, UCX_FRAME_HEADER_BYTES);
        assert_int_equal(ucx_frame_decode(expected, &decoded), SHOAL_OK);
        assert_int_equal(decoded.type, frame->type);
        assert_int_equal(decoded.code, frame->code);
        assert_int_equal(decoded.set, frame->set);
        assert_int_equal(decoded.body_len, frame->body_len);
        assert_int_equal(decoded.id, frame->id);
        assert_int_equal(decoded.addr, frame->addr);
        assert_int_equal(decoded.key, frame->key);
        assert_int_equal(decoded.len, frame->len);
    }
}

static void check(enum shoal_status status, struct ucx_frame frame)
{
    struct ucx_frame decoded = {.id = 77};
    uint8_t bytes[UCX_FRAME_HEADER_BYTES];

    frame.id = 5;
    ucx_frame_encode(&frame, bytes);
    assert_int_equal(ucx_frame_decode(bytes, &decoded), status);
    assert_int_equal(decoded.id, status == SHOAL_OK ? 5 : 77); /* outputs are set only on success */
}

#define accept(...) check(SHOAL_OK, (struct ucx_frame){__VA_ARGS__})
#define refuse(...) check(SHOAL_PROTOCOL, (struct ucx_frame){__VA_ARGS__})

static void test_types(void **state)
{
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        bool is_known =
            (type >= UCX_FRAME_ASK && type <= UCX_FRAME_PULL) || (type >= UCX_FRAME_GRANT && type <= UCX_FRAME_STORED);

        if (!is_known)
            refuse(.type = (uint8_t)type, .code = 1, .body_len = 20, RANGE);
        if (is_known)
            assert_int_equal(ucx_frame_is_answer((uint8_t)type), type >= UCX_FRAME_GRANT);
    }
    for (unsigned code = 0; code < 256; code++) {
        bool is_access = code <= 7 && (code & (UCX_FRAME_READ | UCX_FRAME_WRITE));
        bool is_reason = code >= UCX_FRAME_INVALID && code <= UCX_FRAME_UNSUPPORTED;

        check(is_access ? SHOAL_OK : SHOAL_PROTOCOL, (struct ucx_frame){.type = UCX_FRAME_ASK, .code = (uint8_t)code});
        check(is_reason ? SHOAL_OK : SHOAL_PROTOCOL,
              (struct ucx_frame){.type = UCX_FRAME_REFUSE, .code = (uint8_t)code});
        check(code == 0 ? SHOAL_OK : SHOAL_PROTOCOL, (struct ucx_frame){.type = UCX_FRAME_PING, .code = (uint8_t)code});
    }
}

static void test_bodies(void **state)
{
    static const uint8_t empty[] = {UCX_FRAME_RELEASE, UCX_FRAME_REVOKED, UCX_FRAME_PING, UCX_FRAME_REVOKE,
                                    UCX_FRAME_STORED};
    static const struct {
        uint8_t type;
        uint32_t least;
    } full[] = {{UCX_FRAME_LINK, 1}, {UCX_FRAME_LINKED, 1}, {UCX_FRAME_GRANT, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        accept(.type = empty[i]);
        refuse(.type = empty[i], .body_len = 1);
    }
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
        refuse(.type = full[i].type, .body_len = full[i].least - 1, RANGE);
        accept(.type = full[i].type, .body_len = full[i].least, RANGE);
        accept(.type = full[i].type, .body_len = UCX_FRAME_BODY_MAX_BYTES, RANGE);
        refuse(.type = full[i].type, .body_len = UCX_FRAME_BODY_MAX_BYTES + 1, RANGE);
        refuse(.type = full[i].type, .body_len = UINT32_MAX, RANGE);
    }
    accept(.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_LIMIT, .body_len = 0);
    accept(.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_LIMIT, .body_len = UCX_FRAME_REASON_MAX_BYTES);
    refuse(.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_LIMIT, .body_len = UCX_FRAME_REASON_MAX_BYTES + 1);
    refuse(.type = UCX_FRAME_ASK, .code = UCX_FRAME_READ, .body_len = 1);
    refuse(.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES - 1, RANGE);
    accept(.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES, RANGE);
    refuse(.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES + 1, RANGE);
}

static void test_ranges(void **state)
{
    static const struct {
        uint8_t type;
        uint32_t body_len;
    } types[] = {{UCX_FRAME_GRANT, 1}, {UCX_FRAME_PULL, UCX_FRAME_PULL_BYTES}};

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        refuse(.type = types[i].type, .body_len = types[i].body_len);
        refuse(.type = types[i].type, .body_len = types[i].body_len, .addr = UINT64_MAX - 9, .len = 11);
        refuse(.type = types[i].type, .body_len = types[i].body_len, .addr = 1, .len = UINT64_MAX);
        accept(.type = types[i].type, .body_len = types[i].body_len, .addr = UINT64_MAX - 9, .len = 9);
    }
    accept(.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES, .len = UCX_CHUNK_MAX_BYTES);
    refuse(.type = UCX_FRAME_PULL, .body_len = UCX_FRAME_PULL_BYTES, .len = UCX_CHUNK_MAX_BYTES + 1);
    /* Who asks for what cannot be is told so by a REFUSE. */
    accept(.type = UCX_FRAME_ASK, .code = UCX_FRAME_WRITE, .addr = UINT64_MAX, .len = UINT64_MAX);
}

static enum shoal_status decode_message(struct ucx_message message, size_t data_len)
{
    uint8_t header[UCX_MESSAGE_HEADER_BYTES];
    struct ucx_message decoded = {.id = 77};
    enum shoal_status status;

    ucx_message_encode(&message, header);
    status = ucx_message_decode(header, sizeof header, data_len, &decoded);
    if (status)
        assert_int_equal(decoded.id, 77);
    else
        assert_memory_equal(&decoded, &message, sizeof message);
    assert_int_equal(ucx_message_decode(header, sizeof header - 1, data_len, &decoded), SHOAL_PROTOCOL);
    return status;
}

static void test_messages(void **state)
{
    const uint32_t part = UCX_MESSAGE_BYTES, whole = UCX_CHUNK_MAX_BYTES;
    struct ucx_message message = {
        .token = 0x0102030405060708, .id = 9, .grant = 3, .addr = 0x7f0000001000, .len = 2 * part + 5};
    uint8_t expected[UCX_MESSAGE_HEADER_BYTES], encoded[UCX_MESSAGE_HEADER_BYTES];

    (void)state;
    assert_int_equal(
        wire_from_hex(expected, sizeof expected,
                      "0807060504030201 0900000000000000 0300000000000000 00100000007f0000 05000200 00000100"),
        UCX_MESSAGE_HEADER_BYTES);
    message.offset = part;
    ucx_message_encode(&message, encoded);
    assert_memory_equal(encoded, expected, sizeof expected);

    message.offset = 0;
    assert_int_equal(decode_message(message, part), SHOAL_OK);
    assert_int_equal(decode_message(message, part - 1), SHOAL_PROTOCOL);
    message.offset = 1;
    assert_int_equal(decode_message(message, part), SHOAL_PROTOCOL);
    message.offset = 2 * part;
    assert_int_equal(decode_message(message, 5), SHOAL_OK);
    assert_int_equal(decode_message(message, part), SHOAL_PROTOCOL);
    message.offset = 3 * part;
    assert_int_equal(decode_message(message, 0), SHOAL_PROTOCOL);
    assert_int_equal(decode_message((struct ucx_message){.len = 0}, 0), SHOAL_PROTOCOL);
    assert_int_equal(decode_message((struct ucx_message){.len = whole, .offset = whole - part}, part), SHOAL_OK);
    assert_int_equal(decode_message((struct ucx_message){.len = whole + 1}, part), SHOAL_PROTOCOL);
    assert_int_equal(decode_message((struct ucx_message){.len = 5, .addr = UINT64_MAX - 4}, 5), SHOAL_PROTOCOL);

    for (uint32_t len = 1; len <= whole; len += part / 2) {
        uint32_t bits = 0;

        message = (struct ucx_message){.len = len};
        for (; message.offset < len; message.offset += ucx_message_bytes(&message)) {
            assert_int_equal(bits & ucx_message_bit(&message), 0);
            assert_int_not_equal(bits, ucx_message_all_bits(len));
            bits |= ucx_message_bit(&message);
        }
        assert_int_equal(bits, ucx_message_all_bits(len));
    }
}

static void test_magic(void **state)
{
    struct ucx_frame frame = {.type = UCX_FRAME_PING}, decoded = {.id = 77};

    (void)state;
    for (size_t bit = 0; bit < 16; bit++) {
        uint8_t bytes[UCX_FRAME_HEADER_BYTES];

        ucx_frame_encode(&frame, bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(ucx_frame_decode(bytes, &decoded), SHOAL_PROTOCOL);
    }
    assert_int_equal(decoded.id, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_types), cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_ranges), cmocka_unit_test(test_magic), cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
