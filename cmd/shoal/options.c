/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "units.h"

#define OPTIONS_MAX 32
#define FIRST_LONG 256 /* getopt value of the option with index 0; letters are below */

#define OUTPUT_OPTIONS                                                                                                 \
    {OPTION_FLAG,                                                                                                      \
     'j',                                                                                                              \
     "json",                                                                                                           \
     NULL,                                                                                                             \
     "SHOAL_JSON",                                                                                                     \
     offsetof(struct settings, is_json),                                                                               \
     .help = "Results, progress and errors as JSON on standard output, one object a line."},                           \
        {OPTION_VERBOSE,                                                                                               \
         'v',                                                                                                          \
         "verbose",                                                                                                    \
         NULL,                                                                                                         \
         "SHOAL_VERBOSE",                                                                                              \
         offsetof(struct settings, verbosity),                                                                         \
         .help = "Say more on standard error: once for what happens, twice for details, three times for everything."}, \
    {                                                                                                                  \
        OPTION_QUIET, 'q', "quiet", NULL, "SHOAL_QUIET", offsetof(struct settings, verbosity),                         \
            .help = "Only errors on standard error, no progress."                                                      \
    }

#define PATH_OPTIONS(when)                                                                                             \
    {OPTION_TEXT,                                                                                                      \
     0,                                                                                                                \
     "protocol",                                                                                                       \
     "NAME",                                                                                                           \
     "SHOAL_PROTOCOL",                                                                                                 \
     offsetof(struct settings, protocol),                                                                              \
     .help = when "How bytes travel: auto (within one machine without a network, else TCP; RDMA with a NIC priority "  \
                  "matrix), tcp, local, rdma or ucx. Default: auto."},                                                 \
    {                                                                                                                  \
        OPTION_TEXT, 0, "nic-priority-matrix", "JSON|@FILE", "SHOAL_NIC_PRIORITY_MATRIX",                              \
            offsetof(struct settings, nic_priority_matrix),                                                            \
            .help =                                                                                                    \
                when "Which RDMA devices serve memory at which location, as {\"cpu:0\": [[\"mlx5_0\"], "               \
                     "[\"mlx5_1\"]]}: the preferred ones, then those that take over; or @ and a file with it. shoal "  \
                     "topo --matrix proposes one. Default: none, no RDMA."                                             \
    }

const char options_default_cluster[] = "default";

const struct option_spec options_common[] = {
    {OPTION_TEXT, 'm', "metadata", "URI", "SHOAL_METADATA", offsetof(struct settings, metadata), .complete = "file",
     .help =
         "Where nodes meet: sqlite:PATH on one machine, etcd://HOST:PORT[,HOST:PORT...] in a cluster. Without it, a "
         "SQLite file in the user's runtime directory."},
    {OPTION_TEXT, 'n', "name", "HOST:PORT", "SHOAL_NAME", offsetof(struct settings, name),
     .help = "The address of this node, which the other nodes reach it at; port 0 is any free port. Default: "
             "127.0.0.1:0, for nodes of one machine. ls, stat and doctor use its host and any free port."},
    {OPTION_TEXT, 0, "cluster", "NAME", "SHOAL_CLUSTER", offsetof(struct settings, cluster),
     .help = "Nodes of different clusters refuse each other. Default: default."},
    {OPTION_DURATION, 't', "timeout", "DURATION", "SHOAL_TIMEOUT", offsetof(struct settings, timeout_ms),
     .help = "How long the command may take (seed, get --seed: until it serves), as 500ms, 30s, 5m, 1h; none: as long "
             "as it needs. Default: short for requests to the metadata service, none for hashing and transfer, where a "
             "source that stalls is left after 10 s."},
    PATH_OPTIONS(""),
    OUTPUT_OPTIONS,
    {OPTION_END},
};

