/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon_options.h"

#include <getopt.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "exit_code.h"
#include "rpc/byte_channel.h"
#include "units.h"

#define FIRST_LONG 256 /* getopt value of the option with index 0; letters are below */
#define NAME_MAX_BYTES 64
#define WIDTH 100

static const struct option_spec options_daemon[] = {
    {OPTION_TEXT, 0, "config_path", "FILE", NULL, offsetof(struct daemon_settings, config_path),
     .help =
         "Read options from this file: one JSON object with their names, as {\"rpc_port\": 50051}. What the command "
         "line says goes first."},
    {OPTION_TEXT, 0, "log_format", "plain|json", NULL, offsetof(struct daemon_settings, log_format),
     .help = "How lines on standard error look; json: one object a line. Default: plain."},
    {OPTION_VERBOSE, 'v', "verbose", NULL, NULL, offsetof(struct daemon_settings, verbosity),
     .help = "Say more on standard error: once for details, twice for everything."},
    {OPTION_QUIET, 'q', "quiet", NULL, NULL, offsetof(struct daemon_settings, verbosity),
     .help = "Only warnings and errors on standard error."},
    {OPTION_FLAG, 'h', "help", NULL, NULL, offsetof(struct daemon_settings, wants_help), .help = "Show this help."},
    {OPTION_FLAG, 0, "version", NULL, NULL, offsetof(struct daemon_settings, wants_version),
     .help = "Show the version."},
    {OPTION_END},
};

struct parser {
    const struct daemon_program *program;
    const struct option_spec *specs[DAEMON_OPTIONS_MAX];
    size_t count;
    char dashed[DAEMON_OPTIONS_MAX][NAME_MAX_BYTES]; /* the same names with dashes */
    struct option long_options[2 * DAEMON_OPTIONS_MAX + 1];
    char short_options[3 * DAEMON_OPTIONS_MAX + 2];
};

int daemon_usage_error(const struct daemon_program *program, const char *format, ...)
{
    char text[1024], shown[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: %s\n  try: %s --help\n", program->name, units_printable(text, shown, sizeof shown),
            program->name);
    return EXIT_CODE_USAGE;
}

/* "--enable_ha", "--enable_ha=true" and "--enable_ha=0" are all in use. */
static int argument_of(const struct option_spec *spec)
{
    if (spec->argument)
        return required_argument;
    return spec->kind == OPTION_FLAG ? optional_argument : no_argument;
}

static void collect(struct parser *parser)
{
    const struct option_spec *const tables[] = {parser->program->options, options_daemon};
    size_t short_len = 0, long_count = 0;
    parser->short_options[short_len++] = ':'; /* first: tell a missing argument from an unknown option */
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const struct option_spec *spec = tables[i]; spec->kind != OPTION_END && parser->count < DAEMON_OPTIONS_MAX;
             spec++) {
            char *dashed = parser->dashed[parser->count];
            struct option option = {
                .name = spec->name, .has_arg = argument_of(spec), .val = FIRST_LONG + (int)parser->count};
            snprintf(dashed, NAME_MAX_BYTES, "%s", spec->name);
            for (char *at = dashed; (at = strchr(at, '_'));)
                *at = '-';
            parser->long_options[long_count++] = option;
            if (strcmp(dashed, spec->name) != 0) {
                option.name = dashed;
                parser->long_options[long_count++] = option;
            }
            if (spec->letter) {
                parser->short_options[short_len++] = spec->letter;
                if (spec->argument)
                    parser->short_options[short_len++] = ':';
            }
            parser->specs[parser->count++] = spec;
        }
    }
    parser->short_options[short_len] = '\0';
}

static bool parse_environment(const struct parser *parser, void *settings)
{
    for (size_t i = 0; i < parser->count; i++) {
        const struct option_spec *spec = parser->specs[i];
        const char *text = spec->env ? getenv(spec->env) : NULL;
        const char *expected = text && *text ? option_store(spec, settings, text) : NULL;
        if (expected) {
            daemon_usage_error(parser->program, "environment variable %s is \"%s\": it %s", spec->env, text, expected);
            return false;
        }
    }
    return true;
}

