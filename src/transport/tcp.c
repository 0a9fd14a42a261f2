/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport on loop 0: peers, lanes, the way of requests to connections and back. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/tcp_internal.h"

#define LOG_MODULE "tcp"

struct tcp_lane {
    struct tcp_peer *peer;
    struct tcp_client *client;  /* NULL: not connected; owned by its shard */
    struct endpoint_dial *dial; /* NULL: not dialing */
    struct list queue;          /* transport_request.node: waits for the connection */
    uint64_t bytes;             /* of all requests of this lane that are not done */
};

struct tcp_peer {
    struct tcp *tcp;
    struct list_node node; /* in tcp->peers */
    uint64_t instance;
    char name[HELLO_NAME_MAX_BYTES + 1];
    char address[HOSTPORT_TEXT_BYTES];
    bool is_closed;
    uint64_t outstanding; /* requests that are not done */
    unsigned clients;     /* connections that loop 0 has not freed */
    struct tcp_lane lanes[TCP_LANES_MAX];
    struct tcp_direct_pool direct;
};

static struct tcp *tcp_of(struct transport *transport)
{
    return (struct tcp *)transport;
}

static struct tcp_peer *peer_of(struct transport_peer *peer)
{
    return (struct tcp_peer *)peer;
}

static void set_state(struct transport_request *request, unsigned flag)
{
    __atomic_fetch_or(&request->state, flag, __ATOMIC_RELEASE); /* pairs with is_canceled in tcp_client.c */
}

static void clear_state(struct transport_request *request, unsigned flag)
{
    __atomic_fetch_and(&request->state, ~flag, __ATOMIC_RELEASE);
}

static bool has_state(const struct transport_request *request, unsigned flag)
{
    return (__atomic_load_n(&request->state, __ATOMIC_ACQUIRE) & flag) != 0;
}

struct shoal_error *tcp_error(enum shoal_status status, int sys_errno, const char *format, ...)
{
    struct shoal_error *error = malloc(sizeof *error);
    char text[sizeof error->message];
    va_list args;

    if (!error)
        return NULL;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_set(error, status, sys_errno, "%s", text);
    return error;
}

void tcp_live(struct tcp *tcp, int by)
{
    mutex_lock(&tcp->mutex);
    tcp->live_objects += (unsigned)by;
    if (tcp->live_objects == 0)
        cond_broadcast(&tcp->changed);
    mutex_unlock(&tcp->mutex);
}

void tcp_stages_live(struct tcp *tcp, int by)
{
    mutex_lock(&tcp->mutex);
    tcp->stages += (unsigned)by;
    if (tcp->stages == 0)
        cond_broadcast(&tcp->changed);
    mutex_unlock(&tcp->mutex);
}

/* --- the way back --- */

static void run_outbox(void *arg);

static void post_outbox(struct tcp *tcp) /* under tcp->mutex */
{
    if (!tcp->is_outbox_posted) {
        tcp->is_outbox_posted = true;
        loop_post(tcp->env.loop, &tcp->outbox_task, run_outbox, tcp);
    }
}

void tcp_return(struct tcp *tcp, struct transport_request *request, enum shoal_status status, struct shoal_error *error)
{
    request->status = status;
    request->error = error;
    mutex_lock(&tcp->mutex);
    list_push_back(&tcp->returned, &request->node);
    post_outbox(tcp);
    mutex_unlock(&tcp->mutex);
}

void tcp_return_again(struct tcp *tcp, struct transport_request *request, bool is_counted)
{
    set_state(request, TCP_REQUEST_AGAIN | (is_counted ? (unsigned)TCP_REQUEST_RETRIED : 0u));
    tcp_return(tcp, request, SHOAL_OK, NULL);
}

void tcp_client_is_gone(struct tcp *tcp, struct tcp_client *client)
{
    mutex_lock(&tcp->mutex);
    list_push_back(&tcp->gone, &client->node);
    post_outbox(tcp);
    mutex_unlock(&tcp->mutex);
}

