/* SPDX-License-Identifier: Apache-2.0 */
/* The requesting side of a data connection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/tcp_internal.h"

#define LOG_MODULE "tcp"

static bool is_canceled(const struct transport_request *request)
{
    return __atomic_load_n(&request->state, __ATOMIC_ACQUIRE) & TCP_REQUEST_CANCEL; /* pairs with tcp.c's cancel */
}

static struct tcp_client *client_of(struct tcp_stream *stream)
{
    return container_of(stream, struct tcp_client, stream);
}

/* --- slots --- */

static void slot_release(struct tcp_client *client, struct tcp_slot *slot)
{
    client->used_slots--;
    if (slot->op == SHOAL_OP_WRITE)
        client->used_writes--;
    client->window_bytes -= slot->len;
    free(slot->refusal_error);
    slot->refusal_error = NULL;
    slot->state = TCP_SLOT_FREE;
    slot->request = NULL;
    list_push_front(&client->free_slots, &slot->node);
    if (client->used_slots == 0)
        client->idle_since_ms = clock_now_ms();
}

static void slot_complete(struct tcp_client *client, struct tcp_slot *slot, enum shoal_status status,
                          struct shoal_error *error)
{
    struct transport_request *request = slot->request;

    slot->request = NULL;
    if (!request) {
        free(error);
        return;
    }
    request->transferred_bytes = status == SHOAL_OK ? request->len_bytes : slot->moved;
    tcp_return(client->tcp, request, status, error);
}

static void queue_frame(struct tcp_client *client, struct tcp_slot *slot, const struct data_frame *frame,
                        const void *body)
{
    tcp_stream_queue(&client->stream, &slot->out, frame, body, NULL);
}

static void queue_abort(struct tcp_client *client, struct tcp_slot *slot)
{
    slot->state = TCP_SLOT_ABORT;
    slot->wants_abort = false;
    queue_frame(client, slot, &(struct data_frame){.type = DATA_ABORT, .id = slot->id}, NULL);
}

static void queue_chunk(struct tcp_client *client, struct tcp_slot *slot)
{
    uint64_t left = slot->len - slot->moved;

    slot->state = TCP_SLOT_CHUNK;
    slot->chunk = left < DATA_CHUNK_MAX_BYTES ? left : DATA_CHUNK_MAX_BYTES;
    queue_frame(client, slot,
                &(struct data_frame){.type = DATA_CHUNK, .id = slot->id, .addr = slot->moved, .len = slot->chunk},
                (const char *)slot->request->local + slot->moved);
}

static void slot_begin(struct tcp_client *client, struct transport_request *request)
{
    struct tcp_slot *slot = container_of(list_pop_front(&client->free_slots), struct tcp_slot, node);
    struct data_frame frame = {.addr = request->remote_addr, .key = request->remote_key, .len = request->len_bytes};

    if (client->used_slots++ == 0)
        client->stream.moved_in_ms = client->stream.moved_out_ms = clock_now_ms();
    slot->id = client->next_id;
    client->next_id += TCP_SLOTS;
    slot->id += (uint64_t)(slot - client->slots);
    slot->op = (unsigned)request->op;
    slot->len = request->len_bytes;
    slot->moved = 0;
    slot->request = request;
    slot->cancel_deadline_ms = 0;
    slot->is_granted = slot->wants_abort = slot->is_refused = slot->is_answered = false;
    slot->state = TCP_SLOT_HEAD;
    client->window_bytes += slot->len;
    frame.id = slot->id;
    if (slot->op == SHOAL_OP_READ) {
        frame.type = DATA_READ;
    } else if (slot->op == SHOAL_OP_WRITE) {
        frame.type = DATA_WRITE;
        client->used_writes++;
    } else {
        frame.type = DATA_NOTIFY;
        frame.name_len = (uint32_t)request->remote_key;
        frame.addr = frame.key = 0;
    }
    queue_frame(client, slot, &frame, slot->op == TCP_OP_NOTIFY ? request->local : NULL);
}

