/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spin.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"

#define LOG_MODULE "spin"
#define PRICE_MIN 4          /* short waits in a row before looking pays */
#define PRICE_MAX 4096       /* on a machine whose CPUs are busy with other things */
#define CREDIT_MAX 8192      /* more than the highest price */
#define SHORT_WAIT_NS 400000 /* between two threads that sleep: each wake-up may take 100 us on an idle machine */
#define TAKEN_NS 100000      /* a CPU that was given away for longer is wanted by others */

static pthread_once_t limits_once = PTHREAD_ONCE_INIT;
static unsigned limit_us, spinners_max;
static unsigned spinners; /* atomic, relaxed: a bound, it orders nothing */

static void find_limits(void)
{
    const char *text = getenv("SHOAL_SPIN_US");
    cpu_set_t cpus;
    unsigned long value = SPIN_DEFAULT_US;
    char *end = NULL;

    if (text && *text) {
        value = strtoul(text, &end, 10);
        if (*end || value > SPIN_MAX_US || text[0] == '-') {
            value = SPIN_DEFAULT_US;
            LOG_WARN("SHOAL_SPIN_US is '%.60s': want microseconds, 0 to %d; %lu are taken", text, SPIN_MAX_US, value);
        }
    }
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) > 1) {
        spinners_max = (unsigned)CPU_COUNT(&cpus) - 1;
        limit_us = (unsigned)value;
    }
}

unsigned spin_limit_us(void)
{
    pthread_once(&limits_once, find_limits);
    return limit_us;
}

static unsigned price_of(const struct spin *spin)
{
    return spin->price ? spin->price : PRICE_MIN;
}

bool spin_begin(struct spin *spin)
{
    if (spin->credit < price_of(spin) || !spin_limit_us())
        return false;
    if (__atomic_fetch_add(&spinners, 1, __ATOMIC_RELAXED) >= spinners_max) {
        __atomic_fetch_sub(&spinners, 1, __ATOMIC_RELAXED);
        return false;
    }
    spin->looked_ns = clock_now_ns();
    spin->until_ns = spin->looked_ns + (int64_t)limit_us * 1000;
    return true;
}

bool spin_again(struct spin *spin)
{
    int64_t before_ns = spin->looked_ns;

    sched_yield();
    spin->looked_ns = clock_now_ns();
    return spin->looked_ns < spin->until_ns && spin->looked_ns - before_ns < TAKEN_NS;
}

void spin_end(struct spin *spin, bool has_come)
{
    __atomic_fetch_sub(&spinners, 1, __ATOMIC_RELAXED);
    if (has_come && spin->looked_ns < spin->until_ns) {
        spin->price = price_of(spin) > PRICE_MIN ? spin->price / 2 : PRICE_MIN;
        if (spin->credit < CREDIT_MAX)
            spin->credit++;
        return;
    }
    spin->price = price_of(spin) < PRICE_MAX ? price_of(spin) * 2 : PRICE_MAX;
    spin->credit = 0;
}

void spin_slept(struct spin *spin, int64_t slept_ns)
{
    if (slept_ns > SHORT_WAIT_NS)
        spin->credit = 0;
    else if (spin->credit < CREDIT_MAX)
        spin->credit++;
}
