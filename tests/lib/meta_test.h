/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms for tests of the metadata layer: they fail the cmocka test with the message of the error. */
#ifndef SHOAL_TESTS_META_TEST_H
#define SHOAL_TESTS_META_TEST_H

#include <pthread.h>
#include <stdbool.h>

#include "meta/meta.h"

#define META_TEST_PATIENCE_MS 60000 /* for what must happen at last, however slow the machine */

struct meta_bytes bytes_of(const char *text);
struct call call_for(int64_t timeout_ms);
/* Fails the test with error's message unless status is expected. */
#define assert_status(expected, expression, error)                                                                     \
    meta_test_check((expected), (expression), (error), #expression, __FILE__, __LINE__)
void meta_test_check(enum shoal_status expected, enum shoal_status actual, const struct shoal_error *error,
                     const char *what, const char *file, int line);

struct meta *open_meta(const char *uri);
int64_t put(struct meta *meta, const char *key, const char *value);
int64_t put_leased(struct meta *meta, const char *key, const char *value, int64_t lease);
int64_t delete_key(struct meta *meta, const char *key);
/* false: absent. value_out may be NULL; else release it with free. */
bool get(struct meta *meta, const char *key, char **value_out, int64_t *mod_revision_out);
/* Entries with the prefix; the revision of the list in revision_out (may be NULL). */
size_t count_keys(struct meta *meta, const char *prefix, int64_t *revision_out);
bool txn_one(struct meta *meta, struct meta_compare compare, struct meta_op op);
int64_t grant(struct meta *meta, int64_t ttl_ms);
/* Waits until the key is gone. */
void wait_until_absent(struct meta *meta, const char *key);

/* A watch callback that remembers everything. */
struct recorder {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct recorded {
        enum meta_event_kind kind;
        char *key, *value;
        size_t key_len, value_len;
        int64_t mod_revision, lease;
    } * events;
    size_t count, capacity, resets;
};
void recorder_init(struct recorder *recorder);
void recorder_release(struct recorder *recorder);
void recorder_note(void *recorder, const struct meta_event *event);
/* Waits for at least count events other than RESET; fails the test if they do not come. */
void recorder_wait(struct recorder *recorder, size_t count);
void recorder_wait_resets(struct recorder *recorder, size_t resets);
/* Waits for an event of the kind and key. */
void recorder_wait_for(struct recorder *recorder, enum meta_event_kind kind, const char *key);

#endif
