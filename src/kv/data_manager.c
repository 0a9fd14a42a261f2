/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/data_manager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/executor.h"
#include "base/list.h"
#include "base/mutex.h"
#include "base/progress.h"
#include "base/spares.h"

#define LOG_MODULE "kv"
#include "base/log.h"

#define WORKERS 4
#define BLOCKING_MAX 16384u                               /* values for storage tiers that are being finished */
#define DROPS_MAX 8192u                                   /* of the master's; beyond: it is asked again */
#define WRITE_STEP_BYTES ((size_t)8 * TIER_STAGING_BYTES) /* of a put, between two looks at its call */
#define LOCK_SHARDS_MAX (1u << 20)
#define SPARE_FINISHES_MAX 256u

#define KIND(name) SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__##name

struct data_manager {
    struct tier_backend *backend;          /* borrowed */
    struct session *session;               /* borrowed */
    struct executor *executor;             /* owned; its queue has room for BLOCKING_MAX and DROPS_MAX tasks */
    struct data_manager_counters counters; /* atomic */

    struct mutex mutex; /* RANK_KV_SERVICE */
    struct cond idle;
    unsigned finish_count, blocking_count, drop_count;
    struct list finishing; /* struct finish: committed, not published yet */
    struct spares spare_finishes;
};

/* A put whose caller waits. */
struct put {
    struct mutex mutex; /* RANK_KV_SERVICE */
    struct cond changed;
    unsigned refs;
    bool is_canceled; /* the caller has gone: nothing may stay */
    bool is_decided;  /* it is being published: the caller waits for the end */
    bool is_done;
    enum shoal_status status;
    uint64_t object_id;
    struct shoal_error error;
};

/* A value that is written, on its way to being published. */
struct finish {
    struct data_manager *manager;
    struct list_node node;              /* in finishing */
    struct tier_allocation *allocation; /* owned until committed */
    struct tier_object *object;         /* owned reference once committed */
    struct put *put;                    /* borrowed until done; NULL: not by data_manager_put */
    Shoal__Wire__MasterAnnounceRequest__Kind kind;
    uint64_t object_id, epoch;
    int64_t deadline_ms; /* 0: the session's default */
    bool is_blocking;    /* commit and publish may wait for a disk */
    bool is_announced;   /* guarded by the manager's mutex: the master has the route */
    bool is_removed;     /* guarded likewise: in the cluster, before it was published here */
    data_manager_done_fn done;
    void *arg;
    enum shoal_status status;
    struct executor_task task;
    struct loop_task loop_task;

    struct shoal_error error; /* last: what is before it is cleared at the start */
};

static void count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static void announce_quietly(struct data_manager *manager, Shoal__Wire__MasterAnnounceRequest__Kind kind,
                             const char *key, uint64_t object_id, uint64_t len_bytes, unsigned tier)
{
    enum shoal_status status = session_announce(manager->session, kind, key, object_id, len_bytes, tier, 0, NULL, NULL);

    if (status && status != SHOAL_CANCELED)
        LOG_WARN("the master is not told about key '%.100s': %s", key, shoal_status_text(status));
}

static void announce_gone(struct data_manager *manager, const char *key, uint64_t object_id)
{
    announce_quietly(manager, KIND(GONE), key, object_id, 0, 0);
}

/* --- finishing --- */

static void finish_destroy(struct finish *finish)
{
    struct data_manager *manager = finish->manager;

    mutex_lock(&manager->mutex);
    manager->finish_count--;
    manager->blocking_count -= finish->is_blocking;
    spares_give(&manager->spare_finishes, finish);
    cond_broadcast(&manager->idle);
    mutex_unlock(&manager->mutex);
}

/* The end of all ways, on the loop or a worker. */
static void finish_end(struct finish *finish)
{
    struct data_manager *manager = finish->manager;
    uint64_t object_id = 0;
    unsigned tier = 0;

    if (finish->status == SHOAL_OK) {
        object_id = tier_object_id(finish->object);
        tier = tier_object_tier(finish->object);
        tier_object_unref(finish->object);
        count(&manager->counters.puts);
    } else {
        count(&manager->counters.put_failures);
    }
    finish->done(finish->arg, finish->status, object_id, tier, finish->status ? &finish->error : NULL);
    finish_destroy(finish);
}

static void finish_end_on_loop(void *arg)
{
    finish_end(arg);
}

static void finish_fail_later(struct finish *finish)
{
    loop_post(session_loop(finish->manager->session), &finish->loop_task, finish_end_on_loop, finish);
}

