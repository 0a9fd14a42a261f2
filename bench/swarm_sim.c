/* SPDX-License-Identifier: Apache-2.0 */
/* The production schedule (src/swarm) under simulated links and a simulated clock: one source, N receivers, one payload
 * of K pieces.
 *
 * Links: every node has one full-duplex link. A source sends the pieces it was asked for one after the other, in the
 * order of the requests; they pass the receiver's link one after the other as well, cut through (what leaves the source
 * arrives after the latency unless the receiver's link is busy). Control messages take the latency only; their bytes
 * are counted. News of verified pieces wait for more of them as long as in production. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/random.h"
#include "lib/bench.h"
#include "swarm/handout.h"
#include "swarm/news.h"
#include "swarm/swarm.h"

#define NS_PER_MS 1000000LL
#define TICK_NS (200 * NS_PER_MS) /* src/store/pull.c */
#define HANDOUT_TICK_NS (100 * NS_PER_MS)
#define GIVE_UP_COPIES 100
#define TAKEN_MAX 4096u
/* Sizes of messages with the headers of frame, TCP and IP, for a payload name of 16 bytes; and per piece number. */
#define OPEN_BYTES 400u /* both ways */
#define SYNC_BYTES 202u /* both ways */
#define CLAIM_BYTES 110u
#define GRANT_BYTES 80u
#define READ_BYTES 130u /* request, and header of the answer */
#define PIECE_NUMBER_BYTES 2u

static unsigned nodes = 8, pieces = 1024, degree = 32, seed = 1;
static uint64_t rate_bps = 400000000, piece_bytes = 256 << 10;
static unsigned latency_us = 200, slots;
static unsigned slow_percent, slow_factor = 4, kill_percent, join_spread_ms, late, gold_leaves_percent;
static bool is_verbose;

/* --- events: a binary heap by time, then by order of creation --- */

enum event_kind {
    EVENT_JOIN,
    EVENT_SENT,
    EVENT_ARRIVED,
    EVENT_NEWS,
    EVENT_CLAIM,
    EVENT_GRANT,
    EVENT_TICK,
    EVENT_KILL,
    EVENT_HANDOUT
};

struct claim {
    uint32_t wanted, outstanding, count;
    uint32_t slots;
    uint32_t pieces[];
};

struct event {
    int64_t at_ns;
    uint64_t order;
    uint32_t node;
    uint32_t peer; /* SENT, ARRIVED: the source's number at the node */
    uint32_t piece;
    uint8_t kind, flight;
    int64_t start_ns;    /* SENT: when the first byte left */
    struct claim *claim; /* owned: CLAIM, GRANT */
};

