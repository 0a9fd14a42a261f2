/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads on few stores, in-process, so that the sanitizers see both ends: the same and different names, calls
 * that are canceled at any moment, close beside everything. */
#include "itest.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/store.h>

#include "base/random.h"
#include "content.h"
#include "guarded.h"

#define THREADS 8
#define SIZE (192 * 1024 + 77)

struct worker {
    pthread_t thread;
    unsigned index;
    struct shoal_store *store;
    struct shoal_cancel *cancel;
    int rounds;
    atomic_bool *is_ending;
    uint64_t seed;
    char problem[640]; /* empty: all is well */
};

static struct shoal_store *new_store(struct fixture *fixture)
{
    struct shoal_store_config config = {
        .struct_size = sizeof config, .metadata_uri = fixture->uri, .server_name = "127.0.0.1:0", .digest_threads = 2};
    struct shoal_store *store = NULL;
    struct shoal_error error = {0};
    if (shoal_store_create(&config, NULL, &store, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return store;
}

static void complain(struct worker *worker, const char *what, enum shoal_status status, const struct shoal_error *error)
{
    if (!worker->problem[0])
        snprintf(worker->problem, sizeof worker->problem, "thread %u: %s: %s: %s", worker->index, what,
                 shoal_status_name(status), error->message);
}

static void run_all(struct worker *workers, size_t count, void *(*run)(void *))
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0);
}

static void join_all(struct worker *workers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    for (size_t i = 0; i < count; i++)
        if (workers[i].problem[0])
            fail_msg("%s", workers[i].problem);
}

static void expect_empty(struct shoal_store *store)
{
    struct shoal_served_info *served = NULL;
    struct shoal_payload_info *infos = NULL;
    size_t count = 1;
    assert_int_equal(shoal_store_served(store, &served, &count, NULL), SHOAL_OK);
    assert_int_equal(count, 0);
    free(served);
    assert_int_equal(shoal_store_list(store, NULL, NULL, &infos, &count, NULL), SHOAL_OK);
    assert_int_equal(count, 0);
    shoal_payload_infos_free(infos, count);
}

/* Each thread has names of its own and pulls each payload into the other store. */
struct pair {
    struct worker worker; /* first */
    struct shoal_store *peer;
};

static void *own_names(void *arg)
{
    struct pair *pair = arg;
    struct worker *worker = &pair->worker;
    struct shoal_error error = {0};
    struct guarded from, to;
    enum shoal_status status;
    char name[64];

    if (!guarded_init(&from, SIZE) || !guarded_init(&to, SIZE))
        abort();
    struct shoal_region source = {from.data, SIZE}, target = {to.data, SIZE};
    struct shoal_register_options options = {.struct_size = sizeof options, .piece_size = 16384};
    for (int round = 0; round < worker->rounds; round++) {
        uint64_t seed = worker->index * 1000u + (unsigned)round + 1;
        snprintf(name, sizeof name, "own/%u", worker->index);
        content_fill(from.data, SIZE, seed, 0);
        memset(to.data, 0, SIZE);
        if ((status = shoal_store_register(worker->store, name, &source, 1, &options, NULL, &error)))
            complain(worker, "register", status, &error);
        if ((status = shoal_store_get_replica(pair->peer, name, &target, 1, NULL, NULL, &error)))
            complain(worker, "get", status, &error);
        if (content_find_difference(to.data, SIZE, seed, 0) >= 0)
            complain(worker, "wrong bytes", SHOAL_CORRUPTED, &error);
        if ((status = shoal_store_unregister(worker->store, name, NULL, &error)))
            complain(worker, "unregister", status, &error);
        if ((status = shoal_store_delete_replica(pair->peer, name, NULL, &error)))
            complain(worker, "delete", status, &error);
    }
    guarded_release(&from);
    guarded_release(&to);
    return NULL;
}

