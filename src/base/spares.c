/* SPDX-License-Identifier: Apache-2.0 */
#include "base/spares.h"

#include <assert.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ADDRESS_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define HAS_ADDRESS_SANITIZER
#endif

struct spare {
    struct spare *next;
};

void spares_init(struct spares *spares, size_t block_bytes, unsigned max)
{
    assert(block_bytes >= sizeof(struct spare));
#ifdef HAS_ADDRESS_SANITIZER
    max = 0; /* a use after the block was given back shall be seen */
#endif
    *spares = (struct spares){.block_bytes = block_bytes, .max = max};
}

void spares_release(struct spares *spares)
{
    while (spares->first) {
        struct spare *spare = spares->first;

        spares->first = spare->next;
        free(spare);
    }
    spares->count = 0;
}

void *spares_take(struct spares *spares)
{
    struct spare *spare = spares->first;

    if (!spare)
        return malloc(spares->block_bytes);
    spares->first = spare->next;
    spares->count--;
    return spare;
}

void spares_give(struct spares *spares, void *block)
{
    struct spare *spare = block;

    if (spares->count >= spares->max) {
        free(block);
        return;
    }
    spare->next = spares->first;
    spares->first = spare;
    spares->count++;
}
