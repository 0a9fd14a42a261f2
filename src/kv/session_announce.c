/* SPDX-License-Identifier: Apache-2.0 */
/* Announcements while the client is registered. One batch is on its way at a time: the first entry goes at once, what
 * comes meanwhile travels together. So the order per key is the order of arrival, with one exception: entries that
 * nobody waits for let others pass, but not those of the same key. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/session_internal.h"

#define LOG_MODULE "session"
#include "base/log.h"

/* What an entry takes in the message beside its key, at most: its tag and length (3 bytes), kind (2), the key's tag and
 * length (3), object_id (9), len_bytes (11), tier (6). And what the message has beside entries: instance (9). */
#define ENTRY_OVERHEAD_BYTES 40
#define BODY_OVERHEAD_BYTES 16
#define SHORT_OF_MEMORY_MS 50
#define BACKLOG_AT_ONCE 256 /* entries that nobody waits for, in one batch: a put that comes meanwhile waits for it */

#define KIND(name) SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__##name

typedef Shoal__Wire__MasterAnnounceRequest__Entry wire_entry;

/* A master that has an entry like this one has a route that only its client can take back. */
static bool makes_route(const struct announce_entry *entry)
{
    return entry->kind == KIND(NEW) || entry->kind == KIND(REPLICA);
}

/* --- memory of entries --- */

static bool fits_spare(size_t key_len)
{
    return key_len < SESSION_SPARE_KEY_BYTES;
}

/* With the mutex. NULL: out of memory. */
static struct announce_entry *entry_take(struct session *session, size_t key_len)
{
    return fits_spare(key_len) ? spares_take(&session->spare_entries)
                               : malloc(sizeof(struct announce_entry) + key_len + 1);
}

/* With the mutex. */
static void entry_give(struct session *session, struct announce_entry *entry)
{
    if (fits_spare(entry->key_len))
        spares_give(&session->spare_entries, entry);
    else
        free(entry);
}

static void entry_free(struct session *session, struct announce_entry *entry)
{
    mutex_lock(&session->mutex);
    entry_give(session, entry);
    mutex_unlock(&session->mutex);
}

/* --- the end of an entry --- */

static void tell(struct session *session, struct announce_entry *entry, enum shoal_status status,
                 const struct shoal_error *error)
{
    session_done_fn done = entry->done;
    struct shoal_error detail;

    if (!done)
        return;
    entry->done = NULL;
    mutex_lock(&session->mutex);
    session->waiter_count--;
    mutex_unlock(&session->mutex);
    if (error) {
        detail = *error;
        detail.status = status;
        error_prefix(&detail, "key '%.100s'", entry->key);
    } else if (status) {
        error_set(&detail, status, 0, "key '%.100s': %s", entry->key, shoal_status_text(status));
    }
    done(entry->arg, status, status ? &detail : NULL);
}

/* Takes the entry, for which somebody waits: it has been carried out. */
static void tell_success(struct session *session, struct announce_entry *entry)
{
    session_done_fn done = entry->done;
    void *arg = entry->arg;

    mutex_lock(&session->mutex);
    session->waiter_count--;
    entry_give(session, entry);
    mutex_unlock(&session->mutex);
    done(arg, SHOAL_OK, NULL);
}

/* --- the backlog: what nobody waits for --- */

static void backlog_remove(struct session *session, struct announce_entry *entry)
{
    struct announce_entry *before = map_get(&session->backlog, entry->key, entry->key_len);

    list_remove(&entry->node);
    session->backlog_count--;
    if (before != entry) {
        while (before->next_same_key != entry)
            before = before->next_same_key;
        before->next_same_key = entry->next_same_key;
    } else if (entry->next_same_key) {
        map_put(&session->backlog, entry->key, entry->key_len, entry->next_same_key); /* replaces: needs no memory */
    } else {
        map_remove(&session->backlog, entry->key, entry->key_len);
    }
    entry->next_same_key = NULL;
}

/* A registration makes the master forget what is not announced again, so it stands for news that are thrown away. Not
 * at once: it ends what is on its way, and this may run in the middle of that. */
static void register_anew(struct session *session)
{
    session_count(&session->counters.announce_failures);
    session->wants_registration = true;
    loop_timer_start(&session->pump_timer, 1);
}

