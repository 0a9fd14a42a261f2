/* SPDX-License-Identifier: Apache-2.0 */
/* A watch of the etcd backend: a thread that reads one long answer, object by object, and opens it anew elsewhere when
 * it breaks, when the member loses its leader, or when the member stops answering. A stream that is silent tells
 * nothing, so the watch asks the same member something small when nobody else has had an answer from it lately. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "meta/etcd.h"

#define LOG_MODULE "meta"
#define LINE_MAX_BYTES (32u << 20) /* answers are fragmented at etcd's request limit, about 2 MiB before base64 */
#define SETUP_TIMEOUT_MS 3000
#define QUIET_MS 3000 /* without any sign of life the member is asked */
#define PROBE_TIMEOUT_MS 2000
#define TICK_MS 500
#define RETRY_BASE_MS 50
#define RETRY_MAX_MS 1000

struct etcd_watch {
    struct meta_watch watch;
    struct etcd *etcd; /* borrowed */
    uint8_t *prefix;   /* owned */
    size_t prefix_len;
    meta_watch_fn fn;
    void *arg;
    pthread_t thread;
    struct shoal_cancel *cancel; /* owned; triggered by close */
    struct etcd_http *http;      /* owned; its multi handle carries stream and probe, its easy handle is not used */

    /* Of the thread. */
    struct random random;
    int64_t from_revision; /* next one to deliver; 0: from now */
    bool is_reset_due;     /* tell RESET as soon as the new stream stands */
    uint64_t cluster_id;   /* 0: not known yet */
    uint64_t raft_term;
};

/* One connection of a watch. */
struct stream {
    struct etcd_watch *watch;
    size_t endpoint;
    CURL *easy;
    CURL *probe; /* NULL: none is running */
    struct curl_slist *headers, *probe_headers;
    struct buf body, probe_body, input, probe_input;
    char token[ETCD_TOKEN_MAX_BYTES];
    int64_t opened_ms, heard_ms, probe_ms;
    bool is_created;
    bool is_suspect; /* the member seems to know less than we do: it lags, or it is another store; a probe tells */
    bool is_over;    /* open another one */
    bool is_member_bad;
    struct shoal_error error; /* why it is over */
};

static bool is_closing(struct etcd_watch *watch)
{
    return cancel_is_triggered(watch->cancel);
}

/* --- answers -------------------------------------------------------------------------------------------------------
 */

static void end_stream(struct stream *stream, bool is_member_bad, const char *why)
{
    if (stream->is_over)
        return;
    stream->is_over = true;
    stream->is_member_bad = is_member_bad;
    error_set(&stream->error, SHOAL_METADATA, 0, "metadata watch: %s: %s",
              stream->watch->etcd->endpoints[stream->endpoint].name, why);
}

static void tell_reset(struct etcd_watch *watch)
{
    struct meta_event event = {.kind = META_EVENT_RESET};
    watch->is_reset_due = false;
    if (!is_closing(watch))
        watch->fn(watch->arg, &event);
}

/* What was delivered before does not connect to what will come: begin again from now, and say so once the new stream
 * stands, so that whoever lists then misses nothing. */
static void begin_anew(struct stream *stream, const char *why)
{
    struct etcd_watch *watch = stream->watch;
    watch->from_revision = 0;
    watch->is_reset_due = true;
    watch->cluster_id = 0;
    watch->raft_term = 0;
    end_stream(stream, false, why);
}

static bool is_younger(const struct etcd_watch *watch, const struct etcd_header *header)
{
    return (watch->from_revision && header->revision < watch->from_revision - 1) ||
           header->raft_term < watch->raft_term;
}

static void on_created(struct stream *stream, const struct etcd_header *header)
{
    struct etcd_watch *watch = stream->watch;
    if (watch->cluster_id && watch->cluster_id != header->cluster_id) {
        begin_anew(stream, "the store is another one");
        return;
    }
    stream->is_created = true;
    stream->is_suspect = is_younger(watch, header);
    watch->cluster_id = header->cluster_id;
    if (!stream->is_suspect)
        watch->raft_term = header->raft_term;
    if (watch->from_revision == 0)
        watch->from_revision = header->revision + 1;
    meta_count_request(&watch->etcd->meta, META_REQUEST_WATCH, stream->body.len);
    etcd_endpoint_answered(watch->etcd, stream->endpoint);
    if (watch->is_reset_due)
        tell_reset(watch);
}

