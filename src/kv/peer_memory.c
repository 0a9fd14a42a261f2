/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the caller while an owner reads or writes it. What ends the exposure is the fence: afterwards its key is
 * worth nothing, whatever the owner still has on its way. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/peer_internal.h"

enum neighbour { NEIGHBOUR_NONE, NEIGHBOUR_SAME, NEIGHBOUR_OVERLAPS };

/* With the mutex. What another transfer has registered goes with that transfer, so nobody builds on it, except for the
 * very same range, which the engine counts. */
static enum neighbour find_neighbour(const struct peers *peers, const struct exposure *exposure)
{
    uint64_t start = (uint64_t)(uintptr_t)exposure->memory;
    enum neighbour found = NEIGHBOUR_NONE;

    LIST_FOR_EACH (other, &peers->exposures, struct exposure, node) {
        uint64_t other_start = (uint64_t)(uintptr_t)other->memory;

        if (start >= other_start + other->len_bytes || other_start >= start + exposure->len_bytes)
            continue;
        if (other->is_closing || start != other_start || exposure->len_bytes != other->len_bytes ||
            exposure->access != other->access)
            return NEIGHBOUR_OVERLAPS;
        found = NEIGHBOUR_SAME;
    }
    return found;
}

/* With the mutex. */
static enum shoal_status register_memory(struct peers *peers, struct exposure *exposure, struct shoal_error *error)
{
    enum shoal_status status = shoal_engine_register_memory(peers->engine, exposure->memory, exposure->len_bytes, NULL,
                                                            exposure->access, &exposure->key, error);

    if (status == SHOAL_OK) {
        exposure->is_registered = true;
        list_push_back(&peers->exposures, &exposure->node);
    }
    return status;
}

/* ADDRESS_OVERLAPPED: it cannot be done where it lies. */
static enum shoal_status expose_in_place(struct peers *peers, struct exposure *exposure, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_ADDRESS_OVERLAPPED;
    enum neighbour neighbour;

    mutex_lock(&peers->mutex);
    neighbour = find_neighbour(peers, exposure);
    if (neighbour == NEIGHBOUR_NONE) {
        status = engine_window_open(peers->engine, exposure->memory, exposure->len_bytes, exposure->access,
                                    &exposure->key, error);
        if (status == SHOAL_INVALID_ARGUMENT) /* not inside registered memory */
            neighbour = NEIGHBOUR_SAME;
    }
    if (neighbour == NEIGHBOUR_SAME)
        status = register_memory(peers, exposure, error);
    mutex_unlock(&peers->mutex);
    return status;
}

enum shoal_status exposure_open(struct peers *peers, void *memory, uint64_t len_bytes, unsigned access,
                                struct exposure *exposure, struct shoal_error *error)
{
    enum shoal_status status;

    *exposure = (struct exposure){.memory = memory, .target = memory, .len_bytes = len_bytes, .access = access};
    status = expose_in_place(peers, exposure, error);
    if (status != SHOAL_ADDRESS_OVERLAPPED)
        return status;
    exposure->bounce = malloc(len_bytes);
    if (!exposure->bounce)
        return error_no_memory(error);
    exposure->memory = exposure->bounce;
    if (!(access & SHOAL_ACCESS_REMOTE_WRITE))
        memcpy(exposure->bounce, memory, len_bytes);
    mutex_lock(&peers->mutex);
    status = register_memory(peers, exposure, error);
    mutex_unlock(&peers->mutex);
    if (status)
        free(exposure->bounce);
    return status;
}

void exposure_close(struct peers *peers, struct exposure *exposure, uint64_t used_bytes)
{
    if (exposure->is_registered) {
        mutex_lock(&peers->mutex);
        exposure->is_closing = true;
        mutex_unlock(&peers->mutex);
        (void)shoal_engine_unregister_memory(peers->engine, exposure->memory, exposure->len_bytes, NULL);
        mutex_lock(&peers->mutex);
        list_remove(&exposure->node);
        mutex_unlock(&peers->mutex);
    } else {
        engine_window_close(peers->engine, exposure->key);
    }
    if (exposure->bounce && used_bytes)
        memcpy(exposure->target, exposure->bounce, used_bytes);
    free(exposure->bounce);
    exposure->bounce = NULL;
}

void exposure_describe(const struct peers *peers, const struct exposure *exposure, Shoal__Wire__KvMemory *out)
{
    shoal__wire__kv_memory__init(out);
    out->addr = (uint64_t)(uintptr_t)exposure->memory;
    out->len_bytes = exposure->len_bytes;
    out->key = exposure->key;
    out->server_name = (char *)(uintptr_t)shoal_engine_server_name(peers->engine);
    out->address = (char *)(uintptr_t)engine_address(peers->engine);
    out->instance = engine_instance(peers->engine);
}

size_t exposure_message_bytes(const struct peers *peers)
{
    return PEER_MEMORY_OVERHEAD_BYTES + strlen(shoal_engine_server_name(peers->engine)) +
           strlen(engine_address(peers->engine));
}
