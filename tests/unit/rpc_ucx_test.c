/* SPDX-License-Identifier: Apache-2.0 */
/* Control calls over UCX beside those by TCP: who falls back, what is said where it cannot be had, and processes that
 * stop and die within large answers. tests/unit/rpc_test.c and rpc_channel_test.c run over UCX as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mutex.h"
#include "rpc/channel.h"
#include "rpc/rpc.h"
#include "rpc/ucx_pipe.h"
#include "rpc_protocol.h"
#include "stranger.h"

#define WAIT_MS 60000
#define STOP_MS 500
#define LARGE_BYTES (12u << 20)
#define ROUNDS 6

enum { METHOD_ECHO = 1, METHOD_LARGE = 2 };

/* --- one side --- */

struct side {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    uint8_t *large;
    char address[64];
};

static void on_echo(void *arg, struct rpc_request *request)
{
    (void)arg;
    rpc_reply(request, SHOAL_OK, NULL, request->body, request->body_len);
}

static void on_large(void *arg, struct rpc_request *request)
{
    struct side *side = arg;

    rpc_reply_parts(request, "head", 4, side->large, LARGE_BYTES, true);
}

static void protocol(const char *name)
{
    if (name)
        setenv("MC_RPC_PROTOCOL", name, 1);
    else
        unsetenv("MC_RPC_PROTOCOL");
}

