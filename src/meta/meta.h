/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata service: a small ordered key-value store with revisions, leases and watches, modelled on etcd v3.
 * Two backends (sqlite, etcd) behind one ops table; one contract suite runs on both.
 *
 * Keys and values are byte strings (keys 1..4096 bytes, values up to META_VALUE_MAX_BYTES). Revisions are positive and
 * grow with every change of the store. All functions block the caller up to the call's deadline, may be used from any
 * thread concurrently, and fail with METADATA (service unreachable or answering nonsense, with endpoint and cause),
 * TIMED_OUT, CANCELED, NO_MEMORY, INVALID_ARGUMENT (too large). Endpoints fail over inside a call. A call that changes
 * data is repeated on another endpoint only where a repetition cannot do harm. Without a deadline a call gives up after
 * 30 seconds of failures. docs/metadata.md says how each backend does it. */
#ifndef SHOAL_META_META_H
#define SHOAL_META_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "base/call.h"

#define META_KEY_MAX_BYTES 4096
#define META_VALUE_MAX_BYTES (1u << 20)                /* etcd's request limit is 1.5 MiB before base64 */
#define META_TXN_MAX_OPS 128                           /* compares, and operations */
#define META_TXN_MAX_BYTES ((1u << 20) + (256u << 10)) /* keys and values of one transaction */
#define META_LEASE_MAX_MS (24ll * 3600 * 1000)

struct meta;
struct meta_watch;

struct meta_bytes {
    const void *data;
    size_t len;
};

/* One key with its value. Both are NUL-terminated beyond their length. */
struct meta_entry {
    char *key;
    size_t key_len;
    char *value;
    size_t value_len;
    int64_t create_revision, mod_revision;
    int64_t lease; /* 0: none */
};

struct meta_entries {
    struct meta_entry *items; /* owned; sorted by key */
    size_t count;
    int64_t revision; /* of the store when it was read: watch from revision + 1 misses nothing */
};
void meta_entries_release(struct meta_entries *entries); /* zeroed: nothing */

/* uri: "sqlite:PATH", "etcd://h:p[,h:p...]", "h:p" or "h:p,h:p" (etcd). For etcd, query parameters after '?' or the
 * environment give credentials and TLS: user, password (SHOAL_ETCD_USER, SHOAL_ETCD_PASSWORD), cacert, cert, key
 * (SHOAL_ETCD_CACERT, SHOAL_ETCD_CERT, SHOAL_ETCD_KEY); "etcds://" means https. Does not need the service to be up
 * (sqlite: creates the file, 0600). INVALID_ARGUMENT: malformed. */
enum shoal_status meta_open(const char *uri, struct meta **meta_out, struct shoal_error *error);
/* Ends watches that are left; no other call may be running. NULL is allowed. */
void meta_close(struct meta *meta);

/* "sqlite" or "etcd". */
const char *meta_backend_name(const struct meta *meta);

/* found_out false and OK when the key is absent. entry_out: release with meta_entry_release. */
enum shoal_status meta_get(struct meta *meta, struct meta_bytes key, const struct call *call, bool *is_found_out,
                           struct meta_entry *entry_out, struct shoal_error *error);
void meta_entry_release(struct meta_entry *entry);

/* All keys with the prefix. Pages internally, all at one revision. LIMIT: more than limit entries (0: 100,000). */
enum shoal_status meta_list(struct meta *meta, struct meta_bytes prefix, size_t limit, const struct call *call,
                            struct meta_entries *entries_out, struct shoal_error *error);

enum meta_compare_kind {
    META_KEY_ABSENT,
    META_KEY_PRESENT,
    META_MOD_REVISION_IS, /* revision */
    META_PREFIX_ABSENT,   /* no key begins with key */
};
struct meta_compare {
    enum meta_compare_kind kind;
    struct meta_bytes key;
    int64_t revision;
};
enum meta_op_kind { META_PUT, META_DELETE, META_DELETE_PREFIX };
struct meta_op {
    enum meta_op_kind kind;
    struct meta_bytes key, value;
    int64_t lease; /* META_PUT: 0 or a granted lease */
};

/* Applies all ops if all compares hold, else nothing. is_applied_out tells which; revision_out (may be NULL): store
 * revision afterwards. A delete of an absent key is fine. Changing one key twice (put and put, put and delete) is
 * INVALID_ARGUMENT, as are more than META_TXN_MAX_BYTES of keys and values. NOT_FOUND: a lease of a put does not exist
 * (nothing is applied). If the answer is lost the call returns METADATA or TIMED_OUT and the change may or may not have
 * happened. */
enum shoal_status meta_txn(struct meta *meta, const struct meta_compare *compares, size_t compare_count,
                           const struct meta_op *ops, size_t op_count, const struct call *call, bool *is_applied_out,
                           int64_t *revision_out, struct shoal_error *error);

/* A lease lives ttl_ms (rounded up to seconds by etcd) after grant or its last keep-alive; then its keys are deleted.
 */
enum shoal_status meta_lease_grant(struct meta *meta, int64_t ttl_ms, const struct call *call, int64_t *lease_out,
                                   struct shoal_error *error);
/* NOT_FOUND: it has expired or never existed. */
enum shoal_status meta_lease_keep_alive(struct meta *meta, int64_t lease, const struct call *call,
                                        struct shoal_error *error);
/* Deletes its keys. OK also if it is gone already. */
enum shoal_status meta_lease_revoke(struct meta *meta, int64_t lease, const struct call *call,
                                    struct shoal_error *error);

enum meta_event_kind {
    META_EVENT_PUT,
    META_EVENT_DELETE,
    META_EVENT_RESET, /* events were lost (compaction, restart, other cluster): list again; entry is NULL */
};
struct meta_event {
    enum meta_event_kind kind;
    const struct meta_entry *entry; /* DELETE: only key and mod_revision are set */
};
/* Runs on the watch's own thread, one at a time, in order of revision. May block briefly. Must not close its watch. */
typedef void (*meta_watch_fn)(void *arg, const struct meta_event *event);

/* Events of all keys with the prefix from revision on (0: from now). Survives endpoint failures and reconnects; where
 * it cannot know what it missed it says RESET. Returns once the watch is set up locally, not when the service has it.
 * A resource limit: each watch is one thread and one connection or polling timer. */
enum shoal_status meta_watch(struct meta *meta, struct meta_bytes prefix, int64_t from_revision, meta_watch_fn fn,
                             void *arg, struct meta_watch **watch_out, struct shoal_error *error);
/* Returns when the callback is not running any more and will not run again. Bounded (well under a second). NULL is
 * fine. */
void meta_watch_close(struct meta_watch *watch);

/* Counters since open: every request that went to the service, by kind. */
struct meta_counters {
    uint64_t gets, lists, txns, lease_calls, watches; /* watches: set up or re-established */
    uint64_t bytes_sent, bytes_received;              /* request and response bodies; sqlite: key and value bytes */
    uint64_t largest_request_bytes;
    uint64_t retries, failures; /* attempts repeated; calls that ended with an error */
};
void meta_counters(const struct meta *meta, struct meta_counters *counters_out);

/* What one cheap request tells of the service. */
struct meta_health {
    char version[64];
    int64_t rtt_us;
    bool has_clock;         /* the service says what time it has */
    int64_t clock_ahead_ms; /* its clock minus this machine's; exact to a second and the round trip */
};
enum shoal_status meta_ping(struct meta *meta, const struct call *call, struct meta_health *health_out,
                            struct shoal_error *error);

#endif
