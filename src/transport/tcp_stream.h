/* SPDX-License-Identifier: Apache-2.0 */
/* One data connection as a pair of frame streams: outgoing frames from their queue straight to the socket, incoming
 * bodies from the socket straight to where they belong. Registered memory is touched by the kernel only, so memory that
 * has vanished is an EFAULT here and never a signal. Belongs to one loop thread. */
#ifndef SHOAL_TRANSPORT_TCP_STREAM_H
#define SHOAL_TRANSPORT_TCP_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "wire/data.h"

/* An outgoing frame; embedded in its owner, which keeps the body readable until sent has run or it was dequeued. */
struct tcp_out {
    struct list_node node;
    size_t head_len, head_sent;
    const void *body; /* borrowed */
    uint64_t body_len, body_sent;
    /* What of the body is at `body`: [body_start, body_ready). All of it, unless the owner says otherwise. */
    uint64_t body_start, body_ready;
    uint64_t gate;   /* no more than this of the body is sent now; body_len unless the owner sets less */
    bool is_metered; /* the body is data: it counts against a rate limit */
    uint8_t head[DATA_HEADER_BYTES + DATA_REASON_MAX_BYTES]; /* a refusal's text is part of it */
};

struct tcp_stream;
struct tcp_stream_ops {
    /* The frame has left the queue. May queue others. */
    void (*sent)(struct tcp_stream *stream, struct tcp_out *out);
    /* A header came in; a body follows if data_body_len says so: then set stream->body (NULL: discard it). false: stop,
     * the stream may be gone. */
    bool (*head)(struct tcp_stream *stream, const struct data_frame *frame);
    /* len more bytes of the body are at data, its next bytes. */
    void (*part)(struct tcp_stream *stream, const void *data, uint64_t len);
    /* The body is complete. false as above. */
    bool (*body)(struct tcp_stream *stream);
    /* stream->body is not writable; the rest of it is discarded. */
    void (*fault)(struct tcp_stream *stream);
};

struct tcp_stream {
    const struct tcp_stream_ops *ops;
    int fd; /* owned */
    bool is_same_host;
    bool may_wait;    /* the next receive sleeps until something comes, if the socket blocks */
    bool tells_queue; /* the kernel says with each header how much lies behind it */
    int unsent_limit; /* of the kernel; 0: none was set */
    struct list out;
    void *body; /* where the rest of the current body goes; NULL: nowhere */
    uint64_t body_left;
    bool is_body_metered;
    size_t head_have;
    /* How much of metered bodies may move now; UINT64_MAX: all of it. */
    uint64_t in_allowance, out_allowance;
    int64_t moved_in_ms, moved_out_ms; /* when bytes last moved, or waiting began */
    uint64_t bytes_in, bytes_out;      /* bodies and headers */
    uint64_t acked;                    /* bytes_out without what the kernel still holds, when last looked at */
    uint8_t head[DATA_HEADER_BYTES];
};

enum tcp_step {
    TCP_STEP_DONE,     /* out: queue is empty. in: nothing to read now */
    TCP_STEP_BLOCKED,  /* out: the socket is full */
    TCP_STEP_MORE,     /* the turn's budget is used up */
    TCP_STEP_HELD,     /* the allowance, or the gate or what is ready of the first frame, is used up */
    TCP_STEP_STOPPED,  /* a callback said false */
    TCP_STEP_LOST,     /* errno_out; 0: end of stream */
    TCP_STEP_FAULT,    /* out: the body of the first frame is unreadable */
    TCP_STEP_PROTOCOL, /* in: not a frame */
};

void tcp_stream_init(struct tcp_stream *stream, const struct tcp_stream_ops *ops, int fd);
void tcp_stream_release(struct tcp_stream *stream); /* closes fd; the queue is the owner's */
/* Buffer and congestion control settings for a fresh connection that receives at most in_bytes_per_s (0: no limit). */
void tcp_stream_tune(struct tcp_stream *stream, uint64_t in_bytes_per_s);
/* For a stream that mostly receives lone headers: saves the system call that would say that nothing follows. */
void tcp_stream_expect_heads(struct tcp_stream *stream);
/* Lets the kernel hold as much unsent data as this connection needs to stay busy, given what it sends per second, and
 * no more: what lies there is lost to everybody else's turn. */
void tcp_stream_tune_unsent(struct tcp_stream *stream, uint64_t bytes_per_s);
/* A peer that takes what the kernel holds is moving, although there was no room to send more. Called while frames are
 * queued. */
void tcp_stream_look_at_acks(struct tcp_stream *stream, int64_t now_ms);

/* Fills in the header (and a refusal's text) of an idle frame. */
void tcp_stream_prepare(struct tcp_out *out, const struct data_frame *frame, const void *body, const char *text);
void tcp_stream_push(struct tcp_stream *stream, struct tcp_out *out);
/* Both. */
void tcp_stream_queue(struct tcp_stream *stream, struct tcp_out *out, const struct data_frame *frame, const void *body,
                      const char *text);
static inline bool tcp_out_is_begun(const struct tcp_out *out)
{
    return out->head_sent > 0;
}
/* What the first frame would send of its body, if the allowance let it. */
uint64_t tcp_stream_out_wanted(const struct tcp_stream *stream);
enum tcp_step tcp_stream_send(struct tcp_stream *stream, int *errno_out);
enum tcp_step tcp_stream_receive(struct tcp_stream *stream, int *errno_out);

#endif
