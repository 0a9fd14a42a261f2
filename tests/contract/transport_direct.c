/* SPDX-License-Identifier: Apache-2.0 */
/* Small requests that the application's own threads carry out: every way in which they can end. */
#include "transport_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "content.h"
#include "engine/engine.h"

#define LEN ((size_t)1 << 20)
#define SMALL 4096

/* A peer in a process of its own (content of seed 1), and an engine that uses direct connections to it by now. */
struct world {
    struct child child;
    struct shoal_engine *engine;
    struct shoal_segment *segment;
    uint8_t *local;
};

static uint64_t direct_count(const struct world *world)
{
    return engine_metric(world->engine, "shoal_transport_tcp_direct_requests_total");
}

static struct shoal_request request_at(const struct world *world, enum shoal_op op, size_t offset, size_t len)
{
    return (struct shoal_request){.op = op,
                                  .segment = world->segment,
                                  .local = world->local + offset,
                                  .remote_addr = (uint64_t)(uintptr_t)world->child.memory + offset,
                                  .len_bytes = len};
}

static enum shoal_status move(const struct world *world, enum shoal_op op, size_t offset, size_t len,
                              struct shoal_error *error)
{
    return transfer(world->engine, world->segment, op, world->local + offset, (uint8_t *)world->child.memory + offset,
                    0, len, error);
}

/* Small READs until one went directly. */
static void warm_up(const struct world *world)
{
    uint64_t before = direct_count(world);
    struct shoal_error error;

    do {
        assert_ok(move(world, SHOAL_OP_READ, 0, 1, &error), &error);
    } while (direct_count(world) == before);
}

