/* SPDX-License-Identifier: Apache-2.0 */
/* One piece: as many one-sided READs as region boundaries on both sides ask for, then its digest. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/pull_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define STALL_CHECK_MS 100

static void on_part_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error);

/* On a data loop: the bytes are in its cache now, and digesting costs half as much as later. Or on a thread of the
 * device, before they leave host memory. */
static void on_arrived(struct engine_op *op, const void *data, uint64_t offset, uint64_t len)
{
    struct fetch *fetch = op->arg;

    offset += fetch->part_offset;
    if (offset == 0) {
        digest_stream_reset(fetch->stream);
        fetch->digested = 0;
    }
    if (offset != fetch->digested)
        return;
    digest_stream_update(fetch->stream, data, len);
    fetch->digested += len;
}

/* Gives the engine the next stretch that is contiguous on both sides. */
static void submit_part(struct fetch *fetch, struct engine_op *op)
{
    struct pull *pull = fetch->source->pull;
    uint64_t at = fetch->offset + fetch->submitted, len = fetch->len - fetch->submitted;
    const struct span *local = span_map_find(pull->local, at);
    const struct span *remote = span_map_find(&fetch->source->spans, at);

    if (len > local->start + local->len - at)
        len = local->start + local->len - at;
    if (len > remote->start + remote->len - at)
        len = remote->start + remote->len - at;
    *op = (struct engine_op){
        .op = SHOAL_OP_READ,
        .segment = fetch->source->segment,
        .local = (void *)(uintptr_t)(local->addr + (at - local->start)),
        .remote_addr = remote->addr + (at - remote->start),
        .remote_key = remote->key,
        .len_bytes = len,
        .done = on_part_done,
        .arrived = fetch->stream ? on_arrived : NULL,
        .arg = fetch,
    };
    fetch->part_offset = fetch->submitted;
    fetch->submitted += len;
    fetch->active_parts++;
    fetch->source->request_count++;
    engine_submit(pull->store->engine, op);
}

struct digest fetch_digest(const struct pull *pull, struct digest_stream *stream, uint64_t offset, uint64_t len)
{
    const struct span *span = span_map_find(pull->local, offset);
    uint64_t skip = offset - span->start;

    if (span->len - skip >= len)
        return digest_of((const void *)(uintptr_t)(span->addr + skip), len);
    digest_stream_reset(stream);
    for (uint64_t left = len; left; span++, skip = 0) {
        uint64_t part = span->len - skip < left ? span->len - skip : left;
        digest_stream_update(stream, (const void *)(uintptr_t)(span->addr + skip), part);
        left -= part;
    }
    return digest_stream_final(stream);
}

static void accept_piece(struct fetch *fetch)
{
    struct pull_source *source = fetch->source;
    struct pull *pull = source->pull;

    pull->last_progress_ms = clock_now_ms();
    source->failures_in_row = 0;
    source->stats.bytes += fetch->len;
    pull->done_bytes += fetch->len;
    pull->done_pieces++;
    atomic_fetch_add_explicit(&pull->store->counters.pieces_verified, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pull->store->counters.bytes_pulled, fetch->len, memory_order_relaxed);
    swarm_done(pull->swarm, source->number, fetch->piece, pull->last_progress_ms);
    if (pull->payload)
        serve_piece_verified(pull->payload, fetch->piece, swarm_is_urgent(pull->swarm, fetch->piece));
    else
        pull->early[pull->early_count++] = fetch->piece;
}

static void reject_piece(struct fetch *fetch)
{
    struct pull_source *source = fetch->source;
    struct pull *pull = source->pull;

    source->stats.bad_pieces++;
    pull->is_bad_seen = true;
    atomic_fetch_add_explicit(&pull->store->counters.pieces_bad, 1, memory_order_relaxed);
    error_set(&pull->bad_error, SHOAL_CORRUPTED, 0,
              "payload '%s': source %s served wrong bytes for piece %u (offset %" PRIu64 ", %" PRIu64 " bytes)",
              pull->name, source->entry.name, fetch->piece, fetch->offset, fetch->len);
    LOG_WARN("%s", pull->bad_error.message);
    swarm_failed(pull->swarm, source->number, fetch->piece);
    swarm_source_lacks(pull->swarm, source->number, fetch->piece);
}

static void finish(struct fetch *fetch)
{
    struct pull_source *source = fetch->source;
    struct pull *pull = source->pull;
    struct digest wanted = index_digest(&pull->index, fetch->piece), got;

    list_remove(&fetch->node);
    if (fetch->status) {
        swarm_failed(pull->swarm, source->number, fetch->piece);
        /* INVALID_ARGUMENT: the source unregistered the memory. IO: it cannot read it. Neither heals by asking again. A
         * fetch that we canceled says nothing about the source. */
        if (!fetch->is_canceled)
            source_fail(source, fetch->status == SHOAL_INVALID_ARGUMENT || fetch->status == SHOAL_IO, &fetch->error);
    } else if (pull->is_stopping) {
        swarm_failed(pull->swarm, source->number, fetch->piece);
    } else if (pull->no_verify) {
        accept_piece(fetch);
    } else {
        assert(!pull->is_device || (fetch->stream && fetch->digested == fetch->len));
        got = fetch->stream && fetch->digested == fetch->len
                  ? digest_stream_final(fetch->stream)
                  : fetch_digest(pull, pull->stream, fetch->offset, fetch->len);
        if (digest_is_equal(&got, &wanted))
            accept_piece(fetch);
        else
            reject_piece(fetch);
    }
    digest_stream_destroy(fetch->stream);
    free(fetch);
}

