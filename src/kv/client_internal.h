/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of shoal/kv.h: client.c checks what callers give and hands it to one of two tables of operations, "direct" (an
 * engine, tiers and a session of its own: client_open.c and the files beside it) or "thin" (everything is asked of a
 * mooncake_client of this host). */
#ifndef SHOAL_KV_CLIENT_INTERNAL_H
#define SHOAL_KV_CLIENT_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/kv.h>

#include "base/buf.h"
#include "base/call.h"
#include "base/mutex.h"
#include "base/pool.h"
#include "base/progress.h"
#include "kv/data_manager.h"
#include "kv/peer.h"
#include "kv/route_cache.h"
#include "kv/service.h"
#include "kv/session.h"
#include "rpc/channel.h"
#include "rpc/probe.h"
#include "rpc/rpc.h"
#include "tier/tier.h"

#define KV_CALL_TIMEOUT_MS 10000
#define KV_METRICS_MAX_BYTES (1u << 20)
#define KV_REPLICAS_MAX 16

/* --- one call about one or more items --- */

/* Status of an item that has no result yet. */
#define KV_PENDING ((enum shoal_status)1)

struct kv_set {
    struct shoal_kv *kv;
    struct shoal_kv_item *items; /* the caller's; those with status KV_PENDING are to be done */
    size_t count;
    const struct call *call;
    struct call_progress progress; /* of call, if somebody wants to know: of sets of one item */
    /* The failure with the lowest index; batches end their items on several threads. */
    struct mutex mutex;
    size_t failed_index; /* count: none */
    struct shoal_error failure;
};
/* error: as the callee filled it (NULL: the status's own text); its message gets the key in front. Each item ends once.
 */
void kv_set_end(struct kv_set *set, size_t index, enum shoal_status status, const struct shoal_error *error);
/* All that are pending. */
void kv_set_end_all(struct kv_set *set, enum shoal_status status, const struct shoal_error *error);

/* --- groups of items by owner, a bounded number of them at a time --- */

struct kv_slot {
    const struct session_replica *owner; /* borrowed for the run */
    size_t index;                        /* the caller's */
};
/* Runs on the caller's thread and the pool's; slots: those of one owner. */
typedef void (*kv_group_fn)(void *arg, const struct session_replica *owner, const struct kv_slot *slots, size_t count);
/* Sorts slots. */
void kv_run_groups(struct shoal_kv *kv, struct kv_slot *slots, size_t count, kv_group_fn fn, void *arg);

/* --- tables of operations --- */

struct kv_put_plan {
    unsigned replicas;  /* 1..KV_REPLICAS_MAX */
    const char *prefer; /* NULL: chosen */
};

struct kv_ops {
    void (*close)(struct shoal_kv *kv);
    enum shoal_status (*alloc)(struct shoal_kv *kv, uint64_t len_bytes, void **memory_out, struct shoal_error *error);
    void (*free)(struct shoal_kv *kv, void *memory);
    enum shoal_status (*register_memory)(struct shoal_kv *kv, void *addr, uint64_t len_bytes,
                                         struct shoal_error *error);
    enum shoal_status (*unregister_memory)(struct shoal_kv *kv, void *addr, uint64_t len_bytes,
                                           struct shoal_error *error);
    void (*put)(struct kv_set *set, const struct kv_put_plan *plan);
    void (*get)(struct kv_set *set, bool allocates);
    void (*size)(struct kv_set *set);
    void (*remove)(struct kv_set *set);
    /* pattern NULL: all. *removed counts on. */
    enum shoal_status (*remove_matching)(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                         uint64_t *removed, struct shoal_error *error);
    enum shoal_status (*list)(struct shoal_kv *kv, const char *pattern, const struct call *call, shoal_kv_list_fn fn,
                              void *arg, struct shoal_error *error);
    enum shoal_status (*metrics)(struct shoal_kv *kv, struct buf *out, struct shoal_error *error);
    enum shoal_status (*status)(struct shoal_kv *kv, const struct call *call, char **text_out,
                                struct shoal_error *error);
};

struct kv_arena;
struct thin;

struct kv_counters {
    _Atomic uint64_t gets_local, gets_remote, get_failures, retries, puts_local, puts_remote, put_failures, removes;
};

struct shoal_kv {
    const struct kv_ops *ops;
    char *address;
    /* direct; owned */
    struct shoal_engine *engine;
    struct rpc *rpc;
    struct probe *probe;
    struct rpc_channels *channels;
    struct tier_backend *tiers; /* NULL: owns nothing; then no manager and no service either */
    struct session *session;
    struct data_manager *manager;
    struct kv_service *service;
    struct peers *peers;
    struct route_cache *routes;
    struct pool *pool; /* groups of a batch */
    struct kv_arena *arena;
    char *master;
    uint64_t instance;
    struct kv_counters counters;
    _Atomic unsigned rotor; /* which replica is asked first */
    /* thin; owned. It has a pool, too */
    struct thin *thin;
};

/* Fills kv, whose ops it sets; the caller closes it if that fails. */
enum shoal_status kv_open_direct(struct shoal_kv *kv, const struct shoal_kv_config *config, const struct call *call,
                                 struct shoal_error *error);
enum shoal_status kv_open_thin(struct shoal_kv *kv, const struct shoal_kv_config *config, const struct call *call,
                               struct shoal_error *error);

/* --- of the direct table --- */

void kv_direct_put(struct kv_set *set, const struct kv_put_plan *plan);
void kv_direct_get(struct kv_set *set, bool allocates);
void kv_direct_size(struct kv_set *set);
void kv_direct_remove(struct kv_set *set);
enum shoal_status kv_direct_remove_matching(struct shoal_kv *kv, const char *pattern, const struct call *call,
                                            uint64_t *removed, struct shoal_error *error);
enum shoal_status kv_direct_list(struct shoal_kv *kv, const char *pattern, const struct call *call, shoal_kv_list_fn fn,
                                 void *arg, struct shoal_error *error);
enum shoal_status kv_direct_metrics(struct shoal_kv *kv, struct buf *out, struct shoal_error *error);
enum shoal_status kv_direct_status(struct shoal_kv *kv, const struct call *call, char **text_out,
                                   struct shoal_error *error);

static inline struct peer_address kv_peer_of(const struct session_replica *replica)
{
    return (struct peer_address){
        .server_name = replica->server_name, .address = replica->address, .instance = replica->instance};
}

static inline void kv_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* --- memory for values: one mapping, made with the first alloc (client_arena.c) --- */

struct kv_arena_source {
    enum shoal_status (*map)(void *arg, uint64_t len_bytes, void **memory_out, struct shoal_error *error);
    void (*unmap)(void *arg, void *memory, uint64_t len_bytes);
    void *arg;
};
/* NULL: out of memory. map runs under the arena's mutex (RANK_KV). */
struct kv_arena *kv_arena_create(const struct kv_arena_source *source, uint64_t len_bytes);
void kv_arena_destroy(struct kv_arena *arena); /* NULL is allowed */
enum shoal_status kv_arena_alloc(struct kv_arena *arena, uint64_t len_bytes, void **memory_out,
                                 struct shoal_error *error);
void kv_arena_free(struct kv_arena *arena, void *memory);
/* true: [memory, memory + len_bytes) lies in it, at *offset_out. */
bool kv_arena_offset(struct kv_arena *arena, const void *memory, uint64_t len_bytes, uint64_t *offset_out);

#endif
