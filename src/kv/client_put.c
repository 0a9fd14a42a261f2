/* SPDX-License-Identifier: Apache-2.0 */
/* Writing: the preferred owner, own tiers, whoever the session names; who has no room or cannot be reached is passed
 * over. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "kv/client_internal.h"

#define TARGETS_MAX 32 /* asked for one item: copies and refusals */

/* One value on its way to its owners. */
struct placing {
    struct shoal_kv *kv;
    const struct shoal_kv_item *item;
    const struct call *call;
    const struct session_replica *preferred; /* NULL: none */
    uint64_t object_id;                      /* 0 until the first copy lies somewhere */
    size_t tried_count;
    uint64_t tried[TARGETS_MAX]; /* have it, or refused */
    size_t owner_count;
    struct session_replica owners[ROUTE_REPLICAS_MAX];
    unsigned unreachable; /* refusals, by reason */
    unsigned full, too_large;
    struct shoal_error why_unreachable;
};

static bool is_tried(const struct placing *placing, uint64_t instance)
{
    for (size_t i = 0; i < placing->tried_count; i++)
        if (placing->tried[i] == instance)
            return true;
    return false;
}

static bool is_refusal(enum shoal_status status)
{
    return status == SHOAL_NO_SPACE || status == SHOAL_LIMIT || status == SHOAL_UNREACHABLE ||
           status == SHOAL_UNSUPPORTED;
}

/* What one target answered. OK: one copy more. A refusal: the next one is to be tried. */
static void note(struct placing *placing, const struct session_replica *target, enum shoal_status status,
                 const struct shoal_error *error)
{
    struct shoal_kv *kv = placing->kv;

    if (status != SHOAL_OK && !is_refusal(status))
        return;
    if (placing->tried_count < TARGETS_MAX)
        placing->tried[placing->tried_count++] = target->instance;
    switch (status) {
    case SHOAL_OK:
        if (placing->owner_count < ROUTE_REPLICAS_MAX)
            placing->owners[placing->owner_count++] = *target;
        call_progress_part(placing->call, placing->item->len_bytes);
        kv_count(target->instance == kv->instance ? &kv->counters.puts_local : &kv->counters.puts_remote);
        break;
    case SHOAL_NO_SPACE:
        placing->full++;
        break;
    case SHOAL_LIMIT:
        placing->too_large++;
        break;
    default:
        placing->unreachable++;
        placing->why_unreachable = *error;
        rpc_channels_forget(kv->channels, target->address);
    }
}

static struct session_replica self_of(const struct shoal_kv *kv)
{
    return (struct session_replica){.instance = kv->instance};
}

static enum shoal_status write_to(struct placing *placing, const struct session_replica *target,
                                  struct shoal_error *error)
{
    struct shoal_kv *kv = placing->kv;
    const struct shoal_kv_item *item = placing->item;
    struct peer_address address = kv_peer_of(target);
    struct peer_write write = {
        .key = item->key, .data = item->data, .len_bytes = item->len_bytes, .object_id = placing->object_id};
    uint64_t object_id = 0;
    enum shoal_status status;

    if (target->instance == kv->instance) {
        status = kv->manager ? data_manager_put(kv->manager, item->key, item->data, item->len_bytes, placing->object_id,
                                                placing->call, &object_id, error)
                             : error_set(error, SHOAL_NO_SPACE, 0, "this process owns no tiers");
        /* Ours to say: the master. The tiers have been given everything back. */
        if (status == SHOAL_UNREACHABLE)
            return status;
    } else {
        status = peer_write_shared(kv->peers, &address, &write, placing->call, error);
        object_id = write.object_id_out;
    }
    if (status == SHOAL_OK && !placing->object_id)
        placing->object_id = object_id;
    note(placing, target, status, error);
    return status;
}

/* Larger than any tier in the cluster? Asked when nobody took it. */
static bool is_too_large(struct placing *placing)
{
    Shoal__Wire__MasterStatusResponse *status;
    uint64_t largest = 0;

    if (session_status(placing->kv->session, placing->call, &status, NULL) != SHOAL_OK)
        return false;
    for (size_t i = 0; i < status->n_clients; i++)
        for (size_t j = 0; j < status->clients[i]->n_tiers; j++)
            if (status->clients[i]->tiers[j]->capacity_bytes > largest)
                largest = status->clients[i]->tiers[j]->capacity_bytes;
    shoal__wire__master_status_response__free_unpacked(status, NULL);
    return largest > 0 && placing->item->len_bytes > largest;
}

static enum shoal_status nobody(struct placing *placing, struct shoal_error *error)
{
    unsigned long long len = placing->item->len_bytes;

