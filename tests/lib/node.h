/* SPDX-License-Identifier: Apache-2.0 */
/* Drives test_node processes (node_main.c) from a cmocka test. Single-threaded: one thread uses all of it.
 *
 * Whatever goes wrong (a node that dies unasked, no answer in time) fails the running test, with the node's stderr. A
 * node dies with the test process; node_kill_all in the test's teardown ends what a failed test left behind. */
#ifndef SHOAL_TESTS_LIB_NODE_H
#define SHOAL_TESTS_LIB_NODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct node;

/* Starts a process. label appears in messages. netns_fd: network namespace to enter, -1 for none; borrowed. */
struct node *node_spawn(const char *label, int netns_fd);

/* Sends a command, "VERB KEY=VALUE ..." as in node_commands.h, and returns its number. */
unsigned node_send(struct node *node, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The answer to a command; borrowed, lives as long as the node. Waits as long as the command reports progress. */
json_t *node_wait(struct node *node, unsigned id);

/* Both at once. */
json_t *node_call(struct node *node, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether the answer is there; looks at what has arrived. */
bool node_is_done(struct node *node, unsigned id);

/* Waits until a command that was sent with progress=MS has reported done_bytes >= min_bytes. false: it ended before. */
bool node_wait_progress(struct node *node, unsigned id, uint64_t min_bytes);
/* done_bytes of the last report, 0 without one. */
uint64_t node_progress(struct node *node, unsigned id);
/* Bytes taken from the source called name in the last report. */
uint64_t node_progress_from(struct node *node, unsigned id, const char *name);

pid_t node_pid(const struct node *node);
void node_signal(struct node *node, int signal_number);
/* SIGKILL, and reaps. */
void node_kill(struct node *node);
/* Asks it to close its stores and end; its exit status must be 0 (sanitizers report through it). */
void node_stop(struct node *node);
void node_stop_all(void);
/* For teardown. Also frees the struct of every node that was spawned. */
void node_kill_all(void);

/* Writes what each node that was spawned wrote to stderr into a file LABEL.log of the directory. */
void node_save_logs(const char *directory);

/* How long the harness waits for anything, ms: generous, larger in sanitizer builds. */
int64_t node_patience_ms(void);
bool node_is_sanitized(void);

#endif
