/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the etcd backend: endpoints and their health, credentials, one request with failover. */
#ifndef SHOAL_META_ETCD_H
#define SHOAL_META_ETCD_H

#include "base/hostport.h"
#include "base/random.h"
#include "meta/etcd_codec.h"
#include "meta/etcd_http.h"
#include "meta/meta_ops.h"

#define ETCD_ENDPOINTS_MAX 16
#define ETCD_URL_BYTES (HOSTPORT_TEXT_BYTES + 8)
#define ETCD_RESPONSE_MAX_BYTES (16u << 20)
#define ETCD_REQUEST_MAX_BYTES (4u << 20) /* the largest transaction in base64 */

struct etcd_endpoint {
    char url[ETCD_URL_BYTES]; /* "http://host:port" */
    const char *name;         /* inside url, behind the scheme */
    /* Guarded by etcd.lock. */
    int64_t avoid_until_ms; /* it failed lately; 0: it did not */
    int64_t answered_ms;    /* last good answer; 0: none yet */
    unsigned failures;      /* in a row */
};

struct etcd {
    struct meta meta;
    struct etcd_http_config http_config;
    char *user, *password; /* owned; NULL: none */
    char *uri;             /* owned; endpoints as given, for messages */
    size_t endpoint_count;
    struct etcd_endpoint endpoints[ETCD_ENDPOINTS_MAX];

    struct mutex lock; /* RANK_META; guards what follows and the endpoints' health */
    size_t preferred;  /* the endpoint that answered last */
    int64_t revision;  /* highest revision seen in an answer */
    struct list idle;  /* struct etcd_http */
    size_t idle_count;
    bool is_auth_off;                 /* the service has no authentication although we have a user */
    char token[ETCD_TOKEN_MAX_BYTES]; /* "": none */
    struct random random;
};

/* --- endpoints -----------------------------------------------------------------------------------------------------
 */

/* The best endpoint that is not in tried (a bit set): the preferred one, else one without recent failure, else the one
 * whose failure is oldest. */
size_t etcd_pick_endpoint(struct etcd *etcd, uint32_t tried);
void etcd_endpoint_answered(struct etcd *etcd, size_t index);
void etcd_endpoint_failed(struct etcd *etcd, size_t index);
/* Has it answered to anybody within the last window_ms? */
bool etcd_endpoint_is_fresh(struct etcd *etcd, size_t index, int64_t window_ms);
bool etcd_endpoint_is_avoided(struct etcd *etcd, size_t index);

/* --- requests ------------------------------------------------------------------------------------------------------
 */

typedef enum shoal_status (*etcd_decode_fn)(const char *text, size_t len, void *arg, struct shoal_error *error);

struct etcd_request {
    const char *what; /* for messages: "transaction" */
    const char *path; /* "/v3/kv/txn" */
    enum meta_request_kind kind;
    const struct buf *body;
    bool is_change;    /* see etcd_http_post */
    bool is_divisible; /* the caller can ask for less: ETCD_ANSWER_TOO_LARGE */
    etcd_decode_fn decode;
    void *arg;
    bool *is_repeated_out;     /* NULL or: an earlier attempt may have been applied */
    struct meta_health *clock; /* NULL or: gets what time the endpoint has that answers */
};

/* Failures of the service that the caller handles itself; everything else is a status. */
enum etcd_verdict {
    ETCD_DONE,
    ETCD_NO_LEASE,
    ETCD_LEASE_EXISTS,
    ETCD_COMPACTED,
    ETCD_ANSWER_TOO_LARGE,
};

/* Sends the request to one endpoint after the other until one gives an answer that decodes. */
enum shoal_status etcd_perform(struct etcd *etcd, const struct etcd_request *request, const struct call *call,
                               enum etcd_verdict *verdict_out, struct shoal_error *error);

/* The token to send, "" without authentication. */
enum shoal_status etcd_token(struct etcd *etcd, const struct call *call, char token_out[ETCD_TOKEN_MAX_BYTES],
                             struct shoal_error *error);
void etcd_drop_token(struct etcd *etcd, const char *token);
/* The service refused the token, or wants one. */
bool etcd_failure_is_auth(const struct etcd_failure *failure);

/* --- URIs, watches -------------------------------------------------------------------------------------------------
 */

/* Fills endpoints, credentials and certificates from "h:p[,h:p...][?name=value&...]" and the environment. */
enum shoal_status etcd_parse_uri(struct etcd *etcd, const char *rest, bool is_tls, struct shoal_error *error);

enum shoal_status etcd_watch_open(struct meta *meta, struct meta_bytes prefix, int64_t from_revision, meta_watch_fn fn,
                                  void *arg, struct meta_watch **watch_out, struct shoal_error *error);
void etcd_watch_close(struct meta_watch *watch);

#endif
