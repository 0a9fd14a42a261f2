/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport promises through the public engine API. Argument: the transport. */
#include "transport_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/random.h"
#include "content.h"
#include "engine/engine.h"
#include "transport/fault.h"
#include "transport/mem.h"

#define MIB (1u << 20)
#define UCX_SHM "tls=posix,cma"

static bool is_software_rma;

/* Two engines of one process: target serves memory of len bytes with content of seed 1. */
struct pair {
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    uint8_t *remote, *local;
    uint64_t key;
    size_t len;
};

static void pair_open(struct pair *pair, size_t len, unsigned access)
{
    struct shoal_error error;

    memset(pair, 0, sizeof *pair);
    pair->len = len;
    pair->target = engine_make(NULL);
    pair->own = engine_make(NULL);
    pair->remote = memory_make_for(pair->target, len);
    pair->local = memory_make_for(pair->own, len);
    content_fill(pair->remote, len, 1, 0);
    assert_ok(shoal_engine_register_memory(pair->target, pair->remote, len, "cpu:0", access, &pair->key, &error),
              &error);
    assert_ok(shoal_engine_register_memory(pair->own, pair->local, len, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
              &error);
    assert_ok(shoal_segment_open(pair->own, shoal_engine_server_name(pair->target), NULL, &pair->segment, &error),
              &error);
}

/* What was asked of a peer went over the transport under test: none falls back in silence. */
static void check_path(void *arg, const struct engine_peer_view *view)
{
    uint64_t bytes = *(uint64_t *)arg;
    bool leaves_small = strcmp(transport_name, "local") == 0; /* to a direct connection */

    assert_string_equal(view->paths[0].transport, transport_name);
    assert_null(view->paths[0].refusal);
    assert_true(view->paths[0].bytes >= bytes);
    for (unsigned i = 1; i < view->path_count; i++)
        assert_true(view->paths[i].bytes < (leaves_small ? MIB : 1));
    *(uint64_t *)arg = UINT64_MAX; /* one peer, no more */
}

/* At least so many bytes; in requests that are not small. */
static void check_paths(struct shoal_engine *engine, uint64_t bytes)
{
    assert_int_equal(engine_peers_visit(engine, check_path, &bytes), SHOAL_OK);
    assert_true(bytes == UINT64_MAX);
}

static void pair_close(struct pair *pair)
{
    shoal_segment_close(pair->segment);
    shoal_engine_destroy(pair->own);
    shoal_engine_destroy(pair->target);
    memory_drop_of(NULL, pair->remote, pair->len);
    memory_drop_of(NULL, pair->local, pair->len);
}

/* The target's memory with its first content again. Its engine may still be sending from it for a request that was
 * canceled here; that ends when the registration does. */
static void pair_refill_remote(struct pair *pair, unsigned access)
{
    struct shoal_error error;

    assert_ok(shoal_engine_unregister_memory(pair->target, pair->remote, pair->len, &error), &error);
    content_fill(pair->remote, pair->len, 1, 0);
    assert_ok(shoal_engine_register_memory(pair->target, pair->remote, pair->len, "cpu:0", access, &pair->key, &error),
              &error);
}

#define READ_WRITE (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)

static struct shoal_request request_of(const struct pair *pair, enum shoal_op op, size_t offset, size_t len)
{
    return (struct shoal_request){.op = op,
                                  .segment = pair->segment,
                                  .local = pair->local + offset,
                                  .remote_addr = (uint64_t)(uintptr_t)pair->remote + offset,
                                  .len_bytes = len};
}

static void test_sizes(void **state)
{
    static const size_t sizes[] = {1, 2, 39, 40, 41, 4095, 4096, 4097, 65537, MIB - 1, MIB, MIB + 1, 7 * MIB + 13};
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, 64 * MIB + 4096, READ_WRITE);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t len = sizes[i], from = 3 + 7 * i, to = 5 + 11 * i;

        memset(pair.local, 0xee, len + 4096);
        assert_ok(
            transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local + to, pair.remote + from, pair.key, len, &error),
            &error);
        assert_int_equal(content_find_difference(pair.local + to, len, 1, from), -1);
        assert_int_equal(pair.local[to - 1], 0xee);
        assert_int_equal(pair.local[to + len], 0xee);

        content_fill(pair.local + to, len, 2, i);
        assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local + to, pair.remote + from, 0, len, &error),
                  &error);
        assert_int_equal(content_find_difference(pair.remote + from, len, 2, i), -1);
        content_fill(pair.remote, len + 4096, 1, 0);
    }
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local + 1, pair.remote + 2, 0, 64 * MIB, &error),
              &error);
    assert_int_equal(content_find_difference(pair.local + 1, 64 * MIB, 1, 2), -1);
    content_fill(pair.local, 64 * MIB, 3, 0);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local, pair.remote + 1, 0, 64 * MIB, &error),
              &error);
    assert_int_equal(content_find_difference(pair.remote + 1, 64 * MIB, 3, 0), -1);
    check_paths(pair.own, 2 * 64ull * MIB);
    pair_close(&pair);
}

