/* SPDX-License-Identifier: Apache-2.0 */
/* One source of a pull: connect, open, keep in sync, fail, come back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/pull_internal.h"
#include "wire/control.pb-c.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define SYNC_WAIT_MS 1000
#define TAKEN_MAX 4096u /* pieces in one claim */
#define RETRY_BASE_MS 50
#define RETRY_MAX_MS 2000
#define BABBLE_MS 100        /* how often an answer may say nothing before its time, in the long run */
#define BABBLE_BURST_MS 2000 /* so much of that at once */
#define FAILURES_MAX 12u     /* in a row, then it is given up */

struct pull_source *source_find(struct pull *pull, const char *name)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (strcmp(source->entry.name, name) == 0)
            return source;
    }
    return NULL;
}

struct pull_source *source_add(struct pull *pull, const struct source_entry *entry)
{
    struct pull_source *source = calloc(1, sizeof *source);

    if (!source)
        return NULL;
    source->pull = pull;
    source->entry = *entry;
    source->is_listed = true;
    source->number = SWARM_NONE;
    source->stats.is_gold = entry->is_gold;
    snprintf(source->stats.name, sizeof source->stats.name, "%s", entry->name);
    list_push_back(&pull->sources, &source->node);
    return source;
}

static enum shoal_status send_sync(struct pull_source *source, bool is_last);

/* Everything of the connection goes; no request is in flight. The source learns what was taken from it. */
static void disconnect(struct pull_source *source)
{
    struct rpc_client *client = source->client;

    if (source->stats.is_connected && source->number != SWARM_NONE && !send_sync(source, true))
        rpc_client_flush(client);
    if (source->number != SWARM_NONE)
        swarm_source_remove(source->pull->swarm, source->number);
    source->number = SWARM_NONE;
    source->client = NULL; /* callbacks that close ends find it gone */
    rpc_client_close(client);
    shoal_segment_close(source->segment);
    source->segment = NULL;
    span_map_release(&source->spans);
    source->stats.is_connected = false;
    source->position = 0;
    source->is_complete = false;
    source->is_starving = false;
}

static void finish_closing(struct pull_source *source)
{
    disconnect(source);
    source->state = source->is_dead_after ? SOURCE_DEAD : SOURCE_IDLE;
}

void source_request_ended(struct pull_source *source)
{
    source->request_count--;
    if (source->state == SOURCE_CLOSING && !source->request_count)
        finish_closing(source);
}

void source_fail(struct pull_source *source, bool is_dead, const struct shoal_error *error)
{
    struct pull *pull = source->pull;

    if (source->state == SOURCE_CLOSING || source->state == SOURCE_DEAD)
        return;
    if (!pull->is_stopping) { /* else it is only the end of the pull */
        pull->last_error = *error;
        source->stats.failures++;
        source->failures_in_row++;
        atomic_fetch_add_explicit(&pull->store->counters.source_failures, 1, memory_order_relaxed);
        LOG_INFO("payload '%s': leaving source %s%s: %s", pull->name, source->entry.name,
                 is_dead || source->failures_in_row >= FAILURES_MAX ? " for good" : "", error->message);
    }
    source->is_dead_after = is_dead || source->failures_in_row >= FAILURES_MAX;
    source->retry_at_ms =
        clock_now_ms() + backoff_ms(&pull->random, source->failures_in_row, RETRY_BASE_MS, RETRY_MAX_MS);
    source->state = SOURCE_CLOSING;
    if (source->number != SWARM_NONE)
        swarm_source_avoid(pull->swarm, source->number, INT64_MAX);
    if (!source->request_count) {
        finish_closing(source);
        return;
    }
    fetch_cancel_of_source(source);
    if (pull->is_index_in_flight && pull->index_source == source)
        engine_op_cancel(pull->store->engine, &pull->index_op);
}

static void sync_begin(struct pull_source *source);

/* An answer without news or slots comes when the wait is over, or now and then for another reason (the source begins to
 * starve). One that comes at once, again and again, only keeps this node busy. */
static bool is_babbling(struct pull_source *source)
{
    int64_t now = clock_now_ms();

    if (source->babble_until_ms < now)
        source->babble_until_ms = now;
    source->babble_until_ms += BABBLE_MS;
    return source->babble_until_ms - now > BABBLE_BURST_MS;
}

static enum shoal_status take_news(struct pull_source *source, const Shoal__Wire__SyncResponse *message,
                                   struct shoal_error *error)
{
    struct pull *pull = source->pull;

    if ((source->is_complete || !(message->is_complete || message->n_pieces)) && is_babbling(source))
        return error_set(error, SHOAL_PROTOCOL, 0, "%s: answers at once, without news", source->entry.name);
    source->is_starving = message->is_starving;
    if (message->is_complete) {
        source->is_complete = true;
        swarm_source_has_all(pull->swarm, source->number);
        return SHOAL_OK;
    }
    if (source->is_complete)
        return SHOAL_OK;
    if (message->position - source->position != message->n_pieces)
        return error_set(error, SHOAL_PROTOCOL, 0, "%s: its log of pieces jumps", source->entry.name);
    if (message->position > pull->layout.piece_count)
        return error_set(error, SHOAL_PROTOCOL, 0, "%s: its log of pieces is longer than the payload",
                         source->entry.name);
    source->position = message->position;
    for (size_t i = 0; i < message->n_pieces; i++) {
        if (!swarm_source_has(pull->swarm, source->number, message->pieces[i]))
            return error_set(error, SHOAL_PROTOCOL, 0, "%s: announces piece %u of %u", source->entry.name,
                             message->pieces[i], pull->layout.piece_count);
    }
    return SHOAL_OK;
}

