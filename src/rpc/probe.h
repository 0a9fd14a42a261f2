/* SPDX-License-Identifier: Apache-2.0 */
/* What a node offers to whoever wants to measure the way to it (shoal doctor --peer): a control call that costs
 * nothing, and a little memory to read. The memory is made when somebody asks first; its content is a function of the
 * offset, so that a reader can tell wrong bytes. */
#ifndef SHOAL_RPC_PROBE_H
#define SHOAL_RPC_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "rpc/rpc.h"

#define PROBE_METHOD (RPC_METHOD_MAX - 1) /* of every service; the others count from 1 */
#define PROBE_BYTES ((size_t)4 << 20)

struct shoal_engine;
struct probe;

/* Serves PROBE_METHOD of rpc. Both are borrowed. Before rpc serves. */
enum shoal_status probe_create(struct shoal_engine *engine, struct rpc *rpc, struct probe **probe_out,
                               struct shoal_error *error);
/* After rpc_destroy, before the engine is destroyed. Not on the loop. NULL is allowed. */
void probe_destroy(struct probe *probe);

/* The eight bytes at that offset (a multiple of 8). */
uint64_t probe_word(uint64_t offset_bytes);

struct probe_answer {
    uint64_t addr, len_bytes, key; /* of the memory, readable by READ */
    char version[32];              /* of the peer's program */
};
/* PROTOCOL: malformed, or less memory than PROBE_BYTES. */
enum shoal_status probe_decode(struct probe_answer *answer_out, const uint8_t *body, size_t body_len,
                               struct shoal_error *error);

#endif