/* The master has the route. Its publisher looks whether the caller of a put is still there. */
static bool put_decide(struct put *put)
{
    bool is_wanted;

    if (!put)
        return true;
    mutex_lock(&put->mutex);
    is_wanted = !put->is_canceled;
    put->is_decided = is_wanted;
    mutex_unlock(&put->mutex);
    return is_wanted;
}

/* true: it was removed meanwhile. */
static bool finish_unlist(struct finish *finish)
{
    bool is_removed;

    mutex_lock(&finish->manager->mutex);
    list_remove(&finish->node);
    is_removed = finish->is_removed;
    mutex_unlock(&finish->manager->mutex);
    return is_removed;
}

static void finish_abandon(struct finish *finish)
{
    finish_unlist(finish);
    tier_abandon(finish->object);
    finish->object = NULL;
}

/* On the loop, or where announcing failed. The master has forgotten it, or is told until it has. */
static void on_withdrawn(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct finish *finish = arg;

    (void)error;
    if (status && status != SHOAL_NOT_FOUND)
        announce_gone(finish->manager, tier_object_key(finish->object), tier_object_id(finish->object));
    tier_object_unref(finish->object);
    finish->object = NULL;
    finish_end(finish);
}

/* The put does not end before the master has forgotten it: whoever puts the value elsewhere next would be told that it
 * exists. */
static void finish_withdraw(struct finish *finish)
{
    int64_t left_ms = finish->deadline_ms ? deadline_left_ms(finish->deadline_ms) : 0;
    enum shoal_status status = SHOAL_TIMED_OUT;

    if (left_ms > 0 || !finish->deadline_ms)
        status = session_announce(finish->manager->session, KIND(GONE), tier_object_key(finish->object),
                                  tier_object_id(finish->object), 0, 0, left_ms, on_withdrawn, finish);
    if (status)
        on_withdrawn(finish, status, NULL);
}

/* Ends it. */
static void finish_publish(struct finish *finish)
{
    struct data_manager *manager = finish->manager;
    struct tier_object *object = finish->object;
    bool is_removed;

    tier_object_ref(object); /* publishing that fails takes the other reference */
    finish->status = tier_publish(object, &finish->error);
    is_removed = finish_unlist(finish);
    if (finish->status) {
        finish_withdraw(finish);
        return;
    }
    if (is_removed) {
        tier_remove(manager->backend, tier_object_key(object), tier_object_id(object));
        announce_gone(manager, tier_object_key(object), tier_object_id(object));
    } else if (session_epoch(manager->session) != finish->epoch) {
        /* A registration that began after the master's answer may not have seen it. */
        announce_quietly(manager, KIND(HELD), tier_object_key(object), tier_object_id(object), tier_object_len(object),
                         tier_object_tier(object));
    }
    tier_object_unref(object);
    finish_end(finish);
}

static void run_publish(void *arg, bool is_canceled)
{
    (void)is_canceled; /* never: destroy waits for what is being finished */
    finish_publish(arg);
}

/* On the loop. */
static void on_announced(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct finish *finish = arg;
    struct data_manager *manager = finish->manager;

    if (status == SHOAL_OK && !put_decide(finish->put)) {
        announce_gone(manager, tier_object_key(finish->object), tier_object_id(finish->object));
        status = error_set(&finish->error, SHOAL_CANCELED, 0, "put: canceled");
        error = &finish->error;
    }
    if (status) {
        finish->status = status;
        finish->error = *error;
        finish_abandon(finish);
        finish_end(finish);
        return;
    }
    finish->epoch = session_epoch(manager->session);
    mutex_lock(&manager->mutex);
    finish->is_announced = true;
    mutex_unlock(&manager->mutex);
    if (!finish->is_blocking || executor_submit(manager->executor, &finish->task, run_publish, finish))
        finish_publish(finish);
}

