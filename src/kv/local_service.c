/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/local_service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hostport.h"
#include "kv/client_internal.h"
#include "kv/local_internal.h"
#include "wire/kv_local.pb-c.h"
#include "wire/unpack.h"

#define LOG_MODULE "kv"
#include "base/log.h"

#define DEFAULT_WORKERS 16
#define DEFAULT_CLIENTS 64
#define DEFAULT_MAX_BYTES (64ull << 30)
#define QUEUE_MAX 1024 /* operations that wait for a worker */
#define LIST_ENTRIES 1000
#define ANSWER_MAX_BYTES (RPC_RESPONSE_MAX_BYTES - 4096)

/* One request: made on the loop, run by a worker, answered on the loop. */
struct local_operation {
    struct list_node session_node;
    struct local_service *service; /* borrowed */
    struct local_session *session; /* ref */
    struct rpc_request *request;   /* NULL: nobody waits any more. Loop thread */
    uint64_t number;
    enum local_method method;
    struct shoal_cancel *cancel; /* owned */
    struct shoal_call call;
    ProtobufCMessage *message;                       /* owned */
    struct local_region *regions[LOCAL_REGIONS_MAX]; /* refs */
    struct executor_task task;
    struct loop_task done;
    /* the answer */
    enum shoal_status status;
    struct shoal_error error;
    struct buf body;
};

/* --- answers --- */

static void pack_answer(struct local_operation *operation, const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);

    if (len > ANSWER_MAX_BYTES)
        operation->status = error_set(&operation->error, SHOAL_LIMIT, 0, "an answer of %zu bytes is too long", len);
    else if (!buf_reserve(&operation->body, len))
        operation->status = error_no_memory(&operation->error);
    else
        operation->body.len = protobuf_c_message_pack(message, operation->body.data);
}

static void operation_destroy(struct local_operation *operation)
{
    for (size_t i = 0; i < LOCAL_REGIONS_MAX; i++)
        local_region_unref(operation->regions[i]);
    if (operation->session) {
        list_remove(&operation->session_node);
        local_session_unref(operation->session);
        operation->service->operation_count--;
    }
    if (operation->message)
        protobuf_c_message_free_unpacked(operation->message, NULL);
    shoal_cancel_destroy(operation->cancel);
    buf_release(&operation->body);
    free(operation);
}

static void on_done(void *arg)
{
    struct local_operation *operation = arg;

    if (operation->request) {
        operation->request->on_abort = NULL;
        rpc_reply(operation->request, operation->status, operation->error.message, operation->body.data,
                  operation->body.len);
    }
    operation_destroy(operation);
}

static void on_abort(struct rpc_request *request)
{
    struct local_operation *operation = request->arg;

    operation->request = NULL;
    shoal_cancel_trigger(operation->cancel);
}

void local_operation_cancel(struct local_session *session, uint64_t number)
{
    LIST_FOR_EACH (operation, &session->operations, struct local_operation, session_node) {
        if (operation->number == number)
            shoal_cancel_trigger(operation->cancel);
    }
}

void local_operations_cancel_all(struct local_session *session)
{
    LIST_FOR_EACH (operation, &session->operations, struct local_operation, session_node) {
        shoal_cancel_trigger(operation->cancel);
    }
}

/* --- on a worker --- */

/* NULL: not inside the client's memory. */
static void *memory_at(const struct local_operation *operation, const Shoal__Wire__LocalPlace *place)
{
    const struct local_region *region = place->region < LOCAL_REGIONS_MAX ? operation->regions[place->region] : NULL;

    if (!region || place->offset_bytes > region->len_bytes ||
        place->len_bytes > region->len_bytes - place->offset_bytes)
        return NULL;
    return (char *)region->memory + place->offset_bytes;
}

