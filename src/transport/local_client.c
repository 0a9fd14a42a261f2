/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and the requests of this node. A READ asks, copies when it is granted, and releases; a WRITE asks and waits
 * until the other node has copied. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/local_internal.h"

#define LOG_MODULE "local"

struct local_peer {
    struct local *local;
    struct list_node node; /* in local->peers */
    uint64_t instance;
    char name[HELLO_NAME_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    bool is_closed;
    bool was_connected;          /* at least once */
    struct endpoint_dial *dial;  /* NULL: not dialing */
    struct local_client *client; /* NULL: not connected; owned by itself */
    unsigned clients;            /* connections that are not freed */
    uint64_t outstanding;        /* requests that are not done */
    struct list waiting;         /* transport_request.node: for the connection or a slot of it */
    struct loop_task task;
    bool is_reaping;
};

/* transport_request.state */
enum request_state {
    REQUEST_WAITING = 1, /* in peer->waiting */
    REQUEST_RETRIED = 2, /* was on a connection that broke; the next break is final */
    REQUEST_ENDING = 4,  /* its end is posted */
};

enum transfer_state {
    TRANSFER_ASKED,   /* READ: no answer yet. WRITE: it is being copied there, or will be */
    TRANSFER_COPYING, /* READ: granted */
    TRANSFER_OVER,    /* the request is done, only the answer is awaited */
};

/* A request on the wire. */
struct local_transfer {
    uint64_t id;
    enum transfer_state state;
    struct local_client *client;
    struct transport_request *request; /* NULL with TRANSFER_OVER */
    bool is_canceled, is_revoked;
    int64_t cancel_deadline_ms; /* > 0: WRITE that was canceled */
    struct local_copy copy;
};

struct local_client {
    struct local_link link;
    struct list_node node; /* in local->clients */
    struct local_peer *peer;
    struct local_transfer *slots[LOCAL_SLOTS]; /* owned; NULL: never used */
    uint32_t free_slots[LOCAL_SLOTS];
    unsigned free_count;
    uint64_t next_id;
    int64_t idle_since_ms;
};

static struct local_peer *peer_of(struct transport_peer *base)
{
    return (struct local_peer *)base;
}

static struct local_client *client_of(struct local_link *link)
{
    return container_of(link, struct local_client, link);
}

struct local_client *local_client_of_node(struct list_node *node)
{
    return container_of(node, struct local_client, node);
}

struct local_link *local_client_link(struct local_client *client)
{
    return &client->link;
}

static unsigned used_slots(const struct local_client *client)
{
    return LOCAL_SLOTS - client->free_count;
}

/* --- the end of a request --- */

static void count_outcome(struct local *local, const struct transport_request *request, enum shoal_status status)
{
    struct local_counters *counters = &local->counters;

    switch (status) {
    case SHOAL_OK:
        local_count(request->op == SHOAL_OP_READ ? &counters->reads : &counters->writes, 1);
        local_count(request->op == SHOAL_OP_READ ? &counters->read_bytes : &counters->write_bytes, request->len_bytes);
        break;
    case SHOAL_CANCELED:
        local_count(&counters->canceled, 1);
        break;
    case SHOAL_TIMED_OUT:
        local_count(&counters->timed_out, 1);
        break;
    case SHOAL_UNREACHABLE:
        local_count(&counters->unreachable, 1);
        break;
    case SHOAL_INVALID_ARGUMENT:
        local_count(&counters->refused, 1);
        break;
    case SHOAL_UNSUPPORTED:
        local_count(&counters->unsupported, 1);
        break;
    default:
        local_count(&counters->failed, 1);
        break;
    }
}

static void peer_free(void *arg)
{
    struct local_peer *peer = arg;
    struct local *local = peer->local;

    list_remove(&peer->node);
    free(peer);
    local_live(local, -1);
}

static void peer_reap(struct local_peer *peer)
{
    if (!peer->is_closed || peer->is_reaping || peer->outstanding > 0 || peer->clients > 0 || peer->dial)
        return;
    peer->is_reaping = true;
    loop_post(peer->local->env.loop, &peer->task, peer_free, peer);
}

static void request_done(struct local_peer *peer, struct transport_request *request, enum shoal_status status,
                         const struct shoal_error *error)
{
    count_outcome(peer->local, request, status);
    if (status != SHOAL_OK && status != SHOAL_CANCELED && status != SHOAL_IO)
        request->transferred_bytes = 0;
    request->done(request, status, error); /* may close the peer, which stays while this request is outstanding */
    peer->outstanding--;
    peer_reap(peer);
}

static void deliver(void *arg)
{
    struct transport_request *request = arg;
    struct shoal_error *error = request->error;

    request->error = NULL;
    request_done(request->link, request, request->status, error);
    free(error);
}

/* The same, but never inside: for submit, cancel and abort. */
static void request_post(struct local_peer *peer, struct transport_request *request, enum shoal_status status,
                         const struct shoal_error *error)
{
    request->status = status;
    request->error = error ? malloc(sizeof *error) : NULL;
    if (request->error)
        *request->error = *error;
    request->link = peer;
    request->state |= REQUEST_ENDING;
    loop_post(peer->local->env.loop, &request->task, deliver, request);
}

/* Not this way. */
static void request_refuse(struct local_peer *peer, struct transport_request *request, bool is_once, const char *label,
                           const char *text)
{
    struct shoal_error error;

    request->refusal = label;
    request->is_refused_once = is_once;
    error_set(&error, SHOAL_UNSUPPORTED, 0, "%s", text);
    request_post(peer, request, SHOAL_UNSUPPORTED, &error);
}

static void end_waiting(struct local_peer *peer, enum shoal_status status, const struct shoal_error *error)
{
    struct list_node *node;

    while ((node = list_pop_front(&peer->waiting))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        request->state &= ~(unsigned)REQUEST_WAITING;
        request_post(peer, request, status, error);
    }
}

static void refuse_waiting(struct local_peer *peer, const char *label, const char *text)
{
    struct list_node *node;

    while ((node = list_pop_front(&peer->waiting))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        request->state &= ~(unsigned)REQUEST_WAITING;
        request_refuse(peer, request, false, label, text);
    }
}

static void wait_for_slot(struct local_peer *peer, struct transport_request *request)
{
    request->state |= REQUEST_WAITING;
    list_push_back(&peer->waiting, &request->node);
}

/* --- transfers --- */

static void transfer_release(struct local_transfer *transfer)
{
    struct local_client *client = transfer->client;

    client->free_slots[client->free_count++] = (uint32_t)(transfer->id % LOCAL_SLOTS);
    transfer->id = 0;
    transfer->request = NULL;
    if (used_slots(client) == 0)
        client->idle_since_ms = clock_now_ms();
}

static struct local_transfer *transfer_take(struct local_client *client)
{
    struct local_transfer *transfer;
    uint32_t slot;

