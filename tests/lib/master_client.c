/* SPDX-License-Identifier: Apache-2.0 */
#include "master_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "transport/endpoint.h"

enum { REGISTER = 1, HEARTBEAT, ANNOUNCE, LOOKUP, WRITE_ROUTE, REMOVE, LIST, STATUS };

static void require(bool is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "master_client: %s failed\n", what);
    abort();
}

struct handle_args {
    struct master_client *client;
    const char *master;
};

static void open_handle(void *arg)
{
    const struct handle_args *args = arg;

    rpc_client_close(args->client->handle);
    args->client->handle = NULL;
    if (args->master)
        require(rpc_client_open(args->client->rpc, args->master, 0, 5000, &args->client->handle, NULL) == SHOAL_OK,
                "rpc_client_open");
}

void master_client_reconnect(struct master_client *client, const char *master)
{
    struct handle_args args = {client, master};

    loop_call(client->loop, open_handle, &args);
}

void master_client_open(struct master_client *client, const char *master, const char *name)
{
    struct endpoint_config config = {.bind_host = "127.0.0.1", .cluster = "default", .max_connections = 64};

    *client = (struct master_client){.instance = random_id()};
    require(loop_create("client", &client->loop, NULL) == SHOAL_OK, "loop_create");
    config.loop = client->loop;
    require(endpoint_create(&config, &client->endpoint, NULL) == SHOAL_OK, "endpoint_create");
    require(rpc_create(client->loop, client->endpoint, &client->rpc, NULL) == SHOAL_OK, "rpc_create");
    client->instance = endpoint_instance(client->endpoint);
    snprintf(client->address, sizeof client->address, "%s", endpoint_address(client->endpoint));
    snprintf(client->name, sizeof client->name, "%s", name ? name : client->address);
    require(endpoint_start(client->endpoint, client->name, NULL) == SHOAL_OK, "endpoint_start");
    master_client_reconnect(client, master);
}

void master_client_close(struct master_client *client)
{
    struct handle_args args = {client, NULL};

    if (!client->loop)
        return;
    loop_call(client->loop, open_handle, &args);
    rpc_destroy(client->rpc);
    endpoint_destroy(client->endpoint);
    loop_destroy(client->loop);
    *client = (struct master_client){0};
}

/* --- calls --- */

struct master_call {
    struct master_client *client;
    uint16_t method;
    uint8_t *request, *answer;
    size_t request_len, answer_len;
    int64_t timeout_ms;
    struct mutex mutex;
    struct cond changed;
    bool is_done;
    enum shoal_status status;
    struct shoal_error error;
};

static void on_done(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                    const struct shoal_error *error)
{
    struct master_call *call = arg;

    mutex_lock(&call->mutex);
    call->status = status;
    if (error)
        call->error = *error;
    if (status == SHOAL_OK) {
        call->answer = malloc(body_len + 1);
        if (body_len)
            memcpy(call->answer, body, body_len);
        call->answer_len = body_len;
    }
    call->is_done = true;
    cond_broadcast(&call->changed);
    mutex_unlock(&call->mutex);
}

static void start(void *arg)
{
    struct master_call *call = arg;

    require(rpc_call(call->client->handle, call->method, call->request, call->request_len, call->timeout_ms, on_done,
                     call) == SHOAL_OK,
            "rpc_call");
}

struct master_call *master_client_begin(struct master_client *client, uint16_t method, const ProtobufCMessage *request,
                                        int64_t timeout_ms)
{
    struct master_call *call = calloc(1, sizeof *call);

    require(call != NULL, "calloc");
    call->client = client;
    call->method = method;
    call->timeout_ms = timeout_ms ? timeout_ms : MASTER_CLIENT_WAIT_MS;
    call->request_len = protobuf_c_message_get_packed_size(request);
    call->request = malloc(call->request_len + 1);
    protobuf_c_message_pack(request, call->request);
    mutex_init(&call->mutex, RANK_STORE);
    cond_init(&call->changed);
    loop_call(client->loop, start, call);
    return call;
}

bool master_call_is_done(struct master_call *call)
{
    mutex_lock(&call->mutex);
    bool is_done = call->is_done;
    mutex_unlock(&call->mutex);
    return is_done;
}

void *master_call_end(struct master_call *call, const ProtobufCMessageDescriptor *answer, enum shoal_status *status_out,
                      struct shoal_error *error)
{
    void *message = NULL;

    mutex_lock(&call->mutex);
    while (!call->is_done)
        cond_wait(&call->changed, &call->mutex); /* calls have deadlines */
    mutex_unlock(&call->mutex);
    *status_out = call->status;
    if (call->status == SHOAL_OK) {
        message = protobuf_c_message_unpack(answer, NULL, call->answer_len, call->answer);
        require(message != NULL, "unpacking the answer");
    } else if (error) {
        *error = call->error;
    }
    cond_release(&call->changed);
    mutex_release(&call->mutex);
    free(call->request);
    free(call->answer);
    free(call);
    return message;
}

void *master_client_call(struct master_client *client, uint16_t method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *answer, int64_t timeout_ms, enum shoal_status *status_out)
{
    return master_call_end(master_client_begin(client, method, request, timeout_ms), answer, status_out,
                           &client->error);
}

