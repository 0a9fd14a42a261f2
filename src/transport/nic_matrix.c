/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nic_matrix.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define QUOTED "%.64s" /* text of the matrix, in a message */
#define NAMES_TEXT_BYTES 200
#define EXAMPLE "{\"cpu:0\": [[\"mlx5_0\"], [\"mlx5_1\"]]}"

struct row {
    struct nic_row view;
    const char **names; /* owned; the preferred ones, then the fallback ones */
};

struct nic_matrix {
    char *devices[NIC_MATRIX_DEVICES_MAX]; /* owned; what the rows point at */
    size_t device_count;
    struct row *rows; /* owned */
    size_t row_count, row_capacity;
    struct row all; /* names NULL: no row yet */
};

/* --- building --------------------------------------------------------------------------------------------------------
 */

enum shoal_status nic_matrix_create(struct nic_matrix **out, struct shoal_error *error)
{
    *out = calloc(1, sizeof **out);
    return *out ? SHOAL_OK : error_no_memory(error);
}

void nic_matrix_destroy(struct nic_matrix *matrix)
{
    if (!matrix)
        return;
    for (size_t i = 0; i < matrix->row_count; i++)
        free(matrix->rows[i].names);
    for (size_t i = 0; i < matrix->device_count; i++)
        free(matrix->devices[i]);
    free(matrix->all.names);
    free(matrix->rows);
    free(matrix);
}

/* Names stand in lists with commas and in paths below /sys. */
static bool is_device_name(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > NIC_NAME_MAX_BYTES || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || strchr(",/\\\"", *c))
            return false;
    return true;
}

static size_t find_device(const struct nic_matrix *matrix, const char *name)
{
    size_t i = 0;

    while (i < matrix->device_count && strcmp(matrix->devices[i], name) != 0)
        i++;
    return i;
}

/* The matrix' own copy of the name. */
static enum shoal_status intern_device(struct nic_matrix *matrix, const char *name, const char **out,
                                       struct shoal_error *error)
{
    size_t index = find_device(matrix, name);

    if (index == NIC_MATRIX_DEVICES_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "more than %d different devices", NIC_MATRIX_DEVICES_MAX);
    if (index == matrix->device_count) {
        matrix->devices[index] = strdup(name);
        if (!matrix->devices[index])
            return error_no_memory(error);
        matrix->device_count++;
    }
    *out = matrix->devices[index];
    return SHOAL_OK;
}

static void forget_devices_from(struct nic_matrix *matrix, size_t count)
{
    while (matrix->device_count > count)
        free(matrix->devices[--matrix->device_count]);
}

static bool is_named(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Makes all anew, from the rows and one that is not among them yet; rule 3 of nic_matrix_choose. */
static bool merge_rows(const struct nic_matrix *matrix, const struct row *added, struct row *all_out)
{
    const char **names = calloc(NIC_MATRIX_DEVICES_MAX, sizeof *names);
    size_t preferred = 0, count;

    if (!names)
        return false;
    for (size_t i = 0; i <= matrix->row_count; i++) {
        const struct nic_row *row = i < matrix->row_count ? &matrix->rows[i].view : &added->view;

        for (size_t j = 0; j < row->preferred.count; j++)
            if (!is_named(names, preferred, row->preferred.names[j]))
                names[preferred++] = row->preferred.names[j];
    }
    count = preferred;
    for (size_t i = 0; i < matrix->device_count; i++)
        if (!is_named(names, preferred, matrix->devices[i]))
            names[count++] = matrix->devices[i];
    *all_out = (struct row){.names = names,
                            .view = {.location = {.kind = LOCATION_ANY},
                                     .preferred = {names, preferred},
                                     .fallback = {names + preferred, count - preferred}}};
    return true;
}

static enum shoal_status fill_row(struct nic_matrix *matrix, struct row *row, const char *location,
                                  const char *const *names, size_t count, struct shoal_error *error)
{
    size_t *filled = &row->view.fallback.count;

    for (size_t i = 0; i < count; i++) {
        if (!is_device_name(names[i]))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "%s: \"" QUOTED "\" is no device name: 1 to %d printable characters without blank, comma,"
                             " quote and slash",
                             location, names[i], NIC_NAME_MAX_BYTES);
        if (is_named(row->names, *filled, names[i]))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s: device \"" QUOTED "\" appears twice", location,
                             names[i]);
        enum shoal_status status = intern_device(matrix, names[i], &row->names[*filled], error);
        if (status != SHOAL_OK)
            return status;
        ++*filled;
    }
    return SHOAL_OK;
}

