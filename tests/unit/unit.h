/* SPDX-License-Identifier: Apache-2.0 */
/* What the unit tests share: cmocka with its prerequisites, waiting for a condition with a deadline, threads that must
 * not outlive the test, and the expectation that a child process dies. */
#ifndef SHOAL_TESTS_UNIT_H
#define SHOAL_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

#define UNIT_WAIT_MS 40000 /* far beyond what a loaded machine needs; only a broken test waits for so long */

#define wait_until(condition)                                                                                          \
    do {                                                                                                               \
        int64_t deadline_ = deadline_after_ms(UNIT_WAIT_MS);                                                           \
        while (!(condition)) {                                                                                         \
            if (deadline_is_past(deadline_))                                                                           \
                fail_msg("waited in vain for: %s", #condition);                                                        \
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);                                                    \
        }                                                                                                              \
    } while (0)

static inline pthread_t start_thread(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fn, arg), 0);
    return thread;
}

static inline void join_thread(pthread_t thread)
{
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The signal that ends fn in a child process, 0 if it returns. What the child prints is dropped. */
static inline int signal_of_child(void (*fn)(void))
{
    int wait_status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        /* cmocka catches signals; a sanitizer does not catch SIGABRT by default. */
        signal(SIGABRT, SIG_DFL);
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    return WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
}

/* Seed of a randomised test: SHOAL_TEST_SEED repeats one. Printed, so that the log of a failure has it. */
static inline uint64_t test_seed(void)
{
    const char *text = getenv("SHOAL_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : random_id();
    print_message("seed: SHOAL_TEST_SEED=0x%llx\n", (unsigned long long)seed);
    return seed;
}

#endif
