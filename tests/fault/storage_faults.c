/* SPDX-License-Identifier: Apache-2.0 */
/* A STORAGE tier whose process is killed, whose disk is full or refuses to write. */
#include "../unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "storage_world.h"
#include "tier/tier.h"
#include "tmpdir.h"

#define CAPACITY (UINT64_C(64) << 20)

/* --- ends of all kinds --- */

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
static void put_forever(struct storage_world *world, int fd, uint64_t seed)
{
    struct random random;
    random_init(&random, seed);
    storage_world_open(world, 8 << 20);
    for (uint32_t number = 1;; number++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", number);
        struct shoal_error error;
        size_t len = (size_t)random_below(&random, random_below(&random, 4) ? 20000 : 2 << 20);
        while (storage_try_put(world, key, number, len, &error) != SHOAL_OK) {
            size_t victim = (size_t)random_below(&random, world->count);
            uint32_t name = (uint32_t)world->objects[victim].object_id;
            bool is_durable = random_below(&random, 2);
            say(fd, SAY_FORGETTING, name);
            storage_drop(world, victim, is_durable);
            if (is_durable)
                say(fd, SAY_FORGOTTEN, name);
        }
        say(fd, SAY_PUT, number);
    }
}

static void killed_once(uint64_t seed)
{
    static bool said[SAY_KINDS][1 << 16];
    struct storage_world world;
    struct saying saying;
    int fds[2], wait_status;
    uint32_t last = 0;

    memset(said, 0, sizeof said);
    storage_world_init(&world);
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

    storage_world_open(&world, 8 << 20);
    for (size_t i = 0; i < world.count; i++) {
        struct storage_object *object = &world.objects[i];
        assert_false(said[SAY_FORGOTTEN][object->object_id]);
        char key[32];
        snprintf(key, sizeof key, "k%llu", (unsigned long long)object->object_id);
        assert_string_equal(object->key, key);
        /* Also one that was being taken back: its entry goes before others write into its blocks. */
        storage_check(&world, object);
    }
    for (uint32_t number = 1; number <= last; number++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", number);
        if (said[SAY_PUT][number] && !said[SAY_FORGETTING][number] && !storage_find(&world, key))
            fail_msg("%s was put and is not there (seed %llu)", key, (unsigned long long)seed);
    }
    /* And it goes on from there. */
    while (world.count > 0)
        storage_drop(&world, 0, true);
    storage_put(&world, "whole", 5, 8 << 20);
    storage_check(&world, &world.objects[0]);
    storage_world_release(&world);
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
    struct storage_world world;
    int fds[2], wait_status;
    char byte;

    (void)state;
    storage_world_init(&world);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct tier_space *space;
        static uint8_t data[TIER_STAGING_BYTES];
        storage_world_open(&world, 4 << 20);
        storage_put(&world, "old", 1, 4 << 20);
        storage_drop(&world, 0, false);
        if (storage_ops->allocate(world.tier, 4 << 20, &space, NULL) != SHOAL_OK ||
            storage_ops->write(world.tier, space, 0, data, sizeof data, NULL) != SHOAL_OK || write(fds[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    storage_world_open(&world, 4 << 20);
    assert_int_equal(world.count, 0);
    storage_world_release(&world);
}

/* --- the whole backend --- */

#define KEYS 64

static struct tier_backend *open_backend(const struct storage_world *world)
{
    const struct tier_config tiers[] = {
        {.type = TIER_DRAM, .capacity_bytes = 2 << 20, .priority = 100, .numa_node = -1},
        {.type = TIER_STORAGE, .capacity_bytes = 8 << 20, .storage_filepath = world->directory, .numa_node = -1},
    };
    const struct tier_backend_config config = {.tiers = tiers, .tier_count = 2};
    struct tier_backend *backend;
    struct shoal_error error = {0};
    if (tier_backend_create(&config, &backend, &error) != SHOAL_OK)
        fail_msg("create: %s", error.message);
    return backend;
}

static void key_of(uint64_t object_id, char key[32])
{
    snprintf(key, 32, "k%llu", (unsigned long long)(object_id % KEYS));
}

static bool put_object(struct tier_backend *backend, uint64_t object_id, size_t len)
{
    static uint8_t data[1 << 20];
    char key[32];
    struct tier_allocation *allocation;
    struct tier_object *object;

    key_of(object_id, key);
    if (tier_allocate(backend, key, len, false, &allocation, NULL) != SHOAL_OK)
        return false;
    storage_fill(data, len, object_id);
    if (tier_write(allocation, 0, data, len, NULL) != SHOAL_OK) {
        tier_allocation_drop(allocation);
        return false;
    }
    if (tier_commit(allocation, object_id, &object, NULL) != SHOAL_OK || tier_publish(object, NULL) != SHOAL_OK)
        return false;
    tier_object_unref(object);
    return true;
}

/* Puts, reads and removes, so that the background offloads, evicts and promotes. */
static void use_forever(const struct storage_world *world, int fd, uint64_t seed)
{
    static uint8_t data[1 << 20];
    struct tier_backend *backend = open_backend(world);
    struct random random;
    random_init(&random, seed);
    for (uint32_t number = 1;; number++) {
        char key[32];
        struct tier_object *object;
        if (put_object(backend, number, (size_t)random_below(&random, random_below(&random, 4) ? 30000 : sizeof data)))
            say(fd, SAY_PUT, number);
        for (int i = 0; i < 3; i++) {
            key_of(random_below(&random, KEYS), key);
            if (tier_get(backend, key, &object) != SHOAL_OK)
                continue;
            if (tier_object_data(object) == NULL)
                (void)tier_read(object, 0, data, (size_t)tier_object_len(object), NULL);
            uint32_t name = (uint32_t)tier_object_id(object);
            tier_object_unref(object);
            if (i == 0 && tier_remove(backend, key, name) == SHOAL_OK)
                say(fd, SAY_FORGOTTEN, name);
        }
    }
}

struct found {
    const bool *forgotten;
    size_t count;
};

static bool check_found(void *arg, struct tier_object *object)
{
    static uint8_t data[1 << 20], expected[1 << 20];
    struct found *found = arg;
    struct shoal_error error = {0};
    size_t len = (size_t)tier_object_len(object);
    char key[32];

    key_of(tier_object_id(object), key);
    assert_string_equal(tier_object_key(object), key);
    assert_false(found->forgotten[tier_object_id(object)]);
    assert_true(len <= sizeof data);
    if (tier_read(object, 0, data, len, &error) != SHOAL_OK)
        fail_msg("%s: %s", key, error.message);
    storage_fill(expected, len, tier_object_id(object));
    assert_memory_equal(data, expected, len);
    found->count++;
    return true;
}

static size_t killed_backend_once(uint64_t seed)
{
    static bool forgotten[1 << 16];
    struct storage_world world;
    struct found found = {.forgotten = forgotten};
    struct saying saying;
    int fds[2], wait_status;

    memset(forgotten, 0, sizeof forgotten);
    storage_world_init(&world);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        use_forever(&world, fds[1], seed);
    }
    close(fds[1]);
    bool is_alive = true;
    while (read(fds[0], &saying, sizeof saying) == sizeof saying) {
        assert_true(saying.number < 1 << 16);
        if (saying.kind == SAY_FORGOTTEN)
            forgotten[saying.number] = true;
        if (is_alive && saying.kind == SAY_PUT && saying.number >= 100 + seed % 300) {
            kill(child, SIGKILL);
            is_alive = false;
        }
    }
    close(fds[0]);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);

    struct tier_backend *backend = open_backend(&world);
    assert_true(tier_each(backend, check_found, &found));
    for (uint64_t i = 0; i < KEYS; i++) {
        char key[32];
        key_of(i, key);
        (void)tier_remove(backend, key, 0);
    }
    for (unsigned i = 0; i < tier_count(backend); i++) {
        struct tier_usage usage;
        tier_usage(backend, i, &usage);
        assert_int_equal(usage.checksum_errors, 0);
        wait_until((tier_usage(backend, i, &usage), usage.used_bytes == 0)); /* the background may hold some */
    }
    tier_backend_destroy(backend);
    storage_world_release(&world);
    return found.count;
}

static void killed_backend(void **state)
{
    uint64_t seed = test_seed();
    size_t found = 0;
    (void)state;
    for (uint64_t i = 0; i < 5; i++)
        found += killed_backend_once(seed + i * 67);
    assert_true(found > 0); /* else the disk was never used */
}

/* --- the next one --- */

/* Requests of a process that was killed may outlive it, and with them its lock on the data file: that is waited for. */
static void last_writes(void **state)
{
    struct storage_world world;
    char *data, *lock, *index, owner[24], text[24];
    int fds[2], wait_status;

    (void)state;
    storage_world_init(&world);
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
    storage_world_open(&world, CAPACITY);
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_int_equal(wait_status, 0);
    close(fds[0]);
    close(fds[1]);
    free(data);
    free(lock);
    free(index);
    storage_world_release(&world);
}

/* --- failing disks --- */

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
    struct storage_world world;
    struct shoal_error error = {0};

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    for (int is_plain = 0; is_plain < 2; is_plain++) {
        setenv("SHOAL_STORAGE_IO", is_plain ? "plain" : "ring", 1);
        storage_world_init(&world);
        storage_world_open(&world, 32 << 20);
        storage_put(&world, "before", 1, 1 << 20);
        uint64_t used_bytes = world.tier->used_bytes;
        limit_files(3 << 20);
        assert_int_equal(storage_try_put(&world, "k", 2, 16 << 20, &error), SHOAL_IO);
        assert_non_null(strstr(error.message, "cannot write: File too large"));
        assert_int_equal(world.tier->used_bytes, used_bytes);
        limit_files(8 << 10); /* the index fails, too */
        assert_int_not_equal(storage_try_put(&world, "l", 3, 0, &error), SHOAL_OK);
        assert_non_null(strstr(error.message, "index.db"));
        assert_int_equal(world.tier->used_bytes, used_bytes);
        storage_check(&world, storage_find(&world, "before"));
        /* A durable end that the disk refuses: told, and made good with the next one. */
        struct storage_object *before = storage_find(&world, "before");
        assert_int_not_equal(storage_ops->forget(world.tier, before->space, true, &error), SHOAL_OK);
        storage_check(&world, before);
        storage_ops->release(world.tier, before->space);
        world.count = 0;
        limit_files(0);
        storage_put(&world, "k", 4, 16 << 20);
        storage_put(&world, "l", 5, 0);
        storage_world_close(&world);
        storage_world_open(&world, 32 << 20);
        assert_int_equal(world.count, 2);
        storage_check(&world, storage_find(&world, "k"));
        storage_world_release(&world);
    }
    unsetenv("SHOAL_STORAGE_IO");
}

