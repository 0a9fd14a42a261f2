/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

/* Read by the signal handler: complete and sorted by address before the handler is installed. */
static struct mapping **guarded;
static size_t guarded_count;
static size_t page_bytes;

void mapping_drop(struct mapping *mapping)
{
    size_t len_bytes = mapping->len_bytes;
    mapping->len_bytes = 0; /* the handler does not find it any more */
    if (len_bytes)
        munmap(mapping->addr, len_bytes);
}

void mapping_table_release(struct mapping_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        mapping_drop(&table->items[i]);
    free(table->items);
    memset(table, 0, sizeof *table);
}

enum shoal_status mapping_add(struct mapping_table *table, int fd, uint64_t len_bytes, bool is_writable, size_t tag,
                              struct shoal_error *error)
{
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 16;
        struct mapping *items = realloc(table->items, capacity * sizeof *items);
        if (!items)
            return error_no_memory(error);
        table->items = items;
        table->capacity = capacity;
    }
    int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *addr = mmap(NULL, len_bytes, protection, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return error_set(error, errno == ENOMEM ? SHOAL_NO_MEMORY : SHOAL_IO, errno, "cannot map it into memory: %s",
                         strerror(errno));
    struct mapping *item = &table->items[table->count++];
    item->addr = addr;
    item->len_bytes = len_bytes;
    item->protection = protection;
    item->tag = tag;
    atomic_init(&item->is_lost, false);
    return SHOAL_OK;
}

static struct mapping *find(uintptr_t at)
{
    size_t low = 0, high = guarded_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uintptr_t start = (uintptr_t)guarded[middle]->addr;
        uintptr_t end = start + ((guarded[middle]->len_bytes + page_bytes - 1) & ~(page_bytes - 1));
        if (at < start)
            high = middle;
        else if (at >= end)
            low = middle + 1;
        else
            return guarded[middle];
    }
    return NULL;
}

/* Only mmap and what is above: a plain system call on Linux, so safe here. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    int saved_errno = errno;
    uintptr_t at = (uintptr_t)info->si_addr & ~(uintptr_t)(page_bytes - 1);
    struct mapping *mapping = find((uintptr_t)info->si_addr);
    /* To the end of the mapping: when a file shrank, the rest is gone as well. */
    if (!mapping || mmap((void *)at, (uintptr_t)mapping->addr + mapping->len_bytes - at, mapping->protection,
                         MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
        signal(number, SIG_DFL); /* not ours: the access is repeated and ends the process */
        return;
    }
    atomic_store(&mapping->is_lost, true);
    errno = saved_errno;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(struct mapping *const *)a)->addr, y = (uintptr_t)(*(struct mapping *const *)b)->addr;
    return (x > y) - (x < y);
}

enum shoal_status mapping_guard(struct mapping_table *table, struct shoal_error *error)
{
    guarded = calloc(table->count ? table->count : 1, sizeof(struct mapping *));
    if (!guarded)
        return error_no_memory(error);
    for (size_t i = 0; i < table->count; i++)
        guarded[i] = &table->items[i];
    guarded_count = table->count;
    qsort(guarded, guarded_count, sizeof *guarded, by_address);
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);

    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, NULL) != 0) {
        mapping_unguard();
        return error_set(error, SHOAL_INTERNAL, errno, "cannot handle SIGBUS: %s", strerror(errno));
    }
    return SHOAL_OK;
}

void mapping_unguard(void)
{
    signal(SIGBUS, SIG_DFL);
    free(guarded);
    guarded = NULL;
    guarded_count = 0;
}

const struct mapping *mapping_first_lost(const struct mapping_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        if (atomic_load(&table->items[i].is_lost))
            return &table->items[i];
    return NULL;
}
