/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that may be large or have to wait: each is a job that does a slice of its entries at a time. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "master/service_internal.h"

#define LOG_MODULE "master"
#include "base/log.h"

#define JOBS_MAX 4096u
#define JOBS_MAX_BYTES (64u << 20) /* of their requests */
#define TIMEOUT_DEFAULT_MS 10000
#define SLICE_ENTRIES 256u /* each costs a few microseconds */
#define SLICE_VISITS 1000u /* routes that a list looks at */
#define SLICE_SCORES 100000u
#define LIST_LIMIT_DEFAULT 1000u
#define STATUS_OPEN INT32_MAX

static enum job_step step_remove(struct job *job);

/* --- all jobs --- */

static void job_free(struct job *job)
{
    struct master_service *service = job->service;

    list_remove(&job->node);
    service->job_count--;
    service->job_bytes -= job->body_len;
    protobuf_c_message_free_unpacked(job->message, NULL);
    pattern_destroy(job->pattern);
    free(job->client_index);
    arena_release(&job->arena);
    free(job);
}

static void on_abort(struct rpc_request *request)
{
    job_free(request->arg);
}

/* CONFLICT says that nothing was done. */
static void end_unfinished(struct job *job, enum shoal_status status, const char *text)
{
    if (status == SHOAL_CONFLICT && job->step == step_remove && job->routes)
        job_fail(job, SHOAL_CLOSED, "the master is not the leader any more");
    else
        job_fail(job, status, text);
}

void jobs_go_on(struct job *job)
{
    struct master_service *service = job->service;

    list_node_init(&job->node);
    if (!service_is_leading(service)) {
        end_unfinished(job, SHOAL_CONFLICT, "");
        job_free(job);
        return;
    }
    switch (job->step(job)) {
    case JOB_AGAIN:
        list_push_back(&service->running, &job->node);
        service_post_work(service);
        break;
    case JOB_HELD:
        if (!job->was_held)
            service->counters.held++;
        job->was_held = true;
        list_push_back(&service->held, &job->node);
        break;
    case JOB_DONE:
        job_free(job);
        break;
    }
}

void job_start(struct master_service *service, struct rpc_request *request, ProtobufCMessage *message,
               enum job_step (*step)(struct job *job))
{
    struct job *job = NULL;
    uint32_t patience_ms = request->timeout_ms ? request->timeout_ms : TIMEOUT_DEFAULT_MS;

    if (service->job_count < JOBS_MAX && service->job_bytes + request->body_len <= JOBS_MAX_BYTES)
        job = calloc(1, sizeof *job);
    if (!job) {
        service->counters.refused_busy++;
        protobuf_c_message_free_unpacked(message, NULL);
        rpc_reply(request, SHOAL_BUSY, "the master has too many unanswered requests", NULL, 0);
        return;
    }
    *job = (struct job){.service = service,
                        .request = request,
                        .message = message,
                        .step = step,
                        .body_len = request->body_len,
                        /* a little before the caller gives up: then it learns why */
                        .deadline_ms = clock_now_ms() + patience_ms - patience_ms / 10};
    request->arg = job;
    request->on_abort = on_abort;
    service->job_count++;
    service->job_bytes += job->body_len;
    jobs_go_on(job);
}

enum job_step job_fail(struct job *job, enum shoal_status status, const char *text)
{
    rpc_reply(job->request, status, text, NULL, 0);
    return JOB_DONE;
}

static enum job_step fail_no_memory(struct job *job)
{
    return job_fail(job, SHOAL_NO_MEMORY, "the master is out of memory");
}

static enum job_step answer(struct job *job, const ProtobufCMessage *message)
{
    service_reply(job->request, message);
    return JOB_DONE;
}

/* Whether an unknown key may still become known; else it is unknown for good. */
static bool is_open(const struct job *job)
{
    return !job->service->is_settled && !job->is_late;
}

