/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side of a data connection: reads and writes registered memory for a peer while it holds a pin on it.
 *
 * Bodies of READs that are not small wait in `held` for the connection's turn (upload.h). One of them at a time is in
 * the stream's queue, behind its gate: open while it is the connection's turn, closed else, and then opened a crack now
 * and then (a trickle), so that the peer sees that this node is alive. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/tcp_internal.h"
#include "transport/tcp_stage.h"

#define LOG_MODULE "tcp"

#define GRANTS_MAX (2 * TCP_WRITES_MAX)
#define SPARE_REPLIES_MAX 32 /* kept by an idle connection */

/* NOLINTNEXTLINE(misc-redundant-expression): equal today */
_Static_assert(DATA_CHUNK_MAX_BYTES <= DEVICE_BUFFER_BYTES, "a chunk fits into a staging buffer");

/* An answer in the queue. */
struct tcp_reply {
    struct tcp_out out;
    struct tcp_server *server;
    uint64_t id;
    struct memory_region *region; /* pinned while DATA is in the queue; else NULL */
    struct tcp_stage *stage;      /* owned: DATA of device memory, which has the pin then; else NULL */
};

/* A WRITE that was granted and is not complete. */
struct tcp_grant {
    struct list_node node; /* in server->grants */
    struct tcp_server *server;
    uint64_t id, addr, len, moved;
    struct memory_region *region; /* pinned */
    struct tcp_stage *stage;      /* owned: of device memory, has the pin then; else NULL */
};

struct tcp_server {
    struct tcp_shard *shard;
    struct list_node node; /* in shard->servers */
    struct loop_task attach_task;
    int64_t active_ms;
    struct tcp_stream stream;
    struct tcp_meter meter_in, meter_out;
    struct loop_io io;
    bool is_dead, is_paused;
    bool needs_space; /* filling's chunk waits for a staging buffer */
    struct upload_turn turn;
    struct list held;        /* tcp_reply.out.node */
    struct tcp_reply *large; /* in stream.out; NULL: none */
    uint64_t ticked_bytes_out;
    unsigned reply_count, grant_count, spare_count;
    struct list grants;
    struct list spare_replies; /* tcp_reply.out.node, spare_count of them */
    struct tcp_grant *filling; /* whose CHUNK is coming in; NULL: none, or it is discarded */
    struct data_frame frame;   /* header of the body that is coming in */
    uint8_t *notify_buffer;    /* owned; allocated with the first NOTIFY */
    char peer_name[HELLO_NAME_MAX_BYTES + 1];
};

static struct tcp_server *server_of(struct tcp_stream *stream)
{
    return container_of(stream, struct tcp_server, stream);
}

struct tcp_server *tcp_server_of(struct list_node *node)
{
    return container_of(node, struct tcp_server, node);
}

static struct tcp_counters *counters(struct tcp_server *server)
{
    return &server->shard->tcp->counters;
}

static struct memory_table *memory(struct tcp_server *server)
{
    return server->shard->tcp->env.memory;
}

static struct upload_scheduler *uploads(struct tcp_server *server)
{
    return &server->shard->tcp->uploads;
}

static struct tcp_reply *reply_of(struct list_node *node)
{
    return container_of(container_of(node, struct tcp_out, node), struct tcp_reply, out);
}

static void grant_free(struct tcp_server *server, struct tcp_grant *grant)
{
    if (grant->stage)
        tcp_stage_drop(grant->stage);
    else
        memory_unpin(memory(server), grant->region);
    list_remove(&grant->node);
    if (server->filling == grant)
        server->filling = NULL;
    server->grant_count--;
    free(grant);
}

static void reply_done(struct tcp_server *server, struct tcp_reply *reply)
{
    if (reply->stage)
        tcp_stage_drop(reply->stage);
    else if (reply->region)
        memory_unpin(memory(server), reply->region);
    reply->region = NULL;
    reply->stage = NULL;
    server->reply_count--;
    if (server->spare_count < SPARE_REPLIES_MAX) {
        server->spare_count++;
        list_push_front(&server->spare_replies, &reply->out.node);
    } else {
        free(reply);
    }
}

