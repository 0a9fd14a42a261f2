/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that goes away right after its payload was withdrawn, and calls that are ended early: F9, F16. */
#include "itest.h"

#include <stdio.h>
#include <string.h>

/* Not scaled down: the first 10 segments of a connection (640 KiB on loopback) are not paced. */
#define SIZE (32 * MIB)
#define PIECES "piece=65536 shard=1048576"
#define ENOUGH (SIZE / 32)
#define RECEIVERS 3

struct nodes {
    struct node *gold, *replica, *receivers[RECEIVERS];
    unsigned gets[RECEIVERS];
};

/* Gold and replica have the payload; every receiver is in the middle of pulling it. */
static void in_the_middle(void **state, struct nodes *nodes, bool has_replica)
{
    nodes->gold = start_node(*state, "gold", "");
    nodes->replica = NULL;
    seed_one(nodes->gold, "model", SIZE, 1, PIECES);
    if (has_replica) {
        nodes->replica = start_node(*state, "replica", "");
        get_one(nodes->replica, "model", SIZE, 1);
        EXPECT_OK(node_call(nodes->replica, "pace " SLOW));
    }
    EXPECT_OK(node_call(nodes->gold, "pace " SLOW));
    for (size_t i = 0; i < RECEIVERS; i++)
        nodes->receivers[i] = start_node(*state, "receiver", "stall=3000");
    for (size_t i = 0; i < RECEIVERS; i++)
        nodes->gets[i] = begin_get_one(nodes->receivers[i], "model", SIZE, "");
    for (size_t i = 0; i < RECEIVERS; i++)
        assert_true(node_wait_progress(nodes->receivers[i], nodes->gets[i], ENOUGH));
}

static void all_complete(struct nodes *nodes)
{
    for (size_t i = 0; i < RECEIVERS; i++) {
        EXPECT_OK(node_wait(nodes->receivers[i], nodes->gets[i]));
        EXPECT_CONTENT(nodes->receivers[i], "model", 1);
    }
}

static void f09_gold_unmapped_after_unregister(void **state)
{
    struct nodes nodes;
    in_the_middle(state, &nodes, true);
    EXPECT_OK(node_call(nodes.gold, "unregister payload=model buf=model")); /* buf: unmap at once */
    EXPECT_OK(node_call(nodes.replica, "pace"));
    all_complete(&nodes);
    /* The withdrawn node is well and knows what it serves. */
    assert_int_equal(served_count(nodes.gold), 0);
    get_one(nodes.gold, "model", SIZE, 1);
    node_stop_all();
}

static void f09_replica_unmapped_after_delete(void **state)
{
    struct nodes nodes;
    in_the_middle(state, &nodes, true);
    EXPECT_OK(node_call(nodes.replica, "delete_replica payload=model buf=model"));
    EXPECT_OK(node_call(nodes.gold, "pace"));
    all_complete(&nodes);
    get_one(nodes.replica, "model", SIZE, 1);
    node_stop_all();
}

/* Nobody has the rest: the pulls fail cleanly, or complete if the receivers had all of it between them. */
static void f09_last_source_unmapped(void **state)
{
    struct nodes nodes;
    in_the_middle(state, &nodes, false);
    EXPECT_OK(node_call(nodes.gold, "unregister payload=model buf=model"));
    for (size_t i = 0; i < RECEIVERS; i++) {
        json_t *reply = node_wait(nodes.receivers[i], nodes.gets[i]);
        if (has_status(reply, "OK")) {
            EXPECT_CONTENT(nodes.receivers[i], "model", 1);
        } else {
            EXPECT_STATUS(reply, "NO_SOURCE|PAYLOAD_NOT_FOUND|REPLACED");
            expect_nothing_left(nodes.receivers[i], "model", "model");
        }
    }
    node_stop_all();
}

