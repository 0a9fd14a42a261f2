/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking sockets: a send is one sendmsg and a receive one recv, without poll; the kernel's own timeouts bound them.
 * TCP, or the local socket of a process on the same host, which saves both sides the way through the network stack. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/spin.h"
#include "rpc/byte_channel.h"
#include "transport/endpoint.h"
#include "wire/hello.h"

#define SOCKET_TIMEOUT_MAX_MS (1 << 20)

struct byte_channel {
    int fd;                                   /* owned */
    int64_t send_timeout_ms, recv_timeout_ms; /* as the socket has them now; 0: none */
    struct spin spin;
};

/* Each slice is half of what is left or more, so a late answer costs a few wake-ups and the socket keeps its timeout
 * from call to call: equal deadlines of successive calls differ by some milliseconds only. */
static int64_t timeout_slice_ms(int64_t left_ms)
{
    int64_t slice_ms = 1;

    while (slice_ms * 2 <= left_ms && slice_ms < SOCKET_TIMEOUT_MAX_MS)
        slice_ms *= 2;
    return slice_ms;
}

/* Makes sure that the next system call ends by the deadline. has_expired: the present timeout has just run out. */
static enum shoal_status bound_wait(struct byte_channel *channel, int option, int64_t *timeout_ms, int64_t deadline_ms,
                                    bool has_expired, struct shoal_error *error)
{
    int64_t left_ms = deadline_left_ms(deadline_ms);
    struct timeval value;

    if (left_ms == 0)
        return error_set(error, SHOAL_TIMED_OUT, 0, "deadline passed");
    if (*timeout_ms && *timeout_ms <= left_ms && !has_expired)
        return SHOAL_OK;
    *timeout_ms = timeout_slice_ms(left_ms);
    value =
        (struct timeval){.tv_sec = (time_t)(*timeout_ms / 1000), .tv_usec = (suseconds_t)(*timeout_ms % 1000) * 1000};
    if (setsockopt(channel->fd, SOL_SOCKET, option, &value, sizeof value) != 0) {
        int saved = errno;
        return error_set(error, SHOAL_IO, saved, "cannot set a socket timeout: %s", strerror(saved));
    }
    return SHOAL_OK;
}

static enum shoal_status numeric_address(const char *address, struct sockaddr_storage *addr_out, socklen_t *len_out,
                                         struct shoal_error *error)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    struct hostport hostport;
    char service[8];

    if (hostport_parse(&hostport, address, NULL) != SHOAL_OK || !hostport.has_port || !hostport.port)
        goto refuse;
    snprintf(service, sizeof service, "%u", hostport.port);
    if (getaddrinfo(hostport.host, service, &hints, &found) != 0 || !found)
        goto refuse;
    memcpy(addr_out, found->ai_addr, found->ai_addrlen);
    *len_out = found->ai_addrlen;
    freeaddrinfo(found);
    return SHOAL_OK;

refuse:
    return error_set(error, SHOAL_ADDRESS, 0, "'%s' is not a numeric address with a port", address);
}

static void interrupt_connect(void *arg)
{
    shutdown(*(const int *)arg, SHUT_RDWR);
}

/* Waits until the connection is made or failed; fd is non-blocking and connecting. */
static enum shoal_status finish_connect(int fd, const struct call *call, struct shoal_error *error)
{
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    struct cancel_hook hook;
    socklen_t len = sizeof(int);
    int ready, result = 0;

    cancel_hook_add(call->cancel, &hook, interrupt_connect, &fd);
    do {
        ready = poll(&waiting, 1, deadline_poll_ms(call->deadline_ms));
    } while ((ready < 0 && errno == EINTR) || (ready == 0 && !deadline_is_past(call->deadline_ms)));
    cancel_hook_remove(call->cancel, &hook);
    if (cancel_is_triggered(call->cancel))
        return error_set(error, SHOAL_CANCELED, 0, "canceled");
    if (ready == 0)
        return error_set(error, SHOAL_TIMED_OUT, 0, "did not accept the connection in time");
    if (ready < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &len) != 0)
        result = errno;
    if (result)
        return error_set(error, SHOAL_UNREACHABLE, result, "cannot connect: %s", strerror(result));
    return SHOAL_OK;
}

static enum shoal_status tcp_start(struct shoal_error *error)
{
    (void)error;
    return SHOAL_OK;
}

static void tcp_stop(void)
{
}

static bool set_blocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
}

static enum shoal_status tcp_dial(const char *address, const char *source, const struct call *call,
                                  struct byte_channel **channel_out, struct shoal_error *error)
{
    struct sockaddr_storage addr, from;
    struct byte_channel *channel;
    socklen_t len = 0;
    enum shoal_status status;
    int one = 1, saved;

    status = source ? numeric_address(source, &from, &len, error) : SHOAL_OK;
    if (!status)
        status = numeric_address(address, &addr, &len, error);
    if (status)
        return status;
    channel = calloc(1, sizeof *channel);
    if (!channel)
        return error_no_memory(error);
    channel->fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (channel->fd < 0) {
        saved = errno;
        status = error_set(error, SHOAL_LIMIT, saved, "cannot open a socket: %s", strerror(saved));
        goto free_channel;
    }
    if (source) {
        status = socket_bind_source(channel->fd, (const struct sockaddr *)&from, (const struct sockaddr *)&addr, error);
        if (status)
            goto close_fd;
    }
    setsockopt(channel->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(channel->fd, (const struct sockaddr *)&addr, len) != 0) {
        saved = errno;
        if (saved != EINPROGRESS && saved != EINTR) {
            status = error_set(error, SHOAL_UNREACHABLE, saved, "cannot connect: %s", strerror(saved));
            goto close_fd;
        }
        status = finish_connect(channel->fd, call, error);
        if (status)
            goto close_fd;
    }
    if (!set_blocking(channel->fd)) {
        saved = errno;
        status = error_set(error, SHOAL_IO, saved, "cannot make a socket blocking: %s", strerror(saved));
        goto close_fd;
    }
    *channel_out = channel;
    return SHOAL_OK;

close_fd:
    close(channel->fd);
free_channel:
    free(channel);
    return status;
}

