/* SPDX-License-Identifier: Apache-2.0 */
/* How payloads are cut into regions, shards and pieces, and what they may be called: F10, F11, F12. */
#include "itest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

/* One node seeds, the other pulls into regions cut otherwise; bytes and neighbourhood must be right. */
static void round_trip(struct node *gold, struct node *receiver, const char *payload, const char *from, const char *to,
                       uint64_t seed, const char *options)
{
    EXPECT_OK(seed_payload(gold, payload, from, seed, options));
    EXPECT_OK(node_wait(receiver, begin_get(receiver, payload, to, "")));
    EXPECT_CONTENT(receiver, payload, seed);
    EXPECT_CONTENT(gold, payload, seed);
    assert_int_equal(source_count(receiver, payload), 2);

    /* A replica is as good as the original, and the last one out deletes the payload. */
    EXPECT_OK(node_call(gold, "unregister payload=%s", payload));
    EXPECT_OK(node_wait(gold, begin_get(gold, payload, from, "")));
    EXPECT_CONTENT(gold, payload, seed);
    EXPECT_OK(node_call(receiver, "delete_replica payload=%s", payload));
    assert_int_equal(source_count(receiver, payload), 1);
    EXPECT_OK(node_call(gold, "delete_replica payload=%s", payload));
    assert_false(is_listed(gold, payload));
    EXPECT_OK(node_call(gold, "unmap buf=%s", payload));
    EXPECT_OK(node_call(receiver, "unmap buf=%s", payload));
}

struct pair_of_nodes {
    struct node *gold, *receiver;
};

static struct pair_of_nodes two_nodes(void **state)
{
    return (struct pair_of_nodes){start_node(*state, "gold", ""), start_node(*state, "receiver", "")};
}

static void f10_zero_size_regions_around(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    char sizes[64], half[64];
    uint64_t size = scaled(64 * MIB) / 2 * 2;
    snprintf(sizes, sizeof sizes, "0,%llu,0", (unsigned long long)size);
    snprintf(half, sizeof half, "%llu,0,%llu", (unsigned long long)size / 2, (unsigned long long)size / 2);
    round_trip(nodes.gold, nodes.receiver, "zeros-around", sizes, sizes, 1, "");
    round_trip(nodes.gold, nodes.receiver, "zeros-between", sizes, half, 2, "");
    round_trip(nodes.gold, nodes.receiver, "zeros-around-halves", half, sizes, 3, "");
    node_stop_all();
}

static void f10_empty_payload(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    round_trip(nodes.gold, nodes.receiver, "empty", "0", "0", 1, "");
    round_trip(nodes.gold, nodes.receiver, "empties", "0,0,0", "0", 1, "");
    EXPECT_OK(seed_payload(nodes.gold, "nothing", "0", 1, ""));
    EXPECT_STATUS(node_wait(nodes.receiver, begin_get(nodes.receiver, "nothing", "1", "")), "INVALID_ARGUMENT");
    assert_true(is_listed(nodes.receiver, "nothing"));
    node_stop_all();
}

static void f10_payload_of_zeros(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    round_trip(nodes.gold, nodes.receiver, "all-zero", "3000000", "1000000,2000000", 0, "piece=4096");
    node_stop_all();
}

static void f11_odd_regions_into_one_and_back(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    unsigned long long a = 70000001, b = 33333333;
    char two[64], one[64];
    if (node_is_sanitized()) {
        a = 7000001;
        b = 3333333;
    }
    snprintf(two, sizeof two, "%llu,%llu", a, b);
    snprintf(one, sizeof one, "%llu", a + b);
    const char *shard = node_is_sanitized() ? "shard=4194304" : "shard=67108864";
    round_trip(nodes.gold, nodes.receiver, "two-to-one", two, one, 11, shard);
    round_trip(nodes.gold, nodes.receiver, "one-to-two", one, two, 12, shard);
    node_stop_all();
}