static void on_part_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct fetch *fetch = op->arg;
    struct pull_source *source = fetch->source;
    struct pull *pull = source->pull;

    fetch->active_parts--;
    if (status && !fetch->status) {
        fetch->status = status;
        if (error)
            fetch->error = *error;
        else
            error_set(&fetch->error, status, 0, "%s: %s", source->entry.name, shoal_status_text(status));
        for (unsigned i = 0; i < fetch->part_count; i++) {
            if (fetch->parts[i].arg && &fetch->parts[i] != op)
                engine_op_cancel(pull->store->engine, &fetch->parts[i]);
        }
    }
    op->arg = NULL;
    if (!fetch->status && !fetch->is_canceled && fetch->submitted < fetch->len)
        submit_part(fetch, op);
    else if (fetch->is_canceled && !fetch->status && fetch->submitted < fetch->len)
        fetch->status = SHOAL_CANCELED;
    if (!fetch->active_parts)
        finish(fetch);
    source_request_ended(source);
    pull_review(pull);
}

/* Whether the piece is contiguous on both sides. */
static bool is_one_part(const struct fetch *fetch)
{
    const struct span *local = span_map_find(fetch->source->pull->local, fetch->offset);
    const struct span *remote = span_map_find(&fetch->source->spans, fetch->offset);
    uint64_t end = fetch->offset + fetch->len;

    return end <= local->start + local->len && end <= remote->start + remote->len;
}

static bool fetch_begin(struct pull *pull, struct pull_source *source, uint32_t piece)
{
    struct fetch *fetch = calloc(1, sizeof *fetch);
    unsigned parts_max = FETCH_PARTS_MAX;

    if (!fetch)
        return false;
    fetch->source = source;
    fetch->piece = piece;
    layout_piece(&pull->layout, piece, &fetch->offset, &fetch->len);
    if (!pull->no_verify && (pull->is_device || is_one_part(fetch)))
        fetch->stream = digest_stream_create();
    if (pull->is_device && !pull->no_verify) {
        if (!fetch->stream) {
            free(fetch);
            return false;
        }
        parts_max = 1;
    }
    list_push_back(&pull->fetches, &fetch->node);
    while (fetch->part_count < parts_max && fetch->submitted < fetch->len)
        submit_part(fetch, &fetch->parts[fetch->part_count++]);
    return true;
}

static struct pull_source *source_of_number(struct pull *pull, uint32_t number)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->number == number)
            return source;
    }
    return NULL;
}

static void fetch_cancel(struct fetch *fetch)
{
    struct pull *pull = fetch->source->pull;

    if (fetch->is_canceled)
        return;
    fetch->is_canceled = true;
    for (unsigned i = 0; i < fetch->part_count; i++) {
        if (fetch->parts[i].arg)
            engine_op_cancel(pull->store->engine, &fetch->parts[i]);
    }
}

void fetch_cancel_of_source(struct pull_source *source)
{
    LIST_FOR_EACH (fetch, &source->pull->fetches, struct fetch, node) {
        if (fetch->source == source)
            fetch_cancel(fetch);
    }
}

static struct fetch *fetch_of_piece(struct pull *pull, uint32_t piece)
{
    LIST_FOR_EACH (fetch, &pull->fetches, struct fetch, node) {
        if (fetch->piece == piece)
            return fetch;
    }
    return NULL;
}

void fetch_schedule(struct pull *pull)
{
    int64_t now = clock_now_ms();
    uint32_t number, piece, wanted, outstanding;

    while (swarm_next(pull->swarm, now, &number, &piece)) {
        if (!fetch_begin(pull, source_of_number(pull, number), piece)) {
            swarm_failed(pull->swarm, number, piece);
            swarm_source_avoid(pull->swarm, number, now + 100); /* no memory: a breath */
        }
    }
    while (swarm_next_claim(pull->swarm, now, &number, &wanted, &outstanding))
        source_claim(source_of_number(pull, number), wanted, outstanding);
    /* Looks at every piece when there is a stall: not after every completion. */
    if (now < pull->next_stall_check_ms)
        return;
    pull->next_stall_check_ms = now + STALL_CHECK_MS;
    while (swarm_next_stalled(pull->swarm, now, &number, &piece)) {
        struct fetch *fetch = fetch_of_piece(pull, piece);
        if (!fetch || fetch->is_canceled)
            break;
        LOG_INFO("payload '%s': source %s stalls, piece %u goes to another", pull->name, fetch->source->entry.name,
                 piece);
        fetch_cancel(fetch);
    }
}
