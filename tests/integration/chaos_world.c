/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_world.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netns.h"

#define CONTENT_NONE 987654321u /* what is in a buffer before a pull */
#define SETTLED_MS 1000         /* undisturbed for so long: what the list says about a node is true */
#define HEALING_MS 5000         /* packets that got lost in a cut are sent again by then */
#define OBSERVE_EVERY_MS 100
#define NET "10.77.0"

enum get_wish { GET_NOT, GET_SHARED, GET_PRIVATE, GET_AGAIN };

/* The network ------------------------------------------------------------------------------------------------------ */

static bool has_net;
static int net_fds[CHAOS_NODES_MAX];

static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...)
{
    char script[512];
    va_list args;
    va_start(args, format);
    vsnprintf(script, sizeof script, format, args);
    va_end(args);
    int status = system(script);
    return status;
}

/* The test itself is in the namespace of the switch, with the metadata service: node I is on port pI. */
bool chaos_net_create(void)
{
    for (unsigned i = 0; i < CHAOS_NODES_MAX; i++)
        net_fds[i] = -1;
    if (!netns_enter_new("ip link add br0 address 02:00:00:00:00:fe type bridge\n"
                         "ip addr add " NET ".254/24 dev br0\n"
                         "ip link set br0 up\n"))
        return false;
    for (unsigned i = 0; i < CHAOS_NODES_MAX; i++) {
        char script[512];
        snprintf(script, sizeof script,
                 "ip link add eth0 type veth peer name p%u netns %d\n"
                 "ip addr add " NET ".%u/24 dev eth0\n"
                 "ip link set eth0 up\n",
                 i, (int)getpid(), i + 1);
        net_fds[i] = netns_create(script);
        if (net_fds[i] < 0 || shell("ip link set p%u master br0 && ip link set p%u up", i, i) != 0)
            return false;
    }
    has_net = true;
    return true;
}

static void set_cut(unsigned i, bool is_cut)
{
    assert_int_equal(shell("ip link set p%u %s", i, is_cut ? "nomaster" : "master br0"), 0);
}

/* Facts ------------------------------------------------------------------------------------------------------------ */

static bool is_alive(const struct member *member)
{
    return member->node && !member->is_stopped;
}

/* Nothing is true of it any more until it was seen in the list for a while. */
static void disturb(struct member *member)
{
    member->listed_since_ms = 0;
}

static void disturb_all(struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++)
        disturb(&world->members[i]);
}

/* A source that a receiver has no excuse to ignore. */
static bool is_good_source(const struct world *world, const struct member *source)
{
    return source->state == MEMBER_HOLDING && !source->is_stopped && !source->is_cut && !source->is_corrupt &&
           source->content == world->last_content && source->listed_since_ms &&
           clock_now_ms() - source->listed_since_ms >= SETTLED_MS;
}

static bool lacks_source(const struct world *world, const struct member *receiver)
{
    if (receiver->is_cut || world->is_meta_disturbed)
        return true;
    for (unsigned i = 0; i < world->plan.node_count; i++)
        if (&world->members[i] != receiver && is_good_source(world, &world->members[i]))
            return false;
    return true;
}

/* Whether the metadata service answers this member for sure. */
static bool has_meta(const struct world *world, const struct member *member)
{
    bool is_apart = member->is_cut || (member->healed_ms && clock_now_ms() - member->healed_ms < HEALING_MS);
    return !world->is_meta_disturbed && !(world->etcd && is_apart);
}

static void note_facts(struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        if (member->state != MEMBER_GETTING)
            continue;
        struct chaos_facts *facts = &member->facts;
        facts->lacked_source |= lacks_source(world, member);
        facts->lacked_meta |= !has_meta(world, member);
        facts->last_content = world->last_content;
        for (unsigned j = 0; j < world->plan.node_count; j++)
            facts->corrupt |= (unsigned)world->members[j].is_corrupt << j;
    }
}

