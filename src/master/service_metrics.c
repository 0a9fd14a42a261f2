/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as Prometheus text. */
#include <inttypes.h>

#include "base/clock.h"
#include "master/service_internal.h"

struct metric {
    const char *name, *labels, *kind, *help; /* kind NULL: same family as the row before */
    uint64_t value;
};

static bool append(struct buf *out, const struct metric *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind && !buf_append_format(out, "# HELP shoal_master_%s %s\n# TYPE shoal_master_%s %s\n",
                                               rows[i].name, rows[i].help, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_master_%s%s %" PRIu64 "\n", rows[i].name, rows[i].labels, rows[i].value))
            return false;
    }
    return true;
}

struct totals {
    uint64_t capacity_bytes, used_bytes, waiting_drops;
};

static struct totals add_up(const struct master_service *service)
{
    struct totals totals = {0};
    uint32_t position = 0;
    const struct client *client;

    while ((client = registry_next(service->registry, &position))) {
        for (size_t i = 0; i < client->tier_count; i++) {
            totals.capacity_bytes += client->tiers[i].capacity_bytes;
            totals.used_bytes += client->tiers[i].used_bytes;
        }
        totals.waiting_drops += registry_drop_count(client);
    }
    return totals;
}

static bool append_all(struct master_service *service, struct buf *out)
{
    const struct service_counters *c = &service->counters;
    struct totals totals = add_up(service);
    struct rpc_counters r;
    struct endpoint_counters e;

    rpc_counters(service->config.rpc, &r);
    endpoint_counters(service->config.endpoint, &e);
    const struct metric rows[] = {
        {"leader", "", "gauge", "1 while this master answers.", service_is_leading(service)},
        {"settled", "", "gauge", "1 once clients of an earlier life have announced.", service->is_settled},
        {"uptime_seconds", "", "gauge", "Since this life began.", (uint64_t)(clock_now_ms() - service->born_ms) / 1000},
        {"clients", "", "gauge", "Live clients.", registry_live_count(service->registry)},
        {"capacity_bytes", "", "gauge", "Capacity of all clients' tiers.", totals.capacity_bytes},
        {"used_bytes", "", "gauge", "Of it, in use.", totals.used_bytes},
        {"keys", "", "gauge", "Keys that have a route.", routes_count(service->routes)},
        {"route_bytes", "", "gauge", "Memory that routes take.", routes_bytes(service->routes)},
        {"tombstones", "", "gauge", "Objects removed lately.", service->tombstones.count},
        {"drops_waiting", "", "gauge", "Removed objects that owners have not deleted yet.", totals.waiting_drops},
        {"jobs", "", "gauge", "Requests that are being worked on or held.", service->job_count},
        {"requests_total", "{method=\"register\"}", "counter", "Requests.", c->requests[METHOD_REGISTER]},
        {"requests_total", "{method=\"heartbeat\"}", NULL, NULL, c->requests[METHOD_HEARTBEAT]},
        {"requests_total", "{method=\"announce\"}", NULL, NULL, c->requests[METHOD_ANNOUNCE]},
        {"requests_total", "{method=\"lookup\"}", NULL, NULL, c->requests[METHOD_LOOKUP]},
        {"requests_total", "{method=\"write_route\"}", NULL, NULL, c->requests[METHOD_WRITE_ROUTE]},
        {"requests_total", "{method=\"remove\"}", NULL, NULL, c->requests[METHOD_REMOVE]},
        {"requests_total", "{method=\"list\"}", NULL, NULL, c->requests[METHOD_LIST]},
        {"requests_total", "{method=\"status\"}", NULL, NULL, c->requests[METHOD_STATUS]},
        {"requests_malformed_total", "", "counter", "Requests that could not be read.", c->malformed},
        {"requests_refused_total", "", "counter", "Requests answered BUSY.", c->refused_busy},
        {"requests_held_total", "", "counter", "Answers that waited for clients to announce.", c->held},
        {"requests_held_timeouts_total", "", "counter", "Of them, those that waited in vain.", c->held_timeouts},
        {"registrations_total", "", "counter", "Registrations.", c->registrations},
        {"names_in_use_total", "", "counter", "Registrations refused for their name.", c->names_in_use},
        {"clients_ended_total", "{reason=\"silent\"}", "counter", "Clients that ended.", c->expired},
        {"clients_ended_total", "{reason=\"goodbye\"}", NULL, NULL, c->left},
        {"clients_ended_total", "{reason=\"replaced\"}", NULL, NULL, c->replaced},
        {"stalls_total", "", "counter", "Times this process was stalled and gave all clients a fresh time to live.",
         c->stalls},
        {"announced_total", "", "counter", "Announced entries.", c->announced},
        {"conflicts_total", "", "counter", "Objects announced for a key that has a route to another one.",
         c->conflicts},
        {"removed_again_total", "", "counter", "Objects announced that were removed meanwhile.", c->tombstone_hits},
        {"lookups_total", "", "counter", "Keys looked up.", c->looked_up},
        {"lookups_not_found_total", "", "counter", "Of them, those without route.", c->not_found},
        {"removed_total", "", "counter", "Routes removed.", c->removed},
        {"drops_total", "", "counter", "Removed objects that owners were to be told of.", c->drops},
        {"connections", "", "gauge", "Open connections.", r.connections},
        {"local_connections_total", "", "counter", "Connections over the local socket, of clients on this host.",
         r.local_connections},
        {"ucx_connections_total", "", "counter", "Connections made over UCX (MC_RPC_PROTOCOL).", r.ucx_connections},
        {"protocol_errors_total", "", "counter", "Connections closed for malformed frames or handshakes.",
         r.protocol_errors + e.protocol_errors},
        {"bytes_total", "{direction=\"received\"}", "counter", "Bytes of requests and answers.", r.bytes_in},
        {"bytes_total", "{direction=\"sent\"}", NULL, NULL, r.bytes_out},
    };
    return append(out, rows, sizeof rows / sizeof rows[0]);
}

struct metrics_args {
    struct master_service *service;
    struct buf *out;
    bool is_good;
};

static void append_on_loop(void *arg)
{
    struct metrics_args *args = arg;

    args->is_good = append_all(args->service, args->out);
}

bool master_service_metrics(struct master_service *service, struct buf *out)
{
    struct metrics_args args = {.service = service, .out = out};

    loop_call(service->config.loop, append_on_loop, &args);
    return args.is_good;
}
