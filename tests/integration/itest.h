/* SPDX-License-Identifier: Apache-2.0 */
/* What the integration tests share: a fixture with a metadata URI of its own, nodes that have a store, and expectations
 * that say which node answered what. */
#ifndef SHOAL_TESTS_INTEGRATION_ITEST_H
#define SHOAL_TESTS_INTEGRATION_ITEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "node.h"

#define MIB (1ull << 20)

/* As slow as a test needs it to act in the middle, per connection. */
#define SLOW "rate=1500000"

struct fixture {
    char *dir;      /* temporary, removed by the teardown */
    char uri[4096]; /* sqlite, or what a test puts here */
};

/* At the start of main; an argument is a pattern of the tests to run. false: return 77, the protocol that the nodes
 * should use (SHOAL_TEST_PROTOCOL) is not here, which is explained on stderr. */
bool itest_begin(int argc, char **argv);

/* *state becomes a struct fixture. The teardown kills nodes that are left. */
int itest_setup(void **state);
int itest_teardown(void **state);
#define ITEST(function) cmocka_unit_test_setup_teardown(function, itest_setup, itest_teardown)

/* Payload sizes for this machine: SHOAL_TEST_SCALE percent (sanitizer builds: 25 unless given), at least 64 KiB. */
uint64_t scaled(uint64_t bytes);

/* Polls: for what another process does by itself. */
void nap(void);
#define WAIT_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        int64_t wait_deadline_ = deadline_after_ms(node_patience_ms());                                                \
        while (!(condition)) {                                                                                         \
            if (deadline_is_past(wait_deadline_))                                                                      \
                fail_msg("never came true: %s", #condition);                                                           \
            nap();                                                                                                     \
        }                                                                                                              \
    } while (0)

/* wanted: a status name, or several with '|' between. */
void expect_status_at(json_t *reply, const char *wanted, const char *file, int line);
#define EXPECT_STATUS(reply, wanted) expect_status_at(reply, wanted, __FILE__, __LINE__)
#define EXPECT_OK(reply) expect_status_at(reply, "OK", __FILE__, __LINE__)
void expect_message_at(json_t *reply, const char *part, const char *file, int line);
#define EXPECT_MESSAGE(reply, part) expect_message_at(reply, part, __FILE__, __LINE__)
bool has_status(json_t *reply, const char *wanted);

/* A process with store 0. options: more of create's, e.g. "lease=2000 stall=1500". */
struct node *start_node(struct fixture *fixture, const char *label, const char *options);
struct node *start_node_in(struct fixture *fixture, const char *label, const char *options, int netns_fd);
/* SIGSTOP, but not while the node holds the lock of an SQLite file: that would stop everybody else, too. */
void stop_node(struct fixture *fixture, struct node *node);
/* Server name of store 0. */
const char *name_of(struct node *node);

/* Makes buffer PAYLOAD with the content of seed and registers it. sizes: "1,2,3". */
json_t *seed_payload(struct node *node, const char *payload, const char *sizes, uint64_t seed, const char *options);
/* The same, of one region, and it must succeed. */
void seed_one(struct node *node, const char *payload, uint64_t size, uint64_t seed, const char *options);
/* Makes buffer PAYLOAD and starts to pull into it. */
unsigned begin_get(struct node *node, const char *payload, const char *sizes, const char *options);
unsigned begin_get_one(struct node *node, const char *payload, uint64_t size, const char *options);
/* Pulls, into one region, and checks the content. */
json_t *get_one(struct node *node, const char *payload, uint64_t size, uint64_t seed);

void expect_content_at(struct node *node, const char *buffer, uint64_t seed, const char *file, int line);
#define EXPECT_CONTENT(node, buffer, seed) expect_content_at(node, buffer, seed, __FILE__, __LINE__)
/* First wrong byte, -1: none. Fails if something was written beside the regions. */
int64_t find_difference(struct node *node, const char *buffer, uint64_t seed);

/* Live sources of a payload as node sees it; 0 if there is no such payload. */
size_t source_count(struct node *node, const char *payload);
bool is_source(struct node *node, const char *payload, const char *server_name);
bool is_listed(struct node *node, const char *payload);
/* What the answer to a get says about one source: "bytes", "bad", "failures". */
int64_t source_stat(json_t *reply, const char *server_name, const char *what);
size_t served_count(struct node *node);
bool is_serving(struct node *node, const char *payload);

/* After a failed call: nothing is served, no source is left behind, and the same regions can be registered again. */
void expect_nothing_left(struct node *node, const char *payload, const char *buffer);

/* Value of a counter in Prometheus text (several samples of one name are added up); -1: there is none. */
double metric_of(struct node *node, unsigned store, const char *name);

#endif
