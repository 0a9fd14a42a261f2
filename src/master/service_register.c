/* SPDX-License-Identifier: Apache-2.0 */
/* Registration. A process that was killed and started again has its old name before the old life is over: so a name's
 * holder is asked at its address whether it is still there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "master/service_internal.h"

#define LOG_MODULE "master"
#include "base/log.h"

#define PROBE_TIMEOUT_MS 1000
#define PROBES_MAX 64u

struct probe {
    struct list_node node;                       /* linked nowhere once the service is gone */
    struct master_service *service;              /* NULL: it is gone */
    struct rpc_request *request;                 /* NULL: answered or aborted */
    Shoal__Wire__MasterRegisterRequest *message; /* owned */
    uint64_t holder;                             /* instance that has the name */
    struct endpoint_dial *dial;
};

static void reply_registered(struct master_service *service, struct rpc_request *request, const struct client *client,
                             const Shoal__Wire__MasterRegisterRequest *message)
{
    Shoal__Wire__MasterRegisterResponse response = SHOAL__WIRE__MASTER_REGISTER_RESPONSE__INIT;

    service->counters.registrations++;
    LOG_INFO("%s registered at %s with %" PRIu64 " objects to announce", client->server_name, client->address,
             message->object_count);
    response.master_instance = service->instance;
    response.client_ttl_ms = (uint32_t)registry_ttl_ms(service->registry);
    response.heartbeat_ms = response.client_ttl_ms / 5 ? response.client_ttl_ms / 5 : 1;
    service_reply(request, &response.base);
    if (client->has_stale)
        service_post_work(service);
    service_look_settled(service);
}

static enum shoal_status try_register(struct master_service *service, const Shoal__Wire__MasterRegisterRequest *message,
                                      struct client **client_out, struct client **holder_out, struct shoal_error *error)
{
    struct client_tier tiers[CLIENT_TIERS_MAX];
    const Shoal__Wire__MasterClient *client = message->client;
    struct registration registration = {.instance = client->instance,
                                        .server_name = client->server_name,
                                        .address = client->address,
                                        .tiers = tiers,
                                        .tier_count = client->n_tiers,
                                        .object_count = message->object_count};

    for (size_t i = 0; i < client->n_tiers && i < CLIENT_TIERS_MAX; i++)
        tiers[i] = (struct client_tier){.type = client->tiers[i]->type,
                                        .priority = client->tiers[i]->priority,
                                        .capacity_bytes = client->tiers[i]->capacity_bytes,
                                        .used_bytes = client->tiers[i]->used_bytes};
    return registry_register(service->registry, &registration, clock_now_ms(), client_out, holder_out, error);
}

/* --- a name that somebody has --- */

static void probe_free(struct probe *probe)
{
    list_remove(&probe->node);
    if (probe->service)
        probe->service->probe_count--;
    shoal__wire__master_register_request__free_unpacked(probe->message, NULL);
    free(probe);
}

static void on_abort(struct rpc_request *request)
{
    struct probe *probe = request->arg;

    probe->request = NULL; /* the dial's end frees it */
}

static void on_probed(void *arg, enum shoal_status status, int fd, const struct hello *peer,
                      const struct shoal_error *dial_error)
{
    struct probe *probe = arg;
    struct master_service *service = probe->service;
    struct client *client = NULL, *holder = NULL;
    struct shoal_error error;

    (void)peer;
    (void)dial_error;
    if (fd >= 0)
        close(fd);
    if (!probe->request || !service)
        goto done;
    holder = registry_find(service->registry, probe->holder);
    /* Refused, or another process answers there: it is dead. Silence may be anything, so its ttl decides. */
    if (status == SHOAL_UNREACHABLE && holder) {
        LOG_INFO("%s is dead and has begun a new life: its %zu routes go", holder->server_name,
                 routes_of_client(service->routes, holder->slot));
        service->counters.replaced++;
        registry_end(service->registry, holder);
        service_post_work(service);
    }
    status = try_register(service, probe->message, &client, &holder, &error);
    if (status) {
        service->counters.names_in_use += status == SHOAL_NAME_IN_USE;
        rpc_reply(probe->request, status, error.message, NULL, 0);
    } else {
        reply_registered(service, probe->request, client, probe->message);
    }
done:
    probe_free(probe);
}

/* false: it is not asked. Else message is taken and the request will be answered. */
static bool probe_start(struct master_service *service, struct rpc_request *request,
                        Shoal__Wire__MasterRegisterRequest *message, const struct client *holder)
{
    struct probe *probe = service->probe_count < PROBES_MAX ? calloc(1, sizeof *probe) : NULL;

    if (!probe)
        return false;
    *probe = (struct probe){.service = service, .request = request, .holder = holder->instance};
    if (endpoint_dial(service->config.endpoint, holder->address, holder->instance, HELLO_CHANNEL_PROBE,
                      PROBE_TIMEOUT_MS, on_probed, probe, &probe->dial, NULL)) {
        free(probe);
        return false;
    }
    probe->message = message;
    list_push_back(&service->probes, &probe->node);
    service->probe_count++;
    request->arg = probe;
    request->on_abort = on_abort;
    return true;
}

void register_end_all(struct master_service *service, enum shoal_status status, const char *text)
{
    LIST_FOR_EACH_SAFE (probe, &service->probes, struct probe, node) {
        list_remove(&probe->node);
        service->probe_count--;
        probe->service = NULL;
        if (probe->request)
            rpc_reply(probe->request, status, text, NULL, 0);
        probe->request = NULL;
        endpoint_dial_cancel(probe->dial);
    }
}

/* --- method 1 --- */

void register_on_request(void *arg, struct rpc_request *request)
{
    struct master_service *service = arg;
    Shoal__Wire__MasterRegisterRequest *message;
    struct client *client = NULL, *holder = NULL;
    struct shoal_error error;
    enum shoal_status status;

    if (!service_admits(service, request, METHOD_REGISTER))
        return;
    message = wire_unpack(&shoal__wire__master_register_request__descriptor, NULL, request->body_len, request->body);
    if (!message || !message->client) {
        service_refuse_malformed(service, request);
        goto free_message;
    }
    status = try_register(service, message, &client, &holder, &error);
    if (status == SHOAL_NAME_IN_USE && probe_start(service, request, message, holder))
        return;
    if (status) {
        service->counters.names_in_use += status == SHOAL_NAME_IN_USE;
        rpc_reply(request, status, error.message, NULL, 0);
    } else {
        reply_registered(service, request, client, message);
    }

free_message:
    if (message)
        shoal__wire__master_register_request__free_unpacked(message, NULL);
}
