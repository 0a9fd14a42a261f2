/* SPDX-License-Identifier: Apache-2.0 */
/* The master's registry with an explicit clock, write targets, and patterns compared with fnmatch. */
#include "unit.h"

#include <fnmatch.h>

#include "base/pattern.h"
#include "master/registry.h"
#include "master/targets.h"

#define TTL_MS 1000

static struct registry *create(size_t drop_queue_bytes, uint32_t max_clients)
{
    struct registry_config config = {
        .client_ttl_ms = TTL_MS, .drop_queue_bytes = drop_queue_bytes, .max_clients = max_clients};
    struct registry *registry = NULL;

    assert_int_equal(registry_create(&config, &registry, NULL), SHOAL_OK);
    return registry;
}

static enum shoal_status add(struct registry *registry, uint64_t instance, const char *name, uint64_t objects,
                             int64_t now_ms, struct client **client_out)
{
    struct client_tier tier = {.type = 1, .capacity_bytes = 1000, .used_bytes = 400};
    struct registration registration = {.instance = instance,
                                        .server_name = name,
                                        .address = "10.0.0.1:7",
                                        .tiers = &tier,
                                        .tier_count = 1,
                                        .object_count = objects};
    struct shoal_error error;

    return registry_register(registry, &registration, now_ms, client_out, NULL, &error);
}

static bool is_live(const struct registry *registry, uint64_t instance)
{
    return registry_find(registry, instance) != NULL;
}

/* --- life --- */

static void silence_ends_a_client(void **state)
{
    struct registry *registry = create(0, 8);
    struct client *a, *b;
    bool was_stalled;
    int64_t now_ms = 5000;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 0, now_ms, &a), SHOAL_OK);
    assert_int_equal(add(registry, 2, "b", 0, now_ms, &b), SHOAL_OK);
    for (int i = 0; i < 20; i++) {
        now_ms += registry_tick_ms(registry);
        registry_heard(a, a->tiers, a->tier_count, 0, now_ms);
        registry_tick(registry, now_ms, &was_stalled);
        assert_false(was_stalled);
        assert_true(is_live(registry, 1));
        assert_int_equal(is_live(registry, 2), now_ms - 5000 <= TTL_MS);
    }
    assert_int_equal(b->state, CLIENT_GONE);
    assert_null(registry_find_name(registry, "b"));
    assert_int_equal(registry_live_count(registry), 1);
    registry_free(registry, b);
    assert_int_equal(b->state, CLIENT_FREE);
    registry_destroy(registry);
}

static void a_stall_of_our_own_ends_nobody(void **state)
{
    struct registry *registry = create(0, 8);
    struct client *client;
    bool was_stalled;
    int64_t now_ms = 5000;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 0, now_ms, &client), SHOAL_OK);
    registry_tick(registry, now_ms, &was_stalled);
    now_ms += 100 * TTL_MS; /* stopped, or a machine that swaps */
    assert_int_equal(registry_tick(registry, now_ms, &was_stalled), 0);
    assert_true(was_stalled);
    assert_true(is_live(registry, 1));
    for (int i = 0; i < 20 && is_live(registry, 1); i++) { /* the fresh ttl ends, too */
        now_ms += registry_tick_ms(registry);
        registry_tick(registry, now_ms, &was_stalled);
        assert_false(was_stalled);
    }
    assert_false(is_live(registry, 1));
    registry_destroy(registry);
}

