/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that this side drives, for owners that cannot reach us (behind a translated or filtered address) and for
 * callers that want to know how far a transfer is: READs under pins, WRITEs into space that is committed afterwards. A
 * lease is renewed while its transfer lives, and what was read counts only if it lived until the end. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/progress.h"
#include "kv/peer_internal.h"

#define LINKS_MAX 64
#define ONE_WAY_MS 60000 /* then the owner may try again */
#define LEASE_ATTEMPTS 3

#define SLICES_MAX 4 /* at a time */
#define SLICE_SMALL_BYTES (UINT64_C(1) << 20)
#define SLICE_LARGE_BYTES (UINT64_C(32) << 20)
#define SLICE_SHORT_MS 50
#define SLICE_LONG_MS 400

/* --- owners that cannot reach us --- */

struct peer_link {
    struct list_node node;         /* in peers->links_by_use, last used first */
    struct shoal_segment *segment; /* owned */
    unsigned users;
    bool is_dropped; /* not in the map any more: the last user frees it */
    int64_t one_way_until_ms;
    size_t key_len;
    uint8_t key[sizeof(uint64_t) + HOSTPORT_TEXT_BYTES]; /* instance, address */
};

static size_t link_key(const struct peer_address *owner, uint8_t key_out[sizeof(uint64_t) + HOSTPORT_TEXT_BYTES])
{
    size_t len = strnlen(owner->address, HOSTPORT_TEXT_BYTES);

    memcpy(key_out, &owner->instance, sizeof owner->instance);
    memcpy(key_out + sizeof owner->instance, owner->address, len);
    return sizeof owner->instance + len;
}

static void link_free(struct peer_link *link)
{
    shoal_segment_close(link->segment);
    free(link);
}

/* With the mutex. */
static void link_drop(struct peers *peers, struct peer_link *link)
{
    map_remove(&peers->links, link->key, link->key_len);
    list_remove(&link->node);
    link->is_dropped = true;
    if (link->users == 0)
        link_free(link);
}

/* With the mutex: finds it, or takes fresh and sets it NULL. */
static struct peer_link *link_find_or_add(struct peers *peers, struct peer_link **fresh)
{
    struct peer_link *link = map_get(&peers->links, (*fresh)->key, (*fresh)->key_len);

    if (link) {
        list_remove(&link->node);
    } else {
        link = *fresh;
        if (!map_put(&peers->links, link->key, link->key_len, link))
            return NULL;
        *fresh = NULL;
    }
    list_push_front(&peers->links_by_use, &link->node);
    link->users++;
    if (peers->links.count > LINKS_MAX)
        link_drop(peers, container_of(peers->links_by_use.head.prev, struct peer_link, node));
    return link;
}

static enum shoal_status link_get(struct peers *peers, const struct peer_address *owner, struct peer_link **link_out,
                                  struct shoal_error *error)
{
    struct peer_link *fresh = calloc(1, sizeof *fresh), *link;
    enum shoal_status status;

    if (!fresh)
        return error_no_memory(error);
    list_node_init(&fresh->node);
    fresh->key_len = link_key(owner, fresh->key);
    status = engine_segment_create(peers->engine, owner->server_name, owner->address, owner->instance, &fresh->segment,
                                   error);
    if (status) {
        free(fresh);
        return status;
    }
    mutex_lock(&peers->mutex);
    link = link_find_or_add(peers, &fresh);
    mutex_unlock(&peers->mutex);
    if (fresh)
        link_free(fresh);
    if (!link)
        return error_no_memory(error);
    *link_out = link;
    return SHOAL_OK;
}

static void link_put(struct peers *peers, struct peer_link *link, bool is_one_way)
{
    bool is_last;

    mutex_lock(&peers->mutex);
    if (is_one_way)
        link->one_way_until_ms = deadline_after_ms(ONE_WAY_MS);
    is_last = --link->users == 0 && link->is_dropped;
    mutex_unlock(&peers->mutex);
    if (is_last)
        link_free(link);
}

