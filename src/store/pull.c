/* SPDX-License-Identifier: Apache-2.0 */
#include "store/pull.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/pull_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define TICK_MS 200
#define SOURCELESS_GRACE_MS 500       /* a source that comes back (its lease was lost) is worth this wait */
#define ABSENCE_MS 1000               /* between two reviews, which a tick makes frequent: this process did not run */
#define BUSY_PATIENCE_MS (10 * 60000) /* for sources that say they serve others first */
#define STARVING_GRACE_MS 3000        /* a few long polls, in which a source that joins would be noticed */

enum news_kind { NEWS_APPEARED, NEWS_VANISHED, NEWS_MANIFEST };
struct news {
    struct list_node node;
    enum news_kind kind;
    struct source_entry entry; /* VANISHED: name only; MANIFEST: generation only */
};

static int64_t give_up_ms(const struct pull *pull)
{
    return pull->store->progress_timeout_ms + pull->store->lease_ttl_ms;
}

/* --- the end --- */

static void set_phase(struct pull *pull, enum pull_phase phase)
{
    mutex_lock(&pull->mutex);
    pull->phase = phase;
    cond_broadcast(&pull->changed);
    mutex_unlock(&pull->mutex);
}

static void end_when_quiet(struct pull *pull)
{
    if (pull->phase != PULL_ENDING)
        return;
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->request_count)
            return;
    }
    if (pull->is_index_registered) {
        /* Only local: nobody can pin it, so this does not wait. */
        shoal_engine_unregister_memory(pull->store->engine, pull->index_data, pull->manifest->index_len, NULL);
        pull->is_index_registered = false;
    }
    loop_timer_stop(&pull->tick);
    set_phase(pull, PULL_ENDED);
}

void pull_end(struct pull *pull, enum shoal_status status, const struct shoal_error *why)
{
    if (pull->phase >= PULL_ENDING)
        return;
    mutex_lock(&pull->mutex);
    pull->result = status;
    if (status)
        pull->error = *why;
    if (status == SHOAL_TIMED_OUT && pull->last_error.status)
        error_set(&pull->error, status, 0, "%s; last trouble: %s", why->message, pull->last_error.message);
    mutex_unlock(&pull->mutex);
    pull->is_stopping = true;
    set_phase(pull, PULL_ENDING);
    source_close_all(pull);
    end_when_quiet(pull);
}

static void end_without_source(struct pull *pull)
{
    struct shoal_error error;
    const char *last = pull->last_error.status ? pull->last_error.message : "none answers";

    if (pull->manifest_generation != pull->manifest->generation && pull->manifest_generation != 0)
        error_set(&error, SHOAL_REPLACED, 0, "payload '%s' was replaced by another generation during the pull",
                  pull->name);
    else if (pull->is_bad_seen)
        error = pull->bad_error;
    else if (pull->manifest_generation == 0)
        error_set(&error, SHOAL_NO_SOURCE, 0, "payload '%s' was withdrawn during the pull: %s", pull->name, last);
    else
        error_set(&error, SHOAL_NO_SOURCE, 0, "payload '%s': no live source has what is missing: %s", pull->name, last);
    pull_end(pull, error.status, &error);
}

/* --- the index --- */

static bool build_swarm(struct pull *pull, struct shoal_error *error)
{
    struct swarm_config config = {.piece_bytes = pull->manifest->piece_size, .seed = random_next(&pull->random)};
    uint64_t *sizes = calloc(pull->index.region_count + 1, sizeof *sizes);
    enum shoal_status status;

    if (!sizes) {
        error_no_memory(error);
        return false;
    }
    for (size_t i = 0; i < pull->index.region_count; i++)
        sizes[i] = index_size(&pull->index, i);
    status = layout_init(&pull->layout, sizes, pull->index.region_count, pull->manifest->max_shard_size,
                         pull->manifest->piece_size, error);
    free(sizes);
    if (status)
        return false;
    if (pull->layout.total_size != pull->manifest->total_size ||
        pull->layout.piece_count != pull->manifest->piece_count) {
        error_set(error, SHOAL_PROTOCOL, 0, "payload '%s': index and manifest contradict each other", pull->name);
        return false;
    }
    if (!pull->local)
        return true;
    config.piece_count = pull->layout.piece_count;
    pull->early = calloc((size_t)config.piece_count + 1, sizeof *pull->early);
    pull->stream = digest_stream_create();
    if (!pull->early || !pull->stream || swarm_create(&config, &pull->swarm)) {
        error_no_memory(error);
        return false;
    }
    return true;
}

