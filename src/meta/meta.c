/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "meta/meta_ops.h"

#define LIST_DEFAULT_LIMIT 100000

/* --- helpers for backends ------------------------------------------------------------------------------------------
 */

void meta_init(struct meta *meta, const struct meta_ops *ops)
{
    meta->ops = ops;
    mutex_init(&meta->lock, RANK_META);
    list_init(&meta->watches);
}

void meta_release(struct meta *meta)
{
    mutex_release(&meta->lock);
}

enum shoal_status meta_call_check(const struct meta *meta, const struct call *call, const char *what,
                                  struct shoal_error *error)
{
    char context[sizeof meta->where + 64];

    snprintf(context, sizeof context, "metadata %s: %s", what, meta->where);
    return call_check(call, error, context);
}

static void count(atomic_uint_fast64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

void meta_count_request(struct meta *meta, enum meta_request_kind kind, uint64_t sent_bytes)
{
    struct meta_atomic_counters *counters = &meta->counters;
    switch (kind) {
    case META_REQUEST_GET:
        count(&counters->gets, 1);
        break;
    case META_REQUEST_LIST:
        count(&counters->lists, 1);
        break;
    case META_REQUEST_TXN:
        count(&counters->txns, 1);
        break;
    case META_REQUEST_LEASE:
        count(&counters->lease_calls, 1);
        break;
    case META_REQUEST_WATCH:
        count(&counters->watches, 1);
        break;
    case META_REQUEST_OTHER:
        break;
    }
    count(&counters->bytes_sent, sent_bytes);
    uint_fast64_t largest = atomic_load_explicit(&counters->largest_request_bytes, memory_order_relaxed);
    while (largest < sent_bytes &&
           !atomic_compare_exchange_weak_explicit(&counters->largest_request_bytes, &largest, sent_bytes,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void meta_count_received(struct meta *meta, uint64_t received_bytes)
{
    count(&meta->counters.bytes_received, received_bytes);
}

void meta_count_retry(struct meta *meta)
{
    count(&meta->counters.retries, 1);
}

static enum shoal_status finish(struct meta *meta, enum shoal_status status)
{
    if (status != SHOAL_OK)
        count(&meta->counters.failures, 1);
    return status;
}

static char *copy_bytes(const void *data, size_t len)
{
    char *copy = malloc(len + 1);
    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, data, len);
    copy[len] = '\0';
    return copy;
}

bool meta_entry_init(struct meta_entry *entry, const void *key, size_t key_len, const void *value, size_t value_len)
{
    *entry = (struct meta_entry){.key = copy_bytes(key, key_len),
                                 .key_len = key_len,
                                 .value = copy_bytes(value, value_len),
                                 .value_len = value_len};
    if (entry->key && entry->value)
        return true;
    meta_entry_release(entry);
    return false;
}

void meta_entry_release(struct meta_entry *entry)
{
    free(entry->key);
    free(entry->value);
    *entry = (struct meta_entry){0};
}

bool meta_entries_push(struct meta_entries *entries, size_t *capacity, const struct meta_entry *entry)
{
    if (entries->count == *capacity) {
        size_t more = *capacity ? *capacity * 2 : 16;
        struct meta_entry *items = reallocarray(entries->items, more, sizeof *items);
        if (!items)
            return false;
        entries->items = items;
        *capacity = more;
    }
    entries->items[entries->count++] = *entry;
    return true;
}

void meta_entries_release(struct meta_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++)
        meta_entry_release(&entries->items[i]);
    free(entries->items);
    *entries = (struct meta_entries){0};
}

void meta_prefix_end(struct meta_bytes prefix, uint8_t *end_out, size_t *end_len_out, bool *is_end_out)
{
    const uint8_t *bytes = prefix.data;
    size_t len = prefix.len;
    while (len && bytes[len - 1] == 0xff)
        len--;
    *is_end_out = len == 0;
    *end_len_out = len;
    if (!len)
        return;
    memcpy(end_out, bytes, len);
    end_out[len - 1]++;
}

bool meta_bytes_has_prefix(const void *data, size_t len, struct meta_bytes prefix)
{
    return len >= prefix.len && (prefix.len == 0 || memcmp(data, prefix.data, prefix.len) == 0);
}

/* --- argument checks -----------------------------------------------------------------------------------------------
 */

static enum shoal_status check_key(struct meta_bytes key, struct shoal_error *error)
{
    if (key.len == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata key is empty");
    if (key.len > META_KEY_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata key of %zu bytes: at most %d are allowed", key.len,
                         META_KEY_MAX_BYTES);
    return SHOAL_OK;
}

static enum shoal_status check_prefix(struct meta_bytes prefix, struct shoal_error *error)
{
    return prefix.len ? check_key(prefix, error) : SHOAL_OK;
}

static enum shoal_status check_op(const struct meta_op *op, struct shoal_error *error)
{
    if (op->kind == META_DELETE_PREFIX)
        return check_prefix(op->key, error);
    enum shoal_status status = check_key(op->key, error);
    if (status != SHOAL_OK)
        return status;
    if (op->kind == META_PUT && op->value.len > META_VALUE_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata value of %zu bytes: at most %u are allowed",
                         op->value.len, META_VALUE_MAX_BYTES);
    if (op->kind == META_PUT && op->lease < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata lease id is negative");
    return SHOAL_OK;
}

/* etcd refuses a transaction that changes one key twice; so do we, on every backend. */
static bool is_conflict(const struct meta_op *put, const struct meta_op *other)
{
    if (other->kind == META_DELETE_PREFIX)
        return meta_bytes_has_prefix(put->key.data, put->key.len, other->key);
    return put->key.len == other->key.len && memcmp(put->key.data, other->key.data, put->key.len) == 0;
}

static enum shoal_status check_txn(const struct meta_compare *compares, size_t compare_count, const struct meta_op *ops,
                                   size_t op_count, struct shoal_error *error)
{
    if (compare_count > META_TXN_MAX_OPS || op_count > META_TXN_MAX_OPS)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata transaction with %zu compares and %zu operations: at most %d each are allowed",
                         compare_count, op_count, META_TXN_MAX_OPS);
    enum shoal_status status;
    size_t total = 0;
    for (size_t i = 0; i < compare_count; i++) {
        const struct meta_compare *compare = &compares[i];
        status =
            compare->kind == META_PREFIX_ABSENT ? check_prefix(compare->key, error) : check_key(compare->key, error);
        if (status != SHOAL_OK)
            return status;
        if (compare->kind == META_MOD_REVISION_IS && compare->revision <= 0)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata compare with a revision that is not positive");
        total += compare->key.len;
    }
    for (size_t i = 0; i < op_count; i++) {
        status = check_op(&ops[i], error);
        if (status != SHOAL_OK)
            return status;
        total += ops[i].key.len + (ops[i].kind == META_PUT ? ops[i].value.len : 0);
        if (ops[i].kind != META_PUT)
            continue;
        for (size_t k = 0; k < op_count; k++)
            if (k != i && is_conflict(&ops[i], &ops[k]))
                return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                                 "metadata transaction changes the key \"%.*s\" twice", (int)ops[i].key.len,
                                 (const char *)ops[i].key.data);
    }
    if (total > META_TXN_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata transaction with %zu bytes of keys and values: at most %u are allowed", total,
                         META_TXN_MAX_BYTES);
    return SHOAL_OK;
}

/* --- the interface -------------------------------------------------------------------------------------------------
 */

enum shoal_status meta_open(const char *uri, struct meta **meta_out, struct shoal_error *error)
{
    if (!uri || !*uri)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI is empty");
    if (strncmp(uri, "sqlite:", 7) == 0)
        return meta_sqlite_open(uri + 7, meta_out, error);
    if (strncmp(uri, "etcd://", 7) == 0)
        return meta_etcd_open(uri + 7, false, meta_out, error);
    if (strncmp(uri, "etcds://", 8) == 0)
        return meta_etcd_open(uri + 8, true, meta_out, error);
    const char *scheme_end = strstr(uri, "://");
    if (scheme_end)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata URI \"%.200s\": unknown scheme \"%.*s\"; use sqlite:PATH, etcd://HOST:PORT[,...], "
                         "etcds://HOST:PORT[,...] or HOST:PORT",
                         uri, (int)(scheme_end - uri < 40 ? scheme_end - uri : 40), uri);
    if (!strchr(uri, ':'))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata URI \"%.200s\" has neither scheme nor port; use sqlite:PATH, etcd://HOST:PORT[,...] "
                         "or HOST:PORT",
                         uri);
    return meta_etcd_open(uri, false, meta_out, error);
}

