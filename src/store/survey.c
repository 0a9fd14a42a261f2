/* SPDX-License-Identifier: Apache-2.0 */
/* shoal_store_source_status: asks all sources of a payload, some at a time. Loop 0 does the asking, the calling thread
 * waits and decides about deadline and cancellation. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store/status.h"
#include "wire/control.pb-c.h"

#define SURVEY_TIMEOUT_MS 10000
#define SOURCE_TIMEOUT_MS 3000 /* one answer, connecting included */
#define SURVEY_PARALLEL                                                                                                \
    128u /* sources that are asked at a time: dead ones must not use up the deadline of the others */

struct survey;

struct inquiry {
    struct survey *survey;
    uint64_t instance;
    struct rpc_client *client;          /* owned while it is being asked */
    struct shoal_source_status *status; /* borrowed from survey->infos */
    bool is_over;
};

struct survey {
    struct shoal_store *store;
    const struct manifest *manifest;
    uint32_t max_receivers;
    uint8_t request[SHOAL_NAME_MAX_BYTES + 64];
    size_t request_len;

    struct mutex mutex; /* RANK_PAYLOAD: guards is_over and is_woken */
    struct cond changed;
    bool is_over, is_woken;

    /* loop 0; the calling thread's before and after */
    struct inquiry *inquiries;         /* owned array */
    struct shoal_source_status *infos; /* owned array, one for each inquiry */
    size_t count, next, over;
    unsigned active;
    bool is_stopping, is_asking;
};

void shoal_source_statuses_free(struct shoal_source_status *infos, size_t count)
{
    for (size_t i = 0; infos && i < count; i++)
        free(infos[i].receivers);
    free(infos);
}

static void finish(struct inquiry *inquiry)
{
    struct survey *survey = inquiry->survey;

    inquiry->is_over = true;
    if (++survey->over < survey->count)
        return;
    mutex_lock(&survey->mutex);
    survey->is_over = true;
    cond_broadcast(&survey->changed);
    mutex_unlock(&survey->mutex);
}

static void ask_more(struct survey *survey);

static void on_answer(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                      const struct shoal_error *error)
{
    struct inquiry *inquiry = arg;
    struct survey *survey = inquiry->survey;
    struct shoal_source_status *answer = inquiry->status;
    struct rpc_client *client = inquiry->client;

    if (status == SHOAL_OK &&
        status_decode(answer, survey->manifest->piece_count, survey->max_receivers, body, body_len, &answer->error))
        error_prefix(&answer->error, "%s", answer->source.address);
    else if (status && survey->is_stopping)
        error_set(&answer->error, SHOAL_TIMED_OUT, 0, "%s: no answer by the deadline", answer->source.address);
    else if (status)
        answer->error = *error;
    inquiry->client = NULL;
    survey->active--;
    if (!survey->is_stopping)
        rpc_client_close(client); /* else it is being closed */
    finish(inquiry);
    ask_more(survey);
}

static void ask_here(struct inquiry *inquiry)
{
    struct survey *survey = inquiry->survey;
    const struct manifest *manifest = survey->manifest;
    struct payload *payload = serve_find(survey->store, manifest->name, manifest->generation);

    if (!payload)
        error_set(&inquiry->status->error, SHOAL_NOT_FOUND, 0, "this node does not serve the payload any more");
    else if (status_of_payload(payload, survey->max_receivers, inquiry->status))
        error_no_memory(&inquiry->status->error);
    payload_unref(payload);
}

static void ask(struct inquiry *inquiry)
{
    struct survey *survey = inquiry->survey;
    struct shoal_store *store = survey->store;
    struct shoal_source_status *status = inquiry->status;
    int64_t connect_ms = store->connect_timeout_ms < SOURCE_TIMEOUT_MS ? store->connect_timeout_ms : SOURCE_TIMEOUT_MS;

    if (strcmp(status->source.name, shoal_engine_server_name(store->engine)) == 0) {
        ask_here(inquiry);
        finish(inquiry);
        return;
    }
    if (rpc_client_open(store->rpc, status->source.address, inquiry->instance, connect_ms, &inquiry->client,
                        &status->error)) {
        finish(inquiry);
        return;
    }
    if (rpc_call(inquiry->client, STORE_METHOD_STATUS, survey->request, survey->request_len, SOURCE_TIMEOUT_MS,
                 on_answer, inquiry)) {
        error_no_memory(&status->error);
        rpc_client_close(inquiry->client);
        inquiry->client = NULL;
        finish(inquiry);
        return;
    }
    survey->active++;
}

/* Answers that come at once must not make it call itself as deep as there are sources. */
static void ask_more(struct survey *survey)
{
    if (survey->is_asking || survey->is_stopping)
        return;
    survey->is_asking = true;
    while (survey->active < SURVEY_PARALLEL && survey->next < survey->count)
        ask(&survey->inquiries[survey->next++]);
    survey->is_asking = false;
}

static void start_on_loop(void *arg)
{
    ask_more(arg);
}