static void on_index_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct pull *pull = op->arg;
    struct pull_source *source = pull->index_source;
    struct shoal_error detail;
    struct digest digest;

    pull->is_index_in_flight = false;
    if (pull->is_stopping)
        goto out;
    if (status) {
        if (error)
            detail = *error;
        else
            error_set(&detail, status, 0, "%s: %s", source->entry.name, shoal_status_text(status));
        if (source->state == SOURCE_OPEN)
            source_fail(source, status == SHOAL_INVALID_ARGUMENT || status == SHOAL_IO, &detail);
        goto out;
    }
    digest = digest_of(pull->index_data, pull->manifest->index_len);
    if (!digest_is_equal(&digest, &pull->manifest->index_digest) ||
        index_decode(&pull->index, pull->index_data, pull->manifest->index_len) ||
        pull->index.piece_count != pull->manifest->piece_count ||
        pull->index.region_count != pull->manifest->size_count) {
        pull->is_bad_seen = true;
        error_set(&pull->bad_error, SHOAL_CORRUPTED, 0, "payload '%s': source %s served a wrong index", pull->name,
                  source->entry.name);
        LOG_WARN("%s", pull->bad_error.message);
        source->stats.bad_pieces++;
        source_fail(source, true, &pull->bad_error);
        goto out;
    }
    pull->last_progress_ms = clock_now_ms();
    if (!build_swarm(pull, &detail)) {
        pull_end(pull, detail.status, &detail);
        goto out;
    }
    shoal_engine_unregister_memory(pull->store->engine, pull->index_data, pull->manifest->index_len, NULL);
    pull->is_index_registered = false;
    set_phase(pull, PULL_PIECES);
    if (pull->swarm) {
        LIST_FOR_EACH (open, &pull->sources, struct pull_source, node) {
            if (open->state == SOURCE_OPEN)
                source_join_swarm(open);
        }
    }
out:
    source_request_ended(source);
    pull_review(pull);
}

static void index_begin(struct pull *pull, struct pull_source *source)
{
    pull->index_op = (struct engine_op){
        .op = SHOAL_OP_READ,
        .segment = source->segment,
        .local = pull->index_data,
        .remote_addr = source->index.addr,
        .remote_key = source->index.key,
        .len_bytes = pull->manifest->index_len,
        .done = on_index_done,
        .arg = pull,
    };
    pull->index_source = source;
    pull->is_index_in_flight = true;
    source->request_count++;
    engine_submit(pull->store->engine, &pull->index_op);
}

/* --- decisions --- */

static void connect_more(struct pull *pull, int64_t now)
{
    unsigned connected = 0, idle = 0;

    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPENING || source->state == SOURCE_OPEN || source->state == SOURCE_CLOSING)
            connected++;
        else if (source->state == SOURCE_IDLE && source->is_listed && source->retry_at_ms <= now)
            idle++;
    }
    while (connected < pull->max_sources && idle) {
        uint64_t chosen = random_below(&pull->random, idle);
        LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
            if (source->state == SOURCE_IDLE && source->is_listed && source->retry_at_ms <= now && chosen-- == 0) {
                source_connect(source);
                break;
            }
        }
        idle--;
        connected++;
    }
}

/* Something is on the way, or a source has some of what is missing. */
static bool is_fed(const struct pull *pull)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->request_count)
            return true;
    }
    return !pull->swarm || swarm_has_candidates(pull->swarm);
}

/* Not fed, and every source that is listed is connected: none of them has what is missing. */
static bool is_starving(const struct pull *pull)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPENING || source->state == SOURCE_CLOSING)
            return false;
        if (source->state == SOURCE_IDLE && source->is_listed)
            return false;
    }
    return !is_fed(pull);
}

/* Whether anything can still come from somewhere: an answer, a retry, a source that is still growing. Receivers that
 * all starve have no hope in each other: whoever had the rest has left. */
static bool has_hope(const struct pull *pull)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPENING || source->state == SOURCE_CLOSING || source->request_count)
            return true;
        if (source->state == SOURCE_OPEN && !source->is_complete && !source->is_starving)
            return true;
        if (source->state == SOURCE_IDLE && source->is_listed)
            return true;
    }
    return pull->swarm ? swarm_has_candidates(pull->swarm) : false;
}

static bool is_any_source_growing(const struct pull *pull)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPEN && !source->is_complete)
            return true;
    }
    return false;
}

static bool has_open_source(const struct pull *pull)
{
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        if (source->state == SOURCE_OPEN)
            return true;
    }
    return false;
}

/* Called without hope. Receivers that starve together may only be between two pieces of somebody who is not connected
 * yet; newcomers who starve as well do not prolong it. With only complete sources open the case is clear: they have
 * everything but what they served wrongly. */
