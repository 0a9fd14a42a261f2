/* SPDX-License-Identifier: Apache-2.0 */
/* Where keys were found lately: key -> owners. A hint that its owner's answer corrects: bounded in number, bytes and
 * age; the least recently used goes first. Owners are kept once, however many keys they have, so that all routes to one
 * that died are forgotten at once.
 *
 * Threads: every function from any thread; the clock is the caller's (base/clock.h). */
#ifndef SHOAL_KV_ROUTE_CACHE_H
#define SHOAL_KV_ROUTE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/session.h"

#define ROUTE_REPLICAS_MAX 4 /* further ones are not remembered */

struct route_cache;

struct route {
    uint64_t object_id, len_bytes;
    size_t replica_count; /* at least 1 */
    struct session_replica replicas[ROUTE_REPLICAS_MAX];
};

/* Memory stays below about max_entries KiB, with keys of up to some hundred bytes far below. NULL: out of memory. */
struct route_cache *route_cache_create(size_t max_entries, int64_t max_age_ms);
void route_cache_destroy(struct route_cache *cache); /* NULL is allowed */

/* true: route_out is a copy. */
bool route_cache_get(struct route_cache *cache, const char *key, int64_t now_ms, struct route *route_out);
/* Adds or replaces. Does nothing without replicas or memory. */
void route_cache_put(struct route_cache *cache, const char *key, uint64_t object_id, uint64_t len_bytes,
                     const struct session_replica *replicas, size_t replica_count, int64_t now_ms);
void route_cache_forget(struct route_cache *cache, const char *key);
/* Takes the owner out of every route that is known now. */
void route_cache_forget_owner(struct route_cache *cache, uint64_t instance);

struct route_cache_counters {
    uint64_t hits, misses, evictions;
    size_t entries;
};
void route_cache_counters(struct route_cache *cache, struct route_cache_counters *out);

#endif
