/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking calls against a real server, and against peers that stall, lie and vanish; by MC_RPC_PROTOCOL, where the
 * liars speak TCP only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "rpc/channel.h"
#include "rpc/rpc.h"
#include "rpc_protocol.h"
#include "wire/hello.h"

#define WAIT_MS 60000
#define SHORT_MS 150
#define THREADS 16
#define NODE_INSTANCE 77

enum { METHOD_ECHO = 1, METHOD_HOLD = 2, METHOD_FAIL = 3, METHOD_BIG = 4, METHOD_PATIENCE = 5, METHOD_ATTACH = 6 };

/* --- a real server --- */

struct server {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct mutex mutex;
    struct cond changed;
    struct rpc_request *held;
    unsigned aborted;
    atomic_uint patience_ms;
    char address[64];
};

static void on_echo(void *arg, struct rpc_request *request)
{
    (void)arg;
    rpc_reply(request, SHOAL_OK, NULL, request->body, request->body_len);
}

static void on_fail(void *arg, struct rpc_request *request)
{
    (void)arg;
    rpc_reply(request, SHOAL_NOT_FOUND, "no such thing", NULL, 0);
}

static void on_big(void *arg, struct rpc_request *request)
{
    uint32_t len;
    uint8_t *body;

    (void)arg;
    memcpy(&len, request->body, sizeof len);
    body = malloc(len);
    for (uint32_t i = 0; i < len; i++)
        body[i] = (uint8_t)(i * 31);
    rpc_reply(request, SHOAL_OK, NULL, body, len);
    free(body);
}

/* The request's length as an attachment, behind a message of four bytes. */
static void on_attach(void *arg, struct rpc_request *request)
{
    uint32_t len;
    uint8_t *value;

    (void)arg;
    memcpy(&len, request->body, sizeof len);
    value = malloc(len + 1);
    for (uint32_t i = 0; i < len; i++)
        value[i] = (uint8_t)(i * 37);
    rpc_reply_parts(request, "head", 4, value, len, true);
    free(value);
}

static void on_patience(void *arg, struct rpc_request *request)
{
    struct server *server = arg;

    server->patience_ms = request->timeout_ms;
    rpc_reply(request, SHOAL_OK, NULL, NULL, 0);
}

static void on_abort(struct rpc_request *request)
{
    struct server *server = request->arg;

    mutex_lock(&server->mutex);
    server->held = NULL;
    server->aborted++;
    cond_broadcast(&server->changed);
    mutex_unlock(&server->mutex);
}

static void on_hold(void *arg, struct rpc_request *request)
{
    struct server *server = arg;

    request->on_abort = on_abort;
    request->arg = server;
    mutex_lock(&server->mutex);
    server->held = request;
    cond_broadcast(&server->changed);
    mutex_unlock(&server->mutex);
}

static void server_start(struct server *server, uint16_t port)
{
    struct endpoint_config config = {.bind_host = "127.0.0.1",
                                     .bind_port = port,
                                     .cluster = "test",
                                     .max_connections = 64,
                                     .max_handshakes = 64,
                                     .handshake_timeout_ms = WAIT_MS};

    assert_int_equal(loop_create("server", &server->loop, NULL), SHOAL_OK);
    config.loop = server->loop;
    assert_int_equal(endpoint_create(&config, &server->endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(server->loop, server->endpoint, &server->rpc, NULL), SHOAL_OK);
    rpc_set_request_max(server->rpc, RPC_REQUEST_LARGE_MAX_BYTES);
    rpc_set_handler(server->rpc, METHOD_ECHO, on_echo, server);
    rpc_set_handler(server->rpc, METHOD_HOLD, on_hold, server);
    rpc_set_handler(server->rpc, METHOD_FAIL, on_fail, server);
    rpc_set_handler(server->rpc, METHOD_BIG, on_big, server);
    rpc_set_handler(server->rpc, METHOD_PATIENCE, on_patience, server);
    rpc_set_handler(server->rpc, METHOD_ATTACH, on_attach, server);
    snprintf(server->address, sizeof server->address, "127.0.0.1:%u", endpoint_port(server->endpoint));
    assert_int_equal(endpoint_start(server->endpoint, server->address, NULL), SHOAL_OK);
    assert_int_equal(endpoint_listen_local(server->endpoint, NULL), SHOAL_OK);
}

static void server_stop(struct server *server)
{
    rpc_destroy(server->rpc);
    endpoint_destroy(server->endpoint);
    loop_destroy(server->loop);
}

static void wait_held(struct server *server)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);

    mutex_lock(&server->mutex);
    while (!server->held)
        assert_true(cond_wait_until(&server->changed, &server->mutex, deadline) || server->held);
    mutex_unlock(&server->mutex);
}

