/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation of the KV store's parts fails in turn (failing_alloc.h): the answer is NO_MEMORY or the part does
 * without, nothing is half done, and everything is given back (the sanitizers look). One thread, so that the nth
 * allocation is the same each time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failing_alloc.h"
#include "kv/leases.h"
#include "kv/route_cache.h"
#undef ROUTE_REPLICAS_MAX /* the master has another bound */
#include "master/registry.h"
#include "master/routes.h"
#include "master/tombstones.h"
#include "tier/backend.h"
#include "tier_fake.h"

/* Runs the scenario with the first, the second, ... allocation failing, until it makes no more of them. */
static void sweep(enum shoal_status (*scenario)(void), bool may_do_without)
{
    unsigned long nth = 1;

    for (;; nth++) {
        enum shoal_status status;
        failing_alloc_begin(nth, 1);
        status = scenario();
        if (!failing_alloc_end()) {
            assert_int_equal(status, SHOAL_OK);
            break;
        }
        if (status != SHOAL_NO_MEMORY && !(may_do_without && status == SHOAL_OK))
            fail_msg("allocation %lu: status %d", nth, (int)status);
    }
    assert_true(nth > 1);
}

/* --- tiers --- */

static const struct tier_config tiers[] = {
    {.type = TIER_DRAM, .capacity_bytes = 1 << 20, .priority = 10, .numa_node = -1},
    {.type = TIER_STORAGE, .capacity_bytes = 1 << 20, .priority = 5, .numa_node = -1},
};

static enum shoal_status put(struct tier_backend *backend, const char *key, size_t len, bool wants_dram)
{
    struct tier_allocation *allocation;
    struct tier_object *object;
    enum shoal_status status = tier_allocate(backend, key, len, wants_dram, &allocation, NULL);

    if (status != SHOAL_OK)
        return status;
    if (tier_allocation_data(allocation))
        memset(tier_allocation_data(allocation), 'x', len);
    status = tier_commit(allocation, 0, &object, NULL);
    if (status == SHOAL_OK)
        status = tier_publish(object, NULL);
    if (status == SHOAL_OK)
        tier_object_unref(object);
    return status;
}

static enum shoal_status use_tiers(void)
{
    const struct tier_backend_config config = {
        .tiers = tiers, .tier_count = 2, .lock_stripes = 4, .staging_buffers = 2};
    const struct backend_options options = {.ops_of = tier_fake_ops, .has_no_thread = true};
    struct tier_backend *backend = NULL;
    struct tier_object *object;
    enum shoal_status status = backend_create(&config, &options, &backend, NULL);

    for (unsigned i = 0; i < 16 && status == SHOAL_OK; i++) {
        uint64_t used = backend->slots[0].tier->used_bytes;
        char key[32];
        snprintf(key, sizeof key, "key-%u", i);
        status = put(backend, key, 60000, true);
        if (status != SHOAL_OK) {
            assert_false(tier_has(backend, key));
            assert_true(backend->slots[0].tier->used_bytes <= used); /* making room may have dropped others */
            if (status == SHOAL_NO_SPACE && failing_alloc_has_fired())
                status = SHOAL_NO_MEMORY; /* without memory to tell of it nothing is dropped */
        }
    }
    /* Moves objects down; without memory it tries again later. */
    for (unsigned i = 0; i < 50 && status == SHOAL_OK && backend_step(backend); i++)
        ;
    if (status == SHOAL_OK && tier_get(backend, "key-15", &object) == SHOAL_OK) {
        tier_object_unref(object);
        assert_int_equal(tier_remove(backend, "key-15", 0), SHOAL_OK);
        assert_false(tier_has(backend, "key-15"));
    }
    tier_backend_destroy(backend);
    (void)failing_alloc_end();
    tier_fake_disk_clear();
    return status;
}

static void tiers_do_nothing_by_halves(void **state)
{
    (void)state;
    sweep(use_tiers, true);
}

#define EACH_KEYS 40 /* in more than one stripe, several in some */

