/* SPDX-License-Identifier: Apache-2.0 */
/* Tiered backend of a KV client: objects by key on DRAM and STORAGE tiers, ordered by priority. A put is
 * allocate -> write -> commit -> publish, and whatever is dropped on the way gives its space back. Readers hold counted
 * references: an object that was removed, evicted or moved meanwhile stays readable until its last reader lets go.
 *
 * Threads: every function may be called from any thread; those marked "blocks" may do disk I/O and must not be called
 * on an event loop. Keys are NUL-terminated, 1..TIER_KEY_MAX_BYTES bytes. */
#ifndef SHOAL_TIER_TIER_H
#define SHOAL_TIER_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "tier/tier_config.h"

#define TIER_KEY_MAX_BYTES 1024

struct shoal_engine;
struct tier_backend;

/* What happens in the background. Called on the backend's own thread without any of its locks; must not block for
 * long and may call the backend. */
struct tier_events {
    /* A published object is gone from here. */
    void (*evicted)(void *arg, const char *key, uint64_t object_id);
    /* A published object lies on another tier now. */
    void (*moved)(void *arg, const char *key, uint64_t object_id, unsigned tier);
    void *arg;
};

struct tier_backend_config {
    struct shoal_engine *engine;     /* DRAM tiers and staging buffers are registered with it; NULL: not registered */
    const struct tier_config *tiers; /* copied; at least one */
    size_t tier_count;               /* at most TIER_COUNT_MAX */
    unsigned lock_stripes;           /* 0: 1024 */
    unsigned staging_buffers;        /* of TIER_STAGING_BYTES each, for non-DRAM data; 0: 16 */
    /* Share of a tier's capacity, percent; 0: 70, 90, 95. Above high the background moves or evicts the least valuable
     * objects until low is reached; above critical an allocation evicts by itself. */
    unsigned watermark_low, watermark_high, watermark_critical;
};

#define TIER_STAGING_BYTES (1u << 20)

/* Allocates the DRAM, opens the STORAGE tiers and finds their content again. Blocks. INVALID_ARGUMENT: the
 * configuration (message names the tier and field); NO_MEMORY: DRAM beyond the memory; IO, PERMISSION, NO_SPACE:
 * storage path; BUSY: another process uses the storage path. */
enum shoal_status tier_backend_create(const struct tier_backend_config *config, struct tier_backend **backend_out,
                                      struct shoal_error *error);
/* All allocations and references must have been given back. STORAGE content stays on disk. NULL is allowed. Blocks. */
void tier_backend_destroy(struct tier_backend *backend);
/* events is copied; NULL: none. When it returns, no callback of the previous ones is running. */
void tier_backend_set_events(struct tier_backend *backend, const struct tier_events *events);

/* --- writing --- */

/* Space for one object that nobody sees yet. */
struct tier_allocation;

/* Takes len_bytes from the best tier that has room, evicting if it must. wants_dram: DRAM or NO_SPACE (caller-driven
 * writes need an address). Never blocks on disk. INVALID_ARGUMENT: key; EXISTS: the key is published or committed here;
 * LIMIT: larger than every tier; NO_SPACE: no room now; NO_MEMORY. len_bytes 0 is legal. */
enum shoal_status tier_allocate(struct tier_backend *backend, const char *key, uint64_t len_bytes, bool wants_dram,
                                struct tier_allocation **allocation_out, struct shoal_error *error);
/* Where to write; NULL if the object does not lie in DRAM (then tier_write). Stable until commit or drop. */
void *tier_allocation_data(const struct tier_allocation *allocation);
uint64_t tier_allocation_len(const struct tier_allocation *allocation);
/* Key of the engine's registration of that memory; 0 without engine. */
uint64_t tier_allocation_memory_key(const struct tier_allocation *allocation);
/* Copies into the object. DRAM: never blocks. STORAGE: blocks; in order, offsets multiples of TIER_STAGING_BYTES except
 * that the last one may have any length. IO, NO_SPACE. */
