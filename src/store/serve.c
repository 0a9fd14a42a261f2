/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side: answers open and sync, and tells waiting receivers of newly verified pieces in batches. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/status.h"
#include "store/store_internal.h"
#include "wire/control.pb-c.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define NEWS_MAX 65536u /* pieces in one answer */
#define SYNC_WAIT_MAX_MS 30000

struct waiter {
    struct list_node node;
    struct rpc_request *request;
    struct payload *payload; /* borrowed: serve_stop empties the list */
    uint32_t position;
    int64_t until_ms;
};

struct payload *serve_find_any(struct shoal_store *store, const char *name)
{
    struct payload *payload;

    mutex_lock(&store->mutex);
    payload = map_get_str(&store->catalog, name);
    if (payload && !payload->is_serving)
        payload = NULL;
    if (payload)
        payload_ref(payload);
    mutex_unlock(&store->mutex);
    return payload;
}

struct payload *serve_find(struct shoal_store *store, const char *name, uint64_t generation)
{
    struct payload *payload = serve_find_any(store, name);

    if (!payload || payload->generation == generation)
        return payload;
    payload_unref(payload);
    return NULL;
}

static void on_open(void *arg, struct rpc_request *request)
{
    struct shoal_store *store = arg;
    Shoal__Wire__OpenRequest *message = shoal__wire__open_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__OpenResponse response = SHOAL__WIRE__OPEN_RESPONSE__INIT;
    Shoal__Wire__MemoryRange index = SHOAL__WIRE__MEMORY_RANGE__INIT, *ranges = NULL, **pointers = NULL;
    struct payload *payload = NULL;
    uint8_t *body = NULL;
    size_t body_len;

    if (!message) {
        rpc_reply(request, SHOAL_PROTOCOL, "malformed open request", NULL, 0);
        return;
    }
    payload = serve_find(store, message->name, message->generation);
    shoal__wire__open_request__free_unpacked(message, NULL);
    if (!payload) {
        rpc_reply(request, SHOAL_NOT_FOUND, "payload is not served here", NULL, 0);
        return;
    }
    ranges = calloc(payload->spans.count + 1, sizeof *ranges);
    pointers = calloc(payload->spans.count + 1, sizeof *pointers);
    if (!ranges || !pointers) {
        rpc_reply(request, SHOAL_NO_MEMORY, NULL, NULL, 0);
        goto out;
    }
    for (size_t i = 0; i < payload->spans.count; i++) {
        const struct span *span = &payload->spans.spans[i];
        shoal__wire__memory_range__init(&ranges[i]);
        ranges[i].addr = span->addr;
        ranges[i].len_bytes = span->len;
        ranges[i].key = span->key;
        pointers[i] = &ranges[i];
    }
    index.addr = (uintptr_t)payload->index;
    index.len_bytes = payload->index_len;
    index.key = payload->index_key;
    response.index = &index;
    response.n_regions = payload->spans.count;
    response.regions = pointers;
    response.is_complete = payload->is_complete;
    response.is_gold = payload->is_gold;
    body_len = shoal__wire__open_response__get_packed_size(&response);
    body = malloc(body_len);
    if (!body) {
        rpc_reply(request, SHOAL_NO_MEMORY, NULL, NULL, 0);
        goto out;
    }
    shoal__wire__open_response__pack(&response, body);
    rpc_reply(request, SHOAL_OK, NULL, body, body_len);
out:
    free(body);
    free(pointers);
    free(ranges);
    payload_unref(payload);
}

static void waiter_destroy(struct waiter *waiter)
{
    list_remove(&waiter->node);
    waiter->payload->waiter_count--;
    free(waiter);
}

static void waiter_answer(struct waiter *waiter)
{
    struct payload *payload = waiter->payload;
    Shoal__Wire__SyncResponse response = SHOAL__WIRE__SYNC_RESPONSE__INIT;
    uint32_t count = payload->is_complete ? 0 : payload->have_count - waiter->position;
    uint8_t *body;
    size_t body_len;

    /* Whoever has everything says only that: cheaper than the list. */
    if (count > NEWS_MAX)
        count = NEWS_MAX;
    response.is_complete = payload->is_complete;
    response.is_starving = payload->is_starving;
    response.n_pieces = count;
    response.pieces = count ? payload->have_log + waiter->position : NULL;
    response.position = waiter->position + count;
    body_len = shoal__wire__sync_response__get_packed_size(&response);
    body = malloc(body_len ? body_len : 1);
    if (body) {
        shoal__wire__sync_response__pack(&response, body);
        rpc_reply(waiter->request, SHOAL_OK, NULL, body, body_len);
    } else {
        rpc_reply(waiter->request, SHOAL_NO_MEMORY, NULL, NULL, 0);
    }
    free(body);
    waiter_destroy(waiter);
}

static bool waiter_has_news(const struct waiter *waiter)
{
    return !waiter->payload->is_complete && waiter->payload->have_count > waiter->position;
}

