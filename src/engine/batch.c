/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: many operations, one thing to wait for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/batch_internal.h"

#define BATCH_CAPACITY_MAX 65536
#define REQUEST_MAX_BYTES (1ull << 40)

static enum shoal_transfer_state state_of(enum shoal_status status)
{
    switch (status) {
    case SHOAL_OK:
        return SHOAL_TRANSFER_COMPLETED;
    case SHOAL_INVALID_ARGUMENT:
        return SHOAL_TRANSFER_INVALID;
    case SHOAL_CANCELED:
        return SHOAL_TRANSFER_CANCELED;
    case SHOAL_TIMED_OUT:
        return SHOAL_TRANSFER_TIMEOUT;
    default:
        return SHOAL_TRANSFER_FAILED;
    }
}

/* Makes the descriptor, if there is one, readable (or not), with batch->mutex held. */
static void set_readable(struct shoal_batch *batch, bool is_readable)
{
    uint64_t value = 1;
    ssize_t result;

    if (batch->fd < 0)
        return;
    result = is_readable ? write(batch->fd, &value, sizeof value) : read(batch->fd, &value, sizeof value);
    (void)result;
}

static void entry_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct batch_entry *entry = op->arg;
    struct shoal_batch *batch = entry->batch;
    size_t index = (size_t)(entry - batch->entries);

    mutex_lock(&batch->mutex);
    entry->state = state_of(status);
    if (status != SHOAL_OK && index < batch->first_failed) {
        batch->first_failed = index;
        if (error)
            batch->first_error = *error;
        else
            error_set(&batch->first_error, status, 0, "request %zu: %s", index, shoal_status_text(status));
    }
    if (--batch->pending == 0) {
        set_readable(batch, true);
        cond_broadcast(&batch->changed);
    }
    mutex_unlock(&batch->mutex); /* the last: the batch may be gone after this */
}

enum shoal_status shoal_batch_create(struct shoal_engine *engine, size_t capacity, struct shoal_batch **batch_out,
                                     struct shoal_error *error)
{
    struct shoal_batch *batch;

    if (!engine || !batch_out || capacity < 1 || capacity > BATCH_CAPACITY_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine and result are required, capacity is 1..%d",
                         BATCH_CAPACITY_MAX);
    batch = calloc(1, sizeof *batch + capacity * sizeof batch->entries[0]);
    if (!batch)
        return error_no_memory(error);
    batch->fd = -1;
    batch->engine = engine;
    batch->capacity = capacity;
    batch->first_failed = SIZE_MAX;
    mutex_init(&batch->mutex, RANK_ENGINE);
    cond_init(&batch->changed);
    *batch_out = batch;
    return SHOAL_OK;
}

/* One wake-up of the loop for all of a submission. The batch may be gone when the last one was started. */
static void start_span(void *arg)
{
    struct batch_entry *first = arg;
    size_t span = first->span;

    for (size_t i = 0; i < span; i++)
        engine_op_start(&first[i].op);
}

enum shoal_status shoal_batch_submit(struct shoal_batch *batch, const struct shoal_request *requests, size_t count,
                                     struct shoal_error *error)
{
    struct batch_entry *first;

    if (!batch || (!requests && count))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "batch and requests are required");
    if (count > batch->capacity - batch->count)
        return error_set(error, SHOAL_LIMIT, 0, "%zu more requests do not fit into a batch of %zu that has %zu", count,
                         batch->capacity, batch->count);
    for (size_t i = 0; i < count; i++) {
        const struct shoal_request *request = &requests[i];

        if ((request->op != SHOAL_OP_READ && request->op != SHOAL_OP_WRITE) || !request->segment || !request->local ||
            request->len_bytes < 1 || request->len_bytes > REQUEST_MAX_BYTES)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "request %zu: needs READ or WRITE, a segment, local memory and 1..2^40 bytes", i);
        if (request->segment->engine != batch->engine)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "request %zu: segment and batch have different engines",
                             i);
    }
    if (count == 0)
        return SHOAL_OK;
    engine_direct_drive(batch, DEADLINE_PAST); /* gives back what is not needed any more */
    mutex_lock(&batch->mutex);
    if (batch->pending == 0)
        set_readable(batch, false);
    batch->pending += count;
    for (size_t i = 0; i < count; i++) {
        struct batch_entry *entry = &batch->entries[batch->count + i];

        entry->batch = batch;
        entry->state = SHOAL_TRANSFER_PENDING;
        entry->op = (struct engine_op){.op = requests[i].op,
                                       .segment = requests[i].segment,
                                       .local = requests[i].local,
                                       .remote_addr = requests[i].remote_addr,
                                       .remote_key = requests[i].remote_key,
                                       .len_bytes = requests[i].len_bytes,
                                       .done = entry_done,
                                       .arg = entry};
    }
    mutex_unlock(&batch->mutex);
    first = &batch->entries[batch->count];
    first->span = count;
    for (size_t i = 0; i < count; i++)
        engine_op_prepare(batch->engine, &first[i].op);
    __atomic_store_n(&batch->count, batch->count + count, __ATOMIC_RELEASE); /* pairs with cancel_on_loop */
    if (!engine_direct_submit(batch, first, count))
        loop_post(batch->engine->loops[0], &first->op.task, start_span, first);
    return SHOAL_OK;
}

