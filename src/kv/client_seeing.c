/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of this process and the state of the cluster. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"
#include "kv/client_internal.h"
#include "tier/tier_config.h"

static bool counter(struct buf *out, const char *name, const char *labels, const char *help, uint64_t value,
                    bool is_first)
{
    if (is_first && !buf_append_format(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name))
        return false;
    return buf_append_format(out, "%s%s %" PRIu64 "\n", name, labels, value);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static bool own_metrics(struct shoal_kv *kv, struct buf *out)
{
    const struct kv_counters *counters = &kv->counters;
    struct route_cache_counters routes;
    struct rpc_channels_counters channels;
    struct session_counters session;

    route_cache_counters(kv->routes, &routes);
    rpc_channels_counters(kv->channels, &channels);
    session_counters(kv->session, &session);
    return counter(out, "shoal_kv_client_gets_total", "{from=\"local\"}", "Values read by this process.",
                   load(&counters->gets_local), true) &&
           counter(out, "shoal_kv_client_gets_total", "{from=\"remote\"}", NULL, load(&counters->gets_remote), false) &&
           counter(out, "shoal_kv_client_get_failures_total", "", "Reads that failed, unknown keys included.",
                   load(&counters->get_failures), true) &&
           counter(out, "shoal_kv_client_retries_total", "",
                   "Owners that did not have what a route said or could not be reached.", load(&counters->retries),
                   true) &&
           counter(out, "shoal_kv_client_puts_total", "{to=\"local\"}", "Copies written by this process.",
                   load(&counters->puts_local), true) &&
           counter(out, "shoal_kv_client_puts_total", "{to=\"remote\"}", NULL, load(&counters->puts_remote), false) &&
           counter(out, "shoal_kv_client_put_failures_total", "", "Writes that failed, existing keys included.",
                   load(&counters->put_failures), true) &&
           counter(out, "shoal_kv_client_removes_total", "", "Keys asked to be removed.", load(&counters->removes),
                   true) &&
           counter(out, "shoal_kv_client_route_hits_total", "", "Routes found in the cache.", routes.hits, true) &&
           counter(out, "shoal_kv_client_route_misses_total", "", "Routes asked of the master.", routes.misses, true) &&
           buf_append_format(out,
                             "# HELP shoal_kv_client_routes Routes in the cache.\n"
                             "# TYPE shoal_kv_client_routes gauge\nshoal_kv_client_routes %zu\n",
                             routes.entries) &&
           counter(out, "shoal_kv_client_calls_total", "", "Blocking calls to master and owners.", channels.calls,
                   true) &&
           counter(out, "shoal_kv_client_call_failures_total", "", "Blocking calls without an answer.",
                   channels.failures, true) &&
           counter(out, "shoal_kv_client_dials_total", "", "Connections made for blocking calls.", channels.dials,
                   true) &&
           counter(out, "shoal_kv_client_local_dials_total", "",
                   "Those of them that go over the local socket of a process of this host.", channels.local_dials,
                   true) &&
           counter(out, "shoal_kv_client_rpc_fallbacks_total", "",
                   "Connections made by TCP because a peer does not offer MC_RPC_PROTOCOL.", channels.fallbacks,
                   true) &&
           counter(out, "shoal_kv_session_registrations_total", "", "Registrations at a master.", session.registrations,
                   true) &&
           counter(out, "shoal_kv_session_heartbeats_total", "", "Heartbeats that the master answered.",
                   session.heartbeats, true) &&
           counter(out, "shoal_kv_session_heartbeat_failures_total", "", "Heartbeats without an answer.",
                   session.heartbeat_failures, true) &&
           counter(out, "shoal_kv_session_announced_total", "", "Objects announced.", session.announced, true) &&
           counter(out, "shoal_kv_session_announce_failures_total", "", "Announcements without an answer.",
                   session.announce_failures, true) &&
           counter(out, "shoal_kv_session_conflicts_total", "",
                   "Objects dropped because the master knew another one under their key.", session.conflicts, true) &&
           counter(out, "shoal_kv_session_drops_total", "", "Objects dropped because they were removed elsewhere.",
                   session.drops, true);
}

enum shoal_status kv_direct_metrics(struct shoal_kv *kv, struct buf *out, struct shoal_error *error)
{
    bool is_complete = own_metrics(kv, out);

    if (is_complete && kv->service)
        is_complete = kv_service_metrics(kv->service, out);
    if (is_complete && kv->tiers)
        is_complete = tier_metrics(kv->tiers, out);
    if (is_complete)
        is_complete = engine_metrics(kv->engine, out);
    return is_complete ? SHOAL_OK : error_no_memory(error);
}

/* --- status --- */

static json_t *tier_json(const Shoal__Wire__MasterTier *tier)
{
    const char *type =
        tier->type == TIER_DRAM || tier->type == TIER_STORAGE ? tier_type_name((enum tier_type)tier->type) : "unknown";

    return json_pack("{s:s, s:i, s:I, s:I}", "type", type, "priority", (int)tier->priority, "capacity_bytes",
                     (json_int_t)tier->capacity_bytes, "used_bytes", (json_int_t)tier->used_bytes);
}

/* Text of a peer that is no UTF-8 becomes "". */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);

    return json ? json : json_string("");
}

static json_t *client_json(const Shoal__Wire__MasterClient *client)
{
    json_t *tiers = json_array();

    for (size_t i = 0; i < client->n_tiers; i++)
        json_array_append_new(tiers, tier_json(client->tiers[i]));
    return json_pack("{s:o, s:o, s:I, s:I, s:o}", "name", text_json(client->server_name), "address",
                     text_json(client->address), "objects", (json_int_t)client->object_count, "silent_ms",
                     (json_int_t)client->silent_ms, "tiers", tiers);
}

enum shoal_status kv_direct_status(struct shoal_kv *kv, const struct call *call, char **text_out,
                                   struct shoal_error *error)
{
    Shoal__Wire__MasterStatusResponse *status;
    enum shoal_status result = session_status(kv->session, call, &status, error);
    json_t *clients, *json;
    char *text = NULL;

    if (result)
        return result;
    clients = json_array();
    for (size_t i = 0; i < status->n_clients; i++)
        json_array_append_new(clients, client_json(status->clients[i]));
    json = json_pack("{s:o, s:s, s:b, s:I, s:I, s:b, s:I, s:o}", "master", text_json(kv->master), "address",
                     kv->address, "is_registered", (int)session_is_registered(kv->session), "keys",
                     (json_int_t)status->key_count, "route_bytes", (json_int_t)status->route_bytes, "is_settled",
                     (int)status->is_settled, "uptime_ms", (json_int_t)status->uptime_ms, "clients", clients);
    shoal__wire__master_status_response__free_unpacked(status, NULL);
    if (json)
        text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (!text)
        return error_no_memory(error);
    *text_out = text;
    return SHOAL_OK;
}
