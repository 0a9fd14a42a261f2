/* SPDX-License-Identifier: Apache-2.0 */
/* What mooncake_client serves at its --port: shoal/kv.h for other processes of this host and user
 * (wire/kv_local.proto), on behalf of a KV client that lives in this process. Operations run on a bounded number of
 * worker threads; a process that dies loses its session, its operations are canceled and its memory is unmapped.
 *
 * Threads: every function from any thread but an event loop. */
#ifndef SHOAL_KV_LOCAL_SERVICE_H
#define SHOAL_KV_LOCAL_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/kv.h>
#include <shoal/status.h>

#include "base/buf.h"

struct local_service;

struct local_service_config {
    struct shoal_kv *kv;     /* borrowed; not itself a connection to a local client */
    const char *bind_host;   /* NULL: "127.0.0.1" */
    uint16_t port;           /* 0: a free one */
    const char *cluster;     /* NULL: "default"; copied */
    unsigned worker_threads; /* operations at a time; 0: 16 */
    unsigned max_clients;    /* attached at a time; 0: 64 */
    uint64_t max_bytes;      /* shared memory of all of them together; 0: 64 GiB (it is theirs, this only maps it) */
};
/* NAME_IN_USE: the port is taken; ADDRESS; INVALID_ARGUMENT; NO_MEMORY. */
enum shoal_status local_service_create(const struct local_service_config *config, struct local_service **service_out,
                                       struct shoal_error *error);
/* Cancels what is going on and waits for it. NULL is allowed. */
void local_service_destroy(struct local_service *service);

uint16_t local_service_port(const struct local_service *service);
/* Prometheus text: shoal_kv_local_*. false: out of memory. */
bool local_service_metrics(struct local_service *service, struct buf *out);

#endif
