/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "base/error.h"
#include "restore.h"

/* The directories from an argument down to where we are, to see a loop of links. */
struct ancestor {
    const struct ancestor *parent;
    dev_t device;
    ino_t inode;
    unsigned depth;
};

static enum shoal_status visit(struct scan *scan, int parent_fd, const char *entry_name, const char *disk_path,
                               const char *name, const struct ancestor *parent, struct shoal_error *error);

void scan_init(struct scan *scan, bool follows_links)
{
    memset(scan, 0, sizeof *scan);
    scan->follows_links = follows_links;
    filelist_init(&scan->list);
}

void scan_release(struct scan *scan)
{
    mapping_table_release(&scan->mappings);
    for (size_t i = 0; i < scan->count; i++)
        free(scan->files[i].path);
    free(scan->files);
    free(scan->regions);
    filelist_release(&scan->list);
    memset(scan, 0, sizeof *scan);
}

static enum shoal_status file_error(struct shoal_error *error, const char *tried, const char *path)
{
    int number = errno;
    enum shoal_status status = number == ENOENT                       ? SHOAL_NOT_FOUND
                               : number == EACCES || number == EPERM  ? SHOAL_PERMISSION
                               : number == EMFILE || number == ENFILE ? SHOAL_LIMIT
                               : number == ENOMEM                     ? SHOAL_NO_MEMORY
                                                                      : SHOAL_IO;
    return error_set(error, status, number, "cannot %s %s: %s", tried, path, strerror(number));
}

static const char *kind_name(mode_t mode)
{
    return S_ISFIFO(mode)   ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISLNK(mode)  ? "a symbolic link"
                            : "no regular file";
}

static enum shoal_status remember_file(struct scan *scan, const char *path, const struct stat *info,
                                       struct shoal_error *error)
{
    if (scan->count == scan->capacity) {
        size_t capacity = scan->capacity ? 2 * scan->capacity : 64;
        struct scanned_file *files = realloc(scan->files, capacity * sizeof *files);
        if (!files)
            return error_no_memory(error);
        scan->files = files;
        scan->capacity = capacity;
    }
    char *copy = strdup(path);
    if (!copy)
        return error_no_memory(error);
    scan->files[scan->count++] = (struct scanned_file){.path = copy, .info = *info};
    return SHOAL_OK;
}

static enum shoal_status visit_file(struct scan *scan, int fd, const struct stat *info, const char *path,
                                    const char *name, struct shoal_error *error)
{
    enum shoal_status status = filelist_add(&scan->list, name, FILE_REGULAR, info->st_mode & 0777,
                                            (uint64_t)info->st_size, scan->count, error);
    if (status == SHOAL_OK)
        status = remember_file(scan, path, info, error);
    if (status != SHOAL_OK || info->st_size == 0)
        return status;
    status = runtime_check_map_count(scan->mappings.count + 1, error);
    if (status == SHOAL_OK) {
        status = mapping_add(&scan->mappings, fd, (uint64_t)info->st_size, false, scan->count - 1, error);
        if (status != SHOAL_OK)
            error_prefix(error, "%s", path);
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted, so that errors are the same on every run. Takes fd. */
static enum shoal_status read_names(int fd, const char *path, char ***names_out, size_t *count_out,
                                    struct shoal_error *error)
{
    char **names = NULL;
    size_t count = 0, capacity = 0;
    enum shoal_status status = SHOAL_OK;
    DIR *directory = fdopendir(fd);
    if (!directory) {
        status = file_error(error, "read directory", path);
        close(fd);
        return status;
    }
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (!entry) {
            if (errno)
                status = file_error(error, "read directory", path);
            break;
        }
        /* What an interrupted get left is no part of the data. */
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strncmp(entry->d_name, STAGING_PREFIX, strlen(STAGING_PREFIX)) == 0)
            continue;
        if (count == capacity) {
            size_t larger = capacity ? 2 * capacity : 64;
            char **grown = realloc(names, larger * sizeof *names);
            if (!grown) {
                status = error_no_memory(error);
                break;
            }
            names = grown;
            capacity = larger;
        }
        if (!(names[count] = strdup(entry->d_name))) {
            status = error_no_memory(error);
            break;
        }
        count++;
    }
    closedir(directory);
    if (count)
        qsort(names, count, sizeof *names, by_name);
    *names_out = names;
    *count_out = count;
    return status;
}

