/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as Prometheus text. */
#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"

struct metric {
    const char *name, *labels, *kind, *help; /* kind NULL: same family as the row before */
    uint64_t value;
};

static bool append(struct buf *out, const struct metric *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind && !buf_append_format(out, "# HELP shoal_%s %s\n# TYPE shoal_%s %s\n", rows[i].name,
                                               rows[i].help, rows[i].name, rows[i].kind))
            return false;
        if (!buf_append_format(out, "shoal_%s%s %" PRIu64 "\n", rows[i].name, rows[i].labels, rows[i].value))
            return false;
    }
    return true;
}

static uint64_t load(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static bool append_engine(struct shoal_engine *engine, struct buf *out)
{
    const struct engine_counters *c = &engine->counters;
    struct endpoint_counters e;
    uint64_t active;

    endpoint_counters(engine->endpoint, &e);
    mutex_lock(&engine->mutex);
    active = engine->active_ops;
    mutex_unlock(&engine->mutex);
    {
        const struct metric rows[] = {
            {"engine_operations_total", "{outcome=\"completed\"}", "counter", "Operations that ended.",
             load(&c->ops_completed)},
            {"engine_operations_total", "{outcome=\"canceled\"}", NULL, NULL, load(&c->ops_canceled)},
            {"engine_operations_total", "{outcome=\"failed\"}", NULL, NULL, load(&c->ops_failed)},
            {"engine_operations_active", "", "gauge", "Operations that have not ended.", active},
            {"engine_registered_bytes", "", "gauge", "Registered memory.", memory_registered_bytes(engine->memory)},
            {"engine_lease", "", "gauge", "1 while the node has a lease.", engine_lease(engine) != 0},
            {"engine_lease_losses_total", "", "counter", "Leases lost while alive.", load(&c->lease_losses)},
            {"engine_publish_failures_total", "", "counter", "Attempts to publish under a new lease that failed.",
             load(&c->publish_failures)},
            {"engine_name_conflicts_total", "", "counter", "Times another live node had our name.",
             load(&c->name_conflicts)},
            {"engine_connections_accepted_total", "", "counter", "Connections that passed the handshake.", e.accepted},
            {"engine_connections_refused_total", "", "counter", "Connections refused in the handshake.", e.refused},
            {"engine_handshake_timeouts_total", "", "counter", "Connections dropped for a slow handshake.",
             e.handshake_timeouts},
            {"engine_handshake_errors_total", "", "counter", "Connections closed for a malformed handshake.",
             e.protocol_errors},
            {"engine_dials_total", "", "counter", "Connections begun.", e.dials},
            {"engine_dial_failures_total", "", "counter", "Connections that could not be made.", e.dial_failures},
            {"engine_connections", "", "gauge", "Accepted connections that are open.", e.open_connections},
            {"engine_handshakes", "", "gauge", "Unfinished handshakes.", e.open_handshakes},
        };
        return append(out, rows, sizeof rows / sizeof rows[0]);
    }
}

static bool append_meta(struct shoal_engine *engine, struct buf *out)
{
    struct meta_counters m;

    meta_counters(engine->meta, &m);
    {
        const struct metric rows[] = {
            {"meta_requests_total", "{kind=\"get\"}", "counter", "Requests to the metadata service.", m.gets},
            {"meta_requests_total", "{kind=\"list\"}", NULL, NULL, m.lists},
            {"meta_requests_total", "{kind=\"txn\"}", NULL, NULL, m.txns},
            {"meta_requests_total", "{kind=\"lease\"}", NULL, NULL, m.lease_calls},
            {"meta_requests_total", "{kind=\"watch\"}", NULL, NULL, m.watches},
            {"meta_bytes_total", "{direction=\"sent\"}", "counter", "Bytes of requests and responses.", m.bytes_sent},
            {"meta_bytes_total", "{direction=\"received\"}", NULL, NULL, m.bytes_received},
            {"meta_largest_request_bytes", "", "gauge", "Largest request so far.", m.largest_request_bytes},
            {"meta_retries_total", "", "counter", "Attempts that were repeated.", m.retries},
            {"meta_failures_total", "", "counter", "Calls that ended with an error.", m.failures},
        };
        return append(out, rows, sizeof rows / sizeof rows[0]);
    }
}

static bool append_fallbacks(struct shoal_engine *engine, struct buf *out)
{
    struct engine_fallback fallbacks[ENGINE_FALLBACK_KINDS_MAX];
    unsigned count;

    mutex_lock(&engine->mutex);
    count = engine->fallback_count;
    memcpy(fallbacks, engine->fallbacks, count * sizeof fallbacks[0]);
    mutex_unlock(&engine->mutex);
    if (!buf_append_str(out,
                        "# HELP shoal_engine_fallbacks_total Peers and requests that a transport refused and another "
                        "one took.\n# TYPE shoal_engine_fallbacks_total counter\n"))
        return false;
    for (unsigned i = 0; i < count; i++)
        if (!buf_append_format(out, "shoal_engine_fallbacks_total{transport=\"%s\",reason=\"%s\"} %" PRIu64 "\n",
                               fallbacks[i].transport, fallbacks[i].reason, fallbacks[i].count))
            return false;
    return true;
}

/* What a label's value may hold. */
static void copy_label(char *out, size_t size, const char *text)
{
    size_t len = 0;

    for (; *text && len + 2 < size; text++) {
        if (*text == '"' || *text == '\\')
            out[len++] = '\\';
        out[len++] = *text;
    }
    out[len] = '\0';
}

/* The families of a peer; one walk each, as the samples of a family stand together. */
struct peer_rows {
    struct buf *out;
    unsigned count;
    bool is_bytes, is_fine;
};

static void append_peer(void *arg, const struct engine_peer_view *peer)
{
    char name[2 * HELLO_NAME_MAX_BYTES + 1];
    struct peer_rows *rows = arg;

    if (!peer->transport || rows->count++ >= ENGINE_METRIC_PEERS_MAX)
        return;
    copy_label(name, sizeof name, peer->name);
    for (unsigned i = 0; i < peer->path_count && rows->is_fine; i++) {
        const struct engine_path_view *path = &peer->paths[i];

        if (!rows->is_bytes)
            rows->is_fine =
                buf_append_format(rows->out, "shoal_engine_peer_transport{peer=\"%s\",transport=\"%s\"} %d\n", name,
                                  path->transport, path->is_in_use);
        else
            rows->is_fine = buf_append_format(
                rows->out, "shoal_engine_peer_bytes_total{peer=\"%s\",transport=\"%s\"} %" PRIu64 "\n", name,
                path->transport, path->bytes);
    }
}

static bool append_peers(struct shoal_engine *engine, struct buf *out)
{
    struct peer_rows rows = {.out = out, .is_fine = true};

    if (!buf_append_str(out, "# HELP shoal_engine_peer_transport 1 for the transport that took the peer's last request "
                             "(64 peers at most).\n# TYPE shoal_engine_peer_transport gauge\n") ||
        engine_peers_visit(engine, append_peer, &rows) != SHOAL_OK || !rows.is_fine)
        return false;
    rows = (struct peer_rows){.out = out, .is_bytes = true, .is_fine = true};
    return buf_append_str(out,
                          "# HELP shoal_engine_peer_bytes_total Bytes of READs and WRITEs that ended well (64 peers "
                          "at most).\n# TYPE shoal_engine_peer_bytes_total counter\n") &&
           engine_peers_visit(engine, append_peer, &rows) == SHOAL_OK && rows.is_fine;
}

bool engine_metrics(struct shoal_engine *engine, struct buf *out)
{
    struct engine_transport transports[ENGINE_TRANSPORTS_MAX];
    unsigned count;

    mutex_lock(&engine->mutex);
    count = engine->transport_count;
    for (unsigned i = 0; i < count; i++)
        transports[i] = engine->transports[i];
    mutex_unlock(&engine->mutex);
    if (!append_engine(engine, out) || !append_fallbacks(engine, out) || !append_peers(engine, out) ||
        !append_meta(engine, out))
        return false;
    for (unsigned i = 0; i < count; i++)
        if (!transports[i].ops->metrics(transports[i].instance, out))
            return false;
    return device_metrics(out);
}
