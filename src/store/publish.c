/* SPDX-License-Identifier: Apache-2.0 */
/* What the store writes into the metadata service. Under ".../payloads/<escaped name>/":
 *
 *   manifest                          the payload's manifest, without lease
 *   sources/<generation>/<node>       one per source, under the node's lease
 *
 * A join is one transaction that only compares the manifest, so simultaneous joins never fight. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "engine/keys.h"
#include "store/store_internal.h"

#define LOG_MODULE "store"
#include "base/log.h"

#define KEY_MAX_BYTES META_KEY_MAX_BYTES
#define BACKOFF_BASE_MS 10
#define BACKOFF_MAX_MS 1000
#define WITHDRAW_NOW_MS 2000
#define STEP_MS 10000 /* one step with the metadata service, also for a call that has no deadline of its own */

static struct meta_bytes bytes_of(const char *text)
{
    return (struct meta_bytes){.data = text, .len = strlen(text)};
}

/* A call without (or with a far) deadline does not wait for a dead metadata service for ever. */
static struct call step_of(const struct call *call)
{
    return call_with_timeout(call, STEP_MS);
}

/* The step's own limit is not the caller's deadline: say what it means. */
static enum shoal_status step_status(enum shoal_status status, const struct call *call, struct shoal_error *error)
{
    if (status != SHOAL_TIMED_OUT || deadline_is_past(call->deadline_ms))
        return status;
    if (error)
        error->status = SHOAL_METADATA;
    return SHOAL_METADATA;
}

static bool append_name(struct buf *key, struct shoal_store *store, const char *name)
{
    char *base = engine_key(store->cluster, "payloads", name);
    bool is_ok = base && buf_append_str(key, base) && buf_append_str(key, "/");

    free(base);
    return is_ok;
}

static char *take_key(struct buf *key, bool is_ok)
{
    size_t len;

    if (is_ok)
        return (char *)buf_take(key, &len);
    buf_release(key);
    return NULL;
}

char *publish_prefix(struct shoal_store *store, const char *name)
{
    struct buf key;

    buf_init(&key, KEY_MAX_BYTES);
    return take_key(&key, append_name(&key, store, name));
}

static char *manifest_key(struct shoal_store *store, const char *name)
{
    struct buf key;

    buf_init(&key, KEY_MAX_BYTES);
    return take_key(&key, append_name(&key, store, name) && buf_append_str(&key, "manifest"));
}

/* node NULL: the prefix of all sources of the generation. */
static char *source_key(struct shoal_store *store, const char *name, uint64_t generation, const char *node)
{
    struct buf key;

    buf_init(&key, KEY_MAX_BYTES);
    return take_key(&key, append_name(&key, store, name) &&
                              buf_append_format(&key, "sources/%016" PRIx64 "/", generation) &&
                              (!node || engine_key_escape(&key, node, strlen(node))));
}

void payload_record_release(struct payload_record *record)
{
    manifest_release(&record->manifest);
    free(record->sources);
    *record = (struct payload_record){0};
}

static bool ends_with(const struct meta_entry *entry, size_t prefix_len, const char *rest)
{
    return entry->key_len == prefix_len + strlen(rest) && memcmp(entry->key + prefix_len, rest, strlen(rest)) == 0;
}

enum shoal_status publish_read(struct shoal_store *store, const char *name, const struct call *call,
                               struct payload_record *record_out, struct shoal_error *error)
{
    struct payload_record record = {0};
    struct meta_entries entries = {0};
    struct call step = step_of(call);
    char *prefix = publish_prefix(store, name);
    enum shoal_status status;