/* Receivers that have nothing yet and try again and again are no sources: they do not keep each other's hope alive. */
static void f09_nobody_keeps_a_dead_payload_alive(void **state)
{
    struct node *gold = start_node(*state, "gold", ""), *receivers[RECEIVERS];
    unsigned gets[RECEIVERS];
    size_t left = RECEIVERS;
    seed_one(gold, "model", 8 * MIB, 1, "piece=8388608");
    EXPECT_OK(node_call(gold, "pace rate=200000"));
    for (size_t i = 0; i < RECEIVERS; i++) {
        receivers[i] = start_node(*state, "receiver", "");
        gets[i] = begin_get_one(receivers[i], "model", 8 * MIB, "");
    }
    for (size_t i = 0; i < RECEIVERS; i++) /* connected */
        WAIT_UNTIL(metric_of(receivers[i], 0, "shoal_rpc_calls_total") >= 2);
    EXPECT_OK(node_call(gold, "unregister payload=model buf=model"));
    EXPECT_STATUS(node_call(gold, "stat payload=model"), "PAYLOAD_NOT_FOUND");
    for (int64_t deadline = deadline_after_ms(node_patience_ms()); left > 0; nap()) {
        assert_false(deadline_is_past(deadline));
        for (size_t i = 0; i < RECEIVERS; i++) {
            if (!gets[i] || !node_is_done(receivers[i], gets[i]))
                continue;
            json_t *reply = node_wait(receivers[i], gets[i]);
            EXPECT_STATUS(reply, "NO_SOURCE|PAYLOAD_NOT_FOUND");
            bool is_over = has_status(reply, "PAYLOAD_NOT_FOUND");
            gets[i] = is_over ? 0 : node_send(receivers[i], "get payload=model buf=model");
            left -= is_over;
        }
    }
    node_stop_all();
}

static void f09_unmapped_after_close(void **state)
{
    struct nodes nodes;
    in_the_middle(state, &nodes, true);
    EXPECT_OK(node_call(nodes.gold, "close"));
    EXPECT_OK(node_call(nodes.gold, "unmap buf=model"));
    EXPECT_OK(node_call(nodes.replica, "pace"));
    all_complete(&nodes);
    node_stop_all();
}

/* A receiver that serves what it has is canceled and unmaps: those who pull from it go on. */
static void f09_receiver_gives_up_while_serving(void **state)
{
    struct nodes nodes;
    in_the_middle(state, &nodes, false);
    struct node *quitter = start_node(*state, "quitter", "");
    EXPECT_OK(node_call(quitter, "buf buf=model sizes=%llu", (unsigned long long)SIZE));
    unsigned get = node_send(quitter, "get payload=model buf=model progress=20 then_unmap=1");
    assert_true(node_wait_progress(quitter, get, ENOUGH));
    EXPECT_OK(node_call(quitter, "cancel id=%u", get));
    EXPECT_STATUS(node_wait(quitter, get), "CANCELED");
    assert_int_equal(served_count(quitter), 0);
    EXPECT_OK(node_call(nodes.gold, "pace"));
    all_complete(&nodes);
    get_one(quitter, "model", SIZE, 1);
    node_stop_all();
}

/* An ended pull writes no more: its memory, filled anew, stays as it is while the payload is pulled elsewhere. */
static void expect_still(struct node *gold, struct node *receiver)
{
    EXPECT_OK(node_call(receiver, "fill buf=model seed=77"));
    EXPECT_OK(node_call(gold, "pace"));
    EXPECT_OK(node_call(receiver, "buf buf=second sizes=%llu", (unsigned long long)SIZE));
    EXPECT_OK(node_call(receiver, "get payload=model buf=second"));
    EXPECT_CONTENT(receiver, "second", 1);
    EXPECT_CONTENT(receiver, "model", 77);
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    EXPECT_OK(node_call(receiver, "get payload=model buf=model"));
    EXPECT_CONTENT(receiver, "model", 1);
}

static void f16_canceled_in_the_middle(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    EXPECT_OK(node_call(receiver, "cancel id=%u", get));
    json_t *reply = node_wait(receiver, get);
    EXPECT_STATUS(reply, "CANCELED");
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");
    expect_still(gold, receiver);
    node_stop_all();
}

