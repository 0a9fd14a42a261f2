/* SPDX-License-Identifier: Apache-2.0 */
#include "storage_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "tier/tier.h"
#include "tmpdir.h"

const struct tier_ops *const storage_ops = &tier_ops_storage;

static enum shoal_status add_object(void *arg, const char *key, uint64_t object_id, struct tier_space *space,
                                    struct shoal_error *error)
{
    struct storage_world *world = arg;
    (void)error;
    assert_true(world->count < STORAGE_OBJECTS_MAX);
    struct storage_object *object = &world->objects[world->count++];
    snprintf(object->key, sizeof object->key, "%s", key);
    object->object_id = object_id;
    object->space = space;
    return SHOAL_OK;
}

enum shoal_status storage_try_open(const char *directory, uint64_t capacity_bytes, struct tier **tier_out,
                                   struct shoal_error *error)
{
    const struct tier_config config = {
        .type = TIER_STORAGE, .capacity_bytes = capacity_bytes, .storage_filepath = (char *)directory};
    return storage_ops->create(&config, 3, NULL, tier_out, error);
}

void storage_world_open(struct storage_world *world, uint64_t capacity_bytes)
{
    struct shoal_error error = {0};
    if (storage_try_open(world->directory, capacity_bytes, &world->tier, &error) != SHOAL_OK)
        fail_msg("create: %s", error.message);
    world->count = 0;
    if (storage_ops->recover(world->tier, add_object, world, &error) != SHOAL_OK)
        fail_msg("recover: %s", error.message);
}

void storage_world_close(struct storage_world *world)
{
    for (size_t i = 0; i < world->count; i++) {
        if (world->objects[i].space)
            storage_ops->release(world->tier, world->objects[i].space);
    }
    world->count = 0;
    assert_int_equal(world->tier->used_bytes, 0);
    storage_ops->destroy(world->tier);
    world->tier = NULL;
}

void storage_world_init(struct storage_world *world)
{
    *world = (struct storage_world){.directory = tmpdir_make(),
                                    .objects = calloc(STORAGE_OBJECTS_MAX, sizeof(struct storage_object))};
    assert_non_null(world->objects);
}

void storage_world_release(struct storage_world *world)
{
    if (world->tier)
        storage_world_close(world);
    free(world->objects);
    tmpdir_remove(world->directory);
}

/* The bytes of an object follow from its id. */
void storage_fill(uint8_t *memory, size_t len, uint64_t object_id)
{
    struct random random;
    random_init(&random, object_id);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t value = random_next(&random);
        memcpy(memory + i, &value, len - i < 8 ? len - i : 8);
    }
}

static enum shoal_status write_all(struct tier *tier, struct tier_space *space, const uint8_t *data, size_t step,
                                   struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    for (uint64_t at = 0; at < space->len_bytes && status == SHOAL_OK; at += step) {
        uint64_t left = space->len_bytes - at;
        status = storage_ops->write(tier, space, at, data + at, left < step ? (size_t)left : step, error);
    }
    return status;
}

enum shoal_status storage_try_put(struct storage_world *world, const char *key, uint64_t object_id, size_t len,
                                  struct shoal_error *error)
{
    struct tier_space *space;
    uint8_t *data = malloc(len + 1);
    assert_non_null(data);
    storage_fill(data + 1, len, object_id); /* not aligned */
    enum shoal_status status = storage_ops->allocate(world->tier, len, &space, error);
    if (status == SHOAL_OK) {
        assert_int_equal(space->len_bytes, len);
        status = write_all(world->tier, space, data + 1, TIER_STAGING_BYTES, error);
        if (status == SHOAL_OK)
            status = storage_ops->seal(world->tier, space, error);
        if (status == SHOAL_OK)
            status = storage_ops->persist(world->tier, space, key, object_id, error);
        if (status == SHOAL_OK)
            add_object(world, key, object_id, space, NULL);
        else
            storage_ops->release(world->tier, space);
    }
    free(data);
    return status;
}

void storage_put(struct storage_world *world, const char *key, uint64_t object_id, size_t len)
{
    struct shoal_error error = {0};
    if (storage_try_put(world, key, object_id, len, &error) != SHOAL_OK)
        fail_msg("put %s: %s", key, error.message);
}

void storage_drop(struct storage_world *world, size_t index, bool is_durable)
{
    struct shoal_error error = {0};
    struct storage_object *object = &world->objects[index];
    if (storage_ops->forget(world->tier, object->space, is_durable, &error) != SHOAL_OK)
        fail_msg("forget: %s", error.message);
    storage_ops->release(world->tier, object->space);
    *object = world->objects[--world->count];
}

struct storage_object *storage_find(struct storage_world *world, const char *key)
{
    for (size_t i = 0; i < world->count; i++) {
        if (strcmp(world->objects[i].key, key) == 0)
            return &world->objects[i];
    }
    return NULL;
}

void storage_check_range(struct storage_world *world, const struct storage_object *object, const uint8_t *expected,
                         uint64_t offset, size_t len)
{
    struct shoal_error error = {0};
    uint8_t *data = malloc(len + 2);
    assert_non_null(data);
    data[len + 1] = 0x5a;
    if (storage_ops->read(world->tier, object->space, offset, data + 1, len, &error) != SHOAL_OK)
        fail_msg("read %s: %s", object->key, error.message);
    assert_int_equal(data[len + 1], 0x5a);
    if (memcmp(data + 1, expected + offset, len) != 0)
        fail_msg("%s: wrong bytes in [%llu, +%zu)", object->key, (unsigned long long)offset, len);
    free(data);
}

void storage_check(struct storage_world *world, const struct storage_object *object)
{
    size_t len = (size_t)object->space->len_bytes;
    uint8_t *expected = malloc(len + 1);
    assert_non_null(expected);
    storage_fill(expected, len, object->object_id);
    storage_check_range(world, object, expected, 0, len);
    free(expected);
}
