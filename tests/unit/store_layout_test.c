/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting payloads into pieces, and finding payload offsets in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "store/layout.h"

static void check_cut(const uint64_t *sizes, size_t count, uint64_t shard, uint64_t piece)
{
    struct layout layout;
    uint64_t at = 0;

    assert_int_equal(layout_init(&layout, sizes, count, shard, piece, NULL), SHOAL_OK);
    for (uint32_t i = 0; i < layout.piece_count; i++) {
        uint64_t offset, len;
        size_t region = 0;

        layout_piece(&layout, i, &offset, &len);
        assert_int_equal(offset, at); /* no gap, no overlap */
        assert_true(len >= 1 && len <= layout.piece_size);
        while (offset >= layout.starts[region + 1])
            region++;
        assert_true(offset + len <= layout.starts[region + 1]); /* inside one region */
        assert_int_equal((offset - layout.starts[region]) / shard, (offset + len - 1 - layout.starts[region]) / shard);
        at += len;
    }
    assert_int_equal(at, layout.total_size);
    layout_release(&layout);
}

static void every_byte_is_in_exactly_one_piece(void **state)
{
    const uint64_t odd[] = {70000001, 33333333}, holes[] = {0, 64 << 20, 0}, tiny[] = {1, 0, 2, 3}, none[] = {0};

    (void)state;
    check_cut(odd, 2, 64 << 20, 256 << 10);
    check_cut(odd, 2, 1000003, 4096);
    check_cut(holes, 3, 64 << 20, 1 << 20);
    check_cut(tiny, 4, 1, 1);
    check_cut(tiny, 4, 2, 5);
    check_cut(none, 1, 64 << 20, 1 << 20);
}

static void bad_sizes_are_refused(void **state)
{
    const uint64_t huge[] = {UINT64_MAX, 1}, large[] = {UINT64_C(1) << 40}, one[] = {1};
    struct layout layout;
    struct shoal_error error;

    (void)state;
    assert_int_equal(layout_init(&layout, huge, 2, UINT64_C(1) << 62, UINT64_C(1) << 62, &error),
                     SHOAL_INVALID_ARGUMENT);
    assert_int_equal(layout_init(&layout, large, 1, 1, 1, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "choose larger"));
    assert_int_equal(layout_init(&layout, one, 1, 0, 1, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(layout_init(&layout, one, 1, 1, 0, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(layout_init(&layout, one, 0, 1, 1, &error), SHOAL_INVALID_ARGUMENT);
}

static void piece_size_follows_the_payload(void **state)
{
    (void)state;
    assert_int_equal(layout_choose_piece_size(0, 64 << 20), 256 << 10);
    assert_int_equal(layout_choose_piece_size(300 << 20, 64 << 20), 256 << 10);
    assert_int_equal(layout_choose_piece_size(UINT64_C(2) << 30, 64 << 20), 1 << 20);
    assert_int_equal(layout_choose_piece_size(UINT64_C(1) << 40, 64 << 20), 4 << 20);
    assert_int_equal(layout_choose_piece_size(UINT64_C(1) << 40, 4096), 4096);
}

static void offsets_are_found_in_spans(void **state)
{
    struct span_map map;

    (void)state;
    assert_int_equal(span_map_init(&map, 4, NULL), SHOAL_OK);
    assert_true(span_map_add(&map, 1000, 10, 1));
    assert_true(span_map_add(&map, 5, 0, 2)); /* nothing lies in it */
    assert_true(span_map_add(&map, 2000, 1, 3));
    assert_true(span_map_add(&map, 3000, 20, 4));
    assert_false(span_map_add(&map, UINT64_MAX - 1, 10, 5));
    assert_int_equal(map.total, 31);
    assert_int_equal(span_map_find(&map, 0)->key, 1);
    assert_int_equal(span_map_find(&map, 9)->key, 1);
    assert_int_equal(span_map_find(&map, 10)->key, 3);
    assert_int_equal(span_map_find(&map, 11)->key, 4);
    assert_int_equal(span_map_find(&map, 30)->start, 11);
    span_map_release(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_in_exactly_one_piece),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(piece_size_follows_the_payload),
        cmocka_unit_test(offsets_are_found_in_spans),
    };
    return cmocka_run_group_tests_name("store_layout", tests, NULL, NULL);
}
