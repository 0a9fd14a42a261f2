/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "loop/loop.h"

static struct loop *loop_for_test(void)
{
    struct loop *loop;
    struct shoal_error error;
    if (loop_create("unit", &loop, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return loop;
}

/* --- post and call --- */

struct counter {
    struct loop *loop;
    struct loop_task task;
    atomic_int runs;
    atomic_bool was_on_loop;
};

static void count_run(void *arg)
{
    struct counter *counter = arg;
    counter->was_on_loop = loop_is_current(counter->loop);
    atomic_fetch_add(&counter->runs, 1);
}

static void a_task_runs_on_the_loop(void **state)
{
    struct counter counter = {.loop = loop_for_test()};
    (void)state;
    assert_false(loop_is_current(counter.loop));
    assert_non_null(loop_base(counter.loop));
    loop_post(counter.loop, &counter.task, count_run, &counter);
    wait_until(counter.runs == 1);
    assert_true(counter.was_on_loop);
    loop_post(counter.loop, &counter.task, count_run, &counter); /* it ran: may be posted again */
    wait_until(counter.runs == 2);
    loop_destroy(counter.loop);
    loop_destroy(NULL);
}

struct nested {
    struct loop *loop;
    int depth;
};

static void call_from_inside(void *arg)
{
    struct nested *nested = arg;
    if (nested->depth++ < 3)
        loop_call(nested->loop, call_from_inside, nested); /* on the loop's thread: directly */
}

static void call_waits_and_nests(void **state)
{
    struct nested nested = {.loop = loop_for_test()};
    (void)state;
    loop_call(nested.loop, call_from_inside, &nested);
    assert_int_equal(nested.depth, 4);
    loop_destroy(nested.loop);
}

struct ordered {
    struct loop_task task;
    int number;
    int *log;
    atomic_int *length;
};

static void note_order(void *arg)
{
    struct ordered *ordered = arg;
    ordered->log[atomic_load(ordered->length)] = ordered->number; /* one writer: the loop */
    atomic_fetch_add(ordered->length, 1);
}

static void tasks_run_in_order(void **state)
{
    enum { TASKS = 1000 };
    static struct ordered tasks[TASKS];
    static int log[TASKS];
    atomic_int length = 0;
    struct loop *loop = loop_for_test();
    (void)state;
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = (struct ordered){.number = i, .log = log, .length = &length};
        loop_post(loop, &tasks[i].task, note_order, &tasks[i]);
    }
    wait_until(length == TASKS);
    for (int i = 0; i < TASKS; i++)
        assert_int_equal(log[i], i);
    loop_destroy(loop);
}

/* The owner frees itself in its task: the loop does not touch the task afterwards. */
struct owner {
    struct loop_task task;
    atomic_int *freed;
};

static void free_owner(void *arg)
{
    struct owner *owner = arg;
    atomic_int *freed = owner->freed;
    memset(owner, 0xaa, sizeof *owner);
    free(owner);
    atomic_fetch_add(freed, 1);
}

static void destroy_runs_what_was_posted(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        atomic_int freed = 0;
        struct loop *loop = loop_for_test();
        for (int i = 0; i < 20; i++) {
            struct owner *owner = calloc(1, sizeof *owner);
            assert_non_null(owner);
            owner->freed = &freed;
            loop_post(loop, &owner->task, free_owner, owner);
        }
        loop_destroy(loop);
        assert_int_equal(freed, 20);
    }
}

/* A chain: each task posts the next, the last ones while the loop is being destroyed. */
struct chain {
    struct loop *loop;
    struct loop_task task;
    atomic_int left;
};

static void next_link(void *arg)
{
    struct chain *chain = arg;
    if (atomic_fetch_sub(&chain->left, 1) > 1)
        loop_post(chain->loop, &chain->task, next_link, chain);
}

static void destroy_runs_what_tasks_post(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct chain chain = {.loop = loop_for_test(), .left = 100};
        loop_post(chain.loop, &chain.task, next_link, &chain);
        loop_destroy(chain.loop);
        assert_int_equal(chain.left, 0);
    }
}

