/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_stub.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API(name, parameters)                                                                                          \
    __attribute__((visibility("default"))) int name parameters;                                                        \
    int name parameters

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    NOT_SUPPORTED = 801,
};

#define ALLOCATIONS_MAX 256
#define PINS_MAX 512
#define STACK_MAX 8
#define FAULTS_MAX 8
#define PAGE 4096u

/* Never freed: a handle of one that was destroyed must be known as such. */
struct context {
    struct context *next;
    int device;
    bool is_dead;
};

struct allocation {
    char *base, *alias; /* alias NULL: free, and base is kept for the next one of that size */
    size_t len, mapped;
    uint64_t id;
    struct context *context;
};

struct event {
    struct event *next, **at; /* in events */
    bool is_pending;
    int result;
};

struct task {
    struct task *next;
    bool is_copy;
    enum cuda_stub_direction direction;
    char *device, *host;
    size_t len;
    struct event *event;
};

struct stream {
    struct stream *next;
    struct context *context;
    pthread_t thread;
    struct task *first, **last;
    bool is_stopping, is_detached;
    int result; /* sticky */
};

/* One lock for everything: it is a test double, and the sanitizers like it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_initialised;
static struct context *contexts, *primary[CUDA_STUB_DEVICES];
static unsigned primary_refs[CUDA_STUB_DEVICES];
static struct allocation allocations[ALLOCATIONS_MAX];
static struct {
    char *address;
    size_t len;
    struct context *context;
} pins[PINS_MAX];
static struct {
    char symbol[48];
    int result;
    unsigned after;
} faults[FAULTS_MAX];
static struct stream *streams; /* those of dead contexts stay */
static struct event *events;
static bool is_held[2];
static uint64_t next_id = 1;
static struct cuda_stub_counts counts;
static _Thread_local struct context *stack[STACK_MAX];
static _Thread_local unsigned depth;

static int fault(const char *symbol)
{
    for (size_t i = 0; i < FAULTS_MAX; i++) {
        if (strcmp(faults[i].symbol, symbol) != 0)
            continue;
        if (faults[i].after > 0) {
            faults[i].after--;
            return OK;
        }
        faults[i].symbol[0] = '\0';
        return faults[i].result;
    }
    return OK;
}

/* Takes the lock, and leaves the function if it shall fail. */
#define BEGIN(symbol)                                                                                                  \
    int result;                                                                                                        \
    pthread_mutex_lock(&mutex);                                                                                        \
    result = is_initialised ? fault(symbol) : 3;                                                                       \
    if (result != OK)                                                                                                  \
        goto out;
#define END                                                                                                            \
    out:                                                                                                               \
    pthread_mutex_unlock(&mutex);                                                                                      \
    return result;

/* --- versions and devices --- */

API(cuInit, (unsigned flags))
{
    int result;

    pthread_mutex_lock(&mutex);
    result = flags ? INVALID_VALUE : fault("cuInit");
    is_initialised = is_initialised || result == OK;
    pthread_mutex_unlock(&mutex);
    return result;
}

API(cuDriverGetVersion, (int *version))
{
    *version = 12040;
    return OK;
}

static const struct {
    int result;
    const char *name, *text;
} texts[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
};

static const char *text_of(int result, bool is_name)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].result == result)
            return is_name ? texts[i].name : texts[i].text;
    }
    return NULL;
}

API(cuGetErrorName, (int error, const char **name))
{
    *name = text_of(error, true);
    return *name ? OK : INVALID_VALUE;
}

API(cuGetErrorString, (int error, const char **text))
{
    *text = text_of(error, false);
    return *text ? OK : INVALID_VALUE;
}

API(cuDeviceGetCount, (int *count))
{
    BEGIN("cuDeviceGetCount");
    *count = CUDA_STUB_DEVICES;
    END
}

API(cuDeviceGet, (int *device, int ordinal))
{
    BEGIN("cuDeviceGet");
    if (ordinal < 0 || ordinal >= CUDA_STUB_DEVICES)
        result = INVALID_DEVICE;
    else
        *device = ordinal;
    END
}

