/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions of the sqlite backend: expiry of leases, changes, and the log of changes that watches read. */
#include "meta/sqlite.h"

#include <string.h>

#include "base/error.h"

/* The log keeps about this much: a watch that polls every 50 ms falls behind only in a storm, and then it lists again.
 */
#define LOG_MAX_ROWS 16384
#define LOG_MAX_BYTES (16 << 20)

/* --- transactions --------------------------------------------------------------------------------------------------
 */

static enum shoal_status load_store(struct sqlite_conn *conn, struct shoal_error *error)
{
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_STORE_LOAD);
    bool is_row;
    enum shoal_status status = sqlite_step(conn, statement, &is_row, error);
    if (status == SHOAL_OK && !is_row)
        status = sqlite_fail(conn, SQLITE_CORRUPT, error);
    if (status == SHOAL_OK)
        conn->store = (struct sqlite_store){
            .id = sqlite3_column_int64(statement, 0),
            .revision = sqlite3_column_int64(statement, 1),
            .compact_revision = sqlite3_column_int64(statement, 2),
            .log_id = sqlite3_column_int64(statement, 3),
            .log_bytes = sqlite3_column_int64(statement, 4),
        };
    sqlite3_reset(statement);
    return status;
}

static enum shoal_status begin(struct sqlite_conn *conn, enum sqlite_statement which, struct shoal_error *error)
{
    enum shoal_status status = sqlite_run(conn, sqlite_statement(conn, which), error);
    if (status != SHOAL_OK)
        return status;
    conn->is_write = which == SQL_BEGIN_WRITE;
    conn->is_changed = false;
    status = load_store(conn, error);
    return status == SHOAL_OK ? SHOAL_OK : sqlite_end(conn, status, error);
}

enum shoal_status sqlite_begin_read(struct sqlite_conn *conn, struct shoal_error *error)
{
    return begin(conn, SQL_BEGIN_READ, error);
}

static enum shoal_status expired_lease(struct sqlite_conn *conn, int64_t *lease_out, struct shoal_error *error)
{
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_LEASE_EXPIRED);
    bool is_row = false;
    sqlite3_bind_int64(statement, 1, sqlite_now_ms());
    enum shoal_status status = sqlite_step(conn, statement, &is_row, error);
    if (status == SHOAL_OK)
        *lease_out = is_row ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_reset(statement);
    return status;
}

enum shoal_status sqlite_has_expired(struct sqlite_conn *conn, bool *has_expired_out, struct shoal_error *error)
{
    int64_t lease = 0;
    enum shoal_status status = expired_lease(conn, &lease, error);
    if (status == SHOAL_OK)
        *has_expired_out = lease != 0;
    return status;
}

enum shoal_status sqlite_begin_write(struct sqlite_conn *conn, struct shoal_error *error)
{
    enum shoal_status status = begin(conn, SQL_BEGIN_WRITE, error);
    if (status != SHOAL_OK)
        return status;
    for (;;) {
        int64_t lease = 0;
        status = expired_lease(conn, &lease, error);
        if (status == SHOAL_OK && lease == 0)
            return SHOAL_OK;
        if (status == SHOAL_OK)
            status = sqlite_drop_lease(conn, lease, error);
        if (status != SHOAL_OK)
            return sqlite_end(conn, status, error);
    }
}

