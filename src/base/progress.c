/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"

#include "base/clock.h"
#include "base/error.h"

#define INTERVAL_MS 200
#define INTERVAL_MAX_MS 60000u

enum shoal_status call_progress_init(struct call *call, struct call_progress *progress,
                                     const struct shoal_call *public_call, struct shoal_error *error)
{
    if (!public_call || public_call->struct_size < sizeof *public_call || !public_call->progress)
        return SHOAL_OK;
    if (public_call->progress_interval_ms < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "struct shoal_call: progress interval is negative");
    *progress = (struct call_progress){
        .fn = public_call->progress,
        .arg = public_call->progress_arg,
        .interval_ms = public_call->progress_interval_ms ? public_call->progress_interval_ms : INTERVAL_MS,
        .started_ms = clock_now_ms()};
    progress->next_ms = deadline_after_ms(progress->interval_ms);
    call->progress = progress;
    return SHOAL_OK;
}

static void tell(struct call_progress *progress)
{
    const struct shoal_progress now = {.total_bytes = progress->total_bytes,
                                       .done_bytes = progress->done_bytes,
                                       .elapsed_ms = (uint64_t)(clock_now_ms() - progress->started_ms)};

    progress->fn(progress->arg, &now);
    progress->next_ms = deadline_after_ms(progress->interval_ms);
}

static uint64_t bounded(const struct call_progress *progress, uint64_t done_bytes)
{
    return done_bytes < progress->total_bytes ? done_bytes : progress->total_bytes;
}

void call_progress_set_total(const struct call *call, uint64_t total_bytes)
{
    struct call_progress *progress = call->progress;

    if (!progress)
        return;
    progress->total_bytes = total_bytes;
    progress->done_bytes = bounded(progress, progress->done_bytes); /* another value came in between */
}

void call_progress_at(const struct call *call, uint64_t done_bytes)
{
    struct call_progress *progress = call->progress;

    if (!progress)
        return;
    done_bytes = bounded(progress, progress->past_bytes + done_bytes);
    if (done_bytes > progress->done_bytes)
        progress->done_bytes = done_bytes;
    if (deadline_is_past(progress->next_ms))
        tell(progress);
}

void call_progress_part(const struct call *call, uint64_t len_bytes)
{
    if (!call->progress)
        return;
    call->progress->past_bytes += len_bytes;
    call_progress_at(call, 0);
}

int64_t call_progress_next_ms(const struct call *call)
{
    return call->progress ? call->progress->next_ms : DEADLINE_NONE;
}

uint32_t call_progress_interval_ms(const struct call *call)
{
    return call->progress->interval_ms < INTERVAL_MAX_MS ? (uint32_t)call->progress->interval_ms : INTERVAL_MAX_MS;
}

void call_progress_end(const struct call *call, bool is_ok)
{
    struct call_progress *progress = call->progress;

    if (!progress)
        return;
    if (is_ok)
        progress->done_bytes = progress->total_bytes;
    tell(progress);
}
