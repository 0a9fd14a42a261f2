/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine sees of the UCX transport: its life, peers, and the way of requests to and from ucx's loop. Both
 * names are the same code; "rdma" wants RDMA devices, "ucx" takes whatever UCX finds. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/ucx_internal.h"

#define LOG_MODULE "ucx"
#define ONE_SIDED " one-sided"
#define MAPPER_THREADS 2
#define MAPPER_QUEUE_MAX 4096
#define TICK_MAX_MS 1000
#define TICK_MIN_MS 20

void ucx_live(struct ucx *ucx, int by)
{
    mutex_lock(&ucx->mutex);
    ucx->live += (unsigned)by;
    if (ucx->live == 0)
        cond_broadcast(&ucx->changed);
    mutex_unlock(&ucx->mutex);
}

int64_t ucx_tick_ms(const struct ucx *ucx)
{
    int64_t tick_ms = ucx->env.progress_timeout_ms / 8;

    return tick_ms > TICK_MAX_MS ? TICK_MAX_MS : tick_ms < TICK_MIN_MS ? TICK_MIN_MS : tick_ms;
}

/* --- requests --- */

static void count_outcome(struct ucx *ucx, const struct ucx_transfer *transfer)
{
    struct ucx_counters *c = &ucx->counters;
    int64_t bytes = (int64_t)transfer->request->len_bytes;
    bool is_read = transfer->request->op == SHOAL_OP_READ;

    switch (transfer->status) {
    case SHOAL_OK:
        ucx_count(is_read ? &c->reads : &c->writes, 1);
        ucx_count(is_read ? &c->read_bytes : &c->write_bytes, bytes);
        break;
    case SHOAL_CANCELED:
        ucx_count(&c->canceled, 1);
        break;
    case SHOAL_TIMED_OUT:
        ucx_count(&c->timed_out, 1);
        break;
    case SHOAL_UNREACHABLE:
        ucx_count(&c->unreachable, 1);
        break;
    case SHOAL_INVALID_ARGUMENT:
    case SHOAL_UNSUPPORTED:
        ucx_count(&c->refused, 1);
        break;
    default:
        ucx_count(&c->failed, 1);
        break;
    }
}

static void run_outbox(void *arg)
{
    struct ucx *ucx = arg;
    struct list done;
    struct list_node *node;

    list_init(&done);
    mutex_lock(&ucx->mutex);
    ucx->is_outbox_posted = false;
    while ((node = list_pop_front(&ucx->outbox)))
        list_push_back(&done, node);
    mutex_unlock(&ucx->mutex);
    while ((node = list_pop_front(&done))) {
        struct ucx_transfer *transfer = container_of(node, struct ucx_transfer, node);
        struct transport_request *request = transfer->request;
        struct ucx_peer *peer = transfer->peer;

        count_outcome(ucx, transfer);
        request->link = NULL;
        request->done(request, transfer->status, transfer->status == SHOAL_OK ? NULL : &transfer->error);
        free(transfer);
        ucx_peer_unref(peer);
    }
}

void ucx_transfer_return(struct ucx_transfer *transfer)
{
    struct ucx *ucx = transfer->peer->ucx;
    bool is_first;

    mutex_lock(&ucx->mutex);
    list_push_back(&ucx->outbox, &transfer->node);
    is_first = !ucx->is_outbox_posted;
    ucx->is_outbox_posted = true;
    if (is_first)
        loop_post(ucx->env.loop, &ucx->outbox_task, run_outbox, ucx);
    mutex_unlock(&ucx->mutex);
}

static void run_inbox(void *arg)
{
    struct ucx *ucx = arg;
    struct list fresh;
    struct list_node *node;

    list_init(&fresh);
    mutex_lock(&ucx->mutex);
    ucx->is_inbox_posted = false;
    while ((node = list_pop_front(&ucx->inbox)))
        list_push_back(&fresh, node);
    mutex_unlock(&ucx->mutex);
    while ((node = list_pop_front(&fresh))) {
        struct ucx_transfer *transfer = container_of(node, struct ucx_transfer, node);

        list_push_back(&transfer->peer->transfers, &transfer->peer_node);
        ucx_client_start(transfer);
    }
}

static void no_memory(void *arg)
{
    struct transport_request *request = arg;

    request->done(request, SHOAL_NO_MEMORY, NULL);
}

