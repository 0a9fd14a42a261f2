/* SPDX-License-Identifier: Apache-2.0 */
/* The staging of one READ or WRITE of a peer whose range is device memory, in the process that serves it: up to two
 * buffers, one at the socket while the other is copied. Belongs to one loop thread. */
#ifndef SHOAL_TRANSPORT_TCP_STAGE_H
#define SHOAL_TRANSPORT_TCP_STAGE_H

#include "loop/loop.h"
#include "transport/device.h"
#include "transport/memory.h"

struct tcp;
struct tcp_stage;

/* Takes over the pin of region. READ: direction DEVICE_OUT. event runs on the loop, not inside of a call, when there
 * may be news for owner: a window, space, all copied, a failure. NULL: out of memory (region stays the caller's). */
struct tcp_stage *tcp_stage_create(struct tcp *tcp, struct loop *loop, struct memory_region *region, uint64_t addr,
                                   uint64_t len, enum device_direction direction, void (*event)(void *owner),
                                   void *owner);
/* No event comes any more. Buffers and pin go when the copies that run have ended. NULL is allowed. */
void tcp_stage_drop(struct tcp_stage *stage);
/* SHOAL_OK, or why the memory cannot be reached; reason_out lives as long as the stage. */
enum shoal_status tcp_stage_status(const struct tcp_stage *stage, const char **reason_out);

/* --- READ --- */

/* Begins to copy. waits: if there is no buffer, as soon as there is one. */
void tcp_stage_read_ahead(struct tcp_stage *stage, bool waits);
/* What lies from offset on has not been sent. The bytes [*start_out, *end_out) around it are at the returned address
 * until a call with an offset beyond them. NULL: not yet; an event follows. */
const void *tcp_stage_window(struct tcp_stage *stage, uint64_t offset, uint64_t *start_out, uint64_t *end_out);

/* --- WRITE --- */

/* Where the next chunk (at most DEVICE_BUFFER_BYTES) may be received. NULL: nowhere yet; an event follows. */
void *tcp_stage_space(struct tcp_stage *stage);
/* The chunk is there: it is copied to its place. */
void tcp_stage_filled(struct tcp_stage *stage, uint64_t len);
bool tcp_stage_is_complete(const struct tcp_stage *stage); /* all bytes are in device memory */

#endif
