/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mutex.h"

#define STEP_BYTES (256u << 10)
#define NAME_MAX_BYTES 319

struct mem {
    struct transport_env env;
    struct list_node node; /* in mem_instances */
    uint64_t instance;
    /* under mem_mutex */
    unsigned users; /* transfers of others that use our memory */
    bool is_closing;
    /* loop 0 */
    struct list peers;
    /* under mem_mutex: peers that live */
    unsigned live;
};

struct mem_peer {
    struct mem *mem;
    struct list_node node; /* in mem->peers */
    uint64_t instance;
    char own_name[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1];
    struct list transfers; /* struct mem_transfer */
    struct loop_task task;
    bool is_closed;
};

/* A request or a notification on its way. */
struct mem_transfer {
    struct list_node node; /* in peer->transfers */
    struct loop_task task;
    struct mem_peer *peer;
    struct transport_request *request; /* NULL: a notification */
    struct mem *target;                /* counted in target->users while region is pinned */
    struct memory_region *region;
    bool is_canceled;
    void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error);
    void *arg;
    size_t name_len, message_len;
    char text[]; /* name, NUL, message */
};

static pthread_mutex_t mem_mutex = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static pthread_cond_t mem_changed = PTHREAD_COND_INITIALIZER;
static struct list mem_instances = {{&mem_instances.head, &mem_instances.head}};

/* Finds the engine and keeps it from going away until release_target. */
static struct mem *use_target(uint64_t instance)
{
    struct mem *found = NULL;

    pthread_mutex_lock(&mem_mutex);
    LIST_FOR_EACH (mem, &mem_instances, struct mem, node) {
        if (mem->instance == instance && !mem->is_closing)
            found = mem;
    }
    if (found)
        found->users++;
    pthread_mutex_unlock(&mem_mutex);
    return found;
}

static void release_target(struct mem *target)
{
    pthread_mutex_lock(&mem_mutex);
    if (--target->users == 0)
        pthread_cond_broadcast(&mem_changed);
    pthread_mutex_unlock(&mem_mutex);
}

static bool is_target_closing(const struct mem *target)
{
    bool is_closing;

    pthread_mutex_lock(&mem_mutex);
    is_closing = target->is_closing;
    pthread_mutex_unlock(&mem_mutex);
    return is_closing;
}

static void peer_reap(struct mem_peer *peer)
{
    struct mem *mem = peer->mem;

    if (!peer->is_closed || !list_is_empty(&peer->transfers))
        return;
    list_remove(&peer->node);
    free(peer);
    pthread_mutex_lock(&mem_mutex);
    if (--mem->live == 0)
        pthread_cond_broadcast(&mem_changed);
    pthread_mutex_unlock(&mem_mutex);
}

static void transfer_end(struct mem_transfer *transfer, enum shoal_status status, const char *reason)
{
    struct mem_peer *peer = transfer->peer;
    struct shoal_error error;

    if (transfer->region)
        memory_unpin(transfer->target->env.memory, transfer->region);
    if (transfer->target)
        release_target(transfer->target);
    if (status != SHOAL_OK)
        error_set(&error, status, 0, "'%s': %s", peer->name, reason);
    if (transfer->request)
        transfer->request->done(transfer->request, status, status == SHOAL_OK ? NULL : &error);
    else
        transfer->fn(transfer->arg, status, status == SHOAL_OK ? NULL : &error);
    list_remove(&transfer->node);
    free(transfer);
    peer_reap(peer);
}

static enum shoal_status step(struct mem_transfer *transfer, const char **reason_out)
{
    struct transport_request *request = transfer->request;
    struct mem_peer *peer = transfer->peer;
    uint64_t part;
    char *remote;

