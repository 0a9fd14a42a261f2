/* SPDX-License-Identifier: Apache-2.0 */
/* A KV master: loop, endpoint and rpc around the service. Knows which client holds which key, and never sees data.
 *
 * Threads: any. */
#ifndef SHOAL_MASTER_MASTER_H
#define SHOAL_MASTER_MASTER_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

struct master;

struct master_config {
    const char *host; /* to listen at; numeric, or a name of this machine */
    uint16_t port;    /* 0: any free one */
    const char *cluster;
    int64_t client_ttl_ms;    /* 0: 10000 */
    int64_t settle_ms;        /* 0: 1000 */
    int64_t announce_ms;      /* 0: 10000 */
    uint32_t max_clients;     /* 0: 4096 */
    unsigned max_connections; /* 0: 16384 */
    bool is_standby;
};

/* Listens and answers. ADDRESS: host is not of this machine. NAME_IN_USE: the port is taken. INVALID_ARGUMENT, IO,
 * NO_MEMORY. */
enum shoal_status master_create(const struct master_config *config, struct master **master_out,
                                struct shoal_error *error);
/* Answers no more; clients find out when their connections close. NULL is allowed. */
void master_destroy(struct master *master);

const char *master_address(const struct master *master); /* "ip:port", lives as long as master */
/* Others than this machine can reach it. */
bool master_is_exposed(const struct master *master);
struct master_service *master_service_of(struct master *master);
/* Prometheus text, freed by the caller. NULL: out of memory. */
char *master_metrics(struct master *master);

#endif
