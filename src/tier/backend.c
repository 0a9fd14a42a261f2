/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending a backend; staging buffers; what is seen of it. */
#include "tier/backend.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <shoal/engine.h>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

#define LOG_MODULE "tier"
#define STRIPES_DEFAULT 1024
#define STRIPES_MAX 1048576
#define STAGING_DEFAULT 16
#define STAGING_MAX 4096
#define SKETCH_BYTES_PER_ITEM 65536 /* a guess at how many objects the capacity holds */

static const struct tier_ops *real_ops(enum tier_type type)
{
    switch (type) {
    case TIER_DRAM:
        return &tier_ops_dram;
    case TIER_STORAGE:
        return &tier_ops_storage;
    }
    return NULL;
}

/* --- staging --- */

static enum shoal_status create_staging(struct tier_backend *backend, unsigned count, struct shoal_error *error)
{
    size_t bytes = (size_t)count * TIER_STAGING_BYTES;
    void *memory;
    int saved_errno;

    backend->staging_free = calloc(count, sizeof *backend->staging_free);
    if (!backend->staging_free)
        return error_no_memory(error);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        saved_errno = errno;
        return error_set(error, SHOAL_NO_MEMORY, saved_errno, "mapping %u staging buffers (%zu bytes): %s", count,
                         bytes, strerror(saved_errno));
    }
    backend->staging = memory;
    backend->staging_count = count;
    for (unsigned i = 0; i < count; i++)
        backend->staging_free[backend->staging_free_count++] = count - 1 - i; /* few touched: the stack's top is used */
    if (backend->engine) {
        enum shoal_status status = shoal_engine_register_memory(backend->engine, memory, bytes, "*",
                                                                SHOAL_ACCESS_REMOTE_READ, &backend->staging_key, error);
        if (status != SHOAL_OK) {
            error_prefix(error, "staging buffers");
            return status;
        }
    }
    return SHOAL_OK;
}

static void destroy_staging(struct tier_backend *backend)
{
    size_t bytes = (size_t)backend->staging_count * TIER_STAGING_BYTES;
    struct shoal_error error;

    assert(backend->staging_free_count == backend->staging_count);
    if (backend->staging_key &&
        shoal_engine_unregister_memory(backend->engine, backend->staging, bytes, &error) != SHOAL_OK)
        LOG_ERROR("staging buffers: %s", error.message);
    if (backend->staging)
        munmap(backend->staging, bytes);
    free(backend->staging_free);
}

void *tier_staging_take(struct tier_backend *backend)
{
    void *buffer = NULL;

    mutex_lock(&backend->staging_lock);
    if (backend->staging_free_count)
        buffer = backend->staging + (size_t)backend->staging_free[--backend->staging_free_count] * TIER_STAGING_BYTES;
    mutex_unlock(&backend->staging_lock);
    if (!buffer)
        counter_add(&backend->staging_refused, 1);
    return buffer;
}

void tier_staging_give(struct tier_backend *backend, void *buffer)
{
    size_t offset = (size_t)((uint8_t *)buffer - backend->staging);

    mutex_lock(&backend->staging_lock);
    assert(offset % TIER_STAGING_BYTES == 0 && backend->staging_free_count < backend->staging_count);
    backend->staging_free[backend->staging_free_count++] = (unsigned)(offset / TIER_STAGING_BYTES);
    mutex_unlock(&backend->staging_lock);
}

uint64_t tier_staging_memory_key(const struct tier_backend *backend)
{
    return backend->staging_key;
}

/* --- create --- */

static enum shoal_status check(const struct tier_backend_config *config, unsigned low, unsigned high, unsigned critical,
                               struct shoal_error *error)
{
    if (!config->tiers || config->tier_count == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "no tier is configured; at least one is needed");
    if (config->tier_count > TIER_COUNT_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu tiers are configured; at most %d are possible",
                         config->tier_count, TIER_COUNT_MAX);
    if (config->lock_stripes > STRIPES_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%u lock stripes; at most %d are possible",
                         config->lock_stripes, STRIPES_MAX);
    if (config->staging_buffers > STAGING_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%u staging buffers; at most %d are possible",
                         config->staging_buffers, STAGING_MAX);
    if (low > high || high > critical || critical > 100)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "watermarks are %u, %u, %u percent; they must rise (low, high, critical) up to at most 100",
                         low, high, critical);
    return SHOAL_OK;
}

