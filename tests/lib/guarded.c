/* SPDX-License-Identifier: Apache-2.0 */
#include "guarded.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY 0xa5

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool guarded_init(struct guarded *guarded, size_t len_bytes)
{
    size_t page = page_size();
    /* One page of canary at least, so that an underrun of up to a page is seen and not a fault. */
    size_t body = (len_bytes + page - 1) / page * page + page;

    memset(guarded, 0, sizeof *guarded);
    guarded->map_len = body + 2 * page;
    void *map = mmap(NULL, guarded->map_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return false;
    guarded->map = map;
    if (mprotect(guarded->map + page, body, PROT_READ | PROT_WRITE) != 0) {
        guarded_release(guarded);
        return false;
    }
    guarded->len = len_bytes;
    guarded->data = guarded->map + page + body - len_bytes;
    memset(guarded->map + page, CANARY, body - len_bytes);
    return true;
}

void guarded_release(struct guarded *guarded)
{
    if (guarded->map)
        munmap(guarded->map, guarded->map_len);
    guarded->map = NULL;
}

bool guarded_is_intact(const struct guarded *guarded)
{
    if (!guarded->map)
        return true;
    for (const uint8_t *p = guarded->map + page_size(); p < guarded->data; p++)
        if (*p != CANARY)
            return false;
    return true;
}
