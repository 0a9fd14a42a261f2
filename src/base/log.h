/* SPDX-License-Identifier: Apache-2.0 */
/* Logging to the sink of shoal_log_set. Never call it under a stripe lock. Each file defines LOG_MODULE before use. */
#ifndef SHOAL_BASE_LOG_H
#define SHOAL_BASE_LOG_H

#include <stdbool.h>

#include <shoal/status.h>

bool log_is_enabled(enum shoal_log_level level);
void log_write(enum shoal_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_AT(level, ...)                                                                                             \
    do {                                                                                                               \
        if (log_is_enabled(level))                                                                                     \
            log_write(level, LOG_MODULE, __VA_ARGS__);                                                                 \
    } while (0)
#define LOG_ERROR(...) LOG_AT(SHOAL_LOG_ERROR, __VA_ARGS__)
#define LOG_WARN(...) LOG_AT(SHOAL_LOG_WARN, __VA_ARGS__)
#define LOG_INFO(...) LOG_AT(SHOAL_LOG_INFO, __VA_ARGS__)
#define LOG_DEBUG(...) LOG_AT(SHOAL_LOG_DEBUG, __VA_ARGS__)
#define LOG_TRACE(...) LOG_AT(SHOAL_LOG_TRACE, __VA_ARGS__)

#endif
