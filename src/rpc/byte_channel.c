/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/byte_channel.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"

#define ENVIRONMENT_NAME "MC_RPC_PROTOCOL"
#define DEFAULT_NAME "auto"

static const struct byte_channel_ops *const protocols[] = {&byte_channel_auto, &byte_channel_tcp, &byte_channel_rdma,
                                                           &byte_channel_ucx};

enum shoal_status byte_channel_find(const char *name, const struct byte_channel_ops **ops_out,
                                    struct shoal_error *error)
{
    const char *origin = "";
    struct buf known;

    if (!name) {
        name = getenv(ENVIRONMENT_NAME);
        origin = ENVIRONMENT_NAME ": ";
    }
    if (!name || !name[0])
        name = DEFAULT_NAME;
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++) {
        if (strcmp(protocols[i]->name, name) == 0) {
            *ops_out = protocols[i];
            return SHOAL_OK;
        }
    }
    buf_init(&known, 256);
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        buf_append_format(&known, "%s'%s'", i ? ", " : "", protocols[i]->name);
    error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s'%.64s' is not a protocol for control calls: use %s", origin, name,
              known.data ? (const char *)known.data : "'" DEFAULT_NAME "'");
    buf_release(&known);
    return SHOAL_INVALID_ARGUMENT;
}

enum shoal_status byte_channel_start(const struct byte_channel_ops *ops, struct shoal_error *error)
{
    enum shoal_status status = ops->start(error);

    if (status)
        error_prefix(error, ENVIRONMENT_NAME "=%s", ops->name);
    return status;
}
