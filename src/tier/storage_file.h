/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a STORAGE tier: made when it is missing, locked against other processes, with one data file of the
 * tier's capacity. */
#ifndef SHOAL_TIER_STORAGE_FILE_H
#define SHOAL_TIER_STORAGE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

struct storage_file {
    int lock_fd; /* owned; -1: none */
    int fd;      /* owned; the data file */
    bool is_direct;
    /* Addresses of direct I/O are multiples of this; 1: any address will do. */
    uint32_t memory_alignment;
    uint64_t found_bytes; /* length of the data file before; 0: it is new */
    /* What was not there before. */
    bool has_made_directory, has_made_lock, has_made_data, has_made_index;
};

/* capacity_bytes: whole blocks. The file keeps what it has beyond capacity until storage_file_trim. INVALID_ARGUMENT:
 * not a directory; BUSY: another process (or this one) uses it; PERMISSION, NO_SPACE, IO. The message names the path.
 * An error leaves nothing in the file system that was not there before (of several that come at the same moment an
 * empty directory or lock file may stay). */
enum shoal_status storage_file_open(const char *directory, uint64_t capacity_bytes, struct storage_file *file_out,
                                    struct shoal_error *error);
void storage_file_close(struct storage_file *file);
/* Closes a tier that did not come about: whatever the open, and who opened the index since, have made goes again.
 * Harmless for a file that is not open. */
void storage_file_abandon(struct storage_file *file, const char *directory);
/* The path of the index in the directory, malloc'ed; NULL: out of memory. */
char *storage_file_index_path(const char *directory);
/* Cuts off what a larger capacity has left. */
void storage_file_trim(const struct storage_file *file, uint64_t capacity_bytes);

#endif
