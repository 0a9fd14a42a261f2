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
#define STORAGE_IO_DEPTH 8u              /* requests that the disk has at the same time */
#define STORAGE_IO_SLOTS 12u             /* and those that it is done with, while their digests are computed */

struct storage_io;

/* fd is borrowed. NULL: out of memory. wants_ring: try io_uring. */
struct storage_io *storage_io_create(int fd, bool wants_ring);
/* Nothing is in flight. NULL is allowed. */
void storage_io_destroy(struct storage_io *io);
bool storage_io_has_ring(const struct storage_io *io);
/* The ring failed: finish what is in flight, then destroy it. */
bool storage_io_is_broken(const struct storage_io *io);

/* A buffer of STORAGE_CHUNK_BYTES for each slot below STORAGE_IO_SLOTS, aligned to pages. */
uint8_t *storage_io_buffer(struct storage_io *io, unsigned slot);
/* slot is not in flight, and fewer than STORAGE_IO_DEPTH are. memory stays untouched until storage_io_finish has
 * returned this slot. The disk may learn of it only with storage_io_submit or storage_io_finish. */
void storage_io_start(struct storage_io *io, unsigned slot, bool is_write, void *memory, size_t len_bytes,
                      uint64_t offset_bytes);
/* The disk gets everything that was started, at once. */
void storage_io_submit(struct storage_io *io);
/* One request that is done, whichever: its slot; errno_out is 0 or why not all of its bytes were moved. Something is in
 * flight. waits: blocks until there is one. Else STORAGE_IO_SLOTS: there is none now. */
unsigned storage_io_finish(struct storage_io *io, bool waits, int *errno_out);
unsigned storage_io_in_flight(const struct storage_io *io);

#endif