static bool count_object(void *arg, struct tier_object *object)
{
    (void)object;
    ++*(unsigned *)arg;
    return true;
}

static enum shoal_status see_each(void)
{
    const struct tier_backend_config config = {
        .tiers = tiers, .tier_count = 2, .lock_stripes = 4, .staging_buffers = 2};
    const struct backend_options options = {.ops_of = tier_fake_ops, .has_no_thread = true};
    struct tier_backend *backend = NULL;
    unsigned count = 0;
    enum shoal_status status = backend_create(&config, &options, &backend, NULL);

    for (unsigned i = 0; i < EACH_KEYS && status == SHOAL_OK; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%u", i);
        status = put(backend, key, 100, true);
    }
    if (status == SHOAL_OK && !tier_each(backend, count_object, &count))
        status = SHOAL_NO_MEMORY;
    if (status == SHOAL_OK)
        assert_int_equal(count, EACH_KEYS);
    tier_backend_destroy(backend);
    (void)failing_alloc_end();
    tier_fake_disk_clear();
    return status;
}

/* Who announces what there is to a new master must know whether that was all. */
static void who_sees_not_each_is_told(void **state)
{
    (void)state;
    sweep(see_each, true);
}

/* --- the master's tables --- */

static enum shoal_status use_routes(void)
{
    const struct routes_config config = {.max_clients = 4};
    struct routes *routes = NULL;
    struct route_view view;
    size_t added = 0;
    enum shoal_status status = routes_create(&config, &routes, NULL);

    for (unsigned i = 0; i < 3000 && status == SHOAL_OK; i++) {
        char key[32];
        int len = snprintf(key, sizeof key, "key-%u", i);
        status = routes_add(routes, key, (size_t)len, i + 1, 10, i % 4, 0, 0);
        added += status == SHOAL_OK;
        /* A second replica. */
        if (status == SHOAL_OK && i % 3 == 0)
            status = routes_add(routes, key, (size_t)len, i + 1, 10, (i + 1) % 4, 0, 0);
    }
    if (routes) {
        assert_int_equal(routes_count(routes), added);
        for (unsigned i = 0; i < added; i++) {
            char key[32];
            int len = snprintf(key, sizeof key, "key-%u", i);
            assert_true(routes_get(routes, key, (size_t)len, &view));
            assert_int_equal(view.object_id, i + 1);
        }
        for (uint32_t client = 0; client < 4; client++)
            routes_drop_client(routes, client, SIZE_MAX);
        assert_int_equal(routes_count(routes), 0);
    }
    routes_destroy(routes);
    return status;
}

static void routes_are_whole(void **state)
{
    (void)state;
    sweep(use_routes, false);
}

static enum shoal_status use_registry(void)
{
    const struct registry_config config = {.client_ttl_ms = 1000, .max_clients = 8, .first_sequence = 1};
    const struct client_tier tier = {.type = 1, .capacity_bytes = 100};
    struct registry *registry = NULL;
    unsigned registered = 0;
    enum shoal_status status = registry_create(&config, &registry, NULL);

    for (unsigned i = 0; i < 8 && status == SHOAL_OK; i++) {
        struct client *client = NULL;
        char name[32];
        snprintf(name, sizeof name, "10.0.0.1:%u", 1000 + i);
        struct registration registration = {
            .instance = i + 1, .server_name = name, .address = name, .tiers = &tier, .tier_count = 1};
        status = registry_register(registry, &registration, 0, &client, NULL, NULL);
        registered += status == SHOAL_OK;
        assert_true((registry_find_name(registry, name) != NULL) == (status == SHOAL_OK));
        if (status == SHOAL_OK) {
            registry_add_drop(registry, client, "key", 3, 7 + i);
            /* Told, or (without memory) the client has to register again, and is told then. */
            assert_true(registry_drop_count(client) == 1 || client->must_register);
        }
    }
    if (registry)
        assert_int_equal(registry_live_count(registry), registered);
    registry_destroy(registry);
    return status;
}

