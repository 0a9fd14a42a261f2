/* SPDX-License-Identifier: Apache-2.0 */
/* Gets and puts of a peer's values: Shoal's KV store (mooncake_master, a mooncake_client that owns everything, and this
 * process, which owns nothing), Redis and plain sockets, in turns; and gets of this process' own values against memcpy.
 *
 * All of it runs on loopback with one congestion control, so as root in a network namespace of its own: Redis has no
 * option for it. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/kv.h>

#include "kv_load.h"
#include "lib/bench.h"
#include "netns.h"

#define RUNS_MAX 31
#define SIZES_MAX 8
#define OPEN_TIMEOUT_MS 60000
#define LOCAL_BYTES ((uint64_t)1 << 20)
#define ECHO_BYTES ((uint64_t)4 << 10)
#define LARGE_BYTES ((uint64_t)16 << 20)

static uint64_t budget_bytes = (uint64_t)512 << 20;
static unsigned runs = 3, cell_ms = 500, threads_many = 16;
static const char *congestion_control = "reno", *sizes_text = "64,4K,64K,1M,16M", *only;
static bool without_redis, is_redis_over_socket;

static uint64_t sizes[SIZES_MAX];
static size_t size_count;

/* --- Shoal --- */

static struct {
    pid_t master, client;
    char master_address[64];
    struct shoal_kv *kv;
} ours;

static struct shoal_kv *open_kv(const char *tiers, uint64_t arena_bytes)
{
    struct shoal_kv_config config = {
        .struct_size = sizeof config, .master = ours.master_address, .tiers = tiers, .arena_bytes = arena_bytes};
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = OPEN_TIMEOUT_MS};
    struct shoal_kv *kv;
    struct shoal_error error;
    bench_check(shoal_kv_open(&config, &call, &kv, &error), &error, "shoal_kv_open");
    return kv;
}

static void print_log(const char *name)
{
    char path[512], line[1024];
    snprintf(path, sizeof path, "%s/%s", bench_temp_dir(), name);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file))
        fprintf(stderr, "  %s: %s", name, line);
    fclose(file);
}

static void check_is_running(pid_t pid, const char *log)
{
    if (waitpid(pid, NULL, WNOHANG) == pid) {
        print_log(log);
        bench_die("a program of the cluster has ended");
    }
}

static void start_programs(void)
{
    const char *build = getenv("BENCH_BUILD");
    char master[512], client[512], port[16], tiers[128];
    snprintf(master, sizeof master, "%s/cmd/mooncake_master/mooncake_master", build ? build : "build-bench");
    snprintf(client, sizeof client, "%s/cmd/mooncake_client/mooncake_client", build ? build : "build-bench");
    snprintf(port, sizeof port, "%u", kv_free_port());
    snprintf(ours.master_address, sizeof ours.master_address, "127.0.0.1:%s", port);
    /* Room for twice the values, so that nothing is evicted while it is asked for. */
    snprintf(tiers, sizeof tiers, "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":%llu}]}",
             (unsigned long long)(2 * budget_bytes + 64 * LARGE_BYTES));
    char *const master_arguments[] = {master, "--deployment_mode", "P2P", "--rpc_port", port, NULL};
    char *const client_arguments[] = {client,
                                      "--master_server_address",
                                      ours.master_address,
                                      "--port",
                                      "0",
                                      "--client_rpc_port",
                                      "0",
                                      "--deployment_mode",
                                      "P2P",
                                      "--tiered_backend_config",
                                      tiers,
                                      NULL};
    ours.master = kv_spawn("master.log", master_arguments);
    ours.client = kv_spawn("client.log", client_arguments);
}

static void *ours_open(void)
{
    return ours.kv;
}

static void ours_close(void *connection)
{
    (void)connection;
}

static void *ours_alloc(uint64_t len_bytes)
{
    void *memory;
    struct shoal_error error;
    bench_check(shoal_kv_alloc(ours.kv, len_bytes, &memory, &error), &error, "shoal_kv_alloc");
    return memory;
}

static void ours_free(void *buffer, uint64_t len_bytes)
{
    (void)len_bytes;
    shoal_kv_free(ours.kv, buffer);
}

static void ours_put(void *connection, uint64_t number, const void *buffer, uint64_t len_bytes)
{
    char key[40];
    struct shoal_error error;
    snprintf(key, sizeof key, "bench/%llu", (unsigned long long)number);
    bench_check(shoal_kv_put(connection, key, buffer, len_bytes, NULL, NULL, &error), &error, "shoal_kv_put");
}

