/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <limits.h>

int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_now_ms(void)
{
    return clock_now_ns() / 1000000;
}

int64_t deadline_after_ms(int64_t timeout_ms)
{
    int64_t deadline;
    if (timeout_ms < 0 || __builtin_add_overflow(clock_now_ms(), timeout_ms, &deadline))
        return DEADLINE_NONE;
    return deadline;
}

int64_t deadline_left_ms(int64_t deadline_ms)
{
    int64_t left;
    if (deadline_ms == DEADLINE_NONE)
        return INT64_MAX;
    left = deadline_ms - clock_now_ms();
    return left > 0 ? left : 0;
}

int deadline_poll_ms(int64_t deadline_ms)
{
    int64_t left;
    if (deadline_ms == DEADLINE_NONE)
        return -1;
    left = deadline_left_ms(deadline_ms);
    return left > INT_MAX ? INT_MAX : (int)left;
}

bool deadline_is_past(int64_t deadline_ms)
{
    return deadline_ms != DEADLINE_NONE && deadline_left_ms(deadline_ms) == 0;
}

struct timespec deadline_timespec(int64_t deadline_ms)
{
    return (struct timespec){.tv_sec = (time_t)(deadline_ms / 1000), .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
}
