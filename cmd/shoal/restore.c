/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "app.h"
#include "base/error.h"
#include "safe_path.h"
#include "units.h"

#define DIRECTORY_MODE 0755 /* of directories that the list does not name */

/* The directory that the last file was in: neighbours in the list share it. */
struct parent {
    const char *path; /* borrowed from an entry */
    size_t len;
    int fd; /* -1: none */
};

static enum shoal_status system_error(struct shoal_error *error, int number, const char *tried, const char *path,
                                      size_t len)
{
    char copy[FILELIST_PATH_MAX_BYTES + 1], shown[300];
    snprintf(copy, sizeof copy, "%.*s", (int)len, path);
    enum shoal_status status = number == ENOSPC || number == EDQUOT || number == EFBIG  ? SHOAL_NO_SPACE
                               : number == EACCES || number == EPERM || number == EROFS ? SHOAL_PERMISSION
                               : number == EMFILE || number == ENFILE                   ? SHOAL_LIMIT
                               : number == ENOENT                                       ? SHOAL_NOT_FOUND
                               : number == ENOMEM                                       ? SHOAL_NO_MEMORY
                                                                                        : SHOAL_IO;
    return error_set(error, status, number, "cannot %s \"%s\": %s", tried, units_printable(copy, shown, sizeof shown),
                     strerror(number));
}

static enum shoal_status in_the_way(struct shoal_error *error, const char *path, size_t len, const char *what)
{
    char copy[FILELIST_PATH_MAX_BYTES + 1], shown[300];
    snprintf(copy, sizeof copy, "%.*s", (int)len, path);
    return error_set(error, SHOAL_EXISTS, 0, "\"%s\" is in the way: %s", units_printable(copy, shown, sizeof shown),
                     what);
}

/* --- directories --- */

static int remember_made(void *arg, const char *path, size_t len)
{
    struct restore *restore = arg;
    if (restore->made_count == restore->made_capacity) {
        size_t capacity = restore->made_capacity ? 2 * restore->made_capacity : 16;
        struct made_directory *made = realloc(restore->made, capacity * sizeof *made);
        if (!made)
            return ENOMEM;
        restore->made = made;
        restore->made_capacity = capacity;
    }
    restore->made[restore->made_count++] = (struct made_directory){path, len, DIRECTORY_MODE};
    return 0;
}

static enum shoal_status open_directory(struct restore *restore, const char *path, size_t len, bool makes, int *fd_out,
                                        struct shoal_error *error)
{
    size_t failed_len;
    struct stat info, root;
    int fd = safe_path_open_directory(restore->root_fd, path, len, makes ? remember_made : NULL, restore, &failed_len);
    if (fd < 0) {
        if (errno == ENOTDIR || errno == ELOOP)
            return in_the_way(error, path, failed_len,
                              "a directory is needed there, and links are not followed; move it away");
        return system_error(error, errno, makes ? "make directory" : "open directory", path, failed_len);
    }
    if (fstat(fd, &info) != 0 || fstat(restore->root_fd, &root) != 0 || info.st_dev != root.st_dev) {
        close(fd);
        return error_set(error, SHOAL_UNSUPPORTED, EXDEV,
                         "\"%.*s\" is on another file system than \"%s\": files cannot be moved there", (int)len, path,
                         restore->path);
    }
    *fd_out = fd;
    return SHOAL_OK;
}

static enum shoal_status enter_parent(struct restore *restore, struct parent *parent, const struct file_entry *entry,
                                      bool makes, const char **name_out, struct shoal_error *error)
{
    size_t len = safe_path_parent(entry->path, strlen(entry->path), name_out);
    if (parent->fd >= 0 && parent->len == len && memcmp(parent->path, entry->path, len) == 0)
        return SHOAL_OK;
    if (parent->fd >= 0)
        close(parent->fd);
    *parent = (struct parent){entry->path, len, -1};
    return open_directory(restore, entry->path, len, makes, &parent->fd, error);
}

/* --- files --- */

