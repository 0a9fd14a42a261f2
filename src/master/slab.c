/* SPDX-License-Identifier: Apache-2.0 */
#include "master/slab.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void slab_init(struct slab *slab, size_t item_bytes)
{
    *slab = (struct slab){.item_bytes = item_bytes, .next = 1};
}

void slab_release(struct slab *slab)
{
    for (uint32_t i = 0; i < slab->chunk_count; i++)
        free(slab->chunks[i]);
    free(slab->chunks);
    *slab = (struct slab){.item_bytes = slab->item_bytes, .next = 1};
}

static bool add_chunk(struct slab *slab)
{
    char *chunk;

    if (slab->chunk_count == slab->chunk_capacity) {
        uint32_t capacity = slab->chunk_capacity ? slab->chunk_capacity * 2 : 16;
        char **chunks = realloc(slab->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return false;
        slab->chunks = chunks;
        slab->chunk_capacity = capacity;
    }
    chunk = malloc(SLAB_CHUNK_ITEMS * slab->item_bytes);
    if (!chunk)
        return false;
    slab->chunks[slab->chunk_count++] = chunk;
    return true;
}

uint32_t slab_alloc(struct slab *slab)
{
    uint32_t number = slab->free;

    if (number) {
        memcpy(&slab->free, slab_at(slab, number), sizeof slab->free);
    } else {
        if (slab->next == UINT32_MAX || (slab->next / SLAB_CHUNK_ITEMS >= slab->chunk_count && !add_chunk(slab)))
            return 0;
        number = slab->next++;
    }
    memset(slab_at(slab, number), 0, slab->item_bytes);
    return number;
}

void slab_free(struct slab *slab, uint32_t number)
{
    memcpy(slab_at(slab, number), &slab->free, sizeof slab->free);
    slab->free = number;
}

size_t slab_bytes(const struct slab *slab)
{
    return slab->chunk_count * (SLAB_CHUNK_ITEMS * slab->item_bytes + 16) + slab->chunk_capacity * sizeof *slab->chunks;
}
