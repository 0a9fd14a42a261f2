/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of meta.h, run on every backend: meta_contract sqlite | etcd1 | etcd3. */
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

static struct {
    const char *backend; /* the argument */
    struct etcd_cluster *etcd;
    char *directory;
    char uri[512];
} service;

static int start_service(void **state)
{
    (void)state;
    if (strcmp(service.backend, "sqlite") == 0) {
        service.directory = tmpdir_make();
        snprintf(service.uri, sizeof service.uri, "sqlite:%s/meta.db", service.directory);
        return 0;
    }
    service.etcd = etcd_cluster_start(strcmp(service.backend, "etcd3") == 0 ? 3 : 1);
    snprintf(service.uri, sizeof service.uri, "%s", etcd_cluster_uri(service.etcd));
    return 0;
}

static int stop_service(void **state)
{
    (void)state;
    etcd_cluster_stop(service.etcd);
    tmpdir_remove(service.directory);
    return 0;
}

static int setup(void **state)
{
    *state = open_meta(service.uri);
    return 0;
}

/* Each test leaves the store empty. */
static int teardown(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_op op = {.kind = META_DELETE_PREFIX, .key = bytes_of("")};
    bool is_applied;
    assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    meta_close(meta);
    return 0;
}

/* --- get, put, delete ----------------------------------------------------------------------------------------------
 */

static void test_put_get_delete(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_entry entry;
    bool is_found = true;
    assert_false(get(meta, "a", NULL, NULL));

    int64_t first = put(meta, "a", "one");
    int64_t second = put(meta, "a", "two");
    assert_true(second > first);
    assert_status(SHOAL_OK, meta_get(meta, bytes_of("a"), &call, &is_found, &entry, &error), &error);
    assert_true(is_found);
    assert_string_equal(entry.value, "two");
    assert_int_equal(entry.value_len, 3);
    assert_int_equal(entry.create_revision, first);
    assert_int_equal(entry.mod_revision, second);
    assert_int_equal(entry.lease, 0);
    meta_entry_release(&entry);

    int64_t third = delete_key(meta, "a");
    assert_true(third > second);
    assert_false(get(meta, "a", NULL, NULL));
    /* Deleting what is absent is fine and changes nothing. */
    assert_int_equal(delete_key(meta, "a"), third);
    /* A new life has a new create revision. */
    int64_t fourth = put(meta, "a", "three");
    assert_status(SHOAL_OK, meta_get(meta, bytes_of("a"), &call, &is_found, &entry, &error), &error);
    assert_int_equal(entry.create_revision, fourth);
    meta_entry_release(&entry);
}

static void test_binary_keys_and_values(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    static const struct {
        const char *data;
        size_t len;
    } keys[] = {{"\0", 1},   {"\0\0", 2},     {"k\0y", 3},        {"k\"\\/\n", 5},
                {"\xff", 1}, {"\xff\xff", 2}, {"\xff\xff\x01", 3}};
    const size_t count = sizeof keys / sizeof *keys;
    for (size_t i = 0; i < count; i++) {
        bool is_applied;
        struct meta_op op = {.kind = META_PUT, .key = {keys[i].data, keys[i].len}, .value = {keys[i].data, i}};
        op.value.len = i % 2 ? keys[i].len : 0; /* empty values too */
        assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    }
    for (size_t i = 0; i < count; i++) {
        struct meta_entry entry;
        bool is_found = false;
        assert_status(SHOAL_OK,
                      meta_get(meta, (struct meta_bytes){keys[i].data, keys[i].len}, &call, &is_found, &entry, &error),
                      &error);
        assert_true(is_found);
        assert_int_equal(entry.key_len, keys[i].len);
        assert_memory_equal(entry.key, keys[i].data, keys[i].len);
        assert_int_equal(entry.value_len, i % 2 ? keys[i].len : 0);
        assert_memory_equal(entry.value, keys[i].data, entry.value_len);
        assert_int_equal(entry.key[entry.key_len], 0);
        assert_int_equal(entry.value[entry.value_len], 0);
        meta_entry_release(&entry);
    }
    struct meta_entries entries;
    assert_status(SHOAL_OK, meta_list(meta, bytes_of(""), 0, &call, &entries, &error), &error);
    assert_int_equal(entries.count, count);
    meta_entries_release(&entries);
    assert_status(SHOAL_OK, meta_list(meta, bytes_of("\xff"), 0, &call, &entries, &error), &error);
    assert_int_equal(entries.count, 3);
    assert_memory_equal(entries.items[2].key, "\xff\xff\x01", 3);
    meta_entries_release(&entries);
    assert_int_equal(count_keys(meta, "\xff\xff", NULL), 2);
    assert_int_equal(count_keys(meta, "k", NULL), 2);
}

