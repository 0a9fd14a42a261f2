/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limits and upload slots of an engine: both directions of READ and WRITE, and what happens to a READ that waits
 * for its turn when it is canceled, or when its memory goes. */
#include "../contract/transport_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "engine/engine.h"

#define MIB (1u << 20)
#define READ_WRITE (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)

struct party {
    struct shoal_engine *engine;
    struct shoal_segment *segment; /* of the target */
    struct shoal_batch *batch;
    uint8_t *memory;
    size_t len;
};

static struct party party_make(const struct shoal_engine_config *config, size_t len, unsigned access, uint64_t seed)
{
    struct party party = {.engine = engine_make(config), .memory = memory_make(len), .len = len};
    struct shoal_error error;

    content_fill(party.memory, len, seed, 0);
    assert_ok(shoal_engine_register_memory(party.engine, party.memory, len, NULL, access, NULL, &error), &error);
    assert_ok(shoal_batch_create(party.engine, 64, &party.batch, &error), &error);
    return party;
}

static void party_find(struct party *party, const struct party *target)
{
    struct shoal_error error;

    assert_ok(
        shoal_segment_open(party->engine, shoal_engine_server_name(target->engine), NULL, &party->segment, &error),
        &error);
}

static void party_drop(struct party *party)
{
    shoal_batch_destroy(party->batch);
    shoal_segment_close(party->segment);
    shoal_engine_destroy(party->engine);
    memory_drop(party->memory, party->len);
}

static void begin(struct party *party, const struct party *target, enum shoal_op op, size_t offset, size_t len)
{
    struct shoal_request request = {.op = op,
                                    .segment = party->segment,
                                    .local = party->memory + offset,
                                    .remote_addr = (uint64_t)(uintptr_t)target->memory + offset,
                                    .len_bytes = len};
    struct shoal_error error;

    assert_ok(shoal_batch_submit(party->batch, &request, 1, &error), &error);
}

static void finish(struct party *party, enum shoal_status wanted)
{
    struct shoal_error error;

    assert_status(wanted, shoal_batch_wait(party->batch, PATIENCE_MS, &error), &error);
}

static uint64_t metric(const struct party *party, const char *name)
{
    return engine_metric(party->engine, name);
}

#define WAITS "shoal_transport_tcp_upload_slot_waits_total"
#define THROTTLED_UP "shoal_transport_tcp_throttled_ms_total{direction=\"upload\"}"
#define THROTTLED_DOWN "shoal_transport_tcp_throttled_ms_total{direction=\"download\"}"

/* READ counts as upload of the target and download of the requester, WRITE the other way round. */
static void test_directions(void **state)
{
    enum { SIZE = 256 * 1024 };
    struct shoal_engine_config up = fixture_config(), down = fixture_config();

    (void)state;
    up.upload_limit_bytes_per_s = down.download_limit_bytes_per_s = MIB;
    for (int is_write = 0; is_write < 2; is_write++) {
        for (int limits_sender = 0; limits_sender < 2; limits_sender++) {
            const struct shoal_engine_config *limited = limits_sender ? &up : &down;
            bool limits_own = (is_write == 1) == (limits_sender == 1);
            struct party target = party_make(limits_own ? NULL : limited, SIZE, READ_WRITE, 1);
            struct party own = party_make(limits_own ? limited : NULL, SIZE, SHOAL_ACCESS_LOCAL, 2);
            struct party *party = limits_own ? &own : &target;

            party_find(&own, &target);
            begin(&own, &target, is_write ? SHOAL_OP_WRITE : SHOAL_OP_READ, 0, SIZE);
            finish(&own, SHOAL_OK);
            assert_int_equal(content_find_difference(own.memory, SIZE, is_write ? 2 : 1, 0), -1);
            assert_int_equal(content_find_difference(target.memory, SIZE, is_write ? 2 : 1, 0), -1);
            assert_true(metric(party, limits_sender ? THROTTLED_UP : THROTTLED_DOWN) > 0);
            assert_int_equal(metric(party, limits_sender ? THROTTLED_DOWN : THROTTLED_UP), 0);
            party_drop(&own);
            party_drop(&target);
        }
    }
}

/* Many small requests under a limit: headers and bodies of all sizes are told apart however the limit cuts them. */
static void test_cuts(void **state)
{
    enum { COUNT = 60 };
    struct shoal_engine_config both = fixture_config();
    struct party target, own;
    size_t offset = 0;

    (void)state;
    both.upload_limit_bytes_per_s = 3 * MIB;
    both.download_limit_bytes_per_s = 3 * MIB + 12345;
    both.io_threads = 2;
    both.upload_slots = 1;
    target = party_make(&both, 4 * MIB, READ_WRITE, 1);
    own = party_make(&both, 4 * MIB, SHOAL_ACCESS_LOCAL, 2);
    party_find(&own, &target);
    for (size_t i = 0; i < COUNT; i++) {
        size_t len = i * 977 % 131072 + 1;

        begin(&own, &target, i % 3 ? SHOAL_OP_READ : SHOAL_OP_WRITE, offset, len);
        offset += len;
    }
    assert_true(offset < 4 * MIB);
    finish(&own, SHOAL_OK);
    offset = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t len = i * 977 % 131072 + 1;

        assert_int_equal(content_find_difference(own.memory + offset, len, i % 3 ? 1 : 2, offset), -1);
        assert_int_equal(content_find_difference(target.memory + offset, len, i % 3 ? 1 : 2, offset), -1);
        offset += len;
    }
    party_drop(&own);
    party_drop(&target);
}

