/* SPDX-License-Identifier: Apache-2.0 */
/* Manifest, source entry and index: what is written is read back; what is wrong is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/endian.h"
#include "store/index.h"
#include "store/manifest.h"

static uint64_t sizes[] = {70000001, 0, 33333333};

static struct manifest example(void)
{
    struct manifest manifest = {.name = "model/v1",
                                .generation = 0xfedcba9876543210,
                                .total_size = 103333334,
                                .max_shard_size = 64 << 20,
                                .piece_size = 256 << 10,
                                .piece_count = 396,
                                .attachment_len = 5,
                                .size_count = 3,
                                .sizes = sizes};
    manifest.index_len = index_encoded_len(3, 396, 5);
    manifest.index_digest = digest_of("x", 1);
    return manifest;
}

static void manifest_round_trip(void **state)
{
    struct manifest manifest = example(), read;
    struct shoal_error error;
    struct buf text;

    (void)state;
    buf_init(&text, MANIFEST_MAX_BYTES);
    assert_int_equal(manifest_encode(&manifest, &text, &error), SHOAL_OK);
    assert_int_equal(manifest_decode(&read, text.data, text.len, &error), SHOAL_OK);
    assert_string_equal(read.name, manifest.name);
    assert_true(read.generation == manifest.generation);
    assert_int_equal(read.total_size, manifest.total_size);
    assert_int_equal(read.piece_count, 396);
    assert_int_equal(read.size_count, 3);
    assert_memory_equal(read.sizes, sizes, sizeof sizes);
    assert_true(digest_is_equal(&read.index_digest, &manifest.index_digest));
    manifest_release(&read);
    for (size_t len = 0; len < text.len; len++)
        assert_int_equal(manifest_decode(&read, text.data, len, &error), SHOAL_PROTOCOL);
    buf_release(&text);
}

static void replace(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);

    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
}

static void contradictions_are_refused(void **state)
{
    static const char *const changes[][2] = {
        {"\"size\":103333334", "\"size\":103333335"},
        {"\"pieces\":396", "\"pieces\":397"},
        {"\"regions\":3", "\"regions\":4"},
        {"\"v\":1", "\"v\":2"},
        {"\"digest\":\"xxh3-128\"", "\"digest\":\"xxh3-129\""},
        {"\"max_shard_size\":67108864", "\"max_shard_size\":-7108864"},
        {"70000001", "-0000001"},
        {"fedcba98", "FEDCBA98"},
    };
    struct manifest manifest = example(), read;
    struct shoal_error error;

    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct buf text;
        buf_init(&text, MANIFEST_MAX_BYTES);
        assert_int_equal(manifest_encode(&manifest, &text, &error), SHOAL_OK);
        replace((char *)text.data, changes[i][0], changes[i][1]);
        assert_int_equal(manifest_decode(&read, text.data, text.len, &error), SHOAL_PROTOCOL);
        buf_release(&text);
    }
}

static void long_size_lists_stay_out_of_the_manifest(void **state)
{
    size_t count = 20000;
    uint64_t *many = calloc(count, sizeof *many);
    struct manifest manifest = example(), read;
    struct buf text;

    (void)state;
    for (size_t i = 0; i < count; i++)
        many[i] = 123456789;
    manifest.sizes = many;
    manifest.size_count = count;
    manifest.piece_count = (uint32_t)count;
    manifest.index_len = index_encoded_len(count, (uint32_t)count, 5);
    buf_init(&text, MANIFEST_MAX_BYTES);
    assert_int_equal(manifest_encode(&manifest, &text, NULL), SHOAL_OK);
    assert_true(text.len < 1024);
    assert_int_equal(manifest_decode(&read, text.data, text.len, NULL), SHOAL_OK);
    assert_null(read.sizes);
    assert_int_equal(read.size_count, count);
    manifest_release(&read);
    buf_release(&text);
    free(many);
}

static void source_entry_round_trip(void **state)
{
    struct source_entry entry = {
        .name = "[::1]:4711", .address = "[::1]:4711", .instance = 7, .generation = 8, .is_gold = true};
    struct source_entry read;
    struct buf text;

    (void)state;
    buf_init(&text, SOURCE_ENTRY_MAX_BYTES);
    assert_int_equal(source_entry_encode(&entry, &text, NULL), SHOAL_OK);
    assert_int_equal(source_entry_decode(&read, text.data, text.len, NULL), SHOAL_OK);
    assert_string_equal(read.name, entry.name);
    assert_string_equal(read.address, entry.address);
    assert_true(read.instance == 7 && read.generation == 8 && read.is_gold);
    for (size_t len = 0; len < text.len; len++)
        assert_int_equal(source_entry_decode(&read, text.data, len, NULL), SHOAL_PROTOCOL);
    buf_release(&text);
}

static void index_round_trip(void **state)
{
    size_t len = index_encoded_len(3, 2, 5);
    uint8_t *data = malloc(len);
    struct digest first = digest_of("a", 1), second = digest_of("b", 1), read;
    struct index_view view;

    (void)state;
    index_encode(data, sizes, 3, 2, "hello", 5);
    index_set_digest(data, 3, 0, &first);
    index_set_digest(data, 3, 1, &second);
    assert_int_equal(index_decode(&view, data, len), SHOAL_OK);
    assert_int_equal(view.region_count, 3);
    assert_int_equal(index_size(&view, 0), 70000001);
    assert_int_equal(index_size(&view, 2), 33333333);
    read = index_digest(&view, 1);
    assert_true(digest_is_equal(&read, &second));
    assert_int_equal(view.attachment_len, 5);
    assert_memory_equal(view.attachment, "hello", 5);
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(index_decode(&view, data, cut), SHOAL_PROTOCOL);
    put_le64(data + 16, UINT64_MAX / DIGEST_BYTES); /* lengths that overflow */
    assert_int_equal(index_decode(&view, data, len), SHOAL_PROTOCOL);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_round_trip),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(long_size_lists_stay_out_of_the_manifest),
        cmocka_unit_test(source_entry_round_trip),
        cmocka_unit_test(index_round_trip),
    };
    return cmocka_run_group_tests_name("store_codecs", tests, NULL, NULL);
}
