/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers whose operations fail, disks that lie, and what the policy does: after each failure the space is what it was
 * and nothing is half committed. The test makes the background's rounds itself. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/mutex.h"
#include "content.h"
#include "tier/backend.h"
#include "tier_fake.h"

#define DRAM_BYTES 1000000 /* 64-byte units: the sizes used are multiples */
#define STORAGE_BYTES 4000000
#define DRAM 1u    /* its index, the second of the configuration */
#define STORAGE 0u /* priorities, not places, order the tiers */

struct seen {
    unsigned evicted, moved, moved_to_dram;
    uint64_t last_evicted;
};

static struct tier_backend *backend;
static struct seen seen;

static void on_evicted(void *arg, const char *key, uint64_t object_id)
{
    (void)arg;
    (void)key;
    seen.evicted++;
    seen.last_evicted = object_id;
}

static void on_moved(void *arg, const char *key, uint64_t object_id, unsigned tier)
{
    (void)arg;
    (void)key;
    (void)object_id;
    seen.moved++;
    seen.moved_to_dram += tier == DRAM;
}

static enum shoal_status try_open(bool has_storage, bool has_thread, struct shoal_error *error)
{
    struct tier_config tiers[2] = {
        {.type = TIER_STORAGE, .capacity_bytes = STORAGE_BYTES, .priority = 1, .numa_node = -1},
        {.type = TIER_DRAM, .capacity_bytes = DRAM_BYTES, .priority = 2, .numa_node = -1},
    };
    const struct tier_backend_config config = {.tiers = has_storage ? tiers : tiers + 1,
                                               .tier_count = has_storage ? 2 : 1};
    const struct backend_options options = {.ops_of = tier_fake_ops, .has_no_thread = !has_thread};
    return backend_create(&config, &options, &backend, error);
}

