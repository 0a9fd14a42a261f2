/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by endpoint.c (accepting) and endpoint_dial.c (dialing); nobody else includes it. */
#ifndef SHOAL_TRANSPORT_ENDPOINT_INTERNAL_H
#define SHOAL_TRANSPORT_ENDPOINT_INTERNAL_H

#include <sys/un.h>

#include "base/hostport.h"
#include "base/list.h"
#include "transport/endpoint.h"

struct endpoint_handler {
    endpoint_accept_fn fn;
    void *arg;
};

struct endpoint {
    struct loop *loop; /* borrowed */
    int listen_fd, spare_fd;
    int local_fd; /* -1: none */
    uint16_t port;
    uint64_t instance;
    unsigned max_connections, max_handshakes;
    int64_t handshake_timeout_ms;
    char name[HELLO_NAME_MAX_BYTES + 1];
    char cluster[HELLO_CLUSTER_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    struct sockaddr_storage bound; /* address, for dials */

    /* loop thread */
    struct loop_io listen_io, local_io;
    struct loop_timer handshake_timer; /* due when the oldest handshake is */
    struct list handshakes;            /* struct handshake, oldest first */
    struct list dials;                 /* struct endpoint_dial that have not finished */
    struct endpoint_handler handlers[HELLO_CHANNEL_COUNT];
    bool is_closing;

    /* atomic, relaxed: counters only */
    unsigned open_connections, handshake_count;
    struct endpoint_counters counters;
};

void endpoint_count(uint64_t *counter);
/* The name of an instance's local socket: abstract, so it is of one host and one network namespace, and of the rest of
 * the file system nothing is needed. */
socklen_t endpoint_local_address(uint64_t instance, struct sockaddr_un *addr_out);
void endpoint_fill_hello(const struct endpoint *endpoint, struct hello *hello);
void endpoint_cancel_dials(struct endpoint *endpoint);

/* Reads exactly one frame, never a byte behind it. */
struct hello_reader {
    size_t len, frame_len;
    uint8_t data[HELLO_MAX_BYTES];
};
enum hello_read { HELLO_READ_AGAIN, HELLO_READ_DONE, HELLO_READ_BAD, HELLO_READ_LOST };
/* errno_out: set for LOST, 0 means end of stream. */
enum hello_read hello_reader_step(struct hello_reader *reader, int fd, int *errno_out);

#endif
