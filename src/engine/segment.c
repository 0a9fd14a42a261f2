/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and the segments that name them; notifications. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/keys.h"
#include "wire/data.h"

#define LOG_MODULE "engine"
#define DEFAULT_CALL_MS 10000

/* --- peers --- */

void engine_peer_ref(struct engine_peer *peer)
{
    mutex_lock(&peer->engine->mutex);
    peer->refs++;
    mutex_unlock(&peer->engine->mutex);
}

static void peer_free(void *arg)
{
    struct engine_peer *peer = arg;

    engine_peer_close_paths(peer);
    free(peer);
}

void engine_peer_unref(struct engine_peer *peer)
{
    struct shoal_engine *engine = peer->engine;
    bool is_last;

    mutex_lock(&engine->mutex);
    is_last = --peer->refs == 0;
    if (is_last)
        list_remove(&peer->node);
    mutex_unlock(&engine->mutex);
    if (!is_last)
        return;
    if (loop_is_current(engine->loops[0]))
        peer_free(peer);
    else
        loop_post(engine->loops[0], &peer->close_task, peer_free, peer);
}

/* Finds or makes the peer and takes a reference. */
static struct engine_peer *peer_get(struct shoal_engine *engine, const char *name, const char *address,
                                    uint64_t instance)
{
    struct engine_peer *fresh = calloc(1, sizeof *fresh), *found = NULL;

    if (!fresh)
        return NULL;
    fresh->engine = engine;
    fresh->instance = instance;
    fresh->refs = 1;
    snprintf(fresh->name, sizeof fresh->name, "%s", name);
    snprintf(fresh->address, sizeof fresh->address, "%s", address);
    mutex_lock(&engine->mutex);
    LIST_FOR_EACH (peer, &engine->peers, struct engine_peer, node) {
        if (peer->instance == instance && strcmp(peer->address, address) == 0 && strcmp(peer->name, name) == 0) {
            found = peer;
            break;
        }
    }
    if (found) {
        found->refs++;
    } else {
        list_push_back(&engine->peers, &fresh->node);
        found = fresh;
        fresh = NULL;
    }
    mutex_unlock(&engine->mutex);
    free(fresh);
    return found;
}

/* --- segments --- */

enum shoal_status engine_segment_create(struct shoal_engine *engine, const char *server_name, const char *address,
                                        uint64_t instance, struct shoal_segment **segment_out,
                                        struct shoal_error *error)
{
    struct shoal_segment *segment;

    if (strlen(server_name) > HELLO_NAME_MAX_BYTES || strlen(address) >= HOSTPORT_TEXT_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "server name or address is too long");
    segment = calloc(1, sizeof *segment);
    if (!segment)
        return error_no_memory(error);
    segment->engine = engine;
    segment->peer = peer_get(engine, server_name, address, instance);
    if (!segment->peer) {
        free(segment);
        return error_no_memory(error);
    }
    *segment_out = segment;
    return SHOAL_OK;
}

enum shoal_status shoal_segment_open(struct shoal_engine *engine, const char *server_name,
                                     const struct shoal_call *public_call, struct shoal_segment **segment_out,
                                     struct shoal_error *error)
{
    struct call call;
    struct node_record record;
    struct shoal_error why;
    struct meta_entry entry;
    bool is_found = false;
    enum shoal_status status;
    char *key;