/* Takes the entry. One entry per object: the newest news count. is_older: what is there already is newer. */
static void backlog_add(struct session *session, struct announce_entry *entry, bool is_older)
{
    struct announce_entry *first = map_get(&session->backlog, entry->key, entry->key_len), *same = first;

    while (same && same->object_id != entry->object_id)
        same = same->next_same_key;
    if (same) {
        if (!is_older) {
            same->kind = entry->kind;
            same->len_bytes = entry->len_bytes;
            same->tier = entry->tier;
        }
        entry_free(session, entry);
        return;
    }
    if (session->backlog_count < SESSION_BACKLOG_MAX) {
        entry->next_same_key = first ? first->next_same_key : NULL;
        if (first)
            first->next_same_key = entry;
        if (first || map_put(&session->backlog, entry->key, entry->key_len, entry)) {
            list_push_back(&session->backlog_order, &entry->node);
            session->backlog_count++;
            return;
        }
    }
    entry_free(session, entry);
    register_anew(session);
}

/* Nobody waits for it any more, but the master may have its route. */
static void take_back(struct session *session, struct announce_entry *entry)
{
    entry->kind = KIND(GONE);
    entry->is_orphan = false;
    backlog_add(session, entry, false);
}

/* --- batches --- */

static size_t entry_bytes(const struct announce_entry *entry)
{
    return entry->key_len + ENTRY_OVERHEAD_BYTES;
}

static bool has_room(const struct announce_batch *batch, const struct announce_entry *entry)
{
    return batch->count < SESSION_BATCH_MAX_ENTRIES &&
           batch->body_bytes + entry_bytes(entry) <= SESSION_BATCH_MAX_BYTES;
}

static void batch_add(struct announce_batch *batch, struct announce_entry *entry)
{
    list_push_back(&batch->entries, &entry->node);
    batch->count++;
    batch->body_bytes += entry_bytes(entry);
}

/* Whoever waits goes first, behind the backlog of its own key. */
static void fill(struct session *session, struct announce_batch *batch)
{
    struct list_node *node;
    struct announce_entry *entry, *before;

    while ((node = list_first(&session->waiting))) {
        entry = container_of(node, struct announce_entry, node);
        while ((before = map_get(&session->backlog, entry->key, entry->key_len)) && has_room(batch, before)) {
            backlog_remove(session, before);
            batch_add(batch, before);
        }
        if (before || !has_room(batch, entry))
            return;
        list_remove(node);
        batch_add(batch, entry);
    }
    for (unsigned taken = 0; taken < BACKLOG_AT_ONCE && (node = list_first(&session->backlog_order)); taken++) {
        entry = container_of(node, struct announce_entry, node);
        if (!has_room(batch, entry))
            return;
        backlog_remove(session, entry);
        batch_add(batch, entry);
    }
}

static void on_answer(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error);

/* Room to pack a batch. false: out of memory. */
static bool reserve(struct announce_scratch *scratch, const struct announce_batch *batch)
{
    if (batch->count > scratch->capacity) {
        size_t capacity = batch->count < SESSION_BATCH_MAX_ENTRIES / 2 ? batch->count * 2 : SESSION_BATCH_MAX_ENTRIES;

        free(scratch->entries);
        free(scratch->pointers);
        scratch->entries = malloc(capacity * sizeof *scratch->entries);
        scratch->pointers = malloc(capacity * sizeof *scratch->pointers);
        scratch->capacity = scratch->entries && scratch->pointers ? capacity : 0;
    }
    return scratch->capacity && buf_reserve(&scratch->body, batch->body_bytes + BODY_OVERHEAD_BYTES);
}

static enum shoal_status send_batch(struct session *session)
{
    struct announce_batch *batch = &session->batch;
    struct announce_scratch *scratch = &session->scratch;
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    wire_entry *to;
    enum shoal_status status;
    size_t len;

    if (!reserve(scratch, batch))
        return SHOAL_NO_MEMORY;
    to = scratch->entries;
    LIST_FOR_EACH (entry, &batch->entries, struct announce_entry, node) {
        shoal__wire__master_announce_request__entry__init(to);
        to->kind = entry->kind;
        to->key = entry->key;
        to->object_id = entry->object_id;
        to->len_bytes = entry->len_bytes;
        to->tier = entry->tier;
        scratch->pointers[to - scratch->entries] = to;
        to++;
    }
    request.instance = session->instance;
    request.n_entries = batch->count;
    request.entries = scratch->pointers;
    len = shoal__wire__master_announce_request__pack(&request, scratch->body.data);
    assert(len <= batch->body_bytes + BODY_OVERHEAD_BYTES);
    status = rpc_call(session->announcer, MASTER_METHOD_ANNOUNCE, scratch->body.data, len, SESSION_BATCH_TIMEOUT_MS,
                      on_answer, session);
    loop_expect_more(session->loop);
    return status;
}

