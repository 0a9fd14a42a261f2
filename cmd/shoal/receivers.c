/* SPDX-License-Identifier: Apache-2.0 */
#include "receivers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "units.h"

#define LINES_AT_ONCE 20    /* on a terminal or in a log */
#define EVENTS_AT_ONCE 200  /* for a program */
#define SUMMED_RECEIVERS 50 /* lines of the summary; --json has all */

/* What was said of a receiver. Not told: nothing yet. */
struct told {
    bool has_joined;
    enum shoal_receiver_state state;
};

unsigned share_percent(uint64_t have, uint64_t total)
{
    unsigned percent = have < total ? (unsigned)((double)have * 100.0 / (double)total) : 100;
    return have < total && percent > 99 ? 99 : percent;
}

static const char *state_name(enum shoal_receiver_state state)
{
    return state == SHOAL_RECEIVER_TAKING ? "taking" : state == SHOAL_RECEIVER_DONE ? "done" : "left";
}

json_t *receiver_to_json(const struct shoal_receiver_info *info)
{
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:o, s:o}", "name", json_text(info->name), "state",
                     state_name(info->state), "bytes", (json_int_t)info->bytes, "pieces_have",
                     (json_int_t)info->pieces_have, "silent_ms", (json_int_t)info->silent_ms, "transport",
                     json_text(info->transport), "left_transports", json_text(info->left_transports));
}

const char *transport_to_text(const char *transport, const char *left_transports, char *to, size_t size)
{
    char shown[SHOAL_TRANSPORT_NAME_BYTES], reasons[SHOAL_TRANSPORT_REASONS_BYTES];
    to[0] = '\0';
    if (transport[0])
        snprintf(to, size, " over %s%s%s%s", units_printable(transport, shown, sizeof shown),
                 left_transports[0] ? " (not " : "", units_printable(left_transports, reasons, sizeof reasons),
                 left_transports[0] ? ")" : "");
    return to;
}

const char *receiver_to_text(const struct shoal_receiver_info *info, uint64_t piece_count, char *to, size_t size)
{
    char name[320], bytes[UNITS_TEXT_BYTES], state[64], way[160];
    unsigned percent = share_percent(info->pieces_have, piece_count);
    if (info->state == SHOAL_RECEIVER_TAKING)
        snprintf(state, sizeof state, "takes, has %u %%", percent);
    else if (info->state == SHOAL_RECEIVER_DONE)
        snprintf(state, sizeof state, "done");
    else
        snprintf(state, sizeof state, "left, had %u %%", percent);
    snprintf(to, size, "%s: %s%s, %s", units_printable(info->name, name, sizeof name),
             units_format_size(info->bytes, bytes),
             transport_to_text(info->transport, info->left_transports, way, sizeof way), state);
    return to;
}

int receiver_compare(const void *a, const void *b)
{
    const struct shoal_receiver_info *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->name, y->name);
}

/* --- changes --- */

void receiver_watch_init(struct receiver_watch *watch, const struct app *app, const char *name)
{
    *watch = (struct receiver_watch){.app = app, .name = name};
    map_init(&watch->told);
}

static void release_told(struct map *map)
{
    const struct map_entry *position = NULL;
    void *told;
    while ((told = map_next(map, &position, NULL, NULL)))
        free(told);
    map_release(map);
}

void receiver_watch_release(struct receiver_watch *watch)
{
    release_told(&watch->told);
}

static void tell(const struct receiver_watch *watch, const struct shoal_receiver_info *info, const char *what,
                 uint64_t piece_count)
{
    char text[512], name[320];
    if (watch->app->settings.is_json)
        json_print(json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I}", "event", "receiver", "payload",
                             json_text(watch->name), "name", json_text(info->name), "state", what, "bytes",
                             (json_int_t)info->bytes, "pieces_have", (json_int_t)info->pieces_have, "pieces",
                             (json_int_t)piece_count));
    else if (strcmp(what, "joined") == 0)
        report_note(watch->app, "receiver %s: joined", units_printable(info->name, name, sizeof name));
    else
        report_note(watch->app, "receiver %s", receiver_to_text(info, piece_count, text, sizeof text));
}

