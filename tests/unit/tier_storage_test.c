/* SPDX-License-Identifier: Apache-2.0 */
/* The STORAGE tier through its table of operations: bytes, what is found again, damage, and each wrong path. */
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "storage_world.h"
#include "tier/storage_file.h"
#include "tier/tier.h"
#include "tmpdir.h"

#define CAPACITY (UINT64_C(64) << 20)

/* --- bytes --- */

static const size_t sizes[] = {
    0, 1, 4095, 4096, 4097, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1 << 20, 3 << 20, (5 << 20) + 123};

static void every_size(struct storage_world *world)
{
    struct random random;
    random_init(&random, test_seed());
    storage_world_open(world, CAPACITY);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char key[32];
        snprintf(key, sizeof key, "size-%zu", sizes[i]);
        storage_put(world, key, i + 1, sizes[i]);
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(world->count, sizeof sizes / sizeof *sizes);
        for (size_t i = 0; i < world->count; i++) {
            struct storage_object *object = &world->objects[i];
            size_t len = (size_t)object->space->len_bytes;
            uint8_t *expected = malloc(len + 1);
            assert_non_null(expected);
            storage_fill(expected, len, object->object_id);
            storage_check_range(world, object, expected, 0, len);
            for (int n = 0; n < 10 && len; n++) {
                uint64_t offset = random_below(&random, len);
                storage_check_range(world, object, expected, offset, (size_t)random_below(&random, len - offset + 1));
            }
            free(expected);
        }
        if (round == 0) { /* and once more after a restart */
            storage_world_close(world);
            storage_world_open(world, CAPACITY);
        }
    }
}

static void with_modes(const char *io, const char *direct)
{
    struct storage_world world;
    setenv("SHOAL_STORAGE_IO", io, 1);
    setenv("SHOAL_STORAGE_DIRECT", direct, 1);
    storage_world_init(&world);
    every_size(&world);
    storage_world_release(&world);
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
    struct storage_world world;
    struct tier_space *space;
    struct shoal_error error = {0};
    void *data = NULL, *back = NULL;
    const size_t len = 6 << 20;

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(posix_memalign(&data, 4096, len), 0);
    assert_int_equal(posix_memalign(&back, 4096, len), 0);
    storage_fill(data, len, 7);
    assert_int_equal(storage_ops->allocate(world.tier, len, &space, &error), SHOAL_OK);
    assert_null(storage_ops->data(world.tier, space));
    assert_int_equal(storage_ops->write(world.tier, space, 0, data, len, &error), SHOAL_OK);
    assert_int_equal(storage_ops->seal(world.tier, space, &error), SHOAL_OK);
    assert_int_equal(storage_ops->read(world.tier, space, 0, back, len, &error), SHOAL_OK);
    assert_memory_equal(data, back, len);
    storage_ops->release(world.tier, space);
    free(data);
    free(back);
    storage_world_release(&world);
}

