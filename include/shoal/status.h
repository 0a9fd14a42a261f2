/* SPDX-License-Identifier: Apache-2.0
 *
 * shoal/status.h - status codes, error detail, deadlines and cancellation, logging.
 *
 * Every fallible Shoal function returns an enum shoal_status: SHOAL_OK (0) or a stable negative value. Detail in words
 * goes into an optional struct shoal_error that the caller owns:
 *
 *     struct shoal_error error;
 *     if (shoal_store_unregister(store, "model-v1", NULL, &error) != SHOAL_OK)
 *         fprintf(stderr, "%s: %s\n", shoal_status_name(error.status), error.message);
 *
 * Threads: everything here may be called from any thread.
 */
#ifndef SHOAL_STATUS_H
#define SHOAL_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHOAL_API __attribute__((visibility("default")))
#else
#define SHOAL_API
#endif

/* X(NAME, value, text): the one list that enum, names and texts are made of. Values never change meaning. */
#define SHOAL_STATUS_MAP(X)                                                                                            \
    X(OK, 0, "success")                                                                                                \
    X(INVALID_ARGUMENT, -1, "invalid argument")                                                                        \
    X(ADDRESS_OVERLAPPED, -2, "memory overlaps a region that is registered with other bounds")                         \
    X(PAYLOAD_OPENED, -3, "payload is already registered or replicated by this node")                                  \
    X(PAYLOAD_NOT_OPENED, -4, "payload is not registered or replicated by this node")                                  \
    X(PAYLOAD_NOT_FOUND, -5, "no such payload in the metadata service")                                                \
    X(TOO_MANY_RETRIES, -6, "gave up after too many retries")                                                          \
    X(TRANSFER_ENGINE, -7, "transfer engine failure")                                                                  \
    X(EXISTS, -8, "already exists")                                                                                    \
    X(NO_SOURCE, -9, "no live source")                                                                                 \
    X(CORRUPTED, -10, "data does not match its digest")                                                                \
    X(REPLACED, -11, "payload was replaced by another generation")                                                     \
    X(TIMED_OUT, -12, "deadline passed")                                                                               \
    X(CANCELED, -13, "canceled")                                                                                       \
    X(METADATA, -14, "metadata service failure")                                                                       \
    X(NO_MEMORY, -15, "out of memory")                                                                                 \
    X(NOT_FOUND, -16, "not found")                                                                                     \
    X(NAME_IN_USE, -17, "name or address is in use")                                                                   \
    X(ADDRESS, -18, "address cannot be resolved or bound")                                                             \
    X(PERMISSION, -19, "permission denied")                                                                            \
    X(UNSUPPORTED, -20, "not supported here")                                                                          \
    X(IO, -21, "input/output error")                                                                                   \
    X(CLOSED, -22, "closed")                                                                                           \
    X(BUSY, -23, "busy")                                                                                               \
    X(PROTOCOL, -24, "peer violated the protocol")                                                                     \
    X(NO_SPACE, -25, "no space left")                                                                                  \
    X(CONFLICT, -26, "a concurrent change won")                                                                        \
    X(LIMIT, -27, "a configured limit was reached")                                                                    \
    X(UNREACHABLE, -28, "peer is unreachable")                                                                         \
    X(INTERNAL, -29, "internal error")

enum shoal_status {
#define SHOAL_STATUS_ENUM_(name, value, text) SHOAL_##name = (value),
    SHOAL_STATUS_MAP(SHOAL_STATUS_ENUM_)
#undef SHOAL_STATUS_ENUM_
};

/* Detail of a failure. Written by the callee on failure only (and then completely); owned by the caller. */
struct shoal_error {
    enum shoal_status status; /* equals the returned status */
    int sys_errno;            /* errno behind it, 0 if none */
    char message[512];        /* one line, names payload, peer and cause; NUL-terminated UTF-8 */
};

/* "INVALID_ARGUMENT" for SHOAL_INVALID_ARGUMENT; "UNKNOWN" for a value that is no status. Static storage. */
SHOAL_API const char *shoal_status_name(enum shoal_status status);

/* One short sentence about the status. Static storage. */
SHOAL_API const char *shoal_status_text(enum shoal_status status);

/* 1 if the same call may succeed later with the same arguments, else 0. */
SHOAL_API int shoal_status_is_retryable(enum shoal_status status);

/* Cancellation token: shared by the thread that calls and the thread that cancels. Reference-counted internally: it may
 * be destroyed while calls that use it still run. */
struct shoal_cancel;

/* Creates an untriggered token. NO_MEMORY. */
SHOAL_API enum shoal_status shoal_cancel_create(struct shoal_cancel **cancel_out);

/* Makes every running and future call that uses the token return CANCELED soon. Never blocks, may be called often.
 * NULL is allowed. Not async-signal-safe. */
SHOAL_API void shoal_cancel_trigger(struct shoal_cancel *cancel);

/* Drops the caller's reference. NULL is allowed. */
SHOAL_API void shoal_cancel_destroy(struct shoal_cancel *cancel);

/* How far a call is. What the bytes are is said where a call offers progress. */
struct shoal_source_stats;
struct shoal_progress {
    uint64_t total_bytes;
    uint64_t done_bytes; /* register: hashed; get_replica: verified; shoal/kv.h: moved */
    uint64_t elapsed_ms;
    uint32_t source_count;                    /* entries in sources */
    const struct shoal_source_stats *sources; /* get_replica only; valid during the callback */
    /* get_replica with reuse or previous only */
    uint64_t reused_bytes;  /* of done_bytes: were there already */
    uint64_t checked_bytes; /* compared so far with what was there; total_bytes when that is over */
    uint32_t is_checking;   /* what is there is being compared; nothing is pulled yet */
};

/* Called from the thread that made the call, about every interval and once at the end; never after the call has
 * returned. It should be short, may trigger the call's token, and must not use the object that is called. */
typedef void (*shoal_progress_fn)(void *arg, const struct shoal_progress *progress);

/* How long a blocking call may take, who may end it, and who is told how far it is. NULL means the defaults everywhere
 * it is accepted. */
struct shoal_call {
    size_t struct_size;          /* sizeof(struct shoal_call) */
    int64_t timeout_ms;          /* 0: the call's documented default; < 0: no deadline */
    struct shoal_cancel *cancel; /* borrowed until the call returns; NULL: cannot be canceled */
    /* For calls that say so (shoal/kv.h: put, get and get_into of one value); others do not look at them. */
    shoal_progress_fn progress; /* may be NULL */
    void *progress_arg;
    int64_t progress_interval_ms; /* 0: 200 */
};

/* Log levels, most severe first. */
enum shoal_log_level {
    SHOAL_LOG_ERROR = 0,
    SHOAL_LOG_WARN = 1,
    SHOAL_LOG_INFO = 2,
    SHOAL_LOG_DEBUG = 3,
    SHOAL_LOG_TRACE = 4,
};

/* Receives one log line without newline. Called from any thread, concurrently; must not call back into Shoal. */
typedef void (*shoal_log_fn)(void *arg, enum shoal_log_level level, const char *module, const char *message);

/* Installs the process-wide log sink; NULL (the initial state) discards everything: the library never prints. Messages
 * above max_level are not formatted. When it returns, the previous sink is no longer running. */
SHOAL_API void shoal_log_set(shoal_log_fn sink, void *arg, enum shoal_log_level max_level);

/* "0.1.0". Static storage. */
SHOAL_API const char *shoal_version(void);

#ifdef __cplusplus
}
#endif
#endif
