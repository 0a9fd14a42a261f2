/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats in the background what the metadata service did not take in time: withdrawals, and publications of payloads
 * that are served but not announced. And looks in turn whether the names of the published ones are still theirs: one
 * request in the time of a lease, however many they are. One thread, bounded backlog, backoff. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "base/thread.h"
#include "store/store_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define BACKLOG_MAX 4096u
#define ATTEMPT_MS 5000
#define CHECK_MS 2000
#define BACKOFF_BASE_MS 200
#define BACKOFF_MAX_MS 5000

struct withdrawal {
    struct list_node node;
    char *name; /* owned */
    uint64_t generation;
};

struct janitor {
    struct shoal_store *store; /* borrowed */
    pthread_t thread;
    struct shoal_cancel *cancel; /* owned: ends the attempt in progress */
    struct cond wake;            /* with store->mutex, which guards the rest */
    struct list withdrawals;
    unsigned withdrawal_count;
    bool has_work, is_stopping;
};

static void withdrawal_destroy(struct withdrawal *withdrawal)
{
    free(withdrawal->name);
    free(withdrawal);
}

static struct payload *take_unpublished(struct shoal_store *store)
{
    const struct map_entry *position = NULL;
    struct payload *payload;

    mutex_lock(&store->mutex);
    while ((payload = map_next(&store->catalog, &position, NULL, NULL))) {
        if (payload->wants_publication && !payload->is_published) {
            payload_ref(payload);
            break;
        }
    }
    mutex_unlock(&store->mutex);
    return payload;
}

/* The published payload that was not looked at for longest, if that is a lease's time ago. *due_ms_out: when to come
 * again, if there is none. Holding store->mutex. */
static struct payload *take_unchecked(struct shoal_store *store, int64_t now_ms, int64_t *due_ms_out)
{
    const struct map_entry *position = NULL;
    struct payload *payload, *oldest = NULL;

    while ((payload = map_next(&store->catalog, &position, NULL, NULL)))
        if (payload->state == PAYLOAD_READY && payload->is_published &&
            (!oldest || payload->checked_ms < oldest->checked_ms))
            oldest = payload;
    *due_ms_out = now_ms + store->lease_ttl_ms;
    if (!oldest)
        return NULL;
    if (now_ms - oldest->checked_ms < store->lease_ttl_ms) {
        *due_ms_out = oldest->checked_ms + store->lease_ttl_ms;
        return NULL;
    }
    oldest->checked_ms = now_ms;
    payload_ref(oldest);
    return oldest;
}

/* A failure is found by others, too, and told by them. */
static void check_one(struct janitor *janitor, struct payload *payload)
{
    struct call call = {.deadline_ms = deadline_after_ms(CHECK_MS), .cancel = janitor->cancel};
    struct shoal_error error;

    if (publish_check(payload, &call, &error))
        LOG_DEBUG("%s (will be looked at again)", error.message);
    payload_unref(payload);
}

/* true: everything that could be done is done. */
static bool work(struct janitor *janitor)
{
    struct shoal_store *store = janitor->store;
    struct call call = {.deadline_ms = deadline_after_ms(ATTEMPT_MS), .cancel = janitor->cancel};
    struct shoal_error error;
    struct list_node *node;
    struct payload *payload;

    for (;;) {
        struct withdrawal *withdrawal;
        enum shoal_status status;

        mutex_lock(&store->mutex);
        node = list_pop_front(&janitor->withdrawals);
        if (node)
            janitor->withdrawal_count--;
        mutex_unlock(&store->mutex);
        if (!node)
            break;
        withdrawal = container_of(node, struct withdrawal, node);
        status = publish_withdraw(store, withdrawal->name, withdrawal->generation, &call, &error);
        if (status) {
            LOG_INFO("%s (will be repeated)", error.message);
            mutex_lock(&store->mutex);
            list_push_front(&janitor->withdrawals, node);
            janitor->withdrawal_count++;
            mutex_unlock(&store->mutex);
            return false;
        }
        withdrawal_destroy(withdrawal);
    }
    while ((payload = take_unpublished(store))) {
        enum shoal_status status = publish_join(payload, &call, &error);
        if (status)
            LOG_INFO("%s (will be repeated)", error.message);
        payload_unref(payload);
        if (status)
            return false;
    }
    return true;
}

