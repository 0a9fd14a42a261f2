/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the local transport; only local*.c include it.
 *
 * Two processes of one host talk over a Unix socket (wire/local.h) and read each other's memory: by cross-memory attach
 * where the kernel lets them, else from anonymous files that one passes to the other (shared.h). Nobody writes into the
 * memory of another process: a READ is copied by the node that asked, a WRITE by the one that was asked.
 *
 * Everything belongs to loop 0, but for what copies: threads of an executor, for one local_copy at a time each.
 *
 *   local.c         the table, the clock of the connections, metrics
 *   local_link.c    one connection, either side: frames, who is at the other end, what may be read of it
 *   local_share.c   files that came from the other end and that went there
 *   local_copy.c    bytes
 *   local_client.c  peers and the requests of this node
 *   local_server.c  requests of others */
#ifndef SHOAL_TRANSPORT_LOCAL_INTERNAL_H
#define SHOAL_TRANSPORT_LOCAL_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/executor.h"
#include "base/hostport.h"
#include "base/list.h"
#include "base/mutex.h"
#include "transport/shared.h"
#include "transport/transport.h"
#include "transport/upload.h"
#include "wire/local.h"

#define LOCAL_THREADS_MAX 8
#define LOCAL_CHUNK_BYTES (1u << 20)   /* between two looks at whether a copy is still wanted */
#define LOCAL_SPLIT_BYTES (2u << 20)   /* what is worth another thread */
#define LOCAL_STREAM_BYTES (8u << 20)  /* one thread copies up to so much, if it tells what has arrived */
#define LOCAL_ARRIVED_BYTES (1u << 17) /* between two words of that */
#define LOCAL_INLINE_BYTES 65536u      /* copied at once on the loop, as a socket's bytes are */
#define LOCAL_ALONE_BYTES (256u << 10) /* the same, if there is nothing else to do */
#define LOCAL_COPIES_MAX 32            /* on the threads; others wait in line */
#define LOCAL_FDS_MAX 8                /* descriptors that came in and whose frame has not */
#define LOCAL_SHARES_MAX 64            /* of one connection and direction */
#define LOCAL_OUT_MAX_BYTES (1u << 20) /* a peer that does not read what it is sent is dropped */
#define LOCAL_OUT_PAUSE_BYTES (1u << 17)
#define LOCAL_TICK_MS 250
#define LOCAL_PROGRESS_MS 1000  /* how often a WRITE that is copied, or a READ that waits, is told so */
#define LOCAL_TURN_READS 16     /* granted in one turn while others wait for theirs */
#define LOCAL_LEND_CHECK_MS 100 /* while somebody waits for an upload slot */
#define LOCAL_CLIENT_IDLE_MS 60000
#define LOCAL_SERVER_IDLE_MS 90000
#define LOCAL_GRACE_MS 500 /* for a peer to let go of what was revoked or canceled */

struct local;
struct local_link;
struct local_client;
struct local_server;

struct local_counters {                                                      /* atomic, relaxed */
    uint64_t reads, writes;                                                  /* requests that ended well */
    uint64_t read_bytes, write_bytes;                                        /* moved by them */
    uint64_t canceled, timed_out, unreachable, refused, unsupported, failed; /* requests that did not */
    uint64_t retries;                                                        /* requests repeated on a new connection */
    uint64_t served_reads, served_writes;                                    /* of peers */
    uint64_t served_read_bytes, served_write_bytes;
    uint64_t cma_bytes, shared_bytes; /* copied here, by the way */
    uint64_t serve_refusals, serve_faults;
    uint64_t revocations, evictions; /* grants taken back; connections closed since they were not given */
    uint64_t protocol_errors;
    uint64_t client_connections, server_connections; /* open now */
};

struct local {
    struct transport_env env;
    struct local_counters counters;
    uint64_t probe;  /* what peers look at to see whether they may read this process */
    bool has_cma;    /* not switched off by SHOAL_LOCAL_CMA=0 */
    bool is_limited; /* this node has a rate limit */
    bool has_handler;
    struct executor *executor; /* owned */
    unsigned thread_count;
    uint64_t chunks; /* atomic: copied so far, of all copies */

