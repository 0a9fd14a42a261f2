/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a metadata service that nobody vouches for. The first byte chooses the decoder, the rest is the answer. */
#include "fuzz.h"

#include <string.h>

#include "meta/etcd_codec.h"

/* Reads everything, so that a sanitizer sees what is not there. */
static void check_entry(const struct meta_entry *entry)
{
    FUZZ_REQUIRE(entry->key_len > 0 && entry->mod_revision > 0);
    FUZZ_REQUIRE(entry->key[entry->key_len] == '\0' && entry->value[entry->value_len] == '\0');
    FUZZ_REQUIRE(entry->create_revision >= 0 && entry->lease >= 0);
    FUZZ_REQUIRE(strlen(entry->key) <= entry->key_len && strlen(entry->value) <= entry->value_len);
}

static void check_range(const char *text, size_t len)
{
    struct etcd_range range;
    if (etcd_decode_range(text, len, &range, NULL) != SHOAL_OK)
        return;
    FUZZ_REQUIRE(range.header.revision > 0);
    for (size_t i = 0; i < range.count; i++)
        check_entry(&range.entries[i]);
    etcd_range_release(&range);
}

static void check_watch(const char *text, size_t len)
{
    struct etcd_watch_answer answer;
    if (etcd_decode_watch(text, len, &answer, NULL) != SHOAL_OK)
        return;
    FUZZ_REQUIRE(!answer.is_failure || answer.count == 0);
    FUZZ_REQUIRE(strlen(answer.failure.message) < sizeof answer.failure.message);
    for (size_t i = 0; i < answer.count; i++)
        check_entry(&answer.events[i].entry);
    etcd_watch_answer_release(&answer);
}

static void check_small(const char *text, size_t len)
{
    struct etcd_txn txn;
    struct etcd_lease lease;
    struct etcd_header header;
    struct etcd_failure failure;
    char token[ETCD_TOKEN_MAX_BYTES], version[16];
    if (etcd_decode_txn(text, len, &txn, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(txn.header.revision > 0);
    if (etcd_decode_lease_grant(text, len, &lease, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(lease.id > 0 && lease.ttl_s > 0);
    if (etcd_decode_keep_alive(text, len, &lease, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(lease.id > 0 && lease.ttl_s >= 0);
    if (etcd_decode_header(text, len, &header, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(header.revision >= 0);
    if (etcd_decode_authenticate(text, len, token, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(*token && !strpbrk(token, "\r\n "));
    if (etcd_decode_status(text, len, version, sizeof version, NULL) == SHOAL_OK)
        FUZZ_REQUIRE(strncmp(version, "etcd ", 5) == 0);
    if (etcd_decode_failure(text, len, &failure))
        FUZZ_REQUIRE(failure.code >= 0 && strlen(failure.message) < sizeof failure.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    switch (data[0]) {
    case 'r':
        check_range(text, size - 1);
        break;
    case 'w':
        check_watch(text, size - 1);
        break;
    default:
        check_small(text, size - 1);
    }
    return 0;
}