static const struct option_spec options_serving[] = {
    {OPTION_RATE, 0, "upload-limit", "RATE", "SHOAL_UPLOAD_LIMIT", offsetof(struct settings, upload_limit),
     .help = "Send at most this much to all other nodes together, as 100M (100 megabytes per second), 80MiB or "
             "400mbit; at least 64KiB. Default: no limit."},
    {OPTION_UINT, 0, "upload-slots", "N", "SHOAL_UPLOAD_SLOTS", offsetof(struct settings, upload_slots), .min = 1,
     .max = SHOAL_UPLOAD_SLOTS_MAX,
     .help = "Send to this many connections at a time, the others take turns. Default: 4."},
    {OPTION_UINT, 0, "io-threads", "N", "SHOAL_IO_THREADS", offsetof(struct settings, io_threads), .min = 1,
     .max = SHOAL_IO_THREADS_MAX,
     .help = "Threads that move bytes; with several, up to 4 connections to each other node. Default: 1 on less than 8 "
             "CPUs, else a quarter of them, at most 4."},
    {OPTION_END},
};

const struct option_spec options_kv[] = {
    {OPTION_TEXT, 'c', "client", "HOST:PORT", "SHOAL_KV_CLIENT", offsetof(struct settings, kv_client),
     .help = "The --port of a mooncake_client of this machine, which does what is asked. Default: 127.0.0.1:50052."},
    {OPTION_TEXT, 'm', "master", "HOST:PORT", "SHOAL_KV_MASTER", offsetof(struct settings, kv_master),
     .help =
         "Take part without a mooncake_client: through this master (several as HOST:PORT,HOST:PORT, or etcd://...), "
         "as a client that owns nothing. --client is not used then."},
    {OPTION_TEXT, 0, "host", "HOST", "SHOAL_KV_HOST", offsetof(struct settings, kv_host),
     .help = "With --master: the address of this machine that other clients reach it at. Default: 127.0.0.1."},
    {OPTION_TEXT, 0, "cluster", "NAME", "SHOAL_CLUSTER", offsetof(struct settings, cluster),
     .help =
         "The cluster of the master or of the mooncake_client. Default: with --master default, with --client that of "
         "the mooncake_client, whatever it is."},
    PATH_OPTIONS("With --master. "),
    {OPTION_DURATION, 't', "timeout", "DURATION", "SHOAL_TIMEOUT", offsetof(struct settings, timeout_ms),
     .help = "How long the command may take, as 500ms, 30s, 5m, 1h; none: as long as it needs. Default: 10 s for each "
             "request; a large value over a slow network needs more."},
    OUTPUT_OPTIONS,
    {OPTION_END},
};

static const struct option_spec options_help[] = {
    {OPTION_FLAG, 'h', "help", NULL, NULL, offsetof(struct settings, wants_help), .help = "Show this help."},
    {OPTION_END},
};

const struct command *command_find(const char *name)
{
    for (const struct command *const *command = commands; *command; command++)
        if (strcmp((*command)->name, name) == 0)
            return *command;
    return NULL;
}

void options_set_defaults(struct settings *settings)
{
    *settings = (struct settings){.name = "127.0.0.1:0",
                                  .cluster = options_default_cluster,
                                  .probe_bytes = (uint64_t)256 << 20,
                                  .kv_client = "127.0.0.1:50052",
                                  .value_bytes = (uint64_t)64 << 10,
                                  .threads = 1,
                                  .keys = 1000,
                                  .duration_ms = 3000};
}

void options_for_each(const struct command *command, void (*fn)(void *arg, const struct option_spec *spec), void *arg)
{
    const struct option_spec *const tables[] = {command->options, command->has_serving_options ? options_serving : NULL,
                                                command->has_common_options ? options_common : NULL,
                                                command->has_kv_options ? options_kv : NULL, options_help};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct option_spec *spec = tables[i]; spec && spec->kind != OPTION_END; spec++)
            fn(arg, spec);
}

struct option_set {
    const struct option_spec *specs[OPTIONS_MAX];
    size_t count;
};

