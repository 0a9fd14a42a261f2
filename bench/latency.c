/* SPDX-License-Identifier: Apache-2.0 */
/* Small READs and WRITEs, two processes, loopback: the engine against a blocking ping-pong over a plain socket, in
 * turns.
 *
 * The raw loop sends a request as long as a frame's header and receives the answer into the same memory that the READ
 * fills; for a WRITE it sends header and bytes and receives a header. A shoal request is a batch of its own, from its
 * creation to its end. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/engine.h>

#include "lib/bench.h"
#include "wire/data.h"

#define ROUNDS_MAX 100
#define THREADS_MAX 64
#define WARM_UP 200

static uint64_t size_bytes = 4096;
static unsigned rounds = 7, count = 4000, threads = 1;
static const char *congestion_control = "reno", *protocol = "tcp";
static bool is_write;

/* What the source tells: where its memory lies, and where the raw loop listens. */
struct place {
    char name[128];
    uint64_t addr;
    uint16_t port;
};

static struct shoal_engine *open_engine(void)
{
    static char uri[512];
    struct shoal_engine_config config = {
        .struct_size = sizeof config, .metadata_uri = uri, .server_name = "127.0.0.1:0", .protocol = protocol};
    struct shoal_engine *engine;
    struct shoal_error error;

    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", bench_temp_dir());
    bench_check(shoal_engine_create(&config, NULL, &engine, &error), &error, "create");
    return engine;
}

