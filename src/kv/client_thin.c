/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "kv/client_thin.h"

#define DEFAULT_ARENA_BYTES (64ull << 20)
#define REQUEST_ITEMS_MAX 64
#define REQUEST_BYTES (RPC_REQUEST_MAX_BYTES - 8192)
#define ITEM_OVERHEAD_BYTES 64
#define PLACES_BYTES (8ull << 20)    /* of one request's values in the arena */
#define OFFER_ONE_BYTES (1ull << 20) /* room for a value whose length is not known */
#define OFFER_MANY_BYTES (64ull << 10)
#define REQUESTS_AT_A_TIME 4
#define GROWTHS_MAX 4 /* a value that is replaced by a larger one, again and again */

/* A part of a set that travels in one request. */
struct part {
    const size_t *indexes;
    size_t count;
};

struct parts {
    struct kv_set *set;
    const struct kv_put_plan *plan; /* put */
    bool allocates;                 /* get */
    enum local_method method;
    size_t *indexes;
    struct part *parts;
    size_t count;
    bool *is_left; /* per item of the set: no room in the arena, or longer than was offered: a request of its own */
};

static bool is_large_put(const struct shoal_kv_item *item)
{
    return item->len_bytes > LOCAL_INLINE_MAX_BYTES;
}

/* Room in the arena for the answer of a get; 0: it comes in the answer. */
static uint64_t offer_of(const struct parts *parts, const struct shoal_kv_item *item, bool is_alone)
{
    uint64_t most = is_alone ? OFFER_ONE_BYTES : OFFER_MANY_BYTES;

    if (parts->allocates)
        return most;
    if (item->len_bytes <= LOCAL_INLINE_MAX_BYTES)
        return 0;
    return item->len_bytes < most ? item->len_bytes : most;
}

/* --- results --- */

static Shoal__Wire__LocalResultsResponse *unpack_results(const struct buf *body, size_t count,
                                                         struct shoal_error *error)
{
    Shoal__Wire__LocalResultsResponse *response =
        shoal__wire__local_results_response__unpack(NULL, body->len, body->data);

    if (response && response->n_results == count)
        return response;
    if (response)
        shoal__wire__local_results_response__free_unpacked(response, NULL);
    error_set(error, SHOAL_PROTOCOL, 0, "local client: malformed answer");
    return NULL;
}

/* The daemon puts the key in front of its texts, as we do. */
static const char *text_of(const Shoal__Wire__LocalResult *result)
{
    const char *text = result->text;

    if (strncmp(text, "key '", 5) == 0) {
        const char *end = strstr(text, "': ");
        text = end ? end + 3 : text;
    }
    return *text ? text : shoal_status_text((enum shoal_status)result->status);
}

static void end_failed(struct kv_set *set, size_t index, const Shoal__Wire__LocalResult *result)
{
    struct shoal_error error;

    error_set(&error, (enum shoal_status)result->status, 0, "%s", text_of(result));
    kv_set_end(set, index, (enum shoal_status)result->status, &error);
}

static void end_value(const struct parts *parts, size_t index, const void *from, uint64_t len_bytes)
{
    struct shoal_kv_item *item = &parts->set->items[index];
    struct shoal_error error;

    if (parts->allocates && len_bytes) {
        item->data = malloc(len_bytes);
        if (!item->data) {
            kv_set_end(parts->set, index, error_no_memory(&error), &error);
            return;
        }
    }
    if (len_bytes && from != item->data)
        memcpy(item->data, from, len_bytes);
    item->len_bytes = len_bytes;
    kv_set_end(parts->set, index, SHOAL_OK, NULL);
}

static void end_too_small(const struct parts *parts, size_t index, uint64_t len_bytes)
{
    struct shoal_kv_item *item = &parts->set->items[index];
    struct shoal_error error;

    error_set(&error, SHOAL_LIMIT, 0, "the value has %llu bytes, the buffer %llu", (unsigned long long)len_bytes,
              (unsigned long long)item->len_bytes);
    item->len_bytes = len_bytes;
    kv_set_end(parts->set, index, SHOAL_LIMIT, &error);
}

