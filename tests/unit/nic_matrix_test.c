/* SPDX-License-Identifier: Apache-2.0 */
/* Locations and the NIC priority matrix: what is accepted, what is chosen, and the message of everything that is not
 * accepted. */
#include "unit.h"

#include "base/buf.h"
#include "transport/nic_matrix.h"

static struct nic_matrix *parse(const char *text)
{
    struct nic_matrix *matrix;
    struct shoal_error error = {0};

    if (nic_matrix_parse(text, strlen(text), &matrix, &error) != SHOAL_OK)
        fail_msg("'%s': %s", text, error.message);
    return matrix;
}

static struct location at(const char *text)
{
    struct location location;
    struct shoal_error error = {0};

    if (location_parse(text, &location, &error) != SHOAL_OK)
        fail_msg("'%s': %s", text, error.message);
    return location;
}

/* "LOCATION: preferred | fallback" of the row that serves memory there. */
static const char *chosen(const struct nic_matrix *matrix, const char *location_text)
{
    static char text[256];
    struct location location = at(location_text);
    const struct nic_row *row = nic_matrix_choose(matrix, &location);
    char row_location[LOCATION_TEXT_BYTES];
    size_t used;

    assert_non_null(row);
    location_format(&row->location, row_location);
    used = (size_t)snprintf(text, sizeof text, "%s:", row_location);
    for (size_t i = 0; i < row->preferred.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", row->preferred.names[i]);
    used += (size_t)snprintf(text + used, sizeof text - used, " |");
    for (size_t i = 0; i < row->fallback.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", row->fallback.names[i]);
    return text;
}

static void locations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum location_kind kind;
        unsigned index;
    } good[] = {{"*", LOCATION_ANY, 0},
                {"cpu:0", LOCATION_CPU, 0},
                {"cpu:1023", LOCATION_CPU, 1023},
                {"cuda:7", LOCATION_CUDA, 7}};
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "\"\" is neither \"cpu:N\", \"cuda:N\" nor \"*\""},
        {"cpu", "neither"},
        {"cpu:", "neither"},
        {"cpu:x", "neither"},
        {"cpu:-1", "neither"},
        {"cpu:+1", "neither"},
        {"cpu: 1", "neither"},
        {"cpu:1 ", "neither"},
        {"cpu:01", "neither"},
        {"CPU:0", "neither"},
        {"npu:0", "\"npu:0\" is neither"},
        {"**", "neither"},
        {"cpu:1024", "at most 1023"},
        {"cuda:99999999999999999999999", "at most 1023"},
    };
    char text[LOCATION_TEXT_BYTES];
    struct shoal_error error;
    struct location location;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        location = at(good[i].text);
        assert_int_equal(location.kind, good[i].kind);
        assert_int_equal(location.index, good[i].index);
        location_format(&location, text);
        assert_string_equal(text, good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(location_parse(bad[i].text, &location, &error), SHOAL_INVALID_ARGUMENT);
        if (!strstr(error.message, bad[i].message))
            fail_msg("'%s' gave: %s", bad[i].text, error.message);
    }
}

static void rows_and_choice(void **state)
{
    (void)state;
    struct nic_matrix *matrix = parse("{\"cpu:0\": [[\"mlx5_0\", \"mlx5_1\"], [\"mlx5_2\"]],\n"
                                      " \"cuda:1\": [[\"mlx5_3\"], []], \"*\": [[\"mlx5_2\"], [\"mlx5_0\"]]}");
    struct nic_list devices = nic_matrix_devices(matrix);

    assert_false(nic_matrix_is_empty(matrix));
    assert_int_equal(nic_matrix_row_count(matrix), 3);
    assert_int_equal(nic_matrix_row(matrix, 1)->location.kind, LOCATION_CUDA);
    assert_int_equal(devices.count, 4);
    assert_string_equal(devices.names[0], "mlx5_0");
    assert_string_equal(devices.names[3], "mlx5_3");
    assert_string_equal(chosen(matrix, "cpu:0"), "cpu:0: mlx5_0 mlx5_1 | mlx5_2");
    assert_string_equal(chosen(matrix, "cuda:1"), "cuda:1: mlx5_3 |");
    assert_string_equal(chosen(matrix, "*"), "*: mlx5_2 | mlx5_0");
    assert_string_equal(chosen(matrix, "cpu:1"), "*: mlx5_2 | mlx5_0");
    assert_string_equal(chosen(matrix, "cuda:0"), "*: mlx5_2 | mlx5_0");
    nic_matrix_destroy(matrix);
}

