/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads with a bounded queue. */
#include "unit.h"

#include <stdatomic.h>

#include "base/executor.h"
#include "base/mutex.h"

/* Tasks that can be held up, so that a test decides who waits. */
struct gate {
    struct mutex mutex;
    struct cond changed;
    bool is_open;
    unsigned inside;
};

static void gate_init(struct gate *gate)
{
    *gate = (struct gate){.is_open = false};
    mutex_init(&gate->mutex, RANK_STORE);
    cond_init(&gate->changed);
}

static void gate_release(struct gate *gate)
{
    cond_release(&gate->changed);
    mutex_release(&gate->mutex);
}

static void gate_open(struct gate *gate)
{
    mutex_lock(&gate->mutex);
    gate->is_open = true;
    cond_broadcast(&gate->changed);
    mutex_unlock(&gate->mutex);
}

static void gate_wait_inside(struct gate *gate, unsigned count)
{
    mutex_lock(&gate->mutex);
    while (gate->inside < count)
        assert_true(cond_wait_until(&gate->changed, &gate->mutex, deadline_after_ms(UNIT_WAIT_MS)));
    mutex_unlock(&gate->mutex);
}

static void pass(void *arg, bool is_canceled)
{
    struct gate *gate = arg;

    if (is_canceled)
        return;
    mutex_lock(&gate->mutex);
    gate->inside++;
    cond_broadcast(&gate->changed);
    while (!gate->is_open)
        cond_wait(&gate->changed, &gate->mutex);
    mutex_unlock(&gate->mutex);
}

struct job {
    struct executor_task task;
    struct executor *executor;
    atomic_uint *sequence;
    atomic_uint runs, cancels, position;
    unsigned again;
};

static void run_job(void *arg, bool is_canceled)
{
    struct job *job = arg;

    job->position = atomic_fetch_add(job->sequence, 1);
    if (is_canceled)
        job->cancels++;
    job->runs++;
    if (!is_canceled && job->again) {
        job->again--;
        executor_submit(job->executor, &job->task, run_job, job);
    }
}

static void tasks_begin_in_order(void **state)
{
    struct executor *executor;
    struct job jobs[100] = {0};
    atomic_uint sequence = 0;
    (void)state;
    assert_int_equal(executor_create("unit", 1, 100, &executor, NULL), SHOAL_OK);
    for (size_t i = 0; i < 100; i++) {
        jobs[i].sequence = &sequence;
        assert_int_equal(executor_submit(executor, &jobs[i].task, run_job, &jobs[i]), SHOAL_OK);
    }
    wait_until(jobs[99].runs == 1);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].cancels, 0);
        assert_int_equal(jobs[i].position, i);
    }
    assert_int_equal(executor_queued(executor), 0);
    executor_destroy(executor);
    executor_destroy(NULL);
}

