/* SPDX-License-Identifier: Apache-2.0 */
/* What carries the frames of rpc/channel.h: one ops table per protocol: "auto" (TCP, and between processes of one host
 * their local socket), "tcp" alone, and over UCX "rdma" and "ucx". */
#ifndef SHOAL_RPC_BYTE_CHANNEL_H
#define SHOAL_RPC_BYTE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <shoal/status.h>

#include "base/call.h"

struct byte_channel;

struct byte_channel_ops {
    const char *name;
    uint8_t hello_channel;                   /* what the handshake asks for: enum hello_channel (wire/hello.h) */
    const struct byte_channel_ops *fallback; /* for peers that do not offer it; NULL: every peer does */
    /* Whoever uses the protocol begins with start, and calls stop when no channel of it is left. UNSUPPORTED: it is not
     * built in, or this machine lacks what it needs. */
    enum shoal_status (*start)(struct shoal_error *error);
    void (*stop)(void);
    /* Connects to "ip:port", from the host of source ("ip:port"; NULL: any). UNREACHABLE, TIMED_OUT, CANCELED, ADDRESS,
     * LIMIT (descriptors), NO_MEMORY. */
    enum shoal_status (*dial)(const char *address, const char *source, const struct call *call,
                              struct byte_channel **channel_out, struct shoal_error *error);
    /* Connects to the local socket of an instance, without waiting; what follows is as after dial. NULL: the protocol
     * has no such way; false: it is not to be had. */
    bool (*dial_local)(uint64_t instance, struct byte_channel **channel_out);
    /* After the handshake, which went by send and receive: agrees with the peer on what follows. UNSUPPORTED: they
     * share no way, try the fallback. UNREACHABLE, TIMED_OUT, PROTOCOL, NO_MEMORY. */
    enum shoal_status (*begin)(struct byte_channel *channel, int64_t deadline_ms, struct shoal_error *error);
    /* All of it or an error. UNREACHABLE: the peer closed or reset; TIMED_OUT. parts are used up. */
    enum shoal_status (*send)(struct byte_channel *channel, struct iovec *parts, int count, int64_t deadline_ms,
                              struct shoal_error *error);
    /* At least 1 byte, at most as many as the parts hold, in their order. UNREACHABLE, TIMED_OUT. */
    enum shoal_status (*receive)(struct byte_channel *channel, struct iovec *parts, int count, size_t *received_out,
                                 int64_t deadline_ms, struct shoal_error *error);
    /* Any thread: makes a send or receive that runs now, and all later ones, end with UNREACHABLE. Never blocks. */
    void (*interrupt)(struct byte_channel *channel);
    /* An idle channel: has the peer closed it (or sent something unasked)? */
    bool (*is_stale)(struct byte_channel *channel);
    /* A descriptor that becomes readable when the peer closes the connection; poll it only. */
    int (*descriptor)(struct byte_channel *channel);
    void (*close)(struct byte_channel *channel);
};

extern const struct byte_channel_ops byte_channel_auto, byte_channel_tcp, byte_channel_ucx, byte_channel_rdma;

/* NULL name: the environment's MC_RPC_PROTOCOL, or "auto". INVALID_ARGUMENT: no such protocol (the message lists
 * them). */
enum shoal_status byte_channel_find(const char *name, const struct byte_channel_ops **ops_out,
                                    struct shoal_error *error);
/* ops->start, with the name of the protocol in the message. */
enum shoal_status byte_channel_start(const struct byte_channel_ops *ops, struct shoal_error *error);

#endif
