/* SPDX-License-Identifier: Apache-2.0 */
/* Small requests of many threads to one owner travel together: while some are on their way, those that come meanwhile
 * wait, and go as one request when an answer is back (group commit, as databases do it for their logs). Many threads
 * save most of their system calls and wake-ups. The next request leaves a moment later (at most 60 us, and a quarter of
 * what the last one took) when threads whose answers have just come are expected back with their next call; a single
 * thread never waits.
 *
 * Any thread. Items live on the callers' stacks. */
#ifndef SHOAL_KV_COMBINER_H
#define SHOAL_KV_COMBINER_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/list.h"
#include "base/mutex.h"

#define COMBINER_ITEMS_MAX 64u

struct combiner;

struct combiner_item {
    /* set by the caller */
    uint64_t target;     /* only items of one target and kind travel together */
    unsigned kind;       /* the caller's */
    size_t len_bytes;    /* share of the bound */
    int64_t deadline_ms; /* of waiting for its turn; run has its own */
    /* private */
    struct list_node node;
    int state;    /* atomic */
    uint32_t bit; /* of the lane's futex, where it waits */
};

/* max_bytes: of items that travel together. NULL: out of memory. */
struct combiner *combiner_create(size_t max_bytes);
void combiner_destroy(struct combiner *combiner); /* nobody is inside; NULL is allowed */

/* Carries out count >= 1 items of one target and kind, on the thread of one of their callers. */
typedef void (*combiner_run_fn)(void *arg, struct combiner_item *const *items, size_t count);

/* Returns when run has carried out the item, here or on another thread (then with that thread's arg, which must mean
 * the same). TIMED_OUT: its turn did not come before its deadline; run has not seen it. */
enum shoal_status combiner_run(struct combiner *combiner, struct combiner_item *item, combiner_run_fn run, void *arg);

/* How many wait for their turn now; for tests and counters. */
size_t combiner_waiting(struct combiner *combiner);

#endif
