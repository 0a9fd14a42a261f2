/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "kv/client_internal.h"

/* As many groups of one call as the pool has threads run at a time; a larger one is cut, so that a batch for a single
 * owner keeps several requests under way. */
#define GROUP_ITEMS_MAX 256

struct run {
    const struct kv_slot *slots;
    size_t count;
    const size_t *begins; /* of the groups, and count at the end */
    kv_group_fn fn;
    void *arg;
};

static int compare_slots(const void *a, const void *b)
{
    const struct kv_slot *left = a, *right = b;

    if (left->owner->instance != right->owner->instance)
        return left->owner->instance < right->owner->instance ? -1 : 1;
    return left->index < right->index ? -1 : left->index > right->index;
}

static bool run_group(void *arg, size_t index)
{
    const struct run *run = arg;
    size_t begin = run->begins[index];

    run->fn(run->arg, run->slots[begin].owner, run->slots + begin, run->begins[index + 1] - begin);
    return true;
}

static bool is_group_end(const struct kv_slot *slots, size_t begin, size_t at)
{
    return at - begin == GROUP_ITEMS_MAX || slots[at].owner->instance != slots[begin].owner->instance;
}

void kv_run_groups(struct shoal_kv *kv, struct kv_slot *slots, size_t count, kv_group_fn fn, void *arg)
{
    struct run run = {.slots = slots, .count = count, .fn = fn, .arg = arg};
    size_t *begins, groups = 0, begin = 0;

    if (count > 1)
        qsort(slots, count, sizeof *slots, compare_slots);
    begins = count > 1 ? malloc((count + 1) * sizeof *begins) : NULL;
    for (size_t i = 1; i <= count; i++) {
        if (i < count && !is_group_end(slots, begin, i))
            continue;
        if (begins)
            begins[groups++] = begin;
        else /* a single one, or no memory for doing several at a time */
            fn(arg, slots[begin].owner, slots + begin, i - begin);
        begin = i;
    }
    if (begins) {
        begins[groups] = count;
        run.begins = begins;
        if (groups == 1)
            run_group(&run, 0);
        else
            pool_for(kv->pool, groups, run_group, &run);
    }
    free(begins);
}
