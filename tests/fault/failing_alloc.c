/* SPDX-License-Identifier: Apache-2.0 */
#include "failing_alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* How many allocations are still to come until the last that fails; below 1: none fails. */
static _Atomic long countdown;
static _Atomic long failures; /* the last so many of the countdown fail */
static atomic_bool has_fired;
static _Atomic(const char *) thread_name; /* only those of threads of that name count; NULL: all */

void failing_alloc_begin(unsigned long nth, unsigned times)
{
    failing_alloc_begin_in(NULL, nth, times);
}

void failing_alloc_begin_in(const char *thread, unsigned long nth, unsigned times)
{
    atomic_store(&thread_name, thread);
    atomic_store(&has_fired, false);
    atomic_store(&failures, (long)times);
    atomic_store(&countdown, (long)(nth + times - 1));
}

bool failing_alloc_end(void)
{
    atomic_store(&countdown, 0);
    return atomic_load(&has_fired);
}

bool failing_alloc_has_fired(void)
{
    return atomic_load(&has_fired);
}

static bool is_counted(void)
{
    const char *wanted = atomic_load(&thread_name);
    char name[16];

    return !wanted || (pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strcmp(name, wanted) == 0);
}

static bool fails_now(void)
{
    long left;

    if (atomic_load_explicit(&countdown, memory_order_relaxed) <= 0 || !is_counted())
        return false;
    left = atomic_fetch_sub(&countdown, 1);
    if (left <= 0 || left > atomic_load(&failures))
        return false;
    atomic_store(&has_fired, true);
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails_now() ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}
