/* SPDX-License-Identifier: Apache-2.0 */
/* One source and N receivers, a process each, loopback: get_replica by all at once against N raw socket loops over the
 * same memory, in turns.
 *
 * The parent only directs. All processes hold their memory, touched, for all runs. A turn's time runs from the parent's
 * word to all receivers until the last of them has all bytes: for Shoal the return of get_replica (metadata lookups,
 * connecting, verification included), for the raw loops the last byte. Receivers stay sources until all are done, then
 * check all of their memory and clear it; that is not measured. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/store.h>

#include "lib/bench.h"

#define RUNS_MAX 100
#define RECEIVERS_MAX 64

static uint64_t size_bytes = (uint64_t)2 << 30;
static unsigned receiver_count = 2;
static unsigned runs = 3;
static const char *congestion_control;
static const char *metadata_uri;
static const char *protocol = "tcp";
static bool is_unverified;

/* CHECK follows a RAW or SHOAL of the receivers and ends it. */
enum command { CMD_RAW = 1, CMD_SHOAL, CMD_CHECK, CMD_QUIT };
struct order {
    enum command command;
    uint16_t port;
};
struct report {
    double end_s; /* bench_now_s(), the same clock in all processes */
    double cpu_s; /* since the order */
    uint64_t gold_bytes;
    uint16_t port;
    struct digest content; /* of everything in memory */
};

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

struct raw_stream {
    pthread_t thread;
    int listener;
    const uint8_t *memory;
};

static void *raw_send(void *arg)
{
    const struct raw_stream *stream = arg;
    int fd = accept4(stream->listener, NULL, NULL, SOCK_CLOEXEC);
    char end;

    if (fd < 0)
        bench_die("accept: %s", strerror(errno));
    bench_raw_send(fd, stream->memory, size_bytes);
    /* The receiver's close says that it has everything. */
    if (recv(fd, &end, 1, 0) != 0)
        bench_die("raw receiver did not close");
    close(fd);
    return NULL;
}

static void raw_send_all(int listener, const uint8_t *memory)
{
    static struct raw_stream streams[RECEIVERS_MAX];

    for (unsigned i = 0; i < receiver_count; i++) {
        streams[i] = (struct raw_stream){.listener = listener, .memory = memory};
        if (pthread_create(&streams[i].thread, NULL, raw_send, &streams[i]) != 0)
            bench_die("cannot start a thread");
    }
    for (unsigned i = 0; i < receiver_count; i++)
        pthread_join(streams[i].thread, NULL);
}

static void run_source(int control)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_len = sizeof addr;
    struct shoal_region region = {bench_alloc(size_bytes), size_bytes};
    struct shoal_store *store;
    struct shoal_error error;
    struct report report = {0};
    int listener = bench_tcp_socket(congestion_control);
    double cpu_s;

    bench_fill(region.addr, size_bytes, 1);
    report.content = bench_digest(region.addr, size_bytes);
    if (bind(listener, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(listener, RECEIVERS_MAX) != 0 ||
        getsockname(listener, (struct sockaddr *)&addr, &addr_len) != 0)
        bench_die("listen: %s", strerror(errno));
    store = open_store();
    bench_check(shoal_store_register(store, "fanout", &region, 1, NULL, NULL, &error), &error, "register");
    report.port = ntohs(addr.sin_port);
    bench_send(control, &report, sizeof report);
    cpu_s = bench_cpu_s();
    for (;;) {
        struct order order;
        bench_receive(control, &order, sizeof order);
        switch (order.command) {
        case CMD_RAW:
            cpu_s = bench_cpu_s();
            raw_send_all(listener, region.addr);
            continue;
        case CMD_SHOAL:
            cpu_s = bench_cpu_s();
            continue;
        case CMD_CHECK:
            report = (struct report){.cpu_s = bench_cpu_s() - cpu_s};
            bench_send(control, &report, sizeof report);
            continue;
        case CMD_QUIT:
            shoal_store_close(store, NULL);
            return;
        }
    }
}

/* --- receiver --- */

static void raw_receive(uint16_t port, uint8_t *memory)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = bench_tcp_socket(congestion_control);

    if (connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0)
        bench_die("connect: %s", strerror(errno));
    bench_raw_receive(fd, memory, size_bytes);
    close(fd);
}

static void note_gold(void *arg, const struct shoal_progress *now)
{
    struct report *report = arg;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < now->source_count; i++)
        if (now->sources[i].is_gold)
            bytes += now->sources[i].bytes;
    if (bytes > report->gold_bytes)
        report->gold_bytes = bytes;
}

