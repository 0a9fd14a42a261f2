/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule under an explicit clock and seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "swarm/swarm.h"

#define PIECES 500u

static struct swarm *make(uint32_t pieces, uint64_t seed)
{
    struct swarm_config config = {
        .piece_count = pieces, .piece_bytes = 1 << 20, .window_max_bytes = 32 << 20, .stall_ms = 1000, .seed = seed};
    struct swarm *swarm;

    assert_int_equal(swarm_create(&config, &swarm), SHOAL_OK);
    return swarm;
}

/* The source answers every claim at once, with so many slots; their number. */
static uint32_t grant(struct swarm *swarm, uint32_t source, uint32_t slots)
{
    uint32_t claimed, wanted, outstanding, taken[PIECES];

    while (swarm_next_claim(swarm, 0, &claimed, &wanted, &outstanding)) {
        swarm_taken(swarm, claimed, taken, PIECES);
        if (claimed != source || !wanted) {
            assert_true(swarm_claimed(swarm, claimed, 0, NULL, 0));
            continue;
        }
        assert_true(swarm_claimed(swarm, source, slots < wanted ? slots : wanted, NULL, 0));
        return slots < wanted ? slots : wanted;
    }
    return 0;
}

static void nothing_is_asked_without_a_slot(void **state)
{
    struct swarm *swarm = make(PIECES, 1);
    uint32_t gold = swarm_source_add(swarm, true), source, piece, wanted, outstanding;

    (void)state;
    assert_false(swarm_next(swarm, 0, &source, &piece));
    assert_true(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding));
    assert_int_equal(source, gold);
    assert_int_equal(outstanding, 0);
    assert_true(wanted >= 2);
    assert_false(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding)); /* one claim at a time */
    assert_true(swarm_claimed(swarm, gold, 2, NULL, 0));
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_false(swarm_next(swarm, 0, &source, &piece));
    swarm_destroy(swarm);
}

static void one_source_gives_every_piece_once(void **state)
{
    struct swarm *swarm = make(PIECES, 1);
    uint32_t gold = swarm_source_add(swarm, true), source, piece;
    uint8_t seen[PIECES] = {0};

    (void)state;
    while (!swarm_is_complete(swarm)) {
        grant(swarm, gold, 3);
        while (swarm_next(swarm, 0, &source, &piece)) {
            assert_int_equal(source, gold);
            assert_int_equal(seen[piece]++, 0);
            swarm_done(swarm, source, piece, 0);
        }
    }
    assert_int_equal(swarm_done_count(swarm), PIECES);
    swarm_destroy(swarm);
}

static void a_choosing_source_decides(void **state)
{
    struct swarm *swarm = make(PIECES, 2);
    uint32_t gold = swarm_source_add(swarm, true), source, piece, wanted, outstanding, taken[8];
    static const uint32_t chosen[] = {41, 7};

    (void)state;
    swarm_have(swarm, 9);
    assert_true(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding));
    assert_int_equal(swarm_taken(swarm, gold, taken, 8), 1); /* it has to know what it need not give */
    assert_int_equal(taken[0], 9);
    assert_true(swarm_claimed(swarm, gold, 2, chosen, 2));
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(piece, 7);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(piece, 41);
    assert_int_equal(swarm_taken(swarm, gold, taken, 8), 0); /* what it gave itself it knows */
    swarm_failed(swarm, gold, 41);
    assert_true(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding));
    assert_int_equal(outstanding, 1);
    assert_false(swarm_claimed(swarm, gold, 1, &(uint32_t){PIECES}, 1)); /* no such piece */
    swarm_destroy(swarm);
}

/* A claim and the answer to it: whether it is believed. */
static bool is_believed(struct swarm *swarm, uint32_t source, uint32_t more_slots, uint32_t piece, uint32_t count)
{
    uint32_t claimed, wanted, outstanding, pieces[SWARM_CLAIM_MAX + 1];

    for (uint32_t i = 0; i < count; i++)
        pieces[i] = piece;
    assert_true(swarm_next_claim(swarm, 0, &claimed, &wanted, &outstanding));
    assert_int_equal(claimed, source);
    return swarm_claimed(swarm, source, wanted + more_slots, pieces, count);
}

