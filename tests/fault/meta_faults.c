/* SPDX-License-Identifier: Apache-2.0 */
/* A metadata service that answers nonsense, not at all, or without end; an answer that is lost; a full disk. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fake_http.h"
#include "meta_test.h"
#include "tmpdir.h"

#define HEADER "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\",\"revision\":\"7\",\"raft_term\":\"2\"}"
#define EMPTY "{" HEADER "}"

static struct meta *open_fake(const struct fake_server *first, const struct fake_server *second)
{
    char uri[128];
    snprintf(uri, sizeof uri, "etcd://%s%s%s", fake_server_address(first), second ? "," : "",
             second ? fake_server_address(second) : "");
    return open_meta(uri);
}

enum call_kind { GET, LIST, TXN, GRANT, KEEP_ALIVE, REVOKE, PING, CALL_KINDS };

static enum shoal_status do_call(struct meta *meta, enum call_kind kind, int64_t timeout_ms, struct shoal_error *error)
{
    struct call call = call_for(timeout_ms);
    struct meta_entry entry = {0};
    struct meta_entries entries = {0};
    bool is_found = false, is_applied = false;
    int64_t number;
    struct meta_health health;
    enum shoal_status status = SHOAL_INTERNAL;
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("k"), .value = bytes_of("v")};
    switch (kind) {
    case GET:
        status = meta_get(meta, bytes_of("k"), &call, &is_found, &entry, error);
        break;
    case LIST:
        status = meta_list(meta, bytes_of("k"), 0, &call, &entries, error);
        break;
    case TXN:
        status = meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, &number, error);
        break;
    case GRANT:
        status = meta_lease_grant(meta, 5000, &call, &number, error);
        break;
    case KEEP_ALIVE:
        status = meta_lease_keep_alive(meta, 5, &call, error);
        break;
    case REVOKE:
        status = meta_lease_revoke(meta, 5, &call, error);
        break;
    case PING:
        status = meta_ping(meta, &call, &health, error);
        break;
    case CALL_KINDS:
        break;
    }
    meta_entry_release(&entry);
    meta_entries_release(&entries);
    return status;
}

/* --- nonsense ------------------------------------------------------------------------------------------------------
 */

static const struct fake_step nonsense[] = {
    {FAKE_ANSWER, 200, "<html><body>It works!</body></html>"},
    {FAKE_ANSWER, 502, "<html><h1>Bad Gateway</h1></html>"},
    {FAKE_ANSWER, 404, "404 page not found"},
    {FAKE_ANSWER, 302, "moved"},
    {FAKE_ANSWER, 200, NULL},
    {FAKE_ANSWER, 204, NULL},
    {FAKE_ANSWER, 200, "{"},
    {FAKE_ANSWER, 200, "[]"},
    {FAKE_ANSWER, 200, "{}"},
    {FAKE_ANSWER, 200, "{\"header\":\"none\",\"result\":\"none\"}"},
    {FAKE_ANSWER, 200, "{\"header\":{\"revision\":\"many\"},\"result\":{\"header\":{\"revision\":{}}},\"version\":3}"},
    {FAKE_ANSWER, 200, "{\"header\":{\"revision\":\"-7\"}}"},
    {FAKE_ANSWER, 200, "{\"header\":{\"revision\":\"99999999999999999999999\"}}"},
    {FAKE_ANSWER, 500, "{\"error\":\"etcdserver: everything is broken\",\"code\":13}"},
    {FAKE_ANSWER, 503, "{\"error\":\"etcdserver: no leader\",\"code\":14}"},
    {FAKE_ANSWER, 200, "{\"error\":{\"grpc_code\":14,\"message\":\"etcdserver: no leader\"}}"},
    {FAKE_CLOSE, 0, NULL},
    {FAKE_CLOSE_REQUEST, 0, NULL},
    {FAKE_SILENT, 0, NULL},
    {FAKE_SILENT_REQUEST, 0, NULL},
    {FAKE_TRUNCATED, 0, EMPTY},
    {FAKE_STALLED, 0, EMPTY},
    {FAKE_ENDLESS_BODY, 0, NULL},
    {FAKE_ENDLESS_HEADERS, 0, NULL},
    {FAKE_HUGE_LENGTH, 0, NULL},
    {FAKE_GARBAGE, 0, NULL},
};

