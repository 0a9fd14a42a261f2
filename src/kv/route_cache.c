/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/route_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"

#define SHARDS_MAX 16
#define ENTRIES_PER_SHARD_MIN 256 /* fewer, and shards would forget what others have room for */
#define BYTES_PER_ENTRY 1024      /* of the bound in bytes; an entry with a key of 64 bytes takes about 300 */
#define MAP_ENTRY_BYTES 48

/* One life of one client, referred to by the routes to it. */
struct owner {
    struct session_replica replica; /* tier fields unused: they differ from key to key */
    size_t refs;
    bool is_gone; /* routes to it are ignored; a later announcement of the same client makes a new owner */
};

struct replica {
    struct owner *owner; /* ref */
    unsigned tier, tier_type;
};

struct entry {
    struct list_node lru_node;
    uint64_t object_id, len_bytes;
    int64_t expires_ms;
    size_t bytes, key_len;
    unsigned replica_count;
    struct replica replicas[ROUTE_REPLICAS_MAX];
    char key[]; /* not terminated */
};

struct shard {
    struct mutex mutex;
    struct map entries; /* struct entry, owned */
    struct list lru;    /* the longest unused first */
    struct map owners;  /* by instance: struct owner, those that are not gone */
    size_t bytes;
    struct route_cache_counters counters;
};

struct route_cache {
    size_t shard_count, shard_entries_max;
    int64_t max_age_ms;
    struct shard shards[];
};

struct route_cache *route_cache_create(size_t max_entries, int64_t max_age_ms)
{
    size_t shard_count = 1;
    struct route_cache *cache;

    while (shard_count < SHARDS_MAX && max_entries / (2 * shard_count) >= ENTRIES_PER_SHARD_MIN)
        shard_count *= 2;
    cache = calloc(1, sizeof *cache + shard_count * sizeof cache->shards[0]);
    if (!cache)
        return NULL;
    cache->shard_count = shard_count;
    cache->shard_entries_max = max_entries / shard_count ? max_entries / shard_count : 1;
    cache->max_age_ms = max_age_ms;
    for (size_t i = 0; i < shard_count; i++) {
        struct shard *shard = &cache->shards[i];

        mutex_init(&shard->mutex, RANK_KV);
        map_init(&shard->entries);
        map_init(&shard->owners);
        list_init(&shard->lru);
    }
    return cache;
}

static struct shard *shard_of(struct route_cache *cache, const char *key, size_t key_len)
{
    return &cache->shards[map_hash(0, key, key_len) & (cache->shard_count - 1)];
}

static void owner_unref(struct shard *shard, struct owner *owner)
{
    if (--owner->refs > 0)
        return;
    if (!owner->is_gone)
        map_remove_u64(&shard->owners, owner->replica.instance);
    free(owner);
}

static void entry_remove(struct shard *shard, struct entry *entry)
{
    map_remove(&shard->entries, entry->key, entry->key_len);
    list_remove(&entry->lru_node);
    shard->bytes -= entry->bytes;
    for (unsigned i = 0; i < entry->replica_count; i++)
        owner_unref(shard, entry->replicas[i].owner);
    free(entry);
}

void route_cache_destroy(struct route_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < cache->shard_count; i++) {
        struct shard *shard = &cache->shards[i];
        struct list_node *node;

        while ((node = list_first(&shard->lru)))
            entry_remove(shard, container_of(node, struct entry, lru_node));
        map_release(&shard->entries);
        map_release(&shard->owners);
        mutex_release(&shard->mutex);
    }
    free(cache);
}

/* What is left of a route; owners that are gone leave it. */
static void entry_drop_gone(struct shard *shard, struct entry *entry)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < entry->replica_count; i++) {
        if (entry->replicas[i].owner->is_gone)
            owner_unref(shard, entry->replicas[i].owner);
        else
            entry->replicas[kept++] = entry->replicas[i];
    }
    entry->replica_count = kept;
}