/* --- list ----------------------------------------------------------------------------------------------------------
 */

static void put_many(struct meta *meta, const char *prefix, unsigned count)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_op ops[META_TXN_MAX_OPS];
    char keys[META_TXN_MAX_OPS][64];
    for (unsigned done = 0; done < count;) {
        size_t batch = 0;
        bool is_applied = false;
        for (; batch < META_TXN_MAX_OPS && done < count; batch++, done++) {
            snprintf(keys[batch], sizeof keys[batch], "%s%06u", prefix, done);
            ops[batch] =
                (struct meta_op){.kind = META_PUT, .key = bytes_of(keys[batch]), .value = bytes_of(keys[batch])};
        }
        assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, ops, batch, &call, &is_applied, NULL, &error), &error);
        assert_true(is_applied);
    }
}

static void test_list_pages(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_entries entries = {0};
    put_many(meta, "list/", 5000);
    put(meta, "lisu", "behind");
    int64_t last = put(meta, "lis", "before");

    assert_status(SHOAL_OK, meta_list(meta, bytes_of("list/"), 0, &call, &entries, &error), &error);
    assert_int_equal(entries.count, 5000);
    assert_int_equal(entries.revision, last);
    for (unsigned i = 0; i < 5000; i++) {
        char key[64];
        snprintf(key, sizeof key, "list/%06u", i);
        assert_string_equal(entries.items[i].key, key);
        assert_string_equal(entries.items[i].value, key);
    }
    meta_entries_release(&entries);

    assert_status(SHOAL_OK, meta_list(meta, bytes_of("list/"), 5000, &call, &entries, &error), &error);
    assert_int_equal(entries.count, 5000);
    meta_entries_release(&entries);
    assert_status(SHOAL_LIMIT, meta_list(meta, bytes_of("list/"), 4999, &call, &entries, &error), &error);
    assert_status(SHOAL_OK, meta_list(meta, bytes_of("nothing/"), 1, &call, &entries, &error), &error);
    assert_int_equal(entries.count, 0);
    assert_int_equal(entries.revision, last);
    meta_entries_release(&entries);
}

static void test_list_large_values(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    const size_t len = META_VALUE_MAX_BYTES, count = 20;
    char *value = malloc(len);
    assert_non_null(value);
    for (size_t i = 0; i < count; i++) {
        char key[32];
        bool is_applied;
        snprintf(key, sizeof key, "large/%02zu", i);
        memset(value, 'a' + (int)i, len);
        struct meta_op op = {.kind = META_PUT, .key = bytes_of(key), .value = {value, len}};
        assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    }
    struct meta_entries entries = {0};
    assert_status(SHOAL_OK, meta_list(meta, bytes_of("large/"), 0, &call, &entries, &error), &error);
    assert_int_equal(entries.count, count);
    for (size_t i = 0; i < count; i++) {
        memset(value, 'a' + (int)i, len);
        assert_int_equal(entries.items[i].value_len, len);
        assert_memory_equal(entries.items[i].value, value, len);
    }
    meta_entries_release(&entries);
    free(value);
}

/* --- transactions --------------------------------------------------------------------------------------------------
 */