static void on_synced(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error)
{
    struct pull_source *source = arg;
    struct pull *pull = source->pull;
    Shoal__Wire__SyncResponse *message;
    struct shoal_error detail;

    if (!source->client || source->state != SOURCE_OPEN)
        return;
    if (status) {
        source_fail(source, false, error);
    } else if (!(message = shoal__wire__sync_response__unpack(NULL, body_len, body))) {
        error_set(&detail, SHOAL_PROTOCOL, 0, "%s: malformed sync response", source->entry.name);
        source_fail(source, true, &detail);
    } else {
        status = take_news(source, message, &detail);
        shoal__wire__sync_response__free_unpacked(message, NULL);
        if (status)
            source_fail(source, true, &detail);
        else
            sync_begin(source);
    }
    pull_review(pull);
}

void source_note_way(struct pull_source *source)
{
    struct engine_way way;

    if (!source->segment)
        return;
    engine_segment_way(source->segment, &way);
    if (!way.transport)
        return;
    snprintf(source->stats.transport, sizeof source->stats.transport, "%s", way.transport);
    memcpy(source->stats.left_transports, way.left, sizeof way.left);
}

/* A source is always being asked: its withdrawal, its death and its news all arrive as the answer. Until the index is
 * known piece numbers mean nothing, so the log is read from the start when the source joins the swarm. */
static enum shoal_status send_sync(struct pull_source *source, bool is_last)
{
    struct pull *pull = source->pull;
    Shoal__Wire__SyncRequest request = SHOAL__WIRE__SYNC_REQUEST__INIT;
    uint8_t body[SHOAL_NAME_MAX_BYTES + SHOAL_TRANSPORT_NAME_BYTES + SHOAL_TRANSPORT_REASONS_BYTES + 64];
    size_t len;

    source_note_way(source);
    request.name = (char *)pull->name;
    request.generation = pull->manifest->generation;
    request.position = source->is_complete ? UINT32_MAX : source->position;
    request.wait_ms = SYNC_WAIT_MS;
    request.taken_bytes = source->stats.bytes;
    request.is_last = is_last;
    request.pieces_have = pull->done_pieces;
    request.transport = source->stats.transport;
    request.left_transports = source->stats.left_transports;
    len = shoal__wire__sync_request__get_packed_size(&request);
    if (len > sizeof body || shoal__wire__sync_request__pack(&request, body) != len)
        return SHOAL_INTERNAL;
    return rpc_call(source->client, STORE_METHOD_SYNC, body, len, SYNC_WAIT_MS + pull->store->progress_timeout_ms,
                    on_synced, source);
}

static void sync_begin(struct pull_source *source)
{
    struct shoal_error error;

    if (send_sync(source, false)) {
        error_no_memory(&error);
        source_fail(source, false, &error);
    }
}

static enum shoal_status take_slots(struct pull_source *source, const Shoal__Wire__ClaimResponse *message,
                                    struct shoal_error *error)
{
    struct pull *pull = source->pull;

    if (message->n_pieces > message->slots ||
        !swarm_claimed(pull->swarm, source->number, message->slots, message->pieces, (uint32_t)message->n_pieces))
        return error_set(error, SHOAL_PROTOCOL, 0, "%s: grants %u upload slots and %zu pieces that cannot be",
                         source->entry.name, message->slots, message->n_pieces);
    if (message->slots)
        return SHOAL_OK;
    if (source->is_claim_waiting && is_babbling(source))
        return error_set(error, SHOAL_PROTOCOL, 0, "%s: refuses upload slots at once, again and again",
                         source->entry.name);
    pull->last_busy_ms = clock_now_ms();
    return SHOAL_OK;
}

static void on_claimed(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                       const struct shoal_error *error)
{
    struct pull_source *source = arg;
    struct pull *pull = source->pull;
    Shoal__Wire__ClaimResponse *message = NULL;
    struct shoal_error detail;

    if (!source->client || source->state != SOURCE_OPEN || source->number == SWARM_NONE)
        return;
    if (status) {
        source_fail(source, false, error);
    } else if (!(message = shoal__wire__claim_response__unpack(NULL, body_len, body))) {
        error_set(&detail, SHOAL_PROTOCOL, 0, "%s: malformed claim response", source->entry.name);
        source_fail(source, true, &detail);
    } else {
        status = take_slots(source, message, &detail);
        shoal__wire__claim_response__free_unpacked(message, NULL);
        if (status)
            source_fail(source, true, &detail);
    }
    pull_review(pull);
}

