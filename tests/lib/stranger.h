/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that a test plays by itself, byte by byte: how it connects, and the handshake of either side. */
#ifndef SHOAL_TESTS_LIB_STRANGER_H
#define SHOAL_TESTS_LIB_STRANGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/hello.h"

/* Connected to 127.0.0.1, and patient. */
int stranger_dial(uint16_t port);
/* From now on recv on that socket waits a minute at most. */
void stranger_be_patient(int fd);

/* Of "stranger:1" in cluster "default". */
struct hello stranger_hello(enum hello_channel channel);
void stranger_send_hello(int fd, const struct hello *hello);
/* false: the connection ended, or something else came. */
bool stranger_receive_hello(int fd, struct hello *hello_out);
/* The dialing side of a handshake. Returns the answer, whatever its verdict is. */
struct hello stranger_shake(int fd, const struct hello *hello);
/* Connected to 127.0.0.1, and accepted. */
int stranger_join(uint16_t port, const struct hello *hello);

/* A local socket under the name of an instance that has none, whose connections are closed as soon as they come. */
struct stranger_local {
    int listener;
    pthread_t thread;
};
void stranger_local_start(struct stranger_local *local, uint64_t instance);
void stranger_local_stop(struct stranger_local *local);

/* The other side closes the connection, and nothing comes before that. Closes fd. */
void stranger_expect_end(int fd);

#endif
