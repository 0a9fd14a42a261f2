/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_fake_owner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/transport_fixture.h"
#include "content.h"
#include "kv/service.h"
#include "wire/kv.pb-c.h"

typedef Shoal__Wire__KvReadRequest ReadRequest;
typedef Shoal__Wire__KvReadResponse ReadResponse;
typedef Shoal__Wire__KvWriteRequest WriteRequest;
typedef Shoal__Wire__KvWriteResponse WriteResponse;

struct item {
    struct job *job;
    enum shoal_status status;
    ReadResponse read;
    WriteResponse write;
    Shoal__Wire__KvPin pin;
    Shoal__Wire__KvMemory memory;
    struct fake_value *value;
    struct shoal_segment *segment;
    bool is_moving;
    struct engine_op op;
};

struct job {
    struct fake_owner *owner;
    struct rpc_request *request; /* NULL: the caller is gone */
    bool is_batch, is_write;
    size_t count, pending;
    struct item items[];
};

static void reply(struct rpc_request *request, const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(len + 1);

    protobuf_c_message_pack(message, packed);
    rpc_reply(request, SHOAL_OK, NULL, packed, len);
    free(packed);
}

static int32_t status_of(struct fake_owner *owner, enum shoal_status status)
{
    return owner->lie == FAKE_BAD_STATUS ? 17 : (int32_t)status;
}

static void reply_batch(struct job *job)
{
    size_t count = job->count - (job->owner->lie == FAKE_FEWER_ITEMS);
    Shoal__Wire__KvBatchReadResponse reads = SHOAL__WIRE__KV_BATCH_READ_RESPONSE__INIT;
    Shoal__Wire__KvBatchWriteResponse writes = SHOAL__WIRE__KV_BATCH_WRITE_RESPONSE__INIT;
    Shoal__Wire__KvBatchReadResponse__Item *read = calloc(job->count + 1, sizeof *read), **read_pointers;
    Shoal__Wire__KvBatchWriteResponse__Item *write = calloc(job->count + 1, sizeof *write), **write_pointers;

    read_pointers = calloc(job->count + 1, sizeof(void *));
    write_pointers = calloc(job->count + 1, sizeof(void *));
    for (size_t i = 0; i < job->count; i++) {
        shoal__wire__kv_batch_read_response__item__init(&read[i]);
        shoal__wire__kv_batch_write_response__item__init(&write[i]);
        read[i].status = write[i].status = status_of(job->owner, job->items[i].status);
        if (!job->items[i].status) {
            read[i].answer = &job->items[i].read;
            write[i].answer = &job->items[i].write;
        }
        read_pointers[i] = &read[i];
        write_pointers[i] = &write[i];
    }
    reads.n_items = writes.n_items = count;
    reads.items = read_pointers;
    writes.items = write_pointers;
    reply(job->request, job->is_write ? &writes.base : &reads.base);
    free(read);
    free(write);
    free(read_pointers);
    free(write_pointers);
}

static void job_unref(struct job *job)
{
    if (--job->pending)
        return;
    if (job->request) {
        struct item *item = &job->items[0];

        if (job->owner->lie == FAKE_GARBAGE)
            rpc_reply(job->request, SHOAL_OK, NULL, "\xff\xff\xff", 3);
        else if (job->is_batch)
            reply_batch(job);
        else if (item->status)
            rpc_reply(job->request, item->status, shoal_status_text(item->status), NULL, 0);
        else
            reply(job->request, job->is_write ? &item->write.base : &item->read.base);
    }
    job->owner->jobs--;
    free(job);
}

static void on_abort(struct rpc_request *request)
{
    struct job *job = request->arg;

    job->request = NULL;
    for (size_t i = 0; i < job->count; i++)
        if (job->items[i].is_moving)
            engine_op_cancel(job->owner->engine, &job->items[i].op);
}