enum shoal_status tier_write(struct tier_allocation *allocation, uint64_t offset_bytes, const void *data,
                             size_t len_bytes, struct shoal_error *error);
/* Gives everything back. NULL is allowed. */
void tier_allocation_drop(struct tier_allocation *allocation);

struct tier_object;

/* The object is complete. Takes the allocation in every case. On success the key is taken here, but readers do not see
 * it until tier_publish; object_out is a reference to be given to tier_publish or tier_abandon. object_id 0: a new
 * random one, else that one (a copy of an object elsewhere). EXISTS: another one was faster. Blocks for STORAGE. */
enum shoal_status tier_commit(struct tier_allocation *allocation, uint64_t object_id, struct tier_object **object_out,
                              struct shoal_error *error);
/* Readers see it from now on; the caller's reference stays. STORAGE: its index entry is written before (blocks); IO:
 * not published and abandoned. */
enum shoal_status tier_publish(struct tier_object *object, struct shoal_error *error);
/* Takes a committed, not published object back and drops the caller's reference. Never blocks on disk. */
void tier_abandon(struct tier_object *object);

/* --- reading --- */

/* A new reference to a published object. NOT_FOUND. Never blocks on disk. Counts as an access. */
enum shoal_status tier_get(struct tier_backend *backend, const char *key, struct tier_object **object_out);
void tier_object_ref(struct tier_object *object);
void tier_object_unref(struct tier_object *object); /* NULL is allowed */

uint64_t tier_object_id(const struct tier_object *object);
uint64_t tier_object_len(const struct tier_object *object);
unsigned tier_object_tier(const struct tier_object *object); /* index in the configuration */
const char *tier_object_key(const struct tier_object *object);
/* NULL: not in DRAM, use tier_read. Valid as long as the reference. */
const void *tier_object_data(const struct tier_object *object);
uint64_t tier_object_memory_key(const struct tier_object *object);
/* Copies [offset, offset+len) out. Blocks for STORAGE. CORRUPTED: the checksum of what was read is wrong (the object
 * has been taken away and evicted was told); IO. */
enum shoal_status tier_read(struct tier_object *object, uint64_t offset_bytes, void *out, size_t len_bytes,
                            struct shoal_error *error);

/* --- removing, listing --- */

/* object_id 0: whichever. NOT_FOUND. No evicted event. Space is free when the last reader has let go. STORAGE: the
 * index entry is gone before it returns (blocks). */
enum shoal_status tier_remove(struct tier_backend *backend, const char *key, uint64_t object_id);
bool tier_has(struct tier_backend *backend, const char *key); /* published; does not count as an access */

/* Calls fn for every published object, in no order; objects that come or go meanwhile may be seen or not. fn returns
 * false to end. Without locks. false: out of memory, not all were seen. */
bool tier_each(struct tier_backend *backend, bool (*fn)(void *arg, struct tier_object *object), void *arg);

/* --- staging buffers: registered DRAM of TIER_STAGING_BYTES for data that is on no DRAM tier --- */

/* NULL: all are in use (try again when one is released) . Never blocks. */
void *tier_staging_take(struct tier_backend *backend);
void tier_staging_give(struct tier_backend *backend, void *buffer);
uint64_t tier_staging_memory_key(const struct tier_backend *backend);

/* --- seeing --- */

struct tier_usage {
    enum tier_type type;
    int priority;
    uint64_t capacity_bytes, used_bytes; /* used: also by objects that only readers hold */
    uint64_t object_count, evictions, promotions, offloads, checksum_errors;
};
size_t tier_count(const struct tier_backend *backend);
void tier_usage(struct tier_backend *backend, unsigned tier, struct tier_usage *usage_out);
/* Prometheus text: shoal_tier_*. false: out of memory or bound reached. */
bool tier_metrics(struct tier_backend *backend, struct buf *out);

#endif
