/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define SIZE_MIN (512u << 10)
#define THEMES_MIN 4u
#define THEMES_MORE 7u
#define THEME_STRIDE 8u /* room between two themes in the order of events */

struct maker {
    struct random random;
    struct chaos_plan *plan;
    unsigned at;           /* order of the current theme */
    unsigned meta_free_at; /* before that order the metadata service is away */
};

const char *chaos_kind_text(enum chaos_kind kind)
{
    static const char *const texts[] = {
#define CHAOS_KIND_TEXT(name, text) text,
        CHAOS_KIND_MAP(CHAOS_KIND_TEXT)
#undef CHAOS_KIND_TEXT
    };
    return texts[kind];
}

static unsigned below(struct maker *maker, unsigned bound)
{
    return (unsigned)random_below(&maker->random, bound);
}

static void add(struct maker *maker, enum chaos_kind kind, unsigned node, unsigned order)
{
    struct chaos_plan *plan = maker->plan;
    if (plan->event_count == CHAOS_EVENTS_MAX)
        return;
    /* No two are equal, so that the sort has one outcome. */
    order = order * CHAOS_EVENTS_MAX + plan->event_count;
    plan->events[plan->event_count++] = (struct chaos_event){.kind = kind, .node = node, .order = order};
}

/* An event now and what ends it one to three themes later. */
static void add_pair(struct maker *maker, enum chaos_kind kind, enum chaos_kind end, unsigned node)
{
    add(maker, kind, node, maker->at);
    add(maker, end, node, maker->at + 1 + below(maker, 3 * THEME_STRIDE));
}

static void add_meta_theme(struct maker *maker)
{
    unsigned end = maker->at + 1 + below(maker, 3 * THEME_STRIDE);
    bool is_killed = below(maker, 3) == 0;

    if (maker->at < maker->meta_free_at)
        return;
    maker->meta_free_at = end + 1;
    add(maker, is_killed ? CHAOS_META_KILL : CHAOS_META_STOP, 0, maker->at);
    add(maker, is_killed ? CHAOS_META_START : CHAOS_META_CONTINUE, 0, end);
    if (below(maker, 2)) { /* somebody leaves and comes back without it */
        unsigned node = 1 + below(maker, maker->plan->node_count - 1);
        add(maker, CHAOS_DROP, node, maker->at);
        add(maker, CHAOS_GET, node, maker->at);
    }
}

/* Nobody who is complete has the right bytes, and somebody wants them. */
static void add_corruption_of_all(struct maker *maker)
{
    for (unsigned i = 0; i < maker->plan->node_count; i++)
        add_pair(maker, CHAOS_CORRUPT, CHAOS_REPAIR, i);
    add(maker, CHAOS_GET, below(maker, maker->plan->node_count), maker->at);
}

static void add_theme(struct maker *maker)
{
    const struct chaos_plan *plan = maker->plan;
    unsigned first = plan->is_anchored ? 1 : 0, node = first + below(maker, plan->node_count - first);

    if (plan->is_etcd && below(maker, 5) == 0) {
        add_meta_theme(maker);
        return;
    }
    switch (below(maker, 20)) {
    case 0:
    case 1:
    case 2:
        add_pair(maker, CHAOS_KILL, CHAOS_RESTART, node);
        break;
    case 3:
        add(maker, CHAOS_KILL, node, maker->at);
        break;
    case 4:
    case 5:
    case 6:
        add_pair(maker, CHAOS_STOP, CHAOS_CONTINUE, node);
        break;
    case 7:
        add_pair(maker, CHAOS_STOP, CHAOS_CONTINUE_LATE, node);
        break;
    case 8:
    case 9:
        add_pair(maker, CHAOS_CUT, CHAOS_HEAL, node);
        break;
    case 10:
    case 11:
        add_pair(maker, CHAOS_SLOW, CHAOS_FAST, node);
        break;
    case 12:
    case 13:
        add_pair(maker, CHAOS_CORRUPT, CHAOS_REPAIR, node);
        break;
    case 14:
        add_pair(maker, CHAOS_DROP, below(maker, 2) ? CHAOS_GET : CHAOS_GET_AGAIN, node);
        break;
    case 15:
        add_pair(maker, CHAOS_CANCEL, below(maker, 2) ? CHAOS_GET : CHAOS_GET_AGAIN, node);
        break;
    case 16:
        add(maker, CHAOS_FORCE, plan->is_anchored ? 0 : node, maker->at);
        break;
    case 17:
        if (!plan->is_anchored)
            add_corruption_of_all(maker);
        break;
    default:
        add(maker, (enum chaos_kind[]){CHAOS_GET, CHAOS_GET_PRIVATE, CHAOS_GET_AGAIN}[below(maker, 3)], node,
            maker->at);
        break;
    }
}

