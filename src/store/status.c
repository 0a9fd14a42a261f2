/* SPDX-License-Identifier: Apache-2.0 */
#include "store/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "wire/control.pb-c.h"

/* --- codec --- */

enum shoal_status status_encode(const struct shoal_source_status *status, struct buf *out)
{
    Shoal__Wire__StatusResponse response = SHOAL__WIRE__STATUS_RESPONSE__INIT;
    Shoal__Wire__Receiver *receivers = calloc(status->receiver_count + 1, sizeof *receivers);
    Shoal__Wire__Receiver **pointers = calloc(status->receiver_count + 1, sizeof *pointers);
    enum shoal_status result = SHOAL_NO_MEMORY;
    size_t len;

    if (!receivers || !pointers)
        goto out;
    for (size_t i = 0; i < status->receiver_count; i++) {
        const struct shoal_receiver_info *info = &status->receivers[i];
        shoal__wire__receiver__init(&receivers[i]);
        receivers[i].name = (char *)info->name;
        receivers[i].bytes = info->bytes;
        receivers[i].pieces_have = info->pieces_have;
        receivers[i].state = info->state;
        receivers[i].silent_ms = info->silent_ms;
        receivers[i].transport = (char *)info->transport;
        receivers[i].left_transports = (char *)info->left_transports;
        pointers[i] = &receivers[i];
    }
    response.pieces_have = (uint32_t)status->pieces_have;
    response.piece_count = (uint32_t)status->pieces_total;
    response.is_gold = status->source.is_gold != 0;
    response.is_starving = status->is_starving != 0;
    response.bytes_served = status->bytes_served;
    response.receivers_now = status->receivers_now;
    response.receivers_known = status->receivers_known;
    response.n_receivers = status->receiver_count;
    response.receivers = pointers;
    len = shoal__wire__status_response__get_packed_size(&response);
    if (!buf_reserve(out, len))
        goto out;
    out->len += shoal__wire__status_response__pack(&response, out->data + out->len);
    result = SHOAL_OK;
out:
    free(pointers);
    free(receivers);
    return result;
}

static bool take_receiver(struct shoal_receiver_info *info, const Shoal__Wire__Receiver *receiver, uint32_t piece_count)
{
    size_t len = strlen(receiver->name);

    if (!len || len >= sizeof info->name || strlen(receiver->transport) >= sizeof info->transport ||
        strlen(receiver->left_transports) >= sizeof info->left_transports || receiver->pieces_have > piece_count ||
        receiver->state > SHOAL_RECEIVER_LEFT)
        return false;
    memcpy(info->name, receiver->name, len + 1);
    info->state = (enum shoal_receiver_state)receiver->state;
    info->pieces_have = receiver->pieces_have;
    info->bytes = receiver->bytes;
    info->silent_ms = receiver->silent_ms;
    strcpy(info->transport, receiver->transport);
    strcpy(info->left_transports, receiver->left_transports);
    return true;
}

enum shoal_status status_decode(struct shoal_source_status *status, uint32_t piece_count, uint32_t max_receivers,
                                const uint8_t *body, size_t body_len, struct shoal_error *error)
{
    Shoal__Wire__StatusResponse *message = shoal__wire__status_response__unpack(NULL, body_len, body);
    struct shoal_receiver_info *receivers = NULL;
    enum shoal_status result = SHOAL_OK;

    if (!message)
        return error_set(error, SHOAL_PROTOCOL, 0, "malformed status response");
    if (message->piece_count != piece_count || message->pieces_have > piece_count)
        result = error_set(error, SHOAL_PROTOCOL, 0, "says it has %u of %u pieces, the payload has %u",
                           message->pieces_have, message->piece_count, piece_count);
    else if (message->n_receivers > max_receivers)
        result = error_set(error, SHOAL_PROTOCOL, 0, "lists %zu receivers, more than the %u asked for",
                           message->n_receivers, max_receivers);
    else if (!(receivers = calloc(message->n_receivers + 1, sizeof *receivers)))
        result = error_no_memory(error);
    for (size_t i = 0; !result && i < message->n_receivers; i++) {
        if (!take_receiver(&receivers[i], message->receivers[i], piece_count))
            result = error_set(error, SHOAL_PROTOCOL, 0, "malformed receiver in a status response");
    }
    if (result) {
        free(receivers);
        goto out;
    }
    status->is_starving = message->is_starving != 0;
    status->pieces_have = message->pieces_have;
    status->pieces_total = message->piece_count;
    status->bytes_served = message->bytes_served;
    status->receivers_now = message->receivers_now;
    status->receivers_known = message->receivers_known;
    status->receivers = receivers;
    status->receiver_count = message->n_receivers;
out:
    shoal__wire__status_response__free_unpacked(message, NULL);
    return result;
}

