/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata requests and bytes of register and get_replica by number of shards and of receivers that start together, on
 * both backends; and the memory of a process that pulls a payload of many shards.
 *
 * Receivers are threads with stores of their own; counters are those of each store's own metadata connection, taken
 * right before and after the call. Keep-alives of leases depend on time, not on the payload, and have their own column.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"
#include "etcd_server.h"
#include "lib/bench.h"
#include "meta/meta.h"
#include <shoal/store.h>

#define RECEIVERS_MAX 256u
#define LIST_MAX 16u
#define GET_TIMEOUT_MS 300000

static uint64_t shard_bytes = 1024;
static const char *shards_text = "100,2000,20000", *receivers_text = "1,16,64", *backends_text = "sqlite,etcd";
static const char *self_path;

struct usage {
    uint64_t gets, lists, txns, watches, lease_calls;
    uint64_t bytes_sent, bytes_received, largest_bytes;
    uint64_t retries; /* joins repeated after a lost race */
    uint64_t
        repeats; /* requests that were sent again: of any kind, keep-alives that found SQLite's file locked included */
};

/* A counter of the store's Prometheus text. */
static uint64_t metric(struct shoal_store *store, const char *name)
{
    char *text = shoal_store_metrics(store);
    size_t name_len = strlen(name);
    uint64_t value = 0;

    if (!text)
        bench_die("out of memory");
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, name_len) == 0 && line[name_len] == ' ') {
            value = strtoull(line + name_len, NULL, 10);
            free(text);
            return value;
        }
    }
    bench_die("the store has no metric %s", name);
}

static struct usage usage_of(struct shoal_store *store)
{
    struct meta_counters counters;
    meta_counters(engine_meta(shoal_store_engine(store)), &counters);
    return (struct usage){.gets = counters.gets,
                          .lists = counters.lists,
                          .txns = counters.txns,
                          .watches = counters.watches,
                          .lease_calls = counters.lease_calls,
                          .bytes_sent = counters.bytes_sent,
                          .bytes_received = counters.bytes_received,
                          .largest_bytes = counters.largest_request_bytes,
                          .retries = metric(store, "shoal_store_publish_retries_total"),
                          .repeats = counters.retries};
}

static struct usage usage_since(struct shoal_store *store, const struct usage *before)
{
    struct usage now = usage_of(store);
    return (struct usage){.gets = now.gets - before->gets,
                          .lists = now.lists - before->lists,
                          .txns = now.txns - before->txns,
                          .watches = now.watches - before->watches,
                          .lease_calls = now.lease_calls - before->lease_calls,
                          .bytes_sent = now.bytes_sent - before->bytes_sent,
                          .bytes_received = now.bytes_received - before->bytes_received,
                          .largest_bytes = now.largest_bytes, /* since the store was opened: an upper bound */
                          .retries = now.retries - before->retries,
                          .repeats = now.repeats - before->repeats};
}

static uint64_t requests_of(const struct usage *usage)
{
    return usage->gets + usage->lists + usage->txns + usage->watches;
}

static struct shoal_store *open_store(const char *uri)
{
    struct shoal_store_config config = {.struct_size = sizeof config,
                                        .metadata_uri = uri,
                                        .server_name = "127.0.0.1:0",
                                        .io_threads = 1,
                                        .digest_threads = 1};
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = 60000};
    struct shoal_store *store;
    struct shoal_error error;
    bench_check(shoal_store_create(&config, &call, &store, &error), &error, "create");
    return store;
}

/* --- receivers --- */

struct receiver {
    struct shoal_store *store;
    struct shoal_region region;
    const char *name;
    pthread_barrier_t *start;
    struct usage usage;
};

static void *receive(void *arg)
{
    struct receiver *receiver = arg;
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = GET_TIMEOUT_MS};
    struct shoal_error error;
    struct usage before;

    pthread_barrier_wait(receiver->start);
    before = usage_of(receiver->store);
    bench_check(shoal_store_get_replica(receiver->store, receiver->name, &receiver->region, 1, NULL, &call, &error),
                &error, "get_replica");
    receiver->usage = usage_since(receiver->store, &before);
    return NULL;
}

