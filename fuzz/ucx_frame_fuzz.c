/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of frames of the UCX channel, headers and bodies. What decode accepts survives encode and decode unchanged,
 * and never announces more than a reader has room for. */
#include "fuzz.h"

#include <string.h>

#include "wire/ucx_frame.h"

/* What came with a header is always what the chunk's part has, inside the chunk. */
static void check_message(const uint8_t *data, size_t data_len)
{
    uint8_t encoded[UCX_MESSAGE_HEADER_BYTES];
    struct ucx_message message;

    if (ucx_message_decode(data, UCX_MESSAGE_HEADER_BYTES, data_len, &message) != SHOAL_OK)
        return;
    FUZZ_REQUIRE(message.len <= UCX_CHUNK_MAX_BYTES && message.offset < message.len);
    FUZZ_REQUIRE(data_len > 0 && data_len <= message.len - message.offset);
    FUZZ_REQUIRE(message.addr <= UINT64_MAX - message.len);
    FUZZ_REQUIRE((ucx_message_bit(&message) & ~ucx_message_all_bits(message.len)) == 0);
    ucx_message_encode(&message, encoded);
    FUZZ_REQUIRE(memcmp(data, encoded, sizeof encoded) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= UCX_MESSAGE_HEADER_BYTES)
        check_message(data, size - UCX_MESSAGE_HEADER_BYTES);
    while (size >= UCX_FRAME_HEADER_BYTES) {
        uint8_t encoded[UCX_FRAME_HEADER_BYTES], twice[UCX_FRAME_HEADER_BYTES];
        struct ucx_frame frame, again;

        if (ucx_frame_decode(data, &frame) != SHOAL_OK)
            return 0;
        FUZZ_REQUIRE(frame.body_len <= UCX_FRAME_BODY_MAX_BYTES);
        FUZZ_REQUIRE(frame.type != UCX_FRAME_REFUSE || frame.body_len <= UCX_FRAME_REASON_MAX_BYTES);
        FUZZ_REQUIRE(frame.type != UCX_FRAME_PULL || frame.body_len == UCX_FRAME_PULL_BYTES);
        if (frame.type == UCX_FRAME_GRANT || frame.type == UCX_FRAME_PULL)
            FUZZ_REQUIRE(frame.len > 0 && frame.addr <= UINT64_MAX - frame.len);
        ucx_frame_encode(&frame, encoded);
        FUZZ_REQUIRE(ucx_frame_decode(encoded, &again) == SHOAL_OK);
        ucx_frame_encode(&again, twice);
        FUZZ_REQUIRE(memcmp(encoded, twice, sizeof encoded) == 0);
        /* Apart from what is reserved, these are the bytes that came. */
        FUZZ_REQUIRE(memcmp(data, encoded, 6) == 0 && memcmp(data + 8, encoded + 8, 4) == 0);
        FUZZ_REQUIRE(memcmp(data + 16, encoded + 16, UCX_FRAME_HEADER_BYTES - 16) == 0);
        data += UCX_FRAME_HEADER_BYTES;
        size -= UCX_FRAME_HEADER_BYTES;
        if (frame.body_len > size)
            return 0;
        data += frame.body_len;
        size -= frame.body_len;
    }
    return 0;
}
