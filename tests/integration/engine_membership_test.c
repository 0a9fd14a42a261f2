/* SPDX-License-Identifier: Apache-2.0 */
/* A node that lost its lease registers again by itself (F18, F19). Argument: sqlite or etcd. */
#include "../contract/transport_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/keys.h"
#include "etcd_server.h"

#define TTL_MS 2000

static bool is_etcd;
static struct etcd_cluster *etcd;
static struct meta *meta;

static int setup(void **state)
{
    struct shoal_error error;

    fixture_setup(state);
    if (is_etcd)
        etcd = etcd_cluster_start(1);
    assert_ok(meta_open(is_etcd ? etcd_cluster_uri(etcd) : fixture_uri(), &meta, &error), &error);
    return 0;
}

static int teardown(void **state)
{
    meta_close(meta);
    if (is_etcd)
        etcd_cluster_stop(etcd);
    return fixture_teardown(state);
}

/* What a store does: one key under the node's lease. */
struct publisher {
    pthread_mutex_t mutex;
    struct shoal_engine *engine;
    unsigned calls, failures_wanted;
    int64_t lease;
};

static enum shoal_status publish(void *arg, int64_t lease, const struct call *call, struct shoal_error *error)
{
    struct publisher *publisher = arg;
    enum shoal_status status = SHOAL_OK;

    (void)call;
    pthread_mutex_lock(&publisher->mutex);
    publisher->calls++;
    if (publisher->failures_wanted > 0) {
        publisher->failures_wanted--;
        status = error_set(error, SHOAL_METADATA, 0, "not now");
    } else {
        publisher->lease = lease;
    }
    pthread_mutex_unlock(&publisher->mutex);
    return status;
}

static int64_t published_lease(struct publisher *publisher)
{
    int64_t lease;

    pthread_mutex_lock(&publisher->mutex);
    lease = publisher->lease;
    pthread_mutex_unlock(&publisher->mutex);
    return lease;
}

static struct shoal_engine *node_make(void)
{
    struct shoal_engine_config config = fixture_config();

    config.lease_ttl_ms = TTL_MS;
    config.metadata_uri = is_etcd ? etcd_cluster_uri(etcd) : fixture_uri();
    return engine_make(&config);
}

/* Lease of the node key; 0: there is none. */
static int64_t key_lease(const char *name)
{
    struct call call = {.deadline_ms = deadline_after_ms(PATIENCE_MS)};
    char *key = engine_key_node("default", name);
    struct meta_entry entry;
    struct shoal_error error;
    bool is_found = false;
    int64_t lease = 0;

    assert_non_null(key);
    if (meta_get(meta, (struct meta_bytes){key, strlen(key)}, &call, &is_found, &entry, &error) == SHOAL_OK &&
        is_found) {
        lease = entry.lease;
        meta_entry_release(&entry);
    }
    free(key);
    return lease;
}

static void test_join_and_leave(void **state)
{
    struct shoal_engine *engine = node_make();
    char name[320];

    (void)state;
    snprintf(name, sizeof name, "%s", shoal_engine_server_name(engine));
    assert_int_not_equal(engine_lease(engine), 0);
    assert_int_equal(key_lease(name), engine_lease(engine));
    shoal_engine_destroy(engine);
    assert_int_equal(key_lease(name), 0);
}

static void test_lease_revoked(void **state)
{
    struct publisher publisher = {.mutex = PTHREAD_MUTEX_INITIALIZER, .failures_wanted = 2};
    struct call call = {.deadline_ms = deadline_after_ms(PATIENCE_MS)};
    struct membership_listener listener = {publish, &publisher};
    struct shoal_engine *engine = node_make();
    struct shoal_error error;

    (void)state;
    publisher.engine = engine;
    engine_set_membership_listener(engine, &listener);
    for (unsigned round = 0; round < 2; round++) {
        int64_t lease = engine_lease(engine);

        assert_ok(meta_lease_revoke(meta, lease, &call, &error), &error);
        if (round == 1)
            engine_lease_lost(engine, lease);
        wait_until(engine_lease(engine) != 0 && engine_lease(engine) != lease);
        wait_until(published_lease(&publisher) == engine_lease(engine));
        assert_int_equal(key_lease(shoal_engine_server_name(engine)), engine_lease(engine));
    }
    assert_true(publisher.calls >= 4); /* two failed and were repeated */
    engine_set_membership_listener(engine, NULL);
    shoal_engine_destroy(engine);
}

/* F19 */
static void test_stopped_beyond_lease(void **state)
{
    struct child child;

    (void)state;
    child = child_start_with(is_etcd ? etcd_cluster_uri(etcd) : fixture_uri(), TTL_MS);
    assert_int_not_equal(key_lease(child.name), 0);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    wait_until(key_lease(child.name) == 0);
    assert_int_equal(kill(child.pid, SIGCONT), 0);
    wait_until(key_lease(child.name) != 0);
    child_stop(&child);
    wait_until(key_lease(child.name) == 0); /* F2: gone within its lease */
}

/* F18: the service comes back without its data. */
static void test_service_lost_its_data(void **state)
{
    struct publisher publisher = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct membership_listener listener = {publish, &publisher};
    struct shoal_engine *engine;
    int64_t lease;

    (void)state;
    if (!is_etcd)
        skip();
    engine = node_make();
    engine_set_membership_listener(engine, &listener);
    lease = engine_lease(engine);
    etcd_member_kill(etcd, 0);
    etcd_member_wipe(etcd, 0);
    etcd_member_start(etcd, 0);
    wait_until(key_lease(shoal_engine_server_name(engine)) != 0);
    wait_until(published_lease(&publisher) != 0);
    assert_int_not_equal(engine_lease(engine), lease);
    shoal_engine_destroy(engine);
}

/* Leaving while the service hangs takes at most its two seconds and what is under way; nothing waits for ever. */
static void test_leave_without_service(void **state)
{
    struct shoal_engine *engine;

    (void)state;
    if (!is_etcd)
        skip();
    engine = node_make();
    etcd_member_pause(etcd, 0);
    shoal_engine_destroy(engine);
    etcd_member_resume(etcd, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        CASE(test_join_and_leave),        CASE(test_lease_revoked),         CASE(test_stopped_beyond_lease),
        CASE(test_service_lost_its_data), CASE(test_leave_without_service),
    };

    fixture_run_child(argc, argv);
    is_etcd = argc > 1 && strcmp(argv[1], "etcd") == 0;
    if (is_etcd && !etcd_is_available())
        return 77;
    return cmocka_run_group_tests_name("membership", tests, NULL, NULL);
}