/* Takes what the observer was told and asks again. */
static void observe(struct world *world)
{
    if (!world->observation) {
        if (clock_now_ms() - world->observed_ms >= OBSERVE_EVERY_MS)
            world->observation = node_send(world->observer, "stat payload=model timeout=2000");
        return;
    }
    if (!node_is_done(world->observer, world->observation))
        return;
    json_t *reply = node_wait(world->observer, world->observation), *source;
    json_t *sources = json_object_get(json_object_get(reply, "info"), "sources");
    world->observation = 0;
    world->observed_ms = clock_now_ms();
    world->is_observed_well = has_status(reply, "OK|PAYLOAD_NOT_FOUND");
    if (world->is_observed_well && !world->is_meta_away && world->is_meta_disturbed) {
        world->is_meta_disturbed = false;
        disturb_all(world);
    }
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        bool is_listed = false;
        size_t at;
        json_array_foreach(sources, at, source) is_listed |=
            strcmp(json_string_value(json_object_get(source, "name")), member->name) == 0;
        if (!is_listed)
            member->listed_since_ms = 0;
        else if (!member->listed_since_ms && !world->is_meta_disturbed)
            member->listed_since_ms = clock_now_ms();
    }
}

/* Pulls ------------------------------------------------------------------------------------------------------------ */

static unsigned index_of(const struct world *world, const struct member *member)
{
    return (unsigned)(member - world->members);
}

/* Corrupts some bytes of its memory; the second time puts them right. */
static void flip_bytes(const struct world *world, struct member *member)
{
    EXPECT_OK(node_call(member->node, "corrupt buf=model offset=%" PRIu64 " every=%" PRIu64,
                        world->plan.corrupt_every / 2, world->plan.corrupt_every));
}

static void begin_pull(struct world *world, struct member *member, enum get_wish wish)
{
    if (wish == GET_AGAIN)
        flip_bytes(world, member);
    else
        EXPECT_OK(node_call(member->node, "fill buf=model seed=%u", CONTENT_NONE));
    member->command = node_send(member->node, "get payload=model buf=model progress=20 no_share=%d reuse=%d",
                                wish == GET_PRIVATE, wish == GET_AGAIN);
    member->state = MEMBER_GETTING;
    member->is_private = wish == GET_PRIVATE;
    member->is_gold = false;
    member->done = 0;
    member->facts = (struct chaos_facts){.first_content = world->sure_content, .last_content = world->last_content};
    world->gets++;
    note_facts(world);
}

/* Sources that are said to have served wrong bytes did so. */
static void check_accusations(const struct world *world, const struct member *member, json_t *reply)
{
    json_t *source;
    size_t at;
    json_array_foreach(json_object_get(reply, "sources"), at, source)
    {
        const char *name = json_string_value(json_object_get(source, "name"));
        bool is_guilty = json_integer_value(json_object_get(source, "bad")) == 0;
        for (unsigned i = 0; i < world->plan.node_count; i++)
            is_guilty |= strcmp(world->members[i].name, name) == 0 && (member->facts.corrupt >> i & 1);
        if (!is_guilty)
            fail_msg("node %u says that %s served wrong bytes", index_of(world, member), name);
    }
    if (!has_status(reply, "CORRUPTED"))
        return;
    for (unsigned i = 0; i < world->plan.node_count; i++)
        if ((member->facts.corrupt >> i & 1) &&
            strstr(json_string_value(json_object_get(reply, "message")), world->members[i].name))
            return;
    fail_msg("node %u names nobody who was corrupted: %s", index_of(world, member),
             json_string_value(json_object_get(reply, "message")));
}

