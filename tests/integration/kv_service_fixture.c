/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_service_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "content.h"
#include "kv/data_manager.h"
#include "tier/backend.h"
#include "tier/tier_ops.h"
#include "tmpdir.h"

/* --- a kind of tier without addresses, as STORAGE, whose disk does what the test wants --- */

static const struct tier_ops slow_ops;

struct slow_tier {
    struct tier tier;
};

struct slow_space {
    struct tier_space space;
    uint8_t *bytes;
};

static atomic_bool slow_is_failing;
static struct {
    pthread_mutex_t mutex; /* guards is_held */
    pthread_cond_t changed;
    bool is_held;
} slow_disk = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
static atomic_uint slow_waiting;

void owner_fail_disk(bool is_failing)
{
    slow_is_failing = is_failing;
}

void owner_hold_disk(bool is_held)
{
    pthread_mutex_lock(&slow_disk.mutex);
    slow_disk.is_held = is_held;
    pthread_cond_broadcast(&slow_disk.changed);
    pthread_mutex_unlock(&slow_disk.mutex);
}

unsigned owner_disk_waiting(void)
{
    return slow_waiting;
}

static enum shoal_status slow_disk_turn(struct shoal_error *error)
{
    slow_waiting++;
    pthread_mutex_lock(&slow_disk.mutex);
    while (slow_disk.is_held)
        pthread_cond_wait(&slow_disk.changed, &slow_disk.mutex);
    pthread_mutex_unlock(&slow_disk.mutex);
    slow_waiting--;
    return slow_is_failing ? error_set(error, SHOAL_IO, 0, "the disk is broken") : SHOAL_OK;
}

static enum shoal_status slow_create(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                     struct tier **tier_out, struct shoal_error *error)
{
    struct slow_tier *slow = calloc(1, sizeof *slow);

    (void)index;
    (void)engine;
    if (!slow)
        return error_no_memory(error);
    slow->tier.ops = &slow_ops;
    slow->tier.capacity_bytes = slow->tier.max_object_bytes = config->capacity_bytes;
    *tier_out = &slow->tier;
    return SHOAL_OK;
}

static void slow_destroy(struct tier *tier)
{
    assert_int_equal(tier->used_bytes, 0);
    free(tier);
}

static enum shoal_status slow_recover(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error)
{
    (void)tier;
    (void)fn;
    (void)arg;
    (void)error;
    return SHOAL_OK;
}

static enum shoal_status slow_allocate(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                       struct shoal_error *error)
{
    struct slow_space *space;

    if (__atomic_add_fetch(&tier->used_bytes, len_bytes, __ATOMIC_RELAXED) > tier->capacity_bytes) {
        __atomic_sub_fetch(&tier->used_bytes, len_bytes, __ATOMIC_RELAXED);
        return SHOAL_NO_SPACE;
    }
    (void)error;
    space = calloc(1, sizeof *space);
    assert_non_null(space);
    space->space.len_bytes = len_bytes;
    space->bytes = malloc(len_bytes + 1);
    assert_non_null(space->bytes);
    *space_out = &space->space;
    return SHOAL_OK;
}

static uint8_t *slow_bytes(struct tier_space *space)
{
    return ((struct slow_space *)(void *)space)->bytes;
}

static void slow_release(struct tier *tier, struct tier_space *space)
{
    __atomic_sub_fetch(&tier->used_bytes, space->len_bytes, __ATOMIC_RELAXED);
    free(slow_bytes(space));
    free(space);
}

static void *slow_data(const struct tier *tier, const struct tier_space *space)
{
    (void)tier;
    (void)space;
    return NULL;
}

static enum shoal_status slow_write(struct tier *tier, struct tier_space *space, uint64_t offset_bytes,
                                    const void *data, size_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = slow_disk_turn(error);

    (void)tier;
    if (!status)
        memcpy(slow_bytes(space) + offset_bytes, data, len_bytes);
    return status;
}