bool peer_is_one_way(struct peers *peers, const struct peer_address *owner)
{
    uint8_t key[sizeof(uint64_t) + HOSTPORT_TEXT_BYTES];
    size_t len = link_key(owner, key);
    const struct peer_link *link;
    bool is_one_way;

    mutex_lock(&peers->mutex);
    link = map_get(&peers->links, key, len);
    is_one_way = link && !deadline_is_past(link->one_way_until_ms);
    mutex_unlock(&peers->mutex);
    return is_one_way;
}

void peer_links_release(struct peers *peers)
{
    LIST_FOR_EACH_SAFE (link, &peers->links_by_use, struct peer_link, node)
        link_drop(peers, link);
    map_release(&peers->links);
}

/* --- READs or WRITEs under a lease --- */

/* One operation for all bytes; or, for who wants to know how far it is, several one after the other, some of them at a
 * time. */
struct slice {
    struct engine_op op; /* arg: the transfer */
    bool is_running;     /* under the transfer's mutex; set by who submits */
    int64_t started_ms;
};

struct transfer {
    struct peers *peers;
    enum shoal_op op;
    struct shoal_segment *segment; /* borrowed */
    uint8_t *local;
    uint64_t remote_addr, remote_key, len_bytes;
    uint64_t at_bytes;    /* where the transfer begins in the value */
    uint64_t begun_bytes; /* those of slices that were submitted */
    uint64_t slice_bytes; /* of the next slice */
    size_t slice_count;
    struct slice slices[SLICES_MAX];

    struct mutex mutex; /* RANK_KV: guards what follows */
    struct cond changed;
    size_t running;
    uint64_t moved_bytes;
    bool is_canceled;
    enum shoal_status status; /* of the first slice that failed */
    struct shoal_error error;
};

static void slice_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct transfer *transfer = op->arg;

    mutex_lock(&transfer->mutex);
    container_of(op, struct slice, op)->is_running = false;
    transfer->running--;
    if (status == SHOAL_OK) {
        transfer->moved_bytes += op->len_bytes;
    } else if (transfer->status == SHOAL_OK) {
        transfer->status = status;
        if (error)
            transfer->error = *error;
        else
            error_set(&transfer->error, status, 0, "transfer: %s", shoal_status_text(status));
    }
    cond_signal(&transfer->changed);
    mutex_unlock(&transfer->mutex);
}

static void transfer_canceled(void *arg)
{
    struct transfer *transfer = arg;

    mutex_lock(&transfer->mutex);
    transfer->is_canceled = true;
    cond_signal(&transfer->changed);
    mutex_unlock(&transfer->mutex);
}

static void end_on_loop(void *arg)
{
    struct transfer *transfer = arg;

    for (size_t i = 0; i < transfer->slice_count; i++) {
        bool is_running;

        /* Operations end on this loop only, so it cannot end between the two. */
        mutex_lock(&transfer->mutex);
        is_running = transfer->slices[i].is_running;
        mutex_unlock(&transfer->mutex);
        if (is_running)
            engine_op_cancel(transfer->peers->engine, &transfer->slices[i].op);
    }
}

/* When it returns nothing touches the memory any more. */
static void transfer_end(struct transfer *transfer)
{
    bool is_running;

    mutex_lock(&transfer->mutex);
    is_running = transfer->running > 0;
    mutex_unlock(&transfer->mutex);
    if (is_running)
        loop_call(engine_loop(transfer->peers->engine), end_on_loop, transfer);
    mutex_lock(&transfer->mutex);
    while (transfer->running)
        cond_wait(&transfer->changed, &transfer->mutex);
    mutex_unlock(&transfer->mutex);
}