static void test_compares(void **state)
{
    struct meta *meta = *state;
    struct meta_op set = {.kind = META_PUT, .key = bytes_of("out"), .value = bytes_of("x")};
    int64_t revision = put(meta, "dir/key", "v");
    const struct {
        struct meta_compare compare;
        bool holds;
    } cases[] = {
        {{META_KEY_ABSENT, bytes_of("dir/none"), 0}, true},
        {{META_KEY_ABSENT, bytes_of("dir/key"), 0}, false},
        {{META_KEY_ABSENT, bytes_of("dir/"), 0}, true},
        {{META_KEY_PRESENT, bytes_of("dir/key"), 0}, true},
        {{META_KEY_PRESENT, bytes_of("dir/none"), 0}, false},
        {{META_MOD_REVISION_IS, bytes_of("dir/key"), revision}, true},
        {{META_MOD_REVISION_IS, bytes_of("dir/key"), revision + 1}, false},
        {{META_MOD_REVISION_IS, bytes_of("dir/none"), revision}, false},
        {{META_PREFIX_ABSENT, bytes_of("dir/"), 0}, false},
        {{META_PREFIX_ABSENT, bytes_of("dir/key"), 0}, false},
        {{META_PREFIX_ABSENT, bytes_of("dir/keys"), 0}, true},
        {{META_PREFIX_ABSENT, bytes_of("di/"), 0}, true},
        {{META_PREFIX_ABSENT, bytes_of("\xff"), 0}, true},
        {{META_PREFIX_ABSENT, bytes_of(""), 0}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_applied = txn_one(meta, cases[i].compare, set);
        if (is_applied != cases[i].holds)
            fail_msg("compare %zu: %d", i, is_applied);
        assert_int_equal(get(meta, "out", NULL, NULL), cases[i].holds);
        delete_key(meta, "out");
    }
}

static void test_txn_is_atomic(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    bool is_applied = true;
    int64_t before = put(meta, "t/a", "1"), after = 0;
    put(meta, "t/d/1", "1");
    before = put(meta, "t/d/2", "2");

    struct meta_compare compares[] = {{META_KEY_PRESENT, bytes_of("t/a"), 0}, {META_KEY_ABSENT, bytes_of("t/a"), 0}};
    struct meta_op ops[] = {
        {.kind = META_PUT, .key = bytes_of("t/a"), .value = bytes_of("2")},
        {.kind = META_PUT, .key = bytes_of("t/b"), .value = bytes_of("2")},
        {.kind = META_DELETE_PREFIX, .key = bytes_of("t/d/")},
        {.kind = META_DELETE, .key = bytes_of("t/none")},
    };
    /* One compare of two fails: nothing happens. */
    assert_status(SHOAL_OK, meta_txn(meta, compares, 2, ops, 4, &call, &is_applied, &after, &error), &error);
    assert_false(is_applied);
    assert_int_equal(after, before);
    assert_int_equal(count_keys(meta, "t/", NULL), 3);
    /* All changes have one revision. */
    assert_status(SHOAL_OK, meta_txn(meta, compares, 1, ops, 4, &call, &is_applied, &after, &error), &error);
    assert_true(is_applied);
    assert_true(after > before);
    int64_t of_a = 0, of_b = 0;
    assert_true(get(meta, "t/a", NULL, &of_a) && get(meta, "t/b", NULL, &of_b));
    assert_int_equal(of_a, after);
    assert_int_equal(of_b, after);
    assert_int_equal(count_keys(meta, "t/", NULL), 2);
    /* A put under a lease that does not exist takes everything down with it. */
    struct meta_op leased[] = {{.kind = META_PUT, .key = bytes_of("t/c"), .value = bytes_of("3")},
                               {.kind = META_PUT, .key = bytes_of("t/e"), .value = bytes_of("3"), .lease = 4711}};
    assert_status(SHOAL_NOT_FOUND, meta_txn(meta, NULL, 0, leased, 2, &call, &is_applied, &after, &error), &error);
    assert_int_equal(count_keys(meta, "t/", NULL), 2);
    /* No operations, no compares: only asks for the revision. */
    assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, NULL, 0, &call, &is_applied, &after, &error), &error);
    assert_true(is_applied);
    assert_int_equal(after, of_a);
}

