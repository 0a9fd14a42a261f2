/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "tier/sketch.h"

static void test_never_too_low(void **state)
{
    enum { ITEMS = 2000 };
    static unsigned counts[ITEMS];
    static uint64_t hashes[ITEMS];
    struct random random;
    struct sketch sketch;
    unsigned wrong = 0;

    (void)state;
    random_init(&random, test_seed());
    assert_true(sketch_init(&sketch, ITEMS));
    for (unsigned i = 0; i < ITEMS; i++) {
        hashes[i] = random_next(&random);
        counts[i] = 0;
    }
    for (unsigned i = 0; i < 8 * ITEMS; i++) { /* fewer than make it age */
        unsigned item = (unsigned)(random_below(&random, ITEMS) * random_below(&random, ITEMS) / ITEMS);
        (void)sketch_add(&sketch, hashes[item]);
        if (counts[item] < SKETCH_COUNT_MAX)
            counts[item]++;
        assert_false(sketch_age(&sketch));
    }
    for (unsigned i = 0; i < ITEMS; i++) {
        unsigned estimate = sketch_estimate(&sketch, hashes[i]);
        assert_true(estimate >= counts[i]);
        wrong += estimate > counts[i] + 2;
    }
    assert_true(wrong < ITEMS / 20);
    sketch_release(&sketch);
}

static void test_ages(void **state)
{
    struct sketch sketch;
    struct random random;

    (void)state;
    random_init(&random, test_seed());
    assert_true(sketch_init(&sketch, 1000));
    for (unsigned i = 0; i < 40; i++)
        (void)sketch_add(&sketch, 12345678901234567ull);
    assert_int_equal(sketch_estimate(&sketch, 12345678901234567ull), 40);
    for (unsigned i = 0; i < 200; i++)
        (void)sketch_add(&sketch, 1);
    assert_int_equal(sketch_estimate(&sketch, 1), SKETCH_COUNT_MAX);
    assert_false(sketch_age(&sketch));
    while (!sketch_age(&sketch))
        (void)sketch_add(&sketch, random_next(&random));
    assert_in_range(sketch_estimate(&sketch, 12345678901234567ull), 20, 24);
    assert_false(sketch_age(&sketch));
    sketch_release(&sketch);
    sketch_release(&sketch);
}

static void *add_many(void *arg)
{
    struct sketch *sketch = arg;
    for (unsigned i = 0; i < 10000; i++)
        (void)sketch_add(sketch, (uint64_t)(i % 50) * 0x9e3779b97f4a7c15ull);
    return NULL;
}

static void test_threads(void **state)
{
    struct sketch sketch;
    pthread_t threads[3];

    (void)state;
    assert_true(sketch_init(&sketch, 1000));
    for (unsigned i = 0; i < 3; i++)
        threads[i] = start_thread(add_many, &sketch);
    while (!sketch_age(&sketch)) {
    }
    for (unsigned i = 0; i < 3; i++)
        join_thread(threads[i]);
    for (unsigned i = 0; i < 50; i++)
        assert_true(sketch_estimate(&sketch, i * 0x9e3779b97f4a7c15ull) >= SKETCH_COUNT_MAX / 4);
    sketch_release(&sketch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_too_low),
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("tier_sketch", tests, NULL, NULL);
}
