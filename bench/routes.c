/* SPDX-License-Identifier: Apache-2.0 */
/* The KV master: memory per route, time to announce everything again after a restart, and how long heartbeats wait
 * while others list all keys. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "lib/bench.h"
#include "master/master.h"
#include "master/routes.h"
#include "master_client.h"

#define BATCH 1000u /* of 32-byte keys: a request stays below 64 KiB */
#define KEY_BYTES 32
#define RUNS_MAX 100
#define HEARTBEATS_MAX 10000
#define LISTERS 4u

enum { METHOD_ANNOUNCE = 3, METHOD_LIST = 7, KIND_NEW = 0, KIND_HELD = 1 };

static unsigned route_count = 1000000, announced_count = 10000, runs = 5, beats = 200;

static void key_of(unsigned i, char key[KEY_BYTES + 1])
{
    snprintf(key, KEY_BYTES + 1, "%016llx/kv/%012u", (unsigned long long)i * 0x9e3779b97f4a7c15ull, i);
}

/* --- memory --- */

struct table {
    double bytes_per_route, rss_per_route, add_per_s, get_per_s;
};

static uint64_t rss(void)
{
    unsigned long long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file || fscanf(file, "%llu %llu", &total, &resident) != 2)
        bench_die("cannot read /proc/self/statm");
    fclose(file);
    return resident * 4096;
}

static struct table measure_table(void)
{
    struct routes_config config = {.max_clients = 16, .seed = 1};
    struct routes *routes = NULL;
    struct shoal_error error;
    struct table table = {0};
    struct route_view view;
    char key[KEY_BYTES + 1];
    uint64_t before = rss();
    double start_s;

    bench_check(routes_create(&config, &routes, &error), &error, "routes_create");
    start_s = bench_now_s();
    for (unsigned i = 0; i < route_count; i++) {
        key_of(i, key);
        bench_check(routes_add(routes, key, KEY_BYTES, i + 1, 4096, i % 16, 0, 0), NULL, "routes_add");
    }
    table.add_per_s = route_count / (bench_now_s() - start_s);
    table.bytes_per_route = (double)routes_bytes(routes) / route_count;
    table.rss_per_route = (double)(rss() - before) / route_count;
    start_s = bench_now_s();
    for (unsigned i = 0; i < route_count; i++) {
        key_of((unsigned)((uint64_t)i * 7919 % route_count), key);
        if (!routes_get(routes, key, KEY_BYTES, &view))
            bench_die("a route is missing");
    }
    table.get_per_s = route_count / (bench_now_s() - start_s);
    routes_destroy(routes);
    return table;
}

/* --- announcing --- */

static void announce(struct master_client *client, int kind, unsigned first, unsigned count, bool is_last)
{
    static Shoal__Wire__MasterAnnounceRequest__Entry entries[BATCH], *pointers[BATCH];
    static char keys[BATCH][KEY_BYTES + 1];
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    Shoal__Wire__MasterAnnounceResponse *answer;
    enum shoal_status status;

    for (unsigned i = 0; i < count; i++) {
        shoal__wire__master_announce_request__entry__init(&entries[i]);
        key_of(first + i, keys[i]);
        entries[i].kind = (Shoal__Wire__MasterAnnounceRequest__Kind)kind;
        entries[i].key = keys[i];
        entries[i].object_id = first + i + 1;
        entries[i].len_bytes = 4096;
        pointers[i] = &entries[i];
    }
    request.instance = client->instance;
    request.entries = pointers;
    request.n_entries = count;
    request.is_last_held = is_last;
    answer = master_client_call(client, METHOD_ANNOUNCE, &request.base,
                                &shoal__wire__master_announce_response__descriptor, 0, &status);
    bench_check(status, &client->error, "announce");
    for (unsigned i = 0; i < count; i++)
        if (answer->statuses[i] != SHOAL_OK)
            bench_die("an object was refused");
    protobuf_c_message_free_unpacked(&answer->base, NULL);
}

static struct master *start_master(void)
{
    struct master_config config = {
        .host = "127.0.0.1", .cluster = "default", .client_ttl_ms = 600000, .settle_ms = 1, .announce_ms = 600000};
    struct master *master = NULL;
    struct shoal_error error;

    bench_check(master_create(&config, &master, &error), &error, "master_create");
    return master;
}

/* From the registration with a new master until it has everything. */
static double announce_again(void)
{
    struct master *master = start_master();
    struct master_client client;
    double start_s;

    master_client_open(&client, master_address(master), NULL);
    start_s = bench_now_s();
    bench_check(master_client_register(&client, 1u << 30, announced_count), &client.error, "register");
    for (unsigned first = 0; first < announced_count; first += BATCH)
        announce(&client, KIND_HELD, first, announced_count - first < BATCH ? announced_count - first : BATCH,
                 first + BATCH >= announced_count);
    start_s = bench_now_s() - start_s;
    master_client_close(&client);
    master_destroy(master);
    return start_s;
}

