/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as active messages of UCX, for links whose one-sided operations UCX would carry out in software: there UCX 1.13
 * aborts the process that cannot acknowledge one because its peer died. Both sides copy what they send and take, so
 * that memory is touched for a link by our own code only, and memory that cannot be accessed is an error (it may be a
 * mapped file that was truncated). All on ucx's loop. */
#ifndef SHOAL_TRANSPORT_UCX_MESSAGE_H
#define SHOAL_TRANSPORT_UCX_MESSAGE_H

#include "transport/ucx_am.h"
#include "transport/ucx_internal.h"

/* A chunk that is sent. */
struct ucx_push {
    struct list_node node;     /* in sender->waiting: has more to give to UCX */
    const uint8_t *from;       /* lent until pushed is called */
    struct ucx_message header; /* offset: what UCX has been given */
    unsigned in_flight;        /* messages */
    ucs_status_t status;
};

struct ucx_sender {
    struct ucx_worker *worker;  /* lent; connected before the first push */
    struct list waiting;        /* struct ucx_push */
    struct list flying, spares; /* struct message */
    unsigned flying_count;
    struct ucx_am am;
    bool is_closing;
    /* Nothing of push is used any more. status: UCS_ERR_INVALID_ADDR: its memory could not be read, UCS_ERR_CANCELED:
     * it was stopped, else how UCX failed. May be called from inside of UCX. */
    void (*pushed)(struct ucx_push *push, ucs_status_t status);
};

void ucx_sender_init(struct ucx_sender *sender, struct ucx_worker *worker,
                     void (*pushed)(struct ucx_push *push, ucs_status_t status));
/* push: from and header are filled in, with offset 0. */
void ucx_sender_add(struct ucx_sender *sender, struct ucx_push *push);
/* Its memory is not read any more; pushed is called, now or later. */
void ucx_sender_stop(struct ucx_sender *sender, struct ucx_push *push);
/* Gives UCX what it may have. false: nothing. */
bool ucx_sender_pump(struct ucx_sender *sender);
/* Offers again what UCX did not take: from time to time, since its progress may have come with no event. */
void ucx_sender_nudge(struct ucx_sender *sender);
/* Nothing is called any more. Then the worker is disconnected, waiting for flying_count, and destroyed. */
void ucx_sender_close(struct ucx_sender *sender);
void ucx_sender_release(struct ucx_sender *sender);

#define UCX_MESSAGE_ID 1 /* of active messages */
enum ucx_message_kind { UCX_MESSAGE_GOOD, UCX_MESSAGE_BAD, UCX_MESSAGE_STRANGE };
/* What came. STRANGE: not from the peer of the link, whose messages carry token. */
enum ucx_message_kind ucx_message_read(const void *header, size_t header_len, size_t data_len,
                                       const ucp_am_recv_param_t *param, uint64_t token,
                                       struct ucx_message *message_out);

/* false: from or to is not accessible, and some of it may have been copied. */
bool ucx_copy_from(void *to, const void *from, size_t len);
bool ucx_copy_to(void *to, const void *from, size_t len);

#endif
