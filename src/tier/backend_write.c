/* SPDX-License-Identifier: Apache-2.0 */
/* From space to a published object, and how objects are read. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "tier/backend.h"

#define LOG_MODULE "tier"
#define RECLAIM_MAX 16384 /* objects that one allocation drops; the next one goes on */

/* --- objects --- */

struct tier_object *object_create(struct tier_backend *backend, const char *key, uint64_t hash, unsigned tier,
                                  struct tier_space *space)
{
    size_t key_bytes = strlen(key) + 1;
    struct tier_object *object = malloc(sizeof *object + key_bytes);

    if (!object)
        return NULL;
    *object = (struct tier_object){.backend = backend,
                                   .space = space,
                                   .tier = tier,
                                   .refs = 1,
                                   .hash = hash,
                                   .len_bytes = space ? space->len_bytes : 0,
                                   .state = OBJECT_ALLOCATED};
    list_node_init(&object->node);
    memcpy(object->key, key, key_bytes);
    return object;
}

enum shoal_status object_forget(struct tier_object *object, bool is_durable, struct shoal_error *error)
{
    struct tier *tier = object_slot(object)->tier;

    if (!object->is_persisted)
        return SHOAL_OK;
    object->is_persisted = false;
    return tier->ops->forget(tier, object->space, is_durable, error);
}

void tier_object_ref(struct tier_object *object)
{
    __atomic_fetch_add(&object->refs, 1, __ATOMIC_RELAXED);
}

