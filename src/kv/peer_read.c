/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: small values come in the answer, the owner WRITEs larger ones into memory of ours. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/peer_internal.h"
#include "wire/rpc_frame.h"

#define BATCH_TRANSFER_BYTES (UINT64_C(256) << 20) /* by one request; a larger value goes alone */

/* One read until it is answered. */
struct read_slot {
    struct peer_read *read;
    uint64_t object_id; /* asked for: the caller's, or what was told */
    uint8_t *memory;    /* of read, or allocated */
    uint64_t capacity_bytes;
    bool is_allocated; /* memory is ours until the read succeeds */
    bool has_exposure;
    struct exposure exposure;
    bool was_told;   /* its length only */
    bool is_pending; /* in a batch */
};

static void slot_init(struct read_slot *slot, struct peer_read *read)
{
    *slot = (struct read_slot){.read = read,
                               .object_id = read->object_id,
                               .memory = read->memory,
                               .capacity_bytes = read->memory ? read->capacity_bytes : 0,
                               .is_pending = true};
    read->len_bytes = 0;
    read->object_id_out = 0;
}

/* Gives the value to the caller, or frees what there is of it. */
static enum shoal_status slot_finish(struct read_slot *slot, enum shoal_status status)
{
    if (status == SHOAL_OK)
        slot->read->memory = slot->memory;
    else if (slot->is_allocated)
        free(slot->memory);
    slot->memory = NULL;
    slot->is_allocated = slot->is_pending = false;
    slot->read->status = status;
    return status;
}

static enum shoal_status too_small(const struct peer_address *owner, const struct read_slot *slot,
                                   struct shoal_error *error)
{
    return error_set(error, SHOAL_LIMIT, 0, "%s: '%.100s' has %llu bytes, there is room for %llu", owner->address,
                     slot->read->key, (unsigned long long)slot->read->len_bytes,
                     (unsigned long long)slot->capacity_bytes);
}

static enum shoal_status slot_allocate(const struct peer_address *owner, struct read_slot *slot,
                                       struct shoal_error *error)
{
    uint64_t len = slot->read->len_bytes;

    slot->memory = len < SIZE_MAX ? malloc(len ? len : 1) : NULL;
    if (!slot->memory)
        return error_set(error, SHOAL_NO_MEMORY, 0, "%s: no memory for the %llu bytes of '%.100s'", owner->address,
                         (unsigned long long)len, slot->read->key);
    slot->capacity_bytes = len;
    slot->is_allocated = true;
    return SHOAL_OK;
}

/* The value came as the answer's attachment: it is in its place, or was too long for it. */
static enum shoal_status take_attached(const struct peer_address *owner, struct read_slot *slot,
                                       const struct rpc_sink *sink, struct shoal_error *error)
{
    if (sink->len_bytes != slot->read->len_bytes)
        return peer_nonsense(owner, "an inline value of another length", error);
    if (sink->is_lost)
        return too_small(owner, slot, error);
    if (!slot->memory) {
        slot->memory = sink->memory;
        slot->capacity_bytes = sink->len_bytes;
        slot->is_allocated = true;
    }
    return SHOAL_OK;
}

static enum shoal_status take_inline(const struct peer_address *owner, struct read_slot *slot,
                                     const ProtobufCBinaryData *value, const struct rpc_sink *sink,
                                     struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;

    if (sink && sink->len_bytes)
        return take_attached(owner, slot, sink, error);

    if (value->len != slot->read->len_bytes)
        return peer_nonsense(owner, "an inline value of another length", error);
    if (!slot->memory)
        status = slot_allocate(owner, slot, error);
    else if (value->len > slot->capacity_bytes)
        status = too_small(owner, slot, error);
    if (status == SHOAL_OK && value->len)
        memcpy(slot->memory, value->data, value->len);
    return status;
}