/* The pull on a member has ended: is that right? */
static void settle(struct world *world, struct member *member)
{
    json_t *reply = node_wait(member->node, member->command);
    const char *status = json_string_value(json_object_get(reply, "status"));
    const char *message = json_string_value(json_object_get(reply, "message"));
    const char *lie = chaos_judge(&member->facts, status);

    print_message("     node %u: get: %s %s\n", index_of(world, member), status, message);
    if (lie)
        fail_msg("node %u: get said %s (%s), but %s", index_of(world, member), status, message, lie);
    check_accusations(world, member, reply);
    if (!has_status(reply, "OK")) {
        if (has_status(reply, "NO_SOURCE|CORRUPTED|REPLACED|PAYLOAD_NOT_FOUND"))
            EXPECT_MESSAGE(reply, "model");
        member->state = MEMBER_IDLE;
        assert_int_equal(served_count(member->node), 0);
        return;
    }
    world->good_gets++;
    for (uint64_t content = member->facts.last_content; content >= member->facts.first_content; content--)
        if (find_difference(member->node, "model", content) < 0) {
            member->state = member->is_private ? MEMBER_IDLE : MEMBER_HOLDING;
            member->content = content;
            return;
        }
    fail_msg("node %u: wrong bytes (byte %" PRId64 " differs from the newest generation)", index_of(world, member),
             find_difference(member->node, "model", member->facts.last_content));
}

bool world_is_pulling(const struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++)
        if (world->members[i].state == MEMBER_GETTING || world->members[i].state == MEMBER_CREATING)
            return true;
    return false;
}

/* Lives ------------------------------------------------------------------------------------------------------------ */

static void send_create(struct world *world, struct member *member)
{
    const char *name = member->name;
    char fresh[64];
    if (!*name) {
        if (has_net)
            snprintf(fresh, sizeof fresh, NET ".%u:7000", index_of(world, member) + 1);
        else
            snprintf(fresh, sizeof fresh, "127.0.0.1:0");
        name = fresh;
    }
    member->command =
        node_send(member->node, "create uri=%s name=%s lease=%d stall=1500 connect=1500 digest_threads=1 timeout=10000",
                  world->fixture->uri, name, CHAOS_LEASE_MS);
    member->state = MEMBER_CREATING;
}

static int64_t process_of(struct member *member, const char *what)
{
    return json_integer_value(json_object_get(node_call(member->node, "process"), what));
}

static void begin_life(struct world *world, struct member *member, enum get_wish wish)
{
    char label[64];
    unsigned i = index_of(world, member);
    snprintf(label, sizeof label, "node-%u-life-%u", i, ++member->lives);
    member->node = node_spawn(label, has_net ? net_fds[i] : -1);
    member->get_when_joined = wish;
    member->fds_before = process_of(member, "fds");
    member->threads_before = process_of(member, "threads");
    EXPECT_OK(node_call(member->node, "buf buf=model sizes=%s", world->plan.cuts[i]));
    EXPECT_OK(node_call(member->node, "pace rate=%" PRIu64, world->plan.rate_bps));
    disturb(member);
    send_create(world, member);
}

static void joined(struct world *world, struct member *member)
{
    json_t *reply = node_wait(member->node, member->command);
    if (!has_status(reply, "OK")) {
        /* The name is free when the lease of the previous life is over. */
        EXPECT_STATUS(reply, member->lives > 1 ? "NAME_IN_USE|METADATA|TIMED_OUT" : "METADATA|TIMED_OUT");
        print_message("     node %u: create: %s\n", index_of(world, member),
                      json_string_value(json_object_get(reply, "message")));
        send_create(world, member);
        return;
    }
    snprintf(member->name, sizeof member->name, "%s", json_string_value(json_object_get(reply, "server_name")));
    member->state = MEMBER_IDLE;
    if (member->get_when_joined != GET_NOT)
        begin_pull(world, member, (enum get_wish)member->get_when_joined);
}