/* What is told while bytes come in. */
struct arrivals {
    struct engine_op op;
    uint64_t told;
    bool is_in_order, is_right;
    bool is_done; /* atomic */
    enum shoal_status status;
};

static void on_arrived(struct engine_op *op, const void *data, uint64_t offset, uint64_t len)
{
    struct arrivals *arrivals = op->arg;

    if (offset == 0)
        arrivals->told = 0; /* once more from the beginning */
    arrivals->is_in_order &= offset == arrivals->told && data == (const char *)op->local + offset;
    arrivals->is_right &= content_find_difference(data, len, 1, 3 + offset) == -1;
    arrivals->told += len;
}

static void on_arrivals_done(struct engine_op *op, enum shoal_status status, const struct shoal_error *error)
{
    struct arrivals *arrivals = op->arg;

    (void)error;
    arrivals->status = status;
    __atomic_store_n(&arrivals->is_done, true, __ATOMIC_RELEASE);
}

static void test_arrived(void **state)
{
    static const size_t sizes[] = {1, 4097, 65536, 65537, MIB + 3, 4 * MIB, 7 * MIB + 13, 20 * MIB};
    bool must_tell = strcmp(transport_name, "tcp") == 0 || strcmp(transport_name, "local") == 0;
    struct pair pair;

    (void)state;
    pair_open(&pair, 21 * MIB, READ_WRITE);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct arrivals arrivals = {.is_in_order = true, .is_right = true};

        memset(pair.local, 0xee, sizes[i]);
        arrivals.op = (struct engine_op){.op = SHOAL_OP_READ,
                                         .segment = pair.segment,
                                         .local = pair.local,
                                         .remote_addr = (uint64_t)(uintptr_t)pair.remote + 3,
                                         .remote_key = pair.key,
                                         .len_bytes = sizes[i],
                                         .done = on_arrivals_done,
                                         .arrived = on_arrived,
                                         .arg = &arrivals};
        engine_submit(pair.own, &arrivals.op);
        wait_until(__atomic_load_n(&arrivals.is_done, __ATOMIC_ACQUIRE));
        assert_int_equal(arrivals.status, SHOAL_OK);
        assert_true(arrivals.is_in_order && arrivals.is_right);
        if (arrivals.told > 0 || (must_tell && sizes[i] <= 8 * MIB))
            assert_int_equal(arrivals.told, sizes[i]);
        assert_int_equal(content_find_difference(pair.local, sizes[i], 1, 3), -1);
    }
    pair_close(&pair);
}

static void test_refused(void **state)
{
    struct shoal_error error;
    struct pair pair;
    uint8_t *read_only = memory_make(4096), *write_only = memory_make(4096), *unknown = memory_make(4096);
    uint64_t read_key;

    (void)state;
    pair_open(&pair, 64 * 1024, READ_WRITE);
    content_fill(pair.local, pair.len, 9, 0);
    assert_ok(
        shoal_engine_register_memory(pair.target, read_only, 4096, NULL, SHOAL_ACCESS_REMOTE_READ, &read_key, &error),
        &error);
    assert_ok(
        shoal_engine_register_memory(pair.target, write_only, 4096, NULL, SHOAL_ACCESS_REMOTE_WRITE, NULL, &error),
        &error);

    /* Beyond either end, far away, wrapping. */
    for (int op = SHOAL_OP_READ; op <= SHOAL_OP_WRITE; op++) {
        enum shoal_op kind = (enum shoal_op)op;

        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, pair.local, pair.remote + pair.len - 10, 0, 11, &error),
                      &error);
        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, pair.local, pair.remote - 1, 0, 2, &error), &error);
        assert_status(SHOAL_INVALID_ARGUMENT, transfer(pair.own, pair.segment, kind, pair.local, unknown, 0, 1, &error),
                      &error);
        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, pair.local, (void *)UINTPTR_MAX, 0, 100, &error), &error);
        /* Somebody else's key. */
        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, pair.local, pair.remote, pair.key + 1000, 10, &error),
                      &error);
        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, pair.local, pair.remote, read_key, 10, &error), &error);
        /* Local memory that is not registered. */
        assert_status(SHOAL_INVALID_ARGUMENT,
                      transfer(pair.own, pair.segment, kind, unknown, pair.remote, 0, 10, &error), &error);
        assert_non_null(strstr(error.message, "local"));
    }
    assert_status(SHOAL_INVALID_ARGUMENT,
                  transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local, read_only, 0, 10, &error), &error);
    assert_non_null(strstr(error.message, "writable"));
    assert_status(SHOAL_INVALID_ARGUMENT,
                  transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, write_only, 0, 10, &error), &error);
    assert_int_equal(content_find_difference(pair.local, pair.len, 9, 0), -1);
    assert_int_equal(content_find_difference(pair.remote, pair.len, 1, 0), -1);
    assert_int_equal(content_find_difference(read_only, 4096, 0, 0), -1);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, read_only, read_key, 4096, &error), &error);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local, write_only, 0, 4096, &error), &error);

    /* A key dies with its registration, also if the same range comes back. */
    assert_ok(shoal_engine_unregister_memory(pair.target, read_only, 4096, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, read_only, 0, 10, &error), &error);
    assert_ok(shoal_engine_register_memory(pair.target, read_only, 4096, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error),
              &error);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, read_only, read_key, 10, &error), &error);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, read_only, 0, 10, &error), &error);
    pair_close(&pair);
    memory_drop(read_only, 4096);
    memory_drop(write_only, 4096);
    memory_drop(unknown, 4096);
}

