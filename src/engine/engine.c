/* SPDX-License-Identifier: Apache-2.0 */
/* Life of an engine: its loops, its address and name, its transports. */
#include "engine/engine.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "transport/nic_matrix.h"
#include "transport/numa.h"

#define LOG_MODULE "engine"

#define DEFAULT_CALL_MS 10000
#define DEFAULT_LEASE_TTL_MS 10000
#define MIN_LEASE_TTL_MS 2000
#define DEFAULT_CONNECT_TIMEOUT_MS 3000
#define DEFAULT_PROGRESS_TIMEOUT_MS 10000
#define DEFAULT_CLUSTER "default"
#define TIMEOUT_MAX_MS (24 * 3600 * 1000)

/* Slower than the least, and peers would take the silence between two packets for a stall. */
static enum shoal_status check_limit(const char *what, uint64_t bytes_per_s, struct shoal_error *error)
{
    if (bytes_per_s == 0 || (bytes_per_s >= SHOAL_RATE_LIMIT_MIN && bytes_per_s <= SHOAL_RATE_LIMIT_MAX))
        return SHOAL_OK;
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "%s limit of %llu bytes per second: it is 0 (none) or %llu..%llu", what,
                     (unsigned long long)bytes_per_s, SHOAL_RATE_LIMIT_MIN, SHOAL_RATE_LIMIT_MAX);
}

/* What each protocol installs, the least preferred first; the node's own host comes before any network. */
static const struct protocol {
    const char *name;
    const char *transports[3];
} protocols[] = {
    {"auto", {"tcp", "local"}},         {"tcp", {"tcp"}},        {"local", {"tcp", "local"}},
    {"rdma", {"tcp", "rdma", "local"}}, {"ucx", {"tcp", "ucx"}},
};

static bool is_text(const char *text)
{
    return text && text[0];
}

/* A matrix is looked at before anything is opened; whether its devices are here is for the transport to find out. An
 * empty one becomes none. */
static enum shoal_status check_matrix(struct shoal_engine_config *config, struct shoal_error *error)
{
    struct nic_matrix *matrix;
    enum shoal_status status;

    if (!config->nic_priority_matrix)
        return SHOAL_OK;
    status = nic_matrix_parse(config->nic_priority_matrix, strlen(config->nic_priority_matrix), &matrix, error);
    if (status != SHOAL_OK)
        return status;
    if (nic_matrix_is_empty(matrix))
        config->nic_priority_matrix = NULL;
    nic_matrix_destroy(matrix);
    return SHOAL_OK;
}

/* Of protocols and of transports. */
static bool takes_matrix(const char *name)
{
    return strcmp(name, "rdma") == 0 || strcmp(name, "ucx") == 0;
}

static enum shoal_status check_protocol(struct shoal_engine_config *config, struct shoal_error *error)
{
    bool has_matrix = config->nic_priority_matrix != NULL;

    if (!is_text(config->protocol) || strcmp(config->protocol, "auto") == 0)
        config->protocol = has_matrix ? "rdma" : "auto";
    for (size_t i = 0; i < sizeof protocols / sizeof protocols[0]; i++) {
        if (strcmp(protocols[i].name, config->protocol) != 0)
            continue;
        if (has_matrix && !takes_matrix(config->protocol))
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                             "engine config: a NIC priority matrix is for protocol rdma or ucx, not for %s",
                             config->protocol);
        return SHOAL_OK;
    }
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                     "engine config: unknown protocol '%.64s': there is auto, tcp, local, rdma, ucx", config->protocol);
}

static enum shoal_status check_config(const struct shoal_engine_config *public_config,
                                      struct shoal_engine_config *config, struct shoal_error *error)
{
    enum shoal_status status;

