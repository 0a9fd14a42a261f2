/* SPDX-License-Identifier: Apache-2.0 */
/* Files mapped into memory, and what happens when such a file loses its bytes under us: the access raises SIGBUS, the
 * handler puts zeros there and marks the mapping as lost, and whoever reads goes on. Only code of this process that
 * touches the memory itself can raise it; the transport goes through system calls, which fail instead. */
#ifndef SHOAL_CMD_MAPPING_H
#define SHOAL_CMD_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/store.h>

struct mapping {
    void *addr;
    size_t len_bytes;
    int protection;
    size_t tag; /* the caller's */
    atomic_bool is_lost;
};

struct mapping_table {
    struct mapping *items; /* owned */
    size_t count, capacity;
};

void mapping_table_release(struct mapping_table *table); /* unmaps all */
/* Maps the whole file; fd may be closed afterwards. */
enum shoal_status mapping_add(struct mapping_table *table, int fd, uint64_t len_bytes, bool is_writable, size_t tag,
                              struct shoal_error *error);
/* Unmaps one; it keeps its place in the table, also a guarded one. */
void mapping_drop(struct mapping *mapping);
/* Watches the mappings of one table at a time; the table must not change until mapping_unguard. */
enum shoal_status mapping_guard(struct mapping_table *table, struct shoal_error *error);
void mapping_unguard(void);
/* The first mapping that was lost, NULL: none. */
const struct mapping *mapping_first_lost(const struct mapping_table *table);

#endif