static bool has_room(const struct tcp_client *client, const struct transport_request *request)
{
    if (list_is_empty(&client->free_slots) || (request->op == SHOAL_OP_WRITE && client->used_writes >= TCP_WRITES_MAX))
        return false;
    return client->used_slots == 0 || client->window_bytes + request->len_bytes <= TCP_WINDOW_BYTES;
}

/* Starts what the window has room for; the order is kept. A full window is refilled in bursts, so that one packet and
 * one wake-up of the peer carry many requests. */
static void start_waiting(struct tcp_client *client)
{
    struct list_node *node;

    if (client->is_full && (client->used_slots > TCP_SLOTS / 4 * 3 || client->window_bytes > TCP_WINDOW_BYTES / 4 * 3))
        return;
    client->is_full = false;
    while ((node = list_first(&client->waiting))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        client->is_full = !has_room(client, request);
        if (client->is_full)
            return;
        list_remove(&request->node);
        slot_begin(client, request);
    }
}

/* --- the end of a connection --- */

enum end_reason {
    END_LOST,    /* by the peer or the network */
    END_LOCAL,   /* by us, for the sake of one request: the others did nothing wrong */
    END_STALLED, /* no byte moved for too long */
    END_ABORTED, /* the owner wants nothing any more */
};

/* A READ can be repeated at any time. A WRITE only while none of its bytes were sent: a copy that is still in flight
 * on the old connection could land after the repetition completed. */
static bool can_repeat(const struct tcp_slot *slot)
{
    switch (slot->op) {
    case SHOAL_OP_READ:
        return true;
    case SHOAL_OP_WRITE:
        return slot->moved == 0 && !(slot->state == TCP_SLOT_CHUNK && tcp_out_is_begun(&slot->out));
    default:
        return slot->state == TCP_SLOT_HEAD && !tcp_out_is_begun(&slot->out);
    }
}

static void end_slot(struct tcp_client *client, struct tcp_slot *slot, enum end_reason reason,
                     const struct shoal_error *why)
{
    struct transport_request *request = slot->request;
    struct shoal_error *error;

    if (!request)
        return;
    slot->request = NULL;
    request->transferred_bytes = slot->moved;
    if (slot->is_refused) {
        error = slot->refusal_error;
        slot->refusal_error = NULL;
        tcp_return(client->tcp, request, slot->refusal, error);
    } else if (is_canceled(request)) {
        tcp_return(client->tcp, request, SHOAL_CANCELED, NULL);
    } else if (reason == END_LOCAL && can_repeat(slot)) {
        tcp_return_again(client->tcp, request, false);
    } else if (reason == END_LOST && can_repeat(slot) &&
               !(__atomic_load_n(&request->state, __ATOMIC_RELAXED) & TCP_REQUEST_RETRIED)) {
        tcp_return_again(client->tcp, request, true);
    } else {
        error = malloc(sizeof *error);
        if (error)
            *error = *why;
        tcp_return(client->tcp, request, why->status, error);
    }
}

/* Closes and gives everything back. The memory goes when loop 0 has heard of it. */
static void client_end(struct tcp_client *client, enum end_reason reason, const struct shoal_error *why)
{
    struct list_node *node;

    if (client->is_dead)
        return;
    client->is_dead = true;
    tcp_meter_release(&client->meter_in);
    tcp_meter_release(&client->meter_out);
    loop_io_release(&client->io);
    tcp_stream_release(&client->stream);
    list_remove(&client->node);
    tcp_count(&client->tcp->counters.client_connections, (uint64_t)-1);

    /* In order of submission: slot ids grow. */
    for (;;) {
        struct tcp_slot *oldest = NULL;

        for (size_t i = 0; i < TCP_SLOTS; i++) {
            struct tcp_slot *slot = &client->slots[i];
            if (slot->request && (!oldest || slot->id < oldest->id))
                oldest = slot;
        }
        if (!oldest)
            break;
        end_slot(client, oldest, reason, why);
    }
    for (size_t i = 0; i < TCP_SLOTS; i++) {
        free(client->slots[i].refusal_error);
        client->slots[i].refusal_error = NULL;
    }
    while ((node = list_pop_front(&client->waiting))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        request->transferred_bytes = 0;
        if (reason == END_ABORTED || is_canceled(request)) {
            tcp_return(client->tcp, request, SHOAL_CANCELED, NULL);
        } else if (reason == END_STALLED && deadline_is_past(request->deadline_ms)) {
            struct shoal_error *error = malloc(sizeof *error);
            if (error)
                *error = *why;
            tcp_return(client->tcp, request, why->status, error);
        } else {
            tcp_return_again(client->tcp, request, false);
        }
    }
    tcp_client_is_gone(client->tcp, client);
}

