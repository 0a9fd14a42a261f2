/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/ucx_frame.h"

#include "base/endian.h"

#define MAGIC 0x5955u /* "UY": "UX" had other segments, and remote keys in PULL */
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
        body_min = body_max = UCX_FRAME_PULL_BYTES;
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
    case UCX_FRAME_STORED:
        break;
    default:
        return SHOAL_PROTOCOL;
    }
    if (frame.code < low || frame.code > high || frame.body_len < body_min || frame.body_len > body_max)
        return SHOAL_PROTOCOL;
    if (has_range && (frame.len == 0 || frame.addr + frame.len < frame.addr))
        return SHOAL_PROTOCOL;
    if (frame.type == UCX_FRAME_PULL && frame.len > UCX_CHUNK_MAX_BYTES)
        return SHOAL_PROTOCOL;
    if (frame.type == UCX_FRAME_ASK && !(frame.code & (UCX_FRAME_READ | UCX_FRAME_WRITE)))
        return SHOAL_PROTOCOL;
    *frame_out = frame;
    return SHOAL_OK;
}

void ucx_message_encode(const struct ucx_message *message, uint8_t out[UCX_MESSAGE_HEADER_BYTES])
{
    put_le64(out, message->token);
    put_le64(out + 8, message->id);
    put_le64(out + 16, message->grant);
    put_le64(out + 24, message->addr);
    put_le32(out + 32, message->len);
    put_le32(out + 36, message->offset);
}

enum shoal_status ucx_message_decode(const void *header, size_t header_len, size_t data_len,
                                     struct ucx_message *message_out)
{
    const uint8_t *in = header;
    struct ucx_message message;

    if (header_len != UCX_MESSAGE_HEADER_BYTES)
        return SHOAL_PROTOCOL;
    message = (struct ucx_message){.token = get_le64(in),
                                   .id = get_le64(in + 8),
                                   .grant = get_le64(in + 16),
                                   .addr = get_le64(in + 24),
                                   .len = get_le32(in + 32),
                                   .offset = get_le32(in + 36)};
    if (message.len > UCX_CHUNK_MAX_BYTES || message.offset >= message.len || message.offset % UCX_MESSAGE_BYTES != 0 ||
        data_len != ucx_message_bytes(&message) || message.addr + message.len < message.addr)
        return SHOAL_PROTOCOL;
    *message_out = message;
    return SHOAL_OK;
}

uint32_t ucx_message_bytes(const struct ucx_message *message)
{
    uint32_t left = message->len - message->offset;

    return left < UCX_MESSAGE_BYTES ? left : UCX_MESSAGE_BYTES;
}

uint32_t ucx_message_bit(const struct ucx_message *message)
{
    return (uint32_t)1 << (message->offset / UCX_MESSAGE_BYTES);
}

uint32_t ucx_message_all_bits(uint32_t chunk_len)
{
    return ((uint32_t)1 << ((chunk_len + UCX_MESSAGE_BYTES - 1) / UCX_MESSAGE_BYTES)) - 1;
}
