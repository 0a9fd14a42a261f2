/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-128 compiled for other instruction sets than the library's baseline. A state belongs to the table that made it.
 */
#ifndef SHOAL_BASE_DIGEST_IMPL_H
#define SHOAL_BASE_DIGEST_IMPL_H

#include <stddef.h>

#include "base/digest.h"

struct digest_impl {
    struct digest (*hash)(const void *data, size_t len_bytes);
    void *(*create)(void);        /* NULL: out of memory */
    void (*destroy)(void *state); /* NULL is allowed */
    void (*reset)(void *state);
    void (*update)(void *state, const void *data, size_t len_bytes);
    struct digest (*final)(const void *state);
};

extern const struct digest_impl digest_impl_baseline, digest_impl_avx2;

#endif
