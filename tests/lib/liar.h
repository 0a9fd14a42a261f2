/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that speaks the protocol and does not keep to it: a relay before a real node, with threads of its own. Whoever
 * connects to it meets that node, except for what the lie is about. */
#ifndef SHOAL_TESTS_LIB_LIAR_H
#define SHOAL_TESTS_LIB_LIAR_H

#include <stdint.h>

enum liar_lie {
    LIAR_HONEST,
    /* On data connections: the answer to each READ. */
    LIAR_REFUSES,        /* "there is no such memory" */
    LIAR_IS_SILENT,      /* none */
    LIAR_SENDS_NOISE,    /* bytes, but not those */
    LIAR_ANSWERS_OTHERS, /* DATA for requests that nobody made */
    LIAR_SENDS_MORE,     /* DATA longer than asked for */
    LIAR_GRANTS,         /* permission to write */
    LIAR_ASKS,           /* a READ of its own, on a connection that it did not make */
    /* On control connections: each sync is answered at once, with */
    LIAR_REPEATS,   /* the same piece 65,536 times */
    LIAR_INVENTS,   /* a piece that does not exist */
    LIAR_GOES_BACK, /* a position before the one that was asked for */
    LIAR_JUMPS,     /* a position that the pieces do not lead to */
    LIAR_BABBLES,   /* nothing new, again and again */
    LIAR_SHOUTS,    /* that, and 1,000 answers to calls that nobody made */
    LIAR_BOASTS,    /* that, and status with more pieces than there are */
    /* On control connections: each claim of upload slots is answered at once, with */
    LIAR_DENIES,     /* none, although it has none out */
    LIAR_OVERGRANTS, /* four thousand million */
    LIAR_MISGRANTS,  /* one for a piece that does not exist */
    LIAR_MISCOUNTS,  /* one, and two pieces for it */
    LIAR_MUMBLES,    /* bytes that are no message */
    LIAR_IGNORES,    /* not at all: silence */
    LIAR_LIES_COUNT,
};

struct liar;

/* target: "127.0.0.1:PORT" of the real node. Fails the running test if it cannot be made. */
struct liar *liar_create(const char *target, enum liar_lie lie);
void liar_destroy(struct liar *liar); /* NULL is allowed */

/* "127.0.0.1:PORT" to connect to. */
const char *liar_address(const struct liar *liar);
/* How often it has lied. */
uint64_t liar_count(const struct liar *liar);

#endif
