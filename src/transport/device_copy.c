/* SPDX-License-Identifier: Apache-2.0 */
/* Staging buffers of a device, and the threads that copy between them and the device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/thread.h"
#include "transport/device_internal.h"

#define LOG_MODULE "cuda"
#include "base/log.h"

struct device_counters device_counters;

/* --- buffers --- */

void device_pools_init(struct device *device)
{
    for (unsigned i = 0; i < DEVICE_USES; i++) {
        list_init(&device->pools[i].idle);
        list_init(&device->pools[i].waiting);
    }
}

static void buffer_free(struct device *device, struct device_buffer *buffer)
{
    if (buffer->is_pinned)
        (void)device->driver->host_unregister(buffer->data); /* fails if the context took the pin with it */
    munmap(buffer->data, DEVICE_BUFFER_BYTES);
    free(buffer);
    device_count(&device_counters.buffer_bytes, (uint64_t)0 - DEVICE_BUFFER_BYTES);
}

void device_pools_release(struct device *device)
{
    struct list_node *node;

    for (unsigned i = 0; i < DEVICE_USES; i++) {
        while ((node = list_pop_front(&device->pools[i].idle)))
            buffer_free(device, container_of(node, struct device_buffer, node));
    }
}

/* Pinned if the driver can; a copy works without, but the driver makes it in steps of its own. */
static struct device_buffer *buffer_make(struct device *device)
{
    struct device_buffer *buffer = calloc(1, sizeof *buffer);
    cuda_result result = CUDA_INVALID_CONTEXT;
    char text[DEVICE_TEXT_BYTES];

    if (!buffer)
        return NULL;
    buffer->data = mmap(NULL, DEVICE_BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer->data == MAP_FAILED) {
        free(buffer);
        return NULL;
    }
    if (device_enter(device, NULL) == SHOAL_OK) {
        result = device->driver->host_register(buffer->data, DEVICE_BUFFER_BYTES, CUDA_HOST_REGISTER_PORTABLE);
        device_leave(device);
    }
    buffer->is_pinned = result == CUDA_OK;
    if (!buffer->is_pinned) {
        if (__atomic_fetch_add(&device_counters.unpinned_buffers, 1, __ATOMIC_RELAXED) == 0)
            LOG_WARN("cuda:%u: staging buffers cannot be pinned, copies are slower: %s", device->number,
                     device_driver_text(device->driver, result, text, sizeof text));
    }
    device_count(&device_counters.buffer_bytes, DEVICE_BUFFER_BYTES);
    return buffer;
}

enum shoal_status device_buffer_take(struct device *device, enum device_use use, struct device_wait *wait,
                                     struct device_buffer **out)
{
    struct device_pool *pool = &device->pools[use];
    struct device_buffer *buffer = NULL;
    struct list_node *node;
    bool makes_one = false;
    unsigned made;

    mutex_lock(&device->mutex);
    if (list_is_empty(&pool->waiting) && (node = list_pop_front(&pool->idle))) {
        buffer = container_of(node, struct device_buffer, node);
    } else if (pool->made < DEVICE_BUFFERS_MAX) {
        makes_one = true;
        pool->made++;
    } else if (wait) {
        list_push_back(&pool->waiting, &wait->node);
        device_count(&device_counters.buffer_waits, 1);
    }
    mutex_unlock(&device->mutex);
    if (!buffer && !makes_one)
        return SHOAL_BUSY;
    if (!buffer) {
        buffer = buffer_make(device);
        if (!buffer) {
            mutex_lock(&device->mutex);
            made = --pool->made;
            if (made > 0 && wait)
                list_push_back(&pool->waiting, &wait->node); /* those that there are come back */
            mutex_unlock(&device->mutex);
            return made > 0 ? SHOAL_BUSY : SHOAL_NO_MEMORY;
        }
    }
    *out = buffer;
    return SHOAL_OK;
}

void device_buffer_put(struct device *device, enum device_use use, struct device_buffer *buffer)
{
    struct device_pool *pool = &device->pools[use];
    struct device_wait *wait = NULL;
    struct list_node *node;

    if (!buffer)
        return;
    mutex_lock(&device->mutex);
    node = list_pop_front(&pool->waiting);
    if (node)
        wait = container_of(node, struct device_wait, node);
    else
        list_push_front(&pool->idle, &buffer->node);
    mutex_unlock(&device->mutex);
    if (wait)
        wait->granted(wait, buffer);
}

bool device_wait_cancel(struct device *device, struct device_wait *wait)
{
    bool is_waiting;

    mutex_lock(&device->mutex);
    is_waiting = list_node_is_linked(&wait->node);
    list_remove(&wait->node);
    mutex_unlock(&device->mutex);
    return is_waiting;
}

