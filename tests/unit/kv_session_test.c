/* SPDX-License-Identifier: Apache-2.0 */
/* A session against a master that answers late, wrongly, or not at all, is restarted, or is not the leader. */
#include "kv_session_fixture.h"

#include <pthread.h>
#include <stdio.h>

#include "kv/election_key.h"
#include "meta/meta.h"
#include "tmpdir.h"

static void on_done(void *arg, enum shoal_status status, const struct shoal_error *error)
{
    struct outcome *outcome = arg;

    mutex_lock(&outcome->fixture->mutex);
    outcome->times++;
    outcome->status = status;
    if (error)
        outcome->error = *error;
    cond_broadcast(&outcome->fixture->changed);
    mutex_unlock(&outcome->fixture->mutex);
}

static void announce(struct fixture *fixture, Shoal__Wire__MasterAnnounceRequest__Kind kind, const char *key,
                     uint64_t object_id, int64_t timeout_ms, struct outcome *outcome)
{
    if (outcome)
        *outcome = (struct outcome){.fixture = fixture};
    assert_int_equal(
        session_announce(fixture->session, kind, key, object_id, 10, 0, timeout_ms, outcome ? on_done : NULL, outcome),
        SHOAL_OK);
}

static enum shoal_status wait_done(struct outcome *outcome)
{
    struct fixture *fixture = outcome->fixture;
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    mutex_lock(&fixture->mutex);
    while (!outcome->times)
        assert_true(cond_wait_until(&fixture->changed, &fixture->mutex, deadline_ms) || outcome->times);
    mutex_unlock(&fixture->mutex);
    return outcome->status;
}

static enum shoal_status hasty_wait(struct fixture *fixture, const struct call *call, struct shoal_error *error)
{
    return session_wait_ready(fixture->session, call, error);
}

/* --- registration --- */

static void registers_beats_and_says_goodbye(void **state)
{
    struct fixture *fixture = *state;
    struct session_counters counters;

    make_ready(fixture);
    assert_true(session_is_registered(fixture->session));
    fake_master_wait(&fixture->master, &fixture->master.heartbeats, 3);
    session_counters(fixture->session, &counters);
    assert_int_equal(counters.registrations, 1);
    assert_true(counters.heartbeats >= 2);
    session_destroy(fixture->session);
    fixture->session = NULL;
    assert_int_equal(fake_master_read(&fixture->master, &fixture->master.goodbyes), 1);
}

static void a_name_is_resolved(void **state)
{
    struct fixture *fixture = *state;
    struct call call = patient();
    struct session_route *routes;
    const char *key = "k";
    char text[64];

    snprintf(text, sizeof text, "localhost:%u", fixture->master.port);
    make_session(fixture, text);
    make_ready(fixture);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
}

static void addresses_are_checked(void **state)
{
    static const char *const wrong[] = {"", "host:", "host:99999", "a b:1", "host:1,,host:2", "host:0", "[::1:5"};
    struct fixture *fixture = *state;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct session_config config = {.loop = fixture->loop,
                                        .rpc = fixture->rpc,
                                        .channels = fixture->channels,
                                        .master = wrong[i],
                                        .cluster = "test",
                                        .server_name = "client",
                                        .address = "127.0.0.1:12345",
                                        .instance = INSTANCE};
        struct shoal_error error;

        assert_int_equal(session_create(&config, &fixture->session, &error), SHOAL_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "master address"));
    }
}

static void an_unreachable_master_is_named_with_the_cause(void **state)
{
    struct fixture *fixture = *state;

    fake_master_kill(&fixture->master);
    make_session(fixture, fixture->master.address);
    assert_fails(fixture, hasty_wait, SHOAL_UNREACHABLE, fixture->master.address, "refused");
    assert_false(session_is_registered(fixture->session));
    assert_fails(fixture, hasty_lookup, SHOAL_UNREACHABLE, fixture->master.address, "refused");
    fake_master_revive(&fixture->master); /* it appears, and everything is well without anybody's help */
    make_ready(fixture);
}