#define SMALL_DISK_BYTES (4u << 20)

static void count_warning(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    if (level == SHOAL_LOG_WARN && strcmp(module, "tier") == 0 && strstr(message, "index.db"))
        ++*(unsigned *)arg;
}

/* In a process and mount namespace of its own. Returns what went wrong, or NULL. */
static const char *fill_disk(const char *directory)
{
    struct storage_world world = {.directory = (char *)directory,
                                  .objects = calloc(STORAGE_OBJECTS_MAX, sizeof(struct storage_object))};
    struct shoal_error error = {0};
    unsigned warnings = 0;
    char options[32];
    size_t count = 0;

    snprintf(options, sizeof options, "size=%u", SMALL_DISK_BYTES);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", directory, "tmpfs", 0, options) != 0)
        return "skipped";
    if (storage_try_open(directory, SMALL_DISK_BYTES + 4096, &world.tier, &error) != SHOAL_NO_SPACE ||
        !strstr(error.message, "the capacity is 4198400 bytes, the file system has room for 41"))
        return error.message[0] ? strdup(error.message) : "the capacity is larger than the disk";
    storage_world_open(&world, SMALL_DISK_BYTES - (256 << 10));
    shoal_log_set(count_warning, &warnings, SHOAL_LOG_WARN);
    /* The index grows until the disk is full, long before the data file is. */
    for (; count < STORAGE_OBJECTS_MAX; count++) {
        char key[600];
        uint64_t used_bytes = world.tier->used_bytes;
        snprintf(key, sizeof key, "%0500zu", count);
        enum shoal_status status = storage_try_put(&world, key, count + 1, 1, &error);
        if (status == SHOAL_OK)
            continue;
        if (status != SHOAL_NO_SPACE || !strstr(error.message, "index.db"))
            return error.message[0] ? strdup(error.message) : "the tier was full first";
        if (world.tier->used_bytes != used_bytes)
            return "the space did not come back";
        break;
    }
    if (count == STORAGE_OBJECTS_MAX)
        return "the disk was never full";
    for (int i = 0; i < 3; i++)
        storage_try_put(&world, "one more that does not fit", count + 2, 1, &error);
    shoal_log_set(NULL, NULL, SHOAL_LOG_WARN);
    if (warnings != 1)
        return warnings ? "the log is full, too" : "the operator does not hear of the full disk";
    for (size_t i = 0; i < count; i++)
        storage_check(&world, &world.objects[i]);
    storage_world_close(&world);
    storage_world_open(&world, SMALL_DISK_BYTES - (256 << 10));
    if (world.count != count)
        return "an object is lost";
    storage_world_close(&world);
    free(world.objects);
    return NULL;
}

static void full_disk(void **state)
{
    struct storage_world world;
    int wait_status;

    (void)state;
    storage_world_init(&world);
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
    storage_world_release(&world);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 77)
        skip(); /* mounting needs root */
    assert_int_equal(wait_status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),      cmocka_unit_test(killed_backend), cmocka_unit_test(killed_in_reused_blocks),
        cmocka_unit_test(last_writes), cmocka_unit_test(write_errors),   cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
