/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "rpc/rpc_internal.h"

#define LOG_MODULE "rpc"
#include "base/log.h"

#define UCX_REFUSAL_MS 60000

/* One outstanding call. */
struct call_entry {
    struct list_node node; /* in client->calls, or in client->ended */
    uint64_t id;
    int64_t deadline_ms;
    rpc_done_fn done;
    void *arg;
    /* what to send, until there is a connection */
    uint16_t method;
    uint8_t *body; /* owned; NULL once sent */
    size_t body_len;
    /* outcome of an entry in ended */
    enum shoal_status status;
    struct shoal_error error;
};

struct rpc_client {
    struct rpc *rpc; /* borrowed */
    char address[HOSTPORT_TEXT_BYTES];
    uint64_t instance;
    int64_t connect_timeout_ms;
    struct rpc_stream stream;
    int tcp_fd;                    /* is connected, while the peer's local socket is dialed; -1: not so */
    bool is_dialing_ucx;           /* the dial is, or was, one for UCX */
    bool is_connected, is_opening; /* is_opening: there is a stream, the two still agree on UCX */
    int64_t tcp_until_ms;          /* the peer did not offer UCX: not asked again before; 0: was never asked */
    struct endpoint_dial *dial;    /* borrowed from the endpoint; NULL: none is running */
    struct list calls;
    struct list ended; /* calls that failed without a frame: done runs from end_task */
    struct map by_id;  /* id -> struct call_entry in calls */
    unsigned call_count;
    uint64_t late_count; /* calls whose deadline passed: their answers may still come */
    uint64_t next_id;
    struct loop_timer deadline_timer;
    struct loop_task end_task;
    void (*lost)(void *arg, const struct shoal_error *error); /* may be NULL */
    void *lost_arg;
    bool is_end_posted;
    bool is_running_ended; /* run_ended is on the stack */
    bool is_detached;      /* closed while the dial or the task was outstanding: the last of them frees */
};

/* Calls that wait go by TCP. false: not even that. */
static bool dial_by_tcp(struct rpc_client *client, const struct shoal_error *why);

static void free_if_unused(struct rpc_client *client)
{
    if (client->is_detached && !client->dial && !client->is_end_posted && !client->is_running_ended)
        free(client);
}

static void entry_destroy(struct call_entry *entry)
{
    free(entry->body);
    free(entry);
}

/* Takes the entry out of the table; the caller runs done and destroys it. */
static void entry_detach(struct rpc_client *client, struct call_entry *entry)
{
    list_remove(&entry->node);
    map_remove_u64(&client->by_id, entry->id);
    client->call_count--;
}

static void run_ended(void *arg)
{
    struct rpc_client *client = arg;
    struct list_node *node;

    client->is_end_posted = false;
    client->is_running_ended = true;
    while (!client->is_detached && (node = list_pop_front(&client->ended))) {
        struct call_entry *entry = container_of(node, struct call_entry, node);
        client->rpc->counters.call_failures++;
        entry->done(entry->arg, entry->status, NULL, 0, &entry->error);
        entry_destroy(entry);
    }
    client->is_running_ended = false;
    free_if_unused(client);
}

static void end_soon(struct rpc_client *client, struct call_entry *entry, enum shoal_status status,
                     const struct shoal_error *error)
{
    entry->status = status;
    if (error)
        entry->error = *error;
    else
        error_set(&entry->error, status, 0, "%s: %s", client->address, shoal_status_text(status));
    list_push_back(&client->ended, &entry->node);
    if (!client->is_end_posted) {
        client->is_end_posted = true;
        loop_post(client->rpc->loop, &client->end_task, run_ended, client);
    }
}

static void fail_all(struct rpc_client *client, enum shoal_status status, const struct shoal_error *error)
{
    struct shoal_error detail = *error;
    struct list_node *node;

    error_prefix(&detail, "%s", client->address);
    while ((node = list_first(&client->calls))) {
        struct call_entry *entry = container_of(node, struct call_entry, node);
        entry_detach(client, entry);
        end_soon(client, entry, status, &detail);
    }
}