static void shoal_receive(struct shoal_store *store, const struct shoal_region *region, struct report *report)
{
    struct shoal_get_options options = {
        .struct_size = sizeof options, .no_verify = is_unverified, .progress = note_gold, .progress_arg = report};
    struct shoal_error error;
    bench_check(shoal_store_get_replica(store, "fanout", region, 1, &options, NULL, &error), &error, "get_replica");
}

static void run_receiver(int control)
{
    struct shoal_region region = {bench_alloc(size_bytes), size_bytes};
    struct shoal_store *store = open_store();
    struct shoal_error error;
    struct report report = {0};
    bool is_replica = false;
    double cpu_s = 0;

    bench_send(control, &report, sizeof report);
    for (;;) {
        struct order order;
        bench_receive(control, &order, sizeof order);
        report = (struct report){0};
        switch (order.command) {
        case CMD_RAW:
            cpu_s = bench_cpu_s();
            raw_receive(order.port, region.addr);
            break;
        case CMD_SHOAL:
            cpu_s = bench_cpu_s();
            shoal_receive(store, &region, &report);
            is_replica = true;
            break;
        case CMD_CHECK:
            report.cpu_s = bench_cpu_s() - cpu_s;
            if (is_replica)
                bench_check(shoal_store_delete_replica(store, "fanout", NULL, &error), &error, "delete_replica");
            is_replica = false;
            report.content = bench_digest(region.addr, size_bytes);
            memset(region.addr, 0x5a, size_bytes);
            break;
        case CMD_QUIT:
            shoal_store_close(store, NULL);
            return;
        }
        report.end_s = bench_now_s();
        bench_send(control, &report, sizeof report);
    }
}

/* --- director --- */

struct cluster {
    struct bench_side source;
    struct bench_side receivers[RECEIVERS_MAX];
    uint16_t raw_port;
    struct digest content;
};

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

static void start_cluster(struct cluster *cluster)
{
    struct bench_side sides[1 + RECEIVERS_MAX];
    struct report ready;

    sides[0] = bench_side_start(run_source, NULL, 0);
    for (unsigned i = 0; i < receiver_count; i++)
        sides[1 + i] = bench_side_start(run_receiver, sides, 1 + i);
    cluster->source = sides[0];
    memcpy(cluster->receivers, sides + 1, receiver_count * sizeof *sides);
    ready = take_report(&cluster->source);
    cluster->raw_port = ready.port;
    cluster->content = ready.content;
    for (unsigned i = 0; i < receiver_count; i++)
        (void)take_report(&cluster->receivers[i]);
}

static void end_cluster(const struct cluster *cluster)
{
    for (unsigned i = 0; i < receiver_count; i++)
        give_order(&cluster->receivers[i], CMD_QUIT, 0);
    for (unsigned i = 0; i < receiver_count; i++)
        waitpid(cluster->receivers[i].pid, NULL, 0);
    give_order(&cluster->source, CMD_QUIT, 0);
    waitpid(cluster->source.pid, NULL, 0);
}

struct result {
    double last_s[RUNS_MAX];      /* until the last receiver was done */
    double cpu[RUNS_MAX];         /* CPU seconds of all processes per GB received */
    double gold_copies[RUNS_MAX]; /* bytes that the receivers took from the source / size */
};