/* Random cuts on both sides, with random shards and pieces. */
static void f11_random_cuts(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    const char *given = getenv("SHOAL_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : random_id();
    struct random random;
    print_message("seed %llu (SHOAL_TEST_SEED)\n", (unsigned long long)seed);
    random_init(&random, seed);
    for (int round = 0; round < 12; round++) {
        uint64_t total = random_below(&random, 1u << (8 + random_below(&random, 14)));
        char cuts[2][512], options[64], payload[32];
        for (int side = 0; side < 2; side++) {
            uint64_t left = total, count = 1 + random_below(&random, 12);
            size_t at = 0;
            for (uint64_t i = 0; i < count; i++) {
                uint64_t size = i + 1 == count ? left : random_below(&random, left + 1);
                left -= size;
                at += (size_t)snprintf(cuts[side] + at, sizeof cuts[side] - at, "%s%llu", i ? "," : "",
                                       (unsigned long long)size);
            }
        }
        /* At most some thousand pieces. */
        uint64_t least = total / 4000 + 1;
        snprintf(options, sizeof options, "shard=%llu piece=%llu",
                 (unsigned long long)(least + random_below(&random, total + 1)),
                 (unsigned long long)(least + random_below(&random, total + 1)));
        snprintf(payload, sizeof payload, "cut-%d", round);
        print_message("%s: %s -> %s, %s\n", payload, cuts[0], cuts[1], options);
        round_trip(nodes.gold, nodes.receiver, payload, cuts[0], cuts[1], (uint64_t)round + 1, options);
    }
    node_stop_all();
}

static void f12_wrong_total(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    static const char *const wrong[] = {"99999", "100001", "0", "50000,50001", "50000,49999", "1", "100000,1"};
    EXPECT_OK(seed_payload(nodes.gold, "model", "60000,40000", 1, ""));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *reply = node_wait(nodes.receiver, begin_get(nodes.receiver, "model", wrong[i], ""));
        EXPECT_STATUS(reply, "INVALID_ARGUMENT");
        EXPECT_MESSAGE(reply, "100000");
        /* Not a byte was written. */
        EXPECT_CONTENT(nodes.receiver, "model", UINT64_MAX);
        expect_nothing_left(nodes.receiver, "model", "model");
    }
    get_one(nodes.receiver, "model", 100000, 1);
    assert_int_equal(source_count(nodes.gold, "model"), 2);
    node_stop_all();
}

static void f12_shard_sizes(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    round_trip(nodes.gold, nodes.receiver, "shard-default", "200000", "100000,100000", 1, "shard=0");
    round_trip(nodes.gold, nodes.receiver, "shard-of-one", "1000", "400,600", 2, "shard=1");
    round_trip(nodes.gold, nodes.receiver, "shard-odd", "100003,50001", "150004", 3, "shard=12345");
    round_trip(nodes.gold, nodes.receiver, "shard-larger", "100003,50001", "150004", 4, "shard=1099511627776");
    round_trip(nodes.gold, nodes.receiver, "shard-huge", "1000", "1000", 5, "shard=4611686018427387904");
    EXPECT_STATUS(seed_payload(nodes.gold, "shard-largest", "1000", 5, "shard=18446744073709551615"),
                  "INVALID_ARGUMENT");
    round_trip(nodes.gold, nodes.receiver, "piece-larger", "100003", "100003", 6, "shard=5000 piece=1000000");
    round_trip(nodes.gold, nodes.receiver, "piece-of-one", "500", "500", 7, "piece=1");
    EXPECT_OK(seed_payload(nodes.gold, "asked", "1000,2000", 8, "shard=700"));
    json_t *info = json_object_get(node_call(nodes.receiver, "stat payload=asked"), "info");
    assert_int_equal(json_integer_value(json_object_get(info, "shard")), 700);
    assert_int_equal(json_integer_value(json_object_get(info, "total")), 3000);
    assert_int_equal(json_integer_value(json_object_get(info, "size_count")), 2);
    /* 1000 = 700 + 300, 2000 = 700 + 700 + 600: a shard never goes over the end of a region. */
    assert_int_equal(json_integer_value(json_object_get(info, "pieces")), 5);
    node_stop_all();
}

