/* SPDX-License-Identifier: Apache-2.0 */
/* The peer client against an owner that does what a test wants; both engines are in this process. */
#include "kv_fake_owner.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/transport_fixture.h"
#include "base/clock.h"
#include "base/error.h"
#include "content.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define ARENA_BYTES (96 * MIB)
#define SLOW_BYTES_PER_S (4 * MIB)
#define INLINE_MAX (32 * KIB)

struct world {
    struct fake_owner owner;
    struct peer_address address; /* lives longer than the owner */
    char address_text[128], server_name[320];
    struct shoal_engine *engine;
    struct rpc_channels *channels;
    struct peers *peers;
    uint8_t *memory; /* as large as the arena; not registered */
    struct shoal_error error;
};

static void world_start(struct world *world, uint64_t upload_limit_bytes_per_s)
{
    struct rpc_channels_config channels = {.cluster = "default", .server_name = "reader:1", .instance = 7};
    struct peers_config config = {0};

    memset(world, 0, sizeof *world);
    fake_owner_start(&world->owner, ARENA_BYTES, upload_limit_bytes_per_s);
    world->address = fake_owner_address(&world->owner);
    snprintf(world->address_text, sizeof world->address_text, "%s", world->address.address);
    snprintf(world->server_name, sizeof world->server_name, "%s", world->address.server_name);
    world->address.address = world->address_text;
    world->address.server_name = world->server_name;
    world->engine = engine_make(NULL);
    channels.connect_timeout_ms = PATIENCE_MS;
    assert_ok(rpc_channels_create(&channels, &world->channels, &world->error), &world->error);
    config.engine = world->engine;
    config.channels = world->channels;
    config.call_timeout_ms = PATIENCE_MS;
    assert_ok(peers_create(&config, &world->peers, &world->error), &world->error);
    world->memory = memory_make(ARENA_BYTES);
}

/* Whatever happened: no memory is left registered. */
static void world_stop(struct world *world)
{
    assert_ok(shoal_engine_register_memory(world->engine, world->memory, ARENA_BYTES, NULL, SHOAL_ACCESS_LOCAL, NULL,
                                           &world->error),
              &world->error);
    assert_ok(shoal_engine_unregister_memory(world->engine, world->memory, ARENA_BYTES, &world->error), &world->error);
    peers_destroy(world->peers);
    rpc_channels_destroy(world->channels);
    if (world->owner.engine)
        fake_owner_stop(&world->owner);
    shoal_engine_destroy(world->engine);
    memory_drop(world->memory, ARENA_BYTES);
}

static const uint64_t sizes[] = {0, 1, 4096, INLINE_MAX, INLINE_MAX + 1, MIB, 16 * MIB};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static const char *key_of(size_t i)
{
    static char keys[1024][16];

    snprintf(keys[i], sizeof keys[i], "key/%zu", i);
    return keys[i];
}

static void add_all(struct world *world)
{
    for (size_t i = 0; i < SIZE_COUNT; i++)
        fake_owner_add(&world->owner, key_of(i), sizes[i], i + 1);
}

static enum shoal_status read_one(struct world *world, const char *key, void *memory, uint64_t capacity,
                                  struct peer_read *read)
{
    *read = (struct peer_read){.key = key, .memory = memory, .capacity_bytes = capacity};
    return peer_read(world->peers, &world->address, read, NULL, &world->error);
}

static void expect_bytes(struct world *world, size_t i, uint8_t *memory, uint64_t capacity)
{
    struct peer_read read;

    assert_ok(read_one(world, key_of(i), memory, capacity, &read), &world->error);
    assert_int_equal(read.status, SHOAL_OK);
    assert_int_equal(read.len_bytes, sizes[i]);
    assert_int_not_equal(read.object_id_out, 0);
    assert_int_equal(content_find_difference(read.memory, sizes[i], i + 1, 0), -1);
    if (!memory)
        free(read.memory);
}

