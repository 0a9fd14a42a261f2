/* SPDX-License-Identifier: Apache-2.0 */
/* The one door to a client's own objects, for local callers and for the client RPC service: tiers, announcements to the
 * master and bytes moved by the engine. A put is allocate -> write -> commit -> announce -> publish; whatever fails
 * gives back what it took. Per key, the stripes of the tiered backend (MOONCAKE_DM_LOCK_SHARD_COUNT) order what
 * happens.
 *
 * Threads: "blocks" functions from any thread but an event loop; the others from any. */
#ifndef SHOAL_KV_DATA_MANAGER_H
#define SHOAL_KV_DATA_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/call.h"
#include "kv/session.h"
#include "tier/tier.h"

struct data_manager;

/* backend and session are borrowed. Takes the session's drop notices (objects removed elsewhere are removed here, on a
 * thread of the manager's own) and the backend's events (the session announces what is evicted and moved). */
enum shoal_status data_manager_create(struct tier_backend *backend, struct session *session,
                                      struct data_manager **manager_out, struct shoal_error *error);
/* Stops the session first, so that what is being finished ends (CANCELED). Not on the loop. NULL is allowed. */
void data_manager_destroy(struct data_manager *manager);

/* Local put of a whole value from the caller's memory. Blocks. EXISTS (here or anywhere in the cluster), NO_SPACE,
 * LIMIT, IO, TIMED_OUT, UNREACHABLE (the master: nothing stays). object_id_out may be NULL. object_id not 0: a replica.
 */
enum shoal_status data_manager_put(struct data_manager *manager, const char *key, const void *data, uint64_t len_bytes,
                                   uint64_t object_id, const struct call *call, uint64_t *object_id_out,
                                   struct shoal_error *error);

/* Commits what is written and announces it. Takes the allocation in every case. OK: done runs exactly once, on the
 * session's loop or a worker, never inside; with its status OK the object is published. Else there is no done:
 * NO_MEMORY, LIMIT (too many are being finished). Never blocks. timeout_ms 0: the session's. */
typedef void (*data_manager_done_fn)(void *arg, enum shoal_status status, uint64_t object_id, unsigned tier,
                                     const struct shoal_error *error);
enum shoal_status data_manager_finish(struct data_manager *manager, struct tier_allocation *allocation,
                                      uint64_t object_id, int64_t timeout_ms, data_manager_done_fn done, void *arg,
                                      struct shoal_error *error);

/* Removes the local copy and withdraws its route. Blocks. object_id 0: whichever. NOT_FOUND. */
enum shoal_status data_manager_delete(struct data_manager *manager, const char *key, uint64_t object_id,
                                      struct shoal_error *error);

struct tier_backend *data_manager_backend(struct data_manager *manager);

struct data_manager_counters {
    uint64_t puts, put_failures, deletes, drops;
};
void data_manager_counters(struct data_manager *manager, struct data_manager_counters *out);

/* MOONCAKE_DM_LOCK_SHARD_COUNT, for tier_backend_config.lock_stripes; unset or empty: 0 (the default).
 * INVALID_ARGUMENT: not a number of 1..1048576. */
enum shoal_status data_manager_lock_shards(unsigned *stripes_out, struct shoal_error *error);

#endif