static enum shoal_status check_row(const struct nic_matrix *matrix, const struct location *location, const char *text,
                                   size_t preferred_count, size_t fallback_count, struct shoal_error *error)
{
    for (size_t i = 0; i < matrix->row_count; i++)
        if (location_is_equal(&matrix->rows[i].view.location, location))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "location \"%s\" appears twice", text);
    if (matrix->row_count == NIC_MATRIX_ROWS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "more than %d locations", NIC_MATRIX_ROWS_MAX);
    if (preferred_count == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "%s: the list of preferred devices is empty; leave the location out or name a device", text);
    if (preferred_count > NIC_MATRIX_DEVICES_MAX || fallback_count > NIC_MATRIX_DEVICES_MAX - preferred_count)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s: more than %d devices", text, NIC_MATRIX_DEVICES_MAX);
    return SHOAL_OK;
}

enum shoal_status nic_matrix_add(struct nic_matrix *matrix, const struct location *location,
                                 const char *const *preferred, size_t preferred_count, const char *const *fallback,
                                 size_t fallback_count, struct shoal_error *error)
{
    struct row row = {.view.location = *location}, all;
    size_t known_devices = matrix->device_count;
    char text[LOCATION_TEXT_BYTES];
    enum shoal_status status;

    location_format(location, text);
    status = check_row(matrix, location, text, preferred_count, fallback_count, error);
    if (status != SHOAL_OK)
        return status;
    if (matrix->row_count == matrix->row_capacity) {
        size_t capacity = matrix->row_capacity ? 2 * matrix->row_capacity : 8;
        struct row *rows = realloc(matrix->rows, capacity * sizeof *rows);

        if (!rows)
            return error_no_memory(error);
        matrix->rows = rows;
        matrix->row_capacity = capacity;
    }
    row.names = calloc(preferred_count + fallback_count, sizeof *row.names);
    if (!row.names)
        return error_no_memory(error);
    /* Until both lists are in, fallback.count counts all names: a device may not be in both either. */
    status = fill_row(matrix, &row, text, preferred, preferred_count, error);
    if (status == SHOAL_OK)
        status = fill_row(matrix, &row, text, fallback, fallback_count, error);
    if (status != SHOAL_OK)
        goto forget;
    row.view.preferred = (struct nic_list){row.names, preferred_count};
    row.view.fallback = (struct nic_list){row.names + preferred_count, fallback_count};
    if (!merge_rows(matrix, &row, &all)) {
        status = error_no_memory(error);
        goto forget;
    }
    free(matrix->all.names);
    matrix->all = all;
    matrix->rows[matrix->row_count++] = row;
    return SHOAL_OK;

forget:
    forget_devices_from(matrix, known_devices);
    free(row.names);
    return status;
}

/* --- reading JSON ----------------------------------------------------------------------------------------------------
 */

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
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* names_out has room for NIC_MATRIX_DEVICES_MAX names, borrowed from the list; a longer list is only counted:
 * nic_matrix_add refuses it before it looks at a name. */
static enum shoal_status read_names(const char *location, const char *which, const json_t *list, const char **names_out,
                                    size_t *count_out, struct shoal_error *error)
{
    if (!json_is_array(list))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "%s: the %s devices must be a list of names, not %s; a row is [[preferred], [fallback]]",
                         location, which, kind_of(list));
    *count_out = json_array_size(list);
    for (size_t i = 0; i < *count_out && i < NIC_MATRIX_DEVICES_MAX; i++) {
        const json_t *name = json_array_get(list, i);

        if (!json_is_string(name))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s: a %s device must be a name in quotes, not %s",
                             location, which, kind_of(name));
        names_out[i] = json_string_value(name);
    }
    return SHOAL_OK;
}

