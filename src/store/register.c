/* SPDX-License-Identifier: Apache-2.0 */
/* register, unregister, delete_replica. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "store/store_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define PROGRESS_INTERVAL_MS 200
#define WITHDRAW_TIMEOUT_MS 10000
#define GROUP_BYTES (16u << 20) /* pieces that one thread digests between looks at progress and cancellation */

/* --- digests --- */

struct digest_job {
    struct payload *payload;
    const struct shoal_register_options *options;
    const struct call *call;
    pthread_t caller;
    uint32_t pieces_per_group;
    atomic_uint_fast64_t done_bytes;
    atomic_bool is_stopped;
    atomic_flag has_error;              /* set by the one that writes error */
    struct shoal_error error;           /* device memory that cannot be read; status OK: none */
    int64_t started_ms, next_report_ms; /* caller's thread only */
};

static void report(struct digest_job *job)
{
    struct shoal_progress progress = {
        .total_bytes = job->payload->layout.total_size,
        .done_bytes = atomic_load_explicit(&job->done_bytes, memory_order_relaxed),
        .elapsed_ms = (uint64_t)(clock_now_ms() - job->started_ms),
    };

    job->options->progress(job->options->progress_arg, &progress);
    job->next_report_ms = clock_now_ms() + (job->options->progress_interval_ms ? job->options->progress_interval_ms
                                                                               : PROGRESS_INTERVAL_MS);
}

static bool digest_more(void *arg, const void *data, size_t len)
{
    digest_stream_update(arg, data, len);
    return true;
}

/* false: it cannot be read, and the job knows why. */
static bool digest_device(struct digest_job *job, struct digest_stream *stream, const void *addr, uint64_t len,
                          struct digest *out)
{
    struct shoal_error error;
    enum shoal_status status;

    if (stream) {
        digest_stream_reset(stream);
        status = engine_memory_read(job->payload->store->engine, addr, len, digest_more, stream, &error);
    } else {
        status = error_no_memory(&error);
    }
    if (status == SHOAL_OK)
        *out = digest_stream_final(stream);
    else if (!atomic_flag_test_and_set(&job->has_error))
        job->error = error;
    return status == SHOAL_OK;
}

/* A piece of the gold copy lies in one region. */
static bool digest_group(void *arg, size_t group)
{
    struct digest_job *job = arg;
    struct payload *payload = job->payload;
    uint32_t first = (uint32_t)group * job->pieces_per_group, last = first + job->pieces_per_group;
    struct digest_stream *stream = payload->is_device ? digest_stream_create() : NULL;
    bool is_fine = true;
    uint64_t bytes = 0;

    if (last > payload->layout.piece_count)
        last = payload->layout.piece_count;
    for (uint32_t piece = first; piece < last; piece++) {
        uint64_t offset, len;
        const struct span *span;
        struct digest digest;
        const void *data;

        layout_piece(&payload->layout, piece, &offset, &len);
        span = span_map_find(&payload->spans, offset);
        data = (const void *)(uintptr_t)(span->addr + (offset - span->start));
        if (payload->is_device)
            is_fine = digest_device(job, stream, data, len, &digest);
        else
            digest = digest_of(data, len);
        if (!is_fine)
            break;
        index_set_digest(payload->index, payload->layout.region_count, piece, &digest);
        bytes += len;
    }
    digest_stream_destroy(stream);
    atomic_fetch_add_explicit(&job->done_bytes, bytes, memory_order_relaxed);
    if (!is_fine || call_check(job->call, NULL, ""))
        atomic_store_explicit(&job->is_stopped, true, memory_order_relaxed);
    if (job->options->progress && pthread_equal(pthread_self(), job->caller) && clock_now_ms() >= job->next_report_ms)
        report(job);
    return !atomic_load_explicit(&job->is_stopped, memory_order_relaxed);
}

static enum shoal_status digest_all(struct payload *payload, const struct shoal_register_options *options,
                                    const struct call *call, struct shoal_error *error)
{
    struct digest_job job = {
        .payload = payload, .options = options, .call = call, .caller = pthread_self(), .started_ms = clock_now_ms()};
    uint64_t per_group = GROUP_BYTES / payload->layout.piece_size;

    job.pieces_per_group = per_group < 1 ? 1 : per_group > 65536 ? 65536 : (uint32_t)per_group;
    pool_for(payload->store->pool, (payload->layout.piece_count + job.pieces_per_group - 1) / job.pieces_per_group,
             digest_group, &job);
    if (job.error.status != SHOAL_OK) {
        error_copy(error, &job.error);
        error_prefix(error, "payload '%s'", payload->name);
        return job.error.status;
    }
    if (atomic_load_explicit(&job.is_stopped, memory_order_relaxed)) {
        enum shoal_status status = call_check(call, error, "register");
        return status;
    }
    if (options->progress)
        report(&job);
    return SHOAL_OK;
}

/* --- register --- */

static enum shoal_status check_options(const struct shoal_register_options *given,
                                       struct shoal_register_options *options_out, struct shoal_error *error)
{
    *options_out = (struct shoal_register_options){.struct_size = sizeof *options_out};
    if (given && given->struct_size < sizeof *given)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "struct shoal_register_options: struct_size is %zu, want %zu", given->struct_size,
                         sizeof *given);
    if (given)
        *options_out = *given;
    if (options_out->attachment_len_bytes > SHOAL_ATTACHMENT_MAX_BYTES ||
        (options_out->attachment_len_bytes && !options_out->attachment))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "attachment: NULL or larger than %llu bytes",
                         SHOAL_ATTACHMENT_MAX_BYTES);
    if (options_out->progress_interval_ms < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "progress interval is negative");
    if (!options_out->max_shard_size)
        options_out->max_shard_size = SHOAL_SHARD_DEFAULT_BYTES;
    if (options_out->max_shard_size > (uint64_t)INT64_MAX || options_out->piece_size > (uint64_t)INT64_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "shard or piece size is larger than 2^63 bytes");
    return SHOAL_OK;
}

