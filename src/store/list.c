/* SPDX-License-Identifier: Apache-2.0 */
/* list and stat: what the metadata service says, without asking any source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/keys.h"
#include "store/store_internal.h"

#define LIST_TIMEOUT_MS 10000

void shoal_payload_infos_free(struct shoal_payload_info *infos, size_t count)
{
    for (size_t i = 0; infos && i < count; i++) {
        free(infos[i].name);
        free(infos[i].size_list);
        free(infos[i].sources);
    }
    free(infos);
}

/* Splits ".../payloads/<escaped name>/<rest>". NULL: no such key. */
static char *name_of_key(const struct meta_entry *entry, size_t base_len, const char **rest_out)
{
    const char *escaped = entry->key + base_len, *slash;
    struct buf name;
    size_t len;

    if (entry->key_len <= base_len || !(slash = strchr(escaped, '/')))
        return NULL;
    buf_init(&name, SHOAL_NAME_MAX_BYTES);
    if (!engine_key_unescape(&name, escaped, (size_t)(slash - escaped)) || !name.len ||
        memchr(name.data, 0, name.len)) {
        buf_release(&name);
        return NULL;
    }
    *rest_out = slash + 1;
    return (char *)buf_take(&name, &len);
}

static enum shoal_status take_manifest(struct shoal_payload_info *info, const struct meta_entry *entry)
{
    struct manifest manifest;
    enum shoal_status status = manifest_decode(&manifest, entry->value, entry->value_len, NULL);

    if (!status && strcmp(manifest.name, info->name) != 0) {
        manifest_release(&manifest);
        status = SHOAL_PROTOCOL;
    }
    info->status = status;
    if (status)
        return status == SHOAL_NO_MEMORY ? status : SHOAL_OK;
    info->generation = manifest.generation;
    info->total_size = manifest.total_size;
    info->max_shard_size = manifest.max_shard_size;
    info->piece_size = manifest.piece_size;
    info->piece_count = manifest.piece_count;
    info->attachment_len_bytes = manifest.attachment_len;
    info->size_list = manifest.sizes;
    info->size_count = manifest.size_count;
    return SHOAL_OK;
}

static enum shoal_status take_source(struct shoal_payload_info *info, const struct meta_entry *entry)
{
    struct source_entry source;
    struct shoal_source_info *grown;

    if (source_entry_decode(&source, entry->value, entry->value_len, NULL) || source.generation != info->generation)
        return SHOAL_OK; /* unreadable, or of a generation that was replaced */
    grown = realloc(info->sources, (info->source_count + 1) * sizeof *grown);
    if (!grown)
        return SHOAL_NO_MEMORY;
    info->sources = grown;
    grown += info->source_count++;
    *grown = (struct shoal_source_info){.is_gold = source.is_gold};
    snprintf(grown->name, sizeof grown->name, "%s", source.name);
    snprintf(grown->address, sizeof grown->address, "%s", source.address);
    return SHOAL_OK;
}

/* The keys of one payload are neighbours, "manifest" first. A payload without manifest is being deleted: not shown. */
static enum shoal_status collect(const struct meta_entries *entries, size_t base_len,
                                 struct shoal_payload_info **infos_out, size_t *count_out)
{
    struct shoal_payload_info *infos = NULL;
    size_t count = 0, capacity = 0;
    enum shoal_status status = SHOAL_OK;

    for (size_t i = 0; i < entries->count && !status; i++) {
        const char *rest;
        char *name = name_of_key(&entries->items[i], base_len, &rest);

        if (!name)
            continue;
        if (strcmp(rest, "manifest") == 0) {
            if (count == capacity) {
                struct shoal_payload_info *grown;
                capacity = capacity ? capacity * 2 : 16;
                grown = realloc(infos, capacity * sizeof *infos);
                if (!grown) {
                    free(name);
                    status = SHOAL_NO_MEMORY;
                    break;
                }
                infos = grown;
            }
            infos[count] = (struct shoal_payload_info){.name = name};
            status = take_manifest(&infos[count++], &entries->items[i]);
            continue;
        }
        if (count && strcmp(infos[count - 1].name, name) == 0 && !infos[count - 1].status)
            status = take_source(&infos[count - 1], &entries->items[i]);
        free(name);
    }
    if (status) {
        shoal_payload_infos_free(infos, count);
        return status;
    }
    *infos_out = infos;
    *count_out = count;
    return SHOAL_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct shoal_payload_info *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static enum shoal_status list(struct shoal_store *store, const char *prefix, bool is_exact, const struct call *call,
                              struct shoal_payload_info **infos_out, size_t *count_out, struct shoal_error *error)
{
    char *base = engine_key(store->cluster, "payloads", NULL);
    struct meta_entries entries = {0};
    struct buf key;
    enum shoal_status status = SHOAL_OK;

    buf_init(&key, META_KEY_MAX_BYTES);
    if (!base || !buf_append_str(&key, base) || !engine_key_escape(&key, prefix, strlen(prefix)) ||
        (is_exact && !buf_append_str(&key, "/")))
        status = error_no_memory(error);
    if (!status)
        status = meta_list(engine_meta(store->engine), (struct meta_bytes){.data = key.data, .len = key.len}, 0, call,
                           &entries, error);
    if (!status) {
        status = collect(&entries, strlen(base), infos_out, count_out);
        if (status)
            error_no_memory(error);
        else if (*count_out)
            qsort(*infos_out, *count_out, sizeof **infos_out, compare_names);
    }
    meta_entries_release(&entries);
    buf_release(&key);
    free(base);
    return status;
}

enum shoal_status shoal_store_list(struct shoal_store *store, const char *prefix, const struct shoal_call *call,
                                   struct shoal_payload_info **infos_out, size_t *count_out, struct shoal_error *error)
{
    struct store_call store_call;
    enum shoal_status status = store_call_begin(&store_call, store, call, LIST_TIMEOUT_MS, error);

    if (status)
        return status;
    if (!infos_out || !count_out || (prefix && strlen(prefix) > SHOAL_NAME_MAX_BYTES))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "NULL output, or a prefix longer than %d bytes",
                           SHOAL_NAME_MAX_BYTES);
    else
        status = list(store, prefix ? prefix : "", false, &store_call.call, infos_out, count_out, error);
    store_call_end(&store_call);
    return status;
}

enum shoal_status shoal_store_stat(struct shoal_store *store, const char *name, const struct shoal_call *call,
                                   struct shoal_payload_info **info_out, struct shoal_error *error)
{
    struct store_call store_call;
    struct shoal_payload_info *infos = NULL;
    size_t count = 0;
    enum shoal_status status = store_call_begin(&store_call, store, call, LIST_TIMEOUT_MS, error);

    if (status)
        return status;
    status = info_out ? store_check_name(name, error) : error_set(error, SHOAL_INVALID_ARGUMENT, 0, "info_out is NULL");
    if (!status)
        status = list(store, name, true, &store_call.call, &infos, &count, error);
    if (!status && !count)
        status = error_set(error, SHOAL_PAYLOAD_NOT_FOUND, 0, "no payload '%s' in the metadata service", name);
    if (!status)
        *info_out = infos;
    store_call_end(&store_call);
    return status;
}