/* gets: NULL for other methods; those without a place get their value with the answer. */
static void answer_results(struct local_operation *operation, const struct shoal_kv_item *items, size_t count,
                           const Shoal__Wire__LocalItemsRequest *gets, const struct shoal_error *error)
{
    Shoal__Wire__LocalResultsResponse response = SHOAL__WIRE__LOCAL_RESULTS_RESPONSE__INIT;
    Shoal__Wire__LocalResult *results = calloc(count + 1, sizeof *results);
    Shoal__Wire__LocalResult **pointers = calloc(count + 1, sizeof *pointers);
    bool has_text = false;

    if (!results || !pointers) {
        operation->status = error_no_memory(&operation->error);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        Shoal__Wire__LocalResult *result = pointers[i] = &results[i];

        shoal__wire__local_result__init(result);
        result->status = items[i].status;
        result->len_bytes = items[i].len_bytes;
        if (items[i].status && !has_text) {
            result->text = (char *)(uintptr_t)error->message;
            has_text = true;
        }
        if (!items[i].status && gets && !gets->items[i]->place)
            result->value = (ProtobufCBinaryData){.len = items[i].len_bytes, .data = items[i].data};
    }
    response.n_results = count;
    response.results = pointers;
    pack_answer(operation, &response.base);

done:
    free(results);
    free(pointers);
}

static void run_put(struct local_operation *operation, const Shoal__Wire__LocalItemsRequest *request,
                    struct shoal_kv_item *items)
{
    const struct shoal_kv_put_options options = {.struct_size = sizeof options,
                                                 .replicas = request->replicas,
                                                 .prefer = request->prefer[0] ? request->prefer : NULL};
    struct shoal_error error = {.status = SHOAL_OK};

    for (size_t i = 0; i < request->n_items; i++) {
        const Shoal__Wire__LocalItem *item = request->items[i];

        items[i].key = item->key;
        items[i].data = item->place ? memory_at(operation, item->place) : item->value.data;
        items[i].len_bytes = item->place ? item->place->len_bytes : item->value.len;
    }
    (void)shoal_kv_put_batch(operation->service->kv, items, request->n_items, &options, &operation->call, &error);
    answer_results(operation, items, request->n_items, NULL, &error);
}

static void run_get(struct local_operation *operation, const Shoal__Wire__LocalItemsRequest *request,
                    struct shoal_kv_item *items)
{
    struct shoal_error error = {.status = SHOAL_OK};
    size_t inline_count = 0;
    char *inlined;

    for (size_t i = 0; i < request->n_items; i++)
        inline_count += !request->items[i]->place;
    inlined = malloc(inline_count * LOCAL_INLINE_MAX_BYTES + 1);
    if (!inlined) {
        operation->status = error_no_memory(&operation->error);
        return;
    }
    for (size_t i = 0, at = 0; i < request->n_items; i++) {
        const Shoal__Wire__LocalItem *item = request->items[i];

        items[i].key = item->key;
        items[i].data = item->place ? memory_at(operation, item->place) : inlined + at++ * LOCAL_INLINE_MAX_BYTES;
        items[i].len_bytes = item->place ? item->place->len_bytes : LOCAL_INLINE_MAX_BYTES;
    }
    (void)shoal_kv_get_into_batch(operation->service->kv, items, request->n_items, &operation->call, &error);
    answer_results(operation, items, request->n_items, request, &error);
    free(inlined);
}

static void store_progress(void *arg, const struct shoal_progress *progress)
{
    struct local_progress *shared = arg;

    atomic_store_explicit(&shared->total_bytes, progress->total_bytes, memory_order_relaxed);
    atomic_store_explicit(&shared->done_bytes, progress->done_bytes, memory_order_relaxed);
}

static void run_items(struct local_operation *operation)
{
    const Shoal__Wire__LocalItemsRequest *request =
        (const Shoal__Wire__LocalItemsRequest *)(const void *)operation->message;
    struct shoal_kv_item *items = calloc(request->n_items + 1, sizeof *items);

    if (request->progress) {
        operation->call.progress = store_progress;
        operation->call.progress_arg = memory_at(operation, request->progress);
        operation->call.progress_interval_ms = request->progress_interval_ms;
    }
    if (!items)
        operation->status = error_no_memory(&operation->error);
    else if (operation->method == LOCAL_METHOD_PUT)
        run_put(operation, request, items);
    else
        run_get(operation, request, items);
    free(items);
}

