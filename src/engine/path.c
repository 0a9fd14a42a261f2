/* SPDX-License-Identifier: Apache-2.0 */
/* Which transport a peer's requests take: the last installed one that reaches it, another one where that refuses, and
 * what became of the better ones. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_internal.h"

#define LOG_MODULE "engine"
#define OUT_OF_REACH "out of reach" /* no loss: it was never meant for such a peer */

_Static_assert(ENGINE_PATHS_MAX == ENGINE_TRANSPORTS_MAX, "a view has room for every transport");

struct engine_path *engine_peer_path_of(struct engine_peer *peer, const struct transport_ops *ops)
{
    for (unsigned i = 0; i < peer->path_count; i++)
        if (peer->paths[i].ops == ops)
            return &peer->paths[i];
    return NULL;
}

/* Transports that were installed since the last look come in at the front. */
static void add_new_transports(struct engine_peer *peer)
{
    struct shoal_engine *engine = peer->engine;
    unsigned fresh;

    if (__atomic_load_n(&engine->transport_count, __ATOMIC_ACQUIRE) == peer->path_count)
        return;
    mutex_lock(&engine->mutex);
    fresh = engine->transport_count - peer->path_count;
    memmove(&peer->paths[fresh], &peer->paths[0], peer->path_count * sizeof peer->paths[0]);
    for (unsigned i = 0; i < fresh; i++)
        peer->paths[i] =
            (struct engine_path){.ops = engine->transports[i].ops, .instance = engine->transports[i].instance};
    peer->path_count += fresh;
    mutex_unlock(&engine->mutex);
}

/* --- refusals --- */

static void count_fallback_locked(struct shoal_engine *engine, const char *transport, const char *reason)
{
    unsigned i = 0;

    while (i < engine->fallback_count &&
           (strcmp(engine->fallbacks[i].transport, transport) != 0 || strcmp(engine->fallbacks[i].reason, reason) != 0))
        i++;
    if (i == ENGINE_FALLBACK_KINDS_MAX)
        i--; /* never with the labels there are */
    if (i == engine->fallback_count) {
        engine->fallbacks[i] = (struct engine_fallback){.transport = transport, .reason = reason};
        engine->fallback_count++;
    }
    engine->fallbacks[i].count++;
}

static int64_t retry_after_ms(const struct shoal_engine *engine, unsigned refusals)
{
    int64_t delay = engine->path_retry_ms;

    for (unsigned i = 1; i < refusals && delay < ENGINE_PATH_RETRY_MAX_MS; i++)
        delay *= 2;
    return delay < ENGINE_PATH_RETRY_MAX_MS ? delay : ENGINE_PATH_RETRY_MAX_MS;
}

/* is_news out: it was not refused for that reason before. */
static bool leave_alone(struct engine_peer *peer, struct engine_path *path, const char *reason, const char *text,
                        bool is_counted)
{
    struct shoal_engine *engine = peer->engine;
    bool is_news;

    mutex_lock(&engine->mutex);
    is_news = !path->refusal || strcmp(path->refusal, reason) != 0;
    path->refusals++;
    path->refusal = reason;
    snprintf(path->refusal_text, sizeof path->refusal_text, "%.*s", (int)sizeof path->refusal_text - 1, text);
    path->retry_ms = deadline_after_ms(retry_after_ms(engine, path->refusals));
    if (is_news && is_counted)
        count_fallback_locked(engine, path->ops->name, reason);
    mutex_unlock(&engine->mutex);
    return is_news;
}

void engine_path_refused(struct engine_peer *peer, const struct transport_ops *ops,
                         const struct transport_request *request, const struct shoal_error *error)
{
    struct engine_path *path = engine_peer_path_of(peer, ops);
    const char *reason = request->refusal ? request->refusal : "unsupported";
    const char *text = error ? error->message : shoal_status_text(SHOAL_UNSUPPORTED);

    if (request->is_refused_once) {
        mutex_lock(&peer->engine->mutex);
        count_fallback_locked(peer->engine, ops->name, reason);
        mutex_unlock(&peer->engine->mutex);
    } else if (leave_alone(peer, path, reason, text, true)) {
        LOG_INFO("'%s' is not reached over '%s' (%s): %s", peer->name, ops->name, reason, text);
    }
}