static void a_name_in_use_names_who_has_it(void **state)
{
    struct fixture *fixture = *state;

    fake_master_refuse(&fixture->master, MASTER_METHOD_REGISTER, SHOAL_NAME_IN_USE, "'client' is 10.1.2.3:4");
    make_session(fixture, fixture->master.address);
    assert_fails(fixture, hasty_wait, SHOAL_NAME_IN_USE, fixture->master.address, "10.1.2.3:4");
    fake_master_set_manner(&fixture->master, MASTER_METHOD_REGISTER, FAKE_ANSWERS);
    make_ready(fixture);
}

static void *trigger(void *arg)
{
    shoal_cancel_trigger(arg);
    return NULL;
}

static void waiting_can_be_canceled(void **state)
{
    struct fixture *fixture = *state;
    struct call call = patient();
    pthread_t thread;

    fake_master_kill(&fixture->master);
    make_session(fixture, fixture->master.address);
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&thread, NULL, trigger, call.cancel), 0);
    assert_int_equal(session_wait_ready(fixture->session, &call, NULL), SHOAL_CANCELED);
    pthread_join(thread, NULL);
    shoal_cancel_destroy(call.cancel);
}

static void whoever_is_not_the_leader_names_it(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master other;
    struct call call = patient();
    struct session_route *routes;
    const char *key = "k";
    char both[160];

    fake_master_init(&other, 9);
    for (enum master_method method = MASTER_METHOD_REGISTER; method <= MASTER_METHOD_STATUS; method++)
        fake_master_refuse(&other, method, SHOAL_CONFLICT, fixture->master.address);
    snprintf(both, sizeof both, "127.0.0.1:1,%s", other.address); /* nobody listens at the first */
    make_session(fixture, both);
    make_ready(fixture);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
    /* The leader dies, the other one takes over. */
    fake_master_kill(&fixture->master);
    for (enum master_method method = MASTER_METHOD_REGISTER; method <= MASTER_METHOD_STATUS; method++)
        fake_master_set_manner(&other, method, FAKE_ANSWERS);
    fake_master_wait(&other, &other.lasts, 1);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
    session_destroy(fixture->session);
    fixture->session = NULL;
    fake_master_release(&other);
}

static void set_leader(struct meta *meta, const char *value)
{
    char *key = election_key("test");
    struct meta_op op = {.kind = META_PUT, .key = {key, strlen(key)}, .value = {value, strlen(value)}};
    struct call call = patient();
    bool is_applied;

    assert_int_equal(meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, NULL), SHOAL_OK);
    free(key);
}

static void the_leader_is_found_in_the_metadata_service(void **state)
{
    struct fixture *fixture = *state;
    struct call call = patient();
    char *directory = tmpdir_make(), uri[256];
    struct fake_master other;
    struct session_route *routes;
    struct meta *meta;
    const char *key = "k";

    fake_master_init(&other, 9);
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", directory);
    assert_int_equal(meta_open(uri, &meta, NULL), SHOAL_OK);
    make_session(fixture, uri);
    assert_fails(fixture, hasty_wait, SHOAL_UNREACHABLE, "cluster 'test'", "no master leads");
    assert_fails(fixture, hasty_lookup, SHOAL_UNREACHABLE, "cluster 'test'", "no master leads");
    set_leader(meta, "nonsense");
    assert_fails(fixture, hasty_lookup, SHOAL_INVALID_ARGUMENT, "cluster 'test'", "'nonsense' has no port");
    set_leader(meta, fixture->master.address);
    make_ready(fixture);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
    /* The leader dies; its key is there for a while. */
    fake_master_kill(&fixture->master);
    assert_fails(fixture, hasty_lookup, SHOAL_UNREACHABLE, fixture->master.address, "refused");
    set_leader(meta, other.address);
    assert_int_equal(session_lookup(fixture->session, &key, 1, &call, &routes, NULL), SHOAL_OK);
    free(routes);
    fake_master_wait(&other, &other.lasts, 1);
    session_destroy(fixture->session);
    fixture->session = NULL;
    fake_master_release(&other);
    meta_close(meta);
    tmpdir_remove(directory);
}

