/* SPDX-License-Identifier: Apache-2.0 */
#include "swarm/swarm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define WINDOW_MAX_BYTES_DEFAULT (16u << 20)
#define WINDOW_PIECES_MAX 256u
#define FEW_SOURCES 16u
#define WINDOW_EXCESS 2u    /* times the window: slots that are granted beyond are given back */
#define WINDOW_TARGET_MS 20 /* what is in flight should arrive within this time at the present rate */
#define RATE_WINDOW_MS 20   /* over which the rate is measured, at least */
#define CLAIM_MIN 2u        /* slots at a source, so that one piece comes while the next is asked for */
#define RARE_SHARE 8u       /* rare: fewer than one source in so many has it */
#define URGENT_LAST_PIECES 64u
#define STALL_MS_DEFAULT 2000
#define AVOID_STALLED_MS 5000
#define STALL_SERVICE_TIMES 4  /* silent for so many usual service times: stalled */
#define STALL_UNKNOWN_FACTOR 4 /* patience while no piece has arrived from anybody */
#define LATE_SERVICE_TIMES 3   /* in the endgame: so many service times of the other source */
#define LATE_MS_MIN 20
#define SAMPLE 16u      /* candidates compared for rarity per choice */
#define SERVICE_SHIFT 3 /* service times are kept in 1/8 ms */

enum piece_state {
    PIECE_MISSING = 0,
    PIECE_IN_FLIGHT,
    PIECE_RECALLED, /* in flight, but its source is slow and the caller was told to cancel it */
    PIECE_DONE,
};

struct source {
    bool is_used;
    bool chooses;         /* says which pieces it gives, and has to know which ones we have */
    bool is_claiming;     /* a claim is out */
    bool has_all;         /* every piece but those in lacks */
    uint64_t *has;        /* owned bitmap; NULL: none yet */
    uint64_t *lacks;      /* owned bitmap; NULL: none */
    uint32_t *candidates; /* owned: pieces it has (not has_all); those that are done are dropped when met */
    uint32_t candidate_count, candidate_capacity;
    uint32_t slots;    /* granted, not in use */
    uint32_t *granted; /* owned: SWARM_CLAIM_MAX pieces for some of these slots; NULL: none yet */
    uint32_t granted_count;
    uint32_t wanted;     /* slots that the claim asks for */
    uint32_t reported;   /* slots in use as the source knows it */
    uint32_t refused_at; /* slots in use at a claim that gave nothing: to be asked when fewer are */
    uint32_t told;       /* log entries that it knows */
    uint32_t in_flight;
    int64_t service; /* smoothed time from request to arrival, 1/8 ms; -1: unknown */
    int64_t avoid_until_ms;
    int64_t last_progress_ms; /* last delivery, or when it got something to do */
};

struct swarm {
    struct swarm_config config;
    struct random random;
    uint8_t *state;       /* enum piece_state per piece */
    uint32_t *holder;     /* source of a piece in flight */
    int64_t *started_ms;  /* when a piece in flight was requested */
    uint16_t *replicas;   /* how many partial sources have the piece */
    uint32_t *missing;    /* the missing pieces, in no order */
    uint32_t *missing_at; /* where a missing piece stands in it */
    uint32_t missing_count, in_flight_count, done_count;
    uint64_t *is_logged; /* bitmap */
    uint32_t *log;       /* pieces that were requested or were here, each once: what handing sources must know */
    uint32_t log_count;
    struct source *sources; /* owned; grows */
    uint32_t source_count, source_capacity;
    int64_t service;                              /* as in struct source, over all sources */
    uint32_t rate_window, window_min, window_max; /* pieces in flight; rate_window: that the rate keeps busy */
    uint32_t arrived;                             /* pieces since rate_since_ms */
    int64_t rate_since_ms;                        /* -1: nothing has arrived yet */
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

static void log_add(struct swarm *swarm, uint32_t piece)
{
    if (bit_is_set(swarm->is_logged, piece))
        return;
    swarm->is_logged[piece / 64] |= UINT64_C(1) << (piece % 64);
    swarm->log[swarm->log_count++] = piece;
}

/* Pieces of so many bytes, within bounds. */
static uint32_t window_for(const struct swarm *swarm, uint64_t bytes, uint32_t min)
{
    uint64_t pieces = bytes / (swarm->config.piece_bytes ? swarm->config.piece_bytes : 1);

    return pieces < min ? min : pieces > WINDOW_PIECES_MAX ? WINDOW_PIECES_MAX : (uint32_t)pieces;
}

enum shoal_status swarm_create(const struct swarm_config *config, struct swarm **swarm_out)
{
    size_t count = config->piece_count;
    struct swarm *swarm = calloc(1, sizeof *swarm);

