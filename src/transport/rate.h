/* SPDX-License-Identifier: Apache-2.0 */
/* A rate limit that many connections share. Whoever wants to move bytes reserves them and is told from when on they may
 * move: reservations are served in order of asking, so no connection starves, whichever loop it lives on. */
#ifndef SHOAL_TRANSPORT_RATE_H
#define SHOAL_TRANSPORT_RATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mutex.h"

#define RATE_MIN_BYTES_PER_S                                                                                           \
    (64ull << 10) /* slower, and peers would take the silence between two packets for a stall */
#define RATE_MAX_BYTES_PER_S (1ull << 40)

struct rate_limiter {
    struct mutex mutex; /* RANK_TRANSPORT: guards next_ns */
    uint64_t bytes_per_s;
    uint64_t quantum_bytes; /* most that one reservation takes */
    int64_t burst_ns;       /* time that was not used can be made up for, as far as this */
    int64_t next_ns;        /* everything before it is given away */
};

/* bytes_per_s 0: no limit. */
void rate_init(struct rate_limiter *limiter, uint64_t bytes_per_s);
void rate_release(struct rate_limiter *limiter);
static inline bool rate_is_limited(const struct rate_limiter *limiter)
{
    return limiter->bytes_per_s > 0;
}
/* Reserves wanted bytes (at least 1), at most a quantum; how many goes to bytes_out. Returns when they may move, on
 * the clock of now_ns. A limit must be set. Any thread. */
int64_t rate_reserve(struct rate_limiter *limiter, uint64_t wanted, int64_t now_ns, uint64_t *bytes_out);

#endif