/* --- heartbeats --- */

static void a_master_that_forgot_or_changed_is_registered_with_again(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;

    make_ready(fixture);
    fake_master_refuse(master, MASTER_METHOD_HEARTBEAT, SHOAL_NOT_FOUND, "unknown client");
    fake_master_wait(master, &master->registrations, 2);
    fake_master_set_manner(master, MASTER_METHOD_HEARTBEAT, FAKE_ANSWERS);
    fake_master_wait(master, &master->lasts, 2);
    make_ready(fixture);
    mutex_lock(&master->mutex);
    unsigned before = master->registrations;
    master->instance = 77;
    mutex_unlock(&master->mutex);
    fake_master_wait(master, &master->registrations, before + 1);
    fake_master_set_manner(master, MASTER_METHOD_HEARTBEAT, FAKE_GARBAGE);
    fake_master_wait(master, &master->registrations, before + 2);
    fake_master_set_manner(master, MASTER_METHOD_HEARTBEAT, FAKE_ANSWERS);
}

static void a_silent_master_is_left(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;

    master->ttl_ms = 300;
    make_ready(fixture);
    fake_master_set_manner(master, MASTER_METHOD_HEARTBEAT, FAKE_HOLDS);
    fake_master_wait(master, &master->registrations, 2);
    fake_master_answer_held(master, MASTER_METHOD_HEARTBEAT);
    make_ready(fixture);
}

static bool on_drop(void *arg, const char *key, uint64_t object_id)
{
    struct fixture *fixture = arg;
    bool is_taken = true;

    assert_true(strlen(key) > 0);
    mutex_lock(&fixture->mutex);
    if (fixture->drops_to_refuse) {
        fixture->drops_to_refuse--;
        fixture->drops_refused++;
        is_taken = false;
    } else {
        fixture->drops++;
        fixture->last_dropped = object_id;
    }
    cond_broadcast(&fixture->changed);
    mutex_unlock(&fixture->mutex);
    return is_taken;
}

static void drops_are_carried_out_once_and_acknowledged(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    Shoal__Wire__MasterDrop drops[3];
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);

    make_session(fixture, master->address);
    fixture->drops_to_refuse = 2; /* the handler is full at first */
    session_set_drop_handler(fixture->session, on_drop, fixture);
    make_ready(fixture);
    mutex_lock(&master->mutex);
    for (size_t i = 0; i < 3; i++) {
        shoal__wire__master_drop__init(&drops[i]);
        drops[i].sequence = 10 + i;
        drops[i].key = (char *)(uintptr_t) "key";
        drops[i].object_id = 100 + i;
        master->drops[i] = &drops[i];
    }
    master->drop_count = 3;
    while (master->drops_done < 12)
        assert_true(cond_wait_until(&master->changed, &master->mutex, deadline_ms) || master->drops_done >= 12);
    unsigned beats = master->heartbeats;
    mutex_unlock(&master->mutex);
    fake_master_wait(master, &master->heartbeats, beats + 3); /* they come again and again */
    mutex_lock(&fixture->mutex);
    assert_int_equal(fixture->drops, 3);
    assert_int_equal(fixture->drops_refused, 2);
    assert_int_equal(fixture->last_dropped, 102);
    mutex_unlock(&fixture->mutex);
    session_destroy(fixture->session); /* drops are on this stack */
    fixture->session = NULL;
}

/* --- announcements --- */