static void a_full_queue_is_a_limit(void **state)
{
    struct executor *executor;
    struct executor_task blocker[2] = {0};
    struct job jobs[4] = {0};
    struct gate gate;
    atomic_uint sequence = 0;
    (void)state;
    assert_int_equal(executor_create("unit", 0, 3, &executor, NULL), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(executor_create("unit", 2, 0, &executor, NULL), SHOAL_INVALID_ARGUMENT);
    gate_init(&gate);
    assert_int_equal(executor_create("unit", 2, 3, &executor, NULL), SHOAL_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(executor_submit(executor, &blocker[i], pass, &gate), SHOAL_OK);
    gate_wait_inside(&gate, 2);
    for (size_t i = 0; i < 4; i++) {
        jobs[i].sequence = &sequence;
        assert_int_equal(executor_submit(executor, &jobs[i].task, run_job, &jobs[i]), i < 3 ? SHOAL_OK : SHOAL_LIMIT);
    }
    assert_int_equal(executor_queued(executor), 3);
    gate_open(&gate);
    wait_until(jobs[0].runs + jobs[1].runs + jobs[2].runs == 3);
    assert_int_equal(executor_submit(executor, &jobs[3].task, run_job, &jobs[3]), SHOAL_OK);
    wait_until(jobs[3].runs == 1);
    executor_destroy(executor);
    gate_release(&gate);
}

static void what_waits_can_be_taken_back(void **state)
{
    struct executor *executor;
    struct executor_task blocker = {0};
    struct job jobs[3] = {0};
    struct gate gate;
    atomic_uint sequence = 0;
    (void)state;
    gate_init(&gate);
    assert_int_equal(executor_create("unit", 1, 3, &executor, NULL), SHOAL_OK);
    assert_int_equal(executor_submit(executor, &blocker, pass, &gate), SHOAL_OK);
    gate_wait_inside(&gate, 1);
    assert_false(executor_cancel(executor, &blocker)); /* runs */
    for (size_t i = 0; i < 3; i++) {
        jobs[i].sequence = &sequence;
        assert_int_equal(executor_submit(executor, &jobs[i].task, run_job, &jobs[i]), SHOAL_OK);
    }
    assert_true(executor_cancel(executor, &jobs[1].task));
    assert_false(executor_cancel(executor, &jobs[1].task));
    assert_int_equal(executor_queued(executor), 2);
    gate_open(&gate);
    wait_until(jobs[2].runs == 1);
    assert_int_equal(jobs[0].runs, 1);
    assert_int_equal(jobs[1].runs, 0);
    assert_false(executor_cancel(executor, &jobs[0].task)); /* has run */
    executor_destroy(executor);
    gate_release(&gate);
}

struct destroyer {
    struct executor *executor;
};

static void *destroy_it(void *arg)
{
    struct destroyer *destroyer = arg;
    executor_destroy(destroyer->executor);
    return NULL;
}

/* Destroy waits for what has begun and cancels the rest, each exactly once. */
static void destroy_cancels_what_waits(void **state)
{
    struct destroyer destroyer;
    struct executor_task blocker = {0};
    struct job jobs[3] = {0}, late = {0};
    struct gate gate;
    atomic_uint sequence = 0;
    pthread_t thread;
    (void)state;
    gate_init(&gate);
    assert_int_equal(executor_create("unit", 1, 8, &destroyer.executor, NULL), SHOAL_OK);
    assert_int_equal(executor_submit(destroyer.executor, &blocker, pass, &gate), SHOAL_OK);
    gate_wait_inside(&gate, 1);
    for (size_t i = 0; i < 3; i++) {
        jobs[i].sequence = &sequence;
        assert_int_equal(executor_submit(destroyer.executor, &jobs[i].task, run_job, &jobs[i]), SHOAL_OK);
    }
    late.sequence = &sequence;
    thread = start_thread(destroy_it, &destroyer);
    /* The gate is closed, so the executor cannot be gone yet. */
    wait_until(({
        enum shoal_status status_ = executor_submit(destroyer.executor, &late.task, run_job, &late);
        if (status_ == SHOAL_OK)
            assert_true(executor_cancel(destroyer.executor, &late.task));
        status_ == SHOAL_CLOSED;
    }));
    gate_open(&gate);
    join_thread(thread);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].cancels, 1);
    }
    assert_int_equal(late.runs, 0);
    gate_release(&gate);
}

struct submitter {
    struct executor *executor;
    struct job *jobs;
    size_t count;
    uint64_t refused;
};

static void *submit_many(void *arg)
{
    struct submitter *submitter = arg;

    for (size_t i = 0; i < submitter->count; i++) {
        while (executor_submit(submitter->executor, &submitter->jobs[i].task, run_job, &submitter->jobs[i]))
            submitter->refused++;
    }
    return NULL;
}

/* Many submitters, a small queue, tasks that submit themselves again: each accepted submit runs once. */
static void accepted_tasks_run_once(void **state)
{
    enum { SUBMITTERS = 3, EACH = 500 };
    struct executor *executor;
    struct submitter submitters[SUBMITTERS];
    pthread_t threads[SUBMITTERS];
    atomic_uint sequence = 0;
    (void)state;
    assert_int_equal(executor_create("unit", 4, 16, &executor, NULL), SHOAL_OK);
    for (size_t i = 0; i < SUBMITTERS; i++) {
        struct job *jobs = calloc(EACH, sizeof *jobs);
        assert_non_null(jobs);
        for (size_t k = 0; k < EACH; k++) {
            jobs[k].executor = executor;
            jobs[k].sequence = &sequence;
        }
        submitters[i] = (struct submitter){.executor = executor, .jobs = jobs, .count = EACH};
        threads[i] = start_thread(submit_many, &submitters[i]);
    }
    for (size_t i = 0; i < SUBMITTERS; i++)
        join_thread(threads[i]);
    executor_destroy(executor);
    for (size_t i = 0; i < SUBMITTERS; i++) {
        for (size_t k = 0; k < EACH; k++)
            assert_int_equal(submitters[i].jobs[k].runs, 1);
        free(submitters[i].jobs);
    }
}

static void a_task_may_submit_itself(void **state)
{
    struct executor *executor;
    struct job job = {0};
    atomic_uint sequence = 0;
    (void)state;
    assert_int_equal(executor_create("unit", 1, 1, &executor, NULL), SHOAL_OK);
    job = (struct job){.executor = executor, .sequence = &sequence, .again = 10};
    assert_int_equal(executor_submit(executor, &job.task, run_job, &job), SHOAL_OK);
    wait_until(job.runs == 11);
    executor_destroy(executor);
    assert_int_equal(job.runs, 11);
    assert_int_equal(job.cancels, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_begin_in_order),         cmocka_unit_test(a_full_queue_is_a_limit),
        cmocka_unit_test(what_waits_can_be_taken_back), cmocka_unit_test(destroy_cancels_what_waits),
        cmocka_unit_test(accepted_tasks_run_once),      cmocka_unit_test(a_task_may_submit_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
