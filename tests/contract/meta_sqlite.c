/* SPDX-License-Identifier: Apache-2.0 */
/* What only the sqlite backend has: processes that share a file, files that are not what they should be. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "meta_test.h"
#include "tmpdir.h"

struct file {
    char *directory, *path;
    char uri[512];
};

static int setup(void **state)
{
    struct file *file = calloc(1, sizeof *file);
    assert_non_null(file);
    file->directory = tmpdir_make();
    file->path = tmpdir_path(file->directory, "meta.db");
    snprintf(file->uri, sizeof file->uri, "sqlite:%s", file->path);
    *state = file;
    return 0;
}

static int teardown(void **state)
{
    struct file *file = *state;
    tmpdir_remove(file->directory);
    free(file->path);
    free(file);
    return 0;
}

static void sql(const char *path, const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static enum shoal_status try_open(const char *uri, struct shoal_error *error)
{
    struct meta *meta = NULL;
    enum shoal_status status = meta_open(uri, &meta, error);
    if (status != SHOAL_OK)
        assert_null(meta);
    meta_close(meta);
    return status;
}

/* --- processes -----------------------------------------------------------------------------------------------------
 */

#define PROCESSES 6
#define INCREMENTS 40

/* In a child: no cmocka. Returns the exit status. */
static int increment(const char *uri)
{
    struct meta *meta = NULL;
    if (meta_open(uri, &meta, NULL) != SHOAL_OK)
        return 1;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    for (int done = 0; done < INCREMENTS;) {
        struct meta_entry entry;
        bool is_found = false, is_applied = false;
        char value[32] = "1";
        if (meta_get(meta, bytes_of("counter"), &call, &is_found, &entry, NULL) != SHOAL_OK)
            return 2;
        struct meta_compare compare = {META_KEY_ABSENT, bytes_of("counter"), 0};
        if (is_found) {
            snprintf(value, sizeof value, "%ld", strtol(entry.value, NULL, 10) + 1);
            compare = (struct meta_compare){META_MOD_REVISION_IS, bytes_of("counter"), entry.mod_revision};
            meta_entry_release(&entry);
        }
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("counter"), .value = bytes_of(value)};
        if (meta_txn(meta, &compare, 1, &op, 1, &call, &is_applied, NULL, NULL) != SHOAL_OK)
            return 3;
        done += is_applied;
    }
    meta_close(meta);
    return 0;
}

static pid_t fork_child(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(99);
    }
    return pid;
}

static void test_processes_share_a_file(void **state)
{
    struct file *file = *state;
    pid_t pids[PROCESSES];
    for (size_t i = 0; i < PROCESSES; i++) { /* they also race to create the file */
        pids[i] = fork_child();
        if (pids[i] == 0)
            _exit(increment(file->uri));
    }
    for (size_t i = 0; i < PROCESSES; i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    struct meta *meta = open_meta(file->uri);
    char *value = NULL;
    assert_true(get(meta, "counter", &value, NULL));
    assert_int_equal(atoi(value), PROCESSES * INCREMENTS);
    free(value);
    meta_close(meta);
}

static void test_lease_of_a_killed_process_expires(void **state)
{
    struct file *file = *state;
    int ready[2];
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork_child();
    if (pid == 0) {
        struct meta *meta = NULL;
        struct call call = call_for(META_TEST_PATIENCE_MS);
        int64_t lease;
        bool is_applied;
        if (meta_open(file->uri, &meta, NULL) != SHOAL_OK ||
            meta_lease_grant(meta, 700, &call, &lease, NULL) != SHOAL_OK)
            _exit(1);
        struct meta_op op = {
            .kind = META_PUT, .key = bytes_of("node/child"), .value = bytes_of("here"), .lease = lease};
        if (meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, NULL) != SHOAL_OK || write(ready[1], "x", 1) != 1)
            _exit(2);
        for (;;) { /* alive as long as it is renewed */
            meta_lease_keep_alive(meta, lease, &call, NULL);
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        }
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct meta *meta = open_meta(file->uri);
    struct recorder recorder;
    struct meta_watch *watch = NULL;
    struct shoal_error error;
    int64_t revision;
    recorder_init(&recorder);
    assert_int_equal(count_keys(meta, "node/", &revision), 1);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of("node/"), revision + 1, recorder_note, &recorder, &watch, &error),
                  &error);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    recorder_wait_for(&recorder, META_EVENT_DELETE, "node/child");
    assert_int_equal(count_keys(meta, "node/", NULL), 0);
    meta_close(meta);
    recorder_release(&recorder);
    close(ready[0]);
    close(ready[1]);
}

