/* SPDX-License-Identifier: Apache-2.0 */
/* What is there already is not pulled: regions of an interrupted pull, and memory of a previous generation. */
#include "itest.h"

#include <stdio.h>
#include <string.h>

#define PIECE 65536ull
#define PIECES_TOTAL 96ull
#define SIZE (PIECES_TOTAL * PIECE)
#define CUT "piece=65536 shard=1048576"

static int64_t reused_of(json_t *reply)
{
    return json_integer_value(json_object_get(reply, "reused"));
}

static int64_t done_of(json_t *reply)
{
    return json_integer_value(json_object_get(reply, "done"));
}

static int64_t from_sources(json_t *reply)
{
    int64_t sum = 0;
    size_t at;
    json_t *source;
    json_array_foreach(json_object_get(reply, "sources"), at, source) sum +=
        json_integer_value(json_object_get(source, "bytes"));
    return sum;
}

static void make_buffer(struct node *node, const char *name, const char *sizes, uint64_t seed)
{
    EXPECT_OK(node_call(node, "buf buf=%s sizes=%s seed=%llu", name, sizes, (unsigned long long)seed));
}

static void make_one(struct node *node, const char *name, uint64_t size, uint64_t seed)
{
    char sizes[32];
    snprintf(sizes, sizeof sizes, "%llu", (unsigned long long)size);
    make_buffer(node, name, sizes, seed);
}

/* One wrong byte in each piece from the one at from on. */
static void damage(struct node *node, const char *buffer, uint64_t from, uint64_t every)
{
    EXPECT_OK(node_call(node, "corrupt buf=%s offset=%llu every=%llu", buffer, (unsigned long long)(from * PIECE + 7),
                        (unsigned long long)(every * PIECE)));
}

static void expect_shares(json_t *reply, uint64_t pieces_here)
{
    EXPECT_OK(reply);
    assert_int_equal(reused_of(reply), pieces_here * PIECE);
    assert_int_equal(from_sources(reply), (PIECES_TOTAL - pieces_here) * PIECE);
    assert_int_equal(done_of(reply), SIZE);
}

static void only_the_rest_is_pulled(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "model", SIZE, 1);
    damage(receiver, "model", PIECES_TOTAL / 2, 1);
    expect_shares(node_call(receiver, "get payload=model buf=model reuse=1"), PIECES_TOTAL / 2);
    EXPECT_CONTENT(receiver, "model", 1);
    assert_true(metric_of(receiver, 0, "shoal_store_reused_bytes_total") == (double)SIZE / 2);
    assert_true(metric_of(receiver, 0, "shoal_store_pulled_bytes_total") == (double)SIZE / 2);
    assert_int_equal(source_count(gold, "model"), 2);
    node_stop_all();
}

/* Without the option the same bytes are worth nothing. */
static void nothing_is_kept_unasked(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "model", SIZE, 1);
    expect_shares(node_call(receiver, "get payload=model buf=model"), 0);
    node_stop_all();
}

static void digests_decide_also_without_verification(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "model", SIZE, 1);
    damage(receiver, "model", 5, 3);
    expect_shares(node_call(receiver, "get payload=model buf=model reuse=1 no_verify=1"),
                  PIECES_TOTAL - (PIECES_TOTAL - 5 + 2) / 3);
    EXPECT_CONTENT(receiver, "model", 1);
    node_stop_all();
}

/* Nothing is pulled, and the node is a source all the same. */
static void everything_is_here(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    struct node *next = start_node(*state, "next", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "model", SIZE, 1);
    expect_shares(node_call(receiver, "get payload=model buf=model reuse=1"), PIECES_TOTAL);
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    expect_shares(get_one(next, "model", SIZE, 1), 0);
    node_stop_all();
}

/* Asked for nothing but what is here: all of it, or nothing is pulled and nothing is written. */
static void all_or_nothing(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "model", SIZE, 1);
    damage(receiver, "model", PIECES_TOTAL - 1, 1);
    json_t *reply = node_call(receiver, "get payload=model buf=model reuse=2");
    EXPECT_STATUS(reply, "NOT_FOUND");
    EXPECT_MESSAGE(reply, "model");
    assert_int_equal(from_sources(reply), 0);
    assert_int_equal(find_difference(receiver, "model", 1), (PIECES_TOTAL - 1) * PIECE + 7);
    expect_nothing_left(receiver, "model", "model");
    damage(receiver, "model", PIECES_TOTAL - 1, 1);
    expect_shares(node_call(receiver, "get payload=model buf=model reuse=2"), PIECES_TOTAL);
    assert_int_equal(source_count(gold, "model"), 2);
    EXPECT_STATUS(node_call(gold, "get payload=other buf=model reuse=3"), "INVALID_ARGUMENT");
    node_stop_all();
}

/* Other receivers are given what was here. */
static void what_is_here_is_served(void **state)
{
    const uint64_t size = 4 * SIZE; /* more than is asked of the gold source before the other one is known */
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    struct node *next = start_node(*state, "next", "");
    seed_one(gold, "model", size, 1, CUT);
    EXPECT_OK(node_call(gold, "pace rate=300000"));
    make_one(receiver, "model", size, 1);
    damage(receiver, "model", 3 * PIECES_TOTAL, 1);
    unsigned get = node_send(receiver, "get payload=model buf=model reuse=1 progress=20");
    WAIT_UNTIL(is_source(next, "model", name_of(receiver)));
    assert_false(node_is_done(receiver, get));
    unsigned get_next = begin_get_one(next, "model", size, "");
    WAIT_UNTIL((node_is_done(next, get_next), node_progress_from(next, get_next, name_of(receiver)) > 0));
    EXPECT_OK(node_call(gold, "pace"));
    json_t *reply = node_wait(receiver, get);
    EXPECT_OK(reply);
    assert_int_equal(reused_of(reply), 3 * SIZE);
    EXPECT_OK(node_wait(next, get_next));
    EXPECT_CONTENT(receiver, "model", 1);
    EXPECT_CONTENT(next, "model", 1);
    node_stop_all();
}

