/* SPDX-License-Identifier: Apache-2.0 */
/* shoal/kv.h in a cluster of one process (kv_world.h); argument "thin": through a local service. */
#include "kv_world.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/random.h"
#include "cuda_test.h"

static void test_values_of_every_size_from_everywhere(void **state)
{
    static const size_t sizes[] = {0, 1, 4 * KIB, 32 * KIB, 32 * KIB + 1, 100000, MIB, 5 * MIB + 3};
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    char key[64];

    for (size_t from = 0; from < 3; from++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            snprintf(key, sizeof key, "from %zu/size %zu", from, sizes[i]);
            put(all[from], key, sizes[i], i + 1);
            for (size_t to = 0; to < 3; to++)
                check_value(all[to], key, sizes[i], i + 1);
        }
        EXPECT(OK, shoal_kv_remove_all(all[from], &patient, NULL, &error));
    }
}

static void test_the_longest_key(void **state)
{
    struct fixture *fixture = *state;
    char key[SHOAL_KV_KEY_MAX_BYTES + 1];

    for (size_t i = 0; i < SHOAL_KV_KEY_MAX_BYTES; i++)
        key[i] = (char)(i % 255 + 1);
    key[SHOAL_KV_KEY_MAX_BYTES] = '\0';
    put(fixture->third, key, 1000, 1);
    check_value(fixture->a, key, 1000, 1);
    check_value(fixture->third, key, 1000, 1);
    EXPECT(OK, shoal_kv_remove(fixture->third, key, &patient, &error));
}

static void test_a_key_that_exists_is_left_alone(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    void *other = content(2000, 99);

    put(fixture->a, "k", 1000, 1);
    put(fixture->third, "l", 100000, 2);
    for (size_t i = 0; i < 3; i++) {
        struct shoal_error twice;

        EXPECT_SAYING(EXISTS, "'k'", shoal_kv_put(all[i], "k", other, 2000, NULL, &patient, &error));
        assert_int_equal(shoal_kv_put(all[i], "l", other, 0, NULL, &patient, &twice), SHOAL_EXISTS);
        assert_non_null(strstr(twice.message, "'l'"));
        if (strstr(strstr(twice.message, "'l'") + 1, "'l'"))
            fail_msg("names the key twice: %s", twice.message);
        check_value(all[i], "k", 1000, 1);
        check_value(all[i], "l", 100000, 2);
    }
    free(other);
}

static void test_what_is_removed_is_gone_everywhere(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};

    for (size_t remover = 0; remover < 3; remover++) {
        for (size_t owner = 0; owner < 3; owner++) {
            put(all[owner], "k", 50000, owner);
            for (size_t i = 0; i < 3; i++)
                check_value(all[i], "k", 50000, owner); /* and everybody knows the way */
            EXPECT(OK, shoal_kv_remove(all[remover], "k", &patient, &error));
            for (size_t i = 0; i < 3; i++)
                check_absent(all[i], "k");
            EXPECT_SAYING(NOT_FOUND, "no such key", shoal_kv_remove(all[remover], "k", &patient, &error));
        }
    }
}

static void test_a_key_that_moved_to_another_owner_is_found(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_kv_put_options at_b = {.struct_size = sizeof at_b, .prefer = shoal_kv_address(fixture->b)};
    void *data = content(100000, 2);

    put(fixture->a, "k", 1000, 1);
    check_value(fixture->third, "k", 1000, 1);
    EXPECT(OK, shoal_kv_remove(fixture->b, "k", &patient, &error));
    EXPECT(OK, shoal_kv_put(fixture->third, "k", data, 100000, &at_b, &patient, &error));
    check_value(fixture->third, "k", 100000, 2);
    close_a(fixture); /* so it is not there */
    check_value(fixture->third, "k", 100000, 2);
    check_value(fixture->b, "k", 100000, 2);
    free(data);
}

static void test_a_buffer_too_small(void **state)
{
    static const size_t sizes[] = {1, 100, 32 * KIB, 200000, 3 * MIB};
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    unsigned char *buffer = malloc(3 * MIB);
    char key[32];

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%zu", i);
        put(fixture->a, key, sizes[i], i);
        for (size_t k = 0; k < 3; k++) {
            uint64_t len = 0;

            EXPECT_SAYING(LIMIT, "buffer",
                          shoal_kv_get_into(all[k], key, buffer, sizes[i] - 1, &patient, &len, &error));
            assert_int_equal(len, sizes[i]);
            len = 0;
            EXPECT(LIMIT, shoal_kv_get_into(all[k], key, NULL, 0, &patient, &len, &error));
            assert_int_equal(len, sizes[i]);
        }
    }
    free(buffer);
}

