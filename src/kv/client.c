/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of shoal/kv.h: checks arguments, makes one set of items of every call and counts what failed. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/pattern.h"
#include "kv/client_internal.h"
#include "transport/device.h"

/* --- open and close --- */

static enum shoal_status check_config(const struct shoal_kv_config *public_config, struct shoal_kv_config *config,
                                      struct shoal_error *error)
{
    if (!public_config || public_config->struct_size < offsetof(struct shoal_kv_config, cluster) ||
        public_config->struct_size > 4096)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "kv config: struct_size is not set");
    memset(config, 0, sizeof *config);
    memcpy(config, public_config,
           public_config->struct_size < sizeof *config ? public_config->struct_size : sizeof *config);
    if (config->client && (config->master || config->tiers))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "kv config: with client, master and tiers are that process's and not given here");
    if (!config->client && (!config->master || !config->master[0]))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "kv config: master or client is required");
    if (config->route_cache_ms < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "kv config: route_cache_ms is negative");
    return SHOAL_OK;
}

enum shoal_status shoal_kv_open(const struct shoal_kv_config *public_config, const struct shoal_call *public_call,
                                struct shoal_kv **kv_out, struct shoal_error *error)
{
    struct shoal_kv_config config;
    struct shoal_kv *kv;
    struct call call;
    enum shoal_status status = check_config(public_config, &config, error);

    if (!status && !kv_out)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "kv_out is required");
    if (!status)
        status = call_init(&call, public_call, KV_CALL_TIMEOUT_MS, error);
    if (status)
        return status;
    kv = calloc(1, sizeof *kv);
    if (!kv)
        return error_no_memory(error);
    status = config.client ? kv_open_thin(kv, &config, &call, error) : kv_open_direct(kv, &config, &call, error);
    if (status) {
        shoal_kv_close(kv);
        return status;
    }
    *kv_out = kv;
    return SHOAL_OK;
}

void shoal_kv_close(struct shoal_kv *kv)
{
    if (!kv)
        return;
    if (kv->ops)
        kv->ops->close(kv);
    free(kv->address);
    free(kv);
}

const char *shoal_kv_address(const struct shoal_kv *kv)
{
    return kv && kv->address ? kv->address : "";
}

/* --- memory --- */

static enum shoal_status check_kv(const struct shoal_kv *kv, struct shoal_error *error)
{
    return kv ? SHOAL_OK : error_set(error, SHOAL_INVALID_ARGUMENT, 0, "kv is NULL");
}

enum shoal_status shoal_kv_alloc(struct shoal_kv *kv, uint64_t len_bytes, void **memory_out, struct shoal_error *error)
{
    enum shoal_status status = check_kv(kv, error);

    if (!status && !memory_out)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "memory_out is required");
    return status ? status : kv->ops->alloc(kv, len_bytes, memory_out, error);
}

void shoal_kv_free(struct shoal_kv *kv, void *memory)
{
    if (kv && memory)
        kv->ops->free(kv, memory);
}

enum shoal_status shoal_kv_register(struct shoal_kv *kv, void *addr, uint64_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = check_kv(kv, error);

    return status ? status : kv->ops->register_memory(kv, addr, len_bytes, error);
}

enum shoal_status shoal_kv_unregister(struct shoal_kv *kv, void *addr, uint64_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = check_kv(kv, error);

    return status ? status : kv->ops->unregister_memory(kv, addr, len_bytes, error);
}

/* --- sets --- */

static void keep_failure(struct kv_set *set, size_t index, enum shoal_status status, const struct shoal_error *error)
{
    mutex_lock(&set->mutex);
    if (index < set->failed_index) {
        set->failed_index = index;
        if (error) {
            set->failure = *error;
            set->failure.status = status;
        } else {
            error_set(&set->failure, status, 0, "%s", shoal_status_text(status));
        }
    }
    mutex_unlock(&set->mutex);
}

void kv_set_end(struct kv_set *set, size_t index, enum shoal_status status, const struct shoal_error *error)
{
    set->items[index].status = status;
    if (status)
        keep_failure(set, index, status, error);
}

void kv_set_end_all(struct kv_set *set, enum shoal_status status, const struct shoal_error *error)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].status == KV_PENDING)
            kv_set_end(set, i, status, error);
}

