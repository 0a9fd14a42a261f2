/* SPDX-License-Identifier: Apache-2.0 */
/* What decode accepts is safe to create, and survives encode and decode unchanged. */
#include "fuzz.h"

#include <string.h>

#include "filelist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct file_list list, again;
    struct shoal_error error;
    filelist_init(&list);
    filelist_init(&again);
    enum shoal_status status = filelist_decode(&list, (const char *)data, size, &error);
    if (status != SHOAL_OK) {
        FUZZ_REQUIRE(status == SHOAL_PROTOCOL || status == SHOAL_LIMIT);
        FUZZ_REQUIRE(error.status == status && error.message[0]);
        FUZZ_REQUIRE(list.count == 0 && !list.entries);
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < list.count; i++) {
        FUZZ_REQUIRE(!filelist_path_problem(list.entries[i].path, strlen(list.entries[i].path)));
        FUZZ_REQUIRE(list.entries[i].mode <= 0777);
        total += list.entries[i].size_bytes;
    }
    FUZZ_REQUIRE(total == list.total_bytes);
    FUZZ_REQUIRE(filelist_sort(&list, &error) == SHOAL_OK);

    char *text = NULL;
    size_t len = 0;
    if (filelist_encode(&list, &text, &len, &error) == SHOAL_OK) {
        FUZZ_REQUIRE(filelist_decode(&again, text, len, &error) == SHOAL_OK);
        FUZZ_REQUIRE(again.count == list.count);
        for (size_t i = 0; i < list.count; i++) {
            const struct file_entry *a = &list.entries[i], *b = &again.entries[i];
            FUZZ_REQUIRE(strcmp(a->path, b->path) == 0 && a->type == b->type && a->mode == b->mode &&
                         a->size_bytes == b->size_bytes);
        }
    }
    free(text);
    filelist_release(&again);
    filelist_release(&list);
    return 0;
}