static enum shoal_status create_slot(struct tier_backend *backend, const struct tier_config *config,
                                     const struct backend_options *options, struct shoal_error *error)
{
    unsigned index = (unsigned)backend->slot_count;
    struct slot *slot = &backend->slots[index];
    const struct tier_ops *ops = options && options->ops_of ? options->ops_of(config->type) : real_ops(config->type);
    size_t place = index;
    enum shoal_status status;

    if (!ops)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %u: there is no kind %d of tier", index,
                         (int)config->type);
    status = ops->create(config, index, backend->engine, &slot->tier, error);
    if (status != SHOAL_OK)
        return status;
    bool is_complete = tier_ops_fill(ops, slot->tier->is_persistent, &slot->ops);
    assert(is_complete);
    (void)is_complete;
    slot->tier->ops = &slot->ops;
    slot->type = config->type;
    slot->priority = config->priority;
    mutex_init(&slot->lock, RANK_TIER);
    list_init(&slot->objects);
    for (; place > 0 && backend->slots[backend->order[place - 1]].priority < config->priority; place--)
        backend->order[place] = backend->order[place - 1];
    backend->order[place] = index;
    backend->slot_count++;
    return SHOAL_OK;
}

struct recovery {
    struct tier_backend *backend;
    unsigned tier;
    uint64_t doubles;
};

static enum shoal_status recovered(void *arg, const char *key, uint64_t object_id, struct tier_space *space,
                                   struct shoal_error *error)
{
    struct recovery *recovery = arg;
    struct tier_backend *backend = recovery->backend;
    struct tier_object *object = object_create(backend, key, backend_hash(key), recovery->tier, space);
    enum shoal_status status;

    if (!object) {
        backend->slots[recovery->tier].tier->ops->release(backend->slots[recovery->tier].tier, space);
        return error_no_memory(error);
    }
    object->object_id = object_id;
    object->is_persisted = true;
    status = index_insert(object, OBJECT_PUBLISHED);
    if (status == SHOAL_EXISTS) {
        /* The process ended while the object moved: the first tier of the configuration has it. */
        recovery->doubles++;
        status = object_forget(object, false, error);
    } else if (status != SHOAL_OK) {
        error_no_memory(error);
    }
    tier_object_unref(object);
    return status;
}

static enum shoal_status recover(struct tier_backend *backend, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    for (unsigned i = 0; i < backend->slot_count && status == SHOAL_OK; i++) {
        struct recovery recovery = {.backend = backend, .tier = backend->order[i]};
        struct slot *slot = &backend->slots[recovery.tier];
        status = slot->tier->ops->recover(slot->tier, recovered, &recovery, error);
        if (recovery.doubles)
            LOG_INFO("tier %u (%s): %" PRIu64 " objects found are on a better tier too and were dropped", recovery.tier,
                     slot->tier->ops->name, recovery.doubles);
    }
    return status;
}

static unsigned or_default(unsigned value, unsigned default_value)
{
    return value ? value : default_value;
}

enum shoal_status backend_create(const struct tier_backend_config *config, const struct backend_options *options,
                                 struct tier_backend **backend_out, struct shoal_error *error)
{
    unsigned low = or_default(config->watermark_low, 70), high = or_default(config->watermark_high, 90),
             critical = or_default(config->watermark_critical, 95);
    struct tier_backend *backend;
    uint64_t capacity = 0;
    int thread_errno;
    enum shoal_status status = check(config, low, high, critical, error);

