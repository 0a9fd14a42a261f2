/* SPDX-License-Identifier: Apache-2.0 */
/* Many shards and many receivers: F1, F17. */
#include "itest.h"

#include <stdio.h>
#include <string.h>

#define PROCESSES 4

/* Requests to the metadata service by one store so far. */
static double requests_of(struct node *node, unsigned store)
{
    double count = metric_of(node, store, "shoal_meta_requests_total");
    assert_true(count >= 0);
    return count;
}

/* What one get costs in metadata requests, by a node that does nothing else. A keep-alive may fall in between. */
static double get_cost(struct node *node, const char *payload, uint64_t size, uint64_t seed)
{
    double before = requests_of(node, 0);
    get_one(node, payload, size, seed);
    return requests_of(node, 0) - before;
}

static void f01_requests_do_not_grow_with_shards(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=600000");
    struct node *receiver = start_node(*state, "receiver", "lease=600000");
    static const unsigned shards[] = {100, 2000, 20000};
    double costs[3], register_costs[3];
    for (size_t i = 0; i < 3; i++) {
        char payload[32];
        uint64_t size = shards[i] * 512;
        snprintf(payload, sizeof payload, "shards-%u", shards[i]);
        double before = requests_of(gold, 0);
        seed_one(gold, payload, size, i + 1, "shard=512");
        register_costs[i] = requests_of(gold, 0) - before;
        json_t *info = json_object_get(node_call(receiver, "stat payload=%s", payload), "info");
        assert_true((uint64_t)json_integer_value(json_object_get(info, "pieces")) >= shards[i]);
        costs[i] = get_cost(receiver, payload, size, i + 1);
        print_message("%u shards: register %g requests, get %g requests\n", shards[i], register_costs[i], costs[i]);
    }
    /* One keep-alive of difference is allowed. */
    assert_true(costs[2] < 12 && costs[2] <= costs[0] + 1 && costs[1] <= costs[0] + 1);
    assert_true(register_costs[2] <= register_costs[0] + 1);
    assert_in_range(metric_of(gold, 0, "shoal_meta_largest_request_bytes"), 1, 65535);
    assert_in_range(metric_of(receiver, 0, "shoal_meta_largest_request_bytes"), 1, 65535);
    node_stop_all();
}

static int64_t process_of(struct node *node, const char *what)
{
    return json_integer_value(json_object_get(node_call(node, "process"), what));
}

/* What the pull itself needs beyond the payload. */
static void f01_memory_of_a_pull(void **state)
{
    uint64_t size = 20000 * 1024;
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", size, 1, "shard=1024");
    EXPECT_OK(node_call(receiver, "buf buf=model sizes=%llu", (unsigned long long)size));
    int64_t before_kib = process_of(receiver, "rss_kib");
    EXPECT_OK(node_call(receiver, "get payload=model buf=model"));
    EXPECT_CONTENT(receiver, "model", 1);
    int64_t more_kib = process_of(receiver, "peak_rss_kib") - before_kib;
    print_message("pulling 20,000 shards took %lld KiB beyond the payload\n", (long long)more_kib);
    if (!node_is_sanitized())
        assert_true(more_kib < 64 * 1024);
    node_stop_all();
}