static void wait_aborted(struct server *server)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);

    mutex_lock(&server->mutex);
    while (!server->aborted)
        assert_true(cond_wait_until(&server->changed, &server->mutex, deadline) || server->aborted);
    mutex_unlock(&server->mutex);
}

/* --- a peer that is not what it should be --- */

enum behaviour {
    FINE,             /* echoes */
    SILENT,           /* accepts, and that is all */
    NONSENSE_HELLO,   /* answers the handshake with something else */
    REFUSES,          /* is full */
    OTHER_CLUSTER,    /* accepts, but says that it is of another cluster */
    STALLS,           /* takes the request, never answers */
    DRIPS,            /* answers one byte at a time */
    DRIPS_FOR_EVER,   /* the same, very slowly */
    WRONG_ID,         /* answers another call */
    SENDS_REQUEST,    /* sends a request instead of an answer */
    CLAIMS_TOO_MUCH,  /* a body longer than any answer */
    CLOSES_IN_BODY,   /* in the middle of the answer */
    CLOSES_IN_HEADER, /* in the middle of the answer's header */
    SAYS_MORE,        /* something after the answer */
    POSITIVE_STATUS,  /* a status that is none */
    CLOSES_ON_SECOND, /* the first connection: answers one request, closes with the next; then FINE */
};

struct liar {
    enum behaviour behaviour;
    int listen_fd;
    pthread_t thread;
    atomic_uint connections, requests;
    char address[64];
};

static bool read_all(int fd, void *out, size_t len)
{
    return len == 0 || recv(fd, out, len, MSG_WAITALL) == (ssize_t)len;
}

static void write_all(int fd, const void *data, size_t len)
{
    const uint8_t *at = data;

    while (len) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        at += sent;
        len -= (size_t)sent;
    }
}

static void until_closed(int fd)
{
    uint8_t ignored[4096];

    while (recv(fd, ignored, sizeof ignored, 0) > 0)
        ;
}

static bool liar_shake_hands(struct liar *liar, int fd)
{
    struct hello hello;
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len;

    if (!read_all(fd, frame, HELLO_PREFIX_BYTES) || hello_frame_len(frame, &len) ||
        !read_all(fd, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES) || hello_decode(frame, len, &hello))
        return false;
    if (hello.instance != NODE_INSTANCE)
        return false;
    hello.instance = 4711;
    if (hello.channel == HELLO_CHANNEL_CONTROL_UCX) {
        liar->connections--;
        hello.verdict = HELLO_REFUSE_CHANNEL;
        write_all(fd, frame, hello_encode(&hello, frame));
        return false;
    }
    if (hello.channel != HELLO_CHANNEL_CONTROL)
        return false;
    if (liar->behaviour == REFUSES)
        hello.verdict = HELLO_REFUSE_LIMIT;
    if (liar->behaviour == OTHER_CLUSTER)
        snprintf(hello.cluster, sizeof hello.cluster, "elsewhere");
    if (liar->behaviour == NONSENSE_HELLO)
        memset(frame, 'x', sizeof frame);
    else
        len = hello_encode(&hello, frame);
    write_all(fd, frame, len);
    return true;
}

static void drip(int fd, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        write_all(fd, bytes + i, 1);
}