static void reads_of_all_sizes(void **state)
{
    struct world world;

    (void)state;
    world_start(&world, 0);
    add_all(&world);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        expect_bytes(&world, i, world.memory + 3, sizes[i]);            /* exactly enough */
        expect_bytes(&world, i, world.memory + MIB + 1, sizes[i] + 99); /* more than that */
        expect_bytes(&world, i, NULL, 0);
    }
    assert_int_equal(world.owner.pins, 0);
    /* In registered memory. */
    assert_ok(shoal_engine_register_memory(world.engine, world.memory, 32 * MIB, NULL, SHOAL_ACCESS_LOCAL, NULL,
                                           &world.error),
              &world.error);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        memset(world.memory, 0, sizes[i] + 8);
        expect_bytes(&world, i, world.memory + 5, sizes[i]);
        expect_bytes(&world, i, world.memory + 32 * MIB - sizes[i] / 2, sizes[i]); /* half of it is */
    }
    assert_ok(shoal_engine_unregister_memory(world.engine, world.memory, 32 * MIB, &world.error), &world.error);
    world_stop(&world);
}

static void writes_of_all_sizes(void **state)
{
    struct world world;

    (void)state;
    world_start(&world, 0);
    for (unsigned is_registered = 0; is_registered < 2; is_registered++) {
        if (is_registered)
            assert_ok(shoal_engine_register_memory(world.engine, world.memory, 8 * MIB, NULL, SHOAL_ACCESS_LOCAL, NULL,
                                                   &world.error),
                      &world.error);
        for (size_t i = 0; i < SIZE_COUNT; i++) {
            size_t name = 100 * is_registered + i;
            struct peer_write write = {.key = key_of(name), .data = world.memory + 11, .len_bytes = sizes[i]};

            content_fill(world.memory + 11, sizes[i], name + 1, 0);
            assert_ok(peer_write(world.peers, &world.address, &write, NULL, &world.error), &world.error);
            assert_int_not_equal(write.object_id_out, 0);
            assert_int_equal(fake_owner_difference(&world.owner, key_of(name), sizes[i], name + 1), -1);
            assert_status(SHOAL_EXISTS, peer_write(world.peers, &world.address, &write, NULL, &world.error),
                          &world.error);
            assert_int_equal(write.status, SHOAL_EXISTS);
        }
    }
    assert_ok(shoal_engine_unregister_memory(world.engine, world.memory, 8 * MIB, &world.error), &world.error);
    struct peer_write replica = {
        .key = "replica", .data = world.memory, .len_bytes = 10, .object_id = 0x1234567890abcdef};
    assert_ok(peer_write(world.peers, &world.address, &replica, NULL, &world.error), &world.error);
    assert_int_equal(replica.object_id_out, 0x1234567890abcdef);
    world_stop(&world);
}

static void errors_are_told_apart(void **state)
{
    struct world world;
    struct peer_read read;
    struct peer_write write = {.key = "", .data = "", .len_bytes = 0};
    char long_key[1026];

    (void)state;
    world_start(&world, 0);
    add_all(&world);
    memset(long_key, 'k', sizeof long_key);
    long_key[1025] = '\0';
    assert_status(SHOAL_NOT_FOUND, read_one(&world, "nothing", world.memory, 100, &read), &world.error);
    assert_status(SHOAL_NOT_FOUND, read_one(&world, "nothing", NULL, 0, &read), &world.error);
    assert_null(read.memory);
    assert_status(SHOAL_INVALID_ARGUMENT, read_one(&world, "", world.memory, 100, &read), &world.error);
    assert_status(SHOAL_INVALID_ARGUMENT, read_one(&world, long_key, world.memory, 100, &read), &world.error);
    assert_status(SHOAL_INVALID_ARGUMENT, peer_write(world.peers, &world.address, &write, NULL, &world.error),
                  &world.error);
    write = (struct peer_write){.key = "k", .len_bytes = 1};
    assert_status(SHOAL_INVALID_ARGUMENT, peer_write(world.peers, &world.address, &write, NULL, &world.error),
                  &world.error);
    write = (struct peer_write){.key = "k", .data = world.memory, .len_bytes = ARENA_BYTES};
    assert_status(SHOAL_NO_SPACE, peer_write(world.peers, &world.address, &write, NULL, &world.error), &world.error);
    for (size_t i = 1; i < SIZE_COUNT; i++) { /* room for all but one byte */
        memset(world.memory, 0xee, sizes[i]);
        assert_status(SHOAL_LIMIT, read_one(&world, key_of(i), world.memory, sizes[i] - 1, &read), &world.error);
        assert_int_equal(read.len_bytes, sizes[i]);
        for (uint64_t at = 0; at < sizes[i]; at++)
            assert_int_equal(world.memory[at], 0xee);
    }
    /* The right object or none. */
    read = (struct peer_read){.key = key_of(2), .object_id = 999, .memory = world.memory, .capacity_bytes = MIB};
    assert_status(SHOAL_NOT_FOUND, peer_read(world.peers, &world.address, &read, NULL, &world.error), &world.error);
    read.object_id = world.owner.values[2].object_id;
    assert_ok(peer_read(world.peers, &world.address, &read, NULL, &world.error), &world.error);
    world_stop(&world);
}

