/* SPDX-License-Identifier: Apache-2.0 */
/* The client RPC service when things go wrong or slowly: F21, peers that stall, vanish or break off, an owner that
 * ends, more at once than there is room for. */
#include "kv_service_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "content.h"
#include "proxy.h"
#include "transport/fault.h"

static const struct owner_options dram = {.dram_bytes = 32 * MIB}, storage = {.storage_bytes = 32 * MIB};

/* --- one call in a thread of its own --- */

struct pending {
    struct caller *caller;
    char key[32];
    Shoal__Wire__KvMemory memory;
    bool is_write, wants_hold;
    int64_t timeout_ms;
    struct shoal_cancel *cancel;
    pthread_t thread;
    enum shoal_status status;
    struct shoal_error error;
};

static void *run_pending(void *arg)
{
    struct pending *pending = arg;
    struct call call = {.deadline_ms = deadline_after_ms(pending->timeout_ms ? pending->timeout_ms : PATIENCE_MS),
                        .cancel = pending->cancel};
    Shoal__Wire__KvReadRequest read = SHOAL__WIRE__KV_READ_REQUEST__INIT;
    Shoal__Wire__KvWriteRequest write = SHOAL__WIRE__KV_WRITE_REQUEST__INIT;

    read.key = write.key = pending->key;
    read.dest = write.source = &pending->memory;
    write.len_bytes = pending->memory.len_bytes;
    write.wants_hold = pending->wants_hold;
    pending->status = caller_call(pending->caller, pending->is_write ? KV_METHOD_WRITE : KV_METHOD_READ,
                                  pending->is_write ? &write.base : &read.base, NULL, NULL, &call, &pending->error);
    return NULL;
}

static void begin(struct pending *pending)
{
    assert_int_equal(shoal_cancel_create(&pending->cancel), SHOAL_OK);
    assert_int_equal(pthread_create(&pending->thread, NULL, run_pending, pending), 0);
}

static enum shoal_status end(struct pending *pending)
{
    assert_int_equal(pthread_join(pending->thread, NULL), 0);
    shoal_cancel_destroy(pending->cancel);
    return pending->status;
}

static struct pending pending_make(struct caller *caller, const char *key, bool is_write, size_t len,
                                   const char *address)
{
    struct pending pending = {.caller = caller, .is_write = is_write};

    snprintf(pending.key, sizeof pending.key, "%s", key);
    caller_describe(caller, 0, len, &pending.memory);
    if (address)
        pending.memory.address = (char *)(uintptr_t)address;
    return pending;
}

static void wait_idle(const struct owner *owner, uint64_t used_bytes)
{
    wait_until(owner_metric(owner, "shoal_kv_service_jobs") == 0);
    assert_int_equal(owner_metric(owner, "shoal_kv_service_transfers"), 0);
    assert_int_equal(owner_metric(owner, "shoal_kv_service_transfer_bytes"), 0);
    wait_until(owner_used_bytes(owner) == used_bytes);
}

/* --- peers that stall or vanish --- */

/* The caller's data does not flow: its time passes, or it goes away. In both cases the owner stops, gives back and
 * commits nothing. */
static void stalled(const struct owner_options *options, bool is_write, bool is_abandoned)
{
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    struct proxy *proxy = proxy_create(engine_address(caller.engine), PROXY_STALL);
    struct pending pending;
    uint64_t used;

    owner_put(&owner, "k", 1, 3 * MIB);
    used = owner_used_bytes(&owner);
    pending = pending_make(&caller, is_write ? "new" : "k", is_write, 3 * MIB, proxy_address(proxy));
    pending.timeout_ms = is_abandoned ? 0 : 200;
    begin(&pending);
    if (is_abandoned) {
        wait_until(owner_metric(&owner, "shoal_kv_service_transfers") == 1);
        shoal_cancel_trigger(pending.cancel);
    }
    assert_int_equal(end(&pending), is_abandoned ? SHOAL_CANCELED : SHOAL_TIMED_OUT);
    wait_idle(&owner, used);
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_aborts_total") +
                             owner_metric(&owner, "shoal_kv_service_timeouts_total") >
                         0,
                     1);
    assert_int_equal(owner_finishing(&owner), 0);
    proxy_destroy(proxy);
    /* The same caller by its real address. */
    pending = pending_make(&caller, is_write ? "new" : "k", is_write, 3 * MIB, NULL);
    begin(&pending);
    assert_ok(end(&pending), &pending.error);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_stalled_reads(void **state)
{
    (void)state;
    stalled(&dram, false, false);
    stalled(&storage, false, false);
}

