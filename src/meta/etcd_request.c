/* SPDX-License-Identifier: Apache-2.0 */
/* One request of the etcd backend: choice of the endpoint, attempts with their own time, what may be repeated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "meta/etcd.h"

#define LOG_MODULE "meta"
#define ATTEMPT_MAX_MS 1500 /* with several endpoints: longer than an election, shorter than anybody's deadline */
#define ATTEMPT_MIN_MS 100
#define AVOID_BASE_MS 2000
#define AVOID_MAX_MS 16000
/* When every endpoint refuses, a new one is hardly on its way: say so soon. When they are only slow, use the deadline.
 */
#define HARD_GRACE_MS 1000
#define PATIENCE_MS 30000 /* of a call without deadline, for a service that is only slow */
#define BACKOFF_BASE_MS 40
#define BACKOFF_MAX_MS 500
#define IDLE_MAX 16 /* kept connections; more are closed after use */
#define AUTH_REPEATS_MAX 2

enum grpc_code {
    GRPC_CANCELED = 1,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_UNAVAILABLE = 14,
    GRPC_UNAUTHENTICATED = 16,
};

/* --- endpoints -----------------------------------------------------------------------------------------------------
 */

size_t etcd_pick_endpoint(struct etcd *etcd, uint32_t tried)
{
    int64_t now_ms = clock_now_ms(), best_until_ms = INT64_MAX;
    size_t best = 0;
    mutex_lock(&etcd->lock);
    for (size_t step = 0; step < etcd->endpoint_count; step++) {
        size_t index = (etcd->preferred + step) % etcd->endpoint_count;
        int64_t until_ms = etcd->endpoints[index].avoid_until_ms;
        if (tried & (1u << index))
            continue;
        if (until_ms <= now_ms) {
            best = index;
            break;
        }
        if (until_ms < best_until_ms) {
            best = index;
            best_until_ms = until_ms;
        }
    }
    mutex_unlock(&etcd->lock);
    return best;
}

void etcd_endpoint_answered(struct etcd *etcd, size_t index)
{
    mutex_lock(&etcd->lock);
    struct etcd_endpoint *endpoint = &etcd->endpoints[index];
    endpoint->avoid_until_ms = 0;
    endpoint->failures = 0;
    endpoint->answered_ms = clock_now_ms();
    etcd->preferred = index;
    mutex_unlock(&etcd->lock);
}

void etcd_endpoint_failed(struct etcd *etcd, size_t index)
{
    mutex_lock(&etcd->lock);
    struct etcd_endpoint *endpoint = &etcd->endpoints[index];
    int64_t avoid_ms = AVOID_BASE_MS << (endpoint->failures < 3 ? endpoint->failures : 3);
    endpoint->failures++;
    endpoint->avoid_until_ms = clock_now_ms() + deadline_min(avoid_ms, AVOID_MAX_MS);
    endpoint->answered_ms = 0;
    mutex_unlock(&etcd->lock);
}

bool etcd_endpoint_is_fresh(struct etcd *etcd, size_t index, int64_t window_ms)
{
    mutex_lock(&etcd->lock);
    int64_t answered_ms = etcd->endpoints[index].answered_ms;
    mutex_unlock(&etcd->lock);
    return answered_ms && clock_now_ms() - answered_ms < window_ms;
}

bool etcd_endpoint_is_avoided(struct etcd *etcd, size_t index)
{
    mutex_lock(&etcd->lock);
    int64_t until_ms = etcd->endpoints[index].avoid_until_ms;
    mutex_unlock(&etcd->lock);
    return until_ms > clock_now_ms();
}

/* --- connections ---------------------------------------------------------------------------------------------------
 */

static enum shoal_status take_http(struct etcd *etcd, struct etcd_http **http_out, struct shoal_error *error)
{
    mutex_lock(&etcd->lock);
    struct list_node *node = list_pop_front(&etcd->idle);
    etcd->idle_count -= node != NULL;
    mutex_unlock(&etcd->lock);
    if (!node)
        return etcd_http_create(&etcd->http_config, http_out, error);
    *http_out = container_of(node, struct etcd_http, node);
    return SHOAL_OK;
}