/* Takes fd. */
static enum shoal_status visit_directory(struct scan *scan, int fd, const struct stat *info, const char *path,
                                         const char *name, const struct ancestor *parent, struct shoal_error *error)
{
    struct ancestor here = {parent, info->st_dev, info->st_ino, parent ? parent->depth + 1 : 1};
    char **names = NULL, *child_path = NULL, *child_name = NULL;
    size_t count = 0;
    enum shoal_status status = SHOAL_OK;
    int reading_fd = -1;
    for (const struct ancestor *a = parent; a; a = a->parent) {
        if (a->device == here.device && a->inode == here.inode) {
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s leads back to a directory that it is in", path);
            goto out;
        }
    }
    if (here.depth > FILELIST_MAX_DEPTH) {
        status = error_set(error, SHOAL_LIMIT, 0, "%s is more than %d directories deep", path, FILELIST_MAX_DEPTH);
        goto out;
    }
    status = filelist_add(&scan->list, name, FILE_DIRECTORY, info->st_mode & 0777, 0, 0, error);
    if (status != SHOAL_OK)
        goto out;
    reading_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (reading_fd < 0) {
        status = file_error(error, "read directory", path);
        goto out;
    }
    status = read_names(reading_fd, path, &names, &count, error);
    for (size_t i = 0; i < count && status == SHOAL_OK; i++) {
        if (asprintf(&child_path, "%s/%s", path, names[i]) < 0)
            child_path = NULL;
        if (asprintf(&child_name, "%s/%s", name, names[i]) < 0)
            child_name = NULL;
        if (child_path && child_name)
            status = visit(scan, fd, names[i], child_path, child_name, &here, error);
        else
            status = error_no_memory(error);
        free(child_path);
        free(child_name);
    }
out:
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    close(fd);
    return status;
}

/* entry_name relative to parent_fd is what disk_path names for people; name is what it is called in the payload. */
static enum shoal_status visit(struct scan *scan, int parent_fd, const char *entry_name, const char *disk_path,
                               const char *name, const struct ancestor *parent, struct shoal_error *error)
{
    /* A link that the user named himself is followed; one that lies in a directory only if asked. */
    bool follows = scan->follows_links || !parent;
    struct stat info;
    if (fstatat(parent_fd, entry_name, &info, follows ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
        struct stat link;
        if (errno == ENOENT && fstatat(parent_fd, entry_name, &link, AT_SYMLINK_NOFOLLOW) == 0)
            return error_set(error, SHOAL_NOT_FOUND, ENOENT, "%s is a symbolic link to nothing", disk_path);
        return file_error(error, "open", disk_path);
    }
    if (S_ISLNK(info.st_mode))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "%s is a symbolic link: with --follow what it points to is seeded", disk_path);
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s is %s: only regular files and directories can be seeded",
                         disk_path, kind_name(info.st_mode));
    int fd = openat(parent_fd, entry_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (follows ? 0 : O_NOFOLLOW));
    if (fd < 0)
        return file_error(error, "open", disk_path);
    enum shoal_status status;
    if (fstat(fd, &info) != 0)
        status = file_error(error, "look at", disk_path);
    else if (S_ISDIR(info.st_mode))
        return visit_directory(scan, fd, &info, disk_path, name, parent, error);
    else if (S_ISREG(info.st_mode))
        status = visit_file(scan, fd, &info, disk_path, name, error);
    else
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s is %s now", disk_path, kind_name(info.st_mode));
    close(fd);
    return status;
}

