/* SPDX-License-Identifier: Apache-2.0 */
/* Which object a key has now. Every change of an object's state happens here, under the stripe of its key. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/endian.h"
#include "base/error.h"
#include "base/log.h"
#include "tier/backend.h"

#define LOG_MODULE "tier"

uint64_t backend_hash(const char *key)
{
    struct digest digest = digest_of(key, strlen(key));
    uint64_t hash;
    memcpy(&hash, digest.bytes, sizeof hash);
    return hash;
}

static struct stripe *stripe_of(struct tier_backend *backend, uint64_t hash)
{
    return &backend->stripes[(hash >> 32) % backend->stripe_count];
}

enum shoal_status index_init(struct tier_backend *backend, unsigned stripe_count)
{
    backend->stripes = aligned_alloc(_Alignof(struct stripe), stripe_count * sizeof *backend->stripes);
    if (!backend->stripes)
        return SHOAL_NO_MEMORY;
    memset(backend->stripes, 0, stripe_count * sizeof *backend->stripes);
    backend->stripe_count = stripe_count;
    for (unsigned i = 0; i < stripe_count; i++) {
        mutex_init(&backend->stripes[i].lock, RANK_TIER_STRIPE);
        map_init(&backend->stripes[i].objects);
    }
    return SHOAL_OK;
}

void index_release(struct tier_backend *backend)
{
    for (unsigned i = 0; i < backend->stripe_count; i++) {
        struct stripe *stripe = &backend->stripes[i];
        const struct map_entry *position = NULL;
        struct tier_object *object;

        while ((object = map_next(&stripe->objects, &position, NULL, NULL)) != NULL) {
            assert(__atomic_load_n(&object->refs, __ATOMIC_ACQUIRE) == 1); /* else somebody still reads */
            slot_unlist(object);
            if (object->backing) {
                slot_unlist(object->backing);
                tier_object_unref(object->backing);
                object->backing = NULL;
            }
            tier_object_unref(object);
        }
        map_release(&stripe->objects);
        mutex_release(&stripe->lock);
    }
    free(backend->stripes);
    backend->stripes = NULL;
    backend->stripe_count = 0;
}

/* --- counting what a tier has --- */

static void enter(struct tier_object *object)
{
    object->state = OBJECT_PUBLISHED;
    counter_add(&object_slot(object)->object_count, 1);
}

static void leave(struct tier_object *object, enum object_state state)
{
    if (object->state == OBJECT_PUBLISHED)
        __atomic_fetch_sub(&object_slot(object)->object_count, 1, __ATOMIC_RELAXED);
    object->state = state;
}

static void set_backing(struct tier_object *object, struct tier_object *backing)
{
    object->backing = backing;
    __atomic_store_n(&object->has_backing, backing != NULL, __ATOMIC_RELAXED);
}

/* --- looking --- */

bool index_has_key(struct tier_backend *backend, const char *key, uint64_t hash, bool wants_published)
{
    struct stripe *stripe = stripe_of(backend, hash);
    const struct tier_object *object;
    bool has;

    mutex_lock(&stripe->lock);
    object = map_get_str(&stripe->objects, key);
    has = object && (!wants_published || object->state == OBJECT_PUBLISHED);
    mutex_unlock(&stripe->lock);
    return has;
}

bool tier_has(struct tier_backend *backend, const char *key)
{
    return index_has_key(backend, key, backend_hash(key), true);
}

enum shoal_status tier_get(struct tier_backend *backend, const char *key, struct tier_object **object_out)
{
    uint64_t hash = backend_hash(key);
    struct stripe *stripe = stripe_of(backend, hash);
    struct tier_object *object;
    unsigned accesses = sketch_add(&backend->sketch, hash);

    mutex_lock(&stripe->lock);
    object = map_get_str(&stripe->objects, key);
    if (object && object->state == OBJECT_PUBLISHED) {
        tier_object_ref(object);
        stripe->hits++;
    } else {
        object = NULL;
        stripe->misses++;
    }
    mutex_unlock(&stripe->lock);
    if (!object)
        return SHOAL_NOT_FOUND;
    if (!__atomic_load_n(&object->was_accessed, __ATOMIC_RELAXED)) /* keeps the line shared between readers */
        __atomic_store_n(&object->was_accessed, true, __ATOMIC_RELAXED);
    if (object->tier != backend->order[0] && accesses >= PROMOTE_ACCESSES)
        policy_note_hot(object);
    *object_out = object;
    return SHOAL_OK;
}

bool tier_each(struct tier_backend *backend, bool (*fn)(void *arg, struct tier_object *object), void *arg)
{
    struct tier_object **seen = NULL;
    size_t capacity = 0;
    bool goes_on = true, is_short = false;

    for (unsigned i = 0; i < backend->stripe_count && goes_on && !is_short; i++) {
        struct stripe *stripe = &backend->stripes[i];
        const struct map_entry *position = NULL;
        struct tier_object *object;
        size_t count = 0;

        mutex_lock(&stripe->lock);
        if (stripe->objects.count > capacity) { /* new keys wait for no longer than this allocation takes */
            struct tier_object **more = realloc(seen, stripe->objects.count * sizeof *seen);
            if (more) {
                seen = more;
                capacity = stripe->objects.count;
            }
        }
        while (count < capacity && (object = map_next(&stripe->objects, &position, NULL, NULL)) != NULL) {
            if (object->state != OBJECT_PUBLISHED)
                continue;
            tier_object_ref(object);
            seen[count++] = object;
        }
        is_short = stripe->objects.count > capacity;
        mutex_unlock(&stripe->lock);
        for (size_t n = 0; n < count; n++) {
            goes_on = goes_on && fn(arg, seen[n]);
            tier_object_unref(seen[n]);
        }
    }
    free(seen);
    return !is_short;
}

