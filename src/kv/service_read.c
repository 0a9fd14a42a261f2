/* SPDX-License-Identifier: Apache-2.0 */
/* Methods read and pin_key. What lies in DRAM and fits into the answer is answered at once, without a job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

static void describe(struct kv_answer *answer, const struct tier_object *object)
{
    kv_answer_init_read(answer);
    answer->read.object_id = tier_object_id(object);
    answer->read.len_bytes = tier_object_len(object);
    answer->read.tier = tier_object_tier(object);
}

/* --- inline --- */

static void read_value(struct kv_job *job)
{
    job->value = malloc(job->len_bytes);
    if (job->value)
        job->work_status = tier_read(job->object, 0, job->value, job->len_bytes, &job->work_error);
    else
        job->work_status = error_no_memory(&job->work_error);
}

static void on_value_read(struct kv_job *job)
{
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    kv_job_settle(job);
}

static void value_ended(struct kv_job *job)
{
    struct kv_answer answer;

    if (job->status) {
        kv_job_answer_failure(job);
    } else {
        describe(&answer, job->object);
        answer.read.way = KV_WAY_INLINE;
        answer.read.value.len = job->len_bytes;
        answer.read.value.data = answer.value = job->value;
        answer.reserved_bytes = job->reserved_bytes;
        job->value = NULL;
        job->reserved_bytes = 0;
        kv_answer_send(job->service, &job->origin, &answer);
    }
    kv_job_free(job);
}

/* --- to the caller's memory --- */

static void written_ended(struct kv_job *job)
{
    struct kv_answer answer;

    if (job->status) {
        kv_job_answer_failure(job);
    } else {
        describe(&answer, job->object);
        answer.read.way = KV_WAY_WRITTEN;
        kv_answer_send(job->service, &job->origin, &answer);
    }
    kv_job_free(job);
}

static void write_to(struct kv_job *job, const Shoal__Wire__KvMemory *dest)
{
    struct shoal_error error;
    enum shoal_status status = kv_job_set_remote(job, dest, &error);

    if (!status) {
        kv_transfer_start(job);
        return;
    }
    kv_job_fail(job, status, &error);
    kv_job_settle(job);
}

/* --- pins --- */

/* Answers with a lease of the holding; takes it in every case. */
static void pin(struct kv_service *service, struct kv_origin *origin, struct kv_answer *answer,
                const struct lease_holding *holding)
{
    struct shoal_error error;
    uint64_t lease_id;
    enum shoal_status status = kv_lease_add(service, origin, holding, &lease_id, &error);

    if (status) {
        kv_lease_release(service, holding);
        kv_answer_release(service, answer);
        kv_answer_error(service, origin, status, error.message);
        return;
    }
    answer->read.way = KV_WAY_PINNED;
    answer->has_pin = true;
    answer->pin.lease_id = lease_id;
    answer->pin.lease_ms = (uint32_t)service->lease_ms;
    kv_answer_send(service, origin, answer);
}

static void pin_object(struct kv_service *service, struct kv_origin *origin, struct tier_object *object)
{
    struct lease_holding holding = {.kind = LEASE_PIN, .object = object};
    struct kv_answer answer;

    describe(&answer, object);
    answer.memory.addr = (uint64_t)(uintptr_t)tier_object_data(object);
    answer.memory.len_bytes = tier_object_len(object);
    answer.memory.key = tier_object_memory_key(object);
    pin(service, origin, &answer, &holding);
}

static void read_chunk(struct kv_job *job)
{
    job->work_status =
        tier_read(job->object, job->pin_offset_bytes, job->slots[0].buffer, job->pin_len_bytes, &job->work_error);
}

static void on_chunk_read(struct kv_job *job)
{
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    kv_job_settle(job);
}

static void read_chunk_now(struct kv_job *job)
{
    kv_job_work(job, read_chunk, on_chunk_read);
}

static void chunk_ended(struct kv_job *job)
{
    struct kv_service *service = job->service;
    struct lease_holding holding = {.kind = LEASE_PIN, .staging = job->slots[0].buffer};
    struct kv_answer answer;

    if (holding.staging)
        service->pins_reading--;
    if (job->status) {
        kv_job_answer_failure(job);
    } else {
        describe(&answer, job->object);
        answer.pin.offset = job->pin_offset_bytes;
        answer.memory.addr = (uint64_t)(uintptr_t)holding.staging;
        answer.memory.len_bytes = job->pin_len_bytes;
        answer.memory.key = tier_staging_memory_key(service->backend);
        job->slots[0].buffer = NULL;
        pin(service, &job->origin, &answer, &holding);
    }
    kv_job_free(job);
}

static void pin_chunk(struct kv_service *service, struct kv_origin *origin, struct tier_object *object,
                      uint64_t offset_bytes)
{
    uint64_t len_bytes = tier_object_len(object), left_bytes = len_bytes - offset_bytes;
    struct kv_job *job = kv_job_create(service, origin, chunk_ended);

    if (!job) {
        tier_object_unref(object);
        return;
    }
    job->object = object;
    job->pin_offset_bytes = offset_bytes;
    job->pin_len_bytes = left_bytes < TIER_STAGING_BYTES ? (size_t)left_bytes : TIER_STAGING_BYTES;
    kv_job_wait(job, &service->pin_waiters, read_chunk_now);
    kv_transfers_kick(service);
}