static void measure(const struct cluster *cluster, enum command command, unsigned run, struct result *result)
{
    const char *what = command == CMD_RAW ? "raw" : "shoal";
    double start_s, first_s = 0, last_s = 0, cpu_s;
    double received_gb = (double)size_bytes * receiver_count / 1e9;
    uint64_t gold_bytes = command == CMD_RAW ? size_bytes * receiver_count : 0;

    give_order(&cluster->source, command, 0);
    start_s = bench_now_s();
    for (unsigned i = 0; i < receiver_count; i++)
        give_order(&cluster->receivers[i], command, cluster->raw_port);
    for (unsigned i = 0; i < receiver_count; i++) {
        struct report report = take_report(&cluster->receivers[i]);
        double seconds = report.end_s - start_s;
        first_s = i == 0 || seconds < first_s ? seconds : first_s;
        last_s = seconds > last_s ? seconds : last_s;
        gold_bytes += report.gold_bytes;
    }
    give_order(&cluster->source, CMD_CHECK, 0);
    cpu_s = take_report(&cluster->source).cpu_s;
    for (unsigned i = 0; i < receiver_count; i++)
        give_order(&cluster->receivers[i], CMD_CHECK, 0);
    for (unsigned i = 0; i < receiver_count; i++) {
        struct report report = take_report(&cluster->receivers[i]);
        cpu_s += report.cpu_s;
        if (!digest_is_equal(&report.content, &cluster->content))
            bench_die("run %u, %s: receiver %u got wrong bytes", run + 1, what, i + 1);
    }
    result->last_s[run] = last_s;
    result->cpu[run] = cpu_s / received_gb;
    result->gold_copies[run] = (double)gold_bytes / (double)size_bytes;
    printf("%4u  %-6s first %8.3f s  last %8.3f s %8.2f GB/s in all %7.2f CPU s/GB  source sent %.2f copies\n", run + 1,
           what, first_s, last_s, received_gb / last_s, result->cpu[run], result->gold_copies[run]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char default_uri[512];
    static struct result raw, ours;
    static struct cluster cluster;
    const struct bench_option options[] = {
        {"receivers", BENCH_COUNT, &receiver_count, 1, RECEIVERS_MAX, "receivers"},
        {"size", BENCH_SIZE, &size_bytes, 1, (uint64_t)1 << 40, "payload"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {"cc", BENCH_TEXT, &congestion_control, 0, 0, "congestion control of the raw sockets (reno, cubic, bbr)"},
        {"metadata", BENCH_TEXT, &metadata_uri, 0, 0, "metadata service (default: sqlite in a temporary folder)"},
        {"protocol", BENCH_TEXT, &protocol, 0, 0, "of Shoal's nodes: tcp (default), auto, ucx"},
        {"no-verify", BENCH_FLAG, &is_unverified, 0, 0, "get_replica without digests, to see what they cost"},
        {0},
    };
    double raw_s, our_s, raw_cpu, our_cpu, copies, received_gb;

    bench_options(argc, argv, "fanout",
                  "One source and N receivers, a process each, loopback, TCP: shoal_store_get_replica by all at once\n"
                  "against N raw socket loops from one source, in turns. ratio = the raw loops' median time until the\n"
                  "last receiver is done / Shoal's.",
                  options);
    bench_require_memory((1 + (uint64_t)receiver_count) * size_bytes);
    if (!metadata_uri) {
        snprintf(default_uri, sizeof default_uri, "sqlite:%s/meta.db", bench_temp_dir());
        metadata_uri = default_uri;
    }
    signal(SIGPIPE, SIG_IGN);
    start_cluster(&cluster);
    printf("fanout: %u receivers, %llu bytes, %u runs, raw sockets: %s, metadata: %.6s, verification %s, %u CPUs\n",
           receiver_count, (unsigned long long)size_bytes, runs,
           congestion_control ? congestion_control : "system default", metadata_uri, is_unverified ? "OFF" : "on",
           bench_cpu_count());
    for (unsigned run = 0; run < runs; run++) {
        measure(&cluster, CMD_RAW, run, &raw);
        measure(&cluster, CMD_SHOAL, run, &ours);
    }
    end_cluster(&cluster);

    received_gb = (double)size_bytes * receiver_count / 1e9;
    raw_s = bench_median(raw.last_s, runs);
    our_s = bench_median(ours.last_s, runs);
    raw_cpu = bench_median(raw.cpu, runs);
    our_cpu = bench_median(ours.cpu, runs);
    copies = bench_median(ours.gold_copies, runs);
    printf("median  raw   %8.3f s %8.2f GB/s in all %8.2f CPU s/GB\n", raw_s, received_gb / raw_s, raw_cpu);
    printf("median  shoal %8.3f s %8.2f GB/s in all %8.2f CPU s/GB, source sent %.2f copies\n", our_s,
           received_gb / our_s, our_cpu, copies);
    printf("{\"bench\":\"fanout\",\"n\":%u,\"ratio\":%.3f,\"shoal_s\":%.4f,\"raw_s\":%.4f,\"shoal_cpu_s_per_gb\":%.3f,"
           "\"raw_cpu_s_per_gb\":%.3f,\"gold_copies\":%.3f,\"size_bytes\":%llu,\"runs\":%u,\"cc\":\"%s\","
           "\"verified\":%s}\n",
           receiver_count, raw_s / our_s, our_s, raw_s, our_cpu, raw_cpu, copies, (unsigned long long)size_bytes, runs,
           congestion_control ? congestion_control : "default", is_unverified ? "false" : "true");
    return 0;
}
