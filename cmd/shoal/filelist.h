/* SPDX-License-Identifier: Apache-2.0 */
/* The list of files that travels with a payload as its attachment. Pure encode and decode; whatever decode accepts is
 * safe to create below a directory: relative, no "..", no duplicates, no file where another entry needs a directory.
 *
 * Text, one JSON object per line, so that a reader needs memory for one line only:
 *
 *     {"format":"shoal-file-list","version":1,"entries":2}
 *     {"path":"model","type":"dir","mode":493}
 *     {"path":"model/weights.bin","type":"file","mode":420,"size":1073741824}
 *
 * A name that is not UTF-8 has "path_hex" (lower-case hex of its bytes) in place of "path". Entries are in strictly
 * ascending order of their path, '/' before every other byte, so that a directory is followed by what is in it. The
 * payload is the concatenation of the non-empty files in this order, one region each; without any, one region of zero
 * bytes. */
#ifndef SHOAL_CMD_FILELIST_H
#define SHOAL_CMD_FILELIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define FILELIST_MAX_BYTES (48u << 20)
#define FILELIST_MAX_ENTRIES 500000u
#define FILELIST_PATH_MAX_BYTES 4000 /* below PATH_MAX with room for a directory in front */
#define FILELIST_NAME_MAX_BYTES 255  /* one component, as Linux file systems have it */
#define FILELIST_MAX_DEPTH 256

enum file_type { FILE_REGULAR, FILE_DIRECTORY };

struct file_entry {
    char *path; /* owned */
    enum file_type type;
    uint32_t mode; /* permission bits, 0..0777 */
    uint64_t size_bytes;
    size_t tag; /* the caller's, not encoded */
};

struct file_list {
    struct file_entry *entries; /* owned */
    size_t count, capacity;
    uint64_t total_bytes;
    size_t file_count, region_count; /* regular files; those of them that are not empty */
};

void filelist_init(struct file_list *list);
void filelist_release(struct file_list *list);

/* Copies path. INVALID_ARGUMENT: an unsafe or too long path. LIMIT: too many entries or bytes. NO_MEMORY. */
enum shoal_status filelist_add(struct file_list *list, const char *path, enum file_type type, uint32_t mode,
                               uint64_t size_bytes, size_t tag, struct shoal_error *error);
/* Brings the entries into order. EXISTS: two entries have one path, or one needs a directory where another is a file.
 */
enum shoal_status filelist_sort(struct file_list *list, struct shoal_error *error);

/* text_out: malloc'd. LIMIT: longer than FILELIST_MAX_BYTES. */
enum shoal_status filelist_encode(const struct file_list *list, char **text_out, size_t *len_out,
                                  struct shoal_error *error);
/* list: initialised and empty; untouched on failure. PROTOCOL: malformed or unsafe, the message says where. LIMIT. */
enum shoal_status filelist_decode(struct file_list *list, const char *text, size_t len, struct shoal_error *error);

/* PROTOCOL: the payload's regions are not what the list says. */
enum shoal_status filelist_check_sizes(const struct file_list *list, const uint64_t *sizes, size_t count,
                                       struct shoal_error *error);

/* NULL if path may be created below a directory, else why not ("is absolute"...). */
const char *filelist_path_problem(const char *path, size_t len);

#endif
