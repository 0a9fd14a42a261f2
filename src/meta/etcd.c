/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster backend: a real etcd v3 through its JSON gateway. Reads are linearizable. */
#include "meta/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define PAGE_FIRST_ENTRIES 256
#define PAGE_MAX_ENTRIES 8192
#define PAGE_TARGET_BYTES (4u << 20)
#define LIST_RESTARTS_MAX 5 /* the revision was compacted while it was paged through */

static struct etcd *etcd_of(struct meta *meta)
{
    return container_of(meta, struct etcd, meta);
}

static enum shoal_status too_large_to_encode(struct shoal_error *error)
{
    return error_set(error, SHOAL_NO_MEMORY, 0, "metadata request: no memory to encode it");
}

static enum shoal_status unexpected(const struct etcd_request *request, enum etcd_verdict verdict,
                                    struct shoal_error *error)
{
    return error_set(error, SHOAL_METADATA, 0, "metadata %s: etcd refuses for a reason that does not apply (%d)",
                     request->what, (int)verdict);
}

static void note_revision(struct etcd *etcd, int64_t revision)
{
    mutex_lock(&etcd->lock);
    if (revision > etcd->revision)
        etcd->revision = revision;
    mutex_unlock(&etcd->lock);
}

static int64_t known_revision(struct etcd *etcd)
{
    mutex_lock(&etcd->lock);
    int64_t revision = etcd->revision;
    mutex_unlock(&etcd->lock);
    return revision;
}

/* --- reading -------------------------------------------------------------------------------------------------------
 */

static enum shoal_status decode_range(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    return etcd_decode_range(text, len, arg, error);
}

static enum shoal_status etcd_get(struct meta *meta, struct meta_bytes key, const struct call *call, bool *is_found_out,
                                  struct meta_entry *entry_out, struct shoal_error *error)
{
    struct etcd *etcd = etcd_of(meta);
    struct etcd_range range = {0};
    enum etcd_verdict verdict;
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    struct etcd_request request = {.what = "get",
                                   .path = "/v3/kv/range",
                                   .kind = META_REQUEST_GET,
                                   .body = &body,
                                   .decode = decode_range,
                                   .arg = &range};
    enum shoal_status status = etcd_encode_get(&body, key) ? SHOAL_OK : too_large_to_encode(error);
    if (status == SHOAL_OK)
        status = etcd_perform(etcd, &request, call, &verdict, error);
    if (status == SHOAL_OK && verdict != ETCD_DONE)
        status = unexpected(&request, verdict, error);
    buf_release(&body);
    if (status != SHOAL_OK)
        return status;
    note_revision(etcd, range.header.revision);
    if (range.count > 1 || (range.count == 1 && (range.entries[0].key_len != key.len ||
                                                 memcmp(range.entries[0].key, key.data, key.len) != 0))) {
        etcd_range_release(&range);
        return error_set(error, SHOAL_METADATA, 0, "metadata get: etcd at %s answers with another key", etcd->uri);
    }
    *is_found_out = range.count == 1;
    if (range.count) {
        *entry_out = range.entries[0];
        range.count = 0;
    }
    etcd_range_release(&range);
    return SHOAL_OK;
}

struct listing {
    struct etcd *etcd;
    struct meta_bytes prefix;
    size_t limit;
    const struct call *call;
    struct meta_entries entries;
    size_t capacity;
    size_t page; /* entries to ask for */
    bool has_more;
};

/* Entries must ascend and have the prefix, or a wrong answer would make us ask for ever. */
static enum shoal_status take_page(struct listing *listing, struct etcd_range *range, struct shoal_error *error)
{
    struct meta_entries *entries = &listing->entries;
    size_t bytes = 0;
    for (size_t i = 0; i < range->count; i++) {
        struct meta_entry *entry = &range->entries[i];
        const struct meta_entry *last = entries->count ? &entries->items[entries->count - 1] : NULL;
        bool is_good = meta_bytes_has_prefix(entry->key, entry->key_len, listing->prefix);
        if (last && is_good) {
            size_t common = last->key_len < entry->key_len ? last->key_len : entry->key_len;
            int order = memcmp(last->key, entry->key, common);
            is_good = order < 0 || (order == 0 && last->key_len < entry->key_len);
        }
        if (!is_good)
            return error_set(error, SHOAL_METADATA, 0, "metadata list: etcd at %s answers with keys out of order",
                             listing->etcd->uri);
        if (entries->count == listing->limit)
            return error_set(error, SHOAL_LIMIT, 0, "metadata list of \"%.*s\": more than %zu entries",
                             (int)listing->prefix.len, (const char *)listing->prefix.data, listing->limit);
        bytes += entry->key_len + entry->value_len;
        if (!meta_entries_push(entries, &listing->capacity, entry))
            return error_no_memory(error);
        *entry = (struct meta_entry){0};
    }
    if (range->has_more && range->count == 0)
        return error_set(error, SHOAL_METADATA, 0, "metadata list: etcd at %s announces more and sends nothing",
                         listing->etcd->uri);
    listing->has_more = range->has_more;
    /* The next page by what this one weighed. */
    if (range->count) {
        size_t wanted = PAGE_TARGET_BYTES / (bytes / range->count + 64);
        listing->page = wanted < 1 ? 1 : wanted > PAGE_MAX_ENTRIES ? PAGE_MAX_ENTRIES : wanted;
    }
    return SHOAL_OK;
}