static void ours_get(void *connection, uint64_t number, void *buffer, uint64_t len_bytes)
{
    char key[40];
    uint64_t len;
    struct shoal_error error;
    snprintf(key, sizeof key, "bench/%llu", (unsigned long long)number);
    bench_check(shoal_kv_get_into(connection, key, buffer, len_bytes, NULL, &len, &error), &error, "shoal_kv_get_into");
    if (len != len_bytes)
        bench_die("shoal: a value of %llu bytes", (unsigned long long)len);
}

static void ours_clear(void)
{
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = OPEN_TIMEOUT_MS};
    struct shoal_error error;
    bench_check(shoal_kv_remove_all(ours.kv, &call, NULL, &error), &error, "shoal_kv_remove_all");
}

static const struct kv_system ours_system = {
    .name = "shoal",
    .open = ours_open,
    .close = ours_close,
    .alloc = ours_alloc,
    .free = ours_free,
    .put = ours_put,
    .get = ours_get,
    .clear = ours_clear,
};

/* Waits until the owner has registered: there is a client to put to. */
static void start_ours(void)
{
    double end_s = bench_now_s() + OPEN_TIMEOUT_MS / 1e3;
    struct shoal_error error;
    start_programs();
    ours.kv = open_kv(NULL, threads_many * 2 * LARGE_BYTES);
    while (shoal_kv_put(ours.kv, "ready", "", 0, NULL, NULL, &error) != SHOAL_OK) {
        check_is_running(ours.master, "master.log");
        check_is_running(ours.client, "client.log");
        if (bench_now_s() > end_s) {
            print_log("client.log");
            bench_die("the owner did not appear: %s", error.message);
        }
        usleep(20000);
    }
    ours_clear();
}

static void stop_ours(void)
{
    shoal_kv_close(ours.kv);
    kill(ours.client, SIGTERM);
    waitpid(ours.client, NULL, 0);
    kill(ours.master, SIGTERM);
    waitpid(ours.master, NULL, 0);
}

/* --- local values --- */

/* In turns, over equally many bytes: p50 of a get of an own value / p50 of a memcpy. */
static double measure_local(double *get_us_out, double *copy_us_out)
{
    uint64_t count = budget_bytes / LOCAL_BYTES;
    char tiers[128], key[40];
    struct shoal_error error;
    size_t rounds = (size_t)runs * 200, each = count < 4 ? 4 : count;
    uint8_t *source = bench_alloc(each * LOCAL_BYTES), *buffer;
    double *gets = calloc(rounds, sizeof *gets), *copies = calloc(rounds, sizeof *copies), ratio;
    void *memory;
    snprintf(tiers, sizeof tiers, "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":%llu}]}",
             (unsigned long long)(2 * each * LOCAL_BYTES));
    struct shoal_kv *kv = open_kv(tiers, 2 * LOCAL_BYTES);
    struct shoal_kv_put_options here = {.struct_size = sizeof here, .prefer = shoal_kv_address(kv)};
    bench_check(shoal_kv_alloc(kv, LOCAL_BYTES, &memory, &error), &error, "shoal_kv_alloc");
    buffer = memory;
    if (!gets || !copies)
        bench_die("out of memory");
    bench_fill(source, each * LOCAL_BYTES, 7);
    for (uint64_t i = 0; i < each; i++) {
        snprintf(key, sizeof key, "local/%llu", (unsigned long long)i);
        bench_check(shoal_kv_put(kv, key, source + i * LOCAL_BYTES, LOCAL_BYTES, &here, NULL, &error), &error,
                    "shoal_kv_put");
    }
    for (size_t i = 0; i < rounds; i++) {
        /* Far from what was used last: neither side finds its source in a cache that the other did not have. */
        uint64_t at = (i * 37) % each, len;
        double from_s = bench_now_s();
        memcpy(buffer, source + at * LOCAL_BYTES, LOCAL_BYTES);
        copies[i] = (bench_now_s() - from_s) * 1e6;
        snprintf(key, sizeof key, "local/%llu", (unsigned long long)at);
        from_s = bench_now_s();
        bench_check(shoal_kv_get_into(kv, key, buffer, LOCAL_BYTES, NULL, &len, &error), &error, "shoal_kv_get_into");
        gets[i] = (bench_now_s() - from_s) * 1e6;
        if (memcmp(buffer, source + at * LOCAL_BYTES, LOCAL_BYTES) != 0)
            bench_die("local get: other bytes");
    }
    *get_us_out = bench_median(gets, rounds);
    *copy_us_out = bench_median(copies, rounds);
    ratio = *get_us_out / *copy_us_out;
    shoal_kv_free(kv, memory);
    shoal_kv_close(kv);
    bench_free(source, each * LOCAL_BYTES);
    free(gets);
    free(copies);
    return ratio;
}

