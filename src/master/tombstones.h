/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that were removed lately: an owner that was away then must not bring them back by announcing what it holds.
 * A bounded set of object ids; the oldest go first. Not thread-safe; pure, the clock is the caller's. */
#ifndef SHOAL_MASTER_TOMBSTONES_H
#define SHOAL_MASTER_TOMBSTONES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tombstones {
    struct tombstone *ring; /* owned; capacity is a power of two */
    uint32_t *table;        /* owned; twice the capacity: place in the ring + 1, 0: free */
    size_t capacity, max_count, first, count;
    int64_t age_ms;
};

/* Grows up to max_count; each is forgotten after age_ms. */
void tombstones_init(struct tombstones *tombstones, size_t max_count, int64_t age_ms);
void tombstones_release(struct tombstones *tombstones);
/* now_ms must not go backwards. An id that is there keeps its age. false: out of memory. */
bool tombstones_add(struct tombstones *tombstones, uint64_t object_id, int64_t now_ms);
bool tombstones_has(const struct tombstones *tombstones, uint64_t object_id);
/* Forgets up to max that are too old. */
size_t tombstones_expire(struct tombstones *tombstones, int64_t now_ms, size_t max);
size_t tombstones_bytes(const struct tombstones *tombstones);

#endif
