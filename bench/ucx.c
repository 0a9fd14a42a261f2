/* SPDX-License-Identifier: Apache-2.0 */
/* READ between two processes of this machine over UCX, against ucx_perftest's gets over the same transports of UCX, in
 * turns: first over TCP, then over shared memory. One request at a time on either side.
 *
 * Over shared memory ucx_perftest runs twice: with memory that UCX allocates in shared memory, which the other process
 * maps and copies from by itself, and with ordinary memory, which is what Shoal's callers have. */
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/engine.h>

#include "base/digest.h"
#include "engine/engine.h"
#include "lib/bench.h"

#define RUNS_MAX 100
#define PERFTEST_TRIES 200 /* 50 ms apart: until the other side listens */

static uint64_t size_bytes = (uint64_t)64 << 20;
static unsigned runs = 5, reads = 20;
static char uri[512];

#define ORDINARY_MEMORY "thp,mmap,heap" /* UCX_ALLOC_PRIO */

static const struct way {
    const char *name, *tls;
    bool has_mapped; /* UCX maps memory that it allocated itself */
} ways[] = {{"tcp", "tcp", false}, {"shm", "posix,cma", true}};
#define WAY_COUNT (sizeof ways / sizeof ways[0])
static const struct way *way; /* of this process */

struct greeting {
    char name[64];
    uint64_t addr;
    struct digest content;
};

static struct shoal_engine *open_engine(void)
{
    struct shoal_engine_config config = {
        .struct_size = sizeof config, .metadata_uri = uri, .server_name = "127.0.0.1:0", .protocol = "ucx"};
    struct shoal_engine *engine;
    struct shoal_error error;

    setenv("UCX_TLS", way->tls, 1);
    bench_check(shoal_engine_create(&config, NULL, &engine, &error), &error, "create");
    return engine;
}

static void *open_memory(struct shoal_engine *engine, unsigned access)
{
    void *memory = bench_alloc(size_bytes);
    struct shoal_error error;

    bench_check(shoal_engine_register_memory(engine, memory, size_bytes, NULL, access, NULL, &error), &error,
                "register");
    return memory;
}

static _Noreturn void run_source(int control)
{
    struct shoal_engine *engine = open_engine();
    void *memory = open_memory(engine, SHOAL_ACCESS_REMOTE_READ);
    struct greeting hello = {.addr = (uint64_t)(uintptr_t)memory};
    char byte;

    bench_fill(memory, size_bytes, 1);
    hello.content = bench_digest(memory, size_bytes);
    snprintf(hello.name, sizeof hello.name, "%s", shoal_engine_server_name(engine));
    bench_send(control, &hello, sizeof hello);
    bench_receive(control, &byte, 1);
    exit(0);
}

/* --- ours --- */

static double read_often_s(struct shoal_engine *engine, struct shoal_segment *segment, uint64_t from, void *to,
                           unsigned count)
{
    double start_s = bench_now_s();

    for (unsigned i = 0; i < count; i++) {
        struct shoal_request request = {
            .op = SHOAL_OP_READ, .segment = segment, .local = to, .remote_addr = from, .len_bytes = size_bytes};
        struct shoal_batch *batch;
        struct shoal_error error;

        bench_check(shoal_batch_create(engine, 1, &batch, &error), &error, "batch");
        bench_check(shoal_batch_submit(batch, &request, 1, &error), &error, "submit");
        bench_check(shoal_batch_wait(batch, -1, &error), &error, "READ");
        shoal_batch_destroy(batch);
    }
    return bench_now_s() - start_s;
}

static void check_path(void *arg, const struct engine_peer_view *view)
{
    (void)arg;
    if (view->paths[0].bytes == 0 || strcmp(view->paths[0].transport, "ucx") != 0)
        bench_die("the bytes went over '%s': %s", view->transport ? view->transport : "nothing", view->paths[0].text);
}

/* --- ucx_perftest --- */

static int free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        bench_die("no free port");
    close(fd);
    return ntohs(addr.sin_port);
}

/* server NULL: the side that is read from. alloc NULL: memory of UCX's choice. Its output comes by out. */
static pid_t perftest_start(const char *server, int port, const char *alloc, FILE **out)
{
    char size[24], count[16], port_text[16];
    int pipes[2];
    pid_t pid;

    snprintf(size, sizeof size, "%" PRIu64, size_bytes);
    snprintf(count, sizeof count, "%u", reads);
    snprintf(port_text, sizeof port_text, "%d", port);
    if (pipe(pipes) != 0 || (pid = fork()) < 0)
        bench_die("cannot start ucx_perftest");
    if (pid == 0) {
        const char *argv[] = {"ucx_perftest", "-p", port_text, "-t", "ucp_get", "-s",   size, "-n",
                              count,          "-w", "1",       "-f", "-v",      server, NULL};

        dup2(pipes[1], STDOUT_FILENO);
        if (!freopen("/dev/null", "w", stderr)) /* the first attempts may come too early */
            _exit(1);
        close(pipes[0]);
        close(pipes[1]);
        setenv("UCX_TLS", way->tls, 1);
        if (alloc)
            setenv("UCX_ALLOC_PRIO", alloc, 1);
        execvp(argv[0], (char **)(uintptr_t)argv);
        _exit(127);
    }
    close(pipes[1]);
    *out = fdopen(pipes[0], "r");
    if (!*out)
        bench_die("out of memory");
    return pid;
}

/* Microseconds of one get, from the fourth column of its last line; 0: it did not run. */
static double perftest_read_us(FILE *from)
{
    char line[512];
    double us = 0;

    while (fgets(line, sizeof line, from)) {
        char *at = line;

        for (unsigned column = 1; at && column < 4; column++)
            at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
        us = at ? strtod(at, NULL) : 0;
    }
    return us;
}

