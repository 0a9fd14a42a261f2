/* SPDX-License-Identifier: Apache-2.0 */
#include "master/master.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/hostport.h"
#include "base/log.h"
#include "loop/loop.h"
#include "master/service.h"
#include "rpc/rpc.h"
#include "transport/endpoint.h"

#define LOG_MODULE "master"

#define MAX_CONNECTIONS 16384u
#define METRICS_MAX_BYTES (1u << 20)

struct master {
    struct loop *loop; /* all four owned */
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct master_service *service;
};

enum shoal_status master_create(const struct master_config *config, struct master **master_out,
                                struct shoal_error *error)
{
    struct endpoint_config endpoint = {.bind_host = config->host,
                                       .bind_port = config->port,
                                       .cluster = config->cluster,
                                       .max_connections =
                                           config->max_connections ? config->max_connections : MAX_CONNECTIONS};
    struct master_service_config service = {.client_ttl_ms = config->client_ttl_ms,
                                            .settle_ms = config->settle_ms,
                                            .announce_ms = config->announce_ms,
                                            .max_clients = config->max_clients,
                                            .is_standby = config->is_standby};
    struct master *master = calloc(1, sizeof *master);
    struct shoal_error local;
    enum shoal_status status;

    if (!master)
        return error_no_memory(error);
    status = loop_create("master", &master->loop, error);
    if (status)
        goto fail;
    endpoint.loop = service.loop = master->loop;
    status = endpoint_create(&endpoint, &master->endpoint, error);
    if (status)
        goto fail;
    status = rpc_create(master->loop, master->endpoint, &master->rpc, error);
    if (status)
        goto fail;
    service.endpoint = master->endpoint;
    service.rpc = master->rpc;
    status = master_service_create(&service, &master->service, error);
    if (status)
        goto fail;
    status = endpoint_start(master->endpoint, endpoint_address(master->endpoint), error);
    if (status)
        goto fail;
    if (endpoint_listen_local(master->endpoint, &local))
        LOG_WARN("clients of this host come by TCP: %s", local.message);
    *master_out = master;
    return SHOAL_OK;

fail:
    master_destroy(master);
    return status;
}

void master_destroy(struct master *master)
{
    if (!master)
        return;
    master_service_destroy(master->service);
    rpc_destroy(master->rpc);
    endpoint_destroy(master->endpoint);
    loop_destroy(master->loop);
    free(master);
}

const char *master_address(const struct master *master)
{
    return endpoint_address(master->endpoint);
}

bool master_is_exposed(const struct master *master)
{
    const char *address = endpoint_address(master->endpoint);

    return strncmp(address, "127.", 4) != 0 && strncmp(address, "[::1]:", 6) != 0;
}

struct master_service *master_service_of(struct master *master)
{
    return master->service;
}

char *master_metrics(struct master *master)
{
    struct buf text;

    buf_init(&text, METRICS_MAX_BYTES);
    if (!master_service_metrics(master->service, &text)) {
        buf_release(&text);
        return NULL;
    }
    return (char *)buf_take(&text, NULL);
}
