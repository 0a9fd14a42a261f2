/* SPDX-License-Identifier: Apache-2.0 */
/* The kind of tier that lies on a disk: objects in blocks of one data file, written and read by several requests at
 * once, around the page cache where the file system can; an index beside it (storage_index.h) that finds them again.
 *
 * Each chunk of an object has a digest, which every read checks. The index entry is written after the data, and goes
 * before the first byte of the next object in the same blocks is written. So a process may die at any point: what is
 * found again is complete. A crash of the host may take back writes of both files in any order; what does not fit
 * together then is caught by the digests. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "tier/allocator.h"
#include "tier/storage_file.h"
#include "tier/storage_index.h"
#include "tier/storage_io.h"
#include "tier/tier.h"
#include "tier/tier_ops.h"

#define LOG_MODULE "tier"
#define IO_MAX 16u /* operations at the same time; more of them wait. Each may have 3 MiB of buffers. */

#define COMPLAIN_EVERY_MS 60000

static_assert(TIER_STAGING_BYTES % STORAGE_CHUNK_BYTES == 0, "a write begins with a chunk");

struct storage_space {
    struct tier_space base;
    uint64_t offset_bytes; /* in the data file */
    uint64_t written_bytes;
    uint32_t handle;               /* of the allocator */
    struct storage_ticket *ticket; /* owned; NULL: not in the index */
    struct digest digests[];       /* one for each chunk */
};

/* An io and its place in the list of idle ones. */
struct idle_io {
    struct list_node node;
    struct storage_io *io;
};

struct storage {
    struct tier base;
    char *directory; /* owned */
    unsigned index_in_config;
    struct storage_file file;
    struct storage_index *index;
    bool wants_ring;
    struct mutex mutex; /* RANK_TIER_SPACE: what follows */
    struct allocator *allocator;
    struct idle_io ios[IO_MAX]; /* those that are not in a list have no io */
    struct list idle;           /* with an io */
    struct list unused;         /* without one */
    struct cond io_is_free;
    int64_t complained_ms; /* atomic, relaxed; 0: never */
};

static struct storage *storage_of(struct tier *tier)
{
    return container_of(tier, struct storage, base);
}

static struct storage_space *space_of(struct tier_space *space)
{
    return container_of(space, struct storage_space, base);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static size_t chunk_count(uint64_t len_bytes)
{
    return (size_t)(len_bytes / STORAGE_CHUNK_BYTES + (len_bytes % STORAGE_CHUNK_BYTES != 0));
}

static enum shoal_status fail(struct storage *storage, int saved, const char *what, struct shoal_error *error)
{
    return error_set(error, saved == ENOSPC || saved == EDQUOT ? SHOAL_NO_SPACE : SHOAL_IO, saved,
                     "tier %u (STORAGE): %.200s: %s: %s", storage->index_in_config, storage->directory, what,
                     strerror(saved));
}

/* The operator hears of a disk that does not take or give data, too, but not for each of many objects. Returns status.
 */
static enum shoal_status complain(struct storage *storage, enum shoal_status status, const struct shoal_error *error)
{
    int64_t now_ms = clock_now_ms(), last_ms = __atomic_load_n(&storage->complained_ms, __ATOMIC_RELAXED);

