/* SPDX-License-Identifier: Apache-2.0 */
/* Offset allocator: hands out ranges of [0, capacity) in whole units and never touches what it manages, so it serves
 * memory and disk blocks alike. Taking and giving are O(1): free ranges stand in lists by size class (an exponent and
 * three bits of mantissa, so a class spans at most 1/8 of its size), two levels of bitmaps find the next class that is
 * not empty, and neighbours that are free become one range. Sebastian Aaltonen's OffsetAllocator, which follows TLSF
 * (Masmano, Ripoll, Crespo, Real 2004).
 *
 * Beyond those: before it turns to larger classes it looks at a few ranges of the request's own class, which may fit
 * although the class does not promise it. So ranges of one odd size are reused exactly, and the empty allocator gives
 * its whole capacity in one piece.
 *
 * Not thread-safe. */
#ifndef SHOAL_TIER_ALLOCATOR_H
#define SHOAL_TIER_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct allocator;

/* A taken range. Its handle is what gives it back. */
struct allocator_range {
    uint64_t offset_bytes, len_bytes; /* multiples of the unit */
    uint32_t handle;
};

/* The part of capacity_bytes below a whole unit is not used. At most ranges_max ranges, taken and free together, are
 * kept apart (40 bytes each, allocated as they are needed); 0: as many as there are units, at most 2^31. NULL: out of
 * memory, or capacity below one unit. */
struct allocator *allocator_create(uint64_t capacity_bytes, uint64_t unit_bytes, uint32_t ranges_max);
void allocator_destroy(struct allocator *allocator); /* NULL is allowed */

/* len_bytes is rounded up to units, 0 to one unit. false: no range is large enough, or out of memory. */
bool allocator_take(struct allocator *allocator, uint64_t len_bytes, struct allocator_range *range_out);
/* Takes a given range, whose offset is a multiple of the unit, to restore a state: O(1) in ascending order of offsets,
 * else as many steps as ranges lie behind it. false: not free (not inside the capacity), or out of memory. */
bool allocator_take_at(struct allocator *allocator, uint64_t offset_bytes, uint64_t len_bytes,
                       struct allocator_range *range_out);
/* handle: of a range that is taken. */
void allocator_give(struct allocator *allocator, uint32_t handle);

uint64_t allocator_capacity_bytes(const struct allocator *allocator); /* whole units */
uint64_t allocator_used_bytes(const struct allocator *allocator);
/* A request of so many bytes may still fail (bounded search), one beyond it always does. For metrics and tests. */
uint64_t allocator_largest_free_bytes(const struct allocator *allocator);
/* For tests: every invariant of lists, bitmaps and neighbours holds. Walks everything. */
bool allocator_is_consistent(const struct allocator *allocator);

#endif
