/* SPDX-License-Identifier: Apache-2.0 */
/* The table that every transport implements, and the registry that finds one by name. A transport moves bytes between a
 * local range and the registered memory of one peer; everything else (segments, batches, choice) is the engine's.
 *
 * Threads: all functions run on loop 0 of the engine unless said otherwise. */
#ifndef SHOAL_TRANSPORT_TRANSPORT_H
#define SHOAL_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/engine.h>
#include <shoal/status.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"
#include "transport/endpoint.h"
#include "transport/memory.h"
#include "transport/shared.h"

enum transport_caps {
    TRANSPORT_CAP_READ = 1,
    TRANSPORT_CAP_WRITE = 2,
    TRANSPORT_CAP_CANCEL = 4, /* cancel ends a request before its data has passed */
    TRANSPORT_CAP_NOTIFY = 8,
    TRANSPORT_CAP_REMOTE = 16, /* reaches other hosts */
    TRANSPORT_CAP_DEVICE = 32, /* takes local addresses in device memory; else requests are staged (engine/stage.h) */
    TRANSPORT_CAP_DIRECT = 64, /* small requests without the loops: struct transport_direct_ops */
};

struct transport;        /* one instance per engine */
struct transport_peer;   /* one remote node */
struct transport_direct; /* a connection that is lent to one thread, with its requests */

/* One transfer; embedded in the engine's operation. done runs exactly once on loop 0, never from inside submit or
 * cancel. When it runs, no thread touches local any more.
 *
 * A transport that cannot carry a request ends it with UNSUPPORTED, but only before any byte of it has moved and before
 * arrived was called: the engine then gives it to the next transport of the peer, and leaves this one alone for that
 * peer for a while. refusal says why, in a word or two that a metric's label can hold. */
struct transport_request {
    enum shoal_op op;
    void *local;
    uint64_t remote_addr, remote_key, len_bytes;
    void (*done)(struct transport_request *request, enum shoal_status status, const struct shoal_error *error);
    /* READ, may be NULL: [offset, offset + len) of local has arrived and is not written again by this try. Runs on any
     * data loop or a thread of the transport, in order and without gaps; a request that is repeated on a new connection
     * begins at 0 again. A transport may leave it out. */
    void (*arrived)(struct transport_request *request, uint64_t offset_bytes, uint64_t len_bytes);
    void *arg;
    const struct memory_region *local_region; /* that the caller pinned */
    bool wants_direct;                        /* would have gone over a direct connection, had one been free */
    uint64_t transferred_bytes;
    /* With UNSUPPORTED, set before done. */
    const char *refusal;  /* static text; NULL: "unsupported" */
    bool is_refused_once; /* only this request cannot go this way; others may */
    bool is_repeatable;   /* direct: failed without harm, may be submitted the usual way */
    /* private to the transport until done */
    struct list_node node;
    struct loop_task task;
    void *link;
    uint64_t id;
    int64_t deadline_ms;
    unsigned state;
    enum shoal_status status;
    struct shoal_error *error;
};

/* What an instance gets from its engine; borrowed for its life. */
struct transport_env {
    struct loop *loop;              /* loop 0 */
    struct loop *const *data_loops; /* data_loops[0] may be loop 0 */
    unsigned data_loop_count;
    struct endpoint *endpoint;
    struct memory_table *memory; /* what peers may access */
    struct shared_table *shared; /* memory that others on this host may be given as a file */
    int64_t connect_timeout_ms, progress_timeout_ms;
    uint64_t upload_limit_bytes_per_s, download_limit_bytes_per_s; /* of the node; 0: none */
    unsigned upload_slots;                                         /* 0: the transport's default */
    /* A notification came in; may be called on any data loop. false: no receiver. */
    bool (*notify)(void *arg, const char *peer, const char *name, const void *message, size_t len);
    void *notify_arg;
    const char *args; /* of install_transport; may be NULL */
};

#define TRANSPORT_DIRECT_REQUESTS_MAX 16
#define TRANSPORT_DIRECT_BYTES_MAX 65536u /* of all requests of one submission */

