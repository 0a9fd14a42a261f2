/* SPDX-License-Identifier: Apache-2.0 */
/* The helpers that integration tests rely on must notice what they are there for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "content.h"
#include "guarded.h"
#include "proxy.h"

static void content_is_the_same_at_any_offset(void **state)
{
    (void)state;
    uint8_t whole[1000], part[1000];
    content_fill(whole, sizeof whole, 7, 0);
    for (size_t at = 0; at < 40; at++)
        for (size_t len = 0; len < 40; len++) {
            content_fill(part, len, 7, at);
            assert_memory_equal(part, whole + at, len);
            assert_int_equal(content_find_difference(whole + at, len, 7, at), -1);
        }
    content_fill(part, sizeof part, 8, 0);
    assert_memory_not_equal(part, whole, 16);
    whole[513] ^= 1;
    assert_int_equal(content_find_difference(whole, sizeof whole, 7, 0), 513);
    memset(part, 0, sizeof part);
    assert_int_equal(content_find_difference(part, sizeof part, 0, 12345), -1);
}

static void guarded_notices_an_underrun(void **state)
{
    (void)state;
    struct guarded guarded;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_true(guarded_init(&guarded, sizes[i]));
        memset(guarded.data, 0, guarded.len);
        assert_true(guarded_is_intact(&guarded));
        guarded.data[-1] = 0;
        assert_false(guarded_is_intact(&guarded));
        guarded_release(&guarded);
        guarded_release(&guarded);
    }
}

/* A server that sends content of seed 3 to its first client and ends. */
#define SERVED_BYTES 300000
static void *serve(void *arg)
{
    int listener = *(int *)arg, fd = accept(listener, NULL, NULL);
    uint8_t *bytes = malloc(SERVED_BYTES);
    content_fill(bytes, SERVED_BYTES, 3, 0);
    for (size_t sent = 0; sent < SERVED_BYTES;) {
        ssize_t n = send(fd, bytes + sent, SERVED_BYTES - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        sent += (size_t)n;
    }
    free(bytes);
    close(fd);
    return NULL;
}

/* Bytes that come through the proxy, in a buffer of SERVED_BYTES. */
static size_t receive_through(const struct proxy *proxy, uint8_t *into, int patience_ms)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned port;
    size_t len = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(sscanf(proxy_address(proxy), "127.0.0.1:%u", &port), 1);
    addr.sin_port = htons((uint16_t)port);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    while (len < SERVED_BYTES) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, patience_ms) <= 0)
            break;
        ssize_t n = recv(fd, into + len, SERVED_BYTES - len, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd);
    return len;
}

static size_t try_mode(enum proxy_mode mode, uint8_t *into, int patience_ms)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    char target[32];
    pthread_t thread;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&addr, &len), 0);
    snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(addr.sin_port));
    assert_int_equal(pthread_create(&thread, NULL, serve, &listener), 0);
    struct proxy *proxy = proxy_create(target, mode);
    size_t got = receive_through(proxy, into, patience_ms);
    assert_int_equal(proxy_connections(proxy), 1);
    proxy_destroy(proxy);
    pthread_join(thread, NULL);
    close(listener);
    return got;
}

static void proxy_modes(void **state)
{
    (void)state;
    uint8_t *bytes = calloc(1, SERVED_BYTES);
    assert_int_equal(try_mode(PROXY_FORWARD, bytes, 30000), SERVED_BYTES);
    assert_int_equal(content_find_difference(bytes, SERVED_BYTES, 3, 0), -1);
    assert_int_equal(try_mode(PROXY_TRICKLE, bytes, 30000), SERVED_BYTES);
    assert_int_equal(content_find_difference(bytes, SERVED_BYTES, 3, 0), -1);
    assert_int_equal(try_mode(PROXY_CORRUPT, bytes, 30000), SERVED_BYTES);
    assert_int_equal(content_find_difference(bytes, SERVED_BYTES, 3, 0), 65535);
    assert_int_equal(try_mode(PROXY_STALL, bytes, 200), 0);
    assert_int_equal(try_mode(PROXY_CUT, bytes, 30000), 0);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_is_the_same_at_any_offset),
        cmocka_unit_test(guarded_notices_an_underrun),
        cmocka_unit_test(proxy_modes),
    };
    return cmocka_run_group_tests_name("test_lib", tests, NULL, NULL);
}
