/* SPDX-License-Identifier: Apache-2.0 */
/* How far a register or a get_replica has come: a display on a terminal, JSON lines with --json, else nothing. */
#ifndef SHOAL_CMD_PROGRESS_H
#define SHOAL_CMD_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/store.h>

struct app;

struct progress {
    const struct app *app; /* borrowed */
    const char *name;      /* borrowed */
    const char *verb;      /* "hashing", "getting" */
    bool is_live, is_json;
    double rate_bps; /* smoothed */
    uint64_t last_bytes, last_ms, done_bytes, reused_bytes, checked_bytes, elapsed_ms;
    struct shoal_source_stats *sources; /* owned: what the last call said */
    size_t source_count;
};

void progress_init(struct progress *progress, const struct app *app, const char *name, const char *verb);
/* A shoal_progress_fn; arg is the struct progress. */
void progress_show(void *arg, const struct shoal_progress *now);
/* The largest giver first, then by name: for qsort over struct shoal_source_stats. */
int progress_compare_sources(const void *a, const void *b);
/* Removes the display. */
void progress_end(struct progress *progress);
void progress_release(struct progress *progress);

#endif
