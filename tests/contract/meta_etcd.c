/* SPDX-License-Identifier: Apache-2.0 */
/* What only the etcd backend has: members that stop, die, come back empty; failover; credentials. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "etcd_server.h"
#include "meta_test.h"
#include "tmpdir.h"

static int setup_one(void **state)
{
    *state = etcd_cluster_start(1);
    return 0;
}

static int setup_three(void **state)
{
    *state = etcd_cluster_start(3);
    return 0;
}

static int teardown(void **state)
{
    etcd_cluster_stop(*state);
    return 0;
}

static enum shoal_status try_put(struct meta *meta, const char *key, int64_t timeout_ms, struct shoal_error *error)
{
    struct call call = call_for(timeout_ms);
    bool is_applied;
    struct meta_op op = {.kind = META_PUT, .key = bytes_of(key), .value = bytes_of("v")};
    return meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, error);
}

static void put_until_ok(struct meta *meta, const char *key)
{
    struct shoal_error error;
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    enum shoal_status status;
    while ((status = try_put(meta, key, 5000, &error)) != SHOAL_OK && !deadline_is_past(deadline_ms))
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    assert_status(SHOAL_OK, status, &error);
}

static struct meta_watch *watch_all(struct meta *meta, int64_t from, struct recorder *recorder)
{
    struct shoal_error error;
    struct meta_watch *watch = NULL;
    recorder_init(recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of(""), from, recorder_note, recorder, &watch, &error), &error);
    return watch;
}

/* --- one member ----------------------------------------------------------------------------------------------------
 */

static void test_stopped_member_honours_deadline(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    put(meta, "before", "1");
    etcd_member_pause(etcd, 0);
    struct call call = call_for(300);
    struct meta_entry entry;
    struct meta_entries entries;
    bool is_found;
    int64_t lease;
    assert_status(SHOAL_TIMED_OUT, meta_get(meta, bytes_of("a"), &call, &is_found, &entry, &error), &error);
    call = call_for(300);
    assert_status(SHOAL_TIMED_OUT, meta_list(meta, bytes_of("a"), 0, &call, &entries, &error), &error);
    call = call_for(300);
    assert_status(SHOAL_TIMED_OUT, meta_lease_grant(meta, 5000, &call, &lease, &error), &error);
    assert_status(SHOAL_TIMED_OUT, try_put(meta, "never", 300, &error), &error);
    assert_non_null(strstr(error.message, etcd_member_endpoint(etcd, 0)));
    etcd_member_resume(etcd, 0);
    put_until_ok(meta, "after");
    meta_close(meta);
}

/* The body of a change waits for the member's word: what it had not read when the call ended never happens. */
static void test_change_of_a_failed_call_does_not_come_later(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    put(meta, "warm", "1"); /* a kept connection */
    for (int i = 0; i < 6; i++) {
        char key[32];
        struct meta *fresh = open_meta(etcd_cluster_uri(etcd));
        etcd_member_pause(etcd, 0);
        snprintf(key, sizeof key, "ghost/%d", i);
        assert_status(SHOAL_TIMED_OUT, try_put(i % 2 ? meta : fresh, key, 200, &error), &error);
        etcd_member_resume(etcd, 0);
        assert_true(etcd_cluster_wait_healthy(etcd, META_TEST_PATIENCE_MS));
        /* Whatever the member still had in its sockets it has read before this. */
        for (int k = 0; k < 20; k++)
            put_until_ok(meta, "busy");
        meta_close(fresh);
    }
    assert_int_equal(count_keys(meta, "ghost/", NULL), 0);
    meta_close(meta);
}

struct blocked {
    pthread_t thread;
    struct meta *meta;
    struct shoal_cancel *cancel;
    enum shoal_status status;
    struct shoal_error error;
};

static void *blocked_list(void *arg)
{
    struct blocked *blocked = arg;
    struct call call = {.deadline_ms = DEADLINE_NONE, .cancel = blocked->cancel};
    struct meta_entries entries;
    blocked->status = meta_list(blocked->meta, bytes_of(""), 0, &call, &entries, &blocked->error);
    return NULL;
}

static void test_cancel_ends_blocked_calls(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct blocked calls[4] = {0};
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    struct shoal_cancel *cancel = NULL;
    struct meta_counters before, now;
    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    etcd_member_pause(etcd, 0);
    meta_counters(meta, &before);
    for (size_t i = 0; i < 4; i++) {
        calls[i].meta = meta;
        calls[i].cancel = cancel;
        assert_int_equal(pthread_create(&calls[i].thread, NULL, blocked_list, &calls[i]), 0);
    }
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    do { /* all are on their way */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        meta_counters(meta, &now);
    } while (now.lists < before.lists + 4 && !deadline_is_past(deadline_ms));
    shoal_cancel_trigger(cancel);
    for (size_t i = 0; i < 4; i++) {
        pthread_join(calls[i].thread, NULL);
        assert_status(SHOAL_CANCELED, calls[i].status, &calls[i].error);
    }
    shoal_cancel_destroy(cancel);
    etcd_member_resume(etcd, 0);
    meta_close(meta);
}

