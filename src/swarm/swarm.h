/* SPDX-License-Identifier: Apache-2.0 */
/* Which piece from which source: the schedule of one pull. Pure logic: no I/O, no clock of its own, no locks; the same
 * code runs in production and under a simulated clock. The caller tells it what happens and does what swarm_next says.
 *
 * Choice: sources that are replicas before the gold one, so that the gold's bandwidth goes to pieces that nobody else
 * has; among a source's pieces the rarest of a random sample (BitTorrent's rarest first, Cohen 2003; sampling keeps a
 * choice O(1) for any number of pieces). Each source has a window of bytes in flight. A piece in flight at a source
 * that stopped delivering is taken back when another source can serve it. */
#ifndef SHOAL_SWARM_SWARM_H
#define SHOAL_SWARM_SWARM_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

#define SWARM_SOURCES_MAX 256
#define SWARM_NONE UINT32_MAX

struct swarm;

struct swarm_config {
    uint32_t piece_count;
    uint64_t piece_bytes;   /* nominal size, for the windows */
    uint64_t window_bytes;  /* in flight per source; 0: 8 MiB */
    uint32_t window_pieces; /* at most, in flight per source; 0: 256 */
    int64_t stall_ms;       /* a source that delivers nothing for so long, and for much longer than pieces
                             * usually take, loses its pieces to others; 0: 2000 */
    uint64_t seed;
};

/* NO_MEMORY. */
enum shoal_status swarm_create(const struct swarm_config *config, struct swarm **swarm_out);
void swarm_destroy(struct swarm *swarm); /* NULL is allowed */

/* Returns the source's number (reused after removal), SWARM_NONE: too many or out of memory. It has no piece yet. */
uint32_t swarm_source_add(struct swarm *swarm, bool is_gold);
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

/* A piece in flight that should be canceled because its source stalls and another could serve it now. The source is
 * avoided for a while. The caller cancels and reports swarm_failed, or swarm_done if
 * it arrives all the same. Each piece is named once. false: none (left). */
bool swarm_next_stalled(struct swarm *swarm, int64_t now_ms, uint32_t *source_out, uint32_t *piece_out);

uint32_t swarm_missing_count(const struct swarm *swarm); /* neither here nor in flight */
uint32_t swarm_in_flight_count(const struct swarm *swarm);
uint32_t swarm_done_count(const struct swarm *swarm);
bool swarm_is_complete(const struct swarm *swarm);
/* Whether some source, avoided or not, has some missing piece. */
bool swarm_has_candidates(const struct swarm *swarm);

#endif
