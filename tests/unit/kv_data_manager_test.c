/* SPDX-License-Identifier: Apache-2.0 */
/* The data manager with real tiers and a master that refuses, is silent, or dies: whatever fails leaves nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fake_master.h"
#include "kv_owner.h"
#include "tier_fake.h"
#include "tmpdir.h"

#define KIND(name) SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__##name
#define CAPACITY (8u << 20)

struct fixture {
    struct fake_master master;
    struct kv_owner owner;
    char *directory; /* owned; NULL: DRAM */

    struct mutex mutex; /* RANK_STORE: guards what follows */
    struct cond changed;
    unsigned done;
    bool is_inside;
    enum shoal_status status;
    uint64_t object_id;
};

static int setup_at(void **state, char *directory)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    mutex_init(&fixture->mutex, RANK_STORE);
    cond_init(&fixture->changed);
    fixture->directory = directory;
    fake_master_init(&fixture->master, 1);
    kv_owner_start(&fixture->owner, "owner", 42, fixture->master.address, directory ? CAPACITY * 4 : CAPACITY,
                   directory);
    kv_owner_wait_ready(&fixture->owner);
    *state = fixture;
    return 0;
}

static int setup(void **state)
{
    return setup_at(state, NULL);
}

static int setup_storage(void **state)
{
    return setup_at(state, tmpdir_make());
}

static int setup_fake_disk(void **state)
{
    tier_fake_disk_clear();
    return setup_at(state, strdup(KV_OWNER_FAKE_DISK));
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    if (fixture->owner.loop)
        kv_owner_stop(&fixture->owner);
    fake_master_release(&fixture->master);
    if (fixture->directory && *fixture->directory)
        tmpdir_remove(fixture->directory);
    else
        free(fixture->directory);
    cond_release(&fixture->changed);
    mutex_release(&fixture->mutex);
    free(fixture);
    return 0;
}

static void assert_nothing_stays(struct fixture *fixture, const char *key)
{
    assert_false(tier_has(fixture->owner.backend, key));
    assert_int_equal(kv_owner_used_bytes(&fixture->owner), 0);
}

struct putting {
    struct fixture *fixture;
    const char *key;
    uint64_t object_id;
    struct call call;
    enum shoal_status status;
    struct shoal_error error;
    pthread_t thread;
};

static void *put_main(void *arg)
{
    struct putting *putting = arg;

    putting->status = data_manager_put(putting->fixture->owner.manager, putting->key, "value", 5, putting->object_id,
                                       &putting->call, NULL, &putting->error);
    return NULL;
}

static void put_start(struct fixture *fixture, struct putting *putting, const char *key, uint64_t object_id,
                      int64_t timeout_ms)
{
    *putting = (struct putting){.fixture = fixture, .key = key, .object_id = object_id};
    putting->call.deadline_ms = deadline_after_ms(timeout_ms);
    assert_int_equal(shoal_cancel_create(&putting->call.cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&putting->thread, NULL, put_main, putting), 0);
}

static enum shoal_status put_end(struct putting *putting)
{
    pthread_join(putting->thread, NULL);
    shoal_cancel_destroy(putting->call.cancel);
    return putting->status;
}

/* The object that was announced for the key; 0: none. */
static uint64_t announced_id(struct fixture *fixture, const char *key)
{
    uint64_t found = 0;

    mutex_lock(&fixture->master.mutex);
    for (size_t i = 0; i < fixture->master.entry_count; i++)
        if (fixture->master.entries[i].kind == KIND(NEW) && strcmp(fixture->master.entries[i].key, key) == 0)
            found = fixture->master.entries[i].object_id;
    mutex_unlock(&fixture->master.mutex);
    return found;
}

