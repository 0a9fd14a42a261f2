/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#undef error_set
#undef error_no_memory

const char *shoal_status_name(enum shoal_status status)
{
    switch (status) {
#define CASE_(name, value, text)                                                                                       \
    case SHOAL_##name:                                                                                                 \
        return #name;
        SHOAL_STATUS_MAP(CASE_)
#undef CASE_
    }
    return "UNKNOWN";
}

const char *shoal_status_text(enum shoal_status status)
{
    switch (status) {
#define CASE_(name, value, text)                                                                                       \
    case SHOAL_##name:                                                                                                 \
        return text;
        SHOAL_STATUS_MAP(CASE_)
#undef CASE_
    }
    return "unknown status";
}

int shoal_status_is_retryable(enum shoal_status status)
{
    switch (status) {
    case SHOAL_TOO_MANY_RETRIES:
    case SHOAL_NO_SOURCE:
    case SHOAL_TIMED_OUT:
    case SHOAL_METADATA:
    case SHOAL_NO_MEMORY:
    case SHOAL_BUSY:
    case SHOAL_CONFLICT:
    case SHOAL_LIMIT:
    case SHOAL_UNREACHABLE:
        return 1;
    default:
        return 0;
    }
}

const char *shoal_version(void)
{
    return SHOAL_VERSION;
}

/* A message may quote a peer or an argument, and may have been cut anywhere: what is a control character or not UTF-8
 * becomes '?'. */
static void scrub(char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        uint32_t code;
        size_t len = utf8_decode(text, left, &code);

        if (len == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0)) {
            *text = '?';
            len = 1;
        }
        text += len;
        left -= len;
    }
}

enum shoal_status error_set(struct shoal_error *error, enum shoal_status status, int sys_errno, const char *format, ...)
{
    if (error) {
        va_list args;
        error->status = status;
        error->sys_errno = sys_errno;
        va_start(args, format);
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
        scrub(error->message);
    }
    return status;
}

void error_prefix(struct shoal_error *error, const char *format, ...)
{
    char text[sizeof error->message];
    size_t prefix_len, message_len;
    va_list args;

    if (!error)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    scrub(text);
    prefix_len = strlen(text);
    if (prefix_len > sizeof text - 3)
        prefix_len = sizeof text - 3;
    memcpy(text + prefix_len, ": ", 2);
    prefix_len += 2;
    message_len = strnlen(error->message, sizeof error->message - 1);
    if (message_len > sizeof text - 1 - prefix_len)
        message_len = sizeof text - 1 - prefix_len;
    memcpy(text + prefix_len, error->message, message_len);
    text[prefix_len + message_len] = '\0';
    scrub(text + prefix_len);
    memcpy(error->message, text, prefix_len + message_len + 1);
}

enum shoal_status error_no_memory(struct shoal_error *error)
{
    return error_set(error, SHOAL_NO_MEMORY, 0, "%s", shoal_status_text(SHOAL_NO_MEMORY));
}

enum shoal_status error_copy(struct shoal_error *error, const struct shoal_error *from)
{
    if (error && error != from)
        *error = *from;
    return from->status;
}