/* Nothing calls back afterwards. */
static void stop_on_loop(void *arg)
{
    struct survey *survey = arg;

    survey->is_stopping = true;
    for (size_t i = 0; i < survey->count; i++) {
        struct inquiry *inquiry = &survey->inquiries[i];
        if (inquiry->client) {
            rpc_client_close(inquiry->client);
        } else if (!inquiry->is_over) {
            error_set(&inquiry->status->error, SHOAL_TIMED_OUT, 0, "%s: the deadline passed before it was asked",
                      inquiry->status->source.address);
            finish(inquiry);
        }
    }
}

static void wake(void *arg)
{
    struct survey *survey = arg;

    mutex_lock(&survey->mutex);
    survey->is_woken = true;
    cond_broadcast(&survey->changed);
    mutex_unlock(&survey->mutex);
}

static int by_name(const void *a, const void *b)
{
    const struct source_entry *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static enum shoal_status survey_init(struct survey *survey, struct shoal_store *store,
                                     const struct payload_record *record, uint32_t max_receivers,
                                     struct shoal_error *error)
{
    Shoal__Wire__StatusRequest request = SHOAL__WIRE__STATUS_REQUEST__INIT;
    size_t count = record->source_count;

    *survey = (struct survey){.store = store, .manifest = &record->manifest, .count = count};
    survey->max_receivers = max_receivers < SHOAL_STATUS_RECEIVERS_MAX ? max_receivers : SHOAL_STATUS_RECEIVERS_MAX;
    request.name = (char *)record->manifest.name;
    request.generation = record->manifest.generation;
    request.max_receivers = survey->max_receivers;
    if (shoal__wire__status_request__get_packed_size(&request) > sizeof survey->request)
        return error_set(error, SHOAL_INTERNAL, 0, "status request does not fit");
    survey->request_len = shoal__wire__status_request__pack(&request, survey->request);
    survey->inquiries = calloc(count + 1, sizeof *survey->inquiries);
    survey->infos = calloc(count + 1, sizeof *survey->infos);
    if (!survey->inquiries || !survey->infos) {
        free(survey->inquiries);
        free(survey->infos);
        return error_no_memory(error);
    }
    qsort(record->sources, count, sizeof *record->sources, by_name);
    for (size_t i = 0; i < count; i++) {
        const struct source_entry *entry = &record->sources[i];
        struct shoal_source_info *info = &survey->infos[i].source;
        survey->inquiries[i] =
            (struct inquiry){.survey = survey, .instance = entry->instance, .status = &survey->infos[i]};
        info->is_gold = entry->is_gold;
        snprintf(info->name, sizeof info->name, "%s", entry->name);
        snprintf(info->address, sizeof info->address, "%s", entry->address);
    }
    mutex_init(&survey->mutex, RANK_PAYLOAD);
    cond_init(&survey->changed);
    return SHOAL_OK;
}

static void survey_release(struct survey *survey)
{
    cond_release(&survey->changed);
    mutex_release(&survey->mutex);
    free(survey->inquiries);
    shoal_source_statuses_free(survey->infos, survey->count);
}

static void survey_run(struct survey *survey, const struct call *call)
{
    struct loop *loop = engine_loop(survey->store->engine);
    struct cancel_hook hook;

    if (!survey->count)
        return;
    cancel_hook_add(call->cancel, &hook, wake, survey);
    loop_call(loop, start_on_loop, survey);
    mutex_lock(&survey->mutex);
    while (!survey->is_over && !survey->is_woken && !deadline_is_past(call->deadline_ms))
        cond_wait_until(&survey->changed, &survey->mutex, call->deadline_ms);
    mutex_unlock(&survey->mutex);
    cancel_hook_remove(call->cancel, &hook);
    loop_call(loop, stop_on_loop, survey);
}

enum shoal_status shoal_store_source_status(struct shoal_store *store, const char *name, uint64_t generation,
                                            uint32_t max_receivers, const struct shoal_call *call,
                                            struct shoal_source_status **infos_out, size_t *count_out,
                                            struct shoal_error *error)
{
    struct store_call store_call;
    struct payload_record record = {0};
    struct survey survey;
    enum shoal_status status = store_call_begin(&store_call, store, call, SURVEY_TIMEOUT_MS, error);

    if (status)
        return status;
    status = infos_out && count_out ? store_check_name(name, error)
                                    : error_set(error, SHOAL_INVALID_ARGUMENT, 0, "an output is NULL");
    if (!status)
        status = publish_find(store, name, generation, &store_call.call, &record, error);
    if (!status)
        status = survey_init(&survey, store, &record, max_receivers, error);
    if (status)
        goto out;
    survey_run(&survey, &store_call.call);
    if (cancel_is_triggered(store_call.call.cancel)) {
        status = error_set(error, SHOAL_CANCELED, 0, "payload '%s': canceled while its sources were asked", name);
    } else {
        *infos_out = survey.infos;
        *count_out = survey.count;
        survey.infos = NULL;
    }
    survey_release(&survey);
out:
    payload_record_release(&record);
    store_call_end(&store_call);
    return status;
}