struct shoal_error *tcp_refusal(const char *name, const char *address, unsigned op, uint64_t remote_addr,
                                uint64_t len_bytes, enum shoal_status status, const char *text)
{
    return tcp_error(status, 0, "'%s' (%s) refused %s of [0x%llx, +%llu): %s", name, address,
                     op == SHOAL_OP_READ    ? "READ"
                     : op == SHOAL_OP_WRITE ? "WRITE"
                                            : "NOTIFY",
                     (unsigned long long)remote_addr, (unsigned long long)len_bytes, text);
}

static void lane_queue(struct tcp_lane *lane, struct transport_request *request);

static void take_back(struct tcp *tcp, struct transport_request *request)
{
    struct tcp_lane *lane = request->link;
    struct tcp_peer *peer = lane->peer;
    struct shoal_error *error;

    if (has_state(request, TCP_REQUEST_AGAIN)) {
        clear_state(request, TCP_REQUEST_AGAIN);
        if (!has_state(request, TCP_REQUEST_CANCEL) && !peer->is_closed) {
            tcp_count(&tcp->counters.retries, 1);
            lane_queue(lane, request);
            return;
        }
        request->status = SHOAL_CANCELED;
    }
    lane->bytes -= request->len_bytes;
    peer->outstanding--;
    tcp_count_outcome(tcp, request);
    error = request->error;
    request->error = NULL;
    request->done(request, request->status, error);
    free(error);
}

static void reap_peers(struct tcp *tcp)
{
    LIST_FOR_EACH_SAFE (peer, &tcp->peers, struct tcp_peer, node) {
        bool is_idle =
            peer->is_closed && peer->outstanding == 0 && peer->clients == 0 && tcp_direct_is_unused(&peer->direct);

        for (unsigned i = 0; i < tcp->lane_count; i++)
            is_idle = is_idle && !peer->lanes[i].dial;
        if (is_idle) {
            tcp->closed_peers--;
            list_remove(&peer->node);
            free(peer);
            tcp_live(tcp, -1);
        }
    }
}

static void empty_outbox(struct tcp *tcp)
{
    struct list returned, gone;
    struct list_node *node;

    list_init(&returned);
    list_init(&gone);
    mutex_lock(&tcp->mutex);
    while ((node = list_pop_front(&tcp->gone)))
        list_push_back(&gone, node);
    while ((node = list_pop_front(&tcp->returned)))
        list_push_back(&returned, node);
    mutex_unlock(&tcp->mutex);
    while ((node = list_pop_front(&gone))) {
        struct tcp_client *client = container_of(node, struct tcp_client, node);

        if (client->peer->lanes[client->lane].client == client)
            client->peer->lanes[client->lane].client = NULL;
        client->peer->clients--;
        tcp_client_free(client);
    }
    while ((node = list_pop_front(&returned)))
        take_back(tcp, container_of(node, struct transport_request, node));
    if (tcp->closed_peers > 0)
        reap_peers(tcp);
}

static void run_outbox(void *arg)
{
    struct tcp *tcp = arg;

    mutex_lock(&tcp->mutex);
    tcp->is_outbox_posted = false;
    mutex_unlock(&tcp->mutex);
    empty_outbox(tcp);
}

void tcp_run_outbox(struct tcp *tcp)
{
    if (loop_is_current(tcp->env.loop))
        empty_outbox(tcp);
}

/* --- lanes --- */

static void fail_queue(struct tcp_lane *lane, enum shoal_status status, const struct shoal_error *why)
{
    struct list_node *node;

    while ((node = list_pop_front(&lane->queue))) {
        struct transport_request *request = container_of(node, struct transport_request, node);
        struct shoal_error *error = why ? malloc(sizeof *error) : NULL;

        clear_state(request, TCP_REQUEST_QUEUED);
        if (error)
            *error = *why;
        tcp_return(lane->peer->tcp, request, status, error);
    }
}

static void hand_over(struct tcp_lane *lane)
{
    struct list_node *node;

    while ((node = list_pop_front(&lane->queue))) {
        struct transport_request *request = container_of(node, struct transport_request, node);

        clear_state(request, TCP_REQUEST_QUEUED);
        tcp_client_submit(lane->client, request);
    }
}

/* Later requests get a connection of their own. */
static void abort_client(struct tcp_lane *lane)
{
    if (lane->client)
        tcp_client_abort(lane->client);
    lane->client = NULL;
}

