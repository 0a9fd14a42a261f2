/* SPDX-License-Identifier: Apache-2.0 */
/* Names and addresses of nodes: F5, F6, F27. */
#include "../contract/transport_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hostport.h"
#include "content.h"
#include "engine/engine.h"
#include "engine/keys.h"
#include "meta_edit.h"
#include "netns.h"

static enum shoal_status try_name(const char *name, struct shoal_engine **engine, struct shoal_error *error)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};

    config.server_name = name;
    *engine = NULL;
    return shoal_engine_create(&config, &call, engine, error);
}

static void test_good_names(void **state)
{
    static const struct {
        const char *given, *name_prefix, *address_prefix;
    } cases[] = {
        {"127.0.0.1", "127.0.0.1:", "127.0.0.1:"},
        {"127.0.0.1:0", "127.0.0.1:", "127.0.0.1:"},
        {"127.0.0.53", "127.0.0.53:", "127.0.0.53:"},
        {"::1", "[::1]:", "[::1]:"},
        {"[::1]", "[::1]:", "[::1]:"},
        {"[::1]:0", "[::1]:", "[::1]:"},
        {"localhost", "localhost:", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shoal_engine *engine;
        struct shoal_error error;
        struct hostport hostport;

        assert_ok(try_name(cases[i].given, &engine, &error), &error);
        assert_memory_equal(shoal_engine_server_name(engine), cases[i].name_prefix, strlen(cases[i].name_prefix));
        assert_memory_equal(engine_address(engine), cases[i].address_prefix, strlen(cases[i].address_prefix));
        assert_int_equal(hostport_parse(&hostport, shoal_engine_server_name(engine), NULL), SHOAL_OK);
        assert_true(hostport.has_port && hostport.port > 0);
        shoal_engine_destroy(engine);
    }
}

static void test_bad_names(void **state)
{
    static const struct {
        const char *name;
        enum shoal_status status;
        const char *says;
    } cases[] = {
        {"", SHOAL_INVALID_ARGUMENT, "server_name"},
        {"127.0.0.1:65536", SHOAL_INVALID_ARGUMENT, "127.0.0.1:65536"},
        {"127.0.0.1:x", SHOAL_INVALID_ARGUMENT, "127.0.0.1:x"},
        {"127.0.0.1:", SHOAL_INVALID_ARGUMENT, "127.0.0.1:"},
        {"[::1", SHOAL_INVALID_ARGUMENT, "[::1"},
        {"a b", SHOAL_INVALID_ARGUMENT, "a b"},
        {"0.0.0.0", SHOAL_INVALID_ARGUMENT, "name one address"},
        {"0.0.0.0:0", SHOAL_INVALID_ARGUMENT, "name one address"},
        {"::", SHOAL_INVALID_ARGUMENT, "name one address"},
        {"[::]:0", SHOAL_INVALID_ARGUMENT, "name one address"},
        {"no-such-host.invalid", SHOAL_ADDRESS, "no-such-host.invalid"},
        {"192.0.2.1", SHOAL_ADDRESS, "not an address of this machine"},
        {"[2001:db8::1]:0", SHOAL_ADDRESS, "2001:db8::1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shoal_engine *engine;
        struct shoal_error error;

        assert_status(cases[i].status, try_name(cases[i].name, &engine, &error), &error);
        if (!strstr(error.message, cases[i].says))
            fail_msg("'%s': the message does not say \"%s\": %s", cases[i].name, cases[i].says, error.message);
        assert_null(engine);
    }
}

static void test_bad_config(void **state)
{
    char long_cluster[80];
    struct shoal_engine_config config, bad[10];
    struct shoal_engine *engine = NULL;
    struct shoal_error error;
    size_t count = 0;

    (void)state;
    memset(long_cluster, 'c', sizeof long_cluster);
    long_cluster[64] = '\0';
    config = fixture_config();
#define BAD(field, value) bad[count] = config, bad[count].field = (value), count++
    BAD(struct_size, 0);
    BAD(metadata_uri, NULL);
    BAD(metadata_uri, "nonsense://x");
    BAD(server_name, NULL);
    BAD(cluster, "");
    BAD(cluster, long_cluster);
    BAD(io_threads, 1000);
    BAD(lease_ttl_ms, 1999);
    BAD(connect_timeout_ms, -1);
    BAD(progress_timeout_ms, -1);
#undef BAD
    for (size_t i = 0; i < count; i++)
        assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(&bad[i], NULL, &engine, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(NULL, NULL, &engine, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_create(&config, NULL, NULL, &error), &error);
    assert_null(engine);
    shoal_engine_destroy(NULL);
    engine = engine_make(NULL);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_install_transport(engine, "pigeon", NULL, &error), &error);
    assert_status(SHOAL_UNSUPPORTED, shoal_engine_install_transport(engine, "rdma", NULL, &error), &error);
    assert_ok(shoal_engine_install_transport(engine, "tcp", NULL, &error), &error);
    shoal_engine_destroy(engine);
}

/* IPv6 end to end, found through the metadata service. */
static void test_ipv6(void **state)
{
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    struct shoal_error error;
    uint8_t *remote = memory_make(1 << 20), *local = memory_make(1 << 20);

    (void)state;
    assert_ok(try_name("::1", &target, &error), &error);
    assert_ok(try_name("[::1]:0", &own, &error), &error);
    content_fill(remote, 1 << 20, 5, 0);
    assert_ok(shoal_engine_register_memory(target, remote, 1 << 20, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error),
              &error);
    assert_ok(shoal_engine_register_memory(own, local, 1 << 20, NULL, SHOAL_ACCESS_LOCAL, NULL, &error), &error);
    assert_ok(shoal_segment_open(own, shoal_engine_server_name(target), NULL, &segment, &error), &error);
    assert_ok(transfer(own, segment, SHOAL_OP_READ, local, remote, 0, 1 << 20, &error), &error);
    assert_int_equal(content_find_difference(local, 1 << 20, 5, 0), -1);
    shoal_segment_close(segment);
    assert_status(SHOAL_NOT_FOUND, shoal_segment_open(own, "[::1]:1", NULL, &segment, &error), &error);
    shoal_engine_destroy(own);
    shoal_engine_destroy(target);
    memory_drop(remote, 1 << 20);
    memory_drop(local, 1 << 20);
}

/* F27: the port is taken. */
static void test_port_in_use(void **state)
{
    struct shoal_engine *first = engine_make(NULL), *second;
    struct shoal_error error;
    const char *port = strrchr(shoal_engine_server_name(first), ':') + 1;

    (void)state;
    assert_status(SHOAL_NAME_IN_USE, try_name(shoal_engine_server_name(first), &second, &error), &error);
    assert_non_null(strstr(error.message, port));
    shoal_engine_destroy(first);
}

static void put_record(const char *name, const char *address, uint64_t instance)
{
    char value[512], *key = engine_key_node("default", name);

    assert_non_null(key);
    snprintf(value, sizeof value,
             "{\"v\":1,\"name\":\"%s\",\"addr\":\"%s\",\"instance\":\"%016llx\",\"transports\":[\"tcp\"]}", name,
             address, (unsigned long long)instance);
    meta_edit_put(fixture_uri(), key, value);
    free(key);
}

/* F27: a live node has the name, at another address. A dead one is replaced at once. */
static void test_name_in_use(void **state)
{
    struct shoal_engine *first = engine_make(NULL), *second;
    struct shoal_error error;
    struct shoal_segment *segment;
    char free_name[64], *key;

    (void)state;
    assert_ok(try_name("127.0.0.1", &second, &error), &error);
    snprintf(free_name, sizeof free_name, "%s", shoal_engine_server_name(second));
    shoal_engine_destroy(second);

    put_record(free_name, engine_address(first), engine_instance(first));
    assert_status(SHOAL_NAME_IN_USE, try_name(free_name, &second, &error), &error);
    assert_non_null(strstr(error.message, engine_address(first)));

    put_record(free_name, engine_address(first), engine_instance(first) + 1);
    assert_ok(try_name(free_name, &second, &error), &error);
    shoal_engine_destroy(second);

    put_record(free_name, "127.0.0.1:1", 77); /* refuses connections */
    assert_ok(try_name(free_name, &second, &error), &error);
    shoal_engine_destroy(second);

    key = engine_key_node("default", free_name);
    assert_non_null(key);
    meta_edit_put(fixture_uri(), key, "nonsense");
    assert_status(SHOAL_METADATA, shoal_segment_open(first, free_name, NULL, &segment, &error), &error);
    assert_non_null(strstr(error.message, free_name));
    assert_ok(try_name(free_name, &second, &error), &error);
    shoal_engine_destroy(second);
    free(key);
    shoal_engine_destroy(first);
}

/* A node that was killed starts again under its name, long before its lease ends. */
static void test_restart_after_kill(void **state)
{
    struct child child = child_start(4096, 1, NULL);
    struct shoal_engine_config config = fixture_config();
    struct shoal_call call = {.struct_size = sizeof call, .timeout_ms = PATIENCE_MS};
    struct shoal_engine *engine;
    struct shoal_error error;

    (void)state;
    config.server_name = child.name;
    config.lease_ttl_ms = 3600 * 1000;
    child_stop(&child);
    assert_ok(shoal_engine_create(&config, &call, &engine, &error), &error);
    assert_string_equal(shoal_engine_server_name(engine), child.name);
    shoal_engine_destroy(engine);
}

/* F6, in a namespace where another device comes first. Exit status of the child. */
static int advertise_second_device(int netns_fd)
{
    struct shoal_engine *engine;
    struct shoal_error error;
    bool is_right;

    if (setns(netns_fd, CLONE_NEWNET) != 0 || try_name("10.99.2.1", &engine, &error) != SHOAL_OK)
        return 1;
    is_right = strncmp(engine_address(engine), "10.99.2.1:", 10) == 0;
    shoal_engine_destroy(engine);
    return is_right ? 0 : 2;
}

static void test_second_device(void **state)
{
    int netns_fd = netns_create("ip link add aaa0 type bridge; ip addr add 10.99.1.1/24 dev aaa0; ip link set aaa0 up; "
                                "ip link add zzz0 type bridge; ip addr add 10.99.2.1/24 dev zzz0; ip link set zzz0 up");
    int status = 0;
    pid_t child;

    (void)state;
    if (netns_fd < 0)
        skip();
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(advertise_second_device(netns_fd));
    assert_int_equal(waitpid(child, &status, 0), child);
    close(netns_fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- where connections come from --- */

static int listen_at(const char *host, char name_out[HOSTPORT_TEXT_BYTES])
{
    struct sockaddr_storage addr;
    socklen_t len;
    const struct timeval patience = {.tv_sec = PATIENCE_MS / 1000}; /* for accept */
    int fd;

    if (hostport_resolve(host, 0, &addr, &len, NULL) != SHOAL_OK)
        return -1;
    fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, len) != 0 || listen(fd, 1) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        return -1;
    sockaddr_format((struct sockaddr *)&addr, name_out);
    return fd;
}

/* The address that a data connection of the node own comes from, as a peer listening at host sees it. */
static bool source_of_dial(const char *own, const char *host, char source_out[HOSTPORT_TEXT_BYTES])
{
    struct shoal_request request = {.op = SHOAL_OP_READ, .remote_addr = 4096, .len_bytes = 1};
    char peer[HOSTPORT_TEXT_BYTES];
    int listener = listen_at(host, peer), fd;
    struct shoal_engine *engine = NULL;
    struct shoal_segment *segment = NULL;
    struct shoal_batch *batch = NULL;
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    bool is_known = false;
    uint8_t byte = 0;

    request.local = &byte;
    if (listener < 0 || try_name(own, &engine, NULL) != SHOAL_OK)
        goto out;
    if (shoal_engine_register_memory(engine, &byte, 1, NULL, SHOAL_ACCESS_LOCAL, NULL, NULL) != SHOAL_OK ||
        engine_segment_create(engine, peer, peer, 7, &segment, NULL) != SHOAL_OK ||
        shoal_batch_create(engine, 1, &batch, NULL) != SHOAL_OK)
        goto out;
    request.segment = segment;
    if (shoal_batch_submit(batch, &request, 1, NULL) != SHOAL_OK)
        goto out;
    fd = accept(listener, (struct sockaddr *)&addr, &len);
    if (fd >= 0) {
        sockaddr_format((struct sockaddr *)&addr, source_out);
        is_known = true;
        close(fd);
    }

out:
    shoal_batch_destroy(batch);
    shoal_segment_close(segment);
    shoal_engine_destroy(engine);
    if (listener >= 0)
        close(listener);
    return is_known;
}

/* Without a bound source the kernel would take the address that it listens at. */
static void test_source_address(void **state)
{
    char source[HOSTPORT_TEXT_BYTES];

    (void)state;
    assert_true(source_of_dial("127.0.0.53", "127.0.0.1", source));
    assert_memory_equal(source, "127.0.0.53:", 11);
    assert_true(source_of_dial("127.0.0.1", "127.0.0.53", source));
    assert_memory_equal(source, "127.0.0.1:", 10);
    /* Another family: the kernel chooses. */
    assert_true(source_of_dial("::1", "127.0.0.1", source));
    assert_memory_equal(source, "127.0.0.1:", 10);
}

/* Exit status of the child. */
static int dial_from_second_device(int netns_fd)
{
    char source[HOSTPORT_TEXT_BYTES] = "";

    if (setns(netns_fd, CLONE_NEWNET) != 0 || !source_of_dial("10.99.2.1", "10.99.1.1", source) ||
        strncmp(source, "10.99.2.1:", 10) != 0)
        return 1;
    /* The default name of a command: reaches other addresses all the same. */
    if (!source_of_dial("127.0.0.1", "10.99.1.1", source) || strncmp(source, "10.99.1.1:", 10) != 0)
        return 2;
    return 0;
}

static void test_source_device(void **state)
{
    int netns_fd = netns_create("ip link add aaa0 type bridge; ip addr add 10.99.1.1/24 dev aaa0; ip link set aaa0 up; "
                                "ip link add zzz0 type bridge; ip addr add 10.99.2.1/24 dev zzz0; ip link set zzz0 up");
    int status = 0;
    pid_t child;

    (void)state;
    if (netns_fd < 0)
        skip();
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(dial_from_second_device(netns_fd));
    assert_int_equal(waitpid(child, &status, 0), child);
    close(netns_fd);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_good_names),     CASE(test_bad_names),     CASE(test_bad_config),         CASE(test_ipv6),
        CASE(test_port_in_use),    CASE(test_name_in_use),   CASE(test_restart_after_kill), CASE(test_second_device),
        CASE(test_source_address), CASE(test_source_device),
    };

    fixture_run_child(argc, argv);
    return cmocka_run_group_tests_name("engine address", tests, NULL, NULL);
}