/* A long list of regions does not make the manifest long either. */
static void f01_many_regions(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    char sizes[256 * 5] = "";
    for (int i = 0; i < 256; i++)
        sprintf(sizes + strlen(sizes), "%s%d", i ? "," : "", 900 + i);
    EXPECT_OK(seed_payload(gold, "many", sizes, 1, "shard=100"));
    EXPECT_OK(node_wait(receiver, begin_get(receiver, "many", sizes, "")));
    EXPECT_CONTENT(receiver, "many", 1);
    json_t *reply = node_call(receiver, "index payload=many");
    EXPECT_OK(reply);
    json_t *list = json_object_get(reply, "sizes");
    assert_int_equal(json_array_size(list), 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(json_integer_value(json_array_get(list, (size_t)i)), 900 + i);
    node_stop_all();
}

/* Stores 0 .. count-1 of each process pull at once; each must get all of it, and cost no more requests than one alone.
 */
static void f01_many_receivers(void **state)
{
    struct fixture *fixture = *state;
    unsigned per_process = node_is_sanitized() ? 4 : 16;
    unsigned shards = node_is_sanitized() ? 1000 : 20000;
    uint64_t size = shards * 512ull;
    struct node *gold = start_node(*state, "gold", "lease=600000");
    struct node *processes[PROCESSES];
    unsigned gets[PROCESSES][16];
    double before[PROCESSES][16];

    seed_one(gold, "model", size, 1, "shard=512");
    for (unsigned p = 0; p < PROCESSES; p++) {
        char label[32];
        snprintf(label, sizeof label, "process %u", p);
        processes[p] = node_spawn(label, -1);
        for (unsigned s = 0; s < per_process; s++) {
            EXPECT_OK(node_call(processes[p], "create uri=%s store=%u lease=600000 io_threads=1 digest_threads=1",
                                fixture->uri, s));
            EXPECT_OK(node_call(processes[p], "buf buf=m%u sizes=%llu", s, (unsigned long long)size));
            before[p][s] = requests_of(processes[p], s);
        }
    }
    for (unsigned p = 0; p < PROCESSES; p++)
        for (unsigned s = 0; s < per_process; s++)
            gets[p][s] = node_send(processes[p], "get store=%u payload=model buf=m%u", s, s);
    double most = 0, retries = 0;
    for (unsigned p = 0; p < PROCESSES; p++)
        for (unsigned s = 0; s < per_process; s++) {
            char buffer[16];
            EXPECT_OK(node_wait(processes[p], gets[p][s]));
            snprintf(buffer, sizeof buffer, "m%u", s);
            EXPECT_CONTENT(processes[p], buffer, 1);
            double cost = requests_of(processes[p], s) - before[p][s];
            most = cost > most ? cost : most;
            retries += metric_of(processes[p], s, "shoal_store_publish_retries_total");
        }
    print_message("%u receivers of %u shards: at most %g metadata requests each, %g joins repeated\n",
                  PROCESSES * per_process, shards, most, retries);
    assert_true(retries < 3);
    assert_true(most < 24); /* below 12, and a few keep-alives and refreshes while it lasts */
    WAIT_UNTIL(source_count(gold, "model") == 1 + PROCESSES * per_process);
    node_stop_all();
}

/* Bytes that all receivers took from the gold source, in copies of the payload. */
static void f17_receivers_serve_while_they_pull(void **state)
{
    enum { RECEIVERS = 4 };
    uint64_t size = 64 * MIB;
    struct node *gold = start_node(*state, "gold", "");
    struct node *receivers[RECEIVERS];
    unsigned gets[RECEIVERS];
    int64_t from_gold = 0;

    seed_one(gold, "model", size, 1, "piece=131072");
    /* The gold's link is the narrow one, as it is in a cluster when all start together. */
    EXPECT_OK(node_call(gold, "pace rate=4000000"));
    for (size_t i = 0; i < RECEIVERS; i++)
        receivers[i] = start_node(*state, "receiver", "");
    for (size_t i = 0; i < RECEIVERS; i++)
        gets[i] = begin_get_one(receivers[i], "model", size, "");
    for (size_t i = 0; i < RECEIVERS; i++) {
        json_t *reply = node_wait(receivers[i], gets[i]), *source;
        size_t at;
        int64_t sum = 0;
        EXPECT_OK(reply);
        EXPECT_CONTENT(receivers[i], "model", 1);
        from_gold += source_stat(reply, name_of(gold), "bytes");
        assert_int_equal(source_stat(reply, name_of(gold), "failures"), 0);
        json_array_foreach(json_object_get(reply, "sources"), at, source) sum +=
            json_integer_value(json_object_get(source, "bytes"));
        assert_int_equal(sum, size);
    }
    print_message("gold sent %.2f copies to %d receivers\n", (double)from_gold / (double)size, RECEIVERS);
    assert_true((double)from_gold < 1.5 * (double)size);
    assert_int_equal(source_count(gold, "model"), 1 + RECEIVERS);
    node_stop_all();
}

/* What a receiver had been given that is killed goes to the others. */
static void f17_receiver_dies_with_what_it_was_given(void **state)
{
    enum { RECEIVERS = 3 };
    uint64_t size = 24 * MIB;
    struct node *gold = start_node(*state, "gold", "");
    struct node *receivers[RECEIVERS];
    unsigned gets[RECEIVERS];

    seed_one(gold, "model", size, 1, "piece=65536");
    EXPECT_OK(node_call(gold, "pace " SLOW));
    for (size_t i = 0; i < RECEIVERS; i++)
        receivers[i] = start_node(*state, "receiver", "");
    for (size_t i = 0; i < RECEIVERS; i++)
        gets[i] = begin_get_one(receivers[i], "model", size, "");
    assert_true(node_wait_progress(receivers[0], gets[0], 2 * MIB));
    node_kill(receivers[0]);
    EXPECT_OK(node_call(gold, "pace rate=10000000"));
    for (size_t i = 1; i < RECEIVERS; i++) {
        json_t *reply = node_wait(receivers[i], gets[i]);
        EXPECT_OK(reply);
        EXPECT_CONTENT(receivers[i], "model", 1);
        assert_int_equal(source_stat(reply, name_of(gold), "failures"), 0);
    }
    node_stop_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ITEST(f01_requests_do_not_grow_with_shards),
        ITEST(f01_memory_of_a_pull),
        ITEST(f01_many_regions),
        ITEST(f01_many_receivers),
        ITEST(f17_receivers_serve_while_they_pull),
        ITEST(f17_receiver_dies_with_what_it_was_given),
    };
    if (!itest_begin(argc, argv))
        return 77;
    return cmocka_run_group_tests_name("swarm", tests, NULL, NULL);
}
