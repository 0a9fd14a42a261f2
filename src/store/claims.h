/* SPDX-License-Identifier: Apache-2.0 */
/* The upload slots of one payload at this node: answers the claims of its receivers (swarm/handout.h decides). Belongs
 * to loop 0. */
#ifndef SHOAL_STORE_CLAIMS_H
#define SHOAL_STORE_CLAIMS_H

#include "base/list.h"
#include "base/map.h"
#include "loop/loop.h"
#include "rpc/rpc.h"
#include "swarm/handout.h"

struct payload;

struct claims {
    struct handout *handout;     /* owned; NULL: nobody has claimed anything */
    struct map by_name;          /* struct claimant, owned */
    struct claimant **by_number; /* owned array: by number in handout */
    uint32_t number_capacity;
    struct list heard;   /* struct claimant, the one that has been silent for longest first */
    struct list waiting; /* struct claimant whose claim is not answered, oldest first */
    struct loop_timer timer;
    bool has_timer;
};

/* claims is zeroed memory. On error nothing is left to release. */
enum shoal_status claims_init(struct claims *claims, struct loop *loop, struct shoal_error *error);
/* Answers those who wait with NOT_FOUND. Harmless without init, and repeated. */
void claims_release(struct claims *claims);

/* Handles a claim request for payload (an rpc handler has found it). */
void claims_request(struct payload *payload, struct rpc_request *request, uint32_t wanted, uint32_t outstanding,
                    uint32_t wait_ms, const uint32_t *taken, size_t taken_count);
/* The receiver is there. Whoever is not heard of for RECEIVER_SILENCE_MS has left. Harmless for others. */
void claims_heard(struct claims *claims, const char *name);
/* The receiver that made this request (of any method) has left or is lost: what it had been given is for others again.
 * Harmless for others, and if it has claimed by another connection since. */
void claims_leave(struct claims *claims, const struct rpc_request *request);

#endif
