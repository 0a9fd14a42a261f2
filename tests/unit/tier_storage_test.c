/* SPDX-License-Identifier: Apache-2.0 */
/* The STORAGE tier through its table of operations: bytes, what is found again after an end of any kind, damage, full
 * and failing disks, and each wrong path. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tier/storage_io.h"
#include "tier/tier.h"
#include "tier/tier_ops.h"
#include "tmpdir.h"

#define OBJECTS_MAX 4096
#define CAPACITY (UINT64_C(64) << 20)

/* What was handed out at open, or put since. */
struct object {
    char key[64];
    uint64_t object_id;
    struct tier_space *space; /* NULL: none */
};

struct world {
    char *directory;
    struct tier *tier;
    struct object *objects;
    size_t count;
};

static const struct tier_ops *const ops = &tier_ops_storage;

static enum shoal_status add_found(void *arg, const char *key, uint64_t object_id, struct tier_space *space,
                                   struct shoal_error *error)
{
    struct world *world = arg;
    (void)error;
    assert_true(world->count < OBJECTS_MAX);
    struct object *object = &world->objects[world->count++];
    snprintf(object->key, sizeof object->key, "%s", key);
    object->object_id = object_id;
    object->space = space;
    return SHOAL_OK;
}

static enum shoal_status try_open(const char *directory, uint64_t capacity_bytes, struct tier **tier_out,
                                  struct shoal_error *error)
{
    const struct tier_config config = {
        .type = TIER_STORAGE, .capacity_bytes = capacity_bytes, .storage_filepath = (char *)directory};
    return ops->create(&config, 3, NULL, tier_out, error);
}

static void open_tier(struct world *world, uint64_t capacity_bytes)
{
    struct shoal_error error = {0};
    if (try_open(world->directory, capacity_bytes, &world->tier, &error) != SHOAL_OK)
        fail_msg("create: %s", error.message);
    world->count = 0;
    if (ops->recover(world->tier, add_found, world, &error) != SHOAL_OK)
        fail_msg("recover: %s", error.message);
}

static void close_tier(struct world *world)
{
    for (size_t i = 0; i < world->count; i++) {
        if (world->objects[i].space)
            ops->release(world->tier, world->objects[i].space);
    }
    world->count = 0;
    assert_int_equal(world->tier->used_bytes, 0);
    ops->destroy(world->tier);
    world->tier = NULL;
}

static void world_init(struct world *world)
{
    *world = (struct world){.directory = tmpdir_make(), .objects = calloc(OBJECTS_MAX, sizeof(struct object))};
    assert_non_null(world->objects);
}

static void world_release(struct world *world)
{
    if (world->tier)
        close_tier(world);
    free(world->objects);
    tmpdir_remove(world->directory);
}

/* The bytes of an object follow from its id. */
static void fill(uint8_t *memory, size_t len, uint64_t object_id)
{
    struct random random;
    random_init(&random, object_id);
    for (size_t i = 0; i < len; i += 8) {
        uint64_t value = random_next(&random);
        memcpy(memory + i, &value, len - i < 8 ? len - i : 8);
    }
}

static enum shoal_status write_all(struct tier *tier, struct tier_space *space, const uint8_t *data, size_t step,
                                   struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    for (uint64_t at = 0; at < space->len_bytes && status == SHOAL_OK; at += step) {
        uint64_t left = space->len_bytes - at;
        status = ops->write(tier, space, at, data + at, left < step ? (size_t)left : step, error);
    }
    return status;
}

static enum shoal_status try_put(struct world *world, const char *key, uint64_t object_id, size_t len,
                                 struct shoal_error *error)
{
    struct tier_space *space;
    uint8_t *data = malloc(len + 1);
    assert_non_null(data);
    fill(data + 1, len, object_id); /* not aligned */
    enum shoal_status status = ops->allocate(world->tier, len, &space, error);
    if (status == SHOAL_OK) {
        assert_int_equal(space->len_bytes, len);
        status = write_all(world->tier, space, data + 1, TIER_STAGING_BYTES, error);
        if (status == SHOAL_OK)
            status = ops->seal(world->tier, space, error);
        if (status == SHOAL_OK)
            status = ops->persist(world->tier, space, key, object_id, error);
        if (status == SHOAL_OK)
            add_found(world, key, object_id, space, NULL);
        else
            ops->release(world->tier, space);
    }
    free(data);
    return status;
}

