/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for one answer: taken piece by piece, given back at once. Zeroed: empty. */
#ifndef SHOAL_MASTER_ARENA_H
#define SHOAL_MASTER_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *blocks; /* owned */
    size_t left;                /* in the newest one */
    char *at;
};

/* Zeroed, aligned for everything; NULL: out of memory. */
void *arena_alloc(struct arena *arena, size_t len_bytes);
char *arena_text(struct arena *arena, const char *text, size_t len); /* with a NUL behind it */
void arena_release(struct arena *arena);

#endif
