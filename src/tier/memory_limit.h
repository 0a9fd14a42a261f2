/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may have: the machine's, or less if it runs in a control group (container, systemd). */
#ifndef SHOAL_TIER_MEMORY_LIMIT_H
#define SHOAL_TIER_MEMORY_LIMIT_H

#include <stdint.h>

/* UINT64_MAX: not known. */
uint64_t memory_limit_bytes(void);

/* The least of the limits of the groups that the file (/proc/self/cgroup) names and of those above them, below root
 * (/sys/fs/cgroup); versions 1 and 2. UINT64_MAX: none. */
uint64_t memory_limit_of_groups(const char *file, const char *root);

#endif
