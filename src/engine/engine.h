/* SPDX-License-Identifier: Apache-2.0 */
/* What the folders above the engine use beside shoal/engine.h: one asynchronous operation without a batch, the shared
 * loop, endpoint and metadata connection, and membership. */
#ifndef SHOAL_ENGINE_ENGINE_H
#define SHOAL_ENGINE_ENGINE_H

#include <shoal/engine.h>

#include "base/buf.h"
#include "base/call.h"
#include "base/list.h"
#include "loop/loop.h"
#include "meta/meta.h"
#include "transport/endpoint.h"

/* Loop 0: endpoint, control connections, swarm scheduling and (on small machines) data. */
struct loop *engine_loop(struct shoal_engine *engine);
struct endpoint *engine_endpoint(struct shoal_engine *engine);
struct meta *engine_meta(struct shoal_engine *engine);
const char *engine_address(const struct shoal_engine *engine); /* "ip:port" as advertised */
const char *engine_cluster(const struct shoal_engine *engine); /* for engine/keys.h */
uint64_t engine_instance(const struct shoal_engine *engine);
/* The NUMA node of the device that has the engine's address, where its I/O threads run; -1: the machine has one node,
 * or the device belongs to none in particular. */
int engine_numa_node(const struct shoal_engine *engine);

/* --- windows --- */

/* A second key for a part of memory that is registered already: what a peer may do there ends with engine_window_close,
 * while the memory around stays as it is. Any thread. INVALID_ARGUMENT: not inside registered memory, access;
 * NO_MEMORY. */
enum shoal_status engine_window_open(struct shoal_engine *engine, void *addr, uint64_t len_bytes, unsigned access,
                                     uint64_t *key_out, struct shoal_error *error);
/* When it returns no peer accesses the memory by that key any more, and none will: it waits 500 ms for what is going
 * on, then drops the connections behind it. Blocks; not on a loop. A key that is none: nothing. */
void engine_window_close(struct shoal_engine *engine, uint64_t key);

/* --- memory --- */

/* Page-aligned memory, zeroed, not registered yet. Where processes are likely to be kept from reading each other's
 * memory (transport/shared.h) it is a file: a peer on this host that is granted any part of it then gets the file and
 * can read all of it, though never write, until it is freed. So this is for memory whose contents are for the cluster
 * anyway. NO_MEMORY, INVALID_ARGUMENT. Any thread. */
enum shoal_status engine_memory_alloc(struct shoal_engine *engine, uint64_t len_bytes, bool has_huge_pages,
                                      void **addr_out, struct shoal_error *error);
/* It must not be registered any more. Waits for loop 0. NULL: nothing. Any thread. */
void engine_memory_free(struct shoal_engine *engine, void *addr);

/* --- looking at registered memory --- */

/* Shows registered memory, wherever it lies, to fn, in order: in one piece, or in parts if it is device memory. fn
 * false: enough. Blocks; not on a loop. INVALID_ARGUMENT: not inside registered memory; IO: device memory that is gone;
 * NO_MEMORY. */
enum shoal_status engine_memory_read(struct shoal_engine *engine, const void *addr, uint64_t len_bytes,
                                     bool (*fn)(void *arg, const void *data, size_t len), void *arg,
                                     struct shoal_error *error);

/* --- segments without a metadata request --- */

/* Handle to a peer whose address and instance are known already (a source entry has them). Never blocks. */
enum shoal_status engine_segment_create(struct shoal_engine *engine, const char *server_name, const char *address,
                                        uint64_t instance, struct shoal_segment **segment_out,
                                        struct shoal_error *error);
/* --- peers --- */

#define ENGINE_PATHS_MAX 8
#define ENGINE_PATH_TEXT_BYTES 192

/* One transport as the way to one peer, best first. */
struct engine_path_view {
    const char *transport;             /* static */
    const char *refusal;               /* static; in a word or two why it is not taken; NULL: usable, as far as known */
    char text[ENGINE_PATH_TEXT_BYTES]; /* the same in a sentence; "" without refusal */
    bool is_in_use;                    /* took the last request */
    uint64_t requests, bytes;          /* that ended well */
};
struct engine_peer_view {
    const char *name, *address;
    uint64_t instance;
    const char *transport; /* static; in use; NULL: there was no request yet */
    unsigned path_count;
    struct engine_path_view paths[ENGINE_PATHS_MAX];
};
/* Calls fn for every peer that a segment or a pending operation refers to, in order of their creation. fn runs on the
 * calling thread and without locks; what it gets is valid during the call. Any thread. NO_MEMORY. */