bool route_cache_get(struct route_cache *cache, const char *key, int64_t now_ms, struct route *route_out)
{
    size_t key_len = strlen(key);
    struct shard *shard = shard_of(cache, key, key_len);
    struct entry *entry;

    mutex_lock(&shard->mutex);
    entry = map_get(&shard->entries, key, key_len);
    if (entry) {
        entry_drop_gone(shard, entry);
        if (!entry->replica_count || now_ms >= entry->expires_ms) {
            entry_remove(shard, entry);
            entry = NULL;
        }
    }
    if (entry) {
        route_out->object_id = entry->object_id;
        route_out->len_bytes = entry->len_bytes;
        route_out->replica_count = entry->replica_count;
        for (unsigned i = 0; i < entry->replica_count; i++) {
            route_out->replicas[i] = entry->replicas[i].owner->replica;
            route_out->replicas[i].tier = entry->replicas[i].tier;
            route_out->replicas[i].tier_type = entry->replicas[i].tier_type;
        }
        list_remove(&entry->lru_node);
        list_push_back(&shard->lru, &entry->lru_node);
        shard->counters.hits++;
    } else {
        shard->counters.misses++;
    }
    mutex_unlock(&shard->mutex);
    return entry != NULL;
}

/* A reference; NULL: out of memory. */
static struct owner *owner_of(struct shard *shard, const struct session_replica *replica)
{
    struct owner *owner = map_get_u64(&shard->owners, replica->instance);

    if (!owner) {
        owner = calloc(1, sizeof *owner);
        if (!owner)
            return NULL;
        owner->replica = *replica;
        if (!map_put_u64(&shard->owners, replica->instance, owner)) {
            free(owner);
            return NULL;
        }
    }
    owner->refs++;
    return owner;
}

void route_cache_put(struct route_cache *cache, const char *key, uint64_t object_id, uint64_t len_bytes,
                     const struct session_replica *replicas, size_t replica_count, int64_t now_ms)
{
    size_t key_len = strlen(key);
    struct shard *shard = shard_of(cache, key, key_len);
    struct entry *entry, *old;

    if (!replica_count)
        return;
    if (replica_count > ROUTE_REPLICAS_MAX)
        replica_count = ROUTE_REPLICAS_MAX;
    entry = malloc(sizeof *entry + key_len);
    if (!entry)
        return;
    entry->object_id = object_id;
    entry->len_bytes = len_bytes;
    entry->expires_ms = now_ms > INT64_MAX - cache->max_age_ms ? INT64_MAX : now_ms + cache->max_age_ms;
    entry->key_len = key_len;
    entry->replica_count = 0;
    entry->bytes = sizeof *entry + MAP_ENTRY_BYTES + 2 * key_len;
    memcpy(entry->key, key, key_len);
    mutex_lock(&shard->mutex);
    old = map_get(&shard->entries, key, key_len);
    if (old)
        entry_remove(shard, old);
    for (size_t i = 0; i < replica_count; i++) {
        struct owner *owner = owner_of(shard, &replicas[i]);

        if (owner)
            entry->replicas[entry->replica_count++] = (struct replica){owner, replicas[i].tier, replicas[i].tier_type};
    }
    list_push_back(&shard->lru, &entry->lru_node);
    shard->bytes += entry->bytes;
    if (!entry->replica_count || !map_put(&shard->entries, key, key_len, entry)) {
        entry_remove(shard, entry);
    } else {
        while (shard->entries.count > cache->shard_entries_max ||
               shard->bytes > cache->shard_entries_max * BYTES_PER_ENTRY) {
            entry_remove(shard, container_of(list_first(&shard->lru), struct entry, lru_node));
            shard->counters.evictions++;
        }
    }
    mutex_unlock(&shard->mutex);
}

void route_cache_forget(struct route_cache *cache, const char *key)
{
    size_t key_len = strlen(key);
    struct shard *shard = shard_of(cache, key, key_len);
    struct entry *entry;

    mutex_lock(&shard->mutex);
    entry = map_get(&shard->entries, key, key_len);
    if (entry)
        entry_remove(shard, entry);
    mutex_unlock(&shard->mutex);
}

void route_cache_forget_owner(struct route_cache *cache, uint64_t instance)
{
    for (size_t i = 0; i < cache->shard_count; i++) {
        struct shard *shard = &cache->shards[i];
        struct owner *owner;

        mutex_lock(&shard->mutex);
        owner = map_remove_u64(&shard->owners, instance);
        if (owner)
            owner->is_gone = true;
        mutex_unlock(&shard->mutex);
    }
}

void route_cache_counters(struct route_cache *cache, struct route_cache_counters *out)
{
    *out = (struct route_cache_counters){0};
    for (size_t i = 0; i < cache->shard_count; i++) {
        struct shard *shard = &cache->shards[i];

        mutex_lock(&shard->mutex);
        out->hits += shard->counters.hits;
        out->misses += shard->counters.misses;
        out->evictions += shard->counters.evictions;
        out->entries += shard->entries.count;
        mutex_unlock(&shard->mutex);
    }
}
