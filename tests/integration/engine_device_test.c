/* SPDX-License-Identifier: Apache-2.0 */
/* READ and WRITE of device memory on either side, over a transport that cannot reach it. Argument: the transport. With
 * the stub driver every access that does not go through the driver is a fault; tools/gpu-check runs the same on a GPU.
 */
#include "../contract/transport_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "content.h"
#include "cuda_test.h"
#include "engine/engine.h"
#include "transport/device.h"
#include "transport/fault.h"
#include "transport/mem.h"

#define MIB ((size_t)1 << 20)
#define READ_WRITE (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)
#define OUT_OF_MEMORY 2

static bool is_served_by_mem; /* the processor copies what is not device memory */

/* --- memory of either kind --- */

struct place {
    bool is_device;
    uint8_t *memory;
    size_t len;
    struct shoal_engine *engine;
};

static const char *location_of(const struct place *place)
{
    return place->is_device ? "cuda:0" : "cpu:0";
}

static void place_open(struct place *place, struct shoal_engine *engine, bool is_device, size_t len, unsigned access)
{
    struct shoal_error error;

    *place = (struct place){.is_device = is_device, .len = len, .engine = engine};
    place->memory = is_device ? cuda_test_alloc(0, len) : memory_make(len);
    assert_ok(shoal_engine_register_memory(engine, place->memory, len, location_of(place), access, NULL, &error),
              &error);
}

static void place_free(struct place *place)
{
    if (place->memory && place->is_device)
        cuda_test_free(0, place->memory);
    else if (place->memory)
        memory_drop(place->memory, place->len);
    place->memory = NULL;
}

static void place_close(struct place *place)
{
    struct shoal_error error;

    assert_ok(shoal_engine_unregister_memory(place->engine, place->memory, place->len, &error), &error);
    place_free(place);
}

static void fill(const struct place *place, size_t at, size_t len, uint64_t seed, uint64_t offset)
{
    if (place->is_device)
        cuda_test_fill(0, place->memory + at, len, seed, offset);
    else
        content_fill(place->memory + at, len, seed, offset);
}

static int64_t difference(const struct place *place, size_t at, size_t len, uint64_t seed, uint64_t offset)
{
    return place->is_device ? cuda_test_find_difference(0, place->memory + at, len, seed, offset)
                            : content_find_difference(place->memory + at, len, seed, offset);
}

struct pair {
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    struct place remote, local;
};

static void pair_open_with(struct pair *pair, const struct shoal_engine_config *config, bool is_remote_device,
                           bool is_local_device, size_t len)
{
    struct shoal_error error;

    memset(pair, 0, sizeof *pair);
    pair->target = engine_make(config);
    pair->own = engine_make(config);
    place_open(&pair->remote, pair->target, is_remote_device, len, READ_WRITE);
    place_open(&pair->local, pair->own, is_local_device, len, SHOAL_ACCESS_LOCAL);
    assert_ok(shoal_segment_open(pair->own, shoal_engine_server_name(pair->target), NULL, &pair->segment, &error),
              &error);
}

static void pair_open(struct pair *pair, bool is_remote_device, bool is_local_device, size_t len)
{
    pair_open_with(pair, NULL, is_remote_device, is_local_device, len);
}

static void pair_close(struct pair *pair)
{
    shoal_segment_close(pair->segment);
    shoal_engine_destroy(pair->own);
    shoal_engine_destroy(pair->target);
    place_free(&pair->local);
    place_free(&pair->remote);
}

static struct shoal_request request_of(const struct pair *pair, enum shoal_op op, size_t at, size_t len)
{
    return (struct shoal_request){.op = op,
                                  .segment = pair->segment,
                                  .local = pair->local.memory + at,
                                  .remote_addr = (uint64_t)(uintptr_t)pair->remote.memory + at,
                                  .len_bytes = len};
}

static struct shoal_batch *begin(const struct pair *pair, enum shoal_op op, size_t at, size_t len)
{
    struct shoal_request request = request_of(pair, op, at, len);
    struct shoal_batch *batch;
    struct shoal_error error;