void jobs_wake(struct master_service *service)
{
    struct list_node *node;
    int64_t now_ms = clock_now_ms();

    if (list_is_empty(&service->held))
        return;
    while ((node = list_pop_front(&service->held))) {
        struct job *job = container_of(node, struct job, node);
        if (!job->is_late && !service->is_settled && now_ms >= job->deadline_ms) {
            job->is_late = true;
            service->counters.held_timeouts++;
        }
        list_push_back(&service->running, node);
    }
    service_post_work(service);
}

void jobs_end_all(struct master_service *service, enum shoal_status status, const char *text)
{
    struct list *const lists[] = {&service->running, &service->held};

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        LIST_FOR_EACH_SAFE (job, lists[i], struct job, node) {
            end_unfinished(job, status, text);
            job_free(job);
        }
    }
}

/* Unpacks and checks what all batches have in common; NULL: answered. */
#define UNPACK(type, service, request) ((void *)unpack_batch(service, request, &shoal__wire__##type##__descriptor))

static ProtobufCMessage *unpack_batch(struct master_service *service, struct rpc_request *request,
                                      const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = wire_unpack(descriptor, NULL, request->body_len, request->body);

    if (!message)
        service_refuse_malformed(service, request);
    return message;
}

static void refuse(struct rpc_request *request, void *message, const char *problem)
{
    protobuf_c_message_free_unpacked(message, NULL);
    rpc_reply(request, SHOAL_INVALID_ARGUMENT, problem, NULL, 0);
}

static const char *keys_problem(char *const *keys, size_t count)
{
    const char *problem = count > MASTER_BATCH_MAX ? "a batch has at most 4096 entries" : NULL;

    for (size_t i = 0; i < count && !problem; i++)
        problem = service_key_problem(keys[i]);
    return problem;
}

/* --- announce --- */

static const char *announce_problem(const Shoal__Wire__MasterAnnounceRequest *message)
{
    if (message->n_entries > MASTER_BATCH_MAX)
        return "a batch has at most 4096 entries";
    for (size_t i = 0; i < message->n_entries; i++) {
        const Shoal__Wire__MasterAnnounceRequest__Entry *entry = message->entries[i];
        const char *problem = service_key_problem(entry->key);
        if (problem)
            return problem;
        if (!entry->object_id)
            return "an object id is 0";
        if (entry->tier >= CLIENT_TIERS_MAX)
            return "there is no such tier";
        if (entry->kind > SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__REPLICA || (int)entry->kind < 0)
            return "unknown kind of announcement";
    }
    return NULL;
}

static int32_t add(struct master_service *service, struct client *client,
                   const Shoal__Wire__MasterAnnounceRequest__Entry *entry)
{
    return routes_add(service->routes, entry->key, strlen(entry->key), entry->object_id, entry->len_bytes, client->slot,
                      (uint16_t)entry->tier, client->epoch);
}

static int32_t gone(struct master_service *service, struct client *client,
                    const Shoal__Wire__MasterAnnounceRequest__Entry *entry)
{
    enum shoal_status status =
        routes_drop(service->routes, entry->key, strlen(entry->key), entry->object_id, client->slot);
    struct route_view view;

    registry_forget_drop(client, entry->object_id);
    /* A put that was given up, whose own announcement may still be on its way. (Not if others hold it, or may be about
     * to announce that: a replica is gone, not the object.) */
    if (status == SHOAL_NOT_FOUND && service->is_settled && !registry_is_announcing(service->registry) &&
        !(service_find_route(service, entry->key, &view) && view.object_id == entry->object_id))
        tombstones_add(&service->tombstones, entry->object_id, clock_now_ms());
    return SHOAL_OK;
}

/* A client has one object of a key. When it announces a new one, it has lost the old one, and the news of that (it was
 * evicted) are on their way behind. */
static void supersede(struct master_service *service, const struct client *client,
                      const Shoal__Wire__MasterAnnounceRequest__Entry *entry, const struct route_view *view)
{
    struct route_replica replicas[ROUTE_REPLICAS_MAX];

    if (routes_replicas(service->routes, view, replicas) == 1 && replicas[0].client == client->slot)
        routes_drop(service->routes, entry->key, strlen(entry->key), view->object_id, client->slot);
}

