/* SPDX-License-Identifier: Apache-2.0 */
/* One asynchronous operation: pins its local memory, finds its way to a transport on loop 0, ends exactly once. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine_internal.h"

#define SPARE_XFERS_MAX 1024

enum op_state {
    OP_QUEUED = 1,   /* its task is on its way to loop 0 */
    OP_STARTED = 2,  /* a transport has it */
    OP_CANCELED = 3, /* still queued, but unwanted */
    OP_ENDING = 4,   /* outcome is known, its task is on its way */
    OP_STOPPING = 5, /* a transport has it and was asked to end it */
    OP_TAKEN = 6,    /* on a direct connection of its batch */
    OP_STAGED = 7,   /* goes in parts: stage.c has it */
};

/* What private_data holds. */
enum op_private {
    OP_PEER,
    OP_XFER,  /* or the struct engine_stage of a staged one */
    OP_WHOLE, /* of a part: the operation that it is part of, whose pins and counts it shares */
};

/* The transport's part of an operation; only an operation that a transport has needs one. */
struct engine_xfer {
    struct transport_request request;
    const struct transport_ops *ops; /* who has it */
    struct list_node node;           /* in spare_xfers */
};

static struct engine_peer *op_peer(const struct engine_op *op)
{
    return op->private_data[OP_PEER];
}

/* NULL: its local memory can be reached by every transport. */
static struct device *op_device(const struct engine_op *op)
{
    return op->private_data[OP_WHOLE] ? NULL : memory_device(op->local_region);
}

static void op_set_error(struct engine_op *op, enum shoal_status status, const char *text)
{
    op->status = status;
    op->error = malloc(sizeof *op->error);
    if (op->error)
        error_set(op->error, status, 0, "%s", text);
}

void engine_op_end(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct engine_peer *peer = op_peer(op);
    struct shoal_engine *engine = peer->engine;
    struct engine_counters *counters = &engine->counters;

    assert(op->state == OP_TAKEN || loop_is_current(engine->loops[0]));
    if (op->private_data[OP_WHOLE]) {
        op->status = status;
        op->done(op, status, error); /* the last: with it the whole may have ended */
        return;
    }
    if (op->local_region)
        memory_unpin(engine->memory, op->local_region);
    op->local_region = NULL;
    engine_count(status == SHOAL_OK         ? &counters->ops_completed
                 : status == SHOAL_CANCELED ? &counters->ops_canceled
                                            : &counters->ops_failed);
    op->status = status;
    engine_peer_unref(peer);
    op->done(op, status, error);
    mutex_lock(&engine->mutex);
    if (--engine->active_ops == 0)
        cond_broadcast(&engine->changed);
    mutex_unlock(&engine->mutex);
}

static void op_end_posted(void *arg)
{
    struct engine_op *op = arg;
    struct shoal_error *error = op->error;

    op->error = NULL;
    engine_op_end(op, op->status, error);
    free(error);
}

static void xfer_free(struct shoal_engine *engine, struct engine_xfer *xfer)
{
    if (engine->spare_xfer_count >= SPARE_XFERS_MAX) {
        free(xfer);
        return;
    }
    engine->spare_xfer_count++;
    list_push_front(&engine->spare_xfers, &xfer->node);
}

void engine_release_spares(struct shoal_engine *engine)
{
    struct list_node *node;

    while ((node = list_pop_front(&engine->spare_xfers)))
        free(container_of(node, struct engine_xfer, node));
    engine->spare_xfer_count = 0;
}

static void xfer_done(struct transport_request *request, enum shoal_status status, const struct shoal_error *error);

/* Gives the operation to the best transport behind after (NULL: of all). NULL: none takes it, and error says why. */
static struct engine_path *xfer_start(struct engine_op *op, struct engine_xfer *xfer, const struct transport_ops *after,
                                      struct shoal_error *error);

static bool is_unwanted(const struct engine_op *op)
{
    const struct shoal_engine *engine = op_peer(op)->engine;

    return op->state == OP_CANCELED || op->state == OP_STOPPING || engine->is_closing ||
           memory_is_dying(engine->memory, op->local_region);
}

/* No transport reaches the device memory of the operation: it goes through staging buffers. false: out of memory. */
static bool op_stage(struct engine_op *op)
{
    op->state = OP_STAGED;
    op->private_data[OP_XFER] = engine_stage_start(op, op_peer(op)->engine);
    return op->private_data[OP_XFER] != NULL;
}