static void what_comes_meanwhile_travels_together(void **state)
{
    enum { LATER = 50 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome first, later[LATER];
    char key[16];

    make_ready(fixture);
    unsigned before = fake_master_read(master, &master->announcements);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    announce(fixture, KIND(NEW), "first", 1, 0, &first);
    fake_master_wait_held(master, 1);
    fake_master_set_answer(master, "k7", SHOAL_EXISTS);
    fake_master_set_answer(master, "k8", SHOAL_NOT_FOUND);
    for (unsigned i = 0; i < LATER; i++) {
        snprintf(key, sizeof key, "k%u", i);
        announce(fixture, i == 8 ? KIND(REPLICA) : KIND(NEW), key, 100 + i, 0, &later[i]);
    }
    fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);
    assert_int_equal(wait_done(&first), SHOAL_OK);
    for (unsigned i = 0; i < LATER; i++)
        assert_int_equal(wait_done(&later[i]), i == 7 ? SHOAL_EXISTS : i == 8 ? SHOAL_NOT_FOUND : SHOAL_OK);
    assert_non_null(strstr(later[7].error.message, "k7"));
    assert_int_equal(fake_master_read(master, &master->announcements), before + 2);
    for (unsigned i = 0; i < LATER; i++)
        assert_int_equal(later[i].times, 1);
}

/* Batches are packed into memory of a bound that is computed from their entries. */
static void the_largest_entries_fill_batches(void **state)
{
    enum { ENTRIES = 300 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome *outcomes = calloc(ENTRIES, sizeof *outcomes), first;
    char key[TIER_KEY_MAX_BYTES + 1];
    unsigned before;

    assert_non_null(outcomes);
    make_ready(fixture);
    for (unsigned round = 0; round < 2; round++) {
        before = fake_master_read(master, &master->announcements);
        fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
        announce(fixture, KIND(NEW), "first", 1, 0, &first);
        fake_master_wait_held(master, 1);
        memset(key, 'k', sizeof key);
        key[sizeof key - 1] = '\0';
        for (unsigned i = 0; i < ENTRIES; i++) {
            char digits[16];
            snprintf(digits, sizeof digits, "%05u", i);
            memcpy(key, digits, 5);
            outcomes[i] = (struct outcome){.fixture = fixture};
            assert_int_equal(session_announce(fixture->session, KIND(REPLICA), key, UINT64_MAX, UINT64_MAX, UINT32_MAX,
                                              0, on_done, &outcomes[i]),
                             SHOAL_OK);
        }
        fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);
        assert_int_equal(wait_done(&first), SHOAL_OK);
        for (unsigned i = 0; i < ENTRIES; i++) {
            assert_int_equal(wait_done(&outcomes[i]), SHOAL_OK);
            assert_int_equal(outcomes[i].times, 1);
        }
        assert_int_equal(fake_master_read(master, &master->announcements), before + 3);
    }
    free(outcomes);
}

static void a_deadline_ends_waiting_and_takes_the_route_back(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome sent, queued, after;

    make_ready(fixture);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    announce(fixture, KIND(NEW), "sent", 1, 3000, &sent);
    fake_master_wait_held(master, 1);
    announce(fixture, KIND(NEW), "queued", 2, 50, &queued);
    assert_int_equal(wait_done(&queued), SHOAL_TIMED_OUT);
    assert_int_equal(wait_done(&sent), SHOAL_TIMED_OUT);
    assert_int_equal(fake_master_count(master, KIND(GONE), "sent", 1), 0); /* not before its outcome is known */
    fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);               /* it had been accepted */
    fake_master_wait_entry(master, KIND(GONE), "sent", 1);
    announce(fixture, KIND(NEW), "after", 3, 0, &after);
    assert_int_equal(wait_done(&after), SHOAL_OK);
    assert_int_equal(fake_master_count(master, KIND(NEW), "queued", 2), 0); /* nothing to take back */
    assert_int_equal(fake_master_count(master, KIND(GONE), "queued", 2), 0);
    assert_int_equal(sent.times, 1);
    assert_int_equal(queued.times, 1);
}

/* Its outcome is not known: the object may have a route, which only its client can take back. In front of the deadline
 * it waits for the next attempt (first), or is on its way (second). */