/* One result of a get whose answer had room for room_bytes. true: the value is longer and may be asked for again. */
static bool take_value(const struct parts *parts, size_t index, const Shoal__Wire__LocalResult *result,
                       const struct thin_place *place, uint64_t room_bytes)
{
    struct shoal_kv_item *item = &parts->set->items[index];
    bool is_short = !parts->allocates && result->len_bytes > item->len_bytes;
    struct shoal_error error;

    if (result->status == SHOAL_OK &&
        (result->len_bytes > room_bytes || (!place->memory && result->value.len != result->len_bytes))) {
        error_set(&error, SHOAL_PROTOCOL, 0, "local client: malformed answer");
        kv_set_end(parts->set, index, SHOAL_PROTOCOL, &error);
    } else if (result->status == SHOAL_OK && !is_short) {
        end_value(parts, index, place->memory ? place->memory : result->value.data, result->len_bytes);
    } else if (result->status == SHOAL_OK || (result->status == SHOAL_LIMIT && result->len_bytes > room_bytes)) {
        if (!is_short)
            return true;
        end_too_small(parts, index, result->len_bytes);
    } else {
        end_failed(parts->set, index, result);
    }
    return false;
}

/* --- one request --- */

struct request {
    Shoal__Wire__LocalItemsRequest message;
    Shoal__Wire__LocalCaller caller;
    Shoal__Wire__LocalItem items[REQUEST_ITEMS_MAX], *pointers[REQUEST_ITEMS_MAX];
    Shoal__Wire__LocalPlace wire_places[REQUEST_ITEMS_MAX], progress_place;
    struct thin_place places[REQUEST_ITEMS_MAX];
    uint64_t rooms[REQUEST_ITEMS_MAX];
    size_t indexes[REQUEST_ITEMS_MAX]; /* of the set */
    size_t count;
};

static void request_init(struct request *request, const struct kv_put_plan *plan)
{
    shoal__wire__local_items_request__init(&request->message);
    shoal__wire__local_caller__init(&request->caller);
    request->message.caller = &request->caller;
    request->message.items = request->pointers;
    if (plan) {
        request->message.replicas = plan->replicas;
        if (plan->prefer)
            request->message.prefer = (char *)(uintptr_t)plan->prefer;
    }
    request->count = 0;
}

/* place: taken over; without memory: the value travels inside. */
static void request_add(struct request *request, const struct parts *parts, size_t index,
                        const struct thin_place *place, uint64_t room_bytes)
{
    const struct shoal_kv_item *from = &parts->set->items[index];
    size_t at = request->count++;
    Shoal__Wire__LocalItem *item = request->pointers[at] = &request->items[at];

    request->indexes[at] = index;
    request->places[at] = *place;
    request->rooms[at] = room_bytes;
    shoal__wire__local_item__init(item);
    item->key = (char *)(uintptr_t)from->key;
    if (place->memory) {
        shoal__wire__local_place__init(&request->wire_places[at]);
        request->wire_places[at].region = place->region;
        request->wire_places[at].offset_bytes = place->offset_bytes;
        request->wire_places[at].len_bytes = room_bytes;
        item->place = &request->wire_places[at];
    } else if (parts->plan) {
        item->value = (ProtobufCBinaryData){.len = from->len_bytes, .data = from->data};
    }
    request->message.n_items = request->count;
}

/* A request that another thread makes, while the caller's looks how far it is. */
struct watched {
    struct request *request;
    const struct parts *parts;
    struct buf *body;
    bool *is_quiet;
    struct shoal_error *error;
    struct mutex mutex; /* RANK_KV: guards what follows */
    struct cond changed;
    bool is_done;
    enum shoal_status status;
};

static enum shoal_status ask(struct request *request, const struct parts *parts, struct buf *body, bool *is_quiet,
                             struct shoal_error *error)
{
    return thin_call(parts->set->kv->thin, parts->method, &request->message.base, &request->caller, parts->set->call,
                     body, is_quiet, error);
}

