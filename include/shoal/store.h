/* SPDX-License-Identifier: Apache-2.0
 *
 * shoal/store.h - the P2P Store: BitTorrent-style distribution of a payload from one node to many.
 *
 *     // the trainer
 *     struct shoal_store_config config = {.struct_size = sizeof config, .metadata_uri = "etcd://127.0.0.1:2379",
 *                                         .server_name = "127.0.0.1:0"};
 *     shoal_store_create(&config, NULL, &store, &error);
 *     struct shoal_region weights = {buffer, len};
 *     shoal_store_register(store, "model-v1", &weights, 1, NULL, NULL, &error);
 *
 *     // every inference node
 *     struct shoal_region target = {my_buffer, len};
 *     shoal_store_get_replica(store, "model-v1", &target, 1, NULL, NULL, &error);
 *
 * register seeds, get_replica pulls and serves at the same time; whoever has a piece serves it. No master: nodes meet
 * in the metadata service.
 *
 * Vocabulary: payload, generation, shard, piece, gold, replica, source as in docs/architecture.md.
 * Threads: every function may be called from any thread at any time between create and close; calls that concern
 * different payloads run in parallel. Every blocking call takes a deadline and a cancellation token (struct
 * shoal_call). Ownership: strings and arrays passed in are copied; memory regions are borrowed from register /
 * get_replica until unregister / delete_replica / close returns (a failed call has given them back when it returns).
 */
#ifndef SHOAL_STORE_H
#define SHOAL_STORE_H

#include <shoal/engine.h>
#include <shoal/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct shoal_store;

#define SHOAL_NAME_MAX_BYTES 512 /* payload name: 1..512 bytes of UTF-8 without control characters */
#define SHOAL_SHARD_DEFAULT_BYTES (64ull << 20)
#define SHOAL_ATTACHMENT_MAX_BYTES (64ull << 20)

struct shoal_store_config {
    size_t struct_size;
    const char *metadata_uri;        /* as in struct shoal_engine_config */
    const char *server_name;         /* as in struct shoal_engine_config */
    const char *nic_priority_matrix; /* NULL or "": none; else JSON, and RDMA is used */
    const char *cluster;             /* NULL: "default" */
    unsigned io_threads;             /* 0: chosen */
    unsigned digest_threads;         /* 0: number of CPUs, at most 16 */
    int64_t lease_ttl_ms;            /* 0: 10000 */
    int64_t connect_timeout_ms;      /* 0: 3000 */
    int64_t progress_timeout_ms;     /* 0: 10000; a source silent for this long is left */
    /* As in struct shoal_engine_config. */
    uint64_t upload_limit_bytes_per_s, download_limit_bytes_per_s;
    unsigned upload_slots;
    const char *protocol; /* as in struct shoal_engine_config; NULL: chosen */
};

/* Joins the cluster. Same errors as shoal_engine_create; UNSUPPORTED: RDMA asked for without a device. Default 10 s. */
SHOAL_API enum shoal_status shoal_store_create(const struct shoal_store_config *config, const struct shoal_call *call,
                                               struct shoal_store **store_out, struct shoal_error *error);

/* Cancels running calls, withdraws every payload, leaves the cluster, waits until nothing touches the regions any more.
 * Bounded by call's deadline for the polite part (default 5 s): what the metadata service does not take by then is left
 * to the lease. No other call may start on the store after it. NULL is allowed. */
SHOAL_API void shoal_store_close(struct shoal_store *store, const struct shoal_call *call);

/* Server name with the real port. Lives as long as the store. */
SHOAL_API const char *shoal_store_server_name(const struct shoal_store *store);

/* The engine below; borrowed, lives as long as the store. */
SHOAL_API struct shoal_engine *shoal_store_engine(struct shoal_store *store);

/* Work counters of one call for display; values only grow, except live ones. */
struct shoal_source_stats {
    char name[320];   /* server name of the source */
    uint64_t bytes;   /* verified bytes taken from it */
    uint32_t is_gold; /* registered the payload (else pulled it) */
    uint32_t is_connected;
    uint32_t bad_pieces; /* pieces that failed verification */
    uint32_t failures;   /* connections lost, stalls, refusals */
    /* The transport that READs from it take ("": none yet), and the better ones that were refused, as "local: ptrace,
     * rdma: no route". */
    char transport[SHOAL_TRANSPORT_NAME_BYTES], left_transports[SHOAL_TRANSPORT_REASONS_BYTES];
};

