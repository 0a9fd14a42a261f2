/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <jansson.h>

#include "meta/etcd_codec.h"
#include "meta/meta_ops.h"

#define HEADER "\"header\":{\"cluster_id\":\"14841639068965178418\",\"revision\":\"7\",\"raft_term\":\"2\"}"

static struct meta_bytes text_bytes(const char *text)
{
    return (struct meta_bytes){text, strlen(text)};
}

static void assert_json(struct buf *buf, const char *expected)
{
    assert_string_equal((const char *)buf->data, expected);
    json_t *root = json_loadb((const char *)buf->data, buf->len, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    buf->len = 0;
}

static void test_encode(void **state)
{
    (void)state;
    struct buf buf;
    buf_init(&buf, 4096);
    assert_true(etcd_encode_get(&buf, text_bytes("a")));
    assert_json(&buf, "{\"key\":\"YQ==\"}");
    assert_true(etcd_encode_range(&buf, text_bytes("a"), (struct meta_bytes){0}, 5, 0));
    assert_json(&buf, "{\"key\":\"YQ==\",\"range_end\":\"Yg==\",\"limit\":\"5\"}");
    assert_true(etcd_encode_range(&buf, text_bytes("a\xff"), (struct meta_bytes){"a\xff\0", 3}, 5, 9));
    assert_json(&buf, "{\"key\":\"Yf8A\",\"range_end\":\"Yg==\",\"limit\":\"5\",\"revision\":\"9\"}");
    /* No end: all keys, or all keys of 0xff. */
    assert_true(etcd_encode_range(&buf, text_bytes(""), (struct meta_bytes){0}, 1, 0));
    assert_json(&buf, "{\"key\":\"AA==\",\"range_end\":\"AA==\",\"limit\":\"1\"}");
    assert_true(etcd_encode_range(&buf, text_bytes("\xff\xff"), (struct meta_bytes){0}, 1, 0));
    assert_json(&buf, "{\"key\":\"//8=\",\"range_end\":\"AA==\",\"limit\":\"1\"}");
    assert_true(etcd_encode_lease_grant(&buf, INT64_MAX, 10));
    assert_json(&buf, "{\"ID\":\"9223372036854775807\",\"TTL\":\"10\"}");
    assert_true(etcd_encode_watch(&buf, text_bytes("w/"), 4));
    assert_json(&buf, "{\"create_request\":{\"key\":\"dy8=\",\"range_end\":\"dzA=\",\"start_revision\":\"4\","
                      "\"progress_notify\":true,\"fragment\":true}}");
    assert_true(etcd_encode_authenticate(&buf, "us\"er", "p\\w\n"));
    assert_json(&buf, "{\"name\":\"us\\\"er\",\"password\":\"p\\\\w\\n\"}");
    buf_release(&buf);
}

static void test_encode_txn(void **state)
{
    (void)state;
    struct buf buf;
    buf_init(&buf, 4096);
    const struct meta_compare compares[] = {{META_KEY_ABSENT, text_bytes("a"), 0},
                                            {META_KEY_PRESENT, text_bytes("b"), 0},
                                            {META_MOD_REVISION_IS, text_bytes("c"), 3},
                                            {META_PREFIX_ABSENT, text_bytes("d"), 0}};
    const struct meta_op ops[] = {{.kind = META_PUT, .key = text_bytes("a"), .value = text_bytes("1"), .lease = 8},
                                  {.kind = META_PUT, .key = text_bytes("b")},
                                  {.kind = META_DELETE, .key = text_bytes("c")},
                                  {.kind = META_DELETE_PREFIX, .key = text_bytes("d")}};
    assert_true(etcd_encode_txn(&buf, compares, 4, ops, 4));
    assert_json(&buf, "{\"compare\":["
                      "{\"key\":\"YQ==\",\"target\":\"VERSION\",\"result\":\"EQUAL\",\"version\":\"0\"},"
                      "{\"key\":\"Yg==\",\"target\":\"VERSION\",\"result\":\"GREATER\",\"version\":\"0\"},"
                      "{\"key\":\"Yw==\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"3\"},"
                      "{\"key\":\"ZA==\",\"range_end\":\"ZQ==\",\"target\":\"VERSION\",\"result\":\"EQUAL\","
                      "\"version\":\"0\"}],\"success\":["
                      "{\"request_put\":{\"key\":\"YQ==\",\"value\":\"MQ==\",\"lease\":\"8\"}},"
                      "{\"request_put\":{\"key\":\"Yg==\",\"value\":\"\"}},"
                      "{\"request_delete_range\":{\"key\":\"Yw==\"}},"
                      "{\"request_delete_range\":{\"key\":\"ZA==\",\"range_end\":\"ZQ==\"}}]}");
    assert_true(etcd_encode_txn(&buf, compares, 4, ops, 4));
    size_t len = buf.len;
    buf_release(&buf);

    /* Out of room anywhere: false, never a crash. */
    for (size_t max = 0; max < len; max++) {
        buf_init(&buf, max);
        assert_false(etcd_encode_txn(&buf, compares, 4, ops, 4));
        buf_release(&buf);
    }
}

static void test_decode_range(void **state)
{
    (void)state;
    static const char text[] =
        "{" HEADER ",\"kvs\":[{\"key\":\"YQD/\",\"create_revision\":\"2\",\"mod_revision\":\"3\",\"value\":\"YmM=\","
        "\"lease\":\"99\"},{\"key\":\"Yg==\",\"create_revision\":4,\"mod_revision\":4}],\"more\":true}";
    struct shoal_error error;
    struct etcd_range range;
    assert_int_equal(etcd_decode_range(text, sizeof text - 1, &range, &error), SHOAL_OK);
    assert_int_equal(range.header.revision, 7);
    assert_true(range.header.cluster_id == 14841639068965178418u);
    assert_int_equal(range.count, 2);
    assert_true(range.has_more);
    assert_int_equal(range.entries[0].key_len, 3);
    assert_memory_equal(range.entries[0].key, "a\0\xff", 4);
    assert_string_equal(range.entries[0].value, "bc");
    assert_int_equal(range.entries[0].lease, 99);
    assert_int_equal(range.entries[1].value_len, 0);
    assert_int_equal(range.entries[1].mod_revision, 4);
    etcd_range_release(&range);
}

static void test_decode_range_nonsense(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "null",
        "[]",
        "7",
        "<html></html>",
        "{}",
        "{\"header\":7}",
        "{\"header\":{}}",
        "{\"header\":{\"revision\":\"x\"}}",
        "{\"header\":{\"revision\":\"-1\"}}",
        "{\"header\":{\"revision\":\"9223372036854775808\"}}",
        "{\"header\":{\"revision\":\"99999999999999999999\"}}",
        "{\"header\":{\"revision\":\"\"}}",
        "{\"header\":{\"revision\":1.5}}",
        "{\"header\":{\"revision\":-3}}",
        "{\"header\":{\"revision\":[1]}}",
        "{" HEADER ",\"kvs\":{}}",
        "{" HEADER ",\"kvs\":[7]}",
        "{" HEADER ",\"kvs\":[{}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"YQ=\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"Y===\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"=YQ=\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\" YQ=\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"YQ*=\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":7,\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"YQ==\",\"value\":{},\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"more\":\"yes\"}",
        "{" HEADER "} trailing",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct shoal_error error = {0};
        struct etcd_range range;
        enum shoal_status status = etcd_decode_range(texts[i], strlen(texts[i]), &range, &error);
        if (status != SHOAL_METADATA)
            fail_msg("%s: %s", texts[i], shoal_status_name(status));
        assert_int_equal(error.status, SHOAL_METADATA);
        assert_true(strlen(error.message) > 10);
    }
}

