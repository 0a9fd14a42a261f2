/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the requesting side of the UCX transport: shared by ucx_client.c and ucx_link.c only. All on ucx's loop. */
#ifndef SHOAL_TRANSPORT_UCX_CLIENT_H
#define SHOAL_TRANSPORT_UCX_CLIENT_H

#include "transport/ucx_internal.h"
#include "transport/ucx_message.h"

/* Memory of the peer that may be accessed. */
struct ucx_grant {
    struct list_node node; /* in conn->grants, last used first */
    struct ucx_conn *conn;
    uint64_t id, addr, len;
    uint64_t key, asked_key;
    unsigned access;                 /* one of enum ucx_frame_access */
    unsigned set;                    /* of the serving side */
    unsigned users;                  /* transfers */
    bool is_revoked;                 /* goes with its last user, and the peer is told */
    void *packed;                    /* owned: the key as it came */
    ucp_rkey_h rkeys[UCX_LINKS_MAX]; /* by link; owned; NULL: not unpacked yet */
};

/* An unanswered question. */
struct ucx_ask {
    struct list_node node; /* in conn->asks */
    uint64_t id, key;
    unsigned access;
    struct ucx_transfer *transfer; /* NULL: it ended meanwhile */
};

enum ucx_link_state {
    UCX_LINK_NONE,    /* free place */
    UCX_LINK_OPENING, /* the peer was asked for a worker */
    UCX_LINK_OPEN,
    UCX_LINK_CLOSING, /* completions end nothing any more; ucx_links_close does */
};

struct ucx_link {
    struct ucx_conn *conn;
    enum ucx_link_state state;
    unsigned index;
    unsigned own_set, peer_set;
    uint64_t id;
    struct ucx_worker *worker; /* owned */
    bool is_messaging;         /* bytes travel as messages; flushing and flushed stay empty */
    uint64_t token;            /* of messages to us */
    uint64_t peer_token;       /* and to the peer */
    struct ucx_sender sender;  /* is_messaging */
    struct list ready;         /* struct ucx_transfer.node: have more to give to UCX */
    struct list flushing;      /* WRITEs that wait for a flush to begin */
    struct list flushed;       /* and for the one under way */
    struct list chunks;        /* struct chunk: under way */
    struct list spare_chunks;
    unsigned chunk_count;
    uint64_t inflight_bytes;
    bool is_flush_running;
    int64_t progress_ms;
};

struct ucx_conn {
    struct list_node node; /* in ucx->conns */
    struct ucx_peer *peer; /* ref until closed */
    struct ucx *peer_ucx;
    unsigned refs; /* atomic */
    struct ucx_channel channel;
    struct list wants;  /* struct ucx_transfer.node: without grant */
    struct list asks;   /* struct ucx_ask */
    struct list grants; /* struct ucx_grant */
    unsigned ask_count, grant_count;
    uint64_t next_id; /* of asks and links */
    struct ucx_link links[UCX_LINKS_MAX];
    int64_t heard_ms; /* last frame, or when the answers that are due were asked for */
    int64_t used_ms;  /* last request */
    int64_t pinged_ms;
    bool is_dialing, is_failed, is_closed;
    bool has_failed_link; /* the devices are to blame */
    struct shoal_error error;
    struct loop_task fail_task;

    /* the dial; what it reads on loop 0 does not change */
    struct loop_task dial_task, cancel_task;
    struct endpoint_dial *dial; /* loop 0 */
    int dialed_fd;
    uint64_t instance;
    char address[HOSTPORT_TEXT_BYTES];
};

/* ucx_client.c */
void ucx_transfer_end(struct ucx_transfer *transfer, enum shoal_status status, const struct shoal_error *error);
/* Ends it with status as soon as nothing of it is under way. */
void ucx_transfer_stop(struct ucx_transfer *transfer, enum shoal_status status, const struct shoal_error *error);
/* A transfer does not use it any more. */
void ucx_grant_unuse(struct ucx_grant *grant);
/* Closes the connection soon; may be called from inside of UCX. */
void ucx_conn_fail(struct ucx_conn *conn, enum shoal_status status, const char *text);

/* ucx_link.c */
/* STORED came. false: for nothing. */
bool ucx_link_stored(struct ucx_conn *conn, uint64_t id);
/* The link for the transfer's memory here and the peer's there. */
enum shoal_status ucx_link_get(struct ucx_conn *conn, const struct ucx_transfer *transfer, unsigned peer_set,
                               struct ucx_link **out, struct shoal_error *error);
/* transfer has its grant. */
void ucx_link_add(struct ucx_link *link, struct ucx_transfer *transfer);
/* LINKED came. false: nobody asked. */
bool ucx_link_open(struct ucx_conn *conn, uint64_t id, uint64_t peer_token, const uint8_t *address);
/* REFUSE came. false: it is not about a link or a chunk. */
bool ucx_link_refused(struct ucx_conn *conn, uint64_t id, const struct shoal_error *error);
/* transfer is ending: no more chunks. A WRITE that has begun is flushed, so that nothing of it is under way when its
 * grant is given back. */
void ucx_link_stop(struct ucx_transfer *transfer);
/* Nothing of the connection's transfers is under way afterwards. Not from inside of UCX. */
void ucx_links_close(struct ucx_conn *conn);
void ucx_links_nudge(struct ucx_conn *conn);
void ucx_links_touch(struct ucx_conn *conn, int64_t now_ms);
bool ucx_links_are_opening(const struct ucx_conn *conn);
/* For how long a link with something under way has made no progress; 0: none such. */
int64_t ucx_links_silent_ms(const struct ucx_conn *conn, int64_t now_ms);

#endif
