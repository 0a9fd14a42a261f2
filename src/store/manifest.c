/* SPDX-License-Identifier: Apache-2.0 */
#include "store/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "store/index.h"
#include "store/layout.h"

#define VERSION 1
#define HEX64_BYTES 17

void manifest_release(struct manifest *manifest)
{
    free(manifest->sizes);
    *manifest = (struct manifest){0};
}

static void hex64(uint64_t value, char out[HEX64_BYTES])
{
    snprintf(out, HEX64_BYTES, "%016" PRIx64, value);
}

static bool parse_hex64(const char *text, uint64_t *out)
{
    char *end;

    if (!text || strlen(text) != HEX64_BYTES - 1 || strspn(text, "0123456789abcdef") != HEX64_BYTES - 1)
        return false;
    *out = strtoull(text, &end, 16);
    return true;
}

static enum shoal_status dump(json_t *root, struct buf *out, struct shoal_error *error)
{
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    bool is_ok = text && buf_append_str(out, text);

    free(text);
    json_decref(root);
    return is_ok ? SHOAL_OK : error_no_memory(error);
}

enum shoal_status manifest_encode(const struct manifest *manifest, struct buf *out, struct shoal_error *error)
{
    char generation[HEX64_BYTES], digest[DIGEST_HEX_BYTES];
    json_t *root;

    hex64(manifest->generation, generation);
    digest_to_hex(&manifest->index_digest, digest);
    root = json_pack("{si ss ss sI sI sI sI sI sI sI ss ss}", "v", VERSION, "name", manifest->name, "generation",
                     generation, "size", (json_int_t)manifest->total_size, "max_shard_size",
                     (json_int_t)manifest->max_shard_size, "piece_size", (json_int_t)manifest->piece_size, "pieces",
                     (json_int_t)manifest->piece_count, "regions", (json_int_t)manifest->size_count, "attachment_len",
                     (json_int_t)manifest->attachment_len, "index_len", (json_int_t)manifest->index_len, "digest",
                     "xxh3-128", "index_digest", digest);
    if (root && manifest->sizes && manifest->size_count <= MANIFEST_SIZES_MAX) {
        json_t *sizes = json_array();
        for (size_t i = 0; sizes && i < manifest->size_count; i++) {
            if (json_array_append_new(sizes, json_integer((json_int_t)manifest->sizes[i]))) {
                json_decref(sizes);
                sizes = NULL;
            }
        }
        if (!sizes || json_object_set_new(root, "sizes", sizes)) {
            json_decref(root);
            root = NULL;
        }
    }
    return dump(root, out, error);
}

static json_t *parse(const void *text, size_t len, size_t max, const char *what, struct shoal_error *error)
{
    json_error_t detail;
    json_t *root;
    int version = 0;

    if (len > max) {
        error_set(error, SHOAL_PROTOCOL, 0, "%s has %zu bytes (at most %zu)", what, len, max);
        return NULL;
    }
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &detail);
    if (!root) {
        error_set(error, SHOAL_PROTOCOL, 0, "%s is not JSON: %s", what, detail.text);
        return NULL;
    }
    if (json_unpack(root, "{si}", "v", &version) || version != VERSION) {
        error_set(error, SHOAL_PROTOCOL, 0, "%s has version %d, this build reads %d", what, version, VERSION);
        json_decref(root);
        return NULL;
    }
    return root;
}

/* The sizes must be those that the other numbers were made of. */
static bool sizes_agree(const struct manifest *manifest)
{
    struct layout layout;
    bool is_ok;

    if (!manifest->sizes)
        return true;
    if (layout_init(&layout, manifest->sizes, manifest->size_count, manifest->max_shard_size, manifest->piece_size,
                    NULL))
        return false;
    is_ok = layout.total_size == manifest->total_size && layout.piece_count == manifest->piece_count;
    layout_release(&layout);
    return is_ok;
}

enum shoal_status manifest_decode(struct manifest *manifest_out, const void *text, size_t len,
                                  struct shoal_error *error)
{
    struct manifest manifest = {0};
    json_t *root = parse(text, len, MANIFEST_MAX_BYTES, "manifest", error), *sizes = NULL;
    const char *name, *generation, *algorithm, *digest;
    json_int_t size, shard, piece, pieces, regions, attachment, index;
    enum shoal_status status = SHOAL_PROTOCOL;