static bool is_time_to_end(const struct pull *pull, int64_t now)
{
    if (is_any_source_growing(pull))
        return now - pull->last_fed_ms >= STARVING_GRACE_MS && now - pull->sourceless_since_ms >= SOURCELESS_GRACE_MS;
    return has_open_source(pull) || now - pull->sourceless_since_ms >= SOURCELESS_GRACE_MS;
}

static void judge(struct pull *pull, int64_t now)
{
    if (!has_hope(pull)) {
        if (!pull->sourceless_since_ms)
            pull->sourceless_since_ms = now;
        if (is_time_to_end(pull, now))
            end_without_source(pull);
        return;
    }
    pull->sourceless_since_ms = 0;
    if (now - pull->last_progress_ms >= give_up_ms(pull) &&
        (now - pull->last_busy_ms >= give_up_ms(pull) || now - pull->last_progress_ms >= BUSY_PATIENCE_MS))
        end_without_source(pull);
}

/* A process that was stopped has not waited for its sources meanwhile: its patience begins anew. */
static void forgive_absence(struct pull *pull, int64_t now)
{
    if (now - pull->last_review_ms >= ABSENCE_MS) {
        pull->last_progress_ms = pull->last_fed_ms = now;
        pull->sourceless_since_ms = 0;
    }
    pull->last_review_ms = now;
}

void pull_review(struct pull *pull)
{
    int64_t now = clock_now_ms();

    if (pull->is_in_schedule)
        return; /* reached from inside one of the calls below; they go on anyway */
    forgive_absence(pull, now);
    if (pull->phase >= PULL_ENDING) {
        end_when_quiet(pull);
        return;
    }
    pull->is_in_schedule = true;
    if (pull->phase == PULL_INDEX && !pull->is_index_in_flight) {
        LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
            if (source->state == SOURCE_OPEN) {
                index_begin(pull, source);
                break;
            }
        }
    }
    if (pull->phase == PULL_PIECES && pull->done_bytes > 0)
        set_phase(pull, PULL_GROWING);
    if (pull->phase >= PULL_PIECES && (!pull->swarm || swarm_is_complete(pull->swarm))) {
        pull->is_in_schedule = false;
        pull_end(pull, SHOAL_OK, NULL);
        return;
    }
    connect_more(pull, now);
    if (pull->phase >= PULL_PIECES && pull->is_checking) {
        /* Whether anything is missing, and whether anybody has it, is not known yet. */
        pull->last_progress_ms = pull->last_fed_ms = now;
        pull->is_in_schedule = false;
        return;
    }
    if (pull->phase >= PULL_PIECES)
        fetch_schedule(pull);
    pull->is_in_schedule = false;
    if (is_fed(pull))
        pull->last_fed_ms = now;
    if (pull->payload) /* not for the moments between two pieces */
        serve_starving(pull->payload, now - pull->last_fed_ms >= TICK_MS && is_starving(pull));
    judge(pull, now);
}

static void on_tick(void *arg)
{
    struct pull *pull = arg;

    pull_review(pull);
    if (pull->phase < PULL_ENDED)
        loop_timer_start(&pull->tick, TICK_MS);
}

/* --- news --- */

static void take_news(struct pull *pull, const struct news *news)
{
    struct pull_source *source = source_find(pull, news->entry.name);
    struct shoal_error error;

    switch (news->kind) {
    case NEWS_MANIFEST:
        pull->manifest_generation = news->entry.generation;
        break;
    case NEWS_VANISHED:
        /* Its lease may have been lost while it lives: an open connection is worth more than the listing. */
        if (source)
            source->is_listed = false;
        break;
    case NEWS_APPEARED:
        if (news->entry.generation != pull->manifest->generation ||
            strcmp(news->entry.name, shoal_engine_server_name(pull->store->engine)) == 0)
            break;
        if (!source) {
            source_add(pull, &news->entry);
            break;
        }
        source->is_listed = true;
        if (source->entry.instance != news->entry.instance) {
            /* The node was started again: what we had open belonged to its previous life. */
            error_set(&error, SHOAL_UNREACHABLE, 0, "%s was started again", source->entry.name);
            if (source->state == SOURCE_OPENING || source->state == SOURCE_OPEN)
                source_fail(source, false, &error);
            source->entry = news->entry;
            source->is_dead_after = false;
            source->failures_in_row = 0;
            source->retry_at_ms = 0;
            if (source->state == SOURCE_DEAD)
                source->state = SOURCE_IDLE;
        } else if (source->state == SOURCE_DEAD) {
            source->state = SOURCE_IDLE; /* it announced itself anew */
            source->failures_in_row = 0;
        }
        break;
    }
}

