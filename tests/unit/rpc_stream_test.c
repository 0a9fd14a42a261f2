/* SPDX-License-Identifier: Apache-2.0 */
/* One control connection: a local socket, which has no timeouts of its own, with a clock that the test moves; and what
 * a peer says last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mutex.h"
#include "rpc/connection.h"
#include "rpc/rpc.h"

#define BODY_BYTES (64u << 10)
#define SILENCE_MS 10000

static int64_t passed_ms; /* atomic */

int64_t __real_clock_now_ms(void);
int64_t __wrap_clock_now_ms(void);

int64_t __wrap_clock_now_ms(void)
{
    return __real_clock_now_ms() + __atomic_load_n(&passed_ms, __ATOMIC_RELAXED);
}

struct fixture {
    struct loop *loop;
    struct rpc_stream stream;
    struct rpc_counters counters;
    int fds[2];
    struct mutex mutex;
    struct cond changed;
    unsigned frames;
    bool is_closed;
};

static void on_frame(void *arg, const struct rpc_frame *frame, const uint8_t *body)
{
    struct fixture *fixture = arg;

    (void)frame;
    (void)body;
    fixture->frames++;
}

static void on_closed(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct fixture *fixture = arg;

    (void)status;
    (void)error;
    mutex_lock(&fixture->mutex);
    fixture->is_closed = true;
    cond_broadcast(&fixture->changed);
    mutex_unlock(&fixture->mutex);
}

static const struct rpc_stream_events events = {.frame = on_frame, .closed = on_closed};

static void start(void *arg)
{
    struct fixture *fixture = arg;

    assert_int_equal(rpc_stream_init(&fixture->stream, fixture->loop, fixture->fds[0], BODY_BYTES, &events, fixture,
                                     &fixture->counters, NULL),
                     SHOAL_OK);
}

static void stop(void *arg)
{
    struct fixture *fixture = arg;

    rpc_stream_release(&fixture->stream);
}

static void send_one(void *arg)
{
    static const uint8_t body[BODY_BYTES];
    struct fixture *fixture = arg;
    struct rpc_frame frame = {.kind = RPC_KIND_RESPONSE, .method = 1, .id = 1, .body_len = BODY_BYTES};

    rpc_stream_send(&fixture->stream, &frame, body);
}

static void send_until_blocked(void *arg)
{
    struct fixture *fixture = arg;

    while (!fixture->stream.out.len)
        send_one(fixture);
}

static bool is_closed(struct fixture *fixture)
{
    bool is_closed;

    mutex_lock(&fixture->mutex);
    is_closed = fixture->is_closed;
    mutex_unlock(&fixture->mutex);
    return is_closed;
}

static void nothing(void *arg)
{
    (void)arg;
}

static void setup(struct fixture *fixture)
{
    *fixture = (struct fixture){.is_closed = false};
    mutex_init(&fixture->mutex, RANK_STORE);
    cond_init(&fixture->changed);
    assert_int_equal(loop_create("stream", &fixture->loop, NULL), SHOAL_OK);
}

static void wait_until_closed(struct fixture *fixture)
{
    mutex_lock(&fixture->mutex);
    while (!fixture->is_closed)
        cond_wait(&fixture->changed, &fixture->mutex); /* the harness's timeout ends it */
    mutex_unlock(&fixture->mutex);
}

static void teardown(struct fixture *fixture)
{
    loop_call(fixture->loop, stop, fixture);
    loop_destroy(fixture->loop);
    cond_release(&fixture->changed);
    mutex_release(&fixture->mutex);
}

static void who_does_not_read_for_long_loses_the_connection(void **state)
{
    struct fixture fixture;
    int small = 1;

    (void)state;
    setup(&fixture);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fixture.fds), 0);
    assert_int_equal(setsockopt(fixture.fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    loop_call(fixture.loop, start, &fixture);
    assert_int_equal(fixture.counters.local_connections, 1);
    loop_call(fixture.loop, send_until_blocked, &fixture);

    __atomic_store_n(&passed_ms, SILENCE_MS / 2, __ATOMIC_RELAXED);
    loop_call(fixture.loop, send_one, &fixture);
    loop_call(fixture.loop, nothing, NULL); /* what the socket tells now has been told */
    assert_false(is_closed(&fixture));

    __atomic_store_n(&passed_ms, 2 * SILENCE_MS, __ATOMIC_RELAXED);
    loop_call(fixture.loop, send_one, &fixture);
    wait_until_closed(&fixture);
    teardown(&fixture);
    close(fixture.fds[1]);
}

static void connect_pair(int fds[2])
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(listener, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&addr, &len), 0);
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[1], (struct sockaddr *)&addr, sizeof addr), 0);
    fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fds[0] >= 0);
    close(listener);
}

/* The peer says something and closes at once, before it has read all; meanwhile this side writes, which fails. */
static void last_words(void *arg)
{
    static uint8_t words[RPC_FRAME_HEADER_BYTES + BODY_BYTES];
    struct rpc_frame frame = {.kind = RPC_KIND_REQUEST, .method = 1, .id = 1, .body_len = BODY_BYTES};
    struct fixture *fixture = arg;
    struct pollfd end = {.fd = fixture->fds[0]};

    send_one(fixture);
    rpc_frame_encode(&frame, words);
    assert_int_equal(send(fixture->fds[1], words, sizeof words, 0), sizeof words);
    close(fixture->fds[1]);
    assert_int_equal(poll(&end, 1, -1), 1); /* the end has arrived: POLLHUP */
    send_one(fixture);
    assert_false(is_closed(fixture)); /* not from inside */
}

static void check_last_words(struct fixture *fixture)
{
    loop_call(fixture->loop, start, fixture);
    loop_call(fixture->loop, last_words, fixture);
    wait_until_closed(fixture);
    assert_int_equal(fixture->frames, 1);
    teardown(fixture);
}

static void last_words_are_heard_over_a_local_socket(void **state)
{
    struct fixture fixture;

    (void)state;
    setup(&fixture);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fixture.fds), 0);
    check_last_words(&fixture);
}

static void last_words_are_heard_over_tcp(void **state)
{
    struct fixture fixture;

    (void)state;
    setup(&fixture);
    connect_pair(fixture.fds);
    check_last_words(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_read_for_long_loses_the_connection),
        cmocka_unit_test(last_words_are_heard_over_a_local_socket),
        cmocka_unit_test(last_words_are_heard_over_tcp),
    };

    return cmocka_run_group_tests_name("rpc_stream", tests, NULL, NULL);
}
