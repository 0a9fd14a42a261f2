/* SPDX-License-Identifier: Apache-2.0 */
#include "master/registry.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define CLIENT_TTL_MS 10000
#define MAX_CLIENTS 4096u
#define DROP_QUEUE_BYTES (4u << 20)
#define DROP_OVERHEAD_BYTES 128u /* list, map, allocators */
#define TICKS_PER_TTL 5
#define TICK_MIN_MS 10

struct registry {
    int64_t client_ttl_ms;
    size_t drop_queue_bytes;
    uint64_t next_sequence; /* of all clients, so that none of an earlier registration is mistaken for a later one */
    struct client *clients; /* owned */
    uint32_t max_clients, used; /* slots from used on were never taken */
    uint32_t live_count;
    struct map by_instance, by_name; /* live ones */
    int64_t last_tick_ms;            /* 0: none yet */
};

struct owned_drop {
    struct drop drop;
    size_t key_len;
    char key[];
};

enum shoal_status registry_create(const struct registry_config *config, struct registry **registry_out,
                                  struct shoal_error *error)
{
    struct registry *registry = calloc(1, sizeof *registry);

    if (!registry)
        return error_no_memory(error);
    registry->client_ttl_ms = config->client_ttl_ms ? config->client_ttl_ms : CLIENT_TTL_MS;
    registry->drop_queue_bytes = config->drop_queue_bytes ? config->drop_queue_bytes : DROP_QUEUE_BYTES;
    registry->next_sequence = config->first_sequence ? config->first_sequence : 1;
    registry->max_clients = config->max_clients ? config->max_clients : MAX_CLIENTS;
    map_init(&registry->by_instance);
    map_init(&registry->by_name);
    registry->clients = calloc(registry->max_clients, sizeof *registry->clients);
    if (!registry->clients) {
        registry_destroy(registry);
        return error_no_memory(error);
    }
    *registry_out = registry;
    return SHOAL_OK;
}

/* --- drops --- */

static size_t drop_cost(size_t key_len)
{
    return sizeof(struct owned_drop) + key_len + 1 + DROP_OVERHEAD_BYTES;
}

static void drop_destroy(struct client *client, struct drop *drop)
{
    struct owned_drop *owned = container_of(drop, struct owned_drop, drop);

    list_remove(&drop->node);
    map_remove_u64(&client->drops_by_id, drop->object_id);
    client->drop_bytes -= drop_cost(owned->key_len);
    free(owned);
}

static void clear_drops(struct client *client)
{
    LIST_FOR_EACH_SAFE (drop, &client->drops, struct drop, node)
        drop_destroy(client, drop);
}

void registry_add_drop(struct registry *registry, struct client *client, const char *key, size_t key_len,
                       uint64_t object_id)
{
    size_t cost = drop_cost(key_len);
    struct owned_drop *owned = NULL;

    if (client->must_register || map_get_u64(&client->drops_by_id, object_id))
        return;
    if (client->drop_bytes + cost <= registry->drop_queue_bytes)
        owned = malloc(sizeof *owned + key_len + 1);
    if (!owned || !map_put_u64(&client->drops_by_id, object_id, owned)) {
        free(owned);
        clear_drops(client);
        client->must_register = true;
        return;
    }
    owned->drop = (struct drop){.sequence = registry->next_sequence++, .object_id = object_id, .key = owned->key};
    owned->key_len = key_len;
    memcpy(owned->key, key, key_len);
    owned->key[key_len] = '\0';
    client->drop_bytes += cost;
    list_push_back(&client->drops, &owned->drop.node);
}

void registry_drops_done(struct client *client, uint64_t sequence)
{
    LIST_FOR_EACH_SAFE (drop, &client->drops, struct drop, node) {
        if (drop->sequence > sequence)
            break;
        drop_destroy(client, drop);
    }
}

void registry_forget_drop(struct client *client, uint64_t object_id)
{
    struct owned_drop *owned = map_get_u64(&client->drops_by_id, object_id);

    if (owned)
        drop_destroy(client, &owned->drop);
}

size_t registry_drops(const struct client *client, const struct drop **drops_out, size_t max)
{
    size_t count = 0;

    LIST_FOR_EACH (drop, &client->drops, struct drop, node) {
        if (count == max)
            break;
        drops_out[count++] = drop;
    }
    return count;
}

