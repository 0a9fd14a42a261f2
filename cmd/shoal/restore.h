/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the files of a payload below a directory, whatever their names say and whoever plays with links there
 * meanwhile.
 *
 * Files grow in a staging directory in DIR (staging.h), with all their space allocated before the first byte arrives,
 * and move to their names when everything is there. Every step opens one component at a time without following links.
 * What an earlier restore of the same payload left is where the next one begins; the files that are to be replaced are
 * offered as a second place to find content in. Neither is trusted: the store verifies it. */
#ifndef SHOAL_CMD_RESTORE_H
#define SHOAL_CMD_RESTORE_H

#include <stdbool.h>
#include <stddef.h>

#include "filelist.h"
#include "mapping.h"
#include "staging.h"

struct made_directory {
    const char *path; /* borrowed from the list's entry; its first len bytes */
    size_t len;
    uint32_t mode;
};

struct restore {
    char *path;              /* owned: DIR */
    int root_fd, staging_fd; /* staging_fd also holds the lock */
    bool is_whole;           /* of restore_find: nothing is staged */
    bool has_made_root;
    bool has_left_directories; /* maybe: some that an earlier restore made have no mode yet */
    char staging_name[STAGING_NAME_BYTES];
    const char *payload;           /* borrowed */
    const struct file_list *list;  /* borrowed */
    struct mapping_table mappings; /* tag: index of the entry; writable: staged, else what is to be replaced */
    struct shoal_region *regions;  /* owned; in the order of the list, at least one */
    struct shoal_region *previous; /* owned; for each region what is to be replaced; NULL: nothing is */
    size_t region_count;
    struct made_directory *made; /* owned; parents first */
    size_t made_count, made_capacity;
    bool *is_adopted; /* owned; per entry: what is staged has content from an earlier restore */
    size_t adopted_count, previous_count;
};

struct restore_options {
    const char *payload; /* its name, which the staging directory is found by */
    bool keeps_existing; /* a file in the way is an error */
    bool resumes;        /* uses what is there; else what an earlier restore left is removed */
};

/* Whether every file and directory is there already, by size and mode; its regions are those files, read-only. Content
 * is for the store to compare (SHOAL_REUSE_ONLY). false: there is nothing to release. */
bool restore_find(struct restore *restore, const char *path, const struct file_list *list,
                  const struct restore_options *options);
/* Makes everything that the payload needs: DIR (one level), directories, files with their space. On failure all of it
 * is removed but files that an earlier restore left. EXISTS: something is in the way. NO_SPACE. PERMISSION, IO, LIMIT.
 * list is borrowed until restore_release. */
enum shoal_status restore_prepare(struct restore *restore, const char *path, const struct file_list *list,
                                  const struct restore_options *options, struct shoal_error *error);
/* Gives the files their names. syncs: they are on the disk before. On failure call restore_abort. After restore_find:
 * NOT_FOUND if a file has lost its content meanwhile. */
enum shoal_status restore_commit(struct restore *restore, bool syncs, struct shoal_error *error);
/* Removes what has no name yet, unless it is kept for the next restore, and the directories that were made and are
 * empty. */
void restore_abort(struct restore *restore, bool keeps);
/* Unmaps. */
void restore_release(struct restore *restore);

#endif
