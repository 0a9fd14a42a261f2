/* SPDX-License-Identifier: Apache-2.0 */
/* What stays on which tier. The order of eviction is a clock (a list with second chances) from whose cold end the least
 * often used of a few is taken; how often comes from the sketch (TinyLFU). All work is done in bounded rounds. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "tier/backend.h"

#define LOG_MODULE "tier"
#define CLAIM_CANDIDATES 8 /* compared with each other */
#define CLAIM_STEPS 64     /* objects passed per round, with the slot locked */
#define CLAIM_ROUNDS 16
#define RECLAIM_TRIES 16
#define DISPLACED_MAX 8           /* objects that one promotion may push out */
#define ROUND_OBJECTS 64          /* moved or dropped per tier and round */
#define ROUND_BYTES (64ull << 20) /* copied per tier and round */
#define ROUND_PROMOTIONS 4        /* per round */
#define FULL_PAUSE_MS 100         /* a tier whose room was in pieces takes no moves for so long */
#define BROKEN_PAUSE_MS 5000      /* one that could not be written */
#define IDLE_MS 1000              /* between rounds that nobody asked for */

/* --- order of eviction --- */

void slot_list(struct tier_object *object)
{
    struct slot *slot = object_slot(object);

    mutex_lock(&slot->lock);
    object->is_evictable = true;
    list_push_back(&slot->objects, &object->node);
    slot->evictable_count++;
    mutex_unlock(&slot->lock);
}

void slot_unlist(struct tier_object *object)
{
    struct slot *slot = object_slot(object);

    mutex_lock(&slot->lock);
    if (object->is_evictable)
        slot->evictable_count--;
    object->is_evictable = false;
    list_remove(&object->node); /* harmless while it is claimed */
    mutex_unlock(&slot->lock);
}

void slot_return(struct tier_object *object)
{
    struct slot *slot = object_slot(object);

    mutex_lock(&slot->lock);
    if (object->is_evictable && !list_node_is_linked(&object->node))
        list_push_back(&slot->objects, &object->node);
    mutex_unlock(&slot->lock);
    tier_object_unref(object);
}

/* Passes up to steps_max objects from the cold end. Slot locked. is_end_out: there were fewer. */
static struct tier_object *find_victim(struct slot *slot, const struct sketch *sketch, bool wants_backed,
                                       unsigned steps_max, bool *is_end_out)
{
    struct tier_object *best = NULL;
    unsigned best_count = 0, candidates = 0, steps = 0;
    struct list_node *node = slot->objects.head.next, *last = slot->objects.head.prev, *next;

    *is_end_out = false;
    for (; node != &slot->objects.head && candidates < CLAIM_CANDIDATES; node = next) {
        struct tier_object *object = container_of(node, struct tier_object, node);
        bool is_last = node == last; /* what follows has been passed already */

        if (steps++ == steps_max)
            return best;
        next = node->next;
        if (wants_backed && !__atomic_load_n(&object->has_backing, __ATOMIC_RELAXED)) {
            /* stays where it is */
        } else if (__atomic_load_n(&object->was_accessed, __ATOMIC_RELAXED) ||
                   __atomic_load_n(&object->refs, __ATOMIC_RELAXED) > 1) {
            __atomic_store_n(&object->was_accessed, false, __ATOMIC_RELAXED);
            list_remove(node);
            list_push_back(&slot->objects, node);
        } else {
            unsigned count = sketch_estimate(sketch, object->hash);
            if (!best || count < best_count) {
                best = object;
                best_count = count;
            }
            candidates++;
        }
        if (is_last)
            break;
    }
    *is_end_out = candidates < CLAIM_CANDIDATES;
    return best;
}

struct tier_object *slot_claim(struct slot *slot, const struct sketch *sketch, bool wants_backed)
{
    struct tier_object *victim = NULL;
    unsigned ends = 0, rounds = wants_backed ? 2 : CLAIM_ROUNDS;

