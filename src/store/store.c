/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/store_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define CREATE_TIMEOUT_MS 10000
#define CLOSE_TIMEOUT_MS 5000
#define CONNECT_TIMEOUT_MS 3000
#define PROGRESS_TIMEOUT_MS 10000
#define LEASE_TTL_MS 10000
#define DIGEST_THREADS_MAX 16
#define METRICS_MAX_BYTES (1u << 20)

/* --- membership: the lease was lost and a new one made --- */

/* References to every payload that wants to be announced; NULL-terminated array to be freed. */
static struct payload **collect_published(struct shoal_store *store)
{
    const struct map_entry *position = NULL;
    struct payload *payload, **payloads;
    size_t count = 0;

    mutex_lock(&store->mutex);
    payloads = calloc(store->catalog.count + 1, sizeof *payloads);
    while (payloads && (payload = map_next(&store->catalog, &position, NULL, NULL))) {
        if (payload->wants_publication) {
            payload->is_published = false;
            payload_ref(payload);
            payloads[count++] = payload;
        }
    }
    mutex_unlock(&store->mutex);
    return payloads;
}

static enum shoal_status publish_all(void *arg, int64_t lease, const struct call *call, struct shoal_error *error)
{
    struct shoal_store *store = arg;
    struct payload **payloads = collect_published(store);
    enum shoal_status status = SHOAL_OK;

    (void)lease; /* engine_lease() is the same one */
    if (!payloads)
        return error_no_memory(error);
    for (struct payload **payload = payloads; *payload; payload++) {
        if (!status)
            status = publish_join(*payload, call, error);
        if (!status)
            atomic_fetch_add_explicit(&store->counters.republished, 1, memory_order_relaxed);
        payload_unref(*payload);
    }
    free(payloads);
    return status;
}

/* --- create and close --- */

/* Callers that were built before the limits came have a shorter structure. */
static enum shoal_status check_config(const struct shoal_store_config *public_config, struct shoal_store_config *config,
                                      struct shoal_error *error)
{
    if (!public_config || public_config->struct_size < offsetof(struct shoal_store_config, upload_limit_bytes_per_s) ||
        public_config->struct_size > 4096)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "struct shoal_store_config: NULL or too small");
    memset(config, 0, sizeof *config);
    memcpy(config, public_config,
           public_config->struct_size < sizeof *config ? public_config->struct_size : sizeof *config);
    if (config->digest_threads > 1024 || config->connect_timeout_ms < 0 || config->progress_timeout_ms < 0 ||
        config->lease_ttl_ms < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a number in the store's configuration is out of range");
    return SHOAL_OK;
}

static unsigned digest_threads(const struct shoal_store_config *config)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    if (config->digest_threads)
        return config->digest_threads;
    return cpus < 1 ? 1 : cpus > DIGEST_THREADS_MAX ? DIGEST_THREADS_MAX : (unsigned)cpus;
}

static enum shoal_status create(struct shoal_store *store, const struct shoal_store_config *config,
                                const struct call *call, struct shoal_error *error)
{
    int64_t left = deadline_left_ms(call->deadline_ms);
    struct shoal_call engine_call = {.struct_size = sizeof engine_call,
                                     .timeout_ms = call->deadline_ms == DEADLINE_NONE ? -1
                                                   : left                             ? left
                                                                                      : 1,
                                     .cancel = call->cancel};
    struct shoal_engine_config engine_config = {
        .struct_size = sizeof engine_config,
        .metadata_uri = config->metadata_uri,
        .server_name = config->server_name,
        .cluster = config->cluster,
        .io_threads = config->io_threads,
        .lease_ttl_ms = store->lease_ttl_ms,
        .connect_timeout_ms = store->connect_timeout_ms,
        .progress_timeout_ms = store->progress_timeout_ms,
        .upload_limit_bytes_per_s = config->upload_limit_bytes_per_s,
        .download_limit_bytes_per_s = config->download_limit_bytes_per_s,
        .upload_slots = config->upload_slots,
        .protocol = config->protocol,
        .nic_priority_matrix = config->nic_priority_matrix,
    };
    const struct membership_listener listener = {.publish = publish_all, .arg = store};
    enum shoal_status status = shoal_engine_create(&engine_config, &engine_call, &store->engine, error);

    if (!status)
        status = rpc_create(engine_loop(store->engine), engine_endpoint(store->engine), &store->rpc, error);
    if (!status)
        status = probe_create(store->engine, store->rpc, &store->probe, error);
    if (!status)
        status = pool_create(digest_threads(config), &store->pool, error);
    if (!status)
        status = janitor_create(store, error);
    if (!status) {
        serve_install(store);
        engine_set_membership_listener(store->engine, &listener);
    }
    return status;
}

/* Accepts a store that create left half built. */
static void destroy(struct shoal_store *store)
{
    if (store->engine)
        engine_set_membership_listener(store->engine, NULL);
    janitor_destroy(store);
    pool_destroy(store->pool);
    rpc_destroy(store->rpc);
    probe_destroy(store->probe);
    shoal_engine_destroy(store->engine);
    map_release(&store->catalog);
    cond_release(&store->idle);
    mutex_release(&store->mutex);
    free(store->cluster);
    free(store);
}

