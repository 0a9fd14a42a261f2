/* SPDX-License-Identifier: Apache-2.0 */
/* Control calls between two endpoints of this process: answers, deadlines, aborts, limits, hostile bytes; by
 * MC_RPC_PROTOCOL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/mutex.h"
#include "rpc/channel.h"
#include "rpc/rpc.h"
#include "rpc_protocol.h"
#include "stranger.h"

#define WAIT_MS 60000

enum { METHOD_ECHO = 1, METHOD_HOLD = 2, METHOD_FAIL = 3 };

struct side {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
};

struct fixture {
    struct side server, client;
    struct mutex mutex;
    struct cond changed;
    struct rpc_request *held;
    unsigned aborted;
    char address[64];
    struct rpc_client *handle;
};

struct outcome {
    struct fixture *fixture;
    bool is_done;
    unsigned times;
    enum shoal_status status;
    char body[256];
    struct shoal_error error;
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

static void on_abort(struct rpc_request *request)
{
    struct fixture *fixture = request->arg;

    mutex_lock(&fixture->mutex);
    fixture->held = NULL;
    fixture->aborted++;
    cond_broadcast(&fixture->changed);
    mutex_unlock(&fixture->mutex);
}

static void on_hold(void *arg, struct rpc_request *request)
{
    struct fixture *fixture = arg;

    request->on_abort = on_abort;
    request->arg = fixture;
    mutex_lock(&fixture->mutex);
    fixture->held = request;
    cond_broadcast(&fixture->changed);
    mutex_unlock(&fixture->mutex);
}

static void side_init(struct side *side, const char *name)
{
    struct endpoint_config config = {
        .bind_host = "127.0.0.1", .cluster = "test", .max_connections = 64, .max_handshakes = 16};

    assert_int_equal(loop_create(name, &side->loop, NULL), SHOAL_OK);
    config.loop = side->loop;
    assert_int_equal(endpoint_create(&config, &side->endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(side->loop, side->endpoint, &side->rpc, NULL), SHOAL_OK);
}

static void side_release(struct side *side)
{
    rpc_destroy(side->rpc);
    endpoint_destroy(side->endpoint);
    loop_destroy(side->loop);
}

static void open_client(void *arg)
{
    struct fixture *fixture = arg;

    assert_int_equal(rpc_client_open(fixture->client.rpc, fixture->address, 0, 2000, &fixture->handle, NULL), SHOAL_OK);
}

static void close_client(void *arg)
{
    struct fixture *fixture = arg;

    rpc_client_close(fixture->handle);
    fixture->handle = NULL;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    mutex_init(&fixture->mutex, RANK_STORE);
    cond_init(&fixture->changed);
    side_init(&fixture->server, "server");
    side_init(&fixture->client, "client");
    rpc_set_handler(fixture->server.rpc, METHOD_ECHO, on_echo, fixture);
    rpc_set_handler(fixture->server.rpc, METHOD_HOLD, on_hold, fixture);
    rpc_set_handler(fixture->server.rpc, METHOD_FAIL, on_fail, fixture);
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u", endpoint_port(fixture->server.endpoint));
    assert_int_equal(endpoint_start(fixture->server.endpoint, fixture->address, NULL), SHOAL_OK);
    assert_int_equal(endpoint_listen_local(fixture->server.endpoint, NULL), SHOAL_OK);
    assert_int_equal(endpoint_start(fixture->client.endpoint, "127.0.0.1:1", NULL), SHOAL_OK);
    loop_call(fixture->client.loop, open_client, fixture);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    loop_call(fixture->client.loop, close_client, fixture);
    side_release(&fixture->client);
    side_release(&fixture->server);
    cond_release(&fixture->changed);
    mutex_release(&fixture->mutex);
    free(fixture);
    return 0;
}

static void on_done(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                    const struct shoal_error *error)
{
    struct outcome *outcome = arg;

    mutex_lock(&outcome->fixture->mutex);
    outcome->is_done = true;
    outcome->times++;
    outcome->status = status;
    if (error)
        outcome->error = *error;
    if (body_len < sizeof outcome->body && body)
        memcpy(outcome->body, body, body_len);
    cond_broadcast(&outcome->fixture->changed);
    mutex_unlock(&outcome->fixture->mutex);
}

struct call_args {
    struct fixture *fixture;
    uint16_t method;
    const char *body;
    int64_t timeout_ms;
    struct outcome *outcome;
};

static void call_on_loop(void *arg)
{
    struct call_args *args = arg;

    assert_int_equal(rpc_call(args->fixture->handle, args->method, args->body, strlen(args->body), args->timeout_ms,
                              on_done, args->outcome),
                     SHOAL_OK);
    assert_int_equal(args->outcome->times, 0); /* never from inside the call */
}

