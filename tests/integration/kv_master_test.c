/* SPDX-License-Identifier: Apache-2.0 */
/* A real master under real signals: killed and started again while clients hold 10,000 objects (F22), stopped for
 * longer than a client may be silent, and clients that die (F24), share a name (F27) or send nonsense (F26). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/endian.h"
#include "master_client.h"
#include "master_process.h"
#include "stranger.h"
#include "wire/rpc_frame.h"

enum { NEW, HELD, MOVED, GONE, REPLICA };
enum { REGISTER = 1, HEARTBEAT, ANNOUNCE, LOOKUP };

#define PATIENCE_MS 60000
#define MIB (1u << 20)
#define OBJECTS 10000u
#define BATCH 2000u

struct fixture {
    struct master_process master;
    struct master_client a, b;
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
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

static void begin(struct fixture *fixture, const char *client_ttl)
{
    const char *const more[] = {"--client_ttl", client_ttl, NULL};

    master_process_start(&fixture->master, 0, more);
    master_client_open(&fixture->a, fixture->master.address, NULL);
    master_client_open(&fixture->b, fixture->master.address, NULL);
}

static int setup(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;

    if (fixture->master.pid > 0)
        kill(fixture->master.pid, SIGCONT);
    master_process_end(&fixture->master, SIGKILL);
    master_client_close(&fixture->a);
    master_client_close(&fixture->b);
    free(fixture);
    return 0;
}

static size_t live_clients(struct master_client *client)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(client);
    size_t count = status ? status->n_clients : 0;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return count;
}

static uint64_t known_keys(struct master_client *client)
{
    Shoal__Wire__MasterStatusResponse *status = master_client_status(client);
    uint64_t count = status ? status->key_count : UINT64_MAX;

    protobuf_c_message_free_unpacked((void *)status, NULL);
    return count;
}

/* --- many objects --- */

static void key_of(unsigned i, char key[48])
{
    snprintf(key, 48, "model-7/layer-%02u/block-%08u", i % 80, i);
}

/* Objects from first on, in one request. */
static void announce_batch(struct master_client *client, int kind, unsigned first, unsigned count, bool is_last,
                           enum shoal_status expected)
{
    Shoal__Wire__MasterAnnounceRequest request = SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__INIT;
    Shoal__Wire__MasterAnnounceRequest__Entry *entries = calloc(count, sizeof *entries), **pointers;
    Shoal__Wire__MasterAnnounceResponse *answer;
    char(*keys)[48] = calloc(count, sizeof *keys);
    enum shoal_status status;

    pointers = calloc(count, sizeof *pointers);
    for (unsigned i = 0; i < count; i++) {
        shoal__wire__master_announce_request__entry__init(&entries[i]);
        key_of(first + i, keys[i]);
        entries[i].kind = (Shoal__Wire__MasterAnnounceRequest__Kind)kind;
        entries[i].key = keys[i];
        entries[i].object_id = client->instance + first + i;
        entries[i].len_bytes = first + i;
        pointers[i] = &entries[i];
    }
    request.instance = client->instance;
    request.entries = pointers;
    request.n_entries = count;
    request.is_last_held = is_last;
    answer = master_client_call(client, ANNOUNCE, &request.base, &shoal__wire__master_announce_response__descriptor, 0,
                                &status);
    assert_int_equal(status, SHOAL_OK);
    assert_int_equal(answer->n_statuses, count);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(answer->statuses[i], expected);
    protobuf_c_message_free_unpacked((void *)answer, NULL);
    free(entries);
    free(pointers);
    free(keys);
}

static void announce_all(struct master_client *client, int kind)
{
    for (unsigned first = 0; first < OBJECTS; first += BATCH)
        announce_batch(client, kind, first, BATCH, kind == HELD && first + BATCH == OBJECTS, SHOAL_OK);
}

static struct master_call *begin_lookup(struct master_client *client, unsigned first, unsigned count)
{
    Shoal__Wire__MasterLookupRequest request = SHOAL__WIRE__MASTER_LOOKUP_REQUEST__INIT;
    char(*keys)[48] = calloc(count, sizeof *keys), **pointers = calloc(count, sizeof *pointers);
    struct master_call *call;

    for (unsigned i = 0; i < count; i++) {
        key_of(first + i, keys[i]);
        pointers[i] = keys[i];
    }
    request.keys = pointers;
    request.n_keys = count;
    call = master_client_begin(client, LOOKUP, &request.base, PATIENCE_MS);
    free(keys);
    free(pointers);
    return call;
}

