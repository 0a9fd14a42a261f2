/* SPDX-License-Identifier: Apache-2.0 */
/* Changes what a metadata service holds behind the back of the nodes. */
#ifndef SHOAL_TESTS_LIB_META_EDIT_H
#define SHOAL_TESTS_LIB_META_EDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In every entry that gives address old as a node's address, puts the new one, under the same lease. The names of nodes
 * stay. Returns how many entries changed. Fails the running test on an error. */
size_t meta_edit_replace_address(const char *uri, const char *old_address, const char *new_address);

/* Whether a change goes through within timeout_ms: on SQLite a process that was stopped inside a transaction holds up
 * everyone. */
bool meta_edit_is_writable(const char *uri, int64_t timeout_ms);

/* Puts one key without a lease. */
void meta_edit_put(const char *uri, const char *key, const char *value);

#endif