static void call(struct fixture *fixture, uint16_t method, const char *body, int64_t timeout_ms,
                 struct outcome *outcome)
{
    struct call_args args = {
        .fixture = fixture, .method = method, .body = body, .timeout_ms = timeout_ms, .outcome = outcome};

    *outcome = (struct outcome){.fixture = fixture};
    loop_call(fixture->client.loop, call_on_loop, &args);
}

static void wait_until(struct fixture *fixture, const bool *flag)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);

    mutex_lock(&fixture->mutex);
    while (!*flag)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline) || *flag);
    mutex_unlock(&fixture->mutex);
}

static void wait_held(struct fixture *fixture)
{
    int64_t deadline = deadline_after_ms(WAIT_MS);

    mutex_lock(&fixture->mutex);
    while (!fixture->held)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline) || fixture->held);
    mutex_unlock(&fixture->mutex);
}

static void answers_come_back(void **state)
{
    struct fixture *fixture = *state;
    struct outcome echo, failure, unknown;

    call(fixture, METHOD_ECHO, "hello", WAIT_MS, &echo);
    call(fixture, METHOD_FAIL, "", WAIT_MS, &failure);
    call(fixture, 9, "", WAIT_MS, &unknown);
    wait_until(fixture, &echo.is_done);
    wait_until(fixture, &failure.is_done);
    wait_until(fixture, &unknown.is_done);
    assert_int_equal(echo.status, SHOAL_OK);
    assert_string_equal(echo.body, "hello");
    assert_int_equal(failure.status, SHOAL_NOT_FOUND);
    assert_non_null(strstr(failure.error.message, "no such thing"));
    assert_non_null(strstr(failure.error.message, fixture->address)); /* says who */
    assert_int_equal(unknown.status, SHOAL_UNSUPPORTED);
}

static uint64_t local_connections_of(const struct side *side)
{
    return rpc_counters_of(side->rpc, side->loop).local_connections;
}

static void expect_echo(struct fixture *fixture)
{
    struct outcome outcome;

    call(fixture, METHOD_ECHO, "ping", WAIT_MS, &outcome);
    wait_until(fixture, &outcome.is_done);
    assert_int_equal(outcome.status, SHOAL_OK);
    assert_string_equal(outcome.body, "ping");
}

static void serve_echo(void *arg)
{
    struct side *side = arg;

    rpc_set_handler(side->rpc, METHOD_ECHO, on_echo, NULL);
}

/* The same by a blocking call, with channels of its own. */
static void expect_blocking_echo(const struct fixture *fixture, const struct byte_channel_ops *ops,
                                 unsigned local_dials)
{
    struct rpc_channels_config config = {
        .cluster = "test", .server_name = "caller:1", .instance = 77, .ops = ops, .connect_timeout_ms = WAIT_MS};
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct iovec part = {(void *)(uintptr_t) "ping", 4};
    struct rpc_channels_counters counters;
    struct rpc_channels *channels;
    struct buf answer;

    buf_init(&answer, 64);
    assert_int_equal(rpc_channels_create(&config, &channels, NULL), SHOAL_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rpc_channels_call(channels, fixture->address, 0, METHOD_ECHO, &part, 1, &call, &answer, NULL),
                         SHOAL_OK);
        assert_string_equal((const char *)answer.data, "ping");
    }
    rpc_channels_counters(channels, &counters);
    assert_int_equal(counters.dials, 1);
    assert_int_equal(counters.local_dials, local_dials);
    assert_int_equal(counters.fallbacks, 0);
    rpc_channels_destroy(channels);
    buf_release(&answer);
}

static void the_local_socket_is_preferred(void **state)
{
    struct fixture *fixture = *state;
    const char *protocol = getenv("MC_RPC_PROTOCOL");

    expect_echo(fixture);
    assert_int_equal(local_connections_of(&fixture->client), !protocol);
    assert_int_equal(local_connections_of(&fixture->server), !protocol);
    expect_blocking_echo(fixture, &byte_channel_tcp, 0);
    assert_int_equal(local_connections_of(&fixture->server), !protocol);
    expect_blocking_echo(fixture, &byte_channel_auto, 1);
    assert_int_equal(local_connections_of(&fixture->server), !protocol + 1);
}

