/* SPDX-License-Identifier: Apache-2.0 */
#include "liar.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "wire/control.pb-c.h"
#include "wire/data.h"
#include "wire/hello.h"
#include "wire/rpc_frame.h"

#define MAX_CONNECTIONS 256
#define METHOD_OPEN 1
#define METHOD_SYNC 2
#define METHOD_STATUS 3
#define METHOD_CLAIM 4
#define REPEATED 65536u
#define SHOUTS 1000

struct connection {
    struct liar *liar; /* borrowed */
    int client, target;
    pthread_t threads[2]; /* client to target, target to client */
    struct hello hello;
    pthread_mutex_t lock;  /* so that the control frames of both threads do not mix at the client */
    atomic_ullong open_id; /* of the open that was passed on */
};

struct liar {
    struct sockaddr_in target;
    char address[32];
    int listener;
    enum liar_lie lie;
    pthread_t thread;
    atomic_ullong count;
    struct connection *connections[MAX_CONNECTIONS]; /* owned; the accepting thread's */
    size_t connection_count;
};

static bool read_all(int fd, void *to, size_t len)
{
    for (uint8_t *at = to; len > 0;) {
        ssize_t n = recv(fd, at, len, 0);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t len)
{
    for (const uint8_t *at = from; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

/* Reads and drops, or passes on with to >= 0. */
static bool move(int from, int to, uint64_t len)
{
    uint8_t chunk[16384];
    while (len > 0) {
        size_t n = len < sizeof chunk ? (size_t)len : sizeof chunk;
        if (!read_all(from, chunk, n) || (to >= 0 && !write_all(to, chunk, n)))
            return false;
        len -= n;
    }
    return true;
}

/* Passes on what comes, until the end. */
static void stream(int from, int to)
{
    uint8_t chunk[65536];
    ssize_t n;

    while ((n = recv(from, chunk, sizeof chunk, 0)) > 0 && write_all(to, chunk, (size_t)n))
        ;
}

static bool is_about_data(enum liar_lie lie)
{
    return lie >= LIAR_REFUSES && lie <= LIAR_ASKS;
}

static bool is_about_claims(enum liar_lie lie)
{
    return lie >= LIAR_DENIES && lie <= LIAR_IGNORES;
}

/* Data channel ----------------------------------------------------------------------------------------------------- */

static bool send_data_frame(struct connection *connection, struct data_frame frame)
{
    static const uint8_t noise[4096] = {0x5a};
    uint8_t header[DATA_HEADER_BYTES];
    bool is_ok;

    data_encode(&frame, header);
    is_ok = write_all(connection->client, header, sizeof header);
    for (uint64_t left = data_body_len(&frame); is_ok && left > 0;) {
        size_t n = left < sizeof noise ? (size_t)left : sizeof noise;
        is_ok = write_all(connection->client, noise, n);
        left -= n;
    }
    return is_ok;
}

static bool answer_read(struct connection *connection, const struct data_frame *read)
{
    struct data_frame frame = {.type = DATA_DATA, .id = read->id, .len = read->len};

    atomic_fetch_add(&connection->liar->count, 1);
    switch (connection->liar->lie) {
    case LIAR_REFUSES:
        frame.type = DATA_REFUSE;
        frame.code = DATA_CODE_INVALID;
        frame.len = 16;
        break;
    case LIAR_ANSWERS_OTHERS:
        frame.id ^= 1ull << 40;
        break;
    case LIAR_SENDS_MORE:
        frame.len++;
        break;
    case LIAR_GRANTS:
        frame.type = DATA_GRANT;
        frame.len = 0;
        break;
    case LIAR_ASKS:
        frame.type = DATA_READ;
        frame.addr = read->addr;
        frame.key = read->key;
        break;
    case LIAR_IS_SILENT:
        return true;
    default:
        break;
    }
    return send_data_frame(connection, frame);
}

/* What the peer asks. READs are answered here. */
static void relay_data(struct connection *connection)
{
    uint8_t header[DATA_HEADER_BYTES];
    struct data_frame frame;

    while (read_all(connection->client, header, sizeof header)) {
        if (data_decode(header, &frame) != SHOAL_OK)
            return;
        if (frame.type == DATA_READ) {
            if (!answer_read(connection, &frame))
                return;
        } else if (frame.type != DATA_ABORT) { /* silence also about that */
            if (!write_all(connection->target, header, sizeof header) ||
                !move(connection->client, connection->target, data_body_len(&frame)))
                return;
        }
    }
}

/* Control channel -------------------------------------------------------------------------------------------------- */

static bool send_body(struct connection *connection, uint16_t method, uint64_t id, const void *body, size_t len)
{
    struct rpc_frame frame = {.kind = RPC_KIND_RESPONSE, .method = method, .id = id, .body_len = (uint32_t)len};
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    bool is_ok;

    rpc_frame_encode(&frame, header);
    pthread_mutex_lock(&connection->lock);
    is_ok = write_all(connection->client, header, sizeof header) && write_all(connection->client, body, len);
    pthread_mutex_unlock(&connection->lock);
    return is_ok;
}

static bool send_response(struct connection *connection, uint64_t id, const Shoal__Wire__SyncResponse *response)
{
    size_t len = shoal__wire__sync_response__get_packed_size(response);
    uint8_t *body = malloc(len + 1);
    bool is_ok = body != NULL;

    if (is_ok)
        shoal__wire__sync_response__pack(response, body);
    is_ok = is_ok && send_body(connection, METHOD_SYNC, id, body, len);
    free(body);
    return is_ok;
}

/* Twice the pieces that there can be. */
static bool answer_status(struct connection *connection, uint64_t id)
{
    Shoal__Wire__StatusResponse response = SHOAL__WIRE__STATUS_RESPONSE__INIT;
    uint8_t body[64];

    atomic_fetch_add(&connection->liar->count, 1);
    response.piece_count = UINT32_MAX;
    response.pieces_have = UINT32_MAX;
    return send_body(connection, METHOD_STATUS, id, body, shoal__wire__status_response__pack(&response, body));
}

static bool answer_claim(struct connection *connection, uint64_t id)
{
    static const uint8_t noise[4] = {0xff, 0xff, 0xff, 0xff};
    Shoal__Wire__ClaimResponse response = SHOAL__WIRE__CLAIM_RESPONSE__INIT;
    uint32_t invented = UINT32_MAX, pieces[] = {0, 1};
    uint8_t body[64];

    atomic_fetch_add(&connection->liar->count, 1);
    if (connection->liar->lie == LIAR_OVERGRANTS)
        response.slots = UINT32_MAX;
    if (connection->liar->lie == LIAR_MISGRANTS) {
        response.slots = 1;
        response.pieces = &invented;
        response.n_pieces = 1;
    }
    if (connection->liar->lie == LIAR_MISCOUNTS) {
        response.slots = 1;
        response.pieces = pieces;
        response.n_pieces = 2;
    }
    if (connection->liar->lie == LIAR_MUMBLES)
        return send_body(connection, METHOD_CLAIM, id, noise, sizeof noise);
    if (connection->liar->lie == LIAR_IGNORES)
        return true;
    return send_body(connection, METHOD_CLAIM, id, body, shoal__wire__claim_response__pack(&response, body));
}

static bool answer_sync(struct connection *connection, uint64_t id, uint32_t position)
{
    Shoal__Wire__SyncResponse response = SHOAL__WIRE__SYNC_RESPONSE__INIT;
    uint32_t invented = UINT32_MAX, *repeated = NULL;
    bool is_ok = true;

    atomic_fetch_add(&connection->liar->count, 1);
    response.position = position;
    switch (connection->liar->lie) {
    case LIAR_REPEATS:
        repeated = calloc(REPEATED, sizeof *repeated);
        response.pieces = repeated;
        response.n_pieces = repeated ? REPEATED : 0;
        response.position = position + REPEATED;
        break;
    case LIAR_INVENTS:
        response.pieces = &invented;
        response.n_pieces = 1;
        response.position = position + 1;
        break;
    case LIAR_GOES_BACK:
        response.position = position - 1;
        break;
    case LIAR_JUMPS:
        response.position = position + 1000;
        break;
    case LIAR_SHOUTS:
        for (uint64_t i = 0; i < SHOUTS && is_ok; i++)
            is_ok = send_response(connection, (1ull << 40) + i, &response);
        break;
    default:
        break;
    }
    is_ok = is_ok && send_response(connection, id, &response);
    free(repeated);
    return is_ok;
}

/* What the peer asks. What the lie is about is answered here. */
static void relay_control(struct connection *connection)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    struct rpc_frame frame;

    while (read_all(connection->client, header, sizeof header)) {
        if (rpc_frame_decode(header, RPC_REQUEST_MAX_BYTES, &frame) != SHOAL_OK)
            return;
        if (frame.method == METHOD_OPEN)
            atomic_store(&connection->open_id, frame.id);
        if (frame.method == METHOD_STATUS && connection->liar->lie == LIAR_BOASTS) {
            uint8_t ignored[1024];
            if (frame.body_len > sizeof ignored || !read_all(connection->client, ignored, frame.body_len) ||
                !answer_status(connection, frame.id))
                return;
            continue;
        }
        if (frame.method == METHOD_CLAIM && is_about_claims(connection->liar->lie)) {
            if (!move(connection->client, -1, frame.body_len) || !answer_claim(connection, frame.id))
                return;
            continue;
        }
        if (frame.method != METHOD_SYNC || is_about_claims(connection->liar->lie)) {
            if (!write_all(connection->target, header, sizeof header) ||
                !move(connection->client, connection->target, frame.body_len))
                return;
            continue;
        }
        uint8_t *body = malloc(frame.body_len + 1);
        Shoal__Wire__SyncRequest *request = NULL;
        if (body && read_all(connection->client, body, frame.body_len))
            request = shoal__wire__sync_request__unpack(NULL, frame.body_len, body);
        free(body);
        if (!request)
            return;
        bool is_ok = request->is_last || answer_sync(connection, frame.id, request->position);
        shoal__wire__sync_request__free_unpacked(request, NULL);
        if (!is_ok)
            return;
    }
}

/* What the node says to open, except that it was not complete: news make sense only then. */
static bool deny_completeness(struct connection *connection, struct rpc_frame frame)
{
    uint8_t *body = malloc(frame.body_len + 64), header[RPC_FRAME_HEADER_BYTES];
    Shoal__Wire__OpenResponse *response = NULL;
    bool is_ok;

    if (body && read_all(connection->target, body, frame.body_len))
        response = shoal__wire__open_response__unpack(NULL, frame.body_len, body);
    if (response) {
        response->is_complete = false;
        frame.body_len = (uint32_t)shoal__wire__open_response__pack(response, body);
        shoal__wire__open_response__free_unpacked(response, NULL);
    }
    rpc_frame_encode(&frame, header);
    is_ok = response && write_all(connection->client, header, sizeof header) &&
            write_all(connection->client, body, frame.body_len);
    free(body);
    return is_ok;
}

/* What the node answers. */
static void relay_answers(struct connection *connection)
{
    uint8_t header[RPC_FRAME_HEADER_BYTES];
    struct rpc_frame frame;
    bool is_ok = true;

    while (is_ok && read_all(connection->target, header, sizeof header)) {
        if (rpc_frame_decode(header, RPC_RESPONSE_MAX_BYTES, &frame) != SHOAL_OK)
            return;
        pthread_mutex_lock(&connection->lock);
        if (frame.id == atomic_load(&connection->open_id) && frame.status == SHOAL_OK &&
            !is_about_claims(connection->liar->lie))
            is_ok = deny_completeness(connection, frame);
        else
            is_ok = write_all(connection->client, header, sizeof header) &&
                    move(connection->target, connection->client, frame.body_len);
        pthread_mutex_unlock(&connection->lock);
    }
}

/* Connections ------------------------------------------------------------------------------------------------------ */

static void *from_client(void *arg)
{
    struct connection *connection = arg;
    enum liar_lie lie = connection->liar->lie;

    if (connection->hello.channel == HELLO_CHANNEL_DATA && is_about_data(lie))
        relay_data(connection);
    else if (connection->hello.channel == HELLO_CHANNEL_CONTROL && lie > LIAR_ASKS)
        relay_control(connection);
    else
        stream(connection->client, connection->target);
    shutdown(connection->target, SHUT_RDWR);
    shutdown(connection->client, SHUT_RDWR);
    return NULL;
}

static void *from_target(void *arg)
{
    struct connection *connection = arg;

    if (connection->hello.channel == HELLO_CHANNEL_CONTROL && connection->liar->lie > LIAR_ASKS)
        relay_answers(connection);
    else
        stream(connection->target, connection->client);
    shutdown(connection->target, SHUT_RDWR);
    shutdown(connection->client, SHUT_RDWR);
    return NULL;
}

/* Passes a hello on and remembers it. */
static bool relay_hello(int from, int to, struct hello *hello)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len;

    return read_all(from, frame, HELLO_PREFIX_BYTES) && hello_frame_len(frame, &len) == SHOAL_OK &&
           read_all(from, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES) &&
           hello_decode(frame, len, hello) == SHOAL_OK && write_all(to, frame, len);
}

static struct connection *connection_create(struct liar *liar, int client)
{
    struct connection *connection = calloc(1, sizeof *connection);
    struct hello answer;
    int one = 1;

    if (!connection)
        return NULL;
    connection->liar = liar;
    pthread_mutex_init(&connection->lock, NULL);
    connection->client = client;
    connection->target = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->target < 0)
        goto fail;
    if (connect(connection->target, (const struct sockaddr *)&liar->target, sizeof liar->target) != 0 ||
        !relay_hello(client, connection->target, &connection->hello) ||
        !relay_hello(connection->target, client, &answer))
        goto fail_target;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (pthread_create(&connection->threads[0], NULL, from_client, connection) != 0)
        goto fail_target;
    if (pthread_create(&connection->threads[1], NULL, from_target, connection) != 0)
        abort();
    return connection;
fail_target:
    close(connection->target);
fail:
    pthread_mutex_destroy(&connection->lock);
    free(connection);
    return NULL;
}