static enum shoal_status slow_seal(struct tier *tier, struct tier_space *space, struct shoal_error *error)
{
    (void)tier;
    (void)space;
    (void)error;
    return SHOAL_OK;
}

static enum shoal_status slow_read(struct tier *tier, struct tier_space *space, uint64_t offset_bytes, void *out,
                                   size_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = slow_disk_turn(error);

    (void)tier;
    if (!status)
        memcpy(out, slow_bytes(space) + offset_bytes, len_bytes);
    return status;
}

static enum shoal_status slow_persist(struct tier *tier, struct tier_space *space, const char *key, uint64_t object_id,
                                      struct shoal_error *error)
{
    (void)tier;
    (void)space;
    (void)key;
    (void)object_id;
    (void)error;
    return SHOAL_OK;
}

static enum shoal_status slow_forget(struct tier *tier, struct tier_space *space, bool is_durable,
                                     struct shoal_error *error)
{
    (void)tier;
    (void)space;
    (void)is_durable;
    (void)error;
    return SHOAL_OK;
}

static bool slow_maintain(struct tier *tier)
{
    (void)tier;
    return false;
}

static const struct tier_ops slow_ops = {.name = "SLOW",
                                         .create = slow_create,
                                         .destroy = slow_destroy,
                                         .recover = slow_recover,
                                         .allocate = slow_allocate,
                                         .release = slow_release,
                                         .data = slow_data,
                                         .write = slow_write,
                                         .seal = slow_seal,
                                         .read = slow_read,
                                         .persist = slow_persist,
                                         .forget = slow_forget,
                                         .maintain = slow_maintain};

static const struct tier_ops *slow_ops_of(enum tier_type type)
{
    return type == TIER_DRAM ? &tier_ops_dram : &slow_ops;
}

/* --- the data manager's stand-in --- */

struct data_manager {
    struct tier_backend *backend;
    struct executor *executor;
    struct mutex mutex; /* RANK_STORE: guards the rest */
    struct cond changed;
    enum shoal_status outcome;
    bool is_held;
    unsigned calls;
};

struct finishing {
    struct executor_task task;
    struct data_manager *manager;
    struct tier_allocation *allocation;
    uint64_t object_id;
    data_manager_done_fn done;
    void *arg;
};

static void finish(void *arg, bool is_canceled)
{
    struct finishing *finishing = arg;
    struct data_manager *manager = finishing->manager;
    struct tier_object *object = NULL;
    struct shoal_error error;
    enum shoal_status status, outcome;
    uint64_t object_id = 0;
    unsigned tier = 0;

    mutex_lock(&manager->mutex);
    while (manager->is_held)
        cond_wait(&manager->changed, &manager->mutex);
    outcome = is_canceled ? SHOAL_CANCELED : manager->outcome;
    mutex_unlock(&manager->mutex);
    status = tier_commit(finishing->allocation, finishing->object_id, &object, &error);
    if (!status && outcome) {
        tier_abandon(object);
        status = error_set(&error, outcome, 0, "announced in vain");
    } else if (!status) {
        status = tier_publish(object, &error);
        if (!status) {
            object_id = tier_object_id(object);
            tier = tier_object_tier(object);
            tier_object_unref(object);
        }
    }
    finishing->done(finishing->arg, status, object_id, tier, status ? &error : NULL);
    free(finishing);
}

enum shoal_status data_manager_finish(struct data_manager *manager, struct tier_allocation *allocation,
                                      uint64_t object_id, int64_t timeout_ms, data_manager_done_fn done, void *arg,
                                      struct shoal_error *error)
{
    struct finishing *finishing = calloc(1, sizeof *finishing);

    (void)error;
    assert_true(timeout_ms > 0);
    assert_non_null(finishing);
    *finishing = (struct finishing){
        .manager = manager, .allocation = allocation, .object_id = object_id, .done = done, .arg = arg};
    mutex_lock(&manager->mutex);
    manager->calls++;
    mutex_unlock(&manager->mutex);
    return executor_submit(manager->executor, &finishing->task, finish, finishing);
}

