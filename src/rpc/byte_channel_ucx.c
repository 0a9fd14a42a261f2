/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking control calls over UCX. A channel is a TCP connection for the handshake, which stays open and tells of a
 * peer that closes, and a port of UCX with one pipe, driven by the thread that waits: no other is woken. Whatever ends
 * a call early closes the channel, and with its port nothing of UCX touches the caller's memory any more. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/spin.h"
#include "rpc/byte_channel.h"
#include "rpc/ucx_pipe.h"
#include "wire/hello.h"

#define JOINED_BYTES (8u << 10) /* shorter requests are joined to one message */

struct byte_channel {
    struct byte_channel *tcp;    /* owned, of byte_channel_tcp */
    struct ucx_carrier *carrier; /* owned */
    struct ucx_port *port;       /* owned; NULL: before begin */
    struct ucx_pipe *pipe;       /* owned */
    struct spin spin;
    bool is_interrupted; /* atomic */
};

static const struct byte_channel_ops *const tcp = &byte_channel_tcp;

static enum shoal_status start(const char *protocol, struct shoal_error *error)
{
    struct ucx_carrier *carrier;

    return ucx_carrier_open(protocol, &carrier, error);
}

static enum shoal_status dial(const char *protocol, const char *address, const char *source, const struct call *call,
                              struct byte_channel **channel_out, struct shoal_error *error)
{
    struct byte_channel *channel = calloc(1, sizeof *channel);
    enum shoal_status status;

    if (!channel)
        return error_no_memory(error);
    status = ucx_carrier_open(protocol, &channel->carrier, error);
    if (status)
        goto release;
    status = tcp->dial(address, source, call, &channel->tcp, error);
    if (status)
        goto close_carrier;
    *channel_out = channel;
    return SHOAL_OK;

close_carrier:
    ucx_carrier_close(channel->carrier);
release:
    free(channel);
    return status;
}

/* --- what the two sides tell each other first --- */

static enum shoal_status receive_all(struct byte_channel *channel, void *out, size_t len, int64_t deadline_ms,
                                     struct shoal_error *error)
{
    while (len) {
        struct iovec part = {out, len};
        size_t got;
        enum shoal_status status = tcp->receive(channel->tcp, &part, 1, &got, deadline_ms, error);

        if (status)
            return status;
        out = (uint8_t *)out + got;
        len -= got;
    }
    return SHOAL_OK;
}

static enum shoal_status send_description(struct byte_channel *channel, int64_t deadline_ms, struct shoal_error *error)
{
    enum shoal_status status;
    struct buf frame;

    buf_init(&frame, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES);
    if (ucx_pipe_describe(channel->pipe, UCX_FRAME_LINK, &frame)) {
        struct iovec part = {frame.data, frame.len};

        status = tcp->send(channel->tcp, &part, 1, deadline_ms, error);
    } else {
        status = error_no_memory(error);
    }
    buf_release(&frame);
    return status;
}

static enum shoal_status receive_description(struct byte_channel *channel, int64_t deadline_ms,
                                             struct shoal_error *error)
{
    uint8_t header[UCX_FRAME_HEADER_BYTES], *body = NULL;
    struct ucx_frame frame = {0};
    enum shoal_status status = receive_all(channel, header, sizeof header, deadline_ms, error);

    if (status)
        return status;
    if (ucx_frame_decode(header, &frame) || (frame.type != UCX_FRAME_LINKED && frame.type != UCX_FRAME_REFUSE))
        return error_set(error, SHOAL_PROTOCOL, 0, "malformed answer to the question for a worker of UCX");
    body = malloc(frame.body_len + 1);
    if (!body)
        return error_no_memory(error);
    status = receive_all(channel, body, frame.body_len, deadline_ms, error);
    if (status == SHOAL_OK && frame.type == UCX_FRAME_REFUSE)
        status = error_set(error, SHOAL_UNSUPPORTED, 0, "%.*s", (int)frame.body_len, (const char *)body);
    else if (status == SHOAL_OK)
        status = ucx_pipe_connect(channel->pipe, &frame, body, error);
    free(body);
    return status;
}

static enum shoal_status ucx_begin(struct byte_channel *channel, int64_t deadline_ms, struct shoal_error *error)
{
    enum shoal_status status = ucx_port_open(channel->carrier, true, &channel->port, error);

    if (status)
        return status == SHOAL_LIMIT ? SHOAL_UNSUPPORTED : status;
    status = ucx_pipe_create(channel->port, NULL, &channel->pipe, error);
    if (status == SHOAL_OK)
        status = send_description(channel, deadline_ms, error);
    if (status == SHOAL_OK)
        status = receive_description(channel, deadline_ms, error);
    return status;
}