/* --- heartbeats beside lists --- */

static struct master_call *begin_list(struct master_client *client)
{
    Shoal__Wire__MasterListRequest request = SHOAL__WIRE__MASTER_LIST_REQUEST__INIT;

    request.pattern = (char *)(uintptr_t) "*nothing*matches*"; /* looks at every key */
    return master_client_begin(client, METHOD_LIST, &request.base, 600000);
}

static void end_list(struct master_call *call)
{
    struct shoal_error error;
    enum shoal_status status;
    void *answer = master_call_end(call, &shoal__wire__master_list_response__descriptor, &status, &error);

    bench_check(status, &error, "list");
    protobuf_c_message_free_unpacked(answer, NULL);
}

static void measure_heartbeats(struct master_client *client, struct master_client *lister, double *seconds_out)
{
    struct master_call *lists[LISTERS];

    for (unsigned i = 0; lister && i < LISTERS; i++)
        lists[i] = begin_list(lister);
    for (unsigned i = 0; i < beats; i++) {
        double start_s = bench_now_s();
        bench_check(master_client_heartbeat(client, 1u << 30, 0, 0, NULL), &client->error, "heartbeat");
        seconds_out[i] = bench_now_s() - start_s;
        for (unsigned k = 0; lister && k < LISTERS; k++) {
            if (master_call_is_done(lists[k])) {
                end_list(lists[k]);
                lists[k] = begin_list(lister);
            }
        }
    }
    for (unsigned i = 0; lister && i < LISTERS; i++)
        end_list(lists[i]);
}

static double largest(const double *values, size_t count)
{
    double result = values[0];

    for (size_t i = 1; i < count; i++)
        result = values[i] > result ? values[i] : result;
    return result;
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"routes", BENCH_COUNT, &route_count, 1000, 100000000, "in the table"},
        {"announced", BENCH_COUNT, &announced_count, 1, 10000000, "announced again after a restart"},
        {"runs", BENCH_COUNT, &runs, 1, RUNS_MAX, "of announcing"},
        {"heartbeats", BENCH_COUNT, &beats, 1, HEARTBEATS_MAX, "alone, and beside lists of all keys"},
        {0},
    };
    static double seconds[RUNS_MAX], idle[HEARTBEATS_MAX], busy[HEARTBEATS_MAX];
    struct master_client client, lister;
    struct master *master;
    struct table table;
    double announce_ms;

    bench_options(argc, argv, "routes",
                  "The KV master: memory per route with 32-byte keys and one replica, the time in which a client\n"
                  "announces everything again to a new master, and heartbeats beside lists that look at all keys.",
                  options);
    table = measure_table();
    printf("%u routes: %.1f bytes each (%.1f of the process), %.2f million added, %.2f million found per second\n",
           route_count, table.bytes_per_route, table.rss_per_route, table.add_per_s / 1e6, table.get_per_s / 1e6);
    for (unsigned run = 0; run < runs; run++) {
        seconds[run] = announce_again();
        printf("%4u  %u keys announced again in %.1f ms\n", run + 1, announced_count, seconds[run] * 1e3);
        fflush(stdout);
    }
    announce_ms = bench_median(seconds, runs) * 1e3;

    master = start_master();
    master_client_open(&client, master_address(master), NULL);
    master_client_open(&lister, master_address(master), NULL);
    bench_check(master_client_register(&client, 1u << 30, route_count), &client.error, "register");
    for (unsigned first = 0; first < route_count; first += BATCH)
        announce(&client, KIND_HELD, first, route_count - first < BATCH ? route_count - first : BATCH,
                 first + BATCH >= route_count);
    measure_heartbeats(&client, NULL, idle);
    measure_heartbeats(&client, &lister, busy);
    printf("heartbeats: median %.3f ms, largest %.3f ms; beside %u lists of %u keys: median %.3f ms, largest %.3f ms\n",
           bench_median(idle, beats) * 1e3, largest(idle, beats) * 1e3, LISTERS, route_count,
           bench_median(busy, beats) * 1e3, largest(busy, beats) * 1e3);
    master_client_close(&client);
    master_client_close(&lister);
    master_destroy(master);
    printf("{\"bench\":\"routes\",\"bytes_per_route\":%.1f,\"rss_per_route\":%.1f,\"announce_ms\":%.1f,"
           "\"heartbeat_max_ms\":%.3f,\"heartbeat_busy_max_ms\":%.3f,\"routes\":%u,\"announced\":%u,\"runs\":%u}\n",
           table.bytes_per_route, table.rss_per_route, announce_ms, largest(idle, beats) * 1e3,
           largest(busy, beats) * 1e3, route_count, announced_count, runs);
    return 0;
}
