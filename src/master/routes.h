/* SPDX-License-Identifier: Apache-2.0 */
/* Which client holds which key: key -> object -> replicas (client, tier). Kept in order of keys, found by hash, and
 * listed per client, so that a dead client's routes can go in bounded slices. Compact (`bench/run routes`): a master
 * holds many millions.
 *
 * A client is a small number here (its slot in the registry). A replica carries the epoch of the registration that
 * confirmed it last: what a client has not announced again after a registration is stale and can be swept.
 *
 * Not thread-safe; pure: no clock, no I/O. */
#ifndef SHOAL_MASTER_ROUTES_H
#define SHOAL_MASTER_ROUTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define ROUTE_KEY_MAX_BYTES 1024u
#define ROUTE_REPLICAS_MAX 64u

struct routes;

struct routes_config {
    size_t max_routes;    /* 0: 100 millions */
    uint32_t max_clients; /* slots are below it */
    uint64_t seed;        /* of the order's coin; 0: random */
};
enum shoal_status routes_create(const struct routes_config *config, struct routes **routes_out,
                                struct shoal_error *error);
void routes_destroy(struct routes *routes); /* NULL is allowed */

struct route_replica {
    uint32_t client;
    uint16_t tier, epoch;
};
/* Valid until routes change. */
struct route_view {
    const char *key; /* not NUL-terminated */
    size_t key_len;
    uint64_t object_id, len_bytes;
    uint32_t route; /* private */
};
bool routes_get(const struct routes *routes, const char *key, size_t key_len, struct route_view *view_out);
/* At most ROUTE_REPLICAS_MAX; returns how many. */
size_t routes_replicas(const struct routes *routes, const struct route_view *view,
                       struct route_replica replicas_out[ROUTE_REPLICAS_MAX]);

/* The client holds the object. A replica that is there already gets tier and epoch. EXISTS: the key has a route to
 * another object. INVALID_ARGUMENT: key or client out of bounds. LIMIT: too many replicas or routes. NO_MEMORY. */
enum shoal_status routes_add(struct routes *routes, const char *key, size_t key_len, uint64_t object_id,
                             uint64_t len_bytes, uint32_t client, uint16_t tier, uint16_t epoch);
/* The client holds it no more; the last replica takes the route with it. object_id 0: any. NOT_FOUND. */
enum shoal_status routes_drop(struct routes *routes, const char *key, size_t key_len, uint64_t object_id,
                              uint32_t client);
/* The whole route. NOT_FOUND. */
enum shoal_status routes_remove(struct routes *routes, const char *key, size_t key_len);

/* Takes away up to max replicas of the client, whatever their epoch or only those of another epoch. Returns how many;
 * fewer than max: no more are left. */
size_t routes_drop_client(struct routes *routes, uint32_t client, size_t max);
size_t routes_drop_stale(struct routes *routes, uint32_t client, uint16_t epoch, size_t max);
size_t routes_of_client(const struct routes *routes, uint32_t client);

/* Visits routes in ascending order of keys (bytes), from the first one beyond after (NULL: all; is_inclusive: from
 * after itself) until fn returns false or max were visited. Returns how many were visited. fn must not change routes.
 */
typedef bool (*routes_visit_fn)(void *arg, const struct route_view *view);
size_t routes_walk(const struct routes *routes, const char *after, size_t after_len, bool is_inclusive, size_t max,
                   routes_visit_fn fn, void *arg);

size_t routes_count(const struct routes *routes);
/* All memory that routes take. */
size_t routes_bytes(const struct routes *routes);

#endif