static void world_open(struct world *world, int64_t progress_timeout_ms)
{
    struct shoal_engine_config config;
    struct shoal_error error;

    *world = (struct world){.child = child_start(LEN, 1, NULL), .local = memory_make(LEN)};
    config = fixture_config();
    config.protocol = "tcp";
    if (progress_timeout_ms)
        config.progress_timeout_ms = progress_timeout_ms;
    world->engine = engine_make(&config);
    assert_ok(shoal_engine_register_memory(world->engine, world->local, LEN, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
              &error);
    assert_ok(shoal_segment_open(world->engine, world->child.name, NULL, &world->segment, &error), &error);
    warm_up(world);
}

static void world_close(struct world *world)
{
    shoal_segment_close(world->segment);
    shoal_engine_destroy(world->engine);
    child_stop(&world->child);
    memory_drop(world->local, LEN);
}

static struct shoal_batch *submit(const struct world *world, const struct shoal_request *requests, size_t count)
{
    struct shoal_batch *batch;
    struct shoal_error error;

    assert_ok(shoal_batch_create(world->engine, count, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, count, &error), &error);
    return batch;
}

static void pause_child(const struct world *world)
{
    int status;

    assert_int_equal(kill(world->child.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(world->child.pid, &status, WUNTRACED), world->child.pid);
    assert_true(WIFSTOPPED(status));
}

static void resume_child(const struct world *world)
{
    assert_int_equal(kill(world->child.pid, SIGCONT), 0);
}

static void assert_states(const struct shoal_batch *batch, size_t count, enum shoal_transfer_state state)
{
    struct shoal_transfer_status status;

    for (size_t i = 0; i < count; i++) {
        assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
        assert_int_equal(status.state, state);
    }
}

static void test_completes(void **state)
{
    static const size_t sizes[] = {1, 39, 40, 41, 4096, 65535, 65536};
    struct shoal_request requests[16];
    struct shoal_batch *batch;
    struct shoal_error error;
    struct world world;
    uint64_t before;

    (void)state;
    world_open(&world, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t offset = 3 + 7 * i;

        before = direct_count(&world);
        memset(world.local, 0xee, LEN);
        assert_ok(move(&world, SHOAL_OP_READ, offset, sizes[i], &error), &error);
        assert_int_equal(content_find_difference(world.local + offset, sizes[i], 1, offset), -1);
        assert_int_equal(world.local[offset - 1], 0xee);
        assert_int_equal(world.local[offset + sizes[i]], 0xee);
        content_fill(world.local + offset, sizes[i], 2, 0);
        assert_ok(move(&world, SHOAL_OP_WRITE, offset, sizes[i], &error), &error);
        memset(world.local, 0xee, LEN);
        assert_ok(move(&world, SHOAL_OP_READ, offset, sizes[i], &error), &error);
        assert_int_equal(content_find_difference(world.local + offset, sizes[i], 2, 0), -1);
        content_fill(world.local + offset, sizes[i], 1, offset);
        assert_ok(move(&world, SHOAL_OP_WRITE, offset, sizes[i], &error), &error);
        assert_int_equal(direct_count(&world), before + 4);
    }
    /* Many at once, of both kinds, twice in one batch. */
    memset(world.local, 0, LEN);
    for (size_t i = 0; i < 16; i++)
        requests[i] = request_at(&world, SHOAL_OP_READ, i * SMALL, SMALL);
    before = direct_count(&world);
    assert_ok(shoal_batch_create(world.engine, 32, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, 16, &error), &error);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_int_equal(content_find_difference(world.local, (size_t)16 * SMALL, 1, 0), -1);
    content_fill(world.local, (size_t)8 * SMALL, 3, 0);
    for (size_t i = 0; i < 16; i++)
        requests[i].op = i < 8 ? SHOAL_OP_WRITE : SHOAL_OP_READ;
    assert_ok(shoal_batch_submit(batch, requests, 16, &error), &error);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_states(batch, 32, SHOAL_TRANSFER_COMPLETED);
    assert_int_equal(direct_count(&world), before + 32);
    shoal_batch_destroy(batch);
    memset(world.local, 0, LEN);
    assert_ok(move(&world, SHOAL_OP_READ, 0, (size_t)16 * SMALL, &error), &error);
    assert_int_equal(content_find_difference(world.local, (size_t)8 * SMALL, 3, 0), -1);
    assert_int_equal(content_find_difference(world.local + 8 * SMALL, (size_t)8 * SMALL, 1, 8 * SMALL), -1);

    /* What is larger goes the usual way. */
    before = direct_count(&world);
    assert_ok(move(&world, SHOAL_OP_READ, 0, 65537, &error), &error);
    assert_int_equal(direct_count(&world), before);
    world_close(&world);
}

static void test_refused(void **state)
{
    struct shoal_request requests[4];
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct world world;
    uint64_t before;

    (void)state;
    world_open(&world, 0);
    content_fill(world.local, LEN, 9, 0);
    before = direct_count(&world);
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        requests[0] = request_at(&world, (enum shoal_op)op, LEN - SMALL, SMALL);
        requests[0].remote_addr += 1;
        batch = submit(&world, requests, 1);
        assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        assert_non_null(strstr(error.message, op == SHOAL_OP_READ ? "refused READ" : "refused WRITE"));
        assert_states(batch, 1, SHOAL_TRANSFER_INVALID);
        shoal_batch_destroy(batch);
    }
    assert_int_equal(content_find_difference(world.local, LEN, 9, 0), -1);
    /* Among others. */
    for (size_t i = 0; i < 4; i++)
        requests[i] = request_at(&world, i & 1 ? SHOAL_OP_WRITE : SHOAL_OP_READ, i * SMALL, SMALL);
    requests[1].remote_key = 12345;
    requests[2].remote_addr = 64;
    batch = submit(&world, requests, 4);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    for (size_t i = 0; i < 4; i++) {
        bool is_refused = i == 1 || i == 2;

        assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
        assert_int_equal(status.state, is_refused ? SHOAL_TRANSFER_INVALID : SHOAL_TRANSFER_COMPLETED);
        assert_int_equal(status.transferred_bytes, is_refused ? 0 : SMALL);
    }
    shoal_batch_destroy(batch);
    assert_int_equal(direct_count(&world), before + 6);
    assert_ok(move(&world, SHOAL_OP_READ, SMALL, SMALL, &error), &error);
    assert_int_equal(content_find_difference(world.local + SMALL, SMALL, 1, SMALL), -1);
    assert_int_equal(direct_count(&world), before + 7);
    world_close(&world);
}

/* Local memory that the kernel cannot write or read: that request fails, nothing else does. */
static void test_local_fault(void **state)
{
    struct shoal_request requests[3];
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct world world;

    (void)state;
    world_open(&world, 0);
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        for (size_t i = 0; i < 3; i++)
            requests[i] = request_at(&world, (enum shoal_op)op, i * SMALL, SMALL);
        content_fill(world.local, (size_t)3 * SMALL, 1, 0);
        assert_int_equal(mprotect(world.local + SMALL, SMALL, PROT_NONE), 0);
        batch = submit(&world, requests, 3);
        assert_int_not_equal(shoal_batch_wait(batch, PATIENCE_MS, &error), SHOAL_OK);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
            if (i == 1)
                assert_int_equal(status.status, SHOAL_IO);
            else if (op == SHOAL_OP_READ)
                assert_int_equal(status.state, SHOAL_TRANSFER_COMPLETED);
        }
        shoal_batch_destroy(batch);
        assert_int_equal(mprotect(world.local + SMALL, SMALL, PROT_READ | PROT_WRITE), 0);
        warm_up(&world);
    }
    world_close(&world);
}

