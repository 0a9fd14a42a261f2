/* SPDX-License-Identifier: Apache-2.0 */
/* The first bytes of every connection. What decode accepts survives encode and decode unchanged. */
#include "fuzz.h"

#include <string.h>

#include "wire/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t encoded[HELLO_MAX_BYTES];
    struct hello hello, again;
    size_t frame_len, len;

    if (size >= HELLO_PREFIX_BYTES && hello_frame_len(data, &frame_len) == SHOAL_OK)
        FUZZ_REQUIRE(frame_len > HELLO_PREFIX_BYTES && frame_len <= HELLO_MAX_BYTES);
    if (hello_decode(data, size, &hello) != SHOAL_OK)
        return 0;
    FUZZ_REQUIRE(strlen(hello.name) <= HELLO_NAME_MAX_BYTES && strlen(hello.cluster) <= HELLO_CLUSTER_MAX_BYTES);
    len = hello_encode(&hello, encoded);
    FUZZ_REQUIRE(len <= size); /* trailing fields of a later version are dropped */
    FUZZ_REQUIRE(hello_decode(encoded, len, &again) == SHOAL_OK);
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): decode clears the whole struct first */
    FUZZ_REQUIRE(memcmp(&hello, &again, sizeof hello) == 0);
    return 0;
}