static enum shoal_status check_key(const char *key, struct shoal_error *error)
{
    size_t len = key ? strnlen(key, SHOAL_KV_KEY_MAX_BYTES + 1) : 0;

    if (!key)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "key is NULL");
    if (len == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "key is empty");
    if (len > SHOAL_KV_KEY_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "key is longer than %d bytes", SHOAL_KV_KEY_MAX_BYTES);
    return SHOAL_OK;
}

enum data_rule { DATA_NONE, DATA_SET_BY_CALL, DATA_GIVEN };

/* Items that cannot be done end here, alone; an error is one of the whole call. On success kv_set_finish follows. */
static enum shoal_status set_begin(struct kv_set *set, struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                   enum data_rule rule, const struct shoal_call *public_call, struct call *call,
                                   struct shoal_error *error)
{
    enum shoal_status status = check_kv(kv, error);

    if (!status && !items && count)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "items is NULL");
    if (!status && count > SHOAL_KV_BATCH_MAX)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu items, at most %d", count, SHOAL_KV_BATCH_MAX);
    if (!status)
        status = call_init(call, public_call, KV_CALL_TIMEOUT_MS, error);
    if (status)
        return status;
    set->kv = kv;
    set->items = items;
    set->count = set->failed_index = count; /* failure is set with the first one: it is large */
    set->call = call;
    if (rule != DATA_NONE && count == 1)
        status = call_progress_init(call, &set->progress, public_call, error);
    if (status)
        return status;
    mutex_init(&set->mutex, RANK_KV);
    for (size_t i = 0; i < count; i++) {
        struct shoal_error why;
        unsigned gpu;

        items[i].status = KV_PENDING;
        if (rule == DATA_SET_BY_CALL)
            items[i].data = NULL;
        if (check_key(items[i].key, &why)) {
            kv_set_end(set, i, SHOAL_INVALID_ARGUMENT, &why);
        } else if (rule == DATA_GIVEN && !items[i].data && items[i].len_bytes) {
            error_set(&why, SHOAL_INVALID_ARGUMENT, 0, "memory of %llu bytes is NULL",
                      (unsigned long long)items[i].len_bytes);
            kv_set_end(set, i, SHOAL_INVALID_ARGUMENT, &why);
        } else if (rule == DATA_GIVEN && items[i].len_bytes && device_is_device_memory(items[i].data, &gpu)) {
            error_set(&why, SHOAL_INVALID_ARGUMENT, 0,
                      "%p is memory of cuda:%u: values come from and go to host memory", items[i].data, gpu);
            kv_set_end(set, i, SHOAL_INVALID_ARGUMENT, &why);
        }
        if (rule == DATA_SET_BY_CALL)
            items[i].len_bytes = 0;
    }
    return SHOAL_OK;
}

/* Unless the message names the key already: that of an owner or of the session may. */
static void prefix_key(struct shoal_error *error, const char *key)
{
    char name[80];

    if (!key || !*key)
        return;
    snprintf(name, sizeof name, "key '%.64s", key);
    if (!strstr(error->message, name))
        error_prefix(error, "%s%s'", name, strnlen(key, 65) > 64 ? "..." : "");
}

static enum shoal_status set_finish(struct kv_set *set, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    if (set->failed_index < set->count) {
        status = set->failure.status;
        prefix_key(&set->failure, set->items[set->failed_index].key);
        error_copy(error, &set->failure);
    }
    mutex_release(&set->mutex);
    call_progress_end(set->call, status == SHOAL_OK);
    return status;
}

/* --- put --- */

static enum shoal_status make_plan(const struct shoal_kv_put_options *options, struct kv_put_plan *plan,
                                   struct shoal_error *error)
{
    *plan = (struct kv_put_plan){.replicas = 1};
    if (!options)
        return SHOAL_OK;
    if (options->struct_size < sizeof *options)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "put options: struct_size is %zu, want %zu",
                         options->struct_size, sizeof *options);
    if (options->replicas > KV_REPLICAS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "put options: %u replicas, at most %d", options->replicas,
                         KV_REPLICAS_MAX);
    if (options->prefer && !options->prefer[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "put options: prefer is empty");
    if (options->replicas)
        plan->replicas = options->replicas;
    plan->prefer = options->prefer;
    return SHOAL_OK;
}