/* false: the connection is to be closed. */
static bool liar_answer(struct liar *liar, int fd, unsigned connection, unsigned nth)
{
    uint8_t bytes[RPC_FRAME_HEADER_BYTES + RPC_REQUEST_MAX_BYTES + 1];
    enum behaviour behaviour = liar->behaviour;
    struct rpc_frame frame;
    size_t len;

    if (!read_all(fd, bytes, RPC_FRAME_HEADER_BYTES) || rpc_frame_decode(bytes, RPC_REQUEST_MAX_BYTES, &frame) ||
        !read_all(fd, bytes + RPC_FRAME_HEADER_BYTES, frame.body_len))
        return false;
    liar->requests++;
    len = RPC_FRAME_HEADER_BYTES + frame.body_len;
    frame.kind = behaviour == SENDS_REQUEST ? RPC_KIND_REQUEST : RPC_KIND_RESPONSE;
    frame.timeout_ms = 0;
    frame.id += behaviour == WRONG_ID;
    frame.status = behaviour == POSITIVE_STATUS ? 3 : 0;
    if (behaviour == CLAIMS_TOO_MUCH)
        frame.body_len = RPC_RESPONSE_MAX_BYTES + 1;
    if (behaviour == DRIPS_FOR_EVER)
        frame.body_len = 1 << 20;
    rpc_frame_encode(&frame, bytes);
    switch (behaviour) {
    case STALLS:
        until_closed(fd);
        return false;
    case DRIPS:
        drip(fd, bytes, len);
        return true;
    case DRIPS_FOR_EVER:
        for (size_t i = 0; poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 5) == 0; i++)
            write_all(fd, &bytes[i % len], 1);
        return false;
    case CLOSES_IN_BODY:
        write_all(fd, bytes, len - 1);
        return false;
    case CLOSES_IN_HEADER:
        write_all(fd, bytes, RPC_FRAME_HEADER_BYTES - 1);
        return false;
    case SAYS_MORE:
        write_all(fd, bytes, len + 1);
        return true;
    case CLOSES_ON_SECOND:
        if (connection == 1 && nth == 2)
            return false;
        break;
    default:
        break;
    }
    write_all(fd, bytes, len);
    return true;
}

static void *liar_main(void *arg)
{
    struct liar *liar = arg;
    int fd;

    while ((fd = accept(liar->listen_fd, NULL, NULL)) >= 0) {
        unsigned connection = ++liar->connections;
        if (liar->behaviour == SILENT)
            until_closed(fd);
        else if (liar_shake_hands(liar, fd))
            for (unsigned nth = 1; liar_answer(liar, fd, connection, nth); nth++)
                ;
        close(fd);
    }
    return NULL;
}

static void liar_start(struct liar *liar, enum behaviour behaviour)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;

    memset(liar, 0, sizeof *liar);
    liar->behaviour = behaviour;
    liar->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(liar->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(liar->listen_fd, 16), 0);
    assert_int_equal(getsockname(liar->listen_fd, (struct sockaddr *)&address, &len), 0);
    snprintf(liar->address, sizeof liar->address, "127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(pthread_create(&liar->thread, NULL, liar_main, liar), 0);
}

/* The channels must have been destroyed: their idle connections are being served. */
static void liar_stop(struct liar *liar)
{
    shutdown(liar->listen_fd, SHUT_RDWR);
    pthread_join(liar->thread, NULL);
    close(liar->listen_fd);
}

/* --- calls --- */

struct fixture {
    struct server server;
    struct rpc_channels *channels;
    struct buf body;
    struct shoal_error error;
};

static struct rpc_channels *new_channels(unsigned max_idle_per_peer, unsigned max_idle)
{
    struct rpc_channels_config config = {.cluster = "test",
                                         .server_name = "caller:1",
                                         .instance = NODE_INSTANCE,
                                         .max_idle_per_peer = max_idle_per_peer,
                                         .max_idle = max_idle,
                                         .connect_timeout_ms = WAIT_MS};
    struct rpc_channels *channels = NULL;

    assert_int_equal(rpc_channels_create(&config, &channels, NULL), SHOAL_OK);
    return channels;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    mutex_init(&fixture->server.mutex, RANK_STORE);
    cond_init(&fixture->server.changed);
    server_start(&fixture->server, 0);
    fixture->channels = new_channels(0, 0);
    buf_init(&fixture->body, RPC_RESPONSE_MAX_BYTES);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    rpc_channels_destroy(fixture->channels);
    server_stop(&fixture->server);
    cond_release(&fixture->server.changed);
    mutex_release(&fixture->server.mutex);
    buf_release(&fixture->body);
    free(fixture);
    return 0;
}

