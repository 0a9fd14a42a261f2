/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of frames of the same-host channel. */
#include "fuzz.h"

#include <string.h>

#include "wire/local.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (; size >= LOCAL_FRAME_BYTES; data += LOCAL_FRAME_BYTES, size -= LOCAL_FRAME_BYTES) {
        uint8_t again[LOCAL_FRAME_BYTES];
        struct local_frame frame;

        if (local_decode(data, &frame) != SHOAL_OK)
            return 0;
        local_encode(&frame, again);
        FUZZ_REQUIRE(memcmp(data, again, sizeof again) == 0);
        FUZZ_REQUIRE(frame.len <= LOCAL_RANGE_MAX_BYTES);
        FUZZ_REQUIRE(strlen(frame.text) <= LOCAL_TEXT_BYTES);
        FUZZ_REQUIRE(local_code_status(frame.code) != SHOAL_OK);
    }
    return 0;
}
