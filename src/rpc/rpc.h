/* SPDX-License-Identifier: Apache-2.0 */
/* Control calls between nodes: request and response frames over the control channel of the endpoint, multiplexed over
 * one connection per peer, each call with a deadline. Bodies are opaque here (wire/control.proto).
 *
 * Threads: everything runs on the endpoint's loop thread, except rpc_create and rpc_destroy. */
#ifndef SHOAL_RPC_RPC_H
#define SHOAL_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"
#include "transport/endpoint.h"
#include "wire/rpc_frame.h"

#define RPC_METHOD_MAX 32
#define RPC_CALLS_PER_CONNECTION_MAX 1024 /* unanswered; further ones are answered with LIMIT */

struct rpc;
struct rpc_client;
struct rpc_request;

/* Serves the control channel of endpoint and dials through it. Both are borrowed and outlive rpc. Peers of this host
 * are called over their local socket, unless MC_RPC_PROTOCOL=tcp. With MC_RPC_PROTOCOL=ucx or rdma also over UCX: peers
 * are asked for it, and those that do not offer it are called by TCP. INVALID_ARGUMENT: there is no such protocol;
 * UNSUPPORTED: it cannot be had here. */
enum shoal_status rpc_create(struct loop *loop, struct endpoint *endpoint, struct rpc **rpc_out,
                             struct shoal_error *error);
/* Closes all connections; unanswered incoming requests are aborted. Clients must have been closed. Not on the loop.
 * NULL is allowed. */
void rpc_destroy(struct rpc *rpc);

/* --- server --- */

/* An incoming request. The handler answers now or later, exactly once, with rpc_reply; if the connection is lost first,
 * on_abort (if the handler set it) runs instead and the request is gone when it returns. */
struct rpc_request {
    const char *peer;    /* server name of the caller; borrowed */
    const uint8_t *body; /* valid until the handler returns */
    size_t body_len;
    uint32_t timeout_ms; /* the caller's patience */
    void (*on_abort)(struct rpc_request *request);
    void *arg;                         /* the handler's */
    struct list_node owner_node;       /* the handler's: linked nowhere at first */
    struct rpc_connection *connection; /* only to be compared with that of another request */
    /* private */
    struct list_node node;
    uint64_t id;
    uint16_t method;
};
typedef void (*rpc_handler_fn)(void *arg, struct rpc_request *request);

/* method 1..RPC_METHOD_MAX-1. Before rpc serves, i.e. directly after create or from the loop thread. */
void rpc_set_handler(struct rpc *rpc, uint16_t method, rpc_handler_fn fn, void *arg);

/* Bodies of requests that are accepted, at most RPC_REQUEST_LARGE_MAX_BYTES; RPC_REQUEST_MAX_BYTES at first. Before rpc
 * serves. */
void rpc_set_request_max(struct rpc *rpc, uint32_t max_bytes);

/* status OK: body is the response message. Else body is ignored and message (may be NULL) is sent as text. Frees
 * request. */
void rpc_reply(struct rpc_request *request, enum shoal_status status, const char *message, const void *body,
               size_t body_len);

/* rpc_reply with OK and a message whose last part lies elsewhere, so that a long value is not copied into it.
 * is_attachment: the tail is no part of the message; only for callers that have asked for it (rpc/channel.h). */
void rpc_reply_parts(struct rpc_request *request, const void *body, size_t body_len, const void *tail, size_t tail_len,
                     bool is_attachment);

/* --- client --- */

/* A handle to one peer; connects with the first call and again after a loss. instance 0: any. NO_MEMORY. */
enum shoal_status rpc_client_open(struct rpc *rpc, const char *address, uint64_t instance, int64_t connect_timeout_ms,
                                  struct rpc_client **client_out, struct shoal_error *error);
/* fn runs on the loop thread whenever the connection is lost, also when no call was waiting; done of the calls that
 * fail with it follows. It may close the client (which ends them with CANCELED). */
void rpc_client_on_lost(struct rpc_client *client, void (*fn)(void *arg, const struct shoal_error *error), void *arg);
/* Ends its calls with CANCELED (their done runs before this returns) and closes the connection. NULL is allowed. */
void rpc_client_close(struct rpc_client *client);

/* done runs exactly once if OK is returned, never from inside rpc_call; NO_MEMORY: no done. status OK: body is the
 * response. Else the peer's status with its text in error, or UNREACHABLE, TIMED_OUT, PROTOCOL, CANCELED, LIMIT (too
 * many calls or bytes queued), NO_MEMORY. */
typedef void (*rpc_done_fn)(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                            const struct shoal_error *error);
enum shoal_status rpc_call(struct rpc_client *client, uint16_t method, const void *body, size_t body_len,
                           int64_t timeout_ms, rpc_done_fn done, void *arg);

/* Writes what is queued now as far as the socket takes it; for a last word before rpc_client_close. */
void rpc_client_flush(struct rpc_client *client);

struct rpc_counters {
    uint64_t requests, replies, calls, call_failures, protocol_errors, bytes_in, bytes_out;
    uint64_t ucx_connections;   /* made over UCX, by either side */
    uint64_t local_connections; /* over a local socket, by either side */
    uint64_t fallbacks;         /* dials by TCP because a peer does not offer UCX */
    unsigned connections;
};
void rpc_counters(const struct rpc *rpc, struct rpc_counters *out);

#endif
