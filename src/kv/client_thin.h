/* SPDX-License-Identifier: Apache-2.0 */
/* The table "thin": a connection to a mooncake_client of this host. thin_session.c has the session with its shared
 * memory and one call; client_thin.c makes calls of the operations. */
#ifndef SHOAL_KV_CLIENT_THIN_H
#define SHOAL_KV_CLIENT_THIN_H

#include "kv/client_internal.h"
#include "kv/local_socket.h"
#include "wire/kv_local.pb-c.h"

struct thin_region {
    bool is_used;
    int memfd; /* -1: none */
    char *memory;
    uint64_t len_bytes;
};

struct thin {
    struct rpc_channels *channels;
    char address[64];       /* of the local client, "ip:port" */
    struct kv_arena *arena; /* in region 0 */
    _Atomic uint64_t next_operation;
    struct mutex mutex;
    struct cond changed;
    bool is_busy;     /* a thread talks over the socket */
    int fd;           /* -1: not attached */
    uint64_t session; /* 0: not attached */
    struct thin_region regions[LOCAL_REGIONS_MAX];
    char owner[64]; /* where that client is reached by others */
};

/* Attaches. UNREACHABLE, TIMED_OUT, CANCELED, NO_MEMORY, LIMIT: the arena is larger than the local client allows. */
enum shoal_status thin_create(const char *address, const char *cluster, uint64_t arena_bytes, const struct call *call,
                              struct thin **thin_out, struct shoal_error *error);
void thin_destroy(struct thin *thin); /* NULL is allowed */

/* Sends one request whose caller field is caller, which is filled here. body_out: the answer. Returns only when the
 * local client does not work on it any more; is_quiet_out (may be NULL) false: that is not known, and memory it was
 * told of may still be written to. */
enum shoal_status thin_call(struct thin *thin, enum local_method method, const ProtobufCMessage *request,
                            Shoal__Wire__LocalCaller *caller, const struct call *call, struct buf *body_out,
                            bool *is_quiet_out, struct shoal_error *error);

/* Shared memory for one value. */
struct thin_place {
    void *memory; /* NULL: none */
    uint32_t region;
    uint64_t offset_bytes;
    bool is_callers; /* from shoal_kv_alloc */
};
/* From the arena. NO_MEMORY: full. */
enum shoal_status thin_place_take(struct thin *thin, uint64_t len_bytes, struct thin_place *place_out,
                                  struct shoal_error *error);
/* A region of its own; waits for one of a bounded number of slots, so whoever holds one must not ask again. */
enum shoal_status thin_place_map(struct thin *thin, uint64_t len_bytes, const struct call *call,
                                 struct thin_place *place_out, struct shoal_error *error);
/* not is_quiet: it is left alone for good; such places are as few as calls were running when a local client died. */
void thin_place_give(struct thin *thin, struct thin_place *place, bool is_quiet);

#endif
