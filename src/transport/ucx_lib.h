/* SPDX-License-Identifier: Apache-2.0 */
/* UCX, loaded when the first transport needs it: a process that does not use it gets none of its threads, hooks and
 * signal handlers, and starts on machines without it. Never unloaded. */
#ifndef SHOAL_TRANSPORT_UCX_LIB_H
#define SHOAL_TRANSPORT_UCX_LIB_H

#include <shoal/status.h>
#include <ucp/api/ucp.h>

/* What is used of it, each under its own name without "ucp_". */
#define UCX_LIB_FUNCTIONS(X)                                                                                           \
    X(config_read)                                                                                                     \
    X(config_modify)                                                                                                   \
    X(config_release)                                                                                                  \
    X(init_version)                                                                                                    \
    X(cleanup)                                                                                                         \
    X(worker_create)                                                                                                   \
    X(worker_destroy)                                                                                                  \
    X(worker_get_address)                                                                                              \
    X(worker_release_address)                                                                                          \
    X(worker_get_efd)                                                                                                  \
    X(worker_arm)                                                                                                      \
    X(worker_progress)                                                                                                 \
    X(worker_set_am_recv_handler)                                                                                      \
    X(am_send_nbx)                                                                                                     \
    X(ep_create)                                                                                                       \
    X(ep_close_nbx)                                                                                                    \
    X(ep_flush_nbx)                                                                                                    \
    X(ep_rkey_unpack)                                                                                                  \
    X(rkey_destroy)                                                                                                    \
    X(mem_map)                                                                                                         \
    X(mem_unmap)                                                                                                       \
    X(rkey_pack)                                                                                                       \
    X(rkey_buffer_release)                                                                                             \
    X(get_nbx)                                                                                                         \
    X(put_nbx)                                                                                                         \
    X(request_check_status)                                                                                            \
    X(request_free)                                                                                                    \
    X(get_version_string)

struct ucx_lib {
#define UCX_LIB_MEMBER(name) __typeof__(&ucp_##name) name;
    UCX_LIB_FUNCTIONS(UCX_LIB_MEMBER)
#undef UCX_LIB_MEMBER
    const char *(*status_string)(ucs_status_t status);
};

/* Any thread. NULL: UCX is not there or lacks a function; error (UNSUPPORTED) says which. */
const struct ucx_lib *ucx_lib_load(struct shoal_error *error);

#endif
