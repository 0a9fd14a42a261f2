/* SPDX-License-Identifier: Apache-2.0 */
/* The peer client and the client RPC service with each other: transfers that the caller drives, and what is left when a
 * call ends in the middle, over DRAM and over a tier without addresses. */
#include "kv_service_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "content.h"
#include "kv/peer.h"
#include "kv/peer_internal.h"

#define MEMORY_BYTES (64u << 20)
#define SLOW_BYTES_PER_S (4u << 20)
#define LARGE_BYTES (24u << 20)

struct world {
    struct owner owner;
    struct peer_address address;
    struct shoal_engine *engine;
    struct rpc_channels *channels;
    struct peers *peers;
    uint8_t *memory; /* not registered */
    struct shoal_error error;
};

struct world_options {
    bool is_storage;
    int64_t lease_ms;
    uint64_t owner_upload, own_upload; /* bytes per second, 0: no limit */
};

static void world_start(struct world *world, const struct world_options *options)
{
    struct shoal_engine_config slow_owner = fixture_config(), slow_own = fixture_config();
    struct owner_options owner = {.dram_bytes = options->is_storage ? 0 : MEMORY_BYTES,
                                  .storage_bytes = options->is_storage ? MEMORY_BYTES : 0,
                                  .lease_ms = options->lease_ms,
                                  .engine = &slow_owner};
    struct rpc_channels_config channels = {
        .cluster = "default", .server_name = "reader:1", .instance = 7, .connect_timeout_ms = PATIENCE_MS};
    struct peers_config config = {.call_timeout_ms = PATIENCE_MS};

    memset(world, 0, sizeof *world);
    slow_owner.upload_limit_bytes_per_s = options->owner_upload;
    slow_own.upload_limit_bytes_per_s = options->own_upload;
    world->owner = owner_open(&owner);
    world->address = (struct peer_address){.server_name = shoal_engine_server_name(world->owner.engine),
                                           .address = engine_address(world->owner.engine),
                                           .instance = engine_instance(world->owner.engine)};
    world->engine = engine_make(&slow_own);
    assert_ok(rpc_channels_create(&channels, &world->channels, &world->error), &world->error);
    config.engine = world->engine;
    config.channels = world->channels;
    assert_ok(peers_create(&config, &world->peers, &world->error), &world->error);
    world->memory = memory_make(MEMORY_BYTES);
}

static void register_all(struct world *world)
{
    assert_ok(shoal_engine_register_memory(world->engine, world->memory, MEMORY_BYTES, NULL, SHOAL_ACCESS_LOCAL, NULL,
                                           &world->error),
              &world->error);
}

static void unregister_all(struct world *world)
{
    assert_ok(shoal_engine_unregister_memory(world->engine, world->memory, MEMORY_BYTES, &world->error), &world->error);
}

static void world_stop(struct world *world)
{
    register_all(world); /* nothing of it was left registered */
    unregister_all(world);
    peers_destroy(world->peers);
    rpc_channels_destroy(world->channels);
    if (world->owner.engine)
        owner_close(&world->owner);
    shoal_engine_destroy(world->engine);
    memory_drop(world->memory, MEMORY_BYTES);
}

static void put(struct world *world, const char *key, uint64_t len, uint64_t seed)
{
    struct peer_write write = {.key = key, .data = world->memory, .len_bytes = len};

    content_fill(world->memory, len, seed, 0);
    assert_ok(peer_write(world->peers, &world->address, &write, NULL, &world->error), &world->error);
    assert_int_not_equal(write.object_id_out, 0);
    memset(world->memory, 0, len);
}

static void get(struct world *world, const char *key, uint64_t len, uint64_t seed, uint8_t *memory, uint64_t capacity)
{
    struct peer_read read = {.key = key, .memory = memory, .capacity_bytes = capacity};

    assert_ok(peer_read(world->peers, &world->address, &read, NULL, &world->error), &world->error);
    assert_int_equal(read.len_bytes, len);
    assert_int_equal(content_find_difference(read.memory, len, seed, 0), -1);
    if (!memory)
        free(read.memory);
}