static void run_keys(struct local_operation *operation)
{
    const Shoal__Wire__LocalKeysRequest *request =
        (const Shoal__Wire__LocalKeysRequest *)(const void *)operation->message;
    struct shoal_kv_item *items = calloc(request->n_keys + 1, sizeof *items);
    struct shoal_error error = {.status = SHOAL_OK};

    if (!items) {
        operation->status = error_no_memory(&operation->error);
        return;
    }
    for (size_t i = 0; i < request->n_keys; i++)
        items[i].key = request->keys[i];
    if (operation->method == LOCAL_METHOD_SIZE)
        (void)shoal_kv_size_batch(operation->service->kv, items, request->n_keys, &operation->call, &error);
    else
        (void)shoal_kv_remove_batch(operation->service->kv, items, request->n_keys, &operation->call, &error);
    answer_results(operation, items, request->n_keys, NULL, &error);
    free(items);
}

static void run_remove_matching(struct local_operation *operation)
{
    const Shoal__Wire__LocalMatchRequest *request =
        (const Shoal__Wire__LocalMatchRequest *)(const void *)operation->message;
    Shoal__Wire__LocalRemovedResponse response = SHOAL__WIRE__LOCAL_REMOVED_RESPONSE__INIT;
    struct shoal_error error = {.status = SHOAL_OK};

    response.status = request->pattern[0]
                          ? shoal_kv_remove_matching(operation->service->kv, request->pattern, &operation->call,
                                                     &response.removed, &error)
                          : shoal_kv_remove_all(operation->service->kv, &operation->call, &response.removed, &error);
    if (response.status)
        response.text = error.message;
    pack_answer(operation, &response.base);
}

static void answer_page(struct local_operation *operation, const struct session_page *page)
{
    Shoal__Wire__LocalListResponse response = SHOAL__WIRE__LOCAL_LIST_RESPONSE__INIT;
    Shoal__Wire__LocalListResponse__Entry *entries = calloc(page->count + 1, sizeof *entries);
    Shoal__Wire__LocalListResponse__Entry **pointers = calloc(page->count + 1, sizeof *pointers);

    if (!entries || !pointers) {
        operation->status = error_no_memory(&operation->error);
        goto done;
    }
    for (size_t i = 0; i < page->count; i++) {
        pointers[i] = &entries[i];
        shoal__wire__local_list_response__entry__init(&entries[i]);
        entries[i].key = page->entries[i].key;
        entries[i].len_bytes = page->entries[i].len_bytes;
        entries[i].replicas = page->entries[i].replica_count;
    }
    response.n_entries = page->count;
    response.entries = pointers;
    response.next_cursor = (ProtobufCBinaryData){.len = page->cursor_len, .data = page->cursor};
    pack_answer(operation, &response.base);

done:
    free(entries);
    free(pointers);
}

static void run_list(struct local_operation *operation)
{
    const Shoal__Wire__LocalMatchRequest *request =
        (const Shoal__Wire__LocalMatchRequest *)(const void *)operation->message;
    struct session_page *page;
    struct call call;

    operation->status = call_init(&call, &operation->call, KV_CALL_TIMEOUT_MS, &operation->error);
    if (!operation->status)
        operation->status = session_list(operation->service->kv->session, request->pattern[0] ? request->pattern : NULL,
                                         request->cursor.len ? request->cursor.data : NULL, request->cursor.len,
                                         LIST_ENTRIES, &call, &page, &operation->error);
    if (operation->status)
        return;
    answer_page(operation, page);
    session_page_free(page);
}

