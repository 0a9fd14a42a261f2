/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_master.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static void on_abort(struct rpc_request *request)
{
    struct fake_master *master = request->arg;

    mutex_lock(&master->mutex);
    list_remove(&request->owner_node);
    mutex_unlock(&master->mutex);
    free((void *)(uintptr_t)request->body); /* the copy */
}

static void reply_message(struct rpc_request *request, const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    uint8_t *body = malloc(len + 1);

    protobuf_c_message_pack(message, body);
    rpc_reply(request, SHOAL_OK, NULL, body, len);
    free(body);
}

static void answer_register(struct fake_master *master, struct rpc_request *request)
{
    Shoal__Wire__MasterRegisterRequest *message =
        shoal__wire__master_register_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterRegisterResponse answer = SHOAL__WIRE__MASTER_REGISTER_RESPONSE__INIT;

    assert_non_null(message);
    master->registrations++;
    master->object_count = message->object_count;
    answer.master_instance = master->instance;
    answer.client_ttl_ms = master->ttl_ms;
    answer.heartbeat_ms = master->heartbeat_ms;
    shoal__wire__master_register_request__free_unpacked(message, NULL);
    reply_message(request, &answer.base);
}

static void answer_heartbeat(struct fake_master *master, struct rpc_request *request)
{
    Shoal__Wire__MasterHeartbeatRequest *message =
        shoal__wire__master_heartbeat_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterHeartbeatResponse answer = SHOAL__WIRE__MASTER_HEARTBEAT_RESPONSE__INIT;

    assert_non_null(message);
    master->heartbeats++;
    master->goodbyes += message->is_leaving != 0;
    master->drops_done = message->drops_done;
    answer.master_instance = master->instance;
    answer.n_drops = master->drop_count;
    answer.drops = master->drops;
    answer.n_targets = master->target_count;
    answer.targets = master->targets;
    shoal__wire__master_heartbeat_request__free_unpacked(message, NULL);
    reply_message(request, &answer.base);
}

static void answer_announce(struct fake_master *master, struct rpc_request *request)
{
    Shoal__Wire__MasterAnnounceRequest *message =
        shoal__wire__master_announce_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterAnnounceResponse answer = SHOAL__WIRE__MASTER_ANNOUNCE_RESPONSE__INIT;
    int32_t *statuses;

    assert_non_null(message);
    assert_true(message->n_entries <= 4096);
    master->announcements++;
    master->lasts += message->is_last_held != 0;
    statuses = calloc(message->n_entries + 1, sizeof *statuses);
    for (size_t i = 0; i < message->n_entries; i++) {
        const Shoal__Wire__MasterAnnounceRequest__Entry *from = message->entries[i];
        struct fake_entry *to = &master->entries[master->entry_count++];

        assert_true(master->entry_count < FAKE_ENTRIES_MAX);
        *to = (struct fake_entry){.kind = from->kind, .object_id = from->object_id, .request = master->announcements};
        snprintf(to->key, sizeof to->key, "%s", from->key);
        if (from->kind != SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__GONE)
            statuses[i] = -(int32_t)(intptr_t)map_get_str(&master->answers, from->key);
    }
    answer.n_statuses = message->n_entries;
    if (master->manner[MASTER_METHOD_ANNOUNCE] == FAKE_WRONG_COUNT && answer.n_statuses)
        answer.n_statuses--;
    answer.statuses = statuses;
    shoal__wire__master_announce_request__free_unpacked(message, NULL);
    if (master->is_short_of_memory)
        rpc_reply(request, SHOAL_NO_MEMORY, "out of memory", NULL, 0);
    else
        reply_message(request, &answer.base);
    free(statuses);
}

