/* SPDX-License-Identifier: Apache-2.0 */
/* Methods pre_write, write_commit, write_revoke, unpin and renew. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

/* Where a peer may WRITE, by a key of its own: when the lease ends the key ends with it, so that a peer that comes late
 * cannot write into the next object there. */
struct kv_window {
    struct kv_service *service;
    uint64_t key;
    struct tier_allocation *allocation; /* owned while the window is being fenced */
    struct executor_task executor_task;
    struct loop_task loop_task;
};

void kv_window_close(struct kv_window *window)
{
    if (!window)
        return;
    engine_window_close(window->service->engine, window->key);
    free(window);
}

static void on_fenced(void *arg)
{
    struct kv_window *window = arg;
    struct kv_service *service = window->service;

    tier_allocation_drop(window->allocation);
    free(window);
    service->fences--;
    kv_check_idle(service);
}

static void fence(void *arg, bool is_canceled)
{
    struct kv_window *window = arg;

    (void)is_canceled; /* the memory may not be given back without */
    engine_window_close(window->service->engine, window->key);
    loop_post(window->service->loop, &window->loop_task, on_fenced, window);
}

/* Gives the allocation back when nobody can write to it any more. */
static void fence_and_drop(struct kv_service *service, struct kv_window *window, struct tier_allocation *allocation)
{
    window->allocation = allocation;
    service->fences++;
    /* The queue has room for the windows of all leases. */
    if (executor_submit(service->executor, &window->executor_task, fence, window))
        service->fences--; /* leaks the space rather than somebody's object */
}

enum shoal_status kv_lease_add(struct kv_service *service, const struct kv_origin *origin,
                               const struct lease_holding *holding, uint64_t *id_out, struct shoal_error *error)
{
    const char *peer = kv_origin_peer(origin);
    struct lease_holding counted = *holding;
    enum shoal_status status;

    /* A chunk in a staging buffer keeps nothing in the tiers. */
    if (holding->object)
        counted.len_bytes = tier_object_len(holding->object);
    else if (holding->allocation)
        counted.len_bytes = tier_allocation_len(holding->allocation);
    if (!peer || service->is_stopping)
        return error_set(error, SHOAL_CANCELED, 0, "the caller or the owner is leaving");
    status = leases_add(&service->leases, peer, &counted, clock_now_ms(), id_out, error);
    if (!status)
        kv_arm(service);
    else if (status == SHOAL_LIMIT)
        service->counters.limited++;
    return status;
}

void kv_lease_release(void *arg, const struct lease_holding *holding)
{
    struct kv_service *service = arg;

    tier_object_unref(holding->object);
    if (holding->staging) {
        tier_staging_give(service->backend, holding->staging);
        kv_kick(service);
    }
    if (holding->window)
        fence_and_drop(service, holding->window, holding->allocation);
    else
        tier_allocation_drop(holding->allocation);
}

/* --- pre_write --- */

static enum shoal_status open_window(struct kv_service *service, struct tier_allocation *allocation, uint64_t len_bytes,
                                     struct kv_window **window_out, struct shoal_error *error)
{
    struct kv_window *window;
    enum shoal_status status;

    if (!len_bytes) {
        *window_out = NULL;
        return SHOAL_OK;
    }
    window = calloc(1, sizeof *window);
    if (!window)
        return error_no_memory(error);
    window->service = service;
    status = engine_window_open(service->engine, tier_allocation_data(allocation), len_bytes, SHOAL_ACCESS_REMOTE_WRITE,
                                &window->key, error);
    if (status)
        free(window);
    else
        *window_out = window;
    return status;
}

static void pre_write(struct kv_service *service, struct rpc_request *request, const struct kv_origin *origin,
                      const Shoal__Wire__KvPreWriteRequest *message)
{
    Shoal__Wire__KvPreWriteResponse response = SHOAL__WIRE__KV_PRE_WRITE_RESPONSE__INIT;
    Shoal__Wire__KvMemory memory = SHOAL__WIRE__KV_MEMORY__INIT;
    struct lease_holding holding = {.kind = LEASE_WRITE, .object_id = message->object_id};
    struct shoal_error error;
    enum shoal_status status = kv_check_key(message->key, &error);

    if (!status)
        status = tier_allocate(service->backend, message->key, message->len_bytes, true, &holding.allocation, &error);
    if (status)
        goto refuse;
    status = open_window(service, holding.allocation, message->len_bytes, &holding.window, &error);
    if (status)
        goto drop;
    status = kv_lease_add(service, origin, &holding, &response.lease_id, &error);
    if (status)
        goto close;
    if (holding.window) {
        memory.addr = (uint64_t)(uintptr_t)tier_allocation_data(holding.allocation);
        memory.len_bytes = message->len_bytes;
        memory.key = holding.window->key;
    }
    response.memory = &memory;
    response.lease_ms = (uint32_t)service->lease_ms;
    kv_reply(service, request, &response.base);
    return;

close:
    kv_window_close(holding.window); /* nobody knows its key: does not block */
drop:
    tier_allocation_drop(holding.allocation);
refuse:
    kv_refuse(service, request, status, error.message);
}

