/* SPDX-License-Identifier: Apache-2.0 */
/* The claim call: its bytes, and truncation at every byte. */
#include "wire.h"

#include <stdbool.h>

#include "wire/control.pb-c.h"

/* "n", generation 0x0102030405060708: 10 slots, 3 in use, waits for 1000 ms, has or gets pieces 1, 300 and 262143. */
static const char golden_request[] = "0a016e 110807060504030201 180a 2003 28e807 3206 01 ac02 ffff0f";

/* 4 slots, two of them for pieces 7 and 300. */
static const char golden_response[] = "0804 1203 07 ac02";

static void test_request(void **state)
{
    Shoal__Wire__ClaimRequest request = SHOAL__WIRE__CLAIM_REQUEST__INIT, *decoded;
    uint32_t taken[] = {1, 300, 262143};
    uint8_t expected[64], encoded[64];
    size_t len = wire_from_hex(expected, sizeof expected, golden_request);

    (void)state;
    request.name = (char *)"n";
    request.generation = 0x0102030405060708;
    request.wanted = 10;
    request.outstanding = 3;
    request.wait_ms = 1000;
    request.n_taken = 3;
    request.taken = taken;
    assert_int_equal(shoal__wire__claim_request__get_packed_size(&request), len);
    assert_int_equal(shoal__wire__claim_request__pack(&request, encoded), len);
    assert_memory_equal(encoded, expected, len);
    decoded = shoal__wire__claim_request__unpack(NULL, len, expected);
    assert_non_null(decoded);
    assert_string_equal(decoded->name, "n");
    assert_int_equal(decoded->generation, request.generation);
    assert_int_equal(decoded->wanted, 10);
    assert_int_equal(decoded->outstanding, 3);
    assert_int_equal(decoded->wait_ms, 1000);
    assert_int_equal(decoded->n_taken, 3);
    assert_memory_equal(decoded->taken, taken, sizeof taken);
    shoal__wire__claim_request__free_unpacked(decoded, NULL);
}

static void test_response(void **state)
{
    Shoal__Wire__ClaimResponse response = SHOAL__WIRE__CLAIM_RESPONSE__INIT, *decoded;
    uint32_t pieces[] = {7, 300};
    uint8_t expected[64], encoded[64];
    size_t len = wire_from_hex(expected, sizeof expected, golden_response);

    (void)state;
    response.slots = 4;
    response.n_pieces = 2;
    response.pieces = pieces;
    assert_int_equal(shoal__wire__claim_response__pack(&response, encoded), len);
    assert_memory_equal(encoded, expected, len);
    decoded = shoal__wire__claim_response__unpack(NULL, len, expected);
    assert_non_null(decoded);
    assert_int_equal(decoded->slots, 4);
    assert_int_equal(decoded->n_pieces, 2);
    assert_memory_equal(decoded->pieces, pieces, sizeof pieces);
    shoal__wire__claim_response__free_unpacked(decoded, NULL);
}

/* What is cut between two fields is a shorter message, with less in it; what is cut within one is none. */
static void test_truncated(void **state)
{
    uint8_t body[64];
    size_t len = wire_from_hex(body, sizeof body, golden_request);

    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        bool is_whole = cut == 0 || cut == 3 || cut == 12 || cut == 14 || cut == 16 || cut == 19;
        uint8_t *copy = malloc(cut ? cut : 1); /* exactly as long as it claims, so that a sanitizer sees more */
        Shoal__Wire__ClaimRequest *decoded;

        assert_non_null(copy);
        memcpy(copy, body, cut);
        decoded = shoal__wire__claim_request__unpack(NULL, cut, copy);
        assert_int_equal(decoded != NULL, is_whole);
        if (decoded) {
            assert_int_equal(decoded->n_taken, 0);
            shoal__wire__claim_request__free_unpacked(decoded, NULL);
        }
        free(copy);
    }
    len = wire_from_hex(body, sizeof body, golden_response);
    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1);
        Shoal__Wire__ClaimResponse *decoded;

        assert_non_null(copy);
        memcpy(copy, body, cut);
        decoded = shoal__wire__claim_response__unpack(NULL, cut, copy);
        assert_int_equal(decoded != NULL, cut == 0 || cut == 2);
        if (decoded) {
            assert_int_equal(decoded->slots, cut ? 4 : 0);
            assert_int_equal(decoded->n_pieces, 0);
            shoal__wire__claim_response__free_unpacked(decoded, NULL);
        }
        free(copy);
    }
}

/* Pieces one by one, as other writers may send them, and fields of a later version. */
static void test_other_writers(void **state)
{
    uint8_t body[64];
    size_t len = wire_from_hex(body, sizeof body, "0a016e 3001 30ac02 c83e07");
    Shoal__Wire__ClaimRequest *decoded = shoal__wire__claim_request__unpack(NULL, len, body);

    (void)state;
    assert_non_null(decoded);
    assert_int_equal(decoded->n_taken, 2);
    assert_int_equal(decoded->taken[1], 300);
    shoal__wire__claim_request__free_unpacked(decoded, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_response),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_other_writers),
    };

    return cmocka_run_group_tests_name("claim", tests, NULL, NULL);
}
