/* SPDX-License-Identifier: Apache-2.0 */
/* What a metadata backend implements. meta.c checks arguments, counts and dispatches; a backend sees valid input only.
 */
#ifndef SHOAL_META_META_OPS_H
#define SHOAL_META_META_OPS_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/mutex.h"
#include "meta/meta.h"

struct meta_ops {
    const char *name;
    /* No watch is left and no call is running. Frees meta. */
    void (*close)(struct meta *meta);
    enum shoal_status (*get)(struct meta *meta, struct meta_bytes key, const struct call *call, bool *is_found_out,
                             struct meta_entry *entry_out, struct shoal_error *error);
    enum shoal_status (*list)(struct meta *meta, struct meta_bytes prefix, size_t limit, const struct call *call,
                              struct meta_entries *entries_out, struct shoal_error *error);
    enum shoal_status (*txn)(struct meta *meta, const struct meta_compare *compares, size_t compare_count,
                             const struct meta_op *ops, size_t op_count, const struct call *call, bool *is_applied_out,
                             int64_t *revision_out, struct shoal_error *error);
    enum shoal_status (*lease_grant)(struct meta *meta, int64_t ttl_ms, const struct call *call, int64_t *lease_out,
                                     struct shoal_error *error);
    enum shoal_status (*lease_keep_alive)(struct meta *meta, int64_t lease, const struct call *call,
                                          struct shoal_error *error);
    enum shoal_status (*lease_revoke)(struct meta *meta, int64_t lease, const struct call *call,
                                      struct shoal_error *error);
    enum shoal_status (*watch_open)(struct meta *meta, struct meta_bytes prefix, int64_t from_revision,
                                    meta_watch_fn fn, void *arg, struct meta_watch **watch_out,
                                    struct shoal_error *error);
    /* Joins the watch's thread and frees it. */
    void (*watch_close)(struct meta_watch *watch);
    /* Everything but rtt_us. */
    enum shoal_status (*ping)(struct meta *meta, const struct call *call, struct meta_health *health_out,
                              struct shoal_error *error);
};

struct meta_atomic_counters {
    atomic_uint_fast64_t gets, lists, txns, lease_calls, watches;
    atomic_uint_fast64_t bytes_sent, bytes_received, largest_request_bytes, retries, failures;
};

/* First member of a backend's own struct. */
struct meta {
    const struct meta_ops *ops;
    struct meta_atomic_counters counters;
    struct mutex lock; /* RANK_META; guards watches; nothing is called under it */
    struct list watches;
    char where[256]; /* for messages: the endpoints or the file; set by the backend's constructor */
};

/* First member of a backend's watch. */
struct meta_watch {
    struct meta *meta; /* borrowed: meta_close ends its watches first */
    struct list_node node;
};

/* Each backend's constructor. rest: the URI behind the scheme. */
enum shoal_status meta_sqlite_open(const char *rest, struct meta **meta_out, struct shoal_error *error);
enum shoal_status meta_etcd_open(const char *rest, bool is_tls, struct meta **meta_out, struct shoal_error *error);

void meta_init(struct meta *meta, const struct meta_ops *ops);
void meta_release(struct meta *meta);
/* call_check; its message says what was asked and where. */
enum shoal_status meta_call_check(const struct meta *meta, const struct call *call, const char *what,
                                  struct shoal_error *error);

enum meta_request_kind {
    META_REQUEST_GET,
    META_REQUEST_LIST,
    META_REQUEST_TXN,
    META_REQUEST_LEASE,
    META_REQUEST_WATCH,
    META_REQUEST_OTHER
};
/* One request that went to the service. */
void meta_count_request(struct meta *meta, enum meta_request_kind kind, uint64_t sent_bytes);
void meta_count_received(struct meta *meta, uint64_t received_bytes);
void meta_count_retry(struct meta *meta);

/* A copy of key and value (value may be NULL: empty). false: out of memory. */
bool meta_entry_init(struct meta_entry *entry, const void *key, size_t key_len, const void *value, size_t value_len);
/* Takes entry over. capacity is the caller's. false: out of memory (entry stays the caller's). */
bool meta_entries_push(struct meta_entries *entries, size_t *capacity, const struct meta_entry *entry);

/* The smallest key greater than every key with the prefix. is_end_out: there is none, the range goes to the end.
 * end_out has room for META_KEY_MAX_BYTES. */
void meta_prefix_end(struct meta_bytes prefix, uint8_t *end_out, size_t *end_len_out, bool *is_end_out);

bool meta_bytes_has_prefix(const void *data, size_t len, struct meta_bytes prefix);

#endif