static struct ucx_peer *peer_of(struct transport_peer *base)
{
    return (struct ucx_peer *)base;
}

static void ucx_submit(struct transport_peer *base, struct transport_request *request)
{
    struct ucx_peer *peer = peer_of(base);
    struct ucx *ucx = peer->ucx;
    struct ucx_transfer *transfer = calloc(1, sizeof *transfer);

    request->transferred_bytes = 0;
    request->link = transfer;
    if (!transfer) {
        loop_post(ucx->env.loop, &request->task, no_memory, request);
        return;
    }
    transfer->peer = peer;
    transfer->request = request;
    list_node_init(&transfer->peer_node);
    __atomic_add_fetch(&peer->refs, 1, __ATOMIC_RELAXED);
    mutex_lock(&ucx->mutex);
    list_push_back(&ucx->inbox, &transfer->node);
    if (!ucx->is_inbox_posted)
        loop_post(ucx->loop, &ucx->inbox_task, run_inbox, ucx);
    ucx->is_inbox_posted = true;
    mutex_unlock(&ucx->mutex);
}

static void run_scan(void *arg)
{
    struct ucx *ucx = arg;

    mutex_lock(&ucx->mutex);
    ucx->is_scan_posted = false;
    mutex_unlock(&ucx->mutex);
    ucx_client_scan(ucx);
}

static void ucx_cancel(struct transport_peer *base, struct transport_request *request)
{
    struct ucx *ucx = peer_of(base)->ucx;
    struct ucx_transfer *transfer = request->link;

    if (!transfer)
        return;
    __atomic_store_n(&transfer->is_canceled, true, __ATOMIC_RELAXED); /* the posted task orders it */
    mutex_lock(&ucx->mutex);
    if (!ucx->is_scan_posted)
        loop_post(ucx->loop, &ucx->scan_task, run_scan, ucx);
    ucx->is_scan_posted = true;
    mutex_unlock(&ucx->mutex);
}

/* --- peers --- */