static bool parse_arguments(const struct parser *parser, int argc, char **argv, void *settings)
{
    optind = 0; /* glibc: begin anew */
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, parser->short_options, parser->long_options, NULL)) != -1;) {
        const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
        const struct option_spec *spec = NULL;
        if (code == ':') {
            daemon_usage_error(parser->program, "option %s needs an argument", word);
            return false;
        }
        if (code == '?') {
            char letter[] = {'-', (char)optopt, '\0'};
            if (optopt >= FIRST_LONG)
                daemon_usage_error(parser->program, "option --%s takes no argument",
                                   parser->specs[optopt - FIRST_LONG]->name);
            else
                daemon_usage_error(parser->program, "unknown or ambiguous option %s",
                                   strncmp(word, "--", 2) == 0 || !optopt ? word : letter);
            return false;
        }
        for (size_t i = 0; i < parser->count; i++)
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the first count entries are set */
            if (code == FIRST_LONG + (int)i || (parser->specs[i]->letter && code == parser->specs[i]->letter))
                spec = parser->specs[i];
        const char *expected = spec ? option_store(spec, settings, optarg) : NULL;
        if (expected) {
            daemon_usage_error(parser->program, "option --%s is \"%s\": it %s", spec->name, optarg ? optarg : "",
                               expected);
            return false;
        }
    }
    if (optind < argc) {
        daemon_usage_error(parser->program, "\"%s\" is no option, and there are no arguments", argv[optind]);
        return false;
    }
    return true;
}

/* --- file --- */

static const struct option_spec *find(const struct parser *parser, const char *name)
{
    for (size_t i = 0; i < parser->count; i++)
        if (strcmp(name, parser->specs[i]->name) == 0 || strcmp(name, parser->dashed[i]) == 0)
            return parser->specs[i];
    return NULL;
}

/* The value as it would stand on the command line. NULL: it cannot stand for this option, or memory is out. */
static char *text_of(const struct option_spec *spec, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return strlen(json_string_value(value)) == json_string_length(value) ? strdup(json_string_value(value)) : NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return spec->kind == OPTION_FLAG ? strdup(json_is_true(value) ? "1" : "0") : NULL;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_dumps(value, JSON_ENCODE_ANY);
    case JSON_OBJECT:
    case JSON_ARRAY:
        return spec->argument && strncmp(spec->argument, "JSON", 4) == 0 ? json_dumps(value, JSON_COMPACT) : NULL;
    default:
        return NULL;
    }
}

static bool parse_value(const struct parser *parser, const char *path, const char *name, const json_t *value,
                        void *settings, struct daemon_options *options)
{
    const struct option_spec *spec = find(parser, name);
    const char *expected;
    char *text;
    if (!spec) {
        daemon_usage_error(parser->program, "%s: there is no option \"%s\"", path, name);
        return false;
    }
    if (strcmp(spec->name, "config_path") == 0 || strcmp(spec->name, "help") == 0 ||
        strcmp(spec->name, "version") == 0) {
        daemon_usage_error(parser->program, "%s: \"%s\" belongs on the command line only", path, name);
        return false;
    }
    text = options->text_count < DAEMON_OPTIONS_MAX ? text_of(spec, value) : NULL;
    if (!text) {
        daemon_usage_error(parser->program, "%s: \"%s\" has a value of the wrong type", path, name);
        return false;
    }
    options->texts[options->text_count++] = text;
    expected = option_store(spec, settings, text);
    if (expected)
        daemon_usage_error(parser->program, "%s: \"%s\" is \"%s\": it %s", path, name, text, expected);
    return !expected;
}