    if (!swarm)
        return SHOAL_NO_MEMORY;
    swarm->config = *config;
    if (!swarm->config.stall_ms)
        swarm->config.stall_ms = STALL_MS_DEFAULT;
    swarm->window_min = window_for(swarm, SWARM_WINDOW_MIN_BYTES, SWARM_WINDOW_MIN_PIECES);
    swarm->window_max = window_for(
        swarm, config->window_max_bytes ? config->window_max_bytes : WINDOW_MAX_BYTES_DEFAULT, swarm->window_min);
    swarm->service = -1;
    swarm->rate_since_ms = -1;
    random_init(&swarm->random, config->seed);
    swarm->state = calloc(count + 1, sizeof *swarm->state);
    swarm->holder = calloc(count + 1, sizeof *swarm->holder);
    swarm->started_ms = calloc(count + 1, sizeof *swarm->started_ms);
    swarm->replicas = calloc(count + 1, sizeof *swarm->replicas);
    swarm->missing = calloc(count + 1, sizeof *swarm->missing);
    swarm->missing_at = calloc(count + 1, sizeof *swarm->missing_at);
    swarm->is_logged = calloc(count / 64 + 1, sizeof *swarm->is_logged);
    swarm->log = calloc(count + 1, sizeof *swarm->log);
    if (!swarm->state || !swarm->holder || !swarm->started_ms || !swarm->replicas || !swarm->missing ||
        !swarm->missing_at || !swarm->is_logged || !swarm->log) {
        swarm_destroy(swarm);
        return SHOAL_NO_MEMORY;
    }
    for (uint32_t piece = 0; piece < config->piece_count; piece++)
        missing_add(swarm, piece);
    *swarm_out = swarm;
    return SHOAL_OK;
}

/* A small swarm may have more under way (handout.c says why). */
static uint32_t window_of(const struct swarm *swarm)
{
    uint32_t least = swarm->window_min;

    if (swarm->source_count <= FEW_SOURCES)
        least += least * 3 / 5;
    return swarm->rate_window > least ? swarm->rate_window : least;
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
    free(source->granted);
    memset(source, 0, sizeof *source);
}

void swarm_destroy(struct swarm *swarm)
{
    if (!swarm)
        return;
    for (uint32_t i = 0; i < swarm->source_count; i++)
        source_release(&swarm->sources[i]);
    free(swarm->sources);
    free(swarm->log);
    free(swarm->is_logged);
    free(swarm->missing_at);
    free(swarm->missing);
    free(swarm->replicas);
    free(swarm->started_ms);
    free(swarm->holder);
    free(swarm->state);
    free(swarm);
}

void swarm_have(struct swarm *swarm, uint32_t piece)
{
    if (piece >= swarm->config.piece_count || swarm->state[piece] != PIECE_MISSING)
        return;
    missing_remove(swarm, piece);
    swarm->state[piece] = PIECE_DONE;
    swarm->done_count++;
    log_add(swarm, piece);
}

static bool grow_sources(struct swarm *swarm)
{
    uint32_t capacity = swarm->source_capacity ? swarm->source_capacity * 2 : 8;
    struct source *sources;

    if (swarm->source_capacity == SWARM_SOURCES_MAX)
        return false;
    sources = realloc(swarm->sources, capacity * sizeof *sources);
    if (!sources)
        return false;
    swarm->sources = sources;
    swarm->source_capacity = capacity;
    return true;
}

uint32_t swarm_source_add(struct swarm *swarm, bool is_complete)
{
    uint32_t number = 0;

    while (number < swarm->source_count && swarm->sources[number].is_used)
        number++;
    if (number == swarm->source_capacity && !grow_sources(swarm))
        return SWARM_NONE;
    if (number == swarm->source_count)
        swarm->source_count++;
    swarm->sources[number] = (struct source){
        .is_used = true, .chooses = is_complete, .has_all = is_complete, .refused_at = UINT32_MAX, .service = -1};
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

static bool source_is_ready(const struct source *source, int64_t now_ms)
{
    return source->is_used && source->avoid_until_ms <= now_ms;
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
    if (source->has_all)
        return choose_from(swarm, source, swarm->missing, &swarm->missing_count, false);
    return choose_from(swarm, source, source->candidates, &source->candidate_count, true);
}

static void start(struct swarm *swarm, uint32_t number, uint32_t piece, int64_t now_ms)
{
    struct source *source = &swarm->sources[number];

    missing_remove(swarm, piece);
    log_add(swarm, piece);
    swarm->state[piece] = PIECE_IN_FLIGHT;
    swarm->holder[piece] = number;
    swarm->started_ms[piece] = now_ms;
    swarm->in_flight_count++;
    if (source->in_flight++ == 0)
        source->last_progress_ms = now_ms;
}

/* A piece for a slot of the source: what it has chosen, else the rarest that it offers. */
static uint32_t choose_for_slot(struct swarm *swarm, struct source *source)
{
    while (source->granted_count) {
        uint32_t piece = source->granted[--source->granted_count];
        if (swarm->state[piece] == PIECE_MISSING && source_offers(source, piece))
            return piece;
    }
    return swarm->missing_count ? choose_piece(swarm, source) : SWARM_NONE;
}

bool swarm_next(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out)
{
    uint32_t offset = swarm->source_count ? (uint32_t)random_below(&swarm->random, swarm->source_count) : 0;

    for (uint32_t i = 0; i < swarm->source_count; i++) {
        uint32_t number = i + offset < swarm->source_count ? i + offset : i + offset - swarm->source_count;
        struct source *source = &swarm->sources[number];

        while (source->slots) {
            uint32_t piece;
            /* What is not used now is given back: others wait for it. */
            if (!source_is_ready(source, now_ms) ||
                (swarm->in_flight_count >= WINDOW_EXCESS * window_of(swarm) && !source->granted_count))
                piece = SWARM_NONE;
            else
                piece = choose_for_slot(swarm, source);
            if (piece == SWARM_NONE) {
                source->slots = 0;
                break;
            }
            source->slots--;
            start(swarm, number, piece, now_ms);
            *source_out = number;
            *piece_out = piece;
            return true;
        }
    }
    return false;
}

/* --- claims --- */

/* Whether it offers something that is missing. */
static bool is_interesting(struct swarm *swarm, struct source *source, int64_t now_ms)
{
    uint32_t *list = source->has_all ? swarm->missing : source->candidates;
    uint32_t count = source->has_all ? swarm->missing_count : source->candidate_count;

    if (!swarm->missing_count || !source_is_ready(source, now_ms))
        return false;
    while (count-- > 0) {
        uint32_t piece = list[count];
        if (swarm->state[piece] == PIECE_MISSING && !bit_is_set(source->lacks, piece))
            return true;
        if (!source->has_all && swarm->state[piece] == PIECE_DONE)
            list[count] = list[--source->candidate_count];
    }
    return false;
}

/* How many slots we would like to have at the source, those in use included. */
static uint32_t wanted_of(struct swarm *swarm, struct source *source, int64_t now_ms)
{
    uint32_t room = swarm->in_flight_count < window_of(swarm) ? window_of(swarm) - swarm->in_flight_count : 0;
    uint32_t wanted = source->in_flight + room;

    if ((!room && !source->chooses) || !is_interesting(swarm, source, now_ms))
        return 0;
    if (wanted < CLAIM_MIN)
        wanted = CLAIM_MIN;
    return wanted < SWARM_CLAIM_MAX ? wanted : SWARM_CLAIM_MAX;
}

bool swarm_next_claim(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *wanted_out,
                      uint32_t *outstanding_out)
{
    uint32_t offset = swarm->source_count ? (uint32_t)random_below(&swarm->random, swarm->source_count) : 0;

    for (uint32_t i = 0; i < swarm->source_count; i++) {
        uint32_t number = i + offset < swarm->source_count ? i + offset : i + offset - swarm->source_count;
        struct source *source = &swarm->sources[number];
        uint32_t used = source->in_flight + source->slots, wanted = 0;

        if (!source->is_used || source->is_claiming)
            continue;
        if (!used || used < source->refused_at)
            wanted = wanted_of(swarm, source, now_ms);
        /* A claim for each single piece of a wide window would cost more than it helps. */
        if (wanted <= used || (wanted - used < window_of(swarm) / 8 && used >= CLAIM_MIN))
            wanted = used;
        if (wanted == used && (used >= source->reported || (used && source->reported - used < window_of(swarm) / 10)))
            continue;
        source->is_claiming = true;
        source->reported = used;
        source->wanted = wanted - used;
        *source_out = number;
        *wanted_out = source->wanted;
        *outstanding_out = used;
        return true;
    }
    return false;
}

uint32_t swarm_taken(struct swarm *swarm, uint32_t number, uint32_t *pieces_out, uint32_t max)
{
    struct source *source = &swarm->sources[number];
    uint32_t count = 0;

    while (source->chooses && source->told < swarm->log_count && count < max) {
        uint32_t piece = swarm->log[source->told++];
        if (!is_in_flight_at(swarm, piece, number))
            pieces_out[count++] = piece;
    }
    return count;
}

bool swarm_claimed(struct swarm *swarm, uint32_t number, uint32_t slots, const uint32_t *pieces, uint32_t count)
{
    struct source *source = &swarm->sources[number];

    if (count > slots || slots > source->wanted)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i] >= swarm->config.piece_count)
            return false;
    }
    if (slots && !count) /* it chooses nothing for us, or nothing more */
        source->chooses = false;
    source->is_claiming = false;
    source->refused_at = slots ? UINT32_MAX : source->reported;
    source->slots += slots;
    source->reported += slots;
    if (count && !source->granted)
        source->granted = calloc(SWARM_CLAIM_MAX, sizeof *source->granted);
    for (uint32_t i = 0; i < count; i++) {
        if (source->granted && source->granted_count < SWARM_CLAIM_MAX)
            source->granted[source->granted_count++] = pieces[i];
    }
    return true;
}

