/* SPDX-License-Identifier: Apache-2.0 */
#include "store/layout.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"

uint64_t layout_choose_piece_size(uint64_t total_size, uint64_t max_shard_size)
{
    uint64_t size = LAYOUT_PIECE_MIN_BYTES;

    while (size < LAYOUT_PIECE_MAX_BYTES && total_size / size > LAYOUT_PIECES_ADVISED)
        size *= 2;
    return size < max_shard_size ? size : max_shard_size;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

enum shoal_status layout_init(struct layout *layout_out, const uint64_t *sizes, size_t region_count,
                              uint64_t max_shard_size, uint64_t piece_size, struct shoal_error *error)
{
    struct layout layout = {.max_shard_size = max_shard_size, .region_count = region_count};
    uint64_t pieces_per_shard, pieces = 0;

    if (!max_shard_size || !piece_size)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "shard and piece size must be at least 1 byte");
    if (!region_count || region_count > LAYOUT_REGIONS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu regions (want 1..%u)", region_count,
                         LAYOUT_REGIONS_MAX);
    layout.piece_size = piece_size < max_shard_size ? piece_size : max_shard_size;
    pieces_per_shard = divide_up(max_shard_size, layout.piece_size);
    layout.sizes = calloc(region_count, sizeof *layout.sizes);
    layout.starts = calloc(region_count + 1, sizeof *layout.starts);
    layout.first_pieces = calloc(region_count + 1, sizeof *layout.first_pieces);
    if (!layout.sizes || !layout.starts || !layout.first_pieces) {
        layout_release(&layout);
        return error_no_memory(error);
    }
    for (size_t i = 0; i < region_count; i++) {
        uint64_t full = sizes[i] / max_shard_size, in_full, region_pieces;

        layout.sizes[i] = sizes[i];
        layout.starts[i] = layout.total_size;
        layout.first_pieces[i] = (uint32_t)pieces;
        if (__builtin_add_overflow(layout.total_size, sizes[i], &layout.total_size) ||
            layout.total_size > (uint64_t)INT64_MAX) {
            layout_release(&layout);
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "sizes add up to more than 2^63 bytes");
        }
        region_pieces = divide_up(sizes[i] % max_shard_size, layout.piece_size);
        if (__builtin_mul_overflow(full, pieces_per_shard, &in_full) ||
            __builtin_add_overflow(region_pieces, in_full, &region_pieces) || region_pieces > LAYOUT_PIECES_MAX ||
            (pieces += region_pieces) > LAYOUT_PIECES_MAX) {
            layout_release(&layout);
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "max_shard_size %" PRIu64 " and piece size %" PRIu64
                             " cut the payload into more than %u pieces: choose larger ones",
                             max_shard_size, piece_size, LAYOUT_PIECES_MAX);
        }
    }
    layout.starts[region_count] = layout.total_size;
    layout.first_pieces[region_count] = (uint32_t)pieces;
    layout.piece_count = (uint32_t)pieces;
    *layout_out = layout;
    return SHOAL_OK;
}

void layout_release(struct layout *layout)
{
    free(layout->sizes);
    free(layout->starts);
    free(layout->first_pieces);
    *layout = (struct layout){0};
}

void layout_piece(const struct layout *layout, uint32_t piece, uint64_t *offset_out, uint64_t *len_out)
{
    size_t low = 0, high = layout->region_count; /* the last region whose first piece is <= piece and that has any */
    uint64_t pieces_per_shard = divide_up(layout->max_shard_size, layout->piece_size), in_region, at, end;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (layout->first_pieces[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    in_region = piece - layout->first_pieces[low];
    at = in_region / pieces_per_shard * layout->max_shard_size;
    end = at + layout->max_shard_size;
    if (end < at || end > layout->sizes[low])
        end = layout->sizes[low];
    at += in_region % pieces_per_shard * layout->piece_size;
    *offset_out = layout->starts[low] + at;
    *len_out = end - at < layout->piece_size ? end - at : layout->piece_size;
}

enum shoal_status span_map_init(struct span_map *map_out, size_t count, struct shoal_error *error)
{
    struct span *spans = calloc(count + 1, sizeof *spans);

    if (!spans)
        return error_no_memory(error);
    *map_out = (struct span_map){.spans = spans};
    return SHOAL_OK;
}

void span_map_release(struct span_map *map)
{
    free(map->spans);
    *map = (struct span_map){0};
}

bool span_map_add(struct span_map *map, uint64_t addr, uint64_t len, uint64_t key)
{
    uint64_t end;

    if (!len)
        return true;
    if (__builtin_add_overflow(addr, len - 1, &end) || __builtin_add_overflow(map->total, len, &end))
        return false;
    map->spans[map->count++] = (struct span){.start = map->total, .addr = addr, .len = len, .key = key};
    map->total = end;
    return true;
}

const struct span *span_map_find(const struct span_map *map, uint64_t offset)
{
    size_t low = 0, high = map->count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (map->spans[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    return &map->spans[low];
}