static void put_get_and_delete(void **state)
{
    struct fixture *fixture = *state;
    struct kv_owner *owner = &fixture->owner;
    struct data_manager_counters counters;
    struct call call = {.deadline_ms = deadline_after_ms(FAKE_WAIT_MS)};
    struct shoal_error error;
    uint64_t object_id = 0;
    uint64_t before = kv_owner_used_bytes(owner);

    assert_int_equal(data_manager_put(owner->manager, "k", "value", 5, 0, &call, &object_id, &error), SHOAL_OK);
    assert_true(object_id != 0);
    assert_int_equal(announced_id(fixture, "k"), object_id);
    assert_true(kv_owner_has(owner, "k", "value"));
    assert_int_equal(kv_owner_put(owner, "k", "other"), SHOAL_EXISTS);
    assert_int_equal(kv_owner_put(owner, "empty", ""), SHOAL_OK);
    assert_true(kv_owner_has(owner, "empty", ""));
    assert_int_equal(data_manager_put(owner->manager, "copy", "value", 5, 77, &call, &object_id, &error), SHOAL_OK);
    assert_int_equal(object_id, 77);
    assert_int_equal(fake_master_count(&fixture->master, KIND(REPLICA), "copy", 77), 1);
    assert_int_equal(data_manager_delete(owner->manager, "copy", 78, &error), SHOAL_NOT_FOUND);
    assert_int_equal(data_manager_delete(owner->manager, "copy", 77, &error), SHOAL_OK);
    assert_int_equal(data_manager_delete(owner->manager, "empty", 0, &error), SHOAL_OK);
    assert_int_equal(data_manager_delete(owner->manager, "k", 0, &error), SHOAL_OK);
    assert_int_equal(data_manager_delete(owner->manager, "k", 0, &error), SHOAL_NOT_FOUND);
    assert_non_null(strstr(error.message, "'k'"));
    fake_master_wait_entry(&fixture->master, KIND(GONE), "copy", 77);
    fake_master_wait_entry(&fixture->master, KIND(GONE), "k", announced_id(fixture, "k"));
    assert_int_equal(kv_owner_used_bytes(owner), before);
    data_manager_counters(owner->manager, &counters);
    assert_int_equal(counters.puts, 3);
    assert_int_equal(counters.put_failures, 1);
    assert_int_equal(counters.deletes, 3);
}

static void what_the_master_refuses_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct call call = {.deadline_ms = deadline_after_ms(FAKE_WAIT_MS)};
    struct shoal_error error;
    char *large;

    fake_master_set_answer(&fixture->master, "k", SHOAL_EXISTS);
    assert_int_equal(data_manager_put(fixture->owner.manager, "k", "v", 1, 0, &call, NULL, &error), SHOAL_EXISTS);
    assert_non_null(strstr(error.message, "'k'"));
    assert_nothing_stays(fixture, "k");
    fake_master_set_answer(&fixture->master, "r", SHOAL_NOT_FOUND);
    assert_int_equal(data_manager_put(fixture->owner.manager, "r", "v", 1, 5, &call, NULL, &error), SHOAL_NOT_FOUND);
    assert_nothing_stays(fixture, "r");
    fake_master_set_answer(&fixture->master, "k", SHOAL_OK);
    assert_int_equal(kv_owner_put(&fixture->owner, "k", "v"), SHOAL_OK); /* the key is free again */
    /* Refused before the master is asked. */
    large = calloc(1, CAPACITY + 1);
    assert_int_equal(data_manager_put(fixture->owner.manager, "l", large, CAPACITY + 1, 0, &call, NULL, &error),
                     SHOAL_LIMIT);
    free(large);
    assert_int_equal(data_manager_put(fixture->owner.manager, "", "v", 1, 0, &call, NULL, &error),
                     SHOAL_INVALID_ARGUMENT);
    call.deadline_ms = clock_now_ms() - 1;
    assert_int_equal(data_manager_put(fixture->owner.manager, "late", "v", 1, 0, &call, NULL, &error), SHOAL_TIMED_OUT);
    assert_false(tier_has(fixture->owner.backend, "late"));
}

static void a_put_that_the_master_does_not_confirm_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct putting putting;
    uint64_t object_id;

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    put_start(fixture, &putting, "k", 0, 3000);
    fake_master_wait_held(&fixture->master, 1);
    assert_int_equal(put_end(&putting), SHOAL_TIMED_OUT);
    assert_nothing_stays(fixture, "k");
    fake_master_answer_held(&fixture->master, MASTER_METHOD_ANNOUNCE); /* too late: it had accepted */
    object_id = announced_id(fixture, "k");
    fake_master_wait_entry(&fixture->master, KIND(GONE), "k", object_id);
    assert_int_equal(kv_owner_put(&fixture->owner, "k", "v"), SHOAL_OK);
}

