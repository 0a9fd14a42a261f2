/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "terminal.h"
#include "units.h"

#define SHOWN_SOURCES 4

void progress_init(struct progress *progress, const struct app *app, const char *name, const char *verb)
{
    bool is_json = app->settings.is_json;
    *progress = (struct progress){.app = app,
                                  .name = name,
                                  .verb = verb,
                                  .is_json = is_json,
                                  .is_live = !is_json && app->settings.verbosity >= 0 && terminal_is_live()};
}

static void remember_sources(struct progress *progress, const struct shoal_progress *now)
{
    if (now->source_count == 0)
        return;
    struct shoal_source_stats *sources = realloc(progress->sources, now->source_count * sizeof *sources);
    if (!sources)
        return; /* the display keeps what it had */
    memcpy(sources, now->sources, now->source_count * sizeof *sources);
    progress->sources = sources;
    progress->source_count = now->source_count;
}

static void update_rate(struct progress *progress, const struct shoal_progress *now)
{
    uint64_t span_ms = now->elapsed_ms - progress->last_ms;
    uint64_t bytes = now->done_bytes - now->reused_bytes; /* what was there already came at no rate */
    if (now->elapsed_ms <= progress->last_ms || bytes < progress->last_bytes)
        return;
    double rate = (double)(bytes - progress->last_bytes) * 1000.0 / (double)span_ms;
    /* Follows a change within about two seconds, however often it is called. */
    double weight = span_ms >= 2000 ? 1.0 : (double)span_ms / 2000.0;
    progress->rate_bps = progress->rate_bps == 0 ? rate : progress->rate_bps + weight * (rate - progress->rate_bps);
    progress->last_bytes = bytes;
    progress->last_ms = now->elapsed_ms;
}

int progress_compare_sources(const void *a, const void *b)
{
    const struct shoal_source_stats *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->name, y->name);
}

/* "  3 of 5 sources: NAME (gold) 1.2 GiB, NAME 800 MiB, 1 more": the largest givers; who gave nothing is only counted.
 */
static void list_sources(const struct shoal_progress *now, char *text, size_t size)
{
    struct shoal_source_stats *order = calloc((size_t)now->source_count + 1, sizeof *order);
    unsigned connected = 0, givers = 0;
    char of[32] = "";
    size_t used;
    for (uint32_t i = 0; i < now->source_count; i++) {
        connected += now->sources[i].is_connected != 0;
        if (order && now->sources[i].bytes > 0)
            order[givers++] = now->sources[i];
    }
    if (connected < now->source_count)
        snprintf(of, sizeof of, " of %u", now->source_count);
    used = (size_t)snprintf(text, size, "  %u%s source%s", connected, of, now->source_count == 1 ? "" : "s");
    if (givers > 0)
        qsort(order, givers, sizeof *order, progress_compare_sources);
    for (unsigned i = 0; i < givers && i < SHOWN_SOURCES && used < size; i++) {
        char name[96], given[UNITS_TEXT_BYTES];
        used += (size_t)snprintf(text + used, size - used, "%s %s%s %s", i ? "," : ":",
                                 units_printable(order[i].name, name, sizeof name), order[i].is_gold ? " (gold)" : "",
                                 units_format_size(order[i].bytes, given));
    }
    if (givers > SHOWN_SOURCES && used < size)
        snprintf(text + used, size - used, ", %u more", givers - SHOWN_SOURCES);
    free(order);
}

static void draw(const struct progress *progress, const struct shoal_progress *now)
{
    int width = terminal_width();
    char name[64], done[UNITS_TEXT_BYTES], total[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES], left[UNITS_TEXT_BYTES];
    char line[512], bar[64], sources[512], both[1100];
    const char *verb = now->is_checking ? "checking" : progress->verb;
    uint64_t done_bytes = now->is_checking ? now->checked_bytes : now->done_bytes;
    double share = now->total_bytes ? (double)done_bytes / (double)now->total_bytes : 1.0;

    int bar_width = width >= 100 ? 30 : width >= 80 ? 16 : 0, filled = (int)(share * bar_width);
    for (int i = 0; i < bar_width; i++)
        bar[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    bar[bar_width] = '\0';
    if (progress->rate_bps > 0)
        units_format_seconds((uint64_t)((double)(now->total_bytes - now->done_bytes) / progress->rate_bps + 0.5), left);
    else
        snprintf(left, sizeof left, "-:--");
    snprintf(line, sizeof line, "%s %s %3d%%%s%s%s %s of %s  %s  %s left", verb,
             units_printable(progress->name, name, sizeof name), (int)(share * 100), bar_width ? " [" : "", bar,
             bar_width ? "]" : "", units_format_size(done_bytes, done), units_format_size(now->total_bytes, total),
             units_format_rate(progress->rate_bps, rate), left);
    terminal_cut(line, sizeof line, width);
    if (!now->sources) {
        snprintf(both, sizeof both, "%s\n", line);
        terminal_draw(both, 1);
        return;
    }

    list_sources(now, sources, sizeof sources);
    terminal_cut(sources, sizeof sources, width);
    snprintf(both, sizeof both, "%s\n%s\n", line, sources);
    terminal_draw(both, 2);
}

static void print_json(const struct progress *progress, const struct shoal_progress *now)
{
    json_t *sources = json_array();
    for (uint32_t i = 0; i < now->source_count; i++) {
        const struct shoal_source_stats *source = &now->sources[i];
        json_array_append_new(sources, json_pack("{s:o, s:I, s:b, s:b, s:i, s:i}", "name", json_text(source->name),
                                                 "bytes", (json_int_t)source->bytes, "gold", (int)source->is_gold,
                                                 "connected", (int)source->is_connected, "bad_pieces",
                                                 (int)source->bad_pieces, "failures", (int)source->failures));
    }
    json_print(json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:o}", "event", "progress", "step",
                         now->is_checking ? "checking" : progress->verb, "name", json_text(progress->name),
                         "done_bytes", (json_int_t)now->done_bytes, "total_bytes", (json_int_t)now->total_bytes,
                         "reused_bytes", (json_int_t)now->reused_bytes, "elapsed_ms", (json_int_t)now->elapsed_ms,
                         "rate_bytes_per_s", progress->rate_bps, "sources", sources));
}

void progress_show(void *arg, const struct shoal_progress *now)
{
    struct progress *progress = arg;
    progress->done_bytes = now->done_bytes;
    progress->reused_bytes = now->reused_bytes;
    progress->checked_bytes = now->checked_bytes;
    progress->elapsed_ms = now->elapsed_ms;
    update_rate(progress, now);
    remember_sources(progress, now);
    if (progress->is_json)
        print_json(progress, now);
    else if (progress->is_live)
        draw(progress, now);
}

void progress_end(struct progress *progress)
{
    if (progress->is_live)
        terminal_clear();
}

void progress_release(struct progress *progress)
{
    free(progress->sources);
    progress->sources = NULL;
    progress->source_count = 0;
}
