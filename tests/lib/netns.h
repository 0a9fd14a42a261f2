/* SPDX-License-Identifier: Apache-2.0 */
/* A nameless network namespace: it exists as long as the descriptor or a process in it, so nothing is left to clean up.
 */
#ifndef SHOAL_TESTS_LIB_NETNS_H
#define SHOAL_TESTS_LIB_NETNS_H

#include <stdbool.h>

/* Makes one, with loopback up, and runs script in it with sh -e. The descriptor is for node_spawn; close it. -1: this
 * machine or this user cannot, or the script failed; the reason is on stderr: skip the test. */
int netns_create(const char *script);

/* The same for this process itself, which stays in it: before it has threads. false: it stays where it is. */
bool netns_enter_new(const char *script);

/* Runs a script inside. Returns its exit status. */
int netns_run(int netns_fd, const char *script);

#endif
