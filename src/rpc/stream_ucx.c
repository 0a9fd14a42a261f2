/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/stream_ucx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "rpc/connection.h"

#define STEPS_PER_TURN 512 /* then others of the loop have their turn */

struct ucx_driver {
    struct loop *loop; /* borrowed */
    struct ucx_port *port;
    struct loop_io io;
    struct loop_timer timer; /* for when the descriptor does not tell */
    struct loop_task kick_task, again_task;
    bool is_again_posted;
    bool is_closed; /* with is_again_posted: freed by the task */
    bool *is_gone;  /* set by destroy while drive is on the stack */
};

static void run_again(void *arg);

static void drive(void *arg)
{
    struct ucx_driver *driver = arg;
    bool is_gone = false;
    int patience_ms;

    driver->is_gone = &is_gone;
    for (unsigned step = 0; step < STEPS_PER_TURN; step++) {
        bool is_busy = ucx_port_progress(driver->port);
        struct ucx_pipe *pipe;

        while ((pipe = ucx_port_next_ready(driver->port))) {
            is_busy = true;
            rpc_stream_pipe_ready(ucx_pipe_arg(pipe));
            if (is_gone)
                return;
        }
        if (!is_busy && ucx_port_arm(driver->port, &patience_ms)) {
            if (patience_ms >= 0)
                loop_timer_start(&driver->timer, patience_ms);
            driver->is_gone = NULL;
            return;
        }
    }
    driver->is_gone = NULL;
    if (!driver->is_again_posted) {
        driver->is_again_posted = true;
        loop_post(driver->loop, &driver->again_task, run_again, driver);
    }
}

static void run_again(void *arg)
{
    struct ucx_driver *driver = arg;

    driver->is_again_posted = false;
    if (driver->is_closed)
        free(driver);
    else
        drive(driver);
}

static void port_io(void *arg, unsigned events)
{
    (void)events;
    drive(arg);
}

enum shoal_status ucx_driver_create(struct loop *loop, struct ucx_carrier *carrier, bool is_private,
                                    struct ucx_driver **driver_out, struct shoal_error *error)
{
    struct ucx_driver *driver = calloc(1, sizeof *driver);
    enum shoal_status status;

    if (!driver)
        return error_no_memory(error);
    driver->loop = loop;
    status = ucx_port_open(carrier, is_private, &driver->port, error);
    if (status)
        goto release;
    status = loop_io_init(&driver->io, loop, ucx_port_fd(driver->port), port_io, driver, error);
    if (status)
        goto close_port;
    status = loop_timer_init(&driver->timer, loop, drive, driver, error);
    if (status)
        goto release_io;
    loop_io_set(&driver->io, LOOP_READ);
    loop_defer(loop, &driver->kick_task, drive, driver); /* arms it */
    *driver_out = driver;
    return SHOAL_OK;

release_io:
    loop_io_release(&driver->io);
close_port:
    ucx_port_close(driver->port);
release:
    free(driver);
    return status;
}

void ucx_driver_destroy(struct ucx_driver *driver)
{
    if (!driver)
        return;
    if (driver->is_gone)
        *driver->is_gone = true;
    loop_io_release(&driver->io); /* before UCX closes the descriptor */
    loop_timer_release(&driver->timer);
    loop_defer_cancel(driver->loop, &driver->kick_task);
    ucx_port_close(driver->port);
    driver->is_closed = true;
    if (!driver->is_again_posted)
        free(driver);
}

static void kick(struct ucx_driver *driver)
{
    if (!driver->is_gone) /* else it looks again anyway */
        loop_defer(driver->loop, &driver->kick_task, drive, driver);
}

void stream_ucx_kick(struct stream_ucx *ucx)
{
    if (ucx->used)
        kick(ucx->used);
}

/* --- what the two sides tell each other first --- */

/* A fresh connection takes some hundred bytes without waiting. */
static enum shoal_status send_frame(int fd, const struct buf *frame, struct shoal_error *error)
{
    ssize_t sent;

    do {
        sent = send(fd, frame->data, frame->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)frame->len)
        return SHOAL_OK;
    return error_set(error, SHOAL_UNREACHABLE, sent < 0 ? errno : 0, "cannot tell the peer about UCX");
}

static enum shoal_status send_description(struct stream_ucx *ucx, int fd, struct shoal_error *error)
{
    enum ucx_frame_type type = ucx->is_dialer ? UCX_FRAME_LINK : UCX_FRAME_LINKED;
    enum shoal_status status;
    struct buf frame;

    buf_init(&frame, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES);
    status = ucx_pipe_describe(ucx->pipe, type, &frame) ? send_frame(fd, &frame, error) : error_no_memory(error);
    buf_release(&frame);
    return status;
}

/* Whether it arrives or not, the connection ends. */
static void send_refusal(int fd, const struct shoal_error *why)
{
    size_t len = strlen(why->message);
    struct ucx_frame refusal = {.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_UNSUPPORTED};
    uint8_t header[UCX_FRAME_HEADER_BYTES];
    struct buf frame;

    refusal.body_len = len < UCX_FRAME_REASON_MAX_BYTES ? (uint32_t)len : UCX_FRAME_REASON_MAX_BYTES;
    ucx_frame_encode(&refusal, header);
    buf_init(&frame, sizeof header + UCX_FRAME_REASON_MAX_BYTES);
    if (buf_append(&frame, header, sizeof header) && buf_append(&frame, why->message, refusal.body_len))
        (void)send_frame(fd, &frame, NULL);
    buf_release(&frame);
}

/* --- life --- */