    if ((status == SHOAL_NO_SPACE || status == SHOAL_IO) && (!last_ms || now_ms - last_ms >= COMPLAIN_EVERY_MS) &&
        __atomic_compare_exchange_n(&storage->complained_ms, &last_ms, now_ms, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        LOG_WARN("%s", error->message);
    return status;
}

/* --- ios -------------------------------------------------------------------------------------------------------------
 */

/* NULL: out of memory. Blocks while all are in use. */
static struct idle_io *io_take(struct storage *storage)
{
    struct list_node *node;

    mutex_lock(&storage->mutex);
    while (list_is_empty(&storage->idle) && list_is_empty(&storage->unused))
        cond_wait(&storage->io_is_free, &storage->mutex);
    node = list_pop_front(&storage->idle);
    if (!node)
        node = list_pop_front(&storage->unused);
    mutex_unlock(&storage->mutex);
    struct idle_io *taken = container_of(node, struct idle_io, node);
    if (taken->io)
        return taken;
    taken->io = storage_io_create(storage->file.fd, storage->wants_ring);
    if (taken->io)
        return taken;
    mutex_lock(&storage->mutex);
    list_push_back(&storage->unused, &taken->node);
    cond_signal(&storage->io_is_free);
    mutex_unlock(&storage->mutex);
    return NULL;
}

static void io_give(struct storage *storage, struct idle_io *taken)
{
    if (storage_io_is_broken(taken->io)) {
        storage_io_destroy(taken->io);
        taken->io = NULL;
    }
    mutex_lock(&storage->mutex);
    list_push_front(taken->io ? &storage->idle : &storage->unused, &taken->node);
    cond_signal(&storage->io_is_free);
    mutex_unlock(&storage->mutex);
}

/* --- opening ---------------------------------------------------------------------------------------------------------
 */

static bool is_ring_wanted(void)
{
    const char *choice = getenv("SHOAL_STORAGE_IO");
    return !choice || strcmp(choice, "plain") != 0;
}

static void storage_destroy(struct tier *tier)
{
    struct storage *storage = storage_of(tier);

    storage_index_close(storage->index);
    for (size_t i = 0; i < IO_MAX; i++)
        storage_io_destroy(storage->ios[i].io);
    storage_file_close(&storage->file);
    allocator_destroy(storage->allocator);
    cond_release(&storage->io_is_free);
    mutex_release(&storage->mutex);
    free(storage->directory);
    free(storage);
}

static enum shoal_status open_files(struct storage *storage, struct shoal_error *error)
{
    enum shoal_status status =
        storage_file_open(storage->directory, storage->base.capacity_bytes, &storage->file, error);
    if (status != SHOAL_OK)
        return status;
    char *path = storage_file_index_path(storage->directory);
    if (!path)
        return error_no_memory(error);
    status = storage_index_open(path, &storage->index, error);
    free(path);
    return status;
}

static enum shoal_status storage_create(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                        struct tier **tier_out, struct shoal_error *error)
{
    struct storage *storage = calloc(1, sizeof *storage);
    uint64_t capacity_bytes = config->capacity_bytes / STORAGE_BLOCK_BYTES * STORAGE_BLOCK_BYTES;
    enum shoal_status status = SHOAL_OK;

    (void)engine; /* the backend stages what comes from here */
    if (!storage)
        return error_no_memory(error);
    storage->base = (struct tier){.ops = &tier_ops_storage,
                                  .capacity_bytes = capacity_bytes,
                                  .max_object_bytes = capacity_bytes,
                                  .is_persistent = true};
    storage->index_in_config = index;
    storage->file = (struct storage_file){.lock_fd = -1, .fd = -1};
    storage->wants_ring = is_ring_wanted();
    mutex_init(&storage->mutex, RANK_TIER_SPACE);
    cond_init(&storage->io_is_free);
    list_init(&storage->idle);
    list_init(&storage->unused);
    for (size_t i = 0; i < IO_MAX; i++)
        list_push_back(&storage->unused, &storage->ios[i].node);
    storage->directory = strdup(config->storage_filepath);
    if (!storage->directory)
        status = error_no_memory(error);
    else if (capacity_bytes == 0 || capacity_bytes > INT64_MAX)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                           "capacity of %" PRIu64 " bytes; at least one block of %u bytes is needed",
                           config->capacity_bytes, STORAGE_BLOCK_BYTES);
    if (status == SHOAL_OK)
        status = open_files(storage, error);
    if (status == SHOAL_OK) {
        storage->allocator = allocator_create(capacity_bytes, STORAGE_BLOCK_BYTES, 0);
        if (!storage->allocator)
            status = error_no_memory(error);
    }
    if (status == SHOAL_OK) {
        /* Kept for the first operation. It tells now, once, what this machine can do. */
        struct idle_io *io = io_take(storage);
        if (!io) {
            status = error_no_memory(error);
        } else {
            LOG_INFO("tier %u (STORAGE): %s: %s, %s", index, storage->directory,
                     storage_io_has_ring(io->io) ? "io_uring" : "pread and pwrite",
                     storage->file.is_direct ? "direct I/O" : "through the page cache");
            io_give(storage, io);
        }
    }
    if (status != SHOAL_OK) {
        if (status != SHOAL_NO_MEMORY)
            error_prefix(error, "tier %u (STORAGE)", index);
        storage_index_close(storage->index);
        storage->index = NULL;
        if (storage->directory)
            storage_file_abandon(&storage->file, storage->directory);
        storage_destroy(&storage->base);
        return status;
    }
    *tier_out = &storage->base;
    return SHOAL_OK;
}

/* --- spaces ----------------------------------------------------------------------------------------------------------
 */

/* NULL: out of memory, or an object that no memory could describe. */
static struct storage_space *space_create(uint64_t len_bytes)
{
    struct storage_space *space = calloc(1, sizeof *space + chunk_count(len_bytes) * sizeof *space->digests);
    if (space)
        space->base.len_bytes = len_bytes;
    return space;
}

static void adopt(struct storage *storage, struct storage_space *space, const struct allocator_range *range)
{
    space->offset_bytes = range->offset_bytes;
    space->handle = range->handle;
    __atomic_store_n(&storage->base.used_bytes, allocator_used_bytes(storage->allocator), __ATOMIC_RELAXED);
}

static enum shoal_status storage_allocate(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                          struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space;
    struct allocator_range range;

    if (len_bytes > tier->max_object_bytes)
        return SHOAL_NO_SPACE;
    space = space_create(len_bytes);
    if (!space)
        return error_no_memory(error);
    mutex_lock(&storage->mutex);
    bool is_taken = allocator_take(storage->allocator, len_bytes, &range); /* an empty object has a block, too */
    if (is_taken)
        adopt(storage, space, &range);
    mutex_unlock(&storage->mutex);
    if (!is_taken) {
        free(space);
        return SHOAL_NO_SPACE;
    }
    *space_out = &space->base;
    return SHOAL_OK;
}

static void storage_release(struct tier *tier, struct tier_space *base)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space = space_of(base);

