/* SPDX-License-Identifier: Apache-2.0 */
/* The master's methods, asked by clients over real connections. */
#include "unit.h"

#include "master/master.h"
#include "master/service.h"
#include "master_client.h"

enum { NEW, HELD, MOVED, GONE, REPLICA };
enum { REGISTER = 1, HEARTBEAT, ANNOUNCE, LOOKUP, WRITE_ROUTE, REMOVE, LIST, STATUS };

#define CLIENTS 3
#define MIB (1u << 20)

struct fixture {
    struct master *master;
    struct master_client clients[CLIENTS];
};

static struct master *start(int64_t ttl_ms, int64_t settle_ms, int64_t announce_ms)
{
    struct master_config config = {.host = "127.0.0.1",
                                   .cluster = "default",
                                   .client_ttl_ms = ttl_ms,
                                   .settle_ms = settle_ms,
                                   .announce_ms = announce_ms};
    struct master *master = NULL;

    assert_int_equal(master_create(&config, &master, NULL), SHOAL_OK);
    return master;
}

static bool is_settled(struct fixture *fixture)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(&fixture->clients[0]);
    bool is_settled = status && status->is_settled;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return is_settled;
}

static size_t count_clients(struct fixture *fixture)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(&fixture->clients[0]);
    size_t count = status ? status->n_clients : SIZE_MAX;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return count;
}

static uint64_t count_keys(struct fixture *fixture)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(&fixture->clients[0]);
    uint64_t count = status ? status->key_count : UINT64_MAX;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return count;
}

static void open_clients(struct fixture *fixture)
{
    for (size_t i = 0; i < CLIENTS; i++)
        master_client_open(&fixture->clients[i], master_address(fixture->master), NULL);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture->master = start(60000, 1, 0);
    open_clients(fixture);
    wait_until(is_settled(fixture));
    for (size_t i = 0; i < CLIENTS; i++)
        assert_int_equal(master_client_register(&fixture->clients[i], (i + 1) * MIB, 0), SHOAL_OK);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    for (size_t i = 0; i < CLIENTS; i++)
        master_client_close(&fixture->clients[i]);
    master_destroy(fixture->master);
    free(fixture);
    return 0;
}

/* --- routes --- */

static void a_key_has_one_object_and_its_replicas(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *a = &fixture->clients[0], *b = &fixture->clients[1];
    uint64_t object_id = 0;
    size_t replicas = 0;

    assert_int_equal(master_client_lookup(a, "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(a, NEW, "k", 11, 100), SHOAL_OK);
    assert_int_equal(master_client_announce(a, NEW, "k", 11, 100), SHOAL_OK); /* repeated after a lost answer */
    assert_int_equal(master_client_announce(b, NEW, "k", 12, 100), SHOAL_EXISTS);
    assert_int_equal(master_client_announce(b, REPLICA, "k", 12, 100), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(b, REPLICA, "other", 13, 100), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(b, REPLICA, "k", 11, 100), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "k", &object_id, &replicas), SHOAL_OK);
    assert_int_equal(object_id, 11);
    assert_int_equal(replicas, 2);
    assert_int_equal(master_client_announce(a, GONE, "k", 11, 0), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "k", &object_id, &replicas), SHOAL_OK);
    assert_int_equal(replicas, 1);
    assert_int_equal(master_client_announce(b, GONE, "k", 11, 0), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(b, NEW, "k", 14, 1), SHOAL_OK);
}

/* A put that was given up says GONE; its NEW may still come, by another connection. */
static void gone_before_new_leaves_no_route(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(master_client_announce(&fixture->clients[0], GONE, "k", 21, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "k", 21, 5), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_lookup(&fixture->clients[0], "k", NULL, NULL), SHOAL_NOT_FOUND);
}

