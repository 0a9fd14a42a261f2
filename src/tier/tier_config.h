/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of --tiered_backend_config:
 *
 *     {"tiers": [{"type": "DRAM", "capacity": 536870912, "priority": 100, "allocator_type": "OFFSET"},
 *                {"type": "STORAGE", "capacity": "100GB", "priority": 10, "storage_filepath": "/data/kv"}]}
 *
 * DRAM also has "numa_node" (a number) and "huge_pages" (true or false); beside "tiers" there may be "watermark_low",
 * "watermark_high" and "watermark_critical" (percent).
 */
#ifndef SHOAL_TIER_TIER_CONFIG_H
#define SHOAL_TIER_TIER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <shoal/status.h>

#define TIER_COUNT_MAX 8

enum tier_type { TIER_DRAM = 1, TIER_STORAGE = 2 };

struct tier_config {
    enum tier_type type;
    uint64_t capacity_bytes;
    int priority;           /* higher is preferred; equal: order of the list */
    char *storage_filepath; /* STORAGE: directory, owned; DRAM: NULL */
    int numa_node;          /* DRAM; -1: any */
    bool wants_huge_pages;  /* DRAM: asked for, not insisted on */
};

struct tier_config_list {
    struct tier_config tiers[TIER_COUNT_MAX];
    size_t count;
    unsigned watermark_low, watermark_high, watermark_critical; /* percent; 0: default */
};

/* text: JSON, or the path of a file with it (anything that does not begin with '{'). INVALID_ARGUMENT: names line or
 * field and what is accepted there; capacity is a number of bytes or a text as "512MB", "4GiB". Unknown fields are
 * errors, the fields of this format that have no use here ("tags", "allocator_type": "OFFSET") are accepted. */
enum shoal_status tier_config_parse(const char *text, struct tier_config_list *list_out, struct shoal_error *error);
void tier_config_release(struct tier_config_list *list);
const char *tier_type_name(enum tier_type type);

#endif
