/* SPDX-License-Identifier: Apache-2.0 */
/* Upload slots and the choice of pieces, under an explicit clock and seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "swarm/handout.h"

#define PIECES 100u
#define SLOTS 4u

static struct handout *make(bool chooses)
{
    struct handout_config config = {
        .piece_count = PIECES, .piece_bytes = 1 << 20, .slots = SLOTS, .chooses = chooses, .seed = 1};
    struct handout *handout;

    assert_int_equal(handout_create(&config, &handout), SHOAL_OK);
    return handout;
}

/* Claims one slot, of which the receiver uses none else, and returns the piece that comes with it. */
static uint32_t one_piece(struct handout *handout, uint32_t receiver, int64_t now_ms)
{
    struct handout_grant grant;

    assert_true(handout_claim(handout, receiver, 1, 0, now_ms));
    assert_true(handout_next(handout, now_ms, &grant));
    assert_int_equal(grant.receiver, receiver);
    assert_int_equal(grant.slots, 1);
    return grant.piece_count ? grant.pieces[0] : HANDOUT_NONE;
}

static void every_piece_goes_out_once_before_any_goes_out_twice(void **state)
{
    struct handout *handout = make(true);
    uint32_t receivers[3] = {handout_join(handout), handout_join(handout), handout_join(handout)};
    uint8_t seen[PIECES] = {0};

    (void)state;
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t piece = one_piece(handout, receivers[i % 3], i);
        assert_true(piece < PIECES);
        assert_int_equal(seen[piece]++, 0);
    }
    assert_int_equal(seen[one_piece(handout, receivers[0], PIECES)]++, 1);
    handout_destroy(handout);
}

static void whoever_has_all_gets_slots_without_pieces(void **state)
{
    struct handout *handout = make(true);
    uint32_t receiver = handout_join(handout);

    (void)state;
    for (uint32_t piece = 0; piece < PIECES; piece++)
        assert_true(handout_taken(handout, receiver, piece));
    assert_true(handout_taken(handout, receiver, 0)); /* told twice */
    assert_false(handout_taken(handout, receiver, PIECES));
    assert_int_equal(one_piece(handout, receiver, 0), HANDOUT_NONE);
    handout_destroy(handout);
}

static void what_others_have_comes_last(void **state)
{
    struct handout *handout = make(true);
    uint32_t first = handout_join(handout), second = handout_join(handout);

    (void)state;
    for (uint32_t piece = 0; piece < PIECES - 1; piece++)
        handout_taken(handout, first, piece);
    assert_int_equal(one_piece(handout, second, 0), PIECES - 1);
    handout_destroy(handout);
}

static void what_a_leaver_was_given_goes_out_again(void **state)
{
    struct handout *handout = make(true);
    uint32_t leaver = handout_join(handout), other = handout_join(handout), given = one_piece(handout, leaver, 0);
    bool is_seen = false;

    (void)state;
    handout_leave(handout, leaver);
    for (uint32_t i = 0; i < PIECES; i++)
        is_seen |= one_piece(handout, other, i) == given;
    assert_true(is_seen);
    assert_int_equal(handout_join(handout), leaver); /* the number is free again */
    handout_destroy(handout);
}

static void slots_are_bounded_and_served_in_line(void **state)
{
    struct handout *handout = make(false);
    uint32_t receivers[6];
    struct handout_grant grant;

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        receivers[i] = handout_join(handout);
        assert_true(handout_claim(handout, receivers[i], 2, 0, 0));
    }
    for (unsigned i = 0; i < SLOTS; i++) { /* shared: one each */
        assert_true(handout_next(handout, 0, &grant));
        assert_int_equal(grant.receiver, receivers[i]);
        assert_int_equal(grant.slots, 1);
        assert_int_equal(grant.piece_count, 0); /* the receiver chooses */
    }
    assert_false(handout_next(handout, 0, &grant));
    assert_false(handout_claim(handout, receivers[0], 2, 1, 0)); /* it has its share */
    assert_false(handout_claim(handout, receivers[1], 0, 0, 0)); /* only a report: a slot is free */
    assert_true(handout_next(handout, 0, &grant));
    assert_int_equal(grant.receiver, receivers[4]);
    assert_false(handout_next(handout, 0, &grant));
    handout_leave(handout, receivers[0]); /* another one */
    assert_true(handout_next(handout, 0, &grant));
    assert_int_equal(grant.receiver, receivers[5]);
    handout_destroy(handout);
}