/* When the waiter is to be answered. News that others heard while it was not waiting are due. */
static int64_t due_of(const struct waiter *waiter)
{
    if (!waiter_has_news(waiter))
        return waiter->until_ms;
    return waiter->payload->news.pending ? waiter->payload->news.due_ms : 0;
}

static void arm_waiter_timer(struct payload *payload)
{
    int64_t now = clock_now_ms(), first = DEADLINE_NONE;

    LIST_FOR_EACH (waiter, &payload->waiters, struct waiter, node)
        first = deadline_min(first, due_of(waiter));
    if (first == DEADLINE_NONE)
        loop_timer_stop(&payload->waiter_timer);
    else
        loop_timer_start(&payload->waiter_timer, first > now ? first - now : 0);
}

static void answer_due(struct payload *payload)
{
    int64_t now = clock_now_ms();
    uint32_t listeners = payload->waiter_count;
    bool is_telling = payload->news.pending && payload->news.due_ms <= now;

    LIST_FOR_EACH_SAFE (waiter, &payload->waiters, struct waiter, node) {
        if (payload->is_complete || due_of(waiter) <= now)
            waiter_answer(waiter);
    }
    if (is_telling)
        swarm_news_told(&payload->news, listeners);
    arm_waiter_timer(payload);
}

static void on_waiter_timer(void *arg)
{
    answer_due(arg);
}

static void on_waiter_abort(struct rpc_request *request)
{
    struct waiter *waiter = request->arg;

    receivers_lost(&waiter->payload->receivers, request->peer);
    claims_leave(&waiter->payload->claims, request);
    waiter_destroy(waiter);
}

static void note_receiver(struct payload *payload, const char *peer, const Shoal__Wire__SyncRequest *message)
{
    const struct receiver_report report = {.name = peer,
                                           .taken_bytes = message->taken_bytes,
                                           .pieces_have = message->pieces_have,
                                           .transport = message->transport,
                                           .left_transports = message->left_transports,
                                           .is_last = message->is_last};

    atomic_fetch_add_explicit(&payload->store->counters.bytes_served,
                              receivers_report(&payload->receivers, &report, clock_now_ms()), memory_order_relaxed);
}

static void on_sync(void *arg, struct rpc_request *request)
{
    struct shoal_store *store = arg;
    Shoal__Wire__SyncRequest *message = shoal__wire__sync_request__unpack(NULL, request->body_len, request->body);
    struct payload *payload;
    struct waiter *waiter;
    bool knows_all;

    if (!message) {
        rpc_reply(request, SHOAL_PROTOCOL, "malformed sync request", NULL, 0);
        return;
    }
    payload = serve_find(store, message->name, message->generation);
    if (!payload) {
        rpc_reply(request, SHOAL_NOT_FOUND, "payload is not served here any more", NULL, 0);
        goto out;
    }
    note_receiver(payload, request->peer, message);
    claims_heard(&payload->claims, request->peer);
    if (message->is_last) {
        claims_leave(&payload->claims, request);
        rpc_reply(request, SHOAL_OK, NULL, NULL, 0);
        goto out;
    }
    knows_all = message->position == UINT32_MAX; /* the receiver has seen is_complete */
    if (!knows_all && message->position > payload->have_count && !payload->is_complete) {
        rpc_reply(request, SHOAL_PROTOCOL, "position is beyond the log", NULL, 0);
        goto out;
    }
    waiter = calloc(1, sizeof *waiter);
    if (!waiter) {
        rpc_reply(request, SHOAL_NO_MEMORY, NULL, NULL, 0);
        goto out;
    }
    waiter->request = request;
    waiter->payload = payload;
    waiter->position = knows_all ? payload->have_count : message->position;
    waiter->until_ms =
        clock_now_ms() + (message->wait_ms < SYNC_WAIT_MAX_MS ? (int64_t)message->wait_ms : SYNC_WAIT_MAX_MS);
    request->on_abort = on_waiter_abort;
    request->arg = waiter;
    list_push_back(&payload->waiters, &waiter->node);
    payload->waiter_count++;
    if (payload->is_complete && !knows_all)
        waiter_answer(waiter);
    arm_waiter_timer(payload);
out:
    shoal__wire__sync_request__free_unpacked(message, NULL);
    payload_unref(payload);
}

static void on_claim(void *arg, struct rpc_request *request)
{
    struct shoal_store *store = arg;
    Shoal__Wire__ClaimRequest *message = shoal__wire__claim_request__unpack(NULL, request->body_len, request->body);
    struct payload *payload;

    if (!message) {
        rpc_reply(request, SHOAL_PROTOCOL, "malformed claim request", NULL, 0);
        return;
    }
    payload = serve_find(store, message->name, message->generation);
    if (payload)
        claims_request(payload, request, message->wanted, message->outstanding, message->wait_ms, message->taken,
                       message->n_taken);
    else
        rpc_reply(request, SHOAL_NOT_FOUND, "payload is not served here any more", NULL, 0);
    shoal__wire__claim_request__free_unpacked(message, NULL);
    payload_unref(payload);
}

