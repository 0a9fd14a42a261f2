/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exit_code.h"
#include "units.h"

#define LINE_BYTES 1400

static struct {
    const char *program;
    bool is_json;
    enum shoal_log_level level;
} daemon_log = {.program = "daemon", .level = SHOAL_LOG_INFO};

static const char *level_name(enum shoal_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    return names[level <= SHOAL_LOG_TRACE ? level : SHOAL_LOG_TRACE];
}

/* "2026-11-30T06:52:17.123Z" */
static void format_now(char *to, size_t size)
{
    struct timespec now;
    struct tm utc;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(to, size, "%s.%03dZ", seconds, (int)(now.tv_nsec / 1000000));
}

/* fields is taken. One write per line, so that lines of several threads do not mix. */
static void write_line(enum shoal_log_level level, const char *module, const char *event, json_t *fields,
                       const char *hint, const char *message)
{
    char now[64], shown[LINE_BYTES];
    format_now(now, sizeof now);
    units_printable(message, shown, sizeof shown);
    if (daemon_log.is_json) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s*, s:s*}", "time", now, "level", level_name(level), "module",
                                 module, "message", shown, "event", event, "hint", hint);
        if (line && fields)
            json_object_update_missing(line, fields);
        char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
        fprintf(stderr, "%s\n", text ? text : "{\"level\":\"error\",\"message\":\"out of memory for a log line\"}");
        free(text);
        json_decref(line);
    } else {
        fprintf(stderr, "%s %s %s: %s\n%s%s%s", now, level_name(level), module, shown, hint ? "  try: " : "",
                hint ? hint : "", hint ? "\n" : "");
    }
    json_decref(fields);
}

static void log_line(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    (void)arg;
    write_line(level, module, NULL, NULL, NULL, message);
}

void daemon_log_start(const char *program, const struct daemon_settings *settings)
{
    int level = SHOAL_LOG_INFO + settings->verbosity;
    daemon_log.program = program;
    daemon_log.is_json = strcmp(settings->log_format, "json") == 0;
    daemon_log.level = (enum shoal_log_level)(level > SHOAL_LOG_TRACE ? SHOAL_LOG_TRACE : level);
    shoal_log_set(log_line, NULL, daemon_log.level);
}

void daemon_log_stop(void)
{
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
}

void daemon_say(enum shoal_log_level level, const char *event, json_t *fields, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list arguments;
    if (level > daemon_log.level) {
        json_decref(fields);
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_line(level, daemon_log.program, event, fields, NULL, text);
}

int daemon_fail(const struct shoal_error *error, const char *hint, const char *format, ...)
{
    char what[512], text[LINE_BYTES];
    int code = (int)exit_code_of(error->status);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s: %s", what, error->message[0] ? error->message : shoal_status_text(error->status));
    write_line(SHOAL_LOG_ERROR, daemon_log.program, "error",
               json_pack("{s:s, s:i}", "status", shoal_status_name(error->status), "exit_code", code), hint, text);
    return code;
}
