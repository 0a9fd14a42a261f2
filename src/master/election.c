/* SPDX-License-Identifier: Apache-2.0 */
#include "master/election.h"

#include <stdlib.h>
#include <string.h>

#include "base/call.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "kv/election_key.h"
#include "meta/meta.h"

#define LOG_MODULE "election"
#include "base/log.h"

#define LEASE_MS 4000
#define LEASE_MIN_MS 1000
#define MARGIN_DIVISOR 8 /* of the lease: so much earlier a leader that could not renew it stops answering */
#define CALL_MS 1500
#define LOOK_MS 300      /* a standby looks whether somebody leads */
#define TRY_AGAIN_MS 200 /* a leader that could not renew its lease */
#define GIVE_UP_MS 1000

struct election {
    struct meta *meta;              /* owned */
    struct master_service *service; /* borrowed */
    char *key, *address;            /* owned */
    int64_t lease_ms;
    struct shoal_cancel *cancel; /* owned; ends requests when stopping */
    struct mutex mutex;
    struct cond wake;
    bool is_stopping;
    pthread_t thread;
    bool is_started;
    /* the thread's */
    bool is_leading, is_trouble_told;
    int64_t lease, until_ms;
    char *leader; /* owned; NULL: nobody, as far as known */
};

static struct meta_bytes text_bytes(const char *text)
{
    return (struct meta_bytes){text, strlen(text)};
}

static struct call call_for(struct election *election, int64_t deadline_ms)
{
    return (struct call){.deadline_ms = deadline_min(deadline_ms, deadline_after_ms(CALL_MS)),
                         .cancel = election->cancel};
}

static void tell_trouble(struct election *election, const struct shoal_error *error)
{
    if (!election->is_trouble_told && error->status != SHOAL_CANCELED)
        LOG_WARN("the metadata service fails: %s", error->message);
    election->is_trouble_told = true;
}

static void follow(struct election *election, const char *leader, size_t len)
{
    if (!election->is_leading && election->leader && strlen(election->leader) == len &&
        memcmp(election->leader, leader, len) == 0)
        return;
    free(election->leader);
    election->leader = strndup(leader, len);
    master_service_follow(election->service, election->leader ? election->leader : "");
    if (election->is_leading)
        LOG_WARN("leads no more");
    else if (len)
        LOG_INFO("%.*s leads", (int)len, leader);
    election->is_leading = false;
}

/* The lease was asked for (or renewed) at asked_ms: it lives at least lease_ms from then on. */
static int64_t safe_until(const struct election *election, int64_t asked_ms)
{
    return asked_ms + election->lease_ms - election->lease_ms / MARGIN_DIVISOR;
}

/* Puts this master's address under a new lease if compare holds. */
static void campaign(struct election *election, const struct meta_compare *compare)
{
    struct meta_op op = {.kind = META_PUT, .key = text_bytes(election->key), .value = text_bytes(election->address)};
    int64_t asked_ms = clock_now_ms();
    struct call call = call_for(election, DEADLINE_NONE);
    struct shoal_error error;
    bool is_applied = false;
    enum shoal_status status = meta_lease_grant(election->meta, election->lease_ms, &call, &op.lease, &error);

    if (!status) {
        status = meta_txn(election->meta, compare, 1, &op, 1, &call, &is_applied, NULL, &error);
        if (!status && !is_applied)
            (void)meta_lease_revoke(election->meta, op.lease, &call, NULL); /* somebody was faster */
    }
    if (status) {
        tell_trouble(election, &error); /* if the answer was lost, then the next look finds our address */
        return;
    }
    if (!is_applied)
        return;
    election->is_trouble_told = false;
    election->lease = op.lease;
    election->until_ms = safe_until(election, asked_ms);
    free(election->leader);
    election->leader = NULL;
    if (clock_now_ms() >= election->until_ms)
        return; /* this process was stalled; the next look finds our address */
    election->is_leading = true;
    LOG_INFO("leads as %s", election->address);
    master_service_lead(election->service, election->until_ms);
}

static void stand_by(struct election *election)
{
    struct call call = call_for(election, DEADLINE_NONE);
    struct meta_entry entry = {0};
    struct shoal_error error;
    bool is_found = false;

    if (meta_get(election->meta, text_bytes(election->key), &call, &is_found, &entry, &error)) {
        tell_trouble(election, &error);
        follow(election, "", 0);
        return;
    }
    if (!is_found) {
        campaign(election, &(struct meta_compare){.kind = META_KEY_ABSENT, .key = text_bytes(election->key)});
        return;
    }
    election->is_trouble_told = false;
    if (entry.value_len == strlen(election->address) && memcmp(entry.value, election->address, entry.value_len) == 0) {
        /* Of an earlier life at this address: nobody else can be listening here. */
        campaign(election, &(struct meta_compare){.kind = META_MOD_REVISION_IS,
                                                  .key = text_bytes(election->key),
                                                  .revision = entry.mod_revision});
    } else {
        follow(election, entry.value, entry.value_len);
    }
    meta_entry_release(&entry);
}

