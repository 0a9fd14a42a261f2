/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of lists come from any client; keys, too. Input: a pattern, a NUL, a key. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/pattern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t text_len = strnlen((const char *)data, size), key_len = text_len < size ? size - text_len - 1 : 0,
           prefix_len;
    const char *key = (const char *)data + size - key_len, *prefix;
    struct pattern *pattern = NULL;
    char *text = malloc(text_len + 1);
    enum shoal_status status = SHOAL_NO_MEMORY;

    if (text) { /* not strndup: AddressSanitizer's reads a byte beyond text_len */
        memcpy(text, data, text_len);
        text[text_len] = '\0';
        status = pattern_create(text, &pattern, NULL);
    }
    if (status == SHOAL_OK) {
        prefix = pattern_prefix(pattern, &prefix_len);
        FUZZ_REQUIRE(prefix_len <= text_len);
        if (pattern_matches(pattern, key, key_len))
            FUZZ_REQUIRE(key_len >= prefix_len && memcmp(key, prefix, prefix_len) == 0);
    } else {
        FUZZ_REQUIRE(status == SHOAL_NO_MEMORY || status == SHOAL_INVALID_ARGUMENT);
        FUZZ_REQUIRE(!text || text_len > PATTERN_MAX_BYTES || strchr(text, '[') || text[text_len - 1] == '\\');
    }
    pattern_destroy(pattern);
    free(text);
    return 0;
}
