/* SPDX-License-Identifier: Apache-2.0 */
/* A watch of the sqlite backend: a thread with its own connection that polls the file's data version (a look into
 * shared memory, no I/O) and reads the log of changes when it moved. It also sweeps leases, so that deletions by expiry
 * are seen while nobody else touches the file. */
#include "meta/sqlite.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

#define LOG_MODULE "meta"
#define POLL_MIN_MS 20
#define POLL_MAX_MS 50
#define POLL_STEP_MS 2
#define CYCLE_TIMEOUT_MS 2000 /* for locks of other processes */
#define RETRY_BASE_MS 50
#define RETRY_MAX_MS 1000
#define BATCH_ENTRIES 256
#define BATCH_BYTES (4 << 20)

struct sqlite_watch {
    struct meta_watch watch;
    struct meta *meta; /* borrowed */
    uint8_t *prefix;   /* owned */
    size_t prefix_len;
    meta_watch_fn fn;
    void *arg;
    pthread_t thread;
    struct shoal_cancel *cancel; /* owned; triggered by close, ends every wait */
    struct mutex lock;           /* RANK_META; guards is_closing */
    struct cond closing;
    bool is_closing;

    /* Of the thread. */
    struct sqlite_conn conn;
    int64_t store_id;      /* 0: no store seen yet */
    int64_t from_revision; /* next one to deliver; 0: from now */
    int64_t log_id;        /* newest log row delivered */
    int64_t data_version;
    int64_t lease_deadline_ms; /* when the next lease expires (sqlite_now_ms) */
    bool is_stale;             /* read the log whatever the data version says */
};

struct batch {
    struct meta_entry items[BATCH_ENTRIES];
    bool is_delete[BATCH_ENTRIES];
    size_t count;
    bool is_full;
    bool is_reset;
};

static void batch_clear(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        meta_entry_release(&batch->items[i]);
    batch->count = 0;
    batch->is_full = batch->is_reset = false;
}

static struct meta_bytes prefix_of(const struct sqlite_watch *watch)
{
    return (struct meta_bytes){watch->prefix, watch->prefix_len};
}

static bool is_closing(struct sqlite_watch *watch)
{
    mutex_lock(&watch->lock);
    bool closing = watch->is_closing;
    mutex_unlock(&watch->lock);
    return closing;
}

static void sleep_until_closing(struct sqlite_watch *watch, int64_t timeout_ms)
{
    int64_t deadline_ms = deadline_after_ms(timeout_ms);
    mutex_lock(&watch->lock);
    while (!watch->is_closing && cond_wait_until(&watch->closing, &watch->lock, deadline_ms))
        ;
    mutex_unlock(&watch->lock);
}

/* --- one poll ------------------------------------------------------------------------------------------------------
 */

static enum shoal_status query_int(struct sqlite_watch *watch, enum sqlite_statement which, int64_t absent,
                                   int64_t *value_out, struct shoal_error *error)
{
    sqlite3_stmt *statement = sqlite_statement(&watch->conn, which);
    bool is_row = false;
    enum shoal_status status = sqlite_step(&watch->conn, statement, &is_row, error);
    if (status == SHOAL_OK)
        *value_out =
            is_row && sqlite3_column_type(statement, 0) != SQLITE_NULL ? sqlite3_column_int64(statement, 0) : absent;
    sqlite3_reset(statement);
    return status;
}

static enum shoal_status read_log(struct sqlite_watch *watch, struct batch *batch, struct shoal_error *error)
{
    struct sqlite_conn *conn = &watch->conn;
    uint8_t end[SQLITE_END_BYTES];
    size_t bytes = 0;
    bool is_row = false;
    enum shoal_status status;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_LOG_FROM);
    sqlite3_bind_int64(statement, 1, watch->from_revision);
    sqlite3_bind_int64(statement, 2, watch->log_id);
    sqlite_bind_range(statement, 3, prefix_of(watch), end);
    while ((status = sqlite_step(conn, statement, &is_row, error)) == SHOAL_OK && is_row) {
        if (batch->count == BATCH_ENTRIES || bytes > BATCH_BYTES) {
            batch->is_full = true;
            break;
        }
        struct meta_entry *entry = &batch->items[batch->count];
        status = sqlite_column_entry(statement, entry, error);
        if (status != SHOAL_OK)
            break;
        batch->is_delete[batch->count++] = sqlite3_column_type(statement, 1) == SQLITE_NULL;
        bytes += entry->key_len + entry->value_len;
        watch->from_revision = entry->mod_revision;
        watch->log_id = sqlite3_column_int64(statement, 5);
    }
    sqlite3_reset(statement);
    return status;
}

