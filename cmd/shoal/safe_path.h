/* SPDX-License-Identifier: Apache-2.0 */
/* Walks below a directory one component at a time; a symbolic link is never followed, so nothing outside is reached,
 * also when somebody swaps a directory for a link meanwhile. Paths are as filelist_path_problem accepts them. */
#ifndef SHOAL_CMD_SAFE_PATH_H
#define SHOAL_CMD_SAFE_PATH_H

#include <stddef.h>
#include <sys/types.h>

/* Called for each directory that was made: the first len bytes of path. Nonzero errno ends the walk. */
typedef int (*safe_path_made_fn)(void *arg, const char *path, size_t len);

/* What a directory is made with: only the sticky bit tells it from one that shall stay as it is. */
#define SAFE_PATH_UNFINISHED_MODE 01700

/* Opens (O_PATH) the directory that the first len bytes of path name; len 0: a duplicate of root_fd. With made, missing
 * ones are made with SAFE_PATH_UNFINISHED_MODE. -1: errno; ENOTDIR or ELOOP if a component is a link or no directory;
 * *failed_len_out is then how much of the path that component ends. */
int safe_path_open_directory(int root_fd, const char *path, size_t len, safe_path_made_fn made, void *arg,
                             size_t *failed_len_out);

/* How much of path names its parent directory (0: none), and where its last component begins. */
size_t safe_path_parent(const char *path, size_t len, const char **name_out);

#endif
