/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers and broken peers send to a node's port: F26. After everything the node must be well, within its
 * memory, and serve others. */
#include "itest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/endian.h"
#include "base/random.h"
#include "wire/control.pb-c.h"
#include "wire/hello.h"
#include "wire/rpc_frame.h"

#define SIZE scaled(8 * MIB)

static int dial(struct node *node)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned port;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(sscanf(name_of(node), "127.0.0.1:%u", &port), 1);
    addr.sin_port = htons((uint16_t)port);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

/* The node may have closed already: that is an outcome, not an error. */
static void say(int fd, const void *data, size_t len)
{
    (void)!send(fd, data, len, MSG_NOSIGNAL);
}

/* Reads until the node closes. */
static void expect_closed(int fd)
{
    int64_t deadline = deadline_after_ms(node_patience_ms());
    uint8_t sink[4096];
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, deadline_poll_ms(deadline)) <= 0)
            fail_msg("the node keeps the connection open");
        ssize_t n = recv(fd, sink, sizeof sink, 0);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            break;
        assert_true(n > 0);
    }
    close(fd);
}

static void read_exactly(int fd, uint8_t *to, size_t len)
{
    int64_t deadline = deadline_after_ms(node_patience_ms());
    while (len > 0) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, deadline_poll_ms(deadline)) <= 0)
            fail_msg("the node does not answer");
        ssize_t n = recv(fd, to, len, 0);
        assert_true(n > 0);
        to += n;
        len -= (size_t)n;
    }
}

static size_t make_named_hello(enum hello_channel channel, const char *name, uint8_t out[HELLO_MAX_BYTES])
{
    struct hello hello = {
        .version = HELLO_VERSION, .channel = (uint8_t)channel, .instance = 4711, .cluster = "default"};
    snprintf(hello.name, sizeof hello.name, "%s", name);
    return hello_encode(&hello, out);
}

static size_t make_hello(enum hello_channel channel, uint8_t out[HELLO_MAX_BYTES])
{
    return make_named_hello(channel, "127.0.0.1:1", out);
}

static struct hello read_hello(int fd)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = 0;
    struct hello hello;
    read_exactly(fd, frame, HELLO_PREFIX_BYTES);
    assert_int_equal(hello_frame_len(frame, &len), SHOAL_OK);
    read_exactly(fd, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES);
    assert_int_equal(hello_decode(frame, len, &hello), SHOAL_OK);
    return hello;
}

/* A connection that has passed the handshake. */
static int join_as_named_peer(struct node *node, enum hello_channel channel, const char *name)
{
    uint8_t frame[HELLO_MAX_BYTES];
    int fd = dial(node);
    say(fd, frame, make_named_hello(channel, name, frame));
    assert_int_equal(read_hello(fd).verdict, HELLO_ACCEPT);
    return fd;
}

static int join_as_peer(struct node *node, enum hello_channel channel)
{
    return join_as_named_peer(node, channel, "127.0.0.1:1");
}

/* The node serves, its memory has not grown by more than some MiB, and it has let go of the connections. */
static void expect_well(struct node *node, struct node *receiver, int64_t rss_before_kib)
{
    get_one(receiver, "model", SIZE, 1);
    EXPECT_OK(node_call(receiver, "delete_replica payload=model"));
    int64_t rss = json_integer_value(json_object_get(node_call(node, "process"), "rss_kib"));
    if (!node_is_sanitized() && rss - rss_before_kib > 32 * 1024)
        fail_msg("%lld KiB more memory", (long long)(rss - rss_before_kib));
}

/* A counter that must be there. */
static double counter(struct node *node, const char *name)
{
    double value = metric_of(node, 0, name);
    if (value < 0)
        fail_msg("no counter %s", name);
    return value;
}

static int64_t prepare(void **state, struct node **node, struct node **receiver)
{
    *node = start_node(*state, "node", "");
    *receiver = start_node(*state, "receiver", "");
    seed_one(*node, "model", SIZE, 1, "piece=65536");
    get_one(*receiver, "model", SIZE, 1);
    EXPECT_OK(node_call(*receiver, "delete_replica payload=model"));
    return json_integer_value(json_object_get(node_call(*node, "process"), "rss_kib"));
}

