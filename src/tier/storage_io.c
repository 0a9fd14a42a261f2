/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/storage_io.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SUBMIT_ATTEMPTS 1000 /* while the kernel says that it is short of something */

struct request {
    uint8_t *memory; /* borrowed */
    size_t len_bytes, done_bytes;
    uint64_t offset_bytes;
    int error;
    bool is_write;
    bool is_done; /* finish has only to return it */
};

struct storage_io {
    int fd; /* borrowed */
    bool has_ring, is_broken;
    struct io_uring ring;
    uint8_t *memory; /* owned, mapped; STORAGE_IO_SLOTS buffers */
    struct request requests[STORAGE_IO_SLOTS];
    unsigned queued[STORAGE_IO_DEPTH]; /* slots in the ring that the kernel has not taken yet, oldest first */
    unsigned queued_count;
    unsigned in_flight;
};

#define MEMORY_BYTES ((size_t)STORAGE_IO_SLOTS * STORAGE_CHUNK_BYTES)

struct storage_io *storage_io_create(int fd, bool wants_ring)
{
    struct storage_io *io = calloc(1, sizeof *io);

    if (!io)
        return NULL;
    io->memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (io->memory == MAP_FAILED) {
        free(io);
        return NULL;
    }
    io->fd = fd;
    io->has_ring = wants_ring && io_uring_queue_init(STORAGE_IO_DEPTH, &io->ring, 0) == 0;
    return io;
}

void storage_io_destroy(struct storage_io *io)
{
    if (!io)
        return;
    assert(io->in_flight == 0);
    if (io->has_ring)
        io_uring_queue_exit(&io->ring);
    munmap(io->memory, MEMORY_BYTES);
    free(io);
}

bool storage_io_has_ring(const struct storage_io *io)
{
    return io->has_ring;
}

bool storage_io_is_broken(const struct storage_io *io)
{
    return io->is_broken;
}

uint8_t *storage_io_buffer(struct storage_io *io, unsigned slot)
{
    return io->memory + (size_t)slot * STORAGE_CHUNK_BYTES;
}

unsigned storage_io_in_flight(const struct storage_io *io)
{
    return io->in_flight;
}

static void move_plainly(struct storage_io *io, struct request *request)
{
    while (request->done_bytes < request->len_bytes) {
        uint8_t *at = request->memory + request->done_bytes;
        size_t len = request->len_bytes - request->done_bytes;
        off_t offset = (off_t)(request->offset_bytes + request->done_bytes);
        ssize_t moved = request->is_write ? pwrite(io->fd, at, len, offset) : pread(io->fd, at, len, offset);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0) {
            request->error = moved < 0 ? errno : EIO; /* the file is shorter than it was */
            break;
        }
        request->done_bytes += (size_t)moved;
    }
    request->is_done = true;
}

/* Nothing of the ring can be relied on any more. The kernel may find entries with a later submission: there will be
 * none. */
static void give_up(struct storage_io *io, int saved_errno)
{
    io->is_broken = true;
    for (unsigned i = 0; i < io->queued_count; i++) {
        io->requests[io->queued[i]].error = saved_errno;
        io->requests[io->queued[i]].is_done = true;
    }
    io->queued_count = 0;
}

/* The queue has as many entries as may be in flight, so there is always one. */
static void enqueue(struct storage_io *io, unsigned slot)
{
    struct request *request = &io->requests[slot];
    struct io_uring_sqe *sqe = io->is_broken ? NULL : io_uring_get_sqe(&io->ring);

    io->queued[io->queued_count++] = slot;
    if (!sqe) {
        give_up(io, EIO);
        return;
    }
    uint8_t *at = request->memory + request->done_bytes;
    unsigned len = (unsigned)(request->len_bytes - request->done_bytes);
    if (request->is_write)
        io_uring_prep_write(sqe, io->fd, at, len, request->offset_bytes + request->done_bytes);
    else
        io_uring_prep_read(sqe, io->fd, at, len, request->offset_bytes + request->done_bytes);
    io_uring_sqe_set_data64(sqe, slot);
}

void storage_io_submit(struct storage_io *io)
{
    unsigned attempt = 0;

    while (io->queued_count > 0) {
        int rc = io_uring_submit(&io->ring);
        if (rc > 0) {
            unsigned taken = (unsigned)rc < io->queued_count ? (unsigned)rc : io->queued_count;
            io->queued_count -= taken;
            memmove(io->queued, io->queued + taken, io->queued_count * sizeof *io->queued);
        } else if ((rc != -EINTR && rc != -EAGAIN && rc != -EBUSY && rc != 0) || ++attempt >= SUBMIT_ATTEMPTS) {
            give_up(io, rc < 0 ? -rc : EIO);
        } else {
            sched_yield();
        }
    }
}

void storage_io_start(struct storage_io *io, unsigned slot, bool is_write, void *memory, size_t len_bytes,
                      uint64_t offset_bytes)
{
    assert(slot < STORAGE_IO_SLOTS && io->in_flight < STORAGE_IO_DEPTH);
    assert(len_bytes > 0 && len_bytes <= STORAGE_CHUNK_BYTES);
    io->requests[slot] =
        (struct request){.memory = memory, .len_bytes = len_bytes, .offset_bytes = offset_bytes, .is_write = is_write};
    io->in_flight++;
    if (io->has_ring)
        enqueue(io, slot);
    else
        move_plainly(io, &io->requests[slot]);
}

static unsigned find_done(const struct storage_io *io)
{
    unsigned slot = 0;
    while (slot < STORAGE_IO_SLOTS && !io->requests[slot].is_done)
        slot++;
    return slot;
}

/* What the kernel says of a request; the rest of a short transfer is started anew. */
static void take_result(struct storage_io *io, unsigned slot, int moved)
{
    struct request *request = &io->requests[slot];

    if (moved > 0)
        request->done_bytes += (size_t)moved;
    else if (moved != -EINTR && moved != -EAGAIN)
        request->error = moved < 0 ? -moved : EIO; /* the file is shorter than it was */
    if (request->error || request->done_bytes == request->len_bytes)
        request->is_done = true;
    else
        enqueue(io, slot);
}

unsigned storage_io_finish(struct storage_io *io, bool waits, int *errno_out)
{
    unsigned slot;

    assert(io->in_flight > 0);
    while ((slot = find_done(io)) == STORAGE_IO_SLOTS) {
        struct io_uring_cqe *cqe;
        storage_io_submit(io);
        if (find_done(io) != STORAGE_IO_SLOTS)
            continue;
        if (!waits && io_uring_peek_cqe(&io->ring, &cqe) != 0)
            return STORAGE_IO_SLOTS;
        /* Whatever disturbs the wait: to return would leave the kernel with memory that is not ours. */
        while (waits && io_uring_wait_cqe(&io->ring, &cqe) != 0)
            sched_yield();
        slot = (unsigned)io_uring_cqe_get_data64(cqe);
        int moved = cqe->res;
        io_uring_cqe_seen(&io->ring, cqe);
        take_result(io, slot, moved);
    }
    io->requests[slot].is_done = false;
    io->in_flight--;
    *errno_out = io->requests[slot].error;
    return slot;
}
