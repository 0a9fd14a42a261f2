/* SPDX-License-Identifier: Apache-2.0 */
/* mutex and its ranks, conditions, the thread pool, the log sink. */
#include "unit.h"

#include <stdatomic.h>

#include "base/mutex.h"
#include "base/pool.h"
#include "base/thread.h"
#define LOG_MODULE "unit"
#include "base/log.h"

/* --- ranks --- */

static void take_in_order(void)
{
    struct mutex low, high;
    mutex_init(&low, RANK_STORE);
    mutex_init(&high, RANK_LOG);
    mutex_lock(&low);
    mutex_lock(&high);
    mutex_unlock(&low); /* any order of unlocking */
    mutex_unlock(&high);
    mutex_lock(&high);
    mutex_unlock(&high);
}

#ifndef NDEBUG
static void take_against_the_order(void)
{
    struct mutex low, high;
    mutex_init(&low, RANK_STORE);
    mutex_init(&high, RANK_LOG);
    mutex_lock(&high);
    mutex_lock(&low);
}

static void take_two_of_one_rank(void)
{
    struct mutex first, second;
    mutex_init(&first, RANK_PAYLOAD);
    mutex_init(&second, RANK_PAYLOAD);
    mutex_lock(&first);
    mutex_lock(&second);
}

static void take_one_twice(void)
{
    struct mutex mutex;
    mutex_init(&mutex, RANK_PAYLOAD);
    mutex_lock(&mutex);
    mutex_lock(&mutex);
}

static void unlock_what_is_not_held(void)
{
    struct mutex mutex;
    mutex_init(&mutex, RANK_PAYLOAD);
    mutex_unlock(&mutex);
}
#endif

static void a_wrong_lock_order_aborts(void **state)
{
    (void)state;
    assert_int_equal(signal_of_child(take_in_order), 0);
#ifdef NDEBUG
    skip();
#else
    assert_int_equal(signal_of_child(take_against_the_order), SIGABRT);
    assert_int_equal(signal_of_child(take_two_of_one_rank), SIGABRT);
    assert_int_equal(signal_of_child(take_one_twice), SIGABRT);
    assert_int_equal(signal_of_child(unlock_what_is_not_held), SIGABRT);
#endif
}

/* --- conditions --- */

struct mailbox {
    struct mutex mutex;
    struct cond changed;
    int value;
};

static void *post_value(void *arg)
{
    struct mailbox *mailbox = arg;
    mutex_lock(&mailbox->mutex);
    mailbox->value = 42;
    cond_broadcast(&mailbox->changed);
    mutex_unlock(&mailbox->mutex);
    return NULL;
}

static void a_condition_wakes_and_times_out(void **state)
{
    struct mailbox mailbox = {.value = 0};
    pthread_t thread;
    bool in_time;
    (void)state;
    mutex_init(&mailbox.mutex, RANK_STORE);
    cond_init(&mailbox.changed);
    mutex_lock(&mailbox.mutex);
    do
        in_time = cond_wait_until(&mailbox.changed, &mailbox.mutex, deadline_after_ms(1));
    while (in_time); /* a spurious wake-up may come first */
    assert_false(cond_wait_until(&mailbox.changed, &mailbox.mutex, 0));
    thread = start_thread(post_value, &mailbox);
    while (!mailbox.value)
        assert_true(cond_wait_until(&mailbox.changed, &mailbox.mutex, deadline_after_ms(UNIT_WAIT_MS)));
    assert_int_equal(mailbox.value, 42);
    mutex_unlock(&mailbox.mutex);
    join_thread(thread);
    mailbox.value = 0;
    thread = start_thread(post_value, &mailbox);
    mutex_lock(&mailbox.mutex);
    while (!mailbox.value)
        assert_true(cond_wait_until(&mailbox.changed, &mailbox.mutex, DEADLINE_NONE));
    mutex_unlock(&mailbox.mutex);
    join_thread(thread);
    cond_release(&mailbox.changed);
    mutex_release(&mailbox.mutex);
}

/* --- threads --- */

struct seen_by_thread {
    sigset_t mask;
};

static void *look_around(void *arg)
{
    struct seen_by_thread *seen = arg;
    pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
    return arg;
}

