/* SPDX-License-Identifier: Apache-2.0 */
/* get_replica and fetch_index: the calling thread's side of a pull. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/keys.h"
#include "store/pull.h"
#include "transport/location.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define MAX_SOURCES_DEFAULT 32u /* neighbours enough for swarms of any size: bench/swarm_sim.c */
#define INDEX_SOURCES 4u
#define MAX_SOURCES_LIMIT 128u
#define PROGRESS_INTERVAL_MS 200
#define FETCH_INDEX_TIMEOUT_MS 30000

/* --- the watch: feeds the pull with what happens to the payload in the metadata service --- */

struct follower {
    struct shoal_store *store;
    struct pull *pull;
    const char *name;
    char *prefix; /* owned */
    struct meta_watch *watch;
};

static const char *rest_of_key(const struct follower *follower, const struct meta_entry *entry)
{
    size_t len = strlen(follower->prefix);

    return entry->key_len > len && memcmp(entry->key, follower->prefix, len) == 0 ? entry->key + len : "";
}

/* A vanished key has no value: the node's name is in the key. */
static void source_vanished(struct follower *follower, const char *rest)
{
    const char *escaped = strrchr(rest, '/');
    struct buf name;

    buf_init(&name, 320);
    if (escaped && engine_key_unescape(&name, escaped + 1, strlen(escaped + 1)) && name.len)
        pull_source_vanished(follower->pull, (const char *)name.data);
    buf_release(&name);
}

static void list_again(struct follower *follower)
{
    struct call call = {.deadline_ms = deadline_after_ms(1000)};
    struct payload_record record;

    if (publish_read(follower->store, follower->name, &call, &record, NULL))
        return; /* the watch comes back with another RESET or with events */
    for (size_t i = 0; i < record.source_count; i++)
        pull_source_appeared(follower->pull, &record.sources[i]);
    if (!record.manifest_status)
        pull_manifest_changed(follower->pull, record.has_manifest ? record.manifest.generation : 0);
    payload_record_release(&record);
}

static void on_event(void *arg, const struct meta_event *event)
{
    struct follower *follower = arg;
    struct source_entry entry;
    struct manifest manifest;
    const char *rest;

    if (event->kind == META_EVENT_RESET) {
        list_again(follower);
        return;
    }
    rest = rest_of_key(follower, event->entry);
    if (strcmp(rest, "manifest") == 0) {
        if (event->kind == META_EVENT_DELETE) {
            pull_manifest_changed(follower->pull, 0);
        } else if (!manifest_decode(&manifest, event->entry->value, event->entry->value_len, NULL)) {
            pull_manifest_changed(follower->pull, manifest.generation);
            manifest_release(&manifest);
        }
    } else if (event->kind == META_EVENT_DELETE) {
        source_vanished(follower, rest);
    } else if (!source_entry_decode(&entry, event->entry->value, event->entry->value_len, NULL)) {
        pull_source_appeared(follower->pull, &entry);
    }
}

static void follow_begin(struct follower *follower, struct shoal_store *store, struct pull *pull, const char *name,
                         int64_t revision)
{
    struct shoal_error error;

    *follower = (struct follower){.store = store, .pull = pull, .name = name};
    follower->prefix = publish_prefix(store, name);
    if (follower->prefix && meta_watch(engine_meta(store->engine),
                                       (struct meta_bytes){.data = follower->prefix, .len = strlen(follower->prefix)},
                                       revision + 1, on_event, follower, &follower->watch, &error))
        LOG_WARN("payload '%s': sources that appear later will not be seen: %s", name, error.message);
}

static void follow_end(struct follower *follower)
{
    meta_watch_close(follower->watch);
    free(follower->prefix);
}

/* --- waiting --- */

static void wake_pull(void *arg)
{
    pull_wake(arg);
}

struct reporter {
    shoal_progress_fn fn;
    void *arg;
    int64_t interval_ms, next_ms;
};

static void report(struct reporter *reporter, struct pull *pull)
{
    struct shoal_progress progress;
    struct shoal_source_stats *sources;

    pull_progress(pull, &progress, &sources);
    reporter->fn(reporter->arg, &progress);
    free(sources);
    reporter->next_ms = clock_now_ms() + reporter->interval_ms;
}

/* Until phase is reached; ends the pull when the call is canceled or out of time. OK: reached (or ended). */
static void wait_for(struct pull *pull, const char *name, enum pull_phase phase, const struct call *call,
                     struct reporter *reporter)
{
    struct shoal_error error;
    int64_t until = DEADLINE_NONE;

