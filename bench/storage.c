/* SPDX-License-Identifier: Apache-2.0 */
/* Sequential put and get of a STORAGE tier through the tiered backend, against a plain loop of direct I/O as fio runs
 * it: same disk, same sizes of requests, as many in flight, nothing else done. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pool.h"
#include "lib/bench.h"
#include "tier/storage_io.h"
#include "tier/tier.h"

#define RUNS_MAX 100
#define SLICE_BYTES ((uint64_t)16 << 20) /* of one turn */

static uint64_t size_bytes = (uint64_t)256 << 20;
static uint64_t object_bytes = 16 << 20;
static unsigned runs = 11;
static unsigned outstanding = 1;
static const char *directory;

static uint8_t *memory;   /* of as many objects as are moved at once */
static struct pool *pool; /* its threads and the caller move them; NULL: the caller alone */

/* --- the loop -------------------------------------------------------------------------------------------------------
 */

struct loop {
    int fd;
    bool is_direct;
    struct io_uring ring;
};

static void loop_open(struct loop *loop, const char *path)
{
    int rc;

    loop->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    loop->is_direct = loop->fd >= 0;
    if (!loop->is_direct)
        loop->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (loop->fd < 0 || unlink(path) != 0)
        bench_die("%s: %s", path, strerror(errno));
    if (fallocate(loop->fd, 0, 0, (off_t)size_bytes) != 0 && ftruncate(loop->fd, (off_t)size_bytes) != 0)
        bench_die("%s: %s", path, strerror(errno));
    rc = io_uring_queue_init(STORAGE_IO_DEPTH, &loop->ring, 0);
    if (rc < 0)
        bench_die("io_uring, which the comparison needs: %s", strerror(-rc));
}

/* The bytes of the file from begin to end. */
static double loop_run(struct loop *loop, bool is_write, uint64_t begin_bytes, uint64_t end_bytes)
{
    uint64_t begun = begin_bytes, ended = begin_bytes;
    double start_s = bench_now_s();

    while (ended < end_bytes) {
        struct io_uring_cqe *cqe;
        while (begun < end_bytes && begun - ended < (uint64_t)STORAGE_IO_DEPTH * STORAGE_CHUNK_BYTES) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);
            uint8_t *at = memory + begun % object_bytes;
            if (!sqe)
                bench_die("the ring is full");
            if (is_write)
                io_uring_prep_write(sqe, loop->fd, at, STORAGE_CHUNK_BYTES, begun);
            else
                io_uring_prep_read(sqe, loop->fd, at, STORAGE_CHUNK_BYTES, begun);
            if (io_uring_submit(&loop->ring) != 1)
                bench_die("io_uring_submit failed");
            begun += STORAGE_CHUNK_BYTES;
        }
        if (io_uring_wait_cqe(&loop->ring, &cqe) != 0)
            bench_die("io_uring_wait_cqe failed");
        if (cqe->res != STORAGE_CHUNK_BYTES)
            bench_die("direct I/O: %s", cqe->res < 0 ? strerror(-cqe->res) : "short");
        io_uring_cqe_seen(&loop->ring, cqe);
        ended += STORAGE_CHUNK_BYTES;
    }
    return bench_now_s() - start_s;
}

/* --- the tier -------------------------------------------------------------------------------------------------------
 */

struct slice {
    struct tier_backend *backend;
    bool is_write;
    uint64_t first; /* object */
};

/* Two that run at once may use the same memory: all objects have the same bytes. */
static bool move_object(void *arg, size_t index)
{
    const struct slice *slice = arg;
    uint8_t *at = memory + index % outstanding * object_bytes;
    char key[32];
    struct tier_allocation *allocation;
    struct tier_object *object;
    struct shoal_error error;

    snprintf(key, sizeof key, "object-%llu", (unsigned long long)(slice->first + index));
    if (slice->is_write) {
        bench_check(tier_allocate(slice->backend, key, object_bytes, false, &allocation, &error), &error, "allocate");
        bench_check(tier_write(allocation, 0, at, object_bytes, &error), &error, "write");
        bench_check(tier_commit(allocation, 0, &object, &error), &error, "commit");
        bench_check(tier_publish(object, &error), &error, "publish");
    } else {
        if (tier_get(slice->backend, key, &object) != SHOAL_OK)
            bench_die("%s is gone", key);
        bench_check(tier_read(object, 0, at, object_bytes, &error), &error, "read");
    }
    tier_object_unref(object);
    return true;
}

/* The objects that are these bytes in the order of their keys. */
static double tier_run(struct tier_backend *backend, bool is_write, uint64_t begin_bytes, uint64_t end_bytes)
{
    struct slice slice = {backend, is_write, begin_bytes / object_bytes};
    double start_s = bench_now_s();

    if (pool)
        pool_for(pool, (end_bytes - begin_bytes) / object_bytes, move_object, &slice);
    else
        for (size_t i = 0; i < (end_bytes - begin_bytes) / object_bytes; i++)
            (void)move_object(&slice, i);
    return bench_now_s() - start_s;
}

static void remove_all(struct tier_backend *backend)
{
    for (uint64_t i = 0; i < size_bytes / object_bytes; i++) {
        char key[32];
        snprintf(key, sizeof key, "object-%llu", (unsigned long long)i);
        if (tier_remove(backend, key, 0) != SHOAL_OK)
            bench_die("%s cannot be removed", key);
    }
}

