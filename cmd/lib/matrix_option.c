/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix_option.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"
#include "transport/nic_matrix.h"

#define STEP_BYTES 4096

static enum shoal_status read_file(FILE *file, struct buf *text, struct shoal_error *error)
{
    size_t len;

    do {
        if (!buf_reserve(text, STEP_BYTES))
            return error_no_memory(error);
        len = fread(text->data + text->len, 1, STEP_BYTES, file);
        text->len += len;
        if (text->len > NIC_MATRIX_TEXT_MAX_BYTES)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is longer than %zu bytes",
                             NIC_MATRIX_TEXT_MAX_BYTES);
    } while (len > 0);
    if (ferror(file))
        return error_set(error, SHOAL_INVALID_ARGUMENT, errno, "cannot read it: %s", strerror(errno));
    if (memchr(text->data, '\0', text->len))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "it is not text");
    text->data[text->len] = '\0';
    return SHOAL_OK;
}

enum shoal_status matrix_option_read(const char *given, char **text_out, struct shoal_error *error)
{
    enum shoal_status status;
    struct buf text;
    FILE *file;

    *text_out = NULL;
    if (!given)
        return SHOAL_OK;
    if (given[0] != '@' && !strchr("{[", given[strspn(given, " \t\r\n")]))
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "NIC priority matrix \"%.200s\": it is not JSON, which begins with '{', and not @ and the name"
                         " of a file",
                         given);
    if (given[0] != '@') {
        *text_out = strdup(given);
        return *text_out ? SHOAL_OK : error_no_memory(error);
    }
    file = fopen(given + 1, "re");
    if (!file) {
        int saved = errno;
        return error_set(error, SHOAL_INVALID_ARGUMENT, saved, "NIC priority matrix: cannot open \"%.200s\": %s",
                         given + 1, strerror(saved));
    }
    buf_init(&text, NIC_MATRIX_TEXT_MAX_BYTES + 2 * STEP_BYTES);
    status = read_file(file, &text, error);
    fclose(file);
    if (status == SHOAL_OK)
        *text_out = (char *)buf_take(&text, NULL);
    else if (status == SHOAL_INVALID_ARGUMENT)
        error_prefix(error, "NIC priority matrix \"%.200s\"", given + 1);
    buf_release(&text);
    return status;
}