enum shoal_status shoal_kv_put_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                     const struct shoal_kv_put_options *options, const struct shoal_call *public_call,
                                     struct shoal_error *error)
{
    struct kv_put_plan plan;
    struct kv_set set;
    struct call call;
    enum shoal_status status = make_plan(options, &plan, error);

    if (!status)
        status = set_begin(&set, kv, items, count, DATA_GIVEN, public_call, &call, error);
    if (status)
        return status;
    if (count == 1)
        call_progress_set_total(&call, items->len_bytes * plan.replicas);
    kv->ops->put(&set, &plan);
    return set_finish(&set, error);
}

enum shoal_status shoal_kv_put(struct shoal_kv *kv, const char *key, const void *data, uint64_t len_bytes,
                               const struct shoal_kv_put_options *options, const struct shoal_call *call,
                               struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key, .data = (void *)(uintptr_t)data, .len_bytes = len_bytes};

    return shoal_kv_put_batch(kv, &item, 1, options, call, error);
}

/* --- get --- */

/* Small values are there before anybody has asked how long they are. */
static void tell_length(const struct kv_set *set)
{
    if (set->count == 1 && set->items->status == SHOAL_OK)
        call_progress_set_total(set->call, set->items->len_bytes);
}

enum shoal_status shoal_kv_get_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                     const struct shoal_call *public_call, struct shoal_error *error)
{
    struct kv_set set;
    struct call call;
    enum shoal_status status = set_begin(&set, kv, items, count, DATA_SET_BY_CALL, public_call, &call, error);

    if (status)
        return status;
    kv->ops->get(&set, true);
    tell_length(&set);
    return set_finish(&set, error);
}

enum shoal_status shoal_kv_get(struct shoal_kv *kv, const char *key, const struct shoal_call *call, void **data_out,
                               uint64_t *len_out, struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key};
    enum shoal_status status;

    if (!data_out || !len_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "data_out and len_out are required");
    status = shoal_kv_get_batch(kv, &item, 1, call, error);
    if (status)
        return status;
    *data_out = item.data;
    *len_out = item.len_bytes;
    return SHOAL_OK;
}

enum shoal_status shoal_kv_get_into_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                          const struct shoal_call *public_call, struct shoal_error *error)
{
    struct kv_set set;
    struct call call;
    enum shoal_status status = set_begin(&set, kv, items, count, DATA_GIVEN, public_call, &call, error);

    if (status)
        return status;
    kv->ops->get(&set, false);
    tell_length(&set);
    return set_finish(&set, error);
}

enum shoal_status shoal_kv_get_into(struct shoal_kv *kv, const char *key, void *buffer, uint64_t capacity_bytes,
                                    const struct shoal_call *call, uint64_t *len_out, struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key, .data = buffer, .len_bytes = capacity_bytes};
    enum shoal_status status;

    if (!len_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "len_out is required");
    status = shoal_kv_get_into_batch(kv, &item, 1, call, error);
    if (status == SHOAL_OK || status == SHOAL_LIMIT)
        *len_out = item.len_bytes;
    return status;
}

/* --- size, exist, remove --- */

enum shoal_status shoal_kv_size_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                      const struct shoal_call *public_call, struct shoal_error *error)
{
    struct kv_set set;
    struct call call;
    enum shoal_status status = set_begin(&set, kv, items, count, DATA_NONE, public_call, &call, error);

    if (status)
        return status;
    kv->ops->size(&set);
    return set_finish(&set, error);
}

enum shoal_status shoal_kv_size(struct shoal_kv *kv, const char *key, const struct shoal_call *call, uint64_t *len_out,
                                struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key};
    enum shoal_status status = shoal_kv_size_batch(kv, &item, 1, call, error);

    if (!status && len_out)
        *len_out = item.len_bytes;
    return status;
}