/* A revision leaves the log whole. A quarter of slack makes trimming rare. */
static enum shoal_status trim_log(struct sqlite_conn *conn, struct shoal_error *error)
{
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_LOG_FIRST);
    bool is_row;
    enum shoal_status status = sqlite_step(conn, statement, &is_row, error);
    if (status != SHOAL_OK)
        return status;
    int64_t rows = is_row ? conn->store.log_id - sqlite3_column_int64(statement, 0) : 0;
    int64_t bytes = is_row ? conn->store.log_bytes - sqlite3_column_int64(statement, 1) : 0;
    sqlite3_reset(statement);
    if (rows < LOG_MAX_ROWS + LOG_MAX_ROWS / 4 && bytes < LOG_MAX_BYTES + LOG_MAX_BYTES / 4)
        return SHOAL_OK;

    statement = sqlite_statement(conn, SQL_LOG_CUT);
    sqlite3_bind_int64(statement, 1, conn->store.log_id - LOG_MAX_ROWS);
    sqlite3_bind_int64(statement, 2, conn->store.log_bytes - LOG_MAX_BYTES);
    status = sqlite_step(conn, statement, &is_row, error);
    if (status != SHOAL_OK)
        return status;
    int64_t cut = is_row ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_reset(statement);
    if (cut <= conn->store.compact_revision)
        return SHOAL_OK;
    statement = sqlite_statement(conn, SQL_LOG_TRIM);
    sqlite3_bind_int64(statement, 1, cut);
    conn->store.compact_revision = cut;
    return sqlite_run(conn, statement, error);
}

static enum shoal_status save_store(struct sqlite_conn *conn, struct shoal_error *error)
{
    enum shoal_status status = trim_log(conn, error);
    if (status != SHOAL_OK)
        return status;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_STORE_SAVE);
    sqlite3_bind_int64(statement, 1, conn->store.revision);
    sqlite3_bind_int64(statement, 2, conn->store.compact_revision);
    sqlite3_bind_int64(statement, 3, conn->store.log_id);
    sqlite3_bind_int64(statement, 4, conn->store.log_bytes);
    return sqlite_run(conn, statement, error);
}

enum shoal_status sqlite_end(struct sqlite_conn *conn, enum shoal_status status, struct shoal_error *error)
{
    if (status == SHOAL_OK && conn->is_changed)
        status = save_store(conn, error);
    if (status == SHOAL_OK)
        status = sqlite_run(conn, sqlite_statement(conn, SQL_COMMIT), error);
    /* Some errors have rolled back already. */
    if (status != SHOAL_OK && !sqlite3_get_autocommit(conn->db))
        sqlite_run(conn, sqlite_statement(conn, SQL_ROLLBACK), NULL);
    conn->is_write = conn->is_changed = false;
    return status;
}

/* --- changes -------------------------------------------------------------------------------------------------------
 */

static enum shoal_status log_change(struct sqlite_conn *conn, int64_t revision, struct meta_bytes key,
                                    const struct meta_bytes *value, int64_t create_revision, int64_t lease,
                                    struct shoal_error *error)
{
    struct sqlite_store *store = &conn->store;
    store->revision = revision;
    store->log_id++;
    store->log_bytes += (int64_t)(key.len + (value ? value->len : 0));
    conn->is_changed = true;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_LOG_ADD);
    sqlite3_bind_int64(statement, 1, store->log_id);
    sqlite3_bind_int64(statement, 2, revision);
    sqlite3_bind_int64(statement, 3, store->log_bytes);
    sqlite_bind_bytes(statement, 4, key);
    if (value)
        sqlite_bind_bytes(statement, 5, *value);
    else
        sqlite3_bind_null(statement, 5);
    sqlite3_bind_int64(statement, 6, create_revision);
    sqlite3_bind_int64(statement, 7, lease);
    return sqlite_run(conn, statement, error);
}

enum shoal_status sqlite_put(struct sqlite_conn *conn, int64_t revision, const struct meta_op *op,
                             struct shoal_error *error)
{
    bool is_row = false;
    if (op->lease) {
        sqlite3_stmt *lease = sqlite_statement(conn, SQL_LEASE_GET);
        sqlite3_bind_int64(lease, 1, op->lease);
        enum shoal_status status = sqlite_step(conn, lease, &is_row, error);
        sqlite3_reset(lease);
        if (status != SHOAL_OK)
            return status;
        if (!is_row)
            return error_set(error, SHOAL_NOT_FOUND, 0, "metadata lease %llx has expired or never existed",
                             (unsigned long long)op->lease);
    }
    sqlite3_stmt *put = sqlite_statement(conn, SQL_KV_PUT);
    sqlite_bind_bytes(put, 1, op->key);
    sqlite_bind_bytes(put, 2, op->value);
    sqlite3_bind_int64(put, 3, revision);
    sqlite3_bind_int64(put, 4, op->lease);
    enum shoal_status status = sqlite_step(conn, put, &is_row, error);
    if (status != SHOAL_OK)
        return status;
    int64_t create_revision = is_row ? sqlite3_column_int64(put, 0) : revision;
    sqlite3_reset(put);
    return log_change(conn, revision, op->key, &op->value, create_revision, op->lease, error);
}

