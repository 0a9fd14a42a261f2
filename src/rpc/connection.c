/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "rpc/stream_ucx.h"

#define READ_CHUNK_BYTES (64u << 10)
#define PEER_SILENCE_MS 10000u
#define WRITE_THROUGH_BYTES (8u << 10) /* shorter ones are cheaper to copy than to send one by one */
#define FLUSH_STEPS 1000
#define KEPT_QUEUE_BYTES (256u << 10)

static void fail(struct rpc_stream *stream, enum shoal_status status, int sys_errno, const char *what)
{
    struct shoal_error error;

    if (stream->fd < 0)
        return;
    error_set(&error, status, sys_errno, "%s%s%s", what, sys_errno ? ": " : "", sys_errno ? strerror(sys_errno) : "");
    loop_io_release(&stream->io);
    stream_ucx_destroy(stream->ucx);
    stream->ucx = NULL;
    close(stream->fd);
    stream->fd = -1;
    stream->events->closed(stream->arg, status, &error);
}

static unsigned wanted_events(const struct rpc_stream *stream)
{
    return LOOP_READ | (!stream->ucx && stream->out.len > stream->out_sent ? LOOP_WRITE : 0u);
}

/* Hands over every whole frame in the buffer. false: the stream is closed or gone. */
static bool deliver(struct rpc_stream *stream, const bool *is_gone)
{
    size_t used = 0;

    while (stream->in.len - used >= RPC_FRAME_HEADER_BYTES) {
        struct rpc_frame frame;
        const uint8_t *at = stream->in.data + used;

        if (rpc_frame_decode(at, stream->max_body, &frame)) {
            stream->counters->protocol_errors++;
            fail(stream, SHOAL_PROTOCOL, 0, "malformed or oversized control frame");
            return false;
        }
        if (stream->in.len - used < RPC_FRAME_HEADER_BYTES + frame.body_len)
            break;
        used += RPC_FRAME_HEADER_BYTES + frame.body_len;
        stream->events->frame(stream->arg, &frame, at + RPC_FRAME_HEADER_BYTES);
        if (*is_gone || stream->fd < 0)
            return false;
    }
    buf_consume(&stream->in, used);
    return true;
}

/* There is nothing more to read: errno, or 0 at the end. A write that failed before says more. */
static void fail_lost(struct rpc_stream *stream, int sys_errno)
{
    if (stream->write_errno)
        sys_errno = stream->write_errno;
    fail(stream, SHOAL_UNREACHABLE, sys_errno,
         sys_errno ? "control connection lost" : "peer closed the control connection");
}

static void on_readable(struct rpc_stream *stream, const bool *is_gone)
{
    for (int turn = 0; turn < 8; turn++) { /* bounded: other descriptors wait too */
        ssize_t got;
        if (!buf_reserve(&stream->in, READ_CHUNK_BYTES)) {
            fail(stream, SHOAL_NO_MEMORY, 0, "control frame buffer");
            return;
        }
        got = recv(stream->fd, stream->in.data + stream->in.len, READ_CHUNK_BYTES, 0);
        if (got < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                fail_lost(stream, errno);
            return;
        }
        if (got == 0) {
            fail_lost(stream, 0);
            return;
        }
        stream->counters->bytes_in += (uint64_t)got;
        stream->in.len += (size_t)got;
        if (!deliver(stream, is_gone))
            return;
        if ((size_t)got < READ_CHUNK_BYTES)
            return;
    }
}

/* As send: -1 with errno, or how many bytes were taken. */
static ssize_t write_some(struct rpc_stream *stream, const void *data, size_t len)
{
    size_t taken;

    if (!stream->ucx)
        return send(stream->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    taken = ucx_pipe_write(stream->ucx->pipe, data, len, false);
    errno = EAGAIN; /* also for one that has failed, which shows up through the pipe */
    return taken ? (ssize_t)taken : -1;
}

/* Nothing more goes out, but the peer's last words are still read, up to the end, which the descriptor now has. */
static void stop_writing(struct rpc_stream *stream, int sys_errno)
{
    stream->write_errno = sys_errno;
    stream->out.len = stream->out_sent = 0;
    shutdown(stream->fd, SHUT_RDWR);
}

static void write_queue(struct rpc_stream *stream)
{
    if (stream->write_errno)
        stream->out.len = stream->out_sent = 0;
    while (stream->out_sent < stream->out.len) {
        ssize_t sent = write_some(stream, stream->out.data + stream->out_sent, stream->out.len - stream->out_sent);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                stop_writing(stream, errno);
            else if (!stream->blocked_since_ms)
                stream->blocked_since_ms = clock_now_ms();
            return;
        }
        stream->counters->bytes_out += (uint64_t)sent;
        stream->out_sent += (size_t)sent;
        stream->blocked_since_ms = 0;
    }
    stream->out.len = stream->out_sent = 0;
    if (stream->out.capacity > KEPT_QUEUE_BYTES)
        buf_release(&stream->out);
}

