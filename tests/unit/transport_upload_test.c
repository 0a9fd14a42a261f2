/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "transport/upload.h"

#define TURNS 8

static struct upload_scheduler scheduler;
static struct upload_group group;
static struct upload_turn turns[TURNS];
static unsigned posts;

static void post(void *arg)
{
    assert_ptr_equal(arg, &posts);
    posts++;
}

static void start(unsigned slots)
{
    posts = 0;
    upload_init(&scheduler, slots);
    upload_group_init(&group, post, &posts);
    for (unsigned i = 0; i < TURNS; i++)
        upload_turn_init(&turns[i], &group);
}

static void finish(void)
{
    for (unsigned i = 0; i < TURNS; i++)
        upload_leave(&scheduler, &turns[i], 0);
    assert_int_equal(scheduler.used, 0);
    while (upload_take_granted(&scheduler, &group)) {
    }
    upload_release(&scheduler);
}

static bool wants(unsigned i, int64_t now_ms)
{
    return upload_wants(&scheduler, &turns[i], now_ms);
}

static bool sent(unsigned i, bool wants_more, int64_t now_ms)
{
    return upload_sent(&scheduler, &turns[i], wants_more, now_ms);
}

/* Whose turn was granted; -1: nobody's. */
static int granted(void)
{
    struct upload_turn *turn = upload_take_granted(&scheduler, &group);

    return turn ? (int)(turn - turns) : -1;
}

static void test_slots_and_order(void **state)
{
    (void)state;
    start(2);
    assert_true(wants(0, 0));
    assert_true(wants(1, 0));
    assert_true(wants(0, 0)); /* has one */
    for (unsigned i = 2; i < 6; i++) {
        assert_false(wants(i, 0));
        assert_false(wants(i, 0));
        assert_true(upload_is_waiting(&scheduler, &turns[i]));
    }
    assert_int_equal(granted(), -1);
    /* One body is a turn: who wants to send another queues up behind those who wait. */
    assert_false(sent(0, true, 1));
    assert_int_equal(granted(), 2);
    assert_false(sent(1, false, 2));
    assert_int_equal(granted(), 3);
    assert_int_equal(granted(), -1);
    assert_false(sent(2, true, 3));
    assert_false(sent(3, true, 3));
    assert_int_equal(granted(), 4);
    assert_int_equal(granted(), 5);
    assert_false(sent(4, false, 4));
    assert_int_equal(granted(), 0);
    assert_false(sent(5, false, 4));
    assert_int_equal(granted(), 2);
    assert_false(sent(0, false, 5));
    assert_int_equal(granted(), 3);
    /* Alone it keeps the slot. */
    assert_true(sent(2, true, 6));
    assert_true(sent(2, true, 7));
    finish();
}

/* One call wakes the thread, however many grants it finds, until it has seen that there are no more. */
static void test_posts(void **state)
{
    (void)state;
    start(1);
    wants(0, 0);
    wants(1, 0);
    wants(2, 0);
    sent(0, false, 1);
    assert_int_equal(posts, 1);
    upload_leave(&scheduler, &turns[1], 1); /* its connection ended before the thread looked */
    assert_int_equal(posts, 1);
    assert_int_equal(granted(), 2);
    assert_int_equal(granted(), -1);
    wants(3, 1);
    sent(2, false, 2);
    assert_int_equal(posts, 2);
    assert_int_equal(granted(), 3);
    finish();
}

static void test_no_starvation(void **state)
{
    unsigned bodies[TURNS] = {0};

    (void)state;
    start(3);
    for (unsigned i = 0; i < TURNS; i++)
        wants(i, 0);
    for (int64_t now_ms = 0; now_ms < 8000; now_ms++) {
        unsigned i = (unsigned)(now_ms % TURNS);

        if (!wants(i, now_ms))
            continue;
        bodies[i]++;
        sent(i, true, now_ms);
        assert_true(scheduler.used <= 3);
    }
    for (unsigned i = 0; i < TURNS; i++)
        assert_in_range(bodies[i], bodies[0] - 2, bodies[0] + 2);
    finish();
}

static void test_stalled_peer_lends_its_slot(void **state)
{
    (void)state;
    start(1);
    assert_true(wants(0, 1000));
    assert_false(wants(1, 1000));
    assert_false(wants(2, 1000));
    assert_true(upload_moved(&scheduler, &turns[0], 1100));
    assert_true(upload_lend_stalled(&scheduler, 1100 + UPLOAD_STALL_MS - 1));
    assert_int_equal(granted(), -1);
    assert_true(upload_lend_stalled(&scheduler, 1100 + UPLOAD_STALL_MS));
    assert_int_equal(granted(), 1);
    assert_true(wants(0, 1400)); /* its turn goes on */
    assert_int_equal(scheduler.used, 1);

    /* It moves: both send until a turn ends, the third waits. */
    assert_true(upload_moved(&scheduler, &turns[0], 1400));
    assert_int_equal(scheduler.used, 2);
    sent(1, false, 1401);
    assert_int_equal(granted(), -1);
    assert_false(sent(0, true, 1402));
    assert_int_equal(granted(), 2);
    assert_int_equal(scheduler.used, 1);

    /* A peer that is dead for good goes without taking a slot along. */
    assert_false(upload_lend_stalled(&scheduler, 1402 + UPLOAD_STALL_MS));
    assert_int_equal(granted(), 0);
    upload_leave(&scheduler, &turns[2], 1700);
    assert_int_equal(scheduler.used, 1);
    finish();
}

static void test_nobody_waits_nobody_lends(void **state)
{
    (void)state;
    start(1);
    wants(0, 0);
    assert_false(upload_lend_stalled(&scheduler, 100000));
    assert_int_equal(scheduler.used, 1);
    assert_true(upload_moved(&scheduler, &turns[0], 200000)); /* a long body goes on */
    finish();
}

static void test_long_turn_ends(void **state)
{
    (void)state;
    start(1);
    wants(0, 0);
    wants(1, 0);
    assert_true(upload_moved(&scheduler, &turns[0], UPLOAD_TURN_MS - 1));
    assert_int_equal(granted(), -1);
    assert_false(upload_moved(&scheduler, &turns[0], UPLOAD_TURN_MS));
    assert_int_equal(granted(), 1);
    assert_false(wants(0, UPLOAD_TURN_MS));
    assert_true(upload_moved(&scheduler, &turns[0], UPLOAD_TURN_MS)); /* a trickle is no turn */
    assert_true(upload_is_waiting(&scheduler, &turns[0]));
    assert_false(sent(0, true, UPLOAD_TURN_MS)); /* not even if it completed the body */
    sent(1, false, UPLOAD_TURN_MS + 1);
    assert_int_equal(granted(), 0);
    finish();
}

/* Whoever waits for the node's own rate limit has not stalled. */
static void test_excuse(void **state)
{
    (void)state;
    start(1);
    wants(0, 0);
    wants(1, 0);
    upload_excuse(&scheduler, &turns[0], 5000);
    assert_true(upload_lend_stalled(&scheduler, 5000));
    assert_int_equal(granted(), -1);
    upload_lend_stalled(&scheduler, 5000 + UPLOAD_STALL_MS);
    assert_int_equal(granted(), 1);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_and_order),
        cmocka_unit_test(test_posts),
        cmocka_unit_test(test_no_starvation),
        cmocka_unit_test(test_stalled_peer_lends_its_slot),
        cmocka_unit_test(test_nobody_waits_nobody_lends),
        cmocka_unit_test(test_long_turn_ends),
        cmocka_unit_test(test_excuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
