/* SPDX-License-Identifier: Apache-2.0 */
/* Leases at an owner: pins, held writes, their renewal and end. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kv/peer_internal.h"
#include "wire/rpc_frame.h"

/* Where the owner's memory may be used, from its answer. PROTOCOL: it makes no sense. */
static enum shoal_status fill_lease(const struct peer_address *owner, uint64_t lease_id,
                                    const Shoal__Wire__KvMemory *memory, uint32_t lease_ms,
                                    struct peer_lease *lease_out, struct shoal_error *error)
{
    if (!lease_id || !lease_ms || !memory || !memory->len_bytes || memory->addr + memory->len_bytes < memory->addr)
        return peer_nonsense(owner, "malformed lease", error);
    *lease_out = (struct peer_lease){.lease_id = lease_id,
                                     .remote_addr = memory->addr,
                                     .remote_key = memory->key,
                                     .len_bytes = memory->len_bytes,
                                     .lease_ms = lease_ms};
    return SHOAL_OK;
}

static enum shoal_status pin_from_answer(const struct peer_address *owner, const struct buf *body,
                                         uint64_t offset_bytes, struct peer_lease *lease_out, struct shoal_error *error)
{
    Shoal__Wire__KvReadResponse *response = shoal__wire__kv_read_response__unpack(NULL, body->len, body->data);
    enum shoal_status status;

    if (!response || response->way != PEER_WAY_PINNED || !response->pin || !response->object_id) {
        status = peer_nonsense(owner, "malformed answer to a pin", error);
    } else {
        const Shoal__Wire__KvPin *pin = response->pin;

        status = fill_lease(owner, pin->lease_id, pin->memory, pin->lease_ms, lease_out, error);
        if (status == SHOAL_OK &&
            (pin->offset > offset_bytes || offset_bytes - pin->offset >= pin->memory->len_bytes ||
             pin->offset > response->len_bytes || pin->memory->len_bytes > response->len_bytes - pin->offset))
            status = peer_nonsense(owner, "a pin of another part", error);
        if (status == SHOAL_OK) {
            lease_out->offset_bytes = pin->offset;
            lease_out->object_id = response->object_id;
            lease_out->value_len_bytes = response->len_bytes;
        }
    }
    if (response)
        shoal__wire__kv_read_response__free_unpacked(response, NULL);
    return status;
}

enum shoal_status peer_pin(struct peers *peers, const struct peer_address *owner, const char *key, uint64_t object_id,
                           uint64_t offset_bytes, const struct call *call, struct peer_lease *lease_out,
                           struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    Shoal__Wire__KvReadRequest request = SHOAL__WIRE__KV_READ_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_PIN_KEY, .message = &request.base};
    struct buf body;
    enum shoal_status status = peer_check_key(key, error);

    if (status)
        return status;
    request.key = (char *)(uintptr_t)key;
    request.object_id = object_id;
    request.wants_pin = true;
    request.offset = offset_bytes;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, &bounded, &body, error);
    if (status == SHOAL_OK)
        status = pin_from_answer(owner, &body, offset_bytes, lease_out, error);
    buf_release(&body);
    return status;
}

enum shoal_status peer_pre_write(struct peers *peers, const struct peer_address *owner, const char *key,
                                 uint64_t len_bytes, const struct call *call, struct peer_lease *lease_out,
                                 struct shoal_error *error)
{
    return peer_pre_write_as(peers, owner, key, len_bytes, 0, call, lease_out, error);
}

enum shoal_status peer_pre_write_as(struct peers *peers, const struct peer_address *owner, const char *key,
                                    uint64_t len_bytes, uint64_t object_id, const struct call *call,
                                    struct peer_lease *lease_out, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    Shoal__Wire__KvPreWriteRequest request = SHOAL__WIRE__KV_PRE_WRITE_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_PRE_WRITE, .message = &request.base, .is_once = true};
    Shoal__Wire__KvPreWriteResponse *response;
    struct buf body;
    enum shoal_status status = peer_check_key(key, error);

    if (status)
        return status;
    request.key = (char *)(uintptr_t)key;
    request.len_bytes = len_bytes;
    request.object_id = object_id;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, &bounded, &body, error);
    if (status == SHOAL_OK) {
        response = shoal__wire__kv_pre_write_response__unpack(NULL, body.len, body.data);
        if (!response || !response->memory || response->memory->len_bytes < len_bytes)
            status = peer_nonsense(owner, "malformed answer to a pre-write", error);
        else
            status = fill_lease(owner, response->lease_id, response->memory, response->lease_ms, lease_out, error);
        if (status == SHOAL_OK) {
            lease_out->len_bytes = lease_out->value_len_bytes = len_bytes;
            lease_out->object_id = object_id;
        }
        if (response)
            shoal__wire__kv_pre_write_response__free_unpacked(response, NULL);
    }
    buf_release(&body);
    return status;
}

