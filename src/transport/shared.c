/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/list.h"
#include "base/mutex.h"

#define HUGE_PAGE_BYTES (2ull << 20)
#define INITIAL_PID_NAMESPACE 0xEFFFFFFCu /* its inode in /proc, PROC_PID_INIT_INO of the kernel */
/* Peers get a descriptor that is open for writing; this is what makes it useless for that. */
#define SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct shared_memory {
    struct list_node node;
    uint64_t addr, len, id;
    int fd; /* -1: ordinary memory */
};

struct shared_table {
    struct mutex mutex;
    struct cond changed;
    struct list memories; /* few: one for each tier and arena */
    uint64_t next_id;
    void (*listener)(void *arg, uint64_t id);
    void *listener_arg;
    unsigned telling; /* calls of the listener */
    bool has_files;
};

/* Ordinary memory is faster to fill (huge pages, cheaper faults) and another process can usually read it as it is.
 * Files are for where the kernel is likely to say no: a system call filter, a ptrace scope, a PID namespace of our own.
 */
static bool wants_files(void)
{
    const char *setting = getenv("SHOAL_LOCAL_CMA");
    uint64_t from = 1, to = 0;
    struct iovec here = {&to, sizeof to}, there = {&from, sizeof from};
    struct stat info;
    FILE *file;
    int scope = 0;

    if (setting && strcmp(setting, "0") == 0)
        return true;
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)sizeof to)
        return true;
    if (stat("/proc/self/ns/pid", &info) != 0 || info.st_ino != INITIAL_PID_NAMESPACE)
        return true;
    file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file) {
        scope = fgetc(file);
        fclose(file);
    }
    return scope > '0';
}

enum shoal_status shared_table_create(struct shared_table **out, struct shoal_error *error)
{
    struct shared_table *table = calloc(1, sizeof *table);

    if (!table)
        return error_no_memory(error);
    mutex_init(&table->mutex, RANK_TRANSPORT);
    cond_init(&table->changed);
    list_init(&table->memories);
    table->next_id = 1;
    table->has_files = wants_files();
    *out = table;
    return SHOAL_OK;
}

void shared_table_destroy(struct shared_table *table)
{
    struct list_node *node;

    if (!table)
        return;
    while ((node = list_first(&table->memories)))
        shared_free(table, (void *)(uintptr_t)container_of(node, struct shared_memory, node)->addr);
    cond_release(&table->changed);
    mutex_release(&table->mutex);
    free(table);
}

/* -1: not here. */
static int file_make(uint64_t len, unsigned flags)
{
    int fd = memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

    if (fd >= 0 && ftruncate(fd, (off_t)len) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool map_file(const struct shared_table *table, struct shared_memory *memory, uint64_t len, unsigned flags)
{
    int fd = table->has_files ? file_make(len, flags) : -1;
    void *addr = fd >= 0 ? mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (addr != MAP_FAILED && fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        memory->addr = (uint64_t)(uintptr_t)addr;
        memory->len = len;
        memory->fd = fd;
        return true;
    }
    if (addr != MAP_FAILED)
        munmap(addr, len);
    if (fd >= 0)
        close(fd);
    return false;
}

static bool map_ordinary(struct shared_memory *memory, uint64_t len, int flags)
{
    void *addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

    if (addr == MAP_FAILED)
        return false;
    memory->addr = (uint64_t)(uintptr_t)addr;
    memory->len = len;
    memory->fd = -1;
    return true;
}

static uint64_t round_up(uint64_t len, uint64_t unit)
{
    return (len + unit - 1) / unit * unit;
}

enum shoal_status shared_alloc(struct shared_table *table, uint64_t len, bool has_huge_pages, void **addr_out,
                               struct shoal_error *error)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct shared_memory *memory;
    bool is_mapped = false;
    int saved;

    if (len == 0 || len > INT64_MAX / 2)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "cannot allocate %llu bytes", (unsigned long long)len);
    memory = calloc(1, sizeof *memory);
    if (!memory)
        return error_no_memory(error);
    if (has_huge_pages)
        is_mapped = map_file(table, memory, round_up(len, HUGE_PAGE_BYTES), MFD_HUGETLB) ||
                    map_ordinary(memory, round_up(len, HUGE_PAGE_BYTES), MAP_HUGETLB);
    is_mapped =
        is_mapped || map_file(table, memory, round_up(len, page), 0) || map_ordinary(memory, round_up(len, page), 0);
    if (!is_mapped) {
        saved = errno;
        free(memory);
        return error_set(error, SHOAL_NO_MEMORY, saved, "mapping %llu bytes: %s", (unsigned long long)len,
                         strerror(saved));
    }
    if (has_huge_pages)
        (void)madvise((void *)(uintptr_t)memory->addr, memory->len, MADV_HUGEPAGE);
    mutex_lock(&table->mutex);
    memory->id = table->next_id++;
    list_push_back(&table->memories, &memory->node);
    mutex_unlock(&table->mutex);
    *addr_out = (void *)(uintptr_t)memory->addr;
    return SHOAL_OK;
}

void shared_free(struct shared_table *table, void *addr)
{
    struct shared_memory *found = NULL;
    void (*listener)(void *arg, uint64_t id) = NULL;
    void *listener_arg = NULL;

    if (!addr)
        return;
    mutex_lock(&table->mutex);
    LIST_FOR_EACH (memory, &table->memories, struct shared_memory, node) {
        if (memory->addr == (uint64_t)(uintptr_t)addr) {
            found = memory;
            break;
        }
    }
    if (found) {
        list_remove(&found->node);
        listener = found->fd >= 0 ? table->listener : NULL;
        listener_arg = table->listener_arg;
        table->telling += listener != NULL;
    }
    mutex_unlock(&table->mutex);
    if (!found)
        return;
    if (listener) {
        listener(listener_arg, found->id);
        mutex_lock(&table->mutex);
        if (--table->telling == 0)
            cond_broadcast(&table->changed);
        mutex_unlock(&table->mutex);
    }
    munmap(addr, found->len);
    if (found->fd >= 0)
        close(found->fd);
    free(found);
}

bool shared_find(struct shared_table *table, uint64_t addr, uint64_t len, uint64_t *id_out, uint64_t *offset_out,
                 uint64_t *size_out, int *fd_out)
{
    bool is_found = false;

    mutex_lock(&table->mutex);
    LIST_FOR_EACH (memory, &table->memories, struct shared_memory, node) {
        if (memory->fd < 0 || addr < memory->addr || addr - memory->addr > memory->len ||
            len > memory->len - (addr - memory->addr))
            continue;
        *id_out = memory->id;
        *offset_out = addr - memory->addr;
        *size_out = memory->len;
        *fd_out = memory->fd;
        is_found = true;
        break;
    }
    mutex_unlock(&table->mutex);
    return is_found;
}

bool shared_has_any(struct shared_table *table)
{
    bool has_any = false;

    mutex_lock(&table->mutex);
    LIST_FOR_EACH (memory, &table->memories, struct shared_memory, node)
        has_any |= memory->fd >= 0;
    mutex_unlock(&table->mutex);
    return has_any;
}

void shared_set_listener(struct shared_table *table, void (*fn)(void *arg, uint64_t id), void *arg)
{
    mutex_lock(&table->mutex);
    table->listener = fn;
    table->listener_arg = arg;
    while (table->telling > 0)
        cond_wait(&table->changed, &table->mutex);
    mutex_unlock(&table->mutex);
}
