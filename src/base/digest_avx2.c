/* SPDX-License-Identifier: Apache-2.0 */
/* xxHash compiled in for AVX2 (meson.build gives this file -mavx2); called only where the CPU has it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Not digest_impl.h: inlining renames xxHash's types in this file. The layout is the same. */
XXH128_hash_t digest_hash_avx2(const void *data, size_t len);

XXH128_hash_t digest_hash_avx2(const void *data, size_t len)
{
    return XXH3_128bits(data, len);
}