/* --- serving --- */

enum shoal_status status_of_payload(struct payload *payload, uint32_t max_receivers, struct shoal_source_status *status)
{
    int64_t now = clock_now_ms();
    size_t max = max_receivers < SHOAL_STATUS_RECEIVERS_MAX ? max_receivers : SHOAL_STATUS_RECEIVERS_MAX;
    struct shoal_receiver_info *receivers;

    receivers_age(&payload->receivers, now);
    max = max < payload->receivers.by_name.count ? max : payload->receivers.by_name.count;
    receivers = calloc(max + 1, sizeof *receivers);
    if (!receivers)
        return SHOAL_NO_MEMORY;
    status->source.is_gold = payload->is_gold;
    status->is_starving = payload->is_starving;
    status->pieces_have = serve_pieces_have(payload);
    status->pieces_total = payload->layout.piece_count;
    status->bytes_served = payload->receivers.bytes_served;
    status->receivers_now = payload->receivers.taking_count;
    status->receivers_known = (uint32_t)payload->receivers.by_name.count;
    status->receivers = receivers;
    status->receiver_count = receivers_list(&payload->receivers, now, receivers, max);
    return SHOAL_OK;
}

void status_on_request(void *arg, struct rpc_request *request)
{
    struct shoal_store *store = arg;
    Shoal__Wire__StatusRequest *message = shoal__wire__status_request__unpack(NULL, request->body_len, request->body);
    struct shoal_source_status status = {.receivers = NULL};
    struct payload *payload = NULL;
    struct buf body;

    if (!message) {
        rpc_reply(request, SHOAL_PROTOCOL, "malformed status request", NULL, 0);
        return;
    }
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    payload = serve_find(store, message->name, message->generation);
    if (!payload)
        rpc_reply(request, SHOAL_NOT_FOUND, "payload is not served here", NULL, 0);
    else if (status_of_payload(payload, message->max_receivers, &status) || status_encode(&status, &body))
        rpc_reply(request, SHOAL_NO_MEMORY, NULL, NULL, 0);
    else
        rpc_reply(request, SHOAL_OK, NULL, body.data, body.len);
    payload_unref(payload);
    free(status.receivers);
    buf_release(&body);
    shoal__wire__status_request__free_unpacked(message, NULL);
}

struct receivers_args {
    struct payload *payload;
    struct shoal_receiver_info *infos;
    size_t count;
};

static void list_on_loop(void *arg)
{
    struct receivers_args *args = arg;
    struct receivers *receivers = &args->payload->receivers;
    int64_t now = clock_now_ms();

    receivers_age(receivers, now);
    args->infos = calloc(receivers->by_name.count + 1, sizeof *args->infos);
    if (args->infos)
        args->count = receivers_list(receivers, now, args->infos, receivers->by_name.count);
}

enum shoal_status shoal_store_receivers(struct shoal_store *store, const char *name,
                                        struct shoal_receiver_info **infos_out, size_t *count_out,
                                        struct shoal_error *error)
{
    struct receivers_args args = {.payload = NULL};
    enum shoal_status status;

    if (!store || !infos_out || !count_out)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "store or an output is NULL");
    status = store_check_name(name, error);
    if (status)
        return status;
    args.payload = serve_find_any(store, name);
    if (!args.payload)
        return error_set(error, SHOAL_PAYLOAD_NOT_OPENED, 0, "payload '%s' is not served by this node", name);
    loop_call(engine_loop(store->engine), list_on_loop, &args);
    payload_unref(args.payload);
    if (!args.infos)
        return error_no_memory(error);
    *infos_out = args.infos;
    *count_out = args.count;
    return SHOAL_OK;
}
