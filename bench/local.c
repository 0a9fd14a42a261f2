/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes of one host: an engine's READ over the local transport against a plain loop of process_vm_readv with as
 * many threads between the same pages, in turns; then the time of one small READ over the local transport and over TCP.
 *
 * Both processes hold their memory, touched, for all runs. The reader clears its memory before each run and checks all
 * of it after the clock has stopped. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/engine.h>

#include "base/digest.h"
#include "engine/engine.h"
#include "lib/bench.h"

#define RUNS_MAX 100
#define THREADS_MAX 64
#define LATENCIES_MAX 100000

static uint64_t size_bytes = (uint64_t)2 << 30, request_bytes, small_bytes = 4096, chunk_bytes = 1 << 20;
static unsigned runs = 5, threads, latency_count = 5000;
static bool uses_files, is_write;
static char uri[512];

struct greeting {
    char name[64];
    uint64_t addr;
    struct digest content;
};

static struct shoal_engine *open_engine(const char *protocol)
{
    struct shoal_engine_config config = {
        .struct_size = sizeof config, .metadata_uri = uri, .server_name = "127.0.0.1:0", .protocol = protocol};
    struct shoal_engine *engine;
    struct shoal_error error;

    bench_check(shoal_engine_create(&config, NULL, &engine, &error), &error, "create");
    return engine;
}

static void *open_memory(struct shoal_engine *engine, unsigned access)
{
    struct shoal_error error;
    void *memory;

    if (uses_files) {
        bench_check(engine_memory_alloc(engine, size_bytes, false, &memory, &error), &error, "alloc");
        memset(memory, 1, size_bytes);
    } else {
        memory = bench_alloc(size_bytes);
    }
    bench_check(shoal_engine_register_memory(engine, memory, size_bytes, NULL, access, NULL, &error), &error,
                "register");
    return memory;
}

/* --- the one that is read from --- */

static _Noreturn void run_source(int control)
{
    struct shoal_engine *engine = open_engine(NULL);
    void *memory = open_memory(engine, SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE);
    struct greeting hello = {.addr = (uint64_t)(uintptr_t)memory};
    char byte;

    bench_fill(memory, size_bytes, 1);
    hello.content = bench_digest(memory, size_bytes);
    snprintf(hello.name, sizeof hello.name, "%s", shoal_engine_server_name(engine));
    bench_send(control, &hello, sizeof hello);
    bench_receive(control, &byte, 1);
    exit(0);
}

/* --- the plain loop --- */

struct raw {
    pid_t pid;
    uint64_t from;
    uint8_t *to;
    uint64_t next; /* atomic */
};

static void *raw_thread(void *arg)
{
    struct raw *raw = arg;
    uint64_t at;

    while ((at = __atomic_fetch_add(&raw->next, chunk_bytes, __ATOMIC_RELAXED)) < size_bytes) {
        size_t len = size_bytes - at < chunk_bytes ? size_bytes - at : chunk_bytes;
        struct iovec here = {raw->to + at, len}, there = {(void *)(uintptr_t)(raw->from + at), len};

        if (process_vm_readv(raw->pid, &here, 1, &there, 1, 0) != (ssize_t)len)
            bench_die("process_vm_readv: %s", strerror(errno));
    }
    return NULL;
}

/* The threads are there before the clock starts, as an engine's are: the first chunk is for the barrier. */
static double raw_read(pid_t pid, uint64_t from, uint8_t *to)
{
    struct raw raw = {.pid = pid, .from = from, .to = to};
    pthread_t started[THREADS_MAX];
    double start_s = bench_now_s();

    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&started[i], NULL, raw_thread, &raw) != 0)
            bench_die("cannot start a thread");
    raw_thread(&raw);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(started[i], NULL);
    return bench_now_s() - start_s;
}

/* --- ours --- */

