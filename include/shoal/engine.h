/* SPDX-License-Identifier: Apache-2.0
 *
 * shoal/engine.h - the transfer engine: one-sided READ and WRITE between registered memory of two nodes.
 *
 * A node exposes memory as one segment, named by its server name ("host:port"). Peers find it through the metadata
 * service and move bytes without the target application taking part:
 *
 *     struct shoal_engine_config config = {.struct_size = sizeof config,
 *                                          .metadata_uri = "etcd://127.0.0.1:2379",
 *                                          .server_name = "127.0.0.1:0"};
 *     struct shoal_engine *engine;
 *     struct shoal_segment *segment;
 *     struct shoal_batch *batch;
 *     shoal_engine_create(&config, NULL, &engine, &error);
 *     shoal_engine_register_memory(engine, buffer, len, "cpu:0", SHOAL_ACCESS_LOCAL, NULL, &error);
 *     shoal_segment_open(engine, "127.0.0.1:4711", NULL, &segment, &error);
 *     shoal_batch_create(engine, 1, &batch, &error);
 *     struct shoal_request request = {.op = SHOAL_OP_READ, .segment = segment, .local = buffer,
 *                                     .remote_addr = addr_of_peer, .len_bytes = len};
 *     shoal_batch_submit(batch, &request, 1, &error);
 *     shoal_batch_wait(batch, 5000, &error);
 *     shoal_batch_destroy(batch);
 *
 * Vocabulary: segment, batch, request, status as in docs/architecture.md. Addresses of remote memory are virtual
 * addresses of the target process, lengths are bytes.
 *
 * Threads: every function may be called from any thread, except that one batch is used by one thread at a time
 * (shoal_batch_cancel may be called beside a wait). Completion work runs on the engine's own I/O threads, or for a few
 * small requests on the thread that waits for them; no user code runs there except the notify callback.
 */
#ifndef SHOAL_ENGINE_H
#define SHOAL_ENGINE_H

#include <shoal/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct shoal_engine;
struct shoal_segment;
struct shoal_batch;

struct shoal_engine_config {
    size_t struct_size;
    const char *metadata_uri;    /* "sqlite:PATH", "etcd://h:p[,h:p]", "h:p" (etcd); copied */
    const char *server_name;     /* "host", "host:port", "[v6]:port"; port 0 or none: a free one is chosen; copied */
    const char *cluster;         /* peers of another cluster are refused; NULL: "default"; at most 63 bytes; copied */
    unsigned io_threads;         /* at most SHOAL_IO_THREADS_MAX; 0: chosen from the number of CPUs */
    int64_t lease_ttl_ms;        /* how long a dead node stays visible; 0: 10000; at least 2000 */
    int64_t connect_timeout_ms;  /* 0: 3000 */
    int64_t progress_timeout_ms; /* a request without progress for this long fails with TIMEOUT; 0: 10000 */
    unsigned max_connections;    /* accepted at the same time; 0: 4096 */
    /* What this node sends and receives of READs and WRITEs, all peers together; 0: no limit; else
     * SHOAL_RATE_LIMIT_MIN .. SHOAL_RATE_LIMIT_MAX. Waiting for it is no lack of progress. */
    uint64_t upload_limit_bytes_per_s, download_limit_bytes_per_s;
    unsigned upload_slots; /* READs of more than 64 KiB are answered to this many connections at a time, 1..1024; others
                              take turns; 0: 4 */
    /* Which transports are installed; the best one that reaches a peer is taken, and where it refuses the next:
     *   NULL, "", "auto"  "local" for peers on this host, "tcp"; with a NIC priority matrix as "rdma"
     *   "tcp"             TCP alone
     *   "local"           as "auto" without a matrix
     *   "rdma"            "local", RDMA, "tcp"; there must be an RDMA device
     *   "ucx"             UCX with its own choice of what it runs over, or over the devices of the matrix; "tcp" */
    const char *protocol;
    /* JSON, for RDMA: {"cpu:0": [["mlx5_0"], ["mlx5_1"]]}, for each location of memory ("cpu:N", "cuda:N", "*") the
     * devices to use and those to fall back on (docs/running.md); with "ucx" also network devices ("eth0"); NULL, ""
     * or "{}": none */
    const char *nic_priority_matrix;
};

#define SHOAL_RATE_LIMIT_MIN (64ull << 10)
#define SHOAL_RATE_LIMIT_MAX (1ull << 40)
#define SHOAL_UPLOAD_SLOTS_MAX 1024
#define SHOAL_TRANSPORT_NAME_BYTES 16
#define SHOAL_TRANSPORT_REASONS_BYTES 80
#define SHOAL_IO_THREADS_MAX 16