static struct job *job_make(struct fake_owner *owner, struct rpc_request *request, size_t count, bool is_batch,
                            bool is_write)
{
    struct job *job = calloc(1, sizeof *job + count * sizeof job->items[0]);

    job->owner = owner;
    job->request = request;
    job->count = count;
    job->pending = 1;
    job->is_batch = is_batch;
    job->is_write = is_write;
    request->on_abort = on_abort;
    request->arg = job;
    owner->jobs++;
    owner->requests++;
    for (size_t i = 0; i < count; i++) {
        job->items[i].job = job;
        shoal__wire__kv_read_response__init(&job->items[i].read);
        shoal__wire__kv_write_response__init(&job->items[i].write);
    }
    return job;
}

static struct fake_value *find(struct fake_owner *owner, const char *key, uint64_t object_id)
{
    for (size_t i = 0; i < owner->count; i++) {
        struct fake_value *value = &owner->values[i];
        if (!value->is_removed && strcmp(value->key, key) == 0 && (!object_id || value->object_id == object_id))
            return value;
    }
    return NULL;
}

static struct fake_value *add(struct fake_owner *owner, const char *key, uint64_t len, uint64_t object_id)
{
    struct fake_value *value;

    if (owner->count == sizeof owner->values / sizeof owner->values[0] || len > owner->arena_bytes - owner->arena_used)
        return NULL;
    value = &owner->values[owner->count++];
    *value = (struct fake_value){
        .object_id = object_id ? object_id : ++owner->next_id, .len = len, .offset = owner->arena_used};
    snprintf(value->key, sizeof value->key, "%s", key);
    owner->arena_used += len;
    return value;
}

/* --- transfers --- */

static void moved(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct item *item = op->arg;

    (void)error;
    item->is_moving = false;
    item->status = status;
    if (status && item->job->is_write)
        item->value->is_removed = true;
    else
        item->value->is_held = false;
    shoal_segment_close(item->segment);
    job_unref(item->job);
}

static void move(struct item *item, enum shoal_op what, const Shoal__Wire__KvMemory *memory)
{
    struct fake_owner *owner = item->job->owner;

    if (engine_segment_create(owner->engine, memory->server_name, memory->address, memory->instance, &item->segment,
                              NULL))
        abort();
    item->op = (struct engine_op){.op = what,
                                  .segment = item->segment,
                                  .local = owner->arena + item->value->offset,
                                  .remote_addr = memory->addr,
                                  .remote_key = memory->key,
                                  .len_bytes = item->value->len,
                                  .done = moved,
                                  .arg = item};
    item->is_moving = true;
    item->job->pending++;
    owner->transfers++;
    engine_submit(owner->engine, &item->op);
}

/* --- reads --- */

static void pin(struct item *item, uint64_t offset)
{
    struct fake_owner *owner = item->job->owner;
    uint64_t len = item->value->len - offset;

    if (owner->pin_max_bytes && len > owner->pin_max_bytes)
        len = owner->pin_max_bytes;
    if (owner->lie == FAKE_WIDE_PIN)
        len = item->value->len + 1;
    shoal__wire__kv_pin__init(&item->pin);
    shoal__wire__kv_memory__init(&item->memory);
    item->pin.lease_id = ++owner->next_id;
    item->pin.lease_ms = owner->lease_ms;
    item->pin.offset = offset;
    item->pin.memory = &item->memory;
    item->memory.addr = (uint64_t)(uintptr_t)owner->arena + item->value->offset + offset;
    item->memory.len_bytes = len;
    item->memory.key = owner->arena_key;
    item->read.pin = &item->pin;
    item->read.way = 3;
    owner->pins++;
}

