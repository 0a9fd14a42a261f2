/* SPDX-License-Identifier: Apache-2.0 */
/* The giving half of the swarm: to whom a source gives its upload slots, and which pieces. Pure logic, as swarm.h.
 *
 * A receiver may ask a source for a piece only within a slot that it was granted. Only so many slots are out at a time,
 * so a source serves few receivers at full speed rather than all of them slowly, and a piece is chosen at the moment
 * when it can be served; the other receivers wait in line.
 *
 * A source that had the whole payload from the start also chooses the pieces. It counts, for each piece, how many of
 * the receivers that are here now have it or were given it, and hands out the pieces with the lowest count: every piece
 * once before any piece twice, later the ones that are rarest among the receivers ("super-seeding" of BitTorrent,
 * decided per request). What a receiver that leaves had been given is handed out again. Pieces with count 0 go out in
 * order of the payload (kind to page cache and disk), from a point that differs from source to source. */
#ifndef SHOAL_SWARM_HANDOUT_H
#define SHOAL_SWARM_HANDOUT_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#define HANDOUT_RECEIVERS_MAX 4096u
#define HANDOUT_NONE UINT32_MAX
#define HANDOUT_CLAIM_MAX 256u /* slots of one grant */
/* For notes of which receiver has what. Receivers beyond get slots, and choose the pieces themselves. */
#define HANDOUT_NOTES_MAX_BYTES (64u << 20)

struct handout;

struct handout_config {
    uint32_t piece_count;
    uint64_t piece_bytes; /* nominal size */
    uint32_t slots; /* out at a time, at least; 0: 12 or 3 MiB of pieces, whichever is more. Grows with the rate */
    bool chooses;   /* it has every piece */
    uint64_t seed;
};

/* NO_MEMORY. */
enum shoal_status handout_create(const struct handout_config *config, struct handout **handout_out);
void handout_destroy(struct handout *handout); /* NULL is allowed */

/* Returns the receiver's number (reused after it has left); HANDOUT_NONE: too many or out of memory. */
uint32_t handout_join(struct handout *handout);
void handout_leave(struct handout *handout, uint32_t receiver);

/* The receiver has the piece or is getting it from somebody else. false: no such piece. Repeating is harmless. */
bool handout_taken(struct handout *handout, uint32_t receiver, uint32_t piece);
/* The receiver asks for wanted slots; outstanding of those that it was granted before are still in use. true: the claim
 * waits for handout_next (one per receiver: a new one replaces it). false: it wants none, or has its share and should
 * ask again when less of it is in use. */
bool handout_claim(struct handout *handout, uint32_t receiver, uint32_t wanted, uint32_t outstanding, int64_t now_ms);
/* The receiver does not wait any more. Harmless without a claim. */
void handout_unclaim(struct handout *handout, uint32_t receiver);

struct handout_grant {
    uint32_t receiver, slots;
    uint32_t piece_count; /* at most slots; the receiver uses the other slots for pieces of its choice */
    uint32_t pieces[HANDOUT_CLAIM_MAX];
};
/* The next claim that can be granted, in the order of claims; it has ended with that. false: none now; to be asked
 * again when something has been reported, and every 100 ms while claims wait. */
bool handout_next(struct handout *handout, int64_t now_ms, struct handout_grant *grant_out);

#endif
