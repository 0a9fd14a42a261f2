/* SPDX-License-Identifier: Apache-2.0 */
/* The NIC priority matrix: which network devices serve memory at which location.
 *
 *     {"cpu:0":  [["mlx5_0", "mlx5_1"], ["mlx5_2"]],
 *      "cuda:0": [["mlx5_0"], []],
 *      "*":      [["mlx5_1"], []]}
 *
 * Each row has two lists of device names: the preferred devices, all of which are used at once, and the fallback
 * devices, which take over when no preferred one works. A matrix is not changed once it is in use; then every function
 * may be called from any thread. No I/O. */
#ifndef SHOAL_TRANSPORT_NIC_MATRIX_H
#define SHOAL_TRANSPORT_NIC_MATRIX_H

#include <stdbool.h>
#include <stddef.h>

#include <shoal/status.h>

#include "base/buf.h"
#include "transport/location.h"

#define NIC_MATRIX_TEXT_MAX_BYTES ((size_t)256 << 10)
#define NIC_MATRIX_ROWS_MAX 256
#define NIC_MATRIX_DEVICES_MAX 128 /* different ones; also the longest row */
#define NIC_NAME_MAX_BYTES 63

struct nic_matrix;

struct nic_list {
    const char *const *names; /* borrowed from the matrix, in order of preference */
    size_t count;
};

struct nic_row {
    struct location location;
    struct nic_list preferred; /* never empty */
    struct nic_list fallback;  /* disjoint from preferred */
};

/* text of len bytes; blank text and "{}" make an empty matrix. INVALID_ARGUMENT, each with its own message: too long,
 * not JSON, not an object, unknown location, a location twice, a row that is not two lists of names, no preferred
 * device, a device twice in a row, a malformed name, too many rows or devices. NO_MEMORY. */
enum shoal_status nic_matrix_parse(const char *text, size_t len, struct nic_matrix **out, struct shoal_error *error);
enum shoal_status nic_matrix_create(struct nic_matrix **out, struct shoal_error *error); /* an empty one */
void nic_matrix_destroy(struct nic_matrix *matrix);                                      /* NULL is allowed */

/* Copies the names. Errors as of nic_matrix_parse; the matrix is then unchanged. */
enum shoal_status nic_matrix_add(struct nic_matrix *matrix, const struct location *location,
                                 const char *const *preferred, size_t preferred_count, const char *const *fallback,
                                 size_t fallback_count, struct shoal_error *error);

bool nic_matrix_is_empty(const struct nic_matrix *matrix);
size_t nic_matrix_row_count(const struct nic_matrix *matrix);
const struct nic_row *nic_matrix_row(const struct nic_matrix *matrix, size_t index); /* in the order of the text */
/* Every device that some row names, each once, in the order of the text. */
struct nic_list nic_matrix_devices(const struct nic_matrix *matrix);

/* The row for memory at location:
 * 1. the location's own row;
 * 2. else the row "*";
 * 3. else a row made of all rows (its location is "*"): what any row prefers is preferred, the other devices are its
 *    fallback. So {"cpu:0": ...} alone serves every location, and memory whose location is not known spreads over the
 *    devices of all nodes.
 * NULL: the matrix is empty. Borrowed from the matrix. */
const struct nic_row *nic_matrix_choose(const struct nic_matrix *matrix, const struct location *location);

/* Whether every device of the matrix is among the present ones. what names their kind in the message ("RDMA device").
 * INVALID_ARGUMENT: some is not; UNSUPPORTED: none is present at all. The message has the devices that are missing, who
 * asks for them, and those present. An empty matrix is OK. */
enum shoal_status nic_matrix_check_present(const struct nic_matrix *matrix, const char *what,
                                           const char *const *present, size_t present_count, struct shoal_error *error);

/* Appends the matrix as JSON, one row a line; parses back into an equal one. false: out is full or memory is out. */
bool nic_matrix_format(const struct nic_matrix *matrix, struct buf *out);

#endif
