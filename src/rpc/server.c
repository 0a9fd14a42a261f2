/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "rpc/rpc_internal.h"

#define LOG_MODULE "rpc"
#include "base/log.h"

struct rpc_connection {
    struct list_node node;
    struct rpc *rpc; /* borrowed */
    struct rpc_stream stream;
    struct list requests; /* struct rpc_request: unanswered */
    unsigned request_count;
    char peer[HELLO_NAME_MAX_BYTES + 1];
};

/* The requests' owners forget them before the connection goes. */
static void connection_destroy(struct rpc_connection *connection)
{
    struct rpc *rpc = connection->rpc;
    struct list_node *node;

    while ((node = list_pop_front(&connection->requests))) {
        struct rpc_request *request = container_of(node, struct rpc_request, node);
        if (request->on_abort)
            request->on_abort(request);
        free(request);
    }
    rpc_stream_release(&connection->stream);
    list_remove(&connection->node);
    rpc->counters.connections--;
    endpoint_released(rpc->endpoint);
    free(connection);
}

static void send_answer(struct rpc_connection *connection, const struct rpc_frame *frame, const void *body,
                        size_t body_len, const void *tail)
{
    connection->rpc->counters.replies++;
    loop_expect_more(connection->rpc->loop);
    switch (rpc_stream_send_parts(&connection->stream, frame, body, body_len, tail)) {
    case SHOAL_LIMIT: /* its calls end by their deadlines, the stream by TCP_USER_TIMEOUT */
        LOG_WARN("%s does not read its answers: one was dropped", connection->peer);
        break;
    case SHOAL_NO_MEMORY: /* it must not wait for what will not come */
        LOG_WARN("%s: no memory for an answer: closing the connection", connection->peer);
        rpc_stream_break(&connection->stream);
        break;
    default:
        break;
    }
}

static void refuse_for_memory(struct rpc_connection *connection, const struct rpc_frame *request)
{
    static const char text[] = "out of memory";
    const struct rpc_frame frame = {.kind = RPC_KIND_RESPONSE,
                                    .method = request->method,
                                    .id = request->id,
                                    .status = SHOAL_NO_MEMORY,
                                    .body_len = sizeof text - 1};

    send_answer(connection, &frame, text, sizeof text - 1, NULL);
}

static void on_frame(void *arg, const struct rpc_frame *frame, const uint8_t *body)
{
    struct rpc_connection *connection = arg;
    struct rpc *rpc = connection->rpc;
    struct rpc_request *request;

    if (frame->kind != RPC_KIND_REQUEST) {
        rpc->counters.protocol_errors++;
        LOG_WARN("%s sent a response on a connection that it opened: closing it", connection->peer);
        connection_destroy(connection);
        return;
    }
    rpc->counters.requests++;
    request = calloc(1, sizeof *request);
    if (!request) {
        refuse_for_memory(connection, frame);
        return;
    }
    request->peer = connection->peer;
    request->body = body;
    request->body_len = frame->body_len;
    request->timeout_ms = frame->timeout_ms;
    request->connection = connection;
    request->id = frame->id;
    request->method = frame->method;
    list_node_init(&request->owner_node);
    list_push_back(&connection->requests, &request->node);
    connection->request_count++;
    if (connection->request_count > RPC_CALLS_PER_CONNECTION_MAX)
        rpc_reply(request, SHOAL_LIMIT, "too many unanswered calls", NULL, 0);
    else if (frame->method >= RPC_METHOD_MAX || !rpc->handlers[frame->method].fn)
        rpc_reply(request, SHOAL_UNSUPPORTED, "unknown method", NULL, 0);
    else
        rpc->handlers[frame->method].fn(rpc->handlers[frame->method].arg, request);
}

static void on_closed(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct rpc_connection *connection = arg;

    if (status == SHOAL_PROTOCOL)
        LOG_WARN("%s: %s", connection->peer, error->message);
    connection_destroy(connection);
}

static const struct rpc_stream_events connection_events = {.frame = on_frame, .closed = on_closed};

static enum shoal_status init_stream(struct rpc_connection *connection, int fd, bool is_ucx)
{
    struct rpc *rpc = connection->rpc;

    if (is_ucx)
        return rpc_stream_init_ucx(&connection->stream, rpc->loop, fd, rpc->request_max_bytes, &connection_events,
                                   connection, &rpc->counters, rpc->carrier, &rpc->driver, NULL);
    return rpc_stream_init(&connection->stream, rpc->loop, fd, rpc->request_max_bytes, &connection_events, connection,
                           &rpc->counters, NULL);
}

