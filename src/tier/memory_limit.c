/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/memory_limit.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The number in the file; "max", no file and no number are no limit. */
static uint64_t read_limit(const char *path)
{
    char text[64] = "", *end;
    FILE *file = fopen(path, "re");
    unsigned long long value;

    if (!file)
        return UINT64_MAX;
    if (!fgets(text, sizeof text, file))
        text[0] = '\0';
    fclose(file);
    if (text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    errno = 0;
    value = strtoull(text, &end, 10);
    return errno ? UINT64_MAX : value;
}

/* Of the group and of all above it. A container sees its own group as the root, and may not see the path at all. */
static uint64_t limit_upwards(const char *directory, char *group, const char *name)
{
    uint64_t least = UINT64_MAX;

    for (;;) {
        char path[PATH_MAX];
        char *slash;
        if (snprintf(path, sizeof path, "%s%s/%s", directory, group, name) < (int)sizeof path) {
            uint64_t limit = read_limit(path);
            least = limit < least ? limit : least;
        }
        slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static bool has_controller(const char *controllers, const char *name)
{
    size_t len = strlen(name);

    while (*controllers) {
        size_t next = strcspn(controllers, ",");
        if (next == len && memcmp(controllers, name, len) == 0)
            return true;
        controllers += next + (controllers[next] == ',');
    }
    return false;
}

uint64_t memory_limit_of_groups(const char *file, const char *root)
{
    FILE *lines = fopen(file, "re");
    char *line = NULL, directory[PATH_MAX];
    size_t capacity = 0;
    uint64_t least = UINT64_MAX;

    if (!lines)
        return UINT64_MAX;
    /* "0::/group" is version 2, "N:controller,controller:/group" version 1. */
    while (getline(&line, &capacity, lines) > 0) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t limit = UINT64_MAX;

        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (controllers[1] == '\0')
            limit = limit_upwards(root, group, "memory.max");
        else if (has_controller(controllers + 1, "memory") &&
                 snprintf(directory, sizeof directory, "%s/memory", root) < (int)sizeof directory)
            limit = limit_upwards(directory, group, "memory.limit_in_bytes");
        least = limit < least ? limit : least;
    }
    free(line);
    fclose(lines);
    return least;
}

uint64_t memory_limit_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
    uint64_t groups = memory_limit_of_groups("/proc/self/cgroup", "/sys/fs/cgroup");

    return groups < machine ? groups : machine;
}