static int compare_order(const void *a, const void *b)
{
    const struct chaos_event *left = a, *right = b;
    return left->order < right->order ? -1 : left->order > right->order;
}

/* Up to five regions that add up to size; some are empty. */
static void cut(struct maker *maker, uint64_t size, char *out, size_t out_size)
{
    unsigned count = 1 + below(maker, 5);
    size_t at = 0;

    for (unsigned i = 0; i + 1 < count; i++) {
        uint64_t part = below(maker, 5) == 0 ? 0 : random_below(&maker->random, size / 2 + 1);
        at += (size_t)snprintf(out + at, out_size - at, "%" PRIu64 ",", part);
        size -= part;
    }
    snprintf(out + at, out_size - at, "%" PRIu64, size);
}

void chaos_plan_make(uint64_t seed, uint64_t max_size, struct chaos_plan *plan)
{
    static const uint64_t pieces[] = {16384, 40000, 65536, 262144, 0}, shards[] = {65536, 1 << 20, 3000000, 0};
    struct maker maker = {.plan = plan};
    unsigned doublings = 0, themes;

    memset(plan, 0, sizeof *plan);
    random_init(&maker.random, seed);
    plan->seed = seed;
    plan->node_count = 3 + below(&maker, CHAOS_NODES_MAX - 3);
    plan->first_count = 1 + below(&maker, plan->node_count - 1);
    while (SIZE_MIN << (doublings + 1) <= max_size)
        doublings++;
    plan->size = (uint64_t)SIZE_MIN << below(&maker, doublings);
    plan->size += random_below(&maker.random, plan->size);
    for (unsigned i = 0; i < plan->node_count; i++)
        cut(&maker, plan->size, plan->cuts[i], sizeof plan->cuts[i]);
    plan->piece = pieces[below(&maker, 5)];
    plan->shard = shards[below(&maker, 4)];
    /* Long enough that things happen in the middle: one connection would take one to three seconds. */
    plan->rate_bps = plan->size / (1 + below(&maker, 3));
    plan->corrupt_every = 1 + random_below(&maker.random, plan->size / 2);
    plan->is_etcd = below(&maker, 3) == 0;
    plan->is_anchored = below(&maker, 2) == 0;

    for (unsigned i = plan->first_count + 1; i < plan->node_count; i++)
        add(&maker, CHAOS_GET, i, below(&maker, THEMES_MIN * THEME_STRIDE));
    themes = THEMES_MIN + below(&maker, THEMES_MORE);
    for (unsigned i = 0; i < themes; i++) {
        maker.at = i * THEME_STRIDE;
        add_theme(&maker);
    }
    qsort(plan->events, plan->event_count, sizeof plan->events[0], compare_order);
    for (unsigned i = 0; i < plan->event_count; i++)
        plan->events[i].after_bytes =
            random_below(&maker.random, 2 * plan->size * (plan->node_count - 1) / plan->event_count + 1);
}

void chaos_plan_print(const struct chaos_plan *plan, FILE *out)
{
    fprintf(out,
            "seed %" PRIu64 ": %u nodes, 1 to %u pull from the start, %" PRIu64 " bytes, piece %" PRIu64
            ", shard %" PRIu64 ", %" PRIu64 " byte/s, %s, %s\n",
            plan->seed, plan->node_count, plan->first_count, plan->size, plan->piece, plan->shard, plan->rate_bps,
            plan->is_etcd ? "etcd" : "sqlite", plan->is_anchored ? "node 0 is left alone" : "nobody is safe");
    for (unsigned i = 0; i < plan->node_count; i++)
        fprintf(out, "  node %u: regions %s\n", i, plan->cuts[i]);
    for (unsigned i = 0; i < plan->event_count; i++)
        fprintf(out, "  %2u. after %" PRIu64 " bytes: node %u: %s\n", i, plan->events[i].after_bytes,
                plan->events[i].node, chaos_kind_text(plan->events[i].kind));
}

const char *chaos_judge(const struct chaos_facts *facts, const char *status)
{
    if (strcmp(status, "OK") == 0)
        return NULL;
    if (strcmp(status, "CANCELED") == 0)
        return facts->is_canceled ? NULL : "nobody canceled it";
    if (strcmp(status, "REPLACED") == 0)
        return facts->is_replaced ? NULL : "nobody replaced the payload";
    if (strcmp(status, "METADATA") == 0 || strcmp(status, "TIMED_OUT") == 0)
        return facts->lacked_meta ? NULL : "the metadata service was there all the time";
    if (strcmp(status, "NO_SOURCE") == 0 || strcmp(status, "PAYLOAD_NOT_FOUND") == 0)
        return facts->lacked_source ? NULL : "there was a good source all the time";
    if (strcmp(status, "CORRUPTED") == 0) {
        if (!facts->corrupt)
            return "nobody was corrupted";
        return facts->lacked_source ? NULL : "there was a good source all the time";
    }
    return "no get may end like this";
}