/* The last component; of "." and the like that of the real path. */
static enum shoal_status base_name(const char *path, char **name_out, struct shoal_error *error)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && path[start - 1] != '/')
        start--;
    bool is_dots = (len - start == 1 && path[start] == '.') || (len - start == 2 && !strncmp(path + start, "..", 2));
    char *name;
    if (is_dots || (len == 1 && path[0] == '/')) {
        char *real = realpath(path, NULL);
        if (!real)
            return file_error(error, "open", path);
        name = strdup(strrchr(real, '/') + 1);
        free(real);
    } else {
        name = strndup(path + start, len - start);
    }
    if (!name)
        return error_no_memory(error);
    if (!*name) {
        free(name);
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s has no name of its own: give what is in it", path);
    }
    *name_out = name;
    return SHOAL_OK;
}

static enum shoal_status make_regions(struct scan *scan, struct shoal_error *error)
{
    static char nothing;
    scan->region_count = scan->list.region_count ? scan->list.region_count : 1;
    scan->regions = calloc(scan->region_count, sizeof *scan->regions);
    struct mapping **by_file = calloc(scan->count ? scan->count : 1, sizeof *by_file);
    if (!scan->regions || !by_file) {
        free(by_file);
        return error_no_memory(error);
    }
    for (size_t i = 0; i < scan->mappings.count; i++)
        by_file[scan->mappings.items[i].tag] = &scan->mappings.items[i];
    scan->regions[0] = (struct shoal_region){&nothing, 0};
    size_t region = 0;
    for (size_t i = 0; i < scan->list.count; i++) {
        const struct file_entry *entry = &scan->list.entries[i];
        if (entry->size_bytes > 0)
            scan->regions[region++] = (struct shoal_region){by_file[entry->tag]->addr, by_file[entry->tag]->len_bytes};
    }
    free(by_file);
    return SHOAL_OK;
}

enum shoal_status scan_paths(struct scan *scan, char *const *paths, size_t count, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < count && status == SHOAL_OK; i++) {
        char *name = NULL, *path = strdup(paths[i]);
        if (!path)
            return error_no_memory(error);
        size_t len = strlen(path);
        if (len == 0)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "an empty PATH");
        else
            status = base_name(path, &name, error);
        if (status == SHOAL_OK) {
            /* The disk path without trailing slashes reads better; opening keeps them: they mean "a directory". */
            while (len > 1 && path[len - 1] == '/')
                path[--len] = '\0';
            status = visit(scan, AT_FDCWD, paths[i], path, name, NULL, error);
        }
        free(name);
        free(path);
    }
    if (status == SHOAL_OK)
        status = filelist_sort(&scan->list, error);
    if (status == SHOAL_OK && scan->list.file_count == 0)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "there is no file in it");
    return status == SHOAL_OK ? make_regions(scan, error) : status;
}

/* NULL: as it was. */
static const char *change_of(const struct scanned_file *file)
{
    struct stat now;
    if (stat(file->path, &now) != 0)
        return "cannot be found any more";
    if (now.st_dev != file->info.st_dev || now.st_ino != file->info.st_ino)
        return "was replaced";
    if (now.st_size < file->info.st_size)
        return "has shrunk";
    if (now.st_size != file->info.st_size || now.st_mtim.tv_sec != file->info.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != file->info.st_mtim.tv_nsec)
        return "was changed";
    return NULL;
}

enum shoal_status scan_check_all(struct scan *scan, struct shoal_error *error)
{
    const struct mapping *lost = mapping_first_lost(&scan->mappings);
    if (lost)
        return error_set(error, SHOAL_IO, EIO, "%s has shrunk, or could not be read, while it was read",
                         scan->files[lost->tag].path);
    for (size_t i = 0; i < scan->count; i++) {
        const char *change = change_of(&scan->files[i]);
        if (change)
            return error_set(error, SHOAL_IO, 0, "%s %s while it was read", scan->files[i].path, change);
    }
    return SHOAL_OK;
}

void scan_check_some(struct scan *scan, size_t max, void (*fn)(void *arg, const char *path, const char *what),
                     void *arg)
{
    for (size_t i = 0; i < max && i < scan->count; i++) {
        struct scanned_file *file = &scan->files[scan->next_check];
        scan->next_check = (scan->next_check + 1) % scan->count;
        const char *change = file->is_reported ? NULL : change_of(file);
        if (change) {
            file->is_reported = true;
            fn(arg, file->path, change);
        }
    }
}