/* is_told_out: the answer has the length only; then OK, and object_id is that of the object. */
static enum shoal_status take_answer(const struct peer_address *owner, struct read_slot *slot,
                                     const Shoal__Wire__KvReadResponse *answer, const struct rpc_sink *sink,
                                     bool *is_told_out, struct shoal_error *error)
{
    *is_told_out = false;
    if (!answer->object_id || (slot->object_id && answer->object_id != slot->object_id))
        return peer_nonsense(owner, "an answer about another object", error);
    slot->read->len_bytes = answer->len_bytes;
    slot->read->object_id_out = answer->object_id;
    switch (answer->way) {
    case PEER_WAY_INLINE:
        return take_inline(owner, slot, &answer->value, sink, error);
    case PEER_WAY_WRITTEN:
        if (!slot->has_exposure || answer->len_bytes > slot->capacity_bytes)
            return peer_nonsense(owner, "an answer that the request did not ask for", error);
        return SHOAL_OK;
    case PEER_WAY_TOLD:
        *is_told_out = true;
        slot->object_id = answer->object_id;
        if (slot->memory && answer->len_bytes > slot->capacity_bytes)
            return too_small(owner, slot, error);
        return SHOAL_OK;
    default:
        return peer_nonsense(owner, "an answer that the request did not ask for", error);
    }
}

static void fill_request(const struct peers *peers, const struct read_slot *slot, uint32_t inline_max,
                         Shoal__Wire__KvReadRequest *request, Shoal__Wire__KvMemory *dest)
{
    shoal__wire__kv_read_request__init(request);
    request->key = (char *)(uintptr_t)slot->read->key;
    request->object_id = slot->object_id;
    request->inline_max = inline_max;
    if (slot->has_exposure) {
        exposure_describe(peers, &slot->exposure, dest);
        request->dest = dest;
    }
}

static enum shoal_status expose(struct peers *peers, struct read_slot *slot, struct shoal_error *error)
{
    enum shoal_status status =
        exposure_open(peers, slot->memory, slot->capacity_bytes, SHOAL_ACCESS_REMOTE_WRITE, &slot->exposure, error);

    slot->has_exposure = status == SHOAL_OK;
    return status;
}

/* written_bytes: by the owner. */
static void conceal(struct peers *peers, struct read_slot *slot, uint64_t written_bytes)
{
    if (slot->has_exposure)
        exposure_close(peers, &slot->exposure, written_bytes);
    slot->has_exposure = false;
}

/* --- one value --- */

/* is_answer_out: an error is the owner's own. */
static enum shoal_status ask_once(struct peers *peers, const struct peer_address *owner, struct read_slot *slot,
                                  uint32_t inline_max, const struct call *call, bool *is_told_out, bool *is_answer_out,
                                  struct shoal_error *error)
{
    Shoal__Wire__KvReadRequest request;
    Shoal__Wire__KvMemory dest;
    struct rpc_sink sink = {.memory = slot->memory, .room_bytes = slot->capacity_bytes};
    struct peer_question question = {.method = KV_METHOD_READ, .message = &request.base, .sink = &sink};
    Shoal__Wire__KvReadResponse *answer;
    struct wire_arena arena;
    enum shoal_status status;
    struct buf body;
    uint64_t written = 0;

    *is_told_out = false;
    fill_request(peers, slot, inline_max, &request, &dest);
    request.attaches = true;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, call, &body, error);
    *is_answer_out = body.len > 0;
    if (status == SHOAL_OK) {
        wire_arena_init(&arena);
        answer = shoal__wire__kv_read_response__unpack(&arena.allocator, body.len, body.data);
        status = answer ? take_answer(owner, slot, answer, &sink, is_told_out, error)
                        : peer_nonsense(owner, "malformed answer to a read", error);
        if (answer && status == SHOAL_OK && answer->way == PEER_WAY_WRITTEN)
            written = answer->len_bytes;
        if (answer)
            wire_arena_free(&arena, &answer->base);
    }
    if (sink.memory != slot->memory)
        free(sink.memory); /* an attachment that the answer does not speak of */
    conceal(peers, slot, written);
    buf_release(&body);
    return status;
}

/* inline_max_bytes: of this question. */
static bool is_large(const struct read_slot *slot, uint32_t inline_max_bytes)
{
    return slot->memory && slot->capacity_bytes && (slot->was_told || slot->capacity_bytes > inline_max_bytes);
}