/* Commits and announces. false: it has failed. Else done follows, and may have freed finish already. */
static bool finish_begin(struct finish *finish)
{
    struct data_manager *manager = finish->manager;
    enum shoal_status status;
    int64_t left_ms = 0;

    finish->status = tier_commit(finish->allocation, finish->object_id, &finish->object, &finish->error);
    finish->allocation = NULL;
    if (finish->status)
        return false;
    mutex_lock(&manager->mutex);
    list_push_back(&manager->finishing, &finish->node);
    mutex_unlock(&manager->mutex);
    if (finish->deadline_ms)
        left_ms = deadline_left_ms(finish->deadline_ms);
    status = SHOAL_TIMED_OUT;
    if (left_ms > 0 || !finish->deadline_ms)
        status = session_announce(manager->session, finish->kind, tier_object_key(finish->object),
                                  tier_object_id(finish->object), tier_object_len(finish->object),
                                  tier_object_tier(finish->object), left_ms, on_announced, finish);
    if (status == SHOAL_OK)
        return true;
    finish->status = error_set(&finish->error, status, 0, "announcing to the master: %s", shoal_status_text(status));
    finish_abandon(finish);
    return false;
}

static void run_commit(void *arg, bool is_canceled)
{
    struct finish *finish = arg;

    (void)is_canceled;
    if (!finish_begin(finish))
        finish_end(finish);
}

static enum shoal_status finish_start(struct data_manager *manager, struct tier_allocation *allocation,
                                      uint64_t object_id, int64_t deadline_ms, struct put *put,
                                      data_manager_done_fn done, void *arg, struct shoal_error *error)
{
    bool is_blocking = !tier_allocation_data(allocation), is_full;
    struct finish *finish;

    mutex_lock(&manager->mutex);
    is_full = is_blocking && manager->blocking_count >= BLOCKING_MAX;
    finish = is_full ? NULL : spares_take(&manager->spare_finishes);
    if (finish) {
        manager->finish_count++;
        manager->blocking_count += is_blocking;
    }
    mutex_unlock(&manager->mutex);
    if (is_full) {
        tier_allocation_drop(allocation);
        return error_set(error, SHOAL_LIMIT, 0, "%u values are being written to storage", BLOCKING_MAX);
    }
    if (!finish) {
        tier_allocation_drop(allocation);
        return error_no_memory(error);
    }
    memset(finish, 0, offsetof(struct finish, error));
    error_clear(&finish->error);
    finish->manager = manager;
    finish->allocation = allocation;
    finish->put = put;
    finish->kind = object_id ? KIND(REPLICA) : KIND(NEW);
    finish->object_id = object_id;
    finish->deadline_ms = deadline_ms;
    finish->is_blocking = is_blocking;
    finish->done = done;
    finish->arg = arg;
    list_node_init(&finish->node);
    if (!finish->is_blocking) {
        if (!finish_begin(finish))
            finish_fail_later(finish);
    } else if (executor_submit(manager->executor, &finish->task, run_commit, finish)) {
        tier_allocation_drop(allocation);
        finish_destroy(finish);
        return error_set(error, SHOAL_CANCELED, 0, "this client's objects are being closed");
    }
    return SHOAL_OK;
}

enum shoal_status data_manager_finish(struct data_manager *manager, struct tier_allocation *allocation,
                                      uint64_t object_id, int64_t timeout_ms, data_manager_done_fn done, void *arg,
                                      struct shoal_error *error)
{
    return finish_start(manager, allocation, object_id, timeout_ms ? deadline_after_ms(timeout_ms) : 0, NULL, done, arg,
                        error);
}

/* --- putting --- */

static void put_unref(struct put *put)
{
    bool is_last;

    mutex_lock(&put->mutex);
    is_last = --put->refs == 0;
    mutex_unlock(&put->mutex);
    if (!is_last)
        return;
    cond_release(&put->changed);
    mutex_release(&put->mutex);
    free(put);
}

static void on_put_done(void *arg, enum shoal_status status, uint64_t object_id, unsigned tier,
                        const struct shoal_error *error)
{
    struct put *put = arg;

    (void)tier;
    mutex_lock(&put->mutex);
    put->is_done = true;
    put->status = status;
    put->object_id = object_id;
    if (error)
        put->error = *error;
    cond_broadcast(&put->changed);
    mutex_unlock(&put->mutex);
    put_unref(put);
}

static void wake_put(void *arg)
{
    struct put *put = arg;

    mutex_lock(&put->mutex);
    cond_broadcast(&put->changed);
    mutex_unlock(&put->mutex);
}

static enum shoal_status put_wait(struct put *put, const char *key, const struct call *call, uint64_t *object_id_out,
                                  struct shoal_error *error)
{
    struct cancel_hook hook;
    enum shoal_status status;

