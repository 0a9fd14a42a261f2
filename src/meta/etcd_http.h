/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP for the etcd backend: one POST at a time over kept connections, ended at once by a deadline or a cancel token.
 */
#ifndef SHOAL_META_ETCD_HTTP_H
#define SHOAL_META_ETCD_HTTP_H

#include <curl/curl.h>

#include "base/buf.h"
#include "base/call.h"
#include "base/list.h"

/* Owned strings; NULL: not given. */
struct etcd_http_config {
    char *cacert, *cert, *key;
};

/* Makes libcurl ready, once per process. */
enum shoal_status etcd_http_global_init(struct shoal_error *error);

/* An easy handle with everything that never changes between requests. NULL: out of memory. */
CURL *etcd_http_easy(const struct etcd_http_config *config);
/* Headers of a request: content type, leader required, token (may be NULL or ""), Expect. NULL: out of memory. */
struct curl_slist *etcd_http_headers(const char *token, bool wants_continue);

/* One connection cache. Used by one thread at a time. */
struct etcd_http {
    struct list_node node; /* of the user's pool */
    CURLM *multi;          /* owned */
    CURL *easy;            /* owned */
    struct buf response;
    /* What is left to send, for the read callback. */
    const char *body; /* borrowed during a request */
    size_t body_len, body_sent;
};
enum shoal_status etcd_http_create(const struct etcd_http_config *config, struct etcd_http **http_out,
                                   struct shoal_error *error);
void etcd_http_destroy(struct etcd_http *http);

enum etcd_http_outcome {
    ETCD_HTTP_ANSWERED,  /* status and response are set */
    ETCD_HTTP_NOT_SENT,  /* the service cannot have acted: no connection, or it never asked for the body */
    ETCD_HTTP_LOST,      /* sent, no complete answer */
    ETCD_HTTP_TOO_LARGE, /* the answer exceeds the bound */
};
struct etcd_http_result {
    enum etcd_http_outcome outcome;
    bool is_timeout; /* the attempt's time was up */
    bool is_setup;   /* certificates or keys: no endpoint can help */
    long status;
    bool has_clock;         /* the answer has a date */
    int64_t clock_ahead_ms; /* the sender's clock minus ours; a date has no more than seconds */
    char cause[200];        /* in words, unless answered */
};

/* POSTs body to url until attempt_deadline_ms or the end of the call, which the caller tells apart (call_check).
 * is_change: sends the body only when the service asks for it (100-continue) and never a second time, so that a stopped
 * service cannot apply it when it wakes up. The answer stays in http->response until the next request. */
enum shoal_status etcd_http_post(struct etcd_http *http, const char *url, const char *token, const struct buf *body,
                                 bool is_change, size_t response_max, int64_t attempt_deadline_ms,
                                 const struct call *call, struct etcd_http_result *result_out,
                                 struct shoal_error *error);

/* A cancel hook that ends whatever the multi handle of a struct etcd_http waits for. */
void etcd_http_wake(void *http);
/* Waits, ended early by the call. */
void etcd_http_sleep(struct etcd_http *http, int64_t delay_ms, const struct call *call);

#endif