static void a_put_whose_master_dies_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct putting putting;

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    put_start(fixture, &putting, "k", 55, FAKE_WAIT_MS);
    fake_master_wait_held(&fixture->master, 1);
    fake_master_kill(&fixture->master);
    assert_int_equal(put_end(&putting), SHOAL_UNREACHABLE);
    assert_non_null(strstr(putting.error.message, fixture->master.address));
    assert_nothing_stays(fixture, "k");
    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    fake_master_revive(&fixture->master);
    fake_master_wait_entry(&fixture->master, KIND(GONE), "k", 55);
    assert_int_equal(fake_master_count(&fixture->master, KIND(HELD), "k", 55), 0);
}

static void a_canceled_put_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct putting putting;

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    put_start(fixture, &putting, "k", 0, FAKE_WAIT_MS);
    fake_master_wait_held(&fixture->master, 1);
    shoal_cancel_trigger(putting.call.cancel);
    assert_int_equal(put_end(&putting), SHOAL_CANCELED);
    fake_master_answer_held(&fixture->master, MASTER_METHOD_ANNOUNCE);
    fake_master_wait_entry(&fixture->master, KIND(GONE), "k", announced_id(fixture, "k"));
    assert_nothing_stays(fixture, "k");
}

static void on_finished(void *arg, enum shoal_status status, uint64_t object_id, unsigned tier,
                        const struct shoal_error *error)
{
    struct fixture *fixture = arg;

    (void)tier;
    mutex_lock(&fixture->mutex);
    fixture->done++;
    fixture->status = status;
    fixture->object_id = object_id;
    if (status)
        assert_true(error->message[0] != '\0');
    cond_broadcast(&fixture->changed);
    mutex_unlock(&fixture->mutex);
}

struct finishing {
    struct fixture *fixture;
    const char *key;
    uint64_t object_id;
};

/* Holding the mutex all the time: done that ran inside would be found waiting for itself. */
static void finish_on_loop(void *arg)
{
    struct finishing *finishing = arg;
    struct fixture *fixture = finishing->fixture;
    struct tier_allocation *allocation;

    mutex_lock(&fixture->mutex);
    assert_int_equal(tier_allocate(fixture->owner.backend, finishing->key, 5, false, &allocation, NULL), SHOAL_OK);
    if (!fixture->directory)
        memcpy(tier_allocation_data(allocation), "value", 5);
    else
        assert_int_equal(tier_write(allocation, 0, "value", 5, NULL), SHOAL_OK);
    assert_int_equal(
        data_manager_finish(fixture->owner.manager, allocation, finishing->object_id, 0, on_finished, fixture, NULL),
        SHOAL_OK);
    assert_int_equal(fixture->done, 0);
    mutex_unlock(&fixture->mutex);
}

static enum shoal_status finish(struct fixture *fixture, const char *key, uint64_t object_id)
{
    struct finishing finishing = {.fixture = fixture, .key = key, .object_id = object_id};
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    fixture->done = 0;
    loop_call(fixture->owner.loop, finish_on_loop, &finishing);
    mutex_lock(&fixture->mutex);
    while (!fixture->done)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline_ms) || fixture->done);
    mutex_unlock(&fixture->mutex);
    return fixture->status;
}

static void what_is_written_is_finished_on_the_loop(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(finish(fixture, "k", 0), SHOAL_OK);
    assert_int_equal(fixture->object_id, announced_id(fixture, "k"));
    assert_true(kv_owner_has(&fixture->owner, "k", "value"));
    assert_int_equal(finish(fixture, "copy", 9), SHOAL_OK);
    assert_int_equal(fixture->object_id, 9);
    fake_master_set_answer(&fixture->master, "taken", SHOAL_EXISTS);
    assert_int_equal(finish(fixture, "taken", 0), SHOAL_EXISTS);
    assert_false(tier_has(fixture->owner.backend, "taken"));
    assert_int_equal(fixture->done, 1);
}