static void test_nonsense_is_an_error(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        struct fake_server *server = fake_server_start(&nonsense[i], 1);
        struct meta *meta = open_fake(server, NULL);
        for (int kind = 0; kind < CALL_KINDS; kind++) {
            struct shoal_error error = {0};
            enum shoal_status status = do_call(meta, (enum call_kind)kind, 150, &error);
            if ((status != SHOAL_METADATA && status != SHOAL_TIMED_OUT) || error.status != status)
                fail_msg("nonsense %zu, call %d: %s", i, kind, shoal_status_name(status));
            if (!strstr(error.message, fake_server_address(server)))
                fail_msg("nonsense %zu, call %d: no endpoint in \"%s\"", i, kind, error.message);
        }
        meta_close(meta);
        fake_server_stop(server);
    }
}

/* Answers that are JSON of the right shape and wrong all the same. */
static void test_wrong_answers(void **state)
{
    (void)state;
    static const struct {
        struct fake_step step;
        enum call_kind kind;
    } cases[] = {
        {{FAKE_ANSWER, 200, "{" HEADER ",\"kvs\":[{\"key\":\"eA==\",\"mod_revision\":\"1\"}]}"}, GET},
        {{FAKE_ANSWER, 200,
          "{" HEADER ",\"kvs\":[{\"key\":\"aw==\",\"mod_revision\":\"1\"},{\"key\":\"aw==\",\"mod_revision\":\"1\"}]}"},
         GET},
        {{FAKE_ANSWER, 200, "{" HEADER ",\"kvs\":[{\"key\":\"eA==\",\"mod_revision\":\"1\"}]}"}, LIST},
        {{FAKE_ANSWER, 200, "{" HEADER ",\"kvs\":[{\"key\":\"aw==\",\"mod_revision\":\"1\"}],\"more\":true}"}, LIST},
        {{FAKE_ANSWER, 200, "{" HEADER ",\"more\":true}"}, LIST},
        {{FAKE_ANSWER, 200, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"9\"}"}, GRANT},
        {{FAKE_ANSWER, 400, "{\"error\":\"etcdserver: mvcc: required revision has been compacted\",\"code\":11}"},
         LIST},
        {{FAKE_ANSWER, 429, "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}"}, TXN},
        {{FAKE_ANSWER, 403, "{\"error\":\"etcdserver: permission denied\",\"code\":7}"}, TXN},
        {{FAKE_ANSWER, 401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}"}, TXN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error = {0};
        struct fake_server *server = fake_server_start(&cases[i].step, 1);
        struct meta *meta = open_fake(server, NULL);
        enum shoal_status status = do_call(meta, cases[i].kind, META_TEST_PATIENCE_MS, &error);
        if (status != SHOAL_METADATA)
            fail_msg("case %zu: %s", i, shoal_status_name(status));
        meta_close(meta);
        fake_server_stop(server);
    }
}

static void test_bad_member_is_left_for_a_good_one(void **state)
{
    (void)state;
    static const struct fake_step good = {FAKE_ANSWER, 200, EMPTY};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        if (nonsense[i].status == 500) /* the word of a working member about the request itself */
            continue;
        struct fake_server *bad_server = fake_server_start(&nonsense[i], 1);
        struct fake_server *good_server = fake_server_start(&good, 1);
        struct meta *meta = open_fake(bad_server, good_server);
        for (int round = 0; round < 3; round++) {
            struct shoal_error error = {0};
            enum shoal_status status = do_call(meta, LIST, 1200, &error);
            /* An answer without end could be an honest long list: it is asked for in smaller parts first. */
            if (status != SHOAL_OK && nonsense[i].behaviour != FAKE_ENDLESS_BODY &&
                nonsense[i].behaviour != FAKE_HUGE_LENGTH)
                fail_msg("nonsense %zu: %s: %s", i, shoal_status_name(status), error.message);
        }
        meta_close(meta);
        fake_server_stop(bad_server);
        fake_server_stop(good_server);
    }
}

/* --- lost answers --------------------------------------------------------------------------------------------------
 */

static enum shoal_status guarded_put(struct meta *meta, int64_t lease, bool *is_applied, struct shoal_error *error)
{
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_compare compare = {META_KEY_ABSENT, bytes_of("k"), 0};
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("k"), .value = bytes_of("v"), .lease = lease};
    return meta_txn(meta, &compare, 1, &op, 1, &call, is_applied, NULL, error);
}