static enum shoal_status check_target(int parent_fd, const char *name, const struct file_entry *entry,
                                      bool keeps_existing, struct shoal_error *error)
{
    struct stat info;
    if (fstatat(parent_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? SHOAL_OK : system_error(error, errno, "look at", entry->path, strlen(entry->path));
    if (S_ISDIR(info.st_mode))
        return in_the_way(error, entry->path, strlen(entry->path), "it is a directory, the payload has a file there");
    if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
        return in_the_way(error, entry->path, strlen(entry->path), "it is a device, pipe or socket");
    if (keeps_existing)
        return in_the_way(error, entry->path, strlen(entry->path), "it exists, and --no-overwrite was given");
    return SHOAL_OK;
}

/* A file that an earlier get left, brought to its size. false: it is none that can be used, and is gone. */
static bool open_adopted(struct restore *restore, const struct file_entry *entry, const char *name, int *fd_out)
{
    struct stat info;
    int fd = openat(restore->staging_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && staging_is_own_file(fd) && fstat(fd, &info) == 0 &&
        ((uint64_t)info.st_size <= entry->size_bytes || ftruncate(fd, (off_t)entry->size_bytes) == 0)) {
        *fd_out = fd;
        return true;
    }
    if (fd >= 0)
        close(fd);
    unlinkat(restore->staging_fd, name, 0);
    return false;
}

/* The mode is set now, so that it fails early if it must; one that would keep us from opening the file again after an
 * interruption is set once more at the end. */
static int set_staged_mode(int fd, uint32_t mode)
{
    if (fchmod(fd, mode) != 0)
        return errno;
    return (mode & 0600) != 0600 && fchmod(fd, 0600) != 0 ? errno : 0;
}

/* Makes the file as long as it will be, with its space where that is quick. tmpfs would fill the pages with zeros now,
 * one after the other: there only the check of the free space guards against too little, and a page that is missing
 * later ends the transfer. Returns an errno. */
static int make_space(int fd, uint64_t size_bytes)
{
    struct statfs system;
    struct stat info;
    if (size_bytes == 0)
        return 0;
    if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC)
        return posix_fallocate(fd, 0, (off_t)size_bytes);
    if (fstat(fd, &info) != 0)
        return errno;
    return (uint64_t)info.st_size < size_bytes && ftruncate(fd, (off_t)size_bytes) != 0 ? errno : 0;
}

static enum shoal_status stage_file(struct restore *restore, size_t index, struct shoal_error *error)
{
    const struct file_entry *entry = &restore->list->entries[index];
    enum shoal_status status = SHOAL_OK;
    char name[STAGING_FILE_NAME_BYTES];
    int fd = -1, number;
    staging_file_name(entry->path, name);
    if (restore->is_adopted[index] && !open_adopted(restore, entry, name, &fd)) {
        restore->is_adopted[index] = false;
        restore->adopted_count--;
    }
    if (fd < 0)
        fd = openat(restore->staging_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return system_error(error, errno, "make a file for", entry->path, strlen(entry->path));
    number = make_space(fd, entry->size_bytes);
    if (number)
        status = system_error(error, number, "get space for", entry->path, strlen(entry->path));
    else if ((number = set_staged_mode(fd, entry->mode)))
        status = system_error(error, number, "set the mode of", entry->path, strlen(entry->path));
    else if (entry->size_bytes)
        status = mapping_add(&restore->mappings, fd, entry->size_bytes, true, index, error);
    close(fd);
    return status;
}

/* The file that is to be replaced may have some of the new one's content. Whatever is wrong with it, it can be done
 * without. */
static void map_previous(struct restore *restore, int parent_fd, const char *name, size_t index)
{
    const struct file_entry *entry = &restore->list->entries[index];
    struct stat info;
    int fd = openat(parent_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
        uint64_t len = (uint64_t)info.st_size < entry->size_bytes ? (uint64_t)info.st_size : entry->size_bytes;
        if (mapping_add(&restore->mappings, fd, len, false, index, NULL) == SHOAL_OK)
            restore->previous_count++;
    }
    close(fd);
}

/* Takes over what earlier gets of the payload left. */
static void adopt_files(struct restore *restore, struct staging_left *left)
{
    for (size_t i = 0; i < restore->list->count && left->count; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        char name[STAGING_FILE_NAME_BYTES];
        if (entry->type != FILE_REGULAR || entry->size_bytes == 0)
            continue;
        staging_file_name(entry->path, name);
        restore->is_adopted[i] = staging_adopt(left, restore->staging_fd, name);
        restore->adopted_count += restore->is_adopted[i];
    }
}

/* What the files need beyond what those that were adopted have. */
static uint64_t needed_blocks(const struct restore *restore, uint64_t block)
{
    uint64_t needed = 0;
    for (size_t i = 0; i < restore->list->count; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        uint64_t blocks = entry->size_bytes / block + (entry->size_bytes % block != 0), have = 0;
        char name[STAGING_FILE_NAME_BYTES];
        struct stat info;
        staging_file_name(entry->path, name);
        if (restore->is_adopted[i] && fstatat(restore->staging_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0)
            have = (uint64_t)info.st_blocks * 512 / block;
        needed += have < blocks ? blocks - have : 0;
    }
    return needed;
}

static enum shoal_status check_space(const struct restore *restore, struct shoal_error *error)
{
    for (bool has_swept = false;; has_swept = true) {
        struct statvfs info;
        if (fstatvfs(restore->root_fd, &info) != 0 || info.f_blocks == 0)
            return SHOAL_OK; /* not told: allocation will show */
        uint64_t block = info.f_frsize ? info.f_frsize : 4096, needed = needed_blocks(restore, block);
        uint64_t available = geteuid() == 0 ? info.f_bfree : info.f_bavail;
        char need[UNITS_TEXT_BYTES], have[UNITS_TEXT_BYTES];
        if (needed <= available)
            return SHOAL_OK;
        if (has_swept)
            return error_set(error, SHOAL_NO_SPACE, 0, "\"%s\" has %s free, the payload needs %s", restore->path,
                             units_format_size(available * block, have),
                             units_format_size(needed * block < restore->list->total_bytes ? needed * block
                                                                                           : restore->list->total_bytes,
                                               need));
        staging_sweep(restore->root_fd); /* what was left of other payloads is worth less than this one */
    }
}

static bool is_staged(const struct mapping *mapping)
{
    return mapping->protection & PROT_WRITE;
}

/* In the order of the list; what is there of a file precedes the file itself. */
static enum shoal_status make_regions(struct restore *restore, struct shoal_error *error)
{
    static char nothing;
    size_t count = restore->mappings.count - restore->previous_count, at = 0;
    restore->region_count = count ? count : 1;
    restore->regions = calloc(restore->region_count, sizeof *restore->regions);
    if (restore->previous_count)
        restore->previous = calloc(restore->region_count, sizeof *restore->previous);
    if (!restore->regions || (restore->previous_count && !restore->previous))
        return error_no_memory(error);
    restore->regions[0] = (struct shoal_region){&nothing, 0};
    for (size_t i = 0; i < restore->mappings.count; i++) {
        const struct mapping *mapping = &restore->mappings.items[i];
        struct shoal_region region = {mapping->addr, mapping->len_bytes};
        if (restore->is_whole || is_staged(mapping))
            restore->regions[at++] = region;
        else
            restore->previous[at] = region;
    }
    return SHOAL_OK;
}

static enum shoal_status open_root(struct restore *restore, struct shoal_error *error)
{
    const char *path = restore->path;
    if (mkdir(path, 0777) == 0)
        restore->has_made_root = true;
    else if (errno != EEXIST)
        return system_error(error, errno, "make directory", path, strlen(path));
    restore->root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (restore->root_fd < 0)
        return errno == ENOTDIR ? error_set(error, SHOAL_EXISTS, ENOTDIR, "\"%s\" exists and is not a directory", path)
                                : system_error(error, errno, "open directory", path, strlen(path));
    return SHOAL_OK;
}

/* A directory that a get made and could not finish: this mode only ever comes from there (safe_path.c). */
static bool is_unfinished(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 07777) == SAFE_PATH_UNFINISHED_MODE;
}

static enum shoal_status prepare_directory(struct restore *restore, const struct file_entry *entry,
                                           struct shoal_error *error)
{
    size_t made_before = restore->made_count, len = strlen(entry->path);
    int fd = -1;
    enum shoal_status status = open_directory(restore, entry->path, len, true, &fd, error);
    if (status != SHOAL_OK)
        return status;
    if (restore->made_count == made_before && is_unfinished(fd) && remember_made(restore, entry->path, len) != 0)
        status = error_no_memory(error);
    close(fd);
    if (restore->made_count > made_before && restore->made[restore->made_count - 1].len == len)
        restore->made[restore->made_count - 1].mode = entry->mode;
    return status;
}

/* Before anything is taken over or allocated. */
static enum shoal_status prepare_places(struct restore *restore, bool keeps_existing, struct shoal_error *error)
{
    struct parent parent = {.fd = -1};
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < restore->list->count && status == SHOAL_OK; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        const char *name;
        if (entry->type == FILE_DIRECTORY) {
            status = prepare_directory(restore, entry, error);
            continue;
        }
        size_t made_before = restore->made_count;
        status = enter_parent(restore, &parent, entry, true, &name, error);
        if (status == SHOAL_OK && restore->made_count == made_before && is_unfinished(parent.fd))
            restore->has_left_directories = true;
        if (status == SHOAL_OK)
            status = check_target(parent.fd, name, entry, keeps_existing, error);
    }
    if (parent.fd >= 0)
        close(parent.fd);
    return status;
}

static enum shoal_status prepare_files(struct restore *restore, bool uses_previous, struct shoal_error *error)
{
    struct parent parent = {.fd = -1};
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < restore->list->count && status == SHOAL_OK; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        const char *name;
        if (entry->type == FILE_DIRECTORY)
            continue;
        if (uses_previous && entry->size_bytes) {
            status = enter_parent(restore, &parent, entry, false, &name, error);
            if (status == SHOAL_OK)
                map_previous(restore, parent.fd, name, i);
        }
        if (status == SHOAL_OK)
            status = stage_file(restore, i, error);
    }
    if (parent.fd >= 0)
        close(parent.fd);
    return status;
}

