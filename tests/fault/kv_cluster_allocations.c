/* SPDX-License-Identifier: Apache-2.0 */
/* A KV cluster in the test's process (kv_world.h, and an owner with a disk) in which each allocation of an operation
 * fails in turn, on whichever thread makes it: client, owner or master. Each call ends, with a status that its header
 * names; what is there afterwards is whole; removing it leaves the tiers empty and the master without a route.
 * Argument: direct or thin, how the third client asks. */
#include "../integration/kv_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "failing_alloc.h"
#include "kv/client.h"
#include "kv/client_internal.h"

#define DISK_TIERS "{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":\"32MiB\",\"storage_filepath\":\"%s/disk\"}]}"
#define ITEMS 6
#define NTH_MAX 2000 /* operations make far fewer */
#define SAMPLE_FROM 32
#define SAMPLE_DISK_FROM 4 /* each value is synced */

struct world {
    struct fixture *fixture;
    struct shoal_kv *disk;
    /* of the operation under test */
    struct shoal_kv *kv; /* asks */
    const char *owner;   /* address of whom the values shall lie with */
    void *memory;        /* of shoal_kv_alloc, of len bytes; NULL: none */
    unsigned round;
    size_t len; /* of each value; SIZE_MAX: item_lens */
};

static const size_t item_lens[ITEMS] = {0, 100, 5 * KIB, 40 * KIB, 100 * KIB, 300 * KIB};

/* New ones each time: a removal that failed half way leaves a copy that its owner drops with its next heartbeat. */
static const char *key_of(const struct world *world, size_t i, char key[32])
{
    snprintf(key, 32, "key-%zu/%u", i, world->round);
    return key;
}

/* Values that there may be. */
static size_t count_of(const struct world *world)
{
    return world->len != SIZE_MAX ? 1 : ITEMS;
}

static size_t len_of(const struct world *world, size_t i)
{
    return world->len != SIZE_MAX ? world->len : item_lens[i];
}

static uint64_t used_bytes(struct shoal_kv *kv)
{
    uint64_t used = 0;

    for (size_t i = 0; kv->tiers && i < tier_count(kv->tiers); i++) {
        struct tier_usage usage;

        tier_usage(kv->tiers, (unsigned)i, &usage);
        used += usage.used_bytes;
    }
    return used;
}

/* After a failure, what it broke may meet the next call, too. */
static bool is_settled(enum shoal_status status)
{
    return status != SHOAL_UNREACHABLE;
}

/* The whole value or none; returns whether there is one. */
static bool check_whole(struct world *world, struct shoal_kv *kv, size_t i)
{
    size_t len = len_of(world, i);
    void *wanted, *got = NULL;
    uint64_t got_len = 0;
    struct shoal_error error;
    char key[32];
    enum shoal_status status;

    key_of(world, i, key);
    WAIT_UNTIL(is_settled(status = shoal_kv_get(kv, key, &patient, &got, &got_len, &error)));
    if (status == SHOAL_NOT_FOUND)
        return false;
    expect_at(status, SHOAL_OK, &error, __FILE__, __LINE__);
    wanted = content(len, i);
    assert_int_equal(got_len, len);
    if (len)
        assert_memory_equal(got, wanted, len);
    free(got);
    free(wanted);
    return true;
}

static int refuse_entry(void *arg, const struct shoal_kv_entry *entry)
{
    (void)arg;
    fail_msg("left over: %s", entry->key);
    return 1;
}

static void remove_everything(struct shoal_kv *kv)
{
    struct shoal_error error;
    enum shoal_status status;

    WAIT_UNTIL(is_settled(status = shoal_kv_remove_all(kv, &patient, NULL, &error)));
    expect_at(status, SHOAL_OK, &error, __FILE__, __LINE__);
}

static void clean_up(struct world *world)
{
    remove_everything(world->fixture->third);
    EXPECT(OK, shoal_kv_list(world->fixture->a, NULL, &patient, refuse_entry, NULL, &error));
}

/* A lease that could not be ended for want of memory holds its object for some seconds more. */
static void wait_until_empty(const struct world *world)
{
    WAIT_UNTIL(used_bytes(world->fixture->a) + used_bytes(world->fixture->b) + used_bytes(world->disk) == 0);
}

