/* SPDX-License-Identifier: Apache-2.0 */
/* Many values at a time for the tests of the KV store with real processes.
 *
 * usage: kv_bulk (--master|--client) HOST:PORT fill|again|check|sweep PREFIX COUNT BYTES
 *
 *   fill   puts PREFIX0 .. PREFIX(COUNT-1), whose content follows from their number; each must succeed
 *   again  puts other content under the same keys; each must be refused as existing
 *   check  gets each and compares every byte
 *   sweep  as check, but a key may be missing: prints "found N missing M" and fails if a listed key cannot be read
 *
 * Prints what it did on the last line; exit code 1 and why on stderr otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/kv.h>

#include "content.h"

#define TIMEOUT_MS 120000
#define BATCH 512

struct bulk {
    struct shoal_kv *kv;
    const char *prefix;
    unsigned long long count, bytes;
};

static char keys[BATCH][256];
static struct shoal_kv_item items[BATCH];

static struct shoal_call call(void)
{
    return (struct shoal_call){.struct_size = sizeof(struct shoal_call), .timeout_ms = TIMEOUT_MS};
}

static int fail(const char *what, const char *key, enum shoal_status status, const struct shoal_error *error)
{
    fprintf(stderr, "%s \"%s\": %s: %s\n", what, key, shoal_status_name(status), error ? error->message : "");
    return 1;
}

/* Puts all, in batches, and looks whether each has the wanted status. */
static int put_all(const struct bulk *bulk, unsigned long long salt, enum shoal_status wanted)
{
    char *data = malloc((size_t)bulk->bytes * BATCH + 1);
    int code = data ? 0 : 1;
    for (unsigned long long first = 0; first < bulk->count && code == 0; first += BATCH) {
        size_t count = bulk->count - first < BATCH ? (size_t)(bulk->count - first) : BATCH;
        struct shoal_call limit = call();
        struct shoal_error error;
        for (size_t i = 0; i < count; i++) {
            snprintf(keys[i], sizeof keys[i], "%s%llu", bulk->prefix, first + i);
            items[i] = (struct shoal_kv_item){keys[i], data + i * bulk->bytes, bulk->bytes, SHOAL_OK};
            content_fill(items[i].data, (size_t)bulk->bytes, first + i + 1 + salt, 0);
        }
        (void)shoal_kv_put_batch(bulk->kv, items, count, NULL, &limit, &error);
        for (size_t i = 0; i < count && code == 0; i++)
            if (items[i].status != wanted)
                code = fail("put", keys[i], items[i].status, &error);
    }
    free(data);
    return code;
}

static int check_all(const struct bulk *bulk, int may_miss)
{
    unsigned long long missing = 0;
    char *buffer = malloc((size_t)bulk->bytes + 1);
    int code = buffer ? 0 : 1;
    for (unsigned long long i = 0; i < bulk->count && code == 0; i++) {
        struct shoal_call limit = call();
        struct shoal_error error;
        uint64_t len = 0;
        snprintf(keys[0], sizeof keys[0], "%s%llu", bulk->prefix, i);
        enum shoal_status status = shoal_kv_get_into(bulk->kv, keys[0], buffer, bulk->bytes + 1, &limit, &len, &error);
        if (status == SHOAL_NOT_FOUND && may_miss)
            missing++;
        else if (status != SHOAL_OK)
            code = fail("get", keys[0], status, &error);
        else if (len != bulk->bytes || content_find_difference(buffer, (size_t)len, i + 1, 0) >= 0)
            code = fail("other bytes in", keys[0], SHOAL_CORRUPTED, NULL);
    }
    if (code == 0)
        printf("found %llu missing %llu\n", bulk->count - missing, missing);
    free(buffer);
    return code;
}

struct listed {
    char (*keys)[256];
    size_t count, size;
};

static int keep(void *arg, const struct shoal_kv_entry *entry)
{
    struct listed *listed = arg;
    if (listed->count < listed->size)
        snprintf(listed->keys[listed->count++], sizeof *listed->keys, "%s", entry->key);
    return 0;
}

/* Every key that the master knows can be read. Evictions go on meanwhile: one that is gone from the list by then was
 * only late. */
static int check_listed(const struct bulk *bulk)
{
    struct listed listed = {.keys = malloc((size_t)bulk->count * 256), .size = (size_t)bulk->count};
    struct shoal_call limit = call();
    struct shoal_error error;
    char pattern[256];
    int code = 0;
    snprintf(pattern, sizeof pattern, "%s*", bulk->prefix);
    if (!listed.keys)
        return 1;
    if (shoal_kv_list(bulk->kv, pattern, &limit, keep, &listed, &error) != SHOAL_OK)
        code = fail("list", pattern, error.status, &error);
    for (size_t i = 0; i < listed.count && code == 0; i++) {
        int exists = 0;
        void *data = NULL;
        uint64_t len;
        limit = call();
        enum shoal_status status = shoal_kv_get(bulk->kv, listed.keys[i], &limit, &data, &len, &error);
        free(data);
        if (status == SHOAL_OK)
            continue;
        limit = call();
        if (shoal_kv_exist(bulk->kv, listed.keys[i], &limit, &exists, &error) != SHOAL_OK || exists)
            code = fail("listed, but not there:", listed.keys[i], status, &error);
    }
    printf("listed %zu\n", listed.count);
    free(listed.keys);
    return code;
}

int main(int argc, char **argv)
{
    struct shoal_kv_config config = {.struct_size = sizeof config};
    struct bulk bulk;
    struct shoal_error error;
    struct shoal_call limit = call();
    int code = 2;
    if (argc != 7)
        return 2;
    if (strcmp(argv[1], "--master") == 0)
        config.master = argv[2];
    else
        config.client = argv[2];
    bulk.prefix = argv[4];
    bulk.count = strtoull(argv[5], NULL, 10);
    bulk.bytes = strtoull(argv[6], NULL, 10);
    if (shoal_kv_open(&config, &limit, &bulk.kv, &error) != SHOAL_OK)
        return fail("open", argv[2], error.status, &error);
    if (strcmp(argv[3], "fill") == 0)
        code = put_all(&bulk, 0, SHOAL_OK);
    else if (strcmp(argv[3], "again") == 0)
        code = put_all(&bulk, 1u << 30, SHOAL_EXISTS);
    else if (strcmp(argv[3], "check") == 0)
        code = check_all(&bulk, 0);
    else if (strcmp(argv[3], "sweep") == 0)
        code = check_all(&bulk, 1) || check_listed(&bulk);
    shoal_kv_close(bulk.kv);
    if (code == 0)
        printf("ok\n");
    return code;
}
