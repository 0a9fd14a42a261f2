/* SPDX-License-Identifier: Apache-2.0 */
#include "staging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/random.h"

#define ID_CHARS 16u /* of the payload's name and of the random part, in hex */
#define PREFIX_BYTES 32
#define NAME_LEN (sizeof STAGING_PREFIX - 1 + ID_CHARS + 1 + ID_CHARS)

_Static_assert(NAME_LEN < STAGING_NAME_BYTES, "a name fits");

/* STAGING_PREFIX, the payload's digest, '-'. */
static void prefix_of(const char *payload, char prefix_out[PREFIX_BYTES])
{
    struct digest digest = digest_of(payload, strlen(payload));
    char hex[DIGEST_HEX_BYTES];
    digest_to_hex(&digest, hex);
    snprintf(prefix_out, PREFIX_BYTES, "%s%.*s-", STAGING_PREFIX, (int)ID_CHARS, hex);
}

void staging_file_name(const char *path, char name_out[STAGING_FILE_NAME_BYTES])
{
    struct digest digest = digest_of(path, strlen(path));
    _Static_assert(STAGING_FILE_NAME_BYTES == DIGEST_HEX_BYTES, "the name is the digest");
    digest_to_hex(&digest, name_out);
}

static bool is_own(const struct stat *info)
{
    return S_ISREG(info->st_mode) && info->st_nlink == 1 && info->st_uid == geteuid();
}

bool staging_is_own_file(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && is_own(&info);
}

static DIR *open_list(int fd)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = copy >= 0 ? fdopendir(copy) : NULL;
    if (!directory && copy >= 0)
        close(copy);
    return directory;
}

void staging_remove(int root_fd, const char *name, int fd)
{
    DIR *directory = open_list(fd);
    if (directory) {
        for (const struct dirent *entry; (entry = readdir(directory));) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            if (unlinkat(fd, entry->d_name, 0) != 0)
                unlinkat(fd, entry->d_name, AT_REMOVEDIR); /* somebody else's: if it is empty */
        }
        closedir(directory);
    }
    unlinkat(root_fd, name, AT_REMOVEDIR);
    close(fd);
}

enum shoal_status staging_make(int root_fd, const char *path, const char *payload, char name_out[STAGING_NAME_BYTES],
                               int *fd_out, struct shoal_error *error)
{
    char prefix[PREFIX_BYTES];
    prefix_of(payload, prefix);
    for (int attempt = 0; attempt < 100; attempt++) {
        struct stat info;
        char name[STAGING_NAME_BYTES];
        snprintf(name, sizeof name, "%s%016" PRIx64, prefix, random_id());
        if (mkdirat(root_fd, name, 0700) != 0) {
            if (errno == EEXIST)
                continue;
            return error_set(error,
                             errno == EACCES || errno == EPERM || errno == EROFS ? SHOAL_PERMISSION
                             : errno == ENOSPC || errno == EDQUOT                ? SHOAL_NO_SPACE
                                                                                 : SHOAL_IO,
                             errno, "cannot write to \"%s\": %s", path, strerror(errno));
        }
        int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        /* Somebody who sweeps may have been faster than our lock: then it is gone, or will be. */
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0) {
            memcpy(name_out, name, sizeof name);
            *fd_out = fd;
            return SHOAL_OK;
        }
        if (fd >= 0)
            close(fd);
        unlinkat(root_fd, name, AT_REMOVEDIR);
    }
    return error_set(error, SHOAL_BUSY, 0, "cannot make a directory of our own in \"%s\"", path);
}

/* Opens and locks what a process of this user left; -1: it lives, or is not ours. */
static int lock_left(int root_fd, const char *name)
{
    struct stat info;
    int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if ((info.st_mode & 07777) != 0700 && fchmod(fd, 0700) != 0)
            errno = 0; /* then its files cannot be moved, and are not */
        return fd;
    }
    close(fd);
    return -1;
}