static void give_back_http(struct etcd *etcd, struct etcd_http *http)
{
    buf_release(&http->response);
    mutex_lock(&etcd->lock);
    bool is_kept = etcd->idle_count < IDLE_MAX;
    if (is_kept) {
        list_push_front(&etcd->idle, &http->node); /* the warmest connection first */
        etcd->idle_count++;
    }
    mutex_unlock(&etcd->lock);
    if (!is_kept)
        etcd_http_destroy(http);
}

/* --- one attempt ---------------------------------------------------------------------------------------------------
 */

enum attempt {
    ATTEMPT_GOOD,  /* verdict is set */
    ATTEMPT_FINAL, /* status and error are set: no repetition helps */
    ATTEMPT_HARD,  /* this endpoint does not serve etcd now */
    ATTEMPT_SOFT,  /* this endpoint is slow or has no quorum */
    ATTEMPT_AUTH,  /* the token was refused */
};

struct attempt_state {
    struct etcd *etcd;
    const struct etcd_request *request;
    const char *token;
    enum etcd_verdict verdict;
    bool was_seen; /* the service may have acted */
    struct shoal_error error;
};

bool etcd_failure_is_auth(const struct etcd_failure *failure)
{
    return failure->code == GRPC_UNAUTHENTICATED || strstr(failure->message, "invalid auth token") ||
           strstr(failure->message, "auth store is old") || strstr(failure->message, "user name is empty");
}

static enum attempt judge_failure(struct attempt_state *state, const char *endpoint, const struct etcd_failure *failure)
{
    const struct etcd_request *request = state->request;
    const char *message = failure->message;
    if (strstr(message, "lease not found")) {
        state->verdict = ETCD_NO_LEASE;
        return ATTEMPT_GOOD;
    }
    if (strstr(message, "lease already exists")) {
        state->verdict = ETCD_LEASE_EXISTS;
        return ATTEMPT_GOOD;
    }
    if (strstr(message, "has been compacted") || strstr(message, "future revision")) {
        state->verdict = ETCD_COMPACTED;
        return ATTEMPT_GOOD;
    }
    if (failure->code == GRPC_RESOURCE_EXHAUSTED && request->is_divisible && strstr(message, "larger than max")) {
        state->verdict = ETCD_ANSWER_TOO_LARGE;
        return ATTEMPT_GOOD;
    }
    bool is_unseen =
        strstr(message, "no leader") || strstr(message, "too many requests") || failure->code == GRPC_UNAUTHENTICATED;
    state->was_seen = !is_unseen;
    enum shoal_status status = strstr(message, "request is too large") ? SHOAL_INVALID_ARGUMENT : SHOAL_METADATA;
    error_set(&state->error, status, 0, "metadata %s: %s: %s", request->what, endpoint, message);
    if (etcd_failure_is_auth(failure)) {
        state->was_seen = false;
        return ATTEMPT_AUTH;
    }
    switch (failure->code) {
    case GRPC_UNAVAILABLE:
    case GRPC_DEADLINE_EXCEEDED:
    case GRPC_CANCELED:
        return ATTEMPT_SOFT;
    case GRPC_RESOURCE_EXHAUSTED:
        return strstr(message, "too many requests") ? ATTEMPT_SOFT : ATTEMPT_FINAL;
    default:
        return ATTEMPT_FINAL;
    }
}

