/* SPDX-License-Identifier: Apache-2.0 */
/* Who wants to know how far a call is. Everything here runs on the thread that made the call, without a lock held: the
 * callback is the user's. Each function does nothing for a call without progress. */
#ifndef SHOAL_BASE_PROGRESS_H
#define SHOAL_BASE_PROGRESS_H

#include "base/call.h"

struct call_progress {
    shoal_progress_fn fn;
    void *arg;
    int64_t interval_ms, started_ms, next_ms;
    uint64_t total_bytes, done_bytes; /* done_bytes grows, and ends at total_bytes */
    uint64_t past_bytes;              /* of parts that are over */
};

/* Makes call tell what public_call (NULL is allowed) asks for, if anything; progress lives as long as call.
 * INVALID_ARGUMENT. */
enum shoal_status call_progress_init(struct call *call, struct call_progress *progress,
                                     const struct shoal_call *public_call, struct shoal_error *error);

/* What is to be moved altogether, as soon as that is known. */
void call_progress_set_total(const struct call *call, uint64_t total_bytes);

/* So much of the current part has been moved; tells it if an interval has passed. After a second attempt has begun
 * nothing is told that is less than before. */
void call_progress_at(const struct call *call, uint64_t done_bytes);

/* The current part is over, and the next one begins. */
void call_progress_part(const struct call *call, uint64_t len_bytes);

/* When call_progress_at should be called again (base/clock.h); DEADLINE_NONE without progress. */
int64_t call_progress_next_ms(const struct call *call);

/* Of a call with progress; at most a minute. */
uint32_t call_progress_interval_ms(const struct call *call);

/* Tells the last time. is_ok: all of it has been moved. */
void call_progress_end(const struct call *call, bool is_ok);

#endif
