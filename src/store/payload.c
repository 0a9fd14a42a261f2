/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "store/store_internal.h"
#include "transport/location.h"

enum shoal_status store_check_name(const char *name, struct shoal_error *error)
{
    size_t len;

    if (!name || !*name)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "payload name is empty");
    len = strnlen(name, SHOAL_NAME_MAX_BYTES + 1);
    if (len > SHOAL_NAME_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "payload name is longer than %d bytes: '%.40s...'",
                         SHOAL_NAME_MAX_BYTES, name);
    for (size_t i = 0; i < len;) {
        uint32_t code;
        size_t step = utf8_decode(name + i, len - i, &code);
        if (!step)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "payload name is not UTF-8 at byte %zu", i);
        if (code < 0x20 || (code >= 0x7f && code < 0xa0))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "payload name has a control character at byte %zu", i);
        i += step;
    }
    return SHOAL_OK;
}

static int compare_regions(const void *a, const void *b)
{
    const struct shoal_region *left = a, *right = b;
    return (left->addr > right->addr) - (left->addr < right->addr);
}

static enum shoal_status check_regions(const struct shoal_region *regions, size_t count, struct shoal_error *error)
{
    struct shoal_region *sorted;
    enum shoal_status status = SHOAL_OK;
    size_t used = 0;

    if (!regions || !count || count > LAYOUT_REGIONS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu regions (want 1..%u)", regions ? count : 0,
                         LAYOUT_REGIONS_MAX);
    sorted = calloc(count, sizeof *sorted);
    if (!sorted)
        return error_no_memory(error);
    for (size_t i = 0; i < count && !status; i++) {
        uintptr_t end;
        if (!regions[i].len_bytes)
            continue;
        if (!regions[i].addr)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "region %zu: NULL with %" PRIu64 " bytes", i,
                               regions[i].len_bytes);
        else if (__builtin_add_overflow((uintptr_t)regions[i].addr, regions[i].len_bytes, &end))
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "region %zu wraps around the address space", i);
        else
            sorted[used++] = regions[i];
    }
    if (!status) {
        qsort(sorted, used, sizeof *sorted, compare_regions);
        for (size_t i = 1; i < used && !status; i++) {
            if ((uintptr_t)sorted[i - 1].addr + sorted[i - 1].len_bytes > (uintptr_t)sorted[i].addr)
                status = error_set(error, SHOAL_ADDRESS_OVERLAPPED, 0, "regions at %p and %p overlap",
                                   sorted[i - 1].addr, sorted[i].addr);
        }
    }
    free(sorted);
    return status;
}

void payload_ref(struct payload *payload)
{
    atomic_fetch_add_explicit(&payload->refs, 1, memory_order_relaxed);
}

void payload_unref(struct payload *payload)
{
    /* acq_rel: the last holder sees what every other did before it let go. */
    if (!payload || atomic_fetch_sub_explicit(&payload->refs, 1, memory_order_acq_rel) != 1)
        return;
    layout_release(&payload->layout);
    span_map_release(&payload->spans);
    buf_release(&payload->manifest);
    free(payload->have_log);
    free(payload->have_bits);
    free(payload->index);
    free(payload->regions);
    free(payload->replaced_by);
    free(payload->name);
    receivers_release(&payload->receivers);
    free(payload);
}

enum shoal_status payload_open(struct shoal_store *store, const char *name, const struct shoal_region *regions,
                               size_t region_count, bool is_gold, struct payload **payload_out,
                               struct shoal_error *error)
{
    struct payload *payload, *existing;
    enum shoal_status status = check_regions(regions, region_count, error);

    if (status)
        return status;
    payload = calloc(1, sizeof *payload);
    if (!payload)
        return error_no_memory(error);
    payload->store = store;
    atomic_init(&payload->refs, 2); /* the caller's and the catalog's */
    payload->is_gold = is_gold;
    buf_init(&payload->manifest, MANIFEST_MAX_BYTES);
    list_init(&payload->waiters);
    receivers_init(&payload->receivers);
    payload->name = strdup(name);
    payload->regions = calloc(region_count, sizeof *payload->regions);
    if (!payload->name || !payload->regions) {
        status = error_no_memory(error);
        goto fail;
    }
    memcpy(payload->regions, regions, region_count * sizeof *regions);
    payload->region_count = region_count;
    status = span_map_init(&payload->spans, region_count, error);
    if (status)
        goto fail;

