/* SPDX-License-Identifier: Apache-2.0 */
/* Shell patterns for keys: * ? [...] \x, as fnmatch() without flags in the C locale reads them, except that what
 * fnmatch takes for a plain '[' (one that no ']' ends), a set that no byte is in, and a backslash at the end are
 * errors: who writes one has made a mistake, and a removal shall not go by a guess. Compiled once, matched in time
 * proportional to key times pattern at worst (fnmatch's own time is exponential in the number of stars, which a peer
 * could use to stall the master). Pure. */
#ifndef SHOAL_BASE_PATTERN_H
#define SHOAL_BASE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include <shoal/status.h>

#define PATTERN_MAX_BYTES 2048u /* any key can be written with a backslash before each of its bytes */

struct pattern;

/* Empty text: everything matches. INVALID_ARGUMENT: too long, or malformed; the message names the pattern. NO_MEMORY.
 */
enum shoal_status pattern_create(const char *text, struct pattern **pattern_out, struct shoal_error *error);
void pattern_destroy(struct pattern *pattern); /* NULL is allowed */
bool pattern_matches(const struct pattern *pattern, const char *key, size_t key_len);
/* What every match begins with; lives as long as pattern. */
const char *pattern_prefix(const struct pattern *pattern, size_t *len_out);

#endif