static void nonsense_is_not_believed(void **state)
{
    (void)state;
    for (unsigned lie = 0; lie < 5; lie++) {
        struct swarm *swarm = make(PIECES, 5);
        uint32_t gold = swarm_source_add(swarm, true), source, piece;
        bool result = lie == 0   ? is_believed(swarm, gold, 0, 1, 2) /* no lie */
                      : lie == 1 ? is_believed(swarm, gold, 0, PIECES, 1)
                      : lie == 2 ? is_believed(swarm, gold, 0, 1, SWARM_CLAIM_MAX + 1)
                      : lie == 3 ? is_believed(swarm, gold, 1, 1, 1)
                                 : is_believed(swarm, gold, UINT32_MAX - SWARM_CLAIM_MAX, 1, 1);

        assert_int_equal(result, lie == 0);
        assert_int_equal(swarm_next(swarm, 0, &source, &piece), lie == 0);
        swarm_destroy(swarm);
    }
}

/* Also not if it says that we shall fetch them. */
static void a_source_is_not_asked_for_what_it_lacks(void **state)
{
    struct swarm *swarm = make(PIECES, 6);
    uint32_t partial = swarm_source_add(swarm, false), source, piece;

    (void)state;
    assert_true(swarm_source_has(swarm, partial, 3));
    assert_true(is_believed(swarm, partial, 0, 4, 2));
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(piece, 3);
    assert_false(swarm_next(swarm, 0, &source, &piece));
    swarm_destroy(swarm);
}

/* It is asked for no more than the window then, as any other. */
static void a_source_that_does_not_choose_is_not_asked_to(void **state)
{
    struct swarm *swarm = make(PIECES, 7);
    uint32_t gold = swarm_source_add(swarm, true), source, piece, taken[8];

    (void)state;
    assert_true(is_believed(swarm, gold, 0, 0, 0));
    while (swarm_next(swarm, 0, &source, &piece))
        ;
    swarm_have(swarm, piece == 9 ? 10 : 9);
    assert_int_equal(swarm_taken(swarm, gold, taken, 8), 0);
    swarm_destroy(swarm);
}

static void what_is_not_wanted_is_given_back(void **state)
{
    struct swarm *swarm = make(1, 3);
    uint32_t gold = swarm_source_add(swarm, true), source, piece, wanted, outstanding;

    (void)state;
    assert_true(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding));
    assert_true(swarm_claimed(swarm, gold, 2, NULL, 0)); /* one more than there are pieces */
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_false(swarm_next(swarm, 0, &source, &piece));
    assert_true(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding));
    assert_int_equal(wanted, 0);
    assert_int_equal(outstanding, 1);
    swarm_destroy(swarm);
}

static void a_growing_source_gives_what_it_has(void **state)
{
    struct swarm *swarm = make(PIECES, 3);
    uint32_t replica = swarm_source_add(swarm, false), source, piece, wanted, outstanding;

    (void)state;
    assert_false(swarm_next_claim(swarm, 0, &source, &wanted, &outstanding)); /* it has nothing that we lack */
    assert_true(swarm_source_has(swarm, replica, 7));
    assert_true(swarm_source_has(swarm, replica, 7)); /* told twice */
    assert_false(swarm_source_has(swarm, replica, PIECES));
    assert_int_equal(grant(swarm, replica, 2), 2);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(source, replica);
    assert_int_equal(piece, 7);
    assert_false(swarm_next(swarm, 0, &source, &piece));
    swarm_destroy(swarm);
}

static void the_rarest_comes_first(void **state)
{
    struct swarm *swarm = make(4, 3);
    uint32_t replica = swarm_source_add(swarm, false), other = swarm_source_add(swarm, false), source, piece;

    (void)state;
    for (piece = 0; piece < 4; piece++) {
        swarm_source_has(swarm, replica, piece);
        if (piece != 2)
            swarm_source_has(swarm, other, piece);
    }
    grant(swarm, replica, 1);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(piece, 2);
    swarm_destroy(swarm);
}

static void wrong_bytes_are_not_asked_for_again(void **state)
{
    struct swarm *swarm = make(1, 4);
    uint32_t liar = swarm_source_add(swarm, true), source, piece;

    (void)state;
    grant(swarm, liar, 1);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    swarm_failed(swarm, source, piece);
    swarm_source_lacks(swarm, source, piece);
    grant(swarm, liar, 1);
    assert_false(swarm_next(swarm, 0, &source, &piece));
    assert_false(swarm_has_candidates(swarm));
    swarm_destroy(swarm);
}

