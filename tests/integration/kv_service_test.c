/* SPDX-License-Identifier: Apache-2.0 */
/* The client RPC service, method by method: what it answers, and that it gives everything back. */
#include "kv_service_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "content.h"

static const struct owner_options dram = {.dram_bytes = 32 * MIB}, storage = {.storage_bytes = 32 * MIB};

static void assert_content(const void *data, size_t len, uint64_t seed, uint64_t offset)
{
    assert_int_equal(content_find_difference(data, len, seed, offset), -1);
}

static Shoal__Wire__KvReadRequest read_request(const char *key, uint32_t inline_max)
{
    Shoal__Wire__KvReadRequest request = SHOAL__WIRE__KV_READ_REQUEST__INIT;

    request.key = (char *)(uintptr_t)key;
    request.inline_max = inline_max;
    return request;
}

static Shoal__Wire__KvWriteRequest write_request(const char *key, uint64_t len)
{
    Shoal__Wire__KvWriteRequest request = SHOAL__WIRE__KV_WRITE_REQUEST__INIT;

    request.key = (char *)(uintptr_t)key;
    request.len_bytes = len;
    return request;
}

static void expect_inline(struct caller *caller, const char *key, uint64_t seed, size_t len)
{
    Shoal__Wire__KvReadRequest request = read_request(key, 64 << 10);
    Shoal__Wire__KvReadResponse *answer;
    struct shoal_error error;

    assert_ok(caller_read(caller, &request, &answer, &error), &error);
    assert_int_equal(answer->way, 1);
    assert_int_equal(answer->len_bytes, len);
    assert_int_equal(answer->value.len, len);
    assert_content(answer->value.data, len, seed, 0);
    answer_free(answer);
}

static enum shoal_status read_status(struct caller *caller, const char *key, uint64_t object_id,
                                     struct shoal_error *error)
{
    Shoal__Wire__KvReadRequest request = read_request(key, 64 << 10);
    Shoal__Wire__KvReadResponse *answer;
    enum shoal_status status;

    request.object_id = object_id;
    status = caller_read(caller, &request, &answer, error);
    if (!status)
        answer_free(answer);
    return status;
}

static enum shoal_status delete_key(struct caller *caller, const char *key, uint64_t object_id)
{
    Shoal__Wire__KvDeleteRequest request = SHOAL__WIRE__KV_DELETE_REQUEST__INIT;
    Shoal__Wire__KvDeleteRequest__Item item = SHOAL__WIRE__KV_DELETE_REQUEST__ITEM__INIT, *items = &item;
    Shoal__Wire__KvDeleteResponse *answer;
    struct shoal_error error;
    enum shoal_status status;

    item.key = (char *)(uintptr_t)key;
    item.object_id = object_id;
    request.n_items = 1;
    request.items = &items;
    assert_ok(caller_call(caller, KV_METHOD_DELETE, &request.base, &shoal__wire__kv_delete_response__descriptor,
                          &answer, NULL, &error),
              &error);
    assert_int_equal(answer->n_statuses, 1);
    status = (enum shoal_status)answer->statuses[0];
    answer_free(answer);
    return status;
}

/* --- small values, inside messages --- */

static void small_values(const struct owner_options *options)
{
    static const size_t sizes[] = {0, 1, 4096, 32768, 60000};
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, 4096, NULL);
    struct shoal_error error;
    char key[32];

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "key %zu", i);
        assert_ok(caller_put_inline(&caller, key, i + 1, sizes[i], &error), &error);
        expect_inline(&caller, key, i + 1, sizes[i]);
        assert_status(SHOAL_EXISTS, caller_put_inline(&caller, key, 99, 10, &error), &error);
        expect_inline(&caller, key, i + 1, sizes[i]);
    }
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_reads_total{way=\"inline\"}"), 10);
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_failures_total{method=\"write\"}"), 5);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "key %zu", i);
        assert_int_equal(delete_key(&caller, key, 0), SHOAL_OK);
        assert_int_equal(delete_key(&caller, key, 0), SHOAL_NOT_FOUND);
        assert_status(SHOAL_NOT_FOUND, read_status(&caller, key, 0, &error), &error);
    }
    assert_int_equal(owner_used_bytes(&owner), 0);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_small_values(void **state)
{
    (void)state;
    small_values(&dram);
}

static void test_small_values_on_storage(void **state)
{
    (void)state;
    small_values(&storage);
}

