/* SPDX-License-Identifier: Apache-2.0 */
/* Which transports there are. Each table is checked once; call sites never test an entry for NULL. */
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "transport/transport.h"

#define TRANSPORTS_MAX 16

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER; /* a leaf: nothing else is taken under it */
static struct transport_ops registry[TRANSPORTS_MAX];              /* only grows */
static const char *registry_names[TRANSPORTS_MAX + 1];
static size_t registry_count;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

static void cancel_nothing(struct transport_peer *peer, struct transport_request *request)
{
    (void)peer;
    (void)request;
}

static bool accept_all(struct transport_peer *peer, const struct transport_request *request)
{
    (void)peer;
    (void)request;
    return true;
}

static bool is_always_reachable(struct transport *transport, const char *address, uint64_t instance)
{
    (void)transport;
    (void)address;
    (void)instance;
    return true;
}

static enum shoal_status notify_unsupported(struct transport_peer *peer, const char *name, const void *message,
                                            size_t len,
                                            void (*fn)(void *arg, enum shoal_status status,
                                                       const struct shoal_error *error),
                                            void *arg, struct shoal_error *error)
{
    (void)peer;
    (void)message;
    (void)len;
    (void)fn;
    (void)arg;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "'%s': this transport has no notifications", name);
}

static void evict_nothing(struct transport *transport, const struct memory_region *region)
{
    (void)transport;
    (void)region;
}

static bool metrics_none(struct transport *transport, struct buf *out)
{
    (void)transport;
    (void)out;
    return true;
}

static const struct transport_ops *find_locked(const char *name)
{
    for (size_t i = 0; i < registry_count; i++)
        if (strcmp(registry[i].name, name) == 0)
            return &registry[i];
    return NULL;
}

static enum shoal_status add_locked(const struct transport_ops *ops, struct shoal_error *error)
{
    struct transport_ops filled = *ops;

    if (!ops->name || !ops->name[0] || !ops->create || !ops->destroy || !ops->peer_open || !ops->peer_close ||
        !ops->submit || !ops->peer_abort || ((ops->caps & TRANSPORT_CAP_CANCEL) && !ops->cancel) ||
        ((ops->caps & TRANSPORT_CAP_NOTIFY) && !ops->notify) || ((ops->caps & TRANSPORT_CAP_DIRECT) && !ops->direct))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "table of transport '%s' is incomplete",
                         ops->name ? ops->name : "");
    if (find_locked(ops->name))
        return error_set(error, SHOAL_EXISTS, 0, "transport '%s' is registered already", ops->name);
    if (registry_count == TRANSPORTS_MAX)
        return error_set(error, SHOAL_LIMIT, 0, "more than %d transports", TRANSPORTS_MAX);
    if (!filled.cancel)
        filled.cancel = cancel_nothing;
    if (!filled.accepts)
        filled.accepts = accept_all;
    if (!filled.is_reachable)
        filled.is_reachable = is_always_reachable;
    if (!filled.notify)
        filled.notify = notify_unsupported;
    if (!filled.evict)
        filled.evict = evict_nothing;
    if (!filled.metrics)
        filled.metrics = metrics_none;
    registry[registry_count] = filled;
    registry_names[registry_count] = registry[registry_count].name;
    registry_count++;
    return SHOAL_OK;
}

static void add_built_in(void)
{
    pthread_mutex_lock(&registry_mutex);
    (void)add_locked(&transport_tcp_ops, NULL);
    (void)add_locked(&transport_rdma_ops, NULL);
    (void)add_locked(&transport_ucx_ops, NULL);
    (void)add_locked(&transport_local_ops, NULL);
    pthread_mutex_unlock(&registry_mutex);
}

const struct transport_ops *transport_find(const char *name)
{
    const struct transport_ops *found;

    pthread_once(&registry_once, add_built_in);
    pthread_mutex_lock(&registry_mutex);
    found = find_locked(name);
    pthread_mutex_unlock(&registry_mutex);
    return found;
}

const char *const *transport_names(void)
{
    pthread_once(&registry_once, add_built_in);
    return registry_names;
}

enum shoal_status transport_register(const struct transport_ops *ops, struct shoal_error *error)
{
    enum shoal_status status;

    pthread_once(&registry_once, add_built_in);
    pthread_mutex_lock(&registry_mutex);
    status = add_locked(ops, error);
    pthread_mutex_unlock(&registry_mutex);
    return status;
}