static void client_lost(struct tcp_client *client, int sys_errno)
{
    struct shoal_error why;

    error_set(&why, SHOAL_UNREACHABLE, sys_errno, "connection to '%s' (%s) was lost: %s", client->peer_name,
              client->peer_address, sys_errno ? strerror(sys_errno) : "closed by peer");
    LOG_DEBUG("%s", why.message);
    client_end(client, END_LOST, &why);
}

static void client_protocol_error(struct tcp_client *client, const char *what)
{
    struct shoal_error why;

    error_set(&why, SHOAL_PROTOCOL, 0, "'%s' (%s) sent %s", client->peer_name, client->peer_address, what);
    LOG_WARN("%s", why.message);
    tcp_count(&client->tcp->counters.protocol_errors, 1);
    client_end(client, END_LOST, &why);
}

static void client_drop(struct tcp_client *client, const char *what)
{
    struct shoal_error why;

    error_set(&why, SHOAL_UNREACHABLE, 0, "connection to '%s' (%s) was dropped: %s", client->peer_name,
              client->peer_address, what);
    client_end(client, END_LOCAL, &why);
}

/* --- outgoing frames --- */

static void on_sent(struct tcp_stream *stream, struct tcp_out *out)
{
    struct tcp_client *client = client_of(stream);
    struct tcp_slot *slot = container_of(out, struct tcp_slot, out);

    switch (slot->state) {
    case TCP_SLOT_HEAD:
        slot->state = TCP_SLOT_WAIT;
        break;
    case TCP_SLOT_CHUNK:
        slot->moved += slot->chunk;
        slot->state = TCP_SLOT_WAIT;
        if (slot->is_refused) {
            struct shoal_error *error = slot->refusal_error;
            slot->refusal_error = NULL;
            slot_complete(client, slot, slot->refusal, error);
            slot_release(client, slot);
            return;
        }
        if (is_canceled(slot->request)) {
            slot->cancel_deadline_ms = 0;
            slot->wants_abort = slot->moved < slot->len;
            slot_complete(client, slot, SHOAL_CANCELED, NULL);
        } else if (slot->moved < slot->len) {
            queue_chunk(client, slot);
            return;
        }
        break;
    default:
        slot->state = TCP_SLOT_WAIT;
        if (slot->is_answered) {
            slot_release(client, slot);
            return;
        }
        break;
    }
    if (slot->wants_abort)
        queue_abort(client, slot);
}

static bool flush(struct tcp_client *client)
{
    enum tcp_step step;
    int saved = 0;

    if (client->is_dead)
        return false;
    start_waiting(client);
    do
        step = tcp_stream_send(&client->stream, &saved);
    while (step == TCP_STEP_HELD &&
           tcp_meter_take(&client->meter_out, tcp_stream_out_wanted(&client->stream), &client->stream.out_allowance));
    if (step == TCP_STEP_FAULT) {
        struct list_node *node = list_first(&client->stream.out);
        struct tcp_slot *slot = container_of(container_of(node, struct tcp_out, node), struct tcp_slot, out);

        slot_complete(client, slot, SHOAL_IO,
                      tcp_error(SHOAL_IO, saved, "local memory is unreadable: %s", strerror(saved)));
        client_drop(client, "local memory of another request is unreadable");
        return false;
    }
    if (step == TCP_STEP_LOST) {
        client_lost(client, saved);
        return false;
    }
    loop_io_set(&client->io, (tcp_meter_is_waiting(&client->meter_in) ? 0u : (unsigned)LOOP_READ) |
                                 (step == TCP_STEP_DONE || step == TCP_STEP_HELD ? 0u : (unsigned)LOOP_WRITE));
    return true;
}

