/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/random.h"
#include "transport/location.h"
#include "transport/numa.h"

#define ACCESS_ALL (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)

struct memory_region {
    uint64_t addr, len, key;
    uint64_t refs; /* registrations; 0: dying */
    uint64_t pins;
    uint64_t loans; /* of them: pins that only evict ends */
    unsigned access;
    bool is_dying, is_faulty;
    char location[LOCATION_TEXT_BYTES];
    struct device *device; /* ref; NULL: the processor can touch it. A window's is borrowed from its region */
    uint64_t allocation;   /* of the device */
};

struct memory_table {
    struct mutex mutex;             /* guards everything below */
    struct cond changed;            /* a pin or a dying region went away */
    struct memory_region **regions; /* owned, sorted by address, never overlapping */
    size_t count, capacity;
    struct map windows; /* by key: struct memory_region, owned */
    uint64_t next_key;
    uint64_t registered_bytes;
};

static void region_free(struct memory_region *region)
{
    if (region)
        device_close(region->device);
    free(region);
}

enum shoal_status memory_table_create(struct memory_table **out, struct shoal_error *error)
{
    struct memory_table *table = calloc(1, sizeof *table);

    if (!table)
        return error_no_memory(error);
    mutex_init(&table->mutex, RANK_MEMORY);
    cond_init(&table->changed);
    map_init(&table->windows);
    /* A key of an earlier life of the process must not fit by accident. */
    table->next_key = (random_id() >> 1) | 1;
    *out = table;
    return SHOAL_OK;
}

void memory_table_destroy(struct memory_table *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < table->count; i++)
        region_free(table->regions[i]);
    free(table->regions);
    map_release(&table->windows);
    cond_release(&table->changed);
    mutex_release(&table->mutex);
    free(table);
}

/* Index of the first region that ends behind addr. */
static size_t lower_bound(const struct memory_table *table, uint64_t addr)
{
    size_t low = 0, high = table->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct memory_region *region = table->regions[mid];

        if (region->addr + region->len <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static enum shoal_status check_location(const char *text, struct location *out, struct shoal_error *error)
{
    enum shoal_status status = location_parse(text, out, error);

    if (status == SHOAL_OK && out->kind == LOCATION_CPU) {
        status = numa_check_node(out->index, error);
        if (status != SHOAL_OK)
            error_prefix(error, "location \"%s\"", text);
    }
    return status;
}

static bool insert_at(struct memory_table *table, size_t index, struct memory_region *region)
{
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 16;
        struct memory_region **regions = realloc(table->regions, capacity * sizeof *regions);

        if (!regions)
            return false;
        table->regions = regions;
        table->capacity = capacity;
    }
    memmove(&table->regions[index + 1], &table->regions[index], (table->count - index) * sizeof *table->regions);
    table->regions[index] = region;
    table->count++;
    table->registered_bytes += region->len;
    return true;
}

static void remove_region(struct memory_table *table, struct memory_region *region)
{
    size_t index = lower_bound(table, region->addr);

    table->count--;
    memmove(&table->regions[index], &table->regions[index + 1], (table->count - index) * sizeof *table->regions);
    table->registered_bytes -= region->len;
}

/* A region that nobody knows yet. */
static enum shoal_status region_make(uint64_t start, uint64_t len, const struct location *where, unsigned access,
                                     struct memory_region **out, struct shoal_error *error)
{
    struct memory_region *region;
    enum shoal_status status;
    unsigned number;

    if (start == 0 || start + len < start)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s",
                         start ? "memory range wraps around" : "address is NULL");
    if (where->kind != LOCATION_CUDA && device_is_device_memory((const void *)(uintptr_t)start, &number))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "0x%llx is device memory: register it with location \"cuda:%u\"", (unsigned long long)start,
                         number);
    region = calloc(1, sizeof *region);
    if (!region)
        return error_no_memory(error);
    *region = (struct memory_region){.addr = start, .len = len, .refs = 1, .access = access};
    location_format(where, region->location);
    if (where->kind == LOCATION_CUDA) {
        status = device_open(where->index, &region->device, error);
        if (status == SHOAL_OK)
            status = device_check(region->device, start, len, &region->allocation, error);
        if (status != SHOAL_OK) {
            region_free(region);
            return status;
        }
    }
    *out = region;
    return SHOAL_OK;
}

static bool is_same(const struct memory_region *a, const struct memory_region *b)
{
    return a->addr == b->addr && a->len == b->len && a->access == b->access && a->device == b->device &&
           a->allocation == b->allocation;
}

