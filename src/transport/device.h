/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of CUDA devices. The processor cannot touch it, and neither can a transport without TRANSPORT_CAP_DEVICE: such
 * bytes travel through staging buffers in pinned host memory, and copies between a buffer and the device run beside the
 * network on streams of Shoal's own (so they wait for nothing that the application has queued, and it not for them).
 *
 * A device that is in use has a reference to the device's primary context, a thread and a stream for each direction and
 * a bounded number of staging buffers. Devices are shared by all engines of the process.
 *
 * Threads: any, unless said otherwise. */
#ifndef SHOAL_TRANSPORT_DEVICE_H
#define SHOAL_TRANSPORT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "base/list.h"

#define DEVICE_BUFFER_BYTES (1u << 20)
#define DEVICE_BUFFERS_MAX 32u /* of one device for one use */

struct device; /* one "cuda:N" in use */

/* --- devices and their memory --- */

/* Takes a reference. INVALID_ARGUMENT: no such device here (the message says how many there are). UNSUPPORTED: no
 * driver. IO: the driver refuses, or does not work. NO_MEMORY, LIMIT (threads). Blocks: the first use of a device
 * starts its context. */
enum shoal_status device_open(unsigned number, struct device **out, struct shoal_error *error);
/* With the last reference the device's threads end and its buffers and context go. No copy may be running. Blocks; not
 * on a loop or a device's thread. NULL is allowed. */
void device_close(struct device *device);
unsigned device_number(const struct device *device);

/* Whether [addr, addr+len) is memory of that device inside one allocation, and the allocation's identity, which an
 * address that was freed and allocated again does not keep. INVALID_ARGUMENT: it is not, the message says what it is.
 * IO. */
enum shoal_status device_check(struct device *device, uint64_t addr, uint64_t len, uint64_t *allocation_out,
                               struct shoal_error *error);

/* Whether the processor must not touch addr, since it is memory of a GPU (managed memory is not meant). Only drivers
 * that this process has loaded already, whoever did, are asked; without one it is cheap. */
bool device_is_device_memory(const void *addr, unsigned *number_out);

struct device_info {
    unsigned number;
    char name[96];
    char pci_bus_id[32]; /* "0000:3b:00.0"; "": unknown */
    uint64_t memory_bytes;
    bool has_dmabuf;
};
/* What there is; makes no context. count_out may be larger than capacity. version_out: 12040 for 12.4; may be NULL.
 * UNSUPPORTED: no driver. IO: one that does not work. */
enum shoal_status device_list(struct device_info *infos, unsigned capacity, unsigned *count_out, int *version_out,
                              struct shoal_error *error);

/* --- staging buffers --- */

/* Each use has buffers of its own: a node that waits for what it asked of a peer must still be able to serve that peer,
 * which may be waiting for it in turn. */
enum device_use { DEVICE_USE_REQUEST, DEVICE_USE_SERVE_READ, DEVICE_USE_SERVE_WRITE, DEVICE_USE_DIGEST, DEVICE_USES };

/* DEVICE_BUFFER_BYTES of pinned memory. It is mapped by Shoal and only made known to the driver, so it stays when the
 * application destroys the context. */
struct device_buffer {
    struct list_node node;
    void *data;
    bool is_pinned;
};

/* Waits for a buffer; embedded in its owner. granted is called once, on any thread, without locks; it may only pass the
 * word on. */
struct device_wait {
    struct list_node node;
    void (*granted)(struct device_wait *wait, struct device_buffer *buffer);
};

/* Those who wait get buffers in the order in which they began to. BUSY: all are in use; granted follows (wait NULL:
 * nothing follows). NO_MEMORY. */
enum shoal_status device_buffer_take(struct device *device, enum device_use use, struct device_wait *wait,
                                     struct device_buffer **out);
void device_buffer_put(struct device *device, enum device_use use, struct device_buffer *buffer); /* NULL is allowed */
/* true: granted will not be called. false: it was, or is about to be. */
bool device_wait_cancel(struct device *device, struct device_wait *wait);

/* --- copies --- */

enum device_direction { DEVICE_IN /* host to device */, DEVICE_OUT /* device to host */, DEVICE_DIRECTIONS };

/* One copy; embedded in its owner, who fills the first block. */
struct device_copy {
    enum device_direction direction;
    uint64_t addr, allocation; /* of device_check */
    void *host;
    size_t len;
    /* Just before the copy begins, on the device's thread; may be NULL. Copies of one direction begin in order. */
    void (*before)(struct device_copy *copy);
    /* Exactly once, on the device's thread, when nothing of the copy is under way any more; may only pass the word on.
     * IO: freed memory, a destroyed context, or what the driver says. */
    void (*done)(struct device_copy *copy, enum shoal_status status, const struct shoal_error *error);
    void *arg;
    /* private */
    struct list_node node;
};
/* Never fails: a failure is reported by done. The memory must stay registered until then. */
void device_copy_start(struct device *device, struct device_copy *copy);

/* Shows [addr, addr+len) to fn in order, at most DEVICE_BUFFER_BYTES at a time, while more of it is being copied. fn
 * false: enough. Blocks; not on a loop. IO, NO_MEMORY. */
enum shoal_status device_read(struct device *device, uint64_t allocation, uint64_t addr, uint64_t len,
                              bool (*fn)(void *arg, const void *data, size_t len), void *arg,
                              struct shoal_error *error);

/* shoal_device_*, of the process. false: out of memory or bound reached. */
bool device_metrics(struct buf *out);

#endif