/* As if the owner could not reach us; slow enough for the lease to be renewed several times. */
static void transfers_under_leases(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 2; variant++) {
        struct world_options options = {.is_storage = variant, .lease_ms = 600, .owner_upload = SLOW_BYTES_PER_S};
        struct call call = {deadline_after_ms(PATIENCE_MS), NULL};
        struct peer_read told = {.key = "pulled"};
        struct peer_write write = {.key = "pushed", .data = NULL, .len_bytes = 5 * MIB};
        uint64_t object_id = 0;
        struct world world;

        world_start(&world, &options);
        put(&world, "pulled", 6 * MIB, 3);
        assert_ok(peer_read(world.peers, &world.address, &told, NULL, &world.error), &world.error);
        free(told.memory);
        assert_ok(peer_pull(world.peers, &world.address, "pulled", told.object_id_out, world.memory, 6 * MIB, &call,
                            &world.error),
                  &world.error);
        assert_int_equal(content_find_difference(world.memory, 6 * MIB, 3, 0), -1);
        assert_true(peer_is_one_way(world.peers, &world.address));
        if (!options.is_storage) { /* pre_write is for DRAM */
            assert_true(owner_metric(&world.owner, "shoal_kv_service_requests_total{method=\"renew\"}") > 0);
            content_fill(world.memory, write.len_bytes, 8, 0);
            write.data = world.memory;
            assert_ok(peer_push(world.peers, &world.address, &write, &call, &object_id, NULL, &world.error),
                      &world.error);
            assert_int_not_equal(object_id, 0);
            get(&world, "pushed", write.len_bytes, 8, NULL, 0);
            assert_status(SHOAL_EXISTS,
                          peer_push(world.peers, &world.address, &write, &call, &object_id, NULL, &world.error),
                          &world.error);
        }
        get(&world, "pulled", 6 * MIB, 3, world.memory + 9, 7 * MIB);
        world_stop(&world);
    }
}

/* --- ends in the middle --- */

struct background {
    struct world *world;
    pthread_t thread;
    struct shoal_cancel *cancel;
    int64_t timeout_ms;
    bool is_write;
    enum shoal_status status;
    struct shoal_error error;
};

static void *run_background(void *arg)
{
    struct background *background = arg;
    struct world *world = background->world;
    struct call call = {deadline_after_ms(background->timeout_ms), background->cancel};
    struct peer_read read = {.key = "large", .memory = world->memory, .capacity_bytes = MEMORY_BYTES};
    struct peer_write write = {.key = "new", .data = world->memory, .len_bytes = LARGE_BYTES};

    if (background->is_write)
        background->status = peer_write(world->peers, &world->address, &write, &call, &background->error);
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

static uint64_t transfers(struct world *world)
{
    return owner_metric(&world->owner, "shoal_kv_service_transfers");
}

static void canceled_and_late_reads(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 8; variant++) {
        bool is_registered = variant & 1, cancels = variant & 2;
        struct world_options options = {.is_storage = variant & 4, .owner_upload = SLOW_BYTES_PER_S};
        struct background background = {.timeout_ms = cancels ? PATIENCE_MS : 300};
        uint8_t *copy = malloc(LARGE_BYTES);
        struct world world;

        world_start(&world, &options);
        put(&world, "large", LARGE_BYTES, 3);
        if (is_registered)
            register_all(&world);
        background_start(&background, &world);
        if (cancels) {
            wait_until(transfers(&world) > 0);
            shoal_cancel_trigger(background.cancel);
        }
        background_join(&background);
        assert_status(cancels ? SHOAL_CANCELED : SHOAL_TIMED_OUT, background.status, &background.error);
        memcpy(copy, world.memory, LARGE_BYTES);
        if (is_registered)
            unregister_all(&world);
        wait_until(transfers(&world) == 0);
        assert_memory_equal(copy, world.memory, LARGE_BYTES);
        world_stop(&world);
        free(copy);
    }
}

static void canceled_writes(void **state)
{
    (void)state;
    for (unsigned variant = 0; variant < 4; variant++) {
        bool cancels = variant & 1;
        struct world_options options = {.is_storage = variant & 2, .own_upload = SLOW_BYTES_PER_S};
        struct background background = {.timeout_ms = cancels ? PATIENCE_MS : 300, .is_write = true};
        struct world world;

        world_start(&world, &options);
        background_start(&background, &world);
        if (cancels) {
            wait_until(transfers(&world) > 0);
            shoal_cancel_trigger(background.cancel);
        }
        background_join(&background);
        assert_status(cancels ? SHOAL_CANCELED : SHOAL_TIMED_OUT, background.status, &background.error);
        wait_until(transfers(&world) == 0 && owner_used_bytes(&world.owner) == 0); /* given back */
        world_stop(&world);
    }
}

static void an_owner_that_goes_in_the_middle(void **state)
{
    struct world_options options = {.owner_upload = SLOW_BYTES_PER_S};
    struct background background = {.timeout_ms = PATIENCE_MS};
    char server_name[320], address[128];
    struct world world;

    (void)state;
    world_start(&world, &options);
    snprintf(server_name, sizeof server_name, "%s", world.address.server_name);
    snprintf(address, sizeof address, "%s", world.address.address);
    world.address.server_name = server_name;
    world.address.address = address;
    put(&world, "large", LARGE_BYTES, 3);
    background_start(&background, &world);
    wait_until(transfers(&world) > 0);
    owner_close(&world.owner);
    background_join(&background);
    if (background.status == SHOAL_OK || background.status == SHOAL_TIMED_OUT)
        fail_msg("%s", shoal_status_name(background.status));
    world.owner.engine = NULL;
    world_stop(&world);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(transfers_under_leases),
        TEST(canceled_and_late_reads),
        TEST(canceled_writes),
        TEST(an_owner_that_goes_in_the_middle),
    };
    return cmocka_run_group_tests_name("kv_service_peer_ends", tests, NULL, NULL);
}