/* --- outcomes --- */

static void end_flight(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    (void)piece; /* without assertions */
    assert(is_in_flight_at(swarm, piece, number));
    swarm->sources[number].in_flight--;
    swarm->in_flight_count--;
}

/* In flight: bandwidth times target delay. If the window was the limit its pieces came sooner than the target, and the
 * product is above it; if it was wider than needed they came later, and the product is below. */
static void measure_rate(struct swarm *swarm, int64_t now_ms)
{
    uint64_t window;

    if (swarm->rate_since_ms < 0)
        swarm->rate_since_ms = now_ms;
    swarm->arrived++;
    if (now_ms - swarm->rate_since_ms < RATE_WINDOW_MS)
        return;
    window = (uint64_t)swarm->arrived * WINDOW_TARGET_MS / (uint64_t)(now_ms - swarm->rate_since_ms);
    if (window > swarm->window_max)
        window = swarm->window_max;
    swarm->rate_window = (uint32_t)window;
    swarm->arrived = 0;
    swarm->rate_since_ms = now_ms;
}

static void smooth(int64_t *service, int64_t sample_ms)
{
    int64_t sample = sample_ms << SERVICE_SHIFT;

    *service = *service < 0 ? sample : *service + (sample - *service) / 8;
}

void swarm_done(struct swarm *swarm, uint32_t number, uint32_t piece, int64_t now_ms)
{
    struct source *source = &swarm->sources[number];
    int64_t service_ms = now_ms - swarm->started_ms[piece];

    end_flight(swarm, number, piece);
    source->last_progress_ms = now_ms;
    smooth(&source->service, service_ms);
    smooth(&swarm->service, service_ms);
    measure_rate(swarm, now_ms);
    swarm->state[piece] = PIECE_DONE;
    swarm->done_count++;
}