void serve_install(struct shoal_store *store)
{
    rpc_set_handler(store->rpc, STORE_METHOD_OPEN, on_open, store);
    rpc_set_handler(store->rpc, STORE_METHOD_SYNC, on_sync, store);
    rpc_set_handler(store->rpc, STORE_METHOD_STATUS, status_on_request, store);
    rpc_set_handler(store->rpc, STORE_METHOD_CLAIM, on_claim, store);
}

void serve_starving(struct payload *payload, bool is_starving)
{
    bool is_news = is_starving && !payload->is_starving;

    payload->is_starving = is_starving;
    /* Those who wait for this node shall not take the silence for hope. */
    LIST_FOR_EACH_SAFE (waiter, &payload->waiters, struct waiter, node) {
        if (is_news)
            waiter_answer(waiter);
    }
    if (is_news)
        arm_waiter_timer(payload);
}

void serve_piece_verified(struct payload *payload, uint32_t piece, bool is_urgent)
{
    int64_t due_ms = payload->news.due_ms, now = clock_now_ms();
    bool is_first = !payload->news.pending;

    payload->have_bits[piece / 64] |= UINT64_C(1) << (piece % 64);
    payload->have_log[payload->have_count++] = piece;
    if (payload->have_count == payload->layout.piece_count)
        payload->is_complete = true;
    swarm_news_add(&payload->news, payload->layout.piece_size, payload->waiter_count, is_urgent, now);
    if (payload->is_complete || payload->news.due_ms <= now)
        answer_due(payload);
    else if (is_first || payload->news.due_ms != due_ms)
        arm_waiter_timer(payload);
}

struct start_args {
    struct payload *payload;
    struct shoal_error *error;
    enum shoal_status status;
};

static void start_on_loop(void *arg)
{
    struct start_args *args = arg;
    struct payload *payload = args->payload;

    args->status = loop_timer_init(&payload->waiter_timer, engine_loop(payload->store->engine), on_waiter_timer,
                                   payload, args->error);
    payload->has_waiter_timer = args->status == SHOAL_OK;
    if (args->status == SHOAL_OK)
        args->status = claims_init(&payload->claims, engine_loop(payload->store->engine), args->error);
}

enum shoal_status serve_start(struct payload *payload, struct shoal_error *error)
{
    struct start_args args = {.payload = payload, .error = error};

    if (!payload->is_gold) {
        payload->have_bits = calloc((size_t)payload->layout.piece_count / 64 + 1, sizeof *payload->have_bits);
        payload->have_log = calloc((size_t)payload->layout.piece_count + 1, sizeof *payload->have_log);
        if (!payload->have_bits || !payload->have_log)
            return error_no_memory(error);
    }
    payload->is_complete = payload->is_gold || payload->layout.piece_count == 0;
    receivers_set_payload(&payload->receivers, payload->layout.piece_count, payload->layout.total_size);
    loop_call(engine_loop(payload->store->engine), start_on_loop, &args);
    if (args.status)
        return args.status;
    mutex_lock(&payload->store->mutex);
    payload->is_serving = true;
    mutex_unlock(&payload->store->mutex);
    return SHOAL_OK;
}

static void stop_on_loop(void *arg)
{
    struct payload *payload = arg;
    struct list_node *node;

    while ((node = list_first(&payload->waiters))) {
        struct waiter *waiter = container_of(node, struct waiter, node);
        rpc_reply(waiter->request, SHOAL_NOT_FOUND, "payload was withdrawn", NULL, 0);
        waiter_destroy(waiter);
    }
    claims_release(&payload->claims);
    receivers_release(&payload->receivers);
    if (payload->has_waiter_timer)
        loop_timer_release(&payload->waiter_timer);
    payload->has_waiter_timer = false;
}

void serve_stop(struct payload *payload)
{
    mutex_lock(&payload->store->mutex);
    payload->is_serving = false;
    mutex_unlock(&payload->store->mutex);
    loop_call(engine_loop(payload->store->engine), stop_on_loop, payload);
}

uint32_t serve_pieces_have(const struct payload *payload)
{
    return payload->is_complete ? payload->layout.piece_count : payload->have_count;
}

struct describe_args {
    struct payload *payload;
    struct shoal_served_info *info;
};

static void describe_on_loop(void *arg)
{
    struct describe_args *args = arg;
    struct payload *payload = args->payload;

    receivers_age(&payload->receivers, clock_now_ms());
    args->info->pieces_have = serve_pieces_have(payload);
    args->info->pieces_total = payload->layout.piece_count;
    args->info->bytes_served = payload->receivers.bytes_served;
    args->info->receivers = payload->receivers.taking_count;
}

void serve_describe(struct payload *payload, struct shoal_served_info *info_out)
{
    struct describe_args args = {.payload = payload, .info = info_out};

    snprintf(info_out->name, sizeof info_out->name, "%s", payload->name);
    info_out->is_gold = payload->is_gold;
    loop_call(engine_loop(payload->store->engine), describe_on_loop, &args);
}