static void a_lone_receiver_may_use_all_slots(void **state)
{
    struct handout *handout = make(false);
    uint32_t receiver = handout_join(handout);
    struct handout_grant grant;

    (void)state;
    assert_true(handout_claim(handout, receiver, 100, 0, 0));
    assert_true(handout_next(handout, 0, &grant));
    assert_int_equal(grant.slots, SLOTS);
    handout_destroy(handout);
}

static void who_says_nothing_holds_no_slot(void **state)
{
    struct handout *handout = make(false);
    uint32_t silent = handout_join(handout), other;
    struct handout_grant grant;

    (void)state;
    handout_claim(handout, silent, SLOTS, 0, 0);
    assert_true(handout_next(handout, 0, &grant));
    other = handout_join(handout);
    assert_true(handout_claim(handout, other, 1, 0, 100));
    assert_false(handout_next(handout, 1999, &grant));
    assert_true(handout_next(handout, 2100, &grant));
    assert_int_equal(grant.receiver, other);
    assert_false(handout_claim(handout, silent, 1, SLOTS, 2200)); /* it is back, and has its share */
    handout_destroy(handout);
}

static void a_claim_can_be_taken_back(void **state)
{
    struct handout *handout = make(false);
    uint32_t first = handout_join(handout), second = handout_join(handout), third = handout_join(handout);
    struct handout_grant grant;

    (void)state;
    handout_claim(handout, first, 1, 0, 0);
    handout_claim(handout, second, 1, 0, 0);
    handout_claim(handout, third, 1, 0, 0);
    handout_unclaim(handout, second);
    handout_unclaim(handout, second);
    assert_true(handout_next(handout, 0, &grant));
    assert_int_equal(grant.receiver, first);
    assert_true(handout_next(handout, 0, &grant));
    assert_int_equal(grant.receiver, third);
    assert_false(handout_next(handout, 0, &grant));
    handout_destroy(handout);
}

/* Whatever is taken back, the others keep their places. */
static void claims_keep_their_order(void **state)
{
    (void)state;
    for (unsigned without = 0; without < 1u << SLOTS; without++) {
        struct handout *handout = make(false);
        struct handout_grant grant;

        for (uint32_t i = 0; i < SLOTS; i++)
            handout_claim(handout, handout_join(handout), 1, 0, 0);
        for (uint32_t i = 0; i < SLOTS; i++) {
            if (without >> i & 1)
                handout_unclaim(handout, i);
        }
        for (uint32_t i = 0; i < SLOTS; i++) { /* those come last now */
            if (without >> i & 1)
                handout_claim(handout, i, 1, 0, 0);
        }
        for (unsigned is_late = 0; is_late < 2; is_late++) {
            for (uint32_t i = 0; i < SLOTS; i++) {
                if ((without >> i & 1) != is_late)
                    continue;
                assert_true(handout_next(handout, 0, &grant));
                assert_int_equal(grant.receiver, i);
            }
        }
        assert_false(handout_next(handout, 0, &grant));
        handout_destroy(handout);
    }
}

/* One that was stopped for an hour and goes on must not make the source patient with others for hours. */
static void a_long_silence_is_not_usual(void **state)
{
    enum { HOUR_MS = 3600000 };
    struct handout *handout = make(false);
    uint32_t sleeper = handout_join(handout), silent, other;
    struct handout_grant grant;

    (void)state;
    handout_claim(handout, sleeper, SLOTS, 0, 0);
    assert_true(handout_next(handout, 0, &grant));
    handout_claim(handout, sleeper, 0, 0, HOUR_MS);
    handout_leave(handout, sleeper);
    silent = handout_join(handout);
    handout_claim(handout, silent, SLOTS, 0, HOUR_MS);
    assert_true(handout_next(handout, HOUR_MS, &grant));
    other = handout_join(handout);
    handout_claim(handout, other, 1, 0, HOUR_MS);
    assert_false(handout_next(handout, HOUR_MS + 1000, &grant));
    assert_true(handout_next(handout, HOUR_MS + 2100, &grant));
    assert_int_equal(grant.receiver, other);
    handout_destroy(handout);
}

