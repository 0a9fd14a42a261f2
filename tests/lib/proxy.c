/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_PAIRS 256
#define CHUNK_BYTES 65536
#define CLEAN_BYTES 4096 /* handshakes and the like pass PROXY_CORRUPT unharmed */

/* One direction of one connection. */
struct flow {
    uint8_t *data; /* owned, CHUNK_BYTES */
    size_t len, sent;
    uint64_t total;
    bool is_at_end;
};

struct pair {
    int fds[2];           /* client, target; -1: free slot */
    struct flow flows[2]; /* from fds[i] to the other */
};

struct proxy {
    struct sockaddr_in target;
    char address[32];
    int listener;
    pthread_t thread;
    atomic_int mode;
    atomic_bool is_ending;
    atomic_uint connections;
    atomic_ullong bytes, corrupt_every;
    struct pair pairs[MAX_PAIRS]; /* the thread's */
};

static void pair_close(struct pair *pair, bool is_reset)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    for (int side = 0; side < 2; side++) {
        if (is_reset)
            setsockopt(pair->fds[side], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        close(pair->fds[side]);
        pair->fds[side] = -1;
        free(pair->flows[side].data);
        pair->flows[side] = (struct flow){0};
    }
}

static void accept_one(struct proxy *proxy)
{
    int one = 1, client = accept4(proxy->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct pair *pair = NULL;

    if (client < 0)
        return;
    atomic_fetch_add(&proxy->connections, 1);
    for (size_t i = 0; i < MAX_PAIRS && !pair; i++)
        if (proxy->pairs[i].fds[0] < 0)
            pair = &proxy->pairs[i];
    int target = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!pair || target < 0 || connect(target, (const struct sockaddr *)&proxy->target, sizeof proxy->target) != 0) {
        close(client);
        if (target >= 0)
            close(target);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(target, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pair->fds[0] = client;
    pair->fds[1] = target;
    for (int side = 0; side < 2; side++)
        pair->flows[side].data = malloc(CHUNK_BYTES);
}

static void corrupt(struct proxy *proxy, struct flow *flow, size_t len)
{
    uint64_t every = atomic_load(&proxy->corrupt_every);
    for (size_t i = 0; i < len; i++) {
        uint64_t at = flow->total + i;
        if (at >= CLEAN_BYTES && at % every == every - 1)
            flow->data[i] ^= 0x04;
    }
}

/* false: the connection is over. */
static bool move(struct proxy *proxy, struct pair *pair, int side)
{
    struct flow *flow = &pair->flows[side];
    enum proxy_mode mode = (enum proxy_mode)atomic_load(&proxy->mode);

    if (flow->len == 0 && !flow->is_at_end) {
        ssize_t n = recv(pair->fds[side], flow->data, CHUNK_BYTES, MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0) {
            flow->is_at_end = true;
            shutdown(pair->fds[1 - side], SHUT_WR);
            return !pair->flows[1 - side].is_at_end;
        }
        if (side == 1 && mode == PROXY_CORRUPT)
            corrupt(proxy, flow, (size_t)n);
        flow->len = (size_t)n;
        flow->sent = 0;
        flow->total += (uint64_t)n;
    }
    while (flow->sent < flow->len) {
        size_t want = mode == PROXY_TRICKLE ? 1 : flow->len - flow->sent;
        ssize_t n = send(pair->fds[1 - side], flow->data + flow->sent, want, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        flow->sent += (size_t)n;
        if (side == 1)
            atomic_fetch_add(&proxy->bytes, (uint64_t)n);
    }
    flow->len = 0;
    return true;
}

static void *proxy_run(void *arg)
{
    struct proxy *proxy = arg;
    struct pollfd fds[1 + 2 * MAX_PAIRS];

    while (!atomic_load(&proxy->is_ending)) {
        enum proxy_mode mode = (enum proxy_mode)atomic_load(&proxy->mode);
        fds[0] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
        for (size_t i = 0; i < MAX_PAIRS; i++)
            for (size_t side = 0; side < 2; side++) {
                struct pair *pair = &proxy->pairs[i];
                short events = 0;
                if (mode != PROXY_STALL) {
                    if (pair->flows[side].len == 0 && !pair->flows[side].is_at_end)
                        events |= POLLIN;
                    if (pair->flows[1 - side].len > 0)
                        events |= POLLOUT;
                }
                fds[1 + 2 * i + side] = (struct pollfd){.fd = events ? pair->fds[side] : -1, .events = events};
            }
        /* The timeout is how soon a change of mode is seen. */
        poll(fds, 1 + 2 * MAX_PAIRS, 20);
        if (fds[0].revents)
            accept_one(proxy);
        for (size_t i = 0; i < MAX_PAIRS; i++) {
            struct pair *pair = &proxy->pairs[i];
            if (pair->fds[0] < 0)
                continue;
            if (mode == PROXY_CUT)
                pair_close(pair, true);
            else if (mode != PROXY_STALL && (!move(proxy, pair, 0) || !move(proxy, pair, 1)))
                pair_close(pair, false);
        }
    }
    for (size_t i = 0; i < MAX_PAIRS; i++)
        if (proxy->pairs[i].fds[0] >= 0)
            pair_close(&proxy->pairs[i], false);
    return NULL;
}

struct proxy *proxy_create(const char *target, enum proxy_mode mode)
{
    struct proxy *proxy = calloc(1, sizeof *proxy);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char host[INET_ADDRSTRLEN];
    unsigned port;

    assert_non_null(proxy);
    assert_int_equal(sscanf(target, "%15[0-9.]:%u", host, &port), 2);
    proxy->target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, host, &proxy->target.sin_addr), 1);
    for (size_t i = 0; i < MAX_PAIRS; i++)
        proxy->pairs[i].fds[0] = proxy->pairs[i].fds[1] = -1;
    atomic_init(&proxy->mode, mode);
    atomic_init(&proxy->corrupt_every, 65536);
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(proxy->listener >= 0);
    assert_int_equal(bind(proxy->listener, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(proxy->listener, 128), 0);
    assert_int_equal(getsockname(proxy->listener, (struct sockaddr *)&addr, &len), 0);
    snprintf(proxy->address, sizeof proxy->address, "127.0.0.1:%u", ntohs(addr.sin_port));
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_run, proxy), 0);
    return proxy;
}

void proxy_destroy(struct proxy *proxy)
{
    if (!proxy)
        return;
    atomic_store(&proxy->is_ending, true);
    pthread_join(proxy->thread, NULL);
    close(proxy->listener);
    free(proxy);
}

const char *proxy_address(const struct proxy *proxy)
{
    return proxy->address;
}

void proxy_set_mode(struct proxy *proxy, enum proxy_mode mode)
{
    atomic_store(&proxy->mode, (int)mode);
}

void proxy_set_corrupt_every(struct proxy *proxy, uint64_t bytes)
{
    atomic_store(&proxy->corrupt_every, bytes);
}

unsigned proxy_connections(const struct proxy *proxy)
{
    return atomic_load(&proxy->connections);
}

uint64_t proxy_bytes(const struct proxy *proxy)
{
    return atomic_load(&proxy->bytes);
}
