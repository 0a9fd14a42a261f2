/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

size_t utf8_decode(const char *text, size_t left, uint32_t *code_out)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)text;
    size_t len = bytes[0] < 0x80   ? 1
                 : bytes[0] < 0xc2 ? 0
                 : bytes[0] < 0xe0 ? 2
                 : bytes[0] < 0xf0 ? 3
                 : bytes[0] < 0xf5 ? 4
                                   : 0;
    uint32_t code = len == 1 ? bytes[0] : len ? bytes[0] & (0x7fu >> len) : 0;

    if (len > left)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (bytes[i] & 0x3fu);
    }
    if (len > 1 && (code < smallest[len] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)))
        return 0;
    *code_out = code;
    return len;
}
