/* SPDX-License-Identifier: Apache-2.0 */
/* Which objects lie in the data file of a STORAGE tier: an SQLite database, one row for each object, named by the
 * block where it begins. A commit survives the death of the process; what a crash of the host takes back are the last
 * commits, never the consistency of the file (WAL, synchronous=NORMAL).
 *
 * Threads: any; functions block on the disk except where they say that they do not. */
#ifndef SHOAL_TIER_STORAGE_INDEX_H
#define SHOAL_TIER_STORAGE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

struct storage_index;
/* The right to take one row back later, for which then no memory is needed. */
struct storage_ticket;

struct storage_entry {
    int64_t block;
    const char *key; /* NUL-terminated */
    size_t key_len;
    uint64_t object_id, len_bytes;
    const void *digests; /* NULL if digests_len is 0 */
    size_t digests_len;
};

/* Opens or creates the file; nobody else has it open. PERMISSION, NO_SPACE, NO_MEMORY; IO: also a file that is damaged
 * or not ours. */
enum shoal_status storage_index_open(const char *path, struct storage_index **index_out, struct shoal_error *error);
void storage_index_close(struct storage_index *index); /* NULL is allowed */

/* Every row in ascending order of blocks, as it stands in the file: the caller checks it. fn may take rows back. A
 * status of fn other than OK ends it. No other call runs meanwhile, except those fn makes. */
enum shoal_status storage_index_each(struct storage_index *index,
                                     enum shoal_status (*fn)(void *arg, const struct storage_entry *entry,
                                                             struct shoal_error *error),
                                     void *arg, struct shoal_error *error);

struct storage_ticket *storage_ticket_create(int64_t block); /* NULL: out of memory */
void storage_ticket_destroy(struct storage_ticket *ticket);  /* the row stays; NULL is allowed */

/* Adds the row, after what was doomed has gone. A row of the same key is replaced. Not OK: nothing has changed. */
enum shoal_status storage_index_add(struct storage_index *index, const struct storage_entry *entry,
                                    struct shoal_error *error);
/* The row will go with the next add or sweep. Takes the ticket. Never blocks on the disk. */
void storage_index_doom(struct storage_index *index, struct storage_ticket *ticket);
bool storage_index_has_doomed(struct storage_index *index); /* never blocks */
/* Everything doomed goes now. Not OK: it stays doomed. */
enum shoal_status storage_index_sweep(struct storage_index *index, struct shoal_error *error);

/* Sweeps, and moves the write-ahead log into the database when it has grown; additions go on meanwhile. */
void storage_index_maintain(struct storage_index *index);

#endif