    /* loop 0 */
    struct list peers;   /* struct local_peer */
    struct list clients; /* struct local_client */
    struct list servers; /* struct local_server */
    struct list copies;  /* struct local_copy: waiting for a thread */
    unsigned running_copies;
    uint64_t ticked_chunks;
    struct loop_timer tick, lend_check;
    struct loop_task granted_task;
    struct upload_group turns;
    bool is_closing;
    struct upload_scheduler uploads; /* READs of more than LOCAL_INLINE_BYTES; any thread */

    struct mutex mutex; /* RANK_TRANSPORT: guards what follows */
    struct cond changed;
    unsigned live_objects; /* peers, connections */
};

/* --- local_link.c --- */

/* A file of the other end. Its descriptor is closed when no copy uses it any more. */
struct local_share {
    struct list_node node;
    uint64_t id, len;
    int fd; /* owned */
    unsigned users;
    bool is_gone;
};

struct local_link_ops {
    void (*ready)(struct local_link *link); /* HELLO and READY have come */
    /* Every other frame but SHARE and UNSHARE. false: the protocol is violated. */
    bool (*frame)(struct local_link *link, const struct local_frame *frame);
    /* The link is closed. Once; later calls for the link do nothing. */
    void (*lost)(struct local_link *link, enum shoal_status status, const struct shoal_error *error);
    /* Nothing uses the dead link any more: local_link_release, free. Never inside another operation. Once. */
    void (*unused)(struct local_link *link);
};

struct local_link {
    struct local *local;
    const struct local_link_ops *ops;
    int fd, pid_fd; /* owned; stay open until the link is released, since copies look at them */
    pid_t pid;      /* 0: not known here */
    struct loop_io io;
    bool is_dead, is_dirty, is_in_io;
    bool has_hello, is_ready;
    bool can_read;                       /* this process may read the other's memory */
    bool is_readable;                    /* the other may read this one's */
    bool has_shares;                     /* the other has memory that can be shared */
    bool is_limited;                     /* the other has a rate limit */
    char why[LOCAL_TEXT_BYTES + 1];      /* without can_read */
    char peer_why[LOCAL_TEXT_BYTES + 1]; /* without is_readable */
    char peer_name[HELLO_NAME_MAX_BYTES + 1];
    int64_t opened_ms, moved_ms; /* moved: a frame came in */
    unsigned holds;              /* copies and others that use the link */
    struct loop_task unused_task;

    struct buf out;
    struct loop_task flush_task;
    struct {
        uint64_t at; /* before this byte of the stream */
        int fd;      /* owned */
    } out_fds[LOCAL_FDS_MAX];
    unsigned out_fd_count;
    uint64_t sent_bytes; /* of the stream */

    uint8_t in[16 * LOCAL_FRAME_BYTES];
    size_t in_len;
    int in_fds[LOCAL_FDS_MAX]; /* owned */
    unsigned in_fd_count;

    struct list shares; /* struct local_share, of the other end */
    unsigned share_count;
    uint64_t shared[LOCAL_SHARES_MAX]; /* ids of our own that the other end has */
    unsigned shared_count;
};

/* Takes over fd and says hello. false: out of memory or descriptors; fd is closed. */
bool local_link_open(struct local_link *link, struct local *local, const struct local_link_ops *ops, int fd,
                     const char *peer_name);
/* Frames leave at the end of the loop's turn. */
void local_link_send(struct local_link *link, const struct local_frame *frame);
/* Ends it: lost runs inside. error may be NULL. */
void local_link_fail(struct local_link *link, enum shoal_status status, const struct shoal_error *error);
void local_link_protocol_error(struct local_link *link, const char *what);
void local_link_hold(struct local_link *link);
void local_link_unhold(struct local_link *link);
/* Only from unused. */
void local_link_release(struct local_link *link);
/* Whether the other end lives and has not closed the link, now. Any thread that holds it. */
bool local_link_is_alive(const struct local_link *link);

/* --- local_share.c --- */

