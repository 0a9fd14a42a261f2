/* SPDX-License-Identifier: Apache-2.0 */
/* What peers hold here for a while: pinned objects or chunks to READ, and space that waits for their commit. A lease
 * ends when it is taken, or lease_ms after it was added or last renewed; not when a connection is lost, because the
 * bytes travel on others. Ids are random, so nobody meets another's lease by accident.
 *
 * Not thread-safe; time comes from the caller. */
#ifndef SHOAL_KV_LEASES_H
#define SHOAL_KV_LEASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/list.h"
#include "base/map.h"

struct tier_object;
struct tier_allocation;
struct kv_window;

enum lease_kind {
    LEASE_PIN = 1,   /* bytes that the peer READs: object or staging */
    LEASE_WRITE = 2, /* allocation: complete, or WRITten by the peer */
};

/* All owned by the lease; unused ones are NULL or 0. */
struct lease_holding {
    enum lease_kind kind;
    struct tier_object *object;
    void *staging;
    struct tier_allocation *allocation;
    struct kv_window *window; /* by which the peer may WRITE */
    uint64_t object_id;       /* for the commit; 0: a new one */
    uint64_t len_bytes;       /* of what cannot be evicted meanwhile */
};

struct leases_config {
    int64_t lease_ms;
    size_t max, max_per_peer, max_staging; /* at the same time */
    uint64_t max_bytes;                    /* of all together, but for a single one; 0: any */
    /* Gives back what an expired lease held. */
    void (*release)(void *arg, const struct lease_holding *holding);
    void *arg;
};

struct leases {
    struct leases_config config;
    struct map by_id;    /* struct lease, owned */
    struct map by_peer;  /* server name -> struct lease_peer, owned */
    struct list by_time; /* struct lease; all last equally long, so the oldest renewal expires first */
    size_t staging_count;
    uint64_t bytes;
    uint64_t expired, refused; /* counters */
};

void leases_init(struct leases *leases, const struct leases_config *config);
/* Releases what is held. */
void leases_release(struct leases *leases);

/* LIMIT (message says which), NO_MEMORY; the holding then stays the caller's. */
enum shoal_status leases_add(struct leases *leases, const char *peer, const struct lease_holding *holding,
                             int64_t now_ms, uint64_t *id_out, struct shoal_error *error);
/* NOT_FOUND. A lease that is still here is good, however late the caller of leases_expire is. */
enum shoal_status leases_renew(struct leases *leases, uint64_t id, int64_t now_ms);
/* Ends a lease of that kind and hands over what it held. NOT_FOUND. */
enum shoal_status leases_take(struct leases *leases, uint64_t id, enum lease_kind kind,
                              struct lease_holding *holding_out);
/* Whether one more that holds a staging buffer would be accepted. */
bool leases_has_staging_room(const struct leases *leases);

/* Releases what has expired. */
void leases_expire(struct leases *leases, int64_t now_ms);
/* This process did not run for so long: nobody could renew. */
void leases_postpone(struct leases *leases, int64_t delay_ms);
size_t leases_count(const struct leases *leases);

#endif
