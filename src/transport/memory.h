/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of one node: reference-counted regions that peers may access, and pins that keep a region from
 * being released while bytes move. Used from every thread; one mutex (RANK_MEMORY), never held over I/O. */
#ifndef SHOAL_TRANSPORT_MEMORY_H
#define SHOAL_TRANSPORT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal/engine.h>
#include <shoal/status.h>

#include "transport/device.h"

struct memory_table;
struct memory_region;

enum shoal_status memory_table_create(struct memory_table **out, struct shoal_error *error);
void memory_table_destroy(struct memory_table *table); /* no region may be left; NULL is allowed */

/* location "cuda:N": the errors of device_open and device_check. */
enum shoal_status memory_register(struct memory_table *table, void *addr, uint64_t len, const char *location,
                                  unsigned access, uint64_t *key_out, struct shoal_error *error);

/* Drops a reference. With the last one: no new pins; waits up to grace_ms for pins (but not for loans) to go; then
 * calls evict (which makes the transports drop the connections that hold pins of the region) and waits until all are
 * gone. */
enum shoal_status memory_unregister(struct memory_table *table, void *addr, uint64_t len, int64_t grace_ms,
                                    void (*evict)(void *arg, struct memory_region *region), void *arg,
                                    struct shoal_error *error);

/* A second key for a part of a registered region, with an end of its own: what one peer may do for a while. The region
 * must stay registered meanwhile. len 0: key 0. INVALID_ARGUMENT: not inside one region; NO_MEMORY. */
enum shoal_status memory_window_open(struct memory_table *table, void *addr, uint64_t len, unsigned access,
                                     uint64_t *key_out, struct shoal_error *error);
/* As memory_unregister, for the accesses that came with the window's key. An unknown key: nothing. */
void memory_window_close(struct memory_table *table, uint64_t key, int64_t grace_ms,
                         void (*evict)(void *arg, struct memory_region *region), void *arg);

/* Pins the region that covers [addr, addr+len) if it grants access (0: a local use) and key matches (0: any; a
 * window's: the window instead of the region).
 * INVALID_ARGUMENT: refused. IO: a remote access to memory that is marked faulty. reason_out says why (static text). */
enum shoal_status memory_pin(struct memory_table *table, uint64_t addr, uint64_t len, uint64_t key, unsigned access,
                             struct memory_region **region_out, const char **reason_out);
void memory_unpin(struct memory_table *table, struct memory_region *region);
/* A pin becomes a loan: it lasts until evict asks for it back, so an unregistration does not wait for it first. Such a
 * pin is given back by memory_return. */
void memory_lend(struct memory_table *table, struct memory_region *region);
void memory_return(struct memory_table *table, struct memory_region *region);
/* A remote access found the memory unreadable (a mapped file shrank): later remote pins are refused. */
void memory_mark_faulty(struct memory_table *table, struct memory_region *region);
bool memory_is_dying(struct memory_table *table, const struct memory_region *region);
const char *memory_location(const struct memory_region *region);
/* Of a pinned region (or window); they never change. */
struct memory_bounds {
    uint64_t addr, len, key;
};
struct memory_bounds memory_bounds(const struct memory_region *region);
/* NULL: memory that the processor can touch. Borrowed while the region is pinned. */
struct device *memory_device(const struct memory_region *region);
uint64_t memory_allocation(const struct memory_region *region); /* for struct device_copy */

uint64_t memory_registered_bytes(struct memory_table *table);

#endif
