/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "transport/memory.h"

static uint8_t block[65536];

static struct memory_table *table_make(void)
{
    struct memory_table *table = NULL;

    assert_int_equal(memory_table_create(&table, NULL), SHOAL_OK);
    return table;
}

static uint64_t address(size_t offset)
{
    return (uint64_t)(uintptr_t)(block + offset);
}

static uint64_t add(struct memory_table *table, size_t offset, uint64_t len, unsigned access)
{
    uint64_t key = 0;

    assert_int_equal(memory_register(table, block + offset, len, NULL, access, &key, NULL), SHOAL_OK);
    return key;
}

static void drop(struct memory_table *table, size_t offset, uint64_t len)
{
    assert_int_equal(memory_unregister(table, block + offset, len, 0, NULL, NULL, NULL), SHOAL_OK);
}

static enum shoal_status pin(struct memory_table *table, size_t offset, uint64_t len, uint64_t key, unsigned access)
{
    struct memory_region *region = NULL;
    const char *reason = NULL;
    enum shoal_status status = memory_pin(table, address(offset), len, key, access, &region, &reason);

    if (status == SHOAL_OK)
        memory_unpin(table, region);
    else
        assert_non_null(reason);
    return status;
}

static void test_pins(void **state)
{
    struct memory_table *table = table_make();
    uint64_t key = add(table, 100, 1000, SHOAL_ACCESS_REMOTE_READ), other = add(table, 1100, 100, 0);

    (void)state;
    assert_int_not_equal(key, other);
    assert_int_equal(memory_registered_bytes(table), 1100);
    assert_int_equal(pin(table, 100, 1000, 0, 0), SHOAL_OK);
    assert_int_equal(pin(table, 100, 1000, key, SHOAL_ACCESS_REMOTE_READ), SHOAL_OK);
    assert_int_equal(pin(table, 1099, 1, key, SHOAL_ACCESS_REMOTE_READ), SHOAL_OK);
    assert_int_equal(pin(table, 1099, 2, 0, 0), SHOAL_INVALID_ARGUMENT); /* never across two regions */
    assert_int_equal(pin(table, 99, 2, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 100, 0, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 100, UINT64_MAX, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 100, 1, other, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 100, 1, 0, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1100, 1, 0, SHOAL_ACCESS_REMOTE_READ), SHOAL_INVALID_ARGUMENT);
    drop(table, 100, 1000);
    assert_int_equal(pin(table, 100, 1, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1100, 1, 0, 0), SHOAL_OK);
    assert_int_not_equal(add(table, 100, 1000, SHOAL_ACCESS_REMOTE_READ), key); /* a key is never used again */
    memory_table_destroy(table);
}

