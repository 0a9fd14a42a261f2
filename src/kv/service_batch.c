/* SPDX-License-Identifier: Apache-2.0 */
/* Several keys in one request: batch_read, batch_write, query and delete. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

#define TOO_MANY_ITEMS "more than 4096 items in one request"
_Static_assert(KV_BATCH_ITEMS_MAX == 4096, "TOO_MANY_ITEMS names the bound");

static void on_batch_abort(struct rpc_request *request)
{
    struct kv_batch *batch = request->arg;
    struct kv_service *service = batch->service;

    batch->request = NULL;
    service->counters.aborted++;
    batch->pending++; /* it must not go while its jobs end one by one */
    LIST_FOR_EACH_SAFE (job, &service->jobs, struct kv_job, node) {
        if (job->origin.batch == batch)
            kv_job_cancel(job, SHOAL_CANCELED, "the caller's connection was lost");
    }
    kv_batch_item_done(batch);
}

/* NULL: refused. One item is pending: the caller of this function. */
static struct kv_batch *batch_create(struct kv_service *service, struct rpc_request *request, size_t count,
                                     bool is_write)
{
    struct kv_batch *batch;

    if (count > KV_BATCH_ITEMS_MAX) {
        kv_refuse(service, request, SHOAL_LIMIT, TOO_MANY_ITEMS);
        return NULL;
    }
    batch = malloc(sizeof *batch + count * (sizeof batch->answers[0] + sizeof(union kv_item) + sizeof(void *)));
    if (!batch) {
        kv_refuse(service, request, SHOAL_NO_MEMORY, NULL);
        return NULL;
    }
    *batch = (struct kv_batch){.service = service,
                               .request = request,
                               .count = count,
                               .pending = count + 1,
                               .is_write = is_write,
                               .items = &batch->answers[count],
                               .pointers = (union kv_item *)(void *)&batch->answers[count] + count};
    request->on_abort = on_batch_abort;
    request->arg = batch;
    return batch;
}

static struct kv_origin item_origin(const struct kv_origin *whole, struct kv_batch *batch, size_t index)
{
    struct kv_origin origin = *whole;

    origin.request = NULL;
    origin.batch = batch;
    origin.index = index;
    return origin;
}

void kv_on_batch_read(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin whole = kv_origin_of(service, request);
    struct wire_arena arena;
    Shoal__Wire__KvBatchReadRequest *message;
    struct kv_batch *batch;

    wire_arena_init(&arena);
    message = wire_unpack(&shoal__wire__kv_batch_read_request__descriptor, &arena.allocator, request->body_len,
                          request->body);
    if (!message) {
        kv_refuse_unpacked(service, request, &arena, "batch read");
        return;
    }
    batch = batch_create(service, request, message->n_items, false);
    if (batch) {
        for (size_t i = 0; i < message->n_items; i++) {
            struct kv_origin origin = item_origin(&whole, batch, i);
            kv_read(service, &origin, message->items[i], false);
        }
        kv_batch_item_done(batch);
    }
    shoal__wire__kv_batch_read_request__free_unpacked(message, &arena.allocator);
}

void kv_on_batch_write(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin whole = kv_origin_of(service, request);
    struct wire_arena arena;
    Shoal__Wire__KvBatchWriteRequest *message;
    struct kv_batch *batch;

    wire_arena_init(&arena);
    message = wire_unpack(&shoal__wire__kv_batch_write_request__descriptor, &arena.allocator, request->body_len,
                          request->body);
    if (!message) {
        kv_refuse_unpacked(service, request, &arena, "batch write");
        return;
    }
    batch = batch_create(service, request, message->n_items, true);
    if (batch) {
        for (size_t i = 0; i < message->n_items; i++) {
            struct kv_origin origin = item_origin(&whole, batch, i);
            kv_write(service, &origin, message->items[i]);
        }
        kv_batch_item_done(batch);
    }
    shoal__wire__kv_batch_write_request__free_unpacked(message, &arena.allocator);
}

/* --- query --- */