enum shoal_status data_manager_delete(struct data_manager *manager, const char *key, uint64_t object_id,
                                      struct shoal_error *error)
{
    (void)error;
    return tier_remove(manager->backend, key, object_id);
}

struct tier_backend *data_manager_backend(struct data_manager *manager)
{
    return manager->backend;
}

void owner_set_outcome(struct owner *owner, enum shoal_status status)
{
    mutex_lock(&owner->manager->mutex);
    owner->manager->outcome = status;
    mutex_unlock(&owner->manager->mutex);
}

void owner_hold_finishing(struct owner *owner, bool is_held)
{
    mutex_lock(&owner->manager->mutex);
    owner->manager->is_held = is_held;
    cond_broadcast(&owner->manager->changed);
    mutex_unlock(&owner->manager->mutex);
}

unsigned owner_finishing(const struct owner *owner)
{
    unsigned calls;

    mutex_lock(&owner->manager->mutex);
    calls = owner->manager->calls;
    mutex_unlock(&owner->manager->mutex);
    return calls;
}

/* --- owner --- */

struct owner owner_open(const struct owner_options *options)
{
    struct tier_config tiers[2];
    struct tier_backend_config backend = {.tiers = tiers, .staging_buffers = options->staging_buffers};
    struct backend_options tier_options = {.ops_of = options->is_on_disk ? NULL : slow_ops_of};
    struct kv_service_config service = {.lease_ms = options->lease_ms};
    struct owner owner = {0};
    struct shoal_error error;

    owner.engine = engine_make(options->engine);
    if (options->transport_args)
        assert_ok(shoal_engine_install_transport(owner.engine, "fault", options->transport_args, &error), &error);
    if (options->dram_bytes)
        tiers[backend.tier_count++] = (struct tier_config){
            .type = TIER_DRAM, .capacity_bytes = options->dram_bytes, .priority = 100, .numa_node = -1};
    if (options->is_on_disk)
        owner.directory = tmpdir_make();
    if (options->storage_bytes)
        tiers[backend.tier_count++] = (struct tier_config){.type = TIER_STORAGE,
                                                           .capacity_bytes = options->storage_bytes,
                                                           .priority = 10,
                                                           .storage_filepath = owner.directory,
                                                           .numa_node = -1};
    backend.engine = owner.engine;
    assert_ok(backend_create(&backend, &tier_options, &owner.backend, &error), &error);
    assert_ok(rpc_create(engine_loop(owner.engine), engine_endpoint(owner.engine), &owner.rpc, &error), &error);
    owner.manager = calloc(1, sizeof *owner.manager);
    assert_non_null(owner.manager);
    owner.manager->backend = owner.backend;
    mutex_init(&owner.manager->mutex, RANK_STORE);
    cond_init(&owner.manager->changed);
    assert_ok(executor_create("finish", 2, 100000, &owner.manager->executor, &error), &error);
    service.engine = owner.engine;
    service.rpc = owner.rpc;
    service.manager = owner.manager;
    assert_ok(kv_service_create(&service, &owner.service, &error), &error);
    return owner;
}

void owner_close(struct owner *owner)
{
    kv_service_destroy(owner->service);
    executor_destroy(owner->manager->executor);
    rpc_destroy(owner->rpc);
    tier_backend_destroy(owner->backend); /* asserts that nothing is referenced */
    cond_release(&owner->manager->changed);
    mutex_release(&owner->manager->mutex);
    free(owner->manager);
    shoal_engine_destroy(owner->engine);
    tmpdir_remove(owner->directory);
}