static void slice_start(struct transfer *transfer, struct slice *slice)
{
    uint64_t left = transfer->len_bytes - transfer->begun_bytes;

    slice->op = (struct engine_op){.op = transfer->op,
                                   .segment = transfer->segment,
                                   .local = transfer->local + transfer->begun_bytes,
                                   .remote_addr = transfer->remote_addr + transfer->begun_bytes,
                                   .remote_key = transfer->remote_key,
                                   .len_bytes = left < transfer->slice_bytes ? left : transfer->slice_bytes,
                                   .done = slice_done,
                                   .arg = transfer};
    slice->started_ms = clock_now_ms();
    transfer->begun_bytes += slice->op.len_bytes;
    mutex_lock(&transfer->mutex);
    slice->is_running = true;
    transfer->running++;
    mutex_unlock(&transfer->mutex);
    engine_submit(transfer->peers->engine, &slice->op);
}

/* Slices are as long as may be if they still end several times within a second. */
static void adapt(struct transfer *transfer, const struct slice *slice)
{
    int64_t took_ms = clock_now_ms() - slice->started_ms;

    if (took_ms < SLICE_SHORT_MS && transfer->slice_bytes < SLICE_LARGE_BYTES)
        transfer->slice_bytes *= 2;
    else if (took_ms > SLICE_LONG_MS && transfer->slice_bytes > SLICE_SMALL_BYTES)
        transfer->slice_bytes /= 2;
}

/* Submits what may be submitted now. */
static void feed(struct transfer *transfer)
{
    for (size_t i = 0; i < transfer->slice_count && transfer->begun_bytes < transfer->len_bytes; i++) {
        struct slice *slice = &transfer->slices[i];
        bool is_running;

        mutex_lock(&transfer->mutex);
        is_running = slice->is_running;
        mutex_unlock(&transfer->mutex);
        if (is_running)
            continue;
        if (slice->started_ms)
            adapt(transfer, slice);
        slice_start(transfer, slice);
    }
}

/* Sleeps until a slice has ended or something is to be done: the lease, the deadline, the caller. */
static void transfer_wait(struct transfer *transfer, int64_t until_ms)
{
    size_t before;

    mutex_lock(&transfer->mutex);
    before = transfer->running;
    while (before && transfer->running == before && !transfer->is_canceled &&
           cond_wait_until(&transfer->changed, &transfer->mutex, until_ms))
        ;
    mutex_unlock(&transfer->mutex);
}

/* is_over_out: all bytes have been moved, or a slice has failed. */
static uint64_t transfer_moved(struct transfer *transfer, bool *is_over_out)
{
    uint64_t moved;

    mutex_lock(&transfer->mutex);
    moved = transfer->moved_bytes;
    *is_over_out = moved == transfer->len_bytes || transfer->status;
    mutex_unlock(&transfer->mutex);
    return moved;
}

/* The owner's clock began later than leased_since_ms, so what is good by ours is good by its. */
struct held_lease {
    const struct peer_address *owner;
    const struct peer_lease *lease;
    int64_t leased_since_ms;
};

static enum shoal_status renew(struct peers *peers, struct held_lease *held, const struct call *call,
                               struct shoal_error *error)
{
    int64_t before_ms = clock_now_ms();
    enum shoal_status ignored;
    enum shoal_status status = peer_renew(peers, held->owner, &held->lease->lease_id, 1, call, &ignored, error);

    if (status == SHOAL_OK)
        held->leased_since_ms = before_ms;
    return status;
}

