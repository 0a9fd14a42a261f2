/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: own tiers first, else the owners that the route cache or the master names. A route may be out of date in
 * both: the owner's answer decides, and what it denies is asked of the master again. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/client_internal.h"

#define MISSES_MAX 8          /* an object between announcement and publication: 1 + 2 + .. + 64 ms are enough */
#define LOOKUPS_MAX 2         /* with answers that name only owners that cannot be reached */
#define COPY_BYTES (8u << 20) /* of an own value, between two looks at the deadline */
#define TRIES_MAX (2 * ROUTE_REPLICAS_MAX)
#define SLOW_BYTES_PER_MS 10000 /* 10 MB/s: what an owner is expected to reach at least */
#define PING_FROM_MS 1000       /* for less an owner need not show that it is there */

/* One item on its way. */
struct fetch {
    size_t index; /* in the set */
    struct route route;
    bool has_route, is_from_master;
    const struct session_replica *owner; /* asked now; in route */
    unsigned misses, lookups;
    /* Owners that failed, and those that did not have it. */
    size_t dead_count, missed_count;
    uint64_t dead[TRIES_MAX], missed[TRIES_MAX];
    struct shoal_error last; /* with dead owners */
};

struct fetches {
    struct kv_set *set;
    bool allocates;
    struct fetch *items;
    size_t count;
};

/* --- own tiers --- */

static enum shoal_status copy_out(struct tier_object *object, void *to, uint64_t len_bytes, const struct call *call,
                                  struct shoal_error *error)
{
    const void *data = tier_object_data(object);

    if (data && len_bytes <= COPY_BYTES) {
        if (len_bytes) /* else there may be nowhere to copy it to */
            memcpy(to, data, len_bytes);
        return SHOAL_OK;
    }
    call_progress_set_total(call, len_bytes);
    for (uint64_t offset = 0; offset < len_bytes;) {
        size_t len = len_bytes - offset < COPY_BYTES ? (size_t)(len_bytes - offset) : COPY_BYTES;
        enum shoal_status status = call_check(call, error, "read of a local object");

        if (!status && data)
            memcpy((char *)to + offset, (const char *)data + offset, len);
        else if (!status)
            status = tier_read(object, offset, (char *)to + offset, len, error);
        if (status)
            return status;
        offset += len;
        call_progress_at(call, offset);
    }
    return SHOAL_OK;
}

static enum shoal_status too_small(struct shoal_kv_item *item, uint64_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = error_set(error, SHOAL_LIMIT, 0, "the value has %llu bytes, the buffer %llu",
                                         (unsigned long long)len_bytes, (unsigned long long)item->len_bytes);

    item->len_bytes = len_bytes;
    return status;
}

/* NOT_FOUND is not explained: it is the common case. */
static enum shoal_status read_local(struct kv_set *set, struct shoal_kv_item *item, bool allocates,
                                    struct shoal_error *error)
{
    struct tier_object *object;
    enum shoal_status status;
    uint64_t len_bytes;
    void *memory = item->data;

    if (!set->kv->tiers || tier_get(set->kv->tiers, item->key, &object) != SHOAL_OK)
        return SHOAL_NOT_FOUND;
    len_bytes = tier_object_len(object);
    if (!allocates && len_bytes > item->len_bytes) {
        status = too_small(item, len_bytes, error);
    } else if (allocates && len_bytes && !(memory = malloc(len_bytes))) {
        status = error_no_memory(error);
    } else {
        status = copy_out(object, memory, len_bytes, set->call, error);
        if (status == SHOAL_OK) {
            item->data = memory;
            item->len_bytes = len_bytes;
        } else if (allocates) {
            free(memory);
        }
    }
    tier_object_unref(object);
    return status;
}

/* --- choosing an owner --- */

static bool is_in(const uint64_t *list, size_t count, uint64_t instance)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == instance)
            return true;
    return false;
}

static void add(uint64_t *list, size_t *count, uint64_t instance)
{
    if (*count < TRIES_MAX && !is_in(list, *count, instance))
        list[(*count)++] = instance;
}

/* How many owners of the route may be asked; owner_out: one of them. Those that had missed it are asked again only if
 * there is no other. */
