/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/sketch.h"

#include <stdlib.h>

#define WIDTH_MIN 1024u
#define WIDTH_MAX (1u << 22)
#define ADDITIONS_PER_COUNTER 10 /* the sample size of TinyLFU, in additions per item */

bool sketch_init(struct sketch *sketch, size_t expected_items)
{
    size_t width = WIDTH_MIN;

    while (width < expected_items && width < WIDTH_MAX)
        width *= 2;
    *sketch = (struct sketch){.width = width, .additions_per_age = width * ADDITIONS_PER_COUNTER};
    sketch->counters = calloc(SKETCH_ROWS, width);
    return sketch->counters != NULL;
}

void sketch_release(struct sketch *sketch)
{
    free(sketch->counters);
    sketch->counters = NULL;
}

/* One position per row from two halves of the hash (Kirsch and Mitzenmacher: double hashing is enough). */
static uint8_t *counter_at(const struct sketch *sketch, uint64_t hash, unsigned row)
{
    uint64_t step = (hash >> 32) | 1;

    return &sketch->counters[row * sketch->width + ((hash + row * step) & (sketch->width - 1))];
}

unsigned sketch_estimate(const struct sketch *sketch, uint64_t hash)
{
    unsigned least = SKETCH_COUNT_MAX;

    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        unsigned count = __atomic_load_n(counter_at(sketch, hash, row), __ATOMIC_RELAXED);
        if (count < least)
            least = count;
    }
    return least;
}

unsigned sketch_add(struct sketch *sketch, uint64_t hash)
{
    unsigned least = sketch_estimate(sketch, hash);

    __atomic_fetch_add(&sketch->additions, 1, __ATOMIC_RELAXED);
    if (least == SKETCH_COUNT_MAX)
        return least;
    for (unsigned row = 0; row < SKETCH_ROWS; row++) {
        uint8_t *counter = counter_at(sketch, hash, row);
        uint8_t expected = (uint8_t)least;
        /* Fails when another thread was here first: its addition stands for both. */
        __atomic_compare_exchange_n(counter, &expected, (uint8_t)(least + 1), false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
    return least + 1;
}

bool sketch_age(struct sketch *sketch)
{
    if (__atomic_load_n(&sketch->additions, __ATOMIC_RELAXED) < sketch->additions_per_age)
        return false;
    __atomic_store_n(&sketch->additions, 0, __ATOMIC_RELAXED);
    for (size_t i = 0; i < SKETCH_ROWS * sketch->width; i++) {
        uint8_t count = __atomic_load_n(&sketch->counters[i], __ATOMIC_RELAXED);
        if (count)
            __atomic_store_n(&sketch->counters[i], (uint8_t)(count / 2), __ATOMIC_RELAXED);
    }
    return true;
}
