/* SPDX-License-Identifier: Apache-2.0 */
/* Sources that announce what they do not have, never send, send what nobody asked for, or flood receivers with news. An
 * honest source is always there, and slow: every pull must end with the exact bytes,
 * the liar must be left, and what it cost is bounded. */
#include "itest.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "liar.h"
#include "meta_edit.h"

/* Not scaled down: the first 10 segments of a connection (640 KiB on loopback) are not paced. */
#define SIZE (24 * MIB)
#define PIECES "piece=65536 shard=1048576"
#define MORE_MIB 48 /* of memory that a pull may take beside a liar */

struct scene {
    struct node *gold, *hidden, *receiver;
    struct liar *liar;
    int64_t rss_before_kib;
};

static int64_t rss_kib(struct node *node)
{
    return json_integer_value(json_object_get(node_call(node, "process"), "rss_kib"));
}

/* gold is honest and slow; whoever asks for hidden, which has everything as well, gets to the liar. */
static void make_scene(struct fixture *fixture, enum liar_lie lie, struct scene *scene)
{
    const char *patience = "lease=30000 stall=2000 connect=2000";
    scene->gold = start_node(fixture, "gold", patience);
    scene->hidden = start_node(fixture, "hidden", patience);
    scene->receiver = start_node(fixture, "receiver", patience);
    seed_one(scene->gold, "model", SIZE, 1, PIECES);
    get_one(scene->hidden, "model", SIZE, 1);
    EXPECT_OK(node_call(scene->gold, "pace " SLOW));
    scene->liar = liar_create(name_of(scene->hidden), lie);
    assert_true(meta_edit_replace_address(fixture->uri, name_of(scene->hidden), liar_address(scene->liar)) > 0);
    EXPECT_OK(node_call(scene->receiver, "buf buf=model sizes=%llu", (unsigned long long)SIZE));
    scene->rss_before_kib = rss_kib(scene->receiver);
}

static void end_scene(struct scene *scene)
{
    node_stop_all();
    liar_destroy(scene->liar);
}

/* Pulls beside the liar. Returns the answer. */
static json_t *pull(struct scene *scene)
{
    unsigned get = node_send(scene->receiver, "get payload=model buf=model");
    WAIT_UNTIL(liar_count(scene->liar) > 0);
    assert_false(node_is_done(scene->receiver, get));
    EXPECT_OK(node_call(scene->gold, "pace rate=10000000"));
    json_t *reply = node_wait(scene->receiver, get);
    EXPECT_OK(reply);
    EXPECT_CONTENT(scene->receiver, "model", 1);
    int64_t more_kib = rss_kib(scene->receiver) - scene->rss_before_kib;
    if (!node_is_sanitized() && more_kib > MORE_MIB * 1024)
        fail_msg("%lld KiB more memory", (long long)more_kib);
    return reply;
}

/* Everything comes from the honest one, and the other is left. */
static json_t *pull_all_from_gold(struct scene *scene)
{
    json_t *reply = pull(scene);
    assert_int_equal(source_stat(reply, name_of(scene->gold), "bytes"), SIZE);
    assert_int_equal(source_stat(reply, name_of(scene->gold), "failures"), 0);
    assert_int_equal(source_stat(reply, name_of(scene->hidden), "bytes"), 0);
    return reply;
}

static void announces_what_it_does_not_have(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_REFUSES, &scene);
    json_t *reply = pull_all_from_gold(&scene);
    assert_true(source_stat(reply, name_of(scene.hidden), "failures") > 0);
    /* Refused memory does not come back: it was not asked again and again. */
    assert_true(liar_count(scene.liar) < 2 * SIZE / 65536);
    end_scene(&scene);
}

static void announces_and_sends_other_bytes(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_SENDS_NOISE, &scene);
    json_t *reply = pull_all_from_gold(&scene);
    assert_true(source_stat(reply, name_of(scene.hidden), "bad") > 0);
    assert_int_equal(source_stat(reply, name_of(scene.gold), "bad"), 0);
    end_scene(&scene);
}

static void announces_and_never_sends(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_IS_SILENT, &scene);
    pull_all_from_gold(&scene);
    end_scene(&scene);
}

