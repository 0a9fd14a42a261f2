/* SPDX-License-Identifier: Apache-2.0 */
/* A session's life: finding a master, registering, and beginning again whenever it is lost. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "kv/session_internal.h"

#define LOG_MODULE "session"
#include "base/log.h"

#define CALL_TIMEOUT_MS 10000
#define RETRY_MIN_MS 50 /* a master's restart is noticed at once: the first attempt comes sooner */
#define RETRY_MAX_MS 500
#define NAME_PATIENCE_MS 12000 /* the name of a client that died is free when its time to live (10 s) is over */
#define TTL_DEFAULT_MS 10000
#define TTL_MIN_MS 100
#define TTL_MAX_MS 3600000
#define HEARTBEAT_MIN_MS 10

static void find_master(void *arg);

void session_lost(struct session *session, const struct shoal_error *why)
{
    struct rpc_client *announcer = session->announcer, *heart = session->heart;
    bool was_ready = session->state == SESSION_READY || session->state == SESSION_ANNOUNCING;
    struct shoal_error trouble;
    int64_t delay_ms;

    if (session->state == SESSION_WAITING || session->state == SESSION_STOPPED)
        return;
    session_master_explain(session->master_text, why, &trouble);
    session->state = SESSION_WAITING;
    mutex_lock(&session->mutex);
    session->trouble = trouble;
    session->is_registered = session->is_ready = false;
    if (trouble.status != SHOAL_NAME_IN_USE)
        session->name_in_use_since_ms = 0;
    else if (!session->name_in_use_since_ms)
        session->name_in_use_since_ms = clock_now_ms();
    cond_broadcast(&session->changed);
    mutex_unlock(&session->mutex);
    if (was_ready)
        LOG_WARN("%s; registering again", trouble.message);
    else
        LOG_DEBUG("%s", trouble.message);
    session_heart_stop(session);
    session->announcer = session->heart = NULL;
    rpc_client_close(announcer); /* what was on its way ends here */
    rpc_client_close(heart);
    session_held_reset(session);
    delay_ms = session->attempt == 0 ? backoff_ms(&session->random, 0, RETRY_MIN_MS, RETRY_MIN_MS)
                                     : RETRY_MIN_MS + backoff_ms(&session->random, session->attempt - 1, RETRY_MIN_MS,
                                                                 RETRY_MAX_MS - RETRY_MIN_MS);
    if (session->attempt < 16)
        session->attempt++;
    loop_timer_start(&session->retry_timer, delay_ms);
}

bool session_judge(struct session *session, enum shoal_status status, const struct shoal_error *error,
                   bool *is_untouched_out)
{
    struct shoal_error why;

    *is_untouched_out = false;
    switch (status) {
    case SHOAL_CONFLICT: /* not the leader */
        if (!session_master_follow(session, session->master_text, error))
            session_master_failed(session, session->master_text);
        error_set(&why, SHOAL_UNREACHABLE, 0, "%s: is not the leader", error->message);
        *is_untouched_out = true;
        break;
    case SHOAL_NOT_FOUND:
        error_set(&why, SHOAL_UNREACHABLE, 0, "does not know this client any more");
        *is_untouched_out = true;
        break;
    case SHOAL_UNREACHABLE:
    case SHOAL_TIMED_OUT:
    case SHOAL_PROTOCOL:
        session_master_failed(session, session->master_text);
        why = *error;
        break;
    case SHOAL_CANCELED: /* the connection was closed by session_lost or session_stop */
    case SHOAL_CLOSED:
        why = *error;
        break;
    default:
        return false;
    }
    session_lost(session, &why);
    return true;
}

static void on_connection_lost(void *arg, const struct shoal_error *error)
{
    session_lost(arg, error);
}

/* --- registration --- */

static bool take_registration(struct session *session, const uint8_t *body, size_t body_len)
{
    Shoal__Wire__MasterRegisterResponse *answer = shoal__wire__master_register_response__unpack(NULL, body_len, body);

    if (!answer)
        return false;
    session->master_instance = answer->master_instance;
    session->ttl_ms = answer->client_ttl_ms ? answer->client_ttl_ms : TTL_DEFAULT_MS;
    if (session->ttl_ms < TTL_MIN_MS)
        session->ttl_ms = TTL_MIN_MS;
    if (session->ttl_ms > TTL_MAX_MS)
        session->ttl_ms = TTL_MAX_MS;
    session->heartbeat_ms = answer->heartbeat_ms ? answer->heartbeat_ms : session->ttl_ms / 5;
    if (session->heartbeat_ms < HEARTBEAT_MIN_MS)
        session->heartbeat_ms = HEARTBEAT_MIN_MS;
    if (session->heartbeat_ms > session->ttl_ms / 2)
        session->heartbeat_ms = session->ttl_ms / 2;
    shoal__wire__master_register_response__free_unpacked(answer, NULL);
    return true;
}