static enum attempt judge_answer(struct attempt_state *state, const struct etcd_endpoint *endpoint,
                                 const struct etcd_http *http, long http_status)
{
    const char *text = http->response.data ? (const char *)http->response.data : "";
    size_t len = http->response.len;
    struct etcd_failure failure;
    state->was_seen = true;
    if (http_status == 200) {
        enum shoal_status status = state->request->decode(text, len, state->request->arg, &state->error);
        if (status == SHOAL_OK) {
            state->verdict = ETCD_DONE;
            return ATTEMPT_GOOD;
        }
        if (status != SHOAL_METADATA)
            return ATTEMPT_FINAL;
        if (etcd_decode_failure(text, len, &failure))
            return judge_failure(state, endpoint->name, &failure);
        error_prefix(&state->error, "metadata %s: %s", state->request->what, endpoint->name);
        return ATTEMPT_HARD;
    }
    if (etcd_decode_failure(text, len, &failure))
        return judge_failure(state, endpoint->name, &failure);
    error_set(&state->error, SHOAL_METADATA, 0, "metadata %s: %s: answers HTTP status %ld and no etcd v3 error",
              state->request->what, endpoint->name, http_status);
    return http_status == 429 || http_status == 502 || http_status == 503 || http_status == 504 ? ATTEMPT_SOFT
                                                                                                : ATTEMPT_HARD;
}

static enum attempt try_endpoint(struct attempt_state *state, size_t index, struct etcd_http *http,
                                 const struct call *call, int64_t attempt_ms)
{
    struct etcd *etcd = state->etcd;
    const struct etcd_request *request = state->request;
    const struct etcd_endpoint *endpoint = &etcd->endpoints[index];
    struct etcd_http_result result;
    char url[ETCD_URL_BYTES + 64];
    snprintf(url, sizeof url, "%s%s", endpoint->url, request->path);
    meta_count_request(&etcd->meta, request->kind, request->body->len);
    enum shoal_status status =
        etcd_http_post(http, url, state->token, request->body, request->is_change, ETCD_RESPONSE_MAX_BYTES,
                       deadline_after_ms(attempt_ms), call, &result, &state->error);
    meta_count_received(&etcd->meta, http->response.len);
    if (status != SHOAL_OK)
        return ATTEMPT_FINAL;
    switch (result.outcome) {
    case ETCD_HTTP_ANSWERED:
        if (request->clock) {
            request->clock->has_clock = result.has_clock;
            request->clock->clock_ahead_ms = result.clock_ahead_ms;
        }
        return judge_answer(state, endpoint, http, result.status);
    case ETCD_HTTP_TOO_LARGE:
        state->was_seen = true;
        if (request->is_divisible) {
            state->verdict = ETCD_ANSWER_TOO_LARGE;
            return ATTEMPT_GOOD;
        }
        error_set(&state->error, SHOAL_METADATA, 0, "metadata %s: %s: %s", request->what, endpoint->name, result.cause);
        return ATTEMPT_HARD;
    case ETCD_HTTP_NOT_SENT:
    case ETCD_HTTP_LOST:
        break;
    }
    state->was_seen = result.outcome == ETCD_HTTP_LOST;
    if (result.is_timeout)
        error_set(&state->error, SHOAL_METADATA, 0, "metadata %s: %s: %s (%lld ms)", request->what, endpoint->name,
                  result.cause, (long long)attempt_ms);
    else
        error_set(&state->error, SHOAL_METADATA, 0, "metadata %s: %s: %s", request->what, endpoint->name, result.cause);
    return result.is_setup ? ATTEMPT_FINAL : result.is_timeout ? ATTEMPT_SOFT : ATTEMPT_HARD;
}

/* --- the loop ------------------------------------------------------------------------------------------------------
 */

/* A stopped member must leave time for the others. */
static int64_t attempt_time_ms(const struct etcd *etcd, int64_t deadline_ms)
{
    int64_t left_ms = deadline_left_ms(deadline_ms);
    if (etcd->endpoint_count == 1)
        return left_ms;
    int64_t share_ms = deadline_min(left_ms / 3, ATTEMPT_MAX_MS);
    return share_ms < ATTEMPT_MIN_MS ? deadline_min(ATTEMPT_MIN_MS, left_ms) : share_ms;
}