static void arm_timer(struct rpc_client *client)
{
    int64_t first = DEADLINE_NONE;

    LIST_FOR_EACH (entry, &client->calls, struct call_entry, node)
        first = deadline_min(first, entry->deadline_ms);
    if (first == DEADLINE_NONE)
        loop_timer_stop(&client->deadline_timer);
    else
        loop_timer_start(&client->deadline_timer, deadline_left_ms(first));
}

static void on_deadline(void *arg)
{
    struct rpc_client *client = arg;

    LIST_FOR_EACH_SAFE (entry, &client->calls, struct call_entry, node) {
        if (deadline_is_past(entry->deadline_ms)) {
            entry_detach(client, entry);
            client->late_count++;
            end_soon(client, entry, SHOAL_TIMED_OUT, NULL);
        }
    }
    arm_timer(client);
}

/* The last thing that the caller does with the client, which may be freed inside. */
static void lose(struct rpc_client *client, enum shoal_status status, const struct shoal_error *error)
{
    struct shoal_error detail = *error;
    bool was_connected = client->is_connected;

    client->is_connected = client->is_opening = false;
    rpc_stream_release(&client->stream);
    if (!was_connected && status == SHOAL_UNSUPPORTED && dial_by_tcp(client, error))
        return;
    fail_all(client, status, error);
    arm_timer(client);
    if (client->lost && was_connected) {
        error_prefix(&detail, "%s", client->address);
        client->lost(client->lost_arg, &detail);
    }
}

static void on_violation(struct rpc_client *client, const char *what)
{
    struct shoal_error error;

    client->rpc->counters.protocol_errors++;
    error_set(&error, SHOAL_PROTOCOL, 0, "%s", what);
    lose(client, SHOAL_PROTOCOL, &error);
}

static void on_frame(void *arg, const struct rpc_frame *frame, const uint8_t *body)
{
    struct rpc_client *client = arg;
    struct call_entry *entry;
    struct shoal_error error;

    if (frame->kind != RPC_KIND_RESPONSE) {
        on_violation(client, "a request from the side that serves");
        return;
    }
    entry = map_get_u64(&client->by_id, frame->id);
    if (!entry) {
        if (client->late_count)
            client->late_count--;
        else
            on_violation(client, "an answer to no call");
        return;
    }
    entry_detach(client, entry);
    if (frame->status == SHOAL_OK) {
        entry->done(entry->arg, SHOAL_OK, body, frame->body_len - frame->attachment_bytes, NULL);
    } else {
        enum shoal_status status = (enum shoal_status)frame->status;
        if (frame->status > 0 || strcmp(shoal_status_name(status), "UNKNOWN") == 0)
            status = SHOAL_PROTOCOL;
        error_set(&error, status, 0, "%s: %.*s", client->address, frame->body_len > 300 ? 300 : (int)frame->body_len,
                  (const char *)body);
        client->rpc->counters.call_failures++;
        entry->done(entry->arg, status, NULL, 0, &error);
    }
    entry_destroy(entry);
}

static void on_closed(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    lose(arg, status, error);
}

static enum shoal_status send_entry(struct rpc_client *client, struct call_entry *entry)
{
    int64_t left = deadline_left_ms(entry->deadline_ms);
    struct rpc_frame frame = {.kind = RPC_KIND_REQUEST,
                              .method = entry->method,
                              .id = entry->id,
                              .body_len = (uint32_t)entry->body_len,
                              .timeout_ms = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left};
    enum shoal_status status = rpc_stream_send(&client->stream, &frame, entry->body);

    if (status)
        return status;
    free(entry->body);
    entry->body = NULL;
    return SHOAL_OK;
}

static void on_opened(void *arg)
{
    struct rpc_client *client = arg;

    client->is_opening = false;
    client->is_connected = true;
    LIST_FOR_EACH_SAFE (entry, &client->calls, struct call_entry, node) {
        enum shoal_status status = entry->body ? send_entry(client, entry) : SHOAL_OK;

        if (status) {
            entry_detach(client, entry);
            end_soon(client, entry, status, NULL);
        }
    }
}

static const struct rpc_stream_events client_events = {.frame = on_frame, .closed = on_closed, .opened = on_opened};