static void *open_receiver(void *arg)
{
    struct receiver *receiver = arg;
    receiver->store = open_store(receiver->name);
    return NULL;
}

/* Stores are opened and closed by a few threads at a time: each waits for the metadata service. */
static void *close_receiver(void *arg)
{
    struct receiver *receiver = arg;
    shoal_store_close(receiver->store, NULL);
    return NULL;
}

static void for_each_receiver(struct receiver *receivers, unsigned count, void *(*fn)(void *arg))
{
    pthread_t threads[RECEIVERS_MAX];
    for (unsigned i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, fn, &receivers[i]) != 0)
            bench_die("cannot start %u threads", count);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* --- totals over all cells --- */

static uint64_t most_requests, least_requests = UINT64_MAX, largest_write, total_retries, retries_of_most_receivers;
static unsigned most_receivers;

static void measure_cell(const char *backend, const char *uri, unsigned shards, unsigned receiver_count)
{
    static struct receiver receivers[RECEIVERS_MAX];
    struct shoal_register_options options = {.struct_size = sizeof options, .max_shard_size = shard_bytes};
    struct shoal_region region = {.len_bytes = shards * shard_bytes};
    struct shoal_store *gold = open_store(uri);
    struct shoal_error error;
    struct usage before = usage_of(gold), registered;
    struct usage most = {0};
    uint64_t bytes_sent = 0, bytes_received = 0, retries = 0, repeats = 0, lease_calls = 0, largest;
    pthread_barrier_t start;
    double start_s, get_s;

    region.addr = bench_alloc(region.len_bytes);
    bench_fill(region.addr, region.len_bytes, shards);
    bench_check(shoal_store_register(gold, "meta", &region, 1, &options, NULL, &error), &error, "register");
    registered = usage_since(gold, &before);
    largest = registered.largest_bytes;

    for (unsigned i = 0; i < receiver_count; i++) {
        receivers[i] = (struct receiver){.name = uri, .start = &start};
        receivers[i].region = (struct shoal_region){bench_alloc(region.len_bytes), region.len_bytes};
    }
    for_each_receiver(receivers, receiver_count, open_receiver);
    for (unsigned i = 0; i < receiver_count; i++)
        receivers[i].name = "meta";
    pthread_barrier_init(&start, NULL, receiver_count);
    start_s = bench_now_s();
    for_each_receiver(receivers, receiver_count, receive);
    get_s = bench_now_s() - start_s;
    pthread_barrier_destroy(&start);

    for (unsigned i = 0; i < receiver_count; i++) {
        const struct usage *usage = &receivers[i].usage;
        if (memcmp(receivers[i].region.addr, region.addr, (size_t)region.len_bytes) != 0)
            bench_die("%s, %u shards, receiver %u: wrong bytes", backend, shards, i);
        if (requests_of(usage) > requests_of(&most))
            most = *usage;
        if (requests_of(usage) < least_requests)
            least_requests = requests_of(usage);
        bytes_sent += usage->bytes_sent;
        bytes_received += usage->bytes_received;
        retries += usage->retries;
        repeats += usage->repeats;
        lease_calls += usage->lease_calls;
        if (usage->largest_bytes > largest)
            largest = usage->largest_bytes;
    }
    for_each_receiver(receivers, receiver_count, close_receiver);
    for (unsigned i = 0; i < receiver_count; i++)
        bench_free(receivers[i].region.addr, region.len_bytes);
    shoal_store_close(gold, NULL);
    bench_free(region.addr, region.len_bytes);

    printf("%-7s %7u %5u | %4llu %8llu | %4llu %4llu %4llu %4llu %4llu %8llu %8llu | %7llu %4llu %4llu %5llu %7.2f\n",
           backend, shards, receiver_count, (unsigned long long)requests_of(&registered),
           (unsigned long long)registered.bytes_sent, (unsigned long long)requests_of(&most),
           (unsigned long long)most.gets, (unsigned long long)most.lists, (unsigned long long)most.txns,
           (unsigned long long)most.watches, (unsigned long long)(bytes_sent / receiver_count),
           (unsigned long long)(bytes_received / receiver_count), (unsigned long long)largest,
           (unsigned long long)retries, (unsigned long long)repeats, (unsigned long long)lease_calls, get_s);
    fflush(stdout);
    if (requests_of(&most) > most_requests)
        most_requests = requests_of(&most);
    if (largest > largest_write)
        largest_write = largest;
    total_retries += retries;
    if (receiver_count > most_receivers) {
        most_receivers = receiver_count;
        retries_of_most_receivers = 0;
    }
    if (receiver_count == most_receivers && retries > retries_of_most_receivers)
        retries_of_most_receivers = retries;
}