static void test_lost_answer(void **state)
{
    (void)state;
    static const struct fake_step not_applied[] = {{FAKE_CLOSE_REQUEST, 0, NULL}, {FAKE_ANSWER, 200, EMPTY}};
    static const struct fake_step applied_now[] = {{FAKE_CLOSE_REQUEST, 0, NULL},
                                                   {FAKE_ANSWER, 200, "{" HEADER ",\"succeeded\":true}"}};
    static const struct fake_step applied_before[] = {
        {FAKE_CLOSE_REQUEST, 0, NULL},
        {FAKE_ANSWER, 200, EMPTY},
        {FAKE_ANSWER, 200,
         "{" HEADER ",\"kvs\":[{\"key\":\"aw==\",\"value\":\"dg==\",\"lease\":\"55\",\"mod_revision\":\"6\"}]}"}};
    static const struct fake_step other_owner[] = {
        {FAKE_CLOSE_REQUEST, 0, NULL},
        {FAKE_ANSWER, 200, EMPTY},
        {FAKE_ANSWER, 200,
         "{" HEADER ",\"kvs\":[{\"key\":\"aw==\",\"value\":\"dg==\",\"lease\":\"56\",\"mod_revision\":\"6\"}]}"}};
    static const struct {
        const struct fake_step *steps;
        size_t count;
        int64_t lease;
        enum shoal_status expected;
    } cases[] = {
        {applied_now, 2, 0, SHOAL_OK},     {not_applied, 2, 0, SHOAL_METADATA},    {not_applied, 2, 55, SHOAL_METADATA},
        {applied_before, 3, 55, SHOAL_OK}, {applied_before, 3, 0, SHOAL_METADATA}, {other_owner, 3, 55, SHOAL_METADATA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shoal_error error;
        struct fake_server *server = fake_server_start(cases[i].steps, cases[i].count);
        struct meta *meta = open_fake(server, NULL);
        bool is_applied = false;
        assert_status(cases[i].expected, guarded_put(meta, cases[i].lease, &is_applied, &error), &error);
        if (cases[i].expected == SHOAL_OK)
            assert_true(is_applied);
        else
            assert_non_null(strstr(error.message, "unknown"));
        meta_close(meta);
        fake_server_stop(server);
    }
}

/* A member that does not ask for the body has not got it, whatever it does later. */
static void test_body_of_a_change_waits(void **state)
{
    (void)state;
    static const struct fake_step silent = {FAKE_SILENT, 0, NULL};
    struct shoal_error error;
    struct fake_server *server = fake_server_start(&silent, 1);
    struct meta *meta = open_fake(server, NULL);
    assert_status(SHOAL_TIMED_OUT, do_call(meta, TXN, 1500, &error), &error);
    meta_close(meta);
    assert_int_equal(fake_server_body_bytes(server), 0);
    fake_server_stop(server);

    static const struct fake_step asking = {FAKE_ANSWER, 200, "{" HEADER ",\"succeeded\":true}"};
    server = fake_server_start(&asking, 1);
    meta = open_fake(server, NULL);
    assert_status(SHOAL_OK, do_call(meta, TXN, META_TEST_PATIENCE_MS, &error), &error);
    assert_int_equal(fake_server_requests(server), 1);
    assert_true(fake_server_body_bytes(server) > 20);
    meta_close(meta);
    fake_server_stop(server);
}

/* --- watches -------------------------------------------------------------------------------------------------------
 */

#define CREATED "{\"result\":{" HEADER ",\"created\":true}}\n"
#define EVENT                                                                                                          \
    "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"aw==\",\"value\":\"dg==\",\"mod_revision\":\"8\"}}]}}\n"

static void test_watch_survives_nonsense(void **state)
{
    (void)state;
    static const struct fake_step steps[] = {
        {FAKE_CLOSE, 0, NULL},
        {FAKE_ANSWER, 200, "<html></html>\n"},
        {FAKE_ANSWER, 500, "broken"},
        {FAKE_ENDLESS_BODY, 0, NULL},
        {FAKE_ANSWER, 200, "{\"result\":{\"header\":{}}}\n{\"result\":7}\n"},
        {FAKE_ANSWER, 200, "{\"error\":{\"grpc_code\":14,\"message\":\"etcdserver: no leader\"}}"},
        {FAKE_ANSWER, 200, EVENT}, /* an event before the watch stands */
        {FAKE_TRUNCATED, 0, CREATED "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"aw="},
        {FAKE_STALLED, 0, CREATED EVENT},
    };
    struct shoal_error error;
    struct recorder recorder;
    struct meta_watch *watch = NULL;
    struct fake_server *server = fake_server_start(steps, sizeof steps / sizeof *steps);
    struct meta *meta = open_fake(server, NULL);
    recorder_init(&recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of("k"), 8, recorder_note, &recorder, &watch, &error), &error);
    recorder_wait_for(&recorder, META_EVENT_PUT, "k");
    meta_watch_close(watch);
    assert_int_equal(recorder.count, 1);
    assert_int_equal(recorder.resets, 0);
    recorder_release(&recorder);
    meta_close(meta);
    fake_server_stop(server);
}

/* A member that lags behind the revision to watch from is no other store: it is asked before anybody is told RESET. */
static void test_watch_on_a_member_that_lags(void **state)
{
    (void)state;
    static const struct fake_step steps[] = {
        {FAKE_STALLED, 0, CREATED},
        {FAKE_ANSWER, 200, "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"25\",\"raft_term\":\"2\"}}"},
    };
    struct shoal_error error;
    struct recorder recorder;
    struct meta_counters counters;
    struct meta_watch *watch = NULL;
    struct fake_server *server = fake_server_start(steps, sizeof steps / sizeof *steps);
    struct meta *meta = open_fake(server, NULL);
    recorder_init(&recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of("k"), 20, recorder_note, &recorder, &watch, &error), &error);
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    while (fake_server_requests(server) < 3) { /* the watch, the question at once, the question after silence */
        assert_false(deadline_is_past(deadline_ms));
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    meta_watch_close(watch);
    meta_counters(meta, &counters);
    assert_int_equal(counters.watches, 1);
    assert_int_equal(recorder.resets, 0);
    recorder_release(&recorder);
    meta_close(meta);
    fake_server_stop(server);
}

/* --- a full disk ---------------------------------------------------------------------------------------------------
 */

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return is_written;
}