static void incomplete(void **state)
{
    struct storage_world world;
    struct tier_space *space;
    struct shoal_error error = {0};
    static uint8_t data[2 << 20];

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(storage_ops->allocate(world.tier, sizeof data, &space, &error), SHOAL_OK);
    assert_int_equal(storage_ops->seal(world.tier, space, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(storage_ops->write(world.tier, space, 1 << 20, data, 1 << 20, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(storage_ops->write(world.tier, space, 0, data, 1 << 20, &error), SHOAL_OK);
    assert_int_equal(storage_ops->seal(world.tier, space, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "1048576 of the object's 2097152 bytes"));
    assert_int_equal(storage_ops->write(world.tier, space, 0, data, 1 << 20, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(storage_ops->write(world.tier, space, 1 << 20, data, 1 << 20, &error), SHOAL_OK);
    assert_int_equal(storage_ops->seal(world.tier, space, &error), SHOAL_OK);
    storage_ops->release(world.tier, space);
    storage_world_release(&world);
}

/* --- space --- */

static void full(void **state)
{
    struct storage_world world;
    struct shoal_error error = {0};
    struct tier_space *space;
    char key[32];

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, (1 << 20) + 100);
    assert_int_equal(world.tier->capacity_bytes, 1 << 20);
    assert_int_equal(world.tier->max_object_bytes, 1 << 20);
    assert_int_equal(storage_ops->allocate(world.tier, (1 << 20) + 1, &space, &error), SHOAL_NO_SPACE);
    assert_int_equal(storage_ops->allocate(world.tier, 1 << 20, &space, &error), SHOAL_OK); /* the whole in one piece */
    assert_int_equal(world.tier->used_bytes, 1 << 20);
    assert_int_equal(storage_ops->allocate(world.tier, 0, &space, &error), SHOAL_NO_SPACE);
    storage_ops->release(world.tier, space);
    for (size_t i = 0; i < 256; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        storage_put(&world, key, i + 1, 4000);
    }
    assert_int_equal(world.tier->used_bytes, 1 << 20);
    assert_int_equal(storage_try_put(&world, "more", 999, 1, &error), SHOAL_NO_SPACE);
    while (world.count > 128)
        storage_drop(&world, 0, false);
    assert_int_equal(world.tier->used_bytes, 1 << 19);
    for (size_t i = 0; i < world.count; i++)
        storage_check(&world, &world.objects[i]);
    storage_world_release(&world);
}

/* Blocks that changed their owner: what is found again is the last one, whether its predecessor was taken back durably
 * or in passing. */
static void reused_blocks(void **state)
{
    struct storage_world world;
    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, 1 << 20);
    for (uint64_t i = 1; i <= 20; i++) {
        storage_put(&world, i % 3 ? "same" : "other", i, (1 << 20) - (size_t)i * 5000);
        if (i < 20)
            storage_drop(&world, 0, i % 2 == 0);
    }
    storage_world_close(&world);
    storage_world_open(&world, 1 << 20);
    assert_int_equal(world.count, 1);
    assert_int_equal(world.objects[0].object_id, 20);
    storage_check(&world, &world.objects[0]);
    storage_drop(&world, 0, false);
    storage_world_close(&world); /* what was taken back in passing is gone after an orderly end */
    storage_world_open(&world, 1 << 20);
    assert_int_equal(world.count, 0);
    storage_world_release(&world);
}

static void maintained(void **state)
{
    struct storage_world world;
    char *wal;
    struct stat info;

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    storage_put(&world, "stays", 77, 10);
    for (uint64_t i = 1; i <= 1000; i++) {
        storage_put(&world, "k", i, 10);
        storage_drop(&world, 1, false);
        if (i % 100 == 0)
            assert_false(storage_ops->maintain(world.tier));
    }
    wal = tmpdir_path(world.directory, "index.db-wal");
    assert_int_equal(stat(wal, &info), 0);
    assert_true(info.st_size < 8 << 20); /* 2,000 commits of two to four pages would be more */
    free(wal);
    storage_check(&world, storage_find(&world, "stays"));
    storage_world_release(&world);
}

/* --- damage --- */

static void flip(const struct storage_world *world, const char *name, off_t offset)
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
    struct storage_world world;
    struct shoal_error error = {0};
    static uint8_t data[3 << 20], expected[3 << 20];

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    storage_put(&world, "a", 1, sizeof data); /* the first one lies at the beginning */
    storage_put(&world, "b", 2, 5000);
    storage_world_close(&world);
    flip(&world, "objects.data", (2 << 20) + 77);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    struct storage_object *a = storage_find(&world, "a");
    assert_int_equal(storage_ops->read(world.tier, a->space, 0, data, sizeof data, &error), SHOAL_CORRUPTED);
    assert_non_null(strstr(error.message, "checksum"));
    assert_non_null(strstr(error.message, world.directory));
    assert_int_equal(storage_ops->read(world.tier, a->space, (2 << 20) + 100, data, 1, &error), SHOAL_CORRUPTED);
    storage_fill(expected, sizeof expected, 1);
    storage_check_range(&world, a, expected, 0, 2 << 20); /* chunks that are whole can be read */
    storage_check(&world, storage_find(&world, "b"));
    storage_world_release(&world);
}

static void run_sql(const struct storage_world *world, const char *sql)
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
    struct storage_world world;
    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    storage_put(&world, "good", 1, 50000); /* blocks 0 to 12 */
    storage_put(&world, "also", 2, 50000); /* 13 to 25 */
    storage_world_close(&world);
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
    storage_world_open(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    storage_check(&world, storage_find(&world, "good"));
    storage_check(&world, storage_find(&world, "also"));
    storage_world_close(&world);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(world.count, 2);
    storage_world_release(&world);
}

static void other_capacity(void **state)
{
    struct storage_world world;
    struct stat info;
    char key[32], *path;

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, 4 << 20);
    for (size_t i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "k%zu", i);
        storage_put(&world, key, i + 1, 1 << 20);
    }
    storage_world_close(&world);
    storage_world_open(&world, 2 << 20);
    assert_int_equal(world.count, 2); /* the others lie outside */
    path = tmpdir_path(world.directory, "objects.data");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 2 << 20);
    storage_world_close(&world);
    storage_world_open(&world, 8 << 20);
    assert_int_equal(world.count, 2);
    for (size_t i = 0; i < world.count; i++)
        storage_check(&world, &world.objects[i]);
    storage_put(&world, "big", 9, 6 << 20);
    storage_check(&world, storage_find(&world, "big"));
    storage_world_close(&world);
    assert_int_equal(unlink(path), 0); /* an index without its data */
    storage_world_open(&world, 8 << 20);
    assert_int_equal(world.count, 0);
    free(path);
    storage_world_release(&world);
}

