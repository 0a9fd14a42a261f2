/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory as the public header has it; the table itself is transport/memory.c. */
#include "base/error.h"
#include "engine/engine_internal.h"

enum shoal_status shoal_engine_register_memory(struct shoal_engine *engine, void *addr, uint64_t len_bytes,
                                               const char *location, unsigned access, uint64_t *key_out,
                                               struct shoal_error *error)
{
    if (!engine)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine is required");
    return memory_register(engine->memory, addr, len_bytes, location, access, key_out, error);
}

enum shoal_status engine_memory_alloc(struct shoal_engine *engine, uint64_t len_bytes, bool has_huge_pages,
                                      void **addr_out, struct shoal_error *error)
{
    return shared_alloc(engine->shared, len_bytes, has_huge_pages, addr_out, error);
}

void engine_memory_free(struct shoal_engine *engine, void *addr)
{
    shared_free(engine->shared, addr);
}

struct evict_call {
    struct shoal_engine *engine;
    struct memory_region *region;
};

static void evict_on_loop(void *arg)
{
    struct evict_call *call = arg;

    engine_cancel_local(call->engine, call->region);
}

/* Requests that use the region end: own ones are canceled, connections that serve peers from it are dropped. */
static void evict(void *arg, struct memory_region *region)
{
    struct shoal_engine *engine = arg;
    struct evict_call call = {engine, region};
    struct engine_transport transports[ENGINE_TRANSPORTS_MAX];
    unsigned count;

    loop_call(engine->loops[0], evict_on_loop, &call);
    mutex_lock(&engine->mutex);
    count = engine->transport_count;
    for (unsigned i = 0; i < count; i++)
        transports[i] = engine->transports[i];
    mutex_unlock(&engine->mutex);
    for (unsigned i = 0; i < count; i++)
        transports[i].ops->evict(transports[i].instance, region);
}

enum shoal_status shoal_engine_unregister_memory(struct shoal_engine *engine, void *addr, uint64_t len_bytes,
                                                 struct shoal_error *error)
{
    if (!engine)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine is required");
    return memory_unregister(engine->memory, addr, len_bytes, ENGINE_UNREGISTER_GRACE_MS, evict, engine, error);
}

enum shoal_status engine_window_open(struct shoal_engine *engine, void *addr, uint64_t len_bytes, unsigned access,
                                     uint64_t *key_out, struct shoal_error *error)
{
    return memory_window_open(engine->memory, addr, len_bytes, access, key_out, error);
}

void engine_window_close(struct shoal_engine *engine, uint64_t key)
{
    memory_window_close(engine->memory, key, ENGINE_UNREGISTER_GRACE_MS, evict, engine);
}

enum shoal_status shoal_engine_register_memory_batch(struct shoal_engine *engine, const struct shoal_region *regions,
                                                     size_t count, const char *location, unsigned access,
                                                     struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    size_t done;

    if (!engine || (!regions && count))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine and regions are required");
    for (done = 0; done < count && status == SHOAL_OK; done++) {
        status = shoal_engine_register_memory(engine, regions[done].addr, regions[done].len_bytes, location, access,
                                              NULL, error);
        if (status != SHOAL_OK) {
            error_prefix(error, "region %zu", done);
            break;
        }
    }
    if (status != SHOAL_OK)
        while (done > 0) {
            done--;
            (void)shoal_engine_unregister_memory(engine, regions[done].addr, regions[done].len_bytes, NULL);
        }
    return status;
}

enum shoal_status shoal_engine_unregister_memory_batch(struct shoal_engine *engine, const struct shoal_region *regions,
                                                       size_t count, struct shoal_error *error)
{
    enum shoal_status first = SHOAL_OK;

    if (!engine || (!regions && count))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine and regions are required");
    for (size_t i = 0; i < count; i++) {
        enum shoal_status status = shoal_engine_unregister_memory(engine, regions[i].addr, regions[i].len_bytes,
                                                                  first == SHOAL_OK ? error : NULL);
        if (first == SHOAL_OK)
            first = status;
    }
    return first;
}

enum shoal_status engine_memory_read(struct shoal_engine *engine, const void *addr, uint64_t len_bytes,
                                     bool (*fn)(void *arg, const void *data, size_t len), void *arg,
                                     struct shoal_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)addr;
    struct memory_region *region;
    const char *reason = NULL;
    enum shoal_status status;

    if (len_bytes == 0)
        return SHOAL_OK;
    status = memory_pin(engine->memory, start, len_bytes, 0, 0, &region, &reason);
    if (status != SHOAL_OK)
        return error_set(error, status, 0, "local memory: %s", reason);
    if (memory_device(region))
        status = device_read(memory_device(region), memory_allocation(region), start, len_bytes, fn, arg, error);
    else
        (void)fn(arg, addr, (size_t)len_bytes);
    memory_unpin(engine->memory, region);
    return status;
}
