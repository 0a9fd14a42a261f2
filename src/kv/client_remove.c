/* SPDX-License-Identifier: Apache-2.0 */
/* Removing and listing. The master's route goes first, so nobody finds the key there any more; then the copies, so
 * that nobody finds it who remembers where it was. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/client_internal.h"

#define PAGE_ENTRIES 1000
#define DELETE_ITEMS_MAX 512 /* of one request to an owner */

/* Keys that are removed together, with what came of each. */
struct removal {
    struct shoal_kv *kv;
    const char *const *keys;
    size_t count;
    const struct call *call;
    struct session_route *routes;
    struct mutex mutex; /* results, while several owners are asked */
    enum shoal_status *statuses;
    struct shoal_error error; /* of the first owner that failed */
};

/* One copy of one key; slots refer to these. */
struct copy {
    size_t key;
    uint64_t object_id;
};

struct deletion {
    struct removal *removal;
    const struct copy *copies;
};

static void note_failure(struct removal *removal, const struct copy *copies, const struct kv_slot *slots, size_t count,
                         enum shoal_status status, const struct shoal_error *error)
{
    mutex_lock(&removal->mutex);
    if (!removal->error.status)
        removal->error = *error;
    for (size_t i = 0; i < count; i++)
        removal->statuses[copies[slots[i].index].key] = status;
    mutex_unlock(&removal->mutex);
}

static void delete_here(struct removal *removal, const struct copy *copies, const struct kv_slot *slots, size_t count)
{
    for (size_t i = 0; i < count && removal->kv->manager; i++) {
        const struct copy *copy = &copies[slots[i].index];
        struct shoal_error error;
        enum shoal_status status =
            data_manager_delete(removal->kv->manager, removal->keys[copy->key], copy->object_id, &error);

        if (status && status != SHOAL_NOT_FOUND)
            note_failure(removal, copies, slots + i, 1, status, &error);
    }
}

/* An owner that cannot be reached at all serves nobody; when it comes back, the master has it drop the copy. */
static void delete_at(void *arg, const struct session_replica *owner, const struct kv_slot *slots, size_t count)
{
    const struct deletion *deletion = arg;
    struct removal *removal = deletion->removal;
    struct peer_address address = kv_peer_of(owner);
    const char *keys[DELETE_ITEMS_MAX];
    uint64_t object_ids[DELETE_ITEMS_MAX];
    enum shoal_status statuses[DELETE_ITEMS_MAX], status;
    struct shoal_error error;

    if (owner->instance == removal->kv->instance) {
        delete_here(removal, deletion->copies, slots, count);
        return;
    }
    for (size_t begin = 0, len; begin < count; begin += len) {
        len = count - begin < DELETE_ITEMS_MAX ? count - begin : DELETE_ITEMS_MAX;
        for (size_t i = 0; i < len; i++) {
            const struct copy *copy = &deletion->copies[slots[begin + i].index];

            keys[i] = removal->keys[copy->key];
            object_ids[i] = copy->object_id;
            statuses[i] = SHOAL_OK;
        }
        status = peer_delete(removal->kv->peers, &address, keys, object_ids, len, removal->call, statuses, &error);
        if (status == SHOAL_UNREACHABLE || status == SHOAL_UNSUPPORTED) {
            rpc_channels_forget(removal->kv->channels, owner->address);
            return;
        }
        if (status && status != SHOAL_NOT_FOUND) {
            error_prefix(&error, "taken out of the master, but a copy may be found for some seconds");
            note_failure(removal, deletion->copies, slots + begin, len, status, &error);
        }
    }
}

static enum shoal_status delete_copies(struct removal *removal, struct shoal_error *error)
{
    struct deletion deletion = {.removal = removal};
    struct copy *copies;
    struct kv_slot *slots;
    size_t total = 0, at = 0;

    for (size_t i = 0; i < removal->count; i++)
        total += removal->routes[i].status ? 0 : removal->routes[i].replica_count;
    copies = calloc(total + 1, sizeof *copies);
    slots = calloc(total + 1, sizeof *slots);
    if (!copies || !slots) {
        free(copies);
        free(slots);
        return error_no_memory(error);
    }
    for (size_t i = 0; i < removal->count; i++) {
        const struct session_route *route = &removal->routes[i];

        for (size_t j = 0; !route->status && j < route->replica_count; j++) {
            copies[at] = (struct copy){.key = i, .object_id = route->object_id};
            slots[at] = (struct kv_slot){.owner = &route->replicas[j], .index = at};
            at++;
        }
    }
    deletion.copies = copies;
    kv_run_groups(removal->kv, slots, total, delete_at, &deletion);
    free(copies);
    free(slots);
    return SHOAL_OK;
}

/* statuses_out: count of them. An error: of the whole request. error also has the first of the failures. */
static enum shoal_status remove_keys(struct shoal_kv *kv, const char *const *keys, size_t count,
                                     const struct call *call, enum shoal_status *statuses_out,
                                     struct shoal_error *error)
{
    struct removal removal = {.kv = kv, .keys = keys, .count = count, .call = call, .statuses = statuses_out};
    enum shoal_status status;

