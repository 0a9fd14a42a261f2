/* SPDX-License-Identifier: Apache-2.0 */
/* A metadata service that stops, fails over, forgets everything, and leases that are lost: F18, F19. */
#include "itest.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "etcd_server.h"
#include "meta_edit.h"

/* Not scaled down: the first 10 segments of a connection (640 KiB on loopback) are not paced. */
#define SIZE (32 * MIB)
#define PIECES "piece=65536 shard=1048576"
#define ENOUGH (SIZE / 32)

static struct etcd_cluster *etcd; /* of the running test */

static int etcd_teardown(void **state)
{
    int result = itest_teardown(state);
    etcd_cluster_stop(etcd);
    etcd = NULL;
    return result;
}
#define ETCD_TEST(function) cmocka_unit_test_setup_teardown(function, itest_setup, etcd_teardown)

static void use_etcd(struct fixture *fixture, size_t members)
{
    if (!etcd_is_available())
        skip();
    etcd = etcd_cluster_start(members);
    snprintf(fixture->uri, sizeof fixture->uri, "%s", etcd_cluster_uri(etcd));
}

/* What regions, generations and sources tests do on SQLite, once through etcd. */
static void etcd_round_trip(void **state)
{
    use_etcd(*state, 1);
    struct node *gold = start_node(*state, "gold", "lease=3000");
    struct node *replica = start_node(*state, "replica", "lease=3000");
    struct node *receiver = start_node(*state, "receiver", "");
    EXPECT_OK(seed_payload(gold, "dir/model", "700001,0,300000", 1, "shard=65536 attachment=hello"));
    EXPECT_STATUS(seed_payload(replica, "dir/model", "10", 1, ""), "EXISTS");
    EXPECT_OK(node_wait(replica, begin_get(replica, "dir/model", "1000001", "")));
    EXPECT_CONTENT(replica, "dir/model", 1);
    json_t *reply = node_call(receiver, "list prefix=dir/");
    EXPECT_OK(reply);
    json_t *info = json_array_get(json_object_get(reply, "payloads"), 0);
    assert_int_equal(json_integer_value(json_object_get(info, "total")), 1000001);
    assert_int_equal(json_integer_value(json_object_get(info, "shard")), 65536);
    assert_int_equal(json_array_size(json_object_get(info, "sizes")), 3);
    assert_int_equal(json_array_size(json_object_get(info, "sources")), 2);
    assert_string_equal(
        json_string_value(json_object_get(node_call(receiver, "index payload=dir/model"), "attachment")), "hello");
    EXPECT_OK(node_call(gold, "unregister payload=dir/model"));
    EXPECT_OK(node_wait(receiver, begin_get(receiver, "dir/model", "1,1000000", "")));
    EXPECT_CONTENT(receiver, "dir/model", 1);

    /* Replaced by force while the others hold the old one. */
    seed_one(gold, "dir/model", 500000, 2, "force=1");
    EXPECT_OK(node_call(receiver, "delete_replica payload=dir/model"));
    get_one(receiver, "dir/model", 500000, 2);
    assert_int_equal(source_count(receiver, "dir/model"), 2);
    EXPECT_OK(node_call(gold, "unregister payload=dir/model"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=dir/model"));
    assert_false(is_listed(receiver, "dir/model"));

    /* A killed node is gone within its lease. */
    EXPECT_OK(node_call(replica, "delete_replica payload=dir/model"));
    EXPECT_OK(node_call(replica, "register payload=short-lived buf=dir/model"));
    assert_int_equal(source_count(receiver, "short-lived"), 1);
    node_kill(replica);
    WAIT_UNTIL(source_count(receiver, "short-lived") == 0);
    node_stop_all();
}

/* 5 s is what the case asks for: the listing waits for most of it. */
static void f18_service_stopped_during_pull(void **state)
{
    use_etcd(*state, 1);
    struct node *gold = start_node(*state, "gold", "lease=30000");
    struct node *receiver = start_node(*state, "receiver", "lease=30000");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    etcd_member_pause(etcd, 0);

    /* New calls fail in time and say why. */
    EXPECT_STATUS(node_call(receiver, "list timeout=4000"), "METADATA|TIMED_OUT");
    EXPECT_STATUS(node_call(gold, "buf buf=other sizes=1000"), "OK");
    EXPECT_STATUS(node_call(gold, "register payload=other buf=other timeout=1000"), "METADATA|TIMED_OUT");
    /* The pull has everything meanwhile. */
    EXPECT_OK(node_call(gold, "pace"));
    WAIT_UNTIL(node_is_done(receiver, get) || node_progress(receiver, get) == SIZE);
    etcd_member_resume(etcd, 0);
    EXPECT_OK(node_wait(receiver, get));
    EXPECT_CONTENT(receiver, "model", 1);
    WAIT_UNTIL(is_source(gold, "model", name_of(receiver)));
    assert_false(is_serving(gold, "other"));
    WAIT_UNTIL(!is_listed(receiver, "other"));
    EXPECT_OK(node_call(gold, "register payload=other buf=other force=1"));
    node_stop_all();
}

static void f18_one_of_three_stopped(void **state)
{
    struct fixture *fixture = *state;
    use_etcd(fixture, 3);
    for (size_t member = 0; member < 3; member++) {
        struct node *gold = start_node(fixture, "gold", "");
        struct node *receiver = start_node(fixture, "receiver", "");
        struct node *late;
        seed_one(gold, "model", SIZE, 1, PIECES);
        EXPECT_OK(node_call(gold, "pace " SLOW));
        unsigned get = begin_get_one(receiver, "model", SIZE, "");
        assert_true(node_wait_progress(receiver, get, ENOUGH));
        etcd_member_pause(etcd, member);
        EXPECT_OK(node_call(gold, "pace"));
        EXPECT_OK(node_wait(receiver, get));
        EXPECT_CONTENT(receiver, "model", 1);
        WAIT_UNTIL(has_status(node_call(receiver, "list"), "OK"));
        late = start_node(fixture, "late", "timeout=30000");
        get_one(late, "model", SIZE, 1);
        WAIT_UNTIL(source_count(late, "model") == 3);
        EXPECT_OK(node_call(gold, "unregister payload=model timeout=30000"));
        EXPECT_OK(node_call(receiver, "delete_replica payload=model timeout=30000"));
        EXPECT_OK(node_call(late, "delete_replica payload=model timeout=30000"));
        node_stop_all();
        etcd_member_resume(etcd, member);
        assert_true(etcd_cluster_wait_healthy(etcd, (int)node_patience_ms()));
    }
}

static void f18_one_of_three_killed(void **state)
{
    use_etcd(*state, 3);
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    etcd_member_kill(etcd, 0);
    WAIT_UNTIL(has_status(node_call(receiver, "list"), "OK"));
    get_one(receiver, "model", SIZE, 1);
    assert_int_equal(source_count(gold, "model"), 2);
    node_stop_all();
}

static void f18_restarted_empty(void **state)
{
    use_etcd(*state, 1);
    struct node *gold = start_node(*state, "gold", "lease=3000");
    struct node *replica = start_node(*state, "replica", "lease=3000");
    struct node *receiver = start_node(*state, "receiver", "lease=3000");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "buf buf=own sizes=5000 seed=9"));
    EXPECT_OK(node_call(gold, "register payload=own buf=own"));
    get_one(replica, "model", SIZE, 1);
    etcd_member_kill(etcd, 0);
    etcd_member_wipe(etcd, 0);
    etcd_member_start(etcd, 0);
    assert_true(etcd_cluster_wait_healthy(etcd, (int)node_patience_ms()));
    WAIT_UNTIL(has_status(node_call(receiver, "list"), "OK"));
    WAIT_UNTIL(source_count(receiver, "model") == 2 && source_count(receiver, "own") == 1);
    get_one(receiver, "model", SIZE, 1);
    get_one(receiver, "own", 5000, 9);
    /* And everything can be withdrawn to the last entry. */
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    EXPECT_OK(node_call(gold, "unregister payload=own"));
    EXPECT_OK(node_call(replica, "delete_replica payload=model"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=own"));
    WAIT_UNTIL(!is_listed(receiver, "model") && !is_listed(receiver, "own"));
    node_stop_all();
}

/* Withdrawn while the service is away: the memory is the caller's at once, the entry goes later. */
static void f18_withdrawn_while_stopped(void **state)
{
    use_etcd(*state, 1);
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(receiver, "model", SIZE, 1);
    etcd_member_pause(etcd, 0);
    EXPECT_STATUS(node_call(gold, "unregister payload=model buf=model timeout=1000"), "METADATA|TIMED_OUT");
    assert_int_equal(served_count(gold), 0);
    EXPECT_STATUS(node_call(receiver, "delete_replica payload=model buf=model timeout=1000"), "METADATA|TIMED_OUT");
    etcd_member_resume(etcd, 0);
    WAIT_UNTIL(has_status(node_call(receiver, "list"), "OK"));
    WAIT_UNTIL(source_count(receiver, "model") == 0);
    seed_one(gold, "model", 1000, 2, "force=1");
    get_one(receiver, "model", 1000, 2);
    node_stop_all();
}

/* A store that closes while the service is away is done in bounded time. */
static void f18_closed_while_stopped(void **state)
{
    use_etcd(*state, 1);
    struct node *gold = start_node(*state, "gold", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    etcd_member_pause(etcd, 0);
    EXPECT_OK(node_call(gold, "close timeout=1000"));
    EXPECT_OK(node_call(gold, "unmap buf=model"));
    etcd_member_resume(etcd, 0);
    node_stop_all();
}

static void f18_service_away_from_the_start(void **state)
{
    struct fixture *fixture = *state;
    use_etcd(fixture, 1);
    etcd_member_pause(etcd, 0);
    struct node *node = node_spawn("node", -1);
    json_t *reply = node_call(node, "create uri=%s timeout=2000", fixture->uri);
    EXPECT_STATUS(reply, "METADATA|TIMED_OUT");
    EXPECT_MESSAGE(reply, etcd_member_endpoint(etcd, 0));
    etcd_member_resume(etcd, 0);
    WAIT_UNTIL(has_status(node_call(node, "create uri=%s", fixture->uri), "OK"));
    node_stop_all();
}

static void lost_lease(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=2000");
    struct node *replica = start_node(*state, "replica", "lease=2000");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(replica, "model", SIZE, 1);
    stop_node(*state, gold);
    stop_node(*state, replica);
    WAIT_UNTIL(source_count(receiver, "model") == 0);
    EXPECT_STATUS(node_wait(receiver, begin_get_one(receiver, "model", SIZE, "timeout=3000")),
                  "NO_SOURCE|TIMED_OUT|PAYLOAD_NOT_FOUND");
    node_signal(gold, SIGCONT);
    node_signal(replica, SIGCONT);
    WAIT_UNTIL(is_source(receiver, "model", name_of(gold)) && is_source(receiver, "model", name_of(replica)));
    get_one(receiver, "model", SIZE, 1);
    WAIT_UNTIL(served_count(gold) == 1);
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    EXPECT_OK(node_call(replica, "delete_replica payload=model"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    WAIT_UNTIL(!is_listed(receiver, "model"));
    node_stop_all();
}

static void f19_lease_lost_on_sqlite(void **state)
{
    lost_lease(state);
}

static void f19_lease_lost_on_etcd(void **state)
{
    use_etcd(*state, 1);
    lost_lease(state);
}

/* While it was away another node took its payload's name: the returning node gives way. */
static void f19_replaced_meanwhile(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=2000");
    struct node *heir = start_node(*state, "heir", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    stop_node(*state, gold);
    WAIT_UNTIL(source_count(receiver, "model") == 0);
    seed_one(heir, "model", SIZE, 2, "force=1 " PIECES);
    node_signal(gold, SIGCONT);
    /* It is back when it can list. */
    EXPECT_OK(node_call(gold, "list timeout=30000"));
    seed_one(gold, "back", 1000, 3, "timeout=30000");
    get_one(receiver, "model", SIZE, 2);
    assert_false(is_source(receiver, "model", name_of(gold)));
    EXPECT_STATUS(node_call(gold, "unregister payload=model"), "OK|PAYLOAD_NOT_OPENED");
    assert_int_equal(source_count(receiver, "model"), 2);
    node_stop_all();
}

/* Entries that nobody of us wrote. */
static void unreadable_entries_hide_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct node *gold = start_node(fixture, "gold", "");
    struct node *receiver = start_node(fixture, "receiver", "");
    seed_one(gold, "model", 100000, 1, "");
    static const char *const values[] = {"",     "nonsense",         "{}",
                                         "[1,2", "{\"version\":99}", "{\"version\":1,\"name\":5}"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char key[128];
        snprintf(key, sizeof key, "/shoal/v1/default/payloads/bad%zu/manifest", i);
        meta_edit_put(fixture->uri, key, values[i]);
        snprintf(key, sizeof key, "/shoal/v1/default/payloads/model/sources/0000000000000001/x%zu", i);
        meta_edit_put(fixture->uri, key, values[i]);
    }
    meta_edit_put(fixture->uri, "/shoal/v1/default/payloads/%zz/manifest", "{}");
    meta_edit_put(fixture->uri, "/shoal/v1/default/payloads/", "{}");
    meta_edit_put(fixture->uri, "/shoal/v1/default/payloads/deep/er/and/deeper", "{}");
    meta_edit_put(fixture->uri, "/shoal/v1/default/nodes/who", "{}");
    assert_true(is_listed(receiver, "model"));
    json_t *list = json_object_get(node_call(receiver, "list prefix=bad"), "payloads"), *info;
    size_t i;
    assert_int_equal(json_array_size(list), sizeof values / sizeof values[0]);
    json_array_foreach(list, i, info)
        assert_string_equal(json_string_value(json_object_get(info, "entry_status")), "PROTOCOL");
    assert_int_equal(source_count(receiver, "model"), 1);
    get_one(receiver, "model", 100000, 1);
    EXPECT_OK(node_call(receiver, "buf buf=bad0 sizes=10 seed=1"));
    EXPECT_STATUS(node_call(receiver, "get payload=bad0 buf=bad0"), "PROTOCOL|METADATA");
    EXPECT_STATUS(node_call(receiver, "register payload=bad0 buf=bad0"), "EXISTS|PROTOCOL|METADATA");
    EXPECT_OK(node_call(receiver, "register payload=bad0 buf=bad0 force=1"));
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ETCD_TEST(etcd_round_trip),          ETCD_TEST(f18_service_stopped_during_pull),
        ETCD_TEST(f18_one_of_three_stopped), ETCD_TEST(f18_one_of_three_killed),
        ETCD_TEST(f18_restarted_empty),      ETCD_TEST(f18_withdrawn_while_stopped),
        ETCD_TEST(f18_closed_while_stopped), ETCD_TEST(f18_service_away_from_the_start),
        ITEST(f19_lease_lost_on_sqlite),     ETCD_TEST(f19_lease_lost_on_etcd),
        ITEST(f19_replaced_meanwhile),       ITEST(unreadable_entries_hide_nothing),
    };
    return cmocka_run_group_tests_name("metadata", tests, NULL, NULL);
}
