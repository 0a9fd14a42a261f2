/* SPDX-License-Identifier: Apache-2.0 */
/* Directories ".shoal-part-PAYLOAD-RANDOM" in the target directory, in which the files of a get grow: PAYLOAD is a
 * digest of the payload's name, a file in it is named by a digest of its path. So whoever gets the payload again finds
 * what an ended or killed process left, also when the list of files is another by then.
 *
 * Each is locked while its process lives. What is in one that was left is checked before it is touched (a regular file
 * of this user with one name; links are never followed), and its content means nothing until it is verified. */
#ifndef SHOAL_CMD_STAGING_H
#define SHOAL_CMD_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define STAGING_PREFIX ".shoal-part-"
#define STAGING_NAME_BYTES 64
#define STAGING_FILE_NAME_BYTES 33
#define STAGING_LEFT_MAX 8u /* directories of one payload that are used, those with the most content */

/* Makes an empty one, locked by *fd_out. name_out: its name in the directory root_fd; path only for messages. */
enum shoal_status staging_make(int root_fd, const char *path, const char *payload, char name_out[STAGING_NAME_BYTES],
                               int *fd_out, struct shoal_error *error);
/* Removes it with what is in it; closes fd. */
void staging_remove(int root_fd, const char *name, int fd);
/* The name of the file for path. */
void staging_file_name(const char *path, char name_out[STAGING_FILE_NAME_BYTES]);
/* Whether fd is a file that may be written: regular, of this user, with one name. */
bool staging_is_own_file(int fd);

/* What processes left that live no longer. */
struct staging_left {
    size_t count;
    struct {
        int fd; /* holds the lock */
        uint64_t blocks;
        char name[STAGING_NAME_BYTES];
    } items[STAGING_LEFT_MAX];
};

/* Finds and locks those of payload; when there are too many, those with the least content are removed. So are
 * directories of this user whose name says nothing; those of other payloads stay. */
void staging_find_left(int root_fd, const char *payload, struct staging_left *left_out);
/* Moves the file called name with the most content to the directory staging_fd. false: none has one. */
bool staging_adopt(struct staging_left *left, int staging_fd, const char *name);
/* Removes them with all that was not adopted, and unlocks. */
void staging_remove_left(int root_fd, struct staging_left *left);
/* Removes whatever was left for any payload. */
void staging_sweep(int root_fd);

#endif
