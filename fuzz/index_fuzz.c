/* SPDX-License-Identifier: Apache-2.0 */
/* The index comes from a peer. Whatever decodes may be read to its last element. */
#include "fuzz.h"

#include "store/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct index_view view;
    uint64_t sum = 0;

    if (index_decode(&view, data, size) != SHOAL_OK)
        return 0;
    for (size_t i = 0; i < view.region_count; i++)
        sum += index_size(&view, i);
    for (uint32_t i = 0; i < view.piece_count; i++)
        sum += index_digest(&view, i).bytes[0];
    for (size_t i = 0; i < view.attachment_len; i++)
        sum += view.attachment[i];
    FUZZ_REQUIRE(view.attachment + view.attachment_len == data + size);
    return sum == 1;
}
