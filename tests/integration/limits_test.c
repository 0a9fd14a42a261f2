/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limits and upload slots between real processes: what they promise is that they hold and that nobody is taken for
 * dead because of them. The rates themselves are tested with a clock in unit-transport_rate. */
#include "itest.h"

#include <signal.h>

#define KIB 1024ull

static double throttled_ms(struct node *node, const char *direction)
{
    char name[96];
    snprintf(name, sizeof name, "shoal_transport_tcp_throttled_ms_total{direction=\"%s\"}", direction);
    return metric_of(node, 0, name);
}

static void expect_no_failures(json_t *reply)
{
    size_t i;
    json_t *source;
    EXPECT_OK(reply);
    json_array_foreach(json_object_get(reply, "sources"), i, source)
    {
        assert_int_equal(json_integer_value(json_object_get(source, "failures")), 0);
        assert_int_equal(json_integer_value(json_object_get(source, "bad")), 0);
    }
}

/* The slowest rate, one slot and three receivers: each of them waits for several times the progress deadline until a
 * piece is complete, and sees all the time that its source is alive. */
static void slow_source_is_not_taken_for_dead(void **state)
{
    struct node *gold = start_node(*state, "gold", "stall=2500 upload=65536 slots=1"), *receivers[3];
    unsigned gets[3];
    seed_one(gold, "model", 160 * KIB, 1, "piece=163840");
    for (size_t i = 0; i < 3; i++)
        receivers[i] = start_node(*state, "receiver", "stall=2500");
    for (size_t i = 0; i < 3; i++)
        gets[i] = begin_get_one(receivers[i], "model", 160 * KIB, "no_share=1");
    for (size_t i = 0; i < 3; i++) {
        expect_no_failures(node_wait(receivers[i], gets[i]));
        EXPECT_CONTENT(receivers[i], "model", 1);
    }
    assert_true(throttled_ms(gold, "upload") > 0);
    assert_true(metric_of(gold, 0, "shoal_transport_tcp_upload_slot_waits_total") > 0);
    assert_true(metric_of(gold, 0, "shoal_transport_tcp_serve_stalls_total") == 0);
    node_stop_all();
}

/* A receiver that limits itself does not lose its sources, nor they it. */
static void slow_receiver_is_not_taken_for_dead(void **state)
{
    uint64_t size = 256 * KIB;
    struct node *gold = start_node(*state, "gold", "stall=2500"),
                *replica = start_node(*state, "replica", "stall=2500");
    struct node *receiver = start_node(*state, "receiver", "stall=2500 download=65536");
    seed_one(gold, "model", size, 1, "piece=65536");
    get_one(replica, "model", size, 1);
    expect_no_failures(get_one(receiver, "model", size, 1));
    assert_true(throttled_ms(receiver, "download") > 0);
    assert_true(metric_of(gold, 0, "shoal_transport_tcp_serve_stalls_total") == 0);
    assert_true(metric_of(replica, 0, "shoal_transport_tcp_serve_stalls_total") == 0);
    node_stop_all();
}

/* A receiver that stopped reading holds the only slot. */
static void stopped_receiver_keeps_nobody_waiting(void **state)
{
    uint64_t size = 32 * MIB;
    struct node *gold = start_node(*state, "gold", "slots=1"), *other = start_node(*state, "other", "");
    struct node *stopped = start_node(*state, "stopped", "download=1000000");
    seed_one(gold, "model", size, 1, "piece=8388608");
    /* A limited receiver asks for more than the kernel's buffers hold, so the source is stuck with it. */
    begin_get_one(stopped, "model", size, "no_share=1");
    WAIT_UNTIL(throttled_ms(stopped, "download") > 0);
    stop_node(*state, stopped);
    expect_no_failures(get_one(other, "model", size, 1));
    assert_true(metric_of(gold, 0, "shoal_transport_tcp_upload_slots_lent_total") >= 1);
    node_kill(stopped);
    node_stop_all();
}

/* With one slot for many, all of them get everything, from nobody else. */
static void receivers_take_turns(void **state)
{
    enum { RECEIVERS = 5 };
    uint64_t size = scaled(8 * MIB);
    struct node *gold = start_node(*state, "gold", "slots=1"), *receivers[RECEIVERS];
    unsigned gets[RECEIVERS];
    seed_one(gold, "model", size, 1, "piece=131072");
    for (size_t i = 0; i < RECEIVERS; i++)
        receivers[i] = start_node(*state, "receiver", "");
    for (size_t i = 0; i < RECEIVERS; i++)
        gets[i] = begin_get_one(receivers[i], "model", size, "no_share=1");
    for (size_t i = 0; i < RECEIVERS; i++) {
        json_t *reply = node_wait(receivers[i], gets[i]);
        expect_no_failures(reply);
        EXPECT_CONTENT(receivers[i], "model", 1);
        assert_int_equal(source_stat(reply, name_of(gold), "bytes"), size);
    }
    node_stop_all();
}

/* Small READs (this index, and pieces of 64 KiB) never wait for a slot. */
static void small_reads_pass_by(void **state)
{
    uint64_t size = 32 * MIB;
    struct node *gold = start_node(*state, "gold", "slots=1"), *other = start_node(*state, "other", "");
    struct node *busy = start_node(*state, "busy", "download=1000000");
    seed_one(gold, "large", size, 1, "piece=8388608");
    seed_one(gold, "small", 640 * KIB, 2, "piece=65536");
    begin_get_one(busy, "large", size, "no_share=1");
    WAIT_UNTIL(throttled_ms(busy, "download") > 0);
    get_one(other, "small", 640 * KIB, 2);
    assert_true(metric_of(gold, 0, "shoal_transport_tcp_upload_slot_waits_total") == 0);
    node_kill(busy);
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(slow_source_is_not_taken_for_dead),
        ITEST(slow_receiver_is_not_taken_for_dead),
        ITEST(stopped_receiver_keeps_nobody_waiting),
        ITEST(receivers_take_turns),
        ITEST(small_reads_pass_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
