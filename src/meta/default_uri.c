/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/default_uri.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* Ours alone: nobody else could have put a database there for us to trust. */
static enum shoal_status check_directory(const char *path, struct shoal_error *error)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_set(error, SHOAL_IO, errno, "cannot make %s for the metadata: %s", path, strerror(errno));
    if (lstat(path, &info) != 0)
        return error_set(error, SHOAL_IO, errno, "cannot look at %s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid())
        return error_set(error, SHOAL_PERMISSION, 0, "%s is not a directory of user %u", path, (unsigned)geteuid());
    if (info.st_mode & 0022)
        return error_set(error, SHOAL_PERMISSION, 0, "others may write to %s (chmod 700 it)", path);
    return SHOAL_OK;
}

enum shoal_status meta_default_uri(char **uri_out, struct shoal_error *error)
{
    char directory[PATH_MAX], parent[64];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat info;
    int len;
    snprintf(parent, sizeof parent, "/run/user/%u", (unsigned)geteuid());
    if (runtime && *runtime == '/')
        len = snprintf(directory, sizeof directory, "%s/shoal", runtime);
    else if (stat(parent, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid())
        len = snprintf(directory, sizeof directory, "%s/shoal", parent);
    else
        len = snprintf(directory, sizeof directory, "/tmp/shoal-%u", (unsigned)geteuid());
    if (len < 0 || (size_t)len >= sizeof directory)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "XDG_RUNTIME_DIR is too long");
    enum shoal_status status = check_directory(directory, error);
    if (status != SHOAL_OK)
        return status;
    if (asprintf(uri_out, "sqlite:%s/metadata.db", directory) < 0) {
        *uri_out = NULL;
        return error_no_memory(error);
    }
    return SHOAL_OK;
}
