/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot XXH3-128 compiled for other instruction sets than the library's baseline. */
#ifndef SHOAL_BASE_DIGEST_IMPL_H
#define SHOAL_BASE_DIGEST_IMPL_H

#include <xxhash.h>

typedef XXH128_hash_t (*digest_hash_fn)(const void *data, size_t len);

XXH128_hash_t digest_hash_avx2(const void *data, size_t len);

#endif
