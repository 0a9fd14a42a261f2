/* SPDX-License-Identifier: Apache-2.0 */
/* The index of the tiered backend: what is looked at again under the lock of the stripe, because a reader or a remover
 * may have come since the background chose its victim. */
#include "unit.h"

#include "tier/backend.h"
#include "tier_fake.h"

#define LEN 1000u

static const struct tier_config tiers[] = {
    {.type = TIER_DRAM, .capacity_bytes = 1 << 20, .priority = 10, .numa_node = -1},
    {.type = TIER_STORAGE, .capacity_bytes = 1 << 20, .priority = 5, .numa_node = -1},
};

static int setup(void **state)
{
    const struct tier_backend_config config = {.tiers = tiers, .tier_count = 2};
    const struct backend_options options = {.ops_of = tier_fake_ops, .has_no_thread = true};
    struct tier_backend *backend = NULL;

    tier_fake_disk_clear();
    assert_int_equal(backend_create(&config, &options, &backend, NULL), SHOAL_OK);
    *state = backend;
    return 0;
}

static int teardown(void **state)
{
    tier_backend_destroy(*state);
    tier_fake_disk_clear();
    return 0;
}

/* On the DRAM tier; the caller's reference is what the background has while it works on a victim. */
static struct tier_object *put(struct tier_backend *backend, const char *key)
{
    struct tier_allocation *allocation;
    struct tier_object *object;

    assert_int_equal(tier_allocate(backend, key, LEN, true, &allocation, NULL), SHOAL_OK);
    memset(tier_allocation_data(allocation), 'x', LEN);
    assert_int_equal(tier_commit(allocation, 0, &object, NULL), SHOAL_OK);
    assert_int_equal(tier_publish(object, NULL), SHOAL_OK);
    return object;
}

/* A copy on the other tier, not in the index yet. */
static struct tier_object *copy_of(struct tier_backend *backend, const struct tier_object *object)
{
    struct tier *tier = backend->slots[1].tier;
    struct tier_space *space;
    struct tier_object *copy;
    uint8_t bytes[LEN];

    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(tier->ops->allocate(tier, LEN, &space, NULL), SHOAL_OK);
    assert_int_equal(tier->ops->write(tier, space, 0, bytes, LEN, NULL), SHOAL_OK);
    assert_int_equal(tier->ops->seal(tier, space, NULL), SHOAL_OK);
    copy = object_create(backend, object->key, object->hash, 1, space);
    assert_non_null(copy);
    copy->object_id = object->object_id;
    return copy;
}

static void what_is_read_is_not_replaced(void **state)
{
    struct tier_backend *backend = *state;
    struct tier_object *object = put(backend, "k"), *copy = copy_of(backend, object), *reader, *found;

    assert_int_equal(tier_get(backend, "k", &reader), SHOAL_OK);
    assert_int_equal(index_replace(object, copy, false), INDEX_IN_USE);
    assert_int_equal(tier_get(backend, "k", &found), SHOAL_OK);
    assert_ptr_equal(found, object); /* the space that the move would not have given back is still found */
    tier_object_unref(found);
    tier_object_unref(reader);
    assert_int_equal(index_replace(object, copy, false), INDEX_MOVED);
    assert_int_equal(tier_get(backend, "k", &found), SHOAL_OK);
    assert_ptr_equal(found, copy);
    tier_object_unref(found);
    tier_object_unref(object);
    tier_object_unref(copy);
    assert_true(backend->slots[0].tier->used_bytes == 0);
}

/* The old one is kept below the new one: who reads it may go on. */
static void what_is_read_may_become_the_backing(void **state)
{
    struct tier_backend *backend = *state;
    struct tier_object *object = put(backend, "k"), *copy = copy_of(backend, object), *reader;

    assert_int_equal(tier_get(backend, "k", &reader), SHOAL_OK);
    assert_int_equal(index_replace(object, copy, true), INDEX_MOVED);
    assert_int_equal(tier_object_len(reader), LEN);
    tier_object_unref(reader);
    tier_object_unref(object);
    tier_object_unref(copy);
}

static void what_was_removed_is_not_replaced(void **state)
{
    struct tier_backend *backend = *state;
    struct tier_object *object = put(backend, "k"), *copy = copy_of(backend, object), *again;

    assert_int_equal(tier_remove(backend, "k", 0), SHOAL_OK);
    assert_int_equal(index_replace(object, copy, false), INDEX_CHANGED);
    again = put(backend, "k");
    assert_int_equal(index_replace(object, copy, false), INDEX_CHANGED);
    assert_true(tier_has(backend, "k"));
    tier_object_unref(again);
    tier_object_unref(object);
    tier_object_unref(copy);
}

static void what_is_read_is_not_dropped(void **state)
{
    struct tier_backend *backend = *state;
    struct tier_object *object = put(backend, "k"), *reader, *backing = NULL;

    assert_int_equal(tier_get(backend, "k", &reader), SHOAL_OK);
    assert_int_equal(index_drop(object, true, true, &backing), INDEX_KEPT);
    assert_true(tier_has(backend, "k"));
    tier_object_unref(reader);
    assert_int_equal(index_drop(object, true, false, &backing), INDEX_KEPT); /* there is nothing to take its place */
    assert_true(tier_has(backend, "k"));
    assert_int_equal(index_drop(object, true, true, &backing), INDEX_DROPPED);
    assert_false(tier_has(backend, "k"));
    assert_null(backing);
    assert_int_equal(index_drop(object, false, true, &backing), INDEX_KEPT); /* it is not there */
    tier_object_unref(object);
    assert_true(backend->slots[0].tier->used_bytes == 0);
}

/* Neither is the one in front, nor its copy below: its reader would hold space that the drop should have given back. */
static void what_is_read_below_is_not_dropped(void **state)
{
    struct tier_backend *backend = *state;
    struct tier_object *object = put(backend, "k"), *copy = copy_of(backend, object), *backing = NULL, *found;

    assert_int_equal(index_replace(object, copy, true), INDEX_MOVED); /* copy is in front, object below */
    tier_object_ref(object);
    assert_int_equal(index_drop(object, true, true, &backing), INDEX_KEPT);
    assert_ptr_equal(copy->backing, object);
    tier_object_unref(object);
    tier_object_ref(copy);
    assert_int_equal(index_drop(copy, true, true, &backing), INDEX_KEPT);
    tier_object_unref(copy);
    assert_int_equal(index_drop(copy, true, true, &backing), INDEX_DEMOTED);
    assert_ptr_equal(backing, object);
    assert_int_equal(tier_get(backend, "k", &found), SHOAL_OK);
    assert_ptr_equal(found, object);
    tier_object_unref(found);
    tier_object_unref(backing);
    tier_object_unref(copy);
    tier_object_unref(object);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_read_is_not_replaced),      TEST(what_is_read_may_become_the_backing),
        TEST(what_was_removed_is_not_replaced),  TEST(what_is_read_is_not_dropped),
        TEST(what_is_read_below_is_not_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
