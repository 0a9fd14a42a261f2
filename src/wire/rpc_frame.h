/* SPDX-License-Identifier: Apache-2.0 */
/* Frame header of the control channel: 24 bytes, little-endian, followed by the body (a protobuf message). Pure codec.
 *
 *   offset 0  u32 body length in bytes
 *          4  u8  kind (enum rpc_kind)
 *          5  u8  reserved, 0
 *          6  u16 method
 *          8  u64 id, chosen by the caller, echoed in the response
 *         16  i32 response: enum shoal_status (body is then a text for people); request: 0
 *         20  u32 request: milliseconds the caller will wait; response: how many bytes at the end of the body are no
 * part of the message: an attachment, for values that are not to be copied through messages
 */
#ifndef SHOAL_WIRE_RPC_FRAME_H
#define SHOAL_WIRE_RPC_FRAME_H

#include <stdint.h>

#include <shoal/status.h>

#define RPC_FRAME_HEADER_BYTES 24
#define RPC_REQUEST_MAX_BYTES (64u << 10)      /* what a server accepts unasked */
#define RPC_REQUEST_LARGE_MAX_BYTES (1u << 20) /* where batches are meant to arrive: the KV master */
#define RPC_RESPONSE_MAX_BYTES (16u << 20)     /* what a client accepts for its own request */

enum rpc_kind { RPC_KIND_REQUEST = 1, RPC_KIND_RESPONSE = 2 };

struct rpc_frame {
    uint32_t body_len;
    uint8_t kind;
    uint16_t method;
    uint64_t id;
    int32_t status;
    uint32_t timeout_ms;       /* requests */
    uint32_t attachment_bytes; /* responses */
};

void rpc_frame_encode(const struct rpc_frame *frame, uint8_t out[RPC_FRAME_HEADER_BYTES]);
/* PROTOCOL: unknown kind, a reserved byte that is set, a body longer than max_body, an attachment longer than the body.
 */
enum shoal_status rpc_frame_decode(const uint8_t in[RPC_FRAME_HEADER_BYTES], uint32_t max_body,
                                   struct rpc_frame *frame_out);

#endif
