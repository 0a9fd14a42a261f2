/* SPDX-License-Identifier: Apache-2.0 */
/* shoal man: the manual page, or the reference in docs/cli.md. shoal completion: what a shell needs. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "app.h"
#include "help.h"

/* --- manual page --- */

/* Text for roff: '-' and '\' escaped, no line begins with a control character. */
static void roff(const char *text)
{
    bool is_line_start = true;
    for (; *text; text++) {
        if (is_line_start && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        is_line_start = *text == '\n';
        if (*text == '\n' && text[1] == '\n') {
            fputs("\n.PP\n", stdout);
            text++;
        } else if (*text == '-') {
            fputs("\\-", stdout);
        } else if (*text == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(*text);
        }
    }
}

static void roff_option(void *arg, const struct option_spec *spec)
{
    (void)arg;
    fputs(".TP\n\\fB", stdout);
    if (spec->letter)
        printf("\\-%c\\fR, \\fB", spec->letter);
    fputs("\\-\\-", stdout);
    roff(spec->name);
    fputs("\\fR", stdout);
    if (spec->argument) {
        fputs(" \\fI", stdout);
        roff(spec->argument);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    roff(spec->help);
    putchar('\n');
    if (spec->env)
        printf("Environment: \\fB%s\\fR.\n", spec->env);
}

static void print_man(void)
{
    printf(".\\\" Made by: shoal man\n.TH SHOAL 1 \"\" \"shoal %s\" \"User Commands\"\n", shoal_version());
    fputs(".SH NAME\nshoal \\- moves large temporary data between machines\n.SH SYNOPSIS\n", stdout);
    for (const struct command *const *command = commands; *command; command++) {
        printf("%s\\fBshoal %s\\fR [\\fIOPTION\\fR...] \\fI", command == commands ? "" : ".br\n", (*command)->name);
        roff((*command)->arguments);
        fputs("\\fR\n", stdout);
    }
    fputs(".SH COMMANDS\n", stdout);
    for (const struct command *const *command = commands; *command; command++) {
        struct command own = **command;
        own.has_common_options = own.has_kv_options = false;
        printf(".SS \"shoal %s ", own.name);
        roff(own.arguments);
        fputs("\"\n", stdout);
        roff(own.text);
        putchar('\n');
        options_for_each(&own, roff_option, NULL);
    }
    fputs(".SH COMMON OPTIONS\nOf seed, get, ls, stat and doctor. An option goes before its environment variable.\n",
          stdout);
    for (const struct option_spec *spec = options_common; spec->kind != OPTION_END; spec++)
        roff_option(NULL, spec);
    fputs(".SH OPTIONS OF THE KV COMMANDS\n", stdout);
    for (const struct option_spec *spec = options_kv; spec->kind != OPTION_END; spec++)
        roff_option(NULL, spec);
    fputs(".SH EXIT STATUS\n", stdout);
    for (const struct exit_code_text *line = help_exit_codes; line->code; line++) {
        printf(".TP\n\\fB%s\\fR\n", line->code);
        roff(line->text);
        putchar('\n');
    }
    fputs(".SH FILES\n.TP\n\\fI$XDG_RUNTIME_DIR/shoal/metadata.db\\fR\nThe metadata without \\-\\-metadata; else in "
          "/run/user/UID/shoal or /tmp/shoal\\-UID.\n",
          stdout);
}

/* --- reference --- */

static void markdown_option(void *arg, const struct option_spec *spec)
{
    (void)arg;
    fputs("| ", stdout);
    if (spec->letter)
        printf("`-%c`, ", spec->letter);
    printf("`--%s%s", spec->name, spec->argument ? " " : "");
    for (const char *c = spec->argument ? spec->argument : ""; *c; c++)
        printf("%s%c", *c == '|' ? "\\" : "", *c); /* a bare | would end the cell */
    fputs("` | ", stdout);
    if (spec->env)
        printf("`%s`", spec->env);
    printf(" | %s |\n", spec->help);
}

static void print_markdown(void)
{
    fputs("# The command line\n\n<!-- Made by `shoal man --markdown`; a test compares them. -->\n\n"
          "Results go to standard output, everything else to standard error; progress is shown only on a terminal. An "
          "option goes before its environment variable.\n",
          stdout);
    for (const struct command *const *command = commands; *command; command++) {
        struct command own = **command;
        own.has_common_options = own.has_kv_options = false;
        printf("\n## shoal %s%s%s\n\n%s\n\n", own.name, *own.arguments ? " " : "", own.arguments, own.text);
        fputs("| option | environment | |\n|---|---|---|\n", stdout);
        options_for_each(&own, markdown_option, NULL);
    }
    fputs("\n## Common options\n\nOf `seed`, `get`, `ls`, `stat` and `doctor`.\n\n| option | environment | "
          "|\n|---|---|---|\n",
          stdout);
    for (const struct option_spec *spec = options_common; spec->kind != OPTION_END; spec++)
        markdown_option(NULL, spec);
    fputs("\n## Options of the kv commands\n\nOf `kv put`, `kv get`, `kv ls`, `kv rm`, `kv stat` and `kv bench`.\n\n"
          "| option | environment | |\n|---|---|---|\n",
          stdout);
    for (const struct option_spec *spec = options_kv; spec->kind != OPTION_END; spec++)
        markdown_option(NULL, spec);
    fputs(
        "\nSizes: `64M` and `64MiB` are powers of 1024, `64MB` of 1000. Rates, per second: `100M` and `100MB` are "
        "100,000,000 bytes, `80Mi` and `80MiB` are powers of 1024, `400mbit` and `1gbit` are bits. Durations: `500ms`, "
        "`30s`, `5m`, `1h`.\n"
        "\n## Exit codes\n\n| code | meaning |\n|---|---|\n",
        stdout);
    for (const struct exit_code_text *line = help_exit_codes; line->code; line++)
        printf("| %s | %s |\n", line->code, line->text);
    fputs(
        "\n## JSON\n\nWith `--json` each line of standard output is one object with an `event`: `metrics` (the address "
        "of "
        "`--metrics`), `progress`, `seeding`, "
        "`serving`, `receiver`, `file-changed`, `result`, `withdrawn` (the end of `get --seed`), `error` (with "
        "`status`, "
        "`exit_code`, `message`). `ls` prints one array, `stat` one object. Errors are told in words on standard error "
        "as well.\n\n"
        "Of the `done_bytes` in a `progress` event of `get`, and of the `bytes` in its `result`, `reused_bytes` were "
        "there already; the `step` is `checking` while that is found out.\n\n"
        "A `serving` event has `replaced_by`, the name of the node, once another one has seeded the payload with "
        "`--force`; `published` is false then.\n\n"
        "A `receiver` event names a node that takes the `payload` from this one: its `state` is `joined`, then `done` "
        "(it has everything) or `left` (it gave up, was lost or takes elsewhere; it may join again); `bytes` it has "
        "taken from here, and `pieces_have` of `pieces` from all its sources. `receivers` in the last event is the "
        "account of all of them.\n\n"
        "Receivers, and the sources of a `get`, have `transport` (what their bytes travel by; empty: not known) and "
        "`left_transports` (better ones that refused, as `local: ptrace`). `doctor` prints one `result` with "
        "`healthy`, "
        "`failures`, `warnings`, `skipped` and `checks`: each has `check`, `state` (`OK`, `WARN`, `FAIL`, `SKIP`), "
        "`text`, `advice` (or null) and what was measured.\n\n"
        "`kv ls` prints one array of `key`, `bytes` and `replicas`, `kv stat` one object; `kv put`, `kv get` and `kv "
        "rm` end "
        "with a `result` (that of `kv put` has `replicas`: the copies that there are), `kv bench` prints one for each "
        "`op`. The `progress` events of `kv put` have the `step` "
        "`reading` (the file; not of a pipe) and then `putting` (with `--replicas` of all copies), those of `kv get` "
        "`getting` and then `writing`; each step ends with one whose `done_bytes` are the `total_bytes`. Values of "
        "less than 16 MiB have none.\n",
        stdout);
}

static int run_man(struct app *app, int count, char **arguments)
{
    (void)count;
    (void)arguments;
    if (app->settings.is_markdown)
        print_markdown();
    else
        print_man();
    return EXIT_CODE_OK;
}

static const struct option_spec man_options[] = {
    {OPTION_FLAG, 0, "markdown", NULL, NULL, offsetof(struct settings, is_markdown),
     .help = "Print the reference of docs/cli.md instead."},
    {OPTION_END},
};

const struct command command_man = {
    .name = "man",
    .arguments = "",
    .summary = "print the manual page",
    .text = "Prints the manual page: shoal man | man -l -",
    .options = man_options,
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_man,
};

/* --- completion --- */

static void word(void *arg, const struct option_spec *spec)
{
    (void)arg;
    printf(" --%s", spec->name);
    if (spec->letter)
        printf(" -%c", spec->letter);
}

/* The words that can follow: first words, each once (group NULL), or the second words after group. */
static void print_words(const char *group)
{
    size_t group_len = group ? strlen(group) : 0;
    const char *before = "";
    for (const struct command *const *command = commands; *command; command++) {
        const char *name = (*command)->name, *space = strchr(name, ' ');
        size_t len = space ? (size_t)(space - name) : strlen(name);
        if (group) {
            if (space && len == group_len && strncmp(name, group, len) == 0)
                printf(" %s", space + 1);
        } else if (len != strlen(before) || strncmp(name, before, len) != 0) {
            static char word_of_group[32];
            printf(" %.*s", (int)len, name);
            snprintf(word_of_group, sizeof word_of_group, "%.*s", (int)len, name);
            before = word_of_group;
        }
    }
}

static int run_completion(struct app *app, int count, char **arguments)
{
    if (count != 1 || strcmp(arguments[0], "bash") != 0) {
        fprintf(stderr, "shoal %s: only bash is known\n  try: shoal completion bash\n", app->command->name);
        return EXIT_CODE_USAGE;
    }
    fputs("# bash completion for shoal; made by: shoal completion bash\n_shoal()\n{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} "
          "options=\n"
          "    COMPREPLY=()\n    if [[ $COMP_CWORD -eq 1 ]]; then\n        mapfile -t COMPREPLY < <(compgen -W '",
          stdout);
    print_words(NULL);
    fputs(
        " --help --version' -- \"$word\")\n        return\n    fi\n"
        "    if [[ $COMP_CWORD -eq 2 && $command == kv ]] || [[ $COMP_CWORD -eq 3 && $command == help && $before == kv "
        "]]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W '",
        stdout);
    print_words("kv");
    fputs("' -- \"$word\")\n        return\n    fi\n"
          "    [[ $command == kv ]] && command=\"kv ${COMP_WORDS[2]}\"\n"
          "    case $before in\n"
          "    -m | --metadata) [[ $command == kv* ]] ||\n"
          "        mapfile -t COMPREPLY < <(compgen -W 'sqlite: etcd://' -- \"$word\"); return ;;\n"
          "    -d | --dir) mapfile -t COMPREPLY < <(compgen -d -- \"$word\"); return ;;\n    esac\n"
          "    case $command in\n",
          stdout);
    for (const struct command *const *command = commands; *command; command++) {
        printf("    '%s') options='", (*command)->name);
        options_for_each(*command, word, NULL);
        fputs("' ;;\n", stdout);
    }
    fputs("    esac\n    if [[ $word == -* ]]; then\n        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- "
          "\"$word\")\n"
          "        return\n    fi\n    case $command in\n"
          "    help) mapfile -t COMPREPLY < <(compgen -W 'exit-codes",
          stdout);
    print_words(NULL);
    fputs(
        "' -- \"$word\") ;;\n    completion) mapfile -t COMPREPLY < <(compgen -W bash -- \"$word\") ;;\n"
        "    get | stat | ls)\n        if [[ $COMP_CWORD -eq 2 ]]; then\n"
        "            mapfile -t COMPREPLY < <(compgen -W \"$(shoal ls --timeout 2s -q 2>/dev/null | awk 'NR > 1 {print "
        "$1}')\" -- \"$word\")\n"
        "        else\n            mapfile -t COMPREPLY < <(compgen -d -- \"$word\")\n        fi ;;\n"
        "    seed | 'kv put' | 'kv get') mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n    esac\n}\n"
        "complete -o filenames -F _shoal shoal\n",
        stdout);
    return EXIT_CODE_OK;
}

const struct command command_completion = {
    .name = "completion",
    .arguments = "bash",
    .summary = "print shell completion",
    .text = "Prints completion for a shell: source <(shoal completion bash)",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_completion,
};