static void test_limits(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    bool is_applied, is_found;
    char *blob = malloc(META_VALUE_MAX_BYTES + 1);
    char long_key[META_KEY_MAX_BYTES + 1];
    assert_non_null(blob);
    memset(blob, 0xfe, META_VALUE_MAX_BYTES + 1);
    memset(long_key, 0xff, sizeof long_key);

    struct meta_op op = {
        .kind = META_PUT, .key = {long_key, META_KEY_MAX_BYTES}, .value = {blob, META_VALUE_MAX_BYTES}};
    assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    struct meta_entry entry;
    assert_status(SHOAL_OK, meta_get(meta, op.key, &call, &is_found, &entry, &error), &error);
    assert_true(is_found);
    assert_int_equal(entry.value_len, META_VALUE_MAX_BYTES);
    assert_memory_equal(entry.value, blob, META_VALUE_MAX_BYTES);
    meta_entry_release(&entry);
    assert_int_equal(count_keys(meta, "\xff\xff\xff", NULL), 1);

    op.value.len++;
    assert_status(SHOAL_INVALID_ARGUMENT, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    op.value.len = 0;
    op.key.len++;
    assert_status(SHOAL_INVALID_ARGUMENT, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    op.key.len = 0;
    assert_status(SHOAL_INVALID_ARGUMENT, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, meta_get(meta, op.key, &call, &is_found, &entry, &error), &error);

    /* The largest transaction in bytes and in operations; one more of each. */
    struct meta_op ops[META_TXN_MAX_OPS + 1];
    struct meta_compare compares[META_TXN_MAX_OPS + 1];
    char keys[META_TXN_MAX_OPS + 1][8];
    for (size_t i = 0; i <= META_TXN_MAX_OPS; i++) {
        snprintf(keys[i], sizeof keys[i], "%06zu", i);
        ops[i] = (struct meta_op){.kind = META_PUT, .key = bytes_of(keys[i])};
        ops[i].value = (struct meta_bytes){blob, META_TXN_MAX_BYTES / META_TXN_MAX_OPS - 6};
        compares[i] = (struct meta_compare){META_KEY_ABSENT, bytes_of(keys[i]), 0};
    }
    assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, ops, META_TXN_MAX_OPS, &call, &is_applied, NULL, &error), &error);
    ops[0].value.len++;
    assert_status(SHOAL_INVALID_ARGUMENT,
                  meta_txn(meta, NULL, 0, ops, META_TXN_MAX_OPS, &call, &is_applied, NULL, &error), &error);
    for (size_t i = 0; i <= META_TXN_MAX_OPS; i++)
        ops[i].value.len = 1;
    assert_status(SHOAL_OK,
                  meta_txn(meta, compares, META_TXN_MAX_OPS, ops, META_TXN_MAX_OPS, &call, &is_applied, NULL, &error),
                  &error);
    assert_false(is_applied);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  meta_txn(meta, NULL, 0, ops, META_TXN_MAX_OPS + 1, &call, &is_applied, NULL, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  meta_txn(meta, compares, META_TXN_MAX_OPS + 1, ops, 1, &call, &is_applied, NULL, &error), &error);

    /* One key twice. */
    ops[1].key = ops[0].key;
    assert_status(SHOAL_INVALID_ARGUMENT, meta_txn(meta, NULL, 0, ops, 2, &call, &is_applied, NULL, &error), &error);
    ops[1] = (struct meta_op){.kind = META_DELETE_PREFIX, .key = bytes_of("0000")};
    assert_status(SHOAL_INVALID_ARGUMENT, meta_txn(meta, NULL, 0, ops, 2, &call, &is_applied, NULL, &error), &error);

    int64_t lease;
    assert_status(SHOAL_INVALID_ARGUMENT, meta_lease_grant(meta, 0, &call, &lease, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, meta_lease_grant(meta, META_LEASE_MAX_MS + 1, &call, &lease, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, meta_lease_keep_alive(meta, 0, &call, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, meta_lease_revoke(meta, -1, &call, &error), &error);
    free(blob);
}

#define CAS_THREADS 16
#define CAS_INCREMENTS 12

struct cas_worker {
    pthread_t thread;
    struct meta *meta;
    enum shoal_status status;
    struct shoal_error error;
};

static void *increment(void *arg)
{
    struct cas_worker *worker = arg;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    for (int done = 0; done < CAS_INCREMENTS && worker->status == SHOAL_OK;) {
        struct meta_entry entry;
        bool is_found = false, is_applied = false;
        worker->status = meta_get(worker->meta, bytes_of("counter"), &call, &is_found, &entry, &worker->error);
        if (worker->status != SHOAL_OK)
            break;
        char value[32];
        snprintf(value, sizeof value, "%ld", strtol(entry.value, NULL, 10) + 1);
        struct meta_compare compare = {META_MOD_REVISION_IS, bytes_of("counter"), entry.mod_revision};
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("counter"), .value = bytes_of(value)};
        worker->status = meta_txn(worker->meta, &compare, 1, &op, 1, &call, &is_applied, NULL, &worker->error);
        meta_entry_release(&entry);
        done += is_applied;
    }
    return NULL;
}

static void test_no_lost_update(void **state)
{
    struct meta *meta = *state, *other = open_meta(service.uri);
    struct cas_worker workers[CAS_THREADS] = {0};
    put(meta, "counter", "0");
    for (size_t i = 0; i < CAS_THREADS; i++) {
        workers[i].meta = i % 2 ? meta : other;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, increment, &workers[i]), 0);
    }
    for (size_t i = 0; i < CAS_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_status(SHOAL_OK, workers[i].status, &workers[i].error);
    }
    char *value = NULL;
    assert_true(get(meta, "counter", &value, NULL));
    assert_int_equal(atoi(value), CAS_THREADS * CAS_INCREMENTS);
    free(value);
    meta_close(other);
}