static void a_route_whose_answer_had_no_memory_is_taken_back(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome outcome;
    uint64_t id = 0;

    make_ready(fixture);
    fake_master_set_short_of_memory(master, true);
    for (int64_t timeout_ms = 30; !id || !fake_master_count(master, KIND(NEW), "waits", id); timeout_ms *= 2) {
        announce(fixture, KIND(NEW), "waits", ++id, timeout_ms, &outcome); /* once more if it was not even sent */
        assert_int_equal(wait_done(&outcome), SHOAL_TIMED_OUT);
    }
    fake_master_set_short_of_memory(master, false);
    fake_master_wait_entry(master, KIND(GONE), "waits", id);

    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    announce(fixture, KIND(NEW), "flies", 77, 3000, &outcome);
    fake_master_wait_held(master, 1);
    assert_int_equal(wait_done(&outcome), SHOAL_TIMED_OUT);
    fake_master_set_short_of_memory(master, true);
    fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);
    fake_master_set_short_of_memory(master, false);
    fake_master_wait_entry(master, KIND(GONE), "flies", 77);
}

static void a_broken_connection_leaves_nothing_open(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome flying, withdrawn, queued;

    make_ready(fixture);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    announce(fixture, KIND(NEW), "flying", 1, 0, &flying);
    fake_master_wait_held(master, 1);
    announce(fixture, KIND(GONE), "old", 5, 0, &withdrawn);
    announce(fixture, KIND(NEW), "queued", 2, 0, &queued);
    fake_master_kill(master);
    assert_int_equal(wait_done(&flying), SHOAL_UNREACHABLE);
    assert_non_null(strstr(flying.error.message, master->address));
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    fake_master_revive(master);
    assert_int_equal(wait_done(&queued), SHOAL_OK); /* it had not been sent */
    assert_int_equal(wait_done(&withdrawn), SHOAL_OK);
    fake_master_wait_entry(master, KIND(GONE), "flying", 1);
    assert_int_equal(fake_master_count(master, KIND(NEW), "queued", 2), 1);
    assert_int_equal(fake_master_count(master, KIND(NEW), "flying", 1), 0);
    assert_int_equal(flying.times + queued.times + withdrawn.times, 3);
}

static void what_nobody_waits_for_arrives_in_the_end_once(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome again;

    make_ready(fixture);
    fake_master_kill(master);
    announce(fixture, KIND(MOVED), "a", 1, 0, NULL);
    announce(fixture, KIND(MOVED), "a", 1, 0, NULL);
    announce(fixture, KIND(GONE), "a", 1, 0, NULL);
    announce(fixture, KIND(GONE), "a", 2, 0, NULL);
    announce(fixture, KIND(GONE), "b", 3, 0, NULL);
    announce(fixture, KIND(NEW), "a", 4, 0, &again); /* behind what concerns the same key */
    fake_master_revive(master);
    assert_int_equal(wait_done(&again), SHOAL_OK);
    fake_master_wait_entry(master, KIND(GONE), "b", 3);
    assert_int_equal(fake_master_count(master, KIND(MOVED), "a", 1), 0);
    assert_int_equal(fake_master_count(master, KIND(GONE), "a", 1), 1);
    assert_int_equal(fake_master_count(master, KIND(GONE), "a", 2), 1);
    size_t gone = 0, new = 0;
    for (size_t i = 0; i < master->entry_count; i++) {
        if (strcmp(master->entries[i].key, "a") == 0 && master->entries[i].kind == KIND(NEW))
            new = i;
        else if (strcmp(master->entries[i].key, "a") == 0)
            gone = i;
    }
    assert_true(gone < new);
}

static void malformed_answers_break_the_connection(void **state)
{
    static const enum fake_manner manners[] = {FAKE_GARBAGE, FAKE_WRONG_COUNT};
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome outcome;

    for (size_t i = 0; i < 2; i++) {
        make_ready(fixture);
        unsigned before = fake_master_read(master, &master->registrations);
        fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, manners[i]);
        announce(fixture, KIND(NEW), "k", 10 + i, 0, &outcome);
        assert_int_equal(wait_done(&outcome), SHOAL_UNREACHABLE);
        assert_non_null(strstr(outcome.error.message, "malformed"));
        fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
        fake_master_wait(master, &master->registrations, before + 1);
        fake_master_wait_entry(master, KIND(GONE), "k", 10 + i);
        assert_int_equal(outcome.times, 1);
    }
}