    *reason_out = "canceled";
    if (transfer->is_canceled)
        return SHOAL_CANCELED;
    *reason_out = "no such engine in this process";
    if (!transfer->target) {
        transfer->target = use_target(peer->instance);
        if (!transfer->target)
            return SHOAL_UNREACHABLE;
    }
    if (!request) {
        const struct transport_env *env = &transfer->target->env;

        *reason_out = "no receiver for notifications";
        return env->notify(env->notify_arg, peer->own_name, transfer->text, transfer->text + transfer->name_len + 1,
                           transfer->message_len)
                   ? SHOAL_OK
                   : SHOAL_UNSUPPORTED;
    }
    if (!transfer->region) {
        enum shoal_status status =
            memory_pin(transfer->target->env.memory, request->remote_addr, request->len_bytes, request->remote_key,
                       request->op == SHOAL_OP_READ ? SHOAL_ACCESS_REMOTE_READ : SHOAL_ACCESS_REMOTE_WRITE,
                       &transfer->region, reason_out);
        if (status != SHOAL_OK)
            return status;
        if (memory_device(transfer->region)) {
            request->refusal = "device memory";
            request->is_refused_once = true;
            *reason_out = "memory of a device cannot be copied by the processor";
            return SHOAL_UNSUPPORTED;
        }
    }
    *reason_out = "connection was lost";
    if (is_target_closing(transfer->target) || memory_is_dying(transfer->target->env.memory, transfer->region))
        return SHOAL_UNREACHABLE;
    part = request->len_bytes - request->transferred_bytes;
    part = part < STEP_BYTES ? part : STEP_BYTES;
    remote = (char *)(uintptr_t)request->remote_addr + request->transferred_bytes;
    if (request->op == SHOAL_OP_READ)
        memcpy((char *)request->local + request->transferred_bytes, remote, (size_t)part);
    else
        memcpy(remote, (char *)request->local + request->transferred_bytes, (size_t)part);
    request->transferred_bytes += part;
    return request->transferred_bytes == request->len_bytes ? SHOAL_OK : SHOAL_BUSY;
}

static void run_step(void *arg)
{
    struct mem_transfer *transfer = arg;
    const char *reason;
    enum shoal_status status = step(transfer, &reason);

    if (status == SHOAL_BUSY)
        loop_post(transfer->peer->mem->env.loop, &transfer->task, run_step, transfer);
    else
        transfer_end(transfer, status, reason);
}

static void no_memory(void *arg)
{
    struct transport_request *request = arg;

    request->done(request, SHOAL_NO_MEMORY, NULL);
}

static struct mem_peer *peer_of(struct transport_peer *base)
{
    return (struct mem_peer *)base;
}

static void mem_submit(struct transport_peer *base, struct transport_request *request)
{
    struct mem_peer *peer = peer_of(base);
    struct mem_transfer *transfer = calloc(1, sizeof *transfer);

    request->transferred_bytes = 0;
    request->link = transfer;
    if (!transfer) {
        loop_post(peer->mem->env.loop, &request->task, no_memory, request);
        return;
    }
    transfer->peer = peer;
    transfer->request = request;
    transfer->is_canceled = peer->is_closed;
    list_push_back(&peer->transfers, &transfer->node);
    loop_post(peer->mem->env.loop, &transfer->task, run_step, transfer);
}

static void mem_cancel(struct transport_peer *base, struct transport_request *request)
{
    struct mem_transfer *transfer = request->link;

    (void)base;
    if (transfer)
        transfer->is_canceled = true;
}

static void mem_peer_abort(struct transport_peer *base)
{
    LIST_FOR_EACH (transfer, &peer_of(base)->transfers, struct mem_transfer, node)
        transfer->is_canceled = true;
}

static void reap_posted(void *arg)
{
    peer_reap(arg);
}

static void mem_peer_close(struct transport_peer *base)
{
    struct mem_peer *peer = peer_of(base);

    if (peer->is_closed)
        return;
    mem_peer_abort(base);
    peer->is_closed = true;
    if (list_is_empty(&peer->transfers))
        loop_post(peer->mem->env.loop, &peer->task, reap_posted, peer);
}