/* A receiver takes so little that for several deadlines there is no room to send it more: what it took of the sender's
 * kernel's counts. */
static void test_slow_receiver_moves(void **state)
{
    struct shoal_engine_config slow = fixture_config(), hasty = fixture_config();
    struct party target, own;

    (void)state;
    hasty.progress_timeout_ms = slow.progress_timeout_ms = 2500;
    slow.download_limit_bytes_per_s = 96 << 10;
    target = party_make(&hasty, 16 * MIB, READ_WRITE, 1);
    own = party_make(&slow, 16 * MIB, SHOAL_ACCESS_LOCAL, 2);
    party_find(&own, &target);
    begin(&own, &target, SHOAL_OP_READ, 0, 16 * MIB);
    wait_until(metric(&own, THROTTLED_DOWN) >= 7000);
    assert_int_equal(metric(&target, "shoal_transport_tcp_serve_stalls_total"), 0);
    assert_int_equal(metric(&own, "shoal_transport_tcp_retries_total"), 0);
    shoal_batch_cancel(own.batch);
    finish(&own, SHOAL_CANCELED);
    party_drop(&own);
    party_drop(&target);
}

/* A target with one slot, which a slow reader has, and another that waits for it. */
struct queue {
    struct party target, slow, waiting;
};

static void queue_make(struct queue *queue)
{
    struct shoal_engine_config one = fixture_config(), slow = fixture_config();

    one.upload_slots = 1;
    one.upload_limit_bytes_per_s = 64 << 10; /* nobody is lent a slot: it is the target that is slow */
    slow.io_threads = 1;
    queue->target = party_make(&one, 16 * MIB, READ_WRITE, 1);
    queue->slow = party_make(&slow, 16 * MIB, SHOAL_ACCESS_LOCAL, 2);
    queue->waiting = party_make(&slow, 16 * MIB, SHOAL_ACCESS_LOCAL, 3);
    party_find(&queue->slow, &queue->target);
    party_find(&queue->waiting, &queue->target);
    begin(&queue->slow, &queue->target, SHOAL_OP_READ, 0, 8 * MIB);
    wait_until(metric(&queue->target, THROTTLED_UP) > 0);
    begin(&queue->waiting, &queue->target, SHOAL_OP_READ, 0, 8 * MIB);
    begin(&queue->waiting, &queue->target, SHOAL_OP_READ, 8 * MIB, 8 * MIB);
    wait_until(metric(&queue->target, WAITS) > 0);
}

static void queue_drop(struct queue *queue)
{
    party_drop(&queue->slow);
    party_drop(&queue->waiting);
    party_drop(&queue->target);
}

static void test_cancel_while_waiting(void **state)
{
    struct queue queue;

    (void)state;
    queue_make(&queue);
    shoal_batch_cancel(queue.waiting.batch);
    finish(&queue.waiting, SHOAL_CANCELED);
    /* What waits behind is no obstacle for what is small. */
    shoal_batch_destroy(queue.waiting.batch);
    assert_int_equal(shoal_batch_create(queue.waiting.engine, 64, &queue.waiting.batch, NULL), SHOAL_OK);
    begin(&queue.waiting, &queue.target, SHOAL_OP_READ, 0, 1000);
    finish(&queue.waiting, SHOAL_OK);
    assert_int_equal(content_find_difference(queue.waiting.memory, 1000, 1, 0), -1);
    shoal_batch_cancel(queue.slow.batch);
    finish(&queue.slow, SHOAL_CANCELED);
    queue_drop(&queue);
}

static void test_memory_goes_while_waiting(void **state)
{
    struct queue queue;
    struct shoal_error error;

    (void)state;
    queue_make(&queue);
    assert_ok(shoal_engine_unregister_memory(queue.target.engine, queue.target.memory, queue.target.len, &error),
              &error);
    memset(queue.target.memory, 0, queue.target.len);
    finish(&queue.waiting, SHOAL_INVALID_ARGUMENT);
    finish(&queue.slow, SHOAL_INVALID_ARGUMENT);
    queue_drop(&queue);
}

/* Engines end while everything waits for something. */
static void test_close_while_waiting(void **state)
{
    struct queue queue;

    (void)state;
    queue_make(&queue);
    party_drop(&queue.waiting);
    queue.waiting = party_make(NULL, 4096, SHOAL_ACCESS_LOCAL, 3);
    shoal_batch_destroy(queue.target.batch);
    queue.target.batch = NULL;
    shoal_engine_destroy(queue.target.engine);
    queue.target.engine = NULL;
    queue_drop(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_directions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cuts, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_slow_receiver_moves, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_cancel_while_waiting, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_memory_goes_while_waiting, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_close_while_waiting, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