static enum shoal_status read_row(struct nic_matrix *matrix, const char *name, const json_t *value,
                                  struct shoal_error *error)
{
    const char *preferred[NIC_MATRIX_DEVICES_MAX], *fallback[NIC_MATRIX_DEVICES_MAX];
    size_t preferred_count = 0, fallback_count = 0;
    struct location location;
    enum shoal_status status = location_parse(name, &location, error);

    if (status != SHOAL_OK)
        return status;
    if (!json_is_array(value))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%s: a row is [[preferred], [fallback]], not %s", name,
                         kind_of(value));
    if (json_array_size(value) != 2)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "%s: a row has two lists, [[preferred], [fallback]] (the second may be empty), not %zu", name,
                         json_array_size(value));
    status = read_names(name, "preferred", json_array_get(value, 0), preferred, &preferred_count, error);
    if (status == SHOAL_OK)
        status = read_names(name, "fallback", json_array_get(value, 1), fallback, &fallback_count, error);
    if (status == SHOAL_OK)
        status = nic_matrix_add(matrix, &location, preferred, preferred_count, fallback, fallback_count, error);
    return status;
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i])
            return false;
    return true;
}

static enum shoal_status load_json(const char *text, size_t len, json_t **root_out, struct shoal_error *error)
{
    json_error_t at;

    if (len > NIC_MATRIX_TEXT_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "%zu bytes are too long; at most %zu are read", len,
                         NIC_MATRIX_TEXT_MAX_BYTES);
    /* Any value at the top: what is no object gets a message of its own. */
    *root_out = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);
    if (*root_out)
        return SHOAL_OK;
    switch (json_error_code(&at)) {
    case json_error_out_of_memory:
        return error_no_memory(error);
    case json_error_duplicate_key:
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "line %d, column %d: a location appears twice (%s)", at.line,
                         at.column, at.text);
    default:
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "line %d, column %d: not JSON (%s); it looks like " EXAMPLE,
                         at.line, at.column, at.text);
    }
}

enum shoal_status nic_matrix_parse(const char *text, size_t len, struct nic_matrix **out, struct shoal_error *error)
{
    struct nic_matrix *matrix;
    json_t *root = NULL, *value;
    const char *name;
    enum shoal_status status = nic_matrix_create(&matrix, error);

    if (status != SHOAL_OK)
        return status;
    if (!is_blank(text, len))
        status = load_json(text, len, &root, error);
    if (status == SHOAL_OK && root && !json_is_object(root))
        status =
            error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it must be an object as " EXAMPLE ", not %s", kind_of(root));
    if (status == SHOAL_OK && root) {
        json_object_foreach(root, name, value)
        {
            status = read_row(matrix, name, value, error);
            if (status != SHOAL_OK)
                break;
        }
    }
    json_decref(root);
    if (status == SHOAL_OK) {
        *out = matrix;
        return SHOAL_OK;
    }
    nic_matrix_destroy(matrix);
    if (status == SHOAL_INVALID_ARGUMENT)
        error_prefix(error, "NIC priority matrix");
    return status;
}

/* --- asking ----------------------------------------------------------------------------------------------------------
 */

bool nic_matrix_is_empty(const struct nic_matrix *matrix)
{
    return matrix->row_count == 0;
}

size_t nic_matrix_row_count(const struct nic_matrix *matrix)
{
    return matrix->row_count;
}

const struct nic_row *nic_matrix_row(const struct nic_matrix *matrix, size_t index)
{
    return &matrix->rows[index].view;
}

struct nic_list nic_matrix_devices(const struct nic_matrix *matrix)
{
    return (struct nic_list){(const char *const *)matrix->devices, matrix->device_count};
}

