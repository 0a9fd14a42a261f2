/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices UCX uses: the NIC priority matrix, checked against what this machine has, and one context of UCX for
 * each set of devices; counters as Prometheus text. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/ucx_internal.h"

#define LOG_MODULE "ucx"
#define RDMA_CLASS "/sys/class/infiniband"
#define NET_CLASS "/sys/class/net"
#define RDMA_TLS "ib"
#define DEVICE_TLS "^sm" /* no shared memory: where devices are named, they carry the bytes */
#define DEVICES_MAX 256
#define SET_RETRY_MS 10000

/* UCX copies through segments of 8 KiB, each a system call and, for a put, an acknowledgement. Larger ones carry two to
 * three times as much (docs/performance.md). A receiver takes no larger segment than its own: sender and receiver must
 * have the same sizes, so what the environment says about them does not count, and other sizes need another magic of
 * the channel. Whatever this version of UCX has no such option for is ignored by it. */
static const struct {
    const char *name, *value;
} segments[] = {
    {"TX_SEG_SIZE", "128k"},     {"RX_SEG_SIZE", "512k"},     /* TCP, as UCX 1.13 names them */
    {"TCP_TX_SEG_SIZE", "128k"}, {"TCP_RX_SEG_SIZE", "512k"}, /* and later ones */
    {"MM_SEG_SIZE", "32k"},      {"MM_RX_BUFS_GROW", "80"},   /* shared memory: a queue of 64, and a few to spare */
};

/* --- what is there --- */

struct device_names {
    char *names[DEVICES_MAX]; /* owned */
    size_t count;
};

static void names_release(struct device_names *devices)
{
    for (size_t i = 0; i < devices->count; i++)
        free(devices->names[i]);
}

static void names_add_folder(struct device_names *devices, const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    while (folder && devices->count < DEVICES_MAX && (entry = readdir(folder))) {
        char *name = entry->d_name[0] == '.' ? NULL : strdup(entry->d_name);

        if (name)
            devices->names[devices->count++] = name;
    }
    if (folder)
        closedir(folder);
}

enum shoal_status ucx_sets_check(struct ucx *ucx, struct shoal_error *error)
{
    bool is_rdma = strcmp(ucx->name, "rdma") == 0;
    struct device_names present = {.count = 0};
    enum shoal_status status = SHOAL_OK;

    names_add_folder(&present, RDMA_CLASS);
    if (is_rdma && present.count == 0 && (!ucx->matrix || nic_matrix_is_empty(ucx->matrix)))
        status = error_set(error, SHOAL_UNSUPPORTED, 0, "this machine has no RDMA device (%s is empty)", RDMA_CLASS);
    if (!is_rdma)
        names_add_folder(&present, NET_CLASS);
    if (status == SHOAL_OK && ucx->matrix)
        status = nic_matrix_check_present(ucx->matrix, is_rdma ? "RDMA device" : "device",
                                          (const char *const *)present.names, present.count, error);
    names_release(&present);
    for (size_t i = 0; status == SHOAL_OK && ucx->matrix && i < nic_matrix_row_count(ucx->matrix); i++)
        ucx->has_fallback |= nic_matrix_row(ucx->matrix, i)->fallback.count > 0;
    return status;
}

/* The first port of an RDMA device that is up, as UCX names it: "mlx5_0:1". */
static int rdma_port(const char *device)
{
    for (int port = 1; port <= 2; port++) {
        char path[256], text[32] = "";
        FILE *file;

        snprintf(path, sizeof path, RDMA_CLASS "/%s/ports/%d/state", device, port);
        file = fopen(path, "re");
        if (!file)
            continue;
        if (!fgets(text, sizeof text, file))
            text[0] = '\0';
        fclose(file);
        if (strstr(text, "ACTIVE"))
            return port;
    }
    return 0;
}

/* --- sets --- */

static enum shoal_status list_format(const struct nic_list *list, char text[UCX_SET_TEXT_BYTES],
                                     struct shoal_error *error)
{
    size_t used = 0;

    for (size_t i = 0; i < list->count; i++) {
        int len = snprintf(text + used, UCX_SET_TEXT_BYTES - used, "%s%s", i ? "," : "", list->names[i]);

        if (len < 0 || (size_t)len >= UCX_SET_TEXT_BYTES - used)
            return error_set(error, SHOAL_LIMIT, 0, "%zu devices for one location are too many", list->count);
        used += (size_t)len;
    }
    return SHOAL_OK;
}

