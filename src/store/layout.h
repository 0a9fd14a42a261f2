/* SPDX-License-Identifier: Apache-2.0 */
/* How a payload is cut: regions -> shards of at most max_shard_size -> pieces of at most piece_size, never across a
 * shard or region; and where payload offsets lie in somebody's memory. Pure. */
#ifndef SHOAL_STORE_LAYOUT_H
#define SHOAL_STORE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define LAYOUT_REGIONS_MAX (1u << 18)
#define LAYOUT_PIECES_MAX (1u << 22) /* 64 MiB of digests */
#define LAYOUT_PIECE_MIN_BYTES (256u << 10)
#define LAYOUT_PIECE_MAX_BYTES (4u << 20)
#define LAYOUT_PIECES_ADVISED 2048u /* so many pieces fill a pipeline well; more only cost digests */

struct layout {
    uint64_t max_shard_size, piece_size, total_size;
    uint32_t piece_count;
    size_t region_count;
    uint64_t *sizes;        /* owned, per region */
    uint64_t *starts;       /* owned, region_count + 1: payload offset of each region */
    uint32_t *first_pieces; /* owned, region_count + 1 */
};

/* The piece size for a payload of total_size bytes when none was asked for: about LAYOUT_PIECES_ADVISED pieces, a power
 * of two between the bounds above, at most max_shard_size. */
uint64_t layout_choose_piece_size(uint64_t total_size, uint64_t max_shard_size);

/* max_shard_size and piece_size >= 1; piece_size is cut to max_shard_size. INVALID_ARGUMENT: zero, too many regions or
 * pieces, sizes that overflow. NO_MEMORY. */
enum shoal_status layout_init(struct layout *layout_out, const uint64_t *sizes, size_t region_count,
                              uint64_t max_shard_size, uint64_t piece_size, struct shoal_error *error);
void layout_release(struct layout *layout); /* zeroed: nothing */

/* Payload offset and length of a piece < piece_count. */
void layout_piece(const struct layout *layout, uint32_t piece, uint64_t *offset_out, uint64_t *len_out);

/* A payload's bytes as they lie in one process: spans in payload order, without empty ones. */
struct span {
    uint64_t start; /* payload offset */
    uint64_t addr, len, key;
};
struct span_map {
    struct span *spans; /* owned */
    size_t count;
    uint64_t total;
};
/* Room for count spans, none of them there yet. NO_MEMORY. */
enum shoal_status span_map_init(struct span_map *map_out, size_t count, struct shoal_error *error);
void span_map_release(struct span_map *map);
/* Appends; an empty span is skipped. false: wraps around, or beyond the room. */
bool span_map_add(struct span_map *map, uint64_t addr, uint64_t len, uint64_t key);
/* The span that holds payload offset < total. */
const struct span *span_map_find(const struct span_map *map, uint64_t offset);

#endif