static void stalled_pieces_move_to_another_source(void **state)
{
    struct swarm *swarm = make(4, 5);
    uint32_t slow = swarm_source_add(swarm, true), other, source, piece, recalled = 0;

    (void)state;
    grant(swarm, slow, 4);
    while (swarm_next(swarm, 0, &source, &piece))
        ;
    assert_int_equal(swarm_in_flight_count(swarm), 4);
    assert_false(swarm_next_stalled(swarm, 5000, &source, &piece)); /* nobody else could serve them */
    other = swarm_source_add(swarm, true);
    assert_false(swarm_next_stalled(swarm, 3999, &source, &piece)); /* nothing has arrived yet: no measure, patience */
    while (swarm_next_stalled(swarm, 4000, &source, &piece)) {
        assert_int_equal(source, slow);
        recalled++;
        swarm_failed(swarm, source, piece);
    }
    assert_int_equal(recalled, 4);
    grant(swarm, other, 4);
    while (swarm_next(swarm, 4001, &source, &piece)) {
        assert_int_equal(source, other); /* the slow one is avoided */
        swarm_done(swarm, source, piece, 4001);
    }
    assert_true(swarm_is_complete(swarm));
    swarm_destroy(swarm);
}

static void slow_links_are_no_stall(void **state)
{
    struct swarm *swarm = make(8, 6);
    uint32_t first = swarm_source_add(swarm, true), second = swarm_source_add(swarm, true), source, piece;
    uint32_t at_first[4], count = 0;

    (void)state;
    grant(swarm, first, 4);
    while (swarm_next(swarm, 0, &source, &piece))
        at_first[count++] = piece;
    assert_int_equal(count, 4);
    assert_int_equal(grant(swarm, second, 2), 2);
    while (swarm_next(swarm, 0, &source, &piece))
        assert_int_equal(source, second);
    for (uint32_t i = 0; i < count; i++)
        swarm_done(swarm, first, at_first[i], 3000); /* pieces take 3 s here */
    assert_false(swarm_next_stalled(swarm, 11999, &source, &piece));
    assert_true(swarm_next_stalled(swarm, 12000, &source, &piece));
    assert_int_equal(source, second);
    swarm_destroy(swarm);
}

static void the_last_pieces_do_not_wait_for_a_slow_source(void **state)
{
    struct swarm *swarm = make(8, 7);
    uint32_t quick = swarm_source_add(swarm, true), slow = swarm_source_add(swarm, true), source, piece;

    (void)state;
    assert_int_equal(grant(swarm, slow, 1), 1);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(source, slow);
    for (unsigned i = 0; i < 6; i++) { /* 10 ms each */
        assert_int_equal(grant(swarm, quick, 1), 1);
        assert_true(swarm_next(swarm, i * 10, &source, &piece));
        swarm_done(swarm, quick, piece, i * 10 + 10);
    }
    assert_false(swarm_next_stalled(swarm, 100, &source, &piece)); /* something else is left to be asked for */
    grant(swarm, quick, 1);
    assert_true(swarm_next(swarm, 100, &source, &piece));
    swarm_done(swarm, quick, piece, 110);
    assert_true(swarm_next_stalled(swarm, 110, &source, &piece));
    assert_int_equal(source, slow);
    assert_false(swarm_next_stalled(swarm, 110, &source, &piece));
    swarm_destroy(swarm);
}

static void what_is_here_is_not_asked_for(void **state)
{
    struct swarm *swarm = make(4, 7);
    uint32_t gold = swarm_source_add(swarm, true), replica = swarm_source_add(swarm, false), source, piece;

    (void)state;
    assert_true(swarm_source_has(swarm, replica, 1)); /* told before */
    swarm_have(swarm, 1);
    swarm_have(swarm, 2);
    swarm_have(swarm, 2);
    swarm_have(swarm, 4);                             /* no such piece */
    assert_true(swarm_source_has(swarm, replica, 2)); /* and after */
    assert_int_equal(swarm_done_count(swarm), 2);
    assert_int_equal(swarm_missing_count(swarm), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(grant(swarm, gold, 1), 1);
        assert_true(swarm_next(swarm, 0, &source, &piece));
        assert_int_equal(source, gold);
        assert_true(piece == 0 || piece == 3);
        swarm_have(swarm, piece); /* on its way: the source's answer counts */
        assert_false(swarm_is_complete(swarm));
        swarm_done(swarm, source, piece, 0);
    }
    assert_true(swarm_is_complete(swarm));
    assert_false(swarm_next(swarm, 0, &source, &piece));
    swarm_destroy(swarm);
}