static void names_and_slots(void **state)
{
    struct registry *registry = create(0, 2);
    struct client *a, *b, *other = NULL;
    struct shoal_error error;
    struct registration twin = {.instance = 9, .server_name = "a", .address = "10.0.0.9:7"}, bad = twin;
    char long_name[400];
    uint16_t epoch;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 3, 0, &a), SHOAL_OK);
    assert_true(a->is_announcing && registry_is_announcing(registry));
    assert_int_equal(registry_register(registry, &twin, 0, &b, &other, &error), SHOAL_NAME_IN_USE);
    assert_ptr_equal(other, a);
    assert_non_null(strstr(error.message, "10.0.0.1:7"));
    epoch = a->epoch;
    assert_int_equal(add(registry, 1, "renamed", 0, 0, &b), SHOAL_OK); /* the same one again */
    assert_ptr_equal(a, b);
    assert_int_not_equal(a->epoch, epoch);
    assert_false(a->is_announcing);
    assert_true(a->has_stale);
    assert_int_equal(registry_register(registry, &twin, 0, &b, NULL, &error), SHOAL_OK);
    assert_int_equal(add(registry, 3, "c", 0, 0, &other), SHOAL_LIMIT);
    registry_end(registry, b);
    assert_int_equal(add(registry, 3, "c", 0, 0, &other), SHOAL_LIMIT); /* until its routes are gone */
    registry_free(registry, b);
    assert_int_equal(add(registry, 3, "c", 0, 0, &other), SHOAL_OK);
    assert_int_equal(other->slot, 1);

    bad.instance = 0;
    assert_int_equal(registry_register(registry, &bad, 0, &b, NULL, &error), SHOAL_INVALID_ARGUMENT);
    bad = twin;
    bad.server_name = "";
    assert_int_equal(registry_register(registry, &bad, 0, &b, NULL, &error), SHOAL_INVALID_ARGUMENT);
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    bad.server_name = long_name;
    assert_int_equal(registry_register(registry, &bad, 0, &b, NULL, &error), SHOAL_INVALID_ARGUMENT);
    bad = twin;
    bad.address = "";
    assert_int_equal(registry_register(registry, &bad, 0, &b, NULL, &error), SHOAL_INVALID_ARGUMENT);
    bad = twin;
    bad.tier_count = CLIENT_TIERS_MAX + 1;
    assert_int_equal(registry_register(registry, &bad, 0, &b, NULL, &error), SHOAL_INVALID_ARGUMENT);
    registry_destroy(registry);
}

/* --- drops --- */

static void drops_wait_until_they_are_done(void **state)
{
    struct registry *registry = create(0, 8);
    const struct drop *drops[10];
    struct client *a, *b;
    uint64_t second;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 0, 0, &a), SHOAL_OK);
    assert_int_equal(add(registry, 2, "b", 0, 0, &b), SHOAL_OK);
    registry_add_drop(registry, a, "one", 3, 11);
    registry_add_drop(registry, b, "one", 3, 11);
    registry_add_drop(registry, a, "two", 3, 12);
    registry_add_drop(registry, a, "two", 3, 12); /* once */
    registry_add_drop(registry, a, "three", 5, 13);
    assert_int_equal(registry_drops(a, drops, 2), 2);
    assert_int_equal(registry_drops(a, drops, 10), 3);
    assert_string_equal(drops[0]->key, "one");
    assert_true(drops[0]->sequence < drops[1]->sequence && drops[1]->sequence < drops[2]->sequence);
    second = drops[1]->sequence;
    registry_forget_drop(a, 13);
    registry_forget_drop(a, 77);
    assert_int_equal(registry_drop_count(a), 2);
    registry_drops_done(a, second);
    assert_int_equal(registry_drop_count(a), 0);
    assert_int_equal(registry_drop_count(b), 1);
    registry_destroy(registry);
}

static void a_full_queue_makes_the_client_announce(void **state)
{
    struct registry *registry = create(4096, 8);
    const struct drop *drops[1];
    struct client *client;
    uint64_t id = 0;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 0, 0, &client), SHOAL_OK);
    while (!client->must_register && id < 1000)
        registry_add_drop(registry, client, "key", 3, ++id);
    assert_true(client->must_register && id > 10);
    assert_int_equal(registry_drops(client, drops, 1), 0); /* what it announces is compared with the tombstones */
    assert_int_equal(add(registry, 1, "a", 5, 0, &client), SHOAL_OK);
    assert_false(client->must_register);
    registry_add_drop(registry, client, "key", 3, ++id);
    assert_int_equal(registry_drops(client, drops, 1), 1);
    registry_destroy(registry);
}

/* --- targets --- */