/* Who hangs up there is on its way out. */
static void a_local_socket_that_is_no_good_is_left(void **state)
{
    struct fixture *fixture = *state;
    struct stranger_local local;
    struct side far;

    side_init(&far, "far");
    loop_call(far.loop, serve_echo, &far);
    stranger_local_start(&local, endpoint_instance(far.endpoint));
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u", endpoint_port(far.endpoint));
    assert_int_equal(endpoint_start(far.endpoint, fixture->address, NULL), SHOAL_OK);
    loop_call(fixture->client.loop, close_client, fixture);
    loop_call(fixture->client.loop, open_client, fixture);
    expect_echo(fixture);
    expect_blocking_echo(fixture, &byte_channel_auto, 0);
    assert_int_equal(local_connections_of(&far), 0);
    stranger_local_stop(&local);
    loop_call(fixture->client.loop, close_client, fixture);
    side_release(&far);
}

static void deadlines_end_calls(void **state)
{
    struct fixture *fixture = *state;
    struct outcome held, echo;

    call(fixture, METHOD_HOLD, "", 50, &held);
    wait_until(fixture, &held.is_done);
    assert_int_equal(held.status, SHOAL_TIMED_OUT);
    call(fixture, METHOD_ECHO, "still there", WAIT_MS, &echo); /* the connection is fine */
    wait_until(fixture, &echo.is_done);
    assert_string_equal(echo.body, "still there");
}

static void closing_the_client_ends_calls_and_aborts_requests(void **state)
{
    struct fixture *fixture = *state;
    struct outcome held;
    bool is_aborted = false;
    int64_t deadline = deadline_after_ms(WAIT_MS);

    call(fixture, METHOD_HOLD, "", WAIT_MS, &held);
    wait_held(fixture);
    loop_call(fixture->client.loop, close_client, fixture);
    assert_int_equal(held.times, 1);
    assert_int_equal(held.status, SHOAL_CANCELED);
    mutex_lock(&fixture->mutex);
    while (!fixture->aborted)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline) || fixture->aborted);
    is_aborted = fixture->aborted == 1;
    mutex_unlock(&fixture->mutex);
    assert_true(is_aborted);
}

static void a_dead_server_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    struct outcome held, refused;

    call(fixture, METHOD_HOLD, "", WAIT_MS, &held);
    wait_held(fixture);
    side_release(&fixture->server);
    wait_until(fixture, &held.is_done);
    assert_int_equal(held.status, SHOAL_UNREACHABLE);
    call(fixture, METHOD_ECHO, "", WAIT_MS, &refused);
    wait_until(fixture, &refused.is_done);
    assert_int_equal(refused.status, SHOAL_UNREACHABLE);
    side_init(&fixture->server, "server");
}

static void on_lost(void *arg, const struct shoal_error *error)
{
    struct outcome *outcome = arg;

    rpc_client_close(outcome->fixture->handle); /* allowed here */
    outcome->fixture->handle = NULL;
    on_done(outcome, error->status, NULL, 0, error);
}

static void set_lost(void *arg)
{
    struct outcome *outcome = arg;

    rpc_client_on_lost(outcome->fixture->handle, on_lost, outcome);
}

/* Also when nobody waits for an answer; the calls that fail with it end once. */
static void a_lost_connection_is_told(void **state)
{
    struct fixture *fixture = *state;
    struct outcome lost, held;

    for (int has_call = 0; has_call < 2; has_call++) {
        call(fixture, METHOD_ECHO, "", WAIT_MS, &held);
        wait_until(fixture, &held.is_done);
        if (has_call) {
            fixture->held = NULL;
            call(fixture, METHOD_HOLD, "", WAIT_MS, &held);
            wait_held(fixture);
        }
        lost = (struct outcome){.fixture = fixture};
        loop_call(fixture->client.loop, set_lost, &lost);
        side_release(&fixture->server);
        wait_until(fixture, &lost.is_done);
        assert_int_equal(lost.status, SHOAL_UNREACHABLE);
        assert_non_null(strstr(lost.error.message, fixture->address));
        assert_int_equal(held.times, 1);
        if (has_call)
            assert_int_equal(held.status, SHOAL_CANCELED);
        side_init(&fixture->server, "server");
        rpc_set_handler(fixture->server.rpc, METHOD_ECHO, on_echo, fixture);
        rpc_set_handler(fixture->server.rpc, METHOD_HOLD, on_hold, fixture);
        snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u", endpoint_port(fixture->server.endpoint));
        assert_int_equal(endpoint_start(fixture->server.endpoint, fixture->address, NULL), SHOAL_OK);
        loop_call(fixture->client.loop, open_client, fixture);
    }
}