static void threads_leave_signals_to_the_application(void **state)
{
    struct seen_by_thread seen = {0};
    sigset_t before, after;
    pthread_t thread;
    void *result;
    (void)state;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(thread_start(&thread, "unit-thread", look_around, &seen), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_ptr_equal(result, &seen);
    assert_true(sigismember(&seen.mask, SIGINT) && sigismember(&seen.mask, SIGTERM));
    assert_int_equal(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
}

/* --- pool --- */

struct tally {
    atomic_uint calls[5000];
    atomic_uint total;
    size_t stop_at; /* index whose call returns false */
};

static bool count_call(void *arg, size_t index)
{
    struct tally *tally = arg;
    atomic_fetch_add(&tally->calls[index], 1);
    atomic_fetch_add(&tally->total, 1);
    return index != tally->stop_at;
}

static struct tally *tally_create(size_t stop_at)
{
    struct tally *tally = calloc(1, sizeof *tally);
    assert_non_null(tally);
    tally->stop_at = stop_at;
    return tally;
}

static void every_index_once(void **state)
{
    static const unsigned sizes[] = {0, 1, 2, 7};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct tally *tally = tally_create(SIZE_MAX);
        struct pool *pool;
        assert_int_equal(pool_create(sizes[i], &pool, NULL), SHOAL_OK);
        assert_int_equal(pool_thread_count(pool), sizes[i]);
        pool_for(pool, 0, count_call, tally);
        assert_int_equal(tally->total, 0);
        pool_for(pool, 5000, count_call, tally);
        assert_int_equal(tally->total, 5000);
        for (size_t k = 0; k < 5000; k++)
            assert_int_equal(tally->calls[k], 1);
        pool_for(pool, 1, count_call, tally); /* used again */
        assert_int_equal(tally->total, 5001);
        pool_destroy(pool);
        free(tally);
    }
    pool_destroy(NULL);
}

static void false_stops_early(void **state)
{
    struct pool *pool;
    struct tally *tally = tally_create(3);
    (void)state;
    assert_int_equal(pool_create(1, &pool, NULL), SHOAL_OK);
    pool_for(pool, 5000, count_call, tally); /* one thread: in order */
    assert_int_equal(tally->total, 4);
    pool_destroy(pool);
    free(tally);

    tally = tally_create(0);
    assert_int_equal(pool_create(4, &pool, NULL), SHOAL_OK);
    for (int i = 0; i < 200; i++)
        pool_for(pool, 5000, count_call, tally);
    for (size_t k = 0; k < 5000; k++)
        assert_true(tally->calls[k] <= 200);
    pool_destroy(pool);
    free(tally);
}

struct shared_pool {
    struct pool *pool;
    struct tally *tally;
    uint64_t seed;
};

static void *use_pool(void *arg)
{
    struct shared_pool *shared = arg;
    struct random random;
    random_init(&random, shared->seed);
    for (int i = 0; i < 100; i++) {
        size_t count = (size_t)random_below(&random, 50);
        unsigned before = shared->tally->total;
        pool_for(shared->pool, count, count_call, shared->tally);
        /* Returned: every call of ours has ended. */
        if (shared->tally->total != before + count)
            return arg;
    }
    return NULL;
}

static void concurrent_callers_share_the_threads(void **state)
{
    enum { CALLERS = 6 };
    struct shared_pool shared[CALLERS];
    pthread_t threads[CALLERS];
    struct pool *pool;
    uint64_t seed = test_seed();
    (void)state;
    assert_int_equal(pool_create(3, &pool, NULL), SHOAL_OK);
    for (size_t i = 0; i < CALLERS; i++) {
        shared[i] = (struct shared_pool){pool, tally_create(SIZE_MAX), seed + i};
        threads[i] = start_thread(use_pool, &shared[i]);
    }
    for (size_t i = 0; i < CALLERS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        free(shared[i].tally);
    }
    pool_destroy(pool);
}

/* --- log --- */

struct sink {
    atomic_uint lines;
    char last[2048];
    char module[64];
    enum shoal_log_level level;
    atomic_bool is_removed;
    atomic_bool was_used_after_removal;
};

static void keep_line(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    struct sink *sink = arg;
    snprintf(sink->last, sizeof sink->last, "%s", message);
    snprintf(sink->module, sizeof sink->module, "%s", module);
    sink->level = level;
    atomic_fetch_add(&sink->lines, 1);
}

static void only_wanted_levels_reach_the_sink(void **state)
{
    struct sink sink = {0};
    char text[4000];
    (void)state;
    shoal_log_set(NULL, NULL, SHOAL_LOG_TRACE);
    assert_false(log_is_enabled(SHOAL_LOG_ERROR));
    LOG_ERROR("dropped %d", 1);
    shoal_log_set(keep_line, &sink, SHOAL_LOG_INFO);
    assert_true(log_is_enabled(SHOAL_LOG_INFO));
    assert_false(log_is_enabled(SHOAL_LOG_DEBUG));
    LOG_DEBUG("dropped %d", 2);
    assert_int_equal(sink.lines, 0);
    LOG_WARN("peer %s sent\n'%s'", "a:1", "\033[31m");
    assert_int_equal(sink.lines, 1);
    assert_string_equal(sink.last, "peer a:1 sent?'?[31m'");
    assert_string_equal(sink.module, "unit");
    assert_int_equal(sink.level, SHOAL_LOG_WARN);
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    LOG_INFO("%s", text);
    assert_int_equal(sink.lines, 2);
    assert_true(strlen(sink.last) > 500); /* cut, not dropped */
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    LOG_ERROR("dropped %d", 3);
    assert_int_equal(sink.lines, 2);
}

static void notice_late_use(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    struct sink *sink = arg;
    (void)level;
    (void)module;
    (void)message;
    if (sink->is_removed)
        sink->was_used_after_removal = true;
    atomic_fetch_add(&sink->lines, 1);
}

static void *log_until_told(void *arg)
{
    atomic_bool *stop = arg;
    while (!atomic_load(stop))
        LOG_WARN("line");
    return NULL;
}

static void a_replaced_sink_is_not_running_any_more(void **state)
{
    atomic_bool stop = false;
    pthread_t threads[3];
    (void)state;
    for (size_t i = 0; i < 3; i++)
        threads[i] = start_thread(log_until_told, &stop);
    for (int i = 0; i < 50; i++) {
        struct sink sink = {0};
        shoal_log_set(notice_late_use, &sink, SHOAL_LOG_WARN);
        wait_until(sink.lines > 0);
        shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
        sink.is_removed = true;
        assert_false(sink.was_used_after_removal);
    }
    stop = true;
    for (size_t i = 0; i < 3; i++)
        join_thread(threads[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_lock_order_aborts),
        cmocka_unit_test(a_condition_wakes_and_times_out),
        cmocka_unit_test(threads_leave_signals_to_the_application),
        cmocka_unit_test(every_index_once),
        cmocka_unit_test(false_stops_early),
        cmocka_unit_test(concurrent_callers_share_the_threads),
        cmocka_unit_test(only_wanted_levels_reach_the_sink),
        cmocka_unit_test(a_replaced_sink_is_not_running_any_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
