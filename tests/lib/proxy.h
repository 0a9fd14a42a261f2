/* SPDX-License-Identifier: Apache-2.0 */
/* A TCP relay on loopback, with a thread of its own, that misbehaves on request. */
#ifndef SHOAL_TESTS_LIB_PROXY_H
#define SHOAL_TESTS_LIB_PROXY_H

#include <stdint.h>

enum proxy_mode {
    PROXY_FORWARD, /* passes everything on */
    PROXY_STALL,   /* accepts, keeps connections open and passes nothing on */
    PROXY_TRICKLE, /* passes on one byte at a time, each in a packet of its own */
    PROXY_CORRUPT, /* flips a bit in every corrupt_every-th byte that comes from the target, after the first 4 KiB */
    PROXY_CUT,     /* resets every connection, also each new one */
};

struct proxy;

/* target: "127.0.0.1:PORT" of the real server. Fails the running test if it cannot be made. */
struct proxy *proxy_create(const char *target, enum proxy_mode mode);
void proxy_destroy(struct proxy *proxy); /* NULL is allowed */

/* "127.0.0.1:PORT" to connect to. */
const char *proxy_address(const struct proxy *proxy);
void proxy_set_mode(struct proxy *proxy, enum proxy_mode mode);
void proxy_set_corrupt_every(struct proxy *proxy, uint64_t bytes);

/* Accepted so far; bytes passed on from the target so far. */
unsigned proxy_connections(const struct proxy *proxy);
uint64_t proxy_bytes(const struct proxy *proxy);

#endif