/* Whoever polls, or never waits, is served by the loop. */
static void test_handed_over(void **state)
{
    for (unsigned round = 0; round < 3; round++) {
        struct shoal_request requests[2];
        struct shoal_batch *batch;
        struct shoal_error error;
        struct pollfd ready;
        struct world world;
        uint64_t before;

        (void)state;
        world_open(&world, 0);
        before = direct_count(&world);
        requests[0] = request_at(&world, SHOAL_OP_READ, 0, SMALL);
        requests[1] = request_at(&world, SHOAL_OP_WRITE, 2 * SMALL, SMALL);
        pause_child(&world);
        batch = submit(&world, requests, 2);
        if (round == 0) {
            ready = (struct pollfd){.fd = shoal_batch_fd(batch), .events = POLLIN};
            assert_true(ready.fd >= 0);
            assert_int_equal(poll(&ready, 1, 0), 0);
            resume_child(&world);
            assert_int_equal(poll(&ready, 1, PATIENCE_MS), 1);
            assert_states(batch, 2, SHOAL_TRANSFER_COMPLETED);
            assert_ok(shoal_batch_wait(batch, 0, &error), &error);
        } else if (round == 1) {
            assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, 20, &error), &error);
            assert_states(batch, 2, SHOAL_TRANSFER_PENDING);
            resume_child(&world);
            assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        } else {
            resume_child(&world);
            wait_until(direct_count(&world) == before + 2);
            assert_states(batch, 2, SHOAL_TRANSFER_COMPLETED);
        }
        assert_int_equal(content_find_difference(world.local, SMALL, 1, 0), -1);
        assert_int_equal(direct_count(&world), before + 2);
        shoal_batch_destroy(batch);
        world_close(&world);
    }
}

/* A descriptor that was asked for before: nothing to hand over. And one of a batch that has nothing to do. */
static void test_descriptor(void **state)
{
    struct shoal_request request;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pollfd ready;
    struct world world;

    (void)state;
    world_open(&world, 0);
    request = request_at(&world, SHOAL_OP_READ, 0, SMALL);
    assert_ok(shoal_batch_create(world.engine, 2, &batch, &error), &error);
    ready = (struct pollfd){.fd = shoal_batch_fd(batch), .events = POLLIN};
    assert_int_equal(poll(&ready, 1, 0), 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
        assert_int_equal(poll(&ready, 1, PATIENCE_MS), 1);
        assert_int_equal(shoal_batch_fd(batch), ready.fd);
        assert_ok(shoal_batch_wait(batch, 0, &error), &error);
    }
    shoal_batch_destroy(batch);
    world_close(&world);
}