static void f26_bad_handshakes(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    uint8_t frame[HELLO_MAX_BYTES], bad[HELLO_MAX_BYTES];
    size_t len = make_hello(HELLO_CHANNEL_CONTROL, frame);
    double errors = counter(node, "shoal_engine_handshake_errors_total");
    int fd;

    fd = dial(node);
    say(fd, http, sizeof http - 1);
    expect_closed(fd);
    /* 4 GiB, 2 GiB, zero and one byte more than allowed. */
    static const uint32_t lengths[] = {UINT32_MAX, 1u << 31, 0, 7, HELLO_MAX_BYTES + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(bad, frame, len);
        put_le32(bad + 4, lengths[i]);
        fd = dial(node);
        say(fd, bad, len);
        expect_closed(fd);
    }
    /* Truncated at every byte. */
    for (size_t cut = 0; cut < len; cut++) {
        fd = dial(node);
        say(fd, frame, cut);
        shutdown(fd, SHUT_WR);
        expect_closed(fd);
    }
    /* Field lengths that point outside the frame. */
    for (size_t at = HELLO_PREFIX_BYTES; at + 1 < len; at++) {
        memcpy(bad, frame, len);
        bad[at] = bad[at + 1] = 0xff;
        fd = dial(node);
        say(fd, bad, len);
        shutdown(fd, SHUT_WR);
        expect_closed(fd);
    }
    assert_true(counter(node, "shoal_engine_handshake_errors_total") >= errors + 6);
    expect_well(node, receiver, rss);
    node_stop_all();
}

static void f26_refused_handshakes_get_a_reason(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    struct hello base = {
        .version = HELLO_VERSION, .channel = HELLO_CHANNEL_CONTROL, .name = "x:1", .cluster = "default"};
    struct hello cases[4] = {base, base, base, base};
    static const uint8_t verdicts[4] = {HELLO_REFUSE_VERSION, HELLO_REFUSE_CLUSTER, HELLO_REFUSE_CHANNEL,
                                        HELLO_REFUSE_IDENTITY};
    cases[0].version = 999;
    strcpy(cases[1].cluster, "other");
    cases[2].channel = 77;
    cases[3].wanted = 1;
    double refused = counter(node, "shoal_engine_connections_refused_total");
    for (size_t i = 0; i < 4; i++) {
        uint8_t frame[HELLO_MAX_BYTES];
        int fd = dial(node);
        say(fd, frame, hello_encode(&cases[i], frame));
        assert_int_equal(read_hello(fd).verdict, verdicts[i]);
        expect_closed(fd);
    }
    assert_true(counter(node, "shoal_engine_connections_refused_total") == refused + 4);
    expect_well(node, receiver, rss);
    node_stop_all();
}

static void f26_handshake_byte_by_byte(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = make_hello(HELLO_CHANNEL_CONTROL, frame);
    int fd = dial(node);
    for (size_t i = 0; i < len; i++)
        say(fd, frame + i, 1);
    assert_int_equal(read_hello(fd).verdict, HELLO_ACCEPT);
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

static void send_frame(int fd, struct rpc_frame frame, const void *body, size_t body_len)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    rpc_frame_encode(&frame, header);
    say(fd, header, sizeof header);
    if (body_len > 0)
        say(fd, body, body_len);
}

static struct rpc_frame read_frame(int fd)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES], body[1024];
    struct rpc_frame frame;
    read_exactly(fd, header, sizeof header);
    assert_int_equal(rpc_frame_decode(header, sizeof body, &frame), SHOAL_OK);
    read_exactly(fd, body, frame.body_len);
    return frame;
}