    if (!prefix)
        return error_no_memory(error);
    status =
        step_status(meta_list(engine_meta(store->engine), bytes_of(prefix), 0, &step, &entries, error), call, error);
    if (status) {
        error_prefix(error, "payload '%s'", name);
        goto out;
    }
    record.revision = entries.revision;
    record.sources = calloc(entries.count + 1, sizeof *record.sources);
    if (!record.sources) {
        status = error_no_memory(error);
        goto out;
    }
    for (size_t i = 0; i < entries.count; i++) { /* "manifest" sorts before "sources/..." */
        const struct meta_entry *entry = &entries.items[i];
        struct shoal_error detail;

        if (ends_with(entry, strlen(prefix), "manifest")) {
            record.has_manifest = true;
            record.manifest_revision = entry->mod_revision;
            record.manifest_status = manifest_decode(&record.manifest, entry->value, entry->value_len, &detail);
            if (!record.manifest_status && strcmp(record.manifest.name, name) != 0) {
                manifest_release(&record.manifest);
                record.manifest_status =
                    error_set(&detail, SHOAL_PROTOCOL, 0, "manifest is of another payload than its key");
            }
            if (record.manifest_status)
                LOG_WARN("payload '%s': %s", name, detail.message);
        } else if (source_entry_decode(&record.sources[record.source_count], entry->value, entry->value_len, &detail)) {
            LOG_WARN("payload '%s': ignoring %s: %s", name, entry->key, detail.message);
        } else if (record.has_manifest && !record.manifest_status &&
                   record.sources[record.source_count].generation == record.manifest.generation) {
            record.source_count++;
        }
    }
    *record_out = record;
    record = (struct payload_record){0};
out:
    payload_record_release(&record);
    meta_entries_release(&entries);
    free(prefix);
    return status;
}

enum shoal_status publish_find(struct shoal_store *store, const char *name, uint64_t generation,
                               const struct call *call, struct payload_record *record_out, struct shoal_error *error)
{
    struct payload_record record;
    enum shoal_status status = publish_read(store, name, call, &record, error);

    if (status)
        return status;
    if (!record.has_manifest)
        status = error_set(error, SHOAL_PAYLOAD_NOT_FOUND, 0, "no payload '%s' in the metadata service", name);
    else if (record.manifest_status)
        status = error_set(error, SHOAL_METADATA, 0, "payload '%s': its manifest cannot be read", name);
    else if (generation && record.manifest.generation != generation)
        status = error_set(error, SHOAL_REPLACED, 0, "payload '%s' is generation %016" PRIx64 " now, not %016" PRIx64,
                           name, record.manifest.generation, generation);
    if (status)
        payload_record_release(&record);
    else
        *record_out = record;
    return status;
}

static enum shoal_status wait_for_lease(struct shoal_store *store, const struct call *call, int64_t *lease_out,
                                        struct shoal_error *error)
{
    int64_t lease;

    while (!(lease = engine_lease(store->engine))) {
        enum shoal_status status = call_sleep(call, 20, error, "waiting for a lease of the metadata service");
        if (status)
            return status == SHOAL_TIMED_OUT
                       ? error_set(error, SHOAL_METADATA, 0, "no lease: the metadata service does not answer")
                       : status;
    }
    *lease_out = lease;
    return SHOAL_OK;
}

static enum shoal_status encode_entry(struct payload *payload, struct buf *out, struct shoal_error *error)
{
    struct shoal_engine *engine = payload->store->engine;
    struct source_entry entry = {
        .instance = engine_instance(engine), .generation = payload->generation, .is_gold = payload->is_gold};

    snprintf(entry.name, sizeof entry.name, "%s", shoal_engine_server_name(engine));
    snprintf(entry.address, sizeof entry.address, "%s", engine_address(engine));
    return source_entry_encode(&entry, out, error);
}

static void set_published(struct payload *payload)
{
    mutex_lock(&payload->store->mutex);
    payload->is_published = true;
    payload->checked_ms = clock_now_ms();
    mutex_unlock(&payload->store->mutex);
}

