/* SPDX-License-Identifier: Apache-2.0 */
/* Questions of a session to a master that answers wrongly, not at all, or in parts. */
#include "base/thread.h"
#include "kv_session_fixture.h"

static void lookups_of_many_long_keys_are_cut_into_requests(void **state)
{
    enum { KEYS = 4096 };
    struct fixture *fixture = *state;
    struct call call = patient();
    char(*text)[TIER_KEY_MAX_BYTES + 1] = malloc(KEYS * sizeof *text);
    const char **keys = calloc(KEYS + 1, sizeof *keys);
    struct session_route *routes;
    struct shoal_error error;

    make_ready(fixture);
    for (unsigned i = 0; i < KEYS; i++) {
        memset(text[i], 'x', TIER_KEY_MAX_BYTES);
        text[i][i % 3 ? TIER_KEY_MAX_BYTES : 1 + i % 1000] = '\0';
        if (i % 5 == 0)
            memcpy(text[i], "missing", 8);
        keys[i] = text[i];
    }
    keys[KEYS] = "one too many";
    assert_int_equal(session_lookup(fixture->session, keys, KEYS, &call, &routes, &error), SHOAL_OK);
    for (unsigned i = 0; i < KEYS; i++) {
        assert_int_equal(routes[i].status, i % 5 ? SHOAL_OK : SHOAL_NOT_FOUND);
        assert_int_equal(routes[i].replica_count, i % 5 ? 1 : 0);
        if (i % 5) {
            assert_int_equal(routes[i].object_id, strlen(keys[i]));
            assert_string_equal(routes[i].replicas[0].address, "10.0.0.7:12345");
            assert_int_equal(routes[i].replicas[0].instance, 7);
            assert_int_equal(routes[i].replicas[0].tier_type, TIER_DRAM);
        }
    }
    free(routes);
    assert_true(fixture->master.lookups > 4);
    assert_int_equal(fixture->master.asked_keys, KEYS);
    assert_int_equal(session_lookup(fixture->session, keys, KEYS + 1, &call, &routes, &error), SHOAL_INVALID_ARGUMENT);
    keys[0] = "";
    assert_int_equal(session_remove(fixture->session, keys, 1, &call, &routes, &error), SHOAL_INVALID_ARGUMENT);
    keys[0] = "gone";
    assert_int_equal(session_remove(fixture->session, keys, 1, &call, &routes, &error), SHOAL_OK);
    assert_int_equal(routes[0].replica_count, 1);
    free(routes);
    assert_int_equal(session_lookup(fixture->session, keys, 0, &call, &routes, &error), SHOAL_OK);
    free(routes);
    free(keys);
    free(text);
}

static void malformed_answers_to_questions(void **state)
{
    static const enum fake_manner manners[] = {FAKE_GARBAGE, FAKE_WRONG_COUNT};
    struct fixture *fixture = *state;
    struct call call = patient();
    struct session_route *routes;
    struct shoal_error error;
    const char *key = "k";

    make_ready(fixture);
    for (size_t i = 0; i < 2; i++) {
        fake_master_set_manner(&fixture->master, MASTER_METHOD_LOOKUP, manners[i]);
        assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, &error), SHOAL_PROTOCOL);
        assert_non_null(strstr(error.message, fixture->master.address));
    }
}

static void a_question_waits_for_a_master_that_is_restarted(void **state)
{
    struct fixture *fixture = *state;
    struct call call = patient();
    struct session_route *routes;
    const char *key = "k";

    make_ready(fixture);
    fake_master_kill(&fixture->master);
    assert_fails(fixture, hasty_lookup, SHOAL_UNREACHABLE, fixture->master.address, "refused");
    fake_master_revive(&fixture->master);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
    fake_master_set_manner(&fixture->master, MASTER_METHOD_LOOKUP, FAKE_HOLDS);
    assert_fails(fixture, hasty_lookup, SHOAL_TIMED_OUT, fixture->master.address, "");
}

struct removal {
    struct fixture *fixture;
    const char *keys[2];
    enum shoal_status status, of_key[2];
    struct shoal_error error;
};

static void *remove_two(void *arg)
{
    struct removal *removal = arg;
    struct call call = patient();
    struct session_route *routes = NULL;

    removal->status = session_remove(removal->fixture->session, removal->keys, 2, &call, &routes, &removal->error);
    for (size_t i = 0; i < 2 && !removal->status; i++)
        removal->of_key[i] = routes[i].status;
    free(routes);
    return NULL;
}

/* "missing" may be missing because the master that died had removed it. */
static void a_removal_whose_answer_was_lost_says_so(void **state)
{
    struct fixture *fixture = *state;
    struct removal removal = {.fixture = fixture, .keys = {"missing", "there"}};
    pthread_t thread;

    make_ready(fixture);
    fake_master_set_manner(&fixture->master, MASTER_METHOD_REMOVE, FAKE_HOLDS);
    assert_int_equal(thread_start(&thread, "remove", remove_two, &removal), 0);
    fake_master_wait_held(&fixture->master, 1);
    fake_master_kill(&fixture->master);
    fake_master_set_manner(&fixture->master, MASTER_METHOD_REMOVE, FAKE_ANSWERS);
    fake_master_revive(&fixture->master);
    pthread_join(thread, NULL);
    assert_int_equal(removal.status, SHOAL_OK);
    assert_int_equal(removal.of_key[0], SHOAL_UNREACHABLE);
    assert_int_equal(removal.of_key[1], SHOAL_OK);
}