void tcp_server_close(struct tcp_server *server)
{
    struct list_node *node;

    tcp_meter_release(&server->meter_in);
    tcp_meter_release(&server->meter_out);
    upload_leave(uploads(server), &server->turn, clock_now_ms());
    loop_io_release(&server->io);
    tcp_stream_release(&server->stream);
    while ((node = list_pop_front(&server->stream.out)))
        reply_done(server, reply_of(node));
    while ((node = list_pop_front(&server->held)))
        reply_done(server, reply_of(node));
    while ((node = list_first(&server->grants)))
        grant_free(server, container_of(node, struct tcp_grant, node));
    while ((node = list_pop_front(&server->spare_replies)))
        free(reply_of(node));
    list_remove(&server->node);
    tcp_count(&counters(server)->server_connections, (uint64_t)-1);
    endpoint_released(server->shard->tcp->env.endpoint);
    free(server->notify_buffer);
    free(server);
}

/* --- answers --- */

static void on_reply_staged(void *owner);

/* While one body is sent the beginning of the next is staged, if there are buffers to spare. */
static void stage_next(struct tcp_server *server)
{
    struct list_node *node = list_first(&server->held);

    if (node && server->large && server->large->out.gate == server->large->out.body_len && reply_of(node)->stage)
        tcp_stage_read_ahead(reply_of(node)->stage, false);
}

/* Queues an answer; false: out of memory, the connection was closed. */
static bool answer(struct tcp_server *server, const struct data_frame *frame, const void *body,
                   struct memory_region *region, const char *text)
{
    struct list_node *node = list_pop_front(&server->spare_replies);
    struct tcp_reply *reply;

    if (node) {
        server->spare_count--;
        reply = reply_of(node);
    } else {
        reply = calloc(1, sizeof *reply);
        if (!reply) {
            if (region)
                memory_unpin(memory(server), region);
            return false;
        }
    }
    reply->server = server;
    reply->id = frame->id;
    reply->region = region;
    server->reply_count++;
    tcp_stream_prepare(&reply->out, frame, body, text);
    if (region && memory_device(region)) {
        reply->stage = tcp_stage_create(server->shard->tcp, server->shard->loop, region, (uint64_t)(uintptr_t)body,
                                        frame->len, DEVICE_OUT, on_reply_staged, reply);
        if (!reply->stage) {
            reply_done(server, reply);
            return false;
        }
        reply->out.body_ready = 0;
    }
    if (reply->out.body_len > TCP_SMALL_BODY_BYTES || reply->stage)
        list_push_back(&server->held, &reply->out.node);
    else
        tcp_stream_push(&server->stream, &reply->out);
    stage_next(server);
    if (server->reply_count == 1) /* who has asked for more does not wait for each answer */
        loop_expect_more(server->shard->loop);
    return true;
}

static bool refuse(struct tcp_server *server, uint64_t id, enum data_code code, const char *reason)
{
    tcp_count(&counters(server)->serve_refusals, 1);
    return answer(server, &(struct data_frame){.type = DATA_REFUSE, .code = (uint8_t)code, .id = id}, NULL, NULL,
                  reason);
}

static bool say(struct tcp_server *server, enum data_type type, uint64_t id)
{
    return answer(server, &(struct data_frame){.type = (uint8_t)type, .id = id}, NULL, NULL, NULL);
}

/* --- turns --- */

/* The next body that waits goes into the stream's queue. */
static void start_large(struct tcp_server *server, uint64_t gate)
{
    server->large = reply_of(list_pop_front(&server->held));
    server->large->out.gate = gate < server->large->out.body_len ? gate : server->large->out.body_len;
    tcp_stream_push(&server->stream, &server->large->out);
    if (server->large->stage)
        tcp_stage_read_ahead(server->large->stage, true);
    stage_next(server);
}

/* Shows the stream what of the large body was staged since. true: something was. */
static bool feed(struct tcp_server *server)
{
    struct tcp_out *out = server->large && server->large->stage ? &server->large->out : NULL;
    const void *staged;

    if (!out || out->body_sent < out->body_ready || out->body_sent == out->body_len)
        return false;
    staged = tcp_stage_window(server->large->stage, out->body_sent, &out->body_start, &out->body_ready);
    if (staged)
        out->body = staged;
    return staged != NULL;
}

/* The first frame waits for the device. */
static bool is_staging(const struct tcp_server *server)
{
    return server->large && server->large->stage && server->large->out.body_ready <= server->large->out.body_sent &&
           list_first(&server->stream.out) == &server->large->out.node;
}

static bool is_gate_closed(const struct tcp_server *server)
{
    return server->large && server->large->out.gate <= server->large->out.body_sent;
}

