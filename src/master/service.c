/* SPDX-License-Identifier: Apache-2.0 */
#include "master/service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "master/service_internal.h"

#define LOG_MODULE "master"
#include "base/log.h"

#define SETTLE_MS 1000
#define ANNOUNCE_MS 10000
#define ANNOUNCE_MAX_MS 600000 /* however much still comes */
#define MAX_CLIENTS 4096u
#define LOCAL_WEIGHT 4u
#define WAKE_MS 20 /* held requests look again */
#define SWEEP_SLICE 500u
#define TOMBSTONES_MAX (1u << 20)
#define TOMBSTONE_AGE_MS (10 * 60 * 1000)
#define TOMBSTONES_PER_TICK 50000u

/* --- small things that all requests need --- */

bool service_is_leading(struct master_service *service)
{
    return service->is_leader && clock_now_ms() < atomic_load_explicit(&service->lead_until_ms, memory_order_relaxed);
}

bool service_admits(struct master_service *service, struct rpc_request *request, enum master_method method)
{
    service->counters.requests[method]++;
    if (service_is_leading(service))
        return true;
    rpc_reply(request, SHOAL_CONFLICT, service->leader_address, NULL, 0);
    return false;
}

void service_refuse_malformed(struct master_service *service, struct rpc_request *request)
{
    service->counters.malformed++;
    rpc_reply(request, SHOAL_PROTOCOL, "malformed request", NULL, 0);
}

void service_reply(struct rpc_request *request, const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    uint8_t *body = malloc(len ? len : 1);

    if (!body) {
        rpc_reply(request, SHOAL_NO_MEMORY, "the master is out of memory", NULL, 0);
        return;
    }
    protobuf_c_message_pack(message, body);
    rpc_reply(request, SHOAL_OK, NULL, body, len);
    free(body);
}

const char *service_key_problem(const char *key)
{
    size_t len = strnlen(key, ROUTE_KEY_MAX_BYTES + 1);

    if (len == 0)
        return "a key is empty";
    return len > ROUTE_KEY_MAX_BYTES ? "a key is longer than 1024 bytes" : NULL;
}

bool service_find_route(struct master_service *service, const char *key, struct route_view *view_out)
{
    size_t key_len = strlen(key);
    struct route_replica replicas[ROUTE_REPLICAS_MAX];

    while (routes_get(service->routes, key, key_len, view_out)) {
        size_t count = routes_replicas(service->routes, view_out, replicas), live = 0;
        while (live < count && registry_at(service->registry, replicas[live].client)->state == CLIENT_LIVE)
            live++;
        if (live == count)
            return true;
        routes_drop(service->routes, key, key_len, 0, replicas[live].client);
    }
    return false;
}

/* --- settling --- */

void service_look_settled(struct master_service *service)
{
    int64_t age_ms = clock_now_ms() - service->settle_from_ms;

    if (service->is_settled || age_ms < service->config.settle_ms)
        return;
    if (registry_is_announcing(service->registry)) {
        int64_t quiet_ms = clock_now_ms() - service->progress_ms;
        if (age_ms < service->config.settle_ms + service->config.announce_ms)
            return;
        if (quiet_ms < service->config.announce_ms && age_ms < ANNOUNCE_MAX_MS)
            return;
        LOG_WARN("a client has not announced everything, and nothing came for %" PRId64
                 " ms: what it has not announced is taken for missing",
                 quiet_ms);
    }
    service->is_settled = true;
    LOG_INFO("settled: %" PRIu32 " clients have announced %zu keys", registry_live_count(service->registry),
             routes_count(service->routes));
    jobs_wake(service);
}

void service_finish_announcing(struct master_service *service, struct client *client)
{
    if (!client->is_announcing)
        return;
    client->is_announcing = false;
    client->has_stale = true;
    LOG_INFO("%s has announced %zu objects", client->server_name, routes_of_client(service->routes, client->slot));
    service_post_work(service);
    service_look_settled(service);
}

/* --- work between which the loop turns --- */

