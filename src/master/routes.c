/* SPDX-License-Identifier: Apache-2.0 */
#include "master/routes.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/random.h"
#include "master/slab.h"

#define MAX_ROUTES_DEFAULT 100000000u
#define HEIGHT_MAX 14 /* of the skip list: 4^14 routes are found in a logarithmic number of steps */
#define MALLOC_OVERHEAD_BYTES 8u

/* 0 is "none" in all numbers. */
struct route {
    uint64_t object_id, len_bytes;
    char *block; /* owned: links of the levels above the lowest, then the key */
    uint32_t hash, hash_next;
    uint32_t next; /* in order of keys */
    uint32_t first_replica;
    uint16_t key_len;
    uint8_t height; /* 1..HEIGHT_MAX */
};

struct replica {
    uint32_t route, route_next;
    uint32_t prev, next; /* in the client's list: confirmed last is first */
    uint32_t client;
    uint16_t tier, epoch;
};

struct client_list {
    uint32_t first, last, count;
};

struct routes {
    struct slab routes, replicas;
    struct slab
        buckets; /* of uint32_t: linear hashing, one more with each route, so nothing is ever rehashed at once */
    uint32_t bucket_count;
    uint32_t heads[HEIGHT_MAX];
    struct client_list *clients; /* owned */
    uint32_t max_clients;
    size_t max_routes, count, block_bytes;
    struct random random;
    uint64_t hash_seed; /* peers cannot choose collisions */
};

static struct route *route_at(const struct routes *routes, uint32_t number)
{
    return slab_at(&routes->routes, number);
}

static struct replica *replica_at(const struct routes *routes, uint32_t number)
{
    return slab_at(&routes->replicas, number);
}

static size_t links_bytes(const struct route *route)
{
    return (route->height - 1u) * sizeof(uint32_t);
}

static const char *key_of(const struct route *route)
{
    return route->block + links_bytes(route);
}

/* --- by hash --- */

static uint32_t *bucket_of(const struct routes *routes, uint32_t hash)
{
    uint32_t half = 1u << (31 - __builtin_clz(routes->bucket_count));
    uint32_t bucket = hash & (2 * half - 1);

    if (bucket >= routes->bucket_count)
        bucket = hash & (half - 1);
    return slab_at(&routes->buckets, bucket + 1);
}

static uint32_t hash_of(const struct routes *routes, const char *key, size_t key_len)
{
    return (uint32_t)map_hash(routes->hash_seed, key, key_len);
}

static uint32_t find(const struct routes *routes, const char *key, size_t key_len)
{
    uint32_t hash = hash_of(routes, key, key_len);

    for (uint32_t number = *bucket_of(routes, hash); number; number = route_at(routes, number)->hash_next) {
        const struct route *route = route_at(routes, number);
        if (route->hash == hash && route->key_len == key_len && memcmp(key_of(route), key, key_len) == 0)
            return number;
    }
    return 0;
}

/* Splits the next bucket in two. Without memory for it chains only get longer. */
static void add_bucket(struct routes *routes)
{
    uint32_t half = 1u << (31 - __builtin_clz(routes->bucket_count)), number;
    uint32_t *from = slab_at(&routes->buckets, routes->bucket_count - half + 1);

    if (routes->bucket_count >= 1u << 30 || !slab_alloc(&routes->buckets))
        return;
    number = *from;
    *from = 0;
    routes->bucket_count++;
    while (number) {
        struct route *route = route_at(routes, number);
        uint32_t next = route->hash_next, *to = bucket_of(routes, route->hash);
        route->hash_next = *to;
        *to = number;
        number = next;
    }
}

static void hash_insert(struct routes *routes, uint32_t number)
{
    struct route *route = route_at(routes, number);
    uint32_t *bucket;

    if (routes->count >= routes->bucket_count)
        add_bucket(routes);
    bucket = bucket_of(routes, route->hash);
    route->hash_next = *bucket;
    *bucket = number;
}

static void hash_remove(struct routes *routes, uint32_t number)
{
    const struct route *route = route_at(routes, number);
    uint32_t *link = bucket_of(routes, route->hash);

    while (*link != number)
        link = &route_at(routes, *link)->hash_next;
    *link = route->hash_next;
}

/* --- in order: a skip list --- */

