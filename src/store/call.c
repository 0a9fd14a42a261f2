/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "store/store_internal.h"

static void trigger(void *arg)
{
    shoal_cancel_trigger(arg);
}

enum shoal_status store_call_begin(struct store_call *store_call, struct shoal_store *store,
                                   const struct shoal_call *call, int64_t default_timeout_ms, struct shoal_error *error)
{
    enum shoal_status status;

    *store_call = (struct store_call){.store = store};
    if (!store)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "store is NULL");
    status = call_init(&store_call->call, call, default_timeout_ms, error);
    if (status)
        return status;
    store_call->user_cancel = store_call->call.cancel;
    if (shoal_cancel_create(&store_call->call.cancel))
        return error_no_memory(error);
    mutex_lock(&store->mutex);
    if (store->is_closing) {
        mutex_unlock(&store->mutex);
        shoal_cancel_destroy(store_call->call.cancel);
        return error_set(error, SHOAL_CLOSED, 0, "the store is closing");
    }
    list_push_back(&store->calls, &store_call->node);
    mutex_unlock(&store->mutex);
    cancel_hook_add(store_call->user_cancel, &store_call->user_hook, trigger, store_call->call.cancel);
    return SHOAL_OK;
}

void store_call_end(struct store_call *store_call)
{
    struct shoal_store *store = store_call->store;

    cancel_hook_remove(store_call->user_cancel, &store_call->user_hook);
    mutex_lock(&store->mutex);
    list_remove(&store_call->node);
    shoal_cancel_destroy(store_call->call.cancel);
    if (list_is_empty(&store->calls))
        cond_broadcast(&store->idle);
    mutex_unlock(&store->mutex);
}
