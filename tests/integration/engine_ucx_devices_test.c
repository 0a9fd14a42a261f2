/* SPDX-License-Identifier: Apache-2.0 */
/* A NIC priority matrix of network devices: two network namespaces with three links between them. The first link is
 * preferred, the second is the fallback, the third has the addresses of the nodes. What each device carried is read
 * from the kernel. Needs root and iproute2, else skipped. */
#include "../contract/transport_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "content.h"
#include "engine/engine.h"
#include "netns.h"

#define MIB (1u << 20)
#define LEN (16 * MIB)
#define SEED 7
#define STALL_MS 8000 /* long enough for a busy machine, and the failover waits for it */

static struct {
    int here, there; /* namespaces */
    pid_t peer;
    int control; /* closing it ends the peer */
    char name[320];
    void *memory;
} world = {.here = -1, .there = -1, .control = -1};

struct greeting {
    char name[320];
    void *memory;
};

/* Of this process: UCX looks for devices in /sys, which shows those of the namespace that mounted it. */
static bool enter(int netns)
{
    return setns(netns, CLONE_NEWNET) == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("sysfs", "/sys", "sysfs", 0, NULL) == 0;
}

static struct shoal_engine_config config_of(const char *address, const char *matrix)
{
    struct shoal_engine_config config = fixture_config();

    config.server_name = address;
    config.protocol = "ucx";
    config.nic_priority_matrix = matrix;
    config.progress_timeout_ms = STALL_MS;
    return config;
}

/* Before this process has threads. */
static _Noreturn void run_peer(int control)
{
    struct shoal_engine_config config = config_of("10.77.2.2", "{\"*\": [[\"b0\"], [\"b1\"]]}");
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};
    struct greeting hello = {.memory = memory_make(LEN)};
    struct shoal_engine *engine;
    struct shoal_error error;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!enter(world.there))
        _exit(77);
    content_fill(hello.memory, LEN, SEED, 0);
    if (shoal_engine_create(&config, &call, &engine, &error) != SHOAL_OK ||
        shoal_engine_register_memory(engine, hello.memory, LEN, NULL,
                                     SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error) != SHOAL_OK) {
        fprintf(stderr, "peer: %s\n", error.message);
        _exit(1);
    }
    snprintf(hello.name, sizeof hello.name, "%s", shoal_engine_server_name(engine));
    if (write(control, &hello, sizeof hello) != (ssize_t)sizeof hello)
        _exit(1);
    (void)!read(control, &byte, 1); /* until the test ends */
    _exit(0);
}

static int close_world(void **state)
{
    if (world.control >= 0)
        close(world.control);
    if (world.peer > 0)
        waitpid(world.peer, NULL, 0);
    if (world.here >= 0)
        close(world.here);
    if (world.there >= 0)
        close(world.there);
    return fixture_teardown(state);
}

/* The kernel takes a while to find that a link has two ends. */
#define AWAIT_LINKS(side)                                                                                              \
    "for i in 0 1 2; do\n"                                                                                             \
    "    timeout 30 sh -c \"until ip link show " side "$i | grep -q 'state UP'; do sleep 0.02; done\"\n"               \
    "done"

