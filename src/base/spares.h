/* SPDX-License-Identifier: Apache-2.0 */
/* Spare blocks of one size, for structs that come and go with every request: glibc keeps seven blocks of a size at hand
 * per thread and none above 1 KiB; a batch of requests takes more of them at once. At most max blocks are kept, the
 * others go back to malloc. Not thread-safe. */
#ifndef SHOAL_BASE_SPARES_H
#define SHOAL_BASE_SPARES_H

#include <stddef.h>

struct spares {
    struct spare *first; /* owned */
    size_t block_bytes;
    unsigned count, max;
};

/* block_bytes: at least that of a pointer. */
void spares_init(struct spares *spares, size_t block_bytes, unsigned max);
/* Frees the spare ones; those that are taken are the caller's to give back before. */
void spares_release(struct spares *spares);
/* Its content is undefined, aligned as malloc does. NULL: out of memory. */
void *spares_take(struct spares *spares);
void spares_give(struct spares *spares, void *block);

#endif
