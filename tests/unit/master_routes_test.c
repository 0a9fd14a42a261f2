/* SPDX-License-Identifier: Apache-2.0 */
/* The master's routes and tombstones, compared with simple models over random operations. */
#include "unit.h"

#include "master/routes.h"
#include "master/tombstones.h"

#define KEYS 48
#define CLIENTS 6
#define OBJECTS 4 /* different ids per key */

static struct routes *create(uint64_t seed)
{
    struct routes_config config = {.max_clients = CLIENTS, .seed = seed};
    struct routes *routes = NULL;

    assert_int_equal(routes_create(&config, &routes, NULL), SHOAL_OK);
    return routes;
}

/* --- model --- */

struct model_route {
    uint64_t object_id; /* 0: none */
    bool has[CLIENTS];
    uint16_t tier[CLIENTS], epoch[CLIENTS];
};
struct model {
    struct model_route routes[KEYS];
};

/* Prefixes of each other, bytes above 127, and different lengths. */
static size_t key_of(unsigned i, char key[64])
{
    static const char *const stems[] = {"a", "ab", "abc", "\xff", "z/", "model-7/layer-12/block-"};
    return (size_t)snprintf(key, 64, "%s%u", stems[i % 6], i / 6);
}

static bool is_empty(const struct model_route *route)
{
    for (unsigned c = 0; c < CLIENTS; c++)
        if (route->has[c])
            return false;
    return true;
}

static void settle(struct model_route *route)
{
    if (is_empty(route))
        route->object_id = 0;
}

struct seen {
    struct model *model;
    char last[64];
    size_t last_len, count;
};

static bool visit(void *arg, const struct route_view *view)
{
    struct seen *seen = arg;
    size_t len = seen->last_len < view->key_len ? seen->last_len : view->key_len;
    int order = memcmp(seen->last, view->key, len);

    if (seen->count)
        assert_true(order < 0 || (order == 0 && seen->last_len < view->key_len));
    memcpy(seen->last, view->key, view->key_len);
    seen->last_len = view->key_len;
    seen->count++;
    return true;
}

static void compare(struct routes *routes, struct model *model)
{
    size_t count = 0, of_client[CLIENTS] = {0};
    struct seen seen = {.model = model};

    for (unsigned i = 0; i < KEYS; i++) {
        const struct model_route *expected = &model->routes[i];
        struct route_replica replicas[ROUTE_REPLICAS_MAX];
        struct route_view view;
        char key[64];
        size_t len = key_of(i, key), replica_count, expected_count = 0;

        assert_int_equal(routes_get(routes, key, len, &view), expected->object_id != 0);
        if (!expected->object_id)
            continue;
        count++;
        assert_int_equal(view.object_id, expected->object_id);
        assert_int_equal(view.len_bytes, expected->object_id * 10);
        assert_int_equal(view.key_len, len);
        assert_memory_equal(view.key, key, len);
        replica_count = routes_replicas(routes, &view, replicas);
        for (unsigned c = 0; c < CLIENTS; c++) {
            expected_count += expected->has[c];
            of_client[c] += expected->has[c];
        }
        assert_int_equal(replica_count, expected_count);
        for (size_t r = 0; r < replica_count; r++) {
            assert_true(expected->has[replicas[r].client]);
            assert_int_equal(replicas[r].tier, expected->tier[replicas[r].client]);
            assert_int_equal(replicas[r].epoch, expected->epoch[replicas[r].client]);
        }
    }
    assert_int_equal(routes_count(routes), count);
    assert_int_equal(routes_walk(routes, NULL, 0, false, SIZE_MAX, visit, &seen), count);
    assert_int_equal(seen.count, count);
    for (uint32_t c = 0; c < CLIENTS; c++)
        assert_int_equal(routes_of_client(routes, c), of_client[c]);
}

