/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/storage_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "tier/storage_io.h"

#define LOG_MODULE "tier"
#define LOCK_NAME "lock"
#define DATA_NAME "objects.data"
#define INDEX_NAME "index.db"
#define PATH_IN_MESSAGE "%.200s"
#define LOCK_ATTEMPTS 100
#define LAST_WRITES_MS 10000 /* of a process that was killed, with a slow disk */

static enum shoal_status fail(int saved, const char *directory, const char *what, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_IO;

    if (saved == EACCES || saved == EPERM || saved == EROFS)
        status = SHOAL_PERMISSION;
    else if (saved == ENOSPC || saved == EDQUOT)
        status = SHOAL_NO_SPACE;
    else if (saved == ENOTDIR || saved == ENAMETOOLONG || saved == ELOOP)
        status = SHOAL_INVALID_ARGUMENT;
    return error_set(error, status, saved, "storage_filepath " PATH_IN_MESSAGE ": %s: %s", directory, what,
                     strerror(saved));
}

static char *path_in(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

char *storage_file_index_path(const char *directory)
{
    return path_in(directory, INDEX_NAME);
}

static enum shoal_status make_directory(const char *directory, struct storage_file *file, struct shoal_error *error)
{
    struct stat info;

    if (mkdir(directory, S_IRWXU) == 0) {
        file->has_made_directory = true;
        return SHOAL_OK;
    }
    int saved = errno;
    if (saved != EEXIST && stat(directory, &info) != 0)
        return fail(saved, directory, "cannot make the directory", error);
    if (stat(directory, &info) != 0)
        return fail(errno, directory, "cannot look at the directory", error);
    if (!S_ISDIR(info.st_mode))
        return error_set(error, SHOAL_INVALID_ARGUMENT, ENOTDIR,
                         "storage_filepath " PATH_IN_MESSAGE ": is a file; a directory is needed", directory);
    return SHOAL_OK;
}

/* Whether path is the file that is open as fd. */
static bool is_open_as(const char *path, int fd)
{
    struct stat named, opened;
    return lstat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_dev == opened.st_dev &&
           named.st_ino == opened.st_ino;
}

/* flock and not fcntl: it also keeps two tiers of one process apart. The file names its owner, for the message. A
 * process that abandons its tier removes the file while it holds the lock: what was opened before and is locked after
 * that is a lock that nobody else will meet, so it has to be opened again (*is_gone_out). */
static enum shoal_status try_lock(const char *directory, const char *path, struct storage_file *file, bool *is_gone_out,
                                  struct shoal_error *error)
{
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    char owner[24] = "";
    bool is_made = true;

    int fd = open(path, flags | O_EXCL, S_IRUSR | S_IWUSR);
    if (fd < 0 && errno == EEXIST) {
        is_made = false;
        fd = open(path, flags, S_IRUSR | S_IWUSR);
    }
    *is_gone_out = fd < 0 && errno == ENOENT; /* the directory */
    if (fd < 0)
        return fail(errno, directory, "cannot open the lock file", error);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (!is_open_as(path, fd)) {
            close(fd);
            *is_gone_out = true;
            return error_set(error, SHOAL_BUSY, 0,
                             "storage_filepath " PATH_IN_MESSAGE ": others lock it and leave it again", directory);
        }
        int len = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
        /* Only for a message: a full disk is found where it matters. */
        if (ftruncate(fd, 0) != 0 || pwrite(fd, owner, (size_t)len, 0) != len)
            LOG_DEBUG("%s: cannot write the owner into the lock file: %s", directory, strerror(errno));
        file->lock_fd = fd;
        file->has_made_lock = is_made;
        return SHOAL_OK;
    }
    int saved = errno;
    if (saved == EWOULDBLOCK) {
        ssize_t len = pread(fd, owner, sizeof owner - 1, 0);
        owner[len > 0 ? len : 0] = '\0';
        owner[strspn(owner, "0123456789")] = '\0';
        close(fd);
        return error_set(error, SHOAL_BUSY, 0, "storage_filepath " PATH_IN_MESSAGE ": is in use by process %s",
                         directory, *owner ? owner : "(unknown)");
    }
    close(fd);
    return fail(saved, directory, "cannot lock", error);
}

static enum shoal_status lock_directory(const char *directory, struct storage_file *file, struct shoal_error *error)
{
    char *path = path_in(directory, LOCK_NAME);
    enum shoal_status status;
    bool is_gone;

