/* SPDX-License-Identifier: Apache-2.0 */
/* Memory with a tripwire on both sides: it ends exactly at an inaccessible page, and a canary fills what lies between
 * its start and the page boundary before it. */
#ifndef SHOAL_TESTS_LIB_GUARDED_H
#define SHOAL_TESTS_LIB_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct guarded {
    uint8_t *data; /* len bytes, its end at a page boundary; no alignment is promised */
    size_t len;
    uint8_t *map; /* owned; NULL when released */
    size_t map_len;
};

/* false: out of memory. len 0 gives a pointer that must not be followed. */
bool guarded_init(struct guarded *guarded, size_t len_bytes);
/* Unmaps, so that a later access faults; a second call does nothing. */
void guarded_release(struct guarded *guarded);
/* Whether nothing was written before the start. (A write beyond the end faults.) */
bool guarded_is_intact(const struct guarded *guarded);

#endif