/* Takes away routes of clients that are gone, and what registrations did not confirm. false: nothing left. */
static bool sweep(struct master_service *service)
{
    uint32_t position = 0;
    struct client *client;

    while ((client = registry_next(service->registry, &position))) {
        if (client->state == CLIENT_GONE) {
            if (routes_drop_client(service->routes, client->slot, SWEEP_SLICE) < SWEEP_SLICE)
                registry_free(service->registry, client);
            return true;
        }
        if (client->has_stale) {
            if (routes_drop_stale(service->routes, client->slot, client->epoch, SWEEP_SLICE) < SWEEP_SLICE)
                client->has_stale = false;
            return true;
        }
    }
    return false;
}

static void run_work(void *arg)
{
    struct master_service *service = arg;
    struct list_node *node = list_pop_front(&service->running);
    bool has_more;

    service->is_work_posted = false;
    if (node)
        jobs_go_on(container_of(node, struct job, node));
    has_more = sweep(service);
    if (has_more || !list_is_empty(&service->running))
        service_post_work(service);
}

void service_post_work(struct master_service *service)
{
    if (service->is_work_posted || service->is_ending)
        return;
    service->is_work_posted = true;
    loop_post(service->config.loop, &service->work, run_work, service);
}

static void on_wake(void *arg)
{
    struct master_service *service = arg;

    service_look_settled(service);
    jobs_wake(service);
    if (!service->is_settled || !list_is_empty(&service->held))
        loop_timer_start(&service->wake_timer, WAKE_MS);
}

static void on_tick(void *arg)
{
    struct master_service *service = arg;
    int64_t now_ms = clock_now_ms();
    bool was_stalled = false;
    unsigned ended = registry_tick(service->registry, now_ms, &was_stalled);

    if (was_stalled) {
        service->counters.stalls++;
        LOG_WARN("this process was stalled and heard nobody: all clients have %" PRId64 " ms more",
                 registry_ttl_ms(service->registry));
        if (!service->is_settled)
            service->settle_from_ms = service->progress_ms = now_ms;
    }
    if (ended) {
        service->counters.expired += ended;
        LOG_WARN("%u clients were silent for %" PRId64 " ms: their routes go", ended,
                 registry_ttl_ms(service->registry));
        service_post_work(service);
    }
    tombstones_expire(&service->tombstones, now_ms, TOMBSTONES_PER_TICK);
    loop_timer_start(&service->tick_timer, registry_tick_ms(service->registry));
}

/* --- heartbeat --- */

static void fill_drops(const struct master_service *service, const struct client *client,
                       Shoal__Wire__MasterHeartbeatResponse *response, struct arena *arena)
{
    const struct drop **drops = arena_alloc(arena, MASTER_DROPS_PER_HEARTBEAT * sizeof(void *));
    size_t count = drops ? registry_drops(client, drops, MASTER_DROPS_PER_HEARTBEAT) : 0;
    Shoal__Wire__MasterDrop *messages = count ? arena_alloc(arena, count * sizeof *messages) : NULL;

    (void)service;
    response->drops = messages ? arena_alloc(arena, count * sizeof(void *)) : NULL;
    if (!response->drops)
        return; /* the next heartbeat brings them */
    for (size_t i = 0; i < count; i++) {
        shoal__wire__master_drop__init(&messages[i]);
        messages[i].sequence = drops[i]->sequence;
        messages[i].key = (char *)(uintptr_t)drops[i]->key; /* only packed */
        messages[i].object_id = drops[i]->object_id;
        response->drops[i] = &messages[i];
    }
    response->n_drops = count;
}

static void fill_targets(struct master_service *service, const struct client *client,
                         Shoal__Wire__MasterHeartbeatResponse *response, struct arena *arena)
{
    size_t best[MASTER_TARGETS_PER_HEARTBEAT];
    struct target_query query = {
        .len_bytes = 1, .local = client->instance, .local_weight = service->config.local_weight};
    size_t candidate_count = registry_candidates(service->registry, service->candidates);
    size_t count = targets_rank(service->candidates, candidate_count, &query, MASTER_TARGETS_PER_HEARTBEAT, best);
    Shoal__Wire__MasterTarget *messages = count ? arena_alloc(arena, count * sizeof *messages) : NULL;

    response->targets = messages ? arena_alloc(arena, count * sizeof(void *)) : NULL;
    if (!response->targets)
        return;
    for (size_t i = 0; i < count; i++) {
        const struct target_candidate *candidate = &service->candidates[best[i]];
        const struct client *target = registry_at(service->registry, candidate->client);
        shoal__wire__master_target__init(&messages[i]);
        messages[i].instance = target->instance;
        messages[i].server_name = target->server_name;
        messages[i].address = target->address;
        messages[i].free_bytes = candidate->free_bytes;
        response->targets[i] = &messages[i];
    }
    response->n_targets = count;
}

