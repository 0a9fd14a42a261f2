/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the UCX channel: whole frames (wire/ucx_frame.h) in and out of a socket. All on one loop. */
#ifndef SHOAL_TRANSPORT_UCX_CHANNEL_H
#define SHOAL_TRANSPORT_UCX_CHANNEL_H

#include <stdbool.h>

#include "base/buf.h"
#include "loop/loop.h"
#include "wire/ucx_frame.h"

struct ucx_channel {
    struct loop_io io;
    int fd; /* owned; -1: closed */
    struct buf in, out;
    /* false: the channel was closed inside. body has body_len bytes and is gone afterwards. */
    bool (*on_frame)(void *arg, const struct ucx_frame *frame, const uint8_t *body);
    /* The peer is gone, or sent what is no frame (is_malformed). Called once; close the channel inside. */
    void (*on_lost)(void *arg, bool is_malformed, int sys_errno);
    void *arg;
};

/* Takes over fd, also on error. NO_MEMORY. */
enum shoal_status ucx_channel_open(struct ucx_channel *channel, struct loop *loop, int fd, struct shoal_error *error);
void ucx_channel_close(struct ucx_channel *channel); /* closed or zeroed with fd -1: nothing */
/* false: the peer does not read and the bound is reached, or it is gone; on_lost is not called for that. */
bool ucx_channel_send(struct ucx_channel *channel, const struct ucx_frame *frame, const void *body);

#endif
