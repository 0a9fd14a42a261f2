/* SPDX-License-Identifier: Apache-2.0 */
/* The backend against a simple model: random calls, thousands of seeds, on DRAM and on DRAM over a STORAGE kind. What
 * the policy does (evict, move) is its own affair, but it must be told by events, exactly once, and every reader must
 * see the bytes that were put. SHOAL_TEST_SEED repeats a run. */
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

#define KEYS 24
#define HELD 12
#define WRITING 4
#define OWED 512
#define LEN_MAX 20000
#define DRAM_BYTES 65536
#define STORAGE_BYTES 131072

struct key_model {
    bool is_published;
    uint64_t id, len;
    unsigned tier;
};

struct writing {
    struct tier_allocation *allocation;
    struct tier_object *object; /* committed */
    unsigned key;
    uint64_t id, len;
};

struct model {
    struct tier_backend *backend;
    bool has_storage;
    char *directory; /* of the real STORAGE kind; NULL: the fake one. Owned */
    struct random random;
    struct key_model keys[KEYS];
    struct tier_object *held[HELD];
    struct writing writing[WRITING];
    uint64_t owed[OWED]; /* ids that were found gone before the event came */
    unsigned owed_count;
    uint64_t next_id;
};

static uint64_t current_seed;

#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail_msg("SHOAL_TEST_SEED=0x%" PRIx64 ": %s (line %d)", current_seed, #condition, __LINE__);               \
    } while (0)

static void name_key(char name[16], unsigned key)
{
    (void)snprintf(name, 16, "key-%u", key);
}

/* --- events --- */

static void on_evicted(void *arg, const char *key, uint64_t object_id)
{
    struct model *model = arg;
    struct key_model *known = &model->keys[atoi(key + 4)];

    if (known->is_published && known->id == object_id) {
        known->is_published = false;
        return;
    }
    for (unsigned i = 0; i < model->owed_count; i++) {
        if (model->owed[i] == object_id) {
            model->owed[i] = model->owed[--model->owed_count];
            return;
        }
    }
    fail_msg("SHOAL_TEST_SEED=0x%" PRIx64 ": %s was removed, replaced or evicted before, and is evicted again",
             current_seed, key);
}

static void on_moved(void *arg, const char *key, uint64_t object_id, unsigned tier)
{
    struct model *model = arg;
    struct key_model *known = &model->keys[atoi(key + 4)];

    if (known->is_published && known->id == object_id)
        known->tier = tier;
}

/* The key is not where the model has it: it has been evicted, and the event is to come. */
static void note_gone(struct model *model, unsigned key)
{
    must(model->owed_count < OWED);
    model->owed[model->owed_count++] = model->keys[key].id;
    model->keys[key].is_published = false;
}

/* --- life --- */

