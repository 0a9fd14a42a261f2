/* SPDX-License-Identifier: Apache-2.0 */
#include "greet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/random.h"
#include "signals.h"

#define SIGNAL_CHECK_MS 100 /* how late a signal may be seen */

/* 0, or the errno of the connection. */
static int wait_connected(int fd, int timeout_ms)
{
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        int64_t left_ms = deadline_left_ms(deadline_ms);
        int count = poll(&ready, 1, (int)(left_ms < SIGNAL_CHECK_MS ? left_ms : SIGNAL_CHECK_MS));
        if (count < 0 && errno != EINTR)
            return errno;
        if (count > 0) {
            int number = 0;
            socklen_t len = sizeof number;
            return getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &len) == 0 ? number : errno;
        }
        if (signals_received())
            return ECANCELED;
        if (left_ms == 0)
            return ETIMEDOUT;
    }
}

int greet_connect(const struct sockaddr_storage *addr, socklen_t len, int timeout_ms, struct shoal_error *error)
{
    int number = 0, fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        number = errno;
    else if (connect(fd, (const struct sockaddr *)addr, len) != 0)
        number = errno == EINPROGRESS ? wait_connected(fd, timeout_ms) : errno;
    if (number == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    error_set(error, SHOAL_UNREACHABLE, number, "%s",
              number == ETIMEDOUT ? "no answer (a firewall drops it, or the machine is off)" : strerror(number));
    return -1;
}

int greet_connect_to(const char *address, int timeout_ms, struct shoal_error *error)
{
    struct hostport target;
    struct sockaddr_storage addr;
    socklen_t len;
    if (hostport_parse(&target, address, error) != SHOAL_OK ||
        hostport_resolve(target.host, target.port, &addr, &len, error) != SHOAL_OK)
        return -1;
    return greet_connect(&addr, len, timeout_ms, error);
}

/* --- who is there --- */

/* Reads exactly len bytes. */
static bool receive(int fd, uint8_t *to, size_t len, int64_t deadline_ms)
{
    while (len > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left_ms = deadline_left_ms(deadline_ms);
        int ready_count = poll(&ready, 1, (int)(left_ms < SIGNAL_CHECK_MS ? left_ms : SIGNAL_CHECK_MS));
        if (signals_received() || (ready_count == 0 && left_ms == 0) || (ready_count < 0 && errno != EINTR))
            return false;
        if (ready_count <= 0)
            continue;
        ssize_t count = recv(fd, to, len, 0);
        if (count <= 0)
            return false;
        to += count;
        len -= (size_t)count;
    }
    return true;
}

bool greet_ask(int fd, const char *cluster, int timeout_ms, struct hello *answer_out)
{
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len;
    struct hello hello = {.version = HELLO_VERSION, .channel = HELLO_CHANNEL_PROBE, .instance = random_id()};
    snprintf(hello.name, sizeof hello.name, "shoal-doctor");
    snprintf(hello.cluster, sizeof hello.cluster, "%s", cluster);
    len = hello_encode(&hello, frame);
    if (send(fd, frame, len, MSG_NOSIGNAL) != (ssize_t)len || !receive(fd, frame, HELLO_PREFIX_BYTES, deadline_ms) ||
        hello_frame_len(frame, &len) != SHOAL_OK || len < HELLO_PREFIX_BYTES ||
        !receive(fd, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES, deadline_ms))
        return false;
    return hello_decode(frame, len, answer_out) == SHOAL_OK;
}