enum shoal_status shoal_store_create(const struct shoal_store_config *public_config, const struct shoal_call *call,
                                     struct shoal_store **store_out, struct shoal_error *error)
{
    struct shoal_store_config config;
    struct shoal_store *store;
    struct call checked;
    enum shoal_status status = check_config(public_config, &config, error);

    if (!status && !store_out)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "store_out is NULL");
    if (!status)
        status = call_init(&checked, call, CREATE_TIMEOUT_MS, error);
    if (status)
        return status;
    store = calloc(1, sizeof *store);
    if (!store)
        return error_no_memory(error);
    mutex_init(&store->mutex, RANK_STORE);
    cond_init(&store->idle);
    map_init(&store->catalog);
    list_init(&store->calls);
    store->connect_timeout_ms = config.connect_timeout_ms ? config.connect_timeout_ms : CONNECT_TIMEOUT_MS;
    store->progress_timeout_ms = config.progress_timeout_ms ? config.progress_timeout_ms : PROGRESS_TIMEOUT_MS;
    store->lease_ttl_ms = config.lease_ttl_ms ? config.lease_ttl_ms : LEASE_TTL_MS;
    store->cluster = strdup(config.cluster ? config.cluster : "default");
    status = store->cluster ? create(store, &config, &checked, error) : error_no_memory(error);
    if (status) {
        destroy(store);
        return status;
    }
    *store_out = store;
    return SHOAL_OK;
}

/* Any payload that is left, with a reference. */
static struct payload *any_payload(struct shoal_store *store, bool *is_published_out)
{
    const struct map_entry *position = NULL;
    struct payload *payload;

    mutex_lock(&store->mutex);
    payload = map_next(&store->catalog, &position, NULL, NULL);
    if (payload) {
        payload->wants_publication = false;
        payload->state = PAYLOAD_CLOSING;
        *is_published_out = payload->is_published;
        payload_ref(payload);
    }
    mutex_unlock(&store->mutex);
    return payload;
}

void shoal_store_close(struct shoal_store *store, const struct shoal_call *call)
{
    struct call checked;
    struct payload *payload;
    bool is_published = false;

    if (!store)
        return;
    if (call_init(&checked, call, CLOSE_TIMEOUT_MS, NULL))
        checked = (struct call){.deadline_ms = deadline_after_ms(CLOSE_TIMEOUT_MS)};
    mutex_lock(&store->mutex);
    store->is_closing = true;
    LIST_FOR_EACH (running, &store->calls, struct store_call, node)
        shoal_cancel_trigger(running->call.cancel);
    while (!list_is_empty(&store->calls))
        cond_wait(&store->idle, &store->mutex);
    mutex_unlock(&store->mutex);
    engine_set_membership_listener(store->engine, NULL);
    while ((payload = any_payload(store, &is_published))) {
        struct shoal_error error;

        serve_stop(payload);
        if (is_published && !deadline_is_past(checked.deadline_ms) &&
            publish_withdraw(store, payload->name, payload->generation, &checked, &error))
            LOG_WARN("%s: left to the lease", error.message);
        payload_close(payload);
        payload_unref(payload);
    }
    destroy(store);
}

const char *shoal_store_server_name(const struct shoal_store *store)
{
    return shoal_engine_server_name(store->engine);
}

struct shoal_engine *shoal_store_engine(struct shoal_store *store)
{
    return store->engine;
}

/* --- seeing it --- */

enum shoal_status shoal_store_served(struct shoal_store *store, struct shoal_served_info **infos_out, size_t *count_out,
                                     struct shoal_error *error)
{
    const struct map_entry *position = NULL;
    struct payload *payload, **payloads;
    struct shoal_served_info *infos;
    size_t count = 0;

    if (!store || !infos_out || !count_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "store or an output is NULL");
    mutex_lock(&store->mutex);
    payloads = calloc(store->catalog.count + 1, sizeof *payloads);
    infos = calloc(store->catalog.count + 1, sizeof *infos);
    while (payloads && infos && (payload = map_next(&store->catalog, &position, NULL, NULL))) {
        if (!payload->is_serving)
            continue;
        payload_ref(payload);
        infos[count].is_published = payload->is_published;
        infos[count].is_replaced = payload->is_superseded;
        if (payload->replaced_by)
            snprintf(infos[count].replaced_by, sizeof infos[count].replaced_by, "%s", payload->replaced_by);
        payloads[count++] = payload;
    }
    mutex_unlock(&store->mutex);
    if (!payloads || !infos) {
        free(payloads);
        free(infos);
        return error_no_memory(error);
    }
    for (size_t i = 0; i < count; i++) {
        serve_describe(payloads[i], &infos[i]);
        payload_unref(payloads[i]);
    }
    free(payloads);
    *infos_out = infos;
    *count_out = count;
    return SHOAL_OK;
}

struct rpc_snapshot {
    struct rpc *rpc;
    struct rpc_counters counters;
};

