/* SPDX-License-Identifier: Apache-2.0 */
/* The offset allocator against a simple model: a map of which unit belongs to whom. */
#include "unit.h"

#include "tier/allocator.h"

#define UNIT 64
#define UNITS_MAX 4096
#define HELD_MAX 512

struct model {
    struct allocator *allocator;
    uint64_t units;
    bool is_taken[UNITS_MAX];
    struct allocator_range held[HELD_MAX];
    unsigned held_count;
    uint64_t used;
};

static uint64_t largest_hole(const struct model *model)
{
    uint64_t largest = 0, run = 0;
    for (uint64_t i = 0; i < model->units; i++) {
        run = model->is_taken[i] ? 0 : run + 1;
        if (run > largest)
            largest = run;
    }
    return largest;
}

static void mark(struct model *model, const struct allocator_range *range, bool is_taken)
{
    assert_int_equal(range->offset_bytes % UNIT, 0);
    assert_int_equal(range->len_bytes % UNIT, 0);
    for (uint64_t i = range->offset_bytes / UNIT; i < (range->offset_bytes + range->len_bytes) / UNIT; i++) {
        assert_true(i < model->units);
        assert_true(model->is_taken[i] != is_taken); /* nothing is given twice */
        model->is_taken[i] = is_taken;
    }
    model->used = is_taken ? model->used + range->len_bytes : model->used - range->len_bytes;
}

static void take(struct model *model, struct random *random, uint64_t len_max)
{
    struct allocator_range range;
    uint64_t len = random_below(random, len_max + 1), needed = len ? (len + UNIT - 1) / UNIT : 1;
    uint64_t hole = largest_hole(model);

    if (model->held_count == HELD_MAX)
        return;
    if (!allocator_take(model->allocator, len, &range)) {
        /* Refused only without a hole that fits, or with one in the request's own class (an eighth at most) that the
         * bounded search did not reach. */
        assert_true(hole < needed || (hole < needed + needed / 8 + 1 && model->held_count > 8));
        return;
    }
    assert_true(hole >= needed);
    assert_int_equal(range.len_bytes, needed * UNIT);
    mark(model, &range, true);
    model->held[model->held_count++] = range;
}

static void take_at(struct model *model, struct random *random)
{
    struct allocator_range range;
    uint64_t unit = random_below(random, model->units + 2), len = 1 + random_below(random, 20);
    bool is_free = unit + len <= model->units;

    if (model->held_count == HELD_MAX)
        return;
    for (uint64_t i = unit; i < unit + len && is_free; i++)
        is_free = !model->is_taken[i];
    assert_int_equal(allocator_take_at(model->allocator, unit * UNIT, len * UNIT, &range), is_free);
    assert_false(allocator_take_at(model->allocator, unit * UNIT + 1, UNIT, &range));
    if (!is_free)
        return;
    assert_int_equal(range.offset_bytes, unit * UNIT);
    assert_int_equal(range.len_bytes, len * UNIT);
    mark(model, &range, true);
    model->held[model->held_count++] = range;
}

static void give(struct model *model, unsigned index)
{
    mark(model, &model->held[index], false);
    allocator_give(model->allocator, model->held[index].handle);
    model->held[index] = model->held[--model->held_count];
}

static void run(uint64_t seed)
{
    struct model model = {0};
    struct random random;
    struct allocator_range all;
    uint64_t len_max;
    unsigned steps, fill;

    random_init(&random, seed);
    model.units = 1 + random_below(&random, UNITS_MAX);
    len_max = 1 + random_below(&random, model.units * UNIT / (1 + random_below(&random, 64)) + 1);
    fill = 3 + (unsigned)random_below(&random, 5); /* how often it takes rather than gives, of 10 */
    steps = 50 + (unsigned)random_below(&random, 150);
    model.allocator = allocator_create(model.units * UNIT + random_below(&random, UNIT), UNIT, 0);
    assert_non_null(model.allocator);
    for (unsigned i = 0; i < steps; i++) {
        if (random_below(&random, 10) < fill)
            take(&model, &random, len_max);
        else if (random_below(&random, 8) == 0)
            take_at(&model, &random);
        else if (model.held_count)
            give(&model, (unsigned)random_below(&random, model.held_count));
        assert_int_equal(allocator_used_bytes(model.allocator), model.used);
        if (i % 16 == 0) {
            assert_true(allocator_is_consistent(model.allocator));
            assert_int_equal(allocator_largest_free_bytes(model.allocator), largest_hole(&model) * UNIT);
        }
    }
    while (model.held_count)
        give(&model, (unsigned)random_below(&random, model.held_count));
    /* All holes have become one again. */
    assert_true(allocator_is_consistent(model.allocator));
    assert_true(allocator_take(model.allocator, model.units * UNIT, &all));
    assert_false(allocator_take(model.allocator, 0, &all));
    assert_int_equal(all.offset_bytes, 0);
    allocator_give(model.allocator, all.handle);
    allocator_destroy(model.allocator);
}

static void test_model(void **state)
{
    uint64_t seed = test_seed();

    (void)state;
    for (unsigned i = 0; i < 4000; i++)
        run(seed + i);
}

static void test_edges(void **state)
{
    struct allocator_range a, b;
    struct allocator *allocator;

    (void)state;
    assert_null(allocator_create(63, 64, 0));
    allocator_destroy(NULL);
    allocator = allocator_create(UINT64_MAX, 1, 0); /* metadata does not depend on the capacity */
    assert_non_null(allocator);
    assert_true(allocator_take(allocator, 1ull << 63, &a));
    assert_false(allocator_take(allocator, 1ull << 63, &b));
    assert_true(allocator_take(allocator, (1ull << 63) - 1, &b));
    assert_false(allocator_take(allocator, 1, &b));
    assert_true(allocator_is_consistent(allocator));
    allocator_destroy(allocator);
}

/* Ranges of one size that no class begins with are reused, whatever order they come back in: no creeping loss. */
static void test_odd_size(void **state)
{
    struct allocator_range ranges[100], more;
    struct allocator *allocator = allocator_create(100 * 1001 * 64, 64, 0);

    (void)state;
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 100; i++)
            assert_true(allocator_take(allocator, 1001 * 64, &ranges[i]));
        assert_false(allocator_take(allocator, 1, &more));
        for (unsigned i = 0; i < 100; i += 2)
            allocator_give(allocator, ranges[i].handle);
        for (unsigned i = 0; i < 100; i += 2)
            assert_true(allocator_take(allocator, 1001 * 64, &ranges[i]));
        for (unsigned i = 0; i < 100; i++)
            allocator_give(allocator, ranges[(i * 37 + round) % 100].handle);
    }
    assert_int_equal(allocator_used_bytes(allocator), 0);
    allocator_destroy(allocator);
}

static void test_bounded_metadata(void **state)
{
    struct allocator_range ranges[16];
    struct allocator *allocator = allocator_create(1 << 20, 64, 10);
    unsigned count = 0;

    (void)state;
    while (count < 16 && allocator_take(allocator, 64, &ranges[count]))
        count++;
    assert_int_equal(count, 9); /* the tenth range is what is left */
    assert_true(allocator_is_consistent(allocator));
    while (count)
        allocator_give(allocator, ranges[--count].handle);
    assert_true(allocator_take(allocator, 1 << 20, &ranges[0]));
    allocator_destroy(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_odd_size),
        cmocka_unit_test(test_bounded_metadata),
    };
    return cmocka_run_group_tests_name("tier_allocator", tests, NULL, NULL);
}
