/* SPDX-License-Identifier: Apache-2.0 */
/* F26: what strangers may do to a node's port, before and after the handshake. */
#include "../contract/transport_fixture.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hostport.h"
#include "content.h"
#include "engine/engine.h"
#include "stranger.h"
#include "wire/data.h"

#define LEN 65536u

static struct shoal_engine *engine; /* the victim */
static uint8_t *memory;

static int setup(void **state)
{
    struct shoal_engine_config config;
    struct shoal_error error;

    fixture_setup(state);
    config = fixture_config();
    config.max_connections = 16;
    config.progress_timeout_ms = 500;
    engine = engine_make(&config);
    memory = memory_make(LEN);
    content_fill(memory, LEN, 1, 0);
    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
              &error);
    return 0;
}

static int teardown(void **state)
{
    shoal_engine_destroy(engine);
    memory_drop(memory, LEN);
    return fixture_teardown(state);
}

static int dial(void)
{
    return stranger_dial(endpoint_port(engine_endpoint(engine)));
}

static void send_all(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
}

/* Waits until the other side has closed. */
static void assert_closed(int fd)
{
    char bytes[256];
    ssize_t got;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    do {
        assert_int_equal(poll(&poll_fd, 1, PATIENCE_MS), 1);
        got = recv(fd, bytes, sizeof bytes, 0);
    } while (got > 0);
    assert_true(got == 0 || errno == ECONNRESET);
    close(fd);
}

static void receive_all(int fd, void *data, size_t len)
{
    assert_int_equal(recv(fd, data, len, MSG_WAITALL), len);
}

/* Sends a hello, returns the verdict. */
static unsigned shake(int fd, const struct hello *hello)
{
    struct hello answer = stranger_shake(fd, hello);

    assert_int_equal(answer.instance, engine_instance(engine));
    assert_string_equal(answer.name, shoal_engine_server_name(engine));
    return answer.verdict;
}

static int data_channel(void)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_DATA);
    int fd = dial();

    assert_int_equal(shake(fd, &hello), HELLO_ACCEPT);
    return fd;
}

static struct endpoint_counters counters(void)
{
    struct endpoint_counters now;

    endpoint_counters(engine_endpoint(engine), &now);
    return now;
}

/* The node still serves. */
static void assert_serves(void)
{
    struct shoal_engine *other = engine_make(NULL);
    struct shoal_segment *segment;
    struct shoal_error error;
    uint8_t *local = memory_make(LEN);

    assert_ok(shoal_engine_register_memory(other, local, LEN, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(other, shoal_engine_server_name(engine), NULL, &segment, &error), &error);
    assert_ok(transfer(other, segment, SHOAL_OP_READ, local, memory, 0, LEN, &error), &error);
    assert_int_equal(content_find_difference(local, LEN, 1, 0), -1);
    shoal_segment_close(segment);
    shoal_engine_destroy(other);
    memory_drop(local, LEN);
}

static void test_silent(void **state)
{
    int fds[200];

    (void)state;
    for (size_t i = 0; i < 200; i++)
        fds[i] = dial();
    assert_serves();
    assert_true(counters().open_handshakes <= 128);
    wait_until(counters().handshake_timeouts >= 200 - 128);
    assert_closed(fds[0]); /* the oldest made room */
    for (size_t i = 1; i < 200; i++)
        close(fds[i]);
    wait_until(counters().open_handshakes == 0);
}

static void test_garbage(void **state)
{
    static const uint8_t huge[] = {'S', 'H', 'O', 'L', 0xff, 0xff, 0xff, 0xff};
    static const char http[] = "GET / HTTP/1.1\r\n\r\n";
    uint64_t before = counters().protocol_errors;
    int fd = dial();

    (void)state;
    send_all(fd, huge, sizeof huge);
    assert_closed(fd);
    wait_until(counters().protocol_errors == before + 1);
    fd = dial();
    send_all(fd, http, sizeof http - 1);
    assert_closed(fd);
    wait_until(counters().protocol_errors == before + 2);
    assert_serves();
}

static void test_truncated_and_trickled(void **state)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_DATA);
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = hello_encode(&hello, frame);
    int fd;

    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        fd = dial();
        if (cut)
            send_all(fd, frame, cut);
        close(fd);
    }
    wait_until(counters().open_handshakes == 0);
    fd = dial();
    for (size_t i = 0; i < len; i++)
        send_all(fd, frame + i, 1);
    receive_all(fd, frame, HELLO_PREFIX_BYTES);
    close(fd);
    assert_serves();
}

static void test_verdicts(void **state)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_DATA);
    int fd = dial();

    (void)state;
    hello.version = HELLO_VERSION + 1;
    assert_int_equal(shake(fd, &hello), HELLO_REFUSE_VERSION);
    assert_closed(fd);
    hello = stranger_hello(HELLO_CHANNEL_DATA);
    memcpy(hello.cluster, "other", 6);
    fd = dial();
    assert_int_equal(shake(fd, &hello), HELLO_REFUSE_CLUSTER);
    assert_closed(fd);
    for (unsigned channel = 0; channel < 256; channel++) {
        if (channel == HELLO_CHANNEL_DATA || channel == HELLO_CHANNEL_PROBE)
            continue;
        hello = stranger_hello((enum hello_channel)channel);
        fd = dial();
        assert_int_equal(shake(fd, &hello), HELLO_REFUSE_CHANNEL); /* no rpc server runs here */
        assert_closed(fd);
    }
    hello = stranger_hello(HELLO_CHANNEL_PROBE);
    fd = dial();
    assert_int_equal(shake(fd, &hello), HELLO_ACCEPT);
    assert_closed(fd);
    hello.wanted = engine_instance(engine) + 1;
    fd = dial();
    assert_int_equal(shake(fd, &hello), HELLO_REFUSE_IDENTITY);
    assert_closed(fd);
}