static enum shoal_status call_in_parts(struct fixture *fixture, const char *address, uint64_t instance, uint16_t method,
                                       const char *text, int64_t timeout_ms, struct shoal_cancel *cancel)
{
    size_t len = strlen(text), half = len / 2;
    struct iovec parts[3] = {
        {(void *)(uintptr_t)text, half}, {NULL, 0}, {(void *)(uintptr_t)(text + half), len - half}};
    struct call call = {deadline_after_ms(timeout_ms), cancel};

    memset(&fixture->error, 0, sizeof fixture->error);
    return rpc_channels_call(fixture->channels, address, instance, method, parts, 3, &call, &fixture->body,
                             &fixture->error);
}

static enum shoal_status call_text(struct fixture *fixture, const char *address, const char *text)
{
    return call_in_parts(fixture, address, 0, METHOD_ECHO, text, WAIT_MS, NULL);
}

static enum shoal_status call_once(struct fixture *fixture, const char *address, const char *text)
{
    struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
    struct call call = {deadline_after_ms(WAIT_MS), NULL};

    return rpc_channels_call_once(fixture->channels, address, 0, METHOD_ECHO, &part, 1, &call, &fixture->body,
                                  &fixture->error);
}

static void expect_echo(struct fixture *fixture, const char *address, const char *text)
{
    if (call_text(fixture, address, text) != SHOAL_OK)
        fail_msg("%s", fixture->error.message);
    assert_int_equal(fixture->body.len, strlen(text));
    assert_string_equal((const char *)fixture->body.data, text);
}

static void expect_message(const struct fixture *fixture, const char *address, const char *part)
{
    assert_memory_equal(fixture->error.message, address, strlen(address));
    if (!strstr(fixture->error.message, part))
        fail_msg("the message does not say '%s': %s", part, fixture->error.message);
}

static void answers_come_back_on_one_connection(void **state)
{
    struct fixture *fixture = *state;
    struct rpc_channels_counters counters;
    const char *address = fixture->server.address;

    for (unsigned i = 0; i < 5; i++)
        expect_echo(fixture, address, "hello, neighbour");
    expect_echo(fixture, address, "");
    assert_int_equal(call_in_parts(fixture, address, 0, METHOD_FAIL, "", WAIT_MS, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(fixture->error.status, SHOAL_NOT_FOUND);
    expect_message(fixture, address, "no such thing");
    assert_string_equal((const char *)fixture->body.data, "no such thing"); /* the peer's own words */
    assert_int_equal(call_in_parts(fixture, address, 0, 9, "", WAIT_MS, NULL), SHOAL_UNSUPPORTED);
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.calls, 8);
    assert_int_equal(counters.failures, 2);
    assert_int_equal(counters.dials, 1);
    assert_int_equal(counters.idle, 1);
    rpc_channels_forget(fixture->channels, address);
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.idle, 0);
    expect_echo(fixture, address, "again");
}

static void patience_travels(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(call_in_parts(fixture, fixture->server.address, 0, METHOD_PATIENCE, "", WAIT_MS, NULL), SHOAL_OK);
    assert_in_range(fixture->server.patience_ms, 1, WAIT_MS);
    assert_int_equal(call_in_parts(fixture, fixture->server.address, 0, METHOD_PATIENCE, "", -1, NULL), SHOAL_OK);
    assert_int_equal(fixture->server.patience_ms, UINT32_MAX);
}