struct poster {
    struct loop *loop;
    atomic_int *runs;
};

static void add_one(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void *post_much(void *arg)
{
    struct poster *poster = arg;
    for (int i = 0; i < 300; i++)
        loop_call(poster->loop, add_one, poster->runs);
    return NULL;
}

static void many_threads_call(void **state)
{
    enum { THREADS = 6 };
    struct loop *loop = loop_for_test();
    atomic_int runs = 0;
    struct poster poster = {loop, &runs};
    pthread_t threads[THREADS];
    (void)state;
    for (size_t i = 0; i < THREADS; i++)
        threads[i] = start_thread(post_much, &poster);
    for (size_t i = 0; i < THREADS; i++)
        join_thread(threads[i]);
    assert_int_equal(runs, THREADS * 300);
    loop_destroy(loop);
}

static void note_signal_mask(void *arg)
{
    sigset_t *mask = arg;
    pthread_sigmask(SIG_SETMASK, NULL, mask);
}

static void the_loop_leaves_signals_to_the_application(void **state)
{
    struct loop *loop = loop_for_test();
    sigset_t mask;
    (void)state;
    sigemptyset(&mask);
    loop_call(loop, note_signal_mask, &mask);
    assert_true(sigismember(&mask, SIGINT));
    assert_true(sigismember(&mask, SIGTERM));
    assert_true(sigismember(&mask, SIGCHLD));
    loop_destroy(loop);
}

/* --- timers --- */

struct timed {
    struct loop *loop;
    struct loop_timer timer, other;
    atomic_int fired, other_fired;
    int64_t delay_ms;
    int rearms;
    bool was_running_in_callback, was_running_before, was_running_after;
};

static void timer_fired(void *arg)
{
    struct timed *timed = arg;
    timed->was_running_in_callback = loop_timer_is_running(&timed->timer);
    if (timed->rearms-- > 0)
        loop_timer_start(&timed->timer, 0);
    atomic_fetch_add(&timed->fired, 1);
}

static void other_fired(void *arg)
{
    struct timed *timed = arg;
    atomic_fetch_add(&timed->other_fired, 1);
}

static void setup_timer(void *arg)
{
    struct timed *timed = arg;
    assert_int_equal(loop_timer_init(&timed->timer, timed->loop, timer_fired, timed, NULL), SHOAL_OK);
    timed->was_running_before = loop_timer_is_running(&timed->timer);
    loop_timer_start(&timed->timer, timed->delay_ms);
    timed->was_running_after = loop_timer_is_running(&timed->timer);
}

static void release_timer(void *arg)
{
    struct timed *timed = arg;
    loop_timer_release(&timed->timer);
    loop_timer_release(&timed->timer); /* released: nothing */
    loop_timer_stop(&timed->timer);
    assert_false(loop_timer_is_running(&timed->timer));
}

static void a_timer_fires_once(void **state)
{
    struct timed timed = {.loop = loop_for_test(), .delay_ms = 1};
    (void)state;
    loop_call(timed.loop, setup_timer, &timed);
    assert_false(timed.was_running_before);
    assert_true(timed.was_running_after);
    wait_until(timed.fired == 1);
    assert_false(timed.was_running_in_callback);
    loop_call(timed.loop, release_timer, &timed);
    assert_int_equal(timed.fired, 1);
    loop_destroy(timed.loop);
}

static void a_timer_may_restart_itself(void **state)
{
    struct timed timed = {.loop = loop_for_test(), .delay_ms = -5, .rearms = 20}; /* negative: at once */
    (void)state;
    loop_call(timed.loop, setup_timer, &timed);
    wait_until(timed.fired == 21);
    loop_call(timed.loop, release_timer, &timed);
    loop_destroy(timed.loop);
}

static void restart_with_zero(void *arg)
{
    struct timed *timed = arg;
    loop_timer_start(&timed->timer, 0);
}

static void a_start_replaces_the_last(void **state)
{
    struct timed timed = {.loop = loop_for_test(), .delay_ms = 3600 * 1000};
    (void)state;
    loop_call(timed.loop, setup_timer, &timed);
    loop_call(timed.loop, restart_with_zero, &timed);
    wait_until(timed.fired == 1);
    loop_call(timed.loop, release_timer, &timed);
    loop_destroy(timed.loop);
}

/* Both timers are due in the same turn of the loop; the first to run releases the other, which then must not fire. */
static void release_the_other(void *arg)
{
    struct timed *timed = arg;
    atomic_fetch_add(&timed->fired, 1);
    loop_timer_release(&timed->other);
}

static void release_the_first(void *arg)
{
    struct timed *timed = arg;
    atomic_fetch_add(&timed->other_fired, 1);
    loop_timer_release(&timed->timer);
}

static void setup_rivals(void *arg)
{
    struct timed *timed = arg;
    assert_int_equal(loop_timer_init(&timed->timer, timed->loop, release_the_other, timed, NULL), SHOAL_OK);
    assert_int_equal(loop_timer_init(&timed->other, timed->loop, release_the_first, timed, NULL), SHOAL_OK);
    loop_timer_start(&timed->timer, 0);
    loop_timer_start(&timed->other, 0);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* both are due when the loop looks */
}

static void release_rivals(void *arg)
{
    struct timed *timed = arg;
    loop_timer_release(&timed->timer);
    loop_timer_release(&timed->other);
}

static void a_released_timer_does_not_fire(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct timed timed = {.loop = loop_for_test()};
        loop_call(timed.loop, setup_rivals, &timed);
        wait_until(timed.fired + timed.other_fired >= 1);
        loop_call(timed.loop, release_rivals, &timed);
        assert_int_equal(timed.fired + timed.other_fired, 1);
        loop_destroy(timed.loop);
    }
}

