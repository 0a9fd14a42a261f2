/* SPDX-License-Identifier: Apache-2.0 */
/* Instead of ucx_pipe.c in a build without UCX: the protocols are known, and say what is missing. Since no carrier can
 * be opened, nothing below the carriers is ever called. */
#include "base/error.h"
#include "rpc/ucx_pipe.h"

enum shoal_status ucx_carrier_open(const char *protocol, struct ucx_carrier **carrier_out, struct shoal_error *error)
{
    (void)protocol;
    (void)carrier_out;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "this build has no UCX (meson option -Ducx, package libucx-dev)");
}

struct ucx_carrier *ucx_carrier_find(const char *protocol)
{
    (void)protocol;
    return NULL;
}

void ucx_carrier_close(struct ucx_carrier *carrier)
{
    (void)carrier;
}

enum shoal_status ucx_port_open(struct ucx_carrier *carrier, bool is_private, struct ucx_port **port_out,
                                struct shoal_error *error)
{
    (void)carrier;
    (void)is_private;
    (void)port_out;
    return ucx_carrier_open("", NULL, error);
}

void ucx_port_close(struct ucx_port *port)
{
    (void)port;
}

int ucx_port_fd(const struct ucx_port *port)
{
    (void)port;
    return -1;
}

bool ucx_port_progress(struct ucx_port *port)
{
    (void)port;
    return false;
}

bool ucx_port_arm(struct ucx_port *port, int *patience_ms_out)
{
    (void)port;
    *patience_ms_out = -1;
    return true;
}

struct ucx_pipe *ucx_port_next_ready(struct ucx_port *port)
{
    (void)port;
    return NULL;
}

enum shoal_status ucx_pipe_create(struct ucx_port *port, void *arg, struct ucx_pipe **pipe_out,
                                  struct shoal_error *error)
{
    (void)port;
    (void)arg;
    (void)pipe_out;
    return ucx_carrier_open("", NULL, error);
}

void ucx_pipe_close(struct ucx_pipe *pipe)
{
    (void)pipe;
}

void *ucx_pipe_arg(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return NULL;
}

struct ucx_port *ucx_pipe_port(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return NULL;
}

bool ucx_pipe_describe(const struct ucx_pipe *pipe, enum ucx_frame_type type, struct buf *out)
{
    (void)pipe;
    (void)type;
    (void)out;
    return false;
}

enum shoal_status ucx_pipe_connect(struct ucx_pipe *pipe, const struct ucx_frame *frame, const uint8_t *body,
                                   struct shoal_error *error)
{
    (void)pipe;
    (void)frame;
    (void)body;
    return ucx_carrier_open("", NULL, error);
}

size_t ucx_pipe_write(struct ucx_pipe *pipe, const void *data, size_t len, bool is_lasting)
{
    (void)pipe;
    (void)data;
    (void)len;
    (void)is_lasting;
    return 0;
}

bool ucx_pipe_has_room(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return false;
}

bool ucx_pipe_is_sent(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return true;
}

size_t ucx_pipe_read(struct ucx_pipe *pipe, const struct iovec *parts, int count)
{
    (void)pipe;
    (void)parts;
    (void)count;
    return 0;
}

void ucx_pipe_expect(struct ucx_pipe *pipe, const struct iovec *parts, int count)
{
    (void)pipe;
    (void)parts;
    (void)count;
}

bool ucx_pipe_has_come(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return false;
}

size_t ucx_pipe_expected(struct ucx_pipe *pipe)
{
    (void)pipe;
    return 0;
}

bool ucx_pipe_has_failed(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return true;
}

const char *ucx_pipe_failure(const struct ucx_pipe *pipe)
{
    (void)pipe;
    return "no UCX";
}
