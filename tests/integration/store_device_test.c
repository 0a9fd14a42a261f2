/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads in device memory: registered, pulled and served there, each byte verified. */
#include "../contract/transport_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/store.h>

#include "content.h"
#include "cuda_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define REGIONS_MAX 4

/* A node and the regions of one payload. */
struct node {
    struct shoal_store *store;
    struct shoal_region regions[REGIONS_MAX];
    size_t count;
    bool is_device;
};

static struct node node_open(bool is_device, const size_t *sizes, size_t count)
{
    struct shoal_store_config config = {
        .struct_size = sizeof config, .metadata_uri = fixture_uri(), .server_name = "127.0.0.1"};
    struct node node = {.is_device = is_device, .count = count};
    struct shoal_error error;

    assert_ok(shoal_store_create(&config, NULL, &node.store, &error), &error);
    for (size_t i = 0; i < count; i++) {
        node.regions[i].len_bytes = sizes[i];
        node.regions[i].addr = is_device ? cuda_test_alloc(0, sizes[i]) : memory_make(sizes[i]);
    }
    return node;
}

static void node_close(struct node *node)
{
    shoal_store_close(node->store, NULL);
    for (size_t i = 0; i < node->count; i++) {
        if (node->regions[i].addr && node->is_device)
            cuda_test_free(0, node->regions[i].addr);
        else if (node->regions[i].addr)
            memory_drop(node->regions[i].addr, node->regions[i].len_bytes);
    }
}

static void node_fill(struct node *node, uint64_t seed)
{
    uint64_t at = 0;

    for (size_t i = 0; i < node->count; i++) {
        if (node->is_device)
            cuda_test_fill(0, node->regions[i].addr, node->regions[i].len_bytes, seed, at);
        else
            content_fill(node->regions[i].addr, node->regions[i].len_bytes, seed, at);
        at += node->regions[i].len_bytes;
    }
}

static void assert_content(const struct node *node, uint64_t seed)
{
    uint64_t at = 0;

    for (size_t i = 0; i < node->count; i++) {
        size_t len = node->regions[i].len_bytes;

        assert_int_equal(node->is_device ? cuda_test_find_difference(0, node->regions[i].addr, len, seed, at)
                                         : content_find_difference(node->regions[i].addr, len, seed, at),
                         -1);
        at += len;
    }
}

static enum shoal_status seed_payload(struct node *node, struct shoal_error *error)
{
    struct shoal_register_options options = {
        .struct_size = sizeof options, .piece_size = 256 * KIB, .location = node->is_device ? "cuda:0" : NULL};

    return shoal_store_register(node->store, "weights", node->regions, node->count, &options, NULL, error);
}

static enum shoal_status pull_payload(struct node *node, struct shoal_error *error)
{
    struct shoal_get_options options = {.struct_size = sizeof options, .location = node->is_device ? "cuda:0" : NULL};
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};

    return shoal_store_get_replica(node->store, "weights", node->regions, node->count, &options, &call, error);
}

/* All ways between the two kinds of memory, with regions cut otherwise: pieces lie across their borders. */
static void test_round_trips(void **state)
{
    static const size_t one[] = {9 * MIB + 5000}, several[] = {3 * MIB + 1, 100 * KIB + 7, 6 * MIB - 100 * KIB + 4992};
    struct shoal_error error;

    (void)state;
    for (unsigned kinds = 1; kinds < 4; kinds++) {
        for (unsigned cut = 0; cut < 2; cut++) {
            struct node gold = node_open(kinds & 1, cut ? several : one, cut ? 3 : 1);
            struct node replica = node_open(kinds & 2, cut ? one : several, cut ? 1 : 3);
            struct node second = node_open(kinds & 2, several, 3);

            node_fill(&gold, 11);
            assert_ok(seed_payload(&gold, &error), &error);
            assert_ok(pull_payload(&replica, &error), &error);
            assert_content(&replica, 11);
            assert_content(&gold, 11);
            /* The replica is a source like the first. */
            assert_ok(shoal_store_unregister(gold.store, "weights", NULL, &error), &error);
            assert_ok(pull_payload(&second, &error), &error);
            assert_content(&second, 11);
            node_close(&second);
            node_close(&replica);
            node_close(&gold);
        }
    }
}

