/* SPDX-License-Identifier: Apache-2.0 */
/* The local transport: its table, its life, what it counts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "transport/local_internal.h"

#define LOG_MODULE "local"

static struct local *local_of(struct transport *transport)
{
    return (struct local *)transport;
}

void local_live(struct local *local, int by)
{
    mutex_lock(&local->mutex);
    local->live_objects += (unsigned)by;
    if (local->live_objects == 0)
        cond_broadcast(&local->changed);
    mutex_unlock(&local->mutex);
}

/* --- the clock --- */

void local_arm_tick(struct local *local)
{
    if (!local->is_closing && !loop_timer_is_running(&local->tick))
        loop_timer_start(&local->tick, LOCAL_TICK_MS);
}

static void tick(void *arg)
{
    struct local *local = arg;
    uint64_t chunks = __atomic_load_n(&local->chunks, __ATOMIC_RELAXED);
    bool has_progress = chunks != local->ticked_chunks;
    int64_t now_ms = clock_now_ms();

    /* A connection that ends stays in its list until a later turn of the loop. */
    for (struct list_node *node = local->clients.head.next; node != &local->clients.head; node = node->next)
        local_client_tick(local_client_of_node(node), now_ms);
    for (struct list_node *node = local->servers.head.next; node != &local->servers.head; node = node->next)
        local_server_tick(local_server_of_node(node), now_ms, has_progress);
    local->ticked_chunks = chunks;
    if (!list_is_empty(&local->clients) || !list_is_empty(&local->servers))
        local_arm_tick(local);
}

/* --- upload slots --- */

static void lend_check(void *arg)
{
    struct local *local = arg;

    if (upload_lend_stalled(&local->uploads, clock_now_ms()))
        loop_timer_start(&local->lend_check, LOCAL_LEND_CHECK_MS);
}

static void run_granted(void *arg)
{
    struct local *local = arg;
    struct upload_turn *turn;

    while ((turn = upload_take_granted(&local->uploads, &local->turns)))
        local_server_granted(turn);
}

static void post_granted(void *arg)
{
    struct local *local = arg;

    loop_post(local->env.loop, &local->granted_task, run_granted, local);
}

/* --- life --- */

static void on_accept(void *arg, int fd, const struct hello *peer)
{
    local_server_accept(arg, fd, peer->name);
}

struct unshare_call {
    struct local *local;
    uint64_t id;
};

static void unshare_on_loop(void *arg)
{
    const struct unshare_call *call = arg;
    struct local *local = call->local;

    for (struct list_node *node = local->clients.head.next; node != &local->clients.head; node = node->next)
        local_share_revoke(local_client_link(local_client_of_node(node)), call->id);
    for (struct list_node *node = local->servers.head.next; node != &local->servers.head; node = node->next)
        local_share_revoke(local_server_link(local_server_of_node(node)), call->id);
}

/* Shared memory is freed: peers close their descriptors, or it would live on. */
static void on_freed(void *arg, uint64_t id)
{
    struct unshare_call call = {arg, id};

    loop_call(call.local->env.loop, unshare_on_loop, &call);
}

struct timer_call {
    struct local *local;
    enum shoal_status status;
    struct shoal_error *error;
};

static void make_timers(void *arg)
{
    struct timer_call *call = arg;
    struct local *local = call->local;

    call->status = loop_timer_init(&local->tick, local->env.loop, tick, local, call->error);
    if (call->status == SHOAL_OK)
        call->status = loop_timer_init(&local->lend_check, local->env.loop, lend_check, local, call->error);
}

static void close_on_loop(void *arg)
{
    struct local *local = arg;

    local->is_closing = true;
    loop_timer_release(&local->tick);
    loop_timer_release(&local->lend_check);
    local_close_all_peers(local);
    for (struct list_node *node = local->servers.head.next; node != &local->servers.head; node = node->next)
        local_link_fail(local_server_link(local_server_of_node(node)), SHOAL_CANCELED, NULL);
}