static void f26_bad_control_frames(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    struct rpc_frame request = {.kind = RPC_KIND_REQUEST, .method = 1, .id = 1, .timeout_ms = 1000};
    struct rpc_frame bad = request;
    uint8_t noise[1024];
    int fd;

    /* Lengths of 4 GiB and just too much; a response that nobody asked for; an unknown kind. */
    static const uint32_t lengths[] = {UINT32_MAX, RPC_REQUEST_MAX_BYTES + 1};
    for (size_t i = 0; i < 2; i++) {
        bad = request;
        bad.body_len = lengths[i];
        fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
        send_frame(fd, bad, NULL, 0);
        expect_closed(fd);
    }
    bad = request;
    bad.kind = RPC_KIND_RESPONSE;
    fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    send_frame(fd, bad, NULL, 0);
    expect_closed(fd);
    bad.kind = 9;
    fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    send_frame(fd, bad, NULL, 0);
    expect_closed(fd);

    /* Truncated in the middle of the body. */
    bad = request;
    bad.body_len = 1000;
    fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    send_frame(fd, bad, noise, 0);
    shutdown(fd, SHUT_WR);
    expect_closed(fd);
    assert_true(counter(node, "shoal_rpc_protocol_errors_total") >= 4);

    /* Unknown methods and bodies that are no message get an error, and the connection lives. */
    static const uint16_t methods[] = {0, 1, 2, 3, 30, 32, 4711, UINT16_MAX};
    fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    memset(noise, 0xff, sizeof noise);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        request.method = methods[i];
        request.id = i + 1;
        request.body_len = sizeof noise;
        send_frame(fd, request, noise, sizeof noise);
        struct rpc_frame answer = read_frame(fd);
        assert_int_equal(answer.id, i + 1);
        assert_int_not_equal(answer.status, SHOAL_OK);
    }
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* Methods with every kind of body, from a seed. */
static void f26_random_control_frames(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    uint64_t seed = random_id();
    struct random random;
    print_message("seed %llu\n", (unsigned long long)seed);
    random_init(&random, seed);
    for (int connection = 0; connection < 16; connection++) {
        int fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
        for (int i = 0; i < 64; i++) {
            uint8_t body[256];
            struct rpc_frame frame = {.kind = RPC_KIND_REQUEST,
                                      .method = (uint16_t)random_below(&random, 6),
                                      .id = random_next(&random),
                                      .timeout_ms = (uint32_t)random_below(&random, 100),
                                      .body_len = (uint32_t)random_below(&random, sizeof body)};
            for (size_t b = 0; b < sizeof body; b++)
                body[b] = (uint8_t)random_next(&random);
            send_frame(fd, frame, body, frame.body_len);
        }
        close(fd); /* with answers unread */
    }
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* The data channel: nothing that is no request moves a byte. */
static void f26_bad_data_frames(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    uint8_t noise[4096];
    uint64_t seed = random_id();
    struct random random;
    print_message("seed %llu\n", (unsigned long long)seed);
    random_init(&random, seed);

    int fd = join_as_peer(node, HELLO_CHANNEL_DATA);
    memset(noise, 0xff, sizeof noise);
    say(fd, noise, sizeof noise);
    shutdown(fd, SHUT_WR);
    expect_closed(fd);
    fd = join_as_peer(node, HELLO_CHANNEL_DATA);
    memset(noise, 0, sizeof noise);
    say(fd, noise, sizeof noise);
    shutdown(fd, SHUT_WR);
    expect_closed(fd);
    assert_true(counter(node, "shoal_transport_tcp_protocol_errors_total") >= 2);
    for (int i = 0; i < 32; i++) {
        for (size_t b = 0; b < sizeof noise; b++)
            noise[b] = (uint8_t)random_next(&random);
        fd = join_as_peer(node, HELLO_CHANNEL_DATA);
        say(fd, noise, random_below(&random, sizeof noise));
        shutdown(fd, SHUT_WR);
        expect_closed(fd);
    }
    EXPECT_CONTENT(node, "model", 1);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* A receiver that asks for news thousands of times and for positions that cannot be. */
static void f26_flood_of_syncs(void **state)
{
    enum { COUNT = 4000, UNANSWERED_MAX = 1024 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    json_t *info = json_object_get(node_call(node, "stat payload=model"), "info");
    Shoal__Wire__SyncRequest sync = SHOAL__WIRE__SYNC_REQUEST__INIT;
    char name[] = "model";
    uint8_t body[256];

    sync.name = name;
    sync.generation = (uint64_t)json_integer_value(json_object_get(info, "generation"));
    sync.position = UINT32_MAX; /* knows everything: waits for the end */
    sync.wait_ms = UINT32_MAX;
    sync.taken_bytes = UINT64_MAX;
    sync.pieces_have = UINT32_MAX;
    size_t len = shoal__wire__sync_request__pack(&sync, body);
    int fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    for (uint64_t id = 1; id <= COUNT; id++) {
        struct rpc_frame request = {
            .kind = RPC_KIND_REQUEST, .method = 2, .id = id, .timeout_ms = 60000, .body_len = (uint32_t)len};
        send_frame(fd, request, body, len);
    }
    for (int i = 0; i < COUNT - UNANSWERED_MAX; i++)
        assert_int_equal(read_frame(fd).status, SHOAL_LIMIT);
    expect_well(node, receiver, rss);
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* Receivers that claim every upload slot there is, ask for nothing with them, and name pieces that do not exist. */
static void f26_slot_hoarders(void **state)
{
    enum { HOARDERS = 8, CLAIMS = 100 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    json_t *info = json_object_get(node_call(node, "stat payload=model"), "info");
    Shoal__Wire__ClaimRequest claim = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    uint32_t invented = UINT32_MAX;
    char name[] = "model";
    uint8_t body[256];
    int fds[HOARDERS];

    claim.name = name;
    claim.generation = (uint64_t)json_integer_value(json_object_get(info, "generation"));
    claim.wanted = UINT32_MAX;
    claim.wait_ms = UINT32_MAX;
    struct rpc_frame request = {.kind = RPC_KIND_REQUEST, .method = 4, .id = 1, .timeout_ms = 60000};
    claim.taken = &invented;
    claim.n_taken = 1;
    request.body_len = (uint32_t)shoal__wire__claim_request__pack(&claim, body);
    int fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    send_frame(fd, request, body, request.body_len);
    assert_int_equal(read_frame(fd).status, SHOAL_PROTOCOL);
    close(fd);

    claim.n_taken = 0;
    for (size_t i = 0; i < HOARDERS; i++) {
        char peer[32];
        snprintf(peer, sizeof peer, "127.0.0.1:%zu", i + 1);
        fds[i] = join_as_named_peer(node, HELLO_CHANNEL_CONTROL, peer);
        for (request.id = 1; request.id <= CLAIMS; request.id++) {
            claim.outstanding = request.id % 2 ? 0 : UINT32_MAX;
            request.body_len = (uint32_t)shoal__wire__claim_request__pack(&claim, body);
            send_frame(fds[i], request, body, request.body_len);
        }
    }
    expect_well(node, receiver, rss);
    for (size_t i = 0; i < HOARDERS; i++)
        close(fds[i]);
    expect_well(node, receiver, rss);
    node_stop_all();
}

static uint64_t generation_of_model(struct node *node)
{
    json_t *info = json_object_get(node_call(node, "stat payload=model"), "info");
    return (uint64_t)json_integer_value(json_object_get(info, "generation"));
}

static void send_claim(int fd, const Shoal__Wire__ClaimRequest *claim)
{
    static uint64_t id;
    uint8_t body[32768];
    size_t len = shoal__wire__claim_request__get_packed_size(claim);
    assert_true(len <= sizeof body);
    shoal__wire__claim_request__pack(claim, body);
    send_frame(fd,
               (struct rpc_frame){
                   .kind = RPC_KIND_REQUEST, .method = 4, .id = ++id, .timeout_ms = 60000, .body_len = (uint32_t)len},
               body, len);
}

/* Slots of the next answer; its status if that is an error. */
static int32_t read_slots(int fd)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES], body[4096];
    struct rpc_frame frame;
    read_exactly(fd, header, sizeof header);
    assert_int_equal(rpc_frame_decode(header, sizeof body, &frame), SHOAL_OK);
    read_exactly(fd, body, frame.body_len);
    if (frame.status)
        return frame.status;
    Shoal__Wire__ClaimResponse *response = shoal__wire__claim_response__unpack(NULL, frame.body_len, body);
    assert_non_null(response);
    assert_true(response->n_pieces <= response->slots && response->slots <= INT32_MAX);
    int32_t slots = (int32_t)response->slots;
    shoal__wire__claim_response__free_unpacked(response, NULL);
    return slots;
}

/* A receiver that takes all slots, holds its claims open and never reads: others are served after a while. */
static void f26_claims_and_never_reads(void **state)
{
    enum { MORE = 16 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    char name[] = "model";
    Shoal__Wire__ClaimRequest claim = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    int fds[MORE];
    claim.name = name;
    claim.generation = generation_of_model(node);
    claim.wanted = UINT32_MAX;
    claim.wait_ms = UINT32_MAX;
    int fd = join_as_named_peer(node, HELLO_CHANNEL_CONTROL, "greedy:1");
    send_claim(fd, &claim);
    assert_true(read_slots(fd) > 1);
    for (int i = 0; i < MORE; i++) { /* the others of its kind wait in line, before the honest one */
        char peer[32];
        snprintf(peer, sizeof peer, "greedy:%d", i + 2);
        fds[i] = join_as_named_peer(node, HELLO_CHANNEL_CONTROL, peer);
        send_claim(fds[i], &claim);
    }
    expect_well(node, receiver, rss);
    /* Withdrawn while claims wait: those are told. */
    int late = join_as_named_peer(node, HELLO_CHANNEL_CONTROL, "late:1");
    send_claim(late, &claim);
    EXPECT_OK(node_call(node, "unregister payload=model"));
    int32_t answer = read_slots(late);
    assert_true(answer > 0 || answer == SHOAL_NOT_FOUND);
    send_claim(late, &claim);
    assert_int_equal(read_slots(late), SHOAL_NOT_FOUND);
    EXPECT_OK(node_call(node, "close"));
    for (int i = 0; i < MORE; i++)
        close(fds[i]);
    close(late);
    close(fd);
    node_stop_all();
}

/* One that claims thousands of times, reports slots in use that it was never given, and pieces beyond the payload. */
static void f26_flood_of_claims(void **state)
{
    enum { COUNT = 4000, TAKEN = 4096 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    char name[] = "model";
    uint32_t taken[TAKEN] = {UINT32_MAX};
    Shoal__Wire__ClaimRequest claim = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    claim.name = name;
    claim.generation = generation_of_model(node);
    claim.wanted = UINT32_MAX;
    claim.outstanding = UINT32_MAX;
    claim.wait_ms = UINT32_MAX;
    int fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    claim.taken = taken;
    claim.n_taken = 1;
    send_claim(fd, &claim);
    assert_int_equal(read_slots(fd), SHOAL_PROTOCOL);
    taken[0] = 0;
    claim.n_taken = TAKEN; /* the same piece again and again */
    send_claim(fd, &claim);
    assert_true(read_slots(fd) > 1);
    claim.n_taken = 0;
    for (int i = 0; i < COUNT; i++)
        send_claim(fd, &claim);
    for (int i = 0; i < COUNT; i++)
        assert_true(read_slots(fd) >= 0); /* none waits: it has its share, as it says itself */
    claim.outstanding = 0;
    for (int i = 0; i < COUNT; i++) /* each replaces the one before */
        send_claim(fd, &claim);
    for (int i = 0; i < COUNT; i++)
        assert_true(read_slots(fd) >= 0);
    expect_well(node, receiver, rss);
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* One that claims and vanishes without ever asking for news is forgotten, and its share is for others again. */
static void f26_claims_and_vanishes(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    char name[] = "model";
    Shoal__Wire__ClaimRequest claim = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    claim.name = name;
    claim.generation = generation_of_model(node);
    int fd = join_as_named_peer(node, HELLO_CHANNEL_CONTROL, "other:1");
    send_claim(fd, &claim);
    assert_int_equal(read_slots(fd), 0);
    close(fd);
    claim.wanted = UINT32_MAX;
    claim.wait_ms = UINT32_MAX;
    fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    send_claim(fd, &claim);
    int32_t share = read_slots(fd), now;
    assert_true(share > 0);
    WAIT_UNTIL((send_claim(fd, &claim), (now = read_slots(fd)) >= 2 * share));
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* The end of an old connection is noticed when the receiver has come back by another one: that loses nothing. */
static void f26_claims_by_another_connection(void **state)
{
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    char name[] = "model";
    uint8_t body[256];
    Shoal__Wire__SyncRequest sync = SHOAL__WIRE__SYNC_REQUEST__INIT;
    Shoal__Wire__ClaimRequest claim = SHOAL__WIRE__CLAIM_REQUEST__INIT;
    claim.name = sync.name = name;
    claim.generation = sync.generation = generation_of_model(node);
    sync.position = UINT32_MAX;
    sync.wait_ms = UINT32_MAX;
    claim.wanted = claim.wait_ms = UINT32_MAX;
    int old = join_as_peer(node, HELLO_CHANNEL_CONTROL), fd = join_as_peer(node, HELLO_CHANNEL_CONTROL);
    struct rpc_frame request = {.kind = RPC_KIND_REQUEST, .method = 2, .id = 1, .timeout_ms = 60000};
    request.body_len = (uint32_t)shoal__wire__sync_request__pack(&sync, body);
    send_frame(old, request, body, request.body_len); /* its end is noticed by this */
    send_claim(old, &claim);
    int32_t slots = read_slots(old);
    assert_true(slots > 1);
    claim.outstanding = (uint32_t)slots;
    send_claim(fd, &claim);
    assert_int_equal(read_slots(fd), 0); /* it has its share */
    double open = counter(node, "shoal_engine_connections");
    close(old);
    WAIT_UNTIL(counter(node, "shoal_engine_connections") < open);
    send_claim(fd, &claim);
    assert_int_equal(read_slots(fd), 0); /* still */
    close(fd);
    expect_well(node, receiver, rss);
    node_stop_all();
}

static void f26_silent_connections(void **state)
{
    enum { COUNT = 200 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    int fds[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        fds[i] = dial(node);
    /* Served while they hang there, */
    expect_well(node, receiver, rss);
    /* and rid of them in the end. */
    for (size_t i = 0; i < COUNT; i++)
        expect_closed(fds[i]);
    assert_true(counter(node, "shoal_engine_handshake_timeouts_total") >= COUNT);
    int64_t fd_count = json_integer_value(json_object_get(node_call(node, "process"), "fds"));
    assert_true(fd_count < 100);
    expect_well(node, receiver, rss);
    node_stop_all();
}

/* Peers that shook hands, sent half a request and never read. */
static void f26_idle_peers(void **state)
{
    enum { COUNT = 64 };
    struct node *node, *receiver;
    int64_t rss = prepare(state, &node, &receiver);
    int fds[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        uint8_t part[10] = {16};
        fds[i] = join_as_peer(node, i % 2 ? HELLO_CHANNEL_CONTROL : HELLO_CHANNEL_DATA);
        say(fds[i], part, sizeof part);
    }
    expect_well(node, receiver, rss);
    EXPECT_OK(node_call(node, "unregister payload=model"));
    EXPECT_OK(node_call(node, "close"));
    for (size_t i = 0; i < COUNT; i++)
        expect_closed(fds[i]);
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ITEST(f26_bad_handshakes),         ITEST(f26_refused_handshakes_get_a_reason),
        ITEST(f26_handshake_byte_by_byte), ITEST(f26_bad_control_frames),
        ITEST(f26_random_control_frames),  ITEST(f26_bad_data_frames),
        ITEST(f26_flood_of_syncs),         ITEST(f26_slot_hoarders),
        ITEST(f26_claims_and_never_reads), ITEST(f26_flood_of_claims),
        ITEST(f26_claims_and_vanishes),    ITEST(f26_claims_by_another_connection),
        ITEST(f26_silent_connections),     ITEST(f26_idle_peers),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
