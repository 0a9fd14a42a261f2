/* SPDX-License-Identifier: Apache-2.0 */
/* Who gives what to whom: the list of receivers at a source, and the sources' own account of themselves. */
#include "itest.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "liar.h"
#include "meta_edit.h"

#define SIZE (8 * MIB)
#define PIECES 128
#define PIECE "piece=65536 shard=1048576"

/* The entry called name in list. */
static json_t *entry_of(json_t *list, const char *name)
{
    size_t at;
    json_t *entry;

    json_array_foreach(list, at, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "name")), name) == 0)
            return entry;
    }
    return NULL;
}

static const char *text_of(json_t *entry, const char *what)
{
    const char *text = json_string_value(json_object_get(entry, what));
    return text ? text : "(nothing)";
}

static int64_t number_of(json_t *entry, const char *what)
{
    assert_true(json_is_integer(json_object_get(entry, what)));
    return json_integer_value(json_object_get(entry, what));
}

static json_t *receiver_of(struct node *node, const char *name)
{
    json_t *reply = node_call(node, "receivers payload=model");
    EXPECT_OK(reply);
    return entry_of(json_object_get(reply, "receivers"), name);
}

static bool has_state(struct node *node, const char *name, const char *state)
{
    json_t *entry = receiver_of(node, name);
    return entry && strcmp(text_of(entry, "state"), state) == 0;
}

static json_t *sources_of(struct node *node, const char *options)
{
    json_t *reply = node_call(node, "source_status payload=model %s", options);
    EXPECT_OK(reply);
    return json_object_get(reply, "sources");
}

static int64_t given_by_all(struct node *node)
{
    int64_t given = 0;
    size_t at;
    json_t *source;

    json_array_foreach(sources_of(node, ""), at, source) given += number_of(source, "bytes");
    return given;
}

static void two_receivers(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receivers[2], *looker = start_node(*state, "looker", "");
    unsigned gets[2];
    json_t *replies[2];

    seed_one(gold, "model", SIZE, 1, PIECE);
    EXPECT_OK(node_call(gold, "pace rate=3000000"));
    assert_int_equal(json_array_size(json_object_get(node_call(gold, "receivers payload=model"), "receivers")), 0);
    for (size_t i = 0; i < 2; i++)
        receivers[i] = start_node(*state, "receiver", "");
    for (size_t i = 0; i < 2; i++)
        gets[i] = begin_get_one(receivers[i], "model", SIZE, "");
    /* Both at once, while they pull. */
    WAIT_UNTIL(has_state(gold, name_of(receivers[0]), "taking") && has_state(gold, name_of(receivers[1]), "taking"));
    json_t *source = entry_of(sources_of(looker, "max_receivers=10"), name_of(gold));
    assert_int_equal(number_of(source, "now"), 2);
    assert_non_null(entry_of(json_object_get(source, "receivers"), name_of(receivers[0])));
    EXPECT_OK(node_call(gold, "pace"));

    int64_t from_gold = 0;
    for (size_t i = 0; i < 2; i++) {
        replies[i] = node_wait(receivers[i], gets[i]);
        EXPECT_OK(replies[i]);
        WAIT_UNTIL(has_state(gold, name_of(receivers[i]), "done"));
        json_t *entry = receiver_of(gold, name_of(receivers[i]));
        /* What the receiver says it took is what the source says it gave. */
        assert_int_equal(number_of(entry, "bytes"), source_stat(replies[i], name_of(gold), "bytes"));
        assert_int_equal(number_of(entry, "have"), PIECES);
        from_gold += number_of(entry, "bytes");
    }

    json_t *sources = sources_of(looker, "max_receivers=10");
    assert_int_equal(json_array_size(sources), 3);
    source = entry_of(sources, name_of(gold));
    assert_string_equal(text_of(source, "status"), "OK");
    assert_true(json_is_true(json_object_get(source, "gold")));
    assert_int_equal(number_of(source, "have"), PIECES);
    assert_int_equal(number_of(source, "pieces"), PIECES);
    assert_int_equal(number_of(source, "bytes"), from_gold);
    assert_int_equal(number_of(source, "now"), 0);
    assert_int_equal(number_of(source, "known"), 2);
    assert_int_equal(json_array_size(json_object_get(source, "receivers")), 2);
    /* All that was taken was given by somebody; a piece that was slow may have been given twice. */
    WAIT_UNTIL(given_by_all(looker) >= 2 * (int64_t)SIZE);
    /* A source asks itself, too, and lists only as many as it was asked for. */
    source = entry_of(sources_of(gold, "max_receivers=1"), name_of(gold));
    assert_string_equal(text_of(source, "status"), "OK");
    assert_int_equal(number_of(source, "known"), 2);
    assert_int_equal(json_array_size(json_object_get(source, "receivers")), 1);
    assert_int_equal(json_array_size(json_object_get(entry_of(sources_of(looker, ""), name_of(gold)), "receivers")), 0);
    node_stop_all();
}