static void drop_pipe(struct stream_ucx *ucx)
{
    ucx_pipe_close(ucx->pipe);
    ucx->pipe = NULL;
    if (ucx->used && !ucx->own)
        kick(ucx->used); /* closing has driven the port: others may be ready */
    ucx_driver_destroy(ucx->own);
    ucx->own = ucx->used = NULL;
}

static enum shoal_status make_pipe(struct stream_ucx *ucx, bool is_private, struct rpc_stream *stream,
                                   struct shoal_error *error)
{
    struct ucx_driver **driver = is_private ? &ucx->own : ucx->shared;
    enum shoal_status status = SHOAL_OK;

    if (!*driver)
        status = ucx_driver_create(ucx->loop, ucx->carrier, is_private, driver, error);
    if (status)
        return status;
    ucx->used = *driver;
    return ucx_pipe_create(ucx->used->port, stream, &ucx->pipe, error);
}

/* The accepting side has one port for all, but for those that UCX reaches only without reports of errors. */
static enum shoal_status accept_pipe(struct stream_ucx *ucx, const struct ucx_frame *frame, const uint8_t *body,
                                     struct rpc_stream *stream, struct shoal_error *error)
{
    enum shoal_status status = make_pipe(ucx, false, stream, error);

    if (status == SHOAL_OK)
        status = ucx_pipe_connect(ucx->pipe, frame, body, error);
    if (status == SHOAL_UNSUPPORTED) {
        drop_pipe(ucx);
        status = make_pipe(ucx, true, stream, error);
        if (status == SHOAL_OK)
            status = ucx_pipe_connect(ucx->pipe, frame, body, error);
    }
    return status;
}

enum shoal_status stream_ucx_create(struct loop *loop, struct ucx_carrier *carrier, struct ucx_driver **shared, int fd,
                                    struct rpc_stream *stream, struct stream_ucx **ucx_out, struct shoal_error *error)
{
    struct stream_ucx *ucx = calloc(1, sizeof *ucx);
    enum shoal_status status = SHOAL_OK;

    if (!ucx)
        return error_no_memory(error);
    *ucx = (struct stream_ucx){.loop = loop, .carrier = carrier, .shared = shared, .is_dialer = !shared};
    buf_init(&ucx->in, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES);
    if (ucx->is_dialer)
        status = make_pipe(ucx, true, stream, error);
    if (ucx->is_dialer && status == SHOAL_OK)
        status = send_description(ucx, fd, error);
    if (status)
        stream_ucx_destroy(ucx);
    else
        *ucx_out = ucx;
    return status;
}

void stream_ucx_destroy(struct stream_ucx *ucx)
{
    if (!ucx)
        return;
    drop_pipe(ucx);
    buf_release(&ucx->in);
    free(ucx);
}

/* --- the socket --- */

static enum shoal_status take_frame(struct stream_ucx *ucx, int fd, const struct ucx_frame *frame, const uint8_t *body,
                                    struct rpc_stream *stream, struct shoal_error *error)
{
    struct shoal_error why = {0};
    enum shoal_status status;

    if (ucx->is_dialer && frame->type == UCX_FRAME_REFUSE)
        return error_set(error, SHOAL_UNSUPPORTED, 0, "%.*s", (int)frame->body_len, (const char *)body);
    if (frame->type != (ucx->is_dialer ? UCX_FRAME_LINKED : UCX_FRAME_LINK))
        return error_set(error, SHOAL_PROTOCOL, 0, "malformed description of a worker of UCX");
    if (ucx->is_dialer) {
        status = ucx_pipe_connect(ucx->pipe, frame, body, error);
    } else {
        status = accept_pipe(ucx, frame, body, stream, &why);
        if (status) {
            send_refusal(fd, &why);
            status = error_copy(error, &why);
        } else {
            status = send_description(ucx, fd, error);
        }
    }
    ucx->is_open = status == SHOAL_OK;
    return status;
}

enum shoal_status stream_ucx_readable(struct stream_ucx *ucx, int fd, struct rpc_stream *stream,
                                      struct shoal_error *error)
{
    for (;;) {
        size_t want = UCX_FRAME_HEADER_BYTES - ucx->in.len;
        struct ucx_frame frame = {0};
        ssize_t got;

        if (ucx->in.len >= UCX_FRAME_HEADER_BYTES) {
            if (ucx_frame_decode(ucx->in.data, &frame))
                return error_set(error, SHOAL_PROTOCOL, 0, "malformed description of a worker of UCX");
            want = UCX_FRAME_HEADER_BYTES + frame.body_len - ucx->in.len;
            if (want == 0) {
                enum shoal_status status =
                    take_frame(ucx, fd, &frame, ucx->in.data + UCX_FRAME_HEADER_BYTES, stream, error);

                buf_release(&ucx->in);
                buf_init(&ucx->in, 1);
                return status;
            }
        }
        if (ucx->is_open)
            want = 1; /* nothing but the end is due */
        if (!buf_reserve(&ucx->in, want))
            return error_no_memory(error);
        got = recv(fd, ucx->in.data + ucx->in.len, want, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return SHOAL_OK;
        if (got < 0)
            return error_set(error, SHOAL_UNREACHABLE, errno, "control connection lost: %s", strerror(errno));
        if (got == 0)
            return error_set(error, SHOAL_UNREACHABLE, 0, "peer closed the control connection");
        if (ucx->is_open)
            return error_set(error, SHOAL_PROTOCOL, 0, "bytes beside UCX on a control connection");
        ucx->in.len += (size_t)got;
    }
}
