/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of tier.h, run on every kind of tier: tier_contract dram | storage | dram+storage [TEST], and with a
 * kind of tests/lib/tier_fake.h in the place of STORAGE: fake | dram+fake. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/random.h"
#include "content.h"
#include "tier/backend.h"
#include "tier_fake.h"
#include "tmpdir.h"

#define DRAM_BYTES (8ull << 20)
#define STORAGE_BYTES (32ull << 20)

static const char *kind; /* the argument */

struct fixture {
    struct tier_backend *backend;
    char *directory; /* owned */
    struct tier_config tiers[2];
    size_t tier_count;
};

static bool has_dram(void)
{
    return strncmp(kind, "dram", 4) == 0;
}

static bool has_storage(void)
{
    return strcmp(kind, "dram") != 0;
}

static enum shoal_status open_backend(const struct fixture *f, struct tier_backend **backend_out,
                                      struct shoal_error *error)
{
    const struct tier_backend_config config = {.tiers = f->tiers, .tier_count = f->tier_count, .lock_stripes = 8};
    const struct backend_options fake = {.ops_of = tier_fake_ops};
    return backend_create(&config, strstr(kind, "fake") ? &fake : NULL, backend_out, error);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct shoal_error error;

    assert_non_null(f);
    f->directory = tmpdir_make();
    if (has_dram())
        f->tiers[f->tier_count++] =
            (struct tier_config){.type = TIER_DRAM, .capacity_bytes = DRAM_BYTES, .priority = 100, .numa_node = -1};
    if (has_storage())
        f->tiers[f->tier_count++] = (struct tier_config){.type = TIER_STORAGE,
                                                         .capacity_bytes = STORAGE_BYTES,
                                                         .priority = 10,
                                                         .storage_filepath = f->directory,
                                                         .numa_node = -1};
    if (open_backend(f, &f->backend, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    *state = f;
    return 0;
}

static uint64_t used(struct tier_backend *backend)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < tier_count(backend); i++) {
        struct tier_usage usage;
        tier_usage(backend, i, &usage);
        bytes += usage.used_bytes;
    }
    return bytes;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    tier_backend_destroy(f->backend);
    tier_fake_disk_clear();
    tmpdir_remove(f->directory);
    free(f);
    return 0;
}

/* --- helpers --- */

static enum shoal_status write_all(struct tier_allocation *allocation, uint64_t len, uint64_t seed)
{
    static __thread uint8_t piece[TIER_STAGING_BYTES];
    struct shoal_error error;
    enum shoal_status status = SHOAL_OK;

    for (uint64_t done = 0; done < len && status == SHOAL_OK; done += sizeof piece) {
        size_t part = len - done < sizeof piece ? (size_t)(len - done) : sizeof piece;
        content_fill(piece, part, seed, done);
        status = tier_write(allocation, done, piece, part, &error);
    }
    return status;
}

static enum shoal_status put(struct tier_backend *backend, const char *key, uint64_t len, uint64_t seed,
                             uint64_t *id_out)
{
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    enum shoal_status status = tier_allocate(backend, key, len, false, &allocation, &error);

    if (status != SHOAL_OK)
        return status;
    status = write_all(allocation, len, seed);
    if (status != SHOAL_OK) {
        tier_allocation_drop(allocation);
        return status;
    }
    status = tier_commit(allocation, 0, &object, &error);
    if (status == SHOAL_OK) {
        uint64_t id = tier_object_id(object);
        status = tier_publish(object, &error);
        if (status == SHOAL_OK) {
            if (id_out)
                *id_out = id;
            tier_object_unref(object);
        }
    }
    return status;
}

/* All of the object is seed's content; also through its address. */
static bool has_content(struct tier_object *object, uint64_t seed)
{
    uint64_t len = tier_object_len(object);
    uint8_t *copy = malloc(len + 1);
    const void *data = tier_object_data(object);
    struct shoal_error error;
    bool has = copy && tier_read(object, 0, copy, len, &error) == SHOAL_OK &&
               content_find_difference(copy, len, seed, 0) < 0 &&
               (!data || content_find_difference(data, len, seed, 0) < 0);
    free(copy);
    return has;
}