static double perftest_rate(const char *alloc)
{
    int port = free_port(), status = 0;
    double us = 0;
    FILE *served, *asked;
    pid_t server = perftest_start(NULL, port, alloc, &served);

    for (unsigned i = 0; i < PERFTEST_TRIES && us <= 0; i++) {
        pid_t client = perftest_start("127.0.0.1", port, alloc, &asked);

        us = perftest_read_us(asked);
        fclose(asked);
        waitpid(client, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
            bench_die("ucx_perftest is not installed (tools/setup --bench)");
        if (us <= 0)
            usleep(50000);
    }
    kill(server, SIGKILL);
    fclose(served);
    waitpid(server, NULL, 0);
    if (us <= 0)
        bench_die("ucx_perftest does not run over %s", way->tls);
    return (double)size_bytes / (us / 1e6);
}

/* --- one way --- */

struct result {
    double ours, theirs, mapped; /* bytes per second; mapped: of has_mapped only */
};

static struct result measure(void)
{
    double our_rate[RUNS_MAX], their_rate[RUNS_MAX], mapped_rate[RUNS_MAX];
    struct bench_side source = bench_side_start(run_source, NULL, 0);
    struct shoal_engine *engine = open_engine();
    void *memory = open_memory(engine, SHOAL_ACCESS_LOCAL);
    struct shoal_segment *segment;
    struct shoal_error error;
    struct greeting hello;
    struct result result;
    struct digest content;

    bench_receive(source.control, &hello, sizeof hello);
    bench_check(shoal_segment_open(engine, hello.name, NULL, &segment, &error), &error, "segment");
    (void)read_often_s(engine, segment, hello.addr, memory, 1); /* connects, as the warm-up there does */
    for (unsigned run = 0; run < runs; run++) {
        their_rate[run] = perftest_rate(ORDINARY_MEMORY);
        mapped_rate[run] = way->has_mapped ? perftest_rate(NULL) : 0;
        memset(memory, 0x5a, size_bytes);
        our_rate[run] = (double)size_bytes * reads / read_often_s(engine, segment, hello.addr, memory, reads);
        content = bench_digest(memory, size_bytes);
        if (!digest_is_equal(&content, &hello.content))
            bench_die("run %u: wrong bytes were read", run + 1);
        printf("%s %4u  ucx_perftest %8.3f GB/s   shoal %8.3f GB/s", way->name, run + 1, their_rate[run] / 1e9,
               our_rate[run] / 1e9);
        if (way->has_mapped)
            printf("   ucx_perftest over memory of UCX %8.3f GB/s", mapped_rate[run] / 1e9);
        printf("\n");
        fflush(stdout);
    }
    if (engine_peers_visit(engine, check_path, NULL) != SHOAL_OK)
        bench_die("out of memory");
    shoal_segment_close(segment);
    shoal_engine_destroy(engine);
    bench_free(memory, size_bytes);
    bench_send(source.control, "q", 1);
    close(source.control);
    waitpid(source.pid, NULL, 0);
    result.ours = bench_median(our_rate, runs);
    result.theirs = bench_median(their_rate, runs);
    result.mapped = bench_median(mapped_rate, runs);
    return result;
}

/* In a process of its own: UCX takes its environment once, and a source is a mere fork, made before UCX is loaded. */
static _Noreturn void run_measure(int control)
{
    struct result result = measure();

    bench_send(control, &result, sizeof result);
    exit(0);
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"size", BENCH_SIZE, &size_bytes, 1, (uint64_t)1 << 30, "of a READ"},
        {"reads", BENCH_COUNT, &reads, 2, 100000, "one after the other in a run"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "runs of each, in turns"},
        {0},
    };
    struct result results[WAY_COUNT];

    bench_options(
        argc, argv, "ucx",
        "Two processes of this machine: READs over UCX against the gets of ucx_perftest with the same UCX_TLS, "
        "in\nturns, over TCP and over shared memory. ratio = Shoal's median throughput / ucx_perftest's; mapped_ratio: "
        "over\nmemory that UCX allocated where the other process maps it.",
        options);
    bench_require_memory(4 * size_bytes);
    for (size_t i = 0; i < WAY_COUNT; i++) {
        struct bench_side side;

        way = &ways[i];
        snprintf(uri, sizeof uri, "sqlite:%s/%s.db", bench_temp_dir(), way->name);
        fflush(stdout);
        side = bench_side_start(run_measure, NULL, 0);
        bench_receive(side.control, &results[i], sizeof results[i]);
        close(side.control);
        waitpid(side.pid, NULL, 0);
    }
    printf("{\"bench\":\"ucx\",\"size_bytes\":%" PRIu64 ",\"reads\":%u,\"runs\":%u", size_bytes, reads, runs);
    for (size_t i = 0; i < WAY_COUNT; i++) {
        const struct result *r = &results[i];

        printf(",\"%s_ratio\":%.3f,\"%s_gbps\":%.3f,\"%s_perftest_gbps\":%.3f", ways[i].name, r->ours / r->theirs,
               ways[i].name, r->ours / 1e9, ways[i].name, r->theirs / 1e9);
        if (ways[i].has_mapped)
            printf(",\"%s_mapped_ratio\":%.3f,\"%s_mapped_perftest_gbps\":%.3f", ways[i].name, r->ours / r->mapped,
                   ways[i].name, r->mapped / 1e9);
    }
    printf("}\n");
    return 0;
}
