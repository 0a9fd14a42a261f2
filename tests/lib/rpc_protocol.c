/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/byte_channel.h"

bool rpc_protocol_is_usable(void)
{
    const struct byte_channel_ops *ops;
    struct shoal_error error;

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
    if (getenv("UCX_TLS") && strcmp(getenv("UCX_TLS"), "sm") == 0) {
        printf("skipped: TSan does not see the order that UCX keeps by queues in shared memory\n");
        return false;
    }
#endif
#endif
    if (byte_channel_find(NULL, &ops, &error) || byte_channel_start(ops, &error)) {
        printf("skipped: %s\n", error.message);
        return false;
    }
    ops->stop();
    return true;
}

struct snapshot {
    struct rpc *rpc;
    struct rpc_counters counters;
};

static void take_snapshot(void *arg)
{
    struct snapshot *snapshot = arg;

    rpc_counters(snapshot->rpc, &snapshot->counters);
}

struct rpc_counters rpc_counters_of(struct rpc *rpc, struct loop *loop)
{
    struct snapshot snapshot = {.rpc = rpc};

    loop_call(loop, take_snapshot, &snapshot);
    return snapshot.counters;
}