static void targets_go_by_weighted_free_capacity(void **state)
{
    struct target_candidate candidates[] = {
        {.instance = 1, .free_bytes = 100, .largest_free = 100, .largest_tier = 1000},
        {.instance = 2, .free_bytes = 300, .largest_free = 150, .largest_tier = 500},
        {.instance = 3, .free_bytes = 250, .largest_free = 250, .largest_tier = 300},
        {.instance = 4, .free_bytes = 0, .largest_free = 0, .largest_tier = 2000},
        {.instance = 5}, /* owns nothing */
    };
    enum { COUNT = sizeof candidates / sizeof *candidates };
    uint64_t two[] = {2, 3};
    struct target_query query = {.len_bytes = 10};
    size_t ranked[COUNT];

    (void)state;
    assert_int_equal(targets_best(candidates, COUNT, &query), 1);
    query.local = 1;
    query.local_weight = 4; /* 400 */
    assert_int_equal(targets_best(candidates, COUNT, &query), 0);
    query.local_weight = 2; /* 200 */
    assert_int_equal(targets_best(candidates, COUNT, &query), 1);
    query.len_bytes = 200; /* fits into one tier of 3 only */
    assert_int_equal(targets_best(candidates, COUNT, &query), 2);
    query.len_bytes = 10;
    query.excluded = two;
    query.excluded_count = 2;
    assert_int_equal(targets_best(candidates, COUNT, &query), 0);
    query.local = 0;
    query.len_bytes = 700; /* only where it must be evicted for */
    assert_int_equal(targets_best(candidates, COUNT, &query), 3);
    query.len_bytes = 2001;
    assert_int_equal(targets_best(candidates, COUNT, &query), TARGET_NONE);
    query = (struct target_query){.len_bytes = 0};
    assert_int_equal(targets_rank(candidates, COUNT, &query, COUNT, ranked), 4);
    assert_int_equal(ranked[0], 1);
    assert_int_equal(ranked[1], 2);
    assert_int_equal(ranked[2], 0);
    assert_int_equal(ranked[3], 3);
    assert_int_equal(targets_rank(candidates, COUNT, &query, 2, ranked), 2);
    assert_int_equal(ranked[1], 2);
    targets_take(&candidates[1], 100);
    assert_int_equal(targets_best(candidates, COUNT, &query), 2);
    targets_take(&candidates[1], UINT64_MAX);
    assert_int_equal(candidates[1].free_bytes, 0);
}

static void candidates_are_live_owners(void **state)
{
    struct registry *registry = create(0, 8);
    struct target_candidate candidates[8];
    struct client_tier tiers[] = {{.capacity_bytes = 1000, .used_bytes = 400},
                                  {.capacity_bytes = 50, .used_bytes = 60}};
    struct client *a, *b, *c;

    (void)state;
    assert_int_equal(add(registry, 1, "a", 0, 0, &a), SHOAL_OK);
    assert_int_equal(add(registry, 2, "b", 0, 0, &b), SHOAL_OK);
    assert_int_equal(add(registry, 3, "c", 0, 0, &c), SHOAL_OK);
    registry_heard(a, tiers, 2, 0, 0);
    registry_heard(b, NULL, 0, 0, 0);
    registry_end(registry, c);
    a->assigned_bytes = 100;
    assert_int_equal(registry_candidates(registry, candidates), 1);
    assert_int_equal(candidates[0].instance, 1);
    assert_int_equal(candidates[0].free_bytes, 500);
    assert_int_equal(candidates[0].largest_tier, 1000);
    registry_destroy(registry);
}

/* --- patterns --- */

static void check_pattern(const char *text, const char *key)
{
    struct pattern *pattern = NULL;
    bool expected = fnmatch(text, key, 0) == 0;
    const char *prefix;
    size_t len;

    assert_int_equal(pattern_create(text, &pattern, NULL), SHOAL_OK);
    if (pattern_matches(pattern, key, strlen(key)) != expected)
        fail_msg("pattern \"%s\", key \"%s\": fnmatch says %d", text, key, expected);
    prefix = pattern_prefix(pattern, &len);
    if (expected)
        assert_true(strlen(key) >= len && memcmp(key, prefix, len) == 0);
    pattern_destroy(pattern);
}

static void check_malformed(const char *text, const char *problem)
{
    struct pattern *pattern = NULL;
    struct shoal_error error;

    assert_int_equal(pattern_create(text, &pattern, &error), SHOAL_INVALID_ARGUMENT);
    assert_null(pattern);
    assert_non_null(strstr(error.message, problem));
    assert_non_null(strstr(error.message, text));
}

