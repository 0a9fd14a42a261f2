/* SPDX-License-Identifier: Apache-2.0 */
/* After a registration everything that is published is announced as HELD. The session's thread gathers it, a few
 * batches ahead of the loop, which keeps some of them on their way. What the master refuses is dropped. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/session_internal.h"

#define LOG_MODULE "session"
#include "base/log.h"

#define AGAIN_MS 20 /* for a drop handler without room, or a busy master */
#define ENTRY_OVERHEAD_BYTES 40

typedef Shoal__Wire__MasterAnnounceRequest__Entry wire_entry;

bool session_drop(struct session *session, const char *key, uint64_t object_id)
{
    return session->drop && session->drop(session->drop_arg, key, object_id);
}

static void held_destroy(struct held_batch *batch)
{
    if (batch->answer)
        shoal__wire__master_announce_response__free_unpacked(batch->answer, NULL);
    free(batch->body);
    free(batch);
}

/* --- the session's thread --- */

struct gathering {
    struct session *session;
    uint64_t epoch;
    wire_entry *entries, **pointers; /* SESSION_BATCH_MAX_ENTRIES */
    char *keys;                      /* SESSION_BATCH_MAX_BYTES */
    size_t count, key_bytes, body_bytes;
    bool has_failed; /* out of memory */
};

static void held_pump(struct session *session);

static bool is_wanted(const struct session *session, uint64_t epoch)
{
    return !session->is_stopping && session->gather_epoch == epoch;
}

static void on_held_posted(void *arg)
{
    struct session *session = arg;

    mutex_lock(&session->mutex);
    session->is_held_posted = false;
    mutex_unlock(&session->mutex);
    held_pump(session);
}

/* Waits until the loop has taken enough of what was gathered before. Takes batch. */
static bool hand_over(struct gathering *gathering, struct held_batch *batch)
{
    struct session *session = gathering->session;
    bool is_taken = false;

    mutex_lock(&session->mutex);
    while (is_wanted(session, gathering->epoch) && session->held_queued_count >= SESSION_HELD_QUEUED_MAX)
        cond_wait(&session->thread_wake, &session->mutex);
    if (is_wanted(session, gathering->epoch)) {
        is_taken = true;
        list_push_back(&session->held_queued, &batch->node);
        session->held_queued_count++;
        if (!session->is_held_posted) {
            session->is_held_posted = true;
            loop_post(session->loop, &session->held_task, on_held_posted, session);
        }
    }
    mutex_unlock(&session->mutex);
    if (!is_taken)
        held_destroy(batch);
    return is_taken;
}

static bool pack_batch(struct gathering *gathering, bool is_last)
{
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    struct held_batch *batch = calloc(1, sizeof *batch);

    if (!batch)
        goto fail;
    request.instance = gathering->session->instance;
    request.n_entries = gathering->count;
    request.entries = gathering->pointers;
    request.is_last_held = is_last;
    batch->session = gathering->session;
    batch->count = gathering->count;
    batch->is_last = is_last;
    batch->body_len = shoal__wire__master_announce_request__get_packed_size(&request);
    batch->body = malloc(batch->body_len);
    if (!batch->body)
        goto fail;
    shoal__wire__master_announce_request__pack(&request, batch->body);
    gathering->count = gathering->key_bytes = gathering->body_bytes = 0;
    return hand_over(gathering, batch);

fail:
    free(batch);
    gathering->has_failed = true;
    return false;
}

static bool gather_object(void *arg, struct tier_object *object)
{
    struct gathering *gathering = arg;
    const char *key = tier_object_key(object);
    size_t key_len = strlen(key);
    wire_entry *entry;

    if (gathering->count == SESSION_BATCH_MAX_ENTRIES ||
        gathering->body_bytes + key_len + ENTRY_OVERHEAD_BYTES > SESSION_BATCH_MAX_BYTES) {
        if (!pack_batch(gathering, false))
            return false;
    }
    entry = &gathering->entries[gathering->count];
    shoal__wire__master_announce_request__entry__init(entry);
    entry->kind = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__HELD;
    entry->key = memcpy(gathering->keys + gathering->key_bytes, key, key_len + 1);
    entry->object_id = tier_object_id(object);
    entry->len_bytes = tier_object_len(object);
    entry->tier = tier_object_tier(object);
    gathering->pointers[gathering->count++] = entry;
    gathering->key_bytes += key_len + 1;
    gathering->body_bytes += key_len + ENTRY_OVERHEAD_BYTES;
    return true;
}

