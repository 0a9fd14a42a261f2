/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/leases.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"

struct lease_peer {
    size_t count;
    char name[];
};

struct lease {
    struct list_node node; /* in by_time */
    uint64_t id;
    int64_t until_ms;
    struct lease_peer *peer; /* borrowed from by_peer */
    struct lease_holding holding;
};

void leases_init(struct leases *leases, const struct leases_config *config)
{
    *leases = (struct leases){.config = *config};
    map_init(&leases->by_id);
    map_init(&leases->by_peer);
    list_init(&leases->by_time);
}

static struct lease_peer *peer_get(struct leases *leases, const char *name)
{
    struct lease_peer *peer = map_get_str(&leases->by_peer, name);
    size_t len = strlen(name) + 1;

    if (peer)
        return peer;
    peer = malloc(sizeof *peer + len);
    if (!peer)
        return NULL;
    peer->count = 0;
    memcpy(peer->name, name, len);
    if (!map_put_str(&leases->by_peer, name, peer)) {
        free(peer);
        return NULL;
    }
    return peer;
}

static void peer_drop_if_unused(struct leases *leases, struct lease_peer *peer)
{
    if (peer->count)
        return;
    map_remove_str(&leases->by_peer, peer->name);
    free(peer);
}

/* Forgets the lease without releasing what it holds. */
static void forget(struct leases *leases, struct lease *lease)
{
    list_remove(&lease->node);
    map_remove_u64(&leases->by_id, lease->id);
    if (lease->holding.staging)
        leases->staging_count--;
    leases->bytes -= lease->holding.len_bytes;
    lease->peer->count--;
    peer_drop_if_unused(leases, lease->peer);
    free(lease);
}

static void end(struct leases *leases, struct lease *lease)
{
    struct lease_holding holding = lease->holding;

    forget(leases, lease);
    leases->config.release(leases->config.arg, &holding);
}

void leases_release(struct leases *leases)
{
    LIST_FOR_EACH_SAFE (lease, &leases->by_time, struct lease, node)
        end(leases, lease);
    map_release(&leases->by_id);
    map_release(&leases->by_peer);
}

bool leases_has_staging_room(const struct leases *leases)
{
    return leases->staging_count < leases->config.max_staging;
}

enum shoal_status leases_add(struct leases *leases, const char *peer_name, const struct lease_holding *holding,
                             int64_t now_ms, uint64_t *id_out, struct shoal_error *error)
{
    struct lease_peer *peer;
    struct lease *lease;

    if (leases->by_id.count >= leases->config.max) {
        leases->refused++;
        return error_set(error, SHOAL_LIMIT, 0, "all %zu leases of this owner are taken", leases->config.max);
    }
    if (holding->staging && !leases_has_staging_room(leases)) {
        leases->refused++;
        return error_set(error, SHOAL_LIMIT, 0, "all %zu pins of data outside DRAM are taken",
                         leases->config.max_staging);
    }
    if (leases->config.max_bytes && leases->bytes &&
        (holding->len_bytes > leases->config.max_bytes ||
         leases->bytes > leases->config.max_bytes - holding->len_bytes)) {
        leases->refused++;
        return error_set(error, SHOAL_LIMIT, 0,
                         "leases hold %" PRIu64 " bytes of this owner already, of at most %" PRIu64
                         ": no room for %" PRIu64,
                         leases->bytes, leases->config.max_bytes, holding->len_bytes);
    }
    peer = peer_get(leases, peer_name);
    if (!peer)
        return error_no_memory(error);
    if (peer->count >= leases->config.max_per_peer) {
        leases->refused++;
        return error_set(error, SHOAL_LIMIT, 0, "'%s' holds %zu leases, the most that one client may", peer_name,
                         peer->count);
    }
    lease = malloc(sizeof *lease);
    if (!lease)
        goto drop_peer;
    *lease = (struct lease){.until_ms = now_ms + leases->config.lease_ms, .peer = peer, .holding = *holding};
    do
        lease->id = random_id();
    while (map_get_u64(&leases->by_id, lease->id));
    if (!map_put_u64(&leases->by_id, lease->id, lease))
        goto free_lease;
    peer->count++;
    if (holding->staging)
        leases->staging_count++;
    leases->bytes += holding->len_bytes;
    list_push_back(&leases->by_time, &lease->node);
    *id_out = lease->id;
    return SHOAL_OK;

free_lease:
    free(lease);
drop_peer:
    peer_drop_if_unused(leases, peer);
    return error_no_memory(error);
}

enum shoal_status leases_renew(struct leases *leases, uint64_t id, int64_t now_ms)
{
    struct lease *lease = map_get_u64(&leases->by_id, id);

    if (!lease)
        return SHOAL_NOT_FOUND;
    lease->until_ms = now_ms + leases->config.lease_ms;
    list_remove(&lease->node);
    list_push_back(&leases->by_time, &lease->node);
    return SHOAL_OK;
}

enum shoal_status leases_take(struct leases *leases, uint64_t id, enum lease_kind kind,
                              struct lease_holding *holding_out)
{
    struct lease *lease = map_get_u64(&leases->by_id, id);

    if (!lease || lease->holding.kind != kind)
        return SHOAL_NOT_FOUND;
    *holding_out = lease->holding;
    forget(leases, lease);
    return SHOAL_OK;
}

void leases_expire(struct leases *leases, int64_t now_ms)
{
    LIST_FOR_EACH_SAFE (lease, &leases->by_time, struct lease, node) {
        if (lease->until_ms > now_ms)
            break;
        leases->expired++;
        end(leases, lease);
    }
}

void leases_postpone(struct leases *leases, int64_t delay_ms)
{
    LIST_FOR_EACH (lease, &leases->by_time, struct lease, node)
        lease->until_ms += delay_ms;
}

size_t leases_count(const struct leases *leases)
{
    return leases->by_id.count;
}