/* Returns after how long to look again. */
static int64_t go_on_leading(struct election *election)
{
    int64_t asked_ms = clock_now_ms();
    struct call call = call_for(election, election->until_ms);
    struct meta_entry entry = {0};
    struct shoal_error error;
    bool is_found = false, is_ours;
    enum shoal_status status;

    if (asked_ms >= election->until_ms) {
        LOG_WARN("could not renew the lease in time");
        follow(election, "", 0);
        return 0;
    }
    status = meta_lease_keep_alive(election->meta, election->lease, &call, &error);
    if (status == SHOAL_NOT_FOUND) {
        LOG_WARN("the lease has been lost");
        follow(election, "", 0);
        return 0;
    }
    if (!status) {
        election->until_ms = safe_until(election, asked_ms);
        master_service_extend(election->service, election->until_ms);
        call = call_for(election, election->until_ms);
        status = meta_get(election->meta, text_bytes(election->key), &call, &is_found, &entry, &error);
    }
    if (status) {
        tell_trouble(election, &error);
        return deadline_min(TRY_AGAIN_MS, deadline_left_ms(election->until_ms));
    }
    election->is_trouble_told = false;
    is_ours = is_found && entry.lease == election->lease;
    meta_entry_release(&entry);
    if (!is_ours) { /* somebody deleted or replaced it */
        follow(election, "", 0);
        return 0;
    }
    return election->lease_ms / 4;
}

static void *run(void *arg)
{
    struct election *election = arg;
    int64_t wait_ms = 0;

    mutex_lock(&election->mutex);
    while (!election->is_stopping) {
        mutex_unlock(&election->mutex);
        if (election->is_leading) {
            wait_ms = go_on_leading(election);
        } else {
            stand_by(election);
            wait_ms = election->is_leading ? election->lease_ms / 4 : LOOK_MS;
        }
        mutex_lock(&election->mutex);
        if (!election->is_stopping && wait_ms > 0)
            cond_wait_until(&election->wake, &election->mutex, deadline_after_ms(wait_ms));
    }
    mutex_unlock(&election->mutex);
    return NULL;
}

enum shoal_status election_create(const struct election_config *config, struct election **election_out,
                                  struct shoal_error *error)
{
    struct election *election = calloc(1, sizeof *election);
    enum shoal_status status;
    int failure;

    if (!election)
        return error_no_memory(error);
    mutex_init(&election->mutex, RANK_MASTER);
    cond_init(&election->wake);
    election->service = config->service;
    election->lease_ms = config->lease_ms ? config->lease_ms : LEASE_MS;
    if (election->lease_ms < LEASE_MIN_MS)
        election->lease_ms = LEASE_MIN_MS;
    election->key = election_key(config->cluster);
    election->address = strdup(config->address);
    if (!election->key || !election->address || shoal_cancel_create(&election->cancel) != SHOAL_OK) {
        status = error_no_memory(error);
        goto fail;
    }
    status = meta_open(config->uri, &election->meta, error);
    if (status)
        goto fail;
    failure = thread_start(&election->thread, "election", run, election);
    if (failure) {
        status = error_set(error, SHOAL_LIMIT, failure, "cannot start a thread: %s", strerror(failure));
        goto fail;
    }
    election->is_started = true;
    *election_out = election;
    return SHOAL_OK;

fail:
    election_destroy(election);
    return status;
}

void election_destroy(struct election *election)
{
    if (!election)
        return;
    if (election->is_started) {
        mutex_lock(&election->mutex);
        election->is_stopping = true;
        cond_broadcast(&election->wake);
        mutex_unlock(&election->mutex);
        shoal_cancel_trigger(election->cancel);
        pthread_join(election->thread, NULL);
    }
    if (election->is_leading) {
        struct call call = {.deadline_ms = deadline_after_ms(GIVE_UP_MS)};
        master_service_follow(election->service, "");
        (void)meta_lease_revoke(election->meta, election->lease, &call, NULL);
    }
    meta_close(election->meta);
    shoal_cancel_destroy(election->cancel);
    cond_release(&election->wake);
    mutex_release(&election->mutex);
    free(election->leader);
    free(election->key);
    free(election->address);
    free(election);
}