/* Key "missing..." has no route; others have one, at client 7. */
static void answer_routes(struct fake_master *master, struct rpc_request *request)
{
    Shoal__Wire__MasterLookupRequest *message =
        shoal__wire__master_lookup_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterLookupResponse answer = SHOAL__WIRE__MASTER_LOOKUP_RESPONSE__INIT;
    Shoal__Wire__MasterClient client = SHOAL__WIRE__MASTER_CLIENT__INIT, *client_pointer = &client;
    Shoal__Wire__MasterReplica replica = SHOAL__WIRE__MASTER_REPLICA__INIT, *replica_pointer = &replica;
    Shoal__Wire__MasterRoute *routes, **pointers;

    assert_non_null(message);
    master->lookups++;
    master->asked_keys += (unsigned)message->n_keys;
    routes = calloc(message->n_keys + 1, sizeof *routes);
    pointers = calloc(message->n_keys + 1, sizeof *pointers);
    client.instance = 7;
    client.server_name = (char *)(uintptr_t) "owner";
    client.address = (char *)(uintptr_t) "10.0.0.7:12345";
    replica.tier_type = TIER_DRAM;
    for (size_t i = 0; i < message->n_keys; i++) {
        pointers[i] = &routes[i];
        shoal__wire__master_route__init(&routes[i]);
        if (strncmp(message->keys[i], "missing", 7) == 0) {
            routes[i].status = SHOAL_NOT_FOUND;
            continue;
        }
        routes[i].object_id = strlen(message->keys[i]);
        routes[i].n_replicas = 1;
        routes[i].replicas = &replica_pointer;
    }
    answer.n_routes = message->n_keys;
    if (master->manner[MASTER_METHOD_LOOKUP] == FAKE_WRONG_COUNT)
        answer.n_routes--;
    answer.routes = pointers;
    answer.n_clients = 1;
    answer.clients = &client_pointer;
    shoal__wire__master_lookup_request__free_unpacked(message, NULL);
    reply_message(request, &answer.base);
    free(pointers);
    free(routes);
}

/* The excluded clients decide: without any, client 9; else nobody. */
static void answer_write_route(struct rpc_request *request)
{
    Shoal__Wire__MasterWriteRouteRequest *message =
        shoal__wire__master_write_route_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterWriteRouteResponse answer = SHOAL__WIRE__MASTER_WRITE_ROUTE_RESPONSE__INIT;
    Shoal__Wire__MasterTarget target = SHOAL__WIRE__MASTER_TARGET__INIT, *pointer = &target;

    assert_non_null(message);
    target.instance = message->n_excluded ? 0 : 9;
    target.server_name = (char *)(uintptr_t) "asked";
    target.address = (char *)(uintptr_t) "10.0.0.9:12345";
    answer.n_targets = 1;
    answer.targets = &pointer;
    shoal__wire__master_write_route_request__free_unpacked(message, NULL);
    reply_message(request, &answer.base);
}

static void answer_list(struct rpc_request *request)
{
    Shoal__Wire__MasterListRequest *message =
        shoal__wire__master_list_request__unpack(NULL, request->body_len, request->body);
    Shoal__Wire__MasterListResponse answer = SHOAL__WIRE__MASTER_LIST_RESPONSE__INIT;
    Shoal__Wire__MasterListResponse__Entry entry = SHOAL__WIRE__MASTER_LIST_RESPONSE__ENTRY__INIT, *pointer = &entry;

    assert_non_null(message);
    entry.key = message->cursor.len ? (char *)(uintptr_t) "second" : message->pattern;
    entry.len_bytes = 5;
    answer.n_entries = 1;
    answer.entries = &pointer;
    if (!message->cursor.len) {
        answer.next_cursor.data = (uint8_t *)(uintptr_t) "c";
        answer.next_cursor.len = 1;
    }
    reply_message(request, &answer.base);
    shoal__wire__master_list_request__free_unpacked(message, NULL);
}

static void answer_status(struct fake_master *master, struct rpc_request *request)
{
    Shoal__Wire__MasterStatusResponse answer = SHOAL__WIRE__MASTER_STATUS_RESPONSE__INIT;

    answer.master_instance = master->instance;
    reply_message(request, &answer.base);
}