/* How many events it took. */
static unsigned tell_change(const struct receiver_watch *watch, const struct shoal_receiver_info *info,
                            struct told *told, uint64_t piece_count)
{
    unsigned count = 0;
    /* Whoever came and went between two looks has joined as well. */
    if (!told->has_joined || (told->state != SHOAL_RECEIVER_TAKING && info->state == SHOAL_RECEIVER_TAKING)) {
        tell(watch, info, "joined", piece_count);
        count++;
        told->state = SHOAL_RECEIVER_TAKING;
    }
    told->has_joined = true;
    if (told->state != info->state) {
        tell(watch, info, state_name(info->state), piece_count);
        count++;
    }
    told->state = info->state;
    return count;
}

/* Forgets those that the node has forgotten. */
static void prune(struct receiver_watch *watch, const struct shoal_receiver_info *infos, size_t count)
{
    struct map kept;
    map_init(&kept);
    for (size_t i = 0; i < count; i++) {
        struct told *told = map_remove_str(&watch->told, infos[i].name);
        if (told && !map_put_str(&kept, infos[i].name, told))
            free(told); /* it is told again */
    }
    release_told(&watch->told);
    watch->told = kept;
}

void receiver_watch_tell(struct receiver_watch *watch, const struct shoal_receiver_info *infos, size_t count,
                         uint64_t piece_count)
{
    const struct settings *settings = &watch->app->settings;
    unsigned left = settings->is_json ? EVENTS_AT_ONCE : LINES_AT_ONCE;
    if (!settings->is_json && settings->verbosity < 1)
        return;
    for (size_t i = count; i-- > 0 && left > 0;) { /* the one that left first is last in the list */
        struct told *told = map_get_str(&watch->told, infos[i].name);
        if (!told) {
            told = calloc(1, sizeof *told);
            if (!told || !map_put_str(&watch->told, infos[i].name, told)) {
                free(told);
                return;
            }
        }
        unsigned used = tell_change(watch, &infos[i], told, piece_count);
        left -= used < left ? used : left;
    }
    if (watch->told.count > count)
        prune(watch, infos, count);
}

/* --- the account at the end --- */

void receiver_account_take(struct receiver_account *account, struct app *app, const char *name)
{
    struct shoal_served_info *served = NULL;
    size_t count = 0;
    *account = (struct receiver_account){.bytes_served = 0};
    if (shoal_store_served(app->store, &served, &count, NULL) == SHOAL_OK) {
        for (size_t i = 0; i < count; i++) {
            if (strcmp(served[i].name, name) == 0) {
                account->bytes_served = served[i].bytes_served;
                account->piece_count = served[i].pieces_total;
            }
        }
        free(served);
    }
    if (shoal_store_receivers(app->store, name, &account->infos, &account->count, NULL) != SHOAL_OK)
        account->count = 0;
    if (account->count > 0)
        qsort(account->infos, account->count, sizeof *account->infos, receiver_compare);
}

json_t *receiver_account_to_json(const struct receiver_account *account)
{
    json_t *list = json_array();
    for (size_t i = 0; i < account->count; i++)
        json_array_append_new(list, receiver_to_json(&account->infos[i]));
    return list;
}

void receiver_account_print(const struct receiver_account *account, const char *name)
{
    char size[UNITS_TEXT_BYTES], shown[SHOAL_NAME_MAX_BYTES + 1], text[512];
    uint64_t told_bytes = 0;
    size_t told = account->count < SUMMED_RECEIVERS ? account->count : SUMMED_RECEIVERS;
    printf("withdrew %s: %s given to others\n", units_printable(name, shown, sizeof shown),
           units_format_size(account->bytes_served, size));
    for (size_t i = 0; i < told; i++) {
        printf("  to %s\n", receiver_to_text(&account->infos[i], account->piece_count, text, sizeof text));
        told_bytes += account->infos[i].bytes;
    }
    if (account->count > told)
        printf("  to %zu more: %s\n", account->count - told,
               units_format_size(account->bytes_served > told_bytes ? account->bytes_served - told_bytes : 0, size));
}

void receiver_account_release(struct receiver_account *account)
{
    free(account->infos);
    *account = (struct receiver_account){.bytes_served = 0};
}