/* Answers that nobody waits for end the connection, are counted, and harm nobody else. */
static void send_unasked(void **state, enum liar_lie lie)
{
    struct scene scene;
    make_scene(*state, lie, &scene);
    json_t *reply = pull_all_from_gold(&scene);
    assert_true(source_stat(reply, name_of(scene.hidden), "failures") > 0);
    assert_true(metric_of(scene.receiver, 0, "shoal_transport_tcp_protocol_errors_total") > 0);
    end_scene(&scene);
}

static void answers_requests_of_nobody(void **state)
{
    send_unasked(state, LIAR_ANSWERS_OTHERS);
}

static void sends_more_than_asked_for(void **state)
{
    send_unasked(state, LIAR_SENDS_MORE);
}

static void grants_what_is_no_write(void **state)
{
    send_unasked(state, LIAR_GRANTS);
}

static void asks_instead_of_answering(void **state)
{
    send_unasked(state, LIAR_ASKS);
}

/* News that cannot be true: the source is left at the first lie, for good. */
static void tell_false_news(void **state, enum liar_lie lie)
{
    struct scene scene;
    make_scene(*state, lie, &scene);
    json_t *reply = pull(&scene);
    assert_int_equal(source_stat(reply, name_of(scene.hidden), "failures"), 1);
    assert_int_equal(liar_count(scene.liar), 1);
    end_scene(&scene);
}

static void repeats_a_piece(void **state)
{
    tell_false_news(state, LIAR_REPEATS);
}

static void invents_a_piece(void **state)
{
    tell_false_news(state, LIAR_INVENTS);
}

static void goes_back(void **state)
{
    tell_false_news(state, LIAR_GOES_BACK);
}

static void jumps(void **state)
{
    tell_false_news(state, LIAR_JUMPS);
}

/* Nothing, as fast as it is asked for. */
static void babbles(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_BABBLES, &scene);
    json_t *reply = pull(&scene);
    assert_int_equal(source_stat(reply, name_of(scene.hidden), "failures"), 1);
    assert_true(liar_count(scene.liar) < 200);
    end_scene(&scene);
}

/* Answers to calls that nobody made. */
static void shouts(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_SHOUTS, &scene);
    json_t *reply = pull(&scene);
    assert_true(source_stat(reply, name_of(scene.hidden), "failures") > 0);
    assert_true(liar_count(scene.liar) < 50);
    assert_true(metric_of(scene.receiver, 0, "shoal_rpc_protocol_errors_total") > 0);
    end_scene(&scene);
}

/* No upload slot, at once, again and again. */
static void denies(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_DENIES, &scene);
    json_t *reply = pull_all_from_gold(&scene);
    assert_int_equal(source_stat(reply, name_of(scene.hidden), "failures"), 1);
    assert_true(liar_count(scene.liar) < 200);
    end_scene(&scene);
}

static void grants_too_much(void **state)
{
    tell_false_news(state, LIAR_OVERGRANTS);
}

static void grants_what_does_not_exist(void **state)
{
    tell_false_news(state, LIAR_MISGRANTS);
}

static void grants_more_pieces_than_slots(void **state)
{
    tell_false_news(state, LIAR_MISCOUNTS);
}

static void grants_noise(void **state)
{
    tell_false_news(state, LIAR_MUMBLES);
}

/* Claims that are never answered cost nothing but that source. */
static void never_grants(void **state)
{
    struct scene scene;
    make_scene(*state, LIAR_IGNORES, &scene);
    pull_all_from_gold(&scene);
    assert_true(liar_count(scene.liar) < 50);
    end_scene(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(announces_what_it_does_not_have),
        ITEST(announces_and_sends_other_bytes),
        ITEST(announces_and_never_sends),
        ITEST(answers_requests_of_nobody),
        ITEST(sends_more_than_asked_for),
        ITEST(grants_what_is_no_write),
        ITEST(asks_instead_of_answering),
        ITEST(repeats_a_piece),
        ITEST(invents_a_piece),
        ITEST(goes_back),
        ITEST(jumps),
        ITEST(babbles),
        ITEST(shouts),
        ITEST(denies),
        ITEST(grants_too_much),
        ITEST(grants_what_does_not_exist),
        ITEST(grants_more_pieces_than_slots),
        ITEST(grants_noise),
        ITEST(never_grants),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("liar", tests, NULL, NULL);
}