struct shoal_register_options {
    size_t struct_size;
    uint64_t max_shard_size;     /* bytes, >= 1; 0: 64 MiB */
    uint64_t piece_size;         /* bytes; 0: chosen from the size of the payload; at most max_shard_size is used */
    const char *location;        /* "cpu:N", "cuda:N", "*"; NULL: "*" */
    int force;                   /* replace an existing payload of that name */
    const void *attachment;      /* opaque bytes that travel with the payload (e.g. a list of files); may be NULL */
    size_t attachment_len_bytes; /* <= SHOAL_ATTACHMENT_MAX_BYTES */
    shoal_progress_fn progress;  /* may be NULL */
    void *progress_arg;
    int64_t progress_interval_ms; /* 0: 200 */
};

/* Makes this node the gold source of a payload: the concatenation of the regions (zero-size ones are legal, as is an
 * empty payload; count >= 1). Digests are computed, no data moves. options may be NULL. Default deadline: none.
 * The bytes must not change until unregister returns.
 * INVALID_ARGUMENT: name, regions, sizes, location. ADDRESS_OVERLAPPED: regions overlap each other or unequal
 * registered memory. PAYLOAD_OPENED: this node has the payload. EXISTS: another node has it and force is 0. METADATA,
 * TIMED_OUT, CANCELED, NO_MEMORY, UNSUPPORTED (location). On any error nothing stays registered. */
SHOAL_API enum shoal_status shoal_store_register(struct shoal_store *store, const char *name,
                                                 const struct shoal_region *regions, size_t count,
                                                 const struct shoal_register_options *options,
                                                 const struct shoal_call *call, struct shoal_error *error);

/* Stops being the gold source. Other sources go on serving; the last one out deletes the payload. When it returns, with
 * success or error other than PAYLOAD_NOT_OPENED, no peer reads the memory. If the metadata service cannot be reached
 * in time the local part is done all the same and METADATA or TIMED_OUT returned: the lease removes the rest.
 * PAYLOAD_NOT_OPENED: not registered here, or held as a replica. Default 10 s. */
SHOAL_API enum shoal_status shoal_store_unregister(struct shoal_store *store, const char *name,
                                                   const struct shoal_call *call, struct shoal_error *error);

/* The counterpart for a replica, same contract. PAYLOAD_NOT_OPENED: not replicated here, or held as gold. */
SHOAL_API enum shoal_status shoal_store_delete_replica(struct shoal_store *store, const char *name,
                                                       const struct shoal_call *call, struct shoal_error *error);

enum shoal_reuse { SHOAL_REUSE_NONE = 0, SHOAL_REUSE = 1, SHOAL_REUSE_ONLY = 2 };

struct shoal_get_options {
    size_t struct_size;
    uint64_t generation;        /* 0: whichever is current; else REPLACED if it is another one */
    const char *location;       /* of the regions, as in register; "cuda:N" without reuse and previous; NULL: "*" */
    int no_share;               /* do not become a source; the regions are released when the call returns */
    int no_verify;              /* skip digests (logged, counted and visible in shoal stat): trusts every source */
    uint32_t max_sources;       /* pull from at most this many at a time (at most 128); 0: 32 */
    shoal_progress_fn progress; /* may be NULL */
    void *progress_arg;
    int64_t progress_interval_ms; /* 0: 200 */
    /* SHOAL_REUSE: the regions may hold some of the payload already (an earlier get_replica was interrupted): pieces
     * whose digest matches, also with no_verify, are kept and not pulled. SHOAL_REUSE_ONLY: they should hold all of it;
     * NOT_FOUND as soon as a piece does not match. Nothing is written then, so the memory may be read-only. */
    int reuse;
    /* NULL, or count regions: memory that may hold what the region of the same number shall hold, from its start on
     * (another generation). Pieces whose digest matches there are copied instead of pulled. Only read; it may change or
     * be shorter or longer than its region, and must not overlap the regions. When none of 16 pieces taken from all
     * over one of them matches, the rest of it is not looked at. */
    const struct shoal_region *previous;
};

