/* SPDX-License-Identifier: Apache-2.0 */
/* How results get back: to a request of their own, or to their place in the answer of a batch. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/service_internal.h"

#define SCRATCH_KEEP_BYTES (1u << 20)
#define VALUE_TAG 0x2a /* of KvReadResponse: field 5, bytes */
/* One item of a batch of writes without its text, at most: tags and lengths of item, text and answer (each at most 6
 * bytes), status (6), object_id and lease_id (9 each), lease_ms and tier (6 each). With texts of struct shoal_error, as
 * many as a batch may have stay far below RPC_RESPONSE_MAX_BYTES. */
#define WRITE_ITEM_MAX_BYTES 64

/* --- messages --- */

enum shoal_status kv_check_key(const char *key, struct shoal_error *error)
{
    size_t len = strlen(key);

    if (!len)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the key is empty");
    if (len > TIER_KEY_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the key has %zu bytes, at most %d are allowed", len,
                         TIER_KEY_MAX_BYTES);
    return SHOAL_OK;
}

/* --- requests --- */

struct kv_origin kv_origin_of(struct kv_service *service, struct rpc_request *request)
{
    service->counters.requests[request->method]++;
    return (struct kv_origin){
        .request = request, .method = request->method, .deadline_ms = clock_now_ms() + request->timeout_ms};
}

const char *kv_origin_peer(const struct kv_origin *origin)
{
    const struct rpc_request *request = origin->batch ? origin->batch->request : origin->request;

    return request ? request->peer : NULL;
}

void kv_reply(struct kv_service *service, struct rpc_request *request, const ProtobufCMessage *message)
{
    kv_reply_within(service, request, message, protobuf_c_message_get_packed_size(message));
}

void kv_reply_within(struct kv_service *service, struct rpc_request *request, const ProtobufCMessage *message,
                     size_t max_bytes)
{
    size_t len;

    service->scratch.len = 0;
    if (!buf_reserve(&service->scratch, max_bytes)) {
        kv_refuse(service, request, max_bytes > service->scratch.max ? SHOAL_LIMIT : SHOAL_NO_MEMORY, NULL);
        return;
    }
    len = protobuf_c_message_pack(message, service->scratch.data);
    assert(len <= max_bytes);
    rpc_reply(request, SHOAL_OK, NULL, service->scratch.data, len);
    if (service->scratch.capacity > SCRATCH_KEEP_BYTES) {
        size_t max = service->scratch.max;

        buf_release(&service->scratch);
        buf_init(&service->scratch, max);
    }
}

