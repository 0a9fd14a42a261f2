/* SPDX-License-Identifier: Apache-2.0 */
/* A client that owns objects, without the service: tiers, a session with the master at that address, a data manager. */
#ifndef SHOAL_TESTS_LIB_KV_OWNER_H
#define SHOAL_TESTS_LIB_KV_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/data_manager.h"
#include "rpc/rpc.h"

struct kv_owner {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct rpc_channels *channels;
    struct tier_backend *backend;
    struct session *session;
    struct data_manager *manager;
};

#define KV_OWNER_FAKE_DISK "" /* tier_fake.h */

/* storage_path NULL: one DRAM tier of capacity_bytes; else only a STORAGE tier there. */
void kv_owner_start(struct kv_owner *owner, const char *name, uint64_t instance, const char *master,
                    uint64_t capacity_bytes, const char *storage_path);
void kv_owner_wait_ready(struct kv_owner *owner);
void kv_owner_stop(struct kv_owner *owner);

/* A short value. */
enum shoal_status kv_owner_put(struct kv_owner *owner, const char *key, const char *value);
/* The value is here and is that one. */
bool kv_owner_has(struct kv_owner *owner, const char *key, const char *value);
/* The master's answer about the key: number of replicas; 0: NOT_FOUND. object_id_out may be NULL. */
unsigned kv_owner_routes(struct kv_owner *owner, const char *key, uint64_t *object_id_out);
uint64_t kv_owner_used_bytes(struct kv_owner *owner);

#endif