static enum shoal_status list_page(struct listing *listing, enum etcd_verdict *verdict_out, struct shoal_error *error)
{
    struct meta_entries *entries = &listing->entries;
    struct etcd_range range = {0};
    struct meta_bytes from = {0};
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    struct etcd_request request = {.what = "list",
                                   .path = "/v3/kv/range",
                                   .kind = META_REQUEST_LIST,
                                   .body = &body,
                                   .is_divisible = listing->page > 1,
                                   .decode = decode_range,
                                   .arg = &range};
    if (entries->count) { /* the successor of the last key: the key and a NUL, which every entry has */
        const struct meta_entry *last = &entries->items[entries->count - 1];
        from = (struct meta_bytes){last->key, last->key_len + 1};
    }
    size_t left = listing->limit - entries->count;
    size_t page = left < listing->page ? left + 1 : listing->page;
    enum shoal_status status = etcd_encode_range(&body, listing->prefix, from, page, entries->revision)
                                   ? SHOAL_OK
                                   : too_large_to_encode(error);
    if (status == SHOAL_OK)
        status = etcd_perform(listing->etcd, &request, listing->call, verdict_out, error);
    buf_release(&body);
    if (status != SHOAL_OK || *verdict_out != ETCD_DONE)
        return status;
    if (!entries->revision)
        entries->revision = range.header.revision;
    note_revision(listing->etcd, range.header.revision);
    status = take_page(listing, &range, error);
    etcd_range_release(&range);
    return status;
}

static enum shoal_status etcd_list(struct meta *meta, struct meta_bytes prefix, size_t limit, const struct call *call,
                                   struct meta_entries *entries_out, struct shoal_error *error)
{
    struct listing listing = {.etcd = etcd_of(meta),
                              .prefix = prefix,
                              .limit = limit,
                              .call = call,
                              .page = PAGE_FIRST_ENTRIES,
                              .has_more = true};
    enum shoal_status status = SHOAL_OK;
    unsigned restarts = 0;
    while (status == SHOAL_OK && listing.has_more) {
        enum etcd_verdict verdict = ETCD_DONE;
        status = list_page(&listing, &verdict, error);
        if (status != SHOAL_OK || verdict == ETCD_DONE)
            continue;
        if (verdict == ETCD_ANSWER_TOO_LARGE && listing.page > 1) {
            listing.page = (listing.page + 3) / 4;
        } else if (verdict == ETCD_COMPACTED && restarts++ < LIST_RESTARTS_MAX) {
            meta_entries_release(&listing.entries);
            listing.capacity = 0;
        } else {
            status = error_set(error, SHOAL_METADATA, 0,
                               "metadata list: etcd at %s: revisions are compacted faster than they can be read",
                               listing.etcd->uri);
        }
    }
    if (status == SHOAL_OK)
        *entries_out = listing.entries;
    else
        meta_entries_release(&listing.entries);
    return status;
}

/* --- changing ------------------------------------------------------------------------------------------------------
 */

static enum shoal_status decode_txn(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    return etcd_decode_txn(text, len, arg, error);
}

/* An attempt was lost and its repetition found the compares broken: by somebody else, or by the lost attempt itself. A
 * put under a lease answers it, because nobody else writes under our lease: the key has our lease, our value and a
 * revision that is younger than the call. */
static enum shoal_status was_applied(struct etcd *etcd, const struct meta_op *ops, size_t op_count,
                                     int64_t revision_before, const struct call *call, bool *is_applied_out,
                                     int64_t *revision_out, struct shoal_error *error)
{
    for (size_t i = 0; i < op_count; i++) {
        struct meta_entry entry;
        bool is_found = false, is_ours;
        if (ops[i].kind != META_PUT || ops[i].lease == 0)
            continue;
        enum shoal_status status = etcd_get(&etcd->meta, ops[i].key, call, &is_found, &entry, error);
        if (status != SHOAL_OK)
            return status;
        if (!is_found)
            break;
        is_ours = entry.lease == ops[i].lease && entry.value_len == ops[i].value.len &&
                  memcmp(entry.value, ops[i].value.data, entry.value_len) == 0 && entry.mod_revision > revision_before;
        if (is_ours) {
            *is_applied_out = true;
            *revision_out = entry.mod_revision;
        }
        meta_entry_release(&entry);
        if (is_ours)
            return SHOAL_OK;
        break;
    }
    return error_set(error, SHOAL_METADATA, 0,
                     "metadata transaction: etcd at %s: the answer was lost and the keys have changed since; "
                     "it is unknown whether it was applied",
                     etcd->uri);
}