    for (;;) {
        if (reporter->fn)
            until = reporter->next_ms;
        if (pull_wait(pull, phase, deadline_min(until, call->deadline_ms)) >= phase)
            return;
        if (call_check(call, &error, "pull")) {
            error_prefix(&error, "payload '%s'", name);
            pull_stop(pull, error.status, &error, NULL);
            return;
        }
        if (reporter->fn && clock_now_ms() >= reporter->next_ms)
            report(reporter, pull);
    }
}

/* --- get_replica --- */

struct ticker {
    struct reporter *reporter;
    struct pull *pull;
};

static void tick(void *arg)
{
    struct ticker *ticker = arg;

    if (clock_now_ms() >= ticker->reporter->next_ms)
        report(ticker->reporter, ticker->pull);
}

/* What is here already counts before anything is asked of anybody. */
static void reuse(struct pull *pull, const char *name, const struct call *call, struct reporter *reporter)
{
    struct ticker ticker = {.reporter = reporter, .pull = pull};
    struct shoal_error error;

    wait_for(pull, name, PULL_PIECES, call, reporter);
    if (pull_reuse(pull, call, reporter->fn ? tick : NULL, &ticker, &error)) {
        error_prefix(&error, "payload '%s'", name);
        pull_stop(pull, error.status, &error, NULL);
    }
}

/* Everything that peers need in order to read from here. On error nothing is left to undo but payload_close. */
static enum shoal_status become_source(struct payload *payload, struct pull *pull, const struct manifest *manifest,
                                       struct shoal_error *error)
{
    const struct layout *layout = pull_layout(pull);
    enum shoal_status status = layout_init(&payload->layout, layout->sizes, layout->region_count,
                                           layout->max_shard_size, layout->piece_size, error);

    if (status)
        return status;
    status = manifest_encode(manifest, &payload->manifest, error);
    if (status)
        return status;
    payload->index = pull_take_index(pull, &payload->index_len);
    status = payload_register_index(payload, error);
    if (!status)
        status = serve_start(payload, error);
    if (!status)
        pull_set_payload(pull, payload);
    return status;
}

static void announce(struct payload *payload, int64_t manifest_revision, const struct call *call)
{
    struct shoal_error error;
    struct call brief = call_with_timeout(call, 5000);

    mutex_lock(&payload->store->mutex);
    payload->wants_publication = true;
    mutex_unlock(&payload->store->mutex);
    if (publish_join_known(payload, manifest_revision, &brief, &error)) {
        /* The bytes come all the same; the janitor announces them when the service is back. */
        LOG_WARN("payload '%s': not announced yet: %s", payload->name, error.message);
        janitor_wake(payload->store);
    }
}

static enum shoal_status run_pull(struct payload *payload, const struct payload_record *record,
                                  const struct shoal_get_options *options, const struct call *call,
                                  struct shoal_error *error)
{
    struct shoal_store *store = payload->store;
    struct pull_config config = {.store = store,
                                 .name = payload->name,
                                 .manifest = &record->manifest,
                                 .local = &payload->spans,
                                 .no_verify = options->no_verify,
                                 .is_device = payload->is_device,
                                 .max_sources = options->max_sources ? options->max_sources : MAX_SOURCES_DEFAULT,
                                 .reuse = (enum shoal_reuse)options->reuse,
                                 .previous = options->previous,
                                 .regions = payload->regions,
                                 .region_count = payload->region_count};
    struct reporter reporter = {.fn = options->progress,
                                .arg = options->progress_arg,
                                .interval_ms = options->progress_interval_ms ? options->progress_interval_ms
                                                                             : PROGRESS_INTERVAL_MS};
    struct follower follower;
    struct cancel_hook hook;
    struct pull *pull;
    enum shoal_status status = pull_create(&config, &pull, error);

