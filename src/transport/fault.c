/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"

#define RULES_MAX 32

struct active_rule {
    struct fault_rule rule;
    uint64_t seen, applied;
};

struct fault {
    struct transport_env env;
    const struct transport_ops *inner_ops;
    struct transport *inner; /* owned */
    uint64_t instance;
    struct list_node node; /* in fault_instances */
    unsigned live;         /* under fault_mutex: peers that are not freed */
    struct list peers;     /* loop 0 */
    /* under fault_mutex */
    struct active_rule rules[RULES_MAX];
    size_t rule_count;
    struct random random;
    uint64_t applied;
};

struct fault_peer {
    struct fault *fault;
    struct list_node node;        /* in fault->peers */
    struct transport_peer *inner; /* owned */
    struct list requests;         /* struct fault_request */
    struct loop_task task;
    bool is_closed;
};

enum request_state {
    REQUEST_INSIDE,  /* the inner transport has it */
    REQUEST_WAITING, /* stalled or delayed: the timer runs */
    REQUEST_ENDING,  /* its end is posted */
};

struct fault_request {
    struct list_node node;
    struct transport_request inner;
    struct transport_request *outer;
    struct fault_peer *peer;
    struct loop_timer timer;
    struct loop_task task;
    struct fault_rule rule;
    bool has_rule;
    enum request_state state;
    enum shoal_status status; /* for REQUEST_ENDING */
};

static pthread_mutex_t fault_mutex = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static pthread_cond_t fault_changed = PTHREAD_COND_INITIALIZER;
static struct list fault_instances = {{&fault_instances.head, &fault_instances.head}};

/* --- rules --- */

static struct fault *find_locked(uint64_t instance)
{
    LIST_FOR_EACH (fault, &fault_instances, struct fault, node) {
        if (fault->instance == instance)
            return fault;
    }
    return NULL;
}

bool fault_add_rule(uint64_t instance, const struct fault_rule *rule)
{
    struct fault *fault;
    bool is_added;

    pthread_mutex_lock(&fault_mutex);
    fault = find_locked(instance);
    is_added = fault && fault->rule_count < RULES_MAX;
    if (is_added)
        fault->rules[fault->rule_count++] = (struct active_rule){.rule = *rule};
    pthread_mutex_unlock(&fault_mutex);
    return is_added;
}

bool fault_clear_rules(uint64_t instance, uint64_t seed)
{
    struct fault *fault;

    pthread_mutex_lock(&fault_mutex);
    fault = find_locked(instance);
    if (fault) {
        fault->rule_count = 0;
        random_init(&fault->random, seed);
    }
    pthread_mutex_unlock(&fault_mutex);
    return fault != NULL;
}

uint64_t fault_applied(uint64_t instance)
{
    struct fault *fault;
    uint64_t applied;

    pthread_mutex_lock(&fault_mutex);
    fault = find_locked(instance);
    applied = fault ? fault->applied : 0;
    pthread_mutex_unlock(&fault_mutex);
    return applied;
}

static bool applies(struct fault *fault, struct active_rule *active, enum shoal_op op)
{
    const struct fault_rule *rule = &active->rule;
    uint64_t times = rule->times ? rule->times : rule->nth ? 1 : UINT64_MAX;

    if (rule->ops && !(rule->ops & 1u << op))
        return false;
    active->seen++;
    if (active->applied >= times || (rule->nth && active->seen < rule->nth))
        return false;
    if (!rule->nth && rule->percent && random_below(&fault->random, 100) >= rule->percent)
        return false;
    active->applied++;
    return true;
}

static bool pick_rule(struct fault *fault, enum shoal_op op, struct fault_rule *rule_out, uint64_t *random_out)
{
    bool is_found = false;

    pthread_mutex_lock(&fault_mutex);
    for (size_t i = 0; i < fault->rule_count && !is_found; i++) {
        is_found = applies(fault, &fault->rules[i], op);
        if (is_found)
            *rule_out = fault->rules[i].rule;
    }
    if (is_found) {
        fault->applied++;
        *random_out = random_next(&fault->random);
    }
    pthread_mutex_unlock(&fault_mutex);
    return is_found;
}

/* --- requests --- */

static struct fault_peer *peer_of(struct transport_peer *base)
{
    return (struct fault_peer *)base;
}

static void peer_reap(struct fault_peer *peer)
{
    struct fault *fault = peer->fault;

    if (!peer->is_closed || !list_is_empty(&peer->requests))
        return;
    fault->inner_ops->peer_close(peer->inner);
    list_remove(&peer->node);
    free(peer);
    pthread_mutex_lock(&fault_mutex);
    if (--fault->live == 0)
        pthread_cond_broadcast(&fault_changed);
    pthread_mutex_unlock(&fault_mutex);
}