static void test_peer_dies(void **state)
{
    for (unsigned round = 0; round < 4; round++) {
        enum shoal_op op = round & 1 ? SHOAL_OP_WRITE : SHOAL_OP_READ;
        struct shoal_request requests[2];
        struct shoal_batch *batch;
        struct shoal_error error;
        struct world world;

        (void)state;
        world_open(&world, 0);
        requests[0] = request_at(&world, op, 0, SMALL);
        requests[1] = request_at(&world, op, SMALL, SMALL);
        if (round < 2) { /* with an answer due */
            pause_child(&world);
            batch = submit(&world, requests, 2);
            child_stop(&world.child);
        } else { /* before anything is asked */
            child_stop(&world.child);
            batch = submit(&world, requests, 2);
        }
        assert_status(SHOAL_UNREACHABLE, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        assert_states(batch, 2, SHOAL_TRANSFER_FAILED);
        shoal_batch_destroy(batch);
        world_close(&world);
    }
}

static void test_peer_stalls(void **state)
{
    for (unsigned round = 0; round < 3; round++) {
        struct shoal_request requests[2];
        struct shoal_batch *batch;
        struct shoal_error error;
        struct world world;

        (void)state;
        world_open(&world, 1500);
        requests[0] = request_at(&world, SHOAL_OP_READ, 0, SMALL);
        requests[1] = request_at(&world, SHOAL_OP_WRITE, SMALL, SMALL);
        pause_child(&world);
        batch = submit(&world, requests, 2);
        if (round == 1)
            (void)shoal_batch_fd(batch);
        else if (round == 2)
            wait_until(engine_metric(world.engine, "shoal_transport_tcp_request_failures_total{kind=\"timed_out\"}") ==
                       2);
        assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        assert_non_null(strstr(error.message, "no progress"));
        assert_states(batch, 2, SHOAL_TRANSFER_TIMEOUT);
        resume_child(&world);
        warm_up(&world);
        shoal_batch_destroy(batch);
        world_close(&world);
    }
}

static void *cancel_batch(void *arg)
{
    shoal_batch_cancel(arg);
    return NULL;
}

static void test_canceled(void **state)
{
    for (unsigned round = 0; round < 4; round++) {
        struct shoal_request requests[2];
        struct shoal_batch *batch;
        struct shoal_error error;
        struct world world;
        pthread_t thread;

        (void)state;
        world_open(&world, 0);
        requests[0] = request_at(&world, SHOAL_OP_READ, 0, SMALL);
        requests[1] = request_at(&world, SHOAL_OP_WRITE, SMALL, SMALL);
        pause_child(&world);
        batch = submit(&world, requests, 2);
        if (round == 1)
            (void)shoal_batch_fd(batch);
        if (round < 3) {
            if (round == 2)
                assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, 1, &error), &error);
            assert_int_equal(pthread_create(&thread, NULL, cancel_batch, batch), 0);
            assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
            assert_int_equal(pthread_join(thread, NULL), 0);
            assert_states(batch, 2, SHOAL_TRANSFER_CANCELED);
        } /* else: destroyed while both are pending */
        shoal_batch_destroy(batch);
        resume_child(&world);
        warm_up(&world);
        world_close(&world);
    }
}

struct remover {
    const struct world *world;
    enum shoal_status status;
};

static void *remove_memory(void *arg)
{
    struct remover *remover = arg;

    remover->status = shoal_engine_unregister_memory(remover->world->engine, remover->world->local, LEN, NULL);
    return NULL;
}

/* Memory goes while its request is out, with and without somebody who waits; another region's request survives. */
static void test_unregistered(void **state)
{
    for (unsigned round = 0; round < 2; round++) {
        struct remover remover;
        struct shoal_request requests[2];
        struct shoal_transfer_status status;
        struct shoal_batch *batch;
        struct shoal_error error;
        struct world world;
        uint8_t *other = memory_make(SMALL);
        pthread_t thread;

        (void)state;
        world_open(&world, 0);
        assert_ok(shoal_engine_register_memory(world.engine, other, SMALL, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
                  &error);
        requests[0] = request_at(&world, SHOAL_OP_READ, 0, SMALL);
        requests[1] = request_at(&world, SHOAL_OP_READ, 0, SMALL);
        requests[1].local = other;
        pause_child(&world);
        batch = submit(&world, requests, 2);
        remover = (struct remover){.world = &world};
        assert_int_equal(pthread_create(&thread, NULL, remove_memory, &remover), 0);
        if (round == 0) { /* the first ends soon, the second only when the peer goes on */
            do {
                (void)shoal_batch_wait(batch, 100, &error);
                assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_OK);
            } while (status.state == SHOAL_TRANSFER_PENDING);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(remover.status, SHOAL_OK);
        resume_child(&world);
        assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_OK);
        assert_int_equal(status.state, SHOAL_TRANSFER_CANCELED);
        assert_int_equal(shoal_batch_status(batch, 1, &status), SHOAL_OK);
        assert_int_equal(status.state, SHOAL_TRANSFER_COMPLETED);
        assert_int_equal(content_find_difference(other, SMALL, 1, 0), -1);
        shoal_batch_destroy(batch);
        assert_ok(shoal_engine_unregister_memory(world.engine, other, SMALL, &error), &error);
        memory_drop(other, SMALL);
        world_close(&world);
    }
}