static enum shoal_status delete_key(struct sqlite_conn *conn, int64_t revision, struct meta_bytes key,
                                    bool *is_deleted_out, struct shoal_error *error)
{
    bool is_row = false;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_KV_DELETE);
    sqlite_bind_bytes(statement, 1, key);
    enum shoal_status status = sqlite_step(conn, statement, &is_row, error);
    sqlite3_reset(statement);
    if (status == SHOAL_OK && is_row) {
        status = log_change(conn, revision, key, NULL, 0, 0, error);
        *is_deleted_out = true;
    }
    return status;
}

static enum shoal_status delete_prefix(struct sqlite_conn *conn, int64_t revision, struct meta_bytes prefix,
                                       bool *is_deleted_out, struct shoal_error *error)
{
    uint8_t end[SQLITE_END_BYTES];
    sqlite3_stmt *range = sqlite_statement(conn, SQL_KV_RANGE);
    sqlite_bind_range(range, 1, prefix, end);
    sqlite3_bind_int64(range, 3, -1);
    enum shoal_status status;
    bool is_row = false;
    while ((status = sqlite_step(conn, range, &is_row, error)) == SHOAL_OK && is_row) {
        struct meta_bytes key = {sqlite3_column_blob(range, 0), (size_t)sqlite3_column_bytes(range, 0)};
        *is_deleted_out = true;
        status = log_change(conn, revision, key, NULL, 0, 0, error);
        if (status != SHOAL_OK)
            break;
    }
    sqlite3_reset(range);
    if (status != SHOAL_OK || !*is_deleted_out)
        return status;
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_KV_DELETE_RANGE);
    sqlite_bind_range(statement, 1, prefix, end);
    return sqlite_run(conn, statement, error);
}

enum shoal_status sqlite_delete(struct sqlite_conn *conn, int64_t revision, const struct meta_op *op,
                                bool *is_deleted_out, struct shoal_error *error)
{
    if (op->kind == META_DELETE_PREFIX)
        return delete_prefix(conn, revision, op->key, is_deleted_out, error);
    return delete_key(conn, revision, op->key, is_deleted_out, error);
}

enum shoal_status sqlite_drop_lease(struct sqlite_conn *conn, int64_t lease, struct shoal_error *error)
{
    int64_t revision = conn->store.revision + 1;
    enum shoal_status status = SHOAL_OK;
    for (;;) {
        uint8_t key[META_KEY_MAX_BYTES];
        size_t len = 0;
        bool is_row = false, is_deleted = false;
        sqlite3_stmt *statement = sqlite_statement(conn, SQL_KV_OF_LEASE);
        sqlite3_bind_int64(statement, 1, lease);
        status = sqlite_step(conn, statement, &is_row, error);
        if (status != SHOAL_OK)
            return status;
        if (is_row) {
            len = (size_t)sqlite3_column_bytes(statement, 0);
            if (len <= sizeof key && len)
                memcpy(key, sqlite3_column_blob(statement, 0), len);
        }
        sqlite3_reset(statement);
        if (!is_row)
            break;
        if (len > sizeof key)
            return sqlite_fail(conn, SQLITE_CORRUPT, error);
        status = delete_key(conn, revision, (struct meta_bytes){key, len}, &is_deleted, error);
        if (status == SHOAL_OK && !is_deleted)
            status = sqlite_fail(conn, SQLITE_CORRUPT, error);
        if (status != SHOAL_OK)
            return status;
    }
    sqlite3_stmt *statement = sqlite_statement(conn, SQL_LEASE_DELETE);
    sqlite3_bind_int64(statement, 1, lease);
    return sqlite_run(conn, statement, error);
}
