/* SPDX-License-Identifier: Apache-2.0 */
/* One of several masters leads: who puts its address into the metadata service first, under a lease
 * (kv/election_key.h). The leader stops answering before its lease can end, so there are never two; the others answer
 * CONFLICT with its address and try again and again.
 *
 * Threads: create and destroy from one thread, not the master's loop. Its own thread does all requests. */
#ifndef SHOAL_MASTER_ELECTION_H
#define SHOAL_MASTER_ELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#include "master/service.h"

struct election;

struct election_config {
    const char *uri;                /* of the metadata service (meta/meta.h); copied */
    const char *cluster;            /* copied */
    const char *address;            /* of this master, as clients reach it; copied */
    struct master_service *service; /* borrowed; a standby */
    int64_t lease_ms;               /* 0: 4000; at least 1000 */
};
/* The service need not be up. INVALID_ARGUMENT: malformed URI. NO_MEMORY, LIMIT. */
enum shoal_status election_create(const struct election_config *config, struct election **election_out,
                                  struct shoal_error *error);
/* A leader gives up its lease, so that another can lead at once (bounded wait). NULL is allowed. */
void election_destroy(struct election *election);

#endif
