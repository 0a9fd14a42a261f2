/* SPDX-License-Identifier: Apache-2.0 */
#include "swarm/handout.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define SAMPLE 32u /* candidates compared for rarity per choice */
#define RECEIVER_SLOTS_MIN 1u
/* Out at a time at least; from bench/swarm_sim.c. */
#define FEW_RECEIVERS 16u
#define SLOTS_MIN 12u
#define SLOTS_MIN_BYTES (12u * 256 << 10)
#define OUT_LIMIT_MAX 1024u   /* slots */
#define OUT_TARGET_MS 20      /* what is out should be served within this time at the present rate */
#define RATE_WINDOW_MS 50     /* over which the rate is measured */
#define STALE_MS 2000         /* a receiver that reports nothing for so long, */
#define STALE_GAPS 4          /* and for so many times what is usual, holds no slot */
#define STALE_INTERVAL_MS 100 /* between two looks for such receivers */

struct handout_receiver {
    bool is_used;
    bool is_stale;                       /* what it has out is not counted in out_count */
    uint32_t outstanding;                /* slots granted to it and in use */
    uint32_t wanted;                     /* its claim; 0: none */
    uint32_t next_claim, previous_claim; /* in the order of claims; HANDOUT_NONE: last, first */
    uint32_t taken_count;
    int64_t progress_ms; /* when something of it arrived, or it got something to wait for */
    uint64_t *taken;     /* owned bitmap: it has the piece, gets it elsewhere, or was given it. NULL: nothing is chosen
                          * for it */
};

struct handout {
    struct handout_config config;
    struct random random;
    uint16_t *counts; /* per piece: receivers that have taken it */
    uint64_t *fresh;  /* bitmap: count is 0 */
    uint32_t fresh_count, cursor;
    struct handout_receiver *receivers; /* owned; grows */
    uint32_t receiver_capacity, receiver_count;
    size_t notes_bytes;               /* of all taken */
    uint32_t first_claim, last_claim; /* receivers; HANDOUT_NONE: none waits */
    bool has_own_slots;               /* the configuration says how many */
    uint32_t out_count, rate_limit;   /* rate_limit: slots that the rate keeps busy */
    uint32_t arrived;                 /* in the present rate window */
    int64_t window_ms, stale_checked_ms;
    int64_t gap; /* smoothed time between two reports of a receiver that uses slots, 1/8 ms */
};

static bool bit_is_set(const uint64_t *bits, uint32_t index)
{
    return bits[index / 64] >> (index % 64) & 1;
}

static void bit_set(uint64_t *bits, uint32_t index)
{
    bits[index / 64] |= UINT64_C(1) << (index % 64);
}

