/* SPDX-License-Identifier: Apache-2.0 */
/* A control connection over a local socket, which has no timeouts of its own; with a clock that the test moves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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
    bool is_closed;
};

static void on_frame(void *arg, const struct rpc_frame *frame, const uint8_t *body)
{
    (void)arg;
    (void)frame;
    (void)body;
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

static void who_does_not_read_for_long_loses_the_connection(void **state)
{
    struct fixture fixture = {.is_closed = false};
    int small = 1;

    (void)state;
    mutex_init(&fixture.mutex, RANK_STORE);
    cond_init(&fixture.changed);
    assert_int_equal(loop_create("stream", &fixture.loop, NULL), SHOAL_OK);
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
    mutex_lock(&fixture.mutex);
    while (!fixture.is_closed)
        cond_wait(&fixture.changed, &fixture.mutex); /* the harness's timeout ends it */
    mutex_unlock(&fixture.mutex);

    loop_call(fixture.loop, stop, &fixture);
    loop_destroy(fixture.loop);
    close(fixture.fds[1]);
    cond_release(&fixture.changed);
    mutex_release(&fixture.mutex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_does_not_read_for_long_loses_the_connection)};

    return cmocka_run_group_tests_name("rpc_stream", tests, NULL, NULL);
}