static void test_stalled_writes(void **state)
{
    (void)state;
    stalled(&dram, true, false);
    stalled(&storage, true, false);
}

static void test_abandoned_reads(void **state)
{
    (void)state;
    stalled(&dram, false, true);
    stalled(&storage, false, true);
}

static void test_abandoned_writes(void **state)
{
    (void)state;
    stalled(&dram, true, true);
    stalled(&storage, true, true);
}

/* The caller goes while a worker is at the disk. */
static void test_abandoned_at_the_disk(void **state)
{
    struct owner owner = owner_open(&storage);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    struct pending read, write;
    uint64_t used;

    (void)state;
    owner_put(&owner, "k", 1, 3 * MIB);
    used = owner_used_bytes(&owner);
    owner_hold_disk(true);
    read = pending_make(&caller, "k", false, 3 * MIB, NULL);
    write = pending_make(&caller, "new", true, 3 * MIB, NULL);
    begin(&read);
    begin(&write);
    wait_until(owner_disk_waiting() == 2);
    shoal_cancel_trigger(read.cancel);
    shoal_cancel_trigger(write.cancel);
    assert_int_equal(end(&read), SHOAL_CANCELED);
    assert_int_equal(end(&write), SHOAL_CANCELED);
    wait_until(owner_metric(&owner, "shoal_kv_service_aborts_total") == 2);
    owner_hold_disk(false);
    wait_idle(&owner, used);
    assert_int_equal(owner_finishing(&owner), 0);
    caller_close(&caller);
    owner_close(&owner);
}

/* Once the data manager has it, the outcome is the master's, whether the caller hears of it or not. */
static void test_abandoned_while_finishing(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, MIB, NULL);
    struct pending write = pending_make(&caller, "k", true, MIB, NULL);

    (void)state;
    owner_hold_finishing(&owner, true);
    begin(&write);
    wait_until(owner_finishing(&owner) == 1);
    shoal_cancel_trigger(write.cancel);
    assert_int_equal(end(&write), SHOAL_CANCELED);
    wait_until(owner_metric(&owner, "shoal_kv_service_aborts_total") == 1);
    owner_hold_finishing(&owner, false);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 0);
    assert_true(tier_has(owner.backend, "k"));
    caller_close(&caller);
    owner_close(&owner);
}

/* A held write is given to nobody when its caller has gone. */
static void test_abandoned_hold(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, MIB, NULL);
    struct proxy *proxy = proxy_create(engine_address(caller.engine), PROXY_STALL);
    struct pending write = pending_make(&caller, "k", true, MIB, proxy_address(proxy));

    (void)state;
    write.wants_hold = true;
    begin(&write);
    wait_until(owner_metric(&owner, "shoal_kv_service_transfers") == 1);
    shoal_cancel_trigger(write.cancel);
    assert_int_equal(end(&write), SHOAL_CANCELED);
    wait_idle(&owner, 0);
    assert_int_equal(owner_metric(&owner, "shoal_kv_leases"), 0);
    caller_close(&caller);
    proxy_destroy(proxy);
    owner_close(&owner);
}

/* --- transfers that break --- */

