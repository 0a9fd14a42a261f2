/* SPDX-License-Identifier: Apache-2.0 */
/* Writes: small values travel in the request, the owner READs larger ones from memory of ours. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/peer_internal.h"
#include "wire/rpc_frame.h"

#define BATCH_TRANSFER_BYTES (UINT64_C(256) << 20) /* by one request; a larger value goes alone */
#define VALUE_FIELD_TAG ((3 << 3) | 2)             /* KvWriteRequest.value, counted bytes */
#define VALUE_PREFIX_MAX_BYTES 6

/* One write until it is answered. */
struct write_slot {
    struct peer_write *write;
    bool has_exposure;
    struct exposure exposure;
};

static bool is_large(const struct peers *peers, const struct peer_write *write)
{
    return write->len_bytes > peers->inline_max_bytes;
}

static void fill_request(const struct peers *peers, const struct write_slot *slot, Shoal__Wire__KvWriteRequest *request,
                         Shoal__Wire__KvMemory *source)
{
    shoal__wire__kv_write_request__init(request);
    request->key = (char *)(uintptr_t)slot->write->key;
    request->len_bytes = slot->write->len_bytes;
    request->object_id = slot->write->object_id;
    if (slot->has_exposure) {
        exposure_describe(peers, &slot->exposure, source);
        request->source = source;
    }
}

static enum shoal_status expose(struct peers *peers, struct write_slot *slot, struct shoal_error *error)
{
    enum shoal_status status = exposure_open(peers, (void *)(uintptr_t)slot->write->data, slot->write->len_bytes,
                                             SHOAL_ACCESS_REMOTE_READ, &slot->exposure, error);

    slot->has_exposure = status == SHOAL_OK;
    return status;
}

static void conceal(struct peers *peers, struct write_slot *slot)
{
    if (slot->has_exposure)
        exposure_close(peers, &slot->exposure, 0);
    slot->has_exposure = false;
}

static enum shoal_status take_answer(const struct peer_address *owner, struct peer_write *write,
                                     const Shoal__Wire__KvWriteResponse *answer, struct shoal_error *error)
{
    if (!answer || !answer->object_id || (write->object_id && answer->object_id != write->object_id))
        return peer_nonsense(owner, "malformed answer to a write", error);
    write->object_id_out = answer->object_id;
    return SHOAL_OK;
}

static enum shoal_status check(const struct peer_write *write, struct shoal_error *error)
{
    if (!write->data && write->len_bytes)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "data is NULL");
    return peer_check_key(write->key, error);
}

/* --- one value --- */

/* The field's head; the value itself goes from where it lies. Fields may come in any order, so it ends the message. */
static size_t value_prefix(size_t len, uint8_t out[VALUE_PREFIX_MAX_BYTES])
{
    size_t at = 0;

    out[at++] = VALUE_FIELD_TAG;
    for (; len >= 0x80; len >>= 7)
        out[at++] = (uint8_t)(len | 0x80);
    out[at++] = (uint8_t)len;
    return at;
}

static enum shoal_status ask_once(struct peers *peers, const struct peer_address *owner, struct write_slot *slot,
                                  const struct call *call, bool *is_answer_out, struct shoal_error *error)
{
    Shoal__Wire__KvWriteRequest request;
    Shoal__Wire__KvMemory source;
    uint8_t prefix[VALUE_PREFIX_MAX_BYTES];
    struct iovec tail[2];
    struct peer_question question = {
        .method = KV_METHOD_WRITE, .message = &request.base, .tail = tail, .is_once = true};
    Shoal__Wire__KvWriteResponse *answer;
    struct wire_arena arena;
    enum shoal_status status;
    struct buf body;

    fill_request(peers, slot, &request, &source);
    if (!slot->has_exposure && slot->write->len_bytes) {
        tail[0] = (struct iovec){prefix, value_prefix(slot->write->len_bytes, prefix)};
        tail[1] = (struct iovec){(void *)(uintptr_t)slot->write->data, slot->write->len_bytes};
        question.tail_count = 2;
    }
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, call, &body, error);
    *is_answer_out = body.len > 0;
    if (status == SHOAL_OK) {
        wire_arena_init(&arena);
        answer = shoal__wire__kv_write_response__unpack(&arena.allocator, body.len, body.data);
        status = take_answer(owner, slot->write, answer, error);
        if (answer)
            wire_arena_free(&arena, &answer->base);
    }
    buf_release(&body);
    return status;
}