static uint64_t batch_len(size_t i)
{
    return i % 50 == 7 ? 300000 : i % 3 ? INLINE_MAX - i : i;
}

static bool is_missing(size_t i)
{
    return i % 10 == 9;
}

static bool is_short(size_t i)
{
    return i % 100 == 57 || i % 100 == 61;
}

/* Small and large, known and unknown, with memory and without, with too little. */
static void read_batch(struct world *world, size_t count)
{
    struct peer_read *reads = calloc(count, sizeof *reads);
    uint64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        reads[i] = (struct peer_read){.key = key_of(i)};
        if (i % 4 == 0)
            continue;
        reads[i].memory = world->memory + at;
        reads[i].capacity_bytes = is_short(i) ? batch_len(i) - 1 : batch_len(i);
        at += batch_len(i);
    }
    assert_status(SHOAL_NOT_FOUND, peer_read_batch(world->peers, &world->address, reads, count, NULL, &world->error),
                  &world->error);
    for (size_t i = 0; i < count; i++) {
        if (is_missing(i)) {
            assert_int_equal(reads[i].status, SHOAL_NOT_FOUND);
        } else if (is_short(i)) {
            assert_int_equal(reads[i].status, SHOAL_LIMIT);
            assert_int_equal(reads[i].len_bytes, batch_len(i));
        } else {
            if (reads[i].status)
                fail_msg("read %zu: %s (first: %s)", i, shoal_status_name(reads[i].status), world->error.message);
            assert_int_equal(reads[i].len_bytes, batch_len(i));
            assert_int_equal(content_find_difference(reads[i].memory, batch_len(i), i + 1, 0), -1);
        }
        if (i % 4 == 0)
            free(reads[i].memory);
    }
    free(reads);
}

static void batches_of_reads(void **state)
{
    enum { COUNT = 400 };
    struct world world;
    unsigned requests;

    (void)state;
    world_start(&world, 0);
    for (size_t i = 0; i < COUNT; i++)
        if (!is_missing(i))
            fake_owner_add(&world.owner, key_of(i), batch_len(i), i + 1);
    read_batch(&world, COUNT);
    requests = world.owner.requests;
    assert_in_range(requests, 2, 40);
    world.owner.inline_limit = 1000; /* less than we would take */
    read_batch(&world, COUNT);
    world.owner.inline_limit = 1 << 20;
    world.owner.cannot_reach = true;
    world.owner.pin_max_bytes = 100000;
    read_batch(&world, COUNT);
    assert_true(world.owner.pins > 0);
    assert_int_equal(world.owner.pins, world.owner.unpins);
    assert_ok(peer_read_batch(world.peers, &world.address, NULL, 0, NULL, &world.error), &world.error);
    world_stop(&world);
}

static void batches_of_writes(void **state)
{
    enum { COUNT = 300 };
    struct world world;
    struct peer_write *writes = calloc(COUNT, sizeof *writes);

    (void)state;
    world_start(&world, 0);
    for (unsigned round = 0; round < 2; round++) {
        uint64_t at = 0;

        world.owner.cannot_reach = round == 1;
        world.owner.count = 0;
        world.owner.arena_used = 0;
        fake_owner_add(&world.owner, key_of(5), 10, 1);
        for (size_t i = 0; i < COUNT; i++) {
            writes[i] = (struct peer_write){
                .key = i == 8 ? "" : key_of(i), .data = world.memory + at, .len_bytes = batch_len(i)};
            content_fill(world.memory + at, batch_len(i), i + 1, 0);
            at += batch_len(i);
        }
        assert_status(SHOAL_INVALID_ARGUMENT,
                      peer_write_batch(world.peers, &world.address, writes + 6, COUNT - 6, NULL, &world.error),
                      &world.error);
        assert_status(SHOAL_EXISTS, peer_write_batch(world.peers, &world.address, writes, 6, NULL, &world.error),
                      &world.error);
        for (size_t i = 0; i < COUNT; i++) {
            if (i == 5 || i == 8) {
                assert_int_equal(writes[i].status, i == 5 ? SHOAL_EXISTS : SHOAL_INVALID_ARGUMENT);
                continue;
            }
            assert_int_equal(writes[i].status, SHOAL_OK);
            assert_int_not_equal(writes[i].object_id_out, 0);
            assert_int_equal(fake_owner_difference(&world.owner, key_of(i), batch_len(i), i + 1), -1);
        }
        assert_true(round == 0 || world.owner.commits > 0);
    }
    free(writes);
    world_stop(&world);
}

