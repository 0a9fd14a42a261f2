/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a payload registers, against the speed at which all CPUs digest the same memory. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <shoal/store.h>

#include "base/digest.h"
#include "lib/bench.h"

#define BLOCK_BYTES ((uint64_t)1 << 20)
#define RUNS_MAX 100

static uint64_t size_bytes = (uint64_t)2 << 30;
static unsigned runs = 5;
static unsigned threads;

struct limit {
    const uint8_t *memory;
    atomic_uint_fast64_t next;
    atomic_uint_fast64_t sum; /* keeps the work alive */
};

static void *digest_blocks(void *arg)
{
    struct limit *limit = arg;
    for (;;) {
        uint64_t at = atomic_fetch_add(&limit->next, BLOCK_BYTES);
        struct digest digest;
        if (at >= size_bytes)
            return NULL;
        digest = digest_of(limit->memory + at, (size_t)(size_bytes - at < BLOCK_BYTES ? size_bytes - at : BLOCK_BYTES));
        atomic_fetch_add(&limit->sum, digest.bytes[0]);
    }
}

static double digest_all(const uint8_t *memory)
{
    struct limit limit = {.memory = memory};
    pthread_t *started = calloc(threads, sizeof *started);
    double start_s = bench_now_s();

    if (!started)
        bench_die("out of memory");
    for (unsigned i = 1; i < threads; i++) {
        if (pthread_create(&started[i], NULL, digest_blocks, &limit) != 0)
            bench_die("cannot start %u threads", threads);
    }
    digest_blocks(&limit);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(started[i], NULL);
    free(started);
    return bench_now_s() - start_s;
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, 1, (uint64_t)1 << 40, "payload"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {"threads", BENCH_COUNT, &threads, 0, 1024, "digest threads of both; 0: one for each CPU"},
        {0},
    };
    static double limit_rate[RUNS_MAX], our_rate[RUNS_MAX];
    char uri[512];
    struct shoal_store *store;
    struct shoal_error error;
    struct shoal_region region;
    double limit_median, our_median;

    bench_options(argc, argv, "register",
                  "Throughput of shoal_store_register against XXH3-128 of the same memory on all CPUs, in turns.\n"
                  "ratio = register's median throughput / that limit.",
                  options);
    bench_require_memory(size_bytes);
    if (!threads)
        threads = bench_cpu_count();
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", bench_temp_dir());
    region = (struct shoal_region){bench_alloc(size_bytes), size_bytes};
    bench_fill(region.addr, size_bytes, 1);
    struct shoal_store_config config = {
        .struct_size = sizeof config, .metadata_uri = uri, .server_name = "127.0.0.1:0", .digest_threads = threads};
    bench_check(shoal_store_create(&config, NULL, &store, &error), &error, "create");
    printf("register: %llu bytes, %u runs, %u threads\n", (unsigned long long)size_bytes, runs, threads);
    for (unsigned run = 0; run < runs; run++) {
        double seconds = digest_all(region.addr), start_s;
        limit_rate[run] = (double)size_bytes / seconds;
        start_s = bench_now_s();
        bench_check(shoal_store_register(store, "register", &region, 1, NULL, NULL, &error), &error, "register");
        seconds = bench_now_s() - start_s;
        our_rate[run] = (double)size_bytes / seconds;
        bench_check(shoal_store_unregister(store, "register", NULL, &error), &error, "unregister");
        printf("%4u  XXH3 %7.2f GB/s  register %7.2f GB/s\n", run + 1, limit_rate[run] / 1e9, our_rate[run] / 1e9);
        fflush(stdout);
    }
    shoal_store_close(store, NULL);
    bench_free(region.addr, size_bytes);
    limit_median = bench_median(limit_rate, runs);
    our_median = bench_median(our_rate, runs);
    printf("median XXH3 %7.2f GB/s  register %7.2f GB/s\n", limit_median / 1e9, our_median / 1e9);
    printf("{\"bench\":\"register\",\"ratio\":%.3f,\"register_gbps\":%.3f,\"xxh3_gbps\":%.3f,\"size_bytes\":%llu,"
           "\"runs\":%u,\"threads\":%u}\n",
           our_median / limit_median, our_median / 1e9, limit_median / 1e9, (unsigned long long)size_bytes, runs,
           threads);
    return 0;
}
