/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers under bad conditions: F7, F8, vanished memory, broken and stalled connections. */
#include "../contract/transport_fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/digest.h"
#include "content.h"
#include "engine/engine.h"
#include "proxy.h"

#define MIB (1u << 20)
#define READ_WRITE (SHOAL_ACCESS_REMOTE_READ | SHOAL_ACCESS_REMOTE_WRITE)

struct pair {
    struct shoal_engine *target, *own;
    struct shoal_segment *segment;
    uint8_t *remote, *local;
    size_t len;
};

static void pair_open(struct pair *pair, size_t len, int64_t progress_timeout_ms)
{
    struct shoal_engine_config config = fixture_config();
    struct shoal_error error;

    memset(pair, 0, sizeof *pair);
    config.progress_timeout_ms = progress_timeout_ms;
    config.connect_timeout_ms = progress_timeout_ms;
    pair->len = len;
    pair->target = engine_make(NULL);
    pair->own = engine_make(&config);
    pair->remote = memory_make(len);
    pair->local = memory_make(len);
    content_fill(pair->remote, len, 1, 0);
    assert_ok(shoal_engine_register_memory(pair->target, pair->remote, len, NULL, READ_WRITE, NULL, &error), &error);
    assert_ok(shoal_engine_register_memory(pair->own, pair->local, len, NULL, SHOAL_ACCESS_LOCAL, NULL, &error),
              &error);
}

static void pair_find(struct pair *pair, const char *address) /* NULL: through the metadata service */
{
    struct shoal_error error;

    if (address)
        assert_ok(engine_segment_create(pair->own, shoal_engine_server_name(pair->target), address,
                                        engine_instance(pair->target), &pair->segment, &error),
                  &error);
    else
        assert_ok(shoal_segment_open(pair->own, shoal_engine_server_name(pair->target), NULL, &pair->segment, &error),
                  &error);
}

static void pair_close(struct pair *pair)
{
    shoal_segment_close(pair->segment);
    shoal_engine_destroy(pair->own);
    shoal_engine_destroy(pair->target);
    memory_drop(pair->remote, pair->len);
    memory_drop(pair->local, pair->len);
}

/* F7: what a target sees at the moment of completion is all of it. */
static void test_write_is_applied(void **state)
{
    enum { SIZE = 2400000, SLOTS = 4, COUNT = 400 };
    struct shoal_batch *batches[SLOTS] = {NULL};
    struct digest expected[SLOTS];
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)SIZE * SLOTS, 20000);
    pair_find(&pair, NULL);
    for (unsigned i = 0; i < COUNT + SLOTS; i++) {
        size_t offset = (size_t)(i % SLOTS) * SIZE;
        struct shoal_request request = {.op = SHOAL_OP_WRITE,
                                        .segment = pair.segment,
                                        .local = pair.local + offset,
                                        .remote_addr = (uint64_t)(uintptr_t)pair.remote + offset,
                                        .len_bytes = SIZE};

        if (batches[i % SLOTS]) {
            struct digest seen;

            assert_ok(shoal_batch_wait(batches[i % SLOTS], PATIENCE_MS, &error), &error);
            seen = digest_of(pair.remote + offset, SIZE);
            assert_true(digest_is_equal(&seen, &expected[i % SLOTS]));
            shoal_batch_destroy(batches[i % SLOTS]);
        }
        if (i >= COUNT)
            continue;
        for (size_t at = 0; at < SIZE; at += 4096)
            memcpy(pair.local + offset + at, &i, sizeof i);
        expected[i % SLOTS] = digest_of(pair.local + offset, SIZE);
        assert_ok(shoal_batch_create(pair.own, 1, &batches[i % SLOTS], &error), &error);
        assert_ok(shoal_batch_submit(batches[i % SLOTS], &request, 1, &error), &error);
    }
    pair_close(&pair);
}

/* F8: the wait is the case's input, nothing is synchronised by it. */
static void test_many_after_idling(void **state)
{
    enum { SIZE = 16384, COUNT = 2000 };
    struct shoal_request *requests = calloc(COUNT, sizeof *requests);
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, (size_t)SIZE * COUNT, 20000);
    pair_find(&pair, NULL);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, SIZE, &error), &error);
    nanosleep(&(struct timespec){.tv_sec = 6}, NULL);
    for (size_t i = 0; i < COUNT; i++)
        requests[i] = (struct shoal_request){.op = i % 2 ? SHOAL_OP_WRITE : SHOAL_OP_READ,
                                             .segment = pair.segment,
                                             .local = pair.local + i * SIZE,
                                             .remote_addr = (uint64_t)(uintptr_t)pair.remote + i * SIZE,
                                             .len_bytes = SIZE};
    assert_ok(shoal_batch_create(pair.own, COUNT, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, COUNT, &error), &error);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_memory_equal(pair.local, pair.remote, pair.len);
    shoal_batch_destroy(batch);
    pair_close(&pair);
    free(requests);
}

