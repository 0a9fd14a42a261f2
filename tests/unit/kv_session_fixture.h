/* SPDX-License-Identifier: Apache-2.0 */
/* A session of a client, a fake master, and what tests of both ask again and again. */
#ifndef SHOAL_TEST_KV_SESSION_FIXTURE_H
#define SHOAL_TEST_KV_SESSION_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fake_master.h"

#define KIND(name) SHOAL__WIRE__MASTER_ANNOUNCE_REQUEST__KIND__##name
#define INSTANCE 42

struct fixture {
    struct fake_master master;
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    struct rpc_channels *channels;
    struct tier_backend *backend;
    struct session *session;

    struct mutex mutex; /* RANK_STORE: guards what follows */
    struct cond changed;
    unsigned drops, drops_refused, drops_to_refuse;
    uint64_t last_dropped;
};

struct outcome {
    struct fixture *fixture;
    unsigned times;
    enum shoal_status status;
    struct shoal_error error;
};

/* Ends in FAKE_WAIT_MS. */
struct call patient(void);
int setup(void **state);
int teardown(void **state);
void make_session(struct fixture *fixture, const char *masters);
/* With the fake master, unless there is a session already. Waits until it is ready. */
void make_ready(struct fixture *fixture);

/* A call with a short deadline, which on a loaded machine may be too short to meet the trouble that is waited for: it
 * is longer each time. */
typedef enum shoal_status (*hasty_fn)(struct fixture *fixture, const struct call *call, struct shoal_error *error);
void assert_fails(struct fixture *fixture, hasty_fn fn, enum shoal_status status, const char *what, const char *why);
/* One to assert_fails with. */
enum shoal_status hasty_lookup(struct fixture *fixture, const struct call *call, struct shoal_error *error);

#endif
