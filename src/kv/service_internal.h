/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the client RPC service; only src/kv/service*.c includes it. Everything lives on the engine's loop 0, except
 * the work of a job on a worker thread. */
#ifndef SHOAL_KV_SERVICE_INTERNAL_H
#define SHOAL_KV_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include "base/error.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/spares.h"
#include "engine/engine.h"
#include "kv/leases.h"
#include "kv/service.h"
#include "wire/kv.pb-c.h"
#include "wire/unpack.h"

#define KV_JOBS_MAX 16384u                          /* requests and items that are not answered at once */
#define KV_SPARE_JOBS_MAX 256u                      /* kept for the next ones: about half a MiB */
#define KV_TRANSFERS_MAX 64u                        /* at the same time, by the engine; */
#define KV_TRANSFER_BYTES_MAX (UINT64_C(512) << 20) /* and their bytes (a larger one goes alone); others wait */
#define KV_BATCH_VALUE_BYTES_MAX                                                                                       \
    (UINT64_C(15) << 20)                         /* inline in one answer: below RPC_RESPONSE_MAX_BYTES with all else */
#define KV_VALUE_BYTES_MAX (UINT64_C(256) << 20) /* inline values on their way from or to a disk */
#define KV_LEASES_MAX 4096u
#define KV_LEASES_PER_PEER_MAX 1024u
#define KV_STAGING_PINS_MAX 8u /* the other staging buffers are left to transfers */
#define KV_SEGMENTS_MAX 256u
#define KV_TICK_MS 20 /* deadlines and leases are looked after so often, while there are any */

enum kv_way { KV_WAY_TOLD = 0, KV_WAY_INLINE = 1, KV_WAY_WRITTEN = 2, KV_WAY_PINNED = 3 };

struct kv_counters {
    uint64_t requests[RPC_METHOD_MAX];
    uint64_t failures[RPC_METHOD_MAX]; /* answered with an error, or given up because the caller is gone */
    uint64_t malformed, timed_out, aborted, limited;
    uint64_t ways[4];                               /* answered reads by enum kv_way */
    uint64_t inline_out_bytes, inline_in_bytes;     /* values inside messages */
    uint64_t transfer_out_bytes, transfer_in_bytes; /* by the engine */
};

struct kv_service {
    struct shoal_engine *engine;  /* borrowed */
    struct rpc *rpc;              /* borrowed */
    struct data_manager *manager; /* borrowed */
    struct tier_backend *backend; /* borrowed: the manager's */
    struct loop *loop;            /* borrowed: the engine's */
    struct executor *executor;    /* owned */
    int64_t lease_ms;
    struct loop_timer timer;
    int64_t last_tick_ms; /* 0: the timer is not running */
    struct buf scratch;   /* messages are packed here */

    struct list jobs; /* struct kv_job */
    size_t job_count;
    struct spares spare_jobs;
    uint64_t value_bytes; /* inline values that are held in memory of their own */
    struct leases leases;
    struct list turn_waiters;    /* struct kv_job.wait_node: for a turn to transfer */
    struct list staging_waiters; /* the same: for a staging buffer; transfers */
    struct list pin_waiters;     /* the same; pins */
    size_t pins_reading;         /* have a staging buffer and no lease yet */
    unsigned transfers;
    uint64_t transfer_bytes;
    struct map segments;      /* struct kv_segment by instance, address and name */
    struct list segments_lru; /* the same; last used first */
    unsigned fences;          /* windows that are being closed */
    struct loop_task kick;
    bool is_kicked, is_stopping;
    struct kv_counters counters;

    struct mutex mutex; /* RANK_KV_SERVICE: guards is_idle */
    struct cond idle;
    bool is_idle; /* stopping, and nothing is going on any more */
};

/* --- answers --- */

/* Result of one read or write until it is packed. Zero-initialised it is an empty success. */
struct kv_answer {
    enum shoal_status status;
    char *text; /* owned; NULL: none */
    union {
        Shoal__Wire__KvReadResponse read;
        Shoal__Wire__KvWriteResponse write;
    };
    bool is_write, has_pin;
    Shoal__Wire__KvPin pin;
    Shoal__Wire__KvMemory memory; /* of pin */
    struct tier_object *object;   /* ref: read.value lies in it */
    uint8_t *value;               /* owned: read.value lies in it */
    uint64_t reserved_bytes;      /* of value_bytes */
};

