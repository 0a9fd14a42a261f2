/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the sqlite backend: one connection with its prepared statements, and transactions on it. */
#ifndef SHOAL_META_SQLITE_H
#define SHOAL_META_SQLITE_H

#include <sqlite3.h>

#include "base/random.h"
#include "meta/meta_ops.h"

#define SQLITE_END_BYTES (META_KEY_MAX_BYTES + 1) /* an end that is greater than any key */

enum sqlite_statement {
    SQL_BEGIN_READ,
    SQL_BEGIN_WRITE,
    SQL_COMMIT,
    SQL_ROLLBACK,
    SQL_DATA_VERSION,
    SQL_STORE_LOAD,
    SQL_STORE_SAVE,
    SQL_KV_GET,
    SQL_KV_RANGE,
    SQL_KV_ANY,
    SQL_KV_PUT,
    SQL_KV_DELETE,
    SQL_KV_DELETE_RANGE,
    SQL_KV_OF_LEASE,
    SQL_LEASE_GET,
    SQL_LEASE_ADD,
    SQL_LEASE_RENEW,
    SQL_LEASE_DELETE,
    SQL_LEASE_EXPIRED,
    SQL_LEASE_NEXT_DEADLINE,
    SQL_LOG_ADD,
    SQL_LOG_FROM,
    SQL_LOG_FIRST,
    SQL_LOG_CUT,
    SQL_LOG_TRIM,
    SQL_STATEMENT_COUNT
};

/* The row of table store. */
struct sqlite_store {
    int64_t id; /* random, of this file's creation */
    int64_t revision;
    int64_t compact_revision;  /* changes up to here have left the log */
    int64_t log_id, log_bytes; /* id of the newest log row; bytes ever logged */
};

/* Used by one thread at a time. */
struct sqlite_conn {
    const char *path;                              /* borrowed from struct sqlite */
    sqlite3 *db;                                   /* owned; NULL: not open */
    uint64_t opened;                               /* how often it was opened */
    sqlite3_stmt *statements[SQL_STATEMENT_COUNT]; /* owned */
    const struct call *call;                       /* of the running operation; bounds every wait for a lock */
    struct random random;
    bool is_write;             /* inside a write transaction: store is loaded */
    bool is_changed;           /* store must be saved */
    struct sqlite_store store; /* valid inside a transaction */
};

void sqlite_conn_init(struct sqlite_conn *conn, const char *path);
void sqlite_conn_release(struct sqlite_conn *conn);
/* Opens, or opens again when the file was removed or replaced. Creates file and schema when missing. */
enum shoal_status sqlite_conn_open(struct sqlite_conn *conn, const struct call *call, struct shoal_error *error);

/* The status and message of an SQLite error code, TIMED_OUT or CANCELED where the call ended a wait. */
enum shoal_status sqlite_fail(struct sqlite_conn *conn, int rc, struct shoal_error *error);

/* A statement ready to bind. */
sqlite3_stmt *sqlite_statement(struct sqlite_conn *conn, enum sqlite_statement which);
/* Steps a statement that returns nothing and resets it. */
enum shoal_status sqlite_run(struct sqlite_conn *conn, sqlite3_stmt *statement, struct shoal_error *error);
/* One row: is_row_out. The caller resets the statement. */
enum shoal_status sqlite_step(struct sqlite_conn *conn, sqlite3_stmt *statement, bool *is_row_out,
                              struct shoal_error *error);
/* Binds first and end of a key range at parameter at and at + 1. */
void sqlite_bind_range(sqlite3_stmt *statement, int at, struct meta_bytes prefix,
                       uint8_t end_storage[SQLITE_END_BYTES]);
void sqlite_bind_bytes(sqlite3_stmt *statement, int at, struct meta_bytes bytes);
/* A copy of the row: key, value, create and mod revision, lease. NO_MEMORY. */
enum shoal_status sqlite_column_entry(sqlite3_stmt *statement, struct meta_entry *entry, struct shoal_error *error);

/* Transactions. begin loads conn->store; a write transaction also deletes what belongs to expired leases. end commits
 * on SHOAL_OK (saving a changed store), else rolls back; it returns status or the failure of the commit. */
enum shoal_status sqlite_begin_read(struct sqlite_conn *conn, struct shoal_error *error);
enum shoal_status sqlite_begin_write(struct sqlite_conn *conn, struct shoal_error *error);
enum shoal_status sqlite_end(struct sqlite_conn *conn, enum shoal_status status, struct shoal_error *error);
/* Inside a transaction: does a lease stand that should be swept? */
enum shoal_status sqlite_has_expired(struct sqlite_conn *conn, bool *has_expired_out, struct shoal_error *error);

/* Inside a write transaction, at revision. */
enum shoal_status sqlite_put(struct sqlite_conn *conn, int64_t revision, const struct meta_op *op,
                             struct shoal_error *error);
/* META_DELETE and META_DELETE_PREFIX. is_deleted_out becomes true if there was something to delete. */
enum shoal_status sqlite_delete(struct sqlite_conn *conn, int64_t revision, const struct meta_op *op,
                                bool *is_deleted_out, struct shoal_error *error);
/* The lease and its keys. */
enum shoal_status sqlite_drop_lease(struct sqlite_conn *conn, int64_t lease, struct shoal_error *error);

/* Milliseconds since boot: the same for all processes of a host, goes on while the host sleeps. */
int64_t sqlite_now_ms(void);

enum shoal_status sqlite_watch_open(struct meta *meta, struct meta_bytes prefix, int64_t from_revision,
                                    meta_watch_fn fn, void *arg, struct meta_watch **watch_out,
                                    struct shoal_error *error);
void sqlite_watch_close(struct meta_watch *watch);
const char *sqlite_path(struct meta *meta);

#endif
