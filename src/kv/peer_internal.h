/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the peer client; only src/kv/peer*.c includes it. */
#ifndef SHOAL_KV_PEER_INTERNAL_H
#define SHOAL_KV_PEER_INTERNAL_H

#include <sys/uio.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "kv/combiner.h"
#include "kv/peer.h"
#include "kv/service.h"
#include "wire/kv.pb-c.h"
#include "wire/unpack.h"

#define PEER_INLINE_MAX_BYTES (192u << 10)
/* Of one request or answer; what messages need beside keys and values has room behind it. */
#define PEER_BATCH_REQUEST_BYTES (60u << 10) /* unless one value alone is longer */
#define PEER_BATCH_INLINE_BYTES (32u << 10)  /* of a batch of reads: values that are copied twice */
#define PEER_BATCH_ANSWER_BYTES (4u << 20)
#define PEER_BATCH_ITEMS 64u
/* At most, of a request's item beside key, value and memory, and of a memory beside its names: headers and numbers. */
#define PEER_ITEM_OVERHEAD_BYTES 48u
#define PEER_MEMORY_OVERHEAD_BYTES 64u
#define PEER_LEASES_PER_REQUEST 4096u

enum peer_way { PEER_WAY_TOLD = 0, PEER_WAY_INLINE = 1, PEER_WAY_WRITTEN = 2, PEER_WAY_PINNED = 3 };

struct peers {
    struct shoal_engine *engine;   /* borrowed */
    struct rpc_channels *channels; /* borrowed */
    struct combiner *combiner;     /* owned */
    uint32_t inline_max_bytes, read_inline_max_bytes;
    int64_t call_timeout_ms;

    struct mutex mutex;    /* RANK_KV: guards what follows */
    struct list exposures; /* struct exposure: memory that is registered for a transfer */
    struct map links;      /* struct peer_link by instance and address */
    struct list links_by_use;
};

/* The caller's, or the default. */
struct call peer_call_of(const struct peers *peers, const struct call *call);

/* What is asked of an owner. body_out is initialised, released by the caller in every case, and empty unless the owner
 * answered (with an error: its text). tail follows the packed message. */
struct peer_question {
    unsigned method;
    const ProtobufCMessage *message;
    const struct iovec *tail;
    int tail_count;
    size_t max_bytes;      /* of the packed message; 0: to be counted, which costs nearly as much as packing */
    bool is_once;          /* must not be repeated */
    struct rpc_sink *sink; /* of a request that asks for an attachment; else NULL; not with is_once */
};
enum shoal_status peer_ask(struct peers *peers, const struct peer_address *owner, const struct peer_question *question,
                           const struct call *call, struct buf *body_out, struct shoal_error *error);
/* PROTOCOL, for an answer that cannot be. */
static inline enum shoal_status peer_nonsense(const struct peer_address *owner, const char *what,
                                              struct shoal_error *error)
{
    return error_set(error, SHOAL_PROTOCOL, 0, "%s: %s", owner->address, what);
}
/* A status that came with a message; PROTOCOL if it is none. */
enum shoal_status peer_status(int32_t value);
/* Did the owner itself say that its transfer failed on the way? Then there is another one. */
bool peer_could_not_reach_us(enum shoal_status status, bool is_answer, const struct call *call);
/* INVALID_ARGUMENT. */
enum shoal_status peer_check_key(const char *key, struct shoal_error *error);

/* As peer_pre_write; object_id not 0: a replica. */
enum shoal_status peer_pre_write_as(struct peers *peers, const struct peer_address *owner, const char *key,
                                    uint64_t len_bytes, uint64_t object_id, const struct call *call,
                                    struct peer_lease *lease_out, struct shoal_error *error);

/* --- memory for one transfer (peer_memory.c) --- */

/* How the owner gets at memory of the caller while a transfer lasts. */
struct exposure {
    struct list_node node; /* in peers->exposures, if is_registered */
    void *memory;          /* to be transferred: the caller's or bounce */
    uint64_t len_bytes, key;
    unsigned access;
    bool is_registered; /* by us; else it lies in registered memory and has a window */
    bool is_closing;    /* under the mutex */
    void *bounce;       /* owned; the caller's memory overlaps what is registered, so a copy travels; or NULL */
    void *target;       /* the caller's */
};
/* access: enum shoal_access; with REMOTE_READ a bounce buffer is filled. */
enum shoal_status exposure_open(struct peers *peers, void *memory, uint64_t len_bytes, unsigned access,
                                struct exposure *exposure, struct shoal_error *error);
/* When it returns no peer accesses the memory any more. used_bytes: of a bounce buffer these go to the caller. */
void exposure_close(struct peers *peers, struct exposure *exposure, uint64_t used_bytes);
/* The message that names it; its strings are the engine's. */
void exposure_describe(const struct peers *peers, const struct exposure *exposure, Shoal__Wire__KvMemory *out);
/* What such a message adds to a packed request at most. */
size_t exposure_message_bytes(const struct peers *peers);

/* --- transfers that this side drives (peer_transfer.c) --- */

/* Did a transfer that we drove succeed lately where the owner's own could not? */
bool peer_is_one_way(struct peers *peers, const struct peer_address *owner);
void peer_links_release(struct peers *peers);

/* Fills memory with the whole object, by READs under pins. NOT_FOUND: it is gone. */
enum shoal_status peer_pull(struct peers *peers, const struct peer_address *owner, const char *key, uint64_t object_id,
                            void *memory, uint64_t len_bytes, const struct call *call, struct shoal_error *error);
/* WRITEs a new object into space at the owner and commits it. has_space_out (may be NULL) is set in every case; false:
 * the owner gave no space, and nothing has been written. */
enum shoal_status peer_push(struct peers *peers, const struct peer_address *owner, const struct peer_write *write,
                            const struct call *call, uint64_t *object_id_out, bool *has_space_out,
                            struct shoal_error *error);
/* Might the owner do by itself what it does not let us do? Then that is tried: the callers' progress is a wish. */
bool peer_refuses_leases(enum shoal_status status);

#endif