/* --- shorthands --- */

enum shoal_status master_client_register(struct master_client *client, uint64_t capacity, uint64_t object_count)
{
    Shoal__Wire__MasterRegisterRequest request = SHOAL__WIRE__MASTER_REGISTER_REQUEST__INIT;
    Shoal__Wire__MasterClient self = SHOAL__WIRE__MASTER_CLIENT__INIT;
    Shoal__Wire__MasterTier tier = SHOAL__WIRE__MASTER_TIER__INIT, *tiers[] = {&tier};
    enum shoal_status status;
    void *answer;

    tier.type = 1;
    tier.capacity_bytes = capacity;
    self.instance = client->instance;
    self.server_name = client->name;
    self.address = client->address;
    self.tiers = tiers;
    self.n_tiers = capacity ? 1 : 0;
    request.client = &self;
    request.object_count = object_count;
    answer = master_client_call(client, REGISTER, &request.base, &shoal__wire__master_register_response__descriptor, 0,
                                &status);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

enum shoal_status master_client_heartbeat(struct master_client *client, uint64_t capacity, uint64_t used,
                                          uint64_t drops_done, Shoal__Wire__MasterHeartbeatResponse **answer_out)
{
    Shoal__Wire__MasterHeartbeatRequest request = SHOAL__WIRE__MASTER_HEARTBEAT_REQUEST__INIT;
    Shoal__Wire__MasterTier tier = SHOAL__WIRE__MASTER_TIER__INIT, *tiers[] = {&tier};
    Shoal__Wire__MasterHeartbeatResponse *answer;
    enum shoal_status status;

    tier.type = 1;
    tier.capacity_bytes = capacity;
    tier.used_bytes = used;
    request.instance = client->instance;
    request.tiers = tiers;
    request.n_tiers = capacity ? 1 : 0;
    request.drops_done = drops_done;
    answer = master_client_call(client, HEARTBEAT, &request.base, &shoal__wire__master_heartbeat_response__descriptor,
                                0, &status);
    if (answer_out)
        *answer_out = answer;
    else
        protobuf_c_message_free_unpacked((void *)answer, NULL);
    return status;
}

static enum shoal_status announce(struct master_client *client, Shoal__Wire__MasterAnnounceRequest *request)
{
    enum shoal_status status;
    Shoal__Wire__MasterAnnounceResponse *answer = master_client_call(
        client, ANNOUNCE, &request->base, &shoal__wire__master_announce_response__descriptor, 0, &status);

    if (answer && answer->n_statuses)
        status = (enum shoal_status)answer->statuses[0];
    if (answer)
        require(answer->n_statuses == request->n_entries, "one status per entry");
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    return status;
}

enum shoal_status master_client_announce(struct master_client *client, int kind, const char *key, uint64_t object_id,
                                         uint64_t len_bytes)
{
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry entry = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__ENTRY__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry *entries[] = {&entry};

    entry.kind = (Shoal__Wire__MasterAnnounceRequest__Kind)kind;
    entry.key = (char *)(uintptr_t)key;
    entry.object_id = object_id;
    entry.len_bytes = len_bytes;
    request.instance = client->instance;
    request.entries = entries;
    request.n_entries = 1;
    return announce(client, &request);
}

enum shoal_status master_client_announce_end(struct master_client *client)
{
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;

    request.instance = client->instance;
    request.is_last_held = 1;
    return announce(client, &request);
}

enum shoal_status master_client_lookup(struct master_client *client, const char *key, uint64_t *object_id_out,
                                       size_t *replicas_out)
{
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char *keys[] = {(char *)(uintptr_t)key};
    Shoal__Wire__MasterLookupResponse *answer;
    enum shoal_status status;

    request.keys = keys;
    request.n_keys = 1;
    answer =
        master_client_call(client, LOOKUP, &request.base, &shoal__wire__master_lookup_response__descriptor, 0, &status);
    if (!answer)
        return status;
    require(answer->n_routes == 1, "one route per key");
    status = (enum shoal_status)answer->routes[0]->status;
    if (object_id_out)
        *object_id_out = answer->routes[0]->object_id;
    if (replicas_out)
        *replicas_out = answer->routes[0]->n_replicas;
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    return status;
}

enum shoal_status master_client_remove(struct master_client *client, const char *key)
{
    Shoal__Wire__MasterRemoveRequest request = SHOAL__WIRE__MASTER_REMOVE_REQUEST__INIT;
    char *keys[] = {(char *)(uintptr_t)key};
    Shoal__Wire__MasterRemoveResponse *answer;
    enum shoal_status status;

    request.keys = keys;
    request.n_keys = 1;
    answer =
        master_client_call(client, REMOVE, &request.base, &shoal__wire__master_remove_response__descriptor, 0, &status);
    if (!answer)
        return status;
    status = (enum shoal_status)answer->routes[0]->status;
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    return status;
}

Shoal__Wire__MasterStatusResponse *master_client_status(struct master_client *client)
{
    Shoal__Wire__MasterStatusRequest request = SHOAL__WIRE__MASTER_STATUS_REQUEST__INIT;
    enum shoal_status status;

    return master_client_call(client, STATUS, &request.base, &shoal__wire__master_status_response__descriptor, 0,
                              &status);
}