static size_t read_tiers(Shoal__Wire__MasterTier *const *messages, size_t count, struct client_tier *tiers_out)
{
    count = count < CLIENT_TIERS_MAX ? count : CLIENT_TIERS_MAX;
    for (size_t i = 0; i < count; i++)
        tiers_out[i] = (struct client_tier){.type = messages[i]->type,
                                            .priority = messages[i]->priority,
                                            .capacity_bytes = messages[i]->capacity_bytes,
                                            .used_bytes = messages[i]->used_bytes};
    return count;
}

static void on_heartbeat(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterHeartbeatResponse response = SHOAL__WIRE__MASTER_HEARTBEAT_RESPONSE__INIT;
    Shoal__Wire__MasterHeartbeatRequest *message;
    struct client_tier tiers[CLIENT_TIERS_MAX];
    struct arena arena = {0};
    struct client *client;

    if (!service_admits(service, request, METHOD_HEARTBEAT))
        return;
    message = shoal__wire__master_heartbeat_request__unpack(NULL, request->body_len, request->body);
    if (!message) {
        service_refuse_malformed(service, request);
        return;
    }
    client = registry_find(service->registry, message->instance);
    if (!client || client->must_register) {
        rpc_reply(request, SHOAL_NOT_FOUND, "unknown here: register", NULL, 0);
        goto free_message;
    }
    response.master_instance = service->instance;
    if (message->is_leaving) {
        LOG_INFO("%s leaves; its %zu routes go", client->server_name, routes_of_client(service->routes, client->slot));
        service->counters.left++;
        registry_end(service->registry, client);
        service_post_work(service);
        service_look_settled(service);
        service_reply(request, &response.base);
        goto free_message;
    }
    registry_heard(client, tiers, read_tiers(message->tiers, message->n_tiers, tiers), message->object_count,
                   clock_now_ms());
    registry_drops_done(client, message->drops_done);
    fill_drops(service, client, &response, &arena);
    fill_targets(service, client, &response, &arena);
    service_reply(request, &response.base);
    arena_release(&arena);

free_message:
    shoal__wire__master_heartbeat_request__free_unpacked(message, NULL);
}

/* --- status --- */

static bool fill_clients(const struct master_service *service, Shoal__Wire__MasterStatusResponse *response,
                         struct arena *arena)
{
    int64_t now_ms = clock_now_ms();
    size_t live = registry_live_count(service->registry);
    uint32_t position = 0;
    struct client *client;

    response->clients = arena_alloc(arena, (live + 1) * sizeof(void *));
    while (response->clients && (client = registry_next(service->registry, &position))) {
        Shoal__Wire__MasterClient *message;
        Shoal__Wire__MasterTier *tiers;
        if (client->state != CLIENT_LIVE)
            continue;
        message = arena_alloc(arena, sizeof *message);
        tiers = message ? arena_alloc(arena, (client->tier_count + 1) * sizeof *tiers) : NULL;
        if (!tiers)
            return false;
        shoal__wire__master_client__init(message);
        message->tiers = arena_alloc(arena, (client->tier_count + 1) * sizeof(void *));
        if (!message->tiers)
            return false;
        message->instance = client->instance;
        message->server_name = client->server_name;
        message->address = client->address;
        message->object_count = routes_of_client(service->routes, client->slot);
        message->silent_ms = (uint64_t)(now_ms - client->heard_ms);
        for (size_t i = 0; i < client->tier_count; i++) {
            shoal__wire__master_tier__init(&tiers[i]);
            tiers[i].type = client->tiers[i].type;
            tiers[i].priority = client->tiers[i].priority;
            tiers[i].capacity_bytes = client->tiers[i].capacity_bytes;
            tiers[i].used_bytes = client->tiers[i].used_bytes;
            message->tiers[i] = &tiers[i];
        }
        message->n_tiers = client->tier_count;
        response->clients[response->n_clients++] = message;
    }
    return response->clients != NULL;
}

