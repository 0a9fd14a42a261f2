/* SPDX-License-Identifier: Apache-2.0 */
/* The node's presence in the cluster: a lease, the node key under it, and a thread that keeps both. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "engine/engine_internal.h"
#include "engine/keys.h"

#define LOG_MODULE "membership"

#define PROBE_TIMEOUT_MS 1000
#define CLAIM_RETRY_MS 250
#define BACKOFF_BASE_MS 100
#define BACKOFF_MAX_MS 2000

struct membership {
    struct shoal_engine *engine; /* borrowed */
    char *key, *value;           /* owned; the node key */
    struct node_record own;
    pthread_t thread;
    bool has_thread;
    struct shoal_cancel *stop; /* owned; ends metadata calls of the thread */
    struct random random;      /* the thread's */

    struct mutex mutex; /* RANK_MEMBERSHIP: guards what follows */
    struct cond changed;
    int64_t lease; /* 0: none; set once the node key is claimed under it */
    struct membership_listener listener;
    bool is_stopping, wants_renew, wants_publish, is_publishing;
};

/* --- is the owner of our name alive? --- */

enum liveness { OWNER_ALIVE, OWNER_DEAD, OWNER_UNKNOWN };

struct probe {
    struct shoal_engine *engine;
    const char *address;
    int64_t timeout_ms;
    uint64_t instance; /* who answered */
    enum shoal_status status;
    int sys_errno;
    struct mutex mutex; /* RANK_ENGINE */
    struct cond changed;
    bool is_done;
};

static void probe_finish(struct probe *probe, enum shoal_status status, int sys_errno)
{
    mutex_lock(&probe->mutex);
    probe->status = status;
    probe->sys_errno = sys_errno;
    probe->is_done = true;
    cond_signal(&probe->changed);
    mutex_unlock(&probe->mutex);
}

static void probe_dialed(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                         const struct shoal_error *error)
{
    struct probe *probe = arg;

    if (status == SHOAL_OK) {
        probe->instance = peer->instance;
        close(fd);
    }
    probe_finish(probe, status, error ? error->sys_errno : 0);
}

static void probe_on_loop(void *arg)
{
    struct probe *probe = arg;
    struct endpoint_dial *dial;
    enum shoal_status status = endpoint_dial(probe->engine->endpoint, probe->address, 0, HELLO_CHANNEL_PROBE,
                                             probe->timeout_ms, probe_dialed, probe, &dial, NULL);

    if (status != SHOAL_OK)
        probe_finish(probe, status, 0);
}

/* Blocks for at most PROBE_TIMEOUT_MS. */
static enum liveness probe_owner(struct membership *membership, const struct node_record *owner)
{
    struct probe probe = {.engine = membership->engine, .address = owner->address, .timeout_ms = PROBE_TIMEOUT_MS};
    struct node_record *own = &membership->own;
    enum liveness liveness = OWNER_UNKNOWN;

    if (strcmp(owner->address, own->address) == 0) {
        /* We have bound that address. On the same host the owner must be dead; elsewhere it is another machine's
         * loopback, or one address on two machines, and only the lease can tell. */
        return strcmp(owner->boot_id, own->boot_id) == 0 && strcmp(owner->netns, own->netns) == 0 ? OWNER_DEAD
                                                                                                  : OWNER_UNKNOWN;
    }
    mutex_init(&probe.mutex, RANK_ENGINE);
    cond_init(&probe.changed);
    loop_call(membership->engine->loops[0], probe_on_loop, &probe);
    mutex_lock(&probe.mutex);
    while (!probe.is_done)
        cond_wait(&probe.changed, &probe.mutex);
    mutex_unlock(&probe.mutex);
    if (probe.status == SHOAL_OK)
        liveness = probe.instance == owner->instance ? OWNER_ALIVE : OWNER_DEAD;
    else if (probe.status == SHOAL_UNREACHABLE && probe.sys_errno == ECONNREFUSED)
        liveness = OWNER_DEAD;
    cond_release(&probe.changed);
    mutex_release(&probe.mutex);
    return liveness;
}

/* --- claiming the node key --- */

static struct meta_bytes bytes_of(const char *text)
{
    return (struct meta_bytes){text, strlen(text)};
}

