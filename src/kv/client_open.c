/* SPDX-License-Identifier: Apache-2.0 */
/* A client with an engine of its own: puts its parts together and takes them apart. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hostport.h"
#include "engine/engine.h"
#include "kv/client.h"
#include "kv/client_internal.h"
#include "meta/default_uri.h"
#include "tier/tier_config.h"
#include "transport/location.h"
#include "transport/numa.h"

#define LOG_MODULE "kv"
#include "base/log.h"

#define DEFAULT_ARENA_BYTES (64ull << 20)
#define DEFAULT_ROUTE_CACHE_ENTRIES 65536
#define DEFAULT_ROUTE_CACHE_MS 30000
#define GROUPS_AT_A_TIME 8

/* What peers read by themselves (a value that is put) lies in registered memory; nobody but us writes to it. */
#define LENT_ACCESS SHOAL_ACCESS_REMOTE_READ

static void close_direct(struct shoal_kv *kv)
{
    peers_destroy(kv->peers);
    kv_service_destroy(kv->service);
    data_manager_destroy(kv->manager);
    session_destroy(kv->session);
    tier_backend_destroy(kv->tiers);
    kv_arena_destroy(kv->arena);
    rpc_channels_destroy(kv->channels);
    rpc_destroy(kv->rpc);
    probe_destroy(kv->probe);
    shoal_engine_destroy(kv->engine);
    pool_destroy(kv->pool);
    route_cache_destroy(kv->routes);
    free(kv->master);
}

static enum shoal_status map_arena(void *arg, uint64_t len_bytes, void **memory_out, struct shoal_error *error)
{
    struct shoal_kv *kv = arg;
    int node = engine_numa_node(kv->engine);
    char location[LOCATION_TEXT_BYTES] = "*";
    struct shoal_error why;
    enum shoal_status status;
    void *memory;

    status = engine_memory_alloc(kv->engine, len_bytes, false, &memory, error);
    if (status) {
        error_prefix(error, "arena");
        return status;
    }
    if (node >= 0 && numa_bind_memory(memory, len_bytes, (unsigned)node, &why) == SHOAL_OK)
        location_format(&(struct location){.kind = LOCATION_CPU, .index = (unsigned)node}, location);
    else if (node >= 0)
        LOG_WARN("arena: %s; memory comes from any", why.message);
    status = shoal_engine_register_memory(kv->engine, memory, len_bytes, location, LENT_ACCESS, NULL, error);
    if (status)
        engine_memory_free(kv->engine, memory);
    else
        *memory_out = memory;
    return status;
}

static void unmap_arena(void *arg, void *memory, uint64_t len_bytes)
{
    struct shoal_kv *kv = arg;

    (void)shoal_engine_unregister_memory(kv->engine, memory, len_bytes, NULL);
    engine_memory_free(kv->engine, memory);
}

static enum shoal_status alloc_direct(struct shoal_kv *kv, uint64_t len_bytes, void **memory_out,
                                      struct shoal_error *error)
{
    return kv_arena_alloc(kv->arena, len_bytes, memory_out, error);
}

static void free_direct(struct shoal_kv *kv, void *memory)
{
    kv_arena_free(kv->arena, memory);
}

static enum shoal_status register_direct(struct shoal_kv *kv, void *addr, uint64_t len_bytes, struct shoal_error *error)
{
    return shoal_engine_register_memory(kv->engine, addr, len_bytes, NULL, LENT_ACCESS, NULL, error);
}

static enum shoal_status unregister_direct(struct shoal_kv *kv, void *addr, uint64_t len_bytes,
                                           struct shoal_error *error)
{
    return shoal_engine_unregister_memory(kv->engine, addr, len_bytes, error);
}

static const struct kv_ops direct_ops = {
    .close = close_direct,
    .alloc = alloc_direct,
    .free = free_direct,
    .register_memory = register_direct,
    .unregister_memory = unregister_direct,
    .put = kv_direct_put,
    .get = kv_direct_get,
    .size = kv_direct_size,
    .remove = kv_direct_remove,
    .remove_matching = kv_direct_remove_matching,
    .list = kv_direct_list,
    .metrics = kv_direct_metrics,
    .status = kv_direct_status,
};

static enum shoal_status open_engine(struct shoal_kv *kv, const struct shoal_kv_config *config, const struct call *call,
                                     struct shoal_error *error)
{
    int64_t left_ms = deadline_left_ms(call->deadline_ms);
    struct shoal_call engine_call = {.struct_size = sizeof engine_call,
                                     .timeout_ms = call->deadline_ms == DEADLINE_NONE ? -1
                                                   : left_ms                          ? left_ms
                                                                                      : 1,
                                     .cancel = call->cancel};
    struct shoal_engine_config engine_config = {.struct_size = sizeof engine_config,
                                                .cluster = config->cluster,
                                                .protocol = config->protocol,
                                                .nic_priority_matrix = config->nic_priority_matrix};
    char name[HOSTPORT_TEXT_BYTES], *default_uri = NULL;
    struct hostport host;
    enum shoal_status status = hostport_parse(&host, config->host ? config->host : "127.0.0.1", error);

