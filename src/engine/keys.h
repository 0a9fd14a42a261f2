/* SPDX-License-Identifier: Apache-2.0 */
/* Names of keys in the metadata service: "/shoal/v1/<cluster>/<kind>/<escaped name>". Everything outside
 * [A-Za-z0-9._~-] is percent-encoded, so a name never adds a level and never looks like another key. docs/metadata.md
 * lists the kinds. */
#ifndef SHOAL_ENGINE_KEYS_H
#define SHOAL_ENGINE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define ENGINE_KEY_ROOT "/shoal/v1/"

/* Appends the percent-encoded form. false: the bound is reached or memory is out. */
bool engine_key_escape(struct buf *out, const void *name, size_t len_bytes);
/* Appends the decoded form of len_bytes of escaped text. false also if it is malformed. */
bool engine_key_unescape(struct buf *out, const char *text, size_t len_bytes);

/* "/shoal/v1/<cluster>/<kind>/" and, unless name is NULL, the escaped name. NULL: out of memory. free() it. */
char *engine_key(const char *cluster, const char *kind, const char *name);
/* Key of a node's presence: kind "nodes". */
char *engine_key_node(const char *cluster, const char *server_name);

#endif