static int compare(const struct route *route, const char *key, size_t key_len)
{
    size_t len = route->key_len < key_len ? route->key_len : key_len;
    int result = memcmp(key_of(route), key, len);

    if (result)
        return result;
    return route->key_len < key_len ? -1 : route->key_len > key_len;
}

/* The link of that level in the route; route 0: in the head. */
static uint32_t get_link(const struct routes *routes, uint32_t number, int level)
{
    const struct route *route;
    uint32_t link;

    if (!number)
        return routes->heads[level];
    route = route_at(routes, number);
    if (level == 0)
        return route->next;
    memcpy(&link, route->block + (size_t)(level - 1) * sizeof link, sizeof link);
    return link;
}

static void set_link(struct routes *routes, uint32_t number, int level, uint32_t to)
{
    struct route *route;

    if (!number) {
        routes->heads[level] = to;
        return;
    }
    route = route_at(routes, number);
    if (level == 0)
        route->next = to;
    else
        memcpy(route->block + (size_t)(level - 1) * sizeof to, &to, sizeof to);
}

/* In each level the last route before key (0: the head). Returns the first that is not before it (0: none). */
static uint32_t find_place(const struct routes *routes, const char *key, size_t key_len, uint32_t before[HEIGHT_MAX])
{
    uint32_t at = 0, next = 0;

    for (int level = HEIGHT_MAX - 1; level >= 0; level--) {
        while ((next = get_link(routes, at, level)) && compare(route_at(routes, next), key, key_len) < 0)
            at = next;
        before[level] = at;
    }
    return next;
}

static void order_insert(struct routes *routes, uint32_t number)
{
    const struct route *route = route_at(routes, number);
    uint32_t before[HEIGHT_MAX];

    find_place(routes, key_of(route), route->key_len, before);
    for (int level = 0; level < route->height; level++) {
        set_link(routes, number, level, get_link(routes, before[level], level));
        set_link(routes, before[level], level, number);
    }
}

static void order_remove(struct routes *routes, uint32_t number)
{
    const struct route *route = route_at(routes, number);
    uint32_t before[HEIGHT_MAX];

    find_place(routes, key_of(route), route->key_len, before);
    for (int level = 0; level < route->height; level++)
        set_link(routes, before[level], level, get_link(routes, number, level));
}

/* --- replicas --- */

static void client_unlink(struct routes *routes, uint32_t number)
{
    const struct replica *replica = replica_at(routes, number);
    struct client_list *list = &routes->clients[replica->client];

    if (replica->prev)
        replica_at(routes, replica->prev)->next = replica->next;
    else
        list->first = replica->next;
    if (replica->next)
        replica_at(routes, replica->next)->prev = replica->prev;
    else
        list->last = replica->prev;
    list->count--;
}

static void client_push(struct routes *routes, uint32_t number)
{
    struct replica *replica = replica_at(routes, number);
    struct client_list *list = &routes->clients[replica->client];

    replica->prev = 0;
    replica->next = list->first;
    if (list->first)
        replica_at(routes, list->first)->prev = number;
    else
        list->last = number;
    list->first = number;
    list->count++;
}

static void route_destroy(struct routes *routes, uint32_t number)
{
    struct route *route = route_at(routes, number);

    hash_remove(routes, number);
    order_remove(routes, number);
    routes->block_bytes -= malloc_usable_size(route->block) + MALLOC_OVERHEAD_BYTES;
    routes->count--;
    free(route->block);
    slab_free(&routes->routes, number);
}

/* The route goes with its last replica. */
static void replica_destroy(struct routes *routes, uint32_t number)
{
    uint32_t route_number = replica_at(routes, number)->route;
    struct route *route = route_at(routes, route_number);
    uint32_t *link = &route->first_replica;

    while (*link != number)
        link = &replica_at(routes, *link)->route_next;
    *link = replica_at(routes, number)->route_next;
    client_unlink(routes, number);
    slab_free(&routes->replicas, number);
    if (!route->first_replica)
        route_destroy(routes, route_number);
}

/* count_out: of all. */
static uint32_t find_replica(const struct routes *routes, const struct route *route, uint32_t client, size_t *count_out)
{
    uint32_t found = 0;

    *count_out = 0;
    for (uint32_t number = route->first_replica; number; number = replica_at(routes, number)->route_next) {
        if (replica_at(routes, number)->client == client)
            found = number;
        (*count_out)++;
    }
    return found;
}

