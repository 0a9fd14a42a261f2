/* SPDX-License-Identifier: Apache-2.0 */
/* Throw-away directories. */
#ifndef SHOAL_TESTS_TMPDIR_H
#define SHOAL_TESTS_TMPDIR_H

#include <stddef.h>

/* A new empty directory under $TMPDIR or /tmp. Its path is malloc'ed: give it to tmpdir_remove. Ends the test on
 * failure. */
char *tmpdir_make(void);

/* Removes the directory with everything in it (no link is followed) and frees path. NULL is allowed. */
void tmpdir_remove(char *path);

/* directory/name, malloc'ed. */
char *tmpdir_path(const char *directory, const char *name);

#endif