static void expect(struct tier_backend *backend, const char *key, uint64_t len, uint64_t seed)
{
    struct tier_object *object;
    assert_int_equal(tier_get(backend, key, &object), SHOAL_OK);
    assert_string_equal(tier_object_key(object), key);
    assert_int_equal(tier_object_len(object), len);
    assert_true(has_content(object, seed));
    tier_object_unref(object);
}

/* --- one thread --- */

static void test_sizes(void **state)
{
    struct fixture *f = *state;
    const uint64_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 3000001};
    char key[32];

    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        (void)snprintf(key, sizeof key, "size-%u", i);
        assert_int_equal(put(f->backend, key, sizes[i], i + 1, NULL), SHOAL_OK);
        expect(f->backend, key, sizes[i], i + 1);
        assert_int_equal(tier_remove(f->backend, key, 0), SHOAL_OK);
        assert_int_equal(used(f->backend), 0);
    }
}

static void test_keys(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    char key[TIER_KEY_MAX_BYTES + 2];

    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    assert_int_equal(tier_allocate(f->backend, key, 1, false, &allocation, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "1024"));
    assert_int_equal(tier_allocate(f->backend, "", 1, false, &allocation, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "empty"));
    assert_int_equal(tier_get(f->backend, key, &object), SHOAL_NOT_FOUND);
    assert_int_equal(tier_remove(f->backend, key, 0), SHOAL_NOT_FOUND);
    key[TIER_KEY_MAX_BYTES] = '\0';
    assert_int_equal(put(f->backend, key, 10, 7, NULL), SHOAL_OK);
    expect(f->backend, key, 10, 7);
    assert_int_equal(used(f->backend) > 0, 1);
}

static void test_states(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation, *second;
    struct tier_object *object, *found;
    struct shoal_error error;

    assert_int_equal(tier_allocate(f->backend, "k", 100, false, &allocation, &error), SHOAL_OK);
    assert_int_equal(tier_allocate(f->backend, "k", 200, false, &second, &error), SHOAL_OK);
    assert_false(tier_has(f->backend, "k"));
    assert_int_equal(write_all(allocation, 100, 1), SHOAL_OK);
    assert_int_equal(write_all(second, 200, 2), SHOAL_OK);
    assert_int_equal(tier_commit(allocation, 42, &object, &error), SHOAL_OK);
    assert_int_equal(tier_object_id(object), 42);
    /* committed: taken, but nobody sees it */
    assert_int_equal(tier_commit(second, 43, &found, &error), SHOAL_EXISTS);
    assert_int_equal(tier_allocate(f->backend, "k", 1, false, &second, &error), SHOAL_EXISTS);
    assert_false(tier_has(f->backend, "k"));
    assert_int_equal(tier_get(f->backend, "k", &found), SHOAL_NOT_FOUND);
    assert_int_equal(tier_remove(f->backend, "k", 0), SHOAL_NOT_FOUND);
    tier_abandon(object);
    assert_int_equal(used(f->backend), 0);

    assert_int_equal(tier_allocate(f->backend, "k", 100, false, &allocation, &error), SHOAL_OK);
    assert_int_equal(write_all(allocation, 100, 3), SHOAL_OK);
    assert_int_equal(tier_commit(allocation, 44, &object, &error), SHOAL_OK);
    assert_int_equal(tier_publish(object, &error), SHOAL_OK);
    assert_true(tier_has(f->backend, "k"));
    assert_int_equal(tier_allocate(f->backend, "k", 1, false, &second, &error), SHOAL_EXISTS);
    assert_int_equal(tier_remove(f->backend, "k", 43), SHOAL_NOT_FOUND);
    assert_true(tier_has(f->backend, "k"));
    assert_int_equal(tier_remove(f->backend, "k", 44), SHOAL_OK);
    assert_false(tier_has(f->backend, "k"));
    /* the caller's reference keeps it */
    assert_true(used(f->backend) > 0);
    assert_true(has_content(object, 3));
    tier_object_unref(object);
    assert_int_equal(used(f->backend), 0);

    assert_int_equal(tier_allocate(f->backend, "k", 100, false, &allocation, &error), SHOAL_OK);
    tier_allocation_drop(allocation);
    tier_allocation_drop(NULL);
    tier_object_unref(NULL);
    assert_int_equal(used(f->backend), 0);
}

