/* SPDX-License-Identifier: Apache-2.0 */
/* Method write: allocate, fetch, commit and announce, or hold. Nothing is committed for a caller that has gone or whose
 * time has passed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

/* --- commit --- */

static void on_finished_here(void *arg)
{
    struct kv_job *job = arg;
    struct kv_answer answer;

    job->is_finishing = false;
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    if (job->status) {
        kv_job_answer_failure(job);
    } else {
        kv_answer_init_write(&answer);
        answer.write.object_id = job->object_id;
        answer.write.tier = job->tier;
        kv_answer_send(job->service, &job->origin, &answer);
    }
    kv_job_free(job);
}

/* On the session's loop or a thread of the manager. */
static void on_finished(void *arg, enum shoal_status status, uint64_t object_id, unsigned tier,
                        const struct shoal_error *error)
{
    struct kv_job *job = arg;

    job->work_status = status;
    job->object_id = object_id;
    job->tier = tier;
    if (status && error)
        job->work_error = *error;
    else if (status)
        error_set(&job->work_error, status, 0, "%s", shoal_status_text(status));
    if (loop_is_current(job->service->loop))
        on_finished_here(job);
    else
        loop_post(job->service->loop, &job->loop_task, on_finished_here, job);
}

void kv_write_finish(struct kv_job *job)
{
    struct tier_allocation *allocation = job->allocation;
    int64_t left_ms = deadline_left_ms(job->origin.deadline_ms);
    struct shoal_error error;
    enum shoal_status status;

    if (!job->status && !kv_origin_peer(&job->origin)) {
        kv_job_fail(job, SHOAL_CANCELED, NULL);
    } else if (!job->status && left_ms <= 0) {
        error_set(&error, SHOAL_TIMED_OUT, 0, "the caller's time passed before the commit");
        kv_job_fail(job, SHOAL_TIMED_OUT, &error);
    }
    if (!job->status) {
        job->allocation = NULL;
        job->is_finishing = true;
        status =
            data_manager_finish(job->service->manager, allocation, job->object_id, left_ms, on_finished, job, &error);
        if (!status)
            return;
        job->is_finishing = false;
        kv_job_fail(job, status, &error);
    }
    kv_job_answer_failure(job);
    kv_job_free(job);
}

/* The bytes are there, or it has failed. */
static void fetched(struct kv_job *job)
{
    struct kv_service *service = job->service;
    struct lease_holding holding = {.kind = LEASE_WRITE, .allocation = job->allocation, .object_id = job->object_id};
    struct kv_answer answer;
    struct shoal_error error;
    enum shoal_status status;
    uint64_t lease_id;

    kv_transfer_release(job);
    if (job->status || !job->wants_hold) {
        kv_write_finish(job);
        return;
    }
    status = kv_lease_add(service, &job->origin, &holding, &lease_id, &error);
    if (status) {
        kv_answer_error(service, &job->origin, status, error.message);
    } else {
        job->allocation = NULL;
        kv_answer_init_write(&answer);
        answer.write.object_id = job->object_id;
        answer.write.lease_id = lease_id;
        answer.write.lease_ms = (uint32_t)service->lease_ms;
        kv_answer_send(service, &job->origin, &answer);
    }
    kv_job_free(job);
}

/* --- fetch --- */

static void write_value(struct kv_job *job)
{
    job->work_status = tier_write(job->allocation, 0, job->value, job->len_bytes, &job->work_error);
}

static void on_value_written(struct kv_job *job)
{
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    kv_job_settle(job);
}

static void take_value(struct kv_job *job, const ProtobufCBinaryData *value)
{
    void *data = tier_allocation_data(job->allocation);

    job->service->counters.inline_in_bytes += value->len;
    if (data || !value->len) {
        if (value->len)
            memcpy(data, value->data, value->len);
        kv_job_settle(job);
        return;
    }
    if (kv_job_reserve(job, value->len)) {
        job->value = malloc(value->len); /* the message goes when the handler returns */
        if (!job->value)
            kv_job_fail(job, SHOAL_NO_MEMORY, NULL);
    }
    if (!job->value) {
        kv_job_settle(job);
        return;
    }
    memcpy(job->value, value->data, value->len);
    kv_job_work(job, write_value, on_value_written);
}

static void take_from(struct kv_job *job, const Shoal__Wire__KvMemory *source)
{
    struct shoal_error error;
    enum shoal_status status = kv_job_set_remote(job, source, &error);

    if (!status) {
        kv_transfer_start(job);
        return;
    }
    kv_job_fail(job, status, &error);
    kv_job_settle(job);
}

static enum shoal_status check(const Shoal__Wire__KvWriteRequest *message, struct shoal_error *error)
{
    enum shoal_status status = kv_check_key(message->key, error);

    if (status)
        return status;
    if (message->source && message->value.len)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the request has both a value and a source");
    if (!message->source && message->value.len != message->len_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "the request has %zu of %" PRIu64 " bytes of the value and no source", message->value.len,
                         message->len_bytes);
    if (message->source && message->source->len_bytes < message->len_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "the source has %" PRIu64 " of %" PRIu64 " bytes of the value", message->source->len_bytes,
                         message->len_bytes);
    return SHOAL_OK;
}

void kv_write(struct kv_service *service, struct kv_origin *origin, const Shoal__Wire__KvWriteRequest *message)
{
    struct shoal_error error;
    enum shoal_status status = check(message, &error);
    struct tier_allocation *allocation = NULL;
    struct kv_job *job;

    if (!status)
        status = tier_allocate(service->backend, message->key, message->len_bytes, false, &allocation, &error);
    if (status) {
        kv_answer_error(service, origin, status, error.message);
        return;
    }
    job = kv_job_create(service, origin, fetched);
    if (!job) {
        tier_allocation_drop(allocation);
        return;
    }
    job->allocation = allocation;
    job->object_id = message->object_id;
    job->len_bytes = message->len_bytes;
    job->wants_hold = message->wants_hold;
    if (message->source && message->len_bytes)
        take_from(job, message->source);
    else
        take_value(job, &message->value);
}

void kv_on_write(void *arg, struct rpc_request *request)
{
    struct kv_service *service = arg;
    struct kv_origin origin = kv_origin_of(service, request);
    struct wire_arena arena;
    Shoal__Wire__KvWriteRequest *message;

    wire_arena_init(&arena);
    message =
        wire_unpack(&shoal__wire__kv_write_request__descriptor, &arena.allocator, request->body_len, request->body);
    if (!message) {
        kv_refuse_unpacked(service, request, &arena, "write");
        return;
    }
    kv_write(service, &origin, message);
    shoal__wire__kv_write_request__free_unpacked(message, &arena.allocator);
}
