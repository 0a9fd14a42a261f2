/* SPDX-License-Identifier: Apache-2.0 */
/* --peer: who is there, over which transport it is reached and why not over a better one, how fast. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "doctor.h"
#include "greet.h"
#include "matrix_option.h"
#include "peer_probe.h"
#include "terminal.h"
#include "units.h"

#define CONNECT_TIMEOUT_MS 3000
#define PROGRESS_TIMEOUT_MS 5000 /* without a byte */
#define TRANSFER_MS 3000
#define PROBE_TIMEOUT_MS 30000

struct peer {
    const char *given;
    char name[HELLO_NAME_MAX_BYTES + 1], address[HOSTPORT_TEXT_BYTES];
    uint64_t instance; /* 0: not known */
    bool is_listed;    /* in the metadata service */
};

/* --- finding it --- */

static void take_peer(void *arg, const struct engine_peer_view *view)
{
    struct peer *peer = arg;
    snprintf(peer->name, sizeof peer->name, "%s", view->name);
    snprintf(peer->address, sizeof peer->address, "%s", view->address);
    peer->instance = view->instance;
    peer->is_listed = true;
}

/* By its server name; else as the address that it may be. false: told. */
static bool find_peer(struct doctor *doctor, struct shoal_engine *engine, struct peer *peer)
{
    struct shoal_segment *segment = NULL;
    struct shoal_error error;
    struct shoal_call call = app_call(doctor->app);
    struct hostport target;
    struct sockaddr_storage addr;
    socklen_t len;
    enum shoal_status status = SHOAL_NOT_FOUND;
    if (engine)
        status = shoal_segment_open(engine, peer->given, &call, &segment, &error);
    if (status == SHOAL_OK) { /* the only peer that this engine has */
        (void)engine_peers_visit(engine, take_peer, peer);
        shoal_segment_close(segment);
        return true;
    }
    if (status != SHOAL_NOT_FOUND) {
        doctor_tell(doctor, DOCTOR_FAIL, "peer", "see the lines about the metadata service", "%s", error.message);
        return false;
    }
    if (hostport_parse(&target, peer->given, &error) == SHOAL_OK && target.has_port && target.port) {
        if (hostport_resolve(target.host, target.port, &addr, &len, &error) == SHOAL_OK) {
            sockaddr_format((const struct sockaddr *)&addr, peer->address);
            return true;
        }
        doctor_tell(doctor, DOCTOR_FAIL, "peer", "correct the host's name, or give its address", "%s: %s", peer->given,
                    error.message);
        return false;
    }
    doctor_tell(doctor, DOCTOR_FAIL, "peer", "give its --name, as shoal stat shows it, or HOST:PORT",
                "%s: no live node has that name%s", peer->given,
                engine ? " in the metadata service" : ", as far as can be told without the metadata service");
    return false;
}

/* false: told. */
static bool greet(struct doctor *doctor, struct peer *peer)
{
    const char *cluster = doctor->app->settings.cluster;
    struct shoal_error error;
    struct hello hello;
    int64_t start_ns = clock_now_ns();
    int fd = greet_connect_to(peer->address, CONNECT_TIMEOUT_MS, &error);
    if (fd < 0) {
        doctor_tell(
            doctor, DOCTOR_FAIL, "peer",
            "see whether it runs, whether its --name is an address that this machine reaches, and the firewalls "
            "between the two",
            "%s at %s: %s", peer->given, peer->address, error.message);
        return false;
    }
    int64_t connected_ns = clock_now_ns();
    bool is_answered = greet_ask(fd, cluster, CONNECT_TIMEOUT_MS, &hello);
    int64_t end_ns = clock_now_ns();
    close(fd);
    if (!is_answered) {
        doctor_tell(doctor, DOCTOR_FAIL, "peer", "see which program has that port there, and whether it is stopped",
                    "%s: something accepts connections, but does not answer as a node does", peer->address);
        return false;
    }
    if (hello_judge_answer(&hello, peer->address, cluster, peer->instance, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_FAIL, "peer",
                    strcmp(hello.cluster, cluster) != 0 ? "give its --cluster, if it is the right node"
                                                        : "see which node has that address now",
                    "%s", error.message);
        return false;
    }
    if (!peer->is_listed)
        snprintf(peer->name, sizeof peer->name, "%s", hello.name);
    peer->instance = hello.instance;
    doctor_tell(doctor, DOCTOR_OK, "peer", NULL, "%s answers at %s: connected in %.2f ms, handshake in %.2f ms%s",
                hello.name, peer->address, (double)(connected_ns - start_ns) / 1e6,
                (double)(end_ns - connected_ns) / 1e6,
                peer->is_listed ? "" : " (not listed under that name in the metadata service)");
    doctor_add(doctor, "name", json_text(hello.name));
    doctor_add(doctor, "address", json_text(peer->address));
    doctor_add(doctor, "listed", json_boolean(peer->is_listed));
    doctor_add(doctor, "connect_us", json_integer((connected_ns - start_ns) / 1000));
    doctor_add(doctor, "handshake_us", json_integer((end_ns - connected_ns) / 1000));
    return true;
}

