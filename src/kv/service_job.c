/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: requests and items of batches that are not answered at once. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

static void on_abort(struct rpc_request *request)
{
    struct kv_job *job = request->arg;

    job->origin.request = NULL;
    job->service->counters.aborted++;
    kv_job_cancel(job, SHOAL_CANCELED, "the caller's connection was lost");
}

struct kv_job *kv_job_create(struct kv_service *service, struct kv_origin *origin, void (*ended)(struct kv_job *job))
{
    struct kv_job *job;

    if (service->job_count >= KV_JOBS_MAX) {
        service->counters.limited++;
        kv_answer_error(service, origin, SHOAL_LIMIT, "too many requests are being worked on");
        return NULL;
    }
    job = spares_take(&service->spare_jobs);
    if (!job) {
        kv_answer_error(service, origin, SHOAL_NO_MEMORY, NULL);
        return NULL;
    }
    memset(job, 0, offsetof(struct kv_job, error));
    error_clear(&job->error);
    error_clear(&job->work_error);
    job->service = service;
    job->origin = *origin;
    job->ended = ended;
    list_node_init(&job->wait_node);
    if (origin->request) {
        origin->request->on_abort = on_abort;
        origin->request->arg = job;
    }
    list_push_back(&service->jobs, &job->node);
    service->job_count++;
    kv_arm(service);
    return job;
}

void kv_job_free(struct kv_job *job)
{
    struct kv_service *service = job->service;

    kv_transfer_release(job);
    tier_object_unref(job->object);
    tier_allocation_drop(job->allocation);
    if (job->deletion)
        shoal__wire__kv_delete_request__free_unpacked(job->deletion, NULL);
    free(job->statuses);
    free(job->value);
    service->value_bytes -= job->reserved_bytes;
    list_remove(&job->node);
    service->job_count--;
    spares_give(&service->spare_jobs, job);
    kv_check_idle(service);
}

void kv_job_fail(struct kv_job *job, enum shoal_status status, const struct shoal_error *error)
{
    if (job->status)
        return;
    job->status = status;
    if (error)
        job->error = *error;
    else
        error_set(&job->error, status, 0, "%s", shoal_status_text(status));
}

bool kv_job_reserve(struct kv_job *job, uint64_t len_bytes)
{
    struct kv_service *service = job->service;
    struct shoal_error error;

    if (len_bytes > KV_VALUE_BYTES_MAX - service->value_bytes) {
        service->counters.limited++;
        error_set(&error, SHOAL_LIMIT, 0, "too many values are on their way from and to the disk");
        kv_job_fail(job, SHOAL_LIMIT, &error);
        return false;
    }
    service->value_bytes += len_bytes;
    job->reserved_bytes = len_bytes;
    return true;
}

static bool is_busy(const struct kv_job *job)
{
    return job->is_on_worker || job->is_finishing || job->slots[0].state == KV_SLOT_NET ||
           job->slots[1].state == KV_SLOT_NET;
}

void kv_job_settle(struct kv_job *job)
{
    if (is_busy(job) || list_node_is_linked(&job->wait_node))
        return;
    job->ended(job);
}

void kv_job_cancel(struct kv_job *job, enum shoal_status status, const char *message)
{
    struct shoal_error error;

    if (job->is_finishing || job->status)
        return;
    error_set(&error, status, 0, "%s", message);
    kv_job_fail(job, status, &error);
    atomic_store_explicit(&job->is_canceled, true, memory_order_relaxed);
    list_remove(&job->wait_node);
    for (size_t i = 0; i < 2; i++) {
        if (job->slots[i].state == KV_SLOT_NET)
            engine_op_cancel(job->service->engine, &job->slots[i].op);
    }
    kv_job_settle(job);
}

void kv_job_wait(struct kv_job *job, struct list *where, void (*resume)(struct kv_job *job))
{
    job->resume = resume;
    list_push_back(where, &job->wait_node);
}

static void worked(void *arg)
{
    struct kv_job *job = arg;

    job->is_on_worker = false;
    job->worked(job);
}

static void run_work(void *arg, bool is_canceled)
{
    struct kv_job *job = arg;

    if (is_canceled)
        job->work_status = error_set(&job->work_error, SHOAL_CANCELED, 0, "the owner is shutting down");
    else
        job->work(job);
    loop_post(job->service->loop, &job->loop_task, worked, job);
}

void kv_job_work(struct kv_job *job, void (*work)(struct kv_job *job), void (*worked_fn)(struct kv_job *job))
{
    enum shoal_status status;

    job->work = work;
    job->worked = worked_fn;
    job->work_status = SHOAL_OK;
    job->is_on_worker = true;
    status = executor_submit(job->service->executor, &job->executor_task, run_work, job);
    if (!status)
        return;
    /* Cannot be: the queue has room for every job. But the job must not end inside the call. */
    job->work_status = error_set(&job->work_error, status, 0, "no worker takes the request");
    loop_post(job->service->loop, &job->loop_task, worked, job);
}

void kv_job_answer_failure(struct kv_job *job)
{
    if (job->status == SHOAL_TIMED_OUT)
        job->service->counters.timed_out++;
    kv_answer_error(job->service, &job->origin, job->status, job->error.message);
}