/* Two writers of the same key: both may allocate, one commits. */
static void only_one_of_two_allocations_is_committed(void **state)
{
    struct fixture *fixture = *state;
    struct tier_allocation *allocation;

    assert_int_equal(tier_allocate(fixture->owner.backend, "k", 5, false, &allocation, NULL), SHOAL_OK);
    assert_int_equal(finish(fixture, "k", 0), SHOAL_OK);
    fixture->done = 0;
    assert_int_equal(data_manager_finish(fixture->owner.manager, allocation, 0, 0, on_finished, fixture, NULL),
                     SHOAL_OK);
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);
    mutex_lock(&fixture->mutex);
    while (!fixture->done)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline_ms) || fixture->done);
    mutex_unlock(&fixture->mutex);
    assert_int_equal(fixture->status, SHOAL_EXISTS);
    assert_true(kv_owner_has(&fixture->owner, "k", "value"));
}

static void wait_drops_done(struct fixture *fixture, uint64_t sequence)
{
    struct fake_master *master = &fixture->master;
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    mutex_lock(&master->mutex);
    while (master->drops_done < sequence)
        assert_true(cond_wait_until(&master->changed, &master->mutex, deadline_ms) || master->drops_done >= sequence);
    mutex_unlock(&master->mutex);
}

static void send_drop(struct fixture *fixture, Shoal__Wire__MasterDrop *drop, const char *key, uint64_t object_id)
{
    shoal__wire__master_drop__init(drop);
    drop->sequence = 1;
    drop->key = (char *)(uintptr_t)key;
    drop->object_id = object_id;
    mutex_lock(&fixture->master.mutex);
    fixture->master.drops[0] = drop;
    fixture->master.drop_count = 1;
    mutex_unlock(&fixture->master.mutex);
    wait_drops_done(fixture, 1);
}

static void what_is_removed_elsewhere_is_dropped_here(void **state)
{
    struct fixture *fixture = *state;
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);
    Shoal__Wire__MasterDrop drop;

    assert_int_equal(kv_owner_put(&fixture->owner, "k", "v"), SHOAL_OK);
    send_drop(fixture, &drop, "k", announced_id(fixture, "k"));
    while (tier_has(fixture->owner.backend, "k"))
        assert_false(deadline_is_past(deadline_ms));
    kv_owner_stop(&fixture->owner); /* drop is on this stack */
}

/* The order in which two connections bring a put's confirmation and its removal is nobody's to choose. */
static void a_removal_may_come_before_the_confirmation(void **state)
{
    struct fixture *fixture = *state;
    struct data_manager_counters counters = {.drops = 0};
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);
    Shoal__Wire__MasterDrop drop;
    struct putting putting;

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    put_start(fixture, &putting, "k", 55, FAKE_WAIT_MS);
    fake_master_wait_held(&fixture->master, 1);
    send_drop(fixture, &drop, "k", 55);
    while (counters.drops == 0) {
        data_manager_counters(fixture->owner.manager, &counters);
        assert_false(deadline_is_past(deadline_ms));
    }
    fake_master_answer_held(&fixture->master, MASTER_METHOD_ANNOUNCE);
    assert_int_equal(put_end(&putting), SHOAL_OK);
    assert_nothing_stays(fixture, "k");
    kv_owner_stop(&fixture->owner); /* drop is on this stack */
}

/* On a worker, when the master has confirmed and the index entry is being written. */
static void restart_master(void *arg)
{
    struct fixture *fixture = arg;
    unsigned lasts = fake_master_read(&fixture->master, &fixture->master.lasts);

    fake_master_kill(&fixture->master);
    fake_master_revive(&fixture->master);
    fake_master_wait(&fixture->master, &fixture->master.lasts, lasts + 1);
}

static void hold_announcements(void *arg)
{
    struct fixture *fixture = arg;

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
}