API(cuDeviceGetName, (char *name, int len, int device))
{
    snprintf(name, (size_t)len, "Stub %d", device);
    return OK;
}

API(cuDeviceGetAttribute, (int *value, int attribute, int device))
{
    (void)device;
    *value = attribute == 124; /* dmabuf */
    return OK;
}

API(cuDeviceTotalMem_v2, (size_t * bytes, int device))
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return OK;
}

API(cuDeviceGetPCIBusId, (char *id, int len, int device))
{
    snprintf(id, (size_t)len, "0000:%02x:00.0", 0x10 + device);
    return OK;
}

/* --- contexts --- */

API(cuDevicePrimaryCtxRetain, (struct context * *context, int device))
{
    BEGIN("cuDevicePrimaryCtxRetain");
    if (!primary[device] || primary[device]->is_dead) {
        primary[device] = calloc(1, sizeof **context);
        primary[device]->device = device;
        primary[device]->next = contexts;
        contexts = primary[device];
        counts.contexts++;
    }
    primary_refs[device]++;
    *context = primary[device];
    END
}

static struct allocation *find(const char *address)
{
    for (size_t i = 0; i < ALLOCATIONS_MAX; i++) {
        struct allocation *allocation = &allocations[i];

        if (allocation->alias && address >= allocation->base && address < allocation->base + allocation->len)
            return allocation;
    }
    return NULL;
}