static void test_values_larger_than_every_tier(void **state)
{
    struct fixture *fixture = *state;
    void *data = calloc(1, 40 * MIB);

    EXPECT_SAYING(LIMIT, "larger than every tier",
                  shoal_kv_put(fixture->a, "big", data, 40 * MIB, NULL, &patient, &error));
    EXPECT_SAYING(LIMIT, "larger than every tier",
                  shoal_kv_put(fixture->third, "big", data, 40 * MIB, NULL, &patient, &error));
    check_absent(fixture->b, "big");
    free(data);
}

static void test_nobody_owns(void **state)
{
    struct fixture *fixture = *state;

    if (is_thin)
        skip();
    close_a(fixture);
    local_service_destroy(fixture->local);
    fixture->local = NULL;
    shoal_kv_close(fixture->b);
    fixture->b = NULL;
    /* Until it hears of it, those that it knew cannot be reached. */
    WAIT_UNTIL(shoal_kv_put(fixture->third, "k", "x", 1, NULL, &patient, NULL) == SHOAL_NO_SPACE);
    check_absent(fixture->third, "k");
}

static void test_an_owner_that_left(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_kv_put_options twice = {.struct_size = sizeof twice, .replicas = 2};
    void *data = content(70000, 3);

    put(fixture->a, "one", 1000, 1);
    EXPECT(OK, shoal_kv_put(fixture->a, "two", data, 70000, &twice, &patient, &error));
    check_value(fixture->third, "one", 1000, 1);
    check_value(fixture->third, "two", 70000, 3);
    check_value(fixture->b, "one", 1000, 1);
    close_a(fixture);
    check_absent(fixture->third, "one");
    check_absent(fixture->b, "one");
    check_value(fixture->third, "two", 70000, 3);
    check_value(fixture->b, "two", 70000, 3);
    put(fixture->third, "one", 500, 5);
    check_value(fixture->b, "one", 500, 5);
    free(data);
}

/* Objects on STORAGE serve everybody, end with a clean close like others, and are found again by the next process that
 * has the directory. */
static void test_values_on_a_disk(void **state)
{
    static const size_t sizes[] = {0, 1, 4096, 32 * KIB, 32 * KIB + 1, MIB, 3 * MIB + 5};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    struct fixture *fixture = *state;
    char tiers[4096], key[32];
    void *data = content(MIB, 99);
    struct shoal_kv *disk;

    snprintf(tiers, sizeof tiers,
             "{\"tiers\":[{\"type\":\"STORAGE\",\"capacity\":\"64MiB\",\"storage_filepath\":\"%s/disk\"}]}",
             fixture->dir);
    disk = open_kv(fixture, tiers);
    for (size_t i = 0; i < SIZES; i++) {
        const struct shoal_kv_put_options here = {.struct_size = sizeof here, .prefer = shoal_kv_address(disk)};
        void *value = content(sizes[i], i);

        snprintf(key, sizeof key, "disk/%zu", i);
        EXPECT(OK, shoal_kv_put(i % 2 ? fixture->third : disk, key, value, sizes[i], &here, &patient, &error));
        free(value);
    }
    for (int life = 0; life < 2; life++) {
        for (size_t i = 0; i < SIZES; i++) {
            snprintf(key, sizeof key, "disk/%zu", i);
            check_value(fixture->third, key, sizes[i], i);
            check_value(fixture->a, key, sizes[i], i);
            check_value(disk, key, sizes[i], i);
            EXPECT(EXISTS, shoal_kv_put(fixture->a, key, data, MIB, NULL, &patient, &error));
        }
        shoal_kv_close(disk);
        check_absent(fixture->third, "disk/2");
        check_absent(fixture->b, "disk/5");
        disk = open_kv(fixture, tiers);
    }
    EXPECT(OK, shoal_kv_remove(fixture->third, "disk/5", &patient, &error));
    shoal_kv_close(disk);
    disk = open_kv(fixture, tiers);
    check_absent(fixture->a, "disk/5");
    check_absent(disk, "disk/5");
    check_value(fixture->a, "disk/6", sizes[6], 6);
    shoal_kv_close(disk);
    free(data);
}