/* --- leases --------------------------------------------------------------------------------------------------------
 */

static void test_lease_expires(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    int64_t lease = grant(meta, 1000);
    put_leased(meta, "lease/a", "1", lease);
    put_leased(meta, "lease/b", "1", lease);
    put_leased(meta, "lease/freed", "1", lease);
    put(meta, "lease/freed", "2"); /* a put without it takes the key out of the lease */
    wait_until_absent(meta, "lease/a");
    wait_until_absent(meta, "lease/b");
    assert_true(get(meta, "lease/freed", NULL, NULL));
    assert_status(SHOAL_NOT_FOUND, meta_lease_keep_alive(meta, lease, &call, &error), &error);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, lease, &call, &error), &error);
}

static void test_lease_keep_alive(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    int64_t lease = grant(meta, 5000);
    put_leased(meta, "lease/kept", "1", lease);
    /* Beyond its time to live it stands only because it is renewed. */
    int64_t until_ms = deadline_after_ms(6500);
    while (!deadline_is_past(until_ms)) {
        assert_status(SHOAL_OK, meta_lease_keep_alive(meta, lease, &call, &error), &error);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    assert_true(get(meta, "lease/kept", NULL, NULL));
    assert_status(SHOAL_OK, meta_lease_revoke(meta, lease, &call, &error), &error);
    assert_false(get(meta, "lease/kept", NULL, NULL));
    assert_status(SHOAL_NOT_FOUND, meta_lease_keep_alive(meta, lease, &call, &error), &error);
    assert_status(SHOAL_NOT_FOUND, meta_lease_keep_alive(meta, 12345, &call, &error), &error);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, 12345, &call, &error), &error);
}

static void test_lease_of_put_counts(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    int64_t first = grant(meta, 60000), second = grant(meta, 60000);
    assert_int_not_equal(first, second);
    put_leased(meta, "lease/moved", "1", first);
    put_leased(meta, "lease/moved", "2", second);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, first, &call, &error), &error);
    assert_true(get(meta, "lease/moved", NULL, NULL));
    struct meta_entry entry;
    bool is_found;
    assert_status(SHOAL_OK, meta_get(meta, bytes_of("lease/moved"), &call, &is_found, &entry, &error), &error);
    assert_int_equal(entry.lease, second);
    meta_entry_release(&entry);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, second, &call, &error), &error);
    assert_false(get(meta, "lease/moved", NULL, NULL));
}