/* F14: a byte in the source's memory changes after register. */
static void test_wrong_bytes(void **state)
{
    static const size_t size[] = {4 * MIB};
    struct node gold = node_open(true, size, 1), good = node_open(true, size, 1), replica = node_open(true, size, 1);
    uint8_t byte;
    struct shoal_error error;

    (void)state;
    node_fill(&gold, 12);
    assert_ok(seed_payload(&gold, &error), &error);
    assert_ok(pull_payload(&good, &error), &error);
    cuda_test_read(0, &byte, (uint8_t *)gold.regions[0].addr + 2 * MIB + 77, 1);
    byte ^= 1;
    cuda_test_write(0, (uint8_t *)gold.regions[0].addr + 2 * MIB + 77, &byte, 1);
    /* From the good source. */
    assert_ok(pull_payload(&replica, &error), &error);
    assert_content(&replica, 12);
    assert_ok(shoal_store_delete_replica(replica.store, "weights", NULL, &error), &error);
    /* There is none. */
    assert_ok(shoal_store_delete_replica(good.store, "weights", NULL, &error), &error);
    assert_status(SHOAL_CORRUPTED, pull_payload(&replica, &error), &error);
    assert_non_null(strstr(error.message, shoal_store_server_name(gold.store)));
    node_close(&replica);
    node_close(&good);
    node_close(&gold);
}

/* The application frees what it registered: those who pull hear of it, and nobody crashes. */
static void test_freed(void **state)
{
    static const size_t size[] = {4 * MIB};
    struct node gold = node_open(true, size, 1), replica = node_open(true, size, 1);
    struct shoal_error error;

    (void)state;
    node_fill(&gold, 13);
    assert_ok(seed_payload(&gold, &error), &error);
    cuda_test_free(0, gold.regions[0].addr);
    gold.regions[0].addr = NULL;
    assert_true(pull_payload(&replica, &error) != SHOAL_OK);
    node_close(&replica);
    node_close(&gold);
}

static void test_bad_arguments(void **state)
{
    static const size_t size[] = {MIB};
    struct node device = node_open(true, size, 1), host = node_open(false, size, 1);
    struct shoal_register_options options = {.struct_size = sizeof options, .location = "cuda:9"};
    struct shoal_get_options get = {.struct_size = sizeof get, .location = "cuda:0", .reuse = SHOAL_REUSE};
    struct shoal_error error;

    (void)state;
    assert_status(SHOAL_INVALID_ARGUMENT,
                  shoal_store_register(device.store, "weights", device.regions, 1, &options, NULL, &error), &error);
    assert_non_null(strstr(error.message, "cuda:9"));
    options.location = "cuda:0";
    assert_status(SHOAL_INVALID_ARGUMENT,
                  shoal_store_register(host.store, "weights", host.regions, 1, &options, NULL, &error), &error);
    assert_non_null(strstr(error.message, "not device memory"));
    assert_status(SHOAL_UNSUPPORTED,
                  shoal_store_get_replica(device.store, "weights", device.regions, 1, &get, NULL, &error), &error);
    assert_non_null(strstr(error.message, "cuda:0"));
    node_close(&host);
    node_close(&device);
}

/* The driver refuses a copy while digests are computed. */
static void test_register_fails(void **state)
{
    static const size_t size[] = {8 * MIB};
    struct shoal_error error;
    struct node gold;

    (void)state;
    if (!cuda_test_stub())
        skip();
    gold = node_open(true, size, 1);
    cuda_test_stub()->fail_call("cuMemcpyDtoHAsync", 2, 5);
    assert_status(SHOAL_IO, seed_payload(&gold, &error), &error);
    assert_non_null(strstr(error.message, "CUDA_ERROR_OUT_OF_MEMORY"));
    assert_ok(seed_payload(&gold, &error), &error);
    node_close(&gold);
    assert_int_equal(cuda_test_stub()->counts().allocations, 0);
    assert_int_equal(cuda_test_stub()->counts().streams, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_round_trips),   CASE(test_wrong_bytes),    CASE(test_freed),
        CASE(test_bad_arguments), CASE(test_register_fails),
    };

    if (!cuda_test_start()) {
        printf("skipped: no CUDA driver\n");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