/* Whom an answer goes to: a request of its own, or one place in a batch's answer. */
struct kv_origin {
    bool attaches;               /* reads: the caller takes an inline value as an attachment */
    struct rpc_request *request; /* NULL: of a batch, or the caller is gone */
    struct kv_batch *batch;
    size_t index;
    unsigned method;
    int64_t deadline_ms;
};

/* Its place in the answer of a batch. */
union kv_item {
    Shoal__Wire__KvBatchReadResponse__Item read;
    Shoal__Wire__KvBatchWriteResponse__Item write;
};

struct kv_batch {
    struct kv_service *service;
    struct rpc_request *request; /* NULL: the caller is gone */
    size_t count, pending;
    uint64_t value_bytes; /* inline, of the answers so far */
    bool is_write;
    void *items, *pointers;     /* behind the answers; for packing: count of them, and one pointer to each */
    struct kv_answer answers[]; /* undefined until kv_answer_send */
};

void kv_answer_init_read(struct kv_answer *answer);
void kv_answer_init_write(struct kv_answer *answer);
/* Sends, or files, and empties the answer. The origin is used up. */
void kv_answer_send(struct kv_service *service, struct kv_origin *origin, struct kv_answer *answer);
/* The same for an error; message may be NULL. */
void kv_answer_error(struct kv_service *service, struct kv_origin *origin, enum shoal_status status,
                     const char *message);
void kv_answer_release(struct kv_service *service, struct kv_answer *answer);
/* Packs and sends; OK. */
void kv_reply(struct kv_service *service, struct rpc_request *request, const ProtobufCMessage *message);
/* The same for a message that packed has at most so many bytes: saves a walk over it. */
void kv_reply_within(struct kv_service *service, struct rpc_request *request, const ProtobufCMessage *message,
                     size_t max_bytes);
/* An error, counted. */
void kv_refuse(struct kv_service *service, struct rpc_request *request, enum shoal_status status, const char *message);
/* PROTOCOL, counted as malformed. */
void kv_refuse_malformed(struct kv_service *service, struct rpc_request *request, const char *what);
struct kv_origin kv_origin_of(struct kv_service *service, struct rpc_request *request);
/* The caller's server name; NULL: it is gone. */
const char *kv_origin_peer(const struct kv_origin *origin);
void kv_batch_item_done(struct kv_batch *batch);

/* INVALID_ARGUMENT. */
enum shoal_status kv_check_key(const char *key, struct shoal_error *error);

/* What was to be unpacked there came out as NULL: NO_MEMORY or PROTOCOL. */
void kv_refuse_unpacked(struct kv_service *service, struct rpc_request *request, const struct wire_arena *arena,
                        const char *what);

/* --- jobs: what is not answered at once --- */

enum kv_slot_state {
    KV_SLOT_IDLE,
    KV_SLOT_FULL, /* fetched from the peer, waits for the disk */
    KV_SLOT_DISK, /* a worker reads or writes it */
    KV_SLOT_NET,  /* the engine moves it */
};

/* One half of the double buffer; a direct transfer uses the first one without buffer. */
struct kv_slot {
    void *buffer; /* owned: a staging buffer, or NULL */
    uint64_t offset_bytes;
    size_t len_bytes;
    enum kv_slot_state state;
    struct engine_op op;
};

struct kv_job {
    struct list_node node, wait_node; /* wait_node: in one of the service's lists, or nowhere */
    struct kv_service *service;
    struct kv_origin origin;
    /* Runs once, when nothing of the job is going on any more; answers and frees it, or goes on with it. */
    void (*ended)(struct kv_job *job);
    void (*resume)(struct kv_job *job); /* its wait is over */
    enum shoal_status status;           /* of the first failure */
    bool is_finishing;                  /* the data manager has it: cannot be stopped */
    bool has_turn;

    struct tier_object *object;         /* ref; read from */
    struct tier_allocation *allocation; /* owned; written to */
    uint64_t object_id, len_bytes;
    unsigned tier;
    bool wants_hold;
    uint8_t *value;          /* owned: an inline value on its way from or to the disk */
    uint64_t reserved_bytes; /* of value_bytes */
    uint64_t pin_offset_bytes;
    size_t pin_len_bytes;
    struct kv_window *window;               /* owned */
    Shoal__Wire__KvDeleteRequest *deletion; /* owned */
    int32_t *statuses;                      /* owned; of deletion */

