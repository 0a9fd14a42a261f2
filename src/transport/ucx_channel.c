/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx_channel.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

#define OUT_MAX_BYTES (4u << 20)
#define READ_BYTES 16384u

/* Works off the whole frames of the buffer. false: closed inside, or lost. */
static bool take_frames(struct ucx_channel *channel)
{
    while (channel->in.len >= UCX_FRAME_HEADER_BYTES) {
        struct ucx_frame frame;

        if (ucx_frame_decode(channel->in.data, &frame) != SHOAL_OK) {
            channel->on_lost(channel->arg, true, 0);
            return false;
        }
        if (channel->in.len < UCX_FRAME_HEADER_BYTES + frame.body_len)
            return true;
        if (!channel->on_frame(channel->arg, &frame, channel->in.data + UCX_FRAME_HEADER_BYTES))
            return false;
        buf_consume(&channel->in, UCX_FRAME_HEADER_BYTES + frame.body_len);
    }
    return true;
}

/* false: broken. */
static bool flush(struct ucx_channel *channel)
{
    while (channel->out.len > 0) {
        ssize_t sent = send(channel->fd, channel->out.data, channel->out.len, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (sent < 0)
            return false;
        buf_consume(&channel->out, (size_t)sent);
    }
    loop_io_set(&channel->io, channel->out.len > 0 ? LOOP_READ | LOOP_WRITE : LOOP_READ);
    return true;
}

static void channel_io(void *arg, unsigned events)
{
    struct ucx_channel *channel = arg;
    ssize_t got;

    if ((events & LOOP_WRITE) && !flush(channel)) {
        channel->on_lost(channel->arg, false, errno);
        return;
    }
    if (!(events & LOOP_READ))
        return;
    if (!buf_reserve(&channel->in, READ_BYTES)) {
        channel->on_lost(channel->arg, false, ENOMEM);
        return;
    }
    got = recv(channel->fd, channel->in.data + channel->in.len, READ_BYTES, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (got <= 0) {
        channel->on_lost(channel->arg, false, got < 0 ? errno : 0);
        return;
    }
    channel->in.len += (size_t)got;
    (void)take_frames(channel);
}

enum shoal_status ucx_channel_open(struct ucx_channel *channel, struct loop *loop, int fd, struct shoal_error *error)
{
    enum shoal_status status = loop_io_init(&channel->io, loop, fd, channel_io, channel, error);

    if (status != SHOAL_OK) {
        close(fd);
        channel->fd = -1;
        return status;
    }
    channel->fd = fd;
    buf_init(&channel->in, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES + READ_BYTES);
    buf_init(&channel->out, OUT_MAX_BYTES);
    loop_io_set(&channel->io, LOOP_READ);
    return SHOAL_OK;
}

void ucx_channel_close(struct ucx_channel *channel)
{
    if (channel->fd < 0)
        return;
    loop_io_release(&channel->io);
    buf_release(&channel->in);
    buf_release(&channel->out);
    close(channel->fd);
    channel->fd = -1;
}

bool ucx_channel_send(struct ucx_channel *channel, const struct ucx_frame *frame, const void *body)
{
    uint8_t header[UCX_FRAME_HEADER_BYTES];
    bool was_empty = channel->out.len == 0;

    ucx_frame_encode(frame, header);
    if (!buf_reserve(&channel->out, sizeof header + frame->body_len))
        return false;
    (void)buf_append(&channel->out, header, sizeof header);
    if (frame->body_len > 0)
        (void)buf_append(&channel->out, body, frame->body_len);
    return !was_empty || flush(channel);
}