void engine_path_worked(struct engine_peer *peer, const struct transport_ops *ops, bool is_ok, uint64_t bytes)
{
    struct engine_path *path = engine_peer_path_of(peer, ops);

    if (!is_ok)
        return;
    __atomic_fetch_add(&path->requests, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&path->bytes, bytes, __ATOMIC_RELAXED);
    if (!path->refusal)
        return;
    mutex_lock(&peer->engine->mutex);
    path->refusal = NULL;
    path->refusals = 0;
    path->refusal_text[0] = '\0';
    mutex_unlock(&peer->engine->mutex);
    LOG_INFO("'%s' is reached over '%s' again", peer->name, ops->name);
}

void engine_path_worked_directly(struct engine_peer *peer, const struct transport_direct_ops *ops, uint64_t bytes)
{
    mutex_lock(&peer->engine->mutex); /* paths may move */
    for (unsigned i = 0; i < peer->path_count; i++) {
        if (peer->paths[i].ops->direct == ops) {
            __atomic_fetch_add(&peer->paths[i].requests, 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&peer->paths[i].bytes, bytes, __ATOMIC_RELAXED);
        }
    }
    mutex_unlock(&peer->engine->mutex);
}

/* --- choice --- */

/* The last one is never left alone: what it says is what the caller gets. */
static bool is_usable(struct engine_peer *peer, struct engine_path *path, struct shoal_error *error)
{
    bool is_last = path == &peer->paths[peer->path_count - 1];
    char text[HOSTPORT_TEXT_BYTES + 32];
    struct transport_peer *remote;
    enum shoal_status status;

    if (path->refusal) {
        if (!deadline_is_past(path->retry_ms))
            return false;
        path->retry_ms = deadline_after_ms(retry_after_ms(peer->engine, path->refusals)); /* one request tries */
    }
    if (path->remote)
        return true;
    if (!path->ops->is_reachable(path->instance, peer->address, peer->instance)) {
        snprintf(text, sizeof text, "%s is not within its reach", peer->address);
        if (!is_last && leave_alone(peer, path, OUT_OF_REACH, text, false))
            LOG_DEBUG("'%s' is out of reach of '%s'", peer->name, path->ops->name);
        return false;
    }
    status = path->ops->peer_open(path->instance, peer->name, peer->address, peer->instance, &remote, error);
    if (status == SHOAL_OK) {
        mutex_lock(&peer->engine->mutex);
        path->remote = remote;
        mutex_unlock(&peer->engine->mutex);
        return true;
    }
    if (!is_last && leave_alone(peer, path, "cannot be opened", error->message, true))
        LOG_INFO("'%s' is not reached over '%s': %s", peer->name, path->ops->name, error->message);
    return false;
}

/* Small requests may go over the transport in use without loop 0, until one has to look for a better one again. */
static void publish_direct(struct engine_peer *peer, const struct engine_path *path)
{
    int64_t until_ms = path == &peer->paths[0] ? DEADLINE_NONE : deadline_after_ms(peer->engine->path_retry_ms);

    if (!path->ops->direct) {
        if (peer->direct)
            __atomic_store_n(&peer->direct, NULL, __ATOMIC_RELEASE);
        return;
    }
    if (peer->direct == path->remote && !deadline_is_past(peer->direct_until_ms))
        return;
    __atomic_store_n(&peer->direct_ops, path->ops->direct, __ATOMIC_RELAXED);
    __atomic_store_n(&peer->direct_until_ms, until_ms, __ATOMIC_RELAXED);
    __atomic_store_n(&peer->direct, path->remote, __ATOMIC_RELEASE); /* pairs with engine_direct_submit */
}

struct engine_path *engine_peer_path(struct engine_peer *peer, const struct transport_ops *after, unsigned caps,
                                     struct shoal_error *error)
{
    unsigned i = 0;