    assert_ok(shoal_batch_create(pair->own, 1, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
    return batch;
}

static enum shoal_status finish(struct shoal_batch *batch, struct shoal_error *error)
{
    enum shoal_status status = shoal_batch_wait(batch, PATIENCE_MS, error);

    shoal_batch_destroy(batch);
    return status;
}

static enum shoal_status move(const struct pair *pair, enum shoal_op op, size_t at, size_t len,
                              struct shoal_error *error)
{
    return finish(begin(pair, op, at, len), error);
}

static bool has_metric(struct shoal_engine *engine, const char *line)
{
    struct buf text;
    bool has;

    buf_init(&text, 1 << 20);
    assert_true(engine_metrics(engine, &text));
    assert_true(buf_append(&text, "", 1));
    has = strstr((const char *)text.data, line) != NULL;
    buf_release(&text);
    return has;
}

/* --- tests --- */

static void test_sizes(void **state)
{
    static const size_t sizes[] = {1, 4095, 65536, 65537, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 13};
    struct shoal_error error;

    (void)state;
    for (unsigned sides = 1; sides < 4; sides++) {
        struct pair pair;

        pair_open(&pair, sides & 1, sides & 2, 6 * MIB);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            size_t len = sizes[i], at = 1 + 3 * i;

            fill(&pair.remote, 0, pair.remote.len, 1, 0);
            fill(&pair.local, 0, pair.local.len, 2, 0);
            assert_ok(move(&pair, SHOAL_OP_READ, at, len, &error), &error);
            assert_int_equal(difference(&pair.local, 0, at, 2, 0), -1);
            assert_int_equal(difference(&pair.local, at, len, 1, at), -1);
            assert_int_equal(difference(&pair.local, at + len, 4096, 2, at + len), -1);
            assert_int_equal(difference(&pair.remote, 0, pair.remote.len, 1, 0), -1);

            fill(&pair.local, at, len, 3, i);
            assert_ok(move(&pair, SHOAL_OP_WRITE, at, len, &error), &error);
            assert_int_equal(difference(&pair.remote, 0, at, 1, 0), -1);
            assert_int_equal(difference(&pair.remote, at, len, 3, i), -1);
            assert_int_equal(difference(&pair.remote, at + len, 4096, 1, at + len), -1);
        }
        if (is_served_by_mem && (sides & 1))
            assert_true(
                has_metric(pair.own, "shoal_engine_fallbacks_total{transport=\"mem\",reason=\"device memory\"}"));
        assert_true(has_metric(pair.own, "shoal_device_copies_total"));
        pair_close(&pair);
    }
}

struct way {
    const char *transport; /* looked for */
    bool is_found, is_refused;
    uint64_t bytes;
};

static void note_way(void *arg, const struct engine_peer_view *view)
{
    struct way *way = arg;

    for (unsigned i = 0; i < view->path_count; i++) {
        if (strcmp(view->paths[i].transport, way->transport) != 0)
            continue;
        way->is_found = true;
        way->is_refused |= view->paths[i].refusal != NULL;
        way->bytes += view->paths[i].bytes;
    }
}

/* A transport that cannot reach device memory is left out for that request only. */
static void test_others_stay(void **state)
{
    struct way way = {.transport = transport_name};
    struct shoal_error error;

    (void)state;
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        struct place from, to;
        struct pair pair;

        way.bytes = 0;
        pair_open(&pair, true, false, MIB);
        place_open(&from, pair.target, false, MIB, READ_WRITE);
        place_open(&to, pair.own, false, MIB, SHOAL_ACCESS_LOCAL);
        fill(&from, 0, MIB, 10, 0); /* once: only the socket orders it with what the target reads */
        for (unsigned round = 0; round < 3; round++) {
            fill(&pair.remote, 0, MIB, round, 0);
            fill(&pair.local, 0, MIB, round, 0);
            fill(&to, 0, MIB, op == SHOAL_OP_READ ? round : 10 + round, 0);
            assert_ok(move(&pair, (enum shoal_op)op, 0, MIB, &error), &error);
            assert_int_equal(difference(op == SHOAL_OP_READ ? &pair.local : &pair.remote, 0, MIB, round, 0), -1);
            assert_ok(transfer(pair.own, pair.segment, (enum shoal_op)op, to.memory, from.memory, 0, MIB, &error),
                      &error);
            assert_int_equal(
                difference(op == SHOAL_OP_READ ? &to : &from, 0, MIB, op == SHOAL_OP_READ ? 10 : 10 + round, 0), -1);
        }
        assert_int_equal(engine_peers_visit(pair.own, note_way, &way), SHOAL_OK);
        assert_true(way.is_found);
        assert_false(way.is_refused);
        assert_true(way.bytes >= 3 * MIB);
        place_close(&from);
        place_close(&to);
        pair_close(&pair);
    }
}