static void *ask_watched(void *arg)
{
    struct watched *watched = arg;
    enum shoal_status status = ask(watched->request, watched->parts, watched->body, watched->is_quiet, watched->error);

    mutex_lock(&watched->mutex);
    watched->is_done = true;
    watched->status = status;
    cond_signal(&watched->changed);
    mutex_unlock(&watched->mutex);
    return NULL;
}

static void watch(struct watched *watched, const struct local_progress *shared)
{
    const struct call *call = watched->parts->set->call;
    bool is_done = false;

    while (!is_done) {
        uint64_t total = atomic_load_explicit(&shared->total_bytes, memory_order_relaxed);
        int64_t until_ms;

        if (total)
            call_progress_set_total(call, total);
        call_progress_at(call, atomic_load_explicit(&shared->done_bytes, memory_order_relaxed));
        until_ms = call_progress_next_ms(call);
        mutex_lock(&watched->mutex);
        while (!watched->is_done && cond_wait_until(&watched->changed, &watched->mutex, until_ms))
            ;
        is_done = watched->is_done;
        mutex_unlock(&watched->mutex);
    }
}

/* As ask, for one large value of a call with progress. Without room for the counters, or a thread, the caller hears
 * nothing before the end. */
static enum shoal_status ask_and_watch(struct request *request, const struct parts *parts, struct buf *body,
                                       bool *is_quiet, struct shoal_error *error)
{
    struct thin *thin = parts->set->kv->thin;
    struct watched watched = {.request = request, .parts = parts, .body = body, .is_quiet = is_quiet, .error = error};
    struct thin_place place;
    pthread_t thread;

    if (thin_place_take(thin, sizeof(struct local_progress), &place, NULL))
        return ask(request, parts, body, is_quiet, error);
    memset(place.memory, 0, sizeof(struct local_progress));
    shoal__wire__local_place__init(&request->progress_place);
    request->progress_place.region = place.region;
    request->progress_place.offset_bytes = place.offset_bytes;
    request->progress_place.len_bytes = sizeof(struct local_progress);
    request->message.progress = &request->progress_place;
    request->message.progress_interval_ms = call_progress_interval_ms(parts->set->call);
    mutex_init(&watched.mutex, RANK_KV);
    cond_init(&watched.changed);
    if (thread_start(&thread, "kv-watched", ask_watched, &watched) == 0) {
        watch(&watched, place.memory);
        pthread_join(thread, NULL);
    } else {
        ask_watched(&watched);
    }
    cond_release(&watched.changed);
    mutex_release(&watched.mutex);
    thin_place_give(thin, &place, *is_quiet);
    return watched.status;
}

/* Sends it, ends its items but those whose value is longer than the room; returns the needed length of the last such
 * (0: none), which are marked in is_left. */
static uint64_t request_run(struct request *request, const struct parts *parts)
{
    struct kv_set *set = parts->set;
    Shoal__Wire__LocalResultsResponse *response = NULL;
    struct shoal_error error;
    uint64_t needed = 0;
    bool is_quiet = true;
    struct buf body;
    enum shoal_status status;

    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    if (set->call->progress && request->places->memory)
        status = ask_and_watch(request, parts, &body, &is_quiet, &error);
    else
        status = ask(request, parts, &body, &is_quiet, &error);
    if (!status && !(response = unpack_results(&body, request->count, &error)))
        status = SHOAL_PROTOCOL;
    for (size_t i = 0; i < request->count; i++) {
        size_t index = request->indexes[i];

        if (status) {
            kv_set_end(set, index, status, &error);
        } else if (parts->plan) {
            if (response->results[i]->status)
                end_failed(set, index, response->results[i]);
            else
                kv_set_end(set, index, SHOAL_OK, NULL);
        } else if (take_value(parts, index, response->results[i], &request->places[i], request->rooms[i])) {
            parts->is_left[index] = true;
            needed = response->results[i]->len_bytes;
        }
        thin_place_give(set->kv->thin, &request->places[i], is_quiet);
    }
    if (response)
        shoal__wire__local_results_response__free_unpacked(response, NULL);
    buf_release(&body);
    return needed;
}