static void test_decode_small_answers(void **state)
{
    (void)state;
    struct shoal_error error;
    struct etcd_txn txn;
    struct etcd_lease lease;
    struct etcd_failure failure;
    char token[ETCD_TOKEN_MAX_BYTES], version[32];
#define DECODE(name, text, ...) etcd_decode_##name(text, strlen(text), __VA_ARGS__)
    assert_int_equal(DECODE(txn, "{" HEADER "}", &txn, &error), SHOAL_OK);
    assert_false(txn.is_succeeded);
    assert_int_equal(DECODE(txn, "{" HEADER ",\"succeeded\":true}", &txn, &error), SHOAL_OK);
    assert_true(txn.is_succeeded);
    assert_int_equal(DECODE(txn, "{" HEADER ",\"succeeded\":1}", &txn, &error), SHOAL_METADATA);

    assert_int_equal(DECODE(lease_grant, "{" HEADER ",\"ID\":\"5\",\"TTL\":\"10\"}", &lease, &error), SHOAL_OK);
    assert_int_equal(lease.id, 5);
    assert_int_equal(DECODE(lease_grant, "{" HEADER ",\"ID\":\"5\"}", &lease, &error), SHOAL_METADATA);
    assert_int_equal(DECODE(keep_alive, "{\"result\":{" HEADER ",\"ID\":\"5\"}}\n", &lease, &error), SHOAL_OK);
    assert_int_equal(lease.ttl_s, 0);
    assert_int_equal(DECODE(keep_alive, "{" HEADER "}", &lease, &error), SHOAL_METADATA);

    assert_true(DECODE(failure, "{\"error\":\"e\",\"message\":\"m\",\"code\":5}", &failure));
    assert_int_equal(failure.code, 5);
    assert_string_equal(failure.message, "m");
    assert_true(DECODE(failure, "{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}", &failure));
    assert_int_equal(failure.code, 14);
    assert_true(DECODE(failure, "{\"code\":3,\"message\":\"newer\",\"details\":[]}", &failure));
    assert_false(DECODE(failure, "{\"code\":3}", &failure));
    assert_false(DECODE(failure, "not found", &failure));

    assert_int_equal(DECODE(authenticate, "{\"token\":\"abc.9\"}", token, &error), SHOAL_OK);
    assert_string_equal(token, "abc.9");
    assert_int_equal(DECODE(authenticate, "{\"token\":\"a\\r\\nX: y\"}", token, &error), SHOAL_METADATA);
    assert_int_equal(DECODE(authenticate, "{\"token\":\"\"}", token, &error), SHOAL_METADATA);
    assert_int_equal(DECODE(status, "{\"version\":\"3.4.23\"}", version, sizeof version, &error), SHOAL_OK);
    assert_string_equal(version, "etcd 3.4.23");
    assert_int_equal(DECODE(status, "{\"version\":7}", version, sizeof version, &error), SHOAL_METADATA);
}