/* More requests than there are buffers, on both sides at the same time and in both directions. */
static void test_many(void **state)
{
    enum { COUNT = 3 * DEVICE_BUFFERS_MAX, SIZE = 300 * 1024 + 7 };
    struct shoal_request requests[COUNT];
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, true, true, (size_t)COUNT * SIZE);
    fill(&pair.remote, 0, pair.remote.len, 1, 0);
    fill(&pair.local, 0, pair.local.len, 2, 0);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = request_of(&pair, i % 3 ? SHOAL_OP_READ : SHOAL_OP_WRITE, i * SIZE, SIZE);
    requests[10].remote_addr = 64; /* refused; the others do not notice */
    assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, finish(batch, &error), &error);
    for (size_t i = 0; i < COUNT; i++) {
        if (i == 10)
            continue;
        assert_int_equal(difference(&pair.local, i * SIZE, SIZE, i % 3 ? 1 : 2, i * SIZE), -1);
        assert_int_equal(difference(&pair.remote, i * SIZE, SIZE, i % 3 ? 1 : 2, i * SIZE), -1);
    }
    pair_close(&pair);
}

/* Two nodes that read from each other: neither may wait for buffers that the other's requests hold. */
static void test_crosswise(void **state)
{
    enum { COUNT = 2 * DEVICE_BUFFERS_MAX, SIZE = 2 * 1024 * 1024 };
    struct shoal_request there[COUNT], back[COUNT];
    struct shoal_batch *batches[2];
    struct shoal_segment *segment;
    struct shoal_error error;
    struct place to;
    struct pair pair;

    (void)state;
    pair_open(&pair, true, true, SIZE);
    fill(&pair.remote, 0, SIZE, 1, 0);
    place_open(&to, pair.target, true, SIZE, READ_WRITE);
    assert_ok(shoal_engine_unregister_memory(pair.own, pair.local.memory, SIZE, &error), &error);
    assert_ok(shoal_engine_register_memory(pair.own, pair.local.memory, SIZE, "cuda:0", READ_WRITE, NULL, &error),
              &error);
    assert_ok(shoal_segment_open(pair.target, shoal_engine_server_name(pair.own), NULL, &segment, &error), &error);
    for (size_t i = 0; i < COUNT; i++) {
        there[i] = request_of(&pair, SHOAL_OP_READ, 0, SIZE);
        back[i] = (struct shoal_request){.op = SHOAL_OP_READ,
                                         .segment = segment,
                                         .local = to.memory,
                                         .remote_addr = (uint64_t)(uintptr_t)pair.local.memory,
                                         .len_bytes = SIZE};
    }
    assert_ok(shoal_batch_create(pair.own, COUNT, &batches[0], &error), &error);
    assert_ok(shoal_batch_create(pair.target, COUNT, &batches[1], &error), &error);
    assert_ok(shoal_batch_submit(batches[0], there, COUNT, &error), &error);
    assert_ok(shoal_batch_submit(batches[1], back, COUNT, &error), &error);
    assert_ok(finish(batches[0], &error), &error);
    assert_ok(finish(batches[1], &error), &error);
    assert_int_equal(difference(&pair.local, 0, SIZE, 1, 0), -1);
    place_close(&to);
    shoal_segment_close(segment);
    pair_close(&pair);
}

static void test_freed(void **state)
{
    struct shoal_error error;

    (void)state;
    for (unsigned sides = 1; sides < 4; sides++) {
        struct pair pair;

        for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
            pair_open(&pair, sides & 1, sides & 2, 3 * MIB);
            assert_ok(move(&pair, (enum shoal_op)op, 0, 2 * MIB, &error), &error);
            cuda_test_free(0, sides & 1 ? pair.remote.memory : pair.local.memory);
            assert_status(SHOAL_IO, move(&pair, (enum shoal_op)op, 0, 3 * MIB, &error), &error);
            assert_non_null(strstr(error.message, "freed"));
            /* The node goes on. */
            assert_status(SHOAL_INVALID_ARGUMENT,
                          transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local.memory, NULL, 0, 1, &error),
                          &error);
            *(sides & 1 ? &pair.remote.memory : &pair.local.memory) = NULL;
            pair_close(&pair);
        }
    }
}

