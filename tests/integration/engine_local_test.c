/* SPDX-License-Identifier: Apache-2.0 */
/* The local socket as a stranger meets it, byte by byte: what it refuses, and how it takes back what it granted. And an
 * engine against a node that takes back what it granted. */
#include "../contract/transport_fixture.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "content.h"
#include "engine/engine.h"
#include "stranger.h"
#include "wire/local.h"

#define LEN (2u * 65536) /* more than a direct TCP connection takes */

static struct shoal_engine *engine;
static uint8_t *memory; /* of engine, readable and writable */
static uint64_t probe = 0x5eed;

static socklen_t address_of(uint64_t instance, struct sockaddr_un *addr)
{
    memset(addr, 0, sizeof *addr);
    addr->sun_family = AF_UNIX;
    snprintf(addr->sun_path + 1, sizeof addr->sun_path - 1, "shoal-%016llx", (unsigned long long)instance);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(addr->sun_path + 1));
}

static int local_setup(void **state)
{
    struct shoal_error error;

    fixture_setup(state);
    engine = engine_make(NULL);
    memory = memory_make(LEN);
    content_fill(memory, LEN, 1, 0);
    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
              &error);
    return 0;
}

static int local_teardown(void **state)
{
    shoal_engine_destroy(engine);
    memory_drop(memory, LEN);
    return fixture_teardown(state);
}

static int dial(void)
{
    struct sockaddr_un addr;
    socklen_t len = address_of(engine_instance(engine), &addr);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, len), 0);
    stranger_be_patient(fd);
    return fd;
}

static void put(int fd, struct local_frame frame)
{
    uint8_t bytes[LOCAL_FRAME_BYTES];

    local_encode(&frame, bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
}

static struct local_frame take(int fd)
{
    uint8_t bytes[LOCAL_FRAME_BYTES];
    struct local_frame frame;

    assert_int_equal(recv(fd, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
    assert_int_equal(local_decode(bytes, &frame), SHOAL_OK);
    return frame;
}

/* A member of the cluster, ready for requests. */
static int join(void)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_LOCAL);
    struct local_frame frame;
    int fd = dial();

    assert_int_equal(stranger_shake(fd, &hello).verdict, HELLO_ACCEPT);
    frame = take(fd);
    assert_int_equal(frame.type, LOCAL_HELLO);
    assert_int_equal(frame.id, LOCAL_VERSION);
    put(fd, (struct local_frame){
                .type = LOCAL_HELLO, .id = LOCAL_VERSION, .addr = (uint64_t)(uintptr_t)&probe, .key = probe});
    frame = take(fd);
    assert_int_equal(frame.type, LOCAL_READY);
    assert_true(frame.flags & LOCAL_FLAG_CAN_READ);
    put(fd, (struct local_frame){.type = LOCAL_READY, .flags = LOCAL_FLAG_CAN_READ});
    return fd;
}

static void test_strangers(void **state)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_LOCAL);
    struct local_frame read = {.type = LOCAL_READ, .id = 256, .addr = (uint64_t)(uintptr_t)memory, .len = 10};
    uint8_t bytes[LOCAL_FRAME_BYTES];
    int fd = dial();

    (void)state;
    local_encode(&read, bytes); /* without a handshake */
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    stranger_expect_end(fd);

    snprintf(hello.cluster, sizeof hello.cluster, "another");
    fd = dial();
    assert_int_equal(stranger_shake(fd, &hello).verdict, HELLO_REFUSE_CLUSTER);
    stranger_expect_end(fd);

    hello = stranger_hello(HELLO_CHANNEL_LOCAL);
    hello.wanted = 4712;
    fd = dial();
    assert_int_equal(stranger_shake(fd, &hello).verdict, HELLO_REFUSE_IDENTITY);
    stranger_expect_end(fd);

    /* Each socket has its channels. */
    hello = stranger_hello(HELLO_CHANNEL_DATA);
    fd = dial();
    assert_int_equal(stranger_shake(fd, &hello).verdict, HELLO_REFUSE_CHANNEL);
    stranger_expect_end(fd);

    /* A request before it was said who is there. */
    hello = stranger_hello(HELLO_CHANNEL_LOCAL);
    fd = dial();
    assert_int_equal(stranger_shake(fd, &hello).verdict, HELLO_ACCEPT);
    assert_int_equal(take(fd).type, LOCAL_HELLO);
    put(fd, read);
    stranger_expect_end(fd);
    assert_int_equal(engine_metric(engine, "shoal_transport_local_protocol_errors_total"), 1);
}