static void open_gate(struct tcp_server *server, uint64_t bytes)
{
    struct tcp_out *out = &server->large->out;

    if (is_gate_closed(server))
        server->stream.moved_out_ms = clock_now_ms();
    out->gate = bytes < out->body_len - out->body_sent ? out->body_sent + bytes : out->body_len;
}

/* Gets a turn for what is to be sent, if there is one. */
static void seek_turn(struct tcp_server *server)
{
    if (server->large ? server->large->out.gate == server->large->out.body_len : list_is_empty(&server->held))
        return;
    if (upload_wants(uploads(server), &server->turn, clock_now_ms())) {
        if (server->large)
            open_gate(server, UINT64_MAX);
        else
            start_large(server, UINT64_MAX);
    } else if (!loop_timer_is_running(&server->shard->lend_check)) {
        loop_timer_start(&server->shard->lend_check, TCP_LEND_CHECK_MS);
    }
}

/* The peer took something of its large body. */
static void use_turn(struct tcp_server *server)
{
    if (!upload_moved(uploads(server), &server->turn, clock_now_ms())) {
        server->large->out.gate = server->large->out.body_sent;
        seek_turn(server); /* somebody looks after those who hold the slots */
    }
}

/* A peer whose turn does not come would take the silence for this node's death. */
static void trickle(struct tcp_server *server)
{
    if (server->large)
        open_gate(server, TCP_TRICKLE_BYTES);
    else
        start_large(server, TCP_TRICKLE_BYTES);
}

static void on_sent(struct tcp_stream *stream, struct tcp_out *out)
{
    struct tcp_server *server = server_of(stream);
    struct tcp_reply *reply = container_of(out, struct tcp_reply, out);

    if (reply->region) {
        tcp_count(&counters(server)->served_reads, 1);
        tcp_count(&counters(server)->served_read_bytes, out->body_len);
    }
    if (reply == server->large) {
        server->large = NULL;
        if (upload_sent(uploads(server), &server->turn, !list_is_empty(&server->held), clock_now_ms()))
            start_large(server, UINT64_MAX);
    }
    reply_done(server, reply);
}

/* --- requests --- */

static void on_grant_staged(void *owner);

static bool on_range(struct tcp_server *server, const struct data_frame *frame)
{
    bool is_read = frame->type == DATA_READ;
    const char *reason = NULL;
    struct memory_region *region = NULL;
    struct tcp_grant *grant;
    enum shoal_status status;

    status = memory_pin(memory(server), frame->addr, frame->len, frame->key,
                        is_read ? SHOAL_ACCESS_REMOTE_READ : SHOAL_ACCESS_REMOTE_WRITE, &region, &reason);
    if (status != SHOAL_OK)
        return refuse(server, frame->id, status == SHOAL_IO ? DATA_CODE_UNREADABLE : DATA_CODE_INVALID, reason);
    if (is_read)
        return answer(server, &(struct data_frame){.type = DATA_DATA, .id = frame->id, .len = frame->len},
                      (const void *)(uintptr_t)frame->addr, region, NULL);
    grant = server->grant_count < GRANTS_MAX ? calloc(1, sizeof *grant) : NULL;
    if (!grant) {
        memory_unpin(memory(server), region);
        return refuse(server, frame->id, DATA_CODE_LIMIT,
                      server->grant_count < GRANTS_MAX ? "out of memory" : "too many writes at once");
    }
    *grant =
        (struct tcp_grant){.server = server, .id = frame->id, .addr = frame->addr, .len = frame->len, .region = region};
    if (memory_device(region)) {
        grant->stage = tcp_stage_create(server->shard->tcp, server->shard->loop, region, frame->addr, frame->len,
                                        DEVICE_IN, on_grant_staged, grant);
        if (!grant->stage) {
            memory_unpin(memory(server), region);
            free(grant);
            return refuse(server, frame->id, DATA_CODE_LIMIT, "out of memory");
        }
    }
    list_push_back(&server->grants, &grant->node);
    server->grant_count++;
    return say(server, DATA_GRANT, frame->id);
}

static struct tcp_grant *find_grant(struct tcp_server *server, uint64_t id)
{
    LIST_FOR_EACH (grant, &server->grants, struct tcp_grant, node) {
        if (grant->id == id)
            return grant;
    }
    return NULL;
}

