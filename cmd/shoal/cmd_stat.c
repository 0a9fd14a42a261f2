/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/error.h"
#include "filelist.h"
#include "sources.h"
#include "units.h"

#define SHOWN_FILES 20

struct index {
    bool is_known, has_files;
    struct file_list list;
    uint64_t *sizes; /* owned */
    size_t size_count;
    struct shoal_error error; /* why not */
};

static void fetch_index(struct app *app, const struct shoal_payload_info *info, struct index *index)
{
    struct shoal_call call = app_call(app);
    void *attachment = NULL;
    size_t len = 0;
    if (shoal_store_fetch_index(app->store, info->name, info->generation, &call, &attachment, &len, &index->sizes,
                                &index->size_count, &index->error) != SHOAL_OK)
        return;
    index->is_known = true;
    if (len > 0)
        index->has_files = filelist_decode(&index->list, attachment, len, &index->error) == SHOAL_OK;
    free(attachment);
}

static void print_json(const struct shoal_payload_info *info, const struct sources *sources, const struct index *index)
{
    json_t *files = json_array(), *sizes = json_array();
    for (size_t i = 0; i < index->size_count; i++)
        json_array_append_new(sizes, json_integer((json_int_t)index->sizes[i]));
    for (size_t i = 0; i < index->list.count; i++) {
        const struct file_entry *entry = &index->list.entries[i];
        char mode[8];
        snprintf(mode, sizeof mode, "%04o", (unsigned)entry->mode);
        json_array_append_new(files, json_pack("{s:o, s:s, s:s, s:I}", "path", json_text(entry->path), "type",
                                               entry->type == FILE_REGULAR ? "file" : "dir", "mode", mode, "bytes",
                                               (json_int_t)entry->size_bytes));
    }
    json_t *object = json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o?, s:o?}", "name", json_text(info->name),
                               "generation", json_generation(info->generation), "bytes", (json_int_t)info->total_size,
                               "max_shard_bytes", (json_int_t)info->max_shard_size, "piece_bytes",
                               (json_int_t)info->piece_size, "pieces", (json_int_t)info->piece_count, "regions",
                               (json_int_t)info->size_count, "sources", sources_to_json(sources), "region_bytes",
                               index->is_known ? sizes : NULL, "files", index->has_files ? files : NULL);
    if (!index->is_known)
        json_decref(sizes);
    if (!index->has_files)
        json_decref(files);
    json_print(object);
}

static void print_text(const struct shoal_payload_info *info, const struct sources *sources, const struct index *index,
                       const struct settings *settings)
{
    char shown[1024], size[UNITS_TEXT_BYTES];
    printf("name        %s\n", units_printable(info->name, shown, sizeof shown));
    printf("generation  %016llx\n", (unsigned long long)info->generation);
    printf("size        %s (%llu bytes)\n", units_format_size(info->total_size, size),
           (unsigned long long)info->total_size);
    printf("shard size  %s\n", units_format_size(info->max_shard_size, size));
    printf("pieces      %llu of %s\n", (unsigned long long)info->piece_count,
           units_format_size(info->piece_size, size));
    printf("regions     %zu\n", info->size_count);
    sources_print(sources, settings->lists_receivers || settings->verbosity > 0);
    if (!index->is_known) {
        printf("files       not known: %s\n", units_printable(index->error.message, shown, sizeof shown));
        return;
    }
    if (!index->has_files) {
        printf("files       no list\n");
        return;
    }
    printf("files       %zu\n", index->list.file_count);
    for (size_t i = 0; i < index->list.count; i++) {
        const struct file_entry *entry = &index->list.entries[i];
        if (i == SHOWN_FILES && !settings->lists_files) {
            printf("  ... %zu more (--files shows all)\n", index->list.count - i);
            break;
        }
        bool is_file = entry->type == FILE_REGULAR;
        printf("  %04o  %10s  %s%s\n", (unsigned)entry->mode,
               is_file ? units_format_size(entry->size_bytes, size) : "-",
               units_printable(entry->path, shown, sizeof shown), is_file ? "" : "/");
    }
}

static int run_stat(struct app *app, int count, char **arguments)
{
    const char *name = arguments[0];
    struct shoal_payload_info *info = NULL;
    struct shoal_error error;
    struct index index = {.is_known = false};
    (void)count;
    if (app_open_store(app, true, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot join the cluster as %s", app->settings.name);
    if (app_find_payload(app, name, &info, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot look at \"%s\"", name);
    int code = EXIT_CODE_OK;
    filelist_init(&index.list);
    if (info->status != SHOAL_OK) {
        error_set(&error, info->status, 0, "its entry in the metadata service cannot be read");
        code = report_failure(app, &error, "cannot look at \"%s\"", name);
    } else {
        struct sources sources;
        sources_ask(&sources, app, info,
                    app->settings.is_json || app->settings.lists_receivers || app->settings.verbosity > 0);
        fetch_index(app, info, &index);
        if (index.is_known && !index.has_files && info->attachment_len_bytes > 0)
            report_warning(app, "the list of files of \"%s\" cannot be used: %s", name, index.error.message);
        if (app->settings.is_json)
            print_json(info, &sources, &index);
        else
            print_text(info, &sources, &index, &app->settings);
        sources_release(&sources);
    }
    filelist_release(&index.list);
    free(index.sizes);
    shoal_payload_infos_free(info, 1);
    return code;
}

static const struct option_spec options[] = {
    {OPTION_FLAG, 'a', "files", NULL, NULL, offsetof(struct settings, lists_files),
     .help = "Show all files, not only the first twenty. With --json all are shown anyhow."},
    {OPTION_FLAG, 'r', "receivers", NULL, NULL, offsetof(struct settings, lists_receivers),
     .help =
         "Show of each source who takes from it and who has taken, over which transport, and which better one refused "
         "and why; at most 256. So do -v and --json."},
    {OPTION_END},
};

const struct command command_stat = {
    .name = "stat",
    .arguments = "NAME",
    .summary = "show a payload, its sources and its files",
    .text = "Shows what is known of a payload: generation, sizes, the files, which a source is asked for, and the live "
            "sources. Each is asked what it has of the payload, how much it has given and to how many receivers it "
            "gives now; one that does not answer within 3 s is shown as such.",
    .options = options,
    .has_common_options = true,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run_stat,
};
