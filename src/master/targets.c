/* SPDX-License-Identifier: Apache-2.0 */
#include "master/targets.h"

#include <stdbool.h>

struct score {
    bool is_possible, fits;
    uint64_t bytes;
};

static struct score score_of(const struct target_candidate *candidate, const struct target_query *query)
{
    struct score score = {.is_possible = candidate->largest_tier >= query->len_bytes && candidate->largest_tier > 0};
    uint64_t weight = candidate->instance == query->local && query->local_weight ? query->local_weight : 1;

    for (size_t i = 0; i < query->excluded_count; i++)
        if (query->excluded[i] == candidate->instance)
            score.is_possible = false;
    score.fits = candidate->largest_free >= query->len_bytes && candidate->largest_free > 0;
    score.bytes = score.fits ? candidate->free_bytes : candidate->largest_tier;
    score.bytes = score.bytes > UINT64_MAX / weight ? UINT64_MAX : score.bytes * weight;
    return score;
}

/* Equal ones keep their order. */
static bool is_better(const struct score *a, const struct score *b)
{
    if (a->is_possible != b->is_possible)
        return a->is_possible;
    if (a->fits != b->fits)
        return a->fits;
    return a->bytes > b->bytes;
}

size_t targets_rank(const struct target_candidate *candidates, size_t count, const struct target_query *query,
                    size_t max, size_t *indexes_out)
{
    size_t used = 0;

    for (size_t i = 0; i < count && max; i++) {
        struct score mine = score_of(&candidates[i], query);
        size_t at = used;
        if (!mine.is_possible)
            continue;
        while (at > 0) {
            struct score other = score_of(&candidates[indexes_out[at - 1]], query);
            if (!is_better(&mine, &other))
                break;
            at--;
        }
        if (at == max)
            continue;
        if (used < max)
            used++;
        for (size_t to = used - 1; to > at; to--)
            indexes_out[to] = indexes_out[to - 1];
        indexes_out[at] = i;
    }
    return used;
}

size_t targets_best(const struct target_candidate *candidates, size_t count, const struct target_query *query)
{
    size_t best;

    return targets_rank(candidates, count, query, 1, &best) ? best : TARGET_NONE;
}

void targets_take(struct target_candidate *candidate, uint64_t len_bytes)
{
    candidate->free_bytes -= len_bytes < candidate->free_bytes ? len_bytes : candidate->free_bytes;
    candidate->largest_free -= len_bytes < candidate->largest_free ? len_bytes : candidate->largest_free;
}