void tier_object_unref(struct tier_object *object)
{
    /* Release: our reads are over. Acquire: so are everybody's. Pairs with itself and with is_unused of the index. */
    if (!object || __atomic_fetch_sub(&object->refs, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    assert(!object->backing && !list_node_is_linked(&object->node));
    if (object->space) {
        struct tier *tier = object_slot(object)->tier;
        tier->ops->release(tier, object->space);
    }
    free(object);
}

uint64_t tier_object_id(const struct tier_object *object)
{
    return object->object_id;
}

uint64_t tier_object_len(const struct tier_object *object)
{
    return object->len_bytes;
}

unsigned tier_object_tier(const struct tier_object *object)
{
    return object->tier;
}

const char *tier_object_key(const struct tier_object *object)
{
    return object->key;
}

const void *tier_object_data(const struct tier_object *object)
{
    const struct tier *tier = object_slot(object)->tier;
    return tier->ops->data(tier, object->space);
}

uint64_t tier_object_memory_key(const struct tier_object *object)
{
    return object_slot(object)->tier->memory_key;
}

/* What was read is not what was written: nobody may get it any more. */
static void drop_corrupted(struct tier_object *object)
{
    struct tier_backend *backend = object->backend;
    struct event *event = event_create(backend, object);
    struct tier_object *backing = NULL;
    struct shoal_error error;
    enum index_drop drop = index_drop(object, false, true, &backing);

    if (drop == INDEX_KEPT) {
        free(event);
        return;
    }
    if (object_forget(object, true, &error) != SHOAL_OK)
        LOG_ERROR("taking a corrupted object off the disk: %s", error.message);
    if (drop == INDEX_BACKING_GONE) {
        free(event); /* a good copy is left in its place */
    } else if (event) {
        if (backing)
            event->tier = backing->tier;
        event_post(backend, event, !backing);
    } else {
        LOG_ERROR("a corrupted object was dropped, but there is no memory to tell so");
    }
    tier_object_unref(backing);
}

enum shoal_status tier_read(struct tier_object *object, uint64_t offset_bytes, void *out, size_t len_bytes,
                            struct shoal_error *error)
{
    struct slot *slot = object_slot(object);
    enum shoal_status status;

    if (offset_bytes > object->len_bytes || len_bytes > object->len_bytes - offset_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "reading %zu bytes at %" PRIu64 " of an object of %" PRIu64 " bytes", len_bytes, offset_bytes,
                         object->len_bytes);
    if (len_bytes == 0)
        return SHOAL_OK;
    status = slot->tier->ops->read(slot->tier, object->space, offset_bytes, out, len_bytes, error);
    if (status == SHOAL_CORRUPTED) {
        counter_add(&slot->checksum_errors, 1);
        drop_corrupted(object);
    }
    return status;
}

/* --- allocations --- */

static struct tier_object *object_of(struct tier_allocation *allocation)
{
    return (struct tier_object *)(void *)allocation;
}

static const struct tier_object *const_object_of(const struct tier_allocation *allocation)
{
    return (const struct tier_object *)(const void *)allocation;
}

/* The request, and what the tiers said to it. */
struct request {
    struct tier_backend *backend;
    uint64_t len_bytes;
    bool wants_dram;
    struct tier_space *space; /* given */
    unsigned tier;
};

static bool is_eligible(const struct request *request, size_t place)
{
    const struct slot *slot = &request->backend->slots[request->backend->order[place]];

    return request->len_bytes <= slot->tier->max_object_bytes && (!request->wants_dram || slot->tier->has_data);
}

/* OK, NO_SPACE, NO_MEMORY. */
static enum shoal_status try_place(struct request *request, size_t place, unsigned percent, struct shoal_error *error)
{
    struct tier_backend *backend = request->backend;
    struct slot *slot = &backend->slots[backend->order[place]];

    if (!is_eligible(request, place) || !slot_has_room(backend, slot, request->len_bytes, percent))
        return SHOAL_NO_SPACE;
    request->tier = backend->order[place];
    return slot->tier->ops->allocate(slot->tier, request->len_bytes, &request->space, error);
}

static enum shoal_status try_all(struct request *request, unsigned percent, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_NO_SPACE;

    for (size_t place = 0; place < request->backend->slot_count && status == SHOAL_NO_SPACE; place++)
        status = try_place(request, place, percent, error);
    return status;
}

/* Drops the coldest objects of the lowest tier until there is room. */
static enum shoal_status try_reclaiming(struct request *request, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_NO_SPACE;
    unsigned budget = RECLAIM_MAX;

    for (size_t place = request->backend->slot_count; place-- > 0 && status == SHOAL_NO_SPACE;) {
        while (is_eligible(request, place) && status == SHOAL_NO_SPACE && budget > 0 &&
               policy_reclaim_one(request->backend, place)) {
            budget--;
            status = try_place(request, place, request->backend->critical, error);
        }
    }
    return status;
}

static enum shoal_status find_space(struct request *request, struct shoal_error *error)
{
    struct tier_backend *backend = request->backend;
    bool has_any = false;
    enum shoal_status status;

    for (size_t place = 0; place < backend->slot_count; place++)
        has_any = has_any || request->len_bytes <= backend->slots[place].tier->max_object_bytes;
    if (!has_any)
        return error_set(error, SHOAL_LIMIT, 0, "an object of %" PRIu64 " bytes is larger than every tier",
                         request->len_bytes);
    status = try_all(request, backend->high, error);
    if (status == SHOAL_NO_SPACE)
        status = try_all(request, backend->critical, error);
    if (status == SHOAL_NO_SPACE)
        status = try_reclaiming(request, error);
    if (status == SHOAL_NO_SPACE)
        status = try_all(request, 100, error);
    if (status != SHOAL_OK) {
        backend_wake(backend);
        if (status == SHOAL_NO_SPACE)
            return error_set(error, SHOAL_NO_SPACE, 0, "no room for %" PRIu64 " bytes on any %stier",
                             request->len_bytes, request->wants_dram ? "DRAM " : "");
        return status;
    }
    if (!slot_has_room(backend, &backend->slots[request->tier], 0, backend->high))
        backend_wake(backend);
    return SHOAL_OK;
}

enum shoal_status tier_allocate(struct tier_backend *backend, const char *key, uint64_t len_bytes, bool wants_dram,
                                struct tier_allocation **allocation_out, struct shoal_error *error)
{
    struct request request = {.backend = backend, .len_bytes = len_bytes, .wants_dram = wants_dram};
    struct tier_object *object;
    uint64_t hash;
    enum shoal_status status;

    if (!key || key[0] == '\0')
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the key is empty");
    if (strnlen(key, TIER_KEY_MAX_BYTES + 1) > TIER_KEY_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the key is longer than %d bytes", TIER_KEY_MAX_BYTES);
    hash = backend_hash(key);
    if (index_has_key(backend, key, hash, false))
        return error_set(error, SHOAL_EXISTS, 0, "the key has an object here already");
    object = object_create(backend, key, hash, 0, NULL);
    if (!object)
        return error_no_memory(error);
    status = find_space(&request, error);
    if (status != SHOAL_OK) {
        for (size_t i = 0; status == SHOAL_NO_SPACE && i < backend->slot_count; i++)
            if (!wants_dram || backend->slots[i].tier->has_data)
                counter_add(&backend->slots[i].refused, 1);
        tier_object_unref(object);
        return status;
    }
    object->tier = request.tier;
    object->space = request.space;
    object->len_bytes = len_bytes;
    *allocation_out = (struct tier_allocation *)(void *)object;
    return SHOAL_OK;
}

void *tier_allocation_data(const struct tier_allocation *allocation)
{
    const struct tier_object *object = const_object_of(allocation);
    const struct tier *tier = object_slot(object)->tier;
    return tier->ops->data(tier, object->space);
}

uint64_t tier_allocation_len(const struct tier_allocation *allocation)
{
    return const_object_of(allocation)->len_bytes;
}

uint64_t tier_allocation_memory_key(const struct tier_allocation *allocation)
{
    return object_slot(const_object_of(allocation))->tier->memory_key;
}

enum shoal_status tier_write(struct tier_allocation *allocation, uint64_t offset_bytes, const void *data,
                             size_t len_bytes, struct shoal_error *error)
{
    struct tier_object *object = object_of(allocation);
    struct tier *tier = object_slot(object)->tier;
    enum shoal_status status;

    if (offset_bytes > object->len_bytes || len_bytes > object->len_bytes - offset_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "writing %zu bytes at %" PRIu64 " of an object of %" PRIu64 " bytes", len_bytes, offset_bytes,
                         object->len_bytes);
    if (len_bytes == 0)
        return SHOAL_OK;
    if (!tier->has_data && (offset_bytes != object->written_bytes ||
                            (offset_bytes + len_bytes < object->len_bytes && len_bytes % TIER_STAGING_BYTES != 0)))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "writing %zu bytes at %" PRIu64
                         ": this tier takes pieces of %u bytes in order, next at %" PRIu64,
                         len_bytes, offset_bytes, TIER_STAGING_BYTES, object->written_bytes);
    status = tier->ops->write(tier, object->space, offset_bytes, data, len_bytes, error);
    if (status == SHOAL_OK)
        object->written_bytes = offset_bytes + len_bytes;
    return status;
}

void tier_allocation_drop(struct tier_allocation *allocation)
{
    if (allocation)
        tier_object_unref(object_of(allocation));
}

/* --- commit and publish --- */

enum shoal_status tier_commit(struct tier_allocation *allocation, uint64_t object_id, struct tier_object **object_out,
                              struct shoal_error *error)
{
    struct tier_object *object = object_of(allocation);
    struct tier *tier = object_slot(object)->tier;
    enum shoal_status status = SHOAL_OK;

    if (!tier->has_data && object->written_bytes != object->len_bytes)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                           "%" PRIu64 " of the object's %" PRIu64 " bytes have been written", object->written_bytes,
                           object->len_bytes);
    if (status == SHOAL_OK)
        status = tier->ops->seal(tier, object->space, error);
    if (status == SHOAL_OK) {
        object->object_id = object_id ? object_id : random_ids_next(&object->backend->object_ids);
        status = index_insert(object, OBJECT_COMMITTED);
        if (status == SHOAL_EXISTS)
            error_set(error, status, 0, "the key has got an object here meanwhile");
        else if (status != SHOAL_OK)
            error_no_memory(error);
    }
    if (status != SHOAL_OK) {
        tier_object_unref(object);
        return status;
    }
    *object_out = object;
    return SHOAL_OK;
}

enum shoal_status tier_publish(struct tier_object *object, struct shoal_error *error)
{
    struct tier *tier = object_slot(object)->tier;

    if (tier->is_persistent) {
        enum shoal_status status = tier->ops->persist(tier, object->space, object->key, object->object_id, error);
        if (status != SHOAL_OK) {
            tier_abandon(object);
            return status;
        }
        object->is_persisted = true;
    }
    index_publish(object);
    if (!slot_has_room(object->backend, object_slot(object), 0, object->backend->high))
        backend_wake(object->backend); /* now there is something that can go */
    return SHOAL_OK;
}

void tier_abandon(struct tier_object *object)
{
    index_abandon(object);
    tier_object_unref(object);
}