static void on_events(struct etcd_watch *watch, const struct etcd_watch_answer *answer)
{
    for (size_t i = 0; i < answer->count; i++) {
        const struct meta_entry *entry = &answer->events[i].entry;
        if (entry->mod_revision < watch->from_revision ||
            !meta_bytes_has_prefix(entry->key, entry->key_len, (struct meta_bytes){watch->prefix, watch->prefix_len}))
            continue; /* not what was asked for */
        struct meta_event event = {.kind = answer->events[i].is_delete ? META_EVENT_DELETE : META_EVENT_PUT,
                                   .entry = entry};
        if (is_closing(watch))
            return;
        watch->fn(watch->arg, &event);
    }
    /* A fragment may end in the middle of a revision: after a reconnect it comes again as a whole. */
    if (answer->count) {
        int64_t last = answer->events[answer->count - 1].entry.mod_revision;
        int64_t next = answer->is_fragment ? last : last + 1;
        if (next > watch->from_revision)
            watch->from_revision = next;
    } else if (!answer->is_created && answer->header.revision >= watch->from_revision) {
        watch->from_revision = answer->header.revision + 1; /* progress: nothing is on its way up to here */
    }
}

static void on_line(struct stream *stream, const char *text, size_t len)
{
    struct etcd_watch *watch = stream->watch;
    struct etcd_watch_answer answer;
    struct etcd_failure failure;
    struct shoal_error error;
    if (etcd_decode_watch(text, len, &answer, &error) != SHOAL_OK) {
        if (etcd_decode_failure(text, len, &failure))
            end_stream(stream, true, failure.message);
        else
            end_stream(stream, true, error.message);
        return;
    }
    if (answer.is_failure) {
        if (etcd_failure_is_auth(&answer.failure))
            etcd_drop_token(watch->etcd, stream->token);
        end_stream(stream, !etcd_failure_is_auth(&answer.failure), answer.failure.message);
    } else if (answer.is_canceled) {
        if (answer.compact_revision)
            begin_anew(stream, "the revision to begin with has been compacted");
        else
            end_stream(stream, true, *answer.failure.message ? answer.failure.message : "canceled by the member");
    } else {
        if (answer.is_created && !stream->is_created)
            on_created(stream, &answer.header);
        if (stream->is_created && !stream->is_over)
            on_events(watch, &answer);
    }
    etcd_watch_answer_release(&answer);
}

static void take_lines(struct stream *stream)
{
    size_t start = 0;
    while (!stream->is_over && !is_closing(stream->watch)) {
        size_t left = stream->input.len - start;
        if (!left) /* also an input that has no memory yet */
            break;
        const char *text = (const char *)stream->input.data + start;
        const char *end = memchr(text, '\n', left);
        if (!end)
            break;
        size_t len = (size_t)(end - text);
        start += len + 1;
        if (len)
            on_line(stream, text, len);
    }
    buf_consume(&stream->input, start);
}

/* --- the connection ------------------------------------------------------------------------------------------------
 */

static size_t on_stream_data(char *data, size_t size, size_t count, void *arg)
{
    struct stream *stream = arg;
    stream->heard_ms = clock_now_ms();
    meta_count_received(&stream->watch->etcd->meta, size * count);
    return buf_append(&stream->input, data, size * count) ? size * count : 0;
}

static size_t on_probe_data(char *data, size_t size, size_t count, void *arg)
{
    struct stream *stream = arg;
    return buf_append(&stream->probe_input, data, size * count) ? size * count : 0;
}

static CURL *open_easy(struct stream *stream, const char *path, const struct buf *body, struct curl_slist *headers,
                       curl_write_callback on_data)
{
    struct etcd_watch *watch = stream->watch;
    char url[ETCD_URL_BYTES + 64];
    CURL *easy = etcd_http_easy(&watch->etcd->http_config);
    if (!easy)
        return NULL;
    snprintf(url, sizeof url, "%s%s", watch->etcd->endpoints[stream->endpoint].url, path);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, stream);
    if (curl_multi_add_handle(watch->http->multi, easy) == CURLM_OK)
        return easy;
    curl_easy_cleanup(easy);
    return NULL;
}

static void close_easy(struct stream *stream, CURL **easy)
{
    if (!*easy)
        return;
    curl_multi_remove_handle(stream->watch->http->multi, *easy);
    curl_easy_cleanup(*easy);
    *easy = NULL;
}