static void stop_both(void *arg)
{
    struct timed *timed = arg;
    assert_int_equal(loop_timer_init(&timed->timer, timed->loop, timer_fired, timed, NULL), SHOAL_OK);
    assert_int_equal(loop_timer_init(&timed->other, timed->loop, other_fired, timed, NULL), SHOAL_OK);
    loop_timer_start(&timed->timer, 0);
    loop_timer_stop(&timed->timer);
    loop_timer_stop(&timed->timer);
    loop_timer_start(&timed->other, 1);
}

static void a_stopped_timer_does_not_fire(void **state)
{
    struct timed timed = {.loop = loop_for_test()};
    (void)state;
    loop_call(timed.loop, stop_both, &timed);
    wait_until(timed.other_fired == 1);
    assert_int_equal(timed.fired, 0);
    loop_call(timed.loop, release_rivals, &timed);
    loop_destroy(timed.loop);
}

/* --- descriptors --- */

struct stream {
    struct loop *loop;
    int ends[2]; /* [0] is watched */
    struct loop_io io;
    unsigned wanted;
    atomic_int reads, writes;
    atomic_size_t bytes;
    bool is_release_in_callback;
    atomic_bool is_eof;
};

static void stream_ready(void *arg, unsigned events)
{
    struct stream *stream = arg;
    if (events & LOOP_WRITE) {
        atomic_fetch_add(&stream->writes, 1);
        loop_io_set(&stream->io, stream->wanted & ~(unsigned)LOOP_WRITE);
    }
    if (events & LOOP_READ) {
        char bytes[64];
        ssize_t got;
        atomic_fetch_add(&stream->reads, 1);
        if (stream->is_release_in_callback) {
            loop_io_release(&stream->io); /* the loop must not touch it afterwards */
            memset(&stream->io, 0xaa, sizeof stream->io);
            return;
        }
        got = read(stream->ends[0], bytes, sizeof bytes);
        if (got > 0) {
            atomic_fetch_add(&stream->bytes, (size_t)got);
        } else if (got == 0) {
            loop_io_set(&stream->io, 0);
            stream->is_eof = true;
        }
    }
}