/* --- watches -------------------------------------------------------------------------------------------------------
 */

static struct meta_watch *watch(struct meta *meta, const char *prefix, int64_t from, struct recorder *recorder)
{
    struct shoal_error error;
    struct meta_watch *opened = NULL;
    assert_status(SHOAL_OK, meta_watch(meta, bytes_of(prefix), from, recorder_note, recorder, &opened, &error), &error);
    return opened;
}

static void test_watch_from_revision(void **state)
{
    struct meta *meta = *state;
    struct recorder recorder;
    int64_t revision = 0;
    recorder_init(&recorder);
    put(meta, "w/old", "0");
    assert_int_equal(count_keys(meta, "w/", &revision), 1);
    put(meta, "w/a", "1");
    put(meta, "x/other", "1");
    delete_key(meta, "w/a");
    struct meta_watch *watched = watch(meta, "w/", revision + 1, &recorder);
    recorder_wait(&recorder, 2); /* the past */
    int64_t lease = grant(meta, 60000);
    put_leased(meta, "w/b", "2", lease);
    put(meta, "w", "not inside");
    put(meta, "w0", "not inside");
    delete_key(meta, "w/none");
    delete_key(meta, "w/old");
    recorder_wait(&recorder, 4); /* the present */
    meta_watch_close(watched);

    const struct recorded *events = recorder.events;
    assert_int_equal(recorder.count, 4);
    assert_int_equal(recorder.resets, 0);
    assert_int_equal(events[0].kind, META_EVENT_PUT);
    assert_string_equal(events[0].key, "w/a");
    assert_string_equal(events[0].value, "1");
    assert_int_equal(events[1].kind, META_EVENT_DELETE);
    assert_string_equal(events[1].key, "w/a");
    assert_int_equal(events[2].kind, META_EVENT_PUT);
    assert_string_equal(events[2].value, "2");
    assert_int_equal(events[2].lease, lease);
    assert_int_equal(events[3].kind, META_EVENT_DELETE);
    assert_string_equal(events[3].key, "w/old");
    for (size_t i = 1; i < 4; i++)
        assert_true(events[i].mod_revision > events[i - 1].mod_revision);
    assert_true(events[0].mod_revision > revision);
    recorder_release(&recorder);
}

static void test_watch_sees_expiry_and_revoke(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct recorder recorder;
    recorder_init(&recorder);
    int64_t revision = put(meta, "w/start", "1");
    struct meta_watch *watched = watch(meta, "w/", revision + 1, &recorder);
    int64_t expiring = grant(meta, 1000), revoked = grant(meta, 60000);
    put_leased(meta, "w/expires", "1", expiring);
    put_leased(meta, "w/revoked", "1", revoked);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, revoked, &call, &error), &error);
    /* Nobody touches the store: the watch alone must learn of it. */
    recorder_wait_for(&recorder, META_EVENT_DELETE, "w/revoked");
    recorder_wait_for(&recorder, META_EVENT_DELETE, "w/expires");
    meta_watch_close(watched);
    recorder_release(&recorder);
}

#define WATCHERS 4
#define WATCHED_PUTS 300

static void test_several_watchers_see_all_in_order(void **state)
{
    struct meta *meta = *state, *other = open_meta(service.uri);
    struct recorder recorders[WATCHERS];
    struct meta_watch *watches[WATCHERS];
    int64_t revision = put(meta, "start", "1");
    for (size_t i = 0; i < WATCHERS; i++) {
        recorder_init(&recorders[i]);
        watches[i] = watch(i % 2 ? meta : other, i == 0 ? "" : "many/", revision + 1, &recorders[i]);
    }
    for (unsigned i = 0; i < WATCHED_PUTS; i++) {
        char key[32];
        snprintf(key, sizeof key, "many/%u", i % 7);
        put(i % 2 ? other : meta, key, key);
    }
    for (size_t i = 0; i < WATCHERS; i++) {
        recorder_wait(&recorders[i], WATCHED_PUTS);
        meta_watch_close(watches[i]);
        assert_int_equal(recorders[i].count, WATCHED_PUTS);
        assert_int_equal(recorders[i].resets, 0);
        for (unsigned k = 0; k < WATCHED_PUTS; k++) {
            char key[32];
            snprintf(key, sizeof key, "many/%u", k % 7);
            assert_string_equal(recorders[i].events[k].key, key);
            assert_true(k == 0 || recorders[i].events[k].mod_revision > recorders[i].events[k - 1].mod_revision);
        }
        recorder_release(&recorders[i]);
    }
    meta_close(other);
}

