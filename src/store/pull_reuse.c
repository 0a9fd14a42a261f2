/* SPDX-License-Identifier: Apache-2.0 */
/* What is here already: pieces that an earlier pull left in the regions, or that a previous generation has as well. The
 * calling thread and the pool's digest them while loop 0 only gathers sources; then loop 0 is told at once.
 *
 * Nothing is written to local memory but pieces that matched elsewhere, and those are digested again where they came to
 * lie: what they were copied from may change at any time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "store/pull_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define GROUP_BYTES (16u << 20) /* pieces that one thread digests between looks at progress and cancellation */
#define SAMPLES 16u             /* pieces of a previous region that decide whether the rest is worth reading */
#define PAGE_BYTES 4096u
#define ZEROS_MAX_BYTES (64u << 20) /* larger pieces are always digested */

/* The pieces that begin in one span of local memory, and what a previous generation has for it. */
struct stretch {
    const uint8_t *previous; /* NULL: nothing */
    uint64_t previous_len;   /* at most the span's length */
    uint32_t first, count;   /* pieces */
    bool is_useless;         /* none of the samples matched; read when all samples have been taken */
};

struct reuse_job {
    struct pull *pull;
    const struct call *call;
    void (*tick)(void *arg);
    void *tick_arg;
    pthread_t caller;
    struct stretch *stretches; /* owned; as many as spans in local memory */
    uint8_t *is_here;          /* owned, per piece; one thread at a time has a piece */
    uint32_t pieces_per_group;
    bool has_zeros;
    struct digest zeros; /* of a whole piece of zeros */
    atomic_bool is_stopped;
    atomic_bool is_missing; /* with SHOAL_REUSE_ONLY: a piece is not here */
};

static bool is_zero(const uint8_t *data, size_t len)
{
    return data[0] == 0 && memcmp(data, data + 1, len - 1) == 0;
}

/* A piece that no earlier pull got to is a hole of zeros: reading two pages of it is enough. One that begins and ends
 * like a hole but is none is pulled again, which costs time only. */
static bool is_hole(const struct reuse_job *job, uint64_t offset, uint64_t len, const struct digest *wanted)
{
    const struct pull *pull = job->pull;
    const struct span *span = span_map_find(pull->local, offset);
    uint64_t skip = offset - span->start;
    const uint8_t *data = (const uint8_t *)(uintptr_t)(span->addr + skip);

    if (!job->has_zeros || len != pull->layout.piece_size || len < 2 * (uint64_t)PAGE_BYTES || span->len - skip < len ||
        digest_is_equal(wanted, &job->zeros))
        return false;
    return is_zero(data, PAGE_BYTES) && is_zero(data + len - PAGE_BYTES, PAGE_BYTES);
}

static bool is_in_place(struct reuse_job *job, struct digest_stream *stream, uint64_t offset, uint64_t len,
                        const struct digest *wanted)
{
    struct digest digest;

    if (is_hole(job, offset, len, wanted))
        return false;
    digest = fetch_digest(job->pull, stream, offset, len);
    return digest_is_equal(&digest, wanted);
}

/* Calls for the parts of a piece as the spans of local memory cut it: either digests what previous has for them, or
 * copies it. false: previous does not have all of it. */
static bool for_parts(struct reuse_job *job, uint64_t offset, uint64_t len, struct digest_stream *stream, bool copies)
{
    const struct span_map *local = job->pull->local;
    const struct span *span = span_map_find(local, offset);
    uint64_t skip = offset - span->start;

    for (uint64_t left = len; left; span++, skip = 0) {
        const struct stretch *stretch = &job->stretches[span - local->spans];
        uint64_t part = span->len - skip < left ? span->len - skip : left;

        if (!stretch->previous || stretch->previous_len < skip + part)
            return false;
        if (copies)
            memcpy((void *)(uintptr_t)(span->addr + skip), stretch->previous + skip, part);
        else
            digest_stream_update(stream, stretch->previous + skip, part);
        left -= part;
    }
    return true;
}