/* The transport cannot carry it: another may. */
static bool xfer_goes_on(struct engine_op *op, struct engine_xfer *xfer, const struct shoal_error *error)
{
    const struct transport_request refused = xfer->request;
    const struct transport_ops *refuser = xfer->ops;
    struct engine_peer *peer = op_peer(op);
    struct shoal_error why;

    assert(refused.transferred_bytes == 0);
    if (!xfer_start(op, xfer, refuser, &why)) {
        if (!op_device(op))
            return false;
        list_remove(&op->node);
        if (!op_stage(op)) {
            list_push_back(&peer->engine->started, &op->node);
            return false;
        }
        xfer_free(peer->engine, xfer);
    }
    engine_path_refused(peer, refuser, &refused, error);
    return true;
}

static void xfer_done(struct transport_request *request, enum shoal_status status, const struct shoal_error *error)
{
    struct engine_xfer *xfer = container_of(request, struct engine_xfer, request);
    struct engine_op *op = request->arg;

    if (status == SHOAL_UNSUPPORTED && is_unwanted(op)) {
        status = SHOAL_CANCELED;
        error = NULL;
    } else if (status == SHOAL_UNSUPPORTED) {
        if (xfer_goes_on(op, xfer, error))
            return;
    } else {
        engine_path_worked(op_peer(op), xfer->ops, status == SHOAL_OK, request->len_bytes);
    }
    list_remove(&op->node);
    op->transferred_bytes = request->transferred_bytes;
    xfer_free(op_peer(op)->engine, xfer);
    engine_op_end(op, status, error);
}

static void xfer_arrived(struct transport_request *request, uint64_t offset_bytes, uint64_t len_bytes)
{
    struct engine_op *op = request->arg;

    op->arrived(op, (const char *)request->local + offset_bytes, offset_bytes, len_bytes);
}

static struct engine_path *xfer_start(struct engine_op *op, struct engine_xfer *xfer, const struct transport_ops *after,
                                      struct shoal_error *error)
{
    unsigned caps = op->op == SHOAL_OP_READ ? TRANSPORT_CAP_READ : TRANSPORT_CAP_WRITE;
    struct engine_peer *peer = op_peer(op);
    struct engine_path *path;

    if (op_device(op))
        caps |= TRANSPORT_CAP_DEVICE;
    xfer->request = (struct transport_request){.op = op->op,
                                               .local = op->local,
                                               .remote_addr = op->remote_addr,
                                               .remote_key = op->remote_key,
                                               .len_bytes = op->len_bytes,
                                               .done = xfer_done,
                                               .arrived = op->arrived ? xfer_arrived : NULL,
                                               .local_region = op->local_region,
                                               .wants_direct = op->wants_direct,
                                               .arg = op};
    do {
        path = engine_peer_path(peer, after, caps, error);
        if (!path)
            return NULL;
        after = path->ops;
    } while (!path->ops->accepts(path->remote, &xfer->request));
    xfer->ops = path->ops;
    path->ops->submit(path->remote, &xfer->request);
    return path;
}

/* Hands the operation to a transport; not OK: op->error may be set. */
static enum shoal_status op_start(struct engine_op *op)
{
    struct engine_peer *peer = op_peer(op);
    struct shoal_engine *engine = peer->engine;
    struct engine_xfer *xfer;
    struct shoal_error error;
    struct list_node *node;

    if (op->status != SHOAL_OK)
        return op->status;
    if (is_unwanted(op))
        return SHOAL_CANCELED;
    /* Who wants to see what arrives would have to fetch it from the device again. */
    if (op_device(op) && op->arrived)
        return op_stage(op) ? SHOAL_OK : SHOAL_NO_MEMORY;
    node = list_pop_front(&engine->spare_xfers);
    if (node)
        engine->spare_xfer_count--;
    xfer = node ? container_of(node, struct engine_xfer, node) : malloc(sizeof *xfer);
    if (!xfer)
        return SHOAL_NO_MEMORY;
    memset(xfer, 0, sizeof *xfer);
    if (!xfer_start(op, xfer, NULL, &error)) {
        xfer_free(engine, xfer);
        if (op_device(op))
            return op_stage(op) ? SHOAL_OK : SHOAL_NO_MEMORY;
        op_set_error(op, error.status, error.message);
        return error.status;
    }
    op->private_data[OP_XFER] = xfer;
    op->state = OP_STARTED;
    list_push_back(&engine->started, &op->node);
    return SHOAL_OK;
}