/* --- choice of the way --- */

static bool fits_inline(const struct kv_origin *origin, uint64_t len_bytes, uint32_t inline_max)
{
    if (len_bytes == 0)
        return true;
    if (len_bytes > inline_max || len_bytes > KV_INLINE_MAX_BYTES)
        return false;
    return !origin->batch || origin->batch->value_bytes + len_bytes <= KV_BATCH_VALUE_BYTES_MAX;
}

static void answer_inline(struct kv_service *service, struct kv_origin *origin, struct tier_object *object)
{
    uint64_t len_bytes = tier_object_len(object);
    const void *data = tier_object_data(object);
    struct kv_answer answer;
    struct kv_job *job;

    if (origin->batch)
        origin->batch->value_bytes += len_bytes;
    if (!data && len_bytes) {
        job = kv_job_create(service, origin, value_ended);
        if (!job) {
            tier_object_unref(object);
            return;
        }
        job->object = object;
        job->len_bytes = len_bytes;
        if (kv_job_reserve(job, len_bytes))
            kv_job_work(job, read_value, on_value_read);
        else
            kv_job_settle(job);
        return;
    }
    describe(&answer, object);
    answer.read.way = KV_WAY_INLINE;
    answer.read.value.data = (uint8_t *)(uintptr_t)data;
    answer.read.value.len = len_bytes;
    answer.object = object;
    kv_answer_send(service, origin, &answer);
}

static void answer_to_memory(struct kv_service *service, struct kv_origin *origin, struct tier_object *object,
                             const Shoal__Wire__KvMemory *dest)
{
    uint64_t len_bytes = tier_object_len(object);
    struct kv_answer answer;
    struct kv_job *job;
    char text[128];

    if (dest->len_bytes < len_bytes) {
        snprintf(text, sizeof text, "%" PRIu64 " bytes do not fit into the caller's %" PRIu64, len_bytes,
                 dest->len_bytes);
        describe(&answer, object); /* an item of a batch has the size there, too */
        answer.status = SHOAL_LIMIT;
        answer.text = strdup(text);
        tier_object_unref(object);
        kv_answer_send(service, origin, &answer);
        return;
    }
    job = kv_job_create(service, origin, written_ended);
    if (!job) {
        tier_object_unref(object);
        return;
    }
    job->object = object;
    job->len_bytes = len_bytes;
    write_to(job, dest);
}

static void answer_pin(struct kv_service *service, struct kv_origin *origin, struct tier_object *object,
                       uint64_t offset_bytes)
{
    uint64_t len_bytes = tier_object_len(object);
    char text[128];

    if (tier_object_data(object) || !len_bytes) {
        pin_object(service, origin, object);
    } else if (offset_bytes >= len_bytes) {
        snprintf(text, sizeof text, "offset %" PRIu64 " is beyond the value's %" PRIu64 " bytes", offset_bytes,
                 len_bytes);
        tier_object_unref(object);
        kv_answer_error(service, origin, SHOAL_INVALID_ARGUMENT, text);
    } else {
        pin_chunk(service, origin, object, offset_bytes);
    }
}

void kv_read(struct kv_service *service, struct kv_origin *origin, const Shoal__Wire__KvReadRequest *message,
             bool is_pin_only)
{
    struct tier_object *object = NULL;
    struct kv_answer answer;
    struct shoal_error error;
    enum shoal_status status = kv_check_key(message->key, &error);

    if (status) {
        kv_answer_error(service, origin, status, error.message);
        return;
    }
    status = tier_get(service->backend, message->key, &object);
    if (!status && message->object_id && message->object_id != tier_object_id(object)) {
        tier_object_unref(object); /* its key was put again, elsewhere or here */
        status = SHOAL_NOT_FOUND;
    }
    if (status) {
        kv_answer_error(service, origin, status,
                        status == SHOAL_NOT_FOUND ? "no such object at this owner" : shoal_status_text(status));
        return;
    }
    if (!is_pin_only && fits_inline(origin, tier_object_len(object), message->inline_max)) {
        answer_inline(service, origin, object);
    } else if (!is_pin_only && message->dest) {
        answer_to_memory(service, origin, object, message->dest);
    } else if (is_pin_only || message->wants_pin) {
        answer_pin(service, origin, object, message->offset);
    } else {
        describe(&answer, object);
        tier_object_unref(object);
        kv_answer_send(service, origin, &answer);
    }
}

static void on_request(struct kv_service *service, struct rpc_request *request, bool is_pin_only)
{
    struct kv_origin origin = kv_origin_of(service, request);
    struct wire_arena arena;
    Shoal__Wire__KvReadRequest *message;

    wire_arena_init(&arena);
    message =
        wire_unpack(&shoal__wire__kv_read_request__descriptor, &arena.allocator, request->body_len, request->body);
    if (!message) {
        kv_refuse_unpacked(service, request, &arena, is_pin_only ? "pin" : "read");
        return;
    }
    origin.attaches = message->attaches;
    kv_read(service, &origin, message, is_pin_only);
    shoal__wire__kv_read_request__free_unpacked(message, &arena.allocator);
}

void kv_on_read(void *arg, struct rpc_request *request)
{
    on_request(arg, request, false);
}

void kv_on_pin(void *arg, struct rpc_request *request)
{
    on_request(arg, request, true);
}