    if (!path)
        return error_no_memory(error);
    for (int attempt = 0; attempt < LOCK_ATTEMPTS; attempt++) {
        is_gone = false;
        status = make_directory(directory, file, error);
        if (status == SHOAL_OK)
            status = try_lock(directory, path, file, &is_gone, error);
        if (!is_gone)
            break;
    }
    free(path);
    return status;
}

static bool is_direct_wanted(void)
{
    const char *choice = getenv("SHOAL_STORAGE_DIRECT");
    return !choice || strcmp(choice, "0") != 0;
}

static enum shoal_status open_data(const char *directory, struct storage_file *file, struct shoal_error *error)
{
    struct stat info;
    char *path = path_in(directory, DATA_NAME);
    enum shoal_status status = SHOAL_OK;
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;

    if (!path)
        return error_no_memory(error);
    /* By itself: where O_DIRECT does not work, an open that fails may have made the file. */
    int made = open(path, flags | O_EXCL, S_IRUSR | S_IWUSR);
    if (made >= 0) {
        file->has_made_data = true;
        close(made);
    }
    if (is_direct_wanted())
        file->fd = open(path, flags | O_DIRECT, S_IRUSR | S_IWUSR);
    file->is_direct = file->fd >= 0;
    if (!file->is_direct)
        file->fd = open(path, flags, S_IRUSR | S_IWUSR);
    if (file->fd < 0)
        status = fail(errno, directory, "cannot open the data file", error);
    else if (fstat(file->fd, &info) != 0)
        status = fail(errno, directory, "cannot look at the data file", error);
    else if (!S_ISREG(info.st_mode))
        status = error_set(error, SHOAL_IO, 0, "storage_filepath " PATH_IN_MESSAGE ": %s is not a regular file",
                           directory, DATA_NAME);
    else
        file->found_bytes = (uint64_t)info.st_size;
    free(path);
    return status;
}

/* What a killed process has given to io_uring may reach the disk after its end, when its lock file is free already. But
 * each such request holds the data file open, and with it this lock: so they cannot write over what comes next. */
static enum shoal_status lock_data(const char *directory, const struct storage_file *file, struct shoal_error *error)
{
    int64_t deadline_ms = deadline_after_ms(LAST_WRITES_MS);

    while (flock(file->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail(errno, directory, "cannot lock the data file", error);
        if (deadline_is_past(deadline_ms))
            return error_set(error, SHOAL_BUSY, 0,
                             "storage_filepath " PATH_IN_MESSAGE ": writes of a process that has ended are still under"
                             " way",
                             directory);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return SHOAL_OK;
}

/* Bytes that the file can still take, its own included. */
static enum shoal_status check_room(const char *directory, const struct storage_file *file, uint64_t capacity_bytes,
                                    struct shoal_error *error)
{
    struct statvfs disk;
    struct stat info;

    if (fstatvfs(file->fd, &disk) != 0 || fstat(file->fd, &info) != 0)
        return fail(errno, directory, "cannot look at the file system", error);
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize + (uint64_t)info.st_blocks * 512;
    if (disk.f_blocks == 0 || capacity_bytes <= room) /* some file systems do not say */
        return SHOAL_OK;
    return error_set(error, SHOAL_NO_SPACE, ENOSPC,
                     "storage_filepath " PATH_IN_MESSAGE ": the capacity is %" PRIu64 " bytes, the file system has room"
                     " for %" PRIu64,
                     directory, capacity_bytes, room);
}

static enum shoal_status grow(const char *directory, const struct storage_file *file, uint64_t capacity_bytes,
                              struct shoal_error *error)
{
    enum shoal_status status = check_room(directory, file, capacity_bytes, error);
    int rc;

    if (status != SHOAL_OK)
        return status;
    do
        rc = fallocate(file->fd, 0, 0, (off_t)capacity_bytes);
    while (rc != 0 && errno == EINTR);
    /* Without fallocate the file is sparse, and a full disk is met by a write. */
    if (rc != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        rc = file->found_bytes < capacity_bytes ? ftruncate(file->fd, (off_t)capacity_bytes) : 0;
    if (rc == 0)
        return SHOAL_OK;
    status = fail(errno, directory, "cannot reserve the capacity", error);
    /* What was reserved before the disk was full goes back. */
    if (file->found_bytes < capacity_bytes && ftruncate(file->fd, (off_t)file->found_bytes) != 0)
        LOG_WARN("%s: cannot give back what was reserved: %s", directory, strerror(errno));
    return status;
}

/* The address that direct I/O by blocks needs; 0: it does not work here. Some file systems take O_DIRECT and refuse its
 * use, some disks have larger blocks. */
static uint32_t direct_alignment(int fd)
{
    uint32_t alignment = STORAGE_BLOCK_BYTES;
    void *memory;
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN)) {
        if (info.stx_dio_mem_align == 0 || info.stx_dio_mem_align > STORAGE_BLOCK_BYTES ||
            info.stx_dio_offset_align > STORAGE_BLOCK_BYTES)
            return 0;
        alignment = info.stx_dio_mem_align;
    }
#endif
    if (posix_memalign(&memory, STORAGE_BLOCK_BYTES, STORAGE_BLOCK_BYTES) != 0)
        return 0;
    ssize_t len = pread(fd, memory, STORAGE_BLOCK_BYTES, 0);
    free(memory);
    return len == (ssize_t)STORAGE_BLOCK_BYTES ? alignment : 0;
}

/* The file has its length by now, so there is something to read. */
static enum shoal_status choose_way(const char *directory, struct storage_file *file, struct shoal_error *error)
{
    file->memory_alignment = file->is_direct ? direct_alignment(file->fd) : 0;
    if (file->memory_alignment)
        return SHOAL_OK;
    file->memory_alignment = 1;
    file->is_direct = false;
    /* The same open file, which holds the lock. */
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || ((flags & O_DIRECT) && fcntl(file->fd, F_SETFL, flags & ~O_DIRECT) != 0))
        return fail(errno, directory, "cannot leave direct I/O", error);
    return SHOAL_OK;
}