/* The batch has not been carried out: its entries wait again, in front of what came meanwhile. */
static void put_back(struct session *session, struct announce_batch *batch)
{
    while (!list_is_empty(&batch->entries)) {
        struct announce_entry *entry = container_of(batch->entries.head.prev, struct announce_entry, node);

        list_remove(&entry->node);
        if (entry->done)
            list_push_front(&session->waiting, &entry->node);
        else if (entry->is_orphan)
            entry_free(session, entry); /* the master does not have it */
        else
            backlog_add(session, entry, true);
    }
}

void session_announce_pump(struct session *session)
{
    struct announce_batch *batch = &session->batch;

    if (session->state != SESSION_READY || session->is_flying || session->is_busy || session->wants_registration ||
        (list_is_empty(&session->waiting) && list_is_empty(&session->backlog_order)))
        return;
    batch->count = batch->body_bytes = 0;
    fill(session, batch);
    session->is_flying = true;
    if (send_batch(session) == SHOAL_OK)
        return;
    session->is_flying = false;
    put_back(session, batch);
    loop_timer_start(&session->pump_timer, SHORT_OF_MEMORY_MS);
}

/* --- answers --- */

/* Nobody knows whether the master has carried it out. */
static void end_unknown(struct session *session, struct announce_batch *batch)
{
    struct shoal_error trouble;
    enum shoal_status status = session->state == SESSION_STOPPED ? SHOAL_CANCELED : SHOAL_UNREACHABLE;

    mutex_lock(&session->mutex);
    trouble = session->trouble;
    mutex_unlock(&session->mutex);
    while (!list_is_empty(&batch->entries)) {
        struct announce_entry *entry = container_of(batch->entries.head.prev, struct announce_entry, node);

        list_remove(&entry->node);
        if (makes_route(entry) && (entry->done || entry->is_orphan)) {
            tell(session, entry, status, status == SHOAL_UNREACHABLE && trouble.status ? &trouble : NULL);
            session_count(&session->counters.announce_failures);
            take_back(session, entry);
        } else if (entry->done) { /* can be repeated */
            list_push_front(&session->waiting, &entry->node);
        } else {
            backlog_add(session, entry, true);
        }
    }
}

static bool is_passing(int32_t status)
{
    return status == SHOAL_NO_MEMORY || status == SHOAL_BUSY || status == SHOAL_LIMIT;
}

/* Takes the entry, with the master's answer to it. */
static void end_entry(struct session *session, struct announce_entry *entry, int32_t answer)
{
    enum shoal_status status = (enum shoal_status)answer;

    if (answer > 0 || strcmp(shoal_status_name(status), "UNKNOWN") == 0)
        status = SHOAL_PROTOCOL;
    session_count(status ? &session->counters.announce_failures : &session->counters.announced);
    if (entry->is_orphan && (status == SHOAL_OK || entry->may_be_routed)) {
        take_back(session, entry);
        return;
    }
    if (entry->done && status == SHOAL_OK) {
        tell_success(session, entry);
        return;
    }
    if (entry->done) {
        tell(session, entry, status, NULL);
    } else if (!entry->is_orphan && entry->kind != KIND(GONE) && entry->kind != KIND(MOVED) &&
               (status == SHOAL_EXISTS || status == SHOAL_NOT_FOUND)) {
        /* Announced after it was published: another value was first, or it has been removed. */
        session_count(&session->counters.conflicts);
        if (!session_drop(session, entry->key, entry->object_id)) {
            backlog_add(session, entry, true); /* the same answer comes again */
            return;
        }
    }
    entry_free(session, entry);
}

static void end_batch(struct session *session, struct announce_batch *batch, const int32_t *statuses,
                      enum shoal_status status_of_all)
{
    struct list_node *node;
    bool has_to_wait = false;

    for (size_t i = 0; (node = list_pop_front(&batch->entries)); i++) {
        struct announce_entry *entry = container_of(node, struct announce_entry, node);
        int32_t status = statuses ? statuses[i] : (int32_t)status_of_all;

        if (!statuses && status == SHOAL_NO_MEMORY)
            entry->may_be_routed = makes_route(entry);
        if (is_passing(status) && !entry->is_orphan) {
            has_to_wait = true;
            if (entry->done)
                list_push_back(&session->waiting, node);
            else
                backlog_add(session, entry, true);
        } else {
            end_entry(session, entry, status);
        }
    }
    if (has_to_wait)
        loop_timer_start(&session->pump_timer, SHORT_OF_MEMORY_MS);
}