enum shoal_status engine_peers_visit(struct shoal_engine *engine,
                                     void (*fn)(void *arg, const struct engine_peer_view *), void *arg);
/* What can be told in a line. Loop 0. */
struct engine_way {
    const char *transport;                    /* static; took the last request; NULL: there was none yet */
    char left[SHOAL_TRANSPORT_REASONS_BYTES]; /* "local: ptrace, rdma: no route": the better ones that were refused for
                                                 another reason than that the peer is out of their reach; "": none */
};
void engine_segment_way(const struct shoal_segment *segment, struct engine_way *way_out);
/* How long a transport that refused a peer is left alone (doubled with each refusal that follows, up to an hour);
 * 60 s. For tests. Any thread. */
void engine_set_path_retry_ms(struct shoal_engine *engine, int64_t retry_ms);

/* Fails every pending operation of the segment's peer with CANCELED and closes its connections. Any thread. */
void engine_segment_abort(struct shoal_segment *segment);

/* --- one asynchronous operation --- */

/* Embedded in the caller's object. The caller sets the first block, then engine_submit; until done has run the engine
 * owns it. done runs exactly once, on loop 0, never from inside engine_submit or engine_op_cancel; when it runs,
 * nothing reads or writes the local memory any more. status OK, INVALID_ARGUMENT (range, key, permission: local or
 * remote, see message), CANCELED, TIMED_OUT (no progress), UNREACHABLE (connect failed or lost), IO (memory
 * unreadable), PROTOCOL. */
struct engine_op {
    enum shoal_op op;
    struct shoal_segment *segment; /* borrowed until done */
    void *local;                   /* the local range must be registered with the engine */
    uint64_t remote_addr, remote_key, len_bytes;
    void (*done)(struct engine_op *op, enum shoal_status status, const struct shoal_error *error);
    /* READ, may be NULL: bytes [offset, offset + len) have arrived and are at data, which is their place in local or,
     * for device memory, a staging buffer. On any data loop, or a thread of the transport or of the device; see
     * transport.h. Into device memory over staging: once for all bytes, in order. */
    void (*arrived)(struct engine_op *op, const void *data, uint64_t offset_bytes, uint64_t len_bytes);
    void *arg;

    uint64_t transferred_bytes; /* set before done */
    /* private to engine and transport */
    struct list_node node;
    struct loop_task task;
    void *private_data[4];
    uint64_t id;
    int state;
    bool wants_direct;
    enum shoal_status status;
    struct shoal_error *error; /* owned by the engine; NULL without detail */
    struct memory_region *local_region;
};
/* Any thread; from loop 0 without a thread hop when the connection lives there. Never fails: a failure is reported by
 * done. Starts at once or queues inside the connection's bounds. */
void engine_submit(struct shoal_engine *engine, struct engine_op *op);
/* Asks for an early end; done still runs (CANCELED or the real outcome). Loop 0 only; op must not be done. */
void engine_op_cancel(struct shoal_engine *engine, struct engine_op *op);

/* --- membership --- */

/* The node's lease and its keys live in a thread of the engine: it keeps the lease alive and, when the lease was lost
 * (node stopped, metadata service restarted empty), makes a new one, claims the node key again and tells the listener
 * to publish its keys under it. */
struct membership_listener {
    /* On the membership thread, may block up to call's deadline. Publishes every key under lease. An error makes
     * membership repeat it with backoff. */
    enum shoal_status (*publish)(void *arg, int64_t lease, const struct call *call, struct shoal_error *error);
    void *arg;
};
/* listener NULL: removes; when it returns publish is not running. */
void engine_set_membership_listener(struct shoal_engine *engine, const struct membership_listener *listener);
/* Current lease for new keys; 0 while there is none (metadata service down since the lease was lost). Any thread. */
int64_t engine_lease(struct shoal_engine *engine);
/* A meta_txn with engine_lease() said NOT_FOUND (lease lost): makes membership renew at once. Any thread. */
void engine_lease_lost(struct shoal_engine *engine, int64_t lease);

/* Prometheus text: shoal_engine_*, shoal_transport_*, shoal_meta_*. false: out of memory or bound reached. */
bool engine_metrics(struct shoal_engine *engine, struct buf *out);

#endif
