/* SPDX-License-Identifier: Apache-2.0 */
/* What `shoal seed` was asked to seed: walks the paths, maps every file, remembers what each file looked like. */
#ifndef SHOAL_CMD_SCAN_H
#define SHOAL_CMD_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "filelist.h"
#include "mapping.h"

struct scanned_file {
    char *path; /* owned; where it was found */
    struct stat info;
    bool is_reported; /* a change has been reported */
};

struct scan {
    bool follows_links;
    struct file_list list;      /* sorted; tag: index in files */
    struct scanned_file *files; /* owned */
    size_t count, capacity;
    struct mapping_table mappings; /* of the files that are not empty; tag: index in files */
    struct shoal_region *regions;  /* owned; in the order of the list, at least one */
    size_t region_count;
    size_t next_check; /* scan_check_some goes round */
};

void scan_init(struct scan *scan, bool follows_links);
void scan_release(struct scan *scan);
/* NOT_FOUND, PERMISSION, IO; INVALID_ARGUMENT: no regular file or directory; EXISTS: two of one name; LIMIT. */
enum shoal_status scan_paths(struct scan *scan, char *const *paths, size_t count, struct shoal_error *error);
/* IO: a file was changed, replaced or cut off since it was scanned. */
enum shoal_status scan_check_all(struct scan *scan, struct shoal_error *error);
/* Looks at some files; a newly changed one goes to fn. */
void scan_check_some(struct scan *scan, size_t max, void (*fn)(void *arg, const char *path, const char *what),
                     void *arg);

#endif