static void *liar_run(void *arg)
{
    struct liar *liar = arg;
    int client;

    while ((client = accept4(liar->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct connection *connection =
            liar->connection_count < MAX_CONNECTIONS ? connection_create(liar, client) : NULL;
        if (connection)
            liar->connections[liar->connection_count++] = connection;
        else
            close(client);
    }
    return NULL;
}

struct liar *liar_create(const char *target, enum liar_lie lie)
{
    struct liar *liar = calloc(1, sizeof *liar);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char host[INET_ADDRSTRLEN];
    unsigned port;

    assert_non_null(liar);
    assert_int_equal(sscanf(target, "%15[0-9.]:%u", host, &port), 2);
    liar->lie = lie;
    liar->target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, host, &liar->target.sin_addr), 1);
    liar->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(liar->listener >= 0);
    assert_int_equal(bind(liar->listener, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(liar->listener, 128), 0);
    assert_int_equal(getsockname(liar->listener, (struct sockaddr *)&addr, &len), 0);
    snprintf(liar->address, sizeof liar->address, "127.0.0.1:%u", ntohs(addr.sin_port));
    assert_int_equal(pthread_create(&liar->thread, NULL, liar_run, liar), 0);
    return liar;
}

void liar_destroy(struct liar *liar)
{
    if (!liar)
        return;
    shutdown(liar->listener, SHUT_RDWR); /* accept ends */
    pthread_join(liar->thread, NULL);
    close(liar->listener);
    for (size_t i = 0; i < liar->connection_count; i++) {
        struct connection *connection = liar->connections[i];
        shutdown(connection->client, SHUT_RDWR);
        shutdown(connection->target, SHUT_RDWR);
        pthread_join(connection->threads[0], NULL);
        pthread_join(connection->threads[1], NULL);
        close(connection->client);
        close(connection->target);
        pthread_mutex_destroy(&connection->lock);
        free(connection);
    }
    free(liar);
}

const char *liar_address(const struct liar *liar)
{
    return liar->address;
}

uint64_t liar_count(const struct liar *liar)
{
    return atomic_load(&liar->count);
}
