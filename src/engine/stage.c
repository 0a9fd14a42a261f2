/* SPDX-License-Identifier: Apache-2.0 */
/* An operation whose local memory is a device's, over transports that cannot reach it: it goes in chunks through two
 * staging buffers, so that one is on the network while the other is copied. Each chunk is an operation of its own
 * (a part), whose local memory is the buffer; the whole keeps its pin on the device memory.
 *
 * READ: a part fills the buffer, then it is copied in. WRITE: it is copied out, then a part sends it. Everything
 * belongs to loop 0; the device's threads only post. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine_internal.h"

#define STAGE_SLOTS 2

enum slot_state {
    SLOT_FREE,    /* has a buffer or not, and nothing to do */
    SLOT_MOVING,  /* its part is under way */
    SLOT_ARRIVED, /* READ: waits until the chunk before it is being copied */
    SLOT_COPYING, /* the device has it */
};

struct stage_slot {
    struct engine_stage *stage;
    enum slot_state state;
    struct device_buffer *buffer; /* owned */
    uint64_t offset, len;
    struct engine_op part;
    struct device_copy copy;
    struct loop_task task;
    enum shoal_status status; /* of the copy */
    struct shoal_error error;
};

struct engine_stage {
    struct engine_op *op;
    struct shoal_engine *engine;
    struct device *device; /* borrowed from the pinned region */
    struct stage_slot slots[STAGE_SLOTS];
    uint64_t begun;   /* bytes that chunks were made of */
    uint64_t copying; /* READ: offset of the next chunk to be copied in */
    uint64_t moved;   /* bytes that are where they belong */
    unsigned active;  /* slots that are not free */
    bool is_waiting;  /* for a first buffer, or for the word that it is there */
    bool is_end_posted;
    struct device_wait wait;
    struct loop_task task;    /* of the wait, or of the end */
    enum shoal_status status; /* first failure */
    struct shoal_error error;
};

static void stage_go(struct engine_stage *stage);

static void stage_fail(struct engine_stage *stage, enum shoal_status status, const struct shoal_error *error)
{
    if (stage->status != SHOAL_OK)
        return;
    stage->status = status;
    if (error)
        stage->error = *error;
    else
        error_set(&stage->error, status, 0, "%s", shoal_status_text(status));
    for (unsigned i = 0; i < STAGE_SLOTS; i++) {
        if (stage->slots[i].state == SLOT_MOVING)
            engine_op_cancel(stage->engine, &stage->slots[i].part);
    }
}

static void stage_end(void *arg)
{
    struct engine_stage *stage = arg;
    struct engine_op *op = stage->op;
    enum shoal_status status = stage->status;
    struct shoal_error error = stage->error;

    list_remove(&op->node);
    for (unsigned i = 0; i < STAGE_SLOTS; i++)
        device_buffer_put(stage->device, DEVICE_USE_REQUEST, stage->slots[i].buffer);
    op->transferred_bytes = stage->moved;
    free(stage);
    engine_op_end(op, status, status == SHOAL_OK || status == SHOAL_CANCELED ? NULL : &error);
}

/* Ends it once nothing of it is under way. */
static void stage_settle(struct engine_stage *stage)
{
    if (stage->active > 0 || stage->is_waiting || stage->is_end_posted ||
        (stage->status == SHOAL_OK && stage->moved < stage->op->len_bytes))
        return;
    stage->is_end_posted = true; /* never from inside a call */
    loop_post(stage->engine->loops[0], &stage->task, stage_end, stage);
}

static void slot_free(struct stage_slot *slot)
{
    slot->state = SLOT_FREE;
    slot->stage->active--;
    stage_go(slot->stage);
}

/* --- the device --- */

static void part_start(struct stage_slot *slot);

static void copy_ended(void *arg)
{
    struct stage_slot *slot = arg;
    struct engine_stage *stage = slot->stage;

    if (slot->status != SHOAL_OK)
        stage_fail(stage, slot->status, &slot->error);
    else if (stage->op->op == SHOAL_OP_READ)
        stage->moved += slot->len;
    else if (stage->status == SHOAL_OK) {
        part_start(slot);
        return;
    }
    slot_free(slot);
}

static void on_copied(struct device_copy *copy, enum shoal_status status, const struct shoal_error *error)
{
    struct stage_slot *slot = copy->arg;

    slot->status = status;
    if (error)
        slot->error = *error;
    loop_post(slot->stage->engine->loops[0], &slot->task, copy_ended, slot);
}

/* On the device's thread, chunk after chunk. */
static void on_copy_begins(struct device_copy *copy)
{
    struct stage_slot *slot = copy->arg;
    struct engine_op *op = slot->stage->op;

    op->arrived(op, slot->buffer->data, slot->offset, slot->len);
}

static void copy_start(struct stage_slot *slot, enum device_direction direction)
{
    struct engine_op *op = slot->stage->op;

    slot->state = SLOT_COPYING;
    slot->copy = (struct device_copy){.direction = direction,
                                      .addr = (uint64_t)(uintptr_t)op->local + slot->offset,
                                      .allocation = memory_allocation(op->local_region),
                                      .host = slot->buffer->data,
                                      .len = (size_t)slot->len,
                                      .before = direction == DEVICE_IN && op->arrived ? on_copy_begins : NULL,
                                      .done = on_copied,
                                      .arg = slot};
    device_copy_start(slot->stage->device, &slot->copy);
}

