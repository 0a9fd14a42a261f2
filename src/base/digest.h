/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-128 (xxHash, Yann Collet) in its canonical big-endian form. Guards against accidents and bugs, not against a
 * forger: whoever may take part is a matter of the handshake. */
#ifndef SHOAL_BASE_DIGEST_H
#define SHOAL_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_BYTES 16
#define DIGEST_HEX_BYTES (2 * DIGEST_BYTES + 1)

struct digest {
    uint8_t bytes[DIGEST_BYTES];
};

struct digest digest_of(const void *data, size_t len_bytes);
bool digest_is_equal(const struct digest *a, const struct digest *b);
void digest_to_hex(const struct digest *digest, char hex_out[DIGEST_HEX_BYTES]);
bool digest_from_hex(struct digest *digest_out, const char *hex);

/* Streaming form, for a piece that lies in several regions or arrives bit by bit. */
struct digest_stream;
struct digest_stream *digest_stream_create(void); /* NULL: out of memory */
void digest_stream_destroy(struct digest_stream *stream);
void digest_stream_reset(struct digest_stream *stream);
void digest_stream_update(struct digest_stream *stream, const void *data, size_t len_bytes);
struct digest digest_stream_final(const struct digest_stream *stream);

#endif