static void expect_found(struct master_call *call, const struct master_client *owner, unsigned first, unsigned count)
{
    enum shoal_status status;
    Shoal__Wire__MasterLookupResponse *answer =
        master_call_end(call, &shoal__wire__master_lookup_response__descriptor, &status, NULL);

    assert_int_equal(status, SHOAL_OK);
    assert_int_equal(answer->n_routes, count);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(answer->routes[i]->status, SHOAL_OK);
        assert_int_equal(answer->routes[i]->object_id, owner->instance + first + i);
        assert_int_equal(answer->routes[i]->len_bytes, first + i);
        assert_int_equal(answer->routes[i]->n_replicas, 1);
        assert_string_equal(answer->clients[answer->routes[i]->replicas[0]->client]->address, owner->address);
    }
    protobuf_c_message_free_unpacked((void *)answer, NULL);
}

static void restart(struct fixture *fixture, int number)
{
    const char *const more[] = {"--client-ttl=60s", NULL};
    uint16_t port = fixture->master.port;

    master_process_end(&fixture->master, number);
    master_process_start(&fixture->master, port, more);
    master_client_reconnect(&fixture->a, fixture->master.address);
    master_client_reconnect(&fixture->b, fixture->master.address);
}

/* F22, the master's half: nothing is lost, nothing overwritten, whoever asks too early waits. */
static void f22_killed_and_started_again(void **state)
{
    struct fixture *fixture = *state;
    struct master_client *owner = &fixture->a, *other = &fixture->b;
    struct master_call *early = NULL;

    begin(fixture, "60s");
    for (int life = 0; life < 3; life++) {
        if (life > 0)
            restart(fixture, life == 1 ? SIGKILL : SIGTERM);
        assert_int_equal(master_client_heartbeat(owner, MIB, 0, 0, NULL), SHOAL_NOT_FOUND);
        assert_int_equal(master_client_register(owner, MIB, life > 0 ? OBJECTS : 0), SHOAL_OK);
        assert_int_equal(master_client_register(other, MIB, 0), SHOAL_OK);
        if (life > 0)
            early = begin_lookup(other, 0, BATCH);
        announce_all(owner, life > 0 ? HELD : NEW);
        if (life > 0)
            expect_found(early, owner, 0, BATCH);
        for (unsigned first = 0; first < OBJECTS; first += BATCH) {
            expect_found(begin_lookup(other, first, BATCH), owner, first, BATCH);
            announce_batch(other, NEW, first, BATCH, false, SHOAL_EXISTS);
        }
        assert_int_equal(known_keys(other), OBJECTS);
    }
}

/* --- silence --- */

/* The requests wait in the sockets, so the answers do not depend on how fast this test runs. */
static void a_stopped_master_expires_nobody(void **state)
{
    enum { TTL_MS = 1000 };
    struct fixture *fixture = *state;
    Shoal__Wire__MasterHeartbeatRequest beat = SHOAL__WIRE__MASTER_HEARTBEAT_REQUEST__INIT;
    struct master_call *of_a, *of_b;
    enum shoal_status status;
    int64_t until_ms;

    begin(fixture, "1s");
    for (int round = 0; round < 2; round++) {
        master_client_register(&fixture->a, MIB, 0);
        assert_int_equal(master_client_register(&fixture->b, MIB, 0), SHOAL_OK);
        assert_int_equal(master_client_register(&fixture->a, MIB, 0), SHOAL_OK);
        master_process_signal(&fixture->master, SIGSTOP);
        until_ms = clock_now_ms() + 3 * TTL_MS; /* what is tested is that time passes */
        beat.instance = fixture->a.instance;
        of_a = master_client_begin(&fixture->a, HEARTBEAT, &beat.base, PATIENCE_MS);
        beat.instance = fixture->b.instance;
        of_b = master_client_begin(&fixture->b, HEARTBEAT, &beat.base, PATIENCE_MS);
        while (clock_now_ms() < until_ms)
            nap();
        assert_false(master_call_is_done(of_a));
        master_process_signal(&fixture->master, SIGCONT);
        protobuf_c_message_free_unpacked(
            master_call_end(of_a, &shoal__wire__master_heartbeat_response__descriptor, &status, NULL), NULL);
        assert_int_equal(status, SHOAL_OK);
        protobuf_c_message_free_unpacked(
            master_call_end(of_b, &shoal__wire__master_heartbeat_response__descriptor, &status, NULL), NULL);
        assert_int_equal(status, SHOAL_OK);
    }
}