/* What was posted before has run. */
static void nothing(void *arg)
{
    (void)arg;
}

static void local_destroy(struct transport *transport)
{
    struct local *local = local_of(transport);

    if (local->has_handler)
        endpoint_set_handler(local->env.endpoint, HELLO_CHANNEL_LOCAL, NULL, NULL);
    shared_set_listener(local->env.shared, NULL, NULL);
    loop_call(local->env.loop, close_on_loop, local);
    mutex_lock(&local->mutex);
    while (local->live_objects > 0)
        cond_wait(&local->changed, &local->mutex);
    mutex_unlock(&local->mutex);
    loop_call(local->env.loop, nothing, NULL); /* granted_task */
    executor_destroy(local->executor);
    upload_release(&local->uploads);
    cond_release(&local->changed);
    mutex_release(&local->mutex);
    free(local);
}

static unsigned copy_threads(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return cpus < 2 ? 1 : cpus > LOCAL_THREADS_MAX ? LOCAL_THREADS_MAX : (unsigned)cpus;
}

static enum shoal_status local_create(const struct transport_env *env, struct transport **out,
                                      struct shoal_error *error)
{
    struct local *local = calloc(1, sizeof *local);
    struct timer_call call = {local, SHOAL_OK, error};
    const char *cma = getenv("SHOAL_LOCAL_CMA");
    enum shoal_status status;

    if (!local)
        return error_no_memory(error);
    local->env = *env;
    local->probe = random_id();
    local->has_cma = !cma || strcmp(cma, "0") != 0;
    local->is_limited = env->upload_limit_bytes_per_s || env->download_limit_bytes_per_s;
    local->thread_count = copy_threads();
    mutex_init(&local->mutex, RANK_TRANSPORT);
    cond_init(&local->changed);
    list_init(&local->peers);
    list_init(&local->clients);
    list_init(&local->servers);
    list_init(&local->copies);
    upload_init(&local->uploads, env->upload_slots);
    upload_group_init(&local->turns, post_granted, local);
    status = executor_create("shoal-copy", local->thread_count, (size_t)LOCAL_COPIES_MAX * LOCAL_THREADS_MAX,
                             &local->executor, error);
    if (status == SHOAL_OK) {
        loop_call(env->loop, make_timers, &call);
        status = call.status;
    }
    if (status == SHOAL_OK)
        status = endpoint_listen_local(env->endpoint, error);
    if (status != SHOAL_OK) {
        local_destroy((struct transport *)local);
        return status;
    }
    endpoint_set_handler(env->endpoint, HELLO_CHANNEL_LOCAL, on_accept, local);
    local->has_handler = true;
    shared_set_listener(env->shared, on_freed, local);
    *out = (struct transport *)local;
    return SHOAL_OK;
}

static bool local_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    (void)transport;
    (void)address;
    return endpoint_has_local(instance);
}

/* --- memory that goes --- */

struct revoke_call {
    struct local *local;
    const struct memory_region *region;
};

static void revoke_on_loop(void *arg)
{
    const struct revoke_call *call = arg;
    struct local *local = call->local;

    for (struct list_node *node = local->servers.head.next; node != &local->servers.head; node = node->next)
        local_server_revoke(local_server_of_node(node), call->region);
}

static void local_evict(struct transport *transport, const struct memory_region *region)
{
    struct revoke_call call = {local_of(transport), region};

    loop_call(call.local->env.loop, revoke_on_loop, &call);
}

/* --- metrics --- */

