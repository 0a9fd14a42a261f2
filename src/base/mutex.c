/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutex.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

#ifndef NDEBUG
#define HELD_MAX 16
static __thread const struct mutex *held[HELD_MAX];
static __thread unsigned held_count;

static void rank_push(const struct mutex *mutex)
{
    if (held_count == HELD_MAX || (held_count && held[held_count - 1]->rank >= mutex->rank)) {
        fprintf(stderr, "lock order violated: rank %d taken under rank %d\n", (int)mutex->rank,
                held_count ? (int)held[held_count - 1]->rank : 0);
        abort();
    }
    held[held_count++] = mutex;
}

static void rank_pop(const struct mutex *mutex)
{
    for (unsigned i = held_count; i-- > 0;) {
        if (held[i] == mutex) {
            for (; i + 1 < held_count; i++)
                held[i] = held[i + 1];
            held_count--;
            return;
        }
    }
    fprintf(stderr, "mutex of rank %d unlocked by a thread that does not hold it\n", (int)mutex->rank);
    abort();
}
#else
static void rank_push(const struct mutex *mutex)
{
    (void)mutex;
}
static void rank_pop(const struct mutex *mutex)
{
    (void)mutex;
}
#endif

static void check(int result)
{
    if (result)
        abort(); /* our own bug: a mutex or condition used before init or after release */
}

void mutex_init(struct mutex *mutex, enum mutex_rank rank)
{
    check(pthread_mutex_init(&mutex->native, NULL));
    mutex->rank = rank;
}

void mutex_release(struct mutex *mutex)
{
    check(pthread_mutex_destroy(&mutex->native));
}

void mutex_lock(struct mutex *mutex)
{
    rank_push(mutex);
    check(pthread_mutex_lock(&mutex->native));
}

void mutex_unlock(struct mutex *mutex)
{
    rank_pop(mutex);
    check(pthread_mutex_unlock(&mutex->native));
}

void cond_init(struct cond *cond)
{
    pthread_condattr_t attr;
    check(pthread_condattr_init(&attr));
    check(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    check(pthread_cond_init(&cond->native, &attr));
    check(pthread_condattr_destroy(&attr));
}

void cond_release(struct cond *cond)
{
    check(pthread_cond_destroy(&cond->native));
}

void cond_wait(struct cond *cond, struct mutex *mutex)
{
    check(pthread_cond_wait(&cond->native, &mutex->native));
}

bool cond_wait_until(struct cond *cond, struct mutex *mutex, int64_t deadline_ms)
{
    struct timespec at;

    if (deadline_ms == DEADLINE_NONE) {
        cond_wait(cond, mutex);
        return true;
    }
    at = deadline_timespec(deadline_ms);
    return pthread_cond_timedwait(&cond->native, &mutex->native, &at) == 0;
}

void cond_signal(struct cond *cond)
{
    check(pthread_cond_signal(&cond->native));
}

void cond_broadcast(struct cond *cond)
{
    check(pthread_cond_broadcast(&cond->native));
}
