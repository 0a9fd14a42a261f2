/* SPDX-License-Identifier: Apache-2.0 */
/* One source, one receiver, two processes, loopback: get_replica against a raw socket loop over the same memory, in
 * turns.
 *
 * The parent only directs. Both processes hold their memory, touched, for all runs: the raw loop and Shoal move the
 * same bytes between the same pages. The receiver clears its memory before each run and checks all of it after the
 * clock has stopped. Shoal's time runs from the call of get_replica (metadata lookups, connecting, verification
 * included) to its return; the raw loop's from its request for the data to its last byte. */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/store.h>

#include "base/digest.h"
#include "lib/bench.h"

#define RUNS_MAX 100

static uint64_t size_bytes = (uint64_t)2 << 30;
static unsigned runs = 5;
static const char *congestion_control;
static const char *metadata_uri;
static const char *protocol = "tcp";
static bool is_unverified;

enum command { CMD_RAW = 1, CMD_SHOAL, CMD_CPU, CMD_QUIT };
struct order {
    enum command command;
    uint16_t port;
};
struct report {
    double seconds, cpu_s;
    uint16_t port;
    struct digest content; /* of everything in memory */
};

/* --- both sides --- */

static struct shoal_store *open_store(void)
{
    struct shoal_store_config config = {
        .struct_size = sizeof config,
        .metadata_uri = metadata_uri,
        .server_name = "127.0.0.1:0",
        .protocol = protocol,
    };
    struct shoal_store *store;
    struct shoal_error error;
    bench_check(shoal_store_create(&config, NULL, &store, &error), &error, "create");
    return store;
}

/* --- source --- */

static void raw_send(int listener, const uint8_t *memory, struct report *report)
{
    double cpu_s;
    char request;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        bench_die("accept: %s", strerror(errno));
    bench_receive(fd, &request, 1);
    cpu_s = bench_cpu_s();
    bench_raw_send(fd, memory, size_bytes);
    /* The receiver's close says that it has everything. */
    if (recv(fd, &request, 1, 0) != 0)
        bench_die("raw receiver did not close");
    report->cpu_s = bench_cpu_s() - cpu_s;
    close(fd);
}

static _Noreturn void run_source(int control)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_len = sizeof addr;
    struct shoal_region region = {bench_alloc(size_bytes), size_bytes};
    struct shoal_store *store;
    struct shoal_error error;
    struct report report = {0};
    int listener = bench_tcp_socket(congestion_control);

    bench_fill(region.addr, size_bytes, 1);
    report.content = bench_digest(region.addr, size_bytes);
    if (bind(listener, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(listener, 4) != 0 ||
        getsockname(listener, (struct sockaddr *)&addr, &addr_len) != 0)
        bench_die("listen: %s", strerror(errno));
    store = open_store();
    bench_check(shoal_store_register(store, "pair", &region, 1, NULL, NULL, &error), &error, "register");
    report.port = ntohs(addr.sin_port);
    bench_send(control, &report, sizeof report);
    for (;;) {
        struct order order;
        bench_receive(control, &order, sizeof order);
        memset(&report, 0, sizeof report);
        switch (order.command) {
        case CMD_RAW:
            raw_send(listener, region.addr, &report);
            break;
        case CMD_CPU:
            report.cpu_s = bench_cpu_s();
            break;
        case CMD_SHOAL:
            break;
        case CMD_QUIT:
            shoal_store_close(store, NULL);
            exit(0);
        }
        bench_send(control, &report, sizeof report);
    }
}

/* --- receiver --- */

static void raw_receive(uint16_t port, uint8_t *memory, struct report *report)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    double cpu_s = bench_cpu_s(), start_s;
    int fd = bench_tcp_socket(congestion_control);

    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0)
        bench_die("connect: %s", strerror(errno));
    start_s = bench_now_s();
    bench_send(fd, "g", 1);
    bench_raw_receive(fd, memory, size_bytes);
    report->seconds = bench_now_s() - start_s;
    report->cpu_s = bench_cpu_s() - cpu_s;
    close(fd);
}

static void shoal_receive(struct shoal_store *store, const struct shoal_region *region, struct report *report)
{
    struct shoal_get_options options = {.struct_size = sizeof options, .no_verify = is_unverified};
    struct shoal_error error;
    double cpu_s = bench_cpu_s(), start_s = bench_now_s();

    bench_check(shoal_store_get_replica(store, "pair", region, 1, &options, NULL, &error), &error, "get_replica");
    report->seconds = bench_now_s() - start_s;
    report->cpu_s = bench_cpu_s() - cpu_s;
    bench_check(shoal_store_delete_replica(store, "pair", NULL, &error), &error, "delete_replica");
}

static _Noreturn void run_receiver(int control)
{
    struct shoal_region region = {bench_alloc(size_bytes), size_bytes};
    struct shoal_store *store = open_store();
    struct report report = {0};

    bench_send(control, &report, sizeof report);
    for (;;) {
        struct order order;
        bench_receive(control, &order, sizeof order);
        memset(&report, 0, sizeof report);
        switch (order.command) {
        case CMD_RAW:
            raw_receive(order.port, region.addr, &report);
            break;
        case CMD_SHOAL:
            shoal_receive(store, &region, &report);
            break;
        case CMD_CPU:
            break;
        case CMD_QUIT:
            shoal_store_close(store, NULL);
            exit(0);
        }
        report.content = bench_digest(region.addr, size_bytes);
        memset(region.addr, 0x5a, size_bytes);
        bench_send(control, &report, sizeof report);
    }
}

