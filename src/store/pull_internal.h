/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by pull.c (life, decisions), pull_source.c (one source's connection) and pull_fetch.c (one piece). Everything
 * belongs to loop 0 unless said otherwise. */
#ifndef SHOAL_STORE_PULL_INTERNAL_H
#define SHOAL_STORE_PULL_INTERNAL_H

#include <stdatomic.h>

#include "base/random.h"
#include "store/pull.h"
#include "swarm/swarm.h"

#define FETCH_PARTS_MAX 16u /* requests of one piece in flight: a piece may lie in many small regions */

enum source_state {
    SOURCE_IDLE,    /* known, not connected */
    SOURCE_OPENING, /* open call is out */
    SOURCE_OPEN,    /* in use */
    SOURCE_CLOSING, /* failed: waiting for its requests to end */
    SOURCE_DEAD,    /* never used again, unless the metadata service shows a new entry */
};

struct pull_source {
    struct list_node node;
    struct pull *pull;
    struct source_entry entry;
    enum source_state state;
    bool is_listed; /* the metadata service shows it */
    bool is_complete;
    bool is_starving;    /* waits for others itself, as it says */
    bool is_dead_after;  /* CLOSING ends in DEAD instead of IDLE */
    int64_t retry_at_ms; /* IDLE: not before */
    unsigned failures_in_row;
    struct rpc_client *client;     /* owned from OPENING to CLOSING */
    struct shoal_segment *segment; /* owned likewise */
    struct span_map spans;         /* the payload as it lies there */
    struct span index;             /* addr, len, key */
    uint32_t number;               /* in the swarm; SWARM_NONE: not in it */
    uint32_t position;             /* in its log of verified pieces */
    bool is_claim_waiting;         /* we have none of its slots: the answer to our claim brings some, or comes late */
    int64_t babble_until_ms;       /* answers without news so far, as time; see is_babbling */
    uint64_t request_count;        /* engine operations in flight */
    struct shoal_source_stats stats;
};

/* One piece on its way. */
struct fetch {
    struct list_node node;
    struct pull_source *source;
    uint32_t piece;
    uint64_t offset, len; /* in the payload */
    uint64_t submitted;   /* bytes given to the engine so far */
    unsigned part_count, active_parts;
    bool is_canceled;
    enum shoal_status status; /* first failure */
    struct shoal_error error;
    /* Owned; a piece in one part is digested while it arrives, and one in device memory, whose parts come one after the
     * other. NULL: afterwards. */
    struct digest_stream *stream;
    uint64_t part_offset; /* in the piece, of the part that is under way; with stream */
    uint64_t digested;    /* bytes; written on another thread until the part is done */
    struct engine_op parts[FETCH_PARTS_MAX];
};

struct pull {
    struct shoal_store *store;
    const char *name;
    const struct manifest *manifest;
    const struct span_map *local; /* NULL: index only */
    bool no_verify, is_device;
    uint32_t max_sources;
    enum shoal_reuse reuse;
    const struct shoal_region *previous, *regions;
    size_t region_count;
    struct random random;
    atomic_uint_fast64_t checked_bytes, matched_bytes; /* of pull_reuse, for display */

    /* shared with the calling thread */
    struct mutex mutex; /* RANK_PAYLOAD: guards phase, is_woken, result, error, news */
    struct cond changed;
    enum pull_phase phase;
    bool is_woken; /* the call was canceled: waiters look for themselves */
    enum shoal_status result;
    struct shoal_error error;
    struct list news; /* struct news, oldest first */
    bool is_news_posted;
    struct loop_task news_task;

    /* loop 0 */
    struct list sources;
    struct loop_timer tick;
    struct swarm *swarm; /* owned, from PULL_PIECES on */
    struct layout layout;
    struct index_view index;
    uint8_t *index_data; /* owned; NULL once taken */
    bool is_index_registered, is_index_in_flight;
    struct engine_op index_op;
    struct pull_source *index_source;
    struct payload *payload; /* borrowed; NULL: pieces are not announced */
    uint32_t *early;         /* owned: pieces verified before payload was set */
    uint32_t early_count;
    struct list fetches;
    struct digest_stream *stream; /* owned: pieces that lie in several regions */
    int64_t started_ms, last_progress_ms, sourceless_since_ms, last_fed_ms, next_stall_check_ms, last_review_ms;
    int64_t last_busy_ms; /* when a source had no upload slot for us */
    uint64_t done_bytes, reused_bytes;
    uint32_t done_pieces;
    bool is_checking;             /* what is here already is not known yet: nothing is fetched */
    uint64_t manifest_generation; /* as last heard; 0: gone */
    bool is_bad_seen;             /* some source served wrong bytes */
    bool is_in_schedule, is_stopping;
    struct shoal_error bad_error, last_error;
};

/* pull.c */
void pull_end(struct pull *pull, enum shoal_status status, const struct shoal_error *why);
void pull_review(struct pull *pull); /* what now: after every event */

/* pull_source.c */
struct pull_source *source_find(struct pull *pull, const char *name);
struct pull_source *source_add(struct pull *pull, const struct source_entry *entry);
void source_connect(struct pull_source *source);
/* Leaves the source: for ever (is_dead) or until its backoff has passed. */
void source_fail(struct pull_source *source, bool is_dead, const struct shoal_error *error);
void source_join_swarm(struct pull_source *source);
/* Reports the slots in use and asks for more; the answer leads to a review. */
void source_claim(struct pull_source *source, uint32_t wanted, uint32_t outstanding);
/* Brings the transport in stats up to date; without a connection it stays what it was last. */
void source_note_way(struct pull_source *source);
void source_request_ended(struct pull_source *source);
void source_close_all(struct pull *pull);
void source_destroy_all(struct pull *pull);

/* pull_fetch.c */
/* Of a piece as it lies in local memory. Any thread; stream: for pieces that lie in several regions. */
struct digest fetch_digest(const struct pull *pull, struct digest_stream *stream, uint64_t offset, uint64_t len);
void fetch_schedule(struct pull *pull);
void fetch_cancel_of_source(struct pull_source *source);

#endif