enum shoal_status shoal_kv_exist(struct shoal_kv *kv, const char *key, const struct shoal_call *call, int *exists_out,
                                 struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key};
    struct shoal_error why;
    enum shoal_status status;

    if (!exists_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "exists_out is required");
    status = shoal_kv_size_batch(kv, &item, 1, call, &why);
    if (status && status != SHOAL_NOT_FOUND)
        return error_copy(error, &why);
    *exists_out = status == SHOAL_OK;
    return SHOAL_OK;
}

enum shoal_status shoal_kv_remove_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                        const struct shoal_call *public_call, struct shoal_error *error)
{
    struct kv_set set;
    struct call call;
    enum shoal_status status = set_begin(&set, kv, items, count, DATA_NONE, public_call, &call, error);

    if (status)
        return status;
    kv->ops->remove(&set);
    return set_finish(&set, error);
}

enum shoal_status shoal_kv_remove(struct shoal_kv *kv, const char *key, const struct shoal_call *call,
                                  struct shoal_error *error)
{
    struct shoal_kv_item item = {.key = key};

    return shoal_kv_remove_batch(kv, &item, 1, call, error);
}

static enum shoal_status remove_matching(struct shoal_kv *kv, const char *pattern, const struct shoal_call *public_call,
                                         uint64_t *removed_out, struct shoal_error *error)
{
    uint64_t removed = 0;
    struct call call;
    enum shoal_status status = check_kv(kv, error);

    if (!status)
        status = call_init(&call, public_call, KV_CALL_TIMEOUT_MS, error);
    if (!status)
        status = kv->ops->remove_matching(kv, pattern, &call, &removed, error);
    if (removed_out)
        *removed_out = removed;
    return status;
}

/* The master says the same; here no process has to run for it, and none is asked. */
static enum shoal_status check_pattern(const char *text, struct shoal_error *error)
{
    struct pattern *pattern;
    enum shoal_status status;

    if (!text || !*text)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a pattern has at least one byte");
    status = pattern_create(text, &pattern, error);
    if (!status)
        pattern_destroy(pattern);
    return status;
}

enum shoal_status shoal_kv_remove_matching(struct shoal_kv *kv, const char *pattern, const struct shoal_call *call,
                                           uint64_t *removed_out, struct shoal_error *error)
{
    enum shoal_status status = check_pattern(pattern, error);

    if (!status)
        return remove_matching(kv, pattern, call, removed_out, error);
    if (removed_out)
        *removed_out = 0;
    return status;
}

enum shoal_status shoal_kv_remove_all(struct shoal_kv *kv, const struct shoal_call *call, uint64_t *removed_out,
                                      struct shoal_error *error)
{
    return remove_matching(kv, NULL, call, removed_out, error);
}

/* --- seeing --- */

enum shoal_status shoal_kv_list(struct shoal_kv *kv, const char *pattern, const struct shoal_call *public_call,
                                shoal_kv_list_fn fn, void *arg, struct shoal_error *error)
{
    struct call call;
    enum shoal_status status = check_kv(kv, error);

    if (!status && !fn)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "fn is required");
    if (!status && pattern)
        status = check_pattern(pattern, error);
    if (!status)
        status = call_init(&call, public_call, KV_CALL_TIMEOUT_MS, error);
    return status ? status : kv->ops->list(kv, pattern, &call, fn, arg, error);
}

enum shoal_status shoal_kv_metrics(struct shoal_kv *kv, char **text_out, struct shoal_error *error)
{
    struct buf text;
    enum shoal_status status = check_kv(kv, error);

    if (!status && !text_out)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "text_out is required");
    if (status)
        return status;
    buf_init(&text, KV_METRICS_MAX_BYTES);
    status = kv->ops->metrics(kv, &text, error);
    if (!status && !buf_reserve(&text, 1))
        status = error_no_memory(error);
    if (!status)
        *text_out = (char *)buf_take(&text, NULL);
    buf_release(&text);
    return status;
}

enum shoal_status shoal_kv_status(struct shoal_kv *kv, const struct shoal_call *public_call, char **text_out,
                                  struct shoal_error *error)
{
    struct call call;
    enum shoal_status status = check_kv(kv, error);

    if (!status && !text_out)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "text_out is required");
    if (!status)
        status = call_init(&call, public_call, KV_CALL_TIMEOUT_MS, error);
    return status ? status : kv->ops->status(kv, &call, text_out, error);
}
