/* SPDX-License-Identifier: Apache-2.0 */
/* Upload slots: who of the peers is sent to now. A node that sends to everybody at once gives each of them little, and
 * nobody has something to pass on; so only a few connections are sent to at a time, and the others wait their turn.
 *
 * A turn is one body, or UPLOAD_TURN_MS of a longer one; after it the connection queues up again behind the others. A
 * connection that takes nothing for UPLOAD_STALL_MS keeps its turn, but its slot is lent to the next one until it
 * moves again: a peer that has stopped costs the others nothing.
 *
 * Time is an argument. All functions may be called from any thread; a turn by one thread at a time. */
#ifndef SHOAL_TRANSPORT_UPLOAD_H
#define SHOAL_TRANSPORT_UPLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/mutex.h"

#define UPLOAD_SLOTS_DEFAULT 4
#define UPLOAD_STALL_MS 250
#define UPLOAD_TURN_MS 2000

enum upload_state {
    UPLOAD_IDLE,    /* wants nothing */
    UPLOAD_WAITING, /* in the queue */
    UPLOAD_SENDING, /* has a slot */
    UPLOAD_LENT,    /* may send, but does not move: its slot is another's */
};

/* The turns of one thread. post is called, with the scheduler locked, when one of them was granted, and then not again
 * before upload_take_granted has said that there is none left; it may only pass the word on to the thread. */
struct upload_group {
    void (*post)(void *arg);
    void *arg;
    struct list granted; /* upload_turn.granted_node */
    bool is_posted;
};

/* One connection; zeroed by upload_turn_init. */
struct upload_turn {
    struct upload_group *group; /* borrowed */
    struct list_node node;      /* in the list of its state */
    struct list_node granted_node;
    enum upload_state state;
    int64_t begun_ms, moved_ms; /* of the turn */
};

struct upload_scheduler {
    struct mutex mutex; /* RANK_TRANSPORT: guards everything here and in the turns */
    unsigned slots, used;
    struct list waiting, sending;
    uint64_t wait_count, lend_count;
};

/* slots 0: the default. */
void upload_init(struct upload_scheduler *scheduler, unsigned slots);
void upload_release(struct upload_scheduler *scheduler);
void upload_group_init(struct upload_group *group, void (*post)(void *arg), void *arg);
void upload_turn_init(struct upload_turn *turn, struct upload_group *group);

/* true: it may send. false: it is in the queue (now, or was before); its group hears of the grant. */
bool upload_wants(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms);
/* Its peer has taken bytes. false: the turn has lasted long enough for the others, it is in the queue again. */
bool upload_moved(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms);
/* Until then it is not the peer's fault that nothing moves. */
void upload_excuse(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t until_ms);
/* A body is out. true: it may send the next one at once. false: it waits in the queue, or wanted no more. */
bool upload_sent(struct upload_scheduler *scheduler, struct upload_turn *turn, bool wants_more, int64_t now_ms);
/* Gives back what it has. */
void upload_leave(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms);
/* The next turn of the group that was granted since; NULL: none. */
struct upload_turn *upload_take_granted(struct upload_scheduler *scheduler, struct upload_group *group);
bool upload_is_waiting(struct upload_scheduler *scheduler, const struct upload_turn *turn);
/* Somebody waits for a slot. */
bool upload_is_contended(struct upload_scheduler *scheduler);
/* Lends the slots of those who do not move. Returns whether somebody waits still: then call it again soon. */
bool upload_lend_stalled(struct upload_scheduler *scheduler, int64_t now_ms);
/* Totals: turns that had to wait, slots that were lent. */
void upload_counters(struct upload_scheduler *scheduler, uint64_t *waits_out, uint64_t *lends_out);

#endif
