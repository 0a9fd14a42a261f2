/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of objects (tiers, session, data manager) and a real master, in one process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hostport.h"
#include "kv/election_key.h"
#include "kv_owner.h"
#include "master/election.h"
#include "master/master.h"
#include "meta/meta.h"
#include "tmpdir.h"

#define WAIT_MS 60000
#define CAPACITY (64u << 20)
#define OWNERS 2

struct fixture {
    struct master *master;
    char address[64];
    uint16_t port;
    struct kv_owner owners[OWNERS];
};

static void start_master(struct fixture *fixture)
{
    struct master_config config = {.host = "127.0.0.1", .port = fixture->port, .cluster = "test"};
    int64_t deadline_ms = deadline_after_ms(WAIT_MS);
    struct hostport hostport;

    while (master_create(&config, &fixture->master, NULL) != SHOAL_OK)
        assert_false(deadline_is_past(deadline_ms));
    snprintf(fixture->address, sizeof fixture->address, "%s", master_address(fixture->master));
    assert_int_equal(hostport_parse(&hostport, fixture->address, NULL), SHOAL_OK);
    fixture->port = hostport.port;
}

static void stop_master(struct fixture *fixture)
{
    master_destroy(fixture->master);
    fixture->master = NULL;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    start_master(fixture);
    for (unsigned i = 0; i < OWNERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "owner-%u", i);
        kv_owner_start(&fixture->owners[i], name, 100 + i, fixture->address, CAPACITY, NULL);
    }
    for (unsigned i = 0; i < OWNERS; i++)
        kv_owner_wait_ready(&fixture->owners[i]);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    for (unsigned i = 0; i < OWNERS; i++)
        if (fixture->owners[i].loop)
            kv_owner_stop(&fixture->owners[i]);
    master_destroy(fixture->master);
    free(fixture);
    return 0;
}

static enum shoal_status remove_key(struct kv_owner *owner, const char *key)
{
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct session_route *route;
    struct shoal_error error = {.message = ""};
    enum shoal_status status;

    if (session_remove(owner->session, &key, 1, &call, &route, &error))
        fail_msg("%s", error.message);
    status = route->status;
    free(route);
    return status;
}

/* F23, as far as it goes without the service. */
static void a_key_is_put_once_in_the_cluster_and_removed_everywhere(void **state)
{
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0], *b = &fixture->owners[1];
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    int64_t deadline_ms = deadline_after_ms(WAIT_MS);
    uint64_t object_id, used_before = kv_owner_used_bytes(b);

    assert_int_equal(kv_owner_put(a, "k", "value"), SHOAL_OK);
    assert_int_equal(kv_owner_routes(b, "k", &object_id), 1);
    assert_int_equal(kv_owner_put(a, "k", "value"), SHOAL_EXISTS);
    assert_int_equal(kv_owner_put(b, "k", "value"), SHOAL_EXISTS);
    assert_int_equal(kv_owner_put(b, "k", "other"), SHOAL_EXISTS);
    assert_int_equal(kv_owner_used_bytes(b), used_before);
    assert_int_equal(data_manager_put(b->manager, "k", "value", 5, object_id, &call, NULL, NULL), SHOAL_OK);
    assert_int_equal(kv_owner_routes(a, "k", NULL), 2);
    assert_int_equal(remove_key(a, "missing"), SHOAL_NOT_FOUND);
    assert_int_equal(remove_key(a, "k"), SHOAL_OK);
    assert_int_equal(kv_owner_routes(a, "k", NULL), 0);
    /* Heartbeats bring it to both. */
    while (tier_has(a->backend, "k") || tier_has(b->backend, "k"))
        assert_false(deadline_is_past(deadline_ms));
    assert_int_equal(remove_key(b, "k"), SHOAL_NOT_FOUND);
    assert_int_equal(kv_owner_put(b, "k", "again"), SHOAL_OK);
    assert_int_equal(data_manager_delete(b->manager, "k", 0, NULL), SHOAL_OK);
    while (kv_owner_routes(a, "k", NULL))
        assert_false(deadline_is_past(deadline_ms));
}