static bool is_in_previous(struct reuse_job *job, struct digest_stream *stream, uint64_t offset, uint64_t len,
                           const struct digest *wanted)
{
    const struct span *span = span_map_find(job->pull->local, offset);
    const struct stretch *stretch = &job->stretches[span - job->pull->local->spans];
    uint64_t skip = offset - span->start;
    struct digest digest;

    if (!stretch->previous)
        return false;
    if (span->len - skip >= len) {
        if (stretch->previous_len < skip + len)
            return false;
        digest = digest_of(stretch->previous + skip, len);
    } else {
        digest_stream_reset(stream);
        if (!for_parts(job, offset, len, stream, false))
            return false;
        digest = digest_stream_final(stream);
    }
    if (!digest_is_equal(&digest, wanted))
        return false;
    for_parts(job, offset, len, NULL, true);
    digest = fetch_digest(job->pull, stream, offset, len);
    return digest_is_equal(&digest, wanted);
}

/* false: the call is over. */
static bool go_on(struct reuse_job *job)
{
    if (call_check(job->call, NULL, ""))
        atomic_store_explicit(&job->is_stopped, true, memory_order_relaxed);
    else if (job->tick && pthread_equal(pthread_self(), job->caller))
        job->tick(job->tick_arg);
    return !atomic_load_explicit(&job->is_stopped, memory_order_relaxed);
}

static void note_match(struct reuse_job *job, uint32_t piece, uint64_t len)
{
    job->is_here[piece] = true;
    atomic_fetch_add_explicit(&job->pull->matched_bytes, len, memory_order_relaxed);
}

/* Another version of a file often differs everywhere, and reading all of it to learn that would only delay the pull. */
static bool sample_stretch(void *arg, size_t index)
{
    struct reuse_job *job = arg;
    struct stretch *stretch = &job->stretches[index];
    uint32_t samples = stretch->count < SAMPLES ? stretch->count : SAMPLES, matches = 0;
    struct digest_stream *stream;

    if (!stretch->previous || stretch->count <= SAMPLES)
        return true; /* there is nothing to save */
    stream = digest_stream_create();
    for (uint32_t i = 0; stream && i < samples; i++) {
        uint32_t piece = stretch->first + (uint32_t)((uint64_t)i * stretch->count / samples);
        struct digest wanted = index_digest(&job->pull->index, piece);
        uint64_t offset, len;

        layout_piece(&job->pull->layout, piece, &offset, &len);
        if (is_in_previous(job, stream, offset, len, &wanted)) {
            note_match(job, piece, len);
            matches++;
        }
    }
    digest_stream_destroy(stream);
    stretch->is_useless = !matches;
    return go_on(job);
}

static bool check_group(void *arg, size_t group)
{
    struct reuse_job *job = arg;
    struct pull *pull = job->pull;
    uint32_t first = (uint32_t)group * job->pieces_per_group, last = first + job->pieces_per_group;
    struct digest_stream *stream = digest_stream_create();
    uint64_t bytes = 0;

    if (last > pull->layout.piece_count)
        last = pull->layout.piece_count;
    for (uint32_t piece = first; piece < last && !atomic_load_explicit(&job->is_missing, memory_order_relaxed);
         piece++) {
        struct digest wanted = index_digest(&pull->index, piece);
        uint64_t offset, len;

        layout_piece(&pull->layout, piece, &offset, &len);
        bytes += len;
        if (job->is_here[piece])
            continue;
        if (!stream) /* without memory for it the pieces are pulled */
            ;
        else if ((pull->reuse && is_in_place(job, stream, offset, len, &wanted)) ||
                 is_in_previous(job, stream, offset, len, &wanted))
            note_match(job, piece, len);
        else if (pull->reuse == SHOAL_REUSE_ONLY)
            atomic_store_explicit(&job->is_missing, true, memory_order_relaxed);
    }
    digest_stream_destroy(stream);
    atomic_fetch_add_explicit(&pull->checked_bytes, bytes, memory_order_relaxed);
    return go_on(job) && !atomic_load_explicit(&job->is_missing, memory_order_relaxed);
}

static void digest_zeros(struct reuse_job *job)
{
    static const uint8_t zeros[PAGE_BYTES];
    uint64_t left = job->pull->layout.piece_size;
    struct digest_stream *stream = left <= ZEROS_MAX_BYTES ? digest_stream_create() : NULL;

    if (!stream)
        return;
    for (uint64_t part; left; left -= part) {
        part = left < sizeof zeros ? left : sizeof zeros;
        digest_stream_update(stream, zeros, part);
    }
    job->zeros = digest_stream_final(stream);
    job->has_zeros = true;
    digest_stream_destroy(stream);
}

