/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the files of a payload below a directory, whatever their names say and whoever plays with links there
 * meanwhile.
 *
 * Files grow in a staging directory ".shoal-part-..." in DIR, with all their space allocated before the first byte
 * arrives, and move to their names when everything is there. Every step opens one component at a time without following
 * links. The staging directory is locked while its process lives; the next restore removes those that were left behind.
 */
#ifndef SHOAL_CMD_RESTORE_H
#define SHOAL_CMD_RESTORE_H

#include <stdbool.h>
#include <stddef.h>

#include "filelist.h"
#include "mapping.h"

#define RESTORE_STAGING_PREFIX ".shoal-part-"

struct made_directory {
    const char *path; /* borrowed from the list's entry; its first len bytes */
    size_t len;
    uint32_t mode;
};

struct restore {
    char *path;              /* owned: DIR */
    int root_fd, staging_fd; /* staging_fd also holds the lock */
    bool has_made_root;
    char staging_name[64];
    const struct file_list *list;  /* borrowed */
    struct mapping_table mappings; /* tag: index of the entry */
    struct shoal_region *regions;  /* owned; in the order of the list, at least one */
    size_t region_count;
    struct made_directory *made; /* owned; parents first */
    size_t made_count, made_capacity;
    size_t staged_count; /* files with an index below it may exist in the staging directory */
};

/* Makes everything that the payload needs: DIR (one level), directories, files with their space. On failure all of it
 * is removed. EXISTS: something is in the way. NO_SPACE. PERMISSION, IO, LIMIT. list is borrowed until restore_release.
 */
enum shoal_status restore_prepare(struct restore *restore, const char *path, const struct file_list *list,
                                  bool keeps_existing, struct shoal_error *error);
/* Gives the files their names. syncs: they are on the disk before. On failure call restore_abort. */
enum shoal_status restore_commit(struct restore *restore, bool syncs, struct shoal_error *error);
/* Removes what has no name yet and the directories that were made and are empty. */
void restore_abort(struct restore *restore);
/* Unmaps. */
void restore_release(struct restore *restore);

#endif