static bool put_values(struct world *world)
{
    const struct shoal_kv_put_options options = {.struct_size = sizeof options, .prefer = world->owner};
    enum shoal_status status = SHOAL_OK;

    world->round++;
    for (size_t i = 0; i < count_of(world) && is_settled(status); i++) {
        size_t len = len_of(world, i);
        void *data = content(len, i);
        struct shoal_error error;
        char key[32];

        status = shoal_kv_put(world->fixture->a, key_of(world, i, key), data, len, &options, &patient, &error);
        if (is_settled(status))
            expect_at(status, SHOAL_OK, &error, __FILE__, __LINE__);
        free(data);
    }
    return is_settled(status);
}

static void prepare_values(struct world *world)
{
    WAIT_UNTIL(put_values(world));
}

struct operation {
    const char *name;
    bool has_values; /* they are there before */
    /* Only its calls of shoal_kv_* are between begin and end. */
    enum shoal_status (*run)(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                             struct shoal_error *error);
};

#define FAILING(call)                                                                                                  \
    do {                                                                                                               \
        failing_alloc_begin(nth, times);                                                                               \
        call;                                                                                                          \
        *has_fired = failing_alloc_end();                                                                              \
    } while (0)

static enum shoal_status run_put(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                 struct shoal_error *error)
{
    char key[32];
    const struct shoal_kv_put_options options = {.struct_size = sizeof options, .prefer = world->owner};
    void *data = content(world->len, 0);
    enum shoal_status status;

    key_of(world, 0, key);
    if (world->memory) {
        memcpy(world->memory, data, world->len);
        FAILING(status = shoal_kv_put(world->kv, key, world->memory, world->len, &options, &patient, error));
    } else {
        FAILING(status = shoal_kv_put(world->kv, key, data, world->len, &options, &patient, error));
    }
    free(data);
    if (!status)
        assert_true(check_whole(world, world->fixture->third, 0));
    return status;
}

static enum shoal_status run_get(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                 struct shoal_error *error)
{
    char key[32];
    void *wanted = content(world->len, 0), *got = NULL;
    uint64_t got_len = 0;
    enum shoal_status status;

    key_of(world, 0, key);
    if (world->memory)
        FAILING(status = shoal_kv_get_into(world->kv, key, world->memory, world->len, &patient, &got_len, error));
    else
        FAILING(status = shoal_kv_get(world->kv, key, &patient, &got, &got_len, error));
    if (!status) {
        assert_int_equal(got_len, world->len);
        assert_memory_equal(world->memory ? world->memory : got, wanted, world->len);
    } else {
        assert_null(got);
    }
    free(got);
    free(wanted);
    return status;
}

static enum shoal_status run_size_and_exist(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                            struct shoal_error *error)
{
    char key[32];
    uint64_t len = 0;
    int exists = 7;
    enum shoal_status status, also = SHOAL_OK;

    key_of(world, 1, key);
    FAILING({
        status = shoal_kv_size(world->kv, key, &patient, &len, error);
        if (!status)
            also = shoal_kv_exist(world->kv, key, &patient, &exists, error);
    });
    if (!status)
        assert_int_equal(len, len_of(world, 1));
    if (!status && !also)
        assert_int_equal(exists, 1);
    return status ? status : also;
}

/* With several failures in a row the owner may not be reached at all; then its next heartbeat tells it. */
static void check_removed(struct world *world, size_t i, unsigned times)
{
    if (times > 1)
        WAIT_UNTIL(!check_whole(world, world->fixture->a, i));
    assert_false(check_whole(world, world->fixture->a, i));
    assert_false(check_whole(world, world->fixture->third, i));
}

static enum shoal_status run_remove(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                    struct shoal_error *error)
{
    char key[32];
    enum shoal_status status;

    key_of(world, 1, key);
    FAILING(status = shoal_kv_remove(world->kv, key, &patient, error));
    if (!status)
        check_removed(world, 1, times);
    return status;
}

static enum shoal_status run_remove_matching(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                             struct shoal_error *error)
{
    uint64_t removed = 0;
    enum shoal_status status;

    FAILING(status = shoal_kv_remove_matching(world->kv, "key-*", &patient, &removed, error));
    assert_true(removed <= ITEMS);
    for (size_t i = 0; !status && i < ITEMS; i++)
        check_removed(world, i, times);
    return status;
}

static int count_entry(void *arg, const struct shoal_kv_entry *entry)
{
    (void)entry;
    ++*(unsigned *)arg;
    return 0;
}

static enum shoal_status run_list(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                  struct shoal_error *error)
{
    unsigned count = 0;
    enum shoal_status status;