static void lane_dial(struct tcp_lane *lane);

static void dialed(void *arg, enum shoal_status status, int fd, const struct hello *peer_hello,
                   const struct shoal_error *error)
{
    struct tcp_lane *lane = arg;
    struct tcp_peer *peer = lane->peer;
    struct tcp *tcp = peer->tcp;
    struct shoal_error why;

    (void)peer_hello;
    lane->dial = NULL;
    if (status == SHOAL_CANCELED && !peer->is_closed && !list_is_empty(&lane->queue)) {
        lane_dial(lane); /* requests that came after peer_abort */
    } else if (status != SHOAL_OK) {
        error_copy(&why, error);
        error_prefix(&why, "'%s'", peer->name);
        fail_queue(lane, status, &why);
    } else {
        unsigned index = (unsigned)(lane - peer->lanes);

        tcp_live(tcp, 1);
        lane->client = tcp_client_create(tcp, &tcp->shards[tcp->next_shard++ % tcp->env.data_loop_count], peer, index,
                                         fd, peer->name, peer->address);
        if (lane->client) {
            peer->clients++;
            hand_over(lane);
            if (peer->is_closed)
                abort_client(lane);
        } else {
            tcp_live(tcp, -1);
            error_no_memory(&why);
            fail_queue(lane, SHOAL_NO_MEMORY, &why);
        }
    }
    mutex_lock(&tcp->mutex);
    post_outbox(tcp); /* a closed peer may be free now */
    mutex_unlock(&tcp->mutex);
}

static void close_idle(void *arg)
{
    tcp_client_close_idle(arg);
}

static void lane_dial(struct tcp_lane *lane)
{
    struct tcp_peer *peer = lane->peer;
    struct tcp *tcp = peer->tcp;
    struct shoal_error error;
    enum shoal_status status = SHOAL_OK;

    if (__atomic_load_n(&tcp->counters.client_connections, __ATOMIC_RELAXED) >= TCP_CLIENT_CONNECTIONS_MAX) {
        for (unsigned i = 0; i < tcp->env.data_loop_count; i++)
            loop_call(tcp->shards[i].loop, close_idle, &tcp->shards[i]);
        if (__atomic_load_n(&tcp->counters.client_connections, __ATOMIC_RELAXED) >= TCP_CLIENT_CONNECTIONS_MAX)
            status = error_set(&error, SHOAL_LIMIT, 0, "'%s': %d connections are open and busy", peer->name,
                               TCP_CLIENT_CONNECTIONS_MAX);
    }
    if (status == SHOAL_OK)
        status = endpoint_dial(tcp->env.endpoint, peer->address, peer->instance, HELLO_CHANNEL_DATA,
                               tcp->env.connect_timeout_ms, dialed, lane, &lane->dial, &error);
    if (status != SHOAL_OK)
        fail_queue(lane, status, &error);
}

static void lane_queue(struct tcp_lane *lane, struct transport_request *request)
{
    if (lane->client) {
        tcp_client_submit(lane->client, request);
        return;
    }
    set_state(request, TCP_REQUEST_QUEUED);
    list_push_back(&lane->queue, &request->node);
    if (!lane->dial)
        lane_dial(lane);
}

/* --- the table's functions --- */

static void tcp_submit(struct transport_peer *base, struct transport_request *request)
{
    struct tcp_peer *peer = peer_of(base);
    struct tcp_lane *lane = &peer->lanes[0];

    assert(loop_is_current(peer->tcp->env.loop));
    if ((unsigned)request->op != TCP_OP_NOTIFY) {
        for (unsigned i = 1; i < peer->tcp->lane_count; i++)
            if (peer->lanes[i].bytes < lane->bytes)
                lane = &peer->lanes[i];
    }
    request->state = 0;
    request->status = SHOAL_OK;
    request->error = NULL;
    request->transferred_bytes = 0;
    request->link = lane;
    request->deadline_ms = deadline_after_ms(peer->tcp->env.progress_timeout_ms);
    lane->bytes += request->len_bytes;
    peer->outstanding++;
    if (request->wants_direct)
        tcp_direct_wish(&peer->direct);
    if (peer->is_closed)
        tcp_return(peer->tcp, request, SHOAL_CANCELED, NULL);
    else
        lane_queue(lane, request);
}

