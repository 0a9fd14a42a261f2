/* SPDX-License-Identifier: Apache-2.0 */
#include "content.h"

#include <endian.h>
#include <string.h>

/* splitmix64's output function over a counter: word w of the content. */
static uint64_t word_of(uint64_t seed, uint64_t index)
{
    if (seed == 0)
        return 0;
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return htole64(z ^ (z >> 31));
}

void content_fill(void *to, size_t len_bytes, uint64_t seed, uint64_t offset)
{
    uint8_t *out = to;
    while (len_bytes > 0) {
        uint64_t word = word_of(seed, offset / 8);
        size_t skip = offset % 8, n = 8 - skip < len_bytes ? 8 - skip : len_bytes;
        memcpy(out, (const uint8_t *)&word + skip, n);
        out += n;
        offset += n;
        len_bytes -= n;
    }
}

int64_t content_find_difference(const void *data, size_t len_bytes, uint64_t seed, uint64_t offset)
{
    const uint8_t *in = data;
    uint64_t chunk[512];
    for (size_t done = 0; done < len_bytes;) {
        size_t n = len_bytes - done < sizeof chunk ? len_bytes - done : sizeof chunk;
        content_fill(chunk, n, seed, offset + done);
        if (memcmp(in + done, chunk, n) != 0)
            for (size_t i = 0; i < n; i++)
                if (in[done + i] != ((const uint8_t *)chunk)[i])
                    return (int64_t)(done + i);
        done += n;
    }
    return -1;
}