/* --- measuring --- */

struct display {
    const struct app *app;
    const char *name;
    bool is_live;
};

static void show_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes, double bytes_per_s)
{
    const struct display *display = arg;
    char line[512], name[160], done[UNITS_TEXT_BYTES], total[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES];
    if (display->app->settings.is_json) {
        json_print(json_pack("{s:s, s:s, s:o, s:I, s:I, s:f}", "event", "progress", "step", "measuring", "name",
                             json_text(display->name), "done_bytes", (json_int_t)done_bytes, "total_bytes",
                             (json_int_t)total_bytes, "rate_bytes_per_s", bytes_per_s));
    } else if (display->is_live) {
        snprintf(line, sizeof line, "reading from %s: %s of at most %s  %s",
                 units_printable(display->name, name, sizeof name), units_format_size(done_bytes, done),
                 units_format_size(total_bytes, total), units_format_rate(bytes_per_s, rate));
        terminal_cut(line, sizeof line, terminal_width());
        strncat(line, "\n", sizeof line - strlen(line) - 1);
        terminal_draw(line, 1);
    }
}

/* One that does not reach other hosts is no loss. */
static bool is_loss(const char *refusal)
{
    return refusal && strcmp(refusal, "out of reach") != 0;
}

static void tell_path(struct doctor *doctor, const struct peer_probe_result *result)
{
    char others[900] = "";
    size_t used = 0;
    bool has_loss = false;
    json_t *list = json_array();
    for (unsigned i = 0; i < result->path.count; i++) {
        const char *refusal = result->path.others[i].refusal, *text = result->path.others[i].text;
        has_loss |= is_loss(refusal);
        json_array_append_new(list, json_pack("{s:s, s:s?, s:o}", "transport", result->path.others[i].transport,
                                              "reason", refusal, "text", json_text(text)));
        if (used < sizeof others)
            used += (size_t)snprintf(others + used, sizeof others - used, "; not over %s: %s%s%s%s",
                                     result->path.others[i].transport, refusal ? refusal : "not for these requests",
                                     text[0] ? " (" : "", text, text[0] ? ")" : "");
    }
    doctor_tell(doctor, has_loss ? DOCTOR_WARN : DOCTOR_OK, "peer path",
                has_loss ? "see the lines \"same host\" and \"rdma\" here and on that machine" : NULL, "over %s%s",
                result->path.transport ? result->path.transport : "no transport", others);
    doctor_add(doctor, "transport", result->path.transport ? json_string(result->path.transport) : json_null());
    doctor_add(doctor, "better", list);
}