static enum shoal_status mem_peer_open(struct transport *transport, const char *name, const char *address,
                                       uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    struct mem *mem = (struct mem *)transport;
    struct mem_peer *peer = calloc(1, sizeof *peer);

    (void)address;
    if (!peer)
        return error_no_memory(error);
    peer->mem = mem;
    peer->instance = instance;
    memcpy(peer->name, name, strnlen(name, NAME_MAX_BYTES));
    memcpy(peer->own_name, endpoint_name(mem->env.endpoint), strnlen(endpoint_name(mem->env.endpoint), NAME_MAX_BYTES));
    list_init(&peer->transfers);
    list_push_back(&mem->peers, &peer->node);
    pthread_mutex_lock(&mem_mutex);
    mem->live++;
    pthread_mutex_unlock(&mem_mutex);
    *out = (struct transport_peer *)peer;
    return SHOAL_OK;
}

static enum shoal_status mem_notify(struct transport_peer *base, const char *name, const void *message, size_t len,
                                    void (*fn)(void *arg, enum shoal_status status, const struct shoal_error *error),
                                    void *arg, struct shoal_error *error)
{
    struct mem_peer *peer = peer_of(base);
    size_t name_len = strlen(name);
    struct mem_transfer *transfer = calloc(1, sizeof *transfer + name_len + 1 + len);

    if (!transfer)
        return error_no_memory(error);
    transfer->peer = peer;
    transfer->fn = fn;
    transfer->arg = arg;
    transfer->name_len = name_len;
    transfer->message_len = len;
    memcpy(transfer->text, name, name_len + 1);
    if (len)
        memcpy(transfer->text + name_len + 1, message, len);
    list_push_back(&peer->transfers, &transfer->node);
    loop_post(peer->mem->env.loop, &transfer->task, run_step, transfer);
    return SHOAL_OK;
}

static bool mem_is_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    struct mem *target = use_target(instance);

    (void)transport;
    (void)address;
    if (target)
        release_target(target);
    return target != NULL;
}

static enum shoal_status mem_create(const struct transport_env *env, struct transport **out, struct shoal_error *error)
{
    struct mem *mem = calloc(1, sizeof *mem);

    if (!mem)
        return error_no_memory(error);
    mem->env = *env;
    mem->instance = endpoint_instance(env->endpoint);
    list_init(&mem->peers);
    pthread_mutex_lock(&mem_mutex);
    list_push_back(&mem_instances, &mem->node);
    pthread_mutex_unlock(&mem_mutex);
    *out = (struct transport *)mem;
    return SHOAL_OK;
}

static void close_peers(void *arg)
{
    struct mem *mem = arg;

    LIST_FOR_EACH (peer, &mem->peers, struct mem_peer, node)
        mem_peer_close((struct transport_peer *)peer);
}

static void mem_destroy(struct transport *transport)
{
    struct mem *mem = (struct mem *)transport;

    loop_call(mem->env.loop, close_peers, mem);
    pthread_mutex_lock(&mem_mutex);
    mem->is_closing = true;
    while (mem->users > 0 || mem->live > 0)
        pthread_cond_wait(&mem_changed, &mem_mutex);
    list_remove(&mem->node);
    pthread_mutex_unlock(&mem_mutex);
    free(mem);
}

const struct transport_ops transport_mem_ops = {
    .name = "mem",
    .caps = TRANSPORT_CAP_READ | TRANSPORT_CAP_WRITE | TRANSPORT_CAP_CANCEL | TRANSPORT_CAP_NOTIFY,
    .create = mem_create,
    .destroy = mem_destroy,
    .is_reachable = mem_is_reachable,
    .peer_open = mem_peer_open,
    .peer_close = mem_peer_close,
    .submit = mem_submit,
    .cancel = mem_cancel,
    .peer_abort = mem_peer_abort,
    .notify = mem_notify,
};