/* Under the mutex. */
static void answer(struct fake_master *master, struct rpc_request *request)
{
    switch (request->method) {
    case MASTER_METHOD_REGISTER:
        answer_register(master, request);
        break;
    case MASTER_METHOD_HEARTBEAT:
        answer_heartbeat(master, request);
        break;
    case MASTER_METHOD_ANNOUNCE:
        answer_announce(master, request);
        break;
    case MASTER_METHOD_WRITE_ROUTE:
        answer_write_route(request);
        break;
    case MASTER_METHOD_LIST:
        answer_list(request);
        break;
    case MASTER_METHOD_STATUS:
        answer_status(master, request);
        break;
    default:
        answer_routes(master, request);
        break;
    }
}

static void on_request(void *arg, struct rpc_request *request)
{
    struct fake_master *master = arg;

    mutex_lock(&master->mutex);
    switch (master->manner[request->method]) {
    case FAKE_HOLDS: {
        uint8_t *copy = malloc(request->body_len + 1);
        memcpy(copy, request->body, request->body_len);
        request->body = copy;
        request->on_abort = on_abort;
        request->arg = master;
        list_push_back(&master->held, &request->owner_node);
        break;
    }
    case FAKE_GARBAGE:
        if (request->method == MASTER_METHOD_ANNOUNCE)
            master->announcements++;
        rpc_reply(request, SHOAL_OK, NULL, "\xff\xff\xff\xff", 4);
        break;
    case FAKE_REFUSES:
        rpc_reply(request, master->refusal, master->refusal_text, NULL, 0);
        break;
    default:
        answer(master, request);
    }
    cond_broadcast(&master->changed);
    mutex_unlock(&master->mutex);
}

static void live(struct fake_master *master)
{
    struct endpoint_config config = {.bind_host = "127.0.0.1",
                                     .bind_port = master->port,
                                     .cluster = "test",
                                     .max_connections = 64,
                                     .max_handshakes = 16};
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    assert_int_equal(loop_create("fake-master", &master->loop, NULL), SHOAL_OK);
    config.loop = master->loop;
    while (endpoint_create(&config, &master->endpoint, NULL) != SHOAL_OK)
        assert_false(deadline_is_past(deadline_ms));
    assert_int_equal(rpc_create(master->loop, master->endpoint, &master->rpc, NULL), SHOAL_OK);
    rpc_set_request_max(master->rpc, RPC_REQUEST_LARGE_MAX_BYTES);
    for (int method = MASTER_METHOD_REGISTER; method <= MASTER_METHOD_STATUS; method++)
        rpc_set_handler(master->rpc, (uint16_t)method, on_request, master);
    master->port = endpoint_port(master->endpoint);
    snprintf(master->address, sizeof master->address, "127.0.0.1:%u", master->port);
    assert_int_equal(endpoint_start(master->endpoint, master->address, NULL), SHOAL_OK);
}

void fake_master_init(struct fake_master *master, uint64_t instance)
{
    *master = (struct fake_master){.instance = instance, .ttl_ms = 60000, .heartbeat_ms = 20};
    mutex_init(&master->mutex, RANK_STORE);
    cond_init(&master->changed);
    list_init(&master->held);
    map_init(&master->answers);
    master->entries = calloc(FAKE_ENTRIES_MAX, sizeof *master->entries);
    assert_non_null(master->entries);
    live(master);
}

void fake_master_kill(struct fake_master *master)
{
    if (!master->loop)
        return;
    rpc_destroy(master->rpc);
    endpoint_destroy(master->endpoint);
    loop_destroy(master->loop);
    master->loop = NULL;
}

void fake_master_revive(struct fake_master *master)
{
    master->instance++;
    live(master);
}

void fake_master_release(struct fake_master *master)
{
    fake_master_kill(master);
    map_release(&master->answers);
    cond_release(&master->changed);
    mutex_release(&master->mutex);
    free(master->entries);
}

void fake_master_set_manner(struct fake_master *master, enum master_method method, enum fake_manner manner)
{
    mutex_lock(&master->mutex);
    master->manner[method] = manner;
    mutex_unlock(&master->mutex);
}

