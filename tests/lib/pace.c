/* SPDX-License-Identifier: Apache-2.0 */
#include "pace.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_FD 16384

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_accepted[MAX_FD]; /* a number that was closed and reused is paced too: harmless */
static uint64_t current_rate_bps;

static void apply(int fd)
{
    uint64_t rate = current_rate_bps ? current_rate_bps : UINT64_MAX;
    (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

void pace_set(uint64_t rate_bps)
{
    pthread_mutex_lock(&lock);
    current_rate_bps = rate_bps;
    for (int fd = 0; fd < MAX_FD; fd++)
        if (is_accepted[fd])
            apply(fd);
    pthread_mutex_unlock(&lock);
}

static int accept_paced(int listener, struct sockaddr *addr, socklen_t *len, int flags)
{
    int fd = (int)syscall(SYS_accept4, listener, addr, len, flags);
    if (fd < 0 || fd >= MAX_FD)
        return fd;
    pthread_mutex_lock(&lock);
    is_accepted[fd] = true;
    if (current_rate_bps)
        apply(fd);
    pthread_mutex_unlock(&lock);
    return fd;
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
