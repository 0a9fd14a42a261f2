/* SPDX-License-Identifier: Apache-2.0 */
/* Inside test_node: what a command line becomes and the verbs that it may name.
 *
 * A line is "ID VERB KEY=VALUE ...", with %XX for bytes that would end a value. Each command gets one answer, a JSON
 * object on a line of its own with "id", "status" and "message"; a command with progress=MS prints {"progress": ID,
 * ...} before. */
#ifndef SHOAL_TESTS_LIB_NODE_COMMANDS_H
#define SHOAL_TESTS_LIB_NODE_COMMANDS_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <shoal/store.h>

#define COMMAND_MAX_ARGS 24

struct command {
    unsigned id;
    const struct command_verb *verb;
    size_t arg_count;
    const char *keys[COMMAND_MAX_ARGS]; /* borrowed from line */
    const char *values[COMMAND_MAX_ARGS];
    char *line;                  /* owned */
    struct shoal_cancel *cancel; /* owned; set for verbs that block */
    pthread_t thread;
    bool is_done;
    struct command *next;
};

struct command_verb {
    const char *name;
    bool may_block; /* gets a thread of its own */
    /* Adds what it has to say to reply; error is preset to OK. */
    enum shoal_status (*run)(struct command *command, json_t *reply, struct shoal_error *error);
};

extern const struct command_verb command_verbs[]; /* ends with a NULL name */

const char *command_text(const struct command *command, const char *key, const char *otherwise);
uint64_t command_number(const struct command *command, const char *key, uint64_t otherwise);

/* node_main.c: prints one line, whole. Takes json. */
void node_print(json_t *json);
/* node_main.c: triggers the token of a running command; false: there is none. */
bool node_cancel(unsigned id);

/* Closes the stores that are open and frees the buffers. */
void commands_release(void);

#endif
