/* SPDX-License-Identifier: Apache-2.0 */
/* What happens in one run of the chaos test, as a function of the seed, and what a get may answer to it: pure. */
#ifndef SHOAL_TESTS_INTEGRATION_CHAOS_PLAN_H
#define SHOAL_TESTS_INTEGRATION_CHAOS_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CHAOS_NODES_MAX 7
#define CHAOS_EVENTS_MAX 64

/* X(NAME, text) */
#define CHAOS_KIND_MAP(X)                                                                                              \
    X(GET, "get")                                /* pulls, if it has nothing */                                        \
    X(GET_PRIVATE, "get no_share")               /* pulls without becoming a source */                                 \
    X(GET_AGAIN, "get reuse")                    /* pulls into parts of some generation, with some bytes corrupted */  \
    X(CANCEL, "cancel")                          /* ends its running pull */                                           \
    X(KILL, "kill")                              /* SIGKILL */                                                         \
    X(RESTART, "restart")                        /* under its old name, and pulls */                                   \
    X(STOP, "stop")                              /* SIGSTOP */                                                         \
    X(CONTINUE, "continue")                      /* SIGCONT */                                                         \
    X(CONTINUE_LATE, "continue after its lease") /* when it is out of the list of sources */                           \
    X(CUT, "cut")                                /* from everybody: packets get lost in silence */                     \
    X(HEAL, "heal")                                                                                                    \
    X(SLOW, "slow") /* what it sends */                                                                                \
    X(FAST, "fast")                                                                                                    \
    X(CORRUPT, "corrupt") /* bytes in the memory of a complete source */                                               \
    X(REPAIR, "repair")                                                                                                \
    X(DROP, "drop")               /* unregister or delete_replica */                                                   \
    X(FORCE, "force")             /* registers other bytes under the same name */                                      \
    X(META_STOP, "stop metadata") /* SIGSTOP */                                                                        \
    X(META_CONTINUE, "continue metadata")                                                                              \
    X(META_KILL, "kill metadata")                                                                                      \
    X(META_START, "start metadata") /* with its data */

enum chaos_kind {
#define CHAOS_KIND_ENUM(name, text) CHAOS_##name,
    CHAOS_KIND_MAP(CHAOS_KIND_ENUM)
#undef CHAOS_KIND_ENUM
};

struct chaos_event {
    enum chaos_kind kind;
    unsigned node;
    uint64_t after_bytes; /* pulled by all nodes together since the event before, or until nothing moves */
    unsigned order;       /* position in the plan before the sort; only for the generator */
};

struct chaos_plan {
    uint64_t seed;
    unsigned node_count;
    unsigned first_count; /* nodes 1 .. first_count pull from the start */
    uint64_t size;
    char cuts[CHAOS_NODES_MAX][160]; /* sizes of the regions of each node, "1,2,3" */
    uint64_t piece, shard;           /* 0: default */
    uint64_t rate_bps;               /* of each connection */
    uint64_t corrupt_every;          /* distance of the bytes that are corrupted */
    bool is_etcd;
    bool is_anchored; /* nothing happens to node 0: it has all, always */
    unsigned event_count;
    struct chaos_event events[CHAOS_EVENTS_MAX];
};

void chaos_plan_make(uint64_t seed, uint64_t max_size, struct chaos_plan *plan_out);
void chaos_plan_print(const struct chaos_plan *plan, FILE *out);
const char *chaos_kind_text(enum chaos_kind kind);

/* What was true at some moment while a get ran. */
struct chaos_facts {
    bool lacked_source; /* no complete, sound, listed source of the newest generation could be reached */
    bool lacked_meta;   /* the metadata service did not answer, to everybody or to this node */
    bool is_replaced;   /* another generation was registered */
    bool is_canceled;
    unsigned corrupt; /* bit i: node i served wrong bytes */
    /* Contents that may be delivered. */
    uint64_t first_content, last_content;
};

/* Whether a get that ended with this status told the truth: NULL, or what is wrong with it. */
const char *chaos_judge(const struct chaos_facts *facts, const char *status);

#endif
