/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the UCX transport; only ucx*.c include it.
 *
 * Loop 0 owns what the engine sees: peers are opened and closed there, requests come in and go out (ucx.c). Everything
 * of UCX lives on a loop of its own, woken by the workers' event descriptors: ucx_client.c asks, ucx_server.c grants,
 * ucx_worker.c drives one worker. Requests cross by an inbox and an outbox under a mutex (RANK_TRANSPORT), one posted
 * task per burst. Memory is mapped for UCX by an executor, since that may take long (ucx_memory.c).
 *
 * A link is one worker on either side and one endpoint between them. Nothing else shares these workers: destroying one
 * ends what its peer may do by that link, and nothing else. */
#ifndef SHOAL_TRANSPORT_UCX_INTERNAL_H
#define SHOAL_TRANSPORT_UCX_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/executor.h"
#include "base/hostport.h"
#include "base/map.h"
#include "base/mutex.h"
#include "transport/nic_matrix.h"
#include "transport/transport.h"
#include "transport/ucx_channel.h"
#include "transport/ucx_lib.h"

#define UCX_SETS_MAX 64
#define UCX_CHUNK_BYTES UCX_CHUNK_MAX_BYTES /* the grain of cancel and of progress */
#define UCX_WINDOW_BYTES (8ull << 20)       /* under way on one link */
#define UCX_WINDOW_CHUNKS 128               /* and their number */
#define UCX_TRANSFER_CHUNKS 64              /* of one request at a time: bits of done_bits */
#define UCX_ASKS_MAX 32                     /* unanswered questions for memory on one connection */
#define UCX_GRANTS_MAX 256         /* remembered by the requesting side; the serving side takes on twice that */
#define UCX_LINKS_MAX 16           /* of one connection */
#define UCX_CONNS_MAX 256          /* peers that are connected to */
#define UCX_SERVINGS_MAX 1024      /* accepted connections */
#define UCX_SERVING_LINKS_MAX 256  /* links of all of them: each is a worker with its queues */
#define UCX_REVOKE_TIMEOUT_MS 2000 /* for the answer to REVOKE, before the peer's links are destroyed */
#define UCX_CANCEL_GRACE_MS 1000   /* for chunks under way of a request that was canceled */
#define UCX_FALLBACK_MS 60000      /* for so long the fallback devices are used after the preferred ones failed */
#define UCX_IDLE_MS 60000          /* a connection without requests is closed */
#define UCX_PING_MS 15000          /* how often the requesting side says that it lives */
#define UCX_SILENCE_MS 90000       /* before the serving side believes that it does not */
#define UCX_SET_TEXT_BYTES 1024

struct ucx_conn;
struct ucx_transfer;

/* Devices that work together: one context of UCX. ucx's loop, counters from any thread. */
struct ucx_set {
    char devices[UCX_SET_TEXT_BYTES]; /* "a,b"; "" : UCX's own choice */
    ucp_context_h context;            /* owned; NULL: not opened yet */
    int64_t retry_ms;                 /* opening failed: not before */
    uint64_t read_bytes, write_bytes; /* atomic, relaxed: moved by our requests */
    uint64_t inflight_bytes;          /* atomic, relaxed */
    uint64_t failures;                /* atomic, relaxed: links that broke or could not be made */
};

struct ucx_counters {                                           /* atomic, relaxed */
    uint64_t reads, writes, read_bytes, write_bytes;            /* requests that ended well */
    uint64_t canceled, timed_out, unreachable, refused, failed; /* requests that did not */
    uint64_t retries, failovers, pauses;
    uint64_t grants, grant_refusals, revocations, revoke_timeouts, protocol_errors;
    uint64_t conns, servings, links, serving_links; /* open now */
};

/* One worker of UCX on ucx's loop. */
struct ucx_worker {
    struct ucx *ucx;
    ucp_worker_h handle; /* owned */
    struct loop_io io;
    struct loop_timer pause; /* between two tries to send */
    struct loop_task task;
    bool is_posted;
    bool is_closed;          /* with is_posted: freed by the task */
    ucp_ep_h ep;             /* owned; NULL: none */
    bool has_error_handling; /* UCX reports a peer that failed, and the endpoint can be closed by force */
    /* Called after progress, outside of UCX: gives it more to do. false: nothing. */
    bool (*pump)(void *arg);
    void *arg;
};

