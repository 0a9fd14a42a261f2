/* SPDX-License-Identifier: Apache-2.0 */
/* Frame: u16 magic, u8 type, u8 code, u32 flags, u64 id, u64 addr, u64 len, u64 key, u64 from, u64 share, 72 bytes of
 * text filled up with NUL; little-endian. */
#include "wire/local.h"

#include <stdbool.h>
#include <string.h>

#include "base/endian.h"

#define LOCAL_MAGIC 0x4c53u /* "SL" on the wire */
#define FLAGS_ALL ((unsigned)LOCAL_FLAG_LIMITED | (unsigned)LOCAL_FLAG_CAN_READ | (unsigned)LOCAL_FLAG_SHARES)

void local_encode(const struct local_frame *frame, uint8_t out[LOCAL_FRAME_BYTES])
{
    memset(out, 0, LOCAL_FRAME_BYTES);
    put_le16(out, LOCAL_MAGIC);
    out[2] = frame->type;
    out[3] = frame->code;
    put_le32(out + 4, frame->flags);
    put_le64(out + 8, frame->id);
    put_le64(out + 16, frame->addr);
    put_le64(out + 24, frame->len);
    put_le64(out + 32, frame->key);
    put_le64(out + 40, frame->from);
    put_le64(out + 48, frame->share);
    memcpy(out + 56, frame->text, strnlen(frame->text, LOCAL_TEXT_BYTES));
}

/* It ends up in logs and error messages. */
static bool take_text(const uint8_t *from, char out[LOCAL_TEXT_BYTES + 1])
{
    size_t len = strnlen((const char *)from, LOCAL_TEXT_BYTES);

    for (size_t i = 0; i < LOCAL_TEXT_BYTES; i++)
        if (i < len ? from[i] < 0x20 || from[i] == 0x7f : from[i] != 0)
            return false;
    memcpy(out, from, len);
    out[len] = '\0';
    return true;
}

static bool is_valid(const struct local_frame *frame)
{
    if ((frame->type == LOCAL_REFUSE) != (frame->code != LOCAL_CODE_NONE) || frame->flags & ~FLAGS_ALL)
        return false;
    switch (frame->type) {
    case LOCAL_READ:
    case LOCAL_WRITE:
    case LOCAL_SHARE:
        return frame->len >= 1 && frame->len <= LOCAL_RANGE_MAX_BYTES;
    case LOCAL_PROGRESS:
        return frame->len <= LOCAL_RANGE_MAX_BYTES;
    case LOCAL_HELLO:
    case LOCAL_READY:
    case LOCAL_CANCEL:
    case LOCAL_RELEASE:
    case LOCAL_UNSHARE:
    case LOCAL_GRANT:
    case LOCAL_DONE:
    case LOCAL_REFUSE:
    case LOCAL_REVOKE:
        return frame->len == 0;
    default:
        return false;
    }
}

enum shoal_status local_decode(const uint8_t in[LOCAL_FRAME_BYTES], struct local_frame *frame_out)
{
    struct local_frame frame = {
        .type = in[2],
        .code = in[3],
        .flags = get_le32(in + 4),
        .id = get_le64(in + 8),
        .addr = get_le64(in + 16),
        .len = get_le64(in + 24),
        .key = get_le64(in + 32),
        .from = get_le64(in + 40),
        .share = get_le64(in + 48),
    };

    if (get_le16(in) != LOCAL_MAGIC || !is_valid(&frame) || !take_text(in + 56, frame.text))
        return SHOAL_PROTOCOL;
    *frame_out = frame;
    return SHOAL_OK;
}

enum shoal_status local_code_status(uint8_t code)
{
    switch (code) {
    case LOCAL_CODE_INVALID:
        return SHOAL_INVALID_ARGUMENT;
    case LOCAL_CODE_CANCELED:
        return SHOAL_CANCELED;
    case LOCAL_CODE_UNREADABLE:
        return SHOAL_IO;
    case LOCAL_CODE_UNABLE:
        return SHOAL_UNSUPPORTED;
    case LOCAL_CODE_NO_MEMORY:
        return SHOAL_NO_MEMORY;
    default:
        return SHOAL_PROTOCOL;
    }
}
