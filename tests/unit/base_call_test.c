/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines and cancellation of calls, above all the races between trigger, hooks and their removal. */
#include "unit.h"

#include <sched.h>
#include <stdatomic.h>

#include "base/call.h"
#include "base/mutex.h"

static void call_init_validates(void **state)
{
    struct call call;
    struct shoal_error error;
    struct shoal_cancel *cancel;
    (void)state;
    assert_int_equal(call_init(&call, NULL, -1, &error), SHOAL_OK);
    assert_true(call.deadline_ms == DEADLINE_NONE);
    assert_null(call.cancel);
    assert_int_equal(call_init(&call, NULL, 1000, &error), SHOAL_OK);
    assert_true(deadline_left_ms(call.deadline_ms) <= 1000);

    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    struct shoal_call public = {.struct_size = sizeof public, .timeout_ms = 0, .cancel = cancel};
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_OK);
    assert_true(call.deadline_ms == DEADLINE_NONE); /* 0: the default */
    assert_ptr_equal(call.cancel, cancel);
    public.timeout_ms = -7;
    assert_int_equal(call_init(&call, &public, 1000, &error), SHOAL_OK);
    assert_true(call.deadline_ms == DEADLINE_NONE);
    public.timeout_ms = 5;
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_OK);
    assert_true(deadline_left_ms(call.deadline_ms) <= 5);
    public.struct_size = 0;
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "struct_size"));
    public.struct_size = sizeof public + 64; /* a later version of the header */
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_OK);
    shoal_cancel_destroy(cancel);
}

static void check_says_what_ended_it(void **state)
{
    struct call call = {.deadline_ms = DEADLINE_NONE}, shorter;
    struct shoal_error error;
    (void)state;
    assert_int_equal(call_check(&call, &error, "get"), SHOAL_OK);
    shorter = call_with_timeout(&call, 0);
    assert_int_equal(call_check(&shorter, &error, "get 'm'"), SHOAL_TIMED_OUT);
    assert_memory_equal(error.message, "get 'm'", 7);
    assert_int_equal(call_check(&call, &error, "get"), SHOAL_OK); /* the original is unchanged */
    shorter = call_with_timeout(&call, -1);
    assert_true(shorter.deadline_ms == DEADLINE_NONE);
    call.deadline_ms = 5;
    shorter = call_with_timeout(&call, 1000);
    assert_true(shorter.deadline_ms == 5); /* never later */
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    shoal_cancel_trigger(call.cancel);
    assert_int_equal(call_check(&call, &error, "get"), SHOAL_CANCELED); /* before the deadline */
    assert_memory_equal(error.message, "get", 3);
    assert_int_equal(call_check(&call, NULL, "get"), SHOAL_CANCELED);
    shoal_cancel_destroy(call.cancel);
}

static void *trigger_thread(void *arg)
{
    shoal_cancel_trigger(arg);
    return NULL;
}

static void sleep_ends_by_time_deadline_or_cancel(void **state)
{
    struct call call = {.deadline_ms = DEADLINE_NONE}, shorter;
    struct shoal_error error = {0};
    pthread_t thread;
    (void)state;
    int64_t before = clock_now_ms();
    assert_int_equal(call_sleep(&call, 5, &error, "wait"), SHOAL_OK);
    assert_true(clock_now_ms() - before >= 5); /* never shorter */
    assert_int_equal(call_sleep(&call, 0, &error, "wait"), SHOAL_OK);
    shorter = call_with_timeout(&call, 5);
    assert_int_equal(call_sleep(&shorter, 3600000, &error, "retry of 'm'"), SHOAL_TIMED_OUT);
    assert_memory_equal(error.message, "retry of 'm'", 12);
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    thread = start_thread(trigger_thread, call.cancel);
    assert_int_equal(call_sleep(&call, 3600000, &error, "wait"), SHOAL_CANCELED);
    join_thread(thread);
    assert_int_equal(call_sleep(&call, 3600000, &error, "wait"), SHOAL_CANCELED); /* triggered already */
    shoal_cancel_destroy(call.cancel);
}

