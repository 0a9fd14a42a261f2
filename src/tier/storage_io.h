/* SPDX-License-Identifier: Apache-2.0 */
/* Several disk requests in flight on one file, by io_uring; one after another with pread and pwrite where the kernel
 * refuses it (seccomp, an old kernel, no memory for the ring). Used by one thread at a time. */
#ifndef SHOAL_TIER_STORAGE_IO_H
#define SHOAL_TIER_STORAGE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORAGE_BLOCK_BYTES 4096u        /* of offsets, lengths and addresses of direct I/O */
#define STORAGE_CHUNK_BYTES (256u << 10) /* of one request, and of one digest */
#define STORAGE_IO_DEPTH 8u

struct storage_io;

/* fd is borrowed. NULL: out of memory. wants_ring: try io_uring. */
struct storage_io *storage_io_create(int fd, bool wants_ring);
/* Nothing is in flight. NULL is allowed. */
void storage_io_destroy(struct storage_io *io);
bool storage_io_has_ring(const struct storage_io *io);
/* The ring failed: finish what is in flight, then destroy it. */
bool storage_io_is_broken(const struct storage_io *io);

/* A buffer of STORAGE_CHUNK_BYTES for each slot below STORAGE_IO_DEPTH, aligned to pages. */
uint8_t *storage_io_buffer(struct storage_io *io, unsigned slot);
/* slot is not in flight. memory stays untouched until storage_io_finish has returned this slot. */
void storage_io_start(struct storage_io *io, unsigned slot, bool is_write, void *memory, size_t len_bytes,
                      uint64_t offset_bytes);
/* Something is in flight. Waits for one request, whichever, and returns its slot; errno_out is 0 or why not all of its
 * bytes were moved. Blocks. */
unsigned storage_io_finish(struct storage_io *io, int *errno_out);
unsigned storage_io_in_flight(const struct storage_io *io);

#endif
