/* SPDX-License-Identifier: Apache-2.0 */
/* The dialing side of an endpoint: connect, send our hello, judge the answer. */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/endpoint_internal.h"

enum dial_state {
    DIAL_CONNECTING, /* waiting for the connection */
    DIAL_SENDING,    /* our hello is on its way */
    DIAL_READING,    /* waiting for the answer */
    DIAL_FINISHED,   /* result is known, fn is posted or running */
};

struct endpoint_dial {
    struct list_node node;
    struct endpoint *endpoint; /* borrowed */
    enum dial_state state;
    int fd; /* owned until handed over */
    struct loop_io io;
    struct loop_timer timer;
    struct loop_task task;
    uint64_t wanted;
    int64_t timeout_ms;
    endpoint_dial_fn fn;
    void *arg;
    char address[HOSTPORT_TEXT_BYTES];

    struct hello_reader reader;
    size_t out_len, out_sent;
    uint8_t out[HELLO_MAX_BYTES];

    enum shoal_status status;
    struct shoal_error error;
    struct hello peer;
};

static void deliver(void *arg)
{
    struct endpoint_dial *dial = arg;
    int fd = dial->fd;

    if (dial->status != SHOAL_OK && fd >= 0) {
        close(fd);
        fd = -1;
    }
    dial->fn(dial->arg, dial->status, fd, dial->status == SHOAL_OK ? &dial->peer : NULL,
             dial->status == SHOAL_OK ? NULL : &dial->error);
    free(dial);
}

static void conclude(struct endpoint_dial *dial, enum shoal_status status)
{
    assert(dial->state != DIAL_FINISHED);
    dial->state = DIAL_FINISHED;
    dial->status = status;
    list_remove(&dial->node);
    loop_io_release(&dial->io);
    loop_timer_release(&dial->timer);
    if (status != SHOAL_OK && status != SHOAL_CANCELED)
        endpoint_count(&dial->endpoint->counters.dial_failures);
}

static void finish(struct endpoint_dial *dial, enum shoal_status status)
{
    conclude(dial, status);
    deliver(dial);
}

static void fail_lost(struct endpoint_dial *dial, const char *what, int sys_errno)
{
    error_set(&dial->error, SHOAL_UNREACHABLE, sys_errno, "%s %s: %s", what, dial->address,
              sys_errno ? strerror(sys_errno) : "connection closed by peer during the handshake");
    finish(dial, SHOAL_UNREACHABLE);
}

static void judge_answer(struct endpoint_dial *dial)
{
    enum shoal_status status = hello_decode(dial->reader.data, dial->reader.len, &dial->peer);

    if (status)
        error_set(&dial->error, status, 0, "%s answered the handshake with nonsense", dial->address);
    else
        status = hello_judge_answer(&dial->peer, dial->address, dial->endpoint->cluster, dial->wanted, &dial->error);
    finish(dial, status);
}

static void dial_io(void *arg, unsigned events)
{
    struct endpoint_dial *dial = arg;
    int saved = 0;
    socklen_t len = sizeof saved;

    (void)events;
    if (dial->state == DIAL_CONNECTING) {
        if (getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &saved, &len) != 0)
            saved = errno;
        if (saved) {
            fail_lost(dial, "cannot connect to", saved);
            return;
        }
        dial->state = DIAL_SENDING;
    }
    while (dial->state == DIAL_SENDING) {
        ssize_t sent = send(dial->fd, dial->out + dial->out_sent, dial->out_len - dial->out_sent, MSG_NOSIGNAL);

        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                fail_lost(dial, "handshake with", errno);
            return;
        }
        dial->out_sent += (size_t)sent;
        if (dial->out_sent == dial->out_len) {
            dial->state = DIAL_READING;
            loop_io_set(&dial->io, LOOP_READ);
        }
    }
    switch (hello_reader_step(&dial->reader, dial->fd, &saved)) {
    case HELLO_READ_AGAIN:
        return;
    case HELLO_READ_DONE:
        judge_answer(dial);
        return;
    case HELLO_READ_BAD:
        error_set(&dial->error, SHOAL_PROTOCOL, 0, "%s does not speak our protocol", dial->address);
        finish(dial, SHOAL_PROTOCOL);
        return;
    case HELLO_READ_LOST:
        fail_lost(dial, "handshake with", saved);
        return;
    }
}

static void dial_late(void *arg)
{
    struct endpoint_dial *dial = arg;

    error_set(&dial->error, SHOAL_TIMED_OUT, 0, "%s did not %s within %lld ms", dial->address,
              dial->state == DIAL_CONNECTING ? "accept the connection" : "answer the handshake",
              (long long)dial->timeout_ms);
    finish(dial, SHOAL_TIMED_OUT);
}

static enum shoal_status numeric_address(const char *address, struct sockaddr_storage *addr_out, socklen_t *len_out,
                                         struct shoal_error *error)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    struct hostport hostport;
    enum shoal_status status = hostport_parse(&hostport, address, error);
    char service[8];

    if (status != SHOAL_OK)
        return status;
    snprintf(service, sizeof service, "%u", hostport.port);
    if (!hostport.port || getaddrinfo(hostport.host, service, &hints, &found) != 0 || !found)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s' is not a numeric address with a port", address);
    memcpy(addr_out, found->ai_addr, found->ai_addrlen);
    *len_out = found->ai_addrlen;
    freeaddrinfo(found);
    return SHOAL_OK;
}