/* The value stays where it is: behind the message, or in its last field. */
static void reply_value(struct rpc_request *request, Shoal__Wire__KvReadResponse *message, bool is_attached)
{
    uint8_t head[128], *at = head;
    ProtobufCBinaryData value = message->value;

    message->value = (ProtobufCBinaryData){.len = 0};
    at += shoal__wire__kv_read_response__pack(message, head); /* four numbers */
    if (!is_attached)
        *at++ = VALUE_TAG;
    for (size_t left = value.len; left && !is_attached; left >>= 7)
        *at++ = (uint8_t)((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
    message->value = value;
    rpc_reply_parts(request, head, (size_t)(at - head), value.data, value.len, is_attached);
}

void kv_refuse(struct kv_service *service, struct rpc_request *request, enum shoal_status status, const char *message)
{
    service->counters.failures[request->method]++;
    rpc_reply(request, status, message ? message : shoal_status_text(status), NULL, 0);
}

void kv_refuse_malformed(struct kv_service *service, struct rpc_request *request, const char *what)
{
    char text[96];

    service->counters.malformed++;
    snprintf(text, sizeof text, "malformed %s request", what);
    kv_refuse(service, request, SHOAL_PROTOCOL, text);
}

void kv_refuse_unpacked(struct kv_service *service, struct rpc_request *request, const struct wire_arena *arena,
                        const char *what)
{
    if (arena->is_out_of_memory)
        kv_refuse(service, request, SHOAL_NO_MEMORY, NULL);
    else
        kv_refuse_malformed(service, request, what);
}

/* --- answers --- */

void kv_answer_init_read(struct kv_answer *answer)
{
    *answer = (struct kv_answer){.status = SHOAL_OK};
    shoal__wire__kv_read_response__init(&answer->read);
    shoal__wire__kv_pin__init(&answer->pin);
    shoal__wire__kv_memory__init(&answer->memory);
}

void kv_answer_init_write(struct kv_answer *answer)
{
    *answer = (struct kv_answer){.status = SHOAL_OK, .is_write = true};
    shoal__wire__kv_write_response__init(&answer->write);
}

void kv_answer_release(struct kv_service *service, struct kv_answer *answer)
{
    service->value_bytes -= answer->reserved_bytes;
    free(answer->text);
    tier_object_unref(answer->object);
    free(answer->value);
    *answer = (struct kv_answer){.status = SHOAL_OK};
}

/* The message, with its pointers into the answer where it lies now. */
static const ProtobufCMessage *message_of(struct kv_answer *answer)
{
    if (answer->is_write)
        return &answer->write.base;
    if (answer->has_pin) {
        answer->read.pin = &answer->pin;
        answer->pin.memory = &answer->memory;
    }
    return &answer->read.base;
}

static void count_answer(struct kv_service *service, const struct kv_origin *origin, const struct kv_answer *answer)
{
    if (answer->status) {
        service->counters.failures[origin->method]++;
        return;
    }
    if (answer->is_write)
        return;
    service->counters.ways[answer->read.way & 3]++;
    service->counters.inline_out_bytes += answer->read.value.len;
}

void kv_answer_send(struct kv_service *service, struct kv_origin *origin, struct kv_answer *answer)
{
    struct rpc_request *request = origin->request;
    struct kv_batch *batch = origin->batch;

    origin->request = NULL;
    origin->batch = NULL;
    if (batch) {
        count_answer(service, origin, answer);
        batch->answers[origin->index] = *answer;
        *answer = (struct kv_answer){.status = SHOAL_OK};
        kv_batch_item_done(batch);
        return;
    }
    if (!request) { /* gone */
        service->counters.failures[origin->method]++;
    } else if (answer->status) {
        kv_refuse(service, request, answer->status, answer->text);
    } else {
        count_answer(service, origin, answer);
        if (!answer->is_write && answer->read.value.len)
            reply_value(request, &answer->read, origin->attaches);
        else
            kv_reply(service, request, message_of(answer));
    }
    kv_answer_release(service, answer);
}

void kv_answer_error(struct kv_service *service, struct kv_origin *origin, enum shoal_status status,
                     const char *message)
{
    struct kv_answer answer = {.status = status, .text = message ? strdup(message) : NULL};

    kv_answer_send(service, origin, &answer);
}

/* --- batches --- */

static void reply_read_batch(struct kv_batch *batch)
{
    Shoal__Wire__KvBatchReadResponse response = SHOAL__WIRE__KV_BATCH_READ_RESPONSE__INIT;
    Shoal__Wire__KvBatchReadResponse__Item *items = batch->items, **pointers = batch->pointers;

    for (size_t i = 0; i < batch->count; i++) {
        struct kv_answer *answer = &batch->answers[i];

        shoal__wire__kv_batch_read_response__item__init(&items[i]);
        items[i].status = answer->status;
        if (answer->text)
            items[i].text = answer->text;
        if (!answer->status || answer->read.base.descriptor) {
            message_of(answer);
            items[i].answer = &answer->read;
        }
        pointers[i] = &items[i];
    }
    response.n_items = batch->count;
    response.items = pointers;
    kv_reply(batch->service, batch->request, &response.base);
}

static void reply_write_batch(struct kv_batch *batch)
{
    Shoal__Wire__KvBatchWriteResponse response = SHOAL__WIRE__KV_BATCH_WRITE_RESPONSE__INIT;
    Shoal__Wire__KvBatchWriteResponse__Item *items = batch->items, **pointers = batch->pointers;
    size_t max_bytes = batch->count * WRITE_ITEM_MAX_BYTES;

    for (size_t i = 0; i < batch->count; i++) {
        struct kv_answer *answer = &batch->answers[i];

        shoal__wire__kv_batch_write_response__item__init(&items[i]);
        items[i].status = answer->status;
        if (answer->text) {
            items[i].text = answer->text;
            max_bytes += strlen(answer->text);
        }
        if (!answer->status)
            items[i].answer = &answer->write;
        pointers[i] = &items[i];
    }
    response.n_items = batch->count;
    response.items = pointers;
    kv_reply_within(batch->service, batch->request, &response.base, max_bytes);
}

void kv_batch_item_done(struct kv_batch *batch)
{
    if (--batch->pending)
        return;
    if (batch->request && batch->is_write)
        reply_write_batch(batch);
    else if (batch->request)
        reply_read_batch(batch);
    for (size_t i = 0; i < batch->count; i++)
        kv_answer_release(batch->service, &batch->answers[i]);
    free(batch);
}
