/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a session. Everything belongs to the loop's thread, except what the mutex guards and what the session's
 * own thread has in its hands: it finds the master's address and gathers what is announced after a registration. */
#ifndef SHOAL_KV_SESSION_INTERNAL_H
#define SHOAL_KV_SESSION_INTERNAL_H

#include <pthread.h>

#include "base/buf.h"
#include "base/hostport.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/spares.h"
#include "kv/session.h"
#include "meta/meta.h"

#define SESSION_BATCH_MAX_BYTES (256u << 10) /* of RPC_REQUEST_LARGE_MAX_BYTES, which a master accepts */
#define SESSION_BATCH_MAX_ENTRIES 4096u
#define SESSION_WAITERS_MAX 65536u       /* announcements that somebody waits for */
#define SESSION_BACKLOG_MAX (256u << 10) /* announcements that nobody waits for; beyond: everything anew */
#define SESSION_SPARE_ENTRIES_MAX 256u   /* announcements whose memory is kept for the next ones, */
#define SESSION_SPARE_KEY_BYTES 128u     /* those with keys of this length with NUL: 60 KiB */
#define SESSION_HELD_QUEUED_MAX 4u       /* batches that are gathered ahead */
#define SESSION_HELD_FLYING_MAX 4u       /* batches that wait for their answer */
#define SESSION_TARGETS_MAX 256u         /* write targets that are remembered */
#define SESSION_MASTERS_MAX 16u          /* addresses in the configuration */
#define SESSION_CONNECT_TIMEOUT_MS 3000  /* to the master */
#define SESSION_FIND_TIMEOUT_MS 5000     /* asking who leads */
#define SESSION_REGISTER_TIMEOUT_MS 5000 /* then another attempt, perhaps with another master */
#define SESSION_BATCH_TIMEOUT_MS 60000   /* a master may hold an answer for 10 s; silence is the heartbeats' to find */
#define SESSION_KEYS_MAX 4096u           /* in one question */

enum session_state {
    SESSION_WAITING,     /* for the next attempt to reach a master */
    SESSION_FINDING,     /* the thread finds the master's address */
    SESSION_REGISTERING, /* the request is on its way */
    SESSION_ANNOUNCING,  /* registered; what is held is being announced, everything else waits */
    SESSION_READY,       /* everything that was held is announced */
    SESSION_STOPPED,     /* no announcements any more */
};

/* One announcement. Its node is in session->inbox, in session->waiting, in session->backlog_order or in a batch. */
struct announce_entry {
    struct list_node node;
    struct announce_entry *next_same_key; /* in the backlog */
    Shoal__Wire__MasterAnnounceRequest__Kind kind;
    uint64_t object_id, len_bytes;
    unsigned tier;
    int64_t deadline_ms;
    session_done_fn done; /* NULL: nobody waits (any more) */
    void *arg;
    bool is_orphan;     /* NEW or REPLICA on its way whose waiter was told TIMED_OUT: if it arrives, it is taken back */
    bool may_be_routed; /* a master that had no memory for its answer may have carried it out */
    size_t key_len;
    char key[]; /* with NUL */
};

/* A packed request of HELD entries. */
struct held_batch {
    struct list_node node; /* in session->held_queued or held_blocked */
    struct session *session;
    uint8_t *body; /* owned */
    size_t body_len, count;
    bool is_last;
    /* answered, and some were refused: */
    Shoal__Wire__MasterAnnounceResponse *answer; /* owned */
    size_t next;                                 /* first entry whose refusal is not handled yet */
    bool has_untold;                             /* the master had no memory for some */
};

/* Announcements that travel together. */
struct announce_batch {
    struct list entries; /* struct announce_entry */
    size_t count, body_bytes;
};

/* Where a batch is packed; grows as far as batches do (SESSION_BATCH_MAX_ENTRIES, SESSION_BATCH_MAX_BYTES) and stays.
 */
struct announce_scratch {
    Shoal__Wire__MasterAnnounceRequest__Entry *entries;   /* owned */
    Shoal__Wire__MasterAnnounceRequest__Entry **pointers; /* owned */
    size_t capacity;                                      /* of both */
    struct buf body;
};

struct session {
    /* constant */
    struct loop *loop;             /* borrowed */
    struct rpc *rpc;               /* borrowed */
    struct rpc_channels *channels; /* borrowed */
    struct tier_backend *backend;  /* borrowed, may be NULL */
    char *server_name, *address;   /* owned */
    uint64_t instance;
    int64_t call_timeout_ms;
    char (*masters)[HOSTPORT_TEXT_BYTES]; /* owned: as configured, with port */
    size_t master_count;
    struct meta *meta;           /* owned; NULL: masters are configured. Else it tells who leads */
    char *election_key;          /* owned; with meta */
    struct shoal_cancel *cancel; /* owned; with meta: ends its calls on the session's thread */
    char cluster[HOSTPORT_TEXT_BYTES - 16];

