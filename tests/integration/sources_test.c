/* SPDX-License-Identifier: Apache-2.0 */
/* Sources that die, stall or are cut off: F2, F3, F4. */
#include "itest.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta_edit.h"
#include "netns.h"
#include "proxy.h"

/* Not scaled down: the first 10 segments of a connection (640 KiB on loopback) are not paced. */
#define SIZE (32 * MIB)
#define PIECES "piece=65536 shard=1048576"
#define ENOUGH (SIZE / 32) /* pulled so far when a test acts "in the middle" */

/* gold and replica hold payload "model" of seed 1, both slow. */
static void two_sources(struct fixture *fixture, const char *options, struct node **gold_out, struct node **replica_out)
{
    *gold_out = start_node(fixture, "gold", options);
    *replica_out = start_node(fixture, "replica", options);
    seed_one(*gold_out, "model", SIZE, 1, PIECES);
    get_one(*replica_out, "model", SIZE, 1);
    EXPECT_OK(node_call(*gold_out, "pace " SLOW));
    EXPECT_OK(node_call(*replica_out, "pace " SLOW));
}

/* Starts a pull and returns in its middle, with both sources in use. */
static unsigned pull_from_both(struct node *receiver, struct node *gold, struct node *replica)
{
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    WAIT_UNTIL(node_is_done(receiver, get) || (node_progress_from(receiver, get, name_of(gold)) >= ENOUGH / 2 &&
                                               node_progress_from(receiver, get, name_of(replica)) >= ENOUGH / 2));
    assert_false(node_is_done(receiver, get));
    return get;
}

static void f02_source_killed_during_pull(void **state)
{
    struct node *gold, *replica, *receiver, *late;
    two_sources(*state, "lease=3000", &gold, &replica);
    receiver = start_node(*state, "receiver", "");
    late = start_node(*state, "late", "");

    unsigned get = pull_from_both(receiver, gold, replica);
    char dead[320];
    snprintf(dead, sizeof dead, "%s", name_of(gold));
    node_kill(gold);
    EXPECT_OK(node_call(replica, "pace"));
    json_t *reply = node_wait(receiver, get);
    EXPECT_OK(reply);
    EXPECT_CONTENT(receiver, "model", 1);
    assert_true(source_stat(reply, name_of(replica), "bytes") > 0);

    /* Before its lease is over, the dead one is merely a refused connection. */
    get_one(late, "model", SIZE, 1);
    WAIT_UNTIL(!is_source(late, "model", dead));
    assert_int_equal(source_count(late, "model"), 3);
    node_stop_all();
}

static void f02_idle_source_killed(void **state)
{
    struct node *gold, *replica, *receiver;
    two_sources(*state, "lease=3000", &gold, &replica);
    receiver = start_node(*state, "receiver", "");
    EXPECT_OK(node_call(gold, "pace"));
    char dead[320];
    snprintf(dead, sizeof dead, "%s", name_of(replica));
    node_kill(replica);

    json_t *reply = get_one(receiver, "model", SIZE, 1);
    assert_int_equal(source_stat(reply, dead, "bytes"), 0);
    WAIT_UNTIL(!is_source(receiver, "model", dead));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    get_one(receiver, "model", SIZE, 1);
    node_stop_all();
}

static void f02_last_source_killed(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=2000");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    node_kill(gold);
    json_t *reply = node_wait(receiver, get);
    EXPECT_STATUS(reply, "NO_SOURCE|PAYLOAD_NOT_FOUND");
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");

    /* The name is free again for a new seeder, at the latest when the lease is over. */
    struct node *heir = start_node(*state, "heir", "");
    EXPECT_OK(node_call(heir, "buf buf=model sizes=%llu seed=2", (unsigned long long)SIZE));
    EXPECT_OK(node_call(heir, "register payload=model buf=model force=1"));
    get_one(receiver, "model", SIZE, 2);
    node_stop_all();
}