    cancel_hook_add(call->cancel, &hook, wake_put, put);
    mutex_lock(&put->mutex);
    while (!put->is_done) { /* bounded by the announcement's deadline and a disk */
        if (!put->is_decided && cancel_is_triggered(call->cancel)) {
            put->is_canceled = true;
            break;
        }
        cond_wait(&put->changed, &put->mutex);
    }
    if (put->is_done) {
        status = put->status;
        if (status)
            error_copy(error, &put->error);
        else if (object_id_out)
            *object_id_out = put->object_id;
    } else {
        status = error_set(error, SHOAL_CANCELED, 0, "put of key '%.100s': canceled", key);
    }
    mutex_unlock(&put->mutex);
    cancel_hook_remove(call->cancel, &hook);
    return status;
}

static enum shoal_status write_all(struct tier_allocation *allocation, const void *data, uint64_t len_bytes,
                                   const struct call *call, struct shoal_error *error)
{
    for (uint64_t offset = 0; offset < len_bytes;) {
        uint64_t left = len_bytes - offset;
        size_t step = left < WRITE_STEP_BYTES ? (size_t)left : WRITE_STEP_BYTES;
        enum shoal_status status = call_check(call, error, "put");

        if (!status)
            status = tier_write(allocation, offset, (const uint8_t *)data + offset, step, error);
        if (status)
            return status;
        offset += step;
        call_progress_at(call, offset);
    }
    return call_check(call, error, "put");
}

enum shoal_status data_manager_put(struct data_manager *manager, const char *key, const void *data, uint64_t len_bytes,
                                   uint64_t object_id, const struct call *call, uint64_t *object_id_out,
                                   struct shoal_error *error)
{
    struct tier_allocation *allocation;
    struct put *put;
    enum shoal_status status = tier_allocate(manager->backend, key, len_bytes, false, &allocation, error);

    if (!status) {
        status = write_all(allocation, data, len_bytes, call, error);
        if (status)
            tier_allocation_drop(allocation);
    }
    if (status) {
        count(&manager->counters.put_failures);
        return status;
    }
    put = calloc(1, sizeof *put);
    if (!put) {
        tier_allocation_drop(allocation);
        count(&manager->counters.put_failures);
        return error_no_memory(error);
    }
    mutex_init(&put->mutex, RANK_KV_SERVICE);
    cond_init(&put->changed);
    put->refs = 2;
    status = finish_start(manager, allocation, object_id, call->deadline_ms, put, on_put_done, put, error);
    if (status)
        put_unref(put); /* there is no done */
    else
        status = put_wait(put, key, call, object_id_out, error);
    put_unref(put);
    return status;
}

/* --- removing --- */

/* A removal that comes before the object is published is carried out by its publisher. Whoever removes it knows it from
 * the master, or (object_id 0) knows only the key. */
static bool remove_when_published(struct data_manager *manager, const char *key, uint64_t object_id)
{
    bool is_found = false;

    mutex_lock(&manager->mutex);
    LIST_FOR_EACH (finish, &manager->finishing, struct finish, node) {
        uint64_t found_id = tier_object_id(finish->object);

        if (strcmp(tier_object_key(finish->object), key) == 0 &&
            (object_id ? found_id == object_id : finish->is_announced))
            is_found = finish->is_removed = true;
    }
    mutex_unlock(&manager->mutex);
    return is_found;
}

enum shoal_status data_manager_delete(struct data_manager *manager, const char *key, uint64_t object_id,
                                      struct shoal_error *error)
{
    struct tier_object *object;
    enum shoal_status status = tier_get(manager->backend, key, &object);

    if (!status) {
        uint64_t found_id = tier_object_id(object);

        tier_object_unref(object);
        status = object_id && object_id != found_id ? SHOAL_NOT_FOUND : tier_remove(manager->backend, key, found_id);
        if (!status)
            announce_gone(manager, key, found_id);
    }
    if (status == SHOAL_NOT_FOUND && remove_when_published(manager, key, object_id))
        status = SHOAL_OK;
    if (status)
        return error_set(error, status, 0, "key '%.100s': %s", key, shoal_status_text(status));
    count(&manager->counters.deletes);
    return SHOAL_OK;
}

struct drop {
    struct data_manager *manager;
    struct executor_task task;
    uint64_t object_id;
    char key[];
};

static void run_drop(void *arg, bool is_canceled)
{
    struct drop *drop = arg;
    struct data_manager *manager = drop->manager;

    if (!is_canceled) {
        enum shoal_status status = tier_remove(manager->backend, drop->key, drop->object_id);

        if (status == SHOAL_NOT_FOUND)
            remove_when_published(manager, drop->key, drop->object_id);
        else if (status)
            LOG_WARN("key '%.100s' was removed, but its copy here is not: %s", drop->key, shoal_status_text(status));
        count(&manager->counters.drops);
    }
    mutex_lock(&manager->mutex);
    manager->drop_count--;
    mutex_unlock(&manager->mutex);
    free(drop);
}

