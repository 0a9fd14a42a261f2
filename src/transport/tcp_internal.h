/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the tcp transport; only tcp*.c include it.
 *
 * Loop 0 owns peers and lanes (tcp.c). A lane is one connection of a peer, made when it is needed. Connections live on
 * a data loop, described by a shard: tcp_client.c is the requesting side, tcp_server.c the serving side. Loop 0 hands
 * requests to a connection through its inbox, the connection hands them back through the transport's outbox; both are
 * lists under a mutex (RANK_TRANSPORT) with one posted task per burst. */
#ifndef SHOAL_TRANSPORT_TCP_INTERNAL_H
#define SHOAL_TRANSPORT_TCP_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hostport.h"
#include "base/mutex.h"
#include "transport/rate.h"
#include "transport/tcp_stream.h"
#include "transport/transport.h"
#include "transport/upload.h"

#define TCP_LANES_MAX 4
#define TCP_SLOTS 128                    /* unanswered requests of one connection */
#define TCP_WINDOW_BYTES (64ull << 20)   /* and their bytes, unless a single one has more */
#define TCP_WRITES_MAX 32                /* granted WRITEs of one connection; the serving side allows twice that */
#define TCP_DRAIN_MAX_BYTES (8ull << 20) /* an unwanted body up to this size is read and dropped */
#define TCP_CANCEL_GRACE_MS 250          /* for a chunk that is being sent when its WRITE is canceled */
#define TCP_CLIENT_IDLE_MS 60000         /* the requesting side closes first, so that requests do not race */
#define TCP_SERVER_IDLE_MS 90000
#define TCP_REPLIES_MAX 256 /* queued answers before a serving connection stops reading */
#define TCP_CLIENT_CONNECTIONS_MAX 2048
#define TCP_DIRECT_TICK_MS 250
#define TCP_LEND_CHECK_MS 100       /* while somebody waits for an upload slot */
#define TCP_SMALL_BODY_BYTES 65536u /* up to this a READ is answered without waiting for a slot */
#define TCP_TRICKLE_BYTES 4096u     /* what a peer that waits for a slot gets now and then, to know that it waits */

/* enum shoal_op continued: a request of the transport itself. */
#define TCP_OP_NOTIFY 3

/* transport_request.state: what was asked of it and where it is. Atomic. */
enum tcp_request_state {
    TCP_REQUEST_CANCEL = 1,  /* set by loop 0, read by the data loop: end it early */
    TCP_REQUEST_RETRIED = 2, /* was on a connection that broke; the next break is final */
    TCP_REQUEST_AGAIN = 4,   /* comes back for another try */
    TCP_REQUEST_QUEUED = 8,  /* waits in its lane for a connection; loop 0 only */
};

struct tcp;
struct tcp_peer;
struct tcp_client;

struct tcp_counters {                                           /* atomic, relaxed */
    uint64_t reads, writes, notifies;                           /* requests that ended well */
    uint64_t read_bytes, write_bytes;                           /* moved by them */
    uint64_t canceled, timed_out, unreachable, refused, failed; /* requests that did not */
    uint64_t retries;                                           /* requests repeated on a new connection */
    uint64_t served_reads, served_writes, served_notifies;
    uint64_t served_read_bytes, served_write_bytes;
    uint64_t serve_refusals, serve_faults;             /* refused requests; memory found inaccessible */
    uint64_t serve_stalls, protocol_errors, evictions; /* connections closed for that */
    uint64_t client_connections, server_connections;   /* open now */
    uint64_t throttled_out_ns, throttled_in_ns;        /* connections waited for a rate limit */
    uint64_t direct_requests;                          /* ended on the thread that asked, or were handed over */
};

/* What one data loop hosts. */
struct tcp_shard {
    struct tcp *tcp;
    struct loop *loop; /* borrowed */
    /* loop thread */
    struct list clients; /* struct tcp_client */
    struct list servers; /* struct tcp_server */
    struct loop_timer tick;
    int64_t ticked_ms;
    struct list throttled; /* struct tcp_meter */
    struct loop_timer throttle;
    int64_t throttle_ns;          /* what it is set to */
    struct loop_timer lend_check; /* runs while a connection of this shard waits for an upload slot */
    struct upload_group uploads;
    struct loop_task granted_task;
};

/* One direction of one connection under a rate limit. Shard thread. */
struct tcp_meter {
    struct list_node node; /* in shard->throttled while it waits */
    struct tcp_shard *shard;
    struct rate_limiter *limiter;
    uint64_t *throttled_ns; /* counter */
    uint64_t reserved;      /* not in the allowance yet, because it is not ready_ns */
    int64_t ready_ns;
    void (*resume)(void *arg);
    void *arg;
};

