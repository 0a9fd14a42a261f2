/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a peer client, questions to owners, and deletion. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kv/peer_internal.h"
#include "wire/rpc_frame.h"

#define DEFAULT_INLINE_MAX_BYTES (128u << 10) /* up to here asking costs more than moving */
#define DEFAULT_CALL_TIMEOUT_MS 10000
#define KEY_MAX_BYTES 1024
#define DELETE_ITEMS 256u /* of one request */
/* Packed messages without inline values. */
#define SMALL_MESSAGE_BYTES 4096

enum shoal_status peers_create(const struct peers_config *config, struct peers **peers_out, struct shoal_error *error)
{
    struct peers *peers;

    if (config->inline_max_bytes > PEER_INLINE_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "inline_max_bytes is %u, at most %u are possible",
                         config->inline_max_bytes, PEER_INLINE_MAX_BYTES);
    if (config->read_inline_max_bytes > KV_INLINE_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "read_inline_max_bytes is %u, at most %u are possible",
                         config->read_inline_max_bytes, KV_INLINE_MAX_BYTES);
    peers = calloc(1, sizeof *peers);
    if (!peers)
        return error_no_memory(error);
    peers->combiner = combiner_create(PEER_BATCH_REQUEST_BYTES);
    if (!peers->combiner) {
        free(peers);
        return error_no_memory(error);
    }
    peers->engine = config->engine;
    peers->channels = config->channels;
    peers->inline_max_bytes = config->inline_max_bytes ? config->inline_max_bytes : DEFAULT_INLINE_MAX_BYTES;
    peers->read_inline_max_bytes =
        config->read_inline_max_bytes ? config->read_inline_max_bytes : peers->inline_max_bytes;
    peers->call_timeout_ms = config->call_timeout_ms > 0 ? config->call_timeout_ms : DEFAULT_CALL_TIMEOUT_MS;
    mutex_init(&peers->mutex, RANK_KV);
    list_init(&peers->exposures);
    map_init(&peers->links);
    list_init(&peers->links_by_use);
    *peers_out = peers;
    return SHOAL_OK;
}

void peers_destroy(struct peers *peers)
{
    if (!peers)
        return;
    peer_links_release(peers);
    combiner_destroy(peers->combiner);
    mutex_release(&peers->mutex);
    free(peers);
}

struct call peer_call_of(const struct peers *peers, const struct call *call)
{
    return call ? *call : (struct call){.deadline_ms = deadline_after_ms(peers->call_timeout_ms)};
}

enum shoal_status peer_ask(struct peers *peers, const struct peer_address *owner, const struct peer_question *question,
                           const struct call *call, struct buf *body_out, struct shoal_error *error)
{
    uint8_t small[SMALL_MESSAGE_BYTES], *packed = small;
    size_t room = question->max_bytes, len;
    struct iovec parts[4];
    enum shoal_status status;

    if (!room)
        room = protobuf_c_message_get_packed_size(question->message);
    if (room > sizeof small) {
        packed = malloc(room);
        if (!packed)
            return error_no_memory(error);
    }
    len = protobuf_c_message_pack(question->message, packed);
    assert(len <= room);
    parts[0] = (struct iovec){packed, len};
    for (int i = 0; i < question->tail_count; i++)
        parts[1 + i] = question->tail[i];
    if (question->sink)
        status = rpc_channels_call_into(peers->channels, owner->address, owner->instance, (uint16_t)question->method,
                                        parts, 1 + question->tail_count, call, body_out, question->sink, error);
    else
        status = (question->is_once ? rpc_channels_call_once : rpc_channels_call)(
            peers->channels, owner->address, owner->instance, (uint16_t)question->method, parts,
            1 + question->tail_count, call, body_out, error);
    if (packed != small)
        free(packed);
    return status;
}

enum shoal_status peer_status(int32_t value)
{
    enum shoal_status status = (enum shoal_status)value;

    if (status == SHOAL_OK) /* most often: no need to search for it */
        return status;
    return value > 0 || strcmp(shoal_status_name(status), "UNKNOWN") == 0 ? SHOAL_PROTOCOL : status;
}

bool peer_refuses_leases(enum shoal_status status)
{
    return status == SHOAL_NO_SPACE || status == SHOAL_LIMIT || status == SHOAL_BUSY || status == SHOAL_UNSUPPORTED;
}