/* Fills the batch with what is new, in one read transaction. */
static enum shoal_status read_changes(struct sqlite_watch *watch, struct batch *batch, struct shoal_error *error)
{
    const struct sqlite_store *store = &watch->conn.store;
    int64_t from_revision = watch->from_revision, log_id = watch->log_id;
    enum shoal_status status = sqlite_begin_read(&watch->conn, error);
    if (status != SHOAL_OK)
        return status;
    if (watch->from_revision == 0 && watch->store_id == 0)
        watch->from_revision = store->revision + 1;
    if ((watch->store_id != 0 && watch->store_id != store->id) || watch->from_revision <= store->compact_revision ||
        watch->from_revision > store->revision + 1) {
        /* Another file, or a log that begins later: whoever lists after this misses nothing. */
        batch->is_reset = true;
        watch->from_revision = store->revision + 1;
        watch->log_id = store->log_id;
    } else {
        status = read_log(watch, batch, error);
        if (status == SHOAL_OK && !batch->is_full)
            watch->from_revision = store->revision + 1;
    }
    if (status == SHOAL_OK)
        status = query_int(watch, SQL_LEASE_NEXT_DEADLINE, INT64_MAX, &watch->lease_deadline_ms, error);
    status = sqlite_end(&watch->conn, status, error);
    if (status != SHOAL_OK) { /* the batch is lost: read it again */
        watch->from_revision = from_revision;
        watch->log_id = log_id;
    } else {
        watch->store_id = store->id;
    }
    return status;
}

static void deliver(struct sqlite_watch *watch, struct batch *batch)
{
    if (batch->is_reset && !is_closing(watch)) {
        struct meta_event event = {.kind = META_EVENT_RESET};
        watch->fn(watch->arg, &event);
    }
    for (size_t i = 0; i < batch->count && !is_closing(watch); i++) {
        struct meta_event event = {.kind = batch->is_delete[i] ? META_EVENT_DELETE : META_EVENT_PUT,
                                   .entry = &batch->items[i]};
        watch->fn(watch->arg, &event);
    }
}

/* The writing transaction drops what expired; the data version does not show a connection its own changes. */
static enum shoal_status sweep(struct sqlite_watch *watch, struct shoal_error *error)
{
    enum shoal_status status = sqlite_begin_write(&watch->conn, error);
    if (status == SHOAL_OK)
        status = sqlite_end(&watch->conn, SHOAL_OK, error);
    if (status == SHOAL_OK)
        watch->is_stale = true;
    return status;
}

static enum shoal_status poll_once(struct sqlite_watch *watch, struct batch *batch, bool *is_active_out,
                                   struct shoal_error *error)
{
    struct call call = {.deadline_ms = deadline_after_ms(CYCLE_TIMEOUT_MS), .cancel = watch->cancel};
    uint64_t opened = watch->conn.opened;
    enum shoal_status status = sqlite_conn_open(&watch->conn, &call, error);
    if (status != SHOAL_OK)
        return status;
    if (opened != watch->conn.opened) {
        watch->is_stale = true;
        meta_count_request(watch->meta, META_REQUEST_WATCH, watch->prefix_len);
    }
    if (watch->lease_deadline_ms <= sqlite_now_ms()) {
        status = sweep(watch, error);
        if (status != SHOAL_OK)
            return status;
    }
    int64_t data_version = 0;
    status = query_int(watch, SQL_DATA_VERSION, 0, &data_version, error);
    if (status != SHOAL_OK)
        return status;
    if (!watch->is_stale && data_version == watch->data_version)
        return SHOAL_OK;
    bool is_full = true;
    while (is_full && !is_closing(watch)) {
        status = read_changes(watch, batch, error);
        if (status != SHOAL_OK) {
            batch_clear(batch);
            return status;
        }
        *is_active_out |= batch->count || batch->is_reset;
        is_full = batch->is_full;
        watch->conn.call = NULL;
        deliver(watch, batch);
        batch_clear(batch);
        call.deadline_ms = deadline_after_ms(CYCLE_TIMEOUT_MS);
        watch->conn.call = &call;
    }
    watch->data_version = data_version;
    watch->is_stale = false;
    return SHOAL_OK;
}

