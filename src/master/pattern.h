/* SPDX-License-Identifier: Apache-2.0 */
/* Shell patterns for keys: * ? [...] \x, as fnmatch() without flags in the C locale reads them. Compiled once, matched
 * in time proportional to key times pattern at worst (fnmatch's own time is exponential in the number of stars, which a
 * peer could use to stall the master). Pure. */
#ifndef SHOAL_MASTER_PATTERN_H
#define SHOAL_MASTER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include <shoal/status.h>

#define PATTERN_MAX_BYTES 1024u

struct pattern;

/* Empty text: everything matches. INVALID_ARGUMENT: too long. NO_MEMORY. */
enum shoal_status pattern_create(const char *text, struct pattern **pattern_out, struct shoal_error *error);
void pattern_destroy(struct pattern *pattern); /* NULL is allowed */
bool pattern_matches(const struct pattern *pattern, const char *key, size_t key_len);
/* What every match begins with; lives as long as pattern. */
const char *pattern_prefix(const struct pattern *pattern, size_t *len_out);

#endif
