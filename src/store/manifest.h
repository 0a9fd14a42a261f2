/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata service holds of a payload: the manifest and one entry per source. JSON codecs, pure.
 * docs/metadata.md shows both. */
#ifndef SHOAL_STORE_MANIFEST_H
#define SHOAL_STORE_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>
#include <shoal/store.h>

#include "base/buf.h"
#include "base/digest.h"

#define MANIFEST_MAX_BYTES (64u << 10)
#define MANIFEST_SIZES_MAX 1024u /* longer size lists are in the index only */
#define SOURCE_ENTRY_MAX_BYTES 4096u

struct manifest {
    char name[SHOAL_NAME_MAX_BYTES + 1];
    uint64_t generation;
    uint64_t total_size, max_shard_size, piece_size;
    uint32_t piece_count;
    uint64_t attachment_len, index_len;
    struct digest index_digest;
    size_t size_count;
    uint64_t *sizes; /* owned; NULL if they are in the index only */
};
void manifest_release(struct manifest *manifest); /* zeroed: nothing */

/* NO_MEMORY. */
enum shoal_status manifest_encode(const struct manifest *manifest, struct buf *out, struct shoal_error *error);
/* PROTOCOL: not a manifest, of a newer version, or contradicting itself. NO_MEMORY. */
enum shoal_status manifest_decode(struct manifest *manifest_out, const void *text, size_t len,
                                  struct shoal_error *error);

struct source_entry {
    char name[320], address[320];
    uint64_t instance, generation;
    bool is_gold;
};
enum shoal_status source_entry_encode(const struct source_entry *entry, struct buf *out, struct shoal_error *error);
enum shoal_status source_entry_decode(struct source_entry *entry_out, const void *text, size_t len,
                                      struct shoal_error *error);

#endif
