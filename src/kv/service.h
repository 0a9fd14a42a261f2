/* SPDX-License-Identifier: Apache-2.0 */
/* ClientRpcService: methods 8..19 of wire/kv.proto at this client's RPC port, on top of the data manager. DRAM reads
 * and small writes are answered on the loop; what may touch a disk runs on a bounded number of worker threads
 * (rpc_thread_num). */
#ifndef SHOAL_KV_SERVICE_H
#define SHOAL_KV_SERVICE_H

#include <shoal/engine.h>
#include <shoal/status.h>

#include "base/buf.h"
#include "kv/data_manager.h"
#include "rpc/rpc.h"

enum kv_method {
    KV_METHOD_READ = 8,
    KV_METHOD_WRITE = 9,
    KV_METHOD_PRE_WRITE = 10,
    KV_METHOD_WRITE_COMMIT = 11,
    KV_METHOD_WRITE_REVOKE = 12,
    KV_METHOD_PIN_KEY = 13,
    KV_METHOD_UNPIN_KEY = 14,
    KV_METHOD_RENEW = 15,
    KV_METHOD_DELETE = 16,
    KV_METHOD_QUERY = 17,
    KV_METHOD_BATCH_READ = 18,
    KV_METHOD_BATCH_WRITE = 19,
};

#define KV_BATCH_ITEMS_MAX 4096           /* of one batch, delete, query or lease request; more: LIMIT */
#define KV_REQUEST_MAX_BYTES (256u << 10) /* what an owner accepts as one request: a value inside it, and its key */
#define KV_INLINE_MAX_BYTES (1u << 20)    /* larger values never travel inside an answer, whatever inline_max says */

struct kv_service;

struct kv_service_config {
    struct shoal_engine *engine;  /* borrowed */
    struct rpc *rpc;              /* borrowed, lives on engine_loop(engine); handlers are set by create */
    struct data_manager *manager; /* borrowed */
    unsigned worker_threads;      /* 0: 2 */
    int64_t lease_ms;             /* of pins and held writes; 0: 5000 */
};
enum shoal_status kv_service_create(const struct kv_service_config *config, struct kv_service **service_out,
                                    struct shoal_error *error);
/* Ends everything that is going on, gives all leases back. Not on the loop. NULL is allowed. */
void kv_service_destroy(struct kv_service *service);
/* Prometheus text: shoal_kv_*. */
bool kv_service_metrics(struct kv_service *service, struct buf *out);

#endif
