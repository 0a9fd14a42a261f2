/* SPDX-License-Identifier: Apache-2.0 */
#include "filelist.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"
#include "units.h"

/* A path in hex (8000 bytes), or escaped by the JSON encoder (6 bytes for one), and the other fields. */
#define LINE_MAX_BYTES 32768
#define FORMAT_NAME "shoal-file-list"
#define FORMAT_VERSION 1

void filelist_init(struct file_list *list)
{
    memset(list, 0, sizeof *list);
}

void filelist_release(struct file_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->entries[i].path);
    free(list->entries);
    filelist_init(list);
}

const char *filelist_path_problem(const char *path, size_t len)
{
    if (len == 0)
        return "is empty";
    if (len > FILELIST_PATH_MAX_BYTES)
        return "is too long";
    if (memchr(path, '\0', len))
        return "contains a NUL byte";
    if (path[0] == '/')
        return "is absolute";
    size_t depth = 0;
    for (size_t start = 0; start <= len;) {
        const char *slash = memchr(path + start, '/', len - start);
        size_t end = slash ? (size_t)(slash - path) : len, part = end - start;
        if (part == 0)
            return "has an empty component";
        if (part > FILELIST_NAME_MAX_BYTES)
            return "has a component of more than 255 bytes";
        if (path[start] == '.' && part == 1)
            return "has a component \".\"";
        if (path[start] == '.' && part == 2 && path[start + 1] == '.')
            return "has a component \"..\"";
        if (++depth > FILELIST_MAX_DEPTH)
            return "is too deep";
        start = end + 1;
    }
    return NULL;
}

/* '/' sorts before everything, so a directory and what is below it are neighbours. */
static int path_compare(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    int ca = *a == '/' ? 0 : (unsigned char)*a, cb = *b == '/' ? 0 : (unsigned char)*b;
    if (ca == cb && *a != *b)
        return *a ? 1 : -1; /* one has ended, the other goes on with '/' */
    return ca - cb;
}

static bool is_below(const char *path, const char *parent)
{
    size_t len = strlen(parent);
    return strncmp(path, parent, len) == 0 && path[len] == '/';
}

static enum shoal_status add(struct file_list *list, const char *path, size_t path_len, enum file_type type,
                             uint32_t mode, uint64_t size_bytes, size_t tag, struct shoal_error *error)
{
    char shown[256];
    if (list->count >= FILELIST_MAX_ENTRIES)
        return error_set(error, SHOAL_LIMIT, 0, "more than %u files and directories", FILELIST_MAX_ENTRIES);
    if (size_bytes > (uint64_t)INT64_MAX - list->total_bytes)
        return error_set(error, SHOAL_LIMIT, 0, "the sizes up to \"%s\" add up to more than 2^63 bytes",
                         units_printable(path, shown, sizeof shown));
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        struct file_entry *entries = realloc(list->entries, capacity * sizeof *entries);
        if (!entries)
            return error_no_memory(error);
        list->entries = entries;
        list->capacity = capacity;
    }
    char *copy = strndup(path, path_len);
    if (!copy)
        return error_no_memory(error);
    list->entries[list->count++] =
        (struct file_entry){.path = copy, .type = type, .mode = mode & 0777, .size_bytes = size_bytes, .tag = tag};
    list->total_bytes += size_bytes;
    list->file_count += type == FILE_REGULAR;
    list->region_count += type == FILE_REGULAR && size_bytes > 0;
    return SHOAL_OK;
}

enum shoal_status filelist_add(struct file_list *list, const char *path, enum file_type type, uint32_t mode,
                               uint64_t size_bytes, size_t tag, struct shoal_error *error)
{
    const char *problem = filelist_path_problem(path, strlen(path));
    char shown[256];
    if (problem)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "the name \"%s\" %s",
                         units_printable(path, shown, sizeof shown), problem);
    return add(list, path, strlen(path), type, mode, type == FILE_DIRECTORY ? 0 : size_bytes, tag, error);
}

static int entry_compare(const void *a, const void *b)
{
    return path_compare(((const struct file_entry *)a)->path, ((const struct file_entry *)b)->path);
}

enum shoal_status filelist_sort(struct file_list *list, struct shoal_error *error)
{
    if (list->count)
        qsort(list->entries, list->count, sizeof *list->entries, entry_compare);
    char shown[256];
    for (size_t i = 1; i < list->count; i++) {
        const struct file_entry *previous = &list->entries[i - 1], *entry = &list->entries[i];
        if (path_compare(previous->path, entry->path) == 0)
            return error_set(error, SHOAL_EXISTS, EEXIST, "two of them have the name \"%s\"",
                             units_printable(entry->path, shown, sizeof shown));
        if (previous->type == FILE_REGULAR && is_below(entry->path, previous->path))
            return error_set(error, SHOAL_EXISTS, EEXIST, "\"%s\" is both a file and a directory",
                             units_printable(previous->path, shown, sizeof shown));
    }
    return SHOAL_OK;
}