static double our_transfer(struct shoal_engine *engine, struct shoal_segment *segment, uint64_t from, uint8_t *to)
{
    uint64_t part = request_bytes ? request_bytes : size_bytes;
    size_t count = (size_t)((size_bytes + part - 1) / part);
    struct shoal_request *requests = calloc(count, sizeof *requests);
    struct shoal_batch *batch;
    struct shoal_error error;
    double start_s;

    if (!requests)
        bench_die("out of memory");
    for (size_t i = 0; i < count; i++)
        requests[i] = (struct shoal_request){.op = is_write ? SHOAL_OP_WRITE : SHOAL_OP_READ,
                                             .segment = segment,
                                             .local = to + i * part,
                                             .remote_addr = from + i * part,
                                             .len_bytes = i + 1 < count ? part : size_bytes - i * part};
    bench_check(shoal_batch_create(engine, count, &batch, &error), &error, "batch");
    start_s = bench_now_s();
    bench_check(shoal_batch_submit(batch, requests, count, &error), &error, "submit");
    bench_check(shoal_batch_wait(batch, -1, &error), &error, "transfer");
    start_s = bench_now_s() - start_s;
    shoal_batch_destroy(batch);
    free(requests);
    return start_s;
}

/* Median time of a small READ, one after the other, in microseconds. */
static double small_read_us(struct shoal_engine *engine, struct shoal_segment *segment, uint64_t from, uint8_t *to)
{
    static double taken[LATENCIES_MAX];
    struct shoal_error error;

    for (unsigned i = 0; i < latency_count; i++) {
        struct shoal_request request = {.op = SHOAL_OP_READ,
                                        .segment = segment,
                                        .local = to,
                                        .remote_addr = from + (uint64_t)i * small_bytes % (size_bytes - small_bytes),
                                        .len_bytes = small_bytes};
        struct shoal_batch *batch;
        double start_s;

        bench_check(shoal_batch_create(engine, 1, &batch, &error), &error, "batch");
        start_s = bench_now_s();
        bench_check(shoal_batch_submit(batch, &request, 1, &error), &error, "submit");
        bench_check(shoal_batch_wait(batch, -1, &error), &error, "small read");
        taken[i] = (bench_now_s() - start_s) * 1e6;
        shoal_batch_destroy(batch);
    }
    return bench_median(taken, latency_count);
}

static void note_transport(void *arg, const struct engine_peer_view *view)
{
    *(const char **)arg = view->transport;
}

static struct shoal_segment *open_segment(struct shoal_engine *engine, const char *name)
{
    struct shoal_segment *segment;
    struct shoal_error error;

    bench_check(shoal_segment_open(engine, name, NULL, &segment, &error), &error, "segment");
    return segment;
}