void fake_master_refuse(struct fake_master *master, enum master_method method, enum shoal_status status,
                        const char *text)
{
    mutex_lock(&master->mutex);
    master->manner[method] = FAKE_REFUSES;
    master->refusal = status;
    snprintf(master->refusal_text, sizeof master->refusal_text, "%s", text);
    mutex_unlock(&master->mutex);
}

void fake_master_set_short_of_memory(struct fake_master *master, bool is_short)
{
    mutex_lock(&master->mutex);
    master->is_short_of_memory = is_short;
    mutex_unlock(&master->mutex);
}

void fake_master_set_answer(struct fake_master *master, const char *key, enum shoal_status status)
{
    mutex_lock(&master->mutex);
    if (status)
        assert_true(map_put_str(&master->answers, key, (void *)(intptr_t) - (int)status));
    else
        map_remove_str(&master->answers, key);
    mutex_unlock(&master->mutex);
}

struct release {
    struct fake_master *master;
    enum master_method method;
};

static void release_on_loop(void *arg)
{
    struct release *release = arg;
    struct fake_master *master = release->master;

    mutex_lock(&master->mutex);
    master->manner[release->method] = FAKE_ANSWERS;
    LIST_FOR_EACH_SAFE (request, &master->held, struct rpc_request, owner_node) {
        const uint8_t *copy = request->body;

        if (request->method != release->method)
            continue;
        list_remove(&request->owner_node);
        answer(master, request);
        free((void *)(uintptr_t)copy);
    }
    cond_broadcast(&master->changed);
    mutex_unlock(&master->mutex);
}

void fake_master_answer_held(struct fake_master *master, enum master_method method)
{
    struct release release = {.master = master, .method = method};

    loop_call(master->loop, release_on_loop, &release);
}

void fake_master_wait(struct fake_master *master, const unsigned *counter, unsigned at_least)
{
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    mutex_lock(&master->mutex);
    while (*counter < at_least)
        assert_true(cond_wait_until(&master->changed, &master->mutex, deadline_ms) || *counter >= at_least);
    mutex_unlock(&master->mutex);
}

static size_t held_count(const struct fake_master *master)
{
    size_t count = 0;

    LIST_FOR_EACH (request, &master->held, struct rpc_request, owner_node)
        count++;
    return count;
}

void fake_master_wait_held(struct fake_master *master, size_t at_least)
{
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    mutex_lock(&master->mutex);
    while (held_count(master) < at_least)
        assert_true(cond_wait_until(&master->changed, &master->mutex, deadline_ms) || held_count(master) >= at_least);
    mutex_unlock(&master->mutex);
}

unsigned fake_master_read(struct fake_master *master, const unsigned *counter)
{
    unsigned value;

    mutex_lock(&master->mutex);
    value = *counter;
    mutex_unlock(&master->mutex);
    return value;
}

static size_t count_locked(const struct fake_master *master, Shoal__Wire__MasterAnnounceRequest__Kind kind,
                           const char *key, uint64_t object_id)
{
    size_t count = 0;

    for (size_t i = 0; i < master->entry_count; i++)
        count += master->entries[i].kind == kind && master->entries[i].object_id == object_id &&
                 strcmp(master->entries[i].key, key) == 0;
    return count;
}

size_t fake_master_count(struct fake_master *master, Shoal__Wire__MasterAnnounceRequest__Kind kind, const char *key,
                         uint64_t object_id)
{
    size_t count;

    mutex_lock(&master->mutex);
    count = count_locked(master, kind, key, object_id);
    mutex_unlock(&master->mutex);
    return count;
}

void fake_master_wait_entry(struct fake_master *master, Shoal__Wire__MasterAnnounceRequest__Kind kind, const char *key,
                            uint64_t object_id)
{
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    mutex_lock(&master->mutex);
    while (!count_locked(master, kind, key, object_id))
        assert_true(cond_wait_until(&master->changed, &master->mutex, deadline_ms) ||
                    count_locked(master, kind, key, object_id));
    mutex_unlock(&master->mutex);
}