/* --- items that travel together --- */

static bool find_callers(struct thin *thin, const void *memory, uint64_t len_bytes, struct thin_place *place)
{
    uint64_t offset;

    if (!len_bytes || !kv_arena_offset(thin->arena, memory, len_bytes, &offset))
        return false;
    *place = (struct thin_place){
        .memory = (void *)(uintptr_t)memory, .region = 0, .offset_bytes = offset, .is_callers = true};
    return true;
}

/* room_bytes: how much has to fit. NO_MEMORY: not in the arena now. */
static enum shoal_status find_place(const struct parts *parts, size_t index, bool is_alone, struct thin_place *place,
                                    uint64_t *room_bytes)
{
    struct thin *thin = parts->set->kv->thin;
    const struct shoal_kv_item *item = &parts->set->items[index];
    enum shoal_status status;

    *place = (struct thin_place){.memory = NULL};
    if (parts->plan) {
        *room_bytes = item->len_bytes;
        if (!is_large_put(item) || find_callers(thin, item->data, item->len_bytes, place))
            return SHOAL_OK;
    } else {
        *room_bytes = item->len_bytes;
        if (!parts->allocates && find_callers(thin, item->data, item->len_bytes, place))
            return SHOAL_OK;
        *room_bytes = offer_of(parts, item, is_alone);
        if (!*room_bytes) {
            *room_bytes = LOCAL_INLINE_MAX_BYTES;
            return SHOAL_OK;
        }
    }
    status = thin_place_take(thin, *room_bytes, place, NULL);
    if (!status && parts->plan)
        memcpy(place->memory, item->data, item->len_bytes);
    return status;
}

static bool run_part(void *arg, size_t number)
{
    struct parts *parts = arg;
    const struct part *part = &parts->parts[number];
    struct request *request = malloc(sizeof *request);
    struct shoal_error error;

    if (!request) {
        error_no_memory(&error);
        for (size_t i = 0; i < part->count; i++)
            kv_set_end(parts->set, part->indexes[i], SHOAL_NO_MEMORY, &error);
        return true;
    }
    request_init(request, parts->plan);
    for (size_t i = 0; i < part->count; i++) {
        struct thin_place place;
        uint64_t room_bytes;

        if (find_place(parts, part->indexes[i], part->count == 1, &place, &room_bytes))
            parts->is_left[part->indexes[i]] = true;
        else
            request_add(request, parts, part->indexes[i], &place, room_bytes);
    }
    if (request->count)
        (void)request_run(request, parts);
    free(request);
    return true;
}

/* Alone, with as much room as it needs: from the arena, or memory of its own. */
static void run_alone(const struct parts *parts, size_t index, struct request *request)
{
    struct kv_set *set = parts->set;
    struct shoal_kv_item *item = &set->items[index];
    uint64_t room_bytes = parts->plan ? item->len_bytes : 0;
    struct shoal_error error;

    for (unsigned i = 0; i < GROWTHS_MAX; i++) {
        struct thin_place place = {.memory = NULL};
        enum shoal_status status = SHOAL_OK;

        /* The first question of a get may only tell the length. */
        if (room_bytes && thin_place_take(set->kv->thin, room_bytes, &place, NULL))
            status = thin_place_map(set->kv->thin, room_bytes, set->call, &place, &error);
        if (status) {
            kv_set_end(set, index, status, &error);
            return;
        }
        if (parts->plan && place.memory)
            memcpy(place.memory, item->data, item->len_bytes);
        request_init(request, parts->plan);
        request_add(request, parts, index, &place, room_bytes ? room_bytes : LOCAL_INLINE_MAX_BYTES);
        room_bytes = request_run(request, parts);
        if (item->status != KV_PENDING)
            return;
    }
    error_set(&error, SHOAL_CONFLICT, 0, "the value was replaced by a longer one again and again");
    kv_set_end(set, index, SHOAL_CONFLICT, &error);
}

/* --- dividing a set --- */

