/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a control connection over UCX, on the loop: what connection.c needs beside the socket. Only connection.c
 * and server.c include it. Loop thread. */
#ifndef SHOAL_RPC_STREAM_UCX_H
#define SHOAL_RPC_STREAM_UCX_H

#include "loop/loop.h"
#include "rpc/ucx_pipe.h"

struct rpc_stream;

/* A port on a loop: sleeps on its descriptor, and calls rpc_stream_pipe_ready for what is ready. */
struct ucx_driver;
enum shoal_status ucx_driver_create(struct loop *loop, struct ucx_carrier *carrier, bool is_private,
                                    struct ucx_driver **driver_out, struct shoal_error *error);
void ucx_driver_destroy(struct ucx_driver *driver); /* NULL is allowed */

/* What a stream has beside its socket. */
struct stream_ucx {
    struct loop *loop;             /* borrowed */
    struct ucx_carrier *carrier;   /* borrowed */
    struct ucx_driver **shared;    /* borrowed: where the server's driver is, made by the first that needs it */
    struct ucx_driver *own, *used; /* own: owned; used: one of the two, NULL: none yet */
    struct ucx_pipe *pipe;         /* owned */
    struct buf in;                 /* of the socket, until the peer has described its pipe */
    bool is_dialer, is_open;
};

/* shared NULL: the dialing side, which has a port of its own. Sends the description of our pipe, if we dial. */
enum shoal_status stream_ucx_create(struct loop *loop, struct ucx_carrier *carrier, struct ucx_driver **shared, int fd,
                                    struct rpc_stream *stream, struct stream_ucx **ucx_out, struct shoal_error *error);
void stream_ucx_destroy(struct stream_ucx *ucx); /* NULL is allowed */
/* Reads from the socket. OK: look at is_open. UNREACHABLE: closed, or something came that does not belong there;
 * UNSUPPORTED: there is no common way; PROTOCOL, NO_MEMORY. */
enum shoal_status stream_ucx_readable(struct stream_ucx *ucx, int fd, struct rpc_stream *stream,
                                      struct shoal_error *error);
/* Something was written: UCX works on soon. */
void stream_ucx_kick(struct stream_ucx *ucx);

#endif