/* NOT_FOUND: the lease has ended, and with it whatever the bytes were worth. */
static enum shoal_status run_leased(struct transfer *transfer, struct held_lease *held, const struct call *call,
                                    struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    bool is_over = false;

    do {
        int64_t renew_at_ms = held->leased_since_ms + held->lease->lease_ms / 3;
        int64_t wake_ms = deadline_min(renew_at_ms, call->deadline_ms);

        feed(transfer);
        transfer_wait(transfer, deadline_min(wake_ms, call_progress_next_ms(call)));
        call_progress_at(call, transfer->at_bytes + transfer_moved(transfer, &is_over));
        if (is_over)
            break;
        status = call_check(call, error, held->owner->address);
        if (status == SHOAL_OK && clock_now_ms() >= renew_at_ms)
            status = renew(transfer->peers, held, call, error);
    } while (status == SHOAL_OK);
    transfer_end(transfer);
    if (status == SHOAL_OK && transfer->status) {
        /* Refused: the key is worth nothing any more. */
        status = transfer->status == SHOAL_INVALID_ARGUMENT ? SHOAL_NOT_FOUND : transfer->status;
        error_set(error, status, transfer->error.sys_errno, "%s: %s", held->owner->address, transfer->error.message);
    }
    if (status == SHOAL_OK && clock_now_ms() - held->leased_since_ms >= held->lease->lease_ms)
        status = renew(transfer->peers, held, call, error);
    return status;
}

/* at_bytes: of the value, where the lease's memory from skip_bytes on belongs. */
static enum shoal_status move_leased(struct peers *peers, struct held_lease *held, enum shoal_op what,
                                     struct shoal_segment *segment, uint8_t *local, uint64_t at_bytes,
                                     uint64_t skip_bytes, uint64_t len_bytes, const struct call *call,
                                     struct shoal_error *error)
{
    bool is_sliced = call->progress && len_bytes > SLICE_SMALL_BYTES;
    struct transfer transfer = {.peers = peers,
                                .op = what,
                                .segment = segment,
                                .local = local,
                                .remote_addr = held->lease->remote_addr + skip_bytes,
                                .remote_key = held->lease->remote_key,
                                .len_bytes = len_bytes,
                                .at_bytes = at_bytes,
                                .slice_bytes = is_sliced ? SLICE_SMALL_BYTES : len_bytes,
                                .slice_count = is_sliced ? SLICES_MAX : 1};
    struct cancel_hook hook;
    enum shoal_status status;

    mutex_init(&transfer.mutex, RANK_KV);
    cond_init(&transfer.changed);
    cancel_hook_add(call->cancel, &hook, transfer_canceled, &transfer);
    status = run_leased(&transfer, held, call, error);
    cancel_hook_remove(call->cancel, &hook);
    cond_release(&transfer.changed);
    mutex_release(&transfer.mutex);
    return status;
}

/* A lease that ended by itself leaves nothing to be given back; after a cancellation or at the deadline the owner lets
 * it expire. */
static bool is_worth_giving_back(enum shoal_status status)
{
    return status != SHOAL_NOT_FOUND && status != SHOAL_CANCELED && status != SHOAL_TIMED_OUT;
}

/* --- reading --- */

struct pull {
    struct peers *peers;
    const struct peer_address *owner;
    const char *key;
    uint64_t object_id;
    struct peer_link *link;
    uint8_t *memory;
    uint64_t len_bytes;
    const struct call *call;
};

/* NOT_FOUND: the object is gone. is_expired_out: the lease is, and a second attempt may do. */
static enum shoal_status pull_part(struct pull *pull, uint64_t at, uint64_t *moved_out, bool *is_expired_out,
                                   struct shoal_error *error)
{
    struct peer_lease lease;
    struct held_lease held = {.owner = pull->owner, .lease = &lease, .leased_since_ms = clock_now_ms()};
    uint64_t skip, len;
    enum shoal_status status;

    *is_expired_out = false;
    status = peer_pin(pull->peers, pull->owner, pull->key, pull->object_id, at, pull->call, &lease, error);
    if (status)
        return status;
    skip = at - lease.offset_bytes;
    len = lease.len_bytes - skip;
    if (lease.value_len_bytes != pull->len_bytes || lease.object_id != pull->object_id || len > pull->len_bytes - at)
        return peer_nonsense(pull->owner, "a pin of another object", error);
    status = move_leased(pull->peers, &held, SHOAL_OP_READ, pull->link->segment, pull->memory + at, at, skip, len,
                         pull->call, error);
    *is_expired_out = status == SHOAL_NOT_FOUND;
    if (is_worth_giving_back(status))
        (void)peer_unpin(pull->peers, pull->owner, lease.lease_id, pull->call, NULL);
    *moved_out = len;
    return status;
}