static void accept_connection(struct rpc *rpc, int fd, const struct hello *peer, bool is_ucx)
{
    struct rpc_connection *connection = calloc(1, sizeof *connection);

    if (!connection)
        goto refuse;
    connection->rpc = rpc;
    list_init(&connection->requests);
    snprintf(connection->peer, sizeof connection->peer, "%s", peer->name);
    if (init_stream(connection, fd, is_ucx))
        goto refuse;
    list_push_back(&rpc->connections, &connection->node);
    rpc->counters.connections++;
    return;

refuse:
    free(connection);
    close(fd);
    endpoint_released(rpc->endpoint);
}

static void on_accept(void *arg, int fd, const struct hello *peer)
{
    accept_connection(arg, fd, peer, false);
}

static void on_accept_ucx(void *arg, int fd, const struct hello *peer)
{
    accept_connection(arg, fd, peer, true);
}

static void reply(struct rpc_request *request, enum shoal_status status, const void *body, size_t body_len,
                  const void *tail, size_t tail_len, bool is_attachment)
{
    struct rpc_connection *connection = request->connection;
    struct rpc_frame frame = {.kind = RPC_KIND_RESPONSE, .method = request->method, .id = request->id};

    list_remove(&request->node);
    list_remove(&request->owner_node);
    connection->request_count--;
    free(request);
    if (body_len > RPC_RESPONSE_MAX_BYTES || tail_len > RPC_RESPONSE_MAX_BYTES - body_len) {
        status = SHOAL_LIMIT;
        body = "response too large";
        body_len = strlen(body);
        tail_len = 0;
    }
    frame.status = status;
    frame.body_len = (uint32_t)(body_len + tail_len);
    frame.attachment_bytes = is_attachment ? (uint32_t)tail_len : 0;
    send_answer(connection, &frame, body, body_len, tail);
}

void rpc_reply(struct rpc_request *request, enum shoal_status status, const char *message, const void *body,
               size_t body_len)
{
    if (status)
        reply(request, status, message, message ? strlen(message) : 0, NULL, 0, false);
    else
        reply(request, status, body, body_len, NULL, 0, false);
}

void rpc_reply_parts(struct rpc_request *request, const void *body, size_t body_len, const void *tail, size_t tail_len,
                     bool is_attachment)
{
    reply(request, SHOAL_OK, body, body_len, tail, tail_len, is_attachment);
}

void rpc_set_handler(struct rpc *rpc, uint16_t method, rpc_handler_fn fn, void *arg)
{
    rpc->handlers[method].fn = fn;
    rpc->handlers[method].arg = arg;
}

void rpc_set_request_max(struct rpc *rpc, uint32_t max_bytes)
{
    rpc->request_max_bytes = max_bytes < RPC_REQUEST_LARGE_MAX_BYTES ? max_bytes : RPC_REQUEST_LARGE_MAX_BYTES;
}

enum shoal_status rpc_create(struct loop *loop, struct endpoint *endpoint, struct rpc **rpc_out,
                             struct shoal_error *error)
{
    const struct byte_channel_ops *protocol;
    struct ucx_carrier *carrier = NULL;
    struct rpc *rpc;
    enum shoal_status status = byte_channel_find(NULL, &protocol, error);

    if (status == SHOAL_OK)
        status = byte_channel_start(protocol, error);
    if (status)
        return status;
    if (protocol->hello_channel == HELLO_CHANNEL_CONTROL_UCX)
        carrier = ucx_carrier_find(protocol->name);
    rpc = calloc(1, sizeof *rpc);
    if (!rpc) {
        protocol->stop();
        return error_no_memory(error);
    }
    rpc->loop = loop;
    rpc->endpoint = endpoint;
    rpc->protocol = protocol;
    rpc->carrier = carrier;
    rpc->request_max_bytes = RPC_REQUEST_MAX_BYTES;
    list_init(&rpc->connections);
    endpoint_set_handler(endpoint, HELLO_CHANNEL_CONTROL, on_accept, rpc);
    if (carrier)
        endpoint_set_handler(endpoint, HELLO_CHANNEL_CONTROL_UCX, on_accept_ucx, rpc);
    *rpc_out = rpc;
    return SHOAL_OK;
}

static void close_connections(void *arg)
{
    struct rpc *rpc = arg;
    struct list_node *node;

    while ((node = list_first(&rpc->connections)))
        connection_destroy(container_of(node, struct rpc_connection, node));
    ucx_driver_destroy(rpc->driver);
    rpc->driver = NULL;
}

void rpc_destroy(struct rpc *rpc)
{
    if (!rpc)
        return;
    endpoint_set_handler(rpc->endpoint, HELLO_CHANNEL_CONTROL, NULL, NULL);
    if (rpc->carrier)
        endpoint_set_handler(rpc->endpoint, HELLO_CHANNEL_CONTROL_UCX, NULL, NULL);
    loop_call(rpc->loop, close_connections, rpc);
    rpc->protocol->stop();
    free(rpc);
}

void rpc_counters(const struct rpc *rpc, struct rpc_counters *out)
{
    *out = rpc->counters;
}
