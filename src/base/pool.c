/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/thread.h"

/* One pool_for call; lives on its caller's stack. */
struct job {
    struct list_node node;
    bool (*fn)(void *arg, size_t index);
    void *arg;
    size_t next, count; /* guarded by the pool's mutex */
    unsigned active;    /* threads inside fn */
};

struct pool {
    struct mutex mutex;
    struct cond work, done;
    struct list jobs; /* with indexes left to begin */
    pthread_t *threads;
    unsigned thread_max, thread_count;
    bool is_stopping;
};

enum shoal_status pool_create(unsigned threads, struct pool **pool_out, struct shoal_error *error)
{
    struct pool *pool = calloc(1, sizeof *pool);

    if (!pool)
        return error_no_memory(error);
    pool->thread_max = threads;
    pool->threads = calloc(threads ? threads : 1, sizeof *pool->threads);
    if (!pool->threads) {
        free(pool);
        return error_no_memory(error);
    }
    mutex_init(&pool->mutex, RANK_POOL);
    cond_init(&pool->work);
    cond_init(&pool->done);
    list_init(&pool->jobs);
    *pool_out = pool;
    return SHOAL_OK;
}

/* Begins indexes of job until none is left. Called and left with the mutex held. */
static void work_on(struct pool *pool, struct job *job)
{
    job->active++;
    while (job->next < job->count) {
        size_t index = job->next++;
        bool go_on;

        mutex_unlock(&pool->mutex);
        go_on = job->fn(job->arg, index);
        mutex_lock(&pool->mutex);
        if (!go_on)
            job->next = job->count;
    }
    list_remove(&job->node);
    if (--job->active == 0)
        cond_broadcast(&pool->done);
}

static void *thread_main(void *arg)
{
    struct pool *pool = arg;

    mutex_lock(&pool->mutex);
    while (!pool->is_stopping) {
        struct list_node *node = list_first(&pool->jobs);
        if (node)
            work_on(pool, container_of(node, struct job, node));
        else
            cond_wait(&pool->work, &pool->mutex);
    }
    mutex_unlock(&pool->mutex);
    return NULL;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    mutex_lock(&pool->mutex);
    pool->is_stopping = true;
    cond_broadcast(&pool->work);
    mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    cond_release(&pool->done);
    cond_release(&pool->work);
    mutex_release(&pool->mutex);
    free(pool->threads);
    free(pool);
}

void pool_for(struct pool *pool, size_t count, bool (*fn)(void *arg, size_t index), void *arg)
{
    struct job job = {.fn = fn, .arg = arg, .count = count};

    if (!count)
        return;
    mutex_lock(&pool->mutex);
    /* The caller works too, so one thread fewer is enough; a thread that cannot be made only makes it slower. */
    while (pool->thread_count + 1 < pool->thread_max && pool->thread_count + 1 < count &&
           thread_start(&pool->threads[pool->thread_count], "shoal-pool", thread_main, pool) == 0)
        pool->thread_count++;
    list_push_back(&pool->jobs, &job.node);
    cond_broadcast(&pool->work);
    work_on(pool, &job);
    while (job.active)
        cond_wait(&pool->done, &pool->mutex);
    mutex_unlock(&pool->mutex);
}

unsigned pool_thread_count(const struct pool *pool)
{
    return pool->thread_max;
}