int main(int argc, char **argv)
{
    static double raw_rate[RUNS_MAX], our_rate[RUNS_MAX];
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, 1 << 20, (uint64_t)1 << 40, "what is read"},
        {"request", BENCH_SIZE, &request_bytes, 0, (uint64_t)1 << 40,
         "in requests of this size (default: a single one)"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {"threads", BENCH_COUNT, &threads, 1, THREADS_MAX, "of the plain loop (default: as many as the transport has)"},
        {"chunk", BENCH_SIZE, &chunk_bytes, 4096, (uint64_t)1 << 30, "what a thread of the plain loop takes at a time"},
        {"small", BENCH_SIZE, &small_bytes, 1, 1 << 20, "size of the small READ"},
        {"latencies", BENCH_COUNT, &latency_count, 1, LATENCIES_MAX, "small READs"},
        {"write", BENCH_FLAG, &is_write, 0, 0, "WRITE instead of READ (its bytes are not checked)"},
        {"files", BENCH_FLAG, &uses_files, 0, 0, "memory passed as files, as where attaching is refused"},
        {0},
    };
    struct bench_side source;
    struct shoal_engine *engine, *tcp;
    struct shoal_segment *segment, *tcp_segment;
    struct shoal_error error;
    const char *transport = "";
    struct greeting hello;
    double ours, raw, small_us, tcp_us;
    uint8_t *memory;

    bench_options(
        argc, argv, "local",
        "Two processes of one host: READ over the local transport against a loop of process_vm_readv with as\n"
        "many threads, between the same pages, in turns. ratio = Shoal's median throughput / the loop's.\n"
        "Then one small READ at a time, over the local transport and over TCP.",
        options);
    if (!threads)
        threads = bench_cpu_count() < 8 ? bench_cpu_count() : 8;
    bench_require_memory(2 * size_bytes);
    if (uses_files)
        setenv("SHOAL_LOCAL_CMA", "0", 1);
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", bench_temp_dir());
    source = bench_side_start(run_source, NULL, 0);
    bench_receive(source.control, &hello, sizeof hello);
    engine = open_engine(NULL);
    memory = open_memory(engine, SHOAL_ACCESS_LOCAL);
    segment = open_segment(engine, hello.name);
    printf("local: %" PRIu64 " bytes, %u runs, %u threads, memory %s\n", size_bytes, runs, threads,
           uses_files ? "as files" : "by attaching");
    for (unsigned run = 0; run < runs; run++) {
        struct digest content;

        memset(memory, 0x5a, size_bytes);
        raw_rate[run] = (double)size_bytes / raw_read(source.pid, hello.addr, memory);
        memset(memory, 0x5a, size_bytes);
        our_rate[run] = (double)size_bytes / our_transfer(engine, segment, hello.addr, memory);
        content = bench_digest(memory, size_bytes);
        if (!is_write && !digest_is_equal(&content, &hello.content))
            bench_die("run %u: wrong bytes were read", run + 1);
        printf("%4u  loop %8.2f GB/s   shoal %8.2f GB/s\n", run + 1, raw_rate[run] / 1e9, our_rate[run] / 1e9);
        fflush(stdout);
    }
    if (engine_peers_visit(engine, note_transport, &transport) != SHOAL_OK || strcmp(transport, "local") != 0)
        bench_die("the bytes went over '%s'", transport);
    tcp = open_engine("tcp");
    bench_check(shoal_engine_unregister_memory(engine, memory, size_bytes, &error), &error, "unregister");
    bench_check(shoal_engine_register_memory(engine, memory, size_bytes, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
                &error, "register");
    bench_check(shoal_engine_register_memory(tcp, memory, size_bytes, NULL, SHOAL_ACCESS_LOCAL, NULL, &error), &error,
                "register");
    tcp_segment = open_segment(tcp, hello.name);
    (void)small_read_us(tcp, tcp_segment, hello.addr, memory);
    (void)small_read_us(engine, segment, hello.addr, memory);
    tcp_us = small_read_us(tcp, tcp_segment, hello.addr, memory);
    small_us = small_read_us(engine, segment, hello.addr, memory);
    ours = bench_median(our_rate, runs);
    raw = bench_median(raw_rate, runs);
    printf("median  loop %8.2f GB/s   shoal %8.2f GB/s\n", raw / 1e9, ours / 1e9);
    printf("READ of %" PRIu64 " bytes, median: %.1f us here, %.1f us over TCP\n", small_bytes, small_us, tcp_us);
    shoal_segment_close(segment);
    shoal_segment_close(tcp_segment);
    shoal_engine_destroy(engine);
    shoal_engine_destroy(tcp);
    bench_send(source.control, "q", 1);
    waitpid(source.pid, NULL, 0);
    printf("{\"bench\":\"local\",\"ratio\":%.3f,\"shoal_gbps\":%.3f,\"loop_gbps\":%.3f,\"threads\":%u,"
           "\"small_bytes\":%" PRIu64 ",\"small_us\":%.1f,\"small_tcp_us\":%.1f,\"size_bytes\":%" PRIu64
           ",\"request_bytes\":%" PRIu64 ",\"runs\":%u,\"way\":\"%s\",\"op\":\"%s\"}\n",
           ours / raw, ours / 1e9, raw / 1e9, threads, small_bytes, small_us, tcp_us, size_bytes, request_bytes, runs,
           uses_files ? "file" : "attach", is_write ? "write" : "read");
    return 0;
}