static void on_registered(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                          const struct shoal_error *error)
{
    struct session *session = arg;
    struct shoal_error malformed;
    bool is_untouched;

    if (session->state != SESSION_REGISTERING)
        return; /* the connection is being closed */
    if (status == SHOAL_OK && !take_registration(session, body, body_len)) {
        status = error_set(&malformed, SHOAL_PROTOCOL, 0, "malformed answer to a registration");
        error = &malformed;
    }
    if (status) {
        if (!session_judge(session, status, error, &is_untouched))
            session_lost(session, error);
        return;
    }
    session->state = SESSION_ANNOUNCING;
    session->drops_done = 0;
    session_count(&session->counters.registrations);
    /* Whatever is published from here on without being gathered has its publisher to thank for (session_epoch). */
    __atomic_add_fetch(&session->epoch, 1, __ATOMIC_SEQ_CST);
    mutex_lock(&session->mutex);
    session->is_registered = true;
    session->name_in_use_since_ms = 0;
    session->gather_epoch = session->epoch;
    session->wants_gather = true;
    cond_broadcast(&session->thread_wake);
    cond_broadcast(&session->changed);
    mutex_unlock(&session->mutex);
    session_heart_start(session);
}

void session_became_ready(struct session *session)
{
    session->state = SESSION_READY;
    session->attempt = 0;
    mutex_lock(&session->mutex);
    session->is_ready = true;
    session->trouble = (struct shoal_error){.status = SHOAL_OK};
    cond_broadcast(&session->changed);
    mutex_unlock(&session->mutex);
    LOG_INFO("registered with master %s as '%s'", session->master_text, session->server_name);
    session_announce_pump(session);
}

static enum shoal_status send_registration(struct session *session)
{
    Shoal__Wire__MasterTier tiers[TIER_COUNT_MAX], *tier_pointers[TIER_COUNT_MAX];
    Shoal__Wire__MasterClient client = SHOAL__WIRE__MASTER_CLIENT__INIT;
    Shoal__Wire__MasterRegisterRequest request = SHOAL__WIRE__MASTER_REGISTER_REQUEST__INIT;
    enum shoal_status status;
    uint8_t *body;
    size_t len;

    client.instance = session->instance;
    client.server_name = session->server_name;
    client.address = session->address;
    client.n_tiers = session_fill_tiers(session, tiers, tier_pointers, &client.object_count);
    client.tiers = tier_pointers;
    request.client = &client;
    request.object_count = client.object_count;
    len = shoal__wire__master_register_request__get_packed_size(&request);
    body = malloc(len);
    if (!body)
        return SHOAL_NO_MEMORY;
    shoal__wire__master_register_request__pack(&request, body);
    status = rpc_call(session->announcer, MASTER_METHOD_REGISTER, body, len, SESSION_REGISTER_TIMEOUT_MS, on_registered,
                      session);
    free(body);
    return status;
}

static void connect_to(struct session *session, const char *address)
{
    struct shoal_error error;
    enum shoal_status status;

    session->state = SESSION_REGISTERING;
    status = rpc_client_open(session->rpc, address, 0, SESSION_CONNECT_TIMEOUT_MS, &session->announcer, &error);
    if (!status)
        status = rpc_client_open(session->rpc, address, 0, SESSION_CONNECT_TIMEOUT_MS, &session->heart, &error);
    if (!status) {
        rpc_client_on_lost(session->announcer, on_connection_lost, session);
        rpc_client_on_lost(session->heart, on_connection_lost, session);
        status = send_registration(session);
        if (status)
            error_no_memory(&error);
    }
    if (status)
        session_lost(session, &error);
}

static void on_found(void *arg)
{
    struct session *session = arg;
    char text[HOSTPORT_TEXT_BYTES], address[HOSTPORT_TEXT_BYTES];
    struct shoal_error error;

    mutex_lock(&session->mutex);
    error = session->find_error;
    memcpy(text, session->find_text, sizeof text);
    memcpy(address, session->find_address, sizeof address);
    mutex_unlock(&session->mutex);
    if (session->state != SESSION_FINDING)
        return;
    memcpy(session->master_text, text, sizeof text);
    if (error.status == SHOAL_OK) {
        connect_to(session, address);
        return;
    }
    session_master_failed(session, session->master_text);
    session_lost(session, &error);
}

static void find_master(void *arg)
{
    struct session *session = arg;

    if (session->state != SESSION_WAITING)
        return;
    if (session_master_current(session, session->master_text) && session_master_is_numeric(session->master_text)) {
        connect_to(session, session->master_text);
        return;
    }
    session->state = SESSION_FINDING;
    mutex_lock(&session->mutex);
    session->wants_find = true;
    cond_broadcast(&session->thread_wake);
    mutex_unlock(&session->mutex);
}