    if (!public_config || public_config->struct_size < offsetof(struct shoal_engine_config, cluster) ||
        public_config->struct_size > 4096)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: struct_size is not set");
    memset(config, 0, sizeof *config);
    memcpy(config, public_config,
           public_config->struct_size < sizeof *config ? public_config->struct_size : sizeof *config);
    if (!config->metadata_uri || !config->metadata_uri[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: metadata_uri is required");
    if (!config->server_name || !config->server_name[0])
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: server_name is required");
    if (!config->cluster)
        config->cluster = DEFAULT_CLUSTER;
    if (!config->cluster[0] || strlen(config->cluster) > HELLO_CLUSTER_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: cluster has 1..%d bytes",
                         HELLO_CLUSTER_MAX_BYTES);
    for (const char *c = config->cluster; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: cluster has a control character");
    if (config->io_threads > ENGINE_LOOPS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: io_threads is at most %d", ENGINE_LOOPS_MAX);
    if (config->lease_ttl_ms == 0)
        config->lease_ttl_ms = DEFAULT_LEASE_TTL_MS;
    if (config->lease_ttl_ms < MIN_LEASE_TTL_MS || config->lease_ttl_ms > TIMEOUT_MAX_MS)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: lease_ttl_ms is %lld, at least %d",
                         (long long)config->lease_ttl_ms, MIN_LEASE_TTL_MS);
    if (config->connect_timeout_ms == 0)
        config->connect_timeout_ms = DEFAULT_CONNECT_TIMEOUT_MS;
    if (config->progress_timeout_ms == 0)
        config->progress_timeout_ms = DEFAULT_PROGRESS_TIMEOUT_MS;
    if (config->connect_timeout_ms < 0 || config->connect_timeout_ms > TIMEOUT_MAX_MS ||
        config->progress_timeout_ms < 0 || config->progress_timeout_ms > TIMEOUT_MAX_MS)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: timeouts are between 1 ms and a day");
    if (config->upload_slots > SHOAL_UPLOAD_SLOTS_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine config: upload_slots is at most %d",
                         SHOAL_UPLOAD_SLOTS_MAX);
    if (check_limit("upload", config->upload_limit_bytes_per_s, error) != SHOAL_OK ||
        check_limit("download", config->download_limit_bytes_per_s, error) != SHOAL_OK)
        return SHOAL_INVALID_ARGUMENT;
    status = check_matrix(config, error);
    return status == SHOAL_OK ? check_protocol(config, error) : status;
}

static unsigned default_io_threads(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return cpus < 8 ? 1 : cpus > 16 ? 4 : (unsigned)cpus / 4;
}

static bool is_wildcard(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
    return ((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Binds exactly the host that was named: what peers are told is what is bound, never a guess from the device list. */
static enum shoal_status bind_endpoint(struct shoal_engine *engine, const struct shoal_engine_config *config,
                                       struct shoal_error *error)
{
    struct endpoint_config endpoint_config = {
        .loop = engine->loops[0], .cluster = engine->cluster, .max_connections = config->max_connections};
    char numeric[NI_MAXHOST], name[HOSTPORT_TEXT_BYTES];
    struct sockaddr_storage addr;
    struct hostport hostport;
    socklen_t len;
    enum shoal_status status;

    status = hostport_parse(&hostport, config->server_name, error);
    if (status == SHOAL_OK)
        status = hostport_resolve(hostport.host, hostport.port, &addr, &len, error);
    if (status != SHOAL_OK)
        goto prefix;
    if (is_wildcard(&addr)) {
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                           "'%s' is no address that peers could use: name one address of this machine", hostport.host);
        goto prefix;
    }
    if (getnameinfo((const struct sockaddr *)&addr, len, numeric, sizeof numeric, NULL, 0, NI_NUMERICHOST) != 0) {
        status = error_set(error, SHOAL_ADDRESS, 0, "'%s' has no numeric form", hostport.host);
        goto prefix;
    }
    endpoint_config.bind_host = numeric;
    endpoint_config.bind_port = hostport.port;
    status = endpoint_create(&endpoint_config, &engine->endpoint, error);
    if (status != SHOAL_OK)
        goto prefix;
    hostport_format(hostport.host, endpoint_port(engine->endpoint), name);
    snprintf(engine->address, sizeof engine->address, "%s", endpoint_address(engine->endpoint));
    engine->server_name = strdup(name);
    return engine->server_name ? SHOAL_OK : error_no_memory(error);

prefix:
    error_prefix(error, "server name '%s'", config->server_name);
    return status;
}

struct placement {
    unsigned node;
    enum shoal_status status;
    struct shoal_error error;
};

static void place_thread(void *arg)
{
    struct placement *placement = arg;

    placement->status = numa_bind_thread(placement->node, &placement->error);
}

/* Threads that copy between a device and memory work at the node of the device. */
static void place_loops(struct shoal_engine *engine)
{
    struct sockaddr_storage addr;
    struct hostport hostport;
    socklen_t len;

    engine->numa_node = -1;
    if (hostport_parse(&hostport, engine->address, NULL) != SHOAL_OK ||
        hostport_resolve(hostport.host, hostport.port, &addr, &len, NULL) != SHOAL_OK)
        return;
    engine->numa_node = numa_node_of_address((const struct sockaddr *)&addr);
    if (engine->numa_node >= 0 && numa_node_count() == 1)
        engine->numa_node = -1;
    for (unsigned i = 0; i < engine->loop_count && engine->numa_node >= 0; i++) {
        struct placement placement = {.node = (unsigned)engine->numa_node};

        loop_call(engine->loops[i], place_thread, &placement);
        if (placement.status != SHOAL_OK)
            LOG_WARN("I/O thread %u: %s; it runs anywhere", i, placement.error.message);
    }
}

static bool on_notify(void *arg, const char *peer, const char *name, const void *message, size_t len)
{
    struct shoal_engine *engine = arg;
    shoal_notify_fn fn;
    void *fn_arg;

    mutex_lock(&engine->mutex);
    fn = engine->notify_fn;
    fn_arg = engine->notify_arg;
    if (fn)
        engine->notify_running++;
    mutex_unlock(&engine->mutex);
    if (!fn)
        return false;
    fn(fn_arg, peer, name, message, len);
    mutex_lock(&engine->mutex);
    if (--engine->notify_running == 0)
        cond_broadcast(&engine->changed);
    mutex_unlock(&engine->mutex);
    return true;
}

static void unsupported_transport(const char *name, struct shoal_error *error)
{
    const char *const *names = transport_names();
    char list[128] = "";

    for (size_t i = 0; names[i]; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    if (strcmp(name, "rdma") == 0 || strcmp(name, "ucx") == 0)
        error_set(error, SHOAL_UNSUPPORTED, 0, "transport '%s' is not built in (there is: %s)", name, list);
    else
        error_set(error, SHOAL_INVALID_ARGUMENT, 0, "unknown transport '%.64s' (there is: %s)", name, list);
}

enum shoal_status shoal_engine_install_transport(struct shoal_engine *engine, const char *name, const char *args,
                                                 struct shoal_error *error)
{
    const struct transport_ops *ops;
    struct transport_env env;
    struct transport *instance;
    struct shoal_error why;
    enum shoal_status status;
    bool is_installed = false, is_full;

    if (!engine || !name)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine and name are required");
    ops = transport_find(name);
    if (!ops) {
        unsupported_transport(name, &why);
        return error_copy(error, &why);
    }
    mutex_lock(&engine->mutex);
    for (unsigned i = 0; i < engine->transport_count; i++)
        is_installed |= engine->transports[i].ops == ops;
    is_full = engine->transport_count == ENGINE_TRANSPORTS_MAX;
    mutex_unlock(&engine->mutex);
    if (is_installed)
        return SHOAL_OK;
    if (is_full)
        return error_set(error, SHOAL_LIMIT, 0, "more than %d transports", ENGINE_TRANSPORTS_MAX);
    env = (struct transport_env){.loop = engine->loops[0],
                                 .data_loops = engine->loops,
                                 .data_loop_count = engine->loop_count,
                                 .endpoint = engine->endpoint,
                                 .memory = engine->memory,
                                 .shared = engine->shared,
                                 .connect_timeout_ms = engine->connect_timeout_ms,
                                 .progress_timeout_ms = engine->progress_timeout_ms,
                                 .upload_limit_bytes_per_s = engine->upload_limit_bytes_per_s,
                                 .download_limit_bytes_per_s = engine->download_limit_bytes_per_s,
                                 .upload_slots = engine->upload_slots,
                                 .notify = on_notify,
                                 .notify_arg = engine,
                                 .args = args};
    status = ops->create(&env, &instance, error);
    if (status != SHOAL_OK)
        return status;
    mutex_lock(&engine->mutex);
    memmove(&engine->transports[1], &engine->transports[0], engine->transport_count * sizeof engine->transports[0]);
    engine->transports[0] = (struct engine_transport){ops, instance};
    __atomic_store_n(&engine->transport_count, engine->transport_count + 1, __ATOMIC_RELEASE); /* pairs with path.c */
    mutex_unlock(&engine->mutex);
    return SHOAL_OK;
}

static enum shoal_status install_protocol(struct shoal_engine *engine, const struct shoal_engine_config *config,
                                          struct shoal_error *error)
{
    const struct protocol *protocol = protocols;
    enum shoal_status status = SHOAL_OK;

    while (strcmp(protocol->name, config->protocol) != 0)
        protocol++;
    for (size_t i = 0; i < 3 && protocol->transports[i] && status == SHOAL_OK; i++) {
        const char *name = protocol->transports[i];
        const char *args = takes_matrix(name) ? config->nic_priority_matrix : NULL;

        status = shoal_engine_install_transport(engine, name, args, error);
    }
    if (status != SHOAL_OK)
        error_prefix(error, "protocol %s", config->protocol);
    return status;
}

enum shoal_status shoal_engine_create(const struct shoal_engine_config *public_config,
                                      const struct shoal_call *public_call, struct shoal_engine **engine_out,
                                      struct shoal_error *error)
{
    struct shoal_engine_config config;
    struct shoal_engine *engine;
    enum shoal_status status;
    struct call call;
    unsigned threads;

    if (!engine_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "engine_out is required");
    status = check_config(public_config, &config, error);
    if (status == SHOAL_OK)
        status = call_init(&call, public_call, DEFAULT_CALL_MS, error);
    if (status != SHOAL_OK)
        return status;
    engine = calloc(1, sizeof *engine);
    if (!engine)
        return error_no_memory(error);
    mutex_init(&engine->mutex, RANK_ENGINE);
    cond_init(&engine->changed);
    list_init(&engine->peers);
    list_init(&engine->started);
    list_init(&engine->spare_xfers);
    engine->lease_ttl_ms = config.lease_ttl_ms;
    engine->connect_timeout_ms = config.connect_timeout_ms;
    engine->progress_timeout_ms = config.progress_timeout_ms;
    engine->upload_limit_bytes_per_s = config.upload_limit_bytes_per_s;
    engine->download_limit_bytes_per_s = config.download_limit_bytes_per_s;
    engine->upload_slots = config.upload_slots;
    engine->path_retry_ms = ENGINE_PATH_RETRY_MS;
    engine->cluster = strdup(config.cluster);
    if (!engine->cluster) {
        status = error_no_memory(error);
        goto destroy;
    }
    status = meta_open(config.metadata_uri, &engine->meta, error);
    if (status != SHOAL_OK)
        goto destroy;
    threads = config.io_threads ? config.io_threads : default_io_threads();
    for (unsigned i = 0; i < threads; i++) {
        char name[24];

        snprintf(name, sizeof name, "shoal-io-%u", i);
        status = loop_create(name, &engine->loops[i], error);
        if (status != SHOAL_OK)
            goto destroy;
        engine->loop_count++;
    }
    status = memory_table_create(&engine->memory, error);
    if (status == SHOAL_OK)
        status = shared_table_create(&engine->shared, error);
    if (status == SHOAL_OK)
        status = bind_endpoint(engine, &config, error);
    if (status == SHOAL_OK)
        place_loops(engine);
    if (status == SHOAL_OK)
        status = install_protocol(engine, &config, error);
    if (status == SHOAL_OK)
        status = endpoint_start(engine->endpoint, engine->server_name, error);
    if (status == SHOAL_OK)
        status = membership_create(engine, &call, &engine->membership, error);
    if (status != SHOAL_OK)
        goto destroy;
    LOG_INFO("node '%s' at %s", engine->server_name, engine->address);
    *engine_out = engine;
    return SHOAL_OK;

destroy:
    shoal_engine_destroy(engine);
    return status;
}

static void close_on_loop(void *arg)
{
    struct shoal_engine *engine = arg;

    engine->is_closing = true;
    engine_cancel_local(engine, NULL);
}

static void release_on_loop(void *arg)
{
    engine_release_spares(arg);
}

void shoal_engine_destroy(struct shoal_engine *engine)
{
    struct list_node *node;

    if (!engine)
        return;
    membership_destroy(engine->membership);
    if (engine->loop_count > 0)
        loop_call(engine->loops[0], close_on_loop, engine);
    mutex_lock(&engine->mutex);
    while (engine->active_ops > 0)
        cond_wait(&engine->changed, &engine->mutex);
    mutex_unlock(&engine->mutex);
    for (unsigned i = 0; i < engine->transport_count; i++)
        engine->transports[i].ops->destroy(engine->transports[i].instance);
    endpoint_destroy(engine->endpoint);
    if (engine->loop_count > 0)
        loop_call(engine->loops[0], release_on_loop, engine);
    for (unsigned i = engine->loop_count; i > 0; i--)
        loop_destroy(engine->loops[i - 1]);
    while ((node = list_pop_front(&engine->peers)))
        free(container_of(node, struct engine_peer, node));
    memory_table_destroy(engine->memory);
    shared_table_destroy(engine->shared);
    meta_close(engine->meta);
    cond_release(&engine->changed);
    mutex_release(&engine->mutex);
    free(engine->server_name);
    free(engine->cluster);
    free(engine);
}

const char *shoal_engine_server_name(const struct shoal_engine *engine)
{
    return engine ? engine->server_name : NULL;
}

struct loop *engine_loop(struct shoal_engine *engine)
{
    return engine->loops[0];
}

struct endpoint *engine_endpoint(struct shoal_engine *engine)
{
    return engine->endpoint;
}

struct meta *engine_meta(struct shoal_engine *engine)
{
    return engine->meta;
}

const char *engine_address(const struct shoal_engine *engine)
{
    return engine->address;
}

uint64_t engine_instance(const struct shoal_engine *engine)
{
    return endpoint_instance(engine->endpoint);
}

int engine_numa_node(const struct shoal_engine *engine)
{
    return engine->numa_node;
}

const char *engine_cluster(const struct shoal_engine *engine)
{
    return engine->cluster;
}