void world_look(struct world *world)
{
    observe(world);
    note_facts(world);
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        if (member->state == MEMBER_GETTING) {
            uint64_t done = node_progress(member->node, member->command);
            if (done > member->done) {
                world->moved_bytes += done - member->done;
                world->moved_ms = clock_now_ms();
                member->done = done;
            }
        }
        if ((member->state != MEMBER_GETTING && member->state != MEMBER_CREATING) || member->is_stopped ||
            !node_is_done(member->node, member->command))
            continue;
        world->moved_ms = clock_now_ms();
        if (member->state == MEMBER_GETTING)
            settle(world, member);
        else
            joined(world, member);
    }
}

void world_start(struct world *world)
{
    const struct chaos_plan *plan = &world->plan;

    world->observer = start_node(world->fixture, "observer", "lease=60000");
    for (unsigned i = 0; i < plan->node_count; i++)
        begin_life(world, &world->members[i], GET_NOT);
    WAIT_UNTIL((world_look(world), !world_is_pulling(world)));
    struct member *gold = &world->members[0];
    world->last_content = world->sure_content = 1;
    EXPECT_OK(node_call(gold->node, "fill buf=model seed=1"));
    EXPECT_OK(node_call(gold->node, "register payload=model buf=model piece=%" PRIu64 " shard=%" PRIu64, plan->piece,
                        plan->shard));
    gold->state = MEMBER_HOLDING;
    gold->is_gold = true;
    gold->content = 1;
    /* From the first moment there is a source that nobody may overlook. */
    WAIT_UNTIL((world_look(world), is_good_source(world, gold)));
    for (unsigned i = 1; i <= plan->first_count; i++)
        begin_pull(world, &world->members[i], GET_SHARED);
}

/* Events ----------------------------------------------------------------------------------------------------------- */

static void repair(struct world *world, struct member *member)
{
    if (!member->is_corrupt)
        return;
    flip_bytes(world, member); /* if anything is wrong now, a peer or a pull has written here */
    EXPECT_CONTENT(member->node, "model", member->content);
    member->is_corrupt = false;
}

/* Out of the swarm, but alive. */
static void drop(struct world *world, struct member *member)
{
    const char *verb = member->is_gold ? "unregister" : "delete_replica";
    if (member->state != MEMBER_HOLDING)
        return;
    json_t *reply = node_call(member->node, "%s payload=model timeout=2000", verb);
    EXPECT_STATUS(reply, has_meta(world, member) ? "OK" : "OK|METADATA|TIMED_OUT");
    assert_int_equal(served_count(member->node), 0);
    member->state = MEMBER_IDLE;
    disturb(member);
    repair(world, member);
    EXPECT_CONTENT(member->node, "model", member->content);
}

void world_keep_busy(struct world *world)
{
    unsigned first = world->plan.is_anchored ? 1 : 0, count = world->plan.node_count - first, others = 0;
    struct member *member = &world->members[first + random_below(&world->random, count)];

    if (world_is_pulling(world) || !is_alive(member) || member->is_corrupt)
        return;
    for (unsigned i = 0; i < world->plan.node_count; i++)
        others += &world->members[i] != member && is_good_source(world, &world->members[i]);
    if (!others)
        return;
    drop(world, member);
    begin_pull(world, member, GET_SHARED);
    print_message("     node %u: pulls again\n", index_of(world, member));
}

static void force(struct world *world, struct member *member)
{
    uint64_t content = world->last_content + 1;

    drop(world, member);
    EXPECT_OK(node_call(member->node, "fill buf=model seed=%" PRIu64, content));
    /* It may be there, although the answer was lost. */
    world->last_content = content;
    disturb_all(world);
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        world->members[i].facts.is_replaced = true;
        world->members[i].facts.lacked_source = true;
    }
    json_t *reply = node_call(member->node,
                              "register payload=model buf=model force=1 timeout=3000 piece=%" PRIu64 " shard=%" PRIu64,
                              world->plan.piece, world->plan.shard);
    EXPECT_STATUS(reply, has_meta(world, member) ? "OK" : "OK|METADATA|TIMED_OUT");
    if (!has_status(reply, "OK"))
        return;
    world->sure_content = content;
    member->state = MEMBER_HOLDING;
    member->is_gold = true;
    member->content = content;
}

