/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of pins and held writes, by an explicit clock. */
#include "unit.h"

#include "kv/leases.h"

enum { LEASE_MS = 1000 };

/* Objects are addresses of bytes that count how often they were given back. */
static void count_release(void *arg, const struct lease_holding *holding)
{
    unsigned *total = arg;

    ++*total;
    if (holding->object)
        ++*(uint8_t *)holding->object;
    if (holding->staging)
        ++*(uint8_t *)holding->staging;
    if (holding->allocation)
        ++*(uint8_t *)holding->allocation;
}

static void make(struct leases *leases, unsigned *total)
{
    struct leases_config config = {
        .lease_ms = LEASE_MS, .max = 6, .max_per_peer = 4, .max_staging = 2, .release = count_release, .arg = total};

    *total = 0;
    leases_init(leases, &config);
}

static uint64_t pin(struct leases *leases, const char *peer, uint8_t *object, int64_t now_ms)
{
    struct lease_holding holding = {.kind = LEASE_PIN, .object = (struct tier_object *)object};
    uint64_t id = 0;

    assert_int_equal(leases_add(leases, peer, &holding, now_ms, &id, NULL), SHOAL_OK);
    assert_true(id != 0);
    return id;
}

static void a_lease_ends_by_time(void **state)
{
    uint8_t objects[3] = {0};
    struct leases leases;
    unsigned total;
    uint64_t ids[3];
    (void)state;
    make(&leases, &total);
    for (int i = 0; i < 3; i++)
        ids[i] = pin(&leases, "a", &objects[i], 100 * i);
    assert_true(ids[0] != ids[1] && ids[1] != ids[2]);
    leases_expire(&leases, LEASE_MS - 1);
    assert_int_equal(total, 0);
    leases_expire(&leases, LEASE_MS);
    assert_int_equal(total, 1);
    assert_int_equal(objects[0], 1);
    assert_int_equal(leases_renew(&leases, ids[0], LEASE_MS), SHOAL_NOT_FOUND);
    leases_expire(&leases, LEASE_MS + 500);
    assert_int_equal(total, 3);
    assert_int_equal(leases.expired, 3);
    assert_int_equal(leases_count(&leases), 0);
    leases_release(&leases);
    assert_int_equal(total, 3);
}

/* Renewed again and again it never ends, and what was renewed does not hide what was not. */
static void a_renewed_lease_stays(void **state)
{
    uint8_t renewed = 0, left = 0;
    struct leases leases;
    unsigned total;
    uint64_t id;
    (void)state;
    make(&leases, &total);
    id = pin(&leases, "a", &renewed, 0);
    pin(&leases, "a", &left, 10);
    for (int64_t now = 0; now < 20 * LEASE_MS; now += LEASE_MS / 2) {
        assert_int_equal(leases_renew(&leases, id, now), SHOAL_OK);
        leases_expire(&leases, now);
        assert_int_equal(left, now >= LEASE_MS + 10);
    }
    assert_int_equal(renewed, 0);
    /* Late is not too late as long as nobody has ended it. */
    assert_int_equal(leases_renew(&leases, id, 1000 * LEASE_MS), SHOAL_OK);
    leases_expire(&leases, 1001 * LEASE_MS - 1);
    assert_int_equal(renewed, 0);
    leases_release(&leases);
    assert_int_equal(renewed, 1);
}

static void a_taken_lease_is_the_callers(void **state)
{
    uint8_t space = 0, object = 0;
    struct lease_holding write = {.kind = LEASE_WRITE,
                                  .allocation = (struct tier_allocation *)&space,
                                  .window = (struct kv_window *)&object,
                                  .object_id = 9};
    struct lease_holding taken;
    struct leases leases;
    unsigned total;
    uint64_t id, pin_id;
    (void)state;
    make(&leases, &total);
    assert_int_equal(leases_add(&leases, "a", &write, 0, &id, NULL), SHOAL_OK);
    pin_id = pin(&leases, "a", &object, 0);
    /* Not by the other kind's way. */
    assert_int_equal(leases_take(&leases, id, LEASE_PIN, &taken), SHOAL_NOT_FOUND);
    assert_int_equal(leases_take(&leases, pin_id, LEASE_WRITE, &taken), SHOAL_NOT_FOUND);
    assert_int_equal(leases_take(&leases, id, LEASE_WRITE, &taken), SHOAL_OK);
    assert_ptr_equal(taken.allocation, write.allocation);
    assert_ptr_equal(taken.window, write.window);
    assert_int_equal(taken.object_id, 9);
    assert_int_equal(leases_take(&leases, id, LEASE_WRITE, &taken), SHOAL_NOT_FOUND);
    leases_expire(&leases, 10 * LEASE_MS);
    assert_int_equal(space, 0);
    assert_int_equal(object, 1);
    leases_release(&leases);
}