/* F8: far more requests than any connection takes at once, and one bad one among them. */
static void test_many(void **state)
{
    enum { COUNT = 2000, SIZE = 4099 };
    struct shoal_request *requests = calloc(COUNT, sizeof *requests);
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)COUNT * SIZE, READ_WRITE);
    assert_ok(shoal_batch_create(pair.own, 2 * COUNT, &batch, &error), &error);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = request_of(&pair, SHOAL_OP_READ, i * SIZE, SIZE);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_int_equal(content_find_difference(pair.local, pair.len, 1, 0), -1);
    content_fill(pair.local, pair.len, 4, 0);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = request_of(&pair, SHOAL_OP_WRITE, i * SIZE, SIZE);
    requests[1234].remote_addr = 64;
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(shoal_batch_status(batch, COUNT + i, &status), SHOAL_OK);
        assert_int_equal(status.state, i == 1234 ? SHOAL_TRANSFER_INVALID : SHOAL_TRANSFER_COMPLETED);
        assert_int_equal(status.transferred_bytes, i == 1234 ? 0 : SIZE);
        if (i != 1234)
            assert_int_equal(content_find_difference(pair.remote + i * SIZE, SIZE, 4, i * SIZE), -1);
    }
    assert_int_equal(content_find_difference(pair.remote + 1234 * SIZE, SIZE, 1, 1234 * SIZE), -1);
    assert_status(SHOAL_LIMIT, shoal_batch_submit(batch, requests, 1, &error), &error);
    shoal_batch_destroy(batch);
    pair_close(&pair);
    free(requests);
}

