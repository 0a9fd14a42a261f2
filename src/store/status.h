/* SPDX-License-Identifier: Apache-2.0 */
/* Who has what and who takes from whom: the status call between nodes. */
#ifndef SHOAL_STORE_STATUS_H
#define SHOAL_STORE_STATUS_H

#include "base/buf.h"
#include "store/store_internal.h"

/* --- codec, pure (docs/wire-protocol.md) --- */

/* The response's body: all but error and the names of source. NO_MEMORY. */
enum shoal_status status_encode(const struct shoal_source_status *status, struct buf *out);
/* Sets everything but source and error; on error nothing. PROTOCOL: malformed, not of a payload with piece_count
 * pieces, or more than max_receivers. NO_MEMORY. */
enum shoal_status status_decode(struct shoal_source_status *status, uint32_t piece_count, uint32_t max_receivers,
                                const uint8_t *body, size_t body_len, struct shoal_error *error);

/* --- loop 0 --- */

/* The payload as it is here: all but error and the names of source. NO_MEMORY. */
enum shoal_status status_of_payload(struct payload *payload, uint32_t max_receivers,
                                    struct shoal_source_status *status);
/* An rpc_handler_fn; arg is the store. */
void status_on_request(void *arg, struct rpc_request *request);

#endif
