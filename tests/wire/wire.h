/* SPDX-License-Identifier: Apache-2.0 */
/* What the wire tests share: cmocka with its prerequisites, frames written as hex. */
#ifndef SHOAL_TESTS_WIRE_H
#define SHOAL_TESTS_WIRE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a hex text (spaces are skipped); their number. */
static inline size_t wire_from_hex(uint8_t *out, size_t size, const char *hex)
{
    size_t len = 0;

    for (const char *c = hex; *c; c++) {
        char digits[3] = {c[0], c[1], '\0'};

        if (*c == ' ')
            continue;
        assert_true(len < size && c[1]);
        out[len++] = (uint8_t)strtoul(digits, NULL, 16);
        c++;
    }
    return len;
}

#endif
