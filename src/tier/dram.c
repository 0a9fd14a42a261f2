/* SPDX-License-Identifier: Apache-2.0 */
/* The DRAM kind: one mapping, registered with the engine as a whole, divided by the offset allocator. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <shoal/engine.h>

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "tier/allocator.h"
#include "tier/memory_limit.h"
#include "tier/tier_ops.h"
#include "transport/location.h"
#include "transport/numa.h"

#define LOG_MODULE "tier"
#define UNIT_BYTES 64 /* a cache line: objects do not share one */
#define HUGE_PAGE_BYTES (2ull << 20)

struct dram {
    struct tier tier;
    struct shoal_engine *engine; /* borrowed; NULL: not registered */
    uint8_t *memory;             /* mapping, owned */
    uint64_t mapped_bytes;
    struct mutex lock;           /* RANK_TIER_SPACE; guards allocator */
    struct allocator *allocator; /* owned */
};

struct dram_space {
    struct tier_space space;
    struct allocator_range range;
};

/* Of all DRAM tiers of the process: together they must fit into the memory. */
static uint64_t all_mapped_bytes;

static struct dram *dram_of(const struct tier *tier)
{
    return container_of(tier, struct dram, tier);
}

static struct dram_space *space_of(const struct tier_space *space)
{
    return container_of(space, struct dram_space, space);
}

/* --- memory --- */

