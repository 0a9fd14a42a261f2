/* SPDX-License-Identifier: Apache-2.0 */
/* Small submissions of a batch that the application's own threads carry out (transport.h: struct transport_direct_ops):
 * when they may go that way, and what becomes of them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#include "engine/batch_internal.h"

/* Whoever wants to poll a descriptor is not going to wait: the next submissions of the engine go the usual way. */
#define PAUSE_SUBMISSIONS 64

static bool is_on_loop(const struct shoal_engine *engine)
{
    for (unsigned i = 0; i < engine->loop_count; i++)
        if (loop_is_current(engine->loops[i]))
            return true;
    return false;
}

static bool is_paused(struct shoal_engine *engine)
{
    unsigned left = __atomic_load_n(&engine->direct_pause, __ATOMIC_RELAXED);

    if (left > 0)
        __atomic_store_n(&engine->direct_pause, left - 1, __ATOMIC_RELAXED); /* a hint: a lost count does no harm */
    return left > 0;
}

static bool is_suitable(const struct shoal_batch *batch, const struct batch_entry *first, size_t count)
{
    uint64_t bytes = 0;

    if (count > TRANSPORT_DIRECT_REQUESTS_MAX || batch->direct || batch->fd >= 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct engine_op *op = &first[i].op;

        if (op->status != SHOAL_OK || op->len_bytes > TRANSPORT_DIRECT_BYTES_MAX ||
            op->segment->peer != first->op.segment->peer || strncmp(memory_location(op->local_region), "cuda:", 5) == 0)
            return false;
        bytes += op->len_bytes;
    }
    return bytes <= TRANSPORT_DIRECT_BYTES_MAX && !is_on_loop(batch->engine) && !is_paused(batch->engine);
}

struct outcome {
    struct engine_op *op;
    enum shoal_status status;
    struct shoal_error *error; /* owned */
    bool is_repeatable;
};

/* Neither the connection (once the batch can know that this ran) nor the batch (once its last operation has ended) may
 * be touched any more. */
static void finished(void *arg, struct transport_request *requests, size_t count)
{
    struct outcome outcomes[TRANSPORT_DIRECT_REQUESTS_MAX];
    struct shoal_batch *batch = arg;
    struct shoal_engine *engine = batch->engine;
    const struct transport_direct_ops *ops = batch->direct_ops;

    for (size_t i = 0; i < count; i++) {
        struct engine_op *op = requests[i].arg;

        outcomes[i] = (struct outcome){op, requests[i].status, requests[i].error, requests[i].is_repeatable};
        op->transferred_bytes = requests[i].transferred_bytes;
    }
    mutex_lock(&batch->mutex);
    for (size_t i = 0; i < count; i++) {
        struct engine_op *op = outcomes[i].op;

        if (!outcomes[i].is_repeatable)
            continue;
        if (batch->is_direct_canceled) {
            outcomes[i].status = SHOAL_CANCELED;
            outcomes[i].is_repeatable = false;
        } else {
            engine_op_requeue(op); /* a cancel from now on finds it */
        }
    }
    batch->is_direct_running = false;
    mutex_unlock(&batch->mutex);
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i].is_repeatable)
            engine_op_start_soon(engine, outcomes[i].op);
        else
            engine_op_finish(outcomes[i].op, ops, outcomes[i].status, outcomes[i].error);
    }
}

bool engine_direct_submit(struct shoal_batch *batch, struct batch_entry *first, size_t count)
{
    struct transport_request requests[TRANSPORT_DIRECT_REQUESTS_MAX];
    const struct transport_direct_ops *ops;
    struct transport_direct *direct;
    struct transport_peer *remote;
    struct engine_peer *peer;

    if (!is_suitable(batch, first, count))
        return false;
    peer = first->op.segment->peer;
    for (size_t i = 0; i < count; i++)
        first[i].op.wants_direct = true;
    remote = __atomic_load_n(&peer->direct, __ATOMIC_ACQUIRE); /* pairs with publish_direct */
    if (!remote || deadline_is_past(__atomic_load_n(&peer->direct_until_ms, __ATOMIC_RELAXED)))
        return false;
    ops = __atomic_load_n(&peer->direct_ops, __ATOMIC_RELAXED);
    for (size_t i = 0; i < count; i++) {
        struct engine_op *op = &first[i].op;

        engine_op_take(op);
        requests[i] = (struct transport_request){.op = op->op,
                                                 .local = op->local,
                                                 .remote_addr = op->remote_addr,
                                                 .remote_key = op->remote_key,
                                                 .len_bytes = op->len_bytes,
                                                 .local_region = op->local_region,
                                                 .arg = op};
    }
    batch->direct_ops = ops;
    batch->is_direct_running = true;
    batch->is_direct_canceled = false;
    direct = ops->submit(remote, requests, count, finished, batch);
    if (!direct) {
        batch->is_direct_running = false;
        for (size_t i = 0; i < count; i++)
            engine_op_requeue(&first[i].op);
        return false;
    }
    batch->direct = direct;
    return true;
}

void engine_direct_settle(struct shoal_batch *batch)
{
    struct transport_direct *direct = batch->direct;
    bool is_running;

    if (!direct)
        return;
    mutex_lock(&batch->mutex);
    is_running = batch->is_direct_running;
    if (!is_running)
        batch->direct = NULL;
    mutex_unlock(&batch->mutex);
    if (!is_running)
        batch->direct_ops->release(direct);
}

void engine_direct_drive(struct shoal_batch *batch, int64_t deadline_ms)
{
    if (!batch->direct)
        return;
    batch->direct_ops->drive(batch->direct, deadline_ms);
    engine_direct_settle(batch);
}

void engine_direct_hand_over(struct shoal_batch *batch)
{
    if (!batch->direct)
        return;
    __atomic_store_n(&batch->engine->direct_pause, PAUSE_SUBMISSIONS, __ATOMIC_RELAXED);
    batch->direct_ops->hand_over(batch->direct);
    engine_direct_settle(batch);
}

void engine_direct_cancel(struct shoal_batch *batch)
{
    mutex_lock(&batch->mutex);
    batch->is_direct_canceled = true;
    if (batch->direct)
        batch->direct_ops->cancel(batch->direct);
    mutex_unlock(&batch->mutex);
}
