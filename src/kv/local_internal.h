/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of local_service: sessions and their shared memory (local_sessions.c), operations (local_service.c). Everything
 * here belongs to the service's loop, except what a worker does with the operation that it was given. */
#ifndef SHOAL_KV_LOCAL_INTERNAL_H
#define SHOAL_KV_LOCAL_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/executor.h"
#include "base/list.h"
#include "base/map.h"
#include "kv/local_service.h"
#include "kv/local_socket.h"
#include "loop/loop.h"
#include "rpc/rpc.h"
#include "transport/endpoint.h"

#define LOCAL_SOCKET_NAME_BYTES 48

/* Memory of a client's, mapped and registered here. */
struct local_region {
    struct local_service *service; /* borrowed */
    void *memory;
    uint64_t len_bytes;
    unsigned refs; /* its session's, and one per operation that uses it */
    struct executor_task task;
};

/* One attached process: lives as long as its socket and the operations that it began. */
struct local_session {
    struct list_node node;
    struct local_service *service; /* borrowed */
    uint64_t id;                   /* 0: has not said hello */
    int fd;                        /* -1: closed */
    struct loop_io io;
    unsigned refs;          /* the socket's, and one per operation */
    struct list operations; /* struct local_operation.session_node */
    struct local_region *regions[LOCAL_REGIONS_MAX];
};

struct local_counters {
    uint64_t sessions, refused, operations;
};

struct local_service {
    struct shoal_kv *kv; /* borrowed */
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct executor *workers, *reaper; /* the reaper unmaps: that waits for transfers */
    unsigned max_clients;
    uint64_t max_bytes;
    int listen_fd;
    struct loop_io listen_io;
    struct loop_timer listen_again;            /* no descriptor was left */
    char socket_name[LOCAL_SOCKET_NAME_BYTES]; /* abstract, without the leading NUL */
    uint8_t token[LOCAL_TOKEN_BYTES];
    struct list sessions;
    struct map sessions_by_id;
    unsigned session_count;
    unsigned operation_count;
    bool is_stopping;
    _Atomic unsigned region_count; /* mapped, also those that wait for the reaper */
    _Atomic uint64_t mapped_bytes;
    struct local_counters counters;
};

/* Fills error. Loop thread. */
enum shoal_status local_sessions_listen(struct local_service *service, struct shoal_error *error);
/* Closes the socket and every session. Loop thread. */
void local_sessions_close(struct local_service *service);
void local_session_unref(struct local_session *session);
void local_region_unref(struct local_region *region);
/* The session's operation with that number is to end early. */
void local_operation_cancel(struct local_session *session, uint64_t number);
void local_operations_cancel_all(struct local_session *session);

#endif