    if (!status && host.has_port)
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "'%s' has a port: that is client_rpc_port", config->host);
    if (status) {
        error_prefix(error, "kv config: host");
        return status;
    }
    hostport_format(host.host, config->client_rpc_port, name);
    engine_config.server_name = name;
    engine_config.metadata_uri = config->metadata_uri;
    if (!config->metadata_uri) {
        status = meta_default_uri(&default_uri, error);
        if (status) {
            error_prefix(error, "no place for the metadata (give metadata_uri)");
            return status;
        }
        engine_config.metadata_uri = default_uri;
    }
    status = shoal_engine_create(&engine_config, &engine_call, &kv->engine, error);
    free(default_uri);
    return status;
}

static enum shoal_status open_tiers(struct shoal_kv *kv, const struct tier_config_list *tiers,
                                    struct shoal_error *error)
{
    struct tier_backend_config config = {.engine = kv->engine,
                                         .tiers = tiers->tiers,
                                         .tier_count = tiers->count,
                                         .watermark_low = tiers->watermark_low,
                                         .watermark_high = tiers->watermark_high,
                                         .watermark_critical = tiers->watermark_critical};
    enum shoal_status status = data_manager_lock_shards(&config.lock_stripes, error);

    return status ? status : tier_backend_create(&config, &kv->tiers, error);
}

static enum shoal_status open_session(struct shoal_kv *kv, const struct shoal_kv_config *config,
                                      const struct call *call, struct shoal_error *error)
{
    struct session_config session_config = {.loop = engine_loop(kv->engine),
                                            .rpc = kv->rpc,
                                            .channels = kv->channels,
                                            .master = config->master,
                                            .cluster = engine_cluster(kv->engine),
                                            .server_name = shoal_engine_server_name(kv->engine),
                                            .address = engine_address(kv->engine),
                                            .instance = kv->instance,
                                            .backend = kv->tiers};
    struct kv_service_config service_config = {
        .engine = kv->engine, .rpc = kv->rpc, .worker_threads = config->rpc_threads};
    enum shoal_status status = session_create(&session_config, &kv->session, error);

    /* Who is told of an object here must find it served. */
    if (!status && kv->tiers)
        status = data_manager_create(kv->tiers, kv->session, &kv->manager, error);
    if (!status && kv->tiers) {
        service_config.manager = kv->manager;
        status = kv_service_create(&service_config, &kv->service, error);
    }
    return status ? status : session_wait_ready(kv->session, call, error);
}

static enum shoal_status open_parts(struct shoal_kv *kv, const struct shoal_kv_config *config,
                                    const struct tier_config_list *tiers, const struct call *call,
                                    struct shoal_error *error)
{
    struct rpc_channels_config channels_config = {0};
    struct peers_config peers_config = {0};
    const struct kv_arena_source arena_source = {.map = map_arena, .unmap = unmap_arena, .arg = kv};
    enum shoal_status status = open_engine(kv, config, call, error);

    if (status)
        return status;
    kv->instance = engine_instance(kv->engine);
    kv->master = strdup(config->master);
    kv->address = strdup(engine_address(kv->engine));
    kv->routes =
        route_cache_create(config->route_cache_entries ? config->route_cache_entries : DEFAULT_ROUTE_CACHE_ENTRIES,
                           config->route_cache_ms ? config->route_cache_ms : DEFAULT_ROUTE_CACHE_MS);
    kv->arena = kv_arena_create(&arena_source, config->arena_bytes ? config->arena_bytes : DEFAULT_ARENA_BYTES);
    if (!kv->master || !kv->address || !kv->routes || !kv->arena)
        return error_no_memory(error);
    status = pool_create(GROUPS_AT_A_TIME, &kv->pool, error);
    if (!status)
        status = rpc_create(engine_loop(kv->engine), engine_endpoint(kv->engine), &kv->rpc, error);
    if (!status)
        status = probe_create(kv->engine, kv->rpc, &kv->probe, error);
    channels_config.cluster = engine_cluster(kv->engine);
    channels_config.server_name = shoal_engine_server_name(kv->engine);
    channels_config.source = engine_address(kv->engine);
    channels_config.instance = kv->instance;
    if (!status)
        status = rpc_channels_create(&channels_config, &kv->channels, error);
    peers_config.engine = kv->engine;
    peers_config.channels = kv->channels;
    if (!status)
        status = peers_create(&peers_config, &kv->peers, error);
    if (!status && tiers->count)
        status = open_tiers(kv, tiers, error);
    return status ? status : open_session(kv, config, call, error);
}

enum shoal_status kv_open_direct(struct shoal_kv *kv, const struct shoal_kv_config *config, const struct call *call,
                                 struct shoal_error *error)
{
    struct tier_config_list tiers = {.count = 0};
    enum shoal_status status = SHOAL_OK;

    kv->ops = &direct_ops;
    if (config->tiers)
        status = tier_config_parse(config->tiers, &tiers, error);
    if (status)
        return status;
    status = open_parts(kv, config, &tiers, call, error);
    if (!status)
        LOG_INFO("%s: %zu tier%s, master %s", kv->address, tiers.count, tiers.count == 1 ? "" : "s", kv->master);
    tier_config_release(&tiers);
    return status;
}

struct shoal_engine *kv_engine(struct shoal_kv *kv)
{
    return kv->engine;
}

bool kv_is_registered(struct shoal_kv *kv)
{
    return kv->session && session_is_registered(kv->session);
}
