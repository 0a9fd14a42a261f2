/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp_stream.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"

/* Bytes one connection may move per turn of the loop, so that others get theirs. */
#define TURN_BYTES (4u << 20)
#define IOV_MAX_FRAMES 32
#define SAME_HOST_SEND_BUFFER_BYTES (512 << 10)
/* Unsent bytes that the kernel may hold: 10 ms of what the connection moves, between these. */
#define UNSENT_MIN_BYTES (128 << 10)
#define UNSENT_MAX_BYTES (4 << 20)
#define UNSENT_PER_S 100
/* Receive buffer of a connection with a limit: a sixteenth of a second of it, between these. */
#define LIMITED_RECEIVE_PER_S 16
#define LIMITED_RECEIVE_MIN_BYTES (32 << 10)
#define LIMITED_RECEIVE_MAX_BYTES (4 << 20)

void tcp_stream_init(struct tcp_stream *stream, const struct tcp_stream_ops *ops, int fd)
{
    *stream = (struct tcp_stream){.ops = ops, .fd = fd};
    stream->moved_in_ms = stream->moved_out_ms = clock_now_ms();
    stream->in_allowance = stream->out_allowance = UINT64_MAX;
    list_init(&stream->out);
}

void tcp_stream_release(struct tcp_stream *stream)
{
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

/* Bodies of READ and WRITE; requests, refusals and notifications are small and never wait for a limit. */
static bool is_metered(const struct data_frame *frame)
{
    return frame->type == DATA_DATA || frame->type == DATA_CHUNK;
}

static bool is_same_host(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_len = sizeof own, peer_len = sizeof peer;

    if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0 || own.ss_family != peer.ss_family)
        return false;
    if (own.ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)&own)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)&peer)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)&own)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)&peer)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

void tcp_stream_tune_unsent(struct tcp_stream *stream, uint64_t bytes_per_s)
{
    uint64_t wanted = bytes_per_s / UNSENT_PER_S;
    int limit = wanted < UNSENT_MIN_BYTES   ? UNSENT_MIN_BYTES
                : wanted > UNSENT_MAX_BYTES ? UNSENT_MAX_BYTES
                                            : (int)wanted;

    if (stream->is_same_host || limit == stream->unsent_limit)
        return;
    stream->unsent_limit = limit;
    (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit);
}