enum shoal_status restore_prepare(struct restore *restore, const char *path, const struct file_list *list,
                                  const struct restore_options *options, struct shoal_error *error)
{
    struct staging_left left = {.count = 0};
    *restore = (struct restore){.root_fd = -1, .staging_fd = -1, .list = list, .path = strdup(path)};
    restore->is_adopted = calloc(list->count + 1, sizeof *restore->is_adopted);
    if (!restore->path || !restore->is_adopted) {
        restore_release(restore);
        return error_no_memory(error);
    }
    enum shoal_status status = runtime_check_map_count(list->region_count, error);
    if (status == SHOAL_OK)
        status = open_root(restore, error);
    if (status == SHOAL_OK)
        status = prepare_places(restore, options->keeps_existing, error);
    if (status == SHOAL_OK)
        staging_find_left(restore->root_fd, options->payload, &left);
    if (status == SHOAL_OK)
        status =
            staging_make(restore->root_fd, path, options->payload, restore->staging_name, &restore->staging_fd, error);
    if (status == SHOAL_OK) {
        if (options->resumes)
            adopt_files(restore, &left);
        staging_remove_left(restore->root_fd, &left);
        status = check_space(restore, error);
    }
    if (status == SHOAL_OK)
        status = prepare_files(
            restore, options->resumes && runtime_check_map_count(2 * list->region_count, NULL) == SHOAL_OK, error);
    if (status == SHOAL_OK)
        status = make_regions(restore, error);
    if (status != SHOAL_OK) {
        staging_remove_left(restore->root_fd, &left);
        restore_abort(restore, restore->adopted_count > 0);
        restore_release(restore);
    }
    return status;
}

