/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/thread.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/spin.h"
#include "base/thread.h"

struct loop {
    struct event_base *base;  /* owned; loop thread */
    struct event *wake_event; /* owned; fires when wake_fd is readable */
    int wake_fd;
    pthread_t thread;
    char name[16];
    /* loop thread: see look_for_more */
    struct list deferred; /* struct loop_task */
    struct spin spin;
    bool expects_more;
    uint64_t events_seen;
    int64_t sleeping_since_ns; /* 0: of no interest */

    struct mutex mutex; /* RANK_LOOP: guards the rest */
    struct list tasks;
    bool is_stopping;
};

bool loop_is_current(const struct loop *loop)
{
    return pthread_equal(pthread_self(), loop->thread);
}

struct event_base *loop_base(struct loop *loop)
{
    return loop->base;
}

static void wake(struct loop *loop)
{
    uint64_t one = 1;
    ssize_t written = write(loop->wake_fd, &one, sizeof one); /* EAGAIN: it is awake anyway */
    (void)written;
}

static void run_tasks(evutil_socket_t fd, short events, void *arg)
{
    struct loop *loop = arg;
    struct list tasks;
    struct list_node *node;
    uint64_t ignored;
    bool is_stopping;
    ssize_t got = read(fd, &ignored, sizeof ignored);

    (void)got;
    (void)events;
    loop->events_seen++;
    /* One batch per wake-up: tasks that post tasks do not starve the descriptors. */
    list_init(&tasks);
    mutex_lock(&loop->mutex);
    while ((node = list_pop_front(&loop->tasks)))
        list_push_back(&tasks, node);
    is_stopping = loop->is_stopping;
    mutex_unlock(&loop->mutex);
    while ((node = list_pop_front(&tasks))) {
        struct loop_task *task = container_of(node, struct loop_task, node);
        task->fn(task->arg);
    }
    if (is_stopping) {
        mutex_lock(&loop->mutex);
        if (list_is_empty(&loop->tasks))
            event_base_loopbreak(loop->base);
        mutex_unlock(&loop->mutex);
    }
}

static void run_events(struct loop *loop, int flags)
{
    struct list_node *node;

    event_base_loop(loop->base, flags | EVLOOP_NO_EXIT_ON_EMPTY);
    while ((node = list_pop_front(&loop->deferred))) {
        struct loop_task *task = container_of(node, struct loop_task, node);
        task->is_deferred = false;
        task->fn(task->arg);
    }
}

/* After an answer the next question is often there before this thread would sleep. */
static void look_for_more(struct loop *loop)
{
    uint64_t seen = loop->events_seen;

    while (!event_base_got_break(loop->base) && loop->expects_more && spin_begin(&loop->spin)) {
        loop->expects_more = false;
        do {
            run_events(loop, EVLOOP_NONBLOCK);
        } while (seen == loop->events_seen && spin_again(&loop->spin));
        spin_end(&loop->spin, seen != loop->events_seen);
        seen = loop->events_seen;
    }
    if (loop->expects_more)
        loop->sleeping_since_ns = clock_now_ns();
    loop->expects_more = false;
}

static void *thread_main(void *arg)
{
    struct loop *loop = arg;

    do {
        run_events(loop, EVLOOP_ONCE);
        if (loop->expects_more)
            look_for_more(loop);
    } while (!event_base_got_break(loop->base));
    return NULL;
}

void loop_defer(struct loop *loop, struct loop_task *task, void (*fn)(void *arg), void *arg)
{
    assert(loop_is_current(loop));
    if (task->is_deferred)
        return;
    task->is_deferred = true;
    task->fn = fn;
    task->arg = arg;
    list_push_back(&loop->deferred, &task->node);
}

void loop_defer_cancel(struct loop *loop, struct loop_task *task)
{
    assert(loop_is_current(loop));
    (void)loop;
    if (task->is_deferred)
        list_remove(&task->node);
    task->is_deferred = false;
}

void loop_expect_more(struct loop *loop)
{
    assert(loop_is_current(loop));
    loop->expects_more = true;
}

static void note_event(struct loop *loop)
{
    loop->events_seen++;
    if (loop->sleeping_since_ns) {
        spin_slept(&loop->spin, clock_now_ns() - loop->sleeping_since_ns);
        loop->sleeping_since_ns = 0;
    }
}

enum shoal_status loop_create(const char *name, struct loop **loop_out, struct shoal_error *error)
{
    struct event_config *config;
    struct loop *loop = calloc(1, sizeof *loop);
    int result;

    if (!loop)
        return error_no_memory(error);
    snprintf(loop->name, sizeof loop->name, "%s", name);
    mutex_init(&loop->mutex, RANK_LOOP);
    list_init(&loop->tasks);
    list_init(&loop->deferred);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->wake_fd < 0) {
        result = errno;
        error_set(error, SHOAL_IO, result, "eventfd: %s", strerror(result));
        goto free_loop;
    }
    /* Only the loop's own thread touches the base: no libevent locks. */
    config = event_config_new();
    if (!config)
        goto close_fd;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    loop->base = event_base_new_with_config(config);
    event_config_free(config);
    if (!loop->base)
        goto close_fd;
    loop->wake_event = event_new(loop->base, loop->wake_fd, EV_READ | EV_PERSIST, run_tasks, loop);
    if (!loop->wake_event || event_add(loop->wake_event, NULL))
        goto free_base;
    result = thread_start(&loop->thread, loop->name, thread_main, loop);
    if (result) {
        error_set(error, SHOAL_LIMIT, result, "cannot start thread '%s': %s", name, strerror(result));
        goto free_event;
    }
    *loop_out = loop;
    return SHOAL_OK;