enum shoal_status shoal_batch_status(const struct shoal_batch *batch, size_t index,
                                     struct shoal_transfer_status *status_out)
{
    struct shoal_batch *locked = (struct shoal_batch *)(uintptr_t)batch;
    const struct batch_entry *entry;

    if (!batch || !status_out || index >= batch->count)
        return SHOAL_INVALID_ARGUMENT;
    engine_direct_drive(locked, DEADLINE_PAST);
    entry = &batch->entries[index];
    mutex_lock(&locked->mutex);
    status_out->state = entry->state;
    status_out->status = entry->state == SHOAL_TRANSFER_PENDING ? SHOAL_OK : entry->op.status;
    status_out->transferred_bytes = entry->state == SHOAL_TRANSFER_PENDING ? 0 : entry->op.transferred_bytes;
    mutex_unlock(&locked->mutex);
    return SHOAL_OK;
}

enum shoal_status shoal_batch_wait(struct shoal_batch *batch, int64_t timeout_ms, struct shoal_error *error)
{
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    enum shoal_status status = SHOAL_OK;

    if (!batch)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "batch is required");
    engine_direct_drive(batch, deadline_ms);
    mutex_lock(&batch->mutex);
    while (batch->pending > 0 && cond_wait_until(&batch->changed, &batch->mutex, deadline_ms))
        ;
    if (batch->pending > 0)
        status =
            error_set(error, SHOAL_TIMED_OUT, 0, "%zu of %zu requests are still pending", batch->pending, batch->count);
    else if (batch->first_failed != SIZE_MAX)
        status = error_copy(error, &batch->first_error);
    mutex_unlock(&batch->mutex);
    engine_direct_settle(batch);
    return status;
}

int shoal_batch_fd(const struct shoal_batch *batch)
{
    struct shoal_batch *owned = (struct shoal_batch *)(uintptr_t)batch;

    if (!batch)
        return -1;
    if (owned->fd < 0) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

        mutex_lock(&owned->mutex);
        owned->fd = fd;
        if (owned->pending == 0)
            set_readable(owned, true);
        mutex_unlock(&owned->mutex);
    }
    engine_direct_hand_over(owned);
    return owned->fd;
}

static void cancel_on_loop(void *arg)
{
    struct shoal_batch *batch = arg;
    size_t count = __atomic_load_n(&batch->count, __ATOMIC_ACQUIRE); /* pairs with submit */

    for (size_t i = 0; i < count; i++) {
        bool is_pending;

        /* Other operations end on this thread only, so what is pending here stays so meanwhile. */
        mutex_lock(&batch->mutex);
        is_pending = batch->entries[i].state == SHOAL_TRANSFER_PENDING && !engine_op_is_taken(&batch->entries[i].op);
        mutex_unlock(&batch->mutex);
        if (is_pending)
            engine_op_cancel(batch->engine, &batch->entries[i].op);
    }
}

void shoal_batch_cancel(struct shoal_batch *batch)
{
    bool is_pending;

    if (!batch)
        return;
    engine_direct_cancel(batch);
    mutex_lock(&batch->mutex);
    is_pending = batch->pending > 0;
    mutex_unlock(&batch->mutex);
    if (is_pending)
        loop_call(batch->engine->loops[0], cancel_on_loop, batch);
}

void shoal_batch_destroy(struct shoal_batch *batch)
{
    if (!batch)
        return;
    shoal_batch_cancel(batch);
    (void)shoal_batch_wait(batch, -1, NULL);
    if (batch->fd >= 0)
        close(batch->fd);
    cond_release(&batch->changed);
    mutex_release(&batch->mutex);
    free(batch);
}
