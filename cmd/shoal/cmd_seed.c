/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/error.h"
#include "filelist.h"
#include "mapping.h"
#include "progress.h"
#include "receivers.h"
#include "scan.h"
#include "units.h"

/* Looked at every second while serving: enough to go round 20,000 files in 20 s, too few to be felt. */
#define CHECKED_FILES 1000

struct seeding {
    struct app *app;
    struct scan *scan;
};

static void tell_change(void *arg, const char *path, const char *what)
{
    struct seeding *seeding = arg;
    const struct app *app = seeding->app;
    report_warning(app, "%s %s while it is seeded: receivers will refuse what differs; stop, and seed it again", path,
                   what);
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:o, s:s}", "event", "file-changed", "path", json_text(path), "change", what));
}

static void check_files(void *arg)
{
    struct seeding *seeding = arg;
    scan_check_some(seeding->scan, CHECKED_FILES, tell_change, seeding);
}

static void print_seeding(struct app *app, const char *name, const struct scan *scan, uint64_t generation,
                          const struct progress *progress)
{
    char size[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES], shown[SHOAL_NAME_MAX_BYTES + 1];
    const char *address = shoal_store_server_name(app->store);
    double seconds = (double)progress->elapsed_ms / 1000.0;
    if (app->settings.is_json) {
        json_print(json_pack("{s:s, s:o, s:o, s:I, s:I, s:s, s:s, s:f}", "event", "seeding", "name", json_text(name),
                             "generation", json_generation(generation), "bytes", (json_int_t)scan->list.total_bytes,
                             "files", (json_int_t)scan->list.file_count, "node", address, "metadata", app->metadata_uri,
                             "hash_seconds", seconds));
        return;
    }
    printf("seeding %s: %zu file%s, %s, at %s", units_printable(name, shown, sizeof shown), scan->list.file_count,
           scan->list.file_count == 1 ? "" : "s", units_format_size(scan->list.total_bytes, size), address);
    if (seconds > 0)
        printf(" (hashed at %s)", units_format_rate((double)scan->list.total_bytes / seconds, rate));
    printf("\n");
    fflush(stdout);
    report_note(app, "serving until SIGINT or SIGTERM");
}

/* Withdraws; the deadline and the token of the command are over by now. */
static int withdraw(struct app *app, const char *name, uint64_t total_bytes)
{
    struct shoal_error error;
    struct receiver_account account;
    int code = EXIT_CODE_OK;
    receiver_account_take(&account, app, name);
    enum shoal_status status = shoal_store_unregister(app->store, name, NULL, &error);
    if (status == SHOAL_METADATA || status == SHOAL_TIMED_OUT)
        report_warning(app, "withdrawn here, but not in the metadata service (its lease will end it): %s",
                       error.message);
    else if (status != SHOAL_OK)
        code = report_failure(app, &error, "cannot withdraw \"%s\"", name);
    if (code == EXIT_CODE_OK && app->settings.is_json)
        json_print(json_pack("{s:s, s:s, s:s, s:o, s:I, s:I, s:o}", "event", "result", "command", "seed", "status",
                             "OK", "name", json_text(name), "bytes", (json_int_t)total_bytes, "bytes_served",
                             (json_int_t)account.bytes_served, "receivers", receiver_account_to_json(&account)));
    else if (code == EXIT_CODE_OK)
        receiver_account_print(&account, name);
    receiver_account_release(&account);
    return code;
}

