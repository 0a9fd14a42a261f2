/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part: clients with their heartbeats, capacities, and the removed objects that they are still to delete.
 *
 * A client has a slot (a small number, as routes know it). Its life: LIVE from its registration; GONE when it said
 * goodbye, was silent for the ttl or was replaced; the slot is free again when its routes are gone (registry_free).
 *
 * Not thread-safe; pure, the clock is the caller's. */
#ifndef SHOAL_MASTER_REGISTRY_H
#define SHOAL_MASTER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/list.h"
#include "base/map.h"
#include "master/targets.h"

#define CLIENT_TIERS_MAX 16u
#define CLIENT_NAME_MAX_BYTES 319u
#define CLIENT_ADDRESS_MAX_BYTES 319u

struct registry;

struct registry_config {
    int64_t client_ttl_ms;   /* 0: 10000 */
    uint32_t max_clients;    /* live and gone ones; 0: 4096 */
    size_t drop_queue_bytes; /* of one client; 0: 4 MiB */
    uint64_t first_sequence; /* of drops: beyond those of all earlier masters, whose answers a client may remember */
};

enum client_state {
    CLIENT_FREE,
    CLIENT_LIVE,
    CLIENT_GONE, /* its routes are being taken away; nobody is told of them any more */
};

struct client_tier {
    uint32_t type;
    int32_t priority;
    uint64_t capacity_bytes, used_bytes;
};

struct client {
    enum client_state state;
    uint32_t slot;
    uint64_t instance;
    char *server_name, *address; /* owned */
    struct client_tier tiers[CLIENT_TIERS_MAX];
    size_t tier_count;
    uint64_t object_count;   /* as it last said */
    uint64_t assigned_bytes; /* as a write target since its last heartbeat */
    int64_t heard_ms;
    uint16_t epoch;     /* of its registration */
    bool is_announcing; /* what it held at its registration is not all told yet */
    bool has_stale;     /* it is; what was not confirmed can be swept */
    bool must_register; /* its drops overflowed: by announcing everything it learns what was removed */
    /* private */
    struct list drops; /* struct drop, by sequence */
    struct map drops_by_id;
    size_t drop_bytes;
};

enum shoal_status registry_create(const struct registry_config *config, struct registry **registry_out,
                                  struct shoal_error *error);
void registry_destroy(struct registry *registry); /* NULL is allowed */

struct registration {
    uint64_t instance;
    const char *server_name, *address; /* copied */
    const struct client_tier *tiers;
    size_t tier_count;
    uint64_t object_count; /* that it will announce */
};
/* Begins, or begins again with what is known kept until it is confirmed. NAME_IN_USE: a live client has the name (the
 * message has its address; holder_out, may be NULL, is that client). INVALID_ARGUMENT, LIMIT, NO_MEMORY. */
enum shoal_status registry_register(struct registry *registry, const struct registration *registration, int64_t now_ms,
                                    struct client **client_out, struct client **holder_out, struct shoal_error *error);
/* NULL: no live client. */
struct client *registry_find(const struct registry *registry, uint64_t instance);
struct client *registry_find_name(const struct registry *registry, const char *server_name);
/* slot of a client that is not free */
struct client *registry_at(const struct registry *registry, uint32_t slot);
/* Iterates over clients that are not free, by slot; position starts at 0. NULL: the end. */
struct client *registry_next(const struct registry *registry, uint32_t *position);

void registry_heard(struct client *client, const struct client_tier *tiers, size_t tier_count, uint64_t object_count,
                    int64_t now_ms);
void registry_end(struct registry *registry, struct client *client);  /* LIVE -> GONE */
void registry_free(struct registry *registry, struct client *client); /* GONE -> FREE */

/* To be called every registry_tick_ms(). Ends clients that were silent for the ttl, and returns how many. If it was
 * called much too late, then this process was stalled and could not hear anybody: all clients get a fresh ttl, and
 * *was_stalled_out is true. */
unsigned registry_tick(struct registry *registry, int64_t now_ms, bool *was_stalled_out);
int64_t registry_tick_ms(const struct registry *registry);
int64_t registry_ttl_ms(const struct registry *registry);
bool registry_is_announcing(const struct registry *registry);

/* --- drops: objects that the client is to delete --- */

struct drop {
    uint64_t sequence, object_id;
    const char *key; /* NUL-terminated; inside the drop */
    struct list_node node;
};
/* Queues one; when the queue is full all are forgotten and must_register is set instead. */
void registry_add_drop(struct registry *registry, struct client *client, const char *key, size_t key_len,
                       uint64_t object_id);
/* Those up to sequence are done. */
void registry_drops_done(struct client *client, uint64_t sequence);
/* The client said by itself that it has the object no more. */
void registry_forget_drop(struct client *client, uint64_t object_id);
/* The oldest up to max; drops_out borrows until the queue changes. Returns how many. */
size_t registry_drops(const struct client *client, const struct drop **drops_out, size_t max);
size_t registry_drop_count(const struct client *client);

/* --- targets --- */

uint32_t registry_live_count(const struct registry *registry);
/* All live clients that own tiers; candidates_out has room for registry_live_count. Returns how many. */
size_t registry_candidates(const struct registry *registry, struct target_candidate *candidates_out);

#endif