/* Nothing of UCX touches memory of the caller afterwards. What follows ends with UNREACHABLE. */
static void drop_port(struct byte_channel *channel)
{
    if (channel->pipe)
        ucx_pipe_close(channel->pipe);
    ucx_port_close(channel->port);
    channel->pipe = NULL;
    channel->port = NULL;
    tcp->interrupt(channel->tcp);
}

/* --- bytes --- */

static bool is_interrupted(const struct byte_channel *channel)
{
    return __atomic_load_n(&channel->is_interrupted, __ATOMIC_RELAXED);
}

enum wanted { WANT_BYTES, WANT_ROOM, WANT_SENT };

static bool has(const struct byte_channel *channel, enum wanted wanted)
{
    switch (wanted) {
    case WANT_BYTES:
        return ucx_pipe_has_come(channel->pipe);
    case WANT_ROOM:
        return ucx_pipe_has_room(channel->pipe);
    case WANT_SENT:
        return ucx_pipe_is_sent(channel->pipe);
    }
    return false;
}

/* Lets UCX work until it has nothing to do. true: the wait is over, with *status_out. */
static bool work(struct byte_channel *channel, enum wanted wanted, int64_t deadline_ms, enum shoal_status *status_out,
                 struct shoal_error *error)
{
    bool is_busy;

    do {
        is_busy = ucx_port_progress(channel->port);
        /* What has come is worth having, but there is no use in room to send. */
        if (ucx_pipe_has_failed(channel->pipe) && !(wanted == WANT_BYTES && has(channel, wanted))) {
            *status_out = error_set(error, SHOAL_UNREACHABLE, 0, "%s", ucx_pipe_failure(channel->pipe));
            return true;
        }
        if (has(channel, wanted)) {
            *status_out = SHOAL_OK;
            return true;
        }
        if (is_interrupted(channel)) {
            *status_out = error_set(error, SHOAL_UNREACHABLE, 0, "interrupted");
            return true;
        }
        if (is_busy && deadline_is_past(deadline_ms))
            break; /* a peer may keep UCX busy with what nobody waits for */
    } while (is_busy);
    return false;
}

/* Before sleeping: what is waited for is often there in some microseconds. */
static bool look(struct byte_channel *channel, enum wanted wanted, int64_t deadline_ms, enum shoal_status *status_out,
                 struct shoal_error *error)
{
    bool is_over;

    if (!spin_begin(&channel->spin))
        return false;
    do {
        is_over = work(channel, wanted, deadline_ms, status_out, error);
    } while (!is_over && spin_again(&channel->spin));
    spin_end(&channel->spin, is_over);
    return is_over;
}

static enum shoal_status wait_for(struct byte_channel *channel, enum wanted wanted, int64_t deadline_ms,
                                  struct shoal_error *error)
{
    struct pollfd waiting[2] = {{.fd = ucx_port_fd(channel->port), .events = POLLIN},
                                {.fd = tcp->descriptor(channel->tcp), .events = POLLIN}};
    enum shoal_status status = SHOAL_OK;
    int64_t began_ns;
    bool is_closed = false;
    int patience_ms;

    if (look(channel, wanted, deadline_ms, &status, error))
        return status;
    began_ns = clock_now_ns();
    while (!work(channel, wanted, deadline_ms, &status, error)) {
        /* Only now: what the peer sent before it closed has been looked at. */
        if (is_closed)
            return error_set(error, SHOAL_UNREACHABLE, 0, "the peer closed the connection");
        if (deadline_is_past(deadline_ms))
            return error_set(error, SHOAL_TIMED_OUT, 0, "deadline passed");
        if (!ucx_port_arm(channel->port, &patience_ms))
            continue;
        if (patience_ms < 0 || deadline_left_ms(deadline_ms) < patience_ms)
            patience_ms = deadline_poll_ms(deadline_ms);
        if (poll(waiting, 2, patience_ms) < 0 && errno != EINTR)
            return error_set(error, SHOAL_IO, errno, "poll: %s", strerror(errno));
        is_closed = waiting[1].revents != 0 && tcp->is_stale(channel->tcp);
    }
    spin_slept(&channel->spin, clock_now_ns() - began_ns);
    return status;
}

static enum shoal_status send_bytes(struct byte_channel *channel, const uint8_t *data, size_t len, int64_t deadline_ms,
                                    struct shoal_error *error)
{
    while (len) {
        size_t taken = ucx_pipe_write(channel->pipe, data, len, true);
        enum shoal_status status;

        data += taken;
        len -= taken;
        status = len ? wait_for(channel, WANT_ROOM, deadline_ms, error) : SHOAL_OK;
        if (status)
            return status;
    }
    return SHOAL_OK;
}

/* UCX may keep a pointer to data until this returns. */
static enum shoal_status send_and_wait(struct byte_channel *channel, const uint8_t *data, size_t len,
                                       int64_t deadline_ms, struct shoal_error *error)
{
    enum shoal_status status = send_bytes(channel, data, len, deadline_ms, error);

    if (status || ucx_pipe_is_sent(channel->pipe))
        return status;
    return wait_for(channel, WANT_SENT, deadline_ms, error);
}

