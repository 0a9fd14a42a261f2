/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/combiner.h"

#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/spin.h"

#define LANES 64            /* power of two */
#define FLIGHTS_MAX 2       /* of one lane at a time: one is answered while the other one is being made */
#define GATHER_PART 4       /* of what the last flight took, at most, does the next one wait for company */
#define GATHER_MAX_NS 60000 /* and never longer */

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
    bool is_boarding;       /* one of the flights: its leader has not collected the others yet */
    unsigned inside;        /* callers */
    unsigned crowd;         /* how many callers there are, with those that have just left and come back at once */
    unsigned waiting_count; /* atomic: read without the mutex by those who wait for company */
    int64_t flight_ns;      /* what the last flight took */
    uint32_t turns;         /* atomic futex: grows whenever items lead or are done */
    uint32_t next_bit;      /* for the next one that waits */
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

/* Who was woken looks without the mutex; what run has done comes with the state. */
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

static unsigned waiting_of(struct lane *lane)
{
    return __atomic_load_n(&lane->waiting_count, __ATOMIC_RELAXED); /* whoever acts on it takes the mutex */
}

/* With the lane's mutex. */
static void add_waiting(struct lane *lane, struct combiner_item *item)
{
    list_push_back(&lane->waiting, &item->node);
    __atomic_store_n(&lane->waiting_count, lane->waiting_count + 1, __ATOMIC_RELAXED);
}

/* With the lane's mutex. */
static void remove_waiting(struct lane *lane, struct combiner_item *item)
{
    list_remove(&item->node);
    __atomic_store_n(&lane->waiting_count, lane->waiting_count - 1, __ATOMIC_RELAXED);
}

/* With the lane's mutex: how many travel together when all flights take the same. */
static unsigned share_of(const struct lane *lane)
{
    unsigned share = (lane->crowd + FLIGHTS_MAX - 1) / FLIGHTS_MAX;

    return share < COMBINER_ITEMS_MAX ? share : COMBINER_ITEMS_MAX;
}

/* With the lane's mutex, which it gives away meanwhile: those whose answers have just come are on their way back with
 * the next request. The flight that takes them along costs less than the wait for them. */
static void gather(struct lane *lane, unsigned wanted)
{
    int64_t patience_ns = lane->flight_ns / GATHER_PART, limit_ns = (int64_t)spin_limit_us() * 1000, until_ns;

    if (lane->waiting_count + 1 >= wanted || !limit_ns)
        return;
    patience_ns = patience_ns < GATHER_MAX_NS ? patience_ns : GATHER_MAX_NS;
    until_ns = clock_now_ns() + (patience_ns < limit_ns ? patience_ns : limit_ns);
    mutex_unlock(&lane->mutex);
    do
        sched_yield();
    while (waiting_of(lane) + 1 < wanted && clock_now_ns() < until_ns);
    mutex_lock(&lane->mutex);
    if (lane->waiting_count + 1 < wanted)
        lane->crowd = lane->inside; /* some do not come any more */
}

/* With the lane's mutex: those that go with the first one, share with it at most. */
static size_t collect(const struct combiner *combiner, struct lane *lane, struct combiner_item *first, unsigned share,
                      struct combiner_item *items[COMBINER_ITEMS_MAX])
{
    size_t count = 0, bytes = first->len_bytes;

    items[count++] = first;
    LIST_FOR_EACH_SAFE (item, &lane->waiting, struct combiner_item, node) {
        if (count >= share)
            break;
        if (item->target != first->target || item->kind != first->kind || bytes + item->len_bytes > combiner->max_bytes)
            continue;
        remove_waiting(lane, item);
        set_state(item, ITEM_TRAVELS);
        bytes += item->len_bytes;
        items[count++] = item;
    }
    return count;
}

/* With the lane's mutex: the next one leads a flight. Returns its bit, to wake it. 0: nobody waits, or not now: who
 * boards or returns looks again. */