static enum shoal_status put_node_key(struct membership *membership, const struct meta_compare *compare, int64_t lease,
                                      const struct call *call, bool *is_applied_out, struct shoal_error *error)
{
    const struct meta_op op = {
        .kind = META_PUT, .key = bytes_of(membership->key), .value = bytes_of(membership->value), .lease = lease};

    return meta_txn(membership->engine->meta, compare, 1, &op, 1, call, is_applied_out, NULL, error);
}

/* One round. OK with is_claimed_out false: someone else may hold the name; error tells (NAME_IN_USE if it surely does).
 */
static enum shoal_status try_claim(struct membership *membership, int64_t lease, const struct call *call,
                                   bool *is_claimed_out, enum liveness *liveness_out, struct shoal_error *error)
{
    struct meta_compare compare = {.kind = META_KEY_ABSENT, .key = bytes_of(membership->key)};
    struct node_record owner;
    struct meta_entry entry;
    bool is_applied = false, is_found = false;
    enum shoal_status status;

    *is_claimed_out = false;
    *liveness_out = OWNER_UNKNOWN;
    status = put_node_key(membership, &compare, lease, call, &is_applied, error);
    if (status != SHOAL_OK || is_applied)
        goto out;
    status = meta_get(membership->engine->meta, compare.key, call, &is_found, &entry, error);
    if (status != SHOAL_OK || !is_found)
        return status;
    compare = (struct meta_compare){
        .kind = META_MOD_REVISION_IS, .key = bytes_of(membership->key), .revision = entry.mod_revision};
    if (node_record_decode(&owner, entry.value, entry.value_len, NULL) != SHOAL_OK) {
        LOG_WARN("entry of '%s' is malformed: replacing it", membership->own.name);
        *liveness_out = OWNER_DEAD;
    } else if (owner.instance == membership->own.instance) {
        *liveness_out = OWNER_DEAD; /* our own, under an earlier lease */
    } else {
        *liveness_out = probe_owner(membership, &owner);
    }
    meta_entry_release(&entry);
    if (*liveness_out == OWNER_DEAD) {
        status = put_node_key(membership, &compare, lease, call, &is_applied, error);
        goto out;
    }
    error_set(error, SHOAL_NAME_IN_USE, 0, "server name '%s' belongs to %s node at %s", membership->own.name,
              *liveness_out == OWNER_ALIVE ? "a live" : "a possibly live (it does not answer, but has a lease)",
              owner.address);
    return SHOAL_OK;
out:
    if (status == SHOAL_OK)
        *is_claimed_out = is_applied;
    return status;
}

/* A leftover of a process that does not answer goes with its lease: wait for that within the deadline. */
static enum shoal_status claim_at_start(struct membership *membership, int64_t lease, const struct call *call,
                                        struct shoal_error *error)
{
    for (;;) {
        struct shoal_error in_use = {0};
        enum liveness liveness;
        bool is_claimed;
        enum shoal_status status = try_claim(membership, lease, call, &is_claimed, &liveness, &in_use);

        if (status != SHOAL_OK)
            return error_copy(error, &in_use);
        if (is_claimed)
            return SHOAL_OK;
        if (liveness == OWNER_ALIVE || deadline_left_ms(call->deadline_ms) <= CLAIM_RETRY_MS)
            return in_use.status == SHOAL_NAME_IN_USE
                       ? error_copy(error, &in_use)
                       : error_set(error, SHOAL_TIMED_OUT, 0, "claiming '%s': deadline passed", membership->own.name);
        if (cancel_is_triggered(call->cancel))
            return error_set(error, SHOAL_CANCELED, 0, "claiming '%s': canceled", membership->own.name);
        mutex_lock(&membership->mutex);
        (void)cond_wait_until(&membership->changed, &membership->mutex, deadline_after_ms(CLAIM_RETRY_MS));
        mutex_unlock(&membership->mutex);
    }
}

/* --- the thread --- */

static struct call thread_call(struct membership *membership, int64_t timeout_ms)
{
    return (struct call){.deadline_ms = deadline_after_ms(timeout_ms), .cancel = membership->stop};
}

