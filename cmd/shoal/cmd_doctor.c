/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at what most often goes wrong, says how it is and what to do. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hostport.h"
#include "doctor.h"
#include "terminal.h"
#include "units.h"

#define CHECK_WIDTH 14

void doctor_tell(struct doctor *doctor, enum doctor_state state, const char *check, const char *advice,
                 const char *format, ...)
{
    static const char *const names[] = {"OK", "WARN", "FAIL", "SKIP"};
    static const char *const colors[] = {"\033[32m", "\033[33m", "\033[31m", ""};
    char text[1200], shown[1200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    units_printable(text, shown, sizeof shown);
    doctor->warnings += state == DOCTOR_WARN;
    doctor->failures += state == DOCTOR_FAIL;
    doctor->skipped += state == DOCTOR_SKIP;
    if (doctor->checks) {
        json_array_append_new(doctor->checks,
                              json_pack("{s:s, s:s, s:o, s:o?}", "check", check, "state", names[state], "text",
                                        json_text(shown), "advice", advice ? json_text(advice) : NULL));
        return;
    }
    bool has_color = isatty(STDOUT_FILENO) && terminal_is_live() && colors[state][0];
    printf("%s%-4s%s  %-*s %s\n", has_color ? colors[state] : "", names[state], has_color ? "\033[0m" : "", CHECK_WIDTH,
           check, shown);
    if (advice)
        printf("      %-*s do: %s\n", CHECK_WIDTH, "", advice);
    fflush(stdout);
}

void doctor_add(struct doctor *doctor, const char *name, json_t *value)
{
    size_t count = json_array_size(doctor->checks); /* NULL: 0 */
    if (count)
        json_object_set_new(json_array_get(doctor->checks, count - 1), name, value);
    else
        json_decref(value);
}

static int run_doctor(struct app *app, int count, char **arguments)
{
    static void (*const areas[])(struct doctor *) = {
        doctor_check_metadata, doctor_check_address, doctor_check_cluster,   doctor_check_transports,
        doctor_check_rdma,     doctor_check_local,   doctor_check_cuda,      doctor_check_limits,
        doctor_check_network,  doctor_check_memory,  doctor_check_directory, doctor_check_peer,
    };
    struct shoal_error error;
    struct hostport peer;
    if (app->settings.peer && hostport_parse(&peer, app->settings.peer, &error) != SHOAL_OK)
        return report_failure(app, &error, "--peer \"%s\" is no name of a node", app->settings.peer);
    struct doctor doctor = {.app = app, .checks = app->settings.is_json ? json_array() : NULL};
    (void)count;
    (void)arguments;
    for (size_t i = 0; i < sizeof areas / sizeof *areas && !signals_received(); i++)
        areas[i](&doctor);
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:o}", "event", "result", "command", "doctor", "healthy",
                             doctor.failures == 0, "failures", (int)doctor.failures, "warnings", (int)doctor.warnings,
                             "skipped", (int)doctor.skipped, "checks", doctor.checks));
    else
        printf("%u failure%s, %u warning%s, %u skipped\n", doctor.failures, doctor.failures == 1 ? "" : "s",
               doctor.warnings, doctor.warnings == 1 ? "" : "s", doctor.skipped);
    if (signals_received())
        return 128 + signals_received();
    return doctor.failures ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}

static const struct option_spec options[] = {
    {OPTION_TEXT, 'd', "dir", "DIR", "SHOAL_DIR", offsetof(struct settings, dir), .complete = "dir",
     .help = "The directory that payloads will be written to: its space, and its speed by a file that is written, read "
             "and gone again. Without it the space of the current one."},
    {OPTION_SIZE, 's', "size", "SIZE", NULL, offsetof(struct settings, probe_bytes),
     .help =
         "How much is written there, at most a quarter of what is free, for at most 10 s, and how much is read from "
         "--peer. Default: 256MiB."},
    {OPTION_TEXT, 'p', "peer", "NAME", NULL, offsetof(struct settings, peer),
     .help =
         "Also the way to another node: its name, as shoal stat shows it, or HOST:PORT. Who answers, over which "
         "transport it is reached and why not over a better one, and how fast: at most --size are read from it, for "
         "at most 3 s."},
    {OPTION_END},
};

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "",
    .summary = "check this machine and the metadata service",
    .text =
        "Checks the metadata service, the address of this node, the sources that are listed, RDMA and CUDA devices, "
        "the path "
        "between processes of this host, limits, kernel settings, memory and disk, and says what to do. One line "
        "each: OK; WARN, it works but worse than it could; FAIL, a node needs it and it does not work; SKIP, it was "
        "not looked at, and why. Exits with 1 if a check fails, with 0 if there are only warnings.",
    .options = options,
    .has_common_options = true,
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_doctor,
};
