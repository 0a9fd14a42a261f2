/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a payload: everything that is too long for the manifest. Served by the sources, pinned by the manifest
 * through its digest. Pure codec. Little-endian:
 *
 *   offset 0   "SHLI"
 *          4   u32 version (1)
 *          8   u64 number of regions R
 *         16   u64 number of pieces P
 *         24   u64 attachment length A
 *         32   R x u64 region sizes
 *              P x 16 bytes piece digests
 *              A bytes attachment
 */
#ifndef SHOAL_STORE_INDEX_H
#define SHOAL_STORE_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/digest.h"

#define INDEX_HEADER_BYTES 32

/* Views into the encoded bytes. */
struct index_view {
    size_t region_count;
    uint32_t piece_count;
    const uint8_t *sizes;   /* index_size() */
    const uint8_t *digests; /* index_digest() */
    const uint8_t *attachment;
    size_t attachment_len;
};

uint64_t index_encoded_len(size_t region_count, uint32_t piece_count, size_t attachment_len);
/* out has room for the encoded length; digests are to be filled in with index_set_digest. */
void index_encode(uint8_t *out, const uint64_t *sizes, size_t region_count, uint32_t piece_count,
                  const void *attachment, size_t attachment_len);
void index_set_digest(uint8_t *encoded, size_t region_count, uint32_t piece, const struct digest *digest);
/* PROTOCOL: malformed, or of a newer version. */
enum shoal_status index_decode(struct index_view *view_out, const uint8_t *data, size_t len);
uint64_t index_size(const struct index_view *view, size_t region);
struct digest index_digest(const struct index_view *view, uint32_t piece);

#endif