/* Fills the regions, in order, with exactly the bytes of one generation of the payload, each piece verified, and makes
 * this node a source, piece by piece while it still pulls. The regions may be cut otherwise than the registered ones;
 * only the total must match. A source that fails, stalls, refuses or lies is left for another, down to the last live
 * one. When it returns, nothing writes to the regions any more; after an error nothing stays registered.
 * INVALID_ARGUMENT: also if the total size differs. PAYLOAD_OPENED, PAYLOAD_NOT_FOUND, NO_SOURCE, CORRUPTED: the only
 * sources left serve wrong bytes (the message names them), NOT_FOUND (only with SHOAL_REUSE_ONLY), REPLACED, TIMED_OUT,
 * CANCELED, ADDRESS_OVERLAPPED, METADATA, NO_MEMORY. options may be NULL. Default deadline: none (stalls are bounded by
 * the progress deadline). */
SHOAL_API enum shoal_status shoal_store_get_replica(struct shoal_store *store, const char *name,
                                                    const struct shoal_region *regions, size_t count,
                                                    const struct shoal_get_options *options,
                                                    const struct shoal_call *call, struct shoal_error *error);

struct shoal_source_info {
    char name[320];    /* server name */
    char address[320]; /* address it is reached at */
    uint32_t is_gold;
};

struct shoal_payload_info {
    char *name;
    uint64_t generation;
    uint64_t total_size;     /* bytes */
    uint64_t max_shard_size; /* bytes */
    uint64_t piece_size;     /* bytes */
    uint64_t piece_count;
    uint64_t attachment_len_bytes;
    uint64_t *size_list; /* bytes of each registered region; NULL if the list is served by the sources only */
    size_t size_count;   /* number of registered regions, also if size_list is NULL */
    struct shoal_source_info *sources;
    size_t source_count;      /* live sources */
    enum shoal_status status; /* OK; PROTOCOL: the entry could not be read (then only name is meaningful) */
};

/* All payloads whose name begins with prefix ("" or NULL: all), sorted by name. infos_out: array of *count_out, to be
 * released with shoal_payload_infos_free; may be NULL when empty. An unreadable entry is listed with its status and
 * does not hide others. METADATA, TIMED_OUT, CANCELED, NO_MEMORY. Default 10 s. */
SHOAL_API enum shoal_status shoal_store_list(struct shoal_store *store, const char *prefix,
                                             const struct shoal_call *call, struct shoal_payload_info **infos_out,
                                             size_t *count_out, struct shoal_error *error);

/* The same for exactly one name. PAYLOAD_NOT_FOUND. */
SHOAL_API enum shoal_status shoal_store_stat(struct shoal_store *store, const char *name, const struct shoal_call *call,
                                             struct shoal_payload_info **info_out, struct shoal_error *error);

SHOAL_API void shoal_payload_infos_free(struct shoal_payload_info *infos, size_t count);

/* Fetches the payload's index from a source (verified against the manifest): attachment and complete size list. Each
 * _out may be NULL; release with free(). generation 0: the current one. PAYLOAD_NOT_FOUND, NO_SOURCE, CORRUPTED,
 * REPLACED, METADATA, TIMED_OUT, CANCELED, NO_MEMORY. Default 30 s. */
SHOAL_API enum shoal_status shoal_store_fetch_index(struct shoal_store *store, const char *name, uint64_t generation,
                                                    const struct shoal_call *call, void **attachment_out,
                                                    size_t *attachment_len_out, uint64_t **size_list_out,
                                                    size_t *size_count_out, struct shoal_error *error);

/* One payload that this node serves. */
struct shoal_served_info {
    char name[SHOAL_NAME_MAX_BYTES + 1];
    uint32_t is_gold;
    uint32_t is_published; /* its key is in the metadata service as far as this node knows */
    uint64_t pieces_have;
    uint64_t pieces_total;
    uint64_t bytes_served; /* bytes of pieces that receivers reported as taken from this node */
    uint32_t receivers;    /* receivers that take from here now */
    /* Another node has registered the name with force: this generation is served to those who pull it already, and
     * never published again. Noticed within the lease's time when this node serves one payload, of P payloads within P
     * times that. */
    uint32_t is_replaced;
    char replaced_by[320]; /* its server name; "": it has gone since */
};

