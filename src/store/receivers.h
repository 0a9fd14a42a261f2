/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes pieces of one payload from this node, as the receivers report it themselves: the present ones, and those
 * that have left, for the account. No I/O; the caller tells the time. Belongs to loop 0. */
#ifndef SHOAL_STORE_RECEIVERS_H
#define SHOAL_STORE_RECEIVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/store.h>

#include "base/list.h"
#include "base/map.h"

#define RECEIVERS_MAX 4096u       /* present and gone; the one that left first is forgotten first */
#define RECEIVER_SILENCE_MS 15000 /* no report for so long: gone */

struct receivers {
    struct map by_name;    /* struct receiver, owned */
    struct list taking;    /* the one that was heard first is first */
    struct list gone;      /* the one that left first is first */
    unsigned taking_count; /* entries in taking */
    uint32_t piece_count;  /* of the payload */
    uint64_t total_bytes;  /* of the payload: nobody takes more in one pull */
    uint64_t bytes_served; /* taken from here by all, also by those who are forgotten */
};

struct receiver_report {
    const char *name;
    uint64_t taken_bytes; /* in its current pull so far */
    uint32_t pieces_have;
    const char *transport, *left_transports; /* NULL: not told; what is too long is cut */
    bool is_last;
};

void receivers_init(struct receivers *receivers);
/* The bounds of what a receiver can claim. Before the first report. */
void receivers_set_payload(struct receivers *receivers, uint32_t piece_count, uint64_t total_bytes);
void receivers_release(struct receivers *receivers); /* empty afterwards, may be used and released again */

/* Returns the bytes that are new in it. One more receiver than RECEIVERS_MAX are present: it is not noted. */
uint64_t receivers_report(struct receivers *receivers, const struct receiver_report *report, int64_t now_ms);
/* Its connection broke. Its next report makes it present again. */
void receivers_lost(struct receivers *receivers, const char *name);
/* Moves the silent ones to those that are gone. */
void receivers_age(struct receivers *receivers, int64_t now_ms);

/* At most max of them, those that take first, then the gone ones, the last one first; their number. */
size_t receivers_list(const struct receivers *receivers, int64_t now_ms, struct shoal_receiver_info *infos, size_t max);

#endif
