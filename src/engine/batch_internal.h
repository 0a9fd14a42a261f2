/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by batch.c and direct.c; nobody else includes it. */
#ifndef SHOAL_ENGINE_BATCH_INTERNAL_H
#define SHOAL_ENGINE_BATCH_INTERNAL_H

#include "engine/engine_internal.h"

struct batch_entry {
    struct engine_op op;
    struct shoal_batch *batch;
    size_t span;                     /* first of a submission: how many it has */
    enum shoal_transfer_state state; /* under batch->mutex from submission on */
};

struct shoal_batch {
    struct shoal_engine *engine;
    size_t capacity, count; /* count: submitted; the submitting thread's */
    const struct transport_direct_ops *direct_ops;

    struct mutex mutex; /* RANK_ENGINE: guards what follows and the entries' states */
    struct cond changed;
    int fd; /* readable while pending == 0; -1: nobody has asked for it. Changed by the using thread */
    size_t pending;
    size_t first_failed; /* index; SIZE_MAX: none */
    struct shoal_error first_error;
    struct transport_direct *direct; /* lent to the batch; NULL: none. Changed by the using thread */
    bool is_direct_running;          /* its requests have not ended */
    bool is_direct_canceled;

    struct batch_entry entries[];
};

/* All on the thread that uses the batch, but for cancel. */

/* false: it goes the usual way. */
bool engine_direct_submit(struct shoal_batch *batch, struct batch_entry *first, size_t count);
/* Carries on with what the batch has on a direct connection, at most until the deadline. */
void engine_direct_drive(struct shoal_batch *batch, int64_t deadline_ms);
/* Gives the connection back if its requests have ended. */
void engine_direct_settle(struct shoal_batch *batch);
/* The batch's owner polls. */
void engine_direct_hand_over(struct shoal_batch *batch);
void engine_direct_cancel(struct shoal_batch *batch);

#endif
