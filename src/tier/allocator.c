/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/allocator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MANTISSA_BITS 3
#define MANTISSA_COUNT (1u << MANTISSA_BITS)
#define CLASS_COUNT (64 * MANTISSA_COUNT) /* a size of 64 bits needs at most 62 exponents */
#define NONE UINT32_MAX
#define RANGES_MAX (1u << 31)
#define RANGES_FIRST 64u
/* Ranges looked at in the request's own class: before larger classes, and when those have nothing. */
#define OWN_CLASS_QUICK 8u
#define OWN_CLASS_LAST 64u

/* A range of units, taken or free; all ranges together cover the capacity. */
struct range {
    uint64_t offset, len;            /* units; len 0: not in use, class_next links the spare ones */
    uint32_t class_prev, class_next; /* free ranges of the same class */
    uint32_t before, after;          /* neighbours by offset */
    bool is_taken;
};

struct allocator {
    uint64_t unit_bytes, capacity, used; /* the latter two in units */
    struct range *ranges;                /* owned; grows, so ranges are known by index */
    uint32_t range_count, ranges_max;
    uint32_t spare; /* list of ranges that are not in use */
    uint32_t tail;  /* the range that ends at the capacity */
    uint64_t exponents;
    uint8_t mantissas[64];
    uint32_t classes[CLASS_COUNT]; /* first free range of each */
};

/* --- size classes --------------------------------------------------------------------------------------------------
 * Sizes below 8 are classes of their own; above, a class is the position of the highest bit and the three bits below.
 */

/* The class whose ranges are at least as large as the class's first size and smaller than the next one's. */
static unsigned class_of(uint64_t len)
{
    unsigned high;

    if (len < MANTISSA_COUNT)
        return (unsigned)len;
    high = 63 - (unsigned)__builtin_clzll(len);
    return ((high - MANTISSA_BITS + 1) << MANTISSA_BITS) +
           ((unsigned)(len >> (high - MANTISSA_BITS)) & (MANTISSA_COUNT - 1));
}

static void list_free(struct allocator *a, uint32_t index)
{
    struct range *range = &a->ranges[index];
    unsigned class = class_of(range->len);

    range->is_taken = false;
    range->class_prev = NONE;
    range->class_next = a->classes[class];
    if (range->class_next != NONE)
        a->ranges[range->class_next].class_prev = index;
    a->classes[class] = index;
    a->mantissas[class >> MANTISSA_BITS] |= (uint8_t)(1u << (class & (MANTISSA_COUNT - 1)));
    a->exponents |= 1ull << (class >> MANTISSA_BITS);
}

static void unlist_free(struct allocator *a, uint32_t index)
{
    const struct range *range = &a->ranges[index];
    unsigned class = class_of(range->len);

    if (range->class_next != NONE)
        a->ranges[range->class_next].class_prev = range->class_prev;
    if (range->class_prev != NONE) {
        a->ranges[range->class_prev].class_next = range->class_next;
        return;
    }
    a->classes[class] = range->class_next;
    if (range->class_next != NONE)
        return;
    a->mantissas[class >> MANTISSA_BITS] &= (uint8_t) ~(1u << (class & (MANTISSA_COUNT - 1)));
    if (!a->mantissas[class >> MANTISSA_BITS])
        a->exponents &= ~(1ull << (class >> MANTISSA_BITS));
}

/* A free range of a class from first on, the smallest such class; NONE. */
static uint32_t find_from_class(const struct allocator *a, unsigned first)
{
    unsigned exponent = first >> MANTISSA_BITS;
    unsigned mantissas;
    uint64_t exponents;

    if (first >= CLASS_COUNT)
        return NONE;
    mantissas = a->mantissas[exponent] & (0xffu << (first & (MANTISSA_COUNT - 1)));
    if (!mantissas) {
        exponents = exponent == 63 ? 0 : a->exponents & (~0ull << (exponent + 1));
        if (!exponents)
            return NONE;
        exponent = (unsigned)__builtin_ctzll(exponents);
        mantissas = a->mantissas[exponent];
    }
    return a->classes[(exponent << MANTISSA_BITS) + (unsigned)__builtin_ctz(mantissas)];
}

/* The smallest range that fits among the first steps of a class; NONE. */
static uint32_t find_in_class(const struct allocator *a, unsigned class, uint64_t len, unsigned steps)
{
    uint32_t best = NONE;

    for (uint32_t i = a->classes[class]; i != NONE && steps > 0; i = a->ranges[i].class_next, steps--) {
        if (a->ranges[i].len == len)
            return i;
        if (a->ranges[i].len > len && (best == NONE || a->ranges[i].len < a->ranges[best].len))
            best = i;
    }
    return best;
}