static int32_t announce(struct job *job, struct client *client, const Shoal__Wire__MasterAnnounceRequest__Entry *entry)
{
    struct master_service *service = job->service;
    struct route_view view;
    bool is_known;

    if (entry->kind == SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__GONE)
        return gone(service, client, entry);
    if (tombstones_has(&service->tombstones, entry->object_id)) {
        service->counters.tombstone_hits++;
        return SHOAL_NOT_FOUND;
    }
    is_known = service_find_route(service, entry->key, &view);
    switch (entry->kind) {
    case SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__REPLICA:
        if (is_known)
            return view.object_id == entry->object_id ? add(service, client, entry) : SHOAL_NOT_FOUND;
        return is_open(job) ? STATUS_OPEN : job->is_late ? SHOAL_TIMED_OUT : SHOAL_NOT_FOUND;
    case SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__NEW:
        if (!is_known && is_open(job))
            return STATUS_OPEN;
        if (!is_known && job->is_late)
            return SHOAL_TIMED_OUT;
        if (is_known && view.object_id != entry->object_id)
            supersede(service, client, entry, &view);
        return add(service, client, entry);
    default: /* HELD; MOVED: it holds it, wherever, also if this master has not heard of it yet */
        break;
    }
    if (is_known && view.object_id != entry->object_id) {
        service->counters.conflicts++;
        LOG_INFO("%s holds another object of a key than the one that has the route: it has to drop it",
                 client->server_name);
    }
    return add(service, client, entry);
}

static enum job_step step_announce(struct job *job)
{
    struct master_service *service = job->service;
    Shoal__Wire__MasterAnnounceRequest *message = (void *)job->message;
    Shoal__Wire__MasterAnnounceResponse response = SHOAL__WIRE__MASTER_ANNOUNCE_RESPONSE__INIT;
    struct client *client = registry_find(service->registry, message->instance);

    if (!client)
        return job_fail(job, SHOAL_NOT_FOUND, "unknown here: register");
    if (!job->statuses) {
        job->statuses = arena_alloc(&job->arena, (message->n_entries + 1) * sizeof *job->statuses);
        if (!job->statuses)
            return fail_no_memory(job);
        for (size_t i = 0; i < message->n_entries; i++)
            job->statuses[i] = STATUS_OPEN;
        service->counters.announced += message->n_entries;
    }
    for (size_t done = 0; job->next < message->n_entries; job->next++) {
        if (job->statuses[job->next] != STATUS_OPEN)
            continue;
        if (done++ == SLICE_ENTRIES)
            return JOB_AGAIN;
        job->statuses[job->next] = announce(job, client, message->entries[job->next]);
        if (job->statuses[job->next] == STATUS_OPEN)
            job->pending++;
    }
    if (client->is_announcing && message->n_entries &&
        message->entries[0]->kind == SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__HELD)
        service->progress_ms = clock_now_ms();
    if (message->is_last_held)
        service_finish_announcing(service, client);
    message->is_last_held = 0; /* said once, also if the answer has to wait */
    if (job->pending) {
        job->pending = job->next = 0;
        return service->is_settled ? JOB_AGAIN : JOB_HELD;
    }
    response.statuses = job->statuses;
    response.n_statuses = message->n_entries;
    return answer(job, &response.base);
}

void jobs_on_announce(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterAnnounceRequest *message;
    const char *problem;

    if (!service_admits(service, request, METHOD_ANNOUNCE))
        return;
    message = UNPACK(master_announce_request, service, request);
    if (!message)
        return;
    problem = announce_problem(message);
    if (problem)
        refuse(request, message, problem);
    else
        job_start(service, request, &message->base, step_announce);
}

/* --- answers with replicas --- */