void tcp_stream_tune(struct tcp_stream *stream, uint64_t in_bytes_per_s)
{
    int buffer = SAME_HOST_SEND_BUFFER_BYTES;

    stream->is_same_host = is_same_host(stream->fd);
    if (stream->is_same_host) {
        /* Nothing can be congested between two sockets of one host; the pacing timers of BBR only cost there. */
        (void)setsockopt(stream->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
        /* Without latency to hide, more bytes in flight only leave the cache and make the receiver's kernel collapse
         * its queue (up to twice the CPU time of the receiver, measured on Linux 6.18). */
        (void)setsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    }
    if (in_bytes_per_s > 0) {
        /* The window opens in steps as large as the buffer, and many connections may share the limit: with a large one
         * a slow receiver would look dead. */
        uint64_t part = in_bytes_per_s / LIMITED_RECEIVE_PER_S;

        buffer = part < LIMITED_RECEIVE_MIN_BYTES   ? LIMITED_RECEIVE_MIN_BYTES
                 : part > LIMITED_RECEIVE_MAX_BYTES ? LIMITED_RECEIVE_MAX_BYTES
                                                    : (int)part;
        (void)setsockopt(stream->fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    }
}

void tcp_stream_expect_heads(struct tcp_stream *stream)
{
    int one = 1;

    stream->tells_queue = setsockopt(stream->fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one) == 0;
}

void tcp_stream_look_at_acks(struct tcp_stream *stream, int64_t now_ms)
{
    int held;

    if (ioctl(stream->fd, SIOCOUTQ, &held) != 0)
        return;
    if (stream->bytes_out - (uint64_t)held != stream->acked)
        stream->moved_out_ms = now_ms;
    stream->acked = stream->bytes_out - (uint64_t)held;
}

void tcp_stream_prepare(struct tcp_out *out, const struct data_frame *frame, const void *body, const char *text)
{
    struct data_frame head = *frame;
    size_t text_len = text ? strnlen(text, DATA_REASON_MAX_BYTES) : 0;

    if (text)
        head.len = text_len;
    data_encode(&head, out->head);
    if (text)
        memcpy(out->head + DATA_HEADER_BYTES, text, text_len);
    out->head_len = DATA_HEADER_BYTES + text_len;
    out->head_sent = 0;
    out->body = body;
    out->body_len = body ? head.len : 0;
    out->body_sent = out->body_start = 0;
    out->body_ready = out->body_len;
    out->gate = out->body_len;
    out->is_metered = is_metered(frame);
}

void tcp_stream_push(struct tcp_stream *stream, struct tcp_out *out)
{
    if (list_is_empty(&stream->out))
        stream->moved_out_ms = clock_now_ms();
    list_push_back(&stream->out, &out->node);
}

void tcp_stream_queue(struct tcp_stream *stream, struct tcp_out *out, const struct data_frame *frame, const void *body,
                      const char *text)
{
    tcp_stream_prepare(out, frame, body, text);
    tcp_stream_push(stream, out);
}

/* Up to the gate, as far as it is there. */
static uint64_t body_open(const struct tcp_out *out)
{
    uint64_t end = out->gate < out->body_ready ? out->gate : out->body_ready;

    return end > out->body_sent ? end - out->body_sent : 0;
}

uint64_t tcp_stream_out_wanted(const struct tcp_stream *stream)
{
    struct list_node *node = list_first(&stream->out);
    const struct tcp_out *out = node ? container_of(node, struct tcp_out, node) : NULL;

    return out && out->is_metered ? body_open(out) : 0;
}

/* Notes that sent bytes of the queue have gone and lets finished frames go. */
static void advance(struct tcp_stream *stream, size_t sent)
{
    struct list_node *node;

    while ((node = list_first(&stream->out))) {
        struct tcp_out *out = container_of(node, struct tcp_out, node);
        size_t part = out->head_len - out->head_sent;

        part = part < sent ? part : sent;
        out->head_sent += part;
        sent -= part;
        part = out->body_len - out->body_sent < sent ? (size_t)(out->body_len - out->body_sent) : sent;
        out->body_sent += part;
        sent -= part;
        if (out->is_metered)
            stream->out_allowance -= part; /* 2^64 - 1 lasts longer than any connection */
        if (out->head_sent < out->head_len || out->body_sent < out->body_len)
            return;
        list_remove(&out->node);
        stream->ops->sent(stream, out);
    }
}

enum tcp_step tcp_stream_send(struct tcp_stream *stream, int *errno_out)
{
    uint64_t budget = TURN_BYTES;

    while (!list_is_empty(&stream->out)) {
        struct iovec iov[2 * IOV_MAX_FRAMES];
        struct msghdr message = {.msg_iov = iov};
        size_t count = 0, bytes = 0;
        uint64_t allowance = stream->out_allowance;
        ssize_t sent;

        LIST_FOR_EACH (out, &stream->out, struct tcp_out, node) {
            uint64_t body = body_open(out);

            if (count + 2 > 2 * IOV_MAX_FRAMES || bytes >= budget)
                break;
            if (out->is_metered && body > allowance)
                body = allowance;
            if (body == 0 && out->body_sent < out->body_len)
                break;
            if (out->head_sent < out->head_len)
                iov[count++] = (struct iovec){out->head + out->head_sent, out->head_len - out->head_sent};
            if (body) {
                if (body > budget)
                    body = budget;
                iov[count++] =
                    (struct iovec){(char *)(uintptr_t)out->body + (out->body_sent - out->body_start), (size_t)body};
            }
            bytes += out->head_len - out->head_sent + (size_t)body;
            if (out->is_metered)
                allowance -= body;
            if (body < out->body_len - out->body_sent)
                break;
        }
        if (count == 0)
            return TCP_STEP_HELD;
        message.msg_iovlen = count;
        sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return TCP_STEP_BLOCKED;
            *errno_out = errno;
            /* Only the body of the first frame can be the cause: headers are ours, and bytes before a fault count. */
            return errno == EFAULT ? TCP_STEP_FAULT : TCP_STEP_LOST;
        }
        stream->bytes_out += (uint64_t)sent;
        stream->moved_out_ms = clock_now_ms();
        advance(stream, (size_t)sent);
        if ((size_t)sent < bytes)
            return TCP_STEP_BLOCKED; /* full, or a fault is next: the next turn tells */
        if ((uint64_t)sent >= budget)
            return list_is_empty(&stream->out) ? TCP_STEP_DONE : TCP_STEP_MORE;
        budget -= (uint64_t)sent;
    }
    return TCP_STEP_DONE;
}

/* One system call for the rest of a body and, if it fits, the header behind it. */
static ssize_t receive_body(struct tcp_stream *stream, uint64_t budget, int flags, size_t *asked_out)
{
    uint64_t most = stream->is_body_metered && stream->in_allowance < budget ? stream->in_allowance : budget;
    size_t part = stream->body_left < most ? (size_t)stream->body_left : (size_t)most;
    struct iovec iov[2] = {{stream->body, part}, {stream->head, DATA_HEADER_BYTES}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = part == stream->body_left ? 2 : 1};

    *asked_out = part + (message.msg_iovlen == 2 ? DATA_HEADER_BYTES : 0);
    if (stream->body)
        return recvmsg(stream->fd, &message, flags);
    *asked_out = part;
    /* TCP discards without a copy. A plain system call: sanitizers take the libc function for a write to NULL. */
    return syscall(SYS_recvfrom, stream->fd, NULL, part, MSG_TRUNC | flags, NULL, NULL);
}

/* is_last_out: nothing lies behind what was received. */
static ssize_t receive_head(struct tcp_stream *stream, size_t len, int flags, bool *is_last_out)
{
    struct iovec iov = {stream->head + stream->head_have, len};
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const struct cmsghdr *part;
    ssize_t got;
    int queued = 1;

    if (!stream->tells_queue)
        return recv(stream->fd, iov.iov_base, len, flags);
    got = recvmsg(stream->fd, &message, flags);
    part = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (part && part->cmsg_level == SOL_TCP && part->cmsg_type == TCP_CM_INQ)
        memcpy(&queued, CMSG_DATA(part), sizeof queued);
    *is_last_out = queued == 0;
    return got;
}

enum tcp_step tcp_stream_receive(struct tcp_stream *stream, int *errno_out)
{
    uint64_t budget = TURN_BYTES;

    for (;;) {
        bool is_body = stream->body_left > 0, is_last = false;
        int flags = stream->may_wait ? 0 : MSG_DONTWAIT;
        size_t asked;
        ssize_t got;

        if (budget == 0)
            return TCP_STEP_MORE;
        if (is_body && stream->is_body_metered && stream->in_allowance == 0)
            return TCP_STEP_HELD;
        if (is_body) {
            got = receive_body(stream, budget, flags, &asked);
        } else {
            asked = DATA_HEADER_BYTES - stream->head_have;
            got = receive_head(stream, asked, flags, &is_last);
        }
        stream->may_wait = false;
        if (got < 0) {
            if (errno == EINTR && !flags)
                return TCP_STEP_DONE;
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return TCP_STEP_DONE;
            if (errno == EFAULT && is_body && stream->body) {
                stream->body = NULL;
                stream->ops->fault(stream);
                continue;
            }
            *errno_out = errno;
            return TCP_STEP_LOST;
        }
        if (got == 0) {
            *errno_out = 0;
            return TCP_STEP_LOST;
        }
        stream->bytes_in += (uint64_t)got;
        stream->moved_in_ms = clock_now_ms();
        budget -= (uint64_t)got < budget ? (uint64_t)got : budget;
        if (is_body) {
            uint64_t part = (uint64_t)got < stream->body_left ? (uint64_t)got : stream->body_left;

            stream->body_left -= part;
            if (stream->is_body_metered)
                stream->in_allowance -= part;
            if (stream->body && part) {
                stream->ops->part(stream, stream->body, part);
                stream->body = (char *)stream->body + part;
            }
            stream->head_have = (size_t)((uint64_t)got - part);
            if (stream->body_left == 0 && !stream->ops->body(stream))
                return TCP_STEP_STOPPED;
        } else {
            stream->head_have += (size_t)got;
        }
        if (stream->body_left == 0 && stream->head_have == DATA_HEADER_BYTES) {
            struct data_frame frame;

            if (data_decode(stream->head, &frame) != SHOAL_OK)
                return TCP_STEP_PROTOCOL;
            stream->head_have = 0;
            stream->body = NULL;
            stream->body_left = data_body_len(&frame);
            stream->is_body_metered = is_metered(&frame);
            if (!stream->ops->head(stream, &frame))
                return TCP_STEP_STOPPED;
            if (is_last)
                return TCP_STEP_DONE;
        } else if ((size_t)got < asked) {
            return TCP_STEP_DONE; /* drained: saves the call that would say EAGAIN */
        }
    }
}
