/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, loaded when the first "cuda:N" location is used. Nothing of CUDA is needed to build: the few
 * functions and constants of its (stable) binary interface that Shoal uses are declared here. Only device*.c include
 * it. */
#ifndef SHOAL_TRANSPORT_DEVICE_DRIVER_H
#define SHOAL_TRANSPORT_DEVICE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define DEVICE_DRIVER_LIBRARY "libcuda.so.1"
#define DEVICE_DRIVER_VARIABLE "SHOAL_CUDA_DRIVER" /* environment: another file instead */

typedef int cuda_result; /* 0: success */
typedef int cuda_device;
typedef uint64_t cuda_pointer;
typedef void *cuda_context, *cuda_stream, *cuda_event;

enum cuda_constants {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_CONTEXT_IS_DESTROYED = 709,
    CUDA_LAUNCH_FAILED = 719,

    CUDA_POINTER_MEMORY_TYPE = 2, /* uint32_t */
    CUDA_POINTER_BUFFER_ID = 7,   /* uint64_t, never the same for two allocations of a process */
    CUDA_POINTER_IS_MANAGED = 8,  /* a boolean, of one byte or four */
    CUDA_POINTER_ORDINAL = 9,     /* int */
    CUDA_MEMORY_TYPE_DEVICE = 2,

    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_BLOCKING_SYNC = 1, /* a thread that waits sleeps */
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_HOST_REGISTER_PORTABLE = 1, /* pinned for every context */

    CUDA_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
};

/* X(member, symbol, parameters) */
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(init, "cuInit", (unsigned flags))                                                                                \
    X(driver_version, "cuDriverGetVersion", (int *version))                                                            \
    X(error_name, "cuGetErrorName", (cuda_result result, const char **name))                                           \
    X(error_string, "cuGetErrorString", (cuda_result result, const char **text))                                       \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                  \
    X(device_get, "cuDeviceGet", (cuda_device * device, int ordinal))                                                  \
    X(device_name, "cuDeviceGetName", (char *name, int len, cuda_device device))                                       \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cuda_device device))                       \
    X(device_total_memory, "cuDeviceTotalMem_v2", (size_t * bytes, cuda_device device))                                \
    X(device_pci_bus_id, "cuDeviceGetPCIBusId", (char *id, int len, cuda_device device))                               \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (cuda_context * context, cuda_device device))                        \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cuda_device device))                                           \
    X(context_push, "cuCtxPushCurrent_v2", (cuda_context context))                                                     \
    X(context_pop, "cuCtxPopCurrent_v2", (cuda_context * context))                                                     \
    X(pointer_attributes, "cuPointerGetAttributes",                                                                    \
      (unsigned count, const int *attributes, void **values, cuda_pointer pointer))                                    \
    X(address_range, "cuMemGetAddressRange_v2", (cuda_pointer * base, size_t * len, cuda_pointer pointer))             \
    X(host_register, "cuMemHostRegister_v2", (void *address, size_t len, unsigned flags))                              \
    X(host_unregister, "cuMemHostUnregister", (void *address))                                                         \
    X(stream_create, "cuStreamCreate", (cuda_stream * stream, unsigned flags))                                         \
    X(stream_destroy, "cuStreamDestroy_v2", (cuda_stream stream))                                                      \
    X(stream_synchronize, "cuStreamSynchronize", (cuda_stream stream))                                                 \
    X(event_create, "cuEventCreate", (cuda_event * event, unsigned flags))                                             \
    X(event_destroy, "cuEventDestroy_v2", (cuda_event event))                                                          \
    X(event_record, "cuEventRecord", (cuda_event event, cuda_stream stream))                                           \
    X(event_synchronize, "cuEventSynchronize", (cuda_event event))                                                     \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (cuda_pointer to, const void *from, size_t len, cuda_stream stream))            \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, cuda_pointer from, size_t len, cuda_stream stream))

/* May be missing from older drivers: then NULL. Only asked for to know what network devices could be given. */
#define CUDA_OPTIONAL_FUNCTIONS(X)                                                                                     \
    X(range_handle, "cuMemGetHandleForAddressRange",                                                                   \
      (void *handle, cuda_pointer pointer, size_t len, int type, unsigned long long flags))

struct device_driver {
#define CUDA_MEMBER(member, symbol, parameters) cuda_result(*member) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
    CUDA_OPTIONAL_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Loads and initialises it once per process; a failure is tried again by the next call. Any thread.
 * UNSUPPORTED: no driver. IO: one that lacks functions or does not start; the message says why. */
enum shoal_status device_driver_get(const struct device_driver **out, struct shoal_error *error);
/* cuPointerGetAttributes of a driver that the process has loaded, without starting it; NULL: there is none. Any thread.
 */
cuda_result (*device_driver_peek(void))(unsigned count, const int *attributes, void **values, cuda_pointer pointer);
/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" and the like; text is buffer or static. */
const char *device_driver_text(const struct device_driver *driver, cuda_result result, char *buffer, size_t len);

#endif