static void long_answers_and_requests(void **state)
{
    static const uint32_t sizes[] = {1, (64 << 10) - RPC_FRAME_HEADER_BYTES, (64 << 10) - RPC_FRAME_HEADER_BYTES + 1,
                                     1000003, RPC_RESPONSE_MAX_BYTES};
    struct fixture *fixture = *state;
    struct call call = {deadline_after_ms(WAIT_MS), NULL};
    uint8_t *long_request = calloc(1, RPC_REQUEST_LARGE_MAX_BYTES + 1);
    struct iovec part = {long_request, RPC_REQUEST_LARGE_MAX_BYTES};
    struct iovec too_many[RPC_CHANNELS_PARTS_MAX + 1] = {{0}};
    struct buf small;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct iovec size = {(void *)(uintptr_t)&sizes[i], sizeof sizes[i]};
        assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_BIG, &size, 1, &call,
                                           &fixture->body, &fixture->error),
                         SHOAL_OK);
        assert_int_equal(fixture->body.len, sizes[i]);
        for (uint32_t at = 0; at < sizes[i]; at++)
            if (fixture->body.data[at] != (uint8_t)(at * 31))
                fail_msg("byte %u of %u is wrong", at, sizes[i]);
    }
    long_request[RPC_REQUEST_LARGE_MAX_BYTES - 1] = 9;
    assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_ECHO, &part, 1, &call,
                                       &fixture->body, &fixture->error),
                     SHOAL_OK);
    assert_int_equal(fixture->body.len, RPC_REQUEST_LARGE_MAX_BYTES);
    assert_memory_equal(fixture->body.data, long_request, RPC_REQUEST_LARGE_MAX_BYTES);
    part.iov_len++;
    assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_ECHO, &part, 1, &call,
                                       &fixture->body, &fixture->error),
                     SHOAL_LIMIT);
    assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_ECHO, too_many,
                                       RPC_CHANNELS_PARTS_MAX + 1, &call, &fixture->body, &fixture->error),
                     SHOAL_INVALID_ARGUMENT);
    part.iov_len = 100; /* an answer that the caller has no room for */
    buf_init(&small, 50);
    assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_ECHO, &part, 1, &call,
                                       &small, &fixture->error),
                     SHOAL_LIMIT);
    buf_release(&small);
    free(long_request);
}

static enum shoal_status call_attached(struct fixture *fixture, uint32_t len, struct rpc_sink *sink)
{
    struct call call = {deadline_after_ms(WAIT_MS), NULL};
    struct iovec part = {&len, sizeof len};

    return rpc_channels_call_into(fixture->channels, fixture->server.address, 0, METHOD_ATTACH, &part, 1, &call,
                                  &fixture->body, sink, &fixture->error);
}

static void attachments_go_where_they_belong(void **state)
{
    static const uint32_t sizes[] = {1, 8188, 8189, 70000, 1000003};
    struct fixture *fixture = *state;
    uint8_t *memory = malloc(1000004);
    struct call call = {deadline_after_ms(WAIT_MS), NULL};
    uint32_t len = 5;
    struct iovec part = {&len, sizeof len};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int allocates = 0; allocates < 2; allocates++) {
            struct rpc_sink sink = {.memory = allocates ? NULL : memory, .room_bytes = sizes[i]};

            memory[sizes[i]] = 0xee;
            assert_int_equal(call_attached(fixture, sizes[i], &sink), SHOAL_OK);
            assert_int_equal(fixture->body.len, 4);
            assert_memory_equal(fixture->body.data, "head", 4);
            assert_true(sink.len_bytes == sizes[i] && !sink.is_lost);
            for (uint32_t at = 0; at < sizes[i]; at++)
                assert_true(((uint8_t *)sink.memory)[at] == (uint8_t)(at * 37));
            assert_int_equal(memory[sizes[i]], 0xee);
            if (allocates)
                free(sink.memory);
        }
    }
    for (size_t i = 0; i < 2; i++) { /* too long: nothing is touched, and the next call finds its own answer */
        struct rpc_sink sink = {.memory = memory, .room_bytes = 10};

        memory[0] = memory[10] = 0xee;
        assert_int_equal(call_attached(fixture, i ? 70000 : 11, &sink), SHOAL_OK);
        assert_true(sink.is_lost && sink.len_bytes == (i ? 70000 : 11) && memory[0] == 0xee && memory[10] == 0xee);
    }
    assert_int_equal(rpc_channels_call(fixture->channels, fixture->server.address, 0, METHOD_ATTACH, &part, 1, &call,
                                       &fixture->body, &fixture->error),
                     SHOAL_PROTOCOL); /* nobody asked for one */
    free(memory);
}

static void instances_are_told_apart(void **state)
{
    struct fixture *fixture = *state;
    const char *address = fixture->server.address;
    uint64_t instance = endpoint_instance(fixture->server.endpoint);

    assert_int_equal(call_in_parts(fixture, address, instance, METHOD_ECHO, "a", WAIT_MS, NULL), SHOAL_OK);
    assert_int_equal(call_in_parts(fixture, address, instance + 1, METHOD_ECHO, "a", WAIT_MS, NULL), SHOAL_UNREACHABLE);
    expect_message(fixture, address, "another process");
    assert_int_equal(call_in_parts(fixture, address, 0, METHOD_ECHO, "a", WAIT_MS, NULL), SHOAL_OK);
}

