/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/endian.h"
#include "base/random.h"

struct map_entry {
    struct map_entry *next; /* owned */
    void *value;            /* the map's user's */
    uint64_t hash;
    size_t key_len;
    uint8_t key[];
};

void map_init(struct map *map)
{
    *map = (struct map){.seed = random_id()};
}

void map_release(struct map *map)
{
    for (size_t i = 0; i < map->bucket_count; i++) {
        struct map_entry *entry = map->buckets[i];
        while (entry) {
            struct map_entry *next = entry->next;
            free(entry);
            entry = next;
        }
    }
    free(map->buckets);
    map->buckets = NULL;
    map->bucket_count = map->count = 0;
}

static bool is_key_of(const struct map_entry *entry, const void *key, size_t key_len, uint64_t hash)
{
    if (entry->hash != hash || entry->key_len != key_len)
        return false;
    return key_len == 0 || memcmp(entry->key, key, key_len) == 0; /* the empty key may come as NULL */
}

/* The link that points at the entry, or at the NULL that ends its chain. NULL: no table yet. */
static struct map_entry **find(const struct map *map, const void *key, size_t key_len, uint64_t hash)
{
    struct map_entry **link;

    if (!map->bucket_count)
        return NULL;
    link = &map->buckets[hash & (map->bucket_count - 1)];
    while (*link && !is_key_of(*link, key, key_len, hash))
        link = &(*link)->next;
    return link;
}

static bool grow(struct map *map)
{
    size_t bucket_count = map->bucket_count ? map->bucket_count * 2 : 16;
    struct map_entry **buckets = calloc(bucket_count, sizeof *buckets);

    if (!buckets)
        return false;
    for (size_t i = 0; i < map->bucket_count; i++) {
        struct map_entry *entry = map->buckets[i];
        while (entry) {
            struct map_entry *next = entry->next;
            struct map_entry **bucket = &buckets[entry->hash & (bucket_count - 1)];
            entry->next = *bucket;
            *bucket = entry;
            entry = next;
        }
    }
    free(map->buckets);
    map->buckets = buckets;
    map->bucket_count = bucket_count;
    return true;
}

uint64_t map_hash(uint64_t seed, const void *key, size_t key_len)
{
    return XXH3_64bits_withSeed(key, key_len, seed);
}

static uint64_t hash_of(const struct map *map, const void *key, size_t key_len)
{
    return map_hash(map->seed, key, key_len);
}

void *map_get(const struct map *map, const void *key, size_t key_len)
{
    struct map_entry **link;

    if (!map->count) /* saves the hash */
        return NULL;
    link = find(map, key, key_len, hash_of(map, key, key_len));
    return *link ? (*link)->value : NULL;
}

bool map_put(struct map *map, const void *key, size_t key_len, void *value)
{
    uint64_t hash = hash_of(map, key, key_len);
    struct map_entry **link = find(map, key, key_len, hash), *entry;

    if (link && *link) {
        (*link)->value = value;
        return true;
    }
    if (map->count >= map->bucket_count && !grow(map) && !map->bucket_count)
        return false; /* a full table that cannot grow only gets longer chains */
    entry = malloc(sizeof *entry + key_len);
    if (!entry)
        return false;
    *entry = (struct map_entry){.value = value, .hash = hash, .key_len = key_len};
    if (key_len)
        memcpy(entry->key, key, key_len);
    link = &map->buckets[hash & (map->bucket_count - 1)];
    entry->next = *link;
    *link = entry;
    map->count++;
    return true;
}

void *map_remove(struct map *map, const void *key, size_t key_len)
{
    struct map_entry **link = find(map, key, key_len, hash_of(map, key, key_len)), *entry;
    void *value;

    if (!link || !*link)
        return NULL;
    entry = *link;
    *link = entry->next;
    value = entry->value;
    free(entry);
    map->count--;
    return value;
}

void *map_get_str(const struct map *map, const char *key)
{
    return map_get(map, key, strlen(key));
}

bool map_put_str(struct map *map, const char *key, void *value)
{
    return map_put(map, key, strlen(key), value);
}

void *map_remove_str(struct map *map, const char *key)
{
    return map_remove(map, key, strlen(key));
}

void *map_get_u64(const struct map *map, uint64_t key)
{
    return map_get(map, &key, sizeof key);
}

bool map_put_u64(struct map *map, uint64_t key, void *value)
{
    return map_put(map, &key, sizeof key, value);
}

void *map_remove_u64(struct map *map, uint64_t key)
{
    return map_remove(map, &key, sizeof key);
}

void *map_next(const struct map *map, const struct map_entry **position, const void **key_out, size_t *key_len_out)
{
    const struct map_entry *entry = *position;
    size_t bucket = 0;

    if (entry) {
        bucket = (entry->hash & (map->bucket_count - 1)) + 1;
        entry = entry->next;
    }
    while (!entry && bucket < map->bucket_count)
        entry = map->buckets[bucket++];
    *position = entry;
    if (!entry)
        return NULL;
    if (key_out)
        *key_out = entry->key;
    if (key_len_out)
        *key_len_out = entry->key_len;
    return entry->value;
}