    FAILING(status = shoal_kv_list(world->kv, "key-*", &patient, count_entry, &count, error));
    if (!status)
        assert_int_equal(count, ITEMS);
    return status;
}

static enum shoal_status run_status_and_metrics(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                                struct shoal_error *error)
{
    char *text = NULL, *metrics = NULL;
    enum shoal_status status;

    FAILING({
        status = shoal_kv_status(world->kv, &patient, &text, error);
        if (!status)
            status = shoal_kv_metrics(world->kv, &metrics, error);
    });
    assert_true((text && metrics) == (status == SHOAL_OK));
    free(text);
    free(metrics);
    return status;
}

static void fill_items(struct world *world, struct shoal_kv_item *items, char keys[ITEMS][32], bool has_data)
{
    for (size_t i = 0; i < ITEMS; i++) {
        size_t len = len_of(world, i);

        items[i] = (struct shoal_kv_item){.key = key_of(world, i, keys[i]), .len_bytes = len};
        items[i].data = has_data ? content(len, i) : malloc(len + 1);
    }
}

static void free_items(struct shoal_kv_item *items)
{
    for (size_t i = 0; i < ITEMS; i++)
        free(items[i].data);
}

/* OK if each item is, NO_MEMORY if that is the worst. */
static enum shoal_status worst(const struct shoal_kv_item *items, enum shoal_status status)
{
    enum shoal_status worst = SHOAL_OK;

    for (size_t i = 0; i < ITEMS; i++)
        if (items[i].status && (!worst || worst == SHOAL_NO_MEMORY))
            worst = items[i].status;
    assert_true((status == SHOAL_OK) == (worst == SHOAL_OK));
    return worst;
}

static enum shoal_status run_put_batch(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                       struct shoal_error *error)
{
    const struct shoal_kv_put_options options = {.struct_size = sizeof options, .prefer = world->owner};
    struct shoal_kv_item items[ITEMS];
    char keys[ITEMS][32];
    enum shoal_status status;

    fill_items(world, items, keys, true);
    FAILING(status = shoal_kv_put_batch(world->kv, items, ITEMS, &options, &patient, error));
    for (size_t i = 0; i < ITEMS; i++)
        if (!items[i].status)
            assert_true(check_whole(world, world->fixture->third, i));
    free_items(items);
    return worst(items, status);
}

static enum shoal_status run_get_batch(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                       struct shoal_error *error)
{
    struct shoal_kv_item items[ITEMS];
    char keys[ITEMS][32];
    enum shoal_status status;

    for (size_t i = 0; i < ITEMS; i++)
        items[i] = (struct shoal_kv_item){.key = key_of(world, i, keys[i])};
    FAILING(status = shoal_kv_get_batch(world->kv, items, ITEMS, &patient, error));
    for (size_t i = 0; i < ITEMS; i++) {
        void *wanted = content(len_of(world, i), i);

        if (!items[i].status) {
            assert_int_equal(items[i].len_bytes, len_of(world, i));
            assert_true(items[i].len_bytes == 0 || memcmp(items[i].data, wanted, len_of(world, i)) == 0);
        } else {
            assert_null(items[i].data);
        }
        free(wanted);
    }
    free_items(items);
    return worst(items, status);
}

static enum shoal_status run_get_into_batch(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                            struct shoal_error *error)
{
    struct shoal_kv_item items[ITEMS];
    char keys[ITEMS][32];
    enum shoal_status status;

    fill_items(world, items, keys, false);
    FAILING(status = shoal_kv_get_into_batch(world->kv, items, ITEMS, &patient, error));
    for (size_t i = 0; i < ITEMS; i++) {
        void *wanted = content(len_of(world, i), i);

        if (!items[i].status)
            assert_memory_equal(items[i].data, wanted, len_of(world, i));
        free(wanted);
    }
    free_items(items);
    return worst(items, status);
}

static enum shoal_status run_remove_batch(struct world *world, unsigned long nth, unsigned times, bool *has_fired,
                                          struct shoal_error *error)
{
    struct shoal_kv_item items[ITEMS];
    char keys[ITEMS][32];
    enum shoal_status status;

    for (size_t i = 0; i < ITEMS; i++)
        items[i] = (struct shoal_kv_item){.key = key_of(world, i, keys[i])};
    FAILING(status = shoal_kv_remove_batch(world->kv, items, ITEMS, &patient, error));
    for (size_t i = 0; i < ITEMS; i++)
        if (!items[i].status)
            check_removed(world, i, times);
    return worst(items, status);
}

