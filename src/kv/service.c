/* SPDX-License-Identifier: Apache-2.0 */
/* The client RPC service: methods, lifetime, time, metrics. */
#include "kv/service.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

#define LOG_MODULE "kv"
#include "base/log.h"

#define WORKERS_DEFAULT 2
#define LEASE_MS_DEFAULT 5000

static const struct {
    uint16_t method;
    const char *name;
    rpc_handler_fn fn;
} methods[] = {
    {KV_METHOD_READ, "read", kv_on_read},
    {KV_METHOD_WRITE, "write", kv_on_write},
    {KV_METHOD_PRE_WRITE, "pre_write", kv_on_pre_write},
    {KV_METHOD_WRITE_COMMIT, "write_commit", kv_on_write_commit},
    {KV_METHOD_WRITE_REVOKE, "write_revoke", kv_on_write_revoke},
    {KV_METHOD_PIN_KEY, "pin_key", kv_on_pin},
    {KV_METHOD_UNPIN_KEY, "unpin_key", kv_on_unpin},
    {KV_METHOD_RENEW, "renew", kv_on_renew},
    {KV_METHOD_DELETE, "delete", kv_on_delete},
    {KV_METHOD_QUERY, "query", kv_on_query},
    {KV_METHOD_BATCH_READ, "batch_read", kv_on_batch_read},
    {KV_METHOD_BATCH_WRITE, "batch_write", kv_on_batch_write},
};

#define METHOD_COUNT (sizeof methods / sizeof methods[0])

/* --- time --- */

void kv_arm(struct kv_service *service)
{
    if (service->last_tick_ms)
        return;
    service->last_tick_ms = clock_now_ms();
    loop_timer_start(&service->timer, KV_TICK_MS);
}

static void end_late_jobs(struct kv_service *service, int64_t now_ms)
{
    LIST_FOR_EACH_SAFE (job, &service->jobs, struct kv_job, node) {
        if (job->origin.deadline_ms <= now_ms)
            kv_job_cancel(job, SHOAL_TIMED_OUT, "the caller's time passed");
    }
}

static void on_tick(void *arg)
{
    struct kv_service *service = arg;
    int64_t now_ms = clock_now_ms(), gap_ms = now_ms - service->last_tick_ms - KV_TICK_MS;

    /* This process stood still: renewals wait in its sockets. */
    if (gap_ms > service->lease_ms / 4)
        leases_postpone(&service->leases, gap_ms);
    service->last_tick_ms = 0;
    end_late_jobs(service, now_ms);
    leases_expire(&service->leases, now_ms);
    kv_transfers_kick(service); /* others give staging buffers back, too */
    if (service->job_count || leases_count(&service->leases))
        kv_arm(service);
}

static void on_kick(void *arg)
{
    struct kv_service *service = arg;

    service->is_kicked = false;
    kv_transfers_kick(service);
}

void kv_kick(struct kv_service *service)
{
    bool has_waiters = !list_is_empty(&service->turn_waiters) || !list_is_empty(&service->staging_waiters) ||
                       !list_is_empty(&service->pin_waiters);

    if (service->is_kicked || !has_waiters)
        return;
    service->is_kicked = true;
    loop_post(service->loop, &service->kick, on_kick, service);
}

/* --- lifetime --- */

struct start_args {
    struct kv_service *service;
    enum shoal_status status;
    struct shoal_error *error;
};

static void start_on_loop(void *arg)
{
    struct start_args *args = arg;
    struct kv_service *service = args->service;

    args->status = loop_timer_init(&service->timer, service->loop, on_tick, service, args->error);
    rpc_set_request_max(service->rpc, KV_REQUEST_MAX_BYTES);
    for (size_t i = 0; !args->status && i < METHOD_COUNT; i++)
        rpc_set_handler(service->rpc, methods[i].method, methods[i].fn, service);
}

static void service_free(struct kv_service *service)
{
    map_release(&service->segments);
    spares_release(&service->spare_jobs);
    buf_release(&service->scratch);
    cond_release(&service->idle);
    mutex_release(&service->mutex);
    free(service);
}