/* false: the chunk does not follow the previous one. A chunk of a WRITE that is no longer granted is discarded: it was
 * on its way when the WRITE was aborted or refused. */
static bool on_chunk(struct tcp_server *server, const struct data_frame *frame)
{
    struct tcp_grant *grant = find_grant(server, frame->id);

    server->filling = grant;
    if (!grant)
        return true;
    if (frame->addr != grant->moved || frame->len > grant->len - grant->moved)
        return false;
    if (grant->stage) {
        if (frame->len == 0)
            return false;
        server->stream.body = tcp_stage_space(grant->stage);
        server->needs_space = !server->stream.body;
    } else {
        server->stream.body = (void *)(uintptr_t)(grant->addr + grant->moved);
    }
    return true;
}

static bool grant_complete(struct tcp_server *server, struct tcp_grant *grant)
{
    uint64_t id = grant->id;

    tcp_count(&counters(server)->served_writes, 1);
    tcp_count(&counters(server)->served_write_bytes, grant->len);
    grant_free(server, grant);
    return say(server, DATA_DONE, id);
}

static bool on_chunk_end(struct tcp_server *server)
{
    struct tcp_grant *grant = server->filling;

    server->filling = NULL;
    if (!grant)
        return true;
    grant->moved += server->frame.len;
    if (grant->stage) {
        tcp_stage_filled(grant->stage, server->frame.len); /* it is complete when the last copy is */
        return true;
    }
    return grant->moved < grant->len || grant_complete(server, grant);
}

static void drop_unbegun(struct tcp_server *server, struct tcp_reply *reply)
{
    if (server->large == reply)
        server->large = NULL;
    reply_done(server, reply);
    if (!server->large && list_is_empty(&server->held))
        upload_leave(uploads(server), &server->turn, clock_now_ms());
}

static bool on_abort(struct tcp_server *server, uint64_t id)
{
    struct tcp_grant *grant = find_grant(server, id);

    if (grant) {
        grant_free(server, grant);
        return refuse(server, id, DATA_CODE_CANCELED, "");
    }
    LIST_FOR_EACH (out, &server->stream.out, struct tcp_out, node) {
        struct tcp_reply *reply = container_of(out, struct tcp_reply, out);

        if (reply->id == id && reply->region && !tcp_out_is_begun(out)) {
            list_remove(&out->node);
            drop_unbegun(server, reply);
            return refuse(server, id, DATA_CODE_CANCELED, "");
        }
    }
    LIST_FOR_EACH (out, &server->held, struct tcp_out, node) {
        struct tcp_reply *reply = container_of(out, struct tcp_reply, out);

        if (reply->id == id) {
            list_remove(&out->node);
            drop_unbegun(server, reply);
            return refuse(server, id, DATA_CODE_CANCELED, "");
        }
    }
    return true; /* its answer is on its way */
}

static bool on_notify_end(struct tcp_server *server)
{
    const struct transport_env *env = &server->shard->tcp->env;
    size_t name_len = server->frame.name_len, len = (size_t)server->frame.len - name_len;
    char name[DATA_NOTIFY_NAME_MAX_BYTES + 1];

    memcpy(name, server->notify_buffer, name_len);
    name[name_len] = '\0';
    if (memchr(name, '\0', name_len))
        return refuse(server, server->frame.id, DATA_CODE_INVALID, "name contains NUL");
    if (!env->notify(env->notify_arg, server->peer_name, name, server->notify_buffer + name_len, len))
        return refuse(server, server->frame.id, DATA_CODE_UNSUPPORTED, "no receiver for notifications");
    tcp_count(&counters(server)->served_notifies, 1);
    return say(server, DATA_DONE, server->frame.id);
}

static bool on_head(struct tcp_stream *stream, const struct data_frame *frame)
{
    struct tcp_server *server = server_of(stream);
    bool is_fine = true, is_known = true;

    server->frame = *frame;
    switch (frame->type) {
    case DATA_READ:
    case DATA_WRITE:
        is_fine = on_range(server, frame);
        break;
    case DATA_CHUNK:
        is_known = on_chunk(server, frame);
        break;
    case DATA_NOTIFY:
        if (!server->notify_buffer)
            server->notify_buffer = malloc(DATA_NOTIFY_NAME_MAX_BYTES + DATA_NOTIFY_MAX_BYTES);
        stream->body = server->notify_buffer;
        is_fine = stream->body != NULL;
        break;
    case DATA_ABORT:
        is_fine = on_abort(server, frame->id);
        break;
    default:
        is_known = false;
        break;
    }
    if (!is_known) {
        tcp_count(&counters(server)->protocol_errors, 1);
        LOG_WARN("'%s' violated the data protocol (frame type %u): connection closed", server->peer_name, frame->type);
    }
    server->is_dead = !is_fine || !is_known;
    server->is_paused = !server->is_dead && server->reply_count >= TCP_REPLIES_MAX;
    return !server->is_dead && !server->is_paused && !server->needs_space;
}

