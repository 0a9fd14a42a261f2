/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded backend: one SQLite file that the processes of one host share. */
#include "meta/sqlite.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define OPEN_TIMEOUT_MS 5000

struct sqlite {
    struct meta meta;
    char *path;        /* owned, absolute: watches open it later, whatever the working directory is then */
    struct mutex lock; /* RANK_META; guards is_busy */
    struct cond idle;
    bool is_busy;            /* a thread uses conn */
    struct sqlite_conn conn; /* belongs to the thread that set is_busy */
};

static struct sqlite *sqlite_of(struct meta *meta)
{
    return container_of(meta, struct sqlite, meta);
}

const char *sqlite_path(struct meta *meta)
{
    return sqlite_of(meta)->path;
}

/* --- the connection ------------------------------------------------------------------------------------------------
 */

static void wake_waiters(void *arg)
{
    struct sqlite *sqlite = arg;
    mutex_lock(&sqlite->lock);
    cond_broadcast(&sqlite->idle);
    mutex_unlock(&sqlite->lock);
}

static void give_back(struct sqlite *sqlite)
{
    sqlite->conn.call = NULL;
    mutex_lock(&sqlite->lock);
    sqlite->is_busy = false;
    cond_signal(&sqlite->idle);
    mutex_unlock(&sqlite->lock);
}

static enum shoal_status take(struct sqlite *sqlite, const struct call *call, struct shoal_error *error)
{
    struct cancel_hook hook;
    bool is_taken = false, is_time_left = true;
    cancel_hook_add(call->cancel, &hook, wake_waiters, sqlite);
    mutex_lock(&sqlite->lock);
    while (sqlite->is_busy && is_time_left && !cancel_is_triggered(call->cancel))
        is_time_left = cond_wait_until(&sqlite->idle, &sqlite->lock, call->deadline_ms);
    if (!sqlite->is_busy)
        is_taken = sqlite->is_busy = true;
    else
        cond_signal(&sqlite->idle); /* a signal that this thread may have swallowed */
    mutex_unlock(&sqlite->lock);
    cancel_hook_remove(call->cancel, &hook);

    enum shoal_status status = call_check(call, error, "metadata sqlite: waiting for other threads");
    if (status == SHOAL_OK && !is_taken)
        status = error_set(error, SHOAL_TIMED_OUT, 0, "metadata sqlite: waiting for other threads: deadline passed");
    if (status == SHOAL_OK)
        status = sqlite_conn_open(&sqlite->conn, call, error);
    if (status != SHOAL_OK && is_taken)
        give_back(sqlite);
    return status;
}

/* A read transaction that sees no expired lease. */
static enum shoal_status begin_read(struct sqlite_conn *conn, struct shoal_error *error)
{
    for (;;) {
        bool has_expired = false;
        enum shoal_status status = sqlite_begin_read(conn, error);
        if (status != SHOAL_OK)
            return status;
        status = sqlite_has_expired(conn, &has_expired, error);
        if (status == SHOAL_OK && !has_expired)
            return SHOAL_OK;
        status = sqlite_end(conn, status, error);
        if (status == SHOAL_OK)
            status = sqlite_begin_write(conn, error);
        if (status == SHOAL_OK)
            status = sqlite_end(conn, SHOAL_OK, error);
        if (status != SHOAL_OK)
            return status;
    }
}

/* --- reading -------------------------------------------------------------------------------------------------------
 */

static enum shoal_status sqlite_get(struct meta *meta, struct meta_bytes key, const struct call *call,
                                    bool *is_found_out, struct meta_entry *entry_out, struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    struct sqlite_conn *conn = &sqlite->conn;
    struct meta_entry entry = {0};
    bool is_row = false;

    enum shoal_status status = take(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    meta_count_request(meta, META_REQUEST_GET, key.len);
    status = begin_read(conn, error);
    if (status != SHOAL_OK)
        goto give_back;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_KV_GET);
    sqlite_bind_bytes(statement, 1, key);
    status = sqlite_step(conn, statement, &is_row, error);
    if (status == SHOAL_OK && is_row)
        status = sqlite_column_entry(statement, &entry, error);
    sqlite3_reset(statement);
    status = sqlite_end(conn, status, error);
give_back:
    give_back(sqlite);
    if (status != SHOAL_OK) {
        meta_entry_release(&entry);
        return status;
    }
    *is_found_out = is_row;
    if (is_row) {
        meta_count_received(meta, entry.key_len + entry.value_len);
        *entry_out = entry;
    }
    return SHOAL_OK;
}