const struct nic_row *nic_matrix_choose(const struct nic_matrix *matrix, const struct location *location)
{
    const struct nic_row *wildcard = NULL;

    for (size_t i = 0; i < matrix->row_count; i++) {
        const struct nic_row *row = &matrix->rows[i].view;

        if (location_is_equal(&row->location, location))
            return row;
        if (row->location.kind == LOCATION_ANY)
            wildcard = row;
    }
    if (wildcard)
        return wildcard;
    return matrix->row_count ? &matrix->all.view : NULL;
}

/* "a, b, c and 5 more". */
static void list_names(const char *const *names, size_t count, char text_out[NAMES_TEXT_BYTES])
{
    size_t used = 0;

    text_out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        /* Room is kept for what says that there are more. */
        if (used + strlen(names[i]) + sizeof ", and 18446744073709551615 more" >= NAMES_TEXT_BYTES) {
            snprintf(text_out + used, NAMES_TEXT_BYTES - used, " and %zu more", count - i);
            return;
        }
        used += (size_t)snprintf(text_out + used, NAMES_TEXT_BYTES - used, "%s%s", i ? ", " : "", names[i]);
    }
}

static void who_asks(const struct nic_matrix *matrix, const char *device, char text_out[LOCATION_TEXT_BYTES])
{
    text_out[0] = '\0';
    for (size_t i = 0; i < matrix->row_count; i++) {
        const struct nic_row *row = &matrix->rows[i].view;

        if (is_named(row->preferred.names, row->preferred.count, device) ||
            is_named(row->fallback.names, row->fallback.count, device)) {
            location_format(&row->location, text_out);
            return;
        }
    }
}

enum shoal_status nic_matrix_check_present(const struct nic_matrix *matrix, const char *what,
                                           const char *const *present, size_t present_count, struct shoal_error *error)
{
    const char *missing[NIC_MATRIX_DEVICES_MAX];
    size_t missing_count = 0;
    char missing_text[NAMES_TEXT_BYTES], present_text[NAMES_TEXT_BYTES], asker[LOCATION_TEXT_BYTES];

    for (size_t i = 0; i < matrix->device_count; i++)
        if (!is_named(present, present_count, matrix->devices[i]))
            missing[missing_count++] = matrix->devices[i];
    if (missing_count == 0)
        return SHOAL_OK;
    list_names(missing, missing_count, missing_text);
    who_asks(matrix, missing[0], asker);
    if (present_count == 0)
        return error_set(error, SHOAL_UNSUPPORTED, 0,
                         "NIC priority matrix: %s asks for %s, but this machine has no %s; an empty matrix means TCP",
                         asker, missing_text, what);
    list_names(present, present_count, present_text);
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "NIC priority matrix: %s asks for %s, which is no %s of this machine; present: %s", asker,
                     missing_text, what, present_text);
}

/* --- writing ---------------------------------------------------------------------------------------------------------
 */

static bool format_list(const struct nic_list *list, struct buf *out)
{
    bool is_whole = buf_append_str(out, "[");

    for (size_t i = 0; i < list->count && is_whole; i++)
        is_whole = buf_append_format(out, "%s\"%s\"", i ? ", " : "", list->names[i]);
    return is_whole && buf_append_str(out, "]");
}

bool nic_matrix_format(const struct nic_matrix *matrix, struct buf *out)
{
    bool is_whole = buf_append_str(out, "{");

    for (size_t i = 0; i < matrix->row_count && is_whole; i++) {
        const struct nic_row *row = &matrix->rows[i].view;
        char location[LOCATION_TEXT_BYTES];

        location_format(&row->location, location);
        is_whole = buf_append_format(out, "%s\n  \"%s\": [", i ? "," : "", location) &&
                   format_list(&row->preferred, out) && buf_append_str(out, ", ") && format_list(&row->fallback, out) &&
                   buf_append_str(out, "]");
    }
    return is_whole && buf_append_str(out, matrix->row_count ? "\n}\n" : "}\n");
}