enum shoal_status peer_write_commit(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                                    const struct call *call, uint64_t *object_id_out, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    Shoal__Wire__KvLeaseRequest request = SHOAL__WIRE__KV_LEASE_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_WRITE_COMMIT, .message = &request.base, .is_once = true};
    Shoal__Wire__KvWriteResponse *response;
    struct buf body;
    enum shoal_status status;

    request.n_lease_ids = 1;
    request.lease_ids = &lease_id;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, &bounded, &body, error);
    if (status == SHOAL_OK) {
        response = shoal__wire__kv_write_response__unpack(NULL, body.len, body.data);
        if (!response || !response->object_id)
            status = peer_nonsense(owner, "malformed answer to a commit", error);
        else if (object_id_out)
            *object_id_out = response->object_id;
        if (response)
            shoal__wire__kv_write_response__free_unpacked(response, NULL);
    }
    buf_release(&body);
    return status;
}

/* statuses_out: count of them; what was not answered has the call's status. */
static enum shoal_status ask_leases(struct peers *peers, const struct peer_address *owner, unsigned method,
                                    const uint64_t *lease_ids, size_t count, const struct call *call,
                                    enum shoal_status *statuses_out, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    Shoal__Wire__KvLeaseRequest request = SHOAL__WIRE__KV_LEASE_REQUEST__INIT;
    struct peer_question question = {.method = method, .message = &request.base, .is_once = method != KV_METHOD_RENEW};
    Shoal__Wire__KvLeaseResponse *response = NULL;
    struct buf body;
    enum shoal_status status;

    request.n_lease_ids = count;
    request.lease_ids = (uint64_t *)(uintptr_t)lease_ids;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, &bounded, &body, error);
    if (status == SHOAL_OK) {
        response = shoal__wire__kv_lease_response__unpack(NULL, body.len, body.data);
        if (!response || response->n_statuses != count)
            status = peer_nonsense(owner, "malformed answer about leases", error);
    }
    for (size_t i = 0; i < count; i++)
        statuses_out[i] = status ? status : peer_status(response->statuses[i]);
    if (response)
        shoal__wire__kv_lease_response__free_unpacked(response, NULL);
    buf_release(&body);
    return status;
}

static enum shoal_status ask_lease(struct peers *peers, const struct peer_address *owner, unsigned method,
                                   uint64_t lease_id, const struct call *call, struct shoal_error *error)
{
    enum shoal_status of_lease, status = ask_leases(peers, owner, method, &lease_id, 1, call, &of_lease, error);

    if (status == SHOAL_OK && of_lease)
        status = error_set(error, of_lease, 0, "%s: the lease: %s", owner->address, shoal_status_text(of_lease));
    return status;
}

enum shoal_status peer_unpin(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                             const struct call *call, struct shoal_error *error)
{
    return ask_lease(peers, owner, KV_METHOD_UNPIN_KEY, lease_id, call, error);
}

enum shoal_status peer_write_revoke(struct peers *peers, const struct peer_address *owner, uint64_t lease_id,
                                    const struct call *call, struct shoal_error *error)
{
    return ask_lease(peers, owner, KV_METHOD_WRITE_REVOKE, lease_id, call, error);
}

enum shoal_status peer_renew(struct peers *peers, const struct peer_address *owner, const uint64_t *lease_ids,
                             size_t count, const struct call *call, enum shoal_status *statuses_out,
                             struct shoal_error *error)
{
    enum shoal_status first = SHOAL_OK;

    for (size_t at = 0; at < count; at += PEER_LEASES_PER_REQUEST) {
        size_t some = count - at < PEER_LEASES_PER_REQUEST ? count - at : PEER_LEASES_PER_REQUEST;
        enum shoal_status status = ask_leases(peers, owner, KV_METHOD_RENEW, lease_ids + at, some, call,
                                              statuses_out + at, first ? NULL : error);

        for (size_t i = at; i < at + some && first == SHOAL_OK; i++) {
            first = statuses_out[i];
            if (first && status == SHOAL_OK)
                error_set(error, first, 0, "%s: lease %zu: %s", owner->address, i, shoal_status_text(first));
        }
    }
    return first;
}
