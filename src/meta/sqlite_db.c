/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to the database file: opening, schema, statements, waiting for locks, errors in words. */
#include "meta/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define APPLICATION_ID 0x53484f4c /* "SHOL" */
#define SCHEMA_VERSION 1
#define LENGTH_LIMIT_BYTES (8 << 20) /* what a row may hold, whoever wrote it */
#define PROGRESS_INSTRUCTIONS 10000  /* well under a millisecond between checks of the deadline */
#define BUSY_BASE_MS 1
#define BUSY_MAX_MS 12
#define PATH_IN_MESSAGE "%.200s"

static const char *const pragmas[] = {
    "PRAGMA journal_mode=WAL",
    /* No fsync per commit: a crash of a process loses nothing, a crash of the host loses what was temporary anyway. */
    "PRAGMA synchronous=NORMAL",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA trusted_schema=OFF",
};

static const char *const schema[] = {
    "CREATE TABLE store(one INTEGER PRIMARY KEY CHECK(one=1), id INTEGER NOT NULL, revision INTEGER NOT NULL,"
    " compact_revision INTEGER NOT NULL, log_id INTEGER NOT NULL, log_bytes INTEGER NOT NULL, boot_id TEXT NOT NULL)",
    "CREATE TABLE kv(key BLOB NOT NULL PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,"
    " mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL)",
    "CREATE INDEX kv_lease ON kv(lease) WHERE lease <> 0",
    "CREATE TABLE leases(id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL)",
    "CREATE INDEX leases_deadline ON leases(deadline_ms)",
    /* value is NULL for a deletion; bytes counts everything logged up to this row */
    "CREATE TABLE log(id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, bytes INTEGER NOT NULL, key BLOB NOT NULL,"
    " value BLOB, create_revision INTEGER NOT NULL, lease INTEGER NOT NULL)",
    "CREATE INDEX log_revision ON log(revision)",
};

