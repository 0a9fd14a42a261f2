/* SPDX-License-Identifier: Apache-2.0 */
#include "stranger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_S 60

void stranger_be_patient(int fd)
{
    struct timeval patience = {.tv_sec = PATIENCE_S};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
}

int stranger_dial(uint16_t port)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    stranger_be_patient(fd);
    return fd;
}

struct hello stranger_hello(enum hello_channel channel)
{
    return (struct hello){.version = HELLO_VERSION,
                          .channel = (uint8_t)channel,
                          .instance = 4711,
                          .name = "stranger:1",
                          .cluster = "default"};
}

void stranger_send_hello(int fd, const struct hello *hello)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len = hello_encode(hello, frame);

    assert_int_equal(send(fd, frame, len, MSG_NOSIGNAL), len);
}

bool stranger_receive_hello(int fd, struct hello *hello_out)
{
    uint8_t frame[HELLO_MAX_BYTES];
    size_t len;

    if (recv(fd, frame, HELLO_PREFIX_BYTES, MSG_WAITALL) != HELLO_PREFIX_BYTES || hello_frame_len(frame, &len))
        return false;
    return recv(fd, frame + HELLO_PREFIX_BYTES, len - HELLO_PREFIX_BYTES, MSG_WAITALL) ==
               (ssize_t)(len - HELLO_PREFIX_BYTES) &&
           hello_decode(frame, len, hello_out) == SHOAL_OK;
}

struct hello stranger_shake(int fd, const struct hello *hello)
{
    struct hello answer;

    stranger_send_hello(fd, hello);
    assert_true(stranger_receive_hello(fd, &answer));
    return answer;
}

int stranger_join(uint16_t port, const struct hello *hello)
{
    int fd = stranger_dial(port);

    assert_int_equal(stranger_shake(fd, hello).verdict, HELLO_ACCEPT);
    return fd;
}

void stranger_expect_end(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);

    assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
    close(fd);
}

static void *hang_up(void *arg)
{
    struct stranger_local *local = arg;
    int fd;

    while ((fd = accept(local->listener, NULL, NULL)) >= 0)
        close(fd);
    return NULL;
}

void stranger_local_start(struct stranger_local *local, uint64_t instance)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "shoal-%016llx", (unsigned long long)instance);

    local->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(local->listener >= 0);
    assert_int_equal(bind(local->listener, (const struct sockaddr *)&name,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)),
                     0);
    assert_int_equal(listen(local->listener, 8), 0);
    assert_int_equal(pthread_create(&local->thread, NULL, hang_up, local), 0);
}

void stranger_local_stop(struct stranger_local *local)
{
    shutdown(local->listener, SHUT_RDWR);
    pthread_join(local->thread, NULL);
    close(local->listener);
}