/* A long frame while nothing is queued goes from where it lies. Errors are left to who writes next. */
static size_t write_through(struct rpc_stream *stream, struct iovec parts[3], size_t body_len)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t sent = 0;

    if (body_len < WRITE_THROUGH_BYTES || stream->out.len)
        return 0;
    if (stream->ucx) {
        for (int i = 0; i < 3; i++) {
            size_t taken = ucx_pipe_write(stream->ucx->pipe, parts[i].iov_base, parts[i].iov_len, false);

            sent += (ssize_t)taken;
            if (taken < parts[i].iov_len)
                break;
        }
        stream->counters->bytes_out += (uint64_t)sent;
        return (size_t)sent;
    }
    sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0)
        return 0;
    stream->counters->bytes_out += (uint64_t)sent;
    return (size_t)sent;
}

void rpc_stream_break(struct rpc_stream *stream)
{
    if (stream->fd >= 0)
        shutdown(stream->fd, SHUT_RDWR);
}

void rpc_stream_flush(struct rpc_stream *stream)
{
    if (stream->fd < 0)
        return;
    write_queue(stream);
    for (int step = 0; stream->ucx && step < FLUSH_STEPS && !ucx_pipe_is_sent(stream->ucx->pipe); step++)
        ucx_port_progress(ucx_pipe_port(stream->ucx->pipe));
}

/* --- over UCX --- */

/* The pipe holds a bounded number of bytes, and nothing comes while they are read. */
static void read_pipe(struct rpc_stream *stream, const bool *is_gone)
{
    while (stream->ucx->pipe && ucx_pipe_has_come(stream->ucx->pipe)) {
        struct iovec part;
        size_t got;

        if (!buf_reserve(&stream->in, READ_CHUNK_BYTES)) {
            fail(stream, SHOAL_NO_MEMORY, 0, "control frame buffer");
            return;
        }
        part = (struct iovec){stream->in.data + stream->in.len, READ_CHUNK_BYTES};
        got = ucx_pipe_read(stream->ucx->pipe, &part, 1);
        stream->counters->bytes_in += got;
        stream->in.len += got;
        if (!deliver(stream, is_gone))
            return;
    }
    if (stream->ucx->pipe && ucx_pipe_has_failed(stream->ucx->pipe)) {
        char failure[128];

        snprintf(failure, sizeof failure, "%s", ucx_pipe_failure(stream->ucx->pipe)); /* fail closes the pipe */
        fail(stream, SHOAL_UNREACHABLE, 0, failure);
    }
}

void rpc_stream_pipe_ready(void *arg)
{
    struct rpc_stream *stream = arg;
    bool is_gone = false;

    stream->is_gone = &is_gone;
    read_pipe(stream, &is_gone);
    /* What the frames were answered with, together. */
    if (!is_gone && stream->fd >= 0)
        write_queue(stream);
    if (!is_gone)
        stream->is_gone = NULL;
}

/* The socket of a stream over UCX. */
static void on_socket(struct rpc_stream *stream, const bool *is_gone)
{
    bool was_open = stream->ucx->is_open;
    struct shoal_error error;
    enum shoal_status status = stream_ucx_readable(stream->ucx, stream->fd, stream, &error);

    if (status && was_open) { /* what came before by the other way */
        while (ucx_port_progress(ucx_pipe_port(stream->ucx->pipe)) && !ucx_pipe_has_come(stream->ucx->pipe))
            ;
        read_pipe(stream, is_gone);
    }
    if (*is_gone || stream->fd < 0)
        return;
    if (status) {
        stream->counters->protocol_errors += status == SHOAL_PROTOCOL;
        fail(stream, status, 0, error.message);
    } else if (!was_open && stream->ucx->is_open) {
        stream->counters->ucx_connections++;
        stream_ucx_kick(stream->ucx);
        if (stream->events->opened)
            stream->events->opened(stream->arg);
    }
}

/* --- the loop --- */

static void on_io(void *arg, unsigned events)
{
    struct rpc_stream *stream = arg;
    bool is_gone = false;

    stream->is_gone = &is_gone;
    if (events & LOOP_WRITE)
        write_queue(stream);
    if (!is_gone && stream->fd >= 0 && (events & LOOP_READ)) {
        if (stream->ucx)
            on_socket(stream, &is_gone);
        else
            on_readable(stream, &is_gone);
    }
    /* What the frames were answered with, together. */
    if (!is_gone && stream->fd >= 0)
        write_queue(stream);
    if (is_gone)
        return;
    stream->is_gone = NULL;
    if (stream->fd >= 0)
        loop_io_set(&stream->io, wanted_events(stream));
}