/* --- incoming frames --- */

static struct tcp_slot *find_slot(struct tcp_client *client, uint64_t id)
{
    struct tcp_slot *slot = &client->slots[id % TCP_SLOTS];

    return slot->state != TCP_SLOT_FREE && slot->id == id ? slot : NULL;
}

/* An answer may only come once the question is out. */
static bool is_answerable(const struct tcp_slot *slot)
{
    return slot->state != TCP_SLOT_HEAD && slot->state != TCP_SLOT_BODY;
}

/* The slot has its final answer. */
static void slot_answered(struct tcp_client *client, struct tcp_slot *slot)
{
    if (slot->state == TCP_SLOT_ABORT && list_node_is_linked(&slot->out.node)) {
        if (tcp_out_is_begun(&slot->out)) {
            slot->is_answered = true; /* on_sent releases it */
            return;
        }
        list_remove(&slot->out.node);
    }
    slot_release(client, slot);
}

static bool on_data(struct tcp_client *client, struct tcp_slot *slot, const struct data_frame *frame)
{
    if (slot->op != SHOAL_OP_READ || frame->len != slot->len) {
        client_protocol_error(client, "an answer of another kind or length than asked for");
        return false;
    }
    if (!slot->request && frame->len > TCP_DRAIN_MAX_BYTES) {
        client_drop(client, "a canceled request was large");
        return false;
    }
    if (slot->state == TCP_SLOT_WAIT)
        slot->state = TCP_SLOT_BODY;
    client->current = slot;
    client->frame = *frame;
    client->stream.body = slot->request ? slot->request->local : NULL;
    return true;
}

static bool on_head(struct tcp_stream *stream, const struct data_frame *frame)
{
    struct tcp_client *client = client_of(stream);
    struct tcp_slot *slot = find_slot(client, frame->id);

    if (!slot || !is_answerable(slot)) {
        client_protocol_error(client, "an answer to no request");
        return false;
    }
    switch (frame->type) {
    case DATA_DATA:
        return on_data(client, slot, frame);
    case DATA_GRANT:
        if (slot->op != SHOAL_OP_WRITE || slot->is_granted) {
            client_protocol_error(client, "a grant that was not asked for");
            return false;
        }
        slot->is_granted = true;
        if (slot->request && slot->state == TCP_SLOT_WAIT)
            queue_chunk(client, slot);
        return true;
    case DATA_DONE:
        if (slot->op == SHOAL_OP_READ || (slot->op == SHOAL_OP_WRITE && slot->moved != slot->len)) {
            client_protocol_error(client, "an acknowledgement too early");
            return false;
        }
        slot_complete(client, slot, SHOAL_OK, NULL);
        slot_answered(client, slot);
        return true;
    case DATA_REFUSE:
        client->current = slot;
        client->frame = *frame;
        stream->body = client->text;
        if (frame->len == 0)
            return stream->ops->body(stream);
        return true;
    default:
        client_protocol_error(client, "a frame that only a requesting side sends");
        return false;
    }
}

static void on_refusal(struct tcp_client *client, struct tcp_slot *slot)
{
    enum shoal_status status = data_code_status(client->frame.code);
    struct shoal_error *error = NULL;

    client->text[client->frame.len] = '\0';
    if (slot->request)
        error = tcp_refusal(client->peer_name, client->peer_address, slot->op, slot->request->remote_addr, slot->len,
                            status, (const char *)client->text);
    if (slot->state == TCP_SLOT_CHUNK) {
        if (tcp_out_is_begun(&slot->out)) {
            /* The peer drops the rest of the chunk, but until it is out local memory is in use. */
            slot->is_refused = true;
            slot->refusal = status;
            slot->refusal_error = error;
            return;
        }
        list_remove(&slot->out.node);
    }
    slot_complete(client, slot, status, error);
    slot_answered(client, slot);
}