static enum shoal_status dial_at(struct endpoint *endpoint, const struct sockaddr *addr, socklen_t len,
                                 const char *address, uint64_t wanted_instance, enum hello_channel channel,
                                 int64_t timeout_ms, endpoint_dial_fn fn, void *arg, struct endpoint_dial **dial_out,
                                 struct shoal_error *error)
{
    struct endpoint_dial *dial;
    struct hello hello;
    enum shoal_status status;
    int one = 1, saved;

    assert(loop_is_current(endpoint->loop));
    if (endpoint->is_closing)
        return error_set(error, SHOAL_CLOSED, 0, "endpoint is closed");
    dial = calloc(1, sizeof *dial);
    if (!dial)
        return error_no_memory(error);
    dial->endpoint = endpoint;
    dial->fd = -1;
    dial->wanted = wanted_instance;
    dial->timeout_ms = timeout_ms;
    dial->fn = fn;
    dial->arg = arg;
    snprintf(dial->address, sizeof dial->address, "%s", address);
    endpoint_fill_hello(endpoint, &hello);
    hello.channel = (uint8_t)channel;
    hello.wanted = wanted_instance;
    dial->out_len = hello_encode(&hello, dial->out);

    list_push_back(&endpoint->dials, &dial->node);
    endpoint_count(&endpoint->counters.dials);
    dial->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (dial->fd < 0) {
        saved = errno;
        status = error_set(error, SHOAL_LIMIT, saved, "cannot open a socket: %s", strerror(saved));
        goto discard;
    }
    status = socket_bind_source(dial->fd, (const struct sockaddr *)&endpoint->bound, addr, error);
    if (status != SHOAL_OK)
        goto discard;
    status = loop_timer_init(&dial->timer, endpoint->loop, dial_late, dial, error);
    if (status != SHOAL_OK)
        goto discard;
    status = loop_io_init(&dial->io, endpoint->loop, dial->fd, dial_io, dial, error);
    if (status != SHOAL_OK)
        goto discard;
    if (addr->sa_family != AF_UNIX)
        setsockopt(dial->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(dial->fd, addr, len) != 0 && errno != EINPROGRESS) {
        saved = errno;
        error_set(&dial->error, SHOAL_UNREACHABLE, saved, "cannot connect to %s: %s", address, strerror(saved));
        conclude(dial, SHOAL_UNREACHABLE);
        loop_post(endpoint->loop, &dial->task, deliver, dial);
    } else {
        loop_io_set(&dial->io, LOOP_WRITE);
        loop_timer_start(&dial->timer, timeout_ms);
    }
    *dial_out = dial;
    return SHOAL_OK;

discard:
    endpoint_count(&endpoint->counters.dial_failures);
    list_remove(&dial->node);
    loop_io_release(&dial->io);
    loop_timer_release(&dial->timer);
    if (dial->fd >= 0)
        close(dial->fd);
    free(dial);
    return status;
}

enum shoal_status endpoint_dial(struct endpoint *endpoint, const char *address, uint64_t wanted_instance,
                                enum hello_channel channel, int64_t timeout_ms, endpoint_dial_fn fn, void *arg,
                                struct endpoint_dial **dial_out, struct shoal_error *error)
{
    struct sockaddr_storage addr;
    socklen_t len = 0;
    enum shoal_status status = numeric_address(address, &addr, &len, error);

    return status != SHOAL_OK ? status
                              : dial_at(endpoint, (const struct sockaddr *)&addr, len, address, wanted_instance,
                                        channel, timeout_ms, fn, arg, dial_out, error);
}

enum shoal_status endpoint_dial_local(struct endpoint *endpoint, uint64_t wanted_instance, enum hello_channel channel,
                                      int64_t timeout_ms, endpoint_dial_fn fn, void *arg,
                                      struct endpoint_dial **dial_out, struct shoal_error *error)
{
    char address[HOSTPORT_TEXT_BYTES];
    struct sockaddr_un addr;
    socklen_t len = endpoint_local_address(wanted_instance, &addr);

    snprintf(address, sizeof address, "local socket of %016llx", (unsigned long long)wanted_instance);
    return dial_at(endpoint, (const struct sockaddr *)&addr, len, address, wanted_instance, channel, timeout_ms, fn,
                   arg, dial_out, error);
}

void endpoint_dial_cancel(struct endpoint_dial *dial)
{
    assert(loop_is_current(dial->endpoint->loop));
    if (dial->state == DIAL_FINISHED)
        return;
    error_set(&dial->error, SHOAL_CANCELED, 0, "connection to %s was canceled", dial->address);
    conclude(dial, SHOAL_CANCELED);
    loop_post(dial->endpoint->loop, &dial->task, deliver, dial);
}

void endpoint_cancel_dials(struct endpoint *endpoint)
{
    struct list_node *node;

    while ((node = list_first(&endpoint->dials))) {
        struct endpoint_dial *dial = container_of(node, struct endpoint_dial, node);

        error_set(&dial->error, SHOAL_CANCELED, 0, "connection to %s was canceled", dial->address);
        finish(dial, SHOAL_CANCELED);
    }
}