static enum shoal_status write_slot(struct peers *peers, const struct peer_address *owner, struct write_slot *slot,
                                    const struct call *call, struct shoal_error *error)
{
    bool is_answer, has_space;
    enum shoal_status status;

    if (!is_large(peers, slot->write))
        return ask_once(peers, owner, slot, call, &is_answer, error);
    if (call->progress) { /* the owner would not say how far it is */
        status = peer_push(peers, owner, slot->write, call, &slot->write->object_id_out, &has_space, error);
        if (has_space || !peer_refuses_leases(status))
            return status;
    }
    if (!peer_is_one_way(peers, owner)) {
        status = expose(peers, slot, error);
        if (status)
            return status;
        status = ask_once(peers, owner, slot, call, &is_answer, error);
        conceal(peers, slot);
        if (!peer_could_not_reach_us(status, is_answer, call))
            return status;
    }
    return peer_push(peers, owner, slot->write, call, &slot->write->object_id_out, NULL, error);
}

enum shoal_status peer_write(struct peers *peers, const struct peer_address *owner, struct peer_write *write,
                             const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    struct write_slot slot = {.write = write};
    enum shoal_status status = check(write, error);

    write->object_id_out = 0;
    if (status == SHOAL_OK)
        status = write_slot(peers, owner, &slot, &bounded, error);
    write->status = status;
    return status;
}

/* --- several values --- */

struct write_item {
    struct write_slot slot;
    Shoal__Wire__KvWriteRequest request;
    Shoal__Wire__KvMemory source;
};

struct write_batch {
    struct peers *peers;
    const struct peer_address *owner;
    const struct call *call;
    enum shoal_status first; /* that is not OK */
    struct shoal_error *error;

    /* one request */
    Shoal__Wire__KvWriteRequest *requests[PEER_BATCH_ITEMS];
    size_t count, max_bytes;   /* of the packed request */
    struct write_item items[]; /* of the largest request: PEER_BATCH_ITEMS at most */
};

static void write_done(struct write_batch *batch, struct peer_write *write, enum shoal_status status,
                       const struct shoal_error *error)
{
    write->status = status;
    if (status && batch->first == SHOAL_OK) {
        batch->first = status;
        error_copy(batch->error, error);
    }
}

/* As many as fit into one request, from the front; those that cannot be asked for are done. Returns how many are
 * neither. */
static size_t collect(struct write_batch *batch, struct peer_write *writes, size_t count)
{
    struct peers *peers = batch->peers;
    bool is_one_way = peer_is_one_way(peers, batch->owner);
    size_t memory_bytes = exposure_message_bytes(peers);
    uint64_t transfer_bytes = 0;
    size_t i;

    batch->count = batch->max_bytes = 0;
    for (i = 0; i < count && batch->count < PEER_BATCH_ITEMS; i++) {
        struct write_item *item = &batch->items[batch->count];
        struct write_slot *slot = &item->slot;
        struct peer_write *write = &writes[i];
        struct shoal_error error;
        enum shoal_status status = check(write, &error);
        size_t item_bytes;
        uint64_t transfer;

        write->object_id_out = 0;
        *slot = (struct write_slot){.write = write};
        if (status) {
            write_done(batch, write, status, &error);
            continue;
        }
        transfer = is_large(peers, write) ? write->len_bytes : 0;
        item_bytes = PEER_ITEM_OVERHEAD_BYTES + strlen(write->key) + (transfer ? memory_bytes : write->len_bytes);
        if (batch->count && (batch->max_bytes + item_bytes > PEER_BATCH_REQUEST_BYTES ||
                             (transfer && transfer > BATCH_TRANSFER_BYTES - transfer_bytes)))
            break;
        if (transfer && is_one_way) {
            status = peer_push(peers, batch->owner, write, batch->call, &write->object_id_out, NULL, &error);
            write_done(batch, write, status, &error);
            continue;
        }
        if (transfer) {
            status = expose(peers, slot, &error);
            if (status) {
                write_done(batch, write, status, &error);
                continue;
            }
        }
        batch->max_bytes += item_bytes;
        transfer_bytes =
            transfer > BATCH_TRANSFER_BYTES - transfer_bytes ? BATCH_TRANSFER_BYTES : transfer_bytes + transfer;
        fill_request(peers, slot, &item->request, &item->source);
        if (!transfer) {
            item->request.value.len = write->len_bytes;
            item->request.value.data = (uint8_t *)(uintptr_t)write->data;
        }
        batch->requests[batch->count++] = &item->request;
    }
    return i;
}

