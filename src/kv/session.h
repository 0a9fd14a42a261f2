/* SPDX-License-Identifier: Apache-2.0 */
/* A client's relation to its master: registration, heartbeats on a connection of their own, announcements in batches
 * (those that come while one is on its way travel together), the write targets that heartbeats bring, and the questions
 * (lookup, remove, list). After a master's restart or a failover it registers and announces everything again by itself.
 *
 * Threads: any, except where said. Callbacks run on the session's loop (the one given) and must not block. */
#ifndef SHOAL_KV_SESSION_H
#define SHOAL_KV_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/call.h"
#include "loop/loop.h"
#include "rpc/channel.h"
#include "rpc/rpc.h"
#include "tier/tier.h"
#include "wire/master.pb-c.h"

/* Methods at the master's RPC port (wire/master.proto). */
enum master_method {
    MASTER_METHOD_REGISTER = 1,
    MASTER_METHOD_HEARTBEAT = 2,
    MASTER_METHOD_ANNOUNCE = 3,
    MASTER_METHOD_LOOKUP = 4,
    MASTER_METHOD_WRITE_ROUTE = 5,
    MASTER_METHOD_REMOVE = 6,
    MASTER_METHOD_LIST = 7,
    MASTER_METHOD_STATUS = 8,
};

struct session;

struct session_config {
    struct loop *loop;             /* borrowed: where rpc lives */
    struct rpc *rpc;               /* borrowed: asynchronous calls */
    struct rpc_channels *channels; /* borrowed: blocking calls */
    /* "host:port", or several separated by commas: tried in turn, whoever is not the leader says who is; or
     * the URI of the metadata service ("etcd://..."): the leader's key (kv/election_key.h) is read there. Copied. */
    const char *master;
    const char *cluster, *server_name, *address; /* of this client; copied. address: its client RPC endpoint */
    uint64_t instance;
    struct tier_backend *backend; /* borrowed; NULL: this client owns nothing. Read for announcements and heartbeats */
    int64_t call_timeout_ms;      /* 0: 10000 */
};

/* Starts; registers in the background. */
enum shoal_status session_create(const struct session_config *config, struct session **session_out,
                                 struct shoal_error *error);
/* Blocks until registered and everything is announced. NAME_IN_USE, TIMED_OUT, UNREACHABLE (message: master and cause),
 * CANCELED. */
enum shoal_status session_wait_ready(struct session *session, const struct call *call, struct shoal_error *error);
bool session_is_registered(struct session *session);
/* Ends pending announcements with CANCELED (their done runs before this returns), takes no more, and ends waiting for
 * it to be ready. For whoever must see the end of its announcements before it can be destroyed. Not on the loop. */
void session_stop(struct session *session);
/* Stops, and tells the master goodbye (bounded). Not on the loop. NULL is allowed. */
void session_destroy(struct session *session);
struct loop *session_loop(const struct session *session);

/* An object of this client was removed in the cluster: fn drops it, on the loop's thread it only queues. false: it has
 * no room now and is asked again. Set before the session can have something to drop; NULL: none, what comes meanwhile
 * is asked again later. When it returns, the previous one is not running. Not on the loop. */
typedef bool (*session_drop_fn)(void *arg, const char *key, uint64_t object_id);
void session_set_drop_handler(struct session *session, session_drop_fn fn, void *arg);

/* Queues one entry (copied) for the next batch. done (may be NULL: nobody waits, it is repeated until the master has
 * it, and without memory for it everything is announced anew) runs once, on the loop: OK, EXISTS, NOT_FOUND, TIMED_OUT,
 * UNREACHABLE, CANCELED, or another refusal of the master's. When a NEW or REPLICA ends with TIMED_OUT or UNREACHABLE
 * and the master may have it, the session announces it GONE by itself. timeout_ms: of entries with done; 0:
 * call_timeout_ms. An error here means no done: INVALID_ARGUMENT (key), LIMIT (too many wait), CANCELED (stopped),
 * NO_MEMORY. */
typedef void (*session_done_fn)(void *arg, enum shoal_status status, const struct shoal_error *error);
enum shoal_status session_announce(struct session *session, Shoal__Wire__MasterAnnounceRequest__Kind kind,
                                   const char *key, uint64_t object_id, uint64_t len_bytes, unsigned tier,
                                   int64_t timeout_ms, session_done_fn done, void *arg);

/* Grows when everything that is published begins to be gathered for a registration. Who publishes an object later than
 * in done compares: if it has grown since done, the object may have been missed and is announced HELD. */
uint64_t session_epoch(struct session *session);

/* --- questions; block; UNREACHABLE: names the master and the cause --- */

struct session_replica {
    uint64_t instance;
    char server_name[320];
    char address[64];
    unsigned tier, tier_type;
};
struct session_route {
    enum shoal_status status; /* OK or NOT_FOUND; of a removal see there */
    uint64_t object_id, len_bytes;
    size_t replica_count;
    struct session_replica *replicas; /* inside the routes' allocation */
};
/* routes_out: count of them, one free() frees all. At most 4096 keys. */
enum shoal_status session_lookup(struct session *session, const char *const *keys, size_t count,
                                 const struct call *call, struct session_route **routes_out, struct shoal_error *error);
/* Takes the routes away; the copies are the caller's to delete (their owners also hear of it by heartbeat). A status of
 * UNREACHABLE: an answer was lost, and in the end there was no route: this removal took it away, or there was none. The
 * owners are not known. TIMED_OUT: the master did not know the key in time. */
enum shoal_status session_remove(struct session *session, const char *const *keys, size_t count,
                                 const struct call *call, struct session_route **routes_out, struct shoal_error *error);
/* One owner for a new object of that size: from the targets that the last heartbeat brought while they are fresh and
 * have room, else the master is asked. excluded: instances that refused already. NO_SPACE: nobody has room. */
enum shoal_status session_write_target(struct session *session, uint64_t len_bytes, const uint64_t *excluded,
                                       size_t excluded_count, const struct call *call,
                                       struct session_replica *target_out, struct shoal_error *error);
struct session_entry {
    char *key; /* inside the page's allocation */
    uint64_t len_bytes, object_id;
    unsigned replica_count;
};
struct session_page {
    struct session_entry *entries;
    size_t count;
    void *cursor; /* for the next call; cursor_len 0: the end */
    size_t cursor_len;
};
enum shoal_status session_list(struct session *session, const char *pattern, const void *cursor, size_t cursor_len,
                               unsigned limit, const struct call *call, struct session_page **page_out,
                               struct shoal_error *error);
void session_page_free(struct session_page *page);
/* The master's status message; free with shoal__wire__master_status_response__free_unpacked. */
enum shoal_status session_status(struct session *session, const struct call *call,
                                 Shoal__Wire__MasterStatusResponse **status_out, struct shoal_error *error);

struct session_counters {
    uint64_t registrations, heartbeats, heartbeat_failures, announced, announce_failures, conflicts, drops;
};
void session_counters(struct session *session, struct session_counters *out);

#endif