static void test_leases_end_with_the_boot(void **state)
{
    struct file *file = *state;
    struct meta *meta = open_meta(file->uri);
    put_leased(meta, "node/a", "1", grant(meta, 3600000));
    put(meta, "kept", "1");
    meta_close(meta);
    meta = open_meta(file->uri);
    assert_true(get(meta, "node/a", NULL, NULL));
    meta_close(meta);
    sql(file->path, "UPDATE store SET boot_id='another boot'");
    meta = open_meta(file->uri);
    assert_false(get(meta, "node/a", NULL, NULL));
    assert_true(get(meta, "kept", NULL, NULL));
    /* A clock that has gone back says the same. */
    put_leased(meta, "node/b", "1", grant(meta, 3600000));
    meta_close(meta);
    sql(file->path, "UPDATE leases SET deadline_ms=deadline_ms+ttl_ms+100000000");
    meta = open_meta(file->uri);
    assert_false(get(meta, "node/b", NULL, NULL));
    meta_close(meta);
}

/* --- locks ---------------------------------------------------------------------------------------------------------
 */

struct blocked {
    pthread_t thread;
    struct meta *meta;
    struct shoal_cancel *cancel;
    int64_t timeout_ms;
    enum shoal_status status;
    struct shoal_error error;
};

static void *blocked_put(void *arg)
{
    struct blocked *blocked = arg;
    struct call call = call_for(blocked->timeout_ms);
    bool is_applied;
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("k"), .value = bytes_of("v")};
    call.cancel = blocked->cancel;
    blocked->status = meta_txn(blocked->meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &blocked->error);
    return NULL;
}