static bool fits(const struct parts *parts, const struct part *part, size_t index, uint64_t *bytes, uint64_t *placed)
{
    const struct shoal_kv_item *item = &parts->set->items[index];
    bool is_placed = parts->plan ? is_large_put(item) : offer_of(parts, item, false) > 0;
    uint64_t more = strlen(item->key) + ITEM_OVERHEAD_BYTES + (parts->plan && !is_placed ? item->len_bytes : 0);
    uint64_t more_placed = !is_placed ? 0 : parts->plan ? item->len_bytes : offer_of(parts, item, false);

    if (part->count > 0 && (part->count == REQUEST_ITEMS_MAX || *bytes + more > REQUEST_BYTES ||
                            more_placed > PLACES_BYTES || *placed > PLACES_BYTES - more_placed))
        return false;
    *bytes += more;
    *placed += more_placed;
    return true;
}

static void run_set(struct parts *parts)
{
    struct kv_set *set = parts->set;
    struct shoal_error error;
    struct request *alone = NULL;
    uint64_t bytes = 0, placed = 0;
    size_t count = 0;

    parts->indexes = calloc(set->count + 1, sizeof *parts->indexes);
    parts->parts = calloc(set->count + 1, sizeof *parts->parts);
    parts->is_left = calloc(set->count + 1, sizeof *parts->is_left);
    if (!parts->indexes || !parts->parts || !parts->is_left) {
        kv_set_end_all(set, error_no_memory(&error), &error);
        goto done;
    }
    for (size_t i = 0; i < set->count; i++) {
        struct part *part = &parts->parts[parts->count ? parts->count - 1 : 0];

        if (set->items[i].status != KV_PENDING)
            continue;
        if (!parts->count || !fits(parts, part, i, &bytes, &placed)) {
            bytes = placed = 0;
            part = &parts->parts[parts->count++];
            part->indexes = &parts->indexes[count];
            (void)fits(parts, part, i, &bytes, &placed);
        }
        parts->indexes[count++] = i;
        part->count++;
    }
    if (parts->count == 1)
        run_part(parts, 0);
    else
        pool_for(set->kv->pool, parts->count, run_part, parts);
    for (size_t i = 0; i < set->count; i++) {
        if (!parts->is_left[i])
            continue;
        if (!alone && !(alone = malloc(sizeof *alone))) {
            kv_set_end_all(set, error_no_memory(&error), &error);
            break;
        }
        run_alone(parts, i, alone);
    }
    free(alone);

done:
    free(parts->indexes);
    free(parts->parts);
    free(parts->is_left);
}

static void put_thin(struct kv_set *set, const struct kv_put_plan *plan)
{
    struct parts parts = {.set = set, .plan = plan, .method = LOCAL_METHOD_PUT};

    run_set(&parts);
}

static void get_thin(struct kv_set *set, bool allocates)
{
    struct parts parts = {.set = set, .allocates = allocates, .method = LOCAL_METHOD_GET};

    run_set(&parts);
}

/* --- keys only --- */

static void run_keys(struct kv_set *set, enum local_method method, const size_t *indexes, char **keys, size_t count)
{
    Shoal__Wire__LocalKeysRequest request = SHOAL__WIRE__LOCAL_KEYS_REQUEST__INIT;
    Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
    Shoal__Wire__LocalResultsResponse *response = NULL;
    struct shoal_error error;
    struct buf body;
    enum shoal_status status;

    request.caller = &caller;
    request.n_keys = count;
    request.keys = keys;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = thin_call(set->kv->thin, method, &request.base, &caller, set->call, &body, NULL, &error);
    if (!status && !(response = unpack_results(&body, count, &error)))
        status = SHOAL_PROTOCOL;
    for (size_t i = 0; i < count; i++) {
        if (status) {
            kv_set_end(set, indexes[i], status, &error);
        } else if (response->results[i]->status) {
            end_failed(set, indexes[i], response->results[i]);
        } else {
            if (method == LOCAL_METHOD_SIZE)
                set->items[indexes[i]].len_bytes = response->results[i]->len_bytes;
            kv_set_end(set, indexes[i], SHOAL_OK, NULL);
        }
    }
    if (response)
        shoal__wire__local_results_response__free_unpacked(response, NULL);
    buf_release(&body);
}