static const char *const sql[SQL_STATEMENT_COUNT] = {
    [SQL_BEGIN_READ] = "BEGIN",
    [SQL_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",
    [SQL_DATA_VERSION] = "PRAGMA data_version",
    [SQL_STORE_LOAD] = "SELECT id, revision, compact_revision, log_id, log_bytes FROM store",
    [SQL_STORE_SAVE] = "UPDATE store SET revision=?1, compact_revision=?2, log_id=?3, log_bytes=?4",
    [SQL_KV_GET] = "SELECT key, value, create_revision, mod_revision, lease FROM kv WHERE key=?1",
    [SQL_KV_RANGE] = "SELECT key, value, create_revision, mod_revision, lease FROM kv WHERE key>=?1 AND key<?2"
                     " ORDER BY key LIMIT ?3",
    [SQL_KV_ANY] = "SELECT 1 FROM kv WHERE key>=?1 AND key<?2 LIMIT 1",
    [SQL_KV_PUT] = "INSERT INTO kv(key, value, create_revision, mod_revision, lease) VALUES(?1, ?2, ?3, ?3, ?4)"
                   " ON CONFLICT(key) DO UPDATE SET value=excluded.value, mod_revision=excluded.mod_revision,"
                   " lease=excluded.lease RETURNING create_revision",
    [SQL_KV_DELETE] = "DELETE FROM kv WHERE key=?1 RETURNING 1",
    [SQL_KV_DELETE_RANGE] = "DELETE FROM kv WHERE key>=?1 AND key<?2",
    [SQL_KV_OF_LEASE] = "SELECT key FROM kv WHERE lease=?1 AND lease<>0 ORDER BY key LIMIT 1",
    [SQL_LEASE_GET] = "SELECT ttl_ms FROM leases WHERE id=?1",
    [SQL_LEASE_ADD] = "INSERT INTO leases(id, ttl_ms, deadline_ms) VALUES(?1, ?2, ?3)",
    [SQL_LEASE_RENEW] = "UPDATE leases SET deadline_ms=?2+ttl_ms WHERE id=?1 RETURNING id",
    [SQL_LEASE_DELETE] = "DELETE FROM leases WHERE id=?1",
    [SQL_LEASE_EXPIRED] = "SELECT id FROM leases WHERE deadline_ms<=?1 ORDER BY deadline_ms, id LIMIT 1",
    [SQL_LEASE_NEXT_DEADLINE] = "SELECT min(deadline_ms) FROM leases",
    [SQL_LOG_ADD] = "INSERT INTO log(id, revision, bytes, key, value, create_revision, lease)"
                    " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    [SQL_LOG_FROM] = "SELECT key, value, create_revision, revision, lease, id FROM log WHERE revision>=?1 AND id>?2"
                     " AND key>=?3 AND key<?4 ORDER BY revision, id",
    [SQL_LOG_FIRST] = "SELECT id, bytes FROM log ORDER BY id LIMIT 1",
    [SQL_LOG_CUT] = "SELECT revision FROM log WHERE id<=?1 OR bytes<=?2 ORDER BY id DESC LIMIT 1",
    [SQL_LOG_TRIM] = "DELETE FROM log WHERE revision<=?1",
};

int64_t sqlite_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- errors and waiting --------------------------------------------------------------------------------------------
 */

enum shoal_status sqlite_fail(struct sqlite_conn *conn, int rc, struct shoal_error *error)
{
    int sys_errno = conn->db ? sqlite3_system_errno(conn->db) : 0;
    char cause[320];

    switch (rc & 0xff) {
    case SQLITE_NOMEM:
        return error_no_memory(error);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_INTERRUPT: {
        snprintf(cause, sizeof cause, "metadata sqlite:" PATH_IN_MESSAGE ": waiting for other processes", conn->path);
        enum shoal_status status = call_check(conn->call, error, cause);
        if (status != SHOAL_OK)
            return status;
        return error_set(error, SHOAL_METADATA, 0, "metadata sqlite:" PATH_IN_MESSAGE ": locked by another process",
                         conn->path);
    }
    case SQLITE_FULL:
        sys_errno = ENOSPC;
        snprintf(cause, sizeof cause, "no space left on device");
        break;
    case SQLITE_NOTADB:
        snprintf(cause, sizeof cause, "the file is not a SQLite database; give another path, where Shoal makes one");
        break;
    case SQLITE_CORRUPT:
        snprintf(cause, sizeof cause, "the file is damaged; give another path, or move it away to start anew");
        break;
    case SQLITE_READONLY:
        sys_errno = sys_errno ? sys_errno : EACCES;
        snprintf(cause, sizeof cause, "file or directory is not writable");
        break;
    case SQLITE_TOOBIG:
        snprintf(cause, sizeof cause, "a row is larger than %d bytes", LENGTH_LIMIT_BYTES);
        break;
    default:
        if (sys_errno)
            snprintf(cause, sizeof cause, "%s: %s", sqlite3_errstr(rc), strerror(sys_errno));
        else
            snprintf(cause, sizeof cause, "%s", conn->db ? sqlite3_errmsg(conn->db) : sqlite3_errstr(rc));
    }
    return error_set(error, SHOAL_METADATA, sys_errno, "metadata sqlite:" PATH_IN_MESSAGE ": %s", conn->path, cause);
}

static bool is_over(const struct sqlite_conn *conn)
{
    return deadline_is_past(conn->call->deadline_ms) || cancel_is_triggered(conn->call->cancel);
}

/* Called while another process holds a lock; a true answer means try again. */
static int on_busy(void *arg, int attempt)
{
    struct sqlite_conn *conn = arg;
    if (is_over(conn))
        return 0;
    int64_t delay_ms = backoff_ms(&conn->random, attempt < 8 ? (unsigned)attempt : 8u, BUSY_BASE_MS, BUSY_MAX_MS);
    delay_ms = deadline_min(delay_ms, deadline_left_ms(conn->call->deadline_ms));
    struct timespec delay = {.tv_nsec = (long)delay_ms * 1000000};
    nanosleep(&delay, NULL);
    return 1;
}

static int on_progress(void *arg)
{
    return is_over(arg);
}

/* --- opening -------------------------------------------------------------------------------------------------------
 */

void sqlite_conn_init(struct sqlite_conn *conn, const char *path)
{
    *conn = (struct sqlite_conn){.path = path};
    random_init(&conn->random, random_id());
}

void sqlite_conn_release(struct sqlite_conn *conn)
{
    for (int i = 0; i < SQL_STATEMENT_COUNT; i++) {
        sqlite3_finalize(conn->statements[i]);
        conn->statements[i] = NULL;
    }
    sqlite3_close(conn->db);
    conn->db = NULL;
    conn->is_write = conn->is_changed = false;
}

/* Some steps of opening report a lock without asking the busy handler. */
static int exec_patiently(struct sqlite_conn *conn, const char *text)
{
    for (int attempt = 0;; attempt++) {
        int rc = sqlite3_exec(conn->db, text, NULL, NULL, NULL);
        if ((rc & 0xff) != SQLITE_BUSY || !on_busy(conn, attempt))
            return rc;
    }
}

static int query_int(struct sqlite_conn *conn, const char *text, int64_t *value_out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(conn->db, text, -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        *value_out = sqlite3_column_int64(statement, 0);
        rc = SQLITE_OK;
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }
    sqlite3_finalize(statement);
    return rc;
}

static void read_boot_id(char *boot_id_out, size_t size)
{
    ssize_t len = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, boot_id_out, size - 1);
        close(fd);
    }
    boot_id_out[len > 0 ? len : 0] = '\0';
    boot_id_out[strcspn(boot_id_out, "\n")] = '\0';
}