static unsigned listed_replicas;
static int note_replicas(void *arg, const struct shoal_kv_entry *entry)
{
    if (strcmp(entry->key, arg) == 0)
        listed_replicas = entry->replicas;
    return 0;
}

static void test_copies(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_kv_put_options five = {.struct_size = sizeof five, .replicas = 5};
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};

    for (size_t i = 0; i < 3; i++) {
        void *data = content(100000, i);

        EXPECT(OK, shoal_kv_put(all[i], "k", data, 100000, &five, &patient, &error));
        EXPECT(OK, shoal_kv_list(all[i], NULL, &patient, note_replicas, "k", &error));
        assert_int_equal(listed_replicas, 2); /* as many as there are owners */
        for (size_t k = 0; k < 3; k++)
            check_value(all[k], "k", 100000, i);
        EXPECT(OK, shoal_kv_remove(all[i], "k", &patient, &error));
        for (size_t k = 0; k < 3; k++)
            check_absent(all[k], "k");
        free(data);
    }
}

static int collect(void *arg, const struct shoal_kv_entry *entry)
{
    struct buf *names = arg;

    assert_int_equal(entry->len_bytes, strlen(entry->key));
    buf_append_format(names, "%s;", entry->key);
    return 0;
}

static int count_one(void *arg, const struct shoal_kv_entry *entry)
{
    (void)entry;
    ++*(unsigned *)arg;
    return 0;
}

static unsigned count_all(struct shoal_kv *kv)
{
    unsigned count = 0;

    EXPECT(OK, shoal_kv_list(kv, NULL, &patient, count_one, &count, &error));
    return count;
}

static int stop_at_once(void *arg, const struct shoal_kv_entry *entry)
{
    (void)entry;
    ++*(int *)arg;
    return 1;
}

static size_t count_keys(struct shoal_kv *kv, const char *pattern)
{
    struct buf names;
    size_t count = 0;

    buf_init(&names, MIB);
    EXPECT(OK, shoal_kv_list(kv, pattern, &patient, collect, &names, &error));
    for (size_t i = 0; i < names.len; i++)
        count += names.data[i] == ';';
    buf_release(&names);
    return count;
}

static void test_patterns(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    uint64_t removed = 77;
    char key[32];
    int calls = 0;

    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "%s/%02u", i % 2 ? "odd" : "even", i);
        EXPECT(OK, shoal_kv_put(all[i % 3], key, key, strlen(key), NULL, &patient, &error));
    }
    assert_int_equal(count_keys(fixture->third, NULL), 60);
    assert_int_equal(count_keys(fixture->a, "odd/*"), 30);
    assert_int_equal(count_keys(fixture->third, "*/0[1-3]"), 3);
    assert_int_equal(count_keys(fixture->third, "none*"), 0);
    EXPECT(OK, shoal_kv_list(fixture->third, NULL, &patient, stop_at_once, &calls, &error));
    assert_int_equal(calls, 1);
    EXPECT(OK, shoal_kv_remove_matching(fixture->third, "odd/*", &patient, &removed, &error));
    assert_int_equal(removed, 30);
    assert_int_equal(count_keys(fixture->b, NULL), 30);
    for (unsigned i = 0; i < 60; i++) {
        int exists;

        snprintf(key, sizeof key, "%s/%02u", i % 2 ? "odd" : "even", i);
        EXPECT(OK, shoal_kv_exist(all[(i + 1) % 3], key, &patient, &exists, &error));
        assert_int_equal(exists, i % 2 == 0);
    }
    EXPECT(OK, shoal_kv_remove_matching(fixture->third, "odd/*", &patient, &removed, &error));
    assert_int_equal(removed, 0);
    EXPECT(OK, shoal_kv_remove_all(fixture->third, &patient, &removed, &error));
    assert_int_equal(removed, 30);
    assert_int_equal(count_keys(fixture->a, NULL), 0);
    EXPECT(INVALID_ARGUMENT, shoal_kv_remove_matching(fixture->third, "", &patient, &removed, &error));
    assert_int_equal(removed, 0);
    removed = 77;
    EXPECT(INVALID_ARGUMENT, shoal_kv_remove_matching(fixture->third, "odd/[0-9", &patient, &removed, &error));
    assert_int_equal(removed, 0);
    EXPECT(INVALID_ARGUMENT, shoal_kv_list(fixture->third, "[9-0]", &patient, stop_at_once, &calls, &error));
}

