/* SPDX-License-Identifier: Apache-2.0 */
/* Reads --tiered_backend_config. Each wrong input has a message of its own, which names the tier, the field and what is
 * accepted there. */
#include "tier/tier_config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/number.h"

#define FILE_MAX_BYTES (1u << 20)
#define NUMA_NODE_MAX 1023
#define QUOTED "%.100s" /* a name or path out of the configuration, in a message */

/* As tier_backend_config; what the order of given watermarks is checked against. */
#define WATERMARK_LOW_DEFAULT 70
#define WATERMARK_HIGH_DEFAULT 90
#define WATERMARK_CRITICAL_DEFAULT 95

struct field {
    const char *name;
    enum shoal_status (*read)(struct tier_config *tier, size_t index, const json_t *value, struct shoal_error *error);
    unsigned types; /* bits of enum tier_type that have it */
};

#define ALL_TYPES (1u << TIER_DRAM | 1u << TIER_STORAGE)

const char *tier_type_name(enum tier_type type)
{
    switch (type) {
    case TIER_DRAM:
        return "DRAM";
    case TIER_STORAGE:
        return "STORAGE";
    }
    return "UNKNOWN";
}

static const char *kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static enum shoal_status wrong_kind(size_t index, const char *name, const char *wanted, const json_t *value,
                                    struct shoal_error *error)
{
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %zu: %s must be %s, not %s", index, name, wanted,
                     kind_of(value));
}

/* --- fields of a tier ------------------------------------------------------------------------------------------------
 */

static enum shoal_status read_type(struct tier_config *tier, size_t index, const json_t *value,
                                   struct shoal_error *error)
{
    static const enum tier_type types[] = {TIER_DRAM, TIER_STORAGE};

    if (!json_is_string(value))
        return wrong_kind(index, "type", "\"DRAM\" or \"STORAGE\"", value, error);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(json_string_value(value), tier_type_name(types[i])) == 0) {
            tier->type = types[i];
            return SHOAL_OK;
        }
    }
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "tier %zu: unknown type \"" QUOTED "\"; \"DRAM\" and \"STORAGE\" are known", index,
                     json_string_value(value));
}

static enum shoal_status read_capacity(struct tier_config *tier, size_t index, const json_t *value,
                                       struct shoal_error *error)
{
    uint64_t bytes;

    if (json_is_integer(value)) {
        json_int_t number = json_integer_value(value);
        if (number <= 0)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "tier %zu: capacity is %" JSON_INTEGER_FORMAT "; it must be at least 1 byte", index,
                             number);
        bytes = (uint64_t)number;
    } else if (json_is_string(value)) {
        if (!number_parse_size(json_string_value(value), &bytes))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "tier %zu: capacity \"" QUOTED "\" is not a size below 8 EiB as \"512MB\" (powers of 1000)"
                             " or \"4GiB\" (powers of 1024)",
                             index, json_string_value(value));
        if (bytes == 0)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "tier %zu: capacity is \"" QUOTED "\"; it must be at least 1 byte", index,
                             json_string_value(value));
    } else {
        return wrong_kind(index, "capacity", "a whole number of bytes or a text as \"512MB\"", value, error);
    }
    tier->capacity_bytes = bytes;
    return SHOAL_OK;
}

static enum shoal_status read_priority(struct tier_config *tier, size_t index, const json_t *value,
                                       struct shoal_error *error)
{
    if (!json_is_integer(value))
        return wrong_kind(index, "priority", "a whole number", value, error);
    json_int_t number = json_integer_value(value);
    if (number < INT_MIN || number > INT_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %zu: priority %" JSON_INTEGER_FORMAT " does not fit into 32 bits", index, number);
    tier->priority = (int)number;
    return SHOAL_OK;
}

static enum shoal_status read_storage_filepath(struct tier_config *tier, size_t index, const json_t *value,
                                               struct shoal_error *error)
{
    if (!json_is_string(value))
        return wrong_kind(index, "storage_filepath", "the path of a directory", value, error);
    if (json_string_length(value) == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %zu: storage_filepath is empty", index);
    if (json_string_length(value) >= PATH_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %zu: storage_filepath has %zu bytes; a path has at most %d", index,
                         json_string_length(value), PATH_MAX - 1);
    tier->storage_filepath = strdup(json_string_value(value));
    return tier->storage_filepath ? SHOAL_OK : error_no_memory(error);
}

static enum shoal_status read_numa_node(struct tier_config *tier, size_t index, const json_t *value,
                                        struct shoal_error *error)
{
    if (!json_is_integer(value))
        return wrong_kind(index, "numa_node", "the number of a NUMA node or -1 for any", value, error);
    json_int_t number = json_integer_value(value);
    if (number < -1 || number > NUMA_NODE_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %zu: numa_node %" JSON_INTEGER_FORMAT " is not in -1 (any) to %d", index, number,
                         NUMA_NODE_MAX);
    tier->numa_node = (int)number;
    return SHOAL_OK;
}

static enum shoal_status read_huge_pages(struct tier_config *tier, size_t index, const json_t *value,
                                         struct shoal_error *error)
{
    if (!json_is_boolean(value))
        return wrong_kind(index, "huge_pages", "true or false", value, error);
    tier->wants_huge_pages = json_is_true(value);
    return SHOAL_OK;
}

static enum shoal_status read_allocator_type(struct tier_config *tier, size_t index, const json_t *value,
                                             struct shoal_error *error)
{
    (void)tier;
    if (!json_is_string(value))
        return wrong_kind(index, "allocator_type", "\"OFFSET\"", value, error);
    if (strcmp(json_string_value(value), "OFFSET") != 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier %zu: unknown allocator_type \"" QUOTED "\"; there is \"OFFSET\"", index,
                         json_string_value(value));
    return SHOAL_OK;
}

static enum shoal_status read_tags(struct tier_config *tier, size_t index, const json_t *value,
                                   struct shoal_error *error)
{
    (void)tier;
    if (!json_is_array(value))
        return wrong_kind(index, "tags", "a list of texts", value, error);
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!json_is_string(json_array_get(value, i)))
            return wrong_kind(index, "each of tags", "a text", json_array_get(value, i), error);
    }
    return SHOAL_OK;
}

