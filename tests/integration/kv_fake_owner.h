/* SPDX-License-Identifier: Apache-2.0 */
/* An owner that does what a test wants: the methods of wire/kv.proto over values in one block of memory. */
#ifndef SHOAL_TESTS_KV_FAKE_OWNER_H
#define SHOAL_TESTS_KV_FAKE_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "kv/peer.h"
#include "rpc/rpc.h"

enum fake_lie {
    FAKE_HONEST,
    FAKE_OTHER_OBJECT,     /* answers about another object */
    FAKE_LONG_INLINE,      /* an inline value longer than it says */
    FAKE_WRITTEN,          /* says that it wrote without being asked to */
    FAKE_WRITTEN_TOO_MUCH, /* more than there is room for */
    FAKE_WIDE_PIN,         /* pins more than the value has */
    FAKE_GARBAGE,          /* no message at all */
    FAKE_FEWER_ITEMS,      /* an answer with one item less */
    FAKE_BAD_STATUS,       /* a status that is none */
    FAKE_ONLY_TELLS,       /* never hands anything out */
};

struct fake_value {
    char key[64];
    uint64_t object_id, len, offset; /* in arena */
    bool is_removed, is_held;
};

struct fake_owner {
    struct shoal_engine *engine; /* owned */
    struct rpc *rpc;             /* owned */
    uint8_t *arena;              /* owned */
    uint64_t arena_bytes, arena_used, arena_key;

    /* the test's to set */
    atomic_int lie;
    atomic_bool cannot_reach; /* answers UNREACHABLE instead of doing a transfer */
    atomic_bool forgets;      /* leases, at the first renewal */
    atomic_uint lease_ms, inline_limit, pin_max_bytes;

    /* the loop's */
    struct fake_value values[1024];
    size_t count;
    uint64_t next_id;

    atomic_uint jobs, requests, inlined, transfers, pins, unpins, renewals, revokes, commits;
};

void fake_owner_start(struct fake_owner *owner, uint64_t arena_bytes, uint64_t upload_limit_bytes_per_s);
/* What is going on ends with an error for those who wait. */
void fake_owner_stop(struct fake_owner *owner);
struct peer_address fake_owner_address(const struct fake_owner *owner);
/* Before or between calls: a value with the content of seed. */
struct fake_value *fake_owner_add(struct fake_owner *owner, const char *key, uint64_t len, uint64_t seed);
/* -1: it has that content. Between calls. */
int64_t fake_owner_difference(const struct fake_owner *owner, const char *key, uint64_t len, uint64_t seed);

#endif
