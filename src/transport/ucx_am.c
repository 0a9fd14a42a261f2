/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx_am.h"

static ucs_status_ptr_t offer(const struct ucx_lib *lib, ucp_ep_h ep, unsigned id, const void *header,
                              size_t header_len, const void *data, size_t len)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
                                 .flags = UCP_AM_SEND_FLAG_EAGER};

    return lib->am_send_nbx(ep, id, header, header_len, data, len, &param);
}

ucs_status_ptr_t ucx_am_send(const struct ucx_lib *lib, ucp_ep_h ep, struct ucx_am *am, unsigned id, const void *header,
                             size_t header_len, const void *data, size_t len, ucp_send_nbx_callback_t done, void *arg)
{
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = done,
                                 .user_data = arg};
    ucs_status_ptr_t result;

    if (!am->is_queued) {
        result = offer(lib, ep, id, header, header_len, data, len);
        if (result == NULL && len > am->largest)
            am->largest = len;
        if (UCS_PTR_STATUS(result) != UCS_ERR_NO_RESOURCE || len <= am->largest)
            return result;
        if (offer(lib, ep, UCX_AM_HELLO, NULL, 0, NULL, 0) != NULL)
            return result; /* there is no room for anything */
        am->is_queued = true;
    }
    return lib->am_send_nbx(ep, id, header, header_len, data, len, &param);
}

static ucs_status_t ignore(void *arg, const void *header, size_t header_len, void *data, size_t len,
                           const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)header_len;
    (void)data;
    (void)len;
    (void)param;
    return UCS_OK;
}

static ucs_status_t set_handler(const struct ucx_lib *lib, ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t fn,
                                void *arg)
{
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                                  UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                    .id = id,
                                    .flags = UCP_AM_FLAG_WHOLE_MSG,
                                    .cb = fn,
                                    .arg = arg};

    return lib->worker_set_am_recv_handler(worker, &param);
}

ucs_status_t ucx_am_receive(const struct ucx_lib *lib, ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t take,
                            void *arg)
{
    ucs_status_t status = set_handler(lib, worker, UCX_AM_HELLO, ignore, NULL);

    return status == UCS_OK ? set_handler(lib, worker, id, take, arg) : status;
}