enum shoal_status ucx_set_choose(struct ucx *ucx, const char *location, bool is_fallback, unsigned *set_out,
                                 struct shoal_error *error)
{
    char text[UCX_SET_TEXT_BYTES] = "";
    struct location where;
    unsigned count = ucx->set_count;

    if (ucx->matrix && !nic_matrix_is_empty(ucx->matrix)) {
        const struct nic_row *row;
        enum shoal_status status = location_parse(location, &where, error);

        if (status != SHOAL_OK)
            return status;
        row = nic_matrix_choose(ucx->matrix, &where);
        status = list_format(is_fallback && row->fallback.count > 0 ? &row->fallback : &row->preferred, text, error);
        if (status != SHOAL_OK)
            return status;
    }
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(ucx->sets[i].devices, text) == 0) {
            *set_out = i;
            return SHOAL_OK;
        }
    }
    if (count == UCX_SETS_MAX)
        return error_set(error, SHOAL_LIMIT, 0, "more than %d different sets of devices", UCX_SETS_MAX);
    memcpy(ucx->sets[count].devices, text, strlen(text) + 1);
    __atomic_store_n(&ucx->set_count, count + 1, __ATOMIC_RELEASE); /* pairs with the load in ucx_metrics */
    *set_out = count;
    return SHOAL_OK;
}

/* Device names as UCX wants them. */
static void ucx_names(const struct ucx_set *set, char text[UCX_SET_TEXT_BYTES + 256])
{
    char copy[UCX_SET_TEXT_BYTES], *rest = copy, *name;
    size_t used = 0;

    memcpy(copy, set->devices, strlen(set->devices) + 1);
    text[0] = '\0';
    while ((name = strsep(&rest, ",")) && used < UCX_SET_TEXT_BYTES) {
        int port = rdma_port(name);
        char suffix[16] = "";

        if (port > 0)
            snprintf(suffix, sizeof suffix, ":%d", port);
        used += (size_t)snprintf(text + used, UCX_SET_TEXT_BYTES + 256 - used, "%s%s%s", used ? "," : "", name, suffix);
    }
}

enum shoal_status ucx_set_open(struct ucx *ucx, unsigned index, struct shoal_error *error)
{
    struct ucx_set *set = &ucx->sets[index];
    const struct ucx_lib *lib = ucx->lib;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .mt_workers_shared = 1}; /* memory is mapped by other threads */
    const char *tls = ucx->tls;
    char names[UCX_SET_TEXT_BYTES + 256];
    ucp_config_t *config;
    ucs_status_t status;

    if (set->context)
        return SHOAL_OK;
    if (set->retry_ms > clock_now_ms())
        return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX could not use the devices '%s' lately", set->devices);
    status = lib->config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        if (!tls && !getenv("UCX_TLS"))
            tls = strcmp(ucx->name, "rdma") == 0 ? RDMA_TLS : ucx->matrix ? DEVICE_TLS : NULL;
        if (tls)
            status = lib->config_modify(config, "TLS", tls);
        for (size_t i = 0; status == UCS_OK && i < sizeof segments / sizeof segments[0]; i++)
            status = lib->config_modify(config, segments[i].name, segments[i].value);
        if (status == UCS_OK && set->devices[0]) {
            ucx_names(set, names);
            status = lib->config_modify(config, "NET_DEVICES", names);
        }
        if (status == UCS_OK)
            status = lib->init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &set->context);
        lib->config_release(config);
    }
    if (status != UCS_OK) {
        set->context = NULL;
        set->retry_ms = clock_now_ms() + SET_RETRY_MS;
        ucx_count(&set->failures, 1);
        return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX finds nothing to run over%s%s%s%s%s: %s",
                         set->devices[0] ? " devices '" : "", set->devices, set->devices[0] ? "'" : "",
                         tls ? " with transports " : "", tls ? tls : "", lib->status_string(status));
    }
    LOG_INFO("UCX runs over %s%s%s", set->devices[0] ? set->devices : "all devices", tls ? ", transports " : "",
             tls ? tls : "");
    return SHOAL_OK;
}

void ucx_sets_release(struct ucx *ucx)
{
    for (unsigned i = 0; i < ucx->set_count; i++) {
        if (ucx->sets[i].context)
            ucx->lib->cleanup(ucx->sets[i].context);
        ucx->sets[i].context = NULL;
    }
}

/* --- metrics --- */

struct metric {
    const char *name, *labels, *kind, *help; /* kind NULL: same family as the row before */
    const uint64_t *value;
};