static void test_registration(void **state)
{
    struct shoal_engine *engine = engine_make(NULL);
    uint8_t *host = memory_make(4096), *device = cuda_test_alloc(0, 4096);
    struct shoal_error error;

    (void)state;
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, device, 4096, "cuda:9", 0, NULL, &error),
                  &error);
    assert_non_null(strstr(error.message, "cuda:9"));
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, host, 4096, "cuda:0", 0, NULL, &error),
                  &error);
    assert_non_null(strstr(error.message, "not device memory"));
    assert_status(SHOAL_INVALID_ARGUMENT,
                  shoal_engine_register_memory(engine, device, MIB * 4096, "cuda:0", 0, NULL, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, device, 4096, NULL, 0, NULL, &error),
                  &error);
    assert_non_null(strstr(error.message, "location \"cuda:0\""));
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, device + 5, 8, "cpu:0", 0, NULL, &error),
                  &error);
    assert_ok(shoal_engine_register_memory(engine, device, 4096, "cuda:0", 0, NULL, &error), &error);
    assert_ok(shoal_engine_unregister_memory(engine, device, 4096, &error), &error);
    shoal_engine_destroy(engine);
    cuda_test_free(0, device);
    memory_drop(host, 4096);
}

/* --- what needs a driver that obeys --- */

#define NEED_STUB()                                                                                                    \
    do {                                                                                                               \
        if (!cuda_test_stub())                                                                                         \
            skip();                                                                                                    \
    } while (0)

static unsigned waiting(enum cuda_stub_direction direction)
{
    return cuda_test_stub()->counts().waiting[direction];
}

/* While a chunk is copied the next one is on the network already, and no third. */
static void test_overlap(void **state)
{
    struct shoal_error error;
    struct shoal_batch *batch;
    struct pair pair;

    (void)state;
    NEED_STUB();
    for (unsigned sides = 1; sides < 3; sides++) {
        for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
            enum cuda_stub_direction direction = (op == SHOAL_OP_READ) == (sides == 2) ? CUDA_STUB_IN : CUDA_STUB_OUT;

            pair_open(&pair, sides & 1, sides & 2, 8 * MIB);
            fill(op == SHOAL_OP_READ ? &pair.remote : &pair.local, 0, 8 * MIB, 5, 0);
            cuda_test_stub()->hold(direction, true);
            batch = begin(&pair, (enum shoal_op)op, 0, 8 * MIB);
            wait_until(waiting(direction) == 2);
            cuda_test_stub()->hold(direction, false);
            assert_ok(finish(batch, &error), &error);
            assert_int_equal(difference(op == SHOAL_OP_READ ? &pair.local : &pair.remote, 0, 8 * MIB, 5, 0), -1);
            pair_close(&pair);
        }
    }
    assert_int_equal(cuda_test_stub()->counts().unpinned_copies, 0);
}

/* Done means that no copy is under way: a canceled request ends when the device has let go. */
static void test_cancel(void **state)
{
    struct shoal_transfer_status status;
    struct shoal_error error;
    struct shoal_batch *batch;
    struct pair pair;

    (void)state;
    NEED_STUB();
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        enum cuda_stub_direction direction = op == SHOAL_OP_READ ? CUDA_STUB_IN : CUDA_STUB_OUT;
        uint64_t copies;

        pair_open(&pair, false, true, 8 * MIB);
        cuda_test_stub()->hold(direction, true);
        batch = begin(&pair, (enum shoal_op)op, 0, 8 * MIB);
        wait_until(waiting(direction) == 2);
        shoal_batch_cancel(batch);
        assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, 0, &error), &error);
        cuda_test_stub()->hold(direction, false);
        assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
        assert_int_equal(waiting(direction), 0);
        assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_OK);
        assert_int_equal(status.state, SHOAL_TRANSFER_CANCELED);
        copies = cuda_test_stub()->counts().copies[direction];
        shoal_batch_destroy(batch);
        /* Those that wait for a buffer are canceled, too. */
        cuda_test_stub()->hold(direction, true);
        {
            enum { COUNT = DEVICE_BUFFERS_MAX + 10 };
            struct shoal_request requests[COUNT];

            for (size_t i = 0; i < COUNT; i++)
                requests[i] = request_of(&pair, (enum shoal_op)op, i * 4096, 4096);
            assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
            assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
            wait_until(waiting(direction) >= 8);
            shoal_batch_cancel(batch);
            wait_until(shoal_batch_status(batch, COUNT - 1, &status) == SHOAL_OK &&
                       status.state == SHOAL_TRANSFER_CANCELED);
        }
        cuda_test_stub()->hold(direction, false);
        assert_status(SHOAL_CANCELED, finish(batch, &error), &error);
        assert_true(cuda_test_stub()->counts().copies[direction] >= copies);
        assert_ok(move(&pair, (enum shoal_op)op, 0, 3 * MIB, &error), &error);
        pair_close(&pair);
    }
}