static void side_init(struct side *side)
{
    struct endpoint_config config = {
        .bind_host = "127.0.0.1", .cluster = "test", .max_connections = 256, .max_handshakes = 64};

    memset(side, 0, sizeof *side);
    side->large = malloc(LARGE_BYTES);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        side->large[i] = (uint8_t)(i * 7 + (i >> 16));
    assert_int_equal(loop_create("side", &side->loop, NULL), SHOAL_OK);
    config.loop = side->loop;
    assert_int_equal(endpoint_create(&config, &side->endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(side->loop, side->endpoint, &side->rpc, NULL), SHOAL_OK);
    rpc_set_handler(side->rpc, METHOD_ECHO, on_echo, side);
    rpc_set_handler(side->rpc, METHOD_LARGE, on_large, side);
    snprintf(side->address, sizeof side->address, "127.0.0.1:%u", endpoint_port(side->endpoint));
    assert_int_equal(endpoint_start(side->endpoint, side->address, NULL), SHOAL_OK);
}

static void side_release(struct side *side)
{
    rpc_destroy(side->rpc);
    endpoint_destroy(side->endpoint);
    loop_destroy(side->loop);
    free(side->large);
}

static struct rpc_counters counters_of(const struct side *side)
{
    return rpc_counters_of(side->rpc, side->loop);
}

static struct rpc_channels *new_channels(void)
{
    struct rpc_channels_config config = {
        .cluster = "test", .server_name = "caller:1", .instance = 77, .connect_timeout_ms = WAIT_MS};
    struct rpc_channels *channels = NULL;

    assert_int_equal(rpc_channels_create(&config, &channels, NULL), SHOAL_OK);
    return channels;
}

static void expect_echo(struct rpc_channels *channels, const char *address)
{
    struct iovec part = {(void *)(uintptr_t) "hello", 5};
    struct call call = {deadline_after_ms(WAIT_MS), NULL};
    struct shoal_error error;
    struct buf body;

    buf_init(&body, 100);
    if (rpc_channels_call(channels, address, 0, METHOD_ECHO, &part, 1, &call, &body, &error))
        fail_msg("%s", error.message);
    assert_int_equal(body.len, 5);
    assert_memory_equal(body.data, "hello", 5);
    buf_release(&body);
}

static enum shoal_status call_large(struct rpc_channels *channels, const char *address, uint8_t *memory,
                                    int64_t timeout_ms, struct shoal_error *error)
{
    struct rpc_sink sink = {.memory = memory, .room_bytes = LARGE_BYTES};
    struct call call = {deadline_after_ms(timeout_ms), NULL};
    enum shoal_status status;
    struct buf body;

    buf_init(&body, 100);
    status = rpc_channels_call_into(channels, address, 0, METHOD_LARGE, NULL, 0, &call, &body, &sink, error);
    buf_release(&body);
    return status;
}

/* --- what it is called, and what is said where it cannot be had --- */

static void protocols_by_name(void **state)
{
    const struct byte_channel_ops *ops = NULL;
    struct shoal_error error;

    (void)state;
    protocol(NULL);
    assert_int_equal(byte_channel_find(NULL, &ops, &error), SHOAL_OK);
    assert_ptr_equal(ops, &byte_channel_auto);
    assert_int_equal(byte_channel_find("ucx", &ops, &error), SHOAL_OK);
    assert_ptr_equal(ops, &byte_channel_ucx);
    assert_int_equal(byte_channel_find("quic", &ops, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "'quic'"));
    assert_non_null(strstr(error.message, "use 'auto', 'tcp', 'rdma', 'ucx'"));
    protocol("quic");
    assert_int_equal(byte_channel_find(NULL, &ops, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "MC_RPC_PROTOCOL: 'quic'"));
    protocol("");
    assert_int_equal(byte_channel_find(NULL, &ops, &error), SHOAL_OK);
    assert_ptr_equal(ops, &byte_channel_auto);
}

/* Everybody who would use it says so when it starts. */
static void expect_no_start(const char *name, const char *what)
{
    struct rpc_channels_config config = {.cluster = "test", .server_name = "caller:1", .instance = 77};
    struct endpoint_config endpoint_config = {.bind_host = "127.0.0.1", .cluster = "test"};
    struct rpc_channels *channels = NULL;
    struct endpoint *endpoint;
    struct rpc *rpc = NULL;
    struct loop *loop;
    struct shoal_error error;
    char prefix[64];

    protocol(name);
    snprintf(prefix, sizeof prefix, "MC_RPC_PROTOCOL=%s: ", name);
    assert_int_equal(rpc_channels_create(&config, &channels, &error), SHOAL_UNSUPPORTED);
    assert_memory_equal(error.message, prefix, strlen(prefix));
    if (!strstr(error.message, what))
        fail_msg("the message does not say '%s': %s", what, error.message);
    assert_int_equal(loop_create("side", &loop, NULL), SHOAL_OK);
    endpoint_config.loop = loop;
    assert_int_equal(endpoint_create(&endpoint_config, &endpoint, NULL), SHOAL_OK);
    assert_int_equal(rpc_create(loop, endpoint, &rpc, &error), SHOAL_UNSUPPORTED);
    assert_memory_equal(error.message, prefix, strlen(prefix));
    endpoint_destroy(endpoint);
    loop_destroy(loop);
}

/* Before any other that uses UCX: it is loaded once. */
static void no_library(void **state)
{
    (void)state;
    setenv("SHOAL_UCX_LIBRARY", "/nowhere/libucp.so", 1);
    expect_no_start("ucx", "UCX");
    unsetenv("SHOAL_UCX_LIBRARY");
}

static void no_device(void **state)
{
    (void)state;
    if (access("/sys/class/infiniband", F_OK) == 0)
        skip();
    expect_no_start("rdma", "has no "); /* RDMA device, or UCX where it was not built in */
}
#define SKIP_WITHOUT_UCX()                                                                                             \
    do {                                                                                                               \
        protocol("ucx");                                                                                               \
        if (!rpc_protocol_is_usable())                                                                                 \
            skip();                                                                                                    \
    } while (0)

static void a_useless_choice_of_transports(void **state)
{
    const char *chosen = getenv("UCX_TLS");
    char kept[64];

    (void)state;
    SKIP_WITHOUT_UCX();
    snprintf(kept, sizeof kept, "%s", chosen ? chosen : "");
    setenv("UCX_TLS", "none-such", 1);
    expect_no_start("ucx", "UCX finds nothing to run over");
    if (chosen)
        setenv("UCX_TLS", kept, 1);
    else
        unsetenv("UCX_TLS");
}

/* --- a cluster where not everybody has it --- */

static void both_have_it(void **state)
{
    struct rpc_channels_counters counters;
    struct rpc_channels *channels;
    struct rpc_counters served;
    struct side side;

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&side);
    channels = new_channels();
    expect_echo(channels, side.address);
    rpc_channels_counters(channels, &counters);
    assert_int_equal(counters.dials, 1);
    assert_int_equal(counters.fallbacks, 0);
    served = counters_of(&side);
    assert_int_equal(served.ucx_connections, 1);
    rpc_channels_destroy(channels);
    side_release(&side);
}

