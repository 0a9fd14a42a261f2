/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the engine; only src/engine includes it. */
#ifndef SHOAL_ENGINE_INTERNAL_H
#define SHOAL_ENGINE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hostport.h"
#include "base/list.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "transport/transport.h"

#define ENGINE_LOOPS_MAX SHOAL_IO_THREADS_MAX
#define ENGINE_TRANSPORTS_MAX 8
#define ENGINE_UNREGISTER_GRACE_MS 500
#define ENGINE_LEAVE_TIMEOUT_MS 2000
#define ENGINE_PATH_RETRY_MS 60000
#define ENGINE_PATH_RETRY_MAX_MS (60 * 60000)
#define ENGINE_FALLBACK_KINDS_MAX 32
#define ENGINE_METRIC_PEERS_MAX 64

struct membership;

struct engine_transport {
    const struct transport_ops *ops;
    struct transport *instance; /* owned */
};

struct engine_counters { /* atomic, relaxed */
    uint64_t ops_submitted, ops_completed, ops_failed, ops_canceled;
    uint64_t lease_losses, publish_failures, name_conflicts;
};

/* How often one transport was left for one reason. */
struct engine_fallback {
    const char *transport, *reason; /* static */
    uint64_t count;
};

struct shoal_engine {
    char *cluster, *server_name; /* owned */
    char address[HOSTPORT_TEXT_BYTES];
    int64_t lease_ttl_ms, connect_timeout_ms, progress_timeout_ms;
    uint64_t upload_limit_bytes_per_s, download_limit_bytes_per_s;
    unsigned upload_slots;
    int numa_node;                        /* of engine_numa_node */
    struct meta *meta;                    /* owned */
    struct loop *loops[ENGINE_LOOPS_MAX]; /* owned */
    unsigned loop_count;
    struct endpoint *endpoint;     /* owned */
    struct memory_table *memory;   /* owned */
    struct shared_table *shared;   /* owned */
    struct membership *membership; /* owned */
    struct engine_counters counters;

    struct mutex mutex;                                        /* RANK_ENGINE: guards what follows */
    struct cond changed;                                       /* active_ops or notify_running fell to 0 */
    struct engine_transport transports[ENGINE_TRANSPORTS_MAX]; /* last installed first; only grows, at the front */
    unsigned transport_count; /* atomic, so that paths are compared with it without the mutex */
    struct list peers;        /* struct engine_peer */
    struct engine_fallback fallbacks[ENGINE_FALLBACK_KINDS_MAX];
    unsigned fallback_count;
    uint64_t active_ops;
    shoal_notify_fn notify_fn;
    void *notify_arg;
    unsigned notify_running;

    unsigned direct_pause; /* atomic: this many submissions do not ask for a direct connection */

    /* loop 0 */
    struct list started;     /* engine_op.node: handed to a transport */
    struct list spare_xfers; /* struct engine_xfer, bounded */
    unsigned spare_xfer_count;
    bool is_closing;
    int64_t path_retry_ms;
};

/* One installed transport as the way to one peer. */
struct engine_path {
    const struct transport_ops *ops;
    struct transport *instance;    /* borrowed */
    struct transport_peer *remote; /* owned; NULL until the first use */
    const char *refusal;           /* static; why it is left alone; NULL: usable */
    char refusal_text[ENGINE_PATH_TEXT_BYTES];
    int64_t retry_ms;         /* with refusal: when one request may try it again */
    unsigned refusals;        /* one after the other */
    uint64_t requests, bytes; /* atomic, relaxed: that ended well */
};