static size_t choose(struct fetch *fetch, unsigned turn, const struct session_replica **owner_out)
{
    size_t candidates = 0, missed = 0;
    const struct session_replica *chosen = NULL, *again = NULL;

    for (size_t i = 0; i < fetch->route.replica_count; i++) {
        const struct session_replica *replica = &fetch->route.replicas[(i + turn) % fetch->route.replica_count];

        if (is_in(fetch->dead, fetch->dead_count, replica->instance))
            continue;
        if (is_in(fetch->missed, fetch->missed_count, replica->instance)) {
            again = replica;
            missed++;
        } else {
            chosen = chosen ? chosen : replica;
            candidates++;
        }
    }
    *owner_out = chosen ? chosen : again;
    return chosen ? candidates : missed;
}

/* --- outcomes --- */

static void end(struct fetches *fetches, struct fetch *fetch, enum shoal_status status, const struct shoal_error *error)
{
    if (status)
        kv_count(&fetches->set->kv->counters.get_failures);
    kv_set_end(fetches->set, fetch->index, status, error);
}

static void end_not_found(struct fetches *fetches, struct fetch *fetch)
{
    struct shoal_error why;

    error_set(&why, SHOAL_NOT_FOUND, 0, "%s", fetch->dead_count ? "no owner is left" : "no such key");
    end(fetches, fetch, SHOAL_NOT_FOUND, &why);
}

/* The owner does not have it (any more, or not yet). */
static void missed(struct fetches *fetches, struct fetch *fetch)
{
    struct shoal_kv *kv = fetches->set->kv;

    add(fetch->missed, &fetch->missed_count, fetch->owner->instance);
    route_cache_forget(kv->routes, fetches->set->items[fetch->index].key);
    kv_count(&kv->counters.retries);
    fetch->has_route = false;
    if (++fetch->misses >= MISSES_MAX)
        end_not_found(fetches, fetch);
}

static bool is_callers_end(enum shoal_status status)
{
    return status == SHOAL_CANCELED || status == SHOAL_NO_MEMORY || status == SHOAL_INVALID_ARGUMENT;
}

/* The owner failed: another one may do. */
static void failed(struct fetches *fetches, struct fetch *fetch, enum shoal_status status,
                   const struct shoal_error *error)
{
    struct shoal_kv *kv = fetches->set->kv;
    const struct session_replica *other;
    struct shoal_error why;

    if (is_callers_end(status) || call_check(fetches->set->call, &why, "get")) {
        end(fetches, fetch, status, error);
        return;
    }
    if (status == SHOAL_UNREACHABLE) {
        route_cache_forget_owner(kv->routes, fetch->owner->instance);
        rpc_channels_forget(kv->channels, fetch->owner->address);
    }
    add(fetch->dead, &fetch->dead_count, fetch->owner->instance);
    fetch->last = *error;
    kv_count(&kv->counters.retries);
    if (choose(fetch, 0, &other) > 0)
        return;
    route_cache_forget(kv->routes, fetches->set->items[fetch->index].key);
    fetch->has_route = false;
}

static void take_result(struct fetches *fetches, struct fetch *fetch, const struct peer_read *read,
                        const struct shoal_error *error)
{
    struct shoal_kv_item *item = &fetches->set->items[fetch->index];
    struct shoal_error why;

    switch (read->status) {
    case SHOAL_OK:
        item->len_bytes = read->len_bytes;
        if (fetches->allocates) {
            item->data = read->memory;
            if (!read->len_bytes) {
                free(item->data);
                item->data = NULL;
            }
        }
        kv_count(&fetches->set->kv->counters.gets_remote);
        end(fetches, fetch, SHOAL_OK, NULL);
        return;
    case SHOAL_NOT_FOUND:
    case SHOAL_UNSUPPORTED: /* it is closing */
        missed(fetches, fetch);
        return;
    case SHOAL_LIMIT:
        if (!fetches->allocates && read->len_bytes > item->len_bytes) {
            too_small(item, read->len_bytes, &why);
            end(fetches, fetch, SHOAL_LIMIT, &why);
            return;
        }
        break;
    default:
        break;
    }
    if (error->status == read->status) {
        failed(fetches, fetch, read->status, error);
    } else {
        error_set(&why, read->status, 0, "%s: %s", fetch->owner->address, shoal_status_text(read->status));
        failed(fetches, fetch, read->status, &why);
    }
}

/* --- asking --- */

