/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices and huge pages, read from a tree of files that looks like /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sysfs.h"
#include "tmpdir.h"

#define IB_GID "fe80:0000:0000:0000:0002:c903:0031:7a41"
#define IB_GLOBAL "2001:0db8:0000:0000:0002:c903:0031:7a41"
#define V4_GID "0000:0000:0000:0000:0000:ffff:0a00:0005"
#define NO_GID "0000:0000:0000:0000:0000:0000:0000:0000"

static char *root; /* owned */
static struct rdma_ports ports;

static int set_up(void **state)
{
    (void)state;
    root = tmpdir_make();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tmpdir_remove(root);
    return 0;
}

/* Makes the file with all directories above it. */
static void make(const char *path, const char *text)
{
    char whole[600];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0755);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_port(const char *device, unsigned port, const char *state, const char *layer)
{
    const char *const files[][2] = {
        {"state", state}, {"phys_state", "5: LinkUp\n"}, {"link_layer", layer}, {"rate", "200 Gb/sec (4X HDR)\n"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[300];
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%u/%s", device, port, files[i][0]);
        make(path, files[i][1]);
    }
}

static void make_gid(const char *device, unsigned index, const char *gid, const char *type, const char *netdev)
{
    const char *const files[][2] = {{"gids", gid}, {"gid_attrs/types", type}, {"gid_attrs/ndevs", netdev}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[300];
        if (!files[i][1])
            continue;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s/%u", device, files[i][0], index);
        make(path, files[i][1]);
    }
}

static void test_nothing(void **state)
{
    struct huge_pages pages;
    (void)state;
    rdma_ports_read(&ports, root);
    assert_int_equal(ports.count, 0);
    assert_int_equal(ports.device_count, 0);
    assert_int_equal(ports.user_files, 0);
    assert_false(ports.has_user_access);
    huge_pages_read(&pages, root);
    assert_int_equal(pages.count, 0);
    assert_string_equal(pages.transparent, "");
    rdma_ports_read(&ports, "/no/such/place");
    assert_int_equal(ports.count, 0);
}

static void test_infiniband(void **state)
{
    (void)state;
    make_port("mlx5_10", 1, "4: ACTIVE\n", "InfiniBand\n");
    make_port("mlx5_2", 1, "4: ACTIVE\n", "InfiniBand\n");
    make_port("mlx5_2", 2, "1: DOWN\n", "InfiniBand\n");
    make_gid("mlx5_2", 0, IB_GID "\n", NULL, NULL);
    make_gid("mlx5_2", 1, NO_GID "\n", NULL, NULL);
    make_gid("mlx5_2", 2, IB_GLOBAL "\n", NULL, NULL);
    make("/dev/infiniband/uverbs0", "");
    make("/dev/infiniband/rdma_cm", "");
    rdma_ports_read(&ports, root);
    assert_int_equal(ports.device_count, 2);
    assert_int_equal(ports.count, 3);
    /* In the order of people, not of characters. */
    assert_string_equal(ports.items[0].device, "mlx5_2");
    assert_int_equal(ports.items[0].number, 1);
    assert_int_equal(ports.items[1].number, 2);
    assert_string_equal(ports.items[2].device, "mlx5_10");
    assert_string_equal(ports.items[0].state, "ACTIVE");
    assert_string_equal(ports.items[0].physical, "LinkUp");
    assert_string_equal(ports.items[0].link_layer, "InfiniBand");
    assert_string_equal(ports.items[0].rate, "200 Gb/sec (4X HDR)");
    assert_true(ports.items[0].is_active);
    assert_int_equal(ports.items[0].gid_count, 2);
    assert_string_equal(ports.items[0].gid, IB_GLOBAL);
    assert_false(ports.items[1].is_active);
    assert_string_equal(ports.items[1].state, "DOWN");
    assert_int_equal(ports.items[2].gid_count, 0);
    assert_int_equal(ports.user_files, 1);
    assert_true(ports.has_user_access);
}

/* RoCE v2 with an IPv4 address is what is used, wherever it stands in the table. */
static void test_ethernet(void **state)
{
    (void)state;
    make_port("rocep1", 1, "4: ACTIVE\n", "Ethernet\n");
    make_gid("rocep1", 0, IB_GID "\n", "IB/RoCE v1\n", "eth2\n");
    make_gid("rocep1", 1, IB_GID "\n", "RoCE v2\n", "eth2\n");
    make_gid("rocep1", 2, V4_GID "\n", "IB/RoCE v1\n", "eth2\n");
    make_gid("rocep1", 3, V4_GID "\n", "RoCE v2\n", "eth2\n");
    rdma_ports_read(&ports, root);
    assert_int_equal(ports.count, 1);
    assert_int_equal(ports.items[0].gid_count, 4);
    assert_string_equal(ports.items[0].gid, V4_GID);
    assert_string_equal(ports.items[0].gid_type, "RoCE v2");
    assert_string_equal(ports.items[0].netdev, "eth2");
    assert_int_equal(ports.user_files, 0);
}

/* Files that are missing, empty, much too long, or not what they should be. */
static void test_nonsense(void **state)
{
    char longer[4000], name[RDMA_NAME_BYTES + 40];
    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    make_port("a", 1, "", "");
    make_port("b", 1, longer, longer);
    make_gid("b", 0, longer, longer, longer);
    make("/sys/class/infiniband/c/ports/x/nothing", "");
    make("/sys/class/infiniband/d/node_type", "1: CA\n");
    make_port(name, 1, "4: ACTIVE\n", "Ethernet\n");
    rdma_ports_read(&ports, root);
    assert_int_equal(ports.device_count, 5);
    assert_int_equal(ports.count, 4);
    assert_string_equal(ports.items[0].state, "");
    assert_false(ports.items[0].is_active);
    assert_int_equal(ports.items[1].gid_count, 1);
    assert_int_equal(strlen(ports.items[1].state), sizeof ports.items[1].state - 1);
    assert_int_equal(ports.items[2].number, 0);
}

static void test_bound(void **state)
{
    char name[32];
    (void)state;
    for (int i = 0; i < RDMA_PORTS_MAX + 3; i++) {
        snprintf(name, sizeof name, "mlx5_%d", i);
        make_port(name, 1, "4: ACTIVE\n", "InfiniBand\n");
    }
    rdma_ports_read(&ports, root);
    assert_int_equal(ports.count, RDMA_PORTS_MAX);
    assert_int_equal(ports.left_out, 3);
    assert_int_equal(ports.device_count, RDMA_PORTS_MAX + 3);
}

static void test_huge_pages(void **state)
{
    struct huge_pages pages;
    (void)state;
    make("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
    make("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
    make("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
    make("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n");
    make("/sys/kernel/mm/hugepages/something", "");
    make("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    huge_pages_read(&pages, root);
    assert_int_equal(pages.count, 2);
    assert_int_equal(pages.sizes[0].size_bytes, 2 << 20);
    assert_int_equal(pages.sizes[0].free, 512);
    assert_int_equal(pages.sizes[1].size_bytes, 1 << 30);
    assert_int_equal(pages.sizes[1].total, 2);
    assert_int_equal(pages.sizes[1].free, 1);
    assert_string_equal(pages.transparent, "madvise");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_infiniband, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ethernet, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nonsense, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bound, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_huge_pages, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
