/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and deadlines. A deadline is a point on the monotonic clock in ms; INT64_MAX means none. */
#ifndef SHOAL_BASE_CLOCK_H
#define SHOAL_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define DEADLINE_NONE INT64_MAX
#define DEADLINE_PAST 0 /* only looks */

int64_t clock_now_ms(void);
int64_t clock_now_ns(void);

/* timeout_ms < 0: DEADLINE_NONE. Saturates. */
int64_t deadline_after_ms(int64_t timeout_ms);
/* Milliseconds left, 0 when passed, INT64_MAX for none. */
int64_t deadline_left_ms(int64_t deadline_ms);
/* The same as a poll() timeout: -1 for none, rounded up, at most INT_MAX. */
int deadline_poll_ms(int64_t deadline_ms);
bool deadline_is_past(int64_t deadline_ms);
static inline int64_t deadline_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
/* For pthread_cond_timedwait on a condition made by cond_init_monotonic (mutex.h). */
struct timespec deadline_timespec(int64_t deadline_ms);

#endif
