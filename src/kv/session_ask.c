/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the master, on the caller's thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/session_internal.h"
#include "wire/rpc_frame.h"

#define ATTEMPT_TIMEOUT_MS 5000 /* with several masters: one that is silent must not use up the deadline */
#define RETRY_MIN_MS 50
#define RETRY_MAX_MS 500
#define KEY_OVERHEAD_BYTES 4

typedef Shoal__Wire__MasterClient wire_client;

/* true: another attempt, perhaps with another master, may succeed. */
static bool is_worth_retrying(struct session *session, const char *master, enum shoal_status status,
                              const struct shoal_error *error, const struct call *call)
{
    switch (status) {
    case SHOAL_CONFLICT:
        if (!session_master_follow(session, master, error))
            session_master_failed(session, master);
        return true;
    case SHOAL_UNREACHABLE:
    case SHOAL_METADATA:
    case SHOAL_ADDRESS:
    case SHOAL_CLOSED:
        session_master_failed(session, master);
        return true;
    case SHOAL_TIMED_OUT:
        if (deadline_is_past(call->deadline_ms))
            return false;
        session_master_failed(session, master);
        return true;
    case SHOAL_BUSY:
        return true;
    default:
        return false;
    }
}

/* A request went out, and no master said what it did with it. */
static bool is_answer_lost(bool is_sent, enum shoal_status status)
{
    return is_sent && (status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT || status == SHOAL_CLOSED);
}

/* Only a removal must know of each repetition; the others may be repeated by the channels, which is quicker. */
static enum shoal_status call_master(struct session *session, const char *address, enum master_method method,
                                     const struct iovec *part, const struct call *call, struct buf *answer,
                                     bool *is_sent_out, struct shoal_error *error)
{
    if (method == MASTER_METHOD_REMOVE)
        return rpc_channels_call_once_sent(session->channels, address, 0, (uint16_t)method, part, 1, call, answer,
                                           is_sent_out, error);
    *is_sent_out = false;
    return rpc_channels_call(session->channels, address, 0, (uint16_t)method, part, 1, call, answer, error);
}

/* answer: initialised, with its bound. is_repeated_out: the answer is to a request that a master may have acted on
 * before. Set for a removal only. */
static enum shoal_status ask_telling(struct session *session, enum master_method method,
                                     const ProtobufCMessage *request, const struct call *call, struct buf *answer,
                                     bool *is_repeated_out, struct shoal_error *error)
{
    size_t len = protobuf_c_message_get_packed_size(request);
    struct iovec part = {.iov_base = malloc(len ? len : 1), .iov_len = len};
    struct shoal_error last = {.status = SHOAL_OK}, trouble;
    struct random random;
    enum shoal_status status;

    if (!part.iov_base)
        return error_no_memory(error);
    protobuf_c_message_pack(request, part.iov_base);
    random_init(&random, session->instance ^ (uint64_t)clock_now_ns());
    *is_repeated_out = false;
    for (unsigned attempt = 0;; attempt++) {
        char master[HOSTPORT_TEXT_BYTES], address[HOSTPORT_TEXT_BYTES];
        bool is_sent = false;
        struct call bounded =
            session->master_count > 1 || session->meta ? call_with_timeout(call, ATTEMPT_TIMEOUT_MS) : *call;

        status = session_master_find(session, &bounded, master, &trouble);
        if (!status)
            status = session_master_resolve(master, address, &trouble);
        if (!status)
            status = call_master(session, address, method, &part, &bounded, answer, &is_sent, &trouble);
        if (status == SHOAL_OK)
            break;
        *is_repeated_out = *is_repeated_out || is_answer_lost(is_sent, status);
        /* What the deadline cut off says less than the failure before it. */
        if (status != SHOAL_TIMED_OUT || last.status == SHOAL_OK)
            session_master_explain(master, &trouble, &last);
        if (!is_worth_retrying(session, master, status, &trouble, call))
            break;
        if (last.status == SHOAL_CONFLICT)
            error_prefix(&last, "not the leader");
        last.status = SHOAL_UNREACHABLE;
        status =
            call_sleep(call, RETRY_MIN_MS + backoff_ms(&random, attempt, RETRY_MIN_MS, RETRY_MAX_MS - RETRY_MIN_MS),
                       &trouble, "asking the master");
        if (status == SHOAL_CANCELED)
            last = trouble;
        if (status)
            break;
    }
    free(part.iov_base);
    return status ? error_copy(error, &last) : SHOAL_OK;
}

static enum shoal_status ask(struct session *session, enum master_method method, const ProtobufCMessage *request,
                             const struct call *call, struct buf *answer, struct shoal_error *error)
{
    bool is_repeated;

    return ask_telling(session, method, request, call, answer, &is_repeated, error);
}