/* Snapshot of what this node serves; release with free(). Never blocks on the network. NO_MEMORY. */
SHOAL_API enum shoal_status shoal_store_served(struct shoal_store *store, struct shoal_served_info **infos_out,
                                               size_t *count_out, struct shoal_error *error);

enum shoal_receiver_state {
    SHOAL_RECEIVER_TAKING = 0, /* is connected and takes pieces */
    SHOAL_RECEIVER_DONE = 1,   /* has left with all pieces */
    SHOAL_RECEIVER_LEFT = 2,   /* has left, was lost or is silent; takes elsewhere, gave up or died */
};

/* A node that takes, or has taken, pieces of a payload from a source; all as it reports itself to that source. */
struct shoal_receiver_info {
    char name[320]; /* server name */
    enum shoal_receiver_state state;
    uint32_t pieces_have; /* verified pieces that it has, from all its sources */
    uint64_t bytes;       /* taken from this source, in all its pulls */
    uint64_t silent_ms;   /* since it was heard last; those that take are heard every few seconds */
    /* The transport that it takes from this source by ("": not known), and the better ones that refused it, as "local:
     * ptrace, rdma: no route". */
    char transport[SHOAL_TRANSPORT_NAME_BYTES], left_transports[SHOAL_TRANSPORT_REASONS_BYTES];
};

/* Who takes a payload from this node: the receivers that take now, then those that have left, the last one first.
 * Remembered are 4096 per payload, beyond that those that left first are forgotten. infos_out: array of *count_out; may
 * be NULL when empty; release with free(). Never blocks on the network. INVALID_ARGUMENT; PAYLOAD_NOT_OPENED: this node
 * does not serve it; NO_MEMORY. */
SHOAL_API enum shoal_status shoal_store_receivers(struct shoal_store *store, const char *name,
                                                  struct shoal_receiver_info **infos_out, size_t *count_out,
                                                  struct shoal_error *error);

#define SHOAL_STATUS_RECEIVERS_MAX 256 /* receivers that a source lists in one answer */

/* One source of a payload, as it answered when it was asked. */
struct shoal_source_status {
    struct shoal_source_info source; /* as the metadata service lists it; all else is 0 unless error.status is OK */
    struct shoal_error error;        /* status OK: it answered; else why it did not */
    uint32_t is_starving;            /* it lacks pieces, and none of the sources it knows has them */
    uint64_t pieces_have, pieces_total;
    uint64_t bytes_served;                 /* taken from it, as its receivers report */
    uint32_t receivers_now;                /* receivers that take from it */
    uint32_t receivers_known;              /* the same and those that have left, as far as it remembers them */
    struct shoal_receiver_info *receivers; /* those that take come first; may be NULL when empty */
    size_t receiver_count;                 /* entries in receivers */
};

/* Asks all live sources of a payload at once (a bounded number at a time) what they have and who takes it. generation
 * 0: the current one. max_receivers: how many each may list, 0: none, at most SHOAL_STATUS_RECEIVERS_MAX are. A source
 * that does not answer within 3 s, or not by the deadline, is an entry with its error, never an error of the call.
 * infos_out: array of *count_out in the order of names, to be released with shoal_source_statuses_free; may be NULL
 * when empty. PAYLOAD_NOT_FOUND, REPLACED, METADATA, TIMED_OUT (before the sources were known), CANCELED, NO_MEMORY,
 * INVALID_ARGUMENT. Default 10 s. */
SHOAL_API enum shoal_status shoal_store_source_status(struct shoal_store *store, const char *name, uint64_t generation,
                                                      uint32_t max_receivers, const struct shoal_call *call,
                                                      struct shoal_source_status **infos_out, size_t *count_out,
                                                      struct shoal_error *error);

/* NULL is allowed. */
SHOAL_API void shoal_source_statuses_free(struct shoal_source_status *infos, size_t count);

/* Counters as Prometheus text (version 0.0.4), NUL-terminated; release with free(). NULL: out of memory. */
SHOAL_API char *shoal_store_metrics(struct shoal_store *store);

#ifdef __cplusplus
}
#endif
#endif
