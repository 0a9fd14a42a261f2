/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded generator (xoshiro256**, Blackman and Vigna; seeded by splitmix64) and jittered backoff. */
#ifndef SHOAL_BASE_RANDOM_H
#define SHOAL_BASE_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state[4];
};

void random_init(struct random *random, uint64_t seed);
uint64_t random_next(struct random *random);
/* Uniform in [0, bound); bound >= 1. */
uint64_t random_below(struct random *random, uint64_t bound);
/* From the kernel's generator; never 0. */
uint64_t random_id(void);

/* Delay before attempt n (0, 1, ...): full jitter over base * 2^n, at most max, at least 1 (AWS architecture blog,
 * "Exponential backoff and jitter"). */
int64_t backoff_ms(struct random *random, unsigned attempt, int64_t base_ms, int64_t max_ms);

#endif