/* Chunks are copied in in order, whatever the order in which they came. */
static void copy_arrived(struct engine_stage *stage)
{
    for (bool is_found = true; is_found;) {
        is_found = false;
        for (unsigned i = 0; i < STAGE_SLOTS; i++) {
            struct stage_slot *slot = &stage->slots[i];

            if (slot->state != SLOT_ARRIVED || (stage->status == SHOAL_OK && slot->offset != stage->copying))
                continue;
            is_found = true;
            if (stage->status == SHOAL_OK) {
                stage->copying += slot->len;
                copy_start(slot, DEVICE_IN);
            } else {
                slot->state = SLOT_FREE;
                stage->active--;
            }
        }
    }
}

/* --- the network --- */

static void part_done(struct engine_op *part, enum shoal_status status, const struct shoal_error *error)
{
    struct stage_slot *slot = part->arg;
    struct engine_stage *stage = slot->stage;

    if (status != SHOAL_OK) {
        slot->state = SLOT_FREE; /* first: the others are canceled, not this one */
        stage->active--;
        stage_fail(stage, status, error);
    } else if (stage->op->op == SHOAL_OP_READ) {
        slot->state = SLOT_ARRIVED;
    } else {
        slot->state = SLOT_FREE;
        stage->active--;
        stage->moved += slot->len;
    }
    copy_arrived(stage);
    stage_go(stage);
}

static void part_start(struct stage_slot *slot)
{
    struct engine_op *op = slot->stage->op;

    slot->state = SLOT_MOVING;
    slot->part = (struct engine_op){.op = op->op,
                                    .segment = op->segment,
                                    .local = slot->buffer->data,
                                    .remote_addr = op->remote_addr + slot->offset,
                                    .remote_key = op->remote_key,
                                    .len_bytes = slot->len,
                                    .done = part_done,
                                    .arg = slot};
    engine_part_submit(op, &slot->part);
}

/* --- buffers --- */

static void buffer_came(void *arg)
{
    struct engine_stage *stage = arg;

    stage->is_waiting = false;
    stage_go(stage);
}

static void on_granted(struct device_wait *wait, struct device_buffer *buffer)
{
    struct engine_stage *stage = container_of(wait, struct engine_stage, wait);

    stage->slots[0].buffer = buffer; /* is_waiting keeps loop 0 away from it */
    loop_post(stage->engine->loops[0], &stage->task, buffer_came, stage);
}

/* The first buffer is waited for; the second is only taken if there is one. Whoever has one can go on, so all do. */
static bool slot_buffer(struct engine_stage *stage, unsigned index)
{
    struct stage_slot *slot = &stage->slots[index];
    bool is_first = true;
    enum shoal_status status;
    struct shoal_error error;

    if (slot->buffer)
        return true;
    for (unsigned i = 0; i < STAGE_SLOTS; i++)
        is_first = is_first && !stage->slots[i].buffer;
    status = device_buffer_take(stage->device, DEVICE_USE_REQUEST, is_first ? &stage->wait : NULL, &slot->buffer);
    if (status == SHOAL_OK)
        return true;
    if (!is_first)
        return false;
    if (status == SHOAL_BUSY)
        stage->is_waiting = true;
    else
        stage_fail(stage, status, (error_no_memory(&error), &error));
    return false;
}

static void stage_go(struct engine_stage *stage)
{
    struct engine_op *op = stage->op;

    for (unsigned i = 0; i < STAGE_SLOTS && !stage->is_waiting; i++) {
        struct stage_slot *slot = &stage->slots[i];

        if (stage->status != SHOAL_OK || stage->begun == op->len_bytes)
            break;
        if (slot->state != SLOT_FREE || !slot_buffer(stage, i))
            continue;
        slot->offset = stage->begun;
        slot->len =
            op->len_bytes - stage->begun < DEVICE_BUFFER_BYTES ? op->len_bytes - stage->begun : DEVICE_BUFFER_BYTES;
        stage->begun += slot->len;
        stage->active++;
        if (op->op == SHOAL_OP_READ)
            part_start(slot);
        else
            copy_start(slot, DEVICE_OUT);
    }
    /* Others may wait for what this one has no use for any more. */
    for (unsigned i = 0; i < STAGE_SLOTS && !stage->is_waiting; i++) {
        struct stage_slot *slot = &stage->slots[i];

        if (slot->state == SLOT_FREE && (stage->status != SHOAL_OK || stage->begun == op->len_bytes)) {
            device_buffer_put(stage->device, DEVICE_USE_REQUEST, slot->buffer);
            slot->buffer = NULL;
        }
    }
    stage_settle(stage);
}

struct engine_stage *engine_stage_start(struct engine_op *op, struct shoal_engine *engine)
{
    struct engine_stage *stage = calloc(1, sizeof *stage);

    assert(loop_is_current(engine->loops[0]));
    if (!stage)
        return NULL;
    stage->op = op;
    stage->engine = engine;
    stage->device = memory_device(op->local_region);
    stage->wait.granted = on_granted;
    list_node_init(&stage->wait.node);
    for (unsigned i = 0; i < STAGE_SLOTS; i++)
        stage->slots[i].stage = stage;
    list_push_back(&engine->started, &op->node);
    stage_go(stage);
    return stage;
}

void engine_stage_cancel(struct engine_stage *stage)
{
    if (stage->is_end_posted)
        return;
    stage_fail(stage, SHOAL_CANCELED, NULL);
    if (stage->is_waiting && device_wait_cancel(stage->device, &stage->wait))
        stage->is_waiting = false;
    copy_arrived(stage);
    stage_settle(stage);
}