static void start_probe(struct stream *stream)
{
    buf_release(&stream->probe_input);
    buf_release(&stream->probe_body);
    curl_slist_free_all(stream->probe_headers);
    stream->probe_headers = etcd_http_headers(stream->token, false);
    stream->probe_ms = clock_now_ms();
    if (stream->probe_headers && etcd_encode_probe(&stream->probe_body)) {
        meta_count_request(&stream->watch->etcd->meta, META_REQUEST_OTHER, stream->probe_body.len);
        stream->probe = open_easy(stream, "/v3/kv/range", &stream->probe_body, stream->probe_headers, on_probe_data);
    }
    if (!stream->probe)
        end_stream(stream, false, "out of memory");
}

static void end_probe(struct stream *stream, CURLcode code)
{
    struct etcd_range range;
    struct etcd_failure failure = {0};
    struct shoal_error error;
    const char *text = stream->probe_input.data ? (const char *)stream->probe_input.data : "";
    if (code != CURLE_OK) {
        end_stream(stream, true, curl_easy_strerror(code));
    } else if (etcd_decode_range(text, stream->probe_input.len, &range, &error) == SHOAL_OK) {
        /* A linearizable answer is as new as the whole cluster. */
        if (stream->is_suspect && is_younger(stream->watch, &range.header))
            begin_anew(stream, "the store was restarted empty");
        stream->is_suspect = false;
        etcd_range_release(&range);
        etcd_endpoint_answered(stream->watch->etcd, stream->endpoint);
        stream->heard_ms = clock_now_ms();
    } else if (etcd_decode_failure(text, stream->probe_input.len, &failure) && etcd_failure_is_auth(&failure)) {
        etcd_drop_token(stream->watch->etcd, stream->token);
        end_stream(stream, false, failure.message);
    } else {
        end_stream(stream, true, *failure.message ? failure.message : error.message);
    }
    close_easy(stream, &stream->probe);
}

static void check_time(struct stream *stream)
{
    struct etcd *etcd = stream->watch->etcd;
    int64_t now_ms = clock_now_ms();
    if (!stream->is_created) {
        if (now_ms - stream->opened_ms > SETUP_TIMEOUT_MS)
            end_stream(stream, true, "the watch is not set up in time");
        return;
    }
    if (stream->probe) {
        if (now_ms - stream->probe_ms > PROBE_TIMEOUT_MS)
            end_stream(stream, true, "the member does not answer any more");
        return;
    }
    if (stream->is_suspect)
        start_probe(stream);
    else if (etcd->endpoint_count > 1 && etcd_endpoint_is_avoided(etcd, stream->endpoint))
        end_stream(stream, false, "the member fails other requests");
    else if (now_ms - stream->heard_ms > QUIET_MS && !etcd_endpoint_is_fresh(etcd, stream->endpoint, QUIET_MS))
        start_probe(stream);
}

static void take_results(struct stream *stream)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(stream->watch->http->multi, &left))) {
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result;
        if (message->easy_handle == stream->probe) {
            end_probe(stream, code);
        } else if (message->easy_handle == stream->easy) {
            /* An answer that is no stream: an error object without newline. */
            if (stream->input.len)
                on_line(stream, (const char *)stream->input.data, stream->input.len);
            end_stream(stream, true, code == CURLE_OK ? "the member ended the stream" : curl_easy_strerror(code));
        }
    }
}

/* Runs one stream to its end. */
static void run_stream(struct stream *stream)
{
    struct etcd_watch *watch = stream->watch;
    CURLM *multi = watch->http->multi;
    int64_t checked_ms = clock_now_ms();
    while (!stream->is_over && !is_closing(watch)) {
        int running;
        if (curl_multi_perform(multi, &running) != CURLM_OK) {
            end_stream(stream, false, "libcurl fails");
            return;
        }
        take_lines(stream);
        take_results(stream);
        if (stream->is_over || is_closing(watch))
            return;
        bool is_doubtful = stream->is_suspect && !stream->probe;
        if (is_doubtful || clock_now_ms() - checked_ms >= TICK_MS) {
            check_time(stream);
            checked_ms = clock_now_ms();
        }
        curl_multi_poll(multi, NULL, 0, TICK_MS, NULL);
    }
}

