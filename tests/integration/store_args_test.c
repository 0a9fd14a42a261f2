/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of shoal/store.h with every wrong argument: its own status, a message, and nothing left behind.
 * In-process, on SQLite. */
#include "itest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/store.h>

#include "content.h"
#include "guarded.h"

struct args {
    struct fixture *fixture;
    struct shoal_store *store, *other;
    struct guarded memory; /* 64 KiB */
};

static struct args args;

static struct shoal_store *new_store(const char *uri)
{
    struct shoal_store_config config = {
        .struct_size = sizeof config, .metadata_uri = uri, .server_name = "127.0.0.1:0", .digest_threads = 1};
    struct shoal_store *store = NULL;
    struct shoal_error error = {0};
    if (shoal_store_create(&config, NULL, &store, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return store;
}

static int setup(void **state)
{
    void *fixture;
    if (itest_setup(&fixture) != 0)
        return -1;
    args.fixture = fixture;
    args.store = new_store(args.fixture->uri);
    args.other = new_store(args.fixture->uri);
    assert_true(guarded_init(&args.memory, 65536));
    content_fill(args.memory.data, 65536, 1, 0);
    *state = &args;
    return 0;
}

static int teardown(void **state)
{
    void *fixture = args.fixture;
    (void)state;
    shoal_store_close(args.store, NULL);
    shoal_store_close(args.other, NULL);
    guarded_release(&args.memory);
    return itest_teardown(&fixture);
}

#define CHECK(wanted, call)                                                                                            \
    do {                                                                                                               \
        struct shoal_error error = {.status = SHOAL_OK};                                                               \
        enum shoal_status status_ = (call);                                                                            \
        if (status_ != (wanted)) {                                                                                     \
            print_error("%s: wanted %s, got %s: %s\n", #call, shoal_status_name(wanted), shoal_status_name(status_),   \
                        error.message);                                                                                \
            _fail(__FILE__, __LINE__);                                                                                 \
        }                                                                                                              \
        if (status_ != SHOAL_OK) {                                                                                     \
            assert_int_equal(error.status, status_);                                                                   \
            assert_int_not_equal(error.message[0], '\0');                                                              \
        }                                                                                                              \
    } while (0)
/* The same without a place for detail. */
#define CHECK_PLAIN(wanted, call) assert_int_equal(call, wanted)

static void expect_nothing_served(struct shoal_store *store)
{
    struct shoal_served_info *served = NULL;
    size_t count = 99;
    CHECK(SHOAL_OK, shoal_store_served(store, &served, &count, &error));
    assert_int_equal(count, 0);
    free(served);
}

static struct shoal_region whole(void)
{
    return (struct shoal_region){args.memory.data, args.memory.len};
}

static void create_arguments(void **state)
{
    (void)state;
    struct shoal_store_config good = {
        .struct_size = sizeof good, .metadata_uri = args.fixture->uri, .server_name = "127.0.0.1:0"};
    struct shoal_store *const untouched = (struct shoal_store *)&args;
    struct shoal_store *store = untouched;
    struct shoal_store_config config;

    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_create(NULL, NULL, &store, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_create(&good, NULL, NULL, &error));
    CHECK_PLAIN(SHOAL_INVALID_ARGUMENT, shoal_store_create(NULL, NULL, &store, NULL));
#define WITH(field, value, wanted)                                                                                     \
    config = good;                                                                                                     \
    config.field = value;                                                                                              \
    CHECK(wanted, shoal_store_create(&config, NULL, &store, &error));                                                  \
    assert_ptr_equal(store, untouched)
    WITH(struct_size, 0, SHOAL_INVALID_ARGUMENT);
    WITH(struct_size, 4, SHOAL_INVALID_ARGUMENT);
    WITH(metadata_uri, NULL, SHOAL_INVALID_ARGUMENT);
    WITH(metadata_uri, "", SHOAL_INVALID_ARGUMENT);
    WITH(metadata_uri, "what://ever", SHOAL_INVALID_ARGUMENT);
    WITH(server_name, NULL, SHOAL_INVALID_ARGUMENT);
    WITH(server_name, "", SHOAL_INVALID_ARGUMENT);
    WITH(server_name, "127.0.0.1:x", SHOAL_INVALID_ARGUMENT);
    WITH(server_name, "203.0.113.9:0", SHOAL_ADDRESS);
    WITH(cluster, "", SHOAL_INVALID_ARGUMENT);
    WITH(nic_priority_matrix, "{\"cpu:0\":[[\"mlx5_0\"],[]]}", SHOAL_UNSUPPORTED);
    WITH(nic_priority_matrix, "{\"cpu:0\":[[],[]]}", SHOAL_INVALID_ARGUMENT);
    WITH(nic_priority_matrix, "mlx5_0", SHOAL_INVALID_ARGUMENT);
    WITH(protocol, "pigeon", SHOAL_INVALID_ARGUMENT);
    WITH(lease_ttl_ms, -1, SHOAL_INVALID_ARGUMENT);
    WITH(lease_ttl_ms, 1, SHOAL_INVALID_ARGUMENT);
    WITH(connect_timeout_ms, -5, SHOAL_INVALID_ARGUMENT);
    WITH(progress_timeout_ms, -5, SHOAL_INVALID_ARGUMENT);
    WITH(upload_limit_bytes_per_s, 65535, SHOAL_INVALID_ARGUMENT);
    WITH(upload_limit_bytes_per_s, UINT64_MAX, SHOAL_INVALID_ARGUMENT);
    WITH(download_limit_bytes_per_s, 1, SHOAL_INVALID_ARGUMENT);
    WITH(download_limit_bytes_per_s, (1ull << 40) + 1, SHOAL_INVALID_ARGUMENT);
    WITH(upload_slots, 1025, SHOAL_INVALID_ARGUMENT);
    WITH(server_name, shoal_store_server_name(args.store), SHOAL_NAME_IN_USE);
#undef WITH
    /* A caller that does not know the limits yet: what lies behind its structure is not looked at. */
    config = good;
    config.struct_size = offsetof(struct shoal_store_config, upload_limit_bytes_per_s);
    config.upload_limit_bytes_per_s = config.download_limit_bytes_per_s = 1;
    config.upload_slots = UINT_MAX;
    CHECK(SHOAL_OK, shoal_store_create(&config, NULL, &store, &error));
    shoal_store_close(store, NULL);
    store = untouched;
    struct shoal_call call = {.struct_size = 0};
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_create(&good, &call, &store, &error));
    call.struct_size = sizeof call;
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    shoal_cancel_trigger(call.cancel);
    CHECK(SHOAL_CANCELED, shoal_store_create(&good, &call, &store, &error));
    shoal_cancel_destroy(call.cancel);
    assert_ptr_equal(store, untouched);

    shoal_store_close(NULL, NULL);
    shoal_cancel_trigger(NULL);
    shoal_cancel_destroy(NULL);
    shoal_payload_infos_free(NULL, 0);
}

/* Statuses of register and get_replica for wrong regions. */
static void region_arguments(void **state)
{
    (void)state;
    uint8_t *data = args.memory.data;
    const struct {
        struct shoal_region regions[3];
        size_t count;
        enum shoal_status wanted;
    } cases[] = {
        {{{data, 10}}, 0, SHOAL_INVALID_ARGUMENT},
        {{{NULL, 10}}, 1, SHOAL_INVALID_ARGUMENT},
        {{{data, UINT64_MAX}}, 1, SHOAL_INVALID_ARGUMENT},
        {{{data, UINT64_MAX - (uintptr_t)data + 1}}, 1, SHOAL_INVALID_ARGUMENT},
        {{{data, 10}, {NULL, 1}}, 2, SHOAL_INVALID_ARGUMENT},
        {{{data, 100}, {data + 99, 100}}, 2, SHOAL_ADDRESS_OVERLAPPED},
        {{{data + 99, 100}, {data, 100}}, 2, SHOAL_ADDRESS_OVERLAPPED},
        {{{data, 100}, {data + 10, 10}}, 2, SHOAL_ADDRESS_OVERLAPPED},
        {{{data, 100}, {data + 200, 100}, {data + 250, 1}}, 3, SHOAL_ADDRESS_OVERLAPPED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("case %zu\n", i);
        CHECK(cases[i].wanted,
              shoal_store_register(args.store, "model", cases[i].regions, cases[i].count, NULL, NULL, &error));
        expect_nothing_served(args.store);
    }
    struct shoal_region region = whole();
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_register(args.store, "model", NULL, 1, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_register(args.store, NULL, &region, 1, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_register(NULL, "model", &region, 1, NULL, NULL, &error));
    CHECK_PLAIN(SHOAL_INVALID_ARGUMENT, shoal_store_register(args.store, "", &region, 1, NULL, NULL, NULL));

    /* The same for a pull of a payload that exists, so that nothing else is wrong. */
    struct guarded source;
    assert_true(guarded_init(&source, 200));
    struct shoal_region seed = {source.data, 200};
    CHECK(SHOAL_OK, shoal_store_register(args.other, "model", &seed, 1, NULL, NULL, &error));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum shoal_status status =
            shoal_store_get_replica(args.store, "model", cases[i].regions, cases[i].count, NULL, NULL, NULL);
        /* Sizes may be noticed first. */
        assert_true(status == cases[i].wanted || status == SHOAL_INVALID_ARGUMENT);
        expect_nothing_served(args.store);
    }
    const struct shoal_region twice[2] = {{data, 100}, {data + 50, 100}};
    CHECK(SHOAL_ADDRESS_OVERLAPPED, shoal_store_get_replica(args.store, "model", twice, 2, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_get_replica(args.store, "model", NULL, 1, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_get_replica(args.store, NULL, &seed, 1, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_get_replica(NULL, "model", &seed, 1, NULL, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.other, "model", NULL, &error));
    guarded_release(&source);
    assert_int_equal(content_find_difference(data, 65536, 1, 0), -1);
}

/* Regions against those of other payloads: equal ones are shared, overlapping ones refused. */
static void regions_of_two_payloads(void **state)
{
    (void)state;
    uint8_t *data = args.memory.data;
    const struct shoal_region first = {data, 1000}, same = first, part = {data + 10, 10}, over = {data + 999, 2},
                              behind = {data + 1000, 1000};
    CHECK(SHOAL_OK, shoal_store_register(args.store, "first", &first, 1, NULL, NULL, &error));
    CHECK(SHOAL_ADDRESS_OVERLAPPED, shoal_store_register(args.store, "part", &part, 1, NULL, NULL, &error));
    CHECK(SHOAL_ADDRESS_OVERLAPPED, shoal_store_register(args.store, "over", &over, 1, NULL, NULL, &error));
    const struct shoal_region mixed[2] = {behind, over};
    CHECK(SHOAL_ADDRESS_OVERLAPPED, shoal_store_register(args.store, "mixed", mixed, 2, NULL, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_register(args.store, "same", &same, 1, NULL, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_register(args.store, "behind", &behind, 1, NULL, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "first", NULL, &error));
    /* "same" still holds the memory, and serves it. */
    CHECK(SHOAL_ADDRESS_OVERLAPPED, shoal_store_register(args.store, "part", &part, 1, NULL, NULL, &error));
    struct guarded target;
    assert_true(guarded_init(&target, 1000));
    struct shoal_region region = {target.data, 1000};
    CHECK(SHOAL_OK, shoal_store_get_replica(args.other, "same", &region, 1, NULL, NULL, &error));
    assert_memory_equal(target.data, data, 1000);
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "same", NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "behind", NULL, &error));
    CHECK(SHOAL_OK, shoal_store_register(args.store, "part", &part, 1, NULL, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "part", NULL, &error));
    CHECK(SHOAL_OK, shoal_store_delete_replica(args.other, "same", NULL, &error));
    guarded_release(&target);
    expect_nothing_served(args.store);
    expect_nothing_served(args.other);
}

static void register_options(void **state)
{
    (void)state;
    struct shoal_region region = whole();
    struct shoal_register_options options = {.struct_size = sizeof options}, bad;
#define WITH(field, value, wanted)                                                                                     \
    bad = options;                                                                                                     \
    bad.field = value;                                                                                                 \
    CHECK(wanted, shoal_store_register(args.store, "model", &region, 1, &bad, NULL, &error));                          \
    expect_nothing_served(args.store)
    WITH(struct_size, 0, SHOAL_INVALID_ARGUMENT);
    WITH(struct_size, 3, SHOAL_INVALID_ARGUMENT);
    WITH(location, "", SHOAL_INVALID_ARGUMENT);
    WITH(location, "gpu", SHOAL_INVALID_ARGUMENT);
    WITH(location, "cpu:", SHOAL_INVALID_ARGUMENT);
    WITH(location, "cpu:x", SHOAL_INVALID_ARGUMENT);
    WITH(location, "cuda:0", SHOAL_UNSUPPORTED);
    WITH(attachment_len_bytes, 5, SHOAL_INVALID_ARGUMENT); /* without bytes */
    WITH(progress_interval_ms, -1, SHOAL_INVALID_ARGUMENT);
#undef WITH
    bad = options;
    bad.attachment = args.memory.data;
    bad.attachment_len_bytes = SHOAL_ATTACHMENT_MAX_BYTES + 1;
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_register(args.store, "model", &region, 1, &bad, NULL, &error));
    expect_nothing_served(args.store);
    options.location = "cpu:0";
    CHECK(SHOAL_OK, shoal_store_register(args.store, "model", &region, 1, &options, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "model", NULL, &error));
}

static void get_options(void **state)
{
    (void)state;
    struct shoal_region region = whole();
    struct guarded target;
    assert_true(guarded_init(&target, 65536));
    struct shoal_region into = {target.data, 65536};
    struct shoal_get_options options = {.struct_size = sizeof options}, bad;
    CHECK(SHOAL_OK, shoal_store_register(args.other, "model", &region, 1, NULL, NULL, &error));
#define WITH(field, value, wanted)                                                                                     \
    bad = options;                                                                                                     \
    bad.field = value;                                                                                                 \
    CHECK(wanted, shoal_store_get_replica(args.store, "model", &into, 1, &bad, NULL, &error));                         \
    expect_nothing_served(args.store)
    WITH(struct_size, 0, SHOAL_INVALID_ARGUMENT);
    WITH(struct_size, 3, SHOAL_INVALID_ARGUMENT);
    WITH(location, "gpu", SHOAL_INVALID_ARGUMENT);
    WITH(location, "cuda:0", SHOAL_UNSUPPORTED);
    WITH(progress_interval_ms, -1, SHOAL_INVALID_ARGUMENT);
    WITH(generation, 12345, SHOAL_REPLACED);
#undef WITH
    struct shoal_call call = {.struct_size = 1};
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_get_replica(args.store, "model", &into, 1, NULL, &call, &error));
    call.struct_size = sizeof call;
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    shoal_cancel_trigger(call.cancel);
    CHECK(SHOAL_CANCELED, shoal_store_get_replica(args.store, "model", &into, 1, NULL, &call, &error));
    expect_nothing_served(args.store);
    shoal_cancel_destroy(call.cancel);
    CHECK(SHOAL_PAYLOAD_NOT_FOUND, shoal_store_get_replica(args.store, "missing", &into, 1, NULL, NULL, &error));

    /* no_share: nothing is left after success either, and the regions are the caller's again. */
    options.no_share = 1;
    CHECK(SHOAL_OK, shoal_store_get_replica(args.store, "model", &into, 1, &options, NULL, &error));
    assert_int_equal(content_find_difference(target.data, 65536, 1, 0), -1);
    expect_nothing_served(args.store);
    CHECK(SHOAL_PAYLOAD_NOT_OPENED, shoal_store_delete_replica(args.store, "model", NULL, &error));
    options.no_share = 0;
    options.max_sources = 1;
    CHECK(SHOAL_OK, shoal_store_get_replica(args.store, "model", &into, 1, &options, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_delete_replica(args.store, "model", NULL, &error));
    guarded_release(&target);
}

static void withdraw_arguments(void **state)
{
    (void)state;
    struct shoal_call bad_call = {.struct_size = 2};
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_unregister(NULL, "model", NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_unregister(args.store, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_unregister(args.store, "model", &bad_call, &error));
    CHECK(SHOAL_PAYLOAD_NOT_OPENED, shoal_store_unregister(args.store, "model", NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_delete_replica(NULL, "model", NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_delete_replica(args.store, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_delete_replica(args.store, "model", &bad_call, &error));
    CHECK(SHOAL_PAYLOAD_NOT_OPENED, shoal_store_delete_replica(args.store, "model", NULL, &error));
    CHECK_PLAIN(SHOAL_PAYLOAD_NOT_OPENED, shoal_store_delete_replica(args.store, "model", NULL, NULL));
}

/* A withdrawal with a triggered token: the memory is the caller's all the same. */
static void withdraw_canceled(void **state)
{
    (void)state;
    struct shoal_region region = whole();
    struct shoal_call call = {.struct_size = sizeof call};
    assert_int_equal(shoal_cancel_create(&call.cancel), SHOAL_OK);
    shoal_cancel_trigger(call.cancel);
    CHECK(SHOAL_OK, shoal_store_register(args.store, "model", &region, 1, NULL, NULL, &error));
    enum shoal_status status = shoal_store_unregister(args.store, "model", &call, NULL);
    assert_true(status == SHOAL_OK || status == SHOAL_CANCELED);
    expect_nothing_served(args.store);
    shoal_cancel_destroy(call.cancel);
    struct shoal_register_options options = {.struct_size = sizeof options, .force = 1};
    CHECK(SHOAL_OK, shoal_store_register(args.store, "model", &region, 1, &options, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "model", NULL, &error));
}

static void query_arguments(void **state)
{
    (void)state;
    struct shoal_payload_info *const untouched = (struct shoal_payload_info *)&args;
    struct shoal_payload_info *infos = untouched;
    struct shoal_served_info *served = NULL;
    struct shoal_call bad_call = {.struct_size = 2};
    size_t count = 77;

    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_list(NULL, "", NULL, &infos, &count, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_list(args.store, "", NULL, NULL, &count, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_list(args.store, "", NULL, &infos, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_list(args.store, "", &bad_call, &infos, &count, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_stat(NULL, "model", NULL, &infos, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_stat(args.store, NULL, NULL, &infos, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_stat(args.store, "model", NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_stat(args.store, "model", &bad_call, &infos, &error));
    CHECK(SHOAL_PAYLOAD_NOT_FOUND, shoal_store_stat(args.store, "model", NULL, &infos, &error));
    assert_ptr_equal(infos, untouched);
    assert_int_equal(count, 77);
    CHECK(SHOAL_OK, shoal_store_list(args.store, NULL, NULL, &infos, &count, &error));
    assert_int_equal(count, 0);
    shoal_payload_infos_free(infos, count);
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_served(NULL, &served, &count, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_served(args.store, NULL, &count, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_served(args.store, &served, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_fetch_index(NULL, "model", 0, NULL, NULL, NULL, NULL, NULL, &error));
    CHECK(SHOAL_INVALID_ARGUMENT, shoal_store_fetch_index(args.store, NULL, 0, NULL, NULL, NULL, NULL, NULL, &error));
    CHECK(SHOAL_PAYLOAD_NOT_FOUND,
          shoal_store_fetch_index(args.store, "model", 0, NULL, NULL, NULL, NULL, NULL, &error));
}

static void attachments(void **state)
{
    (void)state;
    struct shoal_region region = whole();
    static const char text[] = "bytes with \0 in between";
    struct shoal_register_options options = {
        .struct_size = sizeof options, .attachment = text, .attachment_len_bytes = sizeof text};
    void *attachment = NULL;
    uint64_t *sizes = NULL;
    size_t len = 0, count = 0;
    CHECK(SHOAL_OK, shoal_store_register(args.store, "model", &region, 1, &options, NULL, &error));
    CHECK(SHOAL_OK, shoal_store_fetch_index(args.other, "model", 0, NULL, &attachment, &len, &sizes, &count, &error));
    assert_int_equal(len, sizeof text);
    assert_memory_equal(attachment, text, sizeof text);
    assert_int_equal(count, 1);
    assert_int_equal(sizes[0], 65536);
    free(attachment);
    free(sizes);
    CHECK(SHOAL_OK, shoal_store_fetch_index(args.other, "model", 0, NULL, NULL, NULL, NULL, NULL, &error));
    /* Also by the node that has it. */
    CHECK(SHOAL_OK, shoal_store_fetch_index(args.store, "model", 0, NULL, &attachment, &len, NULL, NULL, &error));
    assert_memory_equal(attachment, text, sizeof text);
    free(attachment);
    CHECK(SHOAL_OK, shoal_store_unregister(args.store, "model", NULL, &error));
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(create_arguments),  TEST(region_arguments), TEST(regions_of_two_payloads),
        TEST(register_options),  TEST(get_options),      TEST(withdraw_arguments),
        TEST(withdraw_canceled), TEST(query_arguments),  TEST(attachments),
    };
    return cmocka_run_group_tests_name("store_args", tests, NULL, NULL);
}
