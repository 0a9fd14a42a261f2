/* SPDX-License-Identifier: Apache-2.0 */
/* Copies out of another process, in chunks that several threads take in turn. */
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/local_internal.h"

static struct local_counters *counters(struct local_copy *copy)
{
    return &copy->local->counters;
}

int local_copy_probe(pid_t pid, uint64_t addr, uint64_t expected)
{
    uint64_t value = ~expected;
    struct iovec here = {&value, sizeof value}, there = {(void *)(uintptr_t)addr, sizeof value};

    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof value)
        return errno ? errno : EFAULT;
    return value == expected ? 0 : ESRCH; /* another process has that number here */
}

bool local_copy_is_readable(uint64_t addr)
{
    uint8_t byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)addr, 1};

    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

/* Which side of a copy could not be accessed. */
static bool is_unreadable(const struct local_copy *copy, uint64_t from)
{
    uint8_t byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)from, 1};

    if (copy->share)
        return pread(copy->share->fd, &byte, 1, (off_t)from) != 1;
    return process_vm_readv(copy->link->pid, &here, 1, &there, 1, 0) != 1;
}

/* fault_addr: of the other side; 0: it is not at fault. */
static void fail(struct local_copy *copy, enum shoal_status status, int sys_errno, uint64_t fault_addr)
{
    __atomic_store_n(&copy->is_stopped, true, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&copy->has_failed, true, __ATOMIC_ACQ_REL))
        return;
    copy->status = status;
    copy->sys_errno = sys_errno;
    copy->is_remote_fault = fault_addr != 0;
    copy->fault_addr = copy->share ? 0 : fault_addr;
}