static void choice_without_a_wildcard_row(void **state)
{
    (void)state;
    struct nic_matrix *matrix = parse("{\"cpu:0\": [[\"a\"], [\"b\"]]}");

    assert_string_equal(chosen(matrix, "cpu:0"), "cpu:0: a | b");
    assert_string_equal(chosen(matrix, "cuda:0"), "*: a | b");
    nic_matrix_destroy(matrix);
    matrix = parse("{\"cpu:1\": [[\"b\"], [\"c\"]], \"cpu:0\": [[\"a\"], [\"b\", \"d\"]]}");
    assert_string_equal(chosen(matrix, "*"), "*: b a | c d");
    assert_string_equal(chosen(matrix, "cpu:2"), "*: b a | c d");
    assert_string_equal(chosen(matrix, "cpu:0"), "cpu:0: a | b d");
    nic_matrix_destroy(matrix);
}

static void empty_matrix(void **state)
{
    (void)state;
    static const char *const texts[] = {"", " \r\n\t", "{}", " { } "};
    const struct location anywhere = at("*");

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct nic_matrix *matrix = parse(texts[i]);
        struct buf text;

        assert_true(nic_matrix_is_empty(matrix));
        assert_null(nic_matrix_choose(matrix, &anywhere));
        assert_int_equal(nic_matrix_devices(matrix).count, 0);
        assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", NULL, 0, NULL), SHOAL_OK);
        buf_init(&text, 64);
        assert_true(nic_matrix_format(matrix, &text));
        assert_string_equal(text.data, "{}\n");
        buf_release(&text);
        nic_matrix_destroy(matrix);
    }
    nic_matrix_destroy(NULL);
}

static void wrong_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message; /* the message contains this */
    } cases[] = {
        {"{", "not JSON"},
        {"cpu:0", "line 1, column 3: not JSON (invalid token near 'cpu')"},
        {"{\"cpu:0\": [[\"a\"], []]", "not JSON"},
        {"{\"cpu:0\":\n [[\"a\"], [,]]}", "line 2, column 11: not JSON"},
        {"{} {}", "not JSON"},
        {"{\"cpu:0\": [[\"a\\u0000\"], []]}", "not JSON"},
        {"[]", "NIC priority matrix: it must be an object as {\"cpu:0\": [[\"mlx5_0\"], [\"mlx5_1\"]]}, not a list"},
        {"\"mlx5_0\"", "not a text"},
        {"null", "not null"},
        {"1", "not a number"},
        {"{\"npu:0\": [[\"a\"], []]}", "location \"npu:0\" is neither \"cpu:N\", \"cuda:N\" nor \"*\""},
        {"{\"cpu:01\": [[\"a\"], []]}", "location \"cpu:01\" is neither"},
        {"{\"cpu:4096\": [[\"a\"], []]}", "location \"cpu:4096\": the number is at most 1023"},
        {"{\"cpu:0\": [[\"a\"], []], \"cpu:0\": [[\"b\"], []]}", "a location appears twice (duplicate object key"},
        {"{\"cpu:0\": \"a\"}", "cpu:0: a row is [[preferred], [fallback]], not a text"},
        {"{\"cpu:0\": {\"a\": 1}}", "not an object"},
        {"{\"cpu:0\": null}", "not null"},
        {"{\"cpu:0\": []}", "two lists, [[preferred], [fallback]] (the second may be empty), not 0"},
        {"{\"cpu:0\": [[\"a\"]]}", "not 1"},
        {"{\"cpu:0\": [[\"a\"], [], []]}", "not 3"},
        {"{\"cpu:0\": [\"a\", \"b\"]}", "cpu:0: the preferred devices must be a list of names, not a text"},
        {"{\"cpu:0\": [[\"a\"], \"b\"]}", "cpu:0: the fallback devices must be a list of names, not a text"},
        {"{\"cpu:0\": [[1], []]}", "cpu:0: a preferred device must be a name in quotes, not a number"},
        {"{\"cpu:0\": [[\"a\"], [true]]}", "cpu:0: a fallback device must be a name in quotes, not a boolean"},
        {"{\"cpu:0\": [[[\"a\"]], []]}", "not a list"},
        {"{\"cpu:0\": [[], [\"a\"]]}", "cpu:0: the list of preferred devices is empty"},
        {"{\"cpu:0\": [[\"a\"], []], \"cuda:2\": [[], []]}", "cuda:2: the list of preferred devices is empty"},
        {"{\"*\": [[\"a\", \"b\", \"a\"], []]}", "*: device \"a\" appears twice"},
        {"{\"*\": [[\"a\"], [\"b\", \"a\"]]}", "*: device \"a\" appears twice"},
        {"{\"*\": [[\"a\"], [\"b\", \"b\"]]}", "*: device \"b\" appears twice"},
        {"{\"*\": [[\"\"], []]}", "*: \"\" is no device name"},
        {"{\"*\": [[\"a,b\"], []]}", "\"a,b\" is no device name"},
        {"{\"*\": [[\"a b\"], []]}", "\"a b\" is no device name"},
        {"{\"*\": [[\"../../etc\"], []]}", "is no device name"},
        {"{\"*\": [[\"..\"], []]}", "is no device name"},
        {"{\"*\": [[\"m\u00e9\"], []]}", "is no device name"},
        {"{\"*\": [[\"0123456789012345678901234567890123456789012345678901234567890123\"], []]}", "is no device name"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nic_matrix *matrix = NULL;
        struct shoal_error error = {0};

        assert_int_equal(nic_matrix_parse(cases[i].text, strlen(cases[i].text), &matrix, &error),
                         SHOAL_INVALID_ARGUMENT);
        assert_null(matrix);
        assert_int_equal(strncmp(error.message, "NIC priority matrix: ", 21), 0);
        if (!strstr(error.message, cases[i].message))
            fail_msg("'%s' gave: %s", cases[i].text, error.message);
    }
}

