/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a caller's time one of several owners gets. Routes come from the cache; the linker puts the functions
 * below in the place of the reads (meson.build). */
#include "unit.h"

#include "kv/client_internal.h"

#define CALLER_MS 3600000
#define PATIENCE_MS 10000 /* of an owner with nothing to move */
#define MB UINT64_C(1000000)
#define CALLS_MAX 8

static struct {
    int64_t deadline_ms;
    uint64_t instance;
    size_t count;
} calls[CALLS_MAX];
static size_t call_count;
static enum shoal_status answers[CALLS_MAX];

static struct {
    int64_t deadline_ms;
    uint64_t instance;
} pings[CALLS_MAX];
static size_t ping_count;
static enum shoal_status ping_answers[CALLS_MAX];

enum shoal_status __wrap_peer_ping(struct peers *peers, const struct peer_address *owner, const struct call *call,
                                   struct shoal_error *error);

enum shoal_status __wrap_peer_ping(struct peers *peers, const struct peer_address *owner, const struct call *call,
                                   struct shoal_error *error)
{
    enum shoal_status status;

    (void)peers;
    assert_true(ping_count < CALLS_MAX);
    status = ping_answers[ping_count];
    pings[ping_count].deadline_ms = call->deadline_ms;
    pings[ping_count++].instance = owner->instance;
    return status ? error_set(error, status, 0, "as the test wants") : SHOAL_OK;
}

enum shoal_status __wrap_peer_read_shared(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                                          const struct call *call, struct shoal_error *error);
enum shoal_status __wrap_peer_read_batch(struct peers *peers, const struct peer_address *owner, struct peer_read *reads,
                                         size_t count, const struct call *call, struct shoal_error *error);

enum shoal_status __wrap_peer_read_batch(struct peers *peers, const struct peer_address *owner, struct peer_read *reads,
                                         size_t count, const struct call *call, struct shoal_error *error)
{
    enum shoal_status status;

    (void)peers;
    assert_true(call_count < CALLS_MAX);
    status = answers[call_count];
    calls[call_count].deadline_ms = call->deadline_ms;
    calls[call_count].instance = owner->instance;
    calls[call_count++].count = count;
    for (size_t i = 0; i < count; i++)
        reads[i].status = status;
    return status ? error_set(error, status, 0, "as the test wants") : SHOAL_OK;
}

enum shoal_status __wrap_peer_read_shared(struct peers *peers, const struct peer_address *owner, struct peer_read *read,
                                          const struct call *call, struct shoal_error *error)
{
    return __wrap_peer_read_batch(peers, owner, read, 1, call, error);
}

struct world {
    struct shoal_kv kv;
    struct shoal_kv_item items[2];
    struct call call;
    struct kv_set set;
    int64_t before_ms, after_ms; /* the get */
};

static void world_init(struct world *world, int64_t timeout_ms)
{
    *world = (struct world){.kv = {.routes = route_cache_create(16, CALLER_MS), .instance = 1},
                            .items = {{.key = "a"}, {.key = "b"}},
                            .call = {.deadline_ms = deadline_after_ms(timeout_ms)}};
    assert_non_null(world->kv.routes);
    memset(answers, 0, sizeof answers);
    memset(ping_answers, 0, sizeof ping_answers);
    call_count = ping_count = 0;
}

static void world_release(struct world *world)
{
    route_cache_destroy(world->kv.routes);
}

static void know(struct world *world, const char *key, uint64_t len_bytes, size_t owner_count, bool is_reversed)
{
    struct session_replica owners[] = {{.instance = 7, .server_name = "s", .address = "a:1"},
                                       {.instance = 8, .server_name = "t", .address = "b:1"}};

    if (is_reversed) {
        owners[0].instance = 8;
        owners[1].instance = 7;
    }
    route_cache_put(world->kv.routes, key, 5, len_bytes, owners, owner_count, clock_now_ms());
}