static void tell_result(struct doctor *doctor, const struct peer_probe_result *result)
{
    char size[UNITS_TEXT_BYTES], rate[UNITS_TEXT_BYTES];
    if (result->call_us) {
        doctor_tell(doctor, DOCTOR_OK, "peer call", NULL, "a control call takes %.2f ms there and back (version %s)",
                    (double)result->call_us / 1000, result->version);
        doctor_add(doctor, "call_us", json_integer(result->call_us));
        doctor_add(doctor, "version", json_text(result->version));
    }
    if (result->has_path)
        tell_path(doctor, result);
    if (result->read_us) {
        doctor_tell(doctor, DOCTOR_OK, "peer read", NULL, "a READ of 4 KiB takes %.2f ms",
                    (double)result->read_us / 1000);
        doctor_add(doctor, "read_us", json_integer(result->read_us));
    }
    if (result->bytes && result->elapsed_us) {
        double bytes_per_s = (double)result->bytes * 1e6 / (double)result->elapsed_us;
        doctor_tell(doctor, DOCTOR_OK, "peer rate", NULL, "%s in %.2f s: %s", units_format_size(result->bytes, size),
                    (double)result->elapsed_us / 1e6, units_format_rate(bytes_per_s, rate));
        doctor_add(doctor, "bytes", json_integer((json_int_t)result->bytes));
        doctor_add(doctor, "rate_bytes_per_s", json_integer((json_int_t)bytes_per_s));
    }
}

static void measure(struct doctor *doctor, struct shoal_engine *engine, const struct peer *peer)
{
    struct app *app = doctor->app;
    struct display display = {app, peer->name,
                              !app->settings.is_json && app->settings.verbosity >= 0 && terminal_is_live()};
    struct shoal_call call = app_call(app);
    struct peer_probe_config config = {
        .engine = engine,
        .name = peer->name,
        .address = peer->address,
        .instance = peer->instance,
        .bytes = app->settings.probe_bytes,
        .transfer_ms = TRANSFER_MS,
        .timeout_ms = call.timeout_ms > 0 && call.timeout_ms < PROBE_TIMEOUT_MS ? call.timeout_ms : PROBE_TIMEOUT_MS,
        .cancel = app->cancel,
        .progress = show_progress,
        .progress_arg = &display};
    struct peer_probe_result result;
    struct shoal_error error;
    enum shoal_status status = peer_probe_run(&config, &result, &error);
    if (display.is_live)
        terminal_clear();
    tell_result(doctor, &result);
    if (status == SHOAL_OK)
        return;
    if (status == SHOAL_UNSUPPORTED)
        doctor_tell(doctor, DOCTOR_SKIP, "peer rate", NULL, "%s is of a version that offers nothing to measure with",
                    peer->name);
    else if (status == SHOAL_CANCELED)
        doctor_tell(doctor, DOCTOR_SKIP, "peer rate", NULL, "interrupted");
    else
        doctor_tell(doctor, DOCTOR_FAIL, "peer rate",
                    status == SHOAL_CORRUPTED
                        ? "look at that machine's memory and network (ethtool -S), and at this one's"
                        : "see whether that node is stopped or overloaded, and the network between",
                    "%s: %s", peer->name, error.message);
}

void doctor_check_peer(struct doctor *doctor)
{
    const struct settings *settings = &doctor->app->settings;
    struct peer peer = {.given = settings->peer};
    struct shoal_engine *engine = NULL;
    struct shoal_error error;
    struct hostport host;
    char name[HOSTPORT_TEXT_BYTES], *matrix = NULL;
    if (!settings->peer)
        return;
    bool has_host = hostport_parse(&host, settings->name, &error) == SHOAL_OK;
    if (doctor->has_metadata && has_host &&
        matrix_option_read(settings->nic_priority_matrix, &matrix, &error) == SHOAL_OK) {
        hostport_format(host.host, 0, name);
        struct shoal_engine_config config = {.struct_size = sizeof config,
                                             .metadata_uri = doctor->app->metadata_uri,
                                             .server_name = name,
                                             .cluster = settings->cluster,
                                             .connect_timeout_ms = CONNECT_TIMEOUT_MS,
                                             .progress_timeout_ms = PROGRESS_TIMEOUT_MS,
                                             .protocol = settings->protocol,
                                             .nic_priority_matrix = matrix};
        struct shoal_call call = app_call(doctor->app);
        if (shoal_engine_create(&config, &call, &engine, &error) != SHOAL_OK)
            engine = NULL;
        free(matrix);
    }
    if (find_peer(doctor, engine, &peer) && greet(doctor, &peer)) {
        if (engine)
            measure(doctor, engine, &peer);
        else
            doctor_tell(doctor, DOCTOR_SKIP, "peer rate", NULL, "this machine cannot join the cluster: %s",
                        doctor->has_metadata ? error.message : "no metadata service");
    }
    shoal_engine_destroy(engine);
}
