/* SPDX-License-Identifier: Apache-2.0 */
/* test_node: a process with P2P stores that does what it reads on stdin; see node_commands.h. Ends with "exit" or at
 * end of input, after it has closed its stores. */
#include "node_commands.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t commands_lock = PTHREAD_MUTEX_INITIALIZER;
static struct command *commands; /* those with a thread */

const char *command_text(const struct command *command, const char *key, const char *otherwise)
{
    for (size_t i = 0; i < command->arg_count; i++)
        if (strcmp(command->keys[i], key) == 0)
            return command->values[i];
    return otherwise;
}

uint64_t command_number(const struct command *command, const char *key, uint64_t otherwise)
{
    const char *text = command_text(command, key, NULL);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

void node_print(json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT);
    if (!text)
        abort();
    pthread_mutex_lock(&print_lock);
    fputs(text, stdout);
    putc('\n', stdout);
    fflush(stdout);
    pthread_mutex_unlock(&print_lock);
    free(text);
    json_decref(json);
}

bool node_cancel(unsigned id)
{
    bool is_found = false;
    pthread_mutex_lock(&commands_lock);
    for (struct command *c = commands; c; c = c->next)
        if (c->id == id && !c->is_done) {
            shoal_cancel_trigger(c->cancel);
            is_found = true;
        }
    pthread_mutex_unlock(&commands_lock);
    return is_found;
}

static void log_to_stderr(void *arg, enum shoal_log_level level, const char *module, const char *message)
{
    (void)arg;
    fprintf(stderr, "%d %s: %s\n", (int)level, module, message);
}

/* What came before a printed answer is visible to the command that reacts to it: the order goes through the driver,
 * which a thread sanitizer cannot see. */
static void see_printed(void)
{
    pthread_mutex_lock(&print_lock);
    pthread_mutex_unlock(&print_lock);
}

static void command_destroy(struct command *command)
{
    shoal_cancel_destroy(command->cancel);
    free(command->line);
    free(command);
}

static void command_run(struct command *command)
{
    struct shoal_error error = {0};
    json_t *reply = json_pack("{s:I}", "id", (json_int_t)command->id);
    enum shoal_status status = command->verb->run(command, reply, &error);

    json_object_set_new(reply, "status", json_string(shoal_status_name(status)));
    /* A failure must come with a message, in UTF-8, of the same status. */
    json_t *message = json_string(status == SHOAL_OK ? "" : error.message);
    json_object_set_new(reply, "is_consistent",
                        json_boolean(status == SHOAL_OK || (error.status == status && message && error.message[0])));
    json_object_set_new(reply, "message", message ? message : json_string("(message is not UTF-8)"));
    node_print(reply);
}

static void *command_thread(void *arg)
{
    struct command *command = arg;
    command_run(command);
    pthread_mutex_lock(&commands_lock);
    command->is_done = true;
    pthread_mutex_unlock(&commands_lock);
    return NULL;
}

static void join_commands(bool is_all)
{
    pthread_mutex_lock(&commands_lock);
    for (struct command **link = &commands; *link;) {
        struct command *command = *link;
        if (!is_all && !command->is_done) {
            link = &command->next;
            continue;
        }
        *link = command->next;
        if (!command->is_done)
            shoal_cancel_trigger(command->cancel);
        pthread_mutex_unlock(&commands_lock);
        pthread_join(command->thread, NULL);
        command_destroy(command);
        pthread_mutex_lock(&commands_lock);
        link = &commands;
    }
    pthread_mutex_unlock(&commands_lock);
}

static void decode(char *text)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        unsigned byte;
        if (*in == '%' && sscanf(in + 1, "%2x", &byte) == 1) {
            *out++ = (char)byte;
            in += 2;
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
}

/* NULL: not a command. */
static struct command *command_parse(const char *line)
{
    struct command *command = calloc(1, sizeof *command);
    char *rest = NULL;

    if (!command || !(command->line = strdup(line)))
        abort();
    char *word = strtok_r(command->line, " \n", &rest);
    if (!word)
        goto fail;
    command->id = (unsigned)strtoul(word, NULL, 10);
    word = strtok_r(NULL, " \n", &rest);
    for (const struct command_verb *verb = command_verbs; word && verb->name; verb++)
        if (strcmp(verb->name, word) == 0)
            command->verb = verb;
    if (!command->verb)
        goto fail;
    while ((word = strtok_r(NULL, " \n", &rest))) {
        char *value = strchr(word, '=');
        if (!value || command->arg_count == COMMAND_MAX_ARGS)
            goto fail;
        *value++ = '\0';
        decode(value);
        command->keys[command->arg_count] = word;
        command->values[command->arg_count++] = value;
    }
    return command;
fail:
    command_destroy(command);
    return NULL;
}

static void start(struct command *command)
{
    if (!command->verb->may_block) {
        command_run(command);
        command_destroy(command);
        return;
    }
    if (shoal_cancel_create(&command->cancel) != SHOAL_OK)
        abort();
    pthread_mutex_lock(&commands_lock);
    command->next = commands;
    commands = command;
    if (pthread_create(&command->thread, NULL, command_thread, command) != 0)
        abort();
    pthread_mutex_unlock(&commands_lock);
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;

    signal(SIGPIPE, SIG_IGN);
    shoal_log_set(log_to_stderr, NULL, getenv("SHOAL_TEST_LOG") ? SHOAL_LOG_TRACE : SHOAL_LOG_INFO);
    while (getline(&line, &size, stdin) > 0) {
        if (strcmp(line, "exit\n") == 0)
            break;
        see_printed();
        join_commands(false);
        struct command *command = command_parse(line);
        if (!command) {
            fprintf(stderr, "test_node: bad command: %s", line);
            return 2;
        }
        start(command);
    }
    free(line);
    join_commands(true);
    commands_release();
    shoal_log_set(NULL, NULL, SHOAL_LOG_ERROR);
    return 0;
}
