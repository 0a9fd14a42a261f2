/* SPDX-License-Identifier: Apache-2.0 */
/* Time without a master: the leader of two is killed, and from then on a key that nobody has cached is asked for and a
 * new one is put, until both are answered. Real etcd, real processes. Every object is compared afterwards. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <shoal/kv.h>

#include "etcd_server.h"
#include "kv_load.h"
#include "lib/bench.h"

#define RUNS_MAX 50
#define BATCH 1000u
#define VALUE_BYTES 64
#define PATIENCE_MS 60000
#define OWNERS_MAX 16u

static unsigned runs = 5, key_count = 10000, owner_count = 2;
static unsigned client_ttl_ms = 10000;

static char master_path[512], client_path[512], ttl_text[32];
static struct etcd_cluster *etcd;
static char endpoints[128];

struct master {
    pid_t pid;
    unsigned life;
};

/* --- programs --- */

static pid_t start_master(unsigned number)
{
    char log[32], port[16];

    snprintf(log, sizeof log, "master-%u.log", number);
    snprintf(port, sizeof port, "%u", kv_free_port());
    char *const arguments[] = {master_path,
                               "--deployment_mode",
                               "P2P",
                               "--rpc_port",
                               port,
                               "--rpc_address",
                               "127.0.0.1",
                               "--metrics_port",
                               "none",
                               "--enable_ha",
                               "--etcd_endpoints",
                               endpoints,
                               "--client_ttl",
                               ttl_text,
                               NULL};
    return kv_spawn(log, arguments);
}

static void start_owner(unsigned number)
{
    char log[32];
    static char tiers[] = "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"256MB\"}]}";

    snprintf(log, sizeof log, "client-%u.log", number);
    char *const arguments[] = {client_path,
                               "--master_server_address",
                               (char *)(uintptr_t)etcd_cluster_uri(etcd),
                               "--port",
                               "0",
                               "--client_rpc_port",
                               "0",

                               "--tiered_backend_config",
                               tiers,
                               NULL};
    kv_spawn(log, arguments);
}

static void end(pid_t pid)
{
    if (kill(pid, SIGKILL) != 0 || waitpid(pid, NULL, 0) != pid)
        bench_die("ending a master: %s", strerror(errno));
}

static struct shoal_call patience(void)
{
    return (struct shoal_call){.struct_size = sizeof(struct shoal_call), .timeout_ms = PATIENCE_MS};
}

/* A client that has cached nothing. */
static struct shoal_kv *open_client(void)
{
    struct shoal_kv_config config = {.struct_size = sizeof config, .master = etcd_cluster_uri(etcd)};
    struct shoal_call call = patience();
    struct shoal_error error;
    struct shoal_kv *kv;

    bench_check(shoal_kv_open(&config, &call, &kv, &error), &error, "shoal_kv_open");
    return kv;
}

/* Until the leader knows every owner (each has one tier). */
static void wait_for_owners(struct shoal_kv *kv)
{
    double until_s = bench_now_s() + PATIENCE_MS / 1000.0;

    for (;;) {
        struct shoal_call call = patience();
        struct shoal_error error;
        unsigned known = 0;
        char *text;

        bench_check(shoal_kv_status(kv, &call, &text, &error), &error, "shoal_kv_status");
        for (const char *at = text; (at = strstr(at, "\"capacity_bytes\"")) != NULL; at++)
            known++;
        free(text);
        if (known >= owner_count)
            return;
        if (bench_now_s() > until_s)
            bench_die("only %u of %u owners have registered", known, owner_count);
        usleep(10000);
    }
}

/* --- objects --- */

static void fill(char *value, unsigned number)
{
    memset(value, 'a' + (int)(number % 26), VALUE_BYTES);
    memcpy(value, &number, sizeof number);
}

/* Puts, or gets and compares, numbers from begin to end. */
static void move_objects(struct shoal_kv *kv, unsigned begin, unsigned end_number, bool is_put)
{
    static char keys[BATCH][32], values[BATCH][VALUE_BYTES];
    static struct shoal_kv_item items[BATCH];

    for (unsigned first = begin, count; first < end_number; first += count) {
        struct shoal_call call = patience();
        struct shoal_error error;
        count = end_number - first < BATCH ? end_number - first : BATCH;
        for (unsigned i = 0; i < count; i++) {
            snprintf(keys[i], sizeof keys[i], "object/%u", first + i);
            memset(values[i], 0, VALUE_BYTES);
            if (is_put)
                fill(values[i], first + i);
            items[i] = (struct shoal_kv_item){.key = keys[i], .data = values[i], .len_bytes = VALUE_BYTES};
        }
        if (is_put) {
            bench_check(shoal_kv_put_batch(kv, items, count, NULL, &call, &error), &error, "put");
            continue;
        }
        bench_check(shoal_kv_get_into_batch(kv, items, count, &call, &error), &error, "an object is lost: get");
        for (unsigned i = 0; i < count; i++) {
            char expected[VALUE_BYTES];
            fill(expected, first + i);
            if (items[i].len_bytes != VALUE_BYTES || memcmp(values[i], expected, VALUE_BYTES) != 0)
                bench_die("%s has another value", keys[i]);
        }
    }
}