/* {"*": [["d0", "d1", ...], []]} and {"cpu:0": [["d"], []], "cpu:1": ...}. */
static void bounds(void **state)
{
    (void)state;
    struct buf text;
    struct nic_matrix *matrix;
    struct shoal_error error;

    for (size_t count = NIC_MATRIX_DEVICES_MAX; count <= NIC_MATRIX_DEVICES_MAX + 1; count++) {
        buf_init(&text, 1 << 20);
        assert_true(buf_append_str(&text, "{\"*\": [[\"d0\"], ["));
        for (size_t i = 1; i < count; i++)
            assert_true(buf_append_format(&text, "%s\"d%zu\"", i > 1 ? "," : "", i));
        assert_true(buf_append_str(&text, "]]}"));
        if (count <= NIC_MATRIX_DEVICES_MAX) {
            assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_OK);
            nic_matrix_destroy(matrix);
        } else {
            assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "*: more than 128 devices"));
        }
        buf_release(&text);
    }
    for (size_t count = NIC_MATRIX_ROWS_MAX; count <= NIC_MATRIX_ROWS_MAX + 1; count++) {
        buf_init(&text, 1 << 20);
        for (size_t i = 0; i < count; i++)
            assert_true(buf_append_format(&text, "%s\"cpu:%zu\": [[\"d\"], []]", i ? "," : "{", i));
        assert_true(buf_append_str(&text, "}"));
        if (count <= NIC_MATRIX_ROWS_MAX) {
            assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_OK);
            nic_matrix_destroy(matrix);
        } else {
            assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "more than 256 locations"));
        }
        buf_release(&text);
    }
    /* Each row is short enough, all rows name too many. */
    buf_init(&text, 1 << 20);
    for (size_t i = 0; i <= NIC_MATRIX_DEVICES_MAX; i++)
        assert_true(buf_append_format(&text, "%s\"cpu:%zu\": [[\"d%zu\"], []]", i ? "," : "{", i, i));
    assert_true(buf_append_str(&text, "}"));
    assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "more than 128 different devices"));
    buf_release(&text);
    buf_init(&text, NIC_MATRIX_TEXT_MAX_BYTES + 8);
    assert_true(buf_append_str(&text, "{"));
    while (text.len < NIC_MATRIX_TEXT_MAX_BYTES)
        assert_true(buf_append_str(&text, " "));
    assert_true(buf_append_str(&text, "}"));
    assert_int_equal(nic_matrix_parse((char *)text.data, text.len, &matrix, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "262145 bytes are too long; at most 262144"));
    buf_release(&text);
}