/* What the master calls ours: the object may have come meanwhile. */
static void ask_self(struct fetches *fetches, struct fetch *fetch)
{
    struct shoal_error error;
    enum shoal_status status = read_local(fetches->set, &fetches->set->items[fetch->index], fetches->allocates, &error);

    if (status == SHOAL_NOT_FOUND) {
        missed(fetches, fetch);
    } else if (status == SHOAL_OK || status == SHOAL_LIMIT) {
        kv_count(&fetches->set->kv->counters.gets_local);
        end(fetches, fetch, status, &error);
    } else {
        failed(fetches, fetch, status, &error);
    }
}

/* An owner that hangs must not use up the time of those that would answer; one that is moving a large value must not
 * be left for another one that would begin anew. Before it gets that much time it shows that it is there. */
static enum shoal_status bound(struct fetches *fetches, const struct kv_slot *slots, size_t count,
                               const struct peer_address *address, struct call *call, struct shoal_error *error)
{
    const struct session_replica *owner;
    int64_t left_ms = deadline_left_ms(call->deadline_ms), moving_ms = 0;
    int64_t share_ms = left_ms > 2 * KV_CALL_TIMEOUT_MS ? KV_CALL_TIMEOUT_MS : left_ms / 2 + 1;
    enum shoal_status status = SHOAL_OK;

    for (size_t i = 0; i < count; i++) {
        struct fetch *fetch = &fetches->items[slots[i].index];

        if (choose(fetch, 0, &owner) < 2)
            return SHOAL_OK;
        /* At most 2^64 bytes in each of a group's items: the sum does not overflow. */
        moving_ms += (int64_t)(fetch->route.len_bytes / SLOW_BYTES_PER_MS);
    }
    if (moving_ms >= PING_FROM_MS) {
        struct call ping = call_with_timeout(call, share_ms / 2);

        status = peer_ping(fetches->set->kv->peers, address, &ping, error);
    }
    *call = call_with_timeout(call, share_ms + moving_ms);
    return status;
}

/* What one owner is asked for ends otherwise than by its answer. */
static void fail_all(struct fetches *fetches, const struct kv_slot *slots, size_t count, enum shoal_status status,
                     const struct shoal_error *error)
{
    for (size_t i = 0; i < count; i++)
        failed(fetches, &fetches->items[slots[i].index], status, error);
}

static void ask_owner(void *arg, const struct session_replica *owner, const struct kv_slot *slots, size_t count)
{
    struct fetches *fetches = arg;
    struct kv_set *set = fetches->set;
    struct peer_address address = kv_peer_of(owner);
    struct call call = *set->call;
    struct peer_read one = {.key = NULL}, *many = NULL, *reads = &one;
    static char nothing;      /* memory for values of 0 bytes */
    struct shoal_error error; /* its text is large, and most often there is none */
    enum shoal_status status;

    error.status = SHOAL_OK;
    if (owner->instance == set->kv->instance) {
        for (size_t i = 0; i < count; i++)
            ask_self(fetches, &fetches->items[slots[i].index]);
        return;
    }
    status = bound(fetches, slots, count, &address, &call, &error);
    if (status == SHOAL_OK && count > 1) {
        reads = many = calloc(count, sizeof *many);
        if (!many)
            status = error_no_memory(&error);
    }
    if (status) {
        fail_all(fetches, slots, count, status, &error);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct shoal_kv_item *item = &set->items[fetches->items[slots[i].index].index];

        reads[i] = (struct peer_read){.key = item->key};
        if (!fetches->allocates) {
            reads[i].memory = item->data ? item->data : &nothing;
            reads[i].capacity_bytes = item->len_bytes;
        }
    }
    if (count == 1)
        reads->status = peer_read_shared(set->kv->peers, &address, reads, &call, &error);
    else
        (void)peer_read_batch(set->kv->peers, &address, reads, count, &call, &error);
    for (size_t i = 0; i < count; i++)
        take_result(fetches, &fetches->items[slots[i].index], &reads[i], &error);
    free(many);
}

static bool is_pending(const struct fetches *fetches, const struct fetch *fetch)
{
    return fetches->set->items[fetch->index].status == KV_PENDING;
}