struct ucx {
    struct transport_env env;
    const struct ucx_lib *lib;
    const char *name;          /* "ucx" or "rdma" */
    char *tls;                 /* owned; UCX_TLS; NULL: the environment's, or UCX's own choice */
    struct nic_matrix *matrix; /* owned; NULL: none */
    bool has_fallback;         /* some row of the matrix has */
    bool is_serving;           /* the endpoint's handler is ours */
    bool is_one_sided;         /* by UCX's get and put, also where UCX does them in software */
    struct loop *loop;         /* owned */
    struct executor *mapper;   /* owned */
    struct ucx_counters counters;

    /* ucx's loop */
    struct ucx_set sets[UCX_SETS_MAX];
    unsigned set_count; /* atomic: metrics read it */
    struct list conns, servings;
    struct map mappings; /* struct mapping_key -> struct ucx_mapping */
    struct loop_timer tick;
    int64_t ticked_ms;
    bool is_closing;

    /* loop 0 */
    struct list peers; /* struct ucx_peer */

    struct mutex mutex;  /* RANK_TRANSPORT: guards the rest */
    struct cond changed; /* live fell to 0 */
    struct list inbox;   /* struct ucx_transfer */
    struct list outbox;
    struct loop_task inbox_task, outbox_task, scan_task;
    bool is_inbox_posted, is_outbox_posted, is_scan_posted;
    unsigned live; /* peers, connections, accepted connections on their way, mappings */
};