/* --- the clock --- */

struct question {
    struct shoal_kv *kv;
    const char *key;
    bool is_put;
    double begun_s, seconds;
};

static void *ask(void *arg)
{
    struct question *question = arg;
    struct shoal_call call = patience();
    struct shoal_error error;
    char value[VALUE_BYTES];
    uint64_t len;

    memset(value, 'x', sizeof value);
    if (question->is_put)
        bench_check(shoal_kv_put(question->kv, question->key, value, sizeof value, NULL, &call, &error), &error, "put");
    else
        bench_check(shoal_kv_get_into(question->kv, question->key, value, sizeof value, &call, &len, &error), &error,
                    "an object is lost: get");
    question->seconds = bench_now_s() - question->begun_s;
    return NULL;
}

/* pids: the leader and the standby; afterwards the new ones. */
static void fail_over(unsigned run, pid_t pids[2], double *get_s_out, double *put_s_out)
{
    struct shoal_kv *kv = open_client();
    char new_key[32], old_key[32];
    struct question questions[2] = {{.kv = kv, .key = old_key}, {.kv = kv, .key = new_key, .is_put = true}};
    pthread_t threads[2];
    double begun_s;

    snprintf(new_key, sizeof new_key, "new/%u", run);
    snprintf(old_key, sizeof old_key, "object/%u", run * 7919 % key_count);
    begun_s = bench_now_s();
    end(pids[0]);
    for (size_t i = 0; i < 2; i++) {
        questions[i].begun_s = begun_s;
        if (pthread_create(&threads[i], NULL, ask, &questions[i]) != 0)
            bench_die("no thread");
    }
    for (size_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    *get_s_out = questions[0].seconds;
    *put_s_out = questions[1].seconds;
    pids[0] = pids[1];
    pids[1] = start_master(run + 2);
    shoal_kv_close(kv);
    kv = open_client();
    move_objects(kv, 0, key_count, false);
    shoal_kv_close(kv);
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "leaders killed, one after another"},
        {"keys", BENCH_COUNT, &key_count, 1, 1000000, "objects, spread over the owners"},
        {"owners", BENCH_COUNT, &owner_count, 1, OWNERS_MAX, "mooncake_client processes"},
        {"client-ttl-ms", BENCH_COUNT, &client_ttl_ms, 1000, 600000, "the masters' --client_ttl"},
        {0},
    };
    static double get_s[RUNS_MAX], put_s[RUNS_MAX];
    double most_s = 0;
    const char *build = getenv("BENCH_BUILD");
    pid_t pids[2];

    bench_options(
        argc, argv, "failover",
        "Two masters and an etcd: SIGKILL for the leader, time until a get of a key that is in no cache and a\n"
        "put of a new one succeed. All objects are compared after each.",
        options);
    if (!etcd_is_available())
        bench_die("etcd-server is not installed");
    snprintf(master_path, sizeof master_path, "%s/cmd/mooncake_master/mooncake_master", build ? build : "build-bench");
    snprintf(client_path, sizeof client_path, "%s/cmd/mooncake_client/mooncake_client", build ? build : "build-bench");
    snprintf(ttl_text, sizeof ttl_text, "%ums", client_ttl_ms);
    etcd = etcd_cluster_start(1);
    snprintf(endpoints, sizeof endpoints, "%s", etcd_member_endpoint(etcd, 0));
    pids[0] = start_master(0);
    for (unsigned i = 0; i < owner_count; i++)
        start_owner(i);
    struct shoal_kv *kv = open_client(); /* waits until the first one leads */
    pids[1] = start_master(1);
    wait_for_owners(kv);
    move_objects(kv, 0, key_count, true);
    shoal_kv_close(kv);
    printf("failover: %u objects of %d bytes at %u owners, client_ttl %u ms\n", key_count, VALUE_BYTES, owner_count,
           client_ttl_ms);
    for (unsigned run = 0; run < runs; run++) {
        fail_over(run, pids, &get_s[run], &put_s[run]);
        printf("%4u  get %6.2f s  put %6.2f s  all objects are there\n", run + 1, get_s[run], put_s[run]);
        fflush(stdout);
        most_s = get_s[run] > most_s ? get_s[run] : most_s;
        most_s = put_s[run] > most_s ? put_s[run] : most_s;
    }
    etcd_cluster_stop(etcd);
    printf("{\"bench\":\"failover\",\"get_s\":%.2f,\"put_s\":%.2f,\"max_s\":%.2f,\"objects\":%u,\"lost\":0,"
           "\"owners\":%u,\"runs\":%u}\n",
           bench_median(get_s, runs), bench_median(put_s, runs), most_s, key_count, owner_count, runs);
    return 0;
}