/* record: what has the name now. Says it once. */
static void set_superseded(struct payload *payload, const struct payload_record *record)
{
    const char *owner = record->source_count ? record->sources[0].name : NULL;
    bool is_news;
    char *copy;

    for (size_t i = 0; i < record->source_count; i++)
        owner = record->sources[i].is_gold ? record->sources[i].name : owner;
    copy = owner ? strdup(owner) : NULL; /* NULL: only the name is not told */
    mutex_lock(&payload->store->mutex);
    is_news = !payload->is_superseded;
    payload->is_published = payload->wants_publication = false;
    payload->is_superseded = true;
    if (is_news) {
        payload->replaced_by = copy;
        copy = NULL;
    }
    mutex_unlock(&payload->store->mutex);
    free(copy);
    if (is_news)
        LOG_WARN("payload '%s': %s replaced it with another generation; this node serves its copy to those who pull it "
                 "already, and announces it no more",
                 payload->name, owner ? owner : "another node");
}

/* One transaction that puts the source entry, and the manifest too if compare is on a missing or replaced one.
 * replaced_generation 0: none. is_applied_out false: the compare failed or the lease was lost; read again. */
static enum shoal_status put(struct payload *payload, const struct meta_compare *compare, bool with_manifest,
                             uint64_t replaced_generation, const struct call *call, bool *is_applied_out,
                             struct shoal_error *error)
{
    struct shoal_store *store = payload->store;
    char *key = source_key(store, payload->name, payload->generation, shoal_engine_server_name(store->engine));
    char *manifest = manifest_key(store, payload->name);
    char *replaced = replaced_generation ? source_key(store, payload->name, replaced_generation, NULL) : NULL;
    struct meta_op ops[3];
    size_t op_count = 0;
    struct buf entry;
    struct call step = step_of(call);
    int64_t lease = 0;
    enum shoal_status status;

    buf_init(&entry, SOURCE_ENTRY_MAX_BYTES);
    if (!key || !manifest || (replaced_generation && !replaced)) {
        status = error_no_memory(error);
        goto out;
    }
    status = encode_entry(payload, &entry, error);
    if (!status)
        status = step_status(wait_for_lease(store, &step, &lease, error), call, error);
    if (status)
        goto out;
    ops[op_count++] = (struct meta_op){
        .kind = META_PUT, .key = bytes_of(key), .value = {.data = entry.data, .len = entry.len}, .lease = lease};
    if (with_manifest)
        ops[op_count++] = (struct meta_op){.kind = META_PUT,
                                           .key = bytes_of(manifest),
                                           .value = {.data = payload->manifest.data, .len = payload->manifest.len}};
    if (replaced)
        ops[op_count++] = (struct meta_op){.kind = META_DELETE_PREFIX, .key = bytes_of(replaced)};
    status =
        step_status(meta_txn(engine_meta(store->engine), compare, 1, ops, op_count, &step, is_applied_out, NULL, error),
                    call, error);
    if (status == SHOAL_NOT_FOUND) { /* the lease was lost between */
        engine_lease_lost(store->engine, lease);
        *is_applied_out = false;
        status = SHOAL_OK;
    }
    if (status)
        error_prefix(error, "publishing payload '%s'", payload->name);
    else if (*is_applied_out)
        set_published(payload);
out:
    buf_release(&entry);
    free(replaced);
    free(manifest);
    free(key);
    return status;
}

static enum shoal_status back_off(struct shoal_store *store, struct random *random, unsigned attempt,
                                  const struct call *call, struct shoal_error *error)
{
    atomic_fetch_add_explicit(&store->counters.publish_retries, 1, memory_order_relaxed);
    return call_sleep(call, backoff_ms(random, attempt, BACKOFF_BASE_MS, BACKOFF_MAX_MS), error,
                      "publishing in the metadata service");
}

enum shoal_status publish_create(struct payload *payload, bool force, const struct call *call,
                                 struct shoal_error *error)
{
    struct shoal_store *store = payload->store;
    char *manifest = manifest_key(store, payload->name);
    struct random random;
    enum shoal_status status = manifest ? SHOAL_OK : error_no_memory(error);
    bool is_applied = false;

