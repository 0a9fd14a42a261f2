/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory as UCX has to know it: mapped once for each set of devices while some peer holds a grant. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/ucx_internal.h"

struct mapping_key {
    uint64_t key; /* of the region or window; never reused */
    uint64_t set;
};

static void mapping_free(struct ucx_mapping *mapping)
{
    struct ucx *ucx = mapping->ucx;

    memory_return(ucx->env.memory, mapping->region);
    free(mapping);
    ucx_live(ucx, -1);
}

static void unmap(void *arg, bool is_canceled)
{
    struct ucx_mapping *mapping = arg;
    const struct ucx_lib *lib = mapping->ucx->lib;

    (void)is_canceled; /* it is done anyway: the memory waits for it */
    if (mapping->rkey)
        lib->rkey_buffer_release(mapping->rkey);
    if (mapping->handle)
        lib->mem_unmap(mapping->ucx->sets[mapping->set].context, mapping->handle);
    mapping_free(mapping);
}

static void forget(struct ucx_mapping *mapping)
{
    struct mapping_key key = {mapping->bounds.key, mapping->set};

    if (map_get(&mapping->ucx->mappings, &key, sizeof key) == mapping)
        map_remove(&mapping->ucx->mappings, &key, sizeof key);
    if (executor_submit(mapping->ucx->mapper, &mapping->task, unmap, mapping) != SHOAL_OK)
        unmap(mapping, true);
}

static void mapped(void *arg)
{
    struct ucx_mapping *mapping = arg;
    struct list_node *node;

    mapping->is_mapped = true;
    mapping->users++; /* it must outlive this function */
    while ((node = list_pop_front(&mapping->waiting)))
        ucx_serving_mapped(container_of(node, struct ucx_lent, waiting_node));
    if (--mapping->users == 0)
        forget(mapping);
}

static void map_memory(void *arg, bool is_canceled)
{
    struct ucx_mapping *mapping = arg;
    const struct ucx_lib *lib = mapping->ucx->lib;
    ucp_context_h context = mapping->ucx->sets[mapping->set].context;
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = (void *)(uintptr_t)mapping->bounds.addr,
                                   .length = mapping->bounds.len};
    ucs_status_t status = is_canceled ? UCS_ERR_CANCELED : lib->mem_map(context, &params, &mapping->handle);

    if (status == UCS_OK)
        status = lib->rkey_pack(context, mapping->handle, &mapping->rkey, &mapping->rkey_len);
    else
        mapping->handle = NULL;
    if (status != UCS_OK || mapping->rkey_len > UCX_FRAME_BODY_MAX_BYTES) {
        mapping->is_failed = true;
        error_set(&mapping->error, SHOAL_UNSUPPORTED, 0, "UCX cannot register %llu bytes: %s",
                  (unsigned long long)mapping->bounds.len, lib->status_string(status));
    }
    loop_post(mapping->ucx->loop, &mapping->done_task, mapped, mapping);
}

enum shoal_status ucx_mapping_use(struct ucx *ucx, unsigned set, struct memory_region *region, struct ucx_lent *lent,
                                  struct ucx_mapping **out, struct shoal_error *error)
{
    struct memory_bounds bounds = memory_bounds(region);
    struct mapping_key key = {bounds.key, set};
    struct ucx_mapping *mapping = map_get(&ucx->mappings, &key, sizeof key);

    if (mapping && !mapping->is_failed) {
        memory_unpin(ucx->env.memory, region); /* the mapping has a pin of its own */
        mapping->users++;
        if (!mapping->is_mapped)
            list_push_back(&mapping->waiting, &lent->waiting_node);
        *out = mapping;
        return SHOAL_OK;
    }
    mapping = calloc(1, sizeof *mapping);
    if (!mapping || !map_put(&ucx->mappings, &key, sizeof key, mapping)) {
        free(mapping);
        memory_unpin(ucx->env.memory, region);
        return error_no_memory(error);
    }
    *mapping = (struct ucx_mapping){.ucx = ucx, .set = set, .region = region, .bounds = bounds, .users = 1};
    list_init(&mapping->waiting);
    if (executor_submit(ucx->mapper, &mapping->task, map_memory, mapping) != SHOAL_OK) {
        map_remove(&ucx->mappings, &key, sizeof key);
        free(mapping);
        memory_unpin(ucx->env.memory, region);
        return error_set(error, SHOAL_LIMIT, 0, "too many memory ranges wait for registration with UCX");
    }
    memory_lend(ucx->env.memory, region);
    ucx_live(ucx, 1);
    list_push_back(&mapping->waiting, &lent->waiting_node);
    *out = mapping;
    return SHOAL_OK;
}

void ucx_mapping_drop(struct ucx_mapping *mapping, struct ucx_lent *lent)
{
    list_remove(&lent->waiting_node);
    if (--mapping->users == 0 && mapping->is_mapped)
        forget(mapping);
}
