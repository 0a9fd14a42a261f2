/* SPDX-License-Identifier: Apache-2.0 */
/* The account of who takes a payload: reports that repeat, restart, exaggerate and stop. */
#include "unit.h"

#include "store/receivers.h"

#define PIECES 8
#define TOTAL 8000

static struct receivers receivers;

static int set_up(void **state)
{
    (void)state;
    receivers_init(&receivers);
    receivers_set_payload(&receivers, PIECES, TOTAL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    receivers_release(&receivers);
    return 0;
}

static uint64_t report(const char *name, uint64_t taken, uint32_t have, bool is_last, int64_t now_ms)
{
    const struct receiver_report report = {.name = name, .taken_bytes = taken, .pieces_have = have, .is_last = is_last};
    return receivers_report(&receivers, &report, now_ms);
}

static struct shoal_receiver_info info_of(const char *name, int64_t now_ms)
{
    static struct shoal_receiver_info infos[RECEIVERS_MAX];
    size_t count = receivers_list(&receivers, now_ms, infos, RECEIVERS_MAX);

    for (size_t i = 0; i < count; i++) {
        if (strcmp(infos[i].name, name) == 0)
            return infos[i];
    }
    fail_msg("%s is not listed", name);
    return infos[0];
}

static void test_one_receiver(void **state)
{
    struct shoal_receiver_info info;

    (void)state;
    assert_int_equal(report("a:1", 0, 0, false, 1000), 0);
    assert_int_equal(report("a:1", 3000, 4, false, 2000), 3000);
    assert_int_equal(report("a:1", 3000, 5, false, 3000), 0);
    info = info_of("a:1", 3500);
    assert_int_equal(info.state, SHOAL_RECEIVER_TAKING);
    assert_int_equal(info.bytes, 3000);
    assert_int_equal(info.pieces_have, 5);
    assert_int_equal(info.silent_ms, 500);
    assert_int_equal(receivers.taking_count, 1);
    assert_int_equal(report("a:1", 4000, PIECES, true, 4000), 1000);
    assert_int_equal(info_of("a:1", 4000).state, SHOAL_RECEIVER_DONE);
    assert_int_equal(receivers.taking_count, 0);
    assert_int_equal(receivers.bytes_served, 4000);
}

/* It left a source that served it badly, and came back: what it took is counted once. */
static void test_comes_back(void **state)
{
    (void)state;
    report("a:1", 2000, 2, false, 0);
    report("a:1", 2000, 2, true, 10);
    assert_int_equal(info_of("a:1", 10).state, SHOAL_RECEIVER_LEFT);
    assert_int_equal(report("a:1", 2000, 3, false, 20), 0);
    assert_int_equal(info_of("a:1", 20).state, SHOAL_RECEIVER_TAKING);
    assert_int_equal(receivers.bytes_served, 2000);
    /* Another pull, from the start. */
    assert_int_equal(report("a:1", 0, 0, false, 30), 0);
    assert_int_equal(report("a:1", 1500, 2, false, 40), 1500);
    assert_int_equal(info_of("a:1", 40).bytes, 3500);
    assert_int_equal(receivers.bytes_served, 3500);
}

static void test_silent_and_lost(void **state)
{
    (void)state;
    report("a:1", 10, 1, false, 0);
    report("b:1", 10, 1, false, 10000);
    report("c:1", 10, 1, false, 10000);
    receivers_age(&receivers, RECEIVER_SILENCE_MS + 1);
    assert_int_equal(info_of("a:1", 0).state, SHOAL_RECEIVER_LEFT);
    receivers_lost(&receivers, "b:1");
    receivers_lost(&receivers, "nobody:1");
    assert_int_equal(info_of("b:1", 0).state, SHOAL_RECEIVER_LEFT);
    assert_int_equal(info_of("c:1", 0).state, SHOAL_RECEIVER_TAKING);
    assert_int_equal(receivers.taking_count, 1);
    /* Who has said that it is done stays so when its connection ends. */
    report("c:1", 10, PIECES, true, 10001);
    receivers_lost(&receivers, "c:1");
    assert_int_equal(info_of("c:1", 0).state, SHOAL_RECEIVER_DONE);
}

static void test_exaggerates(void **state)
{
    (void)state;
    assert_int_equal(report("a:1", UINT64_MAX, UINT32_MAX, false, 0), TOTAL);
    assert_int_equal(info_of("a:1", 0).pieces_have, PIECES);
    assert_int_equal(report("a:1", UINT64_MAX, 1, false, 0), 0);
    assert_int_equal(receivers.bytes_served, TOTAL);
}

static void test_order(void **state)
{
    struct shoal_receiver_info infos[3];

    (void)state;
    report("gone-first:1", 1, 1, true, 0);
    report("gone-last:1", 1, 1, true, 1);
    report("taking:1", 1, 1, false, 2);
    assert_int_equal(receivers_list(&receivers, 2, infos, 2), 2);
    assert_string_equal(infos[0].name, "taking:1");
    assert_string_equal(infos[1].name, "gone-last:1");
    assert_int_equal(receivers_list(&receivers, 2, infos, 3), 3);
    assert_string_equal(infos[2].name, "gone-first:1");
    assert_int_equal(receivers_list(&receivers, 2, infos, 0), 0);
}

/* Whoever invents names pushes out those that have left, never those that take, and no memory beyond the bound. */
static void test_bounded(void **state)
{
    char name[320], long_name[400];

    (void)state;
    report("left:1", 5, 1, true, 0);
    for (unsigned i = 0; i < RECEIVERS_MAX; i++) {
        snprintf(name, sizeof name, "n:%u", i);
        assert_int_equal(report(name, 7, 1, false, 1), 7);
    }
    assert_int_equal(receivers.by_name.count, RECEIVERS_MAX);
    assert_int_equal(receivers.taking_count, RECEIVERS_MAX);
    assert_int_equal(report("one-more:1", 7, 1, false, 1), 0);
    assert_int_equal(receivers.bytes_served, 5 + 7ull * RECEIVERS_MAX);
    report("n:17", 7, 1, true, 2);
    assert_int_equal(report("one-more:1", 7, 1, false, 2), 7);
    assert_int_equal(receivers.by_name.count, RECEIVERS_MAX);
    report("n:18", 7, 1, true, 3);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(report(long_name, 7, 1, false, 3), 0);
}

/* What is told of the transport is kept until it is told otherwise, and cut where it has no room. */
static void test_transport(void **state)
{
    struct receiver_report report = {
        .name = "a:1", .transport = "tcp", .left_transports = "local: ptrace", .pieces_have = 1};
    struct shoal_receiver_info info;
    char longer[400];

    (void)state;
    receivers_report(&receivers, &report, 0);
    receivers_lost(&receivers, "a:1");
    info = info_of("a:1", 0);
    assert_string_equal(info.transport, "tcp");
    assert_string_equal(info.left_transports, "local: ptrace");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    report.transport = report.left_transports = longer;
    receivers_report(&receivers, &report, 1);
    info = info_of("a:1", 1);
    assert_int_equal(strlen(info.transport), sizeof info.transport - 1);
    assert_int_equal(strlen(info.left_transports), sizeof info.left_transports - 1);
    report.transport = report.left_transports = NULL;
    receivers_report(&receivers, &report, 2);
    info = info_of("a:1", 2);
    assert_string_equal(info.transport, "");
    assert_string_equal(info.left_transports, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_receiver, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_silent_and_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exaggerates, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_transport, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("store_receivers", tests, NULL, NULL);
}