/* Only what the new generation changed is pulled; the regions are cut otherwise than the registered ones, so that
 * pieces lie in two of them. */
static void generation_change(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    static const char sizes[] = "1000000,0,2000001,3291455";
    seed_one(gold, "model", SIZE, 1, CUT);
    make_buffer(receiver, "old", sizes, 0);
    EXPECT_OK(node_call(receiver, "get payload=model buf=old"));
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    EXPECT_OK(node_call(gold, "unregister payload=model"));
    damage(gold, "model", 3, 10); /* 10 of 96 pieces are new */
    EXPECT_OK(node_call(gold, "register payload=model buf=model " CUT));
    make_buffer(receiver, "new", sizes, 0);
    expect_shares(node_call(receiver, "get payload=model buf=new previous=old"), PIECES_TOTAL - 10);
    json_t *here = node_call(receiver, "hash buf=new"), *there = node_call(gold, "hash buf=model");
    assert_string_equal(json_string_value(json_object_get(here, "hash")),
                        json_string_value(json_object_get(there, "hash")));
    EXPECT_CONTENT(receiver, "old", 1); /* only read */
    node_stop_all();
}

/* Regions that are shorter or longer than before, or not there; and the pull's own regions hold some as well. */
static void previous_regions_of_other_sizes(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    char sizes[64], before[64];
    snprintf(sizes, sizeof sizes, "%llu,%llu,%llu", 32 * PIECE, 32 * PIECE, 32 * PIECE);
    /* 16 whole pieces and a bit; nothing; as much as there can be, and more. */
    snprintf(before, sizeof before, "%llu,0,%llu", 16 * PIECE + 5, 70 * PIECE);
    EXPECT_OK(seed_payload(gold, "model", sizes, 1, CUT));
    make_buffer(receiver, "old", before, 1);
    make_buffer(receiver, "model", sizes, 1);
    damage(receiver, "model", 0, 1);
    damage(receiver, "model", 90, 1); /* right again: 6 pieces */
    json_t *reply = node_call(receiver, "get payload=model buf=model reuse=1 previous=old");
    expect_shares(reply, 16 + 6);
    EXPECT_CONTENT(receiver, "model", 1);
    node_stop_all();
}

static void previous_that_has_nothing_in_common(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    make_one(receiver, "old", SIZE, 2);
    make_one(receiver, "model", SIZE, 0);
    expect_shares(node_call(receiver, "get payload=model buf=model previous=old"), 0);
    EXPECT_CONTENT(receiver, "model", 1);
    node_stop_all();
}

/* Without a source that gives the index nothing can be compared: the error is that of any pull. */
static void without_a_source(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=30000");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    node_kill(gold);
    make_one(receiver, "model", SIZE, 1);
    EXPECT_STATUS(node_call(receiver, "get payload=model buf=model reuse=1"), "NO_SOURCE");
    expect_nothing_left(receiver, "model", "model");
    node_stop_all();
}

/* Nothing is told, nothing is served; the next one begins anew. */
static void canceled_while_it_checks(void **state)
{
    const uint64_t size = scaled(256 * MIB);
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "digest_threads=1");
    seed_one(gold, "model", size, 1, CUT);
    make_one(receiver, "model", size, 1);
    unsigned get = node_send(receiver, "get payload=model buf=model reuse=1 progress=1");
    assert_true(node_wait_progress(receiver, get, 1));
    node_call(receiver, "cancel id=%u", get); /* it may be done already */
    json_t *reply = node_wait(receiver, get);
    EXPECT_STATUS(reply, "CANCELED|OK");
    assert_int_equal(from_sources(reply), 0);
    if (has_status(reply, "OK"))
        EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    reply = node_call(receiver, "get payload=model buf=model reuse=1");
    EXPECT_OK(reply);
    assert_int_equal(reused_of(reply), size);
    EXPECT_CONTENT(receiver, "model", 1);
    node_stop_all();
}

/* A pull that ends in the middle leaves regions that the next one completes. */
static void after_an_interrupted_pull(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "");
    seed_one(gold, "model", SIZE, 1, CUT);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    assert_true(node_wait_progress(receiver, get, SIZE / 4));
    EXPECT_OK(node_call(receiver, "cancel id=%u", get));
    json_t *reply = node_wait(receiver, get);
    EXPECT_STATUS(reply, "CANCELED");
    int64_t done = done_of(reply);
    assert_in_range(done, SIZE / 4, SIZE - 1);
    EXPECT_OK(node_call(gold, "pace"));
    reply = node_call(receiver, "get payload=model buf=model reuse=1");
    EXPECT_OK(reply);
    /* A piece that had arrived and was not looked at any more counts as well. */
    assert_in_range(reused_of(reply), done, SIZE - 1);
    assert_int_equal(reused_of(reply) + from_sources(reply), SIZE);
    EXPECT_CONTENT(receiver, "model", 1);
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(only_the_rest_is_pulled),
        ITEST(nothing_is_kept_unasked),
        ITEST(digests_decide_also_without_verification),
        ITEST(everything_is_here),
        ITEST(all_or_nothing),
        ITEST(what_is_here_is_served),
        ITEST(generation_change),
        ITEST(previous_regions_of_other_sizes),
        ITEST(previous_that_has_nothing_in_common),
        ITEST(without_a_source),
        ITEST(canceled_while_it_checks),
        ITEST(after_an_interrupted_pull),
    };
    return cmocka_run_group_tests_name("reuse", tests, NULL, NULL);
}
