/* SPDX-License-Identifier: Apache-2.0 */
/* Chaos: nodes are killed, stopped, cut off, slowed down and restarted, their memory is corrupted, payloads are
 * replaced and withdrawn and the metadata service goes away, all while pulls run. What happens is a function of the
 * seed; when it happens depends on how far the pulls are. Whatever happens: a pull that says OK has one generation
 * whole, an error is one that the events explain, nothing hangs, nothing is left behind, and when all is healed
 * everybody gets the payload.
 *
 *     chaos_test [--seed N] [--seeds A-B]        default: seeds 1-6; SHOAL_TEST_SEED=N as --seed N
 *
 * A seed that fails prints its plan and where the logs of its nodes are. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chaos_world.h"
#include "tmpdir.h"

#define QUIET_MS 500 /* nothing has moved for so long: an event does not wait for its bytes any longer */
#define SEEDS_MAX 10000u

static bool has_net;

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    uint64_t seed = (uint64_t)(uintptr_t)*state;
    void *fixture = NULL;

    if (!world || itest_setup(&fixture) != 0)
        return -1;
    world->fixture = fixture;
    chaos_plan_make(seed, node_is_sanitized() ? 8 * MIB : 32 * MIB, &world->plan);
    random_init(&world->random, ~seed);
    if (world->plan.is_etcd && !etcd_is_available())
        world->plan.is_etcd = false;
    if (world->plan.is_etcd) {
        world->etcd = etcd_cluster_start_at(has_net ? "10.77.0.254" : "127.0.0.1", 1);
        snprintf(world->fixture->uri, sizeof world->fixture->uri, "%s", etcd_cluster_uri(world->etcd));
    }
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;
    void *fixture = world->fixture;

    if (!world->is_passed) {
        char *logs = tmpdir_make();
        node_save_logs(logs);
        fprintf(stderr, "failed with --seed %" PRIu64 "; the nodes' logs are in %s\n", world->plan.seed, logs);
        chaos_plan_print(&world->plan, stderr);
        free(logs);
    }
    int result = itest_teardown(&fixture);
    etcd_cluster_stop(world->etcd);
    free(world);
    return result;
}

/* Until so much more has been pulled, or nothing moves any more. */
static void wait_for_bytes(struct world *world, uint64_t bytes)
{
    uint64_t from = world->moved_bytes;
    int64_t start = clock_now_ms();

    for (;;) {
        world_look(world);
        int64_t now = clock_now_ms();
        if (world->moved_bytes - from >= bytes || !world_is_pulling(world) ||
            (now - world->moved_ms >= QUIET_MS && now - start >= QUIET_MS))
            return;
        nap();
    }
}

static void chaos(void **state)
{
    struct world *world = *state;
    const struct chaos_plan *plan = &world->plan;

    chaos_plan_print(plan, stdout);
    fflush(stdout);
    world_start(world);
    for (unsigned i = 0; i < plan->event_count; i++) {
        world_keep_busy(world);
        wait_for_bytes(world, plan->events[i].after_bytes);
        world_do(world, &plan->events[i]);
    }
    world_heal(world);
    world_finish(world);
    print_message("     %u of %u pulls went well, %" PRIu64 " generations\n", world->good_gets, world->gets,
                  world->last_content);
    world->is_passed = true;
}

static bool is_harmless(enum chaos_kind kind)
{
    return kind == CHAOS_GET || kind == CHAOS_GET_PRIVATE || kind == CHAOS_GET_AGAIN || kind == CHAOS_FORCE ||
           kind >= CHAOS_META_STOP;
}

/* A seed always makes the same plan, and one that keeps its own promises. */
static void plans(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        static struct chaos_plan plan, again;
        chaos_plan_make(seed, 32 * MIB, &plan);
        chaos_plan_make(seed, 32 * MIB, &again);
        assert_memory_equal(&plan, &again, sizeof plan);
        assert_in_range(plan.size, 512 * 1024, 32 * MIB);
        assert_in_range(plan.node_count, 3, CHAOS_NODES_MAX);
        assert_in_range(plan.first_count, 1, plan.node_count - 1);
        assert_true(plan.event_count >= 1 && plan.rate_bps > 0 && plan.corrupt_every > 0);
        for (unsigned i = 0; i < plan.node_count; i++) {
            uint64_t sum = 0;
            for (const char *at = plan.cuts[i]; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
                sum += strtoull(at, NULL, 10);
            assert_true(sum == plan.size);
        }
        for (unsigned i = 0; i < plan.event_count; i++) {
            assert_true(plan.events[i].node < plan.node_count);
            if (plan.is_anchored && plan.events[i].node == 0)
                assert_true(is_harmless(plan.events[i].kind));
            if (plan.events[i].kind >= CHAOS_META_STOP)
                assert_true(plan.is_etcd);
        }
    }
}

static bool parse_seeds(int argc, char **argv, uint64_t *first, uint64_t *last)
{
    const char *given = getenv("SHOAL_TEST_SEED");
    char *end;

    *first = 1;
    *last = 6;
    if (argc == 1) {
        if (given)
            *first = *last = strtoull(given, NULL, 0);
        return true;
    }
    if (argc != 3)
        return false;
    errno = 0;
    *first = *last = strtoull(argv[2], &end, 0);
    if (end == argv[2] || errno)
        return false;
    if (strcmp(argv[1], "--seed") == 0)
        return *end == '\0';
    if (strcmp(argv[1], "--seeds") != 0 || *end != '-')
        return false;
    given = end + 1;
    *last = strtoull(given, &end, 0);
    return end != given && !*end && !errno && *last >= *first && *last - *first < SEEDS_MAX;
}

int main(int argc, char **argv)
{
    uint64_t first, last;

    if (!parse_seeds(argc, argv, &first, &last)) {
        fprintf(stderr, "usage: %s [--seed N] [--seeds A-B]   (at most %u seeds)\n", argv[0], SEEDS_MAX);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    has_net = chaos_net_create();
    if (!has_net)
        fprintf(stderr, "no network namespaces: nobody is cut off\n");
    size_t count = (size_t)(last - first + 1);
    struct CMUnitTest *tests = calloc(1 + count, sizeof *tests);
    char(*names)[32] = calloc(count, sizeof *names);
    if (!tests || !names)
        return 1;
    tests[0] = (struct CMUnitTest)cmocka_unit_test(plans);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "seed %" PRIu64, first + i);
        tests[1 + i] = (struct CMUnitTest){.name = names[i],
                                           .test_func = chaos,
                                           .setup_func = setup,
                                           .teardown_func = teardown,
                                           .initial_state = (void *)(uintptr_t)(first + i)};
    }
    int failed = _cmocka_run_group_tests("chaos", tests, 1 + count, NULL, NULL);
    free(names);
    free(tests);
    return failed;
}
