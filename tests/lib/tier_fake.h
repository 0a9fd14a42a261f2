/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of tiers for tests: the real DRAM kind and a STORAGE kind whose disk is memory of this process, both with
 * faults on demand. The fake checks what tier_ops.h demands of the backend, and ends the test when it does not hold. */
#ifndef SHOAL_TESTS_TIER_FAKE_H
#define SHOAL_TESTS_TIER_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "tier/tier_ops.h"

/* For struct backend_options. */
const struct tier_ops *tier_fake_ops(enum tier_type type);

enum tier_fake_op {
    TIER_FAKE_CREATE,
    TIER_FAKE_RECOVER,
    TIER_FAKE_ALLOCATE,
    TIER_FAKE_WRITE,
    TIER_FAKE_SEAL,
    TIER_FAKE_READ,
    TIER_FAKE_PERSIST,
    TIER_FAKE_FORGET, /* durable ones; the others cannot fail */
    TIER_FAKE_OP_COUNT
};

/* The nth call (1: the next one) of op on tiers of that type fails with status, once. nth 0: none does. */
void tier_fake_fail(enum tier_type type, enum tier_fake_op op, unsigned nth, enum shoal_status status);
/* false: the failure asked for last has not happened yet. */
bool tier_fake_has_failed(void);
/* Called in the middle of the next persist, once. */
void tier_fake_in_persist(void (*fn)(void *arg), void *arg);

/* The disk outlives its tiers. */
void tier_fake_disk_clear(void);
unsigned tier_fake_disk_entries(void);
bool tier_fake_disk_has(const char *key, uint64_t object_id);
/* Changes a byte of the key's object. */
bool tier_fake_disk_corrupt(const char *key);

#endif