/* TRANSPORT_CAP_DIRECT. A few small requests whose submitter is about to wait for them: it sends and receives itself.
 * What submit returned has one owner, who calls drive, hand_over and release, never two at the same time. Not on a loop
 * thread. */
struct transport_direct_ops {
    /* Copies requests (done and arrived are not used) and sends them. NULL: no connection is free, nothing happened.
     * Else finished runs exactly once, on a thread that drives, never from inside submit, hand_over or cancel, with
     * status, error (owned by the callee from then on) and outcome of each request; no thread touches their local
     * memory any more then. As soon as the owner can know of that it may release: finished must not look at requests
     * afterwards. */
    struct transport_direct *(*submit)(struct transport_peer *peer, const struct transport_request *requests,
                                       size_t count,
                                       void (*finished)(void *arg, struct transport_request *requests, size_t count),
                                       void *arg);
    /* Returns when finished has run, when the deadline has passed, or at once if a loop drives. What nobody drives for
     * a while is handed over. */
    void (*drive)(struct transport_direct *direct, int64_t deadline_ms);
    /* Loop 0 drives from now on. */
    void (*hand_over)(struct transport_direct *direct);
    /* Its requests end with CANCELED as soon as somebody drives. Any thread, until release. */
    void (*cancel)(struct transport_direct *direct);
    /* After finished. */
    void (*release)(struct transport_direct *direct);
};

struct transport_ops {
    const char *name;
    unsigned caps; /* enum transport_caps */
    enum shoal_status (*create)(const struct transport_env *env, struct transport **out, struct shoal_error *error);
    /* Ends everything: all requests are done, all peers gone when it returns. Not on a loop thread. */
    void (*destroy)(struct transport *transport);
    /* Whether this transport reaches the peer; cheap. The form for what is known at once (another host, say); what only
     * an exchange with the peer tells ends requests with UNSUPPORTED. */
    bool (*is_reachable)(struct transport *transport, const char *address, uint64_t instance);
    /* Never blocks and connects lazily. */
    enum shoal_status (*peer_open)(struct transport *transport, const char *name, const char *address,
                                   uint64_t instance, struct transport_peer **out, struct shoal_error *error);
    /* Its requests end with CANCELED, soon. */
    void (*peer_close)(struct transport_peer *peer);
    /* Whether this request may go this way; cheap, without side effects. false: the engine takes the next transport,
     * and that is no failure. Optional. */
    bool (*accepts)(struct transport_peer *peer, const struct transport_request *request);
    void (*submit)(struct transport_peer *peer, struct transport_request *request);
    void (*cancel)(struct transport_peer *peer, struct transport_request *request);
    /* Ends every request of the peer with CANCELED and drops its connections; the peer stays usable. */
    void (*peer_abort)(struct transport_peer *peer);
    /* fn as in done. UNSUPPORTED at once: the next transport is asked. */
    enum shoal_status (*notify)(struct transport_peer *peer, const char *name, const void *message, size_t len,
                                void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error),
                                void *arg, struct shoal_error *error);
    /* Drops what holds pins of a region that is being unregistered; when it returns none is left that will not go by
     * itself soon. Any thread. Optional. */
    void (*evict)(struct transport *transport, const struct memory_region *region);
    bool (*metrics)(struct transport *transport, struct buf *out); /* Prometheus text; any thread */
    const struct transport_direct_ops *direct;                     /* NULL without the capability */
};

/* NULL: unknown. The registry checks each table once and fills optional entries with defaults that say UNSUPPORTED. */
const struct transport_ops *transport_find(const char *name);
/* NULL-terminated list of names, for messages. */
const char *const *transport_names(void);
/* For test doubles and later backends; the table must be static. INVALID_ARGUMENT: incomplete table. EXISTS. */
enum shoal_status transport_register(const struct transport_ops *ops, struct shoal_error *error);

extern const struct transport_ops transport_tcp_ops, transport_local_ops, transport_rdma_ops, transport_ucx_ops;

#endif