    if (status)
        return status;
    reporter.next_ms = clock_now_ms() + reporter.interval_ms;
    cancel_hook_add(call->cancel, &hook, wake_pull, pull);
    pull_start(pull, record->sources, record->source_count);
    follow_begin(&follower, store, pull, payload->name, record->revision);
    if (config.reuse || config.previous)
        reuse(pull, payload->name, call, &reporter);
    /* A node without a piece is no source: announced, such receivers would keep alive a payload that nobody has. */
    wait_for(pull, payload->name, PULL_GROWING, call, &reporter);
    if (payload->is_shared && pull_wait(pull, PULL_GROWING, 0) < PULL_ENDING) {
        struct shoal_error detail;
        if (become_source(payload, pull, &record->manifest, &detail))
            pull_stop(pull, detail.status, &detail, NULL);
        else
            announce(payload, record->manifest_revision, call);
    }
    wait_for(pull, payload->name, PULL_ENDED, call, &reporter);
    follow_end(&follower);
    cancel_hook_remove(call->cancel, &hook);
    status = pull_stop(pull, SHOAL_OK, NULL, error); /* it has ended: only the result */
    /* A pull that was quicker than this thread becomes a source now. */
    if (!status && payload->is_shared && !payload->index) {
        status = become_source(payload, pull, &record->manifest, error);
        if (!status)
            announce(payload, record->manifest_revision, call);
    }
    if (reporter.fn)
        report(&reporter, pull);
    pull_destroy(pull);
    return status;
}

/* Manifest and sources of the payload, or the error that says why there is nothing to pull. */
static enum shoal_status find_payload(struct shoal_store *store, const char *name, uint64_t generation,
                                      const struct call *call, struct payload_record *record, struct shoal_error *error)
{
    enum shoal_status status = publish_find(store, name, generation, call, record, error);

    if (status || record->source_count)
        return status;
    payload_record_release(record);
    return error_set(error, SHOAL_NO_SOURCE, 0, "payload '%s' has no live source", name);
}

static enum shoal_status check_get_options(const struct shoal_get_options *given, struct shoal_get_options *options_out,
                                           struct shoal_error *error)
{
    *options_out = (struct shoal_get_options){.struct_size = sizeof *options_out};
    if (!given)
        return SHOAL_OK;
    if (given->struct_size < sizeof *given)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "struct shoal_get_options: struct_size is %zu, want %zu",
                         given->struct_size, sizeof *given);
    if (given->max_sources > MAX_SOURCES_LIMIT || given->progress_interval_ms < 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "max_sources (at most %u) or progress interval out of range",
                         MAX_SOURCES_LIMIT);
    if (given->reuse < SHOAL_REUSE_NONE || given->reuse > SHOAL_REUSE_ONLY)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "reuse is %d", given->reuse);
    if (given->location && (given->reuse != SHOAL_REUSE_NONE || given->previous)) {
        struct location where;
        enum shoal_status status = location_parse(given->location, &where, error);

        if (status)
            return status;
        if (where.kind == LOCATION_CUDA)
            return error_set(error, SHOAL_UNSUPPORTED, 0, "reuse and previous are for host memory, not for \"%s\"",
                             given->location);
    }
    *options_out = *given;
    return SHOAL_OK;
}

static enum shoal_status get_replica(struct shoal_store *store, const char *name, const struct shoal_region *regions,
                                     size_t count, const struct shoal_get_options *options, const struct call *call,
                                     struct shoal_error *error)
{
    struct payload_record record = {0};
    struct payload *payload = NULL;
    uint64_t total = 0;
    enum shoal_status status = payload_open(store, name, regions, count, false, &payload, error);

    if (status)
        return status;
    status = find_payload(store, name, options->generation, call, &record, error);
    if (status)
        goto close;
    for (size_t i = 0; i < count; i++)
        total += regions[i].len_bytes;
    if (total != record.manifest.total_size) {
        status = error_set(error, SHOAL_INVALID_ARGUMENT, 0, "payload '%s' has %" PRIu64 " bytes, the regions %" PRIu64,
                           name, record.manifest.total_size, total);
        goto close;
    }
    payload_set_generation(payload, record.manifest.generation);
    payload->is_shared = !options->no_share;
    if (options->no_verify) {
        LOG_WARN("payload '%s': pulled without verification, as asked for", name);
        atomic_fetch_add_explicit(&store->counters.unverified_gets, 1, memory_order_relaxed);
    }
    status = payload_register_memory(payload, options->location,
                                     payload->is_shared ? SHOAL_ACCESS_REMOTE_READ : SHOAL_ACCESS_LOCAL, error);
    if (!status)
        status = run_pull(payload, &record, options, call, error);
    if (!status && payload->is_shared) {
        payload_set_state(payload, PAYLOAD_READY);
        goto out;
    }
close:
    mutex_lock(&store->mutex);
    payload->wants_publication = false;
    mutex_unlock(&store->mutex);
    if (payload->index) { /* it may have been announced */
        serve_stop(payload);
        publish_withdraw_or_defer(store, name, payload->generation, NULL, NULL);
    }
    payload_close(payload);
out:
    payload_unref(payload);
    payload_record_release(&record);
    return status;
}

