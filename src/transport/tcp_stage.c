/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_stage.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/tcp_internal.h"

#define PARTS 2

enum part_state {
    PART_IDLE,    /* has no buffer */
    PART_FILLING, /* WRITE: its chunk is coming in */
    PART_COPYING, /* the device has it */
    PART_READY,   /* READ: its bytes may be sent */
};

struct stage_part {
    struct tcp_stage *stage;
    enum part_state state;
    struct device_buffer *buffer; /* owned; NULL while idle */
    uint64_t offset, len;
    struct device_copy copy;
    struct loop_task task;
    enum shoal_status status; /* of the copy */
    struct shoal_error error;
};

struct tcp_stage {
    struct tcp *tcp;
    struct loop *loop;
    void (*event)(void *owner); /* NULL: dropped */
    void *owner;
    struct memory_region *region; /* pinned */
    struct device *device;        /* borrowed from region */
    uint64_t addr, len;
    enum device_direction direction;
    enum device_use use;
    struct stage_part parts[PARTS];
    uint64_t begun;  /* READ: bytes whose copy was begun. WRITE: bytes that came */
    uint64_t copied; /* bytes whose copy is over */
    unsigned copying;
    /* Waits for a buffer, or for the word that it is there; then granted has it. */
    bool is_waiting;
    struct device_buffer *granted; /* owned */
    struct device_wait wait;
    struct loop_task wait_task;
    enum shoal_status status; /* first failure */
    struct shoal_error error;
};

static void part_idle(struct stage_part *part)
{
    struct tcp_stage *stage = part->stage;

    device_buffer_put(stage->device, stage->use, part->buffer);
    part->buffer = NULL;
    part->state = PART_IDLE;
}

/* Of one that was dropped. */
static void reap(struct tcp_stage *stage)
{
    struct tcp *tcp = stage->tcp;

    if (stage->event || stage->copying > 0 || stage->is_waiting)
        return;
    for (unsigned i = 0; i < PARTS; i++)
        part_idle(&stage->parts[i]);
    device_buffer_put(stage->device, stage->use, stage->granted);
    memory_unpin(tcp->env.memory, stage->region);
    free(stage);
    tcp_stages_live(tcp, -1);
}

static void stage_fail(struct tcp_stage *stage, enum shoal_status status, const struct shoal_error *error)
{
    if (stage->status != SHOAL_OK)
        return;
    stage->status = status;
    stage->error = *error;
}

/* --- copies --- */

static void copy_ended(void *arg)
{
    struct stage_part *part = arg;
    struct tcp_stage *stage = part->stage;

    stage->copying--;
    if (part->status != SHOAL_OK)
        stage_fail(stage, part->status, &part->error);
    else
        stage->copied += part->len;
    if (stage->direction == DEVICE_OUT && part->status == SHOAL_OK)
        part->state = PART_READY;
    else
        part_idle(part);
    if (stage->event)
        stage->event(stage->owner);
    else
        reap(stage);
}

static void on_copied(struct device_copy *copy, enum shoal_status status, const struct shoal_error *error)
{
    struct stage_part *part = copy->arg;

    part->status = status;
    if (error)
        part->error = *error;
    loop_post(part->stage->loop, &part->task, copy_ended, part);
}

static void copy_start(struct stage_part *part)
{
    struct tcp_stage *stage = part->stage;

    part->state = PART_COPYING;
    part->copy = (struct device_copy){.direction = stage->direction,
                                      .addr = stage->addr + part->offset,
                                      .allocation = memory_allocation(stage->region),
                                      .host = part->buffer->data,
                                      .len = (size_t)part->len,
                                      .done = on_copied,
                                      .arg = part};
    stage->copying++;
    device_copy_start(stage->device, &part->copy);
}

/* --- buffers --- */

static void buffer_came(void *arg)
{
    struct tcp_stage *stage = arg;

    stage->is_waiting = false;
    if (!stage->event) {
        reap(stage);
        return;
    }
    if (stage->direction == DEVICE_OUT && stage->status == SHOAL_OK)
        tcp_stage_read_ahead(stage, true);
    else
        stage->event(stage->owner);
}

static void on_granted(struct device_wait *wait, struct device_buffer *buffer)
{
    struct tcp_stage *stage = container_of(wait, struct tcp_stage, wait);

    stage->granted = buffer; /* is_waiting keeps the loop away from it */
    loop_post(stage->loop, &stage->wait_task, buffer_came, stage);
}

/* A buffer for an idle part. Who has none waits for it; a second one is only taken if there is one, so whoever has one
 * goes on and gives it back. */