static json_t *entry_to_json(const struct file_entry *entry)
{
    json_t *object = json_object();
    size_t len = strlen(entry->path);
    int failed = 0;
    if (units_is_utf8(entry->path, len)) {
        failed |= json_object_set_new(object, "path", json_stringn(entry->path, len));
    } else {
        char hex[2 * FILELIST_PATH_MAX_BYTES + 1];
        for (size_t i = 0; i < len; i++) {
            hex[2 * i] = "0123456789abcdef"[(unsigned char)entry->path[i] >> 4];
            hex[2 * i + 1] = "0123456789abcdef"[(unsigned char)entry->path[i] & 15];
        }
        failed |= json_object_set_new(object, "path_hex", json_stringn(hex, 2 * len));
    }
    failed |= json_object_set_new(object, "type", json_string(entry->type == FILE_REGULAR ? "file" : "dir"));
    failed |= json_object_set_new(object, "mode", json_integer((json_int_t)entry->mode));
    if (entry->type == FILE_REGULAR)
        failed |= json_object_set_new(object, "size", json_integer((json_int_t)entry->size_bytes));
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

enum shoal_status filelist_encode(const struct file_list *list, char **text_out, size_t *len_out,
                                  struct shoal_error *error)
{
    struct buf buf;
    buf_init(&buf, FILELIST_MAX_BYTES);
    enum shoal_status status = SHOAL_OK;
    bool fits = buf_append_format(&buf, "{\"format\":\"%s\",\"version\":%d,\"entries\":%zu}\n", FORMAT_NAME,
                                  FORMAT_VERSION, list->count);
    for (size_t i = 0; i < list->count && fits; i++) {
        json_t *object = entry_to_json(&list->entries[i]);
        char *line = object ? json_dumps(object, JSON_COMPACT) : NULL;
        json_decref(object);
        if (!line) {
            status = error_no_memory(error);
            goto out;
        }
        fits = buf_append_str(&buf, line) && buf_append_str(&buf, "\n");
        free(line);
    }
    if (!fits) {
        status = error_set(error, SHOAL_LIMIT, 0, "the list of %zu files is longer than %u MiB", list->count,
                           FILELIST_MAX_BYTES >> 20);
        goto out;
    }
    *text_out = (char *)buf_take(&buf, len_out);
out:
    buf_release(&buf);
    return status;
}

/* Cuts the next line off and parses it. NULL: not a JSON object. */
static json_t *next_object(const char **text, size_t *left)
{
    const char *newline = memchr(*text, '\n', *left < LINE_MAX_BYTES ? *left : LINE_MAX_BYTES);
    if (!newline)
        return NULL;
    size_t len = (size_t)(newline - *text);
    json_t *object = json_loadb(*text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    *text += len + 1;
    *left -= len + 1;
    if (object && !json_is_object(object)) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool path_from_json(const json_t *object, char path_out[FILELIST_PATH_MAX_BYTES + 2], size_t *len_out)
{
    const json_t *plain = json_object_get(object, "path"), *hex = json_object_get(object, "path_hex");
    const json_t *value = plain ? plain : hex;
    if (!json_is_string(value) || (plain && hex))
        return false;
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    if (plain) {
        /* One byte more than allowed is kept, so that the caller sees that it is too long. */
        *len_out = len > FILELIST_PATH_MAX_BYTES ? FILELIST_PATH_MAX_BYTES + 1 : len;
        memcpy(path_out, text, *len_out);
        path_out[*len_out] = '\0';
        return true;
    }
    if (len % 2)
        return false;
    len /= 2;
    if (len > FILELIST_PATH_MAX_BYTES)
        len = FILELIST_PATH_MAX_BYTES + 1;
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        path_out[i] = (char)(high << 4 | low);
    }
    path_out[len] = '\0';
    *len_out = len;
    return true;
}

static enum shoal_status decode_entry(struct file_list *list, const json_t *object, size_t number,
                                      struct shoal_error *error)
{
    char path[FILELIST_PATH_MAX_BYTES + 2], shown[256];
    size_t len;
    if (!path_from_json(object, path, &len))
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: entry %zu has no readable path", number);
    units_printable(path, shown, sizeof shown);
    const char *problem = filelist_path_problem(path, len);
    if (problem)
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: entry %zu is unsafe: the path \"%s\" %s", number, shown,
                         problem);
    const char *type_text = json_string_value(json_object_get(object, "type"));
    enum file_type type = type_text && strcmp(type_text, "dir") == 0 ? FILE_DIRECTORY : FILE_REGULAR;
    if (!type_text || (type == FILE_REGULAR && strcmp(type_text, "file") != 0))
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" is neither a file nor a directory", shown);
    const json_t *mode = json_object_get(object, "mode"), *size = json_object_get(object, "size");
    if (!json_is_integer(mode) || json_integer_value(mode) < 0 || json_integer_value(mode) > 07777)
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" has no valid mode", shown);
    if (type == FILE_REGULAR && (!json_is_integer(size) || json_integer_value(size) < 0))
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" has no valid size", shown);
    if (list->count) {
        const struct file_entry *previous = &list->entries[list->count - 1];
        int order = path_compare(previous->path, path);
        if (order == 0)
            return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" is in it twice", shown);
        if (order > 0)
            return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" is out of order", shown);
        if (previous->type == FILE_REGULAR && is_below(path, previous->path))
            return error_set(error, SHOAL_PROTOCOL, 0, "file list: \"%s\" is below a file", shown);
    }
    return add(list, path, len, type, (uint32_t)json_integer_value(mode),
               type == FILE_REGULAR ? (uint64_t)json_integer_value(size) : 0, 0, error);
}