    mutex_lock(&store->mutex);
    existing = map_get_str(&store->catalog, name);
    if (existing)
        status = error_set(error, SHOAL_PAYLOAD_OPENED, 0, "payload '%s' is %s by this node already", name,
                           existing->is_gold ? "registered" : "replicated");
    else if (!map_put_str(&store->catalog, name, payload))
        status = error_no_memory(error);
    mutex_unlock(&store->mutex);
    if (status)
        goto fail;
    *payload_out = payload;
    return SHOAL_OK;

fail:
    atomic_store(&payload->refs, 1);
    payload_unref(payload);
    return status;
}

static void unregister_memory(struct payload *payload)
{
    while (payload->registered_count) {
        struct shoal_region *region = &payload->regions[--payload->registered_count];
        shoal_engine_unregister_memory(payload->store->engine, region->addr, region->len_bytes, NULL);
    }
    if (payload->is_index_registered)
        shoal_engine_unregister_memory(payload->store->engine, payload->index, payload->index_len, NULL);
    payload->is_index_registered = false;
}

enum shoal_status payload_register_memory(struct payload *payload, const char *location, unsigned access,
                                          struct shoal_error *error)
{
    struct location where = {.kind = LOCATION_ANY};

    if (location && location_parse(location, &where, error) != SHOAL_OK)
        return SHOAL_INVALID_ARGUMENT;
    payload->is_device = where.kind == LOCATION_CUDA;
    for (size_t i = 0; i < payload->region_count; i++) {
        struct shoal_region *region = &payload->regions[i];
        uint64_t key = 0;
        enum shoal_status status = shoal_engine_register_memory(payload->store->engine, region->addr, region->len_bytes,
                                                                location, access, &key, error);
        if (status) {
            error_prefix(error, "payload '%s', region %zu", payload->name, i);
            unregister_memory(payload);
            return status;
        }
        payload->registered_count = i + 1;
        span_map_add(&payload->spans, (uintptr_t)region->addr, region->len_bytes, key);
    }
    return SHOAL_OK;
}

enum shoal_status payload_register_index(struct payload *payload, struct shoal_error *error)
{
    enum shoal_status status = shoal_engine_register_memory(payload->store->engine, payload->index, payload->index_len,
                                                            NULL, SHOAL_ACCESS_REMOTE_READ, &payload->index_key, error);

    payload->is_index_registered = status == SHOAL_OK;
    return status;
}

void payload_close(struct payload *payload)
{
    struct shoal_store *store = payload->store;

    serve_stop(payload);
    unregister_memory(payload);
    mutex_lock(&store->mutex);
    map_remove_str(&store->catalog, payload->name);
    mutex_unlock(&store->mutex);
    payload_unref(payload);
}

enum shoal_status payload_take(struct shoal_store *store, const char *name, bool is_gold, struct payload **payload_out,
                               struct shoal_error *error)
{
    struct payload *payload;
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&store->mutex);
    payload = map_get_str(&store->catalog, name);
    if (!payload || payload->state != PAYLOAD_READY) {
        status = error_set(error, SHOAL_PAYLOAD_NOT_OPENED, 0, "payload '%s' is not %s by this node", name,
                           is_gold ? "registered" : "replicated");
    } else if (payload->is_gold != is_gold) {
        status = error_set(error, SHOAL_PAYLOAD_NOT_OPENED, 0, "payload '%s' is %s here: use %s", name,
                           is_gold ? "a replica" : "registered (gold)", is_gold ? "delete_replica" : "unregister");
    } else {
        payload->state = PAYLOAD_CLOSING;
        payload->wants_publication = false;
        payload_ref(payload);
        *payload_out = payload;
    }
    mutex_unlock(&store->mutex);
    return status;
}

void payload_set_state(struct payload *payload, enum payload_state state)
{
    mutex_lock(&payload->store->mutex);
    payload->state = state;
    mutex_unlock(&payload->store->mutex);
}

void payload_set_generation(struct payload *payload, uint64_t generation)
{
    mutex_lock(&payload->store->mutex);
    payload->generation = generation;
    mutex_unlock(&payload->store->mutex);
}