static void step(struct routes *routes, struct model *model, struct random *random, uint16_t epoch)
{
    unsigned i = (unsigned)random_below(random, KEYS);
    uint32_t client = (uint32_t)random_below(random, CLIENTS);
    uint64_t object_id = 1 + random_below(random, OBJECTS);
    uint16_t tier = (uint16_t)random_below(random, 3);
    struct model_route *route = &model->routes[i];
    char key[64];
    size_t len = key_of(i, key), before, dropped;

    switch (random_below(random, 16)) {
    default:
        if (route->object_id && route->object_id != object_id) {
            assert_int_equal(routes_add(routes, key, len, object_id, object_id * 10, client, tier, epoch),
                             SHOAL_EXISTS);
            break;
        }
        assert_int_equal(routes_add(routes, key, len, object_id, object_id * 10, client, tier, epoch), SHOAL_OK);
        route->object_id = object_id;
        route->has[client] = true;
        route->tier[client] = tier;
        route->epoch[client] = epoch;
        break;
    case 0:
    case 1:
    case 2:
        if (random_below(random, 4) == 0)
            object_id = 0;
        if (route->has[client] && (!object_id || route->object_id == object_id)) {
            assert_int_equal(routes_drop(routes, key, len, object_id, client), SHOAL_OK);
            route->has[client] = false;
            settle(route);
        } else {
            assert_int_equal(routes_drop(routes, key, len, object_id, client), SHOAL_NOT_FOUND);
        }
        break;
    case 3:
        assert_int_equal(routes_remove(routes, key, len), route->object_id ? SHOAL_OK : SHOAL_NOT_FOUND);
        *route = (struct model_route){0};
        break;
    case 4: /* a client dies, in slices; seldom */
        if (random_below(random, 16) != 0)
            break;
        while ((dropped = routes_drop_client(routes, client, 3)) == 3)
            ;
        assert_true(dropped < 3);
        for (unsigned k = 0; k < KEYS; k++) {
            model->routes[k].has[client] = false;
            settle(&model->routes[k]);
        }
        break;
    case 5: /* what was not confirmed in this epoch goes, once everything older was confirmed or is stale */
        if (random_below(random, 8) != 0)
            break;
        before = routes_of_client(routes, client);
        dropped = routes_drop_stale(routes, client, epoch, SIZE_MAX);
        assert_int_equal(routes_of_client(routes, client), before - dropped);
        for (unsigned k = 0; k < KEYS; k++) {
            if (model->routes[k].epoch[client] != epoch)
                model->routes[k].has[client] = false;
            settle(&model->routes[k]);
        }
        break;
    }
}

static void behaves_like_the_model(void **state)
{
    uint64_t first = test_seed();

    (void)state;
    for (uint64_t seed = first; seed < first + 200; seed++) {
        struct routes *routes = create(seed);
        struct model model = {0};
        struct random random;
        random_init(&random, seed);
        for (unsigned n = 0; n < 600; n++) {
            step(routes, &model, &random, (uint16_t)(n / 100));
            if (n % 20 == 0)
                compare(routes, &model);
        }
        compare(routes, &model);
        routes_destroy(routes);
    }
}

/* --- single properties --- */