    if (client->free_count == 0)
        return NULL;
    slot = client->free_slots[client->free_count - 1];
    transfer = client->slots[slot];
    if (!transfer) {
        transfer = client->slots[slot] = calloc(1, sizeof *transfer);
        if (!transfer)
            return NULL;
    }
    client->free_count--;
    transfer->id = client->next_id++ * LOCAL_SLOTS + slot;
    transfer->client = client;
    transfer->state = TRANSFER_ASKED;
    transfer->is_canceled = transfer->is_revoked = false;
    transfer->cancel_deadline_ms = 0;
    return transfer;
}

static void issue_waiting(struct local_client *client);

/* Takes the request off the transfer; the slot stays until the peer has answered, if is_answered is false. */
static void transfer_end(struct local_transfer *transfer, bool is_answered, enum shoal_status status,
                         const struct shoal_error *error)
{
    struct transport_request *request = transfer->request;
    struct local_client *client = transfer->client;

    transfer->request = NULL;
    transfer->state = TRANSFER_OVER;
    transfer->cancel_deadline_ms = 0;
    if (is_answered)
        transfer_release(transfer);
    if (request)
        request_done(client->peer, request, status, error);
    if (!client->link.is_dead)
        issue_waiting(client);
}

static void send_release(struct local_transfer *transfer)
{
    const struct local_copy *copy = &transfer->copy;
    bool has_fault = transfer->state == TRANSFER_COPYING && copy->has_failed && copy->is_remote_fault;

    local_link_send(
        &transfer->client->link,
        &(struct local_frame){.type = LOCAL_RELEASE, .id = transfer->id, .addr = has_fault ? copy->fault_addr : 0});
}

static void copy_failed(struct local_transfer *transfer, enum shoal_status status)
{
    const struct local_copy *copy = &transfer->copy;
    const char *peer = transfer->client->link.peer_name;
    struct shoal_error error;

    if (status == SHOAL_IO && copy->is_remote_fault)
        error_set(&error, status, copy->sys_errno, "memory of '%s' is unreadable", peer);
    else if (status == SHOAL_IO)
        error_set(&error, status, copy->sys_errno, "local memory is not writable");
    else if (status == SHOAL_INVALID_ARGUMENT)
        error_set(&error, status, 0, "'%s' has taken its memory back", peer);
    else
        error_set(&error, status, copy->sys_errno, "reading memory of '%s': %s", peer,
                  copy->sys_errno ? strerror(copy->sys_errno) : shoal_status_text(status));
    transfer_end(transfer, true, status, status == SHOAL_CANCELED ? NULL : &error);
}

static void read_copied(struct local_copy *copy)
{
    struct local_transfer *transfer = container_of(copy, struct local_transfer, copy);
    struct transport_request *request = transfer->request;
    struct local_client *client = transfer->client;
    struct local_peer *peer = client->peer;
    enum shoal_status status = copy->status;

    request->transferred_bytes = copy->moved;
    if (!client->link.is_dead)
        send_release(transfer);
    if (status == SHOAL_OK) {
        transfer_end(transfer, true, SHOAL_OK, NULL);
    } else if (transfer->is_canceled) {
        transfer_end(transfer, true, SHOAL_CANCELED, NULL);
    } else if (transfer->is_revoked) {
        copy_failed(transfer, SHOAL_INVALID_ARGUMENT);
    } else if (status == SHOAL_UNREACHABLE && !(request->state & REQUEST_RETRIED) && !peer->is_closed) {
        /* The other end closed the connection, for another reason most likely; a new one tells. */
        request->state |= REQUEST_RETRIED;
        request->transferred_bytes = 0;
        local_count(&peer->local->counters.retries, 1);
        transfer->request = NULL;
        transfer_release(transfer);
        if (!client->link.is_dead)
            local_link_fail(&client->link, SHOAL_UNREACHABLE, NULL);
        request->link = NULL;
        peer->outstanding--;
        local_submit((struct transport_peer *)peer, request);
    } else {
        copy_failed(transfer, status == SHOAL_CANCELED ? SHOAL_UNREACHABLE : status);
    }
}

static void read_arrived(struct local_copy *copy, uint64_t offset, uint64_t len)
{
    struct transport_request *request = container_of(copy, struct local_transfer, copy)->request;

    request->arrived(request, offset, len);
}

static bool on_grant(struct local_client *client, struct local_transfer *transfer, const struct local_frame *frame)
{
    struct transport_request *request = transfer->request;
    struct local_copy *copy = &transfer->copy;
    struct shoal_error error;

    if (transfer->state == TRANSFER_OVER) {
        send_release(transfer);
        transfer_release(transfer);
        issue_waiting(client);
        return true;
    }
    if (transfer->state != TRANSFER_ASKED || request->op != SHOAL_OP_READ || (!frame->share && !client->link.can_read))
        return false;
    copy->share = NULL;
    if (frame->share) {
        copy->share = local_share_use(&client->link, frame->share, frame->from, request->len_bytes);
        if (!copy->share) {
            send_release(transfer);
            request->refusal = "memory cannot be shared";
            request->is_refused_once = true;
            error_set(&error, SHOAL_UNSUPPORTED, 0, "'%s' shares memory that could not be opened",
                      client->link.peer_name);
            transfer_end(transfer, true, SHOAL_UNSUPPORTED, &error);
            return true;
        }
    }
    copy->local = client->link.local;
    copy->link = &client->link;
    copy->from = frame->share ? frame->from : request->remote_addr;
    copy->to = request->local;
    copy->len = request->len_bytes;
    copy->done = read_copied;
    copy->arrived = request->arrived ? read_arrived : NULL;
    copy->is_alone = used_slots(client) == 1;
    transfer->state = TRANSFER_COPYING;
    local_copy_start(copy);
    return true;
}

static bool on_refuse(struct local_transfer *transfer, const struct local_frame *frame)
{
    struct transport_request *request = transfer->request;
    struct shoal_error error;
    enum shoal_status status = local_code_status(frame->code);

    if (transfer->state == TRANSFER_COPYING)
        return false;
    if (!request || status == SHOAL_CANCELED) {
        transfer_end(transfer, true, SHOAL_CANCELED, NULL);
        return true;
    }
    if (status == SHOAL_UNSUPPORTED) {
        request->refusal = "memory cannot be shared";
        request->is_refused_once = true;
    }
    error_set(&error, status, 0, "'%s' (%s) refused %s of [0x%llx, +%llu): %s", transfer->client->peer->name,
              transfer->client->peer->address, request->op == SHOAL_OP_READ ? "READ" : "WRITE",
              (unsigned long long)request->remote_addr, (unsigned long long)request->len_bytes, frame->text);
    transfer_end(transfer, true, status, &error);
    return true;
}

static bool client_frame(struct local_link *link, const struct local_frame *frame)
{
    struct local_client *client = client_of(link);
    struct local_transfer *transfer = client->slots[frame->id % LOCAL_SLOTS];

    if (!transfer || transfer->id != frame->id || frame->id == 0)
        return frame->type == LOCAL_REVOKE; /* it has crossed our release */
    switch (frame->type) {
    case LOCAL_GRANT:
        return on_grant(client, transfer, frame);
    case LOCAL_REFUSE:
        return on_refuse(transfer, frame);
    case LOCAL_REVOKE:
        if (transfer->state != TRANSFER_COPYING)
            return false;
        transfer->is_revoked = true;
        local_copy_stop(&transfer->copy);
        return true;
    case LOCAL_PROGRESS:
        if (transfer->request)
            transfer->request->transferred_bytes =
                frame->len < transfer->request->len_bytes ? frame->len : transfer->request->len_bytes;
        return true;
    case LOCAL_DONE:
        if (transfer->request && transfer->request->op != SHOAL_OP_WRITE)
            return false;
        if (transfer->request)
            transfer->request->transferred_bytes = transfer->request->len_bytes;
        transfer_end(transfer, true, SHOAL_OK, NULL);
        return true;
    default:
        return false;
    }
}

static const char *attach_label(const struct local_link *link)
{
    return link->local->has_cma ? "cross-memory attach refused" : "cross-memory attach off";
}

/* false: it cannot go this way and was refused. */
static bool fill_source(struct local_client *client, struct transport_request *request, struct local_frame *frame)
{
    uint64_t addr = (uint64_t)(uintptr_t)request->local;
    const struct local_link *link = &client->link;
    const char *label = "memory cannot be shared";
    char text[sizeof link->why + 64];

    if (request->op == SHOAL_OP_READ) {
        if (link->can_read || link->has_shares)
            return true;
        snprintf(text, sizeof text, "the peer's memory cannot be read: %s", link->why);
        label = attach_label(link);
    } else {
        frame->from = addr;
        if (link->is_readable ||
            local_share_offer(&client->link, addr, request->len_bytes, &frame->share, &frame->from))
            return true;
        snprintf(text, sizeof text, "memory is not shared, and the peer cannot read it: %s", link->peer_why);
    }
    request_refuse(client->peer, request, true, label, text);
    return false;
}

static void issue(struct local_client *client, struct transport_request *request)
{
    struct local_frame frame = {.type = request->op == SHOAL_OP_READ ? LOCAL_READ : LOCAL_WRITE,
                                .addr = request->remote_addr,
                                .len = request->len_bytes,
                                .key = request->remote_key};
    struct local_transfer *transfer;

    if (!fill_source(client, request, &frame))
        return;
    transfer = transfer_take(client);
    if (!transfer) {
        request_post(client->peer, request, SHOAL_NO_MEMORY, NULL);
        return;
    }
    if (used_slots(client) == 1)
        client->link.moved_ms = clock_now_ms();
    transfer->request = request;
    request->link = transfer;
    frame.id = transfer->id;
    local_link_send(&client->link, &frame);
    if (used_slots(client) == 1)
        loop_expect_more(client->link.local->env.loop);
}

static void issue_waiting(struct local_client *client)
{
    struct local_peer *peer = client->peer;
    struct list_node *node;

    while (!client->link.is_dead && client->free_count > 0 && (node = list_pop_front(&peer->waiting))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        request->state &= ~(unsigned)REQUEST_WAITING;
        issue(client, request);
    }
}

/* --- the connection --- */

/* What this channel could do here: nothing at all is a reason to leave it alone for this peer. */
static void client_ready(struct local_link *link)
{
    struct local_client *client = client_of(link);
    struct local_peer *peer = client->peer;
    bool can_any = link->can_read || link->is_readable || link->has_shares || shared_has_any(link->local->env.shared);
    char text[sizeof link->why + 64];

    if (link->is_limited) {
        snprintf(text, sizeof text, "the peer has a rate limit, which holds for TCP");
        refuse_waiting(peer, "rate limit", text);
    } else if (!can_any) {
        snprintf(text, sizeof text, "%s", link->why);
        refuse_waiting(peer, attach_label(link), text);
    } else {
        issue_waiting(client);
        return;
    }
    local_link_fail(link, SHOAL_UNSUPPORTED, NULL);
}

static void dial_if_needed(struct local_peer *peer);

static void client_lost(struct local_link *link, enum shoal_status status, const struct shoal_error *error)
{
    struct local_client *client = client_of(link);
    struct local_peer *peer = client->peer;

    if (peer->client == client)
        peer->client = NULL;
    for (size_t i = 0; i < LOCAL_SLOTS; i++) {
        struct local_transfer *transfer = client->slots[i];
        struct transport_request *request = transfer ? transfer->request : NULL;

        if (!request)
            continue;
        if (transfer->state == TRANSFER_COPYING) {
            transfer->is_canceled |= status == SHOAL_CANCELED;
            local_copy_stop(&transfer->copy); /* and ends when no thread writes any more */
            continue;
        }
        transfer->request = NULL;
        transfer->state = TRANSFER_OVER;
        request->transferred_bytes = 0;
        if (transfer->is_canceled) {
            request_post(peer, request, SHOAL_CANCELED, NULL);
        } else if (status == SHOAL_UNREACHABLE && request->op == SHOAL_OP_READ && !(request->state & REQUEST_RETRIED) &&
                   !peer->is_closed) {
            /* Not a WRITE: the other node may still be copying, and would do so over what comes after a repetition. */
            request->state |= REQUEST_RETRIED;
            local_count(&peer->local->counters.retries, 1);
            request->link = NULL;
            wait_for_slot(peer, request);
        } else {
            request_post(peer, request, status, error);
        }
    }
    if (status != SHOAL_UNREACHABLE || !link->is_ready)
        end_waiting(peer, status, error);
    dial_if_needed(peer);
}

static void client_unused(struct local_link *link)
{
    struct local_client *client = client_of(link);
    struct local_peer *peer = client->peer;
    struct local *local = link->local;

    list_remove(&client->node);
    local_link_release(link);
    for (size_t i = 0; i < LOCAL_SLOTS; i++)
        free(client->slots[i]);
    free(client);
    peer->clients--;
    __atomic_fetch_sub(&local->counters.client_connections, 1, __ATOMIC_RELAXED);
    peer_reap(peer);
    local_live(local, -1);
}

static const struct local_link_ops client_ops = {
    .ready = client_ready, .frame = client_frame, .lost = client_lost, .unused = client_unused};

static bool client_make(struct local_peer *peer, int fd)
{
    struct local *local = peer->local;
    struct local_client *client = calloc(1, sizeof *client);

    if (!client) {
        close(fd);
        return false;
    }
    client->peer = peer;
    client->next_id = 1;
    for (uint32_t i = 0; i < LOCAL_SLOTS; i++)
        client->free_slots[client->free_count++] = LOCAL_SLOTS - 1 - i;
    client->idle_since_ms = clock_now_ms();
    if (!local_link_open(&client->link, local, &client_ops, fd, peer->name)) {
        free(client);
        return false;
    }
    list_push_back(&local->clients, &client->node);
    local_count(&local->counters.client_connections, 1);
    local_live(local, 1);
    peer->clients++;
    peer->client = client;
    peer->was_connected = true;
    local_arm_tick(local);
    return true;
}

static void dialed(void *arg, enum shoal_status status, int fd, const struct hello *hello,
                   const struct shoal_error *error)
{
    struct local_peer *peer = arg;

    (void)hello;
    peer->dial = NULL;
    if (status == SHOAL_OK && peer->is_closed) {
        close(fd);
    } else if (status == SHOAL_OK) {
        if (!client_make(peer, fd))
            end_waiting(peer, SHOAL_NO_MEMORY, NULL);
    } else if (status == SHOAL_UNREACHABLE && error->sys_errno == ECONNREFUSED && !peer->was_connected) {
        refuse_waiting(peer, "no local socket", "the peer has no local socket on this host and network namespace");
    } else if (error->sys_errno == EACCES || error->sys_errno == EPERM) {
        refuse_waiting(peer, "local socket refused", error->message);
    } else {
        end_waiting(peer, status, error);
    }
    peer_reap(peer);
}

static void dial_if_needed(struct local_peer *peer)
{
    struct local *local = peer->local;
    struct shoal_error error;
    enum shoal_status status;

    if (peer->client || peer->dial || peer->is_closed || list_is_empty(&peer->waiting))
        return;
    status = endpoint_dial_local(local->env.endpoint, peer->instance, HELLO_CHANNEL_LOCAL,
                                 local->env.connect_timeout_ms, dialed, peer, &peer->dial, &error);
    if (status != SHOAL_OK) {
        peer->dial = NULL;
        end_waiting(peer, status, &error);
    }
}

void local_client_tick(struct local_client *client, int64_t now_ms)
{
    struct local_link *link = &client->link;
    const struct transport_env *env = &link->local->env;
    struct shoal_error error;
    bool is_copying = false;

    if (link->is_dead)
        return;
    if (!link->is_ready && now_ms - link->opened_ms >= env->connect_timeout_ms) {
        error_set(&error, SHOAL_TIMED_OUT, 0, "'%s' did not answer on the local socket within %lld ms", link->peer_name,
                  (long long)env->connect_timeout_ms);
        local_link_fail(link, SHOAL_TIMED_OUT, &error);
        return;
    }
    for (size_t i = 0; used_slots(client) > 0 && i < LOCAL_SLOTS; i++) {
        const struct local_transfer *transfer = client->slots[i];

        if (!transfer || !transfer->request)
            continue;
        is_copying |= transfer->state == TRANSFER_COPYING;
        if (transfer->cancel_deadline_ms && now_ms >= transfer->cancel_deadline_ms) {
            error_set(&error, SHOAL_UNREACHABLE, 0, "'%s' did not end a canceled request", link->peer_name);
            local_link_fail(link, SHOAL_UNREACHABLE, &error);
            return;
        }
    }
    if (is_copying)
        link->moved_ms = now_ms; /* it is our turn */
    if (used_slots(client) == 0) {
        if (list_is_empty(&client->peer->waiting) && now_ms - client->idle_since_ms >= LOCAL_CLIENT_IDLE_MS)
            local_link_fail(link, SHOAL_UNREACHABLE, NULL);
    } else if (now_ms - link->moved_ms >= env->progress_timeout_ms) {
        error_set(&error, SHOAL_TIMED_OUT, 0, "'%s' made no progress for %lld ms", link->peer_name,
                  (long long)env->progress_timeout_ms);
        LOG_WARN("%s", error.message);
        local_link_fail(link, SHOAL_TIMED_OUT, &error);
    }
}

/* --- the table's --- */

enum shoal_status local_peer_open(struct transport *transport, const char *name, const char *address, uint64_t instance,
                                  struct transport_peer **out, struct shoal_error *error)
{
    struct local *local = (struct local *)transport;
    struct local_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return error_no_memory(error);
    peer->local = local;
    peer->instance = instance;
    snprintf(peer->name, sizeof peer->name, "%s", name);
    snprintf(peer->address, sizeof peer->address, "%s", address);
    list_init(&peer->waiting);
    list_push_back(&local->peers, &peer->node);
    local_live(local, 1);
    *out = (struct transport_peer *)peer;
    return SHOAL_OK;
}

void local_peer_abort(struct transport_peer *base)
{
    struct local_peer *peer = peer_of(base);
    struct shoal_error error;

    error_set(&error, SHOAL_CANCELED, 0, "transfers with '%s' were aborted", peer->name);
    if (peer->client)
        local_link_fail(&peer->client->link, SHOAL_CANCELED, &error);
    end_waiting(peer, SHOAL_CANCELED, &error);
}

void local_peer_close(struct transport_peer *base)
{
    struct local_peer *peer = peer_of(base);

    if (peer->is_closed)
        return;
    peer->is_closed = true;
    local_peer_abort(base);
    if (peer->dial)
        endpoint_dial_cancel(peer->dial);
    peer_reap(peer);
}

void local_close_all_peers(struct local *local)
{
    LIST_FOR_EACH (peer, &local->peers, struct local_peer, node)
        local_peer_close((struct transport_peer *)peer);
}

bool local_accepts(struct transport_peer *base, const struct transport_request *request)
{
    (void)base;
    /* A small request that its own thread can carry out over a direct TCP connection is faster that way: it wakes no
     * loop here (bench/run local). TCP sees such requests first when there is no direct connection yet, and makes one.
     */
    return !request->wants_direct;
}

void local_submit(struct transport_peer *base, struct transport_request *request)
{
    struct local_peer *peer = peer_of(base);

    peer->outstanding++;
    request->link = NULL;
    request->error = NULL;
    if (peer->is_closed) {
        request_post(peer, request, SHOAL_CANCELED, NULL);
        return;
    }
    if (peer->local->is_limited) {
        request_refuse(peer, request, false, "rate limit", "this node has a rate limit, which holds for TCP");
        return;
    }
    if (peer->client && peer->client->link.is_ready && peer->client->free_count > 0 && list_is_empty(&peer->waiting)) {
        issue(peer->client, request);
        return;
    }
    wait_for_slot(peer, request);
    dial_if_needed(peer);
}

void local_cancel(struct transport_peer *base, struct transport_request *request)
{
    struct local_peer *peer = peer_of(base);
    struct local_transfer *transfer = request->link;

    if (request->state & REQUEST_ENDING)
        return;
    if (request->state & REQUEST_WAITING) {
        list_remove(&request->node);
        request->state &= ~(unsigned)REQUEST_WAITING;
        request_post(peer, request, SHOAL_CANCELED, NULL);
        return;
    }
    transfer->is_canceled = true;
    if (transfer->state == TRANSFER_COPYING) {
        local_copy_stop(&transfer->copy);
    } else if (request->op == SHOAL_OP_READ) { /* nothing here is touched before it is granted */
        transfer->request = NULL;
        transfer->state = TRANSFER_OVER;
        local_link_send(&transfer->client->link, &(struct local_frame){.type = LOCAL_CANCEL, .id = transfer->id});
        request_post(peer, request, SHOAL_CANCELED, NULL);
    } else if (!transfer->cancel_deadline_ms) {
        transfer->cancel_deadline_ms = deadline_after_ms(LOCAL_GRACE_MS);
        local_link_send(&transfer->client->link, &(struct local_frame){.type = LOCAL_CANCEL, .id = transfer->id});
    }
}