size_t registry_drop_count(const struct client *client)
{
    return client->drops_by_id.count;
}

/* --- clients --- */

static void client_release(struct client *client)
{
    if (client->state == CLIENT_FREE)
        return;
    clear_drops(client);
    map_release(&client->drops_by_id);
    free(client->server_name);
    free(client->address);
}

void registry_destroy(struct registry *registry)
{
    if (!registry)
        return;
    for (uint32_t slot = 0; registry->clients && slot < registry->used; slot++)
        client_release(&registry->clients[slot]);
    map_release(&registry->by_instance);
    map_release(&registry->by_name);
    free(registry->clients);
    free(registry);
}

struct client *registry_find(const struct registry *registry, uint64_t instance)
{
    return map_get_u64(&registry->by_instance, instance);
}

struct client *registry_find_name(const struct registry *registry, const char *server_name)
{
    return map_get_str(&registry->by_name, server_name);
}

struct client *registry_at(const struct registry *registry, uint32_t slot)
{
    return &registry->clients[slot];
}

struct client *registry_next(const struct registry *registry, uint32_t *position)
{
    while (*position < registry->used) {
        struct client *client = &registry->clients[(*position)++];
        if (client->state != CLIENT_FREE)
            return client;
    }
    return NULL;
}

static enum shoal_status check(const struct registration *registration, struct shoal_error *error)
{
    size_t name_len = strlen(registration->server_name), address_len = strlen(registration->address);