static uint32_t find_free(const struct allocator *a, uint64_t len)
{
    unsigned own = class_of(len);
    uint32_t index;

    index = find_in_class(a, own, len, OWN_CLASS_QUICK);
    if (index == NONE)
        index = find_from_class(a, own + 1);
    if (index == NONE)
        index = find_in_class(a, own, len, OWN_CLASS_LAST);
    return index;
}

/* --- ranges --- */

/* Makes sure that count spare ranges exist. */
static bool reserve_spares(struct allocator *a, unsigned count)
{
    uint32_t have = 0, more;
    struct range *ranges;

    for (uint32_t i = a->spare; i != NONE && have < count; i = a->ranges[i].class_next)
        have++;
    if (have >= count)
        return true;
    more = a->range_count ? a->range_count : RANGES_FIRST;
    if (more > a->ranges_max - a->range_count)
        more = a->ranges_max - a->range_count;
    if (have + more < count)
        return false;
    ranges = realloc(a->ranges, ((size_t)a->range_count + more) * sizeof *ranges);
    if (!ranges)
        return false;
    a->ranges = ranges;
    for (uint32_t i = a->range_count + more; i-- > a->range_count;) {
        ranges[i] = (struct range){.class_next = a->spare};
        a->spare = i;
    }
    a->range_count += more;
    return true;
}

/* Splits the front of a range off behind it; a spare has been reserved. The new range is in no list. */
static uint32_t split(struct allocator *a, uint32_t index, uint64_t len)
{
    uint32_t rest = a->spare;
    struct range *range = &a->ranges[index];

    a->spare = a->ranges[rest].class_next;
    a->ranges[rest] =
        (struct range){.offset = range->offset + len, .len = range->len - len, .before = index, .after = range->after};
    if (range->after != NONE)
        a->ranges[range->after].before = rest;
    else
        a->tail = rest;
    range->after = rest;
    range->len = len;
    return rest;
}

/* The range behind index becomes part of it. Both are in no list. */
static void join_after(struct allocator *a, uint32_t index)
{
    struct range *range = &a->ranges[index];
    uint32_t gone = range->after;

    range->len += a->ranges[gone].len;
    range->after = a->ranges[gone].after;
    if (range->after != NONE)
        a->ranges[range->after].before = index;
    else
        a->tail = index;
    a->ranges[gone] = (struct range){.class_next = a->spare};
    a->spare = gone;
}

struct allocator *allocator_create(uint64_t capacity_bytes, uint64_t unit_bytes, uint32_t ranges_max)
{
    struct allocator *a;

    assert(unit_bytes > 0);
    if (capacity_bytes < unit_bytes)
        return NULL;
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->unit_bytes = unit_bytes;
    a->capacity = capacity_bytes / unit_bytes;
    a->ranges_max = ranges_max && ranges_max < RANGES_MAX ? ranges_max : RANGES_MAX;
    if (a->capacity < a->ranges_max)
        a->ranges_max = (uint32_t)a->capacity;
    a->spare = a->tail = NONE;
    memset(a->classes, 0xff, sizeof a->classes); /* NONE */
    if (!reserve_spares(a, 1)) {
        free(a);
        return NULL;
    }
    a->tail = a->spare;
    a->spare = a->ranges[a->tail].class_next;
    a->ranges[a->tail] = (struct range){.len = a->capacity, .before = NONE, .after = NONE};
    list_free(a, a->tail);
    return a;
}

void allocator_destroy(struct allocator *allocator)
{
    if (!allocator)
        return;
    free(allocator->ranges);
    free(allocator);
}

static uint64_t units_of(const struct allocator *a, uint64_t len_bytes)
{
    if (len_bytes == 0)
        return 1;
    return (len_bytes - 1) / a->unit_bytes + 1;
}

static void take(struct allocator *a, uint32_t index, struct allocator_range *range_out)
{
    struct range *range = &a->ranges[index];

    range->is_taken = true;
    a->used += range->len;
    *range_out = (struct allocator_range){
        .offset_bytes = range->offset * a->unit_bytes, .len_bytes = range->len * a->unit_bytes, .handle = index};
}

bool allocator_take(struct allocator *allocator, uint64_t len_bytes, struct allocator_range *range_out)
{
    struct allocator *a = allocator;
    uint64_t len = units_of(a, len_bytes);
    uint32_t index;

    if (len > a->capacity - a->used)
        return false;
    index = find_free(a, len);
    if (index == NONE)
        return false;
    if (a->ranges[index].len > len && !reserve_spares(a, 1))
        return false;
    unlist_free(a, index);
    if (a->ranges[index].len > len)
        list_free(a, split(a, index, len));
    take(a, index, range_out);
    return true;
}