static void release(struct allocation *allocation)
{
    munmap(allocation->alias, allocation->mapped);
    allocation->alias = NULL;
    if (mmap(allocation->base, allocation->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        abort();
    counts.allocations--;
}

static void kill_context(struct context *context)
{
    context->is_dead = true;
    counts.contexts--;
    for (size_t i = 0; i < ALLOCATIONS_MAX; i++) {
        if (allocations[i].alias && allocations[i].context == context)
            release(&allocations[i]);
    }
    for (size_t i = 0; i < PINS_MAX; i++) {
        if (pins[i].address && pins[i].context == context) {
            pins[i].address = NULL;
            counts.pinned_ranges--;
        }
    }
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (stream->context != context || stream->is_detached)
            continue;
        if (stream->result == OK)
            stream->result = CONTEXT_IS_DESTROYED;
        stream->is_stopping = stream->is_detached = true;
        pthread_detach(stream->thread);
        counts.streams--;
    }
    pthread_cond_broadcast(&changed);
}

API(cuDevicePrimaryCtxRelease_v2, (int device))
{
    BEGIN("cuDevicePrimaryCtxRelease");
    if (primary_refs[device] == 0)
        result = INVALID_CONTEXT;
    else if (--primary_refs[device] == 0 && !primary[device]->is_dead)
        kill_context(primary[device]);
    END
}

API(cuCtxPushCurrent_v2, (struct context * context))
{
    BEGIN("cuCtxPushCurrent");
    if (!context)
        result = INVALID_CONTEXT;
    else if (context->is_dead)
        result = CONTEXT_IS_DESTROYED;
    else if (depth == STACK_MAX)
        abort();
    else
        stack[depth++] = context;
    END
}

API(cuCtxPopCurrent_v2, (struct context * *context))
{
    if (depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

static struct context *current(void)
{
    return depth > 0 && !stack[depth - 1]->is_dead ? stack[depth - 1] : NULL;
}

static int no_context(void)
{
    return depth > 0 ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT;
}

/* --- memory --- */

API(cuMemAlloc_v2, (uint64_t * address, size_t len))
{
    struct allocation *slot = NULL;
    size_t mapped = (len + PAGE - 1) / PAGE * PAGE;
    int fd = -1;

    BEGIN("cuMemAlloc");
    result = current() && len ? OK : no_context();
    for (size_t i = 0; i < ALLOCATIONS_MAX && !slot; i++) {
        if (!allocations[i].alias && allocations[i].base && allocations[i].mapped == mapped)
            slot = &allocations[i];
    }
    for (size_t i = 0; i < ALLOCATIONS_MAX && !slot; i++) {
        if (!allocations[i].base)
            slot = &allocations[i];
    }
    fd = memfd_create("cuda-stub", MFD_CLOEXEC);
    if (result == OK && (!slot || fd < 0 || ftruncate(fd, (off_t)mapped) != 0))
        result = OUT_OF_MEMORY;
    if (result != OK)
        goto out;
    slot->alias = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    slot->base = mmap(slot->base, mapped, PROT_NONE, MAP_SHARED | (slot->base ? MAP_FIXED : 0), fd, 0);
    if (slot->alias == MAP_FAILED || slot->base == MAP_FAILED)
        abort();
    slot->len = len;
    slot->mapped = mapped;
    slot->id = next_id++;
    slot->context = current();
    counts.allocations++;
    *address = (uint64_t)(uintptr_t)slot->base;
out:
    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&mutex);
    return result;
}

API(cuMemFree_v2, (uint64_t address))
{
    struct allocation *allocation;

    BEGIN("cuMemFree");
    allocation = find((char *)(uintptr_t)address);
    if (allocation && allocation->base == (char *)(uintptr_t)address)
        release(allocation);
    else
        result = INVALID_VALUE;
    END
}

API(cuPointerGetAttributes, (unsigned count, const int *attributes, void **values, uint64_t address))
{
    const struct allocation *allocation;

    BEGIN("cuPointerGetAttributes");
    allocation = find((char *)(uintptr_t)address);
    for (unsigned i = 0; i < count; i++) {
        switch (attributes[i]) {
        case 2:
            *(uint32_t *)values[i] = allocation ? 2 : 0;
            break;
        case 7:
            *(uint64_t *)values[i] = allocation ? allocation->id : 0;
            break;
        case 8:
            *(uint8_t *)values[i] = 0;
            break;
        case 9:
            *(int *)values[i] = allocation ? allocation->context->device : -2;
            break;
        default:
            result = INVALID_VALUE;
            break;
        }
    }
    END
}

API(cuMemGetAddressRange_v2, (uint64_t * base, size_t *len, uint64_t address))
{
    const struct allocation *allocation;

    BEGIN("cuMemGetAddressRange");
    allocation = find((char *)(uintptr_t)address);
    if (allocation) {
        *base = (uint64_t)(uintptr_t)allocation->base;
        *len = allocation->len;
    } else {
        result = INVALID_VALUE;
    }
    END
}

API(cuMemHostRegister_v2, (char *address, size_t len, unsigned flags))
{
    size_t slot = PINS_MAX;

    (void)flags;
    BEGIN("cuMemHostRegister");
    result = current() ? OK : no_context();
    for (size_t i = 0; i < PINS_MAX; i++) {
        if (!pins[i].address)
            slot = i;
        else if (address < pins[i].address + pins[i].len && pins[i].address < address + len)
            result = ALREADY_REGISTERED;
    }
    if (result == OK && slot == PINS_MAX)
        result = OUT_OF_MEMORY;
    if (result == OK) {
        pins[slot].address = address;
        pins[slot].len = len;
        pins[slot].context = current();
        counts.pinned_ranges++;
    }
    END
}

API(cuMemHostUnregister, (char *address))
{
    BEGIN("cuMemHostUnregister");
    result = NOT_REGISTERED;
    for (size_t i = 0; i < PINS_MAX; i++) {
        if (pins[i].address != address)
            continue;
        pins[i].address = NULL;
        counts.pinned_ranges--;
        result = OK;
    }
    END
}

API(cuMemGetHandleForAddressRange, (int *handle, uint64_t address, size_t len, int type, unsigned long long flags))
{
    const struct allocation *allocation;

    BEGIN("cuMemGetHandleForAddressRange");
    allocation = find((char *)(uintptr_t)address);
    if (!allocation || address % PAGE || len % PAGE || type != 1 || flags)
        result = INVALID_VALUE;
    else
        *handle = memfd_create("cuda-stub-dmabuf", MFD_CLOEXEC);
    END
}

/* --- streams and events --- */

/* With the lock held; the result of a copy that touches memory that is gone. */
static int run_copy(const struct task *task)
{
    const struct allocation *allocation = find(task->device);
    bool is_pinned = false;
    char *alias;

    if (!allocation || task->len > (size_t)(allocation->base + allocation->len - task->device))
        return ILLEGAL_ADDRESS;
    for (size_t i = 0; i < PINS_MAX && !is_pinned; i++)
        is_pinned =
            pins[i].address && task->host >= pins[i].address && task->host + task->len <= pins[i].address + pins[i].len;
    counts.unpinned_copies += !is_pinned;
    alias = allocation->alias + (task->device - allocation->base);
    if (task->direction == CUDA_STUB_IN)
        memcpy(alias, task->host, task->len);
    else
        memcpy(task->host, alias, task->len);
    counts.copies[task->direction]++;
    counts.copied_bytes[task->direction] += task->len;
    return OK;
}

static void *stream_main(void *arg)
{
    struct stream *stream = arg;
    struct task *task;

    pthread_mutex_lock(&mutex);
    for (;;) {
        task = stream->first;
        if (!task && stream->is_stopping)
            break;
        if (!task || (task->is_copy && is_held[task->direction] && stream->result == OK)) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        stream->first = task->next;
        if (!stream->first)
            stream->last = &stream->first;
        if (task->is_copy) {
            counts.waiting[task->direction]--;
            if (stream->result == OK)
                stream->result = run_copy(task);
        } else {
            task->event->result = stream->result;
            task->event->is_pending = false;
        }
        free(task);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

API(cuStreamCreate, (struct stream * *out, unsigned flags))
{
    struct stream *stream;

    (void)flags;
    BEGIN("cuStreamCreate");
    if (!current()) {
        result = no_context();
        goto out;
    }
    stream = calloc(1, sizeof *stream);
    stream->context = current();
    stream->last = &stream->first;
    stream->next = streams;
    if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0)
        abort();
    streams = stream;
    counts.streams++;
    *out = stream;
    END
}

API(cuStreamDestroy_v2, (struct stream * stream))
{
    pthread_mutex_lock(&mutex);
    if (stream->is_detached) {
        pthread_mutex_unlock(&mutex);
        return CONTEXT_IS_DESTROYED;
    }
    stream->is_stopping = true;
    for (struct stream **at = &streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    counts.streams--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(stream->thread, NULL);
    free(stream);
    return OK;
}

API(cuStreamSynchronize, (struct stream * stream))
{
    int result;

    pthread_mutex_lock(&mutex);
    while (stream->first)
        pthread_cond_wait(&changed, &mutex);
    result = stream->result;
    pthread_mutex_unlock(&mutex);
    return result;
}

static int push(struct stream *stream, struct task task)
{
    struct task *copy;

    if (!current())
        return no_context();
    if (stream->result != OK)
        return stream->result;
    copy = malloc(sizeof *copy);
    *copy = task;
    copy->next = NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    if (task.is_copy)
        counts.waiting[task.direction]++;
    pthread_cond_broadcast(&changed);
    return OK;
}

API(cuMemcpyHtoDAsync_v2, (uint64_t to, char *from, size_t len, struct stream *stream))
{
    BEGIN("cuMemcpyHtoDAsync");
    result = find((char *)(uintptr_t)to) ? push(stream, (struct task){.is_copy = true,
                                                                      .direction = CUDA_STUB_IN,
                                                                      .device = (char *)(uintptr_t)to,
                                                                      .host = from,
                                                                      .len = len})
                                         : INVALID_VALUE;
    END
}

API(cuMemcpyDtoHAsync_v2, (char *to, uint64_t from, size_t len, struct stream *stream))
{
    BEGIN("cuMemcpyDtoHAsync");
    result = find((char *)(uintptr_t)from) ? push(stream, (struct task){.is_copy = true,
                                                                        .direction = CUDA_STUB_OUT,
                                                                        .device = (char *)(uintptr_t)from,
                                                                        .host = to,
                                                                        .len = len})
                                           : INVALID_VALUE;
    END
}

/* What a test uses to look into device memory: at once, and never held. */
static int copy_now(char *device, char *host, size_t len, enum cuda_stub_direction direction)
{
    struct allocation *allocation = find(device);

    if (!allocation || len > (size_t)(allocation->base + allocation->len - device))
        return INVALID_VALUE;
    device = allocation->alias + (device - allocation->base);
    memcpy(direction == CUDA_STUB_IN ? device : host, direction == CUDA_STUB_IN ? host : device, len);
    return OK;
}

API(cuMemcpyHtoD_v2, (uint64_t to, char *from, size_t len))
{
    BEGIN("cuMemcpyHtoD");
    result = copy_now((char *)(uintptr_t)to, from, len, CUDA_STUB_IN);
    END
}

API(cuMemcpyDtoH_v2, (char *to, uint64_t from, size_t len))
{
    BEGIN("cuMemcpyDtoH");
    result = copy_now((char *)(uintptr_t)from, to, len, CUDA_STUB_OUT);
    END
}

API(cuEventCreate, (struct event * *out, unsigned flags))
{
    (void)flags;
    BEGIN("cuEventCreate");
    *out = calloc(1, sizeof **out);
    (*out)->next = events;
    (*out)->at = &events;
    if (events)
        events->at = &(*out)->next;
    events = *out;
    counts.events++;
    END
}

API(cuEventDestroy_v2, (struct event * event))
{
    pthread_mutex_lock(&mutex);
    counts.events--;
    *event->at = event->next;
    if (event->next)
        event->next->at = event->at;
    pthread_mutex_unlock(&mutex);
    free(event);
    return OK;
}

API(cuEventRecord, (struct event * event, struct stream *stream))
{
    BEGIN("cuEventRecord");
    result = push(stream, (struct task){.event = event});
    if (result == OK)
        event->is_pending = true;
    END
}

API(cuEventSynchronize, (struct event * event))
{
    int result;

    pthread_mutex_lock(&mutex);
    result = fault("cuEventSynchronize");
    while (event->is_pending)
        pthread_cond_wait(&changed, &mutex);
    if (result == OK)
        result = event->result;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* --- control --- */

static void control_hold(enum cuda_stub_direction direction, bool value)
{
    pthread_mutex_lock(&mutex);
    is_held[direction] = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void control_fail(const char *symbol, int result, unsigned after)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < FAULTS_MAX; i++) {
        if (faults[i].symbol[0])
            continue;
        snprintf(faults[i].symbol, sizeof faults[i].symbol, "%s", symbol);
        faults[i].result = result;
        faults[i].after = after;
        break;
    }
    pthread_mutex_unlock(&mutex);
}

static void control_destroy_context(int device)
{
    pthread_mutex_lock(&mutex);
    if (primary[device] && !primary[device]->is_dead)
        kill_context(primary[device]);
    pthread_mutex_unlock(&mutex);
}

static void control_flip(void *address)
{
    struct allocation *allocation;

    pthread_mutex_lock(&mutex);
    allocation = find(address);
    if (!allocation)
        abort();
    allocation->alias[(char *)address - allocation->base] ^= 1;
    pthread_mutex_unlock(&mutex);
}

static struct cuda_stub_counts control_counts(void)
{
    struct cuda_stub_counts copy;

    pthread_mutex_lock(&mutex);
    copy = counts;
    pthread_mutex_unlock(&mutex);
    return copy;
}

__attribute__((visibility("default"))) const struct cuda_stub_control *cuda_stub_control(void);
const struct cuda_stub_control *cuda_stub_control(void)
{
    static const struct cuda_stub_control control = {
        .hold = control_hold,
        .fail_call = control_fail,
        .destroy_context = control_destroy_context,
        .flip = control_flip,
        .counts = control_counts,
    };

    return &control;
}
