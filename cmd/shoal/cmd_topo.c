/* SPDX-License-Identifier: Apache-2.0 */
/* What is near what in a machine, and the NIC priority matrix that follows from it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/error.h"
#include "transport/topology.h"
#include "units.h"

#define SYSFS "/sys"

static const struct {
    const char *title, *name;
} kinds[] = {
    [TOPOLOGY_NET] = {"network devices", "net"},
    [TOPOLOGY_RDMA] = {"RDMA devices", "rdma"},
    [TOPOLOGY_GPU] = {"GPUs", "gpu"},
};

static const char *state_name(enum topology_state state)
{
    switch (state) {
    case TOPOLOGY_STATE_UP:
        return "up";
    case TOPOLOGY_STATE_DOWN:
        return "down";
    case TOPOLOGY_STATE_UNKNOWN:
        break;
    }
    return "unknown";
}

/* --- JSON --- */

static json_t *nodes_to_json(const struct topology *topology)
{
    json_t *array = json_array();
    char location[LOCATION_TEXT_BYTES];
    for (size_t i = 0; i < topology_node_count(topology); i++) {
        const struct topology_node *node = topology_node(topology, i);
        location_format(&(struct location){.kind = LOCATION_CPU, .index = node->index}, location);
        json_array_append_new(array, json_pack("{s:s, s:i, s:I}", "location", location, "cpus", (int)node->cpus,
                                               "memory_bytes", (json_int_t)node->memory_bytes));
    }
    return array;
}

static json_t *devices_to_json(const struct topology *topology)
{
    json_t *array = json_array();
    for (size_t i = 0; i < topology_device_count(topology); i++) {
        const struct topology_device *device = topology_device(topology, i);
        json_t *object =
            json_pack("{s:s, s:o, s:s, s:o}", "kind", kinds[device->kind].name, "name", json_text(device->name),
                      "state", state_name(device->state), "detail", json_text(device->detail));
        json_object_set_new(object, "pci", *device->pci ? json_string(device->pci) : json_null());
        json_object_set_new(object, "numa_node",
                            device->numa_node >= 0 ? json_integer(device->numa_node) : json_null());
        json_array_append_new(array, object);
    }
    return array;
}

static void append_distance(json_t *array, const char *location, const struct topology_device *rdma,
                            struct topology_distance distance)
{
    json_array_append_new(array, json_pack("{s:s, s:o, s:s, s:I}", "location", location, "device",
                                           json_text(rdma->name), "distance", topology_class_name(distance.class),
                                           "steps", (json_int_t)distance.steps));
}

static json_t *distances_to_json(const struct topology *topology)
{
    json_t *array = json_array();
    char location[LOCATION_TEXT_BYTES];
    for (size_t j = 0; j < topology_device_count(topology); j++) {
        const struct topology_device *rdma = topology_device(topology, j);
        if (rdma->kind != TOPOLOGY_RDMA)
            continue;
        for (size_t i = 0; i < topology_node_count(topology); i++) {
            const struct topology_node *node = topology_node(topology, i);
            location_format(&(struct location){.kind = LOCATION_CPU, .index = node->index}, location);
            append_distance(array, location, rdma, topology_node_distance(topology, node, rdma));
        }
        for (size_t i = 0; i < topology_device_count(topology); i++) {
            const struct topology_device *gpu = topology_device(topology, i);
            if (gpu->kind == TOPOLOGY_GPU)
                append_distance(array, gpu->name, rdma, topology_distance(topology, gpu, rdma));
        }
    }
    return array;
}

/* --- text --- */

static void print_nodes(const struct topology *topology)
{
    char location[LOCATION_TEXT_BYTES], size[UNITS_TEXT_BYTES];
    printf("NUMA nodes\n");
    for (size_t i = 0; i < topology_node_count(topology); i++) {
        const struct topology_node *node = topology_node(topology, i);
        location_format(&(struct location){.kind = LOCATION_CPU, .index = node->index}, location);
        printf("  %-12s  %4u CPUs  %10s\n", location, node->cpus, units_format_size(node->memory_bytes, size));
    }
}

static void print_devices(const struct topology *topology, enum topology_kind kind)
{
    char name[NIC_NAME_MAX_BYTES + 1], detail[160], node[16];
    bool is_any = false;
    printf("\n%s\n", kinds[kind].title);
    for (size_t i = 0; i < topology_device_count(topology); i++) {
        const struct topology_device *device = topology_device(topology, i);
        if (device->kind != kind)
            continue;
        is_any = true;
        snprintf(node, sizeof node, device->numa_node >= 0 ? "cpu:%d" : "-", device->numa_node);
        printf("  %-12s  %-12s  %-8s  %-7s  %s\n", units_printable(device->name, name, sizeof name),
               *device->pci ? device->pci : "-", node, kind == TOPOLOGY_GPU ? "-" : state_name(device->state),
               units_printable(device->detail, detail, sizeof detail));
    }
    if (!is_any)
        printf("  none\n");
}

static void print_row(const struct topology *topology, const char *location, const struct topology_node *node,
                      const struct topology_device *gpu)
{
    printf("  %-9s", location);
    for (size_t i = 0; i < topology_device_count(topology); i++) {
        const struct topology_device *rdma = topology_device(topology, i);
        if (rdma->kind != TOPOLOGY_RDMA)
            continue;
        struct topology_distance distance =
            node ? topology_node_distance(topology, node, rdma) : topology_distance(topology, gpu, rdma);
        printf("  %*s", (int)strlen(rdma->name) > 6 ? (int)strlen(rdma->name) : 6, topology_class_name(distance.class));
    }
    printf("\n");
}

