/* SPDX-License-Identifier: Apache-2.0 */
/* list, map, spares, endian. */
#include "unit.h"

#include "base/endian.h"
#include "base/list.h"
#include "base/map.h"
#include "base/spares.h"

struct item {
    int value;
    struct list_node node;
};

static void expect_list(struct list *list, const int *values, size_t count)
{
    size_t at = 0;
    LIST_FOR_EACH (item, list, struct item, node) {
        assert_true(at < count);
        assert_int_equal(item->value, values[at++]);
    }
    assert_int_equal(at, count);
}

static void list_keeps_order(void **state)
{
    struct item items[] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    struct list list;
    (void)state;
    list_init(&list);
    assert_true(list_is_empty(&list));
    assert_null(list_first(&list));
    assert_null(list_pop_front(&list));
    expect_list(&list, NULL, 0);
    list_push_back(&list, &items[1].node);
    list_push_back(&list, &items[2].node);
    list_push_front(&list, &items[0].node);
    list_push_back(&list, &items[3].node);
    expect_list(&list, (int[]){0, 1, 2, 3}, 4);
    assert_true(list_node_is_linked(&items[2].node));
    list_remove(&items[2].node);
    assert_false(list_node_is_linked(&items[2].node));
    list_remove(&items[2].node); /* harmless */
    expect_list(&list, (int[]){0, 1, 3}, 3);
    assert_ptr_equal(list_pop_front(&list), &items[0].node);
    expect_list(&list, (int[]){1, 3}, 2);
}

static void list_items_may_go_while_iterating(void **state)
{
    struct list list;
    size_t seen = 0;
    (void)state;
    list_init(&list);
    for (int i = 0; i < 10; i++) {
        struct item *item = calloc(1, sizeof *item);
        assert_non_null(item);
        item->value = i;
        list_push_back(&list, &item->node);
    }
    LIST_FOR_EACH_SAFE (item, &list, struct item, node) {
        seen++;
        if (item->value % 2) {
            list_remove(&item->node);
            free(item);
        }
    }
    assert_int_equal(seen, 10);
    expect_list(&list, (int[]){0, 2, 4, 6, 8}, 5);
    LIST_FOR_EACH_SAFE (item, &list, struct item, node) {
        list_remove(&item->node);
        free(item);
    }
    assert_true(list_is_empty(&list));
}

static void map_basics(void **state)
{
    struct map map;
    int a, b;
    (void)state;
    map_init(&map);
    assert_null(map_get_str(&map, "a"));
    assert_null(map_remove_str(&map, "a"));
    assert_true(map_put_str(&map, "a", &a));
    assert_ptr_equal(map_get_str(&map, "a"), &a);
    assert_true(map_put_str(&map, "a", &b)); /* replaces */
    assert_ptr_equal(map_get_str(&map, "a"), &b);
    assert_int_equal(map.count, 1);
    /* Binary keys: length counts, NUL and the empty key are fine. */
    assert_true(map_put(&map, "a\0b", 3, &a));
    assert_true(map_put(&map, "", 0, &a));
    assert_null(map_get(&map, "a\0c", 3));
    assert_ptr_equal(map_get(&map, "a\0b", 3), &a);
    assert_ptr_equal(map_get(&map, NULL, 0), &a);
    assert_true(map_put_u64(&map, 0, &b));
    assert_true(map_put_u64(&map, UINT64_MAX, &a));
    assert_ptr_equal(map_get_u64(&map, 0), &b);
    assert_ptr_equal(map_remove_u64(&map, UINT64_MAX), &a);
    assert_null(map_get_u64(&map, UINT64_MAX));
    assert_ptr_equal(map_remove_str(&map, "a"), &b);
    assert_null(map_remove_str(&map, "a"));
    assert_int_equal(map.count, 3);
    map_release(&map);
    assert_int_equal(map.count, 0);
    map_release(&map);
}

static void map_copies_its_keys(void **state)
{
    struct map map;
    char key[] = "name";
    int value;
    (void)state;
    map_init(&map);
    assert_true(map_put_str(&map, key, &value));
    memset(key, 'x', sizeof key - 1);
    assert_ptr_equal(map_get_str(&map, "name"), &value);
    map_release(&map);
}

