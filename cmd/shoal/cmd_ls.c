/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "app.h"
#include "units.h"

static json_t *to_json(const struct shoal_payload_info *info)
{
    if (info->status != SHOAL_OK)
        return json_pack("{s:o, s:s}", "name", json_text(info->name), "status", shoal_status_name(info->status));
    return json_pack("{s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "name", json_text(info->name), "status", "OK",
                     "generation", json_generation(info->generation), "bytes", (json_int_t)info->total_size,
                     "max_shard_bytes", (json_int_t)info->max_shard_size, "piece_bytes", (json_int_t)info->piece_size,
                     "pieces", (json_int_t)info->piece_count, "regions", (json_int_t)info->size_count, "sources",
                     (json_int_t)info->source_count);
}

static void print_table(const struct shoal_payload_info *infos, size_t count)
{
    char name[SHOAL_NAME_MAX_BYTES + 1], size[UNITS_TEXT_BYTES], shard[UNITS_TEXT_BYTES];
    int width = 4;
    for (size_t i = 0; i < count; i++) {
        int len = (int)strlen(units_printable(infos[i].name, name, sizeof name));
        width = len > width ? len : width;
    }
    width = width > 60 ? 60 : width;
    printf("%-*s  %10s  %10s  %8s  %7s\n", width, "NAME", "SIZE", "SHARD", "PIECES", "SOURCES");
    for (size_t i = 0; i < count; i++) {
        const struct shoal_payload_info *info = &infos[i];
        units_printable(info->name, name, sizeof name);
        if (info->status != SHOAL_OK)
            printf("%-*s  unreadable entry (%s)\n", width, name, shoal_status_name(info->status));
        else
            printf("%-*s  %10s  %10s  %8llu  %7zu\n", width, name, units_format_size(info->total_size, size),
                   units_format_size(info->max_shard_size, shard), (unsigned long long)info->piece_count,
                   info->source_count);
    }
}

static int run_ls(struct app *app, int count, char **arguments)
{
    const char *prefix = count > 0 ? arguments[0] : "";
    struct shoal_payload_info *infos = NULL;
    size_t info_count = 0;
    struct shoal_error error;
    if (app_open_store(app, true, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot join the cluster as %s", app->settings.name);
    struct shoal_call call = app_call(app);
    if (shoal_store_list(app->store, prefix, &call, &infos, &info_count, &error) != SHOAL_OK)
        return report_failure(app, &error, "cannot list the payloads");
    if (app->settings.is_json) {
        json_t *array = json_array();
        for (size_t i = 0; i < info_count; i++)
            json_array_append_new(array, to_json(&infos[i]));
        json_print(array);
    } else if (info_count) {
        print_table(infos, info_count);
    } else {
        report_note(app, "no payload%s%s in %s", *prefix ? " begins with " : "", prefix, app->metadata_uri);
    }
    shoal_payload_infos_free(infos, info_count);
    return EXIT_CODE_OK;
}

const struct command command_ls = {
    .name = "ls",
    .arguments = "[PREFIX]",
    .summary = "list the payloads",
    .text = "Lists the payloads whose names begin with PREFIX: size, shard size, number of pieces and of live sources. "
            "An entry that cannot be read is shown as such. With --json: one array.",
    .has_common_options = true,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_ls,
};
