/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking calls on the caller's own thread: the frames of rpc.h over pooled connections, each used by one call at a
 * time, so a small call costs one send and one receive and no thread is woken. For callers that are not on an event
 * loop; the peer is an ordinary rpc server.
 *
 * Threads: every function from any thread. */
#ifndef SHOAL_RPC_CHANNEL_H
#define SHOAL_RPC_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "base/call.h"
#include "rpc/byte_channel.h"

struct rpc_channels;

struct rpc_channels_config {
    const char *cluster, *server_name;  /* of this node, for the handshake; copied */
    const char *source;                 /* "ip:port" of this node, which connections come from; NULL: any; copied */
    uint64_t instance;                  /* of this node */
    const struct byte_channel_ops *ops; /* NULL: byte_channel_find(MC_RPC_PROTOCOL or "auto") */
    unsigned max_idle_per_peer;         /* kept open; 0: 32 */
    unsigned max_idle;                  /* of all peers together, the longest idle one is closed; 0: 256 */
    int64_t idle_ms;                    /* closed, with the next call to anybody, when idle for longer; 0: 60000 */
    int64_t connect_timeout_ms;         /* 0: 3000 */
};
enum shoal_status rpc_channels_create(const struct rpc_channels_config *config, struct rpc_channels **channels_out,
                                      struct shoal_error *error);
/* No call may be running. NULL is allowed. */
void rpc_channels_destroy(struct rpc_channels *channels);

#define RPC_CHANNELS_PARTS_MAX 64

/* Sends a request whose body is the concatenation of parts (their sum at most RPC_REQUEST_LARGE_MAX_BYTES; most peers
 * accept RPC_REQUEST_MAX_BYTES) and waits for the answer. instance 0: any. body_out is cleared first and has the
 * answer's body on success, the text of an error that is the peer's own, and nothing otherwise. The call's deadline
 * bounds everything, the dial included; its rest travels with the request. An idle connection that turns out to be dead
 * before a byte of the answer is replaced once by a new one, so the peer may see such a request twice. The peer's
 * status with its text, or UNREACHABLE, TIMED_OUT, CANCELED, PROTOCOL, ADDRESS, LIMIT, NO_MEMORY; the message begins
 * with the address. A peer that does not accept a connection within connect_timeout_ms is UNREACHABLE. */
enum shoal_status rpc_channels_call(struct rpc_channels *channels, const char *address, uint64_t instance,
                                    uint16_t method, const struct iovec *parts, int part_count, const struct call *call,
                                    struct buf *body_out, struct shoal_error *error);
/* The same for a request that must not be repeated: idle connections are looked at before they are used, and when one
 * dies after the request was sent, the answer is UNREACHABLE: the peer may or may not have acted. */
enum shoal_status rpc_channels_call_once(struct rpc_channels *channels, const char *address, uint64_t instance,
                                         uint16_t method, const struct iovec *parts, int part_count,
                                         const struct call *call, struct buf *body_out, struct shoal_error *error);
/* The same; is_sent_out is set in every case. false: the peer cannot have acted. */
enum shoal_status rpc_channels_call_once_sent(struct rpc_channels *channels, const char *address, uint64_t instance,
                                              uint16_t method, const struct iovec *parts, int part_count,
                                              const struct call *call, struct buf *body_out, bool *is_sent_out,
                                              struct shoal_error *error);
/* Where the attachment of an answer goes, straight from the socket. */
struct rpc_sink {
    void *memory; /* of the caller; or NULL: malloc'ed here, then the caller's (free) */
    size_t room_bytes;
    /* out, with OK: */
    size_t len_bytes; /* of the attachment; 0: the answer has none */
    bool is_lost;     /* longer than the room: memory has nothing of it */
};
/* rpc_channels_call for a request that asks for an attachment. After an error that came with the attachment the
 * caller's memory may have a part of it, and memory that was NULL is NULL. */
enum shoal_status rpc_channels_call_into(struct rpc_channels *channels, const char *address, uint64_t instance,
                                         uint16_t method, const struct iovec *parts, int part_count,
                                         const struct call *call, struct buf *body_out, struct rpc_sink *sink,
                                         struct shoal_error *error);
/* A peer is known to be dead: its idle connections are closed. */
void rpc_channels_forget(struct rpc_channels *channels, const char *address);

struct rpc_channels_counters {
    uint64_t calls, failures, dials, bytes_in, bytes_out;
    uint64_t local_dials; /* of dials: those that go over the local socket of a process of this host */
    uint64_t fallbacks; /* connections that go by TCP, because a peer does not offer the protocol that was asked for */
    unsigned idle;
};
void rpc_channels_counters(struct rpc_channels *channels, struct rpc_channels_counters *out);

#endif
