/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats: on a connection of their own, so that no large request delays them. They bring what was removed (and
 * tell what has been carried out) and where to write next. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/session_internal.h"

#define LOG_MODULE "session"
#include "base/log.h"

#define SILENT_BEATS_MAX 2      /* unanswered one after the other; each waits a third of the time to live */
#define DROPS_PER_BEAT_MAX 1024 /* that many: there may be more */
#define MORE_DROPS_MS 10
#define GOODBYE_MS 1000

size_t session_fill_tiers(struct session *session, Shoal__Wire__MasterTier *tiers_out,
                          Shoal__Wire__MasterTier **pointers_out, uint64_t *object_count_out)
{
    size_t count = session->backend ? tier_count(session->backend) : 0;

    *object_count_out = 0;
    for (size_t i = 0; i < count; i++) {
        struct tier_usage usage;

        tier_usage(session->backend, (unsigned)i, &usage);
        shoal__wire__master_tier__init(&tiers_out[i]);
        tiers_out[i].type = usage.type;
        tiers_out[i].priority = usage.priority;
        tiers_out[i].capacity_bytes = usage.capacity_bytes;
        tiers_out[i].used_bytes = usage.used_bytes;
        pointers_out[i] = &tiers_out[i];
        *object_count_out += usage.object_count;
    }
    return count;
}

static enum shoal_status send_beat(struct session *session, bool is_leaving, int64_t timeout_ms, rpc_done_fn done)
{
    Shoal__Wire__MasterTier tiers[TIER_COUNT_MAX], *tier_pointers[TIER_COUNT_MAX];
    Shoal__Wire__MasterHeartbeatRequest request = SHOAL__WIRE__MASTER_HEARTBEAT_REQUEST__INIT;
    enum shoal_status status;
    uint8_t *body;
    size_t len;

    request.instance = session->instance;
    request.n_tiers = session_fill_tiers(session, tiers, tier_pointers, &request.object_count);
    request.tiers = tier_pointers;
    request.drops_done = session->drops_done;
    request.is_leaving = is_leaving;
    len = shoal__wire__master_heartbeat_request__get_packed_size(&request);
    body = malloc(len);
    if (!body)
        return SHOAL_NO_MEMORY;
    shoal__wire__master_heartbeat_request__pack(&request, body);
    status = rpc_call(session->heart, MASTER_METHOD_HEARTBEAT, body, len, timeout_ms, done, session);
    free(body);
    return status;
}

/* Hands over what was not handed over yet. false: the handler has no room; the rest comes with the next answer. */
static bool take_drops(struct session *session, const Shoal__Wire__MasterHeartbeatResponse *answer)
{
    for (size_t i = 0; i < answer->n_drops; i++) {
        const Shoal__Wire__MasterDrop *drop = answer->drops[i];

        if (drop->sequence <= session->drops_done)
            continue;
        if (!session_drop(session, drop->key, drop->object_id))
            return false;
        session->drops_done = drop->sequence;
        session_count(&session->counters.drops);
    }
    return true;
}

/* Keeps the answer, whose targets are used until the next ones come. */
static void take_targets(struct session *session, Shoal__Wire__MasterHeartbeatResponse *answer)
{
    Shoal__Wire__MasterHeartbeatResponse *old;

    mutex_lock(&session->mutex);
    old = session->targets;
    session->targets = answer;
    session->targets_until_ms = deadline_after_ms(3 * session->heartbeat_ms);
    mutex_unlock(&session->mutex);
    if (old)
        shoal__wire__master_heartbeat_response__free_unpacked(old, NULL);
}

static void on_beat(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                    const struct shoal_error *error)
{
    struct session *session = arg;
    Shoal__Wire__MasterHeartbeatResponse *answer = NULL;
    struct shoal_error why;
    int64_t delay_ms = session->heartbeat_ms;
    bool is_untouched;

    session->is_beating = false;
    if (session->state != SESSION_ANNOUNCING && session->state != SESSION_READY)
        return; /* the connection is being closed */
    if (status == SHOAL_OK) {
        answer = shoal__wire__master_heartbeat_response__unpack(NULL, body_len, body);
        if (!answer) {
            status = error_set(&why, SHOAL_PROTOCOL, 0, "malformed answer to a heartbeat");
            error = &why;
        }
    }
    if (status) {
        session_count(&session->counters.heartbeat_failures);
        /* A short silence is a busy master. */
        if (status == SHOAL_TIMED_OUT && ++session->silent_beats < SILENT_BEATS_MAX)
            loop_timer_start(&session->heartbeat_timer, 1);
        else if (!session_judge(session, status, error, &is_untouched))
            loop_timer_start(&session->heartbeat_timer, delay_ms); /* it is short of something */
        return;
    }
    session->silent_beats = 0;
    session_count(&session->counters.heartbeats);
    if (answer->master_instance != session->master_instance) {
        shoal__wire__master_heartbeat_response__free_unpacked(answer, NULL);
        error_set(&why, SHOAL_UNREACHABLE, 0, "has been started anew");
        session_lost(session, &why);
        return;
    }
    if ((!take_drops(session, answer) && session->drop) || answer->n_drops >= DROPS_PER_BEAT_MAX)
        delay_ms = deadline_min(delay_ms, MORE_DROPS_MS);
    take_targets(session, answer);
    loop_timer_start(&session->heartbeat_timer, delay_ms);
}

void session_on_heartbeat_timer(void *arg)
{
    struct session *session = arg;

    if (session->is_beating || !session->heart)
        return;
    /* Memory may be there the next time; one heartbeat less does no harm. */
    if (send_beat(session, false, session->ttl_ms / 3, on_beat))
        loop_timer_start(&session->heartbeat_timer, session->heartbeat_ms);
    else
        session->is_beating = true;
}

void session_heart_start(struct session *session)
{
    session->silent_beats = 0;
    session_on_heartbeat_timer(session);
}

void session_heart_stop(struct session *session)
{
    loop_timer_stop(&session->heartbeat_timer);
}

/* --- goodbye --- */

static void end_goodbye(struct session *session)
{
    mutex_lock(&session->mutex);
    session->is_goodbye_done = true;
    cond_broadcast(&session->changed);
    mutex_unlock(&session->mutex);
}

static void on_goodbye(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                       const struct shoal_error *error)
{
    (void)body;
    (void)body_len;
    if (status)
        LOG_DEBUG("goodbye to the master: %s", error->message);
    end_goodbye(arg);
}

static void goodbye_on_loop(void *arg)
{
    struct session *session = arg;

    if (!session->heart || send_beat(session, true, GOODBYE_MS, on_goodbye))
        end_goodbye(session);
}

void session_goodbye(struct session *session)
{
    int64_t deadline_ms = deadline_after_ms(GOODBYE_MS);
    bool is_registered;

    mutex_lock(&session->mutex);
    is_registered = session->is_registered;
    mutex_unlock(&session->mutex);
    if (!is_registered)
        return;
    loop_call(session->loop, goodbye_on_loop, session);
    mutex_lock(&session->mutex);
    while (!session->is_goodbye_done && !deadline_is_past(deadline_ms))
        cond_wait_until(&session->changed, &session->mutex, deadline_ms);
    session->is_registered = false;
    mutex_unlock(&session->mutex);
}
