/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/storage_index.h"

#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"

#define LOG_MODULE "tier"
#define APPLICATION_ID 0x53484b56 /* "SHKV" */
#define SCHEMA_VERSION 1
#define BUSY_TIMEOUT_MS 10000
#define WAL_PAGES_LONG 1000 /* of 4 KiB: time for a checkpoint in the background */
#define WAL_PAGES_MAX 16000 /* nobody maintains: an addition has to */
#define PATH_IN_MESSAGE "%.200s"

enum statement { SQL_BEGIN, SQL_COMMIT, SQL_ROLLBACK, SQL_ADD, SQL_DELETE, SQL_ALL, SQL_STATEMENT_COUNT };

static const char *const sql[SQL_STATEMENT_COUNT] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",
    [SQL_ADD] = "INSERT OR REPLACE INTO objects(block, key, object_id, len, digests) VALUES(?1, ?2, ?3, ?4, ?5)",
    [SQL_DELETE] = "DELETE FROM objects WHERE block=?1",
    [SQL_ALL] = "SELECT block, key, object_id, len, digests FROM objects ORDER BY block",
};

static const char schema[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE objects(block INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, object_id INTEGER NOT NULL,"
    " len INTEGER NOT NULL, digests BLOB NOT NULL);"
    "PRAGMA application_id=0x53484b56;"
    "PRAGMA user_version=1;"
    "COMMIT";

struct storage_ticket {
    struct list_node node;
    int64_t block;
};

struct storage_index {
    char *path; /* owned */
    /* RANK_TIER: the connection db; doomed_mutex follows. */
    struct mutex mutex;
    sqlite3 *db;
    sqlite3_stmt *statements[SQL_STATEMENT_COUNT];
    /* RANK_TIER, never together with mutex: a connection of its own, so that additions do not wait for fsync. */
    struct mutex checkpoint_mutex;
    sqlite3 *checkpoint_db;
    atomic_int wal_pages;
    struct mutex doomed_mutex; /* RANK_TIER_SPACE */
    struct list waiting;       /* struct addition, of threads that wait for mutex or have it */
    struct list doomed;
    /* Also those that a running sweep has taken: 0 only after they are gone from the file. */
    atomic_size_t doomed_count;
};

static enum shoal_status fail(struct storage_index *index, sqlite3 *db, int rc, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_IO;
    const char *advice = "";

    switch (rc & 0xff) {
    case SQLITE_NOMEM:
        return error_no_memory(error);
    case SQLITE_FULL:
        status = SHOAL_NO_SPACE;
        break;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
        status = SHOAL_PERMISSION;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        advice = "; use another directory, or move the file (and its -wal) away: the tier starts empty then";
        break;
    default:
        break;
    }
    return error_set(error, status, db ? sqlite3_system_errno(db) : 0, "index " PATH_IN_MESSAGE ": %s%s", index->path,
                     db ? sqlite3_errmsg(db) : sqlite3_errstr(rc), advice);
}

/* --- opening
 * -----------------------------------------------------------------------------------------------------------
 */

static int query_int(sqlite3 *db, const char *text, int64_t *value_out)
{
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db, text, -1, &statement, NULL);
    if (rc != SQLITE_OK)
        return rc;
    if (sqlite3_step(statement) == SQLITE_ROW)
        *value_out = sqlite3_column_int64(statement, 0);
    return sqlite3_finalize(statement);
}

static enum shoal_status check_schema(struct storage_index *index, struct shoal_error *error)
{
    int64_t tables = 0, application_id = 0, version = 0;
    int rc = query_int(index->db, "SELECT count(*) FROM sqlite_schema", &tables);
    if (rc == SQLITE_OK)
        rc = query_int(index->db, "PRAGMA application_id", &application_id);
    if (rc == SQLITE_OK)
        rc = query_int(index->db, "PRAGMA user_version", &version);
    if (rc == SQLITE_OK && tables == 0 && application_id == 0 && version == 0)
        rc = sqlite3_exec(index->db, schema, NULL, NULL, NULL);
    else if (rc == SQLITE_OK && application_id != APPLICATION_ID)
        return error_set(error, SHOAL_IO, 0,
                         "index " PATH_IN_MESSAGE
                         ": the file is a SQLite database of another application; use another directory",
                         index->path);
    else if (rc == SQLITE_OK && version != SCHEMA_VERSION)
        return error_set(error, SHOAL_IO, 0,
                         "index " PATH_IN_MESSAGE ": the file has schema version %lld, this Shoal knows %d; use the"
                         " newer Shoal or another directory",
                         index->path, (long long)version, SCHEMA_VERSION);
    return rc == SQLITE_OK ? SHOAL_OK : fail(index, index->db, rc, error);
}

/* After a commit: how long the write-ahead log is now. */
static int on_commit(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct storage_index *index = arg;

    atomic_store_explicit(&index->wal_pages, pages, memory_order_relaxed);
    if (pages >= WAL_PAGES_MAX)
        sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return SQLITE_OK;
}

static int open_db(const char *path, sqlite3 **db_out)
{
    static const char pragmas[] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA trusted_schema=OFF";
    /* Of this process alone: no system calls for locks, no shared memory between processes. */
    int rc =
        sqlite3_open_v2(path, db_out, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, "unix-excl");

    if (rc != SQLITE_OK)
        return rc;
    sqlite3_extended_result_codes(*db_out, 1);
    sqlite3_busy_timeout(*db_out, BUSY_TIMEOUT_MS);
    return sqlite3_exec(*db_out, pragmas, NULL, NULL, NULL);
}

enum shoal_status storage_index_open(const char *path, struct storage_index **index_out, struct shoal_error *error)
{
    struct storage_index *index = calloc(1, sizeof *index);
    enum shoal_status status;

    if (!index)
        return error_no_memory(error);
    mutex_init(&index->mutex, RANK_TIER);
    mutex_init(&index->checkpoint_mutex, RANK_TIER);
    mutex_init(&index->doomed_mutex, RANK_TIER_SPACE);
    list_init(&index->waiting);
    list_init(&index->doomed);
    index->path = strdup(path);
    if (!index->path) {
        status = error_no_memory(error);
        goto close_index;
    }
    int rc = open_db(path, &index->db);
    if (rc != SQLITE_OK) {
        status = fail(index, index->db, rc, error);
        goto close_index;
    }
    status = check_schema(index, error);
    if (status != SHOAL_OK)
        goto close_index;
    rc = open_db(path, &index->checkpoint_db);
    if (rc != SQLITE_OK) {
        status = fail(index, index->checkpoint_db, rc, error);
        goto close_index;
    }
    sqlite3_wal_hook(index->db, on_commit, index);
    for (int i = 0; i < SQL_STATEMENT_COUNT; i++) {
        rc = sqlite3_prepare_v3(index->db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &index->statements[i], NULL);
        if (rc != SQLITE_OK) {
            status = fail(index, index->db, rc, error);
            goto close_index;
        }
    }
    *index_out = index;
    return SHOAL_OK;
close_index:
    storage_index_close(index);
    return status;
}

void storage_index_close(struct storage_index *index)
{
    struct list_node *node;

    if (!index)
        return;
    if (storage_index_has_doomed(index)) {
        struct shoal_error error;
        if (storage_index_sweep(index, &error) != SHOAL_OK)
            LOG_WARN("%s", error.message);
    }
    while ((node = list_pop_front(&index->doomed)))
        storage_ticket_destroy(container_of(node, struct storage_ticket, node));
    for (int i = 0; i < SQL_STATEMENT_COUNT; i++)
        sqlite3_finalize(index->statements[i]);
    sqlite3_close(index->checkpoint_db);
    sqlite3_close(index->db); /* the last one moves the write-ahead log into the file */
    mutex_release(&index->doomed_mutex);
    mutex_release(&index->checkpoint_mutex);
    mutex_release(&index->mutex);
    free(index->path);
    free(index);
}

/* --- rows
 * --------------------------------------------------------------------------------------------------------------
 */

enum shoal_status storage_index_each(struct storage_index *index,
                                     enum shoal_status (*fn)(void *arg, const struct storage_entry *entry,
                                                             struct shoal_error *error),
                                     void *arg, struct shoal_error *error)
{
    sqlite3_stmt *statement = index->statements[SQL_ALL];
    enum shoal_status status = SHOAL_OK;
    int rc;

    while (status == SHOAL_OK && (rc = sqlite3_step(statement)) != SQLITE_DONE) {
        if (rc != SQLITE_ROW) {
            status = fail(index, index->db, rc, error);
            break;
        }
        struct storage_entry entry = {
            .block = sqlite3_column_int64(statement, 0),
            .key = (const char *)sqlite3_column_text(statement, 1), /* a NUL follows it */
            .object_id = (uint64_t)sqlite3_column_int64(statement, 2),
            .len_bytes = (uint64_t)sqlite3_column_int64(statement, 3),
            .digests = sqlite3_column_blob(statement, 4),
            .digests_len = (size_t)sqlite3_column_bytes(statement, 4),
        };
        entry.key_len = (size_t)sqlite3_column_bytes(statement, 1);
        status = entry.key ? fn(arg, &entry, error) : error_no_memory(error);
    }
    sqlite3_reset(statement);
    return status;
}

static int run(struct storage_index *index, enum statement which)
{
    sqlite3_stmt *statement = index->statements[which];
    int rc = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

struct storage_ticket *storage_ticket_create(int64_t block)
{
    struct storage_ticket *ticket = calloc(1, sizeof *ticket);
    if (ticket) {
        list_node_init(&ticket->node);
        ticket->block = block;
    }
    return ticket;
}

void storage_ticket_destroy(struct storage_ticket *ticket)
{
    free(ticket);
}

void storage_index_doom(struct storage_index *index, struct storage_ticket *ticket)
{
    mutex_lock(&index->doomed_mutex);
    list_push_back(&index->doomed, &ticket->node);
    /* release: whoever writes over the object's blocks later learns of it (acquire in has_doomed). */
    atomic_fetch_add_explicit(&index->doomed_count, 1, memory_order_release);
    mutex_unlock(&index->doomed_mutex);
}

bool storage_index_has_doomed(struct storage_index *index)
{
    return atomic_load_explicit(&index->doomed_count, memory_order_acquire) != 0;
}

static void move_all(struct list *from, struct list *to)
{
    struct list_node *node;
    while ((node = list_pop_front(from)))
        list_push_back(to, node);
}

/* An entry that waits to be added, on its caller's stack. */
struct addition {
    struct list_node node; /* doomed_mutex */
    const struct storage_entry *entry;
    bool is_done; /* mutex; what follows, too */
    enum shoal_status status;
    struct shoal_error *error;
};

static int add(struct storage_index *index, const struct storage_entry *entry)
{
    sqlite3_stmt *statement = index->statements[SQL_ADD];
    int rc = SQLITE_OK;

    sqlite3_bind_int64(statement, 1, entry->block);
    sqlite3_bind_blob64(statement, 2, entry->key, entry->key_len, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, (sqlite3_int64)entry->object_id);
    sqlite3_bind_int64(statement, 4, (sqlite3_int64)entry->len_bytes);
    if (entry->digests_len)
        rc = sqlite3_bind_blob64(statement, 5, entry->digests, entry->digests_len, SQLITE_STATIC);
    else
        sqlite3_bind_zeroblob(statement, 5, 0);
    if (rc == SQLITE_OK)
        return run(index, SQL_ADD);
    sqlite3_clear_bindings(statement);
    return rc;
}

/* One transaction: what is doomed goes, then the additions come. Under mutex. */
static enum shoal_status change(struct storage_index *index, const struct list *additions, struct shoal_error *error)
{
    enum shoal_status status = SHOAL_OK;
    struct list going;
    size_t gone = 0;

    list_init(&going);
    mutex_lock(&index->doomed_mutex);
    move_all(&index->doomed, &going);
    mutex_unlock(&index->doomed_mutex);
    int rc = run(index, SQL_BEGIN);
    LIST_FOR_EACH (ticket, &going, struct storage_ticket, node) {
        if (rc != SQLITE_OK)
            break;
        sqlite3_bind_int64(index->statements[SQL_DELETE], 1, ticket->block);
        rc = run(index, SQL_DELETE);
    }
    LIST_FOR_EACH (addition, additions, struct addition, node) {
        if (rc != SQLITE_OK)
            break;
        rc = add(index, addition->entry);
    }
    if (rc == SQLITE_OK)
        rc = run(index, SQL_COMMIT);
    if (rc == SQLITE_OK) {
        struct list_node *node;
        while ((node = list_pop_front(&going))) {
            storage_ticket_destroy(container_of(node, struct storage_ticket, node));
            gone++;
        }
        atomic_fetch_sub_explicit(&index->doomed_count, gone, memory_order_release);
    } else {
        status = fail(index, index->db, rc, error);
        if (!sqlite3_get_autocommit(index->db))
            run(index, SQL_ROLLBACK);
        mutex_lock(&index->doomed_mutex);
        move_all(&going, &index->doomed);
        mutex_unlock(&index->doomed_mutex);
    }
    return status;
}

/* Under mutex: adds what waits, in one transaction. If that fails each gets one of its own, and its own error. */
static void add_waiting(struct storage_index *index)
{
    struct list batch;
    struct list_node *node;
    struct shoal_error error;

    list_init(&batch);
    mutex_lock(&index->doomed_mutex);
    move_all(&index->waiting, &batch);
    mutex_unlock(&index->doomed_mutex);
    bool is_added = change(index, &batch, &error) == SHOAL_OK;
    while ((node = list_pop_front(&batch))) {
        struct addition *addition = container_of(node, struct addition, node);
        struct list alone;
        list_init(&alone);
        list_push_back(&alone, &addition->node);
        addition->status = is_added ? SHOAL_OK : change(index, &alone, addition->error);
        list_remove(&addition->node);
        addition->is_done = true;
    }
}

enum shoal_status storage_index_add(struct storage_index *index, const struct storage_entry *entry,
                                    struct shoal_error *error)
{
    struct addition addition = {.entry = entry, .error = error};

    list_node_init(&addition.node);
    mutex_lock(&index->doomed_mutex);
    list_push_back(&index->waiting, &addition.node);
    mutex_unlock(&index->doomed_mutex);
    /* Those who come while a transaction runs wait here; the first of them adds all. */
    mutex_lock(&index->mutex);
    if (!addition.is_done)
        add_waiting(index);
    mutex_unlock(&index->mutex);
    return addition.status;
}

enum shoal_status storage_index_sweep(struct storage_index *index, struct shoal_error *error)
{
    struct list none;

    list_init(&none);
    mutex_lock(&index->mutex);
    enum shoal_status status = change(index, &none, error);
    mutex_unlock(&index->mutex);
    return status;
}

void storage_index_maintain(struct storage_index *index)
{
    struct shoal_error error;

    if (storage_index_has_doomed(index) && storage_index_sweep(index, &error) != SHOAL_OK)
        LOG_WARN("%s", error.message);
    if (atomic_load_explicit(&index->wal_pages, memory_order_relaxed) < WAL_PAGES_LONG)
        return;
    mutex_lock(&index->checkpoint_mutex);
    int rc = sqlite3_wal_checkpoint_v2(index->checkpoint_db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    /* The log starts again with the next commit, which sets it anew. */
    atomic_store_explicit(&index->wal_pages, 0, memory_order_relaxed);
    mutex_unlock(&index->checkpoint_mutex);
    if (rc != SQLITE_OK && (rc & 0xff) != SQLITE_BUSY) /* busy: the next time */
        LOG_WARN("index %s: checkpoint: %s", index->path, sqlite3_errstr(rc));
}