static void resume(struct member *member)
{
    if (!member->is_stopped)
        return;
    node_signal(member->node, SIGCONT);
    member->is_stopped = false;
    disturb(member);
}

static void stop(struct world *world, struct member *member)
{
    if (world->etcd)
        node_signal(member->node, SIGSTOP);
    else
        stop_node(world->fixture, member->node);
    member->is_stopped = true;
}

static void end_life(struct member *member)
{
    node_kill(member->node);
    struct member next = {.lives = member->lives, .is_cut = member->is_cut, .healed_ms = member->healed_ms};
    memcpy(next.name, member->name, sizeof next.name);
    *member = next;
}

static void meta_stop(struct world *world)
{
    world->is_meta_away = world->is_meta_disturbed = true;
    disturb_all(world);
}

static bool do_meta(struct world *world, enum chaos_kind kind)
{
    bool is_away = kind == CHAOS_META_CONTINUE || kind == CHAOS_META_START;
    if (!world->etcd || world->is_meta_away != is_away)
        return false;
    if (kind == CHAOS_META_STOP)
        etcd_member_pause(world->etcd, 0);
    else if (kind == CHAOS_META_KILL)
        etcd_member_kill(world->etcd, 0);
    else if (kind == CHAOS_META_CONTINUE)
        etcd_member_resume(world->etcd, 0);
    else
        etcd_member_start(world->etcd, 0);
    if (!is_away)
        meta_stop(world);
    world->is_meta_away = !is_away;
    return true;
}

static bool do_cut(struct member *member, unsigned i, bool is_cut)
{
    if (!has_net || member->is_cut == is_cut)
        return false;
    set_cut(i, is_cut);
    member->is_cut = is_cut;
    member->healed_ms = clock_now_ms();
    disturb(member);
    return true;
}

/* false: makes no sense in the present state. */
static bool do_event(struct world *world, enum chaos_kind kind, unsigned i)
{
    struct member *member = &world->members[i];

    switch (kind) {
    case CHAOS_META_STOP:
    case CHAOS_META_CONTINUE:
    case CHAOS_META_KILL:
    case CHAOS_META_START:
        return do_meta(world, kind);
    case CHAOS_CUT:
    case CHAOS_HEAL:
        return do_cut(member, i, kind == CHAOS_CUT);
    case CHAOS_RESTART:
        if (member->node)
            return false;
        begin_life(world, member, GET_SHARED);
        return true;
    case CHAOS_CONTINUE:
    case CHAOS_CONTINUE_LATE:
        if (!member->is_stopped)
            return false;
        if (kind == CHAOS_CONTINUE_LATE && has_meta(world, member))
            WAIT_UNTIL((world_look(world), !member->listed_since_ms || !has_meta(world, member)));
        resume(member);
        return true;
    default:
        break;
    }
    if (!is_alive(member))
        return false;
    switch (kind) {
    case CHAOS_KILL:
        end_life(member);
        return true;
    case CHAOS_STOP:
        stop(world, member);
        return true;
    case CHAOS_SLOW:
    case CHAOS_FAST:
        EXPECT_OK(node_call(member->node, "pace rate=%" PRIu64,
                            kind == CHAOS_SLOW ? world->plan.rate_bps / 8 : world->plan.rate_bps));
        return true;
    case CHAOS_CANCEL:
        if (member->state != MEMBER_GETTING)
            return false;
        member->facts.is_canceled = true;
        node_call(member->node, "cancel id=%u", member->command);
        return true;
    case CHAOS_GET:
    case CHAOS_GET_PRIVATE:
    case CHAOS_GET_AGAIN:
        if (member->state == MEMBER_HOLDING && member->content != world->last_content)
            drop(world, member);
        if (member->state != MEMBER_IDLE)
            return false;
        begin_pull(world, member,
                   kind == CHAOS_GET_PRIVATE ? GET_PRIVATE
                   : kind == CHAOS_GET_AGAIN ? GET_AGAIN
                                             : GET_SHARED);
        return true;
    case CHAOS_CORRUPT:
        if (member->state != MEMBER_HOLDING || member->is_corrupt)
            return false;
        member->is_corrupt = true;
        note_facts(world);
        flip_bytes(world, member);
        return true;
    case CHAOS_REPAIR:
        if (!member->is_corrupt)
            return false;
        repair(world, member);
        return true;
    case CHAOS_DROP:
        if (member->state != MEMBER_HOLDING)
            return false;
        drop(world, member);
        return true;
    case CHAOS_FORCE:
        if (member->state != MEMBER_HOLDING && member->state != MEMBER_IDLE)
            return false;
        force(world, member);
        return true;
    default:
        fail_msg("no such event");
        return false;
    }
}