static int run_seed(struct app *app, int count, char **arguments)
{
    const char *name = arguments[0];
    struct scan scan;
    struct progress progress;
    struct shoal_error error;
    struct shoal_payload_info *info = NULL;
    char *attachment = NULL;
    size_t attachment_len = 0;
    int code;
    scan_init(&scan, app->settings.follows_links);
    progress_init(&progress, app, name, "hashing");

    if (app_open_admin(app, &error) != SHOAL_OK) {
        code = report_failure(app, &error, "cannot serve metrics at %s", app->settings.metrics);
        goto out_scan;
    }
    enum shoal_status status = scan_paths(&scan, arguments + 1, (size_t)count - 1, &error);
    if (status == SHOAL_OK)
        status = filelist_encode(&scan.list, &attachment, &attachment_len, &error);
    if (status == SHOAL_OK)
        status = mapping_guard(&scan.mappings, &error);
    if (status != SHOAL_OK) {
        code = report_failure(app, &error, "cannot seed \"%s\"", name);
        goto out_scan;
    }
    status = app_open_store(app, false, &error);
    if (status != SHOAL_OK) {
        code = report_failure(app, &error, "cannot join the cluster as %s", app->settings.name);
        goto out_guard;
    }
    app_show_store(app, name);

    struct shoal_register_options options = {.struct_size = sizeof options,
                                             .max_shard_size = app->settings.max_shard_size,
                                             .piece_size = app->settings.piece_size,
                                             .force = app->settings.is_forced,
                                             .attachment = attachment,
                                             .attachment_len_bytes = attachment_len,
                                             .progress = progress_show,
                                             .progress_arg = &progress};
    struct shoal_call call = app_call(app);
    status = shoal_store_register(app->store, name, scan.regions, scan.region_count, &options, &call, &error);
    progress_end(&progress);
    if (status != SHOAL_OK) {
        struct shoal_error changed;
        if (status != SHOAL_CANCELED && mapping_first_lost(&scan.mappings) &&
            scan_check_all(&scan, &changed) != SHOAL_OK)
            error = changed;
        code = report_failure(app, &error, "cannot seed \"%s\"", name);
        goto out_guard;
    }
    /* What was hashed must be what the files are, or every receiver would refuse it. */
    status = scan_check_all(&scan, &error);
    if (status != SHOAL_OK) {
        shoal_store_unregister(app->store, name, NULL, NULL);
        code = report_failure(app, &error, "cannot seed \"%s\"", name);
        goto out_guard;
    }
    call = app_call(app);
    if (shoal_store_stat(app->store, name, &call, &info, NULL) != SHOAL_OK)
        info = NULL;
    print_seeding(app, name, &scan, info ? info->generation : 0, &progress);
    shoal_payload_infos_free(info, info ? 1 : 0);

    struct seeding seeding = {app, &scan};
    app_serve(app, name, check_files, &seeding);
    code = withdraw(app, name, scan.list.total_bytes);

out_guard:
    app_close_store(app);
    mapping_unguard();
out_scan:
    free(attachment);
    progress_release(&progress);
    scan_release(&scan);
    return code;
}

static const struct option_spec options[] = {
    {OPTION_FLAG, 'f', "force", NULL, NULL, offsetof(struct settings, is_forced),
     .help = "Replace a payload of this name that other nodes serve; they say so, and keep serving the old one only to "
             "those who already pull it."},
    {OPTION_FLAG, 'L', "follow", NULL, NULL, offsetof(struct settings, follows_links),
     .help = "Seed what symbolic links in a directory point to. Without it such a link is an error; a PATH that is a "
             "link itself is always followed."},
    {OPTION_SIZE, 's', "max-shard-size", "SIZE", "SHOAL_MAX_SHARD_SIZE", offsetof(struct settings, max_shard_size),
     .help = "The largest unit of sharing, as 64M or 64MiB. Default: 64MiB."},
    {OPTION_SIZE, 'p', "piece-size", "SIZE", "SHOAL_PIECE_SIZE", offsetof(struct settings, piece_size),
     .help = "What is transferred and verified at a time. Default: chosen from the size of the payload."},
    {OPTION_TEXT, 0, "metrics", "HOST:PORT", "SHOAL_METRICS", offsetof(struct settings, metrics),
     .help = "Answer HTTP at this address: /metrics for Prometheus, /healthz, and /readyz, which is 200 while the "
             "payload is published. Port 0 is any free one. Without it nothing listens."},
    {OPTION_END},
};

const struct command command_seed = {
    .name = "seed",
    .arguments = "NAME PATH...",
    .summary = "offer files and directories to other nodes, until stopped",
    .text =
        "Offers files and directories as the payload NAME. They are mapped into memory, not copied; they must not "
        "change meanwhile. Their digests are computed first; then other nodes can get them. seed stays until "
        "SIGINT or SIGTERM, "
        "then withdraws and exits with 0. Nodes that have got the payload with --seed go on serving it. On a terminal "
        "seed shows who takes from it now, with -v it says who joins, is done or leaves; at the end it says how "
        "much each has taken.\n\n"
        "A directory is taken with everything in it, under its own name (for . and .. that of the real directory). "
        "Names, sizes and permission bits travel "
        "with the payload. Pipes, devices, sockets and, without --follow, symbolic links are refused.",
    .options = options,
    .has_serving_options = true,
    .has_common_options = true,
    .min_arguments = 2,
    .max_arguments = -1,
    .run = run_seed,
};