static void test_references(void **state)
{
    struct memory_table *table = table_make();

    (void)state;
    add(table, 0, 10, 1);
    add(table, 0, 10, 1);
    drop(table, 0, 10);
    assert_int_equal(pin(table, 0, 10, 0, 1), SHOAL_OK);
    drop(table, 0, 10);
    assert_int_equal(memory_unregister(table, block, 10, 0, NULL, NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(memory_unregister(table, block, 0, 0, NULL, NULL, NULL), SHOAL_OK);
    assert_int_equal(memory_registered_bytes(table), 0);
    memory_table_destroy(table);
}

static void test_faulty(void **state)
{
    struct memory_table *table = table_make();
    struct memory_region *region;

    (void)state;
    add(table, 0, 100, 3);
    assert_int_equal(memory_pin(table, address(0), 1, 0, 1, &region, NULL), SHOAL_OK);
    memory_mark_faulty(table, region);
    memory_unpin(table, region);
    assert_int_equal(pin(table, 0, 1, 0, 1), SHOAL_IO);
    assert_int_equal(pin(table, 0, 1, 0, 0), SHOAL_OK); /* own requests find out by themselves */
    memory_table_destroy(table);
}

struct holder {
    struct memory_table *table;
    struct memory_region *region;
    bool is_evicted;
};

static void evict(void *arg, struct memory_region *region)
{
    struct holder *holder = arg;

    assert_ptr_equal(region, holder->region);
    assert_true(memory_is_dying(holder->table, region));
    holder->is_evicted = true;
    memory_unpin(holder->table, region);
}

static void test_evict(void **state)
{
    struct holder holder = {.table = table_make()};

    (void)state;
    add(holder.table, 0, 100, 1);
    assert_int_equal(memory_pin(holder.table, address(0), 1, 0, 1, &holder.region, NULL), SHOAL_OK);
    assert_int_equal(memory_unregister(holder.table, block, 100, 1, evict, &holder, NULL), SHOAL_OK);
    assert_true(holder.is_evicted);
    memory_table_destroy(holder.table);
}

static void *unregister_thread(void *arg)
{
    struct holder *holder = arg;

    assert_int_equal(memory_unregister(holder->table, block, 100, UNIT_WAIT_MS, NULL, NULL, NULL), SHOAL_OK);
    return NULL;
}

/* A range that is being released is free for nobody until it is, then for a new registration. */
static void test_release_waits(void **state)
{
    struct holder holder = {.table = table_make()};
    pthread_t thread;

    (void)state;
    add(holder.table, 0, 100, 1);
    assert_int_equal(memory_pin(holder.table, address(0), 1, 0, 1, &holder.region, NULL), SHOAL_OK);
    thread = start_thread(unregister_thread, &holder);
    wait_until(memory_is_dying(holder.table, holder.region));
    assert_int_equal(pin(holder.table, 0, 1, 0, 1), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(memory_unregister(holder.table, block, 100, 0, NULL, NULL, NULL), SHOAL_NOT_FOUND);
    memory_unpin(holder.table, holder.region);
    add(holder.table, 50, 100, 1); /* overlaps: waits for the release instead of failing */
    join_thread(thread);
    memory_table_destroy(holder.table);
}

/* Random registrations against a model of one owner per 64-byte cell. */
/* A window grants its part by its own key, and ends without the region. */
static void test_windows(void **state)
{
    struct memory_table *table = table_make();
    uint64_t key = add(table, 0, 10000, SHOAL_ACCESS_REMOTE_READ), window = 0, second = 0;
    struct holder holder = {.table = table};
    struct memory_region *held = NULL;
    struct shoal_error error;

    (void)state;
    assert_int_equal(memory_window_open(table, block + 1000, 500, SHOAL_ACCESS_REMOTE_WRITE, &window, NULL), SHOAL_OK);
    assert_int_equal(memory_window_open(table, block + 1000, 500, SHOAL_ACCESS_REMOTE_WRITE, &second, NULL), SHOAL_OK);
    assert_true(window != key && window != second);
    assert_int_equal(memory_window_open(table, block + 9999, 2, 0, &second, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "not inside registered memory"));
    assert_int_equal(memory_window_open(table, block, 1, 64, &second, NULL), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(memory_registered_bytes(table), 10000);
    assert_int_equal(pin(table, 1000, 500, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_OK);
    assert_int_equal(pin(table, 1499, 1, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_OK);
    assert_int_equal(pin(table, 1499, 2, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 999, 2, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1500, 1, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1000, UINT64_MAX - address(1000), window, SHOAL_ACCESS_REMOTE_WRITE),
                     SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1000, 1, window, SHOAL_ACCESS_REMOTE_READ), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1000, 500, key, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1000, 500, 0, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pin(table, 1000, 500, key, SHOAL_ACCESS_REMOTE_READ), SHOAL_OK);

    /* Its end waits for those who came by its key, and only for them. */
    assert_int_equal(memory_pin(table, address(1000), 500, key, SHOAL_ACCESS_REMOTE_READ, &held, NULL), SHOAL_OK);
    assert_int_equal(memory_pin(table, address(1000), 500, window, SHOAL_ACCESS_REMOTE_WRITE, &holder.region, NULL),
                     SHOAL_OK);
    memory_window_close(table, window, 1, evict, &holder);
    assert_true(holder.is_evicted);
    memory_unpin(table, held);
    assert_int_equal(pin(table, 1000, 500, window, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_INVALID_ARGUMENT);
    memory_window_close(table, window, 0, evict, &holder); /* a second time: nothing */
    assert_int_equal(pin(table, 1000, 500, second, SHOAL_ACCESS_REMOTE_WRITE), SHOAL_OK);
    assert_int_equal(memory_window_open(table, block, 0, SHOAL_ACCESS_REMOTE_WRITE, &window, NULL), SHOAL_OK);
    assert_int_equal(window, 0);
    memory_window_close(table, window, 0, NULL, NULL);
    memory_window_close(table, second, 0, NULL, NULL);
    drop(table, 0, 10000);
    memory_table_destroy(table);
}

static void test_random(void **state)
{
    enum { CELLS = 256, CELL = 64 };
    struct memory_table *table = table_make();
    int owner[CELLS];
    size_t starts[64], lens[64];
    struct random random;
    size_t count = 0;

    (void)state;
    random_init(&random, test_seed());
    memset(owner, 0xff, sizeof owner);
    for (unsigned step = 0; step < 5000; step++) {
        size_t start = (size_t)random_below(&random, CELLS), len = 1 + (size_t)random_below(&random, 8);
        bool is_free = start + len <= CELLS, is_inside = start + len <= CELLS;

        if (start + len > CELLS)
            continue;
        for (size_t i = start; i < start + len; i++) {
            is_free = is_free && owner[i] < 0;
            is_inside = is_inside && owner[i] >= 0 && owner[i] == owner[start];
        }
        assert_int_equal(pin(table, start * CELL, len * CELL, 0, 0), is_inside ? SHOAL_OK : SHOAL_INVALID_ARGUMENT);
        if (random_below(&random, 2) && count < 64) {
            enum shoal_status status = memory_register(table, block + start * CELL, len * CELL, NULL, 1, NULL, NULL);
            bool is_same = false;

            for (size_t i = 0; i < count; i++)
                is_same = is_same || (starts[i] == start && lens[i] == len);
            assert_int_equal(status, is_free || is_same ? SHOAL_OK : SHOAL_ADDRESS_OVERLAPPED);
            if (is_same)
                drop(table, start * CELL, len * CELL);
            else if (is_free) {
                starts[count] = start;
                lens[count] = len;
                for (size_t i = start; i < start + len; i++)
                    owner[i] = (int)step;
                count++;
            }
        } else if (count > 0) {
            size_t victim = (size_t)random_below(&random, count);

            drop(table, starts[victim] * CELL, lens[victim] * CELL);
            for (size_t i = starts[victim]; i < starts[victim] + lens[victim]; i++)
                owner[i] = -1;
            count--;
            starts[victim] = starts[count];
            lens[victim] = lens[count];
        }
    }
    memory_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pins),    cmocka_unit_test(test_references),    cmocka_unit_test(test_faulty),
        cmocka_unit_test(test_evict),   cmocka_unit_test(test_release_waits), cmocka_unit_test(test_random),
        cmocka_unit_test(test_windows),
    };

    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