static void test_object_ids(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, 4096, NULL);
    Shoal__Wire__KvWriteRequest request = write_request("k", 0);
    Shoal__Wire__KvWriteResponse *answer;
    struct shoal_error error;

    (void)state;
    request.object_id = 4711; /* a replica */
    assert_ok(caller_write(&caller, &request, &answer, &error), &error);
    assert_int_equal(answer->object_id, 4711);
    answer_free(answer);
    assert_ok(read_status(&caller, "k", 4711, &error), &error);
    assert_status(SHOAL_NOT_FOUND, read_status(&caller, "k", 4712, &error), &error);
    assert_int_equal(delete_key(&caller, "k", 4712), SHOAL_NOT_FOUND);
    assert_int_equal(delete_key(&caller, "k", 4711), SHOAL_OK);
    caller_close(&caller);
    owner_close(&owner);
}

/* --- large values, by the engine --- */

static void large_values(const struct owner_options *options)
{
    static const size_t sizes[] = {70000, TIER_STAGING_BYTES, TIER_STAGING_BYTES + 1, 5 * MIB + 12345};
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, 8 * MIB, NULL);
    struct shoal_error error;
    char key[32], text[32];

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Shoal__Wire__KvWriteRequest write;
        Shoal__Wire__KvWriteResponse *written;
        Shoal__Wire__KvReadRequest read;
        Shoal__Wire__KvReadResponse *answer;
        Shoal__Wire__KvMemory memory;
        size_t len = sizes[i];

        snprintf(key, sizeof key, "key %zu", i);
        write = write_request(key, len);
        caller_describe(&caller, 3, len, &memory);
        write.source = &memory;
        content_fill(caller.memory + 3, len, i + 1, 0);
        assert_ok(caller_write(&caller, &write, &written, &error), &error);
        answer_free(written);

        memset(caller.memory, 0xee, caller.len);
        read = read_request(key, 32768);
        caller_describe(&caller, 777, len, &memory);
        read.dest = &memory;
        assert_ok(caller_read(&caller, &read, &answer, &error), &error);
        assert_int_equal(answer->way, 2);
        assert_int_equal(answer->len_bytes, len);
        answer_free(answer);
        assert_content(caller.memory + 777, len, i + 1, 0);
        assert_int_equal(caller.memory[776], 0xee);
        assert_int_equal(caller.memory[777 + len], 0xee);

        /* Too small: told how much it is, and nothing is touched. */
        memory.len_bytes = len - 1;
        assert_status(SHOAL_LIMIT, caller_read(&caller, &read, &answer, &error), &error);
        snprintf(text, sizeof text, " %zu bytes", len);
        assert_non_null(strstr(error.message, text));

        /* Neither room in the answer nor memory: only told. */
        read.dest = NULL;
        assert_ok(caller_read(&caller, &read, &answer, &error), &error);
        assert_int_equal(answer->way, 0);
        assert_int_equal(answer->len_bytes, len);
        answer_free(answer);
    }
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_transfers"), 0);
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_reads_total{way=\"written\"}"), 4);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_large_values(void **state)
{
    (void)state;
    large_values(&dram);
}

static void test_large_values_on_storage(void **state)
{
    (void)state;
    large_values(&storage);
}

/* --- pins --- */

static Shoal__Wire__KvReadResponse *pin(struct caller *caller, const char *key, uint64_t offset)
{
    Shoal__Wire__KvReadRequest request = read_request(key, 1000000);
    Shoal__Wire__KvReadResponse *answer;
    struct shoal_error error;

    request.offset = offset;
    assert_ok(caller_call(caller, KV_METHOD_PIN_KEY, &request.base, &shoal__wire__kv_read_response__descriptor, &answer,
                          NULL, &error),
              &error);
    assert_int_equal(answer->way, 3);
    assert_true(answer->pin->lease_id != 0);
    return answer;
}

static void fetch(struct caller *caller, const Shoal__Wire__KvPin *lease)
{
    struct shoal_error error;

    assert_ok(transfer(caller->engine, caller->segment, SHOAL_OP_READ, caller->memory,
                       (void *)(uintptr_t)lease->memory->addr, lease->memory->key, lease->memory->len_bytes, &error),
              &error);
}

