/* SPDX-License-Identifier: Apache-2.0 */
/* Frame: magic "SHOL", u32 frame length, u16 version, u8 channel, u8 verdict, u64 instance, u64 wanted, then three
 * counted fields (u16 length and bytes): name, cluster, and u16 proof kind with the proof. All integers little-endian.
 */
#include "wire/hello.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/endian.h"
#include "base/error.h"

static const uint8_t hello_magic[4] = {'S', 'H', 'O', 'L'};

#define HELLO_FIXED_BYTES (HELLO_PREFIX_BYTES + 2 + 1 + 1 + 8 + 8)
#define HELLO_MIN_BYTES (HELLO_FIXED_BYTES + 2 + 2 + 2 + 2)

/* What is left of a frame. */
struct cursor {
    const uint8_t *at;
    size_t left;
};

static size_t put_text(uint8_t *to, const char *text, size_t max)
{
    size_t len = strnlen(text, max);

    put_le16(to, (uint16_t)len);
    memcpy(to + 2, text, len);
    return 2 + len;
}

size_t hello_encode(const struct hello *hello, uint8_t out[HELLO_MAX_BYTES])
{
    size_t proof_len = hello->proof_len <= HELLO_PROOF_MAX_BYTES ? hello->proof_len : HELLO_PROOF_MAX_BYTES;
    size_t at = HELLO_FIXED_BYTES;

    memcpy(out, hello_magic, sizeof hello_magic);
    put_le16(out + 8, hello->version);
    out[10] = hello->channel;
    out[11] = hello->verdict;
    put_le64(out + 12, hello->instance);
    put_le64(out + 20, hello->wanted);
    at += put_text(out + at, hello->name, HELLO_NAME_MAX_BYTES);
    at += put_text(out + at, hello->cluster, HELLO_CLUSTER_MAX_BYTES);
    put_le16(out + at, hello->proof_kind);
    put_le16(out + at + 2, (uint16_t)proof_len);
    memcpy(out + at + 4, hello->proof, proof_len);
    at += 4 + proof_len;
    put_le32(out + 4, (uint32_t)at);
    return at;
}

enum shoal_status hello_frame_len(const uint8_t prefix[HELLO_PREFIX_BYTES], size_t *frame_len_out)
{
    uint32_t len = get_le32(prefix + 4);

    if (memcmp(prefix, hello_magic, sizeof hello_magic) != 0 || len < HELLO_MIN_BYTES || len > HELLO_MAX_BYTES)
        return SHOAL_PROTOCOL;
    *frame_len_out = len;
    return SHOAL_OK;
}

static bool take_u16(struct cursor *cursor, uint16_t *out)
{
    if (cursor->left < 2)
        return false;
    *out = get_le16(cursor->at);
    cursor->at += 2;
    cursor->left -= 2;
    return true;
}

/* Names end up in logs and error messages: no control characters, no NUL inside. */
static bool take_text(struct cursor *cursor, char *out, size_t max)
{
    uint16_t len;

    if (!take_u16(cursor, &len) || len > max || len > cursor->left)
        return false;
    for (size_t i = 0; i < len; i++)
        if (cursor->at[i] < 0x20 || cursor->at[i] == 0x7f)
            return false;
    memcpy(out, cursor->at, len);
    out[len] = '\0';
    cursor->at += len;
    cursor->left -= len;
    return true;
}

enum shoal_status hello_decode(const uint8_t *frame, size_t len, struct hello *hello_out)
{
    struct hello hello;
    struct cursor cursor;
    size_t frame_len;

    if (len < HELLO_MIN_BYTES || hello_frame_len(frame, &frame_len) != SHOAL_OK || frame_len != len)
        return SHOAL_PROTOCOL;
    memset(&hello, 0, sizeof hello);
    hello.version = get_le16(frame + 8);
    hello.channel = frame[10];
    hello.verdict = frame[11];
    hello.instance = get_le64(frame + 12);
    hello.wanted = get_le64(frame + 20);
    cursor = (struct cursor){frame + HELLO_FIXED_BYTES, len - HELLO_FIXED_BYTES};
    if (!take_text(&cursor, hello.name, HELLO_NAME_MAX_BYTES) ||
        !take_text(&cursor, hello.cluster, HELLO_CLUSTER_MAX_BYTES) || !take_u16(&cursor, &hello.proof_kind) ||
        !take_u16(&cursor, &hello.proof_len) || hello.proof_len > HELLO_PROOF_MAX_BYTES ||
        hello.proof_len > cursor.left || hello.version == 0)
        return SHOAL_PROTOCOL;
    memcpy(hello.proof, cursor.at, hello.proof_len);
    *hello_out = hello;
    return SHOAL_OK;
}

const char *hello_verdict_text(unsigned verdict)
{
    switch (verdict) {
    case HELLO_ACCEPT:
        return "accepted";
    case HELLO_REFUSE_VERSION:
        return "protocol version is not supported";
    case HELLO_REFUSE_CLUSTER:
        return "belongs to another cluster";
    case HELLO_REFUSE_CHANNEL:
        return "channel is not served there";
    case HELLO_REFUSE_LIMIT:
        return "too many connections";
    case HELLO_REFUSE_IDENTITY:
        return "address is used by another process now";
    default:
        return "refused for an unknown reason";
    }
}

enum shoal_status hello_judge_answer(const struct hello *answer, const char *address, const char *cluster,
                                     uint64_t wanted, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_PROTOCOL;
    int sys_errno = 0;

    switch (answer->verdict) {
    case HELLO_ACCEPT:
        if (strcmp(answer->cluster, cluster) == 0 && (!wanted || answer->instance == wanted))
            return SHOAL_OK;
        return error_set(error, SHOAL_UNREACHABLE, 0, "%s is used by another process now ('%s')", address,
                         answer->name);
    case HELLO_REFUSE_LIMIT:
        status = SHOAL_LIMIT;
        break;
    case HELLO_REFUSE_CHANNEL:
        sys_errno = EPROTONOSUPPORT;
        status = SHOAL_UNREACHABLE;
        break;
    case HELLO_REFUSE_IDENTITY:
        status = SHOAL_UNREACHABLE;
        break;
    case HELLO_REFUSE_CLUSTER:
        return error_set(error, status, 0, "%s ('%s') belongs to another cluster: '%s', not '%s'", address,
                         answer->name, answer->cluster, cluster);
    default:
        break;
    }
    return error_set(error, status, sys_errno, "%s ('%s') refused the connection: %s", address, answer->name,
                     hello_verdict_text(answer->verdict));
}
