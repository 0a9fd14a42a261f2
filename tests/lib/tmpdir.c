/* SPDX-License-Identifier: Apache-2.0 */
#include "tmpdir.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void give_up(const char *what, const char *path)
{
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    abort();
}

char *tmpdir_make(void)
{
    const char *base = getenv("TMPDIR");
    char *path = tmpdir_path(base && *base ? base : "/tmp", "shoal-test-XXXXXX");
    if (!mkdtemp(path))
        give_up("mkdtemp", path);
    return path;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *position)
{
    (void)info, (void)position;
    if (kind == FTW_DNR && chmod(path, S_IRWXU) != 0)
        return 0;
    remove(path);
    return 0;
}

void tmpdir_remove(char *path)
{
    if (!path)
        return;
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

char *tmpdir_path(const char *directory, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        abort();
    return path;
}