/* Place in the answer's list of clients; < 0: out of memory. A slot may have got another owner between two slices. */
static int64_t index_of(struct job *job, const struct client *client)
{
    Shoal__Wire__MasterClient *message;
    uint16_t known;

    if (!job->client_index) {
        job->client_index = calloc(job->service->config.max_clients, sizeof *job->client_index);
        if (!job->client_index)
            return -1;
    }
    known = job->client_index[client->slot];
    if (known && job->clients[known - 1]->instance == client->instance)
        return known - 1;
    if (job->client_count == job->client_capacity) {
        size_t capacity = job->client_capacity ? job->client_capacity * 2 : 8;
        Shoal__Wire__MasterClient **clients = arena_alloc(&job->arena, capacity * sizeof *clients);
        if (!clients || capacity > UINT16_MAX)
            return -1;
        if (job->client_count)
            memcpy(clients, job->clients, job->client_count * sizeof *clients);
        job->clients = clients;
        job->client_capacity = capacity;
    }
    message = arena_alloc(&job->arena, sizeof *message);
    if (!message)
        return -1;
    shoal__wire__master_client__init(message);
    message->instance = client->instance;
    message->server_name = arena_text(&job->arena, client->server_name, strlen(client->server_name));
    message->address = arena_text(&job->arena, client->address, strlen(client->address));
    if (!message->server_name || !message->address)
        return -1;
    job->clients[job->client_count++] = message;
    job->client_index[client->slot] = (uint16_t)job->client_count;
    return (int64_t)job->client_count - 1;
}

static bool fill_replicas(struct job *job, const struct route_view *view, size_t *count_out,
                          Shoal__Wire__MasterReplica ***replicas_out)
{
    struct master_service *service = job->service;
    struct route_replica replicas[ROUTE_REPLICAS_MAX];
    size_t count = routes_replicas(service->routes, view, replicas);
    Shoal__Wire__MasterReplica **pointers = arena_alloc(&job->arena, (count + 1) * sizeof *pointers);
    Shoal__Wire__MasterReplica *messages = arena_alloc(&job->arena, (count + 1) * sizeof *messages);

    if (!pointers || !messages)
        return false;
    *count_out = 0;
    *replicas_out = pointers;
    for (size_t i = 0; i < count; i++) {
        const struct client *client = registry_at(service->registry, replicas[i].client);
        Shoal__Wire__MasterReplica *message = &messages[*count_out];
        int64_t index;
        if (client->state != CLIENT_LIVE)
            continue;
        index = index_of(job, client);
        if (index < 0)
            return false;
        shoal__wire__master_replica__init(message);
        message->client = (uint32_t)index;
        message->tier = replicas[i].tier;
        message->tier_type = replicas[i].tier < client->tier_count ? client->tiers[replicas[i].tier].type : 0;
        pointers[(*count_out)++] = message;
    }
    return true;
}

/* view NULL: not found (status). */
static Shoal__Wire__MasterRoute *route_message(struct job *job, const struct route_view *view, enum shoal_status status)
{
    Shoal__Wire__MasterRoute *message = arena_alloc(&job->arena, sizeof *message);

    if (!message)
        return NULL;
    shoal__wire__master_route__init(message);
    message->status = status;
    if (!view)
        return message;
    message->object_id = view->object_id;
    message->len_bytes = view->len_bytes;
    return fill_replicas(job, view, &message->n_replicas, &message->replicas) ? message : NULL;
}

/* --- lookup --- */

/* Whether all keys are known, a slice at a time. */
static enum job_step look_whether_known(struct job *job, const Shoal__Wire__MasterLookupRequest *message)
{
    struct route_view view;

    for (size_t done = 0; job->next < message->n_keys; job->next++) {
        if (done++ == SLICE_ENTRIES)
            return JOB_AGAIN;
        if (!service_find_route(job->service, message->keys[job->next], &view)) {
            job->next = 0;
            return JOB_HELD;
        }
    }
    job->next = 0;
    job->is_looked = true;
    return JOB_DONE;
}

static enum job_step step_lookup(struct job *job)
{
    struct master_service *service = job->service;
    const Shoal__Wire__MasterLookupRequest *message = (void *)job->message;
    Shoal__Wire__MasterLookupResponse response = SHOAL__WIRE__MASTER_LOOKUP_RESPONSE__INIT;
    enum job_step step;