    if (!root)
        return SHOAL_PROTOCOL;
    if (json_unpack(root, "{ss ss sI sI sI sI sI sI sI ss ss s?o}", "name", &name, "generation", &generation, "size",
                    &size, "max_shard_size", &shard, "piece_size", &piece, "pieces", &pieces, "regions", &regions,
                    "attachment_len", &attachment, "index_len", &index, "digest", &algorithm, "index_digest", &digest,
                    "sizes", &sizes)) {
        error_set(error, SHOAL_PROTOCOL, 0, "manifest lacks a field or has one of a wrong type");
        goto out;
    }
    if (strcmp(algorithm, "xxh3-128") != 0) {
        error_set(error, SHOAL_PROTOCOL, 0, "manifest uses digest '%.32s', this build knows xxh3-128", algorithm);
        goto out;
    }
    if (strlen(name) > SHOAL_NAME_MAX_BYTES || !parse_hex64(generation, &manifest.generation) ||
        !digest_from_hex(&manifest.index_digest, digest) || size < 0 || shard < 1 || piece < 1 || pieces < 0 ||
        pieces > LAYOUT_PIECES_MAX || regions < 1 || regions > LAYOUT_REGIONS_MAX || attachment < 0 ||
        attachment > (json_int_t)SHOAL_ATTACHMENT_MAX_BYTES ||
        (uint64_t)index != index_encoded_len((size_t)regions, (uint32_t)pieces, (size_t)attachment)) {
        error_set(error, SHOAL_PROTOCOL, 0, "manifest has a value out of range");
        goto out;
    }
    snprintf(manifest.name, sizeof manifest.name, "%s", name);
    manifest.total_size = (uint64_t)size;
    manifest.max_shard_size = (uint64_t)shard;
    manifest.piece_size = (uint64_t)piece;
    manifest.piece_count = (uint32_t)pieces;
    manifest.size_count = (size_t)regions;
    manifest.attachment_len = (uint64_t)attachment;
    manifest.index_len = (uint64_t)index;
    if (sizes) {
        if (!json_is_array(sizes) || json_array_size(sizes) != manifest.size_count) {
            error_set(error, SHOAL_PROTOCOL, 0, "manifest: size list does not have %zu entries", manifest.size_count);
            goto out;
        }
        manifest.sizes = calloc(manifest.size_count, sizeof *manifest.sizes);
        if (!manifest.sizes) {
            status = error_no_memory(error);
            goto out;
        }
        for (size_t i = 0; i < manifest.size_count; i++) {
            json_t *item = json_array_get(sizes, i);
            if (!json_is_integer(item) || json_integer_value(item) < 0) {
                error_set(error, SHOAL_PROTOCOL, 0, "manifest: size %zu is not a size", i);
                goto out;
            }
            manifest.sizes[i] = (uint64_t)json_integer_value(item);
        }
    }
    if (!sizes_agree(&manifest)) {
        error_set(error, SHOAL_PROTOCOL, 0, "manifest: sizes contradict each other");
        goto out;
    }
    *manifest_out = manifest;
    manifest.sizes = NULL;
    status = SHOAL_OK;
out:
    manifest_release(&manifest);
    json_decref(root);
    return status;
}

enum shoal_status source_entry_encode(const struct source_entry *entry, struct buf *out, struct shoal_error *error)
{
    char instance[HEX64_BYTES], generation[HEX64_BYTES];

    hex64(entry->instance, instance);
    hex64(entry->generation, generation);
    return dump(json_pack("{si ss ss ss ss ss}", "v", VERSION, "name", entry->name, "addr", entry->address, "instance",
                          instance, "generation", generation, "role", entry->is_gold ? "gold" : "replica"),
                out, error);
}

enum shoal_status source_entry_decode(struct source_entry *entry_out, const void *text, size_t len,
                                      struct shoal_error *error)
{
    struct source_entry entry = {0};
    json_t *root = parse(text, len, SOURCE_ENTRY_MAX_BYTES, "source entry", error);
    const char *name, *address, *instance, *generation, *role;
    enum shoal_status status = SHOAL_PROTOCOL;

    if (!root)
        return SHOAL_PROTOCOL;
    if (json_unpack(root, "{ss ss ss ss ss}", "name", &name, "addr", &address, "instance", &instance, "generation",
                    &generation, "role", &role)) {
        error_set(error, SHOAL_PROTOCOL, 0, "source entry lacks a field or has one of a wrong type");
        goto out;
    }
    entry.is_gold = strcmp(role, "gold") == 0;
    if (!*name || strlen(name) >= sizeof entry.name || strlen(address) >= sizeof entry.address ||
        !parse_hex64(instance, &entry.instance) || !parse_hex64(generation, &entry.generation) ||
        (!entry.is_gold && strcmp(role, "replica") != 0)) {
        error_set(error, SHOAL_PROTOCOL, 0, "source entry has a value out of range");
        goto out;
    }
    snprintf(entry.name, sizeof entry.name, "%s", name);
    snprintf(entry.address, sizeof entry.address, "%s", address);
    *entry_out = entry;
    status = SHOAL_OK;
out:
    json_decref(root);
    return status;
}
