/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/etcd_http.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"

#define POLL_MAX_MS 1000
#define KEEPALIVE_IDLE_S 5L
#define KEEPALIVE_INTERVAL_S 2L

static pthread_once_t global_once = PTHREAD_ONCE_INIT;
static CURLcode global_code;

static void global_init(void)
{
    global_code = curl_global_init(CURL_GLOBAL_DEFAULT);
}

enum shoal_status etcd_http_global_init(struct shoal_error *error)
{
    pthread_once(&global_once, global_init);
    if (global_code == CURLE_OK)
        return SHOAL_OK;
    return error_set(error, SHOAL_METADATA, 0, "libcurl: %s", curl_easy_strerror(global_code));
}

CURL *etcd_http_easy(const struct etcd_http_config *config)
{
    CURL *easy = curl_easy_init();
    if (!easy)
        return NULL;
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    /* The service is a member of the cluster, never behind the proxy that the environment names for the web. */
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* do not wait for a resolver that hangs */
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    if (config->cacert)
        curl_easy_setopt(easy, CURLOPT_CAINFO, config->cacert);
    if (config->cert)
        curl_easy_setopt(easy, CURLOPT_SSLCERT, config->cert);
    if (config->key)
        curl_easy_setopt(easy, CURLOPT_SSLKEY, config->key);
    return easy;
}

static bool append_header(struct curl_slist **headers, const char *text)
{
    struct curl_slist *longer = curl_slist_append(*headers, text);
    if (!longer)
        return false;
    *headers = longer;
    return true;
}

struct curl_slist *etcd_http_headers(const char *token, bool wants_continue)
{
    struct curl_slist *headers = NULL;
    char *authorization = NULL;
    /* A member without a leader answers at once instead of waiting for one. */
    bool is_good = append_header(&headers, "Content-Type: application/json") &&
                   append_header(&headers, "Grpc-Metadata-hasleader: true") &&
                   append_header(&headers, wants_continue ? "Expect: 100-continue" : "Expect:");
    if (is_good && token && *token)
        is_good = asprintf(&authorization, "Authorization: %s", token) >= 0 && append_header(&headers, authorization);
    free(authorization);
    if (is_good)
        return headers;
    curl_slist_free_all(headers);
    return NULL;
}

/* --- one connection cache ------------------------------------------------------------------------------------------
 */

static size_t on_response(char *data, size_t size, size_t count, void *arg)
{
    struct etcd_http *http = arg;
    return buf_append(&http->response, data, size * count) ? size * count : 0;
}

static size_t on_send(char *data, size_t size, size_t count, void *arg)
{
    struct etcd_http *http = arg;
    size_t len = http->body_len - http->body_sent;
    if (len > size * count)
        len = size * count;
    memcpy(data, http->body + http->body_sent, len);
    http->body_sent += len;
    return len;
}

enum shoal_status etcd_http_create(const struct etcd_http_config *config, struct etcd_http **http_out,
                                   struct shoal_error *error)
{
    struct etcd_http *http = calloc(1, sizeof *http);
    if (!http)
        return error_no_memory(error);
    list_node_init(&http->node);
    http->multi = curl_multi_init();
    http->easy = etcd_http_easy(config);
    if (!http->multi || !http->easy) {
        etcd_http_destroy(http);
        return error_no_memory(error);
    }
    curl_easy_setopt(http->easy, CURLOPT_WRITEFUNCTION, on_response);
    curl_easy_setopt(http->easy, CURLOPT_WRITEDATA, http);
    /* No seek callback: libcurl cannot send a body twice behind our back when a kept connection turns out dead. */
    curl_easy_setopt(http->easy, CURLOPT_READFUNCTION, on_send);
    curl_easy_setopt(http->easy, CURLOPT_READDATA, http);
    *http_out = http;
    return SHOAL_OK;
}

void etcd_http_destroy(struct etcd_http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->easy);
    curl_multi_cleanup(http->multi);
    buf_release(&http->response);
    free(http);
}

void etcd_http_wake(void *arg)
{
    struct etcd_http *http = arg;
    curl_multi_wakeup(http->multi);
}

static void explain(CURLcode code, const struct etcd_http *http, const char *detail, struct etcd_http_result *result)
{
    switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
        result->outcome = ETCD_HTTP_NOT_SENT;
        break;
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
        result->outcome = ETCD_HTTP_NOT_SENT;
        result->is_setup = true;
        break;
    case CURLE_WRITE_ERROR:
    case CURLE_FILESIZE_EXCEEDED:
        result->outcome = ETCD_HTTP_TOO_LARGE;
        snprintf(result->cause, sizeof result->cause, "the answer is larger than %zu bytes", http->response.max);
        return;
    default:
        result->outcome = http->body_sent ? ETCD_HTTP_LOST : ETCD_HTTP_NOT_SENT;
    }
    snprintf(result->cause, sizeof result->cause, "%s", *detail ? detail : curl_easy_strerror(code));
}