static void stream_start(void *arg)
{
    struct stream *stream = arg;
    assert_int_equal(loop_io_init(&stream->io, stream->loop, stream->ends[0], stream_ready, stream, NULL), SHOAL_OK);
    loop_io_set(&stream->io, stream->wanted);
}

static void stream_stop(void *arg)
{
    struct stream *stream = arg;
    loop_io_release(&stream->io);
    loop_io_release(&stream->io); /* released: nothing */
}

static void stream_open(struct stream *stream, unsigned wanted)
{
    memset(stream, 0, sizeof *stream);
    stream->loop = loop_for_test();
    stream->wanted = wanted;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, stream->ends), 0);
}

static void stream_close(struct stream *stream)
{
    loop_destroy(stream->loop);
    close(stream->ends[0]);
    if (stream->ends[1] >= 0)
        close(stream->ends[1]);
}

static void readiness_is_level_triggered(void **state)
{
    struct stream stream;
    char text[1000] = {0};
    (void)state;
    stream_open(&stream, LOOP_READ);
    loop_call(stream.loop, stream_start, &stream);
    assert_int_equal(write(stream.ends[1], text, sizeof text), sizeof text);
    wait_until(stream.bytes == sizeof text); /* 64 bytes a callback: it is called again for the rest */
    assert_true(stream.reads >= 16);
    close(stream.ends[1]);
    stream.ends[1] = -1;
    wait_until(stream.is_eof);
    loop_call(stream.loop, stream_stop, &stream);
    assert_true(fcntl(stream.ends[0], F_GETFD) >= 0); /* release does not close */
    stream_close(&stream);
}

static void interest_can_change(void **state)
{
    struct stream stream;
    (void)state;
    stream_open(&stream, LOOP_READ | LOOP_WRITE);
    loop_call(stream.loop, stream_start, &stream);
    wait_until(stream.writes == 1); /* writable at once; the callback drops that interest */
    assert_int_equal(write(stream.ends[1], "abc", 3), 3);
    wait_until(stream.bytes == 3);
    assert_int_equal(stream.writes, 1);
    loop_call(stream.loop, stream_stop, &stream);
    stream_close(&stream);
}

static void no_interest(void *arg)
{
    struct stream *stream = arg;
    loop_io_set(&stream->io, 0);
    loop_io_set(&stream->io, 0);
}

static void read_interest(void *arg)
{
    struct stream *stream = arg;
    loop_io_set(&stream->io, LOOP_READ);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void without_interest_nothing_is_called(void **state)
{
    struct stream stream;
    (void)state;
    stream_open(&stream, 0);
    loop_call(stream.loop, stream_start, &stream);
    loop_call(stream.loop, no_interest, &stream);
    assert_int_equal(write(stream.ends[1], "abc", 3), 3);
    for (int i = 0; i < 20; i++)
        loop_call(stream.loop, nothing, NULL); /* turns of the loop */
    assert_int_equal(stream.reads, 0);
    loop_call(stream.loop, read_interest, &stream);
    wait_until(stream.bytes == 3);
    loop_call(stream.loop, stream_stop, &stream);
    stream_close(&stream);
}

static void a_callback_may_release_its_descriptor(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct stream stream;
        stream_open(&stream, LOOP_READ);
        stream.is_release_in_callback = true;
        loop_call(stream.loop, stream_start, &stream);
        assert_int_equal(write(stream.ends[1], "abc", 3), 3);
        wait_until(stream.reads == 1);
        assert_int_equal(write(stream.ends[1], "abc", 3), 3);
        for (int i = 0; i < 5; i++)
            loop_call(stream.loop, nothing, NULL);
        assert_int_equal(stream.reads, 1);
        stream_close(&stream);
    }
}

