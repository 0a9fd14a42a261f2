/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between a tier here and a peer's memory. DRAM is moved by one operation of the engine, directly; anything else
 * in chunks through two staging buffers, so that disk and network work at the same time. */
#include <stdlib.h>
#include <string.h>

#include "kv/service_internal.h"

/* --- peers --- */

struct kv_segment {
    struct list_node node; /* in segments_lru */
    struct kv_service *service;
    struct shoal_segment *segment; /* owned */
    unsigned refs;
    bool is_dropped; /* not in the cache any more; freed with the last ref */
    size_t key_len;
    uint8_t key[];
};

static void segment_free(struct kv_segment *segment)
{
    shoal_segment_close(segment->segment);
    free(segment);
}

static void segment_drop(struct kv_segment *segment)
{
    if (segment->is_dropped)
        return;
    segment->is_dropped = true;
    list_remove(&segment->node);
    map_remove(&segment->service->segments, segment->key, segment->key_len);
    if (!segment->refs)
        segment_free(segment);
}

static void segment_unref(struct kv_segment *segment)
{
    if (segment && --segment->refs == 0 && segment->is_dropped)
        segment_free(segment);
}

void kv_segments_release(struct kv_service *service)
{
    LIST_FOR_EACH_SAFE (segment, &service->segments_lru, struct kv_segment, node)
        segment_drop(segment);
    map_release(&service->segments);
}

/* instance, then "address name". NULL: out of memory. */
static struct kv_segment *segment_make(const Shoal__Wire__KvMemory *memory)
{
    size_t address_len = strlen(memory->address), name_len = strlen(memory->server_name);
    size_t key_len = sizeof memory->instance + address_len + 1 + name_len;
    struct kv_segment *segment = calloc(1, sizeof *segment + key_len);
    uint8_t *at;

    if (!segment)
        return NULL;
    segment->key_len = key_len;
    at = segment->key;
    memcpy(at, &memory->instance, sizeof memory->instance);
    at += sizeof memory->instance;
    memcpy(at, memory->address, address_len);
    at[address_len] = ' ';
    memcpy(at + address_len + 1, memory->server_name, name_len);
    return segment;
}

static enum shoal_status segment_get(struct kv_service *service, const Shoal__Wire__KvMemory *memory,
                                     struct kv_segment **segment_out, struct shoal_error *error)
{
    struct kv_segment *fresh = segment_make(memory), *found;
    enum shoal_status status;

    if (!fresh)
        return error_no_memory(error);
    found = map_get(&service->segments, fresh->key, fresh->key_len);
    if (found) {
        free(fresh);
        found->refs++;
        list_remove(&found->node);
        list_push_front(&service->segments_lru, &found->node);
        *segment_out = found;
        return SHOAL_OK;
    }
    status = engine_segment_create(service->engine, memory->server_name, memory->address, memory->instance,
                                   &fresh->segment, error);
    if (status) {
        free(fresh);
        return status;
    }
    fresh->service = service;
    fresh->refs = 1;
    if (!map_put(&service->segments, fresh->key, fresh->key_len, fresh)) {
        segment_free(fresh);
        return error_no_memory(error);
    }
    list_push_front(&service->segments_lru, &fresh->node);
    if (service->segments.count > KV_SEGMENTS_MAX)
        segment_drop(container_of(service->segments_lru.head.prev, struct kv_segment, node));
    *segment_out = fresh;
    return SHOAL_OK;
}