struct remover {
    struct place *place;
    bool is_done; /* atomic */
};

static void *remove_place(void *arg)
{
    struct remover *remover = arg;

    place_close(remover->place);
    __atomic_store_n(&remover->is_done, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Whether place_close has begun: no new use of the memory is possible. */
static bool is_going(const struct place *place)
{
    uint64_t key;

    if (engine_window_open(place->engine, place->memory, 1, SHOAL_ACCESS_REMOTE_READ, &key, NULL) != SHOAL_OK)
        return true;
    engine_window_close(place->engine, key);
    return false;
}

/* When unregister returns the memory may be freed: it waits for the copies, on the requesting and the serving side. */
static void test_unregister(void **state)
{
    struct shoal_error error;
    struct shoal_batch *batch;
    struct pair pair;

    (void)state;
    NEED_STUB();
    for (unsigned sides = 1; sides < 3; sides++) {
        for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
            enum cuda_stub_direction direction = (op == SHOAL_OP_READ) == (sides == 2) ? CUDA_STUB_IN : CUDA_STUB_OUT;
            struct remover remover = {0};
            pthread_t thread;

            pair_open(&pair, sides & 1, sides & 2, 8 * MIB);
            cuda_test_stub()->hold(direction, true);
            batch = begin(&pair, (enum shoal_op)op, 0, 8 * MIB);
            wait_until(waiting(direction) == 2);
            remover.place = sides & 1 ? &pair.remote : &pair.local;
            assert_int_equal(pthread_create(&thread, NULL, remove_place, &remover), 0);
            if (sides & 1) /* the connection is dropped, but the copies go on */
                assert_true(shoal_batch_wait(batch, PATIENCE_MS, &error) != SHOAL_OK);
            wait_until(is_going(remover.place));
            assert_false(__atomic_load_n(&remover.is_done, __ATOMIC_ACQUIRE));
            cuda_test_stub()->hold(direction, false);
            assert_int_equal(pthread_join(thread, NULL), 0);
            assert_true(finish(batch, &error) != SHOAL_OK);
            pair_close(&pair);
        }
    }
}

/* The driver refuses a copy: the first of a request, and one in the middle of it. */
static void test_copy_fails(void **state)
{
    static const char *const symbols[] = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"};
    struct shoal_error error;
    struct pair pair;

    (void)state;
    NEED_STUB();
    for (unsigned sides = 1; sides < 3; sides++) {
        for (unsigned after = 0; after < 4; after += 3) {
            for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
                pair_open(&pair, sides & 1, sides & 2, 8 * MIB);
                cuda_test_stub()->fail_call(symbols[(op == SHOAL_OP_READ) == (sides == 1)], OUT_OF_MEMORY, after);
                assert_status(SHOAL_IO, move(&pair, (enum shoal_op)op, 0, 8 * MIB, &error), &error);
                pair_close(&pair);
            }
        }
    }
}