    random_init(&random, random_id());
    for (unsigned attempt = 0; !status && !is_applied; attempt++) {
        struct payload_record record;
        struct meta_compare compare = {.kind = META_KEY_ABSENT, .key = bytes_of(manifest)};
        uint64_t replaced = 0;

        if (attempt && (status = back_off(store, &random, attempt - 1, call, error)))
            break;
        status = publish_read(store, payload->name, call, &record, error);
        if (status)
            break;
        if (record.has_manifest && !record.manifest_status && record.manifest.generation == payload->generation) {
            /* Ours: an attempt was applied and its answer lost. The same again does no harm. */
            compare.kind = META_MOD_REVISION_IS;
            compare.revision = record.manifest_revision;
        } else if (record.has_manifest) {
            /* A manifest without a live source is what a dead cluster left behind: it may be replaced. */
            if (!force && (record.source_count || record.manifest_status)) {
                status = error_set(error, SHOAL_EXISTS, 0,
                                   "payload '%s' exists with %zu live source(s)%s%s: use force to replace it",
                                   payload->name, record.source_count, record.source_count ? ", one is " : "",
                                   record.source_count ? record.sources[0].name : "");
            } else {
                compare.kind = META_MOD_REVISION_IS;
                compare.revision = record.manifest_revision;
                replaced = record.manifest_status ? 0 : record.manifest.generation;
            }
        }
        payload_record_release(&record);
        if (!status)
            status = put(payload, &compare, true, replaced, call, &is_applied, error);
    }
    free(manifest);
    return status;
}

enum shoal_status publish_join_known(struct payload *payload, int64_t manifest_revision, const struct call *call,
                                     struct shoal_error *error)
{
    char *manifest = manifest_key(payload->store, payload->name);
    struct meta_compare compare = {.kind = META_MOD_REVISION_IS, .revision = manifest_revision};
    bool is_applied = false;
    enum shoal_status status;

    if (!manifest)
        return error_no_memory(error);
    compare.key = bytes_of(manifest);
    status = put(payload, &compare, false, 0, call, &is_applied, error);
    free(manifest);
    if (status || is_applied)
        return status;
    return publish_join(payload, call, error);
}

enum shoal_status publish_join(struct payload *payload, const struct call *call, struct shoal_error *error)
{
    struct shoal_store *store = payload->store;
    char *manifest = manifest_key(store, payload->name);
    struct random random;
    enum shoal_status status = manifest ? SHOAL_OK : error_no_memory(error);
    bool is_applied = false;

    random_init(&random, random_id());
    for (unsigned attempt = 0; !status && !is_applied; attempt++) {
        struct payload_record record;
        struct meta_compare compare = {.kind = META_KEY_ABSENT, .key = bytes_of(manifest)};
        bool is_other;

        if (attempt && (status = back_off(store, &random, attempt - 1, call, error)))
            break;
        status = publish_read(store, payload->name, call, &record, error);
        if (status)
            break;
        is_other = record.has_manifest && (record.manifest_status || record.manifest.generation != payload->generation);
        if (record.has_manifest) {
            compare.kind = META_MOD_REVISION_IS;
            compare.revision = record.manifest_revision;
        }
        if (is_other) {
            set_superseded(payload, &record);
            payload_record_release(&record);
            break;
        }
        status = put(payload, &compare, !record.has_manifest, 0, call, &is_applied, error);
        payload_record_release(&record);
    }
    free(manifest);
    return status;
}

/* A payload that is open again must keep its entry. */
enum shoal_status publish_check(struct payload *payload, const struct call *call, struct shoal_error *error)
{
    struct shoal_store *store = payload->store;
    char *key = manifest_key(store, payload->name);
    struct meta_entry entry;
    struct manifest manifest;
    struct payload_record record;
    struct call step = step_of(call);
    bool is_found, is_other = false;
    enum shoal_status status;

    if (!key)
        return error_no_memory(error);
    status =
        step_status(meta_get(engine_meta(store->engine), bytes_of(key), &step, &is_found, &entry, error), call, error);
    free(key);
    if (status) {
        error_prefix(error, "payload '%s'", payload->name);
        return status;
    }
    /* One that is missing or cannot be read replaces nothing. */
    if (is_found && !manifest_decode(&manifest, entry.value, entry.value_len, NULL)) {
        is_other = manifest.generation != payload->generation;
        manifest_release(&manifest);
    }
    if (is_found)
        meta_entry_release(&entry);
    if (!is_other)
        return SHOAL_OK;
    status = publish_read(store, payload->name, call, &record, error);
    if (status)
        return status;
    if (record.has_manifest && !record.manifest_status && record.manifest.generation != payload->generation)
        set_superseded(payload, &record);
    payload_record_release(&record);
    return SHOAL_OK;
}