static void test_batches_mix_everything(void **state)
{
    enum { COUNT = 200 };
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    struct shoal_kv_item items[COUNT];
    char keys[COUNT][32];

    for (size_t round = 0; round < 3; round++) {
        struct shoal_kv *writer = all[round], *reader = all[(round + 1) % 3];

        for (size_t i = 0; i < COUNT; i++) {
            snprintf(keys[i], sizeof keys[i], "%zu", i == 150 ? 149 : i); /* one twice */
            items[i] = (struct shoal_kv_item){.key = keys[i],
                                              .len_bytes = i % 5 == 0   ? 0
                                                           : i % 7 == 0 ? 50000
                                                                        : 10 * i};
            items[i].data = content(items[i].len_bytes, i);
        }
        items[42].key = "";
        EXPECT_SAYING(INVALID_ARGUMENT, "empty", shoal_kv_put_batch(writer, items, COUNT, NULL, &patient, &error));
        for (size_t i = 0; i < COUNT; i++) {
            if (i == 42)
                assert_int_equal(items[i].status, SHOAL_INVALID_ARGUMENT);
            else if (i != 149 && i != 150)
                assert_int_equal(items[i].status, SHOAL_OK);
            free(items[i].data);
        }
        assert_true((items[149].status == SHOAL_OK) + (items[150].status == SHOAL_OK) == 1);
        assert_true((items[149].status == SHOAL_EXISTS) + (items[150].status == SHOAL_EXISTS) == 1);
        EXPECT(OK, shoal_kv_remove(writer, "149", &patient, &error));

        for (size_t i = 0; i < COUNT; i++)
            items[i] = (struct shoal_kv_item){.key = keys[i]};
        EXPECT_SAYING(NOT_FOUND, "'42'", shoal_kv_get_batch(reader, items, COUNT, &patient, &error));
        for (size_t i = 0; i < COUNT; i++) {
            uint64_t len = i % 5 == 0 ? 0 : i % 7 == 0 ? 50000 : 10 * i;
            void *wanted = content(len, i);

            if (i == 42 || i == 149 || i == 150) {
                assert_int_equal(items[i].status, SHOAL_NOT_FOUND);
                assert_null(items[i].data);
            } else {
                assert_int_equal(items[i].status, SHOAL_OK);
                assert_int_equal(items[i].len_bytes, len);
                assert_true(len ? memcmp(items[i].data, wanted, len) == 0 : items[i].data == NULL);
            }
            free(items[i].data);
            free(wanted);
        }

        for (size_t i = 0; i < COUNT; i++)
            items[i] =
                (struct shoal_kv_item){.key = keys[i], .data = malloc(50000), .len_bytes = i == 7 ? 49999 : 50000};
        EXPECT_SAYING(LIMIT, "'7'", shoal_kv_get_into_batch(reader, items, COUNT, &patient, &error));
        for (size_t i = 0; i < COUNT; i++) {
            uint64_t len = i % 5 == 0 ? 0 : i % 7 == 0 ? 50000 : 10 * i;
            void *wanted = content(len, i);

            if (i == 42 || i == 149 || i == 150) {
                assert_int_equal(items[i].status, SHOAL_NOT_FOUND);
            } else {
                assert_int_equal(items[i].status, i == 7 ? SHOAL_LIMIT : SHOAL_OK);
                assert_int_equal(items[i].len_bytes, len);
                if (i != 7)
                    assert_memory_equal(items[i].data, wanted, len);
            }
            free(items[i].data);
            free(wanted);
            items[i].data = NULL;
        }

        EXPECT(NOT_FOUND, shoal_kv_size_batch(reader, items, COUNT, &patient, &error));
        assert_int_equal(items[3].len_bytes, 30);
        assert_int_equal(items[7].len_bytes, 50000);
        assert_int_equal(items[42].status, SHOAL_NOT_FOUND);
        EXPECT(NOT_FOUND, shoal_kv_remove_batch(reader, items, COUNT, &patient, &error));
        for (size_t i = 0; i < COUNT; i++)
            assert_int_equal(items[i].status, i == 42 || i == 149 || i == 150 ? SHOAL_NOT_FOUND : SHOAL_OK);
        for (size_t i = 0; i < 3; i++)
            check_absent(all[i], "3");
        assert_int_equal(count_keys(reader, NULL), 0);
    }
    EXPECT(OK, shoal_kv_get_batch(fixture->third, NULL, 0, &patient, &error));
}