static void run_text(struct local_operation *operation)
{
    Shoal__Wire__LocalTextResponse response = SHOAL__WIRE__LOCAL_TEXT_RESPONSE__INIT;
    char *text;

    operation->status = operation->method == LOCAL_METHOD_METRICS
                            ? shoal_kv_metrics(operation->service->kv, &text, &operation->error)
                            : shoal_kv_status(operation->service->kv, &operation->call, &text, &operation->error);
    if (operation->status)
        return;
    response.text = (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
    pack_answer(operation, &response.base);
    free(text);
}

static void run(void *arg, bool is_canceled)
{
    struct local_operation *operation = arg;

    if (is_canceled) {
        operation->status = error_set(&operation->error, SHOAL_CANCELED, 0, "the local client is closing");
    } else {
        switch (operation->method) {
        case LOCAL_METHOD_PUT:
        case LOCAL_METHOD_GET:
            run_items(operation);
            break;
        case LOCAL_METHOD_SIZE:
        case LOCAL_METHOD_REMOVE:
            run_keys(operation);
            break;
        case LOCAL_METHOD_REMOVE_MATCHING:
            run_remove_matching(operation);
            break;
        case LOCAL_METHOD_LIST:
            run_list(operation);
            break;
        default:
            run_text(operation);
            break;
        }
    }
    loop_post(operation->service->loop, &operation->done, on_done, operation);
}

/* --- requests --- */

static void refuse(struct rpc_request *request, enum shoal_status status, const char *text)
{
    rpc_reply(request, status, text, NULL, 0);
}

static bool has_all_places(struct local_operation *operation, const Shoal__Wire__LocalItemsRequest *request)
{
    for (size_t i = 0; i < request->n_items; i++)
        if (request->items[i]->place && !memory_at(operation, request->items[i]->place))
            return false;
    return !request->progress || (request->progress->len_bytes == sizeof(struct local_progress) &&
                                  request->progress->offset_bytes % _Alignof(struct local_progress) == 0 &&
                                  memory_at(operation, request->progress));
}

static void begin(struct local_service *service, struct rpc_request *request, enum local_method method,
                  ProtobufCMessage *message, const Shoal__Wire__LocalCaller *caller, size_t count)
{
    struct local_session *session = caller ? map_get_u64(&service->sessions_by_id, caller->session) : NULL;
    struct local_operation *operation = NULL;
    enum shoal_status status;

    if (service->is_stopping || !session || count > LOCAL_ITEMS_MAX) {
        refuse(request, session ? SHOAL_INVALID_ARGUMENT : SHOAL_CLOSED,
               session ? "too many items" : "no such session: attach again");
        protobuf_c_message_free_unpacked(message, NULL);
        return;
    }
    operation = calloc(1, sizeof *operation);
    if (!operation || shoal_cancel_create(&operation->cancel) != SHOAL_OK) {
        free(operation);
        protobuf_c_message_free_unpacked(message, NULL);
        refuse(request, SHOAL_NO_MEMORY, NULL);
        return;
    }
    operation->service = service;
    operation->session = session;
    operation->method = method;
    operation->message = message;
    operation->number = caller->operation;
    operation->call = (struct shoal_call){.struct_size = sizeof operation->call,
                                          .timeout_ms = caller->timeout_ms ? caller->timeout_ms : KV_CALL_TIMEOUT_MS,
                                          .cancel = operation->cancel};
    buf_init(&operation->body, ANSWER_MAX_BYTES);
    session->refs++;
    service->operation_count++;
    service->counters.operations++;
    list_push_back(&session->operations, &operation->session_node);
    for (size_t i = 0; i < LOCAL_REGIONS_MAX; i++) {
        operation->regions[i] = session->regions[i];
        if (operation->regions[i])
            operation->regions[i]->refs++;
    }
    if ((method == LOCAL_METHOD_PUT || method == LOCAL_METHOD_GET) &&
        !has_all_places(operation, (const Shoal__Wire__LocalItemsRequest *)(const void *)message)) {
        refuse(request, SHOAL_INVALID_ARGUMENT, "a place is outside the shared memory");
        operation_destroy(operation);
        return;
    }
    status = executor_submit(service->workers, &operation->task, run, operation);
    if (status) {
        refuse(request, SHOAL_BUSY, "the local client has too many operations waiting");
        operation_destroy(operation);
        return;
    }
    operation->request = request;
    request->arg = operation;
    request->on_abort = on_abort;
}

static void on_items(struct local_service *service, struct rpc_request *request, enum local_method method)
{
    Shoal__Wire__LocalItemsRequest *message =
        wire_unpack(&shoal__wire__local_items_request__descriptor, NULL, request->body_len, request->body);

    if (message)
        begin(service, request, method, &message->base, message->caller, message->n_items);
    else
        refuse(request, SHOAL_PROTOCOL, "malformed request");
}

static void on_keys(struct local_service *service, struct rpc_request *request, enum local_method method)
{
    Shoal__Wire__LocalKeysRequest *message =
        wire_unpack(&shoal__wire__local_keys_request__descriptor, NULL, request->body_len, request->body);

    if (message)
        begin(service, request, method, &message->base, message->caller, message->n_keys);
    else
        refuse(request, SHOAL_PROTOCOL, "malformed request");
}

static void on_match(struct local_service *service, struct rpc_request *request, enum local_method method)
{
    Shoal__Wire__LocalMatchRequest *message =
        wire_unpack(&shoal__wire__local_match_request__descriptor, NULL, request->body_len, request->body);

    if (message)
        begin(service, request, method, &message->base, message->caller, 0);
    else
        refuse(request, SHOAL_PROTOCOL, "malformed request");
}

static void on_text(struct local_service *service, struct rpc_request *request, enum local_method method)
{
    Shoal__Wire__LocalTextRequest *message =
        wire_unpack(&shoal__wire__local_text_request__descriptor, NULL, request->body_len, request->body);

    if (message)
        begin(service, request, method, &message->base, message->caller, 0);
    else
        refuse(request, SHOAL_PROTOCOL, "malformed request");
}

static void on_put(void *arg, struct rpc_request *request)
{
    on_items(arg, request, LOCAL_METHOD_PUT);
}

static void on_get(void *arg, struct rpc_request *request)
{
    on_items(arg, request, LOCAL_METHOD_GET);
}

static void on_size(void *arg, struct rpc_request *request)
{
    on_keys(arg, request, LOCAL_METHOD_SIZE);
}

static void on_remove(void *arg, struct rpc_request *request)
{
    on_keys(arg, request, LOCAL_METHOD_REMOVE);
}

static void on_remove_matching(void *arg, struct rpc_request *request)
{
    on_match(arg, request, LOCAL_METHOD_REMOVE_MATCHING);
}

static void on_list(void *arg, struct rpc_request *request)
{
    on_match(arg, request, LOCAL_METHOD_LIST);
}

static void on_metrics(void *arg, struct rpc_request *request)
{
    on_text(arg, request, LOCAL_METHOD_METRICS);
}

static void on_status(void *arg, struct rpc_request *request)
{
    on_text(arg, request, LOCAL_METHOD_STATUS);
}

static void on_attach(void *arg, struct rpc_request *request)
{
    struct local_service *service = arg;
    Shoal__Wire__LocalAttachResponse response = SHOAL__WIRE__LOCAL_ATTACH_RESPONSE__INIT;
    uint8_t body[512];

    response.socket = service->socket_name;
    response.token = (ProtobufCBinaryData){.len = sizeof service->token, .data = service->token};
    response.address = service->kv->address;
    if (shoal__wire__local_attach_response__get_packed_size(&response) > sizeof body)
        refuse(request, SHOAL_INTERNAL, NULL);
    else
        rpc_reply(request, SHOAL_OK, NULL, body, shoal__wire__local_attach_response__pack(&response, body));
}

/* --- create and destroy --- */

struct open_call {
    struct local_service *service;
    enum shoal_status status;
    struct shoal_error *error;
};

static void open_on_loop(void *arg)
{
    struct open_call *call = arg;
    struct local_service *service = call->service;

    call->status = local_sessions_listen(service, call->error);
    if (call->status)
        return;
    rpc_set_handler(service->rpc, LOCAL_METHOD_ATTACH, on_attach, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_PUT, on_put, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_GET, on_get, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_SIZE, on_size, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_REMOVE, on_remove, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_REMOVE_MATCHING, on_remove_matching, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_LIST, on_list, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_METRICS, on_metrics, service);
    rpc_set_handler(service->rpc, LOCAL_METHOD_STATUS, on_status, service);
}

enum shoal_status local_service_create(const struct local_service_config *config, struct local_service **service_out,
                                       struct shoal_error *error)
{
    const char *cluster = config->cluster ? config->cluster : "default";
    struct endpoint_config endpoint_config = {.bind_host = config->bind_host ? config->bind_host : "127.0.0.1",
                                              .bind_port = config->port,
                                              .cluster = cluster};
    unsigned workers = config->worker_threads ? config->worker_threads : DEFAULT_WORKERS;
    struct local_service *service = calloc(1, sizeof *service);
    struct open_call call = {.service = service, .error = error};
    enum shoal_status status;

    if (!service)
        return error_no_memory(error);
    if (!config->kv->session) {
        free(service);
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a connection to a local client cannot serve others");
    }
    service->kv = config->kv;
    service->listen_fd = -1;
    service->max_clients = config->max_clients ? config->max_clients : DEFAULT_CLIENTS;
    service->max_bytes = config->max_bytes ? config->max_bytes : DEFAULT_MAX_BYTES;
    list_init(&service->sessions);
    map_init(&service->sessions_by_id);
    /* Each client has a connection per thread that calls. */
    endpoint_config.max_connections = service->max_clients * 32;
    status = loop_create("shoal-local", &service->loop, error);
    endpoint_config.loop = service->loop;
    if (!status)
        status = executor_create("shoal-local-op", workers, QUEUE_MAX, &service->workers, error);
    if (!status)
        status = executor_create("shoal-reaper", 1, (size_t)service->max_clients * LOCAL_REGIONS_MAX, &service->reaper,
                                 error);
    if (!status)
        status = endpoint_create(&endpoint_config, &service->endpoint, error);
    if (!status)
        status = rpc_create(service->loop, service->endpoint, &service->rpc, error);
    if (!status) {
        loop_call(service->loop, open_on_loop, &call);
        status = call.status;
    }
    if (!status)
        status = endpoint_start(service->endpoint, endpoint_address(service->endpoint), error);
    if (status) {
        local_service_destroy(service);
        return status;
    }
    LOG_INFO("local processes are served at %s", endpoint_address(service->endpoint));
    *service_out = service;
    return SHOAL_OK;
}

static void stop_on_loop(void *arg)
{
    struct local_service *service = arg;

    service->is_stopping = true;
    local_sessions_close(service);
}

static void nothing_on_loop(void *arg)
{
    (void)arg;
}

void local_service_destroy(struct local_service *service)
{
    if (!service)
        return;
    if (service->loop)
        loop_call(service->loop, stop_on_loop, service);
    executor_destroy(service->workers);
    /* What the workers posted has run when this has. */
    if (service->loop)
        loop_call(service->loop, nothing_on_loop, NULL);
    executor_destroy(service->reaper);
    rpc_destroy(service->rpc);
    endpoint_destroy(service->endpoint);
    loop_destroy(service->loop);
    map_release(&service->sessions_by_id);
    free(service);
}

uint16_t local_service_port(const struct local_service *service)
{
    return endpoint_port(service->endpoint);
}

/* --- metrics --- */

struct metrics_call {
    struct local_service *service;
    struct local_counters counters;
    unsigned sessions, operations;
};

static void metrics_on_loop(void *arg)
{
    struct metrics_call *call = arg;

    call->counters = call->service->counters;
    call->sessions = call->service->session_count;
    call->operations = call->service->operation_count;
}

bool local_service_metrics(struct local_service *service, struct buf *out)
{
    struct metrics_call call = {.service = service};

    loop_call(service->loop, metrics_on_loop, &call);
    return buf_append_format(out,
                             "# HELP shoal_kv_local_sessions Processes attached now.\n"
                             "# TYPE shoal_kv_local_sessions gauge\nshoal_kv_local_sessions %u\n"
                             "# HELP shoal_kv_local_running Operations running or waiting.\n"
                             "# TYPE shoal_kv_local_running gauge\nshoal_kv_local_running %u\n"
                             "# HELP shoal_kv_local_shared_bytes Memory of attached processes.\n"
                             "# TYPE shoal_kv_local_shared_bytes gauge\nshoal_kv_local_shared_bytes %" PRIu64 "\n"
                             "# HELP shoal_kv_local_sessions_total Processes attached since the start.\n"
                             "# TYPE shoal_kv_local_sessions_total counter\nshoal_kv_local_sessions_total %" PRIu64 "\n"
                             "# HELP shoal_kv_local_refused_total Connections to the local socket refused.\n"
                             "# TYPE shoal_kv_local_refused_total counter\nshoal_kv_local_refused_total %" PRIu64 "\n"
                             "# HELP shoal_kv_local_operations_total Operations of attached processes.\n"
                             "# TYPE shoal_kv_local_operations_total counter\nshoal_kv_local_operations_total %" PRIu64
                             "\n",
                             call.sessions, call.operations, atomic_load(&service->mapped_bytes),
                             call.counters.sessions, call.counters.refused, call.counters.operations);
}
