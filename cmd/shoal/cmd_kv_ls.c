/* SPDX-License-Identifier: Apache-2.0 */
/* shoal kv ls, rm and stat. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/error.h"
#include "units.h"

/* --- ls --- */

struct listing {
    const struct app *app;
    uint64_t count, bytes;
};

/* Each line is written as it comes: there may be millions. */
static int print_entry(void *arg, const struct shoal_kv_entry *entry)
{
    struct listing *listing = arg;
    if (listing->app->settings.is_json) {
        json_t *object = json_pack("{s:o, s:I, s:i}", "key", json_text(entry->key), "bytes",
                                   (json_int_t)entry->len_bytes, "replicas", (int)entry->replicas);
        char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
        printf("%s%s", listing->count ? "," : "[", text ? text : "null");
        free(text);
        json_decref(object);
    } else {
        char key[SHOAL_KV_KEY_MAX_BYTES + 1], size[UNITS_TEXT_BYTES];
        if (listing->count == 0)
            printf("%10s  %8s  %s\n", "SIZE", "REPLICAS", "KEY");
        printf("%10s  %8u  %s\n", units_format_size(entry->len_bytes, size), entry->replicas,
               units_printable(entry->key, key, sizeof key));
    }
    listing->count++;
    listing->bytes += entry->len_bytes;
    return ferror(stdout) || signals_received();
}