/* Makes sure that the other end has the file behind [addr, addr+len), by a SHARE before the next frame. false: that
 * memory is no such file, or there are too many. */
bool local_share_offer(struct local_link *link, uint64_t addr, uint64_t len, uint64_t *id_out, uint64_t *offset_out);
bool local_share_take(struct local_link *link, const struct local_frame *frame); /* SHARE came; false: violation */
bool local_share_drop(struct local_link *link, const struct local_frame *frame); /* UNSHARE came */
/* The file with that range, counted in users; NULL: no such. */
struct local_share *local_share_use(struct local_link *link, uint64_t id, uint64_t offset, uint64_t len);
void local_share_unuse(struct local_link *link, struct local_share *share);
void local_share_revoke(struct local_link *link, uint64_t id); /* of our own: the memory is freed */
void local_share_release_all(struct local_link *link);

/* --- local_copy.c --- */

/* From the other end's memory into ours. Embedded in its owner. */
struct local_copy {
    struct local *local;
    struct local_link *link;   /* held while it is active */
    struct local_share *share; /* used; NULL: the memory itself */
    uint64_t from;             /* address or, with share, offset */
    uint8_t *to;
    uint64_t len;
    void (*done)(struct local_copy *copy); /* on loop 0; outcome in status, sys_errno, is_remote_fault */
    /* May be NULL: [offset, offset + len) is in `to`, in order and without gaps. On the thread that copies, while the
     * bytes are in its cache; not of what several threads copy. */
    void (*arrived)(struct local_copy *copy, uint64_t offset, uint64_t len);
    struct list_node node; /* in local->copies while it waits */
    bool is_waiting, is_active;
    bool is_alone;       /* nothing else is asked on the link: waking a thread up would take longer than a small copy */
    unsigned task_count; /* threads that share it */
    struct loop_task task;

    /* atomic while it runs */
    uint64_t next, moved;
    unsigned running; /* tasks */
    bool is_stopped;
    /* set by the first that fails, then read when all have ended */
    bool has_failed; /* atomic */
    enum shoal_status status;
    int sys_errno;
    bool is_remote_fault;
    uint64_t fault_addr; /* with it: what could not be read; 0: not known, it was a file */
    struct executor_task tasks[LOCAL_THREADS_MAX];
};

/* Starts it; done runs exactly once, for small ones inside. After it nothing writes to `to`. */
void local_copy_start(struct local_copy *copy);
/* Wants it to end soon: CANCELED, or what it came to. */
void local_copy_stop(struct local_copy *copy);
/* Whether this process can read that byte of its own; without a signal if it cannot. */
bool local_copy_is_readable(uint64_t addr);
/* Whether one word of another process can be read: 0, or an errno. */
int local_copy_probe(pid_t pid, uint64_t addr, uint64_t expected);

/* --- local_client.c, local_server.c --- */

enum shoal_status local_peer_open(struct transport *transport, const char *name, const char *address, uint64_t instance,
                                  struct transport_peer **out, struct shoal_error *error);
void local_peer_close(struct transport_peer *base);
void local_peer_abort(struct transport_peer *base);
bool local_accepts(struct transport_peer *base, const struct transport_request *request);
void local_submit(struct transport_peer *base, struct transport_request *request);
void local_cancel(struct transport_peer *base, struct transport_request *request);
void local_close_all_peers(struct local *local);
void local_client_tick(struct local_client *client, int64_t now_ms);
struct local_client *local_client_of_node(struct list_node *node);
struct local_link *local_client_link(struct local_client *client);

void local_server_accept(struct local *local, int fd, const char *peer_name);
void local_server_tick(struct local_server *server, int64_t now_ms, bool has_progress);
struct local_server *local_server_of_node(struct list_node *node);
struct local_link *local_server_link(struct local_server *server);
void local_server_granted(struct upload_turn *turn); /* its turn to be granted READs has come */
void local_server_revoke(struct local_server *server, const struct memory_region *region);

/* --- local.c --- */

static inline void local_count(uint64_t *counter, uint64_t by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}
void local_live(struct local *local, int by);
void local_arm_tick(struct local *local);

#endif