static int raw_socket(void)
{
    int fd = bench_tcp_socket(congestion_control), one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* false: the other side closed. */
static bool receive_all(int fd, void *first, size_t first_len, void *second, size_t second_len)
{
    struct iovec parts[2] = {{first, first_len}, {second, second_len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = second_len ? 2 : 1};
    ssize_t got = recvmsg(fd, &message, MSG_WAITALL);

    if (got > 0 && (size_t)got != first_len + second_len)
        bench_die("raw recv: %zd of %zu bytes", got, first_len + second_len);
    return got > 0;
}

static void send_all(int fd, void *first, size_t first_len, void *second, size_t second_len)
{
    struct iovec parts[2] = {{first, first_len}, {second, second_len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = second_len ? 2 : 1};

    if (sendmsg(fd, &message, MSG_NOSIGNAL) != (ssize_t)(first_len + second_len))
        bench_die("raw send: %s", strerror(errno));
}

/* --- source --- */

struct raw_server {
    int fd;
    uint8_t *memory;
};

static void *raw_serve(void *arg)
{
    struct raw_server *server = arg;
    uint8_t head[DATA_HEADER_BYTES];
    size_t size = (size_t)size_bytes, in = is_write ? size : 0, out = is_write ? 0 : size;

    while (receive_all(server->fd, head, sizeof head, server->memory, in))
        send_all(server->fd, head, sizeof head, server->memory, out);
    close(server->fd);
    return NULL;
}

static _Noreturn void run_source(int control)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct shoal_engine *engine = open_engine();
    uint8_t *memory = bench_alloc(size_bytes * threads);
    struct raw_server servers[THREADS_MAX];
    pthread_t ids[THREADS_MAX];
    socklen_t addr_len = sizeof addr;
    struct shoal_error error;
    struct place place = {.addr = (uint64_t)(uintptr_t)memory};
    int listener = raw_socket(), one = 1;
    char quit;

    bench_fill(memory, size_bytes * threads, 1);
    bench_check(shoal_engine_register_memory(engine, memory, size_bytes * threads, NULL,
                                             SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
                &error, "register");
    if (bind(listener, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(listener, THREADS_MAX) != 0 ||
        getsockname(listener, (struct sockaddr *)&addr, &addr_len) != 0)
        bench_die("listen: %s", strerror(errno));
    place.port = ntohs(addr.sin_port);
    snprintf(place.name, sizeof place.name, "%s", shoal_engine_server_name(engine));
    bench_send(control, &place, sizeof place);
    for (unsigned i = 0; i < threads; i++) {
        servers[i] = (struct raw_server){accept4(listener, NULL, NULL, SOCK_CLOEXEC), memory + i * size_bytes};
        if (servers[i].fd < 0)
            bench_die("accept: %s", strerror(errno));
        setsockopt(servers[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (pthread_create(&ids[i], NULL, raw_serve, &servers[i]) != 0)
            bench_die("cannot start a thread");
    }
    bench_receive(control, &quit, 1);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    shoal_engine_destroy(engine);
    exit(0);
}

/* --- receiver --- */

struct asker {
    pthread_t id;
    int fd;
    uint8_t *memory;
    uint64_t remote_addr;
    double *latency_us; /* count of them */
    bool is_raw;
};

static struct shoal_engine *engine;
static struct shoal_segment *segment;

static void ask_raw(struct asker *asker)
{
    uint8_t head[DATA_HEADER_BYTES] = {0};
    size_t size = (size_t)size_bytes;

    send_all(asker->fd, head, sizeof head, asker->memory, is_write ? size : 0);
    if (!receive_all(asker->fd, head, sizeof head, asker->memory, is_write ? 0 : size))
        bench_die("the raw source is gone");
}

static void ask_shoal(const struct asker *asker)
{
    struct shoal_request request = {.op = is_write ? SHOAL_OP_WRITE : SHOAL_OP_READ,
                                    .segment = segment,
                                    .local = asker->memory,
                                    .remote_addr = asker->remote_addr,
                                    .len_bytes = size_bytes};
    struct shoal_batch *batch;
    struct shoal_error error;

    bench_check(shoal_batch_create(engine, 1, &batch, &error), &error, "batch");
    bench_check(shoal_batch_submit(batch, &request, 1, &error), &error, "submit");
    bench_check(shoal_batch_wait(batch, 10000, &error), &error, "wait");
    shoal_batch_destroy(batch);
}

static void *ask(void *arg)
{
    struct asker *asker = arg;

    for (unsigned i = 0; i < count + WARM_UP; i++) {
        double start_s = bench_now_s();

        if (asker->is_raw)
            ask_raw(asker);
        else
            ask_shoal(asker);
        if (i >= WARM_UP)
            asker->latency_us[i - WARM_UP] = (bench_now_s() - start_s) * 1e6;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct outcome {
    double p50[ROUNDS_MAX], p99[ROUNDS_MAX], cpu_us[ROUNDS_MAX];
};

static void run_round(struct asker *askers, double *all, bool is_raw, unsigned round, struct outcome *outcome)
{
    size_t total = (size_t)count * threads;
    double cpu_s = bench_cpu_s();

    for (unsigned i = 0; i < threads; i++) {
        askers[i].is_raw = is_raw;
        if (threads > 1 && pthread_create(&askers[i].id, NULL, ask, &askers[i]) != 0)
            bench_die("cannot start a thread");
    }
    if (threads == 1)
        ask(&askers[0]);
    for (unsigned i = 0; i < threads && threads > 1; i++)
        pthread_join(askers[i].id, NULL);
    outcome->cpu_us[round] = (bench_cpu_s() - cpu_s) * 1e6 / (double)((count + WARM_UP) * threads);
    qsort(all, total, sizeof *all, compare);
    outcome->p50[round] = all[total / 2];
    outcome->p99[round] = all[total * 99 / 100];
    printf("%4u  %-6s p50 %8.2f us  p99 %8.2f us  CPU %6.2f us\n", round + 1, is_raw ? "raw" : "shoal",
           outcome->p50[round], outcome->p99[round], outcome->cpu_us[round]);
    fflush(stdout);
}

static void run_receiver(const struct place *place)
{
    static struct outcome raw, ours;
    static struct asker askers[THREADS_MAX];
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(place->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t *memory = bench_alloc(size_bytes * threads);
    double *all = malloc(sizeof *all * count * threads);
    double raw_p50, our_p50;
    struct shoal_error error;

    if (!all)
        bench_die("out of memory");
    engine = open_engine();
    bench_check(
        shoal_engine_register_memory(engine, memory, size_bytes * threads, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
        &error, "register");
    bench_check(shoal_segment_open(engine, place->name, NULL, &segment, &error), &error, "open");
    for (unsigned i = 0; i < threads; i++) {
        askers[i] = (struct asker){.fd = raw_socket(),
                                   .memory = memory + i * size_bytes,
                                   .remote_addr = place->addr + i * size_bytes,
                                   .latency_us = all + (size_t)i * count};
        if (connect(askers[i].fd, (struct sockaddr *)&addr, sizeof addr) != 0)
            bench_die("connect: %s", strerror(errno));
    }
    for (unsigned round = 0; round < rounds; round++) {
        run_round(askers, all, true, round, &raw);
        run_round(askers, all, false, round, &ours);
    }
    for (unsigned i = 0; i < threads; i++)
        close(askers[i].fd);
    shoal_segment_close(segment);
    shoal_engine_destroy(engine);
    raw_p50 = bench_median(raw.p50, rounds);
    our_p50 = bench_median(ours.p50, rounds);
    printf("median  raw   p50 %8.2f us  p99 %8.2f us\n", raw_p50, bench_median(raw.p99, rounds));
    printf("median  shoal p50 %8.2f us  p99 %8.2f us\n", our_p50, bench_median(ours.p99, rounds));
    printf("{\"bench\":\"latency\",\"ratio\":%.3f,\"shoal_p50_us\":%.2f,\"raw_p50_us\":%.2f,\"shoal_p99_us\":%.2f,"
           "\"raw_p99_us\":%.2f,\"shoal_cpu_us\":%.2f,\"raw_cpu_us\":%.2f,\"op\":\"%s\",\"size_bytes\":%llu,"
           "\"threads\":%u,\"cc\":\"%s\",\"protocol\":\"%s\"}\n",
           our_p50 / raw_p50, our_p50, raw_p50, bench_median(ours.p99, rounds), bench_median(raw.p99, rounds),
           bench_median(ours.cpu_us, rounds), bench_median(raw.cpu_us, rounds), is_write ? "write" : "read",
           (unsigned long long)size_bytes, threads, congestion_control, protocol);
    bench_free(memory, size_bytes * threads);
    free(all);
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, 1, 1 << 20, "bytes of each request"},
        {"count", BENCH_COUNT, &count, 1, 10000000, "requests of each thread and round"},
        {"rounds", BENCH_COUNT, &rounds, 1, ROUNDS_MAX, "rounds of each, in turns"},
        {"threads", BENCH_COUNT, &threads, 1, THREADS_MAX, "threads that ask at the same time"},
        {"protocol", BENCH_TEXT, &protocol, 0, 0, "of Shoal's nodes: tcp (default), auto, ucx"},
        {"write", BENCH_FLAG, &is_write, 0, 0, "WRITE instead of READ"},
        {"cc", BENCH_TEXT, &congestion_control, 0, 0,
         "congestion control of the raw sockets (default reno, as shoal chooses on one host)"},
        {0},
    };
    struct bench_side source;
    struct place place;

    bench_options(argc, argv, "latency",
                  "Small READs (or WRITEs) between two processes on loopback, against a blocking ping-pong over\n"
                  "a plain socket, in turns. ratio = Shoal's median latency (p50) / the raw one.",
                  options);
    signal(SIGPIPE, SIG_IGN);
    (void)bench_temp_dir(); /* of this process: the source uses it too */
    source = bench_side_start(run_source, NULL, 0);
    bench_receive(source.control, &place, sizeof place);
    printf("latency: %s of %llu bytes, %u threads, %u requests a round, raw sockets: %s\n", is_write ? "WRITE" : "READ",
           (unsigned long long)size_bytes, threads, count, congestion_control);
    run_receiver(&place);
    bench_send(source.control, "q", 1);
    waitpid(source.pid, NULL, 0);
    return 0;
}
