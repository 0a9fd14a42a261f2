/* SPDX-License-Identifier: Apache-2.0 */
/* The master's methods (wire/master.proto) on an rpc server: registry and routes behind requests. Work that may be
 * large (announcements, lookups, removals, lists) is done in slices between which the loop turns, so that a heartbeat
 * never waits for it; while the master has just begun, answers about unknown keys are held until those who held them
 * before have announced.
 *
 * Threads: create and destroy not on the loop; the rest says so. */
#ifndef SHOAL_MASTER_SERVICE_H
#define SHOAL_MASTER_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "loop/loop.h"
#include "rpc/rpc.h"
#include "transport/endpoint.h"

struct master_service;

struct master_service_config {
    struct loop *loop;         /* borrowed, as the next two */
    struct endpoint *endpoint; /* asks at a name's old address whether its owner still lives */
    struct rpc *rpc;
    int64_t client_ttl_ms; /* 0: 10000 */
    int64_t settle_ms;     /* of its life: who lived before registers again; 0: 1000 */
    int64_t announce_ms;   /* and for what they hold: so long after the last news of it; 0: 10000 */
    uint32_t max_clients;  /* 0: 4096 */
    unsigned local_weight; /* of the writer itself as a target; 0: 4 */
    bool is_standby;       /* begins as one: until master_service_lead it answers CONFLICT */
};
enum shoal_status master_service_create(const struct master_service_config *config, struct master_service **service_out,
                                        struct shoal_error *error);
/* Aborts what is held. NULL is allowed. */
void master_service_destroy(struct master_service *service);

uint64_t master_service_instance(const struct master_service *service);

/* Any thread: from now on until until_ms (base/clock.h) it answers, beginning anew: nothing is known, everybody
 * registers again. */
void master_service_lead(struct master_service *service, int64_t until_ms);
/* Any thread: a leader may answer for longer. */
void master_service_extend(struct master_service *service, int64_t until_ms);
/* Any thread: from now on it answers CONFLICT with the leader's address (may be ""); when it returns no answer of a
 * leader will be given any more. */
void master_service_follow(struct master_service *service, const char *leader_address);

/* Any thread; waits for the loop. shoal_master_* as Prometheus text. false: out of memory. */
bool master_service_metrics(struct master_service *service, struct buf *out);
/* Any thread; waits for the loop: does it answer questions now? */
bool master_service_is_ready(struct master_service *service);

#endif