/* Whoever is written to is told when all of it is there. */
static void on_part(struct tcp_stream *stream, const void *data, uint64_t len)
{
    (void)stream;
    (void)data;
    (void)len;
}

static bool on_body(struct tcp_stream *stream)
{
    struct tcp_server *server = server_of(stream);

    if (server->frame.type == DATA_CHUNK)
        server->is_dead = !on_chunk_end(server);
    else
        server->is_dead = !on_notify_end(server);
    return !server->is_dead;
}

/* Memory of a WRITE is gone (a mapping of its application changed): refuse what is left of it. */
static void on_fault(struct tcp_stream *stream)
{
    struct tcp_server *server = server_of(stream);
    struct tcp_grant *grant = server->filling;

    if (!grant)
        return;
    tcp_count(&counters(server)->serve_faults, 1);
    LOG_WARN("registered memory at 0x%llx is not writable", (unsigned long long)grant->addr);
    memory_mark_faulty(memory(server), grant->region);
    if (!refuse(server, grant->id, DATA_CODE_UNREADABLE, "memory is not writable"))
        server->is_dead = true;
    grant_free(server, grant);
}

static const struct tcp_stream_ops server_stream_ops = {
    .sent = on_sent,
    .head = on_head,
    .part = on_part,
    .body = on_body,
    .fault = on_fault,
};

/* --- events --- */

static void on_unreadable(struct tcp_server *server)
{
    struct tcp_reply *reply = reply_of(list_first(&server->stream.out));

    tcp_count(&counters(server)->serve_faults, 1);
    LOG_WARN("registered memory at %p is unreadable (was a mapped file truncated?)", reply->out.body);
    if (reply->region)
        memory_mark_faulty(memory(server), reply->region);
}

static void receive(struct tcp_server *server)
{
    enum tcp_step step;
    int saved = 0;

    if (server->is_paused || server->needs_space || tcp_meter_is_waiting(&server->meter_in))
        return;
    do
        step = tcp_stream_receive(&server->stream, &saved);
    while (step == TCP_STEP_HELD &&
           tcp_meter_take(&server->meter_in, server->stream.body_left, &server->stream.in_allowance));
    if (step == TCP_STEP_PROTOCOL) {
        tcp_count(&counters(server)->protocol_errors, 1);
        LOG_WARN("'%s' sent something that is not a frame: connection closed", server->peer_name);
    }
    if (step == TCP_STEP_LOST || step == TCP_STEP_PROTOCOL)
        server->is_dead = true;
}

static enum tcp_step send_some(struct tcp_server *server)
{
    struct tcp_stream *stream = &server->stream;
    const struct tcp_reply *large;
    uint64_t large_sent;
    enum tcp_step step;
    bool is_fed;
    int saved = 0;

    do {
        seek_turn(server);
        (void)feed(server);
        large = server->large;
        large_sent = large ? large->out.body_sent : 0;
        step = tcp_stream_send(stream, &saved);
        /* If it is another one now, upload_sent was told. */
        if (large && large == server->large && large->out.body_sent > large_sent)
            use_turn(server);
        is_fed = step == TCP_STEP_HELD && feed(server);
    } while (is_fed ||
             (step == TCP_STEP_HELD && !tcp_meter_is_waiting(&server->meter_out) && stream->out_allowance == 0 &&
              tcp_meter_take(&server->meter_out, tcp_stream_out_wanted(stream), &stream->out_allowance)));
    if (tcp_meter_is_waiting(&server->meter_out) && server->large)
        upload_excuse(uploads(server), &server->turn, clock_now_ms() + tcp_meter_wait_ms(&server->meter_out));
    if (step == TCP_STEP_FAULT)
        on_unreadable(server); /* in the middle of an answer: the peer asks again and is refused */
    if (step == TCP_STEP_FAULT || step == TCP_STEP_LOST)
        server->is_dead = true;
    return step;
}

