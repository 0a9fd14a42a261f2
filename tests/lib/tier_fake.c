/* SPDX-License-Identifier: Apache-2.0 */
#include "tier_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/list.h"
#include "base/mutex.h"
#include "tier/tier.h"

#define demand(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: the backend broke the contract of tier_ops.h: %s\n", __FILE__, __LINE__,           \
                    #condition);                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* --- faults --- */

static pthread_mutex_t fault_mutex = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct {
    enum tier_type type;
    enum tier_fake_op op;
    unsigned left; /* calls up to the failing one; 0: none */
    enum shoal_status status;
    void (*in_persist)(void *arg);
    void *in_persist_arg;
} fault;

void tier_fake_fail(enum tier_type type, enum tier_fake_op op, unsigned nth, enum shoal_status status)
{
    pthread_mutex_lock(&fault_mutex);
    fault.type = type;
    fault.op = op;
    fault.left = nth;
    fault.status = status;
    pthread_mutex_unlock(&fault_mutex);
}

bool tier_fake_has_failed(void)
{
    bool has;
    pthread_mutex_lock(&fault_mutex);
    has = fault.left == 0;
    pthread_mutex_unlock(&fault_mutex);
    return has;
}

void tier_fake_in_persist(void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&fault_mutex);
    fault.in_persist = fn;
    fault.in_persist_arg = arg;
    pthread_mutex_unlock(&fault_mutex);
}

static enum shoal_status fails(enum tier_type type, enum tier_fake_op op, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    pthread_mutex_lock(&fault_mutex);
    if (fault.left && fault.type == type && fault.op == op && --fault.left == 0)
        status = fault.status;
    pthread_mutex_unlock(&fault_mutex);
    return status == SHOAL_OK ? SHOAL_OK : error_set(error, status, 0, "a fault that the test asked for");
}

/* --- the disk --- */

struct entry {
    struct list_node node;
    char key[TIER_KEY_MAX_BYTES + 1];
    uint64_t object_id, len_bytes;
    uint8_t *data; /* owned */
    struct digest digest;
    bool is_open; /* a space has it */
};

static struct list disk = {{&disk.head, &disk.head}};
static struct mutex disk_lock = {PTHREAD_MUTEX_INITIALIZER, RANK_TIER_SPACE}; /* disk, used bytes */

struct storage {
    struct tier tier;
    unsigned spaces;
};

struct storage_space {
    struct tier_space space;
    uint64_t written;
    bool is_sealed;
    struct digest digest;
    uint8_t *data;       /* owned, or the entry's */
    struct entry *entry; /* borrowed from the disk; NULL: not persisted */
};

static void entry_free(struct entry *entry)
{
    list_remove(&entry->node);
    free(entry->data);
    free(entry);
}

void tier_fake_disk_clear(void)
{
    mutex_lock(&disk_lock);
    LIST_FOR_EACH_SAFE (entry, &disk, struct entry, node)
        entry_free(entry);
    mutex_unlock(&disk_lock);
}

unsigned tier_fake_disk_entries(void)
{
    unsigned count = 0;
    mutex_lock(&disk_lock);
    LIST_FOR_EACH (entry, &disk, struct entry, node)
        count++;
    mutex_unlock(&disk_lock);
    return count;
}

bool tier_fake_disk_has(const char *key, uint64_t object_id)
{
    bool has = false;
    mutex_lock(&disk_lock);
    LIST_FOR_EACH (entry, &disk, struct entry, node)
        has = has || (strcmp(entry->key, key) == 0 && entry->object_id == object_id);
    mutex_unlock(&disk_lock);
    return has;
}

bool tier_fake_disk_corrupt(const char *key)
{
    bool is_done = false;
    mutex_lock(&disk_lock);
    LIST_FOR_EACH (entry, &disk, struct entry, node) {
        if (strcmp(entry->key, key) == 0 && entry->len_bytes) {
            entry->data[entry->len_bytes / 2] ^= 1;
            is_done = true;
        }
    }
    mutex_unlock(&disk_lock);
    return is_done;
}

/* --- the STORAGE kind --- */

static struct storage *storage_of(struct tier *tier)
{
    return container_of(tier, struct storage, tier);
}

static struct storage_space *space_of(const struct tier_space *space)
{
    return container_of(space, struct storage_space, space);
}

static const struct tier_ops storage_ops, dram_ops;

static enum shoal_status storage_create(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                        struct tier **tier_out, struct shoal_error *error)
{
    struct storage *storage;
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_CREATE, error);

    (void)index;
    (void)engine;
    if (status != SHOAL_OK)
        return status;
    storage = calloc(1, sizeof *storage);
    if (!storage)
        return error_no_memory(error);
    storage->tier = (struct tier){.ops = &storage_ops,
                                  .capacity_bytes = config->capacity_bytes,
                                  .max_object_bytes = config->capacity_bytes,
                                  .is_persistent = true};
    *tier_out = &storage->tier;
    return SHOAL_OK;
}

