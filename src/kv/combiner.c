/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/combiner.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"

#define LANES 64      /* power of two */
#define FLIGHTS_MAX 2 /* of one lane at a time: one is answered while the other one is being made */

enum item_state {
    ITEM_WAITS = 1,
    ITEM_LEADS = 2,   /* its thread carries out the next ones */
    ITEM_TRAVELS = 3, /* another thread carries it out */
    ITEM_DONE = 4,
};

struct lane {
    struct mutex mutex;  /* RANK_KV: guards what follows; run is called without it */
    struct list waiting; /* struct combiner_item */
    unsigned flights;
};

struct combiner {
    size_t max_bytes;
    struct lane lanes[LANES];
};

struct combiner *combiner_create(size_t max_bytes)
{
    struct combiner *combiner = calloc(1, sizeof *combiner);

    if (!combiner)
        return NULL;
    combiner->max_bytes = max_bytes;
    for (size_t i = 0; i < LANES; i++) {
        mutex_init(&combiner->lanes[i].mutex, RANK_KV);
        list_init(&combiner->lanes[i].waiting);
    }
    return combiner;
}

void combiner_destroy(struct combiner *combiner)
{
    if (!combiner)
        return;
    for (size_t i = 0; i < LANES; i++)
        mutex_release(&combiner->lanes[i].mutex);
    free(combiner);
}

/* Who was woken looks without the mutex; what run has done comes with the state (the semaphore orders it, too). */
static void set_state(struct combiner_item *item, enum item_state state)
{
    __atomic_store_n(&item->state, (int)state, __ATOMIC_RELEASE); /* pairs with state_of */
}

static enum item_state state_of(const struct combiner_item *item)
{
    return (enum item_state)__atomic_load_n(&item->state, __ATOMIC_ACQUIRE); /* pairs with set_state */
}

/* Instances are random numbers. */
static struct lane *lane_of(struct combiner *combiner, const struct combiner_item *item)
{
    return &combiner->lanes[(item->target ^ item->target >> 32 ^ item->kind) & (LANES - 1)];
}

/* With the lane's mutex: those that go with the first one. */
static size_t collect(const struct combiner *combiner, struct lane *lane, struct combiner_item *first,
                      struct combiner_item *items[COMBINER_ITEMS_MAX])
{
    size_t count = 0, bytes = first->len_bytes;

    items[count++] = first;
    LIST_FOR_EACH_SAFE (item, &lane->waiting, struct combiner_item, node) {
        if (count == COMBINER_ITEMS_MAX)
            break;
        if (item->target != first->target || item->kind != first->kind || bytes + item->len_bytes > combiner->max_bytes)
            continue;
        list_remove(&item->node);
        set_state(item, ITEM_TRAVELS);
        bytes += item->len_bytes;
        items[count++] = item;
    }
    return count;
}

/* With the lane's mutex: the next one takes the flight over; NULL: nobody waits. */
static struct combiner_item *hand_over(struct lane *lane)
{
    struct list_node *node = list_pop_front(&lane->waiting);
    struct combiner_item *next;

    if (!node) {
        lane->flights--;
        return NULL;
    }
    next = container_of(node, struct combiner_item, node);
    set_state(next, ITEM_LEADS);
    return next;
}

/* Without the mutex, which its thread need not take again. */
static void wake(struct combiner_item *item)
{
    sem_post(&item->turn);
}

/* state: ITEM_LEADS or ITEM_DONE, or ITEM_WAITS after its deadline. */
static void wait_for_turn(struct lane *lane, struct combiner_item *item)
{
    struct timespec until = deadline_timespec(item->deadline_ms);

    while (sem_clockwait(&item->turn, CLOCK_MONOTONIC, &until) != 0) {
        bool is_late;

        if (errno == EINTR)
            continue;
        mutex_lock(&lane->mutex);
        is_late = state_of(item) == ITEM_WAITS;
        if (is_late)
            list_remove(&item->node);
        mutex_unlock(&lane->mutex);
        if (is_late)
            return;
        while (sem_wait(&item->turn) != 0) /* it travels, as long as run takes */
            ;
        return;
    }
}

static void lead(struct combiner *combiner, struct lane *lane, struct combiner_item *item, combiner_run_fn run,
                 void *arg)
{
    struct combiner_item *items[COMBINER_ITEMS_MAX], *next;
    size_t count;

    mutex_lock(&lane->mutex);
    count = collect(combiner, lane, item, items);
    mutex_unlock(&lane->mutex);
    run(arg, items, count);
    mutex_lock(&lane->mutex);
    next = hand_over(lane);
    for (size_t i = 1; i < count; i++)
        set_state(items[i], ITEM_DONE);
    mutex_unlock(&lane->mutex);
    /* Those that are done first: what they ask for next may still go with the next flight. */
    for (size_t i = 1; i < count; i++)
        wake(items[i]);
    if (next)
        wake(next);
}

enum shoal_status combiner_run(struct combiner *combiner, struct combiner_item *item, combiner_run_fn run, void *arg)
{
    struct lane *lane = lane_of(combiner, item);
    enum shoal_status status = SHOAL_OK;
    bool is_first;

    sem_init(&item->turn, 0, 0);
    mutex_lock(&lane->mutex);
    is_first = lane->flights < FLIGHTS_MAX && list_is_empty(&lane->waiting);
    if (is_first) {
        lane->flights++;
        set_state(item, ITEM_LEADS);
    } else {
        set_state(item, ITEM_WAITS);
        list_push_back(&lane->waiting, &item->node);
    }
    mutex_unlock(&lane->mutex);
    if (!is_first)
        wait_for_turn(lane, item);
    if (state_of(item) == ITEM_LEADS)
        lead(combiner, lane, item, run, arg);
    else if (state_of(item) == ITEM_WAITS)
        status = SHOAL_TIMED_OUT;
    sem_destroy(&item->turn);
    return status;
}

size_t combiner_waiting(struct combiner *combiner)
{
    size_t count = 0;

    for (size_t i = 0; i < LANES; i++) {
        struct lane *lane = &combiner->lanes[i];

        mutex_lock(&lane->mutex);
        LIST_FOR_EACH (item, &lane->waiting, struct combiner_item, node)
            count++;
        mutex_unlock(&lane->mutex);
    }
    return count;
}