static enum shoal_status init_stream(struct rpc_client *client, int fd, struct shoal_error *error)
{
    struct rpc *rpc = client->rpc;

    if (client->is_dialing_ucx) {
        enum shoal_status status =
            rpc_stream_init_ucx(&client->stream, rpc->loop, fd, RPC_RESPONSE_MAX_BYTES, &client_events, client,
                                &rpc->counters, rpc->carrier, NULL, error);

        return status == SHOAL_LIMIT ? SHOAL_UNSUPPORTED : status;
    }
    return rpc_stream_init(&client->stream, rpc->loop, fd, RPC_RESPONSE_MAX_BYTES, &client_events, client,
                           &rpc->counters, error);
}

/* The peer does not serve the channel, or we cannot have one more connection over UCX. */
static bool has_no_ucx(const struct rpc_client *client, enum shoal_status status, const struct shoal_error *error)
{
    return client->is_dialing_ucx &&
           (status == SHOAL_UNSUPPORTED || (status == SHOAL_UNREACHABLE && error->sys_errno == EPROTONOSUPPORT));
}

/* fd: connected, taken. */
static void use_connection(struct rpc_client *client, enum shoal_status status, int fd, const struct shoal_error *error)
{
    struct shoal_error local;

    if (status == SHOAL_OK) {
        status = init_stream(client, fd, &local);
        if (status) {
            close(fd);
            error = &local;
        }
    }
    if (status && has_no_ucx(client, status, error) && dial_by_tcp(client, error))
        return;
    if (status) {
        fail_all(client, status, error);
        arm_timer(client);
    } else if (client->is_dialing_ucx) {
        client->is_opening = true;
    } else {
        on_opened(client);
    }
}

static void on_dialed_local(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                            const struct shoal_error *error)
{
    struct rpc_client *client = arg;
    int tcp_fd = client->tcp_fd;

    (void)peer;
    (void)error;
    client->dial = NULL;
    client->tcp_fd = -1;
    if (status == SHOAL_OK || client->is_detached)
        close(tcp_fd);
    if (client->is_detached) {
        if (status == SHOAL_OK)
            close(fd);
        free_if_unused(client);
        return;
    }
    use_connection(client, SHOAL_OK, status == SHOAL_OK ? fd : tcp_fd, NULL);
}

/* Connected by TCP to a process of this host: its local socket is the shorter way. false: there is none. */
static bool dial_local(struct rpc_client *client, int fd, uint64_t instance)
{
    struct shoal_error ignored;

    if (client->is_dialing_ucx || !client->rpc->protocol->dial_local || !endpoint_has_local(instance))
        return false;
    client->tcp_fd = fd;
    if (endpoint_dial_local(client->rpc->endpoint, instance, HELLO_CHANNEL_CONTROL, client->connect_timeout_ms,
                            on_dialed_local, client, &client->dial, &ignored) == SHOAL_OK)
        return true;
    client->tcp_fd = -1;
    return false;
}

static void on_dialed(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                      const struct shoal_error *error)
{
    struct rpc_client *client = arg;

    client->dial = NULL;
    if (client->is_detached) {
        if (status == SHOAL_OK)
            close(fd);
        free_if_unused(client);
    } else if (status || !dial_local(client, fd, peer->instance)) {
        use_connection(client, status, fd, error);
    }
}

static enum shoal_status dial(struct rpc_client *client, struct shoal_error *error)
{
    client->is_dialing_ucx =
        client->rpc->carrier && (client->tcp_until_ms == 0 || deadline_is_past(client->tcp_until_ms));
    if (client->rpc->carrier && !client->is_dialing_ucx)
        client->rpc->counters.fallbacks++;
    return endpoint_dial(client->rpc->endpoint, client->address, client->instance,
                         client->is_dialing_ucx ? HELLO_CHANNEL_CONTROL_UCX : HELLO_CHANNEL_CONTROL,
                         client->connect_timeout_ms, on_dialed, client, &client->dial, error);
}