static void count_hook(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void hooks_run_once(void **state)
{
    struct shoal_cancel *cancel;
    struct cancel_hook first, second, late;
    atomic_int runs_first = 0, runs_second = 0, runs_late = 0;
    (void)state;
    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    assert_false(cancel_is_triggered(cancel));
    cancel_hook_add(cancel, &first, count_hook, &runs_first);
    cancel_hook_add(cancel, &second, count_hook, &runs_second);
    cancel_hook_remove(cancel, &second);
    cancel_hook_remove(cancel, &second); /* again: nothing */
    shoal_cancel_trigger(cancel);
    shoal_cancel_trigger(cancel);
    assert_true(cancel_is_triggered(cancel));
    assert_int_equal(runs_first, 1);
    assert_int_equal(runs_second, 0);
    cancel_hook_add(cancel, &late, count_hook, &runs_late); /* triggered already: at once */
    assert_int_equal(runs_late, 1);
    cancel_hook_remove(cancel, &late);
    cancel_hook_remove(cancel, &first);
    shoal_cancel_destroy(cancel);
}

static void a_null_token_is_never_triggered(void **state)
{
    struct cancel_hook hook;
    atomic_int runs = 0;
    (void)state;
    assert_false(cancel_is_triggered(NULL));
    cancel_hook_add(NULL, &hook, count_hook, &runs);
    cancel_hook_remove(NULL, &hook);
    shoal_cancel_trigger(NULL);
    shoal_cancel_destroy(NULL);
    assert_int_equal(runs, 0);
}

static void a_token_may_be_destroyed_while_in_use(void **state)
{
    struct shoal_cancel *cancel;
    struct cancel_hook hook;
    atomic_int runs = 0;
    (void)state;
    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    cancel_hook_add(cancel, &hook, count_hook, &runs);
    shoal_cancel_destroy(cancel); /* the hook holds it */
    shoal_cancel_trigger(cancel);
    assert_int_equal(runs, 1);
    cancel_hook_remove(cancel, &hook);
}

/* A hook takes a lock of lower rank than the token's: hooks run without the token's mutex. */
static void lock_and_unlock(void *arg)
{
    mutex_lock(arg);
    mutex_unlock(arg);
}

static void hooks_may_take_locks(void **state)
{
    struct shoal_cancel *cancel;
    struct cancel_hook hook;
    struct mutex mutex;
    (void)state;
    mutex_init(&mutex, RANK_STORE);
    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    cancel_hook_add(cancel, &hook, lock_and_unlock, &mutex);
    shoal_cancel_trigger(cancel);
    cancel_hook_remove(cancel, &hook);
    shoal_cancel_destroy(cancel);
    mutex_release(&mutex);
}

/* --- races --- */

struct gate {
    atomic_bool is_inside, may_leave, is_removed;
    struct shoal_cancel *cancel;
    struct cancel_hook hook;
};

static void wait_at_gate(void *arg)
{
    struct gate *gate = arg;
    int64_t deadline = deadline_after_ms(UNIT_WAIT_MS);
    gate->is_inside = true;
    while (!gate->may_leave && !deadline_is_past(deadline))
        sched_yield();
}

static void *remove_thread(void *arg)
{
    struct gate *gate = arg;
    cancel_hook_remove(gate->cancel, &gate->hook);
    gate->is_removed = true;
    return NULL;
}

static void remove_waits_for_a_running_hook(void **state)
{
    struct gate gate = {.is_inside = false};
    pthread_t trigger, remover;
    (void)state;
    assert_int_equal(shoal_cancel_create(&gate.cancel), SHOAL_OK);
    cancel_hook_add(gate.cancel, &gate.hook, wait_at_gate, &gate);
    trigger = start_thread(trigger_thread, gate.cancel);
    wait_until(gate.is_inside);
    remover = start_thread(remove_thread, &gate);
    /* It can be seen wrong only if it returns too early; give it chances to. */
    for (int i = 0; i < 200; i++) {
        sched_yield();
        assert_false(gate.is_removed);
    }
    gate.may_leave = true;
    join_thread(trigger);
    join_thread(remover);
    assert_true(gate.is_removed);
    shoal_cancel_destroy(gate.cancel);
}

struct race {
    struct shoal_cancel *cancel;
    atomic_int started;
};

struct guarded_hook {
    struct cancel_hook hook;
    atomic_bool is_valid;
    atomic_int runs;
    struct race *race;
};

static void run_guarded(void *arg)
{
    struct guarded_hook *guarded = arg;
    if (!guarded->is_valid)
        abort(); /* ran after its removal */
    atomic_fetch_add(&guarded->runs, 1);
}

static void *add_and_remove(void *arg)
{
    struct race *race = arg;
    bool was_triggered = false;
    atomic_fetch_add(&race->started, 1);
    for (int i = 0; i < 200000 && !was_triggered; i++) {
        struct guarded_hook guarded = {.is_valid = true, .race = race};
        was_triggered = cancel_is_triggered(race->cancel);
        cancel_hook_add(race->cancel, &guarded.hook, run_guarded, &guarded);
        cancel_hook_remove(race->cancel, &guarded.hook);
        guarded.is_valid = false;
        if (guarded.runs > 1)
            return arg;
        if (was_triggered && guarded.runs != 1)
            return arg; /* added to a triggered token: must have run */
    }
    return NULL;
}

static void add_remove_and_trigger_race(void **state)
{
    enum { THREADS = 4 };
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct race race = {.started = 0};
        pthread_t threads[THREADS], trigger;
        assert_int_equal(shoal_cancel_create(&race.cancel), SHOAL_OK);
        for (size_t i = 0; i < THREADS; i++)
            threads[i] = start_thread(add_and_remove, &race);
        wait_until(race.started > 0);
        trigger = start_thread(trigger_thread, race.cancel);
        for (size_t i = 0; i < THREADS; i++) {
            void *failed;
            assert_int_equal(pthread_join(threads[i], &failed), 0);
            assert_null(failed);
        }
        join_thread(trigger);
        shoal_cancel_destroy(race.cancel);
    }
}

/* The trigger's thread holds the token by itself: the caller may drop it from inside a hook's effect. */
static void *destroy_thread(void *arg)
{
    shoal_cancel_destroy(arg);
    return NULL;
}

static void trigger_and_last_unref_race(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct shoal_cancel *cancel;
        struct cancel_hook hook;
        atomic_int runs = 0;
        pthread_t trigger, destroyer;
        assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
        cancel_hook_add(cancel, &hook, count_hook, &runs);
        trigger = start_thread(trigger_thread, cancel);
        wait_until(cancel_is_triggered(cancel));
        destroyer = start_thread(destroy_thread, cancel);
        cancel_hook_remove(cancel, &hook);
        assert_int_equal(runs, 1);
        join_thread(trigger);
        join_thread(destroyer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_init_validates),
        cmocka_unit_test(check_says_what_ended_it),
        cmocka_unit_test(sleep_ends_by_time_deadline_or_cancel),
        cmocka_unit_test(hooks_run_once),
        cmocka_unit_test(a_null_token_is_never_triggered),
        cmocka_unit_test(a_token_may_be_destroyed_while_in_use),
        cmocka_unit_test(hooks_may_take_locks),
        cmocka_unit_test(remove_waits_for_a_running_hook),
        cmocka_unit_test(add_remove_and_trigger_race),
        cmocka_unit_test(trigger_and_last_unref_race),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
