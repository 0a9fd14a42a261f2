/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/number.h"
#include "base/utf8.h"

bool units_parse_size(const char *text, uint64_t *bytes_out)
{
    return number_parse_size(text, bytes_out);
}

bool units_parse_rate(const char *text, uint64_t *bytes_per_s_out)
{
    static const char letters[] = "KMGT";
    uint64_t whole, value, unit = 1, base = 1000, bits = 8;
    double fraction;
    if (!number_parse(&text, &whole, &fraction))
        return false;
    const char *letter = *text ? strchr(letters, toupper((unsigned char)*text)) : NULL;
    if (letter) {
        text++;
        if (*text == 'i') {
            base = 1024;
            text++;
        }
        for (const char *l = letters; l <= letter; l++)
            unit *= base;
    }
    if (strncasecmp(text, "bit", 3) == 0) {
        bits = 1;
        text += 3;
    } else if (*text == 'B') {
        text++;
    }
    if (*text != '\0' && strcmp(text, "/s") != 0)
        return false;
    if ((fraction != 0 && unit == 1) || !number_scale(whole, fraction, unit, INT64_MAX, &value))
        return false;
    *bytes_per_s_out = bits == 1 ? value / 8 : value;
    return true;
}

bool units_parse_duration(const char *text, int64_t *ms_out)
{
    if (strcmp(text, "none") == 0) {
        *ms_out = -1;
        return true;
    }
    uint64_t whole, unit, ms;
    double fraction;
    if (!number_parse(&text, &whole, &fraction))
        return false;
    if (strcmp(text, "ms") == 0)
        unit = 1;
    else if (*text == '\0' || strcmp(text, "s") == 0)
        unit = 1000;
    else if (strcmp(text, "m") == 0 || strcmp(text, "min") == 0)
        unit = 60 * 1000;
    else if (strcmp(text, "h") == 0)
        unit = 3600 * 1000;
    else
        return false;
    if (!number_scale(whole, fraction, unit, UINT64_C(365) * 24 * 3600 * 1000, &ms) || ms == 0)
        return false;
    *ms_out = (int64_t)ms;
    return true;
}

bool units_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *value_out)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || value < min || value > max)
        return false;
    *value_out = value;
    return true;
}

static const char *format_scaled(double value, double base, const char *const *names, size_t count,
                                 char text_out[UNITS_TEXT_BYTES])
{
    size_t i = 0;
    /* 999.5 would be printed as "1000": move on before that. */
    while (i + 1 < count && value >= (base == 1000 ? 999.5 : 1023.5)) {
        value /= base;
        i++;
    }
    int digits = i == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text_out, UNITS_TEXT_BYTES, "%.*f %s", digits, value, names[i]);
    return text_out;
}

const char *units_format_size(uint64_t bytes, char text_out[UNITS_TEXT_BYTES])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return format_scaled((double)bytes, 1024, names, sizeof names / sizeof *names, text_out);
}

const char *units_format_rate(double bytes_per_s, char text_out[UNITS_TEXT_BYTES])
{
    static const char *const names[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    return format_scaled(bytes_per_s < 0 ? 0 : bytes_per_s, 1000, names, sizeof names / sizeof *names, text_out);
}

const char *units_format_seconds(uint64_t seconds, char text_out[UNITS_TEXT_BYTES])
{
    unsigned s = (unsigned)(seconds % 60), m = (unsigned)(seconds / 60 % 60), h = (unsigned)(seconds / 3600 % 24);
    unsigned long long d = seconds / 86400;
    if (d)
        snprintf(text_out, UNITS_TEXT_BYTES, "%llud %02u:%02u", d, h, m);
    else if (h)
        snprintf(text_out, UNITS_TEXT_BYTES, "%u:%02u:%02u", h, m, s);
    else
        snprintf(text_out, UNITS_TEXT_BYTES, "%u:%02u", m, s);
    return text_out;
}

bool units_is_utf8(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t code;
        size_t step = utf8_decode(text + i, len - i, &code);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}

const char *units_printable(const char *text, char *to, size_t size)
{
    size_t len = strlen(text), out = 0;
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        size_t step = utf8_decode(text + i, len - i, &code);
        bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
        if (out + (step ? step : 1) + 1 > size)
            break;
        if (step == 0 || is_control) {
            to[out++] = '?';
            i += step ? step : 1;
        } else {
            memcpy(to + out, text + i, step);
            out += step;
            i += step;
        }
    }
    if (size)
        to[out] = '\0';
    return to;
}