/* --- the session's own thread: what may block --- */

static void find_on_thread(struct session *session)
{
    struct call call = {.deadline_ms = deadline_after_ms(SESSION_FIND_TIMEOUT_MS), .cancel = session->cancel};
    char text[HOSTPORT_TEXT_BYTES], address[HOSTPORT_TEXT_BYTES] = "";
    struct shoal_error error = {.status = SHOAL_OK};

    mutex_unlock(&session->mutex);
    if (session_master_find(session, &call, text, &error) == SHOAL_OK)
        session_master_resolve(text, address, &error);
    mutex_lock(&session->mutex);
    session->find_error = error;
    memcpy(session->find_text, text, sizeof text);
    memcpy(session->find_address, address, sizeof address);
    loop_post(session->loop, &session->find_task, on_found, session);
}

static void *thread_main(void *arg)
{
    struct session *session = arg;

    mutex_lock(&session->mutex);
    while (!session->is_stopping) {
        if (session->wants_find) {
            session->wants_find = false;
            find_on_thread(session);
        } else if (session->wants_gather) {
            uint64_t epoch = session->gather_epoch;
            session->wants_gather = false;
            mutex_unlock(&session->mutex);
            session_gather(session, epoch);
            mutex_lock(&session->mutex);
        } else {
            cond_wait(&session->thread_wake, &session->mutex);
        }
    }
    mutex_unlock(&session->mutex);
    return NULL;
}

/* --- life --- */

struct start {
    struct session *session;
    struct shoal_error *error;
    enum shoal_status status;
};

static void start_on_loop(void *arg)
{
    struct start *start = arg;
    struct session *session = start->session;

    start->status = loop_timer_init(&session->retry_timer, session->loop, find_master, session, start->error);
    if (!start->status)
        start->status = loop_timer_init(&session->heartbeat_timer, session->loop, session_on_heartbeat_timer, session,
                                        start->error);
    if (!start->status)
        start->status =
            loop_timer_init(&session->deadline_timer, session->loop, session_on_deadline, session, start->error);
    if (!start->status)
        start->status = loop_timer_init(&session->again_timer, session->loop, session_on_again, session, start->error);
    if (!start->status)
        start->status = loop_timer_init(&session->pump_timer, session->loop, session_on_pump, session, start->error);
    if (!start->status)
        find_master(session);
}

static enum shoal_status copy_config(struct session *session, const struct session_config *config,
                                     struct shoal_error *error)
{
    session->loop = config->loop;
    session->rpc = config->rpc;
    session->channels = config->channels;
    session->backend = config->backend;
    session->instance = config->instance;
    if (strlen(config->cluster) >= sizeof session->cluster)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "name of the cluster is longer than %zu bytes",
                         sizeof session->cluster - 1);
    strcpy(session->cluster, config->cluster);
    session->call_timeout_ms = config->call_timeout_ms ? config->call_timeout_ms : CALL_TIMEOUT_MS;
    session->server_name = strdup(config->server_name);
    session->address = strdup(config->address);
    if (!session->server_name || !session->address)
        return error_no_memory(error);
    return session_masters_init(session, config->master, error);
}

enum shoal_status session_create(const struct session_config *config, struct session **session_out,
                                 struct shoal_error *error)
{
    struct session *session = calloc(1, sizeof *session);
    struct start start = {.session = session, .error = error};
    int failure;

    if (!session)
        return error_no_memory(error);
    mutex_init(&session->mutex, RANK_KV_SESSION);
    cond_init(&session->changed);
    cond_init(&session->thread_wake);
    list_init(&session->inbox);
    list_init(&session->held_queued);
    list_init(&session->held_blocked);
    session_announce_init(session);
    random_init(&session->random, random_id());
    random_init(&session->target_random, random_id());
    session->deadline_armed_ms = DEADLINE_NONE;
    start.status = copy_config(session, config, error);
    if (start.status)
        goto fail;
    failure = thread_start(&session->thread, "session", thread_main, session);
    if (failure) {
        start.status = error_set(error, SHOAL_LIMIT, failure, "starting a thread: %s", strerror(failure));
        goto fail;
    }
    session->is_thread_started = true;
    loop_call(session->loop, start_on_loop, &start);
    if (start.status)
        goto fail;
    *session_out = session;
    return SHOAL_OK;

fail:
    session_destroy(session);
    return start.status;
}

