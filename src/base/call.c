/* SPDX-License-Identifier: Apache-2.0 */
#include "base/call.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"

#define FIRST_VERSION_BYTES offsetof(struct shoal_call, progress)

struct shoal_cancel {
    struct mutex mutex;
    struct cond idle;  /* no hook is running */
    struct list hooks; /* struct cancel_hook */
    bool is_triggered;
    bool is_running_hooks;
    unsigned refs;
};

enum shoal_status shoal_cancel_create(struct shoal_cancel **cancel_out)
{
    struct shoal_cancel *cancel = calloc(1, sizeof *cancel);
    if (!cancel)
        return SHOAL_NO_MEMORY;
    mutex_init(&cancel->mutex, RANK_CANCEL);
    cond_init(&cancel->idle);
    list_init(&cancel->hooks);
    cancel->refs = 1;
    *cancel_out = cancel;
    return SHOAL_OK;
}

static void unref_locked(struct shoal_cancel *cancel)
{
    bool is_last = --cancel->refs == 0;
    mutex_unlock(&cancel->mutex);
    if (is_last) {
        cond_release(&cancel->idle);
        mutex_release(&cancel->mutex);
        free(cancel);
    }
}

void shoal_cancel_destroy(struct shoal_cancel *cancel)
{
    if (!cancel)
        return;
    mutex_lock(&cancel->mutex);
    unref_locked(cancel);
}

void shoal_cancel_trigger(struct shoal_cancel *cancel)
{
    struct list_node *node;

    if (!cancel)
        return;
    mutex_lock(&cancel->mutex);
    if (cancel->is_triggered) {
        mutex_unlock(&cancel->mutex);
        return;
    }
    cancel->is_triggered = true;
    cancel->is_running_hooks = true;
    cancel->refs++; /* the last hook's owner may drop the token */
    while ((node = list_pop_front(&cancel->hooks))) {
        struct cancel_hook *hook = container_of(node, struct cancel_hook, node);
        /* Without the mutex: hooks take locks of lower rank. cancel_hook_remove waits for idle. */
        mutex_unlock(&cancel->mutex);
        hook->fn(hook->arg);
        mutex_lock(&cancel->mutex);
    }
    cancel->is_running_hooks = false;
    cond_broadcast(&cancel->idle);
    unref_locked(cancel);
}

bool cancel_is_triggered(struct shoal_cancel *cancel)
{
    bool is_triggered;
    if (!cancel)
        return false;
    mutex_lock(&cancel->mutex);
    is_triggered = cancel->is_triggered;
    mutex_unlock(&cancel->mutex);
    return is_triggered;
}

void cancel_hook_add(struct shoal_cancel *cancel, struct cancel_hook *hook, void (*fn)(void *arg), void *arg)
{
    bool run_now;

    hook->fn = fn;
    hook->arg = arg;
    hook->is_added = cancel != NULL;
    list_node_init(&hook->node);
    if (!cancel)
        return;
    mutex_lock(&cancel->mutex);
    cancel->refs++;
    run_now = cancel->is_triggered;
    if (!run_now)
        list_push_back(&cancel->hooks, &hook->node);
    mutex_unlock(&cancel->mutex);
    if (run_now)
        fn(arg);
}

void cancel_hook_remove(struct shoal_cancel *cancel, struct cancel_hook *hook)
{
    if (!cancel || !hook->is_added)
        return;
    hook->is_added = false;
    mutex_lock(&cancel->mutex);
    if (list_node_is_linked(&hook->node)) {
        list_remove(&hook->node);
    } else {
        while (cancel->is_running_hooks)
            cond_wait(&cancel->idle, &cancel->mutex);
    }
    unref_locked(cancel);
}

enum shoal_status call_init(struct call *call_out, const struct shoal_call *call, int64_t default_timeout_ms,
                            struct shoal_error *error)
{
    int64_t timeout_ms = default_timeout_ms;
    struct shoal_cancel *cancel = NULL;

    if (call) {
        if (call->struct_size < FIRST_VERSION_BYTES)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "struct shoal_call: struct_size is %zu, want %zu",
                             call->struct_size, sizeof *call);
        if (call->timeout_ms)
            timeout_ms = call->timeout_ms;
        cancel = call->cancel;
    }
    call_out->deadline_ms = deadline_after_ms(timeout_ms);
    call_out->cancel = cancel;
    call_out->progress = NULL;
    return SHOAL_OK;
}

struct call call_with_timeout(const struct call *call, int64_t timeout_ms)
{
    struct call shorter = *call;
    shorter.deadline_ms = deadline_min(call->deadline_ms, deadline_after_ms(timeout_ms));
    return shorter;
}

enum shoal_status call_check(const struct call *call, struct shoal_error *error, const char *what)
{
    if (cancel_is_triggered(call->cancel))
        return error_set(error, SHOAL_CANCELED, 0, "%s: canceled", what);
    if (deadline_is_past(call->deadline_ms))
        return error_set(error, SHOAL_TIMED_OUT, 0, "%s: deadline passed", what);
    return SHOAL_OK;
}

struct sleeper {
    struct mutex mutex;
    struct cond wake;
    bool is_canceled;
};

static void wake_sleeper(void *arg)
{
    struct sleeper *sleeper = arg;

    mutex_lock(&sleeper->mutex);
    sleeper->is_canceled = true;
    cond_signal(&sleeper->wake);
    mutex_unlock(&sleeper->mutex);
}

enum shoal_status call_sleep(const struct call *call, int64_t delay_ms, struct shoal_error *error, const char *what)
{
    struct sleeper sleeper = {.is_canceled = false};
    struct cancel_hook hook;
    int64_t until = deadline_min(deadline_after_ms(delay_ms), call->deadline_ms);

    mutex_init(&sleeper.mutex, RANK_CANCEL);
    cond_init(&sleeper.wake);
    cancel_hook_add(call->cancel, &hook, wake_sleeper, &sleeper);
    mutex_lock(&sleeper.mutex);
    while (!sleeper.is_canceled && !deadline_is_past(until))
        cond_wait_until(&sleeper.wake, &sleeper.mutex, until);
    mutex_unlock(&sleeper.mutex);
    cancel_hook_remove(call->cancel, &hook);
    cond_release(&sleeper.wake);
    mutex_release(&sleeper.mutex);
    return call_check(call, error, what);
}