/* A new lease with our node key under it. */
static bool renew(struct membership *membership)
{
    struct call call = thread_call(membership, membership->engine->lease_ttl_ms);
    struct shoal_engine *engine = membership->engine;
    struct shoal_error error = {0};
    enum liveness liveness;
    enum shoal_status status;
    bool is_claimed = false;
    int64_t lease;

    status = meta_lease_grant(engine->meta, engine->lease_ttl_ms, &call, &lease, &error);
    if (status != SHOAL_OK) {
        LOG_WARN("no new lease for '%s': %s", membership->own.name, error.message);
        return false;
    }
    status = try_claim(membership, lease, &call, &is_claimed, &liveness, &error);
    if (status != SHOAL_OK || !is_claimed) {
        if (error.status == SHOAL_NAME_IN_USE) {
            engine_count(&engine->counters.name_conflicts);
            LOG_ERROR("%s; trying on", error.message);
        } else {
            LOG_WARN("cannot claim '%s' again: %s", membership->own.name, error.message);
        }
        (void)meta_lease_revoke(engine->meta, lease, &call, NULL);
        return false;
    }
    mutex_lock(&membership->mutex);
    membership->lease = lease;
    membership->wants_publish = true;
    mutex_unlock(&membership->mutex);
    LOG_INFO("'%s' is registered again under a new lease", membership->own.name);
    return true;
}

static bool keep_alive(struct membership *membership, int64_t lease)
{
    struct call call = thread_call(membership, membership->engine->lease_ttl_ms / 3);
    struct shoal_error error = {0};
    enum shoal_status status = meta_lease_keep_alive(membership->engine->meta, lease, &call, &error);

    if (status == SHOAL_NOT_FOUND) {
        mutex_lock(&membership->mutex);
        if (membership->lease == lease)
            membership->lease = 0;
        mutex_unlock(&membership->mutex);
        engine_count(&membership->engine->counters.lease_losses);
        LOG_WARN("'%s' lost its lease: registering again", membership->own.name);
    } else if (status != SHOAL_OK && status != SHOAL_CANCELED) {
        LOG_WARN("lease of '%s' was not renewed: %s", membership->own.name, error.message);
    }
    return status == SHOAL_OK;
}

static bool publish(struct membership *membership, int64_t lease)
{
    struct call call = thread_call(membership, membership->engine->lease_ttl_ms);
    struct membership_listener listener;
    struct shoal_error error = {0};
    enum shoal_status status = SHOAL_OK;

    mutex_lock(&membership->mutex);
    listener = membership->listener;
    membership->wants_publish = false;
    membership->is_publishing = listener.publish != NULL;
    mutex_unlock(&membership->mutex);
    if (listener.publish)
        status = listener.publish(listener.arg, lease, &call, &error);
    mutex_lock(&membership->mutex);
    membership->is_publishing = false;
    if (status != SHOAL_OK)
        membership->wants_publish = true;
    cond_broadcast(&membership->changed);
    mutex_unlock(&membership->mutex);
    if (status != SHOAL_OK) {
        engine_count(&membership->engine->counters.publish_failures);
        LOG_WARN("publishing again failed: %s", error.message);
    }
    return status == SHOAL_OK;
}

static void *thread_main(void *arg)
{
    struct membership *membership = arg;
    int64_t interval_ms = membership->engine->lease_ttl_ms / 3;
    int64_t due_ms = deadline_after_ms(interval_ms);
    unsigned attempt = 0;

    mutex_lock(&membership->mutex);
    while (!membership->is_stopping) {
        bool is_fine = false;
        int64_t lease;

        if (!deadline_is_past(due_ms) && !membership->wants_renew) {
            (void)cond_wait_until(&membership->changed, &membership->mutex, due_ms);
            continue;
        }
        lease = membership->lease;
        membership->wants_renew = false;
        mutex_unlock(&membership->mutex);

        if (lease != 0) {
            is_fine = keep_alive(membership, lease);
            mutex_lock(&membership->mutex);
            lease = membership->lease;
            mutex_unlock(&membership->mutex);
        }
        if (lease == 0)
            is_fine = renew(membership);
        mutex_lock(&membership->mutex);
        lease = membership->lease;
        if (is_fine && membership->wants_publish && !membership->is_stopping) {
            mutex_unlock(&membership->mutex);
            is_fine = publish(membership, lease);
            mutex_lock(&membership->mutex);
        }
        attempt = is_fine ? 0 : attempt + 1;
        due_ms = deadline_after_ms(is_fine ? interval_ms
                                           : backoff_ms(&membership->random, attempt, BACKOFF_BASE_MS,
                                                        interval_ms < BACKOFF_MAX_MS ? interval_ms : BACKOFF_MAX_MS));
    }
    mutex_unlock(&membership->mutex);
    return NULL;
}