    struct mutex mutex; /* RANK_KV_SESSION */
    struct cond changed;
    /* guarded by mutex */
    bool is_stopping, is_registered, is_ready;
    size_t master_current;                  /* index in masters */
    char master_named[HOSTPORT_TEXT_BYTES]; /* by a master that is not the leader, or by meta; "": none */
    struct shoal_error trouble;             /* why it is not registered; status OK: nothing known */
    int64_t name_in_use_since_ms;           /* 0: the name is not refused */
    struct list inbox;                      /* struct announce_entry */
    struct spares spare_entries;            /* the same, with room for SESSION_SPARE_KEY_BYTES */
    bool is_inbox_posted;
    bool has_lost_entry;                           /* there was no memory for one that nobody waits for */
    size_t waiter_count;                           /* entries with done, wherever they are */
    Shoal__Wire__MasterHeartbeatResponse *targets; /* owned; NULL: none yet */
    int64_t targets_until_ms;
    struct random target_random;
    struct list held_queued; /* struct held_batch */
    unsigned held_queued_count;
    bool is_held_posted;
    uint64_t gather_epoch; /* 0: nothing is wanted; what was gathered for another is thrown away */
    bool wants_gather;
    bool wants_find; /* the loop waits for find_address and find_error */
    char find_text[HOSTPORT_TEXT_BYTES], find_address[HOSTPORT_TEXT_BYTES];
    struct shoal_error find_error;
    bool is_goodbye_done;

    uint64_t epoch;                   /* atomic; grows on the loop before gathering begins */
    struct session_counters counters; /* atomic */

    pthread_t thread;
    bool is_thread_started;
    struct cond thread_wake; /* with mutex */

    /* loop */
    enum session_state state;
    struct random random;
    unsigned attempt; /* since it was READY */
    struct loop_timer retry_timer, heartbeat_timer, deadline_timer, again_timer, pump_timer;
    struct loop_task inbox_task, held_task, find_task, pump_task;
    char master_text[HOSTPORT_TEXT_BYTES]; /* whom this attempt is for */
    struct rpc_client *announcer, *heart;  /* owned; NULL: no attempt */
    uint64_t master_instance;
    int64_t ttl_ms, heartbeat_ms;
    session_drop_fn drop;
    void *drop_arg;

    uint64_t drops_done; /* up to that sequence number drops have been handed over */
    bool is_beating;     /* a heartbeat is on its way */
    unsigned silent_beats;

    struct list waiting;       /* struct announce_entry: somebody waits */
    struct map backlog;        /* key -> struct announce_entry: nobody waits; chain of distinct objects */
    struct list backlog_order; /* the same, in order of arrival */
    size_t backlog_count;
    struct announce_batch batch;
    bool is_flying; /* the batch is on its way: its call has it */
    struct announce_scratch scratch;
    bool wants_registration; /* announcements were thrown away */
    bool is_busy;            /* outcomes are being handed out: no new batch yet */
    int64_t deadline_armed_ms;

    unsigned held_flying;
    struct list held_blocked; /* struct held_batch: the drop handler has no room */
};

static inline void session_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* --- session.c --- */

/* The master is lost, or refuses what a registered client may do: everything that is on its way ends, the next attempt
 * begins soon. Nothing if that has been noticed already. why: names the master. */
void session_lost(struct session *session, const struct shoal_error *why);
/* What an answer that is no success says about the master. true: it does not concern the request, and session_lost has
 * been called: the request has not been carried out (is_untouched) or may have been. */
bool session_judge(struct session *session, enum shoal_status status, const struct shoal_error *error,
                   bool *is_untouched_out);
/* Everything that was held is announced. */
void session_became_ready(struct session *session);

/* --- session_master.c: which master; any thread --- */

enum shoal_status session_masters_init(struct session *session, const char *text, struct shoal_error *error);
void session_masters_release(struct session *session);
/* false: the metadata service must be asked; text_out is for messages then. */
bool session_master_current(struct session *session, char text_out[HOSTPORT_TEXT_BYTES]);
/* The same, but asks it. */
enum shoal_status session_master_find(struct session *session, const struct call *call,
                                      char text_out[HOSTPORT_TEXT_BYTES], struct shoal_error *error);
/* It does not answer: the next one's turn, unless another thread has noticed already. */
void session_master_failed(struct session *session, const char *text);
/* Takes the leader's address out of a CONFLICT's message. false: there is none. */
bool session_master_follow(struct session *session, const char *text, const struct shoal_error *conflict);
/* "host:port" -> "ip:port". May block for a name. */
enum shoal_status session_master_resolve(const char *text, char address_out[HOSTPORT_TEXT_BYTES],
                                         struct shoal_error *error);
bool session_master_is_numeric(const char *text);
/* "master HOST:PORT: ..." */
void session_master_explain(const char *text, const struct shoal_error *from, struct shoal_error *out);

/* --- session_heartbeat.c; loop --- */

void session_heart_start(struct session *session);
void session_heart_stop(struct session *session);
void session_goodbye(struct session *session);
void session_on_heartbeat_timer(void *arg);
/* tiers_out: TIER_COUNT_MAX of each. Returns their number. */
size_t session_fill_tiers(struct session *session, Shoal__Wire__MasterTier *tiers_out,
                          Shoal__Wire__MasterTier **pointers_out, uint64_t *object_count_out);

/* --- session_announce.c; loop --- */

void session_announce_pump(struct session *session);
void session_announce_init(struct session *session);
void session_announce_release(struct session *session);
void session_announce_stop(struct session *session); /* CANCELED for all */
void session_on_inbox(void *arg);
void session_on_deadline(void *arg);
void session_on_pump(void *arg);

/* --- session_held.c --- */

void session_gather(struct session *session, uint64_t epoch); /* the session's thread */
void session_on_again(void *arg);                             /* loop: the drop handler is tried again */
void session_held_reset(struct session *session);             /* loop; after the client was closed */
/* Hands a removed object to the drop handler. false: again later. */
bool session_drop(struct session *session, const char *key, uint64_t object_id);

#endif
