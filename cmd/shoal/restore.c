/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "app.h"
#include "base/error.h"
#include "base/random.h"
#include "safe_path.h"
#include "units.h"

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

/* --- staging directories --- */

static void empty_directory(int fd)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = copy >= 0 ? fdopendir(copy) : NULL;
    if (!directory) {
        if (copy >= 0)
            close(copy);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(directory));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(fd, entry->d_name, 0);
    closedir(directory);
}

/* Removes what killed processes of this user left; whoever lives holds the lock of his. */
static void sweep(int root_fd)
{
    int copy = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = copy >= 0 ? fdopendir(copy) : NULL;
    if (!directory) {
        if (copy >= 0)
            close(copy);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(directory));) {
        struct stat info;
        if (strncmp(entry->d_name, RESTORE_STAGING_PREFIX, strlen(RESTORE_STAGING_PREFIX)) != 0)
            continue;
        int fd = openat(root_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            empty_directory(fd);
            unlinkat(root_fd, entry->d_name, AT_REMOVEDIR);
        }
        close(fd);
    }
    closedir(directory);
}

static enum shoal_status make_staging(struct restore *restore, struct shoal_error *error)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        struct stat info;
        snprintf(restore->staging_name, sizeof restore->staging_name, "%s%016" PRIx64, RESTORE_STAGING_PREFIX,
                 random_id());
        if (mkdirat(restore->root_fd, restore->staging_name, 0700) != 0) {
            if (errno == EEXIST)
                continue;
            return system_error(error, errno, "write to", restore->path, strlen(restore->path));
        }
        int fd = openat(restore->root_fd, restore->staging_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        /* Somebody who sweeps may have been faster than our lock: then it is gone, or will be. */
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0) {
            restore->staging_fd = fd;
            return SHOAL_OK;
        }
        if (fd >= 0)
            close(fd);
        unlinkat(restore->root_fd, restore->staging_name, AT_REMOVEDIR);
    }
    return error_set(error, SHOAL_BUSY, 0, "cannot make a directory of our own in \"%s\"", restore->path);
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
    restore->made[restore->made_count++] = (struct made_directory){path, len, 0755};
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

static void staged_name(size_t index, char name_out[24])
{
    snprintf(name_out, 24, "%zu", index);
}

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

