/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHOAL_RPC_RPC_INTERNAL_H
#define SHOAL_RPC_RPC_INTERNAL_H

#include "base/map.h"
#include "rpc/byte_channel.h"
#include "rpc/connection.h"
#include "rpc/stream_ucx.h"

struct rpc {
    struct loop *loop;                       /* borrowed */
    struct endpoint *endpoint;               /* borrowed */
    const struct byte_channel_ops *protocol; /* started */
    struct ucx_carrier *carrier;             /* owned; NULL: protocol is tcp */
    struct ucx_driver *driver;               /* owned; loop thread; of what is accepted over UCX, NULL: nothing yet */
    struct {
        rpc_handler_fn fn;
        void *arg;
    } handlers[RPC_METHOD_MAX];
    uint32_t request_max_bytes;
    struct list connections; /* struct rpc_connection: accepted */
    struct rpc_counters counters;
};

#endif