static void storage_destroy(struct tier *tier)
{
    demand(storage_of(tier)->spaces == 0 && tier->used_bytes == 0);
    free(storage_of(tier));
}

static void use(struct tier *tier, struct storage_space *space)
{
    storage_of(tier)->spaces++;
    __atomic_store_n(&tier->used_bytes, tier->used_bytes + space->space.len_bytes, __ATOMIC_RELAXED);
}

static enum shoal_status storage_recover(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_RECOVER, error);

    LIST_FOR_EACH (entry, &disk, struct entry, node)
        entry->is_open = false;
    while (status == SHOAL_OK) {
        struct entry *next = NULL;
        struct storage_space *space;
        LIST_FOR_EACH (entry, &disk, struct entry, node)
            next = next || entry->is_open ? next : entry;
        if (!next)
            break;
        next->is_open = true;
        space = calloc(1, sizeof *space);
        if (!space)
            return error_no_memory(error);
        *space = (struct storage_space){.space.len_bytes = next->len_bytes,
                                        .written = next->len_bytes,
                                        .is_sealed = true,
                                        .digest = next->digest,
                                        .data = next->data,
                                        .entry = next};
        mutex_lock(&disk_lock);
        use(tier, space);
        mutex_unlock(&disk_lock);
        status = fn(arg, next->key, next->object_id, &space->space, error);
    }
    return status;
}

static enum shoal_status storage_allocate(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                          struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_ALLOCATE, error);
    struct storage_space *space;

    demand(len_bytes <= tier->max_object_bytes);
    if (status != SHOAL_OK)
        return status;
    space = calloc(1, sizeof *space);
    if (space)
        space->data = malloc(len_bytes + 1);
    if (!space || !space->data) {
        free(space);
        return error_no_memory(error);
    }
    space->space.len_bytes = len_bytes;
    mutex_lock(&disk_lock);
    if (len_bytes > tier->capacity_bytes - tier->used_bytes)
        status = SHOAL_NO_SPACE;
    else
        use(tier, space);
    mutex_unlock(&disk_lock);
    if (status != SHOAL_OK) {
        free(space->data);
        free(space);
        return status;
    }
    *space_out = &space->space;
    return SHOAL_OK;
}

static void storage_release(struct tier *tier, struct tier_space *base)
{
    struct storage_space *space = space_of(base);

    mutex_lock(&disk_lock);
    storage_of(tier)->spaces--;
    __atomic_store_n(&tier->used_bytes, tier->used_bytes - base->len_bytes, __ATOMIC_RELAXED);
    mutex_unlock(&disk_lock);
    if (!space->entry) /* else at the end: the disk keeps it */
        free(space->data);
    free(space);
}

static void *storage_data(const struct tier *tier, const struct tier_space *space)
{
    (void)tier;
    (void)space;
    return NULL;
}

static enum shoal_status storage_write(struct tier *tier, struct tier_space *base, uint64_t offset_bytes,
                                       const void *data, size_t len_bytes, struct shoal_error *error)
{
    struct storage_space *space = space_of(base);
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_WRITE, error);

    (void)tier;
    demand(!space->is_sealed && offset_bytes == space->written && offset_bytes + len_bytes <= base->len_bytes);
    demand(offset_bytes % TIER_STAGING_BYTES == 0);
    if (status != SHOAL_OK)
        return status;
    memcpy(space->data + offset_bytes, data, len_bytes);
    space->written += len_bytes;
    return SHOAL_OK;
}

static enum shoal_status storage_seal(struct tier *tier, struct tier_space *base, struct shoal_error *error)
{
    struct storage_space *space = space_of(base);
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_SEAL, error);

    (void)tier;
    demand(!space->is_sealed && space->written == base->len_bytes);
    if (status != SHOAL_OK)
        return status;
    space->is_sealed = true;
    space->digest = digest_of(space->data, base->len_bytes);
    return SHOAL_OK;
}

static enum shoal_status storage_read(struct tier *tier, struct tier_space *base, uint64_t offset_bytes, void *out,
                                      size_t len_bytes, struct shoal_error *error)
{
    struct storage_space *space = space_of(base);
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_READ, error);
    struct digest digest;

    (void)tier;
    demand(space->is_sealed && offset_bytes + len_bytes <= base->len_bytes);
    if (status != SHOAL_OK)
        return status;
    digest = digest_of(space->data, base->len_bytes);
    if (!digest_is_equal(&digest, &space->digest))
        return error_set(error, SHOAL_CORRUPTED, 0, "the checksum is wrong");
    memcpy(out, space->data + offset_bytes, len_bytes);
    return SHOAL_OK;
}

