/* SPDX-License-Identifier: Apache-2.0 */
#include "option_spec.h"

#include <string.h>
#include <strings.h>

#include <shoal/engine.h>

#include "units.h"

static bool parse_bool(const char *text, bool *value_out)
{
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", "off"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *value_out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static const char *store_rate(const char *text, uint64_t *bytes_per_s_out)
{
    uint64_t rate;
    if (!units_parse_rate(text, &rate))
        return "must be a rate in bytes per second, such as 100M, 100MB, 80MiB, or in bits, such as 400mbit";
    if (rate == 0)
        return "must be more than zero: leave the option out for no limit; get --no-share uploads nothing";
    if (rate < SHOAL_RATE_LIMIT_MIN)
        return "must be at least 64KiB per second";
    if (rate > SHOAL_RATE_LIMIT_MAX)
        return "must be at most 1TiB per second: leave the option out for no limit";
    *bytes_per_s_out = rate;
    return NULL;
}

const char *option_store(const struct option_spec *spec, void *settings, const char *text)
{
    void *at = (char *)settings + spec->offset;
    bool on = true;
    uint64_t number;
    switch (spec->kind) {
    case OPTION_FLAG:
        if (text && !parse_bool(text, &on))
            return "must be 1 or 0";
        *(bool *)at = on;
        return NULL;
    case OPTION_VERBOSE:
        if (!text) {
            int before = *(int *)at < 0 ? 0 : *(int *)at;
            *(int *)at = before < 3 ? before + 1 : 3;
            return NULL;
        }
        if (!units_parse_uint(text, 0, 3, &number))
            return "must be 0, 1, 2 or 3";
        *(int *)at = (int)number;
        return NULL;
    case OPTION_QUIET:
        if (text && !parse_bool(text, &on))
            return "must be 1 or 0";
        if (on)
            *(int *)at = -1;
        return NULL;
    case OPTION_TEXT:
        if (!*text)
            return "must not be empty";
        *(const char **)at = text;
        return NULL;
    case OPTION_SIZE:
        if (!units_parse_size(text, &number) || number == 0)
            return "must be a size of at least 1 byte, such as 64M, 64MiB or 67108864";
        *(uint64_t *)at = number;
        return NULL;
    case OPTION_RATE:
        return store_rate(text, at);
    case OPTION_DURATION:
        if (!units_parse_duration(text, at))
            return spec->max ? "must be a duration, such as 500ms, 30s or 5m"
                             : "must be a duration, such as 500ms, 30s, 5m or none";
        return NULL;
    case OPTION_UINT: {
        static char expected[80];
        if (!units_parse_uint(text, spec->min, spec->max, at)) {
            snprintf(expected, sizeof expected, "must be a whole number from %llu to %llu",
                     (unsigned long long)spec->min, (unsigned long long)spec->max);
            return expected;
        }
        return NULL;
    }
    case OPTION_END:
        break;
    }
    return "cannot be set";
}

void text_print_wrapped(FILE *to, const char *text, int indent, int column, int width)
{
    bool is_line_start = column >= indent;
    if (column > indent) {
        fputc('\n', to);
        column = 0;
    }
    while (*text) {
        if (*text == '\n') {
            fputc('\n', to);
            column = 0;
            is_line_start = true;
            text++;
            continue;
        }
        size_t len = strcspn(text, " \n");
        if (len == 0) {
            text++;
            continue;
        }
        if (!is_line_start && column + 1 + (int)len > width) {
            fputc('\n', to);
            column = 0;
            is_line_start = true;
        }
        if (column < indent) {
            fprintf(to, "%*s", indent - column, "");
            column = indent;
            is_line_start = true;
        }
        if (!is_line_start) {
            fputc(' ', to);
            column++;
        }
        fwrite(text, 1, len, to);
        column += (int)len;
        is_line_start = false;
        text += len;
    }
    fputc('\n', to);
}

void option_print(FILE *to, const struct option_spec *spec, int width)
{
    int column = spec->letter ? fprintf(to, "  -%c, ", spec->letter) : fprintf(to, "      ");
    column += fprintf(to, "--%s%s%s", spec->name, spec->argument ? " " : "", spec->argument ? spec->argument : "");
    column += fprintf(to, "  ");
    char text[1536];
    snprintf(text, sizeof text, "%s%s%s%s", spec->help, spec->env ? " [" : "", spec->env ? spec->env : "",
             spec->env ? "]" : "");
    text_print_wrapped(to, text, 28, column, width);
}