void meta_close(struct meta *meta)
{
    if (!meta)
        return;
    for (;;) {
        mutex_lock(&meta->lock);
        struct list_node *node = list_pop_front(&meta->watches);
        mutex_unlock(&meta->lock);
        if (!node)
            break;
        meta->ops->watch_close(container_of(node, struct meta_watch, node));
    }
    meta->ops->close(meta);
}

const char *meta_backend_name(const struct meta *meta)
{
    return meta->ops->name;
}

enum shoal_status meta_get(struct meta *meta, struct meta_bytes key, const struct call *call, bool *is_found_out,
                           struct meta_entry *entry_out, struct shoal_error *error)
{
    assert(call && is_found_out && entry_out);
    enum shoal_status status = check_key(key, error);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "get", error);
    if (status == SHOAL_OK)
        status = meta->ops->get(meta, key, call, is_found_out, entry_out, error);
    return finish(meta, status);
}

enum shoal_status meta_list(struct meta *meta, struct meta_bytes prefix, size_t limit, const struct call *call,
                            struct meta_entries *entries_out, struct shoal_error *error)
{
    assert(call && entries_out);
    enum shoal_status status = check_prefix(prefix, error);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "list", error);
    if (status == SHOAL_OK)
        status = meta->ops->list(meta, prefix, limit ? limit : LIST_DEFAULT_LIMIT, call, entries_out, error);
    return finish(meta, status);
}