static enum shoal_status stage_file(struct restore *restore, size_t index, struct shoal_error *error)
{
    const struct file_entry *entry = &restore->list->entries[index];
    enum shoal_status status = SHOAL_OK;
    char name[24];
    staged_name(index, name);
    restore->staged_count = index + 1;
    int fd = openat(restore->staging_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return system_error(error, errno, "make a file for", entry->path, strlen(entry->path));
    int number = entry->size_bytes ? posix_fallocate(fd, 0, (off_t)entry->size_bytes) : 0;
    if (number)
        status = system_error(error, number, "get space for", entry->path, strlen(entry->path));
    else if (fchmod(fd, entry->mode) != 0)
        status = system_error(error, errno, "set the mode of", entry->path, strlen(entry->path));
    else if (entry->size_bytes)
        status = mapping_add(&restore->mappings, fd, entry->size_bytes, true, index, error);
    close(fd);
    return status;
}

static enum shoal_status check_space(const struct restore *restore, struct shoal_error *error)
{
    struct statvfs info;
    if (fstatvfs(restore->root_fd, &info) != 0 || info.f_blocks == 0)
        return SHOAL_OK; /* not told: allocation will show */
    uint64_t block = info.f_frsize ? info.f_frsize : 4096, needed = 0;
    for (size_t i = 0; i < restore->list->count; i++)
        needed += restore->list->entries[i].size_bytes / block + (restore->list->entries[i].size_bytes % block != 0);
    uint64_t available = geteuid() == 0 ? info.f_bfree : info.f_bavail;
    char need[UNITS_TEXT_BYTES], have[UNITS_TEXT_BYTES];
    if (needed > available)
        return error_set(error, SHOAL_NO_SPACE, 0, "\"%s\" has %s free, the payload needs %s", restore->path,
                         units_format_size(available * block, have),
                         units_format_size(restore->list->total_bytes, need));
    return SHOAL_OK;
}

static enum shoal_status make_regions(struct restore *restore, struct shoal_error *error)
{
    static char nothing;
    restore->region_count = restore->mappings.count ? restore->mappings.count : 1;
    restore->regions = calloc(restore->region_count, sizeof *restore->regions);
    if (!restore->regions)
        return error_no_memory(error);
    restore->regions[0] = (struct shoal_region){&nothing, 0};
    for (size_t i = 0; i < restore->mappings.count; i++)
        restore->regions[i] =
            (struct shoal_region){restore->mappings.items[i].addr, restore->mappings.items[i].len_bytes};
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

enum shoal_status restore_prepare(struct restore *restore, const char *path, const struct file_list *list,
                                  bool keeps_existing, struct shoal_error *error)
{
    struct parent parent = {.fd = -1};
    *restore = (struct restore){.root_fd = -1, .staging_fd = -1, .list = list, .path = strdup(path)};
    if (!restore->path)
        return error_no_memory(error);
    enum shoal_status status = runtime_check_map_count(list->region_count, error);
    if (status == SHOAL_OK)
        status = open_root(restore, error);
    if (status == SHOAL_OK) {
        sweep(restore->root_fd);
        status = check_space(restore, error);
    }
    if (status == SHOAL_OK)
        status = make_staging(restore, error);
    for (size_t i = 0; i < list->count && status == SHOAL_OK; i++) {
        const struct file_entry *entry = &list->entries[i];
        const char *name;
        if (entry->type == FILE_DIRECTORY) {
            size_t made_before = restore->made_count;
            int fd = -1;
            status = open_directory(restore, entry->path, strlen(entry->path), true, &fd, error);
            if (status == SHOAL_OK)
                close(fd);
            if (restore->made_count > made_before && restore->made[restore->made_count - 1].len == strlen(entry->path))
                restore->made[restore->made_count - 1].mode = entry->mode;
            continue;
        }
        status = enter_parent(restore, &parent, entry, true, &name, error);
        if (status == SHOAL_OK)
            status = check_target(parent.fd, name, entry, keeps_existing, error);
        if (status == SHOAL_OK)
            status = stage_file(restore, i, error);
    }
    if (parent.fd >= 0)
        close(parent.fd);
    if (status == SHOAL_OK)
        status = make_regions(restore, error);
    if (status != SHOAL_OK) {
        restore_abort(restore);
        restore_release(restore);
    }
    return status;
}

static enum shoal_status sync_files(struct restore *restore, struct shoal_error *error)
{
    for (size_t i = 0; i < restore->mappings.count; i++)
        if (msync(restore->mappings.items[i].addr, restore->mappings.items[i].len_bytes, MS_SYNC) != 0) {
            const char *path = restore->list->entries[restore->mappings.items[i].tag].path;
            return system_error(error, errno, "write to disk", path, strlen(path));
        }
    /* The sizes and the files without content. */
    if (syncfs(restore->root_fd) != 0)
        return system_error(error, errno, "write to disk", restore->path, strlen(restore->path));
    return SHOAL_OK;
}

static enum shoal_status name_files(struct restore *restore, struct shoal_error *error)
{
    struct parent parent = {.fd = -1};
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < restore->list->count && status == SHOAL_OK; i++) {
        const struct file_entry *entry = &restore->list->entries[i];
        const char *name;
        char staged[24];
        if (entry->type == FILE_DIRECTORY)
            continue;
        status = enter_parent(restore, &parent, entry, false, &name, error);
        if (status != SHOAL_OK)
            break;
        staged_name(i, staged);
        if (renameat(restore->staging_fd, staged, parent.fd, name) != 0)
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
    if (restore->staging_fd < 0)
        return;
    for (size_t i = 0; i < restore->staged_count; i++) {
        char name[24];
        staged_name(i, name);
        if (restore->list->entries[i].type == FILE_REGULAR)
            unlinkat(restore->staging_fd, name, 0);
    }
    unlinkat(restore->root_fd, restore->staging_name, AT_REMOVEDIR);
    close(restore->staging_fd);
    restore->staging_fd = -1;
}

enum shoal_status restore_commit(struct restore *restore, bool syncs, struct shoal_error *error)
{
    const struct mapping *lost = mapping_first_lost(&restore->mappings);
    if (lost) {
        char shown[300];
        return error_set(error, SHOAL_IO, EIO, "the file for \"%s\" was cut off by somebody, or the disk failed",
                         units_printable(restore->list->entries[lost->tag].path, shown, sizeof shown));
    }
    enum shoal_status status = syncs ? sync_files(restore, error) : SHOAL_OK;
    if (status == SHOAL_OK)
        status = name_files(restore, error);
    if (status == SHOAL_OK)
        status = set_directory_modes(restore, error);
    if (status == SHOAL_OK && syncs && syncfs(restore->root_fd) != 0)
        status = system_error(error, errno, "write to disk", restore->path, strlen(restore->path));
    if (status != SHOAL_OK)
        return status;
    restore->staged_count = 0; /* all have left */
    remove_staging(restore);
    return SHOAL_OK;
}

void restore_abort(struct restore *restore)
{
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
    free(restore->made);
    free(restore->path);
    *restore = (struct restore){.root_fd = -1, .staging_fd = -1};
}
