/* SPDX-License-Identifier: Apache-2.0 */
/* Several real masters and a real etcd: one leads; killed, stopped, robbed of its lease, it is followed by the other,
 * and there are never two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <shoal/kv.h>

#include "base/clock.h"
#include "etcd_server.h"
#include "kv/election_key.h"
#include "master_client.h"
#include "master_process.h"
#include "meta/meta.h"

#define PATIENCE_MS 90000
#define MIB (1u << 20)

enum { NEW, HELD };
enum { LOOKUP = 4 };

struct fixture {
    struct etcd_cluster *etcd;
    struct master_process masters[2];
    struct master_client clients[2]; /* one of each */
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

#define WAIT_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        int64_t wait_deadline_ = deadline_after_ms(PATIENCE_MS);                                                       \
        while (!(condition)) {                                                                                         \
            if (deadline_is_past(wait_deadline_))                                                                      \
                fail_msg("never came true: %s", #condition);                                                           \
            nap();                                                                                                     \
        }                                                                                                              \
    } while (0)

static void start_master(struct fixture *fixture, int i)
{
    const char *const more[] = {"--enable_ha", "--etcd_endpoints", etcd_cluster_uri(fixture->etcd), NULL};

    master_process_start(&fixture->masters[i], fixture->masters[i].port, more);
    if (fixture->clients[i].loop)
        master_client_reconnect(&fixture->clients[i], fixture->masters[i].address);
    else
        master_client_open(&fixture->clients[i], fixture->masters[i].address, NULL);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    *state = fixture;
    return fixture ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 2; i++) {
        if (fixture->masters[i].pid > 0)
            kill(fixture->masters[i].pid, SIGCONT);
        master_process_end(&fixture->masters[i], SIGKILL);
        master_client_close(&fixture->clients[i]);
    }
    etcd_cluster_stop(fixture->etcd);
    free(fixture);
    return 0;
}

static bool is_leading(struct fixture *fixture, int i)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(&fixture->clients[i]);
    bool is_leading = status != NULL;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return is_leading;
}

/* Does master i say that the other one leads? */
static bool names_other(struct fixture *fixture, int i)
{
    enum shoal_status status = master_client_register(&fixture->clients[i], MIB, 0);

    return status == SHOAL_CONFLICT && strstr(fixture->clients[i].error.message, fixture->masters[1 - i].address);
}

static void begin(struct fixture *fixture)
{
    if (!etcd_is_available())
        skip();
    fixture->etcd = etcd_cluster_start(1);
    start_master(fixture, 0);
    WAIT_UNTIL(is_leading(fixture, 0));
    start_master(fixture, 1);
    WAIT_UNTIL(names_other(fixture, 1));
    assert_true(is_leading(fixture, 0));
}

static void a_killed_leader_is_followed(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *client = &fixture->clients[1];
    uint64_t object_id = 0;

    begin(fixture);
    master_process_end(&fixture->masters[0], SIGKILL);
    WAIT_UNTIL(is_leading(fixture, 1));
    /* what a client held under the old leader is announced to the new one */
    assert_int_equal(master_client_register(client, MIB, 1), SHOAL_OK);
    assert_int_equal(master_client_announce(client, HELD, "k", 7, 1), SHOAL_OK);
    assert_int_equal(master_client_announce_end(client), SHOAL_OK);
    assert_int_equal(master_client_lookup(client, "k", &object_id, NULL), SHOAL_OK);
    assert_int_equal(object_id, 7);
    start_master(fixture, 0);
    WAIT_UNTIL(names_other(fixture, 0));
    assert_true(is_leading(fixture, 1));

    /* one that ends in order is followed at once; nobody waits for its lease */
    assert_int_equal(master_process_end(&fixture->masters[1], SIGTERM), 0);
    WAIT_UNTIL(is_leading(fixture, 0));
}

static struct shoal_kv *open_kv(const struct fixture *fixture, const char *tiers)
{
    const struct shoal_kv_config config = {.struct_size = sizeof config,
                                           .master = etcd_cluster_uri(fixture->etcd),
                                           .metadata_uri = etcd_cluster_uri(fixture->etcd),
                                           .tiers = tiers};
    const struct shoal_call patient = {.struct_size = sizeof patient, .timeout_ms = PATIENCE_MS};
    struct shoal_kv *kv = NULL;
    struct shoal_error error;