static void request_end(struct fault_request *request, enum shoal_status status, const struct shoal_error *error)
{
    struct transport_request *outer = request->outer;
    struct fault_peer *peer = request->peer;

    outer->transferred_bytes = request->inner.transferred_bytes;
    outer->refusal = request->inner.refusal;
    outer->is_refused_once = request->inner.is_refused_once;
    loop_timer_release(&request->timer);
    request->state = REQUEST_ENDING;
    outer->done(outer, status, error); /* may close the peer, which lives as long as it has requests */
    list_remove(&request->node);
    free(request);
    peer_reap(peer);
}

static void end_posted(void *arg)
{
    struct fault_request *request = arg;
    struct shoal_error error;

    error_set(&error, request->status, 0, "injected fault");
    request_end(request, request->status, &error);
}

static void post_end(struct fault_request *request, enum shoal_status status)
{
    request->state = REQUEST_ENDING;
    request->status = status;
    loop_timer_stop(&request->timer);
    loop_post(request->peer->fault->env.loop, &request->task, end_posted, request);
}

static void inner_done(struct transport_request *inner, enum shoal_status status, const struct shoal_error *error)
{
    struct fault_request *request = inner->arg;
    struct shoal_error dropped;

    if (status == SHOAL_OK && request->has_rule && request->rule.kind == FAULT_CORRUPT && inner->op == SHOAL_OP_READ)
        ((uint8_t *)inner->local)[inner->id % inner->len_bytes] ^= 0x40;
    if (status == SHOAL_CANCELED && request->has_rule && request->rule.kind == FAULT_DROP) {
        status = error_set(&dropped, SHOAL_UNREACHABLE, 0, "injected fault: connection dropped");
        error = &dropped;
    }
    request_end(request, status, error);
}

static void go_inside(struct fault_request *request)
{
    struct fault_peer *peer = request->peer;

    request->state = REQUEST_INSIDE;
    peer->fault->inner_ops->submit(peer->inner, &request->inner);
}

static void timer_fired(void *arg)
{
    struct fault_request *request = arg;

    if (request->rule.kind == FAULT_DELAY)
        go_inside(request);
    else
        post_end(request, SHOAL_TIMED_OUT);
}

static void wait_for(struct fault_request *request, int64_t delay_ms)
{
    if (loop_timer_init(&request->timer, request->peer->fault->env.loop, timer_fired, request, NULL) != SHOAL_OK) {
        post_end(request, SHOAL_NO_MEMORY);
        return;
    }
    request->state = REQUEST_WAITING;
    loop_timer_start(&request->timer, delay_ms);
}

static void no_memory(void *arg)
{
    struct transport_request *request = arg;

    request->done(request, SHOAL_NO_MEMORY, NULL);
}

/* Marks all requests of the peer, so that they end as if the connection had broken. */
static void drop_peer(struct fault_peer *peer)
{
    LIST_FOR_EACH (request, &peer->requests, struct fault_request, node) {
        request->has_rule = true;
        request->rule.kind = FAULT_DROP;
    }
    peer->fault->inner_ops->peer_abort(peer->inner);
}

static bool fault_accepts(struct transport_peer *base, const struct transport_request *request)
{
    struct fault_peer *peer = peer_of(base);

    return peer->fault->inner_ops->accepts(peer->inner, request);
}

static void fault_submit(struct transport_peer *base, struct transport_request *outer)
{
    struct fault_peer *peer = peer_of(base);
    struct fault *fault = peer->fault;
    struct fault_request *request = calloc(1, sizeof *request);
    uint64_t random = 0;

    outer->link = request;
    if (!request) {
        loop_post(fault->env.loop, &outer->task, no_memory, outer);
        return;
    }
    request->outer = outer;
    request->peer = peer;
    request->inner = (struct transport_request){.op = outer->op,
                                                .local = outer->local,
                                                .remote_addr = outer->remote_addr,
                                                .remote_key = outer->remote_key,
                                                .len_bytes = outer->len_bytes,
                                                .done = inner_done,
                                                .arg = request};
    list_push_back(&peer->requests, &request->node);
    request->has_rule = pick_rule(fault, outer->op, &request->rule, &random);
    if (peer->is_closed) {
        post_end(request, SHOAL_CANCELED);
        return;
    }
    if (!request->has_rule) {
        go_inside(request);
        return;
    }
    switch (request->rule.kind) {
    case FAULT_FAIL:
        post_end(request, request->rule.status == SHOAL_OK ? SHOAL_UNREACHABLE : request->rule.status);
        break;
    case FAULT_STALL:
        wait_for(request, fault->env.progress_timeout_ms);
        break;
    case FAULT_DELAY:
        wait_for(request, request->rule.delay_ms);
        break;
    case FAULT_DROP:
        go_inside(request);
        drop_peer(peer);
        break;
    case FAULT_CORRUPT:
        go_inside(request);
        request->inner.id = random; /* free for us: no inner transport reads it before done */
        break;
    }
}

static void cancel_request(struct fault_request *request)
{
    struct fault_peer *peer = request->peer;

    if (request->state == REQUEST_WAITING)
        post_end(request, SHOAL_CANCELED);
    else if (request->state == REQUEST_INSIDE)
        peer->fault->inner_ops->cancel(peer->inner, &request->inner);
}

