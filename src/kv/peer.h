/* SPDX-License-Identifier: Apache-2.0 */
/* PeerClient: reads and writes the objects of other clients. Control by blocking channels on the caller's thread (or,
 * for batches, one request per owner), bytes by the engine. Each call's deadline (default 10 s) bounds the whole
 * operation; when it returns nothing reads or writes the caller's memory any more.
 *
 * Large values: memory that the engine does not know is registered for the time of the call, and the owner WRITEs to it
 * or READs from it (the registration's end is the fence). Memory that is registered already (shoal_kv_register, another
 * payload) is filled by own READs under a pin, and for puts held by the owner until the caller commits. So are all
 * large values of calls with progress (base/progress.h), unless the owner lends nothing. */
#ifndef SHOAL_KV_PEER_H
#define SHOAL_KV_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/engine.h>
#include <shoal/status.h>

#include "base/call.h"
#include "kv/session.h"
#include "rpc/channel.h"

struct peers;

struct peers_config {
    struct shoal_engine *engine;    /* borrowed */
    struct rpc_channels *channels;  /* borrowed */
    uint32_t inline_max_bytes;      /* of writes: larger values go by the engine; 0: 128 KiB; at most 192 KiB */
    uint32_t read_inline_max_bytes; /* of reads; 0: as inline_max_bytes; at most 1 MiB */
    int64_t call_timeout_ms;        /* 0: 10000 */
};
enum shoal_status peers_create(const struct peers_config *config, struct peers **peers_out, struct shoal_error *error);
void peers_destroy(struct peers *peers); /* no call may be running; NULL is allowed */

struct peer_address {
    const char *server_name, *address;
    uint64_t instance;
};

/* Where a value goes: into memory of the caller with room for capacity bytes; or, with memory NULL, into malloc'ed
 * memory (free()). */
struct peer_read {
    const char *key;
    uint64_t object_id; /* 0: whichever */
    void *memory;
    uint64_t capacity_bytes;
    /* out */
    enum shoal_status status;
    uint64_t len_bytes; /* also with LIMIT: memory is too small */
    uint64_t object_id_out;
};
/* NOT_FOUND, LIMIT (memory too small), UNREACHABLE, TIMED_OUT, CORRUPTED, IO, NO_MEMORY. */
enum shoal_status peer_read(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                            const struct call *call, struct shoal_error *error);
/* The results are in each item; the return value is the first that is not OK. */
enum shoal_status peer_read_batch(struct peers *peers, const struct peer_address *owner, struct peer_read *reads,
                                  size_t count, const struct call *call, struct shoal_error *error);

/* The same for one value that is one of many: small ones of other threads to the same owner may travel with it. */
enum shoal_status peer_read_shared(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                                   const struct call *call, struct shoal_error *error);

struct peer_write {
    const char *key;
    const void *data;
    uint64_t len_bytes;
    uint64_t object_id; /* not 0: a replica of that object */
    /* out */
    enum shoal_status status;
    uint64_t object_id_out;
};
/* EXISTS, NO_SPACE, LIMIT, UNREACHABLE, TIMED_OUT (it may or may not be there), IO. */
enum shoal_status peer_write(struct peers *peers, const struct peer_address *owner, struct peer_write *write,
                             const struct call *call, struct shoal_error *error);
enum shoal_status peer_write_batch(struct peers *peers, const struct peer_address *owner, struct peer_write *writes,
                                   size_t count, const struct call *call, struct shoal_error *error);
/* As peer_write; see peer_read_shared. */
enum shoal_status peer_write_shared(struct peers *peers, const struct peer_address *owner, struct peer_write *write,
                                    const struct call *call, struct shoal_error *error);
/* statuses_out: count of them. With object ids the request is repeated if its connection is lost: then what it has
 * deleted may say NOT_FOUND. */
enum shoal_status peer_delete(struct peers *peers, const struct peer_address *owner, const char *const *keys,
                              const uint64_t *object_ids, size_t count, const struct call *call,
                              enum shoal_status *statuses_out, struct shoal_error *error);

/* Does it answer at all? UNREACHABLE, TIMED_OUT, NO_MEMORY. */
enum shoal_status peer_ping(struct peers *peers, const struct peer_address *owner, const struct call *call,
                            struct shoal_error *error);

/* --- caller-driven transfers --- */

struct peer_lease {
    uint64_t lease_id;
    uint64_t remote_addr, remote_key, len_bytes, offset_bytes; /* what may be READ or WRITten with the engine */
    uint64_t object_id, value_len_bytes;
    int64_t lease_ms;
};
enum shoal_status peer_pin(struct peers *peers, const struct peer_address *owner, const char *key, uint64_t object_id,
                           uint64_t offset_bytes, const struct call *call, struct peer_lease *lease_out,
                           struct shoal_error *error);
enum shoal_status peer_unpin(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                             const struct call *call, struct shoal_error *error);
enum shoal_status peer_pre_write(struct peers *peers, const struct peer_address *owner, const char *key,
                                 uint64_t len_bytes, const struct call *call, struct peer_lease *lease_out,
                                 struct shoal_error *error);
enum shoal_status peer_write_commit(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                                    const struct call *call, uint64_t *object_id_out, struct shoal_error *error);
enum shoal_status peer_write_revoke(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                                    const struct call *call, struct shoal_error *error);
enum shoal_status peer_renew(struct peers *peers, const struct peer_address *owner, const uint64_t *lease_ids,
                             size_t count, const struct call *call, enum shoal_status *statuses_out,
                             struct shoal_error *error);

#endif
