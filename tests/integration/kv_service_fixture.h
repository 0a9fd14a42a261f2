/* SPDX-License-Identifier: Apache-2.0 */
/* An owner (engine, tiers, client RPC service) and a caller (engine, blocking channels) in one process, without master:
 * the data manager is a stand-in that commits to the real tiers, and whose announcements end as the test wants. */
#ifndef SHOAL_TESTS_KV_SERVICE_FIXTURE_H
#define SHOAL_TESTS_KV_SERVICE_FIXTURE_H

#include "../contract/transport_fixture.h"

#include "engine/engine.h"
#include "kv/service.h"
#include "rpc/channel.h"
#include "tier/tier.h"
#include "wire/kv.pb-c.h"

#define MIB (1u << 20)

struct owner {
    struct shoal_engine *engine;
    struct rpc *rpc;
    struct tier_backend *backend;
    struct data_manager *manager;
    struct kv_service *service;
    char *directory; /* owned; of a STORAGE tier on disk */
};

struct owner_options {
    uint64_t dram_bytes, storage_bytes; /* 0: no such tier; storage: in memory, but without addresses */
    bool is_on_disk;                    /* storage: the real kind */
    int64_t lease_ms;
    unsigned staging_buffers;
    const struct shoal_engine_config *engine; /* NULL: fixture_config */
    const char *transport_args;               /* of "fault"; NULL: plain tcp */
};
struct owner owner_open(const struct owner_options *options);
void owner_close(struct owner *owner); /* checks that nothing is left in use */
uint64_t owner_used_bytes(const struct owner *owner);
/* A value of kv_service_metrics; name with its labels. */
uint64_t owner_metric(const struct owner *owner, const char *name);
/* Local content. */
void owner_put(struct owner *owner, const char *key, uint64_t seed, uint64_t len_bytes);

/* How data_manager_finish ends from now on; SHOAL_OK at first. */
void owner_set_outcome(struct owner *owner, enum shoal_status status);
/* Finishing waits until is_held becomes false. */
void owner_hold_finishing(struct owner *owner, bool is_held);
unsigned owner_finishing(const struct owner *owner); /* calls so far */

/* What the storage tiers of this process do. */
void owner_fail_disk(bool is_failing); /* IO from now on */
void owner_hold_disk(bool is_held);    /* reads and writes wait */
unsigned owner_disk_waiting(void);     /* how many are in there */

struct caller {
    struct shoal_engine *engine;
    struct rpc_channels *channels;
    uint8_t *memory; /* registered for READ and WRITE by peers */
    size_t len;
    uint64_t key;
    struct shoal_segment *segment; /* of the owner */
    const struct owner *owner;
    int64_t timeout_ms; /* of each call; 0: PATIENCE_MS */
};
struct caller caller_open(const struct owner *owner, size_t memory_len, const struct shoal_engine_config *config);
void caller_close(struct caller *caller);
/* The caller's memory from offset on, as a request names it. */
void caller_describe(const struct caller *caller, size_t offset, size_t len, Shoal__Wire__KvMemory *memory_out);

/* answer_out: the unpacked answer (NULL descriptor: not wanted); protobuf_c_message_free_unpacked. */
enum shoal_status caller_call(struct caller *caller, unsigned method, const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *descriptor, void *answer_out, const struct call *call,
                              struct shoal_error *error);
enum shoal_status caller_raw(struct caller *caller, unsigned method, const void *body, size_t len,
                             struct shoal_error *error);
void answer_free(void *message);

/* Short forms. */
enum shoal_status caller_read(struct caller *caller, const Shoal__Wire__KvReadRequest *request,
                              Shoal__Wire__KvReadResponse **answer_out, struct shoal_error *error);
enum shoal_status caller_write(struct caller *caller, const Shoal__Wire__KvWriteRequest *request,
                               Shoal__Wire__KvWriteResponse **answer_out, struct shoal_error *error);
enum shoal_status caller_put_inline(struct caller *caller, const char *key, uint64_t seed, size_t len,
                                    struct shoal_error *error);
/* The status of the one lease. */
enum shoal_status caller_lease(struct caller *caller, unsigned method, uint64_t lease_id);

#endif