static void a_restarted_server_is_called_again(void **state)
{
    struct fixture *fixture = *state;
    struct rpc_channels_counters counters;
    uint16_t port = endpoint_port(fixture->server.endpoint);

    expect_echo(fixture, fixture->server.address, "before");
    server_stop(&fixture->server);
    server_start(&fixture->server, port);
    expect_echo(fixture, fixture->server.address, "after");
    server_stop(&fixture->server);
    server_start(&fixture->server, port);
    assert_int_equal(call_once(fixture, fixture->server.address, "seen to be stale before it is used"), SHOAL_OK);
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.dials, 3);
    assert_int_equal(counters.idle, 1);
}

static void nobody_there(void **state)
{
    struct fixture *fixture = *state;
    char address[64];

    snprintf(address, sizeof address, "%s", fixture->server.address);
    server_stop(&fixture->server);
    assert_int_equal(call_text(fixture, address, ""), SHOAL_UNREACHABLE);
    expect_message(fixture, address, "onnect");
    assert_int_equal(fixture->body.len, 0);
    assert_int_equal(call_text(fixture, "localhost:1", ""), SHOAL_ADDRESS);
    expect_message(fixture, "localhost:1", "numeric");
    assert_int_equal(call_text(fixture, "127.0.0.1", ""), SHOAL_ADDRESS);
    assert_int_equal(call_text(fixture, "", ""), SHOAL_ADDRESS);
    server_start(&fixture->server, 0);
}

static void idle_connections_are_bounded(void **state)
{
    struct fixture *fixture = *state;
    struct rpc_channels_counters counters;
    struct server other = {0};

    server_start(&other, 0);
    rpc_channels_destroy(fixture->channels);
    fixture->channels = new_channels(0, 1);
    expect_echo(fixture, fixture->server.address, "a");
    expect_echo(fixture, other.address, "b");
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.idle, 1);
    expect_echo(fixture, other.address, "b");
    expect_echo(fixture, fixture->server.address, "a");
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.idle, 1);
    assert_int_equal(counters.dials, 3);
    server_stop(&other);
}

struct lie {
    enum behaviour behaviour;
    enum shoal_status status;
    int64_t timeout_ms;
    const char *says;
};

/* Whatever the peer does, the call ends, says why, and leaves no connection behind that could confuse the next. */
static void lies_and_silence(void **state)
{
    static const struct lie lies[] = {
        {SILENT, SHOAL_TIMED_OUT, SHORT_MS, "handshake"},
        {STALLS, SHOAL_TIMED_OUT, SHORT_MS, "deadline"},
        {DRIPS_FOR_EVER, SHOAL_TIMED_OUT, SHORT_MS, "deadline"},
        {NONSENSE_HELLO, SHOAL_PROTOCOL, WAIT_MS, "protocol"},
        {REFUSES, SHOAL_LIMIT, WAIT_MS, "too many connections"},
        {OTHER_CLUSTER, SHOAL_UNREACHABLE, WAIT_MS, "another process"},
        {WRONG_ID, SHOAL_PROTOCOL, WAIT_MS, "no call"},
        {SENDS_REQUEST, SHOAL_PROTOCOL, WAIT_MS, "malformed"},
        {CLAIMS_TOO_MUCH, SHOAL_PROTOCOL, WAIT_MS, "oversized"},
        {CLOSES_IN_BODY, SHOAL_UNREACHABLE, WAIT_MS, "closed"},
        {CLOSES_IN_HEADER, SHOAL_UNREACHABLE, WAIT_MS, "closed"},
        {DRIPS, SHOAL_OK, WAIT_MS, NULL},
        {SAYS_MORE, SHOAL_OK, WAIT_MS, NULL},
        {POSITIVE_STATUS, SHOAL_PROTOCOL, WAIT_MS, "abc"},
        {FINE, SHOAL_OK, WAIT_MS, NULL},
    };
    struct fixture *fixture = *state;

    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const struct lie *lie = &lies[i];
        struct rpc_channels_counters counters;
        enum shoal_status status;
        struct liar liar;

        liar_start(&liar, lie->behaviour);
        status = call_in_parts(fixture, liar.address, 0, METHOD_ECHO, "abc", lie->timeout_ms, NULL);
        if (status != lie->status)
            fail_msg("behaviour %d: %s: %s", lie->behaviour, shoal_status_name(status), fixture->error.message);
        if (lie->says)
            expect_message(fixture, liar.address, lie->says);
        else
            assert_string_equal((const char *)fixture->body.data, "abc");
        rpc_channels_counters(fixture->channels, &counters);
        assert_int_equal(counters.idle,
                         lie->behaviour == FINE || lie->behaviour == DRIPS || lie->behaviour == POSITIVE_STATUS);
        /* Over UCX the time may end between the dial for that, which is not counted, and the next. */
        assert_in_range(liar.connections, lie->status != SHOAL_TIMED_OUT, 1);
        rpc_channels_forget(fixture->channels, liar.address);
        liar_stop(&liar);
    }
}

