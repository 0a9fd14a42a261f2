/* SPDX-License-Identifier: Apache-2.0 */
#include "base/futex.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

void futex_wait(uint32_t *word, uint32_t value, uint32_t bits, int64_t deadline_ms)
{
    struct timespec until = deadline_timespec(deadline_ms);

    (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, deadline_ms == DEADLINE_NONE ? NULL : &until, NULL,
                  bits);
}

void futex_wake(uint32_t *word, uint32_t bits)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, bits);
}
