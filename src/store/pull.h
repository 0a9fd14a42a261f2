/* SPDX-License-Identifier: Apache-2.0 */
/* One pull: fetches the index and then the pieces of a payload from its sources into local memory. A state machine on
 * loop 0; the calling thread starts it, watches it and decides about deadline and cancellation. */
#ifndef SHOAL_STORE_PULL_H
#define SHOAL_STORE_PULL_H

#include "store/store_internal.h"

struct pull;

struct pull_config {
    struct shoal_store *store;       /* borrowed */
    const char *name;                /* borrowed until pull_destroy */
    const struct manifest *manifest; /* borrowed until pull_destroy */
    const struct span_map *local;    /* borrowed; NULL: fetch the index only */
    bool no_verify;
    bool is_device; /* local is device memory; without reuse and previous */
    uint32_t max_sources;
    /* What may be here already; with either the pull requests no piece before pull_reuse has returned. */
    enum shoal_reuse reuse;              /* in local memory */
    const struct shoal_region *previous; /* borrowed, one for each of regions; NULL: none */
    const struct shoal_region *regions;  /* borrowed: what local was made from */
    size_t region_count;
};

enum pull_phase {
    PULL_INDEX,   /* looking for a source that gives the index */
    PULL_PIECES,  /* index is known */
    PULL_GROWING, /* and a piece is there: from now on this node is a source */
    PULL_ENDING,  /* waiting for requests in flight */
    PULL_ENDED,
};

enum shoal_status pull_create(const struct pull_config *config, struct pull **pull_out, struct shoal_error *error);
/* Begins. sources are copied. Not on the loop. */
void pull_start(struct pull *pull, const struct source_entry *sources, size_t count);
/* Sleeps until the phase is at least phase, until_ms (base/clock.h), or pull_wake. Any thread but the loop. */
enum pull_phase pull_wait(struct pull *pull, enum pull_phase phase, int64_t until_ms);
/* The call was canceled: pull_wait returns at once from now on. Any thread. */
void pull_wake(struct pull *pull);
/* From PULL_PIECES on, or after it has ended well. The index stays the pull's unless taken. */
const struct index_view *pull_index(const struct pull *pull);
const struct layout *pull_layout(const struct pull *pull);
uint8_t *pull_take_index(struct pull *pull, size_t *len_out); /* the views stay valid as long as the bytes do */
/* Verified pieces are announced through payload from now on (its serving side must have been started), those that are
 * there already at once. Not on the loop. */
void pull_set_payload(struct pull *pull, struct payload *payload);
/* Keeps the pieces that are in local memory and copies those that are in previous, after PULL_PIECES was reached, and
 * lets the pull fetch the rest. Digests on the store's pool and this thread, from which tick (may be NULL) is called
 * now and then. An error is the call's, or NOT_FOUND (SHOAL_REUSE_ONLY); nothing was told to the pull then, and nothing
 * touches the memory any more. Not on the loop. */
enum shoal_status pull_reuse(struct pull *pull, const struct call *call, void (*tick)(void *arg), void *arg,
                             struct shoal_error *error);
/* Ends the pull with status; returns when nothing writes to local memory any more. A result it already has stays. Not
 * on the loop. */
enum shoal_status pull_stop(struct pull *pull, enum shoal_status status, const struct shoal_error *why,
                            struct shoal_error *error);
/* Must have ended. Not on the loop. NULL is allowed. */
void pull_destroy(struct pull *pull);

/* News from the metadata service. Any thread. */
void pull_source_appeared(struct pull *pull, const struct source_entry *entry);
void pull_source_vanished(struct pull *pull, const char *name);
/* The manifest is gone (generation 0) or of another generation. */
void pull_manifest_changed(struct pull *pull, uint64_t generation);

/* Work so far; sources_out: array to be released with free(), may be NULL when empty. Not on the loop. */
void pull_progress(struct pull *pull, struct shoal_progress *progress_out, struct shoal_source_stats **sources_out);

#endif