    if (status != SHOAL_OK)
        return status;
    backend = calloc(1, sizeof *backend);
    if (!backend)
        return error_no_memory(error);
    random_ids_init(&backend->object_ids);
    backend->engine = config->engine;
    backend->low = low;
    backend->high = high;
    backend->critical = critical;
    mutex_init(&backend->lock, RANK_TIER);
    mutex_init(&backend->staging_lock, RANK_TIER_SPACE);
    cond_init(&backend->wake);
    cond_init(&backend->idle);
    list_init(&backend->events);
    if (index_init(backend, or_default(config->lock_stripes, STRIPES_DEFAULT)) != SHOAL_OK)
        status = error_no_memory(error);
    for (size_t i = 0; i < config->tier_count && status == SHOAL_OK; i++) {
        status = create_slot(backend, &config->tiers[i], options, error);
        if (status == SHOAL_OK)
            capacity += backend->slots[i].tier->capacity_bytes / SKETCH_BYTES_PER_ITEM;
    }
    if (status == SHOAL_OK && !sketch_init(&backend->sketch, capacity))
        status = error_no_memory(error);
    if (status == SHOAL_OK)
        status = create_staging(backend, or_default(config->staging_buffers, STAGING_DEFAULT), error);
    if (status == SHOAL_OK)
        status = recover(backend, error);
    if (status == SHOAL_OK && !(options && options->has_no_thread)) {
        thread_errno = thread_start(&backend->thread, "shoal-tier", backend_thread, backend);
        backend->has_thread = thread_errno == 0;
        if (thread_errno)
            status = error_set(error, SHOAL_NO_MEMORY, thread_errno, "starting the tiers' thread: %s",
                               strerror(thread_errno));
    }
    if (status != SHOAL_OK) {
        tier_backend_destroy(backend);
        return status;
    }
    *backend_out = backend;
    return SHOAL_OK;
}

enum shoal_status tier_backend_create(const struct tier_backend_config *config, struct tier_backend **backend_out,
                                      struct shoal_error *error)
{
    return backend_create(config, NULL, backend_out, error);
}

void tier_backend_destroy(struct tier_backend *backend)
{
    if (!backend)
        return;
    mutex_lock(&backend->lock);
    backend->is_stopping = true;
    cond_signal(&backend->wake);
    mutex_unlock(&backend->lock);
    if (backend->has_thread)
        pthread_join(backend->thread, NULL);
    for (; backend->hot_count; backend->hot_count--, backend->hot_first++)
        tier_object_unref(backend->hot[backend->hot_first % HOT_MAX]);
    index_release(backend);
    events_release(backend);
    destroy_staging(backend);
    for (size_t i = 0; i < backend->slot_count; i++) {
        backend->slots[i].tier->ops->destroy(backend->slots[i].tier);
        mutex_release(&backend->slots[i].lock);
    }
    sketch_release(&backend->sketch);
    cond_release(&backend->wake);
    cond_release(&backend->idle);
    mutex_release(&backend->staging_lock);
    mutex_release(&backend->lock);
    free(backend);
}

/* --- seeing --- */

size_t tier_count(const struct tier_backend *backend)
{
    return backend->slot_count;
}

void tier_usage(struct tier_backend *backend, unsigned tier, struct tier_usage *usage_out)
{
    const struct slot *slot = &backend->slots[tier];

    assert(tier < backend->slot_count);
    *usage_out = (struct tier_usage){.type = slot->type,
                                     .priority = slot->priority,
                                     .capacity_bytes = slot->tier->capacity_bytes,
                                     .used_bytes = counter_get(&slot->tier->used_bytes),
                                     .object_count = counter_get(&slot->object_count),
                                     .evictions = counter_get(&slot->evictions),
                                     .promotions = counter_get(&slot->promotions),
                                     .offloads = counter_get(&slot->offloads),
                                     .checksum_errors = counter_get(&slot->checksum_errors)};
}

enum {
    VALUE_CAPACITY,
    VALUE_USED,
    VALUE_OBJECTS,
    VALUE_EVICTIONS,
    VALUE_PROMOTIONS,
    VALUE_OFFLOADS,
    VALUE_CHECKSUMS,
    VALUE_REFUSED,
    VALUE_COUNT
};

