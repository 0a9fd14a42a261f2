/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/upload.h"

#include <assert.h>

/* All static functions run under the mutex. */

static void enter(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    turn->state = UPLOAD_SENDING;
    turn->moved_ms = now_ms;
    scheduler->used++;
    list_push_back(&scheduler->sending, &turn->node);
}

static void leave(struct upload_scheduler *scheduler, struct upload_turn *turn)
{
    if (turn->state == UPLOAD_SENDING)
        scheduler->used--;
    list_remove(&turn->node);
    list_remove(&turn->granted_node);
    turn->state = UPLOAD_IDLE;
}

static void grant(struct upload_scheduler *scheduler, int64_t now_ms)
{
    struct list_node *node;

    while (scheduler->used < scheduler->slots && (node = list_pop_front(&scheduler->waiting))) {
        struct upload_turn *turn = container_of(node, struct upload_turn, node);
        struct upload_group *group = turn->group;

        turn->begun_ms = now_ms;
        enter(scheduler, turn, now_ms);
        list_push_back(&group->granted, &turn->granted_node);
        if (!group->is_posted) {
            group->is_posted = true;
            group->post(group->arg);
        }
    }
}

static void queue_up(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    turn->state = UPLOAD_WAITING;
    list_push_back(&scheduler->waiting, &turn->node);
    scheduler->wait_count++;
    grant(scheduler, now_ms);
}

/* A lent slot is taken back, also beyond the number of slots: then the next grant waits a little longer. */
static void take_back(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    if (turn->state == UPLOAD_LENT)
        enter(scheduler, turn, now_ms);
}

/* --- interface --- */

void upload_init(struct upload_scheduler *scheduler, unsigned slots)
{
    *scheduler = (struct upload_scheduler){.slots = slots ? slots : UPLOAD_SLOTS_DEFAULT};
    mutex_init(&scheduler->mutex, RANK_TRANSPORT);
    list_init(&scheduler->waiting);
    list_init(&scheduler->sending);
}

void upload_release(struct upload_scheduler *scheduler)
{
    assert(list_is_empty(&scheduler->waiting) && list_is_empty(&scheduler->sending));
    mutex_release(&scheduler->mutex);
}

void upload_group_init(struct upload_group *group, void (*post)(void *arg), void *arg)
{
    *group = (struct upload_group){.post = post, .arg = arg};
    list_init(&group->granted);
}

void upload_turn_init(struct upload_turn *turn, struct upload_group *group)
{
    *turn = (struct upload_turn){.group = group, .state = UPLOAD_IDLE};
    list_node_init(&turn->node);
    list_node_init(&turn->granted_node);
}

bool upload_wants(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    bool may_send;

    mutex_lock(&scheduler->mutex);
    if (turn->state == UPLOAD_IDLE) {
        if (scheduler->used < scheduler->slots && list_is_empty(&scheduler->waiting)) {
            turn->begun_ms = now_ms;
            enter(scheduler, turn, now_ms);
        } else {
            queue_up(scheduler, turn, now_ms);
        }
    }
    may_send = turn->state != UPLOAD_WAITING;
    mutex_unlock(&scheduler->mutex);
    return may_send;
}

bool upload_moved(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    bool is_over = false;

    mutex_lock(&scheduler->mutex);
    take_back(scheduler, turn, now_ms);
    if (turn->state == UPLOAD_SENDING) {
        turn->moved_ms = now_ms;
        is_over = now_ms - turn->begun_ms >= UPLOAD_TURN_MS && !list_is_empty(&scheduler->waiting);
        if (is_over) {
            leave(scheduler, turn);
            queue_up(scheduler, turn, now_ms);
            is_over = turn->state == UPLOAD_WAITING;
        }
    }
    mutex_unlock(&scheduler->mutex);
    return !is_over;
}

void upload_excuse(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t until_ms)
{
    mutex_lock(&scheduler->mutex);
    if (turn->moved_ms < until_ms)
        turn->moved_ms = until_ms;
    mutex_unlock(&scheduler->mutex);
}

bool upload_sent(struct upload_scheduler *scheduler, struct upload_turn *turn, bool wants_more, int64_t now_ms)
{
    bool may_send;

    mutex_lock(&scheduler->mutex);
    if (!wants_more) {
        leave(scheduler, turn);
        grant(scheduler, now_ms);
    } else if (turn->state != UPLOAD_WAITING) {
        take_back(scheduler, turn, now_ms);
        if (list_is_empty(&scheduler->waiting)) {
            turn->begun_ms = turn->moved_ms = now_ms;
        } else {
            leave(scheduler, turn);
            queue_up(scheduler, turn, now_ms);
        }
    }
    may_send = turn->state == UPLOAD_SENDING;
    mutex_unlock(&scheduler->mutex);
    return may_send;
}

void upload_leave(struct upload_scheduler *scheduler, struct upload_turn *turn, int64_t now_ms)
{
    mutex_lock(&scheduler->mutex);
    leave(scheduler, turn);
    grant(scheduler, now_ms);
    mutex_unlock(&scheduler->mutex);
}

struct upload_turn *upload_take_granted(struct upload_scheduler *scheduler, struct upload_group *group)
{
    struct list_node *node;

    mutex_lock(&scheduler->mutex);
    node = list_pop_front(&group->granted);
    if (!node)
        group->is_posted = false;
    mutex_unlock(&scheduler->mutex);
    return node ? container_of(node, struct upload_turn, granted_node) : NULL;
}

bool upload_is_waiting(struct upload_scheduler *scheduler, const struct upload_turn *turn)
{
    bool is_waiting;

    mutex_lock(&scheduler->mutex);
    is_waiting = turn->state == UPLOAD_WAITING;
    mutex_unlock(&scheduler->mutex);
    return is_waiting;
}

bool upload_is_contended(struct upload_scheduler *scheduler)
{
    bool is_contended;

    mutex_lock(&scheduler->mutex);
    is_contended = !list_is_empty(&scheduler->waiting);
    mutex_unlock(&scheduler->mutex);
    return is_contended;
}

bool upload_lend_stalled(struct upload_scheduler *scheduler, int64_t now_ms)
{
    bool is_waited_for;

    mutex_lock(&scheduler->mutex);
    if (!list_is_empty(&scheduler->waiting)) {
        LIST_FOR_EACH_SAFE (turn, &scheduler->sending, struct upload_turn, node) {
            if (now_ms - turn->moved_ms < UPLOAD_STALL_MS)
                continue;
            list_remove(&turn->node);
            turn->state = UPLOAD_LENT;
            scheduler->used--;
            scheduler->lend_count++;
        }
        grant(scheduler, now_ms);
    }
    is_waited_for = !list_is_empty(&scheduler->waiting);
    mutex_unlock(&scheduler->mutex);
    return is_waited_for;
}

void upload_counters(struct upload_scheduler *scheduler, uint64_t *waits_out, uint64_t *lends_out)
{
    mutex_lock(&scheduler->mutex);
    *waits_out = scheduler->wait_count;
    *lends_out = scheduler->lend_count;
    mutex_unlock(&scheduler->mutex);
}