/* It may be told twice, e.g. after a lost connection; the others' copies stay. */
static void a_replica_that_is_gone_is_not_the_object(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *a = &fixture->clients[0], *b = &fixture->clients[1];

    assert_int_equal(master_client_announce(a, NEW, "k", 22, 5), SHOAL_OK);
    assert_int_equal(master_client_announce(b, REPLICA, "k", 22, 5), SHOAL_OK);
    assert_int_equal(master_client_announce(b, GONE, "k", 22, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(b, GONE, "k", 22, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(a, HELD, "k", 22, 5), SHOAL_OK);
}

/* The news of an eviction may come after the next put of the key. */
static void a_new_object_replaces_the_clients_own_old_one(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *a = &fixture->clients[0], *b = &fixture->clients[1];
    uint64_t object_id;

    assert_int_equal(master_client_announce(a, NEW, "k", 23, 5), SHOAL_OK);
    assert_int_equal(master_client_announce(b, NEW, "k", 24, 5), SHOAL_EXISTS);
    assert_int_equal(master_client_announce(a, NEW, "k", 25, 5), SHOAL_OK);
    assert_int_equal(master_client_announce(a, GONE, "k", 23, 0), SHOAL_OK);
    assert_int_equal(master_client_lookup(a, "k", &object_id, NULL), SHOAL_OK);
    assert_int_equal(object_id, 25);
    assert_int_equal(master_client_announce(b, REPLICA, "k", 25, 5), SHOAL_OK);
    assert_int_equal(master_client_announce(a, NEW, "k", 26, 5), SHOAL_EXISTS); /* there is another copy */
}

static void what_is_removed_stays_removed(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *a = &fixture->clients[0], *b = &fixture->clients[1];
    Shoal__Wire__MasterHeartbeatResponse *answer = NULL;
    uint64_t sequence;

    assert_int_equal(master_client_remove(a, "k"), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(a, NEW, "k", 31, 100), SHOAL_OK);
    assert_int_equal(master_client_announce(b, REPLICA, "k", 31, 100), SHOAL_OK);
    assert_int_equal(master_client_remove(b, "k"), SHOAL_OK);
    assert_int_equal(master_client_lookup(a, "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(a, HELD, "k", 31, 100), SHOAL_NOT_FOUND);

    /* b says by itself that it deleted it; a hears of it until it says so */
    assert_int_equal(master_client_announce(b, GONE, "k", 31, 0), SHOAL_OK);
    assert_int_equal(master_client_heartbeat(b, MIB, 0, 0, &answer), SHOAL_OK);
    assert_int_equal(answer->n_drops, 0);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(master_client_heartbeat(a, MIB, 0, 0, &answer), SHOAL_OK);
        assert_int_equal(answer->n_drops, 1);
        assert_string_equal(answer->drops[0]->key, "k");
        assert_int_equal(answer->drops[0]->object_id, 31);
        sequence = answer->drops[0]->sequence;
        protobuf_c_message_free_unpacked((void *)answer, NULL);
    }
    assert_int_equal(master_client_heartbeat(a, MIB, 0, sequence, &answer), SHOAL_OK);
    assert_int_equal(answer->n_drops, 0);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    assert_int_equal(master_client_announce(b, NEW, "k", 32, 100), SHOAL_OK); /* the key is free */
}

static void a_registration_begins_anew(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *a = &fixture->clients[0], *b = &fixture->clients[1];
    uint64_t object_id;

    assert_int_equal(master_client_announce(a, NEW, "kept", 41, 1), SHOAL_OK);
    assert_int_equal(master_client_announce(a, NEW, "lost", 42, 1), SHOAL_OK);
    assert_int_equal(master_client_announce(a, NEW, "taken", 43, 1), SHOAL_OK);
    assert_int_equal(master_client_register(a, MIB, 3), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "lost", &object_id, NULL), SHOAL_OK); /* until it is known better */
    assert_int_equal(master_client_announce(a, HELD, "kept", 41, 1), SHOAL_OK);
    assert_int_equal(master_client_announce(a, HELD, "taken", 44, 1), SHOAL_EXISTS); /* the first one has the route */
    assert_int_equal(master_client_announce(a, MOVED, "new", 45, 1), SHOAL_OK);
    assert_int_equal(master_client_announce_end(a), SHOAL_OK);
    wait_until(count_keys(fixture) == 2);
    assert_int_equal(master_client_lookup(b, "kept", &object_id, NULL), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "new", &object_id, NULL), SHOAL_OK);
    assert_int_equal(master_client_lookup(b, "lost", NULL, NULL), SHOAL_NOT_FOUND);
}

/* --- clients --- */

static void names_are_unique_among_the_living(void **state)
{
    struct fixture *fixture = *state;
    struct master_client twin;
    Shoal__Wire__MasterHeartbeatRequest goodbye = SHOAL__WIRE__MASTER_HEARTBEAT_REQUEST__INIT;
    enum shoal_status status;
    void *answer;

    master_client_open(&twin, master_address(fixture->master), fixture->clients[0].name);
    assert_int_equal(master_client_register(&twin, MIB, 0), SHOAL_NAME_IN_USE);
    assert_non_null(strstr(twin.error.message, fixture->clients[0].address));
    assert_int_equal(master_client_heartbeat(&twin, MIB, 0, 0, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_announce(&twin, NEW, "k", 1, 1), SHOAL_NOT_FOUND);

    /* a goodbye frees the name, and the routes go */
    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "k", 51, 1), SHOAL_OK);
    goodbye.instance = fixture->clients[0].instance;
    goodbye.is_leaving = 1;
    answer = master_client_call(&fixture->clients[0], HEARTBEAT, &goodbye.base,
                                &shoal__wire__master_heartbeat_response__descriptor, 0, &status);
    assert_int_equal(status, SHOAL_OK);
    protobuf_c_message_free_unpacked(answer, NULL);
    assert_int_equal(master_client_lookup(&twin, "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_register(&twin, MIB, 0), SHOAL_OK);
    master_client_close(&twin);
}

/* The process behind the name was killed: whoever starts again under that name does not wait for its ttl. */
static void a_dead_process_gives_up_its_name(void **state)
{
    struct fixture *fixture = *state;
    struct master_client again;
    char name[64];

    assert_int_equal(master_client_announce(&fixture->clients[1], NEW, "k", 61, 1), SHOAL_OK);
    snprintf(name, sizeof name, "%s", fixture->clients[1].name);
    master_client_close(&fixture->clients[1]);
    assert_int_equal(master_client_lookup(&fixture->clients[0], "k", NULL, NULL), SHOAL_OK); /* nobody knows yet */
    master_client_open(&again, master_address(fixture->master), name);
    assert_int_equal(master_client_register(&again, MIB, 0), SHOAL_OK);
    assert_int_equal(master_client_lookup(&again, "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(count_clients(fixture), CLIENTS);
    master_client_close(&again);
}

static void a_silent_client_expires_with_its_routes(void **state)
{
    struct fixture *fixture = *state;
    struct master *before = fixture->master;

    fixture->master = start(300, 1, 0);
    for (size_t i = 0; i < 2; i++)
        master_client_reconnect(&fixture->clients[i], master_address(fixture->master));
    wait_until(is_settled(fixture));
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(master_client_register(&fixture->clients[i], MIB, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(&fixture->clients[1], NEW, "k", 71, 1), SHOAL_OK);
    wait_until((master_client_heartbeat(&fixture->clients[0], MIB, 0, 0, NULL) == SHOAL_OK ||
                master_client_register(&fixture->clients[0], MIB, 0) == SHOAL_OK) &&
               count_clients(fixture) == 1 && count_keys(fixture) == 0);
    assert_int_equal(master_client_lookup(&fixture->clients[0], "k", NULL, NULL), SHOAL_NOT_FOUND);
    assert_int_equal(master_client_heartbeat(&fixture->clients[1], MIB, 0, 0, NULL), SHOAL_NOT_FOUND);
    master_destroy(before);
}

static void heartbeats_bring_targets_by_free_capacity(void **state)
{
    struct fixture *fixture = *state;
    Shoal__Wire__MasterHeartbeatResponse *answer = NULL;
    Shoal__Wire__MasterWriteRouteRequest request = SHOAL__WIRE__MASTER_WRITE_ROUTE_REQUEST__INIT;
    Shoal__Wire__MasterWriteRouteResponse *routes;
    uint64_t lengths[] = {2 * MIB, 2 * MIB, 4 * MIB}, excluded[] = {fixture->clients[2].instance};
    enum shoal_status status;

    /* capacities are 1, 2 and 3 MiB; the writer's own counts four times */
    assert_int_equal(master_client_heartbeat(&fixture->clients[0], MIB, MIB / 4 * 3, 0, &answer), SHOAL_OK);
    assert_int_equal(answer->n_targets, 3);
    assert_int_equal(answer->targets[0]->instance, fixture->clients[2].instance);
    assert_string_equal(answer->targets[0]->address, fixture->clients[2].address);
    assert_int_equal(answer->targets[1]->free_bytes, 2 * MIB);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    assert_int_equal(master_client_heartbeat(&fixture->clients[0], MIB, 0, 0, &answer), SHOAL_OK);
    assert_int_equal(answer->targets[0]->instance, fixture->clients[0].instance);
    protobuf_c_message_free_unpacked((void *)answer, NULL);

    request.instance = fixture->clients[0].instance;
    request.len_bytes = lengths;
    request.n_len_bytes = 3;
    routes = master_client_call(&fixture->clients[0], WRITE_ROUTE, &request.base,
                                &shoal__wire__master_write_route_response__descriptor, 0, &status);
    assert_int_equal(status, SHOAL_OK);
    assert_int_equal(routes->n_targets, 3);
    assert_int_equal(routes->targets[0]->instance, fixture->clients[2].instance);
    assert_int_equal(routes->targets[1]->instance, fixture->clients[1].instance); /* the first one was counted */
    assert_int_equal(routes->targets[2]->instance, 0);                            /* nobody is large enough */
    protobuf_c_message_free_unpacked((void *)routes, NULL);
    request.excluded = excluded;
    request.n_excluded = 1;
    request.n_len_bytes = 1;
    routes = master_client_call(&fixture->clients[0], WRITE_ROUTE, &request.base,
                                &shoal__wire__master_write_route_response__descriptor, 0, &status);
    assert_int_equal(routes->targets[0]->instance, fixture->clients[1].instance);
    protobuf_c_message_free_unpacked((void *)routes, NULL);
}

/* --- lists --- */

static Shoal__Wire__MasterListResponse *list(struct fixture *fixture, const char *pattern, uint32_t limit,
                                             const ProtobufCBinaryData *cursor, enum shoal_status *status_out)
{
    Shoal__Wire__MasterListRequest request = SHOAL__WIRE__MASTER_LIST_REQUEST__INIT;

    request.pattern = (char *)(uintptr_t)pattern;
    request.limit = limit;
    if (cursor)
        request.cursor = *cursor;
    return master_client_call(&fixture->clients[0], LIST, &request.base, &shoal__wire__master_list_response__descriptor,
                              0, status_out);
}

static void a_malformed_pattern_is_refused(void **state)
{
    struct fixture *fixture = *state;
    char longer[2050];
    Shoal__Wire__MasterListResponse *page;
    enum shoal_status status;

    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "aaa", 1, 7), SHOAL_OK);
    assert_null(list(fixture, "key/[0-9", 0, NULL, &status));
    assert_int_equal(status, SHOAL_INVALID_ARGUMENT);
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_null(list(fixture, longer, 0, NULL, &status));
    assert_int_equal(status, SHOAL_INVALID_ARGUMENT);
    longer[sizeof longer - 2] = '\0'; /* a pattern, longer than any key */
    page = list(fixture, longer, 0, NULL, &status);
    assert_non_null(page);
    assert_int_equal(page->n_entries, 0);
    protobuf_c_message_free_unpacked((void *)page, NULL);
}

static void lists_come_in_order_and_pages(void **state)
{
    enum { KEYS = 2500 }; /* several slices */
    struct fixture *fixture = *state;
    Shoal__Wire__MasterListResponse *page, *next;
    enum shoal_status status;
    char key[32], last[32] = "";
    size_t count = 0;

    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "%s/%04d", i % 2 ? "odd" : "even", i);
        assert_int_equal(master_client_announce(&fixture->clients[i % 2], NEW, key, (uint64_t)i + 1, 7), SHOAL_OK);
    }
    page = list(fixture, "", 1000, NULL, &status);
    while (page) {
        for (size_t i = 0; i < page->n_entries; i++) {
            assert_true(strcmp(last, page->entries[i]->key) < 0);
            snprintf(last, sizeof last, "%s", page->entries[i]->key);
            assert_int_equal(page->entries[i]->len_bytes, 7);
            assert_int_equal(page->entries[i]->n_replicas, 1);
            assert_true(page->entries[i]->replicas[0]->client < page->n_clients);
        }
        count += page->n_entries;
        next = page->next_cursor.len ? list(fixture, "", 1000, &page->next_cursor, &status) : NULL;
        protobuf_c_message_free_unpacked((void *)page, NULL);
        page = next;
    }
    assert_int_equal(count, KEYS);

    page = list(fixture, "odd/*1", 4096, NULL, &status);
    assert_int_equal(page->n_entries, KEYS / 10);
    assert_int_equal(page->next_cursor.len, 0);
    protobuf_c_message_free_unpacked((void *)page, NULL);
    page = list(fixture, "?dd/000[135]", 2, NULL, &status);
    assert_int_equal(page->n_entries, 2);
    next = list(fixture, "?dd/000[135]", 2, &page->next_cursor, &status);
    assert_int_equal(next->n_entries, 1);
    assert_string_equal(next->entries[0]->key, "odd/0005");
    protobuf_c_message_free_unpacked((void *)page, NULL);
    protobuf_c_message_free_unpacked((void *)next, NULL);
    page = list(fixture, "none*", 0, NULL, &status);
    assert_int_equal(page->n_entries, 0);
    protobuf_c_message_free_unpacked((void *)page, NULL);
}

/* --- bad input --- */

static enum shoal_status send_raw(struct fixture *fixture, uint16_t method, const void *bytes, size_t len)
{
    /* a message whose unknown fields are the bytes */
    Shoal__Wire__MasterStatusRequest request = SHOAL__WIRE__MASTER_STATUS_REQUEST__INIT;
    ProtobufCMessageUnknownField field = {
        .tag = 1, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .len = len, .data = (uint8_t *)(uintptr_t)bytes};
    enum shoal_status status;
    void *answer;

    request.base.n_unknown_fields = 1;
    request.base.unknown_fields = &field;
    answer = master_client_call(&fixture->clients[0], method, &request.base,
                                &shoal__wire__master_status_response__descriptor, 0, &status);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

static void malformed_requests_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static const uint8_t cut[] = {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}; /* a length of 4 GiB */
    char long_key[1100];
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char **keys = calloc(5000, sizeof *keys);
    enum shoal_status status;

    for (unsigned method = REGISTER; method < STATUS; method++)
        assert_int_equal(send_raw(fixture, (uint16_t)method, cut, sizeof cut), SHOAL_PROTOCOL);
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = '\0';
    assert_int_equal(master_client_lookup(&fixture->clients[0], "", NULL, NULL), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(master_client_lookup(&fixture->clients[0], long_key, NULL, NULL), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(master_client_remove(&fixture->clients[0], long_key), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "k", 0, 1), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(master_client_announce(&fixture->clients[0], 77, "k", 1, 1), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, long_key, 1, 1), SHOAL_INVALID_ARGUMENT);
    assert_null(list(fixture, "*", 5000, NULL, &status));
    assert_int_equal(status, SHOAL_INVALID_ARGUMENT);
    for (size_t i = 0; i < 5000; i++)
        keys[i] = (char *)(uintptr_t) "k";
    request.keys = keys;
    request.n_keys = 5000;
    assert_null(master_client_call(&fixture->clients[0], LOOKUP, &request.base,
                                   &shoal__wire__master_lookup_response__descriptor, 0, &status));
    assert_int_equal(status, SHOAL_INVALID_ARGUMENT);
    request.n_keys = 4096; /* several slices */
    keys[4095] = (char *)(uintptr_t) "there";
    assert_int_equal(master_client_announce(&fixture->clients[1], NEW, "there", 81, 1), SHOAL_OK);
    Shoal__Wire__MasterLookupResponse *answer = master_client_call(
        &fixture->clients[0], LOOKUP, &request.base, &shoal__wire__master_lookup_response__descriptor, 0, &status);
    assert_int_equal(answer->n_routes, 4096);
    assert_int_equal(answer->routes[0]->status, SHOAL_NOT_FOUND);
    assert_int_equal(answer->routes[4095]->object_id, 81);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    free(keys);
}

/* --- a new life --- */

static struct master_call *begin_lookup(struct master_client *client, const char *key, int64_t timeout_ms)
{
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char *keys[] = {(char *)(uintptr_t)key};

    request.keys = keys;
    request.n_keys = 1;
    return master_client_begin(client, LOOKUP, &request.base, timeout_ms);
}

static uint64_t end_lookup(struct master_call *call, enum shoal_status *status_out)
{
    Shoal__Wire__MasterLookupResponse *answer =
        master_call_end(call, &shoal__wire__master_lookup_response__descriptor, status_out, NULL);
    uint64_t object_id = answer ? answer->routes[0]->object_id : 0;

    if (answer)
        *status_out = (enum shoal_status)answer->routes[0]->status;
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    return object_id;
}

/* A restart says NOT_FOUND of nothing and overwrites nothing, as long as those who held it are about to say so. */
static void answers_about_unknown_keys_wait_in_the_beginning(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct master_client *owner, *reader;
    struct master_call *known, *late, *put, *missing, *hasty;
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry entry = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__ENTRY__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry *entries[] = {&entry};
    Shoal__Wire__MasterAnnounceResponse *answer;
    enum shoal_status status;

    (void)state;
    fixture->master = start(60000, 3000, 600000); /* the owner registers before that; then announcements count */
    open_clients(fixture);
    owner = &fixture->clients[0];
    reader = &fixture->clients[1];
    assert_int_equal(master_client_register(owner, MIB, 2), SHOAL_OK);
    assert_int_equal(master_client_register(reader, MIB, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(owner, HELD, "first", 91, 1), SHOAL_OK);
    assert_int_equal(master_client_lookup(reader, "first", NULL, NULL), SHOAL_OK); /* what is known is answered */

    known = begin_lookup(reader, "second", 0);
    missing = begin_lookup(reader, "missing", 0);
    hasty = begin_lookup(reader, "missing", 200);
    entry.key = (char *)(uintptr_t) "second";
    entry.object_id = 99;
    request.instance = reader->instance;
    request.entries = entries;
    request.n_entries = 1;
    put = master_client_begin(reader, ANNOUNCE, &request.base, 0);
    end_lookup(hasty, &status);
    assert_int_equal(status, SHOAL_TIMED_OUT); /* not: NOT_FOUND */
    assert_false(master_call_is_done(known));
    assert_false(master_call_is_done(missing));
    assert_false(master_call_is_done(put));
    assert_false(is_settled(fixture));

    assert_int_equal(master_client_announce(owner, HELD, "second", 92, 1), SHOAL_OK);
    assert_int_equal(end_lookup(known, &status), 92);
    answer = master_call_end(put, &shoal__wire__master_announce_response__descriptor, &status, NULL);
    assert_int_equal(answer->statuses[0], SHOAL_EXISTS);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    assert_false(master_call_is_done(missing));
    late = begin_lookup(reader, "also missing", 0);
    assert_int_equal(master_client_announce_end(owner), SHOAL_OK);
    end_lookup(missing, &status);
    assert_int_equal(status, SHOAL_NOT_FOUND);
    end_lookup(late, &status);
    assert_int_equal(status, SHOAL_NOT_FOUND);
    assert_true(is_settled(fixture));
    teardown((void **)&fixture);
}

/* Nor is there no room, as long as those who have it are about to come. */
static void a_write_waits_for_owners_in_the_beginning(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    Shoal__Wire__MasterWriteRouteRequest request = SHOAL__WIRE__MASTER_WRITE_ROUTE_REQUEST__INIT;
    Shoal__Wire__MasterWriteRouteResponse *answer;
    struct master_call *patient, *hasty;
    uint64_t len_bytes = 1000;
    enum shoal_status status;

    (void)state;
    fixture->master = start(60000, 600000, 0);
    open_clients(fixture);
    assert_int_equal(master_client_register(&fixture->clients[1], 0, 0), SHOAL_OK);
    request.n_len_bytes = 1;
    request.len_bytes = &len_bytes;
    patient = master_client_begin(&fixture->clients[1], WRITE_ROUTE, &request.base, 0);
    hasty = master_client_begin(&fixture->clients[1], WRITE_ROUTE, &request.base, 200);
    answer = master_call_end(hasty, &shoal__wire__master_write_route_response__descriptor, &status, NULL);
    assert_null(answer);
    assert_int_equal(status, SHOAL_TIMED_OUT);
    assert_false(master_call_is_done(patient));
    assert_int_equal(master_client_register(&fixture->clients[0], MIB, 0), SHOAL_OK);
    answer = master_call_end(patient, &shoal__wire__master_write_route_response__descriptor, &status, NULL);
    assert_int_equal(status, SHOAL_OK);
    assert_int_equal(answer->targets[0]->instance, fixture->clients[0].instance);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    teardown((void **)&fixture);
}

/* More than can be announced in announce_ms: as long as it comes, nothing is taken for missing; when it stops coming,
 * what is missing is not waited for any longer. */
static void announcing_may_take_long_as_long_as_it_goes_on(void **state)
{
    const int64_t announce_ms = 2000;
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct master_client *owner, *reader;
    int64_t last_ms, gap_ms = 0, end_ms;
    enum shoal_status status;

    (void)state;
    last_ms = clock_now_ms();
    fixture->master = start(600000, announce_ms, announce_ms);
    open_clients(fixture);
    owner = &fixture->clients[0];
    reader = &fixture->clients[1];
    assert_int_equal(master_client_register(owner, MIB, 1000000), SHOAL_OK);
    assert_int_equal(master_client_register(reader, MIB, 0), SHOAL_OK);
    end_ms = clock_now_ms() + 2 * announce_ms + 500;
    for (uint64_t id = 1; clock_now_ms() < end_ms; id++) {
        char key[32];
        int64_t now_ms;

        snprintf(key, sizeof key, "key-%llu", (unsigned long long)id);
        assert_int_equal(master_client_announce(owner, HELD, key, id, 1), SHOAL_OK);
        now_ms = clock_now_ms();
        gap_ms = now_ms - last_ms > gap_ms ? now_ms - last_ms : gap_ms;
        last_ms = now_ms;
    }
    bool is_done = is_settled(fixture);
    gap_ms = clock_now_ms() - last_ms > gap_ms ? clock_now_ms() - last_ms : gap_ms;
    if (gap_ms < announce_ms) /* else the machine was too slow for this */
        assert_false(is_done);
    end_lookup(begin_lookup(reader, "missing", 0), &status);
    assert_int_equal(status, SHOAL_NOT_FOUND);
    assert_true(is_settled(fixture));
    teardown((void **)&fixture);
}

static void a_lost_connection_ends_what_was_held(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct master_call *held[2];
    enum shoal_status status;

    (void)state;
    fixture->master = start(60000, 600000, 0);
    open_clients(fixture);
    held[0] = begin_lookup(&fixture->clients[1], "k", 0);
    held[1] = begin_lookup(&fixture->clients[2], "k", 0);
    assert_int_equal(count_keys(fixture), 0); /* the master has seen something later */
    master_client_reconnect(&fixture->clients[1], master_address(fixture->master));
    end_lookup(held[0], &status);
    assert_int_equal(status, SHOAL_CANCELED);
    master_destroy(fixture->master); /* with one held, and one aborted */
    fixture->master = NULL;
    end_lookup(held[1], &status);
    assert_int_not_equal(status, SHOAL_OK);
    teardown((void **)&fixture);
}

static void a_standby_says_who_leads(void **state)
{
    struct fixture *fixture = *state;
    struct master_service *service = master_service_of(fixture->master);
    struct master_client *client = &fixture->clients[0];
    uint64_t before = master_service_instance(service);

    assert_int_equal(master_client_announce(client, NEW, "k", 1, 1), SHOAL_OK);
    master_service_follow(service, "10.0.0.7:50051");
    assert_false(master_service_is_ready(service));
    assert_int_equal(master_client_lookup(client, "k", NULL, NULL), SHOAL_CONFLICT);
    assert_non_null(strstr(client->error.message, "10.0.0.7:50051"));
    assert_int_equal(master_client_register(client, MIB, 0), SHOAL_CONFLICT);
    assert_int_equal(master_client_heartbeat(client, MIB, 0, 0, NULL), SHOAL_CONFLICT);
    master_service_lead(service, INT64_MAX);
    assert_true(master_service_is_ready(service));
    assert_int_not_equal(master_service_instance(service), before);
    assert_int_equal(master_client_heartbeat(client, MIB, 0, 0, NULL), SHOAL_NOT_FOUND); /* a new life */
    assert_int_equal(count_clients(fixture), 0);
    assert_int_equal(count_keys(fixture), 0);

    /* the lease is over, whatever the thread that should have renewed it does */
    master_service_extend(service, 1);
    assert_false(master_service_is_ready(service));
    assert_int_equal(master_client_lookup(client, "k", NULL, NULL), SHOAL_CONFLICT);
    master_service_extend(service, INT64_MAX);
    assert_int_equal(master_client_register(client, MIB, 0), SHOAL_OK);
}

static void metrics_tell_what_there_is(void **state)
{
    struct fixture *fixture = *state;
    char *text;

    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "k", 1, 1), SHOAL_OK);
    text = master_metrics(fixture->master);
    assert_non_null(strstr(text, "\nshoal_master_keys 1\n"));
    assert_non_null(strstr(text, "\nshoal_master_clients 3\n"));
    assert_non_null(strstr(text, "\nshoal_master_requests_total{method=\"announce\"} 1\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_key_has_one_object_and_its_replicas, setup, teardown),
        cmocka_unit_test_setup_teardown(gone_before_new_leaves_no_route, setup, teardown),
        cmocka_unit_test_setup_teardown(a_replica_that_is_gone_is_not_the_object, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_object_replaces_the_clients_own_old_one, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_removed_stays_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_registration_begins_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(names_are_unique_among_the_living, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dead_process_gives_up_its_name, setup, teardown),
        cmocka_unit_test_setup_teardown(a_silent_client_expires_with_its_routes, setup, teardown),
        cmocka_unit_test_setup_teardown(heartbeats_bring_targets_by_free_capacity, setup, teardown),
        cmocka_unit_test_setup_teardown(a_malformed_pattern_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(lists_come_in_order_and_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(malformed_requests_are_refused, setup, teardown),
        cmocka_unit_test(answers_about_unknown_keys_wait_in_the_beginning),
        cmocka_unit_test(a_write_waits_for_owners_in_the_beginning),
        cmocka_unit_test(announcing_may_take_long_as_long_as_it_goes_on),
        cmocka_unit_test(a_lost_connection_ends_what_was_held),
        cmocka_unit_test_setup_teardown(a_standby_says_who_leads, setup, teardown),
        cmocka_unit_test_setup_teardown(metrics_tell_what_there_is, setup, teardown),
    };
    return cmocka_run_group_tests_name("master_service", tests, NULL, NULL);
}