static void snapshot_rpc(void *arg)
{
    struct rpc_snapshot *snapshot = arg;

    rpc_counters(snapshot->rpc, &snapshot->counters);
}

char *shoal_store_metrics(struct shoal_store *store)
{
    const struct {
        const char *name, *help;
        atomic_uint_fast64_t *value;
    } counters[] = {
        {"registers_total", "Payloads registered by this node", &store->counters.registers},
        {"gets_total", "Pulls begun", &store->counters.gets},
        {"gets_failed_total", "Pulls that ended with an error", &store->counters.gets_failed},
        {"gets_unverified_total", "Pulls without verification", &store->counters.unverified_gets},
        {"pieces_verified_total", "Pieces pulled and verified", &store->counters.pieces_verified},
        {"pieces_bad_total", "Pieces that did not match their digest", &store->counters.pieces_bad},
        {"pulled_bytes_total", "Verified payload bytes pulled", &store->counters.bytes_pulled},
        {"reused_bytes_total", "Payload bytes that were here already, verified", &store->counters.bytes_reused},
        {"served_bytes_total", "Payload bytes that receivers report as taken from here", &store->counters.bytes_served},
        {"source_failures_total", "Times a source was left", &store->counters.source_failures},
        {"publish_retries_total", "Metadata transactions repeated after a lost race", &store->counters.publish_retries},
        {"republished_total", "Payloads announced again after a lost lease", &store->counters.republished},
    };
    struct rpc_snapshot snapshot = {.rpc = store->rpc};
    struct shoal_served_info *served;
    struct buf out;
    bool is_ok = true;
    size_t payloads, served_count, published = 0, receivers = 0, len;

    if (shoal_store_served(store, &served, &served_count, NULL))
        return NULL;
    for (size_t i = 0; i < served_count; i++) {
        published += served[i].is_published != 0;
        receivers += served[i].receivers;
    }
    free(served);

    buf_init(&out, METRICS_MAX_BYTES);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        is_ok = is_ok && buf_append_format(&out,
                                           "# HELP shoal_store_%s %s\n# TYPE shoal_store_%s counter\n"
                                           "shoal_store_%s %" PRIuFAST64 "\n",
                                           counters[i].name, counters[i].help, counters[i].name, counters[i].name,
                                           atomic_load_explicit(counters[i].value, memory_order_relaxed));
    mutex_lock(&store->mutex);
    payloads = store->catalog.count;
    mutex_unlock(&store->mutex);
    loop_call(engine_loop(store->engine), snapshot_rpc, &snapshot);
    is_ok = is_ok &&
            buf_append_format(&out,
                              "# HELP shoal_store_payloads Payloads held by this node\n"
                              "# TYPE shoal_store_payloads gauge\nshoal_store_payloads %zu\n"
                              "# HELP shoal_store_published Payloads that are offered in the metadata service\n"
                              "# TYPE shoal_store_published gauge\nshoal_store_published %zu\n"
                              "# HELP shoal_store_receivers Receivers that take from this node now\n"
                              "# TYPE shoal_store_receivers gauge\nshoal_store_receivers %zu\n",
                              payloads, published, receivers) &&
            buf_append_format(&out,
                              "# HELP shoal_rpc_requests_total Control requests received\n"
                              "# TYPE shoal_rpc_requests_total counter\nshoal_rpc_requests_total %" PRIu64 "\n"
                              "# HELP shoal_rpc_calls_total Control calls made\n"
                              "# TYPE shoal_rpc_calls_total counter\nshoal_rpc_calls_total %" PRIu64 "\n"
                              "# HELP shoal_rpc_protocol_errors_total Malformed control frames\n"
                              "# TYPE shoal_rpc_protocol_errors_total counter\nshoal_rpc_protocol_errors_total %" PRIu64
                              "\n# HELP shoal_rpc_local_connections_total Control connections over a local socket\n"
                              "# TYPE shoal_rpc_local_connections_total counter\n"
                              "shoal_rpc_local_connections_total %" PRIu64 "\n"
                              "# HELP shoal_rpc_ucx_connections_total Control connections made over UCX\n"
                              "# TYPE shoal_rpc_ucx_connections_total counter\nshoal_rpc_ucx_connections_total %" PRIu64
                              "\n# HELP shoal_rpc_fallbacks_total Dials by TCP because a peer does not offer UCX\n"
                              "# TYPE shoal_rpc_fallbacks_total counter\nshoal_rpc_fallbacks_total %" PRIu64
                              "\n# HELP shoal_rpc_bytes_total Control bytes, both directions\n"
                              "# TYPE shoal_rpc_bytes_total counter\nshoal_rpc_bytes_total %" PRIu64 "\n",
                              snapshot.counters.requests, snapshot.counters.calls, snapshot.counters.protocol_errors,
                              snapshot.counters.local_connections, snapshot.counters.ucx_connections,
                              snapshot.counters.fallbacks, snapshot.counters.bytes_in + snapshot.counters.bytes_out) &&
            engine_metrics(store->engine, &out);
    if (is_ok)
        return (char *)buf_take(&out, &len);
    buf_release(&out);
    return NULL;
}
