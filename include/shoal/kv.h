/* SPDX-License-Identifier: Apache-2.0
 *
 * shoal/kv.h - the KV store in P2P client mode: objects by key, held by the clients themselves, found through a master.
 *
 *     struct shoal_kv_config config = {.struct_size = sizeof config, .master = "127.0.0.1:50051",
 *                                      .tiers = "{\"tiers\":[{\"type\":\"DRAM\",\"capacity\":\"512MB\"}]}"};
 *     struct shoal_kv *kv;
 *     shoal_kv_open(&config, NULL, &kv, &error);
 *     shoal_kv_put(kv, "prefix/1", data, len, NULL, NULL, &error);
 *     shoal_kv_get_into(kv, "prefix/1", buffer, sizeof buffer, NULL, &len, &error);
 *     shoal_kv_close(kv);
 *
 * Three ways to open: with tiers this process owns objects and serves them to others; without tiers it only reads and
 * writes what others own; with client set to the --port of a mooncake_client of this host it asks that one for
 * everything (and master and tiers are not given).
 *
 * Keys are 1..SHOAL_KV_KEY_MAX_BYTES bytes without NUL. Values are immutable, 0 bytes to the size of a tier: a put of a
 * key that exists anywhere in the cluster says EXISTS, a remove takes it away everywhere. A value read is always one
 * complete value that was put.
 *
 * Threads: every function from any thread between open and close. Every blocking call takes a deadline (default 10 s,
 * which bounds the whole call) and a cancellation token; when it has returned, nothing reads or writes the caller's
 * memory any more. (One exception: memory of shoal_kv_alloc, when a mooncake_client does not answer some seconds after
 * the deadline and the call says TIMED_OUT or UNREACHABLE: that process still has it mapped.)
 *
 * Progress: a put, get or get_into of one value (a batch of one, too) calls the call's progress callback, if there is
 * one, on the thread that made the call, about every interval while bytes move and once at the end, whatever the end
 * is; never after it returned. total_bytes is the value's length (put: times replicas, in the end those that there
 * are; get: 0 until it is known), done_bytes what has been moved; it does not go back if another owner is tried
 * (unless another value was found there), and is total_bytes after success. A large value is then moved by requests of
 * this side instead of the owner's: the owner lends its memory for as long as that takes. One that cannot (a put into
 * a STORAGE tier) tells nothing before the end. The callback should be short and must not use the kv; it may trigger
 * the token.
 */
#ifndef SHOAL_KV_H
#define SHOAL_KV_H

#include <shoal/engine.h>
#include <shoal/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct shoal_kv;

#define SHOAL_KV_KEY_MAX_BYTES 1024

struct shoal_kv_config {
    size_t struct_size;
    const char
        *master; /* "host:port"; several separated by commas, or "etcd://h:p[,h:p]": the leader is found. Copied */
    const char *client;  /* "host:port" of a mooncake_client of this host: instead of master and all below. Copied */
    const char *cluster; /* NULL: "default". Copied */
    const char *host;    /* address others reach this process at; NULL: "127.0.0.1". Copied */
    uint16_t client_rpc_port;        /* where this process serves others; 0: a free one */
    const char *metadata_uri;        /* of the engine; NULL: the embedded default. Copied */
    const char *protocol;            /* as in struct shoal_engine_config; NULL: chosen. Copied */
    const char *tiers;               /* JSON, or path of a file with it (docs/kv.md); NULL: owns nothing. Copied */
    unsigned rpc_threads;            /* for requests that touch a disk; 0: 2 */
    uint64_t arena_bytes;            /* memory for shoal_kv_alloc; 0: 64 MiB */
    size_t route_cache_entries;      /* 0: 65536 */
    int64_t route_cache_ms;          /* a route older than that is asked again; 0: 30000 */
    const char *nic_priority_matrix; /* as in struct shoal_engine_config; NULL or "": none. Copied */
};

/* Joins: with a master it registers (and announces what STORAGE tiers hold); blocks until that is done. Default 10 s.
 * INVALID_ARGUMENT: names the field; UNREACHABLE: master or client; NAME_IN_USE: the port is taken or a live client has
 * it; and the errors of shoal_engine_create. */
SHOAL_API enum shoal_status shoal_kv_open(const struct shoal_kv_config *config, const struct shoal_call *call,
                                          struct shoal_kv **kv_out, struct shoal_error *error);

/* Withdraws: objects on DRAM tiers are gone. Calls must have returned. NULL is allowed. */
SHOAL_API void shoal_kv_close(struct shoal_kv *kv);

/* "host:port" where others reach this process; "" for a connection to a local client. Lives as long as kv. */
SHOAL_API const char *shoal_kv_address(const struct shoal_kv *kv);

/* Memory for values without a copy: the engine knows it (with client: it is shared with that process). NO_MEMORY: the
 * arena is full. shoal_kv_free accepts NULL. */
SHOAL_API enum shoal_status shoal_kv_alloc(struct shoal_kv *kv, uint64_t len_bytes, void **memory_out,
                                           struct shoal_error *error);
SHOAL_API void shoal_kv_free(struct shoal_kv *kv, void *memory);

/* Makes memory of the caller known once, so that gets and puts need not do it per call. As
 * shoal_engine_register_memory; UNSUPPORTED with client set. */