/* --- what cannot be opened --- */

static void refuses(const char *directory, uint64_t capacity_bytes, enum shoal_status expected, const char *message)
{
    struct shoal_error error = {0};
    struct tier *tier;
    enum shoal_status status = storage_try_open(directory, capacity_bytes, &tier, &error);
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
    struct storage_world world;
    char *path;

    (void)state;
    storage_world_init(&world);
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
    storage_world_open(&world, CAPACITY);
    storage_world_close(&world);
    world.directory = base;
    free(path);
    storage_world_release(&world);
}

static unsigned count_entries(const char *directory)
{
    unsigned count = 0;
    DIR *dir = opendir(directory);

    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

static void refused_leaves_nothing(void **state)
{
    static const uint64_t too_large = UINT64_C(1) << 62;
    struct storage_world world;
    struct stat info;
    char *path;

    (void)state;
    storage_world_init(&world);
    refuses(world.directory, too_large, SHOAL_NO_SPACE, "the file system has room for");
    assert_int_equal(count_entries(world.directory), 0);
    path = tmpdir_path(world.directory, "index.db"); /* somebody's file */
    write_file(path, "this is no database, but it has a few bytes of text in it");
    refuses(world.directory, too_large, SHOAL_NO_SPACE, "the file system has room for");
    assert_int_equal(count_entries(world.directory), 1);
    refuses(world.directory, CAPACITY, SHOAL_IO, "index.db");
    assert_int_equal(count_entries(world.directory), 1);
    assert_int_equal(unlink(path), 0);
    free(path);

    path = tmpdir_path(world.directory, "new");
    refuses(path, too_large, SHOAL_NO_SPACE, "the file system has room for");
    assert_int_not_equal(stat(path, &info), 0);
    free(path);

    /* What a tier has left stays, with its content. */
    storage_world_open(&world, CAPACITY);
    storage_put(&world, "kept", 1, 5000);
    storage_world_close(&world);
    unsigned count = count_entries(world.directory);
    refuses(world.directory, too_large, SHOAL_NO_SPACE, "the file system has room for");
    assert_int_equal(count_entries(world.directory), count);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(world.count, 1);
    storage_world_release(&world);
}

struct rivals {
    const char *directory;
    atomic_uint inside, failures;
};

/* All of them have the tier, one at a time, and each removes what it has made before it leaves. */
static void *rival(void *arg)
{
    struct rivals *rivals = arg;

    for (unsigned done = 0; done < 100;) {
        struct storage_file file;
        struct shoal_error error;
        enum shoal_status status = storage_file_open(rivals->directory, 4096, &file, &error);
        if (status == SHOAL_BUSY) {
            sched_yield();
            continue;
        }
        done++;
        if (status != SHOAL_OK || atomic_fetch_add(&rivals->inside, 1) != 0) {
            fprintf(stderr, "%s\n", status ? error.message : "two at a time");
            atomic_fetch_add(&rivals->failures, 1);
        }
        if (status != SHOAL_OK)
            continue;
        sched_yield();
        atomic_fetch_sub(&rivals->inside, 1);
        storage_file_abandon(&file, rivals->directory);
    }
    return NULL;
}

static void one_at_a_time_whoever_leaves(void **state)
{
    char *base = tmpdir_make(), *directory = tmpdir_path(base, "tier");
    struct rivals rivals = {.directory = directory};
    pthread_t threads[4];
    struct stat info;

    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, rival, &rivals), 0);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&rivals.failures), 0);
    /* An empty lock file may stay of one that made it and that another was faster to lock. */
    if (stat(directory, &info) == 0)
        assert_true(count_entries(directory) <= 1);
    free(directory);
    tmpdir_remove(base);
}