static void tcp_cancel(struct transport_peer *base, struct transport_request *request)
{
    struct tcp_peer *peer = peer_of(base);
    struct tcp_lane *lane = request->link;

    assert(loop_is_current(peer->tcp->env.loop));
    set_state(request, TCP_REQUEST_CANCEL);
    if (has_state(request, TCP_REQUEST_QUEUED)) {
        clear_state(request, TCP_REQUEST_QUEUED);
        list_remove(&request->node);
        tcp_return(peer->tcp, request, SHOAL_CANCELED, NULL);
    } else if (lane->client) {
        tcp_client_scan_cancels(lane->client);
    }
}

static void tcp_peer_abort(struct transport_peer *base)
{
    struct tcp_peer *peer = peer_of(base);

    for (unsigned i = 0; i < peer->tcp->lane_count; i++) {
        struct tcp_lane *lane = &peer->lanes[i];

        fail_queue(lane, SHOAL_CANCELED, NULL);
        if (lane->dial)
            endpoint_dial_cancel(lane->dial);
        abort_client(lane);
    }
    tcp_direct_abort(&peer->direct);
}

static enum shoal_status tcp_peer_open(struct transport *transport, const char *name, const char *address,
                                       uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    struct tcp *tcp = tcp_of(transport);
    struct tcp_peer *peer;

    if (strlen(name) > HELLO_NAME_MAX_BYTES || strlen(address) >= HOSTPORT_TEXT_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "name or address of the peer is too long");
    peer = calloc(1, sizeof *peer);
    if (!peer)
        return error_no_memory(error);
    peer->tcp = tcp;
    peer->instance = instance;
    memcpy(peer->name, name, strlen(name) + 1);
    memcpy(peer->address, address, strlen(address) + 1);
    for (unsigned i = 0; i < tcp->lane_count; i++) {
        peer->lanes[i].peer = peer;
        list_init(&peer->lanes[i].queue);
    }
    tcp_direct_pool_init(&peer->direct, tcp, peer->name, peer->address, instance);
    list_push_back(&tcp->peers, &peer->node);
    tcp_live(tcp, 1);
    *out = (struct transport_peer *)peer;
    return SHOAL_OK;
}

static void tcp_peer_close(struct transport_peer *base)
{
    struct tcp_peer *peer = peer_of(base);

    if (peer->is_closed)
        return;
    peer->is_closed = true;
    peer->tcp->closed_peers++;
    tcp_direct_close(&peer->direct);
    tcp_peer_abort(base);
    mutex_lock(&peer->tcp->mutex);
    post_outbox(peer->tcp);
    mutex_unlock(&peer->tcp->mutex);
}

/* --- direct connections --- */

struct tcp_direct_pool *tcp_direct_pool_of(struct transport_peer *peer)
{
    return &peer_of(peer)->direct;
}

void tcp_direct_freed(struct tcp *tcp)
{
    mutex_lock(&tcp->mutex);
    post_outbox(tcp);
    mutex_unlock(&tcp->mutex);
}

static void direct_tick(void *arg)
{
    struct tcp *tcp = arg;
    int64_t now_ms = clock_now_ms();
    bool is_late = now_ms - tcp->direct_ticked_ms > 2 * tcp_tick_ms(tcp) + 200, is_needed = false;

    tcp->direct_ticked_ms = now_ms;
    LIST_FOR_EACH (peer, &tcp->peers, struct tcp_peer, node) {
        tcp_direct_tick(&peer->direct, now_ms, is_late);
        is_needed |= !list_is_empty(&peer->direct.connections);
    }
    if (is_needed)
        tcp_direct_arm_tick(tcp);
}

void tcp_direct_arm_tick(struct tcp *tcp)
{
    int64_t tick_ms = tcp_tick_ms(tcp);

    if (loop_timer_is_running(&tcp->direct_tick))
        return;
    tcp->direct_ticked_ms = clock_now_ms();
    loop_timer_start(&tcp->direct_tick, tick_ms < TCP_DIRECT_TICK_MS ? tick_ms : TCP_DIRECT_TICK_MS);
}

