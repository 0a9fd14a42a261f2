/* SPDX-License-Identifier: Apache-2.0 */
/* What a call with a callback says about how far it is, of a client that asks owners itself (argument "direct") and of
 * one that asks a local service ("thin"). */
#include "kv_world.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LEN ((size_t)24 * MIB) /* takes more than the interval, at whatever speed memory has */

/* What was told in one call. */
struct told {
    pthread_t caller;
    struct shoal_cancel *cancels; /* triggered by the first report of a part */
    unsigned count, parts;        /* parts: more than nothing and less than all */
    struct shoal_progress last;
    bool has_returned;
};

static void on_progress(void *arg, const struct shoal_progress *now)
{
    struct told *told = arg;

    assert_false(told->has_returned);
    assert_true(pthread_equal(pthread_self(), told->caller));
    assert_true(now->done_bytes <= now->total_bytes);
    assert_true(now->done_bytes >= told->last.done_bytes);
    assert_true(now->elapsed_ms >= told->last.elapsed_ms);
    if (told->last.total_bytes)
        assert_int_equal(now->total_bytes, told->last.total_bytes);
    assert_int_equal(now->source_count, 0);
    assert_null(now->sources);
    told->last = *now;
    told->count++;
    if (now->done_bytes == 0 || now->done_bytes == now->total_bytes)
        return;
    told->parts++;
    shoal_cancel_trigger(told->cancels);
}

static struct shoal_call telling(struct told *told)
{
    *told = (struct told){.caller = pthread_self()};
    return (struct shoal_call){.struct_size = sizeof(struct shoal_call),
                               .timeout_ms = PATIENCE_MS,
                               .progress = on_progress,
                               .progress_arg = told,
                               .progress_interval_ms = 1};
}

static void check_all_told(struct told *told, uint64_t total_bytes)
{
    told->has_returned = true;
    assert_true(told->count >= 1);
    assert_int_equal(told->last.total_bytes, total_bytes);
    assert_int_equal(told->last.done_bytes, total_bytes);
}

static void put_telling(struct shoal_kv *kv, const char *key, size_t len, const struct shoal_kv_put_options *options,
                        struct told *told)
{
    struct shoal_call call = telling(told);
    void *data = content(len, 1);

    EXPECT(OK, shoal_kv_put(kv, key, data, len, options, &call, &error));
    free(data);
}

static void get_telling(struct shoal_kv *kv, const char *key, size_t len, struct told *told)
{
    struct shoal_call call = telling(told);
    void *wanted = content(len, 1), *got = NULL;
    uint64_t got_len = 0;

    EXPECT(OK, shoal_kv_get(kv, key, &call, &got, &got_len, &error));
    assert_int_equal(got_len, len);
    assert_true(len == 0 || memcmp(got, wanted, len) == 0);
    free(wanted);
    free(got);
}

static void get_into_telling(struct shoal_kv *kv, const char *key, void *memory, size_t room, size_t len,
                             struct told *told)
{
    struct shoal_call call = telling(told);
    void *wanted = content(len, 1);
    uint64_t got_len = 0;

    EXPECT(OK, shoal_kv_get_into(kv, key, memory, room, &call, &got_len, &error));
    assert_int_equal(got_len, len);
    assert_memory_equal(memory, wanted, len);
    free(wanted);
}

static bool is_gone(enum shoal_status status)
{
    return status == SHOAL_OK || status == SHOAL_NOT_FOUND;
}

/* One try each; whether a part of it was told. On a busy machine everything may be done before anybody looks: the tests
 * try until a part is told. */
static bool puts_in_parts(struct shoal_kv *kv, size_t len, const struct shoal_kv_put_options *options,
                          uint64_t total_bytes)
{
    struct told told;

    assert_true(is_gone(shoal_kv_remove(kv, "k", &patient, NULL)));
    put_telling(kv, "k", len, options, &told);
    check_all_told(&told, total_bytes);
    return told.parts > 0;
}