static void expect_refusal(int fd, struct local_frame frame, const char *text)
{
    struct local_frame answer;

    put(fd, frame);
    answer = take(fd);
    assert_int_equal(answer.type, LOCAL_REFUSE);
    assert_int_equal(answer.code, LOCAL_CODE_INVALID);
    assert_int_equal(answer.id, frame.id);
    assert_non_null(strstr(answer.text, text));
}

static void test_permissions(void **state)
{
    uint8_t *secret = memory_make(4096), *readable = memory_make(4096);
    uint64_t addr = (uint64_t)(uintptr_t)memory;
    struct shoal_error error;
    int fd = join();

    (void)state;
    assert_ok(shoal_engine_register_memory(engine, readable, 4096, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error),
              &error);
    expect_refusal(fd,
                   (struct local_frame){.type = LOCAL_READ, .id = 256, .addr = (uint64_t)(uintptr_t)secret, .len = 1},
                   "not inside registered memory");
    expect_refusal(fd, (struct local_frame){.type = LOCAL_READ, .id = 257, .addr = addr + LEN - 1, .len = 2},
                   "not inside registered memory");
    expect_refusal(fd, (struct local_frame){.type = LOCAL_READ, .id = 258, .addr = addr, .len = 1, .key = 12345},
                   "key does not belong");
    expect_refusal(fd,
                   (struct local_frame){.type = LOCAL_WRITE,
                                        .id = 259,
                                        .addr = (uint64_t)(uintptr_t)readable,
                                        .len = 1,
                                        .from = (uint64_t)(uintptr_t)&probe},
                   "not writable");
    assert_int_equal(engine_metric(engine, "shoal_transport_local_serve_refusals_total"), 4);
    /* The slots are free again; one that is taken is not given twice. */
    put(fd, (struct local_frame){.type = LOCAL_READ, .id = 512, .addr = addr, .len = 8});
    assert_int_equal(take(fd).type, LOCAL_GRANT);
    put(fd, (struct local_frame){.type = LOCAL_READ, .id = 768, .addr = addr, .len = 8});
    stranger_expect_end(fd);
    memory_drop(secret, 4096);
    assert_ok(shoal_engine_unregister_memory(engine, readable, 4096, &error), &error);
    memory_drop(readable, 4096);
}

static void test_nonsense(void **state)
{
    static const struct local_frame frames[] = {
        {.type = LOCAL_GRANT, .id = 256},   {.type = LOCAL_DONE, .id = 256},
        {.type = LOCAL_RELEASE, .id = 256}, {.type = LOCAL_SHARE, .id = 1, .len = 4096},
        {.type = LOCAL_HELLO, .id = 1},     {.type = LOCAL_READY},
        {.type = LOCAL_READ, .len = 1},     {.type = LOCAL_PROGRESS, .id = 256},
    };
    uint8_t garbage[LOCAL_FRAME_BYTES];
    int fd;

    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        fd = join();
        put(fd, frames[i]);
        stranger_expect_end(fd);
    }
    memset(garbage, 0xff, sizeof garbage);
    fd = join();
    assert_int_equal(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
    stranger_expect_end(fd);
    fd = join(); /* half a frame, and gone */
    assert_int_equal(send(fd, garbage, 5, MSG_NOSIGNAL), 5);
    close(fd);
    wait_until(engine_metric(engine, "shoal_transport_local_connections{side=\"server\"}") == 0);
    assert_int_equal(engine_metric(engine, "shoal_transport_local_protocol_errors_total"), 9);
}

