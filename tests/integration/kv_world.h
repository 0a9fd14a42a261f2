/* SPDX-License-Identifier: Apache-2.0 */
/* A KV cluster in the test's process: a master, two owners, and a third client that owns nothing: it asks master and
 * owners itself, or (is_thin) the second owner's local service for everything. */
#ifndef SHOAL_TESTS_INTEGRATION_KV_WORLD_H
#define SHOAL_TESTS_INTEGRATION_KV_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>

#include <shoal/kv.h>

#include "base/clock.h"
#include "kv/local_service.h"
#include "kv_master.h"

#define PATIENCE_MS 60000
#define KIB 1024
#define MIB (1024 * 1024)

extern bool is_thin;
extern const struct shoal_call patient;

struct fixture {
    struct kv_master master;
    char *dir;
    char uri[4096];
    struct shoal_kv *a, *b, *third; /* a and b own */
    struct local_service *local;    /* of b */
};
int kv_world_setup(void **state);
int kv_world_teardown(void **state);

void expect_at(enum shoal_status got, enum shoal_status wanted, const struct shoal_error *error, const char *file,
               int line);
#define EXPECT(wanted, expression)                                                                                     \
    do {                                                                                                               \
        struct shoal_error error;                                                                                      \
        enum shoal_status got_ = (expression);                                                                         \
        expect_at(got_, SHOAL_##wanted, &error, __FILE__, __LINE__);                                                   \
    } while (0)
#define EXPECT_SAYING(wanted, part, expression)                                                                        \
    do {                                                                                                               \
        struct shoal_error error;                                                                                      \
        enum shoal_status got_ = (expression);                                                                         \
        expect_at(got_, SHOAL_##wanted, &error, __FILE__, __LINE__);                                                   \
        if (!strstr(error.message, part))                                                                              \
            fail_msg("the message does not say '%s': %s", part, error.message);                                        \
    } while (0)
#define WAIT_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        int64_t deadline_ = deadline_after_ms(PATIENCE_MS);                                                            \
        while (!(condition)) {                                                                                         \
            if (deadline_is_past(deadline_))                                                                           \
                fail_msg("never came true: %s", #condition);                                                           \
            poll(NULL, 0, 10);                                                                                         \
        }                                                                                                              \
    } while (0)

/* Content that tells where it is cut or mixed. */
void fill(void *to, size_t len, uint64_t seed);
void *content(size_t len, uint64_t seed); /* free() */
void put(struct shoal_kv *kv, const char *key, size_t len, uint64_t seed);
/* By get, get_into, size and exist. */
void check_value(struct shoal_kv *kv, const char *key, size_t len, uint64_t seed);
void check_absent(struct shoal_kv *kv, const char *key);

struct shoal_kv *open_kv(struct fixture *fixture, const char *tiers);
struct shoal_kv *open_thin(struct fixture *fixture, uint64_t arena_bytes);
void serve_local(struct fixture *fixture, uint16_t port, uint64_t max_bytes); /* as fixture->local */
void close_a(struct fixture *fixture);

#endif
