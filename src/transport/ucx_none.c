/* SPDX-License-Identifier: Apache-2.0 */
/* Instead of the UCX transport in a build without UCX: the names are known, and say what is missing. */
#include "base/error.h"
#include "transport/transport.h"

static enum shoal_status create(const struct transport_env *env, struct transport **out, struct shoal_error *error)
{
    (void)env;
    (void)out;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "this build has no UCX (meson option -Ducx, package libucx-dev)");
}

static void destroy(struct transport *transport)
{
    (void)transport;
}

static enum shoal_status peer_open(struct transport *transport, const char *name, const char *address,
                                   uint64_t instance, struct transport_peer **out, struct shoal_error *error)
{
    (void)transport;
    (void)address;
    (void)instance;
    (void)out;
    return error_set(error, SHOAL_UNSUPPORTED, 0, "'%s': this build has no UCX", name);
}

static void peer_nothing(struct transport_peer *peer)
{
    (void)peer;
}

static void submit(struct transport_peer *peer, struct transport_request *request)
{
    (void)peer;
    (void)request; /* there is no peer to submit to */
}

#define OPS(text)                                                                                                      \
    {                                                                                                                  \
        .name = (text), .create = create, .destroy = destroy, .peer_open = peer_open, .peer_close = peer_nothing,      \
        .submit = submit, .peer_abort = peer_nothing                                                                   \
    }

const struct transport_ops transport_ucx_ops = OPS("ucx");
const struct transport_ops transport_rdma_ops = OPS("rdma");