static void server_io(void *arg, unsigned events)
{
    struct tcp_server *server = arg;
    enum tcp_step step = TCP_STEP_DONE;
    bool is_deaf;

    server->active_ms = clock_now_ms();
    if (events & LOOP_READ)
        receive(server);
    if (!server->is_dead)
        step = send_some(server);
    if (server->is_dead) {
        tcp_server_close(server);
        return;
    }
    if (server->is_paused && server->reply_count < TCP_REPLIES_MAX / 2)
        server->is_paused = false;
    is_deaf = server->is_paused || server->needs_space || tcp_meter_is_waiting(&server->meter_in);
    loop_io_set(&server->io, (is_deaf ? 0u : (unsigned)LOOP_READ) |
                                 (step == TCP_STEP_DONE || step == TCP_STEP_HELD ? 0u : (unsigned)LOOP_WRITE));
}

/* --- device memory --- */

/* It was freed, or its context is gone. */
static void note_fault(struct tcp_server *server, struct memory_region *region, const char *reason)
{
    tcp_count(&counters(server)->serve_faults, 1);
    LOG_WARN("registered memory cannot be served: %s", reason);
    memory_mark_faulty(memory(server), region);
}

static void on_reply_staged(void *owner)
{
    struct tcp_reply *reply = owner;
    struct tcp_server *server = reply->server;
    char text[DATA_REASON_MAX_BYTES + 1];
    const char *reason;

    if (tcp_stage_status(reply->stage, &reason) != SHOAL_OK) {
        snprintf(text, sizeof text, "%s", reason);
        note_fault(server, reply->region, text);
        if (tcp_out_is_begun(&reply->out)) {
            server->is_dead = true; /* the peer asks again and is refused */
        } else {
            uint64_t id = reply->id;

            list_remove(&reply->out.node);
            drop_unbegun(server, reply);
            server->is_dead = !refuse(server, id, DATA_CODE_UNREADABLE, text);
        }
    }
    server_io(server, 0);
}

static void on_grant_staged(void *owner)
{
    struct tcp_grant *grant = owner;
    struct tcp_server *server = grant->server;
    bool is_filling = server->filling == grant, was_waiting = server->needs_space;
    char text[DATA_REASON_MAX_BYTES + 1];
    const char *reason;

    if (tcp_stage_status(grant->stage, &reason) != SHOAL_OK) {
        snprintf(text, sizeof text, "%s", reason);
        note_fault(server, grant->region, text);
        if (is_filling) { /* the rest of its chunk is discarded */
            server->stream.body = NULL;
            server->needs_space = false;
        }
        server->is_dead = !refuse(server, grant->id, DATA_CODE_UNREADABLE, text);
        grant_free(server, grant);
    } else if (tcp_stage_is_complete(grant->stage)) {
        server->is_dead = !grant_complete(server, grant);
    } else if (is_filling && server->needs_space) {
        server->stream.body = tcp_stage_space(grant->stage);
        server->needs_space = !server->stream.body;
    }
    server_io(server, was_waiting && !server->needs_space ? LOOP_READ : 0);
}

void tcp_server_granted(struct upload_turn *turn)
{
    server_io(container_of(turn, struct tcp_server, turn), 0);
}

static void resume_in(void *arg)
{
    struct tcp_server *server = arg;

    server->stream.moved_in_ms = clock_now_ms();
    server_io(server, LOOP_READ);
}

static void resume_out(void *arg)
{
    struct tcp_server *server = arg;

    server->stream.moved_out_ms = clock_now_ms();
    server_io(server, 0);
}