/* It was not published yet when everything was gathered for the new master. */
static void a_master_restarted_while_a_value_is_published_hears_of_it(void **state)
{
    struct fixture *fixture = *state;

    tier_fake_in_persist(restart_master, fixture);
    assert_int_equal(kv_owner_put(&fixture->owner, "k", "value"), SHOAL_OK);
    assert_int_equal(fake_master_count(&fixture->master, KIND(NEW), "k", announced_id(fixture, "k")), 1);
    fake_master_wait_entry(&fixture->master, KIND(HELD), "k", announced_id(fixture, "k"));
    assert_true(kv_owner_has(&fixture->owner, "k", "value"));
}

static void a_disk_that_fails_leaves_nothing(void **state)
{
    static const enum tier_fake_op ops[] = {TIER_FAKE_WRITE, TIER_FAKE_SEAL, TIER_FAKE_PERSIST};
    struct fixture *fixture = *state;

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        tier_fake_fail(TIER_STORAGE, ops[i], 1, SHOAL_IO);
        assert_int_equal(kv_owner_put(&fixture->owner, "k", "value"), SHOAL_IO);
        assert_true(tier_fake_has_failed());
        assert_nothing_stays(fixture, "k");
        assert_int_equal(tier_fake_disk_entries(), 0);
    }
    fake_master_wait_entry(&fixture->master, KIND(GONE), "k", announced_id(fixture, "k"));
    assert_int_equal(kv_owner_put(&fixture->owner, "k", "value"), SHOAL_OK);
}

/* The caller puts the value elsewhere next, and must not be told that it exists. */
static void what_the_disk_does_not_publish_is_withdrawn_before_the_put_ends(void **state)
{
    enum { TIMES = 50 };
    struct fixture *fixture = *state;

    for (unsigned i = 0; i < TIMES; i++) {
        tier_fake_fail(TIER_STORAGE, TIER_FAKE_PERSIST, 1, SHOAL_NO_SPACE);
        assert_int_equal(kv_owner_put(&fixture->owner, "k", "value"), SHOAL_NO_SPACE);
        assert_int_equal(fake_master_count(&fixture->master, KIND(GONE), "k", announced_id(fixture, "k")), 1);
        assert_nothing_stays(fixture, "k");
    }
}

/* A master that does not answer keeps nobody beyond the deadline; it is told when it is back. */
static void a_withdrawal_that_the_master_does_not_answer_ends_in_time(void **state)
{
    struct fixture *fixture = *state;
    struct putting putting;

    tier_fake_in_persist(hold_announcements, fixture);
    tier_fake_fail(TIER_STORAGE, TIER_FAKE_PERSIST, 1, SHOAL_NO_SPACE);
    put_start(fixture, &putting, "k", 0, 2000);
    assert_int_equal(put_end(&putting), SHOAL_NO_SPACE);
    assert_nothing_stays(fixture, "k");
    fake_master_kill(&fixture->master);
    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    fake_master_revive(&fixture->master);
    assert_int_equal(kv_owner_put(&fixture->owner, "k", "value"), SHOAL_OK);
}

static void what_is_evicted_is_announced(void **state)
{
    enum { BYTES = 1 << 20 };
    struct fixture *fixture = *state;
    struct call call = {.deadline_ms = deadline_after_ms(FAKE_WAIT_MS)};
    char *value = calloc(1, BYTES), key[16];
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);
    size_t gone = 0;

    for (unsigned i = 0; i < 3 * CAPACITY / BYTES; i++) {
        snprintf(key, sizeof key, "k%u", i);
        assert_int_equal(data_manager_put(fixture->owner.manager, key, value, BYTES, 0, &call, NULL, NULL), SHOAL_OK);
    }
    free(value);
    /* Whatever is not here is announced as gone, by the object that was announced as new. */
    for (unsigned i = 0; i < 3 * CAPACITY / BYTES; i++) {
        snprintf(key, sizeof key, "k%u", i);
        if (!tier_has(fixture->owner.backend, key)) {
            gone++;
            fake_master_wait_entry(&fixture->master, KIND(GONE), key, announced_id(fixture, key));
        }
    }
    assert_true(gone >= 2 * CAPACITY / BYTES);
    assert_false(deadline_is_past(deadline_ms));
}

