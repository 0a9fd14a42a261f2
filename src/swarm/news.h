/* SPDX-License-Identifier: Apache-2.0 */
/* When a node tells others that it has more pieces. Pure logic, as swarm.h.
 *
 * Telling costs a message to each listener. News go out as soon as they cost no more than a small share of the bytes
 * they are about, so that a swarm of any size, on links of any speed, spends that share; at the latest after
 * NEWS_DELAY_MAX_MS. Urgent ones (few nodes have the piece, so much depends on it being passed on) go out almost at
 * once, on credit that the others pay back by waiting. */
#ifndef SHOAL_SWARM_NEWS_H
#define SHOAL_SWARM_NEWS_H

#include <stdbool.h>
#include <stdint.h>

#define NEWS_DELAY_MAX_MS 100
#define NEWS_BATCH_MAX 64u /* pieces that are told at once */

/* Zeroed memory is a valid beginning. */
struct swarm_news {
    int64_t budget_bytes; /* negative: on credit */
    uint32_t pending;     /* pieces that have not been told */
    int64_t due_ms;       /* when they are to be; with pending > 0 */
};

/* One more piece of piece_bytes. Returns due_ms; in the past or now: at once. */
int64_t swarm_news_add(struct swarm_news *news, uint64_t piece_bytes, uint32_t listeners, bool is_urgent,
                       int64_t now_ms);
/* All have been told. */
void swarm_news_told(struct swarm_news *news, uint32_t listeners);

#endif
