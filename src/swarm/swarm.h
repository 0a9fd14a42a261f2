/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of the swarm: which piece from which source, for one pull. Pure logic: no I/O, no clock of its
 * own, no locks; the same code runs in production and in bench/swarm_sim.c. The caller tells it what happens and does
 * what swarm_next and swarm_next_claim say.
 *
 * A piece is requested within a slot that its source has granted (handout.h); the receiver claims slots wherever it
 * could use them and gets them where there is capacity. Which piece: a source that had the whole payload when the pull
 * met it says so, in order that it gives each piece to one receiver before it repeats any; from others the receiver
 * chooses the rarest of a random sample of what they offer (BitTorrent's rarest first, Cohen 2003; sampling keeps a
 * choice O(1) for any number of pieces).
 *
 * What is in flight is bounded over all sources by the rate of the pull (bandwidth times a target delay): every piece
 * that is asked for earlier than needed waits in some source's queue before the pieces of others. */
#ifndef SHOAL_SWARM_SWARM_H
#define SHOAL_SWARM_SWARM_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#define SWARM_SOURCES_MAX 256
#define SWARM_NONE UINT32_MAX
#define SWARM_CLAIM_MAX 256u /* pieces of one claim */
/* In flight over all sources at least, however slow the links are; and at least so many pieces. From bench/swarm_sim.c:
 * fewer leave sources idle, more make pieces wait in queues. */
#define SWARM_WINDOW_MIN_BYTES (10u * 256 << 10)
#define SWARM_WINDOW_MIN_PIECES 10u

struct swarm;

struct swarm_config {
    uint32_t piece_count;
    uint64_t piece_bytes;      /* nominal size, for the window */
    uint64_t window_max_bytes; /* in flight over all sources at most; 0: 16 MiB */
    int64_t stall_ms;          /* a source that delivers nothing for so long, and for much longer than pieces
                                * usually take, loses its pieces to others; 0: 2000 */
    uint64_t seed;
};

/* NO_MEMORY. */
enum shoal_status swarm_create(const struct swarm_config *config, struct swarm **swarm_out);
void swarm_destroy(struct swarm *swarm); /* NULL is allowed */

/* Returns the source's number (reused after removal), SWARM_NONE: too many or out of memory. It has no piece yet.
 * is_complete: it has every piece already, and will choose pieces for us. */
uint32_t swarm_source_add(struct swarm *swarm, bool is_complete);
/* Its pieces in flight become missing again; reports about them afterwards are the caller's error. */
void swarm_source_remove(struct swarm *swarm, uint32_t source);
/* It has every piece, except those it was said to lack. */
void swarm_source_has_all(struct swarm *swarm, uint32_t source);
/* false: no such piece, or out of memory. Repeating is harmless. */
bool swarm_source_has(struct swarm *swarm, uint32_t source, uint32_t piece);
/* Never ask it for this piece again (it served wrong bytes). */
void swarm_source_lacks(struct swarm *swarm, uint32_t source, uint32_t piece);
/* Nothing is asked of it before until_ms. */
void swarm_source_avoid(struct swarm *swarm, uint32_t source, int64_t until_ms);

/* The piece is here already, from no source. Only a missing piece becomes done. */
void swarm_have(struct swarm *swarm, uint32_t piece);

/* Next piece to request, now in flight. false: nothing to do until something is reported or time passes. */
bool swarm_next(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out);
/* The piece arrived and is verified. */
void swarm_done(struct swarm *swarm, uint32_t source, uint32_t piece, int64_t now_ms);
/* It did not; it is missing again. */
void swarm_failed(struct swarm *swarm, uint32_t source, uint32_t piece);

/* A source that should be told how many of its slots are in use (outstanding) and, if wanted > 0, asked for that many
 * more. One claim at a time per source: it ends with swarm_claimed. false: none to be made now. */
bool swarm_next_claim(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *wanted_out,
                      uint32_t *outstanding_out);
/* For the claim: pieces that this receiver has or gets from others, of which the source has to know and has not been
 * told. Fills at most max; the caller must deliver them. */
uint32_t swarm_taken(struct swarm *swarm, uint32_t source, uint32_t *pieces_out, uint32_t max);
/* The answer: slots granted (may be 0: not now) and the pieces that the source has chosen for some of them. false: the
 * answer is nonsense (no such piece, more slots than were wanted, more pieces than slots), and nothing was noted. */
bool swarm_claimed(struct swarm *swarm, uint32_t source, uint32_t slots, const uint32_t *pieces, uint32_t count);

/* A piece in flight that should be canceled because its source stalls, or is slow when nothing else is left to be asked
 * for, and another could serve it now. A stalled source is avoided for a while. The caller cancels and reports
 * swarm_failed, or swarm_done if it arrives all the same. Each piece is named once. false: none (left). */
bool swarm_next_stalled(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out);

/* Whether others should hear soon that the piece is here (news.h): few of the sources known here have it, or it is one
 * of the last, and whoever waits for those has nothing else to do. */
bool swarm_is_urgent(const struct swarm *swarm, uint32_t piece);
uint32_t swarm_missing_count(const struct swarm *swarm); /* neither here nor in flight */
uint32_t swarm_in_flight_count(const struct swarm *swarm);
uint32_t swarm_done_count(const struct swarm *swarm);
bool swarm_is_complete(const struct swarm *swarm);
/* Whether some source, avoided or not, has some missing piece. */
bool swarm_has_candidates(const struct swarm *swarm);

#endif
