/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_master.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

#include "master/service.h"

static void check(enum shoal_status status, const struct shoal_error *error, const char *what)
{
    if (status)
        fail_msg("%s: %s", what, error->message);
}

void kv_master_start(struct kv_master *master, uint16_t port, int64_t client_ttl_ms, int64_t settle_ms)
{
    struct endpoint_config endpoint_config = {.bind_host = "127.0.0.1",
                                              .bind_port = port,
                                              .cluster = "default",
                                              .max_connections = 1024,
                                              .max_handshakes = 64};
    struct master_service_config config = {.client_ttl_ms = client_ttl_ms, .settle_ms = settle_ms};
    struct shoal_error error;

    *master = (struct kv_master){0};
    check(loop_create("test-master", &master->loop, &error), &error, "loop");
    endpoint_config.loop = master->loop;
    check(endpoint_create(&endpoint_config, &master->endpoint, &error), &error, "endpoint");
    check(rpc_create(master->loop, master->endpoint, &master->rpc, &error), &error, "rpc");
    config.loop = master->loop;
    config.endpoint = master->endpoint;
    config.rpc = master->rpc;
    check(master_service_create(&config, &master->service, &error), &error, "master");
    snprintf(master->address, sizeof master->address, "%s", endpoint_address(master->endpoint));
    check(endpoint_start(master->endpoint, master->address, &error), &error, "endpoint");
}

void kv_master_stop(struct kv_master *master)
{
    master_service_destroy(master->service);
    rpc_destroy(master->rpc);
    endpoint_destroy(master->endpoint);
    loop_destroy(master->loop);
    *master = (struct kv_master){0};
}