static void set_route(struct fetch *fetch, const struct session_route *from)
{
    /* Another object: who did not have the one before may have this one. */
    if (from->object_id != fetch->route.object_id)
        fetch->missed_count = 0;
    fetch->route.object_id = from->object_id;
    fetch->route.len_bytes = from->len_bytes;
    fetch->route.replica_count = from->replica_count < ROUTE_REPLICAS_MAX ? from->replica_count : ROUTE_REPLICAS_MAX;
    memcpy(fetch->route.replicas, from->replicas, fetch->route.replica_count * sizeof from->replicas[0]);
    fetch->has_route = true;
    fetch->is_from_master = true;
}

/* The answer about one key; false: the item has ended. */
static bool take_route(struct fetches *fetches, struct fetch *fetch, const struct session_route *route)
{
    const struct session_replica *owner;

    if (route->status == SHOAL_NOT_FOUND || (route->status == SHOAL_OK && !route->replica_count)) {
        end_not_found(fetches, fetch);
        return false;
    }
    if (route->status) {
        end(fetches, fetch, route->status, NULL);
        return false;
    }
    set_route(fetch, route);
    fetch->lookups++;
    if (choose(fetch, 0, &owner) > 0) {
        route_cache_put(fetches->set->kv->routes, fetches->set->items[fetch->index].key, route->object_id,
                        route->len_bytes, route->replicas, route->replica_count, clock_now_ms());
        return true;
    }
    if (fetch->lookups < LOOKUPS_MAX) { /* all are dead for us, perhaps only for a moment: once more */
        fetch->dead_count = 0;
        return true;
    }
    end(fetches, fetch, fetch->last.status, &fetch->last);
    return false;
}

/* Asks the master where the items without a route are. */
static void look_up(struct fetches *fetches)
{
    struct kv_set *set = fetches->set;
    const char *one_key, **keys = &one_key;
    struct session_route *routes;
    struct shoal_error error;
    enum shoal_status status = SHOAL_OK;
    size_t count = 0;

    if (fetches->count > 1 && !(keys = calloc(fetches->count, sizeof *keys)))
        status = error_no_memory(&error);
    for (size_t i = 0; i < fetches->count && !status; i++)
        if (is_pending(fetches, &fetches->items[i]) && !fetches->items[i].has_route)
            keys[count++] = set->items[fetches->items[i].index].key;
    if (!status && count)
        status = session_lookup(set->kv->session, keys, count, set->call, &routes, &error);
    count = status ? 0 : count;
    for (size_t i = 0, at = 0; i < fetches->count; i++) {
        struct fetch *fetch = &fetches->items[i];

        if (!is_pending(fetches, fetch) || fetch->has_route)
            continue;
        if (status)
            end(fetches, fetch, status, &error);
        else
            (void)take_route(fetches, fetch, &routes[at++]);
    }
    if (count)
        free(routes);
    if (keys != &one_key)
        free(keys);
}

/* One question for each pending item. Returns how many are pending still. */
static size_t ask_all(struct fetches *fetches)
{
    struct shoal_kv *kv = fetches->set->kv;
    struct kv_slot one = {.owner = NULL}, *slots = fetches->count > 1 ? calloc(fetches->count, sizeof *slots) : &one;
    struct shoal_error error;
    size_t count = 0, pending = 0;

    if (!slots) {
        kv_set_end_all(fetches->set, error_no_memory(&error), &error);
        return 0;
    }
    for (size_t i = 0; i < fetches->count; i++) {
        struct fetch *fetch = &fetches->items[i];

        if (!is_pending(fetches, fetch))
            continue;
        if (fetch->route.replica_count > 1)
            choose(fetch, atomic_fetch_add_explicit(&kv->rotor, 1, memory_order_relaxed), &fetch->owner);
        else
            choose(fetch, 0, &fetch->owner);
        slots[count++] = (struct kv_slot){.owner = fetch->owner, .index = i};
    }
    kv_run_groups(kv, slots, count, ask_owner, fetches);
    for (size_t i = 0; i < fetches->count; i++)
        pending += is_pending(fetches, &fetches->items[i]);
    if (slots != &one)
        free(slots);
    return pending;
}

