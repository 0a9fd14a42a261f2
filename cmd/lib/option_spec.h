/* SPDX-License-Identifier: Apache-2.0 */
/* One option of a command: how it is written, what it accepts, where its value goes, what help says. */
#ifndef SHOAL_CMD_OPTION_SPEC_H
#define SHOAL_CMD_OPTION_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
    OPTION_END,
    OPTION_FLAG,     /* bool */
    OPTION_VERBOSE,  /* int: one more each time */
    OPTION_QUIET,    /* int: -1 */
    OPTION_TEXT,     /* const char *: not empty */
    OPTION_SIZE,     /* uint64_t: bytes, at least 1 */
    OPTION_RATE,     /* uint64_t: bytes per second, what the engine takes */
    OPTION_DURATION, /* int64_t: ms, -1 for none; with max the caller takes no none */
    OPTION_UINT,     /* uint64_t: min..max */
};

struct option_spec {
    enum option_kind kind;
    char letter;          /* 0: none */
    const char *name;     /* without the dashes */
    const char *argument; /* shown in help; NULL: takes none */
    const char *env;      /* NULL: none */
    size_t offset;        /* in the program's struct of settings */
    uint64_t min, max;    /* OPTION_UINT */
    const char *complete; /* "file", "dir" or NULL */
    const char *help;
};

/* Puts the value of text (borrowed by OPTION_TEXT; NULL: none was given) into settings. NULL: done; else what was
 * expected, as "must be ...", static. */
const char *option_store(const struct option_spec *spec, void *settings, const char *text);

/* "  -f, --force           text": written with wrapping, width columns. */
void option_print(FILE *to, const struct option_spec *spec, int width);
/* Writes text wrapped to width, each line after indent spaces; a newline in text ends a line. */
void text_print_wrapped(FILE *to, const char *text, int indent, int column, int width);

#endif