enum shoal_status kv_job_set_remote(struct kv_job *job, const Shoal__Wire__KvMemory *memory, struct shoal_error *error)
{
    if (!memory->server_name[0] || !memory->address[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the memory's server name or address is missing");
    if (memory->addr + memory->len_bytes < memory->addr)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the memory wraps around");
    job->remote_addr = memory->addr;
    job->remote_key = memory->key;
    return segment_get(job->service, memory, &job->segment, error);
}

/* --- chunks --- */

static void pump(struct kv_job *job);

static void on_moved(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct kv_job *job = op->arg;
    struct kv_service *service = job->service;
    struct kv_slot *slot = container_of(op, struct kv_slot, op);

    slot->state = KV_SLOT_IDLE;
    if (status == SHOAL_LIMIT) { /* of what is under way at once; here it would mean that the value is too long */
        struct shoal_error busy = *error;

        busy.status = SHOAL_BUSY;
        kv_job_fail(job, SHOAL_BUSY, &busy);
    } else if (status) {
        /* Its connections may be old ones: the next transfer makes new ones. */
        if (status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT)
            segment_drop(job->segment);
        kv_job_fail(job, status, error);
    } else if (job->object) {
        service->counters.transfer_out_bytes += op->len_bytes;
    } else {
        service->counters.transfer_in_bytes += op->len_bytes;
        if (slot->buffer)
            slot->state = KV_SLOT_FULL;
    }
    pump(job);
}

static void move(struct kv_job *job, struct kv_slot *slot, void *local, uint64_t len_bytes)
{
    slot->state = KV_SLOT_NET;
    slot->op = (struct engine_op){.op = job->object ? SHOAL_OP_WRITE : SHOAL_OP_READ,
                                  .segment = job->segment->segment,
                                  .local = local,
                                  .remote_addr = job->remote_addr + slot->offset_bytes,
                                  .remote_key = job->remote_key,
                                  .len_bytes = len_bytes,
                                  .done = on_moved,
                                  .arg = job};
    engine_submit(job->service->engine, &slot->op);
}

static void disk_read(struct kv_job *job)
{
    struct kv_slot *slot = job->work_slot;

    job->work_status = tier_read(job->object, slot->offset_bytes, slot->buffer, slot->len_bytes, &job->work_error);
}

static void disk_write(struct kv_job *job)
{
    struct kv_slot *slot = job->work_slot;

    job->work_status = tier_write(job->allocation, slot->offset_bytes, slot->buffer, slot->len_bytes, &job->work_error);
}

static void on_worked(struct kv_job *job)
{
    struct kv_slot *slot = job->work_slot;

    slot->state = KV_SLOT_IDLE;
    if (job->work_status)
        kv_job_fail(job, job->work_status, &job->work_error);
    else if (job->allocation)
        job->disk_bytes += slot->len_bytes;
    else if (!job->status)
        move(job, slot, slot->buffer, slot->len_bytes);
    pump(job);
}

static void work(struct kv_job *job, struct kv_slot *slot)
{
    slot->state = KV_SLOT_DISK;
    job->work_slot = slot;
    kv_job_work(job, job->object ? disk_read : disk_write, on_worked);
}

/* One with a buffer first. */
static struct kv_slot *idle_slot(struct kv_job *job)
{
    struct kv_slot *slots = job->slots;

    if (slots[0].state == KV_SLOT_IDLE && (slots[0].buffer || slots[1].state != KV_SLOT_IDLE || !slots[1].buffer))
        return &slots[0];
    return slots[1].state == KV_SLOT_IDLE ? &slots[1] : NULL;
}

/* What came from the peer goes to the disk in order, one chunk at a time. */
static void store_next(struct kv_job *job)
{
    for (size_t i = 0; i < 2; i++) {
        struct kv_slot *slot = &job->slots[i];

        if (slot->state != KV_SLOT_FULL)
            continue;
        if (job->status)
            slot->state = KV_SLOT_IDLE;
        else if (!job->is_on_worker && slot->offset_bytes == job->disk_bytes)
            work(job, slot);
    }
}

/* Begins whatever can be begun now; ends the job if nothing is left. */
static void pump(struct kv_job *job)
{
    struct kv_service *service = job->service;
    struct kv_slot *slot;

    if (job->allocation)
        store_next(job);
    while (!job->status && job->next_bytes < job->len_bytes && (slot = idle_slot(job))) {
        if (job->object && job->is_on_worker)
            break;
        if (!slot->buffer) {
            bool is_first = !job->slots[0].buffer && !job->slots[1].buffer;

            /* The second buffer is a gain, the first one a need: those who have none go first. */
            if (list_is_empty(&service->staging_waiters))
                slot->buffer = tier_staging_take(service->backend);
            if (!slot->buffer && is_first) {
                kv_job_wait(job, &service->staging_waiters, pump);
                return;
            }
            if (!slot->buffer)
                break;
        }
        slot->offset_bytes = job->next_bytes;
        slot->len_bytes = job->len_bytes - job->next_bytes < TIER_STAGING_BYTES
                              ? (size_t)(job->len_bytes - job->next_bytes)
                              : TIER_STAGING_BYTES;
        job->next_bytes += slot->len_bytes;
        if (job->object)
            work(job, slot);
        else
            move(job, slot, slot->buffer, slot->len_bytes);
    }
    kv_job_settle(job);
}

/* --- turns --- */

static bool has_turn_left(const struct kv_service *service, uint64_t len_bytes)
{
    return service->transfers == 0 || (service->transfers < KV_TRANSFERS_MAX && len_bytes <= KV_TRANSFER_BYTES_MAX &&
                                       service->transfer_bytes <= KV_TRANSFER_BYTES_MAX - len_bytes);
}

static void begin(struct kv_job *job)
{
    struct kv_service *service = job->service;
    void *data = job->object ? (void *)(uintptr_t)tier_object_data(job->object) : tier_allocation_data(job->allocation);

    job->has_turn = true;
    service->transfers++;
    service->transfer_bytes += job->len_bytes;
    if (!data) {
        pump(job);
        return;
    }
    job->next_bytes = job->len_bytes;
    move(job, &job->slots[0], data, job->len_bytes);
}

void kv_transfer_start(struct kv_job *job)
{
    struct kv_service *service = job->service;

    if (list_is_empty(&service->turn_waiters) && has_turn_left(service, job->len_bytes))
        begin(job);
    else
        kv_job_wait(job, &service->turn_waiters, begin);
}

void kv_transfers_kick(struct kv_service *service)
{
    struct list_node *node;
    void *buffer;

    while ((node = list_first(&service->pin_waiters)) &&
           service->leases.staging_count + service->pins_reading < KV_STAGING_PINS_MAX &&
           (buffer = tier_staging_take(service->backend))) {
        struct kv_job *job = container_of(node, struct kv_job, wait_node);

        list_remove(node);
        job->slots[0].buffer = buffer;
        service->pins_reading++;
        job->resume(job);
    }
    while ((node = list_first(&service->staging_waiters)) && (buffer = tier_staging_take(service->backend))) {
        struct kv_job *job = container_of(node, struct kv_job, wait_node);

        list_remove(node);
        job->slots[0].buffer = buffer;
        job->resume(job);
    }
    while ((node = list_first(&service->turn_waiters))) {
        struct kv_job *job = container_of(node, struct kv_job, wait_node);

        if (!has_turn_left(service, job->len_bytes))
            break;
        list_remove(node);
        job->resume(job);
    }
}

void kv_transfer_release(struct kv_job *job)
{
    struct kv_service *service = job->service;

    for (size_t i = 0; i < 2; i++) {
        if (!job->slots[i].buffer)
            continue;
        tier_staging_give(service->backend, job->slots[i].buffer);
        job->slots[i].buffer = NULL;
        kv_kick(service);
    }
    if (job->has_turn) {
        job->has_turn = false;
        service->transfers--;
        service->transfer_bytes -= job->len_bytes;
        kv_kick(service);
    }
    segment_unref(job->segment);
    job->segment = NULL;
}
