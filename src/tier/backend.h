/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the tiered backend.
 *
 * An object never changes its place: a move makes a second object with the same key and id on the other tier and puts
 * it into the index in the first one's stead, so a reader's pointer stays good. An object promoted from a persistent
 * tier keeps the first one as its backing: both spaces are used, a restart loses nothing, and moving back costs
 * nothing.
 *
 * Locks: stripe (index, states, backings) before slot (order of eviction) or backend (queues); stripes and slots never
 * two at once; no operation of a tier, no event and no log line under any of them (docs/LOCKING.md). */
#ifndef SHOAL_TIER_BACKEND_H
#define SHOAL_TIER_BACKEND_H

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/random.h"
#include "tier/sketch.h"
#include "tier/tier.h"
#include "tier/tier_ops.h"

enum object_state {
    OBJECT_ALLOCATED, /* struct tier_allocation: being written, unknown to the index */
    OBJECT_COMMITTED, /* holds its key in the index, readers do not see it */
    OBJECT_PUBLISHED, /* in the index, readers see it */
    OBJECT_BACKING,   /* persistent copy below the object that is in the index */
    OBJECT_GONE,      /* only references keep it */
};

/* An allocation is an object that nobody else knows: the same struct under another name. */
struct tier_object {
    struct tier_backend *backend; /* borrowed */
    struct tier_space *space;     /* owned; NULL only while it is made */
    unsigned tier;
    uint32_t refs; /* atomic; one is the index's (or the front's for a backing) while it is COMMITTED to BACKING */
    uint64_t object_id, len_bytes, hash;
    uint64_t written_bytes;      /* ALLOCATED on tiers without addresses */
    bool is_persisted;           /* set before it is published; cleared by who took it out of the index */
    bool was_accessed;           /* atomic; second chance */
    bool has_backing;            /* atomic; a hint for those without the stripe's lock */
    bool is_hot;                 /* atomic; waits in the queue of promotions */
    enum object_state state;     /* stripe lock */
    struct tier_object *backing; /* ref; stripe lock */
    bool is_evictable;           /* slot lock; belongs into the slot's list, though it may be claimed just now */
    struct list_node node;       /* slot lock */
    char key[];
};

struct stripe {
    _Alignas(64) struct mutex lock; /* RANK_TIER_STRIPE */
    struct map objects;             /* key -> struct tier_object, ref */
    uint64_t hits, misses;
};

/* A tier in its place. */
struct slot {
    struct tier *tier; /* owned; its ops are those below */
    struct tier_ops ops;
    enum tier_type type;
    int priority;
    struct mutex lock;   /* RANK_TIER; guards list and count */
    struct list objects; /* evictable and not claimed, coldest first */
    uint64_t evictable_count;
    bool is_draining;       /* background thread: above high, has not reached low */
    int64_t no_moves_until; /* atomic, clock.h; a move to here failed, it takes none until then */
    /* atomic */
    uint64_t object_count, evictions, promotions, offloads, checksum_errors, refused;
};

struct event {
    struct list_node node;
    bool is_eviction; /* else moved */
    unsigned tier;
    uint64_t object_id;
    char key[];
};

#define HOT_MAX 64          /* objects that wait for promotion */
#define EVENTS_MAX 65536    /* that wait for their callback; evictions wait beyond it */
#define PROMOTE_ACCESSES 3u /* estimate from which an object of a slower tier is hot */

struct tier_backend {
    struct random_ids object_ids;
    struct shoal_engine *engine; /* borrowed; NULL */
    struct slot slots[TIER_COUNT_MAX];
    size_t slot_count;
    unsigned order[TIER_COUNT_MAX]; /* slots by priority, best first */
    unsigned low, high, critical;   /* percent */
    struct stripe *stripes;         /* owned */
    unsigned stripe_count;
    struct sketch sketch;

    struct mutex staging_lock; /* RANK_TIER_SPACE; guards staging_free */
    uint8_t *staging;          /* mapping, owned */
    uint64_t staging_key;
    unsigned staging_count, staging_free_count;
    unsigned *staging_free;   /* owned; stack of indexes */
    uint64_t staging_refused; /* atomic */

    struct mutex lock; /* RANK_TIER; guards what follows */
    struct cond wake, idle;
    bool is_woken, is_stopping;
    struct tier_object *hot[HOT_MAX]; /* refs; ring */
    unsigned hot_first, hot_count;
    struct list events; /* struct event, owned */
    size_t event_count;
    struct tier_events handlers;
    bool is_in_handler;
    uint64_t handler_calls; /* ended */
    pthread_t handler_thread;