/* F24, the master's half. */
static void f24_a_dead_client_goes_with_its_routes(void **state)
{
    struct fixture *fixture = *state;

    begin(fixture, "2s");
    assert_int_equal(master_client_register(&fixture->a, MIB, 0), SHOAL_OK);
    assert_int_equal(master_client_register(&fixture->b, MIB, 0), SHOAL_OK);
    announce_all(&fixture->a, NEW);
    master_client_close(&fixture->a); /* no goodbye */
    /* this one goes on living, however slow the machine makes it */
    WAIT_UNTIL((master_client_heartbeat(&fixture->b, MIB, 0, 0, NULL) == SHOAL_OK ||
                master_client_register(&fixture->b, MIB, 0) == SHOAL_OK) &&
               live_clients(&fixture->b) == 1 && known_keys(&fixture->b) == 0);
    assert_int_equal(master_client_lookup(&fixture->b, "model-7/layer-00/block-00000000", NULL, NULL), SHOAL_NOT_FOUND);
}

static void f27_the_second_of_a_name_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct master_client twin;
    char name[64];

    begin(fixture, "60s");
    assert_int_equal(master_client_register(&fixture->a, MIB, 0), SHOAL_OK);
    master_client_open(&twin, fixture->master.address, fixture->a.name);
    assert_int_equal(master_client_register(&twin, MIB, 0), SHOAL_NAME_IN_USE);
    assert_non_null(strstr(twin.error.message, fixture->a.address));
    snprintf(name, sizeof name, "%s", fixture->a.name);
    master_client_close(&fixture->a);
    assert_int_equal(master_client_register(&twin, MIB, 0), SHOAL_OK); /* nobody is there: not after 60 s, now */
    master_client_close(&twin);
}

/* --- hostile peers --- */

static int connect_raw(const struct fixture *fixture, bool says_hello)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_CONTROL);

    return says_hello ? stranger_join(fixture->master.port, &hello) : stranger_dial(fixture->master.port);
}

static void f26_hostile_peers_disturb_nobody(void **state)
{
    enum { SILENT = 200 };
    struct fixture *fixture = *state;
    uint8_t frame[RPC_FRAME_HEADER_BYTES] = {0};
    static uint8_t garbage[4096];
    int fds[SILENT];

    begin(fixture, "60s");
    for (size_t i = 0; i < SILENT; i++)
        fds[i] = connect_raw(fixture, false);
    assert_int_equal(master_client_register(&fixture->a, MIB, 0), SHOAL_OK);

    int fd = connect_raw(fixture, true);
    put_le32(frame, UINT32_MAX); /* a length of 4 GiB */
    frame[4] = RPC_KIND_REQUEST;
    assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    assert_true(recv(fd, frame, 1, 0) <= 0);
    close(fd);

    fd = connect_raw(fixture, true);
    for (uint16_t method = 0; method < 40; method++) { /* unknown ones, too */
        struct rpc_frame request = {
            .kind = RPC_KIND_REQUEST, .method = method, .id = method, .body_len = sizeof garbage, .timeout_ms = 1000};
        struct rpc_frame answer;
        char text[256];
        memset(garbage, 0xff, sizeof garbage);
        rpc_frame_encode(&request, frame);
        assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
        assert_int_equal(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
        assert_int_equal(recv(fd, frame, sizeof frame, MSG_WAITALL), sizeof frame);
        assert_int_equal(rpc_frame_decode(frame, sizeof text, &answer), SHOAL_OK);
        assert_int_equal(answer.id, method);
        assert_int_equal(answer.status, method == 0 || method > 8 ? SHOAL_UNSUPPORTED
                                        : method == 8             ? SHOAL_OK
                                                                  : SHOAL_PROTOCOL);
        if (answer.body_len)
            assert_int_equal(recv(fd, text, answer.body_len, MSG_WAITALL), answer.body_len);
    }
    close(fd);
    assert_int_equal(master_client_announce(&fixture->a, NEW, "k", 1, 1), SHOAL_OK);
    assert_int_equal(master_client_lookup(&fixture->b, "k", NULL, NULL), SHOAL_OK);
    for (size_t i = 0; i < SILENT; i++)
        close(fds[i]);
    assert_int_equal(master_process_end(&fixture->master, SIGTERM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(f22_killed_and_started_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_master_expires_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(f24_a_dead_client_goes_with_its_routes, setup, teardown),
        cmocka_unit_test_setup_teardown(f27_the_second_of_a_name_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(f26_hostile_peers_disturb_nobody, setup, teardown),
    };
    return cmocka_run_group_tests_name("kv_master", tests, NULL, NULL);
}