/* What want of memory may look like from the other side: a server closes a connection that it has none for, or takes no
 * more work for now. */
static bool is_for_want_of_memory(enum shoal_status status)
{
    return status == SHOAL_NO_MEMORY || status == SHOAL_UNREACHABLE || status == SHOAL_BUSY;
}

/* Runs the operation with the first, the second, ... allocation failing, until none is left to fail; beyond the first
 * ones a sample. times: so many in a row fail. */
static void sweep(struct world *world, const struct operation *operation, unsigned times)
{
    unsigned sample_from = world->owner == shoal_kv_address(world->disk) ? SAMPLE_DISK_FROM : SAMPLE_FROM;
    bool has_fired = true;
    enum shoal_status status = SHOAL_OK;

    for (unsigned long nth = 1; has_fired || status; nth += times + nth / sample_from) {
        struct shoal_error error = {.message = ""};

        if (nth > NTH_MAX)
            fail_msg("%s: more than %d allocations", operation->name, NTH_MAX);
        world->round++;
        if (operation->has_values)
            prepare_values(world);
        status = operation->run(world, nth, times, &has_fired, &error);
        if (status && !(has_fired ? is_for_want_of_memory(status) : !is_settled(status)))
            fail_msg("%s, allocation %lu of %u: %s: %s", operation->name, nth, times, shoal_status_name(status),
                     error.message);
        for (size_t i = 0; i < count_of(world); i++) {
            check_whole(world, world->fixture->third, i);
            check_whole(world, world->fixture->b, i);
        }
        clean_up(world);
    }
}

static const struct operation put_operation = {.name = "put", .run = run_put};
static const struct operation get_operation = {.name = "get", .has_values = true, .run = run_get};

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    char tiers[4096];

    assert_int_equal(kv_world_setup((void **)&world->fixture), 0);
    snprintf(tiers, sizeof tiers, DISK_TIERS, world->fixture->dir);
    world->disk = open_kv(world->fixture, tiers);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    shoal_kv_close(world->disk);
    kv_world_teardown((void **)&world->fixture);
    free(world);
    return 0;
}

static void with_each_owner(struct world *world, const struct operation *operation, struct shoal_kv *kv)
{
    struct shoal_kv *owners[] = {world->fixture->a, world->disk};

    world->kv = kv;
    for (size_t i = 0; i < 2; i++) {
        world->owner = shoal_kv_address(owners[i]);
        sweep(world, operation, 1);
    }
    world->owner = shoal_kv_address(world->fixture->a);
    sweep(world, operation, 3);
}

/* As the third client and as an owner. */
static void from_everywhere(struct world *world, const struct operation *operation)
{
    with_each_owner(world, operation, world->fixture->third);
    if (!is_thin)
        with_each_owner(world, operation, world->fixture->a);
}

static void test_puts_and_gets(void **state)
{
    static const size_t lens[] = {100, 100 * KIB, MIB};
    struct world *world = *state;

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        world->len = lens[i];
        from_everywhere(world, &put_operation);
        from_everywhere(world, &get_operation);
    }
    wait_until_empty(world);
}

static void test_batches(void **state)
{
    static const struct operation operations[] = {
        {.name = "put_batch", .run = run_put_batch},
        {.name = "get_batch", .has_values = true, .run = run_get_batch},
        {.name = "get_into_batch", .has_values = true, .run = run_get_into_batch},
        {.name = "remove_batch", .has_values = true, .run = run_remove_batch},
    };
    struct world *world = *state;

    world->len = SIZE_MAX;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        from_everywhere(world, &operations[i]);
    }
    wait_until_empty(world);
}

static void test_what_goes_to_the_master(void **state)
{
    static const struct operation operations[] = {
        {.name = "size and exist", .has_values = true, .run = run_size_and_exist},
        {.name = "remove", .has_values = true, .run = run_remove},
        {.name = "remove_matching", .has_values = true, .run = run_remove_matching},
        {.name = "list", .has_values = true, .run = run_list},
        {.name = "status and metrics", .has_values = true, .run = run_status_and_metrics},
    };
    struct world *world = *state;

    world->len = SIZE_MAX;
    world->owner = shoal_kv_address(world->fixture->a);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        world->kv = world->fixture->third;
        sweep(world, &operations[i], 1);
        world->kv = world->fixture->a;
        sweep(world, &operations[i], 1);
    }
    wait_until_empty(world);
}