static void test_decode_watch(void **state)
{
    (void)state;
    struct shoal_error error;
    struct etcd_watch_answer answer;
    assert_int_equal(DECODE(watch, "{\"result\":{" HEADER ",\"created\":true}}", &answer, &error), SHOAL_OK);
    assert_true(answer.is_created && !answer.is_canceled && answer.count == 0);
    etcd_watch_answer_release(&answer);
    assert_int_equal(DECODE(watch,
                            "{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"5\"}},"
                            "{\"type\":\"DELETE\",\"kv\":{\"key\":\"Yg==\",\"mod_revision\":\"6\"}}]}}",
                            &answer, &error),
                     SHOAL_OK);
    assert_int_equal(answer.count, 2);
    assert_false(answer.events[0].is_delete);
    assert_true(answer.events[1].is_delete);
    assert_string_equal(answer.events[1].entry.key, "b");
    etcd_watch_answer_release(&answer);
    assert_int_equal(
        DECODE(watch, "{\"result\":{\"header\":{},\"canceled\":true,\"compact_revision\":\"9\"}}", &answer, &error),
        SHOAL_OK);
    assert_true(answer.is_canceled);
    assert_int_equal(answer.compact_revision, 9);
    etcd_watch_answer_release(&answer);
    assert_int_equal(DECODE(watch, "{\"error\":{\"message\":\"x\"}}", &answer, &error), SHOAL_OK);
    assert_true(answer.is_failure);
    etcd_watch_answer_release(&answer);
    assert_int_equal(DECODE(watch, "{\"result\":{" HEADER ",\"events\":[{\"type\":\"MOVE\"}]}}", &answer, &error),
                     SHOAL_METADATA);
    assert_int_equal(DECODE(watch, "{\"result\":{" HEADER ",\"events\":[7]}}", &answer, &error), SHOAL_METADATA);
    assert_int_equal(DECODE(watch, "{\"result\":7}", &answer, &error), SHOAL_METADATA);
}

static void test_prefix_end(void **state)
{
    (void)state;
    static const struct {
        const char *prefix, *end; /* end NULL: to the end of all keys */
    } cases[] = {{"", NULL}, {"a", "b"}, {"a\xff", "b"}, {"a\xff\xff", "b"}, {"\xff", NULL}, {"\xfe\xff", "\xff"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t end[META_KEY_MAX_BYTES];
        size_t len = 0;
        bool is_end = false;
        meta_prefix_end(text_bytes(cases[i].prefix), end, &len, &is_end);
        assert_int_equal(is_end, cases[i].end == NULL);
        if (cases[i].end) {
            assert_int_equal(len, strlen(cases[i].end));
            assert_memory_equal(end, cases[i].end, len);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_txn),
        cmocka_unit_test(test_decode_range),
        cmocka_unit_test(test_decode_range_nonsense),
        cmocka_unit_test(test_decode_small_answers),
        cmocka_unit_test(test_decode_watch),
        cmocka_unit_test(test_prefix_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
