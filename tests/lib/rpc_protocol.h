/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of control calls that run once more over UCX. */
#ifndef SHOAL_TESTS_RPC_PROTOCOL_H
#define SHOAL_TESTS_RPC_PROTOCOL_H

#include <stdbool.h>

/* Whether the protocol that MC_RPC_PROTOCOL names can be had here; else says why: the test is to be skipped (77). */
bool rpc_protocol_is_usable(void);

#endif
