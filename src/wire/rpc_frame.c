/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/rpc_frame.h"

#include "base/endian.h"

void rpc_frame_encode(const struct rpc_frame *frame, uint8_t out[RPC_FRAME_HEADER_BYTES])
{
    put_le32(out, frame->body_len);
    out[4] = frame->kind;
    out[5] = 0;
    put_le16(out + 6, frame->method);
    put_le64(out + 8, frame->id);
    put_le32(out + 16, (uint32_t)frame->status);
    put_le32(out + 20, frame->kind == RPC_KIND_REQUEST ? frame->timeout_ms : frame->attachment_bytes);
}

enum shoal_status rpc_frame_decode(const uint8_t in[RPC_FRAME_HEADER_BYTES], uint32_t max_body,
                                   struct rpc_frame *frame_out)
{
    struct rpc_frame frame = {
        .body_len = get_le32(in),
        .kind = in[4],
        .method = get_le16(in + 6),
        .id = get_le64(in + 8),
        .status = (int32_t)get_le32(in + 16),
    };

    *(frame.kind == RPC_KIND_REQUEST ? &frame.timeout_ms : &frame.attachment_bytes) = get_le32(in + 20);

    if ((frame.kind != RPC_KIND_REQUEST && frame.kind != RPC_KIND_RESPONSE) || in[5] != 0 ||
        frame.body_len > max_body || frame.attachment_bytes > frame.body_len)
        return SHOAL_PROTOCOL;
    *frame_out = frame;
    return SHOAL_OK;
}