/* type comes first: the others are checked against it. */
static const struct field fields[] = {
    {"type", read_type, ALL_TYPES},
    {"capacity", read_capacity, ALL_TYPES},
    {"priority", read_priority, ALL_TYPES},
    {"storage_filepath", read_storage_filepath, 1u << TIER_STORAGE},
    {"numa_node", read_numa_node, 1u << TIER_DRAM},
    {"huge_pages", read_huge_pages, 1u << TIER_DRAM},
    {"allocator_type", read_allocator_type, ALL_TYPES},
    {"tags", read_tags, ALL_TYPES},
};

#define TIER_FIELDS "type, capacity, priority, storage_filepath, numa_node, huge_pages, allocator_type, tags"

static bool is_field(const char *name)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].name, name) == 0)
            return true;
    }
    return false;
}

/* tier may be half filled on failure; the caller releases it. */
static enum shoal_status read_tier(struct tier_config *tier, size_t index, const json_t *object,
                                   struct shoal_error *error)
{
    const char *name;
    json_t *value;

    tier->numa_node = -1;
    if (!json_is_object(object))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %zu must be an object, not %s", index,
                         kind_of(object));
    json_object_foreach((json_t *)object, name, value)
    {
        if (!is_field(name))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "tier %zu: unknown field \"" QUOTED "\"; there are " TIER_FIELDS, index, name);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        value = json_object_get(object, fields[i].name);
        if (!value)
            continue;
        if (tier->type && !(fields[i].types & 1u << tier->type))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %zu: %s has no meaning for the type %s", index,
                             fields[i].name, tier_type_name(tier->type));
        enum shoal_status status = fields[i].read(tier, index, value, error);
        if (status != SHOAL_OK)
            return status;
        if (!tier->type)
            break;
    }
    const char *missing = NULL;
    if (!tier->type)
        missing = "type (\"DRAM\" or \"STORAGE\")";
    else if (tier->capacity_bytes == 0)
        missing = "capacity (bytes, or a text as \"512MB\")";
    else if (tier->type == TIER_STORAGE && !tier->storage_filepath)
        missing = "storage_filepath (a directory), which the type STORAGE needs";
    if (missing)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tier %zu: missing: %s", index, missing);
    return SHOAL_OK;
}

/* --- the whole -------------------------------------------------------------------------------------------------------
 */

static enum shoal_status read_tiers(struct tier_config_list *list, const json_t *tiers, struct shoal_error *error)
{
    if (!tiers)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "missing: tiers, the list of tiers");
    if (!json_is_array(tiers))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tiers must be a list, not %s", kind_of(tiers));
    if (json_array_size(tiers) == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "tiers is empty; there must be at least one tier");
    if (json_array_size(tiers) > TIER_COUNT_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu tiers; at most %d are possible", json_array_size(tiers),
                         TIER_COUNT_MAX);
    while (list->count < json_array_size(tiers)) {
        size_t index = list->count++; /* counted before: what is half filled is released, too */
        struct tier_config *tier = &list->tiers[index];
        enum shoal_status status = read_tier(tier, index, json_array_get(tiers, index), error);
        if (status != SHOAL_OK)
            return status;
        for (size_t i = 0; i < index && tier->storage_filepath; i++) {
            const char *other = list->tiers[i].storage_filepath;
            if (other && strcmp(other, tier->storage_filepath) == 0)
                return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                                 "tiers %zu and %zu have the same storage_filepath \"" QUOTED "\"", i, index, other);
        }
    }
    return SHOAL_OK;
}