/* --- life --- */

static enum shoal_status start_thread(struct membership *membership, struct shoal_error *error)
{
    int result = thread_start(&membership->thread, "shoal-member", thread_main, membership);

    if (result)
        return error_set(error, SHOAL_LIMIT, result, "cannot start the membership thread: %s", strerror(result));
    membership->has_thread = true;
    return SHOAL_OK;
}

enum shoal_status membership_create(struct shoal_engine *engine, const struct call *call, struct membership **out,
                                    struct shoal_error *error)
{
    struct membership *membership = calloc(1, sizeof *membership);
    enum shoal_status status;
    int64_t lease = 0;

    if (!membership)
        return error_no_memory(error);
    membership->engine = engine;
    mutex_init(&membership->mutex, RANK_MEMBERSHIP);
    cond_init(&membership->changed);
    random_init(&membership->random, random_id());
    node_record_own(&membership->own, engine);
    membership->key = engine_key_node(engine->cluster, engine->server_name);
    membership->value = node_record_encode(&membership->own);
    if (!membership->key || !membership->value || shoal_cancel_create(&membership->stop) != SHOAL_OK) {
        status = error_no_memory(error);
        goto destroy;
    }
    status = meta_lease_grant(engine->meta, engine->lease_ttl_ms, call, &lease, error);
    if (status != SHOAL_OK)
        goto destroy;
    membership->lease = lease;
    status = claim_at_start(membership, lease, call, error);
    if (status == SHOAL_OK)
        status = start_thread(membership, error);
    if (status != SHOAL_OK)
        goto destroy;
    *out = membership;
    return SHOAL_OK;

destroy:
    membership_destroy(membership);
    return status;
}

void membership_destroy(struct membership *membership)
{
    struct call call = {.deadline_ms = deadline_after_ms(ENGINE_LEAVE_TIMEOUT_MS)};
    struct shoal_error error;

    if (!membership)
        return;
    mutex_lock(&membership->mutex);
    membership->is_stopping = true;
    cond_broadcast(&membership->changed);
    mutex_unlock(&membership->mutex);
    shoal_cancel_trigger(membership->stop);
    if (membership->has_thread)
        pthread_join(membership->thread, NULL);
    /* What the service does not take within the deadline goes with the lease. */
    if (membership->lease && meta_lease_revoke(membership->engine->meta, membership->lease, &call, &error) != SHOAL_OK)
        LOG_WARN("'%s' could not withdraw: %s", membership->own.name, error.message);
    shoal_cancel_destroy(membership->stop);
    cond_release(&membership->changed);
    mutex_release(&membership->mutex);
    free(membership->key);
    free(membership->value);
    free(membership);
}

void engine_set_membership_listener(struct shoal_engine *engine, const struct membership_listener *listener)
{
    struct membership *membership = engine->membership;

    mutex_lock(&membership->mutex);
    membership->listener = listener ? *listener : (struct membership_listener){0};
    while (membership->is_publishing)
        cond_wait(&membership->changed, &membership->mutex);
    mutex_unlock(&membership->mutex);
}

int64_t engine_lease(struct shoal_engine *engine)
{
    struct membership *membership = engine->membership;
    int64_t lease;

    mutex_lock(&membership->mutex);
    lease = membership->lease;
    mutex_unlock(&membership->mutex);
    return lease;
}

void engine_lease_lost(struct shoal_engine *engine, int64_t lease)
{
    struct membership *membership = engine->membership;

    mutex_lock(&membership->mutex);
    if (membership->lease == lease) {
        membership->wants_renew = true;
        cond_broadcast(&membership->changed);
    }
    mutex_unlock(&membership->mutex);
}
