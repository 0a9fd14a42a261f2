/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses come from users, from peers and from the metadata service. What parses has one canonical text. */
#include "fuzz.h"

#include <string.h>

#include "base/hostport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[1024], canonical[HOSTPORT_TEXT_BYTES];
    struct hostport parsed, again;
    struct shoal_error error;

    if (size >= sizeof text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    if (hostport_parse(&parsed, text, &error) != SHOAL_OK) {
        FUZZ_REQUIRE(error.status == SHOAL_INVALID_ARGUMENT);
        return 0;
    }
    hostport_format(parsed.host, parsed.port, canonical);
    FUZZ_REQUIRE(hostport_parse(&again, canonical, &error) == SHOAL_OK);
    FUZZ_REQUIRE(strcmp(parsed.host, again.host) == 0);
    FUZZ_REQUIRE(parsed.port == again.port && parsed.is_v6 == again.is_v6 && again.has_port);
    return 0;
}