/* A receiver that dies is gone from the list as soon as its connection breaks, and its bytes stay in the account. */
static void killed_receiver(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *receiver = start_node(*state, "receiver", "lease=2000");
    char name[320];

    seed_one(gold, "model", SIZE, 1, PIECE);
    EXPECT_OK(node_call(gold, "pace " SLOW));
    unsigned get = begin_get_one(receiver, "model", SIZE, "");
    snprintf(name, sizeof name, "%s", name_of(receiver));
    WAIT_UNTIL(node_is_done(receiver, get) ||
               (receiver_of(gold, name) && number_of(receiver_of(gold, name), "bytes") > 0));
    assert_false(node_is_done(receiver, get));
    node_kill(receiver);
    WAIT_UNTIL(has_state(gold, name, "left"));
    json_t *entry = receiver_of(gold, name);
    assert_in_range(number_of(entry, "bytes"), 1, SIZE - 1);
    json_t *served = json_array_get(json_object_get(node_call(gold, "served"), "served"), 0);
    assert_int_equal(number_of(served, "receivers"), 0);
    assert_int_equal(number_of(served, "bytes"), number_of(entry, "bytes"));
    node_stop_all();
}

/* One source is dead, one is stopped: entries that say so, beside those that answer. */
static void dead_sources(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=60000");
    struct node *dead = start_node(*state, "dead", "lease=60000");
    struct node *stopped = start_node(*state, "stopped", "lease=60000");
    struct node *looker = start_node(*state, "looker", "");
    char dead_name[320];

    seed_one(gold, "model", SIZE, 1, PIECE);
    get_one(dead, "model", SIZE, 1);
    get_one(stopped, "model", SIZE, 1);
    snprintf(dead_name, sizeof dead_name, "%s", name_of(dead));
    node_kill(dead);
    stop_node(*state, stopped);

    json_t *sources = sources_of(looker, "max_receivers=10"), *entry;
    assert_int_equal(json_array_size(sources), 3);
    assert_string_equal(text_of(entry_of(sources, name_of(gold)), "status"), "OK");
    entry = entry_of(sources, dead_name);
    assert_string_equal(text_of(entry, "status"), "UNREACHABLE");
    assert_non_null(strstr(text_of(entry, "message"), dead_name));
    assert_int_equal(number_of(entry, "pieces"), 0);
    entry = entry_of(sources, name_of(stopped));
    assert_string_equal(text_of(entry, "status"), "TIMED_OUT");

    /* The deadline of the call goes before that of a source: still no error of the whole. */
    sources = sources_of(looker, "timeout=500");
    assert_string_equal(text_of(entry_of(sources, name_of(stopped)), "status"), "TIMED_OUT");
    assert_string_equal(text_of(entry_of(sources, name_of(gold)), "status"), "OK");

    unsigned id = node_send(looker, "source_status payload=model");
    EXPECT_OK(node_call(looker, "cancel id=%u", id));
    EXPECT_STATUS(node_wait(looker, id), "CANCELED");
    node_signal(stopped, SIGCONT);
    WAIT_UNTIL(strcmp(text_of(entry_of(sources_of(looker, ""), name_of(stopped)), "status"), "OK") == 0);
    node_stop_all();
}

/* An answer that cannot be true is an entry that says so. */
static void lying_source(void **state)
{
    struct fixture *fixture = *state;
    struct node *gold = start_node(fixture, "gold", "");
    struct node *hidden = start_node(fixture, "hidden", "lease=60000");
    struct node *looker = start_node(fixture, "looker", "");
    struct liar *liar;
    json_t *sources, *entry;

    seed_one(gold, "model", SIZE, 1, PIECE);
    get_one(hidden, "model", SIZE, 1);
    liar = liar_create(name_of(hidden), LIAR_BOASTS);
    assert_true(meta_edit_replace_address(fixture->uri, name_of(hidden), liar_address(liar)) > 0);
    sources = sources_of(looker, "max_receivers=1");
    assert_string_equal(text_of(entry_of(sources, name_of(gold)), "status"), "OK");
    entry = entry_of(sources, name_of(hidden));
    assert_string_equal(text_of(entry, "status"), "PROTOCOL");
    assert_non_null(strstr(text_of(entry, "message"), liar_address(liar)));
    assert_int_equal(number_of(entry, "have"), 0);
    assert_int_equal(liar_count(liar), 1);
    node_stop_all();
    liar_destroy(liar);
}

/* The name outlives its sources when the last one is killed: then there is nobody to ask, which is no error. */
static void no_source(void **state)
{
    struct node *gold = start_node(*state, "gold", "lease=2000");
    struct node *looker = start_node(*state, "looker", "");

    seed_one(gold, "model", SIZE, 1, PIECE);
    assert_int_equal(json_array_size(sources_of(looker, "")), 1);
    node_kill(gold);
    WAIT_UNTIL(json_array_size(sources_of(looker, "")) == 0);
    node_stop_all();
}

static void wrong_arguments(void **state)
{
    struct node *gold = start_node(*state, "gold", "");
    struct node *other = start_node(*state, "other", "");

    seed_one(gold, "model", SIZE, 1, PIECE);
    EXPECT_STATUS(node_call(gold, "receivers payload=nothing"), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(other, "receivers payload=model"), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(other, "receivers"), "INVALID_ARGUMENT");
    EXPECT_STATUS(node_call(other, "source_status"), "INVALID_ARGUMENT");
    EXPECT_STATUS(node_call(other, "source_status payload=nothing"), "PAYLOAD_NOT_FOUND");
    EXPECT_STATUS(node_call(other, "source_status payload=model generation=1"), "REPLACED");
    EXPECT_OK(node_call(other, "source_status payload=model max_receivers=4000000000"));
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(two_receivers), ITEST(killed_receiver), ITEST(dead_sources),
        ITEST(lying_source),  ITEST(no_source),       ITEST(wrong_arguments),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
