/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of control groups, read from files that a test has made. */
#include "unit.h"

#include <errno.h>
#include <sys/stat.h>

#include "tier/memory_limit.h"
#include "tmpdir.h"

/* Makes the directories of the path, too. */
static void write_at(const char *root, const char *name, const char *text)
{
    char *path = tmpdir_path(root, name);
    FILE *file;

    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static uint64_t limit(const char *root, const char *groups)
{
    char *file = tmpdir_path(root, "cgroup");
    uint64_t bytes;

    write_at(root, "cgroup", groups);
    bytes = memory_limit_of_groups(file, root);
    free(file);
    return bytes;
}

static void version_2(void **state)
{
    char *root = tmpdir_make();

    (void)state;
    write_at(root, "a/memory.max", "max\n");
    write_at(root, "a/b/memory.max", "1000000\n");
    write_at(root, "a/b/c/memory.max", "max\n");
    write_at(root, "a/d/memory.max", "2000000\n");
    assert_true(limit(root, "0::/\n") == UINT64_MAX);
    assert_true(limit(root, "0::/a\n") == UINT64_MAX);
    assert_true(limit(root, "0::/a/b/c\n") == 1000000); /* of the one above */
    assert_true(limit(root, "0::/a/d\n") == 2000000);
    assert_true(limit(root, "0::/not/seen/here\n") == UINT64_MAX);
    write_at(root, "memory.max", "500000\n"); /* a container's own group is the root for it */
    assert_true(limit(root, "0::/not/seen/here\n") == 500000);
    assert_true(limit(root, "0::/a/d\n") == 500000);
    tmpdir_remove(root);
}

static void version_1(void **state)
{
    char *root = tmpdir_make();

    (void)state;
    write_at(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_at(root, "memory/a/memory.limit_in_bytes", "3000000\n");
    write_at(root, "a/memory.max", "1\n");
    assert_true(limit(root, "5:cpu,cpuacct:/a\n4:memory:/a\n") == 3000000);
    assert_true(limit(root, "4:hugetlb,memory:/a/b\n1:name=systemd:/a\n") == 3000000);
    assert_true(limit(root, "4:memoryx:/a\n") == UINT64_MAX);
    assert_true(limit(root, "4:memory:/\n") == UINT64_C(9223372036854771712));
    tmpdir_remove(root);
}

static void what_is_not_there_limits_nothing(void **state)
{
    char *root = tmpdir_make();

    (void)state;
    assert_true(memory_limit_of_groups("/nonexistent", root) == UINT64_MAX);
    assert_true(limit(root, "") == UINT64_MAX);
    assert_true(limit(root, "nonsense\n:\n0:\n") == UINT64_MAX);
    write_at(root, "memory.max", "");
    assert_true(limit(root, "0::/\n") == UINT64_MAX);
    write_at(root, "memory.max", "99999999999999999999999\n");
    assert_true(limit(root, "0::/\n") == UINT64_MAX);
    assert_true(memory_limit_bytes() > 0);
    tmpdir_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_2),
        cmocka_unit_test(version_1),
        cmocka_unit_test(what_is_not_there_limits_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
