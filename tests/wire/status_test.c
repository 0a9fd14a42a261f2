/* SPDX-License-Identifier: Apache-2.0 */
/* The status call: its bytes, truncation at every byte, and answers that cannot be right. */
#include "wire.h"

#include "store/status.h"
#include "wire/control.pb-c.h"

#define PIECES 300

/* "n", generation 0x0102030405060708, at most 2 receivers. */
static const char golden_request[] = "0a016e 110807060504030201 1802";

/* 150 of 300 pieces, gold, starving, 1000 bytes served, 1 receiver now, 2 known: "a:1" took 900 bytes, has 299 pieces
 * and has been silent for 500 ms; "b:2" took 100, has 300 and is done. */
static const char golden_response[] = "089601 10ac02 1801 2001 28e807 3001 3802"
                                      "420e 0a03613a31 108407 18ab02 28f403"
                                      "420c 0a03623a32 1064 18ac02 2001";

static struct shoal_receiver_info sample_receivers[2] = {
    {.name = "a:1", .state = SHOAL_RECEIVER_TAKING, .pieces_have = 299, .bytes = 900, .silent_ms = 500},
    {.name = "b:2", .state = SHOAL_RECEIVER_DONE, .pieces_have = 300, .bytes = 100},
};

static struct shoal_source_status sample(void)
{
    struct shoal_source_status status = {
        .source = {.is_gold = 1},
        .is_starving = 1,
        .pieces_have = 150,
        .pieces_total = PIECES,
        .bytes_served = 1000,
        .receivers_now = 1,
        .receivers_known = 2,
        .receivers = sample_receivers,
        .receiver_count = 2,
    };
    return status;
}

static enum shoal_status decode(const char *hex, uint32_t max_receivers, struct shoal_source_status *status)
{
    uint8_t body[512];
    struct shoal_error error;
    size_t len = wire_from_hex(body, sizeof body, hex);
    enum shoal_status result = status_decode(status, PIECES, max_receivers, body, len, &error);

    if (result)
        assert_true(error.status == result && error.message[0]);
    return result;
}

static void test_request(void **state)
{
    Shoal__Wire__StatusRequest request = SHOAL__WIRE__STATUS_REQUEST__INIT;
    uint8_t expected[64], encoded[64];
    size_t len = wire_from_hex(expected, sizeof expected, golden_request);

    (void)state;
    request.name = (char *)"n";
    request.generation = 0x0102030405060708;
    request.max_receivers = 2;
    assert_int_equal(shoal__wire__status_request__pack(&request, encoded), len);
    assert_memory_equal(encoded, expected, len);
}

static void test_response(void **state)
{
    struct shoal_source_status status = sample(), decoded = {.receivers = NULL};
    uint8_t expected[512];
    size_t len = wire_from_hex(expected, sizeof expected, golden_response);
    struct buf encoded;

    (void)state;
    buf_init(&encoded, 512);
    assert_int_equal(status_encode(&status, &encoded), SHOAL_OK);
    assert_int_equal(encoded.len, len);
    assert_memory_equal(encoded.data, expected, len);
    buf_release(&encoded);

    assert_int_equal(decode(golden_response, 2, &decoded), SHOAL_OK);
    assert_int_equal(decoded.pieces_have, 150);
    assert_int_equal(decoded.pieces_total, PIECES);
    assert_int_equal(decoded.is_starving, 1);
    assert_int_equal(decoded.bytes_served, 1000);
    assert_int_equal(decoded.receivers_now, 1);
    assert_int_equal(decoded.receivers_known, 2);
    assert_int_equal(decoded.receiver_count, 2);
    assert_memory_equal(decoded.receivers, sample_receivers, sizeof sample_receivers);
    free(decoded.receivers);
}

/* A bound of the buffer, not of the message: nothing is written beyond it. */
static void test_does_not_fit(void **state)
{
    struct shoal_source_status status = sample();
    struct buf encoded;

    (void)state;
    buf_init(&encoded, 20);
    assert_int_equal(status_encode(&status, &encoded), SHOAL_NO_MEMORY);
    assert_int_equal(encoded.len, 0);
    buf_release(&encoded);
}

/* What is cut between two fields is a shorter message; it must not be taken for one about this payload. */
static void test_truncated(void **state)
{
    uint8_t body[512];
    size_t len = wire_from_hex(body, sizeof body, golden_response);

    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        struct shoal_source_status decoded = {.receivers = NULL};
        uint8_t *copy = malloc(cut ? cut : 1); /* exactly as long as it claims, so that a sanitizer sees more */
        struct shoal_error error;

        assert_non_null(copy);
        memcpy(copy, body, cut);
        if (status_decode(&decoded, PIECES, 2, copy, cut, &error) == SHOAL_OK) {
            assert_int_equal(decoded.pieces_total, PIECES);
            assert_true(decoded.receiver_count < 2);
            free(decoded.receivers);
        } else {
            assert_int_equal(error.status, SHOAL_PROTOCOL);
            assert_null(decoded.receivers);
        }
        free(copy);
    }
}

