/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the configuration of tiers says: it is refused in words, or what comes out is inside its bounds. */
#include "fuzz.h"

#include <string.h>

#include "tier/tier_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tier_config_list list;
    struct shoal_error error;
    char *text = malloc(size + 2);

    if (!text)
        return 0;
    text[0] = '{'; /* never the path of a file */
    if (size)
        memcpy(text + 1, data, size);
    text[size + 1] = '\0';
    if (tier_config_parse(text, &list, &error) != SHOAL_OK) {
        FUZZ_REQUIRE(error.status == SHOAL_INVALID_ARGUMENT || error.status == SHOAL_NO_MEMORY);
        FUZZ_REQUIRE(*error.message && memchr(error.message, 0, sizeof error.message));
        free(text);
        return 0;
    }
    FUZZ_REQUIRE(list.count >= 1 && list.count <= TIER_COUNT_MAX);
    for (size_t i = 0; i < list.count; i++) {
        FUZZ_REQUIRE(list.tiers[i].capacity_bytes > 0 && list.tiers[i].capacity_bytes <= INT64_MAX);
        FUZZ_REQUIRE((list.tiers[i].type == TIER_STORAGE) == (list.tiers[i].storage_filepath != NULL));
    }
    tier_config_release(&list);
    free(text);
    return 0;
}