static void fault_cancel(struct transport_peer *base, struct transport_request *outer)
{
    (void)base;
    if (outer->link)
        cancel_request(outer->link);
}

static void fault_peer_abort(struct transport_peer *base)
{
    struct fault_peer *peer = peer_of(base);

    LIST_FOR_EACH (request, &peer->requests, struct fault_request, node) {
        if (request->state == REQUEST_WAITING)
            cancel_request(request);
    }
    peer->fault->inner_ops->peer_abort(peer->inner);
}

/* --- peers and life --- */

static enum shoal_status fault_peer_open(struct transport *transport, const char *name, const char *address,
                                         uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    struct fault *fault = (struct fault *)transport;
    struct fault_peer *peer = calloc(1, sizeof *peer);
    enum shoal_status status;

    if (!peer)
        return error_no_memory(error);
    peer->fault = fault;
    list_init(&peer->requests);
    status = fault->inner_ops->peer_open(fault->inner, name, address, instance, &peer->inner, error);
    if (status != SHOAL_OK) {
        free(peer);
        return status;
    }
    list_push_back(&fault->peers, &peer->node);
    pthread_mutex_lock(&fault_mutex);
    fault->live++;
    pthread_mutex_unlock(&fault_mutex);
    *out = (struct transport_peer *)peer;
    return SHOAL_OK;
}

static void reap_posted(void *arg)
{
    peer_reap(arg);
}

static void fault_peer_close(struct transport_peer *base)
{
    struct fault_peer *peer = peer_of(base);

    if (peer->is_closed)
        return;
    fault_peer_abort(base);
    peer->is_closed = true;
    if (list_is_empty(&peer->requests))
        loop_post(peer->fault->env.loop, &peer->task, reap_posted, peer);
}

static bool fault_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    struct fault *fault = (struct fault *)transport;

    return fault->inner_ops->is_reachable(fault->inner, address, instance);
}

static enum shoal_status fault_notify(struct transport_peer *base, const char *name, const void *message, size_t len,
                                      void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error),
                                      void *arg, struct shoal_error *error)
{
    struct fault_peer *peer = peer_of(base);

    return peer->fault->inner_ops->notify(peer->inner, name, message, len, fn, arg, error);
}

static void fault_evict(struct transport *transport, const struct memory_region *region)
{
    struct fault *fault = (struct fault *)transport;

    fault->inner_ops->evict(fault->inner, region);
}

static enum shoal_status fault_create(const struct transport_env *env, struct transport **out,
                                      struct shoal_error *error)
{
    const char *name = env->args ? env->args : "tcp";
    struct fault *fault = calloc(1, sizeof *fault);
    struct transport_env inner_env = *env;
    enum shoal_status status;

    if (!fault)
        return error_no_memory(error);
    fault->env = *env;
    fault->instance = endpoint_instance(env->endpoint);
    fault->inner_ops = transport_find(name);
    list_init(&fault->peers);
    random_init(&fault->random, 1);
    inner_env.args = NULL;
    if (fault->inner_ops && fault->inner_ops != transport_find("fault"))
        status = fault->inner_ops->create(&inner_env, &fault->inner, error);
    else
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "unknown transport '%.64s'", name);
    if (status != SHOAL_OK) {
        free(fault);
        return status;
    }
    pthread_mutex_lock(&fault_mutex);
    list_push_back(&fault_instances, &fault->node);
    pthread_mutex_unlock(&fault_mutex);
    *out = (struct transport *)fault;
    return SHOAL_OK;
}

static void close_peers(void *arg)
{
    struct fault *fault = arg;

    LIST_FOR_EACH (peer, &fault->peers, struct fault_peer, node)
        fault_peer_close((struct transport_peer *)peer);
}

static void fault_destroy(struct transport *transport)
{
    struct fault *fault = (struct fault *)transport;

    loop_call(fault->env.loop, close_peers, fault);
    pthread_mutex_lock(&fault_mutex);
    while (fault->live > 0)
        pthread_cond_wait(&fault_changed, &fault_mutex);
    list_remove(&fault->node);
    pthread_mutex_unlock(&fault_mutex);
    fault->inner_ops->destroy(fault->inner);
    free(fault);
}

const struct transport_ops transport_fault_ops = {
    .name = "fault",
    .caps =
        TRANSPORT_CAP_READ | TRANSPORT_CAP_WRITE | TRANSPORT_CAP_CANCEL | TRANSPORT_CAP_NOTIFY | TRANSPORT_CAP_REMOTE,
    .create = fault_create,
    .destroy = fault_destroy,
    .is_reachable = fault_is_reachable,
    .peer_open = fault_peer_open,
    .peer_close = fault_peer_close,
    .accepts = fault_accepts,
    .submit = fault_submit,
    .cancel = fault_cancel,
    .peer_abort = fault_peer_abort,
    .notify = fault_notify,
    .evict = fault_evict,
};