static void read_item(struct item *item, const ReadRequest *request)
{
    struct fake_owner *owner = item->job->owner;
    struct fake_value *value = find(owner, request->key, request->object_id);

    if (!value || value->is_held) {
        item->status = SHOAL_NOT_FOUND;
        return;
    }
    item->value = value;
    item->read.object_id = value->object_id + (owner->lie == FAKE_OTHER_OBJECT ? 1000000 : 0);
    item->read.len_bytes = value->len;
    if (owner->lie == FAKE_WRITTEN || owner->lie == FAKE_WRITTEN_TOO_MUCH) {
        item->read.way = 2;
    } else if (owner->lie == FAKE_ONLY_TELLS) {
        item->read.way = 0;
    } else if (request->wants_pin) {
        pin(item, request->offset);
    } else if (value->len <= request->inline_max && value->len <= owner->inline_limit) {
        item->read.way = 1;
        item->read.value.data = owner->arena + value->offset;
        item->read.value.len = value->len + (owner->lie == FAKE_LONG_INLINE);
        owner->inlined++;
    } else if (request->dest && value->len > request->dest->len_bytes) {
        item->status = SHOAL_LIMIT;
    } else if (request->dest && owner->cannot_reach) {
        item->status = SHOAL_UNREACHABLE;
    } else if (request->dest) {
        item->read.way = 2;
        move(item, SHOAL_OP_WRITE, request->dest);
    }
}

static void on_read(void *arg, struct rpc_request *request)
{
    ReadRequest *message = shoal__wire__kv_read_request__unpack(NULL, request->body_len, request->body);
    struct job *job = job_make(arg, request, 1, false, false);

    read_item(&job->items[0], message);
    shoal__wire__kv_read_request__free_unpacked(message, NULL);
    job_unref(job);
}

static void on_batch_read(void *arg, struct rpc_request *request)
{
    Shoal__Wire__KvBatchReadRequest *message =
        shoal__wire__kv_batch_read_request__unpack(NULL, request->body_len, request->body);
    struct job *job = job_make(arg, request, message->n_items, true, false);

    for (size_t i = 0; i < message->n_items; i++)
        read_item(&job->items[i], message->items[i]);
    shoal__wire__kv_batch_read_request__free_unpacked(message, NULL);
    job_unref(job);
}

/* --- writes --- */

static void write_item(struct item *item, const WriteRequest *request)
{
    struct fake_owner *owner = item->job->owner;

    if (find(owner, request->key, 0)) {
        item->status = SHOAL_EXISTS;
        return;
    }
    if (request->source && owner->cannot_reach) {
        item->status = SHOAL_UNREACHABLE;
        return;
    }
    if (!request->source && request->value.len != request->len_bytes) {
        item->status = SHOAL_INVALID_ARGUMENT;
        return;
    }
    item->value = add(owner, request->key, request->len_bytes, request->object_id);
    if (!item->value) {
        item->status = SHOAL_NO_SPACE;
        return;
    }
    item->write.object_id = item->value->object_id + (owner->lie == FAKE_OTHER_OBJECT ? 1000000 : 0);
    if (request->source) {
        item->value->is_held = true;
        move(item, SHOAL_OP_READ, request->source);
    } else if (request->len_bytes) {
        memcpy(owner->arena + item->value->offset, request->value.data, request->value.len);
        owner->inlined++;
    }
}

static void on_write(void *arg, struct rpc_request *request)
{
    WriteRequest *message = shoal__wire__kv_write_request__unpack(NULL, request->body_len, request->body);
    struct job *job = job_make(arg, request, 1, false, true);

    write_item(&job->items[0], message);
    shoal__wire__kv_write_request__free_unpacked(message, NULL);
    job_unref(job);
}

static void on_batch_write(void *arg, struct rpc_request *request)
{
    Shoal__Wire__KvBatchWriteRequest *message =
        shoal__wire__kv_batch_write_request__unpack(NULL, request->body_len, request->body);
    struct job *job = job_make(arg, request, message->n_items, true, true);

    for (size_t i = 0; i < message->n_items; i++)
        write_item(&job->items[i], message->items[i]);
    shoal__wire__kv_batch_write_request__free_unpacked(message, NULL);
    job_unref(job);
}