static uint32_t route_create(struct routes *routes, const char *key, size_t key_len, uint64_t object_id,
                             uint64_t len_bytes)
{
    uint32_t number = slab_alloc(&routes->routes);
    struct route *route;

    if (!number)
        return 0;
    route = route_at(routes, number);
    *route = (struct route){.object_id = object_id,
                            .len_bytes = len_bytes,
                            .hash = hash_of(routes, key, key_len),
                            .key_len = (uint16_t)key_len,
                            .height = 1};
    while (route->height < HEIGHT_MAX && (random_next(&routes->random) & 3) == 0)
        route->height++;
    route->block = calloc(1, links_bytes(route) + key_len);
    if (!route->block) {
        slab_free(&routes->routes, number);
        return 0;
    }
    memcpy(route->block + links_bytes(route), key, key_len);
    routes->block_bytes += malloc_usable_size(route->block) + MALLOC_OVERHEAD_BYTES;
    hash_insert(routes, number);
    order_insert(routes, number);
    routes->count++;
    return number;
}

/* --- what others see --- */

enum shoal_status routes_create(const struct routes_config *config, struct routes **routes_out,
                                struct shoal_error *error)
{
    struct routes *routes = calloc(1, sizeof *routes);

    if (!routes)
        return error_no_memory(error);
    routes->max_routes = config->max_routes ? config->max_routes : MAX_ROUTES_DEFAULT;
    routes->max_clients = config->max_clients;
    routes->hash_seed = random_id();
    random_init(&routes->random, config->seed ? config->seed : random_id());
    slab_init(&routes->routes, sizeof(struct route));
    slab_init(&routes->replicas, sizeof(struct replica));
    slab_init(&routes->buckets, sizeof(uint32_t));
    routes->clients = calloc(config->max_clients ? config->max_clients : 1, sizeof *routes->clients);
    if (!routes->clients || !slab_alloc(&routes->buckets)) {
        routes_destroy(routes);
        return error_no_memory(error);
    }
    routes->bucket_count = 1;
    *routes_out = routes;
    return SHOAL_OK;
}

void routes_destroy(struct routes *routes)
{
    uint32_t number;

    if (!routes)
        return;
    for (number = routes->heads[0]; number; number = route_at(routes, number)->next)
        free(route_at(routes, number)->block);
    slab_release(&routes->routes);
    slab_release(&routes->replicas);
    slab_release(&routes->buckets);
    free(routes->clients);
    free(routes);
}

static void view_of(const struct routes *routes, uint32_t number, struct route_view *view_out)
{
    const struct route *route = route_at(routes, number);

    *view_out = (struct route_view){.key = key_of(route),
                                    .key_len = route->key_len,
                                    .object_id = route->object_id,
                                    .len_bytes = route->len_bytes,
                                    .route = number};
}

bool routes_get(const struct routes *routes, const char *key, size_t key_len, struct route_view *view_out)
{
    uint32_t number = find(routes, key, key_len);

    if (number)
        view_of(routes, number, view_out);
    return number != 0;
}

size_t routes_replicas(const struct routes *routes, const struct route_view *view,
                       struct route_replica replicas_out[ROUTE_REPLICAS_MAX])
{
    size_t count = 0;

    for (uint32_t number = route_at(routes, view->route)->first_replica; number && count < ROUTE_REPLICAS_MAX;) {
        const struct replica *replica = replica_at(routes, number);
        replicas_out[count++] =
            (struct route_replica){.client = replica->client, .tier = replica->tier, .epoch = replica->epoch};
        number = replica->route_next;
    }
    return count;
}