static void on_news(void *arg)
{
    struct pull *pull = arg;
    struct list_node *node;

    for (;;) {
        mutex_lock(&pull->mutex);
        node = list_pop_front(&pull->news);
        if (!node)
            pull->is_news_posted = false;
        mutex_unlock(&pull->mutex);
        if (!node)
            break;
        if (pull->phase < PULL_ENDING)
            take_news(pull, container_of(node, struct news, node));
        free(container_of(node, struct news, node));
    }
    pull_review(pull);
}

static void post_news(struct pull *pull, enum news_kind kind, const struct source_entry *entry)
{
    struct news *news = calloc(1, sizeof *news);
    bool must_post;

    if (!news)
        return; /* a missed source only means fewer of them */
    news->kind = kind;
    news->entry = *entry;
    mutex_lock(&pull->mutex);
    list_push_back(&pull->news, &news->node);
    must_post = !pull->is_news_posted;
    pull->is_news_posted = true;
    if (must_post)
        loop_post(engine_loop(pull->store->engine), &pull->news_task, on_news, pull);
    mutex_unlock(&pull->mutex);
}

void pull_source_appeared(struct pull *pull, const struct source_entry *entry)
{
    post_news(pull, NEWS_APPEARED, entry);
}

void pull_source_vanished(struct pull *pull, const char *name)
{
    struct source_entry entry = {.generation = 0};

    snprintf(entry.name, sizeof entry.name, "%s", name);
    post_news(pull, NEWS_VANISHED, &entry);
}

void pull_manifest_changed(struct pull *pull, uint64_t generation)
{
    struct source_entry entry = {.generation = generation};

    post_news(pull, NEWS_MANIFEST, &entry);
}

/* --- life --- */

enum shoal_status pull_create(const struct pull_config *config, struct pull **pull_out, struct shoal_error *error)
{
    struct pull *pull = calloc(1, sizeof *pull);

    if (!pull)
        return error_no_memory(error);
    pull->store = config->store;
    pull->name = config->name;
    pull->manifest = config->manifest;
    pull->local = config->local;
    pull->no_verify = config->no_verify;
    pull->is_device = config->is_device;
    pull->max_sources = config->max_sources;
    pull->reuse = config->reuse;
    pull->previous = config->previous;
    pull->regions = config->regions;
    pull->region_count = config->region_count;
    pull->is_checking = config->reuse || config->previous;
    pull->manifest_generation = config->manifest->generation;
    pull->index_data = malloc(config->manifest->index_len);
    if (!pull->index_data) {
        free(pull);
        return error_no_memory(error);
    }
    random_init(&pull->random, random_id());
    mutex_init(&pull->mutex, RANK_PAYLOAD);
    cond_init(&pull->changed);
    list_init(&pull->news);
    list_init(&pull->sources);
    list_init(&pull->fetches);
    *pull_out = pull;
    return SHOAL_OK;
}

struct start_args {
    struct pull *pull;
    const struct source_entry *sources;
    size_t count;
};

static void start_on_loop(void *arg)
{
    struct start_args *args = arg;
    struct pull *pull = args->pull;
    struct shoal_error error;
    enum shoal_status status;

    pull->started_ms = pull->last_progress_ms = pull->last_fed_ms = pull->last_review_ms = clock_now_ms();
    status = loop_timer_init(&pull->tick, engine_loop(pull->store->engine), on_tick, pull, &error);
    if (!status)
        status = shoal_engine_register_memory(pull->store->engine, pull->index_data, pull->manifest->index_len, NULL,
                                              SHOAL_ACCESS_LOCAL, NULL, &error);
    pull->is_index_registered = status == SHOAL_OK;
    if (status) {
        pull_end(pull, status, &error);
        return;
    }
    for (size_t i = 0; i < args->count; i++) {
        if (strcmp(args->sources[i].name, shoal_engine_server_name(pull->store->engine)) != 0 &&
            !source_find(pull, args->sources[i].name))
            source_add(pull, &args->sources[i]);
    }
    loop_timer_start(&pull->tick, TICK_MS);
    pull_review(pull);
}

void pull_start(struct pull *pull, const struct source_entry *sources, size_t count)
{
    struct start_args args = {.pull = pull, .sources = sources, .count = count};

    loop_call(engine_loop(pull->store->engine), start_on_loop, &args);
}

enum pull_phase pull_wait(struct pull *pull, enum pull_phase phase, int64_t until_ms)
{
    enum pull_phase reached;