/* The call's own end, with the last failure as its reason. */
static enum shoal_status end_of_call(const struct etcd *etcd, const struct call *call,
                                     const struct etcd_request *request, const struct shoal_error *last, bool has_last,
                                     struct shoal_error *error)
{
    if (has_last)
        return call_check(call, error, last->message);
    return meta_call_check(&etcd->meta, call, request->what, error);
}

/* Sends with one token until something final happens. ATTEMPT_AUTH: get another token. */
static enum attempt send_until_final(struct attempt_state *state, struct etcd_http *http, const struct call *call,
                                     bool *is_repeated, enum shoal_status *status_out, struct shoal_error *error)
{
    struct etcd *etcd = state->etcd;
    uint32_t tried = 0;
    bool is_round_hard = true, has_failed = false;
    int64_t start_ms = clock_now_ms();
    int64_t give_up_ms = deadline_min(call->deadline_ms, start_ms + PATIENCE_MS);
    if (call->deadline_ms != DEADLINE_NONE)
        give_up_ms = call->deadline_ms;
    struct call bounded = {.deadline_ms = give_up_ms, .cancel = call->cancel};

    for (unsigned round = 0;;) {
        if (cancel_is_triggered(call->cancel) || deadline_is_past(give_up_ms)) {
            *status_out = end_of_call(etcd, call, state->request, &state->error, has_failed, error);
            if (*status_out == SHOAL_OK) /* no deadline, but no patience either */
                *status_out = error_copy(error, &state->error);
            return ATTEMPT_FINAL;
        }
        size_t index = etcd_pick_endpoint(etcd, tried);
        tried |= 1u << index;
        state->was_seen = false;
        enum attempt attempt = try_endpoint(state, index, http, &bounded, attempt_time_ms(etcd, give_up_ms));
        *is_repeated |= state->was_seen && attempt != ATTEMPT_GOOD;
        switch (attempt) {
        case ATTEMPT_GOOD:
            etcd_endpoint_answered(etcd, index);
            *status_out = SHOAL_OK;
            return attempt;
        case ATTEMPT_AUTH:
            etcd_endpoint_answered(etcd, index);
            *status_out = error_copy(error, &state->error);
            return attempt;
        case ATTEMPT_FINAL:
            *status_out = error_copy(error, &state->error);
            return attempt;
        case ATTEMPT_HARD:
        case ATTEMPT_SOFT:
            break;
        }
        has_failed = true;
        is_round_hard &= attempt == ATTEMPT_HARD;
        /* A request that ended because its call did says nothing about the endpoint. */
        if (cancel_is_triggered(call->cancel))
            continue;
        etcd_endpoint_failed(etcd, index);
        meta_count_retry(&etcd->meta);
        LOG_DEBUG("%s", state->error.message);
        if (tried != (1u << etcd->endpoint_count) - 1)
            continue;
        if (is_round_hard && clock_now_ms() - start_ms >= HARD_GRACE_MS) {
            *status_out = error_copy(error, &state->error);
            return ATTEMPT_FINAL;
        }
        mutex_lock(&etcd->lock);
        int64_t delay_ms = backoff_ms(&etcd->random, round++, BACKOFF_BASE_MS, BACKOFF_MAX_MS);
        mutex_unlock(&etcd->lock);
        etcd_http_sleep(http, delay_ms, &bounded);
        tried = 0;
        is_round_hard = true;
    }
}