static void who_does_not_offer_it_is_called_by_tcp(void **state)
{
    struct rpc_channels_counters counters;
    struct rpc_channels *channels;
    struct side side;

    (void)state;
    SKIP_WITHOUT_UCX();
    protocol("tcp");
    side_init(&side);
    protocol("ucx");
    channels = new_channels();
    expect_echo(channels, side.address);
    rpc_channels_counters(channels, &counters);
    assert_int_equal(counters.dials, 2);
    assert_int_equal(counters.fallbacks, 1);
    rpc_channels_forget(channels, side.address);
    expect_echo(channels, side.address);
    rpc_channels_counters(channels, &counters);
    assert_int_equal(counters.dials, 3); /* it was not asked again */
    assert_int_equal(counters.fallbacks, 2);
    rpc_channels_destroy(channels);
    side_release(&side);
}

static void who_does_not_ask_for_it_is_answered_by_tcp(void **state)
{
    struct rpc_channels *channels;
    struct rpc_counters served;
    struct side side;

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&side);
    protocol("tcp");
    channels = new_channels();
    expect_echo(channels, side.address);
    served = counters_of(&side);
    assert_int_equal(served.ucx_connections, 0);
    assert_int_equal(served.requests, 1);
    rpc_channels_destroy(channels);
    side_release(&side);
}

/* The same for calls on a loop. */
struct loop_call_state {
    struct side *from;
    const char *address;
    struct rpc_client *client;
    atomic_bool is_done;
    enum shoal_status status;
    char text[256];
};

static void on_done(void *arg, enum shoal_status status, const uint8_t *body, size_t body_len,
                    const struct shoal_error *error)
{
    struct loop_call_state *call = arg;

    call->status = status;
    snprintf(call->text, sizeof call->text, "%.*s", error ? 255 : (int)body_len,
             error ? error->message : (const char *)body);
    call->is_done = true;
}

static void begin_on_loop(void *arg)
{
    struct loop_call_state *call = arg;

    assert_int_equal(rpc_client_open(call->from->rpc, call->address, 0, WAIT_MS, &call->client, NULL), SHOAL_OK);
    assert_int_equal(rpc_call(call->client, METHOD_ECHO, "hello", 5, WAIT_MS, on_done, call), SHOAL_OK);
}

static void end_on_loop(void *arg)
{
    rpc_client_close(((struct loop_call_state *)arg)->client);
}

static void expect_loop_echo(struct side *from, const char *address)
{
    struct loop_call_state call = {.from = from, .address = address};
    int64_t deadline = deadline_after_ms(WAIT_MS);

    loop_call(from->loop, begin_on_loop, &call);
    while (!call.is_done && !deadline_is_past(deadline))
        poll(NULL, 0, 1);
    loop_call(from->loop, end_on_loop, &call);
    assert_true(call.is_done);
    if (call.status)
        fail_msg("%s", call.text);
    assert_string_equal(call.text, "hello");
}

static void clients_on_a_loop(void **state)
{
    struct side with, other, without;
    struct rpc_counters counters;

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&with);
    side_init(&other);
    protocol("tcp");
    side_init(&without);
    expect_loop_echo(&with, other.address);
    counters = counters_of(&other);
    assert_int_equal(counters.ucx_connections, 1);
    expect_loop_echo(&with, without.address);
    counters = counters_of(&with);
    assert_int_equal(counters.ucx_connections, 1);
    assert_int_equal(counters.fallbacks, 1);
    expect_loop_echo(&without, with.address);
    counters = counters_of(&with);
    assert_int_equal(counters.ucx_connections, 1);
    side_release(&with);
    side_release(&other);
    side_release(&without);
}

/* More connections than there may be over UCX: the others go by TCP, and nobody notices. */
#define CALLERS 80

static void *one_call(void *arg)
{
    struct side *side = arg;
    struct rpc_channels *channels = new_channels();

    for (int i = 0; i < 3; i++)
        expect_echo(channels, side->address);
    return channels;
}

static void connections_are_bounded(void **state)
{
    struct rpc_channels *channels[CALLERS];
    uint64_t fallbacks = 0;
    struct side side;

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&side);
    for (int i = 0; i < CALLERS; i++) {
        struct rpc_channels_counters counters;

        channels[i] = one_call(&side);
        rpc_channels_counters(channels[i], &counters);
        fallbacks += counters.fallbacks;
    }
    assert_in_range(fallbacks, CALLERS - 64, CALLERS - 1);
    for (int i = 0; i < CALLERS; i++)
        rpc_channels_destroy(channels[i]);
    channels[0] = one_call(&side); /* there is room again */
    rpc_channels_destroy(channels[0]);
    side_release(&side);
}