struct tcp_notify {
    struct transport_request request;
    void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error);
    void *arg;
    uint8_t body[];
};

static void notify_done(struct transport_request *request, enum shoal_status status, const struct shoal_error *error)
{
    struct tcp_notify *notify = request->arg;

    notify->fn(notify->arg, status, error);
    free(notify);
}

static enum shoal_status tcp_notify(struct transport_peer *base, const char *name, const void *message, size_t len,
                                    void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error),
                                    void *arg, struct shoal_error *error)
{
    size_t name_len = strlen(name);
    struct tcp_notify *notify;

    if (name_len < 1 || name_len > DATA_NOTIFY_NAME_MAX_BYTES || len > DATA_NOTIFY_MAX_BYTES)
        return error_set(error, SHOAL_LIMIT, 0, "a notification has a name of 1..%d bytes and at most %d bytes",
                         DATA_NOTIFY_NAME_MAX_BYTES, DATA_NOTIFY_MAX_BYTES);
    notify = calloc(1, sizeof *notify + name_len + len);
    if (!notify)
        return error_no_memory(error);
    memcpy(notify->body, name, name_len);
    if (len)
        memcpy(notify->body + name_len, message, len);
    notify->fn = fn;
    notify->arg = arg;
    notify->request = (struct transport_request){.op = (enum shoal_op)TCP_OP_NOTIFY,
                                                 .local = notify->body,
                                                 .remote_key = name_len,
                                                 .len_bytes = name_len + len,
                                                 .done = notify_done,
                                                 .arg = notify};
    tcp_submit(base, &notify->request);
    return SHOAL_OK;
}

static bool tcp_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    (void)transport;
    (void)address;
    (void)instance;
    return true;
}

/* --- shards --- */

int64_t tcp_tick_ms(const struct tcp *tcp)
{
    int64_t interval = tcp->env.progress_timeout_ms / 4;

    return interval < 10 ? 10 : interval > 1000 ? 1000 : interval;
}

static void tick(void *arg)
{
    struct tcp_shard *shard = arg;
    struct tcp *tcp = shard->tcp;
    int64_t now_ms = clock_now_ms();
    /* This process was stopped or starved: what arrived meanwhile has not been looked at, so blame nobody yet. */
    bool is_late = now_ms - shard->ticked_ms > 2 * tcp_tick_ms(tcp) + 200;

    shard->ticked_ms = now_ms;
    LIST_FOR_EACH_SAFE (client, &shard->clients, struct tcp_client, node) {
        if (is_late)
            client->stream.moved_in_ms = now_ms;
        tcp_client_tick(client, now_ms);
    }
    for (struct list_node *node = shard->servers.head.next, *next; node != &shard->servers.head; node = next) {
        next = node->next;
        tcp_server_tick(tcp_server_of(node), now_ms, is_late);
    }
    if (!list_is_empty(&shard->clients) || !list_is_empty(&shard->servers))
        loop_timer_start(&shard->tick, tcp_tick_ms(tcp));
    tcp_run_outbox(tcp);
}

void tcp_shard_arm_tick(struct tcp_shard *shard)
{
    if (loop_timer_is_running(&shard->tick))
        return;
    shard->ticked_ms = clock_now_ms();
    loop_timer_start(&shard->tick, tcp_tick_ms(shard->tcp));
}

static void throttle(void *arg)
{
    struct tcp_shard *shard = arg;
    struct tcp *tcp = shard->tcp;

    tcp_shard_unthrottle(shard);
    tcp_run_outbox(tcp);
}

static void lend_check(void *arg)
{
    struct tcp_shard *shard = arg;

    if (upload_lend_stalled(&shard->tcp->uploads, clock_now_ms()))
        loop_timer_start(&shard->lend_check, TCP_LEND_CHECK_MS);
}

static void run_granted(void *arg)
{
    struct tcp_shard *shard = arg;
    struct upload_turn *turn;

    while ((turn = upload_take_granted(&shard->tcp->uploads, &shard->uploads)))
        tcp_server_granted(turn);
}

