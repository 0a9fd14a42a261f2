/* SPDX-License-Identifier: Apache-2.0 */
/* Header: u16 magic, u8 type, u8 code, u32 name_len, u64 id, u64 addr, u64 key, u64 len; little-endian. */
#include "wire/data.h"

#include <stdbool.h>

#include "base/endian.h"

#define DATA_MAGIC 0x5344u /* "DS" on the wire */

void data_encode(const struct data_frame *frame, uint8_t out[DATA_HEADER_BYTES])
{
    put_le16(out, DATA_MAGIC);
    out[2] = frame->type;
    out[3] = frame->code;
    put_le32(out + 4, frame->name_len);
    put_le64(out + 8, frame->id);
    put_le64(out + 16, frame->addr);
    put_le64(out + 24, frame->key);
    put_le64(out + 32, frame->len);
}

static bool is_valid(const struct data_frame *frame)
{
    if (frame->type != DATA_REFUSE && frame->code != DATA_CODE_NONE)
        return false;
    if (frame->type != DATA_NOTIFY && frame->name_len != 0)
        return false;
    switch (frame->type) {
    case DATA_READ:
    case DATA_WRITE:
        return frame->len >= 1 && frame->len <= DATA_RANGE_MAX_BYTES;
    case DATA_CHUNK:
        return frame->len >= 1 && frame->len <= DATA_CHUNK_MAX_BYTES && frame->addr < DATA_RANGE_MAX_BYTES;
    case DATA_NOTIFY:
        return frame->name_len >= 1 && frame->name_len <= DATA_NOTIFY_NAME_MAX_BYTES && frame->len >= frame->name_len &&
               frame->len - frame->name_len <= DATA_NOTIFY_MAX_BYTES;
    case DATA_DATA:
        return frame->len >= 1 && frame->len <= DATA_RANGE_MAX_BYTES;
    case DATA_REFUSE:
        return frame->code != DATA_CODE_NONE && frame->len <= DATA_REASON_MAX_BYTES;
    case DATA_ABORT:
    case DATA_GRANT:
    case DATA_DONE:
        return frame->len == 0;
    default:
        return false;
    }
}

enum shoal_status data_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_frame *frame_out)
{
    struct data_frame frame = {
        .type = in[2],
        .code = in[3],
        .name_len = get_le32(in + 4),
        .id = get_le64(in + 8),
        .addr = get_le64(in + 16),
        .key = get_le64(in + 24),
        .len = get_le64(in + 32),
    };

    if (get_le16(in) != DATA_MAGIC || !is_valid(&frame))
        return SHOAL_PROTOCOL;
    *frame_out = frame;
    return SHOAL_OK;
}

uint64_t data_body_len(const struct data_frame *frame)
{
    switch (frame->type) {
    case DATA_CHUNK:
    case DATA_NOTIFY:
    case DATA_DATA:
    case DATA_REFUSE:
        return frame->len;
    default:
        return 0;
    }
}

enum shoal_status data_code_status(uint8_t code)
{
    switch (code) {
    case DATA_CODE_INVALID:
        return SHOAL_INVALID_ARGUMENT;
    case DATA_CODE_CANCELED:
        return SHOAL_CANCELED;
    case DATA_CODE_UNREADABLE:
        return SHOAL_IO;
    case DATA_CODE_UNSUPPORTED:
        return SHOAL_UNSUPPORTED;
    case DATA_CODE_LIMIT:
        return SHOAL_LIMIT;
    default:
        return SHOAL_PROTOCOL;
    }
}
