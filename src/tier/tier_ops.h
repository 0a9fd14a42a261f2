/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of tier implements. The backend knows keys, references and policy; a kind knows where bytes lie. The
 * backend checks arguments: a kind sees offsets and lengths inside the space and valid keys only.
 *
 * Threads: every operation may be called from any thread, different spaces at the same time; one space is written by
 * one thread at a time, and read only after seal. "Blocks" operations may do disk I/O; the others never do (they may
 * take a leaf lock of RANK_TIER_SPACE). No operation is called under a lock of the backend, and none calls back except
 * recover. */
#ifndef SHOAL_TIER_TIER_OPS_H
#define SHOAL_TIER_TIER_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "tier/tier_config.h"

struct shoal_engine;
struct tier;

/* Room for one object. First member of a kind's own struct, which the kind allocates; it also holds what belongs to the
 * bytes, as checksums. */
struct tier_space {
    uint64_t len_bytes; /* of the object, not rounded; set by allocate or recover */
};

/* Called for each object found at create. Takes the space over, whatever it returns; not OK ends recover with that
 * status. key is borrowed, NUL-terminated. */
typedef enum shoal_status (*tier_recovered_fn)(void *arg, const char *key, uint64_t object_id, struct tier_space *space,
                                               struct shoal_error *error);

/* An operation that a kind leaves out is filled in (tier_ops_fill): recover finds nothing, seal has nothing to do, a
 * kind that is not persistent has no persist and forget, and no background work. The others must be there. */
struct tier_ops {
    const char *name;

    /* config is borrowed for the call; index is its place in the configuration, for messages ("tier 1 (STORAGE): ...").
     * engine may be NULL. Blocks. Statuses as tier_backend_create. */
    enum shoal_status (*create)(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                struct tier **tier_out, struct shoal_error *error);
    /* Every space has been released. What is persisted stays. Blocks. */
    void (*destroy)(struct tier *tier);
    /* Once, before any other operation, on the thread of create: hands out what create found. Blocks. */
    enum shoal_status (*recover)(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error);

    /* NO_SPACE: no room now (the backend has compared len_bytes with max_object_bytes); NO_MEMORY. len_bytes 0 is
     * legal. error is not filled with NO_SPACE: this is asked often. */
    enum shoal_status (*allocate)(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                  struct shoal_error *error);
    /* The space is free at once. A persisted space has been forgotten before, but for the end: just before destroy all
     * spaces are released, and what is persisted stays on the disk. */
    void (*release)(struct tier *tier, struct tier_space *space);

    /* The object's memory, or NULL where it has no address (then write and read). Stable until release. */
    void *(*data)(const struct tier *tier, const struct tier_space *space);
    /* In order, from offset 0 without holes; every offset is a multiple of TIER_STAGING_BYTES, and every length but the
     * last one too. IO, NO_SPACE. Blocks where data is NULL. */
    enum shoal_status (*write)(struct tier *tier, struct tier_space *space, uint64_t offset_bytes, const void *data,
                               size_t len_bytes, struct shoal_error *error);
    /* All bytes are written; none will be. INVALID_ARGUMENT: fewer than len_bytes were (the kind counts them where data
     * is NULL). IO. Blocks where data is NULL. */
    enum shoal_status (*seal)(struct tier *tier, struct tier_space *space, struct shoal_error *error);
    /* Any range of a sealed space. CORRUPTED: the checksum is wrong; IO. Blocks where data is NULL. */
    enum shoal_status (*read)(struct tier *tier, struct tier_space *space, uint64_t offset_bytes, void *out,
                              size_t len_bytes, struct shoal_error *error);

    /* Makes a sealed space outlive the process: data first, then its index entry. Not OK: there is no entry. Blocks. */
    enum shoal_status (*persist)(struct tier *tier, struct tier_space *space, const char *key, uint64_t object_id,
                                 struct shoal_error *error);
    /* Takes the entry back; the space stays readable. is_durable: it is gone from the disk when this returns (blocks),
     * also not OK (IO) leaves the space to be released. Else never blocks: it is gone with the next durable operation
     * at the latest, and a crash before that may bring the object back, or an entry whose checksum fails. */
    enum shoal_status (*forget)(struct tier *tier, struct tier_space *space, bool is_durable,
                                struct shoal_error *error);

    /* A bounded piece of background work (compaction of the index, say). true: there is more now. Blocks. */
    bool (*maintain)(struct tier *tier);
};

/* First member of a kind's own struct; create sets everything but what atomic operations of the kind need. */
struct tier {
    const struct tier_ops *ops;
    uint64_t capacity_bytes;   /* usable, after rounding */
    uint64_t max_object_bytes; /* that fits into the empty tier */
    uint64_t memory_key;       /* the engine's registration of the memory behind data; 0: none */
    bool has_data;             /* data is never NULL */
    bool is_persistent;        /* persist and forget do something */
    /* Bytes that spaces occupy, rounded as they are. Atomic by __atomic builtins: written under the kind's lock, read
     * without it. */
    uint64_t used_bytes;
};

/* false: kind lacks what nothing can stand in for. */
bool tier_ops_fill(const struct tier_ops *kind, bool is_persistent, struct tier_ops *ops_out);

extern const struct tier_ops tier_ops_dram, tier_ops_storage;

#endif