void kv_on_pre_write(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin origin = kv_origin_of(service, request);
    struct wire_arena arena;
    Shoal__Wire__KvPreWriteRequest *message;

    wire_arena_init(&arena);
    message =
        wire_unpack(&shoal__wire__kv_pre_write_request__descriptor, &arena.allocator, request->body_len, request->body);
    if (!message) {
        kv_refuse_unpacked(service, request, &arena, "pre-write");
        return;
    }
    pre_write(service, request, &origin, message);
    shoal__wire__kv_pre_write_request__free_unpacked(message, &arena.allocator);
}

/* --- write_commit --- */

static void close_window(struct kv_job *job)
{
    kv_window_close(job->window);
    job->window = NULL;
}

static void on_window_closed(struct kv_job *job)
{
    kv_job_settle(job);
}

static void commit(struct kv_service *service, struct kv_origin *origin, uint64_t lease_id)
{
    struct lease_holding holding;
    struct kv_job *job;

    if (leases_take(&service->leases, lease_id, LEASE_WRITE, &holding)) {
        kv_answer_error(service, origin, SHOAL_NOT_FOUND, "no such lease: it has ended");
        return;
    }
    job = kv_job_create(service, origin, kv_write_finish);
    if (!job) {
        kv_lease_release(service, &holding);
        return;
    }
    job->allocation = holding.allocation;
    job->object_id = holding.object_id;
    job->window = holding.window;
    /* What the caller writes after its commit must not get into the object. */
    if (job->window)
        kv_job_work(job, close_window, on_window_closed);
    else
        kv_job_settle(job);
}

void kv_on_write_commit(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin origin = kv_origin_of(service, request);
    Shoal__Wire__KvLeaseRequest *message =
        wire_unpack(&shoal__wire__kv_lease_request__descriptor, NULL, request->body_len, request->body);

    if (!message) {
        kv_refuse_malformed(service, request, "write commit");
        return;
    }
    if (message->n_lease_ids == 1)
        commit(service, &origin, message->lease_ids[0]);
    else
        kv_refuse(service, request, SHOAL_INVALID_ARGUMENT, "a commit has exactly one lease");
    shoal__wire__kv_lease_request__free_unpacked(message, NULL);
}

/* --- the others: a status for each lease --- */

typedef enum shoal_status (*lease_fn)(struct kv_service *service, uint64_t lease_id);

static void for_each_lease(struct kv_service *service, struct rpc_request *request, const char *what, lease_fn fn)
{
    Shoal__Wire__KvLeaseResponse response = SHOAL__WIRE__KV_LEASE_RESPONSE__INIT;
    Shoal__Wire__KvLeaseRequest *message;
    int32_t few[16], *statuses = few; /* a lease must not be left for want of memory */

    kv_origin_of(service, request);
    message = wire_unpack(&shoal__wire__kv_lease_request__descriptor, NULL, request->body_len, request->body);
    if (!message) {
        kv_refuse_malformed(service, request, what);
        return;
    }
    if (message->n_lease_ids > KV_BATCH_ITEMS_MAX) {
        kv_refuse(service, request, SHOAL_LIMIT, "too many leases in one request");
        goto out;
    }
    if (message->n_lease_ids > sizeof few / sizeof few[0])
        statuses = calloc(message->n_lease_ids, sizeof *statuses);
    if (!statuses) {
        kv_refuse(service, request, SHOAL_NO_MEMORY, NULL);
        goto out;
    }
    for (size_t i = 0; i < message->n_lease_ids; i++)
        statuses[i] = fn(service, message->lease_ids[i]);
    response.n_statuses = message->n_lease_ids;
    response.statuses = statuses;
    kv_reply(service, request, &response.base);
out:
    if (statuses != few)
        free(statuses);
    shoal__wire__kv_lease_request__free_unpacked(message, NULL);
}

static enum shoal_status drop(struct kv_service *service, uint64_t lease_id, enum lease_kind kind)
{
    struct lease_holding holding;
    enum shoal_status status = leases_take(&service->leases, lease_id, kind, &holding);

    if (!status)
        kv_lease_release(service, &holding);
    return status;
}

static enum shoal_status revoke(struct kv_service *service, uint64_t lease_id)
{
    return drop(service, lease_id, LEASE_WRITE);
}

static enum shoal_status unpin(struct kv_service *service, uint64_t lease_id)
{
    return drop(service, lease_id, LEASE_PIN);
}

static enum shoal_status renew(struct kv_service *service, uint64_t lease_id)
{
    return leases_renew(&service->leases, lease_id, clock_now_ms());
}

void kv_on_write_revoke(void *arg, struct rpc_request *request)
{
    for_each_lease(arg, request, "write revoke", revoke);
}

void kv_on_unpin(void *arg, struct rpc_request *request)
{
    for_each_lease(arg, request, "unpin", unpin);
}

void kv_on_renew(void *arg, struct rpc_request *request)
{
    for_each_lease(arg, request, "renew", renew);
}
