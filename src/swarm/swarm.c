/* SPDX-License-Identifier: Apache-2.0 */
#include "swarm/swarm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define WINDOW_BYTES_DEFAULT (8u << 20)
#define WINDOW_PIECES_DEFAULT 256u
#define WINDOW_PIECES_MIN 2u
#define STALL_MS_DEFAULT 2000
#define AVOID_STALLED_MS 5000
#define STALL_SERVICE_TIMES 4  /* silent for so many usual service times: stalled */
#define STALL_UNKNOWN_FACTOR 4 /* patience while no piece has arrived from anybody */
#define SAMPLE 16u             /* candidates compared for rarity per choice */

enum piece_state {
    PIECE_MISSING = 0,
    PIECE_IN_FLIGHT,
    PIECE_RECALLED, /* in flight, but its source stalls and the caller was told to cancel it */
    PIECE_DONE,
};

struct source {
    bool is_used, is_gold;
    bool has_all;         /* every piece but those in lacks */
    uint64_t *has;        /* owned bitmap; NULL: none yet */
    uint64_t *lacks;      /* owned bitmap; NULL: none */
    uint32_t *candidates; /* owned: pieces it has (not has_all); those that are done are dropped when met */
    uint32_t candidate_count, candidate_capacity;
    uint32_t in_flight;
    int64_t avoid_until_ms;
    int64_t last_progress_ms; /* last delivery, or when it got something to do */
};

struct swarm {
    struct swarm_config config;
    uint32_t window; /* pieces in flight per source */
    struct random random;
    uint8_t *state;       /* enum piece_state per piece */
    uint32_t *holder;     /* source of a piece in flight */
    int64_t *started_ms;  /* when a piece in flight was requested */
    int64_t service_ms;   /* smoothed time from request to arrival, over all sources; -1: no piece has arrived yet */
    uint16_t *replicas;   /* how many partial sources have the piece */
    uint32_t *missing;    /* the missing pieces, in no order */
    uint32_t *missing_at; /* where a missing piece stands in it */
    uint32_t missing_count, in_flight_count, done_count;
    struct source sources[SWARM_SOURCES_MAX];
    uint32_t source_count; /* slots in use are below */
    uint32_t next_source;  /* round robin */
};

static bool bit_is_set(const uint64_t *bits, uint32_t index)
{
    return bits && (bits[index / 64] >> (index % 64) & 1);
}

static bool bit_set(struct swarm *swarm, uint64_t **bits, uint32_t index)
{
    if (!*bits)
        *bits = calloc((size_t)swarm->config.piece_count / 64 + 1, sizeof **bits);
    if (!*bits)
        return false;
    (*bits)[index / 64] |= UINT64_C(1) << (index % 64);
    return true;
}

static void missing_add(struct swarm *swarm, uint32_t piece)
{
    swarm->state[piece] = PIECE_MISSING;
    swarm->missing_at[piece] = swarm->missing_count;
    swarm->missing[swarm->missing_count++] = piece;
}

static void missing_remove(struct swarm *swarm, uint32_t piece)
{
    uint32_t at = swarm->missing_at[piece], last = swarm->missing[--swarm->missing_count];

    swarm->missing[at] = last;
    swarm->missing_at[last] = at;
}

enum shoal_status swarm_create(const struct swarm_config *config, struct swarm **swarm_out)
{
    size_t count = config->piece_count;
    struct swarm *swarm = calloc(1, sizeof *swarm);
    uint64_t window;

    if (!swarm)
        return SHOAL_NO_MEMORY;
    swarm->config = *config;
    if (!swarm->config.window_bytes)
        swarm->config.window_bytes = WINDOW_BYTES_DEFAULT;
    if (!swarm->config.window_pieces)
        swarm->config.window_pieces = WINDOW_PIECES_DEFAULT;
    if (!swarm->config.stall_ms)
        swarm->config.stall_ms = STALL_MS_DEFAULT;
    window = swarm->config.window_bytes / (config->piece_bytes ? config->piece_bytes : 1);
    if (window > swarm->config.window_pieces)
        window = swarm->config.window_pieces;
    swarm->window = window < WINDOW_PIECES_MIN ? WINDOW_PIECES_MIN : (uint32_t)window;
    swarm->service_ms = -1;
    random_init(&swarm->random, config->seed);
    swarm->state = calloc(count + 1, sizeof *swarm->state);
    swarm->holder = calloc(count + 1, sizeof *swarm->holder);
    swarm->started_ms = calloc(count + 1, sizeof *swarm->started_ms);
    swarm->replicas = calloc(count + 1, sizeof *swarm->replicas);
    swarm->missing = calloc(count + 1, sizeof *swarm->missing);
    swarm->missing_at = calloc(count + 1, sizeof *swarm->missing_at);
    if (!swarm->state || !swarm->holder || !swarm->started_ms || !swarm->replicas || !swarm->missing ||
        !swarm->missing_at) {
        swarm_destroy(swarm);
        return SHOAL_NO_MEMORY;
    }
    for (uint32_t piece = 0; piece < config->piece_count; piece++)
        missing_add(swarm, piece);
    *swarm_out = swarm;
    return SHOAL_OK;
}

