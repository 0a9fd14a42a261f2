/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of etcd's v3 gateway, as pure functions: requests into a buffer, answers out of text that nobody vouches
 * for. 64-bit numbers are strings (plain integers are accepted too), members with a default value are left out, keys
 * and values are base64. Decoders set their output only on success; METADATA says what was wrong with the text. */
#ifndef SHOAL_META_ETCD_CODEC_H
#define SHOAL_META_ETCD_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "meta/meta.h"

/* --- requests; false: the buffer's bound or memory -----------------------------------------------------------------
 */

/* One key. */
bool etcd_encode_get(struct buf *out, struct meta_bytes key);
/* Up to limit keys with the prefix from key from (len 0: the first) on, at revision (0: the newest). */
bool etcd_encode_range(struct buf *out, struct meta_bytes prefix, struct meta_bytes from, size_t limit,
                       int64_t revision);
/* A linearizable read that returns next to nothing: proves that the member has a quorum. */
bool etcd_encode_probe(struct buf *out);
bool etcd_encode_txn(struct buf *out, const struct meta_compare *compares, size_t compare_count,
                     const struct meta_op *ops, size_t op_count);
bool etcd_encode_lease_grant(struct buf *out, int64_t lease, int64_t ttl_s);
bool etcd_encode_lease(struct buf *out, int64_t lease); /* keep-alive and revoke */
bool etcd_encode_watch(struct buf *out, struct meta_bytes prefix, int64_t start_revision);
bool etcd_encode_authenticate(struct buf *out, const char *user, const char *password);

/* --- answers -------------------------------------------------------------------------------------------------------
 */

struct etcd_header {
    uint64_t cluster_id;
    int64_t revision;
    uint64_t raft_term;
};

struct etcd_range {
    struct etcd_header header;
    struct meta_entry *entries; /* owned */
    size_t count;
    bool has_more;
};
void etcd_range_release(struct etcd_range *range);
enum shoal_status etcd_decode_range(const char *text, size_t len, struct etcd_range *range_out,
                                    struct shoal_error *error);

struct etcd_txn {
    struct etcd_header header;
    bool is_succeeded;
};
enum shoal_status etcd_decode_txn(const char *text, size_t len, struct etcd_txn *txn_out, struct shoal_error *error);

struct etcd_lease {
    struct etcd_header header;
    int64_t id, ttl_s; /* ttl_s 0 after keep-alive: there is no such lease */
};
enum shoal_status etcd_decode_lease_grant(const char *text, size_t len, struct etcd_lease *lease_out,
                                          struct shoal_error *error);
enum shoal_status etcd_decode_keep_alive(const char *text, size_t len, struct etcd_lease *lease_out,
                                         struct shoal_error *error);
/* Any answer that is only a header: revoke. */
enum shoal_status etcd_decode_header(const char *text, size_t len, struct etcd_header *header_out,
                                     struct shoal_error *error);

#define ETCD_TOKEN_MAX_BYTES 4096 /* a JWT has a few hundred */
enum shoal_status etcd_decode_authenticate(const char *text, size_t len, char token_out[ETCD_TOKEN_MAX_BYTES],
                                           struct shoal_error *error);
enum shoal_status etcd_decode_status(const char *text, size_t len, char *version_out, size_t version_size,
                                     struct shoal_error *error);

/* What a member says when it refuses: the body of an answer that is not 200, or the error object in a stream. */
struct etcd_failure {
    int code; /* gRPC status */
    char message[200];
};
/* false: the text is no such thing. */
bool etcd_decode_failure(const char *text, size_t len, struct etcd_failure *failure_out);

struct etcd_event {
    bool is_delete;
    struct meta_entry entry; /* owned */
};
/* One object of a watch stream. */
struct etcd_watch_answer {
    struct etcd_header header;
    bool is_failure; /* the stream ends; only failure is set */
    struct etcd_failure failure;
    bool is_created, is_canceled, is_fragment;
    int64_t compact_revision;
    struct etcd_event *events; /* owned */
    size_t count;
};
void etcd_watch_answer_release(struct etcd_watch_answer *answer);
enum shoal_status etcd_decode_watch(const char *text, size_t len, struct etcd_watch_answer *answer_out,
                                    struct shoal_error *error);

#endif