static void test_memory_of_the_arena_and_registered_memory(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    void *wanted = content(3 * MIB, 5);

    for (size_t i = 0; i < 3; i++) {
        void *from, *to, *more;
        uint64_t len;

        EXPECT(OK, shoal_kv_alloc(all[i], 3 * MIB, &from, &error));
        EXPECT(OK, shoal_kv_alloc(all[i], 3 * MIB, &to, &error));
        EXPECT_SAYING(NO_MEMORY, "arena", shoal_kv_alloc(all[i], 3 * MIB, &more, &error));
        fill(from, 3 * MIB, 5);
        EXPECT(OK, shoal_kv_put(all[i], "k", from, 3 * MIB, NULL, &patient, &error));
        memset(from, 0, 3 * MIB);
        for (size_t k = 0; k < 3; k++)
            check_value(all[k], "k", 3 * MIB, 5);
        EXPECT(OK, shoal_kv_get_into(all[i], "k", to, 3 * MIB, &patient, &len, &error));
        assert_memory_equal(to, wanted, 3 * MIB);
        EXPECT(OK, shoal_kv_remove(all[i], "k", &patient, &error));
        /* Somebody else's: it travels. */
        put(all[(i + 1) % 2], "k", 3 * MIB, 5);
        memset(to, 0, 3 * MIB);
        EXPECT(OK, shoal_kv_get_into(all[i], "k", to, 3 * MIB, &patient, &len, &error));
        assert_memory_equal(to, wanted, 3 * MIB);
        EXPECT(OK, shoal_kv_remove(all[i], "k", &patient, &error));
        shoal_kv_free(all[i], to);
        shoal_kv_free(all[i], NULL);
        EXPECT(OK, shoal_kv_alloc(all[i], 3 * MIB, &more, &error));
        shoal_kv_free(all[i], more);
        shoal_kv_free(all[i], from);
    }
    free(wanted);
}

static void test_registered_memory(void **state)
{
    struct fixture *fixture = *state;
    char *memory = malloc(2 * MIB);
    void *wanted = content(MIB, 6);
    uint64_t len;

    if (is_thin) {
        EXPECT_SAYING(UNSUPPORTED, "shoal_kv_alloc", shoal_kv_register(fixture->third, memory, 2 * MIB, &error));
    } else {
        EXPECT(OK, shoal_kv_register(fixture->third, memory, 2 * MIB, &error));
        memcpy(memory + 100, wanted, MIB);
        EXPECT(OK, shoal_kv_put(fixture->third, "k", memory + 100, MIB, NULL, &patient, &error));
        memset(memory, 0, 2 * MIB);
        EXPECT(OK, shoal_kv_get_into(fixture->third, "k", memory + 300, MIB, &patient, &len, &error));
        assert_memory_equal(memory + 300, wanted, MIB);
        assert_int_equal(memory[299], 0);
        assert_int_equal(memory[300 + MIB], 0);
        EXPECT(OK, shoal_kv_unregister(fixture->third, memory, 2 * MIB, &error));
        EXPECT(NOT_FOUND, shoal_kv_unregister(fixture->third, memory, 2 * MIB, &error));
    }
    free(memory);
    free(wanted);
}

static void test_memory_of_a_gpu(void **state)
{
    struct fixture *fixture = *state;
    uint8_t *memory;
    uint64_t len;

    if (!cuda_test_start())
        skip();
    memory = cuda_test_alloc(1, MIB);
    put(fixture->a, "k", 1000, 1);
    for (size_t size = 1000; size <= MIB; size += MIB - 1000) {
        EXPECT_SAYING(INVALID_ARGUMENT, "memory of cuda:1",
                      shoal_kv_put(fixture->third, "other", memory, size, NULL, &patient, &error));
        EXPECT_SAYING(INVALID_ARGUMENT, "memory of cuda:1",
                      shoal_kv_get_into(fixture->third, "k", memory, size, &patient, &len, &error));
    }
    if (!is_thin)
        EXPECT_SAYING(INVALID_ARGUMENT, "device memory", shoal_kv_register(fixture->third, memory, MIB, &error));
    check_value(fixture->third, "k", 1000, 1);
    EXPECT(NOT_FOUND, shoal_kv_remove(fixture->third, "other", &patient, &error));
    cuda_test_free(1, memory);
}

