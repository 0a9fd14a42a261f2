/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/numa.h"

#include <errno.h>
#include <hwloc.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/location.h"

#define SHOWN_BYTES 120

/* Made once and kept for the life of the process; NULL: hwloc failed, and there is one node, 0. */
static hwloc_topology_t machine;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;

static void load_machine(void)
{
    hwloc_topology_t topology;

    if (hwloc_topology_init(&topology) != 0)
        return;
    /* A node that this process may not use is there all the same. */
    if (hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 &&
        hwloc_topology_load(topology) == 0)
        machine = topology;
    else
        hwloc_topology_destroy(topology);
}

static hwloc_obj_t find_node(unsigned node)
{
    (void)pthread_once(&machine_once, load_machine);
    return machine ? hwloc_get_numanode_obj_by_os_index(machine, node) : NULL;
}

unsigned numa_node_count(void)
{
    int count;

    (void)pthread_once(&machine_once, load_machine);
    count = machine ? hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE) : 1;
    return count > 1 ? (unsigned)count : 1;
}

enum shoal_status numa_check_node(unsigned node, struct shoal_error *error)
{
    char shown[SHOWN_BYTES] = "0";

    if (find_node(node) || (!machine && node == 0))
        return SHOAL_OK;
    if (machine)
        hwloc_bitmap_list_snprintf(shown, sizeof shown, hwloc_topology_get_topology_nodeset(machine));
    return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "this machine has no NUMA node %u (there is: %s)", node, shown);
}

enum shoal_status numa_bind_memory(void *addr, uint64_t len_bytes, unsigned node, struct shoal_error *error)
{
    enum shoal_status status = numa_check_node(node, error);

    if (status != SHOAL_OK || numa_node_count() == 1 || len_bytes == 0)
        return status;
    /* Not strict: memory from elsewhere is better than none. */
    if (hwloc_set_area_membind(machine, addr, len_bytes, find_node(node)->nodeset, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET) == 0)
        return SHOAL_OK;
    return error_set(error, SHOAL_UNSUPPORTED, errno, "cannot take memory from NUMA node %u: %s", node,
                     strerror(errno));
}

enum shoal_status numa_bind_thread(unsigned node, struct shoal_error *error)
{
    enum shoal_status status = numa_check_node(node, error);
    hwloc_bitmap_t cpus;

    if (status != SHOAL_OK || numa_node_count() == 1)
        return status;
    cpus = hwloc_bitmap_alloc();
    if (!cpus)
        return error_no_memory(error);
    if (hwloc_get_cpubind(machine, cpus, HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_bitmap_and(cpus, cpus, find_node(node)->cpuset) == 0 && !hwloc_bitmap_iszero(cpus) &&
        hwloc_set_cpubind(machine, cpus, HWLOC_CPUBIND_THREAD) != 0)
        status = error_set(error, SHOAL_UNSUPPORTED, errno, "cannot run at NUMA node %u: %s", node, strerror(errno));
    hwloc_bitmap_free(cpus);
    return status;
}

static int is_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return 0;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    return a->sa_family == AF_INET && ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
                                          ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
}

int numa_node_of_address(const struct sockaddr *address)
{
    struct ifaddrs *all = NULL;
    int node = -1;

    if (getifaddrs(&all) != 0)
        return -1;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        char path[128], text[16];
        FILE *file;

        if (!one->ifa_addr || !is_same_host(one->ifa_addr, address))
            continue;
        snprintf(path, sizeof path, "/sys/class/net/%.64s/device/numa_node", one->ifa_name);
        file = fopen(path, "re"); /* loopback, bridges and tunnels have none */
        if (file) {
            if (fgets(text, sizeof text, file))
                node = (int)strtol(text, NULL, 10);
            fclose(file);
        }
        break;
    }
    freeifaddrs(all);
    return node >= 0 && node <= LOCATION_INDEX_MAX ? node : -1;
}
