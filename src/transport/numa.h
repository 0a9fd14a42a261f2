/* SPDX-License-Identifier: Apache-2.0 */
/* The NUMA nodes of this machine (found by hwloc): which there are, and memory and threads that stay at one of them.
 * On a machine of one node nothing is bound. Any thread; the first call reads files below /sys for some milliseconds.
 */
#ifndef SHOAL_TRANSPORT_NUMA_H
#define SHOAL_TRANSPORT_NUMA_H

#include <stdint.h>
#include <sys/socket.h>

#include <shoal/status.h>

unsigned numa_node_count(void);

/* INVALID_ARGUMENT: this machine has no such node; the message has those that it has. */
enum shoal_status numa_check_node(unsigned node, struct shoal_error *error);

/* What is touched for the first time in [addr, addr + len) from now on comes from node, or from elsewhere if that is
 * full. INVALID_ARGUMENT as above; UNSUPPORTED: the system does not allow it. */
enum shoal_status numa_bind_memory(void *addr, uint64_t len_bytes, unsigned node, struct shoal_error *error);

/* The calling thread runs on the CPUs of node, as far as it was allowed to; if it was allowed to run on none of them,
 * it stays where it is. Errors as above. */
enum shoal_status numa_bind_thread(unsigned node, struct shoal_error *error);

/* The node that the network device with this address is attached to; -1: none in particular, or not known. */
int numa_node_of_address(const struct sockaddr *address);

#endif