static void f12_names(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    char longest[512 + 1], longer[4096 + 1];
    memset(longest, 'n', sizeof longest);
    longest[512] = '\0';
    static const char *const good[] = {
        "a/b", "/", "//x//", "%20", "a%25b", "%c3%a9t%c3%a9", "-", ".", "..", "*?[", "%e2%82%ac%f0%9f%90%9f"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        round_trip(nodes.gold, nodes.receiver, good[i], "1000", "1000", i + 1, "");
    EXPECT_OK(node_call(nodes.gold, "buf buf=b sizes=1000 seed=1"));
    EXPECT_OK(node_call(nodes.gold, "register payload=%s buf=b", longest));
    EXPECT_OK(node_call(nodes.receiver, "buf buf=b sizes=1000"));
    EXPECT_OK(node_call(nodes.receiver, "get payload=%s buf=b", longest));
    EXPECT_CONTENT(nodes.receiver, "b", 1);
    EXPECT_OK(node_call(nodes.gold, "unregister payload=%s", longest));
    EXPECT_OK(node_call(nodes.receiver, "delete_replica payload=%s", longest));

    memset(longer, 'n', 4096);
    longer[4096] = '\0';
    const char *bad[] = {"",      "%ff%fe", "abc%80", "%c3",  "%ed%a0%80",   "%c0%af",
                         "a%0ab", "%01",    "%7f",    longer, "%f5%80%80%80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        EXPECT_STATUS(node_call(nodes.gold, "register payload=%s buf=b", bad[i]), "INVALID_ARGUMENT");
        EXPECT_STATUS(node_call(nodes.receiver, "get payload=%s buf=b", bad[i]), "INVALID_ARGUMENT");
        EXPECT_STATUS(node_call(nodes.receiver, "stat payload=%s", bad[i]), "INVALID_ARGUMENT|PAYLOAD_NOT_FOUND");
        EXPECT_STATUS(node_call(nodes.gold, "unregister payload=%s", bad[i]), "INVALID_ARGUMENT|PAYLOAD_NOT_OPENED");
    }
    assert_int_equal(served_count(nodes.gold), 0);
    assert_int_equal(served_count(nodes.receiver), 0);
    node_stop_all();
}

/* Names that are prefixes or look like levels of each other stay apart. */
static void f12_names_do_not_touch_each_other(void **state)
{
    struct pair_of_nodes nodes = two_nodes(state);
    static const char *const names[] = {"a", "a/", "a/b", "ab", "a%25", "A"};
    size_t count = sizeof names / sizeof names[0];
    for (size_t i = 0; i < count; i++)
        EXPECT_OK(seed_payload(nodes.gold, names[i], "1000", i + 1, ""));
    json_t *list = json_object_get(node_call(nodes.receiver, "list prefix=a/"), "payloads");
    assert_int_equal(json_array_size(list), 2);
    list = json_object_get(node_call(nodes.receiver, "list prefix="), "payloads");
    assert_int_equal(json_array_size(list), count);
    for (size_t i = 1; i < count; i++)
        assert_true(strcmp(json_string_value(json_object_get(json_array_get(list, i - 1), "name")),
                           json_string_value(json_object_get(json_array_get(list, i), "name"))) < 0);
    EXPECT_OK(node_call(nodes.gold, "unregister payload=a"));
    list = json_object_get(node_call(nodes.receiver, "list prefix="), "payloads");
    assert_int_equal(json_array_size(list), count - 1);
    for (size_t i = 1; i < count; i++)
        get_one(nodes.receiver, names[i], 1000, i + 1);
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(f10_zero_size_regions_around),
        ITEST(f10_empty_payload),
        ITEST(f10_payload_of_zeros),
        ITEST(f11_odd_regions_into_one_and_back),
        ITEST(f11_random_cuts),
        ITEST(f12_wrong_total),
        ITEST(f12_shard_sizes),
        ITEST(f12_names),
        ITEST(f12_names_do_not_touch_each_other),
    };
    return cmocka_run_group_tests_name("regions", tests, NULL, NULL);
}