/* --- lanes --- */

static void copy_end(struct device_lane *lane, struct device_copy *copy, enum shoal_status status,
                     const struct shoal_error *error)
{
    if (status == SHOAL_OK) {
        device_count(&device_counters.copies[lane->direction], 1);
        device_count(&device_counters.bytes[lane->direction], copy->len);
    } else {
        device_count(&device_counters.failures, 1);
    }
    copy->done(copy, status, status == SHOAL_OK ? NULL : error);
}

/* An address that was freed may have become another allocation's since. */
static enum shoal_status check_alive(struct device *device, const struct device_copy *copy, struct shoal_error *error)
{
    static const int attributes[] = {CUDA_POINTER_BUFFER_ID, CUDA_POINTER_MEMORY_TYPE};
    uint64_t id = 0;
    uint32_t type = 0;
    void *values[] = {&id, &type};
    cuda_result result = device->driver->pointer_attributes(2, attributes, values, copy->addr);

    if (result != CUDA_OK && result != CUDA_INVALID_VALUE)
        return device_failed(device, result, "looking at memory", error);
    if (result == CUDA_INVALID_VALUE || type != CUDA_MEMORY_TYPE_DEVICE || id != copy->allocation)
        return error_set(error, SHOAL_IO, 0, "device memory at 0x%llx (cuda:%u) was freed while it was registered",
                         (unsigned long long)copy->addr, device->number);
    return SHOAL_OK;
}

/* Hands it to the driver. slot: of the ring. */
static enum shoal_status copy_issue(struct device_lane *lane, struct device_copy *copy, unsigned slot,
                                    struct shoal_error *error)
{
    struct device *device = lane->device;
    const struct device_driver *driver = device->driver;
    /* Around each copy: a context that was destroyed shows here and not in the middle of a call. */
    enum shoal_status status = device_enter(device, error);
    cuda_result result;

    if (status != SHOAL_OK)
        return status;
    status = check_alive(device, copy, error);
    if (status == SHOAL_OK) {
        result = lane->direction == DEVICE_IN ? driver->copy_in(copy->addr, copy->host, copy->len, lane->stream)
                                              : driver->copy_out(copy->host, copy->addr, copy->len, lane->stream);
        if (result == CUDA_OK) {
            result = driver->event_record(lane->events[slot], lane->stream);
            if (result != CUDA_OK) /* it runs all the same; a stream that cannot wait for it is dead */
                (void)driver->stream_synchronize(lane->stream);
        }
        if (result != CUDA_OK)
            status = device_failed(device, result, lane->direction == DEVICE_IN ? "copy to it" : "copy from it", error);
    }
    device_leave(device);
    return status;
}

static void *issue_main(void *arg)
{
    struct device_lane *lane = arg;
    struct shoal_error error;
    enum shoal_status status;

    mutex_lock(&lane->mutex);
    for (;;) {
        struct list_node *node = lane->running_count < DEVICE_LANE_DEPTH ? list_pop_front(&lane->queue) : NULL;
        struct device_copy *copy;
        unsigned slot;

        if (!node) {
            if (lane->is_stopping && list_is_empty(&lane->queue))
                break;
            cond_wait(&lane->changed, &lane->mutex);
            continue;
        }
        copy = container_of(node, struct device_copy, node);
        slot = (lane->oldest + lane->running_count) % DEVICE_LANE_DEPTH; /* only this thread adds to the ring */
        mutex_unlock(&lane->mutex);
        if (copy->before)
            copy->before(copy);
        status = copy_issue(lane, copy, slot, &error);
        if (status != SHOAL_OK)
            copy_end(lane, copy, status, &error);
        mutex_lock(&lane->mutex);
        if (status == SHOAL_OK) {
            lane->running[slot] = copy;
            lane->running_count++;
            cond_broadcast(&lane->changed);
        }
    }
    mutex_unlock(&lane->mutex);
    return NULL;
}

