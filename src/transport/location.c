/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/location.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define DIGITS "0123456789"

static const struct {
    const char *prefix;
    enum location_kind kind;
} kinds[] = {{"cpu:", LOCATION_CPU}, {"cuda:", LOCATION_CUDA}};

enum shoal_status location_parse(const char *text, struct location *out, struct shoal_error *error)
{
    if (strcmp(text, "*") == 0) {
        *out = (struct location){.kind = LOCATION_ANY};
        return SHOAL_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *number = text + strlen(kinds[i].prefix);

        if (strncmp(text, kinds[i].prefix, strlen(kinds[i].prefix)) != 0)
            continue;
        if (!*number || number[strspn(number, DIGITS)] || (number[0] == '0' && number[1]))
            break;
        unsigned long index = strlen(number) <= 4 ? strtoul(number, NULL, 10) : LOCATION_INDEX_MAX + 1;
        if (index > LOCATION_INDEX_MAX)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "location \"%.64s\": the number is at most %d", text,
                             LOCATION_INDEX_MAX);
        *out = (struct location){.kind = kinds[i].kind, .index = (unsigned)index};
        return SHOAL_OK;
    }
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "location \"%.64s\" is neither \"cpu:N\", \"cuda:N\" nor \"*\"",
                     text);
}

void location_format(const struct location *location, char text_out[LOCATION_TEXT_BYTES])
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].kind == location->kind) {
            snprintf(text_out, LOCATION_TEXT_BYTES, "%s%u", kinds[i].prefix, location->index);
            return;
        }
    }
    snprintf(text_out, LOCATION_TEXT_BYTES, "*");
}

bool location_is_equal(const struct location *a, const struct location *b)
{
    return a->kind == b->kind && a->index == b->index;
}