static void post_granted(void *arg)
{
    struct tcp_shard *shard = arg;

    loop_post(shard->loop, &shard->granted_task, run_granted, shard);
}

struct evict_call {
    struct tcp_shard *shard;
    const struct memory_region *region;
};

static void evict_on_shard(void *arg)
{
    struct evict_call *call = arg;

    for (struct list_node *node = call->shard->servers.head.next, *next; node != &call->shard->servers.head;
         node = next) {
        struct tcp_server *server = tcp_server_of(node);

        next = node->next;
        if (tcp_server_uses(server, call->region)) {
            tcp_count(&call->shard->tcp->counters.evictions, 1);
            tcp_server_close(server);
        }
    }
}

struct evict_direct_call {
    struct tcp *tcp;
    const struct memory_region *region;
};

static void evict_direct(void *arg)
{
    struct evict_direct_call *call = arg;

    LIST_FOR_EACH (peer, &call->tcp->peers, struct tcp_peer, node)
        tcp_direct_evict(&peer->direct, call->region);
}

static void tcp_evict(struct transport *transport, const struct memory_region *region)
{
    struct tcp *tcp = tcp_of(transport);
    struct evict_direct_call direct_call = {tcp, region};

    for (unsigned i = 0; i < tcp->env.data_loop_count; i++) {
        struct evict_call call = {&tcp->shards[i], region};
        loop_call(call.shard->loop, evict_on_shard, &call);
    }
    loop_call(tcp->env.loop, evict_direct, &direct_call);
}

static void accepted(void *arg, int fd, const struct hello *peer)
{
    struct tcp *tcp = arg;

    tcp_server_accept(&tcp->shards[tcp->next_shard++ % tcp->env.data_loop_count], fd, peer->name);
}

/* --- life --- */

struct start_call {
    struct tcp *tcp;
    enum shoal_status status;
    struct shoal_error *error;
};

struct shard_call {
    struct tcp_shard *shard;
    enum shoal_status status;
    struct shoal_error *error;
};

static void start_shard(void *arg)
{
    struct shard_call *call = arg;

    call->status = loop_timer_init(&call->shard->tick, call->shard->loop, tick, call->shard, call->error);
    if (call->status == SHOAL_OK)
        call->status = loop_timer_init(&call->shard->throttle, call->shard->loop, throttle, call->shard, call->error);
    if (call->status == SHOAL_OK)
        call->status =
            loop_timer_init(&call->shard->lend_check, call->shard->loop, lend_check, call->shard, call->error);
}

static void stop_shard(void *arg)
{
    struct tcp_shard *shard = arg;

    for (struct list_node *node = shard->servers.head.next, *next; node != &shard->servers.head; node = next) {
        next = node->next;
        tcp_server_close(tcp_server_of(node));
    }
    loop_timer_release(&shard->tick);
    loop_timer_release(&shard->throttle);
    loop_timer_release(&shard->lend_check);
}

static void start_direct(void *arg)
{
    struct start_call *call = arg;

    call->status = loop_timer_init(&call->tcp->direct_tick, call->tcp->env.loop, direct_tick, call->tcp, call->error);
}

static void stop_direct(void *arg)
{
    struct tcp *tcp = arg;

    loop_timer_release(&tcp->direct_tick);
}