    mutex_lock(&storage->mutex);
    allocator_give(storage->allocator, space->handle);
    __atomic_store_n(&storage->base.used_bytes, allocator_used_bytes(storage->allocator), __ATOMIC_RELAXED);
    mutex_unlock(&storage->mutex);
    storage_ticket_destroy(space->ticket); /* at the end of the tier: the row stays */
    free(space);
}

static void *storage_data(const struct tier *tier, const struct tier_space *space)
{
    (void)tier, (void)space;
    return NULL;
}

/* --- finding again ---------------------------------------------------------------------------------------------------
 */

struct recovery {
    struct storage *storage;
    tier_recovered_fn fn;
    void *arg;
    uint64_t end_bytes; /* of the last entry that was accepted */
    uint64_t found, dropped;
    char reason[64]; /* of the first one dropped */
};

/* NULL, or what is wrong with the entry. */
static const char *problem_of(const struct recovery *recovery, const struct storage_entry *entry)
{
    const struct storage *storage = recovery->storage;
    uint64_t limit_bytes = storage->base.capacity_bytes;

    if (entry->key_len == 0 || entry->key_len > TIER_KEY_MAX_BYTES || memchr(entry->key, 0, entry->key_len))
        return "its key is none";
    if (entry->object_id == 0)
        return "it has no object_id";
    if (entry->len_bytes > INT64_MAX || entry->block < 0 || (uint64_t)entry->block > limit_bytes / STORAGE_BLOCK_BYTES)
        return "it lies outside the capacity";
    uint64_t offset_bytes = (uint64_t)entry->block * STORAGE_BLOCK_BYTES;
    uint64_t len_bytes = round_up(entry->len_bytes ? entry->len_bytes : 1, STORAGE_BLOCK_BYTES);
    if (len_bytes > limit_bytes - offset_bytes)
        return "it lies outside the capacity";
    if (entry->len_bytes && offset_bytes + len_bytes > storage->file.found_bytes)
        return "it lies behind the end of the data file";
    if (offset_bytes < recovery->end_bytes)
        return "it overlaps another one";
    if (entry->digests_len != chunk_count(entry->len_bytes) * sizeof(struct digest))
        return "its digests do not fit its length";
    return NULL;
}

static enum shoal_status recover_entry(void *arg, const struct storage_entry *entry, struct shoal_error *error)
{
    struct recovery *recovery = arg;
    struct storage *storage = recovery->storage;
    const char *problem = problem_of(recovery, entry);
    struct allocator_range range;
    struct storage_ticket *ticket = storage_ticket_create(entry->block);
    struct storage_space *space = NULL;

