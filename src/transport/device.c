/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices there are, which of them are in use, and what memory is theirs. */
#include "transport/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/device_internal.h"

#define LOG_MODULE "cuda"
#include "base/log.h"

/* Guards devices and their references; a device starts and ends under it, so nobody sees half of one. */
static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list devices = {{&devices.head, &devices.head}};

/* --- the context --- */

static bool is_fatal(cuda_result result)
{
    return result == CUDA_CONTEXT_IS_DESTROYED || result == CUDA_INVALID_CONTEXT || result == CUDA_ILLEGAL_ADDRESS ||
           result == CUDA_LAUNCH_FAILED;
}

enum shoal_status device_failed(struct device *device, cuda_result result, const char *what, struct shoal_error *error)
{
    char text[DEVICE_TEXT_BYTES];

    if (is_fatal(result) && !__atomic_exchange_n(&device->is_broken, true, __ATOMIC_RELAXED))
        LOG_WARN("cuda:%u: its context is of no use any more: %s", device->number,
                 device_driver_text(device->driver, result, text, sizeof text));
    return error_set(error, SHOAL_IO, 0, "cuda:%u: %s: %s", device->number, what,
                     device_driver_text(device->driver, result, text, sizeof text));
}

enum shoal_status device_enter(struct device *device, struct shoal_error *error)
{
    cuda_result result = device->driver->context_push(device->context);

    return result == CUDA_OK ? SHOAL_OK : device_failed(device, result, "its context", error);
}

void device_leave(struct device *device)
{
    cuda_context popped;

    (void)device->driver->context_pop(&popped);
}

/* --- devices --- */

static void destroy(struct device *device)
{
    bool is_inside;

    for (unsigned i = 0; i < DEVICE_DIRECTIONS; i++)
        device_lane_stop(&device->lanes[i]);
    is_inside = device->context && device_enter(device, NULL) == SHOAL_OK;
    device_pools_release(device);
    if (is_inside)
        device_leave(device);
    if (device->context)
        (void)device->driver->primary_release(device->handle);
    mutex_release(&device->mutex);
    free(device);
}

static enum shoal_status create(unsigned number, struct device **out, struct shoal_error *error)
{
    const struct device_driver *driver;
    struct device *device;
    enum shoal_status status = device_driver_get(&driver, error);
    cuda_result result;
    int count = 0;

    if (status != SHOAL_OK) {
        error_prefix(error, "location \"cuda:%u\"", number);
        return status;
    }
    result = driver->device_count(&count);
    if (result == CUDA_OK && number >= (unsigned)count)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "location \"cuda:%u\": this machine has %d CUDA device%s",
                         number, count, count == 1 ? " (cuda:0)" : "s");
    device = calloc(1, sizeof *device);
    if (!device)
        return error_no_memory(error);
    device->number = number;
    device->driver = driver;
    device->refs = 1;
    list_node_init(&device->node);
    mutex_init(&device->mutex, RANK_TRANSPORT);
    device_pools_init(device);
    if (result == CUDA_OK)
        result = driver->device_get(&device->handle, (int)number);
    if (result == CUDA_OK) {
        result = driver->primary_retain(&device->context, device->handle);
        if (result != CUDA_OK)
            device->context = NULL;
    }
    if (result != CUDA_OK)
        status = device_failed(device, result, "cannot be used", error);
    for (unsigned i = 0; i < DEVICE_DIRECTIONS && status == SHOAL_OK; i++)
        status = device_lane_start(&device->lanes[i], device, (enum device_direction)i, error);
    if (status != SHOAL_OK) {
        destroy(device);
        return status;
    }
    *out = device;
    return SHOAL_OK;
}

enum shoal_status device_open(unsigned number, struct device **out, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    struct device *found = NULL;

    pthread_mutex_lock(&devices_mutex);
    LIST_FOR_EACH_SAFE (device, &devices, struct device, node) {
        if (device->number != number)
            continue;
        if (__atomic_load_n(&device->is_broken, __ATOMIC_RELAXED))
            list_remove(&device->node); /* those who have it keep it; its successor takes its place */
        else
            found = device;
    }
    if (found) {
        found->refs++;
    } else {
        status = create(number, &found, error);
        if (status == SHOAL_OK)
            list_push_back(&devices, &found->node);
    }
    pthread_mutex_unlock(&devices_mutex);
    if (status == SHOAL_OK)
        *out = found;
    return status;
}

void device_close(struct device *device)
{
    if (!device)
        return;
    pthread_mutex_lock(&devices_mutex);
    if (--device->refs == 0) {
        list_remove(&device->node);
        destroy(device);
    }
    pthread_mutex_unlock(&devices_mutex);
}