    if (job->is_late)
        return job_fail(job, SHOAL_TIMED_OUT, "the master has just begun and waits for clients to announce");
    if (!service->is_settled && !job->is_looked) {
        step = look_whether_known(job, message);
        if (step != JOB_DONE)
            return step;
    }
    if (!job->routes) {
        job->next = 0;
        job->routes = arena_alloc(&job->arena, (message->n_keys + 1) * sizeof *job->routes);
        if (!job->routes)
            return fail_no_memory(job);
        service->counters.looked_up += message->n_keys;
    }
    for (size_t done = 0; job->next < message->n_keys; job->next++) {
        struct route_view view;
        bool is_known;
        if (done++ == SLICE_ENTRIES)
            return JOB_AGAIN;
        is_known = service_find_route(service, message->keys[job->next], &view);
        service->counters.not_found += !is_known;
        job->routes[job->next] = route_message(job, is_known ? &view : NULL, is_known ? SHOAL_OK : SHOAL_NOT_FOUND);
        if (!job->routes[job->next])
            return fail_no_memory(job);
    }
    response.routes = job->routes;
    response.n_routes = message->n_keys;
    response.clients = job->clients;
    response.n_clients = job->client_count;
    return answer(job, &response.base);
}

void jobs_on_lookup(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterLookupRequest *message;
    const char *problem;

    if (!service_admits(service, request, METHOD_LOOKUP))
        return;
    message = UNPACK(master_lookup_request, service, request);
    if (!message)
        return;
    problem = keys_problem(message->keys, message->n_keys);
    if (problem)
        refuse(request, message, problem);
    else
        job_start(service, request, &message->base, step_lookup);
}

/* --- remove --- */

/* NULL: out of memory. The answer is made first: what is removed is told. */
static Shoal__Wire__MasterRoute *take_route(struct job *job, const struct route_view *view)
{
    struct master_service *service = job->service;
    Shoal__Wire__MasterRoute *message = route_message(job, view, SHOAL_OK);
    struct route_replica replicas[ROUTE_REPLICAS_MAX];
    size_t count;

    if (!message)
        return NULL;
    count = routes_replicas(service->routes, view, replicas);
    for (size_t i = 0; i < count; i++) {
        struct client *client = registry_at(service->registry, replicas[i].client);
        if (client->state != CLIENT_LIVE)
            continue;
        registry_add_drop(service->registry, client, view->key, view->key_len, view->object_id);
        service->counters.drops++;
    }
    tombstones_add(&service->tombstones, view->object_id, clock_now_ms());
    routes_remove(service->routes, view->key, view->key_len);
    service->counters.removed++;
    return message;
}

static enum job_step step_remove(struct job *job)
{
    struct master_service *service = job->service;
    const Shoal__Wire__MasterRemoveRequest *message = (void *)job->message;
    Shoal__Wire__MasterRemoveResponse response = SHOAL__WIRE__MASTER_REMOVE_RESPONSE__INIT;

    if (!job->routes) {
        job->routes = arena_alloc(&job->arena, (message->n_keys + 1) * sizeof *job->routes);
        if (!job->routes)
            return fail_no_memory(job);
    }
    for (size_t done = 0; job->next < message->n_keys; job->next++) {
        struct route_view view;
        bool is_known;
        if (job->routes[job->next])
            continue;
        if (done++ == SLICE_ENTRIES)
            return JOB_AGAIN;
        is_known = service_find_route(service, message->keys[job->next], &view);
        if (!is_known && is_open(job)) {
            job->pending++;
            continue;
        }
        job->routes[job->next] = is_known ? take_route(job, &view)
                                          : route_message(job, NULL, job->is_late ? SHOAL_TIMED_OUT : SHOAL_NOT_FOUND);
        if (!job->routes[job->next])
            return fail_no_memory(job);
    }
    if (job->pending) {
        job->pending = job->next = 0;
        return service->is_settled ? JOB_AGAIN : JOB_HELD;
    }
    response.routes = job->routes;
    response.n_routes = message->n_keys;
    response.clients = job->clients;
    response.n_clients = job->client_count;
    return answer(job, &response.base);
}