static void a_refused_batch_is_repeated_after_registering_again(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome outcome, refused;

    make_ready(fixture);
    fake_master_refuse(master, MASTER_METHOD_ANNOUNCE, SHOAL_NOT_FOUND, "unknown client");
    announce(fixture, KIND(NEW), "k", 1, 0, &outcome);
    fake_master_wait(master, &master->registrations, 2);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    assert_int_equal(wait_done(&outcome), SHOAL_OK);
    assert_int_equal(outcome.times, 1);
    assert_int_equal(fake_master_count(master, KIND(GONE), "k", 1), 0);
    /* Short of something: tried again on the same connection. */
    make_ready(fixture);
    unsigned before = fake_master_read(master, &master->registrations);
    fake_master_refuse(master, MASTER_METHOD_ANNOUNCE, SHOAL_BUSY, "busy");
    announce(fixture, KIND(NEW), "l", 2, 0, &outcome);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    assert_int_equal(wait_done(&outcome), SHOAL_OK);
    assert_int_equal(fake_master_read(master, &master->registrations), before);
    /* Wrong for good: told to who waits. */
    fake_master_refuse(master, MASTER_METHOD_ANNOUNCE, SHOAL_INVALID_ARGUMENT, "no such tier");
    announce(fixture, KIND(NEW), "m", 3, 0, &refused);
    assert_int_equal(wait_done(&refused), SHOAL_INVALID_ARGUMENT);
}

static void announcements_are_checked(void **state)
{
    struct fixture *fixture = *state;
    char key[TIER_KEY_MAX_BYTES + 2];

    make_ready(fixture);
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    assert_int_equal(session_announce(fixture->session, KIND(GONE), key, 1, 0, 0, 0, NULL, NULL),
                     SHOAL_INVALID_ARGUMENT);
    assert_int_equal(session_announce(fixture->session, KIND(GONE), "", 1, 0, 0, 0, NULL, NULL),
                     SHOAL_INVALID_ARGUMENT);
    key[TIER_KEY_MAX_BYTES] = '\0';
    assert_int_equal(session_announce(fixture->session, KIND(GONE), key, 1, 0, 0, 0, NULL, NULL), SHOAL_OK);
}

static void stopping_ends_what_waits(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome flying, queued;
    struct call call = patient();

    make_ready(fixture);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    announce(fixture, KIND(NEW), "flying", 1, 0, &flying);
    fake_master_wait_held(master, 1);
    announce(fixture, KIND(NEW), "queued", 2, 0, &queued);
    session_stop(fixture->session);
    assert_int_equal(flying.times, 1);
    assert_int_equal(flying.status, SHOAL_CANCELED);
    assert_int_equal(queued.times, 1);
    assert_int_equal(queued.status, SHOAL_CANCELED);
    assert_int_equal(session_announce(fixture->session, KIND(NEW), "k", 1, 0, 0, 0, on_done, &queued), SHOAL_CANCELED);
    assert_int_equal(session_wait_ready(fixture->session, &call, NULL), SHOAL_CANCELED);
    session_stop(fixture->session); /* harmless */
}

/* --- what is held --- */

static void make_objects(struct fixture *fixture, unsigned count)
{
    struct tier_config tier = {.type = TIER_DRAM, .capacity_bytes = 64u << 20, .priority = 1, .numa_node = -1};
    struct tier_backend_config config = {.tiers = &tier, .tier_count = 1};
    struct shoal_error error;

    if (tier_backend_create(&config, &fixture->backend, &error))
        fail_msg("%s", error.message);
    for (unsigned i = 0; i < count; i++) {
        struct tier_allocation *allocation;
        struct tier_object *object;
        char key[32];

        snprintf(key, sizeof key, "object-%u", i);
        assert_int_equal(tier_allocate(fixture->backend, key, 16, false, &allocation, NULL), SHOAL_OK);
        assert_int_equal(tier_write(allocation, 0, "0123456789abcdef", 16, NULL), SHOAL_OK);
        assert_int_equal(tier_commit(allocation, 1000 + i, &object, NULL), SHOAL_OK);
        assert_int_equal(tier_publish(object, NULL), SHOAL_OK);
        tier_object_unref(object);
    }
}