static void test_locked_file_honours_deadline_and_cancel(void **state)
{
    struct file *file = *state;
    struct meta *meta = open_meta(file->uri);
    sqlite3 *db = NULL;
    struct blocked waits[4] = {0};
    assert_int_equal(sqlite3_open(file->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_true(get(meta, "k", NULL, NULL) == false); /* reading goes on */

    /* Two end by their deadline, two by cancel; one of each waits for the file, the others for the connection. */
    for (size_t i = 0; i < 4; i++) {
        waits[i].meta = meta;
        waits[i].timeout_ms = i < 2 ? 300 : META_TEST_PATIENCE_MS;
        assert_int_equal(shoal_cancel_create(&waits[i].cancel), SHOAL_OK);
        assert_int_equal(pthread_create(&waits[i].thread, NULL, blocked_put, &waits[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        pthread_join(waits[i].thread, NULL);
        assert_status(SHOAL_TIMED_OUT, waits[i].status, &waits[i].error);
    }
    for (size_t i = 2; i < 4; i++)
        shoal_cancel_trigger(waits[i].cancel);
    for (size_t i = 2; i < 4; i++) {
        pthread_join(waits[i].thread, NULL);
        assert_status(SHOAL_CANCELED, waits[i].status, &waits[i].error);
    }
    for (size_t i = 0; i < 4; i++)
        shoal_cancel_destroy(waits[i].cancel);
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_false(get(meta, "k", NULL, NULL));
    put(meta, "k", "v");
    meta_close(meta);
}

/* --- the log and the file ------------------------------------------------------------------------------------------
 */

static void test_watch_behind_the_log_resets(void **state)
{
    struct file *file = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta *meta = open_meta(file->uri);
    struct recorder recorder;
    struct meta_watch *watch = NULL;
    char *blob = calloc(1, META_VALUE_MAX_BYTES);
    assert_non_null(blob);
    int64_t first = put(meta, "first", "1");
    for (int i = 0; i < 30; i++) { /* more bytes than the log keeps */
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("big"), .value = {blob, META_VALUE_MAX_BYTES}};
        bool is_applied;
        assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    }
    free(blob);
    recorder_init(&recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of(""), first + 1, recorder_note, &recorder, &watch, &error),
                  &error);
    recorder_wait_resets(&recorder, 1);
    put(meta, "later", "1");
    recorder_wait_for(&recorder, META_EVENT_PUT, "later");
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static void test_removed_file_starts_anew(void **state)
{
    struct file *file = *state;
    struct shoal_error error;
    struct meta *meta = open_meta(file->uri);
    struct recorder recorder;
    struct meta_watch *watch = NULL;
    int64_t revision = put(meta, "a", "1");
    recorder_init(&recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of(""), revision, recorder_note, &recorder, &watch, &error), &error);
    recorder_wait(&recorder, 1);
    assert_int_equal(unlink(file->path), 0);
    assert_false(get(meta, "a", NULL, NULL));
    recorder_wait_resets(&recorder, 1);
    put(meta, "b", "1");
    recorder_wait_for(&recorder, META_EVENT_PUT, "b");
    meta_watch_close(watch);
    recorder_release(&recorder);
    meta_close(meta);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 200; i++)
        fputs(text, file);
    fclose(file);
}

static void assert_message(const struct shoal_error *error, const char *part)
{
    if (!strstr(error->message, part))
        fail_msg("\"%s\" does not say \"%s\"", error->message, part);
}

static void test_bad_files(void **state)
{
    struct file *file = *state;
    struct shoal_error error;
    struct stat info;
    char uri[600];

    assert_status(SHOAL_OK, try_open(file->uri, &error), &error);
    assert_int_equal(stat(file->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);

    sql(file->path, "PRAGMA user_version=2");
    assert_status(SHOAL_METADATA, try_open(file->uri, &error), &error);
    assert_message(&error, "schema version 2");

    unlink(file->path);
    sql(file->path, "CREATE TABLE foreign_table(a)");
    assert_status(SHOAL_METADATA, try_open(file->uri, &error), &error);
    assert_message(&error, "another application");

    unlink(file->path);
    write_file(file->path, "this is no database at all; ");
    assert_status(SHOAL_METADATA, try_open(file->uri, &error), &error);
    assert_message(&error, "is not a SQLite database; give another path");
    assert_null(strstr(error.message, "remove"));

    unlink(file->path);
    assert_int_equal(mkdir(file->path, 0700), 0);
    assert_status(SHOAL_METADATA, try_open(file->uri, &error), &error);
    rmdir(file->path);

    snprintf(uri, sizeof uri, "sqlite:%s/none/meta.db", file->directory);
    assert_status(SHOAL_METADATA, try_open(uri, &error), &error);
    assert_int_equal(error.sys_errno, ENOENT);
    assert_message(&error, "No such file");

    if (geteuid() == 0) {
        print_message("unwritable directory: not tested as root\n");
    } else {
        chmod(file->directory, 0500);
        assert_status(SHOAL_METADATA, try_open(file->uri, &error), &error);
        assert_int_equal(error.sys_errno, EACCES);
        chmod(file->directory, 0700);
    }
}

static void test_damage_in_use(void **state)
{
    struct file *file = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta *meta = open_meta(file->uri);
    bool is_applied;
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("a"), .value = bytes_of("1")};
    put(meta, "a", "1");
    sql(file->path, "DROP TABLE log");
    assert_status(SHOAL_METADATA, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    assert_message(&error, file->path);
    assert_true(get(meta, "a", NULL, NULL)); /* what can be read is read */
    meta_close(meta);
}

static void test_relative_path(void **state)
{
    struct file *file = *state;
    char *before = getcwd(NULL, 0);
    assert_int_equal(chdir(file->directory), 0);
    struct meta *meta = open_meta("sqlite:meta.db");
    assert_int_equal(chdir("/"), 0);
    struct recorder recorder;
    struct meta_watch *watch = NULL;
    struct shoal_error error;
    recorder_init(&recorder);
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of(""), 1, recorder_note, &recorder, &watch, &error), &error);
    put(meta, "a", "1");
    recorder_wait_for(&recorder, META_EVENT_PUT, "a");
    assert_int_equal(access(file->path, F_OK), 0);
    meta_close(meta);
    recorder_release(&recorder);
    assert_int_equal(chdir(before), 0);
    free(before);
}

static void test_uris(void **state)
{
    (void)state;
    struct shoal_error error;
    char longest[8192] = "sqlite:/";
    memset(longest + 8, 'x', sizeof longest - 9);
    const char *const bad[] = {"", "sqlite:", "sqlite::memory:", "nothing", "redis://127.0.0.1:1", longest};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(SHOAL_INVALID_ARGUMENT, try_open(bad[i], &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, try_open(NULL, &error), &error);
    meta_close(NULL);
    meta_watch_close(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_processes_share_a_file),
        TEST(test_lease_of_a_killed_process_expires),
        TEST(test_leases_end_with_the_boot),
        TEST(test_locked_file_honours_deadline_and_cancel),
        TEST(test_watch_behind_the_log_resets),
        TEST(test_removed_file_starts_anew),
        TEST(test_bad_files),
        TEST(test_damage_in_use),
        TEST(test_relative_path),
        TEST(test_uris),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
