/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices and huge pages as the kernel shows them below /sys. root is put before every path ("" outside of
 * tests), so that nothing but files is needed. */
#ifndef SHOAL_CMD_SYSFS_H
#define SHOAL_CMD_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_PORTS_MAX 64
#define RDMA_NAME_BYTES 64

struct rdma_port {
    char device[RDMA_NAME_BYTES];
    unsigned number;
    char state[24];      /* "ACTIVE", "DOWN", "INIT"; "" if it cannot be read */
    char physical[24];   /* "LinkUp", "Disabled" */
    char link_layer[24]; /* "InfiniBand", "Ethernet" */
    char rate[48];       /* "200 Gb/sec (4X HDR)" */
    char netdev[32];     /* Ethernet: its network device; "" if none is told */
    char gid[48];        /* the one to use: RoCE v2 with an IPv4 address first, else the first; "" if there is none */
    char gid_type[24];   /* "RoCE v2", "IB/RoCE v1"; "" if not told */
    unsigned gid_count;  /* entries of the table in use */
    bool is_active;
};

struct rdma_ports {
    struct rdma_port items[RDMA_PORTS_MAX];
    size_t count;
    size_t left_out; /* beyond the bound */
    size_t device_count;
    bool has_user_access; /* the device files for programs can be opened for reading and writing */
    size_t user_files;    /* how many there are */
};

/* By device name, then port. Whatever cannot be read is left empty. */
void rdma_ports_read(struct rdma_ports *ports, const char *root);

#define HUGE_SIZES_MAX 8
struct huge_pages {
    struct {
        uint64_t size_bytes, total, free;
    } sizes[HUGE_SIZES_MAX]; /* the smallest first */
    size_t count;
    char transparent[24]; /* "always", "madvise", "never"; "" if not told */
};
void huge_pages_read(struct huge_pages *pages, const char *root);

#endif