static void test_batch(void **state)
{
    struct shoal_transfer_status status;
    struct shoal_request request;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;
    struct pollfd poll_fd;

    (void)state;
    pair_open(&pair, MIB, READ_WRITE);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_create(pair.own, 0, &batch, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_create(pair.own, 65537, &batch, &error), &error);
    assert_ok(shoal_batch_create(pair.own, 2, &batch, &error), &error);
    poll_fd = (struct pollfd){.fd = shoal_batch_fd(batch), .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 0), 1);
    assert_ok(shoal_batch_wait(batch, 0, &error), &error);
    assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_INVALID_ARGUMENT);

    request = request_of(&pair, SHOAL_OP_READ, 0, MIB);
    request.len_bytes = 0;
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_submit(batch, &request, 1, &error), &error);
    request.len_bytes = (1ull << 40) + 1;
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_submit(batch, &request, 1, &error), &error);
    request = request_of(&pair, (enum shoal_op)3, 0, MIB);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_batch_submit(batch, &request, 1, &error), &error);

    request = request_of(&pair, SHOAL_OP_READ, 0, MIB);
    assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
    assert_int_equal(poll(&poll_fd, 1, PATIENCE_MS), 1);
    assert_ok(shoal_batch_wait(batch, 0, &error), &error);
    assert_int_equal(shoal_batch_status(batch, 0, &status), SHOAL_OK);
    assert_int_equal(status.state, SHOAL_TRANSFER_COMPLETED);
    assert_int_equal(status.transferred_bytes, MIB);
    assert_int_equal(content_find_difference(pair.local, MIB, 1, 0), -1);
    shoal_batch_destroy(batch);

    /* The handle may go while its request runs; destroying a batch waits for it. */
    assert_ok(shoal_batch_create(pair.own, 1, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
    shoal_segment_close(pair.segment);
    pair.segment = NULL;
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    shoal_batch_destroy(NULL);
    pair_close(&pair);
}

static void test_cancel(void **state)
{
    enum { COUNT = 48, SIZE = 2 * MIB };
    struct shoal_request requests[COUNT];
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)COUNT * SIZE, READ_WRITE);
    for (unsigned round = 0; round < 12; round++) {
        enum shoal_op op = round % 2 ? SHOAL_OP_WRITE : SHOAL_OP_READ;
        size_t completed = 0;
        uint8_t *copy;

        assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
        memset(pair.local, 0x55, pair.len);
        pair_refill_remote(&pair, READ_WRITE);
        for (size_t i = 0; i < COUNT; i++)
            requests[i] = request_of(&pair, op, i * SIZE, SIZE);
        assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
        if (round >= 2) { /* let it get into the middle: some have completed */
            wait_until(shoal_batch_status(batch, round, &status) == SHOAL_OK && status.state != SHOAL_TRANSFER_PENDING);
        }
        shoal_batch_cancel(batch);
        (void)shoal_batch_wait(batch, PATIENCE_MS, &error);
        copy = malloc(pair.len);
        assert_non_null(copy);
        memcpy(copy, pair.local, pair.len);
        for (size_t i = 0; i < COUNT; i++) {
            assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
            assert_true(status.state == SHOAL_TRANSFER_COMPLETED || status.state == SHOAL_TRANSFER_CANCELED);
            if (status.state == SHOAL_TRANSFER_COMPLETED) {
                completed++;
                if (op == SHOAL_OP_READ)
                    assert_int_equal(content_find_difference(pair.local + i * SIZE, SIZE, 1, i * SIZE), -1);
                else
                    assert_memory_equal(pair.remote + i * SIZE, pair.local + i * SIZE, SIZE);
            }
        }
        shoal_batch_destroy(batch);
        /* The connection still works, and nothing late reaches local memory. */
        assert_ok(transfer(pair.own, pair.segment, op, pair.local, pair.remote, 0, 4096, &error), &error);
        assert_memory_equal(copy + 4096, pair.local + 4096, pair.len - 4096);
        free(copy);
    }
    check_paths(pair.own, SIZE);
    pair_close(&pair);
}

/* A large request is canceled in the middle: the small ones beside it do not notice. */
static void test_cancel_large(void **state)
{
    enum { LARGE = 64 * MIB, SMALL = MIB, COUNT = 8 };
    struct shoal_request large, small[COUNT];
    struct shoal_batch *large_batch, *small_batch;
    struct shoal_transfer_status status;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)LARGE + COUNT * SMALL, READ_WRITE);
    for (unsigned round = 0; round < 6; round++) {
        enum shoal_op op = round & 1 ? SHOAL_OP_WRITE : SHOAL_OP_READ;

        large = request_of(&pair, op, 0, LARGE);
        for (size_t i = 0; i < COUNT; i++)
            small[i] = request_of(&pair, SHOAL_OP_READ, LARGE + i * SMALL, SMALL);
        memset(pair.local + LARGE, 0, COUNT * SMALL);
        assert_ok(shoal_batch_create(pair.own, 1, &large_batch, &error), &error);
        assert_ok(shoal_batch_create(pair.own, COUNT, &small_batch, &error), &error);
        assert_ok(shoal_batch_submit(small_batch, small, 1, &error), &error);
        assert_ok(shoal_batch_submit(large_batch, &large, 1, &error), &error);
        assert_ok(shoal_batch_submit(small_batch, small + 1, COUNT - 1, &error), &error); /* none twice */
        wait_until(shoal_batch_status(small_batch, 0, &status) == SHOAL_OK &&
                   status.state == SHOAL_TRANSFER_COMPLETED); /* the large one is next */
        shoal_batch_cancel(large_batch);
        (void)shoal_batch_wait(large_batch, PATIENCE_MS, &error);
        shoal_batch_destroy(large_batch);
        assert_ok(shoal_batch_wait(small_batch, PATIENCE_MS, &error), &error);
        shoal_batch_destroy(small_batch);
        assert_int_equal(content_find_difference(pair.local + LARGE, COUNT * SMALL, 1, LARGE), -1);
    }
    check_paths(pair.own, 6ull * COUNT * SMALL);
    pair_close(&pair);
}

struct remover {
    struct shoal_engine *engine;
    uint8_t *memory;
    size_t len;
    enum shoal_status status;
};

