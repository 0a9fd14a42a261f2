/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_session_fixture.h"

struct call patient(void)
{
    return (struct call){.deadline_ms = deadline_after_ms(FAKE_WAIT_MS)};
}

void make_session(struct fixture *fixture, const char *masters)
{
    struct session_config config = {.loop = fixture->loop,
                                    .rpc = fixture->rpc,
                                    .channels = fixture->channels,
                                    .master = masters,
                                    .cluster = "test",
                                    .server_name = "client",
                                    .address = "127.0.0.1:12345",
                                    .instance = INSTANCE,
                                    .backend = fixture->backend,
                                    .call_timeout_ms = FAKE_WAIT_MS};
    struct shoal_error error;

    if (session_create(&config, &fixture->session, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
}

void make_ready(struct fixture *fixture)
{
    struct call call = patient();
    struct shoal_error error;

    if (!fixture->session)
        make_session(fixture, fixture->master.address);
    if (session_wait_ready(fixture->session, &call, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
}

int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct endpoint_config endpoint_config = {
        .bind_host = "127.0.0.1", .cluster = "test", .max_connections = 64, .max_handshakes = 16};
    struct rpc_channels_config channels_config = {.cluster = "test", .server_name = "client", .instance = INSTANCE};

    mutex_init(&fixture->mutex, RANK_STORE);
    cond_init(&fixture->changed);
    fake_master_init(&fixture->master, 1);
    assert_int_equal(loop_create("client", &fixture->loop, NULL), SHOAL_OK);
    endpoint_config.loop = fixture->loop;
    assert_int_equal(endpoint_create(&endpoint_config, &fixture->endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(fixture->loop, fixture->endpoint, &fixture->rpc, NULL), SHOAL_OK);
    assert_int_equal(endpoint_start(fixture->endpoint, "client", NULL), SHOAL_OK);
    assert_int_equal(rpc_channels_create(&channels_config, &fixture->channels, NULL), SHOAL_OK);
    *state = fixture;
    return 0;
}

int teardown(void **state)
{
    struct fixture *fixture = *state;

    session_destroy(fixture->session);
    tier_backend_destroy(fixture->backend);
    rpc_channels_destroy(fixture->channels);
    rpc_destroy(fixture->rpc);
    endpoint_destroy(fixture->endpoint);
    loop_destroy(fixture->loop);
    fake_master_release(&fixture->master);
    cond_release(&fixture->changed);
    mutex_release(&fixture->mutex);
    free(fixture);
    return 0;
}

enum shoal_status hasty_lookup(struct fixture *fixture, const struct call *call, struct shoal_error *error)
{
    struct session_route *routes;
    const char *key = "k";
    enum shoal_status status = session_lookup(fixture->session, &key, 1, call, &routes, error);

    if (!status)
        free(routes);
    return status;
}

void assert_fails(struct fixture *fixture, hasty_fn fn, enum shoal_status status, const char *what, const char *why)
{
    int64_t deadline_ms = deadline_after_ms(FAKE_WAIT_MS);
    struct shoal_error error = {.message = ""};

    for (int64_t timeout_ms = 200;; timeout_ms *= 2) {
        struct call call = {.deadline_ms = deadline_after_ms(timeout_ms)};

        assert_int_not_equal(fn(fixture, &call, &error), SHOAL_OK);
        if (error.status == status && strstr(error.message, what) && strstr(error.message, why))
            return;
        if (deadline_is_past(deadline_ms))
            fail_msg("%s: %s", shoal_status_name(error.status), error.message);
    }
}