enum shoal_status filelist_decode(struct file_list *list, const char *text, size_t len, struct shoal_error *error)
{
    struct file_list result;
    filelist_init(&result);
    enum shoal_status status = SHOAL_OK;
    if (len > FILELIST_MAX_BYTES)
        return error_set(error, SHOAL_LIMIT, 0, "file list: longer than %u MiB", FILELIST_MAX_BYTES >> 20);

    json_t *object = next_object(&text, &len);
    const char *format = json_string_value(json_object_get(object, "format"));
    const json_t *version = json_object_get(object, "version"), *entries = json_object_get(object, "entries");
    uint64_t count = 0;
    if (!format || strcmp(format, FORMAT_NAME) != 0 || !json_is_integer(version))
        status = error_set(error, SHOAL_PROTOCOL, 0, "the attachment of the payload is not a list of files");
    else if (json_integer_value(version) != FORMAT_VERSION)
        status =
            error_set(error, SHOAL_PROTOCOL, 0, "file list: version %" JSON_INTEGER_FORMAT ", this program reads %d",
                      json_integer_value(version), FORMAT_VERSION);
    else if (!json_is_integer(entries) || json_integer_value(entries) < 0)
        status = error_set(error, SHOAL_PROTOCOL, 0, "file list: no valid number of entries");
    else if (json_integer_value(entries) > FILELIST_MAX_ENTRIES)
        status = error_set(error, SHOAL_LIMIT, 0, "file list: %" JSON_INTEGER_FORMAT " entries, more than %u",
                           json_integer_value(entries), FILELIST_MAX_ENTRIES);
    else
        count = (uint64_t)json_integer_value(entries);
    json_decref(object);

    for (size_t i = 0; i < count && status == SHOAL_OK; i++) {
        object = next_object(&text, &len);
        if (object)
            status = decode_entry(&result, object, i + 1, error);
        else
            status = error_set(error, SHOAL_PROTOCOL, 0, "file list: entry %zu of %" PRIu64 " is missing or malformed",
                               i + 1, count);
        json_decref(object);
    }
    if (status == SHOAL_OK && len > 0)
        status = error_set(error, SHOAL_PROTOCOL, 0, "file list: %zu bytes after the last entry", len);
    if (status != SHOAL_OK) {
        filelist_release(&result);
        return status;
    }
    *list = result;
    return SHOAL_OK;
}

enum shoal_status filelist_check_sizes(const struct file_list *list, const uint64_t *sizes, size_t count,
                                       struct shoal_error *error)
{
    size_t expected = list->region_count ? list->region_count : 1, region = 0;
    if (count != expected)
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: %zu regions expected, the payload has %zu", expected,
                         count);
    if (list->region_count == 0 && sizes[0] != 0)
        return error_set(error, SHOAL_PROTOCOL, 0, "file list: no file has content, the payload has %" PRIu64 " bytes",
                         sizes[0]);
    for (size_t i = 0; i < list->count; i++) {
        const struct file_entry *entry = &list->entries[i];
        if (entry->size_bytes == 0)
            continue;
        if (sizes[region] != entry->size_bytes) {
            char shown[256];
            return error_set(error, SHOAL_PROTOCOL, 0,
                             "file list: \"%s\" has %" PRIu64 " bytes, its region of the payload %" PRIu64,
                             units_printable(entry->path, shown, sizeof shown), entry->size_bytes, sizes[region]);
        }
        region++;
    }
    return SHOAL_OK;
}
