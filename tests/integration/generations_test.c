/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads that are replaced, sources whose memory is wrong, and who may withdraw what: F13, F14, F15. */
#include "itest.h"

#include <stdio.h>
#include <string.h>

#include "meta_edit.h"
#include "proxy.h"

/* Not scaled down: the first 10 segments of a connection (640 KiB on loopback) are not paced. */
#define SIZE (32 * MIB)
#define PIECES "piece=65536 shard=1048576"
#define ENOUGH (SIZE / 32)

/* A pull that saw a change of generation: one of them whole, or REPLACED and nothing left. is_gap: there was a moment
 * without any payload of the name. */
static void expect_one_generation(struct node *receiver, json_t *reply, bool is_gap)
{
    if (has_status(reply, "OK")) {
        if (find_difference(receiver, "model", 1) >= 0) {
            EXPECT_CONTENT(receiver, "model", 2);
            assert_true(is_source(receiver, "model", name_of(receiver)));
        } /* else the old one, whole: nobody is told of it any more */
        return;
    }
    EXPECT_STATUS(reply, is_gap ? "REPLACED|PAYLOAD_NOT_FOUND|NO_SOURCE" : "REPLACED");
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");
}

static void f13_registered_again_at_the_same_address(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    struct node *late = start_node(*state, "late", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    EXPECT_OK(node_call(gold, "fill buf=model seed=2"));
    /* The receiver may have joined as a source: then the name still exists. */
    EXPECT_OK(node_call(gold, "register payload=model buf=model force=1 " PIECES));
    EXPECT_OK(node_call(gold, "pace"));
    expect_one_generation(receiver, node_wait(receiver, get), true);
    get_one(late, "model", SIZE, 2);
    node_stop_all();
}

static void f13_replaced_by_another_node(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *other = start_node(*state, "other", "");
    struct node *receiver = start_node(*state, "receiver", "");
    struct node *late = start_node(*state, "late", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    EXPECT_STATUS(seed_payload(other, "model", "1000", 2, ""), "EXISTS");
    seed_one(other, "model", SIZE, 2, "force=1 " PIECES);
    EXPECT_OK(node_call(gold, "pace"));
    expect_one_generation(receiver, node_wait(receiver, get), false);
    get_one(late, "model", SIZE, 2);
    assert_false(is_source(late, "model", name_of(gold)));
    /* The replaced node lets go of its own without harm to the new one. */
    EXPECT_STATUS(node_call(gold, "unregister payload=model"), "OK|PAYLOAD_NOT_OPENED");
    assert_true(is_source(late, "model", name_of(other)));
    EXPECT_OK(node_call(gold, "register payload=unrelated buf=model"));
    node_stop_all();
}

/* Replaced again and again while several pull: whoever gets OK has one generation. */
static void f13_replaced_many_times(void **state)
{
    struct node *gold = start_node(*state, "gold", ""), *receivers[3];
    EXPECT_OK(node_call(gold, "buf buf=odd sizes=%llu seed=1", (unsigned long long)SIZE / 4));
    EXPECT_OK(node_call(gold, "buf buf=even sizes=%llu seed=2", (unsigned long long)SIZE / 4));
    EXPECT_OK(node_call(gold, "register payload=model buf=odd piece=65536"));
    for (size_t i = 0; i < 3; i++) {
        receivers[i] = start_node(*state, "receiver", "");
        EXPECT_OK(node_call(receivers[i], "buf buf=model sizes=%llu", (unsigned long long)SIZE / 4));
    }
    for (int round = 0; round < 8; round++) {
        unsigned gets[3];
        for (size_t i = 0; i < 3; i++)
            gets[i] = node_send(receivers[i], "get payload=model buf=model");
        EXPECT_OK(node_call(gold, "unregister payload=model"));
        EXPECT_OK(node_call(gold, "register payload=model buf=%s piece=65536 force=1", round % 2 ? "odd" : "even"));
        for (size_t i = 0; i < 3; i++) {
            json_t *reply = node_wait(receivers[i], gets[i]);
            if (has_status(reply, "OK")) {
                assert_true(find_difference(receivers[i], "model", 1) < 0 ||
                            find_difference(receivers[i], "model", 2) < 0);
                EXPECT_STATUS(node_call(receivers[i], "delete_replica payload=model"), "OK|PAYLOAD_NOT_OPENED");
            } else {
                EXPECT_STATUS(reply, "REPLACED|PAYLOAD_NOT_FOUND|NO_SOURCE");
            }
            assert_int_equal(served_count(receivers[i]), 0);
        }
    }
    node_stop_all();
}

static void f13_generation_asked_for(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", 100000, 1, "");
    unsigned long long old = (unsigned long long)json_integer_value(
        json_object_get(json_object_get(node_call(receiver, "stat payload=model"), "info"), "generation"));
    assert_int_not_equal(old, 0);
    EXPECT_OK(node_call(receiver, "buf buf=model sizes=100000"));
    EXPECT_OK(node_call(receiver, "get payload=model buf=model generation=%llu", old));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    EXPECT_OK(node_call(gold, "register payload=model buf=model"));
    EXPECT_STATUS(node_call(receiver, "get payload=model buf=model generation=%llu", old), "REPLACED");
    EXPECT_STATUS(node_call(receiver, "index payload=model generation=%llu", old), "REPLACED");
    expect_nothing_left(receiver, "model", "model");
    node_stop_all();
}

static void f14_wrong_source_is_left_for_a_right_one(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(replica, "model", SIZE, 1);
    EXPECT_OK(node_call(gold, "corrupt buf=model offset=5 every=65536"));
    /* Slow, so that the wrong one is asked too. */
    EXPECT_OK(node_call(replica, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, ENOUGH));
    EXPECT_OK(node_call(replica, "pace"));
    json_t *reply = node_wait(receiver, get);
    EXPECT_OK(reply);
    EXPECT_CONTENT(receiver, "model", 1);
    assert_true(source_stat(reply, name_of(gold), "bad") > 0);
    assert_int_equal(source_stat(reply, name_of(gold), "bytes"), 0);
    assert_int_equal(source_stat(reply, name_of(replica), "bad"), 0);
    assert_int_equal(source_stat(reply, name_of(replica), "failures"), 0);
    node_stop_all();
}

/* One wrong byte in the last piece of an otherwise good source. */
static void f14_one_wrong_byte(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(replica, "model", SIZE, 1);
    EXPECT_OK(node_call(gold, "corrupt buf=model offset=%llu", (unsigned long long)SIZE - 1));
    get_one(receiver, "model", SIZE, 1);
    node_stop_all();
}

static void f14_no_right_source(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, PIECES);
    EXPECT_OK(node_call(gold, "corrupt buf=model offset=%llu", (unsigned long long)SIZE / 2));
    json_t *reply = node_wait(receiver, begin_get_one(receiver, "model", SIZE, ""));
    EXPECT_STATUS(reply, "CORRUPTED");
    EXPECT_MESSAGE(reply, name_of(gold));
    EXPECT_MESSAGE(reply, "model");
    expect_nothing_left(receiver, "model", "model");

    /* Without verification the caller gets what the source has. */
    EXPECT_OK(node_call(receiver, "get payload=model buf=model no_verify=1 no_share=1"));
    assert_int_equal(find_difference(receiver, "model", 1), SIZE / 2);
    assert_int_equal(served_count(receiver), 0);

    /* The seeder puts it right. */
    EXPECT_OK(node_call(gold, "corrupt buf=model offset=%llu", (unsigned long long)SIZE / 2));
    get_one(receiver, "model", SIZE, 1);
    node_stop_all();
}

/* The network changes bytes: the same as a source that lies. */
static void f14_bytes_change_on_the_way(void **state)
{
    struct fixture *fixture = *state;
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    struct node *receiver = start_node(*state, "receiver", "stall=3000");
    seed_one(gold, "model", SIZE, 1, PIECES);
    get_one(replica, "model", SIZE, 1);
    struct proxy *proxy = proxy_create(name_of(gold), PROXY_CORRUPT);
    assert_true(meta_edit_replace_address(fixture->uri, name_of(gold), proxy_address(proxy)) > 0);
    get_one(receiver, "model", SIZE, 1);
    node_stop_all();
    proxy_destroy(proxy);
}

static void f15_wrong_verb_changes_nothing(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    struct node *third = start_node(*state, "third", "");
    seed_one(gold, "model", 300000, 1, "");
    get_one(replica, "model", 300000, 1);
    json_t *reply = node_call(replica, "unregister payload=model");
    EXPECT_STATUS(reply, "PAYLOAD_NOT_OPENED");
    EXPECT_MESSAGE(reply, "model");
    EXPECT_STATUS(node_call(gold, "delete_replica payload=model"), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(third, "unregister payload=model"), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(third, "delete_replica payload=model"), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(third, "delete_replica payload=no-such"), "PAYLOAD_NOT_OPENED");
    assert_true(is_source(third, "model", name_of(gold)));
    assert_true(is_source(third, "model", name_of(replica)));
    get_one(third, "model", 300000, 1);
    assert_int_equal(source_count(third, "model"), 3);
    node_stop_all();
}

static void f15_last_one_out_deletes(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    struct node *third = start_node(*state, "third", "");
    seed_one(gold, "model", 300000, 1, "");
    get_one(replica, "model", 300000, 1);
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    EXPECT_STATUS(node_call(gold, "unregister payload=model"), "PAYLOAD_NOT_OPENED");
    assert_int_equal(source_count(third, "model"), 1);
    get_one(third, "model", 300000, 1);
    EXPECT_OK(node_call(replica, "delete_replica payload=model"));
    EXPECT_OK(node_call(third, "delete_replica payload=model"));
    EXPECT_STATUS(node_call(third, "stat payload=model"), "PAYLOAD_NOT_FOUND");
    EXPECT_STATUS(node_call(third, "get payload=model buf=model"), "PAYLOAD_NOT_FOUND");
    EXPECT_STATUS(node_call(third, "index payload=model"), "PAYLOAD_NOT_FOUND");
    assert_false(is_listed(third, "model"));
    /* The same by close and by the end of the process. */
    EXPECT_OK(node_call(gold, "register payload=model buf=model"));
    get_one(third, "model", 300000, 1);
    node_stop(gold);
    assert_int_equal(source_count(third, "model"), 1);
    EXPECT_OK(node_call(third, "close"));
    assert_false(is_listed(replica, "model"));
    node_stop_all();
}

static void opened_twice(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *replica = start_node(*state, "replica", "");
    seed_one(gold, "model", 300000, 1, "");
    EXPECT_STATUS(node_call(gold, "register payload=model buf=model"), "PAYLOAD_OPENED");
    EXPECT_STATUS(node_call(gold, "register payload=model buf=model force=1"), "OK|PAYLOAD_OPENED");
    EXPECT_OK(node_call(gold, "buf buf=other sizes=300000"));
    EXPECT_STATUS(node_call(gold, "get payload=model buf=other"), "PAYLOAD_OPENED");
    get_one(replica, "model", 300000, 1);
    EXPECT_OK(node_call(replica, "buf buf=other sizes=300000"));
    EXPECT_STATUS(node_call(replica, "get payload=model buf=other"), "PAYLOAD_OPENED");
    EXPECT_STATUS(node_call(replica, "register payload=model buf=other"), "PAYLOAD_OPENED");
    assert_int_equal(source_count(replica, "model"), 2);
    node_stop_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ITEST(f13_registered_again_at_the_same_address),
        ITEST(f13_replaced_by_another_node),
        ITEST(f13_replaced_many_times),
        ITEST(f13_generation_asked_for),
        ITEST(f14_wrong_source_is_left_for_a_right_one),
        ITEST(f14_one_wrong_byte),
        ITEST(f14_no_right_source),
        ITEST(f14_bytes_change_on_the_way),
        ITEST(f15_wrong_verb_changes_nothing),
        ITEST(f15_last_one_out_deletes),
        ITEST(opened_twice),
    };
    if (!itest_begin(argc, argv))
        return 77;
    return cmocka_run_group_tests_name("generations", tests, NULL, NULL);
}