static void test_registered_memory(void **state)
{
    struct world *world = *state;

    world->kv = world->fixture->third;
    world->len = MIB;
    EXPECT(OK, shoal_kv_alloc(world->kv, MIB, &world->memory, &error));
    with_each_owner(world, &put_operation, world->kv);
    with_each_owner(world, &get_operation, world->kv);
    shoal_kv_free(world->kv, world->memory);
    wait_until_empty(world);
}

/* --- evictions: the master hears of each --- */

#define SMALL_TIERS "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"1MiB\"}]}"
#define SMALL_BYTES MIB
#define SMALL_VALUES 14
#define SMALL_LEN (100 * KIB)

struct stale {
    struct world *world;
    unsigned count;
};

static int look_for_stale(void *arg, const struct shoal_kv_entry *entry)
{
    struct stale *stale = arg;
    void *data = NULL;
    uint64_t len;
    struct shoal_error error;
    enum shoal_status status = shoal_kv_get(stale->world->fixture->third, entry->key, &patient, &data, &len, &error);

    if (status != SHOAL_NOT_FOUND)
        expect_at(status, SHOAL_OK, &error, __FILE__, __LINE__);
    stale->count += status == SHOAL_NOT_FOUND;
    free(data);
    return 0;
}

static bool has_stale_route(struct world *world)
{
    struct stale stale = {.world = world};

    EXPECT(OK, shoal_kv_list(world->fixture->a, NULL, &patient, look_for_stale, &stale, &error));
    return stale.count > 0;
}

static void test_what_is_evicted_is_withdrawn(void **state)
{
    struct world *world = *state;
    struct shoal_kv *small = open_kv(world->fixture, SMALL_TIERS);
    void *data = content(SMALL_LEN, 1);
    bool has_fired = true;

    for (unsigned long nth = 1; has_fired; nth += 2) { /* each of them: the news of one eviction are one */
        failing_alloc_begin(nth, 2);
        for (unsigned i = 0; i < SMALL_VALUES; i++) {
            char key[32];
            struct shoal_error error;
            enum shoal_status status;

            snprintf(key, sizeof key, "small/%u", i);
            status = shoal_kv_put(small, key, data, SMALL_LEN, NULL, &patient, &error);
            if (status && !is_for_want_of_memory(status))
                fail_msg("allocation %lu: %s: %s", nth, shoal_status_name(status), error.message);
        }
        WAIT_UNTIL(used_bytes(small) < SMALL_BYTES / 20 * 19);
        has_fired = failing_alloc_end();
        WAIT_UNTIL(!has_stale_route(world));
        clean_up(world);
        WAIT_UNTIL(used_bytes(small) == 0);
    }
    shoal_kv_close(small);
    free(data);
}

/* Whoever gives up before the master, which is short of memory, has answered cannot know whether there is a route. */
static void test_what_is_given_up_leaves_no_route(void **state)
{
    struct world *world = *state;
    const struct shoal_call hasty = {.struct_size = sizeof hasty, .timeout_ms = 30};
    void *data = content(100, 1);
    bool has_fired = true;

    put(world->fixture->a, "hasty", 100, 1); /* what the master allocates once and keeps is not counted below */
    clean_up(world);
    for (unsigned long nth = 1; has_fired; nth++) {
        struct shoal_error error;
        enum shoal_status status;

        failing_alloc_begin(nth, 1);
        status = shoal_kv_put(world->fixture->a, "hasty", data, 100, NULL, &hasty, &error);
        has_fired = failing_alloc_end();
        if (status && status != SHOAL_TIMED_OUT && !is_for_want_of_memory(status))
            fail_msg("allocation %lu: %s: %s", nth, shoal_status_name(status), error.message);
        WAIT_UNTIL(!has_stale_route(world));
        clean_up(world);
    }
    wait_until_empty(world);
    free(data);
}

/* --- life --- */