/* Half of the tiers: the rest can always be evicted for puts. */
static uint64_t lease_bytes_max(struct tier_backend *backend)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < tier_count(backend); i++) {
        struct tier_usage usage;
        tier_usage(backend, (unsigned)i, &usage);
        bytes += usage.capacity_bytes / 2;
    }
    return bytes;
}

enum shoal_status kv_service_create(const struct kv_service_config *config, struct kv_service **service_out,
                                    struct shoal_error *error)
{
    struct kv_service *service;
    struct start_args args = {.error = error};
    enum shoal_status status;

    if (config->lease_ms < 0 || config->lease_ms > 3600000)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "lease of %" PRId64 " ms: at most an hour is allowed",
                         config->lease_ms);
    service = calloc(1, sizeof *service);
    if (!service)
        return error_no_memory(error);
    service->engine = config->engine;
    service->rpc = config->rpc;
    service->manager = config->manager;
    service->backend = data_manager_backend(config->manager);
    service->loop = engine_loop(config->engine);
    service->lease_ms = config->lease_ms ? config->lease_ms : LEASE_MS_DEFAULT;
    list_init(&service->jobs);
    spares_init(&service->spare_jobs, sizeof(struct kv_job), KV_SPARE_JOBS_MAX);
    list_init(&service->turn_waiters);
    list_init(&service->staging_waiters);
    list_init(&service->pin_waiters);
    list_init(&service->segments_lru);
    map_init(&service->segments);
    buf_init(&service->scratch, RPC_RESPONSE_MAX_BYTES);
    mutex_init(&service->mutex, RANK_KV_SERVICE);
    cond_init(&service->idle);
    status = executor_create("shoal-kv", config->worker_threads ? config->worker_threads : WORKERS_DEFAULT,
                             KV_JOBS_MAX + KV_LEASES_MAX, &service->executor, error);
    if (status) {
        service_free(service);
        return status;
    }
    leases_init(&service->leases, &(struct leases_config){.lease_ms = service->lease_ms,
                                                          .max = KV_LEASES_MAX,
                                                          .max_per_peer = KV_LEASES_PER_PEER_MAX,
                                                          .max_staging = KV_STAGING_PINS_MAX,
                                                          .max_bytes = lease_bytes_max(service->backend),
                                                          .release = kv_lease_release,
                                                          .arg = service});
    args.service = service;
    loop_call(service->loop, start_on_loop, &args);
    if (args.status) {
        executor_destroy(service->executor);
        leases_release(&service->leases);
        service_free(service);
        return args.status;
    }
    *service_out = service;
    return SHOAL_OK;
}

void kv_check_idle(struct kv_service *service)
{
    if (!service->is_stopping || service->job_count || service->fences)
        return;
    mutex_lock(&service->mutex);
    service->is_idle = true;
    cond_signal(&service->idle);
    mutex_unlock(&service->mutex);
}

static void stop_on_loop(void *arg)
{
    struct kv_service *service = arg;

    service->is_stopping = true;
    for (size_t i = 0; i < METHOD_COUNT; i++)
        rpc_set_handler(service->rpc, methods[i].method, NULL, NULL);
    LIST_FOR_EACH_SAFE (job, &service->jobs, struct kv_job, node)
        kv_job_cancel(job, SHOAL_CLOSED, "the owner is shutting down");
    leases_release(&service->leases);
    kv_check_idle(service);
}

/* Behind everything that was posted for jobs. */
static void release_on_loop(void *arg)
{
    struct kv_service *service = arg;

    loop_timer_release(&service->timer);
    kv_segments_release(service);
}

void kv_service_destroy(struct kv_service *service)
{
    if (!service)
        return;
    assert(!loop_is_current(service->loop));
    loop_call(service->loop, stop_on_loop, service);
    mutex_lock(&service->mutex);
    while (!service->is_idle)
        cond_wait(&service->idle, &service->mutex);
    mutex_unlock(&service->mutex);
    executor_destroy(service->executor);
    loop_call(service->loop, release_on_loop, service);
    service_free(service);
}

/* --- metrics --- */

struct snapshot {
    struct kv_service *service;
    struct kv_counters counters;
    uint64_t jobs, leases, expired, refused, transfers, transfer_bytes, waiting;
};

