/* SPDX-License-Identifier: Apache-2.0 */
/* A client of a KV master for tests: blocking calls from the test's thread, one connection, no session behind it. */
#ifndef SHOAL_TESTS_MASTER_CLIENT_H
#define SHOAL_TESTS_MASTER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/rpc.h"
#include "wire/master.pb-c.h"

#define MASTER_CLIENT_WAIT_MS 60000

struct master_client {
    struct loop *loop; /* all owned */
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct rpc_client *handle;
    char name[64], address[64];
    uint64_t instance;
    struct shoal_error error; /* of the last failed call */
};

/* Listens at a free port of 127.0.0.1; name NULL: its address. Fails the test if it cannot. */
void master_client_open(struct master_client *client, const char *master, const char *name);
void master_client_close(struct master_client *client); /* without goodbye */
/* Another connection (it may have been lost, or the master have another address). */
void master_client_reconnect(struct master_client *client, const char *master);

/* The unpacked answer, freed by the caller; NULL: *status_out says why. timeout_ms 0: long. */
void *master_client_call(struct master_client *client, uint16_t method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *answer, int64_t timeout_ms, enum shoal_status *status_out);

/* A call whose answer is fetched later. */
struct master_call;
struct master_call *master_client_begin(struct master_client *client, uint16_t method, const ProtobufCMessage *request,
                                        int64_t timeout_ms);
bool master_call_is_done(struct master_call *call);
void *master_call_end(struct master_call *call, const ProtobufCMessageDescriptor *answer, enum shoal_status *status_out,
                      struct shoal_error *error);

/* Shorthands. One tier of capacity bytes (0: none). */
enum shoal_status master_client_register(struct master_client *client, uint64_t capacity, uint64_t object_count);
enum shoal_status master_client_heartbeat(struct master_client *client, uint64_t capacity, uint64_t used,
                                          uint64_t drops_done, Shoal__Wire__MasterHeartbeatResponse **answer_out);
/* The status of the entry, or of the call if that failed. */
enum shoal_status master_client_announce(struct master_client *client, int kind, const char *key, uint64_t object_id,
                                         uint64_t len_bytes);
enum shoal_status master_client_announce_end(struct master_client *client); /* is_last_held */
/* The status of the key (NOT_FOUND), or of the call. object_id_out and replicas_out may be NULL. */
enum shoal_status master_client_lookup(struct master_client *client, const char *key, uint64_t *object_id_out,
                                       size_t *replicas_out);
enum shoal_status master_client_remove(struct master_client *client, const char *key);
/* NULL: the call failed. */
Shoal__Wire__MasterStatusResponse *master_client_status(struct master_client *client);

#endif