static void they_are_bounded(void **state)
{
    struct lease_holding holding = {.kind = LEASE_PIN}, taken;
    uint8_t bytes[8] = {0};
    struct leases leases;
    struct shoal_error error;
    unsigned total;
    uint64_t id, first;
    (void)state;
    make(&leases, &total);
    first = pin(&leases, "a", &bytes[0], 0);
    for (int i = 1; i < 4; i++)
        pin(&leases, "a", &bytes[i], 0);
    holding.object = (struct tier_object *)&bytes[4];
    assert_int_equal(leases_add(&leases, "a", &holding, 0, &id, &error), SHOAL_LIMIT);
    assert_non_null(strstr(error.message, "'a' holds 4 leases"));
    holding.object = NULL;
    for (int i = 4; i < 6; i++) {
        holding.staging = &bytes[i];
        assert_true(leases_has_staging_room(&leases));
        assert_int_equal(leases_add(&leases, "b", &holding, 0, &id, NULL), SHOAL_OK);
    }
    assert_int_equal(leases_add(&leases, "c", &holding, 0, &id, &error), SHOAL_LIMIT);
    assert_non_null(strstr(error.message, "all 6 leases"));
    /* One of a's ends: b may, but not for a third staging buffer. */
    assert_int_equal(leases_take(&leases, first, LEASE_PIN, &taken), SHOAL_OK);
    assert_false(leases_has_staging_room(&leases));
    assert_int_equal(leases_add(&leases, "b", &holding, 0, &id, &error), SHOAL_LIMIT);
    assert_non_null(strstr(error.message, "outside DRAM"));
    assert_int_equal(leases.refused, 3);
    assert_int_equal(total, 0);
    leases_expire(&leases, LEASE_MS);
    assert_int_equal(total, 5);
    assert_true(leases_has_staging_room(&leases));
    assert_int_equal(leases.by_peer.count, 0); /* no trace of those who hold nothing */
    leases_release(&leases);
}

static enum shoal_status pin_bytes(struct leases *leases, uint8_t *object, uint64_t len_bytes, uint64_t *id_out,
                                   struct shoal_error *error)
{
    struct lease_holding holding = {.kind = LEASE_PIN, .object = (struct tier_object *)object, .len_bytes = len_bytes};
    return leases_add(leases, "a", &holding, 0, id_out, error);
}

static void their_bytes_are_bounded(void **state)
{
    uint8_t objects[4] = {0};
    struct lease_holding taken;
    struct leases leases;
    struct shoal_error error;
    unsigned total;
    uint64_t id, second;
    (void)state;
    make(&leases, &total);
    leases.config.max_bytes = 1000;
    /* Larger than all that may be held: alone it may be read. */
    assert_int_equal(pin_bytes(&leases, &objects[0], 5000, &id, NULL), SHOAL_OK);
    assert_int_equal(pin_bytes(&leases, &objects[1], 1, &second, &error), SHOAL_LIMIT);
    assert_non_null(strstr(error.message, "5000 bytes"));
    assert_int_equal(leases_take(&leases, id, LEASE_PIN, &taken), SHOAL_OK);
    assert_int_equal(pin_bytes(&leases, &objects[1], 600, &id, NULL), SHOAL_OK);
    assert_int_equal(pin_bytes(&leases, &objects[2], 401, &second, NULL), SHOAL_LIMIT);
    assert_int_equal(pin_bytes(&leases, &objects[2], UINT64_MAX, &second, NULL), SHOAL_LIMIT);
    assert_int_equal(pin_bytes(&leases, &objects[2], 400, &second, NULL), SHOAL_OK);
    assert_int_equal(leases.refused, 3);
    leases_expire(&leases, LEASE_MS);
    assert_int_equal(total, 2);
    assert_int_equal(pin_bytes(&leases, &objects[3], 1000, &id, NULL), SHOAL_OK);
    leases_release(&leases);
}

static void a_stall_of_the_owner_expires_nothing(void **state)
{
    uint8_t object = 0;
    struct leases leases;
    unsigned total;
    (void)state;
    make(&leases, &total);
    pin(&leases, "a", &object, 0);
    leases_postpone(&leases, 5000);
    leases_expire(&leases, LEASE_MS + 4999);
    assert_int_equal(object, 0);
    leases_expire(&leases, LEASE_MS + 5000);
    assert_int_equal(object, 1);
    leases_release(&leases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_ends_by_time),         cmocka_unit_test(a_renewed_lease_stays),
        cmocka_unit_test(a_taken_lease_is_the_callers), cmocka_unit_test(they_are_bounded),
        cmocka_unit_test(their_bytes_are_bounded),      cmocka_unit_test(a_stall_of_the_owner_expires_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