static void on_status(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterStatusResponse response = SHOAL__WIRE__MASTER_STATUS_RESPONSE__INIT;
    struct arena arena = {0};

    if (!service_admits(service, request, METHOD_STATUS))
        return;
    service_look_settled(service);
    response.master_instance = service->instance;
    response.key_count = routes_count(service->routes);
    response.route_bytes = routes_bytes(service->routes);
    response.is_settled = service->is_settled;
    response.uptime_ms = (uint64_t)(clock_now_ms() - service->born_ms);
    if (fill_clients(service, &response, &arena))
        service_reply(request, &response.base);
    else
        rpc_reply(request, SHOAL_NO_MEMORY, "the master is out of memory", NULL, 0);
    arena_release(&arena);
}

/* --- life --- */

static void forget_all(struct master_service *service)
{
    registry_destroy(service->registry);
    routes_destroy(service->routes);
    tombstones_release(&service->tombstones);
}

/* A master's life begins: nothing is known. Without memory for that nothing changes. */
static enum shoal_status begin(struct master_service *service, struct shoal_error *error)
{
    struct timespec now;
    struct registry_config registry_config = {.client_ttl_ms = service->config.client_ttl_ms,
                                              .max_clients = service->config.max_clients};
    struct routes_config routes_config = {.max_clients = service->config.max_clients};
    struct registry *registry = NULL;
    struct routes *routes = NULL;
    enum shoal_status status;
    bool was_stalled;

    clock_gettime(CLOCK_REALTIME, &now);
    registry_config.first_sequence = (uint64_t)now.tv_sec << 24;
    status = registry_create(&registry_config, &registry, error);
    if (!status)
        status = routes_create(&routes_config, &routes, error);
    if (status) {
        registry_destroy(registry);
        return status;
    }
    forget_all(service);
    service->registry = registry;
    service->routes = routes;
    tombstones_init(&service->tombstones, TOMBSTONES_MAX, TOMBSTONE_AGE_MS);
    service->instance = random_id();
    service->born_ms = service->settle_from_ms = service->progress_ms = clock_now_ms();
    service->is_settled = false;
    registry_tick(registry, service->born_ms, &was_stalled); /* from here on a late one tells a stall */
    return SHOAL_OK;
}

struct create_args {
    struct master_service *service;
    enum shoal_status status;
    struct shoal_error *error;
};

static void create_on_loop(void *arg)
{
    struct create_args *args = arg;
    struct master_service *service = args->service;
    struct rpc *rpc = service->config.rpc;

    args->status = loop_timer_init(&service->tick_timer, service->config.loop, on_tick, service, args->error);
    if (!args->status)
        args->status = loop_timer_init(&service->wake_timer, service->config.loop, on_wake, service, args->error);
    if (args->status)
        return;
    rpc_set_request_max(rpc, RPC_REQUEST_LARGE_MAX_BYTES);
    rpc_set_handler(rpc, METHOD_REGISTER, register_on_request, service);
    rpc_set_handler(rpc, METHOD_HEARTBEAT, on_heartbeat, service);
    rpc_set_handler(rpc, METHOD_ANNOUNCE, jobs_on_announce, service);
    rpc_set_handler(rpc, METHOD_LOOKUP, jobs_on_lookup, service);
    rpc_set_handler(rpc, METHOD_WRITE_ROUTE, jobs_on_write_route, service);
    rpc_set_handler(rpc, METHOD_REMOVE, jobs_on_remove, service);
    rpc_set_handler(rpc, METHOD_LIST, jobs_on_list, service);
    rpc_set_handler(rpc, METHOD_STATUS, on_status, service);
    loop_timer_start(&service->tick_timer, registry_tick_ms(service->registry));
    loop_timer_start(&service->wake_timer, WAKE_MS);
}

