/* SPDX-License-Identifier: Apache-2.0 */
/* Small reads and writes of many threads: those for one owner travel together (combiner.h). */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/peer_internal.h"

#define SMALL_MAX_BYTES (16u << 10) /* larger values gain nothing: moving them costs more than asking */
#define PATIENCE_MIN_MS 1000        /* who has less time left goes alone and is delayed by nobody */

enum kind { KIND_READ, KIND_WRITE };

struct shared {
    struct combiner_item item;
    struct peers *peers;
    const struct peer_address *owner;
    const struct call *call;
    struct peer_read *read; /* one of both */
    struct peer_write *write;
    struct shoal_error error; /* meaningful with a status that is not OK */
};

/* Who waits for others' requests must not be cancelable in between: its data would still be on the way. And who is
 * told of its progress is told by its own thread. */
static bool may_share(const struct call *call, uint64_t len_bytes)
{
    return !call->cancel && !call->progress && len_bytes <= SMALL_MAX_BYTES &&
           deadline_left_ms(call->deadline_ms) >= PATIENCE_MIN_MS;
}

static struct shared *shared_of(struct combiner_item *item)
{
    return container_of(item, struct shared, item);
}

static struct call common_call(struct combiner_item *const *items, size_t count)
{
    struct call call = *shared_of(items[0])->call;

    for (size_t i = 1; i < count; i++)
        call.deadline_ms = deadline_min(call.deadline_ms, shared_of(items[i])->call->deadline_ms);
    return call;
}

/* What one item failed with, from what is known about all of them. */
static void explain(struct shared *shared, const char *key, enum shoal_status status, const struct shoal_error *first)
{
    if (status == SHOAL_OK)
        return;
    if (first->status == status)
        shared->error = *first;
    else
        error_set(&shared->error, status, 0, "%s: '%.100s': %s", shared->owner->address, key,
                  shoal_status_text(status));
}

static void run_reads(void *arg, struct combiner_item *const *items, size_t count)
{
    struct shared *first = arg;
    struct peer_read reads[COMBINER_ITEMS_MAX];
    struct shoal_error error = {.status = SHOAL_OK};
    struct call call = common_call(items, count);

    for (size_t i = 0; i < count; i++)
        reads[i] = *shared_of(items[i])->read;
    (void)peer_read_batch(first->peers, first->owner, reads, count, &call, &error);
    for (size_t i = 0; i < count; i++) {
        *shared_of(items[i])->read = reads[i];
        explain(shared_of(items[i]), reads[i].key, reads[i].status, &error);
    }
}

static void run_writes(void *arg, struct combiner_item *const *items, size_t count)
{
    struct shared *first = arg;
    struct peer_write writes[COMBINER_ITEMS_MAX];
    struct shoal_error error = {.status = SHOAL_OK};
    struct call call = common_call(items, count);

    for (size_t i = 0; i < count; i++)
        writes[i] = *shared_of(items[i])->write;
    (void)peer_write_batch(first->peers, first->owner, writes, count, &call, &error);
    for (size_t i = 0; i < count; i++) {
        *shared_of(items[i])->write = writes[i];
        explain(shared_of(items[i]), writes[i].key, writes[i].status, &error);
    }
}

/* A request of its own is shorter than a batch of one. */
static void run(void *arg, struct combiner_item *const *items, size_t count)
{
    struct shared *first = arg;
    bool is_read = first->read != NULL;

    if (count > 1)
        (is_read ? run_reads : run_writes)(first, items, count);
    else if (is_read)
        (void)peer_read(first->peers, first->owner, first->read, first->call, &first->error);
    else
        (void)peer_write(first->peers, first->owner, first->write, first->call, &first->error);
}

/* What all have; read or write is set by the caller. Not the error: it is large, and most often there is none. */
static void shared_init(struct shared *shared, struct peers *peers, const struct peer_address *owner,
                        const struct call *call)
{
    shared->peers = peers;
    shared->owner = owner;
    shared->call = call;
    shared->read = NULL;
    shared->write = NULL;
}

static enum shoal_status share(struct shared *shared, enum kind kind, size_t len_bytes, const char *key,
                               struct shoal_error *error)
{
    enum shoal_status status;

    shared->item = (struct combiner_item){
        .target = shared->owner->instance,
        .kind = kind,
        .len_bytes = strlen(key) + len_bytes,
        .deadline_ms = shared->call->deadline_ms,
    };
    status = combiner_run(shared->peers->combiner, &shared->item, run, shared);
    if (status)
        return error_set(error, status, 0, "%s: '%.100s': others' requests took all the time", shared->owner->address,
                         key);
    status = shared->read ? shared->read->status : shared->write->status;
    if (status)
        error_copy(error, &shared->error);
    return status;
}

enum shoal_status peer_read_shared(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                                   const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    struct shared shared;

    if (!read->memory || !may_share(&bounded, read->capacity_bytes))
        return peer_read(peers, owner, read, &bounded, error);
    shared_init(&shared, peers, owner, &bounded);
    shared.read = read;
    read->status = share(&shared, KIND_READ, (size_t)read->capacity_bytes, read->key, error);
    return read->status;
}

enum shoal_status peer_write_shared(struct peers *peers, const struct peer_address *owner, struct peer_write *write,
                                    const struct call *call, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    struct shared shared;

    if (!may_share(&bounded, write->len_bytes))
        return peer_write(peers, owner, write, &bounded, error);
    shared_init(&shared, peers, owner, &bounded);
    shared.write = write;
    write->status = share(&shared, KIND_WRITE, (size_t)write->len_bytes, write->key, error);
    return write->status;
}