static void open_backend(bool has_storage)
{
    const struct tier_events events = {.evicted = on_evicted, .moved = on_moved};
    struct shoal_error error;

    if (try_open(has_storage, false, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    tier_backend_set_events(backend, &events);
}

static int setup(void **state)
{
    (void)state;
    seen = (struct seen){0};
    open_backend(true);
    return 0;
}

static int setup_dram(void **state)
{
    (void)state;
    seen = (struct seen){0};
    open_backend(false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tier_fake_fail(TIER_DRAM, TIER_FAKE_CREATE, 0, SHOAL_OK);
    tier_backend_destroy(backend);
    backend = NULL;
    tier_fake_disk_clear();
    return 0;
}

/* --- helpers --- */

static struct tier_usage usage(unsigned tier)
{
    struct tier_usage now;
    tier_usage(backend, tier, &now);
    return now;
}

static void steps(void)
{
    for (unsigned i = 0; backend_step(backend) && i < 1000; i++) {
    }
}

/* OK: published; the id is the seed. */
static enum shoal_status put_len(const char *key, uint64_t len, uint64_t id)
{
    static uint8_t bytes[TIER_STAGING_BYTES];
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    enum shoal_status status = tier_allocate(backend, key, len, false, &allocation, &error);

    if (status != SHOAL_OK)
        return status;
    assert_true(len <= sizeof bytes);
    content_fill(bytes, len, id, 0);
    status = tier_write(allocation, 0, bytes, len, &error);
    if (status != SHOAL_OK) {
        tier_allocation_drop(allocation);
        return status;
    }
    status = tier_commit(allocation, id, &object, &error);
    if (status == SHOAL_OK)
        status = tier_publish(object, &error);
    if (status == SHOAL_OK)
        tier_object_unref(object);
    return status;
}

static void put_many(const char *prefix, unsigned count, uint64_t len, uint64_t first_id)
{
    char key[32];
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "%s-%u", prefix, i);
        assert_int_equal(put_len(key, len, first_id + i), SHOAL_OK);
    }
}

/* Its tier, -1: not there. */
static int where(const char *key, uint64_t id)
{
    static uint8_t bytes[TIER_STAGING_BYTES];
    struct tier_object *object;
    struct shoal_error error;
    int tier;

    if (tier_get(backend, key, &object) != SHOAL_OK)
        return -1;
    assert_int_equal(tier_object_id(object), id);
    if (tier_read(object, 0, bytes, tier_object_len(object), &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    assert_int_equal(content_find_difference(bytes, tier_object_len(object), id, 0), -1);
    tier = (int)tier_object_tier(object);
    tier_object_unref(object);
    return tier;
}

static void access_often(const char *key, uint64_t id)
{
    for (unsigned i = 0; i < 10; i++)
        assert_true(where(key, id) >= 0);
}

static void expect_empty(void)
{
    for (unsigned i = 0; i < tier_count(backend); i++) {
        assert_int_equal(usage(i).used_bytes, 0);
        assert_int_equal(usage(i).object_count, 0);
    }
    assert_int_equal(tier_fake_disk_entries(), 0);
}

/* An object on STORAGE while DRAM has room again. */
static void put_on_storage(const char *key, uint64_t len, uint64_t id)
{
    struct tier_allocation *filler;
    struct shoal_error error;

    assert_int_equal(tier_allocate(backend, "filler", 896000, true, &filler, &error), SHOAL_OK);
    assert_int_equal(put_len(key, len, id), SHOAL_OK);
    tier_allocation_drop(filler);
    assert_int_equal(where(key, id), STORAGE);
    assert_true(tier_fake_disk_has(key, id));
}

/* --- failures of a put --- */

static void fail_puts(enum tier_type type, enum tier_fake_op op, enum shoal_status status)
{
    struct tier_allocation *filler = NULL;
    struct shoal_error error;

    if (type == TIER_STORAGE)
        assert_int_equal(tier_allocate(backend, "filler", 896000, true, &filler, &error), SHOAL_OK);
    tier_fake_fail(type, op, 1, status);
    assert_int_equal(put_len("a", 64000, 5), status);
    assert_true(tier_fake_has_failed());
    assert_false(tier_has(backend, "a"));
    tier_allocation_drop(filler);
    expect_empty();
    assert_int_equal(put_len("a", 64000, 6), SHOAL_OK);
    assert_int_equal(where("a", 6), DRAM);
    assert_int_equal(tier_remove(backend, "a", 6), SHOAL_OK);
    expect_empty();
}

static void test_put_fails(void **state)
{
    (void)state;
    fail_puts(TIER_DRAM, TIER_FAKE_ALLOCATE, SHOAL_NO_MEMORY);
    fail_puts(TIER_DRAM, TIER_FAKE_WRITE, SHOAL_IO);
    fail_puts(TIER_DRAM, TIER_FAKE_SEAL, SHOAL_IO);
    fail_puts(TIER_STORAGE, TIER_FAKE_ALLOCATE, SHOAL_NO_MEMORY);
    fail_puts(TIER_STORAGE, TIER_FAKE_WRITE, SHOAL_IO);
    fail_puts(TIER_STORAGE, TIER_FAKE_WRITE, SHOAL_NO_SPACE);
    fail_puts(TIER_STORAGE, TIER_FAKE_SEAL, SHOAL_IO);
    fail_puts(TIER_STORAGE, TIER_FAKE_PERSIST, SHOAL_IO);
    assert_int_equal(seen.evicted, 0);
}

static void test_remove_fails(void **state)
{
    (void)state;
    put_on_storage("a", 64000, 7);
    tier_fake_fail(TIER_STORAGE, TIER_FAKE_FORGET, 1, SHOAL_IO);
    assert_int_equal(tier_remove(backend, "a", 0), SHOAL_IO);
    assert_false(tier_has(backend, "a"));
    assert_int_equal(usage(STORAGE).used_bytes, 0);
}

static void test_open_fails(void **state)
{
    struct shoal_error error;

    (void)state;
    put_on_storage("a", 64000, 7);
    tier_backend_destroy(backend);
    backend = NULL;
    tier_fake_fail(TIER_STORAGE, TIER_FAKE_CREATE, 1, SHOAL_BUSY);
    assert_int_equal(try_open(true, false, &error), SHOAL_BUSY);
    tier_fake_fail(TIER_DRAM, TIER_FAKE_CREATE, 1, SHOAL_NO_MEMORY);
    assert_int_equal(try_open(true, false, &error), SHOAL_NO_MEMORY);
    tier_fake_fail(TIER_STORAGE, TIER_FAKE_RECOVER, 1, SHOAL_IO);
    assert_int_equal(try_open(true, false, &error), SHOAL_IO);
    assert_true(tier_fake_disk_has("a", 7));
    open_backend(true);
    assert_int_equal(where("a", 7), STORAGE);
}

/* --- failures of a move --- */

/* DRAM beyond high; the first round's moves fail at op. */
static void fail_offload(enum tier_type type, enum tier_fake_op op, enum shoal_status status)
{
    uint64_t used;

    put_many("o", 14, 64000, 100); /* 896,000 of 1,000,000: below high */
    used = usage(DRAM).used_bytes;
    assert_int_equal(used, 896000);
    assert_int_equal(put_len("last", 6400, 200), SHOAL_OK); /* beyond it: to STORAGE */
    assert_int_equal(where("last", 200), STORAGE);
    {
        struct tier_allocation *allocation;
        struct shoal_error error;
        assert_int_equal(tier_allocate(backend, "x", 12800, true, &allocation, &error), SHOAL_OK);
        tier_fake_fail(type, op, 1, status);
        (void)backend_step(backend);
        tier_allocation_drop(allocation);
    }
    assert_true(tier_fake_has_failed());
    for (unsigned i = 0; i < 14; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "o-%u", i);
        assert_true(where(key, 100 + i) >= 0);
        (void)tier_remove(backend, key, 0);
    }
    assert_int_equal(tier_remove(backend, "last", 0), SHOAL_OK);
    expect_empty();
    backend->slots[STORAGE].no_moves_until = 0; /* the pause is not this test's matter */
    for (unsigned i = 0; i < 2; i++)
        backend->slots[i].is_draining = false;
}

static void test_offload_fails(void **state)
{
    (void)state;
    fail_offload(TIER_STORAGE, TIER_FAKE_ALLOCATE, SHOAL_NO_MEMORY);
    fail_offload(TIER_STORAGE, TIER_FAKE_ALLOCATE, SHOAL_NO_SPACE);
    fail_offload(TIER_STORAGE, TIER_FAKE_WRITE, SHOAL_IO);
    fail_offload(TIER_STORAGE, TIER_FAKE_SEAL, SHOAL_IO);
    fail_offload(TIER_STORAGE, TIER_FAKE_PERSIST, SHOAL_IO);
}

static void test_promotion_fails(void **state)
{
    static const struct {
        enum tier_type type;
        enum tier_fake_op op;
        enum shoal_status status;
    } cases[] = {
        {TIER_DRAM, TIER_FAKE_ALLOCATE, SHOAL_NO_SPACE},
        {TIER_DRAM, TIER_FAKE_ALLOCATE, SHOAL_NO_MEMORY},
        {TIER_DRAM, TIER_FAKE_SEAL, SHOAL_IO},
        {TIER_STORAGE, TIER_FAKE_READ, SHOAL_IO},
    };
    (void)state;
    put_on_storage("hot", 64000, 9);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        access_often("hot", 9);
        tier_fake_fail(cases[i].type, cases[i].op, 1, cases[i].status);
        steps();
        assert_true(tier_fake_has_failed());
        assert_int_equal(usage(DRAM).used_bytes, 0);
        assert_int_equal(usage(STORAGE).used_bytes, 64000);
        assert_int_equal(where("hot", 9), STORAGE);
    }
    assert_int_equal(seen.moved, 0);
    access_often("hot", 9);
    steps();
    assert_int_equal(where("hot", 9), DRAM);
}

static void remove_now(void *arg)
{
    assert_int_equal(tier_remove(backend, arg, 0), SHOAL_OK);
}

/* The key is removed while its copy goes to the disk: the copy must not stay. */
static void test_removed_while_moved(void **state)
{
    struct tier_allocation *allocation;
    struct shoal_error error;

    (void)state;
    assert_int_equal(put_len("a", 448000, 1), SHOAL_OK);
    assert_int_equal(put_len("b", 448000, 2), SHOAL_OK);
    assert_int_equal(tier_allocate(backend, "x", 12800, true, &allocation, &error), SHOAL_OK);
    access_often("b", 2);
    tier_fake_in_persist(remove_now, (void *)(uintptr_t) "a");
    (void)backend_step(backend);
    tier_allocation_drop(allocation);
    assert_false(tier_has(backend, "a"));
    assert_false(tier_fake_disk_has("a", 1));
    assert_true(where("b", 2) >= 0);
    assert_int_equal(tier_remove(backend, "b", 0), SHOAL_OK);
    steps(); /* it may wait for its promotion */
    expect_empty();
    assert_int_equal(seen.evicted, 0);
}

/* --- bytes that changed --- */

static void test_corrupted(void **state)
{
    struct tier_object *object;
    struct shoal_error error;
    uint8_t byte;

    (void)state;
    put_on_storage("bad", 64000, 3);
    assert_int_equal(tier_get(backend, "bad", &object), SHOAL_OK);
    assert_true(tier_fake_disk_corrupt("bad"));
    assert_int_equal(tier_read(object, 10, &byte, 1, &error), SHOAL_CORRUPTED);
    assert_false(tier_has(backend, "bad"));
    assert_int_equal(tier_read(object, 10, &byte, 1, &error), SHOAL_CORRUPTED);
    tier_object_unref(object);
    steps();
    assert_int_equal(seen.evicted, 1);
    assert_int_equal(seen.last_evicted, 3);
    assert_int_equal(usage(STORAGE).checksum_errors, 2);
    expect_empty();
}

static void test_corrupted_promotion(void **state)
{
    (void)state;
    put_on_storage("bad", 64000, 3);
    access_often("bad", 3);
    assert_true(tier_fake_disk_corrupt("bad"));
    steps();
    assert_false(tier_has(backend, "bad"));
    assert_int_equal(seen.evicted, 1);
    assert_int_equal(seen.moved, 0);
    expect_empty();
}

/* --- policy --- */

static void test_promotion(void **state)
{
    struct tier_object *reader;
    uint8_t byte;
    struct shoal_error error;

    (void)state;
    put_on_storage("hot", 64000, 9);
    assert_int_equal(tier_get(backend, "hot", &reader), SHOAL_OK);
    access_often("hot", 9);
    steps();
    assert_int_equal(where("hot", 9), DRAM);
    assert_int_equal(seen.moved_to_dram, 1);
    assert_int_equal(usage(DRAM).promotions, 1);
    assert_int_equal(usage(DRAM).object_count, 1);
    assert_int_equal(usage(STORAGE).object_count, 0);
    /* a restart would find it, and a reader from before still reads */
    assert_true(tier_fake_disk_has("hot", 9));
    assert_int_equal(tier_read(reader, 0, &byte, 1, &error), SHOAL_OK);
    tier_object_unref(reader);
    tier_backend_destroy(backend);
    open_backend(true);
    assert_int_equal(where("hot", 9), STORAGE);
    access_often("hot", 9);
    steps();
    assert_int_equal(where("hot", 9), DRAM);
    assert_int_equal(tier_remove(backend, "hot", 9), SHOAL_OK);
    expect_empty();
    assert_int_equal(seen.evicted, 0);
}

/* Back to STORAGE: the copy that is there takes over, nothing is written. Whether the background makes the room, or an
 * allocation that needs it. */
static void test_demotion(void **state)
{
    (void)state;
    put_on_storage("hot", 64000, 9);
    for (unsigned i = 0; i < 2; i++) {
        struct tier_allocation *allocation;
        struct shoal_error error;

        access_often("hot", 9);
        steps();
        assert_int_equal(where("hot", 9), DRAM);
        assert_int_equal(put_len("other", 64, 1), SHOAL_OK);
        tier_fake_fail(TIER_STORAGE, TIER_FAKE_PERSIST, 2, SHOAL_IO); /* the first may be the other's */
        assert_int_equal(tier_allocate(backend, "x", i ? 920000 : 850048, true, &allocation, &error), SHOAL_OK);
        if (i) {
            assert_int_equal(tier_fake_disk_entries(), 1);
            assert_int_equal(where("hot", 9), STORAGE); /* at once */
        }
        steps();
        assert_int_equal(where("hot", 9), STORAGE);
        assert_false(tier_fake_has_failed());
        tier_fake_fail(TIER_STORAGE, TIER_FAKE_PERSIST, 0, SHOAL_OK);
        tier_allocation_drop(allocation);
        assert_int_equal(tier_remove(backend, "other", 0), SHOAL_OK);
    }
    assert_int_equal(tier_fake_disk_entries(), 1);
    assert_int_equal(seen.evicted, 0);
}

static void test_watermarks(void **state)
{
    char key[32];
    unsigned hot = 0;

    (void)state;
    put_many("w", 14, 64000, 100); /* 89.6 percent */
    steps();
    assert_int_equal(seen.evicted, 0);
    for (unsigned i = 0; i < 4; i++) {
        (void)snprintf(key, sizeof key, "w-%u", i);
        access_often(key, 100 + i);
    }
    assert_int_equal(put_len("more", 32000, 1), SHOAL_OK); /* 92.8 percent: beyond high, below critical */
    assert_int_equal(seen.evicted, 0);
    steps();
    assert_true(usage(0).used_bytes <= 700000);
    assert_true(usage(0).used_bytes >= 600000); /* no more than needed */
    assert_int_equal(seen.evicted, usage(0).evictions);
    for (unsigned i = 0; i < 4; i++) {
        (void)snprintf(key, sizeof key, "w-%u", i);
        hot += where(key, 100 + i) >= 0;
    }
    assert_int_equal(hot, 4); /* the oldest, but used more than the others */
}

/* Not read for long, but often before: the sketch remembers what the second chance has forgotten. */
static void test_frequency(void **state)
{
    (void)state;
    assert_int_equal(put_len("often", 64000, 1), SHOAL_OK);
    access_often("often", 1);
    for (unsigned i = 0; i < 10; i++) {
        char prefix[16];
        (void)snprintf(prefix, sizeof prefix, "once%u", i);
        put_many(prefix, 14, 64000, 100 * (i + 1)); /* as much as there is room for: all others go */
        steps();
    }
    assert_true(seen.evicted > 100);
    assert_int_equal(where("often", 1), 0);
}

/* Above critical an allocation makes room by itself. */
static void test_critical(void **state)
{
    (void)state;
    put_many("c", 40, 64000, 100);
    assert_true(usage(0).used_bytes <= 950000 && usage(0).used_bytes > 900000 - 64000);
    assert_true(usage(0).evictions >= 40 - 15);
    assert_int_equal(seen.evicted, 0); /* told by the background only */
    steps();
    assert_int_equal(seen.evicted, usage(0).evictions);
}

static void test_large_object_stays(void **state)
{
    (void)state;
    assert_int_equal(put_len("large", 990016, 1), SHOAL_OK);
    steps();
    assert_int_equal(where("large", 1), 0);
    assert_int_equal(put_len("second", 990016, 2), SHOAL_OK);
    steps();
    assert_int_equal(where("second", 2), 0);
    assert_int_equal(seen.evicted, 1);
}

/* While there is room below, memory is not made by dropping. */
static void test_nothing_dropped_for_dram(void **state)
{
    struct tier_allocation *allocation;
    struct shoal_error error;

    (void)state;
    put_many("d", 14, 64000, 100);
    assert_int_equal(tier_allocate(backend, "x", 128000, true, &allocation, &error), SHOAL_NO_SPACE);
    assert_int_equal(usage(DRAM).evictions + usage(STORAGE).evictions, 0);
    assert_int_equal(usage(DRAM).object_count, 14);
}

/* STORAGE is full of copies of what is in DRAM: they go, the objects stay. */
static void test_backing_goes_first(void **state)
{
    struct tier_allocation *allocation;
    struct shoal_error error;

    (void)state;
    put_on_storage("hot", 64000, 9);
    access_often("hot", 9);
    steps();
    assert_int_equal(where("hot", 9), DRAM);
    assert_true(tier_fake_disk_has("hot", 9));
    assert_int_equal(tier_allocate(backend, "huge", 3990000, false, &allocation, &error), SHOAL_OK);
    assert_false(tier_fake_disk_has("hot", 9));
    assert_int_equal(where("hot", 9), DRAM);
    tier_allocation_drop(allocation);
    assert_int_equal(tier_remove(backend, "hot", 0), SHOAL_OK);
    expect_empty();
    steps();
    assert_int_equal(seen.evicted, 0);
}

/* Between tiers without addresses, through a staging buffer; down, and up again with what is below as its backing. */
static void test_storage_to_storage(void **state)
{
    struct tier_config tiers[2] = {
        {.type = TIER_STORAGE, .capacity_bytes = 8 << 20, .priority = 2, .numa_node = -1},
        {.type = TIER_STORAGE, .capacity_bytes = 32 << 20, .priority = 1, .numa_node = -1},
    };
    const struct tier_backend_config config = {.tiers = tiers, .tier_count = 2, .staging_buffers = 1};
    const struct backend_options options = {.ops_of = tier_fake_ops, .has_no_thread = true};
    struct tier_object *moved = NULL;
    struct shoal_error error;
    void *buffer;
    char key[32];

    (void)state;
    tier_backend_destroy(backend);
    backend = NULL;
    assert_int_equal(backend_create(&config, &options, &backend, &error), SHOAL_OK);
    put_many("s", 7, TIER_STAGING_BYTES, 100);
    put_many("small", 1, 900000, 200); /* beyond high of the first, whose room is above critical */
    assert_int_equal(usage(0).object_count, 7);
    assert_int_equal(usage(1).object_count, 1);
    put_many("t", 1, 400000, 300); /* 92 percent of the first */
    assert_int_equal(usage(0).object_count, 7);
    {
        struct tier_allocation *allocation;
        backend->high = 80; /* so that it is drained without more writes */
        buffer = tier_staging_take(backend);
        assert_int_equal(tier_allocate(backend, "x", 64, false, &allocation, &error), SHOAL_OK);
        steps(); /* without a buffer nothing can move, and nothing is lost */
        assert_int_equal(usage(0).object_count, 7);
        tier_staging_give(backend, buffer);
        steps();
        tier_allocation_drop(allocation);
    }
    assert_true(usage(0).object_count < 7);
    assert_int_equal(usage(0).object_count + usage(1).object_count, 9);
    assert_int_equal(tier_fake_disk_entries(), 9); /* none is there twice */
    for (unsigned i = 0; i < 7; i++) {
        (void)snprintf(key, sizeof key, "s-%u", i);
        assert_true(where(key, 100 + i) >= 0);
        if (where(key, 100 + i) == 1 && !moved) {
            access_often(key, 100 + i);
            assert_int_equal(tier_get(backend, key, &moved), SHOAL_OK);
        }
    }
    assert_non_null(moved);
    backend->high = 90;
    steps();
    assert_int_equal(where(tier_object_key(moved), tier_object_id(moved)), 0);
    assert_int_equal(tier_fake_disk_entries(), 10); /* its backing */
    assert_int_equal(tier_remove(backend, tier_object_key(moved), 0), SHOAL_OK);
    assert_int_equal(tier_fake_disk_entries(), 8);
    tier_object_unref(moved);
}

/* --- events, configuration --- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool has_begun, may_end, has_ended;
} slow = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false};

static void on_evicted_slowly(void *arg, const char *key, uint64_t object_id)
{
    (void)arg;
    (void)key;
    (void)object_id;
    pthread_mutex_lock(&slow.mutex);
    slow.has_begun = true;
    pthread_cond_broadcast(&slow.changed);
    while (!slow.may_end)
        pthread_cond_wait(&slow.changed, &slow.mutex);
    slow.has_ended = true;
    pthread_mutex_unlock(&slow.mutex);
}

static void *take_events_away(void *arg)
{
    bool *is_wrong = arg;
    tier_backend_set_events(backend, NULL);
    pthread_mutex_lock(&slow.mutex);
    *is_wrong = !slow.has_ended;
    pthread_mutex_unlock(&slow.mutex);
    return NULL;
}

static void test_events_end(void **state)
{
    const struct tier_events events = {.evicted = on_evicted_slowly};
    struct shoal_error error;
    bool is_wrong = true;
    pthread_t thread;

    (void)state;
    tier_backend_destroy(backend);
    if (try_open(false, true, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    tier_backend_set_events(backend, &events);
    put_many("e", 40, 64000, 100);
    pthread_mutex_lock(&slow.mutex);
    while (!slow.has_begun)
        pthread_cond_wait(&slow.changed, &slow.mutex);
    pthread_mutex_unlock(&slow.mutex);
    assert_int_equal(pthread_create(&thread, NULL, take_events_away, &is_wrong), 0);
    pthread_mutex_lock(&slow.mutex);
    slow.may_end = true;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(is_wrong);
}

static enum shoal_status refused(struct tier_backend_config config, const char *word)
{
    struct tier_backend *other = NULL;
    struct shoal_error error;
    enum shoal_status status = tier_backend_create(&config, &other, &error);

    assert_int_not_equal(status, SHOAL_OK);
    assert_null(other);
    if (!strstr(error.message, word))
        fail_msg("'%s' is not in: %s", word, error.message);
    return status;
}

static void test_configurations(void **state)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct tier_config dram[TIER_COUNT_MAX + 1];
    const struct tier_backend_config good = {.tiers = dram, .tier_count = 1};
    struct tier_backend_config bad = good;

    (void)state;
    for (unsigned i = 0; i <= TIER_COUNT_MAX; i++)
        dram[i] = (struct tier_config){.type = TIER_DRAM, .capacity_bytes = 65536, .numa_node = -1};
    bad.tier_count = 0;
    assert_int_equal(refused(bad, "at least one"), SHOAL_INVALID_ARGUMENT);
    bad.tier_count = TIER_COUNT_MAX + 1;
    assert_int_equal(refused(bad, "at most 8"), SHOAL_INVALID_ARGUMENT);
    bad = good;
    bad.watermark_low = 95;
    assert_int_equal(refused(bad, "95, 90, 95 percent"), SHOAL_INVALID_ARGUMENT);
    bad.watermark_low = 10;
    bad.watermark_critical = 101;
    assert_int_equal(refused(bad, "at most 100"), SHOAL_INVALID_ARGUMENT);
    bad = good;
    bad.staging_buffers = 1000000;
    assert_int_equal(refused(bad, "staging buffers"), SHOAL_INVALID_ARGUMENT);
    bad = good;
    bad.lock_stripes = UINT32_MAX;
    assert_int_equal(refused(bad, "stripes"), SHOAL_INVALID_ARGUMENT);
    dram[0].capacity_bytes = 63;
    assert_int_equal(refused(good, "tier 0 (DRAM): capacity is 63 bytes"), SHOAL_INVALID_ARGUMENT);
    dram[0].capacity_bytes = memory + (1 << 20);
    assert_int_equal(refused(good, "more than"), SHOAL_NO_MEMORY);
    dram[0].capacity_bytes = 1ull << 62;
    assert_int_equal(refused(good, "more than"), SHOAL_NO_MEMORY);
    dram[0].capacity_bytes = 64 << 20; /* each alone would fit */
    dram[1].capacity_bytes = memory - (32 << 20);
    bad = good;
    bad.tier_count = 2;
    assert_int_equal(refused(bad, "tier 1 (DRAM)"), SHOAL_NO_MEMORY);
    dram[0].type = (enum tier_type)9;
    assert_int_equal(refused(good, "no kind 9"), SHOAL_INVALID_ARGUMENT);
}