/* false: this machine or this user cannot. */
static bool open_world(void)
{
    struct greeting hello;
    char script[512];
    int pair[2];

    world.there = netns_create("true");
    if (world.there < 0)
        return false;
    snprintf(script, sizeof script,
             "for i in 0 1 2; do\n"
             "    ip link add a$i type veth peer name b$i netns /proc/%d/fd/%d\n"
             "    ip addr add 10.77.$i.1/24 dev a$i\n"
             "    ip link set a$i up\n"
             "done",
             (int)getpid(), world.there);
    world.here = netns_create(script);
    if (world.here < 0)
        return false;
    if (netns_run(world.there, "for i in 0 1 2; do\n"
                               "    ip addr add 10.77.$i.2/24 dev b$i\n"
                               "    ip link set b$i up\n"
                               "done") != 0)
        return false;
    assert_int_equal(netns_run(world.here, AWAIT_LINKS("a")), 0);
    assert_int_equal(netns_run(world.there, AWAIT_LINKS("b")), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    world.peer = fork();
    if (world.peer == 0) {
        close(pair[0]);
        run_peer(pair[1]);
    }
    assert_true(world.peer > 0);
    close(pair[1]);
    world.control = pair[0];
    if (!enter(world.here)) {
        fprintf(stderr, "no /sys of its own for a network namespace\n");
        return false;
    }
    assert_int_equal(read(world.control, &hello, sizeof hello), sizeof hello);
    memcpy(world.name, hello.name, sizeof world.name);
    world.memory = hello.memory;
    return true;
}

/* Bytes that came by (what "rx") or went out of (what "tx") a device of ours. */
static uint64_t carried(const char *device, const char *what)
{
    char path[128], text[32] = "";
    FILE *file;

    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s_bytes", device, what);
    file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    return strtoull(text, NULL, 10);
}

static void check_path(void *arg, const struct engine_peer_view *view)
{
    (void)arg;
    assert_string_equal(view->paths[0].transport, "ucx");
    if (view->paths[0].refusal)
        fail_msg("ucx: %s", view->paths[0].text);
    for (unsigned i = 1; i < view->path_count; i++)
        assert_int_equal(view->paths[i].requests, 0);
}

static void check_metric(struct shoal_engine *engine, const char *line)
{
    struct buf text;

    buf_init(&text, MIB);
    assert_true(engine_metrics(engine, &text) && buf_append(&text, "", 1));
    if (!strstr((const char *)text.data, line))
        fail_msg("no '%s' in the metrics:\n%s", line, (const char *)text.data);
    buf_release(&text);
}

static void read_all(struct shoal_engine *engine, struct shoal_segment *segment, uint8_t *local)
{
    struct shoal_error error;

    memset(local, 0, LEN);
    assert_ok(transfer(engine, segment, SHOAL_OP_READ, local, world.memory, 0, LEN, &error), &error);
    assert_int_equal(content_find_difference(local, LEN, SEED, 0), -1);
}

static void test_devices(void **state)
{
    struct shoal_engine_config config = config_of("10.77.2.1", "{\"*\": [[\"a0\"], [\"a1\"]]}");
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};
    uint8_t *local = memory_make(LEN);
    struct shoal_engine *engine, *late;
    struct shoal_segment *segment;
    struct shoal_error error;

    (void)state;
    if (!open_world()) {
        memory_drop(local, LEN);
        skip();
    }
    assert_ok(shoal_engine_create(&config, &call, &engine, &error), &error);
    assert_ok(shoal_engine_register_memory(engine, local, LEN, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(engine, world.name, &call, &segment, &error), &error);

    read_all(engine, segment, local);
    assert_ok(transfer(engine, segment, SHOAL_OP_WRITE, local, world.memory, 0, LEN, &error), &error);
    assert_int_equal(engine_peers_visit(engine, check_path, NULL), SHOAL_OK);
    assert_true(carried("a0", "rx") >= LEN && carried("a0", "tx") >= LEN);
    assert_true(carried("a1", "rx") < MIB && carried("a1", "tx") < MIB);
    check_metric(engine, "shoal_transport_ucx_failovers_total 0\n");

    /* Nobody resets the connections: what was sent does not arrive. */
    assert_int_equal(netns_run(world.here, "ip link set a0 down"), 0);
    read_all(engine, segment, local);
    assert_ok(transfer(engine, segment, SHOAL_OP_WRITE, local, world.memory, 0, LEN, &error), &error);
    assert_true(carried("a1", "rx") >= LEN && carried("a1", "tx") >= LEN);
    check_metric(engine, "shoal_transport_ucx_failovers_total 1\n");
    assert_int_equal(engine_peers_visit(engine, check_path, NULL), SHOAL_OK);
    shoal_segment_close(segment);

    /* Who comes when the device is down already begins with the fallback. */
    assert_ok(shoal_engine_create(&config, &call, &late, &error), &error);
    assert_ok(shoal_engine_register_memory(late, local, LEN, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(late, world.name, &call, &segment, &error), &error);
    read_all(late, segment, local);
    assert_true(carried("a1", "rx") >= 2ull * LEN);
    assert_int_equal(engine_peers_visit(late, check_path, NULL), SHOAL_OK);
    shoal_segment_close(segment);
    shoal_engine_destroy(late);

    assert_true(carried("a2", "rx") < MIB && carried("a2", "tx") < MIB);
    shoal_engine_destroy(engine);
    memory_drop(local, LEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_devices, fixture_setup, close_world),
    };

    if (!fixture_has_ucx())
        return 77;
    unsetenv("UCX_TLS"); /* a choice of whoever runs this */
    unsetenv("UCX_NET_DEVICES");
    return cmocka_run_group_tests_name("devices of UCX", tests, NULL, NULL);
}