static void on_part(struct tcp_stream *stream, const void *data, uint64_t len)
{
    const struct tcp_client *client = client_of(stream);
    struct transport_request *request = client->current ? client->current->request : NULL;

    if (client->frame.type == DATA_DATA && request && request->arrived)
        request->arrived(request, (uint64_t)((const char *)data - (const char *)request->local), len);
}

static bool on_body(struct tcp_stream *stream)
{
    struct tcp_client *client = client_of(stream);
    struct tcp_slot *slot = client->current;

    client->current = NULL;
    if (client->frame.type == DATA_REFUSE) {
        on_refusal(client, slot);
    } else {
        slot_complete(client, slot, SHOAL_OK, NULL);
        slot_answered(client, slot);
    }
    return true;
}

static void on_fault(struct tcp_stream *stream)
{
    struct tcp_client *client = client_of(stream);
    struct tcp_slot *slot = client->current;

    slot_complete(client, slot, SHOAL_IO, tcp_error(SHOAL_IO, EFAULT, "local memory is not writable"));
}

static const struct tcp_stream_ops client_stream_ops = {
    .sent = on_sent,
    .head = on_head,
    .part = on_part,
    .body = on_body,
    .fault = on_fault,
};

/* --- events --- */

static void receive(struct tcp_client *client)
{
    enum tcp_step step;
    int saved = 0;

    if (client->is_dead || tcp_meter_is_waiting(&client->meter_in))
        return;
    do
        step = tcp_stream_receive(&client->stream, &saved);
    while (step == TCP_STEP_HELD &&
           tcp_meter_take(&client->meter_in, client->stream.body_left, &client->stream.in_allowance));
    switch (step) {
    case TCP_STEP_LOST:
        client_lost(client, saved);
        break;
    case TCP_STEP_PROTOCOL:
        client_protocol_error(client, "something that is not a frame");
        break;
    default:
        break;
    }
}

static void client_io(void *arg, unsigned events)
{
    struct tcp_client *client = arg;
    struct tcp *tcp = client->tcp;

    if (events & LOOP_READ)
        receive(client);
    flush(client);
    tcp_run_outbox(tcp);
}

/* A rate limit lets it go on. Its silence was ours. */
static void resume_in(void *arg)
{
    struct tcp_client *client = arg;

    client->stream.moved_in_ms = clock_now_ms();
    receive(client);
    flush(client);
}

static void resume_out(void *arg)
{
    struct tcp_client *client = arg;

    client->stream.moved_out_ms = clock_now_ms();
    flush(client);
}

/* true: the request is done or will be, without the connection's end. */
static bool cancel_slot(struct tcp_client *client, struct tcp_slot *slot)
{
    struct tcp_stream *stream = &client->stream;

    if (slot->op == TCP_OP_NOTIFY || slot->is_refused || slot->cancel_deadline_ms)
        return true;
    switch (slot->state) {
    case TCP_SLOT_HEAD:
        if (!tcp_out_is_begun(&slot->out)) {
            list_remove(&slot->out.node);
            slot_complete(client, slot, SHOAL_CANCELED, NULL);
            slot_release(client, slot);
            return true;
        }
        slot->wants_abort = true;
        break;
    case TCP_SLOT_WAIT:
        if (slot->op == SHOAL_OP_READ || slot->moved < slot->len)
            queue_abort(client, slot);
        break;
    case TCP_SLOT_BODY:
        if (client->current == slot) {
            slot->moved = slot->len - stream->body_left;
            stream->body = NULL;
            slot_complete(client, slot, SHOAL_CANCELED, NULL);
            return stream->body_left <= TCP_DRAIN_MAX_BYTES;
        }
        break;
    case TCP_SLOT_CHUNK:
        if (tcp_out_is_begun(&slot->out)) {
            slot->cancel_deadline_ms = deadline_after_ms(TCP_CANCEL_GRACE_MS);
            return true;
        }
        list_remove(&slot->out.node);
        queue_abort(client, slot);
        break;
    default:
        break;
    }
    slot_complete(client, slot, SHOAL_CANCELED, NULL);
    return true;
}