/* F9: a peer that does not give back what it was granted. */
static void test_taken_back(void **state)
{
    struct local_frame frame = {.type = LOCAL_READ, .id = 256, .addr = (uint64_t)(uintptr_t)memory, .len = LEN};
    struct shoal_error error;
    int fd = join();

    (void)state;
    put(fd, frame);
    assert_int_equal(take(fd).type, LOCAL_GRANT);
    assert_ok(shoal_engine_unregister_memory(engine, memory, LEN, &error), &error); /* and it returns */
    frame = take(fd);
    assert_int_equal(frame.type, LOCAL_REVOKE);
    assert_int_equal(frame.id, 256);
    stranger_expect_end(fd);
    assert_int_equal(engine_metric(engine, "shoal_transport_local_revocations_total"), 1);
    assert_int_equal(engine_metric(engine, "shoal_transport_local_evictions_total"), 1);

    /* One that gives it back when it is told keeps its connection. */
    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error), &error);
    fd = join();
    put(fd, (struct local_frame){.type = LOCAL_READ, .id = 256, .addr = (uint64_t)(uintptr_t)memory, .len = LEN});
    assert_int_equal(take(fd).type, LOCAL_GRANT);
    put(fd, (struct local_frame){.type = LOCAL_RELEASE, .id = 256});
    assert_ok(shoal_engine_unregister_memory(engine, memory, LEN, &error), &error);
    expect_refusal(fd,
                   (struct local_frame){.type = LOCAL_READ, .id = 512, .addr = (uint64_t)(uintptr_t)memory, .len = LEN},
                   "not inside registered memory");
    close(fd);
}

static void put_two(int fd, const struct local_frame *first, const struct local_frame *second)
{
    uint8_t bytes[2 * LOCAL_FRAME_BYTES];

    local_encode(first, bytes);
    local_encode(second, bytes + LOCAL_FRAME_BYTES);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
}

static void expect_frame(int fd, enum local_type type, uint64_t id)
{
    struct local_frame frame = take(fd);

    assert_int_equal(frame.type, type);
    assert_int_equal(frame.id, id);
}

/* One upload slot, and somebody has it. */
static void test_turns(void **state)
{
    struct shoal_engine_config config = fixture_config();
    struct local_frame large = {.type = LOCAL_READ, .len = LEN}, small = {.type = LOCAL_READ, .len = LEN / 2};
    struct shoal_error error;
    struct local_frame frame;
    int first, second;

    (void)state;
    shoal_engine_destroy(engine);
    config.upload_slots = 1;
    engine = engine_make(&config);
    assert_ok(shoal_engine_register_memory(engine, memory, LEN, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error), &error);
    large.addr = small.addr = (uint64_t)(uintptr_t)memory;
    first = join();
    second = join();
    large.id = 256;
    put(first, large);
    expect_frame(first, LOCAL_GRANT, 256);

    /* What waits can be canceled. */
    put_two(second, &large, &(struct local_frame){.type = LOCAL_CANCEL, .id = 256});
    frame = take(second);
    assert_int_equal(frame.type, LOCAL_REFUSE);
    assert_int_equal(frame.code, LOCAL_CODE_CANCELED);

    /* Small READs pass by. Who does not release keeps nobody waiting for long. */
    large.id = 512;
    small.id = 257;
    put_two(second, &large, &small);
    expect_frame(second, LOCAL_GRANT, 257);
    expect_frame(second, LOCAL_GRANT, 512);
    assert_true(engine_metric(engine, "shoal_transport_local_upload_slot_waits_total") >= 2);
    assert_int_equal(engine_metric(engine, "shoal_transport_local_upload_slots_lent_total"), 1);
    put_two(second, &(struct local_frame){.type = LOCAL_RELEASE, .id = 512},
            &(struct local_frame){.type = LOCAL_RELEASE, .id = 257});

    /* A RELEASE of what is not granted. */
    put(second, (struct local_frame){.type = LOCAL_RELEASE, .id = 1024});
    stranger_expect_end(second);

    /* Memory that goes is refused to who waits. */
    put(first, (struct local_frame){.type = LOCAL_RELEASE, .id = 256});
    large.id = 512;
    put(first, large);
    expect_frame(first, LOCAL_GRANT, 512);
    second = join();
    put(second, large);
    wait_until(engine_metric(engine, "shoal_transport_local_upload_slot_waits_total") >= 3);
    assert_ok(shoal_engine_unregister_memory(engine, memory, LEN, &error), &error);
    frame = take(second);
    if (frame.type == LOCAL_GRANT) { /* lent meanwhile: the machine is slow */
        expect_frame(second, LOCAL_REVOKE, 512);
    } else {
        assert_int_equal(frame.type, LOCAL_REFUSE);
        assert_int_equal(frame.code, LOCAL_CODE_INVALID);
    }
    close(first);
    close(second);
}