/* What was only told, or written to no avail. */
static enum shoal_status read_told(struct peers *peers, const struct peer_address *owner, struct read_slot *slot,
                                   const struct call *call, struct shoal_error *error)
{
    bool is_told, is_answer;
    enum shoal_status status = SHOAL_OK;

    if (!slot->memory)
        status = slot_allocate(owner, slot, error);
    if (status || !slot->read->len_bytes)
        return status;
    if (call->progress) { /* the owner would not say how far it is */
        status =
            peer_pull(peers, owner, slot->read->key, slot->object_id, slot->memory, slot->read->len_bytes, call, error);
        if (!peer_refuses_leases(status))
            return status;
    }
    if (!peer_is_one_way(peers, owner)) {
        status = expose(peers, slot, error);
        if (status)
            return status;
        status = ask_once(peers, owner, slot, 0, call, &is_told, &is_answer, error);
        if (is_told)
            return peer_nonsense(owner, "does not write to memory that it was given", error);
        if (!peer_could_not_reach_us(status, is_answer, call))
            return status;
    }
    return peer_pull(peers, owner, slot->read->key, slot->object_id, slot->memory, slot->read->len_bytes, call, error);
}

/* The owner said LIMIT: how long is it? */
static enum shoal_status read_length(struct peers *peers, const struct peer_address *owner, struct read_slot *slot,
                                     const struct call *call, struct shoal_error *error)
{
    bool is_told, is_answer;
    struct shoal_error ignored;
    enum shoal_status status = ask_once(peers, owner, slot, 0, call, &is_told, &is_answer, &ignored);

    if (status == SHOAL_LIMIT && slot->read->len_bytes > slot->capacity_bytes)
        error_copy(error, &ignored);
    return SHOAL_LIMIT;
}

static enum shoal_status read_slot(struct peers *peers, const struct peer_address *owner, struct read_slot *slot,
                                   const struct call *call, struct shoal_error *error)
{
    bool is_told, is_answer,
        is_exposed = is_large(slot, peers->read_inline_max_bytes) && !call->progress && !peer_is_one_way(peers, owner);
    enum shoal_status status = SHOAL_OK;

    if (is_exposed)
        status = expose(peers, slot, error);
    if (status)
        return status;
    status = ask_once(peers, owner, slot, peers->read_inline_max_bytes, call, &is_told, &is_answer, error);
    if (status == SHOAL_LIMIT && is_answer && is_exposed)
        return read_length(peers, owner, slot, call, error);
    if (is_exposed && peer_could_not_reach_us(status, is_answer, call)) {
        status = ask_once(peers, owner, slot, peers->read_inline_max_bytes, call, &is_told, &is_answer, error);
        if (status == SHOAL_OK && is_told)
            status = peer_pull(peers, owner, slot->read->key, slot->object_id, slot->memory, slot->read->len_bytes,
                               call, error);
        return status;
    }
    return status == SHOAL_OK && is_told ? read_told(peers, owner, slot, call, error) : status;
}

enum shoal_status peer_read(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                            const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    struct read_slot slot;
    enum shoal_status status = peer_check_key(read->key, error);

    slot_init(&slot, read);
    if (status == SHOAL_OK)
        status = read_slot(peers, owner, &slot, &bounded, error);
    return slot_finish(&slot, status);
}

/* --- several values --- */

struct read_item {
    struct read_slot slot;
    Shoal__Wire__KvReadRequest request;
    Shoal__Wire__KvMemory dest;
};

struct read_batch {
    struct peers *peers;
    const struct peer_address *owner;
    const struct call *call;
    enum shoal_status first; /* that is not OK */
    struct shoal_error *error;

    /* one request */
    Shoal__Wire__KvReadRequest *requests[PEER_BATCH_ITEMS];
    struct read_slot *asked[PEER_BATCH_ITEMS];
    size_t asked_count, max_bytes; /* of the packed request */

    size_t count;
    struct read_item items[]; /* PEER_BATCH_ITEMS at most */
};