static int exec_format(struct sqlite_conn *conn, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int exec_format(struct sqlite_conn *conn, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sqlite3_exec(conn->db, text, NULL, NULL, NULL);
}

static enum shoal_status create_schema(struct sqlite_conn *conn, struct shoal_error *error)
{
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof schema / sizeof *schema; i++)
        rc = sqlite3_exec(conn->db, schema[i], NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = exec_format(conn, "INSERT INTO store VALUES(1, %lld, 1, 0, 0, 0, '')", (long long)(random_id() >> 1));
    if (rc == SQLITE_OK)
        rc = exec_format(conn, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION_ID, SCHEMA_VERSION);
    return rc == SQLITE_OK ? SHOAL_OK : sqlite_fail(conn, rc, error);
}

static enum shoal_status check_schema(struct sqlite_conn *conn, struct shoal_error *error)
{
    int64_t tables = 0, application_id = 0, version = 0;
    int rc = query_int(conn, "SELECT count(*) FROM sqlite_schema", &tables);
    if (rc == SQLITE_OK)
        rc = query_int(conn, "PRAGMA application_id", &application_id);
    if (rc == SQLITE_OK)
        rc = query_int(conn, "PRAGMA user_version", &version);
    if (rc != SQLITE_OK)
        return sqlite_fail(conn, rc, error);
    if (tables == 0 && application_id == 0 && version == 0)
        return create_schema(conn, error);
    if (application_id != APPLICATION_ID)
        return error_set(error, SHOAL_METADATA, 0,
                         "metadata sqlite:" PATH_IN_MESSAGE
                         ": the file is a SQLite database of another application; give another path",
                         conn->path);
    if (version != SCHEMA_VERSION)
        return error_set(error, SHOAL_METADATA, 0,
                         "metadata sqlite:" PATH_IN_MESSAGE ": the file has schema version %lld, this Shoal knows %d; "
                         "use the newer Shoal or another file",
                         conn->path, (long long)version, SCHEMA_VERSION);
    return SHOAL_OK;
}

/* Deadlines count from boot: after a reboot they mean nothing and every owner is gone. Without a boot id a deadline
 * further away than its lease is long tells the same. */
static enum shoal_status expire_before_boot(struct sqlite_conn *conn, struct shoal_error *error)
{
    char boot_id[64];
    read_boot_id(boot_id, sizeof boot_id);
    for (char *c = boot_id; *c; c++)
        if (*c == '\'')
            *c = '?';
    int rc = exec_format(conn,
                         "UPDATE leases SET deadline_ms=0 WHERE deadline_ms-ttl_ms>%lld OR"
                         " '%s'<>(SELECT boot_id FROM store)",
                         (long long)sqlite_now_ms(), boot_id);
    if (rc == SQLITE_OK)
        rc = exec_format(conn, "UPDATE store SET boot_id='%s' WHERE boot_id<>'%s'", boot_id, boot_id);
    return rc == SQLITE_OK ? SHOAL_OK : sqlite_fail(conn, rc, error);
}

static enum shoal_status prepare(struct sqlite_conn *conn, struct shoal_error *error)
{
    for (int i = 0; i < SQL_STATEMENT_COUNT; i++) {
        int rc = sqlite3_prepare_v3(conn->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &conn->statements[i], NULL);
        if (rc != SQLITE_OK)
            return sqlite_fail(conn, rc, error);
    }
    return SHOAL_OK;
}

static bool has_moved(struct sqlite_conn *conn)
{
    int moved = 0;
    sqlite3_file_control(conn->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    return moved != 0;
}

/* Files are created, and found missing, one process at a time: see create_file. flock on the directory leaves nothing
 * behind. */
static enum shoal_status lock_directory(struct sqlite_conn *conn, int *fd_out, struct shoal_error *error)
{
    const char *slash = strrchr(conn->path, '/');
    char *directory = strndup(conn->path, slash == conn->path ? 1 : (size_t)(slash - conn->path));
    if (!directory)
        return error_no_memory(error);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int saved = errno;
    free(directory);
    for (int attempt = 0; fd >= 0; attempt++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            *fd_out = fd;
            return SHOAL_OK;
        }
        saved = errno;
        if (saved == EWOULDBLOCK && on_busy(conn, attempt))
            continue;
        close(fd);
        if (saved == EWOULDBLOCK)
            return sqlite_fail(conn, SQLITE_BUSY, error);
        break;
    }
    return error_set(error, SHOAL_METADATA, saved, "metadata sqlite:" PATH_IN_MESSAGE ": cannot open the directory: %s",
                     conn->path, strerror(saved));
}

static void unlock_directory(int fd)
{
    flock(fd, LOCK_UN); /* a child forked meanwhile shares the lock */
    close(fd);
}

/* A file that was removed may have left its write-ahead log and shared index, still in use by processes that have not
 * noticed yet: a new file must not meet them. */
static enum shoal_status create_file(struct sqlite_conn *conn, struct shoal_error *error)
{
    static const char *const companions[] = {"-wal", "-shm"};
    /* mknod and not open: closing a descriptor of the file would drop the locks that SQLite holds in this process. */
    if (mknod(conn->path, S_IFREG | S_IRUSR | S_IWUSR, 0) != 0) {
        int saved = errno;
        if (saved == EEXIST)
            return SHOAL_OK;
        return error_set(error, SHOAL_METADATA, saved,
                         "metadata sqlite:" PATH_IN_MESSAGE ": cannot create the file: %s", conn->path,
                         strerror(saved));
    }
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s%s", conn->path, companions[i]) < 0) {
            unlink(conn->path);
            return error_no_memory(error);
        }
        unlink(path);
        free(path);
    }
    return SHOAL_OK;
}

