/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "app.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "matrix_option.h"
#include "meta/default_uri.h"

enum shoal_status runtime_metadata_uri(char **uri_out, struct shoal_error *error)
{
    struct shoal_error why;
    enum shoal_status status = meta_default_uri(uri_out, &why);

    if (status == SHOAL_OK || status == SHOAL_NO_MEMORY)
        return status == SHOAL_OK ? status : error_copy(error, &why);
    return error_set(error, status, why.sys_errno, "%.480s; give --metadata URI", why.message);
}

struct shoal_call app_call(const struct app *app)
{
    struct shoal_call call = {.struct_size = sizeof call, .cancel = app->cancel};
    if (app->settings.timeout_ms < 0) {
        call.timeout_ms = -1;
    } else if (app->deadline_ms != DEADLINE_NONE) {
        int64_t left_ms = deadline_left_ms(app->deadline_ms);
        call.timeout_ms = left_ms > 0 ? left_ms : 1;
    }
    return call;
}

enum shoal_status app_open_store(struct app *app, bool any_port, struct shoal_error *error)
{
    struct hostport address;
    char any[HOSTPORT_TEXT_BYTES];
    const char *name = app->settings.name;
    enum shoal_status status = hostport_parse(&address, name, error);
    if (status != SHOAL_OK)
        return status;
    if (any_port) {
        hostport_format(address.host, 0, any);
        name = any;
    }
    struct shoal_store_config config = {.struct_size = sizeof config,
                                        .metadata_uri = app->metadata_uri,
                                        .server_name = name,
                                        .cluster = app->settings.cluster,
                                        .upload_limit_bytes_per_s = app->settings.upload_limit,
                                        .download_limit_bytes_per_s = app->settings.download_limit,
                                        .upload_slots = (unsigned)app->settings.upload_slots,
                                        .io_threads = (unsigned)app->settings.io_threads,
                                        .protocol = app->settings.protocol};
    struct shoal_call call = app_call(app);
    char *matrix;
    status = matrix_option_read(app->settings.nic_priority_matrix, &matrix, error);
    config.nic_priority_matrix = matrix;
    if (status == SHOAL_OK)
        status = shoal_store_create(&config, &call, &app->store, error);
    free(matrix);
    return status;
}

enum shoal_status app_open_admin(struct app *app, struct shoal_error *error)
{
    if (!app->settings.metrics)
        return SHOAL_OK;
    enum shoal_status status = admin_open(app->settings.metrics, "not published\n", &app->admin, error);
    if (status != SHOAL_OK)
        return status;
    const char *address = admin_address(app->admin);
    if (app->settings.is_json)
        json_print(json_pack("{s:s, s:s, s:b}", "event", "metrics", "address", address, "exposed",
                             (int)admin_is_exposed(app->admin)));
    report_note(app, "metrics at http://%s/metrics%s", address,
                admin_is_exposed(app->admin) ? ": whoever reaches this address can read them" : "");
    return SHOAL_OK;
}

static char *store_metrics(void *arg)
{
    const struct app *app = arg;
    return shoal_store_metrics(app->store);
}

/* Whether the node answers at all, and whether the payload is published. */
static bool look_at_store(void *arg, bool *is_ready_out)
{
    const struct app *app = arg;
    struct shoal_served_info *infos = NULL;
    size_t count = 0;
    *is_ready_out = false;
    if (shoal_store_served(app->store, &infos, &count, NULL) != SHOAL_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(infos[i].name, app->served_name) == 0)
            *is_ready_out = infos[i].is_published != 0;
    free(infos);
    return true;
}

void app_show_store(struct app *app, const char *name)
{
    static const struct admin_source source = {.metrics = store_metrics, .look = look_at_store};
    app->served_name = name;
    if (app->admin)
        admin_set_source(app->admin, &source, app);
}

void app_close_store(struct app *app)
{
    admin_close(app->admin); /* it asks the store */
    app->admin = NULL;
    shoal_store_close(app->store, NULL);
    app->store = NULL;
}

enum shoal_status app_find_payload(struct app *app, const char *name, struct shoal_payload_info **info_out,
                                   struct shoal_error *error)
{
    int delay_ms = 100;
    bool was_missing = false;
    for (;;) {
        struct shoal_call call = app_call(app);
        enum shoal_status status = shoal_store_stat(app->store, name, &call, info_out, error);
        if (status == SHOAL_TIMED_OUT && was_missing) {
            error_prefix(error, "it did not appear in time"); /* the last question was cut off by the deadline */
            return status;
        }
        if (status != SHOAL_PAYLOAD_NOT_FOUND || !app->settings.waits)
            return status;
        if (deadline_is_past(app->deadline_ms))
            return error_set(error, SHOAL_TIMED_OUT, 0, "it did not appear in time");
        if (!was_missing && !app->settings.is_json)
            report_note(app, "waiting for \"%s\" to appear", name);
        was_missing = true;
        int64_t left_ms = deadline_left_ms(app->deadline_ms);
        if (signals_wait_ms(left_ms < delay_ms ? (int)left_ms : delay_ms))
            return error_set(error, SHOAL_CANCELED, 0, "interrupted while waiting for it");
        delay_ms = delay_ms < 1000 ? delay_ms * 2 : 1000;
    }
}

enum shoal_status runtime_check_map_count(size_t needed, struct shoal_error *error)
{
    /* The program itself, its threads and the store need some. */
    const size_t reserve = 2000;
    static unsigned long limit;
    if (limit == 0) {
        FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
        if (!file || fscanf(file, "%lu", &limit) != 1)
            limit = 65530; /* Linux's default */
        if (file)
            fclose(file);
    }
    if (needed + reserve > limit)
        return error_set(error, SHOAL_LIMIT, 0,
                         "%zu files need a memory map each, vm.max_map_count allows %lu: pack them into archives, or "
                         "raise it with: sysctl -w vm.max_map_count=%zu",
                         needed, limit, needed + 2 * reserve);
    return SHOAL_OK;
}