    if (!ticket)
        return error_no_memory(error);
    if (problem) {
        if (recovery->dropped++ == 0)
            snprintf(recovery->reason, sizeof recovery->reason, "%s", problem);
        storage_index_doom(storage->index, ticket);
        return SHOAL_OK;
    }
    space = space_create(entry->len_bytes);
    if (!space)
        goto no_memory;
    mutex_lock(&storage->mutex);
    bool is_taken = allocator_take_at(storage->allocator, (uint64_t)entry->block * STORAGE_BLOCK_BYTES,
                                      entry->len_bytes ? entry->len_bytes : 1, &range);
    if (is_taken)
        adopt(storage, space, &range);
    mutex_unlock(&storage->mutex);
    if (!is_taken) /* it is free, as problem_of knows */
        goto no_memory;
    space->written_bytes = entry->len_bytes;
    space->ticket = ticket;
    if (entry->digests_len)
        memcpy(space->digests, entry->digests, entry->digests_len);
    recovery->end_bytes = range.offset_bytes + range.len_bytes;
    recovery->found++;
    return recovery->fn(recovery->arg, entry->key, entry->object_id, &space->base, error);
no_memory:
    free(space);
    storage_ticket_destroy(ticket);
    return error_no_memory(error);
}

static enum shoal_status storage_recover(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct recovery recovery = {.storage = storage, .fn = fn, .arg = arg};
    enum shoal_status status = storage_index_each(storage->index, recover_entry, &recovery, error);

    if (status != SHOAL_OK)
        return status;
    if (recovery.dropped)
        LOG_WARN("tier %u (STORAGE): %s: %" PRIu64 " of %" PRIu64 " objects dropped; of the first one: %s",
                 storage->index_in_config, storage->directory, recovery.dropped, recovery.found + recovery.dropped,
                 recovery.reason);
    if (storage_index_has_doomed(storage->index))
        status = storage_index_sweep(storage->index, error);
    if (status == SHOAL_OK)
        storage_file_trim(&storage->file, storage->base.capacity_bytes);
    return status;
}

/* --- bytes -----------------------------------------------------------------------------------------------------------
 */

/* A write or read of consecutive chunks. */
struct transfer {
    struct storage *storage;
    struct storage_space *space;
    uint64_t offset_bytes; /* in the object; a write begins with a chunk */
    uint8_t *memory;       /* from there or to there; only read by a write */
    size_t len_bytes;
};

/* The part of one chunk that a transfer is about. */
struct part {
    size_t chunk;
    size_t chunk_bytes;  /* of the object */
    size_t disk_bytes;   /* whole blocks */
    size_t skip_bytes;   /* within the chunk */
    size_t wanted_bytes; /* behind those */
    uint8_t *wanted;     /* in the transfer's memory */
    bool is_in_place;    /* the disk moves it from or to there */
};

static struct part part_of(const struct transfer *transfer, size_t chunk)
{
    uint64_t begin = (uint64_t)chunk * STORAGE_CHUNK_BYTES;
    uint64_t left = transfer->space->base.len_bytes - begin, end;
    struct part part = {.chunk = chunk};