/* Whether it meets the master that is away or the next one: nothing was asked before. */
static void a_removal_that_was_never_sent_is_sure(void **state)
{
    struct fixture *fixture = *state;
    struct removal removal = {.fixture = fixture, .keys = {"missing", "there"}};
    pthread_t thread;

    make_ready(fixture);
    fake_master_kill(&fixture->master);
    assert_int_equal(thread_start(&thread, "remove", remove_two, &removal), 0);
    fake_master_revive(&fixture->master);
    pthread_join(thread, NULL);
    assert_int_equal(removal.status, SHOAL_OK);
    assert_int_equal(removal.of_key[0], SHOAL_NOT_FOUND);
    assert_int_equal(removal.of_key[1], SHOAL_OK);
}

static void targets_come_from_heartbeats_or_from_a_question(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    Shoal__Wire__MasterTarget targets[2];
    struct session_replica target;
    struct call call = patient();
    struct shoal_error error;
    uint64_t both[] = {21, 22};
    unsigned beats;

    make_ready(fixture);
    assert_int_equal(session_write_target(fixture->session, 100, NULL, 0, &call, &target, &error), SHOAL_OK);
    assert_int_equal(target.instance, 9); /* asked */
    assert_string_equal(target.server_name, "asked");
    mutex_lock(&master->mutex);
    for (size_t i = 0; i < 2; i++) {
        shoal__wire__master_target__init(&targets[i]);
        targets[i].instance = both[i];
        targets[i].server_name = (char *)(uintptr_t) "told";
        targets[i].address = (char *)(uintptr_t) "10.0.0.2:12345";
        targets[i].free_bytes = 1000;
        master->targets[i] = &targets[i];
    }
    master->heartbeat_ms = 20000; /* from the next registration on: one answer only */
    master->target_count = 2;
    master->instance++;
    beats = master->heartbeats;
    mutex_unlock(&master->mutex);
    fake_master_wait(master, &master->registrations, 2);
    fake_master_wait(master, &master->heartbeats, beats + 2);
    for (bool is_told = false; !is_told;) { /* the answer is on its way */
        assert_int_equal(session_write_target(fixture->session, 0, NULL, 0, &call, &target, &error), SHOAL_OK);
        is_told = target.instance != 9;
        assert_int_equal(call_check(&call, NULL, "targets"), SHOAL_OK);
    }
    assert_int_equal(session_write_target(fixture->session, 600, NULL, 0, &call, &target, &error), SHOAL_OK);
    uint64_t first = target.instance;
    assert_true(first == 21 || first == 22);
    assert_int_equal(session_write_target(fixture->session, 600, NULL, 0, &call, &target, &error), SHOAL_OK);
    assert_int_equal(target.instance, 43 - first); /* the first one is not thought to have room any more */
    assert_int_equal(session_write_target(fixture->session, 600, NULL, 0, &call, &target, &error), SHOAL_OK);
    assert_int_equal(target.instance, 9); /* asked */
    assert_int_equal(session_write_target(fixture->session, 1, &both[0], 1, &call, &target, &error), SHOAL_OK);
    assert_int_equal(target.instance, 22);
    assert_int_equal(session_write_target(fixture->session, 1, both, 2, &call, &target, &error), SHOAL_NO_SPACE);
    session_destroy(fixture->session); /* targets are on this stack */
    fixture->session = NULL;
}

static void lists_come_in_pages(void **state)
{
    struct fixture *fixture = *state;
    struct call call = patient();
    Shoal__Wire__MasterStatusResponse *status;
    struct session_page *page, *next;

    make_ready(fixture);
    assert_int_equal(session_list(fixture->session, "a*", NULL, 0, 10, &call, &page, NULL), SHOAL_OK);
    assert_int_equal(page->count, 1);
    assert_string_equal(page->entries[0].key, "a*");
    assert_int_equal(page->entries[0].len_bytes, 5);
    assert_int_equal(page->cursor_len, 1);
    assert_int_equal(session_list(fixture->session, "a*", page->cursor, page->cursor_len, 10, &call, &next, NULL),
                     SHOAL_OK);
    assert_string_equal(next->entries[0].key, "second");
    assert_int_equal(next->cursor_len, 0);
    session_page_free(next);
    session_page_free(page);
    assert_int_equal(session_status(fixture->session, &call, &status, NULL), SHOAL_OK);
    assert_int_equal(status->master_instance, 1);
    shoal__wire__master_status_response__free_unpacked(status, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lookups_of_many_long_keys_are_cut_into_requests),
        TEST(malformed_answers_to_questions),
        TEST(a_question_waits_for_a_master_that_is_restarted),
        TEST(a_removal_whose_answer_was_lost_says_so),
        TEST(a_removal_that_was_never_sent_is_sure),
        TEST(targets_come_from_heartbeats_or_from_a_question),
        TEST(lists_come_in_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