static enum shoal_status open_stream(struct stream *stream)
{
    struct etcd_watch *watch = stream->watch;
    struct call call = {.deadline_ms = deadline_after_ms(SETUP_TIMEOUT_MS), .cancel = watch->cancel};
    buf_init(&stream->body, ETCD_REQUEST_MAX_BYTES);
    buf_init(&stream->probe_body, ETCD_REQUEST_MAX_BYTES);
    buf_init(&stream->input, LINE_MAX_BYTES);
    buf_init(&stream->probe_input, ETCD_RESPONSE_MAX_BYTES);
    enum shoal_status status = etcd_token(watch->etcd, &call, stream->token, &stream->error);
    if (status != SHOAL_OK)
        return status;
    stream->headers = etcd_http_headers(stream->token, false);
    if (!stream->headers ||
        !etcd_encode_watch(&stream->body, (struct meta_bytes){watch->prefix, watch->prefix_len}, watch->from_revision))
        return error_no_memory(&stream->error);
    stream->opened_ms = stream->heard_ms = clock_now_ms();
    stream->easy = open_easy(stream, "/v3/watch", &stream->body, stream->headers, on_stream_data);
    return stream->easy ? SHOAL_OK : error_no_memory(&stream->error);
}

static void close_stream(struct stream *stream)
{
    close_easy(stream, &stream->probe);
    close_easy(stream, &stream->easy);
    curl_slist_free_all(stream->headers);
    curl_slist_free_all(stream->probe_headers);
    buf_release(&stream->body);
    buf_release(&stream->probe_body);
    buf_release(&stream->input);
    buf_release(&stream->probe_input);
}

static void *run_watch(void *arg)
{
    struct etcd_watch *watch = arg;
    struct cancel_hook hook;
    unsigned failures = 0;
    const struct call closing = {.deadline_ms = DEADLINE_NONE, .cancel = watch->cancel};
    struct stream *stream = calloc(1, sizeof *stream);
    cancel_hook_add(watch->cancel, &hook, etcd_http_wake, watch->http);
    while (!is_closing(watch)) {
        bool was_created = false;
        if (stream) {
            *stream = (struct stream){.watch = watch, .endpoint = etcd_pick_endpoint(watch->etcd, 0)};
            if (open_stream(stream) == SHOAL_OK)
                run_stream(stream);
            was_created = stream->is_created;
            close_stream(stream);
            if (is_closing(watch))
                break;
            if (stream->is_member_bad)
                etcd_endpoint_failed(watch->etcd, stream->endpoint);
            if (failures == 0 || was_created)
                LOG_INFO("%s; watching anew", stream->error.message);
        } else {
            stream = calloc(1, sizeof *stream);
        }
        meta_count_retry(&watch->etcd->meta);
        failures = was_created ? 0 : failures + 1;
        etcd_http_sleep(watch->http, backoff_ms(&watch->random, failures, RETRY_BASE_MS, RETRY_MAX_MS), &closing);
    }
    cancel_hook_remove(watch->cancel, &hook);
    free(stream);
    return NULL;
}

/* --- life ----------------------------------------------------------------------------------------------------------
 */

static void free_watch(struct etcd_watch *watch)
{
    etcd_http_destroy(watch->http);
    shoal_cancel_destroy(watch->cancel);
    free(watch->prefix);
    free(watch);
}

enum shoal_status etcd_watch_open(struct meta *meta, struct meta_bytes prefix, int64_t from_revision, meta_watch_fn fn,
                                  void *arg, struct meta_watch **watch_out, struct shoal_error *error)
{
    struct etcd *etcd = container_of(meta, struct etcd, meta);
    struct etcd_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return error_no_memory(error);
    *watch = (struct etcd_watch){
        .etcd = etcd, .prefix_len = prefix.len, .fn = fn, .arg = arg, .from_revision = from_revision};
    random_init(&watch->random, random_id());
    enum shoal_status status = SHOAL_OK;
    watch->prefix = malloc(prefix.len + 1);
    if (!watch->prefix || shoal_cancel_create(&watch->cancel) != SHOAL_OK) {
        status = error_no_memory(error);
        goto free_watch;
    }
    if (prefix.len)
        memcpy(watch->prefix, prefix.data, prefix.len);
    status = etcd_http_create(&etcd->http_config, &watch->http, error);
    if (status != SHOAL_OK)
        goto free_watch;
    int rc = thread_start(&watch->thread, "shoal-watch", run_watch, watch);
    if (rc != 0) {
        status = error_set(error, SHOAL_METADATA, rc, "metadata watch: no thread: %s", strerror(rc));
        goto free_watch;
    }
    *watch_out = &watch->watch;
    return SHOAL_OK;
free_watch:
    free_watch(watch);
    return status;
}

void etcd_watch_close(struct meta_watch *base)
{
    struct etcd_watch *watch = container_of(base, struct etcd_watch, watch);
    shoal_cancel_trigger(watch->cancel);
    pthread_join(watch->thread, NULL);
    free_watch(watch);
}
