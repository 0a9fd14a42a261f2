/* SPDX-License-Identifier: Apache-2.0 */
/* When news are told, under an explicit clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "swarm/news.h"

#define PIECE_BYTES (256u << 10)

/* Pieces arrive every interval_ms, with so many listeners; how often they are told in all. */
static unsigned tellings(uint32_t pieces, uint32_t listeners, bool is_urgent, int64_t interval_ms)
{
    struct swarm_news news = {0};
    unsigned count = 0;

    for (int64_t now = 0, next = 0; pieces || news.pending; now++) {
        if (pieces && now == next) {
            swarm_news_add(&news, PIECE_BYTES, listeners, is_urgent, now);
            next += interval_ms;
            pieces--;
        }
        if (news.pending && news.due_ms <= now) {
            swarm_news_told(&news, listeners);
            count++;
        }
    }
    return count;
}

static void few_listeners_hear_of_every_piece(void **state)
{
    struct swarm_news news = {0};

    (void)state;
    assert_int_equal(swarm_news_add(&news, PIECE_BYTES, 3, false, 70), 70);
    swarm_news_told(&news, 3);
    assert_int_equal(tellings(1000, 3, false, 5), 1000);
    assert_int_equal(tellings(1, 0, false, 5), 1); /* nobody to tell: no cost */
}

/* 200 bytes to each of 32 listeners per telling, of 256 KiB per piece: 0.5 % of them are 5 pieces' worth. */
static void the_cost_is_a_share_of_the_bytes(void **state)
{
    unsigned quick, slow;

    (void)state;
    quick = tellings(1000, 32, false, 1);
    slow = tellings(1000, 32, false, 15);
    assert_in_range(quick, 190, 210);
    assert_int_equal(slow, quick); /* whatever the speed of the links */
}

static void nobody_waits_for_ever(void **state)
{
    struct swarm_news news = {0};

    (void)state;
    assert_int_equal(swarm_news_add(&news, 512, 32, false, 1000), 1000 + NEWS_DELAY_MAX_MS);
    assert_int_equal(swarm_news_add(&news, 512, 32, false, 1050), 1000 + NEWS_DELAY_MAX_MS);
    for (unsigned i = 2; i < NEWS_BATCH_MAX - 1; i++)
        assert_int_equal(swarm_news_add(&news, 512, 32, false, 1060), 1000 + NEWS_DELAY_MAX_MS);
    assert_int_equal(swarm_news_add(&news, 512, 32, false, 1060), 1060); /* enough for one message */
}

static void rare_pieces_are_told_on_credit(void **state)
{
    struct swarm_news news = {0};
    unsigned told = 0;

    (void)state;
    while (swarm_news_add(&news, 512, 32, true, 1000) < 1000 + NEWS_DELAY_MAX_MS) {
        swarm_news_told(&news, 32);
        if (++told > 100)
            fail_msg("credit without end");
    }
    assert_in_range(told, 8, 10);
    /* The share holds in the long run. */
    assert_in_range(tellings(1000, 32, true, 5), 190, 220);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_listeners_hear_of_every_piece),
        cmocka_unit_test(the_cost_is_a_share_of_the_bytes),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(rare_pieces_are_told_on_credit),
    };
    return cmocka_run_group_tests_name("news", tests, NULL, NULL);
}