enum shoal_status storage_file_open(const char *directory, uint64_t capacity_bytes, struct storage_file *file_out,
                                    struct shoal_error *error)
{
    struct storage_file file = {.lock_fd = -1, .fd = -1};
    char *index = storage_file_index_path(directory);
    enum shoal_status status = index ? lock_directory(directory, &file, error) : error_no_memory(error);

    if (status == SHOAL_OK) {
        file.has_made_index = access(index, F_OK) != 0 && errno == ENOENT;
        status = open_data(directory, &file, error);
    }
    if (status == SHOAL_OK)
        status = lock_data(directory, &file, error);
    if (status == SHOAL_OK)
        status = grow(directory, &file, capacity_bytes, error);
    if (status == SHOAL_OK)
        status = choose_way(directory, &file, error);
    if (status == SHOAL_OK)
        *file_out = file;
    else
        storage_file_abandon(&file, directory);
    free(index);
    return status;
}

void storage_file_close(struct storage_file *file)
{
    int fds[] = {file->fd, file->lock_fd};

    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] < 0)
            continue;
        flock(fds[i], LOCK_UN); /* a child forked meanwhile shares the lock */
        close(fds[i]);
    }
    file->fd = file->lock_fd = -1;
}

/* fd: what path must be, -1 for anything. */
static void remove_made(const char *directory, const char *name, int fd)
{
    char *path = path_in(directory, name);

    if (path && (fd < 0 || is_open_as(path, fd)) && unlink(path) != 0 && errno != ENOENT)
        LOG_WARN("%s: cannot remove what was made for a tier that did not come about: %s", path, strerror(errno));
    free(path);
}

/* Everything under the lock; the lock file comes last, and then the directory, if nobody has come meanwhile. */
void storage_file_abandon(struct storage_file *file, const char *directory)
{
    if (file->lock_fd >= 0) {
        static const char *const index_files[] = {INDEX_NAME "-wal", INDEX_NAME "-shm", INDEX_NAME};
        for (size_t i = 0; i < sizeof index_files / sizeof *index_files && file->has_made_index; i++)
            remove_made(directory, index_files[i], -1);
        if (file->has_made_data && file->fd >= 0)
            remove_made(directory, DATA_NAME, file->fd);
        if (file->has_made_lock)
            remove_made(directory, LOCK_NAME, file->lock_fd);
    }
    if (file->has_made_directory)
        (void)rmdir(directory); /* fails if somebody has put something there, and shall */
    file->has_made_directory = file->has_made_lock = file->has_made_data = file->has_made_index = false;
    storage_file_close(file);
}

void storage_file_trim(const struct storage_file *file, uint64_t capacity_bytes)
{
    if (file->found_bytes > capacity_bytes && ftruncate(file->fd, (off_t)capacity_bytes) != 0)
        LOG_WARN("cannot shorten the data file: %s", strerror(errno));
}