/* --- changing --- */

enum shoal_status index_insert(struct tier_object *object, enum object_state state)
{
    struct stripe *stripe = stripe_of(object->backend, object->hash);
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&stripe->lock);
    if (map_get_str(&stripe->objects, object->key)) {
        status = SHOAL_EXISTS;
    } else if (!map_put_str(&stripe->objects, object->key, object)) {
        status = SHOAL_NO_MEMORY;
    } else {
        tier_object_ref(object);
        if (state == OBJECT_PUBLISHED) {
            enter(object);
            slot_list(object);
        } else {
            object->state = state;
        }
    }
    mutex_unlock(&stripe->lock);
    return status;
}

void index_publish(struct tier_object *object)
{
    struct stripe *stripe = stripe_of(object->backend, object->hash);

    mutex_lock(&stripe->lock);
    assert(object->state == OBJECT_COMMITTED);
    enter(object);
    slot_list(object);
    mutex_unlock(&stripe->lock);
}

void index_abandon(struct tier_object *object)
{
    struct stripe *stripe = stripe_of(object->backend, object->hash);

    mutex_lock(&stripe->lock);
    assert(object->state == OBJECT_COMMITTED);
    (void)map_remove_str(&stripe->objects, object->key);
    object->state = OBJECT_GONE;
    mutex_unlock(&stripe->lock);
    tier_object_unref(object); /* the index's */
}

/* Nobody but the index and the caller refers to it. Under the stripe's lock nobody new can. */
static bool is_unused(const struct tier_object *object)
{
    return __atomic_load_n(&object->refs, __ATOMIC_ACQUIRE) == 2; /* pairs with tier_object_unref */
}

enum index_move index_replace(struct tier_object *old, struct tier_object *fresh, bool keeps_old)
{
    struct stripe *stripe = stripe_of(old->backend, old->hash);
    enum index_move result = INDEX_MOVED;

    mutex_lock(&stripe->lock);
    if (map_get_str(&stripe->objects, old->key) != old || old->state != OBJECT_PUBLISHED) {
        result = INDEX_CHANGED;
    } else if (!keeps_old && !is_unused(old)) {
        result = INDEX_IN_USE; /* its space would not come back now */
    } else {
        bool is_put = map_put_str(&stripe->objects, old->key, fresh); /* in place: cannot fail */
        assert(is_put);
        (void)is_put;
        tier_object_ref(fresh);
        leave(old, keeps_old ? OBJECT_BACKING : OBJECT_GONE);
        set_backing(fresh, keeps_old ? old : NULL); /* with the index's reference */
        if (!keeps_old)
            slot_unlist(old);
        enter(fresh);
        slot_list(fresh);
    }
    mutex_unlock(&stripe->lock);
    if (result == INDEX_MOVED && !keeps_old)
        tier_object_unref(old); /* the index's */
    return result;
}

enum index_drop index_drop(struct tier_object *object, bool wants_unused, bool may_drop,
                           struct tier_object **backing_out)
{
    struct stripe *stripe = stripe_of(object->backend, object->hash);
    struct tier_object *current;
    enum index_drop result = INDEX_KEPT;

    mutex_lock(&stripe->lock);
    current = map_get_str(&stripe->objects, object->key);
    if (wants_unused && !is_unused(object)) {
        result = INDEX_KEPT;
    } else if (current == object && object->state == OBJECT_PUBLISHED && object->backing) {
        struct tier_object *backing = object->backing;
        (void)map_put_str(&stripe->objects, object->key,
                          backing); /* in place; the front's reference becomes the index's */
        set_backing(object, NULL);
        leave(object, OBJECT_GONE);
        slot_unlist(object);
        enter(backing);
        tier_object_ref(backing);
        *backing_out = backing;
        result = INDEX_DEMOTED;
    } else if (current == object && object->state == OBJECT_PUBLISHED && may_drop) {
        (void)map_remove_str(&stripe->objects, object->key);
        leave(object, OBJECT_GONE);
        slot_unlist(object);
        result = INDEX_DROPPED;
    } else if (current && current != object && current->backing == object) {
        set_backing(current, NULL);
        object->state = OBJECT_GONE;
        slot_unlist(object);
        result = INDEX_BACKING_GONE;
    }
    mutex_unlock(&stripe->lock);
    if (result != INDEX_KEPT)
        tier_object_unref(object); /* the index's, or the front's */
    return result;
}

enum shoal_status tier_remove(struct tier_backend *backend, const char *key, uint64_t object_id)
{
    uint64_t hash = backend_hash(key);
    struct stripe *stripe = stripe_of(backend, hash);
    struct tier_object *object, *backing = NULL;
    struct shoal_error error;
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&stripe->lock);
    object = map_get_str(&stripe->objects, key);
    if (object && object->state == OBJECT_PUBLISHED && (object_id == 0 || object->object_id == object_id)) {
        (void)map_remove_str(&stripe->objects, key);
        leave(object, OBJECT_GONE);
        slot_unlist(object);
        backing = object->backing;
        set_backing(object, NULL);
        if (backing) {
            backing->state = OBJECT_GONE;
            slot_unlist(backing);
        }
    } else {
        object = NULL;
    }
    mutex_unlock(&stripe->lock);
    if (!object)
        return SHOAL_NOT_FOUND;
    for (int i = 0; i < 2; i++) {
        struct tier_object *gone = i == 0 ? object : backing;
        if (gone && object_forget(gone, true, &error) != SHOAL_OK) {
            LOG_ERROR("removing an object of %llu bytes: %s; it may come back after a restart",
                      (unsigned long long)gone->len_bytes, error.message);
            status = error.status;
        }
        tier_object_unref(gone);
    }
    return status;
}