static void closing_ends_puts(void **state)
{
    struct fixture *fixture = *state;
    struct putting puttings[4];
    static const char *const keys[] = {"a", "b", "c", "d"};

    fake_master_set_manner(&fixture->master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    for (size_t i = 0; i < 4; i++)
        put_start(fixture, &puttings[i], keys[i], 0, FAKE_WAIT_MS);
    fake_master_wait_held(&fixture->master, 1);
    session_stop(fixture->owner.session);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(put_end(&puttings[i]), SHOAL_CANCELED);
        assert_false(tier_has(fixture->owner.backend, keys[i]));
    }
    assert_int_equal(kv_owner_used_bytes(&fixture->owner), 0);
    kv_owner_stop(&fixture->owner);
}

static void lock_shards_come_from_the_environment(void **state)
{
    static const char *const wrong[] = {"0", "-1", "abc", "12x", " 5", "1048577", "99999999999999999999", "+7"};
    struct shoal_error error;
    unsigned stripes;

    (void)state;
    unsetenv("MOONCAKE_DM_LOCK_SHARD_COUNT");
    assert_int_equal(data_manager_lock_shards(&stripes, &error), SHOAL_OK);
    assert_int_equal(stripes, 0);
    setenv("MOONCAKE_DM_LOCK_SHARD_COUNT", "", 1);
    assert_int_equal(data_manager_lock_shards(&stripes, &error), SHOAL_OK);
    assert_int_equal(stripes, 0);
    setenv("MOONCAKE_DM_LOCK_SHARD_COUNT", "1048576", 1);
    assert_int_equal(data_manager_lock_shards(&stripes, &error), SHOAL_OK);
    assert_int_equal(stripes, 1048576);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("MOONCAKE_DM_LOCK_SHARD_COUNT", wrong[i], 1);
        assert_int_equal(data_manager_lock_shards(&stripes, &error), SHOAL_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "MOONCAKE_DM_LOCK_SHARD_COUNT"));
        assert_non_null(strstr(error.message, wrong[i]));
    }
    unsetenv("MOONCAKE_DM_LOCK_SHARD_COUNT");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define TEST_STORAGE(name)                                                                                             \
    {                                                                                                                  \
#name "_storage", name, setup_storage, teardown, NULL                                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(put_get_and_delete),
        TEST(what_the_master_refuses_leaves_nothing),
        TEST(a_put_that_the_master_does_not_confirm_leaves_nothing),
        TEST(a_put_whose_master_dies_leaves_nothing),
        TEST(a_canceled_put_leaves_nothing),
        TEST(what_is_written_is_finished_on_the_loop),
        TEST(only_one_of_two_allocations_is_committed),
        TEST(what_is_removed_elsewhere_is_dropped_here),
        TEST(a_removal_may_come_before_the_confirmation),
        TEST(what_is_evicted_is_announced),
        TEST(closing_ends_puts),
        TEST_STORAGE(put_get_and_delete),
        TEST_STORAGE(a_put_that_the_master_does_not_confirm_leaves_nothing),
        TEST_STORAGE(a_put_whose_master_dies_leaves_nothing),
        TEST_STORAGE(a_canceled_put_leaves_nothing),
        TEST_STORAGE(what_is_written_is_finished_on_the_loop),
        TEST_STORAGE(what_is_removed_elsewhere_is_dropped_here),
        TEST_STORAGE(a_removal_may_come_before_the_confirmation),
        TEST_STORAGE(closing_ends_puts),
        {"a_master_restarted_while_a_value_is_published_hears_of_it",
         a_master_restarted_while_a_value_is_published_hears_of_it, setup_fake_disk, teardown, NULL},
        {"a_disk_that_fails_leaves_nothing", a_disk_that_fails_leaves_nothing, setup_fake_disk, teardown, NULL},
        {"what_the_disk_does_not_publish_is_withdrawn_before_the_put_ends",
         what_the_disk_does_not_publish_is_withdrawn_before_the_put_ends, setup_fake_disk, teardown, NULL},
        {"a_withdrawal_that_the_master_does_not_answer_ends_in_time",
         a_withdrawal_that_the_master_does_not_answer_ends_in_time, setup_fake_disk, teardown, NULL},
        cmocka_unit_test(lock_shards_come_from_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
