/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
#ifndef SHOAL_BASE_UTF8_H
#define SHOAL_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length (1..4) of the sequence at text, of which left bytes (at least 1) may be read; code_out: its code point. 0:
 * malformed or cut off. */
size_t utf8_decode(const char *text, size_t left, uint32_t *code_out);

#endif
