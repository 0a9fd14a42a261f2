/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads for what may block (disks, a peer): a bounded queue of tasks that are embedded in their owners, so
 * submitting allocates nothing.
 *
 * Threads: every function may be called from any thread. */
#ifndef SHOAL_BASE_EXECUTOR_H
#define SHOAL_BASE_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>

#include <shoal/status.h>

#include "base/list.h"

struct executor;

/* Zero-initialise before the first use. */
struct executor_task {
    struct list_node node;
    /* Runs exactly once per accepted submit, without locks; may submit, also its own task again, and may free it.
     * is_canceled: the executor is being destroyed and has not begun it: give back and return, without blocking. */
    void (*fn)(void *arg, bool is_canceled);
    void *arg;
    bool is_queued; /* guarded by the executor's mutex */
};

/* Starts the threads. name: at most 15 bytes. queue_max: of the tasks that wait for a thread; threads and queue_max at
 * least 1. NO_MEMORY; LIMIT: the system gives no more threads. */
enum shoal_status executor_create(const char *name, unsigned threads, size_t queue_max, struct executor **executor_out,
                                  struct shoal_error *error);
/* Waits for the tasks that have begun; those that wait are canceled: their fn runs on the calling thread with
 * is_canceled. Not from a task. NULL is allowed. */
void executor_destroy(struct executor *executor);

/* Tasks begin in the order of submitting. LIMIT: queue_max tasks wait; CLOSED: destroy has begun; in both cases fn does
 * not run. */
enum shoal_status executor_submit(struct executor *executor, struct executor_task *task,
                                  void (*fn)(void *arg, bool is_canceled), void *arg);
/* Takes a task back that waits. true: fn will not run. false: it runs, has run or was never submitted. */
bool executor_cancel(struct executor *executor, struct executor_task *task);

size_t executor_queued(struct executor *executor);

#endif
