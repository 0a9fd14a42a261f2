/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the service. Loop thread. */
#ifndef SHOAL_MASTER_SERVICE_INTERNAL_H
#define SHOAL_MASTER_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include "base/pattern.h"
#include "master/arena.h"
#include "master/registry.h"
#include "master/routes.h"
#include "master/service.h"
#include "master/tombstones.h"
#include "wire/master.pb-c.h"
#include "wire/unpack.h"

#define MASTER_BATCH_MAX 4096u
#define MASTER_DROPS_PER_HEARTBEAT 1024u
#define MASTER_TARGETS_PER_HEARTBEAT 16u

enum master_method {
    METHOD_REGISTER = 1,
    METHOD_HEARTBEAT = 2,
    METHOD_ANNOUNCE = 3,
    METHOD_LOOKUP = 4,
    METHOD_WRITE_ROUTE = 5,
    METHOD_REMOVE = 6,
    METHOD_LIST = 7,
    METHOD_STATUS = 8,
    METHOD_COUNT
};

struct service_counters {
    uint64_t requests[METHOD_COUNT];
    uint64_t malformed, refused_busy, held, held_timeouts;
    uint64_t registrations, names_in_use, replaced, expired, left, stalls;
    uint64_t announced, conflicts, tombstone_hits, looked_up, not_found, removed, drops;
};

struct master_service {
    struct master_service_config config;
    struct registry *registry;
    struct routes *routes;
    struct tombstones tombstones;
    uint64_t instance;
    int64_t born_ms;        /* for the uptime */
    int64_t settle_from_ms; /* born, or the end of the last stall while not settled */
    int64_t progress_ms;    /* when a client last announced what it had held */
    bool is_settled;        /* for good: unknown keys are unknown */
    bool is_leader;
    atomic_int_least64_t lead_until_ms; /* a lease may end while this process does not run: looked at before answers */
    char *leader_address;               /* owned; of another one, when it is known */
    struct loop_timer tick_timer, wake_timer;
    struct list running, held; /* struct job: to be gone on with; waiting for news */
    struct list probes;
    unsigned probe_count;
    size_t job_count, job_bytes;
    struct loop_task work;
    bool is_work_posted;
    bool is_ending;                      /* no more work is posted */
    struct target_candidate *candidates; /* owned; scratch, max_clients */
    struct service_counters counters;
};

/* --- service_jobs.c: requests that are done in slices --- */

enum job_step {
    JOB_AGAIN, /* there is more to do */
    JOB_HELD,  /* waits for clients to announce */
    JOB_DONE,  /* answered */
};

struct job {
    struct list_node node;
    struct master_service *service;
    struct rpc_request *request;
    enum job_step (*step)(struct job *job);
    ProtobufCMessage *message; /* owned */
    struct arena arena;
    size_t body_len;
    int64_t deadline_ms; /* when a held one is answered with what is known */
    bool is_late, was_held;
    size_t next, pending; /* entries: the next one of this pass; left open by it so far */
    int32_t *statuses;
    /* of answers with replicas */
    Shoal__Wire__MasterRoute **routes;
    Shoal__Wire__MasterClient **clients;
    size_t client_count, client_capacity;
    uint16_t *client_index; /* by slot: place in clients + 1 */
    bool is_looked;         /* lookup: nothing is left to wait for */
    /* list */
    struct pattern *pattern; /* owned */
    Shoal__Wire__MasterListResponse__Entry **entries;
    size_t entry_count, limit;
    char *cursor; /* in the arena: the last key visited */
    size_t cursor_len;
    bool is_inclusive, is_end, is_out_of_memory;
    /* write_route */
    struct target_candidate *candidates;
    size_t candidate_count;
    Shoal__Wire__MasterTarget **targets;
};

/* The handlers of methods 3 to 7. */
void jobs_on_announce(void *arg, struct rpc_request *request);
void jobs_on_lookup(void *arg, struct rpc_request *request);
void jobs_on_write_route(void *arg, struct rpc_request *request);
void jobs_on_remove(void *arg, struct rpc_request *request);
void jobs_on_list(void *arg, struct rpc_request *request);

/* Takes message. Answers BUSY if there are too many. Runs the first slice. */
void job_start(struct master_service *service, struct rpc_request *request, ProtobufCMessage *message,
               enum job_step (*step)(struct job *job));
enum job_step job_fail(struct job *job, enum shoal_status status, const char *text);
/* Unanswered requests are answered with status; all jobs are gone then. */
void jobs_end_all(struct master_service *service, enum shoal_status status, const char *text);
/* Goes on with a job that was taken from running. */
void jobs_go_on(struct job *job);
/* Held jobs look again. */
void jobs_wake(struct master_service *service);

/* --- service.c --- */

bool service_is_leading(struct master_service *service);
/* Counts the request; false: it is answered already, since this is not the leader. */
bool service_admits(struct master_service *service, struct rpc_request *request, enum master_method method);
void service_refuse_malformed(struct master_service *service, struct rpc_request *request);
/* Packs message as the answer. */
void service_reply(struct rpc_request *request, const ProtobufCMessage *message);
/* More of jobs or sweeping to do: after the loop has turned. */
void service_post_work(struct master_service *service);
/* The route of key among live clients; what dead ones held of it is forgotten on the spot. */
bool service_find_route(struct master_service *service, const char *key, struct route_view *view_out);
void service_finish_announcing(struct master_service *service, struct client *client);
void service_look_settled(struct master_service *service);
const char *service_key_problem(const char *key); /* NULL: it is fine */

/* --- service_register.c --- */

void register_on_request(void *arg, struct rpc_request *request);
/* Names that are being asked about: they end without an answer from here. */
void register_end_all(struct master_service *service, enum shoal_status status, const char *text);

#endif
