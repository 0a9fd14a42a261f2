/* SPDX-License-Identifier: Apache-2.0 */
/* UCX that is not there, and a stranger on the UCX channel, frame by frame: remote keys that are over, and memory that
 * is not given back. */
#include "../contract/transport_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/endian.h"
#include "content.h"
#include "engine/engine.h"
#include "stranger.h"
#include "wire/ucx_frame.h"

#define LEN (1u << 20)

static struct shoal_engine *engine;
static uint8_t *memory; /* of engine, readable and writable */
static uint64_t key;

/* --- a library that cannot be used --- */

static void expect_unusable(const char *library, const char *part)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_engine *refused = NULL;
    struct shoal_error error;

    config.protocol = "ucx";
    assert_int_equal(setenv("SHOAL_UCX_LIBRARY", library, 1), 0);
    assert_status(SHOAL_UNSUPPORTED, shoal_engine_create(&config, NULL, &refused, &error), &error);
    assert_null(refused);
    if (!strstr(error.message, "protocol ucx") || !strstr(error.message, part)) /* who asked for it, what is missing */
        fail_msg("not '%s': %s", part, error.message);
    assert_int_equal(unsetenv("SHOAL_UCX_LIBRARY"), 0);
}

/* The first test: a library that was loaded once stays. */
static void test_library_is_missing(void **state)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_error error;

    (void)state;
    expect_unusable("/nowhere/libucp.so.0", "UCX cannot be loaded: /nowhere/libucp.so.0");
    expect_unusable("libm.so.6", "libm.so.6 has no ucp_config_read: UCX 1.13 or later is needed");

    /* Who does not ask for it does not need it, and it is found when it is there again. */
    assert_int_equal(setenv("SHOAL_UCX_LIBRARY", "/nowhere/libucp.so.0", 1), 0);
    assert_ok(shoal_engine_create(&config, NULL, &engine, &error), &error);
    assert_status(SHOAL_UNSUPPORTED, shoal_engine_install_transport(engine, "ucx", NULL, &error), &error);
    assert_int_equal(unsetenv("SHOAL_UCX_LIBRARY"), 0);
    assert_ok(shoal_engine_install_transport(engine, "ucx", NULL, &error), &error);
    shoal_engine_destroy(engine);
}

/* --- a stranger --- */

static int ucx_setup(void **state)
{
    struct shoal_error error;

    fixture_setup(state);
    engine = engine_make(NULL);
    memory = memory_make(LEN);
    content_fill(memory, LEN, 1, 0);
    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, &key, &error),
              &error);
    return 0;
}

static int ucx_teardown(void **state)
{
    shoal_engine_destroy(engine);
    memory_drop(memory, LEN);
    return fixture_teardown(state);
}

static int join(void)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_UCX);

    return stranger_join(endpoint_port(engine_endpoint(engine)), &hello);
}

static void put(int fd, struct ucx_frame frame, const void *body)
{
    uint8_t bytes[UCX_FRAME_HEADER_BYTES + 256];

    assert_true(frame.body_len <= 256 && (body != NULL) == (frame.body_len > 0));
    ucx_frame_encode(&frame, bytes);
    if (body)
        memcpy(bytes + UCX_FRAME_HEADER_BYTES, body, frame.body_len);
    assert_int_equal(send(fd, bytes, UCX_FRAME_HEADER_BYTES + frame.body_len, MSG_NOSIGNAL),
                     UCX_FRAME_HEADER_BYTES + frame.body_len);
}

/* text: of a refusal; may be NULL. */
static struct ucx_frame take(int fd, char text[UCX_FRAME_REASON_MAX_BYTES + 1])
{
    static uint8_t body[UCX_FRAME_BODY_MAX_BYTES];
    uint8_t header[UCX_FRAME_HEADER_BYTES];
    struct ucx_frame frame;

    assert_int_equal(recv(fd, header, sizeof header, MSG_WAITALL), sizeof header);
    assert_int_equal(ucx_frame_decode(header, &frame), SHOAL_OK);
    if (frame.body_len)
        assert_int_equal(recv(fd, body, frame.body_len, MSG_WAITALL), frame.body_len);
    if (text) {
        assert_int_equal(frame.type, UCX_FRAME_REFUSE);
        memcpy(text, body, frame.body_len);
        text[frame.body_len] = '\0';
    }
    return frame;
}