static void open_and_close(struct world *world, const struct shoal_kv_config *config)
{
    bool has_fired = true;

    for (unsigned long nth = 1; has_fired; nth += 1 + nth / 8) {
        struct shoal_kv *kv = NULL;
        struct shoal_error error = {.message = ""};
        enum shoal_status status;

        failing_alloc_begin(nth, 1);
        status = shoal_kv_open(config, &patient, &kv, &error);
        has_fired = failing_alloc_end();
        if (status && !(has_fired && is_for_want_of_memory(status)))
            fail_msg("open, allocation %lu: %s: %s", nth, shoal_status_name(status), error.message);
        assert_true((kv != NULL) == (status == SHOAL_OK));
        if (kv && config->tiers)
            check_value(kv, "kept", 100 * KIB, 1);
        shoal_kv_close(kv);
    }
    (void)world;
}

/* With a disk that holds a value, which is announced again each time. */
static void test_opening(void **state)
{
    struct world *world = *state;
    struct fixture *fixture = world->fixture;
    char tiers[4096];
    struct shoal_kv_config config = {
        .struct_size = sizeof config, .master = fixture->master.address, .metadata_uri = fixture->uri};

    snprintf(tiers, sizeof tiers, DISK_TIERS, fixture->dir);
    if (is_thin) {
        char client[64];

        snprintf(client, sizeof client, "127.0.0.1:%u", local_service_port(fixture->local));
        config = (struct shoal_kv_config){.struct_size = sizeof config, .client = client};
        open_and_close(world, &config);
        return;
    }
    open_and_close(world, &config);
    put(world->disk, "kept", 100 * KIB, 1);
    shoal_kv_close(world->disk);
    config.tiers = tiers;
    open_and_close(world, &config);
    world->disk = open_kv(fixture, tiers);
    check_value(fixture->third, "kept", 100 * KIB, 1);
    clean_up(world);
}

/* By the master, whom clients need not ask about what they have read before. */
static bool is_all_listed(struct world *world)
{
    unsigned count = 0;

    return shoal_kv_list(world->fixture->third, NULL, &patient, count_entry, &count, NULL) == SHOAL_OK &&
           count == ITEMS + 1;
}

/* A master that has forgotten everything: owners register and announce again, whatever fails on the way. */
static void test_a_master_that_starts_anew(void **state)
{
    struct world *world = *state;
    struct fixture *fixture = world->fixture;
    uint16_t port = (uint16_t)strtoul(strrchr(fixture->master.address, ':') + 1, NULL, 10);

    world->len = SIZE_MAX;
    world->owner = shoal_kv_address(world->disk);
    prepare_values(world);
    put(fixture->a, "of a", 100, 1);
    for (unsigned long nth = 1; nth <= 40; nth += 1 + nth / 4) {
        kv_master_stop(&fixture->master);
        kv_master_start(&fixture->master, port, 3000, 50);
        failing_alloc_begin(nth, 2);
        WAIT_UNTIL(kv_is_registered(fixture->a) && kv_is_registered(world->disk));
        (void)failing_alloc_end();
        WAIT_UNTIL(shoal_kv_size(fixture->third, "of a", &patient, NULL, NULL) == SHOAL_OK);
        check_value(fixture->third, "of a", 100, 1);
        for (size_t i = 0; i < ITEMS; i++)
            WAIT_UNTIL(check_whole(world, fixture->third, i));
        WAIT_UNTIL(is_all_listed(world));
    }
    clean_up(world);
    wait_until_empty(world);
}

/* Nor is anything forgotten by the threads that gather what owners hold. */
static void test_a_new_master_hears_of_everything(void **state)
{
    struct world *world = *state;
    struct fixture *fixture = world->fixture;
    uint16_t port = (uint16_t)strtoul(strrchr(fixture->master.address, ':') + 1, NULL, 10);
    bool has_fired = true;

    world->len = SIZE_MAX;
    world->owner = shoal_kv_address(world->disk);
    prepare_values(world);
    put(fixture->a, "of a", 100, 1);
    for (unsigned long nth = 1; has_fired; nth++) {
        kv_master_stop(&fixture->master);
        kv_master_start(&fixture->master, port, 3000, 50);
        failing_alloc_begin_in("session", nth, 2);
        WAIT_UNTIL(is_all_listed(world));
        has_fired = failing_alloc_end();
    }
    clean_up(world);
    wait_until_empty(world);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_puts_and_gets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_registered_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_batches, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_goes_to_the_master, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_evicted_is_withdrawn, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_given_up_leaves_no_route, setup, teardown),
        cmocka_unit_test_setup_teardown(test_opening, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_master_that_starts_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_new_master_hears_of_everything, setup, teardown),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s direct|thin\n", argv[0]);
        return 2;
    }
    is_thin = strcmp(argv[1], "thin") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
