/* SPDX-License-Identifier: Apache-2.0 */
/* Server names, addresses and who owns them: F5, F6, F27. */
#include "itest.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "netns.h"

static bool has_ipv6(void)
{
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_bound = fd >= 0 && bind(fd, (const struct sockaddr *)&addr, sizeof addr) == 0;
    if (fd >= 0)
        close(fd);
    return is_bound;
}

static json_t *create(struct fixture *fixture, struct node *node, const char *name)
{
    return node_call(node, "create uri=%s name=%s", fixture->uri, name);
}

/* A name that works: it is what was asked for, with a port, and peers pull from it. */
static void expect_good_name(struct fixture *fixture, const char *name, const char *prefix)
{
    struct node *gold = node_spawn(name, -1);
    struct node *receiver = start_node(fixture, "receiver", "");
    json_t *reply = create(fixture, gold, name), *source;
    EXPECT_OK(reply);
    const char *server_name = json_string_value(json_object_get(reply, "server_name"));
    if (strncmp(server_name, prefix, strlen(prefix)) != 0 || strtol(server_name + strlen(prefix), NULL, 10) <= 0)
        fail_msg("%s became %s", name, server_name);
    seed_one(gold, "model", 100000, 1, "");
    reply = node_call(receiver, "stat payload=model");
    source = json_array_get(json_object_get(json_object_get(reply, "info"), "sources"), 0);
    assert_string_equal(json_string_value(json_object_get(source, "name")), server_name);
    get_one(receiver, "model", 100000, 1);
    node_stop_all();
}

static void f05_accepted_names_v4(void **state)
{
    expect_good_name(*state, "127.0.0.1", "127.0.0.1:");
    expect_good_name(*state, "127.0.0.1:0", "127.0.0.1:");
    expect_good_name(*state, "localhost", "localhost:");
    expect_good_name(*state, "localhost:0", "localhost:");
    expect_good_name(*state, "127.0.0.2:0", "127.0.0.2:");
}

static void f05_accepted_names_v6(void **state)
{
    if (!has_ipv6()) {
        print_message("no IPv6 on this machine\n");
        skip();
    }
    expect_good_name(*state, "[::1]:0", "[::1]:");
    expect_good_name(*state, "[::1]", "[::1]:");
    expect_good_name(*state, "::1", "[::1]:");
}

static void f05_given_port_is_kept(void **state)
{
    struct fixture *fixture = *state;
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char name[64];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    close(fd); /* free again; nobody gets it meanwhile but by ill luck */
    snprintf(name, sizeof name, "127.0.0.1:%u", ntohs(addr.sin_port));
    struct node *node = node_spawn("node", -1);
    json_t *reply = create(fixture, node, name);
    EXPECT_OK(reply);
    assert_string_equal(json_string_value(json_object_get(reply, "server_name")), name);
    /* And again at once, after it was closed. */
    EXPECT_OK(node_call(node, "close"));
    EXPECT_OK(create(fixture, node, name));
    node_stop_all();
}

static void f05_refused_names(void **state)
{
    static const struct {
        const char *name, *status;
    } cases[] = {
        {"", "INVALID_ARGUMENT"},
        {":", "INVALID_ARGUMENT"},
        {":80", "INVALID_ARGUMENT"},
        {"127.0.0.1:", "INVALID_ARGUMENT"},
        {"127.0.0.1:65536", "INVALID_ARGUMENT"},
        {"127.0.0.1:99999999999999999999", "INVALID_ARGUMENT"},
        {"127.0.0.1:-1", "INVALID_ARGUMENT"},
        {"127.0.0.1:http", "INVALID_ARGUMENT"},
        {"127.0.0.1:80:90", "INVALID_ARGUMENT"},
        {"[::1", "INVALID_ARGUMENT"},
        {"::1]", "INVALID_ARGUMENT"},
        {"[::1]80", "INVALID_ARGUMENT"},
        {"[]:80", "INVALID_ARGUMENT"},
        {"[127.0.0.1]:0", "INVALID_ARGUMENT|ADDRESS"},
        {"a%20b:0", "INVALID_ARGUMENT"},
        {"a%0ab:0", "INVALID_ARGUMENT"},
        {"%ff:0", "INVALID_ARGUMENT"},
        {"no-such-host.invalid", "ADDRESS"},
        {"no-such-host.invalid:4711", "ADDRESS"},
        {"203.0.113.7:0", "ADDRESS"},
        {"[2001:db8::7]:0", "ADDRESS"},
    };
    struct node *node = node_spawn("node", -1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *reply = create(*state, node, cases[i].name);
        print_message("%s: %s\n", cases[i].name, json_string_value(json_object_get(reply, "message")));
        EXPECT_STATUS(reply, cases[i].status);
    }
    EXPECT_OK(create(*state, node, "127.0.0.1:0"));
    node_stop_all();
}