static void bit_clear(uint64_t *bits, uint32_t index)
{
    bits[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

/* Few receivers may have more each: no piece has a long way to go from node to node, and what counts is that the link
 * is never idle while a report and the next grant are under way. */
static uint32_t out_limit(const struct handout *handout)
{
    uint32_t least = handout->config.slots;

    if (handout->receiver_count <= FEW_RECEIVERS && !handout->has_own_slots)
        least += least * 2 / 3;
    return handout->rate_limit > least ? handout->rate_limit : least;
}

static size_t word_count(const struct handout *handout)
{
    return (size_t)handout->config.piece_count / 64 + 1;
}

static size_t bitmap_bytes(const struct handout *handout)
{
    return word_count(handout) * sizeof(uint64_t);
}

static uint32_t slots_for(uint64_t piece_bytes)
{
    uint64_t slots = SLOTS_MIN_BYTES / (piece_bytes ? piece_bytes : 1);

    return slots < SLOTS_MIN ? SLOTS_MIN : slots > OUT_LIMIT_MAX ? OUT_LIMIT_MAX : (uint32_t)slots;
}

enum shoal_status handout_create(const struct handout_config *config, struct handout **handout_out)
{
    struct handout *handout = calloc(1, sizeof *handout);

    if (!handout)
        return SHOAL_NO_MEMORY;
    handout->config = *config;
    handout->has_own_slots = config->slots;
    if (!config->slots)
        handout->config.slots = slots_for(config->piece_bytes);
    random_init(&handout->random, config->seed);
    handout->counts = calloc((size_t)config->piece_count + 1, sizeof *handout->counts);
    handout->fresh = calloc(word_count(handout), sizeof *handout->fresh);
    if (!handout->counts || !handout->fresh) {
        handout_destroy(handout);
        return SHOAL_NO_MEMORY;
    }
    for (uint32_t piece = 0; piece < config->piece_count; piece++)
        bit_set(handout->fresh, piece);
    handout->fresh_count = config->piece_count;
    handout->cursor = config->piece_count ? (uint32_t)random_below(&handout->random, config->piece_count) : 0;
    handout->first_claim = handout->last_claim = HANDOUT_NONE;
    *handout_out = handout;
    return SHOAL_OK;
}

void handout_destroy(struct handout *handout)
{
    if (!handout)
        return;
    for (uint32_t i = 0; i < handout->receiver_capacity; i++)
        free(handout->receivers[i].taken);
    free(handout->receivers);
    free(handout->fresh);
    free(handout->counts);
    free(handout);
}

static bool grow(struct handout *handout)
{
    uint32_t capacity = handout->receiver_capacity ? handout->receiver_capacity * 2 : 8;
    struct handout_receiver *receivers;

    if (handout->receiver_capacity == HANDOUT_RECEIVERS_MAX)
        return false;
    receivers = realloc(handout->receivers, capacity * sizeof *receivers);
    if (!receivers)
        return false;
    memset(receivers + handout->receiver_capacity, 0, (capacity - handout->receiver_capacity) * sizeof *receivers);
    handout->receivers = receivers;
    handout->receiver_capacity = capacity;
    return true;
}

uint32_t handout_join(struct handout *handout)
{
    uint32_t number = 0;
    struct handout_receiver *receiver;

    while (number < handout->receiver_capacity && handout->receivers[number].is_used)
        number++;
    if (number == handout->receiver_capacity && !grow(handout))
        return HANDOUT_NONE;
    receiver = &handout->receivers[number];
    if (handout->config.chooses && handout->notes_bytes + bitmap_bytes(handout) <= HANDOUT_NOTES_MAX_BYTES) {
        receiver->taken = calloc(1, bitmap_bytes(handout));
        if (!receiver->taken)
            return HANDOUT_NONE;
        handout->notes_bytes += bitmap_bytes(handout);
    }
    receiver->is_used = true;
    handout->receiver_count++;
    return number;
}

static void set_stale(struct handout *handout, struct handout_receiver *receiver, bool is_stale)
{
    if (receiver->is_stale == is_stale)
        return;
    receiver->is_stale = is_stale;
    if (is_stale)
        handout->out_count -= receiver->outstanding;
    else
        handout->out_count += receiver->outstanding;
}

void handout_unclaim(struct handout *handout, uint32_t number)
{
    struct handout_receiver *receiver = &handout->receivers[number];
    uint32_t next = receiver->next_claim, previous = receiver->previous_claim;

    if (!receiver->wanted)
        return;
    *(previous == HANDOUT_NONE ? &handout->first_claim : &handout->receivers[previous].next_claim) = next;
    *(next == HANDOUT_NONE ? &handout->last_claim : &handout->receivers[next].previous_claim) = previous;
    receiver->wanted = 0;
}

/* Takes as long as its pieces took to be noted. */
static void forget_taken(struct handout *handout, const uint64_t *taken)
{
    for (size_t i = 0; i < word_count(handout); i++) {
        for (uint64_t left = taken[i]; left; left &= left - 1) {
            uint32_t piece = (uint32_t)i * 64 + (uint32_t)__builtin_ctzll(left);
            if (--handout->counts[piece] == 0) {
                bit_set(handout->fresh, piece);
                handout->fresh_count++;
            }
        }
    }
    handout->notes_bytes -= bitmap_bytes(handout);
}

void handout_leave(struct handout *handout, uint32_t number)
{
    struct handout_receiver *receiver = &handout->receivers[number];

    handout_unclaim(handout, number);
    set_stale(handout, receiver, true);
    if (receiver->taken)
        forget_taken(handout, receiver->taken);
    free(receiver->taken);
    *receiver = (struct handout_receiver){.is_used = false};
    handout->receiver_count--;
}

static void take(struct handout *handout, struct handout_receiver *receiver, uint32_t piece)
{
    bit_set(receiver->taken, piece);
    receiver->taken_count++;
    if (handout->counts[piece]++ == 0) {
        bit_clear(handout->fresh, piece);
        handout->fresh_count--;
    }
}

bool handout_taken(struct handout *handout, uint32_t number, uint32_t piece)
{
    struct handout_receiver *receiver = &handout->receivers[number];

    if (piece >= handout->config.piece_count)
        return false;
    if (receiver->taken && !bit_is_set(receiver->taken, piece))
        take(handout, receiver, piece);
    return true;
}

static void measure(struct handout *handout, uint32_t arrived, int64_t now_ms)
{
    int64_t elapsed_ms = now_ms - handout->window_ms;
    uint64_t limit;

    handout->arrived += arrived;
    if (elapsed_ms < RATE_WINDOW_MS)
        return;
    limit = (uint64_t)handout->arrived * OUT_TARGET_MS / (uint64_t)elapsed_ms;
    handout->rate_limit = limit > OUT_LIMIT_MAX ? OUT_LIMIT_MAX : (uint32_t)limit;
    handout->arrived = 0;
    handout->window_ms = now_ms;
}

static int64_t patience_ms(const struct handout *handout)
{
    int64_t usual_ms = STALE_GAPS * handout->gap / 8;

    return usual_ms > STALE_MS ? usual_ms : STALE_MS;
}

/* How many pieces the receiver may have out now, beyond those it has. */
static uint32_t room_of(const struct handout *handout, const struct handout_receiver *receiver)
{
    uint32_t share = out_limit(handout) / handout->receiver_count, room = out_limit(handout) - handout->out_count;

    if (share < RECEIVER_SLOTS_MIN)
        share = RECEIVER_SLOTS_MIN;
    if (receiver->outstanding >= share)
        return 0;
    return share - receiver->outstanding < room ? share - receiver->outstanding : room;
}

bool handout_claim(struct handout *handout, uint32_t number, uint32_t wanted, uint32_t outstanding, int64_t now_ms)
{
    struct handout_receiver *receiver = &handout->receivers[number];

    handout_unclaim(handout, number);
    if (outstanding > receiver->outstanding) /* it cannot wait for more than it was given */
        outstanding = receiver->outstanding;
    if (outstanding < receiver->outstanding) {
        int64_t gap_ms = now_ms - receiver->progress_ms, most_ms = patience_ms(handout);
        /* Who was silent for long says little about what is usual, and must not make the patience with others long. */
        handout->gap += ((gap_ms < most_ms ? gap_ms : most_ms) * 8 - handout->gap) / 8;
        receiver->progress_ms = now_ms;
    }
    measure(handout, receiver->outstanding - outstanding, now_ms);
    set_stale(handout, receiver, false);
    handout->out_count -= receiver->outstanding - outstanding;
    receiver->outstanding = outstanding;
    if (!wanted)
        return false;
    /* Who waits reports nothing meanwhile, so nothing may be out of those who wait. */
    if (outstanding && (handout->first_claim != HANDOUT_NONE || handout->out_count >= out_limit(handout) ||
                        !room_of(handout, receiver)))
        return false;
    receiver->wanted = wanted < HANDOUT_CLAIM_MAX ? wanted : HANDOUT_CLAIM_MAX;
    receiver->next_claim = HANDOUT_NONE;
    receiver->previous_claim = handout->last_claim;
    if (handout->last_claim == HANDOUT_NONE)
        handout->first_claim = number;
    else
        handout->receivers[handout->last_claim].next_claim = number;
    handout->last_claim = number;
    return true;
}

static void find_stale(struct handout *handout, int64_t now_ms)
{
    if (now_ms - handout->stale_checked_ms < STALE_INTERVAL_MS)
        return;
    handout->stale_checked_ms = now_ms;
    for (uint32_t i = 0; i < handout->receiver_capacity; i++) {
        struct handout_receiver *receiver = &handout->receivers[i];
        if (receiver->is_used && receiver->outstanding && !receiver->wanted &&
            now_ms - receiver->progress_ms >= patience_ms(handout))
            set_stale(handout, receiver, true);
    }
}

/* First set bit of (bits, inverted if asked for) from start on, cyclic; there must be one below count. */
static uint32_t find_bit(const uint64_t *bits, bool is_inverted, uint32_t start, uint32_t count)
{
    uint64_t flip = is_inverted ? UINT64_MAX : 0;
    uint32_t words = (count + 63) / 64, at = start / 64;
    uint64_t word = (bits[at] ^ flip) & (UINT64_MAX << (start % 64));

    for (uint32_t i = 0; i <= words; i++) {
        if (word) {
            uint32_t index = at * 64 + (uint32_t)__builtin_ctzll(word);
            if (index < count)
                return index;
        }
        at = at + 1 < words ? at + 1 : 0;
        word = bits[at] ^ flip;
    }
    return HANDOUT_NONE;
}

/* Among random pieces that the receiver lacks, the one that the fewest receivers have. */
static uint32_t choose_rare(struct handout *handout, const struct handout_receiver *receiver)
{
    uint32_t count = handout->config.piece_count, best = HANDOUT_NONE;

    for (unsigned i = 0; i < SAMPLE; i++) {
        uint32_t piece = (uint32_t)random_below(&handout->random, count);
        if (!bit_is_set(receiver->taken, piece) &&
            (best == HANDOUT_NONE || handout->counts[piece] < handout->counts[best]))
            best = piece;
    }
    if (best == HANDOUT_NONE)
        best = find_bit(receiver->taken, true, (uint32_t)random_below(&handout->random, count), count);
    return best;
}

static uint32_t choose(struct handout *handout, const struct handout_receiver *receiver)
{
    uint32_t piece;

    if (!receiver->taken || receiver->taken_count == handout->config.piece_count)
        return HANDOUT_NONE;
    if (!handout->fresh_count)
        return choose_rare(handout, receiver);
    piece = find_bit(handout->fresh, false, handout->cursor, handout->config.piece_count);
    handout->cursor = piece + 1 < handout->config.piece_count ? piece + 1 : 0;
    return piece;
}

bool handout_next(struct handout *handout, int64_t now_ms, struct handout_grant *grant_out)
{
    uint32_t number = handout->first_claim, room, piece;
    struct handout_receiver *receiver;

    if (number == HANDOUT_NONE)
        return false;
    if (handout->out_count >= out_limit(handout))
        find_stale(handout, now_ms);
    if (handout->out_count >= out_limit(handout))
        return false;
    receiver = &handout->receivers[number];
    room = room_of(handout, receiver);
    grant_out->receiver = number;
    grant_out->slots = receiver->wanted < room ? receiver->wanted : room;
    grant_out->piece_count = 0;
    while (handout->config.chooses && grant_out->piece_count < grant_out->slots &&
           (piece = choose(handout, receiver)) != HANDOUT_NONE) {
        take(handout, receiver, piece);
        grant_out->pieces[grant_out->piece_count++] = piece;
    }
    if (!receiver->outstanding)
        receiver->progress_ms = now_ms;
    receiver->outstanding += grant_out->slots;
    handout->out_count += grant_out->slots;
    handout_unclaim(handout, number);
    return true;
}