static enum shoal_status malformed(struct session *session, struct shoal_error *error, const char *what)
{
    char master[HOSTPORT_TEXT_BYTES];

    session_master_current(session, master);
    return error_set(error, SHOAL_PROTOCOL, 0, "master %s: malformed answer to %s", master, what);
}

static bool is_client_valid(const wire_client *client)
{
    return strlen(client->server_name) < sizeof((struct session_replica *)NULL)->server_name &&
           strlen(client->address) < sizeof((struct session_replica *)NULL)->address;
}

/* The texts fit: that was checked when they came. */
static void fill_replica(struct session_replica *replica, uint64_t instance, const char *server_name,
                         const char *address)
{
    replica->instance = instance;
    strcpy(replica->server_name, server_name);
    strcpy(replica->address, address);
    replica->tier = replica->tier_type = 0;
}

/* --- lookup and remove --- */

/* Removal has the same form on the wire: keys there, routes and clients back. */
typedef Shoal__Wire__MasterLookupResponse routes_answer;

static bool is_answer_valid(const routes_answer *answer, size_t key_count)
{
    if (answer->n_routes != key_count)
        return false;
    for (size_t i = 0; i < answer->n_clients; i++)
        if (!is_client_valid(answer->clients[i]))
            return false;
    for (size_t i = 0; i < answer->n_routes; i++) {
        const Shoal__Wire__MasterRoute *route = answer->routes[i];

        if (route->status != SHOAL_OK && route->status != SHOAL_NOT_FOUND && route->status != SHOAL_TIMED_OUT)
            return false;
        for (size_t k = 0; k < route->n_replicas; k++)
            if (route->replicas[k]->client >= answer->n_clients)
                return false;
    }
    return true;
}

/* As many keys as fit into one request. */
static size_t chunk_of(const char *const *keys, size_t count)
{
    size_t bytes = 0, taken = 0;

    while (taken < count) {
        bytes += strlen(keys[taken]) + KEY_OVERHEAD_BYTES;
        if (taken && bytes > SESSION_BATCH_MAX_BYTES)
            break;
        taken++;
    }
    return taken;
}

/* A removal was repeated: who had copies was in the answer that is lost, and only their next heartbeats tell them. */
static void mark_unsure(routes_answer *answer)
{
    for (size_t i = 0; i < answer->n_routes; i++)
        if (answer->routes[i]->status == SHOAL_NOT_FOUND)
            answer->routes[i]->status = SHOAL_UNREACHABLE;
}

static enum shoal_status ask_chunk(struct session *session, enum master_method method, const char *const *keys,
                                   size_t count, const struct call *call, routes_answer **answer_out,
                                   struct shoal_error *error)
{
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    enum shoal_status status;
    routes_answer *answer;
    struct buf body;
    bool is_repeated;

    request.n_keys = count;
    request.keys = (char **)(uintptr_t)keys;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = ask_telling(session, method, &request.base, call, &body, &is_repeated, error);
    if (!status) {
        answer = shoal__wire__master_lookup_response__unpack(NULL, body.len, body.data);
        if (answer && is_answer_valid(answer, count)) {
            if (is_repeated && method == MASTER_METHOD_REMOVE)
                mark_unsure(answer);
            *answer_out = answer;
        } else {
            if (answer)
                shoal__wire__master_lookup_response__free_unpacked(answer, NULL);
            status = malformed(session, error, method == MASTER_METHOD_REMOVE ? "a removal" : "a lookup");
        }
    }
    buf_release(&body);
    return status;
}

static struct session_route *build_routes(routes_answer *const *answers, size_t answer_count, size_t count)
{
    struct session_route *routes, *route;
    struct session_replica *replica;
    size_t replica_count = 0;

    for (size_t i = 0; i < answer_count; i++)
        for (size_t k = 0; k < answers[i]->n_routes; k++)
            replica_count += answers[i]->routes[k]->n_replicas;
    routes = malloc(count * sizeof *routes + replica_count * sizeof *replica + 1);
    if (!routes)
        return NULL;
    route = routes;
    replica = (struct session_replica *)(void *)(routes + count);
    for (size_t i = 0; i < answer_count; i++) {
        for (size_t k = 0; k < answers[i]->n_routes; k++) {
            const Shoal__Wire__MasterRoute *from = answers[i]->routes[k];

            *route++ = (struct session_route){.status = (enum shoal_status)from->status,
                                              .object_id = from->object_id,
                                              .len_bytes = from->len_bytes,
                                              .replica_count = from->n_replicas,
                                              .replicas = replica};
            for (size_t r = 0; r < from->n_replicas; r++, replica++) {
                const wire_client *client = answers[i]->clients[from->replicas[r]->client];

                fill_replica(replica, client->instance, client->server_name, client->address);
                replica->tier = from->replicas[r]->tier;
                replica->tier_type = from->replicas[r]->tier_type;
            }
        }
    }
    return routes;
}

