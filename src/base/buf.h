/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer that takes its bound when it is created. Zero-initialised with max 0 it is empty and refuses
 * to grow. One more byte, a NUL, always follows the data, so text can be used as a string. */
#ifndef SHOAL_BASE_BUF_H
#define SHOAL_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data; /* owned */
    size_t len, capacity, max;
};

void buf_init(struct buf *buf, size_t max_bytes);
void buf_release(struct buf *buf);
/* false: the bound is reached or memory is out; the buffer is unchanged. */
bool buf_reserve(struct buf *buf, size_t more_bytes);
bool buf_append(struct buf *buf, const void *data, size_t len);
bool buf_append_str(struct buf *buf, const char *text);
bool buf_append_format(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Removes len bytes at the front. */
void buf_consume(struct buf *buf, size_t len);
/* Hands the data over (free()); the buffer is empty afterwards. len_out may be NULL. NULL only if it never held
 * anything and memory is out.
 */
uint8_t *buf_take(struct buf *buf, size_t *len_out);

#endif
