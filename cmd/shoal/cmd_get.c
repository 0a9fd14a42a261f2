/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/clock.h"
#include "base/error.h"
#include "filelist.h"
#include "mapping.h"
#include "progress.h"
#include "receivers.h"
#include "restore.h"
#include "units.h"

#define SHOWN_SOURCES 20      /* lines of the result; --json has all */
#define SHOWN_SOURCES_MAX 100 /* with those that served wrong bytes */

/* A payload that a program registered without a file list becomes one file, named as the payload. */
static enum shoal_status list_of_one(struct file_list *list, const char *name, uint64_t size_bytes,
                                     struct shoal_error *error)
{
    enum shoal_status status = filelist_add(list, name, FILE_REGULAR, 0644, size_bytes, 0, error);
    if (status != SHOAL_OK)
        error_prefix(error, "the payload has no list of files, so its name would be the file's");
    return status;
}

static enum shoal_status fetch_list(struct app *app, const struct shoal_payload_info *info, struct file_list *list,
                                    struct shoal_error *error)
{
    if (info->attachment_len_bytes == 0)
        return list_of_one(list, info->name, info->total_size, error);
    if (info->attachment_len_bytes > FILELIST_MAX_BYTES)
        return error_set(error, SHOAL_LIMIT, 0, "its attachment has %llu bytes, too many for a list of files",
                         (unsigned long long)info->attachment_len_bytes);
    struct shoal_call call = app_call(app);
    void *attachment = NULL;
    uint64_t *sizes = NULL;
    size_t attachment_len = 0, size_count = 0;
    enum shoal_status status = shoal_store_fetch_index(app->store, info->name, info->generation, &call, &attachment,
                                                       &attachment_len, &sizes, &size_count, error);
    if (status == SHOAL_OK)
        status = filelist_decode(list, attachment, attachment_len, error);
    if (status == SHOAL_OK)
        status = filelist_check_sizes(list, sizes, size_count, error);
    if (status == SHOAL_OK && list->total_bytes != info->total_size)
        status = error_set(error, SHOAL_PROTOCOL, 0, "file list: %llu bytes in all, the payload has %llu",
                           (unsigned long long)list->total_bytes, (unsigned long long)info->total_size);
    free(attachment);
    free(sizes);
    return status;
}

static json_t *sources_to_json(const struct progress *progress)
{
    json_t *sources = json_array();
    for (size_t i = 0; i < progress->source_count; i++) {
        const struct shoal_source_stats *source = &progress->sources[i];
        json_array_append_new(sources, json_pack("{s:o, s:I, s:b, s:i, s:i, s:o, s:o}", "name", json_text(source->name),
                                                 "bytes", (json_int_t)source->bytes, "gold", (int)source->is_gold,
                                                 "bad_pieces", (int)source->bad_pieces, "failures",
                                                 (int)source->failures, "transport", json_text(source->transport),
                                                 "left_transports", json_text(source->left_transports)));
    }
    return sources;
}

/* Who gave most comes first; after some lines only those that served wrong bytes have one of
 * their own. */
static void print_sources(const struct progress *progress)
{
    char shown[320], size[UNITS_TEXT_BYTES], way[160];
    uint64_t other_bytes = 0;
    size_t told = 0, others = 0;
    for (size_t i = 0; i < progress->source_count; i++) {
        const struct shoal_source_stats *source = &progress->sources[i];
        if (!source->bytes && !source->bad_pieces && !source->failures)
            continue;
        if (told >= SHOWN_SOURCES && (!source->bad_pieces || told >= SHOWN_SOURCES_MAX)) {
            others++;
            other_bytes += source->bytes;
            continue;
        }
        told++;
        printf("  from %s%s: %s%s", units_printable(source->name, shown, sizeof shown),
               source->is_gold ? " (gold)" : "", units_format_size(source->bytes, size),
               transport_to_text(source->transport, source->left_transports, way, sizeof way));
        if (source->bad_pieces)
            printf(", %u piece%s with wrong bytes", source->bad_pieces, source->bad_pieces == 1 ? "" : "s");
        if (source->failures)
            printf(", %u failure%s", source->failures, source->failures == 1 ? "" : "s");
        printf("\n");
    }
    if (others > 0)
        printf("  from %zu more: %s\n", others, units_format_size(other_bytes, size));
}