static enum shoal_status read_watermark(unsigned *percent, const char *name, const json_t *value,
                                        struct shoal_error *error)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 100)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "%s must be a whole number of percent, 1 to 100 (default: %d, %d, %d)", name,
                         WATERMARK_LOW_DEFAULT, WATERMARK_HIGH_DEFAULT, WATERMARK_CRITICAL_DEFAULT);
    *percent = (unsigned)json_integer_value(value);
    return SHOAL_OK;
}

static enum shoal_status check_watermarks(const struct tier_config_list *list, struct shoal_error *error)
{
    unsigned low = list->watermark_low ? list->watermark_low : WATERMARK_LOW_DEFAULT;
    unsigned high = list->watermark_high ? list->watermark_high : WATERMARK_HIGH_DEFAULT;
    unsigned critical = list->watermark_critical ? list->watermark_critical : WATERMARK_CRITICAL_DEFAULT;

    if (low < high && high <= critical)
        return SHOAL_OK;
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "watermarks out of order: low %u, high %u, critical %u; low must be below high, and high not above"
                     " critical",
                     low, high, critical);
}

static enum shoal_status read_root(struct tier_config_list *list, const json_t *root, struct shoal_error *error)
{
    const char *name;
    json_t *value;
    enum shoal_status status = SHOAL_OK;

    json_object_foreach((json_t *)root, name, value)
    {
        if (strcmp(name, "watermark_low") == 0)
            status = read_watermark(&list->watermark_low, name, value, error);
        else if (strcmp(name, "watermark_high") == 0)
            status = read_watermark(&list->watermark_high, name, value, error);
        else if (strcmp(name, "watermark_critical") == 0)
            status = read_watermark(&list->watermark_critical, name, value, error);
        else if (strcmp(name, "tiers") != 0)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                               "unknown field \"" QUOTED "\"; there are tiers, watermark_low, watermark_high,"
                               " watermark_critical",
                               name);
        if (status != SHOAL_OK)
            return status;
    }
    status = read_tiers(list, json_object_get(root, "tiers"), error);
    return status == SHOAL_OK ? check_watermarks(list, error) : status;
}

static enum shoal_status parse_json(const char *text, size_t len, struct tier_config_list *list_out,
                                    struct shoal_error *error)
{
    struct tier_config_list list = {.count = 0};
    json_error_t at;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);

    if (!root && json_error_code(&at) == json_error_out_of_memory)
        return error_no_memory(error);
    if (!root)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "line %d, column %d: %s", at.line, at.column, at.text);
    enum shoal_status status = SHOAL_OK;
    if (!json_is_object(root))
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "must be an object as {\"tiers\": [...]}, not %s",
                           kind_of(root));
    if (status == SHOAL_OK)
        status = read_root(&list, root, error);
    json_decref(root);
    if (status == SHOAL_OK)
        *list_out = list;
    else
        tier_config_release(&list);
    return status;
}

static enum shoal_status read_file(const char *path, struct buf *text, struct shoal_error *error)
{
    struct stat info;
    enum shoal_status status = SHOAL_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */

    if (fd < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, errno,
                         "neither JSON, which begins with '{', nor a file that can be read: %s", strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "not a regular file");
        goto close_fd;
    }
    for (;;) {
        if (!buf_reserve(text, 4096)) {
            status = text->len + 4096 > text->max ? error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                                                              "the file is larger than %u bytes", FILE_MAX_BYTES)
                                                  : error_no_memory(error);
            break;
        }
        ssize_t len = read(fd, text->data + text->len, 4096);
        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            status = error_set(error, SHOAL_INVALID_ARGUMENT, errno, "cannot read: %s", strerror(errno));
        if (len <= 0)
            break;
        text->len += (size_t)len;
    }
close_fd:
    close(fd);
    return status;
}

enum shoal_status tier_config_parse(const char *text, struct tier_config_list *list_out, struct shoal_error *error)
{
    const char *first = text ? text : "";
    enum shoal_status status;

    while (isspace((unsigned char)*first))
        first++;
    if (*first == '\0')
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "tier configuration is empty; give {\"tiers\": [...]} or the path of a file with it");
    if (*first == '{') {
        status = parse_json(text, strlen(text), list_out, error);
        if (status == SHOAL_INVALID_ARGUMENT)
            error_prefix(error, "tier configuration");
        return status;
    }
    struct buf content;
    buf_init(&content, FILE_MAX_BYTES + 4096);
    status = read_file(text, &content, error);
    if (status == SHOAL_OK)
        status = parse_json(content.data ? (const char *)content.data : "", content.len, list_out, error);
    buf_release(&content);
    if (status == SHOAL_INVALID_ARGUMENT)
        error_prefix(error, "tier configuration \"" QUOTED "\"", text);
    return status;
}

void tier_config_release(struct tier_config_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->tiers[i].storage_filepath);
    memset(list, 0, sizeof *list);
}