static void slot_done(struct read_batch *batch, struct read_slot *slot, enum shoal_status status,
                      const struct shoal_error *error)
{
    slot_finish(slot, status);
    if (status && batch->first == SHOAL_OK) {
        batch->first = status;
        error_copy(batch->error, error);
    }
}

static uint32_t batch_inline_max(const struct peers *peers)
{
    return peers->read_inline_max_bytes < PEER_BATCH_INLINE_BYTES ? peers->read_inline_max_bytes
                                                                  : PEER_BATCH_INLINE_BYTES;
}

static uint64_t slot_inline_bytes(const struct peers *peers, const struct read_slot *slot)
{
    return slot->memory && slot->capacity_bytes < batch_inline_max(peers) ? slot->capacity_bytes
                                                                          : batch_inline_max(peers);
}

/* As many as fit into a request and its answer. */
static void collect(struct read_batch *batch)
{
    struct peers *peers = batch->peers;
    bool is_one_way = peer_is_one_way(peers, batch->owner);
    size_t memory_bytes = exposure_message_bytes(peers);
    uint64_t inline_bytes = 0, transfer_bytes = 0;

    batch->asked_count = batch->max_bytes = 0;
    for (size_t i = 0; i < batch->count; i++) {
        struct read_item *item = &batch->items[i];
        struct read_slot *slot = &item->slot;
        size_t n = batch->asked_count;
        bool exposes = is_large(slot, batch_inline_max(peers)) && !is_one_way;
        size_t item_bytes = PEER_ITEM_OVERHEAD_BYTES + strlen(slot->read->key) + (exposes ? memory_bytes : 0);
        uint64_t transfer = exposes ? slot->capacity_bytes : 0;
        struct shoal_error error;
        enum shoal_status status;

        if (!slot->is_pending)
            continue;
        if (n && (batch->max_bytes + item_bytes > PEER_BATCH_REQUEST_BYTES ||
                  inline_bytes + slot_inline_bytes(peers, slot) > PEER_BATCH_ANSWER_BYTES ||
                  (transfer && transfer > BATCH_TRANSFER_BYTES - transfer_bytes)))
            return;
        if (exposes) {
            status = expose(peers, slot, &error);
            if (status) {
                slot_done(batch, slot, status, &error);
                continue;
            }
        }
        batch->max_bytes += item_bytes;
        inline_bytes += slot_inline_bytes(peers, slot);
        transfer_bytes =
            transfer > BATCH_TRANSFER_BYTES - transfer_bytes ? BATCH_TRANSFER_BYTES : transfer_bytes + transfer;
        fill_request(peers, slot, batch_inline_max(peers), &item->request, &item->dest);
        batch->requests[n] = &item->request;
        batch->asked[n] = slot;
        batch->asked_count++;
    }
}

/* What one item of the answer means. Slots that stay pending are asked for again, or one by one. */
static void take_item(struct read_batch *batch, struct read_slot *slot,
                      const Shoal__Wire__KvBatchReadResponse__Item *item)
{
    enum shoal_status status = peer_status(item->status);
    struct shoal_error error;
    bool is_told = false, was_exposed = slot->has_exposure;
    uint64_t written = 0;

    if (status)
        error_set(&error, status, 0, "%s: '%.100s': %.300s", batch->owner->address, slot->read->key,
                  item->text[0] ? item->text : shoal_status_text(status));
    else if (!item->answer)
        status = peer_nonsense(batch->owner, "an item without answer", &error);
    else
        status = take_answer(batch->owner, slot, item->answer, NULL, &is_told, &error);
    if (status == SHOAL_OK && item->answer->way == PEER_WAY_WRITTEN)
        written = item->answer->len_bytes;
    conceal(batch->peers, slot, written);
    if (status == SHOAL_LIMIT && was_exposed && !slot->read->len_bytes)
        status = read_length(batch->peers, batch->owner, slot, batch->call, &error);
    if (was_exposed && peer_could_not_reach_us(status, true, batch->call)) {
        status = read_slot(batch->peers, batch->owner, slot, batch->call, &error);
        is_told = false;
    }
    if (status == SHOAL_OK && is_told && !slot->memory)
        status = slot_allocate(batch->owner, slot, &error);
    if (status == SHOAL_OK && is_told) {
        bool must_pull =
            peer_is_one_way(batch->peers, batch->owner) && slot->read->len_bytes > batch_inline_max(batch->peers);
        bool is_first = !slot->was_told && !was_exposed && !must_pull;

        /* Did not fit into the answer, or there was no memory yet: the next round. */
        slot->was_told = true;
        if (is_first)
            return;
        status = read_told(batch->peers, batch->owner, slot, batch->call, &error);
    }
    slot_done(batch, slot, status, &error);
}

