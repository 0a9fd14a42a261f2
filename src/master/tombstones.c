/* SPDX-License-Identifier: Apache-2.0 */
#include "master/tombstones.h"

#include <stdlib.h>

#define CAPACITY_FIRST 1024u

struct tombstone {
    uint64_t object_id;
    int64_t at_ms;
};

void tombstones_init(struct tombstones *tombstones, size_t max_count, int64_t age_ms)
{
    *tombstones = (struct tombstones){.max_count = max_count ? max_count : 1, .age_ms = age_ms};
}

void tombstones_release(struct tombstones *tombstones)
{
    free(tombstones->ring);
    free(tombstones->table);
    tombstones->ring = NULL;
    tombstones->table = NULL;
    tombstones->capacity = tombstones->first = tombstones->count = 0;
}

/* Object ids are random, but whoever announces chooses them. */
static size_t home_of(const struct tombstones *tombstones, uint64_t object_id)
{
    uint64_t mixed = (object_id ^ object_id >> 32) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(mixed >> 20) & (2 * tombstones->capacity - 1);
}

/* Where the id is, or the free place where it would go. */
static size_t find(const struct tombstones *tombstones, uint64_t object_id)
{
    size_t mask = 2 * tombstones->capacity - 1, at = home_of(tombstones, object_id);

    while (tombstones->table[at] && tombstones->ring[tombstones->table[at] - 1].object_id != object_id)
        at = (at + 1) & mask;
    return at;
}

/* Linear probing without marks: what follows moves up if its home allows (Knuth, 6.4, algorithm R). */
static void table_remove(struct tombstones *tombstones, size_t hole)
{
    size_t mask = 2 * tombstones->capacity - 1;

    for (size_t at = (hole + 1) & mask; tombstones->table[at]; at = (at + 1) & mask) {
        size_t home = home_of(tombstones, tombstones->ring[tombstones->table[at] - 1].object_id);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            tombstones->table[hole] = tombstones->table[at];
            hole = at;
        }
    }
    tombstones->table[hole] = 0;
}

static void drop_first(struct tombstones *tombstones)
{
    table_remove(tombstones, find(tombstones, tombstones->ring[tombstones->first].object_id));
    tombstones->first = (tombstones->first + 1) & (tombstones->capacity - 1);
    tombstones->count--;
}

static bool grow(struct tombstones *tombstones)
{
    size_t capacity = tombstones->capacity ? 2 * tombstones->capacity : CAPACITY_FIRST;
    struct tombstone *ring = malloc(capacity * sizeof *ring);
    uint32_t *table = calloc(2 * capacity, sizeof *table);

    if (!ring || !table || capacity > UINT32_MAX / 2) {
        free(ring);
        free(table);
        return false;
    }
    for (size_t i = 0; i < tombstones->count; i++)
        ring[i] = tombstones->ring[(tombstones->first + i) & (tombstones->capacity - 1)];
    free(tombstones->ring);
    free(tombstones->table);
    tombstones->ring = ring;
    tombstones->table = table;
    tombstones->capacity = capacity;
    tombstones->first = 0;
    for (size_t i = 0; i < tombstones->count; i++)
        table[find(tombstones, ring[i].object_id)] = (uint32_t)i + 1;
    return true;
}

bool tombstones_add(struct tombstones *tombstones, uint64_t object_id, int64_t now_ms)
{
    size_t at;

    if (tombstones_has(tombstones, object_id))
        return true;
    if (tombstones->count >= tombstones->max_count)
        drop_first(tombstones);
    if (tombstones->count == tombstones->capacity && !grow(tombstones)) {
        if (!tombstones->count)
            return false;
        drop_first(tombstones);
    }
    at = (tombstones->first + tombstones->count) & (tombstones->capacity - 1);
    tombstones->ring[at] = (struct tombstone){.object_id = object_id, .at_ms = now_ms};
    tombstones->table[find(tombstones, object_id)] = (uint32_t)at + 1;
    tombstones->count++;
    return true;
}

bool tombstones_has(const struct tombstones *tombstones, uint64_t object_id)
{
    return tombstones->count && tombstones->table[find(tombstones, object_id)];
}

size_t tombstones_expire(struct tombstones *tombstones, int64_t now_ms, size_t max)
{
    size_t count = 0;

    while (count < max && tombstones->count &&
           now_ms - tombstones->ring[tombstones->first].at_ms >= tombstones->age_ms) {
        drop_first(tombstones);
        count++;
    }
    return count;
}

size_t tombstones_bytes(const struct tombstones *tombstones)
{
    return tombstones->capacity * (sizeof *tombstones->ring + 2 * sizeof *tombstones->table);
}