static void fail_on_loop(void *arg)
{
    struct gathering *gathering = arg;
    struct session *session = gathering->session;
    struct shoal_error error;
    bool is_still_wanted;

    mutex_lock(&session->mutex);
    is_still_wanted = is_wanted(session, gathering->epoch);
    mutex_unlock(&session->mutex);
    if (!is_still_wanted)
        return;
    error_set(&error, SHOAL_NO_MEMORY, 0, "no memory to gather what is to be announced");
    session_lost(session, &error);
}

void session_gather(struct session *session, uint64_t epoch)
{
    struct gathering gathering = {.session = session, .epoch = epoch};

    gathering.entries = malloc(SESSION_BATCH_MAX_ENTRIES * sizeof *gathering.entries);
    gathering.pointers = malloc(SESSION_BATCH_MAX_ENTRIES * sizeof *gathering.pointers);
    gathering.keys = malloc(SESSION_BATCH_MAX_BYTES);
    gathering.has_failed = !gathering.entries || !gathering.pointers || !gathering.keys;
    if (!gathering.has_failed && session->backend && !tier_each(session->backend, gather_object, &gathering))
        gathering.has_failed = true; /* what is not announced would be nobody's: never found, never removed */
    /* The end is a request of its own, sent when all others are answered. */
    if (!gathering.has_failed && (gathering.count == 0 || pack_batch(&gathering, false)))
        pack_batch(&gathering, true);
    if (gathering.has_failed)
        loop_call(session->loop, fail_on_loop, &gathering); /* the loop never waits for this thread */
    free(gathering.keys);
    free(gathering.pointers);
    free(gathering.entries);
}

/* --- the loop --- */

static void held_finish(struct held_batch *batch)
{
    struct session *session = batch->session;
    bool is_last = batch->is_last;

    held_destroy(batch);
    session->held_flying--;
    if (is_last)
        session_became_ready(session);
    else
        held_pump(session);
}

/* Leaves in the batch what the master had no memory for, without an answer. false: there is no memory here, either. */
static bool keep_untold(struct held_batch *batch)
{
    Shoal__Wire__MasterAnnounceRequest *request =
        shoal__wire__master_announce_request__unpack(NULL, batch->body_len, batch->body);
    size_t count = 0;

    if (!request)
        return false;
    for (size_t i = 0; i < batch->count; i++) {
        wire_entry *entry = request->entries[i];

        if (batch->answer->statuses[i] != SHOAL_NO_MEMORY)
            continue;
        request->entries[i] = request->entries[count];
        request->entries[count++] = entry;
    }
    request->n_entries = count;
    batch->body_len = shoal__wire__master_announce_request__pack(request, batch->body); /* a part of what was there */
    request->n_entries = batch->count;
    shoal__wire__master_announce_request__free_unpacked(request, NULL);
    shoal__wire__master_announce_response__free_unpacked(batch->answer, NULL);
    batch->answer = NULL;
    batch->count = count;
    batch->next = 0;
    return true;
}

/* Drops what was refused. What the master had no memory for is left in the batch, which has no answer then. false: the
 * handler has no room or there is no memory, the rest is tried again. */
static bool handle_answer(struct held_batch *batch)
{
    struct session *session = batch->session;
    Shoal__Wire__MasterAnnounceRequest *request = NULL;
    bool is_handled = true;

    for (; batch->next < batch->count; batch->next++) {
        int32_t status = batch->answer->statuses[batch->next];
        const wire_entry *entry;

        if (status == SHOAL_OK) {
            session_count(&session->counters.announced);
            continue;
        }
        if (status == SHOAL_NO_MEMORY) {
            batch->has_untold = true;
            continue;
        }
        if (status != SHOAL_EXISTS && status != SHOAL_NOT_FOUND) {
            session_count(&session->counters.announce_failures);
            continue;
        }
        if (!request)
            request = shoal__wire__master_announce_request__unpack(NULL, batch->body_len, batch->body);
        if (!request) {
            is_handled = false;
            break;
        }
        entry = request->entries[batch->next];
        if (!session_drop(session, entry->key, entry->object_id)) {
            is_handled = false;
            break;
        }
        session_count(status == SHOAL_EXISTS ? &session->counters.conflicts : &session->counters.drops);
        if (status == SHOAL_EXISTS)
            LOG_WARN("key '%s' has another value elsewhere by now: this client's copy is dropped", entry->key);
    }
    if (request)
        shoal__wire__master_announce_request__free_unpacked(request, NULL);
    return is_handled && (!batch->has_untold || keep_untold(batch));
}