/* --- the table --- */

enum { RAW, REDIS, OURS, SYSTEMS };

struct medians {
    double ops, p50_us, p99_us, gbps;
};

static struct medians medians_of(const struct kv_result *results, const struct kv_cell *cell)
{
    double ops[RUNS_MAX], p50[RUNS_MAX], p99[RUNS_MAX];
    for (unsigned i = 0; i < runs; i++) {
        ops[i] = (double)results[i].ops / results[i].seconds;
        p50[i] = results[i].p50_us;
        p99[i] = results[i].p99_us;
    }
    struct medians medians = {bench_median(ops, runs), bench_median(p50, runs), bench_median(p99, runs), 0};
    medians.gbps = medians.ops * (double)cell->len_bytes / 1e9;
    return medians;
}

static const char *size_name(uint64_t bytes, char text[32])
{
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0)
        snprintf(text, 32, "%llu MiB", (unsigned long long)bytes >> 20);
    else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0)
        snprintf(text, 32, "%llu KiB", (unsigned long long)bytes >> 10);
    else
        snprintf(text, 32, "%llu B", (unsigned long long)bytes);
    return text;
}

/* Ratios of the whole run; 0: not measured. */
static struct {
    double to_redis, p50_to_redis, echo_4k_p50, raw_16m, local_1m;
} summary;

static void keep_smallest(double *at, double value)
{
    if (*at == 0 || value < *at)
        *at = value;
}

static void measure_cell(const struct kv_system *const systems[SYSTEMS], const struct kv_cell *cell)
{
    static struct kv_result results[SYSTEMS][RUNS_MAX];
    struct kv_limits limits = {.seconds = cell_ms / 1e3, .budget_bytes = budget_bytes};
    struct medians medians[SYSTEMS] = {{0}};
    char size[32];
    for (unsigned run = 0; run < runs; run++)
        for (int i = 0; i < SYSTEMS; i++)
            if (systems[i])
                results[i][run] = kv_measure(systems[i], cell, &limits);
    for (int i = 0; i < SYSTEMS; i++) {
        if (!systems[i])
            continue;
        medians[i] = medians_of(results[i], cell);
        printf("%s  %8s x%-3u %-6s %10.0f %10.1f %10.1f %8.3f", cell->op == KV_GET ? "get" : "put",
               size_name(cell->len_bytes, size), cell->threads, systems[i]->name, medians[i].ops, medians[i].p50_us,
               medians[i].p99_us, medians[i].gbps);
        if (i == OURS && systems[REDIS])
            printf("   %5.2f of Redis, %5.2f of raw", medians[i].ops / medians[REDIS].ops,
                   medians[i].ops / medians[RAW].ops);
        printf("\n");
    }
    fflush(stdout);
    if (systems[OURS] && systems[REDIS]) {
        keep_smallest(&summary.to_redis, medians[OURS].ops / medians[REDIS].ops);
        keep_smallest(&summary.p50_to_redis, medians[REDIS].p50_us / medians[OURS].p50_us);
    }
    if (systems[OURS] && cell->len_bytes == ECHO_BYTES && cell->op == KV_GET && cell->threads == 1)
        summary.echo_4k_p50 = medians[OURS].p50_us / medians[RAW].p50_us;
    if (systems[OURS] && cell->len_bytes == LARGE_BYTES)
        keep_smallest(&summary.raw_16m, medians[OURS].gbps / medians[RAW].gbps);
}

static void parse_sizes(void)
{
    for (const char *at = sizes_text; *at;) {
        char *end;
        unsigned long long value = strtoull(at, &end, 10);
        unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 0;
        end += shift != 0;
        if (end == at || (*end && *end != ',') || size_count == SIZES_MAX || value << shift == 0 ||
            value << shift > (uint64_t)64 << 20) {
            fprintf(stderr, "bench kv: --sizes: '%s': up to %d numbers as 64,4K,1M, at most 64M\n", sizes_text,
                    SIZES_MAX);
            exit(2);
        }
        sizes[size_count++] = value << shift;
        at = *end ? end + 1 : end;
    }
}