enum shoal_status meta_txn(struct meta *meta, const struct meta_compare *compares, size_t compare_count,
                           const struct meta_op *ops, size_t op_count, const struct call *call, bool *is_applied_out,
                           int64_t *revision_out, struct shoal_error *error)
{
    assert(call && is_applied_out);
    int64_t revision = 0;
    enum shoal_status status = check_txn(compares, compare_count, ops, op_count, error);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "transaction", error);
    if (status == SHOAL_OK)
        status = meta->ops->txn(meta, compares, compare_count, ops, op_count, call, is_applied_out, &revision, error);
    if (status == SHOAL_OK && revision_out)
        *revision_out = revision;
    return finish(meta, status);
}

enum shoal_status meta_lease_grant(struct meta *meta, int64_t ttl_ms, const struct call *call, int64_t *lease_out,
                                   struct shoal_error *error)
{
    assert(call && lease_out);
    enum shoal_status status = SHOAL_OK;
    if (ttl_ms < 1 || ttl_ms > META_LEASE_MAX_MS)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata lease of %lld ms: 1 to %lld are allowed",
                           (long long)ttl_ms, (long long)META_LEASE_MAX_MS);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "lease grant", error);
    if (status == SHOAL_OK)
        status = meta->ops->lease_grant(meta, ttl_ms, call, lease_out, error);
    return finish(meta, status);
}

static enum shoal_status check_lease(int64_t lease, struct shoal_error *error)
{
    return lease > 0 ? SHOAL_OK : error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata lease id is not positive");
}

enum shoal_status meta_lease_keep_alive(struct meta *meta, int64_t lease, const struct call *call,
                                        struct shoal_error *error)
{
    assert(call);
    enum shoal_status status = check_lease(lease, error);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "lease keep-alive", error);
    if (status == SHOAL_OK)
        status = meta->ops->lease_keep_alive(meta, lease, call, error);
    return finish(meta, status);
}

enum shoal_status meta_lease_revoke(struct meta *meta, int64_t lease, const struct call *call,
                                    struct shoal_error *error)
{
    assert(call);
    enum shoal_status status = check_lease(lease, error);
    if (status == SHOAL_OK)
        status = meta_call_check(meta, call, "lease revoke", error);
    if (status == SHOAL_OK)
        status = meta->ops->lease_revoke(meta, lease, call, error);
    return finish(meta, status);
}

enum shoal_status meta_watch(struct meta *meta, struct meta_bytes prefix, int64_t from_revision, meta_watch_fn fn,
                             void *arg, struct meta_watch **watch_out, struct shoal_error *error)
{
    assert(fn && watch_out);
    enum shoal_status status = check_prefix(prefix, error);
    if (status == SHOAL_OK && from_revision < 0)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata watch from a negative revision");
    struct meta_watch *watch = NULL;
    if (status == SHOAL_OK)
        status = meta->ops->watch_open(meta, prefix, from_revision, fn, arg, &watch, error);
    if (status == SHOAL_OK) {
        watch->meta = meta;
        mutex_lock(&meta->lock);
        list_push_back(&meta->watches, &watch->node);
        mutex_unlock(&meta->lock);
        *watch_out = watch;
    }
    return finish(meta, status);
}

void meta_watch_close(struct meta_watch *watch)
{
    if (!watch)
        return;
    struct meta *meta = watch->meta;
    mutex_lock(&meta->lock);
    list_remove(&watch->node);
    mutex_unlock(&meta->lock);
    meta->ops->watch_close(watch);
}

void meta_counters(const struct meta *meta, struct meta_counters *counters_out)
{
    const struct meta_atomic_counters *from = &meta->counters;
#define LOAD(name) .name = atomic_load_explicit(&from->name, memory_order_relaxed)
    *counters_out = (struct meta_counters){
        LOAD(gets),    LOAD(lists),      LOAD(txns),           LOAD(lease_calls),
        LOAD(watches), LOAD(bytes_sent), LOAD(bytes_received), LOAD(largest_request_bytes),
        LOAD(retries), LOAD(failures),
    };
#undef LOAD
}

enum shoal_status meta_ping(struct meta *meta, const struct call *call, struct meta_health *health_out,
                            struct shoal_error *error)
{
    assert(call && health_out);
    struct meta_health health = {.has_clock = false};
    int64_t start_ns = clock_now_ns();
    enum shoal_status status = meta_call_check(meta, call, "ping", error);
    if (status == SHOAL_OK)
        status = meta->ops->ping(meta, call, &health, error);
    if (status == SHOAL_OK) {
        health.rtt_us = (clock_now_ns() - start_ns) / 1000;
        *health_out = health;
    }
    return finish(meta, status);
}