static void wait_a_little(struct session *session)
{
    if (!loop_timer_is_running(&session->again_timer))
        loop_timer_start(&session->again_timer,
                         AGAIN_MS + backoff_ms(&session->random, 0, AGAIN_MS, AGAIN_MS)); /* not all clients at once */
}

/* After its restart a master hears of all clients at once. */
static void send_again(struct held_batch *batch)
{
    struct session *session = batch->session;

    session->held_flying--;
    mutex_lock(&session->mutex);
    list_push_front(&session->held_queued, &batch->node);
    session->held_queued_count++;
    mutex_unlock(&session->mutex);
    wait_a_little(session);
}

static void held_answered(struct held_batch *batch)
{
    struct session *session = batch->session;

    if (session->state != SESSION_ANNOUNCING) { /* the connection is being closed */
        session->held_flying--;
        held_destroy(batch);
    } else if (!handle_answer(batch)) {
        list_push_back(&session->held_blocked, &batch->node);
        wait_a_little(session);
    } else if (batch->has_untold) {
        batch->has_untold = false;
        send_again(batch);
    } else {
        held_finish(batch);
    }
}

static void on_held_answer(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                           const struct shoal_error *error)
{
    struct held_batch *batch = arg;
    struct session *session = batch->session;
    struct shoal_error malformed;
    bool is_untouched;

    if (session->state != SESSION_ANNOUNCING) { /* the connection is being closed */
        session->held_flying--;
        held_destroy(batch);
        return;
    }
    if (status == SHOAL_OK) {
        batch->answer = shoal__wire__master_announce_response__unpack(NULL, body_len, body);
        if (!batch->answer || batch->answer->n_statuses != batch->count) {
            status = error_set(&malformed, SHOAL_PROTOCOL, 0, "malformed answer to an announcement");
            error = &malformed;
        }
    }
    if (status == SHOAL_BUSY || status == SHOAL_LIMIT || status == SHOAL_NO_MEMORY) {
        send_again(batch);
        return;
    }
    if (status) {
        session->held_flying--;
        held_destroy(batch);
        session_count(&session->counters.announce_failures);
        if (!session_judge(session, status, error, &is_untouched))
            session_lost(session, error);
        return;
    }
    held_answered(batch);
}

/* The batch that may be sent now, or NULL. */
static struct held_batch *next_batch(struct session *session)
{
    struct held_batch *batch = NULL;

    if (session->held_flying >= SESSION_HELD_FLYING_MAX)
        return NULL;
    mutex_lock(&session->mutex);
    if (!list_is_empty(&session->held_queued)) {
        batch = container_of(list_first(&session->held_queued), struct held_batch, node);
        if (batch->is_last && session->held_flying) {
            batch = NULL;
        } else {
            list_remove(&batch->node);
            session->held_queued_count--;
            cond_broadcast(&session->thread_wake);
        }
    }
    mutex_unlock(&session->mutex);
    return batch;
}

static void held_pump(struct session *session)
{
    struct held_batch *batch;
    struct shoal_error error;

    while (session->state == SESSION_ANNOUNCING && (batch = next_batch(session))) {
        session->held_flying++;
        if (rpc_call(session->announcer, MASTER_METHOD_ANNOUNCE, batch->body, batch->body_len, SESSION_BATCH_TIMEOUT_MS,
                     on_held_answer, batch)) {
            session->held_flying--;
            held_destroy(batch);
            error_no_memory(&error);
            session_lost(session, &error);
        }
    }
}

void session_on_again(void *arg)
{
    struct session *session = arg;
    struct list blocked;
    struct list_node *node;

    list_init(&blocked);
    while ((node = list_pop_front(&session->held_blocked)))
        list_push_back(&blocked, node);
    while ((node = list_pop_front(&blocked)))
        held_answered(container_of(node, struct held_batch, node));
    held_pump(session);
}

void session_held_reset(struct session *session)
{
    struct list_node *node;

    loop_timer_stop(&session->again_timer);
    while ((node = list_pop_front(&session->held_blocked))) {
        session->held_flying--;
        held_destroy(container_of(node, struct held_batch, node));
    }
    mutex_lock(&session->mutex);
    session->gather_epoch = 0;
    session->wants_gather = false;
    while ((node = list_pop_front(&session->held_queued)))
        held_destroy(container_of(node, struct held_batch, node));
    session->held_queued_count = 0;
    cond_broadcast(&session->thread_wake);
    mutex_unlock(&session->mutex);
}