static bool is_in_flight_at(const struct swarm *swarm, uint32_t piece, uint32_t source)
{
    return (swarm->state[piece] == PIECE_IN_FLIGHT || swarm->state[piece] == PIECE_RECALLED) &&
           swarm->holder[piece] == source;
}

static void source_release(struct source *source)
{
    free(source->has);
    free(source->lacks);
    free(source->candidates);
    memset(source, 0, sizeof *source);
}

void swarm_destroy(struct swarm *swarm)
{
    if (!swarm)
        return;
    for (uint32_t i = 0; i < swarm->source_count; i++)
        source_release(&swarm->sources[i]);
    free(swarm->missing_at);
    free(swarm->missing);
    free(swarm->replicas);
    free(swarm->started_ms);
    free(swarm->holder);
    free(swarm->state);
    free(swarm);
}

uint32_t swarm_source_add(struct swarm *swarm, bool is_gold)
{
    uint32_t number = 0;

    while (number < swarm->source_count && swarm->sources[number].is_used)
        number++;
    if (number == SWARM_SOURCES_MAX)
        return SWARM_NONE;
    if (number == swarm->source_count)
        swarm->source_count++;
    swarm->sources[number].is_used = true;
    swarm->sources[number].is_gold = is_gold;
    return number;
}

void swarm_source_remove(struct swarm *swarm, uint32_t number)
{
    struct source *source = &swarm->sources[number];

    for (uint32_t piece = 0; source->in_flight && piece < swarm->config.piece_count; piece++) {
        if (is_in_flight_at(swarm, piece, number))
            swarm_failed(swarm, number, piece);
    }
    if (source->has) {
        for (uint32_t piece = 0; piece < swarm->config.piece_count; piece++) {
            if (bit_is_set(source->has, piece))
                swarm->replicas[piece]--;
        }
    }
    source_release(source);
}

void swarm_source_has_all(struct swarm *swarm, uint32_t number)
{
    swarm->sources[number].has_all = true;
}

bool swarm_source_has(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    struct source *source = &swarm->sources[number];

    if (piece >= swarm->config.piece_count)
        return false;
    if (bit_is_set(source->has, piece))
        return true;
    if (source->candidate_count == source->candidate_capacity) {
        uint32_t capacity = source->candidate_capacity ? source->candidate_capacity * 2 : 64;
        uint32_t *candidates = realloc(source->candidates, capacity * sizeof *candidates);
        if (!candidates)
            return false;
        source->candidates = candidates;
        source->candidate_capacity = capacity;
    }
    if (!bit_set(swarm, &source->has, piece))
        return false;
    swarm->replicas[piece]++;
    if (swarm->state[piece] != PIECE_DONE)
        source->candidates[source->candidate_count++] = piece;
    return true;
}

void swarm_source_lacks(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    /* Without memory for the note the whole source is given up: asking again for ever would be worse. */
    if (!bit_set(swarm, &swarm->sources[number].lacks, piece))
        swarm->sources[number].avoid_until_ms = INT64_MAX;
}

void swarm_source_avoid(struct swarm *swarm, uint32_t number, int64_t until_ms)
{
    if (swarm->sources[number].avoid_until_ms < until_ms)
        swarm->sources[number].avoid_until_ms = until_ms;
}

static bool source_offers(const struct source *source, uint32_t piece)
{
    return source->is_used && (source->has_all || bit_is_set(source->has, piece)) && !bit_is_set(source->lacks, piece);
}

static bool source_is_ready(const struct swarm *swarm, const struct source *source, int64_t now_ms)
{
    return source->is_used && source->in_flight < swarm->window && source->avoid_until_ms <= now_ms;
}

/* The rarest of a random sample of the list. A list whose sample yields nothing is searched from its end. Pieces that
 * are done are dropped from a source's own list whenever they are met, so searching costs little in total. */
static uint32_t choose_from(struct swarm *swarm, struct source *source, uint32_t *list, uint32_t *count, bool may_drop)
{
    uint32_t best = SWARM_NONE;

    for (uint32_t i = 0; i < SAMPLE && *count; i++) {
        uint32_t at = (uint32_t)random_below(&swarm->random, *count), piece = list[at];
        if (may_drop && swarm->state[piece] == PIECE_DONE) {
            list[at] = list[--*count];
            continue;
        }
        if (swarm->state[piece] == PIECE_MISSING && !bit_is_set(source->lacks, piece) &&
            (best == SWARM_NONE || swarm->replicas[piece] < swarm->replicas[best]))
            best = piece;
    }
    for (uint32_t at = *count; best == SWARM_NONE && at-- > 0;) {
        uint32_t piece = list[at];
        if (may_drop && swarm->state[piece] == PIECE_DONE)
            list[at] = list[--*count];
        else if (swarm->state[piece] == PIECE_MISSING && !bit_is_set(source->lacks, piece))
            best = piece;
    }
    return best;
}

