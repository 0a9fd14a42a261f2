/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/ucx_frame.h"

#include "base/endian.h"

#define MAGIC 0x5855u /* "UX" */
#define ACCESS_ALL (UCX_FRAME_READ | UCX_FRAME_WRITE | UCX_FRAME_FALLBACK)

void ucx_frame_encode(const struct ucx_frame *frame, uint8_t out[UCX_FRAME_HEADER_BYTES])
{
    put_le16(out, MAGIC);
    out[2] = frame->type;
    out[3] = frame->code;
    put_le16(out + 4, frame->set);
    put_le16(out + 6, 0);
    put_le32(out + 8, frame->body_len);
    put_le32(out + 12, 0);
    put_le64(out + 16, frame->id);
    put_le64(out + 24, frame->addr);
    put_le64(out + 32, frame->key);
    put_le64(out + 40, frame->len);
}

bool ucx_frame_is_answer(uint8_t type)
{
    return type >= UCX_FRAME_GRANT;
}

enum shoal_status ucx_frame_decode(const uint8_t in[UCX_FRAME_HEADER_BYTES], struct ucx_frame *frame_out)
{
    struct ucx_frame frame = {.type = in[2],
                              .code = in[3],
                              .set = get_le16(in + 4),
                              .body_len = get_le32(in + 8),
                              .id = get_le64(in + 16),
                              .addr = get_le64(in + 24),
                              .key = get_le64(in + 32),
                              .len = get_le64(in + 40)};
    uint8_t low = 0, high = 0;
    uint32_t body_min = 0, body_max = 0;
    bool has_range = false;

    if (get_le16(in) != MAGIC)
        return SHOAL_PROTOCOL;
    switch (frame.type) {
    case UCX_FRAME_ASK: /* any range: who cannot have it is told why */
        low = UCX_FRAME_READ;
        high = ACCESS_ALL;
        break;
    case UCX_FRAME_GRANT:
        has_range = true;
        body_min = 1;
        body_max = UCX_FRAME_BODY_MAX_BYTES;
        break;
    case UCX_FRAME_PULL:
        has_range = true;
        body_min = UCX_FRAME_PULL_BYTES + 1;
        body_max = UCX_FRAME_BODY_MAX_BYTES;
        break;
    case UCX_FRAME_LINK:
    case UCX_FRAME_LINKED:
        body_min = 1;
        body_max = UCX_FRAME_BODY_MAX_BYTES;
        break;
    case UCX_FRAME_REFUSE:
        low = UCX_FRAME_INVALID;
        high = UCX_FRAME_UNSUPPORTED;
        body_max = UCX_FRAME_REASON_MAX_BYTES;
        break;
    case UCX_FRAME_RELEASE:
    case UCX_FRAME_REVOKED:
    case UCX_FRAME_PING:
    case UCX_FRAME_REVOKE:
    case UCX_FRAME_PULLED:
        break;
    default:
        return SHOAL_PROTOCOL;
    }
    if (frame.code < low || frame.code > high || frame.body_len < body_min || frame.body_len > body_max)
        return SHOAL_PROTOCOL;
    if (has_range && (frame.len == 0 || frame.addr + frame.len < frame.addr))
        return SHOAL_PROTOCOL;
    if (frame.type == UCX_FRAME_ASK && !(frame.code & (UCX_FRAME_READ | UCX_FRAME_WRITE)))
        return SHOAL_PROTOCOL;
    *frame_out = frame;
    return SHOAL_OK;
}
