/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a GPU, as a shared library (SHOAL_CUDA_DRIVER names it): two devices, whose memory can be
 * touched through the driver only, so that any other access is a fault; streams with a thread each. What a test wants
 * of it beyond the driver's own functions comes from cuda_stub_control(). */
#ifndef SHOAL_TESTS_CUDA_STUB_H
#define SHOAL_TESTS_CUDA_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_STUB_DEVICES 2
#define CUDA_STUB_ENTRY "cuda_stub_control"

enum cuda_stub_direction { CUDA_STUB_IN, CUDA_STUB_OUT };

struct cuda_stub_counts {
    uint64_t copies[2], copied_bytes[2];
    uint64_t unpinned_copies;
    unsigned waiting[2];                                            /* copies that were asked for and have not begun */
    unsigned streams, events, pinned_ranges, contexts, allocations; /* that live */
};

struct cuda_stub_control {
    /* Copies of that direction wait from now on (or go on). */
    void (*hold)(enum cuda_stub_direction direction, bool is_held);
    /* The driver's function of that name returns result, once, after so many calls that do what they should. */
    void (*fail_call)(const char *symbol, int result, unsigned after);
    /* As when the application resets the device: memory, streams and pins of its context are gone. */
    void (*destroy_context)(int device);
    void (*flip)(void *device_address); /* one byte, in memory */
    struct cuda_stub_counts (*counts)(void);
};

typedef const struct cuda_stub_control *(*cuda_stub_control_fn)(void);

#endif