static void test_bad_arguments(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *kv = fixture->third;
    struct shoal_kv_put_options options = {.struct_size = sizeof options, .replicas = 1000};
    char *key = malloc(65537);
    void *data;
    uint64_t len;
    int exists;

    memset(key, 'k', 65536);
    key[65536] = '\0';
    EXPECT_SAYING(INVALID_ARGUMENT, "empty", shoal_kv_put(kv, "", "x", 1, NULL, &patient, &error));
    EXPECT_SAYING(INVALID_ARGUMENT, "longer than 1024", shoal_kv_put(kv, key, "x", 1, NULL, &patient, &error));
    key[SHOAL_KV_KEY_MAX_BYTES + 1] = '\0';
    EXPECT_SAYING(INVALID_ARGUMENT, "longer than 1024", shoal_kv_get(kv, key, &patient, &data, &len, &error));
    EXPECT_SAYING(INVALID_ARGUMENT, "NULL", shoal_kv_get(kv, NULL, &patient, &data, &len, &error));
    EXPECT_SAYING(INVALID_ARGUMENT, "NULL", shoal_kv_put(kv, "k", NULL, 1, NULL, &patient, &error));
    EXPECT_SAYING(INVALID_ARGUMENT, "replicas", shoal_kv_put(kv, "k", "x", 1, &options, &patient, &error));
    options = (struct shoal_kv_put_options){.struct_size = 1};
    EXPECT_SAYING(INVALID_ARGUMENT, "struct_size", shoal_kv_put(kv, "k", "x", 1, &options, &patient, &error));
    EXPECT_SAYING(INVALID_ARGUMENT, "NULL", shoal_kv_get_into(kv, "k", NULL, 5, &patient, &len, &error));
    EXPECT(INVALID_ARGUMENT, shoal_kv_get(kv, "k", &patient, NULL, &len, &error));
    EXPECT(INVALID_ARGUMENT, shoal_kv_exist(kv, "", &patient, &exists, &error));
    EXPECT(INVALID_ARGUMENT, shoal_kv_remove(kv, "", &patient, &error));
    EXPECT(INVALID_ARGUMENT, shoal_kv_remove(NULL, "k", &patient, &error));
    EXPECT_SAYING(
        INVALID_ARGUMENT, "at most",
        shoal_kv_get_batch(kv, (struct shoal_kv_item *)(void *)key, SHOAL_KV_BATCH_MAX + 1, &patient, &error));
    check_absent(kv, "k");
    options = (struct shoal_kv_put_options){.struct_size = sizeof options, .prefer = "127.0.0.1:1"};
    EXPECT(OK, shoal_kv_put(kv, "k", "x", 1, &options, &patient, &error)); /* nobody of that address: another one */
    free(key);
}

static void open_badly(const struct shoal_kv_config *config, enum shoal_status wanted, const char *part)
{
    struct shoal_kv *kv = NULL;
    struct shoal_error error;
    const struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = 3000};
    enum shoal_status status = shoal_kv_open(config, &call, &kv, &error);

    expect_at(status, wanted, &error, part, 0);
    assert_null(kv);
    if (!strstr(error.message, part))
        fail_msg("the message does not say '%s': %s", part, error.message);
}

static void test_bad_configurations(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv_config good = {.struct_size = sizeof good,
                                   .master = fixture->master.address,
                                   .metadata_uri = fixture->uri},
                           config = good;

    config.struct_size = 0;
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "struct_size");
    config = good;
    config.master = NULL;
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "master or client");
    config = good;
    config.client = "127.0.0.1:1";
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "with client");
    config = good;
    config.tiers = "{\"tiers\": 5}";
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "tiers");
    config = good;
    config.tiers = "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":0}]}";
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "capacity");
    config = good;
    config.host = "127.0.0.1:5";
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "client_rpc_port");
    config = good;
    config.protocol = "rdma";
    open_badly(&config, SHOAL_UNSUPPORTED, "rdma");
    config = good;
    config.client_rpc_port = (uint16_t)strtoul(strchr(shoal_kv_address(fixture->a), ':') + 1, NULL, 10);
    open_badly(&config, SHOAL_NAME_IN_USE, "127.0.0.1");
    config = good;
    config.master = "127.0.0.1:1";
    open_badly(&config, SHOAL_UNREACHABLE, "127.0.0.1:1");
    config = (struct shoal_kv_config){.struct_size = sizeof config, .client = "127.0.0.1:1"};
    open_badly(&config, SHOAL_UNREACHABLE, "127.0.0.1:1");
    config.client = "nonsense";
    open_badly(&config, SHOAL_INVALID_ARGUMENT, "no port");
    config.client = shoal_kv_address(fixture->a); /* an owner's port, not a local service's */
    open_badly(&config, SHOAL_PROTOCOL, "another port");
    shoal_kv_close(NULL);
}

