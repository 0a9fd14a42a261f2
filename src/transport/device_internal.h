/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the device layer; only device*.c include it. */
#ifndef SHOAL_TRANSPORT_DEVICE_INTERNAL_H
#define SHOAL_TRANSPORT_DEVICE_INTERNAL_H

#include <pthread.h>

#include "base/mutex.h"
#include "transport/device.h"
#include "transport/device_driver.h"

#define DEVICE_LANE_DEPTH 8u /* copies that the driver has at a time */
#define DEVICE_TEXT_BYTES 160

/* One direction of one device. One thread hands copies to the driver, another waits for them in that order: so the next
 * copy is with the driver before the previous one is over. */
struct device_lane {
    struct device *device;
    enum device_direction direction;
    unsigned thread_count; /* that were started */
    pthread_t threads[2];
    cuda_stream stream;
    cuda_event events[DEVICE_LANE_DEPTH];

    struct mutex mutex; /* RANK_TRANSPORT: guards what follows */
    struct cond changed;
    struct list queue;                              /* struct device_copy */
    struct device_copy *running[DEVICE_LANE_DEPTH]; /* a ring; the driver has them */
    unsigned oldest, running_count;
    bool is_stopping;
};

struct device_pool {
    struct list idle;    /* struct device_buffer */
    struct list waiting; /* struct device_wait */
    unsigned made;       /* at most DEVICE_BUFFERS_MAX */
};

struct device {
    struct list_node node; /* in the list of devices, unless broken */
    unsigned refs;         /* under devices_mutex */
    unsigned number;
    const struct device_driver *driver;
    cuda_device handle;
    cuda_context context; /* a reference to the primary one */
    struct device_lane lanes[DEVICE_DIRECTIONS];
    bool is_broken; /* atomic: its context is dead; who opens the device next begins anew */

    struct mutex mutex; /* RANK_TRANSPORT: guards the pools */
    struct device_pool pools[DEVICE_USES];
};

struct device_counters { /* atomic, relaxed; of the process */
    uint64_t copies[DEVICE_DIRECTIONS], bytes[DEVICE_DIRECTIONS];
    uint64_t failures, buffer_waits, unpinned_buffers, buffer_bytes;
};
extern struct device_counters device_counters;

static inline void device_count(uint64_t *counter, uint64_t by)
{
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

/* device.c: makes the device's context current on this thread; leave undoes it. */
enum shoal_status device_enter(struct device *device, struct shoal_error *error);
void device_leave(struct device *device);
/* Writes "cuda:N: WHAT: NAME (text)" and notes when the context is dead. Returns IO. */
enum shoal_status device_failed(struct device *device, cuda_result result, const char *what, struct shoal_error *error);

/* device_copy.c */
enum shoal_status device_lane_start(struct device_lane *lane, struct device *device, enum device_direction direction,
                                    struct shoal_error *error);
void device_lane_stop(struct device_lane *lane);
void device_pools_init(struct device *device);
void device_pools_release(struct device *device); /* with the context current, if it lives */

#endif