static bool find_file(struct restore *restore, int parent_fd, const char *name, size_t index)
{
    const struct file_entry *entry = &restore->list->entries[index];
    struct stat info;
    int fd = openat(parent_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool is_found = fd >= 0 && staging_is_own_file(fd) && fstat(fd, &info) == 0 &&
                    (uint64_t)info.st_size == entry->size_bytes && (info.st_mode & 07777) == entry->mode;
    if (is_found && entry->size_bytes)
        is_found = mapping_add(&restore->mappings, fd, entry->size_bytes, false, index, NULL) == SHOAL_OK;
    if (fd >= 0)
        close(fd);
    return is_found;
}

static bool find_all(struct restore *restore)
{
    struct parent parent = {.fd = -1};
    bool is_found = true;
    for (size_t i = 0; i < restore->list->count && is_found; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        const char *name;
        int fd = -1;
        if (entry->type == FILE_DIRECTORY) {
            is_found = open_directory(restore, entry->path, strlen(entry->path), false, &fd, NULL) == SHOAL_OK &&
                       !is_unfinished(fd);
            if (fd >= 0)
                close(fd);
        } else {
            is_found = enter_parent(restore, &parent, entry, false, &name, NULL) == SHOAL_OK &&
                       !is_unfinished(parent.fd) && find_file(restore, parent.fd, name, i);
        }
    }
    if (parent.fd >= 0)
        close(parent.fd);
    return is_found;
}

bool restore_find(struct restore *restore, const char *path, const struct file_list *list,
                  const struct restore_options *options)
{
    *restore = (struct restore){.root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                .staging_fd = -1,
                                .is_whole = true,
                                .payload = options->payload,
                                .list = list,
                                .path = strdup(path)};
    if (restore->root_fd >= 0 && restore->path && runtime_check_map_count(list->region_count, NULL) == SHOAL_OK &&
        find_all(restore) && make_regions(restore, NULL) == SHOAL_OK)
        return true;
    restore_release(restore);
    return false;
}

static enum shoal_status sync_files(struct restore *restore, struct shoal_error *error)
{
    for (size_t i = 0; i < restore->mappings.count; i++)
        if (is_staged(&restore->mappings.items[i]) &&
            msync(restore->mappings.items[i].addr, restore->mappings.items[i].len_bytes, MS_SYNC) != 0) {
            const char *path = restore->list->entries[restore->mappings.items[i].tag].path;
            return system_error(error, errno, "write to disk", path, strlen(path));
        }
    /* The sizes and the files without content. */
    if (syncfs(restore->root_fd) != 0)
        return system_error(error, errno, "write to disk", restore->path, strlen(restore->path));
    return SHOAL_OK;
}

static enum shoal_status set_final_mode(struct restore *restore, const struct file_entry *entry, const char *staged,
                                        struct shoal_error *error)
{
    int fd = openat(restore->staging_fd, staged, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int number = fd < 0 || fchmod(fd, entry->mode) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return number ? system_error(error, number, "set the mode of", entry->path, strlen(entry->path)) : SHOAL_OK;
}

static enum shoal_status name_files(struct restore *restore, struct shoal_error *error)
{
    struct parent parent = {.fd = -1};
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < restore->list->count && status == SHOAL_OK; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        const char *name;
        char staged[STAGING_FILE_NAME_BYTES];
        if (entry->type == FILE_DIRECTORY)
            continue;
        status = enter_parent(restore, &parent, entry, false, &name, error);
        if (status != SHOAL_OK)
            break;
        staging_file_name(entry->path, staged);
        if ((entry->mode & 0600) != 0600)
            status = set_final_mode(restore, entry, staged, error);
        if (status == SHOAL_OK && renameat(restore->staging_fd, staged, parent.fd, name) != 0)
            status = system_error(error, errno, "give its name to", entry->path, strlen(entry->path));
    }
    if (parent.fd >= 0)
        close(parent.fd);
    return status;
}

/* Children first: a directory may lose our right to enter it. */
static enum shoal_status set_directory_modes(struct restore *restore, struct shoal_error *error)
{
    for (size_t i = restore->made_count; i-- > 0;) {
        const struct made_directory *made = &restore->made[i];
        const char *name;
        size_t parent_len = safe_path_parent(made->path, made->len, &name), failed_len;
        char copy[FILELIST_NAME_MAX_BYTES + 1];
        snprintf(copy, sizeof copy, "%.*s", (int)(made->len - (size_t)(name - made->path)), name);
        int parent_fd = safe_path_open_directory(restore->root_fd, made->path, parent_len, NULL, NULL, &failed_len);
        int fd = parent_fd >= 0 ? openat(parent_fd, copy, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        int number = fd < 0 || fchmod(fd, made->mode) != 0 ? errno : 0;
        if (fd >= 0)
            close(fd);
        if (parent_fd >= 0)
            close(parent_fd);
        if (number)
            return system_error(error, number, "set the mode of", made->path, made->len);
    }
    return SHOAL_OK;
}

static void remove_staging(struct restore *restore)
{
    if (restore->staging_fd >= 0)
        staging_remove(restore->root_fd, restore->staging_name, restore->staging_fd);
    restore->staging_fd = -1;
}

/* Directories that no entry of the list names, made by an earlier get that did not finish. */
static void finish_left_directories(struct restore *restore)
{
    const char *last = "";
    size_t last_len = 0;
    for (size_t i = 0; i < restore->list->count; i++) {
        const char *path = restore->list->entries[i].path, *name;
        size_t len = safe_path_parent(path, strlen(path), &name), failed_len;
        if (len == last_len && memcmp(path, last, len) == 0)
            continue;
        last = path;
        last_len = len;
        for (; len > 0; len = safe_path_parent(path, len, &name)) {
            int at = safe_path_open_directory(restore->root_fd, path, len, NULL, NULL, &failed_len);
            int fd = at >= 0 ? openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
            if (fd >= 0 && is_unfinished(fd) && fchmod(fd, DIRECTORY_MODE) != 0)
                errno = 0; /* it was none of ours, then */
            if (fd >= 0)
                close(fd);
            if (at >= 0)
                close(at);
        }
    }
}

static enum shoal_status commit_whole(struct restore *restore, bool syncs, struct shoal_error *error)
{
    struct staging_left left;
    if (mapping_first_lost(&restore->mappings))
        return error_set(error, SHOAL_NOT_FOUND, 0, "a file in \"%s\" was cut off by somebody", restore->path);
    enum shoal_status status = syncs ? sync_files(restore, error) : SHOAL_OK;
    if (status == SHOAL_OK) {
        staging_find_left(restore->root_fd, restore->payload, &left);
        staging_remove_left(restore->root_fd, &left);
    }
    return status;
}

enum shoal_status restore_commit(struct restore *restore, bool syncs, struct shoal_error *error)
{
    if (restore->is_whole)
        return commit_whole(restore, syncs, error);
    for (size_t i = 0; i < restore->mappings.count; i++) {
        const struct mapping *lost = &restore->mappings.items[i];
        char shown[300];
        if (!is_staged(lost) || !atomic_load(&lost->is_lost))
            continue; /* a file that is replaced may lose what it likes */
        return error_set(error, SHOAL_IO, EIO, "the file for \"%s\" was cut off by somebody, or the disk failed",
                         units_printable(restore->list->entries[lost->tag].path, shown, sizeof shown));
    }
    enum shoal_status status = syncs ? sync_files(restore, error) : SHOAL_OK;
    if (status == SHOAL_OK)
        status = name_files(restore, error);
    if (status == SHOAL_OK)
        status = set_directory_modes(restore, error);
    if (status == SHOAL_OK && restore->has_left_directories)
        finish_left_directories(restore);
    if (status == SHOAL_OK && syncs && syncfs(restore->root_fd) != 0)
        status = system_error(error, errno, "write to disk", restore->path, strlen(restore->path));
    if (status != SHOAL_OK)
        return status;
    remove_staging(restore);
    /* Whoever serves on shall not keep the space of the replaced files. */
    for (size_t i = 0; i < restore->mappings.count; i++)
        if (!is_staged(&restore->mappings.items[i]))
            mapping_drop(&restore->mappings.items[i]);
    return SHOAL_OK;
}

void restore_abort(struct restore *restore, bool keeps)
{
    if (!keeps)
        remove_staging(restore);
    for (size_t i = restore->made_count; i-- > 0;) {
        const struct made_directory *made = &restore->made[i];
        const char *name;
        size_t parent_len = safe_path_parent(made->path, made->len, &name), failed_len;
        char copy[FILELIST_NAME_MAX_BYTES + 1];
        snprintf(copy, sizeof copy, "%.*s", (int)(made->len - (size_t)(name - made->path)), name);
        int fd = safe_path_open_directory(restore->root_fd, made->path, parent_len, NULL, NULL, &failed_len);
        if (fd >= 0) {
            unlinkat(fd, copy, AT_REMOVEDIR);
            close(fd);
        }
    }
    if (restore->has_made_root)
        rmdir(restore->path);
}

void restore_release(struct restore *restore)
{
    mapping_table_release(&restore->mappings);
    if (restore->staging_fd >= 0)
        close(restore->staging_fd);
    if (restore->root_fd >= 0)
        close(restore->root_fd);
    free(restore->regions);
    free(restore->previous);
    free(restore->is_adopted);
    free(restore->made);
    free(restore->path);
    *restore = (struct restore){.root_fd = -1, .staging_fd = -1};
}