/* Joins the cluster: binds the address, then claims the name in the metadata service under a lease.
 * engine_out is set on success only. Blocks; call may be NULL (default 10 s).
 * INVALID_ARGUMENT: malformed name or URI. ADDRESS: the host does not resolve or is not local. NAME_IN_USE: the port is
 * taken, or a live node owns the name (the message has its address). UNSUPPORTED: the protocol is not built in, or
 * there is no device for it. METADATA, TIMED_OUT, CANCELED, NO_MEMORY. */
SHOAL_API enum shoal_status shoal_engine_create(const struct shoal_engine_config *config, const struct shoal_call *call,
                                                struct shoal_engine **engine_out, struct shoal_error *error);

/* Withdraws from the metadata service (at most 2 s), ends all transfers, waits until no thread touches registered
 * memory. Batches and segments must have been destroyed. NULL is allowed. */
SHOAL_API void shoal_engine_destroy(struct shoal_engine *engine);

/* The server name with the real port, as peers use it. Lives as long as the engine. */
SHOAL_API const char *shoal_engine_server_name(const struct shoal_engine *engine);

/* Makes a transport available and prefers it to those before: "tcp", "local", "rdma", "ucx" (OK if it is there
 * already). args is the NIC priority matrix for "rdma" and "ucx", else NULL. INVALID_ARGUMENT: unknown name.
 * UNSUPPORTED: not built in or no device. */
SHOAL_API enum shoal_status shoal_engine_install_transport(struct shoal_engine *engine, const char *name,
                                                           const char *args, struct shoal_error *error);

/* What peers may do with registered memory. Local source or destination of own requests: no bit needed. */
enum shoal_access {
    SHOAL_ACCESS_LOCAL = 0,
    SHOAL_ACCESS_REMOTE_READ = 1,
    SHOAL_ACCESS_REMOTE_WRITE = 2,
};

/* Registers [addr, addr+len). Reference-counted: the same range with the same access may be registered again and is
 * released by as many unregister calls. len 0 is legal and does nothing. location: "cpu:N" or "*"; NULL: "*"; or
 * "cuda:N" for memory of GPU N inside one allocation: the CUDA driver is loaded then (UNSUPPORTED: there is none), and
 * the memory must not be freed before it is unregistered (transfers of it would fail with IO).
 * key_out (may be NULL): remote key of this registration, never reused by this engine.
 * INVALID_ARGUMENT: NULL address with len > 0, wrapping range, unknown access, malformed location, NUMA node or GPU N
 * that this machine does not have, memory that is not that GPU's, GPU memory with another location (noticed if the
 * process has loaded the driver).
 * ADDRESS_OVERLAPPED: overlaps an unequal registered range. UNSUPPORTED: location without driver. NO_MEMORY. */
SHOAL_API enum shoal_status shoal_engine_register_memory(struct shoal_engine *engine, void *addr, uint64_t len_bytes,
                                                         const char *location, unsigned access, uint64_t *key_out,
                                                         struct shoal_error *error);

/* Drops one reference. With the last one: when it returns no peer and no local request accesses the memory any more; it
 * may be unmapped. Requests still using it end with an error. NOT_FOUND: the range is not registered. */
SHOAL_API enum shoal_status shoal_engine_unregister_memory(struct shoal_engine *engine, void *addr, uint64_t len_bytes,
                                                           struct shoal_error *error);

struct shoal_region {
    void *addr; /* borrowed while registered */
    uint64_t len_bytes;
};

/* The batched forms: all or nothing for register; unregister releases all and reports the first error. */
SHOAL_API enum shoal_status shoal_engine_register_memory_batch(struct shoal_engine *engine,
                                                               const struct shoal_region *regions, size_t count,
                                                               const char *location, unsigned access,
                                                               struct shoal_error *error);
SHOAL_API enum shoal_status shoal_engine_unregister_memory_batch(struct shoal_engine *engine,
                                                                 const struct shoal_region *regions, size_t count,
                                                                 struct shoal_error *error);

/* Looks a segment up in the metadata service and makes a handle; connections are made with the first request. Handles
 * to the same name may share connections. NOT_FOUND: no live node of that name. INVALID_ARGUMENT, METADATA, TIMED_OUT,
 * CANCELED, NO_MEMORY. Default deadline 10 s. */
SHOAL_API enum shoal_status shoal_segment_open(struct shoal_engine *engine, const char *server_name,
                                               const struct shoal_call *call, struct shoal_segment **segment_out,
                                               struct shoal_error *error);