    if (placing->object_id) /* only for a further copy */
        return error_set(error, SHOAL_NO_SPACE, 0, "no other client has room");
    if ((placing->too_large && !placing->full && !placing->unreachable) || is_too_large(placing))
        return error_set(error, SHOAL_LIMIT, 0, "a value of %llu bytes is larger than every tier", len);
    if (placing->unreachable && !placing->full)
        return error_set(error, SHOAL_UNREACHABLE, 0, "%s", placing->why_unreachable.message);
    return error_set(error, SHOAL_NO_SPACE, 0, "no client has room for %llu bytes", len);
}

/* One copy more. */
static enum shoal_status place(struct placing *placing, struct shoal_error *error)
{
    struct shoal_kv *kv = placing->kv;
    struct session_replica target;
    enum shoal_status status;

    if (placing->preferred && !is_tried(placing, placing->preferred->instance)) {
        status = write_to(placing, placing->preferred, error);
        if (!is_refusal(status))
            return status;
    }
    if (kv->manager && !is_tried(placing, kv->instance)) {
        target = self_of(kv);
        status = write_to(placing, &target, error);
        if (!is_refusal(status) || !is_tried(placing, kv->instance))
            return status;
    }
    while (placing->tried_count < TARGETS_MAX) {
        status = session_write_target(kv->session, placing->item->len_bytes, placing->tried, placing->tried_count,
                                      placing->call, &target, error);
        if (status == SHOAL_NO_SPACE)
            break;
        if (status)
            return status;
        if (is_tried(placing, target.instance))
            break;
        status = write_to(placing, &target, error);
        if (!is_refusal(status) || !is_tried(placing, target.instance))
            return status;
    }
    return nobody(placing, error);
}

/* A put that went wrong on its way may have arrived: then the key is there because of us, or nobody knows. */
static enum shoal_status judge(struct placing *placing, enum shoal_status status, struct shoal_error *error)
{
    const char *key = placing->item->key;
    struct session_route *routes;
    bool is_known_elsewhere = false;

    if (status != SHOAL_EXISTS || !placing->unreachable)
        return status;
    if (session_lookup(placing->kv->session, &key, 1, placing->call, &routes, NULL) == SHOAL_OK) {
        for (size_t i = 0; routes->status == SHOAL_OK && i < routes->replica_count; i++)
            is_known_elsewhere |= !is_tried(placing, routes->replicas[i].instance);
        free(routes);
    }
    if (is_known_elsewhere)
        return status;
    return error_set(error, SHOAL_UNREACHABLE, 0, "whether it is there is not known: %s",
                     placing->why_unreachable.message);
}

/* status: of the first copy. */
static void finish(struct kv_set *set, size_t index, struct placing *placing, unsigned replicas,
                   enum shoal_status status, struct shoal_error *error)
{
    struct shoal_kv *kv = set->kv;
    struct shoal_error ignored;

    status = judge(placing, status, error);
    if (status) {
        kv_count(&kv->counters.put_failures);
        kv_set_end(set, index, status, error);
        return;
    }
    for (unsigned copies = 1; copies < replicas; copies++)
        if (place(placing, &ignored))
            break; /* there is what there is */
    call_progress_set_total(set->call, placing->item->len_bytes * placing->owner_count);
    if (!kv->tiers || placing->owners[0].instance != kv->instance)
        route_cache_put(kv->routes, placing->item->key, placing->object_id, placing->item->len_bytes, placing->owners,
                        placing->owner_count, clock_now_ms());
    kv_set_end(set, index, SHOAL_OK, NULL);
}

/* --- the preferred owner --- */

/* OK: out is set, or *has_out is false: no such client now. */
static enum shoal_status find_preferred(struct kv_set *set, const char *prefer, struct session_replica *out,
                                        bool *has_out, struct shoal_error *error)
{
    struct shoal_kv *kv = set->kv;
    Shoal__Wire__MasterStatusResponse *status;
    struct shoal_error why;
    struct hostport address;
    enum shoal_status result;

    *has_out = false;
    if (hostport_parse(&address, prefer, &why) != SHOAL_OK)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the client to prefer: %s", why.message);
    if (!address.has_port)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the client to prefer: '%.256s' has no port", prefer);
    if (strcmp(prefer, kv->address) == 0 || strcmp(prefer, shoal_engine_server_name(kv->engine)) == 0) {
        *out = self_of(kv);
        *has_out = kv->manager != NULL;
        return SHOAL_OK;
    }
    result = session_status(kv->session, set->call, &status, error);
    if (result)
        return result;
    for (size_t i = 0; i < status->n_clients && !*has_out; i++) {
        const Shoal__Wire__MasterClient *client = status->clients[i];

        if (!client->n_tiers || (strcmp(prefer, client->address) != 0 && strcmp(prefer, client->server_name) != 0) ||
            strlen(client->server_name) >= sizeof out->server_name || strlen(client->address) >= sizeof out->address)
            continue;
        *out = (struct session_replica){.instance = client->instance};
        strcpy(out->server_name, client->server_name);
        strcpy(out->address, client->address);
        *has_out = true;
    }
    shoal__wire__master_status_response__free_unpacked(status, NULL);
    return SHOAL_OK;
}