    for (unsigned round = 0; round < rounds && !victim && ends < 2; round++) {
        bool is_end;
        mutex_lock(&slot->lock);
        victim =
            find_victim(slot, sketch, wants_backed, wants_backed ? CLAIM_STEPS * CLAIM_ROUNDS : CLAIM_STEPS, &is_end);
        if (victim) {
            tier_object_ref(victim); /* as long as it is listed, the index refers to it */
            list_remove(&victim->node);
        }
        mutex_unlock(&slot->lock);
        ends += is_end; /* once round takes the second chances away, the next takes what had one */
    }
    return victim;
}

static bool has_several(struct slot *slot)
{
    bool has;

    mutex_lock(&slot->lock);
    has = slot->evictable_count > 1;
    mutex_unlock(&slot->lock);
    return has;
}

/* --- room --- */

uint64_t slot_limit(const struct tier_backend *backend, const struct slot *slot, unsigned percent)
{
    (void)backend;
    return slot->tier->capacity_bytes / 100 * percent + slot->tier->capacity_bytes % 100 * percent / 100;
}

bool slot_has_room(const struct tier_backend *backend, const struct slot *slot, uint64_t len_bytes, unsigned percent)
{
    uint64_t used = counter_get(&slot->tier->used_bytes), limit = slot_limit(backend, slot, percent);
    return used <= limit && len_bytes <= limit - used;
}

size_t policy_room_below(const struct tier_backend *backend, size_t place, uint64_t len_bytes)
{
    for (size_t below = place + 1; below < backend->slot_count; below++) {
        const struct slot *slot = &backend->slots[backend->order[below]];
        int64_t until = __atomic_load_n(&slot->no_moves_until, __ATOMIC_RELAXED);
        if (len_bytes <= slot->tier->max_object_bytes && slot_has_room(backend, slot, len_bytes, backend->critical) &&
            (until == 0 || deadline_is_past(until)))
            return below;
    }
    return backend->slot_count;
}

/* A tier below could take it later. */
static bool is_paused_below(const struct tier_backend *backend, size_t place, uint64_t len_bytes)
{
    for (size_t below = place + 1; below < backend->slot_count; below++) {
        const struct slot *slot = &backend->slots[backend->order[below]];
        int64_t until = __atomic_load_n(&slot->no_moves_until, __ATOMIC_RELAXED);
        if (len_bytes <= slot->tier->max_object_bytes && until != 0 && !deadline_is_past(until))
            return true;
    }
    return false;
}

static void pause_moves(struct slot *slot, int64_t pause_ms)
{
    __atomic_store_n(&slot->no_moves_until, deadline_after_ms(pause_ms), __ATOMIC_RELAXED);
}

/* --- dropping --- */

/* Takes a claimed object out if nobody uses it: into its backing's hands, or (may_drop) altogether. Without blocking.
 * Takes the claim if it returns true. */
static bool drop_claimed(struct tier_backend *backend, struct tier_object *victim, bool may_drop)
{
    struct slot *slot = object_slot(victim);
    struct event *event = event_create(backend, victim);
    struct tier_object *backing = NULL;
    enum index_drop drop = event ? index_drop(victim, true, may_drop, &backing) : INDEX_KEPT;

    if (drop == INDEX_KEPT) {
        free(event);
        return false;
    }
    (void)object_forget(victim, false, NULL); /* cannot fail before the next durable operation */
    if (drop == INDEX_DEMOTED) {
        event->tier = backing->tier;
        counter_add(&slot->offloads, 1);
        event_post(backend, event, false);
    } else if (drop == INDEX_DROPPED) {
        counter_add(&slot->evictions, 1);
        event_post(backend, event, true);
    } else {
        free(event); /* the object is where it was, a copy of it has gone */
    }
    tier_object_unref(backing);
    tier_object_unref(victim);
    return true;
}

bool policy_reclaim_one(struct tier_backend *backend, size_t place)
{
    struct slot *slot = &backend->slots[backend->order[place]];
    bool wants_backed = false;

    for (unsigned i = 0; i < RECLAIM_TRIES; i++) {
        struct tier_object *victim = slot_claim(slot, &backend->sketch, wants_backed);
        if (!victim)
            return false;
        /* What could move to a tier below is left to the background, unless it is there already. */
        wants_backed = policy_room_below(backend, place, victim->len_bytes) < backend->slot_count;
        if (drop_claimed(backend, victim, !wants_backed))
            return true;
        slot_return(victim);
    }
    return false;
}