static enum shoal_status etcd_txn(struct meta *meta, const struct meta_compare *compares, size_t compare_count,
                                  const struct meta_op *ops, size_t op_count, const struct call *call,
                                  bool *is_applied_out, int64_t *revision_out, struct shoal_error *error)
{
    struct etcd *etcd = etcd_of(meta);
    struct etcd_txn txn = {0};
    enum etcd_verdict verdict;
    bool is_repeated = false;
    int64_t revision_before = known_revision(etcd);
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    struct etcd_request request = {.what = "transaction",
                                   .path = "/v3/kv/txn",
                                   .kind = META_REQUEST_TXN,
                                   .body = &body,
                                   .is_change = true,
                                   .decode = decode_txn,
                                   .arg = &txn,
                                   .is_repeated_out = &is_repeated};
    enum shoal_status status =
        etcd_encode_txn(&body, compares, compare_count, ops, op_count) ? SHOAL_OK : too_large_to_encode(error);
    if (status == SHOAL_OK)
        status = etcd_perform(etcd, &request, call, &verdict, error);
    buf_release(&body);
    if (status != SHOAL_OK)
        return status;
    if (verdict == ETCD_NO_LEASE)
        return error_set(error, SHOAL_NOT_FOUND, 0, "metadata transaction: a lease has expired or never existed");
    if (verdict != ETCD_DONE)
        return unexpected(&request, verdict, error);
    note_revision(etcd, txn.header.revision);
    if (!txn.is_succeeded && is_repeated)
        return was_applied(etcd, ops, op_count, revision_before, call, is_applied_out, revision_out, error);
    *is_applied_out = txn.is_succeeded;
    *revision_out = txn.header.revision;
    return SHOAL_OK;
}

/* --- leases --------------------------------------------------------------------------------------------------------
 */

static enum shoal_status lease_request(struct etcd *etcd, const char *what, const char *path, bool is_encoded,
                                       struct buf *body, etcd_decode_fn decode, void *arg, const struct call *call,
                                       enum etcd_verdict *verdict_out, struct shoal_error *error)
{
    struct etcd_request request = {
        .what = what, .path = path, .kind = META_REQUEST_LEASE, .body = body, .decode = decode, .arg = arg};
    enum shoal_status status = is_encoded ? SHOAL_OK : too_large_to_encode(error);
    if (status == SHOAL_OK)
        status = etcd_perform(etcd, &request, call, verdict_out, error);
    if (status == SHOAL_OK && *verdict_out != ETCD_DONE && *verdict_out != ETCD_NO_LEASE &&
        *verdict_out != ETCD_LEASE_EXISTS)
        status = unexpected(&request, *verdict_out, error);
    buf_release(body);
    return status;
}

static enum shoal_status no_lease(int64_t lease, struct shoal_error *error)
{
    return error_set(error, SHOAL_NOT_FOUND, 0, "metadata lease %llx has expired or never existed",
                     (unsigned long long)lease);
}

static enum shoal_status decode_grant(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    return etcd_decode_lease_grant(text, len, arg, error);
}

/* We choose the id, so a repetition finds the lease of the lost attempt. */
static enum shoal_status etcd_lease_grant(struct meta *meta, int64_t ttl_ms, const struct call *call,
                                          int64_t *lease_out, struct shoal_error *error)
{
    struct etcd_lease answer = {0};
    enum etcd_verdict verdict;
    struct buf body;
    int64_t lease = (int64_t)(random_id() >> 1) | 1;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    enum shoal_status status = lease_request(etcd_of(meta), "lease grant", "/v3/lease/grant",
                                             etcd_encode_lease_grant(&body, lease, (ttl_ms + 999) / 1000), &body,
                                             decode_grant, &answer, call, &verdict, error);
    if (status != SHOAL_OK)
        return status;
    if (verdict == ETCD_NO_LEASE || (verdict == ETCD_DONE && answer.id != lease))
        return error_set(error, SHOAL_METADATA, 0, "metadata lease grant: etcd at %s grants another lease",
                         etcd_of(meta)->uri);
    *lease_out = lease;
    return SHOAL_OK;
}

static enum shoal_status decode_keep_alive(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    return etcd_decode_keep_alive(text, len, arg, error);
}