static void put(struct world *world, const char *key, uint64_t object_id, size_t len)
{
    struct shoal_error error = {0};
    if (try_put(world, key, object_id, len, &error) != SHOAL_OK)
        fail_msg("put %s: %s", key, error.message);
}

static void drop(struct world *world, size_t index, bool is_durable)
{
    struct shoal_error error = {0};
    struct object *object = &world->objects[index];
    if (ops->forget(world->tier, object->space, is_durable, &error) != SHOAL_OK)
        fail_msg("forget: %s", error.message);
    ops->release(world->tier, object->space);
    *object = world->objects[--world->count];
}

static struct object *find(struct world *world, const char *key)
{
    for (size_t i = 0; i < world->count; i++) {
        if (strcmp(world->objects[i].key, key) == 0)
            return &world->objects[i];
    }
    return NULL;
}

static void check_range(struct world *world, const struct object *object, const uint8_t *expected, uint64_t offset,
                        size_t len)
{
    struct shoal_error error = {0};
    uint8_t *data = malloc(len + 2);
    assert_non_null(data);
    data[len + 1] = 0x5a;
    if (ops->read(world->tier, object->space, offset, data + 1, len, &error) != SHOAL_OK)
        fail_msg("read %s: %s", object->key, error.message);
    assert_int_equal(data[len + 1], 0x5a);
    if (memcmp(data + 1, expected + offset, len) != 0)
        fail_msg("%s: wrong bytes in [%llu, +%zu)", object->key, (unsigned long long)offset, len);
    free(data);
}

static void check_object(struct world *world, const struct object *object)
{
    size_t len = (size_t)object->space->len_bytes;
    uint8_t *expected = malloc(len + 1);
    assert_non_null(expected);
    fill(expected, len, object->object_id);
    check_range(world, object, expected, 0, len);
    free(expected);
}

/* --- bytes ----------------------------------------------------------------------------------------------------------
 */

static const size_t sizes[] = {
    0, 1, 4095, 4096, 4097, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1 << 20, 3 << 20, (5 << 20) + 123};

static void every_size(struct world *world)
{
    struct random random;
    random_init(&random, test_seed());
    open_tier(world, CAPACITY);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char key[32];
        snprintf(key, sizeof key, "size-%zu", sizes[i]);
        put(world, key, i + 1, sizes[i]);
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(world->count, sizeof sizes / sizeof *sizes);
        for (size_t i = 0; i < world->count; i++) {
            struct object *object = &world->objects[i];
            size_t len = (size_t)object->space->len_bytes;
            uint8_t *expected = malloc(len + 1);
            assert_non_null(expected);
            fill(expected, len, object->object_id);
            check_range(world, object, expected, 0, len);
            for (int n = 0; n < 10 && len; n++) {
                uint64_t offset = random_below(&random, len);
                check_range(world, object, expected, offset, (size_t)random_below(&random, len - offset + 1));
            }
            free(expected);
        }
        if (round == 0) { /* and once more after a restart */
            close_tier(world);
            open_tier(world, CAPACITY);
        }
    }
}

static void with_modes(const char *io, const char *direct)
{
    struct world world;
    setenv("SHOAL_STORAGE_IO", io, 1);
    setenv("SHOAL_STORAGE_DIRECT", direct, 1);
    world_init(&world);
    every_size(&world);
    world_release(&world);
    unsetenv("SHOAL_STORAGE_IO");
    unsetenv("SHOAL_STORAGE_DIRECT");
}

static void bytes_by_ring(void **state)
{
    (void)state;
    with_modes("ring", "1");
    with_modes("ring", "0");
}

static void bytes_plainly(void **state)
{
    (void)state;
    with_modes("plain", "1");
    with_modes("plain", "0");
}