static void print_distances(const struct topology *topology)
{
    char text[NIC_NAME_MAX_BYTES + 1];
    bool is_any = false;
    for (size_t i = 0; i < topology_device_count(topology); i++) {
        const struct topology_device *rdma = topology_device(topology, i);
        if (rdma->kind != TOPOLOGY_RDMA)
            continue;
        if (!is_any)
            printf("\ndistances (behind one PCI switch, at one PCI root, at one NUMA node, far)\n  %-9s", "");
        is_any = true;
        printf("  %6s", units_printable(rdma->name, text, sizeof text));
    }
    if (!is_any)
        return;
    printf("\n");
    for (size_t i = 0; i < topology_node_count(topology); i++) {
        const struct topology_node *node = topology_node(topology, i);
        char location[LOCATION_TEXT_BYTES];
        location_format(&(struct location){.kind = LOCATION_CPU, .index = node->index}, location);
        print_row(topology, location, node, NULL);
    }
    for (size_t i = 0; i < topology_device_count(topology); i++)
        if (topology_device(topology, i)->kind == TOPOLOGY_GPU)
            print_row(topology, topology_device(topology, i)->name, NULL, topology_device(topology, i));
}

static void print_all(const struct topology *topology, const struct nic_matrix *matrix, const char *matrix_text)
{
    print_nodes(topology);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        print_devices(topology, (enum topology_kind)kind);
    print_distances(topology);
    if (nic_matrix_is_empty(matrix))
        printf("\nNIC priority matrix: none, for there is no RDMA device that is up; bytes go over TCP\n");
    else
        printf("\nNIC priority matrix (--nic-priority-matrix)\n%s", matrix_text);
}

/* --- the command --- */

static int show(const struct app *app, const struct topology *topology, const struct nic_matrix *matrix)
{
    struct shoal_error error;
    struct buf text;
    json_t *as_json = NULL;
    int code = EXIT_CODE_OK;
    buf_init(&text, 4 * NIC_MATRIX_TEXT_MAX_BYTES);
    if (!nic_matrix_format(matrix, &text)) {
        error_no_memory(&error);
        code = report_failure(app, &error, "cannot show the matrix");
        goto out;
    }
    if (app->settings.prints_matrix && nic_matrix_is_empty(matrix))
        report_note(app, "the matrix is empty: there is no RDMA device that is up");
    if (app->settings.is_json)
        as_json = json_loadb((const char *)text.data, text.len, 0, NULL);
    if (app->settings.is_json && app->settings.prints_matrix)
        json_print(as_json);
    else if (app->settings.is_json)
        json_print(json_pack("{s:o, s:o, s:o, s:o}", "nodes", nodes_to_json(topology), "devices",
                             devices_to_json(topology), "distances", distances_to_json(topology), "matrix", as_json));
    else if (app->settings.prints_matrix)
        fputs((const char *)text.data, stdout);
    else
        print_all(topology, matrix, (const char *)text.data);
out:
    buf_release(&text);
    return code;
}

static int run_topo(struct app *app, int count, char **arguments)
{
    struct topology *topology;
    struct nic_matrix *matrix;
    struct shoal_error error;
    (void)count;
    (void)arguments;
    enum shoal_status status = app->settings.xml ? topology_load_xml(app->settings.xml, &topology, &error)
                                                 : topology_discover(SYSFS, &topology, &error);
    if (status != SHOAL_OK)
        return report_failure(app, &error, "cannot find out what this machine has");
    int code;
    if (topology_propose_matrix(topology, &matrix, &error) != SHOAL_OK) {
        code = report_failure(app, &error, "cannot propose a matrix");
    } else {
        code = show(app, topology, matrix);
        nic_matrix_destroy(matrix);
    }
    topology_destroy(topology);
    return code;
}

static const struct option_spec options[] = {
    {OPTION_FLAG, 0, "matrix", NULL, NULL, offsetof(struct settings, prints_matrix),
     .help = "Print the proposed NIC priority matrix alone, as --nic-priority-matrix takes it."},
    {OPTION_TEXT, 0, "xml", "FILE", NULL, offsetof(struct settings, xml), .complete = "file",
     .help =
         "Look at another machine: a file that lstopo --whole-io FILE has written there. Links and rates are not in "
         "it."},
    {OPTION_FLAG, 'j', "json", NULL, "SHOAL_JSON", offsetof(struct settings, is_json),
     .help = "One object with nodes, devices, distances and matrix (with --matrix: only that) on standard output."},
    {OPTION_QUIET, 'q', "quiet", NULL, "SHOAL_QUIET", offsetof(struct settings, verbosity),
     .help = "Only errors on standard error."},
    {OPTION_END},
};

const struct command command_topo = {
    .name = "topo",
    .arguments = "",
    .summary = "show NUMA nodes, devices and GPUs, and propose a NIC priority matrix",
    .text =
        "Shows what hwloc finds in this machine: NUMA nodes, network devices, RDMA devices and GPUs, and how near "
        "each RDMA device is to the memory of each node and to each GPU. From that it proposes a NIC priority "
        "matrix: for each location of memory the nearest devices are preferred, the others are its fallback, nearer "
        "ones first; devices whose ports are down are left out.\n\n"
        "GPUs are numbered by PCI address, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    .options = options,
    .min_arguments = 0,
    .max_arguments = 0,
    .run = run_topo,
};