/* Sources come, go, lie and fail in random order; while one whole source is left at the end, the pull completes, and no
 * piece is ever asked of a source that does not offer it. */
static void any_course_of_events_ends_complete(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct random random;
        struct swarm *swarm = make(64, seed);
        uint32_t gold = swarm_source_add(swarm, true), source, piece, wanted, outstanding, taken[64];
        uint32_t flight_source[64], flight_piece[64], flights = 0;
        bool has[SWARM_SOURCES_MAX][64] = {{false}}, is_used[SWARM_SOURCES_MAX] = {false};

        random_init(&random, seed);
        for (int64_t now = 0; !swarm_is_complete(swarm); now++) {
            if (now > 100000)
                fail_msg("seed %llu: no end", (unsigned long long)seed);
            switch (random_below(&random, 7)) {
            case 0:
                source = swarm_source_add(swarm, false);
                if (source < 8) {
                    is_used[source] = true;
                    memset(has[source], 0, sizeof has[source]);
                } else {
                    swarm_source_remove(swarm, source);
                }
                break;
            case 1: {
                uint32_t victim = (uint32_t)random_below(&random, 8);
                if (!is_used[victim] || random_below(&random, 4))
                    break;
                for (uint32_t i = 0; i < flights; i++) {
                    if (flight_source[i] == victim) {
                        flight_source[i] = flight_source[--flights];
                        flight_piece[i] = flight_piece[flights];
                        i--;
                    }
                }
                swarm_source_remove(swarm, victim);
                is_used[victim] = false;
                break;
            }
            case 2:
                source = (uint32_t)random_below(&random, 8);
                piece = (uint32_t)random_below(&random, 64);
                if (is_used[source])
                    has[source][piece] = swarm_source_has(swarm, source, piece);
                break;
            case 3:
                if (!swarm_next_claim(swarm, now, &source, &wanted, &outstanding))
                    break;
                swarm_taken(swarm, source, taken, 64);
                piece = (uint32_t)random_below(&random, 64);
                wanted = (uint32_t)random_below(&random, wanted + 1);
                assert_true(swarm_claimed(swarm, source, wanted, &piece, source == gold && wanted));
                break;
            case 4:
                if (flights < 64 && swarm_next(swarm, now, &source, &piece)) {
                    assert_true(source == gold || has[source][piece]);
                    flight_source[flights] = source;
                    flight_piece[flights++] = piece;
                }
                break;
            default:
                if (!flights)
                    break;
                flights--;
                if (random_below(&random, 4)) {
                    swarm_done(swarm, flight_source[flights], flight_piece[flights], now);
                } else {
                    swarm_failed(swarm, flight_source[flights], flight_piece[flights]);
                    if (flight_source[flights] != gold) {
                        swarm_source_lacks(swarm, flight_source[flights], flight_piece[flights]);
                        has[flight_source[flights]][flight_piece[flights]] = false;
                    }
                }
            }
        }
        assert_int_equal(swarm_in_flight_count(swarm), 0);
        swarm_destroy(swarm);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_asked_without_a_slot),
        cmocka_unit_test(one_source_gives_every_piece_once),
        cmocka_unit_test(a_choosing_source_decides),
        cmocka_unit_test(nonsense_is_not_believed),
        cmocka_unit_test(a_source_is_not_asked_for_what_it_lacks),
        cmocka_unit_test(a_source_that_does_not_choose_is_not_asked_to),
        cmocka_unit_test(what_is_not_wanted_is_given_back),
        cmocka_unit_test(a_growing_source_gives_what_it_has),
        cmocka_unit_test(the_rarest_comes_first),
        cmocka_unit_test(wrong_bytes_are_not_asked_for_again),
        cmocka_unit_test(stalled_pieces_move_to_another_source),
        cmocka_unit_test(slow_links_are_no_stall),
        cmocka_unit_test(the_last_pieces_do_not_wait_for_a_slow_source),
        cmocka_unit_test(what_is_here_is_not_asked_for),
        cmocka_unit_test(any_course_of_events_ends_complete),
    };
    return cmocka_run_group_tests_name("swarm", tests, NULL, NULL);
}