bool allocator_take_at(struct allocator *allocator, uint64_t offset_bytes, uint64_t len_bytes,
                       struct allocator_range *range_out)
{
    struct allocator *a = allocator;
    uint64_t offset = offset_bytes / a->unit_bytes, len = units_of(a, len_bytes), end;
    uint32_t index = a->tail;

    if (offset_bytes % a->unit_bytes != 0 || offset >= a->capacity || len > a->capacity - offset)
        return false;
    while (a->ranges[index].offset > offset)
        index = a->ranges[index].before;
    end = a->ranges[index].offset + a->ranges[index].len;
    if (a->ranges[index].is_taken || offset + len > end ||
        !reserve_spares(a, (unsigned)(a->ranges[index].offset < offset) + (unsigned)(offset + len < end)))
        return false;
    unlist_free(a, index);
    if (a->ranges[index].offset < offset) {
        uint32_t rest = split(a, index, offset - a->ranges[index].offset);
        list_free(a, index);
        index = rest;
    }
    if (a->ranges[index].len > len)
        list_free(a, split(a, index, len));
    take(a, index, range_out);
    return true;
}

void allocator_give(struct allocator *allocator, uint32_t handle)
{
    struct allocator *a = allocator;
    uint32_t index = handle;

    assert(index < a->range_count && a->ranges[index].is_taken);
    a->used -= a->ranges[index].len;
    a->ranges[index].is_taken = false;
    if (a->ranges[index].after != NONE && !a->ranges[a->ranges[index].after].is_taken) {
        unlist_free(a, a->ranges[index].after);
        join_after(a, index);
    }
    if (a->ranges[index].before != NONE && !a->ranges[a->ranges[index].before].is_taken) {
        index = a->ranges[index].before;
        unlist_free(a, index);
        join_after(a, index);
    }
    list_free(a, index);
}

uint64_t allocator_capacity_bytes(const struct allocator *allocator)
{
    return allocator->capacity * allocator->unit_bytes;
}

uint64_t allocator_used_bytes(const struct allocator *allocator)
{
    return allocator->used * allocator->unit_bytes;
}

uint64_t allocator_largest_free_bytes(const struct allocator *allocator)
{
    const struct allocator *a = allocator;
    uint64_t largest = 0;
    unsigned exponent, mantissa;

    if (!a->exponents)
        return 0;
    exponent = 63 - (unsigned)__builtin_clzll(a->exponents);
    mantissa = 31 - (unsigned)__builtin_clz(a->mantissas[exponent]);
    for (uint32_t i = a->classes[(exponent << MANTISSA_BITS) + mantissa]; i != NONE; i = a->ranges[i].class_next)
        if (a->ranges[i].len > largest)
            largest = a->ranges[i].len;
    return largest * a->unit_bytes;
}

bool allocator_is_consistent(const struct allocator *allocator)
{
    const struct allocator *a = allocator;
    uint64_t end = a->capacity, used = 0;
    uint32_t free_count = 0, listed = 0, count = 0;
    bool is_after_free = false;

    for (uint32_t i = a->tail; i != NONE; i = a->ranges[i].before, count++) {
        const struct range *range = &a->ranges[i];
        if (range->len == 0 || range->offset + range->len != end || count > a->range_count ||
            (range->before != NONE && a->ranges[range->before].after != i) || (!range->is_taken && is_after_free))
            return false;
        end = range->offset;
        used += range->is_taken ? range->len : 0;
        free_count += !range->is_taken;
        is_after_free = !range->is_taken;
    }
    for (unsigned class = 0; class < CLASS_COUNT; class ++) {
        bool has_bit = a->mantissas[class >> MANTISSA_BITS] >> (class & (MANTISSA_COUNT - 1)) & 1;
        if (has_bit != (a->classes[class] != NONE) ||
            (a->exponents >> (class >> MANTISSA_BITS) & 1) != (a->mantissas[class >> MANTISSA_BITS] != 0))
            return false;
        for (uint32_t i = a->classes[class]; i != NONE; i = a->ranges[i].class_next, listed++)
            if (a->ranges[i].is_taken || class_of(a->ranges[i].len) != class || listed > a->range_count)
                return false;
    }
    for (uint32_t i = a->spare; i != NONE; i = a->ranges[i].class_next)
        if (++count > a->range_count)
            return false;
    return end == 0 && used == a->used && listed == free_count && count == a->range_count;
}
