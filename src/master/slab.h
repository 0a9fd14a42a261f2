/* SPDX-License-Identifier: Apache-2.0 */
/* Many small items of one size, named by 32-bit numbers (half of a pointer), in chunks that never move: growing copies
 * nothing and so never stalls. What is freed is used again, not given back. Zeroed: a slab of size 0; use slab_init. */
#ifndef SHOAL_MASTER_SLAB_H
#define SHOAL_MASTER_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define SLAB_CHUNK_ITEMS 4096u

struct slab {
    char **chunks; /* owned */
    size_t item_bytes;
    uint32_t chunk_count, chunk_capacity;
    uint32_t next; /* the first number that was never used */
    uint32_t free; /* head of the list of freed items; 0: none */
};

void slab_init(struct slab *slab, size_t item_bytes); /* item_bytes at least 4 */
void slab_release(struct slab *slab);
/* A zeroed item; 1, 2, 3, ... as long as none was freed. 0: out of memory or numbers. */
uint32_t slab_alloc(struct slab *slab);
void slab_free(struct slab *slab, uint32_t number);
size_t slab_bytes(const struct slab *slab);

/* number was returned by slab_alloc and not freed. */
static inline void *slab_at(const struct slab *slab, uint32_t number)
{
    return slab->chunks[number / SLAB_CHUNK_ITEMS] + number % SLAB_CHUNK_ITEMS * slab->item_bytes;
}

#endif