    struct kv_segment *segment; /* ref */
    uint64_t remote_addr, remote_key;
    struct kv_slot slots[2];
    uint64_t next_bytes; /* where the next chunk begins */
    uint64_t disk_bytes; /* written to the disk so far */

    bool is_on_worker;
    void (*work)(struct kv_job *job);   /* on a worker; fails into work_status and work_error */
    void (*worked)(struct kv_job *job); /* on the loop */
    enum shoal_status work_status;
    struct kv_slot *work_slot;
    struct executor_task executor_task;
    struct loop_task loop_task;
    atomic_bool is_canceled; /* for work that takes long */

    /* Last: kv_job_create clears what is before them. */
    struct shoal_error error, work_error;
};

/* Takes the origin: an error is answered already when it returns NULL. */
struct kv_job *kv_job_create(struct kv_service *service, struct kv_origin *origin, void (*ended)(struct kv_job *job));
/* What it still owns is given back. It must be answered. */
void kv_job_free(struct kv_job *job);
/* Room for an inline value in memory of its own. false: too many; the job has failed. */
bool kv_job_reserve(struct kv_job *job, uint64_t len_bytes);
void kv_job_fail(struct kv_job *job, enum shoal_status status, const struct shoal_error *error);
/* Makes it end soon. It may be gone when this returns. */
void kv_job_cancel(struct kv_job *job, enum shoal_status status, const char *message);
/* Ends it if nothing of it is going on. */
void kv_job_settle(struct kv_job *job);
/* work on a worker, then worked on the loop. */
void kv_job_work(struct kv_job *job, void (*work)(struct kv_job *job), void (*worked)(struct kv_job *job));
void kv_job_wait(struct kv_job *job, struct list *where, void (*resume)(struct kv_job *job));
/* Answers with the job's failure. */
void kv_job_answer_failure(struct kv_job *job);

/* Looks soon at who waits. */
void kv_kick(struct kv_service *service);
void kv_arm(struct kv_service *service);
void kv_check_idle(struct kv_service *service);

/* --- transfers between a tier here and a peer's memory (service_transfer.c) --- */

/* Sets segment and remote range. INVALID_ARGUMENT, NO_MEMORY. */
enum shoal_status kv_job_set_remote(struct kv_job *job, const Shoal__Wire__KvMemory *memory, struct shoal_error *error);
/* Moves len_bytes of object to the remote memory, or from there into allocation, then ended. */
void kv_transfer_start(struct kv_job *job);
void kv_transfers_kick(struct kv_service *service);
void kv_transfer_release(struct kv_job *job); /* turn, buffers, segment */
void kv_segments_release(struct kv_service *service);

/* --- methods --- */

void kv_read(struct kv_service *service, struct kv_origin *origin, const Shoal__Wire__KvReadRequest *message,
             bool is_pin_only);
void kv_write(struct kv_service *service, struct kv_origin *origin, const Shoal__Wire__KvWriteRequest *message);
/* Commits the job's allocation and answers. */
void kv_write_finish(struct kv_job *job);

void kv_on_read(void *arg, struct rpc_request *request);
void kv_on_pin(void *arg, struct rpc_request *request);
void kv_on_write(void *arg, struct rpc_request *request);
void kv_on_pre_write(void *arg, struct rpc_request *request);
void kv_on_write_commit(void *arg, struct rpc_request *request);
void kv_on_write_revoke(void *arg, struct rpc_request *request);
void kv_on_unpin(void *arg, struct rpc_request *request);
void kv_on_renew(void *arg, struct rpc_request *request);
void kv_on_delete(void *arg, struct rpc_request *request);
void kv_on_query(void *arg, struct rpc_request *request);
void kv_on_batch_read(void *arg, struct rpc_request *request);
void kv_on_batch_write(void *arg, struct rpc_request *request);

/* --- leases (service_lease.c) --- */

/* Takes the holding if OK. The caller must not be gone. */
enum shoal_status kv_lease_add(struct kv_service *service, const struct kv_origin *origin,
                               const struct lease_holding *holding, uint64_t *id_out, struct shoal_error *error);
void kv_lease_release(void *arg, const struct lease_holding *holding); /* for leases_config */
/* A window by which a peer may WRITE into an allocation. */
void kv_window_close(struct kv_window *window); /* blocks; frees. NULL is allowed */

#endif