static void test_aborted(void **state)
{
    struct shoal_request request;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct world world;

    (void)state;
    world_open(&world, 0);
    request = request_at(&world, SHOAL_OP_READ, 0, SMALL);
    pause_child(&world);
    batch = submit(&world, &request, 1);
    engine_segment_abort(world.segment);
    assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    resume_child(&world);
    warm_up(&world);
    /* The peer's last reference is that of a request that is out. */
    batch = submit(&world, &request, 1);
    shoal_segment_close(world.segment);
    world.segment = NULL;
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    world_close(&world);
}

/* With a limit there is an account to keep: no direct connections. */
static void test_limited(void **state)
{
    struct shoal_engine_config config;
    struct shoal_error error;
    struct world world = {.child = child_start(LEN, 1, NULL), .local = memory_make(LEN)};

    (void)state;
    config = fixture_config();
    config.protocol = "tcp";
    config.download_limit_bytes_per_s = 1 << 30;
    world.engine = engine_make(&config);
    assert_ok(shoal_engine_register_memory(world.engine, world.local, LEN, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
              &error);
    assert_ok(shoal_segment_open(world.engine, world.child.name, NULL, &world.segment, &error), &error);
    for (unsigned i = 0; i < 100; i++)
        assert_ok(move(&world, SHOAL_OP_READ, 0, SMALL, &error), &error);
    assert_int_equal(direct_count(&world), 0);
    world_close(&world);
}

#define WORKERS 8
#define WORKER_ROUNDS 150

struct worker {
    const struct world *world;
    pthread_t thread;
    unsigned index;
};

/* Writes, reads and compares its own part; now and then it polls, cancels, or destroys without a wait. */
static void *work(void *arg)
{
    struct worker *worker = arg;
    const struct world *world = worker->world;
    size_t part = LEN / WORKERS, offset = worker->index * part;

    for (unsigned round = 0; round < WORKER_ROUNDS; round++) {
        size_t len = 1 + (round * 977 + worker->index * 131) % (4 * SMALL);
        struct shoal_request requests[2];
        struct shoal_batch *batch;
        struct shoal_error error;

        content_fill(world->local + offset, len, round + 2, offset);
        assert_ok(move(world, SHOAL_OP_WRITE, offset, len, &error), &error);
        memset(world->local + offset, 0, len);
        requests[0] = request_at(world, SHOAL_OP_READ, offset, len);
        requests[1] = request_at(world, SHOAL_OP_READ, offset + part / 2, SMALL);
        batch = submit(world, requests, 2);
        if (round % 40 == 7) {
            struct pollfd ready = {.fd = shoal_batch_fd(batch), .events = POLLIN};

            assert_int_equal(poll(&ready, 1, PATIENCE_MS), 1);
        }
        if (round % 10 == 3) {
            pthread_t canceler;
            enum shoal_status status;

            assert_int_equal(pthread_create(&canceler, NULL, cancel_batch, batch), 0);
            status = shoal_batch_wait(batch, PATIENCE_MS, &error);
            assert_true(status == SHOAL_OK || status == SHOAL_CANCELED);
            assert_int_equal(pthread_join(canceler, NULL), 0);
        } else if (round % 10 != 5) {
            assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
            assert_int_equal(content_find_difference(world->local + offset, len, round + 2, offset), -1);
        }
        shoal_batch_destroy(batch);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct worker workers[WORKERS];
    struct world world;

    (void)state;
    world_open(&world, 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.world = &world, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    assert_true(engine_metric(world.engine, "shoal_transport_tcp_connections{side=\"client\"}") <= 16);
    world_close(&world);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_completes, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_local_fault, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_handed_over, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_descriptor, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_peer_dies, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_peer_stalls, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_canceled, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_unregistered, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_aborted, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_limited, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_threads, fixture_setup, fixture_teardown),
    };

    fixture_run_child(argc, argv);
    return cmocka_run_group_tests_name("transport direct", tests, NULL, NULL);
}