/* F22, in one process. */
static void a_restarted_master_loses_and_overwrites_nothing(void **state)
{
    enum { OBJECTS = 10000 };
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0], *b = &fixture->owners[1];
    char key[32], value[32];

    for (unsigned i = 0; i < OBJECTS; i++) {
        snprintf(key, sizeof key, "key-%u", i);
        snprintf(value, sizeof value, "value-%u", i);
        assert_int_equal(kv_owner_put(i % 2 ? a : b, key, value), SHOAL_OK);
    }
    for (unsigned life = 0; life < 2; life++) {
        stop_master(fixture);
        start_master(fixture);
        /* At once, before anything is announced: the master knows that it does not know yet. */
        assert_int_equal(kv_owner_put(a, "key-0", "overwritten"), SHOAL_EXISTS);
        assert_int_equal(kv_owner_put(b, "key-1", "overwritten"), SHOAL_EXISTS);
        for (unsigned i = 0; i < OBJECTS; i++) {
            snprintf(key, sizeof key, "key-%u", i);
            snprintf(value, sizeof value, "value-%u", i);
            assert_int_equal(kv_owner_routes(i % 2 ? b : a, key, NULL), 1);
            assert_true(kv_owner_has(i % 2 ? a : b, key, value));
        }
    }
}

/* What a partition would leave behind: published here, unknown to the master. */
static void publish_unannounced(struct kv_owner *owner, const char *key, const char *value)
{
    struct tier_allocation *allocation;
    struct tier_object *object;

    assert_int_equal(tier_allocate(owner->backend, key, strlen(value), false, &allocation, NULL), SHOAL_OK);
    assert_int_equal(tier_write(allocation, 0, value, strlen(value), NULL), SHOAL_OK);
    assert_int_equal(tier_commit(allocation, 0, &object, NULL), SHOAL_OK);
    assert_int_equal(tier_publish(object, NULL), SHOAL_OK);
    tier_object_unref(object);
}

/* Two owners were apart and hold different objects of a key: the first to announce keeps it. */
static void a_conflict_is_resolved_when_objects_are_announced_again(void **state)
{
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0], *b = &fixture->owners[1];
    int64_t deadline_ms = deadline_after_ms(WAIT_MS);
    struct session_counters of_a, of_b;
    struct tier_object *object;
    uint64_t object_id;

    assert_int_equal(kv_owner_put(a, "k", "from a"), SHOAL_OK);
    stop_master(fixture);
    publish_unannounced(b, "k", "from b");
    start_master(fixture);
    kv_owner_wait_ready(a);
    kv_owner_wait_ready(b);
    while (tier_has(a->backend, "k") && tier_has(b->backend, "k"))
        assert_false(deadline_is_past(deadline_ms));
    do {
        session_counters(a->session, &of_a);
        session_counters(b->session, &of_b);
        assert_false(deadline_is_past(deadline_ms));
    } while (of_a.conflicts + of_b.conflicts != 1);
    assert_int_equal(kv_owner_routes(a, "k", &object_id), 1);
    assert_true(kv_owner_has(a, "k", "from a") != kv_owner_has(b, "k", "from b"));
    assert_int_equal(tier_get(tier_has(a->backend, "k") ? a->backend : b->backend, "k", &object), SHOAL_OK);
    assert_int_equal(tier_object_id(object), object_id);
    tier_object_unref(object);
}

static void a_put_that_is_not_confirmed_in_time_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0];
    struct call call = {.deadline_ms = deadline_after_ms(3000)};
    struct shoal_error error;
    uint64_t used_before = kv_owner_used_bytes(a);

    stop_master(fixture);
    assert_int_equal(data_manager_put(a->manager, "k", "value", 5, 0, &call, NULL, &error), SHOAL_UNREACHABLE);
    assert_non_null(strstr(error.message, fixture->address));
    assert_int_equal(kv_owner_used_bytes(a), used_before);
    start_master(fixture);
    kv_owner_wait_ready(a);
    assert_int_equal(kv_owner_routes(a, "k", NULL), 0);
    assert_int_equal(kv_owner_put(a, "k", "value"), SHOAL_OK);
}

static void who_leaves_takes_its_routes_with_it(void **state)
{
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0], *b = &fixture->owners[1];

    assert_int_equal(kv_owner_put(a, "k", "value"), SHOAL_OK);
    kv_owner_stop(a);
    assert_int_equal(kv_owner_routes(b, "k", NULL), 0); /* not only after its time to live */
    assert_int_equal(kv_owner_put(b, "k", "value"), SHOAL_OK);
}