    for (size_t i = 0; i < count; i++)
        route_cache_forget(kv->routes, keys[i]);
    status = session_remove(kv->session, keys, count, call, &removal.routes, error);
    if (status)
        return status;
    mutex_init(&removal.mutex, RANK_KV);
    for (size_t i = 0; i < count; i++)
        statuses_out[i] = removal.routes[i].status;
    status = delete_copies(&removal, error);
    if (!status && removal.error.status)
        *error = removal.error;
    for (size_t i = 0; i < count; i++)
        kv_count(&kv->counters.removes);
    mutex_release(&removal.mutex);
    free(removal.routes);
    return status;
}

void kv_direct_remove(struct kv_set *set)
{
    const char **keys = calloc(set->count + 1, sizeof *keys);
    enum shoal_status *statuses = calloc(set->count + 1, sizeof *statuses), status = SHOAL_OK;
    struct shoal_error error = {.status = SHOAL_OK}, why;
    size_t count = 0;

    if (!keys || !statuses) {
        kv_set_end_all(set, error_no_memory(&error), &error);
        goto done;
    }
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].status == KV_PENDING)
            keys[count++] = set->items[i].key;
    if (count)
        status = remove_keys(set->kv, keys, count, set->call, statuses, &error);
    if (status) {
        kv_set_end_all(set, status, &error);
        goto done;
    }
    for (size_t i = 0, at = 0; i < set->count; i++) {
        if (set->items[i].status != KV_PENDING)
            continue;
        status = statuses[at++];
        if (status == SHOAL_NOT_FOUND)
            error_set(&why, status, 0, "no such key");
        else if (status == SHOAL_UNREACHABLE && error.status != status)
            error_set(&why, status, 0,
                      "the master's answer was lost: the key has gone, by this removal or before it, but a copy may be "
                      "found for some seconds");
        else if (status == SHOAL_TIMED_OUT && error.status != status)
            error_set(&why, status, 0, "the master has just begun and waits for clients to announce");
        else if (status == error.status)
            why = error;
        else if (status)
            error_set(&why, status, 0, "%s", shoal_status_text(status));
        kv_set_end(set, i, status, status ? &why : NULL);
    }

done:
    free(keys);
    free(statuses);
}

/* --- pages --- */

/* Gives every page to fn until it returns an error or sets *ends. error is not NULL. */
typedef enum shoal_status (*page_fn)(void *arg, const struct session_page *page, bool *ends, struct shoal_error *error);

static enum shoal_status each_page(struct shoal_kv *kv, const char *pattern, const struct call *call, page_fn fn,
                                   void *arg, struct shoal_error *error)
{
    struct session_page *page = NULL, *next;
    bool ends = false;
    enum shoal_status status;

    do {
        status = call_check(call, error, "list");
        if (!status)
            status = session_list(kv->session, pattern, page ? page->cursor : NULL, page ? page->cursor_len : 0,
                                  PAGE_ENTRIES, call, &next, error);
        if (status)
            break;
        session_page_free(page);
        page = next;
        status = fn(arg, page, &ends, error);
    } while (!status && !ends && page->cursor_len > 0);
    session_page_free(page);
    return status;
}

struct sweep {
    struct shoal_kv *kv;
    const struct call *call;
    uint64_t *removed;
};

static enum shoal_status remove_page(void *arg, const struct session_page *page, bool *ends, struct shoal_error *error)
{
    struct sweep *sweep = arg;
    const char **keys = calloc(page->count + 1, sizeof *keys);
    enum shoal_status *statuses = calloc(page->count + 1, sizeof *statuses), status = SHOAL_OK;

    (void)ends;
    if (!keys || !statuses)
        status = error_no_memory(error);
    for (size_t i = 0; i < page->count && !status; i++)
        keys[i] = page->entries[i].key;
    if (!status && page->count)
        status = remove_keys(sweep->kv, keys, page->count, sweep->call, statuses, error);
    for (size_t i = 0; i < page->count && !status; i++) {
        if (!statuses[i])
            ++*sweep->removed;
        else if (statuses[i] != SHOAL_NOT_FOUND) /* gone by itself meanwhile */
            status = error->status == statuses[i]
                         ? statuses[i]
                         : error_set(error, statuses[i], 0, "key '%.64s': %s", keys[i], shoal_status_text(statuses[i]));
    }
    free(keys);
    free(statuses);
    return status;
}

enum shoal_status kv_direct_remove_matching(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                            uint64_t *removed, struct shoal_error *error)
{
    struct sweep sweep = {.kv = kv, .call = call, .removed = removed};
    struct shoal_error why = {.status = SHOAL_OK};
    enum shoal_status status = each_page(kv, pattern, call, remove_page, &sweep, &why);

    return status ? error_copy(error, &why) : SHOAL_OK;
}

struct listing {
    shoal_kv_list_fn fn;
    void *arg;
};

static enum shoal_status list_page(void *arg, const struct session_page *page, bool *ends, struct shoal_error *error)
{
    const struct listing *listing = arg;

    (void)error;
    for (size_t i = 0; i < page->count && !*ends; i++) {
        const struct session_entry *from = &page->entries[i];
        const struct shoal_kv_entry entry = {
            .key = from->key, .len_bytes = from->len_bytes, .replicas = from->replica_count};

        *ends = listing->fn(listing->arg, &entry) != 0;
    }
    return SHOAL_OK;
}

enum shoal_status kv_direct_list(struct shoal_kv *kv, const char *pattern, const struct call *call, shoal_kv_list_fn fn,
                                 void *arg, struct shoal_error *error)
{
    struct listing listing = {fn, arg};

    return each_page(kv, pattern, call, list_page, &listing, error);
}