static void deletion(void **state)
{
    enum { COUNT = 700 };
    struct world world;
    const char *keys[COUNT];
    enum shoal_status statuses[COUNT];

    (void)state;
    world_start(&world, 0);
    for (size_t i = 0; i < COUNT; i++) {
        keys[i] = key_of(i);
        if (i != 650)
            fake_owner_add(&world.owner, keys[i], 1, 1);
    }
    assert_status(SHOAL_NOT_FOUND,
                  peer_delete(world.peers, &world.address, keys, NULL, COUNT, NULL, statuses, &world.error),
                  &world.error);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(statuses[i], i == 650 ? SHOAL_NOT_FOUND : SHOAL_OK);
    assert_int_equal(world.owner.requests, 3);
    world_stop(&world);
}

/* --- transfers that we drive --- */

static void an_owner_that_cannot_reach_us(void **state)
{
    struct world world;
    struct peer_write write = {.key = "pushed", .len_bytes = 3 * MIB};
    unsigned pins, requests;

    (void)state;
    world_start(&world, 0);
    add_all(&world);
    world.owner.cannot_reach = true;
    world.owner.pin_max_bytes = 700 * 1024;
    for (size_t i = 0; i < SIZE_COUNT; i++)
        expect_bytes(&world, i, world.memory, sizes[i]);
    pins = world.owner.pins;
    assert_true(pins >= 24);
    assert_int_equal(world.owner.unpins, pins);
    assert_int_equal(world.owner.transfers, 0);
    /* It is not asked in vain again. */
    world.owner.cannot_reach = false;
    requests = world.owner.requests;
    expect_bytes(&world, 5, world.memory + 1, sizes[5]);
    assert_int_equal(world.owner.transfers, 0);
    assert_int_equal(world.owner.requests - requests, 1 + 2); /* how long is it, and two pins */
    expect_bytes(&world, 6, NULL, 0);
    write.data = world.memory;
    content_fill(world.memory, write.len_bytes, 77, 0);
    assert_ok(peer_write(world.peers, &world.address, &write, NULL, &world.error), &world.error);
    assert_int_equal(world.owner.commits, 1);
    assert_int_equal(fake_owner_difference(&world.owner, "pushed", write.len_bytes, 77), -1);
    assert_status(SHOAL_EXISTS, peer_write(world.peers, &world.address, &write, NULL, &world.error), &world.error);
    write.key = "too large";
    write.len_bytes = ARENA_BYTES;
    assert_status(SHOAL_NO_SPACE, peer_write(world.peers, &world.address, &write, NULL, &world.error), &world.error);
    world_stop(&world);
}

static void leases_are_renewed_while_bytes_move(void **state)
{
    struct world world;
    struct peer_read read;

    (void)state;
    world_start(&world, SLOW_BYTES_PER_S);
    fake_owner_add(&world.owner, "slow", 6 * MIB, 9);
    world.owner.cannot_reach = true;
    world.owner.lease_ms = 300;
    assert_ok(read_one(&world, "slow", world.memory, 6 * MIB, &read), &world.error);
    assert_int_equal(content_find_difference(world.memory, 6 * MIB, 9, 0), -1);
    assert_true(world.owner.renewals > 0);
    /* What was read under a lease that ended is worth nothing. */
    world.owner.forgets = true;
    assert_status(SHOAL_TIMED_OUT, read_one(&world, "slow", world.memory, 6 * MIB, &read), &world.error);
    assert_non_null(strstr(world.error.message, "pins end"));
    world_stop(&world);
}