static void print_result(struct app *app, const struct shoal_payload_info *info, const struct file_list *list,
                         const char *directory, const struct progress *progress, double seconds, double total_seconds)
{
    char size[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES], name[SHOAL_NAME_MAX_BYTES + 1], shown[1024];
    bool is_verified = !app->settings.skips_verify;
    double rate_bps = seconds > 0 ? (double)(list->total_bytes - progress->reused_bytes) / seconds : 0;
    if (progress->source_count > 0)
        qsort(progress->sources, progress->source_count, sizeof *progress->sources, progress_compare_sources);
    if (!app->settings.is_json) {
        printf("got %s: %zu file%s, %s in %.2f s, %s%s, in %s\n", units_printable(info->name, name, sizeof name),
               list->file_count, list->file_count == 1 ? "" : "s", units_format_size(list->total_bytes, size), seconds,
               units_format_rate(rate_bps, rate), is_verified ? ", verified" : ", NOT VERIFIED",
               units_printable(directory, shown, sizeof shown));
        if (progress->reused_bytes)
            printf("  there already: %s\n", units_format_size(progress->reused_bytes, size));
        print_sources(progress);
    } else {
        json_print(json_pack("{s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:o, s:s, s:o}", "event",
                             "result", "command", "get", "status", "OK", "name", json_text(info->name), "generation",
                             json_generation(info->generation), "bytes", (json_int_t)list->total_bytes, "reused_bytes",
                             (json_int_t)progress->reused_bytes, "files", (json_int_t)list->file_count, "seconds",
                             seconds, "total_seconds", total_seconds, "rate_bytes_per_s", rate_bps, "verified",
                             is_verified, "directory", json_text(directory), "node",
                             shoal_store_server_name(app->store), "sources", sources_to_json(progress)));
    }
    fflush(stdout);
}

/* Fills the files that restore has prepared and gives them their names. The payload stays open here unless --no-share.
 */
static enum shoal_status transfer(struct app *app, const struct shoal_payload_info *info, struct restore *restore,
                                  struct progress *progress, double *seconds_out, struct shoal_error *error)
{
    struct shoal_get_options options = {.struct_size = sizeof options,
                                        .generation = info->generation,
                                        .no_share = app->settings.skips_share,
                                        .no_verify = app->settings.skips_verify,
                                        .max_sources = (uint32_t)app->settings.max_sources,
                                        .reuse = restore->is_whole            ? SHOAL_REUSE_ONLY
                                                 : restore->adopted_count > 0 ? SHOAL_REUSE
                                                                              : SHOAL_REUSE_NONE,
                                        .previous = restore->previous,
                                        .progress = progress_show,
                                        .progress_arg = progress};
    struct shoal_call call = app_call(app);
    int64_t start_ns = clock_now_ns();
    enum shoal_status status = shoal_store_get_replica(app->store, info->name, restore->regions, restore->region_count,
                                                       &options, &call, error);
    *seconds_out = (double)(clock_now_ns() - start_ns) / 1e9;
    progress_end(progress);
    if (status != SHOAL_OK)
        return status;
    if (signals_received())
        status = error_set(error, SHOAL_CANCELED, 0, "interrupted");
    else
        status = restore_commit(restore, app->settings.syncs, error);
    if (status != SHOAL_OK && !app->settings.skips_share)
        shoal_store_delete_replica(app->store, info->name, NULL, NULL);
    return status;
}

static int serve(struct app *app, const char *name)
{
    struct shoal_error error;
    struct receiver_account account;
    int code = EXIT_CODE_OK;
    report_note(app, "serving \"%s\" at %s until SIGINT or SIGTERM", name, shoal_store_server_name(app->store));
    app_serve(app, name, NULL, NULL);
    receiver_account_take(&account, app, name);
    enum shoal_status status = shoal_store_delete_replica(app->store, name, NULL, &error);
    if (status == SHOAL_METADATA || status == SHOAL_TIMED_OUT)
        report_warning(app, "withdrawn here, but not in the metadata service (its lease will end it): %s",
                       error.message);
    else if (status != SHOAL_OK)
        code = report_failure(app, &error, "cannot withdraw \"%s\"", name);
    if (code == EXIT_CODE_OK && app->settings.is_json)
        json_print(json_pack("{s:s, s:o, s:I, s:o}", "event", "withdrawn", "name", json_text(name), "bytes_served",
                             (json_int_t)account.bytes_served, "receivers", receiver_account_to_json(&account)));
    else if (code == EXIT_CODE_OK)
        receiver_account_print(&account, name);
    receiver_account_release(&account);
    return code;
}