static void broken(const struct owner_options *plain, bool is_write)
{
    struct owner_options options = *plain;
    struct owner owner;
    struct caller caller;
    struct pending pending;
    uint64_t used, instance;

    options.transport_args = "tcp";
    owner = owner_open(&options);
    caller = caller_open(&owner, 4 * MIB, NULL);
    instance = engine_instance(owner.engine);
    owner_put(&owner, "k", 1, 4 * MIB);
    used = owner_used_bytes(&owner);
    for (uint64_t nth = 1; nth <= (plain->dram_bytes ? 1 : 4); nth++) {
        static const enum fault_kind kinds[] = {FAULT_FAIL, FAULT_DROP, FAULT_STALL, FAULT_DELAY};

        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            struct fault_rule rule = {.kind = kinds[i], .nth = nth, .delay_ms = 20, .status = SHOAL_IO};

            assert_true(fault_add_rule(instance, &rule));
            pending = pending_make(&caller, is_write ? "new" : "k", is_write, 4 * MIB, NULL);
            pending.timeout_ms = kinds[i] == FAULT_STALL ? 500 : 0;
            content_fill(caller.memory, caller.len, is_write ? 2 : 3, 0);
            begin(&pending);
            end(&pending);
            assert_true(fault_clear_rules(instance, 1));
            assert_int_equal(fault_applied(instance) > 0, 1);
            if (kinds[i] == FAULT_DELAY) {
                assert_ok(pending.status, &pending.error);
                if (is_write)
                    assert_int_equal(tier_remove(owner.backend, "new", 0), SHOAL_OK);
                else
                    assert_int_equal(content_find_difference(caller.memory, caller.len, 1, 0), -1);
            } else {
                assert_true(pending.status == SHOAL_IO || pending.status == SHOAL_UNREACHABLE ||
                            pending.status == SHOAL_TIMED_OUT);
                assert_false(tier_has(owner.backend, "new"));
            }
            wait_idle(&owner, used);
        }
    }
    caller_close(&caller);
    owner_close(&owner);
}

static void test_broken_reads(void **state)
{
    (void)state;
    broken(&dram, false);
    broken(&storage, false);
}

static void test_broken_writes(void **state)
{
    (void)state;
    broken(&dram, true);
    broken(&storage, true);
}

/* --- F21: slower than the lease, while the owner needs the space --- */

static void press(struct owner *owner, unsigned *count)
{
    char key[32];

    snprintf(key, sizeof key, "pressure %u", ++*count);
    owner_put(owner, key, 1000 + *count, MIB);
}

static void test_slow_transfers_under_pressure(void **state)
{
    struct owner_options options = {.dram_bytes = 12 * MIB, .lease_ms = 1500};
    struct shoal_engine_config slow = fixture_config();
    Shoal__Wire__KvReadRequest request = SHOAL__WIRE__KV_READ_REQUEST__INIT;
    Shoal__Wire__KvReadResponse *answer;
    struct shoal_transfer_status transfer_status;
    struct shoal_request fetch;
    struct shoal_batch *batch;
    struct shoal_error error;
    struct tier_usage usage;
    struct owner owner;
    struct caller caller;
    struct pending written;
    unsigned count = 0;

    (void)state;
    slow.download_limit_bytes_per_s = 512 << 10;
    slow.progress_timeout_ms = PATIENCE_MS;
    owner = owner_open(&options);
    caller = caller_open(&owner, 4 * MIB, &slow);
    owner_put(&owner, "pinned", 1, MIB);
    owner_put(&owner, "written", 2, MIB);

    request.key = (char *)(uintptr_t) "pinned";
    request.wants_pin = true;
    assert_ok(caller_read(&caller, &request, &answer, &error), &error);
    assert_int_equal(answer->way, 3);
    fetch = (struct shoal_request){.op = SHOAL_OP_READ,
                                   .segment = caller.segment,
                                   .local = caller.memory + 2 * MIB,
                                   .remote_addr = answer->pin->memory->addr,
                                   .remote_key = answer->pin->memory->key,
                                   .len_bytes = MIB};
    assert_ok(shoal_batch_create(caller.engine, 1, &batch, &error), &error);
    assert_ok(shoal_batch_submit(batch, &fetch, 1, &error), &error);
    /* And one that the owner drives. */
    written = pending_make(&caller, "written", false, MIB, NULL);
    begin(&written);
    do {
        assert_int_equal(caller_lease(&caller, KV_METHOD_RENEW, answer->pin->lease_id), SHOAL_OK);
        press(&owner, &count);
        fixture_breathe();
        assert_int_equal(shoal_batch_status(batch, 0, &transfer_status), SHOAL_OK);
    } while (transfer_status.state == SHOAL_TRANSFER_PENDING);
    assert_ok(shoal_batch_wait(batch, PATIENCE_MS, &error), &error);
    assert_ok(end(&written), &written.error);
    /* The lease was there until the end: so what was read is what was pinned. */
    assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, answer->pin->lease_id), SHOAL_OK);
    assert_int_equal(content_find_difference(caller.memory + 2 * MIB, MIB, 1, 0), -1);
    assert_int_equal(content_find_difference(caller.memory, MIB, 2, 0), -1);
    tier_usage(owner.backend, 0, &usage);
    assert_true(usage.evictions > 0);
    shoal_batch_destroy(batch);
    answer_free(answer);
    caller_close(&caller);
    owner_close(&owner);
}

