/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests and source entries come from a shared metadata service. What decodes encodes again to what decodes alike.
 */
#include "fuzz.h"

#include "store/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest manifest, again;
    struct source_entry entry;
    struct buf text;

    if (manifest_decode(&manifest, data, size, NULL) == SHOAL_OK) {
        buf_init(&text, MANIFEST_MAX_BYTES);
        if (manifest_encode(&manifest, &text, NULL) == SHOAL_OK) {
            FUZZ_REQUIRE(manifest_decode(&again, text.data, text.len, NULL) == SHOAL_OK);
            FUZZ_REQUIRE(again.total_size == manifest.total_size && again.generation == manifest.generation);
            manifest_release(&again);
        }
        buf_release(&text);
        manifest_release(&manifest);
    }
    if (source_entry_decode(&entry, data, size, NULL) == SHOAL_OK) {
        buf_init(&text, SOURCE_ENTRY_MAX_BYTES);
        FUZZ_REQUIRE(source_entry_encode(&entry, &text, NULL) == SHOAL_OK);
        buf_release(&text);
    }
    return 0;
}
