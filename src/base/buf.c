/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_FIRST_BYTES 64u

void buf_init(struct buf *buf, size_t max_bytes)
{
    *buf = (struct buf){.max = max_bytes};
}

void buf_release(struct buf *buf)
{
    free(buf->data);
    buf->data = NULL;
    buf->len = buf->capacity = 0;
}

bool buf_reserve(struct buf *buf, size_t more_bytes)
{
    size_t capacity;
    uint8_t *data;

    if (more_bytes > buf->max || buf->len > buf->max - more_bytes)
        return false;
    if (buf->data && buf->len + more_bytes <= buf->capacity)
        return true;
    capacity = buf->capacity ? buf->capacity : BUF_FIRST_BYTES;
    while (capacity < buf->len + more_bytes && capacity <= buf->max / 2)
        capacity *= 2;
    if (capacity < buf->len + more_bytes)
        capacity = buf->max;
    data = realloc(buf->data, capacity + 1);
    if (!data)
        return false;
    buf->data = data;
    buf->capacity = capacity;
    buf->data[buf->len] = 0;
    return true;
}

bool buf_append(struct buf *buf, const void *data, size_t len)
{
    if (!buf_reserve(buf, len))
        return false;
    if (len)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = 0;
    return true;
}

bool buf_append_str(struct buf *buf, const char *text)
{
    return buf_append(buf, text, strlen(text));
}

bool buf_append_format(struct buf *buf, const char *format, ...)
{
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0 || !buf_reserve(buf, (size_t)len))
        return false;
    va_start(args, format);
    vsnprintf((char *)buf->data + buf->len, (size_t)len + 1, format, args);
    va_end(args);
    buf->len += (size_t)len;
    return true;
}

void buf_consume(struct buf *buf, size_t len)
{
    if (len >= buf->len) {
        buf->len = 0;
    } else {
        memmove(buf->data, buf->data + len, buf->len - len);
        buf->len -= len;
    }
    if (buf->data)
        buf->data[buf->len] = 0;
}

uint8_t *buf_take(struct buf *buf, size_t *len_out)
{
    uint8_t *data = buf->data;
    if (len_out)
        *len_out = buf->len;
    if (!data)
        data = calloc(1, 1);
    buf->data = NULL;
    buf->len = buf->capacity = 0;
    return data;
}
