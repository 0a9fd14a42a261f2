/* SPDX-License-Identifier: Apache-2.0 */
/* The fault decorator does what its rules say, around tcp and around mem. */
#include "../contract/transport_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "engine/engine.h"
#include "transport/fault.h"
#include "transport/mem.h"

#define LEN (2u * 65536) /* more than a direct TCP connection takes */

struct pair {
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    uint8_t *remote, *local;
};

static void pair_open(struct pair *pair)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_error error;

    config.progress_timeout_ms = 1500;
    pair->target = engine_make(NULL);
    pair->own = engine_make(&config);
    pair->remote = memory_make(LEN);
    pair->local = memory_make(LEN);
    content_fill(pair->remote, LEN, 1, 0);
    assert_ok(shoal_engine_register_memory(pair->target, pair->remote, LEN, NULL,
                                           SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
              &error);
    assert_ok(shoal_engine_register_memory(pair->own, pair->local, LEN, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(pair->own, shoal_engine_server_name(pair->target), NULL, &pair->segment, &error),
              &error);
}

static void pair_close(struct pair *pair)
{
    shoal_segment_close(pair->segment);
    shoal_engine_destroy(pair->own);
    shoal_engine_destroy(pair->target);
    memory_drop(pair->remote, LEN);
    memory_drop(pair->local, LEN);
}

static void add(struct pair *pair, struct fault_rule rule)
{
    assert_true(fault_add_rule(engine_instance(pair->own), &rule));
}

static void clear(struct pair *pair, uint64_t seed)
{
    assert_true(fault_clear_rules(engine_instance(pair->own), seed));
}

static enum shoal_status try_op(struct pair *pair, enum shoal_op op)
{
    struct shoal_error error;

    return transfer(pair->own, pair->segment, op, pair->local, pair->remote, 0, LEN, &error);
}

static void test_rules(void **state)
{
    struct pair pair;

    (void)state;
    pair_open(&pair);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    add(&pair, (struct fault_rule){.kind = FAULT_FAIL, .nth = 2, .status = SHOAL_IO});
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_IO);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    clear(&pair, 1);

    add(&pair, (struct fault_rule){.kind = FAULT_CORRUPT, .ops = 1u << SHOAL_OP_READ, .times = 1});
    assert_int_equal(try_op(&pair, SHOAL_OP_WRITE), SHOAL_OK);
    content_fill(pair.remote, LEN, 1, 0);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    assert_int_not_equal(content_find_difference(pair.local, LEN, 1, 0), -1);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    assert_int_equal(content_find_difference(pair.local, LEN, 1, 0), -1);
    clear(&pair, 1);

    add(&pair, (struct fault_rule){.kind = FAULT_DELAY, .delay_ms = 1});
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    clear(&pair, 1);
    add(&pair, (struct fault_rule){.kind = FAULT_DROP, .nth = 1});
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_UNREACHABLE);
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_OK);
    clear(&pair, 1);
    add(&pair, (struct fault_rule){.kind = FAULT_STALL});
    assert_int_equal(try_op(&pair, SHOAL_OP_READ), SHOAL_TIMED_OUT);
    assert_int_equal(fault_applied(engine_instance(pair.own)), 5);
    assert_false(fault_add_rule(1, &(struct fault_rule){.kind = FAULT_FAIL}));
    pair_close(&pair);
}

/* A stalled or delayed request can be canceled, by itself and with its peer. */
static void test_cancel(void **state)
{
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair);
    for (unsigned round = 0; round < 4; round++) {
        struct shoal_request request = {.op = SHOAL_OP_READ,
                                        .segment = pair.segment,
                                        .local = pair.local,
                                        .remote_addr = (uint64_t)(uintptr_t)pair.remote,
                                        .len_bytes = LEN};

        clear(&pair, 1);
        add(&pair, (struct fault_rule){.kind = round & 1 ? FAULT_DELAY : FAULT_STALL, .delay_ms = 3600000});
        assert_ok(shoal_batch_create(pair.own, 1, &batch, &error), &error);
        assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
        if (round & 2)
            engine_segment_abort(pair.segment);
        else
            shoal_batch_cancel(batch);
        assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        shoal_batch_destroy(batch);
    }
    pair_close(&pair);
}

/* The same seed gives the same faults. */
static void test_seed(void **state)
{
    uint64_t hits[2] = {0, 0};
    struct pair pair;

    (void)state;
    pair_open(&pair);
    for (unsigned round = 0; round < 2; round++) {
        clear(&pair, 42);
        add(&pair, (struct fault_rule){.kind = FAULT_FAIL, .percent = 50});
        for (unsigned i = 0; i < 40; i++)
            if (try_op(&pair, SHOAL_OP_READ) != SHOAL_OK)
                hits[round] |= 1ull << i;
    }
    assert_true(hits[0] != 0 && hits[0] != (1ull << 40) - 1);
    assert_int_equal(hits[0], hits[1]);
    pair_close(&pair);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rules, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancel, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_seed, fixture_setup, fixture_teardown),
    };

    transport_name = "fault";
    transport_args = argc > 1 ? argv[1] : "tcp";
    if (transport_register(&transport_mem_ops, NULL) != SHOAL_OK ||
        transport_register(&transport_fault_ops, NULL) != SHOAL_OK)
        return 1;
    return cmocka_run_group_tests_name("fault transport", tests, NULL, NULL);
}