static void cancel_flagged(struct tcp_client *client)
{
    bool is_fine = true;

    LIST_FOR_EACH_SAFE (request, &client->waiting, struct transport_request, node) {
        if (is_canceled(request)) {
            list_remove(&request->node);
            tcp_return(client->tcp, request, SHOAL_CANCELED, NULL);
        }
    }
    for (size_t i = 0; i < TCP_SLOTS; i++) {
        struct tcp_slot *slot = &client->slots[i];
        if (slot->request && is_canceled(slot->request))
            is_fine &= cancel_slot(client, slot);
    }
    if (!is_fine)
        client_drop(client, "a canceled request was large");
}

static void inbox_run(void *arg)
{
    struct tcp_client *client = arg;
    struct tcp *tcp = client->tcp;
    struct list_node *node;
    bool wants_cancel_scan, wants_abort;

    mutex_lock(&tcp->mutex);
    client->is_inbox_posted = false;
    while ((node = list_pop_front(&client->inbox)))
        list_push_back(&client->waiting, node);
    wants_cancel_scan = client->wants_cancel_scan;
    wants_abort = client->wants_abort;
    client->wants_cancel_scan = client->wants_abort = false;
    mutex_unlock(&tcp->mutex);

    if (client->is_dead) {
        while ((node = list_pop_front(&client->waiting)))
            tcp_return_again(tcp, container_of(node, struct transport_request, node), false);
    } else if (wants_abort) {
        struct shoal_error why;
        error_set(&why, SHOAL_CANCELED, 0, "transfers with '%s' were aborted", client->peer_name);
        client_end(client, END_ABORTED, &why);
    } else {
        if (wants_cancel_scan)
            cancel_flagged(client);
        flush(client);
    }
    tcp_run_outbox(tcp);
}

static void poke(struct tcp_client *client) /* under tcp->mutex */
{
    if (!client->is_inbox_posted) {
        client->is_inbox_posted = true;
        loop_post(client->shard->loop, &client->inbox_task, inbox_run, client);
    }
}

void tcp_client_submit(struct tcp_client *client, struct transport_request *request)
{
    mutex_lock(&client->tcp->mutex);
    list_push_back(&client->inbox, &request->node);
    poke(client);
    mutex_unlock(&client->tcp->mutex);
}

void tcp_client_scan_cancels(struct tcp_client *client)
{
    mutex_lock(&client->tcp->mutex);
    client->wants_cancel_scan = true;
    poke(client);
    mutex_unlock(&client->tcp->mutex);
}

void tcp_client_abort(struct tcp_client *client)
{
    mutex_lock(&client->tcp->mutex);
    client->wants_abort = true;
    poke(client);
    mutex_unlock(&client->tcp->mutex);
}

void tcp_client_tick(struct tcp_client *client, int64_t now_ms)
{
    struct tcp_stream *stream = &client->stream;
    int64_t limit_ms = client->tcp->env.progress_timeout_ms, moved_ms;
    struct shoal_error why;

    if (!list_is_empty(&stream->out))
        tcp_stream_look_at_acks(stream, now_ms);
    if (tcp_meter_is_waiting(&client->meter_in) || tcp_meter_is_waiting(&client->meter_out))
        stream->moved_in_ms = now_ms;
    moved_ms = stream->moved_in_ms > stream->moved_out_ms ? stream->moved_in_ms : stream->moved_out_ms;

    if (client->used_slots == 0) {
        if (list_is_empty(&client->waiting) && now_ms - client->idle_since_ms >= TCP_CLIENT_IDLE_MS) {
            error_set(&why, SHOAL_UNREACHABLE, 0, "idle");
            client_end(client, END_LOCAL, &why);
        }
        return;
    }
    if (now_ms - moved_ms >= limit_ms) {
        error_set(&why, SHOAL_TIMED_OUT, 0, "'%s' (%s) made no progress for %lld ms", client->peer_name,
                  client->peer_address, (long long)limit_ms);
        LOG_WARN("%s", why.message);
        client_end(client, END_STALLED, &why);
        return;
    }
    for (size_t i = 0; i < TCP_SLOTS; i++) {
        struct tcp_slot *slot = &client->slots[i];
        if (slot->cancel_deadline_ms && slot->request && now_ms >= slot->cancel_deadline_ms) {
            client_drop(client, "a canceled request could not be ended otherwise");
            return;
        }
    }
}

