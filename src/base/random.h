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

/* Many of them without a system call each: a counter that began at a random number, mixed (splitmix64 is one to one, so
 * a source repeats itself after 2^64). Not for secrets. Any thread. */
struct random_ids {
    uint64_t next; /* atomic, relaxed */
};
void random_ids_init(struct random_ids *ids);
uint64_t random_ids_next(struct random_ids *ids); /* never 0 */

/* Delay before attempt n (0, 1, ...): full jitter over base * 2^n, at most max, at least 1 (AWS architecture blog,
 * "Exponential backoff and jitter"). */
int64_t backoff_ms(struct random *random, unsigned attempt, int64_t base_ms, int64_t max_ms);

#endif