/* --- moving --- */

static enum shoal_status copy_chunk(struct tier_object *from, struct tier_object *to, uint64_t offset_bytes,
                                    size_t len_bytes, struct shoal_error *error)
{
    struct tier *tier = object_slot(to)->tier;
    const uint8_t *source = tier_object_data(from);
    uint8_t *target = tier->ops->data(tier, to->space);
    void *buffer = NULL;
    enum shoal_status status = SHOAL_OK;

    if (target)
        return tier_read(from, offset_bytes, target + offset_bytes, len_bytes, error);
    if (source) {
        source += offset_bytes;
    } else {
        source = buffer = tier_staging_take(to->backend);
        if (!buffer)
            return error_set(error, SHOAL_BUSY, 0, "all staging buffers are in use");
        status = tier_read(from, offset_bytes, buffer, len_bytes, error);
    }
    if (status == SHOAL_OK)
        status = tier->ops->write(tier, to->space, offset_bytes, source, len_bytes, error);
    if (buffer)
        tier_staging_give(to->backend, buffer);
    return status;
}

static enum shoal_status copy_object(struct tier_object *from, struct tier_object *to, struct shoal_error *error)
{
    struct tier *tier = object_slot(to)->tier;
    enum shoal_status status = SHOAL_OK;

    for (uint64_t done = 0; done < from->len_bytes && status == SHOAL_OK;) {
        uint64_t left = from->len_bytes - done;
        size_t len = left < TIER_STAGING_BYTES ? (size_t)left : TIER_STAGING_BYTES;
        status = copy_chunk(from, to, done, len, error);
        done += len;
    }
    if (status == SHOAL_OK)
        status = tier->ops->seal(tier, to->space, error);
    if (status == SHOAL_OK && tier->is_persistent) {
        status = tier->ops->persist(tier, to->space, to->key, to->object_id, error);
        to->is_persisted = status == SHOAL_OK;
    }
    return status;
}

/* Copies an object to the tier at place and lets the copy take over. OK; CONFLICT: removed or in use meanwhile;
 * NO_SPACE, NO_MEMORY, IO, CORRUPTED, BUSY. The caller refers to old. */
static enum shoal_status move(struct tier_backend *backend, struct tier_object *old, size_t place, bool keeps_old,
                              struct shoal_error *error)
{
    unsigned index = backend->order[place];
    struct slot *slot = &backend->slots[index];
    struct event *event = event_create(backend, old);
    struct tier_space *space = NULL;
    struct tier_object *fresh = NULL;
    enum shoal_status status = event ? SHOAL_OK : error_no_memory(error);

    if (status == SHOAL_OK)
        status = slot->tier->ops->allocate(slot->tier, old->len_bytes, &space, error);
    if (status == SHOAL_OK) {
        fresh = object_create(backend, old->key, old->hash, index, space);
        if (!fresh) {
            slot->tier->ops->release(slot->tier, space);
            status = error_no_memory(error);
        }
    }
    if (status == SHOAL_OK) {
        fresh->object_id = old->object_id;
        status = copy_object(old, fresh, error);
    }
    if (status == SHOAL_OK && index_replace(old, fresh, keeps_old) != INDEX_MOVED)
        status = error_set(error, SHOAL_CONFLICT, 0, "the object was removed or is being read");
    if (status == SHOAL_OK) {
        if (!keeps_old)
            (void)object_forget(old, false, NULL);
        event->tier = index;
        event_post(backend, event, false);
        tier_object_unref(fresh);
        return SHOAL_OK;
    }
    if (fresh) {
        struct shoal_error forget_error;
        if (object_forget(fresh, true, &forget_error) != SHOAL_OK)
            LOG_ERROR("taking a copy back: %s; it may come back after a restart", forget_error.message);
        tier_object_unref(fresh);
    }
    free(event);
    return status;
}

/* A claimed object leaves its tier: into the hands of its backing, to a tier below, or altogether. Takes the claim.
 * false: it stays. */
