/* SPDX-License-Identifier: Apache-2.0 */
/* A KV master inside the test's process. */
#ifndef SHOAL_TESTS_KV_MASTER_H
#define SHOAL_TESTS_KV_MASTER_H

#include <stdint.h>

struct kv_master {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct master_service *service;
    char address[64];
};

/* Listens at 127.0.0.1:port (0: a free one). settle_ms: for how long it holds answers about keys that it does not know;
 * after a restart, long enough for everybody to come back. Fails the test if it cannot. */
void kv_master_start(struct kv_master *master, uint16_t port, int64_t client_ttl_ms, int64_t settle_ms);
/* Everything it knew is gone. Zeroed or stopped: nothing. */
void kv_master_stop(struct kv_master *master);

#endif