    assert(loop_is_current(peer->engine->loops[0]));
    add_new_transports(peer);
    error_set(error, SHOAL_UNREACHABLE, 0, "no installed transport reaches '%s' (%s)", peer->name, peer->address);
    if (after)
        i = (unsigned)(engine_peer_path_of(peer, after) - peer->paths) + 1;
    for (; i < peer->path_count; i++) {
        struct engine_path *path = &peer->paths[i];

        if ((path->ops->caps & caps) != caps || !is_usable(peer, path, error))
            continue;
        if (peer->in_use != path->ops->name) {
            mutex_lock(&peer->engine->mutex);
            peer->in_use = path->ops->name;
            mutex_unlock(&peer->engine->mutex);
        }
        publish_direct(peer, path);
        return path;
    }
    return NULL;
}

void engine_peer_abort_paths(struct engine_peer *peer)
{
    for (unsigned i = 0; i < peer->path_count; i++)
        if (peer->paths[i].remote)
            peer->paths[i].ops->peer_abort(peer->paths[i].remote);
}

void engine_peer_close_paths(struct engine_peer *peer)
{
    for (unsigned i = 0; i < peer->path_count; i++)
        if (peer->paths[i].remote)
            peer->paths[i].ops->peer_close(peer->paths[i].remote);
}

/* --- looking at it --- */

struct peer_copy {
    struct engine_peer_view view;
    char name[HELLO_NAME_MAX_BYTES + 1], address[HOSTPORT_TEXT_BYTES];
};

static void copy_peer_locked(struct peer_copy *copy, const struct engine_peer *peer)
{
    struct engine_peer_view *view = &copy->view;

    memcpy(copy->name, peer->name, sizeof copy->name);
    memcpy(copy->address, peer->address, sizeof copy->address);
    *view = (struct engine_peer_view){.name = copy->name,
                                      .address = copy->address,
                                      .instance = peer->instance,
                                      .transport = peer->in_use,
                                      .path_count = peer->path_count};
    for (unsigned i = 0; i < peer->path_count; i++) {
        const struct engine_path *path = &peer->paths[i];

        view->paths[i] = (struct engine_path_view){.transport = path->ops->name,
                                                   .refusal = path->refusal,
                                                   .is_in_use = path->ops->name == peer->in_use,
                                                   .requests = __atomic_load_n(&path->requests, __ATOMIC_RELAXED),
                                                   .bytes = __atomic_load_n(&path->bytes, __ATOMIC_RELAXED)};
        memcpy(view->paths[i].text, path->refusal_text, sizeof view->paths[i].text);
    }
}

enum shoal_status engine_peers_visit(struct shoal_engine *engine,
                                     void (*fn)(void *arg, const struct engine_peer_view *view), void *arg)
{
    struct peer_copy *copies = NULL;
    size_t room = 0, count;

    for (;;) {
        count = 0;
        mutex_lock(&engine->mutex);
        LIST_FOR_EACH (peer, &engine->peers, struct engine_peer, node) {
            if (count < room)
                copy_peer_locked(&copies[count], peer);
            count++;
        }
        mutex_unlock(&engine->mutex);
        if (count <= room)
            break;
        free(copies);
        room = count + 8;
        copies = malloc(room * sizeof *copies);
        if (!copies)
            return SHOAL_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++)
        fn(arg, &copies[i].view);
    free(copies);
    return SHOAL_OK;
}

void engine_segment_way(const struct shoal_segment *segment, struct engine_way *way_out)
{
    const struct engine_peer *peer = segment->peer;
    size_t used = 0;

    assert(loop_is_current(segment->engine->loops[0]));
    *way_out = (struct engine_way){.transport = peer->in_use};
    for (unsigned i = 0; i < peer->path_count && peer->paths[i].ops->name != peer->in_use; i++) {
        const struct engine_path *path = &peer->paths[i];

        if (path->refusal && strcmp(path->refusal, OUT_OF_REACH) != 0 && used < sizeof way_out->left)
            used += (size_t)snprintf(way_out->left + used, sizeof way_out->left - used, "%s%s: %s", used ? ", " : "",
                                     path->ops->name, path->refusal);
    }
}

struct retry_call {
    struct shoal_engine *engine;
    int64_t retry_ms;
};

static void set_retry_on_loop(void *arg)
{
    const struct retry_call *call = arg;

    call->engine->path_retry_ms = call->retry_ms;
}

void engine_set_path_retry_ms(struct shoal_engine *engine, int64_t retry_ms)
{
    struct retry_call call = {engine, retry_ms};

    loop_call(engine->loops[0], set_retry_on_loop, &call);
}
