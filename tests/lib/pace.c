/* SPDX-License-Identifier: Apache-2.0 */
#include "pace.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_FD 16384
#define PART_BYTES 16384u /* read at a time from a slow process: the caller may want to stop */
#define NAP_NS 5000000    /* between two looks at the rate */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_paced[MAX_FD]; /* a number that was closed and reused is paced too: harmless */
static uint64_t current_rate_bps;

static pthread_once_t entries_once = PTHREAD_ONCE_INIT;
static struct pace_entry *entries; /* NULL: no file */
static int64_t next_ns[PACE_ENTRIES];

static void apply(int fd)
{
    uint64_t rate = current_rate_bps ? current_rate_bps : UINT64_MAX;
    (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

/* --- readers of memory --- */

static void map_entries(void)
{
    const char *fd = getenv(PACE_FD_VARIABLE);
    void *memory =
        fd ? mmap(NULL, PACE_ENTRIES * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0) : MAP_FAILED;

    if (memory != MAP_FAILED)
        entries = memory;
}

static void tell_readers(uint64_t rate_bps)
{
    pthread_once(&entries_once, map_entries);
    for (unsigned i = 0; entries && i < PACE_ENTRIES; i++) {
        int64_t owner = 0, self = getpid();

        if (__atomic_compare_exchange_n(&entries[i].pid, &owner, self, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
            owner == self) {
            __atomic_store_n(&entries[i].rate_bps, rate_bps, __ATOMIC_RELAXED);
            return;
        }
    }
}

static unsigned entry_of(pid_t pid)
{
    unsigned i = 0;

    pthread_once(&entries_once, map_entries);
    if (!entries)
        return PACE_ENTRIES;
    while (i < PACE_ENTRIES && __atomic_load_n(&entries[i].pid, __ATOMIC_RELAXED) != pid)
        i++;
    return i;
}

/* Returns when the bytes may be read, or when the process is slow no more. */
static void wait_for_turn(unsigned i, uint64_t bytes)
{
    uint64_t rate_bps = __atomic_load_n(&entries[i].rate_bps, __ATOMIC_RELAXED);
    int64_t when_ns;

    if (!rate_bps)
        return;
    pthread_mutex_lock(&lock);
    when_ns = clock_now_ns() > next_ns[i] ? clock_now_ns() : next_ns[i];
    when_ns += (int64_t)(bytes * 1000000000 / rate_bps);
    next_ns[i] = when_ns;
    pthread_mutex_unlock(&lock);
    while (clock_now_ns() < when_ns && __atomic_load_n(&entries[i].rate_bps, __ATOMIC_RELAXED) == rate_bps)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    pthread_mutex_lock(&lock);
    if (__atomic_load_n(&entries[i].rate_bps, __ATOMIC_RELAXED) != rate_bps)
        next_ns[i] = 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) ssize_t process_vm_readv(pid_t pid, const struct iovec *here,
                                                                unsigned long here_count, const struct iovec *there,
                                                                unsigned long there_count, unsigned long flags)
{
    bool is_other = here_count == 1 && there_count == 1 && pid != getpid(); /* UCX's transport copies its own */
    unsigned i = is_other ? entry_of(pid) : PACE_ENTRIES;
    struct iovec to, from;

    if (i == PACE_ENTRIES || !__atomic_load_n(&entries[i].rate_bps, __ATOMIC_RELAXED))
        return syscall(SYS_process_vm_readv, pid, here, here_count, there, there_count, flags);
    to = *here;
    from = *there;
    if (to.iov_len > PART_BYTES)
        to.iov_len = PART_BYTES;
    if (from.iov_len > PART_BYTES)
        from.iov_len = PART_BYTES;
    wait_for_turn(i, to.iov_len);
    return syscall(SYS_process_vm_readv, pid, &to, 1ul, &from, 1ul, flags);
}

/* --- connections --- */

void pace_set(uint64_t rate_bps)
{
    tell_readers(rate_bps);
    pthread_mutex_lock(&lock);
    current_rate_bps = rate_bps;
    for (int fd = 0; fd < MAX_FD; fd++)
        if (is_paced[fd])
            apply(fd);
    pthread_mutex_unlock(&lock);
}

static void add(int fd)
{
    if (fd < 0 || fd >= MAX_FD)
        return;
    pthread_mutex_lock(&lock);
    is_paced[fd] = true;
    if (current_rate_bps)
        apply(fd);
    pthread_mutex_unlock(&lock);
}

static int accept_paced(int listener, struct sockaddr *addr, socklen_t *len, int flags)
{
    int fd = (int)syscall(SYS_accept4, listener, addr, len, flags);

    add(fd);
    return fd;
}

/* Over UCX both sides dial, and bytes go either way. */
__attribute__((visibility("default"))) int connect(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
    const char *protocol = getenv("SHOAL_TEST_PROTOCOL");

    if (protocol && strcmp(protocol, "ucx") == 0)
        add(fd);
    return (int)syscall(SYS_connect, fd, addr.__sockaddr__, len);
}

__attribute__((visibility("default"))) int accept4(int listener, __SOCKADDR_ARG addr, socklen_t *__restrict len,
                                                   int flags)
{
    return accept_paced(listener, addr.__sockaddr__, len, flags);
}

__attribute__((visibility("default"))) int accept(int listener, __SOCKADDR_ARG addr, socklen_t *__restrict len)
{
    return accept_paced(listener, addr.__sockaddr__, len, 0);
}