static void test_pins(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, 8 * MIB, NULL);
    Shoal__Wire__KvReadResponse *answer;

    (void)state;
    owner_put(&owner, "k", 5, 3 * MIB);
    answer = pin(&caller, "k", 0);
    assert_int_equal(answer->pin->offset, 0);
    assert_int_equal(answer->pin->memory->len_bytes, 3 * MIB);
    assert_int_equal(answer->pin->lease_ms, 5000);
    assert_int_equal(owner_metric(&owner, "shoal_kv_leases"), 1);
    /* Removed meanwhile, it stays readable until the pin ends. */
    assert_int_equal(delete_key(&caller, "k", 0), SHOAL_OK);
    assert_true(owner_used_bytes(&owner) >= 3 * MIB);
    fetch(&caller, answer->pin);
    assert_content(caller.memory, 3 * MIB, 5, 0);
    assert_int_equal(caller_lease(&caller, KV_METHOD_RENEW, answer->pin->lease_id), SHOAL_OK);
    assert_int_equal(caller_lease(&caller, KV_METHOD_WRITE_REVOKE, answer->pin->lease_id), SHOAL_NOT_FOUND);
    assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, answer->pin->lease_id), SHOAL_OK);
    assert_int_equal(owner_used_bytes(&owner), 0);
    assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, answer->pin->lease_id), SHOAL_NOT_FOUND);
    assert_int_equal(caller_lease(&caller, KV_METHOD_RENEW, answer->pin->lease_id), SHOAL_NOT_FOUND);
    answer_free(answer);

    owner_put(&owner, "empty", 5, 0);
    answer = pin(&caller, "empty", 0);
    assert_int_equal(answer->pin->memory->len_bytes, 0);
    answer_free(answer); /* ends with the owner */
    caller_close(&caller);
    owner_close(&owner);
}

static void test_pins_of_chunks(void **state)
{
    struct owner_options options = {.storage_bytes = 32 * MIB, .lease_ms = 60000, .staging_buffers = 16};
    struct owner owner = owner_open(&options);
    struct caller caller = caller_open(&owner, 8 * MIB, NULL);
    Shoal__Wire__KvReadRequest request = read_request("k", 0);
    Shoal__Wire__KvReadResponse *answer, *held[8];
    struct shoal_error error;
    uint64_t offset = 0;

    (void)state;
    owner_put(&owner, "k", 5, 2 * MIB + 100);
    while (offset < 2 * MIB + 100) {
        answer = pin(&caller, "k", offset);
        assert_int_equal(answer->pin->offset, offset);
        fetch(&caller, answer->pin);
        assert_content(caller.memory, answer->pin->memory->len_bytes, 5, offset);
        offset += answer->pin->memory->len_bytes;
        assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, answer->pin->lease_id), SHOAL_OK);
        answer_free(answer);
    }
    request.offset = offset;
    assert_status(SHOAL_INVALID_ARGUMENT,
                  caller_call(&caller, KV_METHOD_PIN_KEY, &request.base, NULL, NULL, NULL, &error), &error);
    assert_non_null(strstr(error.message, "beyond the value"));

    /* They are few: the next one waits for its turn, until its time has passed or one is given back. */
    for (size_t i = 0; i < 8; i++)
        held[i] = pin(&caller, "k", 0);
    caller.timeout_ms = 300;
    request.offset = 0;
    assert_status(SHOAL_TIMED_OUT, caller_call(&caller, KV_METHOD_PIN_KEY, &request.base, NULL, NULL, NULL, &error),
                  &error);
    caller.timeout_ms = 0;
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, held[i]->pin->lease_id), SHOAL_OK);
        answer_free(held[i]);
    }
    answer_free(pin(&caller, "k", 0));
    caller_close(&caller);
    owner_close(&owner);
}

static void test_leases_expire(void **state)
{
    struct owner_options options = {.dram_bytes = 32 * MIB, .lease_ms = 100};
    struct owner owner = owner_open(&options);
    struct caller caller = caller_open(&owner, 4096, NULL);
    Shoal__Wire__KvReadResponse *answer;
    Shoal__Wire__KvWriteRequest write = write_request("held", 100);
    Shoal__Wire__KvWriteResponse *written;
    struct shoal_error error;
    uint8_t value[100] = {0};

    (void)state;
    owner_put(&owner, "k", 5, 1000);
    answer = pin(&caller, "k", 0);
    assert_int_equal(answer->pin->lease_ms, 100);
    write.value = (ProtobufCBinaryData){.data = value, .len = sizeof value};
    write.wants_hold = true;
    assert_ok(caller_write(&caller, &write, &written, &error), &error);
    assert_true(written->lease_id != 0);
    assert_int_equal(delete_key(&caller, "k", 0), SHOAL_OK);
    wait_until(owner_metric(&owner, "shoal_kv_leases") == 0);
    wait_until(owner_used_bytes(&owner) == 0);
    assert_int_equal(owner_metric(&owner, "shoal_kv_leases_expired_total"), 2);
    assert_int_equal(caller_lease(&caller, KV_METHOD_RENEW, answer->pin->lease_id), SHOAL_NOT_FOUND);
    assert_int_equal(caller_lease(&caller, KV_METHOD_WRITE_REVOKE, written->lease_id), SHOAL_NOT_FOUND);
    assert_int_equal(owner_finishing(&owner), 0);
    answer_free(answer);
    answer_free(written);
    caller_close(&caller);
    owner_close(&owner);
}