    bool has_thread;
    pthread_t thread;
};

/* What tests replace. */
struct backend_options {
    const struct tier_ops *(*ops_of)(enum tier_type type); /* NULL: the real ones */
    bool has_no_thread;                                    /* the test calls backend_step */
};
enum shoal_status backend_create(const struct tier_backend_config *config, const struct backend_options *options,
                                 struct tier_backend **backend_out, struct shoal_error *error);

/* --- objects --- */

/* The slot's tier has given space (NULL on failure: nothing is taken). One reference. */
struct tier_object *object_create(struct tier_backend *backend, const char *key, uint64_t hash, unsigned tier,
                                  struct tier_space *space);
static inline struct slot *object_slot(const struct tier_object *object)
{
    return &object->backend->slots[object->tier];
}
/* Takes its index entry back. Not durable: never blocks. */
enum shoal_status object_forget(struct tier_object *object, bool is_durable, struct shoal_error *error);
uint64_t backend_hash(const char *key);

static inline uint64_t counter_get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}
static inline void counter_add(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* --- index --- */

enum shoal_status index_init(struct tier_backend *backend, unsigned stripe_count);
void index_release(struct tier_backend *backend); /* gives every object back */

bool index_has_key(struct tier_backend *backend, const char *key, uint64_t hash, bool wants_published);
/* The caller's reference stays, the index takes one of its own. EXISTS, NO_MEMORY. */
enum shoal_status index_insert(struct tier_object *object, enum object_state state);
/* COMMITTED becomes PUBLISHED. */
void index_publish(struct tier_object *object);
/* Takes a COMMITTED one out. */
void index_abandon(struct tier_object *object);

enum index_move {
    INDEX_MOVED,   /* fresh is in the index; old is GONE, or the backing of fresh */
    INDEX_CHANGED, /* old is not there any more */
    INDEX_IN_USE,  /* somebody reads it */
};
/* fresh (one reference, the caller's: the index takes its own) replaces old, which the caller refers to. keeps_old: as
 * its backing. */
enum index_move index_replace(struct tier_object *old, struct tier_object *fresh, bool keeps_old);

enum index_drop {
    INDEX_DROPPED,      /* the key is gone */
    INDEX_BACKING_GONE, /* it was the backing; the key is still there */
    INDEX_DEMOTED,      /* its backing is in the index in its stead */
    INDEX_KEPT,         /* somebody reads it, or it was not there */
};
/* The caller has a reference. wants_unused: KEPT if anybody else refers to it. may_drop false: only its backing can
 * take its place. DEMOTED: backing_out is a reference to it. */
enum index_drop index_drop(struct tier_object *object, bool wants_unused, bool may_drop,
                           struct tier_object **backing_out);

/* --- order of eviction --- */

void slot_list(struct tier_object *object);   /* it is evictable from now on, as the hottest */
void slot_unlist(struct tier_object *object); /* never again */
/* The least valuable of some from the cold end, with a reference; nobody else gets it until slot_return. wants_backed:
 * only one that its backing could replace. NULL: all are in use. */
struct tier_object *slot_claim(struct slot *slot, const struct sketch *sketch, bool wants_backed);
/* Takes the reference. Back into the list if it is still evictable. */
void slot_return(struct tier_object *object);

/* --- policy --- */

uint64_t slot_limit(const struct tier_backend *backend, const struct slot *slot, unsigned percent);
/* Would len_bytes more stay within percent of it? */
bool slot_has_room(const struct tier_backend *backend, const struct slot *slot, uint64_t len_bytes, unsigned percent);
/* Room below a tier (place in order) that an object of len_bytes could move to; slot_count: none. */
size_t policy_room_below(const struct tier_backend *backend, size_t place, uint64_t len_bytes);
/* Drops one unused object from the slot at that place of the order, without blocking. What could move to a tier below
 * is kept. false: none. */
bool policy_reclaim_one(struct tier_backend *backend, size_t place);
/* The object was read and is hot. */
void policy_note_hot(struct tier_object *object);
/* One bounded round of background work. true: there is more now. */
bool backend_step(struct tier_backend *backend);
void backend_wake(struct tier_backend *backend);
void *backend_thread(void *arg);

/* --- events --- */

/* NULL: out of memory, or too many wait. */
struct event *event_create(struct tier_backend *backend, const struct tier_object *object);
void event_post(struct tier_backend *backend, struct event *event, bool is_eviction);
/* Calls handlers for what waits, a bounded number. true: there is more. */
bool events_deliver(struct tier_backend *backend);
void events_release(struct tier_backend *backend);

#endif