    if (!registration->instance)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a client's instance is not 0");
    if (name_len == 0 || name_len > CLIENT_NAME_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a server name has 1 to %u bytes", CLIENT_NAME_MAX_BYTES);
    if (address_len == 0 || address_len > CLIENT_ADDRESS_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a client's address has 1 to %u bytes",
                         CLIENT_ADDRESS_MAX_BYTES);
    if (registration->tier_count > CLIENT_TIERS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a client has at most %u tiers", CLIENT_TIERS_MAX);
    return SHOAL_OK;
}

static struct client *take_slot(struct registry *registry)
{
    for (uint32_t slot = 0; slot < registry->max_clients; slot++) {
        struct client *client = &registry->clients[slot];
        if (slot < registry->used && client->state != CLIENT_FREE)
            continue;
        if (slot == registry->used)
            registry->used++;
        *client = (struct client){.slot = slot, .epoch = client->epoch};
        list_init(&client->drops);
        map_init(&client->drops_by_id);
        return client;
    }
    return NULL;
}

static void set_tiers(struct client *client, const struct client_tier *tiers, size_t count)
{
    client->tier_count = count < CLIENT_TIERS_MAX ? count : CLIENT_TIERS_MAX;
    for (size_t i = 0; i < client->tier_count; i++)
        client->tiers[i] = tiers[i];
}

enum shoal_status registry_register(struct registry *registry, const struct registration *registration, int64_t now_ms,
                                    struct client **client_out, struct client **holder_out, struct shoal_error *error)
{
    struct client *client, *holder;
    char *name = NULL, *address = NULL;
    enum shoal_status status = check(registration, error);

    if (status)
        return status;
    client = registry_find(registry, registration->instance);
    holder = registry_find_name(registry, registration->server_name);
    if (holder && holder != client) {
        if (holder_out)
            *holder_out = holder;
        return error_set(error, SHOAL_NAME_IN_USE, 0, "the name \"%s\" belongs to a live client at %s",
                         registration->server_name, holder->address);
    }
    name = strdup(registration->server_name);
    address = strdup(registration->address);
    if (!name || !address)
        goto no_memory;
    if (!client) {
        client = take_slot(registry);
        if (!client) {
            status = error_set(error, SHOAL_LIMIT, 0, "there are %u clients already", registry->max_clients);
            goto free_texts;
        }
        if (!map_put_u64(&registry->by_instance, registration->instance, client))
            goto no_memory; /* the slot is still free */
        if (!map_put_str(&registry->by_name, name, client)) {
            map_remove_u64(&registry->by_instance, registration->instance);
            goto no_memory;
        }
        client->state = CLIENT_LIVE;
        client->instance = registration->instance;
        registry->live_count++;
    } else if (holder != client) { /* it changes its name */
        if (!map_put_str(&registry->by_name, name, client))
            goto no_memory;
        map_remove_str(&registry->by_name, client->server_name);
    }
    free(client->server_name);
    free(client->address);
    client->server_name = name;
    client->address = address;
    client->epoch++;
    client->is_announcing = registration->object_count > 0;
    client->has_stale = !client->is_announcing;
    if (client->must_register)
        clear_drops(client);
    client->must_register = false;
    registry_heard(client, registration->tiers, registration->tier_count, registration->object_count, now_ms);
    *client_out = client;
    return SHOAL_OK;

no_memory:
    status = error_no_memory(error);
free_texts:
    free(name);
    free(address);
    return status;
}

void registry_heard(struct client *client, const struct client_tier *tiers, size_t tier_count, uint64_t object_count,
                    int64_t now_ms)
{
    set_tiers(client, tiers, tier_count);
    client->object_count = object_count;
    client->assigned_bytes = 0;
    client->heard_ms = now_ms;
}

void registry_end(struct registry *registry, struct client *client)
{
    map_remove_u64(&registry->by_instance, client->instance);
    map_remove_str(&registry->by_name, client->server_name);
    clear_drops(client);
    client->state = CLIENT_GONE;
    client->is_announcing = client->has_stale = false;
    client->tier_count = 0;
    registry->live_count--;
}

void registry_free(struct registry *registry, struct client *client)
{
    (void)registry;
    client_release(client);
    client->server_name = client->address = NULL;
    client->state = CLIENT_FREE;
}

unsigned registry_tick(struct registry *registry, int64_t now_ms, bool *was_stalled_out)
{
    int64_t last_ms = registry->last_tick_ms;
    unsigned ended = 0;

    registry->last_tick_ms = now_ms;
    *was_stalled_out = last_ms != 0 && now_ms - last_ms > 2 * registry_tick_ms(registry);
    for (uint32_t slot = 0; slot < registry->used; slot++) {
        struct client *client = &registry->clients[slot];
        if (client->state != CLIENT_LIVE)
            continue;
        if (*was_stalled_out) {
            client->heard_ms = now_ms;
        } else if (now_ms - client->heard_ms > registry->client_ttl_ms) {
            registry_end(registry, client);
            ended++;
        }
    }
    return ended;
}

int64_t registry_tick_ms(const struct registry *registry)
{
    int64_t tick_ms = registry->client_ttl_ms / TICKS_PER_TTL;
    return tick_ms > TICK_MIN_MS ? tick_ms : TICK_MIN_MS;
}

int64_t registry_ttl_ms(const struct registry *registry)
{
    return registry->client_ttl_ms;
}

bool registry_is_announcing(const struct registry *registry)
{
    for (uint32_t slot = 0; slot < registry->used; slot++)
        if (registry->clients[slot].state == CLIENT_LIVE && registry->clients[slot].is_announcing)
            return true;
    return false;
}

/* --- targets --- */

uint32_t registry_live_count(const struct registry *registry)
{
    return registry->live_count;
}

size_t registry_candidates(const struct registry *registry, struct target_candidate *candidates_out)
{
    size_t count = 0;

    for (uint32_t slot = 0; slot < registry->used; slot++) {
        const struct client *client = &registry->clients[slot];
        struct target_candidate candidate = {.instance = client->instance, .client = slot};
        if (client->state != CLIENT_LIVE)
            continue;
        for (size_t i = 0; i < client->tier_count; i++) {
            const struct client_tier *tier = &client->tiers[i];
            uint64_t left = tier->capacity_bytes > tier->used_bytes ? tier->capacity_bytes - tier->used_bytes : 0;
            candidate.free_bytes = left < UINT64_MAX - candidate.free_bytes ? candidate.free_bytes + left : UINT64_MAX;
            if (left > candidate.largest_free)
                candidate.largest_free = left;
            if (tier->capacity_bytes > candidate.largest_tier)
                candidate.largest_tier = tier->capacity_bytes;
        }
        if (!candidate.largest_tier)
            continue;
        targets_take(&candidate, client->assigned_bytes);
        candidates_out[count++] = candidate;
    }
    return count;
}