/* A remote node; shared by segments and operations. */
struct engine_peer {
    struct list_node node; /* in engine->peers */
    struct shoal_engine *engine;
    uint64_t refs; /* under engine->mutex */
    uint64_t instance;
    char name[HELLO_NAME_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    struct loop_task close_task;
    /* Loop 0 writes them under engine->mutex and reads them without. */
    struct engine_path paths[ENGINE_TRANSPORTS_MAX]; /* preferred first */
    unsigned path_count;
    const char *in_use; /* transport of the last request; NULL: none yet */

    /* Of the transport in use, if it has TRANSPORT_CAP_DIRECT: for application threads, as long as they hold the peer.
     * Loop 0 changes them; all atomic, direct last. */
    const struct transport_direct_ops *direct_ops;
    int64_t direct_until_ms; /* then a request has to look whether a better transport can be tried again */
    struct transport_peer *direct;
};

struct shoal_segment {
    struct shoal_engine *engine;
    struct engine_peer *peer; /* ref */
};

static inline void engine_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* segment.c */
void engine_peer_ref(struct engine_peer *peer);
void engine_peer_unref(struct engine_peer *peer);

/* path.c; all on loop 0 */
/* The best usable way to the peer that has all of caps, among those behind after (NULL: all). NULL: there is none, and
 * error says why. The next call for the peer may move the path. */
struct engine_path *engine_peer_path(struct engine_peer *peer, const struct transport_ops *after, unsigned caps,
                                     struct shoal_error *error);
struct engine_path *engine_peer_path_of(struct engine_peer *peer, const struct transport_ops *ops);
/* A request was refused with UNSUPPORTED and goes another way. */
void engine_path_refused(struct engine_peer *peer, const struct transport_ops *ops,
                         const struct transport_request *request, const struct shoal_error *error);
/* A request has ended otherwise; it moved bytes if is_ok. */
void engine_path_worked(struct engine_peer *peer, const struct transport_ops *ops, bool is_ok, uint64_t bytes);
/* A request has ended well on a direct connection. Any thread. */
void engine_path_worked_directly(struct engine_peer *peer, const struct transport_direct_ops *ops, uint64_t bytes);
void engine_peer_abort_paths(struct engine_peer *peer);
void engine_peer_close_paths(struct engine_peer *peer);

/* op.c */
/* engine_submit in two steps, for many at once: prepare on any thread, start on loop 0 (done may run inside). */
void engine_op_prepare(struct shoal_engine *engine, struct engine_op *op);
void engine_op_start(struct engine_op *op);
/* An operation that a direct connection has: the state that goes with it. Another thread may look at it under the
 * batch's mutex. */
void engine_op_take(struct engine_op *op);
bool engine_op_is_taken(const struct engine_op *op);
void engine_op_requeue(struct engine_op *op);
/* Starts it on loop 0. */
void engine_op_start_soon(struct shoal_engine *engine, struct engine_op *op);
/* Ends one that was taken; any thread. error (owned from here on) may be NULL. */
void engine_op_finish(struct engine_op *op, const struct transport_direct_ops *ops, enum shoal_status status,
                      struct shoal_error *error);
/* Cancels started operations whose local memory lies in region (NULL: all). Loop 0. */
void engine_cancel_local(struct shoal_engine *engine, const struct memory_region *region);
void engine_release_spares(struct shoal_engine *engine);
/* The operation's outcome is there. Loop 0; done runs inside. */
void engine_op_end(struct engine_op *op, enum shoal_status status, const struct shoal_error *error);
/* Starts a part of an operation: its first block is filled in, local is staging memory. Loop 0; done does not run
 * inside. */
void engine_part_submit(struct engine_op *whole, struct engine_op *part);

/* stage.c; on loop 0 */
/* Carries the operation through staging buffers and ends it, later. NULL: out of memory. */
struct engine_stage *engine_stage_start(struct engine_op *op, struct shoal_engine *engine);
void engine_stage_cancel(struct engine_stage *stage);

/* membership.c */
enum shoal_status membership_create(struct shoal_engine *engine, const struct call *call, struct membership **out,
                                    struct shoal_error *error);
void membership_destroy(struct membership *membership);

/* node_record.c: the value of a node's key. */
struct node_record {
    char name[HELLO_NAME_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    uint64_t instance;
    char boot_id[64]; /* host's boot; with netns it tells whether two loopback addresses are the same place */
    char netns[64];
};
void node_record_own(struct node_record *record, const struct shoal_engine *engine);
/* JSON; NULL: out of memory. free() it. */
char *node_record_encode(const struct node_record *record);
/* PROTOCOL: malformed. */
enum shoal_status node_record_decode(struct node_record *record, const char *text, size_t len,
                                     struct shoal_error *error);

#endif