static void unwritable_path(void **state)
{
    struct storage_world world;
    (void)state;
    if (geteuid() == 0) { /* may write everywhere but there */
        refuses("/sys/kernel/shoal-test", CAPACITY, SHOAL_PERMISSION, "/sys/kernel/shoal-test: cannot make");
        return;
    }
    storage_world_init(&world);
    assert_int_equal(chmod(world.directory, S_IRUSR | S_IXUSR), 0);
    refuses(world.directory, CAPACITY, SHOAL_PERMISSION, "Permission denied");
    assert_int_equal(chmod(world.directory, S_IRWXU), 0);
    storage_world_release(&world);
}

static void in_use(void **state)
{
    struct storage_world world;
    char message[64];

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    snprintf(message, sizeof message, "%s: is in use by process %ld", world.directory, (long)getpid());
    refuses(world.directory, CAPACITY, SHOAL_BUSY, message);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct shoal_error error = {0};
        struct tier *tier;
        _exit(storage_try_open(world.directory, CAPACITY, &tier, &error) == SHOAL_BUSY && strstr(error.message, message)
                  ? 0
                  : 1);
    }
    int wait_status;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_int_equal(wait_status, 0);
    storage_world_close(&world);
    storage_world_open(&world, CAPACITY);
    storage_world_release(&world);
}

static void wrong_index(void **state)
{
    struct storage_world world;
    char *path;

    (void)state;
    storage_world_init(&world);
    path = tmpdir_path(world.directory, "index.db");
    run_sql(&world, "CREATE TABLE mine(x)");
    refuses(world.directory, CAPACITY, SHOAL_IO, "of another application");
    assert_int_equal(unlink(path), 0);
    write_file(path, "This is not a database, though it is long enough for the header of one. This is not a database, "
                     "though it is long enough for the header of one.");
    refuses(world.directory, CAPACITY, SHOAL_IO, "move the file (and its -wal) away: the tier starts empty then");
    assert_int_equal(unlink(path), 0);
    storage_world_open(&world, CAPACITY);
    storage_world_close(&world);
    run_sql(&world, "PRAGMA user_version=2");
    refuses(world.directory, CAPACITY, SHOAL_IO, "schema version 2, this Shoal knows 1");
    free(path);
    storage_world_release(&world);
}

/* --- threads --- */

#define THREADS 20 /* more than operations that run at the same time */
#define ROUNDS 30

struct worker {
    struct storage_world world; /* its own objects on the common tier */
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
        storage_put(&worker->world, key, object_id, (size_t)random_below(&random, 600000));
        storage_check(&worker->world, &worker->world.objects[random_below(&random, worker->world.count)]);
        if (worker->world.count > 3)
            storage_drop(&worker->world, (size_t)random_below(&random, worker->world.count), random_below(&random, 2));
        if (random_below(&random, 10) == 0)
            storage_ops->maintain(worker->world.tier);
    }
    return NULL;
}

static void threads(void **state)
{
    static struct worker workers[THREADS];
    pthread_t started[THREADS];
    struct storage_world world;
    size_t total = 0;

    (void)state;
    storage_world_init(&world);
    storage_world_open(&world, CAPACITY);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.world = world, .seed = i + 1};
        workers[i].world.objects = calloc(STORAGE_OBJECTS_MAX, sizeof(struct storage_object));
        assert_non_null(workers[i].world.objects);
        started[i] = start_thread(work, &workers[i]);
    }
    for (size_t i = 0; i < THREADS; i++)
        join_thread(started[i]);
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < workers[i].world.count; j++)
            storage_check(&workers[i].world, &workers[i].world.objects[j]);
    }
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < workers[i].world.count; j++)
            storage_ops->release(world.tier, workers[i].world.objects[j].space);
        total += workers[i].world.count;
        free(workers[i].world.objects);
    }
    storage_world_close(&world);
    storage_world_open(&world, CAPACITY);
    assert_int_equal(world.count, total);
    for (size_t i = 0; i < world.count; i++)
        storage_check(&world, &world.objects[i]);
    storage_world_release(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_by_ring),
        cmocka_unit_test(bytes_plainly),
        cmocka_unit_test(aligned_memory),
        cmocka_unit_test(incomplete),
        cmocka_unit_test(full),
        cmocka_unit_test(reused_blocks),
        cmocka_unit_test(maintained),
        cmocka_unit_test(corrupted_byte),
        cmocka_unit_test(wrong_rows),
        cmocka_unit_test(other_capacity),
        cmocka_unit_test(wrong_paths),
        cmocka_unit_test(unwritable_path),
        cmocka_unit_test(refused_leaves_nothing),
        cmocka_unit_test(one_at_a_time_whoever_leaves),
        cmocka_unit_test(in_use),
        cmocka_unit_test(wrong_index),
        cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