static void take_item(struct write_batch *batch, struct write_slot *slot,
                      const Shoal__Wire__KvBatchWriteResponse__Item *item)
{
    enum shoal_status status = peer_status(item->status);
    bool was_exposed = slot->has_exposure;
    struct shoal_error error;

    conceal(batch->peers, slot);
    if (status)
        error_set(&error, status, 0, "%s: '%.100s': %.300s", batch->owner->address, slot->write->key,
                  item->text[0] ? item->text : shoal_status_text(status));
    else
        status = take_answer(batch->owner, slot->write, item->answer, &error);
    if (was_exposed && peer_could_not_reach_us(status, true, batch->call))
        status =
            peer_push(batch->peers, batch->owner, slot->write, batch->call, &slot->write->object_id_out, NULL, &error);
    write_done(batch, slot->write, status, &error);
}

static enum shoal_status ask_batch(struct write_batch *batch)
{
    Shoal__Wire__KvBatchWriteRequest request = SHOAL__WIRE__KV_BATCH_WRITE_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_BATCH_WRITE, .message = &request.base, .is_once = true};
    Shoal__Wire__KvBatchWriteResponse *response = NULL;
    struct wire_arena arena;
    struct shoal_error error;
    enum shoal_status status;
    struct buf body;

    request.n_items = batch->count;
    request.items = batch->requests;
    question.max_bytes = batch->max_bytes;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(batch->peers, batch->owner, &question, batch->call, &body, &error);
    if (status == SHOAL_OK) {
        wire_arena_init(&arena);
        response = shoal__wire__kv_batch_write_response__unpack(&arena.allocator, body.len, body.data);
        if (!response || response->n_items != batch->count)
            status = peer_nonsense(batch->owner, "malformed answer to a batch of writes", &error);
    }
    buf_release(&body);
    for (size_t i = 0; i < batch->count; i++) {
        struct write_slot *slot = &batch->items[i].slot;

        if (status == SHOAL_OK) {
            take_item(batch, slot, response->items[i]);
        } else {
            conceal(batch->peers, slot);
            write_done(batch, slot->write, status, &error);
        }
    }
    if (response)
        wire_arena_free(&arena, &response->base);
    return status;
}

enum shoal_status peer_write_batch(struct peers *peers, const struct peer_address *owner, struct peer_write *writes,
                                   size_t count, const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    size_t item_count = count < PEER_BATCH_ITEMS ? count : PEER_BATCH_ITEMS;
    struct write_batch *batch = malloc(sizeof *batch + item_count * sizeof batch->items[0]);
    enum shoal_status first, status = SHOAL_OK;
    size_t at = 0;

    if (!batch) {
        for (size_t i = 0; i < count; i++)
            writes[i].status = SHOAL_NO_MEMORY;
        return error_no_memory(error);
    }
    batch->peers = peers;
    batch->owner = owner;
    batch->call = &bounded;
    batch->first = SHOAL_OK;
    batch->error = error;
    while (at < count && status == SHOAL_OK) {
        at += collect(batch, writes + at, count - at);
        if (batch->count)
            status = ask_batch(batch);
    }
    for (; at < count; at++) /* the owner is no good */
        writes[at].status = status;
    first = batch->first;
    free(batch);
    return first;
}