static bool append_sets(struct ucx *ucx, struct buf *out)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"device_bytes_total", "counter", "Bytes of own requests by the devices that carried them."},
        {"device_inflight_bytes", "gauge", "Bytes under way by the devices that carry them."},
        {"device_failures_total", "counter", "Links that broke or could not be made by their devices."},
    };
    unsigned count = __atomic_load_n(&ucx->set_count, __ATOMIC_ACQUIRE);

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        if (!buf_append_format(out, "# HELP shoal_transport_%s_%s %s\n# TYPE shoal_transport_%s_%s %s\n", ucx->name,
                               families[f].name, families[f].help, ucx->name, families[f].name, families[f].kind))
            return false;
        for (unsigned i = 0; i < count; i++) {
            const struct ucx_set *set = &ucx->sets[i];
            const struct {
                const char *extra;
                const uint64_t *value;
            } rows[] = {
                {",direction=\"read\"", f == 0 ? &set->read_bytes : NULL},
                {",direction=\"write\"", f == 0 ? &set->write_bytes : NULL},
                {"", f == 1   ? &set->inflight_bytes
                     : f == 2 ? &set->failures
                              : NULL},
            };

            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
                if (rows[r].value &&
                    !buf_append_format(out, "shoal_transport_%s_%s{devices=\"%s\"%s} %" PRIu64 "\n", ucx->name,
                                       families[f].name, set->devices[0] ? set->devices : "all", rows[r].extra,
                                       __atomic_load_n(rows[r].value, __ATOMIC_RELAXED)))
                    return false;
        }
    }
    return true;
}

bool ucx_metrics(struct transport *transport, struct buf *out)
{
    struct ucx *ucx = (struct ucx *)transport;
    const struct ucx_counters *c = &ucx->counters;
    const struct metric rows[] = {
        {"requests_total", "{op=\"read\",outcome=\"ok\"}", "counter", "Requests that ended.", &c->reads},
        {"requests_total", "{op=\"write\",outcome=\"ok\"}", NULL, NULL, &c->writes},
        {"requests_total", "{outcome=\"canceled\"}", NULL, NULL, &c->canceled},
        {"requests_total", "{outcome=\"timed_out\"}", NULL, NULL, &c->timed_out},
        {"requests_total", "{outcome=\"unreachable\"}", NULL, NULL, &c->unreachable},
        {"requests_total", "{outcome=\"refused\"}", NULL, NULL, &c->refused},
        {"requests_total", "{outcome=\"failed\"}", NULL, NULL, &c->failed},
        {"bytes_total", "{op=\"read\"}", "counter", "Bytes of requests that ended well.", &c->read_bytes},
        {"bytes_total", "{op=\"write\"}", NULL, NULL, &c->write_bytes},
        {"retries_total", "", "counter", "Requests repeated on a new connection.", &c->retries},
        {"failovers_total", "", "counter", "Times that fallback devices took over for a peer.", &c->failovers},
        {"pauses_total", "", "counter", "Times that a worker waited for room in a peer's queue.", &c->pauses},
        {"grants_total", "", "counter", "Remote keys given to peers.", &c->grants},
        {"grant_refusals_total", "", "counter", "Questions of peers for memory that were refused.", &c->grant_refusals},
        {"revocations_total", "", "counter", "Remote keys that were asked back.", &c->revocations},
        {"revoke_timeouts_total", "", "counter", "Connections closed because a key did not come back in time.",
         &c->revoke_timeouts},
        {"protocol_errors_total", "", "counter", "Connections closed for malformed or unexpected frames.",
         &c->protocol_errors},
        {"connections", "{side=\"client\"}", "gauge", "Open connections.", &c->conns},
        {"connections", "{side=\"server\"}", NULL, NULL, &c->servings},
        {"links", "{side=\"client\"}", "gauge", "Open endpoints of UCX.", &c->links},
        {"links", "{side=\"server\"}", NULL, NULL, &c->serving_links},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].kind &&
            !buf_append_format(out, "# HELP shoal_transport_%s_%s %s\n# TYPE shoal_transport_%s_%s %s\n", ucx->name,
                               rows[i].name, rows[i].help, ucx->name, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_transport_%s_%s%s %" PRIu64 "\n", ucx->name, rows[i].name, rows[i].labels,
                               __atomic_load_n(rows[i].value, __ATOMIC_RELAXED)))
            return false;
    }
    return append_sets(ucx, out);
}
