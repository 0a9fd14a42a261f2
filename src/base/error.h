/* SPDX-License-Identifier: Apache-2.0 */
/* Filling struct shoal_error. Whoever first knows what failed writes the message; callers add context or pass it on. */
#ifndef SHOAL_BASE_ERROR_H
#define SHOAL_BASE_ERROR_H

#include <shoal/status.h>

/* Writes status, errno and message into error (NULL: nothing is written) and returns status. A control character or
 * a byte that is not UTF-8 in the message (it may quote a peer) becomes '?'. */
enum shoal_status error_set(struct shoal_error *error, enum shoal_status status, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "CONTEXT: " before the message. */
void error_prefix(struct shoal_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* error_set with the text of the status itself, for out of memory. */
enum shoal_status error_no_memory(struct shoal_error *error);

/* Nothing has failed. Clears what is read of an error, not all its bytes. */
static inline void error_clear(struct shoal_error *error)
{
    error->status = SHOAL_OK;
    error->sys_errno = 0;
    error->message[0] = '\0';
}

/* Copies from into error (may be NULL) and returns its status. */
enum shoal_status error_copy(struct shoal_error *error, const struct shoal_error *from);

/* The analyzer does not see into error.c: a failure that it takes for success looks like use of unset outputs. */
#ifdef __clang_analyzer__
#define error_set(error, status, ...) ((void)error_set(error, status, __VA_ARGS__), (status))
#define error_no_memory(error) ((void)error_no_memory(error), SHOAL_NO_MEMORY)
#endif

#endif
