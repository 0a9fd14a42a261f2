/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon says on standard error: its own lines and the library's log, plain ("TIME level module: message") or as
 * JSON lines ({"time", "level", "module", "message", ...}). */
#ifndef SHOAL_CMD_DAEMON_LOG_H
#define SHOAL_CMD_DAEMON_LOG_H

#include <jansson.h>
#include <stdbool.h>

#include <shoal/status.h>

#include "daemon_options.h"

/* program is borrowed for good. Installs the log sink. */
void daemon_log_start(const char *program, const struct daemon_settings *settings);
/* Removes the sink; daemon_say goes on working. */
void daemon_log_stop(void);

/* One line of the program itself, as its module. event and fields (taken; NULL: none) appear in JSON only. */
void daemon_say(enum shoal_log_level level, const char *event, json_t *fields, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "WHAT: message of error" as an error and what to do about it (hint; NULL: nothing). Returns the exit code. */
int daemon_fail(const struct shoal_error *error, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
