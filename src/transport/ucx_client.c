/* SPDX-License-Identifier: Apache-2.0 */
/* The requesting side: one connection per peer, the grants it got, and the links that bytes travel over (ucx_link.c).
 */
#include "transport/ucx_client.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define LOG_MODULE "ucx"

static void conn_unref(struct ucx_conn *conn)
{
    struct ucx *ucx = conn->peer_ucx;

    if (__atomic_sub_fetch(&conn->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(conn);
    ucx_live(ucx, -1);
}

/* --- ends of transfers --- */

static unsigned tries_max(const struct ucx *ucx)
{
    return ucx->has_fallback ? 3 : 2;
}

static void detach(struct ucx_transfer *transfer)
{
    struct ucx_grant *grant = transfer->grant;

    list_remove(&transfer->node);
    transfer->grant = NULL;
    transfer->link = NULL;
    if (grant)
        ucx_grant_unuse(grant);
}

/* Nothing of it is in flight. */
void ucx_transfer_end(struct ucx_transfer *transfer, enum shoal_status status, const struct shoal_error *error)
{
    assert(transfer->in_flight == 0);
    transfer->status = status;
    if (error)
        transfer->error = *error;
    else if (status != SHOAL_OK)
        error_set(&transfer->error, status, 0, "'%s': %s", transfer->peer->name, shoal_status_text(status));
    detach(transfer);
    list_remove(&transfer->peer_node);
    ucx_transfer_return(transfer);
}

void ucx_transfer_stop(struct ucx_transfer *transfer, enum shoal_status status, const struct shoal_error *error)
{
    if (!transfer->is_ending) {
        transfer->is_ending = true;
        transfer->ending_ms = clock_now_ms();
        transfer->status = status;
        if (error)
            transfer->error = *error;
        else
            error_set(&transfer->error, status, 0, "'%s': %s", transfer->peer->name, shoal_status_text(status));
    }
    if (transfer->link) {
        ucx_link_stop(transfer);
    } else {
        struct shoal_error why = transfer->error;

        ucx_transfer_end(transfer, transfer->status, &why);
    }
}

static void reset(struct ucx_transfer *transfer)
{
    detach(transfer);
    transfer->issued = transfer->arrived = transfer->done_bits = 0;
    transfer->is_flushing = false;
    transfer->request->transferred_bytes = 0;
}

/* The connection under it is gone. false: it ended. */
static bool is_kept(struct ucx_transfer *transfer, enum shoal_status status, const struct shoal_error *error,
                    bool has_other_devices)
{
    bool is_repeatable = transfer->request->op == SHOAL_OP_READ || transfer->issued == 0;

    if (ucx_is_canceled(transfer) && !transfer->is_ending) {
        ucx_transfer_end(transfer, SHOAL_CANCELED, NULL);
        return false;
    }
    if (transfer->is_ending) {
        struct shoal_error why = transfer->error;

        ucx_transfer_end(transfer, transfer->status, &why);
        return false;
    }
    if (!is_repeatable || transfer->tries + 1 >= tries_max(transfer->peer->ucx) ||
        !(status == SHOAL_UNREACHABLE || (status == SHOAL_TIMED_OUT && has_other_devices))) {
        ucx_transfer_end(transfer, status, error);
        return false;
    }
    transfer->tries++;
    ucx_count(&transfer->peer->ucx->counters.retries, 1);
    reset(transfer);
    return true;
}

/* --- grants --- */

static void grant_free(struct ucx_grant *grant)
{
    list_remove(&grant->node);
    grant->conn->grant_count--;
    for (unsigned i = 0; i < UCX_LINKS_MAX; i++)
        if (grant->rkeys[i])
            grant->conn->peer->ucx->lib->rkey_destroy(grant->rkeys[i]);
    free(grant->packed);
    free(grant);
}

/* Whether it could be sent; else the connection fails soon. */
static bool say(struct ucx_conn *conn, const struct ucx_frame *frame)
{
    if (ucx_channel_send(&conn->channel, frame, NULL))
        return true;
    ucx_conn_fail(conn, SHOAL_UNREACHABLE, "connection was lost");
    return false;
}

void ucx_grant_unuse(struct ucx_grant *grant)
{
    struct ucx_conn *conn = grant->conn;
    struct ucx_frame frame = {.type = UCX_FRAME_REVOKED, .id = grant->id};

    if (--grant->users > 0 || !grant->is_revoked)
        return;
    grant_free(grant);
    if (!conn->is_closed)
        (void)say(conn, &frame);
}

static struct ucx_grant *find_grant(struct ucx_conn *conn, const struct transport_request *request)
{
    unsigned access = request->op == SHOAL_OP_READ ? UCX_FRAME_READ : UCX_FRAME_WRITE;

    LIST_FOR_EACH (grant, &conn->grants, struct ucx_grant, node) {
        if (grant->access != access || grant->is_revoked || request->remote_addr < grant->addr ||
            request->remote_addr - grant->addr > grant->len ||
            request->len_bytes > grant->len - (request->remote_addr - grant->addr))
            continue;
        /* What was granted for a key is for that key; without one, for whoever names none or the region's. */
        if (request->remote_key == grant->asked_key || (!grant->asked_key && request->remote_key == grant->key))
            return grant;
    }
    return NULL;
}

static void forget_old_grants(struct ucx_conn *conn)
{
    struct list_node *node = conn->grants.head.prev;

    while (conn->grant_count >= UCX_GRANTS_MAX && node != &conn->grants.head) {
        struct ucx_grant *grant = container_of(node, struct ucx_grant, node);
        struct ucx_frame frame = {.type = UCX_FRAME_RELEASE, .id = grant->id};

        node = node->prev;
        if (grant->users > 0)
            continue;
        grant_free(grant);
        if (!say(conn, &frame))
            return;
    }
}

static bool is_asked(struct ucx_conn *conn, uint64_t key, unsigned access)
{
    LIST_FOR_EACH (ask, &conn->asks, struct ucx_ask, node) {
        if (ask->key == key && ask->access == access)
            return true;
    }
    return false;
}

static bool use_fallback(const struct ucx_peer *peer)
{
    return peer->fallback_until_ms > clock_now_ms();
}

static enum shoal_status ask_for(struct ucx_conn *conn, struct ucx_transfer *transfer, unsigned access)
{
    const struct transport_request *request = transfer->request;
    struct ucx_frame frame = {.type = UCX_FRAME_ASK,
                              .code = (uint8_t)(access | (use_fallback(conn->peer) ? UCX_FRAME_FALLBACK : 0u)),
                              .addr = request->remote_addr,
                              .key = request->remote_key,
                              .len = request->len_bytes};
    struct ucx_ask *ask = calloc(1, sizeof *ask);

    if (!ask)
        return SHOAL_NO_MEMORY;
    frame.id = ask->id = ++conn->next_id;
    ask->key = request->remote_key;
    ask->access = access;
    ask->transfer = transfer;
    list_push_back(&conn->asks, &ask->node);
    conn->ask_count++;
    (void)say(conn, &frame);
    return SHOAL_OK;
}

/* Gives a grant and a link to whoever waits and can have them, asks for others. */
static void serve_wants(struct ucx_conn *conn)
{
    struct list_node *node = conn->wants.head.next;

    while (node != &conn->wants.head && !conn->is_failed) {
        struct ucx_transfer *transfer = container_of(node, struct ucx_transfer, node);
        unsigned access = transfer->request->op == SHOAL_OP_READ ? UCX_FRAME_READ : UCX_FRAME_WRITE;
        struct ucx_grant *grant = find_grant(conn, transfer->request);
        enum shoal_status status = SHOAL_OK;
        struct shoal_error error = {.status = SHOAL_OK};

        node = node->next; /* ends below take only transfer out of the list */
        if (grant) {
            struct ucx_link *link = NULL;

            status = ucx_link_get(conn, transfer, grant->set, &link, &error);
            if (status == SHOAL_OK) {
                list_remove(&grant->node);
                list_push_front(&conn->grants, &grant->node);
                grant->users++;
                transfer->grant = grant;
                ucx_link_add(link, transfer);
            }
        } else if (!is_asked(conn, transfer->request->remote_key, access) && conn->ask_count < UCX_ASKS_MAX) {
            status = ask_for(conn, transfer, access);
        }
        if (status != SHOAL_OK)
            ucx_transfer_end(transfer, status, error.status == SHOAL_OK ? NULL : &error);
    }
}

/* --- frames --- */

static struct ucx_transfer *take_ask(struct ucx_conn *conn, uint64_t id, struct ucx_ask *out)
{
    LIST_FOR_EACH (ask, &conn->asks, struct ucx_ask, node) {
        if (ask->id != id)
            continue;
        *out = *ask;
        list_remove(&ask->node);
        conn->ask_count--;
        free(ask);
        return out->transfer;
    }
    out->id = 0;
    return NULL;
}

static bool granted(struct ucx_conn *conn, const struct ucx_frame *frame, const uint8_t *body)
{
    struct ucx_grant *grant;
    struct ucx_ask ask;

    (void)take_ask(conn, frame->id, &ask);
    if (!ask.id)
        return false;
    forget_old_grants(conn);
    grant = calloc(1, sizeof *grant);
    if (grant)
        grant->packed = malloc(frame->body_len);
    if (!grant || !grant->packed) {
        free(grant);
        ucx_conn_fail(conn, SHOAL_NO_MEMORY, "out of memory");
        return true;
    }
    memcpy(grant->packed, body, frame->body_len);
    grant->conn = conn;
    grant->id = frame->id;
    grant->addr = frame->addr;
    grant->len = frame->len;
    grant->key = frame->key;
    grant->asked_key = ask.key;
    grant->access = ask.access;
    grant->set = frame->set;
    list_push_front(&conn->grants, &grant->node);
    conn->grant_count++;
    serve_wants(conn);
    return true;
}

static bool refused(struct ucx_conn *conn, const struct ucx_frame *frame, const uint8_t *body)
{
    struct ucx_transfer *transfer;
    struct shoal_error error;
    struct ucx_ask ask;
    enum shoal_status status = SHOAL_INVALID_ARGUMENT;

    if (frame->code == UCX_FRAME_UNREADABLE)
        status = SHOAL_IO;
    else if (frame->code == UCX_FRAME_LIMIT || frame->code == UCX_FRAME_UNSUPPORTED)
        status = SHOAL_UNSUPPORTED;
    error_set(&error, status, 0, "'%s': %.*s", conn->peer->name, (int)frame->body_len, (const char *)body);
    if (ucx_link_refused(conn, frame->id, &error))
        return true;
    transfer = take_ask(conn, frame->id, &ask);
    if (!ask.id)
        return false;
    if (transfer) {
        if (status == SHOAL_UNSUPPORTED) {
            transfer->request->refusal = frame->code == UCX_FRAME_LIMIT ? "peer is full" : "memory";
            transfer->request->is_refused_once = true;
        }
        ucx_transfer_end(transfer, status, &error);
    }
    serve_wants(conn);
    return true;
}

static bool revoked(struct ucx_conn *conn, const struct ucx_frame *frame)
{
    struct ucx_frame back = {.type = UCX_FRAME_REVOKED, .id = frame->id};
    struct ucx_grant *found = NULL;

    LIST_FOR_EACH (grant, &conn->grants, struct ucx_grant, node) {
        if (grant->id == frame->id)
            found = grant;
    }
    if (!found) { /* it was given back meanwhile */
        (void)say(conn, &back);
        return true;
    }
    if (found->is_revoked)
        return true;
    found->is_revoked = true;
    found->users++; /* must outlive the loop */
    LIST_FOR_EACH_SAFE (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node) {
        if (transfer->grant != found)
            continue;
        if (transfer->issued == 0) {
            reset(transfer); /* asks again, and learns why it may not */
            list_push_back(&conn->wants, &transfer->node);
        } else {
            struct shoal_error error;

            error_set(&error, SHOAL_UNREACHABLE, 0, "'%s': memory was unregistered", conn->peer->name);
            ucx_transfer_stop(transfer, SHOAL_UNREACHABLE, &error);
        }
    }
    ucx_grant_unuse(found);
    serve_wants(conn);
    return true;
}

static bool conn_frame(void *arg, const struct ucx_frame *frame, const uint8_t *body)
{
    struct ucx_conn *conn = arg;
    bool is_expected = false;

    if (conn->is_failed)
        return true;
    conn->heard_ms = clock_now_ms();
    switch (frame->type) {
    case UCX_FRAME_GRANT:
        is_expected = granted(conn, frame, body);
        break;
    case UCX_FRAME_REFUSE:
        is_expected = refused(conn, frame, body);
        break;
    case UCX_FRAME_LINKED:
        is_expected = ucx_link_open(conn, frame->id, frame->key, body);
        break;
    case UCX_FRAME_STORED:
        is_expected = ucx_link_stored(conn, frame->id);
        break;
    case UCX_FRAME_REVOKE:
        is_expected = revoked(conn, frame);
        break;
    default:
        break;
    }
    if (!is_expected) {
        ucx_count(&conn->peer->ucx->counters.protocol_errors, 1);
        ucx_conn_fail(conn, SHOAL_PROTOCOL, "unexpected frame");
    }
    return true;
}

static void conn_lost(void *arg, bool is_malformed, int sys_errno)
{
    struct ucx_conn *conn = arg;

    if (is_malformed)
        ucx_count(&conn->peer->ucx->counters.protocol_errors, 1);
    loop_io_set(&conn->channel.io, 0);
    ucx_conn_fail(conn, is_malformed ? SHOAL_PROTOCOL : SHOAL_UNREACHABLE,
                  is_malformed ? "malformed frame"
                  : sys_errno  ? strerror(sys_errno)
                               : "connection closed by peer");
}

/* --- connections --- */

/* Not from inside UCX. What waits for the peer is given to a new connection if it may be repeated. */
static void conn_close(struct ucx_conn *conn, enum shoal_status status, const struct shoal_error *error)
{
    struct ucx_peer *peer = conn->peer;
    struct ucx *ucx = conn->peer_ucx;
    struct list_node *node;
    bool has_other_devices;

    if (conn->is_closed)
        return;
    conn->is_closed = true;
    has_other_devices = ucx->has_fallback && conn->has_failed_link && !use_fallback(peer);
    if (peer->conn == conn)
        peer->conn = NULL;
    if (has_other_devices && (status == SHOAL_TIMED_OUT || status == SHOAL_UNREACHABLE)) {
        peer->fallback_until_ms = clock_now_ms() + UCX_FALLBACK_MS;
        ucx_count(&ucx->counters.failovers, 1);
        LOG_WARN("'%s': %s; the fallback devices take over", peer->name, error ? error->message : "");
    }
    ucx_links_close(conn); /* nothing is in flight afterwards */
    ucx_channel_close(&conn->channel);
    while ((node = list_pop_front(&conn->asks)))
        free(container_of(node, struct ucx_ask, node));
    LIST_FOR_EACH_SAFE (transfer, &peer->transfers, struct ucx_transfer, peer_node) {
        if (is_kept(transfer, status, error, has_other_devices))
            ucx_client_start(transfer);
    }
    while ((node = list_first(&conn->grants)))
        grant_free(container_of(node, struct ucx_grant, node));
    list_remove(&conn->node);
    ucx_count(&ucx->counters.conns, -1);
    ucx_peer_unref(peer);
    conn_unref(conn);
}

static void fail_posted(void *arg)
{
    struct ucx_conn *conn = arg;
    struct shoal_error error = conn->error;

    conn_close(conn, error.status, &error);
    conn_unref(conn);
}

void ucx_conn_fail(struct ucx_conn *conn, enum shoal_status status, const char *text)
{
    if (conn->is_failed || conn->is_closed)
        return;
    conn->is_failed = true;
    error_set(&conn->error, status, 0, "'%s' (%s): %s", conn->peer->name, conn->peer->address, text);
    __atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
    loop_post(conn->peer_ucx->loop, &conn->fail_task, fail_posted, conn);
}

static void dialed_posted(void *arg)
{
    struct ucx_conn *conn = arg;
    struct ucx *ucx = conn->peer_ucx;
    enum shoal_status status = conn->error.status;

    conn->is_dialing = false;
    if (conn->is_closed) {
        if (conn->dialed_fd >= 0)
            close(conn->dialed_fd);
    } else if (status == SHOAL_OK) {
        status = ucx_channel_open(&conn->channel, ucx->loop, conn->dialed_fd, &conn->error);
        conn->heard_ms = clock_now_ms();
        if (status == SHOAL_OK)
            serve_wants(conn);
        else
            ucx_conn_fail(conn, status, "out of memory");
    } else {
        struct shoal_error error = conn->error;

        if (error.sys_errno == EPROTONOSUPPORT) { /* nothing has moved: another transport may take it */
            status = SHOAL_UNSUPPORTED;
            LIST_FOR_EACH (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node)
                transfer->request->refusal = "not served";
        }
        LIST_FOR_EACH (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node)
            transfer->tries = tries_max(ucx); /* this was the repetition */
        error.status = status;
        conn_close(conn, status, &error);
    }
    conn_unref(conn);
}

static void dialed(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                   const struct shoal_error *error)
{
    struct ucx_conn *conn = arg;

    (void)peer;
    conn->dial = NULL;
    conn->dialed_fd = fd;
    conn->error.status = status;
    if (error)
        conn->error = *error;
    loop_post(conn->peer_ucx->loop, &conn->dial_task, dialed_posted, conn);
}

static void dial_on_loop0(void *arg)
{
    struct ucx_conn *conn = arg;
    const struct transport_env *env = &conn->peer_ucx->env;
    struct shoal_error error;
    enum shoal_status status = endpoint_dial(env->endpoint, conn->address, conn->instance, HELLO_CHANNEL_UCX,
                                             env->connect_timeout_ms, dialed, conn, &conn->dial, &error);

    if (status != SHOAL_OK)
        dialed(conn, status, -1, NULL, &error);
}

static void cancel_dial_on_loop0(void *arg)
{
    struct ucx_conn *conn = arg;

    if (conn->dial)
        endpoint_dial_cancel(conn->dial);
    conn_unref(conn);
}

static struct ucx_conn *conn_create(struct ucx_peer *peer)
{
    struct ucx *ucx = peer->ucx;
    struct ucx_conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return NULL;
    conn->peer = peer;
    conn->peer_ucx = ucx;
    conn->instance = peer->instance;
    memcpy(conn->address, peer->address, sizeof conn->address);
    conn->refs = 2; /* the peer's and the dial's */
    conn->is_dialing = true;
    conn->dialed_fd = -1;
    conn->channel = (struct ucx_channel){.fd = -1, .on_frame = conn_frame, .on_lost = conn_lost, .arg = conn};
    list_init(&conn->wants);
    list_init(&conn->asks);
    list_init(&conn->grants);
    list_push_back(&ucx->conns, &conn->node);
    conn->heard_ms = conn->used_ms = conn->pinged_ms = clock_now_ms();
    peer->conn = conn;
    __atomic_add_fetch(&peer->refs, 1, __ATOMIC_RELAXED);
    ucx_count(&ucx->counters.conns, 1);
    ucx_live(ucx, 1);
    loop_post(ucx->env.loop, &conn->dial_task, dial_on_loop0, conn);
    return conn;
}

/* --- from ucx.c --- */

/* Room for one more connection: the one that was idle for longest goes. */
static bool make_room(struct ucx *ucx)
{
    struct ucx_conn *oldest = NULL;

    if (ucx->counters.conns < UCX_CONNS_MAX)
        return true;
    LIST_FOR_EACH (conn, &ucx->conns, struct ucx_conn, node) {
        if (list_is_empty(&conn->peer->transfers) && (!oldest || conn->used_ms < oldest->used_ms))
            oldest = conn;
    }
    if (oldest)
        conn_close(oldest, SHOAL_CANCELED, NULL);
    return oldest != NULL;
}

void ucx_client_start(struct ucx_transfer *transfer)
{
    struct ucx_peer *peer = transfer->peer;
    struct ucx_conn *conn = peer->conn;

    if (ucx_is_canceled(transfer) || peer->ucx->is_closing) {
        ucx_transfer_end(transfer, SHOAL_CANCELED, NULL);
        return;
    }
    if (!conn && !make_room(peer->ucx)) {
        transfer->request->refusal = "too many peers";
        ucx_transfer_end(transfer, SHOAL_UNSUPPORTED, NULL);
        return;
    }
    if (!conn)
        conn = conn_create(peer);
    if (!conn) {
        ucx_transfer_end(transfer, SHOAL_NO_MEMORY, NULL);
        return;
    }
    conn->used_ms = clock_now_ms();
    list_push_back(&conn->wants, &transfer->node);
    if (!conn->is_dialing && !conn->is_failed)
        serve_wants(conn);
}

static void drop_ask(struct ucx_transfer *transfer)
{
    struct ucx_conn *conn = transfer->peer->conn;

    if (!conn)
        return;
    LIST_FOR_EACH (ask, &conn->asks, struct ucx_ask, node) {
        if (ask->transfer == transfer)
            ask->transfer = NULL;
    }
}

static void stop(struct ucx_transfer *transfer, enum shoal_status status)
{
    if (!transfer->grant)
        drop_ask(transfer);
    ucx_transfer_stop(transfer, status, NULL);
}

void ucx_client_scan(struct ucx *ucx)
{
    LIST_FOR_EACH_SAFE (conn, &ucx->conns, struct ucx_conn, node) {
        LIST_FOR_EACH_SAFE (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node) {
            if (ucx_is_canceled(transfer) && !transfer->is_ending)
                stop(transfer, SHOAL_CANCELED);
        }
    }
}

void ucx_client_end(struct ucx_peer *peer, enum shoal_status status)
{
    struct ucx_conn *conn = peer->conn;

    LIST_FOR_EACH_SAFE (transfer, &peer->transfers, struct ucx_transfer, peer_node)
        stop(transfer, status);
    if (!conn)
        return;
    if (conn->is_dialing) {
        __atomic_add_fetch(&conn->refs, 1, __ATOMIC_RELAXED);
        loop_post(peer->ucx->env.loop, &conn->cancel_task, cancel_dial_on_loop0, conn);
    }
    conn_close(conn, status, NULL);
}

static bool has_stuck_cancel(struct ucx_conn *conn, int64_t now_ms)
{
    LIST_FOR_EACH (transfer, &conn->peer->transfers, struct ucx_transfer, peer_node) {
        if (transfer->is_ending && now_ms - transfer->ending_ms > UCX_CANCEL_GRACE_MS)
            return true;
    }
    return false;
}

void ucx_client_tick(struct ucx *ucx, int64_t now_ms, bool is_late)
{
    LIST_FOR_EACH_SAFE (conn, &ucx->conns, struct ucx_conn, node) {
        int64_t progress_ms = ucx->env.progress_timeout_ms;

        if (conn->is_dialing || conn->is_failed)
            continue;
        ucx_links_nudge(conn);
        if (is_late) {
            conn->heard_ms = now_ms;
            ucx_links_touch(conn, now_ms);
            continue;
        }
        if (conn->ask_count == 0 && !ucx_links_are_opening(conn))
            conn->heard_ms = now_ms; /* no answer is due */
        if (!list_is_empty(&conn->peer->transfers))
            conn->used_ms = now_ms;
        if (now_ms - conn->heard_ms > progress_ms) {
            ucx_conn_fail(conn, SHOAL_TIMED_OUT, "no answer within the progress timeout");
        } else if (ucx_links_silent_ms(conn, now_ms) > progress_ms) {
            conn->has_failed_link = true;
            ucx_conn_fail(conn, SHOAL_TIMED_OUT, "no progress within the progress timeout");
        } else if (has_stuck_cancel(conn, now_ms) && ucx_links_silent_ms(conn, now_ms) > UCX_CANCEL_GRACE_MS) {
            ucx_conn_fail(conn, SHOAL_UNREACHABLE, "a canceled request did not come to an end");
        } else if (now_ms - conn->used_ms > UCX_IDLE_MS) {
            conn_close(conn, SHOAL_CANCELED, NULL); /* and gone */
        } else if (now_ms - conn->pinged_ms > UCX_PING_MS) {
            struct ucx_frame ping = {.type = UCX_FRAME_PING};

            conn->pinged_ms = now_ms;
            (void)say(conn, &ping);
        }
    }
}