/* --- one and many --- */

struct puts {
    struct kv_set *set;
    const struct kv_put_plan *plan;
    const struct session_replica *preferred;
    const struct kv_slot *slots; /* index: of the item */
};

static void placing_init(struct placing *placing, const struct puts *puts, size_t index)
{
    placing->kv = puts->set->kv;
    placing->item = &puts->set->items[index];
    placing->call = puts->set->call;
    placing->preferred = puts->preferred;
    placing->object_id = 0;
    placing->tried_count = placing->owner_count = 0;
    placing->unreachable = placing->full = placing->too_large = 0;
}

static void put_one(const struct puts *puts, size_t index)
{
    struct placing placing;
    struct shoal_error error;
    enum shoal_status status;

    placing_init(&placing, puts, index);
    status = place(&placing, &error);
    finish(puts->set, index, &placing, puts->plan->replicas, status, &error);
}

static bool put_slot(void *arg, size_t at)
{
    const struct puts *puts = arg;

    put_one(puts, puts->slots[at].index);
    return true;
}

/* The first copies of several values at one owner, by one request after the other without waiting between them. */
static void put_group(void *arg, const struct session_replica *owner, const struct kv_slot *slots, size_t count)
{
    const struct puts *puts = arg;
    struct kv_set *set = puts->set;
    struct peer_address address = kv_peer_of(owner);
    struct peer_write *writes = count > 1 ? calloc(count, sizeof *writes) : NULL;
    struct shoal_error error = {.status = SHOAL_OK};

    if (!writes) {
        for (size_t i = 0; i < count; i++)
            put_one(puts, slots[i].index);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct shoal_kv_item *item = &set->items[slots[i].index];

        writes[i] = (struct peer_write){.key = item->key, .data = item->data, .len_bytes = item->len_bytes};
    }
    (void)peer_write_batch(set->kv->peers, &address, writes, count, set->call, &error);
    for (size_t i = 0; i < count; i++) {
        enum shoal_status status = writes[i].status;
        struct placing placing;
        struct shoal_error why = error;

        if (status && error.status != status)
            error_set(&why, status, 0, "%s: %s", owner->address, shoal_status_text(status));
        placing_init(&placing, puts, slots[i].index);
        placing.object_id = status ? 0 : writes[i].object_id_out;
        note(&placing, owner, status, &why);
        if (is_refusal(status))
            status = place(&placing, &why);
        finish(set, slots[i].index, &placing, puts->plan->replicas, status, &why);
    }
    free(writes);
}

/* Nobody else has to be asked about values that stay here: only the announcements travel, several together. */
static void put_many_here(struct puts *puts, size_t count)
{
    pool_for(puts->set->kv->pool, count, put_slot, puts);
}

static void put_many_elsewhere(struct puts *puts, struct kv_slot *slots, size_t count)
{
    struct kv_set *set = puts->set;
    struct session_replica *targets = calloc(count, sizeof *targets);
    struct shoal_error error;
    size_t kept = 0;

    if (!targets) {
        kv_set_end_all(set, error_no_memory(&error), &error);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        size_t index = slots[i].index;

        if (puts->preferred) {
            slots[kept++] = (struct kv_slot){.owner = puts->preferred, .index = index};
        } else if (session_write_target(set->kv->session, set->items[index].len_bytes, NULL, 0, set->call, &targets[i],
                                        &error) == SHOAL_OK) {
            slots[kept++] = (struct kv_slot){.owner = &targets[i], .index = index};
        } else {
            put_one(puts, index); /* says why */
        }
    }
    kv_run_groups(set->kv, slots, kept, put_group, puts);
    free(targets);
}

void kv_direct_put(struct kv_set *set, const struct kv_put_plan *plan)
{
    struct puts puts = {.set = set, .plan = plan};
    struct session_replica preferred;
    struct kv_slot one = {.owner = NULL}, *slots = set->count > 1 ? calloc(set->count, sizeof *slots) : &one;
    struct shoal_error error;
    enum shoal_status status = slots ? SHOAL_OK : error_no_memory(&error);
    bool has_preferred = false;
    size_t count = 0;

    if (!status && plan->prefer)
        status = find_preferred(set, plan->prefer, &preferred, &has_preferred, &error);
    if (status) {
        kv_set_end_all(set, status, &error);
        goto done;
    }
    if (has_preferred)
        puts.preferred = &preferred;
    puts.slots = slots;
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].status == KV_PENDING)
            slots[count++].index = i;
    if (count == 1)
        put_one(&puts, slots[0].index);
    else if (count && (has_preferred ? preferred.instance == set->kv->instance : set->kv->manager != NULL))
        put_many_here(&puts, count);
    else if (count)
        put_many_elsewhere(&puts, slots, count);

done:
    if (slots != &one)
        free(slots);
}
