/* SPDX-License-Identifier: Apache-2.0 */
/* Who shall own a new object: clients by free capacity, the writer itself with a weight. Pure functions. */
#ifndef SHOAL_MASTER_TARGETS_H
#define SHOAL_MASTER_TARGETS_H

#include <stddef.h>
#include <stdint.h>

struct target_candidate {
    uint64_t instance;
    uint64_t free_bytes;   /* of all tiers together */
    uint64_t largest_free; /* of one tier: what fits without evicting */
    uint64_t largest_tier; /* capacity: what fits at all */
    uint32_t client;       /* slot */
};

struct target_query {
    uint64_t len_bytes;
    uint64_t local;        /* the writer's instance; 0: none */
    unsigned local_weight; /* its free capacity counts so many times; 0: 1 */
    const uint64_t *excluded;
    size_t excluded_count;
};

#define TARGET_NONE SIZE_MAX

/* The best one: first those where it fits without evicting, by weighted free capacity, then those where it fits into
 * a tier that evicts for it. TARGET_NONE: nobody is large enough. */
size_t targets_best(const struct target_candidate *candidates, size_t count, const struct target_query *query);
/* Counts len_bytes as used, so that the next object of a batch may go elsewhere. */
void targets_take(struct target_candidate *candidate, uint64_t len_bytes);
/* The best max of them, best first, as indexes. Returns how many. */
size_t targets_rank(const struct target_candidate *candidates, size_t count, const struct target_query *query,
                    size_t max, size_t *indexes_out);

#endif