static void test_destroyed_context(void **state)
{
    struct shoal_error error;
    struct pair pair;

    (void)state;
    NEED_STUB();
    for (unsigned sides = 1; sides < 3; sides++) {
        for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
            struct place again;

            pair_open(&pair, sides & 1, sides & 2, 3 * MIB);
            assert_ok(move(&pair, (enum shoal_op)op, 0, 3 * MIB, &error), &error);
            cuda_test_stub()->destroy_context(0);
            assert_status(SHOAL_IO, move(&pair, (enum shoal_op)op, 0, 3 * MIB, &error), &error);
            assert_non_null(strstr(error.message, "CUDA_ERROR_CONTEXT_IS_DESTROYED"));
            *(sides & 1 ? &pair.remote.memory : &pair.local.memory) = NULL;
            /* Once the application has a context again, its new memory can be used. */
            place_open(&again, sides & 1 ? pair.target : pair.own, true, MIB, READ_WRITE);
            fill(&again, 0, MIB, 1, 0);
            if (sides & 1)
                assert_ok(
                    transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local.memory, again.memory, 0, MIB, &error),
                    &error);
            else
                assert_ok(
                    transfer(pair.own, pair.segment, SHOAL_OP_READ, again.memory, pair.remote.memory, 0, MIB, &error),
                    &error);
            place_close(&again);
            pair_close(&pair);
        }
    }
}

struct destroyer {
    struct shoal_engine *engine;
};

static void *destroy_engine(void *arg)
{
    shoal_engine_destroy(((struct destroyer *)arg)->engine);
    return NULL;
}

/* An engine that goes while the device copies for its peers. */
static void test_destroy_serving(void **state)
{
    struct shoal_error error;
    struct shoal_batch *batch;
    struct destroyer destroyer;
    struct pair pair;
    pthread_t thread;

    (void)state;
    NEED_STUB();
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        enum cuda_stub_direction direction = op == SHOAL_OP_READ ? CUDA_STUB_OUT : CUDA_STUB_IN;

        pair_open(&pair, true, false, 8 * MIB);
        cuda_test_stub()->hold(direction, true);
        batch = begin(&pair, (enum shoal_op)op, 0, 8 * MIB);
        wait_until(waiting(direction) == 2);
        destroyer.engine = pair.target;
        assert_int_equal(pthread_create(&thread, NULL, destroy_engine, &destroyer), 0);
        /* Its connections are closed first, whatever the device does. */
        assert_status(SHOAL_UNREACHABLE, finish(batch, &error), &error);
        cuda_test_stub()->hold(direction, false);
        assert_int_equal(pthread_join(thread, NULL), 0);
        pair.target = NULL;
        pair_close(&pair);
    }
}

static void test_several_loops(void **state)
{
    enum { COUNT = 64, SIZE = 700 * 1024 };
    struct shoal_engine_config config = fixture_config();
    struct shoal_request requests[COUNT];
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    config.io_threads = 3;
    pair_open_with(&pair, &config, true, true, (size_t)COUNT * SIZE);
    fill(&pair.remote, 0, pair.remote.len, 1, 0);
    for (unsigned round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++)
            requests[i] = request_of(&pair, round == 3 ? SHOAL_OP_WRITE : SHOAL_OP_READ, i * SIZE, SIZE);
        assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
        assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
        if (round == 1)
            shoal_batch_cancel(batch);
        if (round == 1)
            (void)finish(batch, &error);
        else
            assert_ok(finish(batch, &error), &error);
        assert_true(round == 1 || difference(&pair.local, 0, pair.local.len, 1, 0) == -1);
    }
    pair_close(&pair);
}

static void test_nothing_left(void **state)
{
    struct cuda_stub_counts counts;

    (void)state;
    NEED_STUB();
    counts = cuda_test_stub()->counts();
    assert_int_equal(counts.streams, 0);
    assert_int_equal(counts.pinned_ranges, 0);
    assert_int_equal(counts.allocations, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_sizes),
        CASE(test_others_stay),
        CASE(test_many),
        CASE(test_crosswise),
        CASE(test_freed),
        CASE(test_registration),
        CASE(test_overlap),
        CASE(test_cancel),
        CASE(test_unregister),
        CASE(test_copy_fails),
        CASE(test_destroyed_context),
        CASE(test_destroy_serving),
        CASE(test_several_loops),
        CASE(test_nothing_left),
    };

    if (argc > 1)
        transport_name = argv[1];
    is_served_by_mem = strcmp(transport_name, "mem") == 0;
    if (strcmp(transport_name, "fault") == 0)
        transport_args = "tcp";
    if (transport_register(&transport_mem_ops, NULL) != SHOAL_OK ||
        transport_register(&transport_fault_ops, NULL) != SHOAL_OK)
        return 1;
    if (!cuda_test_start()) {
        printf("skipped: no CUDA driver\n");
        return 77;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name(transport_name, tests, NULL, NULL);
}
