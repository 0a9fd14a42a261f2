/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx_message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/endian.h"

#define FLYING_MAX 16u /* copies of one sender: enough to keep a connection busy */

/* One that UCX has. */
struct message {
    struct list_node node; /* in sender->flying or sender->spares */
    struct ucx_sender *sender;
    struct ucx_push *push;
    uint8_t header[UCX_MESSAGE_HEADER_BYTES];
    uint8_t data[UCX_MESSAGE_BYTES];
};

/* --- copies --- */

/* The kernel copies within this process and says so where memory is not there, instead of a signal. */
static bool copy(char *to, const char *from, size_t len, bool is_read)
{
    while (len > 0) {
        struct iovec dst = {.iov_base = to, .iov_len = len},
                     src = {.iov_base = (void *)(uintptr_t)from, .iov_len = len};
        ssize_t done = is_read ? process_vm_readv(getpid(), &dst, 1, &src, 1, 0)
                               : process_vm_writev(getpid(), &src, 1, &dst, 1, 0);

        if (done < 0 && (errno == ENOSYS || errno == EPERM)) { /* not allowed here */
            memcpy(to, from, len);
            done = (ssize_t)len;
        }
        if (done <= 0)
            return false;
        to += done;
        from += done;
        len -= (size_t)done;
    }
    return true;
}

bool ucx_copy_from(void *to, const void *from, size_t len)
{
    return copy(to, from, len, true);
}

bool ucx_copy_to(void *to, const void *from, size_t len)
{
    return copy(to, from, len, false);
}

/* --- sending --- */

void ucx_sender_init(struct ucx_sender *sender, struct ucx_worker *worker,
                     void (*pushed)(struct ucx_push *push, ucs_status_t status))
{
    *sender = (struct ucx_sender){.worker = worker, .pushed = pushed};
    list_init(&sender->waiting);
    list_init(&sender->flying);
    list_init(&sender->spares);
}

void ucx_sender_add(struct ucx_sender *sender, struct ucx_push *push)
{
    push->in_flight = 0;
    push->status = UCS_OK;
    list_push_back(&sender->waiting, &push->node);
}

/* No more messages of push, which may be gone afterwards. */
static void fail(struct ucx_sender *sender, struct ucx_push *push, ucs_status_t status)
{
    list_remove(&push->node);
    push->status = status;
    if (push->in_flight == 0)
        sender->pushed(push, status);
}

void ucx_sender_stop(struct ucx_sender *sender, struct ucx_push *push)
{
    fail(sender, push, push->status == UCS_OK ? UCS_ERR_CANCELED : push->status);
}

static void free_spares(struct ucx_sender *sender)
{
    struct list_node *node;

    while ((node = list_pop_front(&sender->spares)))
        free(container_of(node, struct message, node));
}

/* push may be gone afterwards. */
static void message_done(struct message *message, ucs_status_t status)
{
    struct ucx_sender *sender = message->sender;
    struct ucx_push *push = message->push;

    list_remove(&message->node);
    list_push_back(&sender->spares, &message->node);
    sender->flying_count--;
    if (sender->is_closing)
        return;
    push->in_flight--;
    if (push->status == UCS_OK && status != UCS_OK) {
        push->status = status;
        list_remove(&push->node);
    }
    if (push->in_flight == 0 && !list_node_is_linked(&push->node))
        sender->pushed(push, push->status);
}

static void message_called(void *request, ucs_status_t status, void *arg)
{
    struct message *message = arg;

    message->sender->worker->ucx->lib->request_free(request);
    message_done(message, status);
}

static struct message *message_new(struct ucx_sender *sender)
{
    struct list_node *spare = list_pop_front(&sender->spares);

    return spare ? container_of(spare, struct message, node) : malloc(sizeof(struct message));
}

/* false: not now. push may be gone afterwards. */
static bool send_message(struct ucx_sender *sender, struct ucx_push *push, struct message *message)
{
    const struct ucx_worker *worker = sender->worker;
    uint32_t len = ucx_message_bytes(&push->header);
    ucs_status_ptr_t result;

    message->sender = sender;
    message->push = push;
    ucx_message_encode(&push->header, message->header);
    list_push_back(&sender->flying, &message->node);
    sender->flying_count++;
    push->in_flight++;
    if (!ucx_copy_from(message->data, push->from + push->header.offset, len)) {
        message_done(message, UCS_ERR_INVALID_ADDR);
        return true;
    }
    result = ucx_am_send(worker->ucx->lib, worker->ep, &sender->am, UCX_MESSAGE_ID, message->header,
                         sizeof message->header, message->data, len, message_called, message);
    if (UCS_PTR_STATUS(result) == UCS_ERR_NO_RESOURCE) {
        list_remove(&message->node);
        list_push_back(&sender->spares, &message->node);
        sender->flying_count--;
        push->in_flight--;
        return false;
    }
    push->header.offset += len;
    if (push->header.offset == push->header.len)
        list_remove(&push->node);
    if (!UCS_PTR_IS_PTR(result))
        message_done(message, UCS_PTR_STATUS(result));
    return true;
}

bool ucx_sender_pump(struct ucx_sender *sender)
{
    struct list_node *node;
    bool is_busy = false;

    while (sender->flying_count < FLYING_MAX && !sender->is_closing && (node = list_first(&sender->waiting))) {
        struct ucx_push *push = container_of(node, struct ucx_push, node);
        struct message *message = message_new(sender);

        if (message && !send_message(sender, push, message))
            break;
        if (!message && sender->flying_count > 0)
            break; /* one of those comes back */
        if (!message)
            fail(sender, push, UCS_ERR_NO_MEMORY);
        is_busy = true;
    }
    if (list_is_empty(&sender->waiting))
        free_spares(sender);
    return is_busy;
}

void ucx_sender_nudge(struct ucx_sender *sender)
{
    if (!list_is_empty(&sender->waiting) && !sender->is_closing)
        ucx_worker_kick(sender->worker);
}

void ucx_sender_close(struct ucx_sender *sender)
{
    sender->is_closing = true;
}

void ucx_sender_release(struct ucx_sender *sender)
{
    struct list_node *node;

    while ((node = list_pop_front(&sender->flying)))
        free(container_of(node, struct message, node));
    sender->flying_count = 0;
    free_spares(sender);
}

/* --- receiving --- */

enum ucx_message_kind ucx_message_read(const void *header, size_t header_len, size_t data_len,
                                       const ucp_am_recv_param_t *param, uint64_t token,
                                       struct ucx_message *message_out)
{
    enum shoal_status status = ucx_message_decode(header, header_len, data_len, message_out);

    if (header_len != UCX_MESSAGE_HEADER_BYTES || get_le64(header) != token)
        return UCX_MESSAGE_STRANGE;
    if (status != SHOAL_OK || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        return UCX_MESSAGE_BAD;
    return UCX_MESSAGE_GOOD;
}