enum shoal_status memory_register(struct memory_table *table, void *addr, uint64_t len, const char *location,
                                  unsigned access, uint64_t *key_out, struct shoal_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)addr;
    enum shoal_status status = SHOAL_OK;
    struct memory_region *fresh = NULL, *found;
    struct location where;
    size_t index;

    if (!location)
        location = "*";
    if (access & ~(unsigned)ACCESS_ALL)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "unknown access bits 0x%x", access & ~(unsigned)ACCESS_ALL);
    status = check_location(location, &where, error);
    if (status != SHOAL_OK)
        return status;
    if (len == 0) {
        if (where.kind == LOCATION_CUDA) { /* a device that there is not is an error all the same */
            struct device *device;

            status = device_open(where.index, &device, error);
            if (status != SHOAL_OK)
                return status;
            device_close(device);
        }
        if (key_out)
            *key_out = 0;
        return SHOAL_OK;
    }
    status = region_make(start, len, &where, access, &fresh, error);
    if (status != SHOAL_OK)
        return status;

    mutex_lock(&table->mutex);
    for (;;) {
        index = lower_bound(table, start);
        found = index < table->count && table->regions[index]->addr < start + len ? table->regions[index] : NULL;
        if (!found || !found->is_dying)
            break;
        cond_wait(&table->changed, &table->mutex); /* its release is under way and bounded */
    }
    if (!found) {
        fresh->key = table->next_key;
        if (insert_at(table, index, fresh)) {
            table->next_key++;
            if (key_out)
                *key_out = fresh->key;
            fresh = NULL;
        } else {
            status = error_no_memory(error);
        }
    } else if (is_same(found, fresh)) {
        found->refs++;
        if (key_out)
            *key_out = found->key;
    } else {
        status =
            error_set(error, SHOAL_ADDRESS_OVERLAPPED, 0,
                      "[0x%llx, +%llu) overlaps [0x%llx, +%llu), which is registered with other bounds or access%s",
                      (unsigned long long)start, (unsigned long long)len, (unsigned long long)found->addr,
                      (unsigned long long)found->len,
                      found->device != fresh->device           ? ", or for another device"
                      : found->allocation != fresh->allocation ? ", before that device memory was freed"
                                                               : "");
    }
    mutex_unlock(&table->mutex);
    region_free(fresh);
    return status;
}

/* Refuses new pins and waits until there are none; keeps the range taken meanwhile. With the mutex held, but for evict
 * and while waiting. */
static void drain(struct memory_table *table, struct memory_region *region, int64_t grace_ms,
                  void (*evict)(void *arg, struct memory_region *region), void *arg)
{
    int64_t deadline = deadline_after_ms(grace_ms);

    region->is_dying = true;
    while (region->pins > region->loans && cond_wait_until(&table->changed, &table->mutex, deadline))
        ;
    if (region->pins > 0 && evict) {
        mutex_unlock(&table->mutex);
        evict(arg, region);
        mutex_lock(&table->mutex);
    }
    while (region->pins > 0)
        cond_wait(&table->changed, &table->mutex);
}

enum shoal_status memory_unregister(struct memory_table *table, void *addr, uint64_t len, int64_t grace_ms,
                                    void (*evict)(void *arg, struct memory_region *region), void *arg,
                                    struct shoal_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)addr;
    struct memory_region *region;
    size_t index;

    if (len == 0)
        return SHOAL_OK;
    mutex_lock(&table->mutex);
    index = lower_bound(table, start);
    region = index < table->count ? table->regions[index] : NULL;
    if (!region || region->addr != start || region->len != len || region->is_dying) {
        mutex_unlock(&table->mutex);
        return error_set(error, SHOAL_NOT_FOUND, 0, "[0x%llx, +%llu) is not registered", (unsigned long long)start,
                         (unsigned long long)len);
    }
    if (--region->refs > 0) {
        mutex_unlock(&table->mutex);
        return SHOAL_OK;
    }
    drain(table, region, grace_ms, evict, arg);
    remove_region(table, region);
    cond_broadcast(&table->changed);
    mutex_unlock(&table->mutex);
    region_free(region);
    return SHOAL_OK;
}

/* The region that covers all of the range, or NULL. */
static struct memory_region *find(const struct memory_table *table, uint64_t addr, uint64_t len)
{
    size_t index = lower_bound(table, addr);
    struct memory_region *region = index < table->count ? table->regions[index] : NULL;

    return region && region->addr <= addr && len <= region->addr + region->len - addr ? region : NULL;
}