/* A write that takes longer than leases last, and its commit. */
static void test_slow_writes_under_pressure(void **state)
{
    struct owner_options options = {.dram_bytes = 12 * MIB, .lease_ms = 500};
    struct shoal_engine_config slow = fixture_config();
    struct owner owner;
    struct caller caller;
    struct pending write;
    unsigned count = 0;

    (void)state;
    slow.upload_limit_bytes_per_s = 512 << 10;
    owner = owner_open(&options);
    caller = caller_open(&owner, MIB, &slow);
    content_fill(caller.memory, MIB, 3, 0);
    write = pending_make(&caller, "k", true, MIB, NULL);
    begin(&write);
    do {
        press(&owner, &count);
        fixture_breathe();
    } while (!owner_finishing(&owner));
    assert_ok(end(&write), &write.error);
    {
        struct tier_object *object;

        assert_int_equal(tier_get(owner.backend, "k", &object), SHOAL_OK);
        assert_int_equal(content_find_difference(tier_object_data(object), MIB, 3, 0), -1);
        tier_object_unref(object);
    }
    caller_close(&caller);
    owner_close(&owner);
}

/* --- the owner ends --- */

static void *destroy_service(void *arg)
{
    struct owner *owner = arg;

    kv_service_destroy(owner->service);
    owner->service = NULL;
    return NULL;
}

static void test_the_owner_ends(void **state)
{
    struct owner owner = owner_open(&storage);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    struct proxy *proxy = proxy_create(engine_address(caller.engine), PROXY_STALL);
    struct pending stalled_read, disk_read, stalled_write;
    struct shoal_error error;
    pthread_t thread;

    (void)state;
    owner_put(&owner, "k", 1, 3 * MIB);
    stalled_read = pending_make(&caller, "k", false, 3 * MIB, proxy_address(proxy));
    stalled_write = pending_make(&caller, "new", true, 3 * MIB, proxy_address(proxy));
    begin(&stalled_read);
    begin(&stalled_write);
    wait_until(owner_metric(&owner, "shoal_kv_service_transfers") == 2);
    owner_hold_disk(true);
    disk_read = pending_make(&caller, "k", false, 3 * MIB, NULL);
    begin(&disk_read);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 3 && owner_disk_waiting() >= 1);
    assert_int_equal(pthread_create(&thread, NULL, destroy_service, &owner), 0);
    assert_int_equal(end(&stalled_write), SHOAL_CLOSED);
    owner_hold_disk(false);
    assert_int_equal(end(&disk_read), SHOAL_CLOSED);
    assert_int_equal(end(&stalled_read), SHOAL_CLOSED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_status(SHOAL_UNSUPPORTED, caller_raw(&caller, KV_METHOD_READ, "", 0, &error), &error);
    caller_close(&caller);
    proxy_destroy(proxy);
    owner_close(&owner);
}

/* --- more than there is room for --- */