static bool local_metrics(struct transport *transport, struct buf *out)
{
    const struct local_counters *c = &local_of(transport)->counters;
    uint64_t slot_waits, slots_lent;
    const struct {
        const char *name, *labels, *kind, *help;
        const uint64_t *value;
    } rows[] = {
        {"requests_total", "{op=\"read\"}", "counter", "Requests of this node that completed.", &c->reads},
        {"requests_total", "{op=\"write\"}", NULL, NULL, &c->writes},
        {"bytes_total", "{op=\"read\"}", "counter", "Bytes moved by completed requests of this node.", &c->read_bytes},
        {"bytes_total", "{op=\"write\"}", NULL, NULL, &c->write_bytes},
        {"request_failures_total", "{kind=\"canceled\"}", "counter", "Requests that did not complete.", &c->canceled},
        {"request_failures_total", "{kind=\"timed_out\"}", NULL, NULL, &c->timed_out},
        {"request_failures_total", "{kind=\"unreachable\"}", NULL, NULL, &c->unreachable},
        {"request_failures_total", "{kind=\"refused\"}", NULL, NULL, &c->refused},
        {"request_failures_total", "{kind=\"unsupported\"}", NULL, NULL, &c->unsupported},
        {"request_failures_total", "{kind=\"other\"}", NULL, NULL, &c->failed},
        {"retries_total", "", "counter", "Requests repeated on a new connection.", &c->retries},
        {"served_total", "{op=\"read\"}", "counter", "Requests of peers that were served.", &c->served_reads},
        {"served_total", "{op=\"write\"}", NULL, NULL, &c->served_writes},
        {"served_bytes_total", "{op=\"read\"}", "counter", "Bytes served to peers.", &c->served_read_bytes},
        {"served_bytes_total", "{op=\"write\"}", NULL, NULL, &c->served_write_bytes},
        {"copied_bytes_total", "{way=\"attach\"}", "counter",
         "Bytes that this process copied: out of another's memory, or out of memory shared as a file.", &c->cma_bytes},
        {"copied_bytes_total", "{way=\"file\"}", NULL, NULL, &c->shared_bytes},
        {"serve_refusals_total", "", "counter", "Requests of peers that were refused.", &c->serve_refusals},
        {"serve_faults_total", "", "counter", "Registered memory that was found inaccessible.", &c->serve_faults},
        {"revocations_total", "", "counter", "Grants taken back since their memory was unregistered.", &c->revocations},
        {"evictions_total", "", "counter", "Connections closed since a grant was not given back.", &c->evictions},
        {"protocol_errors_total", "", "counter", "Connections closed for a violated protocol.", &c->protocol_errors},
        {"upload_slot_waits_total", "", "counter", "Turns to be granted READs that had to wait for an upload slot.",
         &slot_waits},
        {"upload_slots_lent_total", "", "counter", "Upload slots lent on because their peer took nothing.",
         &slots_lent},
        {"connections", "{side=\"client\"}", "gauge", "Open local connections.", &c->client_connections},
        {"connections", "{side=\"server\"}", NULL, NULL, &c->server_connections},
    };

    upload_counters(&local_of(transport)->uploads, &slot_waits, &slots_lent);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].kind &&
            !buf_append_format(out, "# HELP shoal_transport_local_%s %s\n# TYPE shoal_transport_local_%s %s\n",
                               rows[i].name, rows[i].help, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_transport_local_%s%s %" PRIu64 "\n", rows[i].name, rows[i].labels,
                               __atomic_load_n(rows[i].value, __ATOMIC_RELAXED)))
            return false;
    }
    return true;
}

const struct transport_ops transport_local_ops = {
    .name = "local",
    .caps = TRANSPORT_CAP_READ | TRANSPORT_CAP_WRITE | TRANSPORT_CAP_CANCEL,
    .create = local_create,
    .destroy = local_destroy,
    .is_reachable = local_is_reachable,
    .peer_open = local_peer_open,
    .peer_close = local_peer_close,
    .accepts = local_accepts,
    .submit = local_submit,
    .cancel = local_cancel,
    .peer_abort = local_peer_abort,
    .evict = local_evict,
    .metrics = local_metrics,
};
