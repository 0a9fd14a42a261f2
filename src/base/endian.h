/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian wire fields. Never cast a wire buffer to a struct. */
#ifndef SHOAL_BASE_ENDIAN_H
#define SHOAL_BASE_ENDIAN_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define ENDIAN_HELPERS_(bits)                                                                                          \
    static inline void put_le##bits(void *to, uint##bits##_t value)                                                    \
    {                                                                                                                  \
        value = htole##bits(value);                                                                                    \
        memcpy(to, &value, sizeof value);                                                                              \
    }                                                                                                                  \
    static inline uint##bits##_t get_le##bits(const void *from)                                                        \
    {                                                                                                                  \
        uint##bits##_t value;                                                                                          \
        memcpy(&value, from, sizeof value);                                                                            \
        return le##bits##toh(value);                                                                                   \
    }
ENDIAN_HELPERS_(16)
ENDIAN_HELPERS_(32)
ENDIAN_HELPERS_(64)
#undef ENDIAN_HELPERS_

#endif