/* A process that was killed comes back under its old name. */
static void f02_killed_node_returns(void **state)
{
    struct fixture *fixture = *state;
    struct node *gold = start_node(*state, "gold", "lease=2000");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(receiver, "model", SIZE, 1);
    char name[320];
    snprintf(name, sizeof name, "%s", name_of(gold));
    node_kill(gold);

    struct node *again = node_spawn("gold again", -1);
    WAIT_UNTIL(has_status(node_call(again, "create uri=%s name=%s lease=2000", fixture->uri, name), "OK"));
    EXPECT_OK(node_call(again, "buf buf=model sizes=%llu", (unsigned long long)SIZE));
    EXPECT_OK(node_call(again, "get payload=model buf=model"));
    EXPECT_CONTENT(again, "model", 1);
    WAIT_UNTIL(is_source(receiver, "model", name));
    node_stop_all();
}

static void f03_source_stopped_in_mid_shard(void **state)
{
    struct node *gold, *replica, *receiver, *late;
    two_sources(*state, "lease=60000", &gold, &replica);
    receiver = start_node(*state, "receiver", "stall=1500");
    late = start_node(*state, "late", "stall=1500");

    unsigned get = pull_from_both(receiver, gold, replica);
    stop_node(*state, gold);
    EXPECT_OK(node_call(replica, "pace"));
    json_t *reply = node_wait(receiver, get);
    EXPECT_OK(reply);
    EXPECT_CONTENT(receiver, "model", 1);
    assert_true(source_stat(reply, name_of(replica), "bytes") > 0);

    /* Still stopped: its kernel accepts connections that nobody answers. */
    get_one(late, "model", SIZE, 1);
    EXPECT_OK(node_call(late, "delete_replica payload=model"));

    /* Back again, and the only one left. */
    node_signal(gold, SIGCONT);
    EXPECT_OK(node_call(gold, "pace"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    EXPECT_OK(node_call(replica, "delete_replica payload=model"));
    reply = get_one(late, "model", SIZE, 1);
    assert_true(source_stat(reply, name_of(gold), "bytes") == (int64_t)SIZE);
    node_stop_all();
}

static void f03_only_source_stops_and_returns(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=60000");
    struct node *receiver = start_node(*state, "receiver", "stall=1000 connect=1000");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "timeout=20000");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    stop_node(*state, gold);
    json_t *reply = node_wait(receiver, get);
    EXPECT_STATUS(reply, "NO_SOURCE|TIMED_OUT");
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");
    node_signal(gold, SIGCONT);
    EXPECT_OK(node_call(gold, "pace"));
    get_one(receiver, "model", SIZE, 1);
    node_stop_all();
}

/* Whoever connects to gold gets to a proxy instead. */
static struct proxy *put_proxy_before(struct fixture *fixture, struct node *gold, enum proxy_mode mode)
{
    struct proxy *proxy = proxy_create(name_of(gold), mode);
    assert_true(meta_edit_replace_address(fixture->uri, name_of(gold), proxy_address(proxy)) > 0);
    return proxy;
}

static void f03_source_accepts_and_is_silent(void **state)
{
    struct node *gold, *replica;
    two_sources(*state, "lease=60000", &gold, &replica);
    struct node *receiver = start_node(*state, "receiver", "stall=1500 connect=1500");
    EXPECT_OK(node_call(replica, "pace"));
    struct proxy *proxy = put_proxy_before(*state, gold, PROXY_STALL);
    json_t *reply = get_one(receiver, "model", SIZE, 1);
    assert_int_equal(source_stat(reply, name_of(gold), "bytes"), 0);
    assert_true(proxy_connections(proxy) > 0);
    node_stop_all();
    proxy_destroy(proxy);
}

static void f03_source_is_cut_off_in_the_middle(void **state)
{
    struct node *gold, *replica;
    two_sources(*state, "lease=60000", &gold, &replica);
    struct node *receiver = start_node(*state, "receiver", "stall=1500 connect=1500");
    struct proxy *proxy = put_proxy_before(*state, gold, PROXY_FORWARD);
    unsigned get = pull_from_both(receiver, gold, replica);
    proxy_set_mode(proxy, PROXY_CUT);
    EXPECT_OK(node_call(replica, "pace"));
    json_t *reply = node_wait(receiver, get);
    EXPECT_OK(reply);
    EXPECT_CONTENT(receiver, "model", 1);
    assert_true(source_stat(reply, name_of(gold), "failures") > 0);
    node_stop_all();
    proxy_destroy(proxy);
}

/* One byte per packet is slow but progress: it must work, handshake included. */
static void f03_source_trickles(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "small", 20000, 3, "");
    struct proxy *proxy = put_proxy_before(*state, gold, PROXY_TRICKLE);
    get_one(receiver, "small", 20000, 3);
    node_stop_all();
    proxy_destroy(proxy);
}