static enum shoal_status read_range(struct sqlite_conn *conn, struct meta_bytes prefix, size_t limit,
                                    struct meta_entries *entries, struct shoal_error *error)
{
    uint8_t end[SQLITE_END_BYTES];
    size_t capacity = 0;
    bool is_row = false;
    enum shoal_status status;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_KV_RANGE);
    sqlite_bind_range(statement, 1, prefix, end);
    sqlite3_bind_int64(statement, 3, limit < INT64_MAX ? (int64_t)limit + 1 : -1);
    while ((status = sqlite_step(conn, statement, &is_row, error)) == SHOAL_OK && is_row) {
        struct meta_entry entry;
        if (entries->count == limit) {
            status = error_set(error, SHOAL_LIMIT, 0, "metadata list of \"%.*s\": more than %zu entries",
                               (int)prefix.len, (const char *)prefix.data, limit);
            break;
        }
        status = sqlite_column_entry(statement, &entry, error);
        if (status == SHOAL_OK && !meta_entries_push(entries, &capacity, &entry)) {
            meta_entry_release(&entry);
            status = error_no_memory(error);
        }
        if (status != SHOAL_OK)
            break;
    }
    sqlite3_reset(statement);
    return status;
}

static enum shoal_status sqlite_list(struct meta *meta, struct meta_bytes prefix, size_t limit, const struct call *call,
                                     struct meta_entries *entries_out, struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    struct sqlite_conn *conn = &sqlite->conn;
    struct meta_entries entries = {0};
    uint64_t received = 0;

    enum shoal_status status = take(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    meta_count_request(meta, META_REQUEST_LIST, prefix.len);
    status = begin_read(conn, error);
    if (status == SHOAL_OK) {
        entries.revision = conn->store.revision;
        status = read_range(conn, prefix, limit, &entries, error);
        status = sqlite_end(conn, status, error);
    }
    give_back(sqlite);
    if (status != SHOAL_OK) {
        meta_entries_release(&entries);
        return status;
    }
    for (size_t i = 0; i < entries.count; i++)
        received += entries.items[i].key_len + entries.items[i].value_len;
    meta_count_received(meta, received);
    *entries_out = entries;
    return SHOAL_OK;
}

/* --- changing ------------------------------------------------------------------------------------------------------
 */

static enum shoal_status holds(struct sqlite_conn *conn, const struct meta_compare *compare, bool *holds_out,
                               struct shoal_error *error)
{
    bool is_prefix = compare->kind == META_PREFIX_ABSENT, is_row = false;
    uint8_t end[SQLITE_END_BYTES];
    sqlite3_stmt *statement = sqlite_statement(conn, is_prefix ? SQL_KV_ANY : SQL_KV_GET);
    if (is_prefix)
        sqlite_bind_range(statement, 1, compare->key, end);
    else
        sqlite_bind_bytes(statement, 1, compare->key);
    enum shoal_status status = sqlite_step(conn, statement, &is_row, error);
    if (status == SHOAL_OK)
        switch (compare->kind) {
        case META_KEY_ABSENT:
        case META_PREFIX_ABSENT:
            *holds_out = !is_row;
            break;
        case META_KEY_PRESENT:
            *holds_out = is_row;
            break;
        case META_MOD_REVISION_IS:
            *holds_out = is_row && sqlite3_column_int64(statement, 3) == compare->revision;
            break;
        }
    sqlite3_reset(statement);
    return status;
}

static enum shoal_status apply(struct sqlite_conn *conn, const struct meta_op *ops, size_t op_count,
                               struct shoal_error *error)
{
    int64_t revision = conn->store.revision + 1;
    enum shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < op_count && status == SHOAL_OK; i++) {
        bool is_deleted = false;
        if (ops[i].kind == META_PUT)
            status = sqlite_put(conn, revision, &ops[i], error);
        else
            status = sqlite_delete(conn, revision, &ops[i], &is_deleted, error);
    }
    return status;
}