/* A lease of a held write is its object id. */
static void on_pre_write(void *arg, struct rpc_request *request)
{
    struct fake_owner *owner = arg;
    Shoal__Wire__KvPreWriteRequest *message =
        shoal__wire__kv_pre_write_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__KvPreWriteResponse response = SHOAL__WIRE__KV_PRE_WRITE_RESPONSE__INIT;
    Shoal__Wire__KvMemory memory = SHOAL__WIRE__KV_MEMORY__INIT;
    struct fake_value *value = NULL;

    if (find(owner, message->key, 0)) {
        rpc_reply(request, SHOAL_EXISTS, "exists", NULL, 0);
    } else if (!(value = add(owner, message->key, message->len_bytes, message->object_id))) {
        rpc_reply(request, SHOAL_NO_SPACE, "full", NULL, 0);
    } else {
        value->is_held = true;
        memory.addr = (uint64_t)(uintptr_t)owner->arena + value->offset;
        memory.len_bytes = value->len;
        memory.key = owner->arena_key;
        response.lease_id = value->object_id;
        response.lease_ms = owner->lease_ms;
        response.memory = &memory;
        reply(request, &response.base);
    }
    shoal__wire__kv_pre_write_request__free_unpacked(message, NULL);
}

static struct fake_value *held_value(struct fake_owner *owner, uint64_t lease_id)
{
    for (size_t i = 0; i < owner->count; i++)
        if (owner->values[i].is_held && !owner->values[i].is_removed && owner->values[i].object_id == lease_id)
            return &owner->values[i];
    return NULL;
}

static void on_commit(void *arg, struct rpc_request *request)
{
    struct fake_owner *owner = arg;
    Shoal__Wire__KvLeaseRequest *message =
        shoal__wire__kv_lease_request__unpack(NULL, request->body_len, request->body);
    WriteResponse response = SHOAL__WIRE__KV_WRITE_RESPONSE__INIT;
    struct fake_value *value = held_value(owner, message->lease_ids[0]);

    if (value) {
        owner->commits++;
        value->is_held = false;
        response.object_id = value->object_id;
        reply(request, &response.base);
    } else {
        rpc_reply(request, SHOAL_NOT_FOUND, "no such lease", NULL, 0);
    }
    shoal__wire__kv_lease_request__free_unpacked(message, NULL);
}

static void answer_leases(struct fake_owner *owner, struct rpc_request *request,
                          enum shoal_status (*fn)(struct fake_owner *owner, uint64_t lease_id))
{
    Shoal__Wire__KvLeaseRequest *message =
        shoal__wire__kv_lease_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__KvLeaseResponse response = SHOAL__WIRE__KV_LEASE_RESPONSE__INIT;
    int32_t *statuses = calloc(message->n_lease_ids + 1, sizeof *statuses);

    for (size_t i = 0; i < message->n_lease_ids; i++)
        statuses[i] = fn(owner, message->lease_ids[i]);
    response.n_statuses = message->n_lease_ids - (owner->lie == FAKE_FEWER_ITEMS);
    response.statuses = statuses;
    reply(request, &response.base);
    free(statuses);
    shoal__wire__kv_lease_request__free_unpacked(message, NULL);
}

static enum shoal_status renew_one(struct fake_owner *owner, uint64_t lease_id)
{
    (void)lease_id;
    owner->renewals++;
    return owner->forgets ? SHOAL_NOT_FOUND : SHOAL_OK;
}

static enum shoal_status unpin_one(struct fake_owner *owner, uint64_t lease_id)
{
    (void)lease_id;
    owner->unpins++;
    return SHOAL_OK;
}

static enum shoal_status revoke_one(struct fake_owner *owner, uint64_t lease_id)
{
    struct fake_value *value = held_value(owner, lease_id);

    owner->revokes++;
    if (!value)
        return SHOAL_NOT_FOUND;
    value->is_removed = true;
    return SHOAL_OK;
}

static void on_renew(void *arg, struct rpc_request *request)
{
    answer_leases(arg, request, renew_one);
}

static void on_unpin(void *arg, struct rpc_request *request)
{
    answer_leases(arg, request, unpin_one);
}

static void on_revoke(void *arg, struct rpc_request *request)
{
    answer_leases(arg, request, revoke_one);
}