void tcp_server_tick(struct tcp_server *server, int64_t now_ms, bool is_late)
{
    struct tcp_stream *stream = &server->stream;
    struct tcp *tcp = server->shard->tcp;
    int64_t limit_ms = tcp->env.progress_timeout_ms, interval_ms = tcp_tick_ms(tcp), moved_ms;
    bool is_stalled, waits_for_us;

    tcp_stream_tune_unsent(stream, (stream->bytes_out - server->ticked_bytes_out) * 1000 / (uint64_t)interval_ms);
    server->ticked_bytes_out = stream->bytes_out;
    if (is_late) {
        stream->moved_in_ms = stream->moved_out_ms = now_ms;
        return;
    }
    if (!list_is_empty(&stream->out))
        tcp_stream_look_at_acks(stream, now_ms);
    if (tcp_meter_is_waiting(&server->meter_in) || server->needs_space)
        stream->moved_in_ms = now_ms;
    moved_ms = stream->moved_in_ms > stream->moved_out_ms ? stream->moved_in_ms : stream->moved_out_ms;
    waits_for_us = tcp_meter_is_waiting(&server->meter_out) || is_staging(server) ||
                   (is_gate_closed(server) && list_first(&stream->out) == &server->large->out.node);
    /* Pins are never held for ever by a peer that does not read, or does not send what it was granted. */
    is_stalled =
        (!list_is_empty(&stream->out) && !waits_for_us && now_ms - stream->moved_out_ms >= limit_ms) ||
        ((server->grant_count > 0 || stream->body_left > 0 || stream->head_have > 0) && now_ms - moved_ms >= limit_ms);
    if (is_stalled) {
        tcp_count(&counters(server)->serve_stalls, 1);
        LOG_WARN("'%s' made no progress for %lld ms: connection closed", server->peer_name, (long long)limit_ms);
        tcp_server_close(server);
    } else if (list_is_empty(&stream->out) && list_is_empty(&server->held) && server->grant_count == 0 &&
               now_ms - server->active_ms >= TCP_SERVER_IDLE_MS) {
        tcp_server_close(server);
    } else if ((server->large ? is_gate_closed(server) : !list_is_empty(&server->held)) &&
               now_ms - stream->moved_out_ms >= interval_ms / 2 && upload_is_waiting(&tcp->uploads, &server->turn)) {
        trickle(server);
        server_io(server, 0);
    }
}

bool tcp_server_uses(const struct tcp_server *server, const struct memory_region *region)
{
    LIST_FOR_EACH (out, &server->stream.out, struct tcp_out, node) {
        if (container_of(out, struct tcp_reply, out)->region == region)
            return true;
    }
    LIST_FOR_EACH (out, &server->held, struct tcp_out, node) {
        if (container_of(out, struct tcp_reply, out)->region == region)
            return true;
    }
    LIST_FOR_EACH (grant, &server->grants, struct tcp_grant, node) {
        if (grant->region == region)
            return true;
    }
    return false;
}

static void attach(void *arg)
{
    struct tcp_server *server = arg;
    struct tcp *tcp = server->shard->tcp;

    list_push_back(&server->shard->servers, &server->node);
    if (loop_io_init(&server->io, server->shard->loop, server->stream.fd, server_io, server, NULL) == SHOAL_OK) {
        loop_io_set(&server->io, LOOP_READ);
        tcp_shard_arm_tick(server->shard);
    } else {
        tcp_server_close(server);
    }
    tcp_live(tcp, -1);
}

void tcp_server_accept(struct tcp_shard *shard, int fd, const char *peer_name)
{
    struct tcp *tcp = shard->tcp;
    struct tcp_server *server = calloc(1, sizeof *server);
    struct tcp_stream closing = {.fd = fd};

    if (!server) {
        tcp_stream_release(&closing);
        endpoint_released(tcp->env.endpoint);
        return;
    }
    server->shard = shard;
    server->active_ms = clock_now_ms();
    list_init(&server->grants);
    list_init(&server->spare_replies);
    memcpy(server->peer_name, peer_name, strnlen(peer_name, HELLO_NAME_MAX_BYTES));
    list_init(&server->held);
    upload_turn_init(&server->turn, &shard->uploads);
    tcp_stream_init(&server->stream, &server_stream_ops, fd);
    tcp_stream_tune(&server->stream, tcp->env.download_limit_bytes_per_s);
    tcp_stream_tune_unsent(&server->stream, 0);
    tcp_stream_expect_heads(&server->stream);
    tcp_meter_init(&server->meter_in, shard, &tcp->download_limit, &tcp->counters.throttled_in_ns, resume_in, server);
    tcp_meter_init(&server->meter_out, shard, &tcp->upload_limit, &tcp->counters.throttled_out_ns, resume_out, server);
    if (rate_is_limited(&tcp->download_limit))
        server->stream.in_allowance = 0;
    if (rate_is_limited(&tcp->upload_limit))
        server->stream.out_allowance = 0;
    tcp_count(&tcp->counters.server_connections, 1);
    tcp_live(tcp, 1);
    loop_post(shard->loop, &server->attach_task, attach, server);
}