/* A date is cut to whole seconds; half a second more is the middle of what it can mean. */
static void compare_clocks(CURL *easy, struct etcd_http_result *result)
{
    struct curl_header *date;
    struct timespec now;
    time_t theirs;
    if (curl_easy_header(easy, "Date", 0, CURLH_HEADER, -1, &date) != CURLHE_OK)
        return;
    theirs = curl_getdate(date->value, NULL);
    if (theirs == -1 || clock_gettime(CLOCK_REALTIME, &now) != 0)
        return;
    result->has_clock = true;
    result->clock_ahead_ms = ((int64_t)theirs - now.tv_sec) * 1000 + 500 - now.tv_nsec / 1000000;
}

static bool has_ended(CURLM *multi, CURLcode *code_out)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(multi, &left)))
        if (message->msg == CURLMSG_DONE) {
            *code_out = message->data.result;
            return true;
        }
    return false;
}

/* Drives the transfer to its end or to the end of its time. */
static enum shoal_status drive(struct etcd_http *http, int64_t attempt_deadline_ms, const struct call *call,
                               const char *detail, struct etcd_http_result *result, struct shoal_error *error)
{
    int64_t deadline_ms = deadline_min(attempt_deadline_ms, call->deadline_ms);
    for (;;) {
        int running;
        CURLcode code;
        CURLMcode rc = curl_multi_perform(http->multi, &running);
        if (rc != CURLM_OK)
            return error_set(error, SHOAL_METADATA, 0, "libcurl: %s", curl_multi_strerror(rc));
        if (has_ended(http->multi, &code)) {
            if (code != CURLE_OK) {
                explain(code, http, detail, result);
                return SHOAL_OK;
            }
            result->outcome = ETCD_HTTP_ANSWERED;
            curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &result->status);
            compare_clocks(http->easy, result);
            return SHOAL_OK;
        }
        if (cancel_is_triggered(call->cancel) || deadline_is_past(deadline_ms)) {
            curl_off_t connected_us = 0;
            curl_easy_getinfo(http->easy, CURLINFO_CONNECT_TIME_T, &connected_us);
            result->outcome = http->body_sent ? ETCD_HTTP_LOST : ETCD_HTTP_NOT_SENT;
            result->is_timeout = true;
            snprintf(result->cause, sizeof result->cause, "%s in time", connected_us ? "no answer" : "no connection");
            return SHOAL_OK;
        }
        int timeout_ms = deadline_poll_ms(deadline_min(deadline_ms, deadline_after_ms(POLL_MAX_MS)));
        curl_multi_poll(http->multi, NULL, 0, timeout_ms, NULL);
    }
}

enum shoal_status etcd_http_post(struct etcd_http *http, const char *url, const char *token, const struct buf *body,
                                 bool is_change, size_t response_max, int64_t attempt_deadline_ms,
                                 const struct call *call, struct etcd_http_result *result_out,
                                 struct shoal_error *error)
{
    struct etcd_http_result result = {0};
    char detail[CURL_ERROR_SIZE] = "";
    struct cancel_hook hook;
    enum shoal_status status;
    struct curl_slist *headers = etcd_http_headers(token, is_change);
    if (!headers)
        return error_no_memory(error);
    buf_release(&http->response);
    buf_init(&http->response, response_max);
    http->body = (const char *)body->data;
    http->body_len = body->len;
    http->body_sent = 0;
    curl_easy_setopt(http->easy, CURLOPT_URL, url);
    curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(http->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    curl_easy_setopt(http->easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)response_max);
    curl_easy_setopt(http->easy, CURLOPT_ERRORBUFFER, detail);
    /* Without 100-continue the body would be sent after a second; wait for the attempt's end instead. */
    curl_easy_setopt(http->easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 3600000L);

    cancel_hook_add(call->cancel, &hook, etcd_http_wake, http);
    CURLMcode rc = curl_multi_add_handle(http->multi, http->easy);
    if (rc == CURLM_OK) {
        status = drive(http, attempt_deadline_ms, call, detail, &result, error);
        curl_multi_remove_handle(http->multi, http->easy);
    } else {
        status = error_set(error, SHOAL_METADATA, 0, "libcurl: %s", curl_multi_strerror(rc));
    }
    cancel_hook_remove(call->cancel, &hook);
    curl_easy_setopt(http->easy, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    http->body = NULL;
    if (status == SHOAL_OK)
        *result_out = result;
    return status;
}

void etcd_http_sleep(struct etcd_http *http, int64_t delay_ms, const struct call *call)
{
    struct cancel_hook hook;
    int64_t deadline_ms = deadline_min(deadline_after_ms(delay_ms), call->deadline_ms);
    cancel_hook_add(call->cancel, &hook, etcd_http_wake, http);
    while (!deadline_is_past(deadline_ms) && !cancel_is_triggered(call->cancel))
        curl_multi_poll(http->multi, NULL, 0, deadline_poll_ms(deadline_ms), NULL);
    cancel_hook_remove(call->cancel, &hook);
}
