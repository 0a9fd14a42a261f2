/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define LOG_LINE_MAX_BYTES 1024

/* The lock is held for reading while a sink runs, so that shoal_log_set (the writer) returns only when the old one is
 * out of use. The level lets callers skip formatting without the lock; relaxed is enough, a late reader only formats in
 * vain. */
static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static shoal_log_fn sink;
static void *sink_arg;
static atomic_int sink_level = -1;

void shoal_log_set(shoal_log_fn new_sink, void *arg, enum shoal_log_level max_level)
{
    pthread_rwlock_wrlock(&sink_lock);
    sink = new_sink;
    sink_arg = arg;
    atomic_store_explicit(&sink_level, new_sink ? (int)max_level : -1, memory_order_relaxed);
    pthread_rwlock_unlock(&sink_lock);
}

bool log_is_enabled(enum shoal_log_level level)
{
    return (int)level <= atomic_load_explicit(&sink_level, memory_order_relaxed);
}

void log_write(enum shoal_log_level level, const char *module, const char *format, ...)
{
    char line[LOG_LINE_MAX_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    }
    pthread_rwlock_rdlock(&sink_lock);
    if (sink && (int)level <= atomic_load_explicit(&sink_level, memory_order_relaxed))
        sink(sink_arg, level, module, line);
    pthread_rwlock_unlock(&sink_lock);
}