static void test_a_call_that_is_canceled(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_cancel *cancel;
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = -1};
    void *data;
    uint64_t len;

    put(fixture->a, "k", 100000, 1);
    assert_int_equal(shoal_cancel_create(&cancel), SHOAL_OK);
    shoal_cancel_trigger(cancel);
    call.cancel = cancel;
    EXPECT(CANCELED, shoal_kv_get(fixture->third, "k", &call, &data, &len, &error));
    EXPECT(CANCELED, shoal_kv_put(fixture->third, "l", "x", 1, NULL, &call, &error));
    EXPECT(CANCELED, shoal_kv_remove(fixture->third, "k", &call, &error));
    shoal_cancel_destroy(cancel);
    check_value(fixture->third, "k", 100000, 1);
    check_absent(fixture->third, "l");
}

static void test_the_master_is_gone_and_comes_back(void **state)
{
    struct fixture *fixture = *state;
    const struct shoal_call brief = {.struct_size = sizeof brief, .timeout_ms = 300};
    uint16_t port = (uint16_t)strtoul(strchr(fixture->master.address, ':') + 1, NULL, 10);

    put(fixture->a, "a", 1000, 1);
    put(fixture->b, "b", 100000, 2);
    check_value(fixture->third, "a", 1000, 1);
    kv_master_stop(&fixture->master);
    { /* A route that is known still leads there; what is not known cannot be asked for. */
        void *data;
        uint64_t len;
        enum shoal_status status;

        EXPECT(OK, shoal_kv_get(fixture->third, "a", &patient, &data, &len, &error));
        free(data);
        status = shoal_kv_get(fixture->third, "never", &brief, &data, &len, NULL);
        assert_true(status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT);
        status = shoal_kv_put(fixture->third, "c", "x", 1, NULL, &brief, NULL);
        assert_true(status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT);
    }
    kv_master_start(&fixture->master, port, 3000, 5000);
    check_value(fixture->third, "a", 1000, 1);
    check_value(fixture->a, "b", 100000, 2);
    EXPECT(EXISTS, shoal_kv_put(fixture->third, "a", "x", 1, NULL, &patient, &error));
    put(fixture->third, "d", 10, 4);
    check_value(fixture->a, "d", 10, 4);
}

static void test_seeing(void **state)
{
    struct fixture *fixture = *state;
    char *text;

    put(fixture->a, "k", 1000, 1);
    check_value(fixture->third, "k", 1000, 1);
    EXPECT(OK, shoal_kv_metrics(fixture->third, &text, &error));
    assert_non_null(strstr(text, "shoal_kv_client_gets_total{from=\"remote\"} "));
    free(text);
    EXPECT(OK, shoal_kv_metrics(fixture->a, &text, &error));
    assert_non_null(strstr(text, "shoal_tier_"));
    assert_non_null(strstr(text, "shoal_engine_"));
    free(text);
    EXPECT(OK, shoal_kv_status(fixture->third, &patient, &text, &error));
    assert_non_null(strstr(text, "\"keys\":1"));
    assert_non_null(strstr(text, shoal_kv_address(fixture->a)));
    assert_non_null(strstr(text, "\"type\":\"DRAM\""));
    free(text);
    assert_string_equal(shoal_kv_address(NULL), "");
    assert_int_equal(shoal_kv_address(fixture->third)[0] == '\0', is_thin);
}

static void test_full_tiers_make_room(void **state)
{
    struct fixture *fixture = *state;
    char key[32];
    unsigned found = 0;
    int exists;

    for (unsigned i = 0; i < 60; i++) { /* three times what there is room for */
        snprintf(key, sizeof key, "%u", i);
        put(fixture->a, key, 2 * MIB, i);
    }
    check_value(fixture->third, key, 2 * MIB, 59);
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "%u", i);
        EXPECT(OK, shoal_kv_exist(fixture->third, key, &patient, &exists, &error));
        found += exists != 0;
    }
    assert_in_range(found, 5, 40);
}

/* --- threads --- */

#define KEYS 12
#define VALUE_MAX 150000

struct worker {
    pthread_t thread;
    struct shoal_kv *kv;
    uint64_t seed;
    const char *wrong; /* NULL: nothing */
    unsigned gets, puts, removes;
};