static void test_contradictions(void **state)
{
    static const char *const wrong[] = {
        "",                                          /* no piece count */
        "10ad02",                                    /* another number of pieces */
        "08ad02 10ac02",                             /* more than there are */
        "10ac02 4202 0a00",                          /* a receiver without name */
        "10ac02 4200",                               /* the same */
        "10ac02 4206 0a0161 18ad02",                 /* a receiver with more pieces than there are */
        "10ac02 4205 0a0161 2003",                   /* no such state */
        "10ac02 4203 0a0161 4203 0a0162 42030a0163", /* more than were asked for */
        "10ac02 ff",                                 /* garbage */
    };
    struct shoal_source_status status = {.receivers = NULL};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(decode(wrong[i], 2, &status), SHOAL_PROTOCOL);
        assert_null(status.receivers);
    }
    assert_int_equal(decode("10ac02", 0, &status), SHOAL_OK);
    free(status.receivers);
}

static enum shoal_status decode_name_of(size_t len)
{
    Shoal__Wire__StatusResponse response = SHOAL__WIRE__STATUS_RESPONSE__INIT;
    Shoal__Wire__Receiver receiver = SHOAL__WIRE__RECEIVER__INIT, *receivers[] = {&receiver};
    struct shoal_source_status status = {.receivers = NULL};
    char name[512] = "";
    uint8_t body[1024];
    enum shoal_status result;

    memset(name, 'n', len);
    receiver.name = name;
    response.piece_count = PIECES;
    response.n_receivers = 1;
    response.receivers = receivers;
    result = status_decode(&status, PIECES, 1, body, shoal__wire__status_response__pack(&response, body), NULL);
    if (!result)
        assert_string_equal(status.receivers[0].name, name);
    free(status.receivers);
    return result;
}

/* A name that does not fit is refused, not cut: it would be another node's. */
static void test_long_name(void **state)
{
    const size_t size = sizeof sample_receivers[0].name;

    (void)state;
    assert_int_equal(decode_name_of(size - 1), SHOAL_OK);
    assert_int_equal(decode_name_of(size), SHOAL_PROTOCOL);
}

/* The transport of a receiver and what was left for it; one that does not fit is refused. */
static void test_transport(void **state)
{
    static const char golden[] = "10ac02 4219 0a03613a31 3203746370 3a0d 6c6f63616c3a20707472616365";
    struct shoal_receiver_info receiver = {.name = "a:1", .transport = "tcp", .left_transports = "local: ptrace"};
    struct shoal_source_status status = {.pieces_total = PIECES, .receivers = &receiver, .receiver_count = 1},
                               decoded = {.receivers = NULL};
    Shoal__Wire__StatusResponse response = SHOAL__WIRE__STATUS_RESPONSE__INIT;
    Shoal__Wire__Receiver message = SHOAL__WIRE__RECEIVER__INIT, *messages[] = {&message};
    uint8_t expected[64], body[512];
    char longer[200] = "";
    size_t len = wire_from_hex(expected, sizeof expected, golden);
    struct buf encoded;

    (void)state;
    buf_init(&encoded, 512);
    assert_int_equal(status_encode(&status, &encoded), SHOAL_OK);
    assert_int_equal(encoded.len, len);
    assert_memory_equal(encoded.data, expected, len);
    buf_release(&encoded);
    assert_int_equal(decode(golden, 1, &decoded), SHOAL_OK);
    assert_string_equal(decoded.receivers[0].transport, "tcp");
    assert_string_equal(decoded.receivers[0].left_transports, "local: ptrace");
    free(decoded.receivers);

    memset(longer, 'x', sizeof receiver.transport);
    message.name = message.transport = longer;
    response.piece_count = PIECES;
    response.n_receivers = 1;
    response.receivers = messages;
    len = shoal__wire__status_response__pack(&response, body);
    assert_int_equal(status_decode(&decoded, PIECES, 1, body, len, NULL), SHOAL_PROTOCOL);
    memset(longer, 'x', sizeof receiver.left_transports);
    message.transport = (char *)"tcp";
    message.left_transports = longer;
    len = shoal__wire__status_response__pack(&response, body);
    assert_int_equal(status_decode(&decoded, PIECES, 1, body, len, NULL), SHOAL_PROTOCOL);
}

/* Fields of a later version are ignored. */
static void test_later_version(void **state)
{
    struct shoal_source_status status = {.receivers = NULL};

    (void)state;
    assert_int_equal(decode("10ac02 c83e07 4206 0a0161 c83e07", 1, &status), SHOAL_OK);
    assert_int_equal(status.receiver_count, 1);
    free(status.receivers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),   cmocka_unit_test(test_response),       cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_contradictions), cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_transport), cmocka_unit_test(test_later_version),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