void ucx_peer_unref(struct ucx_peer *peer)
{
    struct ucx *ucx = peer->ucx;

    if (__atomic_sub_fetch(&peer->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(peer);
    ucx_live(ucx, -1);
}

static bool ucx_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    const struct ucx *ucx = (const struct ucx *)transport;

    (void)address;
    (void)instance;
    /* One-sided accesses pass by every rate limit. */
    return !ucx->env.upload_limit_bytes_per_s && !ucx->env.download_limit_bytes_per_s;
}

static enum shoal_status ucx_peer_open(struct transport *transport, const char *name, const char *address,
                                       uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct ucx_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return error_no_memory(error);
    peer->ucx = ucx;
    peer->refs = 1;
    peer->instance = instance;
    memcpy(peer->name, name, strnlen(name, sizeof peer->name - 1));
    memcpy(peer->address, address, strnlen(address, sizeof peer->address - 1));
    list_init(&peer->transfers);
    list_push_back(&ucx->peers, &peer->node);
    ucx_live(ucx, 1);
    *out = (struct transport_peer *)peer;
    return SHOAL_OK;
}

static void abort_posted(void *arg)
{
    struct ucx_peer *peer = arg;

    mutex_lock(&peer->ucx->mutex);
    peer->is_abort_posted = false;
    mutex_unlock(&peer->ucx->mutex);
    ucx_client_end(peer, SHOAL_CANCELED);
    ucx_peer_unref(peer);
}

static void ucx_peer_abort(struct transport_peer *base)
{
    struct ucx_peer *peer = peer_of(base);

    mutex_lock(&peer->ucx->mutex);
    if (!peer->is_abort_posted) {
        __atomic_add_fetch(&peer->refs, 1, __ATOMIC_RELAXED);
        loop_post(peer->ucx->loop, &peer->abort_task, abort_posted, peer);
    }
    peer->is_abort_posted = true;
    mutex_unlock(&peer->ucx->mutex);
}

static void close_posted(void *arg)
{
    struct ucx_peer *peer = arg;

    ucx_client_end(peer, SHOAL_CANCELED);
    ucx_peer_unref(peer);
}

static void ucx_peer_close(struct transport_peer *base)
{
    struct ucx_peer *peer = peer_of(base);

    if (peer->is_closed)
        return;
    peer->is_closed = true;
    list_remove(&peer->node);
    loop_post(peer->ucx->loop, &peer->close_task, close_posted, peer);
}

/* --- eviction --- */

struct evict_call {
    struct ucx *ucx;
    const struct memory_region *region;
};

static void evict_on_loop(void *arg)
{
    struct evict_call *call = arg;

    ucx_serving_revoke(call->ucx, call->region);
}

static void ucx_evict(struct transport *transport, const struct memory_region *region)
{
    struct evict_call call = {(struct ucx *)transport, region};

    loop_call(call.ucx->loop, evict_on_loop, &call);
}

/* --- life --- */

static void tick(void *arg)
{
    struct ucx *ucx = arg;
    int64_t now_ms = clock_now_ms(), tick_ms = ucx_tick_ms(ucx);
    /* We were stopped, or starved: the silence is not the peers' fault. */
    bool is_late = now_ms - ucx->ticked_ms > 2 * tick_ms + TICK_MAX_MS;

    ucx->ticked_ms = now_ms;
    ucx_client_tick(ucx, now_ms, is_late);
    ucx_serving_tick(ucx, now_ms, is_late);
    loop_timer_start(&ucx->tick, tick_ms);
}

struct start_call {
    struct ucx *ucx;
    enum shoal_status status;
    struct shoal_error *error;
};

/* Opens the devices of memory whose location is not known, so that what cannot work is said at once. */
static void start_on_loop(void *arg)
{
    struct start_call *call = arg;
    struct ucx *ucx = call->ucx;
    unsigned set;

    call->status = ucx_set_choose(ucx, "*", false, &set, call->error);
    if (call->status == SHOAL_OK)
        call->status = ucx_set_open(ucx, set, call->error);
    if (call->status != SHOAL_OK && ucx->has_fallback && ucx_set_choose(ucx, "*", true, &set, NULL) == SHOAL_OK &&
        ucx_set_open(ucx, set, NULL) == SHOAL_OK)
        call->status = SHOAL_OK;
    if (call->status == SHOAL_OK)
        call->status = loop_timer_init(&ucx->tick, ucx->loop, tick, ucx, call->error);
    if (call->status != SHOAL_OK)
        return;
    ucx->ticked_ms = clock_now_ms();
    loop_timer_start(&ucx->tick, ucx_tick_ms(ucx));
}

static void close_peers(void *arg)
{
    struct ucx *ucx = arg;
    struct list_node *node;

    while ((node = list_first(&ucx->peers)))
        ucx_peer_close((struct transport_peer *)container_of(node, struct ucx_peer, node));
}

static void close_on_loop(void *arg)
{
    struct ucx *ucx = arg;

    ucx->is_closing = true;
    ucx_serving_close_all(ucx);
}

static void release_on_loop(void *arg)
{
    struct ucx *ucx = arg;

    loop_timer_release(&ucx->tick);
    ucx_sets_release(ucx);
}

static void nothing(void *arg)
{
    (void)arg;
}

static void ucx_destroy(struct transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;

    if (!ucx)
        return;
    if (ucx->is_serving)
        endpoint_set_handler(ucx->env.endpoint, HELLO_CHANNEL_UCX, NULL, NULL);
    loop_call(ucx->env.loop, close_peers, ucx);
    if (ucx->loop)
        loop_call(ucx->loop, close_on_loop, ucx);
    mutex_lock(&ucx->mutex);
    while (ucx->live > 0)
        cond_wait(&ucx->changed, &ucx->mutex);
    mutex_unlock(&ucx->mutex);
    loop_call(ucx->env.loop, nothing, NULL); /* what was posted there before has run */
    executor_destroy(ucx->mapper);
    if (ucx->loop)
        loop_call(ucx->loop, release_on_loop, ucx);
    loop_destroy(ucx->loop);
    nic_matrix_destroy(ucx->matrix);
    map_release(&ucx->mappings);
    cond_release(&ucx->changed);
    mutex_release(&ucx->mutex);
    free(ucx->tls);
    free(ucx);
}

/* args: [ "tls=" UCX_TLS ] [ " one-sided" ] [ NIC priority matrix ]. one-sided: by UCX's get and put, also where UCX
 * does them in software, which is for tests of them on machines without RDMA devices. */
static enum shoal_status parse_args(struct ucx *ucx, const char *args, struct shoal_error *error)
{
    enum shoal_status status;

    while (args && isspace((unsigned char)*args))
        args++;
    if (!args || !*args)
        return SHOAL_OK;
    if (strncmp(args, "tls=", 4) == 0) {
        size_t len = strcspn(args + 4, " \t\n{");

        if (len == 0)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tls= names no transport of UCX");
        ucx->tls = strndup(args + 4, len);
        if (!ucx->tls)
            return error_no_memory(error);
        args += 4 + len;
    }
    if (strncmp(args, ONE_SIDED, strlen(ONE_SIDED)) == 0) {
        ucx->is_one_sided = true;
        args += strlen(ONE_SIDED);
    }
    status = nic_matrix_parse(args, strlen(args), &ucx->matrix, error);
    if (status == SHOAL_OK && nic_matrix_is_empty(ucx->matrix)) {
        nic_matrix_destroy(ucx->matrix);
        ucx->matrix = NULL;
    }
    return status;
}

static enum shoal_status create(const struct transport_env *env, const char *name, struct transport **out,
                                struct shoal_error *error)
{
    struct ucx *ucx = calloc(1, sizeof *ucx);
    struct start_call start = {ucx, SHOAL_OK, error};
    enum shoal_status status;

    if (!ucx)
        return error_no_memory(error);
    ucx->env = *env;
    ucx->env.args = NULL;
    ucx->name = name;
    ucx->is_one_sided = strcmp(name, "rdma") == 0;
    mutex_init(&ucx->mutex, RANK_TRANSPORT);
    cond_init(&ucx->changed);
    list_init(&ucx->conns);
    list_init(&ucx->servings);
    list_init(&ucx->peers);
    list_init(&ucx->inbox);
    list_init(&ucx->outbox);
    map_init(&ucx->mappings);
    status = parse_args(ucx, env->args, error);
    if (status == SHOAL_OK)
        status = ucx_sets_check(ucx, error);
    if (status != SHOAL_OK)
        goto destroy;
    ucx->lib = ucx_lib_load(error);
    if (!ucx->lib) {
        status = SHOAL_UNSUPPORTED;
        goto destroy;
    }
    status = executor_create("shoal-ucx-map", MAPPER_THREADS, MAPPER_QUEUE_MAX, &ucx->mapper, error);
    if (status == SHOAL_OK)
        status = loop_create("shoal-ucx", &ucx->loop, error);
    if (status != SHOAL_OK)
        goto destroy;
    loop_call(ucx->loop, start_on_loop, &start);
    status = start.status;
    if (status != SHOAL_OK)
        goto destroy;
    if (env->upload_limit_bytes_per_s || env->download_limit_bytes_per_s)
        LOG_INFO("%s: not used, since this node has a rate limit", name);
    else
        endpoint_set_handler(env->endpoint, HELLO_CHANNEL_UCX, ucx_serving_accept, ucx);
    ucx->is_serving = ucx_is_reachable((struct transport *)ucx, NULL, 0);
    *out = (struct transport *)ucx;
    return SHOAL_OK;

destroy:
    ucx_destroy((struct transport *)ucx);
    return status;
}

static enum shoal_status ucx_create(const struct transport_env *env, struct transport **out, struct shoal_error *error)
{
    return create(env, "ucx", out, error);
}

static enum shoal_status rdma_create(const struct transport_env *env, struct transport **out, struct shoal_error *error)
{
    return create(env, "rdma", out, error);
}

#define CAPS (TRANSPORT_CAP_READ | TRANSPORT_CAP_WRITE | TRANSPORT_CAP_CANCEL | TRANSPORT_CAP_REMOTE)

const struct transport_ops transport_ucx_ops = {
    .name = "ucx",
    .caps = CAPS,
    .create = ucx_create,
    .destroy = ucx_destroy,
    .is_reachable = ucx_is_reachable,
    .peer_open = ucx_peer_open,
    .peer_close = ucx_peer_close,
    .submit = ucx_submit,
    .cancel = ucx_cancel,
    .peer_abort = ucx_peer_abort,
    .evict = ucx_evict,
    .metrics = ucx_metrics,
};

const struct transport_ops transport_rdma_ops = {
    .name = "rdma",
    .caps = CAPS,
    .create = rdma_create,
    .destroy = ucx_destroy,
    .is_reachable = ucx_is_reachable,
    .peer_open = ucx_peer_open,
    .peer_close = ucx_peer_close,
    .submit = ucx_submit,
    .cancel = ucx_cancel,
    .peer_abort = ucx_peer_abort,
    .evict = ucx_evict,
    .metrics = ucx_metrics,
};