    part.chunk_bytes = left < STORAGE_CHUNK_BYTES ? (size_t)left : STORAGE_CHUNK_BYTES;
    part.disk_bytes = (size_t)round_up(part.chunk_bytes, STORAGE_BLOCK_BYTES);
    if (transfer->offset_bytes > begin)
        part.skip_bytes = (size_t)(transfer->offset_bytes - begin);
    end = transfer->offset_bytes + transfer->len_bytes;
    if (end > begin + part.chunk_bytes)
        end = begin + part.chunk_bytes;
    part.wanted_bytes = (size_t)(end - begin) - part.skip_bytes;
    part.wanted = transfer->memory + (begin + part.skip_bytes - transfer->offset_bytes);
    part.is_in_place =
        part.wanted_bytes == part.disk_bytes && (uintptr_t)part.wanted % transfer->storage->file.memory_alignment == 0;
    return part;
}

static uint64_t disk_offset(const struct transfer *transfer, const struct part *part)
{
    return transfer->space->offset_bytes + (uint64_t)part->chunk * STORAGE_CHUNK_BYTES;
}

/* What is under way for one transfer. */
struct run {
    const struct transfer *transfer;
    struct storage_io *io;
    bool is_write;
    size_t next, end;     /* chunks that are not begun */
    size_t next_digested; /* a write: of the chunks before next, those from here on have no digest yet */
    struct part parts[STORAGE_IO_SLOTS];
    unsigned free_slots[STORAGE_IO_SLOTS], free_count;
    unsigned read_slots[STORAGE_IO_SLOTS], read_count; /* a read: the disk is done, the digest is to be checked */
};

static void begin_chunk(struct run *run)
{
    unsigned slot = run->free_slots[--run->free_count];
    struct part *part = &run->parts[slot];

    *part = part_of(run->transfer, run->next++);
    uint8_t *memory = part->is_in_place ? part->wanted : storage_io_buffer(run->io, slot);
    if (run->is_write && !part->is_in_place) {
        memcpy(memory, part->wanted, part->wanted_bytes);
        memset(memory + part->wanted_bytes, 0, part->disk_bytes - part->wanted_bytes);
    }
    storage_io_start(run->io, slot, run->is_write, memory, part->disk_bytes, disk_offset(run->transfer, part));
}

/* false: the digest is wrong. */
static bool end_read(const struct run *run, unsigned slot)
{
    const struct part *part = &run->parts[slot];
    const uint8_t *from = part->is_in_place ? part->wanted : storage_io_buffer(run->io, slot);
    struct digest digest = digest_of(from, part->chunk_bytes);

    if (!digest_is_equal(&digest, &run->transfer->space->digests[part->chunk]))
        return false;
    if (!part->is_in_place)
        memcpy(part->wanted, from + part->skip_bytes, part->wanted_bytes);
    return true;
}

static bool has_digest_to_do(const struct run *run)
{
    return run->is_write ? run->next_digested < run->next : run->read_count > 0;
}

/* Of one chunk. CORRUPTED. */
static enum shoal_status digest_one(struct run *run, struct shoal_error *error)
{
    const struct transfer *transfer = run->transfer;
    const struct storage *storage = transfer->storage;

    if (run->is_write) {
        struct part part = part_of(transfer, run->next_digested++);
        transfer->space->digests[part.chunk] = digest_of(part.wanted, part.wanted_bytes);
        return SHOAL_OK;
    }
    unsigned slot = run->read_slots[--run->read_count];
    run->free_slots[run->free_count++] = slot;
    if (end_read(run, slot))
        return SHOAL_OK;
    return error_set(error, SHOAL_CORRUPTED, 0,
                     "tier %u (STORAGE): %.200s: the checksum of what the disk returned is wrong (offset %" PRIu64
                     " of the data file)",
                     storage->index_in_config, storage->directory, disk_offset(transfer, &run->parts[slot]));
}

/* len_bytes is not 0. The disk always has as much to do as it may have; digests are computed meanwhile. After the first
 * failure nothing is begun any more, and what is under way is waited for: the disk must be done with the caller's
 * memory. */
static enum shoal_status run_transfer(const struct transfer *transfer, bool is_write, struct shoal_error *error)
{
    struct storage *storage = transfer->storage;
    struct idle_io *taken = io_take(storage);
    enum shoal_status status = SHOAL_OK;

