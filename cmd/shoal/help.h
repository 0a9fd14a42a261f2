/* SPDX-License-Identifier: Apache-2.0 */
/* Help, shell completion, man page and reference: all from the tables of options.h. */
#ifndef SHOAL_CMD_HELP_H
#define SHOAL_CMD_HELP_H

#include <stdio.h>

struct command;

void help_print_overview(FILE *to);
/* Of the commands whose first word is group ("kv"). */
void help_print_group(FILE *to, const char *group);
void help_print_command(FILE *to, const struct command *command);

struct exit_code_text {
    const char *code, *text;
};
extern const struct exit_code_text help_exit_codes[]; /* ends with a NULL code */

#endif
