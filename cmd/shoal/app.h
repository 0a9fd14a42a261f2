/* SPDX-License-Identifier: Apache-2.0 */
/* What every command shares: settings, the way to say what went wrong, results, signals, the store. */
#ifndef SHOAL_CMD_APP_H
#define SHOAL_CMD_APP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <shoal/kv.h>
#include <shoal/store.h>

#include "exit_code.h"
#include "options.h"
#include "signals.h"

struct app {
    const struct command *command;
    struct settings settings;
    char *metadata_uri;          /* owned; of --metadata or the default */
    struct shoal_cancel *cancel; /* owned; triggered by the first signal */
    int64_t deadline_ms;         /* of --timeout; INT64_MAX: none */
    struct shoal_store *store;   /* owned */
    struct shoal_kv *kv;         /* owned */
    struct admin *admin;         /* owned; NULL without --metrics */
    const char *served_name;     /* borrowed; of the payload that /readyz is about */
};

/* --- report.c: what is said --- */

/* "shoal get: WHAT: message" and what to do on stderr (and an object with --json on stdout). Returns the exit code; 128
 * + n if signal n is why. */
int report_failure(const struct app *app, const struct shoal_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void report_warning(const struct app *app, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Shown unless -q. */
void report_note(const struct app *app, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Installs the log sink for -v / -q. */
void report_start_log(const struct app *app);

/* One line on stdout, flushed; takes the reference. NULL: out of memory, reported. */
void json_print(json_t *value);
/* A JSON string of text; bytes that are not UTF-8 become '?'. */
json_t *json_text(const char *text);
/* Sixteen hex digits: it does not fit into a JSON number. */
json_t *json_generation(uint64_t generation);

/* --- runtime.c --- */

/* The default metadata URI; its directory is made (0700) and checked for its owner. */
enum shoal_status runtime_metadata_uri(char **uri_out, struct shoal_error *error);
/* A call with what is left of --timeout. */
struct shoal_call app_call(const struct app *app);
/* Joins the cluster; any_port: with the host of --name and a free port. */
enum shoal_status app_open_store(struct app *app, bool any_port, struct shoal_error *error);
/* Listens for --metrics, if that was given, and says where. */
enum shoal_status app_open_admin(struct app *app, struct shoal_error *error);
/* From now on it answers about store and the payload of that name (borrowed). */
void app_show_store(struct app *app, const char *name);
/* Withdraws everything; nothing touches the memory after it. */
void app_close_store(struct app *app);
/* stat with the deadline of app; waits for the payload if --wait. */
enum shoal_status app_find_payload(struct app *app, const char *name, struct shoal_payload_info **info_out,
                                   struct shoal_error *error);
/* How many more memory maps this process may have. */
enum shoal_status runtime_check_map_count(size_t needed, struct shoal_error *error);

/* --- serving.c --- */

/* Shows what is given to whom until a signal comes. check (may be NULL) runs every second. */
void app_serve(struct app *app, const char *name, void (*check)(void *arg), void *check_arg);

/* --- cmd_kv.c --- */

/* Connects to --client, or joins through --master. */
enum shoal_status app_open_kv(struct app *app, struct shoal_error *error);
/* "the mooncake_client at HOST:PORT" or "the master at ..."; static. */
const char *app_kv_peer(const struct app *app);

/* --- cmd_kv_ls.c --- */

/* How many clients have key, as the master knows it; 0: none. */
enum shoal_status app_count_copies(const struct app *app, const char *key, unsigned *copies_out,
                                   struct shoal_error *error);

/* --- commands --- */

extern const struct command command_seed, command_get, command_ls, command_stat, command_doctor, command_topo,
    command_version, command_help, command_completion, command_man, command_kv_put, command_kv_get, command_kv_ls,
    command_kv_rm, command_kv_stat, command_kv_bench;

#endif
