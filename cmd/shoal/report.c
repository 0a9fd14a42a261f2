/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "terminal.h"
#include "units.h"

static const char *help_hint_of(const struct app *app)
{
    static char text[64];
    snprintf(text, sizeof text, "shoal help %s", app->command->name);
    return text;
}

static const char *kv_hint_of(const struct app *app, const struct shoal_error *error)
{
    switch (error->status) {
    case SHOAL_INVALID_ARGUMENT:
        return help_hint_of(app);
    case SHOAL_NOT_FOUND:
        return error->sys_errno == ENOENT ? NULL : "see what there is with: shoal kv ls"; /* a file, a key */
    case SHOAL_EXISTS:
        return "values do not change: remove it first with: shoal kv rm KEY";
    case SHOAL_UNREACHABLE:
        if (app->kv) /* connected: it is somebody behind that */
            return "are the mooncake_master and the clients that have the values running? shoal kv stat asks";
        return app->settings.kv_master
                   ? "is the mooncake_master running, and is that its --rpc_port?"
                   : "start a mooncake_client, give the --port of the one that runs with --client, or "
                     "use a master with --master";
    case SHOAL_TIMED_OUT:
        return "allow more time with --timeout";
    case SHOAL_NO_SPACE:
        if (error->sys_errno) /* where the file is to be, not where values are */
            return "free some space or choose another place for the file";
        return "see who has how much with: shoal kv stat; remove some, or start a mooncake_client with more";
    case SHOAL_LIMIT:
        return "see how large the tiers are with: shoal kv stat";
    default:
        return NULL;
    }
}

/* What the user can do about it. */
static const char *hint_of(const struct app *app, const struct shoal_error *error)
{
    bool is_get = app->command == &command_get, is_seed = app->command == &command_seed;
    if (app->command->has_kv_options)
        return kv_hint_of(app, error);
    switch (error->status) {
    case SHOAL_INVALID_ARGUMENT:
        return help_hint_of(app);
    case SHOAL_PAYLOAD_NOT_FOUND:
        return is_get ? "see what there is with: shoal ls; or wait for it with: shoal get --wait"
                      : "see what there is with: shoal ls";
    case SHOAL_EXISTS:
        if (!is_seed)
            return NULL;
        return error->sys_errno == EEXIST ? "rename one of them, or seed the directory that has both"
                                          : "choose another name, or replace the payload with --force";
    case SHOAL_METADATA:
        return "check --metadata and the service with: shoal doctor";
    case SHOAL_NAME_IN_USE:
        return "choose another port as HOST:PORT (port 0: any free one), or end the process that has it";
    case SHOAL_ADDRESS:
        return "give an address of this machine as HOST:PORT; shoal doctor checks that of --name";
    case SHOAL_NO_SOURCE:
        return "its sources are gone or cannot be reached: start one with shoal seed, see shoal stat NAME";
    case SHOAL_CORRUPTED:
        return "the source's files may have changed since it registered them: seed them again with --force";
    case SHOAL_REPLACED:
        return "the payload was registered anew meanwhile: run the command again for the new one";
    case SHOAL_TIMED_OUT:
        return "allow more time with --timeout, or see shoal doctor";
    case SHOAL_NO_SPACE:
        return "free some space or choose another directory";
    case SHOAL_NO_MEMORY:
        return "see ulimit -v, vm.max_map_count and free memory";
    default:
        return NULL;
    }
}

json_t *json_text(const char *text)
{
    size_t len = strlen(text);
    if (units_is_utf8(text, len))
        return json_stringn(text, len);
    char *copy = malloc(len + 1);
    if (!copy)
        return NULL;
    units_printable(text, copy, len + 1);
    json_t *value = json_string(copy);
    free(copy);
    return value;
}

json_t *json_generation(uint64_t generation)
{
    return json_sprintf("%016" PRIx64, generation);
}

void json_print(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    if (text) {
        puts(text);
        fflush(stdout);
    } else {
        terminal_say("shoal: out of memory for JSON output");
    }
    free(text);
    json_decref(value);
}

__attribute__((format(printf, 3, 0))) static void say(const struct app *app, const char *kind, const char *format,
                                                      va_list arguments)
{
    char text[1024], shown[1024], line[1200];
    vsnprintf(text, sizeof text, format, arguments);
    units_printable(text, shown, sizeof shown);
    snprintf(line, sizeof line, "shoal %s: %s%s", app->command->name, kind, shown);
    terminal_say(line);
}

int report_failure(const struct app *app, const struct shoal_error *error, const char *format, ...)
{
    int signal_number = signals_received();
    bool is_interrupted = signal_number && error->status == SHOAL_CANCELED;
    int code = is_interrupted ? 128 + signal_number : (int)exit_code_of(error->status);
    const char *hint = is_interrupted ? NULL : hint_of(app, error);
    char what[512], shown[512], message[sizeof error->message], line[1400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    units_printable(what, shown, sizeof shown);
    units_printable(error->message[0] ? error->message : shoal_status_text(error->status), message, sizeof message);
    if (is_interrupted)
        snprintf(message, sizeof message, "ended by %s",
                 signal_number == 2    ? "SIGINT"
                 : signal_number == 15 ? "SIGTERM"
                                       : "SIGHUP");
    snprintf(line, sizeof line, "shoal %s: %s: %s", app->command->name, shown, message);
    terminal_say(line);
    if (hint) {
        snprintf(line, sizeof line, "  try: %s", hint);
        terminal_say(line);
    }
    if (app->settings.is_json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s, s:i, s:o, s:o, s:o?}", "event", "error", "command", app->command->name, "status",
                      shoal_status_name(error->status), "exit_code", code, "tried", json_text(shown), "message",
                      json_text(message), "hint", hint ? json_string(hint) : NULL);
        json_print(object);
    }
    return code;
}

void report_warning(const struct app *app, const char *format, ...)
{
    if (app->settings.verbosity < 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    say(app, "warning: ", format, arguments);
    va_end(arguments);
}

void report_note(const struct app *app, const char *format, ...)
{
    if (app->settings.verbosity < 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    say(app, "", format, arguments);
    va_end(arguments);
}

static void log_line(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    (void)arg;
    char line[1400], shown[1200];
    snprintf(line, sizeof line, "shoal: %s: %s: %s", names[level <= SHOAL_LOG_TRACE ? level : SHOAL_LOG_TRACE], module,
             units_printable(message, shown, sizeof shown));
    terminal_say(line);
}

void report_start_log(const struct app *app)
{
    int level = SHOAL_LOG_WARN + app->settings.verbosity;
    shoal_log_set(log_line, NULL, (enum shoal_log_level)(level > SHOAL_LOG_TRACE ? SHOAL_LOG_TRACE : level));
}