/* A get of what is there already, as after the restart of a machine, copies nothing and needs no space. NOT_FOUND: it
 * is not all there. */
static enum shoal_status keep_all(struct app *app, const struct shoal_payload_info *info, const struct file_list *list,
                                  const char *directory, const struct restore_options *restore_options,
                                  struct restore *restore, struct progress *progress, double *seconds_out,
                                  struct shoal_error *error)
{
    if (!restore_options->resumes || restore_options->keeps_existing ||
        !restore_find(restore, directory, list, restore_options))
        return SHOAL_NOT_FOUND;
    enum shoal_status status = mapping_guard(&restore->mappings, error);
    if (status == SHOAL_OK)
        status = transfer(app, info, restore, progress, seconds_out, error);
    if (status != SHOAL_NOT_FOUND)
        return status;
    mapping_unguard();
    restore_release(restore);
    progress_release(progress);
    progress_init(progress, app, progress->name, progress->verb);
    return status;
}

/* Whether the next get can go on with what is in the staging directory: with pieces that were verified, or with what an
 * earlier one left as long as nobody has looked at it. */
static bool is_worth_keeping(const struct app *app, const struct restore *restore, const struct progress *progress)
{
    bool is_unchecked = restore->adopted_count > 0 && progress->checked_bytes < restore->list->total_bytes;
    return !app->settings.skips_resume && (progress->done_bytes > 0 || is_unchecked);
}

static void abandon(const struct app *app, struct restore *restore, const struct progress *progress)
{
    bool keeps = is_worth_keeping(app, restore, progress);
    char size[UNITS_TEXT_BYTES];
    if (keeps)
        report_note(app, "partial files are kept in \"%s/%s\" (%s verified); run the same command again to resume",
                    restore->path, restore->staging_name, units_format_size(progress->done_bytes, size));
    else
        report_note(app, "nothing was left in \"%s\"", restore->path);
    restore_abort(restore, keeps);
}

static int run_get(struct app *app, int count, char **arguments)
{
    const char *name = arguments[0], *directory = arguments[1];
    struct shoal_payload_info *info = NULL;
    struct file_list list;
    struct restore restore = {.root_fd = -1, .staging_fd = -1};
    struct progress progress;
    struct shoal_error error;
    double seconds = 0;
    bool is_prepared = false, is_done = false;
    int code = EXIT_CODE_OK;
    int64_t start_ns = clock_now_ns();
    (void)count;
    filelist_init(&list);
    progress_init(&progress, app, name, "getting");

    if (app->settings.keeps_seeding && app->settings.skips_share) {
        error_set(&error, SHOAL_INVALID_ARGUMENT, 0, "--seed and --no-share exclude each other");
        code = report_failure(app, &error, "cannot get \"%s\"", name);
        goto out;
    }
    if (app_open_admin(app, &error) != SHOAL_OK) {
        code = report_failure(app, &error, "cannot serve metrics at %s", app->settings.metrics);
        goto out;
    }
    if (app_open_store(app, false, &error) != SHOAL_OK) {
        code = report_failure(app, &error, "cannot join the cluster as %s", app->settings.name);
        goto out;
    }
    app_show_store(app, name);
    enum shoal_status status = app_find_payload(app, name, &info, &error);
    if (status == SHOAL_OK)
        status = fetch_list(app, info, &list, &error);
    struct restore_options restore_options = {
        .payload = name, .keeps_existing = app->settings.keeps_existing, .resumes = !app->settings.skips_resume};
    if (status == SHOAL_OK)
        status = keep_all(app, info, &list, directory, &restore_options, &restore, &progress, &seconds, &error);
    if (status == SHOAL_NOT_FOUND) {
        status = restore_prepare(&restore, directory, &list, &restore_options, &error);
        is_prepared = status == SHOAL_OK;
        if (status == SHOAL_OK)
            status = mapping_guard(&restore.mappings, &error);
        if (status == SHOAL_OK)
            status = transfer(app, info, &restore, &progress, &seconds, &error);
    }
    if (status != SHOAL_OK) {
        code = report_failure(app, &error, "cannot get \"%s\"", name);
        goto out;
    }
    is_done = true;
    if (app->settings.skips_verify)
        report_warning(app, "the bytes of \"%s\" were not verified", name);
    print_result(app, info, &list, directory, &progress, seconds, (double)(clock_now_ns() - start_ns) / 1e9);
    if (app->settings.keeps_seeding)
        code = serve(app, name);

out:
    app_close_store(app);
    mapping_unguard();
    if (is_prepared && !is_done)
        abandon(app, &restore, &progress);
    restore_release(&restore);
    progress_release(&progress);
    filelist_release(&list);
    shoal_payload_infos_free(info, info ? 1 : 0);
    return code;
}