static void test_ranges(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    uint8_t bytes[64];

    assert_int_equal(tier_allocate(f->backend, "r", 2500000, false, &allocation, &error), SHOAL_OK);
    assert_int_equal(tier_write(allocation, 2500000, bytes, 1, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(tier_write(allocation, UINT64_MAX, bytes, 2, &error), SHOAL_INVALID_ARGUMENT);
    if (!tier_allocation_data(allocation)) {
        assert_int_equal(tier_write(allocation, 0, bytes, 10, &error), SHOAL_INVALID_ARGUMENT);
        assert_int_equal(tier_write(allocation, TIER_STAGING_BYTES, bytes, 10, &error), SHOAL_INVALID_ARGUMENT);
    }
    assert_int_equal(write_all(allocation, 2500000, 9), SHOAL_OK);
    assert_int_equal(tier_commit(allocation, 0, &object, &error), SHOAL_OK);
    assert_int_not_equal(tier_object_id(object), 0);
    assert_int_equal(tier_publish(object, &error), SHOAL_OK);
    assert_int_equal(tier_read(object, 2500000 - 10, bytes, 11, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(tier_read(object, UINT64_MAX, bytes, 2, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(tier_read(object, 2500000, bytes, 0, &error), SHOAL_OK);
    for (uint64_t offset = 0; offset + sizeof bytes <= 2500000; offset += 99991) {
        assert_int_equal(tier_read(object, offset, bytes, sizeof bytes, &error), SHOAL_OK);
        assert_int_equal(content_find_difference(bytes, sizeof bytes, 9, offset), -1);
    }
    assert_int_equal(tier_read(object, TIER_STAGING_BYTES - 30, bytes, sizeof bytes, &error), SHOAL_OK);
    assert_int_equal(content_find_difference(bytes, sizeof bytes, 9, TIER_STAGING_BYTES - 30), -1);
    tier_object_unref(object);
}

static void test_unwritten(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;

    assert_int_equal(tier_allocate(f->backend, "u", 3 << 20, false, &allocation, &error), SHOAL_OK);
    if (tier_allocation_data(allocation)) { /* whoever had the address may have written */
        tier_allocation_drop(allocation);
        return;
    }
    assert_int_equal(write_all(allocation, TIER_STAGING_BYTES, 1), SHOAL_OK);
    assert_int_equal(tier_commit(allocation, 0, &object, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(used(f->backend), 0);
}

static void test_dram_wanted(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;
    enum shoal_status status = tier_allocate(f->backend, "d", 1000, true, &allocation, &error);

    if (!has_dram()) {
        assert_int_equal(status, SHOAL_NO_SPACE);
        return;
    }
    assert_int_equal(status, SHOAL_OK);
    content_fill(tier_allocation_data(allocation), 1000, 5, 0);
    assert_int_equal(tier_allocation_memory_key(allocation), 0);
    assert_int_equal(tier_commit(allocation, 0, &object, &error), SHOAL_OK);
    assert_int_equal(tier_publish(object, &error), SHOAL_OK);
    tier_object_unref(object);
    expect(f->backend, "d", 1000, 5);
    if (has_storage())
        assert_int_equal(tier_allocate(f->backend, "e", DRAM_BYTES + 1, true, &allocation, &error), SHOAL_NO_SPACE);
}

static void test_too_large(void **state)
{
    struct fixture *f = *state;
    struct tier_allocation *allocation;
    struct shoal_error error;

    assert_int_equal(tier_allocate(f->backend, "l", STORAGE_BYTES + DRAM_BYTES, false, &allocation, &error),
                     SHOAL_LIMIT);
    assert_non_null(strstr(error.message, "larger than every tier"));
    assert_int_equal(tier_allocate(f->backend, "l", UINT64_MAX, false, &allocation, &error), SHOAL_LIMIT);
}

static bool count_objects(void *arg, struct tier_object *object)
{
    unsigned *count = arg;
    assert_non_null(strstr(tier_object_key(object), "each-"));
    return ++*count != 70;
}

static void test_each(void **state)
{
    struct fixture *f = *state;
    unsigned count = 0;
    char key[32];

    for (unsigned i = 0; i < 50; i++) {
        (void)snprintf(key, sizeof key, "each-%u", i);
        assert_int_equal(put(f->backend, key, i, i, NULL), SHOAL_OK);
    }
    assert_true(tier_each(f->backend, count_objects, &count));
    assert_int_equal(count, 50);
    count = 65; /* ends after five */
    assert_true(tier_each(f->backend, count_objects, &count));
    assert_int_equal(count, 70);
}

static void test_staging(void **state)
{
    struct fixture *f = *state;
    void *buffers[17];

    for (unsigned i = 0; i < 16; i++) {
        buffers[i] = tier_staging_take(f->backend);
        assert_non_null(buffers[i]);
        memset(buffers[i], (int)i, TIER_STAGING_BYTES);
    }
    assert_null(tier_staging_take(f->backend));
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(((uint8_t *)buffers[i])[TIER_STAGING_BYTES - 1], i);
        tier_staging_give(f->backend, buffers[i]);
    }
    buffers[0] = tier_staging_take(f->backend);
    assert_non_null(buffers[0]);
    tier_staging_give(f->backend, buffers[0]);
}

static void test_metrics(void **state)
{
    struct fixture *f = *state;
    struct tier_usage usage;
    struct buf text;

    buf_init(&text, 1u << 16);
    assert_int_equal(put(f->backend, "m", 1000, 1, NULL), SHOAL_OK);
    expect(f->backend, "m", 1000, 1);
    assert_true(tier_metrics(f->backend, &text));
    assert_non_null(strstr((char *)text.data, has_dram() ? "shoal_tier_objects{tier=\"0\",type=\"DRAM\"} 1\n"
                                                         : "shoal_tier_objects{tier=\"0\",type=\"STORAGE\"} 1\n"));
    assert_non_null(strstr((char *)text.data, "shoal_tier_gets_total{outcome=\"hit\"} 1\n"));
    buf_release(&text);
    buf_init(&text, 100);
    assert_false(tier_metrics(f->backend, &text));
    buf_release(&text);
    tier_usage(f->backend, 0, &usage);
    assert_int_equal(usage.object_count, 1);
    assert_int_equal(usage.type, has_dram() ? TIER_DRAM : TIER_STORAGE);
}

/* --- room --- */

static void test_overfill(void **state)
{
    struct fixture *f = *state;
    uint64_t total = DRAM_BYTES + STORAGE_BYTES, len = 300000;
    unsigned found = 0, count = (unsigned)(2 * total / len), evicted = 0;
    char key[32];

    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "over-%u", i);
        assert_int_equal(put(f->backend, key, len, i, NULL), SHOAL_OK);
    }
    for (unsigned i = 0; i < count; i++) {
        struct tier_object *object;
        (void)snprintf(key, sizeof key, "over-%u", i);
        if (tier_get(f->backend, key, &object) != SHOAL_OK)
            continue;
        assert_true(has_content(object, i));
        tier_object_unref(object);
        found++;
    }
    for (unsigned i = 0; i < tier_count(f->backend); i++) {
        struct tier_usage usage;
        tier_usage(f->backend, i, &usage);
        assert_true(usage.used_bytes <= usage.capacity_bytes);
        evicted += (unsigned)usage.evictions;
    }
    assert_true(found > 0 && found < count);
    assert_true(evicted >= count - found || has_storage());
}

/* What readers hold is never taken away; with everything held there is no room. */
static void test_held(void **state)
{
    struct fixture *f = *state;
    struct tier_object *held[256];
    struct tier_allocation *allocation;
    struct shoal_error error;
    unsigned count = 0;
    char key[32];
    enum shoal_status status;

    do {
        (void)snprintf(key, sizeof key, "held-%u", count);
        assert_true(count < 256);
        status = tier_allocate(f->backend, key, 1000000, false, &allocation, &error);
        if (status != SHOAL_OK)
            break;
        assert_int_equal(write_all(allocation, 1000000, count), SHOAL_OK);
        assert_int_equal(tier_commit(allocation, 0, &held[count], &error), SHOAL_OK);
        assert_int_equal(tier_publish(held[count], &error), SHOAL_OK); /* our reference stays */
        count++;
    } while (status == SHOAL_OK);
    assert_int_equal(status, SHOAL_NO_SPACE);
    assert_non_null(strstr(error.message, "no room"));
    assert_true(count >= 7);
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(key, sizeof key, "held-%u", i);
        if (i % 2) /* also removed ones stay readable */
            assert_int_equal(tier_remove(f->backend, key, 0), SHOAL_OK);
        assert_true(has_content(held[i], i));
    }
    assert_int_equal(tier_allocate(f->backend, "more", 1000000, false, &allocation, &error), SHOAL_NO_SPACE);
    for (unsigned i = 0; i < count; i++)
        tier_object_unref(held[i]);
    assert_int_equal(put(f->backend, "more", 1000000, 1, NULL), SHOAL_OK);
}

static void test_reopen(void **state)
{
    struct fixture *f = *state;
    struct shoal_error error;
    struct tier_object *object;
    uint64_t ids[20];
    char key[32];

    if (has_dram() || !has_storage())
        return;
    for (unsigned i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof key, "keep-%u", i);
        assert_int_equal(put(f->backend, key, 100000 * i, i, &ids[i]), SHOAL_OK);
    }
    for (unsigned i = 0; i < 20; i += 3) {
        (void)snprintf(key, sizeof key, "keep-%u", i);
        assert_int_equal(tier_remove(f->backend, key, 0), SHOAL_OK);
    }
    tier_backend_destroy(f->backend);
    f->backend = NULL;
    if (open_backend(f, &f->backend, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    for (unsigned i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof key, "keep-%u", i);
        if (i % 3 == 0) {
            assert_int_equal(tier_get(f->backend, key, &object), SHOAL_NOT_FOUND);
            continue;
        }
        expect(f->backend, key, 100000 * i, i);
        assert_int_equal(tier_get(f->backend, key, &object), SHOAL_OK);
        assert_int_equal(tier_object_id(object), ids[i]);
        tier_object_unref(object);
        assert_int_equal(tier_remove(f->backend, key, 0), SHOAL_OK);
    }
    assert_int_equal(used(f->backend), 0);
}

/* --- threads --- */

#define SHARED_KEYS 8
#define ROUNDS 400

struct worker {
    struct tier_backend *backend;
    uint64_t seed;
    bool is_wrong;
};

/* Puts, gets and removes the same few keys. A value's length and content follow from its seed, which is its id. */
static void *work(void *arg)
{
    struct worker *worker = arg;
    struct random random;
    char key[32];

    random_init(&random, worker->seed);
    for (unsigned i = 0; i < ROUNDS && !worker->is_wrong; i++) {
        struct tier_allocation *allocation;
        struct tier_object *object;
        struct shoal_error error;

        (void)snprintf(key, sizeof key, "shared-%" PRIu64, random_below(&random, SHARED_KEYS));
        switch (random_below(&random, 8)) {
        case 0:
            (void)tier_remove(worker->backend, key, 0);
            break;
        case 1:
        case 2: {
            uint64_t id = random_next(&random) | 1, len = id % 200000;
            if (tier_allocate(worker->backend, key, len, false, &allocation, &error) != SHOAL_OK)
                break;
            if (write_all(allocation, len, id) != SHOAL_OK) {
                worker->is_wrong = true;
                tier_allocation_drop(allocation);
                break;
            }
            if (tier_commit(allocation, id, &object, &error) != SHOAL_OK)
                break;
            if (random_below(&random, 4) == 0)
                tier_abandon(object);
            else if (tier_publish(object, &error) == SHOAL_OK)
                tier_object_unref(object);
            break;
        }
        default:
            if (tier_get(worker->backend, key, &object) != SHOAL_OK)
                break;
            worker->is_wrong = tier_object_len(object) != tier_object_id(object) % 200000 ||
                               !has_content(object, tier_object_id(object));
            tier_object_unref(object);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct fixture *f = *state;
    struct worker workers[6];
    pthread_t threads[6];
    char key[32];

    for (unsigned i = 0; i < 6; i++) {
        workers[i] = (struct worker){.backend = f->backend, .seed = random_id()};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_false(workers[i].is_wrong);
    for (unsigned i = 0; i < SHARED_KEYS; i++) {
        (void)snprintf(key, sizeof key, "shared-%u", i);
        (void)tier_remove(f->backend, key, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        CASE(test_sizes),       CASE(test_keys),      CASE(test_states), CASE(test_ranges),  CASE(test_unwritten),
        CASE(test_dram_wanted), CASE(test_too_large), CASE(test_each),   CASE(test_staging), CASE(test_metrics),
        CASE(test_overfill),    CASE(test_held),      CASE(test_reopen), CASE(test_threads),
    };

    kind = argc > 1 ? argv[1] : "dram";
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name(kind, tests, NULL, NULL);
}