static void leases_by_hand(void **state)
{
    struct world world;
    struct peer_lease lease;
    struct shoal_segment *segment;
    uint64_t ids[3] = {1, 2, 3}, object_id = 0;
    enum shoal_status statuses[3];

    (void)state;
    world_start(&world, 0);
    add_all(&world);
    assert_ok(engine_segment_create(world.engine, world.address.server_name, world.address.address,
                                    world.address.instance, &segment, &world.error),
              &world.error);
    assert_ok(shoal_engine_register_memory(world.engine, world.memory, MIB, NULL, 0, NULL, &world.error), &world.error);
    assert_ok(peer_pin(world.peers, &world.address, key_of(4), 0, 10, NULL, &lease, &world.error), &world.error);
    assert_int_equal(lease.value_len_bytes, sizes[4]);
    assert_int_equal(lease.offset_bytes, 10);
    assert_int_equal(lease.len_bytes, sizes[4] - 10);
    assert_ok(transfer(world.engine, segment, SHOAL_OP_READ, world.memory, (void *)(uintptr_t)lease.remote_addr,
                       lease.remote_key, lease.len_bytes, &world.error),
              &world.error);
    assert_int_equal(content_find_difference(world.memory, lease.len_bytes, 5, 10), -1);
    assert_ok(peer_renew(world.peers, &world.address, ids, 3, NULL, statuses, &world.error), &world.error);
    assert_ok(peer_unpin(world.peers, &world.address, lease.lease_id, NULL, &world.error), &world.error);
    assert_status(SHOAL_NOT_FOUND, peer_pin(world.peers, &world.address, "nothing", 0, 0, NULL, &lease, &world.error),
                  &world.error);
    for (unsigned round = 0; round < 2; round++) {
        assert_ok(peer_pre_write(world.peers, &world.address, "by hand", 1000, NULL, &lease, &world.error),
                  &world.error);
        content_fill(world.memory, 1000, 55, 0);
        assert_ok(transfer(world.engine, segment, SHOAL_OP_WRITE, world.memory, (void *)(uintptr_t)lease.remote_addr,
                           lease.remote_key, 1000, &world.error),
                  &world.error);
        if (round == 0)
            assert_ok(peer_write_revoke(world.peers, &world.address, lease.lease_id, NULL, &world.error), &world.error);
        else
            assert_ok(peer_write_commit(world.peers, &world.address, lease.lease_id, NULL, &object_id, &world.error),
                      &world.error);
    }
    assert_int_not_equal(object_id, 0);
    assert_int_equal(fake_owner_difference(&world.owner, "by hand", 1000, 55), -1);
    assert_status(SHOAL_NOT_FOUND,
                  peer_write_commit(world.peers, &world.address, lease.lease_id, NULL, NULL, &world.error),
                  &world.error);
    assert_status(SHOAL_NOT_FOUND, peer_write_revoke(world.peers, &world.address, 12345, NULL, &world.error),
                  &world.error);
    world.owner.forgets = true;
    assert_status(SHOAL_NOT_FOUND, peer_renew(world.peers, &world.address, ids, 3, NULL, statuses, &world.error),
                  &world.error);
    assert_int_equal(statuses[2], SHOAL_NOT_FOUND);
    shoal_segment_close(segment);
    assert_ok(shoal_engine_unregister_memory(world.engine, world.memory, MIB, &world.error), &world.error);
    world_stop(&world);
}

/* --- ends in the middle --- */

struct background {
    struct world *world;
    pthread_t thread;
    struct shoal_cancel *cancel;
    int64_t timeout_ms;
    bool is_write, is_batch;
    enum shoal_status status;
    struct shoal_error error;
};

static void *run_background(void *arg)
{
    struct background *background = arg;
    struct world *world = background->world;
    struct call call = {deadline_after_ms(background->timeout_ms), background->cancel};
    struct peer_read read = {.key = "large", .memory = world->memory, .capacity_bytes = 32 * MIB};
    struct peer_write write = {.key = "large write", .data = world->memory, .len_bytes = 32 * MIB};

    if (background->is_write)
        background->status = peer_write(world->peers, &world->address, &write, &call, &background->error);
    else if (background->is_batch)
        background->status = peer_read_batch(world->peers, &world->address, &read, 1, &call, &background->error);
    else
        background->status = peer_read(world->peers, &world->address, &read, &call, &background->error);
    return NULL;
}