bool peer_could_not_reach_us(enum shoal_status status, bool is_answer, const struct call *call)
{
    return is_answer && (status == SHOAL_UNREACHABLE || status == SHOAL_TIMED_OUT) &&
           !cancel_is_triggered(call->cancel) && !deadline_is_past(call->deadline_ms);
}

enum shoal_status peer_check_key(const char *key, struct shoal_error *error)
{
    size_t len = strnlen(key, KEY_MAX_BYTES + 1);

    if (len < 1 || len > KEY_MAX_BYTES)
        return error_set(error, SHOAL_INVALID_ARGUMENT, 0, "a key has 1..%d bytes", KEY_MAX_BYTES);
    return SHOAL_OK;
}

/* A query of no keys. */
enum shoal_status peer_ping(struct peers *peers, const struct peer_address *owner, const struct call *call,
                            struct shoal_error *error)
{
    Shoal__Wire__KvQueryRequest request = SHOAL__WIRE__KV_QUERY_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_QUERY, .message = &request.base};
    enum shoal_status status;
    struct buf body;

    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, call, &body, error);
    buf_release(&body);
    return status;
}

/* --- deletion --- */

static enum shoal_status delete_some(struct peers *peers, const struct peer_address *owner,
                                     Shoal__Wire__KvDeleteRequest__Item **items, size_t count, const struct call *call,
                                     enum shoal_status *statuses_out, struct shoal_error *error)
{
    Shoal__Wire__KvDeleteRequest request = SHOAL__WIRE__KV_DELETE_REQUEST__INIT;
    struct peer_question question = {.method = KV_METHOD_DELETE, .message = &request.base};
    Shoal__Wire__KvDeleteResponse *response = NULL;
    enum shoal_status status;
    struct buf body;

    /* Once for any object of the key: a second time may meet another one. */
    for (size_t i = 0; i < count; i++)
        question.is_once |= !items[i]->object_id;
    request.n_items = count;
    request.items = items;
    buf_init(&body, RPC_RESPONSE_MAX_BYTES);
    status = peer_ask(peers, owner, &question, call, &body, error);
    if (status == SHOAL_OK) {
        response = shoal__wire__kv_delete_response__unpack(NULL, body.len, body.data);
        if (!response || response->n_statuses != count)
            status = peer_nonsense(owner, "malformed answer to a deletion", error);
    }
    for (size_t i = 0; i < count; i++)
        statuses_out[i] = status ? status : peer_status(response->statuses[i]);
    if (response)
        shoal__wire__kv_delete_response__free_unpacked(response, NULL);
    buf_release(&body);
    return status;
}

enum shoal_status peer_delete(struct peers *peers, const struct peer_address *owner, const char *const *keys,
                              const uint64_t *object_ids, size_t count, const struct call *call,
                              enum shoal_status *statuses_out, struct shoal_error *error)
{
    struct call bounded = peer_call_of(peers, call);
    Shoal__Wire__KvDeleteRequest__Item items[DELETE_ITEMS], *pointers[DELETE_ITEMS];
    enum shoal_status first = SHOAL_OK, status;
    struct shoal_error local;

    for (size_t at = 0; at < count;) {
        size_t some = 0, bytes = 0;

        while (at + some < count && some < DELETE_ITEMS) {
            size_t key_len = strlen(keys[at + some]);

            if (some && bytes + key_len > PEER_BATCH_REQUEST_BYTES - some * 32)
                break;
            bytes += key_len;
            shoal__wire__kv_delete_request__item__init(&items[some]);
            items[some].key = (char *)(uintptr_t)keys[at + some];
            items[some].object_id = object_ids ? object_ids[at + some] : 0;
            pointers[some] = &items[some];
            some++;
        }
        status = delete_some(peers, owner, pointers, some, &bounded, &statuses_out[at], &local);
        for (size_t i = at; i < at + some && first == SHOAL_OK; i++) {
            first = statuses_out[i];
            if (first == SHOAL_OK)
                continue;
            if (status)
                error_copy(error, &local);
            else
                error_set(error, first, 0, "%s: '%.100s': %s", owner->address, keys[i], shoal_status_text(first));
        }
        at += some;
    }
    return first;
}
