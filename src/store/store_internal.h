/* SPDX-License-Identifier: Apache-2.0 */
/* The store's own objects. Who touches what:
 *   store->mutex (RANK_STORE) guards the catalog, the states and publication fields of payloads, and the list of calls;
 *   loop 0 owns the serving side of a payload (have log, waiters, receivers) and everything of a pull;
 *   user threads run the calls and block; the janitor thread repeats what the metadata service did not take in time. */
#ifndef SHOAL_STORE_STORE_INTERNAL_H
#define SHOAL_STORE_STORE_INTERNAL_H

#include <stdatomic.h>

#include <shoal/store.h>

#include "base/call.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "rpc/probe.h"
#include "rpc/rpc.h"
#include "store/claims.h"
#include "store/index.h"
#include "store/layout.h"
#include "store/manifest.h"
#include "store/receivers.h"
#include "swarm/news.h"

enum store_method { STORE_METHOD_OPEN = 1, STORE_METHOD_SYNC = 2, STORE_METHOD_STATUS = 3, STORE_METHOD_CLAIM = 4 };

struct store_counters {
    atomic_uint_fast64_t registers, gets, gets_failed, pieces_verified, pieces_bad, bytes_pulled, bytes_served,
        source_failures, publish_retries, republished, unverified_gets, bytes_reused;
};

struct shoal_store {
    struct shoal_engine *engine; /* owned */
    struct rpc *rpc;             /* owned */
    struct probe *probe;         /* owned */
    struct pool *pool;           /* owned: digests */
    char *cluster;               /* owned */
    int64_t connect_timeout_ms, progress_timeout_ms, lease_ttl_ms;

    struct mutex mutex;
    struct cond idle;   /* calls is empty */
    struct map catalog; /* name -> struct payload, one reference each */
    struct list calls;  /* struct store_call */
    bool is_closing;
    struct janitor *janitor; /* owned */

    struct store_counters counters;
};

/* A blocking call in progress: its own token, triggered by the user's one or by close. */
struct store_call {
    struct list_node node;
    struct shoal_store *store;
    struct call call; /* with the token below */
    struct shoal_cancel *user_cancel;
    struct cancel_hook user_hook;
};
/* CLOSED: the store is closing. Paired with store_call_end, also for early ends of the deadline. */
enum shoal_status store_call_begin(struct store_call *store_call, struct shoal_store *store,
                                   const struct shoal_call *call, int64_t default_timeout_ms,
                                   struct shoal_error *error);
void store_call_end(struct store_call *store_call);

/* --- payloads of this node --- */

enum payload_state {
    PAYLOAD_OPENING, /* being registered or pulled */
    PAYLOAD_READY,
    PAYLOAD_CLOSING, /* being withdrawn; the name is still taken */
};

struct payload {
    struct shoal_store *store; /* borrowed */
    atomic_uint refs;
    char *name; /* owned */
    bool is_gold, is_shared;
    bool is_device; /* the regions are device memory: nothing here may touch them */
    /* fixed before is_serving */
    uint64_t generation;
    struct layout layout;
    struct span_map spans;        /* the registered regions with their keys */
    struct shoal_region *regions; /* owned array, as given */
    size_t region_count;
    size_t registered_count; /* of regions: to be unregistered */
    uint8_t *index;          /* owned */
    size_t index_len;
    uint64_t index_key;
    bool is_index_registered;
    struct buf manifest; /* encoded */

    /* store->mutex */
    enum payload_state state;
    bool is_serving;        /* peers may open it */
    bool wants_publication; /* the source entry shall be in the metadata service */
    bool is_published;
    bool is_superseded; /* another generation took the name: never published again */
    char *replaced_by;  /* owned; the node that has done that; NULL: not known */
    int64_t checked_ms; /* when the name was last found to be this generation's */

    /* loop 0 */
    bool is_complete;
    bool is_starving;    /* its pull cannot go on unless another source grows */
    uint64_t *have_bits; /* owned; NULL when complete from the start */
    uint32_t *have_log;  /* owned: verified pieces in order */
    uint32_t have_count;
    struct list waiters; /* struct waiter in serve.c */
    uint32_t waiter_count;
    struct swarm_news news;
    struct loop_timer waiter_timer;
    bool has_waiter_timer;
    struct receivers receivers;
    struct claims claims;
};

/* Makes an entry in state OPENING and puts it into the catalog. PAYLOAD_OPENED, INVALID_ARGUMENT (regions), NO_MEMORY.
 * The caller holds one reference. */
enum shoal_status payload_open(struct shoal_store *store, const char *name, const struct shoal_region *regions,
                               size_t region_count, bool is_gold, struct payload **payload_out,
                               struct shoal_error *error);
/* Registers the regions with the engine and fills spans. On error nothing stays registered. */
enum shoal_status payload_register_memory(struct payload *payload, const char *location, unsigned access,
                                          struct shoal_error *error);