/* --- held and caller-driven writes --- */

static enum shoal_status commit(struct caller *caller, uint64_t lease_id, struct shoal_error *error)
{
    Shoal__Wire__KvLeaseRequest request = SHOAL__WIRE__KV_LEASE_REQUEST__INIT;
    Shoal__Wire__KvWriteResponse *answer;
    enum shoal_status status;

    request.n_lease_ids = 1;
    request.lease_ids = &lease_id;
    status = caller_call(caller, KV_METHOD_WRITE_COMMIT, &request.base, &shoal__wire__kv_write_response__descriptor,
                         &answer, NULL, error);
    if (!status) {
        assert_true(answer->object_id != 0);
        answer_free(answer);
    }
    return status;
}

static uint64_t hold(struct caller *caller, const char *key, uint64_t seed, size_t len)
{
    Shoal__Wire__KvWriteRequest request = write_request(key, len);
    Shoal__Wire__KvWriteResponse *answer;
    Shoal__Wire__KvMemory source;
    struct shoal_error error;
    uint64_t lease_id;

    content_fill(caller->memory, len, seed, 0);
    caller_describe(caller, 0, len, &source);
    request.source = &source;
    request.wants_hold = true;
    assert_ok(caller_write(caller, &request, &answer, &error), &error);
    lease_id = answer->lease_id;
    assert_true(lease_id != 0);
    answer_free(answer);
    return lease_id;
}

static void held_writes(const struct owner_options *options)
{
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    struct shoal_error error;
    uint64_t first, second;

    first = hold(&caller, "k", 1, 3 * MIB);
    memset(caller.memory, 0, caller.len); /* the owner has it already */
    assert_status(SHOAL_NOT_FOUND, read_status(&caller, "k", 0, &error), &error);
    second = hold(&caller, "k", 2, 1000);
    assert_ok(commit(&caller, first, &error), &error);
    assert_status(SHOAL_EXISTS, commit(&caller, second, &error), &error);
    assert_status(SHOAL_NOT_FOUND, commit(&caller, first, &error), &error);
    assert_status(SHOAL_NOT_FOUND, commit(&caller, second, &error), &error);
    assert_ok(read_status(&caller, "k", 0, &error), &error);
    assert_int_equal(caller_lease(&caller, KV_METHOD_WRITE_REVOKE, hold(&caller, "other", 3, MIB)), SHOAL_OK);
    assert_status(SHOAL_NOT_FOUND, read_status(&caller, "other", 0, &error), &error);
    assert_int_equal(delete_key(&caller, "k", 0), SHOAL_OK);
    assert_int_equal(owner_used_bytes(&owner), 0);
    hold(&caller, "left", 4, 1000); /* given back by the owner's end */
    caller_close(&caller);
    owner_close(&owner);
}

static void test_held_writes(void **state)
{
    (void)state;
    held_writes(&dram);
}

static void test_held_writes_on_storage(void **state)
{
    (void)state;
    held_writes(&storage);
}

static enum shoal_status pre_write(struct caller *caller, const char *key, uint64_t len,
                                   Shoal__Wire__KvPreWriteResponse **answer_out, struct shoal_error *error)
{
    Shoal__Wire__KvPreWriteRequest request = SHOAL__WIRE__KV_PRE_WRITE_REQUEST__INIT;

    request.key = (char *)(uintptr_t)key;
    request.len_bytes = len;
    return caller_call(caller, KV_METHOD_PRE_WRITE, &request.base, &shoal__wire__kv_pre_write_response__descriptor,
                       answer_out, NULL, error);
}

static enum shoal_status write_there(struct caller *caller, const Shoal__Wire__KvMemory *memory, size_t len,
                                     struct shoal_error *error)
{
    return transfer(caller->engine, caller->segment, SHOAL_OP_WRITE, caller->memory, (void *)(uintptr_t)memory->addr,
                    memory->key, len, error);
}