static bool local_dial(uint64_t instance, struct byte_channel **channel_out)
{
    struct byte_channel *channel = calloc(1, sizeof *channel);

    if (!channel)
        return false;
    channel->fd = endpoint_connect_local(instance);
    if (channel->fd >= 0 && set_blocking(channel->fd)) {
        *channel_out = channel;
        return true;
    }
    if (channel->fd >= 0)
        close(channel->fd);
    free(channel);
    return false;
}

static enum shoal_status tcp_begin(struct byte_channel *channel, int64_t deadline_ms, struct shoal_error *error)
{
    (void)channel;
    (void)deadline_ms;
    (void)error;
    return SHOAL_OK;
}

/* Steps over sent bytes. */
static void use_up(struct iovec **parts, int *count, size_t len)
{
    while (*count && len >= (*parts)->iov_len) {
        len -= (*parts)->iov_len;
        (*parts)++;
        (*count)--;
    }
    if (*count) {
        (*parts)->iov_base = (uint8_t *)(*parts)->iov_base + len;
        (*parts)->iov_len -= len;
    }
}

static enum shoal_status tcp_send(struct byte_channel *channel, struct iovec *parts, int count, int64_t deadline_ms,
                                  struct shoal_error *error)
{
    bool has_expired = false;

    use_up(&parts, &count, 0);
    while (count) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        enum shoal_status status =
            bound_wait(channel, SO_SNDTIMEO, &channel->send_timeout_ms, deadline_ms, has_expired, error);
        ssize_t sent;
        int saved;

        if (status)
            return status;
        sent = sendmsg(channel->fd, &message, MSG_NOSIGNAL);
        saved = errno;
        has_expired = sent < 0 && (saved == EAGAIN || saved == EWOULDBLOCK);
        if (sent >= 0)
            use_up(&parts, &count, (size_t)sent);
        else if (!has_expired && saved != EINTR)
            return error_set(error, SHOAL_UNREACHABLE, saved, "connection lost: %s", strerror(saved));
    }
    return SHOAL_OK;
}

/* false: nothing has come so far, or an error that a blocking receive will meet, too. */
static bool look(struct byte_channel *channel, struct msghdr *message, size_t *received_out)
{
    ssize_t got;

    if (!spin_begin(&channel->spin))
        return false;
    do {
        got = recvmsg(channel->fd, message, MSG_DONTWAIT);
    } while (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && spin_again(&channel->spin));
    spin_end(&channel->spin, got > 0);
    if (got > 0)
        *received_out = (size_t)got;
    return got > 0;
}

static enum shoal_status tcp_receive(struct byte_channel *channel, struct iovec *parts, int count, size_t *received_out,
                                     int64_t deadline_ms, struct shoal_error *error)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    bool has_expired = false;
    int64_t began_ns = 0;

    if (look(channel, &message, received_out))
        return SHOAL_OK;
    if (spin_limit_us())
        began_ns = clock_now_ns();
    for (;;) {
        enum shoal_status status =
            bound_wait(channel, SO_RCVTIMEO, &channel->recv_timeout_ms, deadline_ms, has_expired, error);
        ssize_t got;
        int saved;

        if (status)
            return status;
        got = recvmsg(channel->fd, &message, 0);
        saved = errno;
        if (got > 0) {
            if (began_ns)
                spin_slept(&channel->spin, clock_now_ns() - began_ns);
            *received_out = (size_t)got;
            return SHOAL_OK;
        }
        if (got == 0)
            return error_set(error, SHOAL_UNREACHABLE, 0, "the peer closed the connection");
        has_expired = saved == EAGAIN || saved == EWOULDBLOCK;
        if (!has_expired && saved != EINTR)
            return error_set(error, SHOAL_UNREACHABLE, saved, "connection lost: %s", strerror(saved));
    }
}

static void tcp_interrupt(struct byte_channel *channel)
{
    shutdown(channel->fd, SHUT_RDWR);
}

static bool tcp_is_stale(struct byte_channel *channel)
{
    uint8_t byte;
    ssize_t got;

    do {
        got = recv(channel->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static int tcp_descriptor(struct byte_channel *channel)
{
    return channel->fd;
}

static void tcp_close(struct byte_channel *channel)
{
    close(channel->fd);
    free(channel);
}

#define SOCKET_OPS(NAME, DIAL_LOCAL)                                                                                   \
    {                                                                                                                  \
        .name = (NAME), .hello_channel = HELLO_CHANNEL_CONTROL, .start = tcp_start, .stop = tcp_stop,                  \
        .dial = tcp_dial, .dial_local = (DIAL_LOCAL), .begin = tcp_begin, .send = tcp_send, .receive = tcp_receive,    \
        .interrupt = tcp_interrupt, .is_stale = tcp_is_stale, .descriptor = tcp_descriptor, .close = tcp_close,        \
    }

const struct byte_channel_ops byte_channel_auto = SOCKET_OPS("auto", local_dial);
const struct byte_channel_ops byte_channel_tcp = SOCKET_OPS("tcp", NULL);
