/* SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <string.h>

#include "app.h"
#include "units.h"

#define WIDTH 100

const struct exit_code_text help_exit_codes[] = {
    {"0", "success; seed and get --seed: ended by a signal while serving, and withdrawn"},
    {"1", "any other failure"},
    {"2", "wrong usage: an option, an argument, a payload name or URI"},
    {"3", "not found: no such payload, no such key, no such file to seed or put"},
    {"4", "exists: the payload (without --force), two files of one name, or something in the way below DIR; kv put: "
          "the key"},
    {"5", "corrupted: bytes do not match their digest, or the list of files is malformed or unsafe"},
    {"6", "timed out"},
    {"7", "the metadata service cannot be reached or answers nonsense"},
    {"8", "no live source"},
    {"9", "the address of --name or --metrics is in use, does not resolve or is not of this machine"},
    {"10", "the payload was replaced by another generation meanwhile"},
    {"11", "no space left on the disk; kv put: no client has room"},
    {"12", "a peer cannot be reached: the mooncake_client, the master, or the owner of a value; or it belongs to "
           "another cluster"},
    {"129, 130, 143", "ended by SIGHUP, SIGINT or SIGTERM before it was done"},
    {NULL, NULL},
};

void help_print_overview(FILE *to)
{
    fprintf(
        to,
        "shoal - moves large temporary data between machines\n\nusage: shoal COMMAND [OPTION...] [ARGUMENT...]\n\n");
    for (const struct command *const *command = commands; *command; command++)
        fprintf(to, "  %-11s %s\n", (*command)->name, (*command)->summary);
    fprintf(to, "\nshoal help COMMAND tells more about one; shoal help exit-codes lists the exit codes.\n"
                "On one machine: shoal seed model-v1 model/   and then   shoal get model-v1 elsewhere/\n");
}

void help_print_group(FILE *to, const char *group)
{
    size_t len = strlen(group);
    fprintf(to, "usage: shoal %s COMMAND [OPTION...] [ARGUMENT...]\n\n", group);
    for (const struct command *const *command = commands; *command; command++)
        if (strncmp((*command)->name, group, len) == 0 && (*command)->name[len] == ' ')
            fprintf(to, "  %-11s %s\n", (*command)->name, (*command)->summary);
    fprintf(to,
            "\nshoal help %s COMMAND tells more about one. They ask a mooncake_client of this machine (--client), or\n"
            "take part through a mooncake_master (--master); docs/kv.md tells how to start both.\n",
            group);
}

void help_print_command(FILE *to, const struct command *command)
{
    fprintf(to, "usage: shoal %s [OPTION...]%s%s\n\n", command->name, *command->arguments ? " " : "",
            command->arguments);
    text_print_wrapped(to, command->text, 0, 0, WIDTH);
    fprintf(to, "\noptions:\n");
    options_print(to, command, WIDTH);
    if (command->has_common_options || command->has_kv_options)
        fprintf(to, "\nNAME in brackets: an environment variable for the same; the option goes first.\n");
}

static int run_help(struct app *app, int count, char **arguments)
{
    (void)app;
    if (count == 0) {
        help_print_overview(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(arguments[0], "exit-codes") == 0) {
        for (const struct exit_code_text *line = help_exit_codes; line->code; line++)
            printf("%-13s  %s\n", line->code, line->text);
        return EXIT_CODE_OK;
    }
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", arguments[0], count > 1 ? " " : "", count > 1 ? arguments[1] : "");
    if (strcmp(name, "kv") == 0) {
        help_print_group(stdout, "kv");
        return EXIT_CODE_OK;
    }
    const struct command *command = command_find(name);
    if (!command) {
        char shown[128];
        fprintf(stderr, "shoal help: there is no command \"%s\"\n  try: shoal help\n",
                units_printable(name, shown, sizeof shown));
        return EXIT_CODE_USAGE;
    }
    help_print_command(stdout, command);
    return EXIT_CODE_OK;
}

static int run_version(struct app *app, int count, char **arguments)
{
    (void)app;
    (void)count;
    (void)arguments;
    printf("shoal %s\n", shoal_version());
    return EXIT_CODE_OK;
}

const struct command command_help = {
    .name = "help",
    .arguments = "[COMMAND|exit-codes]",
    .summary = "explain a command",
    .text = "Explains a command and its options, or lists the exit codes.",
    .min_arguments = 0,
    .max_arguments = 2,
    .run = run_help,
};

const struct command command_version = {
    .name = "version",
    .arguments = "",
    .summary = "print the version",
    .text = "Prints the version, as does shoal --version.",
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_version,
};