static bool is_local_socket(int fd)
{
    int family = 0;
    socklen_t len = sizeof family;

    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) == 0 && family == AF_UNIX;
}

enum shoal_status rpc_stream_init(struct rpc_stream *stream, struct loop *loop, int fd, uint32_t max_body,
                                  const struct rpc_stream_events *events, void *arg, struct rpc_counters *counters,
                                  struct shoal_error *error)
{
    enum shoal_status status;
    unsigned silence_ms = PEER_SILENCE_MS;
    int one = 1, seconds = 5, probes = 2;

    *stream = (struct rpc_stream){.fd = fd, .max_body = max_body, .events = events, .arg = arg, .counters = counters};
    buf_init(&stream->in, RPC_FRAME_HEADER_BYTES + max_body + READ_CHUNK_BYTES);
    buf_init(&stream->out, RPC_WRITE_QUEUE_MAX_BYTES);
    status = loop_io_init(&stream->io, loop, fd, on_io, stream, error);
    if (status) {
        stream->fd = -1; /* stays the caller's */
        return status;
    }
    stream->is_local = is_local_socket(fd);
    if (stream->is_local) {
        counters->local_connections++;
        loop_io_set(&stream->io, LOOP_READ);
        return SHOAL_OK;
    }
    /* A peer whose machine vanished is noticed in bounded time even while nothing is sent. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
    loop_io_set(&stream->io, LOOP_READ);
    return SHOAL_OK;
}

enum shoal_status rpc_stream_init_ucx(struct rpc_stream *stream, struct loop *loop, int fd, uint32_t max_body,
                                      const struct rpc_stream_events *events, void *arg, struct rpc_counters *counters,
                                      struct ucx_carrier *carrier, struct ucx_driver **shared,
                                      struct shoal_error *error)
{
    enum shoal_status status = rpc_stream_init(stream, loop, fd, max_body, events, arg, counters, error);

    if (status)
        return status;
    status = stream_ucx_create(loop, carrier, shared, fd, stream, &stream->ucx, error);
    if (status) {
        loop_io_release(&stream->io);
        stream->fd = -1; /* stays the caller's */
        rpc_stream_release(stream);
    }
    return status;
}

void rpc_stream_release(struct rpc_stream *stream)
{
    if (stream->is_gone)
        *stream->is_gone = true;
    stream->is_gone = NULL;
    stream_ucx_destroy(stream->ucx);
    stream->ucx = NULL;
    if (stream->fd >= 0) {
        loop_io_release(&stream->io);
        close(stream->fd);
        stream->fd = -1;
    }
    buf_release(&stream->in);
    buf_release(&stream->out);
}

enum shoal_status rpc_stream_send(struct rpc_stream *stream, const struct rpc_frame *frame, const void *body)
{
    return rpc_stream_send_parts(stream, frame, body, frame->body_len, NULL);
}

enum shoal_status rpc_stream_send_parts(struct rpc_stream *stream, const struct rpc_frame *frame, const void *body,
                                        size_t head_len, const void *tail)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    struct iovec parts[3] = {{header, sizeof header},
                             {(void *)(uintptr_t)body, head_len},
                             {(void *)(uintptr_t)tail, frame->body_len - head_len}};
    size_t done;

    if (stream->fd < 0 || (stream->ucx && !stream->ucx->is_open))
        return SHOAL_UNREACHABLE;
    if (stream->is_local && stream->blocked_since_ms && clock_now_ms() - stream->blocked_since_ms > PEER_SILENCE_MS)
        rpc_stream_break(stream); /* what TCP_USER_TIMEOUT does for the others */
    if (stream->out_sent && stream->out.len - stream->out_sent < stream->out_sent) {
        buf_consume(&stream->out, stream->out_sent);
        stream->out_sent = 0;
    }
    /* First of all: a frame that is begun must be ended. */
    if (!buf_reserve(&stream->out, sizeof header + frame->body_len))
        return sizeof header + frame->body_len > stream->out.max - stream->out.len ? SHOAL_LIMIT : SHOAL_NO_MEMORY;
    rpc_frame_encode(frame, header);
    done = write_through(stream, parts, frame->body_len);
    for (size_t i = 0; i < 3; i++) {
        size_t skip = done < parts[i].iov_len ? done : parts[i].iov_len;

        done -= skip;
        if (skip < parts[i].iov_len)
            buf_append(&stream->out, (const uint8_t *)parts[i].iov_base + skip, parts[i].iov_len - skip);
    }
    /* From inside on_io: written when all frames that came together have been looked at. Else at once, but no callback
     * may run inside the caller: an error shows up with the next event. */
    if (!stream->is_gone) {
        write_queue(stream);
        loop_io_set(&stream->io, wanted_events(stream));
        if (stream->ucx)
            stream_ucx_kick(stream->ucx);
    }
    return SHOAL_OK;
}
