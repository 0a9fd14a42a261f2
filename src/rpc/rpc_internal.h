/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHOAL_RPC_RPC_INTERNAL_H
#define SHOAL_RPC_RPC_INTERNAL_H

#include "base/map.h"
#include "rpc/connection.h"

struct rpc {
    struct loop *loop;         /* borrowed */
    struct endpoint *endpoint; /* borrowed */
    struct {
        rpc_handler_fn fn;
        void *arg;
    } handlers[RPC_METHOD_MAX];
    uint32_t request_max_bytes;
    struct list connections; /* struct rpc_connection: accepted */
    struct rpc_counters counters;
};

#endif