void jobs_on_remove(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterRemoveRequest *message;
    const char *problem;

    if (!service_admits(service, request, METHOD_REMOVE))
        return;
    message = UNPACK(master_remove_request, service, request);
    if (!message)
        return;
    problem = keys_problem(message->keys, message->n_keys);
    if (problem)
        refuse(request, message, problem);
    else
        job_start(service, request, &message->base, step_remove);
}

/* --- write_route --- */

/* Those with room may be about to register. */
static bool may_get_room(const struct job *job, const struct target_query *query)
{
    const struct master_service *service = job->service;
    size_t count;

    if (service->is_settled || job->candidates)
        return false;
    count = registry_candidates(service->registry, service->candidates);
    return targets_best(service->candidates, count, query) == TARGET_NONE;
}

static enum job_step step_write_route(struct job *job)
{
    struct master_service *service = job->service;
    const Shoal__Wire__MasterWriteRouteRequest *message = (void *)job->message;
    Shoal__Wire__MasterWriteRouteResponse response = SHOAL__WIRE__MASTER_WRITE_ROUTE_RESPONSE__INIT;
    struct target_query query = {.local = message->instance,
                                 .local_weight = service->config.local_weight,
                                 .excluded = message->excluded,
                                 .excluded_count = message->n_excluded};
    Shoal__Wire__MasterTarget *target;

    query.len_bytes = message->n_len_bytes ? message->len_bytes[0] : 0;
    if (may_get_room(job, &query))
        return job->is_late
                   ? job_fail(job, SHOAL_TIMED_OUT, "the master has just begun and waits for clients with room")
                   : JOB_HELD;
    if (!job->candidates) {
        job->candidate_count = registry_live_count(service->registry);
        job->candidates = arena_alloc(&job->arena, (job->candidate_count + 1) * sizeof *job->candidates);
        job->targets = arena_alloc(&job->arena, (message->n_len_bytes + 1) * sizeof(void *));
        if (!job->candidates || !job->targets)
            return fail_no_memory(job);
        job->candidate_count = registry_candidates(service->registry, job->candidates);
    }
    for (size_t done = 0; job->next < message->n_len_bytes; job->next++) {
        size_t best;
        struct client *client;
        if (done > SLICE_SCORES)
            return JOB_AGAIN;
        done += (job->candidate_count + 1) * (message->n_excluded + 1);
        query.len_bytes = message->len_bytes[job->next];
        target = arena_alloc(&job->arena, sizeof *target);
        if (!target)
            return fail_no_memory(job);
        shoal__wire__master_target__init(target);
        job->targets[job->next] = target;
        best = targets_best(job->candidates, job->candidate_count, &query);
        if (best == TARGET_NONE)
            continue;
        targets_take(&job->candidates[best], query.len_bytes);
        client = registry_find(service->registry, job->candidates[best].instance);
        if (!client)
            continue; /* died between two slices */
        client->assigned_bytes += query.len_bytes < UINT64_MAX - client->assigned_bytes ? query.len_bytes : 0;
        target->instance = client->instance;
        target->server_name = arena_text(&job->arena, client->server_name, strlen(client->server_name));
        target->address = arena_text(&job->arena, client->address, strlen(client->address));
        target->free_bytes = job->candidates[best].free_bytes;
        if (!target->server_name || !target->address)
            return fail_no_memory(job);
    }
    response.targets = job->targets;
    response.n_targets = message->n_len_bytes;
    return answer(job, &response.base);
}

void jobs_on_write_route(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterWriteRouteRequest *message;

    if (!service_admits(service, request, METHOD_WRITE_ROUTE))
        return;
    message = UNPACK(master_write_route_request, service, request);
    if (!message)
        return;
    if (message->n_len_bytes > MASTER_BATCH_MAX || message->n_excluded > MASTER_BATCH_MAX)
        refuse(request, message, "a batch has at most 4096 entries");
    else
        job_start(service, request, &message->base, step_write_route);
}

/* --- list --- */