enum shoal_status routes_add(struct routes *routes, const char *key, size_t key_len, uint64_t object_id,
                             uint64_t len_bytes, uint32_t client, uint16_t tier, uint16_t epoch)
{
    uint32_t route_number, number;
    struct replica *replica;
    struct route *route;
    size_t count = 0;
    bool is_new;

    if (key_len == 0 || key_len > ROUTE_KEY_MAX_BYTES || client >= routes->max_clients)
        return SHOAL_INVALID_ARGUMENT;
    route_number = find(routes, key, key_len);
    is_new = !route_number;
    if (!is_new) {
        route = route_at(routes, route_number);
        if (route->object_id != object_id)
            return SHOAL_EXISTS;
        number = find_replica(routes, route, client, &count);
        if (number) {
            replica = replica_at(routes, number);
            replica->tier = tier;
            replica->epoch = epoch;
            client_unlink(routes, number);
            client_push(routes, number);
            return SHOAL_OK;
        }
        if (count >= ROUTE_REPLICAS_MAX)
            return SHOAL_LIMIT;
    } else if (routes->count >= routes->max_routes) {
        return SHOAL_LIMIT;
    }
    number = slab_alloc(&routes->replicas);
    if (!number)
        return SHOAL_NO_MEMORY;
    if (is_new)
        route_number = route_create(routes, key, key_len, object_id, len_bytes);
    if (!route_number) {
        slab_free(&routes->replicas, number);
        return SHOAL_NO_MEMORY;
    }
    route = route_at(routes, route_number);
    replica = replica_at(routes, number);
    *replica = (struct replica){
        .route = route_number, .route_next = route->first_replica, .client = client, .tier = tier, .epoch = epoch};
    route->first_replica = number;
    client_push(routes, number);
    return SHOAL_OK;
}

enum shoal_status routes_drop(struct routes *routes, const char *key, size_t key_len, uint64_t object_id,
                              uint32_t client)
{
    uint32_t route_number = find(routes, key, key_len), number;
    const struct route *route;
    size_t count;

    if (!route_number)
        return SHOAL_NOT_FOUND;
    route = route_at(routes, route_number);
    number = !object_id || route->object_id == object_id ? find_replica(routes, route, client, &count) : 0;
    if (!number)
        return SHOAL_NOT_FOUND;
    replica_destroy(routes, number);
    return SHOAL_OK;
}

enum shoal_status routes_remove(struct routes *routes, const char *key, size_t key_len)
{
    uint32_t route_number = find(routes, key, key_len), next;

    if (!route_number)
        return SHOAL_NOT_FOUND;
    for (uint32_t number = route_at(routes, route_number)->first_replica; number; number = next) {
        next = replica_at(routes, number)->route_next;
        client_unlink(routes, number);
        slab_free(&routes->replicas, number);
    }
    route_destroy(routes, route_number);
    return SHOAL_OK;
}

size_t routes_drop_client(struct routes *routes, uint32_t client, size_t max)
{
    size_t count = 0;

    for (; count < max && client < routes->max_clients && routes->clients[client].last; count++)
        replica_destroy(routes, routes->clients[client].last);
    return count;
}

size_t routes_drop_stale(struct routes *routes, uint32_t client, uint16_t epoch, size_t max)
{
    size_t count = 0;

    for (; count < max && client < routes->max_clients; count++) {
        uint32_t number = routes->clients[client].last; /* what was confirmed least lately */
        if (!number || replica_at(routes, number)->epoch == epoch)
            break;
        replica_destroy(routes, number);
    }
    return count;
}

size_t routes_of_client(const struct routes *routes, uint32_t client)
{
    return client < routes->max_clients ? routes->clients[client].count : 0;
}

size_t routes_walk(const struct routes *routes, const char *after, size_t after_len, bool is_inclusive, size_t max,
                   routes_visit_fn fn, void *arg)
{
    uint32_t before[HEIGHT_MAX], number = routes->heads[0];
    size_t count = 0;

    if (after) {
        number = find_place(routes, after, after_len, before);
        if (!is_inclusive && number && compare(route_at(routes, number), after, after_len) == 0)
            number = route_at(routes, number)->next;
    }
    while (number && count < max) {
        struct route_view view;
        view_of(routes, number, &view);
        count++;
        if (!fn(arg, &view))
            break;
        number = route_at(routes, number)->next;
    }
    return count;
}

size_t routes_count(const struct routes *routes)
{
    return routes->count;
}

size_t routes_bytes(const struct routes *routes)
{
    return sizeof *routes + slab_bytes(&routes->routes) + slab_bytes(&routes->replicas) + slab_bytes(&routes->buckets) +
           routes->max_clients * sizeof *routes->clients + routes->block_bytes;
}