static void *remove_memory(void *arg)
{
    struct remover *remover = arg;
    struct shoal_error error;

    remover->status = shoal_engine_unregister_memory(remover->engine, remover->memory, remover->len, &error);
    if (remover->status == SHOAL_OK)
        memory_drop_of(remover->engine, remover->memory, remover->len); /* F9: at once */
    return NULL;
}

/* F9: memory goes away under transfers, on either side, and is unmapped as soon as unregister returned. */
static void test_unregister(void **state)
{
    enum { COUNT = 32, SIZE = 4 * MIB };
    struct shoal_request requests[COUNT];
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;

    (void)state;
    for (unsigned round = 0; round < 8; round++) {
        bool is_target = round & 1;
        enum shoal_op op = round & 2 ? SHOAL_OP_WRITE : SHOAL_OP_READ;
        struct remover remover;
        pthread_t thread;
        struct pair pair;

        pair_open(&pair, (size_t)COUNT * SIZE, READ_WRITE);
        remover = (struct remover){.engine = is_target ? pair.target : pair.own,
                                   .memory = is_target ? pair.remote : pair.local,
                                   .len = pair.len};
        assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
        for (size_t i = 0; i < COUNT; i++)
            requests[i] = request_of(&pair, op, i * SIZE, SIZE);
        assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
        wait_until(shoal_batch_status(batch, 0, &status) == SHOAL_OK && status.state != SHOAL_TRANSFER_PENDING);
        assert_int_equal(pthread_create(&thread, NULL, remove_memory, &remover), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(remover.status, SHOAL_OK);
        (void)shoal_batch_wait(batch, PATIENCE_MS, &error);
        for (size_t i = 0; i < COUNT; i++) {
            assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
            assert_true(status.state != SHOAL_TRANSFER_PENDING);
        }
        shoal_batch_destroy(batch);
        shoal_segment_close(pair.segment);
        shoal_engine_destroy(pair.own);
        shoal_engine_destroy(pair.target);
        memory_drop_of(NULL, is_target ? pair.local : pair.remote, pair.len);
    }
}

static void test_registration(void **state)
{
    struct shoal_engine *engine = engine_make(NULL);
    uint8_t *memory = memory_make(16384);
    struct shoal_region regions[] = {{memory, 4096}, {memory + 8192, 0}, {memory + 4096, 4096}};
    struct shoal_region overlapping[] = {{memory, 4096}, {memory + 4095, 2}};
    struct shoal_error error;
    uint64_t key = 1, again = 2;

    (void)state;
    assert_ok(shoal_engine_register_memory(engine, memory, 4096, NULL, SHOAL_ACCESS_REMOTE_READ, &key, &error), &error);
    assert_ok(shoal_engine_register_memory(engine, memory, 4096, "*", SHOAL_ACCESS_REMOTE_READ, &again, &error),
              &error);
    assert_int_equal(key, again);
    assert_status(SHOAL_ADDRESS_OVERLAPPED,
                  shoal_engine_register_memory(engine, memory, 4096, NULL, SHOAL_ACCESS_LOCAL, NULL, &error), &error);
    assert_status(SHOAL_ADDRESS_OVERLAPPED,
                  shoal_engine_register_memory(engine, memory + 1, 100, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error),
                  &error);
    assert_status(SHOAL_ADDRESS_OVERLAPPED,
                  shoal_engine_register_memory(engine, memory, 8192, NULL, SHOAL_ACCESS_REMOTE_READ, NULL, &error),
                  &error);
    assert_status(SHOAL_NOT_FOUND, shoal_engine_unregister_memory(engine, memory, 4095, &error), &error);
    assert_ok(shoal_engine_unregister_memory(engine, memory, 4096, &error), &error);
    assert_ok(shoal_engine_unregister_memory(engine, memory, 4096, &error), &error);
    assert_status(SHOAL_NOT_FOUND, shoal_engine_unregister_memory(engine, memory, 4096, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, NULL, 1, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_engine_register_memory(engine, NULL, 0, NULL, 0, NULL, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  shoal_engine_register_memory(engine, memory, UINT64_MAX, NULL, 0, NULL, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, memory, 1, NULL, 4, NULL, &error),
                  &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, memory, 1, "cpu:", 0, NULL, &error),
                  &error);
    assert_status(SHOAL_INVALID_ARGUMENT, shoal_engine_register_memory(engine, memory, 1, "gpu:0", 0, NULL, &error),
                  &error);
    assert_status(SHOAL_UNSUPPORTED, shoal_engine_register_memory(engine, memory, 1, "cuda:0", 0, NULL, &error),
                  &error);
    assert_status(SHOAL_ADDRESS_OVERLAPPED, shoal_engine_register_memory_batch(engine, overlapping, 2, NULL, 0, &error),
                  &error);
    assert_ok(shoal_engine_register_memory_batch(engine, regions, 3, NULL, 0, &error), &error);
    assert_ok(shoal_engine_unregister_memory_batch(engine, regions, 3, &error), &error);
    assert_status(SHOAL_NOT_FOUND, shoal_engine_unregister_memory_batch(engine, regions, 3, &error), &error);
    shoal_engine_destroy(engine);
    memory_drop(memory, 16384);
}

struct notes {
    pthread_mutex_t mutex;
    unsigned count;
    char peer[320];
    bool is_in_order;
};

static void on_notify(void *arg, const char *peer, const char *name, const void *message, size_t len)
{
    struct notes *notes = arg;
    unsigned number = 0;

    pthread_mutex_lock(&notes->mutex);
    if (len == sizeof number)
        memcpy(&number, message, sizeof number);
    notes->is_in_order = notes->is_in_order && number == notes->count && strcmp(name, "tick") == 0;
    snprintf(notes->peer, sizeof notes->peer, "%s", peer);
    notes->count++;
    pthread_mutex_unlock(&notes->mutex);
}

static void test_notify(void **state)
{
    struct notes notes = {.mutex = PTHREAD_MUTEX_INITIALIZER, .is_in_order = true};
    char long_name[300], message[4097] = {0};
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, 4096, READ_WRITE);
    assert_status(SHOAL_UNSUPPORTED, shoal_segment_notify(pair.segment, "tick", "x", 1, NULL, &error), &error);
    shoal_engine_set_notify(pair.target, on_notify, &notes);
    for (unsigned i = 0; i < 200; i++)
        assert_ok(shoal_segment_notify(pair.segment, "tick", &i, sizeof i, NULL, &error), &error);
    assert_int_equal(notes.count, 200);
    assert_true(notes.is_in_order);
    assert_string_equal(notes.peer, shoal_engine_server_name(pair.own));
    assert_ok(shoal_segment_notify(pair.segment, "big", message, 4096, NULL, &error), &error);
    assert_ok(shoal_segment_notify(pair.segment, "empty", NULL, 0, NULL, &error), &error);
    assert_status(SHOAL_LIMIT, shoal_segment_notify(pair.segment, "big", message, 4097, NULL, &error), &error);
    memset(long_name, 'n', sizeof long_name);
    long_name[255] = '\0';
    assert_ok(shoal_segment_notify(pair.segment, long_name, NULL, 0, NULL, &error), &error);
    long_name[255] = 'n';
    long_name[256] = '\0';
    assert_status(SHOAL_LIMIT, shoal_segment_notify(pair.segment, long_name, NULL, 0, NULL, &error), &error);
    assert_int_equal(notes.count, 203);
    shoal_engine_set_notify(pair.target, NULL, NULL);
    assert_status(SHOAL_UNSUPPORTED, shoal_segment_notify(pair.segment, "tick", "x", 1, NULL, &error), &error);
    pair_close(&pair);
}

/* Everything that is in flight ends when the engine goes. */
static void test_destroy_pending(void **state)
{
    enum { COUNT = 16, SIZE = 4 * MIB };
    struct shoal_request requests[COUNT];
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)COUNT * SIZE, READ_WRITE);
    assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = request_of(&pair, SHOAL_OP_READ, i * SIZE, SIZE);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    shoal_engine_destroy(pair.target); /* the serving side first */
    (void)shoal_batch_wait(batch, PATIENCE_MS, &error);
    shoal_batch_destroy(batch);
    pair.target = engine_make(NULL);
    assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    shoal_batch_destroy(batch);
    pair_close(&pair);
}