/* --- memory of one pulling process --- */

/* Runs in a process of its own: pulls and prints its peak memory without the payload. */
static int pull_and_report(const char *uri, const char *name, uint64_t bytes)
{
    struct shoal_region region = {bench_alloc(bytes), bytes};
    struct shoal_store *store;
    struct shoal_error error;
    uint64_t peak;

    bench_reset_peak_rss(); /* the allocation itself needed no more than its size */
    store = open_store(uri);
    bench_check(shoal_store_get_replica(store, name, &region, 1, NULL, NULL, &error), &error, "get_replica");
    peak = bench_peak_rss();
    shoal_store_close(store, NULL);
    printf("%llu\n", (unsigned long long)(peak > bytes ? peak - bytes : 0));
    return 0;
}

static uint64_t memory_of_pull(const char *uri, unsigned shards)
{
    struct shoal_register_options options = {.struct_size = sizeof options, .max_shard_size = shard_bytes};
    struct shoal_region region = {.len_bytes = shards * shard_bytes};
    struct shoal_store *gold = open_store(uri);
    struct shoal_error error;
    char size_text[32], answer[64] = {0};
    int ends[2], wait_status;
    pid_t child;

    region.addr = bench_alloc(region.len_bytes);
    bench_fill(region.addr, region.len_bytes, 7);
    bench_check(shoal_store_register(gold, "memory", &region, 1, &options, NULL, &error), &error, "register");
    snprintf(size_text, sizeof size_text, "%llu", (unsigned long long)region.len_bytes);
    if (pipe(ends) != 0)
        bench_die("pipe: %s", strerror(errno));
    child = fork();
    if (child < 0)
        bench_die("fork: %s", strerror(errno));
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(self_path, self_path, "pull-and-report", uri, "memory", size_text, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    for (size_t have = 0; have + 1 < sizeof answer;) {
        ssize_t got = read(ends[0], answer + have, sizeof answer - 1 - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(ends[0]);
    waitpid(child, &wait_status, 0);
    if (wait_status != 0)
        bench_die("the pulling process failed");
    shoal_store_close(gold, NULL);
    bench_free(region.addr, region.len_bytes);
    return strtoull(answer, NULL, 10);
}

/* --- */

static unsigned parse_list(const char *option, const char *text, unsigned max, unsigned values_out[LIST_MAX])
{
    unsigned count = 0;
    char *end;

    for (const char *at = text;; at = end + 1) {
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || (*end && *end != ',') || value < 1 || value > max || count == LIST_MAX) {
            fprintf(stderr, "bench meta: --%s: '%s' is not a list of numbers in 1..%u\n", option, text, max);
            exit(2);
        }
        values_out[count++] = (unsigned)value;
        if (!*end)
            return count;
    }
}

static bool has_backend(const char *name)
{
    const char *found = strstr(backends_text, name);
    return found && (found == backends_text || found[-1] == ',') &&
           (found[strlen(name)] == ',' || found[strlen(name)] == '\0');
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"shards", BENCH_TEXT, &shards_text, 0, 0, "numbers of shards (default 100,2000,20000)"},
        {"receivers", BENCH_TEXT, &receivers_text, 0, 0, "receivers that start together (default 1,16,64)"},
        {"backends", BENCH_TEXT, &backends_text, 0, 0, "default sqlite,etcd (etcd is started by the benchmark)"},
        {"shard-size", BENCH_SIZE, &shard_bytes, 1, 1 << 20, "bytes of a shard"},
        {0},
    };
    unsigned shards[LIST_MAX], receivers[LIST_MAX], shard_count, receiver_count, most_shards = 0, most = 0;
    uint64_t memory = 0;
    struct rlimit files;

    if (argc == 5 && strcmp(argv[1], "pull-and-report") == 0)
        return pull_and_report(argv[2], argv[3], strtoull(argv[4], NULL, 10));
    bench_options(
        argc, argv, "meta",
        "Metadata requests and bytes per register and per get_replica, by shards and by receivers that start\n"
        "together, and the memory of a process that pulls the most shards.",
        options);
    self_path = "/proc/self/exe";
    shard_count = parse_list("shards", shards_text, 10000000, shards);
    receiver_count = parse_list("receivers", receivers_text, RECEIVERS_MAX, receivers);
    if (!has_backend("sqlite") && !has_backend("etcd")) {
        fprintf(stderr, "bench meta: --backends: '%s' is none of sqlite, etcd\n", backends_text);
        exit(2);
    }
    for (unsigned i = 0; i < shard_count; i++)
        most_shards = shards[i] > most_shards ? shards[i] : most_shards;
    for (unsigned i = 0; i < receiver_count; i++)
        most = receivers[i] > most ? receivers[i] : most;
    bench_require_memory((uint64_t)most_shards * shard_bytes * (most + 1));
    signal(SIGPIPE, SIG_IGN);
    /* Every receiver talks to many others, all in this process. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }

    printf(
        "                      | register      | get_replica (requests: of the receiver with most; bytes: mean)  |\n");
    printf("%-7s %7s %5s | %4s %8s | %4s %4s %4s %4s %4s %8s %8s | %7s %4s %4s %5s %7s\n", "backend", "shards", "recv",
           "reqs", "sent", "reqs", "get", "list", "txn", "wat", "sent", "received", "largest", "retr", "rept", "alive",
           "sec");
    for (unsigned backend = 0; backend < 2; backend++) {
        const char *name = backend ? "etcd" : "sqlite";
        struct etcd_cluster *etcd = NULL;
        char uri[512];
        if (!has_backend(name))
            continue;
        if (backend) {
            if (!etcd_is_available())
                bench_die("etcd-server is not installed (--backends sqlite leaves it out)");
            etcd = etcd_cluster_start(1);
            snprintf(uri, sizeof uri, "%s", etcd_cluster_uri(etcd));
        } else {
            snprintf(uri, sizeof uri, "sqlite:%s/meta.db", bench_temp_dir());
        }
        for (unsigned i = 0; i < shard_count; i++) {
            for (unsigned k = 0; k < receiver_count; k++)
                measure_cell(name, uri, shards[i], receivers[k]);
        }
        if (!memory) {
            memory = memory_of_pull(uri, most_shards);
            printf("memory of a process pulling %u shards beyond the payload: %.1f MiB\n", most_shards,
                   (double)memory / (1 << 20));
        }
        etcd_cluster_stop(etcd);
    }
    printf("{\"bench\":\"meta\",\"requests_per_get\":%llu,\"requests_per_get_min\":%llu,\"largest_write_bytes\":%llu,"
           "\"join_retries\":%llu,\"join_retries_all\":%llu,\"receivers\":%u,\"shards\":%u,\"memory_mib\":%.1f}\n",
           (unsigned long long)most_requests, (unsigned long long)least_requests, (unsigned long long)largest_write,
           (unsigned long long)retries_of_most_receivers, (unsigned long long)total_retries, most_receivers,
           most_shards, (double)memory / (1 << 20));
    return 0;
}