static void background_start(struct background *background, struct world *world)
{
    background->world = world;
    assert_int_equal(shoal_cancel_create(&background->cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&background->thread, NULL, run_background, background), 0);
}

static void background_join(struct background *background)
{
    pthread_join(background->thread, NULL);
    shoal_cancel_destroy(background->cancel);
}

static bool is_moving(const struct world *world)
{
    return world->owner.transfers + world->owner.pins > 0;
}

/* By cancellation or at the deadline, into memory that is registered or not, whoever moves the bytes: afterwards the
 * memory stays as it is, even while the owner goes on. */
static void nothing_is_written_after_the_end(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 12; variant++) {
        bool is_registered = variant & 1, cancels = variant & 2, is_pulled = variant >= 4 && variant < 8;
        struct background background = {.timeout_ms = cancels ? PATIENCE_MS : 300, .is_batch = variant >= 8};
        uint8_t *copy = malloc(32 * MIB);
        struct world world;

        world_start(&world, SLOW_BYTES_PER_S);
        fake_owner_add(&world.owner, "large", 32 * MIB, 3);
        world.owner.cannot_reach = is_pulled;
        if (is_registered)
            assert_ok(shoal_engine_register_memory(world.engine, world.memory, 64 * MIB, NULL, SHOAL_ACCESS_LOCAL, NULL,
                                                   &world.error),
                      &world.error);
        background_start(&background, &world);
        if (cancels) {
            wait_until(is_moving(&world));
            shoal_cancel_trigger(background.cancel);
        }
        background_join(&background);
        assert_status(cancels ? SHOAL_CANCELED : SHOAL_TIMED_OUT, background.status, &background.error);
        memcpy(copy, world.memory, 32 * MIB);
        if (is_registered)
            assert_ok(shoal_engine_unregister_memory(world.engine, world.memory, 64 * MIB, &world.error), &world.error);
        wait_until(world.owner.jobs == 0); /* it has noticed, or tried to go on */
        assert_memory_equal(copy, world.memory, 32 * MIB);
        world_stop(&world);
        free(copy);
    }
}

static void a_canceled_write_leaves_nothing(void **state)
{
    struct background background = {.timeout_ms = PATIENCE_MS, .is_write = true};
    struct shoal_engine_config config = fixture_config();
    struct world world;

    (void)state;
    world_start(&world, 0);
    shoal_engine_destroy(world.engine); /* ours sends slowly */
    peers_destroy(world.peers);
    config.upload_limit_bytes_per_s = SLOW_BYTES_PER_S;
    world.engine = engine_make(&config);
    struct peers_config peers = {.engine = world.engine, .channels = world.channels};
    assert_ok(peers_create(&peers, &world.peers, &world.error), &world.error);
    background_start(&background, &world);
    wait_until(is_moving(&world));
    shoal_cancel_trigger(background.cancel);
    background_join(&background);
    assert_status(SHOAL_CANCELED, background.status, &background.error);
    wait_until(world.owner.jobs == 0);
    assert_int_equal(fake_owner_difference(&world.owner, "large write", 32 * MIB, 0), 0);
    world_stop(&world);
}

static void an_owner_that_goes_in_the_middle(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 2; variant++) {
        struct background background = {.timeout_ms = PATIENCE_MS};
        struct world world;

        world_start(&world, SLOW_BYTES_PER_S);
        fake_owner_add(&world.owner, "large", 32 * MIB, 3);
        world.owner.cannot_reach = variant;
        background_start(&background, &world);
        wait_until(is_moving(&world));
        fake_owner_stop(&world.owner);
        background_join(&background);
        assert_status(SHOAL_UNREACHABLE, background.status, &background.error);
        world.owner.engine = NULL;
        world_stop(&world);
    }
}

/* --- lies --- */