    if (!engine || !server_name || !segment_out || !server_name[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine, server name and result are required");
    if (strlen(server_name) > HELLO_NAME_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "server name is longer than %d bytes", HELLO_NAME_MAX_BYTES);
    status = call_init(&call, public_call, DEFAULT_CALL_MS, error);
    if (status != SHOAL_OK)
        return status;
    key = engine_key_node(engine->cluster, server_name);
    if (!key)
        return error_no_memory(error);
    status = meta_get(engine->meta, (struct meta_bytes){key, strlen(key)}, &call, &is_found, &entry, error);
    free(key);
    if (status != SHOAL_OK) {
        error_prefix(error, "looking up '%s'", server_name);
        return status;
    }
    if (!is_found)
        return error_set(error, SHOAL_NOT_FOUND, 0, "no live node has the server name '%s'", server_name);
    status = node_record_decode(&record, entry.value, entry.value_len, &why);
    meta_entry_release(&entry);
    if (status != SHOAL_OK)
        return error_set(error, SHOAL_METADATA, 0, "'%s': malformed entry in the metadata service: %s", server_name,
                         why.message);
    return engine_segment_create(engine, server_name, record.address, record.instance, segment_out, error);
}

void shoal_segment_close(struct shoal_segment *segment)
{
    if (!segment)
        return;
    engine_peer_unref(segment->peer);
    free(segment);
}

static void abort_on_loop(void *arg)
{
    engine_peer_abort_paths(arg);
}

void engine_segment_abort(struct shoal_segment *segment)
{
    loop_call(segment->engine->loops[0], abort_on_loop, segment->peer);
}

/* --- notifications --- */

void shoal_engine_set_notify(struct shoal_engine *engine, shoal_notify_fn fn, void *arg)
{
    if (!engine)
        return;
    mutex_lock(&engine->mutex);
    engine->notify_fn = fn;
    engine->notify_arg = arg;
    while (engine->notify_running > 0)
        cond_wait(&engine->changed, &engine->mutex);
    mutex_unlock(&engine->mutex);
}

/* Shared by the caller, who may give up, and the transport's callback. */
struct notify_wait {
    struct mutex mutex; /* RANK_ENGINE */
    struct cond changed;
    unsigned refs;
    bool is_done, is_canceled;
    enum shoal_status status;
    struct shoal_error error;

    struct loop_task task;
    struct engine_peer *peer; /* ref */
    const char *name;         /* into text */
    size_t len;
    uint8_t text[]; /* message, then name */
};

static void notify_unref(struct notify_wait *wait)
{
    bool is_last;

    mutex_lock(&wait->mutex);
    is_last = --wait->refs == 0;
    mutex_unlock(&wait->mutex);
    if (!is_last)
        return;
    engine_peer_unref(wait->peer);
    cond_release(&wait->changed);
    mutex_release(&wait->mutex);
    free(wait);
}

static void notify_done(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct notify_wait *wait = arg;

    mutex_lock(&wait->mutex);
    wait->is_done = true;
    wait->status = status;
    if (status != SHOAL_OK && !error)
        error_set(&wait->error, status, 0, "notification of '%s': %s", wait->peer->name, shoal_status_text(status));
    else if (error)
        wait->error = *error;
    cond_broadcast(&wait->changed);
    mutex_unlock(&wait->mutex);
    notify_unref(wait);
}

static void notify_on_loop(void *arg)
{
    struct notify_wait *wait = arg;
    struct engine_peer *peer = wait->peer;
    const struct transport_ops *after = NULL;
    enum shoal_status status = SHOAL_UNSUPPORTED;
    struct engine_path *path;
    struct shoal_error error;

    if (peer->engine->is_closing)
        status = error_set(&error, SHOAL_CLOSED, 0, "engine is being destroyed");
    while (status == SHOAL_UNSUPPORTED) {
        path = engine_peer_path(peer, after, TRANSPORT_CAP_NOTIFY, &error);
        if (!path) {
            status = error.status;
            break;
        }
        status = path->ops->notify(path->remote, wait->name, wait->text, wait->len, notify_done, wait, &error);
        after = path->ops;
    }
    if (status != SHOAL_OK)
        notify_done(wait, status, &error);
}

static void notify_canceled(void *arg)
{
    struct notify_wait *wait = arg;

    mutex_lock(&wait->mutex);
    wait->is_canceled = true;
    cond_broadcast(&wait->changed);
    mutex_unlock(&wait->mutex);
}

enum shoal_status shoal_segment_notify(struct shoal_segment *segment, const char *name, const void *message,
                                       size_t len_bytes, const struct shoal_call *public_call,
                                       struct shoal_error *error)
{
    struct cancel_hook hook = {0};
    struct notify_wait *wait;
    enum shoal_status status;
    struct call call;
    size_t name_len;

    if (!segment || !name || (!message && len_bytes))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "segment, name and message are required");
    name_len = strlen(name);
    if (name_len == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "name is empty");
    if (name_len > DATA_NOTIFY_NAME_MAX_BYTES || len_bytes > DATA_NOTIFY_MAX_BYTES)
        return error_set(error, SHOAL_LIMIT, 0, "a notification has a name of 1..%d bytes and at most %d bytes",
                         DATA_NOTIFY_NAME_MAX_BYTES, DATA_NOTIFY_MAX_BYTES);
    status = call_init(&call, public_call, DEFAULT_CALL_MS, error);
    if (status != SHOAL_OK)
        return status;
    wait = calloc(1, sizeof *wait + name_len + 1 + len_bytes);
    if (!wait)
        return error_no_memory(error);
    if (len_bytes)
        memcpy(wait->text, message, len_bytes);
    memcpy(wait->text + len_bytes, name, name_len + 1);
    wait->name = (const char *)wait->text + len_bytes;
    wait->len = len_bytes;
    wait->refs = 2;
    wait->peer = segment->peer;
    engine_peer_ref(wait->peer);
    mutex_init(&wait->mutex, RANK_ENGINE);
    cond_init(&wait->changed);
    loop_post(segment->engine->loops[0], &wait->task, notify_on_loop, wait);
    cancel_hook_add(call.cancel, &hook, notify_canceled, wait);
    mutex_lock(&wait->mutex);
    while (!wait->is_done && !wait->is_canceled && cond_wait_until(&wait->changed, &wait->mutex, call.deadline_ms))
        ;
    if (wait->is_done)
        status = wait->status == SHOAL_OK ? SHOAL_OK : error_copy(error, &wait->error);
    else if (wait->is_canceled)
        status = error_set(error, SHOAL_CANCELED, 0, "notification of '%s' was canceled", wait->peer->name);
    else
        status =
            error_set(error, SHOAL_TIMED_OUT, 0, "'%s' did not confirm the notification in time", wait->peer->name);
    mutex_unlock(&wait->mutex);
    cancel_hook_remove(call.cancel, &hook);
    notify_unref(wait);
    return status;
}