static uint64_t txn_bytes(const struct meta_compare *compares, size_t compare_count, const struct meta_op *ops,
                          size_t op_count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < compare_count; i++)
        bytes += compares[i].key.len;
    for (size_t i = 0; i < op_count; i++)
        bytes += ops[i].key.len + (ops[i].kind == META_PUT ? ops[i].value.len : 0);
    return bytes;
}

static enum shoal_status sqlite_txn(struct meta *meta, const struct meta_compare *compares, size_t compare_count,
                                    const struct meta_op *ops, size_t op_count, const struct call *call,
                                    bool *is_applied_out, int64_t *revision_out, struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    struct sqlite_conn *conn = &sqlite->conn;
    bool is_applied = true;
    int64_t revision = 0;

    enum shoal_status status = take(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    meta_count_request(meta, META_REQUEST_TXN, txn_bytes(compares, compare_count, ops, op_count));
    status = sqlite_begin_write(conn, error);
    if (status != SHOAL_OK)
        goto give_back;
    for (size_t i = 0; i < compare_count && status == SHOAL_OK && is_applied; i++)
        status = holds(conn, &compares[i], &is_applied, error);
    if (status == SHOAL_OK && is_applied)
        status = apply(conn, ops, op_count, error);
    revision = conn->store.revision;
    status = sqlite_end(conn, status, error);
give_back:
    give_back(sqlite);
    if (status == SHOAL_OK) {
        *is_applied_out = is_applied;
        *revision_out = revision;
    }
    return status;
}

/* --- leases --------------------------------------------------------------------------------------------------------
 */

static enum shoal_status begin_lease_call(struct sqlite *sqlite, const struct call *call, struct shoal_error *error)
{
    enum shoal_status status = take(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    meta_count_request(&sqlite->meta, META_REQUEST_LEASE, sizeof(int64_t));
    status = sqlite_begin_write(&sqlite->conn, error);
    if (status != SHOAL_OK)
        give_back(sqlite);
    return status;
}

static enum shoal_status end_lease_call(struct sqlite *sqlite, enum shoal_status status, struct shoal_error *error)
{
    status = sqlite_end(&sqlite->conn, status, error);
    give_back(sqlite);
    return status;
}

static enum shoal_status sqlite_lease_grant(struct meta *meta, int64_t ttl_ms, const struct call *call,
                                            int64_t *lease_out, struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    int64_t lease = (int64_t)(random_id() >> 1) | 1;
    enum shoal_status status = begin_lease_call(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    sqlite3_stmt *statement = sqlite_statement(&sqlite->conn, SQL_LEASE_ADD);
    sqlite3_bind_int64(statement, 1, lease);
    sqlite3_bind_int64(statement, 2, ttl_ms);
    sqlite3_bind_int64(statement, 3, sqlite_now_ms() + ttl_ms);
    status = sqlite_run(&sqlite->conn, statement, error);
    status = end_lease_call(sqlite, status, error);
    if (status == SHOAL_OK)
        *lease_out = lease;
    return status;
}

static enum shoal_status sqlite_lease_keep_alive(struct meta *meta, int64_t lease, const struct call *call,
                                                 struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    bool is_row = false;
    enum shoal_status status = begin_lease_call(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    sqlite3_stmt *statement = sqlite_statement(&sqlite->conn, SQL_LEASE_RENEW);
    sqlite3_bind_int64(statement, 1, lease);
    sqlite3_bind_int64(statement, 2, sqlite_now_ms());
    status = sqlite_step(&sqlite->conn, statement, &is_row, error);
    sqlite3_reset(statement);
    status = end_lease_call(sqlite, status, error);
    if (status == SHOAL_OK && !is_row)
        status = error_set(error, SHOAL_NOT_FOUND, 0, "metadata lease %llx has expired or never existed",
                           (unsigned long long)lease);
    return status;
}

static enum shoal_status sqlite_lease_revoke(struct meta *meta, int64_t lease, const struct call *call,
                                             struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    enum shoal_status status = begin_lease_call(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    status = sqlite_drop_lease(&sqlite->conn, lease, error);
    return end_lease_call(sqlite, status, error);
}

/* --- life ----------------------------------------------------------------------------------------------------------
 */

static enum shoal_status sqlite_ping(struct meta *meta, const struct call *call, struct meta_health *health,
                                     struct shoal_error *error)
{
    struct sqlite *sqlite = sqlite_of(meta);
    enum shoal_status status = take(sqlite, call, error);
    if (status != SHOAL_OK)
        return status;
    meta_count_request(meta, META_REQUEST_OTHER, 0);
    status = begin_read(&sqlite->conn, error);
    if (status == SHOAL_OK)
        status = sqlite_end(&sqlite->conn, SHOAL_OK, error);
    give_back(sqlite);
    if (status == SHOAL_OK)
        snprintf(health->version, sizeof health->version, "SQLite %s", sqlite3_libversion());
    return status;
}

static void sqlite_close(struct meta *meta)
{
    struct sqlite *sqlite = sqlite_of(meta);
    sqlite_conn_release(&sqlite->conn);
    cond_release(&sqlite->idle);
    mutex_release(&sqlite->lock);
    meta_release(&sqlite->meta);
    free(sqlite->path);
    free(sqlite);
}

static const struct meta_ops sqlite_ops = {
    .name = "sqlite",
    .close = sqlite_close,
    .get = sqlite_get,
    .list = sqlite_list,
    .txn = sqlite_txn,
    .lease_grant = sqlite_lease_grant,
    .lease_keep_alive = sqlite_lease_keep_alive,
    .lease_revoke = sqlite_lease_revoke,
    .watch_open = sqlite_watch_open,
    .watch_close = sqlite_watch_close,
    .ping = sqlite_ping,
};

static enum shoal_status absolute_path(const char *path, char **path_out, struct shoal_error *error)
{
    char *absolute = NULL;
    if (*path == '/') {
        absolute = strdup(path);
    } else {
        char *directory = getcwd(NULL, 0);
        if (!directory) {
            int saved = errno;
            return error_set(error, SHOAL_METADATA, saved, "metadata sqlite:%.200s: no working directory: %s", path,
                             strerror(saved));
        }
        if (asprintf(&absolute, "%s/%s", directory, path) < 0)
            absolute = NULL;
        free(directory);
    }
    if (!absolute)
        return error_no_memory(error);
    *path_out = absolute;
    return SHOAL_OK;
}

enum shoal_status meta_sqlite_open(const char *rest, struct meta **meta_out, struct shoal_error *error)
{
    if (!*rest)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "metadata URI \"sqlite:\" has no path");
    if (strcmp(rest, ":memory:") == 0)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0,
                         "metadata URI \"sqlite::memory:\": processes share a file; give its path");
    if (strlen(rest) >= PATH_MAX)
        return error_set(error, SHOAL_INVALID_ARGUMENT, ENAMETOOLONG, "metadata URI: path of %zu bytes is too long",
                         strlen(rest));
    char *path = NULL;
    enum shoal_status status = absolute_path(rest, &path, error);
    if (status != SHOAL_OK)
        return status;
    struct sqlite *sqlite = calloc(1, sizeof *sqlite);
    if (!sqlite) {
        free(path);
        return error_no_memory(error);
    }
    meta_init(&sqlite->meta, &sqlite_ops);
    sqlite->path = path;
    snprintf(sqlite->meta.where, sizeof sqlite->meta.where, "%s", path);
    mutex_init(&sqlite->lock, RANK_META);
    cond_init(&sqlite->idle);
    sqlite_conn_init(&sqlite->conn, sqlite->path);

    struct call call = {.deadline_ms = deadline_after_ms(OPEN_TIMEOUT_MS)};
    status = sqlite_conn_open(&sqlite->conn, &call, error);
    sqlite->conn.call = NULL;
    if (status != SHOAL_OK) {
        sqlite_close(&sqlite->meta);
        return status;
    }
    *meta_out = &sqlite->meta;
    return SHOAL_OK;
}
