/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "receivers.h"
#include "units.h"

static void not_asked(struct sources *sources, const struct shoal_payload_info *info, const struct shoal_error *error)
{
    sources->infos = calloc(info->source_count + 1, sizeof *sources->infos);
    if (!sources->infos)
        return;
    sources->count = info->source_count;
    for (size_t i = 0; i < info->source_count; i++) {
        sources->infos[i].source = info->sources[i];
        sources->infos[i].error = *error;
    }
}

void sources_ask(struct sources *sources, struct app *app, const struct shoal_payload_info *info, bool with_receivers)
{
    struct shoal_call call = app_call(app);
    struct shoal_error error;
    *sources = (struct sources){.count = 0};
    if (shoal_store_source_status(app->store, info->name, info->generation,
                                  with_receivers ? SHOAL_STATUS_RECEIVERS_MAX : 0, &call, &sources->infos,
                                  &sources->count, &error) != SHOAL_OK)
        not_asked(sources, info, &error);
    for (size_t i = 0; i < sources->count; i++)
        if (sources->infos[i].receiver_count > 0)
            qsort(sources->infos[i].receivers, sources->infos[i].receiver_count, sizeof *sources->infos[i].receivers,
                  receiver_compare);
}

static json_t *source_to_json(const struct shoal_source_status *info)
{
    json_t *object = json_pack("{s:o, s:o, s:b, s:s}", "name", json_text(info->source.name), "address",
                               json_text(info->source.address), "gold", (int)info->source.is_gold, "status",
                               shoal_status_name(info->error.status));
    if (!object)
        return NULL;
    if (info->error.status != SHOAL_OK) {
        json_object_set_new(object, "message", json_text(info->error.message));
        return object;
    }
    json_t *receivers = json_array();
    for (size_t i = 0; i < info->receiver_count; i++)
        json_array_append_new(receivers, receiver_to_json(&info->receivers[i]));
    json_object_set_new(object, "pieces_have", json_integer((json_int_t)info->pieces_have));
    json_object_set_new(object, "share_percent", json_integer(share_percent(info->pieces_have, info->pieces_total)));
    json_object_set_new(object, "bytes_served", json_integer((json_int_t)info->bytes_served));
    json_object_set_new(object, "starving", json_boolean(info->is_starving));
    json_object_set_new(object, "receivers_now", json_integer((json_int_t)info->receivers_now));
    json_object_set_new(object, "receivers_known", json_integer((json_int_t)info->receivers_known));
    json_object_set_new(object, "receivers", receivers);
    return object;
}

json_t *sources_to_json(const struct sources *sources)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sources->count; i++)
        json_array_append_new(list, source_to_json(&sources->infos[i]));
    return list;
}

static void print_source(const struct shoal_source_status *info, bool with_receivers)
{
    char name[320], address[320], size[UNITS_TEXT_BYTES], text[512];
    printf("  %-8s %s, reached at %s\n", info->source.is_gold ? "gold" : "replica",
           units_printable(info->source.name, name, sizeof name),
           units_printable(info->source.address, address, sizeof address));
    if (info->error.status != SHOAL_OK) {
        printf("           DOES NOT ANSWER: %s\n", units_printable(info->error.message, text, sizeof text));
        return;
    }
    printf("           has %u %%, gave %s, %u receiver%s now%s\n", share_percent(info->pieces_have, info->pieces_total),
           units_format_size(info->bytes_served, size), info->receivers_now, info->receivers_now == 1 ? "" : "s",
           info->is_starving ? ", waits for others" : "");
    if (!with_receivers)
        return;
    for (size_t i = 0; i < info->receiver_count; i++)
        printf("           to %s\n", receiver_to_text(&info->receivers[i], info->pieces_total, text, sizeof text));
    if (info->receivers_known > info->receiver_count)
        printf("           to %zu more\n", info->receivers_known - info->receiver_count);
}

void sources_print(const struct sources *sources, bool with_receivers)
{
    printf("sources     %zu\n", sources->count);
    for (size_t i = 0; i < sources->count; i++)
        print_source(&sources->infos[i], with_receivers);
}

void sources_release(struct sources *sources)
{
    shoal_source_statuses_free(sources->infos, sources->count);
    *sources = (struct sources){.count = 0};
}