static bool is_open_here(struct shoal_store *store, const char *name, uint64_t generation)
{
    struct payload *payload;
    bool is_open;

    mutex_lock(&store->mutex);
    payload = map_get_str(&store->catalog, name);
    is_open = payload && payload->generation == generation && payload->wants_publication;
    mutex_unlock(&store->mutex);
    return is_open;
}

/* Deletes this node's entry as it was read; a newer one (the payload was opened again) is left. */
static enum shoal_status delete_entry(struct shoal_store *store, const char *name, uint64_t generation,
                                      const struct call *call, struct shoal_error *error)
{
    char *key = source_key(store, name, generation, shoal_engine_server_name(store->engine));
    struct meta_entry entry = {0};
    enum shoal_status status;
    bool is_found = false, is_applied;

    if (!key)
        return error_no_memory(error);
    status = meta_get(engine_meta(store->engine), bytes_of(key), call, &is_found, &entry, error);
    if (!status && is_found && !is_open_here(store, name, generation)) {
        struct meta_compare compare = {
            .kind = META_MOD_REVISION_IS, .key = bytes_of(key), .revision = entry.mod_revision};
        struct meta_op op = {.kind = META_DELETE, .key = bytes_of(key)};
        status = meta_txn(engine_meta(store->engine), &compare, 1, &op, 1, call, &is_applied, NULL, error);
    }
    if (is_found)
        meta_entry_release(&entry);
    free(key);
    return status;
}

/* The last one out deletes the manifest; a join between read and transaction makes it fail, as it should. */
static enum shoal_status delete_manifest_if_last(struct shoal_store *store, const char *name, uint64_t generation,
                                                 const struct call *call, struct shoal_error *error)
{
    struct payload_record record;
    enum shoal_status status = publish_read(store, name, call, &record, error);
    char *manifest, *sources;
    bool is_applied;

    if (status)
        return status;
    manifest = manifest_key(store, name);
    sources = source_key(store, name, generation, NULL);
    if (!manifest || !sources) {
        status = error_no_memory(error);
    } else if (record.has_manifest && !record.manifest_status && record.manifest.generation == generation &&
               !record.source_count) {
        struct meta_compare compares[2] = {
            {.kind = META_MOD_REVISION_IS, .key = bytes_of(manifest), .revision = record.manifest_revision},
            {.kind = META_PREFIX_ABSENT, .key = bytes_of(sources)},
        };
        struct meta_op op = {.kind = META_DELETE, .key = bytes_of(manifest)};
        status = meta_txn(engine_meta(store->engine), compares, 2, &op, 1, call, &is_applied, NULL, error);
    }
    free(sources);
    free(manifest);
    payload_record_release(&record);
    return status;
}

enum shoal_status publish_withdraw(struct shoal_store *store, const char *name, uint64_t generation,
                                   const struct call *call, struct shoal_error *error)
{
    enum shoal_status status = delete_entry(store, name, generation, call, error);

    if (!status)
        status = delete_manifest_if_last(store, name, generation, call, error);
    if (status)
        error_prefix(error, "withdrawing payload '%s' from the metadata service", name);
    return status;
}

enum shoal_status publish_withdraw_or_defer(struct shoal_store *store, const char *name, uint64_t generation,
                                            const struct call *call, struct shoal_error *error)
{
    /* A fresh budget where the call's own is used up, else its cleanup could not even begin. */
    struct call fresh = {.deadline_ms = deadline_after_ms(WITHDRAW_NOW_MS)};
    enum shoal_status status = publish_withdraw(store, name, generation, call ? call : &fresh, error);

    if (status)
        janitor_defer_withdrawal(store, name, generation);
    return status;
}