/* A mount namespace of our own; without root inside a user namespace that maps us to root. */
static bool may_mount(void)
{
    char map[64];
    unsigned uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWNS) == 0)
        return true;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_text("/proc/self/setgroups", "deny"))
        return false;
    snprintf(map, sizeof map, "0 %u 1", gid);
    if (!write_text("/proc/self/gid_map", map))
        return false;
    snprintf(map, sizeof map, "0 %u 1", uid);
    return write_text("/proc/self/uid_map", map);
}

/* In a child, with a small file system of its own. 0: good, 1: wrong, 77: not possible here. */
static int fill_disk(const char *directory)
{
    char uri[512];
    struct meta *meta = NULL;
    struct shoal_error error;
    static char value[100000];
    if (!may_mount() || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", directory, "tmpfs", 0, "size=1m") != 0)
        return 77;
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", directory);
    if (meta_open(uri, &meta, &error) != SHOAL_OK) {
        fprintf(stderr, "open: %s\n", error.message);
        return 1;
    }
    for (int i = 0; i < 100; i++) {
        char key[16];
        bool is_applied, is_found;
        struct call call = call_for(META_TEST_PATIENCE_MS);
        struct meta_entry entry;
        snprintf(key, sizeof key, "%d", i);
        struct meta_op op = {.kind = META_PUT, .key = bytes_of(key), .value = {value, sizeof value}};
        enum shoal_status status = meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error);
        if (status == SHOAL_OK)
            continue;
        fprintf(stderr, "put %d: %s\n", i, error.message);
        if (i == 0 || status != SHOAL_METADATA || error.sys_errno != ENOSPC || !strstr(error.message, "no space"))
            return 1;
        /* What was there is still there, what failed is not, and a small thing may still be read. */
        if (meta_get(meta, bytes_of("0"), &call, &is_found, &entry, &error) != SHOAL_OK || !is_found)
            return 1;
        meta_entry_release(&entry);
        if (meta_get(meta, bytes_of(key), &call, &is_found, &entry, &error) != SHOAL_OK || is_found)
            return 1;
        meta_close(meta);
        return 0;
    }
    return 1;
}

static void test_full_disk(void **state)
{
    (void)state;
    int status;
    char *directory = tmpdir_make();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fill_disk(directory));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    tmpdir_remove(directory);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("SKIPPED: no file system of our own can be mounted here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_disk), /* forks: before there are threads */
        cmocka_unit_test(test_nonsense_is_an_error),
        cmocka_unit_test(test_wrong_answers),
        cmocka_unit_test(test_bad_member_is_left_for_a_good_one),
        cmocka_unit_test(test_lost_answer),
        cmocka_unit_test(test_body_of_a_change_waits),
        cmocka_unit_test(test_watch_survives_nonsense),
        cmocka_unit_test(test_watch_on_a_member_that_lags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