uint64_t owner_used_bytes(const struct owner *owner)
{
    uint64_t used = 0;

    for (unsigned i = 0; i < tier_count(owner->backend); i++) {
        struct tier_usage usage;
        tier_usage(owner->backend, i, &usage);
        used += usage.used_bytes;
    }
    return used;
}

uint64_t owner_metric(const struct owner *owner, const char *name)
{
    struct buf text;
    char *line, pattern[200];
    uint64_t value;

    buf_init(&text, 1 << 16);
    assert_true(kv_service_metrics(owner->service, &text));
    snprintf(pattern, sizeof pattern, "\n%s ", name);
    line = strstr((char *)text.data, pattern);
    if (!line)
        fail_msg("no metric %s", name);
    value = strtoull(line + strlen(pattern), NULL, 10);
    buf_release(&text);
    return value;
}

void owner_put(struct owner *owner, const char *key, uint64_t seed, uint64_t len_bytes)
{
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    uint8_t *content = malloc(len_bytes + 1);

    assert_non_null(content);
    content_fill(content, len_bytes, seed, 0);
    assert_ok(tier_allocate(owner->backend, key, len_bytes, false, &allocation, &error), &error);
    for (uint64_t at = 0; at < len_bytes; at += TIER_STAGING_BYTES) {
        size_t chunk = len_bytes - at < TIER_STAGING_BYTES ? (size_t)(len_bytes - at) : TIER_STAGING_BYTES;
        assert_ok(tier_write(allocation, at, content + at, chunk, &error), &error);
    }
    assert_ok(tier_commit(allocation, 0, &object, &error), &error);
    assert_ok(tier_publish(object, &error), &error);
    tier_object_unref(object);
    free(content);
}

/* --- caller --- */

struct caller caller_open(const struct owner *owner, size_t memory_len, const struct shoal_engine_config *config)
{
    struct caller caller = {.owner = owner, .len = memory_len};
    struct shoal_engine_config one_loop = config ? *config : fixture_config();
    struct rpc_channels_config channels = {0};
    struct shoal_error error;

    one_loop.io_threads = 1; /* for fence */
    caller.engine = engine_make(&one_loop);
    channels.cluster = engine_cluster(caller.engine);
    channels.server_name = shoal_engine_server_name(caller.engine);
    channels.instance = engine_instance(caller.engine);
    channels.connect_timeout_ms = PATIENCE_MS;
    assert_ok(rpc_channels_create(&channels, &caller.channels, &error), &error);
    caller.memory = memory_make(memory_len);
    assert_ok(shoal_engine_register_memory(caller.engine, caller.memory, memory_len, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, &caller.key, &error),
              &error);
    assert_ok(engine_segment_create(caller.engine, shoal_engine_server_name(owner->engine),
                                    engine_address(owner->engine), engine_instance(owner->engine), &caller.segment,
                                    &error),
              &error);
    return caller;
}

void caller_close(struct caller *caller)
{
    rpc_channels_destroy(caller->channels);
    shoal_segment_close(caller->segment);
    shoal_engine_destroy(caller->engine);
    memory_drop(caller->memory, caller->len);
}