/* What the caller may do in the owner's memory ends with its lease, whatever comes to lie there next. */
static void test_pre_writes(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    Shoal__Wire__KvPreWriteResponse *answer;
    struct shoal_error error;

    (void)state;
    assert_ok(pre_write(&caller, "k", 2 * MIB, &answer, &error), &error);
    assert_int_equal(answer->memory->len_bytes, 2 * MIB);
    content_fill(caller.memory, 2 * MIB, 7, 0);
    assert_ok(write_there(&caller, answer->memory, 2 * MIB, &error), &error);
    assert_status(SHOAL_INVALID_ARGUMENT, write_there(&caller, answer->memory, 2 * MIB + 1, &error), &error);
    assert_ok(commit(&caller, answer->lease_id, &error), &error);
    memset(caller.memory, 0, caller.len);
    assert_status(SHOAL_INVALID_ARGUMENT, write_there(&caller, answer->memory, 100, &error), &error);
    answer_free(answer);
    {
        Shoal__Wire__KvReadResponse *read = pin(&caller, "k", 0);
        /* A reader's key does not write. */
        assert_status(SHOAL_INVALID_ARGUMENT, write_there(&caller, read->pin->memory, 100, &error), &error);
        fetch(&caller, read->pin);
        assert_content(caller.memory, 2 * MIB, 7, 0);
        assert_int_equal(caller_lease(&caller, KV_METHOD_UNPIN_KEY, read->pin->lease_id), SHOAL_OK);
        answer_free(read);
    }
    assert_status(SHOAL_EXISTS, pre_write(&caller, "k", 10, &answer, &error), &error);

    assert_ok(pre_write(&caller, "revoked", 1000, &answer, &error), &error);
    assert_ok(write_there(&caller, answer->memory, 1000, &error), &error);
    assert_int_equal(caller_lease(&caller, KV_METHOD_WRITE_REVOKE, answer->lease_id), SHOAL_OK);
    assert_int_equal(delete_key(&caller, "k", 0), SHOAL_OK);
    wait_until(owner_used_bytes(&owner) == 0);
    assert_status(SHOAL_INVALID_ARGUMENT, write_there(&caller, answer->memory, 1000, &error), &error);
    assert_status(SHOAL_NOT_FOUND, commit(&caller, answer->lease_id, &error), &error);
    answer_free(answer);

    assert_ok(pre_write(&caller, "empty", 0, &answer, &error), &error);
    assert_ok(commit(&caller, answer->lease_id, &error), &error);
    expect_inline(&caller, "empty", 1, 0);
    answer_free(answer);
    assert_status(SHOAL_LIMIT, pre_write(&caller, "huge", 1ull << 40, &answer, &error), &error);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_pre_writes_need_dram(void **state)
{
    struct owner owner = owner_open(&storage);
    struct caller caller = caller_open(&owner, 4096, NULL);
    Shoal__Wire__KvPreWriteResponse *answer;
    struct shoal_error error;
    enum shoal_status status = pre_write(&caller, "k", 100, &answer, &error);

    (void)state;
    assert_true(status == SHOAL_NO_SPACE || status == SHOAL_LIMIT);
    caller_close(&caller);
    owner_close(&owner);
}

/* --- batches --- */

static void batches(const struct owner_options *options)
{
    enum { COUNT = 64 };
    struct owner owner = owner_open(options);
    struct caller caller = caller_open(&owner, 8 * MIB, NULL);
    Shoal__Wire__KvBatchWriteRequest writes = SHOAL__WIRE__KV_BATCH_WRITE_REQUEST__INIT;
    Shoal__Wire__KvBatchReadRequest reads = SHOAL__WIRE__KV_BATCH_READ_REQUEST__INIT;
    Shoal__Wire__KvQueryRequest query = SHOAL__WIRE__KV_QUERY_REQUEST__INIT;
    Shoal__Wire__KvBatchWriteResponse *written;
    Shoal__Wire__KvBatchReadResponse *read;
    Shoal__Wire__KvQueryResponse *queried;
    Shoal__Wire__KvWriteRequest write[COUNT], *write_items[COUNT];
    Shoal__Wire__KvReadRequest request[COUNT], *read_items[COUNT];
    Shoal__Wire__KvMemory memory[COUNT];
    char keys[COUNT][16], *query_keys[COUNT];
    struct shoal_error error;

    /* Every 4th by the engine; the 10th has an empty key, the 20th is there already. */
    owner_put(&owner, "key 20", 1, 10);
    for (size_t i = 0; i < COUNT; i++) {
        size_t len = i % 4 == 0 ? 100000 : 100;

        snprintf(keys[i], sizeof keys[i], "key %zu", i);
        if (i == 10)
            keys[i][0] = '\0';
        query_keys[i] = keys[i];
        write[i] = write_request(keys[i], len);
        content_fill(caller.memory + i * 100000, len, i + 1, 0);
        caller_describe(&caller, i * 100000, len, &memory[i]);
        if (i % 4 == 0) {
            write[i].source = &memory[i];
        } else {
            write[i].value.len = len;
            write[i].value.data = caller.memory + i * 100000;
        }
        write_items[i] = &write[i];
    }
    writes.n_items = COUNT;
    writes.items = write_items;
    assert_ok(caller_call(&caller, KV_METHOD_BATCH_WRITE, &writes.base,
                          &shoal__wire__kv_batch_write_response__descriptor, &written, NULL, &error),
              &error);
    assert_int_equal(written->n_items, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        enum shoal_status expected = i == 10 ? SHOAL_INVALID_ARGUMENT : i == 20 ? SHOAL_EXISTS : SHOAL_OK;

        assert_int_equal(written->items[i]->status, expected);
        if (expected)
            assert_true(written->items[i]->text[0] != '\0');
        else
            assert_true(written->items[i]->answer->object_id != 0);
    }
    answer_free(written);

    memset(caller.memory, 0, caller.len);
    for (size_t i = 0; i < COUNT; i++) {
        request[i] = read_request(keys[i], 1000);
        if (i % 4 == 0) {
            request[i].dest = &memory[i];
            if (i == 8)
                memory[i].len_bytes = 99;
        }
        read_items[i] = &request[i];
    }
    request[33].key = (char *)(uintptr_t) "unknown";
    reads.n_items = COUNT;
    reads.items = read_items;
    assert_ok(caller_call(&caller, KV_METHOD_BATCH_READ, &reads.base, &shoal__wire__kv_batch_read_response__descriptor,
                          &read, NULL, &error),
              &error);
    assert_int_equal(read->n_items, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        enum shoal_status expected = i == 10   ? SHOAL_INVALID_ARGUMENT
                                     : i == 33 ? SHOAL_NOT_FOUND
                                     : i == 8  ? SHOAL_LIMIT
                                               : SHOAL_OK;
        const Shoal__Wire__KvReadResponse *answer = read->items[i]->answer;

        assert_int_equal(read->items[i]->status, expected);
        if (i == 8)
            assert_int_equal(answer->len_bytes, 100000);
        if (expected || i == 20)
            continue;
        assert_int_equal(answer->way, i % 4 == 0 ? 2 : 1);
        if (i % 4 == 0)
            assert_content(caller.memory + i * 100000, 100000, i + 1, 0);
        else
            assert_content(answer->value.data, answer->value.len, i + 1, 0);
    }
    answer_free(read);

    query.n_keys = COUNT;
    query.keys = query_keys;
    assert_ok(caller_call(&caller, KV_METHOD_QUERY, &query.base, &shoal__wire__kv_query_response__descriptor, &queried,
                          NULL, &error),
              &error);
    assert_int_equal(queried->n_items, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(queried->items[i]->status, i == 10 ? SHOAL_INVALID_ARGUMENT : SHOAL_OK);
        if (i != 10 && i != 20) {
            assert_int_equal(queried->items[i]->len_bytes, i % 4 == 0 ? 100000 : 100);
            assert_true(queried->items[i]->object_id != 0);
        }
    }
    answer_free(queried);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 0);
    caller_close(&caller);
    owner_close(&owner);
}