/* --- peers that say what they must not while they agree on UCX --- */

static bool read_all(int fd, void *out, size_t len)
{
    return len == 0 || recv(fd, out, len, MSG_WAITALL) == (ssize_t)len;
}

/* Connected, with the handshake done. */
static int join(const struct side *side)
{
    struct hello hello = stranger_hello(HELLO_CHANNEL_CONTROL_UCX);

    snprintf(hello.cluster, sizeof hello.cluster, "test");
    return stranger_join(endpoint_port(side->endpoint), &hello);
}

static void expect_closed(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    uint8_t ignored[1024];

    do {
        assert_int_equal(poll(&waiting, 1, WAIT_MS), 1);
    } while (recv(fd, ignored, sizeof ignored, 0) > 0);
    close(fd);
}

static void callers_that_lie(void **state)
{
    struct ucx_carrier *carrier;
    struct rpc_channels *channels;
    struct ucx_frame frame = {.type = UCX_FRAME_LINKED, .body_len = 8};
    struct ucx_port *port;
    struct ucx_pipe *pipe;
    struct side side;
    struct buf link;
    uint8_t bytes[UCX_FRAME_HEADER_BYTES + 8];
    int fd;

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&side);
    channels = new_channels();
    fd = join(&side); /* garbage */
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    expect_closed(fd);
    fd = join(&side); /* an answer */
    ucx_frame_encode(&frame, bytes);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    expect_closed(fd);
    fd = join(&side); /* half a question */
    assert_int_equal(send(fd, bytes, 20, MSG_NOSIGNAL), 20);
    shutdown(fd, SHUT_WR);
    expect_closed(fd);
    fd = join(&side); /* more than a question */
    assert_int_equal(ucx_carrier_open("ucx", &carrier, NULL), SHOAL_OK);
    assert_int_equal(ucx_port_open(carrier, true, &port, NULL), SHOAL_OK);
    assert_int_equal(ucx_pipe_create(port, NULL, &pipe, NULL), SHOAL_OK);
    buf_init(&link, UCX_FRAME_HEADER_BYTES + UCX_FRAME_BODY_MAX_BYTES);
    assert_true(ucx_pipe_describe(pipe, UCX_FRAME_LINK, &link));
    assert_int_equal(send(fd, link.data, link.len, MSG_NOSIGNAL), link.len);
    assert_true(read_all(fd, bytes, UCX_FRAME_HEADER_BYTES));
    assert_int_equal(ucx_frame_decode(bytes, &frame), SHOAL_OK);
    assert_int_equal(frame.type, UCX_FRAME_LINKED);
    assert_int_equal(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    expect_closed(fd);
    ucx_pipe_close(pipe);
    ucx_port_close(port);
    ucx_carrier_close(carrier);
    buf_release(&link);
    fd = join(&side); /* silence: holds up nobody */
    expect_echo(channels, side.address);
    close(fd);
    rpc_channels_destroy(channels);
    side_release(&side);
}

/* Answers every question for UCX with one frame, and lets calls by TCP in only to close them. */
struct liar {
    int listen_fd;
    struct ucx_frame answer;
    atomic_uint by_ucx, by_tcp;
    pthread_t thread;
    char address[64];
};

static void *liar_main(void *arg)
{
    struct liar *liar = arg;
    uint8_t header[UCX_FRAME_HEADER_BYTES], body[UCX_FRAME_BODY_MAX_BYTES + 1] = "not here";
    int fd;

    while ((fd = accept(liar->listen_fd, NULL, NULL)) >= 0) {
        struct ucx_frame frame;
        struct hello hello;

        if (stranger_receive_hello(fd, &hello)) {
            bool is_ucx = hello.channel == HELLO_CHANNEL_CONTROL_UCX;

            hello.instance = 4711;
            stranger_send_hello(fd, &hello);
            liar->by_ucx += is_ucx;
            liar->by_tcp += !is_ucx;
            if (is_ucx && read_all(fd, header, sizeof header) && !ucx_frame_decode(header, &frame) &&
                read_all(fd, body, frame.body_len)) {
                memcpy(body, "not here", 8);
                ucx_frame_encode(&liar->answer, header);
                (void)!send(fd, header, sizeof header, MSG_NOSIGNAL);
                (void)!send(fd, body, liar->answer.body_len, MSG_NOSIGNAL);
            }
        }
        close(fd);
    }
    return NULL;
}