/* One request. Not OK: the owner is no good, and nothing more is to be asked. */
static enum shoal_status ask_batch(struct read_batch *batch)
{
    Shoal__Wire__KvBatchReadRequest request = SHOAL__WIRE__KV_BATCH_READ_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_BATCH_READ, .message = &request.base};
    Shoal__Wire__KvBatchReadResponse *response = NULL;
    struct wire_arena arena;
    struct shoal_error error;
    enum shoal_status status;
    struct buf body;

    request.n_items = batch->asked_count;
    request.items = batch->requests;
    question.max_bytes = batch->max_bytes;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(batch->peers, batch->owner, &question, batch->call, &body, &error);
    if (status == SHOAL_OK) {
        wire_arena_init(&arena);
        response = shoal__wire__kv_batch_read_response__unpack(&arena.allocator, body.len, body.data);
        if (!response || response->n_items != batch->asked_count)
            status = peer_nonsense(batch->owner, "malformed answer to a batch of reads", &error);
    }
    buf_release(&body);
    for (size_t i = 0; i < batch->asked_count; i++) {
        if (status == SHOAL_OK) {
            take_item(batch, batch->asked[i], response->items[i]);
        } else {
            conceal(batch->peers, batch->asked[i], 0);
            slot_done(batch, batch->asked[i], status, &error);
        }
    }
    if (response)
        wire_arena_free(&arena, &response->base);
    if (status) {
        for (size_t i = 0; i < batch->count; i++)
            if (batch->items[i].slot.is_pending)
                slot_done(batch, &batch->items[i].slot, status, &error);
    }
    return status;
}

static bool has_pending(const struct read_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->items[i].slot.is_pending)
            return true;
    return false;
}

/* Each round asks for the first pending slot at least, and no slot is asked for more than twice. */
static enum shoal_status run_batch(struct read_batch *batch)
{
    enum shoal_status status = SHOAL_OK;

    while (status == SHOAL_OK && has_pending(batch)) {
        collect(batch);
        if (batch->asked_count)
            status = ask_batch(batch);
    }
    return status;
}

enum shoal_status peer_read_batch(struct peers *peers, const struct peer_address *owner, struct peer_read *reads,
                                  size_t count, const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    size_t item_count = count < PEER_BATCH_ITEMS ? count : PEER_BATCH_ITEMS;
    struct read_batch *batch = malloc(sizeof *batch + item_count * sizeof batch->items[0]);
    enum shoal_status first, status = SHOAL_OK;
    size_t at = 0;

    if (!batch) {
        for (size_t i = 0; i < count; i++)
            reads[i].status = SHOAL_NO_MEMORY;
        return error_no_memory(error);
    }
    batch->peers = peers;
    batch->owner = owner;
    batch->call = &bounded;
    batch->first = SHOAL_OK;
    batch->error = error;
    while (at < count) {
        batch->count = 0;
        for (; at < count && batch->count < PEER_BATCH_ITEMS; at++) {
            struct read_slot *slot = &batch->items[batch->count++].slot;
            struct shoal_error invalid;

            slot_init(slot, &reads[at]);
            if (peer_check_key(reads[at].key, &invalid))
                slot_done(batch, slot, SHOAL_INVALID_ARGUMENT, &invalid);
        }
        status = run_batch(batch);
        if (status)
            break;
    }
    for (; at < count; at++)
        reads[at].status = status;
    first = batch->first;
    free(batch);
    return first;
}