static void zeroed_objects_can_be_released(void **state)
{
    struct loop_timer timer = {0};
    struct loop_io io = {0};
    (void)state;
    loop_timer_stop(&timer);
    loop_timer_release(&timer);
    assert_false(loop_timer_is_running(&timer));
    loop_io_release(&io);
}

/* --- deferred work --- */

struct deferral {
    struct loop *loop;
    struct loop_task first, second, deferred;
    int order[4], steps;
    bool cancels;
    atomic_bool is_done;
};

static void deferral_runs(void *arg)
{
    struct deferral *deferral = arg;
    deferral->order[deferral->steps++] = 3;
    deferral->is_done = true;
}

static void deferral_first(void *arg)
{
    struct deferral *deferral = arg;
    deferral->order[deferral->steps++] = 1;
    loop_defer(deferral->loop, &deferral->deferred, deferral_runs, deferral);
    loop_defer(deferral->loop, &deferral->deferred, deferral_runs, deferral); /* waits already */
}

static void deferral_second(void *arg)
{
    struct deferral *deferral = arg;
    deferral->order[deferral->steps++] = 2;
    if (deferral->cancels) {
        loop_defer_cancel(deferral->loop, &deferral->deferred);
        loop_defer_cancel(deferral->loop, &deferral->deferred);
        deferral->is_done = true;
    }
}

static void post_both(void *arg)
{
    struct deferral *deferral = arg;
    loop_post(deferral->loop, &deferral->first, deferral_first, deferral);
    loop_post(deferral->loop, &deferral->second, deferral_second, deferral);
}

static void deferred_work_comes_after_all_that_is_there(void **state)
{
    struct deferral deferral = {.loop = loop_for_test()};
    (void)state;
    loop_call(deferral.loop, post_both, &deferral);
    wait_until(deferral.is_done);
    loop_destroy(deferral.loop);
    assert_int_equal(deferral.steps, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(deferral.order[i], i + 1);
}

static void deferred_work_can_be_withdrawn(void **state)
{
    struct deferral deferral = {.loop = loop_for_test(), .cancels = true};
    (void)state;
    loop_call(deferral.loop, post_both, &deferral);
    wait_until(deferral.is_done);
    loop_destroy(deferral.loop);
    assert_int_equal(deferral.steps, 2);
}

/* Who looks for more sees what comes as well as who sleeps. */
static void expect_and_count(void *arg)
{
    struct counter *counter = arg;
    loop_expect_more(counter->loop);
    count_run(counter);
}

static void a_loop_that_expects_more_misses_nothing(void **state)
{
    struct counter counter = {.loop = loop_for_test()};
    (void)state;
    for (int i = 1; i <= 200; i++) {
        loop_post(counter.loop, &counter.task, expect_and_count, &counter);
        while (counter.runs != i)
            sched_yield();
    }
    loop_destroy(counter.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_runs_on_the_loop),
        cmocka_unit_test(call_waits_and_nests),
        cmocka_unit_test(tasks_run_in_order),
        cmocka_unit_test(destroy_runs_what_was_posted),
        cmocka_unit_test(destroy_runs_what_tasks_post),
        cmocka_unit_test(many_threads_call),
        cmocka_unit_test(the_loop_leaves_signals_to_the_application),
        cmocka_unit_test(a_timer_fires_once),
        cmocka_unit_test(a_timer_may_restart_itself),
        cmocka_unit_test(a_start_replaces_the_last),
        cmocka_unit_test(a_released_timer_does_not_fire),
        cmocka_unit_test(a_stopped_timer_does_not_fire),
        cmocka_unit_test(readiness_is_level_triggered),
        cmocka_unit_test(interest_can_change),
        cmocka_unit_test(without_interest_nothing_is_called),
        cmocka_unit_test(a_callback_may_release_its_descriptor),
        cmocka_unit_test(zeroed_objects_can_be_released),
        cmocka_unit_test(deferred_work_comes_after_all_that_is_there),
        cmocka_unit_test(deferred_work_can_be_withdrawn),
        cmocka_unit_test(a_loop_that_expects_more_misses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