static uint32_t take_off(struct lane *lane)
{
    struct list_node *node = list_first(&lane->waiting);
    struct combiner_item *next;

    if (!node || lane->flights >= FLIGHTS_MAX || lane->is_boarding)
        return 0;
    lane->flights++;
    lane->is_boarding = true;
    next = container_of(node, struct combiner_item, node);
    remove_waiting(lane, next);
    set_state(next, ITEM_LEADS);
    return next->bit;
}

/* Without the mutex, which the woken threads need not take again. One system call wakes a whole flight: woken one by
 * one, each thread would be back asleep before the next one is woken, and its CPU, too. */
static void wake(struct lane *lane, uint32_t bits)
{
    __atomic_add_fetch(&lane->turns, 1, __ATOMIC_RELEASE); /* pairs with wait_for_turn: after the states */
    futex_wake(&lane->turns, bits);
}

/* state: ITEM_LEADS or ITEM_DONE, or ITEM_WAITS after its deadline. */
static void wait_for_turn(struct lane *lane, struct combiner_item *item)
{
    for (;;) {
        uint32_t turns = __atomic_load_n(&lane->turns, __ATOMIC_ACQUIRE); /* before the state: pairs with wake */
        enum item_state state = state_of(item);
        bool is_late;

        if (state == ITEM_LEADS || state == ITEM_DONE)
            return;
        /* What travels does so as long as run takes. */
        futex_wait(&lane->turns, turns, item->bit, state == ITEM_WAITS ? item->deadline_ms : DEADLINE_NONE);
        if (state != ITEM_WAITS || !deadline_is_past(item->deadline_ms))
            continue;
        mutex_lock(&lane->mutex);
        is_late = state_of(item) == ITEM_WAITS;
        if (is_late) {
            remove_waiting(lane, item);
            lane->inside--;
        }
        mutex_unlock(&lane->mutex);
        if (is_late)
            return;
    }
}

static void lead(struct combiner *combiner, struct lane *lane, struct combiner_item *item, combiner_run_fn run,
                 void *arg)
{
    struct combiner_item *items[COMBINER_ITEMS_MAX];
    uint32_t others, bits = 0;
    int64_t began_ns;
    unsigned share;
    size_t count;

    mutex_lock(&lane->mutex);
    share = share_of(lane);
    gather(lane, share);
    count = collect(combiner, lane, item, share, items);
    lane->is_boarding = false;
    others = take_off(lane);
    mutex_unlock(&lane->mutex);
    if (others)
        wake(lane, others);
    began_ns = clock_now_ns();
    run(arg, items, count);
    mutex_lock(&lane->mutex);
    lane->flight_ns = clock_now_ns() - began_ns;
    lane->inside -= (unsigned)count;
    lane->flights--;
    for (size_t i = 1; i < count; i++) {
        bits |= items[i]->bit;
        set_state(items[i], ITEM_DONE); /* and it may be gone */
    }
    bits |= take_off(lane);
    mutex_unlock(&lane->mutex);
    if (bits)
        wake(lane, bits);
}

enum shoal_status combiner_run(struct combiner *combiner, struct combiner_item *item, combiner_run_fn run, void *arg)
{
    struct lane *lane = lane_of(combiner, item);
    enum shoal_status status = SHOAL_OK;
    bool is_first;

    mutex_lock(&lane->mutex);
    if (++lane->inside > lane->crowd)
        lane->crowd = lane->inside;
    is_first = lane->flights < FLIGHTS_MAX && !lane->is_boarding && list_is_empty(&lane->waiting);
    if (is_first) {
        lane->flights++;
        lane->is_boarding = true;
        set_state(item, ITEM_LEADS);
    } else {
        set_state(item, ITEM_WAITS);
        item->bit = (uint32_t)1 << (lane->next_bit++ & 31);
        add_waiting(lane, item);
    }
    mutex_unlock(&lane->mutex);
    if (!is_first)
        wait_for_turn(lane, item);
    if (state_of(item) == ITEM_LEADS)
        lead(combiner, lane, item, run, arg);
    else if (state_of(item) == ITEM_WAITS)
        status = SHOAL_TIMED_OUT;
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
