/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"

struct meta_bytes bytes_of(const char *text)
{
    return (struct meta_bytes){text, strlen(text)};
}

struct call call_for(int64_t timeout_ms)
{
    return (struct call){.deadline_ms = deadline_after_ms(timeout_ms)};
}

void meta_test_check(enum shoal_status expected, enum shoal_status actual, const struct shoal_error *error,
                     const char *what, const char *file, int line)
{
    if (actual != expected) {
        print_error("%s: expected %s, got %s%s%s\n", what, shoal_status_name(expected), shoal_status_name(actual),
                    actual == SHOAL_OK ? "" : ": ", actual == SHOAL_OK ? "" : error->message);
        _fail(file, line);
    }
    if (actual != SHOAL_OK && error->status != actual) {
        print_error("%s: the error says %s\n", what, shoal_status_name(error->status));
        _fail(file, line);
    }
}

struct meta *open_meta(const char *uri)
{
    struct shoal_error error;
    struct meta *meta = NULL;
    assert_status(SHOAL_OK, meta_open(uri, &meta, &error), &error);
    return meta;
}

static int64_t txn_ops(struct meta *meta, const struct meta_op *op)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    bool is_applied = false;
    int64_t revision = 0;
    assert_status(SHOAL_OK, meta_txn(meta, NULL, 0, op, 1, &call, &is_applied, &revision, &error), &error);
    assert_true(is_applied);
    assert_true(revision > 0);
    return revision;
}

int64_t put_leased(struct meta *meta, const char *key, const char *value, int64_t lease)
{
    struct meta_op op = {.kind = META_PUT, .key = bytes_of(key), .value = bytes_of(value), .lease = lease};
    return txn_ops(meta, &op);
}

int64_t put(struct meta *meta, const char *key, const char *value)
{
    return put_leased(meta, key, value, 0);
}

int64_t delete_key(struct meta *meta, const char *key)
{
    struct meta_op op = {.kind = META_DELETE, .key = bytes_of(key)};
    return txn_ops(meta, &op);
}

bool get(struct meta *meta, const char *key, char **value_out, int64_t *mod_revision_out)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_entry entry;
    bool is_found = false;
    assert_status(SHOAL_OK, meta_get(meta, bytes_of(key), &call, &is_found, &entry, &error), &error);
    if (!is_found)
        return false;
    assert_int_equal(entry.key_len, strlen(key));
    assert_string_equal(entry.key, key);
    if (mod_revision_out)
        *mod_revision_out = entry.mod_revision;
    if (value_out) {
        *value_out = entry.value;
        entry.value = NULL;
    }
    meta_entry_release(&entry);
    return true;
}

size_t count_keys(struct meta *meta, const char *prefix, int64_t *revision_out)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    struct meta_entries entries;
    assert_status(SHOAL_OK, meta_list(meta, bytes_of(prefix), 0, &call, &entries, &error), &error);
    size_t count = entries.count;
    if (revision_out)
        *revision_out = entries.revision;
    meta_entries_release(&entries);
    return count;
}

bool txn_one(struct meta *meta, struct meta_compare compare, struct meta_op op)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    bool is_applied = false;
    assert_status(SHOAL_OK, meta_txn(meta, &compare, 1, &op, 1, &call, &is_applied, NULL, &error), &error);
    return is_applied;
}

int64_t grant(struct meta *meta, int64_t ttl_ms)
{
    struct shoal_error error;
    struct call call = call_for(META_TEST_PATIENCE_MS);
    int64_t lease = 0;
    assert_status(SHOAL_OK, meta_lease_grant(meta, ttl_ms, &call, &lease, &error), &error);
    assert_true(lease > 0);
    return lease;
}

void wait_until_absent(struct meta *meta, const char *key)
{
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    while (get(meta, key, NULL, NULL)) {
        assert_false(deadline_is_past(deadline_ms));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

/* --- recorder ------------------------------------------------------------------------------------------------------
 */

void recorder_init(struct recorder *recorder)
{
    pthread_condattr_t attributes;
    *recorder = (struct recorder){0};
    pthread_mutex_init(&recorder->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&recorder->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void recorder_release(struct recorder *recorder)
{
    for (size_t i = 0; i < recorder->count; i++) {
        free(recorder->events[i].key);
        free(recorder->events[i].value);
    }
    free(recorder->events);
    pthread_cond_destroy(&recorder->changed);
    pthread_mutex_destroy(&recorder->mutex);
}

static char *copy(const char *data, size_t len)
{
    char *text = malloc(len + 1);
    if (!text)
        abort();
    memcpy(text, data, len + 1); /* the NUL is promised */
    return text;
}

void recorder_note(void *arg, const struct meta_event *event)
{
    struct recorder *recorder = arg;
    pthread_mutex_lock(&recorder->mutex);
    if (event->kind == META_EVENT_RESET) {
        recorder->resets++;
    } else {
        if (recorder->count == recorder->capacity) {
            recorder->capacity = recorder->capacity ? recorder->capacity * 2 : 64;
            recorder->events = reallocarray(recorder->events, recorder->capacity, sizeof *recorder->events);
            if (!recorder->events)
                abort();
        }
        const struct meta_entry *entry = event->entry;
        recorder->events[recorder->count++] = (struct recorded){
            .kind = event->kind,
            .key = copy(entry->key, entry->key_len),
            .key_len = entry->key_len,
            .value = event->kind == META_EVENT_PUT ? copy(entry->value, entry->value_len) : NULL,
            .value_len = entry->value_len,
            .mod_revision = entry->mod_revision,
            .lease = entry->lease,
        };
    }
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->mutex);
}

static bool wait_change(struct recorder *recorder, int64_t deadline_ms)
{
    struct timespec until = deadline_timespec(deadline_ms);
    return pthread_cond_timedwait(&recorder->changed, &recorder->mutex, &until) == 0;
}

void recorder_wait(struct recorder *recorder, size_t count)
{
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    pthread_mutex_lock(&recorder->mutex);
    while (recorder->count < count && wait_change(recorder, deadline_ms))
        ;
    size_t reached = recorder->count;
    pthread_mutex_unlock(&recorder->mutex);
    if (reached < count)
        fail_msg("%zu events of %zu came (%zu resets)", reached, count, recorder->resets);
}

void recorder_wait_resets(struct recorder *recorder, size_t resets)
{
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    pthread_mutex_lock(&recorder->mutex);
    while (recorder->resets < resets && wait_change(recorder, deadline_ms))
        ;
    size_t reached = recorder->resets;
    pthread_mutex_unlock(&recorder->mutex);
    if (reached < resets)
        fail_msg("%zu resets of %zu came", reached, resets);
}

static bool has_event(const struct recorder *recorder, enum meta_event_kind kind, const char *key)
{
    for (size_t i = 0; i < recorder->count; i++)
        if (recorder->events[i].kind == kind && strcmp(recorder->events[i].key, key) == 0)
            return true;
    return false;
}

void recorder_wait_for(struct recorder *recorder, enum meta_event_kind kind, const char *key)
{
    int64_t deadline_ms = deadline_after_ms(META_TEST_PATIENCE_MS);
    pthread_mutex_lock(&recorder->mutex);
    bool is_seen;
    while (!(is_seen = has_event(recorder, kind, key)) && wait_change(recorder, deadline_ms))
        ;
    pthread_mutex_unlock(&recorder->mutex);
    if (!is_seen)
        fail_msg("no event of kind %d for \"%s\"", (int)kind, key);
}