static enum shoal_status pull_all(struct pull *pull, struct shoal_error *error)
{
    unsigned expiries = 0;

    for (uint64_t at = 0; at < pull->len_bytes;) {
        uint64_t moved = 0;
        bool is_expired;
        enum shoal_status status = pull_part(pull, at, &moved, &is_expired, error);

        if (is_expired && ++expiries < LEASE_ATTEMPTS)
            continue;
        if (is_expired)
            return error_set(error, SHOAL_TIMED_OUT, 0, "%s: '%.100s': pins end before the transfer",
                             pull->owner->address, pull->key);
        if (status)
            return status;
        at += moved;
    }
    return SHOAL_OK;
}

enum shoal_status peer_pull(struct peers *peers, const struct peer_address *owner, const char *key, uint64_t object_id,
                            void *memory, uint64_t len_bytes, const struct call *call, struct shoal_error *error)
{
    struct pull pull = {
        .peers = peers, .owner = owner, .key = key, .object_id = object_id, .len_bytes = len_bytes, .call = call};
    struct exposure local;
    enum shoal_status status = exposure_open(peers, memory, len_bytes, SHOAL_ACCESS_LOCAL, &local, error);

    if (status)
        return status;
    status = link_get(peers, owner, &pull.link, error);
    if (status == SHOAL_OK) {
        pull.memory = local.memory;
        call_progress_set_total(call, len_bytes);
        status = pull_all(&pull, error);
        link_put(peers, pull.link, status == SHOAL_OK && !call->progress);
    }
    exposure_close(peers, &local, status ? 0 : len_bytes);
    return status;
}

/* --- writing --- */

static enum shoal_status push_once(struct peers *peers, const struct peer_address *owner,
                                   const struct peer_write *write, struct peer_link *link, void *memory,
                                   const struct call *call, uint64_t *object_id_out, bool *has_space_out,
                                   struct shoal_error *error)
{
    struct peer_lease lease;
    struct held_lease held = {.owner = owner, .lease = &lease, .leased_since_ms = clock_now_ms()};
    enum shoal_status status =
        peer_pre_write_as(peers, owner, write->key, write->len_bytes, write->object_id, call, &lease, error);

    if (status)
        return status;
    if (has_space_out)
        *has_space_out = true;
    status = move_leased(peers, &held, SHOAL_OP_WRITE, link->segment, memory, 0, 0, write->len_bytes, call, error);
    if (status == SHOAL_OK)
        status = peer_write_commit(peers, owner, lease.lease_id, call, object_id_out, error);
    else if (is_worth_giving_back(status))
        (void)peer_write_revoke(peers, owner, lease.lease_id, call, NULL);
    if (status == SHOAL_NOT_FOUND)
        status = error_set(error, SHOAL_TIMED_OUT, 0, "%s: '%.100s': the space was taken back before the commit",
                           owner->address, write->key);
    return status;
}

enum shoal_status peer_push(struct peers *peers, const struct peer_address *owner, const struct peer_write *write,
                            const struct call *call, uint64_t *object_id_out, bool *has_space_out,
                            struct shoal_error *error)
{
    void *data = (void *)(uintptr_t)write->data;
    struct peer_link *link;
    struct exposure local;
    enum shoal_status status = exposure_open(peers, data, write->len_bytes, SHOAL_ACCESS_LOCAL, &local, error);

    if (has_space_out)
        *has_space_out = false;
    if (status)
        return status;
    status = link_get(peers, owner, &link, error);
    if (status == SHOAL_OK) {
        status = push_once(peers, owner, write, link, local.memory, call, object_id_out, has_space_out, error);
        link_put(peers, link, status == SHOAL_OK && !call->progress);
    }
    exposure_close(peers, &local, 0);
    return status;
}