    mutex_lock(&pull->mutex);
    while (pull->phase < phase && !pull->is_woken && !deadline_is_past(until_ms))
        cond_wait_until(&pull->changed, &pull->mutex, until_ms);
    reached = pull->phase;
    mutex_unlock(&pull->mutex);
    return reached;
}

void pull_wake(struct pull *pull)
{
    mutex_lock(&pull->mutex);
    pull->is_woken = true;
    cond_broadcast(&pull->changed);
    mutex_unlock(&pull->mutex);
}

const struct index_view *pull_index(const struct pull *pull)
{
    return &pull->index;
}

const struct layout *pull_layout(const struct pull *pull)
{
    return &pull->layout;
}

uint8_t *pull_take_index(struct pull *pull, size_t *len_out)
{
    uint8_t *data = pull->index_data;

    pull->index_data = NULL;
    *len_out = (size_t)pull->manifest->index_len;
    return data;
}

struct payload_args {
    struct pull *pull;
    struct payload *payload;
};

static void set_payload_on_loop(void *arg)
{
    struct payload_args *args = arg;

    args->pull->payload = args->payload;
    for (uint32_t i = 0; i < args->pull->early_count; i++)
        serve_piece_verified(args->payload, args->pull->early[i], true);
    args->pull->early_count = 0;
}

void pull_set_payload(struct pull *pull, struct payload *payload)
{
    struct payload_args args = {.pull = pull, .payload = payload};

    loop_call(engine_loop(pull->store->engine), set_payload_on_loop, &args);
}

struct stop_args {
    struct pull *pull;
    enum shoal_status status;
    const struct shoal_error *why;
};

static void stop_on_loop(void *arg)
{
    struct stop_args *args = arg;

    pull_end(args->pull, args->status, args->why);
}

enum shoal_status pull_stop(struct pull *pull, enum shoal_status status, const struct shoal_error *why,
                            struct shoal_error *error)
{
    struct stop_args args = {.pull = pull, .status = status, .why = why};

    loop_call(engine_loop(pull->store->engine), stop_on_loop, &args);
    mutex_lock(&pull->mutex);
    while (pull->phase != PULL_ENDED)
        cond_wait(&pull->changed, &pull->mutex);
    mutex_unlock(&pull->mutex);
    if (pull->result && error)
        *error = pull->error;
    return pull->result;
}

static void destroy_on_loop(void *arg)
{
    struct pull *pull = arg;
    struct list_node *node;

    source_destroy_all(pull);
    loop_timer_release(&pull->tick);
    swarm_destroy(pull->swarm);
    while ((node = list_pop_front(&pull->news)))
        free(container_of(node, struct news, node));
}

void pull_destroy(struct pull *pull)
{
    if (!pull)
        return;
    loop_call(engine_loop(pull->store->engine), destroy_on_loop, pull);
    digest_stream_destroy(pull->stream);
    layout_release(&pull->layout);
    free(pull->early);
    free(pull->index_data);
    cond_release(&pull->changed);
    mutex_release(&pull->mutex);
    free(pull);
}

struct progress_args {
    struct pull *pull;
    struct shoal_progress *progress;
    struct shoal_source_stats *sources;
};

static void progress_on_loop(void *arg)
{
    struct progress_args *args = arg;
    struct pull *pull = args->pull;
    uint32_t count = 0;

    args->progress->total_bytes = pull->manifest->total_size;
    args->progress->done_bytes = pull->done_bytes;
    args->progress->reused_bytes = pull->reused_bytes;
    args->progress->checked_bytes = atomic_load_explicit(&pull->checked_bytes, memory_order_relaxed);
    if (pull->is_checking && pull->phase == PULL_PIECES) {
        args->progress->is_checking = true;
        args->progress->done_bytes = atomic_load_explicit(&pull->matched_bytes, memory_order_relaxed);
        args->progress->reused_bytes = args->progress->done_bytes;
    }
    args->progress->elapsed_ms = (uint64_t)(clock_now_ms() - pull->started_ms);
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node)
        count++;
    args->sources = calloc((size_t)count + 1, sizeof *args->sources);
    if (!args->sources)
        return;
    LIST_FOR_EACH (source, &pull->sources, struct pull_source, node) {
        source_note_way(source);
        args->sources[args->progress->source_count++] = source->stats;
    }
    args->progress->sources = args->sources;
}

void pull_progress(struct pull *pull, struct shoal_progress *progress_out, struct shoal_source_stats **sources_out)
{
    struct progress_args args = {.pull = pull, .progress = progress_out};

    *progress_out = (struct shoal_progress){0};
    loop_call(engine_loop(pull->store->engine), progress_on_loop, &args);
    *sources_out = args.sources;
}
