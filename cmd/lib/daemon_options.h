/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a daemon: one table makes the command line, the configuration file and --help. Names are written with
 * underscores as Mooncake does (--rpc_port); dashes do as well (--rpc-port). */
#ifndef SHOAL_CMD_DAEMON_OPTIONS_H
#define SHOAL_CMD_DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "option_spec.h"

#define DAEMON_OPTIONS_MAX 64

/* What every daemon has: --config_path, --log_format, -v, -q, --help, --version. The first member of the program's
 * settings. */
struct daemon_settings {
    const char *config_path; /* NULL: none */
    const char *log_format;  /* "plain" or "json" */
    int verbosity;           /* -1: warnings and errors, 0: info, 1: debug, 2: trace */
    bool wants_help, wants_version;
};

struct daemon_program {
    const char *name;                  /* "mooncake_master" */
    const char *text;                  /* what it does, in paragraphs */
    const char *epilog;                /* examples and exit codes, printed as they are */
    const struct option_spec *options; /* names with underscores; offsets in the program's settings */
    size_t settings_size;
};

/* Owns the texts that came from the file. */
struct daemon_options {
    char *texts[DAEMON_OPTIONS_MAX];
    size_t text_count;
};

/* settings holds the defaults; then the environment (of options that name a variable), the file of --config_path (one
 * JSON object, NAME: value) and argv are put into it, later ones win. false: the process is to exit with *exit_code_out
 * (--help and --version were printed to stdout, what was wrong to stderr). */
bool daemon_options_parse(const struct daemon_program *program, int argc, char **argv, void *settings,
                          struct daemon_options *options, int *exit_code_out);
/* The texts in settings are gone then. */
void daemon_options_release(struct daemon_options *options);

/* For what only the program can check: "NAME: text" and where help is, on stderr. Returns the exit code. */
int daemon_usage_error(const struct daemon_program *program, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
