/* SPDX-License-Identifier: Apache-2.0 */
/* The peer client and the client RPC service with each other, over DRAM and over a STORAGE tier on disk. */
#include "kv_service_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "content.h"
#include "kv/peer.h"

static const struct owner_options dram = {.dram_bytes = 64 * MIB},
                                  disk = {.storage_bytes = 64 * MIB, .is_on_disk = true};
static const uint64_t sizes[] = {0, 1, 4096, 32 << 10, (32 << 10) + 1, TIER_STAGING_BYTES, 3 * MIB + 4711, 8 * MIB};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

struct world {
    struct owner owner;
    struct caller caller; /* its memory is registered */
    struct peers *peers;
    struct peer_address address;
    uint8_t *plain; /* is not registered */
};

static struct world world_open(const struct owner_options *options)
{
    struct world world = {.owner = owner_open(options)};
    struct peers_config config = {.call_timeout_ms = PATIENCE_MS};
    struct shoal_error error;

    world.caller = caller_open(&world.owner, 9 * MIB, NULL);
    world.caller.owner = NULL; /* moves */
    config.engine = world.caller.engine;
    config.channels = world.caller.channels;
    assert_ok(peers_create(&config, &world.peers, &error), &error);
    world.address = (struct peer_address){.server_name = shoal_engine_server_name(world.owner.engine),
                                          .address = engine_address(world.owner.engine),
                                          .instance = engine_instance(world.owner.engine)};
    world.plain = memory_make(9 * MIB);
    return world;
}

static void world_close(struct world *world)
{
    assert_int_equal(owner_metric(&world->owner, "shoal_kv_leases"), 0);
    assert_int_equal(owner_metric(&world->owner, "shoal_kv_service_malformed_total"), 0);
    peers_destroy(world->peers);
    caller_close(&world->caller);
    memory_drop(world->plain, 9 * MIB);
    owner_close(&world->owner);
}

static enum shoal_status put(struct world *world, const char *key, const uint8_t *data, uint64_t len,
                             struct shoal_error *error)
{
    struct peer_write write = {.key = key, .data = data, .len_bytes = len};
    enum shoal_status status = peer_write(world->peers, &world->address, &write, NULL, error);

    if (!status)
        assert_true(write.object_id_out != 0);
    return status;
}

static void expect(struct world *world, const char *key, uint8_t *memory, uint64_t capacity, uint64_t len,
                   uint64_t seed)
{
    struct peer_read read = {.key = key, .memory = memory, .capacity_bytes = capacity};
    struct shoal_error error;

    if (memory)
        memset(memory, 0xee, capacity);
    assert_ok(peer_read(world->peers, &world->address, &read, NULL, &error), &error);
    assert_int_equal(read.len_bytes, len);
    assert_int_equal(content_find_difference(read.memory, len, seed, 0), -1);
    if (!memory)
        free(read.memory);
}

static enum shoal_status delete_key(struct world *world, const char *key)
{
    uint64_t object_id = 0;
    enum shoal_status status;
    struct shoal_error error;

    peer_delete(world->peers, &world->address, &key, &object_id, 1, NULL, &status, &error);
    return status;
}

static void values(const struct owner_options *options)
{
    struct world world = world_open(options);
    struct shoal_error error;

    for (size_t i = 0; i < 2 * SIZE_COUNT; i++) {
        uint8_t *memory = i % 2 ? world.caller.memory : world.plain;
        uint64_t len = sizes[i / 2];
        struct peer_read small = {.key = "k", .memory = world.plain, .capacity_bytes = len ? len - 1 : 0};

        content_fill(memory, len, i + 1, 0);
        assert_ok(put(&world, "k", memory, len, &error), &error);
        assert_status(SHOAL_EXISTS, put(&world, "k", memory, len, &error), &error);
        expect(&world, "k", world.plain, len + 100, len, i + 1);
        expect(&world, "k", world.caller.memory, len + 100, len, i + 1);
        expect(&world, "k", NULL, 0, len, i + 1);
        if (len) {
            assert_status(SHOAL_LIMIT, peer_read(world.peers, &world.address, &small, NULL, &error), &error);
            assert_int_equal(small.len_bytes, len);
        }
        assert_int_equal(delete_key(&world, "k"), SHOAL_OK);
        assert_int_equal(delete_key(&world, "k"), SHOAL_NOT_FOUND);
        assert_status(SHOAL_NOT_FOUND, peer_read(world.peers, &world.address, &small, NULL, &error), &error);
    }
    wait_until(owner_used_bytes(&world.owner) == 0);
    world_close(&world);
}

static void test_values(void **state)
{
    (void)state;
    values(&dram);
}

static void test_values_on_disk(void **state)
{
    (void)state;
    values(&disk);
}