struct ucx_peer {
    struct ucx *ucx;
    struct list_node node; /* in ucx->peers; loop 0 */
    uint64_t instance;
    char name[HELLO_NAME_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    unsigned refs;  /* atomic: the engine's, one per transfer, one per connection */
    bool is_closed; /* loop 0 */
    struct loop_task close_task, abort_task;
    bool is_abort_posted; /* under ucx->mutex */
    /* ucx's loop */
    struct ucx_conn *conn; /* NULL: none */
    struct list transfers; /* struct ucx_transfer.peer_node: all of them */
    int64_t fallback_until_ms;
};

/* One request. */
struct ucx_transfer {
    struct list_node node;      /* inbox, conn->wants, link->ready, link->flushing, outbox; else unlinked */
    struct list_node peer_node; /* in peer->transfers */
    struct ucx_peer *peer;      /* ref */
    struct transport_request *request;
    bool is_canceled; /* atomic: set by loop 0 */
    /* ucx's loop */
    struct ucx_grant *grant; /* NULL: none yet */
    struct ucx_link *link;
    uint64_t issued, arrived; /* bytes; what has arrived without gap */
    uint64_t done_bits;       /* chunks behind arrived that are done */
    unsigned in_flight;       /* chunks */
    unsigned tries;
    bool is_flushing; /* WRITE: all chunks are done, its flush is not */
    bool is_ending;   /* ends with status as soon as nothing is in flight */
    int64_t ending_ms;
    enum shoal_status status;
    struct shoal_error error;
};

static inline void ucx_count(uint64_t *counter, int64_t by)
{
    __atomic_fetch_add(counter, (uint64_t)by, __ATOMIC_RELAXED);
}

static inline bool ucx_is_canceled(const struct ucx_transfer *transfer)
{
    return __atomic_load_n(&transfer->is_canceled, __ATOMIC_RELAXED);
}

/* ucx.c */
void ucx_live(struct ucx *ucx, int by);
void ucx_peer_unref(struct ucx_peer *peer); /* any thread */
/* Gives the request back to loop 0 with transfer's status and error. */
void ucx_transfer_return(struct ucx_transfer *transfer);
int64_t ucx_tick_ms(const struct ucx *ucx);

/* ucx_set.c; ucx's loop unless said otherwise */
/* tls: of args; matrix: may be empty. Any thread. */
enum shoal_status ucx_sets_check(struct ucx *ucx, struct shoal_error *error);
/* The devices for memory at location, as index into ucx->sets. */
enum shoal_status ucx_set_choose(struct ucx *ucx, const char *location, bool is_fallback, unsigned *set_out,
                                 struct shoal_error *error);
/* Opens its context if it is not open. UNSUPPORTED: UCX finds none of its devices. */
enum shoal_status ucx_set_open(struct ucx *ucx, unsigned set, struct shoal_error *error);
void ucx_sets_release(struct ucx *ucx);
bool ucx_metrics(struct transport *transport, struct buf *out); /* any thread */

/* ucx_worker.c */
/* set must be open. */
enum shoal_status ucx_worker_create(struct ucx *ucx, unsigned set, bool (*pump)(void *arg), void *arg,
                                    struct ucx_worker **out, struct shoal_error *error);
/* Connects it; failed (may be NULL) is called from inside of UCX when the peer is lost. */
enum shoal_status ucx_worker_connect(struct ucx_worker *worker, const uint8_t *address, ucp_err_handler_cb_t failed,
                                     void *arg, struct shoal_error *error);
/* Closes the endpoint by force, if that can be done: what is under way ends, by callbacks from inside, until *count is
 * 0. false: something is left; it ends with the worker, without callbacks. */
bool ucx_worker_disconnect(struct ucx_worker *worker, const unsigned *count);
/* Callbacks of its requests may run inside; none afterwards, and nothing touches their memory. */
void ucx_worker_destroy(struct ucx_worker *worker);
/* Something was given to it: it is driven soon. */
void ucx_worker_kick(struct ucx_worker *worker);

/* ucx_memory.c: what UCX may access for peers. ucx's loop */
struct ucx_mapping {
    struct ucx *ucx;
    unsigned set;
    struct memory_region *region; /* lent; given back once it is unmapped */
    struct memory_bounds bounds;
    ucp_mem_h handle; /* owned */
    void *rkey;       /* owned */
    size_t rkey_len;
    bool is_mapped, is_failed;
    unsigned users;      /* grants */
    struct list waiting; /* struct ucx_lent.waiting_node: until it is mapped */
    struct executor_task task;
    struct loop_task done_task;
    struct shoal_error error; /* is_failed */
};
struct ucx_lent;
/* Maps region (pinned by the caller; the pin is taken over, also on error) or finds it mapped, and takes a user. If it
 * is not mapped yet, ucx_serving_mapped is called for lent later. */
enum shoal_status ucx_mapping_use(struct ucx *ucx, unsigned set, struct memory_region *region, struct ucx_lent *lent,
                                  struct ucx_mapping **out, struct shoal_error *error);
void ucx_mapping_drop(struct ucx_mapping *mapping, struct ucx_lent *lent);

/* ucx_server.c */
struct ucx_serving;
/* A grant that a peer holds. */
struct ucx_lent {
    struct list_node node;         /* in serving->lent */
    struct list_node waiting_node; /* in mapping->waiting */
    struct ucx_serving *serving;
    struct ucx_mapping *mapping;
    uint64_t id;
    unsigned access;            /* of enum ucx_frame_access */
    int64_t revoke_deadline_ms; /* > 0: its end was asked for */
};
void ucx_serving_accept(void *arg, int fd, const struct hello *peer); /* loop 0; arg: struct ucx */
void ucx_serving_mapped(struct ucx_lent *lent);
void ucx_serving_revoke(struct ucx *ucx, const struct memory_region *region);
void ucx_serving_tick(struct ucx *ucx, int64_t now_ms, bool is_late);
void ucx_serving_close_all(struct ucx *ucx);

/* ucx_client.c */
void ucx_client_start(struct ucx_transfer *transfer);
void ucx_client_scan(struct ucx *ucx); /* for canceled transfers */
/* Every transfer of the peer ends with status; its connection is closed. */
void ucx_client_end(struct ucx_peer *peer, enum shoal_status status);
void ucx_client_tick(struct ucx *ucx, int64_t now_ms, bool is_late);

#endif
