/* SPDX-License-Identifier: Apache-2.0 */
/* What is near what in a machine: NUMA nodes, network devices, RDMA devices, GPUs (found by hwloc), and the NIC
 * priority matrix that follows from it. A topology is not changed once it is made; then every function may be called
 * from any thread. Making one takes tens of milliseconds and reads files: not on a loop. */
#ifndef SHOAL_TRANSPORT_TOPOLOGY_H
#define SHOAL_TRANSPORT_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#include "transport/nic_matrix.h"

#define TOPOLOGY_XML_MAX_BYTES ((size_t)16 << 20)
#define TOPOLOGY_DEVICES_MAX 512
#define TOPOLOGY_NODES_MAX (LOCATION_INDEX_MAX + 1)

struct topology;

enum topology_kind {
    TOPOLOGY_NET,  /* "eth0" */
    TOPOLOGY_RDMA, /* "mlx5_0" */
    TOPOLOGY_GPU,  /* "cuda:0": NVIDIA's, numbered by PCI address (CUDA_DEVICE_ORDER=PCI_BUS_ID) */
};

enum topology_state {
    TOPOLOGY_STATE_UNKNOWN, /* not told; taken for up */
    TOPOLOGY_STATE_UP,
    TOPOLOGY_STATE_DOWN, /* an RDMA device: no port is active */
};

struct topology_device {
    enum topology_kind kind;
    enum topology_state state;
    char name[NIC_NAME_MAX_BYTES + 1];
    char pci[24];     /* "0000:17:00.0"; "": not on a PCI bus */
    char detail[160]; /* what else is known: link and rate, MAC address, model; "": nothing */
    int numa_node;    /* the one it is attached to; -1: none in particular */
};

struct topology_node {
    unsigned index; /* N of "cpu:N", as the system numbers them */
    unsigned cpus;
    uint64_t memory_bytes;
};

/* How far it is, in classes; within a class less is nearer. */
enum topology_class {
    TOPOLOGY_SAME_SWITCH, /* below one PCI switch, or the same card */
    TOPOLOGY_SAME_ROOT,   /* below one PCI host bridge */
    TOPOLOGY_SAME_NODE,   /* attached to one NUMA node */
    TOPOLOGY_FAR,         /* between NUMA nodes */
};

struct topology_distance {
    enum topology_class class;
    unsigned steps; /* switches between them, or the latency between the nodes as the firmware tells it */
};

/* This machine. sysfs is "/sys" (another folder in tests), for what hwloc does not tell: RDMA devices without PCI,
 * links and rates. IO: hwloc failed. LIMIT: more devices or nodes than above; NO_MEMORY. */
enum shoal_status topology_discover(const char *sysfs, struct topology **out, struct shoal_error *error);
/* The machine that an XML file describes (lstopo --whole-io machine.xml). INVALID_ARGUMENT: no such file, too large, or
 * not hwloc's XML; and as topology_discover. */
enum shoal_status topology_load_xml(const char *path, struct topology **out, struct shoal_error *error);
void topology_destroy(struct topology *topology); /* NULL is allowed */

size_t topology_node_count(const struct topology *topology);
const struct topology_node *topology_node(const struct topology *topology, size_t index);
size_t topology_device_count(const struct topology *topology);
/* Sorted by kind, then by PCI address, then by name. */
const struct topology_device *topology_device(const struct topology *topology, size_t index);
/* NULL: no such device. */
const struct topology_device *topology_find(const struct topology *topology, enum topology_kind kind, const char *name);

struct topology_distance topology_distance(const struct topology *topology, const struct topology_device *a,
                                           const struct topology_device *b);
struct topology_distance topology_node_distance(const struct topology *topology, const struct topology_node *node,
                                                const struct topology_device *device);
/* "switch", "root", "node", "far". */
const char *topology_class_name(enum topology_class class);

/* A row for each NUMA node ("cpu:N") and GPU ("cuda:N"): its nearest RDMA devices are preferred, the others are its
 * fallback, nearer ones first. A device whose ports are all down is left out. Without RDMA devices: an empty matrix. */
enum shoal_status topology_propose_matrix(const struct topology *topology, struct nic_matrix **out,
                                          struct shoal_error *error);

#endif