static int run_ls(struct app *app, int count, char **arguments)
{
    const char *pattern = count > 0 ? arguments[0] : NULL;
    struct listing listing = {.app = app};
    struct shoal_error error;
    char size[UNITS_TEXT_BYTES];
    if (app_open_kv(app, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    struct shoal_call call = app_call(app);
    enum shoal_status status = shoal_kv_list(app->kv, pattern, &call, print_entry, &listing, &error);
    if (status == SHOAL_OK && signals_received())
        status = error_set(&error, SHOAL_CANCELED, 0, "interrupted");
    if (app->settings.is_json && (status == SHOAL_OK || listing.count))
        printf("%s]\n", listing.count ? "" : "[");
    if (status != SHOAL_OK)
        return report_failure(app, &error, "cannot list the keys");
    if (!app->settings.is_json)
        report_note(app, "%" PRIu64 " key%s%s%s, %s", listing.count, listing.count == 1 ? "" : "s",
                    pattern ? " like " : "", pattern ? pattern : "", units_format_size(listing.bytes, size));
    return EXIT_CODE_OK;
}

const struct command command_kv_ls = {
    .name = "kv ls",
    .arguments = "[PATTERN]",
    .summary = "list the keys of the KV store",
    .text =
        "Lists the keys that match PATTERN, with size and number of copies, in no particular order. Without PATTERN: "
        "all. With --json: one array. In a pattern * is any text, ? any character, [a-z] or [!a-z] one of (or none of) "
        "these, \\ takes the character after it as it is; a slash is like any other. A pattern that is malformed, such "
        "as one with a [ that nothing ends, is an error (exit code 2).",
    .has_kv_options = true,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_ls,
};

/* --- rm --- */

static int tell_removed(const struct app *app, uint64_t removed)
{
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:I}", "event", "result", "removed", (json_int_t)removed));
    else
        report_note(app, "%" PRIu64 " key%s removed", removed, removed == 1 ? "" : "s");
    return EXIT_CODE_OK;
}

/* The keys that are there are removed, whatever happens to the others; the exit code is that of the first failure. */
static int remove_keys(struct app *app, int count, char **keys)
{
    uint64_t removed = 0;
    int code = EXIT_CODE_OK;
    for (int i = 0; i < count; i++) {
        struct shoal_error error;
        struct shoal_call call = app_call(app);
        if (shoal_kv_remove(app->kv, keys[i], &call, &error) == SHOAL_OK) {
            removed++;
        } else {
            int one = report_failure(app, &error, "cannot remove \"%s\"", keys[i]);
            code = code == EXIT_CODE_OK ? one : code;
            if (error.status != SHOAL_NOT_FOUND && error.status != SHOAL_INVALID_ARGUMENT)
                break;
        }
    }
    tell_removed(app, removed);
    return code;
}

static int run_rm(struct app *app, int count, char **arguments)
{
    const char *pattern = app->settings.pattern;
    bool removes_all = app->settings.removes_all;
    struct shoal_error error;
    enum shoal_status status;
    uint64_t removed = 0;
    if ((count > 0) + (pattern != NULL) + removes_all != 1) {
        error_set(&error, SHOAL_INVALID_ARGUMENT, 0, "give keys, or --pattern, or --all, and only one of them");
        return report_failure(app, &error, "what to remove");
    }
    if (app_open_kv(app, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    if (count > 0)
        return remove_keys(app, count, arguments);
    struct shoal_call call = app_call(app);
    status = removes_all ? shoal_kv_remove_all(app->kv, &call, &removed, &error)
                         : shoal_kv_remove_matching(app->kv, pattern, &call, &removed, &error);
    if (status != SHOAL_OK)
        return report_failure(app, &error, "cannot remove %s (%" PRIu64 " removed)",
                              removes_all ? "all keys" : "what matches", removed);
    return tell_removed(app, removed);
}

static const struct option_spec rm_options[] = {
    {OPTION_TEXT, 'p', "pattern", "PATTERN", NULL, offsetof(struct settings, pattern),
     .help = "Remove every key that matches, as kv ls lists them; none is no error, a malformed pattern is one."},
    {OPTION_FLAG, 0, "all", NULL, NULL, offsetof(struct settings, removes_all),
     .help = "Remove every key of the cluster."},
    {OPTION_END},
};

const struct command command_kv_rm = {
    .name = "kv rm",
    .arguments = "KEY...|--pattern PATTERN|--all",
    .summary = "remove keys from the KV store",
    .text = "Removes keys with all their copies. When it has ended well no client finds them any more. A KEY that does "
            "not exist is told and makes the exit code 3; the others are removed.",
    .options = rm_options,
    .has_kv_options = true,
    .min_arguments = 0,
    .max_arguments = -1,
    .run = run_rm,
};

/* --- stat --- */

/* Matches key and nothing else. */
static void escape_pattern(const char *key, char *to)
{
    for (; *key; key++) {
        if (strchr("*?[]\\", *key))
            *to++ = '\\';
        *to++ = *key;
    }
    *to = '\0';
}

static int keep_replicas(void *arg, const struct shoal_kv_entry *entry)
{
    *(unsigned *)arg = entry->replicas;
    return 1;
}

enum shoal_status app_count_copies(const struct app *app, const char *key, unsigned *copies_out,
                                   struct shoal_error *error)
{
    char pattern[2 * SHOAL_KV_KEY_MAX_BYTES + 1];
    struct shoal_call call = app_call(app);
    *copies_out = 0;
    escape_pattern(key, pattern); /* whoever asks has used the key: it is not too long */
    return shoal_kv_list(app->kv, pattern, &call, keep_replicas, copies_out, error);
}

static int stat_key(struct app *app, const char *key)
{
    char size[UNITS_TEXT_BYTES];
    unsigned replicas;
    uint64_t len;
    struct shoal_error error;
    struct shoal_call call = app_call(app);
    if (shoal_kv_size(app->kv, key, &call, &len, &error) != SHOAL_OK)
        return report_failure(app, &error, "\"%s\"", key);
    if (app_count_copies(app, key, &replicas, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot ask for the copies of \"%s\"", key);
    if (app->settings.is_json) {
        json_print(
            json_pack("{s:o, s:I, s:i}", "key", json_text(key), "bytes", (json_int_t)len, "replicas", (int)replicas));
    } else {
        char shown[SHOAL_KV_KEY_MAX_BYTES + 1];
        printf("%s\n  size      %s (%" PRIu64 " bytes)\n  replicas  %u\n", units_printable(key, shown, sizeof shown),
               units_format_size(len, size), len, replicas);
    }
    return EXIT_CODE_OK;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "-";
}

static void print_clients(const json_t *clients)
{
    size_t i, j;
    const json_t *client, *tier;
    json_array_foreach(clients, i, client)
    {
        char address[128], used[UNITS_TEXT_BYTES], capacity[UNITS_TEXT_BYTES];
        const json_t *tiers = json_object_get(client, "tiers");
        printf("\nclient %s\n", units_printable(text_of(client, "address"), address, sizeof address));
        json_array_foreach(tiers, j, tier)
        {
            printf("  %-8s %10s of %10s used\n", text_of(tier, "type"),
                   units_format_size((uint64_t)json_integer_value(json_object_get(tier, "used_bytes")), used),
                   units_format_size((uint64_t)json_integer_value(json_object_get(tier, "capacity_bytes")), capacity));
        }
        if (json_array_size(tiers) == 0)
            printf("  owns nothing\n");
    }
}

static int stat_cluster(struct app *app)
{
    struct shoal_error error;
    struct shoal_call call = app_call(app);
    char *text, master[256];
    if (shoal_kv_status(app->kv, &call, &text, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot ask for the state of the store");
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    if (!root) {
        error_set(&error, SHOAL_PROTOCOL, 0, "the answer is not JSON");
        return report_failure(app, &error, "cannot ask for the state of the store");
    }
    if (app->settings.is_json) {
        json_print(root);
        return EXIT_CODE_OK;
    }
    printf("master   %s\nkeys     %" PRIu64 "\nclients  %zu\n",
           units_printable(text_of(root, "master"), master, sizeof master),
           (uint64_t)json_integer_value(json_object_get(root, "keys")),
           json_array_size(json_object_get(root, "clients")));
    print_clients(json_object_get(root, "clients"));
    json_decref(root);
    return EXIT_CODE_OK;
}

static int run_stat(struct app *app, int count, char **arguments)
{
    struct shoal_error error;
    if (app_open_kv(app, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot connect to %s", app_kv_peer(app));
    return count > 0 ? stat_key(app, arguments[0]) : stat_cluster(app);
}

const struct command command_kv_stat = {
    .name = "kv stat",
    .arguments = "[KEY]",
    .summary = "describe a key, or the KV store",
    .text = "Shows size and number of copies of KEY; without KEY the master, the clients, and what of their tiers is "
            "used. With --json: one object.",
    .has_kv_options = true,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_stat,
};
