/* SPDX-License-Identifier: Apache-2.0 */
#include "master/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (16u << 10)
#define ALIGN_BYTES 16u

struct arena_block {
    struct arena_block *next;
    max_align_t data[];
};

void *arena_alloc(struct arena *arena, size_t len_bytes)
{
    size_t needed = (len_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    char *piece;

    if (needed > arena->left) {
        size_t size = needed > BLOCK_BYTES ? needed : BLOCK_BYTES;
        struct arena_block *block = malloc(sizeof *block + size);
        if (!block)
            return NULL;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->at = (char *)block->data;
        arena->left = size;
    }
    piece = arena->at;
    arena->at += needed;
    arena->left -= needed;
    return memset(piece, 0, len_bytes);
}

char *arena_text(struct arena *arena, const char *text, size_t len)
{
    char *copy = arena_alloc(arena, len + 1);

    if (copy)
        memcpy(copy, text, len);
    return copy;
}

void arena_release(struct arena *arena)
{
    struct arena_block *next;

    for (struct arena_block *block = arena->blocks; block; block = next) {
        next = block->next;
        free(block);
    }
    *arena = (struct arena){0};
}