static void malformed_patterns(void **state)
{
    (void)state;
    check_malformed("[", "no ']' ends its '['");
    check_malformed("k/[0-9*", "no ']' ends its '['");
    check_malformed("[a][]", "no ']' ends its '['");
    check_malformed("[]", "no ']' ends its '['");
    check_malformed("[a\\]", "no ']' ends its '['");
    check_malformed("k/\\", "stands before nothing");
    check_malformed("x[9-0]", "nothing is in one of its [...]");
    check_malformed("x[[:numeric:]]*", "nothing is in one of its [...]");
    check_pattern("\\[0-9*", "[0-9x");
    check_pattern("k/\\\\", "k/\\");
    check_pattern("]", "]");
}

static void patterns_match_as_fnmatch_does(void **state)
{
    static const char pieces[] = "aab*?[]!-\\/^"; /* no classes: an unfinished "[[:" is read in many ways */
    int compared = 0;
    struct random random;

    (void)state;
    random_init(&random, test_seed());
    for (int i = 0; i < 200000; i++) {
        char text[12], key[12];
        size_t text_len = 1 + random_below(&random, sizeof text - 1), key_len = random_below(&random, sizeof key);
        for (size_t at = 0; at < text_len; at++)
            text[at] = pieces[random_below(&random, sizeof pieces - 1)];
        text[text_len] = '\0';
        for (size_t at = 0; at < key_len; at++)
            key[at] = pieces[random_below(&random, i % 2 ? 4 : sizeof pieces - 1)];
        key[key_len] = '\0';
        if (strchr(text, '[') || text[text_len - 1] == '\\') {
            struct pattern *pattern;
            enum shoal_status status = pattern_create(text, &pattern, NULL);

            if (status == SHOAL_INVALID_ARGUMENT)
                continue; /* malformed_patterns */
            assert_int_equal(status, SHOAL_OK);
            pattern_destroy(pattern);
        }
        check_pattern(text, key);
        compared++;
    }
    assert_true(compared > 100000);
}

static void classes_in_brackets(void **state)
{
    (void)state;
    check_pattern("[[:digit:]]*", "7x");
    check_pattern("[[:digit:]]*", "x7");
    check_pattern("a[![:alpha:]-]b", "a-b");
    check_pattern("a[![:alpha:]]b", "a5b");
    check_pattern("*.[ch]", "x.c");
    check_pattern("kv/[0-9]/\\*", "kv/3/*");
    check_pattern("\xff*", "\xff\xfe");
    check_pattern("[\x80-\xff]", "\xfe");
}

static void a_hostile_pattern_takes_linear_time(void **state)
{
    struct pattern *pattern = NULL;
    char text[PATTERN_MAX_BYTES + 2], key[1024];

    (void)state;
    for (size_t i = 0; i < PATTERN_MAX_BYTES; i++)
        text[i] = i % 2 ? 'a' : '*';
    text[PATTERN_MAX_BYTES - 1] = 'b';
    text[PATTERN_MAX_BYTES] = '\0';
    memset(key, 'a', sizeof key);
    assert_int_equal(pattern_create(text, &pattern, NULL), SHOAL_OK);
    assert_false(pattern_matches(pattern, key, sizeof key)); /* fnmatch would not come back */
    pattern_destroy(pattern);
    text[PATTERN_MAX_BYTES] = 'x';
    text[PATTERN_MAX_BYTES + 1] = '\0';
    assert_int_equal(pattern_create(text, &pattern, NULL), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(pattern_create("", &pattern, NULL), SHOAL_OK);
    assert_true(pattern_matches(pattern, "anything", 8));
    pattern_destroy(pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_ends_a_client),
        cmocka_unit_test(a_stall_of_our_own_ends_nobody),
        cmocka_unit_test(names_and_slots),
        cmocka_unit_test(drops_wait_until_they_are_done),
        cmocka_unit_test(a_full_queue_makes_the_client_announce),
        cmocka_unit_test(targets_go_by_weighted_free_capacity),
        cmocka_unit_test(candidates_are_live_owners),
        cmocka_unit_test(patterns_match_as_fnmatch_does),
        cmocka_unit_test(malformed_patterns),
        cmocka_unit_test(classes_in_brackets),
        cmocka_unit_test(a_hostile_pattern_takes_linear_time),
    };
    return cmocka_run_group_tests_name("master_registry", tests, NULL, NULL);
}