/* On the loop. */
static bool on_drop(void *arg, const char *key, uint64_t object_id)
{
    struct data_manager *manager = arg;
    size_t key_bytes = strlen(key) + 1;
    struct drop *drop;
    bool is_full;

    mutex_lock(&manager->mutex);
    is_full = manager->drop_count >= DROPS_MAX;
    manager->drop_count += !is_full;
    mutex_unlock(&manager->mutex);
    if (is_full)
        return false;
    drop = calloc(1, sizeof *drop + key_bytes);
    if (drop) {
        drop->manager = manager;
        drop->object_id = object_id;
        memcpy(drop->key, key, key_bytes);
        if (executor_submit(manager->executor, &drop->task, run_drop, drop) == SHOAL_OK)
            return true;
        free(drop);
    }
    mutex_lock(&manager->mutex);
    manager->drop_count--;
    mutex_unlock(&manager->mutex);
    return false;
}

/* --- the backend's events --- */

static void on_evicted(void *arg, const char *key, uint64_t object_id)
{
    announce_gone(arg, key, object_id);
}

static void on_moved(void *arg, const char *key, uint64_t object_id, unsigned tier)
{
    struct data_manager *manager = arg;

    announce_quietly(manager, KIND(MOVED), key, object_id, 0, tier);
}

/* --- life --- */

enum shoal_status data_manager_create(struct tier_backend *backend, struct session *session,
                                      struct data_manager **manager_out, struct shoal_error *error)
{
    struct data_manager *manager = calloc(1, sizeof *manager);
    struct tier_events events = {.evicted = on_evicted, .moved = on_moved, .arg = manager};
    enum shoal_status status;

    if (!manager)
        return error_no_memory(error);
    status = executor_create("kv-data", WORKERS, BLOCKING_MAX + DROPS_MAX, &manager->executor, error);
    if (status) {
        free(manager);
        return status;
    }
    manager->backend = backend;
    manager->session = session;
    mutex_init(&manager->mutex, RANK_KV_SERVICE);
    cond_init(&manager->idle);
    list_init(&manager->finishing);
    spares_init(&manager->spare_finishes, sizeof(struct finish), SPARE_FINISHES_MAX);
    tier_backend_set_events(backend, &events);
    session_set_drop_handler(session, on_drop, manager);
    *manager_out = manager;
    return SHOAL_OK;
}

void data_manager_destroy(struct data_manager *manager)
{
    if (!manager)
        return;
    session_set_drop_handler(manager->session, NULL, NULL);
    session_stop(manager->session);
    mutex_lock(&manager->mutex);
    while (manager->finish_count)
        cond_wait(&manager->idle, &manager->mutex);
    mutex_unlock(&manager->mutex);
    tier_backend_set_events(manager->backend, NULL);
    executor_destroy(manager->executor);
    spares_release(&manager->spare_finishes);
    cond_release(&manager->idle);
    mutex_release(&manager->mutex);
    free(manager);
}

struct tier_backend *data_manager_backend(struct data_manager *manager)
{
    return manager->backend;
}

void data_manager_counters(struct data_manager *manager, struct data_manager_counters *out)
{
    out->puts = __atomic_load_n(&manager->counters.puts, __ATOMIC_RELAXED);
    out->put_failures = __atomic_load_n(&manager->counters.put_failures, __ATOMIC_RELAXED);
    out->deletes = __atomic_load_n(&manager->counters.deletes, __ATOMIC_RELAXED);
    out->drops = __atomic_load_n(&manager->counters.drops, __ATOMIC_RELAXED);
}

enum shoal_status data_manager_lock_shards(unsigned *stripes_out, struct shoal_error *error)
{
    const char *text = getenv("MOONCAKE_DM_LOCK_SHARD_COUNT");
    unsigned long value;
    char *end;

    if (!text || !*text) {
        *stripes_out = 0;
        return SHOAL_OK;
    }
    errno = 0;
    value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < 1 || value > LOCK_SHARDS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "MOONCAKE_DM_LOCK_SHARD_COUNT is '%.60s': want a number of 1 to %u", text, LOCK_SHARDS_MAX);
    *stripes_out = (unsigned)value;
    return SHOAL_OK;
}