static size_t count_held(struct fake_master *master, unsigned count)
{
    unsigned char *seen = calloc(count, 1);
    size_t distinct = 0;

    mutex_lock(&master->mutex);
    for (size_t i = 0; i < master->entry_count; i++) {
        uint64_t number = master->entries[i].object_id - 1000;

        assert_int_equal(master->entries[i].kind, KIND(HELD));
        assert_true(number < count);
        distinct += !seen[number];
        seen[number] = 1;
    }
    mutex_unlock(&master->mutex);
    free(seen);
    return distinct;
}

static void everything_is_announced_again_after_a_restart(void **state)
{
    enum { OBJECTS = 10000 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;

    make_objects(fixture, OBJECTS);
    make_ready(fixture);
    assert_int_equal(master->object_count, OBJECTS);
    assert_int_equal(count_held(master, OBJECTS), OBJECTS);
    assert_int_equal(master->entry_count, OBJECTS); /* each once */
    for (unsigned life = 2; life <= 3; life++) {
        fake_master_kill(master);
        master->entry_count = 0;
        fake_master_revive(master);
        fake_master_wait(master, &master->lasts, life);
        assert_int_equal(count_held(master, OBJECTS), OBJECTS);
    }
}

static void what_the_master_refuses_is_dropped(void **state)
{
    enum { OBJECTS = 5000 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct session_counters counters;

    make_objects(fixture, OBJECTS);
    fake_master_set_answer(master, "object-17", SHOAL_EXISTS);
    fake_master_set_answer(master, "object-4100", SHOAL_NOT_FOUND);
    fixture->drops_to_refuse = 3; /* the handler has no room at first: nothing is lost */
    make_session(fixture, master->address);
    session_set_drop_handler(fixture->session, on_drop, fixture);
    make_ready(fixture);
    mutex_lock(&fixture->mutex);
    assert_int_equal(fixture->drops, 2);
    assert_int_equal(fixture->drops_refused, 3);
    mutex_unlock(&fixture->mutex);
    session_counters(fixture->session, &counters);
    assert_int_equal(counters.conflicts, 1);
    assert_int_equal(counters.announced, OBJECTS - 2);
}

static void a_busy_master_is_told_again(void **state)
{
    enum { OBJECTS = 20000 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;

    make_objects(fixture, OBJECTS);
    fake_master_refuse(master, MASTER_METHOD_ANNOUNCE, SHOAL_BUSY, "busy");
    make_session(fixture, master->address);
    fake_master_wait(master, &master->heartbeats, 10);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_ANSWERS);
    make_ready(fixture);
    assert_int_equal(count_held(master, OBJECTS), OBJECTS);
    assert_int_equal(master->entry_count, OBJECTS);
    assert_int_equal(fake_master_read(master, &master->registrations), 1);
}

/* Else it would be nobody's: never found, never removed. */
static void what_the_master_has_no_memory_for_is_told_again(void **state)
{
    enum { OBJECTS = 5000 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct session_counters counters;
    size_t told;

    make_objects(fixture, OBJECTS);
    fake_master_set_answer(master, "object-17", SHOAL_NO_MEMORY);
    fake_master_set_answer(master, "object-4100", SHOAL_NO_MEMORY);
    fake_master_set_answer(master, "object-18", SHOAL_NOT_FOUND);
    fixture->drops_to_refuse = 3;
    make_session(fixture, master->address);
    session_set_drop_handler(fixture->session, on_drop, fixture);
    fake_master_wait(master, &master->announcements, 8);
    assert_int_equal(fake_master_read(master, &master->lasts), 0);
    fake_master_set_answer(master, "object-17", SHOAL_OK);
    fake_master_set_answer(master, "object-4100", SHOAL_OK);
    make_ready(fixture);
    assert_int_equal(count_held(master, OBJECTS), OBJECTS);
    told = fake_master_count(master, KIND(HELD), "object-17", 1017);
    told += fake_master_count(master, KIND(HELD), "object-4100", 5100);
    assert_true(told > 2);
    assert_int_equal(master->entry_count, OBJECTS - 2 + told); /* the others once */
    assert_int_equal(fake_master_read(master, &master->registrations), 1);
    mutex_lock(&fixture->mutex);
    assert_int_equal(fixture->drops, 1);
    assert_int_equal(fixture->last_dropped, 1018);
    mutex_unlock(&fixture->mutex);
    session_counters(fixture->session, &counters);
    assert_int_equal(counters.announced, OBJECTS - 1);
    assert_int_equal(counters.announce_failures, 0);
}

static void news_wait_until_everything_held_is_announced(void **state)
{
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;
    struct outcome outcome;

    make_objects(fixture, 3);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    make_session(fixture, master->address);
    fake_master_wait_held(master, 1);
    announce(fixture, KIND(GONE), "object-1", 1001, 0, NULL); /* evicted after it was gathered */
    announce(fixture, KIND(NEW), "object-1", 2000, 0, &outcome);
    fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);
    assert_int_equal(wait_done(&outcome), SHOAL_OK);
    mutex_lock(&master->mutex);
    assert_int_equal(master->entry_count, 5);
    assert_int_equal(master->entries[3].kind, KIND(GONE));
    assert_int_equal(master->entries[4].kind, KIND(NEW));
    mutex_unlock(&master->mutex);
}

static void a_master_that_dies_while_objects_are_announced(void **state)
{
    enum { OBJECTS = 20000 };
    struct fixture *fixture = *state;
    struct fake_master *master = &fixture->master;

    make_objects(fixture, OBJECTS);
    fake_master_set_manner(master, MASTER_METHOD_ANNOUNCE, FAKE_HOLDS);
    make_session(fixture, master->address);
    for (unsigned life = 0; life < 3; life++) {
        fake_master_wait_held(master, 2);
        fake_master_kill(master);
        master->entry_count = 0;
        fake_master_revive(master);
    }
    fake_master_wait_held(master, 2);
    fake_master_answer_held(master, MASTER_METHOD_ANNOUNCE);
    make_ready(fixture);
    assert_int_equal(count_held(master, OBJECTS), OBJECTS);
    assert_int_equal(master->entry_count, OBJECTS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(registers_beats_and_says_goodbye),
        TEST(a_name_is_resolved),
        TEST(addresses_are_checked),
        TEST(an_unreachable_master_is_named_with_the_cause),
        TEST(a_name_in_use_names_who_has_it),
        TEST(waiting_can_be_canceled),
        TEST(whoever_is_not_the_leader_names_it),
        TEST(the_leader_is_found_in_the_metadata_service),
        TEST(a_master_that_forgot_or_changed_is_registered_with_again),
        TEST(a_silent_master_is_left),
        TEST(drops_are_carried_out_once_and_acknowledged),
        TEST(what_comes_meanwhile_travels_together),
        TEST(the_largest_entries_fill_batches),
        TEST(a_deadline_ends_waiting_and_takes_the_route_back),
        TEST(a_route_whose_answer_had_no_memory_is_taken_back),
        TEST(a_broken_connection_leaves_nothing_open),
        TEST(what_nobody_waits_for_arrives_in_the_end_once),
        TEST(malformed_answers_break_the_connection),
        TEST(a_refused_batch_is_repeated_after_registering_again),
        TEST(announcements_are_checked),
        TEST(stopping_ends_what_waits),
        TEST(everything_is_announced_again_after_a_restart),
        TEST(what_the_master_refuses_is_dropped),
        TEST(a_busy_master_is_told_again),
        TEST(what_the_master_has_no_memory_for_is_told_again),
        TEST(news_wait_until_everything_held_is_announced),
        TEST(a_master_that_dies_while_objects_are_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