/* Drops the handle; requests submitted through it go on. NULL is allowed. */
SHOAL_API void shoal_segment_close(struct shoal_segment *segment);

enum shoal_op { SHOAL_OP_READ = 1, SHOAL_OP_WRITE = 2 };

struct shoal_request {
    enum shoal_op op;
    struct shoal_segment *segment; /* borrowed until the request is done */
    void *local;                   /* READ: destination, WRITE: source; inside memory registered with this engine */
    uint64_t remote_addr;          /* address in the target process */
    uint64_t remote_key;           /* key of the target's registration; 0: whichever covers the range */
    uint64_t len_bytes;            /* 1 .. 2^40 */
};

enum shoal_transfer_state {
    SHOAL_TRANSFER_WAITING = 0, /* not submitted yet */
    SHOAL_TRANSFER_PENDING = 1, /* submitted, not finished */
    SHOAL_TRANSFER_INVALID = 2, /* refused: outside registered memory (local or remote), wrong key, no permission */
    SHOAL_TRANSFER_CANCELED = 3,
    SHOAL_TRANSFER_COMPLETED = 4, /* READ: bytes are in local memory. WRITE: bytes are in the target's memory */
    SHOAL_TRANSFER_TIMEOUT = 5,   /* no progress within the progress deadline */
    SHOAL_TRANSFER_FAILED = 6,    /* connection lost, peer gone, memory unreadable */
};

struct shoal_transfer_status {
    enum shoal_transfer_state state;
    uint64_t transferred_bytes; /* len_bytes if COMPLETED, else how much may have been moved */
    enum shoal_status status;   /* OK while pending or completed */
};

/* Allocates room for capacity requests (1..65536). NO_MEMORY, INVALID_ARGUMENT. */
SHOAL_API enum shoal_status shoal_batch_create(struct shoal_engine *engine, size_t capacity,
                                               struct shoal_batch **batch_out, struct shoal_error *error);

/* Appends count requests and starts them; never blocks on the network: what the connections cannot take yet waits in
 * the batch. All or none are accepted. LIMIT: more than the capacity. INVALID_ARGUMENT. A request whose local range is
 * not registered is accepted and ends INVALID. */
SHOAL_API enum shoal_status shoal_batch_submit(struct shoal_batch *batch, const struct shoal_request *requests,
                                               size_t count, struct shoal_error *error);

/* State of request index (in order of submission). INVALID_ARGUMENT: no such request. */
SHOAL_API enum shoal_status shoal_batch_status(const struct shoal_batch *batch, size_t index,
                                               struct shoal_transfer_status *status_out);

/* Sleeps until every submitted request has ended. OK: all COMPLETED. TIMED_OUT: some are still pending (nothing is
 * canceled). Else the status of the first request that failed. timeout_ms < 0: no limit; 0: only looks. */
SHOAL_API enum shoal_status shoal_batch_wait(struct shoal_batch *batch, int64_t timeout_ms, struct shoal_error *error);

/* A descriptor that polls readable when no submitted request is pending; valid until the batch is destroyed; do not
 * read or close it. -1: none is left (ask again later). Who only waits need not ask for it: small requests are faster
 * then. */
SHOAL_API int shoal_batch_fd(const struct shoal_batch *batch);

/* Ends every pending request with CANCELED, or COMPLETED if it was faster. Does not wait: use shoal_batch_wait; after
 * that nothing writes to their memory. */
SHOAL_API void shoal_batch_cancel(struct shoal_batch *batch);

/* Cancels what is pending, waits until it has ended, frees. NULL is allowed. */
SHOAL_API void shoal_batch_destroy(struct shoal_batch *batch);

/* Sends a small message (name <= 255 bytes, len <= 4096) to the segment's notify callback, in order per sender. Blocks
 * until the peer has it. TIMED_OUT, UNREACHABLE, LIMIT, UNSUPPORTED: the peer has no callback. Default deadline 10 s.
 */
SHOAL_API enum shoal_status shoal_segment_notify(struct shoal_segment *segment, const char *name, const void *message,
                                                 size_t len_bytes, const struct shoal_call *call,
                                                 struct shoal_error *error);

typedef void (*shoal_notify_fn)(void *arg, const char *peer, const char *name, const void *message, size_t len_bytes);

/* Installs the receiver of notifications; fn NULL removes it. fn runs on an I/O thread and must not block. When the
 * call returns the previous callback is not running any more (do not call it from inside the callback). */
SHOAL_API void shoal_engine_set_notify(struct shoal_engine *engine, shoal_notify_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