void tcp_client_close_idle(struct tcp_shard *shard)
{
    struct tcp_client *oldest = NULL;
    struct shoal_error why;

    LIST_FOR_EACH (client, &shard->clients, struct tcp_client, node) {
        if (client->used_slots == 0 && list_is_empty(&client->waiting) &&
            (!oldest || client->idle_since_ms < oldest->idle_since_ms))
            oldest = client;
    }
    if (oldest) {
        error_set(&why, SHOAL_UNREACHABLE, 0, "idle");
        client_end(oldest, END_LOCAL, &why);
    }
}

/* --- life --- */

static void attach(void *arg)
{
    struct tcp_client *client = arg;

    list_push_back(&client->shard->clients, &client->node);
    client->idle_since_ms = clock_now_ms();
    if (loop_io_init(&client->io, client->shard->loop, client->stream.fd, client_io, client, NULL) != SHOAL_OK) {
        client_lost(client, ENOMEM);
        return;
    }
    tcp_shard_arm_tick(client->shard);
    flush(client);
}

struct tcp_client *tcp_client_create(struct tcp *tcp, struct tcp_shard *shard, struct tcp_peer *peer, unsigned lane,
                                     int fd, const char *name, const char *address)
{
    struct tcp_client *client = calloc(1, sizeof *client);
    struct tcp_stream closing = {.fd = fd};

    if (!client) {
        tcp_stream_release(&closing);
        return NULL;
    }
    client->tcp = tcp;
    client->shard = shard;
    client->peer = peer;
    client->lane = lane;
    memcpy(client->peer_name, name, strnlen(name, HELLO_NAME_MAX_BYTES));
    memcpy(client->peer_address, address, strnlen(address, HOSTPORT_TEXT_BYTES - 1));
    list_init(&client->inbox);
    list_init(&client->waiting);
    list_init(&client->free_slots);
    for (size_t i = 0; i < TCP_SLOTS; i++) {
        list_push_back(&client->free_slots, &client->slots[i].node);
        list_node_init(&client->slots[i].out.node);
    }
    tcp_stream_init(&client->stream, &client_stream_ops, fd);
    tcp_stream_tune(&client->stream, tcp->env.download_limit_bytes_per_s);
    tcp_meter_init(&client->meter_in, shard, &tcp->download_limit, &tcp->counters.throttled_in_ns, resume_in, client);
    tcp_meter_init(&client->meter_out, shard, &tcp->upload_limit, &tcp->counters.throttled_out_ns, resume_out, client);
    if (rate_is_limited(&tcp->download_limit))
        client->stream.in_allowance = 0;
    if (rate_is_limited(&tcp->upload_limit))
        client->stream.out_allowance = 0;
    tcp_count(&tcp->counters.client_connections, 1);
    loop_post(shard->loop, &client->attach_task, attach, client);
    return client;
}

static void free_on_shard(void *arg)
{
    struct tcp_client *client = arg;
    struct tcp *tcp = client->tcp;
    struct list_node *node;

    /* Tasks posted before this one have run; what they left in the inbox goes back. */
    mutex_lock(&tcp->mutex);
    while ((node = list_pop_front(&client->inbox)))
        list_push_back(&client->waiting, node);
    mutex_unlock(&tcp->mutex);
    while ((node = list_pop_front(&client->waiting)))
        tcp_return_again(tcp, container_of(node, struct transport_request, node), false);
    free(client);
    tcp_live(tcp, -1);
}

void tcp_client_free(struct tcp_client *client)
{
    loop_post(client->shard->loop, &client->free_task, free_on_shard, client);
}