static enum shoal_status storage_persist(struct tier *tier, struct tier_space *base, const char *key,
                                         uint64_t object_id, struct shoal_error *error)
{
    struct storage_space *space = space_of(base);
    struct entry *entry;
    void (*in_persist)(void *arg);
    void *in_persist_arg;
    enum shoal_status status = fails(TIER_STORAGE, TIER_FAKE_PERSIST, error);

    (void)tier;
    demand(space->is_sealed && !space->entry && object_id != 0);
    pthread_mutex_lock(&fault_mutex);
    in_persist = fault.in_persist;
    in_persist_arg = fault.in_persist_arg;
    fault.in_persist = NULL;
    pthread_mutex_unlock(&fault_mutex);
    if (in_persist)
        in_persist(in_persist_arg);
    if (status != SHOAL_OK)
        return status;
    entry = calloc(1, sizeof *entry);
    if (!entry)
        return error_no_memory(error);
    (void)snprintf(entry->key, sizeof entry->key, "%s", key);
    entry->object_id = object_id;
    entry->len_bytes = base->len_bytes;
    entry->data = space->data;
    entry->digest = space->digest;
    entry->is_open = true;
    mutex_lock(&disk_lock);
    list_push_back(&disk, &entry->node);
    mutex_unlock(&disk_lock);
    space->entry = entry;
    return SHOAL_OK;
}

static enum shoal_status storage_forget(struct tier *tier, struct tier_space *base, bool is_durable,
                                        struct shoal_error *error)
{
    struct storage_space *space = space_of(base);
    enum shoal_status status = is_durable ? fails(TIER_STORAGE, TIER_FAKE_FORGET, error) : SHOAL_OK;

    (void)tier;
    demand(space->entry);
    mutex_lock(&disk_lock);
    space->entry->data = NULL; /* the space keeps it */
    entry_free(space->entry);
    mutex_unlock(&disk_lock);
    space->entry = NULL;
    return status;
}

static bool storage_maintain(struct tier *tier)
{
    (void)tier;
    return false;
}

static const struct tier_ops storage_ops = {
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

/* --- the DRAM kind: the real one behind faults --- */

static enum shoal_status dram_create(const struct tier_config *config, unsigned index, struct shoal_engine *engine,
                                     struct tier **tier_out, struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_DRAM, TIER_FAKE_CREATE, error);
    if (status == SHOAL_OK)
        status = tier_ops_dram.create(config, index, engine, tier_out, error);
    if (status == SHOAL_OK)
        (*tier_out)->ops = &dram_ops;
    return status;
}

static void dram_destroy(struct tier *tier)
{
    demand(tier->used_bytes == 0);
    tier_ops_dram.destroy(tier);
}

static enum shoal_status dram_recover(struct tier *tier, tier_recovered_fn fn, void *arg, struct shoal_error *error)
{
    (void)tier, (void)fn, (void)arg;
    return fails(TIER_DRAM, TIER_FAKE_RECOVER, error);
}

static enum shoal_status dram_allocate(struct tier *tier, uint64_t len_bytes, struct tier_space **space_out,
                                       struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_DRAM, TIER_FAKE_ALLOCATE, error);
    return status == SHOAL_OK ? tier_ops_dram.allocate(tier, len_bytes, space_out, error) : status;
}

static void dram_release(struct tier *tier, struct tier_space *space)
{
    /* Whoever reads it after its release sees that. */
    memset(tier_ops_dram.data(tier, space), 0xdd, space->len_bytes);
    tier_ops_dram.release(tier, space);
}

static void *dram_data(const struct tier *tier, const struct tier_space *space)
{
    return tier_ops_dram.data(tier, space);
}

static enum shoal_status dram_write(struct tier *tier, struct tier_space *space, uint64_t offset_bytes,
                                    const void *data, size_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_DRAM, TIER_FAKE_WRITE, error);
    return status == SHOAL_OK ? tier_ops_dram.write(tier, space, offset_bytes, data, len_bytes, error) : status;
}

static enum shoal_status dram_seal(struct tier *tier, struct tier_space *space, struct shoal_error *error)
{
    (void)tier, (void)space;
    return fails(TIER_DRAM, TIER_FAKE_SEAL, error);
}

static enum shoal_status dram_read(struct tier *tier, struct tier_space *space, uint64_t offset_bytes, void *out,
                                   size_t len_bytes, struct shoal_error *error)
{
    enum shoal_status status = fails(TIER_DRAM, TIER_FAKE_READ, error);
    return status == SHOAL_OK ? tier_ops_dram.read(tier, space, offset_bytes, out, len_bytes, error) : status;
}

static const struct tier_ops dram_ops = {
    .name = "DRAM",
    .create = dram_create,
    .destroy = dram_destroy,
    .recover = dram_recover,
    .allocate = dram_allocate,
    .release = dram_release,
    .data = dram_data,
    .write = dram_write,
    .seal = dram_seal,
    .read = dram_read,
};

const struct tier_ops *tier_fake_ops(enum tier_type type)
{
    return type == TIER_STORAGE ? &storage_ops : &dram_ops;
}
