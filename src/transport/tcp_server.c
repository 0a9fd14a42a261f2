/* SPDX-License-Identifier: Apache-2.0 */
/* The serving side of a data connection: reads and writes registered memory for a peer while it holds a pin on it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/tcp_internal.h"

#define LOG_MODULE "tcp"

#define GRANTS_MAX (2 * TCP_WRITES_MAX)
#define SPARE_REPLIES_MAX 32 /* kept by an idle connection */

/* An answer in the queue. */
struct tcp_reply {
    struct tcp_out out;
    uint64_t id;
    struct memory_region *region; /* pinned while DATA is in the queue; else NULL */
};

/* A WRITE that was granted and is not complete. */
struct tcp_grant {
    struct list_node node; /* in server->grants */
    uint64_t id, addr, len, moved;
    struct memory_region *region; /* pinned */
};

struct tcp_server {
    struct tcp_shard *shard;
    struct list_node node; /* in shard->servers */
    struct loop_task attach_task;
    int64_t active_ms;
    struct tcp_stream stream;
    struct loop_io io;
    bool is_dead, is_paused;
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

static void grant_free(struct tcp_server *server, struct tcp_grant *grant)
{
    memory_unpin(memory(server), grant->region);
    list_remove(&grant->node);
    if (server->filling == grant)
        server->filling = NULL;
    server->grant_count--;
    free(grant);
}

static void reply_done(struct tcp_server *server, struct tcp_reply *reply)
{
    if (reply->region)
        memory_unpin(memory(server), reply->region);
    reply->region = NULL;
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

    loop_io_release(&server->io);
    tcp_stream_release(&server->stream);
    while ((node = list_pop_front(&server->stream.out)))
        reply_done(server, container_of(container_of(node, struct tcp_out, node), struct tcp_reply, out));
    while ((node = list_first(&server->grants)))
        grant_free(server, container_of(node, struct tcp_grant, node));
    while ((node = list_pop_front(&server->spare_replies)))
        free(container_of(container_of(node, struct tcp_out, node), struct tcp_reply, out));
    list_remove(&server->node);
    tcp_count(&counters(server)->server_connections, (uint64_t)-1);
    endpoint_released(server->shard->tcp->env.endpoint);
    free(server->notify_buffer);
    free(server);
}

/* --- answers --- */

/* Queues an answer; false: out of memory, the connection was closed. */
static bool answer(struct tcp_server *server, const struct data_frame *frame, const void *body,
                   struct memory_region *region, const char *text)
{
    struct list_node *node = list_pop_front(&server->spare_replies);
    struct tcp_reply *reply;

    if (node) {
        server->spare_count--;
        reply = container_of(container_of(node, struct tcp_out, node), struct tcp_reply, out);
    } else {
        reply = calloc(1, sizeof *reply);
        if (!reply) {
            if (region)
                memory_unpin(memory(server), region);
            return false;
        }
    }
    reply->id = frame->id;
    reply->region = region;
    server->reply_count++;
    tcp_stream_queue(&server->stream, &reply->out, frame, body, text);
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

static void on_sent(struct tcp_stream *stream, struct tcp_out *out)
{
    struct tcp_server *server = server_of(stream);
    struct tcp_reply *reply = container_of(out, struct tcp_reply, out);

    if (reply->region) {
        tcp_count(&counters(server)->served_reads, 1);
        tcp_count(&counters(server)->served_read_bytes, out->body_len);
    }
    reply_done(server, reply);
}

/* --- requests --- */

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
        return refuse(server, frame->id, DATA_CODE_LIMIT, "too many writes at once");
    }
    *grant = (struct tcp_grant){.id = frame->id, .addr = frame->addr, .len = frame->len, .region = region};
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
    server->stream.body = (void *)(uintptr_t)(grant->addr + grant->moved);
    return true;
}

