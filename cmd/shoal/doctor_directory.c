/* SPDX-License-Identifier: Apache-2.0 */
/* The directory that payloads go to: space, and how fast it is written and read. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "doctor.h"
#include "units.h"

#define ADVISED_FREE_BYTES (UINT64_C(1) << 30)
#define SLOW_BYTES_PER_S 100e6 /* less than a network of 1 Gbit/s brings */
#define BLOCK_BYTES ((size_t)4 << 20)
#define PART_OF_FREE 4 /* of the free space, at most this part is written */
#define TIME_LIMIT_MS 10000
#define TELLING_NS 500000000

/* A file that has no name: it is gone whatever ends this process. */
static int open_nameless(const char *directory, struct shoal_error *error)
{
    char path[4096];
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        if (fd < 0)
            error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
        return fd;
    }
    if (snprintf(path, sizeof path, "%s/.shoal-doctor-XXXXXX", directory) >= (int)sizeof path) {
        error_set(error, SHOAL_IO, ENAMETOOLONG, "%s", strerror(ENAMETOOLONG));
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        error_set(error, SHOAL_IO, errno, "%s", strerror(errno));
    else if (unlink(path) != 0)
        error_set(error, SHOAL_IO, errno, "%s stays: %s", path, strerror(errno));
    return fd;
}

