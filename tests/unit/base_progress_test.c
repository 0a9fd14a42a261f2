/* SPDX-License-Identifier: Apache-2.0 */
/* What a callback is told: nothing that goes back, all of it in the end, and nobody without one. */
#include "unit.h"

#include "base/progress.h"

struct told {
    unsigned count;
    struct shoal_progress last;
};

static void on_progress(void *arg, const struct shoal_progress *now)
{
    struct told *told = arg;

    told->count++;
    told->last = *now;
}

/* Every call of call_progress_at is an interval after the one before. */
static void make_due(struct call *call)
{
    call->progress->next_ms = 1;
}

static void begin(struct call *call, struct call_progress *progress, struct told *told)
{
    const struct shoal_call public = {
        .struct_size = sizeof public, .progress = on_progress, .progress_arg = told, .progress_interval_ms = 3600000};
    struct shoal_error error;

    *told = (struct told){.count = 0};
    assert_int_equal(call_init(call, &public, -1, &error), SHOAL_OK);
    assert_null(call->progress);
    assert_int_equal(call_progress_init(call, progress, &public, &error), SHOAL_OK);
    assert_ptr_equal(call->progress, progress);
}

static void nobody_wants_to_know(void **state)
{
    struct shoal_call public = {.struct_size = sizeof public, .progress_interval_ms = -1};
    struct call_progress progress;
    struct shoal_error error;
    struct call call;
    (void)state;
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_OK);
    assert_int_equal(call_progress_init(&call, &progress, NULL, &error), SHOAL_OK);
    assert_int_equal(call_progress_init(&call, &progress, &public, &error), SHOAL_OK);
    assert_null(call.progress);
    public.progress = on_progress;
    assert_int_equal(call_progress_init(&call, &progress, &public, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "interval"));
    public.progress_interval_ms = 0;
    public.struct_size = offsetof(struct shoal_call, progress); /* the rest is not there */
    assert_int_equal(call_init(&call, &public, -1, &error), SHOAL_OK);
    assert_int_equal(call_progress_init(&call, &progress, &public, &error), SHOAL_OK);
    assert_null(call.progress);
    call_progress_set_total(&call, 1);
    call_progress_at(&call, 1);
    call_progress_part(&call, 1);
    call_progress_end(&call, true);
    assert_true(call_progress_next_ms(&call) == DEADLINE_NONE);
}

static void told_once_an_interval_and_at_the_end(void **state)
{
    struct call_progress progress;
    struct told told;
    struct call call;
    (void)state;
    begin(&call, &progress, &told);
    call_progress_set_total(&call, 100);
    call_progress_at(&call, 10);
    assert_int_equal(told.count, 0);
    make_due(&call);
    call_progress_at(&call, 20);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.last.done_bytes, 20);
    assert_int_equal(told.last.total_bytes, 100);
    call_progress_at(&call, 30);
    assert_int_equal(told.count, 1);
    assert_true(deadline_left_ms(call_progress_next_ms(&call)) > 0);
    call_progress_end(&call, false);
    assert_int_equal(told.count, 2);
    assert_int_equal(told.last.done_bytes, 30);
    call_progress_end(&call, true);
    assert_int_equal(told.last.done_bytes, 100);
}

static void never_less_than_before(void **state)
{
    struct call_progress progress;
    struct told told;
    struct call call;
    (void)state;
    begin(&call, &progress, &told);
    make_due(&call);
    call_progress_at(&call, 10); /* of a length that is not known */
    assert_int_equal(told.last.done_bytes, 0);
    call_progress_set_total(&call, 100);
    make_due(&call);
    call_progress_at(&call, 60);
    make_due(&call);
    call_progress_at(&call, 5); /* the second attempt */
    assert_int_equal(told.last.done_bytes, 60);
    make_due(&call);
    call_progress_at(&call, 1000);
    assert_int_equal(told.last.done_bytes, 100);
    call_progress_set_total(&call, 40); /* another value */
    make_due(&call);
    call_progress_at(&call, 5);
    assert_int_equal(told.last.total_bytes, 40);
    assert_int_equal(told.last.done_bytes, 40);
}

static void parts_add_up(void **state)
{
    struct call_progress progress;
    struct told told;
    struct call call;
    (void)state;
    begin(&call, &progress, &told);
    call_progress_set_total(&call, 200);
    call_progress_at(&call, 100);
    make_due(&call);
    call_progress_part(&call, 100);
    assert_int_equal(told.last.done_bytes, 100);
    make_due(&call);
    call_progress_at(&call, 50);
    assert_int_equal(told.last.done_bytes, 150);
    call_progress_end(&call, true);
    assert_int_equal(told.last.done_bytes, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_wants_to_know),
        cmocka_unit_test(told_once_an_interval_and_at_the_end),
        cmocka_unit_test(never_less_than_before),
        cmocka_unit_test(parts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