static void *finish_main(void *arg)
{
    struct device_lane *lane = arg;
    struct device *device = lane->device;
    struct shoal_error error;

    mutex_lock(&lane->mutex);
    for (;;) {
        enum shoal_status status = SHOAL_OK;
        struct device_copy *copy;
        cuda_result result;
        cuda_event event;
        bool is_inside;

        if (lane->running_count == 0) {
            if (lane->is_stopping)
                break;
            cond_wait(&lane->changed, &lane->mutex);
            continue;
        }
        copy = lane->running[lane->oldest];
        event = lane->events[lane->oldest];
        mutex_unlock(&lane->mutex);
        is_inside = device_enter(device, NULL) == SHOAL_OK;
        result = device->driver->event_synchronize(event);
        if (is_inside)
            device_leave(device);
        if (result != CUDA_OK)
            status =
                device_failed(device, result, lane->direction == DEVICE_IN ? "copy to it" : "copy from it", &error);
        copy_end(lane, copy, status, &error);
        mutex_lock(&lane->mutex);
        lane->oldest = (lane->oldest + 1) % DEVICE_LANE_DEPTH;
        lane->running_count--;
        cond_broadcast(&lane->changed);
    }
    mutex_unlock(&lane->mutex);
    return NULL;
}

enum shoal_status device_lane_start(struct device_lane *lane, struct device *device, enum device_direction direction,
                                    struct shoal_error *error)
{
    static void *(*const mains[])(void *) = {issue_main, finish_main};
    const struct device_driver *driver = device->driver;
    enum shoal_status status;
    cuda_result result;
    char name[24];
    int failed = 0;

    mutex_init(&lane->mutex, RANK_TRANSPORT);
    cond_init(&lane->changed);
    list_init(&lane->queue);
    lane->device = device;
    lane->direction = direction;
    status = device_enter(device, error);
    if (status != SHOAL_OK)
        return status;
    result = driver->stream_create(&lane->stream, CUDA_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < DEVICE_LANE_DEPTH && result == CUDA_OK; i++)
        result = driver->event_create(&lane->events[i], CUDA_EVENT_BLOCKING_SYNC | CUDA_EVENT_DISABLE_TIMING);
    device_leave(device);
    if (result != CUDA_OK)
        return device_failed(device, result, "making a stream", error);
    for (unsigned i = 0; i < 2 && !failed; i++) {
        snprintf(name, sizeof name, "shoal-cu%u-%s%u", device->number % 1000, direction == DEVICE_IN ? "i" : "o", i);
        failed = thread_start(&lane->threads[i], name, mains[i], lane);
        lane->thread_count += !failed;
    }
    if (failed)
        return error_set(error, SHOAL_LIMIT, failed, "no thread for cuda:%u: %s", device->number, strerror(failed));
    return SHOAL_OK;
}

void device_lane_stop(struct device_lane *lane)
{
    struct device *device = lane->device;

    if (!device)
        return;
    mutex_lock(&lane->mutex);
    lane->is_stopping = true;
    cond_broadcast(&lane->changed);
    mutex_unlock(&lane->mutex);
    for (unsigned i = 0; i < lane->thread_count; i++)
        pthread_join(lane->threads[i], NULL);
    mutex_release(&lane->mutex);
    cond_release(&lane->changed);
    /* What a dead context had is gone with it. */
    if (__atomic_load_n(&device->is_broken, __ATOMIC_RELAXED) || device_enter(device, NULL) != SHOAL_OK)
        return;
    for (unsigned i = 0; i < DEVICE_LANE_DEPTH && lane->events[i]; i++)
        (void)device->driver->event_destroy(lane->events[i]);
    if (lane->stream)
        (void)device->driver->stream_destroy(lane->stream);
    device_leave(device);
}

void device_copy_start(struct device *device, struct device_copy *copy)
{
    struct device_lane *lane = &device->lanes[copy->direction];

    mutex_lock(&lane->mutex);
    list_push_back(&lane->queue, &copy->node);
    cond_broadcast(&lane->changed);
    mutex_unlock(&lane->mutex);
}

/* --- reading on a thread that may wait --- */

#define READ_DEPTH 2

struct read_state {
    struct mutex mutex; /* RANK_TRANSPORT: guards granted and the parts' states */
    struct cond changed;
    struct device_buffer *granted;
    struct device_wait wait;
};

struct read_part {
    struct read_state *state;
    struct device_copy copy;
    struct device_buffer *buffer;
    bool is_done;
    enum shoal_status status;
    struct shoal_error error;
};

static void read_granted(struct device_wait *wait, struct device_buffer *buffer)
{
    struct read_state *state = container_of(wait, struct read_state, wait);

    mutex_lock(&state->mutex);
    state->granted = buffer;
    cond_broadcast(&state->changed);
    mutex_unlock(&state->mutex);
}

static void read_done(struct device_copy *copy, enum shoal_status status, const struct shoal_error *error)
{
    struct read_part *part = copy->arg;
    struct read_state *state = part->state;

    mutex_lock(&state->mutex);
    part->status = status;
    if (error)
        part->error = *error;
    part->is_done = true;
    cond_broadcast(&state->changed);
    mutex_unlock(&state->mutex);
}