/* Registers the index (already allocated and filled) for peers. */
enum shoal_status payload_register_index(struct payload *payload, struct shoal_error *error);
/* Ends everything local: serving, registrations, catalog entry. Blocks until no peer reads the memory. Consumes the
 * catalog's reference. Not on the loop. */
void payload_close(struct payload *payload);
void payload_ref(struct payload *payload);
void payload_unref(struct payload *payload); /* NULL is allowed */
/* Takes a READY payload for closing. PAYLOAD_NOT_OPENED. The caller gets a reference. */
enum shoal_status payload_take(struct shoal_store *store, const char *name, bool is_gold, struct payload **payload_out,
                               struct shoal_error *error);
void payload_set_state(struct payload *payload, enum payload_state state);
/* While opening: the janitor looks at every payload of the catalog. */
void payload_set_generation(struct payload *payload, uint64_t generation);

/* 1..SHOAL_NAME_MAX_BYTES of UTF-8 without control characters. */
enum shoal_status store_check_name(const char *name, struct shoal_error *error);

/* --- serving (serve.c), loop 0 unless said otherwise --- */

/* The payload, if this node serves that generation of it; a reference. NULL: it does not. Any thread. */
struct payload *serve_find(struct shoal_store *store, const char *name, uint64_t generation);
/* The same, whatever the generation. */
struct payload *serve_find_any(struct shoal_store *store, const char *name);
void serve_install(struct shoal_store *store);                                     /* any thread, once */
enum shoal_status serve_start(struct payload *payload, struct shoal_error *error); /* not on the loop */
void serve_stop(struct payload *payload);                                          /* not on the loop */
/* is_urgent: others should hear of it soon. */
void serve_piece_verified(struct payload *payload, uint32_t piece, bool is_urgent);
void serve_starving(struct payload *payload, bool is_starving);
uint32_t serve_pieces_have(const struct payload *payload);
/* One payload as shoal_served_info, through the loop. Not on the loop. */
void serve_describe(struct payload *payload, struct shoal_served_info *info_out);

/* --- metadata (publish.c) --- */

/* Everything under a name: the current manifest (has_manifest) and its live sources. */
struct payload_record {
    bool has_manifest;
    struct manifest manifest;
    int64_t manifest_revision;
    enum shoal_status manifest_status; /* PROTOCOL: there is one, but it is unreadable */
    struct source_entry *sources;      /* owned; of the manifest's generation only */
    size_t source_count;
    int64_t revision; /* for a watch */
};
void payload_record_release(struct payload_record *record);
enum shoal_status publish_read(struct shoal_store *store, const char *name, const struct call *call,
                               struct payload_record *record_out, struct shoal_error *error);
/* The same of a payload that there is, in that generation (0: any). PAYLOAD_NOT_FOUND, METADATA: its manifest cannot be
 * read; REPLACED. It may have no source. */
enum shoal_status publish_find(struct shoal_store *store, const char *name, uint64_t generation,
                               const struct call *call, struct payload_record *record_out, struct shoal_error *error);
/* Key prefix of everything under a name, with '/' at its end. NULL: out of memory. */
char *publish_prefix(struct shoal_store *store, const char *name);

/* Creates manifest and gold entry. EXISTS without force. */
enum shoal_status publish_create(struct payload *payload, bool force, const struct call *call,
                                 struct shoal_error *error);
/* Adds the source entry of a replica, or of any payload after the lease was lost; recreates the manifest if it
 * vanished. OK also if another generation took the name: then is_superseded is set. */
enum shoal_status publish_join(struct payload *payload, const struct call *call, struct shoal_error *error);
/* The same for the first time, when the manifest's revision is known: one request. */
enum shoal_status publish_join_known(struct payload *payload, int64_t manifest_revision, const struct call *call,
                                     struct shoal_error *error);
/* Looks whether the name is still this generation's: one request, and another one if not; then is_superseded is set. */
enum shoal_status publish_check(struct payload *payload, const struct call *call, struct shoal_error *error);
/* Removes this node's source entry and, as the last one out, the manifest. */
enum shoal_status publish_withdraw(struct shoal_store *store, const char *name, uint64_t generation,
                                   const struct call *call, struct shoal_error *error);
/* The same, now within timeout_ms or later by the janitor. */
enum shoal_status publish_withdraw_or_defer(struct shoal_store *store, const char *name, uint64_t generation,
                                            const struct call *call, struct shoal_error *error);

/* --- janitor (janitor.c) --- */

enum shoal_status janitor_create(struct shoal_store *store, struct shoal_error *error);
void janitor_destroy(struct shoal_store *store);
/* Withdraws later. Bounded; beyond the bound the oldest is left to the lease's end. */
void janitor_defer_withdrawal(struct shoal_store *store, const char *name, uint64_t generation);
/* Some payload wants to be published. */
void janitor_wake(struct shoal_store *store);

#endif