void swarm_failed(struct swarm *swarm, uint32_t number, uint32_t piece)
{
    end_flight(swarm, number, piece);
    missing_add(swarm, piece);
}

/* --- sources that do not deliver --- */

/* How long an answer would take, as far as is known. */
static int64_t expected_service(const struct source *source)
{
    return ((int64_t)source->in_flight + 1) * (source->service < 1 ? 1 : source->service);
}

/* Another source that could serve the piece now; the one from which it is expected first. */
static const struct source *find_other(const struct swarm *swarm, uint32_t holder, uint32_t piece, int64_t now_ms)
{
    const struct source *best = NULL;

    for (uint32_t i = 0; i < swarm->source_count; i++) {
        const struct source *source = &swarm->sources[i];
        if (i != holder && source_is_ready(source, now_ms) && source_offers(source, piece) &&
            (!best || expected_service(source) < expected_service(best)))
            best = source;
    }
    return best;
}

/* On slow links a piece takes its time at every source: silence counts only against what is usual. */
static int64_t stall_ms(const struct swarm *swarm)
{
    int64_t usual = swarm->service < 0 ? STALL_UNKNOWN_FACTOR * swarm->config.stall_ms
                                       : (STALL_SERVICE_TIMES * swarm->service) >> SERVICE_SHIFT;

    return usual > swarm->config.stall_ms ? usual : swarm->config.stall_ms;
}