static bool uses_previous(const struct pull *pull)
{
    return pull->previous && pull->reuse != SHOAL_REUSE_ONLY;
}

static void find_stretches(struct reuse_job *job)
{
    const struct pull *pull = job->pull;
    const struct span_map *local = pull->local;
    size_t at = 0;

    for (size_t i = 0; i < pull->region_count; i++) {
        uint64_t len = pull->regions[i].len_bytes;

        if (!len)
            continue; /* has no span */
        if (uses_previous(pull) && pull->previous[i].addr && pull->previous[i].len_bytes) {
            job->stretches[at].previous = pull->previous[i].addr;
            job->stretches[at].previous_len = pull->previous[i].len_bytes < len ? pull->previous[i].len_bytes : len;
        }
        at++;
    }
    at = 0;
    for (uint32_t piece = 0; piece < pull->layout.piece_count; piece++) {
        uint64_t offset, len;

        layout_piece(&pull->layout, piece, &offset, &len);
        while (offset - local->spans[at].start >= local->spans[at].len)
            at++;
        if (!job->stretches[at].count++)
            job->stretches[at].first = piece;
    }
}

static void tell_on_loop(void *arg)
{
    struct reuse_job *job = arg;
    struct pull *pull = job->pull;

    if (pull->phase >= PULL_ENDING)
        return;
    for (uint32_t piece = 0; piece < pull->layout.piece_count; piece++) {
        uint64_t offset, len;

        if (!job->is_here[piece])
            continue;
        layout_piece(&pull->layout, piece, &offset, &len);
        swarm_have(pull->swarm, piece);
        pull->early[pull->early_count++] = piece; /* this node is no source yet */
        pull->done_pieces++;
        pull->done_bytes += len;
    }
    pull->reused_bytes = pull->done_bytes;
    atomic_fetch_add_explicit(&pull->store->counters.bytes_reused, pull->reused_bytes, memory_order_relaxed);
    pull->is_checking = false;
    pull_review(pull);
}

enum shoal_status pull_reuse(struct pull *pull, const struct call *call, void (*tick)(void *arg), void *arg,
                             struct shoal_error *error)
{
    struct reuse_job job = {.pull = pull, .call = call, .tick = tick, .tick_arg = arg, .caller = pthread_self()};
    enum pull_phase phase = pull_wait(pull, PULL_PIECES, 0);
    enum shoal_status status = SHOAL_OK;
    uint64_t per_group;

    if (phase < PULL_PIECES || phase >= PULL_ENDING)
        return SHOAL_OK; /* it ended, or has nothing to fetch */
    job.stretches = calloc(pull->local->count + 1, sizeof *job.stretches);
    job.is_here = calloc((size_t)pull->layout.piece_count + 1, sizeof *job.is_here);
    if (!job.stretches || !job.is_here) {
        status = error_no_memory(error);
        goto out;
    }
    find_stretches(&job);
    digest_zeros(&job);
    per_group = GROUP_BYTES / pull->layout.piece_size;
    job.pieces_per_group = per_group < 1 ? 1 : per_group > 65536 ? 65536 : (uint32_t)per_group;
    if (uses_previous(pull))
        pool_for(pull->store->pool, pull->local->count, sample_stretch, &job);
    for (size_t i = 0; i < pull->local->count; i++) {
        if (job.stretches[i].is_useless)
            job.stretches[i].previous = NULL;
    }
    if (!atomic_load_explicit(&job.is_stopped, memory_order_relaxed))
        pool_for(pull->store->pool, (pull->layout.piece_count + job.pieces_per_group - 1) / job.pieces_per_group,
                 check_group, &job);
    if (atomic_load_explicit(&job.is_stopped, memory_order_relaxed))
        status = call_check(call, error, "looking at what is there");
    else if (atomic_load_explicit(&job.is_missing, memory_order_relaxed))
        status = error_set(error, SHOAL_NOT_FOUND, 0, "not all of it is in the regions");
    if (!status)
        loop_call(engine_loop(pull->store->engine), tell_on_loop, &job);
out:
    free(job.is_here);
    free(job.stretches);
    return status;
}