static bool claim_memory(uint64_t bytes, uint64_t *limit_out)
{
    uint64_t mapped = __atomic_load_n(&all_mapped_bytes, __ATOMIC_RELAXED);

    *limit_out = memory_limit_bytes();
    do {
        if (bytes > *limit_out || mapped > *limit_out - bytes)
            return false;
    } while (!__atomic_compare_exchange_n(&all_mapped_bytes, &mapped, mapped + bytes, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return true;
}

/* A wish: memory from elsewhere is better than none. A node that is not there is a mistake. */
static enum shoal_status prefer_numa_node(const struct dram *dram, unsigned index, int node, struct shoal_error *error)
{
    struct shoal_error why;
    enum shoal_status status;

    if (node < 0)
        return SHOAL_OK;
    status = numa_bind_memory(dram->memory, dram->mapped_bytes, (unsigned)node, &why);
    if (status == SHOAL_INVALID_ARGUMENT)
        return error_set(error, status, 0, "tier %u (DRAM): %s", index, why.message);
    if (status != SHOAL_OK)
        LOG_WARN("tier %u (DRAM): %s; memory comes from any", index, why.message);
    return SHOAL_OK;
}

static enum shoal_status map_memory(struct dram *dram, const struct tier_config *config, unsigned index,
                                    struct shoal_error *error)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *memory = MAP_FAILED;
    bool is_huge = false;
    int saved_errno;

    if (dram->engine) {
        enum shoal_status status =
            engine_memory_alloc(dram->engine, dram->mapped_bytes, config->wants_huge_pages, &memory, error);

        if (status != SHOAL_OK) {
            error_prefix(error, "tier %u (DRAM)", index);
            return status;
        }
        dram->memory = memory;
        (void)madvise(memory, dram->mapped_bytes, MADV_DONTDUMP);
        return prefer_numa_node(dram, index, config->numa_node, error);
    }
    if (config->wants_huge_pages) {
        dram->mapped_bytes = (dram->mapped_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        memory = mmap(NULL, dram->mapped_bytes, protection, flags | MAP_HUGETLB, -1, 0);
        is_huge = memory != MAP_FAILED;
    }
    if (memory == MAP_FAILED)
        memory = mmap(NULL, dram->mapped_bytes, protection, flags, -1, 0);
    if (memory == MAP_FAILED) {
        saved_errno = errno;
        return error_set(error, SHOAL_NO_MEMORY, saved_errno, "tier %u (DRAM): mapping %" PRIu64 " bytes: %s", index,
                         config->capacity_bytes, strerror(saved_errno));
    }
    dram->memory = memory;
    if (config->wants_huge_pages && !is_huge && madvise(memory, dram->mapped_bytes, MADV_HUGEPAGE))
        LOG_INFO("tier %u (DRAM): no huge pages here: %s", index, strerror(errno));
    (void)madvise(memory, dram->mapped_bytes, MADV_DONTDUMP);
    return prefer_numa_node(dram, index, config->numa_node, error);
}

/* --- the table --- */

static void dram_destroy(struct tier *tier)
{
    struct dram *dram = dram_of(tier);
    struct shoal_error error;

    if (tier->memory_key &&
        shoal_engine_unregister_memory(dram->engine, dram->memory, tier->capacity_bytes, &error) != SHOAL_OK)
        LOG_ERROR("DRAM tier: %s", error.message);
    if (dram->engine)
        engine_memory_free(dram->engine, dram->memory);
    else if (dram->memory)
        munmap(dram->memory, dram->mapped_bytes);
    allocator_destroy(dram->allocator);
    __atomic_fetch_sub(&all_mapped_bytes, tier->capacity_bytes, __ATOMIC_RELAXED);
    mutex_release(&dram->lock);
    free(dram);
}

static enum shoal_status dram_create(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                     struct tier **tier_out, struct shoal_error *error)
{
    char location[LOCATION_TEXT_BYTES] = "*";
    struct dram *dram;
    uint64_t limit_bytes;
    enum shoal_status status;

    if (config->capacity_bytes < UNIT_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %u (DRAM): capacity is %" PRIu64 " bytes; at least %d are needed", index,
                         config->capacity_bytes, UNIT_BYTES);
    dram = calloc(1, sizeof *dram);
    if (!dram)
        return error_no_memory(error);
    if (!claim_memory(config->capacity_bytes / UNIT_BYTES * UNIT_BYTES, &limit_bytes)) {
        free(dram);
        return error_set(error, SHOAL_NO_MEMORY, 0,
                         "tier %u (DRAM): capacity of %" PRIu64 " bytes, with the other DRAM tiers of this process, is "
                         "more than the %" PRIu64 " bytes of memory of this machine or control group",
                         index, config->capacity_bytes, limit_bytes);
    }
    mutex_init(&dram->lock, RANK_TIER_SPACE);
    dram->engine = engine;
    dram->tier = (struct tier){.ops = &tier_ops_dram,
                               .capacity_bytes = config->capacity_bytes / UNIT_BYTES * UNIT_BYTES,
                               .max_object_bytes = config->capacity_bytes / UNIT_BYTES * UNIT_BYTES,
                               .has_data = true};
    dram->mapped_bytes = dram->tier.capacity_bytes;
    dram->allocator = allocator_create(dram->tier.capacity_bytes, UNIT_BYTES, 0);
    if (config->numa_node >= 0)
        location_format(&(struct location){.kind = LOCATION_CPU, .index = (unsigned)config->numa_node}, location);
    status = dram->allocator ? map_memory(dram, config, index, error) : error_no_memory(error);
    if (status == SHOAL_OK && engine) {
        status = shoal_engine_register_memory(engine, dram->memory, dram->tier.capacity_bytes, location,
                                              SHOAL_ACCESS_REMOTE_READ, &dram->tier.memory_key, error);
        if (status != SHOAL_OK)
            error_prefix(error, "tier %u (DRAM)", index);
    }
    if (status != SHOAL_OK) {
        dram_destroy(&dram->tier);
        return status;
    }
    *tier_out = &dram->tier;
    return SHOAL_OK;
}

static enum shoal_status dram_allocate(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                       struct shoal_error *error)
{
    struct dram *dram = dram_of(tier);
    struct dram_space *space = malloc(sizeof *space);
    bool is_taken;

    if (!space)
        return error_no_memory(error);
    space->space.len_bytes = len_bytes;
    mutex_lock(&dram->lock);
    is_taken = allocator_take(dram->allocator, len_bytes, &space->range);
    __atomic_store_n(&tier->used_bytes, allocator_used_bytes(dram->allocator), __ATOMIC_RELAXED);
    mutex_unlock(&dram->lock);
    if (!is_taken) {
        free(space);
        return SHOAL_NO_SPACE;
    }
    *space_out = &space->space;
    return SHOAL_OK;
}

static void dram_release(struct tier *tier, struct tier_space *space)
{
    struct dram *dram = dram_of(tier);

    mutex_lock(&dram->lock);
    allocator_give(dram->allocator, space_of(space)->range.handle);
    __atomic_store_n(&tier->used_bytes, allocator_used_bytes(dram->allocator), __ATOMIC_RELAXED);
    mutex_unlock(&dram->lock);
    free(space_of(space));
}

static void *dram_data(const struct tier *tier, const struct tier_space *space)
{
    return dram_of(tier)->memory + space_of(space)->range.offset_bytes;
}

static enum shoal_status dram_write(struct tier *tier, struct tier_space *space, uint64_t offset_bytes,
                                    const void *data, size_t len_bytes, struct shoal_error *error)
{
    (void)error;
    if (len_bytes)
        memcpy((uint8_t *)dram_data(tier, space) + offset_bytes, data, len_bytes);
    return SHOAL_OK;
}

static enum shoal_status dram_read(struct tier *tier, struct tier_space *space, uint64_t offset_bytes, void *out,
                                   size_t len_bytes, struct shoal_error *error)
{
    (void)error;
    if (len_bytes)
        memcpy(out, (const uint8_t *)dram_data(tier, space) + offset_bytes, len_bytes);
    return SHOAL_OK;
}

const struct tier_ops tier_ops_dram = {
    .name = "DRAM",
    .create = dram_create,
    .destroy = dram_destroy,
    .allocate = dram_allocate,
    .release = dram_release,
    .data = dram_data,
    .write = dram_write,
    .read = dram_read,
};