static struct event *heap;
static size_t heap_count, heap_capacity;
static uint64_t next_order;
static int64_t now_ns;

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void event_add(struct event event)
{
    size_t at = heap_count++;

    if (heap_count > heap_capacity) {
        heap_capacity = heap_capacity ? heap_capacity * 2 : 4096;
        heap = realloc(heap, heap_capacity * sizeof *heap);
        if (!heap)
            bench_die("out of memory");
    }
    event.order = next_order++;
    while (at && is_before(&event, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = event;
}

static bool event_next(struct event *event_out)
{
    struct event last;
    size_t at = 0;

    if (!heap_count)
        return false;
    *event_out = heap[0];
    last = heap[--heap_count];
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= heap_count)
            break;
        if (child + 1 < heap_count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    if (heap_count)
        heap[at] = last;
    return true;
}

/* --- nodes --- */

struct edge {
    uint32_t node;           /* the other end */
    uint32_t number;         /* of the source, in the receiver's swarm */
    uint32_t handout_number; /* of the receiver, in the source's handout */
};

struct node {
    struct swarm *swarm;  /* receivers; NULL: not here (any more) */
    struct edge *sources; /* owned: by number in the swarm */
    uint32_t source_count, source_capacity;
    struct edge *subscribers; /* owned: who is told of news */
    uint32_t subscriber_count, subscriber_capacity;
    uint32_t *have; /* owned: verified pieces in order */
    uint32_t have_count, told_count;
    uint8_t *flight; /* owned: per piece, which request is the valid one */
    bool is_dead, is_done;
    struct swarm_news news;
    int64_t news_at_ns;     /* 0: none are due */
    int64_t up_ns, down_ns; /* per piece */
    int64_t up_free_ns, down_free_ns;
    int64_t joined_ns, done_ns;
    uint64_t sent;
    struct handout *handout; /* its slots */
    struct edge *receivers;  /* owned: by number in the handout */
    uint32_t receiver_count, receiver_capacity;
    bool is_handout_tick_due;
};

static struct node *all; /* 0: the gold source */
static struct random dice;
static uint64_t control_bytes, wasted;
static uint32_t left_count;
static uint64_t gold_limit;
static uint32_t late_joined;

static void edge_add(struct edge **edges, uint32_t *count, uint32_t *capacity, struct edge edge)
{
    if (*count == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 8;
        *edges = realloc(*edges, *capacity * sizeof **edges);
        if (!*edges)
            bench_die("out of memory");
    }
    (*edges)[(*count)++] = edge;
}

static int64_t latency_ns(void)
{
    return (int64_t)latency_us * 1000;
}

static void request(uint32_t number, uint32_t source, uint32_t piece)
{
    struct node *node = &all[number], *peer = &all[node->sources[source].node];
    int64_t start = now_ns + latency_ns();

    if (peer->up_free_ns > start)
        start = peer->up_free_ns;
    peer->up_free_ns = start + peer->up_ns;
    peer->sent++;
    control_bytes += READ_BYTES;
    event_add((struct event){.kind = EVENT_SENT,
                             .at_ns = peer->up_free_ns,
                             .start_ns = start,
                             .node = number,
                             .peer = source,
                             .piece = piece,
                             .flight = ++node->flight[piece]});
}

static void claim(uint32_t number, uint32_t source, uint32_t wanted, uint32_t outstanding)
{
    struct claim *claim = malloc(sizeof *claim + TAKEN_MAX * sizeof *claim->pieces);

    if (!claim)
        bench_die("out of memory");
    *claim = (struct claim){.wanted = wanted, .outstanding = outstanding};
    claim->count = swarm_taken(all[number].swarm, source, claim->pieces, TAKEN_MAX);
    claim = realloc(claim, sizeof *claim + claim->count * sizeof *claim->pieces);
    control_bytes += CLAIM_BYTES + claim->count * PIECE_NUMBER_BYTES;
    event_add((struct event){
        .kind = EVENT_CLAIM, .at_ns = now_ns + latency_ns(), .node = number, .peer = source, .claim = claim});
}

static void schedule(uint32_t number)
{
    struct node *node = &all[number];
    int64_t now_ms = now_ns / NS_PER_MS;
    uint32_t source, piece, wanted, outstanding;

    if (!node->swarm || node->is_done)
        return;
    while (swarm_next(node->swarm, now_ms, &source, &piece))
        request(number, source, piece);
    while (swarm_next_claim(node->swarm, now_ms, &source, &wanted, &outstanding))
        claim(number, source, wanted, outstanding);
}

static struct handout *make_handout(bool chooses)
{
    struct handout_config config = {.piece_count = pieces,
                                    .piece_bytes = piece_bytes,
                                    .slots = slots,
                                    .chooses = chooses,
                                    .seed = random_next(&dice)};
    struct handout *handout;

    if (handout_create(&config, &handout))
        bench_die("out of memory");
    return handout;
}

static void source_connect(uint32_t number, uint32_t peer_number)
{
    struct node *node = &all[number], *peer = &all[peer_number];
    struct edge edge = {.node = peer_number};

    if (peer->is_dead)
        return;
    if (!peer->handout)
        peer->handout = make_handout(peer->is_done);
    edge.handout_number = handout_join(peer->handout);
    if (edge.handout_number == HANDOUT_NONE)
        return;
    edge.number = swarm_source_add(node->swarm, peer->is_done);
    if (edge.number != node->source_count)
        bench_die("sources are numbered in order");
    edge_add(&node->sources, &node->source_count, &node->source_capacity, edge);
    edge.node = number;
    if (edge.handout_number < peer->receiver_count)
        peer->receivers[edge.handout_number] = edge;
    else /* numbers are given in order */
        edge_add(&peer->receivers, &peer->receiver_count, &peer->receiver_capacity, edge);
    edge_add(&peer->subscribers, &peer->subscriber_count, &peer->subscriber_capacity, edge);
    for (uint32_t i = 0; i < peer->told_count && !peer->is_done; i++)
        swarm_source_has(node->swarm, edge.number, peer->have[i]);
    control_bytes += OPEN_BYTES;
}

static void join(uint32_t number)
{
    struct node *node = &all[number];
    struct swarm_config config = {.piece_count = pieces, .piece_bytes = piece_bytes, .seed = random_next(&dice)};
    uint32_t wanted = degree < nodes ? degree : nodes;

    if (swarm_create(&config, &node->swarm))
        bench_die("out of memory");
    node->joined_ns = now_ns;
    source_connect(number, 0);
    /* Distinct random peers, by Floyd's sampling (Communications of the ACM 30, 1987). */
    for (uint32_t i = nodes - (wanted - 1); i < nodes && wanted > 1; i++) {
        uint32_t peer = 1 + (uint32_t)random_below(&dice, i + 1);
        bool is_known = peer == number;
        for (uint32_t j = 0; j < node->source_count; j++)
            is_known |= node->sources[j].node == peer;
        if (is_known)
            peer = i + 1;
        if (peer <= nodes && peer != number && all[peer].have)
            source_connect(number, peer);
    }
    event_add((struct event){.kind = EVENT_TICK, .at_ns = now_ns + TICK_NS, .node = number});
    schedule(number);
}

/* --- the gold's side of claims --- */

static void handout_run(uint32_t number)
{
    struct node *node = &all[number];
    struct handout_grant grant;

    if (node->is_dead)
        return;
    while (handout_next(node->handout, now_ns / NS_PER_MS, &grant)) {
        struct claim *answer = malloc(sizeof *answer + (grant.piece_count + 1) * sizeof *answer->pieces);
        if (!answer)
            bench_die("out of memory");
        *answer = (struct claim){.count = grant.piece_count, .slots = grant.slots};
        memcpy(answer->pieces, grant.pieces, grant.piece_count * sizeof *grant.pieces);
        control_bytes += GRANT_BYTES + grant.piece_count * PIECE_NUMBER_BYTES;
        event_add((struct event){.kind = EVENT_GRANT,
                                 .at_ns = now_ns + latency_ns(),
                                 .node = node->receivers[grant.receiver].node,
                                 .peer = node->receivers[grant.receiver].number,
                                 .claim = answer});
    }
    if (!node->is_handout_tick_due) {
        node->is_handout_tick_due = true;
        event_add((struct event){.kind = EVENT_HANDOUT, .at_ns = now_ns + HANDOUT_TICK_NS, .node = number});
    }
}

static void on_claim(const struct event *event)
{
    struct node *node = &all[event->node];
    struct edge *source = &node->sources[event->peer];
    struct node *peer;

    if (!node->swarm || node->is_done || source->node == UINT32_MAX)
        return;
    peer = &all[source->node];
    for (uint32_t i = 0; i < event->claim->count; i++)
        handout_taken(peer->handout, source->handout_number, event->claim->pieces[i]);
    if (!handout_claim(peer->handout, source->handout_number, event->claim->wanted, event->claim->outstanding,
                       now_ns / NS_PER_MS)) {
        struct claim *refusal = calloc(1, sizeof *refusal);
        if (!refusal)
            bench_die("out of memory");
        control_bytes += GRANT_BYTES;
        event_add((struct event){.kind = EVENT_GRANT,
                                 .at_ns = now_ns + latency_ns(),
                                 .node = event->node,
                                 .peer = event->peer,
                                 .claim = refusal});
    }
    handout_run(source->node);
}

static void on_grant(const struct event *event)
{
    struct node *node = &all[event->node];

    if (!node->swarm || node->is_done || node->sources[event->peer].node == UINT32_MAX)
        return;
    swarm_claimed(node->swarm, event->peer, event->claim->slots, event->claim->pieces, event->claim->count);
    schedule(event->node);
}

/* --- leaving --- */

/* A receiver that is complete stays as a source; one that is killed is gone. */
static void leave(uint32_t number, bool is_killed)
{
    struct node *node = &all[number];

    for (uint32_t i = 0; i < node->source_count; i++) {
        struct edge *source = &node->sources[i];
        if (source->node == UINT32_MAX)
            continue;
        handout_leave(all[source->node].handout, source->handout_number);
        handout_run(source->node);
        source->node = UINT32_MAX;
    }
    if (!is_killed)
        return;
    node->is_dead = true;
    if (number && !node->is_done)
        left_count--;
    swarm_destroy(node->swarm);
    node->swarm = NULL;
    for (uint32_t i = 0; i < node->subscriber_count; i++) {
        struct node *peer = &all[node->subscribers[i].node];
        if (!peer->swarm || peer->is_done)
            continue;
        swarm_source_remove(peer->swarm, node->subscribers[i].number);
        peer->sources[node->subscribers[i].number].node = UINT32_MAX;
        schedule(node->subscribers[i].node);
    }
}

/* --- pieces --- */

static void on_sent(struct event event)
{
    struct node *node = &all[event.node];
    int64_t end = now_ns + latency_ns(), start = event.start_ns + latency_ns();

    if (node->down_free_ns > start)
        start = node->down_free_ns;
    if (start + node->down_ns > end)
        end = start + node->down_ns;
    node->down_free_ns = end;
    event.kind = EVENT_ARRIVED;
    event.at_ns = end;
    event_add(event);
}

static void news(uint32_t number)
{
    struct node *node = &all[number];

    node->news_at_ns = 0;
    swarm_news_told(&node->news, node->subscriber_count);
    for (uint32_t i = 0; i < node->subscriber_count; i++) {
        struct node *peer = &all[node->subscribers[i].node];
        if (!peer->swarm || peer->is_done)
            continue;
        if (node->is_done)
            swarm_source_has_all(peer->swarm, node->subscribers[i].number);
        for (uint32_t j = node->told_count; j < node->have_count; j++)
            swarm_source_has(peer->swarm, node->subscribers[i].number, node->have[j]);
        control_bytes += SYNC_BYTES + (node->have_count - node->told_count) * PIECE_NUMBER_BYTES;
        schedule(node->subscribers[i].node);
    }
    node->told_count = node->have_count;
}

static void progress(void)
{
    if (is_verbose)
        fprintf(stderr, "%.3f s: %u receivers are not complete\n", (double)now_ns / 1e9, left_count);
}

static void on_arrived(const struct event *event)
{
    struct node *node = &all[event->node];
    int64_t due_ns;

    if (!node->swarm || node->is_done || node->flight[event->piece] != event->flight ||
        node->sources[event->peer].node == UINT32_MAX) {
        wasted++;
        return;
    }
    swarm_done(node->swarm, event->peer, event->piece, now_ns / NS_PER_MS);
    node->have[node->have_count++] = event->piece;
    if (swarm_is_complete(node->swarm)) {
        leave(event->node, false);
        node->is_done = true;
        node->done_ns = now_ns;
        left_count--;
        if (left_count % 1000 == 0)
            progress();
        if (!left_count && late_joined < late) {
            left_count = 1;
            event_add((struct event){.kind = EVENT_JOIN, .at_ns = now_ns, .node = nodes + ++late_joined});
        }
    } else {
        schedule(event->node);
    }
    due_ns = swarm_news_add(&node->news, piece_bytes, node->subscriber_count,
                            swarm_is_urgent(node->swarm, event->piece), now_ns / NS_PER_MS) *
             NS_PER_MS;
    if (due_ns < now_ns || node->is_done)
        due_ns = now_ns;
    if (!node->news_at_ns || due_ns + latency_ns() < node->news_at_ns) {
        node->news_at_ns = due_ns + latency_ns();
        event_add((struct event){.kind = EVENT_NEWS, .at_ns = node->news_at_ns, .node = event->node});
    }
}

static void tick(uint32_t number)
{
    struct node *node = &all[number];
    uint32_t source, piece;

    if (!node->swarm || node->is_done)
        return;
    while (swarm_next_stalled(node->swarm, now_ns / NS_PER_MS, &source, &piece)) {
        node->flight[piece]++;
        swarm_failed(node->swarm, source, piece);
    }
    schedule(number);
    event_add((struct event){.kind = EVENT_TICK, .at_ns = now_ns + TICK_NS, .node = number});
}

static void run(void)
{
    int64_t give_up_ns = GIVE_UP_COPIES * all[0].up_ns * pieces;
    struct event event;

    /* Receivers may wait for ever for what has left with others. */
    while (left_count && event_next(&event) && event.at_ns < give_up_ns) {
        now_ns = event.at_ns;
        switch ((enum event_kind)event.kind) {
        case EVENT_JOIN:
            join(event.node);
            break;
        case EVENT_SENT:
            on_sent(event);
            break;
        case EVENT_ARRIVED:
            on_arrived(&event);
            break;
        case EVENT_NEWS:
            if (!all[event.node].is_dead && all[event.node].news_at_ns == event.at_ns)
                news(event.node);
            break;
        case EVENT_CLAIM:
            on_claim(&event);
            break;
        case EVENT_GRANT:
            on_grant(&event);
            break;
        case EVENT_TICK:
            tick(event.node);
            break;
        case EVENT_KILL:
            if (!all[event.node].is_done)
                leave(event.node, true);
            break;
        case EVENT_HANDOUT:
            all[event.node].is_handout_tick_due = false;
            if (!all[event.node].is_dead)
                handout_run(event.node);
            break;
        }
        free(event.claim);
        if (gold_leaves_percent && !all[0].is_dead && all[0].sent >= gold_limit &&
            all[0].up_free_ns + 2 * latency_ns() + NS_PER_MS * 50 <= now_ns)
            leave(0, true);
    }
}

static void setup(void)
{
    int64_t piece_ns = (int64_t)(piece_bytes * 8 * 1000000000 / rate_bps);

    random_init(&dice, seed);
    all = calloc((size_t)nodes + late + 1, sizeof *all);
    if (!all)
        bench_die("out of memory");
    all[0].is_done = true;
    all[0].handout = make_handout(true);
    all[0].up_ns = all[0].down_ns = piece_ns;
    for (uint32_t i = 1; i <= nodes + late; i++) {
        struct node *node = &all[i];
        bool is_slow = i <= nodes && slow_percent && (i - 1) * 100 < nodes * slow_percent;
        node->up_ns = node->down_ns = is_slow ? piece_ns * slow_factor : piece_ns;
        node->have = calloc(pieces, sizeof *node->have);
        node->flight = calloc(pieces, sizeof *node->flight);
        if (!node->have || !node->flight)
            bench_die("out of memory");
        if (i > nodes)
            continue;
        event_add((struct event){.kind = EVENT_JOIN,
                                 .at_ns = join_spread_ms ? (int64_t)random_below(&dice, join_spread_ms) * NS_PER_MS : 0,
                                 .node = i});
        if (kill_percent && random_below(&dice, 100) < kill_percent)
            event_add((struct event){
                .kind = EVENT_KILL, .at_ns = (int64_t)random_below(&dice, (uint64_t)piece_ns * pieces), .node = i});
    }
    left_count = nodes;
    gold_limit = (uint64_t)pieces * gold_leaves_percent / 100;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorted times of the receivers first..last that have finished, in copies' times; owned by the caller. */
static uint32_t collect(uint32_t first, uint32_t last, bool quick_only, double unit, double **times_out)
{
    double *times = calloc((size_t)nodes + late + 1, sizeof *times);
    uint32_t count = 0;

    if (!times)
        bench_die("out of memory");
    for (uint32_t i = first; i <= last; i++) {
        const struct node *node = &all[i];
        if (node->is_done && !(quick_only && node->down_ns > all[0].down_ns))
            times[count++] = (double)(node->done_ns - node->joined_ns) / 1e9 / unit;
    }
    qsort(times, count, sizeof *times, compare);
    *times_out = times;
    return count;
}

static double copies_of_gold(void)
{
    return (double)all[0].sent / pieces;
}

static double control_percent(uint32_t finished)
{
    return 100.0 * (double)control_bytes / ((double)pieces * finished * (double)piece_bytes);
}

int main(int argc, char **argv)
{
    const struct bench_option options[] = {
        {"nodes", BENCH_COUNT, &nodes, 1, 100000, "receivers"},
        {"pieces", BENCH_COUNT, &pieces, 1, 1 << 20, "pieces of the payload"},
        {"degree", BENCH_COUNT, &degree, 1, SWARM_SOURCES_MAX, "sources of each receiver, the gold included"},
        {"seed", BENCH_COUNT, &seed, 0, UINT32_MAX, "of everything random"},
        {"rate", BENCH_SIZE, &rate_bps, 1000, (uint64_t)1 << 40, "of every link, bit/s"},
        {"piece-size", BENCH_SIZE, &piece_bytes, 1, 1 << 30, "bytes"},
        {"latency-us", BENCH_COUNT, &latency_us, 0, 1000000, "one way"},
        {"slots", BENCH_COUNT, &slots, 0, 1024, "upload slots of a source at least; 0: as in production"},
        {"slow-percent", BENCH_COUNT, &slow_percent, 0, 100, "of the receivers have slow links"},
        {"slow-factor", BENCH_COUNT, &slow_factor, 1, 1000, "how much slower"},
        {"kill-percent", BENCH_COUNT, &kill_percent, 0, 100, "of the receivers die at a random moment"},
        {"join-spread-ms", BENCH_COUNT, &join_spread_ms, 0, 10000000, "receivers arrive at random within this time"},
        {"gold-leaves", BENCH_COUNT, &gold_leaves_percent, 0, 100000,
         "the gold leaves after so many percent of a copy; 0: it stays"},
        {"late", BENCH_COUNT, &late, 0, 1000, "more receivers, one after the other, when the others are complete"},
        {"verbose", BENCH_FLAG, &is_verbose, 0, 0, "progress on stderr"},
        {NULL, BENCH_FLAG, NULL, 0, 0, NULL},
    };
    double start_s, unit, bound, *times, *quick, *late_times;
    uint32_t count, quick_count, late_count;

    bench_options(argc, argv, "swarm-sim", "the production schedule under simulated links and clock", options);
    start_s = bench_now_s();
    setup();
    run();
    unit = (double)(piece_bytes * 8) / (double)rate_bps * pieces + 2e-6 * latency_us;
    bound = (pieces - 1 + ceil(log2(nodes + 1))) / pieces;
    count = collect(1, nodes, false, unit, &times);
    quick_count = collect(1, nodes, true, unit, &quick);
    late_count = collect(nodes + 1, nodes + late, false, unit, &late_times);
    if (!count)
        bench_die("no receiver finished");
    printf("%u receivers (%u finished), %u pieces of %llu KiB, degree %u; one copy takes %.3f s\n", nodes, count,
           pieces, (unsigned long long)(piece_bytes >> 10), degree, unit);
    printf("in copies' times: first %.4f, median %.4f, last %.4f; lower bound %.4f\n", times[0], times[count / 2],
           times[count - 1], bound);
    if (slow_percent && quick_count)
        printf("those with quick links: median %.4f, last %.4f\n", quick[quick_count / 2], quick[quick_count - 1]);
    if (late_count)
        printf("%u latecomers: last %.4f\n", late_count, late_times[late_count - 1]);
    printf("the gold sent %.3f copies; %.3f %% of the pieces arrived in vain; control traffic %.3f %% of the payload\n",
           copies_of_gold(), 100.0 * (double)wasted / ((double)pieces * count), control_percent(count));
    printf("simulated in %.1f s\n", bench_now_s() - start_s);
    printf("{\"bench\":\"swarm-sim\",\"stretch\":%.4f,\"nodes\":%u,\"finished\":%u,\"pieces\":%u,\"degree\":%u,"
           "\"seed\":%u,"
           "\"median\":%.4f,\"bound\":%.4f,\"gold_copies\":%.3f,\"control_percent\":%.3f",
           times[count - 1], nodes, count, pieces, degree, seed, times[count / 2], bound, copies_of_gold(),
           control_percent(count));
    if (slow_percent && quick_count)
        printf(",\"quick_stretch\":%.4f", quick[quick_count - 1]);
    if (late_count)
        printf(",\"late_stretch\":%.4f", late_times[late_count - 1]);
    printf("}\n");
    free(late_times);
    free(quick);
    free(times);
    return 0;
}
