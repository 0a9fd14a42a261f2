/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a wake-up reaches. That a thread sleeps is read in /proc, which says what it waits for. */
#include "unit.h"

#include <sys/syscall.h>

#include "base/futex.h"

#define SLEEPERS 6u

static uint32_t word;

struct sleeper {
    pthread_t thread;
    uint32_t bits;
    int tid;        /* atomic; 0: not started yet */
    bool may_go;    /* atomic: what it waits for */
    unsigned woken; /* atomic: how often it looked again */
};

static void *sleep_until_told(void *arg)
{
    struct sleeper *sleeper = arg;

    __atomic_store_n(&sleeper->tid, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (;;) {
        uint32_t value = __atomic_load_n(&word, __ATOMIC_ACQUIRE);

        if (__atomic_load_n(&sleeper->may_go, __ATOMIC_ACQUIRE))
            return NULL;
        futex_wait(&word, value, sleeper->bits, DEADLINE_NONE);
        __atomic_add_fetch(&sleeper->woken, 1, __ATOMIC_RELAXED);
    }
}

/* /proc/.../syscall: number and arguments of the call that the thread sleeps in. */
static bool sleeps(const struct sleeper *sleeper)
{
    int tid = __atomic_load_n(&sleeper->tid, __ATOMIC_ACQUIRE);
    unsigned long long address = 0;
    long number = -1;
    char path[64];
    FILE *file;

    if (!tid)
        return false;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    file = fopen(path, "r");
    assert_non_null(file);
    if (fscanf(file, "%ld %llx", &number, &address) != 2)
        number = -1;
    (void)fclose(file);
    return number == SYS_futex && address == (unsigned long long)(uintptr_t)&word;
}

static unsigned woken(const struct sleeper *sleeper)
{
    return __atomic_load_n(&sleeper->woken, __ATOMIC_RELAXED);
}

static void put_to_sleep(struct sleeper sleepers[SLEEPERS], const uint32_t bits[SLEEPERS])
{
    for (unsigned i = 0; i < SLEEPERS; i++) {
        sleepers[i] = (struct sleeper){.bits = bits[i]};
        sleepers[i].thread = start_thread(sleep_until_told, &sleepers[i]);
    }
    for (unsigned i = 0; i < SLEEPERS; i++)
        wait_until(sleeps(&sleepers[i]));
}

static void let_go(struct sleeper *sleeper)
{
    __atomic_store_n(&sleeper->may_go, true, __ATOMIC_RELEASE);
}

static void wake(uint32_t bits)
{
    __atomic_add_fetch(&word, 1, __ATOMIC_RELEASE);
    futex_wake(&word, bits);
}

/* One call wakes all that have one of its bits, and nobody else. */
static void those_with_the_bits_are_woken(void **state)
{
    static const uint32_t bits[SLEEPERS] = {1u << 0, 1u << 31, 1u << 5, 1u << 0, 1u << 4 | 1u << 5, 1u << 6};
    static const bool is_meant[SLEEPERS] = {true, false, true, true, true, false};
    struct sleeper sleepers[SLEEPERS];

    (void)state;
    put_to_sleep(sleepers, bits);
    for (unsigned i = 0; i < SLEEPERS; i++)
        if (is_meant[i])
            let_go(&sleepers[i]);
    wake(1u << 0 | 1u << 5);
    for (unsigned i = 0; i < SLEEPERS; i++)
        if (is_meant[i])
            join_thread(sleepers[i].thread);
    for (unsigned i = 0; i < SLEEPERS; i++) {
        assert_int_equal(woken(&sleepers[i]), is_meant[i]);
        let_go(&sleepers[i]);
    }
    wake(1u << 31 | 1u << 6);
    join_thread(sleepers[1].thread);
    join_thread(sleepers[5].thread);
}

static void all_bits_wake_everybody(void **state)
{
    static const uint32_t bits[SLEEPERS] = {1u << 0, 1u << 31, 1u << 5, UINT32_MAX, 1u << 4, 1u << 5};
    struct sleeper sleepers[SLEEPERS];

    (void)state;
    put_to_sleep(sleepers, bits);
    for (unsigned i = 0; i < SLEEPERS; i++)
        let_go(&sleepers[i]);
    wake(UINT32_MAX);
    for (unsigned i = 0; i < SLEEPERS; i++) {
        join_thread(sleepers[i].thread);
        assert_int_equal(woken(&sleepers[i]), 1);
    }
}

/* Whoever changes the word before a thread sleeps does not have to wake it. */
static void who_is_too_late_does_not_sleep(void **state)
{
    uint32_t changed = 8;

    (void)state;
    futex_wait(&changed, 7, 1, DEADLINE_NONE);
    futex_wait(&changed, 7, UINT32_MAX, deadline_after_ms(UNIT_WAIT_MS));
}

static void a_deadline_ends_the_wait(void **state)
{
    int64_t deadline_ms = deadline_after_ms(20);
    uint32_t unchanged = 7;

    (void)state;
    futex_wait(&unchanged, 7, 1, DEADLINE_PAST);
    while (!deadline_is_past(deadline_ms)) /* it may return for no reason */
        futex_wait(&unchanged, 7, 1, deadline_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_with_the_bits_are_woken),
        cmocka_unit_test(all_bits_wake_everybody),
        cmocka_unit_test(who_is_too_late_does_not_sleep),
        cmocka_unit_test(a_deadline_ends_the_wait),
    };

    if (access("/proc/self/syscall", R_OK) != 0) {
        fprintf(stderr, "skipped: there is no /proc/self/syscall\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
