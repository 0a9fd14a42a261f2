/* SPDX-License-Identifier: Apache-2.0 */
/* How long a leader waits for company, and whom a flight wakes: with a clock that stands still unless the test moves
 * it. The linker puts the functions below in the place of those that combiner.c calls (meson.build). */
#include "unit.h"

#include <stdatomic.h>

#include "base/futex.h"
#include "kv/combiner.h"

#define CALLERS_MAX 8u
#define FLIGHTS_MAX 32u
#define US 1000

static _Atomic int64_t now_ns;
static atomic_uint limit_us, yields;
static void (*on_yield)(void); /* NULL: time passes, yield_ns each time */
static _Atomic int64_t yield_ns;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static uint32_t wakes[FLIGHTS_MAX];                      /* bits of each system call */
static unsigned wake_count;
static size_t counts[FLIGHTS_MAX]; /* items of each flight */
static int64_t takes_ns[FLIGHTS_MAX];
static bool may_end[FLIGHTS_MAX];
static unsigned flight_count;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

int64_t __wrap_clock_now_ns(void);
unsigned __wrap_spin_limit_us(void);
int __wrap_sched_yield(void);
void __real_futex_wake(uint32_t *word, uint32_t bits);
void __wrap_futex_wake(uint32_t *word, uint32_t bits);

int64_t __wrap_clock_now_ns(void)
{
    return atomic_load(&now_ns);
}

unsigned __wrap_spin_limit_us(void)
{
    return atomic_load(&limit_us);
}

int __wrap_sched_yield(void)
{
    atomic_fetch_add(&yields, 1);
    if (on_yield)
        on_yield();
    else
        atomic_fetch_add(&now_ns, atomic_load(&yield_ns));
    return 0;
}

void __wrap_futex_wake(uint32_t *word, uint32_t bits)
{
    pthread_mutex_lock(&lock);
    wakes[wake_count++] = bits;
    pthread_mutex_unlock(&lock);
    __real_futex_wake(word, bits);
}

/* --- callers --- */

struct caller {
    struct combiner_item item;
    enum shoal_status status;
    pthread_t thread;
};

static struct combiner *combiner;
static struct caller callers[CALLERS_MAX];

/* A flight takes as long as takes_ns says, by that clock, and ends when it may. */
static void run(void *arg, struct combiner_item *const *items, size_t count)
{
    unsigned flight;

    (void)arg;
    (void)items;
    pthread_mutex_lock(&lock);
    flight = flight_count++;
    counts[flight] = count;
    pthread_cond_broadcast(&changed);
    while (!may_end[flight])
        pthread_cond_wait(&changed, &lock);
    atomic_fetch_add(&now_ns, takes_ns[flight]);
    pthread_mutex_unlock(&lock);
}

static void *call(void *arg)
{
    struct caller *caller = arg;

    caller->item = (struct combiner_item){.target = 1, .len_bytes = 1, .deadline_ms = DEADLINE_NONE};
    caller->status = combiner_run(combiner, &caller->item, run, NULL);
    return NULL;
}

static void start(unsigned i)
{
    callers[i].thread = start_thread(call, &callers[i]);
}

static void finish(unsigned i)
{
    join_thread(callers[i].thread);
    assert_int_equal(callers[i].status, SHOAL_OK);
}

static unsigned flights(void)
{
    unsigned count;

    pthread_mutex_lock(&lock);
    count = flight_count;
    pthread_mutex_unlock(&lock);
    return count;
}