static void crowd(const struct owner_options *options, size_t len)
{
    enum { COUNT = 150 };
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, COUNT * len, NULL);
    Shoal__Wire__KvBatchWriteRequest writes = SHOAL__WIRE__KV_BATCH_WRITE_REQUEST__INIT;
    Shoal__Wire__KvBatchReadRequest reads = SHOAL__WIRE__KV_BATCH_READ_REQUEST__INIT;
    Shoal__Wire__KvBatchWriteResponse *written;
    Shoal__Wire__KvBatchReadResponse *read;
    Shoal__Wire__KvWriteRequest write[COUNT], *write_items[COUNT];
    Shoal__Wire__KvReadRequest request[COUNT], *read_items[COUNT];
    Shoal__Wire__KvMemory memory[COUNT];
    char keys[COUNT][16];
    struct shoal_error error;

    for (size_t i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof keys[i], "key %zu", i);
        caller_describe(&caller, i * len, len, &memory[i]);
        shoal__wire__kv_write_request__init(&write[i]);
        shoal__wire__kv_read_request__init(&request[i]);
        write[i].key = request[i].key = keys[i];
        write[i].source = request[i].dest = &memory[i];
        write[i].len_bytes = len;
        write_items[i] = &write[i];
        read_items[i] = &request[i];
        content_fill(caller.memory + i * len, len, i + 1, 0);
    }
    writes.n_items = reads.n_items = COUNT;
    writes.items = write_items;
    reads.items = read_items;
    assert_ok(caller_call(&caller, KV_METHOD_BATCH_WRITE, &writes.base,
                          &shoal__wire__kv_batch_write_response__descriptor, &written, NULL, &error),
              &error);
    memset(caller.memory, 0, caller.len);
    assert_ok(caller_call(&caller, KV_METHOD_BATCH_READ, &reads.base, &shoal__wire__kv_batch_read_response__descriptor,
                          &read, NULL, &error),
              &error);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(written->items[i]->status, SHOAL_OK);
        assert_int_equal(read->items[i]->status, SHOAL_OK);
        assert_int_equal(content_find_difference(caller.memory + i * len, len, i + 1, 0), -1);
    }
    answer_free(written);
    answer_free(read);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 0);
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_transfers"), 0);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_more_transfers_than_turns(void **state)
{
    struct owner_options options = {.dram_bytes = 64 * MIB};

    (void)state;
    crowd(&options, 100000);
}

static void test_more_transfers_than_staging_buffers(void **state)
{
    struct owner_options options = {.storage_bytes = 256 * MIB, .staging_buffers = 2};

    (void)state;
    crowd(&options, TIER_STAGING_BYTES + 4096);
}

/* --- everything at once --- */

struct worker {
    struct owner *owner;
    struct caller *caller;
    size_t offset; /* its part of the caller's memory */
    uint64_t seed;
    unsigned gets, puts;
    const char *failure;
};

enum { WORKERS = 4, SPAN = 256 << 10, KEYS = 6 };

/* A value is its seed, then that seed's content. */
static void fill_value(uint8_t *at, size_t len, uint64_t seed)
{
    memcpy(at, &seed, sizeof seed);
    content_fill(at + sizeof seed, len - sizeof seed, seed, 0);
}

static bool is_whole(const uint8_t *at, size_t len)
{
    uint64_t seed;

    memcpy(&seed, at, sizeof seed);
    return len >= sizeof seed && seed && content_find_difference(at + sizeof seed, len - sizeof seed, seed, 0) < 0;
}

static void work_get(struct worker *worker, char *key, bool wants_pin)
{
    Shoal__Wire__KvReadRequest request = SHOAL__WIRE__KV_READ_REQUEST__INIT;
    uint8_t *memory = worker->caller->memory + worker->offset;
    Shoal__Wire__KvReadResponse *answer;
    Shoal__Wire__KvMemory dest;
    struct shoal_error error;
    enum shoal_status status;

    request.key = key;
    request.inline_max = 8192;
    request.wants_pin = wants_pin;
    caller_describe(worker->caller, worker->offset, SPAN, &dest);
    if (!wants_pin)
        request.dest = &dest;
    status = caller_read(worker->caller, &request, &answer, &error);
    if (status) {
        if (status != SHOAL_NOT_FOUND)
            worker->failure = "get";
        return;
    }
    worker->gets++;
    if (answer->way == 1 && !is_whole(answer->value.data, answer->value.len))
        worker->failure = "inline value";
    if (answer->way == 2 && !is_whole(memory, answer->len_bytes))
        worker->failure = "written value";
    if (answer->way == 3) {
        const Shoal__Wire__KvMemory *there = answer->pin->memory;

        if (transfer(worker->caller->engine, worker->caller->segment, SHOAL_OP_READ, memory,
                     (void *)(uintptr_t)there->addr, there->key, there->len_bytes, &error))
            worker->failure = error.message[0] ? "READ under a pin" : "READ";
        if (caller_lease(worker->caller, KV_METHOD_UNPIN_KEY, answer->pin->lease_id))
            worker->failure = "unpin";
        if (!is_whole(memory, answer->len_bytes))
            worker->failure = "pinned value";
    }
    answer_free(answer);
}

