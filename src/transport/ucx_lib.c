/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx_lib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucs/debug/log_def.h>

#include "base/error.h"
#include "base/log.h"

#define LOG_MODULE "ucx"
#define LIBRARY "libucp.so.0"

static pthread_mutex_t lib_mutex = PTHREAD_MUTEX_INITIALIZER; /* a leaf; the loader runs under it */
static struct ucx_lib lib;
static bool is_loaded;

/* UCX writes to stdout otherwise. What it calls an error is mostly a peer that died, which whoever asked is told. */
__attribute__((format(printf, 6, 0))) static ucs_log_func_rc_t log_message(const char *file, unsigned line,
                                                                           const char *function, ucs_log_level_t level,
                                                                           const ucs_log_component_config_t *config,
                                                                           const char *format, va_list arguments)
{
    enum shoal_log_level ours = level <= UCS_LOG_LEVEL_ERROR ? SHOAL_LOG_INFO : SHOAL_LOG_DEBUG;
    char text[512];

    (void)file;
    (void)line;
    (void)function;
    (void)config;
    if (log_is_enabled(ours)) {
        vsnprintf(text, sizeof text, format, arguments);
        log_write(ours, LOG_MODULE, "%s", text);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

/* Handlers for crashes belong to the application; UCX installs its own while it is loaded. */
static const int crash_signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
#define CRASH_SIGNALS (sizeof crash_signals / sizeof crash_signals[0])

static enum shoal_status load(struct shoal_error *error)
{
    const char *name = getenv("SHOAL_UCX_LIBRARY");
    struct sigaction saved[CRASH_SIGNALS];
    void (*push_handler)(ucs_log_func_t handler);
    void *handle;

    name = name && name[0] ? name : LIBRARY;
    for (size_t i = 0; i < CRASH_SIGNALS; i++)
        sigaction(crash_signals[i], NULL, &saved[i]);
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < CRASH_SIGNALS; i++)
        sigaction(crash_signals[i], &saved[i], NULL);
    if (!handle)
        return error_set(error, SHOAL_UNSUPPORTED, 0, "UCX cannot be loaded: %s (Debian has it in libucx0)", dlerror());
#define UCX_LIB_FIND(function)                                                                                         \
    *(void **)&lib.function = dlsym(handle, "ucp_" #function);                                                         \
    if (!lib.function)                                                                                                 \
        return error_set(error, SHOAL_UNSUPPORTED, 0, "%s has no ucp_%s: UCX 1.13 or later is needed", name, #function);
    UCX_LIB_FUNCTIONS(UCX_LIB_FIND)
#undef UCX_LIB_FIND
    *(void **)&lib.status_string = dlsym(handle, "ucs_status_string");
    if (!lib.status_string)
        return error_set(error, SHOAL_UNSUPPORTED, 0, "%s has no ucs_status_string", name);
    *(void **)&push_handler = dlsym(handle, "ucs_log_push_handler");
    if (push_handler)
        push_handler(log_message);
    LOG_INFO("UCX %s", lib.get_version_string());
    return SHOAL_OK;
}

const struct ucx_lib *ucx_lib_load(struct shoal_error *error)
{
    bool is_usable;

    pthread_mutex_lock(&lib_mutex);
    if (!is_loaded)
        is_loaded = load(error) == SHOAL_OK;
    is_usable = is_loaded;
    pthread_mutex_unlock(&lib_mutex);
    return is_usable ? &lib : NULL;
}
