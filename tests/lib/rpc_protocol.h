/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of control calls, which run over several protocols. */
#ifndef SHOAL_TESTS_RPC_PROTOCOL_H
#define SHOAL_TESTS_RPC_PROTOCOL_H

#include <stdbool.h>

#include "rpc/rpc.h"

/* Whether the protocol that MC_RPC_PROTOCOL names can be had here; else says why: the test is to be skipped (77). */
bool rpc_protocol_is_usable(void);

/* Taken on its loop, loop. */
struct rpc_counters rpc_counters_of(struct rpc *rpc, struct loop *loop);

#endif