static bool visit(void *arg, const struct route_view *view)
{
    struct job *job = arg;
    Shoal__Wire__MasterListResponse__Entry *entry;
    size_t prefix_len;
    const char *prefix = pattern_prefix(job->pattern, &prefix_len);

    if (prefix_len && (view->key_len < prefix_len || memcmp(view->key, prefix, prefix_len) != 0)) {
        job->is_end = true; /* keys are in order: none that follows begins with it */
        return false;
    }
    job->cursor_len = view->key_len;
    memcpy(job->cursor, view->key, view->key_len);
    if (!pattern_matches(job->pattern, view->key, view->key_len))
        return true;
    entry = arena_alloc(&job->arena, sizeof *entry);
    if (!entry)
        goto no_memory;
    shoal__wire__master_list_response__entry__init(entry);
    entry->key = arena_text(&job->arena, view->key, view->key_len);
    entry->len_bytes = view->len_bytes;
    entry->object_id = view->object_id;
    if (!entry->key || !fill_replicas(job, view, &entry->n_replicas, &entry->replicas))
        goto no_memory;
    if (entry->n_replicas) /* else its clients are dead */
        job->entries[job->entry_count++] = entry;
    return job->entry_count < job->limit;

no_memory:
    job->is_out_of_memory = true;
    return false;
}

static enum job_step step_list(struct job *job)
{
    struct master_service *service = job->service;
    Shoal__Wire__MasterListResponse response = SHOAL__WIRE__MASTER_LIST_RESPONSE__INIT;
    size_t visited;

    visited = routes_walk(service->routes, job->cursor_len ? job->cursor : NULL, job->cursor_len, job->is_inclusive,
                          SLICE_VISITS, visit, job);
    job->is_inclusive = false;
    if (job->is_out_of_memory)
        return fail_no_memory(job);
    if (visited == SLICE_VISITS && !job->is_end && job->entry_count < job->limit)
        return JOB_AGAIN;
    response.entries = job->entries;
    response.n_entries = job->entry_count;
    response.clients = job->clients;
    response.n_clients = job->client_count;
    if (job->entry_count == job->limit) { /* also if this was the last one: the next page is empty then */
        response.next_cursor.data = (uint8_t *)job->cursor;
        response.next_cursor.len = job->cursor_len;
    }
    return answer(job, &response.base);
}

static enum job_step step_list_first(struct job *job)
{
    const Shoal__Wire__MasterListRequest *message = (void *)job->message;
    const char *prefix;
    size_t prefix_len;
    struct shoal_error error;
    enum shoal_status status = pattern_create(message->pattern, &job->pattern, &error);

    job->limit = message->limit ? message->limit : LIST_LIMIT_DEFAULT;
    job->cursor = arena_alloc(&job->arena, ROUTE_KEY_MAX_BYTES);
    job->entries = arena_alloc(&job->arena, job->limit * sizeof(void *));
    if (status == SHOAL_INVALID_ARGUMENT)
        return job_fail(job, status, error.message);
    if (status || !job->cursor || !job->entries)
        return fail_no_memory(job);
    prefix = pattern_prefix(job->pattern, &prefix_len);
    if (message->cursor.len) {
        memcpy(job->cursor, message->cursor.data, message->cursor.len);
        job->cursor_len = message->cursor.len;
    } else if (prefix_len) {
        job->cursor_len = prefix_len < ROUTE_KEY_MAX_BYTES ? prefix_len : ROUTE_KEY_MAX_BYTES; /* no key is longer */
        memcpy(job->cursor, prefix, job->cursor_len);
        job->is_inclusive = true;
    }
    job->step = step_list;
    return step_list(job);
}

void jobs_on_list(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterListRequest *message;

    if (!service_admits(service, request, METHOD_LIST))
        return;
    message = UNPACK(master_list_request, service, request);
    if (!message)
        return;
    if (message->limit > MASTER_BATCH_MAX)
        refuse(request, message, "a page has at most 4096 entries");
    else if (message->cursor.len > ROUTE_KEY_MAX_BYTES)
        refuse(request, message, "this is no cursor of a list");
    else
        job_start(service, request, &message->base, step_list_first);
}
