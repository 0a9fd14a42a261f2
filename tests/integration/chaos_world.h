/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of one run of the chaos test and what is known about them. The network is made once per program. */
#ifndef SHOAL_TESTS_INTEGRATION_CHAOS_WORLD_H
#define SHOAL_TESTS_INTEGRATION_CHAOS_WORLD_H

#include "itest.h"

#include "base/random.h"
#include "chaos_plan.h"
#include "etcd_server.h"

#define CHAOS_LEASE_MS 3000

enum member_state {
    MEMBER_DEAD,     /* no process */
    MEMBER_CREATING, /* joins; repeated while its previous life has the name */
    MEMBER_IDLE,     /* has nothing */
    MEMBER_GETTING,
    MEMBER_HOLDING, /* complete, gold or replica */
};

struct member {
    enum member_state state;
    struct node *node; /* NULL: dead */
    char name[64];     /* server name; stays over all lives */
    unsigned lives;
    unsigned command;                   /* the create or get that runs */
    unsigned get_when_joined;           /* enum get_wish */
    int64_t fds_before, threads_before; /* of the process before it had a store */
    bool is_stopped, is_cut, is_corrupt, is_gold, is_private;
    uint64_t content;        /* that it holds */
    uint64_t done;           /* of the running get, as last seen */
    int64_t listed_since_ms; /* in the list of sources without a break and undisturbed; 0: is not */
    int64_t healed_ms;       /* when a cut ended (or began); 0: there was none */
    struct chaos_facts facts;
};

struct world {
    struct fixture *fixture; /* owned through itest_setup */
    struct chaos_plan plan;
    struct random random;      /* for what the plan leaves open */
    struct etcd_cluster *etcd; /* owned; NULL: SQLite */
    struct member members[CHAOS_NODES_MAX];
    struct node *observer; /* nothing ever happens to it */
    unsigned observation;  /* its stat that runs; 0: none */
    int64_t observed_ms;
    bool is_observed_well;  /* the last one was answered */
    bool is_meta_disturbed; /* stopped or killed and not seen well since it came back */
    bool is_meta_away;
    uint64_t last_content; /* of the newest registration; contents are 1, 2, ... */
    uint64_t sure_content; /* of the newest one that is known to have succeeded */
    uint64_t moved_bytes;  /* pulled by everybody so far */
    int64_t moved_ms;
    unsigned gets, good_gets;
    bool is_passed;
};

/* Makes the network namespaces. false, said on stderr: not allowed here, so nobody can be cut. */
bool chaos_net_create(void);

/* Observer and members are there; node 0 has registered content 1. */
void world_start(struct world *world);
/* Looks at everything that has happened by itself: judges pulls that ended, follows restarts, notes facts. */
void world_look(struct world *world);
/* Does it, or says that it makes no sense now. */
void world_do(struct world *world, const struct chaos_event *event);
/* Everything is undone that was done to nodes, network and metadata; every pull that runs has ended and was judged. */
void world_heal(struct world *world);
/* Everybody must now get the payload; then nothing may be left behind. */
void world_finish(struct world *world);
/* If nobody pulls, somebody does it again: events shall meet pulls. */
void world_keep_busy(struct world *world);
bool world_is_pulling(const struct world *world);

#endif