enum shoal_status master_service_create(const struct master_service_config *config, struct master_service **service_out,
                                        struct shoal_error *error)
{
    struct master_service *service = calloc(1, sizeof *service);
    struct create_args args = {.service = service, .error = error};

    if (!service)
        return error_no_memory(error);
    service->config = *config;
    if (!service->config.settle_ms)
        service->config.settle_ms = SETTLE_MS;
    if (!service->config.announce_ms)
        service->config.announce_ms = ANNOUNCE_MS;
    if (!service->config.max_clients)
        service->config.max_clients = MAX_CLIENTS;
    if (!service->config.local_weight)
        service->config.local_weight = LOCAL_WEIGHT;
    service->is_leader = !config->is_standby;
    atomic_init(&service->lead_until_ms, INT64_MAX);
    list_init(&service->running);
    list_init(&service->held);
    list_init(&service->probes);
    service->candidates = calloc(service->config.max_clients, sizeof *service->candidates);
    args.status = service->candidates ? begin(service, error) : error_no_memory(error);
    if (!args.status)
        loop_call(config->loop, create_on_loop, &args);
    if (args.status) {
        master_service_destroy(service);
        return args.status;
    }
    *service_out = service;
    return SHOAL_OK;
}

static void end_on_loop(void *arg)
{
    struct master_service *service = arg;

    service->is_ending = true;
    for (unsigned method = METHOD_REGISTER; method < METHOD_COUNT; method++)
        rpc_set_handler(service->config.rpc, (uint16_t)method, NULL, NULL);
    jobs_end_all(service, SHOAL_CLOSED, "the master is being stopped");
    register_end_all(service, SHOAL_CLOSED, "the master is being stopped");
    loop_timer_release(&service->tick_timer);
    loop_timer_release(&service->wake_timer);
}

static void nothing(void *arg)
{
    (void)arg;
}

void master_service_destroy(struct master_service *service)
{
    if (!service)
        return;
    loop_call(service->config.loop, end_on_loop, service);
    loop_call(service->config.loop, nothing, NULL); /* behind what end_on_loop had posted: ends of dials, work */
    forget_all(service);
    free(service->candidates);
    free(service->leader_address);
    free(service);
}

uint64_t master_service_instance(const struct master_service *service)
{
    return service->instance;
}

/* --- leading --- */

static void lead_on_loop(void *arg)
{
    struct master_service *service = arg;
    struct shoal_error error;

    jobs_end_all(service, SHOAL_CONFLICT, "");
    register_end_all(service, SHOAL_CONFLICT, "");
    if (begin(service, &error)) {
        LOG_ERROR("cannot lead: %s", error.message);
        service->is_leader = false;
        return;
    }
    service->is_leader = true;
    loop_timer_start(&service->wake_timer, WAKE_MS);
}

void master_service_extend(struct master_service *service, int64_t until_ms)
{
    atomic_store_explicit(&service->lead_until_ms, until_ms, memory_order_relaxed);
}

void master_service_lead(struct master_service *service, int64_t until_ms)
{
    master_service_extend(service, until_ms);
    loop_call(service->config.loop, lead_on_loop, service);
}

struct follow_args {
    struct master_service *service;
    const char *leader_address;
};

static void follow_on_loop(void *arg)
{
    const struct follow_args *args = arg;
    struct master_service *service = args->service;
    char *address = strdup(args->leader_address);

    free(service->leader_address);
    service->leader_address = address; /* NULL: a CONFLICT without text */
    service->is_leader = false;
    jobs_end_all(service, SHOAL_CONFLICT, address);
    register_end_all(service, SHOAL_CONFLICT, address);
}

void master_service_follow(struct master_service *service, const char *leader_address)
{
    struct follow_args args = {.service = service, .leader_address = leader_address};

    loop_call(service->config.loop, follow_on_loop, &args);
}

struct ready_args {
    struct master_service *service;
    bool is_ready;
};

static void ready_on_loop(void *arg)
{
    struct ready_args *args = arg;

    args->is_ready = service_is_leading(args->service);
}

bool master_service_is_ready(struct master_service *service)
{
    struct ready_args args = {.service = service};

    loop_call(service->config.loop, ready_on_loop, &args);
    return args.is_ready;
}