/* A mapped file shrinks under registered memory: errors, no signal, and nothing else suffers. */
static void test_truncated_file(void **state)
{
    enum { SIZE = 8 * MIB };
    char path[] = "/tmp/shoal-test-XXXXXX";
    struct shoal_error error;
    struct pair pair;
    uint8_t *mapped;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, SIZE), 0);
    mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(mapped != MAP_FAILED);
    pair_open(&pair, SIZE, 20000);
    pair_find(&pair, NULL);
    assert_ok(shoal_engine_register_memory(pair.target, mapped, SIZE, NULL, READ_WRITE, NULL, &error), &error);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, mapped, 0, SIZE, &error), &error);
    assert_int_equal(ftruncate(fd, MIB), 0);
    assert_status(SHOAL_IO, transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, mapped, 0, SIZE, &error),
                  &error);
    assert_non_null(strstr(error.message, "unreadable"));
    assert_status(SHOAL_IO, transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, mapped, 0, 1, &error), &error);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, SIZE, &error), &error);
    assert_ok(shoal_engine_unregister_memory(pair.target, mapped, SIZE, &error), &error);

    assert_ok(shoal_engine_register_memory(pair.target, mapped, SIZE, NULL, READ_WRITE, NULL, &error), &error);
    assert_status(SHOAL_IO, transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local, mapped, 0, SIZE, &error),
                  &error);
    assert_ok(shoal_engine_unregister_memory(pair.target, mapped, SIZE, &error), &error);

    /* The same on the requesting side. */
    assert_ok(shoal_engine_register_memory(pair.own, mapped, SIZE, NULL, 0, NULL, &error), &error);
    assert_status(SHOAL_IO, transfer(pair.own, pair.segment, SHOAL_OP_READ, mapped, pair.remote, 0, SIZE, &error),
                  &error);
    assert_status(SHOAL_IO, transfer(pair.own, pair.segment, SHOAL_OP_WRITE, mapped, pair.remote, 0, SIZE, &error),
                  &error);
    /* A WRITE that failed in the middle has changed some of it, and may do so until the target lets go of the memory.
     */
    assert_ok(shoal_engine_unregister_memory(pair.target, pair.remote, SIZE, &error), &error);
    content_fill(pair.remote, SIZE, 1, 0);
    assert_ok(shoal_engine_register_memory(pair.target, pair.remote, SIZE, NULL, READ_WRITE, NULL, &error), &error);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, SIZE, &error), &error);
    assert_int_equal(content_find_difference(pair.local, SIZE, 1, 0), -1);
    assert_ok(shoal_engine_unregister_memory(pair.own, mapped, SIZE, &error), &error);
    pair_close(&pair);
    munmap(mapped, SIZE);
    close(fd);
}

static struct shoal_batch *start_reads(struct pair *pair, size_t count)
{
    struct shoal_request *requests = calloc(count, sizeof *requests);
    size_t size = pair->len / count;
    struct shoal_batch *batch;
    struct shoal_error error;

    for (size_t i = 0; i < count; i++)
        requests[i] = (struct shoal_request){.op = SHOAL_OP_READ,
                                             .segment = pair->segment,
                                             .local = pair->local + i * size,
                                             .remote_addr = (uint64_t)(uintptr_t)pair->remote + i * size,
                                             .len_bytes = size};
    assert_ok(shoal_batch_create(pair->own, count, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, requests, count, &error), &error);
    free(requests);
    return batch;
}

/* A connection that breaks once is replaced under the READs; one that keeps breaking ends them. */
static void test_broken_connection(void **state)
{
    struct proxy *proxy;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, 32 * MIB, 20000);
    proxy = proxy_create(engine_address(pair.target), PROXY_STALL);
    proxy_set_mode(proxy, PROXY_FORWARD);
    pair_find(&pair, proxy_address(proxy));
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, MIB, &error), &error);
    proxy_set_mode(proxy, PROXY_STALL);
    batch = start_reads(&pair, 32);
    proxy_set_mode(proxy, PROXY_CUT);
    assert_status(SHOAL_UNREACHABLE, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    assert_status(SHOAL_UNREACHABLE,
                  transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local, pair.remote, 0, MIB, &error), &error);
    proxy_set_mode(proxy, PROXY_FORWARD);
    wait_until_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, 1, &error), &error);
    batch = start_reads(&pair, 32);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_int_equal(content_find_difference(pair.local, pair.len, 1, 0), -1);
    shoal_batch_destroy(batch);
    pair_close(&pair);
    proxy_destroy(proxy);
}