static void get(struct world *world, size_t count)
{
    world->set = (struct kv_set){
        .kv = &world->kv, .items = world->items, .count = count, .call = &world->call, .failed_index = count};
    mutex_init(&world->set.mutex, RANK_KV);
    for (size_t i = 0; i < count; i++)
        world->items[i].status = KV_PENDING;
    world->before_ms = clock_now_ms();
    kv_direct_get(&world->set, true);
    world->after_ms = clock_now_ms();
    mutex_release(&world->set.mutex);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(world->items[i].status, SHOAL_OK);
}

static void expect_share(const struct world *world, size_t at, int64_t share_ms)
{
    assert_in_range(calls[at].deadline_ms, world->before_ms + share_ms, world->after_ms + share_ms);
}

static void a_small_value_gets_a_fixed_time(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", 9999, 2, false);
    get(&world, 1);
    assert_int_equal(call_count, 1);
    assert_int_equal(ping_count, 0);
    expect_share(&world, 0, PATIENCE_MS);
    world_release(&world);
}

/* 10 MB/s are expected at least. */
static void a_large_value_gets_time_to_be_moved(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", 4000 * MB, 2, false);
    get(&world, 1);
    assert_int_equal(call_count, 1);
    assert_int_equal(ping_count, 1);
    assert_int_equal(pings[0].instance, calls[0].instance);
    expect_share(&world, 0, PATIENCE_MS + 400000);
    world_release(&world);
}

static void values_that_travel_together_get_the_time_of_all(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", 4000 * MB, 2, false);
    know(&world, "b", 100 * MB, 2, true); /* owners are asked in turn: the same one, now */
    get(&world, 2);
    assert_int_equal(call_count, 1);
    assert_int_equal(calls[0].count, 2);
    expect_share(&world, 0, PATIENCE_MS + 410000);
    world_release(&world);
}

static void no_owner_gets_more_than_the_caller_has(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", UINT64_MAX, 2, false);
    get(&world, 1);
    assert_int_equal(calls[0].deadline_ms, world.call.deadline_ms);
    world_release(&world);
}

static void the_last_owner_gets_all_that_is_left(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", 1000 * MB, 2, false);
    answers[0] = SHOAL_TIMED_OUT;
    get(&world, 1);
    assert_int_equal(call_count, 2);
    expect_share(&world, 0, PATIENCE_MS + 100000);
    assert_int_equal(calls[1].deadline_ms, world.call.deadline_ms);
    assert_int_not_equal(calls[0].instance, calls[1].instance);
    world_release(&world);
}

/* Though there would be time to move it; both values are asked of the other owner. */
static void an_owner_that_hangs_is_not_asked_for_large_values(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, PATIENCE_MS);
    know(&world, "a", 1000 * MB, 2, false);
    know(&world, "b", 1000 * MB, 2, true);
    ping_answers[0] = SHOAL_TIMED_OUT;
    get(&world, 2);
    assert_int_equal(ping_count, 1);
    assert_in_range(pings[0].deadline_ms, world.before_ms + PATIENCE_MS / 4 - 1, world.after_ms + PATIENCE_MS / 4 + 1);
    assert_int_equal(call_count, 1);
    assert_int_equal(calls[0].count, 2);
    assert_int_not_equal(calls[0].instance, pings[0].instance);
    assert_int_equal(calls[0].deadline_ms, world.call.deadline_ms);
    world_release(&world);
}

static void a_single_owner_gets_everything(void **state)
{
    struct world world;

    (void)state;
    world_init(&world, CALLER_MS);
    know(&world, "a", 4000 * MB, 1, false);
    get(&world, 1);
    assert_int_equal(ping_count, 0);
    assert_int_equal(calls[0].deadline_ms, world.call.deadline_ms);
    world_release(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_value_gets_a_fixed_time),
        cmocka_unit_test(a_large_value_gets_time_to_be_moved),
        cmocka_unit_test(values_that_travel_together_get_the_time_of_all),
        cmocka_unit_test(no_owner_gets_more_than_the_caller_has),
        cmocka_unit_test(the_last_owner_gets_all_that_is_left),
        cmocka_unit_test(an_owner_that_hangs_is_not_asked_for_large_values),
        cmocka_unit_test(a_single_owner_gets_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