static void what_died_while_idle_is_replaced_once(void **state)
{
    struct fixture *fixture = *state;
    struct liar liar;

    liar_start(&liar, CLOSES_ON_SECOND);
    expect_echo(fixture, liar.address, "first");
    expect_echo(fixture, liar.address, "second"); /* sent twice */
    assert_int_equal(liar.requests, 3);
    assert_int_equal(liar.connections, 2);
    rpc_channels_forget(fixture->channels, liar.address);
    liar_stop(&liar);

    liar_start(&liar, CLOSES_ON_SECOND);
    expect_echo(fixture, liar.address, "first");
    assert_int_equal(call_once(fixture, liar.address, "second"), SHOAL_UNREACHABLE);
    assert_int_equal(liar.requests, 2);
    expect_echo(fixture, liar.address, "third");
    rpc_channels_forget(fixture->channels, liar.address);
    liar_stop(&liar);
}

/* --- cancellation --- */

struct canceling {
    struct fixture *fixture;
    const char *address;
    uint16_t method;
    struct shoal_cancel *cancel;
    enum shoal_status status;
};

static void *canceled_call(void *arg)
{
    struct canceling *canceling = arg;

    canceling->status =
        call_in_parts(canceling->fixture, canceling->address, 0, canceling->method, "", -1, canceling->cancel);
    return NULL;
}

static void cancel_ends_a_call(void **state)
{
    struct fixture *fixture = *state;
    struct canceling canceling = {.fixture = fixture, .address = fixture->server.address, .method = METHOD_HOLD};
    struct rpc_channels_counters counters;
    pthread_t thread;

    assert_int_equal(shoal_cancel_create(&canceling.cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&thread, NULL, canceled_call, &canceling), 0);
    wait_held(&fixture->server);
    shoal_cancel_trigger(canceling.cancel);
    pthread_join(thread, NULL);
    assert_int_equal(canceling.status, SHOAL_CANCELED);
    expect_message(fixture, fixture->server.address, "canceled");
    wait_aborted(&fixture->server); /* the peer notices */
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.idle, 0);
    assert_int_equal(call_in_parts(fixture, fixture->server.address, 0, METHOD_ECHO, "", WAIT_MS, canceling.cancel),
                     SHOAL_CANCELED);
    expect_echo(fixture, fixture->server.address, "others go on");
    shoal_cancel_destroy(canceling.cancel);
}

static void cancel_ends_a_handshake(void **state)
{
    struct fixture *fixture = *state;
    struct canceling canceling = {.fixture = fixture, .method = METHOD_ECHO};
    int64_t deadline = deadline_after_ms(WAIT_MS);
    pthread_t thread;
    struct liar liar;

    liar_start(&liar, SILENT);
    canceling.address = liar.address;
    assert_int_equal(shoal_cancel_create(&canceling.cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&thread, NULL, canceled_call, &canceling), 0);
    while (!liar.connections && !deadline_is_past(deadline))
        poll(NULL, 0, 1);
    shoal_cancel_trigger(canceling.cancel);
    pthread_join(thread, NULL);
    assert_int_equal(canceling.status, SHOAL_CANCELED);
    shoal_cancel_destroy(canceling.cancel);
    liar_stop(&liar);
}