/* Receivers of a payload of very many pieces: those for whom there is no memory for notes are served all the same. */
static void notes_are_bounded(void **state)
{
    struct handout_config config = {.piece_count = 262144, .piece_bytes = 1 << 18, .slots = 4096, .chooses = true};
    uint32_t with_notes = HANDOUT_NOTES_MAX_BYTES / (262144 / 8 + 8);
    struct handout *handout;
    struct handout_grant grant;

    (void)state;
    assert_int_equal(handout_create(&config, &handout), SHOAL_OK);
    for (uint32_t i = 0; i < HANDOUT_RECEIVERS_MAX; i++)
        assert_int_equal(handout_join(handout), i);
    assert_int_equal(handout_join(handout), HANDOUT_NONE);
    assert_int_not_equal(one_piece(handout, with_notes - 1, 0), HANDOUT_NONE);
    assert_int_equal(one_piece(handout, with_notes, 0), HANDOUT_NONE);
    assert_true(handout_taken(handout, with_notes, 7));
    assert_false(handout_taken(handout, with_notes, 262144));
    handout_leave(handout, with_notes); /* gives no notes back */
    assert_int_equal(handout_join(handout), with_notes);
    assert_int_equal(one_piece(handout, with_notes, 0), HANDOUT_NONE);
    handout_leave(handout, 0);
    assert_int_equal(handout_join(handout), 0);
    assert_int_not_equal(one_piece(handout, 0, 0), HANDOUT_NONE);
    assert_false(handout_next(handout, 0, &grant));
    handout_destroy(handout);
}

/* Receivers come, claim, report and leave at random, and lie about what is outstanding; the slots that are out never
 * exceed the limit by more than what the silent ones hold, and whoever claims is served in the end. */
static void any_course_of_events_serves_everybody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct handout *handout = make(seed % 2);
        struct random random;
        uint32_t numbers[16], granted[16] = {0};
        bool is_here[16] = {false};
        int64_t now = 0;

        random_init(&random, seed);
        for (unsigned step = 0; step < 5000; step++) {
            uint32_t i = (uint32_t)random_below(&random, 16);
            struct handout_grant grant;

            now += (int64_t)random_below(&random, 20);
            if (!is_here[i]) {
                numbers[i] = handout_join(handout);
                is_here[i] = true;
                granted[i] = 0;
            } else if (random_below(&random, 50) == 0) {
                handout_leave(handout, numbers[i]);
                is_here[i] = false;
            } else {
                handout_claim(handout, numbers[i], (uint32_t)random_below(&random, 5),
                              (uint32_t)random_below(&random, granted[i] + 3), now);
                handout_taken(handout, numbers[i], (uint32_t)random_below(&random, PIECES));
            }
            while (handout_next(handout, now, &grant)) {
                assert_true(grant.slots >= 1 && grant.piece_count <= grant.slots);
                for (uint32_t j = 0; j < 16; j++) {
                    if (is_here[j] && numbers[j] == grant.receiver)
                        granted[j] += grant.slots;
                }
            }
        }
        for (uint32_t i = 0; i < 16; i++) { /* all report that nothing is out any more, and claim */
            if (is_here[i])
                handout_claim(handout, numbers[i], 0, 0, now);
        }
        for (uint32_t i = 0; i < 16; i++) {
            struct handout_grant grant;
            if (!is_here[i])
                continue;
            assert_true(handout_claim(handout, numbers[i], 1, 0, now));
            assert_true(handout_next(handout, now, &grant));
            handout_claim(handout, numbers[i], 0, 0, now);
        }
        handout_destroy(handout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_goes_out_once_before_any_goes_out_twice),
        cmocka_unit_test(whoever_has_all_gets_slots_without_pieces),
        cmocka_unit_test(what_others_have_comes_last),
        cmocka_unit_test(what_a_leaver_was_given_goes_out_again),
        cmocka_unit_test(slots_are_bounded_and_served_in_line),
        cmocka_unit_test(a_lone_receiver_may_use_all_slots),
        cmocka_unit_test(who_says_nothing_holds_no_slot),
        cmocka_unit_test(a_claim_can_be_taken_back),
        cmocka_unit_test(claims_keep_their_order),
        cmocka_unit_test(a_long_silence_is_not_usual),
        cmocka_unit_test(notes_are_bounded),
        cmocka_unit_test(any_course_of_events_serves_everybody),
    };
    return cmocka_run_group_tests_name("handout", tests, NULL, NULL);
}