static void test_batches(void **state)
{
    (void)state;
    batches(&dram);
}

static void test_batches_on_storage(void **state)
{
    (void)state;
    batches(&storage);
}

/* More inline values than an answer may have: the rest is only told. */
static void test_batch_answers_are_bounded(void **state)
{
    enum { COUNT = 40, SIZE = 500000 };
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, 4096, NULL);
    Shoal__Wire__KvBatchReadRequest reads = SHOAL__WIRE__KV_BATCH_READ_REQUEST__INIT;
    Shoal__Wire__KvBatchReadResponse *read;
    Shoal__Wire__KvReadRequest request = read_request("k", 1 << 20), *items[COUNT], **many;
    struct shoal_error error;
    unsigned inline_count = 0;

    (void)state;
    owner_put(&owner, "k", 1, SIZE);
    for (size_t i = 0; i < COUNT; i++)
        items[i] = &request;
    reads.n_items = COUNT;
    reads.items = items;
    assert_ok(caller_call(&caller, KV_METHOD_BATCH_READ, &reads.base, &shoal__wire__kv_batch_read_response__descriptor,
                          &read, NULL, &error),
              &error);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(read->items[i]->status, SHOAL_OK);
        assert_int_equal(read->items[i]->answer->len_bytes, SIZE);
        inline_count += read->items[i]->answer->way == 1;
    }
    assert_int_equal(inline_count, (15 * MIB) / SIZE);
    answer_free(read);

    many = calloc(KV_BATCH_ITEMS_MAX + 1, sizeof *many);
    for (size_t i = 0; i <= KV_BATCH_ITEMS_MAX; i++)
        many[i] = &request;
    request.inline_max = 0;
    reads.n_items = KV_BATCH_ITEMS_MAX + 1;
    reads.items = many;
    assert_status(SHOAL_LIMIT, caller_call(&caller, KV_METHOD_BATCH_READ, &reads.base, NULL, NULL, NULL, &error),
                  &error);
    assert_non_null(strstr(error.message, "4096"));
    free(many);
    caller_close(&caller);
    owner_close(&owner);
}