/* One namespace. 10.99.2.2 is local until it is taken away: then packets to it go into a cable whose other end listens
 * to nobody, and there is no answer. */
static const char swallowing_net[] = "ip link add hole0 type veth peer name hole1\n"
                                     "ip addr add 10.99.2.1/24 dev hole0\n"
                                     "ip link set hole0 up\n"
                                     "ip link set hole1 up\n"
                                     "ip neigh add 10.99.2.2 lladdr 02:00:00:00:00:99 dev hole0 nud permanent\n"
                                     "ip addr add 10.99.2.2/32 dev lo\n"
                                     "ip addr add 10.99.3.1/32 dev lo\n";
static const char swallow[] = "ip addr del 10.99.2.2/32 dev lo";

static int need_netns(const char *script)
{
    int fd = netns_create(script);
    if (fd < 0)
        skip();
    return fd;
}

static void f04_address_swallows_packets(void **state)
{
    int netns = need_netns(swallowing_net);
    struct node *hidden = start_node_in(*state, "hidden", "name=10.99.2.2:0 lease=60000", netns);
    struct node *gold = start_node_in(*state, "gold", "name=10.99.3.1:0", netns);
    struct node *receiver = start_node_in(*state, "receiver", "name=10.99.3.1:0 connect=1500 stall=1500", netns);
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(hidden, "model", SIZE, 1);
    assert_int_equal(netns_run(netns, swallow), 0);
    assert_true(is_source(receiver, "model", name_of(hidden)));
    json_t *reply = get_one(receiver, "model", SIZE, 1);
    assert_int_equal(source_stat(reply, name_of(gold), "bytes"), SIZE);
    node_kill_all();
    close(netns);
}

static void f04_only_address_swallows_packets(void **state)
{
    int netns = need_netns(swallowing_net);
    struct node *hidden = start_node_in(*state, "hidden", "name=10.99.2.2:0 lease=60000", netns);
    struct node *receiver = start_node_in(*state, "receiver", "name=10.99.3.1:0 connect=1000 stall=1000", netns);
    seed_one(hidden, "model", SIZE, 1, PIECES);
    assert_int_equal(netns_run(netns, swallow), 0);
    json_t *reply = node_wait(receiver, begin_get_one(receiver, "model", SIZE, "timeout=8000"));
    EXPECT_STATUS(reply, "NO_SOURCE|TIMED_OUT");
    expect_nothing_left(receiver, "model", "model");
    node_kill_all();
    close(netns);
}

static void f04_cut_during_pull(void **state)
{
    int netns = need_netns(swallowing_net);
    struct node *gold = start_node_in(*state, "gold", "name=10.99.3.1:0", netns);
    struct node *hidden = start_node_in(*state, "hidden", "name=10.99.2.2:0 lease=60000", netns);
    struct node *receiver = start_node_in(*state, "receiver", "name=10.99.3.1:0 connect=1500 stall=1500", netns);
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(hidden, "model", SIZE, 1);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    EXPECT_OK(node_call(hidden, "pace " SLOW));
    unsigned get = pull_from_both(receiver, gold, hidden);
    assert_int_equal(netns_run(netns, swallow), 0);
    EXPECT_OK(node_call(gold, "pace"));
    EXPECT_OK(node_wait(receiver, get));
    EXPECT_CONTENT(receiver, "model", 1);
    node_kill_all();
    close(netns);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ITEST(f02_source_killed_during_pull),
        ITEST(f02_idle_source_killed),
        ITEST(f02_last_source_killed),
        ITEST(f02_killed_node_returns),
        ITEST(f03_source_stopped_in_mid_shard),
        ITEST(f03_only_source_stops_and_returns),
        ITEST(f03_source_accepts_and_is_silent),
        ITEST(f03_source_is_cut_off_in_the_middle),
        ITEST(f03_source_trickles),
        ITEST(f04_address_swallows_packets),
        ITEST(f04_only_address_swallows_packets),
        ITEST(f04_cut_during_pull),
    };
    if (!itest_begin(argc, argv))
        return 77;
    return cmocka_run_group_tests_name("sources", tests, NULL, NULL);
}