/* Before a miss is asked again; 0: nothing is. */
static int64_t pause_ms(const struct fetches *fetches)
{
    int64_t pause = 0;

    for (size_t i = 0; i < fetches->count; i++) {
        const struct fetch *fetch = &fetches->items[i];

        if (is_pending(fetches, fetch) && fetch->misses && !fetch->has_route) {
            /* The first one is most often a route that was out of date. */
            int64_t own = fetch->misses == 1 && !fetch->is_from_master ? 0 : 1 << (fetch->misses - 1);
            pause = own > pause ? own : pause;
        }
    }
    return pause;
}

static void run(struct fetches *fetches)
{
    struct kv_set *set = fetches->set;
    struct shoal_error error;
    enum shoal_status status = SHOAL_OK;

    for (size_t i = 0; i < fetches->count; i++) {
        struct fetch *fetch = &fetches->items[i];

        fetch->has_route =
            route_cache_get(set->kv->routes, set->items[fetch->index].key, clock_now_ms(), &fetch->route);
    }
    do {
        int64_t pause = pause_ms(fetches);

        if (pause)
            status = call_sleep(set->call, pause, &error, "get");
        else
            status = call_check(set->call, &error, "get");
        if (status) {
            kv_set_end_all(set, status, &error);
            break;
        }
        look_up(fetches);
    } while (ask_all(fetches) > 0);
}

void kv_direct_get(struct kv_set *set, bool allocates)
{
    struct fetches fetches = {.set = set, .allocates = allocates};
    struct fetch one;
    struct shoal_error error;
    size_t remote = 0;

    for (size_t i = 0; i < set->count; i++) {
        enum shoal_status status;

        if (set->items[i].status != KV_PENDING)
            continue;
        status = read_local(set, &set->items[i], allocates, &error);
        if (status == SHOAL_NOT_FOUND || status == SHOAL_CORRUPTED || status == SHOAL_IO) {
            remote++; /* somebody else may have it */
            continue;
        }
        if (status == SHOAL_OK)
            kv_count(&set->kv->counters.gets_local);
        else
            kv_count(&set->kv->counters.get_failures);
        kv_set_end(set, i, status, &error);
    }
    if (!remote)
        return;
    fetches.items = remote > 1 ? calloc(remote, sizeof *fetches.items) : &one;
    if (!fetches.items) {
        kv_set_end_all(set, error_no_memory(&error), &error);
        return;
    }
    for (size_t i = 0; i < set->count; i++) {
        if (set->items[i].status != KV_PENDING)
            continue;
        /* Not all of it: the routes are large. */
        struct fetch *fetch = &fetches.items[fetches.count++];
        fetch->index = i;
        fetch->route.object_id = 0;
        fetch->has_route = fetch->is_from_master = false;
        fetch->owner = NULL;
        fetch->misses = fetch->lookups = 0;
        fetch->dead_count = fetch->missed_count = 0;
    }
    run(&fetches);
    if (fetches.items != &one)
        free(fetches.items);
}

/* --- size, exist --- */

void kv_direct_size(struct kv_set *set)
{
    const char **keys = calloc(set->count + 1, sizeof *keys);
    struct session_route *routes;
    struct shoal_error error;
    enum shoal_status status;
    size_t count = 0;

    if (!keys) {
        kv_set_end_all(set, error_no_memory(&error), &error);
        return;
    }
    for (size_t i = 0; i < set->count; i++) {
        struct tier_object *object;

        if (set->items[i].status != KV_PENDING)
            continue;
        if (set->kv->tiers && tier_get(set->kv->tiers, set->items[i].key, &object) == SHOAL_OK) {
            set->items[i].len_bytes = tier_object_len(object);
            tier_object_unref(object);
            kv_set_end(set, i, SHOAL_OK, NULL);
        } else {
            keys[count++] = set->items[i].key;
        }
    }
    if (count) {
        status = session_lookup(set->kv->session, keys, count, set->call, &routes, &error);
        if (status) {
            kv_set_end_all(set, status, &error);
        } else {
            for (size_t i = 0, at = 0; i < set->count; i++) {
                if (set->items[i].status != KV_PENDING)
                    continue;
                status = routes[at].status;
                set->items[i].len_bytes = status ? 0 : routes[at].len_bytes;
                if (status == SHOAL_NOT_FOUND)
                    error_set(&error, status, 0, "no such key");
                kv_set_end(set, i, status, status == SHOAL_NOT_FOUND ? &error : NULL);
                at++;
            }
            free(routes);
        }
    }
    free(keys);
}
