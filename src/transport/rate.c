/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rate.h"

#include <assert.h>

#define NS_PER_S 1000000000ull
#define BURST_NS 20000000ull /* timers count in milliseconds and are late on a busy machine */
#define BURST_MIN_BYTES (64ull << 10)
#define QUANTUM_MIN_BYTES (4ull << 10)
#define QUANTUM_MAX_BYTES (4ull << 20)
#define QUANTA_PER_S 100

static int64_t time_of(const struct rate_limiter *limiter, uint64_t bytes)
{
    return (int64_t)((bytes * NS_PER_S + limiter->bytes_per_s - 1) / limiter->bytes_per_s);
}

void rate_init(struct rate_limiter *limiter, uint64_t bytes_per_s)
{
    uint64_t quantum = bytes_per_s / QUANTA_PER_S;

    *limiter = (struct rate_limiter){.bytes_per_s = bytes_per_s};
    mutex_init(&limiter->mutex, RANK_TRANSPORT);
    limiter->quantum_bytes = quantum < QUANTUM_MIN_BYTES   ? QUANTUM_MIN_BYTES
                             : quantum > QUANTUM_MAX_BYTES ? QUANTUM_MAX_BYTES
                                                           : quantum;
    if (bytes_per_s > 0) {
        limiter->burst_ns = time_of(limiter, BURST_MIN_BYTES);
        if (limiter->burst_ns < (int64_t)BURST_NS)
            limiter->burst_ns = (int64_t)BURST_NS;
    }
}

void rate_release(struct rate_limiter *limiter)
{
    mutex_release(&limiter->mutex);
}

int64_t rate_reserve(struct rate_limiter *limiter, uint64_t wanted, int64_t now_ns, uint64_t *bytes_out)
{
    uint64_t bytes = wanted < limiter->quantum_bytes ? wanted : limiter->quantum_bytes;
    int64_t start_ns;

    assert(limiter->bytes_per_s > 0 && wanted > 0);
    mutex_lock(&limiter->mutex);
    start_ns = now_ns - limiter->burst_ns;
    if (start_ns < limiter->next_ns)
        start_ns = limiter->next_ns;
    limiter->next_ns = start_ns + time_of(limiter, bytes);
    mutex_unlock(&limiter->mutex);
    *bytes_out = bytes;
    return start_ns;
}