static enum shoal_status etcd_lease_keep_alive(struct meta *meta, int64_t lease, const struct call *call,
                                               struct shoal_error *error)
{
    struct etcd_lease answer = {0};
    enum etcd_verdict verdict;
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    enum shoal_status status =
        lease_request(etcd_of(meta), "lease keep-alive", "/v3/lease/keepalive", etcd_encode_lease(&body, lease), &body,
                      decode_keep_alive, &answer, call, &verdict, error);
    if (status != SHOAL_OK)
        return status;
    return verdict == ETCD_DONE && answer.ttl_s > 0 ? SHOAL_OK : no_lease(lease, error);
}

static enum shoal_status decode_header(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    return etcd_decode_header(text, len, arg, error);
}

static enum shoal_status etcd_lease_revoke(struct meta *meta, int64_t lease, const struct call *call,
                                           struct shoal_error *error)
{
    struct etcd_header header;
    enum etcd_verdict verdict;
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    return lease_request(etcd_of(meta), "lease revoke", "/v3/lease/revoke", etcd_encode_lease(&body, lease), &body,
                         decode_header, &header, call, &verdict, error);
}

/* --- life ----------------------------------------------------------------------------------------------------------
 */

static enum shoal_status decode_status(const char *text, size_t len, void *arg, struct shoal_error *error)
{
    struct meta_health *health = arg;
    return etcd_decode_status(text, len, health->version, sizeof health->version, error);
}

static enum shoal_status etcd_ping(struct meta *meta, const struct call *call, struct meta_health *health,
                                   struct shoal_error *error)
{
    enum etcd_verdict verdict;
    struct buf body;
    buf_init(&body, ETCD_REQUEST_MAX_BYTES);
    struct etcd_request request = {.what = "ping",
                                   .path = "/v3/maintenance/status",
                                   .kind = META_REQUEST_OTHER,
                                   .body = &body,
                                   .decode = decode_status,
                                   .arg = health,
                                   .clock = health};
    enum shoal_status status = buf_append_str(&body, "{}") ? SHOAL_OK : too_large_to_encode(error);
    if (status == SHOAL_OK)
        status = etcd_perform(etcd_of(meta), &request, call, &verdict, error);
    if (status == SHOAL_OK && verdict != ETCD_DONE)
        status = unexpected(&request, verdict, error);
    buf_release(&body);
    return status;
}

static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static void etcd_close(struct meta *meta)
{
    struct etcd *etcd = etcd_of(meta);
    struct list_node *node;
    while ((node = list_pop_front(&etcd->idle)))
        etcd_http_destroy(container_of(node, struct etcd_http, node));
    free(etcd->http_config.cacert);
    free(etcd->http_config.cert);
    free(etcd->http_config.key);
    free(etcd->user);
    free_secret(etcd->password);
    free(etcd->uri);
    mutex_release(&etcd->lock);
    meta_release(&etcd->meta);
    explicit_bzero(etcd->token, sizeof etcd->token);
    free(etcd);
}

static const struct meta_ops etcd_ops = {
    .name = "etcd",
    .close = etcd_close,
    .get = etcd_get,
    .list = etcd_list,
    .txn = etcd_txn,
    .lease_grant = etcd_lease_grant,
    .lease_keep_alive = etcd_lease_keep_alive,
    .lease_revoke = etcd_lease_revoke,
    .watch_open = etcd_watch_open,
    .watch_close = etcd_watch_close,
    .ping = etcd_ping,
};

enum shoal_status meta_etcd_open(const char *rest, bool is_tls, struct meta **meta_out, struct shoal_error *error)
{
    enum shoal_status status = etcd_http_global_init(error);
    if (status != SHOAL_OK)
        return status;
    struct etcd *etcd = calloc(1, sizeof *etcd);
    if (!etcd)
        return error_no_memory(error);
    meta_init(&etcd->meta, &etcd_ops);
    mutex_init(&etcd->lock, RANK_META);
    list_init(&etcd->idle);
    random_init(&etcd->random, random_id());
    status = etcd_parse_uri(etcd, rest, is_tls, error);
    if (status != SHOAL_OK) {
        etcd_close(&etcd->meta);
        return status;
    }
    for (size_t i = 0, len = 0; i < etcd->endpoint_count && len < sizeof etcd->meta.where; i++)
        len += (size_t)snprintf(etcd->meta.where + len, sizeof etcd->meta.where - len, "%s%s", i ? "," : "",
                                etcd->endpoints[i].name);
    /* Nodes spread over the members. */
    etcd->preferred = (size_t)random_below(&etcd->random, etcd->endpoint_count);
    *meta_out = &etcd->meta;
    return SHOAL_OK;
}
