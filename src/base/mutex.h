/* SPDX-License-Identifier: Apache-2.0 */
/* Ranked mutexes: a thread takes them in increasing rank only. Debug builds (no NDEBUG) abort on a violation, which is
 * always our own bug. docs/LOCKING.md lists every rank. */
#ifndef SHOAL_BASE_MUTEX_H
#define SHOAL_BASE_MUTEX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum mutex_rank {
    RANK_STORE = 10,       /* store: catalog */
    RANK_MASTER = 15,      /* master: registry and routes */
    RANK_PAYLOAD = 20,     /* store: one payload / pull */
    RANK_KV = 22,          /* kv: client handle, route cache */
    RANK_KV_SERVICE = 24,  /* kv: leases, workers */
    RANK_KV_SESSION = 26,  /* kv: announcements to the master */
    RANK_MEMBERSHIP = 30,  /* engine: lease state */
    RANK_TIER_STRIPE = 32, /* tier: index, by key */
    RANK_TIER = 34,        /* tier: backend, policy */
    RANK_TIER_SPACE = 36,  /* tier: one tier's space */
    RANK_ENGINE = 40,      /* engine: segments, batches */
    RANK_MEMORY = 50,      /* engine: registered memory */
    RANK_TRANSPORT = 60,
    RANK_RPC = 65,  /* rpc: idle channels */
    RANK_META = 70, /* metadata backends */
    RANK_POOL = 80,
    RANK_LOOP = 90, /* post queue */
    RANK_CANCEL = 95,
    RANK_LOG = 100,
};

struct mutex {
    pthread_mutex_t native;
    enum mutex_rank rank;
};

void mutex_init(struct mutex *mutex, enum mutex_rank rank);
void mutex_release(struct mutex *mutex);
void mutex_lock(struct mutex *mutex);
void mutex_unlock(struct mutex *mutex);

/* Conditions measure time on the monotonic clock. */
struct cond {
    pthread_cond_t native;
};
void cond_init(struct cond *cond);
void cond_release(struct cond *cond);
void cond_wait(struct cond *cond, struct mutex *mutex);
/* false: the deadline (clock.h) passed. */
bool cond_wait_until(struct cond *cond, struct mutex *mutex, int64_t deadline_ms);
void cond_signal(struct cond *cond);
void cond_broadcast(struct cond *cond);

#endif