static void run_all_keys(struct kv_set *set, enum local_method method)
{
    size_t indexes[LOCAL_ITEMS_MAX], count = 0, bytes = 0;
    char *keys[LOCAL_ITEMS_MAX];

    for (size_t i = 0; i < set->count; i++) {
        size_t more;

        if (set->items[i].status != KV_PENDING)
            continue;
        more = strlen(set->items[i].key) + ITEM_OVERHEAD_BYTES;
        if (count == LOCAL_ITEMS_MAX || bytes + more > REQUEST_BYTES) {
            run_keys(set, method, indexes, keys, count);
            count = bytes = 0;
        }
        indexes[count] = i;
        keys[count++] = (char *)(uintptr_t)set->items[i].key;
        bytes += more;
    }
    if (count)
        run_keys(set, method, indexes, keys, count);
}

static void size_thin(struct kv_set *set)
{
    run_all_keys(set, LOCAL_METHOD_SIZE);
}

static void remove_thin(struct kv_set *set)
{
    run_all_keys(set, LOCAL_METHOD_REMOVE);
}

/* --- patterns and texts --- */

static enum shoal_status remove_matching_thin(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                              uint64_t *removed, struct shoal_error *error)
{
    Shoal__Wire__LocalMatchRequest request = SHOAL__WIRE__LOCAL_MATCH_REQUEST__INIT;
    Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
    Shoal__Wire__LocalRemovedResponse *response = NULL;
    struct buf body;
    enum shoal_status status;

    request.caller = &caller;
    if (pattern)
        request.pattern = (char *)(uintptr_t)pattern;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = thin_call(kv->thin, LOCAL_METHOD_REMOVE_MATCHING, &request.base, &caller, call, &body, NULL, error);
    if (!status && !(response = shoal__wire__local_removed_response__unpack(NULL, body.len, body.data)))
        status = error_set(error, SHOAL_PROTOCOL, 0, "local client: malformed answer");
    if (response) {
        *removed += response->removed;
        if (response->status)
            status = error_set(error, (enum shoal_status)response->status, 0, "%s", response->text);
        shoal__wire__local_removed_response__free_unpacked(response, NULL);
    }
    buf_release(&body);
    return status;
}

static enum shoal_status list_page(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                   const ProtobufCBinaryData *cursor, Shoal__Wire__LocalListResponse **page_out,
                                   struct shoal_error *error)
{
    Shoal__Wire__LocalMatchRequest request = SHOAL__WIRE__LOCAL_MATCH_REQUEST__INIT;
    Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
    struct buf body;
    enum shoal_status status;

    request.caller = &caller;
    request.cursor = *cursor;
    if (pattern)
        request.pattern = (char *)(uintptr_t)pattern;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = thin_call(kv->thin, LOCAL_METHOD_LIST, &request.base, &caller, call, &body, NULL, error);
    if (!status && !(*page_out = shoal__wire__local_list_response__unpack(NULL, body.len, body.data)))
        status = error_set(error, SHOAL_PROTOCOL, 0, "local client: malformed answer");
    buf_release(&body);
    return status;
}

static enum shoal_status list_thin(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                   shoal_kv_list_fn fn, void *arg, struct shoal_error *error)
{
    Shoal__Wire__LocalListResponse *page = NULL, *next;
    ProtobufCBinaryData cursor = {.len = 0};
    bool ends = false;
    enum shoal_status status;

    do {
        status = list_page(kv, pattern, call, &cursor, &next, error);
        if (status)
            break;
        if (page)
            shoal__wire__local_list_response__free_unpacked(page, NULL);
        page = next;
        for (size_t i = 0; i < page->n_entries && !ends; i++) {
            const struct shoal_kv_entry entry = {.key = page->entries[i]->key,
                                                 .len_bytes = page->entries[i]->len_bytes,
                                                 .replicas = page->entries[i]->replicas};

            ends = fn(arg, &entry) != 0;
        }
        cursor = page->next_cursor;
    } while (!ends && cursor.len > 0);
    if (page)
        shoal__wire__local_list_response__free_unpacked(page, NULL);
    return status;
}

