/* SPDX-License-Identifier: Apache-2.0 */
/* A STORAGE tier in a directory of its own, through its table of operations, with the objects that are on it. What goes
 * wrong fails the test, except where a function begins with storage_try. */
#ifndef SHOAL_TESTS_STORAGE_WORLD_H
#define SHOAL_TESTS_STORAGE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tier/tier_ops.h"

#define STORAGE_OBJECTS_MAX 4096

extern const struct tier_ops *const storage_ops;

struct storage_object {
    char key[64]; /* cut off when it is longer */
    uint64_t object_id;
    struct tier_space *space; /* owned */
};

struct storage_world {
    char *directory; /* owned */
    struct tier *tier;
    struct storage_object *objects; /* owned; found at open, or put since */
    size_t count;
};

void storage_world_init(struct storage_world *world);
void storage_world_release(struct storage_world *world); /* also closes */
void storage_world_open(struct storage_world *world, uint64_t capacity_bytes);
void storage_world_close(struct storage_world *world);
enum shoal_status storage_try_open(const char *directory, uint64_t capacity_bytes, struct tier **tier_out,
                                   struct shoal_error *error);

/* The bytes of an object follow from its id. */
void storage_fill(uint8_t *memory, size_t len, uint64_t object_id);
void storage_put(struct storage_world *world, const char *key, uint64_t object_id, size_t len);
/* Gives everything back when it fails. */
enum shoal_status storage_try_put(struct storage_world *world, const char *key, uint64_t object_id, size_t len,
                                  struct shoal_error *error);
/* Forgets and releases; the last object takes its place. */
void storage_drop(struct storage_world *world, size_t index, bool is_durable);
struct storage_object *storage_find(struct storage_world *world, const char *key); /* NULL: none */

/* expected: all of the object. */
void storage_check_range(struct storage_world *world, const struct storage_object *object, const uint8_t *expected,
                         uint64_t offset, size_t len);
void storage_check(struct storage_world *world, const struct storage_object *object);

#endif
