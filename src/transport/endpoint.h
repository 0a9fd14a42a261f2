/* SPDX-License-Identifier: Apache-2.0 */
/* The one listening port of a node. Accepts connections, shakes hands (bounded in size, time and number) and hands each
 * descriptor to the handler of its channel; also dials peers. Both channels (data: transport, control: rpc) share it,
 * so a node needs one open port.
 *
 * All functions run on the endpoint's loop thread, except create, destroy and the read-only ones. */
#ifndef SHOAL_TRANSPORT_ENDPOINT_H
#define SHOAL_TRANSPORT_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include <shoal/status.h>

#include "loop/loop.h"
#include "wire/hello.h"

struct endpoint;

struct endpoint_config {
    struct loop *loop;            /* borrowed; outlives the endpoint */
    const char *bind_host;        /* address to bind; copied */
    uint16_t bind_port;           /* 0: a free one */
    const char *cluster;          /* copied */
    unsigned max_connections;     /* accepted and alive at once (a handler returns its share by endpoint_released) */
    unsigned max_handshakes;      /* unfinished at once; the oldest is dropped beyond that; 0: 128 */
    int64_t handshake_timeout_ms; /* 0: 5000 */
};

/* Binds and listens, but accepts only after endpoint_start. ADDRESS: host is not ours; NAME_IN_USE: port is taken. */
enum shoal_status endpoint_create(const struct endpoint_config *config, struct endpoint **endpoint_out,
                                  struct shoal_error *error);
/* Not from the loop thread. Ends handshakes and dials (their callbacks run with CANCELED). NULL is allowed. */
void endpoint_destroy(struct endpoint *endpoint);

uint16_t endpoint_port(const struct endpoint *endpoint);
const char *endpoint_address(const struct endpoint *endpoint); /* "ip:port" that is bound */
const char *endpoint_name(const struct endpoint *endpoint);    /* as given to endpoint_start; "" before */
uint64_t endpoint_instance(const struct endpoint *endpoint);   /* random, made at create */

/* Any thread, before start: name is announced in every hello. Begins to accept. */
enum shoal_status endpoint_start(struct endpoint *endpoint, const char *server_name, struct shoal_error *error);

/* Takes over fd (non-blocking, TCP_NODELAY set unless it came by the local socket), owned by the handler from now on;
 * on the endpoint's loop thread. The handler calls endpoint_released when it has closed it. */
typedef void (*endpoint_accept_fn)(void *arg, int fd, const struct hello *peer);
/* Any thread. Opens the local socket of this node, for HELLO_CHANNEL_LOCAL and HELLO_CHANNEL_CONTROL; it stays until
 * the endpoint goes. LIMIT, ADDRESS. A second call does nothing. */
enum shoal_status endpoint_listen_local(struct endpoint *endpoint, struct shoal_error *error);
/* Any thread. fn NULL: removes; when it returns the handler is not running. Connections for a channel without handler
 * are refused with HELLO_REFUSE_CHANNEL. */
void endpoint_set_handler(struct endpoint *endpoint, enum hello_channel channel, endpoint_accept_fn fn, void *arg);
/* Any thread. An accepted connection was closed. */
void endpoint_released(struct endpoint *endpoint);

/* Dials a peer, from the address that is bound. fn runs exactly once on the loop thread, never from inside
 * endpoint_dial: OK with a connected descriptor (owned by the callee), or UNREACHABLE (refused, no route, reset, name
 * of another instance), TIMED_OUT, PROTOCOL, LIMIT (peer is full), CANCELED, with error filled. wanted_instance 0: any.
 * Loop thread only. */
typedef void (*endpoint_dial_fn)(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                                 const struct shoal_error *error);
struct endpoint_dial;
enum shoal_status endpoint_dial(struct endpoint *endpoint, const char *address, uint64_t wanted_instance,
                                enum hello_channel channel, int64_t timeout_ms, endpoint_dial_fn fn, void *arg,
                                struct endpoint_dial **dial_out, struct shoal_error *error);
/* The same over the local socket of an instance, for HELLO_CHANNEL_LOCAL or HELLO_CHANNEL_CONTROL. */
enum shoal_status endpoint_dial_local(struct endpoint *endpoint, uint64_t wanted_instance, enum hello_channel channel,
                                      int64_t timeout_ms, endpoint_dial_fn fn, void *arg,
                                      struct endpoint_dial **dial_out, struct shoal_error *error);
/* Whether somebody listens at the local socket of an instance: it lives on this host, in this network namespace. */
bool endpoint_has_local(uint64_t instance);
/* Any thread, without an endpoint: a descriptor that is connected to the local socket of an instance, before the
 * handshake; non-blocking. -1: nobody listens there, or it is busy. */
int endpoint_connect_local(uint64_t instance);
/* fn runs soon with CANCELED (or with its result, if that was faster). Loop thread only. */
void endpoint_dial_cancel(struct endpoint_dial *dial);

struct endpoint_counters {
    uint64_t accepted, refused, handshake_timeouts, protocol_errors, dials, dial_failures;
    unsigned open_connections, open_handshakes;
};
void endpoint_counters(const struct endpoint *endpoint, struct endpoint_counters *out); /* any thread */

#endif