static void stop_on_loop(void *arg)
{
    struct session *session = arg;
    struct rpc_client *announcer = session->announcer;

    if (session->state == SESSION_STOPPED)
        return;
    session->state = SESSION_STOPPED;
    session_heart_stop(session);
    loop_timer_stop(&session->retry_timer);
    session->announcer = NULL;
    rpc_client_close(announcer);
    session_held_reset(session);
    session_announce_stop(session);
}

void session_stop(struct session *session)
{
    mutex_lock(&session->mutex);
    session->is_stopping = true;
    session->is_ready = false;
    cond_broadcast(&session->changed);
    cond_broadcast(&session->thread_wake);
    mutex_unlock(&session->mutex);
    shoal_cancel_trigger(session->cancel);
    loop_call(session->loop, stop_on_loop, session);
}

static void release_on_loop(void *arg)
{
    struct session *session = arg;
    struct rpc_client *heart = session->heart;

    session->heart = NULL;
    rpc_client_close(heart);
    loop_timer_release(&session->retry_timer);
    loop_timer_release(&session->heartbeat_timer);
    loop_timer_release(&session->deadline_timer);
    loop_timer_release(&session->again_timer);
    loop_timer_release(&session->pump_timer);
}

void session_destroy(struct session *session)
{
    if (!session)
        return;
    if (session->is_thread_started) {
        session_stop(session);
        session_goodbye(session);
        pthread_join(session->thread, NULL);
        /* What the thread has posted has run when this returns. */
        loop_call(session->loop, release_on_loop, session);
    }
    if (session->targets)
        shoal__wire__master_heartbeat_response__free_unpacked(session->targets, NULL);
    session_announce_release(session);
    cond_release(&session->thread_wake);
    cond_release(&session->changed);
    mutex_release(&session->mutex);
    session_masters_release(session);
    free(session->address);
    free(session->server_name);
    free(session);
}

struct loop *session_loop(const struct session *session)
{
    return session->loop;
}

bool session_is_registered(struct session *session)
{
    bool is_registered;

    mutex_lock(&session->mutex);
    is_registered = session->is_registered;
    mutex_unlock(&session->mutex);
    return is_registered;
}

uint64_t session_epoch(struct session *session)
{
    return __atomic_load_n(&session->epoch, __ATOMIC_SEQ_CST);
}

static void wake(void *arg)
{
    struct session *session = arg;

    mutex_lock(&session->mutex);
    cond_broadcast(&session->changed);
    mutex_unlock(&session->mutex);
}

enum shoal_status session_wait_ready(struct session *session, const struct call *call, struct shoal_error *error)
{
    struct shoal_error trouble;
    struct cancel_hook hook;
    bool is_ready, is_stopping;
    enum shoal_status status;

    cancel_hook_add(call->cancel, &hook, wake, session);
    mutex_lock(&session->mutex);
    while (!session->is_ready && !session->is_stopping && !cancel_is_triggered(call->cancel)) {
        int64_t name_deadline_ms =
            session->name_in_use_since_ms ? session->name_in_use_since_ms + NAME_PATIENCE_MS : DEADLINE_NONE;
        int64_t until_ms = deadline_min(call->deadline_ms, name_deadline_ms);

        if (deadline_is_past(until_ms))
            break;
        cond_wait_until(&session->changed, &session->mutex, until_ms);
    }
    is_ready = session->is_ready;
    is_stopping = session->is_stopping;
    trouble = session->trouble;
    mutex_unlock(&session->mutex);
    cancel_hook_remove(call->cancel, &hook);
    if (is_ready)
        return SHOAL_OK;
    if (is_stopping)
        return error_set(error, SHOAL_CANCELED, 0, "registration with the master: the session is stopped");
    if (cancel_is_triggered(call->cancel) || trouble.status == SHOAL_OK) {
        status = call_check(call, error, "registration with the master");
        return status ? status : error_set(error, SHOAL_TIMED_OUT, 0, "registration with the master: deadline passed");
    }
    if (trouble.status != SHOAL_NAME_IN_USE && trouble.status != SHOAL_TIMED_OUT)
        trouble.status = SHOAL_UNREACHABLE;
    return error_copy(error, &trouble);
}

void session_counters(struct session *session, struct session_counters *out)
{
    const uint64_t *from = (const uint64_t *)&session->counters;
    uint64_t *to = (uint64_t *)out;

    for (size_t i = 0; i < sizeof *out / sizeof *to; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

struct set_drop {
    struct session *session;
    session_drop_fn fn;
    void *arg;
};

static void set_drop_on_loop(void *arg)
{
    struct set_drop *set = arg;

    set->session->drop = set->fn;
    set->session->drop_arg = set->arg;
}

void session_set_drop_handler(struct session *session, session_drop_fn fn, void *arg)
{
    struct set_drop set = {.session = session, .fn = fn, .arg = arg};

    loop_call(session->loop, set_drop_on_loop, &set);
}