/* --- bad input --- */

static void test_bad_input(void **state)
{
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, MIB, NULL);
    Shoal__Wire__KvWriteRequest write;
    Shoal__Wire__KvReadRequest read;
    Shoal__Wire__KvLeaseRequest leases = SHOAL__WIRE__KV_LEASE_REQUEST__INIT;
    Shoal__Wire__KvMemory memory;
    Shoal__Wire__KvWriteResponse *written;
    Shoal__Wire__KvReadResponse *answer;
    struct shoal_error error;
    uint64_t ids[2] = {1, 2};
    uint8_t value[200] = {0};
    char *long_key = calloc(1, 60000);

    (void)state;
    /* No message at all: every method says so, and the connection lives on. */
    for (unsigned method = KV_METHOD_READ; method <= KV_METHOD_BATCH_WRITE; method++) {
        assert_status(SHOAL_PROTOCOL, caller_raw(&caller, method, "\xff\xff\xff\xff\xff\xff", 6, &error), &error);
        assert_non_null(strstr(error.message, "malformed"));
    }
    assert_int_equal(owner_metric(&owner, "shoal_kv_service_malformed_total"), 12);

    assert_status(SHOAL_INVALID_ARGUMENT, read_status(&caller, "", 0, &error), &error);
    assert_non_null(strstr(error.message, "key is empty"));
    memset(long_key, 'k', 59999);
    assert_status(SHOAL_INVALID_ARGUMENT, read_status(&caller, long_key, 0, &error), &error);
    assert_non_null(strstr(error.message, "59999 bytes, at most 1024"));
    long_key[1025] = '\0';
    assert_status(SHOAL_INVALID_ARGUMENT, caller_put_inline(&caller, long_key, 1, 1, &error), &error);
    long_key[1024] = '\0';
    assert_ok(caller_put_inline(&caller, long_key, 1, 1, &error), &error);
    assert_int_equal(delete_key(&caller, long_key, 0), SHOAL_OK);
    assert_int_equal(delete_key(&caller, "", 0), SHOAL_INVALID_ARGUMENT);

    write = write_request("k", 100);
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    assert_non_null(strstr(error.message, "0 of 100 bytes"));
    write.value = (ProtobufCBinaryData){.data = value, .len = 99};
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    caller_describe(&caller, 0, 99, &memory);
    write.source = &memory;
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    assert_non_null(strstr(error.message, "both"));
    write.value.len = 0;
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    assert_non_null(strstr(error.message, "99 of 100 bytes"));
    memory.len_bytes = 100;
    memory.server_name = (char *)(uintptr_t) "";
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    assert_non_null(strstr(error.message, "server name"));
    caller_describe(&caller, 0, 100, &memory);
    memory.key ^= 1; /* not ours */
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    memory.addr = UINT64_MAX - 10;
    assert_status(SHOAL_INVALID_ARGUMENT, caller_write(&caller, &write, &written, &error), &error);
    assert_non_null(strstr(error.message, "wraps"));
    caller_describe(&caller, 0, 100, &memory);
    memory.instance++;
    assert_status(SHOAL_UNREACHABLE, caller_write(&caller, &write, &written, &error), &error);
    memory.address = (char *)(uintptr_t) "nonsense";
    assert_true(caller_write(&caller, &write, &written, &error) != SHOAL_OK);
    caller_describe(&caller, 0, 100, &memory);
    write.len_bytes = memory.len_bytes = 1ull << 40;
    assert_status(SHOAL_LIMIT, caller_write(&caller, &write, &written, &error), &error);

    owner_put(&owner, "large", 1, 100000);
    read = read_request("large", 0);
    memory.len_bytes = MIB;
    memory.addr += MIB - 1000; /* says more than there is */
    read.dest = &memory;
    assert_status(SHOAL_INVALID_ARGUMENT, caller_read(&caller, &read, &answer, &error), &error);

    leases.n_lease_ids = 2;
    leases.lease_ids = ids;
    assert_status(SHOAL_INVALID_ARGUMENT,
                  caller_call(&caller, KV_METHOD_WRITE_COMMIT, &leases.base, NULL, NULL, NULL, &error), &error);
    assert_int_equal(delete_key(&caller, "large", 0), SHOAL_OK);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 0);
    assert_int_equal(owner_used_bytes(&owner), 0);
    assert_int_equal(owner_finishing(&owner), 1);
    free(long_key);
    caller_close(&caller);
    owner_close(&owner);
}