/* The first buffer is waited for, the second only taken if there is one: whoever has one can go on. Returns how many.
 */
static unsigned read_buffers(struct device *device, struct read_state *state, struct read_part parts[READ_DEPTH],
                             uint64_t len)
{
    enum shoal_status status = device_buffer_take(device, DEVICE_USE_DIGEST, &state->wait, &parts[0].buffer);

    if (status == SHOAL_BUSY) {
        mutex_lock(&state->mutex);
        while (!state->granted)
            cond_wait(&state->changed, &state->mutex);
        parts[0].buffer = state->granted;
        mutex_unlock(&state->mutex);
    } else if (status != SHOAL_OK) {
        return 0;
    }
    return len > DEVICE_BUFFER_BYTES &&
                   device_buffer_take(device, DEVICE_USE_DIGEST, NULL, &parts[1].buffer) == SHOAL_OK
               ? 2
               : 1;
}

enum shoal_status device_read(struct device *device, uint64_t allocation, uint64_t addr, uint64_t len,
                              bool (*fn)(void *arg, const void *data, size_t len), void *arg, struct shoal_error *error)
{
    struct read_state state = {.wait = {.granted = read_granted}};
    struct read_part parts[READ_DEPTH] = {{.state = &state}, {.state = &state}}, *part;
    enum shoal_status status = SHOAL_OK;
    uint64_t begun = 0;
    unsigned oldest = 0, running = 0, depth;
    bool is_enough = false;

    mutex_init(&state.mutex, RANK_TRANSPORT);
    cond_init(&state.changed);
    depth = read_buffers(device, &state, parts, len);
    if (depth == 0)
        status = error_no_memory(error);
    while (running > 0 || (status == SHOAL_OK && !is_enough && begun < len)) {
        if (status == SHOAL_OK && !is_enough && begun < len && running < depth) {
            part = &parts[(oldest + running++) % depth];
            part->is_done = false;
            part->copy = (struct device_copy){.direction = DEVICE_OUT,
                                              .addr = addr + begun,
                                              .allocation = allocation,
                                              .host = part->buffer->data,
                                              .len = len - begun < DEVICE_BUFFER_BYTES ? (size_t)(len - begun)
                                                                                       : DEVICE_BUFFER_BYTES,
                                              .done = read_done,
                                              .arg = part};
            begun += part->copy.len;
            device_copy_start(device, &part->copy);
            continue;
        }
        part = &parts[oldest];
        mutex_lock(&state.mutex);
        while (!part->is_done)
            cond_wait(&state.changed, &state.mutex);
        mutex_unlock(&state.mutex);
        oldest = (oldest + 1) % depth;
        running--;
        if (status == SHOAL_OK && part->status != SHOAL_OK)
            status = error_copy(error, &part->error);
        else if (status == SHOAL_OK && !is_enough && !fn(arg, part->buffer->data, part->copy.len))
            is_enough = true;
    }
    for (unsigned i = 0; i < depth; i++)
        device_buffer_put(device, DEVICE_USE_DIGEST, parts[i].buffer);
    cond_release(&state.changed);
    mutex_release(&state.mutex);
    return status;
}

/* --- counters --- */

static uint64_t load(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

bool device_metrics(struct buf *out)
{
    const struct {
        const char *name, *kind, *help;
        uint64_t value;
    } rows[] = {
        {"copies_total{direction=\"in\"}", "counter", "Copies between staging buffers and device memory.",
         load(&device_counters.copies[DEVICE_IN])},
        {"copies_total{direction=\"out\"}", NULL, NULL, load(&device_counters.copies[DEVICE_OUT])},
        {"copied_bytes_total{direction=\"in\"}", "counter", "Bytes of them.", load(&device_counters.bytes[DEVICE_IN])},
        {"copied_bytes_total{direction=\"out\"}", NULL, NULL, load(&device_counters.bytes[DEVICE_OUT])},
        {"copy_failures_total", "counter", "Copies that failed: freed memory, dead contexts.",
         load(&device_counters.failures)},
        {"staging_waits_total", "counter", "Times a transfer waited for a staging buffer.",
         load(&device_counters.buffer_waits)},
        {"staging_bytes", "gauge", "Memory of staging buffers.", load(&device_counters.buffer_bytes)},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int family = (int)strcspn(rows[i].name, "{");

        if (rows[i].kind && !buf_append_format(out, "# HELP shoal_device_%.*s %s\n# TYPE shoal_device_%.*s %s\n",
                                               family, rows[i].name, rows[i].help, family, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_device_%s %llu\n", rows[i].name, (unsigned long long)rows[i].value))
            return false;
    }
    return true;
}