/* --- director --- */

static void give_order(const struct bench_side *side, enum command command, uint16_t port)
{
    struct order order = {command, port};
    bench_send(side->control, &order, sizeof order);
}

static struct report take_report(const struct bench_side *side)
{
    struct report report;
    bench_receive(side->control, &report, sizeof report);
    return report;
}

static double source_cpu(const struct bench_side *source)
{
    give_order(source, CMD_CPU, 0);
    return take_report(source).cpu_s;
}

struct result {
    double rate[RUNS_MAX]; /* bytes per second */
    double cpu[RUNS_MAX];  /* CPU seconds of both processes per GB */
};

static void note(struct result *result, unsigned run, const char *what, const struct report *receiver,
                 double source_cpu_s, const struct digest *want)
{
    double gigabytes = (double)size_bytes / 1e9;
    if (!digest_is_equal(&receiver->content, want))
        bench_die("run %u, %s: wrong bytes were received", run + 1, what);
    result->rate[run] = (double)size_bytes / receiver->seconds;
    result->cpu[run] = (receiver->cpu_s + source_cpu_s) / gigabytes;
    printf("%4u  %-6s %8.3f s %8.2f GB/s %8.2f CPU s/GB\n", run + 1, what, receiver->seconds, result->rate[run] / 1e9,
           result->cpu[run]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char default_uri[512];
    static struct result raw, ours;
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, 1, (uint64_t)1 << 40, "payload"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {"cc", BENCH_TEXT, &congestion_control, 0, 0, "congestion control of the raw sockets (reno, cubic, bbr)"},
        {"metadata", BENCH_TEXT, &metadata_uri, 0, 0, "metadata service (default: sqlite in a temporary folder)"},
        {"protocol", BENCH_TEXT, &protocol, 0, 0, "of Shoal's nodes: tcp (default), auto, ucx"},
        {"no-verify", BENCH_FLAG, &is_unverified, 0, 0, "get_replica without digests, to see what they cost"},
        {0},
    };
    struct bench_side source, receiver;
    struct report ready, report;
    double raw_rate, our_rate, raw_cpu, our_cpu;

    bench_options(
        argc, argv, "pair",
        "One source, one receiver, two processes, loopback, TCP: shoal_store_get_replica against a raw socket\n"
        "loop over the same memory, in turns. ratio = Shoal's median throughput / the raw one.",
        options);
    bench_require_memory(2 * size_bytes);
    if (!metadata_uri) {
        snprintf(default_uri, sizeof default_uri, "sqlite:%s/meta.db", bench_temp_dir());
        metadata_uri = default_uri;
    }
    signal(SIGPIPE, SIG_IGN);
    source = bench_side_start(run_source, NULL, 0);
    receiver = bench_side_start(run_receiver, &source, 1);
    ready = take_report(&source);
    (void)take_report(&receiver);
    printf("pair: %llu bytes, %u runs, raw sockets: %s, metadata: %.6s, verification %s\n",
           (unsigned long long)size_bytes, runs, congestion_control ? congestion_control : "system default",
           metadata_uri, is_unverified ? "OFF" : "on");
    for (unsigned run = 0; run < runs; run++) {
        double before;
        give_order(&source, CMD_RAW, 0);
        give_order(&receiver, CMD_RAW, ready.port);
        report = take_report(&source);
        before = report.cpu_s;
        report = take_report(&receiver);
        note(&raw, run, "raw", &report, before, &ready.content);

        before = source_cpu(&source);
        give_order(&receiver, CMD_SHOAL, 0);
        report = take_report(&receiver);
        note(&ours, run, "shoal", &report, source_cpu(&source) - before, &ready.content);
    }
    give_order(&receiver, CMD_QUIT, 0);
    waitpid(receiver.pid, NULL, 0);
    give_order(&source, CMD_QUIT, 0);
    waitpid(source.pid, NULL, 0);

    raw_rate = bench_median(raw.rate, runs);
    our_rate = bench_median(ours.rate, runs);
    raw_cpu = bench_median(raw.cpu, runs);
    our_cpu = bench_median(ours.cpu, runs);
    printf("median  raw   %8.2f GB/s %8.2f CPU s/GB\n", raw_rate / 1e9, raw_cpu);
    printf("median  shoal %8.2f GB/s %8.2f CPU s/GB\n", our_rate / 1e9, our_cpu);
    printf("{\"bench\":\"pair\",\"ratio\":%.3f,\"shoal_gbps\":%.3f,\"raw_gbps\":%.3f,\"shoal_cpu_s_per_gb\":%.3f,"
           "\"raw_cpu_s_per_gb\":%.3f,\"size_bytes\":%llu,\"runs\":%u,\"cc\":\"%s\",\"verified\":%s}\n",
           our_rate / raw_rate, our_rate / 1e9, raw_rate / 1e9, our_cpu, raw_cpu, (unsigned long long)size_bytes, runs,
           congestion_control ? congestion_control : "default", is_unverified ? "false" : "true");
    return 0;
}