static bool part_buffer(struct stage_part *part, bool waits)
{
    struct tcp_stage *stage = part->stage;
    enum shoal_status status;
    struct shoal_error error;

    if (stage->is_waiting)
        return false;
    if (stage->granted) {
        part->buffer = stage->granted;
        stage->granted = NULL;
        return true;
    }
    for (unsigned i = 0; i < PARTS; i++)
        waits = waits && !stage->parts[i].buffer;
    status = device_buffer_take(stage->device, stage->use, waits ? &stage->wait : NULL, &part->buffer);
    if (status == SHOAL_BUSY && waits) {
        stage->is_waiting = true;
    } else if (status != SHOAL_OK && waits) {
        error_no_memory(&error);
        stage_fail(stage, status, &error);
        stage->is_waiting = true; /* for its own event */
        loop_post(stage->loop, &stage->wait_task, buffer_came, stage);
    }
    return status == SHOAL_OK;
}

static struct stage_part *idle_part(struct tcp_stage *stage)
{
    for (unsigned i = 0; i < PARTS; i++) {
        if (stage->parts[i].state == PART_IDLE)
            return &stage->parts[i];
    }
    return NULL;
}

/* --- READ --- */

void tcp_stage_read_ahead(struct tcp_stage *stage, bool waits)
{
    struct stage_part *part;

    while (stage->status == SHOAL_OK && stage->begun < stage->len && (part = idle_part(stage)) &&
           part_buffer(part, waits)) {
        part->offset = stage->begun;
        part->len =
            stage->len - stage->begun < DEVICE_BUFFER_BYTES ? stage->len - stage->begun : (uint64_t)DEVICE_BUFFER_BYTES;
        stage->begun += part->len;
        copy_start(part);
    }
}

const void *tcp_stage_window(struct tcp_stage *stage, uint64_t offset, uint64_t *start_out, uint64_t *end_out)
{
    const void *found = NULL;

    for (unsigned i = 0; i < PARTS; i++) {
        struct stage_part *part = &stage->parts[i];

        if (part->state == PART_READY && offset >= part->offset + part->len)
            part_idle(part);
        if (part->state != PART_READY || offset < part->offset)
            continue;
        *start_out = part->offset;
        *end_out = part->offset + part->len;
        found = part->buffer->data;
    }
    tcp_stage_read_ahead(stage, true);
    return found;
}

/* --- WRITE --- */

void *tcp_stage_space(struct tcp_stage *stage)
{
    struct stage_part *part = idle_part(stage);

    if (!part || !part_buffer(part, true))
        return NULL;
    part->state = PART_FILLING;
    return part->buffer->data;
}

void tcp_stage_filled(struct tcp_stage *stage, uint64_t len)
{
    for (unsigned i = 0; i < PARTS; i++) {
        struct stage_part *part = &stage->parts[i];

        if (part->state != PART_FILLING)
            continue;
        part->offset = stage->begun;
        part->len = len;
        stage->begun += len;
        copy_start(part);
        return;
    }
}

bool tcp_stage_is_complete(const struct tcp_stage *stage)
{
    return stage->copied == stage->len;
}

/* --- life --- */

struct tcp_stage *tcp_stage_create(struct tcp *tcp, struct loop *loop, struct memory_region *region, uint64_t addr,
                                   uint64_t len, enum device_direction direction, void (*event)(void *owner),
                                   void *owner)
{
    struct tcp_stage *stage = calloc(1, sizeof *stage);

    if (!stage)
        return NULL;
    stage->tcp = tcp;
    stage->loop = loop;
    stage->event = event;
    stage->owner = owner;
    stage->region = region;
    stage->device = memory_device(region);
    stage->addr = addr;
    stage->len = len;
    stage->direction = direction;
    stage->use = direction == DEVICE_OUT ? DEVICE_USE_SERVE_READ : DEVICE_USE_SERVE_WRITE;
    stage->wait.granted = on_granted;
    list_node_init(&stage->wait.node);
    for (unsigned i = 0; i < PARTS; i++)
        stage->parts[i].stage = stage;
    tcp_stages_live(tcp, 1);
    return stage;
}

void tcp_stage_drop(struct tcp_stage *stage)
{
    if (!stage)
        return;
    stage->event = NULL;
    if (stage->is_waiting && device_wait_cancel(stage->device, &stage->wait))
        stage->is_waiting = false;
    reap(stage);
}

enum shoal_status tcp_stage_status(const struct tcp_stage *stage, const char **reason_out)
{
    *reason_out = stage->error.message;
    return stage->status;
}