/* Blocks of the file, one after the other, until size bytes, the time limit or a signal. Bytes done; -1: errno. */
static int64_t pass(int fd, unsigned char *block, uint64_t size, bool is_write)
{
    int64_t done = 0, deadline_ms = deadline_after_ms(TIME_LIMIT_MS);
    while ((uint64_t)done < size && !deadline_is_past(deadline_ms) && !signals_received()) {
        ssize_t count =
            is_write ? pwrite(fd, block, BLOCK_BYTES, (off_t)done) : pread(fd, block, BLOCK_BYTES, (off_t)done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        done += count;
    }
    return done;
}

struct speeds {
    double write_bytes_per_s, read_bytes_per_s;
    uint64_t bytes;
    bool is_telling; /* it took long enough to judge by */
    bool is_direct;  /* past the page cache */
};

static enum shoal_status measure(int fd, uint64_t size, struct speeds *speeds, struct shoal_error *error)
{
    int64_t start_ns, done, flags = fcntl(fd, F_GETFL);
    enum shoal_status status = SHOAL_OK;
    unsigned char *block = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return error_no_memory(error);
    for (size_t i = 0; i < BLOCK_BYTES; i++) /* nothing that a file system compresses away */
        block[i] = (unsigned char)((i * 2654435761u) >> 13);
    speeds->is_direct = flags >= 0 && fcntl(fd, F_SETFL, (int)flags | O_DIRECT) == 0;
    start_ns = clock_now_ns();
    done = pass(fd, block, size, true);
    if (done < 0 && errno == EINVAL && speeds->is_direct) { /* some accept the flag and refuse the writes */
        speeds->is_direct = fcntl(fd, F_SETFL, (int)flags) != 0;
        start_ns = clock_now_ns();
        done = pass(fd, block, size, true);
    }
    if (done < 0 || fdatasync(fd) != 0) {
        status = error_set(error, errno == ENOSPC || errno == EDQUOT ? SHOAL_NO_SPACE : SHOAL_IO, errno,
                           "writing fails: %s", strerror(errno));
        goto out;
    }
    speeds->bytes = (uint64_t)done;
    speeds->is_telling = clock_now_ns() - start_ns >= TELLING_NS;
    speeds->write_bytes_per_s = (double)done * 1e9 / (double)(clock_now_ns() - start_ns + 1);
    if (!speeds->is_direct)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    start_ns = clock_now_ns();
    done = pass(fd, block, (uint64_t)done, false);
    if (done < 0) {
        status = error_set(error, SHOAL_IO, errno, "reading fails: %s", strerror(errno));
        goto out;
    }
    speeds->read_bytes_per_s = (double)done * 1e9 / (double)(clock_now_ns() - start_ns + 1);
out:
    munmap(block, BLOCK_BYTES);
    return status;
}

static void check_speed(struct doctor *doctor, const char *directory, uint64_t free_bytes)
{
    struct speeds speeds = {0};
    struct shoal_error error;
    char written[UNITS_TEXT_BYTES], write_rate[UNITS_TEXT_BYTES], read_rate[UNITS_TEXT_BYTES];
    uint64_t size = doctor->app->settings.probe_bytes;
    if (size > free_bytes / PART_OF_FREE)
        size = free_bytes / PART_OF_FREE;
    size -= size % BLOCK_BYTES;
    if (size == 0) {
        doctor_tell(doctor, DOCTOR_SKIP, "disk speed", NULL,
                    "too little space or too small a --size: at least %s of a "
                    "quarter of what is free are written",
                    units_format_size(BLOCK_BYTES, written));
        return;
    }
    int fd = open_nameless(directory, &error);
    if (fd < 0) {
        doctor_tell(doctor, DOCTOR_FAIL, "disk speed", "see who may write there, and whether it is mounted read-only",
                    "%s: a file cannot be made: %s", directory, error.message);
        return;
    }
    if (measure(fd, size, &speeds, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "disk speed", "see the kernel's log (dmesg), the disk and the quota", "%s: %s",
                    directory, error.message);
    } else if (speeds.bytes == 0) {
        doctor_tell(doctor, DOCTOR_SKIP, "disk speed", NULL, "interrupted");
    } else {
        bool is_slow = speeds.is_telling && speeds.write_bytes_per_s < SLOW_BYTES_PER_S;
        doctor_tell(doctor, is_slow ? DOCTOR_WARN : DOCTOR_OK, "disk speed",
                    is_slow ? "a get is no faster than its disk: give a directory on a faster one" : NULL,
                    "%s%s: writes %s, reads %s (%s, %s)", directory, is_slow ? " is slow" : "",
                    units_format_rate(speeds.write_bytes_per_s, write_rate),
                    units_format_rate(speeds.read_bytes_per_s, read_rate), units_format_size(speeds.bytes, written),
                    speeds.is_direct ? "past the page cache" : "reading may have come from the page cache");
        doctor_add(doctor, "write_bytes_per_s", json_integer((json_int_t)speeds.write_bytes_per_s));
        doctor_add(doctor, "read_bytes_per_s", json_integer((json_int_t)speeds.read_bytes_per_s));
    }
    close(fd);
}

void doctor_check_directory(struct doctor *doctor)
{
    const char *given = doctor->app->settings.dir, *path = given ? given : ".";
    struct statvfs info;
    char text[UNITS_TEXT_BYTES];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &info) != 0) {
        doctor_tell(doctor, DOCTOR_FAIL, "directory", "make it, or give another with --dir", "%s: %s", path,
                    strerror(errno));
    } else if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0) {
        doctor_tell(doctor, DOCTOR_FAIL, "directory", "change its owner or mode, or give another with --dir", "%s: %s",
                    path, strerror(errno));
    } else {
        uint64_t bytes = (uint64_t)(geteuid() == 0 ? info.f_bfree : info.f_bavail) * info.f_frsize;
        bool is_little = bytes < ADVISED_FREE_BYTES;
        doctor_tell(doctor, is_little ? DOCTOR_WARN : DOCTOR_OK, "directory",
                    is_little ? "free some space, or give another directory with --dir" : NULL, "%s: %s free", path,
                    units_format_size(bytes, text));
        doctor_add(doctor, "free_bytes", json_integer((json_int_t)bytes));
        if (given)
            check_speed(doctor, path, bytes);
        else
            doctor_tell(doctor, DOCTOR_SKIP, "disk speed", NULL, "is measured in the directory of --dir");
    }
    if (fd >= 0)
        close(fd);
}