#define READS_PER_THREAD 50

struct reader {
    struct pair *pair;
    size_t first; /* page; each thread fills its own */
};

static void *read_often(void *arg)
{
    struct reader *reader = arg;
    struct pair *pair = reader->pair;
    struct shoal_error error;

    for (size_t i = reader->first; i < reader->first + READS_PER_THREAD; i++)
        assert_ok(transfer(pair->own, pair->segment, SHOAL_OP_READ, pair->local + i * 4096, pair->remote + i * 4096, 0,
                           4096, &error),
                  &error);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[4];
    struct reader readers[4];
    struct pair pair;

    (void)state;
    pair_open(&pair, MIB, SHOAL_ACCESS_REMOTE_READ);
    for (size_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){&pair, i * READS_PER_THREAD};
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(content_find_difference(pair.local, (size_t)4 * READS_PER_THREAD * 4096, 1, 0), -1);
    pair_close(&pair);
}

static void test_several_loops(void **state)
{
    enum { COUNT = 256, SIZE = 128 * 1024 + 1 };
    struct shoal_engine_config config = fixture_config();
    struct shoal_request *requests = calloc(COUNT, sizeof *requests);
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)COUNT * SIZE, READ_WRITE);
    shoal_segment_close(pair.segment);
    shoal_engine_destroy(pair.own);
    memory_drop_of(NULL, pair.local, pair.len);
    config.io_threads = 3;
    pair.own = engine_make(&config);
    pair.local = memory_make_for(pair.own, pair.len);
    assert_ok(shoal_engine_register_memory(pair.own, pair.local, pair.len, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(pair.own, shoal_engine_server_name(pair.target), NULL, &pair.segment, &error), &error);
    for (unsigned round = 0; round < 6; round++) {
        assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
        memset(pair.local, 0, pair.len);
        for (size_t i = 0; i < COUNT; i++)
            requests[i] = request_of(&pair, SHOAL_OP_READ, i * SIZE, SIZE);
        assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
        if (round % 2) {
            shoal_batch_cancel(batch);
            (void)shoal_batch_wait(batch, PATIENCE_MS, &error);
        } else {
            assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
            assert_int_equal(content_find_difference(pair.local, pair.len, 1, 0), -1);
        }
        shoal_batch_destroy(batch);
    }
    check_paths(pair.own, 3ull * COUNT * SIZE);
    pair_close(&pair);
    free(requests);
}