unsigned device_number(const struct device *device)
{
    return device->number;
}

/* --- memory --- */

static enum shoal_status check_inside(struct device *device, uint64_t addr, uint64_t len, uint64_t *allocation_out,
                                      struct shoal_error *error)
{
    static const int attributes[] = {CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_ORDINAL, CUDA_POINTER_BUFFER_ID};
    uint32_t type = 0;
    int ordinal = -1;
    uint64_t id = 0;
    void *values[] = {&type, &ordinal, &id};
    cuda_pointer base = 0;
    size_t base_len = 0;
    cuda_result result = device->driver->pointer_attributes(3, attributes, values, addr);

    if (result == CUDA_INVALID_VALUE || (result == CUDA_OK && type != CUDA_MEMORY_TYPE_DEVICE))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "0x%llx is not device memory (location \"cuda:%u\")",
                         (unsigned long long)addr, device->number);
    if (result != CUDA_OK)
        return device_failed(device, result, "looking at memory", error);
    if (ordinal != (int)device->number)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "0x%llx is memory of cuda:%d, not of cuda:%u",
                         (unsigned long long)addr, ordinal, device->number);
    result = device->driver->address_range(&base, &base_len, addr);
    if (result != CUDA_OK)
        return device_failed(device, result, "looking at memory", error);
    if (addr < base || addr - base > base_len || len > base_len - (addr - base))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "[0x%llx, +%llu) is not inside one allocation of cuda:%u, but 0x%llx is in [0x%llx, +%zu)",
                         (unsigned long long)addr, (unsigned long long)len, device->number, (unsigned long long)addr,
                         (unsigned long long)base, base_len);
    *allocation_out = id;
    return SHOAL_OK;
}

enum shoal_status device_check(struct device *device, uint64_t addr, uint64_t len, uint64_t *allocation_out,
                               struct shoal_error *error)
{
    enum shoal_status status = device_enter(device, error);

    if (status != SHOAL_OK)
        return status;
    status = check_inside(device, addr, len, allocation_out, error);
    device_leave(device);
    return status;
}

bool device_is_device_memory(const void *addr, unsigned *number_out)
{
    static const int attributes[] = {CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_ORDINAL, CUDA_POINTER_IS_MANAGED};
    cuda_result (*look)(unsigned, const int *, void **, cuda_pointer) = device_driver_peek();
    uint32_t type = 0;
    int ordinal = -1;
    uint32_t is_managed = 0; /* room for a boolean of either size */
    void *values[] = {&type, &ordinal, &is_managed};

    if (!look || look(3, attributes, values, (cuda_pointer)(uintptr_t)addr) != CUDA_OK ||
        type != CUDA_MEMORY_TYPE_DEVICE || is_managed || ordinal < 0)
        return false;
    *number_out = (unsigned)ordinal;
    return true;
}

enum shoal_status device_list(struct device_info *infos, unsigned capacity, unsigned *count_out, int *version_out,
                              struct shoal_error *error)
{
    const struct device_driver *driver;
    enum shoal_status status = device_driver_get(&driver, error);
    char text[DEVICE_TEXT_BYTES];
    int count = 0, version = 0;
    cuda_result result;

    if (status != SHOAL_OK)
        return status;
    result = driver->device_count(&count);
    if (result == CUDA_OK)
        result = driver->driver_version(&version);
    for (int i = 0; result == CUDA_OK && i < count && (unsigned)i < capacity; i++) {
        struct device_info *info = &infos[i];
        int has_dmabuf = 0;
        size_t bytes = 0;
        cuda_device handle;

        memset(info, 0, sizeof *info);
        info->number = (unsigned)i;
        result = driver->device_get(&handle, i);
        if (result == CUDA_OK)
            result = driver->device_name(info->name, sizeof info->name - 1, handle);
        if (result == CUDA_OK)
            result = driver->device_total_memory(&bytes, handle);
        info->memory_bytes = bytes;
        if (result == CUDA_OK && driver->device_pci_bus_id(info->pci_bus_id, sizeof info->pci_bus_id - 1, handle))
            info->pci_bus_id[0] = '\0';
        info->has_dmabuf = result == CUDA_OK && driver->range_handle &&
                           driver->device_attribute(&has_dmabuf, CUDA_ATTRIBUTE_DMA_BUF_SUPPORTED, handle) == CUDA_OK &&
                           has_dmabuf;
    }
    if (result != CUDA_OK)
        return error_set(error, SHOAL_IO, 0, "CUDA devices: %s", device_driver_text(driver, result, text, sizeof text));
    *count_out = (unsigned)count;
    if (version_out)
        *version_out = version;
    return SHOAL_OK;
}