static void batches(const struct owner_options *options)
{
    enum { COUNT = 60 };
    struct world world = world_open(options);
    struct peer_write writes[COUNT];
    struct peer_read reads[COUNT + 1];
    char keys[COUNT][16];
    struct shoal_error error;
    size_t at = 0;

    for (size_t i = 0; i < COUNT; i++) {
        uint64_t len = i % 3 ? i * 100 : 100000 + i;

        snprintf(keys[i], sizeof keys[i], "key %zu", i);
        content_fill(world.plain + at, len, i + 1, 0);
        writes[i] = (struct peer_write){.key = keys[i], .data = world.plain + at, .len_bytes = len};
        reads[i] = (struct peer_read){.key = keys[i], .memory = world.plain + at, .capacity_bytes = len};
        at += len;
    }
    assert_ok(peer_write_batch(world.peers, &world.address, writes, COUNT, NULL, &error), &error);
    assert_status(SHOAL_EXISTS, peer_write_batch(world.peers, &world.address, writes, COUNT, NULL, &error), &error);
    memset(world.plain, 0, at);
    reads[COUNT] = (struct peer_read){.key = "unknown"};
    assert_status(SHOAL_NOT_FOUND, peer_read_batch(world.peers, &world.address, reads, COUNT + 1, NULL, &error),
                  &error);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(writes[i].status, SHOAL_EXISTS);
        assert_int_equal(reads[i].status, SHOAL_OK);
        assert_int_equal(reads[i].len_bytes, writes[i].len_bytes);
        assert_int_equal(content_find_difference(reads[i].memory, reads[i].len_bytes, i + 1, 0), -1);
    }
    assert_int_equal(reads[COUNT].status, SHOAL_NOT_FOUND);
    world_close(&world);
}

static void test_batches(void **state)
{
    (void)state;
    batches(&dram);
}

static void test_batches_on_disk(void **state)
{
    (void)state;
    batches(&disk);
}

/* Transfers that the caller drives. */
static void test_leases(void **state)
{
    struct world world = world_open(&dram);
    struct shoal_engine *engine = world.caller.engine;
    struct peer_lease lease, pinned;
    enum shoal_status status;
    struct shoal_error error;
    uint64_t object_id;

    (void)state;
    assert_ok(peer_pre_write(world.peers, &world.address, "k", 2 * MIB, NULL, &lease, &error), &error);
    content_fill(world.caller.memory, 2 * MIB, 3, 0);
    assert_ok(transfer(engine, world.caller.segment, SHOAL_OP_WRITE, world.caller.memory,
                       (void *)(uintptr_t)lease.remote_addr, lease.remote_key, 2 * MIB, &error),
              &error);
    assert_ok(peer_renew(world.peers, &world.address, &lease.lease_id, 1, NULL, &status, &error), &error);
    assert_int_equal(status, SHOAL_OK);
    assert_ok(peer_write_commit(world.peers, &world.address, lease.lease_id, NULL, &object_id, &error), &error);
    assert_ok(peer_pin(world.peers, &world.address, "k", object_id, 0, NULL, &pinned, &error), &error);
    assert_int_equal(pinned.value_len_bytes, 2 * MIB);
    assert_int_equal(pinned.object_id, object_id);
    memset(world.caller.memory, 0, 2 * MIB);
    assert_ok(transfer(engine, world.caller.segment, SHOAL_OP_READ, world.caller.memory,
                       (void *)(uintptr_t)pinned.remote_addr, pinned.remote_key, pinned.len_bytes, &error),
              &error);
    assert_int_equal(content_find_difference(world.caller.memory, 2 * MIB, 3, 0), -1);
    assert_ok(peer_unpin(world.peers, &world.address, pinned.lease_id, NULL, &error), &error);
    assert_status(SHOAL_NOT_FOUND, peer_unpin(world.peers, &world.address, pinned.lease_id, NULL, &error), &error);

    assert_ok(peer_pre_write(world.peers, &world.address, "other", 1000, NULL, &lease, &error), &error);
    assert_ok(peer_write_revoke(world.peers, &world.address, lease.lease_id, NULL, &error), &error);
    assert_status(SHOAL_NOT_FOUND,
                  peer_write_commit(world.peers, &world.address, lease.lease_id, NULL, &object_id, &error), &error);
    assert_int_equal(delete_key(&world, "k"), SHOAL_OK);
    wait_until(owner_used_bytes(&world.owner) == 0);
    world_close(&world);
}

static void test_larger_than_every_tier(void **state)
{
    struct owner_options options = {.dram_bytes = 4 * MIB};
    struct world world = world_open(&options);
    struct shoal_error error;

    (void)state;
    assert_status(SHOAL_LIMIT, put(&world, "k", world.plain, 8 * MIB, &error), &error);
    assert_status(SHOAL_LIMIT, put(&world, "k", world.caller.memory, 8 * MIB, &error), &error);
    assert_ok(put(&world, "k", world.plain, MIB, &error), &error);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_values),          CASE(test_values_on_disk), CASE(test_batches),
        CASE(test_batches_on_disk), CASE(test_leases),         CASE(test_larger_than_every_tier),
    };

    return cmocka_run_group_tests_name("kv peer client and service", tests, NULL, NULL);
}