/* --- peers in other processes --- */

static void test_killed(void **state)
{
    enum { COUNT = 32, SIZE = 2 * MIB };
    struct child child;
    struct shoal_engine *own;
    struct shoal_segment *segment;
    struct shoal_request requests[COUNT];
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    uint8_t *local;

    (void)state;
    if (is_software_rma)
        skip(); /* UCX answers in software, and may end the process that cannot */
    if (!transport_is_remote)
        skip();
    child = child_start((size_t)COUNT * SIZE, 1, NULL);
    own = engine_make(NULL);
    local = memory_make_for(own, (size_t)COUNT * SIZE);
    assert_ok(shoal_engine_register_memory(own, local, (size_t)COUNT * SIZE, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(own, child.name, NULL, &segment, &error), &error);
    assert_ok(transfer(own, segment, SHOAL_OP_READ, local, child.memory, 0, SIZE, &error), &error);
    check_paths(own, SIZE);
    assert_ok(shoal_batch_create(own, COUNT, &batch, &error), &error);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = (struct shoal_request){.op = SHOAL_OP_READ,
                                             .segment = segment,
                                             .local = local + i * SIZE,
                                             .remote_addr = (uint64_t)(uintptr_t)child.memory + i * SIZE,
                                             .len_bytes = SIZE};
    child_pause(&child);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    child_stop(&child);
    assert_status(SHOAL_UNREACHABLE, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
        assert_int_equal(status.state, SHOAL_TRANSFER_FAILED);
    }
    shoal_batch_destroy(batch);
    assert_status(SHOAL_UNREACHABLE, transfer(own, segment, SHOAL_OP_WRITE, local, child.memory, 0, 1, &error), &error);
    shoal_segment_close(segment);
    shoal_engine_destroy(own);
    memory_drop_of(NULL, local, (size_t)COUNT * SIZE);
}

static void test_stopped(void **state)
{
    enum { SIZE = 8 * MIB };
    struct shoal_engine_config config = fixture_config();
    struct child child;
    struct shoal_engine *own;
    struct shoal_segment *segment;
    struct shoal_error error;
    uint8_t *local;

    (void)state;
    if (is_software_rma)
        skip(); /* UCX answers in software, and may end the process that cannot */
    if (!transport_is_remote)
        skip();
    child = child_start(SIZE, 1, NULL);
    config.progress_timeout_ms = 1500;
    config.connect_timeout_ms = 1500;
    own = engine_make(&config);
    local = memory_make_for(own, SIZE);
    assert_ok(shoal_engine_register_memory(own, local, SIZE, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(own, child.name, NULL, &segment, &error), &error);
    assert_ok(transfer(own, segment, SHOAL_OP_READ, local, child.memory, 0, SIZE, &error), &error);
    child_pause(&child);
    assert_status(SHOAL_TIMED_OUT, transfer(own, segment, SHOAL_OP_READ, local, child.memory, 0, SIZE, &error), &error);
    assert_status(SHOAL_TIMED_OUT, transfer(own, segment, SHOAL_OP_WRITE, local, child.memory, 0, SIZE, &error),
                  &error); /* now the handshake is not answered */
    assert_int_equal(kill(child.pid, SIGCONT), 0);
    memset(local, 0, SIZE);
    wait_until_ok(transfer(own, segment, SHOAL_OP_READ, local, child.memory, 0, SIZE, &error), &error);
    assert_int_equal(content_find_difference(local, SIZE, 1, 0), -1);
    check_paths(own, 2ull * SIZE);
    child_stop(&child);
    shoal_segment_close(segment);
    shoal_engine_destroy(own);
    memory_drop_of(NULL, local, SIZE);
}

static bool has_paused(struct shoal_engine *engine)
{
    static const char name[] = "\nshoal_transport_ucx_pauses_total ";
    const char *line;
    struct buf text;
    bool result;

    buf_init(&text, 4 * MIB);
    assert_true(engine_metrics(engine, &text) && buf_append(&text, "", 1));
    line = strstr((const char *)text.data, name);
    result = line && strtoull(line + sizeof name - 1, NULL, 10) > 0;
    buf_release(&text);
    return result;
}

/* A peer that stops for a while, shorter than the progress deadline, is no failure. */
static void test_continued(void **state)
{
    enum { SIZE = 16 * MIB };
    struct shoal_request request = {.op = SHOAL_OP_WRITE, .len_bytes = SIZE};
    struct child child;
    struct shoal_engine *own;
    struct shoal_batch *batch;
    struct shoal_error error;
    uint8_t *local;

    (void)state;
    if (is_software_rma)
        skip(); /* UCX answers in software, and may end the process that cannot */
    if (!transport_is_remote)
        skip();
    child = child_start(SIZE, 1, NULL);
    own = engine_make(NULL);
    request.local = local = memory_make_for(own, SIZE);
    request.remote_addr = (uint64_t)(uintptr_t)child.memory;
    assert_ok(shoal_engine_register_memory(own, local, SIZE, NULL, 0, NULL, &error), &error);
    assert_ok(shoal_segment_open(own, child.name, NULL, &request.segment, &error), &error);
    content_fill(local, SIZE, 2, 0);
    assert_ok(transfer(own, request.segment, SHOAL_OP_WRITE, local, child.memory, 0, 1, &error),
              &error); /* may write */
    child_pause(&child);
    assert_ok(shoal_batch_create(own, 1, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, &request, 1, &error), &error);
    if (transport_args && strcmp(transport_args, UCX_SHM) == 0)
        wait_until(has_paused(own)); /* the queue is full, and who fills it does not spin */
    assert_int_equal(kill(child.pid, SIGCONT), 0);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    memset(local, 0, SIZE);
    assert_ok(transfer(own, request.segment, SHOAL_OP_READ, local, child.memory, 0, SIZE, &error), &error);
    assert_int_equal(content_find_difference(local, SIZE, 2, 0), -1);
    child_stop(&child);
    shoal_segment_close(request.segment);
    shoal_engine_destroy(own);
    memory_drop_of(NULL, local, SIZE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_sizes),  CASE(test_refused),         CASE(test_many),       CASE(test_batch),
        CASE(test_cancel), CASE(test_cancel_large),    CASE(test_unregister), CASE(test_registration),
        CASE(test_notify), CASE(test_destroy_pending), CASE(test_threads),    CASE(test_several_loops),
        CASE(test_killed), CASE(test_stopped),         CASE(test_continued),  CASE(test_arrived),
    };

    if (transport_register(&transport_mem_ops, NULL) != SHOAL_OK ||
        transport_register(&transport_fault_ops, NULL) != SHOAL_OK)
        return 1;
    fixture_run_child(argc, argv);
    if (argc > 1)
        transport_name = argv[1];
    transport_is_remote = strcmp(transport_name, "mem") != 0;
    if (strcmp(transport_name, "fault") == 0)
        transport_args = "tcp";
    if (strncmp(transport_name, "ucx-", 4) == 0) {
        if (!fixture_has_ucx())
            return 77;
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
        if (strcmp(transport_name, "ucx-shm") == 0) {
            fprintf(stderr, "TSan does not see the order that UCX keeps by queues in shared memory; ucx-tcp runs\n");
            return 77;
        }
#endif
#endif
        transport_args = strcmp(transport_name, "ucx-shm") == 0   ? UCX_SHM
                         : strcmp(transport_name, "ucx-rma") == 0 ? "tls=tcp one-sided"
                                                                  : "tls=tcp";
        is_software_rma = strcmp(transport_name, "ucx-rma") == 0;
        transport_name = "ucx";
    }
    transport_is_shared = strcmp(transport_name, "local-shm") == 0;
    if (transport_is_shared) {
        transport_name = "local";
        setenv("SHOAL_LOCAL_CMA", "0", 1);
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name(transport_name, tests, NULL, NULL);
}
