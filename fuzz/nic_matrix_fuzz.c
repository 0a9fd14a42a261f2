/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a NIC priority matrix says: it is refused in words, or every row keeps its promises and the text made of it
 * gives the same matrix. */
#include "fuzz.h"

#include <string.h>

#include "base/buf.h"
#include "transport/nic_matrix.h"

static struct buf text_of(const struct nic_matrix *matrix)
{
    struct buf text;

    /* Rows times devices times names, quoted. */
    buf_init(&text, (size_t)NIC_MATRIX_ROWS_MAX * NIC_MATRIX_DEVICES_MAX * (NIC_NAME_MAX_BYTES + 8) + 4096);
    if (!nic_matrix_format(matrix, &text))
        abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct location elsewhere = {.kind = LOCATION_CUDA, .index = 1000};
    struct nic_matrix *matrix, *again;
    struct shoal_error error;
    struct buf text, text_again;

    if (nic_matrix_parse(size ? (const char *)data : "", size, &matrix, &error) != SHOAL_OK) {
        FUZZ_REQUIRE(error.status == SHOAL_INVALID_ARGUMENT || error.status == SHOAL_NO_MEMORY);
        FUZZ_REQUIRE(*error.message && memchr(error.message, 0, sizeof error.message));
        return 0;
    }
    for (size_t i = 0; i < nic_matrix_row_count(matrix); i++) {
        const struct nic_row *row = nic_matrix_row(matrix, i);

        FUZZ_REQUIRE(row->preferred.count >= 1);
        FUZZ_REQUIRE(row->preferred.count + row->fallback.count <= NIC_MATRIX_DEVICES_MAX);
        FUZZ_REQUIRE(nic_matrix_choose(matrix, &row->location) == row);
    }
    FUZZ_REQUIRE(!nic_matrix_choose(matrix, &elsewhere) == nic_matrix_is_empty(matrix));
    struct nic_list devices = nic_matrix_devices(matrix);
    FUZZ_REQUIRE(nic_matrix_check_present(matrix, "device", devices.names, devices.count, &error) == SHOAL_OK);
    text = text_of(matrix);
    FUZZ_REQUIRE(text.len > NIC_MATRIX_TEXT_MAX_BYTES ||
                 nic_matrix_parse((const char *)text.data, text.len, &again, &error) == SHOAL_OK);
    if (text.len <= NIC_MATRIX_TEXT_MAX_BYTES) {
        text_again = text_of(again);
        FUZZ_REQUIRE(text.len == text_again.len && memcmp(text.data, text_again.data, text.len) == 0);
        buf_release(&text_again);
        nic_matrix_destroy(again);
    }
    buf_release(&text);
    nic_matrix_destroy(matrix);
    return 0;
}