/* Layout, digests, index and manifest of the registered memory. */
static enum shoal_status build(struct payload *payload, const struct shoal_register_options *options,
                               const struct call *call, struct shoal_error *error)
{
    uint64_t *sizes = calloc(payload->region_count, sizeof *sizes), piece_size = options->piece_size, total = 0;
    struct manifest manifest = {.generation = payload->generation};
    struct layout *layout = &payload->layout;
    enum shoal_status status;

    if (!sizes)
        return error_no_memory(error);
    for (size_t i = 0; i < payload->region_count; i++) {
        sizes[i] = payload->regions[i].len_bytes;
        total += sizes[i];
    }
    if (!piece_size)
        piece_size = layout_choose_piece_size(total, options->max_shard_size);
    status = layout_init(layout, sizes, payload->region_count, options->max_shard_size, piece_size, error);
    free(sizes);
    if (status)
        return status;
    payload->index_len =
        (size_t)index_encoded_len(layout->region_count, layout->piece_count, options->attachment_len_bytes);
    payload->index = malloc(payload->index_len);
    if (!payload->index)
        return error_no_memory(error);
    index_encode(payload->index, layout->sizes, layout->region_count, layout->piece_count, options->attachment,
                 options->attachment_len_bytes);
    status = digest_all(payload, options, call, error);
    if (status)
        return status;
    strcpy(manifest.name, payload->name); /* store_check_name has bounded it */
    manifest.total_size = layout->total_size;
    manifest.max_shard_size = layout->max_shard_size;
    manifest.piece_size = layout->piece_size;
    manifest.piece_count = layout->piece_count;
    manifest.attachment_len = options->attachment_len_bytes;
    manifest.index_len = payload->index_len;
    manifest.index_digest = digest_of(payload->index, payload->index_len);
    manifest.size_count = layout->region_count;
    manifest.sizes = layout->sizes; /* borrowed */
    status = manifest_encode(&manifest, &payload->manifest, error);
    if (!status)
        status = payload_register_index(payload, error);
    return status;
}

static enum shoal_status register_payload(struct shoal_store *store, const char *name,
                                          const struct shoal_region *regions, size_t count,
                                          const struct shoal_register_options *options, const struct call *call,
                                          struct shoal_error *error)
{
    struct payload *payload;
    bool may_be_published = false;
    enum shoal_status status = payload_open(store, name, regions, count, true, &payload, error);

    if (status)
        return status;
    payload_set_generation(payload, random_id());
    payload->is_shared = true;
    status = payload_register_memory(payload, options->location, SHOAL_ACCESS_REMOTE_READ, error);
    if (!status)
        status = build(payload, options, call, error);
    if (!status)
        status = serve_start(payload, error);
    if (!status) {
        mutex_lock(&store->mutex);
        payload->wants_publication = true; /* before the first attempt: a lease lost meanwhile brings it back */
        mutex_unlock(&store->mutex);
        status = publish_create(payload, options->force, call, error);
        may_be_published = status != SHOAL_OK && status != SHOAL_EXISTS;
    }
    if (!status) {
        payload_set_state(payload, PAYLOAD_READY);
    } else {
        mutex_lock(&store->mutex);
        payload->wants_publication = false;
        mutex_unlock(&store->mutex);
        if (may_be_published) { /* the answer was lost: the transaction may have happened */
            serve_stop(payload);
            publish_withdraw_or_defer(store, name, payload->generation, NULL, NULL);
        }
        payload_close(payload);
    }
    payload_unref(payload);
    return status;
}

enum shoal_status shoal_store_register(struct shoal_store *store, const char *name, const struct shoal_region *regions,
                                       size_t count, const struct shoal_register_options *options,
                                       const struct shoal_call *call, struct shoal_error *error)
{
    struct shoal_register_options checked;
    struct store_call store_call;
    enum shoal_status status = store_call_begin(&store_call, store, call, -1, error);

    if (status)
        return status;
    status = store_check_name(name, error);
    if (!status)
        status = check_options(options, &checked, error);
    if (!status)
        status = register_payload(store, name, regions, count, &checked, &store_call.call, error);
    if (!status)
        atomic_fetch_add_explicit(&store->counters.registers, 1, memory_order_relaxed);
    store_call_end(&store_call);
    return status;
}

/* --- unregister, delete_replica --- */

static enum shoal_status withdraw(struct shoal_store *store, const char *name, bool is_gold,
                                  const struct shoal_call *call, struct shoal_error *error)
{
    struct store_call store_call;
    struct payload *payload;
    enum shoal_status status = store_call_begin(&store_call, store, call, WITHDRAW_TIMEOUT_MS, error);

    if (status)
        return status;
    status = store_check_name(name, error);
    if (!status)
        status = payload_take(store, name, is_gold, &payload, error);
    if (!status) {
        /* Peers first: they turn to others while the metadata service is told. */
        serve_stop(payload);
        status = publish_withdraw_or_defer(store, name, payload->generation, &store_call.call, error);
        payload_close(payload);
        payload_unref(payload);
    }
    store_call_end(&store_call);
    return status;
}

enum shoal_status shoal_store_unregister(struct shoal_store *store, const char *name, const struct shoal_call *call,
                                         struct shoal_error *error)
{
    return withdraw(store, name, true, call, error);
}

enum shoal_status shoal_store_delete_replica(struct shoal_store *store, const char *name, const struct shoal_call *call,
                                             struct shoal_error *error)
{
    return withdraw(store, name, false, call, error);
}