static void work_put(struct worker *worker, char *key, uint64_t seed, size_t len)
{
    Shoal__Wire__KvWriteRequest request = SHOAL__WIRE__KV_WRITE_REQUEST__INIT;
    Shoal__Wire__KvWriteResponse *answer;
    Shoal__Wire__KvMemory source;
    struct shoal_error error;
    enum shoal_status status;

    fill_value(worker->caller->memory + worker->offset, len, seed);
    request.key = key;
    request.len_bytes = len;
    if (len <= 8192) {
        request.value.data = worker->caller->memory + worker->offset;
        request.value.len = len;
    } else {
        caller_describe(worker->caller, worker->offset, len, &source);
        request.source = &source;
    }
    status = caller_write(worker->caller, &request, &answer, &error);
    if (!status) {
        worker->puts++;
        answer_free(answer);
    } else if (status != SHOAL_EXISTS) {
        worker->failure = "put";
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct random random;

    random_init(&random, worker->seed);
    for (int i = 0; i < 150 && !worker->failure; i++) {
        size_t len =
            random_below(&random, 2) ? 8 + random_below(&random, 8000) : 9000 + random_below(&random, SPAN - 9000);
        char key[16];

        snprintf(key, sizeof key, "key %u", (unsigned)random_below(&random, KEYS));
        switch (random_below(&random, 6)) {
        case 0:
        case 1:
            work_put(worker, key, random_next(&random) | 1, len);
            break;
        case 2: {
            Shoal__Wire__KvDeleteRequest request = SHOAL__WIRE__KV_DELETE_REQUEST__INIT;
            Shoal__Wire__KvDeleteRequest__Item item = SHOAL__WIRE__KV_DELETE_REQUEST__ITEM__INIT, *items = &item;
            struct shoal_error error;

            item.key = key;
            request.n_items = 1;
            request.items = &items;
            if (caller_call(worker->caller, KV_METHOD_DELETE, &request.base, NULL, NULL, NULL, &error))
                worker->failure = "delete";
            break;
        }
        default:
            work_get(worker, key, random_below(&random, 3) == 0);
        }
    }
    return NULL;
}

static void everything(const struct owner_options *options)
{
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, (size_t)WORKERS * SPAN, NULL);
    struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    uint64_t seed = random_id();
    unsigned gets = 0, puts = 0;

    print_message("seed: 0x%llx\n", (unsigned long long)seed);
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.owner = &owner, .caller = &caller, .offset = i * SPAN, .seed = seed + i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        if (workers[i].failure)
            fail_msg("worker %zu: %s", i, workers[i].failure);
        gets += workers[i].gets;
        puts += workers[i].puts;
    }
    assert_true(gets > 0 && puts > 0);
    for (unsigned i = 0; i < KEYS; i++) {
        char key[16];

        snprintf(key, sizeof key, "key %u", i);
        tier_remove(owner.backend, key, 0);
    }
    wait_idle(&owner, 0);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_everything_at_once(void **state)
{
    (void)state;
    everything(&dram);
    everything(&storage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_stalled_reads),
        CASE(test_stalled_writes),
        CASE(test_abandoned_reads),
        CASE(test_abandoned_writes),
        CASE(test_abandoned_at_the_disk),
        CASE(test_abandoned_while_finishing),
        CASE(test_abandoned_hold),
        CASE(test_broken_reads),
        CASE(test_broken_writes),
        CASE(test_slow_transfers_under_pressure),
        CASE(test_slow_writes_under_pressure),
        CASE(test_the_owner_ends),
        CASE(test_more_transfers_than_turns),
        CASE(test_more_transfers_than_staging_buffers),
        CASE(test_everything_at_once),
    };
    struct shoal_error error;

    if (transport_register(&transport_fault_ops, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    return cmocka_run_group_tests_name("kv service under stress", tests, NULL, NULL);
}