static bool gets_in_parts(struct shoal_kv *kv)
{
    struct told told;

    get_telling(kv, "k", LEN, &told);
    check_all_told(&told, LEN);
    return told.parts > 0;
}

static bool gets_into_in_parts(struct shoal_kv *kv, void *memory, size_t room)
{
    struct told told;

    get_into_telling(kv, "k", memory, room, LEN, &told);
    check_all_told(&told, LEN);
    return told.parts > 0;
}

static void test_a_large_value_is_told_in_parts(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_kv_put_options at_a = {.struct_size = sizeof at_a, .prefer = shoal_kv_address(fixture->a)};
    void *memory = malloc(LEN + 100);
    struct told told;

    WAIT_UNTIL(puts_in_parts(fixture->third, LEN, &at_a, LEN));
    WAIT_UNTIL(gets_in_parts(fixture->third));
    WAIT_UNTIL(gets_into_in_parts(fixture->third, memory, LEN + 100));
    WAIT_UNTIL(gets_into_in_parts(fixture->b, memory, LEN));
    get_telling(fixture->a, "k", LEN, &told); /* copied from a's own tier */
    check_all_told(&told, LEN);
    free(memory);
    /* Without a callback, too: nothing that the transfers above left behind is in its way. */
    check_value(fixture->third, "k", LEN, 1);
    check_value(fixture->b, "k", LEN, 1);
}

static void test_memory_that_is_known(void **state)
{
    struct fixture *fixture = *state;
    size_t len = 4 * MIB;
    struct told told;
    void *memory;

    put(fixture->a, "k", len, 1);
    EXPECT(OK, shoal_kv_alloc(fixture->third, len, &memory, &error));
    get_into_telling(fixture->third, "k", memory, len, len, &told);
    check_all_told(&told, len);
    shoal_kv_free(fixture->third, memory);
}

static void test_small_values_are_told_once(void **state)
{
    static const size_t lens[] = {0, 1, 5000, 100000};
    struct fixture *fixture = *state;
    char key[32];
    struct told told;

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        put_telling(fixture->third, key, lens[i], NULL, &told);
        check_all_told(&told, lens[i]);
        get_telling(fixture->third, key, lens[i], &told);
        check_all_told(&told, lens[i]);
    }
}

static void test_copies_count(void **state)
{
    const struct shoal_kv_put_options both = {.struct_size = sizeof both, .replicas = 2};
    struct fixture *fixture = *state;

    WAIT_UNTIL(puts_in_parts(fixture->third, 10 * MIB, &both, 20 * MIB));
    check_value(fixture->a, "k", 10 * MIB, 1);
    check_value(fixture->b, "k", 10 * MIB, 1);
}

/* The first part that is told cancels the call. Nothing is told on a busy machine, see above, and a local service may
 * be done before it hears of the end. */
static bool was_canceled(struct told *told, enum shoal_status status)
{
    told->has_returned = true;
    if (status == SHOAL_OK && (is_thin || !told->parts)) {
        assert_int_equal(told->last.done_bytes, LEN);
        return false;
    }
    assert_int_equal(status, SHOAL_CANCELED);
    assert_true(told->parts >= 1);
    assert_true(told->last.done_bytes < LEN);
    return true;
}

static bool is_there(enum shoal_status status)
{
    return status == SHOAL_OK || status == SHOAL_EXISTS;
}

static bool cancels_put(struct shoal_kv *kv, const void *data, const struct shoal_kv_put_options *options)
{
    struct told told;
    struct shoal_call call = telling(&told);
    bool is_canceled;

    assert_int_equal(shoal_cancel_create(&told.cancels), SHOAL_OK);
    call.cancel = told.cancels;
    is_canceled = was_canceled(&told, shoal_kv_put(kv, "k", data, LEN, options, &call, NULL));
    if (is_canceled)
        check_absent(kv, "k");
    else
        EXPECT(OK, shoal_kv_remove(kv, "k", &patient, &error));
    shoal_cancel_destroy(told.cancels);
    return is_canceled;
}