static int connect_raw(struct fixture *fixture)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_CONTROL);

    snprintf(hello.cluster, sizeof hello.cluster, "test");
    return stranger_join(endpoint_port(fixture->server.endpoint), &hello);
}

/* F26: a length field of 4 GiB closes the connection; others are served. */
static void f26_hostile_frames_close_the_connection(void **state)
{
    static const struct {
        uint32_t len;
        uint8_t kind, reserved;
    } hostile[] = {{UINT32_MAX, RPC_KIND_REQUEST, 0},
                   {RPC_REQUEST_MAX_BYTES + 1, RPC_KIND_REQUEST, 0},
                   {0, 7, 0},
                   {0, RPC_KIND_REQUEST, 1},
                   {0, RPC_KIND_RESPONSE, 0}};
    struct fixture *fixture = *state;
    struct outcome echo;

    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        uint8_t frame[RPC_FRAME_HEADER_BYTES] = {0};
        int fd = connect_raw(fixture);

        put_le32(frame, hostile[i].len);
        frame[4] = hostile[i].kind;
        frame[5] = hostile[i].reserved;
        assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
        assert_true(recv(fd, frame, 1, 0) <= 0); /* closed, not answered */
        close(fd);
    }
    call(fixture, METHOD_ECHO, "others are served", WAIT_MS, &echo);
    wait_until(fixture, &echo.is_done);
    assert_int_equal(echo.status, SHOAL_OK);
}

static void set_request_max(void *arg)
{
    struct fixture *fixture = arg;

    rpc_set_request_max(fixture->server.rpc, RPC_REQUEST_LARGE_MAX_BYTES);
}

static void a_server_for_batches_accepts_more(void **state)
{
    struct fixture *fixture = *state;
    char *body = malloc(RPC_REQUEST_LARGE_MAX_BYTES + 1);
    struct outcome echo;

    memset(body, 'x', RPC_REQUEST_LARGE_MAX_BYTES);
    body[RPC_REQUEST_LARGE_MAX_BYTES] = '\0';
    call(fixture, METHOD_FAIL, body, WAIT_MS, &echo);
    wait_until(fixture, &echo.is_done);
    assert_int_equal(echo.status, SHOAL_UNREACHABLE); /* closed by the server */
    loop_call(fixture->server.loop, set_request_max, fixture);
    call(fixture, METHOD_FAIL, body, WAIT_MS, &echo);
    wait_until(fixture, &echo.is_done);
    assert_int_equal(echo.status, SHOAL_NOT_FOUND); /* what the method answers */
    free(body);
}

static void bytes_may_come_one_at_a_time(void **state)
{
    struct fixture *fixture = *state;
    struct rpc_frame frame = {.kind = RPC_KIND_REQUEST, .method = METHOD_ECHO, .id = 77, .body_len = 3};
    uint8_t bytes[RPC_FRAME_HEADER_BYTES + 3];
    int fd = connect_raw(fixture);

    rpc_frame_encode(&frame, bytes);
    memcpy(bytes + RPC_FRAME_HEADER_BYTES, "abc", 3);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(send(fd, bytes + i, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(fd, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
    assert_int_equal(rpc_frame_decode(bytes, RPC_RESPONSE_MAX_BYTES, &frame), SHOAL_OK);
    assert_int_equal(frame.id, 77);
    assert_memory_equal(bytes + RPC_FRAME_HEADER_BYTES, "abc", 3);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(the_local_socket_is_preferred, setup, teardown),
        cmocka_unit_test_setup_teardown(a_local_socket_that_is_no_good_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(deadlines_end_calls, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_the_client_ends_calls_and_aborts_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dead_server_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lost_connection_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(f26_hostile_frames_close_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_for_batches_accepts_more, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_may_come_one_at_a_time, setup, teardown),
    };
    if (!rpc_protocol_is_usable())
        return 77;
    return cmocka_run_group_tests_name("rpc", tests, NULL, NULL);
}