/* The value says how long it is and what fills it. */
static size_t make_value(unsigned char *to, struct random *random)
{
    uint64_t header[2] = {random_below(random, 3) ? random_below(random, 2000) : random_below(random, VALUE_MAX - 16),
                          random_next(random)};

    memcpy(to, header, sizeof header);
    fill(to + sizeof header, header[0], header[1]);
    return sizeof header + header[0];
}

static bool is_value(const unsigned char *data, size_t len, unsigned char *scratch)
{
    uint64_t header[2];

    if (len < sizeof header)
        return false;
    memcpy(header, data, sizeof header);
    if (len != sizeof header + header[0])
        return false;
    fill(scratch, header[0], header[1]);
    return memcmp(scratch, data + sizeof header, header[0]) == 0;
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    unsigned char *value = malloc(VALUE_MAX + 16), *scratch = malloc(VALUE_MAX + 16);
    struct random random;
    struct shoal_error error;

    random_init(&random, worker->seed);
    for (unsigned i = 0; i < 250 && !worker->wrong; i++) {
        char key[16];
        enum shoal_status status;
        uint64_t len, what = random_below(&random, 10);

        snprintf(key, sizeof key, "%u", (unsigned)random_below(&random, KEYS));
        if (what < 3) {
            status = shoal_kv_put(worker->kv, key, value, make_value(value, &random), NULL, &patient, &error);
            worker->puts += status == SHOAL_OK;
            if (status != SHOAL_OK && status != SHOAL_EXISTS)
                worker->wrong = strdup(error.message);
        } else if (what < 5) {
            status = shoal_kv_remove(worker->kv, key, &patient, &error);
            worker->removes += status == SHOAL_OK;
            if (status != SHOAL_OK && status != SHOAL_NOT_FOUND)
                worker->wrong = strdup(error.message);
        } else {
            status = shoal_kv_get_into(worker->kv, key, value, VALUE_MAX, &patient, &len, &error);
            worker->gets += status == SHOAL_OK;
            if (status == SHOAL_OK && !is_value(value, len, scratch))
                worker->wrong = strdup("a value that nobody put");
            else if (status != SHOAL_OK && status != SHOAL_NOT_FOUND)
                worker->wrong = strdup(error.message);
        }
    }
    free(value);
    free(scratch);
    return NULL;
}

static void test_same_keys_from_many_threads(void **state)
{
    struct fixture *fixture = *state;
    struct shoal_kv *all[] = {fixture->a, fixture->b, fixture->third};
    struct worker workers[6];
    unsigned gets = 0, puts = 0, removes = 0;

    for (size_t i = 0; i < 6; i++) {
        workers[i] = (struct worker){.kv = all[i % 3], .seed = 1000 + i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < 6; i++) {
        pthread_join(workers[i].thread, NULL);
        gets += workers[i].gets;
        puts += workers[i].puts;
        removes += workers[i].removes;
    }
    for (size_t i = 0; i < 6; i++)
        if (workers[i].wrong)
            fail_msg("worker %zu: %s", i, workers[i].wrong);
    assert_true(gets > 0 && puts > 0 && removes > 0);
    assert_int_equal(puts - removes, count_all(fixture->third));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, kv_world_setup, kv_world_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_values_of_every_size_from_everywhere),
        TEST(test_the_longest_key),
        TEST(test_a_key_that_exists_is_left_alone),
        TEST(test_what_is_removed_is_gone_everywhere),
        TEST(test_a_key_that_moved_to_another_owner_is_found),
        TEST(test_a_buffer_too_small),
        TEST(test_values_larger_than_every_tier),
        TEST(test_nobody_owns),
        TEST(test_an_owner_that_left),
        TEST(test_values_on_a_disk),
        TEST(test_copies),
        TEST(test_patterns),
        TEST(test_batches_mix_everything),
        TEST(test_memory_of_the_arena_and_registered_memory),
        TEST(test_registered_memory),
        TEST(test_memory_of_a_gpu),
        TEST(test_bad_arguments),
        TEST(test_bad_configurations),
        TEST(test_a_call_that_is_canceled),
        TEST(test_the_master_is_gone_and_comes_back),
        TEST(test_seeing),
        TEST(test_full_tiers_make_room),
        TEST(test_same_keys_from_many_threads),
    };

    is_thin = argc > 1 && strcmp(argv[1], "thin") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