/* Aligned memory of whole blocks goes to the disk and comes from there without a copy; all in one call. */
static void aligned_memory(void **state)
{
    struct world world;
    struct tier_space *space;
    struct shoal_error error = {0};
    void *data = NULL, *back = NULL;
    const size_t len = 6 << 20;

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    assert_int_equal(posix_memalign(&data, 4096, len), 0);
    assert_int_equal(posix_memalign(&back, 4096, len), 0);
    fill(data, len, 7);
    assert_int_equal(ops->allocate(world.tier, len, &space, &error), SHOAL_OK);
    assert_null(ops->data(world.tier, space));
    assert_int_equal(ops->write(world.tier, space, 0, data, len, &error), SHOAL_OK);
    assert_int_equal(ops->seal(world.tier, space, &error), SHOAL_OK);
    assert_int_equal(ops->read(world.tier, space, 0, back, len, &error), SHOAL_OK);
    assert_memory_equal(data, back, len);
    ops->release(world.tier, space);
    free(data);
    free(back);
    world_release(&world);
}

static void incomplete(void **state)
{
    struct world world;
    struct tier_space *space;
    struct shoal_error error = {0};
    static uint8_t data[2 << 20];

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    assert_int_equal(ops->allocate(world.tier, sizeof data, &space, &error), SHOAL_OK);
    assert_int_equal(ops->seal(world.tier, space, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(ops->write(world.tier, space, 1 << 20, data, 1 << 20, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(ops->write(world.tier, space, 0, data, 1 << 20, &error), SHOAL_OK);
    assert_int_equal(ops->seal(world.tier, space, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "1048576 of the object's 2097152 bytes"));
    assert_int_equal(ops->write(world.tier, space, 0, data, 1 << 20, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(ops->write(world.tier, space, 1 << 20, data, 1 << 20, &error), SHOAL_OK);
    assert_int_equal(ops->seal(world.tier, space, &error), SHOAL_OK);
    ops->release(world.tier, space);
    world_release(&world);
}

/* --- space ----------------------------------------------------------------------------------------------------------
 */

static void full(void **state)
{
    struct world world;
    struct shoal_error error = {0};
    struct tier_space *space;
    char key[32];

    (void)state;
    world_init(&world);
    open_tier(&world, (1 << 20) + 100);
    assert_int_equal(world.tier->capacity_bytes, 1 << 20);
    assert_int_equal(world.tier->max_object_bytes, 1 << 20);
    assert_int_equal(ops->allocate(world.tier, (1 << 20) + 1, &space, &error), SHOAL_NO_SPACE);
    assert_int_equal(ops->allocate(world.tier, 1 << 20, &space, &error), SHOAL_OK); /* the whole in one piece */
    assert_int_equal(world.tier->used_bytes, 1 << 20);
    assert_int_equal(ops->allocate(world.tier, 0, &space, &error), SHOAL_NO_SPACE);
    ops->release(world.tier, space);
    for (size_t i = 0; i < 256; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        put(&world, key, i + 1, 4000);
    }
    assert_int_equal(world.tier->used_bytes, 1 << 20);
    assert_int_equal(try_put(&world, "more", 999, 1, &error), SHOAL_NO_SPACE);
    while (world.count > 128)
        drop(&world, 0, false);
    assert_int_equal(world.tier->used_bytes, 1 << 19);
    for (size_t i = 0; i < world.count; i++)
        check_object(&world, &world.objects[i]);
    world_release(&world);
}

/* Blocks that changed their owner: what is found again is the last one, whether its predecessor was taken back durably
 * or in passing. */
static void reused_blocks(void **state)
{
    struct world world;
    (void)state;
    world_init(&world);
    open_tier(&world, 1 << 20);
    for (uint64_t i = 1; i <= 20; i++) {
        put(&world, i % 3 ? "same" : "other", i, (1 << 20) - (size_t)i * 5000);
        if (i < 20)
            drop(&world, 0, i % 2 == 0);
    }
    close_tier(&world);
    open_tier(&world, 1 << 20);
    assert_int_equal(world.count, 1);
    assert_int_equal(world.objects[0].object_id, 20);
    check_object(&world, &world.objects[0]);
    drop(&world, 0, false);
    close_tier(&world); /* what was taken back in passing is gone after an orderly end */
    open_tier(&world, 1 << 20);
    assert_int_equal(world.count, 0);
    world_release(&world);
}

static void maintained(void **state)
{
    struct world world;
    char *wal;
    struct stat info;

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    put(&world, "stays", 77, 10);
    for (uint64_t i = 1; i <= 1000; i++) {
        put(&world, "k", i, 10);
        drop(&world, 1, false);
        if (i % 100 == 0)
            assert_false(ops->maintain(world.tier));
    }
    wal = tmpdir_path(world.directory, "index.db-wal");
    assert_int_equal(stat(wal, &info), 0);
    assert_true(info.st_size < 8 << 20); /* 2,000 commits of two to four pages would be more */
    free(wal);
    check_object(&world, find(&world, "stays"));
    world_release(&world);
}

/* --- ends of all kinds ----------------------------------------------------------------------------------------------
 */

enum { SAY_PUT, SAY_FORGETTING, SAY_FORGOTTEN, SAY_KINDS };

struct saying {
    uint32_t kind, number;
};

static void say(int fd, uint32_t kind, uint32_t number)
{
    struct saying saying = {kind, number};
    if (write(fd, &saying, sizeof saying) != sizeof saying)
        _exit(3);
}

/* Puts and takes back until it is killed; the parent reads what it is sure of. */
static void put_forever(struct world *world, int fd, uint64_t seed)
{
    struct random random;
    random_init(&random, seed);
    open_tier(world, 8 << 20);
    for (uint32_t number = 1;; number++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", number);
        struct shoal_error error;
        size_t len = (size_t)random_below(&random, random_below(&random, 4) ? 20000 : 2 << 20);
        while (try_put(world, key, number, len, &error) != SHOAL_OK) {
            size_t victim = (size_t)random_below(&random, world->count);
            uint32_t name = (uint32_t)world->objects[victim].object_id;
            bool is_durable = random_below(&random, 2);
            say(fd, SAY_FORGETTING, name);
            drop(world, victim, is_durable);
            if (is_durable)
                say(fd, SAY_FORGOTTEN, name);
        }
        say(fd, SAY_PUT, number);
    }
}

static void killed_once(uint64_t seed)
{
    static bool said[SAY_KINDS][1 << 16];
    struct world world;
    struct saying saying;
    int fds[2], wait_status;
    uint32_t last = 0;

    memset(said, 0, sizeof said);
    world_init(&world);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        put_forever(&world, fds[1], seed);
        _exit(0);
    }
    close(fds[1]);
    uint32_t stop = 20 + (uint32_t)(seed % 300);
    while (read(fds[0], &saying, sizeof saying) == sizeof saying) {
        assert_true(saying.kind < SAY_KINDS && saying.number < 1 << 16);
        said[saying.kind][saying.number] = true;
        if (saying.kind == SAY_PUT) {
            last = saying.number;
            if (last == stop)
                kill(child, SIGKILL); /* what it says until it is dead counts, too */
        }
    }
    close(fds[0]);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);

    open_tier(&world, 8 << 20);
    for (size_t i = 0; i < world.count; i++) {
        struct object *object = &world.objects[i];
        assert_false(said[SAY_FORGOTTEN][object->object_id]);
        char key[32];
        snprintf(key, sizeof key, "k%llu", (unsigned long long)object->object_id);
        assert_string_equal(object->key, key);
        /* Also one that was being taken back: its entry goes before others write into its blocks. */
        check_object(&world, object);
    }
    for (uint32_t number = 1; number <= last; number++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", number);
        if (said[SAY_PUT][number] && !said[SAY_FORGETTING][number] && !find(&world, key))
            fail_msg("%s was put and is not there (seed %llu)", key, (unsigned long long)seed);
    }
    /* And it goes on from there. */
    while (world.count > 0)
        drop(&world, 0, true);
    put(&world, "whole", 5, 8 << 20);
    check_object(&world, &world.objects[0]);
    world_release(&world);
}

static void killed(void **state)
{
    uint64_t seed = test_seed();
    (void)state;
    for (uint64_t i = 0; i < 8; i++)
        killed_once(seed + i * 41);
}

/* Killed between the first byte in blocks that an object had before, taken back in passing, and the new entry. */
static void killed_in_reused_blocks(void **state)
{
    struct world world;
    int fds[2], wait_status;
    char byte;

    (void)state;
    world_init(&world);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct tier_space *space;
        static uint8_t data[TIER_STAGING_BYTES];
        open_tier(&world, 4 << 20);
        put(&world, "old", 1, 4 << 20);
        drop(&world, 0, false);
        if (ops->allocate(world.tier, 4 << 20, &space, NULL) != SHOAL_OK ||
            ops->write(world.tier, space, 0, data, sizeof data, NULL) != SHOAL_OK || write(fds[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    open_tier(&world, 4 << 20);
    assert_int_equal(world.count, 0);
    world_release(&world);
}

/* --- damage ---------------------------------------------------------------------------------------------------------
 */

static void flip(const struct world *world, const char *name, off_t offset)
{
    uint8_t byte;
    char *path = tmpdir_path(world->directory, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    free(path);
}

static void corrupted_byte(void **state)
{
    struct world world;
    struct shoal_error error = {0};
    static uint8_t data[3 << 20], expected[3 << 20];

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    put(&world, "a", 1, sizeof data); /* the first one lies at the beginning */
    put(&world, "b", 2, 5000);
    close_tier(&world);
    flip(&world, "objects.data", (2 << 20) + 77);
    open_tier(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    struct object *a = find(&world, "a");
    assert_int_equal(ops->read(world.tier, a->space, 0, data, sizeof data, &error), SHOAL_CORRUPTED);
    assert_non_null(strstr(error.message, "checksum"));
    assert_non_null(strstr(error.message, world.directory));
    assert_int_equal(ops->read(world.tier, a->space, (2 << 20) + 100, data, 1, &error), SHOAL_CORRUPTED);
    fill(expected, sizeof expected, 1);
    check_range(&world, a, expected, 0, 2 << 20); /* chunks that are whole can be read */
    check_object(&world, find(&world, "b"));
    world_release(&world);
}

static void run_sql(const struct world *world, const char *sql)
{
    char *path = tmpdir_path(world->directory, "index.db"), *message = NULL;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    free(path);
}

/* Rows that nobody could have written are dropped one by one; the others stay. */
static void wrong_rows(void **state)
{
    struct world world;
    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    put(&world, "good", 1, 50000); /* blocks 0 to 12 */
    put(&world, "also", 2, 50000); /* 13 to 25 */
    close_tier(&world);
    run_sql(&world, "INSERT INTO objects SELECT 5, 'overlaps', 3, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT 30, 'digests', 3, 4096, zeroblob(17);"
                    "INSERT INTO objects SELECT 31, '', 3, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT 32, x'610062', 3, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT 33, 'no id', 0, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT 34, 'negative', 3, -1, zeroblob(16);"
                    "INSERT INTO objects SELECT 35, printf('%.2000c', 'x'), 3, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT -1, 'before', 3, 4096, zeroblob(16);"
                    "INSERT INTO objects SELECT 16383, 'beyond', 3, 4097, zeroblob(16);"
                    "INSERT INTO objects SELECT 9223372036854775807, 'far', 3, 4097, zeroblob(16);"
                    "INSERT INTO objects SELECT 36, 'long', 3, 9223372036854775807, zeroblob(16);");
    open_tier(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    check_object(&world, find(&world, "good"));
    check_object(&world, find(&world, "also"));
    close_tier(&world);
    open_tier(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    world_release(&world);
}

static void other_capacity(void **state)
{
    struct world world;
    struct stat info;
    char key[32], *path;

    (void)state;
    world_init(&world);
    open_tier(&world, 4 << 20);
    for (size_t i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        put(&world, key, i + 1, 1 << 20);
    }
    close_tier(&world);
    open_tier(&world, 2 << 20);
    assert_int_equal(world.count, 2); /* the others lie outside */
    path = tmpdir_path(world.directory, "objects.data");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 2 << 20);
    close_tier(&world);
    open_tier(&world, 8 << 20);
    assert_int_equal(world.count, 2);
    for (size_t i = 0; i < world.count; i++)
        check_object(&world, &world.objects[i]);
    put(&world, "big", 9, 6 << 20);
    check_object(&world, find(&world, "big"));
    close_tier(&world);
    assert_int_equal(unlink(path), 0); /* an index without its data */
    open_tier(&world, 8 << 20);
    assert_int_equal(world.count, 0);
    free(path);
    world_release(&world);
}

/* --- what cannot be opened ------------------------------------------------------------------------------------------
 */

static void refuses(const char *directory, uint64_t capacity_bytes, enum shoal_status expected, const char *message)
{
    struct shoal_error error = {0};
    struct tier *tier;
    enum shoal_status status = try_open(directory, capacity_bytes, &tier, &error);
    if (status != expected || !strstr(error.message, message) || !strstr(error.message, "tier 3 (STORAGE): "))
        fail_msg("%s: %s: %s (expected: %s: %s)", directory, shoal_status_name(status), error.message,
                 shoal_status_name(expected), message);
    assert_int_equal(error.status, expected);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void wrong_paths(void **state)
{
    struct world world;
    char *path;

    (void)state;
    world_init(&world);
    refuses(world.directory, 4095, SHOAL_INVALID_ARGUMENT, "capacity of 4095 bytes; at least one block");
    refuses(world.directory, UINT64_C(1) << 62, SHOAL_NO_SPACE, "the file system has room for");
    path = tmpdir_path(world.directory, "file");
    write_file(path, "x");
    refuses(path, CAPACITY, SHOAL_INVALID_ARGUMENT, "is a file; a directory is needed");
    free(path);
    path = tmpdir_path(world.directory, "file/below");
    refuses(path, CAPACITY, SHOAL_INVALID_ARGUMENT, "Not a directory");
    free(path);
    path = tmpdir_path(world.directory, "no/parent");
    refuses(path, CAPACITY, SHOAL_IO, "cannot make the directory: No such file or directory");
    free(path);
    path = tmpdir_path(world.directory, "new"); /* is made */
    char *base = world.directory;
    world.directory = path;
    open_tier(&world, CAPACITY);
    close_tier(&world);
    world.directory = base;
    free(path);
    world_release(&world);
}

static void unwritable_path(void **state)
{
    struct world world;
    (void)state;
    if (geteuid() == 0) { /* may write everywhere but there */
        refuses("/sys/kernel/shoal-test", CAPACITY, SHOAL_PERMISSION, "/sys/kernel/shoal-test: cannot make");
        return;
    }
    world_init(&world);
    assert_int_equal(chmod(world.directory, S_IRUSR | S_IXUSR), 0);
    refuses(world.directory, CAPACITY, SHOAL_PERMISSION, "Permission denied");
    assert_int_equal(chmod(world.directory, S_IRWXU), 0);
    world_release(&world);
}

static void in_use(void **state)
{
    struct world world;
    char message[64];

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    snprintf(message, sizeof message, "%s: is in use by process %ld", world.directory, (long)getpid());
    refuses(world.directory, CAPACITY, SHOAL_BUSY, message);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct shoal_error error = {0};
        struct tier *tier;
        _exit(try_open(world.directory, CAPACITY, &tier, &error) == SHOAL_BUSY && strstr(error.message, message) ? 0
                                                                                                                 : 1);
    }
    int wait_status;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_int_equal(wait_status, 0);
    close_tier(&world);
    open_tier(&world, CAPACITY);
    world_release(&world);
}

/* Requests of a process that was killed may outlive it, and with them its lock on the data file: that is waited for. */
static void last_writes(void **state)
{
    struct world world;
    char *data, *lock, *index, owner[24], text[24];
    int fds[2], wait_status;

    (void)state;
    world_init(&world);
    data = tmpdir_path(world.directory, "objects.data");
    lock = tmpdir_path(world.directory, "lock");
    index = tmpdir_path(world.directory, "index.db");
    snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int64_t deadline_ms = deadline_after_ms(UNIT_WAIT_MS);
        int fd = open(data, O_RDWR | O_CREAT, S_IRUSR | S_IWUSR);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(fds[1], "x", 1) != 1)
            _exit(2);
        for (;;) { /* until the parent has the other lock */
            FILE *file = fopen(lock, "r");
            bool is_there = file && fgets(text, sizeof text, file) && strcmp(text, owner) == 0;
            if (file)
                fclose(file);
            if (is_there)
                _exit(access(index, F_OK) == 0);
            if (deadline_is_past(deadline_ms))
                _exit(3);
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        }
    }
    assert_int_equal(read(fds[0], text, 1), 1);
    open_tier(&world, CAPACITY);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_int_equal(wait_status, 0);
    close(fds[0]);
    close(fds[1]);
    free(data);
    free(lock);
    free(index);
    world_release(&world);
}

static void wrong_index(void **state)
{
    struct world world;
    char *path;

    (void)state;
    world_init(&world);
    path = tmpdir_path(world.directory, "index.db");
    run_sql(&world, "CREATE TABLE mine(x)");
    refuses(world.directory, CAPACITY, SHOAL_IO, "of another application");
    assert_int_equal(unlink(path), 0);
    write_file(path, "This is not a database, though it is long enough for the header of one. This is not a database, "
                     "though it is long enough for the header of one.");
    refuses(world.directory, CAPACITY, SHOAL_IO, "without the file (and its -wal and -shm) the tier starts empty");
    assert_int_equal(unlink(path), 0);
    open_tier(&world, CAPACITY);
    close_tier(&world);
    run_sql(&world, "PRAGMA user_version=2");
    refuses(world.directory, CAPACITY, SHOAL_IO, "schema version 2, this Shoal knows 1");
    free(path);
    world_release(&world);
}

/* --- failing disks --------------------------------------------------------------------------------------------------
 */

static void limit_files(uint64_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes ? (rlim_t)bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The system refuses to write behind a limit, as a broken disk would. */
static void write_errors(void **state)
{
    struct world world;
    struct shoal_error error = {0};

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    for (int is_plain = 0; is_plain < 2; is_plain++) {
        setenv("SHOAL_STORAGE_IO", is_plain ? "plain" : "ring", 1);
        world_init(&world);
        open_tier(&world, 32 << 20);
        put(&world, "before", 1, 1 << 20);
        uint64_t used_bytes = world.tier->used_bytes;
        limit_files(3 << 20);
        assert_int_equal(try_put(&world, "k", 2, 16 << 20, &error), SHOAL_IO);
        assert_non_null(strstr(error.message, "cannot write: File too large"));
        assert_int_equal(world.tier->used_bytes, used_bytes);
        limit_files(8 << 10); /* the index fails, too */
        assert_int_not_equal(try_put(&world, "l", 3, 0, &error), SHOAL_OK);
        assert_non_null(strstr(error.message, "index.db"));
        assert_int_equal(world.tier->used_bytes, used_bytes);
        check_object(&world, find(&world, "before"));
        /* A durable end that the disk refuses: told, and made good with the next one. */
        struct object *before = find(&world, "before");
        assert_int_not_equal(ops->forget(world.tier, before->space, true, &error), SHOAL_OK);
        check_object(&world, before);
        ops->release(world.tier, before->space);
        world.count = 0;
        limit_files(0);
        put(&world, "k", 4, 16 << 20);
        put(&world, "l", 5, 0);
        close_tier(&world);
        open_tier(&world, 32 << 20);
        assert_int_equal(world.count, 2);
        check_object(&world, find(&world, "k"));
        world_release(&world);
    }
    unsetenv("SHOAL_STORAGE_IO");
}

#define SMALL_DISK_BYTES (4u << 20)

/* In a process and mount namespace of its own. Returns what went wrong, or NULL. */
static const char *fill_disk(const char *directory)
{
    struct world world = {.directory = (char *)directory, .objects = calloc(OBJECTS_MAX, sizeof(struct object))};
    struct shoal_error error = {0};
    char options[32];
    size_t count = 0;

    snprintf(options, sizeof options, "size=%u", SMALL_DISK_BYTES);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", directory, "tmpfs", 0, options) != 0)
        return "skipped";
    if (try_open(directory, SMALL_DISK_BYTES + 4096, &world.tier, &error) != SHOAL_NO_SPACE ||
        !strstr(error.message, "the capacity is 4198400 bytes, the file system has room for 41"))
        return error.message[0] ? strdup(error.message) : "the capacity is larger than the disk";
    open_tier(&world, SMALL_DISK_BYTES - (256 << 10));
    /* The index grows until the disk is full, long before the data file is. */
    for (; count < OBJECTS_MAX; count++) {
        char key[600];
        uint64_t used_bytes = world.tier->used_bytes;
        snprintf(key, sizeof key, "%0500zu", count);
        enum shoal_status status = try_put(&world, key, count + 1, 1, &error);
        if (status == SHOAL_OK)
            continue;
        if (status != SHOAL_NO_SPACE || !strstr(error.message, "index.db"))
            return error.message[0] ? strdup(error.message) : "the tier was full first";
        if (world.tier->used_bytes != used_bytes)
            return "the space did not come back";
        break;
    }
    if (count == OBJECTS_MAX)
        return "the disk was never full";
    for (size_t i = 0; i < count; i++)
        check_object(&world, &world.objects[i]);
    close_tier(&world);
    open_tier(&world, SMALL_DISK_BYTES - (256 << 10));
    if (world.count != count)
        return "an object is lost";
    close_tier(&world);
    free(world.objects);
    return NULL;
}

static void full_disk(void **state)
{
    struct world world;
    int wait_status;

    (void)state;
    world_init(&world);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const char *problem = fill_disk(world.directory);
        if (problem)
            print_message("%s\n", problem);
        fflush(NULL);
        _exit(!problem ? 0 : strcmp(problem, "skipped") == 0 ? 77 : 1);
    }
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    world_release(&world);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 77)
        skip(); /* mounting needs root */
    assert_int_equal(wait_status, 0);
}

/* --- threads --------------------------------------------------------------------------------------------------------
 */

#define THREADS 20 /* more than operations that run at the same time */
#define ROUNDS 30

struct worker {
    struct world world; /* its own objects on the common tier */
    uint64_t seed;
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct random random;
    random_init(&random, worker->seed);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        char key[32];
        uint64_t object_id = worker->seed * 1000 + round;
        snprintf(key, sizeof key, "k%llu", (unsigned long long)object_id);
        put(&worker->world, key, object_id, (size_t)random_below(&random, 600000));
        check_object(&worker->world, &worker->world.objects[random_below(&random, worker->world.count)]);
        if (worker->world.count > 3)
            drop(&worker->world, (size_t)random_below(&random, worker->world.count), random_below(&random, 2));
        if (random_below(&random, 10) == 0)
            ops->maintain(worker->world.tier);
    }
    return NULL;
}

static void threads(void **state)
{
    static struct worker workers[THREADS];
    pthread_t started[THREADS];
    struct world world;
    size_t total = 0;

    (void)state;
    world_init(&world);
    open_tier(&world, CAPACITY);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.world = world, .seed = i + 1};
        workers[i].world.objects = calloc(OBJECTS_MAX, sizeof(struct object));
        assert_non_null(workers[i].world.objects);
        started[i] = start_thread(work, &workers[i]);
    }
    for (size_t i = 0; i < THREADS; i++)
        join_thread(started[i]);
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < workers[i].world.count; j++)
            check_object(&workers[i].world, &workers[i].world.objects[j]);
    }
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < workers[i].world.count; j++)
            ops->release(world.tier, workers[i].world.objects[j].space);
        total += workers[i].world.count;
        free(workers[i].world.objects);
    }
    close_tier(&world);
    open_tier(&world, CAPACITY);
    assert_int_equal(world.count, total);
    for (size_t i = 0; i < world.count; i++)
        check_object(&world, &world.objects[i]);
    world_release(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_by_ring),   cmocka_unit_test(bytes_plainly),  cmocka_unit_test(aligned_memory),
        cmocka_unit_test(incomplete),      cmocka_unit_test(full),           cmocka_unit_test(reused_blocks),
        cmocka_unit_test(maintained),      cmocka_unit_test(killed),         cmocka_unit_test(corrupted_byte),
        cmocka_unit_test(wrong_rows),      cmocka_unit_test(other_capacity), cmocka_unit_test(wrong_paths),
        cmocka_unit_test(unwritable_path), cmocka_unit_test(in_use),         cmocka_unit_test(wrong_index),
        cmocka_unit_test(write_errors),    cmocka_unit_test(threads),        cmocka_unit_test(killed_in_reused_blocks),
        cmocka_unit_test(last_writes),     cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