enum shoal_status memory_window_open(struct memory_table *table, void *addr, uint64_t len, unsigned access,
                                     uint64_t *key_out, struct shoal_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)addr;
    enum shoal_status status = SHOAL_OK;
    struct memory_region *window, *region;

    if (access & ~(unsigned)ACCESS_ALL)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "unknown access bits 0x%x", access & ~(unsigned)ACCESS_ALL);
    if (len == 0) {
        *key_out = 0;
        return SHOAL_OK;
    }
    window = calloc(1, sizeof *window);
    if (!window)
        return error_no_memory(error);
    mutex_lock(&table->mutex);
    region = find(table, start, len);
    if (!region || region->is_dying) {
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "[0x%llx, +%llu) is not inside registered memory",
                           (unsigned long long)start, (unsigned long long)len);
    } else {
        *window = *region; /* for its location */
        window->addr = start;
        window->len = len;
        window->key = table->next_key;
        window->refs = 1;
        window->pins = 0;
        window->loans = 0;
        window->access = access;
        if (map_put_u64(&table->windows, window->key, window)) {
            *key_out = table->next_key++;
            window = NULL;
        } else {
            status = error_no_memory(error);
        }
    }
    mutex_unlock(&table->mutex);
    free(window);
    return status;
}

void memory_window_close(struct memory_table *table, uint64_t key, int64_t grace_ms,
                         void (*evict)(void *arg, struct memory_region *region), void *arg)
{
    struct memory_region *window;

    mutex_lock(&table->mutex);
    window = map_remove_u64(&table->windows, key);
    if (window)
        drain(table, window, grace_ms, evict, arg);
    mutex_unlock(&table->mutex);
    free(window);
}

enum shoal_status memory_pin(struct memory_table *table, uint64_t addr, uint64_t len, uint64_t key, unsigned access,
                             struct memory_region **region_out, const char **reason_out)
{
    enum shoal_status status = SHOAL_INVALID_ARGUMENT;
    const char *reason = NULL;
    struct memory_region *region = NULL, *window;
    size_t index;

    mutex_lock(&table->mutex);
    index = lower_bound(table, addr);
    if (index < table->count && table->regions[index]->addr <= addr)
        region = table->regions[index];
    if (access && key && table->windows.count && (!region || region->key != key)) {
        window = map_get_u64(&table->windows, key);
        if (window)
            region = window->addr <= addr && addr < window->addr + window->len ? window : NULL;
    }
    if (len == 0 || addr + len < addr)
        reason = "range is empty or wraps around";
    else if (!region || len > region->addr + region->len - addr)
        reason = "range is not inside registered memory";
    else if (region->is_dying)
        reason = "memory is being unregistered";
    else if (key && key != region->key)
        reason = "key does not belong to that memory";
    else if (access & ~region->access)
        reason = access & ~region->access & SHOAL_ACCESS_REMOTE_WRITE ? "memory is not writable by peers"
                                                                      : "memory is not readable by peers";
    else if (access && region->is_faulty) {
        reason = "memory is unreadable";
        status = SHOAL_IO;
    } else {
        region->pins++;
        status = SHOAL_OK;
    }
    mutex_unlock(&table->mutex);
    if (status == SHOAL_OK)
        *region_out = region;
    else if (reason_out)
        *reason_out = reason;
    return status;
}

void memory_unpin(struct memory_table *table, struct memory_region *region)
{
    mutex_lock(&table->mutex);
    if (--region->pins == region->loans && region->is_dying)
        cond_broadcast(&table->changed);
    mutex_unlock(&table->mutex);
}

void memory_lend(struct memory_table *table, struct memory_region *region)
{
    mutex_lock(&table->mutex);
    region->loans++;
    if (region->pins == region->loans && region->is_dying)
        cond_broadcast(&table->changed);
    mutex_unlock(&table->mutex);
}

void memory_return(struct memory_table *table, struct memory_region *region)
{
    mutex_lock(&table->mutex);
    region->loans--;
    region->pins--;
    if (region->pins == region->loans && region->is_dying)
        cond_broadcast(&table->changed);
    mutex_unlock(&table->mutex);
}

void memory_mark_faulty(struct memory_table *table, struct memory_region *region)
{
    mutex_lock(&table->mutex);
    region->is_faulty = true;
    mutex_unlock(&table->mutex);
}

bool memory_is_dying(struct memory_table *table, const struct memory_region *region)
{
    bool is_dying;

    mutex_lock(&table->mutex);
    is_dying = region->is_dying;
    mutex_unlock(&table->mutex);
    return is_dying;
}

const char *memory_location(const struct memory_region *region)
{
    return region->location;
}

struct memory_bounds memory_bounds(const struct memory_region *region)
{
    return (struct memory_bounds){region->addr, region->len, region->key};
}

struct device *memory_device(const struct memory_region *region)
{
    return region->device;
}

uint64_t memory_allocation(const struct memory_region *region)
{
    return region->allocation;
}

uint64_t memory_registered_bytes(struct memory_table *table)
{
    uint64_t bytes;

    mutex_lock(&table->mutex);
    bytes = table->registered_bytes;
    mutex_unlock(&table->mutex);
    return bytes;
}