static void test_watch_large_transactions(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct recorder recorder;
    recorder_init(&recorder);
    int64_t revision = put(meta, "start", "1");
    put_many(meta, "bulk/", 1000);
    struct meta_watch *watched = watch(meta, "bulk/", revision + 1, &recorder);
    char *blob = calloc(1, META_VALUE_MAX_BYTES);
    assert_non_null(blob);
    for (int i = 0; i < 6; i++) {
        bool is_applied;
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("bulk/large"), .value = {blob, META_VALUE_MAX_BYTES}};
        assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error), &error);
    }
    free(blob);
    recorder_wait(&recorder, 1006);
    meta_watch_close(watched);
    assert_int_equal(recorder.count, 1006);
    assert_int_equal(recorder.events[1005].value_len, META_VALUE_MAX_BYTES);
    recorder_release(&recorder);
}

struct writer {
    pthread_t thread;
    struct meta *meta;
    pthread_mutex_t mutex;
    bool is_stopping;
};

static void *write_on(void *arg)
{
    struct writer *writer = arg;
    for (bool is_stopping = false; !is_stopping;) {
        struct shoal_error error;
        struct call call = call_for(META_TEST_PATIENCE_MS);
        bool is_applied;
        struct meta_op op = {.kind = META_PUT, .key = bytes_of("flow/key"), .value = bytes_of("v")};
        meta_txn(writer->meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error);
        pthread_mutex_lock(&writer->mutex);
        is_stopping = writer->is_stopping;
        pthread_mutex_unlock(&writer->mutex);
    }
    return NULL;
}

static void test_close_while_events_flow(void **state)
{
    struct meta *meta = *state;
    struct writer writer = {.meta = open_meta(service.uri), .mutex = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(pthread_create(&writer.thread, NULL, write_on, &writer), 0);
    for (int round = 0; round < 8; round++) {
        struct recorder recorder;
        recorder_init(&recorder);
        struct meta_watch *watched = watch(meta, "flow/", 0, &recorder);
        if (round % 2)
            recorder_wait(&recorder, 3);
        meta_watch_close(watched);
        size_t count = recorder.count; /* no lock: nothing may write any more */
        pthread_mutex_lock(&recorder.mutex);
        assert_int_equal(recorder.count, count);
        pthread_mutex_unlock(&recorder.mutex);
        recorder_release(&recorder);
    }
    pthread_mutex_lock(&writer.mutex);
    writer.is_stopping = true;
    pthread_mutex_unlock(&writer.mutex);
    pthread_join(writer.thread, NULL);
    /* meta_close ends watches that are left. */
    struct recorder recorder;
    recorder_init(&recorder);
    watch(writer.meta, "flow/", 0, &recorder);
    watch(writer.meta, "", 0, &recorder);
    meta_close(writer.meta);
    recorder_release(&recorder);
}

static void test_watch_from_the_future_resets(void **state)
{
    struct meta *meta = *state;
    struct recorder recorder;
    recorder_init(&recorder);
    int64_t revision = put(meta, "w/a", "1");
    struct meta_watch *watched = watch(meta, "w/", revision + 1000, &recorder);
    recorder_wait_resets(&recorder, 1);
    put(meta, "w/b", "1");
    recorder_wait_for(&recorder, META_EVENT_PUT, "w/b");
    meta_watch_close(watched);
    recorder_release(&recorder);
}

/* --- deadlines, health ---------------------------------------------------------------------------------------------
 */

static void test_deadline_and_cancel_before(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call past = {.deadline_ms = clock_now_ms() - 1};
    struct call canceled = call_for(META_TEST_PATIENCE_MS);
    struct meta_entry entry;
    struct meta_entries entries;
    bool is_found, is_applied;
    int64_t lease;
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("never"), .value = bytes_of("")};
    assert_int_equal(shoal_cancel_create(&canceled.cancel), SHOAL_OK);
    shoal_cancel_trigger(canceled.cancel);
    const struct {
        const struct call *call;
        enum shoal_status expected;
    } cases[] = {{&past, SHOAL_TIMED_OUT}, {&canceled, SHOAL_CANCELED}};
    for (size_t i = 0; i < 2; i++) {
        const struct call *call = cases[i].call;
        enum shoal_status expected = cases[i].expected;
        assert_status(expected, meta_get(meta, bytes_of("a"), call, &is_found, &entry, &error), &error);
        assert_status(expected, meta_list(meta, bytes_of("a"), 0, call, &entries, &error), &error);
        assert_status(expected, meta_txn(meta, NULL, 0, &op, 1, call, &is_applied, NULL, &error), &error);
        assert_status(expected, meta_lease_grant(meta, 1000, call, &lease, &error), &error);
        assert_status(expected, meta_lease_keep_alive(meta, 1, call, &error), &error);
        assert_status(expected, meta_lease_revoke(meta, 1, call, &error), &error);
    }
    shoal_cancel_destroy(canceled.cancel);
    assert_false(get(meta, "never", NULL, NULL));
}