static void *thread_main(void *arg)
{
    struct janitor *janitor = arg;
    struct shoal_store *store = janitor->store;
    struct random random;
    unsigned failures = 0;
    int64_t check_ms = 0;

    random_init(&random, random_id());
    mutex_lock(&store->mutex);
    while (!janitor->is_stopping) {
        if (!janitor->has_work) {
            int64_t now_ms = clock_now_ms();
            struct payload *payload = now_ms < check_ms ? NULL : take_unchecked(store, now_ms, &check_ms);
            if (!payload) {
                cond_wait_until(&janitor->wake, &store->mutex, check_ms);
                continue;
            }
            check_ms = now_ms + store->lease_ttl_ms;
            mutex_unlock(&store->mutex);
            check_one(janitor, payload);
            mutex_lock(&store->mutex);
            continue;
        }
        if (failures) {
            int64_t until = deadline_after_ms(backoff_ms(&random, failures - 1, BACKOFF_BASE_MS, BACKOFF_MAX_MS));
            while (!janitor->is_stopping && cond_wait_until(&janitor->wake, &store->mutex, until))
                ;
            if (janitor->is_stopping)
                break;
        }
        janitor->has_work = false;
        mutex_unlock(&store->mutex);
        failures = work(janitor) ? 0 : failures + 1;
        mutex_lock(&store->mutex);
        if (failures)
            janitor->has_work = true;
    }
    mutex_unlock(&store->mutex);
    return NULL;
}

enum shoal_status janitor_create(struct shoal_store *store, struct shoal_error *error)
{
    struct janitor *janitor = calloc(1, sizeof *janitor);
    int result;

    if (!janitor)
        return error_no_memory(error);
    if (shoal_cancel_create(&janitor->cancel)) {
        free(janitor);
        return error_no_memory(error);
    }
    janitor->store = store;
    cond_init(&janitor->wake);
    list_init(&janitor->withdrawals);
    result = thread_start(&janitor->thread, "shoal-janitor", thread_main, janitor);
    if (result) {
        cond_release(&janitor->wake);
        shoal_cancel_destroy(janitor->cancel);
        free(janitor);
        return error_set(error, SHOAL_LIMIT, result, "cannot start the store's thread: %s", strerror(result));
    }
    store->janitor = janitor;
    return SHOAL_OK;
}

void janitor_destroy(struct shoal_store *store)
{
    struct janitor *janitor = store->janitor;
    struct list_node *node;

    if (!janitor)
        return;
    mutex_lock(&store->mutex);
    janitor->is_stopping = true;
    cond_broadcast(&janitor->wake);
    mutex_unlock(&store->mutex);
    shoal_cancel_trigger(janitor->cancel);
    pthread_join(janitor->thread, NULL);
    while ((node = list_pop_front(&janitor->withdrawals)))
        withdrawal_destroy(container_of(node, struct withdrawal, node));
    cond_release(&janitor->wake);
    shoal_cancel_destroy(janitor->cancel);
    free(janitor);
    store->janitor = NULL;
}

void janitor_defer_withdrawal(struct shoal_store *store, const char *name, uint64_t generation)
{
    struct janitor *janitor = store->janitor;
    struct withdrawal *withdrawal = calloc(1, sizeof *withdrawal), *dropped = NULL;

    if (withdrawal)
        withdrawal->name = strdup(name);
    if (!withdrawal || !withdrawal->name) {
        free(withdrawal); /* the entry goes with the lease when this node leaves */
        return;
    }
    withdrawal->generation = generation;
    mutex_lock(&store->mutex);
    list_push_back(&janitor->withdrawals, &withdrawal->node);
    if (++janitor->withdrawal_count > BACKLOG_MAX) {
        dropped = container_of(list_pop_front(&janitor->withdrawals), struct withdrawal, node);
        janitor->withdrawal_count--;
    }
    janitor->has_work = true;
    cond_signal(&janitor->wake);
    mutex_unlock(&store->mutex);
    if (dropped)
        withdrawal_destroy(dropped);
}

void janitor_wake(struct shoal_store *store)
{
    mutex_lock(&store->mutex);
    store->janitor->has_work = true;
    cond_signal(&store->janitor->wake);
    mutex_unlock(&store->mutex);
}
