/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that come, go, stop, die, cancel and replace payloads in an order that a seed decides (SHOAL_TEST_SEED repeats
 * it). Whatever happens: who is told OK has one generation whole, every error is one that fits, and in the end
 * everybody gets the last generation. */
#include "itest.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define NODES 6
#define SIZE (8 * MIB + 12345)
#define STEPS (node_is_sanitized() ? 60 : 120)

struct member {
    struct node *node;
    unsigned get; /* running; 0: none */
    bool is_gold, has_replica, is_stopped;
};

struct world {
    struct fixture *fixture;
    struct random random;
    struct member members[NODES];
    uint64_t last_seed; /* content of the newest generation; each has its own */
    unsigned gets, good_gets;
};

static void revive(struct world *world, size_t i)
{
    char label[32];
    snprintf(label, sizeof label, "member %zu", i);
    world->members[i] = (struct member){
        .node = start_node(world->fixture, label, "lease=3000 stall=1500 connect=1500 digest_threads=1")};
    EXPECT_OK(node_call(world->members[i].node, "buf buf=model sizes=%llu", (unsigned long long)SIZE));
    /* Pulls take several steps. */
    EXPECT_OK(node_call(world->members[i].node, "pace rate=3000000"));
}

static void resume(struct member *member)
{
    if (member->is_stopped)
        node_signal(member->node, SIGCONT);
    member->is_stopped = false;
}

/* A generation that was current at some time, whole. */
static void expect_some_generation(struct world *world, struct member *member)
{
    for (uint64_t seed = world->last_seed; seed > 0; seed--)
        if (find_difference(member->node, "model", seed) < 0)
            return;
    fail_msg("a mixture, or bytes that nobody registered");
}

/* The end of a pull that runs on the member, if any. */
static void settle(struct world *world, struct member *member)
{
    if (!member->get)
        return;
    resume(member);
    json_t *reply = node_wait(member->node, member->get);
    member->get = 0;
    world->gets++;
    EXPECT_STATUS(reply, "OK|CANCELED|REPLACED|NO_SOURCE|PAYLOAD_NOT_FOUND|TIMED_OUT");
    if (has_status(reply, "OK")) {
        member->has_replica = true;
        world->good_gets++;
        expect_some_generation(world, member);
    } else {
        assert_int_equal(served_count(member->node), 0);
    }
}

static void drop(struct world *world, struct member *member)
{
    settle(world, member);
    resume(member);
    if (member->is_gold)
        EXPECT_OK(node_call(member->node, "unregister payload=model"));
    else if (member->has_replica)
        EXPECT_OK(node_call(member->node, "delete_replica payload=model"));
    member->is_gold = member->has_replica = false;
    assert_int_equal(served_count(member->node), 0);
}

static void seed_new_generation(struct world *world, struct member *member)
{
    drop(world, member);
    world->last_seed++;
    EXPECT_OK(node_call(member->node, "fill buf=model seed=%llu", (unsigned long long)world->last_seed));
    EXPECT_OK(node_call(member->node, "register payload=model buf=model force=1 piece=65536"));
    member->is_gold = true;
}

static void step(struct world *world)
{
    size_t i = random_below(&world->random, NODES);
    struct member *member = &world->members[i];
    switch (random_below(&world->random, 12)) {
    case 0:
        node_kill(member->node);
        revive(world, i);
        break;
    case 1:
        if (!member->is_stopped)
            stop_node(world->fixture, member->node);
        member->is_stopped = true;
        break;
    case 2:
        seed_new_generation(world, member);
        break;
    case 3:
        if (member->get && !member->is_stopped)
            node_call(member->node, "cancel id=%u", member->get);
        settle(world, member);
        break;
    case 4:
    case 5:
        if (!member->is_gold || random_below(&world->random, 4) == 0)
            drop(world, member);
        break;
    case 6:
        resume(member);
        break;
    default:
        settle(world, member);
        if (member->is_gold || member->has_replica)
            break;
        resume(member);
        EXPECT_OK(node_call(member->node, "fill buf=model seed=987654321"));
        member->get = node_send(member->node, "get payload=model buf=model timeout=8000");
    }
}

static void churn(void **state)
{
    struct world world = {.fixture = *state};
    const char *given = getenv("SHOAL_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : random_id();
    print_message("seed %llu (SHOAL_TEST_SEED)\n", (unsigned long long)seed);
    random_init(&world.random, seed);
    for (size_t i = 0; i < NODES; i++)
        revive(&world, i);
    seed_new_generation(&world, &world.members[0]);
    for (int i = 0; i < STEPS; i++)
        step(&world);

    print_message("%u of %u pulls went well, %llu generations\n", world.good_gets, world.gets,
                  (unsigned long long)world.last_seed);

    /* Calm again. */
    for (size_t i = 0; i < NODES; i++)
        resume(&world.members[i]);
    for (size_t i = 0; i < NODES; i++)
        drop(&world, &world.members[i]);
    seed_new_generation(&world, &world.members[NODES - 1]);
    for (size_t i = 0; i + 1 < NODES; i++)
        world.members[i].get = node_send(world.members[i].node, "get payload=model buf=model");
    for (size_t i = 0; i + 1 < NODES; i++) {
        EXPECT_OK(node_wait(world.members[i].node, world.members[i].get));
        EXPECT_CONTENT(world.members[i].node, "model", world.last_seed);
    }
    WAIT_UNTIL(source_count(world.members[0].node, "model") == NODES);
    node_stop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {ITEST(churn)};
    return cmocka_run_group_tests_name("churn", tests, NULL, NULL);
}