static void test_stalled_connection(void **state)
{
    struct shoal_transfer_status status;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct proxy *proxy;
    struct pair pair;

    (void)state;
    pair_open(&pair, 32 * MIB, 400);
    proxy = proxy_create(engine_address(pair.target), PROXY_FORWARD);
    pair_find(&pair, proxy_address(proxy));
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, MIB, &error), &error);
    proxy_set_mode(proxy, PROXY_STALL);
    batch = start_reads(&pair, 256); /* more than a connection takes at once */
    assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    for (size_t i = 0; i < 256; i++) {
        assert_int_equal(shoal_batch_status(batch, i, &status), SHOAL_OK);
        assert_int_equal(status.state, SHOAL_TRANSFER_TIMEOUT);
    }
    shoal_batch_destroy(batch);
    batch = start_reads(&pair, 4); /* the handshake stalls, too */
    assert_status(SHOAL_TIMED_OUT, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    batch = start_reads(&pair, 4);
    shoal_batch_cancel(batch);
    assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    proxy_set_mode(proxy, PROXY_FORWARD);
    batch = start_reads(&pair, 32);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    pair_close(&pair);
    proxy_destroy(proxy);
}

/* One byte at a time, in both directions. */
static void test_trickle(void **state)
{
    struct shoal_error error;
    struct proxy *proxy;
    struct pair pair;

    (void)state;
    pair_open(&pair, 4096, 20000);
    proxy = proxy_create(engine_address(pair.target), PROXY_TRICKLE);
    pair_find(&pair, proxy_address(proxy));
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local + 1, pair.remote + 2, 0, 3001, &error),
              &error);
    assert_int_equal(content_find_difference(pair.local + 1, 3001, 1, 2), -1);
    content_fill(pair.local, 4096, 2, 0);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_WRITE, pair.local + 1, pair.remote + 2, 0, 3001, &error),
              &error);
    assert_int_equal(content_find_difference(pair.remote + 2, 3001, 2, 1), -1);
    assert_status(SHOAL_INVALID_ARGUMENT,
                  transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote + 1, 0, 4096, &error),
                  &error);
    pair_close(&pair);
    proxy_destroy(proxy);
}

/* Another process has the address now. */
static void test_other_instance(void **state)
{
    struct shoal_error error;
    struct pair pair;

    (void)state;
    pair_open(&pair, 4096, 20000);
    assert_ok(engine_segment_create(pair.own, "old-name:1", engine_address(pair.target),
                                    engine_instance(pair.target) + 1, &pair.segment, &error),
              &error);
    assert_status(SHOAL_UNREACHABLE,
                  transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, 10, &error), &error);
    assert_non_null(strstr(error.message, "another process"));
    pair_close(&pair);
}

static void test_abort(void **state)
{
    struct shoal_batch *batch;
    struct shoal_error error;
    struct proxy *proxy;
    struct pair pair;

    (void)state;
    pair_open(&pair, 32 * MIB, 20000);
    proxy = proxy_create(engine_address(pair.target), PROXY_STALL);
    pair_find(&pair, proxy_address(proxy));
    batch = start_reads(&pair, 32); /* still dialing */
    engine_segment_abort(pair.segment);
    assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    proxy_set_mode(proxy, PROXY_FORWARD);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, MIB, &error), &error);
    proxy_set_mode(proxy, PROXY_STALL);
    batch = start_reads(&pair, 32);
    engine_segment_abort(pair.segment);
    assert_status(SHOAL_CANCELED, shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    shoal_batch_destroy(batch);
    proxy_set_mode(proxy, PROXY_FORWARD);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, MIB, &error), &error);
    pair_close(&pair);
    proxy_destroy(proxy);
}

static void test_metrics(void **state)
{
    struct shoal_error error;
    struct pair pair;
    struct buf text;

    (void)state;
    pair_open(&pair, 4096, 20000);
    pair_find(&pair, NULL);
    assert_ok(transfer(pair.own, pair.segment, SHOAL_OP_READ, pair.local, pair.remote, 0, 1000, &error), &error);
    buf_init(&text, 1 << 16);
    assert_true(engine_metrics(pair.own, &text));
    assert_non_null(strstr((char *)text.data, "shoal_transport_tcp_bytes_total{op=\"read\"} 1000\n"));
    assert_non_null(strstr((char *)text.data, "shoal_engine_operations_total{outcome=\"completed\"} 1\n"));
    assert_non_null(strstr((char *)text.data, "shoal_meta_requests_total{kind=\"get\"}"));
    buf_release(&text);
    pair_close(&pair);
}

int main(int argc, char **argv)
{
    /* What does not depend on how the connections are made. */
    const struct CMUnitTest any_transport[] = {
        cmocka_unit_test_setup_teardown(test_write_is_applied, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_many_after_idling, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_truncated_file, fixture_setup, fixture_teardown),
    };
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_write_is_applied),
        CASE(test_many_after_idling),
        CASE(test_truncated_file),
        CASE(test_broken_connection),
        CASE(test_stalled_connection),
        CASE(test_trickle),
        CASE(test_other_instance),
        CASE(test_abort),
        CASE(test_metrics),
    };

    if (argc > 1) {
        transport_name = argv[1];
        if (strcmp(transport_name, "ucx") == 0) {
            if (!fixture_has_ucx())
                return 77;
            transport_args = "tls=tcp";
        }
        return cmocka_run_group_tests_name(transport_name, any_transport, NULL, NULL);
    }
    return cmocka_run_group_tests_name("engine transfer", tests, NULL, NULL);
}