static enum shoal_status send_parts(struct byte_channel *channel, const struct iovec *parts, int count,
                                    uint8_t joined[JOINED_BYTES], int64_t deadline_ms, struct shoal_error *error)
{
    enum shoal_status status;
    size_t len = 0;

    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > JOINED_BYTES - len) {
            status = send_and_wait(channel, joined, len, deadline_ms, error);
            if (status)
                return status;
            len = 0;
        }
        if (parts[i].iov_len > JOINED_BYTES) {
            status = send_bytes(channel, parts[i].iov_base, parts[i].iov_len, deadline_ms, error);
            if (status)
                return status;
        } else if (parts[i].iov_len) {
            memcpy(joined + len, parts[i].iov_base, parts[i].iov_len);
            len += parts[i].iov_len;
        }
    }
    return send_and_wait(channel, joined, len, deadline_ms, error);
}

static enum shoal_status ucx_send(struct byte_channel *channel, struct iovec *parts, int count, int64_t deadline_ms,
                                  struct shoal_error *error)
{
    uint8_t joined[JOINED_BYTES];
    enum shoal_status status;

    if (!channel->pipe)
        return tcp->send(channel->tcp, parts, count, deadline_ms, error);
    status = send_parts(channel, parts, count, joined, deadline_ms, error);
    if (status)
        drop_port(channel); /* UCX may have pointers to joined or to memory of the caller */
    return status;
}

static enum shoal_status ucx_receive(struct byte_channel *channel, struct iovec *parts, int count, size_t *received_out,
                                     int64_t deadline_ms, struct shoal_error *error)
{
    enum shoal_status status;

    if (!channel->pipe)
        return tcp->receive(channel->tcp, parts, count, received_out, deadline_ms, error);
    *received_out = ucx_pipe_read(channel->pipe, parts, count);
    if (*received_out)
        return SHOAL_OK;
    ucx_pipe_expect(channel->pipe, parts, count);
    status = wait_for(channel, WANT_BYTES, deadline_ms, error);
    *received_out = ucx_pipe_expected(channel->pipe);
    if (status == SHOAL_OK && *received_out == 0) /* what overtook others went to the queue */
        *received_out = ucx_pipe_read(channel->pipe, parts, count);
    return status;
}

/* --- the rest --- */

static void ucx_interrupt(struct byte_channel *channel)
{
    __atomic_store_n(&channel->is_interrupted, true, __ATOMIC_RELAXED); /* work looks at it */
    tcp->interrupt(channel->tcp);                                       /* wakes a poll */
}

static bool ucx_is_stale(struct byte_channel *channel)
{
    if (tcp->is_stale(channel->tcp))
        return true;
    while (ucx_port_progress(channel->port) && !ucx_pipe_has_come(channel->pipe))
        ;
    return ucx_pipe_has_come(channel->pipe) || ucx_pipe_has_failed(channel->pipe);
}

static int ucx_descriptor(struct byte_channel *channel)
{
    return tcp->descriptor(channel->tcp);
}

static void ucx_close(struct byte_channel *channel)
{
    drop_port(channel);
    tcp->close(channel->tcp);
    ucx_carrier_close(channel->carrier);
    free(channel);
}

#define PROTOCOL(text)                                                                                                 \
    static enum shoal_status text##_start(struct shoal_error *error)                                                   \
    {                                                                                                                  \
        return start(#text, error);                                                                                    \
    }                                                                                                                  \
    static void text##_stop(void)                                                                                      \
    {                                                                                                                  \
        ucx_carrier_close(ucx_carrier_find(#text));                                                                    \
    }                                                                                                                  \
    static enum shoal_status text##_dial(const char *address, const char *source, const struct call *call,             \
                                         struct byte_channel **channel_out, struct shoal_error *error)                 \
    {                                                                                                                  \
        return dial(#text, address, source, call, channel_out, error);                                                 \
    }                                                                                                                  \
    const struct byte_channel_ops byte_channel_##text = {                                                              \
        .name = #text,                                                                                                 \
        .hello_channel = HELLO_CHANNEL_CONTROL_UCX,                                                                    \
        .fallback = &byte_channel_tcp,                                                                                 \
        .start = text##_start,                                                                                         \
        .stop = text##_stop,                                                                                           \
        .dial = text##_dial,                                                                                           \
        .begin = ucx_begin,                                                                                            \
        .send = ucx_send,                                                                                              \
        .receive = ucx_receive,                                                                                        \
        .interrupt = ucx_interrupt,                                                                                    \
        .is_stale = ucx_is_stale,                                                                                      \
        .descriptor = ucx_descriptor,                                                                                  \
        .close = ucx_close,                                                                                            \
    };

PROTOCOL(ucx)
PROTOCOL(rdma)