/* Both take turns at short pieces: what else the disk and the machine do changes from one second to the next. */
static void take_turns(struct loop *loop, struct tier_backend *backend, bool is_write, double *loop_rate_out,
                       double *tier_rate_out)
{
    uint64_t slice_bytes = SLICE_BYTES > object_bytes ? SLICE_BYTES / object_bytes * object_bytes : object_bytes;
    double loop_s = 0, tier_s = 0;

    for (uint64_t begin = 0, end; begin < size_bytes; begin = end) {
        end = size_bytes - begin > slice_bytes ? begin + slice_bytes : size_bytes;
        loop_s += loop_run(loop, is_write, begin, end);
        tier_s += tier_run(backend, is_write, begin, end);
    }
    *loop_rate_out = (double)size_bytes / loop_s;
    *tier_rate_out = (double)size_bytes / tier_s;
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, STORAGE_CHUNK_BYTES, (uint64_t)1 << 40, "bytes of all objects"},
        {"object", BENCH_SIZE, &object_bytes, STORAGE_CHUNK_BYTES, (uint64_t)1 << 30, "bytes of one; 256K times n"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {"outstanding", BENCH_COUNT, &outstanding, 1, 16, "puts and gets at the same time, by as many threads"},
        {"directory", BENCH_TEXT, &directory, 0, 0, "on the disk to measure; default: a temporary one"},
        {0},
    };
    static double loop_write[RUNS_MAX], loop_read[RUNS_MAX], tier_put[RUNS_MAX], tier_got[RUNS_MAX];
    static double put_ratio[RUNS_MAX], get_ratio[RUNS_MAX];
    char tier_path[512], loop_path[512];
    struct shoal_error error;
    struct tier_backend *backend;
    struct loop loop;

    bench_options(
        argc, argv, "storage",
        "Sequential put and get of a STORAGE tier against io_uring direct I/O of 256 KiB, 8 in flight, on the\n"
        "same disk, in turns of 16 MiB. put_ratio, get_ratio: the tier's throughput / that loop's, median of the runs.",
        options);
    if (object_bytes % STORAGE_CHUNK_BYTES != 0 || size_bytes < object_bytes)
        bench_die("--object must be a multiple of %u, and --size at least that", STORAGE_CHUNK_BYTES);
    size_bytes -= size_bytes % object_bytes;
    if (!directory)
        directory = bench_temp_dir();
    if (snprintf(tier_path, sizeof tier_path, "%s/tier", directory) >= (int)sizeof tier_path ||
        snprintf(loop_path, sizeof loop_path, "%s/loop", directory) >= (int)sizeof loop_path)
        bench_die("--directory is too long");
    memory = bench_alloc(outstanding * object_bytes);
    for (unsigned i = 0; i < outstanding; i++)
        bench_fill(memory + i * object_bytes, object_bytes, 1);
    if (outstanding > 1)
        bench_check(pool_create(outstanding - 1, &pool, &error), &error, "threads");
    loop_open(&loop, loop_path);
    /* Twice as large: nothing is evicted. */
    const struct tier_config tier = {
        .type = TIER_STORAGE, .capacity_bytes = 2 * size_bytes, .storage_filepath = tier_path, .numa_node = -1};
    const struct tier_backend_config config = {.tiers = &tier, .tier_count = 1};
    bench_check(tier_backend_create(&config, &backend, &error), &error, "create");
    printf("storage: %llu bytes in objects of %llu, %u runs, %s\n", (unsigned long long)size_bytes,
           (unsigned long long)object_bytes, runs, loop.is_direct ? "direct I/O" : "through the page cache");
    for (unsigned run = 0; run < runs; run++) {
        take_turns(&loop, backend, true, &loop_write[run], &tier_put[run]);
        take_turns(&loop, backend, false, &loop_read[run], &tier_got[run]);
        remove_all(backend);
        put_ratio[run] = tier_put[run] / loop_write[run];
        get_ratio[run] = tier_got[run] / loop_read[run];
        printf("%4u  write %7.3f  put %7.3f  read %7.3f  get %7.3f GB/s\n", run + 1, loop_write[run] / 1e9,
               tier_put[run] / 1e9, loop_read[run] / 1e9, tier_got[run] / 1e9);
        fflush(stdout);
    }
    tier_backend_destroy(backend);
    io_uring_queue_exit(&loop.ring);
    close(loop.fd);
    bench_free(memory, outstanding * object_bytes);
    pool_destroy(pool);
    double write_rate = bench_median(loop_write, runs), put_rate = bench_median(tier_put, runs);
    double read_rate = bench_median(loop_read, runs), get_rate = bench_median(tier_got, runs);
    printf("{\"bench\":\"storage\",\"put_ratio\":%.3f,\"get_ratio\":%.3f,\"put_gbps\":%.3f,\"get_gbps\":%.3f,"
           "\"write_gbps\":%.3f,\"read_gbps\":%.3f,\"size_bytes\":%llu,\"object_bytes\":%llu,"
           "\"outstanding\":%u,\"runs\":%u,\"direct\":%s}\n",
           bench_median(put_ratio, runs), bench_median(get_ratio, runs), put_rate / 1e9, get_rate / 1e9,
           write_rate / 1e9, read_rate / 1e9, (unsigned long long)size_bytes, (unsigned long long)object_bytes,
           outstanding, runs, loop.is_direct ? "true" : "false");
    return 0;
}