/* --- a node that takes back what it granted --- */

static int listen_as(uint64_t instance)
{
    struct sockaddr_un addr;
    socklen_t len = address_of(instance, &addr);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, len), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

static int accept_peer(int listener, uint64_t instance)
{
    struct hello answer = stranger_hello(HELLO_CHANNEL_LOCAL);
    struct hello hello;
    int fd;

    for (;;) { /* the first connection only looks whether somebody is there */
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(fd >= 0);
        if (stranger_receive_hello(fd, &hello))
            break;
        close(fd);
    }
    answer.instance = instance;
    stranger_send_hello(fd, &answer);
    put(fd, (struct local_frame){
                .type = LOCAL_HELLO, .id = LOCAL_VERSION, .addr = (uint64_t)(uintptr_t)&probe, .key = probe});
    assert_int_equal(take(fd).type, LOCAL_HELLO);
    assert_int_equal(take(fd).type, LOCAL_READY);
    put(fd, (struct local_frame){.type = LOCAL_READY, .flags = LOCAL_FLAG_CAN_READ});
    return fd;
}

/* In a process of its own: reads once, and exits with what became of it. */
static pid_t start_reader(int listener, const uint8_t *remote, uint64_t instance)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct shoal_error error;
        struct shoal_segment *segment;
        uint8_t *local = memory_make(LEN);
        struct shoal_engine *own = engine_make(NULL);
        enum shoal_status status;

        close(listener);
        if (shoal_engine_register_memory(own, local, LEN, NULL, 0, NULL, &error) != SHOAL_OK ||
            engine_segment_create(own, "stranger:1", "127.0.0.1:1", instance, &segment, &error) != SHOAL_OK)
            _exit(99);
        status = transfer(own, segment, SHOAL_OP_READ, local, remote, 0, LEN, &error);
        if (status != SHOAL_UNREACHABLE)
            (void)fprintf(stderr, "%s\n", status == SHOAL_OK ? "it was taken" : error.message);
        _exit(-(int)status);
    }
    assert_true(pid > 0);
    return pid;
}

/* The bytes that a reader copies after its grant is void may be anything: it must not take them for what it asked for.
 * The reader is stopped while that happens, so that it cannot copy earlier. */
static void test_void_grant(void **state)
{
    uint64_t instance = 0x700000000000000 + (uint64_t)getpid();
    int listener = listen_as(instance), result = 0, fd;
    uint8_t *remote = memory_make(LEN);
    struct local_frame frame;
    pid_t pid;

    (void)state;
    pid = start_reader(listener, remote, instance);
    fd = accept_peer(listener, instance);
    frame = take(fd);
    assert_int_equal(frame.type, LOCAL_READ);
    assert_int_equal(frame.addr, (uint64_t)(uintptr_t)remote);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &result, WUNTRACED), pid);
    assert_true(WIFSTOPPED(result));
    put(fd, (struct local_frame){.type = LOCAL_GRANT, .id = frame.id});
    close(fd);
    close(listener); /* there is no second try */
    memset(remote, 0xbd, LEN);
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &result, 0), pid);
    assert_true(WIFEXITED(result));
    assert_int_equal(-WEXITSTATUS(result), SHOAL_UNREACHABLE);
    memory_drop(remote, LEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_void_grant, fixture_setup,
                                        fixture_teardown), /* before there are threads */
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, local_setup, local_teardown)
        CASE(test_strangers),
        CASE(test_permissions),
        CASE(test_nonsense),
        CASE(test_taken_back),
        CASE(test_turns),
    };

    transport_name = "local";
    return cmocka_run_group_tests_name("local socket", tests, NULL, NULL);
}