static bool push_out(struct tier_backend *backend, size_t place, struct tier_object *victim)
{
    size_t below = policy_room_below(backend, place, victim->len_bytes);
    struct slot *slot = object_slot(victim), *slot_below;
    struct shoal_error error;
    enum shoal_status status;
    /* One failed move is no reason to lose objects, as long as there is room for new ones. */
    bool may_drop = below == backend->slot_count && !(is_paused_below(backend, place, victim->len_bytes) &&
                                                      slot_has_room(backend, slot, 0, backend->critical));

    if (drop_claimed(backend, victim, may_drop))
        return true;
    if (below == backend->slot_count) {
        slot_return(victim);
        return false;
    }
    slot_below = &backend->slots[backend->order[below]];
    status = move(backend, victim, below, false, &error);
    if (status == SHOAL_OK) {
        counter_add(&slot->offloads, 1);
        tier_object_unref(victim);
        return true;
    }
    if (status == SHOAL_NO_SPACE) {
        pause_moves(slot_below, FULL_PAUSE_MS);
    } else if (status != SHOAL_CONFLICT && status != SHOAL_BUSY) {
        LOG_WARN("moving an object of %llu bytes to tier %u (%s): %s", (unsigned long long)victim->len_bytes,
                 backend->order[below], slot_below->tier->ops->name, error.message);
        pause_moves(slot_below, BROKEN_PAUSE_MS);
    }
    slot_return(victim);
    return false;
}

/* Takes the least valuable object off its tier. false: none can go. */
static bool push_one_out(struct tier_backend *backend, size_t place, uint64_t *bytes)
{
    struct slot *slot = &backend->slots[backend->order[place]];

    for (unsigned i = 0; i < RECLAIM_TRIES; i++) {
        struct tier_object *victim = slot_claim(slot, &backend->sketch, false);
        if (!victim)
            return false;
        if (victim->len_bytes > slot_limit(backend, slot, backend->low) && !has_several(slot)) {
            slot_return(victim); /* alone it is more than low, and wanted here */
            return false;
        }
        *bytes += victim->len_bytes;
        if (push_out(backend, place, victim))
            return true;
    }
    return false;
}

/* Brings a tier that was above high down to low, a bounded part of it. true: more can be done now. */
static bool drain(struct tier_backend *backend, size_t place)
{
    struct slot *slot = &backend->slots[backend->order[place]];
    uint64_t bytes = 0;

    if (!slot_has_room(backend, slot, 0, backend->high))
        slot->is_draining = true;
    for (unsigned i = 0; slot->is_draining && i < ROUND_OBJECTS && bytes < ROUND_BYTES; i++) {
        /* What is in use or cannot be moved now may stay for long: low is given up then, not what comes next. */
        if (slot_has_room(backend, slot, 0, backend->low) || !push_one_out(backend, place, &bytes))
            slot->is_draining = false;
    }
    return slot->is_draining;
}

/* --- promotion --- */

/* It could ever lie at place beside others. */
static bool may_promote(const struct tier_backend *backend, size_t place, const struct tier_object *object)
{
    const struct slot *slot = &backend->slots[backend->order[place]];
    return object->len_bytes <= slot_limit(backend, slot, backend->high) &&
           object->len_bytes <= slot->tier->max_object_bytes;
}

void policy_note_hot(struct tier_object *object)
{
    struct tier_backend *backend = object->backend;
    bool is_queued = false, fits = false;

    for (size_t place = 0; place < backend->slot_count && backend->order[place] != object->tier; place++)
        fits = fits || may_promote(backend, place, object);
    if (!fits || __atomic_load_n(&object->is_hot, __ATOMIC_RELAXED) ||
        __atomic_exchange_n(&object->is_hot, true, __ATOMIC_RELAXED))
        return;
    mutex_lock(&backend->lock);
    if (backend->hot_count < HOT_MAX && !backend->is_stopping) {
        tier_object_ref(object);
        backend->hot[(backend->hot_first + backend->hot_count++) % HOT_MAX] = object;
        backend->is_woken = is_queued = true;
        cond_signal(&backend->wake);
    }
    mutex_unlock(&backend->lock);
    if (!is_queued)
        __atomic_store_n(&object->is_hot, false, __ATOMIC_RELAXED);
}