static void servers_that_lie(void **state)
{
    static const struct {
        struct ucx_frame answer;
        enum shoal_status status;
        unsigned by_tcp;
    } lies[] = {
        {{.type = UCX_FRAME_REFUSE, .code = UCX_FRAME_UNSUPPORTED, .body_len = 8}, SHOAL_UNREACHABLE, 1},
        {{.type = UCX_FRAME_LINK, .body_len = 8}, SHOAL_PROTOCOL, 0},
        {{.type = 99}, SHOAL_PROTOCOL, 0},
        {{.type = UCX_FRAME_LINKED, .body_len = UCX_FRAME_BODY_MAX_BYTES + 1}, SHOAL_PROTOCOL, 0},
    };

    (void)state;
    SKIP_WITHOUT_UCX();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct call call = {deadline_after_ms(WAIT_MS), NULL};
        struct rpc_channels *channels = new_channels();
        struct liar liar = {.answer = lies[i].answer};
        socklen_t len = sizeof address;
        struct shoal_error error;
        struct buf body;

        liar.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(liar.listen_fd, (struct sockaddr *)&address, len), 0);
        assert_int_equal(listen(liar.listen_fd, 16), 0);
        assert_int_equal(getsockname(liar.listen_fd, (struct sockaddr *)&address, &len), 0);
        snprintf(liar.address, sizeof liar.address, "127.0.0.1:%u", ntohs(address.sin_port));
        assert_int_equal(pthread_create(&liar.thread, NULL, liar_main, &liar), 0);
        buf_init(&body, 100);
        assert_int_equal(rpc_channels_call(channels, liar.address, 0, METHOD_ECHO, NULL, 0, &call, &body, &error),
                         lies[i].status);
        assert_int_equal(liar.by_ucx, 1);
        assert_int_equal(liar.by_tcp, lies[i].by_tcp);
        rpc_channels_destroy(channels);
        shutdown(liar.listen_fd, SHUT_RDWR);
        pthread_join(liar.thread, NULL);
        close(liar.listen_fd);
        buf_release(&body);
    }
}

/* --- other processes --- */

struct process {
    pid_t pid;
    int out_fd;
    char address[64];
};

static void child_serves(void)
{
    struct side side;

    side_init(&side);
    printf("%s\n", side.address);
    fflush(stdout);
    for (;;)
        pause();
}

/* Reads without end. */
static void child_calls(const char *address)
{
    struct rpc_channels *channels = new_channels();
    uint8_t *memory = malloc(LARGE_BYTES);
    struct shoal_error error;

    while (call_large(channels, address, memory, WAIT_MS, &error) == SHOAL_OK) {
        printf("read\n");
        fflush(stdout);
    }
    exit(1);
}

static void process_start(struct process *process, const char *role, const char *address)
{
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fds[1], 1);
        execl("/proc/self/exe", "rpc_ucx", role, address, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    process->out_fd = fds[0];
}

static void process_line(struct process *process, char *line, size_t room)
{
    size_t len = 0;

    while (len + 1 < room) {
        struct pollfd waiting = {.fd = process->out_fd, .events = POLLIN};

        assert_int_equal(poll(&waiting, 1, WAIT_MS), 1);
        assert_int_equal(read(process->out_fd, line + len, 1), 1);
        if (line[len] == '\n')
            break;
        len++;
    }
    line[len] = '\0';
}

static void process_end(struct process *process)
{
    kill(process->pid, SIGKILL);
    assert_int_equal(waitpid(process->pid, NULL, 0), process->pid);
    close(process->out_fd);
}

struct reader {
    struct rpc_channels *channels;
    const char *address;
    uint8_t *memory;
    atomic_uint answers;
    unsigned after_ms;
    enum shoal_status status;
    struct shoal_error error;
    pthread_t thread;
};