static void *run_watch(void *arg)
{
    struct sqlite_watch *watch = arg;
    struct shoal_error error;
    int64_t period_ms = POLL_MIN_MS;
    unsigned failures = 0;
    struct batch *batch = calloc(1, sizeof *batch);

    while (!is_closing(watch)) {
        bool is_active = false;
        enum shoal_status status = batch ? poll_once(watch, batch, &is_active, &error) : error_no_memory(&error);
        if (status != SHOAL_OK && !is_closing(watch)) {
            if (failures++ == 0)
                LOG_WARN("watch: %s", error.message);
            meta_count_retry(watch->meta);
            watch->is_stale = true;
            if (!batch)
                batch = calloc(1, sizeof *batch);
            sleep_until_closing(watch, backoff_ms(&watch->conn.random, failures, RETRY_BASE_MS, RETRY_MAX_MS));
            continue;
        }
        failures = 0;
        period_ms = is_active                                ? POLL_MIN_MS
                    : period_ms + POLL_STEP_MS < POLL_MAX_MS ? period_ms + POLL_STEP_MS
                                                             : POLL_MAX_MS;
        /* A little jitter: many watches need not sweep one lease at the same moment. */
        sleep_until_closing(watch, period_ms + (int64_t)random_below(&watch->conn.random, POLL_MIN_MS / 4));
    }
    sqlite_conn_release(&watch->conn);
    free(batch);
    return NULL;
}

/* --- life ----------------------------------------------------------------------------------------------------------
 */

static void free_watch(struct sqlite_watch *watch)
{
    shoal_cancel_destroy(watch->cancel);
    cond_release(&watch->closing);
    mutex_release(&watch->lock);
    free(watch->prefix);
    free(watch);
}

enum shoal_status sqlite_watch_open(struct meta *meta, struct meta_bytes prefix, int64_t from_revision,
                                    meta_watch_fn fn, void *arg, struct meta_watch **watch_out,
                                    struct shoal_error *error)
{
    struct sqlite_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return error_no_memory(error);
    *watch = (struct sqlite_watch){.meta = meta,
                                   .prefix_len = prefix.len,
                                   .fn = fn,
                                   .arg = arg,
                                   .from_revision = from_revision,
                                   .lease_deadline_ms = INT64_MAX};
    mutex_init(&watch->lock, RANK_META);
    cond_init(&watch->closing);
    sqlite_conn_init(&watch->conn, sqlite_path(meta));
    enum shoal_status status = SHOAL_OK;
    watch->prefix = malloc(prefix.len + 1);
    if (!watch->prefix || shoal_cancel_create(&watch->cancel) != SHOAL_OK) {
        status = error_no_memory(error);
        goto free_watch;
    }
    if (prefix.len)
        memcpy(watch->prefix, prefix.data, prefix.len);

    int rc = thread_start(&watch->thread, "shoal-watch", run_watch, watch);
    if (rc != 0) {
        status = error_set(error, SHOAL_METADATA, rc, "metadata watch: no thread: %s", strerror(rc));
        goto free_watch;
    }
    *watch_out = &watch->watch;
    return SHOAL_OK;
free_watch:
    free_watch(watch);
    return status;
}

void sqlite_watch_close(struct meta_watch *base)
{
    struct sqlite_watch *watch = container_of(base, struct sqlite_watch, watch);
    mutex_lock(&watch->lock);
    watch->is_closing = true;
    cond_broadcast(&watch->closing);
    mutex_unlock(&watch->lock);
    shoal_cancel_trigger(watch->cancel);
    pthread_join(watch->thread, NULL);
    free_watch(watch);
}