free_event:
    event_free(loop->wake_event);
    event_base_free(loop->base);
    close(loop->wake_fd);
    mutex_release(&loop->mutex);
    free(loop);
    return SHOAL_LIMIT;
free_base:
    if (loop->wake_event)
        event_free(loop->wake_event);
    event_base_free(loop->base);
close_fd:
    close(loop->wake_fd);
    error_no_memory(error);
free_loop:
    mutex_release(&loop->mutex);
    result = loop->wake_fd < 0 ? SHOAL_IO : SHOAL_NO_MEMORY;
    free(loop);
    return (enum shoal_status)result;
}

void loop_destroy(struct loop *loop)
{
    if (!loop)
        return;
    assert(!loop_is_current(loop));
    mutex_lock(&loop->mutex);
    loop->is_stopping = true;
    mutex_unlock(&loop->mutex);
    wake(loop);
    pthread_join(loop->thread, NULL);
    event_free(loop->wake_event);
    event_base_free(loop->base);
    close(loop->wake_fd);
    mutex_release(&loop->mutex);
    free(loop);
}

void loop_post(struct loop *loop, struct loop_task *task, void (*fn)(void *arg), void *arg)
{
    bool was_empty;

    task->fn = fn;
    task->arg = arg;
    mutex_lock(&loop->mutex);
    was_empty = list_is_empty(&loop->tasks);
    list_push_back(&loop->tasks, &task->node);
    /* Under the mutex: after the task ran the loop may be destroyed at any moment. */
    if (was_empty)
        wake(loop);
    mutex_unlock(&loop->mutex);
}

struct loop_call_state {
    struct loop_task task;
    void (*fn)(void *arg);
    void *arg;
    struct mutex mutex;
    struct cond done;
    bool is_done;
};

static void run_call(void *arg)
{
    struct loop_call_state *state = arg;

    state->fn(state->arg);
    mutex_lock(&state->mutex);
    state->is_done = true;
    cond_signal(&state->done);
    mutex_unlock(&state->mutex);
}

void loop_call(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct loop_call_state state = {.fn = fn, .arg = arg};

    if (loop_is_current(loop)) {
        fn(arg);
        return;
    }
    mutex_init(&state.mutex, RANK_LOOP);
    cond_init(&state.done);
    loop_post(loop, &state.task, run_call, &state);
    mutex_lock(&state.mutex);
    while (!state.is_done)
        cond_wait(&state.done, &state.mutex);
    mutex_unlock(&state.mutex);
    cond_release(&state.done);
    mutex_release(&state.mutex);
}

static void timer_fired(evutil_socket_t fd, short events, void *arg)
{
    struct loop_timer *timer = arg;

    (void)fd;
    (void)events;
    timer->loop->events_seen++;
    timer->fn(timer->arg);
}

enum shoal_status loop_timer_init(struct loop_timer *timer, struct loop *loop, void (*fn)(void *arg), void *arg,
                                  struct shoal_error *error)
{
    assert(loop_is_current(loop));
    *timer = (struct loop_timer){.loop = loop, .fn = fn, .arg = arg};
    timer->event = evtimer_new(loop->base, timer_fired, timer);
    return timer->event ? SHOAL_OK : error_no_memory(error);
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    struct timeval delay;

    assert(loop_is_current(timer->loop));
    if (delay_ms < 0)
        delay_ms = 0;
    delay.tv_sec = (time_t)(delay_ms / 1000);
    delay.tv_usec = (suseconds_t)(delay_ms % 1000) * 1000;
    event_add(timer->event, &delay);
}

void loop_timer_stop(struct loop_timer *timer)
{
    if (!timer->event)
        return;
    assert(loop_is_current(timer->loop));
    event_del(timer->event);
}

bool loop_timer_is_running(const struct loop_timer *timer)
{
    return timer->event && event_pending(timer->event, EV_TIMEOUT, NULL);
}

void loop_timer_release(struct loop_timer *timer)
{
    if (!timer->event)
        return;
    assert(loop_is_current(timer->loop));
    event_free(timer->event);
    timer->event = NULL;
}

static void io_fired(evutil_socket_t fd, short events, void *arg)
{
    struct loop_io *io = arg;

    (void)fd;
    note_event(io->loop);
    io->fn(io->arg, (events & EV_READ ? LOOP_READ : 0u) | (events & EV_WRITE ? LOOP_WRITE : 0u));
}

enum shoal_status loop_io_init(struct loop_io *io, struct loop *loop, int fd, void (*fn)(void *arg, unsigned events),
                               void *arg, struct shoal_error *error)
{
    assert(loop_is_current(loop));
    *io = (struct loop_io){.loop = loop, .fn = fn, .arg = arg};
    io->read_event = event_new(loop->base, fd, EV_READ | EV_PERSIST, io_fired, io);
    io->write_event = event_new(loop->base, fd, EV_WRITE | EV_PERSIST, io_fired, io);
    if (!io->read_event || !io->write_event) {
        loop_io_release(io);
        return error_no_memory(error);
    }
    return SHOAL_OK;
}

void loop_io_set(struct loop_io *io, unsigned events)
{
    unsigned changed = io->events ^ events;

    assert(loop_is_current(io->loop));
    if (changed & LOOP_READ) {
        if (events & LOOP_READ)
            event_add(io->read_event, NULL);
        else
            event_del(io->read_event);
    }
    if (changed & LOOP_WRITE) {
        if (events & LOOP_WRITE)
            event_add(io->write_event, NULL);
        else
            event_del(io->write_event);
    }
    io->events = events;
}

void loop_io_release(struct loop_io *io)
{
    if (io->read_event)
        event_free(io->read_event);
    if (io->write_event)
        event_free(io->write_event);
    *io = (struct loop_io){0};
}