static void test_restart_with_data(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct recorder recorder;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    int64_t revision = put(meta, "before", "1");
    struct meta_watch *watch = watch_all(meta, revision, &recorder);
    recorder_wait(&recorder, 1);
    etcd_member_kill(etcd, 0);
    enum shoal_status status = try_put(meta, "lost", 20000, &error);
    assert_status(SHOAL_METADATA, status, &error); /* refused everywhere: no need to use up the deadline */
    assert_non_null(strstr(error.message, etcd_member_endpoint(etcd, 0)));
    etcd_member_start(etcd, 0);
    put_until_ok(meta, "after");
    recorder_wait_for(&recorder, META_EVENT_PUT, "after");
    assert_int_equal(recorder.resets, 0);
    assert_true(get(meta, "before", NULL, NULL));
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static void test_restart_empty_resets_watches(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct recorder recorder;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    int64_t lease = grant(meta, 60000);
    for (int i = 0; i < 20; i++)
        put(meta, "before", "1");
    int64_t revision = put_leased(meta, "leased", "1", lease);
    struct meta_watch *watch = watch_all(meta, revision, &recorder);
    recorder_wait(&recorder, 1);
    etcd_member_kill(etcd, 0);
    etcd_member_wipe(etcd, 0);
    etcd_member_start(etcd, 0);
    recorder_wait_resets(&recorder, 1);
    assert_int_equal(count_keys(meta, "", NULL), 0);
    assert_status(SHOAL_NOT_FOUND, meta_lease_keep_alive(meta, lease, &call, &error), &error);
    put_until_ok(meta, "again");
    recorder_wait_for(&recorder, META_EVENT_PUT, "again");
    assert_int_equal(recorder.resets, 1);
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static void compact(struct etcd_cluster *etcd, int64_t revision)
{
    char body[64];
    snprintf(body, sizeof body, "{\"revision\":\"%lld\"}", (long long)revision);
    char *answer = etcd_post(etcd, 0, "/v3/kv/compaction", body);
    assert_non_null(answer);
    free(answer);
}

static void test_compaction_resets_watches(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct recorder recorder;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    int64_t first = put(meta, "a", "1");
    put(meta, "a", "2");
    compact(etcd, put(meta, "a", "3"));
    struct meta_watch *watch = watch_all(meta, first, &recorder);
    recorder_wait_resets(&recorder, 1);
    put(meta, "b", "1");
    recorder_wait_for(&recorder, META_EVENT_PUT, "b");
    assert_int_equal(recorder.resets, 1);
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static char *must_post(struct etcd_cluster *etcd, const char *path, const char *body)
{
    char *answer = etcd_post(etcd, 0, path, body);
    if (!answer)
        fail_msg("%s %s", path, body);
    return answer;
}

static void test_authentication(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct recorder recorder;
    char uri[256];
    /* Credentials for a service without authentication do no harm. */
    snprintf(uri, sizeof uri, "%s?user=root&password=s%%26cret", etcd_cluster_uri(etcd));
    struct meta *meta = open_meta(uri);
    int64_t revision = put(meta, "a", "1");

    free(must_post(etcd, "/v3/auth/user/add", "{\"name\":\"root\",\"password\":\"s&cret\"}"));
    free(must_post(etcd, "/v3/auth/role/add", "{\"name\":\"root\"}"));
    free(must_post(etcd, "/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}"));
    free(must_post(etcd, "/v3/auth/enable", "{}"));
    put(meta, "a", "2"); /* notices it */
    struct meta_watch *watch = watch_all(meta, revision, &recorder);
    recorder_wait(&recorder, 2);

    struct meta *stranger = open_meta(etcd_cluster_uri(etcd));
    assert_status(SHOAL_METADATA, try_put(stranger, "b", META_TEST_PATIENCE_MS, &error), &error);
    assert_non_null(strstr(error.message, "user name is empty"));
    meta_close(stranger);
    snprintf(uri, sizeof uri, "%s?user=root&password=wrong", etcd_cluster_uri(etcd));
    stranger = open_meta(uri);
    assert_status(SHOAL_METADATA, try_put(stranger, "b", META_TEST_PATIENCE_MS, &error), &error);
    assert_non_null(strstr(error.message, "invalid user ID or password"));
    assert_null(strstr(error.message, "wrong"));
    meta_close(stranger);

    /* A restarted member has forgotten all tokens. */
    etcd_member_kill(etcd, 0);
    etcd_member_start(etcd, 0);
    put_until_ok(meta, "c");
    recorder_wait_for(&recorder, META_EVENT_PUT, "c");
    assert_int_equal(recorder.resets, 0);
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

/* --- three members -------------------------------------------------------------------------------------------------
 */

static void test_one_of_three_stopped(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct recorder recorder;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    int64_t revision = put(meta, "start", "1");
    struct meta_watch *watch = watch_all(meta, revision + 1, &recorder);
    for (size_t i = 0; i < 3; i++) { /* each once, so also the leader and the one in use */
        char key[32];
        struct meta *fresh = open_meta(etcd_cluster_uri(etcd));
        snprintf(key, sizeof key, "stopped/%zu", i);
        etcd_member_pause(etcd, i);
        assert_status(SHOAL_OK, try_put(meta, key, 10000, &error), &error);
        assert_true(get(fresh, key, NULL, NULL));
        recorder_wait_for(&recorder, META_EVENT_PUT, key);
        etcd_member_resume(etcd, i);
        assert_true(etcd_cluster_wait_healthy(etcd, META_TEST_PATIENCE_MS));
        meta_close(fresh);
    }
    assert_int_equal(recorder.resets, 0);
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static void test_without_quorum(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    struct recorder recorder;
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    int64_t revision = put(meta, "start", "1");
    struct meta_watch *watch = watch_all(meta, revision + 1, &recorder);
    etcd_member_kill(etcd, 0);
    etcd_member_pause(etcd, 1);
    struct call call = call_for(2500);
    struct meta_entry entry;
    bool is_found;
    enum shoal_status status = meta_get(meta, bytes_of("start"), &call, &is_found, &entry, &error);
    assert_true(status == SHOAL_TIMED_OUT || status == SHOAL_METADATA);
    assert_int_equal(error.status, status);
    etcd_member_start(etcd, 0);
    etcd_member_resume(etcd, 1);
    put_until_ok(meta, "healed");
    recorder_wait_for(&recorder, META_EVENT_PUT, "healed");
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

#define CAS_THREADS 4

struct worker {
    pthread_t thread;
    struct meta *meta;
    int64_t until_ms;
    unsigned done, unknown;
};

static void *increment(void *arg)
{
    struct worker *worker = arg;
    while (!deadline_is_past(worker->until_ms)) {
        struct call call = call_for(10000);
        struct meta_entry entry;
        bool is_found = false, is_applied = false;
        if (meta_get(worker->meta, bytes_of("counter"), &call, &is_found, &entry, NULL) != SHOAL_OK)
            continue;
        char value[32];
        snprintf(value, sizeof value, "%ld", strtol(entry.value, NULL, 10) + 1);
        struct meta_compare compare = {META_MOD_REVISION_IS, bytes_of("counter"), entry.mod_revision};
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("counter"), .value = bytes_of(value)};
        enum shoal_status status = meta_txn(worker->meta, &compare, 1, &op, 1, &call, &is_applied, NULL, NULL);
        meta_entry_release(&entry);
        worker->unknown += status != SHOAL_OK;
        worker->done += status == SHOAL_OK && is_applied;
    }
    return NULL;
}

/* Whatever members do meanwhile: an increment that was reported done is done once, one that was reported failed may be
 * done. */
static void test_no_lost_update_while_members_stop(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct worker workers[CAS_THREADS] = {0};
    struct meta *meta = open_meta(etcd_cluster_uri(etcd));
    unsigned done = 0, unknown = 0;
    put(meta, "counter", "0");
    for (size_t i = 0; i < CAS_THREADS; i++) {
        workers[i].meta = open_meta(etcd_cluster_uri(etcd));
        workers[i].until_ms = deadline_after_ms(9000);
        assert_int_equal(pthread_create(&workers[i].thread, NULL, increment, &workers[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        etcd_member_pause(etcd, i);
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        etcd_member_resume(etcd, i);
    }
    for (size_t i = 0; i < CAS_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        meta_close(workers[i].meta);
        done += workers[i].done;
        unknown += workers[i].unknown;
    }
    char *value = NULL;
    assert_true(get(meta, "counter", &value, NULL));
    print_message("counter %s, done %u, unknown %u\n", value, done, unknown);
    assert_true((unsigned)atoi(value) >= done && (unsigned)atoi(value) <= done + unknown);
    assert_true(done > 0);
    free(value);
    meta_close(meta);
}

/* --- addresses, TLS ------------------------------------------------------------------------------------------------
 */

static void test_uris(void **state)
{
    (void)state;
    struct shoal_error error;
    static const struct {
        const char *uri;
        enum shoal_status expected;
    } cases[] = {
        {"127.0.0.1:2379", SHOAL_OK},
        {"127.0.0.1:2379,127.0.0.1:2380", SHOAL_OK},
        {"etcd://localhost", SHOAL_OK},
        {"etcd://[::1]:2379/", SHOAL_OK},
        {"etcd://h:1?user=a&password=b%20c", SHOAL_OK},
        {"etcds://h:1?cacert=/a&cert=/b&key=/c", SHOAL_OK},
        {"etcd://", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1,,b:2", SHOAL_INVALID_ARGUMENT},
        {"etcd://,a:1", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1,", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:0", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:65536", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:x", SHOAL_INVALID_ARGUMENT},
        {"etcd://a b:1", SHOAL_INVALID_ARGUMENT},
        {"etcd://a@b:1", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1/path", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?user=x", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?password=x", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?user=x&user=y&password=z", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?user=%zz&password=z", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?user=&password=z", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?token=z", SHOAL_INVALID_ARGUMENT},
        {"etcd://a:1?cacert=/a", SHOAL_INVALID_ARGUMENT},
        {"etcds://a:1?cert=/a", SHOAL_INVALID_ARGUMENT},
        {"a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1", SHOAL_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meta *meta = NULL;
        enum shoal_status status = meta_open(cases[i].uri, &meta, &error);
        if (status != cases[i].expected)
            fail_msg("%s: %s", cases[i].uri, shoal_status_name(status));
        meta_close(meta);
    }
}

static int setup_tls(void **state)
{
    char *directory = tmpdir_make();
    *state = NULL;
    if (!etcd_make_certificates(directory)) {
        tmpdir_remove(directory);
        return 0;
    }
    *state = etcd_cluster_start_tls(1, directory);
    free(directory); /* teardown_tls removes it */
    return 0;
}

static void test_tls(void **state)
{
    struct etcd_cluster *etcd = *state;
    struct shoal_error error;
    char uri[2048];
    if (!etcd)
        skip();
    const char *directory = etcd_cluster_certificates(etcd);
    snprintf(uri, sizeof uri, "%s?cacert=%s/ca.pem&cert=%s/client.pem&key=%s/client.key", etcd_cluster_uri(etcd),
             directory, directory, directory);
    struct recorder recorder;
    struct meta *meta = open_meta(uri);
    int64_t revision = put(meta, "a", "1");
    struct meta_watch *watch = watch_all(meta, revision, &recorder);
    recorder_wait_for(&recorder, META_EVENT_PUT, "a");
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);

    /* Each of these is refused with its own words. */
    const char *const bad[] = {"", "?cacert=%s/ca.pem", "?cacert=%s/server.pem", "?cacert=%s/none.pem"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char query[1024] = "";
        const char *percent = strstr(bad[i], "%s");
        if (percent)
            snprintf(query, sizeof query, "%.*s%s%s", (int)(percent - bad[i]), bad[i], directory, percent + 2);
        snprintf(uri, sizeof uri, "%s%s", etcd_cluster_uri(etcd), query);
        meta = open_meta(uri);
        assert_status(SHOAL_METADATA, try_put(meta, "b", META_TEST_PATIENCE_MS, &error), &error);
        print_message("%s\n", error.message);
        meta_close(meta);
    }
    /* Plain HTTP to a TLS port. */
    meta = open_meta(etcd_member_endpoint(etcd, 0));
    assert_status(SHOAL_METADATA, try_put(meta, "b", META_TEST_PATIENCE_MS, &error), &error);
    meta_close(meta);
}

static int teardown_tls(void **state)
{
    struct etcd_cluster *etcd = *state;
    if (!etcd)
        return 0;
    char *directory = strdup(etcd_cluster_certificates(etcd));
    etcd_cluster_stop(etcd);
    tmpdir_remove(directory);
    return 0;
}

int main(void)
{
    if (!etcd_is_available())
        return 77;
#define ONE(name) cmocka_unit_test_setup_teardown(name, setup_one, teardown)
#define THREE(name) cmocka_unit_test_setup_teardown(name, setup_three, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uris),
        ONE(test_stopped_member_honours_deadline),
        ONE(test_change_of_a_failed_call_does_not_come_later),
        ONE(test_cancel_ends_blocked_calls),
        ONE(test_restart_with_data),
        ONE(test_restart_empty_resets_watches),
        ONE(test_compaction_resets_watches),
        ONE(test_authentication),
        THREE(test_one_of_three_stopped),
        THREE(test_without_quorum),
        THREE(test_no_lost_update_while_members_stop),
        cmocka_unit_test_setup_teardown(test_tls, setup_tls, teardown_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