static enum shoal_status set_up(struct sqlite_conn *conn, struct shoal_error *error)
{
    int rc = sqlite3_open_v2(conn->path, &conn->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK)
        return sqlite_fail(conn, rc, error);
    sqlite3_extended_result_codes(conn->db, 1);
    sqlite3_limit(conn->db, SQLITE_LIMIT_LENGTH, LENGTH_LIMIT_BYTES);
    sqlite3_busy_handler(conn->db, on_busy, conn);
    sqlite3_progress_handler(conn->db, PROGRESS_INSTRUCTIONS, on_progress, conn);
    for (size_t i = 0; i < sizeof pragmas / sizeof *pragmas; i++) {
        rc = exec_patiently(conn, pragmas[i]);
        if (rc != SQLITE_OK)
            return sqlite_fail(conn, rc, error);
    }
    rc = exec_patiently(conn, "BEGIN IMMEDIATE");
    if (rc != SQLITE_OK)
        return sqlite_fail(conn, rc, error);
    enum shoal_status status = check_schema(conn, error);
    if (status == SHOAL_OK)
        status = expire_before_boot(conn, error);
    if (status == SHOAL_OK) {
        rc = sqlite3_exec(conn->db, "COMMIT", NULL, NULL, NULL);
        status = rc == SQLITE_OK ? SHOAL_OK : sqlite_fail(conn, rc, error);
    }
    return status == SHOAL_OK ? prepare(conn, error) : status;
}