void source_claim(struct pull_source *source, uint32_t wanted, uint32_t outstanding)
{
    struct pull *pull = source->pull;
    Shoal__Wire__ClaimRequest request = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    uint32_t taken[TAKEN_MAX];
    uint8_t body[SHOAL_NAME_MAX_BYTES + 64 + sizeof taken / sizeof *taken * 5];
    struct shoal_error error;

    request.name = (char *)pull->name;
    request.generation = pull->manifest->generation;
    request.wanted = wanted;
    request.outstanding = outstanding;
    source->is_claim_waiting = wanted && !outstanding;
    request.wait_ms = SYNC_WAIT_MS;
    request.n_taken = swarm_taken(pull->swarm, source->number, taken, TAKEN_MAX);
    request.taken = taken;
    if (rpc_call(source->client, STORE_METHOD_CLAIM, body, shoal__wire__claim_request__pack(&request, body),
                 SYNC_WAIT_MS + pull->store->progress_timeout_ms, on_claimed, source)) {
        error_no_memory(&error);
        source_fail(source, false, &error);
    }
}

void source_join_swarm(struct pull_source *source)
{
    struct pull *pull = source->pull;

    source->number = swarm_source_add(pull->swarm, source->is_complete);
    if (source->number == SWARM_NONE) {
        struct shoal_error error;
        error_set(&error, SHOAL_LIMIT, 0, "too many sources at once");
        source_fail(source, false, &error);
        return;
    }
    sync_begin(source);
}

static enum shoal_status take_ranges(struct pull_source *source, const Shoal__Wire__OpenResponse *message,
                                     struct shoal_error *error)
{
    const struct manifest *manifest = source->pull->manifest;
    enum shoal_status status = span_map_init(&source->spans, message->n_regions, error);

    if (status)
        return status;
    for (size_t i = 0; i < message->n_regions; i++) {
        const Shoal__Wire__MemoryRange *range = message->regions[i];
        if (!span_map_add(&source->spans, range->addr, range->len_bytes, range->key))
            goto bad;
    }
    if (source->spans.total != manifest->total_size || !message->index ||
        message->index->len_bytes != manifest->index_len)
        goto bad;
    source->index =
        (struct span){.addr = message->index->addr, .len = message->index->len_bytes, .key = message->index->key};
    return SHOAL_OK;
bad:
    return error_set(error, SHOAL_PROTOCOL, 0, "%s: what it offers does not have the payload's size",
                     source->entry.name);
}

static void on_opened(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error)
{
    struct pull_source *source = arg;
    struct pull *pull = source->pull;
    Shoal__Wire__OpenResponse *message;
    struct shoal_error detail;

    if (!source->client || source->state != SOURCE_OPENING)
        return;
    if (status) {
        /* NOT_FOUND: withdrawn, or announced a moment before it can serve: asked again while it is listed. */
        source_fail(source, false, error);
        pull_review(pull);
        return;
    }
    message = shoal__wire__open_response__unpack(NULL, body_len, body);
    status = message ? take_ranges(source, message, &detail)
                     : error_set(&detail, SHOAL_PROTOCOL, 0, "%s: malformed open response", source->entry.name);
    if (status) {
        if (message)
            shoal__wire__open_response__free_unpacked(message, NULL);
        source_fail(source, true, &detail);
        pull_review(pull);
        return;
    }
    source->state = SOURCE_OPEN;
    source->stats.is_connected = true;
    source->is_complete = message->is_complete;
    shoal__wire__open_response__free_unpacked(message, NULL);
    if (pull->swarm)
        source_join_swarm(source);
    pull_review(pull);
}

void source_connect(struct pull_source *source)
{
    struct pull *pull = source->pull;
    Shoal__Wire__OpenRequest request = SHOAL__WIRE__OPEN_REQUEST__INIT;
    uint8_t body[SHOAL_NAME_MAX_BYTES + 64];
    struct shoal_error error;
    size_t len;

    source->state = SOURCE_OPENING;
    if (rpc_client_open(pull->store->rpc, source->entry.address, source->entry.instance,
                        pull->store->connect_timeout_ms, &source->client, &error) ||
        engine_segment_create(pull->store->engine, source->entry.name, source->entry.address, source->entry.instance,
                              &source->segment, &error)) {
        source_fail(source, false, &error);
        return;
    }
    request.name = (char *)pull->name;
    request.generation = pull->manifest->generation;
    len = shoal__wire__open_request__get_packed_size(&request);
    if (len > sizeof body || shoal__wire__open_request__pack(&request, body) != len ||
        rpc_call(source->client, STORE_METHOD_OPEN, body, len,
                 pull->store->connect_timeout_ms + pull->store->progress_timeout_ms, on_opened, source)) {
        error_no_memory(&error);
        source_fail(source, false, &error);
    }
}

void source_close_all(struct pull *pull)
{
    struct shoal_error error;

    error_set(&error, SHOAL_CANCELED, 0, "the pull has ended");
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPENING || source->state == SOURCE_OPEN)
            source_fail(source, true, &error);
    }
}

void source_destroy_all(struct pull *pull)
{
    struct list_node *node;

    while ((node = list_pop_front(&pull->sources)))
        free(container_of(node, struct pull_source, node));
}