static bool parse_file(const struct parser *parser, const char *path, void *settings, struct daemon_options *options)
{
    json_error_t problem;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        daemon_usage_error(parser->program, "cannot read the configuration: %s is a directory", path);
        return false;
    }
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    bool is_good = json_is_object(root);
    const char *name;
    json_t *value;
    if (!root && problem.line < 0)
        daemon_usage_error(parser->program, "cannot read the configuration: %s", problem.text);
    else if (!root)
        daemon_usage_error(parser->program, "%s:%d:%d: %s", path, problem.line, problem.column, problem.text);
    else if (!is_good)
        daemon_usage_error(parser->program, "%s: must be one JSON object with the names of options", path);
    if (is_good)
        json_object_foreach(root, name, value)
        {
            is_good = is_good && parse_value(parser, path, name, value, settings, options);
        }
    json_decref(root);
    return is_good;
}

/* --- all --- */

static void print_help(const struct parser *parser)
{
    const struct daemon_program *program = parser->program;
    printf("usage: %s [OPTION...]\n\n", program->name);
    text_print_wrapped(stdout, program->text, 0, 0, WIDTH);
    printf("\noptions (--some_name and --some-name are the same; --name value and --name=value, too):\n");
    for (size_t i = 0; i < parser->count; i++)
        option_print(stdout, parser->specs[i], WIDTH);
    printf("\nenvironment:\n"
           "  MC_RPC_PROTOCOL   how control calls travel: auto (default: TCP, on one host a local socket), tcp,\n"
           "                    rdma or ucx (UCX's own choice of transports); peers without it are called by TCP\n");
    printf("\n%s", program->epilog);
}

/* Whether there is such a protocol; whether it works here is found out when it is used. */
static bool check_rpc_protocol(const struct daemon_program *program)
{
    const struct byte_channel_ops *ops;
    struct shoal_error error;
    if (byte_channel_find(NULL, &ops, &error) == SHOAL_OK)
        return true;
    daemon_usage_error(program, "environment variable %s", error.message);
    return false;
}

static bool parse(const struct parser *parser, int argc, char **argv, void *settings, struct daemon_options *options)
{
    struct daemon_settings *common = settings;
    char *defaults = malloc(parser->program->settings_size);
    bool is_good;
    if (!defaults) {
        fprintf(stderr, "%s: out of memory\n", parser->program->name);
        return false;
    }
    memcpy(defaults, settings, parser->program->settings_size);
    is_good = parse_environment(parser, settings) && parse_arguments(parser, argc, argv, settings);
    if (is_good && common->config_path && !common->wants_help && !common->wants_version) {
        const char *path = common->config_path; /* stands in argv, which outlives all this */
        memcpy(settings, defaults, parser->program->settings_size);
        is_good = parse_environment(parser, settings) && parse_file(parser, path, settings, options) &&
                  parse_arguments(parser, argc, argv, settings);
    }
    free(defaults);
    if (is_good && strcmp(common->log_format, "plain") != 0 && strcmp(common->log_format, "json") != 0) {
        daemon_usage_error(parser->program, "option --log_format is \"%s\": it must be plain or json",
                           common->log_format);
        is_good = false;
    }
    if (is_good && !common->wants_help && !common->wants_version)
        is_good = check_rpc_protocol(parser->program);
    return is_good;
}

bool daemon_options_parse(const struct daemon_program *program, int argc, char **argv, void *settings,
                          struct daemon_options *options, int *exit_code_out)
{
    struct daemon_settings *common = settings;
    struct parser parser = {.program = program};
    *options = (struct daemon_options){.text_count = 0};
    common->log_format = common->log_format ? common->log_format : "plain";
    collect(&parser);
    if (!parse(&parser, argc, argv, settings, options)) {
        daemon_options_release(options);
        *exit_code_out = EXIT_CODE_USAGE;
        return false;
    }
    if (!common->wants_help && !common->wants_version)
        return true;
    if (common->wants_help)
        print_help(&parser);
    else
        printf("%s (Shoal) %s\n", program->name, SHOAL_VERSION);
    *exit_code_out = fflush(stdout) != 0 || ferror(stdout) ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
    return false;
}

void daemon_options_release(struct daemon_options *options)
{
    for (size_t i = 0; i < options->text_count; i++)
        free(options->texts[i]);
    options->text_count = 0;
}