/* Random puts and removes against an array indexed by key. */
static void map_matches_a_model(void **state)
{
    enum { KEYS = 3000 };
    static int values[2][KEYS];
    int *model[KEYS] = {NULL};
    struct random random;
    struct map map;
    size_t count = 0, seen = 0;
    const struct map_entry *position = NULL;
    const void *key;
    size_t key_len;
    (void)state;
    random_init(&random, test_seed());
    map_init(&map);
    for (int step = 0; step < 50000; step++) {
        size_t at = (size_t)random_below(&random, KEYS);
        if (random_below(&random, 3)) {
            int *value = &values[random_below(&random, 2)][at];
            assert_true(map_put_u64(&map, at, value));
            count += model[at] == NULL;
            model[at] = value;
        } else {
            assert_ptr_equal(map_remove_u64(&map, at), model[at]);
            count -= model[at] != NULL;
            model[at] = NULL;
        }
        assert_int_equal(map.count, count);
    }
    for (size_t i = 0; i < KEYS; i++)
        assert_ptr_equal(map_get_u64(&map, i), model[i]);
    for (void *value = map_next(&map, &position, &key, &key_len); value;
         value = map_next(&map, &position, &key, &key_len)) {
        uint64_t number;
        assert_int_equal(key_len, sizeof number);
        memcpy(&number, key, sizeof number);
        assert_true(number < KEYS);
        assert_ptr_equal(model[number], value);
        model[number] = NULL; /* each once */
        seen++;
    }
    assert_int_equal(seen, count);
    map_release(&map);
}

static void map_next_on_an_empty_map(void **state)
{
    const struct map_entry *position = NULL;
    struct map map;
    (void)state;
    map_init(&map);
    assert_null(map_next(&map, &position, NULL, NULL));
    map_release(&map);
}

static void spares_keep_some(void **state)
{
    enum { MAX = 2, BLOCKS = 5, BYTES = 40 };
    struct spares spares;
    void *blocks[BLOCKS], *again[BLOCKS];
    (void)state;
    spares_init(&spares, BYTES, MAX);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = spares_take(&spares);
        assert_non_null(blocks[i]);
        memset(blocks[i], 'x', BYTES);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        spares_give(&spares, blocks[i]);
    assert_int_equal(spares.count, spares.max); /* none with the address sanitizer */
    for (unsigned i = 0; i < BLOCKS; i++) {
        again[i] = spares_take(&spares);
        assert_non_null(again[i]);
        memset(again[i], 'y', BYTES);
        if (spares.max && i < MAX) /* the others have gone */
            assert_ptr_equal(again[i], blocks[MAX - 1 - i]);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        spares_give(&spares, again[i]);
    spares_release(&spares);
    assert_int_equal(spares.count, 0);
    spares_release(&spares);
}

static void wire_integers_are_little_endian(void **state)
{
    uint8_t bytes[9] = {0};
    (void)state;
    put_le16(bytes + 1, 0x1234);
    assert_memory_equal(bytes + 1, "\x34\x12", 2);
    assert_int_equal(get_le16(bytes + 1), 0x1234);
    put_le32(bytes + 1, 0x89abcdefu);
    assert_memory_equal(bytes + 1, "\xef\xcd\xab\x89", 4);
    assert_true(get_le32(bytes + 1) == 0x89abcdefu);
    put_le64(bytes + 1, 0x0123456789abcdefu);
    assert_memory_equal(bytes + 1, "\xef\xcd\xab\x89\x67\x45\x23\x01", 8);
    assert_true(get_le64(bytes + 1) == 0x0123456789abcdefu);
    assert_int_equal(bytes[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_keeps_order),    cmocka_unit_test(list_items_may_go_while_iterating),
        cmocka_unit_test(map_basics),          cmocka_unit_test(map_copies_its_keys),
        cmocka_unit_test(map_matches_a_model), cmocka_unit_test(map_next_on_an_empty_map),
        cmocka_unit_test(spares_keep_some),    cmocka_unit_test(wire_integers_are_little_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