/* Wishes that this machine may not grant are no errors. */
static void test_wishes(void **state)
{
    struct tier_config dram = {.type = TIER_DRAM, .capacity_bytes = 3 << 20, .numa_node = -1, .wants_huge_pages = true};
    const struct tier_backend_config config = {.tiers = &dram, .tier_count = 1};
    struct shoal_error error;

    (void)state;
    for (int i = 0; i < 2; i++) {
        tier_backend_destroy(backend);
        backend = NULL;
        dram.numa_node = i - 1;
        if (tier_backend_create(&config, &backend, &error) != SHOAL_OK)
            fail_msg("%s", error.message);
        assert_int_equal(put_len("w", 1 << 20, 4), SHOAL_OK);
        assert_int_equal(where("w", 4), 0);
    }
    dram.numa_node = 1000; /* a mistake */
    assert_int_equal(refused(config, "tier 0 (DRAM): this machine has no NUMA node 1000"), SHOAL_INVALID_ARGUMENT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define CASE_DRAM(fn) cmocka_unit_test_setup_teardown(fn, setup_dram, teardown)
        CASE(test_put_fails),
        CASE(test_remove_fails),
        CASE(test_open_fails),
        CASE(test_offload_fails),
        CASE(test_promotion_fails),
        CASE(test_removed_while_moved),
        CASE(test_corrupted),
        CASE(test_corrupted_promotion),
        CASE(test_promotion),
        CASE(test_demotion),
        CASE_DRAM(test_watermarks),
        CASE_DRAM(test_frequency),
        CASE_DRAM(test_critical),
        CASE_DRAM(test_large_object_stays),
        CASE(test_nothing_dropped_for_dram),
        CASE(test_backing_goes_first),
        CASE(test_storage_to_storage),
        CASE_DRAM(test_events_end),
        CASE_DRAM(test_configurations),
        CASE_DRAM(test_wishes),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tier_faults", tests, NULL, NULL);
}
