/* SPDX-License-Identifier: Apache-2.0 */
/* How often something was used lately, in bounded memory: a count-min sketch with conservative update whose counters
 * are halved after every so many additions (TinyLFU; Einziger, Friedman, Manes 2017). Estimates are never too low but
 * for that ageing and for races between threads that add the same, and rarely too high.
 *
 * Threads: add and estimate from any thread without locks; age from one thread at a time. */
#ifndef SHOAL_TIER_SKETCH_H
#define SHOAL_TIER_SKETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKETCH_COUNT_MAX 63
#define SKETCH_ROWS 4u

struct sketch {
    uint8_t *counters; /* owned; SKETCH_ROWS rows of width */
    size_t width;      /* a power of two */
    uint64_t additions, additions_per_age;
};

/* For about expected_items different items in use at a time. false: out of memory. */
bool sketch_init(struct sketch *sketch, size_t expected_items);
void sketch_release(struct sketch *sketch); /* zeroed is allowed */

/* hash: well-mixed 64 bits of the item. Returns the new estimate. */
unsigned sketch_add(struct sketch *sketch, uint64_t hash);
unsigned sketch_estimate(const struct sketch *sketch, uint64_t hash); /* at most SKETCH_COUNT_MAX */

/* Halves all counters if it is time to; walks the sketch then. */
bool sketch_age(struct sketch *sketch);

#endif