static void on_answer(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error)
{
    struct session *session = arg;
    struct announce_batch *batch = &session->batch;
    Shoal__Wire__MasterAnnounceResponse *answer = NULL;
    struct shoal_error malformed;
    bool is_untouched = false;

    session->is_flying = false;
    session->is_busy = true;
    if (status == SHOAL_OK) {
        answer = shoal__wire__master_announce_response__unpack(NULL, body_len, body);
        if (!answer || answer->n_statuses != batch->count) {
            status = error_set(&malformed, SHOAL_PROTOCOL, 0, "malformed answer to an announcement");
            error = &malformed;
        }
    }
    if (status == SHOAL_OK)
        end_batch(session, batch, answer->statuses, SHOAL_OK);
    else if (!session_judge(session, status, error, &is_untouched))
        end_batch(session, batch, NULL, status);
    else if (is_untouched)
        put_back(session, batch);
    else
        end_unknown(session, batch);
    if (answer)
        shoal__wire__master_announce_response__free_unpacked(answer, NULL);
    session->is_busy = false;
    if (!loop_timer_is_running(&session->pump_timer))
        session_announce_pump(session);
}

/* --- deadlines --- */

static void arm_deadline(struct session *session, int64_t deadline_ms)
{
    if (deadline_ms >= session->deadline_armed_ms)
        return;
    session->deadline_armed_ms = deadline_ms;
    loop_timer_start(&session->deadline_timer, deadline_left_ms(deadline_ms));
}

static void tell_timed_out(struct session *session, struct announce_entry *entry)
{
    struct shoal_error trouble;

    mutex_lock(&session->mutex);
    trouble = session->trouble;
    mutex_unlock(&session->mutex);
    if (trouble.status)
        tell(session, entry, SHOAL_UNREACHABLE, &trouble);
    else
        tell(session, entry, SHOAL_TIMED_OUT, NULL);
}

void session_on_deadline(void *arg)
{
    struct session *session = arg;
    int64_t next_ms = DEADLINE_NONE;
    bool was_busy = session->is_busy;
    struct list late;
    struct list_node *node;

    session->deadline_armed_ms = DEADLINE_NONE;
    session->is_busy = true; /* done may announce */
    list_init(&late);
    LIST_FOR_EACH_SAFE (entry, &session->waiting, struct announce_entry, node) {
        if (deadline_is_past(entry->deadline_ms)) {
            list_remove(&entry->node);
            list_push_back(&late, &entry->node);
        } else {
            next_ms = deadline_min(next_ms, entry->deadline_ms);
        }
    }
    if (session->is_flying) {
        LIST_FOR_EACH (entry, &session->batch.entries, struct announce_entry, node) {
            if (entry->done && deadline_is_past(entry->deadline_ms)) {
                entry->is_orphan = makes_route(entry);
                tell_timed_out(session, entry);
            } else if (entry->done) {
                next_ms = deadline_min(next_ms, entry->deadline_ms);
            }
        }
    }
    while ((node = list_pop_front(&late))) {
        struct announce_entry *entry = container_of(node, struct announce_entry, node);

        tell_timed_out(session, entry);
        if (entry->may_be_routed)
            take_back(session, entry);
        else if (makes_route(entry))
            entry_free(session, entry); /* the master has not carried it out */
        else
            backlog_add(session, entry, true);
    }
    arm_deadline(session, next_ms);
    session->is_busy = was_busy;
    session_announce_pump(session);
}

/* --- the way in --- */

static void accept_entry(struct session *session, struct announce_entry *entry)
{
    if (!entry->done) {
        backlog_add(session, entry, false);
        return;
    }
    list_push_back(&session->waiting, &entry->node);
    arm_deadline(session, entry->deadline_ms);
}

static void drain_inbox(struct session *session)
{
    struct list arrived;
    struct list_node *node;

    list_init(&arrived);
    mutex_lock(&session->mutex);
    while ((node = list_pop_front(&session->inbox)))
        list_push_back(&arrived, node);
    mutex_unlock(&session->mutex);
    while ((node = list_pop_front(&arrived)))
        accept_entry(session, container_of(node, struct announce_entry, node));
}

static void announce_arrived(void *arg)
{
    struct session *session = arg;

    if (session->state == SESSION_STOPPED)
        return; /* session_announce_stop has taken them */
    drain_inbox(session);
    session_announce_pump(session);
}