static enum shoal_status ask_routes(struct session *session, enum master_method method, const char *const *keys,
                                    size_t count, const struct call *call, struct session_route **routes_out,
                                    struct shoal_error *error)
{
    routes_answer **answers;
    size_t answer_count = 0, done = 0;
    enum shoal_status status = SHOAL_OK;

    if (count > SESSION_KEYS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu keys at once: at most %u", count, SESSION_KEYS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(keys[i]);
        if (len == 0 || len > TIER_KEY_MAX_BYTES)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "key of %zu bytes: want 1 to %u", len,
                             TIER_KEY_MAX_BYTES);
    }
    answers = calloc(count + 1, sizeof(routes_answer *));
    if (!answers)
        return error_no_memory(error);
    while (done < count && !status) {
        size_t chunk = chunk_of(keys + done, count - done);

        status = ask_chunk(session, method, keys + done, chunk, call, &answers[answer_count], error);
        if (!status)
            answer_count++;
        done += chunk;
    }
    if (!status) {
        struct session_route *routes = build_routes(answers, answer_count, count);

        if (routes)
            *routes_out = routes;
        else
            status = error_no_memory(error);
    }
    for (size_t i = 0; i < answer_count; i++)
        shoal__wire__master_lookup_response__free_unpacked(answers[i], NULL);
    free(answers);
    return status;
}

enum shoal_status session_lookup(struct session *session, const char *const *keys, size_t count,
                                 const struct call *call, struct session_route **routes_out, struct shoal_error *error)
{
    return ask_routes(session, MASTER_METHOD_LOOKUP, keys, count, call, routes_out, error);
}

enum shoal_status session_remove(struct session *session, const char *const *keys, size_t count,
                                 const struct call *call, struct session_route **routes_out, struct shoal_error *error)
{
    return ask_routes(session, MASTER_METHOD_REMOVE, keys, count, call, routes_out, error);
}

/* --- where to write --- */

static bool is_excluded(uint64_t instance, const uint64_t *excluded, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (excluded[i] == instance)
            return true;
    return false;
}

/* One of the remembered targets: this client itself if the master put it first, else by chance, in proportion to the
 * free space, so that all writers of a cluster do not run to the same one until the next heartbeat. false: ask. */
static bool take_target(struct session *session, uint64_t len_bytes, const uint64_t *excluded, size_t excluded_count,
                        struct session_replica *target_out)
{
    Shoal__Wire__MasterTarget *chosen = NULL;
    uint64_t sum = 0;
    size_t count;

    mutex_lock(&session->mutex);
    count = session->targets && !deadline_is_past(session->targets_until_ms) ? session->targets->n_targets : 0;
    for (size_t i = 0; i < count && i < SESSION_TARGETS_MAX; i++) {
        Shoal__Wire__MasterTarget *target = session->targets->targets[i];
        uint64_t weight = target->free_bytes / 4096 / SESSION_TARGETS_MAX + 1; /* their sum does not overflow */

        if (target->free_bytes < len_bytes || is_excluded(target->instance, excluded, excluded_count) ||
            strlen(target->server_name) >= sizeof target_out->server_name ||
            strlen(target->address) >= sizeof target_out->address)
            continue;
        sum += weight;
        if (random_below(&session->target_random, sum) < weight)
            chosen = target;
        if (i == 0 && target->instance == session->instance)
            break;
    }
    if (chosen) {
        chosen->free_bytes -= len_bytes; /* until the master tells anew */
        fill_replica(target_out, chosen->instance, chosen->server_name, chosen->address);
    }
    mutex_unlock(&session->mutex);
    return chosen != NULL;
}

enum shoal_status session_write_target(struct session *session, uint64_t len_bytes, const uint64_t *excluded,
                                       size_t excluded_count, const struct call *call,
                                       struct session_replica *target_out, struct shoal_error *error)
{
    Shoal__Wire__MasterWriteRouteRequest request = SHOAL__WIRE__MASTER_WRITE_ROUTE_REQUEST__INIT;
    Shoal__Wire__MasterWriteRouteResponse *answer;
    enum shoal_status status;
    struct buf body;