    if (shoal_kv_open(&config, &patient, &kv, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return kv;
}

/* The whole way of a client: it finds the new leader in etcd by itself, announces what it holds, and until then nobody
 * takes a value for missing or puts another one in its place. */
static void values_outlive_the_leader(void **state)
{
    enum { VALUES = 300 };
    const struct shoal_call patient = {.struct_size = sizeof patient, .timeout_ms = PATIENCE_MS};
    struct fixture *fixture = *state;
    struct shoal_kv *owner, *reader;
    struct shoal_error error;

    begin(fixture);
    owner = open_kv(fixture, "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"16MiB\"}]}");
    reader = open_kv(fixture, NULL); /* has cached nothing */
    for (unsigned leader = 0; leader < 2; leader++) {
        char key[32] = {0};

        for (unsigned i = 0; i < VALUES; i++) {
            snprintf(key, sizeof key, "life-%u/%u", leader, i);
            assert_int_equal(shoal_kv_put(owner, key, key, sizeof key, NULL, &patient, &error), SHOAL_OK);
        }
        master_process_end(&fixture->masters[leader], SIGKILL);
        for (unsigned i = 0; i < VALUES; i++) {
            void *data;
            uint64_t len;

            snprintf(key, sizeof key, "life-%u/%u", leader, i);
            if (i % 2)
                assert_int_equal(shoal_kv_put(reader, key, "x", 1, NULL, &patient, &error), SHOAL_EXISTS);
            if (shoal_kv_get(reader, key, &patient, &data, &len, &error) != SHOAL_OK)
                fail_msg("%s: %s", key, error.message);
            assert_int_equal(len, sizeof key);
            assert_string_equal(data, key);
            free(data);
        }
        assert_int_equal(shoal_kv_put(reader, leader ? "new-1" : "new-0", "x", 1, NULL, &patient, &error), SHOAL_OK);
        start_master(fixture, (int)leader);
        WAIT_UNTIL(names_other(fixture, (int)leader));
    }
    shoal_kv_close(reader);
    shoal_kv_close(owner);
}

static void a_stopped_leader_does_not_come_back_as_one(void **state)
{
    struct fixture *fixture = *state;
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char *keys[] = {(char *)(uintptr_t) "k"};
    struct master_call *call;
    enum shoal_status status;

    begin(fixture);
    assert_int_equal(master_client_register(&fixture->clients[0], MIB, 0), SHOAL_OK);
    assert_int_equal(master_client_announce(&fixture->clients[0], NEW, "k", 7, 1), SHOAL_OK);
    master_process_signal(&fixture->masters[0], SIGSTOP);
    request.keys = keys;
    request.n_keys = 1;
    call = master_client_begin(&fixture->clients[0], LOOKUP, &request.base, PATIENCE_MS);
    WAIT_UNTIL(is_leading(fixture, 1));
    master_process_signal(&fixture->masters[0], SIGCONT);
    /* the request was there before its election thread could learn anything */
    protobuf_c_message_free_unpacked(
        master_call_end(call, &shoal__wire__master_lookup_response__descriptor, &status, NULL), NULL);
    assert_int_equal(status, SHOAL_CONFLICT);
    WAIT_UNTIL(names_other(fixture, 0));
    assert_true(is_leading(fixture, 1));
}

static void a_leader_without_its_key_steps_down(void **state)
{
    struct fixture *fixture = *state;
    struct call call = {.deadline_ms = deadline_after_ms(PATIENCE_MS)};
    struct meta_op op = {.kind = META_PUT, .value = {"10.9.8.7:1", 10}};
    struct meta *meta = NULL;
    bool is_applied;
    char *key;

    begin(fixture);
    key = election_key("default");
    op.key = (struct meta_bytes){key, strlen(key)};
    assert_int_equal(meta_open(etcd_cluster_uri(fixture->etcd), &meta, NULL), SHOAL_OK);
    assert_int_equal(meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, NULL), SHOAL_OK);
    WAIT_UNTIL(!is_leading(fixture, 0) && master_client_register(&fixture->clients[0], MIB, 0) == SHOAL_CONFLICT &&
               strstr(fixture->clients[0].error.message, "10.9.8.7:1"));
    op.kind = META_DELETE;
    assert_int_equal(meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, NULL), SHOAL_OK);
    WAIT_UNTIL(is_leading(fixture, 0) != is_leading(fixture, 1));
    meta_close(meta);
    free(key);
}

/* Without the service nobody leads: it cannot be known who does. */
static void without_the_service_nobody_leads(void **state)
{
    struct fixture *fixture = *state;

    begin(fixture);
    etcd_cluster_stop(fixture->etcd);
    fixture->etcd = NULL;
    WAIT_UNTIL(!is_leading(fixture, 0));
    assert_false(is_leading(fixture, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_killed_leader_is_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(values_outlive_the_leader, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_leader_does_not_come_back_as_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_leader_without_its_key_steps_down, setup, teardown),
        cmocka_unit_test_setup_teardown(without_the_service_nobody_leads, setup, teardown),
    };
    return cmocka_run_group_tests_name("kv_election", tests, NULL, NULL);
}
