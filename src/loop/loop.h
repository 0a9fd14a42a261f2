/* SPDX-License-Identifier: Apache-2.0 */
/* An event loop on its own thread (libevent). Everything attached to a loop belongs to its thread; debug builds assert
 * it. loop_post is the one function that crosses threads. */
#ifndef SHOAL_LOOP_LOOP_H
#define SHOAL_LOOP_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/list.h"

struct event_base;
struct event;
struct loop;

/* Starts the thread. name: at most 15 bytes, shown by ps and gdb. */
enum shoal_status loop_create(const char *name, struct loop **loop_out, struct shoal_error *error);
/* Runs what has been posted, ends the thread, frees. Not from the loop's thread. NULL is allowed. What was attached
 * must have been released before (on the loop). */
void loop_destroy(struct loop *loop);

bool loop_is_current(const struct loop *loop);
/* For libevent users (evhttp). Loop thread only. */
struct event_base *loop_base(struct loop *loop);

/* Something has been answered, and whoever asked may ask again at once: the thread looks for it a little before it
 * sleeps, if that has paid lately (base/spin.h). Loop thread only. */
void loop_expect_more(struct loop *loop);

/* A task is embedded in its owner, so posting allocates nothing and cannot fail. It must not be posted again before it
 * ran. Tasks run in order of posting; one wake-up serves many. */
struct loop_task {
    struct list_node node;
    void (*fn)(void *arg);
    void *arg;
    bool is_deferred; /* loop thread; only of tasks that loop_defer gets */
};
void loop_post(struct loop *loop, struct loop_task *task, void (*fn)(void *arg), void *arg);

/* Loop thread only: runs once everything that came with the present events has been looked at, so that work which they
 * cause together is done together. Costs no wake-up. A task that waits is withdrawn by loop_defer_cancel, which its
 * owner calls before it goes. Deferring a task that waits already does nothing. */
void loop_defer(struct loop *loop, struct loop_task *task, void (*fn)(void *arg), void *arg);
void loop_defer_cancel(struct loop *loop, struct loop_task *task);

/* Runs fn on the loop and waits until it has returned; directly if this is the loop's thread. */
void loop_call(struct loop *loop, void (*fn)(void *arg), void *arg);

/* Timer, one-shot. All functions on the loop's thread. */
struct loop_timer {
    struct loop *loop;
    struct event *event; /* owned */
    void (*fn)(void *arg);
    void *arg;
};
enum shoal_status loop_timer_init(struct loop_timer *timer, struct loop *loop, void (*fn)(void *arg), void *arg,
                                  struct shoal_error *error);
void loop_timer_start(struct loop_timer *timer, int64_t delay_ms); /* restarts */
void loop_timer_stop(struct loop_timer *timer);
bool loop_timer_is_running(const struct loop_timer *timer);
void loop_timer_release(struct loop_timer *timer); /* zeroed or released: nothing */

/* Readiness of one descriptor (level-triggered). All functions on the loop's thread. */
enum loop_events { LOOP_READ = 1, LOOP_WRITE = 2 };
struct loop_io {
    struct loop *loop;
    struct event *read_event, *write_event; /* owned */
    void (*fn)(void *arg, unsigned events);
    void *arg;
    unsigned events;
};
enum shoal_status loop_io_init(struct loop_io *io, struct loop *loop, int fd, void (*fn)(void *arg, unsigned events),
                               void *arg, struct shoal_error *error);
void loop_io_set(struct loop_io *io, unsigned events); /* 0: nothing */
void loop_io_release(struct loop_io *io);              /* does not close fd; zeroed or released: nothing */

#endif