/* The master refuses, or does not answer in time: nothing stays. */
static void test_announcements_that_fail(void **state)
{
    static const enum shoal_status outcomes[] = {SHOAL_EXISTS, SHOAL_UNREACHABLE, SHOAL_TIMED_OUT};
    struct owner owner = owner_open(&dram);
    struct caller caller = caller_open(&owner, MIB, NULL);
    struct shoal_error error;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        owner_set_outcome(&owner, outcomes[i]);
        assert_status(outcomes[i], caller_put_inline(&caller, "k", 1, 1000, &error), &error);
        assert_non_null(strstr(error.message, "in vain"));
        assert_status(outcomes[i], commit(&caller, hold(&caller, "k", 1, 100000), &error), &error);
        assert_status(SHOAL_NOT_FOUND, read_status(&caller, "k", 0, &error), &error);
        assert_int_equal(owner_used_bytes(&owner), 0);
    }
    caller_close(&caller);
    owner_close(&owner);
}

static void test_a_broken_disk(void **state)
{
    struct owner owner = owner_open(&storage);
    struct caller caller = caller_open(&owner, 4 * MIB, NULL);
    Shoal__Wire__KvWriteRequest write = write_request("new", 3 * MIB);
    Shoal__Wire__KvReadRequest read = read_request("k", 0);
    Shoal__Wire__KvWriteResponse *written;
    Shoal__Wire__KvReadResponse *answer;
    Shoal__Wire__KvMemory memory;
    struct shoal_error error;
    uint64_t used;

    (void)state;
    owner_put(&owner, "k", 1, 3 * MIB);
    used = owner_used_bytes(&owner);
    caller_describe(&caller, 0, 3 * MIB, &memory);
    write.source = read.dest = &memory;
    owner_fail_disk(true);
    assert_status(SHOAL_IO, caller_write(&caller, &write, &written, &error), &error);
    assert_status(SHOAL_IO, caller_put_inline(&caller, "new", 1, 1000, &error), &error);
    assert_status(SHOAL_IO, caller_read(&caller, &read, &answer, &error), &error);
    read.dest = NULL;
    read.wants_pin = true;
    assert_status(SHOAL_IO, caller_read(&caller, &read, &answer, &error), &error);
    owner_fail_disk(false);
    wait_until(owner_metric(&owner, "shoal_kv_service_jobs") == 0);
    assert_int_equal(owner_used_bytes(&owner), used);
    assert_int_equal(owner_metric(&owner, "shoal_kv_leases"), 0);
    assert_ok(caller_write(&caller, &write, &written, &error), &error);
    answer_free(written);
    caller_close(&caller);
    owner_close(&owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)
        CASE(test_small_values),
        CASE(test_small_values_on_storage),
        CASE(test_object_ids),
        CASE(test_large_values),
        CASE(test_large_values_on_storage),
        CASE(test_pins),
        CASE(test_pins_of_chunks),
        CASE(test_leases_expire),
        CASE(test_held_writes),
        CASE(test_held_writes_on_storage),
        CASE(test_pre_writes),
        CASE(test_pre_writes_need_dram),
        CASE(test_batches),
        CASE(test_batches_on_storage),
        CASE(test_batch_answers_are_bounded),
        CASE(test_bad_input),
        CASE(test_announcements_that_fail),
        CASE(test_a_broken_disk),
    };

    return cmocka_run_group_tests_name("kv service", tests, NULL, NULL);
}