static const struct {
    const char *name, *kind, *help;
} families[VALUE_COUNT] = {
    [VALUE_CAPACITY] = {"capacity_bytes", "gauge", "Capacity of the tier."},
    [VALUE_USED] = {"used_bytes", "gauge", "Space taken, also by objects that only readers hold."},
    [VALUE_OBJECTS] = {"objects", "gauge", "Objects that readers find here."},
    [VALUE_EVICTIONS] = {"evictions_total", "counter", "Objects dropped for room."},
    [VALUE_PROMOTIONS] = {"promotions_total", "counter", "Objects that came from a slower tier."},
    [VALUE_OFFLOADS] = {"offloads_total", "counter", "Objects that left for a slower tier."},
    [VALUE_CHECKSUMS] = {"checksum_errors_total", "counter", "Objects dropped because their bytes had changed."},
    [VALUE_REFUSED] = {"refused_total", "counter", "Allocations that found no room."},
};

static bool append_tiers(struct tier_backend *backend, struct buf *out)
{
    for (unsigned value = 0; value < VALUE_COUNT; value++) {
        if (!buf_append_format(out, "# HELP shoal_tier_%s %s\n# TYPE shoal_tier_%s %s\n", families[value].name,
                               families[value].help, families[value].name, families[value].kind))
            return false;
        for (unsigned i = 0; i < backend->slot_count; i++) {
            const struct slot *slot = &backend->slots[i];
            const uint64_t values[VALUE_COUNT] = {
                [VALUE_CAPACITY] = slot->tier->capacity_bytes,
                [VALUE_USED] = counter_get(&slot->tier->used_bytes),
                [VALUE_OBJECTS] = counter_get(&slot->object_count),
                [VALUE_EVICTIONS] = counter_get(&slot->evictions),
                [VALUE_PROMOTIONS] = counter_get(&slot->promotions),
                [VALUE_OFFLOADS] = counter_get(&slot->offloads),
                [VALUE_CHECKSUMS] = counter_get(&slot->checksum_errors),
                [VALUE_REFUSED] = counter_get(&slot->refused),
            };
            if (!buf_append_format(out, "shoal_tier_%s{tier=\"%u\",type=\"%s\"} %" PRIu64 "\n", families[value].name, i,
                                   slot->tier->ops->name, values[value]))
                return false;
        }
    }
    return true;
}

bool tier_metrics(struct tier_backend *backend, struct buf *out)
{
    uint64_t hits = 0, misses = 0;
    unsigned staging_used;

    for (unsigned i = 0; i < backend->stripe_count; i++) {
        mutex_lock(&backend->stripes[i].lock);
        hits += backend->stripes[i].hits;
        misses += backend->stripes[i].misses;
        mutex_unlock(&backend->stripes[i].lock);
    }
    mutex_lock(&backend->staging_lock);
    staging_used = backend->staging_count - backend->staging_free_count;
    mutex_unlock(&backend->staging_lock);
    return append_tiers(backend, out) &&
           buf_append_format(out,
                             "# HELP shoal_tier_gets_total Looks for a key.\n"
                             "# TYPE shoal_tier_gets_total counter\n"
                             "shoal_tier_gets_total{outcome=\"hit\"} %" PRIu64 "\n"
                             "shoal_tier_gets_total{outcome=\"miss\"} %" PRIu64 "\n"
                             "# HELP shoal_tier_staging_buffers_used Staging buffers in use.\n"
                             "# TYPE shoal_tier_staging_buffers_used gauge\n"
                             "shoal_tier_staging_buffers_used %u\n"
                             "# HELP shoal_tier_staging_refused_total Times that all staging buffers were in use.\n"
                             "# TYPE shoal_tier_staging_refused_total counter\n"
                             "shoal_tier_staging_refused_total %" PRIu64 "\n",
                             hits, misses, staging_used, counter_get(&backend->staging_refused));
}
