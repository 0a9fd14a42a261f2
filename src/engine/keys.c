/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/keys.h"

#include <string.h>

#define KEY_MAX_BYTES 4096

static bool is_plain(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '~' || c == '-';
}

bool engine_key_escape(struct buf *out, const void *name, size_t len_bytes)
{
    static const char hex[] = "0123456789ABCDEF";
    const unsigned char *from = name;

    for (size_t i = 0; i < len_bytes; i++) {
        char text[3] = {(char)from[i]};
        size_t len = 1;

        if (!is_plain(from[i])) {
            text[0] = '%';
            text[1] = hex[from[i] >> 4];
            text[2] = hex[from[i] & 15];
            len = 3;
        }
        if (!buf_append(out, text, len))
            return false;
    }
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

bool engine_key_unescape(struct buf *out, const char *text, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '%') {
            int high = i + 2 < len_bytes ? hex_digit(text[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(text[i + 2]) : -1;

            if (low < 0)
                return false;
            c = (unsigned char)(high << 4 | low);
            i += 2;
        } else if (!is_plain(c)) {
            return false;
        }
        if (!buf_append(out, &c, 1))
            return false;
    }
    return true;
}

char *engine_key(const char *cluster, const char *kind, const char *name)
{
    struct buf key;
    char *text = NULL;
    size_t len;

    buf_init(&key, KEY_MAX_BYTES);
    if (buf_append_str(&key, ENGINE_KEY_ROOT) && engine_key_escape(&key, cluster, strlen(cluster)) &&
        buf_append_str(&key, "/") && buf_append_str(&key, kind) && buf_append_str(&key, "/") &&
        (!name || engine_key_escape(&key, name, strlen(name))))
        text = (char *)buf_take(&key, &len);
    buf_release(&key);
    return text;
}

char *engine_key_node(const char *cluster, const char *server_name)
{
    return engine_key(cluster, "nodes", server_name);
}
