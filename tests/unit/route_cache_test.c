/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/route_cache.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AGE_MS 1000

static struct session_replica owner(uint64_t instance, unsigned tier)
{
    struct session_replica replica = {.instance = instance, .tier = tier, .tier_type = 1};

    snprintf(replica.server_name, sizeof replica.server_name, "127.0.0.1:%llu", (unsigned long long)instance);
    snprintf(replica.address, sizeof replica.address, "127.0.0.1:%llu", (unsigned long long)instance);
    return replica;
}

static void put(struct route_cache *cache, const char *key, uint64_t object_id, uint64_t instance, int64_t now_ms)
{
    struct session_replica replica = owner(instance, 0);

    route_cache_put(cache, key, object_id, 10, &replica, 1, now_ms);
}

static bool has(struct route_cache *cache, const char *key, int64_t now_ms)
{
    struct route route;

    return route_cache_get(cache, key, now_ms, &route);
}

static void test_remembers_what_was_put(void **state)
{
    struct route_cache *cache = route_cache_create(8, AGE_MS);
    struct session_replica replicas[ROUTE_REPLICAS_MAX + 2];
    struct route route;

    (void)state;
    for (unsigned i = 0; i < ROUTE_REPLICAS_MAX + 2; i++)
        replicas[i] = owner(100 + i, i);
    assert_false(has(cache, "a", 0));
    route_cache_put(cache, "a", 7, 4096, replicas, 2, 0);
    assert_true(route_cache_get(cache, "a", AGE_MS - 1, &route));
    assert_int_equal(route.object_id, 7);
    assert_int_equal(route.len_bytes, 4096);
    assert_int_equal(route.replica_count, 2);
    assert_int_equal(route.replicas[1].instance, 101);
    assert_int_equal(route.replicas[1].tier, 1);
    assert_string_equal(route.replicas[1].address, "127.0.0.1:101");
    route_cache_put(cache, "a", 8, 1, replicas, ROUTE_REPLICAS_MAX + 2, 0); /* replaces, and no more than fit */
    assert_true(route_cache_get(cache, "a", 0, &route));
    assert_int_equal(route.object_id, 8);
    assert_int_equal(route.replica_count, ROUTE_REPLICAS_MAX);
    route_cache_put(cache, "none", 9, 1, replicas, 0, 0);
    assert_false(has(cache, "none", 0));
    route_cache_forget(cache, "a");
    route_cache_forget(cache, "never seen");
    assert_false(has(cache, "a", 0));
    route_cache_destroy(cache);
    route_cache_destroy(NULL);
}

static void test_ages(void **state)
{
    struct route_cache *cache = route_cache_create(8, AGE_MS);
    struct route_cache_counters counters;

    (void)state;
    put(cache, "a", 1, 1, 500);
    assert_true(has(cache, "a", 500 + AGE_MS - 1));
    assert_false(has(cache, "a", 500 + AGE_MS));
    route_cache_counters(cache, &counters);
    assert_int_equal(counters.entries, 0);
    assert_int_equal(counters.hits, 1);
    assert_int_equal(counters.misses, 1);
    put(cache, "a", 1, 1, INT64_MAX - 1);
    assert_true(has(cache, "a", INT64_MAX - 1));
    route_cache_destroy(cache);
}

static void test_evicts_the_least_recently_used(void **state)
{
    struct route_cache *cache = route_cache_create(3, AGE_MS);
    struct route_cache_counters counters;

    (void)state;
    put(cache, "a", 1, 1, 0);
    put(cache, "b", 1, 1, 0);
    put(cache, "c", 1, 1, 0);
    assert_true(has(cache, "a", 0));
    put(cache, "d", 1, 1, 0);
    assert_true(has(cache, "a", 0));
    assert_false(has(cache, "b", 0));
    assert_true(has(cache, "c", 0));
    assert_true(has(cache, "d", 0));
    route_cache_counters(cache, &counters);
    assert_int_equal(counters.entries, 3);
    assert_int_equal(counters.evictions, 1);
    route_cache_destroy(cache);
}

static void test_long_keys_do_not_break_the_bound_in_bytes(void **state)
{
    struct route_cache *cache = route_cache_create(100, AGE_MS);
    struct route_cache_counters counters;
    char key[1025];

    (void)state;
    memset(key, 'x', sizeof key);
    key[sizeof key - 1] = '\0';
    for (unsigned i = 0; i < 100; i++) {
        snprintf(key, 8, "%06u", i);
        key[7] = 'x';
        key[6] = '-';
        put(cache, key, 1, 1, 0);
    }
    route_cache_counters(cache, &counters);
    assert_true(counters.entries < 60);
    assert_true(counters.entries > 20);
    assert_true(has(cache, key, 0));
    route_cache_destroy(cache);
}

static void test_forgets_an_owner_everywhere(void **state)
{
    struct route_cache *cache = route_cache_create(100000, AGE_MS);
    struct session_replica both[2] = {owner(1, 0), owner(2, 0)};
    struct route route;
    char key[16];

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "%u", i);
        route_cache_put(cache, key, 5, 10, both, i % 2 ? 2 : 1, 0);
    }
    route_cache_forget_owner(cache, 1);
    route_cache_forget_owner(cache, 77);
    put(cache, "new", 6, 1, 0); /* it has come back */
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "%u", i);
        assert_int_equal(route_cache_get(cache, key, 0, &route), i % 2);
        if (i % 2) {
            assert_int_equal(route.replica_count, 1);
            assert_int_equal(route.replicas[0].instance, 2);
        }
    }
    assert_true(route_cache_get(cache, "new", 0, &route));
    assert_int_equal(route.replicas[0].instance, 1);
    route_cache_destroy(cache);
}

struct worker {
    pthread_t thread;
    struct route_cache *cache;
    unsigned number;
};

/* Each key's routes all have the object id that the key names. */
static void *work(void *arg)
{
    struct worker *worker = arg;
    struct route route;
    char key[16];

    for (unsigned i = 0; i < 20000; i++) {
        unsigned k = (i * 7 + worker->number) % 600;

        snprintf(key, sizeof key, "%u", k);
        if (i % 3 == 0)
            put(worker->cache, key, k + 1, i % 5 + 1, i);
        else if (i % 101 == 0)
            route_cache_forget_owner(worker->cache, i % 5 + 1);
        else if (i % 17 == 0)
            route_cache_forget(worker->cache, key);
        else if (route_cache_get(worker->cache, key, i, &route) && (route.object_id != k + 1 || !route.replica_count))
            return worker;
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    struct worker workers[4];
    struct route_cache *cache = route_cache_create(512, AGE_MS);
    void *wrong = NULL;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){.cache = cache, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        void *result;

        pthread_join(workers[i].thread, &result);
        wrong = result ? result : wrong;
    }
    assert_null(wrong);
    route_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remembers_what_was_put),
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_evicts_the_least_recently_used),
        cmocka_unit_test(test_long_keys_do_not_break_the_bound_in_bytes),
        cmocka_unit_test(test_forgets_an_owner_everywhere),
        cmocka_unit_test(test_many_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
