/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine has beside CPUs and TCP: RDMA devices, huge pages, NUMA nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"
#include "sysfs.h"
#include "transport/topology.h"
#include "transport/transport.h"
#include "units.h"

/* --- what is built in --- */

void doctor_check_transports(struct doctor *doctor)
{
    char text[200] = "";
    size_t used = 0;
    for (const char *const *name = transport_names(); *name && used < sizeof text; name++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", *name);
    doctor_tell(doctor, DOCTOR_OK, "transports", NULL, "this program knows: %s", text);
}

/* --- RDMA --- */

static void check_port(struct doctor *doctor, const struct rdma_port *port)
{
    char check[RDMA_NAME_BYTES + 16];
    bool is_ethernet = strcmp(port->link_layer, "Ethernet") == 0;
    snprintf(check, sizeof check, "%s/%u", port->device, port->number);
    if (!port->is_active) {
        doctor_tell(doctor, DOCTOR_WARN, check,
                    is_ethernet ? "bring its network device up (ip link set DEVICE up), look at cable and switch"
                                : "look at cable and switch, and whether a subnet manager runs (opensm, sminfo)",
                    "%s port is %s (%s), not ACTIVE", port->link_layer,
                    port->state[0] ? port->state : "in no known state",
                    port->physical[0] ? port->physical : "link not known");
        return;
    }
    doctor->has_rdma = true;
    if (port->gid_count == 0)
        doctor_tell(doctor, DOCTOR_WARN, check,
                    is_ethernet ? "give its network device an address" : "look whether a subnet manager runs",
                    "%s port is ACTIVE, %s, but has no address (its GID table is empty)", port->link_layer, port->rate);
    else if (is_ethernet && strcmp(port->gid_type, "RoCE v2") != 0)
        doctor_tell(doctor, DOCTOR_WARN, check, "give its network device an IP address; RoCE v1 is not routed",
                    "Ethernet port is ACTIVE, %s, with %u GIDs, none of them RoCE v2", port->rate, port->gid_count);
    else
        doctor_tell(doctor, DOCTOR_OK, check, NULL, "%s port is ACTIVE, %s%s%s, %u GIDs, best %s%s%s%s",
                    port->link_layer, port->rate, port->netdev[0] ? ", " : "", port->netdev, port->gid_count, port->gid,
                    port->gid_type[0] ? " (" : "", port->gid_type, port->gid_type[0] ? ")" : "");
}

void doctor_check_rdma(struct doctor *doctor)
{
    struct rdma_ports *ports = malloc(sizeof *ports);
    if (!ports) {
        doctor_tell(doctor, DOCTOR_SKIP, "rdma", NULL, "out of memory");
        return;
    }
    rdma_ports_read(ports, "");
    if (ports->device_count == 0) {
        doctor_tell(doctor, DOCTOR_OK, "rdma", NULL, "no device (nothing in /sys/class/infiniband): TCP is used");
        free(ports);
        return;
    }
    for (size_t i = 0; i < ports->count; i++)
        check_port(doctor, &ports->items[i]);
    if (!ports->user_files)
        doctor_tell(doctor, DOCTOR_WARN, "rdma", "load ib_uverbs; in a container: --device /dev/infiniband",
                    "%zu devices, but no /dev/infiniband/uverbs*: programs cannot use them", ports->device_count);
    else if (!ports->has_user_access)
        doctor_tell(doctor, DOCTOR_WARN, "rdma", "let this user read and write /dev/infiniband/uverbs*",
                    "%zu devices, but this user may not open them", ports->device_count);
    else
        doctor_tell(doctor, DOCTOR_OK, "rdma", NULL, "%zu devices with %zu ports", ports->device_count,
                    ports->count + ports->left_out);
    free(ports);
}

/* --- memory --- */

static void check_huge_pages(struct doctor *doctor)
{
    struct huge_pages pages;
    char text[300] = "", size[UNITS_TEXT_BYTES];
    size_t used = 0;
    uint64_t reserved = 0;
    huge_pages_read(&pages, "");
    for (size_t i = 0; i < pages.count && used < sizeof text; i++) {
        reserved += pages.sizes[i].total;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu of %llu pages of %s free", i ? ", " : "",
                                 (unsigned long long)pages.sizes[i].free, (unsigned long long)pages.sizes[i].total,
                                 units_format_size(pages.sizes[i].size_bytes, size));
    }
    if (!pages.count)
        doctor_tell(doctor, DOCTOR_SKIP, "huge pages", NULL, "/sys/kernel/mm/hugepages cannot be read here");
    else
        doctor_tell(doctor, DOCTOR_OK, "huge pages", NULL, "%s%s; transparent ones: %s",
                    reserved ? "reserved: " : "none reserved (only DRAM tiers with huge pages need them): ", text,
                    pages.transparent[0] ? pages.transparent : "not known");
}

static void check_numa(struct doctor *doctor)
{
    struct topology *topology = NULL;
    struct shoal_error error;
    char text[400] = "", size[UNITS_TEXT_BYTES];
    size_t used = 0, count;
    if (topology_discover("/sys", &topology, &error) != SHOAL_OK) {
        doctor_tell(doctor, DOCTOR_SKIP, "numa", NULL, "%s", error.message);
        return;
    }
    count = topology_node_count(topology);
    for (size_t i = 0; i < count && used < sizeof text; i++) {
        const struct topology_node *node = topology_node(topology, i);
        used += (size_t)snprintf(text + used, sizeof text - used, "%scpu:%u with %u CPUs and %s", i ? ", " : "",
                                 node->index, node->cpus, units_format_size(node->memory_bytes, size));
    }
    doctor_tell(doctor, DOCTOR_OK, "numa", NULL, "%zu node%s: %s%s", count, count == 1 ? "" : "s", text,
                count > 1 ? "; shoal topo shows what is near what" : "");
    topology_destroy(topology);
}

void doctor_check_memory(struct doctor *doctor)
{
    check_numa(doctor);
    check_huge_pages(doctor);
}