static void ask(int fd, uint64_t id, uint64_t with_key)
{
    put(fd,
        (struct ucx_frame){.type = UCX_FRAME_ASK,
                           .code = UCX_FRAME_READ,
                           .id = id,
                           .addr = (uint64_t)(uintptr_t)memory,
                           .key = with_key,
                           .len = LEN},
        NULL);
}

static void expect_grant(int fd, uint64_t id)
{
    struct ucx_frame frame = take(fd, NULL);

    assert_int_equal(frame.type, UCX_FRAME_GRANT);
    assert_int_equal(frame.id, id);
    assert_int_equal(frame.addr, (uint64_t)(uintptr_t)memory);
    assert_int_equal(frame.len, LEN);
}

static void expect_revoke(int fd, uint64_t id)
{
    struct ucx_frame frame = take(fd, NULL);

    assert_int_equal(frame.type, UCX_FRAME_REVOKE);
    assert_int_equal(frame.id, id);
}

struct remover {
    pthread_t thread;
    enum shoal_status status;
};

static void *remove_memory(void *arg)
{
    struct remover *remover = arg;
    struct shoal_error error;

    remover->status = shoal_engine_unregister_memory(engine, memory, LEN, &error);
    return NULL;
}

/* The same addresses, registered again, are another generation: neither the old key nor the old grant is any good. */
static void test_keys_of_a_previous_generation(void **state)
{
    char text[UCX_FRAME_REASON_MAX_BYTES + 1];
    uint8_t body[UCX_FRAME_PULL_BYTES];
    struct remover remover;
    struct shoal_error error;
    uint64_t new_key = 0;
    int fd = join();

    (void)state;
    ask(fd, 1, key);
    expect_grant(fd, 1);
    assert_int_equal(pthread_create(&remover.thread, NULL, remove_memory, &remover), 0);
    expect_revoke(fd, 1);
    put(fd, (struct ucx_frame){.type = UCX_FRAME_REVOKED, .id = 1}, NULL);
    assert_int_equal(pthread_join(remover.thread, NULL), 0);
    assert_int_equal(remover.status, SHOAL_OK);
    assert_int_equal(engine_metric(engine, "shoal_transport_ucx_revocations_total"), 1);
    assert_int_equal(engine_metric(engine, "shoal_transport_ucx_revoke_timeouts_total"), 0);

    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL, SHOAL_ACCESS_REMOTE_READ, &new_key, &error),
              &error);
    assert_int_not_equal(new_key, key);
    ask(fd, 2, key);
    assert_int_equal(take(fd, text).code, UCX_FRAME_INVALID);
    assert_non_null(strstr(text, "key"));
    ask(fd, 3, new_key);
    expect_grant(fd, 3);

    put_le64(body, 77); /* of a link that there is not either; the grant is looked at, too */
    put(fd,
        (struct ucx_frame){.type = UCX_FRAME_PULL,
                           .id = 4,
                           .addr = (uint64_t)(uintptr_t)memory,
                           .key = 1,
                           .len = 4096,
                           .body_len = sizeof body},
        body);
    stranger_expect_end(fd);
    assert_int_equal(engine_metric(engine, "shoal_transport_ucx_protocol_errors_total"), 1);
}

/* F9: a peer that does not give back what it was granted loses its connection; the unregistration does not wait for
 * ever. */
static void test_not_given_back(void **state)
{
    struct shoal_error error;
    int fd = join();

    (void)state;
    ask(fd, 1, 0);
    expect_grant(fd, 1);
    assert_ok(shoal_engine_unregister_memory(engine, memory, LEN, &error), &error);
    expect_revoke(fd, 1);
    stranger_expect_end(fd);
    assert_int_equal(engine_metric(engine, "shoal_transport_ucx_revocations_total"), 1);
    assert_int_equal(engine_metric(engine, "shoal_transport_ucx_revoke_timeouts_total"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_library_is_missing, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_keys_of_a_previous_generation, ucx_setup, ucx_teardown),
        cmocka_unit_test_setup_teardown(test_not_given_back, ucx_setup, ucx_teardown),
    };

    if (!fixture_has_ucx())
        return 77;
    transport_name = "ucx";
    transport_args = "tls=tcp";
    return cmocka_run_group_tests_name("ucx channel", tests, NULL, NULL);
}