static void lies(void **state)
{
    static const struct {
        enum fake_lie lie;
        bool is_pulled;
    } cases[] = {{FAKE_OTHER_OBJECT, false},     {FAKE_LONG_INLINE, false}, {FAKE_WRITTEN, false},
                 {FAKE_WRITTEN_TOO_MUCH, false}, {FAKE_GARBAGE, false},     {FAKE_ONLY_TELLS, false},
                 {FAKE_FEWER_ITEMS, false},      {FAKE_BAD_STATUS, false},  {FAKE_WIDE_PIN, true}};
    struct world world;

    (void)state;
    world_start(&world, 0);
    fake_owner_add(&world.owner, "small", 100, 1);
    fake_owner_add(&world.owner, "large", MIB, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum fake_lie lie = cases[i].lie;
        uint64_t capacity = lie == FAKE_WRITTEN_TOO_MUCH ? 50000 : 2 * MIB;
        bool is_small = lie == FAKE_LONG_INLINE || lie == FAKE_WRITTEN;
        struct peer_read read = {.key = is_small ? "small" : "large",
                                 .object_id = lie == FAKE_OTHER_OBJECT ? world.owner.values[1].object_id : 0,
                                 .memory = world.memory,
                                 .capacity_bytes = is_small ? 1000 : capacity};
        enum shoal_status status;

        world.owner.cannot_reach = cases[i].is_pulled;
        world.owner.lie = lie;
        if (lie == FAKE_FEWER_ITEMS || lie == FAKE_BAD_STATUS)
            status = peer_read_batch(world.peers, &world.address, &read, 1, NULL, &world.error);
        else
            status = peer_read(world.peers, &world.address, &read, NULL, &world.error);
        if (status != SHOAL_PROTOCOL)
            fail_msg("lie %d: %s", lie, shoal_status_name(status));
        if (lie == FAKE_GARBAGE || lie == FAKE_OTHER_OBJECT || lie == FAKE_ONLY_TELLS)
            assert_status(SHOAL_PROTOCOL, peer_read_batch(world.peers, &world.address, &read, 1, NULL, &world.error),
                          &world.error);
    }
    world.owner.lie = FAKE_FEWER_ITEMS;
    assert_status(SHOAL_PROTOCOL, peer_unpin(world.peers, &world.address, 1, NULL, &world.error), &world.error);
    world_stop(&world);
}

/* --- the same memory at the same time --- */

struct writer {
    struct world *world;
    pthread_t thread;
    unsigned index;
    char problem[640];
};

static void *write_much(void *arg)
{
    struct writer *writer = arg;
    struct world *world = writer->world;

    for (unsigned i = 0; i < 20 && !writer->problem[0]; i++) {
        char key[32];
        struct shoal_error error;
        /* The same range, or one that overlaps that of others. */
        uint64_t offset = i % 2 ? 1000 * writer->index : 0, len = 200000;
        struct peer_write write = {.key = key, .data = world->memory + offset, .len_bytes = len};

        snprintf(key, sizeof key, "w%u/%u", writer->index, i);
        if (peer_write(world->peers, &world->address, &write, NULL, &error))
            snprintf(writer->problem, sizeof writer->problem, "%s", error.message);
    }
    return NULL;
}

static void threads_share_their_memory(void **state)
{
    enum { WRITERS = 8 };
    struct writer writers[WRITERS];
    struct world world;

    (void)state;
    world_start(&world, 0);
    content_fill(world.memory, MIB, 4, 0);
    for (unsigned i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.world = &world, .index = i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_much, &writers[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
    for (unsigned i = 0; i < WRITERS; i++)
        if (writers[i].problem[0])
            fail_msg("%s", writers[i].problem);
    for (size_t i = 0; i < world.owner.count; i++) {
        const struct fake_value *value = &world.owner.values[i];
        unsigned index, round;

        assert_int_equal(sscanf(value->key, "w%u/%u", &index, &round), 2);
        assert_int_equal(
            content_find_difference(world.owner.arena + value->offset, value->len, 4, round % 2 ? 1000 * index : 0),
            -1);
    }
    assert_int_equal(world.owner.count, 20 * WRITERS);
    world_stop(&world);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(reads_of_all_sizes),
        TEST(writes_of_all_sizes),
        TEST(errors_are_told_apart),
        TEST(batches_of_reads),
        TEST(batches_of_writes),
        TEST(deletion),
        TEST(an_owner_that_cannot_reach_us),
        TEST(leases_are_renewed_while_bytes_move),
        TEST(leases_by_hand),
        TEST(nothing_is_written_after_the_end),
        TEST(a_canceled_write_leaves_nothing),
        TEST(an_owner_that_goes_in_the_middle),
        TEST(lies),
        TEST(threads_share_their_memory),
    };
    return cmocka_run_group_tests_name("kv_peer", tests, NULL, NULL);
}