/* Room for the object at place, made by objects that are used less. */
static bool make_room(struct tier_backend *backend, size_t place, const struct tier_object *object)
{
    struct slot *slot = &backend->slots[backend->order[place]];
    unsigned count = sketch_estimate(&backend->sketch, object->hash);

    for (unsigned i = 0; i < DISPLACED_MAX; i++) {
        struct tier_object *victim;
        if (slot_has_room(backend, slot, object->len_bytes, backend->high))
            return true;
        victim = slot_claim(slot, &backend->sketch, false);
        if (!victim)
            return false;
        if (sketch_estimate(&backend->sketch, victim->hash) >= count) {
            slot_return(victim);
            return false;
        }
        (void)push_out(backend, place, victim);
    }
    return slot_has_room(backend, slot, object->len_bytes, backend->high);
}

static void promote(struct tier_backend *backend, struct tier_object *object)
{
    bool is_persistent = object_slot(object)->tier->is_persistent;

    for (size_t place = 0; place < backend->slot_count && backend->order[place] != object->tier; place++) {
        struct slot *slot = &backend->slots[backend->order[place]];
        struct shoal_error error;
        enum shoal_status status;

        if (!may_promote(backend, place, object) || !make_room(backend, place, object))
            continue;
        status = move(backend, object, place, is_persistent, &error);
        if (status == SHOAL_OK) {
            counter_add(&slot->promotions, 1);
            return;
        }
        if (status != SHOAL_NO_SPACE) {
            if (status != SHOAL_CONFLICT && status != SHOAL_BUSY)
                LOG_WARN("moving an object of %llu bytes to tier %u (%s): %s", (unsigned long long)object->len_bytes,
                         backend->order[place], slot->tier->ops->name, error.message);
            return;
        }
    }
}

static bool promote_some(struct tier_backend *backend)
{
    bool has_more = true;

    for (unsigned i = 0; i < ROUND_PROMOTIONS && has_more; i++) {
        struct tier_object *object = NULL;
        mutex_lock(&backend->lock);
        if (backend->hot_count) {
            object = backend->hot[backend->hot_first];
            backend->hot_first = (backend->hot_first + 1) % HOT_MAX;
            backend->hot_count--;
        }
        has_more = backend->hot_count > 0;
        mutex_unlock(&backend->lock);
        if (!object)
            break;
        promote(backend, object);
        __atomic_store_n(&object->is_hot, false, __ATOMIC_RELAXED);
        tier_object_unref(object);
    }
    return has_more;
}

/* --- rounds --- */

bool backend_step(struct tier_backend *backend)
{
    bool has_more = events_deliver(backend);

    for (size_t place = backend->slot_count; place-- > 0;) /* the lowest first: what is above moves into its room */
        has_more = drain(backend, place) || has_more;
    has_more = promote_some(backend) || has_more;
    (void)sketch_age(&backend->sketch);
    for (size_t i = 0; i < backend->slot_count; i++)
        has_more = backend->slots[i].tier->ops->maintain(backend->slots[i].tier) || has_more;
    return events_deliver(backend) || has_more;
}

void backend_wake(struct tier_backend *backend)
{
    mutex_lock(&backend->lock);
    backend->is_woken = true;
    cond_signal(&backend->wake);
    mutex_unlock(&backend->lock);
}

void *backend_thread(void *arg)
{
    struct tier_backend *backend = arg;
    bool has_more = false;

    mutex_lock(&backend->lock);
    while (!backend->is_stopping) {
        int64_t deadline = deadline_after_ms(IDLE_MS);
        while (!has_more && !backend->is_woken && !backend->is_stopping &&
               cond_wait_until(&backend->wake, &backend->lock, deadline)) {
        }
        if (backend->is_stopping)
            break;
        backend->is_woken = false;
        mutex_unlock(&backend->lock);
        has_more = backend_step(backend);
        mutex_lock(&backend->lock);
    }
    mutex_unlock(&backend->lock);
    return NULL;
}
