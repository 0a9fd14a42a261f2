/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

bool number_parse(const char **text, uint64_t *whole_out, double *fraction_out)
{
    const char *p = *text;
    if (!isdigit((unsigned char)*p))
        return false;
    uint64_t whole = 0;
    for (; isdigit((unsigned char)*p); p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (whole > (UINT64_MAX - digit) / 10)
            return false;
        whole = whole * 10 + digit;
    }
    double fraction = 0, scale = 1;
    if (*p == '.') {
        p++;
        if (!isdigit((unsigned char)*p))
            return false;
        for (; isdigit((unsigned char)*p); p++) {
            scale /= 10;
            fraction += (*p - '0') * scale;
        }
    }
    *text = p;
    *whole_out = whole;
    *fraction_out = fraction;
    return true;
}

bool number_scale(uint64_t whole, double fraction, uint64_t unit, uint64_t max, uint64_t *out)
{
    if (whole > max / unit)
        return false;
    uint64_t value = whole * unit;
    uint64_t extra = (uint64_t)(fraction * (double)unit + 0.5);
    if (value > max - extra)
        return false;
    *out = value + extra;
    return true;
}

bool number_parse_size(const char *text, uint64_t *bytes_out)
{
    uint64_t whole;
    double fraction;
    if (!number_parse(&text, &whole, &fraction))
        return false;
    uint64_t unit = 1;
    static const char letters[] = "KMGTP";
    const char *letter = *text ? strchr(letters, toupper((unsigned char)*text)) : NULL;
    if (letter) {
        uint64_t base = 1024;
        if (strcasecmp(text + 1, "B") == 0)
            base = 1000;
        else if (text[1] != '\0' && strcasecmp(text + 1, "iB") != 0)
            return false;
        for (const char *l = letters; l <= letter; l++)
            unit *= base;
    } else if (*text != '\0' && strcasecmp(text, "B") != 0) {
        return false;
    }
    if (fraction != 0 && unit == 1)
        return false;
    return number_scale(whole, fraction, unit, INT64_MAX, bytes_out);
}