enum shoal_status sqlite_conn_open(struct sqlite_conn *conn, const struct call *call, struct shoal_error *error)
{
    int directory = -1;
    conn->call = call;
    if (conn->db && !has_moved(conn))
        return SHOAL_OK;
    sqlite_conn_release(conn);
    enum shoal_status status = lock_directory(conn, &directory, error);
    if (status != SHOAL_OK)
        return status;
    status = create_file(conn, error);
    if (status == SHOAL_OK)
        status = set_up(conn, error);
    if (status == SHOAL_OK)
        conn->opened++;
    else
        sqlite_conn_release(conn);
    unlock_directory(directory);
    return status;
}

/* --- statements ----------------------------------------------------------------------------------------------------
 */

sqlite3_stmt *sqlite_statement(struct sqlite_conn *conn, enum sqlite_statement which)
{
    return conn->statements[which];
}

enum shoal_status sqlite_step(struct sqlite_conn *conn, sqlite3_stmt *statement, bool *is_row_out,
                              struct shoal_error *error)
{
    int rc = sqlite3_step(statement);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        enum shoal_status status = sqlite_fail(conn, rc, error);
        sqlite3_reset(statement);
        return status;
    }
    *is_row_out = rc == SQLITE_ROW;
    return SHOAL_OK;
}

enum shoal_status sqlite_run(struct sqlite_conn *conn, sqlite3_stmt *statement, struct shoal_error *error)
{
    bool is_row = true;
    enum shoal_status status = SHOAL_OK;
    while (is_row && status == SHOAL_OK)
        status = sqlite_step(conn, statement, &is_row, error);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

void sqlite_bind_bytes(sqlite3_stmt *statement, int at, struct meta_bytes bytes)
{
    if (bytes.len)
        sqlite3_bind_blob(statement, at, bytes.data, (int)bytes.len, SQLITE_STATIC);
    else
        sqlite3_bind_zeroblob(statement, at, 0);
}

void sqlite_bind_range(sqlite3_stmt *statement, int at, struct meta_bytes prefix, uint8_t end_storage[SQLITE_END_BYTES])
{
    size_t len;
    bool is_end;
    meta_prefix_end(prefix, end_storage, &len, &is_end);
    if (is_end) { /* greater than any key */
        len = SQLITE_END_BYTES;
        memset(end_storage, 0xff, len);
    }
    sqlite_bind_bytes(statement, at, prefix);
    sqlite_bind_bytes(statement, at + 1, (struct meta_bytes){end_storage, len});
}

enum shoal_status sqlite_column_entry(sqlite3_stmt *statement, struct meta_entry *entry, struct shoal_error *error)
{
    const void *key = sqlite3_column_blob(statement, 0), *value = sqlite3_column_blob(statement, 1);
    if (!meta_entry_init(entry, key, (size_t)sqlite3_column_bytes(statement, 0), value,
                         (size_t)sqlite3_column_bytes(statement, 1)))
        return error_no_memory(error);
    entry->create_revision = sqlite3_column_int64(statement, 2);
    entry->mod_revision = sqlite3_column_int64(statement, 3);
    entry->lease = sqlite3_column_int64(statement, 4);
    return SHOAL_OK;
}
