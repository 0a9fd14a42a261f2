/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of data frames, walked as the transport does: header, body, header. */
#include "fuzz.h"

#include <string.h>

#include "wire/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    while (size >= DATA_HEADER_BYTES) {
        uint8_t again[DATA_HEADER_BYTES];
        struct data_frame frame;
        uint64_t body_len;

        if (data_decode(data, &frame) != SHOAL_OK)
            return 0;
        data_encode(&frame, again);
        FUZZ_REQUIRE(memcmp(data, again, sizeof again) == 0);
        body_len = data_body_len(&frame);
        FUZZ_REQUIRE(body_len <= DATA_RANGE_MAX_BYTES);
        FUZZ_REQUIRE(frame.type != DATA_CHUNK || body_len <= DATA_CHUNK_MAX_BYTES);
        FUZZ_REQUIRE(frame.type != DATA_REFUSE || body_len <= DATA_REASON_MAX_BYTES);
        FUZZ_REQUIRE(frame.type != DATA_NOTIFY || body_len <= DATA_NOTIFY_NAME_MAX_BYTES + DATA_NOTIFY_MAX_BYTES);
        FUZZ_REQUIRE(data_code_status(frame.code) != SHOAL_OK);
        data += DATA_HEADER_BYTES;
        size -= DATA_HEADER_BYTES;
        if (body_len > size)
            return 0;
        data += body_len;
        size -= (size_t)body_len;
    }
    return 0;
}