void engine_op_start(struct engine_op *op)
{
    enum shoal_status status = op_start(op);

    if (status != SHOAL_OK) {
        op->status = status;
        op_end_posted(op);
    }
}

static void op_start_posted(void *arg)
{
    engine_op_start(arg);
}

void engine_op_take(struct engine_op *op)
{
    op->state = OP_TAKEN;
}

bool engine_op_is_taken(const struct engine_op *op)
{
    return op->state == OP_TAKEN;
}

void engine_op_requeue(struct engine_op *op)
{
    op->state = OP_QUEUED;
}

void engine_op_start_soon(struct shoal_engine *engine, struct engine_op *op)
{
    loop_post(engine->loops[0], &op->task, op_start_posted, op);
}

void engine_op_finish(struct engine_op *op, const struct transport_direct_ops *ops, enum shoal_status status,
                      struct shoal_error *error)
{
    if (status == SHOAL_OK)
        engine_path_worked_directly(op_peer(op), ops, op->len_bytes);
    engine_op_end(op, status, error);
    free(error);
}

void engine_op_prepare(struct shoal_engine *engine, struct engine_op *op)
{
    struct engine_peer *peer = op->segment->peer;
    const char *reason = NULL;
    enum shoal_status status;

    mutex_lock(&engine->mutex);
    peer->refs++;
    engine->active_ops++;
    mutex_unlock(&engine->mutex);
    engine_count(&engine->counters.ops_submitted);
    op->private_data[OP_PEER] = peer;
    op->private_data[OP_XFER] = op->private_data[OP_WHOLE] = NULL;
    op->transferred_bytes = 0;
    op->status = SHOAL_OK;
    op->error = NULL;
    op->local_region = NULL;
    op->wants_direct = false;
    op->state = OP_QUEUED;
    status =
        memory_pin(engine->memory, (uint64_t)(uintptr_t)op->local, op->len_bytes, 0, 0, &op->local_region, &reason);
    if (status != SHOAL_OK) {
        op_set_error(op, status, "");
        if (op->error)
            error_set(op->error, status, 0, "local memory: %s", reason);
    }
}

/* On loop 0; done does not run inside. */
static void op_start_here(struct shoal_engine *engine, struct engine_op *op)
{
    enum shoal_status status = op_start(op);

    if (status != SHOAL_OK) {
        op->status = status;
        op->state = OP_ENDING;
        loop_post(engine->loops[0], &op->task, op_end_posted, op);
    }
}

void engine_submit(struct shoal_engine *engine, struct engine_op *op)
{
    engine_op_prepare(engine, op);
    if (loop_is_current(engine->loops[0]))
        op_start_here(engine, op);
    else
        loop_post(engine->loops[0], &op->task, op_start_posted, op);
}

void engine_part_submit(struct engine_op *whole, struct engine_op *part)
{
    part->private_data[OP_PEER] = whole->private_data[OP_PEER];
    part->private_data[OP_WHOLE] = whole;
    part->local_region = whole->local_region;
    part->state = OP_QUEUED;
    op_start_here(op_peer(whole)->engine, part);
}

void engine_op_cancel(struct shoal_engine *engine, struct engine_op *op)
{
    struct engine_xfer *xfer = op->private_data[OP_XFER];

    assert(loop_is_current(engine->loops[0]));
    (void)engine;
    if (op->state == OP_QUEUED)
        op->state = OP_CANCELED;
    else if (op->state == OP_STAGED) {
        op->state = OP_STOPPING;
        engine_stage_cancel(op->private_data[OP_XFER]);
    } else if (op->state == OP_STARTED) {
        op->state = OP_STOPPING;
        xfer->ops->cancel(engine_peer_path_of(op_peer(op), xfer->ops)->remote, &xfer->request);
    }
}

void engine_cancel_local(struct shoal_engine *engine, const struct memory_region *region)
{
    LIST_FOR_EACH (op, &engine->started, struct engine_op, node) {
        if (!region || op->local_region == region)
            engine_op_cancel(engine, op);
    }
}