static bool cancels_get(struct shoal_kv *kv)
{
    struct told told;
    struct shoal_call call = telling(&told);
    void *got = NULL;
    uint64_t len;
    bool is_canceled;

    assert_int_equal(shoal_cancel_create(&told.cancels), SHOAL_OK);
    call.cancel = told.cancels;
    is_canceled = was_canceled(&told, shoal_kv_get(kv, "k", &call, &got, &len, NULL));
    if (is_canceled)
        assert_null(got);
    free(got);
    shoal_cancel_destroy(told.cancels);
    return is_canceled;
}

static void test_canceled_in_the_middle(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_kv_put_options at_a = {.struct_size = sizeof at_a, .prefer = shoal_kv_address(fixture->a)};
    void *data = content(LEN, 1);

    WAIT_UNTIL(cancels_put(fixture->third, data, &at_a));
    /* The space is given back when its lease ends. */
    WAIT_UNTIL(is_there(shoal_kv_put(fixture->third, "k", data, LEN, &at_a, &patient, NULL)));
    WAIT_UNTIL(cancels_get(fixture->third));
    check_value(fixture->third, "k", LEN, 1);
    free(data);
}

static void test_calls_that_fail(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_call call;
    struct told told;
    void *data = content(MIB, 1), *got;
    uint64_t len;

    call = telling(&told);
    EXPECT(NOT_FOUND, shoal_kv_get(fixture->third, "nothing", &call, &got, &len, &error));
    check_all_told(&told, 0);

    put(fixture->a, "k", 10, 1);
    call = telling(&told);
    EXPECT(EXISTS, shoal_kv_put(fixture->third, "k", data, MIB, NULL, &call, &error));
    told.has_returned = true;
    assert_int_equal(told.last.total_bytes, MIB);

    call = telling(&told);
    call.progress_interval_ms = -1;
    EXPECT_SAYING(INVALID_ARGUMENT, "interval", shoal_kv_get(fixture->third, "k", &call, &got, &len, &error));
    assert_int_equal(told.count, 0);
    free(data);
}

/* Who was built with the header that had no progress, and calls that have none. */
static void test_not_looked_at(void **state)
{
    struct fixture *fixture = *state;
    struct told told;
    struct shoal_call call = telling(&told), shorter = call;
    struct shoal_kv_item items[2] = {{.key = "k"}, {.key = "k"}};
    void *got;
    uint64_t len;

    put(fixture->a, "k", 1000, 1);
    shorter.struct_size = offsetof(struct shoal_call, progress);
    EXPECT(OK, shoal_kv_get(fixture->third, "k", &shorter, &got, &len, &error));
    free(got);
    EXPECT(OK, shoal_kv_size(fixture->third, "k", &call, &len, &error));
    EXPECT(OK, shoal_kv_get_batch(fixture->third, items, 2, &call, &error));
    free(items[0].data);
    free(items[1].data);
    assert_int_equal(told.count, 0);
}

/* An owner has no memory to be written into there; and it is read piece by piece. */
static void test_values_on_a_disk(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *disk;
    char tiers[4300];
    struct told told;

    snprintf(tiers, sizeof tiers,
             "{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":\"128MiB\",\"storage_filepath\":\"%s/disk\"}]}",
             fixture->dir);
    disk = open_kv(fixture, tiers);
    {
        const struct shoal_kv_put_options there = {.struct_size = sizeof there, .prefer = shoal_kv_address(disk)};

        put_telling(fixture->third, "k", LEN, &there, &told);
        check_all_told(&told, LEN);
    }
    WAIT_UNTIL(gets_in_parts(fixture->third));
    WAIT_UNTIL(gets_in_parts(disk));
    shoal_kv_close(disk);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, kv_world_setup, kv_world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_large_value_is_told_in_parts),
        TEST(test_memory_that_is_known),
        TEST(test_small_values_are_told_once),
        TEST(test_copies_count),
        TEST(test_canceled_in_the_middle),
        TEST(test_calls_that_fail),
        TEST(test_not_looked_at),
        TEST(test_values_on_a_disk),
    };

    is_thin = argc > 1 && strcmp(argv[1], "thin") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