static void f16_deadline_in_the_middle(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace rate=300000"));
    json_t *reply = node_wait(receiver, begin_get_one(receiver, "model", SIZE, "timeout=1500"));
    EXPECT_STATUS(reply, "TIMED_OUT");
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");
    expect_still(gold, receiver);
    node_stop_all();
}

/* A token that nobody triggers in time, a deadline of a millisecond, and cancellation at every stage. */
static void f16_canceled_at_any_time(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(receiver, "buf buf=model sizes=%llu", (unsigned long long)SIZE));
    for (int64_t delay_ms = 0; delay_ms < 24; delay_ms++) {
        unsigned get = node_send(receiver, "get payload=model buf=model");
        int64_t when = deadline_after_ms(delay_ms);
        while (!deadline_is_past(when) && !node_is_done(receiver, get))
            continue;
        node_call(receiver, "cancel id=%u", get); /* it may be done already */
        json_t *reply = node_wait(receiver, get);
        EXPECT_STATUS(reply, "CANCELED|OK");
        if (has_status(reply, "OK")) {
            EXPECT_CONTENT(receiver, "model", 1);
            EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
        }
        assert_int_equal(served_count(receiver), 0);
    }
    for (int timeout_ms = 1; timeout_ms < 8; timeout_ms++) {
        json_t *reply = node_call(receiver, "get payload=model buf=model timeout=%d", timeout_ms);
        EXPECT_STATUS(reply, "TIMED_OUT|OK");
        if (has_status(reply, "OK"))
            EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    }
    expect_nothing_left(receiver, "model", "model");
    EXPECT_OK(node_call(receiver, "get payload=model buf=model"));
    EXPECT_CONTENT(receiver, "model", 1);
    assert_int_equal(source_count(gold, "model"), 2);
    node_stop_all();
}

static void f16_register_canceled(void **state)
{
    struct node *gold = start_node(*state, "gold", "digest_threads=1");
    struct node *other = start_node(*state, "other", "");
    EXPECT_OK(node_call(gold, "buf buf=model sizes=%llu seed=1", (unsigned long long)scaled(256 * MIB)));
    for (int timeout_ms = 1; timeout_ms < 6; timeout_ms++) {
        json_t *reply = node_call(gold, "register payload=model buf=model timeout=%d", timeout_ms);
        EXPECT_STATUS(reply, "TIMED_OUT|OK");
        if (has_status(reply, "OK"))
            EXPECT_OK(node_call(gold, "unregister payload=model"));
        unsigned again = node_send(gold, "register payload=model buf=model");
        node_call(gold, "cancel id=%u", again);
        reply = node_wait(gold, again);
        EXPECT_STATUS(reply, "CANCELED|OK");
        if (has_status(reply, "OK"))
            EXPECT_OK(node_call(gold, "unregister payload=model"));
        expect_nothing_left(gold, "model", "model");
        assert_false(is_listed(other, "model"));
    }
    EXPECT_OK(node_call(gold, "register payload=model buf=model"));
    assert_true(is_listed(other, "model"));
    node_stop_all();
}

/* close ends what runs; the memory may be unmapped when it has returned. */
static void f16_close_during_get(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    EXPECT_OK(node_call(receiver, "close"));
    EXPECT_STATUS(node_wait(receiver, get), "CANCELED|CLOSED");
    EXPECT_OK(node_call(receiver, "unmap buf=model"));
    assert_int_equal(source_count(gold, "model"), 1);
    node_stop_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ITEST(f09_gold_unmapped_after_unregister),
        ITEST(f09_replica_unmapped_after_delete),
        ITEST(f09_last_source_unmapped),
        ITEST(f09_nobody_keeps_a_dead_payload_alive),
        ITEST(f09_unmapped_after_close),
        ITEST(f09_receiver_gives_up_while_serving),
        ITEST(f16_canceled_in_the_middle),
        ITEST(f16_deadline_in_the_middle),
        ITEST(f16_canceled_at_any_time),
        ITEST(f16_register_canceled),
        ITEST(f16_close_during_get),
    };
    if (!itest_begin(argc, argv))
        return 77;
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