static void collect(void *arg, const struct option_spec *spec)
{
    struct option_set *set = arg;
    if (set->count < OPTIONS_MAX)
        set->specs[set->count++] = spec;
}

static void usage_error(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void usage_error(const struct command *command, const char *format, ...)
{
    char text[512], shown[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "shoal %s: %s\n  try: shoal help %s\n", command->name, units_printable(text, shown, sizeof shown),
            command->name);
}

static bool parse_environment(const struct command *command, const struct option_set *set, struct settings *settings)
{
    for (size_t i = 0; i < set->count; i++) {
        const char *text = set->specs[i]->env ? getenv(set->specs[i]->env) : NULL;
        if (!text || !*text)
            continue;
        const char *expected = option_store(set->specs[i], settings, text);
        if (expected) {
            usage_error(command, "environment variable %s is \"%s\": it %s", set->specs[i]->env, text, expected);
            return false;
        }
    }
    return true;
}

/* The word of argv that getopt_long complained about. */
static const char *current_word(int argc, char **argv)
{
    return optind > 0 && optind <= argc ? argv[optind - 1] : "";
}

bool options_parse(const struct command *command, int argc, char **argv, struct settings *settings, int *first_out)
{
    struct option_set set = {.count = 0};
    struct option long_options[OPTIONS_MAX + 1] = {{0}};
    char short_options[3 * OPTIONS_MAX + 2] = ":"; /* ':' first: tell a missing argument from an unknown option */
    size_t short_len = 1;
    options_for_each(command, collect, &set);
    for (size_t i = 0; i < set.count; i++) {
        const struct option_spec *spec = set.specs[i];
        long_options[i] = (struct option){.name = spec->name,
                                          .has_arg = spec->argument ? required_argument : no_argument,
                                          .val = FIRST_LONG + (int)i};
        if (spec->letter) {
            short_options[short_len++] = spec->letter;
            if (spec->argument)
                short_options[short_len++] = ':';
        }
    }
    short_options[short_len] = '\0';
    if (!parse_environment(command, &set, settings))
        return false;

    optind = 0; /* glibc: begin anew */
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, short_options, long_options, NULL)) != -1;) {
        if (code == ':') {
            usage_error(command, "option %s needs an argument", current_word(argc, argv));
            return false;
        }
        if (code == '?') {
            const char *word = current_word(argc, argv);
            char letter[] = {'-', (char)optopt, '\0'};
            bool is_long = strncmp(word, "--", 2) == 0;
            if (optopt >= FIRST_LONG)
                usage_error(command, "option --%s takes no argument", set.specs[optopt - FIRST_LONG]->name);
            else
                usage_error(command, "unknown or ambiguous option %s", is_long || !optopt ? word : letter);
            return false;
        }
        const struct option_spec *spec = NULL;
        for (size_t i = 0; i < set.count; i++)
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the first count entries are set */
            if (code == FIRST_LONG + (int)i || (set.specs[i]->letter && code == set.specs[i]->letter))
                spec = set.specs[i];
        if (!spec)
            continue;
        const char *expected = option_store(spec, settings, optarg);
        if (expected) {
            usage_error(command, "option --%s is \"%s\": it %s", spec->name, optarg ? optarg : "", expected);
            return false;
        }
    }
    *first_out = optind;
    if (settings->wants_help)
        return true;
    int count = argc - optind;
    if (count < command->min_arguments) {
        usage_error(command, "too few arguments: %s", command->arguments);
        return false;
    }
    if (command->max_arguments >= 0 && count > command->max_arguments) {
        usage_error(command, "too many arguments: \"%s\"", argv[optind + command->max_arguments]);
        return false;
    }
    return true;
}

struct print_state {
    FILE *to;
    int width;
};

static void print_option(void *arg, const struct option_spec *spec)
{
    const struct print_state *state = arg;
    option_print(state->to, spec, state->width);
}

void options_print(FILE *to, const struct command *command, int width)
{
    struct print_state state = {to, width};
    options_for_each(command, print_option, &state);
}