struct tcp {
    struct transport_env env;
    struct tcp_shard *shards; /* owned, env.data_loop_count */
    unsigned lane_count;
    struct tcp_counters counters;
    struct upload_scheduler uploads;
    struct rate_limiter upload_limit, download_limit;

    /* loop 0 */
    struct list peers; /* struct tcp_peer */
    unsigned next_shard, closed_peers;

    struct mutex mutex;   /* RANK_TRANSPORT: guards the outbox below and every client's inbox */
    struct cond changed;  /* live_objects or stages fell to 0 */
    struct list returned; /* transport_request.node */
    struct list gone;     /* tcp_client.node */
    struct loop_task outbox_task;
    bool is_outbox_posted;
    unsigned live_objects; /* peers, client connections, server connections on their way to a shard */
    unsigned stages;       /* of server connections, or what such a connection left behind */

    struct mutex direct_mutex;     /* RANK_TRANSPORT: states of direct connections and their pools; never with mutex */
    struct loop_timer direct_tick; /* loop 0; runs while there are direct connections */
    int64_t direct_ticked_ms;
};

/* Direct connections to one peer. */
struct tcp_direct_pool {
    struct tcp *tcp;
    const char *name, *address; /* of the peer, borrowed from it */
    uint64_t instance;
    /* loop 0 */
    struct list connections; /* struct transport_direct */
    unsigned connection_count, wishes;
    struct endpoint_dial *dial; /* NULL: not dialing */
    int64_t dial_after_ms;
    bool is_closed; /* changes under tcp->direct_mutex */
    /* under tcp->direct_mutex */
    struct list idle;
};

/* One request on the wire. */
enum tcp_slot_state {
    TCP_SLOT_FREE,
    TCP_SLOT_HEAD,  /* its header is queued */
    TCP_SLOT_WAIT,  /* an answer is awaited */
    TCP_SLOT_BODY,  /* READ: the answer's body is coming in */
    TCP_SLOT_CHUNK, /* WRITE: a chunk is queued */
    TCP_SLOT_ABORT, /* ABORT is queued; the request is done already */
};
struct tcp_slot {
    struct tcp_out out;
    struct list_node node; /* in client->free_slots */
    enum tcp_slot_state state;
    unsigned op;
    uint64_t id, len, moved;           /* moved: body bytes sent of a WRITE */
    uint64_t chunk;                    /* length of the chunk in out */
    struct transport_request *request; /* NULL: done, only its answer is awaited */
    int64_t cancel_deadline_ms;        /* > 0: canceled while a chunk was being sent */
    bool is_granted;
    bool wants_abort; /* once out is idle */
    bool is_answered; /* released as soon as its ABORT is out */
    bool is_refused;  /* the request fails with refusal as soon as its chunk is out */
    enum shoal_status refusal;
    struct shoal_error *refusal_error; /* owned */
};

struct tcp_client {
    struct tcp *tcp;
    struct tcp_shard *shard;
    struct tcp_peer *peer; /* loop 0 only */
    unsigned lane;         /* loop 0 only */
    struct list_node node; /* shard->clients, later tcp->gone */
    struct loop_task attach_task, free_task, inbox_task;
    char peer_name[HELLO_NAME_MAX_BYTES + 1];
    char peer_address[HOSTPORT_TEXT_BYTES];

    /* under tcp->mutex */
    struct list inbox; /* transport_request.node */
    bool is_inbox_posted, wants_cancel_scan, wants_abort;

    /* shard thread */
    struct tcp_stream stream;
    struct tcp_meter meter_in, meter_out;
    struct loop_io io;
    bool is_dead, is_full;
    struct list waiting; /* transport_request.node: no slot or window yet */
    struct list free_slots;
    unsigned used_slots, used_writes;
    uint64_t window_bytes, next_id;
    struct tcp_slot *current; /* whose answer's body is coming in */
    struct data_frame frame;  /* header of that answer */
    int64_t idle_since_ms;
    struct tcp_slot slots[TCP_SLOTS];
    uint8_t text[DATA_REASON_MAX_BYTES + 1];
};