/* --- many threads --- */

struct caller {
    struct fixture *fixture;
    pthread_t thread;
    unsigned index, calls;
    char problem[640];
};

static void *many_calls(void *arg)
{
    struct caller *caller = arg;
    struct shoal_error error = {0};
    struct buf body;

    buf_init(&body, 1 << 16);
    for (unsigned i = 0; i < caller->calls && !caller->problem[0]; i++) {
        char text[3000];
        int len = snprintf(text, sizeof text, "%u:%u:", caller->index, i);
        struct iovec parts[2] = {{text, (size_t)len}, {text, sizeof text - (i % 2900)}};
        struct call call = {deadline_after_ms(WAIT_MS), NULL};
        enum shoal_status status;

        memset(text + len, 'a' + (int)caller->index, sizeof text - (size_t)len);
        status = rpc_channels_call(caller->fixture->channels, caller->fixture->server.address, 0, METHOD_ECHO, parts, 2,
                                   &call, &body, &error);
        if (status != SHOAL_OK)
            snprintf(caller->problem, sizeof caller->problem, "%s", error.message);
        else if (body.len != parts[0].iov_len + parts[1].iov_len || memcmp(body.data, text, (size_t)len) != 0 ||
                 memcmp(body.data + len, text, parts[1].iov_len) != 0)
            snprintf(caller->problem, sizeof caller->problem, "somebody else's answer");
        if (i % 64 == 63)
            rpc_channels_forget(caller->fixture->channels, caller->fixture->server.address);
    }
    buf_release(&body);
    return NULL;
}

static void many_threads_share_the_connections(void **state)
{
    struct fixture *fixture = *state;
    struct rpc_channels_counters counters;
    struct caller callers[THREADS];

    rpc_channels_destroy(fixture->channels);
    fixture->channels = new_channels(THREADS / 2, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){.fixture = fixture, .index = i, .calls = 200};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, many_calls, &callers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(callers[i].thread, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        if (callers[i].problem[0])
            fail_msg("thread %u: %s", i, callers[i].problem);
    rpc_channels_counters(fixture->channels, &counters);
    assert_int_equal(counters.calls, THREADS * 200);
    assert_int_equal(counters.failures, 0);
    assert_in_range(counters.idle, 0, THREADS / 2);
}

static void connections_come_from_the_source(void **state)
{
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
    struct byte_channel *channel;
    struct shoal_error error;
    char address[64];

    (void)state;
    assert_int_equal(bind(listener, (struct sockaddr *)&addr, len), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&addr, &len), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(addr.sin_port));
    assert_int_equal(byte_channel_tcp.dial(address, "127.0.0.53:9", &call, &channel, &error), SHOAL_OK);
    fd = accept(listener, (struct sockaddr *)&addr, &len);
    assert_true(fd >= 0);
    assert_int_equal(ntohl(addr.sin_addr.s_addr), 0x7f000035);
    byte_channel_tcp.close(channel);
    close(fd);
    assert_int_equal(byte_channel_tcp.dial(address, "192.0.2.1:9", &call, &channel, &error), SHOAL_UNREACHABLE);
    assert_non_null(strstr(error.message, "cannot send from 192.0.2.1"));
    assert_int_equal(byte_channel_tcp.dial(address, "here", &call, &channel, &error), SHOAL_ADDRESS);
    close(listener);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_come_from_the_source),
        TEST(answers_come_back_on_one_connection),
        TEST(patience_travels),
        TEST(long_answers_and_requests),
        TEST(attachments_go_where_they_belong),
        TEST(instances_are_told_apart),
        TEST(a_restarted_server_is_called_again),
        TEST(nobody_there),
        TEST(idle_connections_are_bounded),
        TEST(lies_and_silence),
        TEST(what_died_while_idle_is_replaced_once),
        TEST(cancel_ends_a_call),
        TEST(cancel_ends_a_handshake),
        TEST(many_threads_share_the_connections),
    };
    if (!rpc_protocol_is_usable())
        return 77;
    return cmocka_run_group_tests_name("rpc_channel", tests, NULL, NULL);
}