static void different_names(void **state)
{
    struct shoal_store *a = new_store(*state), *b = new_store(*state);
    struct pair pairs[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        pairs[i] = (struct pair){.worker = {.index = i, .store = i % 2 ? a : b, .rounds = node_is_sanitized() ? 4 : 12},
                                 .peer = i % 2 ? b : a};
        assert_int_equal(pthread_create(&pairs[i].worker.thread, NULL, own_names, &pairs[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(pairs[i].worker.thread, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        if (pairs[i].worker.problem[0])
            fail_msg("%s", pairs[i].worker.problem);
    expect_empty(a);
    shoal_store_close(a, NULL);
    shoal_store_close(b, NULL);
}

/* Everybody fights for one name on one store: one at a time has it, the others are told. */
static void *same_name(void *arg)
{
    struct worker *worker = arg;
    struct shoal_error error = {0};
    struct guarded memory;
    if (!guarded_init(&memory, SIZE))
        abort();
    content_fill(memory.data, SIZE, 5, 0);
    struct shoal_region region = {memory.data, SIZE};
    for (int round = 0; round < worker->rounds; round++) {
        enum shoal_status status = shoal_store_register(worker->store, "same", &region, 1, NULL, NULL, &error);
        if (status == SHOAL_OK) {
            if ((status = shoal_store_unregister(worker->store, "same", NULL, &error)))
                complain(worker, "unregister", status, &error);
        } else if (status != SHOAL_PAYLOAD_OPENED && status != SHOAL_EXISTS) {
            complain(worker, "register", status, &error);
        }
        status = shoal_store_get_replica(worker->store, "same", &region, 1, NULL, NULL, &error);
        if (status == SHOAL_OK)
            status = shoal_store_delete_replica(worker->store, "same", NULL, &error);
        if (status != SHOAL_OK && status != SHOAL_PAYLOAD_OPENED && status != SHOAL_PAYLOAD_NOT_FOUND &&
            status != SHOAL_NO_SOURCE && status != SHOAL_REPLACED)
            complain(worker, "get", status, &error);
    }
    guarded_release(&memory);
    return NULL;
}

static void same_name_on_one_store(void **state)
{
    struct shoal_store *store = new_store(*state);
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        workers[i] = (struct worker){.index = i, .store = store, .rounds = node_is_sanitized() ? 10 : 40};
    run_all(workers, THREADS, same_name);
    join_all(workers, THREADS);
    expect_empty(store);
    shoal_store_close(store, NULL);
}

static void same_name_on_many_stores(void **state)
{
    struct shoal_store *stores[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        stores[i] = new_store(*state);
        workers[i] = (struct worker){.index = i, .store = stores[i], .rounds = node_is_sanitized() ? 5 : 20};
    }
    run_all(workers, THREADS, same_name);
    join_all(workers, THREADS);
    expect_empty(stores[0]);
    for (unsigned i = 0; i < THREADS; i++)
        shoal_store_close(stores[i], NULL);
}

/* Pulls one payload again and again while its token may be triggered at any time. */
static void *storm(void *arg)
{
    struct worker *worker = arg;
    struct shoal_error error = {0};
    struct guarded memory;
    char name[64];

    if (!guarded_init(&memory, SIZE))
        abort();
    snprintf(name, sizeof name, "storm/%u", worker->index % 2);
    struct shoal_region region = {memory.data, SIZE};
    for (int round = 0; round < worker->rounds; round++) {
        struct shoal_cancel *cancel;
        if (shoal_cancel_create(&cancel) != SHOAL_OK)
            abort();
        struct shoal_call call = {.struct_size = sizeof call, .cancel = cancel, .timeout_ms = (round % 7) + 1};
        if (round % 3 == 0)
            shoal_cancel_trigger(cancel);
        enum shoal_status status = shoal_store_get_replica(worker->store, name, &region, 1, NULL, &call, &error);
        switch (status) {
        case SHOAL_OK:
            if (content_find_difference(memory.data, SIZE, 9, 0) >= 0)
                complain(worker, "wrong bytes", SHOAL_CORRUPTED, &error);
            if ((status = shoal_store_delete_replica(worker->store, name, NULL, &error)))
                complain(worker, "delete", status, &error);
            break;
        case SHOAL_CANCELED:
        case SHOAL_TIMED_OUT:
        case SHOAL_PAYLOAD_OPENED: /* the other thread has it */
            break;
        default:
            complain(worker, "get", status, &error);
        }
        memset(memory.data, 0x11, SIZE); /* ours again: nobody writes beside us */
        for (size_t i = 0; i < SIZE; i += 4096)
            if (memory.data[i] != 0x11)
                complain(worker, "written after the end", SHOAL_INTERNAL, &error);
        shoal_cancel_destroy(cancel);
    }
    guarded_release(&memory);
    return NULL;
}

static void cancel_storm(void **state)
{
    struct shoal_store *gold = new_store(*state), *receiver = new_store(*state);
    struct worker workers[4];
    struct guarded memory;
    struct shoal_error error = {0};
    assert_true(guarded_init(&memory, SIZE));
    content_fill(memory.data, SIZE, 9, 0);
    struct shoal_region region = {memory.data, SIZE};
    struct shoal_register_options options = {.struct_size = sizeof options, .piece_size = 4096};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "storm/%d", i);
        if (shoal_store_register(gold, name, &region, 1, &options, NULL, &error) != SHOAL_OK)
            fail_msg("%s", error.message);
    }
    for (unsigned i = 0; i < 4; i++)
        workers[i] = (struct worker){.index = i, .store = receiver, .rounds = node_is_sanitized() ? 15 : 60};
    run_all(workers, 4, storm);
    join_all(workers, 4);
    shoal_store_close(receiver, NULL);
    shoal_store_close(gold, NULL);
    guarded_release(&memory);
}

/* Queries beside everything else. */
static void *look(void *arg)
{
    struct worker *worker = arg;
    struct shoal_error error = {0};
    while (!atomic_load(worker->is_ending)) {
        struct shoal_payload_info *infos = NULL;
        struct shoal_served_info *served = NULL;
        size_t count = 0;
        enum shoal_status status = shoal_store_list(worker->store, "", NULL, &infos, &count, &error);
        if (status != SHOAL_OK)
            complain(worker, "list", status, &error);
        else
            shoal_payload_infos_free(infos, count);
        if (shoal_store_served(worker->store, &served, &count, NULL) == SHOAL_OK)
            free(served);
        free(shoal_store_metrics(worker->store));
        nap();
    }
    return NULL;
}

static void queries_beside_changes(void **state)
{
    struct shoal_store *store = new_store(*state);
    struct worker workers[4], lookers[2];
    atomic_bool is_ending = false;
    for (unsigned i = 0; i < 2; i++)
        lookers[i] = (struct worker){.index = i, .store = store, .is_ending = &is_ending};
    for (unsigned i = 0; i < 4; i++)
        workers[i] = (struct worker){.index = i, .store = store, .rounds = node_is_sanitized() ? 10 : 40};
    run_all(lookers, 2, look);
    run_all(workers, 4, same_name);
    for (size_t i = 0; i < 4; i++)
        pthread_join(workers[i].thread, NULL);
    atomic_store(&is_ending, true);
    join_all(lookers, 2);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(workers[i].problem, "");
    expect_empty(store);
    shoal_store_close(store, NULL);
}

/* A pull, and close from another thread in its middle. */
static void has_begun(void *arg, const struct shoal_progress *progress)
{
    (void)progress;
    atomic_store((atomic_bool *)arg, true);
}

static void *pull_until_closed(void *arg)
{
    struct worker *worker = arg;
    struct shoal_error error = {0};
    struct shoal_get_options options = {.struct_size = sizeof options,
                                        .progress = has_begun,
                                        .progress_arg = worker->is_ending,
                                        .progress_interval_ms = 1};
    struct guarded memory;
    if (!guarded_init(&memory, 32 * MIB))
        abort();
    struct shoal_region region = {memory.data, 32 * MIB};
    enum shoal_status status = shoal_store_get_replica(worker->store, "large", &region, 1, &options, NULL, &error);
    if (status != SHOAL_OK && status != SHOAL_CANCELED && status != SHOAL_CLOSED)
        complain(worker, "get", status, &error);
    if (status != SHOAL_OK)
        guarded_release(&memory); /* a failed call has given the regions back */
    atomic_store(worker->is_ending, true);
    return NULL;
}

static void close_during_get(void **state)
{
    struct shoal_store *gold = new_store(*state);
    struct guarded memory;
    struct shoal_error error = {0};
    assert_true(guarded_init(&memory, 32 * MIB));
    content_fill(memory.data, 32 * MIB, 3, 0);
    struct shoal_region region = {memory.data, 32 * MIB};
    if (shoal_store_register(gold, "large", &region, 1, NULL, NULL, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    for (int round = 0; round < 6; round++) {
        atomic_bool is_under_way = false;
        struct worker worker = {.store = new_store(*state), .is_ending = &is_under_way};
        run_all(&worker, 1, pull_until_closed);
        WAIT_UNTIL(atomic_load(&is_under_way));
        for (int i = 0; i < round; i++)
            nap();
        shoal_store_close(worker.store, NULL);
        join_all(&worker, 1);
    }
    shoal_store_close(gold, NULL);
    guarded_release(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(different_names), ITEST(same_name_on_one_store), ITEST(same_name_on_many_stores),
        ITEST(cancel_storm),    ITEST(queries_beside_changes), ITEST(close_during_get),
    };
    return cmocka_run_group_tests_name("concurrency", tests, NULL, NULL);
}