static void test_ping_and_counters(void **state)
{
    struct meta *meta = *state;
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_counters before, after;
    struct meta_health health = {.rtt_us = -1};
    int64_t lease;
    assert_status(SHOAL_OK, meta_ping(meta, &call, &health, &error), &error);
    assert_true(strlen(health.version) > 0 && health.rtt_us >= 0);
    /* etcd runs on this machine: the same clock, but a date of whole seconds that may lie a while back. */
    assert_int_equal(health.has_clock, !service.directory);
    if (health.has_clock)
        assert_true(health.clock_ahead_ms <= 1500 && health.clock_ahead_ms >= -META_TEST_PATIENCE_MS);
    assert_string_equal(meta_backend_name(meta), service.directory ? "sqlite" : "etcd");

    meta_counters(meta, &before);
    put(meta, "a", "0123456789");
    assert_true(get(meta, "a", NULL, NULL));
    count_keys(meta, "a", NULL);
    lease = grant(meta, 60000);
    assert_status(SHOAL_OK, meta_lease_revoke(meta, lease, &call, &error), &error);
    meta_counters(meta, &after);
    assert_int_equal(after.txns - before.txns, 1);
    assert_int_equal(after.gets - before.gets, 1);
    assert_int_equal(after.lists - before.lists, 1);
    assert_int_equal(after.lease_calls - before.lease_calls, 2);
    assert_true(after.bytes_sent - before.bytes_sent >= 10);
    assert_true(after.bytes_received - before.bytes_received >= 10);
    assert_true(after.largest_request_bytes >= 11);
    assert_int_equal(after.failures, before.failures);
}

int main(int argc, char **argv)
{
    service.backend = argc > 1 ? argv[1] : "sqlite";
    if (strcmp(service.backend, "sqlite") != 0 && !etcd_is_available())
        return 77;
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_put_get_delete),
        TEST(test_binary_keys_and_values),
        TEST(test_list_pages),
        TEST(test_list_large_values),
        TEST(test_compares),
        TEST(test_txn_is_atomic),
        TEST(test_limits),
        TEST(test_no_lost_update),
        TEST(test_lease_expires),
        TEST(test_lease_keep_alive),
        TEST(test_lease_of_put_counts),
        TEST(test_watch_from_revision),
        TEST(test_watch_sees_expiry_and_revoke),
        TEST(test_several_watchers_see_all_in_order),
        TEST(test_watch_large_transactions),
        TEST(test_close_while_events_flow),
        TEST(test_watch_from_the_future_resets),
        TEST(test_deadline_and_cancel_before),
        TEST(test_ping_and_counters),
    };
    return cmocka_run_group_tests(tests, start_service, stop_service);
}
