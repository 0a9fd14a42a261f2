/* SPDX-License-Identifier: Apache-2.0 */
#include "itest.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta_edit.h"
#include "tmpdir.h"

bool itest_begin(int argc, char **argv)
{
    const char *protocol = getenv("SHOAL_TEST_PROTOCOL");
    struct fixture *fixture;
    bool is_here = true;

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!protocol || strcmp(protocol, "ucx") != 0)
        return true;
    if (itest_setup((void **)&fixture) != 0)
        return false;
    json_t *reply = node_call(node_spawn("looking", -1), "create uri=%s", fixture->uri);
    if (has_status(reply, "UNSUPPORTED")) {
        is_here = false;
        fprintf(stderr, "%s\n", json_string_value(json_object_get(reply, "message")));
    }
    itest_teardown((void **)&fixture);
    return is_here;
}

int itest_setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    if (!fixture)
        return -1;
    fixture->dir = tmpdir_make();
    snprintf(fixture->uri, sizeof fixture->uri, "sqlite:%s/meta.db", fixture->dir);
    *state = fixture;
    return 0;
}

int itest_teardown(void **state)
{
    struct fixture *fixture = *state;
    node_kill_all();
    tmpdir_remove(fixture->dir);
    free(fixture);
    return 0;
}

uint64_t scaled(uint64_t bytes)
{
    const char *given = getenv("SHOAL_TEST_SCALE");
    uint64_t percent = given ? strtoull(given, NULL, 10) : node_is_sanitized() ? 25 : 100;
    uint64_t size = bytes / 100 * percent;
    return size < 65536 ? 65536 : size;
}

void nap(void)
{
    poll(NULL, 0, 20);
}

static const char *text_of(json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    return text ? text : "";
}

bool has_status(json_t *reply, const char *wanted)
{
    const char *status = text_of(reply, "status");
    size_t len = strlen(status);
    for (const char *at = wanted; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, status, len) == 0 && (at[len] == '\0' || at[len] == '|'))
            return true;
    }
    return false;
}

void expect_status_at(json_t *reply, const char *wanted, const char *file, int line)
{
    if (has_status(reply, wanted))
        return;
    print_error("wanted %s, got %s: %s\n", wanted, text_of(reply, "status"), text_of(reply, "message"));
    _fail(file, line);
}

void expect_message_at(json_t *reply, const char *part, const char *file, int line)
{
    if (strstr(text_of(reply, "message"), part))
        return;
    print_error("the message does not say '%s': %s\n", part, text_of(reply, "message"));
    _fail(file, line);
}

struct node *start_node_in(struct fixture *fixture, const char *label, const char *options, int netns_fd)
{
    struct node *node = node_spawn(label, netns_fd);
    EXPECT_OK(node_call(node, "create uri=%s %s", fixture->uri, options));
    return node;
}

struct node *start_node(struct fixture *fixture, const char *label, const char *options)
{
    return start_node_in(fixture, label, options, -1);
}

void stop_node(struct fixture *fixture, struct node *node)
{
    for (int attempt = 0; attempt < 50; attempt++) {
        node_signal(node, SIGSTOP);
        if (meta_edit_is_writable(fixture->uri, 2000))
            return;
        node_signal(node, SIGCONT);
        nap();
    }
    fail_msg("the metadata service takes no changes");
}

const char *name_of(struct node *node)
{
    return text_of(node_wait(node, 1), "server_name");
}

json_t *seed_payload(struct node *node, const char *payload, const char *sizes, uint64_t seed, const char *options)
{
    EXPECT_OK(node_call(node, "buf buf=%s sizes=%s seed=%llu", payload, sizes, (unsigned long long)seed));
    return node_call(node, "register payload=%s buf=%s %s", payload, payload, options);
}

void seed_one(struct node *node, const char *payload, uint64_t size, uint64_t seed, const char *options)
{
    char sizes[32];
    snprintf(sizes, sizeof sizes, "%llu", (unsigned long long)size);
    EXPECT_OK(seed_payload(node, payload, sizes, seed, options));
}

unsigned begin_get(struct node *node, const char *payload, const char *sizes, const char *options)
{
    EXPECT_OK(node_call(node, "buf buf=%s sizes=%s", payload, sizes));
    return node_send(node, "get payload=%s buf=%s progress=20 %s", payload, payload, options);
}