static enum shoal_status perform(struct etcd *etcd, const struct etcd_request *request, bool wants_token,
                                 const struct call *call, enum etcd_verdict *verdict_out, struct shoal_error *error)
{
    struct etcd_http *http = NULL;
    char token[ETCD_TOKEN_MAX_BYTES] = "";
    struct attempt_state state = {.etcd = etcd, .request = request, .token = token};
    bool is_repeated = false;
    enum shoal_status status = take_http(etcd, &http, error);
    if (status != SHOAL_OK)
        return status;
    for (unsigned auth_repeats = 0;; auth_repeats++) {
        if (wants_token)
            status = etcd_token(etcd, call, token, error);
        if (status != SHOAL_OK)
            break;
        enum attempt attempt = send_until_final(&state, http, call, &is_repeated, &status, error);
        if (attempt != ATTEMPT_AUTH || !wants_token || !etcd->user || auth_repeats == AUTH_REPEATS_MAX)
            break;
        etcd_drop_token(etcd, token);
    }
    give_back_http(etcd, http);
    if (request->is_repeated_out)
        *request->is_repeated_out = is_repeated;
    if (status == SHOAL_OK)
        *verdict_out = state.verdict;
    return status;
}

enum shoal_status etcd_perform(struct etcd *etcd, const struct etcd_request *request, const struct call *call,
                               enum etcd_verdict *verdict_out, struct shoal_error *error)
{
    return perform(etcd, request, true, call, verdict_out, error);
}

/* --- authentication ------------------------------------------------------------------------------------------------
 */

struct token_answer {
    char token[ETCD_TOKEN_MAX_BYTES];
};

static enum shoal_status decode_token(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    struct token_answer *answer = arg;
    return etcd_decode_authenticate(text, len, answer->token, error);
}

static enum shoal_status authenticate(struct etcd *etcd, const struct call *call, struct token_answer *answer,
                                      struct shoal_error *error)
{
    struct buf body;
    enum etcd_verdict verdict;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    enum shoal_status status = etcd_encode_authenticate(&body, etcd->user, etcd->password)
                                   ? SHOAL_OK
                                   : error_set(error, SHOAL_INVALID_ARGUMENT, 0, "etcd user or password is not UTF-8");
    if (status == SHOAL_OK) {
        struct etcd_request request = {.what = "authentication",
                                       .path = "/v3/auth/authenticate",
                                       .kind = META_REQUEST_OTHER,
                                       .body = &body,
                                       .decode = decode_token,
                                       .arg = answer};
        status = perform(etcd, &request, false, call, &verdict, error);
    }
    if (body.data)
        explicit_bzero(body.data, body.len);
    buf_release(&body);
    return status;
}

enum shoal_status etcd_token(struct etcd *etcd, const struct call *call, char token_out[ETCD_TOKEN_MAX_BYTES],
                             struct shoal_error *error)
{
    struct token_answer answer = {0};
    struct shoal_error failure;
    *token_out = '\0';
    if (!etcd->user)
        return SHOAL_OK;
    mutex_lock(&etcd->lock);
    bool is_known = etcd->is_auth_off || etcd->token[0];
    memcpy(token_out, etcd->token, ETCD_TOKEN_MAX_BYTES);
    mutex_unlock(&etcd->lock);
    if (is_known)
        return SHOAL_OK;

    enum shoal_status status = authenticate(etcd, call, &answer, &failure);
    bool is_off = status == SHOAL_METADATA && strstr(failure.message, "authentication is not enabled");
    if (status != SHOAL_OK && !is_off)
        return error_copy(error, &failure);
    if (is_off)
        LOG_WARN("etcd at %s: a user is given, but authentication is not enabled there", etcd->uri);
    mutex_lock(&etcd->lock);
    etcd->is_auth_off = is_off;
    memcpy(etcd->token, answer.token, ETCD_TOKEN_MAX_BYTES);
    mutex_unlock(&etcd->lock);
    memcpy(token_out, answer.token, ETCD_TOKEN_MAX_BYTES);
    return SHOAL_OK;
}

void etcd_drop_token(struct etcd *etcd, const char *token)
{
    mutex_lock(&etcd->lock);
    if (strcmp(etcd->token, token) == 0) /* else another thread has renewed it already */
        etcd->token[0] = '\0';
    etcd->is_auth_off = false;
    mutex_unlock(&etcd->lock);
}
