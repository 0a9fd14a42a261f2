/* SPDX-License-Identifier: Apache-2.0 */
#include "base/executor.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mutex.h"
#include "base/thread.h"

struct executor {
    struct mutex mutex;
    struct cond work;
    struct list queue; /* struct executor_task */
    size_t queued, queue_max;
    unsigned thread_count;
    bool is_stopping;
    pthread_t threads[];
};

/* With the mutex held. NULL: nothing waits. */
static struct executor_task *pop(struct executor *executor)
{
    struct list_node *node = list_pop_front(&executor->queue);
    struct executor_task *task;

    if (!node)
        return NULL;
    task = container_of(node, struct executor_task, node);
    task->is_queued = false;
    executor->queued--;
    return task;
}

static void *thread_main(void *arg)
{
    struct executor *executor = arg;

    mutex_lock(&executor->mutex);
    while (!executor->is_stopping) {
        struct executor_task *task = pop(executor);

        if (!task) {
            cond_wait(&executor->work, &executor->mutex);
            continue;
        }
        mutex_unlock(&executor->mutex);
        task->fn(task->arg, false);
        mutex_lock(&executor->mutex);
    }
    mutex_unlock(&executor->mutex);
    return NULL;
}

enum shoal_status executor_create(const char *name, unsigned threads, size_t queue_max, struct executor **executor_out,
                                  struct shoal_error *error)
{
    struct executor *executor;

    if (!threads || !queue_max)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "an executor needs at least one thread and one place");
    executor = calloc(1, sizeof *executor + threads * sizeof executor->threads[0]);
    if (!executor)
        return error_no_memory(error);
    mutex_init(&executor->mutex, RANK_POOL);
    cond_init(&executor->work);
    list_init(&executor->queue);
    executor->queue_max = queue_max;
    while (executor->thread_count < threads) {
        int result = thread_start(&executor->threads[executor->thread_count], name, thread_main, executor);

        if (result) {
            executor_destroy(executor);
            return error_set(error, SHOAL_LIMIT, result, "worker thread: %s", strerror(result));
        }
        executor->thread_count++;
    }
    *executor_out = executor;
    return SHOAL_OK;
}

void executor_destroy(struct executor *executor)
{
    struct executor_task *task;

    if (!executor)
        return;
    mutex_lock(&executor->mutex);
    executor->is_stopping = true;
    cond_broadcast(&executor->work);
    mutex_unlock(&executor->mutex);
    for (unsigned i = 0; i < executor->thread_count; i++)
        pthread_join(executor->threads[i], NULL);
    mutex_lock(&executor->mutex);
    while ((task = pop(executor))) {
        mutex_unlock(&executor->mutex);
        task->fn(task->arg, true);
        mutex_lock(&executor->mutex); /* others may still be taking their tasks back */
    }
    mutex_unlock(&executor->mutex);
    cond_release(&executor->work);
    mutex_release(&executor->mutex);
    free(executor);
}

enum shoal_status executor_submit(struct executor *executor, struct executor_task *task,
                                  void (*fn)(void *arg, bool is_canceled), void *arg)
{
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&executor->mutex);
    if (executor->is_stopping) {
        status = SHOAL_CLOSED;
    } else if (executor->queued >= executor->queue_max) {
        status = SHOAL_LIMIT;
    } else {
        task->fn = fn;
        task->arg = arg;
        task->is_queued = true;
        list_push_back(&executor->queue, &task->node);
        executor->queued++;
        cond_signal(&executor->work);
    }
    mutex_unlock(&executor->mutex);
    return status;
}

bool executor_cancel(struct executor *executor, struct executor_task *task)
{
    bool was_queued;

    mutex_lock(&executor->mutex);
    was_queued = task->is_queued;
    if (was_queued) {
        list_remove(&task->node);
        task->is_queued = false;
        executor->queued--;
    }
    mutex_unlock(&executor->mutex);
    return was_queued;
}

size_t executor_queued(struct executor *executor)
{
    size_t queued;

    mutex_lock(&executor->mutex);
    queued = executor->queued;
    mutex_unlock(&executor->mutex);
    return queued;
}