unsigned begin_get_one(struct node *node, const char *payload, uint64_t size, const char *options)
{
    char sizes[32];
    snprintf(sizes, sizeof sizes, "%llu", (unsigned long long)size);
    return begin_get(node, payload, sizes, options);
}

json_t *get_one(struct node *node, const char *payload, uint64_t size, uint64_t seed)
{
    json_t *reply = node_wait(node, begin_get_one(node, payload, size, ""));
    EXPECT_OK(reply);
    EXPECT_CONTENT(node, payload, seed);
    return reply;
}

int64_t find_difference(struct node *node, const char *buffer, uint64_t seed)
{
    json_t *reply = node_call(node, "check buf=%s seed=%llu", buffer, (unsigned long long)seed);
    EXPECT_OK(reply);
    if (!json_is_true(json_object_get(reply, "intact")))
        fail_msg("memory before a region of %s was written", buffer);
    return json_integer_value(json_object_get(reply, "bad"));
}

void expect_content_at(struct node *node, const char *buffer, uint64_t seed, const char *file, int line)
{
    int64_t bad = find_difference(node, buffer, seed);
    if (bad < 0)
        return;
    print_error("%s: byte %lld is wrong (seed %llu)\n", buffer, (long long)bad, (unsigned long long)seed);
    _fail(file, line);
}

static json_t *sources_of(struct node *node, const char *payload)
{
    json_t *reply = node_call(node, "stat payload=%s", payload);
    if (has_status(reply, "PAYLOAD_NOT_FOUND"))
        return NULL;
    EXPECT_OK(reply);
    return json_object_get(json_object_get(reply, "info"), "sources");
}

size_t source_count(struct node *node, const char *payload)
{
    return json_array_size(sources_of(node, payload));
}

bool is_source(struct node *node, const char *payload, const char *server_name)
{
    json_t *source;
    size_t i;
    json_array_foreach(sources_of(node, payload), i,
                       source) if (strcmp(text_of(source, "name"), server_name) == 0) return true;
    return false;
}

bool is_listed(struct node *node, const char *payload)
{
    json_t *reply = node_call(node, "list prefix=%s", payload), *info;
    size_t i;
    EXPECT_OK(reply);
    json_array_foreach(json_object_get(reply, "payloads"), i,
                       info) if (strcmp(text_of(info, "name"), payload) == 0) return true;
    return false;
}

int64_t source_stat(json_t *reply, const char *server_name, const char *what)
{
    json_t *source;
    size_t i;
    json_array_foreach(json_object_get(reply, "sources"), i,
                       source) if (strcmp(text_of(source, "name"), server_name) ==
                                   0) return json_integer_value(json_object_get(source, what));
    return 0;
}

static json_t *served_by(struct node *node)
{
    json_t *reply = node_call(node, "served");
    EXPECT_OK(reply);
    return json_object_get(reply, "served");
}

size_t served_count(struct node *node)
{
    return json_array_size(served_by(node));
}

bool is_serving(struct node *node, const char *payload)
{
    json_t *info;
    size_t i;
    json_array_foreach(served_by(node), i, info) if (strcmp(text_of(info, "name"), payload) == 0) return true;
    return false;
}

void expect_nothing_left(struct node *node, const char *payload, const char *buffer)
{
    assert_false(is_serving(node, payload));
    assert_false(is_source(node, payload, name_of(node)));
    EXPECT_STATUS(node_call(node, "unregister payload=%s", payload), "PAYLOAD_NOT_OPENED");
    EXPECT_STATUS(node_call(node, "delete_replica payload=%s", payload), "PAYLOAD_NOT_OPENED");
    EXPECT_OK(node_call(node, "register payload=probe-of-%d buf=%s", (int)node_pid(node), buffer));
    EXPECT_OK(node_call(node, "unregister payload=probe-of-%d", (int)node_pid(node)));
}

double metric_of(struct node *node, unsigned store, const char *name)
{
    json_t *reply = node_call(node, "metrics store=%u", store);
    size_t len = strlen(name);
    double sum = 0;
    bool is_found = false;
    EXPECT_OK(reply);
    for (const char *line = text_of(reply, "metrics"); line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, len) != 0 || (line[len] != ' ' && line[len] != '{'))
            continue;
        const char *value = strchr(line[len] == '{' ? strchr(line, '}') : line, ' ');
        sum += strtod(value, NULL);
        is_found = true;
    }
    return is_found ? sum : -1;
}
