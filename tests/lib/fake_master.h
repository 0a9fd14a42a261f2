/* SPDX-License-Identifier: Apache-2.0 */
/* A master that does what a test tells it: answers late, wrongly, or not at all; and remembers what it was told. */
#ifndef SHOAL_TESTS_LIB_FAKE_MASTER_H
#define SHOAL_TESTS_LIB_FAKE_MASTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "kv/session.h"
#include "rpc/rpc.h"

#define FAKE_WAIT_MS 60000
#define FAKE_ENTRIES_MAX 65536

enum fake_manner {
    FAKE_ANSWERS,
    FAKE_HOLDS,       /* keeps requests until fake_master_release */
    FAKE_GARBAGE,     /* bytes that are no message */
    FAKE_WRONG_COUNT, /* one status too few */
    FAKE_REFUSES,     /* with refusal and refusal_text */
};

struct fake_entry {
    Shoal__Wire__MasterAnnounceRequest__Kind kind;
    uint64_t object_id;
    unsigned request; /* number of the announcement it came with */
    char key[64];     /* its beginning */
};

struct fake_master {
    struct loop *loop;
    struct endpoint *endpoint;
    struct rpc *rpc;
    uint16_t port;
    char address[64];

    struct mutex mutex; /* RANK_STORE: guards everything below */
    struct cond changed;
    uint64_t instance;
    uint32_t ttl_ms, heartbeat_ms;
    enum fake_manner manner[16]; /* by method */
    bool is_short_of_memory;     /* announcements are carried out, but there is none for the answer */
    enum shoal_status refusal;
    char refusal_text[128];
    struct map answers; /* key -> (void *)(intptr_t)-status of its announcement; else OK */
    struct list held;   /* struct rpc_request */

    unsigned registrations, heartbeats, goodbyes, announcements, lasts, lookups, asked_keys;
    uint64_t drops_done, object_count;
    struct fake_entry *entries;
    size_t entry_count;
    /* what heartbeats bring */
    Shoal__Wire__MasterDrop *drops[16];
    size_t drop_count;
    Shoal__Wire__MasterTarget *targets[16];
    size_t target_count;
};

void fake_master_init(struct fake_master *master, uint64_t instance);
void fake_master_release(struct fake_master *master);
/* Closes everything as a killed process does; what it remembers stays. */
void fake_master_kill(struct fake_master *master);
/* Lives again at the same port, as another instance. */
void fake_master_revive(struct fake_master *master);

void fake_master_set_manner(struct fake_master *master, enum master_method method, enum fake_manner manner);
void fake_master_refuse(struct fake_master *master, enum master_method method, enum shoal_status status,
                        const char *text);
void fake_master_set_short_of_memory(struct fake_master *master, bool is_short);
void fake_master_set_answer(struct fake_master *master, const char *key, enum shoal_status status);
/* Answers what is held, in the order of arrival, and from now on. */
void fake_master_answer_held(struct fake_master *master, enum master_method method);

/* Blocks until *counter (a field of master) is at least that much. */
void fake_master_wait(struct fake_master *master, const unsigned *counter, unsigned at_least);
void fake_master_wait_held(struct fake_master *master, size_t at_least);
unsigned fake_master_read(struct fake_master *master, const unsigned *counter);
/* How often that object was announced as that kind. */
size_t fake_master_count(struct fake_master *master, Shoal__Wire__MasterAnnounceRequest__Kind kind, const char *key,
                         uint64_t object_id);
void fake_master_wait_entry(struct fake_master *master, Shoal__Wire__MasterAnnounceRequest__Kind kind, const char *key,
                            uint64_t object_id);

#endif
