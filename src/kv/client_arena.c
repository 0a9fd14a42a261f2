/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/error.h"
#include "base/map.h"
#include "kv/client_internal.h"
#include "tier/allocator.h"

#define UNIT_BYTES 64

struct kv_arena {
    struct kv_arena_source source;
    uint64_t len_bytes;
    struct mutex mutex;
    char *memory; /* NULL until the first alloc */
    struct allocator *allocator;
    struct map handles; /* offset -> handle + 1 */
};

struct kv_arena *kv_arena_create(const struct kv_arena_source *source, uint64_t len_bytes)
{
    struct kv_arena *arena = calloc(1, sizeof *arena);

    if (!arena)
        return NULL;
    arena->source = *source;
    arena->len_bytes = len_bytes;
    mutex_init(&arena->mutex, RANK_KV);
    map_init(&arena->handles);
    return arena;
}

void kv_arena_destroy(struct kv_arena *arena)
{
    if (!arena)
        return;
    if (arena->memory)
        arena->source.unmap(arena->source.arg, arena->memory, arena->len_bytes);
    allocator_destroy(arena->allocator);
    map_release(&arena->handles);
    mutex_release(&arena->mutex);
    free(arena);
}

/* Most clients never need it. Called with the mutex held. */
static enum shoal_status map_memory(struct kv_arena *arena, struct shoal_error *error)
{
    enum shoal_status status;
    void *memory;

    if (arena->memory)
        return SHOAL_OK;
    if (!arena->allocator)
        arena->allocator = allocator_create(arena->len_bytes, UNIT_BYTES, 0);
    if (!arena->allocator)
        return error_no_memory(error);
    status = arena->source.map(arena->source.arg, arena->len_bytes, &memory, error);
    if (!status)
        arena->memory = memory;
    return status;
}

enum shoal_status kv_arena_alloc(struct kv_arena *arena, uint64_t len_bytes, void **memory_out,
                                 struct shoal_error *error)
{
    struct allocator_range range;
    enum shoal_status status;

    mutex_lock(&arena->mutex);
    status = map_memory(arena, error);
    if (!status && !allocator_take(arena->allocator, len_bytes, &range)) {
        status = error_set(error, SHOAL_NO_MEMORY, 0, "the arena of %llu bytes has no room for %llu bytes",
                           (unsigned long long)arena->len_bytes, (unsigned long long)len_bytes);
    } else if (!status) {
        if (map_put_u64(&arena->handles, range.offset_bytes, (void *)((uintptr_t)range.handle + 1))) {
            *memory_out = arena->memory + range.offset_bytes;
        } else {
            allocator_give(arena->allocator, range.handle);
            status = error_no_memory(error);
        }
    }
    mutex_unlock(&arena->mutex);
    return status;
}

void kv_arena_free(struct kv_arena *arena, void *memory)
{
    uintptr_t handle;

    mutex_lock(&arena->mutex);
    handle = arena->memory ? (uintptr_t)map_remove_u64(&arena->handles, (uint64_t)((char *)memory - arena->memory)) : 0;
    if (handle)
        allocator_give(arena->allocator, (uint32_t)(handle - 1));
    mutex_unlock(&arena->mutex);
}

bool kv_arena_offset(struct kv_arena *arena, const void *memory, uint64_t len_bytes, uint64_t *offset_out)
{
    uintptr_t begin, at = (uintptr_t)memory;

    mutex_lock(&arena->mutex);
    begin = (uintptr_t)arena->memory;
    mutex_unlock(&arena->mutex);
    if (!begin || at < begin || at - begin > arena->len_bytes || len_bytes > arena->len_bytes - (at - begin))
        return false;
    *offset_out = at - begin;
    return true;
}
