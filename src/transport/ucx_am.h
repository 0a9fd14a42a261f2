/* SPDX-License-Identifier: Apache-2.0 */
/* Eager active messages that UCX does not queue if it need not. The first time UCX 1.13 queues something for an
 * endpoint it shakes hands with the peer's, and when the peer dies within that, it aborts this process. So a message is
 * offered: UCX takes it at once or not at all, and who sends it offers it again after UCX's next progress. */
#ifndef SHOAL_TRANSPORT_UCX_AM_H
#define SHOAL_TRANSPORT_UCX_AM_H

#include <stdbool.h>

#include "transport/ucx_lib.h"

#define UCX_AM_HELLO 0 /* an id that nobody else uses: messages that say nothing */

/* Of one endpoint. All zero is a fresh one. */
struct ucx_am {
    size_t largest; /* bytes that were taken at once */
    bool is_queued; /* what is larger never is, over these devices: UCX queues it, and done is called later */
};

/* As ucp_am_send_nbx, which calls done(request, status, arg) only if a request is returned. UCS_ERR_NO_RESOURCE: offer
 * it again. header and data: lent until then. */
ucs_status_ptr_t ucx_am_send(const struct ucx_lib *lib, ucp_ep_h ep, struct ucx_am *am, unsigned id, const void *header,
                             size_t header_len, const void *data, size_t len, ucp_send_nbx_callback_t done, void *arg);
/* Whole messages with that id are given to take. The worker's endpoints may get some of ucx_am_send. */
ucs_status_t ucx_am_receive(const struct ucx_lib *lib, ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t take,
                            void *arg);

#endif