static inline void tcp_count(uint64_t *counter, uint64_t by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

/* tcp.c */
/* Gives a request back to loop 0 with its outcome; error (owned) may be NULL. Any loop. */
void tcp_return(struct tcp *tcp, struct transport_request *request, enum shoal_status status,
                struct shoal_error *error);
/* The same for another try. */
void tcp_return_again(struct tcp *tcp, struct transport_request *request, bool is_counted);
void tcp_client_is_gone(struct tcp *tcp, struct tcp_client *client);
/* Runs what has come back, if the caller is on loop 0 (else a posted task does). From io callbacks and timers only. */
void tcp_run_outbox(struct tcp *tcp);
void tcp_live(struct tcp *tcp, int by);
void tcp_stages_live(struct tcp *tcp, int by);
struct shoal_error *tcp_error(enum shoal_status status, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tcp_shard_arm_tick(struct tcp_shard *shard);
int64_t tcp_tick_ms(const struct tcp *tcp);
/* The error of a request that the peer refused. */
struct shoal_error *tcp_refusal(const char *name, const char *address, unsigned op, uint64_t remote_addr,
                                uint64_t len_bytes, enum shoal_status status, const char *text);
struct tcp_direct_pool *tcp_direct_pool_of(struct transport_peer *peer);
void tcp_direct_arm_tick(struct tcp *tcp);
/* A closed peer may be free now. */
void tcp_direct_freed(struct tcp *tcp);

/* tcp_metrics.c */
void tcp_count_outcome(struct tcp *tcp, const struct transport_request *request);
bool tcp_metrics(struct transport *transport, struct buf *out);

/* tcp_meter.c; all on the shard's thread */
void tcp_meter_init(struct tcp_meter *meter, struct tcp_shard *shard, struct rate_limiter *limiter,
                    uint64_t *throttled_ns, void (*resume)(void *arg), void *arg);
void tcp_meter_release(struct tcp_meter *meter);
static inline bool tcp_meter_is_waiting(const struct tcp_meter *meter)
{
    return list_node_is_linked(&meter->node);
}
/* Of one that waits. */
int64_t tcp_meter_wait_ms(const struct tcp_meter *meter);
/* Adds to an allowance that is used up, at most wanted. false: not yet; resume is called when it is time. The limiter
 * must have a limit. */
bool tcp_meter_take(struct tcp_meter *meter, uint64_t wanted, uint64_t *allowance);
void tcp_shard_unthrottle(struct tcp_shard *shard);

/* tcp_client.c */
/* Takes over fd. NULL: out of memory (fd is closed). Loop 0; starts to live on its shard at once. */
struct tcp_client *tcp_client_create(struct tcp *tcp, struct tcp_shard *shard, struct tcp_peer *peer, unsigned lane,
                                     int fd, const char *name, const char *address);
void tcp_client_submit(struct tcp_client *client, struct transport_request *request); /* loop 0 */
void tcp_client_scan_cancels(struct tcp_client *client);                              /* loop 0 */
void tcp_client_abort(struct tcp_client *client);                                     /* loop 0 */
void tcp_client_free(struct tcp_client *client);                                      /* loop 0, once it is gone */
void tcp_client_tick(struct tcp_client *client, int64_t now_ms);
void tcp_client_close_idle(struct tcp_shard *shard); /* the longest idle one, if any */

/* tcp_direct.c; all on loop 0 */
extern const struct transport_direct_ops tcp_direct_ops;
void tcp_direct_pool_init(struct tcp_direct_pool *pool, struct tcp *tcp, const char *name, const char *address,
                          uint64_t instance);
/* A request found no free connection: there may be one for the next. */
void tcp_direct_wish(struct tcp_direct_pool *pool);
/* Ends every request with CANCELED and drops the connections. */
void tcp_direct_abort(struct tcp_direct_pool *pool);
void tcp_direct_close(struct tcp_direct_pool *pool);
/* Drops the connections whose requests use region. */
void tcp_direct_evict(struct tcp_direct_pool *pool, const struct memory_region *region);
void tcp_direct_tick(struct tcp_direct_pool *pool, int64_t now_ms, bool is_late);
static inline bool tcp_direct_is_unused(const struct tcp_direct_pool *pool)
{
    return list_is_empty(&pool->connections) && !pool->dial;
}

/* tcp_server.c */
struct tcp_server;
void tcp_server_accept(struct tcp_shard *shard, int fd, const char *peer_name); /* loop 0 */
/* is_late: the loop did not run for a while, so silence is not the peer's fault. */
void tcp_server_tick(struct tcp_server *server, int64_t now_ms, bool is_late);
struct tcp_server *tcp_server_of(struct list_node *node);
void tcp_server_close(struct tcp_server *server);
void tcp_server_granted(struct upload_turn *turn); /* its turn to send bodies has come */
bool tcp_server_uses(const struct tcp_server *server, const struct memory_region *region);

#endif
