/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that another process of this host may be let read: anonymous files, mapped here for reading and writing and
 * sealed so that nobody else can ever write, grow or shrink them. Where the kernel has no such files, and where
 * processes can most likely read each other's memory without them, it is ordinary memory.
 *
 * Any thread; one mutex (RANK_TRANSPORT), a leaf. */
#ifndef SHOAL_TRANSPORT_SHARED_H
#define SHOAL_TRANSPORT_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/status.h>

struct shared_table;

enum shoal_status shared_table_create(struct shared_table **out, struct shoal_error *error);
void shared_table_destroy(struct shared_table *table); /* nothing may be left; NULL is allowed */

/* Maps len bytes (rounded up to pages, zeroed). has_huge_pages: prefers huge pages, and takes others. NO_MEMORY. */
enum shoal_status shared_alloc(struct shared_table *table, uint64_t len, bool has_huge_pages, void **addr_out,
                               struct shoal_error *error);
/* Unmaps, and tells the listener. NULL: nothing. */
void shared_free(struct shared_table *table, void *addr);

/* The one allocation that has all of [addr, addr+len). false: it is not such memory. *fd_out is borrowed until
 * shared_free. */
bool shared_find(struct shared_table *table, uint64_t addr, uint64_t len, uint64_t *id_out, uint64_t *offset_out,
                 uint64_t *size_out, int *fd_out);
bool shared_has_any(struct shared_table *table);

/* Runs in shared_free, without locks, before the memory goes. fn NULL: removes. One at a time. */
void shared_set_listener(struct shared_table *table, void (*fn)(void *arg, uint64_t id), void *arg);

#endif
