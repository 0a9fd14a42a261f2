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
        .piece_count = pieces, .piece_bytes = 1 << 20, .window_bytes = 4 << 20, .stall_ms = 1000, .seed = seed};
    struct swarm *swarm;

    assert_int_equal(swarm_create(&config, &swarm), SHOAL_OK);
    return swarm;
}

static void one_source_gives_every_piece_once(void **state)
{
    struct swarm *swarm = make(PIECES, 1);
    uint32_t gold = swarm_source_add(swarm, true), source, piece;
    uint8_t seen[PIECES] = {0};

    (void)state;
    assert_false(swarm_next(swarm, 0, &source, &piece)); /* nothing is offered yet */
    swarm_source_has_all(swarm, gold);
    while (!swarm_is_complete(swarm)) {
        assert_true(swarm_next(swarm, 0, &source, &piece));
        assert_int_equal(source, gold);
        assert_int_equal(seen[piece]++, 0);
        swarm_done(swarm, source, piece, 0);
    }
    assert_false(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(swarm_done_count(swarm), PIECES);
    swarm_destroy(swarm);
}

static void window_bounds_what_is_in_flight(void **state)
{
    struct swarm *swarm = make(PIECES, 2);
    uint32_t gold = swarm_source_add(swarm, true), source, piece, count = 0;

    (void)state;
    swarm_source_has_all(swarm, gold);
    while (swarm_next(swarm, 0, &source, &piece))
        count++;
    assert_int_equal(count, 4); /* 4 MiB of 1 MiB pieces */
    swarm_failed(swarm, source, piece);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(swarm_missing_count(swarm), PIECES - 4);
    swarm_destroy(swarm);
}

static void replicas_are_asked_before_gold(void **state)
{
    struct swarm *swarm = make(PIECES, 3);
    uint32_t gold = swarm_source_add(swarm, true), replica = swarm_source_add(swarm, false), source, piece;

    (void)state;
    swarm_source_has_all(swarm, gold);
    assert_true(swarm_source_has(swarm, replica, 7));
    assert_true(swarm_source_has(swarm, replica, 7)); /* told twice */
    assert_false(swarm_source_has(swarm, replica, PIECES));
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(source, replica);
    assert_int_equal(piece, 7);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    assert_int_equal(source, gold);
    swarm_destroy(swarm);
}

static void wrong_bytes_are_not_asked_for_again(void **state)
{
    struct swarm *swarm = make(1, 4);
    uint32_t liar = swarm_source_add(swarm, true), source, piece;

    (void)state;
    swarm_source_has_all(swarm, liar);
    assert_true(swarm_next(swarm, 0, &source, &piece));
    swarm_failed(swarm, source, piece);
    swarm_source_lacks(swarm, source, piece);
    assert_false(swarm_next(swarm, 0, &source, &piece));
    assert_false(swarm_has_candidates(swarm));
    swarm_destroy(swarm);
}

static void stalled_pieces_move_to_another_source(void **state)
{
    struct swarm *swarm = make(4, 5);
    uint32_t slow = swarm_source_add(swarm, false), other, source, piece, recalled = 0;

    (void)state;
    swarm_source_has_all(swarm, slow);
    while (swarm_next(swarm, 0, &source, &piece))
        ;
    assert_false(swarm_next_stalled(swarm, 5000, &source, &piece)); /* nobody else could serve them */
    other = swarm_source_add(swarm, true);
    swarm_source_has_all(swarm, other);
    assert_false(swarm_next_stalled(swarm, 3999, &source, &piece)); /* nothing has arrived yet: no measure, patience */
    while (swarm_next_stalled(swarm, 4000, &source, &piece)) {
        assert_int_equal(source, slow);
        recalled++;
        swarm_failed(swarm, source, piece);
    }
    assert_int_equal(recalled, 4);
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
    uint32_t first = swarm_source_add(swarm, false), second = swarm_source_add(swarm, false), source, piece;
    uint32_t at_first[4], count = 0;

    (void)state;
    swarm_source_has_all(swarm, first);
    swarm_source_has_all(swarm, second);
    while (swarm_next(swarm, 0, &source, &piece)) {
        if (source == first)
            at_first[count++] = piece;
    }
    assert_int_equal(count, 4);
    for (uint32_t i = 0; i < count; i++)
        swarm_done(swarm, first, at_first[i], 3000); /* pieces take 3 s here */
    assert_false(swarm_next_stalled(swarm, 11999, &source, &piece));
    assert_true(swarm_next_stalled(swarm, 12000, &source, &piece));
    assert_int_equal(source, second);
    swarm_destroy(swarm);
}

static void what_is_here_is_not_asked_for(void **state)
{
    struct swarm *swarm = make(4, 7);
    uint32_t gold = swarm_source_add(swarm, true), replica = swarm_source_add(swarm, false), source, piece;

    (void)state;
    swarm_source_has_all(swarm, gold);
    assert_true(swarm_source_has(swarm, replica, 1)); /* told before */
    swarm_have(swarm, 1);
    swarm_have(swarm, 2);
    swarm_have(swarm, 2);
    swarm_have(swarm, 4);                             /* no such piece */
    assert_true(swarm_source_has(swarm, replica, 2)); /* and after */
    assert_int_equal(swarm_done_count(swarm), 2);
    assert_int_equal(swarm_missing_count(swarm), 2);
    for (int i = 0; i < 2; i++) {
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
        uint32_t gold = swarm_source_add(swarm, true), source, piece;
        uint32_t flight_source[64], flight_piece[64], flights = 0;
        bool has[SWARM_SOURCES_MAX][64] = {{false}}, is_used[SWARM_SOURCES_MAX] = {false};

        random_init(&random, seed);
        swarm_source_has_all(swarm, gold);
        for (int64_t now = 0; !swarm_is_complete(swarm); now++) {
            if (now > 100000)
                fail_msg("seed %llu: no end", (unsigned long long)seed);
            switch (random_below(&random, 6)) {
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
        cmocka_unit_test(one_source_gives_every_piece_once),     cmocka_unit_test(window_bounds_what_is_in_flight),
        cmocka_unit_test(replicas_are_asked_before_gold),        cmocka_unit_test(wrong_bytes_are_not_asked_for_again),
        cmocka_unit_test(stalled_pieces_move_to_another_source), cmocka_unit_test(slow_links_are_no_stall),
        cmocka_unit_test(what_is_here_is_not_asked_for),         cmocka_unit_test(any_course_of_events_ends_complete),
    };
    return cmocka_run_group_tests_name("swarm", tests, NULL, NULL);
}