static bool on_chunk_end(struct tcp_server *server)
{
    struct tcp_grant *grant = server->filling;
    uint64_t id;

    server->filling = NULL;
    if (!grant)
        return true;
    grant->moved += server->frame.len;
    if (grant->moved < grant->len)
        return true;
    tcp_count(&counters(server)->served_writes, 1);
    tcp_count(&counters(server)->served_write_bytes, grant->len);
    id = grant->id;
    grant_free(server, grant);
    return say(server, DATA_DONE, id);
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
            reply_done(server, reply);
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
    if (is_fine && is_known && server->reply_count < TCP_REPLIES_MAX)
        return true;
    server->is_dead = !is_fine || !is_known;
    server->is_paused = !server->is_dead;
    return false;
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
    .body = on_body,
    .fault = on_fault,
};

/* --- events --- */

static void on_unreadable(struct tcp_server *server)
{
    struct list_node *node = list_first(&server->stream.out);
    struct tcp_reply *reply = container_of(container_of(node, struct tcp_out, node), struct tcp_reply, out);

    tcp_count(&counters(server)->serve_faults, 1);
    LOG_WARN("registered memory at %p is unreadable (was a mapped file truncated?)", reply->out.body);
    if (reply->region)
        memory_mark_faulty(memory(server), reply->region);
}

static void server_io(void *arg, unsigned events)
{
    struct tcp_server *server = arg;
    enum tcp_step step;
    int saved = 0;

    server->active_ms = clock_now_ms();
    if ((events & LOOP_READ) && !server->is_paused) {
        step = tcp_stream_receive(&server->stream, &saved);
        if (step == TCP_STEP_PROTOCOL) {
            tcp_count(&counters(server)->protocol_errors, 1);
            LOG_WARN("'%s' sent something that is not a frame: connection closed", server->peer_name);
        }
        if (step == TCP_STEP_LOST || step == TCP_STEP_PROTOCOL)
            server->is_dead = true;
    }
    step = TCP_STEP_DONE;
    if (!server->is_dead) {
        step = tcp_stream_send(&server->stream, &saved);
        if (step == TCP_STEP_FAULT)
            on_unreadable(server); /* in the middle of an answer: the peer asks again and is refused */
        if (step == TCP_STEP_FAULT || step == TCP_STEP_LOST)
            server->is_dead = true;
    }
    if (server->is_dead) {
        tcp_server_close(server);
        return;
    }
    if (server->is_paused && server->reply_count < TCP_REPLIES_MAX / 2)
        server->is_paused = false;
    loop_io_set(&server->io,
                (server->is_paused ? 0u : (unsigned)LOOP_READ) | (step == TCP_STEP_DONE ? 0u : (unsigned)LOOP_WRITE));
}

void tcp_server_tick(struct tcp_server *server, int64_t now_ms, bool is_late)
{
    struct tcp_stream *stream = &server->stream;
    int64_t limit_ms = server->shard->tcp->env.progress_timeout_ms;
    int64_t moved_ms = stream->moved_in_ms > stream->moved_out_ms ? stream->moved_in_ms : stream->moved_out_ms;
    bool is_stalled;

    if (is_late) {
        stream->moved_in_ms = stream->moved_out_ms = now_ms;
        return;
    }
    /* Pins are never held for ever by a peer that does not read, or does not send what it was granted. */
    is_stalled =
        (!list_is_empty(&stream->out) && now_ms - stream->moved_out_ms >= limit_ms) ||
        ((server->grant_count > 0 || stream->body_left > 0 || stream->head_have > 0) && now_ms - moved_ms >= limit_ms);
    if (is_stalled) {
        tcp_count(&counters(server)->serve_stalls, 1);
        LOG_WARN("'%s' made no progress for %lld ms: connection closed", server->peer_name, (long long)limit_ms);
        tcp_server_close(server);
    } else if (list_is_empty(&stream->out) && server->grant_count == 0 &&
               now_ms - server->active_ms >= TCP_SERVER_IDLE_MS) {
        tcp_server_close(server);
    }
}

bool tcp_server_uses(const struct tcp_server *server, const struct memory_region *region)
{
    LIST_FOR_EACH (out, &server->stream.out, struct tcp_out, node) {
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
    tcp_stream_tune(fd);
    tcp_stream_init(&server->stream, &server_stream_ops, fd);
    tcp_count(&tcp->counters.server_connections, 1);
    tcp_live(tcp, 1);
    loop_post(shard->loop, &server->attach_task, attach, server);
}