static void stop_peers(void *arg)
{
    struct tcp *tcp = arg;

    LIST_FOR_EACH_SAFE (peer, &tcp->peers, struct tcp_peer, node)
        tcp_peer_close((struct transport_peer *)peer);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void tcp_free(struct tcp *tcp)
{
    for (unsigned i = 0; i < tcp->env.data_loop_count; i++)
        if (tcp->shards[i].tcp)
            loop_call(tcp->shards[i].loop, stop_shard, &tcp->shards[i]);
    /* Connections let go of their stages when they are closed; a stage ends when the device has ended its copies. */
    mutex_lock(&tcp->mutex);
    while (tcp->stages > 0)
        cond_wait(&tcp->changed, &tcp->mutex);
    mutex_unlock(&tcp->mutex);
    /* Each connection that went may have posted a grant to another's shard. */
    for (unsigned i = 0; i < tcp->env.data_loop_count; i++)
        if (tcp->shards[i].tcp)
            loop_call(tcp->shards[i].loop, nothing, NULL);
    loop_call(tcp->env.loop, stop_direct, tcp);
    mutex_release(&tcp->direct_mutex);
    upload_release(&tcp->uploads);
    rate_release(&tcp->upload_limit);
    rate_release(&tcp->download_limit);
    cond_release(&tcp->changed);
    mutex_release(&tcp->mutex);
    free(tcp->shards);
    free(tcp);
}

static enum shoal_status tcp_create(const struct transport_env *env, struct transport **out, struct shoal_error *error)
{
    struct tcp *tcp = calloc(1, sizeof *tcp);
    struct start_call start = {tcp, SHOAL_OK, error};

    if (!tcp)
        return error_no_memory(error);
    tcp->env = *env;
    tcp->env.args = NULL;
    tcp->lane_count = env->data_loop_count < TCP_LANES_MAX ? env->data_loop_count : TCP_LANES_MAX;
    list_init(&tcp->peers);
    list_init(&tcp->returned);
    list_init(&tcp->gone);
    mutex_init(&tcp->mutex, RANK_TRANSPORT);
    mutex_init(&tcp->direct_mutex, RANK_TRANSPORT);
    cond_init(&tcp->changed);
    upload_init(&tcp->uploads, env->upload_slots);
    rate_init(&tcp->upload_limit, env->upload_limit_bytes_per_s);
    rate_init(&tcp->download_limit, env->download_limit_bytes_per_s);
    tcp->shards = calloc(env->data_loop_count, sizeof *tcp->shards);
    if (!tcp->shards) {
        tcp->env.data_loop_count = 0;
        tcp_free(tcp);
        return error_no_memory(error);
    }
    for (unsigned i = 0; i < env->data_loop_count; i++) {
        struct shard_call call = {&tcp->shards[i], SHOAL_OK, error};

        *call.shard = (struct tcp_shard){.tcp = tcp, .loop = env->data_loops[i]};
        list_init(&call.shard->clients);
        list_init(&call.shard->servers);
        list_init(&call.shard->throttled);
        upload_group_init(&call.shard->uploads, post_granted, call.shard);
        loop_call(call.shard->loop, start_shard, &call);
        if (call.status != SHOAL_OK) {
            tcp_free(tcp);
            return call.status;
        }
    }
    loop_call(env->loop, start_direct, &start);
    if (start.status != SHOAL_OK) {
        tcp_free(tcp);
        return start.status;
    }
    endpoint_set_handler(env->endpoint, HELLO_CHANNEL_DATA, accepted, tcp);
    *out = (struct transport *)tcp;
    return SHOAL_OK;
}

static void tcp_destroy(struct transport *transport)
{
    struct tcp *tcp = tcp_of(transport);

    endpoint_set_handler(tcp->env.endpoint, HELLO_CHANNEL_DATA, NULL, NULL);
    loop_call(tcp->env.loop, stop_peers, tcp);
    mutex_lock(&tcp->mutex);
    while (tcp->live_objects > 0)
        cond_wait(&tcp->changed, &tcp->mutex);
    mutex_unlock(&tcp->mutex);
    loop_call(tcp->env.loop, nothing, NULL); /* an outbox task that was posted has run */
    tcp_free(tcp);
}

const struct transport_ops transport_tcp_ops = {
    .name = "tcp",
    .caps = TRANSPORT_CAP_READ | TRANSPORT_CAP_WRITE | TRANSPORT_CAP_CANCEL | TRANSPORT_CAP_NOTIFY |
            TRANSPORT_CAP_REMOTE | TRANSPORT_CAP_DIRECT,
    .create = tcp_create,
    .destroy = tcp_destroy,
    .is_reachable = tcp_is_reachable,
    .peer_open = tcp_peer_open,
    .peer_close = tcp_peer_close,
    .submit = tcp_submit,
    .cancel = tcp_cancel,
    .peer_abort = tcp_peer_abort,
    .notify = tcp_notify,
    .evict = tcp_evict,
    .metrics = tcp_metrics,
    .direct = &tcp_direct_ops,
};
