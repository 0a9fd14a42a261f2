/* SPDX-License-Identifier: Apache-2.0 */
/* shoal: the command line. Finds the command, reads its options, runs it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/clock.h"
#include "help.h"
#include "units.h"

static int unknown_command(const char *name)
{
    char shown[128];
    fprintf(stderr, "shoal: %s \"%s\"\n  try: shoal help\n",
            name[0] == '-' ? "a command comes first, then its options; there is no command" : "unknown command",
            units_printable(name, shown, sizeof shown));
    return EXIT_CODE_USAGE;
}

/* What did not reach standard output is a failure, whatever the command thinks. */
static int close_stdout(int code)
{
    int failed = ferror(stdout);
    if (fflush(stdout) != 0 || failed) {
        if (errno != EPIPE)
            fprintf(stderr, "shoal: cannot write to standard output: %s\n", strerror(errno ? errno : EIO));
        return code == EXIT_CODE_OK ? EXIT_CODE_FAILURE : code;
    }
    return code;
}

static int run_node_command(struct app *app, int count, char **arguments)
{
    struct shoal_error error;
    int code;
    report_start_log(app);
    if (shoal_cancel_create(&app->cancel) != SHOAL_OK || signals_start(app->cancel, &error) != SHOAL_OK) {
        fprintf(stderr, "shoal %s: cannot start: out of memory or threads\n", app->command->name);
        shoal_cancel_destroy(app->cancel);
        return EXIT_CODE_FAILURE;
    }
    app->deadline_ms = app->settings.timeout_ms > 0 ? deadline_after_ms(app->settings.timeout_ms) : DEADLINE_NONE;
    enum shoal_status status = SHOAL_OK;
    if (app->settings.metadata)
        app->metadata_uri = strdup(app->settings.metadata);
    else
        status = runtime_metadata_uri(&app->metadata_uri, &error);
    if (status != SHOAL_OK)
        code = report_failure(app, &error, "no place for the metadata");
    else if (!app->metadata_uri)
        code = EXIT_CODE_FAILURE;
    else
        code = app->command->run(app, count, arguments);
    app_close_store(app);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    signals_stop();
    shoal_cancel_destroy(app->cancel);
    free(app->metadata_uri);
    return code;
}

static int run_kv_command(struct app *app, int count, char **arguments)
{
    struct shoal_error error;
    int code;
    report_start_log(app);
    if (shoal_cancel_create(&app->cancel) != SHOAL_OK || signals_start(app->cancel, &error) != SHOAL_OK) {
        fprintf(stderr, "shoal %s: cannot start: out of memory or threads\n", app->command->name);
        shoal_cancel_destroy(app->cancel);
        return EXIT_CODE_FAILURE;
    }
    app->deadline_ms = app->settings.timeout_ms > 0 ? deadline_after_ms(app->settings.timeout_ms) : DEADLINE_NONE;
    code = app->command->run(app, count, arguments);
    shoal_kv_close(app->kv);
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    signals_stop();
    shoal_cancel_destroy(app->cancel);
    return code;
}

static int run_command(struct app *app, int count, char **arguments)
{
    if (app->command->has_common_options)
        return run_node_command(app, count, arguments);
    if (app->command->has_kv_options)
        return run_kv_command(app, count, arguments);
    return app->command->run(app, count, arguments);
}

int main(int argc, char **argv)
{
    char two_words[64];
    int words = 1;
    if (argc < 2) {
        help_print_overview(stderr);
        return EXIT_CODE_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    if (strcmp(name, "kv") == 0) {
        bool wants_help = argc > 2 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0);
        if (argc == 2 || wants_help) {
            help_print_group(wants_help ? stdout : stderr, "kv");
            return wants_help ? close_stdout(EXIT_CODE_OK) : EXIT_CODE_USAGE;
        }
        snprintf(two_words, sizeof two_words, "kv %s", argv[2]);
        name = two_words;
        words = 2;
    }
    struct app app = {.command = command_find(name)};
    if (!app.command)
        return unknown_command(name);
    int first;
    options_set_defaults(&app.settings);
    if (!options_parse(app.command, argc - words, argv + words, &app.settings, &first))
        return EXIT_CODE_USAGE;
    if (app.settings.wants_help) {
        help_print_command(stdout, app.command);
        return close_stdout(EXIT_CODE_OK);
    }
    return close_stdout(run_command(&app, argc - words - first, argv + words + first));
}
