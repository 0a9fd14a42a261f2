/* SPDX-License-Identifier: Apache-2.0 */
/* Thread pool for CPU work (digests). Threads start lazily. */
#ifndef SHOAL_BASE_POOL_H
#define SHOAL_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include <shoal/status.h>

struct pool;

enum shoal_status pool_create(unsigned threads, struct pool **pool_out, struct shoal_error *error);
/* No pool_for may be running. NULL is allowed. */
void pool_destroy(struct pool *pool);

/* Calls fn(arg, i) for i in [0, count) on the pool's threads and the caller's. Returns when all calls that began have
 * ended. If fn returns false no further indexes are begun. Concurrent callers share the threads. */
void pool_for(struct pool *pool, size_t count, bool (*fn)(void *arg, size_t index), void *arg);

unsigned pool_thread_count(const struct pool *pool);

#endif