static void copy_part(struct local_copy *copy, uint64_t offset, uint64_t len)
{
    while (len > 0) {
        uint8_t *to = copy->to + offset;
        uint64_t from = copy->from + offset;
        struct iovec here = {to, len}, there = {(void *)(uintptr_t)from, len};
        ssize_t got = copy->share ? pread(copy->share->fd, to, len, (off_t)from)
                                  : process_vm_readv(copy->link->pid, &here, 1, &there, 1, 0);

        if (got > 0) {
            __atomic_fetch_add(&copy->moved, (uint64_t)got, __ATOMIC_RELAXED);
            offset += (uint64_t)got;
            len -= (uint64_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0 || errno == EFAULT)
            fail(copy, SHOAL_IO, EFAULT, got == 0 || is_unreadable(copy, from) ? from : 0);
        else if (errno == ENOMEM)
            fail(copy, SHOAL_NO_MEMORY, ENOMEM, 0);
        else
            fail(copy, SHOAL_UNREACHABLE, errno, 0); /* gone, or its permissions changed */
        return;
    }
}

static void copy_chunk(struct local_copy *copy, uint64_t offset, uint64_t len)
{
    if (!copy->arrived || copy->task_count > 1) {
        copy_part(copy, offset, len);
        return;
    }
    while (len > 0) {
        uint64_t part = len < LOCAL_ARRIVED_BYTES ? len : LOCAL_ARRIVED_BYTES;

        copy_part(copy, offset, part);
        if (__atomic_load_n(&copy->has_failed, __ATOMIC_RELAXED))
            return;
        copy->arrived(copy, offset, part);
        offset += part;
        len -= part;
    }
}

/* Takes chunks until there are none. */
static void work(struct local_copy *copy)
{
    for (;;) {
        uint64_t offset, left;

        if (__atomic_load_n(&copy->is_stopped, __ATOMIC_RELAXED))
            return;
        offset = __atomic_fetch_add(&copy->next, LOCAL_CHUNK_BYTES, __ATOMIC_RELAXED);
        if (offset >= copy->len)
            return;
        /* The target of a WRITE must not go on for somebody who gave up long ago. */
        if (offset > 0 && !local_link_is_alive(copy->link)) {
            fail(copy, SHOAL_UNREACHABLE, EPIPE, 0);
            return;
        }
        left = copy->len - offset;
        copy_chunk(copy, offset, left < LOCAL_CHUNK_BYTES ? left : LOCAL_CHUNK_BYTES);
        local_count(&copy->local->chunks, 1);
    }
}

/* Only memory that still was what it was granted as when the last byte had been copied is worth anything: who takes it
 * back closes the link first, or dies. */
static void look_back(struct local_copy *copy)
{
    bool is_whole = __atomic_load_n(&copy->moved, __ATOMIC_RELAXED) == copy->len;

    if (!copy->has_failed && !is_whole)
        fail(copy, SHOAL_CANCELED, 0, 0);
    else if (!copy->has_failed && !local_link_is_alive(copy->link))
        fail(copy, SHOAL_UNREACHABLE, EPIPE, 0);
}

static void finish(struct local_copy *copy)
{
    struct local_link *link = copy->link;

    if (!copy->has_failed)
        local_count(copy->share ? &counters(copy)->shared_bytes : &counters(copy)->cma_bytes, copy->len);
    copy->is_active = false;
    if (copy->share)
        local_share_unuse(link, copy->share);
    copy->share = NULL;
    copy->done(copy);
    local_link_unhold(link);
}

static void start_waiting(struct local *local);

static void finish_threaded(void *arg)
{
    struct local_copy *copy = arg;
    struct local *local = copy->local;

    local->running_copies--;
    finish(copy);
    start_waiting(local);
}

static void task_main(void *arg, bool is_canceled)
{
    struct local_copy *copy = arg;

    if (is_canceled)
        fail(copy, SHOAL_CANCELED, 0, 0);
    else
        work(copy);
    if (__atomic_sub_fetch(&copy->running, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    look_back(copy);
    loop_post(copy->local->env.loop, &copy->task, finish_threaded, copy);
}

static void start_tasks(struct local_copy *copy)
{
    struct local *local = copy->local;
    uint64_t parts = (copy->len + LOCAL_SPLIT_BYTES - 1) / LOCAL_SPLIT_BYTES;
    unsigned count = parts < local->thread_count ? (unsigned)parts : local->thread_count;

    if (copy->arrived && copy->len <= LOCAL_STREAM_BYTES)
        count = 1;
    copy->is_waiting = false;
    local->running_copies++;
    copy->running = copy->task_count = count;
    for (unsigned i = 0; i < count; i++)
        if (executor_submit(local->executor, &copy->tasks[i], task_main, copy) != SHOAL_OK)
            task_main(copy, true); /* never: the queue has room for all, and it outlives the links */
}

static void start_waiting(struct local *local)
{
    struct list_node *node;

    while (local->running_copies < LOCAL_COPIES_MAX && (node = list_pop_front(&local->copies)))
        start_tasks(container_of(node, struct local_copy, node));
}

void local_copy_start(struct local_copy *copy)
{
    struct local *local = copy->local;

    copy->next = copy->moved = 0;
    copy->is_stopped = copy->has_failed = copy->is_remote_fault = false;
    copy->status = SHOAL_OK;
    copy->sys_errno = 0;
    copy->is_active = true;
    copy->task_count = 1;
    local_link_hold(copy->link);
    if (copy->len <= (copy->is_alone && local->running_copies == 0 ? LOCAL_ALONE_BYTES : LOCAL_INLINE_BYTES)) {
        work(copy);
        look_back(copy);
        finish(copy);
        return;
    }
    copy->is_waiting = true;
    list_push_back(&local->copies, &copy->node);
    start_waiting(local);
}

static void finish_unstarted(void *arg)
{
    finish(arg);
}

void local_copy_stop(struct local_copy *copy)
{
    if (!copy->is_active)
        return;
    __atomic_store_n(&copy->is_stopped, true, __ATOMIC_RELAXED);
    if (!copy->is_waiting)
        return;
    copy->is_waiting = false;
    list_remove(&copy->node);
    fail(copy, SHOAL_CANCELED, 0, 0);
    loop_post(copy->local->env.loop, &copy->task, finish_unstarted, copy);
}