enum shoal_status shoal_store_get_replica(struct shoal_store *store, const char *name,
                                          const struct shoal_region *regions, size_t count,
                                          const struct shoal_get_options *options, const struct shoal_call *call,
                                          struct shoal_error *error)
{
    struct shoal_get_options checked;
    struct store_call store_call;
    enum shoal_status status = store_call_begin(&store_call, store, call, -1, error);

    if (status)
        return status;
    status = store_check_name(name, error);
    if (!status)
        status = check_get_options(options, &checked, error);
    if (!status) {
        atomic_fetch_add_explicit(&store->counters.gets, 1, memory_order_relaxed);
        status = get_replica(store, name, regions, count, &checked, &store_call.call, error);
        if (status)
            atomic_fetch_add_explicit(&store->counters.gets_failed, 1, memory_order_relaxed);
    }
    store_call_end(&store_call);
    return status;
}

/* --- fetch_index --- */

static enum shoal_status copy_out(const struct index_view *index, void **attachment_out, size_t *attachment_len_out,
                                  uint64_t **size_list_out, size_t *size_count_out, struct shoal_error *error)
{
    uint8_t *attachment = malloc(index->attachment_len + 1);
    uint64_t *sizes = calloc(index->region_count + 1, sizeof *sizes);

    if (!attachment || !sizes) {
        free(attachment);
        free(sizes);
        return error_no_memory(error);
    }
    memcpy(attachment, index->attachment, index->attachment_len);
    attachment[index->attachment_len] = '\0';
    for (size_t i = 0; i < index->region_count; i++)
        sizes[i] = index_size(index, i);
    if (attachment_len_out)
        *attachment_len_out = index->attachment_len;
    if (size_count_out)
        *size_count_out = index->region_count;
    if (attachment_out)
        *attachment_out = attachment;
    else
        free(attachment);
    if (size_list_out)
        *size_list_out = sizes;
    else
        free(sizes);
    return SHOAL_OK;
}

enum shoal_status shoal_store_fetch_index(struct shoal_store *store, const char *name, uint64_t generation,
                                          const struct shoal_call *call, void **attachment_out,
                                          size_t *attachment_len_out, uint64_t **size_list_out, size_t *size_count_out,
                                          struct shoal_error *error)
{
    struct store_call store_call;
    struct payload_record record = {0};
    struct reporter reporter = {0};
    struct follower follower;
    struct cancel_hook hook;
    struct pull *pull = NULL;
    struct payload *own = NULL;
    struct index_view view;
    enum shoal_status status = store_call_begin(&store_call, store, call, FETCH_INDEX_TIMEOUT_MS, error);

    if (status)
        return status;
    status = store_check_name(name, error);
    if (!status)
        status = find_payload(store, name, generation, &store_call.call, &record, error);
    if (!status && (own = serve_find(store, name, record.manifest.generation))) {
        if (index_decode(&view, own->index, own->index_len))
            status = error_set(error, SHOAL_INTERNAL, 0, "payload '%s': this node's own index is malformed", name);
        else
            status = copy_out(&view, attachment_out, attachment_len_out, size_list_out, size_count_out, error);
        goto out;
    }
    if (!status) {
        struct pull_config config = {
            .store = store, .name = name, .manifest = &record.manifest, .max_sources = INDEX_SOURCES};
        status = pull_create(&config, &pull, error);
    }
    if (!status) {
        cancel_hook_add(store_call.call.cancel, &hook, wake_pull, pull);
        pull_start(pull, record.sources, record.source_count);
        follow_begin(&follower, store, pull, name, record.revision);
        wait_for(pull, name, PULL_ENDED, &store_call.call, &reporter);
        follow_end(&follower);
        cancel_hook_remove(store_call.call.cancel, &hook);
        status = pull_stop(pull, SHOAL_OK, NULL, error);
        if (!status)
            status =
                copy_out(pull_index(pull), attachment_out, attachment_len_out, size_list_out, size_count_out, error);
    }
out:
    payload_unref(own);
    pull_destroy(pull);
    payload_record_release(&record);
    store_call_end(&store_call);
    return status;
}