static uint32_t choose_piece(struct swarm *swarm, struct source *source)
{
    if (!swarm->missing_count)
        return SWARM_NONE;
    if (source->has_all)
        return choose_from(swarm, source, swarm->missing, &swarm->missing_count, false);
    return choose_from(swarm, source, source->candidates, &source->candidate_count, true);
}

static bool start(struct swarm *swarm, uint32_t number, uint32_t piece, int64_t now_ms)
{
    struct source *source = &swarm->sources[number];

    missing_remove(swarm, piece);
    swarm->state[piece] = PIECE_IN_FLIGHT;
    swarm->holder[piece] = number;
    swarm->started_ms[piece] = now_ms;
    swarm->in_flight_count++;
    if (source->in_flight++ == 0)
        source->last_progress_ms = now_ms;
    return true;
}

void swarm_have(struct swarm *swarm, uint32_t piece)
{
    if (piece >= swarm->config.piece_count || swarm->state[piece] != PIECE_MISSING)
        return;
    missing_remove(swarm, piece);
    swarm->state[piece] = PIECE_DONE;
    swarm->done_count++;
}

bool swarm_next(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out)
{
    for (int gold = 0; gold < 2 && swarm->missing_count; gold++) {
        for (uint32_t i = 0; i < swarm->source_count; i++) {
            uint32_t number = (swarm->next_source + i) % swarm->source_count, piece;
            struct source *source = &swarm->sources[number];

            if (source->is_gold != (gold == 1) || !source_is_ready(swarm, source, now_ms))
                continue;
            piece = choose_piece(swarm, source);
            if (piece == SWARM_NONE)
                continue;
            swarm->next_source = number + 1;
            *source_out = number;
            *piece_out = piece;
            return start(swarm, number, piece, now_ms);
        }
    }
    return false;
}

static void end_flight(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    (void)piece; /* without assertions */
    assert(is_in_flight_at(swarm, piece, number));
    swarm->sources[number].in_flight--;
    swarm->in_flight_count--;
}

void swarm_done(struct swarm *swarm, uint32_t number, uint32_t piece, int64_t now_ms)
{
    int64_t service_ms = now_ms - swarm->started_ms[piece];

    end_flight(swarm, number, piece);
    swarm->sources[number].last_progress_ms = now_ms;
    swarm->service_ms = swarm->service_ms < 0 ? service_ms : (7 * swarm->service_ms + service_ms) / 8;
    swarm->state[piece] = PIECE_DONE;
    swarm->done_count++;
}

void swarm_failed(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    end_flight(swarm, number, piece);
    missing_add(swarm, piece);
}

static bool is_served_elsewhere(const struct swarm *swarm, uint32_t holder, uint32_t piece, int64_t now_ms)
{
    for (uint32_t i = 0; i < swarm->source_count; i++) {
        if (i != holder && source_is_ready(swarm, &swarm->sources[i], now_ms) &&
            source_offers(&swarm->sources[i], piece))
            return true;
    }
    return false;
}

/* On slow links a piece takes its time at every source: silence counts only against what is usual. */
static int64_t stall_ms(const struct swarm *swarm)
{
    int64_t usual =
        swarm->service_ms < 0 ? STALL_UNKNOWN_FACTOR * swarm->config.stall_ms : STALL_SERVICE_TIMES * swarm->service_ms;

    return usual > swarm->config.stall_ms ? usual : swarm->config.stall_ms;
}

bool swarm_next_stalled(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out)
{
    for (uint32_t number = 0; number < swarm->source_count; number++) {
        struct source *source = &swarm->sources[number];

        if (!source->in_flight || now_ms - source->last_progress_ms < stall_ms(swarm))
            continue;
        for (uint32_t piece = 0; piece < swarm->config.piece_count; piece++) {
            if (swarm->state[piece] == PIECE_IN_FLIGHT && swarm->holder[piece] == number &&
                is_served_elsewhere(swarm, number, piece, now_ms)) {
                swarm_source_avoid(swarm, number, now_ms + AVOID_STALLED_MS);
                swarm->state[piece] = PIECE_RECALLED;
                *source_out = number;
                *piece_out = piece;
                return true;
            }
        }
    }
    return false;
}

uint32_t swarm_missing_count(const struct swarm *swarm)
{
    return swarm->missing_count;
}

uint32_t swarm_in_flight_count(const struct swarm *swarm)
{
    return swarm->in_flight_count;
}

uint32_t swarm_done_count(const struct swarm *swarm)
{
    return swarm->done_count;
}

bool swarm_is_complete(const struct swarm *swarm)
{
    return swarm->done_count == swarm->config.piece_count;
}

bool swarm_has_candidates(const struct swarm *swarm)
{
    for (uint32_t i = 0; i < swarm->missing_count; i++) {
        for (uint32_t number = 0; number < swarm->source_count; number++) {
            if (source_offers(&swarm->sources[number], swarm->missing[i]))
                return true;
        }
    }
    return false;
}