static void query_one(struct kv_service *service, const char *key, Shoal__Wire__KvQueryResponse__Item *item)
{
    struct tier_object *object;

    shoal__wire__kv_query_response__item__init(item);
    item->status = kv_check_key(key, NULL);
    if (!item->status)
        item->status = tier_get(service->backend, key, &object);
    if (item->status)
        return;
    item->object_id = tier_object_id(object);
    item->len_bytes = tier_object_len(object);
    item->tier = tier_object_tier(object);
    tier_object_unref(object);
}

void kv_on_query(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    Shoal__Wire__KvQueryRequest *message;
    Shoal__Wire__KvQueryResponse response = SHOAL__WIRE__KV_QUERY_RESPONSE__INIT;
    Shoal__Wire__KvQueryResponse__Item *items = NULL, **pointers = NULL;

    kv_origin_of(service, request);
    message = wire_unpack(&shoal__wire__kv_query_request__descriptor, NULL, request->body_len, request->body);
    if (!message) {
        kv_refuse_malformed(service, request, "query");
        return;
    }
    if (message->n_keys > KV_BATCH_ITEMS_MAX) {
        kv_refuse(service, request, SHOAL_LIMIT, TOO_MANY_ITEMS);
        goto out;
    }
    items = calloc(message->n_keys + 1, sizeof *items);
    pointers = calloc(message->n_keys + 1, sizeof *pointers);
    if (!items || !pointers) {
        kv_refuse(service, request, SHOAL_NO_MEMORY, NULL);
        goto out;
    }
    for (size_t i = 0; i < message->n_keys; i++) {
        query_one(service, message->keys[i], &items[i]);
        pointers[i] = &items[i];
    }
    response.n_items = message->n_keys;
    response.items = pointers;
    kv_reply(service, request, &response.base);
out:
    free(pointers);
    free(items);
    shoal__wire__kv_query_request__free_unpacked(message, NULL);
}

/* --- delete --- */

/* On a worker: the index of a STORAGE tier is on disk. */
static void delete_items(struct kv_job *job)
{
    const Shoal__Wire__KvDeleteRequest *deletion = job->deletion;

    for (size_t i = 0; i < deletion->n_items; i++) {
        const Shoal__Wire__KvDeleteRequest__Item *item = deletion->items[i];
        enum shoal_status status = kv_check_key(item->key, NULL);

        if (!status && atomic_load_explicit(&job->is_canceled, memory_order_relaxed))
            status = SHOAL_CANCELED;
        if (!status)
            status = data_manager_delete(job->service->manager, item->key, item->object_id, NULL);
        job->statuses[i] = status;
    }
}

static void on_deleted(struct kv_job *job)
{
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    kv_job_settle(job);
}

static void deletion_ended(struct kv_job *job)
{
    Shoal__Wire__KvDeleteResponse response = SHOAL__WIRE__KV_DELETE_RESPONSE__INIT;

    if (job->status || !job->origin.request) {
        kv_job_answer_failure(job);
    } else {
        response.n_statuses = job->deletion->n_items;
        response.statuses = job->statuses;
        kv_reply(job->service, job->origin.request, &response.base);
    }
    kv_job_free(job);
}

void kv_on_delete(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin origin = kv_origin_of(service, request);
    Shoal__Wire__KvDeleteRequest *message =
        wire_unpack(&shoal__wire__kv_delete_request__descriptor, NULL, request->body_len, request->body);
    struct kv_job *job = NULL;

    if (!message) {
        kv_refuse_malformed(service, request, "delete");
        return;
    }
    if (message->n_items > KV_BATCH_ITEMS_MAX)
        kv_refuse(service, request, SHOAL_LIMIT, TOO_MANY_ITEMS);
    else
        job = kv_job_create(service, &origin, deletion_ended);
    if (!job) {
        shoal__wire__kv_delete_request__free_unpacked(message, NULL);
        return;
    }
    job->deletion = message;
    job->statuses = calloc(message->n_items + 1, sizeof *job->statuses);
    if (!job->statuses) {
        kv_job_fail(job, SHOAL_NO_MEMORY, NULL);
        kv_job_settle(job);
        return;
    }
    kv_job_work(job, delete_items, on_deleted);
}
