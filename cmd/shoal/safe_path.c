/* SPDX-License-Identifier: Apache-2.0 */
#include "safe_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

size_t safe_path_parent(const char *path, size_t len, const char **name_out)
{
    const char *slash = memrchr(path, '/', len);
    *name_out = slash ? slash + 1 : path;
    return slash ? (size_t)(slash - path) : 0;
}

int safe_path_open_directory(int root_fd, const char *path, size_t len, safe_path_made_fn made, void *arg,
                             size_t *failed_len_out)
{
    int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
    *failed_len_out = 0;
    for (size_t start = 0; fd >= 0 && start < len;) {
        const char *slash = memchr(path + start, '/', len - start);
        size_t end = slash ? (size_t)(slash - path) : len;
        char name[NAME_MAX + 1];
        *failed_len_out = end;
        if (end - start > NAME_MAX) {
            close(fd);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(name, path + start, end - start);
        name[end - start] = '\0';
        /* O_DIRECTORY with O_NOFOLLOW: a link is ENOTDIR. */
        int next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), number = errno;
        if (next < 0 && number == ENOENT && made) {
            if (mkdirat(fd, name, SAFE_PATH_UNFINISHED_MODE) == 0)
                number = made(arg, path, end);
            else
                number = errno == EEXIST ? 0 : errno;
            if (number == 0) {
                next = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                number = errno;
            }
        }
        close(fd);
        fd = next;
        errno = number;
        start = end + 1;
    }
    return fd;
}
