/* SPDX-License-Identifier: Apache-2.0 */
/* What a node that serves shows until a signal comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/clock.h"
#include "receivers.h"
#include "terminal.h"
#include "units.h"

#define LOOK_MS 1000
#define SHOWN_RECEIVERS 4

struct serving {
    struct app *app;
    const char *name;
    bool is_live, is_first;
    struct shoal_served_info shown; /* what was said last */
    struct receiver_watch watch;
    double rate_bps; /* smoothed */
    uint64_t rate_bytes;
    int64_t rate_ns;
};

/* Receivers report about once a second what they have taken, so a single second says little. */
static void update_rate(struct serving *serving, const struct shoal_served_info *info)
{
    int64_t now_ns = clock_now_ns();
    double seconds = (double)(now_ns - serving->rate_ns) / 1e9;
    if (serving->rate_ns != 0 && seconds > 0 && info->bytes_served >= serving->rate_bytes) {
        double rate = (double)(info->bytes_served - serving->rate_bytes) / seconds;
        double weight = seconds >= 3 ? 1.0 : seconds / 3;
        serving->rate_bps = serving->rate_bps == 0 ? rate : serving->rate_bps + weight * (rate - serving->rate_bps);
        if (rate == 0 && info->receivers == 0)
            serving->rate_bps = 0;
    }
    serving->rate_bytes = info->bytes_served;
    serving->rate_ns = now_ns;
}

static void show_json(const struct serving *serving, const struct shoal_served_info *info)
{
    json_t *event = json_pack("{s:s, s:o, s:I, s:i, s:b, s:f}", "event", "serving", "name", json_text(info->name),
                              "bytes_served", (json_int_t)info->bytes_served, "receivers", (int)info->receivers,
                              "published", (int)info->is_published, "rate_bytes_per_s", serving->rate_bps);
    if (info->is_replaced)
        json_object_set_new(event, "replaced_by", json_text(info->replaced_by));
    json_print(event);
}

static void show_live(const struct serving *serving, const struct shoal_served_info *info,
                      struct shoal_receiver_info *receivers, size_t receiver_count)
{
    char given[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES], name[96], owner[96], line[512], second[1024] = "", both[1600];
    int width = terminal_width();
    size_t taking = 0, used = 0;
    snprintf(line, sizeof line, "serving %s: %s given, %s, %u receiver%s now%s%s",
             units_printable(info->name, name, sizeof name), units_format_size(info->bytes_served, given),
             units_format_rate(serving->rate_bps, rate), info->receivers, info->receivers == 1 ? "" : "s",
             info->is_published     ? ""
             : !info->is_replaced   ? ", NOT PUBLISHED"
             : info->replaced_by[0] ? ", REPLACED by "
                                    : ", REPLACED",
             info->is_replaced ? units_printable(info->replaced_by, owner, sizeof owner) : "");
    terminal_cut(line, sizeof line, width);
    while (taking < receiver_count && receivers[taking].state == SHOAL_RECEIVER_TAKING)
        taking++;
    if (taking > 0)
        qsort(receivers, taking, sizeof *receivers, receiver_compare);
    for (size_t i = 0; i < taking && i < SHOWN_RECEIVERS && used < sizeof second; i++)
        used += (size_t)snprintf(second + used, sizeof second - used, "%s %s %u %% %s", i ? "," : "  to",
                                 units_printable(receivers[i].name, name, sizeof name),
                                 share_percent(receivers[i].pieces_have, info->pieces_total),
                                 units_format_size(receivers[i].bytes, given));
    if (taking > SHOWN_RECEIVERS && used < sizeof second)
        snprintf(second + used, sizeof second - used, ", %zu more", taking - SHOWN_RECEIVERS);
    terminal_cut(second, sizeof second, width);
    snprintf(both, sizeof both, "%s\n%s%s", line, second, taking > 0 ? "\n" : "");
    terminal_draw(both, taking > 0 ? 2 : 1);
}

static bool is_changed(const struct serving *serving, const struct shoal_served_info *info)
{
    return serving->is_first || info->bytes_served != serving->shown.bytes_served ||
           info->receivers != serving->shown.receivers || info->is_published != serving->shown.is_published ||
           info->is_replaced != serving->shown.is_replaced;
}

static void tell_publication(const struct serving *serving, bool is_published)
{
    if (is_published)
        report_note(serving->app, "\"%s\" is published again", serving->name);
    else
        report_warning(serving->app,
                       "\"%s\" is not published now: the metadata service cannot be reached or the lease was lost; it "
                       "will be published again by itself",
                       serving->name);
}

static void show(struct serving *serving, const struct shoal_served_info *info)
{
    struct shoal_receiver_info *receivers = NULL;
    size_t count = 0;
    char given[UNITS_TEXT_BYTES];
    update_rate(serving, info);
    if (info->is_published != serving->shown.is_published && !info->is_replaced) /* the log tells that */
        tell_publication(serving, info->is_published);
    if (shoal_store_receivers(serving->app->store, serving->name, &receivers, &count, NULL) != SHOAL_OK)
        count = 0;
    receiver_watch_tell(&serving->watch, receivers, count, info->pieces_total);
    if (serving->is_live)
        show_live(serving, info, receivers, count);
    else if (is_changed(serving, info) && serving->app->settings.is_json)
        show_json(serving, info);
    else if (is_changed(serving, info) && serving->app->settings.verbosity > 0)
        report_note(serving->app, "\"%s\": %s given, %u receiver%s now%s%s", serving->name,
                    units_format_size(info->bytes_served, given), info->receivers, info->receivers == 1 ? "" : "s",
                    info->is_replaced ? ", replaced by " : "", info->is_replaced ? info->replaced_by : "");
    free(receivers);
    serving->shown = *info;
    serving->is_first = false;
}

void app_serve(struct app *app, const char *name, void (*check)(void *arg), void *check_arg)
{
    struct serving serving = {.app = app,
                              .name = name,
                              .is_live = terminal_is_live() && app->settings.verbosity >= 0 && !app->settings.is_json,
                              .is_first = true,
                              .shown = {.is_published = 1}};
    receiver_watch_init(&serving.watch, app, name);
    while (!signals_wait_ms(LOOK_MS)) {
        struct shoal_served_info *infos = NULL;
        size_t count = 0;
        if (check)
            check(check_arg);
        if (shoal_store_served(app->store, &infos, &count, NULL) != SHOAL_OK)
            continue;
        for (size_t i = 0; i < count; i++)
            if (strcmp(infos[i].name, name) == 0)
                show(&serving, &infos[i]);
        free(infos);
    }
    if (serving.is_live)
        terminal_clear();
    receiver_watch_release(&serving.watch);
}