SHOAL_API enum shoal_status shoal_kv_register(struct shoal_kv *kv, void *addr, uint64_t len_bytes,
                                              struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_unregister(struct shoal_kv *kv, void *addr, uint64_t len_bytes,
                                                struct shoal_error *error);

struct shoal_kv_put_options {
    size_t struct_size;
    unsigned
        replicas; /* copies at different clients; 0: 1. Fewer clients with room: NO_SPACE if none, else what there is */
    const char *prefer; /* "host:port" of the client that shall own it if it has room; NULL: chosen */
};

/* data may be NULL if len is 0. options NULL: defaults. EXISTS: the key is there already (nothing changed). NO_SPACE:
 * no client has room. LIMIT: larger than every tier. INVALID_ARGUMENT: key. UNREACHABLE, TIMED_OUT (whether it is there
 * is not known), CANCELED, IO, NO_MEMORY. */
SHOAL_API enum shoal_status shoal_kv_put(struct shoal_kv *kv, const char *key, const void *data, uint64_t len_bytes,
                                         const struct shoal_kv_put_options *options, const struct shoal_call *call,
                                         struct shoal_error *error);

/* Allocates: *data_out is to be given to free(); NULL for a value of 0 bytes. NOT_FOUND: no such key, or its owners are
 * gone. */
SHOAL_API enum shoal_status shoal_kv_get(struct shoal_kv *kv, const char *key, const struct shoal_call *call,
                                         void **data_out, uint64_t *len_out, struct shoal_error *error);

/* LIMIT: the buffer is too small; *len_out (always set then) is what is needed. A failed call may have changed the
 * buffer. */
SHOAL_API enum shoal_status shoal_kv_get_into(struct shoal_kv *kv, const char *key, void *buffer,
                                              uint64_t capacity_bytes, const struct shoal_call *call, uint64_t *len_out,
                                              struct shoal_error *error);

/* OK or NOT_FOUND. len_out may be NULL. */
SHOAL_API enum shoal_status shoal_kv_size(struct shoal_kv *kv, const char *key, const struct shoal_call *call,
                                          uint64_t *len_out, struct shoal_error *error);
/* 1 or 0 in *exists_out. */
SHOAL_API enum shoal_status shoal_kv_exist(struct shoal_kv *kv, const char *key, const struct shoal_call *call,
                                           int *exists_out, struct shoal_error *error);

/* When it returns OK no get finds the key any more. NOT_FOUND. UNREACHABLE, TIMED_OUT: it may have been removed. */
SHOAL_API enum shoal_status shoal_kv_remove(struct shoal_kv *kv, const char *key, const struct shoal_call *call,
                                            struct shoal_error *error);
/* pattern: 1 to 2048 bytes as for fnmatch(3) without flags: * ? [...] and \ before a character that is meant as it is.
 * INVALID_ARGUMENT, and nothing is removed: a '[' without a ']', a [...] that nothing is in, a backslash at the end.
 * removed_out may be NULL; set also when a later part failed. */
SHOAL_API enum shoal_status shoal_kv_remove_matching(struct shoal_kv *kv, const char *pattern,
                                                     const struct shoal_call *call, uint64_t *removed_out,
                                                     struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_remove_all(struct shoal_kv *kv, const struct shoal_call *call,
                                                uint64_t *removed_out, struct shoal_error *error);

/* Calls fn for each key that matches (pattern as above; NULL: all) as the master knows it; fn returns 0 to go on. Keys
 * that come or go meanwhile may be seen or not. */
struct shoal_kv_entry {
    const char *key;
    uint64_t len_bytes;
    unsigned replicas;
};
typedef int (*shoal_kv_list_fn)(void *arg, const struct shoal_kv_entry *entry);
SHOAL_API enum shoal_status shoal_kv_list(struct shoal_kv *kv, const char *pattern, const struct shoal_call *call,
                                          shoal_kv_list_fn fn, void *arg, struct shoal_error *error);

/* Batch forms: one item's failure does not stop the others; each item has its own status; the return value is OK if all
 * are, else that of the first that is not. At most SHOAL_KV_BATCH_MAX items. */
#define SHOAL_KV_BATCH_MAX 4096
struct shoal_kv_item {
    const char *key;
    void *data;         /* put: the value. get_into: the buffer. get: set by the call, free() it */
    uint64_t len_bytes; /* put: of the value. get_into: capacity before, length after. get, size: set by the call */
    enum shoal_status status; /* set by the call */
};
SHOAL_API enum shoal_status shoal_kv_put_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                               const struct shoal_kv_put_options *options,
                                               const struct shoal_call *call, struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_get_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                               const struct shoal_call *call, struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_get_into_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                                    const struct shoal_call *call, struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_size_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                                const struct shoal_call *call, struct shoal_error *error);
SHOAL_API enum shoal_status shoal_kv_remove_batch(struct shoal_kv *kv, struct shoal_kv_item *items, size_t count,
                                                  const struct shoal_call *call, struct shoal_error *error);

/* Prometheus text of this process's part: shoal_kv_*, shoal_tier_*, shoal_engine_*; with client: of that process's.
 * *text_out: free() it. */
SHOAL_API enum shoal_status shoal_kv_metrics(struct shoal_kv *kv, char **text_out, struct shoal_error *error);

/* A JSON object for people and tools: master, clients with their tiers and use, keys. *text_out: free() it. */
SHOAL_API enum shoal_status shoal_kv_status(struct shoal_kv *kv, const struct shoal_call *call, char **text_out,
                                            struct shoal_error *error);

#ifdef __cplusplus
}
#endif
#endif
