/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index.h"

#include <string.h>

#include "base/endian.h"
#include "store/layout.h"

#define VERSION 1u

uint64_t index_encoded_len(size_t region_count, uint32_t piece_count, size_t attachment_len)
{
    return INDEX_HEADER_BYTES + 8u * (uint64_t)region_count + (uint64_t)DIGEST_BYTES * piece_count + attachment_len;
}

void index_encode(uint8_t *out, const uint64_t *sizes, size_t region_count, uint32_t piece_count,
                  const void *attachment, size_t attachment_len)
{
    memcpy(out, "SHLI", 4);
    put_le32(out + 4, VERSION);
    put_le64(out + 8, region_count);
    put_le64(out + 16, piece_count);
    put_le64(out + 24, attachment_len);
    for (size_t i = 0; i < region_count; i++)
        put_le64(out + INDEX_HEADER_BYTES + 8 * i, sizes[i]);
    memset(out + INDEX_HEADER_BYTES + 8 * region_count, 0, (size_t)DIGEST_BYTES * piece_count);
    if (attachment_len)
        memcpy(out + INDEX_HEADER_BYTES + 8 * region_count + (size_t)DIGEST_BYTES * piece_count, attachment,
               attachment_len);
}

void index_set_digest(uint8_t *encoded, size_t region_count, uint32_t piece, const struct digest *digest)
{
    memcpy(encoded + INDEX_HEADER_BYTES + 8 * region_count + (size_t)DIGEST_BYTES * piece, digest->bytes, DIGEST_BYTES);
}

enum shoal_status index_decode(struct index_view *view_out, const uint8_t *data, size_t len)
{
    struct index_view view;
    uint64_t regions, pieces, attachment;

    if (len < INDEX_HEADER_BYTES || memcmp(data, "SHLI", 4) != 0 || get_le32(data + 4) != VERSION)
        return SHOAL_PROTOCOL;
    regions = get_le64(data + 8);
    pieces = get_le64(data + 16);
    attachment = get_le64(data + 24);
    if (regions > LAYOUT_REGIONS_MAX || pieces > LAYOUT_PIECES_MAX || attachment > len ||
        len != index_encoded_len((size_t)regions, (uint32_t)pieces, (size_t)attachment))
        return SHOAL_PROTOCOL;
    view.region_count = (size_t)regions;
    view.piece_count = (uint32_t)pieces;
    view.attachment_len = (size_t)attachment;
    view.sizes = data + INDEX_HEADER_BYTES;
    view.digests = view.sizes + 8 * view.region_count;
    view.attachment = view.digests + (size_t)DIGEST_BYTES * view.piece_count;
    *view_out = view;
    return SHOAL_OK;
}

uint64_t index_size(const struct index_view *view, size_t region)
{
    return get_le64(view->sizes + 8 * region);
}

struct digest index_digest(const struct index_view *view, uint32_t piece)
{
    struct digest digest;
    memcpy(digest.bytes, view->digests + (size_t)DIGEST_BYTES * piece, DIGEST_BYTES);
    return digest;
}