static void test_too_many(void **state)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_DATA);
    int fds[16], fd;

    (void)state;
    for (size_t i = 0; i < 16; i++)
        fds[i] = data_channel();
    fd = dial();
    assert_int_equal(shake(fd, &hello), HELLO_REFUSE_LIMIT);
    assert_closed(fd);
    for (size_t i = 0; i < 16; i++)
        close(fds[i]);
    wait_until(counters().open_connections == 0);
    assert_serves();
}

static void send_frame(int fd, struct data_frame frame)
{
    uint8_t header[DATA_HEADER_BYTES];

    data_encode(&frame, header);
    send_all(fd, header, sizeof header);
}

static struct data_frame receive_frame(int fd)
{
    uint8_t header[DATA_HEADER_BYTES];
    struct data_frame frame;

    receive_all(fd, header, sizeof header);
    assert_int_equal(data_decode(header, &frame), SHOAL_OK);
    return frame;
}

static void test_bad_frames(void **state)
{
    static const struct data_frame bad[] = {
        {.type = 0},
        {.type = 99},
        {.type = DATA_DATA, .len = 10},
        {.type = DATA_GRANT},
        {.type = DATA_DONE},
        {.type = DATA_REFUSE, .code = 1},
        {.type = DATA_READ, .len = 0},
        {.type = DATA_CHUNK, .len = 4ull << 30},
        {.type = DATA_NOTIFY, .len = 1ull << 32, .name_len = 1},
    };
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    int fd;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fd = data_channel();
        send_frame(fd, bad[i]);
        assert_closed(fd);
    }
    /* A chunk that does not follow the previous one. */
    fd = data_channel();
    send_frame(fd, (struct data_frame){.type = DATA_WRITE, .id = 1, .addr = addr, .len = 100});
    assert_int_equal(receive_frame(fd).type, DATA_GRANT);
    send_frame(fd, (struct data_frame){.type = DATA_CHUNK, .id = 1, .addr = 1, .len = 10});
    assert_closed(fd);
    /* More than was granted. */
    fd = data_channel();
    send_frame(fd, (struct data_frame){.type = DATA_WRITE, .id = 1, .addr = addr, .len = 100});
    assert_int_equal(receive_frame(fd).type, DATA_GRANT);
    send_frame(fd, (struct data_frame){.type = DATA_CHUNK, .id = 1, .addr = 0, .len = 101});
    assert_closed(fd);
    wait_until(counters().open_connections == 0);
    assert_int_equal(content_find_difference(memory, LEN, 1, 0), -1);
    assert_serves();
}

/* Frames that are fine for the protocol although nobody asked for them. */
static void test_stray_frames(void **state)
{
    uint8_t bytes[100] = {0};
    int fd = data_channel();
    struct data_frame frame;

    (void)state;
    send_frame(fd, (struct data_frame){.type = DATA_ABORT, .id = 99});
    send_frame(fd, (struct data_frame){.type = DATA_CHUNK, .id = 98, .len = sizeof bytes});
    send_all(fd, bytes, sizeof bytes);
    send_frame(fd, (struct data_frame){.type = DATA_READ, .id = 7, .addr = 64, .len = 10});
    frame = receive_frame(fd);
    assert_int_equal(frame.type, DATA_REFUSE);
    assert_int_equal(frame.id, 7);
    assert_int_equal(frame.code, DATA_CODE_INVALID);
    assert_true(frame.len > 0 && frame.len < sizeof bytes);
    receive_all(fd, bytes, (size_t)frame.len);
    close(fd);
}

/* A peer that is granted a WRITE and goes silent, and one that asks and never reads: neither keeps its pin. */
static void test_stalled_peers(void **state)
{
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    struct shoal_error error;
    int writer = data_channel(), reader = data_channel(), small = 4096;

    (void)state;
    assert_int_equal(setsockopt(reader, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    send_frame(writer, (struct data_frame){.type = DATA_WRITE, .id = 1, .addr = addr, .len = 100});
    assert_int_equal(receive_frame(writer).type, DATA_GRANT);
    for (uint64_t id = 0; id < 2000; id++) {
        uint8_t header[DATA_HEADER_BYTES];

        data_encode(&(struct data_frame){.type = DATA_READ, .id = id, .addr = addr, .len = LEN}, header);
        if (send(reader, header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof header)
            break; /* it does not queue without bound */
    }
    assert_closed(writer);
    assert_closed(reader);
    assert_ok(shoal_engine_unregister_memory(engine, memory, LEN, &error), &error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        CASE(test_silent),   CASE(test_garbage),    CASE(test_truncated_and_trickled), CASE(test_verdicts),
        CASE(test_too_many), CASE(test_bad_frames), CASE(test_stray_frames),           CASE(test_stalled_peers),
    };

    return cmocka_run_group_tests_name("engine handshake", tests, NULL, NULL);
}