static void take_snapshot(void *arg)
{
    struct snapshot *snapshot = arg;
    struct kv_service *service = snapshot->service;

    snapshot->counters = service->counters;
    snapshot->jobs = service->job_count;
    snapshot->leases = leases_count(&service->leases);
    snapshot->expired = service->leases.expired;
    snapshot->refused = service->leases.refused;
    snapshot->transfers = service->transfers;
    snapshot->transfer_bytes = service->transfer_bytes;
    LIST_FOR_EACH (job, &service->jobs, struct kv_job, node)
        snapshot->waiting += list_node_is_linked(&job->wait_node);
}

struct metric {
    const char *name, *labels, *kind, *help; /* kind NULL: same family as the row before */
    uint64_t value;
};

static bool append(struct buf *out, const struct metric *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind && !buf_append_format(out, "# HELP shoal_kv_%s %s\n# TYPE shoal_kv_%s %s\n", rows[i].name,
                                               rows[i].help, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_kv_%s%s %" PRIu64 "\n", rows[i].name, rows[i].labels, rows[i].value))
            return false;
    }
    return true;
}

static bool append_methods(struct buf *out, const char *name, const char *help, const uint64_t *values)
{
    if (!buf_append_format(out, "# HELP shoal_kv_%s %s\n# TYPE shoal_kv_%s counter\n", name, help, name))
        return false;
    for (size_t i = 0; i < METHOD_COUNT; i++) {
        if (!buf_append_format(out, "shoal_kv_%s{method=\"%s\"} %" PRIu64 "\n", name, methods[i].name,
                               values[methods[i].method]))
            return false;
    }
    return true;
}

bool kv_service_metrics(struct kv_service *service, struct buf *out)
{
    struct snapshot snapshot = {.service = service};
    const struct kv_counters *c = &snapshot.counters;

    loop_call(service->loop, take_snapshot, &snapshot);
    {
        const struct metric rows[] = {
            {"service_malformed_total", "", "counter", "Requests that are no valid message.", c->malformed},
            {"service_timeouts_total", "", "counter", "Requests whose time passed before their end.", c->timed_out},
            {"service_aborts_total", "", "counter", "Requests whose caller was lost before their end.", c->aborted},
            {"service_limits_total", "", "counter", "Requests refused because too much was going on.", c->limited},
            {"service_reads_total", "{way=\"told\"}", "counter", "Answered reads.", c->ways[KV_WAY_TOLD]},
            {"service_reads_total", "{way=\"inline\"}", NULL, NULL, c->ways[KV_WAY_INLINE]},
            {"service_reads_total", "{way=\"written\"}", NULL, NULL, c->ways[KV_WAY_WRITTEN]},
            {"service_reads_total", "{way=\"pinned\"}", NULL, NULL, c->ways[KV_WAY_PINNED]},
            {"service_bytes_total", "{way=\"inline\",to=\"peer\"}", "counter", "Bytes of values moved for peers.",
             c->inline_out_bytes},
            {"service_bytes_total", "{way=\"inline\",to=\"here\"}", NULL, NULL, c->inline_in_bytes},
            {"service_bytes_total", "{way=\"engine\",to=\"peer\"}", NULL, NULL, c->transfer_out_bytes},
            {"service_bytes_total", "{way=\"engine\",to=\"here\"}", NULL, NULL, c->transfer_in_bytes},
            {"service_jobs", "", "gauge", "Requests and items that are being worked on.", snapshot.jobs},
            {"service_waiting", "", "gauge", "Of these, waiting for a turn or a staging buffer.", snapshot.waiting},
            {"service_transfers", "", "gauge", "Transfers that are going on.", snapshot.transfers},
            {"service_transfer_bytes", "", "gauge", "Bytes of the values being transferred.", snapshot.transfer_bytes},
            {"leases", "", "gauge", "Pins and held writes of peers.", snapshot.leases},
            {"leases_expired_total", "", "counter", "Leases that nobody renewed in time.", snapshot.expired},
            {"leases_refused_total", "", "counter", "Leases refused because of their number or bytes.",
             snapshot.refused},
        };

        return append_methods(out, "service_requests_total", "Requests of peers.", c->requests) &&
               append_methods(out, "service_failures_total", "Requests and items answered with an error.",
                              c->failures) &&
               append(out, rows, sizeof rows / sizeof rows[0]);
    }
}
