/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a struct digest_impl, included once per instruction set with DIGEST_IMPL_NAME set. */
#include <xxhash.h>

#include <string.h>

#include "base/digest_impl.h"

static struct digest canonical(XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;
    struct digest digest;

    XXH128_canonicalFromHash(&bytes, hash);
    memcpy(digest.bytes, bytes.digest, sizeof digest.bytes);
    return digest;
}

static struct digest hash(const void *data, size_t len_bytes)
{
    return canonical(XXH3_128bits(data, len_bytes));
}

static void *create(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (state)
        XXH3_128bits_reset(state);
    return state;
}

static void destroy(void *state)
{
    XXH3_freeState(state);
}

static void reset(void *state)
{
    XXH3_128bits_reset(state);
}

static void update(void *state, const void *data, size_t len_bytes)
{
    XXH3_128bits_update(state, data, len_bytes);
}

static struct digest final(const void *state)
{
    return canonical(XXH3_128bits_digest(state));
}

const struct digest_impl DIGEST_IMPL_NAME = {
    .hash = hash,
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .update = update,
    .final = final,
};