static void f05_wrong_metadata_uri(void **state)
{
    static const char *const wrong[] = {"",      "nonsense://x",         "sqlite:", "etcd://", "etcd://host:notaport",
                                        ":2379", "http://127.0.0.1:2379"};
    (void)state;
    struct node *node = node_spawn("node", -1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        EXPECT_STATUS(node_call(node, "create uri=%s name=127.0.0.1:0", wrong[i]), "INVALID_ARGUMENT");
    EXPECT_STATUS(node_call(node, "create uri=sqlite:/no/such/folder/meta.db"), "METADATA");
    /* Nobody listens there. */
    EXPECT_STATUS(node_call(node, "create uri=etcd://127.0.0.1:1 timeout=3000"), "METADATA|TIMED_OUT");
    node_stop_all();
}

/* The wanted address is on the last of several devices. */
static void f06_configured_address_is_advertised(void **state)
{
    int netns = netns_create("ip link add aaa0 type bridge\n"
                             "ip addr add 10.98.0.1/24 dev aaa0\n"
                             "ip link set aaa0 up\n"
                             "ip link add br7 type bridge\n"
                             "ip addr add 172.31.7.1/24 dev br7\n"
                             "ip link set br7 up\n"
                             "ip link add zzz0 type bridge\n"
                             "ip addr add 10.98.9.1/24 dev zzz0\n"
                             "ip link set zzz0 up\n");
    if (netns < 0)
        skip();
    struct node *gold = start_node_in(*state, "gold", "name=10.98.9.1:0", netns);
    struct node *receiver = start_node_in(*state, "receiver", "name=172.31.7.1", netns);
    assert_memory_equal(name_of(gold), "10.98.9.1:", 10);
    seed_one(gold, "model", 200000, 1, "");
    get_one(receiver, "model", 200000, 1);
    json_t *reply = node_call(gold, "stat payload=model"), *source;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(reply, "info"), "sources"), i, source)
    {
        const char *wanted = json_is_true(json_object_get(source, "gold")) ? name_of(gold) : name_of(receiver);
        assert_string_equal(json_string_value(json_object_get(source, "name")), wanted);
        assert_string_equal(json_string_value(json_object_get(source, "address")), wanted);
    }
    assert_int_equal(i, 2);
    node_stop_all();
    close(netns);
}

static void f27_same_name_twice(void **state)
{
    struct fixture *fixture = *state;
    struct node *first = start_node(fixture, "first", "");
    struct node *second = node_spawn("second", -1);
    json_t *reply = create(fixture, second, name_of(first));
    EXPECT_STATUS(reply, "NAME_IN_USE");
    EXPECT_MESSAGE(reply, name_of(first));
    /* The first is not harmed; the second may have another name. */
    EXPECT_OK(create(fixture, second, "127.0.0.1:0"));
    seed_one(first, "model", 100000, 1, "");
    get_one(second, "model", 100000, 1);
    node_stop_all();
}

/* In two namespaces the port is free in both: only the metadata service knows of the other. */
static void f27_same_name_on_another_machine(void **state)
{
    static const char script[] = "ip addr add 10.97.0.1/32 dev lo";
    struct fixture *fixture = *state;
    int here = netns_create(script), there = here >= 0 ? netns_create(script) : -1;
    if (there < 0)
        skip();
    struct node *first = start_node_in(fixture, "first", "name=10.97.0.1:4711 lease=2000", here);
    struct node *second = node_spawn("second", there);
    json_t *reply = create(fixture, second, "10.97.0.1:4711");
    EXPECT_STATUS(reply, "NAME_IN_USE");
    EXPECT_MESSAGE(reply, "10.97.0.1:4711");
    seed_one(first, "model", 1000, 1, "");
    assert_int_equal(source_count(first, "model"), 1);
    /* When the first has left, the name is free. */
    EXPECT_OK(node_call(first, "close"));
    EXPECT_OK(create(fixture, second, "10.97.0.1:4711"));
    node_stop_all();
    close(here);
    close(there);
}

static void f27_port_taken_by_a_stranger(void **state)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char name[64], port[8];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    snprintf(port, sizeof port, "%u", ntohs(addr.sin_port));
    snprintf(name, sizeof name, "127.0.0.1:%s", port);
    struct node *node = node_spawn("node", -1);
    json_t *reply = create(*state, node, name);
    EXPECT_STATUS(reply, "NAME_IN_USE");
    EXPECT_MESSAGE(reply, port);
    close(fd);
    EXPECT_OK(create(*state, node, name));
    node_stop_all();
}

/* Two clusters share one metadata service and do not see each other. */
static void clusters_are_apart(void **state)
{
    struct node *red = start_node(*state, "red", "cluster=red");
    struct node *blue = start_node(*state, "blue", "cluster=blue");
    seed_one(red, "model", 1000, 1, "");
    assert_false(is_listed(blue, "model"));
    EXPECT_OK(node_call(blue, "buf buf=model sizes=1000 seed=2"));
    EXPECT_STATUS(node_call(blue, "get payload=model buf=model"), "PAYLOAD_NOT_FOUND");
    EXPECT_OK(node_call(blue, "register payload=model buf=model"));
    EXPECT_OK(node_call(blue, "unregister payload=model"));
    assert_true(is_listed(red, "model"));
    struct node *wrong = node_spawn("wrong", -1);
    struct fixture *fixture = *state;
    EXPECT_STATUS(node_call(wrong, "create uri=%s cluster=%064d", fixture->uri, 0), "INVALID_ARGUMENT");
    EXPECT_STATUS(node_call(wrong, "create uri=%s cluster=", fixture->uri), "INVALID_ARGUMENT");
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(f05_accepted_names_v4),        ITEST(f05_accepted_names_v6),
        ITEST(f05_given_port_is_kept),       ITEST(f05_refused_names),
        ITEST(f05_wrong_metadata_uri),       ITEST(f06_configured_address_is_advertised),
        ITEST(f27_same_name_twice),          ITEST(f27_same_name_on_another_machine),
        ITEST(f27_port_taken_by_a_stranger), ITEST(clusters_are_apart),
    };
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
