/* SPDX-License-Identifier: Apache-2.0 */
/* Where the leading master of several is found in the metadata service: a key that exists under the leader's lease,
 * with the "ip:port" of its RPC port as value. */
#ifndef SHOAL_KV_ELECTION_KEY_H
#define SHOAL_KV_ELECTION_KEY_H

#include "engine/keys.h"

/* "/shoal/v1/<cluster>/kv/master". NULL: out of memory. free() it. */
static inline char *election_key(const char *cluster)
{
    return engine_key(cluster, "kv", "master");
}

#endif
