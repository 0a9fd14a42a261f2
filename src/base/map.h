/* SPDX-License-Identifier: Apache-2.0 */
/* Hash table from byte strings to pointers (chained, XXH3 with a random seed so that peers cannot choose collisions).
 * Keys are copied. Not thread-safe. */
#ifndef SHOAL_BASE_MAP_H
#define SHOAL_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_entry;
struct map {
    struct map_entry **buckets; /* owned */
    size_t bucket_count, count;
    uint64_t seed;
};

/* What the table hashes with, for those who need a table of another shape. */
uint64_t map_hash(uint64_t seed, const void *key, size_t key_len);

void map_init(struct map *map);
/* Frees keys and table; values are the caller's. */
void map_release(struct map *map);
void *map_get(const struct map *map, const void *key, size_t key_len);
/* Adds or replaces; value must not be NULL. false: out of memory, map unchanged. */
bool map_put(struct map *map, const void *key, size_t key_len, void *value);
/* The removed value or NULL. */
void *map_remove(struct map *map, const void *key, size_t key_len);
void *map_get_str(const struct map *map, const char *key);
bool map_put_str(struct map *map, const char *key, void *value);
void *map_remove_str(struct map *map, const char *key);
void *map_get_u64(const struct map *map, uint64_t key);
bool map_put_u64(struct map *map, uint64_t key, void *value);
void *map_remove_u64(struct map *map, uint64_t key);
/* Iteration in no particular order; the map must not change meanwhile. position starts at NULL. NULL value: end. */
void *map_next(const struct map *map, const struct map_entry **position, const void **key_out, size_t *key_len_out);

#endif