void caller_describe(const struct caller *caller, size_t offset, size_t len, Shoal__Wire__KvMemory *memory_out)
{
    shoal__wire__kv_memory__init(memory_out);
    memory_out->addr = (uint64_t)(uintptr_t)caller->memory + offset;
    memory_out->len_bytes = len;
    memory_out->key = caller->key;
    memory_out->server_name = (char *)(uintptr_t)shoal_engine_server_name(caller->engine);
    memory_out->address = (char *)(uintptr_t)engine_address(caller->engine);
    memory_out->instance = engine_instance(caller->engine);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* The owner has read the caller's memory and answered, so the memory is the caller's again. That order goes through
 * sockets to another engine and back, which ThreadSanitizer does not see in one process: show it the loop that served
 * the memory. */
static void fence(struct caller *caller)
{
    loop_call(engine_loop(caller->engine), nothing, NULL);
}

static enum shoal_status call_body(struct caller *caller, unsigned method, const void *body, size_t len,
                                   const struct call *call, struct buf *answer, struct shoal_error *error)
{
    struct call own = {.deadline_ms = deadline_after_ms(caller->timeout_ms ? caller->timeout_ms : PATIENCE_MS)};
    struct iovec part = {(void *)(uintptr_t)body, len};

    buf_init(answer, RPC_RESPONSE_MAX_BYTES);
    return rpc_channels_call(caller->channels, engine_address(caller->owner->engine),
                             engine_instance(caller->owner->engine), (uint16_t)method, &part, 1, call ? call : &own,
                             answer, error);
}

enum shoal_status caller_raw(struct caller *caller, unsigned method, const void *body, size_t len,
                             struct shoal_error *error)
{
    struct buf answer;
    enum shoal_status status = call_body(caller, method, body, len, NULL, &answer, error);

    buf_release(&answer);
    return status;
}

enum shoal_status caller_call(struct caller *caller, unsigned method, const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *descriptor, void *answer_out, const struct call *call,
                              struct shoal_error *error)
{
    size_t len = protobuf_c_message_get_packed_size(request);
    uint8_t *body = malloc(len + 1);
    struct buf answer;
    enum shoal_status status;

    assert_non_null(body);
    protobuf_c_message_pack(request, body);
    status = call_body(caller, method, body, len, call, &answer, error);
    free(body);
    fence(caller);
    if (!status && descriptor) {
        ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, answer.len, answer.data);

        assert_non_null(message);
        *(ProtobufCMessage **)answer_out = message;
    }
    buf_release(&answer);
    return status;
}

void answer_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

enum shoal_status caller_read(struct caller *caller, const Shoal__Wire__KvReadRequest *request,
                              Shoal__Wire__KvReadResponse **answer_out, struct shoal_error *error)
{
    return caller_call(caller, KV_METHOD_READ, &request->base, &shoal__wire__kv_read_response__descriptor, answer_out,
                       NULL, error);
}

enum shoal_status caller_write(struct caller *caller, const Shoal__Wire__KvWriteRequest *request,
                               Shoal__Wire__KvWriteResponse **answer_out, struct shoal_error *error)
{
    return caller_call(caller, KV_METHOD_WRITE, &request->base, &shoal__wire__kv_write_response__descriptor, answer_out,
                       NULL, error);
}

enum shoal_status caller_put_inline(struct caller *caller, const char *key, uint64_t seed, size_t len,
                                    struct shoal_error *error)
{
    Shoal__Wire__KvWriteRequest request = SHOAL__WIRE__KV_WRITE_REQUEST__INIT;
    Shoal__Wire__KvWriteResponse *answer;
    enum shoal_status status;

    request.key = (char *)(uintptr_t)key;
    request.len_bytes = len;
    request.value.len = len;
    request.value.data = malloc(len + 1);
    assert_non_null(request.value.data);
    content_fill(request.value.data, len, seed, 0);
    status = caller_write(caller, &request, &answer, error);
    if (!status) {
        assert_true(answer->object_id != 0);
        answer_free(answer);
    }
    free(request.value.data);
    return status;
}

enum shoal_status caller_lease(struct caller *caller, unsigned method, uint64_t lease_id)
{
    Shoal__Wire__KvLeaseRequest request = SHOAL__WIRE__KV_LEASE_REQUEST__INIT;
    Shoal__Wire__KvLeaseResponse *answer;
    struct shoal_error error;
    enum shoal_status status;

    request.n_lease_ids = 1;
    request.lease_ids = &lease_id;
    assert_ok(
        caller_call(caller, method, &request.base, &shoal__wire__kv_lease_response__descriptor, &answer, NULL, &error),
        &error);
    assert_int_equal(answer->n_statuses, 1);
    status = (enum shoal_status)answer->statuses[0];
    answer_free(answer);
    return status;
}