static void registrations_are_whole(void **state)
{
    (void)state;
    sweep(use_registry, true);
}

static enum shoal_status use_tombstones(void)
{
    struct tombstones tombstones;
    enum shoal_status status = SHOAL_OK;

    tombstones_init(&tombstones, 100000, 1000);
    for (uint64_t id = 1; id <= 5000 && status == SHOAL_OK; id++)
        status = tombstones_add(&tombstones, id, 0) ? SHOAL_OK : SHOAL_NO_MEMORY;
    if (status == SHOAL_OK)
        assert_true(tombstones_has(&tombstones, 5000)); /* for want of memory the oldest have gone */
    tombstones_release(&tombstones);
    return status;
}

static void tombstones_forget_the_oldest(void **state)
{
    (void)state;
    sweep(use_tombstones, true);
}

/* --- an owner's leases, a client's routes --- */

static unsigned released;

static void release(void *arg, const struct lease_holding *holding)
{
    (void)arg, (void)holding;
    released++;
}

static enum shoal_status use_leases(void)
{
    const struct leases_config config = {
        .lease_ms = 10, .max = 1000, .max_per_peer = 1000, .max_staging = 10, .release = release};
    struct leases leases;
    unsigned added = 0;
    enum shoal_status status = SHOAL_OK;

    released = 0;
    leases_init(&leases, &config);
    for (unsigned i = 0; i < 200 && status == SHOAL_OK; i++) {
        const struct lease_holding holding = {.kind = LEASE_PIN, .len_bytes = 5};
        char peer[16];
        uint64_t id;
        snprintf(peer, sizeof peer, "peer-%u", i % 20);
        status = leases_add(&leases, peer, &holding, 0, &id, NULL);
        added += status == SHOAL_OK;
    }
    assert_int_equal(leases_count(&leases), added);
    assert_int_equal(leases.bytes, 5 * added);
    leases_expire(&leases, 10);
    assert_int_equal(released, added);
    assert_int_equal(leases.bytes, 0);
    assert_int_equal(leases.by_peer.count, 0);
    leases_release(&leases);
    return status;
}

static void leases_are_whole(void **state)
{
    (void)state;
    sweep(use_leases, true); /* a table that cannot grow goes on with less room */
}

static enum shoal_status use_route_cache(void)
{
    struct route_cache *cache = route_cache_create(1000, 1000);
    const struct session_replica replica = {.instance = 7, .server_name = "a:1", .address = "10.0.0.1:1"};
    struct route route;

    if (!cache)
        return SHOAL_NO_MEMORY;
    for (unsigned i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%u", i);
        route_cache_put(cache, key, i + 1, 10, &replica, 1, 0);
        if (route_cache_get(cache, key, 0, &route)) /* else it is asked for again */
            assert_int_equal(route.object_id, i + 1);
        else
            assert_true(failing_alloc_has_fired());
    }
    route_cache_destroy(cache);
    return SHOAL_OK;
}

static void a_route_cache_does_without(void **state)
{
    (void)state;
    sweep(use_route_cache, true);
}

static enum shoal_status use_tier_config(void)
{
    struct tier_config_list list;
    enum shoal_status status =
        tier_config_parse("{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"1MiB\"},"
                          "{\"type\":\"STORAGE\",\"capacity\":\"1MiB\",\"storage_filepath\":\"/nowhere\"}]}",
                          &list, NULL);

    if (status == SHOAL_OK)
        tier_config_release(&list);
    return status;
}

static void a_configuration_is_whole(void **state)
{
    (void)state;
    sweep(use_tier_config, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_do_nothing_by_halves),
        cmocka_unit_test(who_sees_not_each_is_told),
        cmocka_unit_test(routes_are_whole),
        cmocka_unit_test(registrations_are_whole),
        cmocka_unit_test(tombstones_forget_the_oldest),
        cmocka_unit_test(leases_are_whole),
        cmocka_unit_test(a_route_cache_does_without),
        cmocka_unit_test(a_configuration_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