void session_on_inbox(void *arg)
{
    struct session *session = arg;
    bool has_lost;

    mutex_lock(&session->mutex);
    session->is_inbox_posted = false;
    has_lost = session->has_lost_entry;
    session->has_lost_entry = false;
    mutex_unlock(&session->mutex);
    if (has_lost && session->state != SESSION_STOPPED)
        register_anew(session);
    announce_arrived(session);
}

void session_on_pump(void *arg)
{
    struct session *session = arg;
    struct shoal_error error;

    if (session->wants_registration && session->is_flying) { /* whose puts need not fail */
        loop_timer_start(&session->pump_timer, SHORT_OF_MEMORY_MS);
        return;
    }
    if (session->wants_registration && (session->state == SESSION_READY || session->state == SESSION_ANNOUNCING)) {
        error_set(&error, SHOAL_LIMIT, 0, "there was no room for an announcement: everything is announced anew");
        session_lost(session, &error);
    }
    session->wants_registration = false;
    session_announce_pump(session);
}

/* --- life --- */

void session_announce_init(struct session *session)
{
    list_init(&session->waiting);
    list_init(&session->backlog_order);
    list_init(&session->batch.entries);
    spares_init(&session->spare_entries, sizeof(struct announce_entry) + SESSION_SPARE_KEY_BYTES,
                SESSION_SPARE_ENTRIES_MAX);
    map_init(&session->backlog);
    buf_init(&session->scratch.body, SESSION_BATCH_MAX_BYTES + BODY_OVERHEAD_BYTES);
}

void session_announce_release(struct session *session)
{
    buf_release(&session->scratch.body);
    free(session->scratch.pointers);
    free(session->scratch.entries);
    spares_release(&session->spare_entries);
    map_release(&session->backlog);
}

void session_announce_stop(struct session *session)
{
    struct list_node *node;

    loop_defer_cancel(session->loop, &session->pump_task);
    drain_inbox(session);
    loop_timer_stop(&session->deadline_timer);
    loop_timer_stop(&session->pump_timer);
    while ((node = list_pop_front(&session->waiting))) {
        struct announce_entry *entry = container_of(node, struct announce_entry, node);
        tell(session, entry, SHOAL_CANCELED, NULL);
        entry_free(session, entry);
    }
    while ((node = list_first(&session->backlog_order))) {
        struct announce_entry *entry = container_of(node, struct announce_entry, node);
        backlog_remove(session, entry);
        entry_free(session, entry);
    }
}

/* --- announcing; any thread --- */

/* With the mutex. */
static void wake_inbox(struct session *session)
{
    if (session->is_inbox_posted)
        return;
    session->is_inbox_posted = true;
    loop_post(session->loop, &session->inbox_task, session_on_inbox, session);
}

/* With the mutex. OK for news that nobody waits for even without memory: everything is announced anew then. */
static enum shoal_status add(struct session *session, const struct announce_entry *like, const char *key)
{
    struct announce_entry *entry;

    if (session->is_stopping)
        return SHOAL_CANCELED;
    if (like->done && session->waiter_count >= SESSION_WAITERS_MAX)
        return SHOAL_LIMIT;
    entry = entry_take(session, like->key_len);
    if (entry) {
        *entry = *like;
        memcpy(entry->key, key, like->key_len + 1);
        list_push_back(&session->inbox, &entry->node);
        session->waiter_count += like->done != NULL;
        if (!loop_is_current(session->loop))
            wake_inbox(session);
        return SHOAL_OK;
    }
    if (like->done)
        return SHOAL_NO_MEMORY;
    session->has_lost_entry = true;
    wake_inbox(session);
    return SHOAL_OK;
}

enum shoal_status session_announce(struct session *session, Shoal__Wire__MasterAnnounceRequest__Kind kind,
                                   const char *key, uint64_t object_id, uint64_t len_bytes, unsigned tier,
                                   int64_t timeout_ms, session_done_fn done, void *arg)
{
    const struct announce_entry like = {
        .kind = kind,
        .object_id = object_id,
        .len_bytes = len_bytes,
        .tier = tier,
        .deadline_ms = deadline_after_ms(timeout_ms ? timeout_ms : session->call_timeout_ms),
        .done = done,
        .arg = arg,
        .key_len = strlen(key),
    };
    enum shoal_status status;

    if (like.key_len == 0 || like.key_len > TIER_KEY_MAX_BYTES)
        return SHOAL_INVALID_ARGUMENT;
    mutex_lock(&session->mutex);
    status = add(session, &like, key);
    mutex_unlock(&session->mutex);
    if (!status && loop_is_current(session->loop)) /* saves a turn of the loop */
        loop_defer(session->loop, &session->pump_task, announce_arrived, session);
    return status;
}