static void a_master_may_end_while_it_forgets_a_client(void **state)
{
    enum { OBJECTS = 40000 };
    struct fixture *fixture = *state;
    struct kv_owner *a = &fixture->owners[0];
    char key[32];

    for (unsigned i = 0; i < OBJECTS; i++) {
        snprintf(key, sizeof key, "key-%u", i);
        publish_unannounced(a, key, "value");
    }
    stop_master(fixture);
    start_master(fixture);
    assert_int_equal(kv_owner_routes(&fixture->owners[1], "key-39999", NULL), 1);
    data_manager_destroy(a->manager);
    session_destroy(a->session); /* says goodbye */
    stop_master(fixture);
    a->manager = NULL;
    a->session = NULL;
}

struct racer {
    struct fixture *fixture;
    unsigned number, won, lost;
};

#define RACERS 8
#define RACE_KEYS 200

static void *race(void *arg)
{
    struct racer *racer = arg;
    struct kv_owner *owner = &racer->fixture->owners[racer->number % OWNERS];
    char key[32], value[32];

    for (unsigned i = 0; i < RACE_KEYS; i++) {
        snprintf(key, sizeof key, "race-%u", i);
        snprintf(value, sizeof value, "by %u", racer->number);
        switch (kv_owner_put(owner, key, value)) {
        case SHOAL_OK:
            racer->won++;
            break;
        case SHOAL_EXISTS:
            racer->lost++;
            break;
        default:
            break;
        }
    }
    return NULL;
}

static void of_many_that_put_a_key_one_wins(void **state)
{
    struct fixture *fixture = *state;
    struct racer racers[RACERS];
    pthread_t threads[RACERS];
    unsigned won = 0, lost = 0;
    char key[32];

    for (unsigned i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){.fixture = fixture, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < RACERS; i++) {
        pthread_join(threads[i], NULL);
        won += racers[i].won;
        lost += racers[i].lost;
    }
    assert_int_equal(won, RACE_KEYS);
    assert_int_equal(won + lost, RACERS * RACE_KEYS);
    for (unsigned i = 0; i < RACE_KEYS; i++) {
        snprintf(key, sizeof key, "race-%u", i);
        assert_int_equal(kv_owner_routes(&fixture->owners[0], key, NULL), 1);
        assert_int_equal(tier_has(fixture->owners[0].backend, key) + tier_has(fixture->owners[1].backend, key), 1);
    }
}

struct churn {
    struct fixture *fixture;
    unsigned number;
    bool is_ending;
    unsigned confirmed;
};

static void *churn_main(void *arg)
{
    struct churn *churn = arg;
    struct kv_owner *owner = &churn->fixture->owners[churn->number % OWNERS];
    char key[32];

    while (!__atomic_load_n(&churn->is_ending, __ATOMIC_ACQUIRE)) {
        snprintf(key, sizeof key, "churn-%u-%u", churn->number, churn->confirmed);
        if (kv_owner_put(owner, key, "value") == SHOAL_OK)
            __atomic_add_fetch(&churn->confirmed, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Whatever a put said OK to has a route, however often the master went away meanwhile. */
static void puts_go_on_while_the_master_is_restarted(void **state)
{
    struct fixture *fixture = *state;
    struct churn churns[4];
    pthread_t threads[4];
    char key[32];

    for (unsigned i = 0; i < 4; i++) {
        churns[i] = (struct churn){.fixture = fixture, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, churn_main, &churns[i]), 0);
    }
    for (unsigned life = 0; life < 3; life++) {
        int64_t deadline_ms = deadline_after_ms(WAIT_MS);
        unsigned aim = __atomic_load_n(&churns[0].confirmed, __ATOMIC_ACQUIRE) + 50;

        while (__atomic_load_n(&churns[0].confirmed, __ATOMIC_ACQUIRE) < aim)
            assert_false(deadline_is_past(deadline_ms));
        stop_master(fixture);
        start_master(fixture);
    }
    for (unsigned i = 0; i < 4; i++)
        __atomic_store_n(&churns[i].is_ending, true, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < OWNERS; i++)
        kv_owner_wait_ready(&fixture->owners[i]);
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned k = 0; k < churns[i].confirmed; k++) {
            snprintf(key, sizeof key, "churn-%u-%u", i, k);
            assert_int_equal(kv_owner_routes(&fixture->owners[0], key, NULL), 1);
            assert_true(kv_owner_has(&fixture->owners[i % OWNERS], key, "value"));
        }
    }
}

struct candidate {
    struct master *master;
    struct election *election;
    uint16_t port; /* the same in its next life */
};