static void on_delete(void *arg, struct rpc_request *request)
{
    struct fake_owner *owner = arg;
    Shoal__Wire__KvDeleteRequest *message =
        shoal__wire__kv_delete_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__KvDeleteResponse response = SHOAL__WIRE__KV_DELETE_RESPONSE__INIT;
    int32_t *statuses = calloc(message->n_items + 1, sizeof *statuses);

    owner->requests++;
    for (size_t i = 0; i < message->n_items; i++) {
        struct fake_value *value = find(owner, message->items[i]->key, message->items[i]->object_id);
        statuses[i] = value ? SHOAL_OK : SHOAL_NOT_FOUND;
        if (value)
            value->is_removed = true;
    }
    response.n_statuses = message->n_items;
    response.statuses = statuses;
    reply(request, &response.base);
    free(statuses);
    shoal__wire__kv_delete_request__free_unpacked(message, NULL);
}

/* --- life --- */

void fake_owner_start(struct fake_owner *owner, uint64_t arena_bytes, uint64_t upload_limit_bytes_per_s)
{
    static const struct {
        uint16_t method;
        rpc_handler_fn fn;
    } handlers[] = {{KV_METHOD_READ, on_read},
                    {KV_METHOD_PIN_KEY, on_read},
                    {KV_METHOD_BATCH_READ, on_batch_read},
                    {KV_METHOD_WRITE, on_write},
                    {KV_METHOD_BATCH_WRITE, on_batch_write},
                    {KV_METHOD_PRE_WRITE, on_pre_write},
                    {KV_METHOD_WRITE_COMMIT, on_commit},
                    {KV_METHOD_WRITE_REVOKE, on_revoke},
                    {KV_METHOD_UNPIN_KEY, on_unpin},
                    {KV_METHOD_RENEW, on_renew},
                    {KV_METHOD_DELETE, on_delete}};
    struct shoal_engine_config config = fixture_config();
    struct shoal_error error;

    memset(owner, 0, sizeof *owner);
    owner->lease_ms = PATIENCE_MS;
    owner->inline_limit = 1 << 20;
    config.upload_limit_bytes_per_s = upload_limit_bytes_per_s;
    owner->engine = engine_make(&config);
    owner->arena_bytes = arena_bytes;
    owner->arena = memory_make(arena_bytes);
    assert_ok(shoal_engine_register_memory(owner->engine, owner->arena, arena_bytes, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, &owner->arena_key,
                                           &error),
              &error);
    assert_ok(rpc_create(engine_loop(owner->engine), engine_endpoint(owner->engine), &owner->rpc, &error), &error);
    for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
        rpc_set_handler(owner->rpc, handlers[i].method, handlers[i].fn, owner);
}

void fake_owner_stop(struct fake_owner *owner)
{
    struct shoal_error error;

    rpc_destroy(owner->rpc);
    wait_until(owner->jobs == 0);
    assert_ok(shoal_engine_unregister_memory(owner->engine, owner->arena, owner->arena_bytes, &error), &error);
    shoal_engine_destroy(owner->engine);
    memory_drop(owner->arena, owner->arena_bytes);
}

struct peer_address fake_owner_address(const struct fake_owner *owner)
{
    return (struct peer_address){.server_name = shoal_engine_server_name(owner->engine),
                                 .address = engine_address(owner->engine),
                                 .instance = engine_instance(owner->engine)};
}

struct fake_value *fake_owner_add(struct fake_owner *owner, const char *key, uint64_t len, uint64_t seed)
{
    struct fake_value *value = add(owner, key, len, 0);

    assert_non_null(value);
    content_fill(owner->arena + value->offset, len, seed, 0);
    return value;
}

int64_t fake_owner_difference(const struct fake_owner *owner, const char *key, uint64_t len, uint64_t seed)
{
    const struct fake_value *value = find((struct fake_owner *)(uintptr_t)owner, key, 0);

    if (!value || value->is_held || value->len != len)
        return 0;
    return content_find_difference(owner->arena + value->offset, len, seed, 0);
}