static void open_backend(struct model *model)
{
    struct tier_config tiers[2] = {
        {.type = TIER_DRAM, .capacity_bytes = DRAM_BYTES, .priority = 2, .numa_node = -1},
        {.type = TIER_STORAGE,
         .capacity_bytes = STORAGE_BYTES,
         .priority = 1,
         .storage_filepath = model->directory,
         .numa_node = -1},
    };
    const struct tier_backend_config config = {
        .tiers = tiers, .tier_count = model->has_storage ? 2 : 1, .lock_stripes = 4, .staging_buffers = 1};
    const struct backend_options options = {.ops_of = model->directory ? NULL : tier_fake_ops, .has_no_thread = true};
    const struct tier_events events = {.evicted = on_evicted, .moved = on_moved, .arg = model};
    struct shoal_error error;

    if (backend_create(&config, &options, &model->backend, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    tier_backend_set_events(model->backend, &events);
}

static void check_object(struct tier_object *object)
{
    uint8_t bytes[LEN_MAX];
    uint64_t len = tier_object_len(object);
    const void *data = tier_object_data(object);
    struct shoal_error error;

    must(tier_read(object, 0, bytes, len, &error) == SHOAL_OK);
    must(content_find_difference(bytes, len, tier_object_id(object), 0) < 0);
    must(!data || content_find_difference(data, len, tier_object_id(object), 0) < 0);
}

/* After a step everything has been told. */
static void settle(struct model *model)
{
    char name[16];
    unsigned rounds = 0;

    while (backend_step(model->backend) && rounds++ < 100) {
    }
    must(model->owed_count == 0);
    for (unsigned i = 0; i < KEYS; i++) {
        struct tier_object *object;
        name_key(name, i);
        must(tier_has(model->backend, name) == model->keys[i].is_published);
        if (!model->keys[i].is_published || random_below(&model->random, 8))
            continue;
        must(tier_get(model->backend, name, &object) == SHOAL_OK);
        must(tier_object_id(object) == model->keys[i].id && tier_object_len(object) == model->keys[i].len);
        must(tier_object_tier(object) == model->keys[i].tier);
        tier_object_unref(object);
    }
    for (unsigned i = 0; i < tier_count(model->backend); i++) {
        struct tier_usage usage;
        uint64_t count = 0, bytes = 0;
        tier_usage(model->backend, i, &usage);
        for (unsigned k = 0; k < KEYS; k++) {
            count += model->keys[k].is_published && model->keys[k].tier == i;
            bytes += model->keys[k].is_published && model->keys[k].tier == i ? model->keys[k].len : 0;
        }
        must(usage.object_count == count);
        must(usage.used_bytes >= bytes && usage.used_bytes <= usage.capacity_bytes);
    }
}

/* --- calls --- */

static void begin(struct model *model)
{
    struct writing *writing = &model->writing[random_below(&model->random, WRITING)];
    unsigned key = (unsigned)random_below(&model->random, KEYS);
    uint64_t len = random_below(&model->random, LEN_MAX + 1);
    bool wants_dram = random_below(&model->random, 4) == 0, is_committed = false;
    struct shoal_error error;
    char name[16];
    enum shoal_status status;

    if (writing->allocation || writing->object)
        return;
    name_key(name, key);
    for (unsigned i = 0; i < WRITING; i++)
        is_committed = is_committed || (model->writing[i].object && model->writing[i].key == key);
    status = tier_allocate(model->backend, name, len, wants_dram, &writing->allocation, &error);
    if (status == SHOAL_EXISTS) {
        must(model->keys[key].is_published || is_committed);
        return;
    }
    must(!is_committed);
    if (status != SHOAL_OK) {
        must(status == SHOAL_NO_SPACE);
        return;
    }
    if (model->keys[key].is_published && !tier_has(model->backend, name))
        note_gone(model, key);
    *writing = (struct writing){.allocation = writing->allocation, .key = key, .id = model->next_id++, .len = len};
}

static void go_on(struct model *model)
{
    struct writing *writing = &model->writing[random_below(&model->random, WRITING)];
    uint8_t bytes[LEN_MAX];
    struct shoal_error error;
    char name[16];

    name_key(name, writing->key);
    if (writing->allocation && random_below(&model->random, 6) == 0) {
        tier_allocation_drop(writing->allocation);
        *writing = (struct writing){0};
    } else if (writing->allocation) {
        enum shoal_status status;
        content_fill(bytes, writing->len, writing->id, 0);
        must(tier_write(writing->allocation, 0, bytes, writing->len, &error) == SHOAL_OK);
        status = tier_commit(writing->allocation, writing->id, &writing->object, &error);
        writing->allocation = NULL;
        if (status == SHOAL_EXISTS) {
            *writing = (struct writing){0};
            return;
        }
        must(status == SHOAL_OK);
        if (model->keys[writing->key].is_published)
            note_gone(model, writing->key);
    } else if (writing->object && random_below(&model->random, 4) == 0) {
        must(!tier_has(model->backend, name));
        tier_abandon(writing->object);
        *writing = (struct writing){0};
    } else if (writing->object) {
        must(!tier_has(model->backend, name));
        must(tier_publish(writing->object, &error) == SHOAL_OK);
        must(!model->keys[writing->key].is_published);
        model->keys[writing->key] = (struct key_model){
            .is_published = true, .id = writing->id, .len = writing->len, .tier = tier_object_tier(writing->object)};
        tier_object_unref(writing->object);
        *writing = (struct writing){0};
    }
}

static void read_one(struct model *model)
{
    unsigned key = (unsigned)random_below(&model->random, KEYS);
    /* Some keys are read much more than others. */
    struct tier_object **held = &model->held[random_below(&model->random, HELD)], *object;
    char name[16];
    enum shoal_status status;

    if (random_below(&model->random, 2))
        key %= 3;
    name_key(name, key);
    status = tier_get(model->backend, name, &object);
    if (status != SHOAL_OK) {
        must(status == SHOAL_NOT_FOUND);
        if (model->keys[key].is_published)
            note_gone(model, key);
        return;
    }
    must(model->keys[key].is_published && tier_object_id(object) == model->keys[key].id);
    check_object(object);
    if (*held || random_below(&model->random, 3)) {
        tier_object_unref(object);
        return;
    }
    *held = object;
}

static void let_go(struct model *model)
{
    struct tier_object **held = &model->held[random_below(&model->random, HELD)];

    if (!*held)
        return;
    check_object(*held); /* whatever became of it */
    tier_object_unref(*held);
    *held = NULL;
}

static void remove_one(struct model *model)
{
    unsigned key = (unsigned)random_below(&model->random, KEYS);
    bool wants_id = random_below(&model->random, 2);
    char name[16];
    enum shoal_status status;

    name_key(name, key);
    must(tier_remove(model->backend, name, 77) == SHOAL_NOT_FOUND); /* no object has that id */
    status = tier_remove(model->backend, name, wants_id ? model->keys[key].id : 0);
    if (status == SHOAL_OK) {
        must(model->keys[key].is_published);
        if (model->has_storage)
            must(!tier_fake_disk_has(name, model->keys[key].id));
        model->keys[key].is_published = false;
    } else {
        must(status == SHOAL_NOT_FOUND);
        if (model->keys[key].is_published)
            note_gone(model, key);
    }
}

static void let_all_go(struct model *model)
{
    for (unsigned i = 0; i < HELD; i++) {
        if (model->held[i])
            check_object(model->held[i]);
        tier_object_unref(model->held[i]);
        model->held[i] = NULL;
    }
    for (unsigned i = 0; i < WRITING; i++) {
        tier_allocation_drop(model->writing[i].allocation);
        if (model->writing[i].object)
            tier_abandon(model->writing[i].object);
        model->writing[i] = (struct writing){0};
    }
}

/* What is on STORAGE is found again, with its id and bytes, and nothing else. */
static void reopen(struct model *model)
{
    char name[16];

    let_all_go(model);
    settle(model);
    tier_backend_destroy(model->backend);
    open_backend(model);
    for (unsigned i = 0; i < KEYS; i++) {
        struct key_model *key = &model->keys[i];
        struct tier_object *object;
        name_key(name, i);
        if (tier_get(model->backend, name, &object) != SHOAL_OK) {
            must(!key->is_published || key->tier == 0);
            key->is_published = false;
            continue;
        }
        must(key->is_published && tier_object_id(object) == key->id && tier_object_len(object) == key->len);
        key->tier = tier_object_tier(object);
        must(key->tier == 1);
        check_object(object);
        tier_object_unref(object);
    }
}

static void finish(struct model *model)
{
    char name[16];

    let_all_go(model);
    settle(model);
    for (unsigned i = 0; i < KEYS; i++) {
        name_key(name, i);
        must(tier_remove(model->backend, name, 0) == (model->keys[i].is_published ? SHOAL_OK : SHOAL_NOT_FOUND));
        model->keys[i].is_published = false;
    }
    for (unsigned rounds = 0; backend_step(model->backend) && rounds < 100; rounds++) {
    }
    for (unsigned i = 0; i < tier_count(model->backend); i++) {
        struct tier_usage usage;
        tier_usage(model->backend, i, &usage);
        must(usage.used_bytes == 0 && usage.object_count == 0);
    }
    must(tier_fake_disk_entries() == 0);
    tier_backend_destroy(model->backend);
}

static void run(uint64_t seed, bool has_storage, bool is_real)
{
    static struct model model;
    unsigned steps;

    current_seed = seed;
    model = (struct model){.has_storage = has_storage, .next_id = 1000};
    if (is_real)
        model.directory = tmpdir_make();
    random_init(&model.random, seed);
    steps = 50 + (unsigned)random_below(&model.random, 250);
    open_backend(&model);
    for (unsigned i = 0; i < steps; i++) {
        switch (random_below(&model.random, 16)) {
        case 0:
        case 1:
        case 2:
        case 3:
            begin(&model);
            break;
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
            go_on(&model);
            break;
        case 9:
        case 10:
        case 11:
            read_one(&model);
            break;
        case 12:
            let_go(&model);
            break;
        case 13:
            remove_one(&model);
            break;
        case 14:
            (void)backend_step(model.backend);
            break;
        default:
            if (has_storage && random_below(&model.random, 40) == 0)
                reopen(&model);
            else if (random_below(&model.random, 3) == 0)
                settle(&model);
        }
    }
    finish(&model);
    tmpdir_remove(model.directory);
}

static uint64_t first_seed(void)
{
    const char *text = getenv("SHOAL_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : random_id();
    print_message("seed: SHOAL_TEST_SEED=0x%" PRIx64 "\n", seed);
    return seed;
}

static void test_dram(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (unsigned i = 0; i < 2000; i++)
        run(seed + i, false, false);
}

static void test_dram_storage(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (unsigned i = 0; i < 3000; i++)
        run(seed + i, true, false);
}

static void test_real_storage(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (unsigned i = 0; i < 40; i++)
        run(seed + i, true, true);
}

/* --- the same calls from several threads, with the backend's own thread ---
 * Nothing is known about which key is there; what is read must be whole, and in the end all space is back. */

struct worker {
    struct tier_backend *backend;
    uint64_t seed, ids;
    bool is_wrong;
};

static bool is_whole(struct tier_object *object)
{
    uint8_t bytes[LEN_MAX];
    uint64_t len = tier_object_len(object);
    const void *data = tier_object_data(object);
    struct shoal_error error;

    return len == tier_object_id(object) % LEN_MAX && tier_read(object, 0, bytes, len, &error) == SHOAL_OK &&
           content_find_difference(bytes, len, tier_object_id(object), 0) < 0 &&
           (!data || content_find_difference(data, len, tier_object_id(object), 0) < 0);
}

static bool put_any(struct tier_backend *backend, struct random *random, const char *name)
{
    uint8_t bytes[LEN_MAX];
    uint64_t id = random_next(random) | 1, len = id % LEN_MAX;
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;

    if (tier_allocate(backend, name, len, false, &allocation, &error) != SHOAL_OK)
        return true;
    content_fill(bytes, len, id, 0);
    if (tier_write(allocation, 0, bytes, len, &error) != SHOAL_OK) {
        tier_allocation_drop(allocation);
        return false;
    }
    if (tier_commit(allocation, id, &object, &error) != SHOAL_OK)
        return true;
    if (random_below(random, 8) == 0) {
        tier_abandon(object);
    } else {
        if (tier_publish(object, &error) != SHOAL_OK)
            return false;
        tier_object_unref(object);
    }
    return true;
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct tier_object *held[3] = {NULL};
    struct random random;
    char name[16];

    random_init(&random, worker->seed);
    for (unsigned i = 0; i < 250 && !worker->is_wrong; i++) {
        unsigned slot = (unsigned)random_below(&random, 3);
        name_key(name, (unsigned)random_below(&random, random_below(&random, 2) ? 3 : KEYS));
        switch (random_below(&random, 8)) {
        case 0:
            (void)tier_remove(worker->backend, name, 0);
            break;
        case 1:
        case 2:
        case 3:
            worker->is_wrong = !put_any(worker->backend, &random, name);
            break;
        default:
            if (held[slot]) {
                worker->is_wrong = !is_whole(held[slot]);
                tier_object_unref(held[slot]);
                held[slot] = NULL;
            } else if (tier_get(worker->backend, name, &held[slot]) == SHOAL_OK) {
                worker->is_wrong = !is_whole(held[slot]);
            }
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        worker->is_wrong = worker->is_wrong || (held[i] && !is_whole(held[i]));
        tier_object_unref(held[i]);
    }
    return NULL;
}

static void run_threads(uint64_t seed)
{
    struct tier_config tiers[2] = {
        {.type = TIER_DRAM, .capacity_bytes = DRAM_BYTES, .priority = 2, .numa_node = -1},
        {.type = TIER_STORAGE, .capacity_bytes = STORAGE_BYTES, .priority = 1, .numa_node = -1},
    };
    const struct tier_backend_config config = {.tiers = tiers, .tier_count = 2, .lock_stripes = 4};
    const struct backend_options options = {.ops_of = tier_fake_ops};
    struct worker workers[4];
    pthread_t threads[4];
    struct tier_backend *backend;
    struct shoal_error error;
    char name[16];

    current_seed = seed;
    if (backend_create(&config, &options, &backend, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){.backend = backend, .seed = seed * 4 + i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        must(!workers[i].is_wrong);
    for (unsigned i = 0; i < KEYS; i++) {
        name_key(name, i);
        (void)tier_remove(backend, name, 0);
    }
    must(tier_fake_disk_entries() <= HOT_MAX); /* copies that the background makes or takes back just now */
    tier_backend_destroy(backend);             /* the fake demands that all space is back */
    tier_fake_disk_clear();
}

static void test_threads(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (unsigned i = 0; i < 40; i++)
        run_threads(seed + i);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dram),
        cmocka_unit_test(test_dram_storage),
        cmocka_unit_test(test_real_storage),
        cmocka_unit_test(test_threads),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("tier_model", tests, NULL, NULL);
}