static void candidate_start(struct candidate *candidate, const char *uri)
{
    struct master_config master = {.host = "127.0.0.1", .port = candidate->port, .cluster = "test", .is_standby = true};
    struct election_config election = {.uri = uri, .cluster = "test"};
    int64_t deadline_ms = deadline_after_ms(WAIT_MS);
    struct hostport hostport;

    while (master_create(&master, &candidate->master, NULL) != SHOAL_OK)
        assert_false(deadline_is_past(deadline_ms));
    assert_int_equal(hostport_parse(&hostport, master_address(candidate->master), NULL), SHOAL_OK);
    candidate->port = hostport.port;
    election.address = master_address(candidate->master);
    election.service = master_service_of(candidate->master);
    assert_int_equal(election_create(&election, &candidate->election, NULL), SHOAL_OK);
}

static void candidate_stop(struct candidate *candidate)
{
    election_destroy(candidate->election);
    master_destroy(candidate->master);
    candidate->election = NULL;
    candidate->master = NULL;
}

/* Waits for one; the index of the candidate. */
static unsigned find_leader(const struct candidate *candidates, const char *uri)
{
    char *key = election_key("test");
    struct call call = {.deadline_ms = deadline_after_ms(WAIT_MS)};
    struct meta_entry entry;
    bool is_found = false;
    struct meta *meta;
    unsigned leader;

    assert_int_equal(meta_open(uri, &meta, NULL), SHOAL_OK);
    while (!is_found)
        assert_int_equal(meta_get(meta, (struct meta_bytes){key, strlen(key)}, &call, &is_found, &entry, NULL),
                         SHOAL_OK);
    leader = strcmp(entry.value, master_address(candidates[0].master)) == 0 ? 0 : 1;
    assert_string_equal(entry.value, master_address(candidates[leader].master));
    meta_entry_release(&entry);
    meta_close(meta);
    free(key);
    return leader;
}

/* Clients that ask the metadata service, and clients that know the addresses of all masters. */
static void another_leader_learns_everything(void **state)
{
    enum { OBJECTS = 2000 };
    char *directory = tmpdir_make(), uri[256], both[160], key[32];
    struct candidate candidates[2] = {{.port = 0}};
    struct kv_owner owners[2];

    (void)state;
    snprintf(uri, sizeof uri, "sqlite:%s/meta.db", directory);
    for (unsigned i = 0; i < 2; i++)
        candidate_start(&candidates[i], uri);
    snprintf(both, sizeof both, "%s,%s", master_address(candidates[0].master), master_address(candidates[1].master));
    kv_owner_start(&owners[0], "finds", 1, uri, CAPACITY, NULL);
    kv_owner_start(&owners[1], "knows", 2, both, CAPACITY, NULL);
    for (unsigned i = 0; i < OBJECTS; i++) {
        snprintf(key, sizeof key, "key-%u", i);
        assert_int_equal(kv_owner_put(&owners[i % 2], key, "value"), SHOAL_OK);
    }
    for (unsigned change = 0; change < 2; change++) {
        unsigned leader = find_leader(candidates, uri);

        candidate_stop(&candidates[leader]);
        for (unsigned i = 0; i < OBJECTS; i++) {
            snprintf(key, sizeof key, "key-%u", i);
            assert_int_equal(kv_owner_routes(&owners[(i + 1) % 2], key, NULL), 1);
        }
        assert_int_equal(kv_owner_put(&owners[change], "key-7", "overwritten"), SHOAL_EXISTS);
        if (change == 0)
            candidate_start(&candidates[leader], uri);
        for (unsigned i = 0; i < 2; i++)
            kv_owner_wait_ready(&owners[i]);
    }
    for (unsigned i = 0; i < 2; i++) {
        kv_owner_stop(&owners[i]);
        if (candidates[i].master)
            candidate_stop(&candidates[i]);
    }
    tmpdir_remove(directory);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_key_is_put_once_in_the_cluster_and_removed_everywhere),
        TEST(a_restarted_master_loses_and_overwrites_nothing),
        TEST(a_conflict_is_resolved_when_objects_are_announced_again),
        TEST(a_put_that_is_not_confirmed_in_time_leaves_nothing),
        TEST(who_leaves_takes_its_routes_with_it),
        TEST(a_master_may_end_while_it_forgets_a_client),
        TEST(of_many_that_put_a_key_one_wins),
        TEST(puts_go_on_while_the_master_is_restarted),
        cmocka_unit_test(another_leader_learns_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