static bool dial_by_tcp(struct rpc_client *client, const struct shoal_error *why)
{
    struct shoal_error error;

    if (client->tcp_until_ms == 0)
        LOG_INFO("calls to %s go by TCP, not '%s': %s", client->address, client->rpc->protocol->name, why->message);
    client->tcp_until_ms = deadline_after_ms(UCX_REFUSAL_MS);
    return dial(client, &error) == SHOAL_OK;
}

enum shoal_status rpc_client_open(struct rpc *rpc, const char *address, uint64_t instance, int64_t connect_timeout_ms,
                                  struct rpc_client **client_out, struct shoal_error *error)
{
    struct rpc_client *client = calloc(1, sizeof *client);
    enum shoal_status status;

    if (!client)
        return error_no_memory(error);
    status = loop_timer_init(&client->deadline_timer, rpc->loop, on_deadline, client, error);
    if (status) {
        free(client);
        return status;
    }
    client->rpc = rpc;
    snprintf(client->address, sizeof client->address, "%s", address);
    client->instance = instance;
    client->connect_timeout_ms = connect_timeout_ms;
    client->tcp_fd = -1;
    list_init(&client->calls);
    list_init(&client->ended);
    map_init(&client->by_id);
    *client_out = client;
    return SHOAL_OK;
}

void rpc_client_on_lost(struct rpc_client *client, void (*fn)(void *arg, const struct shoal_error *error), void *arg)
{
    client->lost = fn;
    client->lost_arg = arg;
}

void rpc_client_flush(struct rpc_client *client)
{
    if (client->is_connected)
        rpc_stream_flush(&client->stream);
}

void rpc_client_close(struct rpc_client *client)
{
    struct list_node *node;
    struct shoal_error error;

    if (!client)
        return;
    if (client->is_connected || client->is_opening)
        rpc_stream_release(&client->stream);
    client->is_connected = client->is_opening = false;
    loop_timer_release(&client->deadline_timer);
    error_set(&error, SHOAL_CANCELED, 0, "%s: canceled", client->address);
    while ((node = list_first(&client->calls))) {
        struct call_entry *entry = container_of(node, struct call_entry, node);
        entry_detach(client, entry);
        list_push_back(&client->ended, &entry->node);
    }
    while ((node = list_pop_front(&client->ended))) {
        struct call_entry *entry = container_of(node, struct call_entry, node);
        entry->done(entry->arg, SHOAL_CANCELED, NULL, 0, &error);
        entry_destroy(entry);
    }
    map_release(&client->by_id);
    client->is_detached = true;
    if (client->dial)
        endpoint_dial_cancel(client->dial);
    free_if_unused(client);
}

enum shoal_status rpc_call(struct rpc_client *client, uint16_t method, const void *body, size_t body_len,
                           int64_t timeout_ms, rpc_done_fn done, void *arg)
{
    struct call_entry *entry = calloc(1, sizeof *entry);
    struct shoal_error error;
    enum shoal_status status;

    if (!entry)
        return SHOAL_NO_MEMORY;
    *entry = (struct call_entry){.id = ++client->next_id,
                                 .deadline_ms = deadline_after_ms(timeout_ms),
                                 .done = done,
                                 .arg = arg,
                                 .method = method,
                                 .body_len = body_len};
    entry->body = malloc(body_len ? body_len : 1);
    if (!entry->body || !map_put_u64(&client->by_id, entry->id, entry)) {
        entry_destroy(entry);
        return SHOAL_NO_MEMORY;
    }
    if (body_len)
        memcpy(entry->body, body, body_len);
    list_push_back(&client->calls, &entry->node);
    client->call_count++;
    client->rpc->counters.calls++;
    if (client->call_count > RPC_CALLS_PER_CONNECTION_MAX) {
        entry_detach(client, entry);
        end_soon(client, entry, SHOAL_LIMIT, NULL);
        return SHOAL_OK;
    }
    arm_timer(client);
    if (client->is_connected) {
        status = send_entry(client, entry);
        if (status) {
            entry_detach(client, entry);
            end_soon(client, entry, status, NULL);
        }
    } else if (!client->dial && !client->is_opening) {
        status = dial(client, &error);
        if (status)
            fail_all(client, status, &error);
    }
    return SHOAL_OK;
}