static void end_flight(unsigned flight, int64_t took_ns)
{
    pthread_mutex_lock(&lock);
    takes_ns[flight] = took_ns;
    may_end[flight] = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Alone, on this thread. Returns how many travelled together. */
static size_t fly(int64_t took_ns)
{
    unsigned flight = flights();
    struct caller caller;

    end_flight(flight, took_ns);
    (void)call(&caller);
    assert_int_equal(caller.status, SHOAL_OK);
    return counts[flight];
}

/* Two on their way and two that wait: from now on leaders expect one more. The last flight takes took_ns. */
static void be_a_crowd(int64_t took_ns)
{
    unsigned first = flights();

    for (unsigned i = 0; i < 4; i++) {
        start(i);
        if (i < 2)
            wait_until(flights() == first + i + 1);
    }
    wait_until(combiner_waiting(combiner) == 2);
    end_flight(first, 0);
    wait_until(flights() == first + 3);
    end_flight(first + 1, 0);
    finish(0);
    finish(1);
    end_flight(first + 2, took_ns);
    finish(2);
    finish(3);
    assert_int_equal(counts[first + 2], 2);
    assert_int_equal(flights(), first + 3);
}

static int setup(void **state)
{
    (void)state;
    memset(may_end, 0, sizeof may_end);
    flight_count = wake_count = 0;
    atomic_store(&yields, 0);
    atomic_store(&yield_ns, 0);
    atomic_store(&limit_us, 200);
    on_yield = NULL;
    combiner = combiner_create(1000);
    assert_non_null(combiner);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    combiner_destroy(combiner);
    return 0;
}

/* --- company --- */

static void who_is_alone_never_waits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(fly(1000 * US), 1);
    assert_int_equal(atomic_load(&yields), 0);
}

static void join_the_leader(void)
{
    if (atomic_load(&yields) > 1)
        return;
    start(0);
    wait_until(combiner_waiting(combiner) == 1);
}

static void company_that_comes_travels_along(void **state)
{
    (void)state;
    be_a_crowd(1000 * US);
    on_yield = join_the_leader;
    assert_int_equal(fly(1000 * US), 2);
    finish(0);
    assert_int_equal(atomic_load(&yields), 1); /* and no longer */
}

static void expect_patience(int64_t last_ns, int64_t wanted_ns)
{
    int64_t began_ns;

    be_a_crowd(last_ns);
    atomic_store(&yields, 0);
    atomic_store(&yield_ns, US);
    began_ns = atomic_load(&now_ns);
    assert_int_equal(fly(0), 1);
    assert_int_equal(atomic_load(&now_ns) - began_ns, wanted_ns);
    /* Those that did not come are not expected again. */
    assert_int_equal(fly(0), 1);
    assert_int_equal(atomic_load(&now_ns) - began_ns, wanted_ns);
    assert_int_equal(atomic_load(&yields), wanted_ns / US);
}

static void company_that_does_not_come_is_not_waited_for_long(void **state)
{
    (void)state;
    expect_patience(1000 * US, 60 * US); /* at most */
    expect_patience(80 * US, 20 * US);   /* a quarter of what the last flight took */
    atomic_store(&limit_us, 7);
    expect_patience(1000 * US, 7 * US); /* as long as any thread may look */
    atomic_store(&limit_us, 0);
    expect_patience(1000 * US, 0); /* one CPU, or it is switched off */
}

/* --- wake-ups --- */

static uint32_t wake_of(unsigned i)
{
    uint32_t bits;

    pthread_mutex_lock(&lock);
    bits = i < wake_count ? wakes[i] : 0;
    pthread_mutex_unlock(&lock);
    return bits;
}

/* Those whose answers are there, and who leads next: not one by one, and nobody else. */
static void one_system_call_wakes_a_flight(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        start(i);
        wait_until(flights() == i + 1);
    }
    for (unsigned i = 2; i < 8; i++) { /* in this order */
        start(i);
        wait_until(combiner_waiting(combiner) == i - 1);
        assert_int_equal(callers[i].item.bit, 1u << (i - 2));
    }
    end_flight(0, 0);
    wait_until(flights() == 3);
    assert_int_equal(counts[2], 4); /* half of 8 */
    assert_int_equal(wake_of(0), callers[2].item.bit);
    end_flight(2, 0); /* the other one is still on its way */
    wait_until(flights() == 4);
    assert_int_equal(counts[3], 2);
    assert_int_equal(wake_of(1), callers[3].item.bit | callers[4].item.bit | callers[5].item.bit | callers[6].item.bit);
    end_flight(1, 0);
    finish(1);
    end_flight(3, 0);
    for (unsigned i = 2; i < 8; i++)
        finish(i);
    finish(0);
    assert_int_equal(wake_of(2), callers[7].item.bit);
    assert_int_equal(wake_count, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        CASE(who_is_alone_never_waits),
        CASE(company_that_comes_travels_along),
        CASE(company_that_does_not_come_is_not_waited_for_long),
        CASE(one_system_call_wakes_a_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