    if (!taken)
        return error_no_memory(error);
    struct run run = {.transfer = transfer,
                      .io = taken->io,
                      .is_write = is_write,
                      .next = (size_t)(transfer->offset_bytes / STORAGE_CHUNK_BYTES),
                      .end = chunk_count(transfer->offset_bytes + transfer->len_bytes)};
    run.next_digested = run.next;
    for (unsigned i = 0; i < STORAGE_IO_SLOTS; i++)
        run.free_slots[run.free_count++] = i;
    for (;;) {
        while (status == SHOAL_OK && run.next < run.end && run.free_count > 0 &&
               storage_io_in_flight(run.io) < STORAGE_IO_DEPTH)
            begin_chunk(&run);
        storage_io_submit(run.io);
        if (status == SHOAL_OK && has_digest_to_do(&run))
            status = digest_one(&run, error);
        bool is_idle = status != SHOAL_OK || !has_digest_to_do(&run);
        if (storage_io_in_flight(run.io) == 0) {
            if (is_idle && (status != SHOAL_OK || run.next == run.end))
                break;
            continue;
        }
        /* The disk is waited for only with nothing else to do. */
        int failed;
        unsigned slot = storage_io_finish(run.io, is_idle, &failed);
        if (slot == STORAGE_IO_SLOTS)
            continue;
        if (status == SHOAL_OK && failed)
            status = complain(storage, fail(storage, failed, is_write ? "cannot write" : "cannot read", error), error);
        if (!is_write && status == SHOAL_OK)
            run.read_slots[run.read_count++] = slot;
        else
            run.free_slots[run.free_count++] = slot;
    }
    io_give(storage, taken);
    return status;
}

static enum shoal_status storage_write(struct tier *tier, struct tier_space *base, uint64_t offset_bytes,
                                       const void *data, size_t len_bytes, struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space = space_of(base);
    const struct transfer transfer = {storage, space, offset_bytes, (uint8_t *)data, len_bytes};
    enum shoal_status status = SHOAL_OK;

    if (offset_bytes != space->written_bytes || len_bytes > base->len_bytes - offset_bytes ||
        offset_bytes % STORAGE_CHUNK_BYTES != 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %u (STORAGE): a write of %zu bytes at %" PRIu64 ", where byte %" PRIu64 " of %" PRIu64
                         " is next",
                         storage->index_in_config, len_bytes, offset_bytes, space->written_bytes, base->len_bytes);
    if (len_bytes == 0)
        return SHOAL_OK;
    /* The previous owner of these blocks may still have its entry. */
    if (offset_bytes == 0 && storage_index_has_doomed(storage->index))
        status = storage_index_sweep(storage->index, error);
    if (status == SHOAL_OK)
        status = run_transfer(&transfer, true, error);
    if (status == SHOAL_OK)
        space->written_bytes += len_bytes;
    return status;
}

static enum shoal_status storage_seal(struct tier *tier, struct tier_space *base, struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space = space_of(base);

    if (space->written_bytes == base->len_bytes)
        return SHOAL_OK;
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "tier %u (STORAGE): %" PRIu64 " of the object's %" PRIu64 " bytes were written",
                     storage->index_in_config, space->written_bytes, base->len_bytes);
}

static enum shoal_status storage_read(struct tier *tier, struct tier_space *base, uint64_t offset_bytes, void *out,
                                      size_t len_bytes, struct shoal_error *error)
{
    const struct transfer transfer = {storage_of(tier), space_of(base), offset_bytes, out, len_bytes};

    return len_bytes ? run_transfer(&transfer, false, error) : SHOAL_OK;
}

/* --- index -----------------------------------------------------------------------------------------------------------
 */

static enum shoal_status storage_persist(struct tier *tier, struct tier_space *base, const char *key,
                                         uint64_t object_id, struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space = space_of(base);
    size_t chunks = chunk_count(base->len_bytes);
    const struct storage_entry entry = {.block = (int64_t)(space->offset_bytes / STORAGE_BLOCK_BYTES),
                                        .key = key,
                                        .key_len = strlen(key),
                                        .object_id = object_id,
                                        .len_bytes = base->len_bytes,
                                        .digests = chunks ? space->digests : NULL,
                                        .digests_len = chunks * sizeof *space->digests};
    struct storage_ticket *ticket = storage_ticket_create(entry.block);

    if (!ticket)
        return error_no_memory(error);
    enum shoal_status status = storage_index_add(storage->index, &entry, error);
    if (status != SHOAL_OK) {
        storage_ticket_destroy(ticket);
        if (status != SHOAL_NO_MEMORY)
            error_prefix(error, "tier %u (STORAGE)", storage->index_in_config);
        return complain(storage, status, error);
    }
    space->ticket = ticket;
    return SHOAL_OK;
}

static enum shoal_status storage_forget(struct tier *tier, struct tier_space *base, bool is_durable,
                                        struct shoal_error *error)
{
    struct storage *storage = storage_of(tier);
    struct storage_space *space = space_of(base);

    if (space->ticket)
        storage_index_doom(storage->index, space->ticket);
    space->ticket = NULL;
    if (!is_durable)
        return SHOAL_OK;
    enum shoal_status status = storage_index_sweep(storage->index, error);
    if (status != SHOAL_OK && status != SHOAL_NO_MEMORY)
        error_prefix(error, "tier %u (STORAGE)", storage->index_in_config);
    return complain(storage, status, error);
}

static bool storage_maintain(struct tier *tier)
{
    storage_index_maintain(storage_of(tier)->index);
    return false;
}

const struct tier_ops tier_ops_storage = {
    .name = "STORAGE",
    .create = storage_create,
    .destroy = storage_destroy,
    .recover = storage_recover,
    .allocate = storage_allocate,
    .release = storage_release,
    .data = storage_data,
    .write = storage_write,
    .seal = storage_seal,
    .read = storage_read,
    .persist = storage_persist,
    .forget = storage_forget,
    .maintain = storage_maintain,
};
