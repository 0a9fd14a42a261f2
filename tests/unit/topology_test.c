/* SPDX-License-Identifier: Apache-2.0 */
/* Topology: a made-up machine of two sockets, made-up RDMA devices without PCI, latencies between nodes, and what is no
 * topology. argv[1] is tests/lib/two_sockets.xml, two sockets, each with two PCI switches of two GPUs and two RDMA
 * NICs; one more NIC that is down. It has no comment: hwloc's own parser, without the plugin for libxml2, knows none.
 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "tmpdir.h"
#include "transport/topology.h"

static const char *two_sockets;

static struct topology *load(const char *path)
{
    struct topology *topology;
    struct shoal_error error = {0};

    if (topology_load_xml(path, &topology, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return topology;
}

static struct topology *discover(const char *sysfs)
{
    struct topology *topology;
    struct shoal_error error = {0};

    if (topology_discover(sysfs, &topology, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    return topology;
}

static void write_file(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The folders above it are made, too. */
static void write_file(const char *text, const char *format, ...)
{
    char path[512];
    va_list arguments;
    FILE *file;

    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_matrix(const struct topology *topology, const char *expected)
{
    struct nic_matrix *matrix;
    struct shoal_error error = {0};
    struct buf text;

    if (topology_propose_matrix(topology, &matrix, &error) != SHOAL_OK)
        fail_msg("%s", error.message);
    buf_init(&text, 1 << 20);
    assert_true(nic_matrix_format(matrix, &text));
    assert_string_equal(text.data, expected);
    buf_release(&text);
    nic_matrix_destroy(matrix);
}

static struct topology_distance between(const struct topology *topology, const char *gpu, const char *rdma)
{
    return topology_distance(topology, topology_find(topology, TOPOLOGY_GPU, gpu),
                             topology_find(topology, TOPOLOGY_RDMA, rdma));
}

static void devices_of_two_sockets(void **state)
{
    (void)state;
    struct topology *topology = load(two_sockets);
    const struct topology_device *device;
    size_t counts[3] = {0};

    assert_int_equal(topology_node_count(topology), 2);
    assert_int_equal(topology_node(topology, 1)->index, 1);
    assert_int_equal(topology_node(topology, 1)->cpus, 2);
    assert_int_equal(topology_node(topology, 1)->memory_bytes, (uint64_t)512 << 30);
    for (size_t i = 0; i < topology_device_count(topology); i++)
        counts[topology_device(topology, i)->kind]++;
    assert_int_equal(counts[TOPOLOGY_NET], 9);
    assert_int_equal(counts[TOPOLOGY_RDMA], 9);
    assert_int_equal(counts[TOPOLOGY_GPU], 8);
    device = topology_find(topology, TOPOLOGY_RDMA, "mlx5_5");
    assert_non_null(device);
    assert_string_equal(device->pci, "0000:9c:00.0");
    assert_string_equal(device->detail, "ib5");
    assert_int_equal(device->numa_node, 1);
    assert_int_equal(device->state, TOPOLOGY_STATE_UP);
    assert_int_equal(topology_find(topology, TOPOLOGY_RDMA, "mlx5_8")->state, TOPOLOGY_STATE_DOWN);
    device = topology_find(topology, TOPOLOGY_GPU, "cuda:4");
    assert_string_equal(device->pci, "0000:99:00.0");
    assert_string_equal(device->detail, "H100");
    device = topology_find(topology, TOPOLOGY_NET, "eno1");
    assert_string_equal(device->detail, "02:00:00:00:00:01");
    assert_int_equal(device->numa_node, 0);
    assert_null(topology_find(topology, TOPOLOGY_NET, "mlx5_0"));
    topology_destroy(topology);
    topology_destroy(NULL);
}

static void distances_of_two_sockets(void **state)
{
    (void)state;
    struct topology *topology = load(two_sockets);
    const struct topology_device *near = topology_find(topology, TOPOLOGY_RDMA, "mlx5_0");
    struct topology_distance distance;

    distance = between(topology, "cuda:0", "mlx5_0");
    assert_int_equal(distance.class, TOPOLOGY_SAME_SWITCH);
    assert_int_equal(distance.steps, 0);
    distance = between(topology, "cuda:0", "mlx5_1");
    assert_int_equal(distance.class, TOPOLOGY_SAME_SWITCH);
    assert_int_equal(distance.steps, 2);
    distance = between(topology, "cuda:0", "mlx5_2");
    assert_int_equal(distance.class, TOPOLOGY_SAME_ROOT);
    distance = between(topology, "cuda:0", "mlx5_4");
    assert_int_equal(distance.class, TOPOLOGY_FAR);
    assert_int_equal(distance.steps, 21);
    assert_int_equal(topology_node_distance(topology, topology_node(topology, 0), near).class, TOPOLOGY_SAME_NODE);
    distance = topology_node_distance(topology, topology_node(topology, 1), near);
    assert_int_equal(distance.class, TOPOLOGY_FAR);
    assert_int_equal(distance.steps, 21);
    /* A network device and the RDMA device of one card. */
    distance = topology_distance(topology, topology_find(topology, TOPOLOGY_NET, "ib0"), near);
    assert_int_equal(distance.class, TOPOLOGY_SAME_SWITCH);
    assert_int_equal(distance.steps, 0);
    assert_string_equal(topology_class_name(TOPOLOGY_SAME_SWITCH), "switch");
    assert_string_equal(topology_class_name(TOPOLOGY_FAR), "far");
    topology_destroy(topology);
}

/* mlx5_8 is down: nobody is sent there. */
static void matrix_of_two_sockets(void **state)
{
    (void)state;
    struct topology *topology = load(two_sockets);

    expect_matrix(topology, "{\n"
                            "  \"cpu:0\": [[\"mlx5_0\", \"mlx5_1\", \"mlx5_2\", \"mlx5_3\"],"
                            " [\"mlx5_4\", \"mlx5_5\", \"mlx5_6\", \"mlx5_7\"]],\n"
                            "  \"cpu:1\": [[\"mlx5_4\", \"mlx5_5\", \"mlx5_6\", \"mlx5_7\"],"
                            " [\"mlx5_0\", \"mlx5_1\", \"mlx5_2\", \"mlx5_3\"]],\n"
                            "  \"cuda:0\": [[\"mlx5_0\"], [\"mlx5_1\", \"mlx5_2\", \"mlx5_3\", \"mlx5_4\", \"mlx5_5\", "
                            "\"mlx5_6\", \"mlx5_7\"]],\n"
                            "  \"cuda:1\": [[\"mlx5_1\"], [\"mlx5_0\", \"mlx5_2\", \"mlx5_3\", \"mlx5_4\", \"mlx5_5\", "
                            "\"mlx5_6\", \"mlx5_7\"]],\n"
                            "  \"cuda:2\": [[\"mlx5_2\"], [\"mlx5_3\", \"mlx5_0\", \"mlx5_1\", \"mlx5_4\", \"mlx5_5\", "
                            "\"mlx5_6\", \"mlx5_7\"]],\n"
                            "  \"cuda:3\": [[\"mlx5_3\"], [\"mlx5_2\", \"mlx5_0\", \"mlx5_1\", \"mlx5_4\", \"mlx5_5\", "
                            "\"mlx5_6\", \"mlx5_7\"]],\n"
                            "  \"cuda:4\": [[\"mlx5_4\"], [\"mlx5_5\", \"mlx5_6\", \"mlx5_7\", \"mlx5_0\", \"mlx5_1\", "
                            "\"mlx5_2\", \"mlx5_3\"]],\n"
                            "  \"cuda:5\": [[\"mlx5_5\"], [\"mlx5_4\", \"mlx5_6\", \"mlx5_7\", \"mlx5_0\", \"mlx5_1\", "
                            "\"mlx5_2\", \"mlx5_3\"]],\n"
                            "  \"cuda:6\": [[\"mlx5_6\"], [\"mlx5_7\", \"mlx5_4\", \"mlx5_5\", \"mlx5_0\", \"mlx5_1\", "
                            "\"mlx5_2\", \"mlx5_3\"]],\n"
                            "  \"cuda:7\": [[\"mlx5_7\"], [\"mlx5_6\", \"mlx5_4\", \"mlx5_5\", \"mlx5_0\", \"mlx5_1\", "
                            "\"mlx5_2\", \"mlx5_3\"]]\n"
                            "}\n");
    topology_destroy(topology);
}

/* Four nodes, RDMA at nodes 0 and 1 only: each other node prefers the one that it reaches sooner. */
static void nodes_without_a_device_take_the_nearest(void **state)
{
    (void)state;
    char *dir = tmpdir_make();
    struct topology *topology;
    struct buf xml;
    char path[300];

    buf_init(&xml, 1 << 16);
    assert_true(buf_append_str(&xml, "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object type=\"Machine\" "
                                     "os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" nodeset=\"0xf\" "
                                     "complete_nodeset=\"0xf\" gp_index=\"1\">\n"));
    for (unsigned i = 0; i < 4; i++) {
        const unsigned bit = 1u << i;

        assert_true(buf_append_format(
            &xml,
            "<object type=\"Package\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\" "
            "complete_nodeset=\"0x%x\" gp_index=\"%u\"><object type=\"NUMANode\" os_index=\"%u\" cpuset=\"0x%x\" "
            "complete_cpuset=\"0x%x\" nodeset=\"0x%x\" complete_nodeset=\"0x%x\" gp_index=\"%u\" "
            "local_memory=\"4096\"/><object type=\"PU\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" "
            "nodeset=\"0x%x\" complete_nodeset=\"0x%x\" gp_index=\"%u\"/>",
            i, bit, bit, bit, bit, 10 + i, i, bit, bit, bit, bit, 20 + i, i, bit, bit, bit, bit, 30 + i));
        if (i < 2)
            assert_true(buf_append_format(
                &xml,
                "<object type=\"Bridge\" gp_index=\"%u\" bridge_type=\"0-1\" depth=\"0\" "
                "bridge_pci=\"000%u:[00-10]\"><object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"000%u:01:00.0\" "
                "pci_type=\"0207 [15b3:1021] [0000:0000] 00\" pci_link_speed=\"0.0\"><object type=\"OSDev\" "
                "gp_index=\"%u\" name=\"rdma%u\" osdev_type=\"3\"/></object></object>",
                40 + i, i, 50 + i, i, 60 + i, i));
        assert_true(buf_append_str(&xml, "</object>\n"));
    }
    assert_true(buf_append_str(
        &xml,
        "</object>\n<distances2 type=\"NUMANode\" nbobjs=\"4\" kind=\"5\" name=\"NUMALatency\" "
        "indexing=\"os\"><indexes length=\"8\">0 1 2 3 </indexes><u64values length=\"48\">10 20 30 20 20 10 20 30 "
        "30 20 10 20 20 30 20 10 </u64values></distances2>\n</topology>\n"));
    snprintf(path, sizeof path, "%s/four.xml", dir);
    write_file((const char *)xml.data, "%s", path);
    topology = load(path);
    expect_matrix(topology, "{\n"
                            "  \"cpu:0\": [[\"rdma0\"], [\"rdma1\"]],\n"
                            "  \"cpu:1\": [[\"rdma1\"], [\"rdma0\"]],\n"
                            "  \"cpu:2\": [[\"rdma1\"], [\"rdma0\"]],\n"
                            "  \"cpu:3\": [[\"rdma0\"], [\"rdma1\"]]\n"
                            "}\n");
    topology_destroy(topology);
    buf_release(&xml);
    tmpdir_remove(dir);
}

/* What hwloc does not show: devices over a software network. They are equally near to every node. */
static void devices_of_the_kernel(void **state)
{
    (void)state;
    char *dir = tmpdir_make();
    struct topology *topology;
    const struct topology_device *device;

    assert_int_equal(setenv("HWLOC_SYNTHETIC", "pack:2 numa:1 core:2 pu:1", 1), 0);
    topology = discover(dir);
    assert_int_equal(topology_node_count(topology), 2);
    assert_int_equal(topology_device_count(topology), 0);
    expect_matrix(topology, "{}\n");
    topology_destroy(topology);
    write_file("1: DOWN\n", "%s/class/infiniband/rxe0/ports/1/state", dir);
    write_file("4: ACTIVE\n", "%s/class/infiniband/rxe1/ports/1/state", dir);
    write_file("Ethernet\n", "%s/class/infiniband/rxe1/ports/1/link_layer", dir);
    write_file("1: DOWN\n", "%s/class/infiniband/rxe2/ports/1/state", dir);
    write_file("4: ACTIVE\n", "%s/class/infiniband/rxe2/ports/2/state", dir);
    write_file("InfiniBand\n", "%s/class/infiniband/rxe2/ports/2/link_layer", dir);
    write_file("100 Gb/sec (4X EDR)\n", "%s/class/infiniband/rxe2/ports/2/rate", dir);
    topology = discover(dir);
    assert_int_equal(topology_device_count(topology), 3);
    assert_int_equal(topology_find(topology, TOPOLOGY_RDMA, "rxe0")->state, TOPOLOGY_STATE_DOWN);
    device = topology_find(topology, TOPOLOGY_RDMA, "rxe2");
    assert_int_equal(device->state, TOPOLOGY_STATE_UP);
    assert_string_equal(device->detail, "InfiniBand, 100 Gb/sec (4X EDR)");
    assert_int_equal(device->numa_node, -1);
    assert_string_equal(device->pci, "");
    assert_string_equal(topology_find(topology, TOPOLOGY_RDMA, "rxe1")->detail, "Ethernet");
    expect_matrix(topology, "{\n"
                            "  \"cpu:0\": [[\"rxe1\", \"rxe2\"], []],\n"
                            "  \"cpu:1\": [[\"rxe1\", \"rxe2\"], []]\n"
                            "}\n");
    topology_destroy(topology);
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
    tmpdir_remove(dir);
}

static void too_many_devices(void **state)
{
    (void)state;
    char *dir = tmpdir_make();
    struct topology *topology;
    struct shoal_error error;

    assert_int_equal(setenv("HWLOC_SYNTHETIC", "numa:1 pu:1", 1), 0);
    for (unsigned i = 0; i < TOPOLOGY_DEVICES_MAX; i++)
        write_file("", "%s/class/infiniband/rdma%u/node_desc", dir, i);
    topology = discover(dir);
    assert_int_equal(topology_device_count(topology), TOPOLOGY_DEVICES_MAX);
    topology_destroy(topology);
    write_file("", "%s/class/infiniband/one_more/node_desc", dir);
    assert_int_equal(topology_discover(dir, &topology, &error), SHOAL_LIMIT);
    assert_string_equal(error.message, "the machine has more than 512 devices");
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
    tmpdir_remove(dir);
}

static void this_machine(void **state)
{
    (void)state;
    struct topology *topology = discover("/sys");
    struct nic_matrix *matrix;
    struct shoal_error error;

    assert_true(topology_node_count(topology) >= 1);
    assert_true(topology_node(topology, 0)->cpus >= 1);
    assert_int_equal(topology_propose_matrix(topology, &matrix, &error), SHOAL_OK);
    nic_matrix_destroy(matrix);
    topology_destroy(topology);
}

static void wrong_files(void **state)
{
    (void)state;
    char *dir = tmpdir_make();
    struct topology *topology = NULL;
    struct shoal_error error;
    char path[300];
    int fd;
    static const struct {
        const char *name, *text, *message;
    } cases[] = {
        {"empty.xml", "", "empty.xml\": it is empty"},
        {"text.xml", "mlx5_0 is near cpu:0\n", "not the XML of hwloc"},
        {"json.xml", "{\"cpu:0\": [[\"mlx5_0\"], []]}\n", "not the XML of hwloc"},
        {"html.xml", "<html><body>hello</body></html>\n", "not the XML of hwloc"},
        {"cut.xml", "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\"",
         "not the XML of hwloc"},
        {"none.xml", "<?xml version=\"1.0\"?>\n<topology version=\"2.0\"></topology>\n", "not the XML of hwloc"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].name);
        write_file(cases[i].text, "%s", path);
        assert_int_equal(topology_load_xml(path, &topology, &error), SHOAL_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, path));
        if (!strstr(error.message, cases[i].message))
            fail_msg("%s: %s", cases[i].name, error.message);
    }
    snprintf(path, sizeof path, "%s/missing.xml", dir);
    assert_int_equal(topology_load_xml(path, &topology, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "missing.xml\": cannot open it: No such file"));
    assert_int_equal(topology_load_xml(dir, &topology, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "cannot read it: Is a directory"));
    snprintf(path, sizeof path, "%s/long.xml", dir);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)TOPOLOGY_XML_MAX_BYTES + 1), 0);
    close(fd);
    assert_int_equal(topology_load_xml(path, &topology, &error), SHOAL_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "it is longer than 16777216 bytes"));
    assert_null(topology);
    tmpdir_remove(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_of_two_sockets), cmocka_unit_test(distances_of_two_sockets),
        cmocka_unit_test(matrix_of_two_sockets),  cmocka_unit_test(nodes_without_a_device_take_the_nearest),
        cmocka_unit_test(devices_of_the_kernel),  cmocka_unit_test(too_many_devices),
        cmocka_unit_test(this_machine),           cmocka_unit_test(wrong_files),
    };

    if (argc < 2)
        return 1;
    two_sockets = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