void world_do(struct world *world, const struct chaos_event *event)
{
    bool is_done = do_event(world, event->kind, event->node);
    print_message("     node %u: %s%s\n", event->node, chaos_kind_text(event->kind), is_done ? "" : " (not now)");
    note_facts(world);
}

/* The end ---------------------------------------------------------------------------------------------------------- */

void world_heal(struct world *world)
{
    print_message("     all is healed\n");
    if (world->is_meta_away) {
        etcd_member_start(world->etcd, 0);
        etcd_member_resume(world->etcd, 0);
        world->is_meta_away = false;
    }
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        do_cut(member, i, false);
        resume(member);
        if (!member->node)
            begin_life(world, member, GET_NOT);
        EXPECT_OK(node_call(member->node, "pace"));
        repair(world, member);
    }
    WAIT_UNTIL((world_look(world), !world->is_meta_disturbed));
    WAIT_UNTIL((world_look(world), !world_is_pulling(world)));
}

static bool is_good_somewhere(const struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++)
        if (is_good_source(world, &world->members[i]))
            return true;
    return false;
}

/* Who holds the newest generation is in the list again by itself. */
static void ensure_source(struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++)
        if (world->members[i].state == MEMBER_HOLDING && world->members[i].content == world->last_content) {
            WAIT_UNTIL((world_look(world), is_good_somewhere(world)));
            return;
        }
    force(world, &world->members[0]);
    WAIT_UNTIL((world_look(world), is_good_somewhere(world)));
}

static void expect_nothing_left_behind(struct world *world)
{
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        drop(world, member);
        assert_true(metric_of(member->node, 0, "shoal_engine_registered_bytes") == 0);
        EXPECT_OK(node_call(member->node, "close"));
        int64_t fds = process_of(member, "fds");
        if (fds > member->fds_before)
            fail_msg("node %u: %" PRId64 " descriptors before, %" PRId64 " after", i, member->fds_before, fds);
        /* A joined thread is counted until the kernel has forgotten it, and sanitizers have one of their own. */
        WAIT_UNTIL(process_of(member, "threads") <= member->threads_before + node_is_sanitized());
    }
    WAIT_UNTIL(!is_listed(world->observer, "model"));
}

void world_finish(struct world *world)
{
    ensure_source(world);
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        struct member *member = &world->members[i];
        if (member->state == MEMBER_HOLDING && member->content != world->last_content)
            drop(world, member);
        if (member->state == MEMBER_IDLE)
            begin_pull(world, member, GET_SHARED);
    }
    WAIT_UNTIL((world_look(world), !world_is_pulling(world)));
    for (unsigned i = 0; i < world->plan.node_count; i++) {
        assert_int_equal(world->members[i].state, MEMBER_HOLDING);
        EXPECT_CONTENT(world->members[i].node, "model", world->last_content);
    }
    WAIT_UNTIL(source_count(world->observer, "model") == world->plan.node_count);
    expect_nothing_left_behind(world);
    node_stop_all();
}
