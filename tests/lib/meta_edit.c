/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_edit.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "meta/meta.h"

#define EVERYTHING "/shoal/"

static struct meta_bytes bytes_of(const void *data, size_t len)
{
    return (struct meta_bytes){.data = data, .len = len};
}

static struct meta *open_meta(const char *uri)
{
    struct shoal_error error = {0};
    struct meta *meta = NULL;
    if (meta_open(uri, &meta, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return meta;
}

static void put(struct meta *meta, struct meta_bytes key, struct meta_bytes value, int64_t lease)
{
    struct call call = {.deadline_ms = deadline_after_ms(60000)};
    struct meta_op op = {.kind = META_PUT, .key = key, .value = value, .lease = lease};
    struct shoal_error error = {0};
    bool is_applied = false;
    if (meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    assert_true(is_applied);
}

size_t meta_edit_replace_address(const char *uri, const char *old_address, const char *new_address)
{
    struct call call = {.deadline_ms = deadline_after_ms(60000)};
    struct meta *meta = open_meta(uri);
    struct meta_entries entries = {0};
    struct shoal_error error = {0};
    size_t changed = 0;

    if (meta_list(meta, bytes_of(EVERYTHING, strlen(EVERYTHING)), 0, &call, &entries, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < entries.count; i++) {
        const struct meta_entry *entry = &entries.items[i];
        json_t *json = json_loadb(entry->value, entry->value_len, 0, NULL);
        const char *address = json_string_value(json_object_get(json, "addr"));
        if (address && strcmp(address, old_address) == 0) {
            json_object_set_new(json, "addr", json_string(new_address));
            char *text = json_dumps(json, JSON_COMPACT);
            put(meta, bytes_of(entry->key, entry->key_len), bytes_of(text, strlen(text)), entry->lease);
            free(text);
            changed++;
        }
        json_decref(json);
    }
    meta_entries_release(&entries);
    meta_close(meta);
    return changed;
}

void meta_edit_put(const char *uri, const char *key, const char *value)
{
    struct meta *meta = open_meta(uri);
    put(meta, bytes_of(key, strlen(key)), bytes_of(value, strlen(value)), 0);
    meta_close(meta);
}

bool meta_edit_is_writable(const char *uri, int64_t timeout_ms)
{
    struct call call = {.deadline_ms = deadline_after_ms(timeout_ms)};
    struct meta *meta = open_meta(uri);
    struct meta_op op = {.kind = META_PUT, .key = bytes_of("/test/writable", 14), .value = bytes_of("yes", 3)};
    bool is_applied = false;
    bool is_writable = meta_txn(meta, NULL, 0, &op, 1, &call, &is_applied, NULL, NULL) == SHOAL_OK && is_applied;
    meta_close(meta);
    return is_writable;
}
