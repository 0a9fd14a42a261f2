/* SPDX-License-Identifier: Apache-2.0 */
/* What a struct shoal_call becomes inside: a deadline and a token, checked by every blocking step. */
#ifndef SHOAL_BASE_CALL_H
#define SHOAL_BASE_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/list.h"

struct call_progress;

struct call {
    int64_t deadline_ms;            /* base/clock.h */
    struct shoal_cancel *cancel;    /* borrowed, may be NULL */
    struct call_progress *progress; /* borrowed; NULL: nobody is told. base/progress.h */
};

/* Validates call (NULL: defaults; a struct_size smaller than the first fields: INVALID_ARGUMENT). default_timeout_ms <
 * 0: none. Progress is not taken over: call_progress_init. */
enum shoal_status call_init(struct call *call_out, const struct shoal_call *call, int64_t default_timeout_ms,
                            struct shoal_error *error);

/* The same token with a deadline that is at most timeout_ms away. */
struct call call_with_timeout(const struct call *call, int64_t timeout_ms);

/* OK, or TIMED_OUT / CANCELED with a message that begins with what was tried. */
enum shoal_status call_check(const struct call *call, struct shoal_error *error, const char *what);

/* Waits delay_ms. OK: it has passed; else as call_check, as soon as that happens. */
enum shoal_status call_sleep(const struct call *call, int64_t delay_ms, struct shoal_error *error, const char *what);

bool cancel_is_triggered(struct shoal_cancel *cancel); /* NULL: false */

/* A hook runs once, on the thread that triggers, as soon as the token is triggered (at once, on the adding thread, if
 * it is already). It must be short, must not block, and must not use the token. After cancel_hook_remove returned it
 * does not run any more. Add and remove accept a NULL token. */
struct cancel_hook {
    struct list_node node;
    void (*fn)(void *arg);
    void *arg;
    bool is_added;
};
void cancel_hook_add(struct shoal_cancel *cancel, struct cancel_hook *hook, void (*fn)(void *arg), void *arg);
void cancel_hook_remove(struct shoal_cancel *cancel, struct cancel_hook *hook);

#endif