static enum shoal_status ask_text(struct shoal_kv *kv, enum local_method method, const struct call *call,
                                  struct buf *out, struct shoal_error *error)
{
    Shoal__Wire__LocalTextRequest request = SHOAL__WIRE__LOCAL_TEXT_REQUEST__INIT;
    Shoal__Wire__LocalCaller caller = SHOAL__WIRE__LOCAL_CALLER__INIT;
    Shoal__Wire__LocalTextResponse *response = NULL;
    struct buf body;
    enum shoal_status status;

    request.caller = &caller;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = thin_call(kv->thin, method, &request.base, &caller, call, &body, NULL, error);
    if (!status && !(response = shoal__wire__local_text_response__unpack(NULL, body.len, body.data)))
        status = error_set(error, SHOAL_PROTOCOL, 0, "local client: malformed answer");
    if (!status && !buf_append(out, response->text.data, response->text.len))
        status = error_no_memory(error);
    if (response)
        shoal__wire__local_text_response__free_unpacked(response, NULL);
    buf_release(&body);
    return status;
}

static enum shoal_status metrics_thin(struct shoal_kv *kv, struct buf *out, struct shoal_error *error)
{
    struct call call;
    enum shoal_status status = call_init(&call, NULL, KV_CALL_TIMEOUT_MS, error);

    return status ? status : ask_text(kv, LOCAL_METHOD_METRICS, &call, out, error);
}

static enum shoal_status status_thin(struct shoal_kv *kv, const struct call *call, char **text_out,
                                     struct shoal_error *error)
{
    struct buf text;
    enum shoal_status status;

    buf_init(&text, RPC_RESPONSE_MAX_BYTES);
    status = ask_text(kv, LOCAL_METHOD_STATUS, call, &text, error);
    if (!status && !(*text_out = (char *)buf_take(&text, NULL)))
        status = error_no_memory(error);
    buf_release(&text);
    return status;
}

/* --- memory, open, close --- */

static enum shoal_status alloc_thin(struct shoal_kv *kv, uint64_t len_bytes, void **memory_out,
                                    struct shoal_error *error)
{
    return kv_arena_alloc(kv->thin->arena, len_bytes, memory_out, error);
}

static void free_thin(struct shoal_kv *kv, void *memory)
{
    kv_arena_free(kv->thin->arena, memory);
}

static enum shoal_status refuse_memory(struct shoal_kv *kv, void *addr, uint64_t len_bytes, struct shoal_error *error)
{
    (void)kv;
    (void)addr;
    (void)len_bytes;
    return error_set(error, SHOAL_UNSUPPORTED, 0,
                     "memory cannot be registered with a local client: use shoal_kv_alloc, whose memory it shares");
}

static void close_thin(struct shoal_kv *kv)
{
    thin_destroy(kv->thin);
    pool_destroy(kv->pool);
}

static const struct kv_ops thin_ops = {
    .close = close_thin,
    .alloc = alloc_thin,
    .free = free_thin,
    .register_memory = refuse_memory,
    .unregister_memory = refuse_memory,
    .put = put_thin,
    .get = get_thin,
    .size = size_thin,
    .remove = remove_thin,
    .remove_matching = remove_matching_thin,
    .list = list_thin,
    .metrics = metrics_thin,
    .status = status_thin,
};

enum shoal_status kv_open_thin(struct shoal_kv *kv, const struct shoal_kv_config *config, const struct call *call,
                               struct shoal_error *error)
{
    enum shoal_status status = pool_create(REQUESTS_AT_A_TIME, &kv->pool, error);

    kv->ops = &thin_ops;
    if (status)
        return status;
    return thin_create(config->client, config->cluster ? config->cluster : "default",
                       config->arena_bytes ? config->arena_bytes : DEFAULT_ARENA_BYTES, call, &kv->thin, error);
}
