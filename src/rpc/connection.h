/* SPDX-License-Identifier: Apache-2.0 */
/* One control connection: frames in, frames out, bounded both ways. Shared by server and client. Frames go by the
 * socket, or by UCX while the socket tells of a peer that closes. Loop thread. */
#ifndef SHOAL_RPC_CONNECTION_H
#define SHOAL_RPC_CONNECTION_H

#include "rpc/rpc.h"

#define RPC_WRITE_QUEUE_MAX_BYTES (32u << 20)

struct stream_ucx;
struct ucx_carrier;
struct ucx_driver;

struct rpc_stream_events {
    /* A whole frame. May close the stream. body is valid during the call. */
    void (*frame)(void *arg, const struct rpc_frame *frame, const uint8_t *body);
    /* The stream failed and is closed already; release it from inside or later. */
    void (*closed)(void *arg, enum shoal_status status, const struct shoal_error *error);
    /* A stream over UCX that was dialed can be used now; until then sending fails. closed comes instead with
     * UNSUPPORTED if the two have no common way. */
    void (*opened)(void *arg);
};

struct rpc_stream {
    int fd; /* owned; -1: closed */
    struct loop_io io;
    struct buf in, out;
    size_t out_sent;
    int64_t blocked_since_ms; /* the socket has taken nothing since then; 0: it takes what it gets */
    int write_errno;          /* why nothing is written any more; what the peer sent before is read to its end */
    bool is_local;            /* a local socket, which has no timeouts of its own */
    uint32_t max_body;
    struct stream_ucx *ucx; /* owned; NULL: frames go by the socket */
    bool *is_gone;          /* set by release while a callback of this stream is on the stack */
    const struct rpc_stream_events *events;
    void *arg;
    struct rpc_counters *counters;
};

enum shoal_status rpc_stream_init(struct rpc_stream *stream, struct loop *loop, int fd, uint32_t max_body,
                                  const struct rpc_stream_events *events, void *arg, struct rpc_counters *counters,
                                  struct shoal_error *error);
/* The same over UCX. shared: where the accepting side keeps its port of UCX; NULL: the dialing side. UNSUPPORTED or
 * LIMIT: not by UCX. */
enum shoal_status rpc_stream_init_ucx(struct rpc_stream *stream, struct loop *loop, int fd, uint32_t max_body,
                                      const struct rpc_stream_events *events, void *arg, struct rpc_counters *counters,
                                      struct ucx_carrier *carrier, struct ucx_driver **shared,
                                      struct shoal_error *error);
/* Of a stream, which is arg of its pipe, whose pipe is ready (rpc/stream_ucx.h). May end it. */
void rpc_stream_pipe_ready(void *arg);
/* Closes the descriptor; no callback. */
void rpc_stream_release(struct rpc_stream *stream);
/* Queues a frame and writes what the socket takes without waiting; answers to frames that came together are written
 * together. A peer that has read nothing for 10 s loses the connection. LIMIT: the peer does not read; NO_MEMORY. A
 * write error is reported through closed later. */
enum shoal_status rpc_stream_send(struct rpc_stream *stream, const struct rpc_frame *frame, const void *body);
/* The same with a body in two parts: head_len bytes at body, the rest at tail. */
enum shoal_status rpc_stream_send_parts(struct rpc_stream *stream, const struct rpc_frame *frame, const void *body,
                                        size_t head_len, const void *tail);
/* Both ends lose the connection; closed runs later. */
void rpc_stream_break(struct rpc_stream *stream);
/* Writes what the socket takes without waiting. Errors show up later, through closed. */
void rpc_stream_flush(struct rpc_stream *stream);

#endif