/* A row that is refused leaves no trace. */
static void refused_row_changes_nothing(void **state)
{
    (void)state;
    struct nic_matrix *matrix = parse("{\"cpu:0\": [[\"a\"], []]}");
    const struct location location = at("cpu:1");
    const char *const twice[] = {"x", "y", "x"}, *const fine[] = {"b"};
    struct shoal_error error;

    assert_int_equal(nic_matrix_add(matrix, &location, twice, 3, NULL, 0, &error), SHOAL_INVALID_ARGUMENT);
    assert_int_equal(nic_matrix_devices(matrix).count, 1);
    assert_int_equal(nic_matrix_row_count(matrix), 1);
    assert_string_equal(chosen(matrix, "cpu:1"), "*: a |");
    assert_int_equal(nic_matrix_add(matrix, &location, fine, 1, NULL, 0, &error), SHOAL_OK);
    assert_string_equal(chosen(matrix, "cpu:1"), "cpu:1: b |");
    assert_string_equal(chosen(matrix, "*"), "*: a b |");
    assert_int_equal(nic_matrix_add(matrix, &location, fine, 1, NULL, 0, &error), SHOAL_INVALID_ARGUMENT);
    assert_string_equal(error.message, "location \"cpu:1\" appears twice");
    nic_matrix_destroy(matrix);
}

static void devices_that_are_missing(void **state)
{
    (void)state;
    struct nic_matrix *matrix = parse("{\"cpu:0\": [[\"mlx5_0\"], [\"mlx5_8\"]], \"cuda:1\": [[\"mlx5_9\"], []]}");
    const char *const all[] = {"mlx5_9", "mlx5_8", "mlx5_1", "mlx5_0"};
    const char *many[64];
    char names[64][NIC_NAME_MAX_BYTES + 1];
    struct shoal_error error;

    assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", all, 4, &error), SHOAL_OK);
    assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", all + 2, 2, &error), SHOAL_INVALID_ARGUMENT);
    assert_string_equal(error.message, "NIC priority matrix: cpu:0 asks for mlx5_8, mlx5_9, which is no RDMA device of "
                                       "this machine; present: mlx5_1, mlx5_0");
    assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", all + 1, 3, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "cuda:1 asks for mlx5_9,"));
    assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", NULL, 0, &error), SHOAL_UNSUPPORTED);
    assert_string_equal(error.message, "NIC priority matrix: cpu:0 asks for mlx5_0, mlx5_8, mlx5_9, but this machine "
                                       "has no RDMA device; an empty matrix means TCP");
    for (size_t i = 0; i < 64; i++) {
        memset(names[i], 'n', NIC_NAME_MAX_BYTES);
        names[i][NIC_NAME_MAX_BYTES] = '\0';
        many[i] = names[i];
    }
    assert_int_equal(nic_matrix_check_present(matrix, "RDMA device", many, 64, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, " and 62 more"));
    nic_matrix_destroy(matrix);
}

static void text_of_a_matrix(void **state)
{
    (void)state;
    struct nic_matrix *matrix = parse("{\"*\":[[\"b\"],[]],\"cpu:0\":[[\"a\",\"b\"],[\"c\"]]}");
    struct buf text, small;

    buf_init(&text, 4096);
    assert_true(nic_matrix_format(matrix, &text));
    assert_string_equal(text.data, "{\n  \"*\": [[\"b\"], []],\n  \"cpu:0\": [[\"a\", \"b\"], [\"c\"]]\n}\n");
    for (size_t max = 0; max < text.len; max++) {
        buf_init(&small, max);
        assert_false(nic_matrix_format(matrix, &small));
        buf_release(&small);
    }
    buf_release(&text);
    nic_matrix_destroy(matrix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locations),
        cmocka_unit_test(rows_and_choice),
        cmocka_unit_test(choice_without_a_wildcard_row),
        cmocka_unit_test(empty_matrix),
        cmocka_unit_test(wrong_inputs),
        cmocka_unit_test(bounds),
        cmocka_unit_test(refused_row_changes_nothing),
        cmocka_unit_test(devices_that_are_missing),
        cmocka_unit_test(text_of_a_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