static bool is_well_formed(const char *name)
{
    const char *id = name + strlen(STAGING_PREFIX);
    return strspn(id, "0123456789abcdef") == ID_CHARS && id[ID_CHARS] == '-' &&
           strspn(id + ID_CHARS + 1, "0123456789abcdef") == ID_CHARS && id[2 * ID_CHARS + 1] == '\0';
}

static uint64_t count_blocks(int fd)
{
    DIR *directory = open_list(fd);
    uint64_t blocks = 0;
    if (!directory)
        return 0;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        struct stat info;
        if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && is_own(&info))
            blocks += (uint64_t)info.st_blocks;
    }
    closedir(directory);
    return blocks;
}

/* Takes fd. */
static void add_left(struct staging_left *left, int root_fd, const char *name, int fd)
{
    uint64_t blocks = count_blocks(fd);
    size_t at = left->count;
    if (at == STAGING_LEFT_MAX) {
        at = 0;
        for (size_t i = 1; i < left->count; i++)
            if (left->items[i].blocks < left->items[at].blocks)
                at = i;
        if (blocks <= left->items[at].blocks) {
            staging_remove(root_fd, name, fd);
            return;
        }
        staging_remove(root_fd, left->items[at].name, left->items[at].fd);
    } else {
        left->count++;
    }
    left->items[at].fd = fd;
    left->items[at].blocks = blocks;
    memcpy(left->items[at].name, name, NAME_LEN + 1);
}

void staging_find_left(int root_fd, const char *payload, struct staging_left *left_out)
{
    char prefix[PREFIX_BYTES];
    DIR *directory = open_list(root_fd);
    left_out->count = 0;
    if (!directory)
        return;
    prefix_of(payload, prefix);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name;
        bool is_readable, is_wanted;
        if (strncmp(name, STAGING_PREFIX, strlen(STAGING_PREFIX)) != 0)
            continue;
        is_readable = is_well_formed(name);
        is_wanted = is_readable && strncmp(name, prefix, strlen(prefix)) == 0;
        if (is_readable && !is_wanted)
            continue;
        int fd = lock_left(root_fd, name);
        if (fd < 0)
            continue;
        if (is_wanted)
            add_left(left_out, root_fd, name, fd);
        else
            staging_remove(root_fd, name, fd);
    }
    closedir(directory);
}

static bool is_better(const struct stat *a, const struct stat *b)
{
    return a->st_blocks != b->st_blocks ? a->st_blocks > b->st_blocks : a->st_mtime > b->st_mtime;
}

bool staging_adopt(struct staging_left *left, int staging_fd, const char *name)
{
    struct stat info, best_info = {0};
    int best = -1;
    for (size_t i = 0; i < left->count; i++) {
        int fd = left->items[i].fd;
        if (fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !is_own(&info) || info.st_size == 0)
            continue;
        if (best < 0 || is_better(&info, &best_info)) {
            best = fd;
            best_info = info;
        }
    }
    /* Never over a file that is there: nobody else writes to our directory, so two paths would have one name. */
    return best >= 0 && fstatat(staging_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT &&
           renameat(best, name, staging_fd, name) == 0;
}

void staging_remove_left(int root_fd, struct staging_left *left)
{
    for (size_t i = 0; i < left->count; i++)
        staging_remove(root_fd, left->items[i].name, left->items[i].fd);
    left->count = 0;
}

void staging_sweep(int root_fd)
{
    DIR *directory = open_list(root_fd);
    if (!directory)
        return;
    for (const struct dirent *entry; (entry = readdir(directory));) {
        if (strncmp(entry->d_name, STAGING_PREFIX, strlen(STAGING_PREFIX)) != 0)
            continue;
        int fd = lock_left(root_fd, entry->d_name);
        if (fd >= 0)
            staging_remove(root_fd, entry->d_name, fd);
    }
    closedir(directory);
}