static void keys_and_clients_have_bounds(void **state)
{
    struct routes *routes = create(1);
    struct routes_config small = {.max_routes = 2, .max_clients = 100};
    struct routes *two = NULL;
    char key[ROUTE_KEY_MAX_BYTES + 1];

    (void)state;
    memset(key, 'k', sizeof key);
    assert_int_equal(routes_add(routes, key, 0, 1, 1, 0, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(routes_add(routes, key, sizeof key, 1, 1, 0, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(routes_add(routes, key, 1, 1, 1, CLIENTS, 0, 0), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(routes_add(routes, key, sizeof key - 1, 1, 1, 0, 0, 0), SHOAL_OK);
    assert_int_equal(routes_count(routes), 1);
    routes_destroy(routes);

    assert_int_equal(routes_create(&small, &two, NULL), SHOAL_OK);
    for (uint32_t c = 0; c < ROUTE_REPLICAS_MAX; c++)
        assert_int_equal(routes_add(two, "a", 1, 1, 1, c, 0, 0), SHOAL_OK);
    assert_int_equal(routes_add(two, "a", 1, 1, 1, ROUTE_REPLICAS_MAX, 0, 0), SHOAL_LIMIT);
    assert_int_equal(routes_add(two, "b", 1, 2, 1, 0, 0, 0), SHOAL_OK);
    assert_int_equal(routes_add(two, "c", 1, 3, 1, 0, 0, 0), SHOAL_LIMIT);
    assert_int_equal(routes_drop(two, "b", 1, 2, 0), SHOAL_OK);
    assert_int_equal(routes_add(two, "c", 1, 3, 1, 0, 0, 0), SHOAL_OK);
    routes_destroy(two);
}

static bool take_one(void *arg, const struct route_view *view)
{
    char *to = arg;
    memcpy(to, view->key, view->key_len);
    to[view->key_len] = '\0';
    return false;
}

/* A page's cursor is its last key: it stays good whatever happens to the routes between two pages. */
static void a_walk_goes_on_after_changes(void **state)
{
    struct routes *routes = create(7);
    char last[64] = "", key[16];

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "k%02u", i);
        assert_int_equal(routes_add(routes, key, 3, i + 1, 1, 0, 0, 0), SHOAL_OK);
    }
    assert_int_equal(routes_walk(routes, "k10", 3, true, 10, take_one, last), 1);
    assert_string_equal(last, "k10");
    assert_int_equal(routes_remove(routes, "k10", 3), SHOAL_OK);
    assert_int_equal(routes_remove(routes, "k11", 3), SHOAL_OK);
    assert_int_equal(routes_walk(routes, last, 3, false, 10, take_one, last), 1);
    assert_string_equal(last, "k12");
    assert_int_equal(routes_walk(routes, "k99", 3, false, 10, take_one, last), 0);
    assert_int_equal(routes_walk(routes, "k", 1, false, 10, take_one, last), 1);
    assert_string_equal(last, "k00");
    routes_destroy(routes);
}

static void memory_is_counted_and_used_again(void **state)
{
    struct routes *routes = create(3);
    size_t empty = routes_bytes(routes), full;
    char key[33];

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 20000; i++) {
            snprintf(key, sizeof key, "%032u", i * 7919);
            assert_int_equal(routes_add(routes, key, 32, i + 1, 1, i % CLIENTS, 0, 0), SHOAL_OK);
        }
        full = routes_bytes(routes);
        assert_true(full > empty + 20000 * 100 && full < empty + 20000 * 200);
        for (uint32_t c = 0; c < CLIENTS; c++)
            while (routes_drop_client(routes, c, 1000) == 1000)
                ;
        assert_int_equal(routes_count(routes), 0);
        assert_true(routes_bytes(routes) < full - 20000 * 32);
    }
    routes_destroy(routes);
}

/* --- tombstones --- */

static void tombstones_behave_like_the_model(void **state)
{
    enum { IDS = 400, MAX = 100, AGE_MS = 50 };
    uint64_t first = test_seed();

    (void)state;
    for (uint64_t seed = first; seed < first + 50; seed++) {
        struct {
            uint64_t id;
            int64_t at_ms;
        } model[MAX];
        size_t count = 0;
        struct tombstones tombstones;
        struct random random;
        int64_t now_ms = 0;
        tombstones_init(&tombstones, MAX, AGE_MS);
        random_init(&random, seed);
        for (unsigned n = 0; n < 5000; n++) {
            uint64_t id = (1 + random_below(&random, IDS)) << (8 * (n % 2));
            bool is_there = false;
            for (size_t i = 0; i < count; i++)
                is_there = is_there || model[i].id == id;
            assert_int_equal(tombstones_has(&tombstones, id), is_there);
            if (random_below(&random, 4) == 0) {
                now_ms += (int64_t)random_below(&random, 5);
                while (count && now_ms - model[0].at_ms >= AGE_MS)
                    memmove(model, model + 1, --count * sizeof model[0]);
                tombstones_expire(&tombstones, now_ms, SIZE_MAX);
            } else if (!is_there) {
                if (count == MAX)
                    memmove(model, model + 1, --count * sizeof model[0]);
                model[count].id = id;
                model[count++].at_ms = now_ms;
            }
            if (!is_there && count && model[count - 1].id == id)
                assert_true(tombstones_add(&tombstones, id, now_ms));
            assert_int_equal(tombstones.count, count);
        }
        tombstones_release(&tombstones);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaves_like_the_model),           cmocka_unit_test(keys_and_clients_have_bounds),
        cmocka_unit_test(a_walk_goes_on_after_changes),     cmocka_unit_test(memory_is_counted_and_used_again),
        cmocka_unit_test(tombstones_behave_like_the_model),
    };
    return cmocka_run_group_tests_name("master_routes", tests, NULL, NULL);
}