static const char *json_ratio(double ratio, char text[32])
{
    if (ratio == 0)
        return "null";
    snprintf(text, 32, "%.3f", ratio);
    return text;
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"sizes", BENCH_TEXT, &sizes_text, 0, 0, "of values (default 64,4K,64K,1M,16M)"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "of each cell and system, in turns"},
        {"ms", BENCH_COUNT, &cell_ms, 10, 60000, "of measured work for each"},
        {"threads", BENCH_COUNT, &threads_many, 1, KV_THREADS_MAX, "of the cells with many outstanding"},
        {"budget", BENCH_SIZE, &budget_bytes, (uint64_t)64 << 20, (uint64_t)64 << 30,
         "values that are there at a time"},
        {"op", BENCH_TEXT, &only, 0, 0, "get or put alone"},
        {"cc", BENCH_TEXT, &congestion_control, 0, 0, "congestion control of all sockets (default reno)"},
        {"no-redis", BENCH_FLAG, &without_redis, 0, 0, "without Redis"},
        {"redis-socket", BENCH_FLAG, &is_redis_over_socket, 0, 0, "Redis over its Unix socket, not loopback"},
        {0},
    };
    char a[32], b[32], c[32], d[32], e[32], script[128];
    double get_us, copy_us;
    bool is_apart;

    bench_options(
        argc, argv, "kv",
        "Gets and puts of a peer's values over loopback: Shoal's KV store, Redis and plain sockets, in turns.\n"
        "Ratios are of operations per second; echo_4k_p50_ratio is the p50 of a 4 KiB get / that of the raw one.",
        options);
    parse_sizes();
    if (only && strcmp(only, "get") != 0 && strcmp(only, "put") != 0) {
        fprintf(stderr, "bench kv: --op is get or put\n");
        return 2;
    }
    if (strlen(congestion_control) > 15 ||
        strspn(congestion_control, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(congestion_control)) {
        fprintf(stderr, "bench kv: --cc: '%s' is none\n", congestion_control);
        return 2;
    }
    /* Each thread of the largest cell has two values, whatever the budget. */
    for (size_t i = 0; i < size_count; i++)
        if (budget_bytes < 2 * threads_many * sizes[i])
            budget_bytes = 2 * threads_many * sizes[i];
    bench_require_memory(5 * budget_bytes);
    signal(SIGPIPE, SIG_IGN);
    snprintf(script, sizeof script, "echo %s > /proc/sys/net/ipv4/tcp_congestion_control", congestion_control);
    is_apart = geteuid() == 0 && netns_enter_new(script);
    (void)bench_temp_dir();
    const struct kv_system *systems[SYSTEMS];
    systems[RAW] = kv_raw_start(budget_bytes, congestion_control);
    systems[REDIS] = without_redis ? NULL : kv_redis_start(is_redis_over_socket);
    start_ours();
    systems[OURS] = &ours_system;
    printf("kv: %u runs of %u ms each, in turns; congestion control %s%s\n", runs, cell_ms, congestion_control,
           is_apart ? "" : " for raw sockets, the system's for Redis (not root)");
    printf("%3s  %8s %-4s %-6s %10s %10s %10s %8s\n", "op", "size", "at", "system", "ops/s", "p50 us", "p99 us",
           "GB/s");
    for (int op = KV_GET; op <= KV_PUT; op++) {
        if (only && strcmp(only, op == KV_GET ? "get" : "put") != 0)
            continue;
        for (size_t i = 0; i < size_count; i++) {
            for (int many = 0; many < 2; many++) {
                struct kv_cell cell = {(enum kv_op)op, sizes[i], many ? threads_many : 1};
                measure_cell(systems, &cell);
            }
        }
    }
    kv_redis_stop();
    summary.local_1m = measure_local(&get_us, &copy_us);
    printf("local get of 1 MiB: p50 %.1f us, memcpy %.1f us\n", get_us, copy_us);
    stop_ours();
    printf("{\"bench\":\"kv\",\"min_ratio_to_redis\":%s,\"min_p50_ratio_to_redis\":%s,\"echo_4k_p50_ratio\":%s,"
           "\"raw_16m_ratio\":%s,\"local_1m_ratio\":%s,\"runs\":%u,\"cc\":\"%s\"}\n",
           json_ratio(summary.to_redis, a), json_ratio(summary.p50_to_redis, b), json_ratio(summary.echo_4k_p50, c),
           json_ratio(summary.raw_16m, d), json_ratio(summary.local_1m, e), runs, congestion_control);
    return 0;
}