    if (take_target(session, len_bytes, excluded, excluded_count, target_out))
        return SHOAL_OK;
    request.instance = session->instance;
    request.n_len_bytes = 1;
    request.len_bytes = &len_bytes;
    request.n_excluded = excluded_count;
    request.excluded = (uint64_t *)(uintptr_t)excluded;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = ask(session, MASTER_METHOD_WRITE_ROUTE, &request.base, call, &body, error);
    if (status)
        goto out;
    answer = shoal__wire__master_write_route_response__unpack(NULL, body.len, body.data);
    if (!answer || answer->n_targets != 1 ||
        strlen(answer->targets[0]->server_name) >= sizeof target_out->server_name ||
        strlen(answer->targets[0]->address) >= sizeof target_out->address)
        status = malformed(session, error, "a write route");
    else if (!answer->targets[0]->instance || is_excluded(answer->targets[0]->instance, excluded, excluded_count))
        status = error_set(error, SHOAL_NO_SPACE, 0, "no client has room for %" PRIu64 " bytes", len_bytes);
    else
        fill_replica(target_out, answer->targets[0]->instance, answer->targets[0]->server_name,
                     answer->targets[0]->address);
    if (answer)
        shoal__wire__master_write_route_response__free_unpacked(answer, NULL);

out:
    buf_release(&body);
    return status;
}

/* --- list and status --- */

/* One allocation: page, entries, cursor, keys. */
static struct session_page *build_page(const Shoal__Wire__MasterListResponse *answer)
{
    size_t text_bytes = answer->next_cursor.len;
    struct session_page *page;
    char *text;

    for (size_t i = 0; i < answer->n_entries; i++)
        text_bytes += strlen(answer->entries[i]->key) + 1;
    page = malloc(sizeof *page + answer->n_entries * sizeof *page->entries + text_bytes);
    if (!page)
        return NULL;
    page->entries = (struct session_entry *)(void *)(page + 1);
    page->count = answer->n_entries;
    text = (char *)(page->entries + page->count);
    page->cursor = text;
    page->cursor_len = answer->next_cursor.len;
    if (page->cursor_len)
        memcpy(text, answer->next_cursor.data, page->cursor_len);
    text += page->cursor_len;
    for (size_t i = 0; i < page->count; i++) {
        const Shoal__Wire__MasterListResponse__Entry *from = answer->entries[i];
        size_t len = strlen(from->key) + 1;

        page->entries[i] = (struct session_entry){.key = memcpy(text, from->key, len),
                                                  .len_bytes = from->len_bytes,
                                                  .object_id = from->object_id,
                                                  .replica_count = (unsigned)from->n_replicas};
        text += len;
    }
    return page;
}

enum shoal_status session_list(struct session *session, const char *pattern, const void *cursor, size_t cursor_len,
                               unsigned limit, const struct call *call, struct session_page **page_out,
                               struct shoal_error *error)
{
    Shoal__Wire__MasterListRequest request = SHOAL__WIRE__MASTER_LIST_REQUEST__INIT;
    Shoal__Wire__MasterListResponse *answer;
    struct session_page *page;
    enum shoal_status status;
    struct buf body;

    request.pattern = (char *)(uintptr_t)(pattern ? pattern : "");
    request.cursor.data = (uint8_t *)(uintptr_t)cursor;
    request.cursor.len = cursor_len;
    request.limit = limit;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = ask(session, MASTER_METHOD_LIST, &request.base, call, &body, error);
    if (status)
        goto out;
    answer = shoal__wire__master_list_response__unpack(NULL, body.len, body.data);
    if (!answer) {
        status = malformed(session, error, "a list");
        goto out;
    }
    page = build_page(answer);
    shoal__wire__master_list_response__free_unpacked(answer, NULL);
    if (page)
        *page_out = page;
    else
        status = error_no_memory(error);

out:
    buf_release(&body);
    return status;
}

void session_page_free(struct session_page *page)
{
    free(page);
}

enum shoal_status session_status(struct session *session, const struct call *call,
                                 Shoal__Wire__MasterStatusResponse **status_out, struct shoal_error *error)
{
    Shoal__Wire__MasterStatusRequest request = SHOAL__WIRE__MASTER_STATUS_REQUEST__INIT;
    Shoal__Wire__MasterStatusResponse *answer = NULL;
    enum shoal_status status;
    struct buf body;

    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = ask(session, MASTER_METHOD_STATUS, &request.base, call, &body, error);
    if (!status) {
        answer = shoal__wire__master_status_response__unpack(NULL, body.len, body.data);
        if (answer)
            *status_out = answer;
        else
            status = malformed(session, error, "a question for its status");
    }
    buf_release(&body);
    return status;
}