static void *read_until_it_fails(void *arg)
{
    struct reader *reader = arg;

    while ((reader->status = call_large(reader->channels, reader->address, reader->memory, WAIT_MS, &reader->error)) ==
           SHOAL_OK)
        reader->answers++;
    return NULL;
}

/* The peer dies at any moment of an answer: the call says so, and this process lives. */
static void a_server_dies(void **state)
{
    uint8_t *memory = malloc(LARGE_BYTES);

    (void)state;
    SKIP_WITHOUT_UCX();
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct reader reader = {.channels = new_channels(), .memory = memory};
        int64_t deadline = deadline_after_ms(WAIT_MS);
        struct process process;

        process_start(&process, "serve", NULL);
        process_line(&process, process.address, sizeof process.address);
        reader.address = process.address;
        assert_int_equal(pthread_create(&reader.thread, NULL, read_until_it_fails, &reader), 0);
        while (reader.answers < 2 && !deadline_is_past(deadline))
            sched_yield();
        poll(NULL, 0, (int)round); /* somewhere else within an answer each time */
        process_end(&process);
        pthread_join(reader.thread, NULL);
        assert_true(reader.answers >= 2);
        if (reader.status != SHOAL_UNREACHABLE)
            fail_msg("%s: %s", shoal_status_name(reader.status), reader.error.message);
        rpc_channels_destroy(reader.channels);
    }
    free(memory);
}

/* The caller dies within an answer: the server lives, and answers others. */
static void a_caller_dies(void **state)
{
    struct rpc_channels *channels;
    struct process others[3];
    struct side side;
    char line[64];

    (void)state;
    SKIP_WITHOUT_UCX();
    side_init(&side);
    channels = new_channels();
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < 3; i++)
            process_start(&others[i], "call", side.address);
        for (size_t i = 0; i < 3; i++)
            process_line(&others[i], line, sizeof line);
        poll(NULL, 0, (int)round);
        for (size_t i = 0; i < 3; i++) {
            process_end(&others[i]);
            expect_echo(channels, side.address);
        }
    }
    rpc_channels_destroy(channels);
    side_release(&side);
}

static void a_server_stops(void **state)
{
    uint8_t *memory = malloc(LARGE_BYTES), *copy = malloc(LARGE_BYTES);
    struct rpc_channels *channels;
    struct shoal_error error;
    struct process process;

    (void)state;
    SKIP_WITHOUT_UCX();
    channels = new_channels();
    process_start(&process, "serve", NULL);
    process_line(&process, process.address, sizeof process.address);
    for (int round = 0; round < 3; round++) {
        enum shoal_status status;

        assert_int_equal(call_large(channels, process.address, memory, WAIT_MS, &error), SHOAL_OK);
        for (size_t i = 0; i < LARGE_BYTES; i++)
            if (memory[i] != (uint8_t)(i * 7 + (i >> 16)))
                fail_msg("byte %zu is wrong", i);
        kill(process.pid, SIGSTOP);
        assert_int_equal(waitpid(process.pid, NULL, WUNTRACED), process.pid); /* all its threads */
        status = call_large(channels, process.address, memory, STOP_MS, &error);
        assert_int_equal(status, SHOAL_TIMED_OUT);
        memcpy(copy, memory, LARGE_BYTES);
        kill(process.pid, SIGCONT);
        expect_echo(channels, process.address); /* it has gone on */
        assert_memory_equal(memory, copy, LARGE_BYTES);
    }
    rpc_channels_destroy(channels);
    process_end(&process);
    free(memory);
    free(copy);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protocols_by_name),
        cmocka_unit_test(no_library),
        cmocka_unit_test(no_device),
        cmocka_unit_test(a_useless_choice_of_transports),
        cmocka_unit_test(both_have_it),
        cmocka_unit_test(who_does_not_offer_it_is_called_by_tcp),
        cmocka_unit_test(who_does_not_ask_for_it_is_answered_by_tcp),
        cmocka_unit_test(clients_on_a_loop),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(callers_that_lie),
        cmocka_unit_test(servers_that_lie),
        cmocka_unit_test(a_server_dies),
        cmocka_unit_test(a_caller_dies),
        cmocka_unit_test(a_server_stops),
    };

    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        child_serves();
    if (argc > 2 && strcmp(argv[1], "call") == 0)
        child_calls(argv[2]);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("rpc_ucx", tests, NULL, NULL);
}