/* Endgame: nothing is left to ask for, and one that answers much faster could have delivered the piece long ago. */
static bool is_late(const struct swarm *swarm, uint32_t piece, const struct source *other, int64_t now_ms)
{
    int64_t age_ms = now_ms - swarm->started_ms[piece];

    return !swarm->missing_count && other->service >= 0 && age_ms >= LATE_MS_MIN &&
           (age_ms << SERVICE_SHIFT) > LATE_SERVICE_TIMES * expected_service(other);
}

bool swarm_next_stalled(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out)
{
    bool is_endgame = !swarm->missing_count && swarm->in_flight_count;

    for (uint32_t number = 0; number < swarm->source_count; number++) {
        struct source *source = &swarm->sources[number];
        bool is_stalled = source->in_flight && now_ms - source->last_progress_ms >= stall_ms(swarm);

        if (!source->in_flight || (!is_stalled && !is_endgame))
            continue;
        for (uint32_t piece = 0; piece < swarm->config.piece_count; piece++) {
            const struct source *other;
            if (swarm->state[piece] != PIECE_IN_FLIGHT || swarm->holder[piece] != number)
                continue;
            other = find_other(swarm, number, piece, now_ms);
            if (!other || (!is_stalled && !is_late(swarm, piece, other, now_ms)))
                continue;
            swarm_source_avoid(swarm, number,
                               now_ms + (is_stalled ? AVOID_STALLED_MS : now_ms - swarm->started_ms[piece]));
            swarm->state[piece] = PIECE_RECALLED;
            *source_out = number;
            *piece_out = piece;
            return true;
        }
    }
    return false;
}

bool swarm_is_urgent(const struct swarm *swarm, uint32_t piece)
{
    return swarm->replicas[piece] * RARE_SHARE < swarm->source_count ||
           swarm->done_count + URGENT_LAST_PIECES >= swarm->config.piece_count;
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