static const struct option_spec options[] = {
    {OPTION_FLAG, 's', "seed", NULL, NULL, offsetof(struct settings, keeps_seeding),
     .help = "Go on serving the payload to others until SIGINT or SIGTERM."},
    {OPTION_FLAG, 'w', "wait", NULL, NULL, offsetof(struct settings, waits),
     .help = "If there is no such payload yet, wait for it (at most --timeout)."},
    {OPTION_FLAG, 0, "no-overwrite", NULL, NULL, offsetof(struct settings, keeps_existing),
     .help = "Fail if a file exists already, before anything is transferred. Without it such a file is replaced when "
             "the new one is complete."},
    {OPTION_FLAG, 0, "no-resume", NULL, NULL, offsetof(struct settings, skips_resume),
     .help = "Get every piece anew, whatever is there, and keep no partial files after an error or a signal."},
    {OPTION_FLAG, 0, "no-share", NULL, NULL, offsetof(struct settings, skips_share),
     .help = "Do not serve pieces to others while getting them."},
    {OPTION_FLAG, 0, "no-verify", NULL, NULL, offsetof(struct settings, skips_verify),
     .help = "Do not compare the bytes with their digests: trusts every source."},
    {OPTION_FLAG, 0, "sync", NULL, NULL, offsetof(struct settings, syncs),
     .help = "Bring the files to the disk before they get their names, so that they survive a power failure."},
    {OPTION_UINT, 0, "max-sources", "N", "SHOAL_MAX_SOURCES", offsetof(struct settings, max_sources), .min = 1,
     .max = 128, .help = "Take from at most this many sources at a time. Default: 32."},
    {OPTION_RATE, 0, "download-limit", "RATE", "SHOAL_DOWNLOAD_LIMIT", offsetof(struct settings, download_limit),
     .help = "Take at most this much from all sources together, as 100M (100 megabytes per second), 80MiB or 400mbit; "
             "at least 64KiB. Default: no limit."},
    {OPTION_TEXT, 0, "metrics", "HOST:PORT", "SHOAL_METRICS", offsetof(struct settings, metrics),
     .help = "Answer HTTP at this address: /metrics for Prometheus, /healthz, and /readyz, which is 200 while the "
             "payload is published. Port 0 is any free one. Without it nothing listens."},
    {OPTION_END},
};

const struct command command_get = {
    .name = "get",
    .arguments = "NAME DIR",
    .summary = "get a payload's files from whoever has them",
    .text =
        "Gets the payload NAME from all its sources at once, verifies every piece and writes its files and "
        "directories below DIR, which is made if it is missing. While it runs, other nodes take from it the pieces "
        "it has. With --seed it goes on serving.\n\n"
        "Nothing outside DIR is written and no link below DIR is followed. The space is allocated before the "
        "transfer begins. "
        "Files grow in a hidden directory in DIR and get their names when all are complete; files that exist are "
        "replaced "
        "then. Permission bits of files and of directories that are made are restored exactly, without set-user-ID, "
        "set-group-ID and sticky bits.\n\n"
        "After an error or a signal the hidden directory stays if it has verified pieces, also after a kill: the "
        "same command run again keeps the pieces that verify and gets only the rest. Pieces that a file has "
        "already that is to be replaced are copied from it, so that a new generation brings only what changed. "
        "What is left of other payloads is removed when the space is needed.\n\n"
        "A payload that a program registered without a list of files is written to DIR/NAME.",
    .options = options,
    .has_serving_options = true,
    .has_common_options = true,
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run_get,
};
